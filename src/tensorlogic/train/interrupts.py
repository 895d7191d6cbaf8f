"""Ctrl-C between steps: a step that was interrupted half-way would leave some parameters updated and others not."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While it is entered on the main thread, the first Ctrl-C waits until :meth:`check`; a second one does not.

    >>> with Interrupts() as interrupts:
    ...     interrupts.check()
    """

    def __init__(self) -> None:
        self.waiting = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.waiting:
            raise KeyboardInterrupt
        self.waiting = True

    def check(self) -> None:
        """Raise the interrupt that waits."""
        if self.waiting:
            raise KeyboardInterrupt
