"""The kernel of a step that runs on relations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...ir import ops
from ...passes.indices import dims
from ...plan.build import Step
from ...plan.fused import Fused
from .. import tuples
from ..base import Kernel
from ..bits import BitTensor
from ..closure import bind_fixpoint
from ..sparse import SparseTensor
from .fixpoints import OnBits, Relation, Rules, read_rules, run_loop
from .joins import Joins, union
from .queries import Query
from .reading import Loop, Queries, Reader, Slot, Union, counted_axes

MOST_CELLS = 1 << 26  # of a relation that is only described, such as x < y, up to which it is written out for packed bits


class Count(NamedTuple):
    """A result that counts the tuples of a relation along some axes."""

    slot: Slot
    axes: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]


class Reading(NamedTuple):
    """Steps read as queries: what is computed in order, what counts, and the rules of each loop."""

    reader: Reader
    counts: dict[Slot, Count]
    loops: dict[int, tuple[Rules, Kernel | None]]


def bind_relations(step: Step) -> Kernel:
    """Return the kernel of steps that run on relations: operands are arrays or relations, results relations or, for counts, arrays."""
    types = {s: t for part in step.parts for s, t in zip(part.reads, part.arg_types, strict=True)}
    boolean = [types[s].dtype == "bool" for s in step.reads]
    ready: list[tuple[list[Any], Reading]] = []  # numbers among the operands are constants of the plan

    def kernel(*operands: Any) -> Any:
        numbers = [x for x, truth in zip(operands, boolean, strict=True) if not truth]
        if not ready or any(a is not b for a, b in zip(ready[0][0], numbers, strict=True)):
            ready[:] = [(numbers, _read(step, operands, boolean))]
        return _run(step, ready[0][1], operands, boolean)

    if all(boolean):
        ready.append(([], _read(step, [None] * len(boolean), boolean)))
    return kernel


def _read(step: Step, operands: Sequence[Any], boolean: Sequence[bool]) -> Reading:
    assert isinstance(step.op, Fused)
    reader = Reader()
    shapes = {s: dims(t) for part in step.parts for s, t in zip(part.reads, part.arg_types, strict=True)}
    for slot, x, truth in zip(step.reads, operands, boolean, strict=True):
        if truth:
            reader.given(slot, shapes[slot])
        else:
            reader.constant(slot, x)
    for slot, op in step.op.literals:
        reader.constant(slot, op.value)
    readers: dict[int, int] = {}
    for part in step.parts:
        for slot in set(part.reads):
            readers[slot] = readers.get(slot, 0) + 1
    counts: dict[Slot, Count] = {}
    casts: dict[int, int] = {}
    for part in step.parts:
        target = part.writes[0]
        if isinstance(part.op, ops.Cast) and part.types[0].dtype != "bool":
            reader.store(part.reads[0], dims(part.arg_types[0]))
            casts[target] = part.reads[0]
        elif part.reads and part.reads[0] in casts:
            t = part.types[0]
            counts[target] = Count(casts[part.reads[0]], counted_axes(part), t.dtype or "int64", dims(t))
        else:
            reader.step(part, keep=target in step.writes or readers.get(target, 0) > 1)
    loops: dict[int, tuple[Rules, Kernel | None]] = {}
    for stage in reader.stages:
        if isinstance(stage, Loop):
            loops[id(stage)] = (read_rules(stage), bind_fixpoint(stage.step, unpack=False))
    return Reading(reader, counts, loops)


def _run(step: Step, reading: Reading, operands: Sequence[Any], boolean: Sequence[bool]) -> Any:
    reader, counts = reading.reader, reading.counts
    values: dict[Slot, Relation] = {}
    for slot, x, truth in zip(step.reads, operands, boolean, strict=True):
        if truth:
            values[slot] = x if isinstance(x, SparseTensor | BitTensor) else SparseTensor(np.asarray(x))
    for slot, array in reader.constants.items():
        values[slot] = SparseTensor(array)

    def find(slot: Slot) -> SparseTensor:
        found = values[slot]
        if isinstance(found, BitTensor):
            found = values[slot] = SparseTensor(found)
        return found

    joins = Joins(reader.sizes, find)
    for stage in reader.stages:
        if isinstance(stage, Union):
            values[stage.slot] = union([joins.answer(q, stage.shape) for q in stage.queries], stage.shape)
        else:
            rules, kernel = reading.loops[id(stage)]
            bits = None if kernel is None else _on_bits(stage, kernel, reader, joins, values)
            results = run_loop(stage, rules, joins, values, reader.shapes, bits)
            values.update(zip(stage.step.writes, results, strict=True))
    made = tuple(_counted(find(counts[s].slot), counts[s]) if s in counts else values[s] for s in step.writes)
    return made[0] if len(made) == 1 else made


def _on_bits(loop: Loop, kernel: Kernel, reader: Reader, joins: Joins, values: dict[Slot, Relation]) -> OnBits | None:
    """Return what runs a loop on packed bits, given its start; None where something it reads would have to be written out and is large."""
    described: list[tuple[Slot, Queries]] = []
    for slot in loop.captures:
        if slot not in values:
            queries = reader.queries(slot)
            if queries is None or math.prod(reader.shape_of(slot)) > MOST_CELLS:
                return None
            described.append((slot, queries))

    def packed(slot: Slot, written: dict[Slot, BitTensor]) -> BitTensor:
        found: Any = written.get(slot) or values[slot]
        return found if isinstance(found, BitTensor) else found.bits()

    def run(starts: Sequence[Relation]) -> list[Relation]:
        written = {slot: _written(queries, reader.shape_of(slot), joins).bits() for slot, queries in described}
        begun = [x if isinstance(x, BitTensor) else x.bits() for x in starts]
        return list(kernel(*begun, *(packed(slot, written) for slot in loop.captures)))

    return run


def _written(queries: Sequence[Query], shape: tuple[int, ...], joins: Joins) -> SparseTensor:
    return union([joins.answer(q, shape) for q in queries], shape)


def _counted(relation: SparseTensor, count: Count) -> Any:
    """Return how many tuples a relation has for each value of the axes that are left."""
    left = [a for a in range(relation.ndim) if a not in count.axes]
    if not left:
        return np.asarray(relation.count, count.dtype).reshape(count.shape)
    sizes = [relation.shape[a] for a in left]
    codes = tuples.encode([relation.columns[a] for a in left], sizes)
    return tuples.count_by(codes, math.prod(sizes)).astype(count.dtype, copy=False).reshape(count.shape)

