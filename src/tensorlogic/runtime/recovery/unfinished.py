"""What is left of a run that stopped: a graph of the operations that did not run yet, and the values that they read.

It is a graph like any other, so another process, optimization level or backend can run it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...errors import CheckpointError
from ...ir import ops
from ...ir.constants import all_constants
from ...ir.files import from_json, to_json
from ...ir.graph import EinsumGraph, Node, extract, reachable
from ...ir.ops import constant_digest
from ...plan.build import ExecutionPlan, node_slots
from ...plan.fused_steps import Fused
from ..frame import Frame
from ..values import Outputs
from .checkpoints import Checkpoint

VALUE, CONSTANT = "value:", "constant:"  # how names of arrays in a checkpoint begin
FREE = (ops.Input, ops.Constant, ops.Literal)  # nodes that no step computes


class Unfinished(NamedTuple):
    """A graph that is left to run, with what its inputs are; the inputs of the first graph keep their names."""

    graph: EinsumGraph
    values: dict[str, Any]


class Source:
    """The graph and inputs that a run began with: a checkpoint is for these and no others."""

    def __init__(self, graph: EinsumGraph, inputs: Mapping[str, Any]) -> None:
        self.graph, self.inputs = graph, dict(inputs)

    @cached_property
    def digests(self) -> dict[str, str]:
        """A fingerprint of each input."""
        return {name: _digest(value) for name, value in self.inputs.items()}


def unfinished(frame: Frame, taken: Collection[str]) -> Unfinished:
    """Return what is left of a run between two steps.

    Values that are held become inputs, under names that are not ``taken``; the operations before them are gone.
    """
    plan = frame.program.plan
    graph, types, nodes = plan.graph, plan.graph.inference.types, list(plan.graph.nodes)
    given = {name: frame.slots[slot] for name, slot, _ in plan.inputs}
    for i, own in enumerate(_slots(plan) or ()):  # without them it begins anew
        if isinstance(nodes[i].op, FREE) or len(own) != 1 or types[i][0].weak or frame.slots[own[0]] is None:
            continue
        name = _name(i, {*given, *taken})
        given[name] = frame.slots[own[0]]
        nodes[i] = Node(ops.Input(name, types[i][0].shape, types[i][0].dtype), (), nodes[i].locations)
    return _part(nodes, graph, given, graph.output_names)


def finished(outputs: Outputs, taken: Collection[str]) -> Unfinished:
    """Return what is left of a run that is over: nothing but to hand its outputs out."""
    names = [_name(n, taken) for n in range(len(outputs))]
    values = [v if getattr(v, "layout", "") == "sparse" else np.array(v) for v in outputs]
    inputs = [Node(ops.Input(n, v.shape, v.dtype.name)) for n, v in zip(names, values, strict=True)]
    graph = EinsumGraph(inputs, [(name, n) for n, name in enumerate(outputs.keys())])
    return Unfinished(graph, dict(zip(names, values, strict=True)))


def without(left: Unfinished, outputs: Collection[str]) -> Unfinished:
    """Return what is left for the other outputs."""
    names = [name for name in left.graph.output_names if name not in outputs]
    return _part(left.graph.nodes, left.graph, left.values, names)


def _part(nodes: Sequence[Node], graph: EinsumGraph, given: Mapping[str, Any], outputs: Collection[str]) -> Unfinished:
    wanted = [(name, i) for name, i in graph.outputs if name in outputs]
    left = extract(nodes, wanted, graph.constants)
    return Unfinished(left, {name: given[name] for name in left.inputs})


def _name(number: int, taken: Collection[str]) -> str:
    name = f"%{number}"
    while name in taken:
        name += "'"
    return name


def _slots(plan: ExecutionPlan) -> list[tuple[int, ...]] | None:
    """Return the slots of each node of a plan's graph; None of a plan whose slots are those of stages and ranges."""
    if any(isinstance(step.op, Fused) and step.op.kind in ("ranges", "stage") for step in plan.steps):
        return None
    return node_slots(plan.graph)


