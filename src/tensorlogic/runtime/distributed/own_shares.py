"""Ranks of one script that give their own shares of inputs, not the whole: each of them reads no more than its part of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...errors import BackendError, ShapeError
from ...ir.collectives import share
from ...ir.graph import EinsumGraph
from ...ir.types import TensorShape, TensorType, dims, normal_axis
from ...passes.specialize import misfit
from .calls import compare_lines, label
from .config import DistributedConfig, ModelParallel
from .layout import check_names, rows_of

if TYPE_CHECKING:
    from .torch_ways import TorchCommunication


def shared_axes(graph: EinsumGraph, config: DistributedConfig) -> dict[str, int]:
    """Return the inputs of which every rank gives its share, each with an axis: those with rows, or those that the spec names.

    >>> from tensorlogic import Device, GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", 3)) @ b.input("w", (3, 2)))
    >>> shared_axes(graph, DistributedConfig([Device.CPU(0), Device.CPU(1)], "torch", own_shares=True))
    {'x': 0}
    """
    check_names(graph, config.strategy)
    if isinstance(config.strategy, ModelParallel):
        return {name: own.axis for name, own in config.strategy.sharding_spec.tensors.items()}
    return rows_of(graph, config.strategy, config.mesh)


def whole_types(
    world: TorchCommunication | None, graph: EinsumGraph, axes: Mapping[str, int], types: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """Return the types that inputs have together, of which this rank has a share along an axis each; the ranks tell each other how long theirs are."""
    if world is None:
        hint = "start it with: tensorlogic launch -n 4 script.py, or give the whole inputs without own_shares="
        raise BackendError("own_shares= is for a script that every rank runs, and this is none", hint, code="E381")
    for name, axis in axes.items():
        _check_share(graph, name, axis, types[name])
    places = {name: normal_axis(axis, len(dims(types[name])), f"sharding {name!r}") for name, axis in axes.items()}
    own = np.array([[dims(types[name])[axis] for name, axis in places.items()]], np.int64)
    if not world.find_neighbours("start"):  # who compare what they exchange anyway
        compare_lines(world, label(world, f"graph {graph.digest[:12]}, shares of {', '.join(places)}"))
    lengths = world.all_gather(own, 0, world.size)
    found = dict(types)
    for (name, axis), column in zip(places.items(), lengths.T.tolist(), strict=True):
        total = sum(column)
        expected = [len(share(total, world.size, rank)) for rank in range(world.size)]
        if column != expected:
            message = (
                f"the ranks give {column} places of axis {axis} of {name!r}, and their shares of {total} are {expected}"
            )
            hint = "give every rank as many, or one more to the first ones"
            raise ShapeError(message, hint, code="E388")
        shape = dims(types[name])
        found[name] = types[name]._replace(shape=TensorShape((*shape[:axis], total, *shape[axis + 1 :])))
    return found


def _check_share(graph: EinsumGraph, name: str, axis: int, given: TensorType) -> None:
    """Raise where a share does not fit what the graph declares; along the axis that is shared it may have any length."""
    declared, shape = graph.type_of(graph.inputs[name]).shape, dims(given)
    if declared is None:
        return
    count = len(declared)
    if len(shape) != count:
        raise misfit(name, declared, shape, f"{count} axes are declared, got {len(shape)}")
    shared = normal_axis(axis, count, f"sharding {name!r}")
    for n, (size, own) in enumerate(zip(declared, shape, strict=True)):
        if n != shared and isinstance(size, int) and size != own:
            raise misfit(name, declared, shape, f"axis {n} must be {size}, got {own}")
