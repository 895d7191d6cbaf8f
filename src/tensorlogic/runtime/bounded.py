"""Running within a budget of memory: the parts of a graph one after the other, joined as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..events import ExecutionPhase, span
from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..ir.validate import require_valid
from ..passes.indices import dims
from ..passes.pipeline import optimize
from ..passes.specialize import specialize
from ..passes.split import Join, label, parts
from ..plan.budget import Piece, Plans, Slicing, fitted, kept
from ..plan.build import ExecutionPlan
from ..store import Store
from .loop import Program, bind, run, watched

if TYPE_CHECKING:
    from .executor import Executor
    from .outputs import Outputs


def run_within(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Mapping[str, Any],
    budget: int,
    *,
    sizes: Mapping[str, int] | None = None,
    known: Store[Any, Any] | None = None,
) -> Outputs:
    """Run a graph within a budget of bytes, in parts where it does not fit as it is; the answer is that of ``execute``.

    What was found to fit is looked for in ``known`` first, and put there.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", ("n", 8), "float32")
    >>> graph = b.build(far=b.max(b.sum(b.square(x.reshape(-1, 1, 8) - x), axis=2)))
    >>> run_within(tl.Executor(), graph, {"x": np.ones((64, 8), "f4")}, 50_000)["far"]
    array(0., dtype=float32)
    """
    from .outputs import Outputs

    context = executor.context
    try:
        names, values = executor.arrays(graph, inputs)
        given = dict(zip(names, values, strict=True))
        types = {n: TensorType.of(v) for n, v in given.items()}
        key = (graph, tuple(types.values()), tuple(sorted((sizes or {}).items())), budget)
        piece = known.get(key) if known is not None else None
        if piece is None:
            piece = plan_within(executor, graph, types, budget, sizes=sizes)
            if known is not None:
                known.put(key, piece)
        context.notify(ExecutionPhase.EXECUTION)
        done = run_piece(executor, piece, given)
    except BaseException:
        context.notify(ExecutionPhase.ERROR)
        raise
    context.notify(ExecutionPhase.COMPLETE)
    return Outputs(graph.output_names, [done[name] for name in graph.output_names])


def plan_within(
    executor: Executor,
    graph: EinsumGraph,
    types: Mapping[str, TensorType],
    budget: int,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Piece:
    """Return how an executor runs a graph within a budget: a plan, or a slicing; worth keeping, for it takes time."""
    require_valid(graph)
    context = executor.context
    context.notify(ExecutionPhase.PLANNING)
    with span("plan", context.hooks):
        concrete = optimize(specialize(graph, types, sizes), executor.graph_passes(), context.hooks).graph
        in_place = executor.capabilities().supports("in_place") and not executor.wrap
        return fitted(concrete, budget, Plans(executor.backend.passes, in_place))


def run_piece(executor: Executor, piece: Piece, given: Mapping[str, Any]) -> dict[str, Any]:
    """Run what :func:`plan_within` planned, on arrays of the types it was planned for; safe from several threads."""
    with executor.backend.guard():
        return _run(executor, piece, given)


def _run(executor: Executor, piece: Piece, given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(piece, ExecutionPlan):
        if not piece.outputs:
            return {}
        return _called(executor, bind(piece, executor.backend, executor.wrap), given)
    cut = piece.split
    whole = _run(executor, piece.before, {n: given[n] for n in cut.before.inputs})
    totals = _parts(executor, piece, given, whole)
    needed = kept(cut)
    whole = {name: value for name, value in whole.items() if name in needed}
    late = _run(executor, piece.after, {n: _value(n, given, whole, totals) for n in cut.after.inputs})
    found = {"before": whole, "join": totals, "after": late}
    return {name: found[stage][made] for name, stage, made in cut.outputs}


def _value(name: str, *places: Mapping[str, Any]) -> Any:
    return next(place[name] for place in places if name in place)


def _parts(executor: Executor, piece: Slicing, given: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Run the parts one after the other and return their results joined."""
    cut = piece.split
    sources: dict[str, Any] = {}
    for feed in cut.feeds:
        op = cut.graph.nodes[feed.node].op
        match op:
            case ops.Input():
                sources[feed.label] = given[op.label]
            case ops.Constant():
                sources[feed.label] = cut.graph.constants[op.digest]
            case _:
                sources[feed.label] = whole[label(cut.graph, feed.node)]
    totals: dict[str, Any] = {}
    program: tuple[int, Program] | None = None
    for own in parts(cut.size, piece.number):
        values = {f.label: _range(sources[f.label], f.axis, own) for f in cut.feeds}
        part = piece.pieces[len(own)]
        if isinstance(part, ExecutionPlan):
            if program is None or program[0] != len(own):
                program = None  # the arrays of the last one go first
                program = len(own), bind(part, executor.backend, executor.wrap)
            made = _called(executor, program[1], values)
        else:
            made = _run(executor, part, values)
        for join in cut.joins:
            _join(totals, join, made.pop(join.label), own)
    for join in cut.joins:
        total = totals[join.label]
        if join.how == "mean":
            np.divide(total, join.divisor, out=total)
        totals[join.label] = total.astype(join.type.dtype, copy=False)
    return totals


def _range(value: Any, axis: int | None, own: range) -> Any:
    return value if axis is None else value[(slice(None),) * axis + (slice(own.start, own.stop),)]


def _join(totals: dict[str, Any], join: Join, made: Any, own: range) -> None:
    """Put one part's result where it belongs."""
    value = np.asarray(made)
    if join.label not in totals:
        totals[join.label] = np.empty(dims(join.type), value.dtype)
        if join.how != "concat":
            totals[join.label][...] = value
            return
    total = totals[join.label]
    match join.how:
        case "concat":
            _range(total, join.axis, own)[...] = value
        case "noisy_or":  # a + b - ab, which keeps small chances that 1 - (1 - a)(1 - b) would round away
            np.add(total, np.subtract(1, total) * value, out=total)
        case how:
            _COMBINE[how](total, value, out=total)


_COMBINE: dict[str, np.ufunc] = {
    "add": np.add, "mean": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "or": np.logical_or, "and": np.logical_and, "logaddexp": np.logaddexp,
}  # fmt: skip


def _called(executor: Executor, program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
    values = [given[name] for name, _, _ in program.plan.inputs]
    hooks = executor.hooks()
    made = watched(program, values, hooks) if hooks else run(program, values)
    return dict(zip(program.names, executor.finished(program.plan, made), strict=True))
