"""The texts of a program: read once, kept so that an error can show the line it points at, and shared by programs that have the same one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any

from ..errors import InputError, TensorLogicError
from ..lang import syntax as s
from ..lang.grammar import parse
from ..store import Store

SHOWN = 160  # characters of a line that are shown
QUERY = "<query>"  # the name under which places in a question are known
SHORT = 1 << 14  # characters up to which programs of the same text share what was read and planned of it
TEXTS = 64  # of which that is kept
PLANS = 64  # that are kept for each
_plans: Store[tuple[str, str | None], Store[Any, Any]] = Store(TEXTS)


class Sources:
    """The texts of a program: errors that leave its ``with`` do so with the line of text that they point at."""

    def __init__(self) -> None:
        self._texts: dict[str | None, str] = {}

    def add(self, text: str, file: str | None) -> str | None:
        """Keep a text; return the name under which places in it are known: the file, or nothing for the first text without one."""
        name = file
        number = 1
        while name in self._texts and self._texts[name] != text:
            number += 1
            name = f"{file or '<text'} {number}" + ("" if file else ">")
        self._texts[name] = text
        return name

    def ask(self, text: str) -> None:
        """Keep the text of the question that is answered now."""
        self._texts[QUERY] = text

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, TensorLogicError):
            self.show_line(error)

    def show_line(self, error: TensorLogicError) -> TensorLogicError:
        """Give an error the line of text that it points at."""
        line = None if error.guessed or error.diagnostic.source is not None else self._line(error)
        if line is not None:
            error.diagnostic = error.diagnostic.with_source(line)
        return error

    def _line(self, error: TensorLogicError) -> str | None:
        place = error.diagnostic.location
        if place is None or place.line is None or place.file not in self._texts:
            return None
        lines = self._texts[place.file].split("\n", place.line)
        if len(lines) < place.line:
            return None
        text = lines[place.line - 1].rstrip("\r")
        return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def read_statements(
    text: str, file: str | None, functions: tuple[str, ...], scalars: Mapping[str, int]
) -> tuple[s.Statement, ...]:
    """Return the statements of a text; a short one that was read before is not read again."""
    read = _read_text if len(text) <= SHORT else _read_text.__wrapped__
    return read(text, file, functions, tuple(scalars.items()))


@lru_cache(TEXTS)
def _read_text(
    text: str, file: str | None, functions: tuple[str, ...], scalars: tuple[tuple[str, int], ...]
) -> tuple[s.Statement, ...]:
    return parse(text, file, functions=functions, scalars=dict(scalars)).statements


def read_query(
    text: str, sources: Sources, functions: tuple[str, ...], scalars: Mapping[str, int]
) -> tuple[s.Expression, ...]:
    """Return the literals of a query; its question mark may be left out."""
    if not text.strip():
        raise InputError("the question is empty", 'write "Ancestor(Alice, x)?"', code="E787")
    asked = text if text.rstrip().endswith("?") else f"{text.rstrip().rstrip('.')}?"
    sources.ask(asked)
    found = parse(asked, QUERY, functions=functions, scalars=scalars).statements
    if len(found) != 1 or not isinstance(found[0], s.Query):
        hint = 'write p.query("Ancestor(Alice, x)?"); rules are added with p.add_rule'
        raise InputError(f"one query is expected, got {text[:60]!r}", hint, code="E787")
    return found[0].body


def shared_plans(text: str, file: str | None) -> Store[Any, Any]:
    """Return where programs of one text keep their plans: one that is made anew for other facts need not be planned again."""
    if len(text) > SHORT:
        return Store(PLANS)
    found = _plans.get((text, file))
    if found is None:
        found = Store(PLANS)
        _plans.put((text, file), found)
    return found
