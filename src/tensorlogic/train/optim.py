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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import InputError, closest, expect
from .schedules import SCHEDULES as SCHEDULES
from .schedules import Plateau, Rate, Schedule, check_number, check_rate, made_from, rate_to_json
from .schedules import constant as constant
from .schedules import cosine as cosine
from .schedules import one_cycle as one_cycle
from .schedules import plateau as plateau
from .schedules import rate_from_json as rate_from_json
from .schedules import step_decay as step_decay
from .schedules import warmup as warmup

Tensor = Any  # of a graph that is being built
State = dict[str, Tensor]  # what an optimizer keeps for a parameter, by name
Update = Callable[..., tuple[Tensor, State]]
"""``update(b, w, gradient, state, rate, t)``: the builder, the parameter, its gradient, what is kept, the rate and the number of the
step from 1, all as tensors of the parameter's dtype; it returns the next parameter and what is kept next."""


@dataclass(frozen=True, repr=False)
class Optimizer:
    """An optimizer: its learning rate, the state it keeps for each parameter, and its update rule as graph operations.

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
        check_rate(rate)
    for key, value in settings.items():
        check_number(key, value, zero=True)
    return Optimizer(name, rate, tuple(slots), update, tuple(settings.items()))


def _decayed(w: Tensor, gradient: Tensor, weight_decay: float) -> Tensor:
    return gradient + weight_decay * w if weight_decay else gradient


def sgd(rate: Rate = 0.01, *, weight_decay: float = 0.0) -> Optimizer:
    """Return plain gradient descent: ``w - rate * gradient``.

    >>> sgd(0.1)
    sgd(rate=0.1, weight_decay=0.0)
    """
    update = partial(_sgd, weight_decay)
    return _optimizer("sgd", rate, (), update, weight_decay=weight_decay)


def _sgd(
    weight_decay: float, b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor
) -> tuple[Tensor, State]:
    return w - rate * _decayed(w, g, weight_decay), {}


def momentum(rate: Rate = 0.01, *, decay: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Return gradient descent with momentum, which goes on in the direction of earlier steps.

    >>> momentum(0.1).slots
    ('speed',)
    """
    update = partial(_momentum, decay, weight_decay)
    return _optimizer("momentum", rate, ("speed",), update, decay=decay, weight_decay=weight_decay)


def _momentum(
    decay: float, weight_decay: float, b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor
) -> tuple[Tensor, State]:
    speed = decay * state["speed"] + _decayed(w, g, weight_decay)
    return w - rate * speed, {"speed": speed}


