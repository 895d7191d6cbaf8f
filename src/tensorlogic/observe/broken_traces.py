"""Reads Chrome files that are not JSON as a whole: what can be read of them, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from ..diagnostics import value_text
from .trace_decoding import read_json, write_json

WASTED = 1 << 30  # characters read in vain, at places that are no JSON, after which the rest of a file is only counted
WINDOW = 1 << 14  # characters that values are read from: Python counts lines from the first, wherever one is broken
CUT = 16  # characters before the end of a window where a value that is broken may only be cut
PATIENCE = 1 << 22  # characters of broken values whose brackets are followed
EVENTS_START = re.compile(r'"traceEvents"\s*:\s*\[')
OF_EVENT = '"(?:ph|name|cname|cat|pid|tid|ts|tts|dur|tdur|id|bind_id|args|s|bp)"'
EVENT = rf"\{{\s*{OF_EVENT}\s*:"  # how events begin
BETWEEN_EVENTS = [re.compile(rf"\}}\s*,\s*(?={begin})") for begin in (EVENT, r"\{")]  # or at least objects
AFTER_EVENT = re.compile(r",\s*(?:\{|\]|null|true|false|-?\d)|\]")
AFTER_FIELD = re.compile(r',\s*"|\}')
AFTER_EITHER = re.compile(f"{AFTER_EVENT.pattern}|{AFTER_FIELD.pattern}")
STRAY = re.compile(r"[\]}]+\s*,\s*\{")  # brackets too many between two events, for a list ends with none
SPACE = re.compile(r"[,\s]*")
FIELD = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*')
FIELD_OF_FILE = re.compile(rf"(?!{OF_EVENT}){FIELD.pattern}")
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\],]', re.DOTALL)
CLOSING = {"{": "}", "[": "]"}


class BrokenFile:
    """A Chrome file that is not JSON as a whole; NaN is read as null, control characters in texts as they stand.

    ``fields``, beside the events, and ``damage``, what else is wrong with the file, are known after the last event.

    >>> file = BrokenFile('{"a": 1, "traceEvents": [{"ph": "X"}, {"ph" "X"}, {"ts": NaN}], "b": 2')
    >>> list(file.events()), file.fields, file.damage
    ([b'{"ph":"X"}', b'', b'{"ts":null}'], {'a': b'1', 'b': b'2'}, 'its JSON stops short')
    """

    def __init__(self, text: str) -> None:
        self.fields: dict[str, bytes] = {}
        self.damage: str | None = None
        self._text, self._at = text, 0
        self._window, self._start = "", 0  # a piece of the text, and where it stands there
        self._wasted, self._patience, self._between = 0, PATIENCE, list(BETWEEN_EVENTS)
        self._unread = 0  # events in what is passed over

    def events(self) -> Iterator[bytes]:
        """Go through the events, each as JSON; one that cannot be read is empty."""
        yield from self._readable()
        for _ in range(self._unread):
            yield b""

    def _readable(self) -> Iterator[bytes]:
        begin = self._next()
        self._at += 1
        if begin == "[":
            yield from self._elements()  # Chrome itself leaves out the bracket at the end
            self._end()
            return
        while self._wasted < WASTED and self._next() not in ("}", ""):
            field = FIELD.match(self._text, self._at)
            if field is None:
                self._damage("its JSON is broken between its fields")
                self._to_events()
                continue
            if self._field(field, AFTER_FIELD):
                yield from self._elements(in_object=True)
        if self._next() == "}":
            self._at += 1
            self._end()
        else:
            self._damage("its JSON stops short")
            self._pass_rest()

    def _field(self, field: re.Match[str], after: re.Pattern[str]) -> bool:
        """Read a field; tell whether it holds the events, of which the first is the next."""
        name, self._at = _name(field[1]), field.end()
        if name == "traceEvents" and self._text.startswith("[", self._at):
            self._at += 1
            return True
        value = self._value(after)
        if value is None:
            self._damage(f"its field {value_text(name)} cannot be read")
        else:
            self.fields[name] = value
        return False

    def _elements(self, *, in_object: bool = False) -> Iterator[bytes]:
        """Go through the elements of a list, and behind it."""
        while self._wasted < WASTED:
            sign = self._next()
            if stray := STRAY.match(self._text, self._at):
                self._at = stray.end() - 1
                yield b""
            elif sign == "}" and (following := BETWEEN_EVENTS[0].search(self._text, self._at + 1)):
                self._to(following.end())  # no end, for more events stand behind it
                yield b""
            elif sign in ("]", "}", ""):
                self._at += sign == "]"  # where that is missing, what holds the list goes on
                return
            elif in_object and sign == '"' and (field := FIELD_OF_FILE.match(self._text, self._at)):
                self._damage(f"a ] is missing before its field {value_text(_name(field[1]))}")
                self._field(field, AFTER_EITHER)  # more events may follow, or the bracket
            else:
                yield self._value(AFTER_EVENT) or b""
        self._damage("too much of it is broken to be read to its end")
        self._pass_rest()

    def _next(self) -> str:
        """Go to the next sign that is no space or comma, and return it; nothing at the end."""
        self._at = SPACE.match(self._text, self._at).end()  # type: ignore[union-attr] # it always matches
        return self._text[self._at : self._at + 1]

    def _end(self) -> None:
        if self._next():
            self._damage("more stands behind the end of its JSON")
            self._pass_rest()

    def _to(self, place: int) -> None:
        """Pass over a broken event, and count those that are lost with it."""
        self._unread += max(0, self._text.count('"ph"', self._at, place) - 1)
        self._at = place

    def _pass_rest(self) -> None:
        """Go to the end, and count the events on the way."""
        self._unread += self._text.count('"ph"', self._at)
        self._at = len(self._text)

    def _damage(self, what: str) -> None:
        self.damage = self.damage or what

    def _value(self, after: re.Pattern[str]) -> bytes | None:
        """Read the value that stands here, or go behind one that is broken."""
        try:
            value = self._read(WINDOW)
        except (ValueError, ArithmeticError, RecursionError):
            self._skip(after)
            return None
        try:
            return write_json(value)
        except (ValueError, ArithmeticError, RecursionError):
            return None  # half of a pair of surrogates, or a number beyond all floats

    def _read(self, size: int) -> object:
        """Read the value that stands here; from a larger piece of the text where the one at hand ends too early."""
        if self._at >= self._start + len(self._window):
            self._start, self._window = self._at, self._text[self._at : self._at + size]
        window, self._window = self._window, ""  # it goes on where nothing is broken
        last = self._start + len(window) == len(self._text)
        try:
            value, end = read_json.raw_decode(window, self._at - self._start)
        except json.JSONDecodeError as error:
            unclosed = error.msg.startswith("Unterminated string")
            self._wasted += len(window) if unclosed else error.pos
            if last or not (unclosed or error.pos > len(window) - CUT):
                raise
        except (ValueError, ArithmeticError, RecursionError):
            self._wasted += len(window)
            raise
        else:
            if last or end < len(window):
                self._at, self._window = self._start + end, window
                return value
        return self._read(16 * size)

    def _skip(self, after: re.Pattern[str]) -> None:
        """Go behind a broken value: where its brackets end, if that fits, else to the next event that can be seen."""
        closing: list[str] = []
        until = start = self._at
        for token in TOKEN.finditer(self._text, start, start + self._patience):
            sign, until = token[0], token.end()
            if sign in CLOSING:
                closing.append(CLOSING[sign])
            elif sign[0] == '"' or (sign == "," and closing):
                continue
            elif not closing:
                if after.match(self._text, token.start()) and self._text.count('"ph"', start, token.start()) < 2:
                    self._at = token.start()
                    return
                break  # so too where they close by chance, far behind a text that never ends
            elif closing.pop() != sign:
                break
        self._patience -= until - start
        if after is AFTER_FIELD:
            self._to_events()
            return
        while self._between:
            following = self._between[0].search(self._text, self._at)
            if following is not None:
                self._to(following.end())
                return
            del self._between[0]  # what is not in the rest of the file need not be sought again
        self._at = max(self._at, self._text.find('"ph"', self._at) + 1)  # this event is counted by who asked for it
        self._pass_rest()

    def _to_events(self) -> None:
        """Go to the field with the events, if it is still to come, else to the end."""
        events = EVENTS_START.search(self._text, self._at)
        if events is None:
            self._pass_rest()
        else:
            self._at = events.start()


def _name(text: str) -> str:
    """Return the name that a field has in JSON, or what stands there where that is none."""
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return text
