"""What readers of traces share: JSON and what is wrong with it, times, and what is skipped."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from typing import Any

import msgspec

from ..errors import FormatError
from .columns import FAR
from .trace import Trace

NO_EVENTS, NO_TIME, NO_DURATION = "that are no events", "without a time", "without a duration"  # why some are skipped
NEVER_END, NEVER_BEGIN = "that begin and never end", "that end and never begin"
# NaN is null; not strict: line breaks and other control characters stand in texts as they are
read_json = json.JSONDecoder(parse_float=Decimal, parse_constant=lambda _: None, strict=False)
write_json = msgspec.json.Encoder(decimal_format="number").encode


class UnreadableError(Exception):
    """Says why an event is skipped."""


# what reading an event may raise
UNREADABLE = (UnreadableError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Skipped(Counter[str]):
    """How many events of a file were skipped, by the reason; ``broken`` is the error of the first that is none."""

    broken: FormatError | None = None

    def note(self, error: Exception, path: str) -> None:
        """Count an event that could not be read, which stands at a place in the JSON."""
        if isinstance(error, UnreadableError):
            self[str(error)] += 1
        else:
            self[NO_EVENTS] += 1
            self.broken = self.broken or _no_event(error, path)


def decoded(data: bytes | msgspec.Raw, type: Any) -> Any:
    """Return JSON as a type, or say where in the text it is broken."""
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise FormatError("the JSON is nested too deeply", code="E246") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text: {error.reason} at byte {error.start}", code="E231") from None
    except msgspec.ValidationError as error:
        raise FormatError(f"this is not a trace: {error}", code="E248") from None
    except msgspec.DecodeError as error:
        text, place = bytes(data), re.search(r"\(byte (\d+)\)", str(error))
        if place is None:  # it ends too early
            line, end = text.count(b"\n") + 1, text[-40:].decode("utf-8", "replace")
            message = f"the JSON stops short at byte {len(text)}, line {line}, after {end!r}"
            raise FormatError(message, "the file was cut off while it was written or copied", code="E245") from None
        at = int(place[1])
        line, column = text.count(b"\n", 0, at) + 1, at - text.rfind(b"\n", 0, at)
        near = text[max(0, at - 20) : at + 20].decode("utf-8", "replace")
        raise FormatError(f"not JSON: {error}, line {line}, column {column}, at {near!r}", code="E245") from None


def without_nan(data: bytes) -> bytes | None:
    """Return JSON in which NaN and infinite numbers, as Python writes them, are null; None where it is still no JSON."""
    try:
        return write_json(read_json.decode(data.decode()))
    except (ValueError, ArithmeticError, RecursionError):
        return None


def ns(value: Decimal, scale: int) -> int:
    """Return a time in nanoseconds, rounded."""
    if value.is_finite() and value.adjusted() < 19:
        number = int((value * scale).to_integral_value())
        if -FAR < number < FAR:
            return number
    raise UnreadableError("with a time out of range")


def duration_ns(value: Decimal | None, scale: int) -> int:
    """Return a duration in nanoseconds, rounded."""
    if value is None or not value.is_finite() or value < 0:
        raise UnreadableError(NO_DURATION)
    return ns(value, scale)


def no_trace(what: str, path: str, code: str = "E248") -> FormatError:
    """Return the error of a file that is no trace, at a place in its JSON."""
    return FormatError(f"this is not a trace: {what} - at `{path}`", code=code)


def _no_event(error: Exception, path: str) -> FormatError:
    """Say why something is no event, and where it stands in the file."""
    text = f"not UTF-8 text, {error.reason}" if isinstance(error, UnicodeDecodeError) else str(error)
    what, _, where = text.partition(" - at `$")
    return no_trace(what, path + where.removesuffix("`"))


def with_skipped(trace: Trace, skipped: Skipped) -> Trace:
    """Return a trace that says what was skipped; raise where nothing of the file is an event, not even a broken one."""
    others = trace.chrome is not None and trace.chrome.others
    if skipped.broken is not None and not (len(trace) or others or skipped.keys() - {NO_EVENTS}):
        raise skipped.broken
    trace.skipped = dict(skipped)
    return trace
