"""The state around runs: which hooks listen, and which phase the run is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, expect
from ..events import ExecutionPhase, Hook, RunRecord


class ExecutionContext:
    """Holds the hooks and tells them of phases; give one to several executors to watch them all.

    >>> context = ExecutionContext()
    >>> context.add_hook(LoggingHook(print))
    >>> context.notify(ExecutionPhase.GRAPH_LOAD)
    phase: graph load
    >>> context.phase
    <ExecutionPhase.GRAPH_LOAD: 'graph load'>
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        expect(hooks, Sequence, "hooks are given as a list", "write ExecutionContext([hook])")
        self.hooks: list[Hook] = []
        for hook in hooks:
            self.add_hook(hook)
        self.phase: ExecutionPhase | None = None

    def add_hook(self, hook: Hook) -> None:
        """Attach one more hook."""
        expect(hook, Hook, "a hook derives from tensorlogic.Hook", "give an instance, such as LoggingHook()")
        self.hooks.append(hook)

    def remove_hook(self, hook: Hook) -> None:
        """Detach a hook."""
        if hook not in self.hooks:
            raise InputError(f"{hook!r} is not attached", code="E930")
        self.hooks.remove(hook)

    def notify(self, phase: ExecutionPhase) -> None:
        """Enter a phase and tell every hook."""
        self.phase = phase
        for hook in self.hooks:
            hook.on_phase(phase)


@dataclass(slots=True)
class Profiles:
    """The trace of the latest profile and, while it grows, the same among the hooks; shared with executors made from one."""

    trace: Any = None
    hooks: tuple[Hook, ...] = ()


class LoggingHook(Hook):
    """Writes phases and a line per run to the log of the package, or to any function of a string.

    >>> LoggingHook(print).on_phase(ExecutionPhase.COMPLETE)
    phase: complete
    """

    def __init__(self, write: object = None) -> None:
        if not callable(write):
            import logging  # loaded by those who log

            write = logging.getLogger("tensorlogic").info
        self._write = write

    def on_phase(self, phase: ExecutionPhase) -> None:
        """Write the phase."""
        self._write(f"phase: {phase.value}")

    def on_run(self, record: RunRecord) -> None:
        """Write how many steps ran and how long they took; rounds of a body are part of the run around them."""
        if record.body:
            return
        total = sum(e.duration_ns for e in record)
        self._write(f"run: {len(record)} steps in {total / 1e6:.3f} ms")
