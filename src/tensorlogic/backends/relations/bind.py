"""The kernel of a step that runs on relations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...plan.build import Step
from ...plan.queries import Query
from ...plan.query_reader import Loop, Queries, Reader, Slot, Union
from ...plan.query_steps import Count, Reading, read_step
from .. import tuples
from ..base import Kernel
from ..bit_fixpoints import bind_fixpoint
from ..bits import BitTensor
from ..sparse import SparseTensor
from .closures import Relation
from .fixpoints import OnBits, run_loop
from .joins import Joins
from .rules import Rules, read_rules
from .tables import union
from .update import past_of, updated_union

# a relation that is only described, such as x < y, is written out for packed bits up to this many cells
MOST_CELLS = 1 << 26


class Bound(NamedTuple):
    """Steps read as queries, and for each loop its rules and what runs it on packed bits."""

    reading: Reading
    loops: dict[int, tuple[Rules, Kernel | None]]


def bind_relations(step: Step) -> Kernel:
    """Return the kernel of steps that run on relations: operands are arrays or relations, results relations or, for counts, arrays."""
    types = {s: t for part in step.parts for s, t in zip(part.reads, part.arg_types, strict=True)}
    numeric = [slot for slot in step.reads if types[slot].dtype != "bool"]
    ready: list[tuple[dict[int, Any], Bound]] = []  # numbers among the operands are constants of the plan

    def kernel(*operands: Any) -> Any:
        given = dict(zip(step.reads, operands, strict=True))
        if not ready or any(ready[0][0][slot] is not given[slot] for slot in numeric):
            numbers = {slot: given[slot] for slot in numeric}
            ready[:] = [(numbers, _bound(step, numbers))]
        return _run(step, ready[0][1], given)

    if not numeric:
        ready.append(({}, _bound(step, {})))
    return kernel


def _bound(step: Step, numbers: Mapping[int, Any]) -> Bound:
    reading = read_step(step, numbers)
    loops: dict[int, tuple[Rules, Kernel | None]] = {}
    for stage in reading.reader.stages:
        if isinstance(stage, Loop):
            loops[id(stage)] = (read_rules(stage), bind_fixpoint(stage.step, unpack=False, load=False))
    return Bound(reading, loops)


def _run(step: Step, bound: Bound, given: Mapping[int, Any]) -> Any:
    reader, counts = bound.reading
    values: dict[Slot, Relation] = {}
    for slot, x in given.items():
        if isinstance(x, SparseTensor | BitTensor):
            values[slot] = x
        elif np.asarray(x).dtype == bool:
            values[slot] = SparseTensor(np.asarray(x))
    for slot, array in reader.constants.items():
        values[slot] = SparseTensor(array)

    def find(slot: Slot) -> SparseTensor:
        found = values[slot]
        if isinstance(found, BitTensor):
            found = values[slot] = SparseTensor(found)
        return found

    joins = Joins(reader.variables.sizes, find)
    past = past_of(joins, given)
    for stage in reader.stages:
        if isinstance(stage, Union):
            found = None if past is None else updated_union(stage.queries, stage.slot, joins, past)
            if found is None:
                found = _written(stage.queries, stage.shape, joins)
            values[stage.slot] = found
            if past is not None:
                past.queries[stage.slot] = stage.queries, stage.shape
        else:
            rules, kernel = bound.loops[id(stage)]
            bits = None if kernel is None else _on_bits(stage, kernel, reader, joins, values)
            results = run_loop(stage, rules, joins, values, reader.shapes, bits, past)
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
        found: Any = written[slot] if slot in written else values[slot]
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
