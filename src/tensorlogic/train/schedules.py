"""Schedules: learning rates that change with the number of steps, or with what a run reaches.

>>> import tensorlogic as tl
>>> tl.optim.sgd(tl.optim.cosine(0.1, steps=1000))
sgd(rate=cosine(0.1, steps=1000, end=0.0), weight_decay=0.0)
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ..diagnostics import value_text
from ..errors import InputError, expect

T = TypeVar("T")


def check_number(what: str, value: object, *, zero: bool = False, below: float = math.inf, hint: str = "") -> None:
    """Refuse what is no number above 0 (or of 0) and below a bound: a negative rate or norm would turn a gradient around."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < below or value > sys.float_info.max or (value == 0 and not zero):  # type: ignore[operator]
        least = "of at least 0" if zero else "above 0"
        bound = f" and below {below:g}" * (below < math.inf)
        raise InputError(
            f"{what} is a number {least}{bound}, got {value_text(value)}", *[hint] * bool(hint), code="E840"
        )


def check_rate(rate: object) -> None:
    """Refuse a learning rate that is no number above 0."""
    hint = "write tl.optim.adam(1e-3), or a schedule: tl.optim.cosine(1e-3, steps=1000)"
    check_number("the learning rate", rate, hint=hint)


@dataclass(frozen=True)
class Schedule:
    """A learning rate that changes: a function of the number of steps taken before, from 0.

    >>> halved = Schedule("halved", 0.1, (), lambda step: 0.1 if step < 100 else 0.05)
    >>> halved(0), halved(100)
    (0.1, 0.05)
    """

    name: str
    base: float | Schedule
    settings: tuple[tuple[str, float], ...]
    rate: Callable[[int], float] = field(compare=False)

    def __call__(self, step: int) -> float:
        return float(self.rate(step))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join([repr(self.base), *(f'{k}={v!r}' for k, v in self.settings)])})"


@dataclass(frozen=True)
class Plateau:
    """A learning rate that falls when a figure stops getting better: by ``factor`` after ``patience`` epochs without.

    The trainer tells it the watched figure after each epoch; ``state`` is kept in checkpoints.

    >>> falling = plateau(0.1, factor=0.5, patience=1)
    >>> state = falling.start()
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     state = falling.after(state, loss)
    >>> falling.rate_of(state)
    0.05
    """

    base: float
    factor: float
    patience: int
    least: float
    watch: str

    def start(self) -> dict[str, float]:
        """Return the state before the first epoch."""
        return {"rate": self.base, "best": math.inf, "bad": 0.0}

    def after(self, state: Mapping[str, float], figure: float) -> dict[str, float]:
        """Return the state after an epoch whose watched figure is known."""
        if figure < state["best"]:
            return {**state, "best": figure, "bad": 0.0}
        if state["bad"] + 1 <= self.patience:
            return {**state, "bad": state["bad"] + 1}
        return {"rate": max(self.least, state["rate"] * self.factor), "best": state["best"], "bad": 0.0}

    def rate_of(self, state: Mapping[str, float]) -> float:
        """Return the rate that a state stands for."""
        return float(state["rate"])

    def __repr__(self) -> str:
        return f"plateau({self.base}, factor={self.factor}, patience={self.patience}, watch={self.watch!r})"


Rate = float | Schedule | Plateau


def constant(rate: float) -> Schedule:
    """Return a rate that stays.

    >>> constant(0.1)(1000)
    0.1
    """
    return _schedule("constant", partial(_constant, rate), rate)


def _constant(rate: float, step: int) -> float:
    return rate


def step_decay(rate: float, *, every: int, factor: float = 0.1) -> Schedule:
    """Return a rate that is multiplied by ``factor`` after every ``every`` steps.

    >>> step_decay(1.0, every=10, factor=0.5)(25)
    0.25
    """
    return _schedule("step_decay", partial(_step_decay, rate, every, factor), rate, every=every, factor=factor)