def outputs_of(frame: Frame) -> list[str]:
    """Return the outputs for which the step is computed that a run stands before."""
    plan = frame.program.plan
    graph, slots, new_slots = plan.graph, _slots(plan), set(plan.steps[frame.at].writes)
    if slots is None:
        return graph.output_names
    nodes = {i for i, own in enumerate(slots) if not new_slots.isdisjoint(own)}
    return [name for name, i in graph.outputs if not nodes.isdisjoint(reachable(graph.nodes, [i]))]


def intact(frame: Frame) -> bool:
    """Tell whether a step that failed half-way can have changed nothing that others still read."""
    if frame.done:
        return True
    entry, slots = frame.program.entries[frame.at], frame.slots
    places = entry.work if isinstance(entry.work, tuple) else (entry.work,) if entry.work >= 0 else ()
    written = [slots[place] for place in places if slots[place] is not None]
    held = [v for v in slots[: frame.program.plan.slots] if isinstance(v, np.ndarray)]
    return not any(np.may_share_memory(a, b) for a in written for b in held)


def to_checkpoint(left: Unfinished, source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays and facts of a checkpoint: what is left, and which graph and inputs it is left of."""
    arrays: dict[str, Any] = {}
    sparse: dict[str, list[int]] = {}
    for name, value in left.values.items():
        if name in source.inputs:  # whoever goes on has them
            continue
        if getattr(value, "layout", "") == "sparse" and value.shape:
            sparse[name] = list(value.shape)
            arrays |= {f"{VALUE}{name}:{n}": column for n, column in enumerate(value.columns)}
        else:
            arrays[VALUE + name] = np.asarray(value)
    known = all_constants(source.graph)
    arrays |= {CONSTANT + d: a for d, a in all_constants(left.graph).items() if d not in known}
    facts = {
        "graph": source.graph.digest,
        "inputs": source.digests,
        "left": to_json(left.graph, data=False),
        "sparse": sparse,
    }
    return arrays, facts


def from_checkpoint(found: Checkpoint, source: Source) -> Unfinished:
    """Return what a checkpoint says is left of a run; refuse one of another graph or of other inputs."""
    facts, arrays = found.facts, found.arrays
    if not isinstance(facts.get("left"), str):
        message = f"checkpoint {found.number} is of something else than a run of a graph"
        raise CheckpointError(message, "give the folder that the run wrote to", code="E585")
    if facts["graph"] != source.graph.digest:
        message = f"checkpoint {found.number} is of graph {facts['graph']}, this one is {source.graph.digest}"
        raise CheckpointError(message, "go on with the graph it was saved for, or use another folder", code="E585")
    for name, digest in source.digests.items():
        if facts["inputs"].get(name) != digest:
            message = (
                f"checkpoint {found.number} is of another input {name!r}: {facts['inputs'].get(name)}, not {digest}"
            )
            raise CheckpointError(message, "give the inputs it was saved for, or use another folder", code="E586")
    constants = {d.removeprefix(CONSTANT): a for d, a in arrays.items() if d.startswith(CONSTANT)}
    graph = from_json(facts["left"], arrays={**all_constants(source.graph), **constants}, limit=1 << 40)
    values: dict[str, Any] = {}
    for name in graph.inputs:
        if name in facts["sparse"]:
            from ...backends.sparse import SparseTensor

            shape = facts["sparse"][name]
            columns = [arrays[f"{VALUE}{name}:{n}"] for n in range(len(shape))]
            values[name] = SparseTensor.of_columns(columns, shape)
        else:
            values[name] = arrays[VALUE + name] if VALUE + name in arrays else source.inputs[name]
    return Unfinished(graph, values)


def _digest(value: Any) -> str:
    if getattr(value, "layout", "") == "sparse" and value.shape:
        return " ".join([str(value.shape), *(constant_digest(np.asarray(column)) for column in value.columns)])
    return constant_digest(np.asarray(value))
