"""The training step as one graph: the loss, its gradient, clipping and the update of every parameter.

Its inputs are the parameters, the data, and what the optimizer keeps; an output that has the name of an input is that input's next
value. So a step feeds the next one, and arrays that are donated are written over in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import GraphError, InputError, nearest
from ..ir.builder import GraphBuilder
from ..ir.graph import EinsumGraph, reachable
from ..ir.random import STEP, TRAINING
from ..ir.tensor import Tensor
from ..ir.types import FLOATS, TensorType
from ..passes.grad import value_and_grad
from ..passes.grad_tape import may_be_float
from .data import Needed
from .optim import Optimizer, with_decay

OWN = "optimizer."  # what names of the optimizer's own inputs begin with
RATE, COUNT, SCALE, GOOD = f"{OWN}rate", f"{OWN}step", f"{OWN}scale", f"{OWN}good"
AVERAGE = f"{OWN}average."  # what names of moving averages begin with
HIGHEST_SCALE = {"float16": 2.0**15, "bfloat16": 2.0**15}
GOOD_STEPS = 2000  # in a row, after which the loss scale is doubled


class Setting(NamedTuple):
    """What holds for one parameter: whether it learns, its share of the rate, and its weight decay where it is not the optimizer's."""

    frozen: bool = False
    rate: float = 1.0
    weight_decay: float | None = None


class TrainingStep(NamedTuple):
    """A graph that takes one step, and what its inputs are.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w = b.input("x", ("n", 3), "float32"), b.input("w", (3,), "float32")
    >>> loss = b.build(loss=b.mean(b.square(x @ w)))
    >>> step = training_step(loss, {"w": tl.TensorType(tl.TensorShape((3,)), "float32")}, tl.optim.momentum(0.1))
    >>> list(step.graph.inputs), step.graph.output_names
    (['w', 'x', 'optimizer.rate', 'optimizer.speed.w'], ['loss', 'w', 'optimizer.speed.w'])
    """

    graph: EinsumGraph
    figures: tuple[str, ...]  # the loss first, then other scalar outputs
    carried: tuple[str, ...]  # inputs that are outputs too: their next values
    zeros: Mapping[str, str]  # inputs of the optimizer that start at 0, and the parameter whose shape they have
    starts: Mapping[str, float]  # scalars of the optimizer, and what they start from
    averages: Mapping[str, str]  # inputs that hold moving averages, and of which parameter


def training_step(
    loss: EinsumGraph,
    params: Mapping[str, TensorType],
    optimizer: Optimizer,
    *,
    settings: Mapping[str, Setting] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    average: float | None = None,
    precision: str | None = None,
    micro_batches: int = 1,
    rows: Sequence[str] = (),
    straight_through: bool = False,
) -> TrainingStep:
    """Return the step of an optimizer down the gradient of the output ``loss``.

    ``micro_batches`` above 1 gives the inputs named in ``rows`` one more axis in front, along which gradients are added up before
    the update. ``precision`` is the dtype that the loss is computed in, with the loss scaled so that gradients do not vanish.
    ``straight_through`` lets gradients pass through rounding and steps as if they were not there.
    """
    found = {name: (settings or {}).get(name, Setting()) for name in params}
    learned = [name for name, own in found.items() if not own.frozen]
    if not learned:
        raise InputError("every parameter is frozen", "leave one to learn, or use executor.execute", code="E843")
    _check_reached(loss, learned)
    figures = figures_of(loss)
    states = states_of(loss)
    for name in states:
        if name in params:
            hint = "give the output another name; the optimizer computes the next value of a parameter"
            raise GraphError(f"{name!r} is a parameter and an output of the loss graph", hint, code="E844")
    wanted = narrowed(loss, (*figures, *states))
    b = GraphBuilder()
    weights = {}
    for name, t in params.items():
        declared = loss.type_of(loss.inputs[name]).shape  # its sizes may have names that other parts of the graph use
        weights[name] = b.input(name, t.shape if declared is None else declared, t.dtype)
    scale = b.input(SCALE, (), "float32") if precision else None
    gradients, values = _gradients(
        b, wanted, weights, learned, figures, states, precision, scale, micro_batches, rows, straight_through
    )
    rate, count = b.input(RATE, (), "float64"), b.input(COUNT, (), "float64")
    if scale is not None:
        gradients = {name: g / scale for name, g in gradients.items()}
    finite = _all_finite(b, gradients) if scale is not None else None  # before infinite ones are clipped to numbers
    gradients = _clipped(b, gradients, clip_norm, clip_value)

    outputs: dict[str, Tensor] = {name: values[name] for name in figures}
    zeros: dict[str, str] = {}
    averages: dict[str, str] = {}

    def keep(name: str, new: Tensor, old: Tensor) -> None:
        new = new if new.dtype == old.dtype or old.dtype is None else b.cast(new, old.dtype)
        outputs[name] = new if finite is None else b.where(finite, new, old)

    for name in learned:
        w, own = weights[name], found[name]
        slots = {slot: f"{OWN}{slot}.{name}" for slot in optimizer.slots}
        state = {slot: b.input(label, w.shape, w.dtype) for slot, label in slots.items()}
        speed = b.cast(rate if own.rate == 1.0 else rate * own.rate, w.dtype)
        gradient, rule = gradients[name], optimizer
        if own.weight_decay is not None and (rule := with_decay(optimizer, own.weight_decay)) is optimizer:
            gradient = gradient + own.weight_decay * w  # of an optimizer that knows of none
        new, after = _updated(rule, b, w, gradient, state, speed, b.cast(count, w.dtype))
        keep(name, new, w)
        for slot, label in slots.items():
            keep(label, after[slot], state[slot])
            zeros[label] = name
        if average is not None:
            label = f"{AVERAGE}{name}"
            before = b.input(label, w.shape, w.dtype)
            keep(label, average * before + (1 - average) * outputs[name], before)
            averages[label] = name
    for name in states:  # one batch that overflows would spoil a running mean for ever
        new, t = values[name], loss.type_of(loss.inputs[name])
        floats = scale is not None and (new.dtype is None or new.dtype in FLOATS)
        outputs[name] = b.where(b.all(b.isfinite(new)), new, b.input(name, t.shape, t.dtype)) if floats else new
    starts: dict[str, float] = {}
    if scale is not None and finite is not None and precision is not None:
        outputs |= _next_scale(b, scale, finite, HIGHEST_SCALE[precision])
        starts = {SCALE: HIGHEST_SCALE[precision], GOOD: 0.0}
    graph = b.build(outputs)
    carried = tuple(name for name in graph.output_names if name in graph.inputs)
    return TrainingStep(graph, figures, carried, zeros, starts, averages)