def _step_decay(rate: float, every: int, factor: float, step: int) -> float:
    return rate * factor ** (step // every)


def cosine(rate: float, *, steps: int, end: float = 0.0) -> Schedule:
    """Return a rate that falls to ``end`` along half a cosine, and stays there.

    >>> cosine(1.0, steps=100)(50).__round__(6)
    0.5
    """
    return _schedule("cosine", partial(_cosine, rate, steps, end), rate, steps=steps, end=end)


def _cosine(rate: float, steps: int, end: float, step: int) -> float:
    return end + (rate - end) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def warmup(rate: float | Schedule, *, steps: int) -> Schedule:
    """Return a rate that grows from near 0 for some steps, and then is the rate or schedule given.

    >>> [warmup(0.5, steps=4)(n) for n in range(6)]
    [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    """
    after = rate if isinstance(rate, Schedule) else constant(rate)
    top = after(0)
    _check_steps(steps)
    return Schedule("warmup", rate, (("steps", steps),), partial(_warmup, top, steps, after))


def _warmup(top: float, steps: int, after: Schedule, step: int) -> float:
    return top * ((step + 1) / steps) if step < steps else after(step - steps)


def one_cycle(rate: float, *, steps: int, warm: float = 0.3, start: float = 0.04, end: float = 4e-6) -> Schedule:
    """Return a rate that rises from ``start`` times the rate to the rate, then falls to ``end`` times it, both along cosines.

    >>> one_cycle(1.0, steps=100)(30)
    1.0
    """
    _check_steps(steps)
    check_number("warm", warm, zero=True)
    top = max(1, round(warm * steps))
    at = partial(_one_cycle, rate, steps, top, start, end)
    return _schedule("one_cycle", at, rate, steps=steps, warm=warm, start=start, end=end)


def _one_cycle(rate: float, steps: int, top: int, start: float, end: float, step: int) -> float:
    low, share = (start, step / top) if step < top else (end, 1 - (step - top) / max(1, steps - top))
    return rate * (low + (1 - low) * (1 - math.cos(math.pi * min(1.0, max(0.0, share)))) / 2)


def plateau(
    rate: float, *, factor: float = 0.1, patience: int = 10, least: float = 0.0, watch: str = "loss"
) -> Plateau:
    """Return a rate that falls by ``factor`` when ``watch`` has not got better for more than ``patience`` epochs.

    ``watch`` is a figure of the history; where there is validation data, its ``validation_loss`` is the one to watch.

    >>> plateau(0.1, watch="validation_loss")
    plateau(0.1, factor=0.1, patience=10, watch='validation_loss')
    """
    check_rate(rate)
    return Plateau(rate, factor, patience, least, watch)


def _schedule(name: str, rate: Callable[[int], float], base: float, **settings: float) -> Schedule:
    check_rate(base)
    for key in settings.keys() & {"steps", "every"}:
        _check_steps(settings[key], key)
    return Schedule(name, base, tuple(settings.items()), rate)


def _check_steps(value: object, name: str = "steps") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is a whole number from 1, got {value_text(value)}", code="E842")


SCHEDULES: dict[str, Callable[..., Any]] = {
    schedule.__name__: schedule for schedule in (constant, step_decay, cosine, warmup, one_cycle, plateau)
}


def rate_to_json(rate: Rate) -> Any:
    """Return a learning rate as plain values; a schedule of the user's own by its name only."""
    match rate:
        case Schedule():
            if rate.name not in SCHEDULES:
                return {"name": rate.name}
            return {"name": rate.name, "base": rate_to_json(rate.base), "settings": dict(rate.settings)}
        case Plateau():
            settings = {"factor": rate.factor, "patience": rate.patience, "least": rate.least, "watch": rate.watch}
            return {"name": "plateau", "base": rate.base, "settings": settings}
        case _:
            return rate


def rate_from_json(found: Any) -> Rate:
    """Return the learning rate that plain values stand for."""
    if not isinstance(found, Mapping):
        expect(found, (int, float), "a learning rate is a number or a schedule", "write rate_to_json(rate)")
        return float(found)
    rate: Rate = made_from(SCHEDULES, found, "schedule", "base")
    return rate


def made_from(makers: Mapping[str, Callable[..., T]], found: Mapping[str, Any], what: str, rate: str) -> T:
    """Return what plain values stand for: what the maker of that name makes of a learning rate and of settings."""
    hint = "give it again: Trainer.resume(folder, optimizer=...)"
    name = found.get("name")
    if not isinstance(name, str) or name not in makers:
        raise InputError(f"the {what} {value_text(name)} is not one of tensorlogic's own", hint, code="E861")
    base: Any = found.get(rate)
    settings: Any = found.get("settings")
    try:
        inspect.signature(makers[name]).bind(base, **settings)
    except TypeError as error:
        raise InputError(
            f"the {what} {name!r} has not the settings that it needs: {error}", hint, code="E861"
        ) from None
    return makers[name](rate_from_json(base), **settings)
