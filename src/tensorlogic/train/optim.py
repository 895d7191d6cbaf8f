"""Optimizers and schedules: how a parameter follows its gradient, and how fast.

An optimizer is a record that says which values it keeps for each parameter and how the next ones are computed, as tensors of a
graph. The step of a trainer holds them beside the loss and its gradient, so that all of it is planned and compiled as one graph.

>>> import tensorlogic as tl
>>> tl.optim.adam(1e-3)
adam(rate=0.001, b1=0.9, b2=0.999, eps=1e-08)
>>> tl.optim.sgd(tl.optim.cosine(0.1, steps=1000))
sgd(rate=cosine(0.1, steps=1000, end=0.0), weight_decay=0.0)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, expect

Tensor = Any  # of a graph that is being built
State = dict[str, Tensor]  # what an optimizer keeps for a parameter, by name
Update = Callable[..., tuple[Tensor, State]]
"""``update(b, w, gradient, state, rate, t)``: the builder, the parameter, its gradient, what is kept, the rate and the number of the
step from 1, all as tensors of the parameter's dtype; it returns the next parameter and what is kept next."""


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


@dataclass(frozen=True, repr=False)
class Optimizer:
    """How parameters follow their gradients: the values kept for each, and the update as tensors of a graph.

    >>> heavy = Optimizer("heavy", 0.1, ("speed",), lambda b, w, g, state, rate, t: (w - rate * g, state))
    >>> heavy.slots
    ('speed',)
    """

    name: str
    rate: Rate
    slots: tuple[str, ...]
    update: Update = field(compare=False)
    settings: tuple[tuple[str, float], ...] = ()

    def __repr__(self) -> str:
        given = [f"rate={self.rate!r}", *(f"{name}={value!r}" for name, value in self.settings)]
        return f"{self.name}({', '.join(given)})"


def _optimizer(name: str, rate: Rate, slots: Sequence[str], update: Update, **settings: float) -> Optimizer:
    if not isinstance(rate, Schedule | Plateau):
        _number("the learning rate", rate, above=True)
    for key, value in settings.items():
        if not isinstance(value, bool):
            _number(key, value)
    return Optimizer(name, rate, tuple(slots), update, tuple(settings.items()))


def _number(what: str, value: object, *, above: bool = False) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < math.inf
        or (above and not value)
    ):
        least = "above 0" if above else "of at least 0"
        hint = "write tl.optim.adam(1e-3), or a schedule: tl.optim.cosine(1e-3, steps=1000)"
        raise InputError(f"{what} is a number {least}, got {value!r}", hint, code="E840")


def _decayed(w: Tensor, gradient: Tensor, weight_decay: float) -> Tensor:
    return gradient + weight_decay * w if weight_decay else gradient


def sgd(rate: Rate = 0.01, *, weight_decay: float = 0.0) -> Optimizer:
    """Return plain gradient descent: ``w - rate * gradient``.

    >>> sgd(0.1)
    sgd(rate=0.1, weight_decay=0.0)
    """

    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        return w - rate * _decayed(w, g, weight_decay), {}

    return _optimizer("sgd", rate, (), update, weight_decay=weight_decay)