def nesterov(rate: Rate = 0.01, *, decay: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Return momentum that looks ahead: the gradient counts as if the next step of the momentum had been taken.

    >>> nesterov(0.1).slots
    ('speed',)
    """
    update = partial(_nesterov, decay, weight_decay)
    return _optimizer("nesterov", rate, ("speed",), update, decay=decay, weight_decay=weight_decay)


def _nesterov(
    decay: float, weight_decay: float, b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor
) -> tuple[Tensor, State]:
    slope = _decayed(w, g, weight_decay)
    speed = decay * state["speed"] + slope
    return w - rate * (slope + decay * speed), {"speed": speed}


def adam(rate: Rate = 1e-3, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Return Adam: steps of the mean gradient in units of its root mean square.

    >>> adam().slots
    ('mean', 'square')
    """
    return _optimizer("adam", rate, ("mean", "square"), partial(_adam, b1, b2, eps, 0.0), b1=b1, b2=b2, eps=eps)


def adamw(
    rate: Rate = 1e-3, *, weight_decay: float = 0.01, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Optimizer:
    """Return Adam with weight decay that is apart from the gradient.

    >>> adamw(weight_decay=0.1)
    adamw(rate=0.001, b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.1)
    """
    update = partial(_adam, b1, b2, eps, weight_decay)
    return _optimizer("adamw", rate, ("mean", "square"), update, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def _adam(
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    b: Any,
    w: Tensor,
    g: Tensor,
    state: State,
    rate: Tensor,
    t: Tensor,
) -> tuple[Tensor, State]:
    mean = b1 * state["mean"] + (1 - b1) * g
    square = b2 * state["square"] + (1 - b2) * b.square(g)
    count = b.cast(t, "float64")  # in float32 a power so near to 1 would leave few digits of what it lacks to 1
    root = b.cast(b.sqrt(1 - b.power(b2, count)), w.dtype)  # scalars: what the means lack after t steps
    size = rate * root / b.cast(1 - b.power(b1, count), w.dtype)
    step = size * mean / (b.sqrt(square) + eps * root)
    shrunk = w - rate * weight_decay * w if weight_decay else w
    return shrunk - step, {"mean": mean, "square": square}


def rmsprop(rate: Rate = 1e-2, *, decay: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    """Return RMSProp: steps of the gradient in units of its root mean square.

    >>> rmsprop().slots
    ('square',)
    """
    update = partial(_rmsprop, decay, eps, weight_decay)
    return _optimizer("rmsprop", rate, ("square",), update, decay=decay, eps=eps, weight_decay=weight_decay)


def _rmsprop(
    decay: float, eps: float, weight_decay: float, b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor
) -> tuple[Tensor, State]:
    slope = _decayed(w, g, weight_decay)
    square = decay * state["square"] + (1 - decay) * b.square(slope)
    return w - rate * slope / (b.sqrt(square) + eps), {"square": square}


def adagrad(rate: Rate = 1e-2, *, eps: float = 1e-10, weight_decay: float = 0.0) -> Optimizer:
    """Return Adagrad: steps shrink by the root of the sum of all squared gradients.

    >>> adagrad().slots
    ('square',)
    """
    update = partial(_adagrad, eps, weight_decay)
    return _optimizer("adagrad", rate, ("square",), update, eps=eps, weight_decay=weight_decay)


def _adagrad(
    eps: float, weight_decay: float, b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor
) -> tuple[Tensor, State]:
    slope = _decayed(w, g, weight_decay)
    square = state["square"] + b.square(slope)
    return w - rate * slope / (b.sqrt(square) + eps), {"square": square}


def lion(rate: Rate = 1e-4, *, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0) -> Optimizer:
    """Return Lion: steps of one size, in the direction of the sign of the mean gradient.

    >>> lion().slots
    ('mean',)
    """
    update = partial(_lion, b1, b2, weight_decay)
    return _optimizer("lion", rate, ("mean",), update, b1=b1, b2=b2, weight_decay=weight_decay)


def _lion(
    b1: float, b2: float, weight_decay: float, b: Any, w: Tensor, g: Tensor, state: State, rate: Tensor, t: Tensor
) -> tuple[Tensor, State]:
    direction = b.sign(b1 * state["mean"] + (1 - b1) * g)
    step = direction + weight_decay * w if weight_decay else direction
    return w - rate * step, {"mean": b2 * state["mean"] + (1 - b2) * g}


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


def with_decay(optimizer: Optimizer, weight_decay: float) -> Optimizer:
    """Return an optimizer with another weight decay, in its own way of that; one that has none is returned as it is.

    >>> with_decay(adamw(0.1), 0.0)
    adamw(rate=0.1, b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.0)
    >>> with_decay(adam(0.1), 0.5)
    adam(rate=0.1, b1=0.9, b2=0.999, eps=1e-08)
    """
    _expect_optimizer(optimizer)
    settings = dict(optimizer.settings)
    if "weight_decay" not in settings or optimizer.name not in OPTIMIZERS:
        return optimizer
    return OPTIMIZERS[optimizer.name](optimizer.rate, **{**settings, "weight_decay": weight_decay})


def _expect_optimizer(optimizer: object) -> None:
    expect(optimizer, Optimizer, "an optimizer is expected", "write tl.optim.adam(1e-3)")


# as JSON, for checkpoints

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    maker.__name__: maker for maker in (sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lion)
}


def to_json(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer as plain values; one of the user's own by its name only.

    >>> from_json(to_json(adamw(cosine(0.1, steps=10)))) == adamw(cosine(0.1, steps=10))
    True
    """
    _expect_optimizer(optimizer)
    return {"name": optimizer.name, "rate": rate_to_json(optimizer.rate), "settings": dict(optimizer.settings)}


def from_json(found: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that plain values stand for."""
    expect(found, Mapping, "an optimizer is written as a mapping", "write to_json(optimizer)")
    return made_from(OPTIMIZERS, found, "optimizer", "rate")


def __getattr__(name: str) -> object:
    """Name the nearest optimizer or schedule, where there is no such one."""
    near = None if name.startswith("_") else closest(name, [*OPTIMIZERS, *SCHEDULES, "custom"])
    raise AttributeError(f"tensorlogic.optim has no {name!r}" + (f"; did you mean {near!r}?" if near else ""))
