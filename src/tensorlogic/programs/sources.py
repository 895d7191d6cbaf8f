"""The texts of a program, so that an error can show the line it points at; and the lock that one caller at a time holds."""

from __future__ import annotations

import threading
from types import TracebackType

from ..errors import TensorLogicError
from ..store import free_in_child

SHOWN = 160  # characters of a line that are shown
QUERY = "<query>"  # the name under which places in a question are known


class Sources:
    """A lock, whose holder's errors leave with the line of text that they point at."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.RLock())
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
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
        if isinstance(error, TensorLogicError) and not error.guessed and error.diagnostic.source is None:
            line = self._line(error)
            if line is not None:
                error.diagnostic = error.diagnostic.with_source(line)

    def _line(self, error: TensorLogicError) -> str | None:
        place = error.diagnostic.location
        if place is None or place.line is None or place.file not in self._texts:
            return None
        lines = self._texts[place.file].split("\n", place.line)
        if len(lines) < place.line:
            return None
        text = lines[place.line - 1].rstrip("\r")
        return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
