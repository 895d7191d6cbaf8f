"""Clipping and scaling of gradients, as nodes added to the graph that computes them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import reduce

from ..diagnostics import value_text
from ..errors import GraphError, InputError, expect_known
from ..ir.check import expect_graph
from ..ir.graph import EinsumGraph
from .grad_tape import Tape, Value


def clip_by_value(graph: EinsumGraph, limit: float, *, names: Iterable[str] | None = None) -> EinsumGraph:
    """Keep every element of the gradients within -limit and limit.

    Gradients are the outputs whose name begins with ``d_``, or those that are named.

    >>> from tensorlogic import Executor, GraphBuilder, grad
    >>> b = GraphBuilder()
    >>> clipped = clip_by_value(grad(b.build(loss=b.sum(b.square(b.input("x", (2,)))))), 1.0)
    >>> Executor().execute(clipped, {"x": [0.25, -3.0]})["d_x"]
    array([ 0.5, -1. ])
    """
    _positive(limit, "limit")
    return _changed(graph, names, lambda t, gs: [t.clip(g, -float(limit), float(limit)) for g in gs])


def clip_by_norm(graph: EinsumGraph, limit: float, *, names: Iterable[str] | None = None) -> EinsumGraph:
    """Shorten each gradient that is longer than a limit, as a vector of all its elements.

    >>> from tensorlogic import Executor, GraphBuilder, grad
    >>> b = GraphBuilder()
    >>> clipped = clip_by_norm(grad(b.build(loss=b.sum(b.input("x", (4,))))), 1.0)
    >>> Executor().execute(clipped, {"x": [0.0, 1.0, 2.0, 3.0]})["d_x"]
    array([0.5, 0.5, 0.5, 0.5])
    """
    _positive(limit, "limit")
    return _changed(graph, names, lambda t, gs: [_shortened(t, g, _square(t, g), float(limit)) for g in gs])


def clip_by_global_norm(graph: EinsumGraph, limit: float, *, names: Iterable[str] | None = None) -> EinsumGraph:
    """Shorten all gradients by one factor where together they are longer than a limit.

    >>> from tensorlogic import Executor, GraphBuilder, grad
    >>> b = GraphBuilder()
    >>> loss = b.sum(b.input("x", (2,))) * 3.0 + b.sum(b.input("y", (2,))) * 4.0
    >>> clipped = clip_by_global_norm(grad(b.build(loss=loss)), 1.0)
    >>> [float(g[0].round(6)) for g in Executor().execute(clipped, {"x": [0.0, 0.0], "y": [0.0, 0.0]})]
    [0.424264, 0.565685]
    """
    _positive(limit, "limit")

    def clipped(t: Tape, gs: list[Value]) -> list[Value]:
        total = reduce(operator.add, (_square(t, g) for g in gs))
        return [_shortened(t, g, total, float(limit)) for g in gs]

    return _changed(graph, names, clipped)


def unscale(
    graph: EinsumGraph, loss_scale: float, *, dtype: str | None = None, names: Iterable[str] | None = None
) -> EinsumGraph:
    """Divide the gradients of a scaled loss by its scale, in a wider dtype if one is given.

    >>> from tensorlogic import Executor, GraphBuilder, grad
    >>> b = GraphBuilder()
    >>> scaled = grad(b.build(loss=b.sum(b.input("x", (1,), "float16")) * 1e-6), loss_scale=1024.0)
    >>> Executor().execute(unscale(scaled, 1024.0, dtype="float32"), {"x": [1.0]})["d_x"].dtype
    dtype('float32')
    """
    _positive(loss_scale, "loss_scale")

    def divided(t: Tape, gs: list[Value]) -> list[Value]:
        return [(g if dtype is None else t.cast(g, dtype)) * (1.0 / loss_scale) for g in gs]

    return _changed(graph, names, divided)


def _positive(number: float, word: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        raise InputError(f"{word} is a positive number, got {value_text(number)}", code="E310")


def _square(t: Tape, g: Value) -> Value:
    return t.sum(t.square(g if g.dtype not in ("float16", "bfloat16") else t.cast(g, "float32")))


def _shortened(t: Tape, g: Value, square: Value, limit: float) -> Value:
    factor = limit / t.maximum(t.sqrt(square), limit)
    return g * (factor if g.dtype is None or factor.dtype == g.dtype else t.cast(factor, g.dtype))


def _changed(
    graph: EinsumGraph, names: Iterable[str] | None, change: Callable[[Tape, list[Value]], list[Value]]
) -> EinsumGraph:
    expect_graph(graph)
    t = Tape(graph)
    t.copy(graph)
    chosen = [n for n in graph.output_names if n.startswith("d_")] if names is None else list(names)
    expect_known("the graph has no output", chosen, graph.output_names, kind=GraphError)
    if not chosen:
        hint = "say which outputs are gradients: names=['g']"
        raise GraphError("the graph has no gradients: no output's name begins with d_", hint, code="E814")
    outputs = t.outputs
    changed = dict(zip(chosen, change(t, [outputs[n] for n in chosen]), strict=True))
    return t.finish((n, changed.get(n, v)) for n, v in outputs.items())
