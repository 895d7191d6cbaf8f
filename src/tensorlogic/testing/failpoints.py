"""Fault injection: a wrapper of a call that fails, waits or kills the process at a chosen moment."""

from __future__ import annotations

import copy
import os
import random
import signal
from collections.abc import Callable, Container, Sequence
from time import sleep as real_sleep
from typing import Any

from ..diagnostics import value_text, warn_caller
from ..errors import InputError, expect_whole, nearest
from ..runtime.context import seconds
from ..store import Lock

AnyCall = Callable[[Any, tuple[Any, ...]], Any]  # of a step of a plan, or of an operation on files


class FailpointWarning(UserWarning):
    """A fault that cannot strike where it was put: nothing there is what it concerns.

    >>> issubclass(FailpointWarning, UserWarning)
    True
    """


class Failpoint:
    """What :func:`failing_at` returns: a wrapper of calls that counts those it concerns, and those it made fail.

    >>> failing_at(call=3).count
    0
    """

    def __init__(self, step: Any, strikes: Callable[[int], bool], strike: Callable[[], None]) -> None:
        self.step = step  # what was asked for
        self.count = 0  # calls that it concerned
        self.strikes = 0  # of these, where it struck
        self._concerns, self._due, self._strike = _concerns(step), strikes, strike
        self._lock = Lock()
        self._told = step is None  # whether it concerns something that was planned, or a warning said that it does not

    def planned(self, calls: Sequence[Any], what: str) -> None:
        """Warn, once, where none of the calls that are to come is one that it concerns: a test would pass that tests nothing."""
        if self._told or not calls:
            return
        self._told = True
        if any(map(self._concerns, calls)):
            return
        names = sorted({_name(at) for at in calls})
        if isinstance(self.step, int):
            numbers = sorted({(at.node, _name(at)) for at in calls if hasattr(at, "node")})
            rest = "they are " + ", ".join(f"{number} ({name})" for number, name in numbers[:12])
        elif isinstance(self.step, str):
            rest = "; ".join(nearest(self.step, names))
        else:
            rest = "they are " + ", ".join(names[:12])
        asked = "a function" if callable(self.step) else repr(self.step)
        message = f"failing_at({asked}) concerns none of the {len(calls)} {what}, so that none of them fails: {rest}"
        warn_caller(message, FailpointWarning)

    def __call__(self, call: AnyCall) -> AnyCall:
        """Return a call that goes on to another unless this one is to fail."""

        def failing(step: Any, args: tuple[Any, ...]) -> Any:
            if self._concerns(step):
                with self._lock:
                    self.count += 1
                    due = self._due(self.count)
                    self.strikes += due
                if due:
                    self._strike()
            return call(step, args)

        return failing


def failing_at(
    step: int | str | Callable[[Any], bool] | None = None,
    *,
    call: int | Container[int] | None = None,
    chance: float | None = None,
    error: BaseException | type[BaseException] | None = None,
    delay: float = 0.0,
    kill: bool = False,
    rng: random.Random | None = None,
    sleep: Callable[[float], object] = real_sleep,
) -> Failpoint:
    """Return a wrapper that makes calls fail: give it to ``Executor(wrap=[...])`` or ``CheckpointManager(folder, wrap=[...])``.

    ``step`` says which calls it concerns: those of a node, by its number, of an operation, by its name, or those for which a
    function of the step is true. For files the name is that of a function of the module os: ``write``, ``fsync``, ``rename``, ``mkdir``.
    ``call`` says which of these fail, counted from 1 over all runs: a number, or several, as ``range(1, 4)``; ``chance`` lets each fail
    with a probability, drawn from ``rng``. Without either all do. Failing is to raise ``error``; with ``kill`` the process
    ends at once, as by ``kill -9``; with a ``delay`` of seconds alone the call is only late. Where a graph is planned that has no
    such step, or files are written by operations of other names, a :class:`FailpointWarning` says so, with the nearest name.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.exp(b.input("x", (2,))))
    >>> executor = tl.Executor(wrap=[failing_at("exp", call=1, error=TimeoutError("no answer"))])
    >>> try:
    ...     executor.execute(graph, {"x": [0.0, 1.0]})
    ... except tl.ExecutionError as failure:
    ...     print(repr(failure.__cause__))
    TimeoutError('no answer')
    >>> executor.execute(graph, {"x": [0.0, 0.0]})["y"]
    array([1., 1.])
    """
    wait = seconds(delay, "delay")
    if chance is not None and not 0 <= chance <= 1:
        raise InputError(f"chance must be between 0 and 1, got {value_text(chance)}", code="E593")
    raised = error if isinstance(error, type) or error is None else type(error)
    if raised is not None and not issubclass(raised, BaseException):
        raise InputError(
            f"error= is an exception, got {value_text(error)}", 'write error=TimeoutError("late")', code="E593"
        )
    if isinstance(call, int):
        expect_whole("call", call, 1)
    draw = random.Random(0) if rng is None else rng
    chosen = (call,) if isinstance(call, int) else call

    def due(count: int) -> bool:
        return (chosen is None or count in chosen) and (chance is None or draw.random() < chance)

    def strike() -> None:
        if wait:
            sleep(wait)
        if kill:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        if error is not None:
            raise error() if isinstance(error, type) else copy.copy(error)
        if not wait:
            raise OSError("a fault that was injected")

    return Failpoint(step, due, strike)


def _concerns(step: int | str | Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    if step is None:
        return lambda _: True
    if callable(step):
        return step
    if isinstance(step, str):
        return lambda at: step == _name(at)
    expect_whole("step", step)
    return lambda at: getattr(at, "node", None) == step


def _name(at: Any) -> str:
    return at if isinstance(at, str) else str(at.op.name)
