"""Text from outside: what it must pass before anything is made of it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeVar

import msgspec

from ..diagnostics import SourceLocation, bytes_text
from ..errors import FormatError, nearest
from .graph import OPS

LIMIT = 256 * 2**20  # of text; constants in safetensors files are as large as the file, no larger
_T = TypeVar("_T")


def decode_text(text: str | bytes, limit: int) -> str:
    """Return text of bounded size from a string or UTF-8 bytes."""
    if not isinstance(text, str | bytes | bytearray):
        raise FormatError(f"expected text, got {type(text).__name__}", code="E301")
    if len(text) > limit:
        raise too_large(len(text), limit)
    try:
        if isinstance(text, str):
            if not text.isascii():
                text.encode()
            return text
        return bytes(text).decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise FormatError(f"not UTF-8 text: {error.reason} at {error.start}", code="E231") from None


def too_large(size: int, limit: int) -> FormatError:
    """Make the error that a text is larger than what is read."""
    message = f"the graph has {bytes_text(size)} of text; at most {bytes_text(limit)} are read"
    return FormatError(message, "pass limit=bytes if you trust it; save() keeps constants out of the text", code="E222")


def spot(text: str, at: int, file: str | None = None) -> dict[str, Any]:
    """Return ``location`` and ``source`` for an error at a character of some text; long lines are cut."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : len(text) if end < 0 else end]
    number, column = text.count("\n", 0, start) + 1, at - start + 1
    if len(line) <= 200:
        return {"location": SourceLocation(file, number, column), "source": line}
    cut = "..." + line[max(0, column - 60) : column + 60] + f"...  (character {column})"
    return {"location": SourceLocation(file, number), "source": cut}


class _RefusedError(Exception):
    """A number that is not let through: the word, what to say, and hints; the parser does not tell hooks where they are."""


class _RepeatedKeyError(Exception):
    """An object has a key twice."""


_TOKENS = re.compile(
    r"""
    ("[^"\\]*+(?:\\.[^"\\]*+)*+") ([ \t\r\n]*+:)?  # a string; it is a key where a colon follows
    | NaN | -?Infinity | -?(?:0|[1-9][0-9]*+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?
    | [][{}]
    """,
    re.DOTALL | re.VERBOSE,
)


HALF_OF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def _repeated(text: str) -> tuple[str, int]:
    """Return the first key of JSON text that its object has already, and where it stands again."""
    around: list[set[str]] = []
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            around.append(set())
        elif token[0] in "]}":
            around.pop()
        elif token[2] is not None:
            key = json.loads(token[1])
            if key in around[-1]:
                return key, token.start()
            around[-1].add(key)
    raise AssertionError("no key is repeated")


def strict_json(text: str, file: str | None) -> Any:
    """Parse JSON, refusing what the standard module lets through: repeated keys, NaN, and numbers out of range."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise _RepeatedKeyError
        return found

    def refuse(word: str) -> NoReturn:
        raise _RefusedError(word, f"{word} is not a JSON number", "a literal is written as text")

    def integer(word: str) -> int:
        if len(word) > 18 and not -(2**63) <= int(word[:40]) < 2**63:
            raise _RefusedError(word, f"the number {word[:40]} does not fit 64 bits")
        return int(word)

    def real(word: str) -> float:
        if math.isinf(value := float(word)):
            raise _RefusedError(word, f"the number {word[:40]} is too large")
        return value

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse, parse_int=integer, parse_float=real)
        if half := HALF_OF_A_PAIR.search(text):  # only then can a string hold half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        place = spot(text, half.start() if half else 0, file)
        raise FormatError("a string has half of a surrogate pair, which is no text", code="E231", **place) from None
    except _RefusedError as error:
        at = next((m.start() for m in _TOKENS.finditer(text) if m[0] == error.args[0]), 0)
        raise FormatError(*error.args[1:], code="E232", **spot(text, at, file)) from None
    except _RepeatedKeyError:
        key, at = _repeated(text)
        raise FormatError(f"the JSON object has the key {key!r} twice", code="E233", **spot(text, at, file)) from None
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        raise FormatError(message, code="E223", **spot(text, min(error.pos, len(text)), file)) from None
    except RecursionError:
        raise FormatError("the JSON is nested too deeply", code="E207") from None


def convert(raw: Any, kind: type[_T] | Any, path: str) -> _T:
    """Convert parsed JSON to a type; an error names the place, which ``path`` leads up to."""
    try:
        found: _T = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$")
        place = path + inner.rstrip("`")
        word = re.fullmatch(r"Invalid value '(.*)'", message)
        hints = nearest(word[1], OPS) if word and place.endswith(".op.op") else []
        raise FormatError(f"{message}, at {place}", *hints, code="E225") from None
    return found