def momentum(rate: Rate = 0.01, *, decay: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Return gradient descent with momentum, which goes on in the direction of earlier steps.

    >>> momentum(0.1).slots
    ('speed',)
    """

    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        speed = decay * state["speed"] + _decayed(w, g, weight_decay)
        return w - rate * speed, {"speed": speed}

    return _optimizer("momentum", rate, ("speed",), update, decay=decay, weight_decay=weight_decay)


def nesterov(rate: Rate = 0.01, *, decay: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Return momentum that looks ahead: the gradient counts as if the next step of the momentum had been taken.

    >>> nesterov(0.1).slots
    ('speed',)
    """

    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        slope = _decayed(w, g, weight_decay)
        speed = decay * state["speed"] + slope
        return w - rate * (slope + decay * speed), {"speed": speed}

    return _optimizer("nesterov", rate, ("speed",), update, decay=decay, weight_decay=weight_decay)


def adam(rate: Rate = 1e-3, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Return Adam: steps of the mean gradient in units of its root mean square.

    >>> adam().slots
    ('mean', 'square')
    """
    return _optimizer("adam", rate, ("mean", "square"), _adam(b1, b2, eps, 0.0), b1=b1, b2=b2, eps=eps)


def adamw(
    rate: Rate = 1e-3, *, weight_decay: float = 0.01, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Optimizer:
    """Return Adam with weight decay that is apart from the gradient.

    >>> adamw(weight_decay=0.1)
    adamw(rate=0.001, b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.1)
    """
    update = _adam(b1, b2, eps, weight_decay)
    return _optimizer("adamw", rate, ("mean", "square"), update, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def _adam(b1: float, b2: float, eps: float, weight_decay: float) -> Update:
    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        mean = b1 * state["mean"] + (1 - b1) * g
        square = b2 * state["square"] + (1 - b2) * b.square(g)
        count = b.cast(t, "float64")  # in float32 a power so near to 1 would leave few digits of what it lacks to 1
        root = b.cast(b.sqrt(1 - b.power(b2, count)), w.dtype)  # scalars: what the means lack after t steps
        size = rate * root / b.cast(1 - b.power(b1, count), w.dtype)
        step = size * mean / (b.sqrt(square) + eps * root)
        shrunk = w - rate * weight_decay * w if weight_decay else w
        return shrunk - step, {"mean": mean, "square": square}

    return update


def rmsprop(rate: Rate = 1e-2, *, decay: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    """Return RMSProp: steps of the gradient in units of its root mean square.

    >>> rmsprop().slots
    ('square',)
    """

    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        slope = _decayed(w, g, weight_decay)
        square = decay * state["square"] + (1 - decay) * b.square(slope)
        return w - rate * slope / (b.sqrt(square) + eps), {"square": square}

    return _optimizer("rmsprop", rate, ("square",), update, decay=decay, eps=eps, weight_decay=weight_decay)


def adagrad(rate: Rate = 1e-2, *, eps: float = 1e-10, weight_decay: float = 0.0) -> Optimizer:
    """Return Adagrad: steps shrink by the root of the sum of all squared gradients.

    >>> adagrad().slots
    ('square',)
    """

    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        slope = _decayed(w, g, weight_decay)
        square = state["square"] + b.square(slope)
        return w - rate * slope / (b.sqrt(square) + eps), {"square": square}

    return _optimizer("adagrad", rate, ("square",), update, eps=eps, weight_decay=weight_decay)


def lion(rate: Rate = 1e-4, *, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0) -> Optimizer:
    """Return Lion: steps of one size, in the direction of the sign of the mean gradient.

    >>> lion().slots
    ('mean',)
    """

    def update(b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor) -> tuple[Tensor, State]:
        direction = b.sign(b1 * state["mean"] + (1 - b1) * g)
        step = direction + weight_decay * w if weight_decay else direction
        return w - rate * step, {"mean": b2 * state["mean"] + (1 - b2) * g}

    return _optimizer("lion", rate, ("mean",), update, b1=b1, b2=b2, weight_decay=weight_decay)


def custom(update: Update, rate: Rate, *, slots: Sequence[str] = (), name: str = "custom") -> Optimizer:
    """Return an optimizer of your own: ``update(b, w, gradient, state, rate, t)`` on tensors of a graph.

    It returns the next parameter and a mapping with the next value of each slot; slots start at 0 in the parameter's shape.

    >>> def signs(b, w, gradient, state, rate, t):
    ...     return w - rate * b.sign(gradient), {}
    >>> custom(signs, 0.01, name="signs")
    signs(rate=0.01)
    """
    expect(update, Callable, "an update is a function", "write custom(update, 0.01)")  # type: ignore[arg-type]
    try:
        inspect.signature(update).bind(*range(6))
    except TypeError:
        hint = "write def update(b, w, gradient, state, rate, t): return w - rate * gradient, {}"
        raise InputError(
            "an update takes six arguments: b, w, gradient, state, rate and t", hint, code="E841"
        ) from None
    return _optimizer(name, rate, slots, update)


# schedules


def constant(rate: float) -> Schedule:
    """Return a rate that stays.

    >>> constant(0.1)(1000)
    0.1
    """
    return _schedule("constant", lambda step: rate, rate)


def step_decay(rate: float, *, every: int, factor: float = 0.1) -> Schedule:
    """Return a rate that is multiplied by ``factor`` after every so many steps.

    >>> step_decay(1.0, every=10, factor=0.5)(25)
    0.25
    """
    return _schedule("step_decay", lambda step: rate * factor ** (step // every), rate, every=every, factor=factor)


def cosine(rate: float, *, steps: int, end: float = 0.0) -> Schedule:
    """Return a rate that falls to ``end`` along half a cosine, and stays there.

    >>> cosine(1.0, steps=100)(50).__round__(6)
    0.5
    """

    def at(step: int) -> float:
        return end + (rate - end) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2

    return _schedule("cosine", at, rate, steps=steps, end=end)


def warmup(rate: float | Schedule, *, steps: int) -> Schedule:
    """Return a rate that grows from near 0 for some steps, and then is the rate or schedule given.

    >>> [warmup(0.5, steps=4)(n) for n in range(6)]
    [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    """
    after = rate if isinstance(rate, Schedule) else constant(rate)
    top = after(0)
    _check_steps(steps)

    def at(step: int) -> float:
        return top * ((step + 1) / steps) if step < steps else after(step - steps)

    return Schedule("warmup", rate, (("steps", steps),), at)


def one_cycle(rate: float, *, steps: int, warm: float = 0.3, start: float = 0.04, end: float = 4e-6) -> Schedule:
    """Return a rate that rises from ``start`` times the rate to the rate, then falls to ``end`` times it, both along cosines.

    >>> one_cycle(1.0, steps=100)(30)
    1.0
    """
    top = max(1, round(warm * steps))

    def at(step: int) -> float:
        low, share = (start, step / top) if step < top else (end, 1 - (step - top) / max(1, steps - top))
        return rate * (low + (1 - low) * (1 - math.cos(math.pi * min(1.0, max(0.0, share)))) / 2)

    return _schedule("one_cycle", at, rate, steps=steps, warm=warm, start=start, end=end)


def plateau(
    rate: float, *, factor: float = 0.1, patience: int = 10, least: float = 0.0, watch: str = "loss"
) -> Plateau:
    """Return a rate that falls by ``factor`` when ``watch`` has not got better for more than ``patience`` epochs.

    ``watch`` is a figure of the history; where there is validation data, its ``validation_loss`` is the one to watch.

    >>> plateau(0.1, watch="validation_loss")
    plateau(0.1, factor=0.1, patience=10, watch='validation_loss')
    """
    _number("the learning rate", rate, above=True)
    return Plateau(rate, factor, patience, least, watch)


def _schedule(name: str, rate: Callable[[int], float], base: float, **settings: float) -> Schedule:
    _number("the learning rate", base, above=True)
    for key in settings.keys() & {"steps", "every"}:
        _check_steps(settings[key], key)
    return Schedule(name, base, tuple(settings.items()), rate)


def _check_steps(value: object, name: str = "steps") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is a whole number from 1, got {value!r}", code="E842")


# as JSON, for checkpoints

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    made.__name__: made for made in (sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lion)
}
SCHEDULES: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (constant, step_decay, cosine, warmup, one_cycle, plateau)
}


def to_json(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer as plain values; one of the user's own by its name only.

    >>> from_json(to_json(adamw(cosine(0.1, steps=10)))) == adamw(cosine(0.1, steps=10))
    True
    """
    return {"name": optimizer.name, "rate": _rate_json(optimizer.rate), "settings": dict(optimizer.settings)}


def from_json(found: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that plain values stand for."""
    name = found["name"]
    if name not in OPTIMIZERS:
        hint = "give it again: Trainer.resume(folder, optimizer=...)"
        raise InputError(f"the optimizer {name!r} is not one of tensorlogic's own", hint, code="E861")
    return OPTIMIZERS[name](_rate_of(found["rate"]), **found["settings"])


def _rate_json(rate: Rate) -> Any:
    match rate:
        case Schedule():
            if rate.name not in SCHEDULES:
                return {"name": rate.name}
            return {"name": rate.name, "base": _rate_json(rate.base), "settings": dict(rate.settings)}
        case Plateau():
            settings = {"factor": rate.factor, "patience": rate.patience, "least": rate.least, "watch": rate.watch}
            return {"name": "plateau", "base": rate.base, "settings": settings}
        case _:
            return rate


def _rate_of(found: Any) -> Rate:
    if not isinstance(found, Mapping):
        return float(found)
    if found["name"] not in SCHEDULES:
        hint = "give it again: Trainer.resume(folder, optimizer=...)"
        raise InputError(f"the schedule {found['name']!r} is not one of tensorlogic's own", hint, code="E861")
    rate: Rate = SCHEDULES[found["name"]](_rate_of(found["base"]), **found["settings"])
    return rate
