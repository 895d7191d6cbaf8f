"""Tuning: several plans of one graph are run in turn, before the caller's runs, and the fastest is chosen for good."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from ..diagnostics import bytes_text, value_text
from ..errors import InputError, OutOfMemoryError, TensorLogicError, expect
from ..events import active_contexts, entered
from ..ir.types import TensorType, dims
from ..plan.cost import elements, nbytes
from ..plan.memory import available_memory
from .call import run
from .program import Program
from .values import NUMPY

TRIALS = 5  # timed runs of each plan
SETTLE = 0.1  # seconds that each plan runs for in all
TURNS = 2  # into which these are divided: a busy moment then hits a part only; threads of BLAS spin for half a turn after another plan
MOST_TURNS = 10  # where plans still become faster from turn to turn, as they do while others use the machine
STEADY = 0.95  # of its least time: a plan that stays above it in a further turn is timed enough
LONG = 2.0  # seconds after which a warm run is enough
COLD = 20.0  # seconds after which the first is, too: to compile what it needs, or to load it, takes less
MANY = 200  # runs after which it is enough, however short they are
DENSITY = 0.05  # of true values in inputs that are made up


class AdaptiveOptimizer:
    """Chooses the fastest of several alternatives by timing them: each is tried several times, turn by turn, and its least time counts.

    Turns go on while least times still fall, as they do where something else kept the machine busy.

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
        expect(names, Sequence, "the ways to choose from are a list of names", 'write ["loop", "native"]')
        for name in names:
            expect(name, str, "a way to choose is named by text", 'write ["loop", "native"]')
        if not names or not isinstance(trials, int) or trials < 1:
            message = f"there must be ways to choose from and at least one trial, got {value_text(list(names))} and {value_text(trials)}"
            raise InputError(message, code="E313")
        self.times: dict[str, list[float]] = {name: [] for name in names}
        self.trials, self.settle = trials, settle
        self.turn, self.before = (
            1,
            dict.fromkeys(names, 0.0),
        )  # the turn that runs, and the least times of the one before
        self.winner: str | None = next(iter(self.times)) if len(self.times) == 1 else None

    def next(self) -> str:
        """Return the way to take now: the best, or while that is not known one that was not tried enough."""
        if self.winner is not None:
            return self.winner
        return next(name for name, times in self.times.items() if not self._enough(times))

    def record(self, name: str, seconds: float) -> None:
        """Tell how long a way took."""
        if self.winner is None:
            self.times[name].append(seconds)
        while self.winner is None and all(map(self._enough, self.times.values())):
            best = {name: self.best(name) for name in self.times}
            steady = all(seconds >= STEADY * self.before[name] for name, seconds in best.items())
            if (self.turn >= TURNS and steady) or self.turn >= MOST_TURNS:
                self.winner = min(best, key=best.__getitem__)
            self.turn, self.before = self.turn + 1, best

    def best(self, name: str) -> float:
        """Return the least time of a way; its first run is cold and does not count, unless it is the only one."""
        return min(self.times[name][1:] or self.times[name])

    def _enough(self, times: Sequence[float]) -> bool:
        """Tell whether a way was tried enough by the end of this turn."""
        spent, count, share = sum(times), len(times), self.turn / TURNS
        if sum(times[1:]) >= LONG or spent >= COLD:
            return True
        return count > self.trials * share and (count > MANY * share or spent >= self.settle * share)

    def __str__(self) -> str:
        if self.winner is None:
            return f"not decided yet: {' and '.join(self.times)} are being timed"
        if len(self.times) == 1:
            return self.winner
        return f"{self.winner}: " + ", ".join(f"{name} {self.best(name) * 1e6:.1f} µs" for name in self.times)


class Choice(msgspec.Struct, frozen=True):
    """Why a plan was chosen: the least time of each that was measured, on what inputs, and on which machine.

    >>> print(Choice("native steps", {"native steps": 1e-5, "one step after another": 3e-5}, "made-up inputs"))
    native steps, measured on made-up inputs: native steps 10.0 µs, one step after another 30.0 µs
    """

    plan: str
    seconds: dict[str, float] = {}
    inputs: str = ""
    machine: str = ""

    def __str__(self) -> str:
        if not self.seconds:
            return self.plan
        times = ", ".join(f"{name} {best * 1e6:.1f} µs" for name, best in self.seconds.items())
        where = "" if self.machine in ("", fingerprint()) else f" on another machine ({self.machine})"
        return f"{self.plan}, measured on {self.inputs}{where}: {times}"


def choose(
    programs: Sequence[Program], values: Sequence[Any], inputs: str, clock: Callable[[], float] = perf_counter
) -> Program:
    """Return the fastest of several programs of one graph on some inputs, or the first where it fails on them."""
    left, contexts = {program.plan.name: program for program in programs}, active_contexts()
    while len(left) > 1:
        optimizer = AdaptiveOptimizer(list(left))
        while optimizer.winner is None:
            for context in contexts:
                context.check(" while its plans were being timed")
            name, start = optimizer.next(), clock()
            try:
                with entered(()):  # to look at contexts takes time, which is not the plan's
                    run(left[name], values)
            except (TensorLogicError, ArithmeticError, ValueError):
                break
            optimizer.record(name, clock() - start)
        else:
            best = {name: optimizer.best(name) for name in left}
            winner = left.pop(optimizer.winner)
            for program in left.values():
                program.release()
            winner.choice = Choice(winner.plan.name, best, inputs, fingerprint())
            return winner
        if name == next(iter(left)):
            break  # the plainest of them cannot do better on these inputs
        del left[name]
    first = next(iter(left.values()))
    first.choice = Choice(first.plan.name)
    return first


def made_up_inputs(types: Mapping[str, TensorType]) -> list[Any]:
    """Return arrays of given types to time plans on: chances between 0 and 1, few true values, and integers that are 0.

    What would take more memory than there is is refused before it is made.
    """
    whole = [t._replace(layout="dense") for t in types.values()]  # relations are made up as arrays, too
    # random numbers of four bytes are there twice for a moment
    needed = sum(map(nbytes, whole)) + 8 * max(map(elements, whole), default=0)
    if needed > available_memory():
        raise _too_large(types, needed)
    try:
        return _made_up(types)
    except MemoryError:  # a limit of the process
        raise _too_large(types, needed) from None


def _too_large(types: Mapping[str, TensorType], needed: int) -> OutOfMemoryError:
    largest = max(types, key=lambda name: elements(types[name]))
    message = f"inputs to time plans on would take {bytes_text(needed)}: {largest!r} is {types[largest]}"
    return OutOfMemoryError(message, "use smaller sizes, or give example= inputs that are there already", code="E003")


def _made_up(types: Mapping[str, TensorType]) -> list[Any]:
    rng = np.random.default_rng(0)
    arrays: list[Any] = []
    for t in types.values():
        shape, dtype = dims(t), NUMPY[t.dtype or "float64"]
        if dtype.kind == "f" or dtype.name == "bfloat16":
            arrays.append((0.05 + 0.9 * rng.random(shape, np.float32)).astype(dtype))
        elif dtype.kind == "b":
            arrays.append(rng.random(shape, np.float32) < DENSITY)
        else:
            arrays.append(np.zeros(shape, dtype))  # places to gather from, too
    return arrays


@cache
def fingerprint() -> str:
    """Return what tells machines apart that may choose differently: the processor, its cores, and the libraries that compute."""
    return f"{platform.machine()} {_processor()}, {os.cpu_count()} cores, NumPy {np.__version__}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123 - no file of ours
            return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
