"""What each rank of a mesh runs: its graph, and its share of every input and output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...diagnostics import value_text
from ...errors import InputError, ShapeError, nearest
from ...ir.collectives import share
from ...ir.graph import EinsumGraph
from ...ir.types import TensorType, dims
from ...passes.blocks import BLOCKS, in_blocks
from ...passes.shard import shard
from .config import DataParallel, DistributedParallelismStrategy, Hybrid, Mesh, ModelParallel, PipelineParallel

Cuts = tuple[tuple[str, int], ...]  # axes of the mesh, each with the axis of the tensor that lies along it


class RankGraph(NamedTuple):
    """The graph of a rank, and how its inputs and outputs are cut; what is not named is whole."""

    graph: EinsumGraph
    inputs: Mapping[str, Cuts]
    outputs: Mapping[str, Cuts]


def batch_axes(graph: EinsumGraph, over: str | None) -> dict[str, int]:
    """Return the inputs that have rows, each with their axis: those of a named size, or of the first size that has a name.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> batch_axes(b.build(y=b.input("x", ("n", 3)) @ b.input("w", (3, 2))), None)
    {'x': 0}
    """
    shapes = {name: graph.nodes[i].op.shape or () for name, i in graph.inputs.items()}  # type: ignore[attr-defined]
    named = [d for shape in shapes.values() for d in shape[:1] if isinstance(d, str)]
    if over is not None and over in graph.inputs:
        return {over: 0}
    if over is not None and over not in graph.size_names:
        known = [*sorted(graph.size_names), *graph.inputs]
        raise InputError(
            f"the graph has no size and no input {value_text(over)} to share", *nearest(over, known), code="E379"
        )
    size = over or (max(dict.fromkeys(named), key=named.count) if named else None)
    if size is None:
        first = next((name for name, shape in shapes.items() if shape), None)
        if first is None:
            raise InputError("the graph has no input with rows to share", code="E379")
        return {first: 0}
    return {name: shape.index(size) for name, shape in shapes.items() if size in shape}


def weight_axes(graph: EinsumGraph, ranks: int, rows: Collection[str]) -> dict[str, int]:
    """Return axes along which the weights of a graph can be shared: one after another, unless another's shares decide it."""
    found: dict[str, int] = {}
    for name, i in graph.inputs.items():
        t = graph.type_of(i)
        if name in rows or name in found or t.shape is None or len(t.shape) < 2:
            continue
        for axis in range(len(t.shape) - 1, -1, -1):
            try:
                found = dict(shard(graph, {**found, name: axis}, ranks, 0, "model").inputs)
                break
            except ShapeError:
                continue
    return {name: axis for name, axis in found.items() if name not in rows}


def rank_graphs(
    graph: EinsumGraph,
    mesh: Mesh,
    rows: Mapping[str, int],
    strategy: DistributedParallelismStrategy,
    places: Iterable[tuple[int, int]] | None = None,
    data: Collection[str] = (),
    carried: Sequence[str] = (),
) -> dict[tuple[int, int], RankGraph]:
    """Return what runs at places along the data and the model axis, all unless told.

    ``rows`` are the inputs that the data axis shares, and ``data`` those that are no weights, which the model axis leaves whole.
    """
    weights = _weights(graph, mesh, {*rows, *data}, strategy)
    if places is None:
        places = product(range(mesh.data), range(mesh.model))
    found = {}
    for place in places:
        own = RankGraph(graph, {}, {})
        for over, axes, count, at in (("data", rows, mesh.data, place[0]), ("model", weights, mesh.model, place[1])):
            if count > 1:
                made = shard(own.graph, axes, count, at, over, carried)
                own = RankGraph(
                    made.graph, _with(own.inputs, over, made.inputs), _with(own.outputs, over, made.outputs)
                )
        found[place] = own
    return found


def block_graphs(graph: EinsumGraph, mesh: Mesh, rows: Mapping[str, int]) -> dict[tuple[int, int], RankGraph]:
    """Return what runs at each place along the data axis where sums are to have a fixed order; all inputs and outputs are whole."""
    count = min(dims(graph.type_of(graph.inputs[name]))[axis] for name, axis in rows.items())
    # with fewer blocks than ranks, each computes all of them
    ranks = mesh.data if min(count, BLOCKS) >= mesh.data else 1
    places = range(mesh.data)
    return {(n, 0): RankGraph(in_blocks(graph, rows, ranks, n if ranks > 1 else 0), {}, {}) for n in places}


