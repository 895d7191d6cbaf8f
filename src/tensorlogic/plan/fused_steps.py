"""Fused steps: several nodes of a plan that one kernel runs, as one step that remembers its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.ops import Op
from ..ir.types import TensorType, dims
from .cost import rounds

if TYPE_CHECKING:
    from ..passes.split import Join
    from .build import Step


# kernels of one operation, with its operands and results as they are: one may come twice, or be read by nobody
SINGLE = frozenset({"scan", "algebra", "fixpoint", "closure"})
# steps that run other plans: ranges of an index, chains side by side, a plan that is a stage of another
NESTED = frozenset({"ranges", "chains", "stage"})


class Fusable(NamedTuple):
    """Nodes of a graph that one kernel can run, what to call them, and the kind of kernel."""

    nodes: tuple[int, ...]
    pattern: str
    kind: str = "rows"  # what computes them: see the kinds of docs/architecture.md
    exact: bool = False  # whether the kernel gives NumPy's bits


class Cut(NamedTuple):
    """How a step runs ranges of one index: what each range is fed, how results are joined, and who runs it."""

    ranges: tuple[range, ...]
    threads: int  # 1: one range after the other
    feeds: tuple[tuple[int, int | None], ...]  # for each input of a range: which operand, and the axis it is cut along
    joins: tuple[Join, ...]  # for each output of a range


class Fused(Op, frozen=True, tag="fused"):
    """Several operations as one step of a plan; graphs and their files never hold one."""

    arity: ClassVar[int | None] = None
    pattern: str
    count: int
    kind: str = "rows"
    literals: tuple[tuple[int, ops.Literal], ...] = ()  # the slots that are Python scalars
    source: str = ""  # of a whole graph
    numbers: tuple[int, ...] = ()  # that its source takes


def fuse(steps: Sequence[Step], groups: Sequence[Fusable], graph: EinsumGraph, outputs: AbstractSet[int]) -> list[Step]:
    """Return the steps in order with each group as one; groups that would wait for each other are left apart."""
    chosen = list(groups)
    while True:
        done, stuck = _ordered(steps, chosen, graph, outputs)
        if not stuck:
            return done
        chosen = [g for g in chosen if g is not stuck[0]]


def _ordered(
    steps: Sequence[Step], groups: Sequence[Fusable], graph: EinsumGraph, outputs: AbstractSet[int]
) -> tuple[list[Step], list[Fusable]]:
    """Return the steps in order, and the groups that could not be placed."""
    place = {step.node: n for n, step in enumerate(steps)}
    unit = list(range(len(steps)))  # of each step, the number of the first of its group
    pattern: dict[int, Fusable] = {}
    for group in groups:
        members = sorted(place[i] for i in group.nodes)
        pattern[members[0]] = group
        for m in members:
            unit[m] = members[0]
    parts: dict[int, list[Step]] = {}
    for n, step in enumerate(steps):
        parts.setdefault(unit[n], []).append(step)
    maker = {slot: unit[n] for n, step in enumerate(steps) for slot in step.writes}
    read_by: dict[int, set[int]] = {u: set() for u in parts}  # units that wait for a unit
    waits = dict.fromkeys(parts, 0)
    read_in: dict[int, set[int]] = {}  # units that read a slot
    for n, step in enumerate(steps):
        for slot in step.reads:
            read_in.setdefault(slot, set()).add(unit[n])
            before = maker.get(slot)
            if before is not None and before != unit[n] and unit[n] not in read_by[before]:
                read_by[before].add(unit[n])
                waits[unit[n]] += 1
    ready = [u for u, n in waits.items() if n == 0]
    heapify(ready)
    done: list[Step] = []
    literals = _literals(steps, graph)
    while ready:
        u = heappop(ready)
        made = parts.pop(u)
        if u in pattern:
            wanted = {s for p in made for s in p.writes if s in outputs or read_in.get(s, set()) - {u}}
            done.append(_one(made, pattern[u], wanted, literals))
        else:
            done += made
        for after in read_by[u]:
            waits[after] -= 1
            if waits[after] == 0:
                heappush(ready, after)
    return done, [pattern[u] for u in parts if u in pattern]


def _kernel_bytes(parts: Sequence[Step], kind: str) -> int:
    """Return the bytes that the kernel of some steps takes; on packed bits, words of what it reads and makes, twice for another order or round."""
    if kind in ("integers", "weights", "fuzzy"):
        from .small_numbers import scratch_bytes

        return scratch_bytes(parts, kind)
    if kind == "closure":  # floats of both factors and of the product, for BLAS
        return 14 * max(_padded(t) for p in parts for t in (*p.arg_types, *p.types))
    if kind not in ("algebra", "bits", "fixpoint"):
        return 0
    from .native_memory import native_bytes, words_bytes  # loaded by graphs that ask for it

    if kind == "algebra":
        [part] = parts
        assert isinstance(part.op, ops.Einsum | ops.ContractVJP) and part.contraction is not None
        return native_bytes(part.op, part.contraction, part.arg_types, part.types[0])
    every = [t for p in parts for t in (*p.arg_types, *p.types)]
    inside = [b for p in parts for b in p.bodies]
    if any(isinstance(s.op, ops.Collective) for b in inside for s in b.steps):  # blocks of other ranks are not kept
        return 2 * sum(words_bytes(dims(t)) for t in every) + sum(b.peak_bytes // 8 + 64 * len(b.steps) for b in inside)
    every += [t for b in inside for s in b.steps for t in s.types]
    return 2 * sum(words_bytes(dims(t)) for t in every)


def _padded(t: TensorType) -> int:
    """Return the elements of a matrix whose rows are whole words."""
    *rows, columns = dims(t) or (1,)
    return math.prod(rows) * (-(-columns // 64) * 64)


def _literals(steps: Sequence[Step], graph: EinsumGraph) -> dict[int, ops.Literal]:
    found: dict[int, ops.Literal] = {}
    for step in steps:
        for slot, node in zip(step.reads, graph.nodes[step.node].args, strict=True):
            op = graph.nodes[node].op
            if isinstance(op, ops.Literal):
                found[slot] = op
    return found


def _one(parts: Sequence[Step], group: Fusable, wanted: AbstractSet[int], literals: dict[int, ops.Literal]) -> Step:
    """Return the parts as one step; what they read of each other no longer stands in memory."""
    inside = {slot for p in parts for slot in p.writes}
    reads: dict[int, None] = {}
    given: dict[int, ops.Literal] = {}
    arg_types, writes, types, flops, size = [], [], [], 0, 0
    for p in parts:
        flops += p.flops + (rounds(p.op, p.arg_types) or 1) * max((b.flops for b in p.bodies), default=0)
        for slot, t in zip(p.reads, p.arg_types, strict=True):
            if slot in literals:
                given[slot] = literals[slot]
            elif slot not in inside and slot not in reads:
                reads[slot] = None
                arg_types.append(t)
        for slot, t in zip(p.writes, p.types, strict=True):
            if slot in wanted:
                writes.append(slot)
                types.append(t)
                size += p.nbytes
    last = parts[-1]
    read: tuple[int, ...] = tuple(reads)
    if group.kind in SINGLE:
        read, arg_types, given = last.reads, list(last.arg_types), {}
        writes, types, size = list(last.writes), list(last.types), last.nbytes
    op = Fused(group.pattern, len(parts), group.kind, tuple(given.items()))
    located = next((p.location for p in reversed(parts) if p.location is not None), None)
    return last._replace(
        op=op,
        reads=read,
        writes=tuple(writes),
        frees=(),
        arg_types=tuple(arg_types),
        types=tuple(types),
        flops=flops,
        nbytes=size,
        location=located,
        contraction=None,
        bodies=(),
        scratch=_kernel_bytes(parts, group.kind),
        parts=tuple(parts),
    )
