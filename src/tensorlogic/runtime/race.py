"""A race: several forms of one program, all of which answer alike; the one that is measured to be fastest stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from ..errors import InputError
from .loop import Program

TRIALS = 5  # timed runs of each form
SETTLE = (
    0.15  # seconds that a form runs for before the next: threads of BLAS spin that long, and slow down whoever follows
)
MANY = 200  # runs after which it is enough, however short they are


class AdaptiveOptimizer:
    """Decides between ways to do a thing by how long each took; ways are tried in turn, several times each.

    >>> choice = AdaptiveOptimizer(["loop", "native"], trials=1, settle=0.0)
    >>> while choice.winner is None:
    ...     name = choice.next()
    ...     choice.record(name, {"loop": 3e-6, "native": 1e-6}[name])
    >>> choice.winner
    'native'
    >>> print(choice)
    native: loop 3.0 µs, native 1.0 µs
    """

    def __init__(self, names: Sequence[str], *, trials: int = TRIALS, settle: float = SETTLE) -> None:
        if not names or trials < 1:
            raise InputError(
                f"there must be ways to choose from and at least one trial, got {list(names)} and {trials}", code="E301"
            )
        self.times: dict[str, list[float]] = {name: [] for name in names}
        self.trials, self.settle = trials, settle
        self.winner: str | None = next(iter(self.times)) if len(self.times) == 1 else None
        self._lock = threading.Lock()

    def next(self) -> str:
        """Return the way to take now: the best, or while that is not known one that was not tried enough."""
        if self.winner is not None:
            return self.winner
        with self._lock:
            return next((n for n, times in self.times.items() if not self._enough(times)), next(iter(self.times)))

    def record(self, name: str, seconds: float) -> None:
        """Tell how long a way took."""
        with self._lock:
            if self.winner is not None:
                return
            self.times[name].append(seconds)
            if all(self._enough(times) for times in self.times.values()):
                self.winner = min(self.times, key=self.best)

    def best(self, name: str) -> float:
        """Return the least time of a way; its first run is cold and does not count."""
        return min(self.times[name][1:])

    def _enough(self, times: Sequence[float]) -> bool:
        return len(times) > self.trials and (len(times) > MANY or sum(times) >= self.settle)

    def __str__(self) -> str:
        if self.winner is None:
            return f"not decided yet: {' and '.join(self.times)} are being timed"
        if len(self.times) == 1:
            return self.winner
        return f"{self.winner}: " + ", ".join(f"{name} {self.best(name) * 1e6:.1f} µs" for name in self.times)


class Form(NamedTuple):
    """One way to run a program: what to call it, how it runs, and the program that is shown and watched."""

    name: str
    run: Callable[[Sequence[Any], Sequence[Any] | None], tuple[Any, ...]]
    program: Program


class Race:
    """Forms of a program that take turns until each was timed; then the fastest runs alone."""

    def __init__(
        self,
        forms: Sequence[Form],
        clock: Callable[[], float] = perf_counter,
        *,
        why: str = "",
        finest: Program | None = None,
    ) -> None:
        self.forms = {form.name: form for form in forms}
        self._finest = finest
        self.choice = AdaptiveOptimizer(list(self.forms))
        self.winner: Form | None = forms[0] if len(forms) == 1 else None
        self._clock, self._why = clock, why  # why there is nothing to choose from

    @property
    def leader(self) -> Program:
        """The program that runs now, or would while it is not decided."""
        return (self.winner or next(iter(self.forms.values()))).program

    @property
    def finest(self) -> Program:
        """The program with most steps: one for each operation."""
        every = (form.program for form in self.forms.values())
        return self._finest or max(every, key=lambda p: sum(not step.parts for step in p.plan.steps))

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Run the fastest form; while that is not known, the one whose turn it is."""
        if self.winner is not None:
            return self.winner.run(inputs, out)
        form = self.forms[self.choice.next()]
        start = self._clock()
        outputs = form.run(inputs, out)
        self.choice.record(form.name, self._clock() - start)
        if self.choice.winner is not None:
            self.winner = self.forms[self.choice.winner]
        return outputs

    def explain(self) -> str:
        """Say which form runs, and why."""
        return str(self.choice) + (f": {self._why}" if self._why and len(self.forms) == 1 else "")