def _check_reached(loss: EinsumGraph, learned: Sequence[str]) -> None:
    """Refuse parameters that the loss does not depend on."""
    found = reachable(loss.nodes, [i for name, i in loss.outputs if name == "loss"])
    for name in learned:
        if name in loss.inputs and "loss" in loss.output_names and loss.inputs[name] not in found:
            hint = f"leave it out of params=, or freeze it: settings={{{name!r}: {{'frozen': True}}}}"
            raise InputError(f"the loss does not depend on the parameter {name!r}", hint, code="E877")


def states_of(loss: EinsumGraph) -> list[str]:
    """Return the outputs that are the next values of inputs, such as running means."""
    return [name for name in loss.output_names if name in loss.inputs]


def figures_of(loss: EinsumGraph) -> tuple[str, ...]:
    """Return the outputs that the history keeps: the loss, and other scalars that are no next value of an input."""
    if "loss" not in loss.output_names:
        hint = "build it with the name: b.build(loss=loss)"
        raise GraphError("the graph has no output 'loss'", hint, *nearest("loss", loss.output_names), code="E845")
    others = [n for n, i in loss.outputs if n != "loss" and n not in loss.inputs and loss.type_of(i).shape == ()]
    return "loss", *others


def narrowed(graph: EinsumGraph, outputs: Sequence[str]) -> EinsumGraph:
    """Return the graph of some outputs, which has no inputs that they do not need."""
    kept = [(name, i) for name, i in graph.outputs if name in outputs]
    if {*graph.inputs.values()} <= {*reachable(graph.nodes, [i for _, i in kept])}:
        return EinsumGraph(graph.nodes, kept, graph.constants)
    b = GraphBuilder()
    tensors = b.inline(graph)
    return b.build({name: tensors[name] for name, _ in kept})


def wanted_data(loss: EinsumGraph, known: Collection[str]) -> Needed:
    """Return the inputs that data is for: those that the figures or next values depend on, beside the ones that are known."""
    kept = {*figures_of(loss), *states_of(loss)}
    needed = {*reachable(loss.nodes, [i for name, i in loss.outputs if name in kept])}
    free = [name for name in loss.inputs if name not in known and name not in (TRAINING, STEP)]
    types = {name: loss.type_of(loss.inputs[name]) for name in free}
    fixed = [n for n, t in types.items() if t.shape is not None and t.shape.is_static and may_be_float(t)]
    return Needed([name for name in free if loss.inputs[name] in needed], free, known, fixed)


