"""Trying again: how often and after how long, which errors can pass, and the wrapper of a call that does it."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import local
from typing import Any, TypeVar

import msgspec

from ...diagnostics import value_text
from ...errors import CancelledError, InputError, TensorLogicError, expect_whole
from ...events import active_contexts, span
from ...plan.build import Step
from ...plan.printing import describe
from ..call import Call

T = TypeVar("T")
CAN_PASS = (OSError, MemoryError)  # timeouts and lost connections are OSErrors
CANNOT_PASS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
LOOK = 0.05  # seconds between looks at whether a run was cancelled while it waits


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a failed step is retried, and how long to wait before each retry.

    The n-th wait is ``initial_delay_ms * multiplier**(n - 1)``, at most ``max_delay_ms``, less a random share of up to ``jitter``, so that
    many who failed together do not come back together.

    >>> policy = RetryPolicy.exponential(3, 100)
    >>> [round(policy.delay(n, lambda: 0.0), 3) for n in (1, 2, 3)]
    [0.1, 0.2, 0.4]
    >>> RetryPolicy.fixed(2, 50).delay(2, lambda: 0.5), RetryPolicy.none().max_retries
    (0.05, 0)
    """

    max_retries: int = 3
    initial_delay_ms: float = 100.0
    multiplier: float = 2.0
    max_delay_ms: float = 30_000.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        expect_whole("max_retries", self.max_retries, 0)
        for name, least, most in (
            ("initial_delay_ms", 0, float("inf")),
            ("multiplier", 1, float("inf")),
            ("max_delay_ms", 0, float("inf")),
            ("jitter", 0, 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                hint = "write RetryPolicy.exponential(3, 100)"
                raise InputError(
                    f"{name} must be a number from {least} to {most}, got {value_text(value)}", hint, code="E589"
                )

    @classmethod
    def exponential(
        cls, max_retries: int, initial_delay_ms: float, *, max_delay_ms: float = 30_000.0, jitter: float = 0.5
    ) -> RetryPolicy:
        """Return the policy that doubles the wait each time."""
        return cls(max_retries, initial_delay_ms, 2.0, max_delay_ms, jitter)

    @classmethod
    def fixed(cls, max_retries: int, delay_ms: float) -> RetryPolicy:
        """Return the policy that always waits as long."""
        return cls(max_retries, delay_ms, 1.0, max(delay_ms, 30_000.0), 0.0)

    @classmethod
    def none(cls) -> RetryPolicy:
        """Return the policy that never tries again."""
        return cls(0)

    def delay(self, n: int, draw: Callable[[], float]) -> float:
        """Return the seconds to wait before the n-th retry; ``draw`` gives random numbers from 0 to 1."""
        try:
            whole = self.initial_delay_ms * self.multiplier ** (n - 1)
        except OverflowError:
            whole = self.max_delay_ms
        return min(self.max_delay_ms, whole) * (1 - self.jitter * draw()) / 1000


def can_pass(error: BaseException | None) -> bool:
    """Tell whether an error may be gone when the same thing is tried again: a timeout, a lost connection, memory that was short.

    An error of a step counts as what caused it. A class of errors can say so itself: ``transient = True``.

    >>> can_pass(TimeoutError()), can_pass(InputError("no")), can_pass(CancelledError("stop"))
    (True, False, False)
    """
    while error is not None:
        if isinstance(error, CancelledError):
            return False
        if getattr(error, "transient", False):
            return True
        if not isinstance(error, TensorLogicError):
            return isinstance(error, CAN_PASS) and not isinstance(error, CANNOT_PASS)
        error = error.__cause__
    return False


class Retries:
    """The retries of one run: tries things again as a policy says, counting and waiting."""

    def __init__(self, policy: RetryPolicy, sleep: Callable[[float], object], rng: random.Random) -> None:
        self.policy, self.sleep, self.rng = policy, sleep, rng
        self.count, self.waited = 0, 0.0
        self._given_up: BaseException | None = None

    def attempt(self, action: Callable[[], T], what: str) -> T:
        """Do something, and again where it fails by an error that can pass, until it succeeds or the policy gives up."""
        n = 0
        failure: Exception | None = None
        while True:
            try:
                if failure is None:
                    return action()
                with span(f"retry {n} of {what} after {type(failure).__name__}"):
                    self._wait(self.policy.delay(n, self.rng.random), failure)
                    self.count += 1
                    return action()
            except Exception as error:
                if n == self.policy.max_retries or not can_pass(error) or self._knows(error):
                    self._given_up = error
                    raise
                n, failure = n + 1, error

    def _knows(self, error: BaseException | None) -> bool:
        """Tell whether this is an error that a step inside of this one was given up for."""
        while error is not None:
            if error is self._given_up:
                return True
            error = error.__cause__
        return False

    def _wait(self, seconds: float, failure: Exception) -> None:
        """Wait, but not beyond a deadline, nor after the run was cancelled."""
        self.waited += seconds
        active = active_contexts()
        if not active:
            self.sleep(seconds)
            return
        try:
            while seconds > 0:
                piece = min([seconds, LOOK, *(r for c in active if (r := c.remaining()) is not None)])
                if piece > 0:
                    self.sleep(piece)
                seconds -= piece
                for context in active:
                    context.check(" while it waited to try again")
        except CancelledError as stop:
            raise stop from failure


class _Current(local):
    """The retries of the run that this thread is in."""

    retries: Retries | None = None


current = _Current()


def retrying(call: Call) -> Call:
    """Wrap a call so that it is tried again as the run that it belongs to says."""

    def tried(step: Step, args: tuple[Any, ...]) -> Any:
        if current.retries is None:
            return call(step, args)
        return current.retries.attempt(lambda: call(step, args), describe(step.op))

    return tried
