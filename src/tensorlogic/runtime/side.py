"""Side by side: the ranges of one index that every output has, each on a thread of its own from the first step to the last.

Nothing waits between steps, what a part works on is smaller, and BLAS keeps to one thread meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..backends.base import NativeBackend
from ..backends.threads import on_one_thread, together, workers
from ..ir import ops
from ..ir.graph import EinsumGraph
from ..passes.indices import dims
from ..passes.split import Split, parts, split
from ..plan.build import ExecutionPlan, lay_out
from ..plan.cost import nbytes
from .loop import KEPT, KEPT_BYTES, Program, bind, may_share, recycled, run_alone
from .race import Form

LEAST = 2_000_000  # arithmetic operations and bytes below which threads are not worth waking
CACHED = 1 << 20  # bytes of results in one part that stay near a core


def side_by_side(program: Program, backend: NativeBackend, most: int | None = None) -> list[Form]:
    """Return the forms in which ranges of an index run on threads: one range a thread, or several that fit the cache.

    Together the threads take no more than the bytes that are the most.
    """
    plan = program.plan
    moved = sum(step.nbytes for step in plan.steps)
    threads = workers()
    if threads < 2 or plan.flops + moved < LEAST or not plan.outputs:
        return []
    cut = _cut(plan.graph)
    if cut is None or cut.size < threads:
        return []
    counts = {threads}
    more = threads * math.ceil(moved / CACHED / threads)
    if more > threads and cut.size >= more and len(plan.steps) > 1:
        counts.add(min(more, threads * 8))
    found = [(count, _alone(cut.part(len(parts(cut.size, count)[0])), backend)) for count in sorted(counts)]
    whole = sum(nbytes(t) for _, _, t in plan.outputs)
    return [
        _form(program, cut, backend, threads, count)
        for count, part in found
        if most is None or threads * part.peak_bytes + whole <= most
    ]


def _cut(graph: EinsumGraph) -> Split | None:
    """Return a graph cut along the first axis of an input, where every output has that index first and nothing else is needed."""
    tried = 0
    for name, node in graph.inputs.items():
        t = graph.type_of(node)
        if not t.shape or tried == 4:
            continue
        tried += 1
        cut = split(graph, name, 0)
        if cut is None or any(j.how != "concat" or j.axis != 0 for j in cut.joins) or any(f.axis for f in cut.feeds):
            continue
        given = all(isinstance(cut.graph.nodes[f.node].op, ops.Input | ops.Constant) for f in cut.feeds)
        if given and all(stage == "join" for _, stage, _ in cut.outputs):
            return cut
    return None


def _form(program: Program, cut: Split, backend: NativeBackend, threads: int, count: int) -> Form:
    ranges = parts(cut.size, count)
    programs = {len(r): bind(_alone(cut.part(len(r)), backend), backend) for r in (ranges[0], ranges[-1])}
    shares = [ranges[k::threads] for k in range(threads)]
    number = {name: n for n, (name, _, _) in enumerate(program.plan.inputs)}
    given: list[tuple[int | None, Any, bool]] = []  # for each feed: the input it is, or the constant; whether it is cut
    labels = {f.label: f for f in cut.feeds}
    for name, _, _ in programs[len(ranges[0])].plan.inputs:
        feed = labels[name]
        op = cut.graph.nodes[feed.node].op
        constant = cut.graph.constants[op.digest] if isinstance(op, ops.Constant) else None
        given.append((number[op.label] if isinstance(op, ops.Input) else None, constant, feed.axis is not None))
    made_by = {label: n for n, (label, _, _) in enumerate(programs[len(ranges[0])].plan.outputs)}
    which = [made_by[label] for _, _, label in cut.outputs]  # of each output of the whole, the output of a part
    shapes = [(dims(t), t.dtype or "float64") for _, _, t in program.plan.outputs]
    idle: list[list[Any]] = []
    small = sum(nbytes(t) for _, _, t in program.plan.outputs) <= KEPT_BYTES

    def piece(own: range, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        fed = [(constant if n is None else inputs[n], sliced) for n, constant, sliced in given]
        values = [value[own.start : own.stop] if sliced else value for value, sliced in fed]
        room = [result[own.start : own.stop] for result in results]
        target: list[Any] = [None] * len(made_by)
        for n, place in zip(which, room, strict=True):
            target[n] = place
        made = run_alone(programs[len(own)], values, target)
        for n, place in zip(which, room, strict=True):
            if made[n] is not place:  # a step that does not write where it is told
                place[...] = made[n]

    def share(own: Sequence[range], inputs: Sequence[Any], results: Sequence[Any]) -> None:
        for r in own:
            piece(r, inputs, results)

    def run(inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        try:
            last = idle.pop()
        except IndexError:
            last = [None] * len(shapes)
        results = []
        for n, (shape, dtype) in enumerate(shapes):
            array = None if out is None else out[n]
            if array is None or not array.flags.c_contiguous or any(may_share(array, x) for x in inputs):
                array = recycled(last, n, shape, dtype)
            results.append(array)
        together([partial(share, s, inputs, results) for s in shares], threads)
        if small and len(idle) < KEPT:
            idle.append(last)
        return tuple(results)

    per = "" if count == threads else f" in {count} parts"
    return Form(f"side by side on {threads} threads{per}", on_one_thread(run), program)


def _alone(graph: EinsumGraph, backend: NativeBackend) -> ExecutionPlan:
    """Return the plan of a part, which keeps to its own thread."""
    plan = lay_out(graph, in_place=True, groups=backend.groups)
    return plan._replace(steps=tuple(step._replace(split=False) for step in plan.steps))