def _gradients(
    b: GraphBuilder,
    loss: EinsumGraph,
    weights: Mapping[str, Tensor],
    learned: Sequence[str],
    figures: Sequence[str],
    states: Sequence[str],
    precision: str | None,
    scale: Tensor | None,
    micro_batches: int,
    rows: Sequence[str],
    straight: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients of the learned parameters, and the figures and states, as tensors of the step."""
    if precision is not None:
        loss = _in_precision(loss, precision, (*figures, *states))
    both = value_and_grad(loss, wrt=list(learned), of="scaled" if precision else "loss", straight_through=straight)
    given: dict[str, Any] = {name: w for name, w in weights.items() if name in both.inputs}
    if scale is not None:
        given[SCALE] = scale
    if micro_batches == 1:
        tensors = b.inline(both, given)
        return {n: tensors[f"d_{n}"] for n in learned}, {n: tensors[n] for n in (*figures, *states)}
    rows, stacked = [name for name in rows if name in both.inputs], []
    for name in rows:
        t = both.type_of(both.inputs[name])
        stacked.append(b.input(name, (micro_batches, *(t.shape or ())), t.dtype))
    around = {name: b.input(name, (t := both.type_of(both.inputs[name])).shape, t.dtype) for name in states}
    others = [name for name in both.inputs if name not in {*given, *rows, *states}]  # a body declares no inputs
    given |= {name: b.input(name, (t := both.type_of(both.inputs[name])).shape, t.dtype) for name in others}
    if STEP in given:  # each part has random numbers of its own
        numbers = b.multiply(given.pop(STEP), np.uint64(micro_batches)) + b.cast(b.iota(micro_batches), "uint64")
        rows, stacked = [*rows, STEP], [*stacked, numbers]
    zero = [b.broadcast_to(b.cast(0.0, weights[n].dtype or "float32"), weights[n].shape or ()) for n in learned]

    def body(carries: Sequence[Tensor], slices: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        sums, inside = carries[: len(learned)], dict(zip(states, carries[len(learned) :], strict=True))
        tensors = b.inline(both, {**given, **inside, **dict(zip(rows, slices, strict=True))})
        sums = [total + tensors[f"d_{n}"] for total, n in zip(sums, learned, strict=True)]
        return [*sums, *(tensors[n] for n in states)], [tensors[n] for n in figures]

    last, seen = b.scan(body, [*zero, *around.values()], stacked)
    seen = [seen] if isinstance(seen, Tensor) else seen
    gradients = {n: total * (1.0 / micro_batches) for n, total in zip(learned, last, strict=False)}
    values = {n: b.mean(each) for n, each in zip(figures, seen, strict=True)}
    return gradients, values | dict(zip(states, last[len(learned) :], strict=True))


def _in_precision(loss: EinsumGraph, precision: str, outputs: Sequence[str]) -> EinsumGraph:
    """Return a graph that casts its floating inputs, computes in another dtype, and gives figures and states as float32."""
    b = GraphBuilder()
    given = {}
    for name, i in loss.inputs.items():
        t = loss.type_of(i)
        x = b.input(name, t.shape, t.dtype)
        given[name] = b.cast(x, precision) if t.dtype is None or t.dtype in FLOATS else x
    tensors = b.inline(loss, given)
    found = {
        name: b.cast(tensors[name], "float32") if tensors[name].dtype == precision else tensors[name]
        for name in outputs
    }
    return b.build({**found, "scaled": b.cast(tensors["loss"], "float32") * b.input(SCALE, (), "float32")})


def _clipped(
    b: GraphBuilder, gradients: dict[str, Tensor], norm: float | None, value: float | None
) -> dict[str, Tensor]:
    """Keep each element of the gradients within a value, and the length of all of them together within a norm."""
    if value is not None:
        gradients = {name: b.clip(g, -value, value) for name, g in gradients.items()}
    if norm is not None:
        squares = [b.sum(b.square(g)) for g in gradients.values()]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        factor = b.minimum(1.0, norm / (b.sqrt(total) + 1e-6))
        gradients = {name: g * factor for name, g in gradients.items()}
    return gradients


def _updated(
    optimizer: Optimizer, b: GraphBuilder, w: Tensor, gradient: Tensor, state: Any, rate: Tensor, count: Tensor
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return what the optimizer makes of a parameter, or say what an update of the user's returned instead."""
    result = optimizer.update(b, w, gradient, state, rate, count)
    fits = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)
    if not fits or not isinstance(result[1], Mapping) or set(result[1]) != set(optimizer.slots):
        hint = "return w - rate * gradient, {slot: its next value, ...}"
        slots = ", ".join(map(repr, optimizer.slots)) or "none"
        message = f"the update of {optimizer.name} returns the next parameter and a mapping of its slots ({slots})"
        raise InputError(f"{message}, got {value_text(result)}", hint, code="E841")
    if result[0].shape != w.shape:
        message = f"the update of {optimizer.name} returns a parameter of shape {result[0].shape} for one of {w.shape}"
        raise InputError(message, "return a tensor of the shape of w: w - rate * gradient", code="E841")
    return result


def _all_finite(b: GraphBuilder, gradients: Mapping[str, Tensor]) -> Tensor:
    found = [b.all(b.isfinite(g)) for g in gradients.values()]
    whole = found[0]
    for each in found[1:]:
        whole = b.logical_and(whole, each)
    return whole


def _next_scale(b: GraphBuilder, scale: Tensor, finite: Tensor, highest: float) -> dict[str, Tensor]:
    """Return the next loss scale: halved where a gradient overflowed, doubled after many steps where none did."""
    good = b.input(GOOD, (), "float32")
    enough = good + 1.0 >= GOOD_STEPS
    grown = b.where(enough, b.minimum(scale * 2.0, highest), scale)
    return {
        SCALE: b.where(finite, grown, b.maximum(scale * 0.5, 1.0)),
        GOOD: b.where(b.logical_and(finite, b.logical_not(enough)), good + 1.0, 0.0),
    }