def _weights(
    graph: EinsumGraph, mesh: Mesh, data: Collection[str], strategy: DistributedParallelismStrategy
) -> dict[str, int]:
    if mesh.model == 1:
        return {}
    match strategy:
        case ModelParallel() | Hybrid() if strategy.sharding_spec is not None:
            return {name: own.axis for name, own in strategy.sharding_spec.tensors.items()}
        case _:
            found = weight_axes(graph, mesh.model, data)
            if not found:
                message = f"no weight of the graph has an axis that {mesh.model} ranks can share"
                raise ShapeError(message, "use another model_parallel_size", code="E370")
            return found


def _with(cuts: Mapping[str, Cuts], over: str, axes: Mapping[str, int]) -> dict[str, Cuts]:
    found = dict(cuts)
    for name, axis in axes.items():
        found[name] = (*found.get(name, ()), (over, axis))
    return found


def own_ranges(shape: Sequence[int], cuts: Cuts, mesh: Mesh, place: Mapping[str, int]) -> tuple[slice, ...]:
    """Return the part of a tensor that a rank has."""
    starts, sizes = [0] * len(shape), list(shape)
    for over, axis in cuts:
        part = share(sizes[axis], getattr(mesh, over), place[over])
        starts[axis], sizes[axis] = starts[axis] + part.start, len(part)
    return tuple([slice(start, start + size) for start, size in zip(starts, sizes, strict=True)])


def assembled(t: TensorType, cuts: Cuts, mesh: Mesh, parts: Mapping[int, Any]) -> Any:
    """Return a tensor made of the parts that ranks have of it."""
    if not cuts:
        return next(iter(parts.values()))
    whole: Any = np.empty(dims(t), t.dtype)
    for rank, part in parts.items():
        whole[own_ranges(dims(t), cuts, mesh, mesh.coordinates(rank))] = part
    return whole


def owned_by(cuts: Cuts, place: Mapping[str, int]) -> bool:
    """Tell whether a rank is the one that hands an output in, of those that have the same part of it."""
    along = {over for over, _ in cuts}
    return all(place[over] == 0 for over in ("data", "model") if over not in along)


def rows_of(
    graph: EinsumGraph, strategy: DistributedParallelismStrategy, mesh: Mesh, deterministic: bool = False
) -> dict[str, int]:
    """Return the inputs whose rows are shared, or come in blocks or micro-batches; none where nothing of that is done."""
    match strategy:
        case DataParallel():
            return batch_axes(graph, strategy.over) if mesh.data > 1 or deterministic else {}
        case PipelineParallel() | Hybrid() if mesh.data > 1 or mesh.stage > 1:
            return batch_axes(graph, strategy.over)
        case _:
            return {}


def data_inputs(graph: EinsumGraph, strategy: DistributedParallelismStrategy) -> dict[str, int]:
    """Return the inputs that have rows even where nothing is done with them; none where it is not clear."""
    named = any(isinstance(d, str) for i in graph.inputs.values() for d in graph.type_of(i).shape or ())
    over = getattr(strategy, "over", None)
    return batch_axes(graph, over) if named or over is not None else {}


def micro_batch_rows(strategy: Any, stages: int, rows: int) -> int:
    """Return how many rows a micro-batch has at the most; no rows at all are one micro-batch too."""
    return max(1, min(rows, strategy.micro_batch_size or rows // (2 * stages)))


def check_names(graph: EinsumGraph, strategy: DistributedParallelismStrategy) -> None:
    """Raise where a spec names a tensor that is no input, before anything is planned."""
    spec = getattr(strategy, "sharding_spec", None)
    for name in spec.tensors if spec is not None else ():
        if name not in graph.inputs:
            raise InputError(
                f"the graph has no input {value_text(name)} to shard", *nearest(name, graph.inputs), code="E369"
            )
