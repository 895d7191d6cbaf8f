"""How far a stream is, as a bar on a terminal: rows, rows in a second, and the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

PATIENCE = 1.0  # seconds before anything is shown


class Bar:
    """A bar on a terminal's stderr; nothing where stderr is no terminal, nor in the first second.

    >>> bar = Bar()
    >>> bar(100, 1000)
    >>> bar.close()
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock, self.terminal = clock, sys.stderr.isatty()
        self._begin: float | None = None
        self._first = 0
        self._shown: Any = None

    def __call__(self, rows: int, total: int | None) -> None:
        """Show how many rows are done, and of how many."""
        if not self.terminal:
            return
        if self._begin is None:
            self._begin, self._first = self.clock(), rows
        if self._shown is None:
            if self.clock() - self._begin < PATIENCE:
                return
            self._open()
        bar, task = self._shown
        seconds = max(self.clock() - self._begin, 1e-9)
        bar.update(task, total=total, completed=rows, rate=f"{(rows - self._first) / seconds:,.0f} rows/s")

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("stream"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.start()
        self._shown = bar, bar.add_task("stream", total=None, rate="")

    def close(self) -> None:
        """Take the bar away."""
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None
