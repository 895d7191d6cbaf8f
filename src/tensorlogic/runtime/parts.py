"""Steps that run other plans: ranges of an index, chains side by side, and stages.

A budget, threads, a batch, a stream and ranks cut a graph along an index in the same way (:mod:`tensorlogic.passes.split`); they differ only
in who runs a range and when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backends.base import Kernel
from ..backends.combine import COMBINE, combine_into
from ..backends.threads import on_one_thread, together
from ..events import Hook, RunRecord, entered, running
from ..ir.types import dims
from ..passes.split import Join
from ..plan.build import Step
from ..plan.fused_steps import Cut, Fused
from .call import run, watched
from .program import Program


class Parts:
    """A cut of an index as something to run: what a range is fed, and where its results go.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, y = b.input("x", (64, 8), "float32"), b.input("y", (64, 8), "float32")
    >>> distances = b.sum(b.square(x.reshape(64, 1, 8) - y), axis=2)
    >>> plan = tl.Executor().plan(b.build(nearest=b.min(distances, axis=1)), budget=50_000)
    >>> print(plan.name)
    axis 0 of 'x' (64) in 4 parts of 16
    """

    def __init__(self, cut: Cut) -> None:
        self.cut = cut

    def feed(self, operands: Sequence[Any], part: range) -> list[Any]:
        """Return what one range is given: operands, cut along the index where they have it."""
        return [range_of(operands[n], axis, part) for n, axis in self.cut.feeds]

    def places(self, totals: Sequence[Any], part: range) -> list[Any]:
        """Return where the results of one range go as they are made: parts of arrays that are there; None elsewhere."""
        return [
            range_of(total, join.axis, part) if total is not None and join.how == "concat" else None
            for total, join in zip(totals, self.cut.joins, strict=True)
        ]

    def join(self, totals: list[Any], results: Sequence[Any], part: range, places: Sequence[Any] = ()) -> None:
        """Put the results of one range where they belong: end to end, or combined with those of others.

        Those that were made in their ``places`` are there already.
        """
        for n, (join, value) in enumerate(zip(self.cut.joins, results, strict=True)):
            if places and places[n] is value:
                continue
            value = np.asarray(value)
            if join.how == "concat":
                if totals[n] is None:
                    totals[n] = np.empty(dims(join.type), value.dtype)
                range_of(totals[n], join.axis, part)[...] = value
            elif totals[n] is None:
                totals[n] = np.array(value)
            else:
                totals[n] = combine_into(join.how, totals[n], value)

    def whole(self, totals: Sequence[Any]) -> list[Any]:
        """Return the joined results, once every range is there."""
        return [_finished(join, total) for join, total in zip(self.cut.joins, totals, strict=True)]


def range_of(value: Any, axis: int | None, part: range) -> Any:
    """Return a range of an array along an axis; all of it where there is no axis."""
    return value if axis is None else value[(slice(None),) * axis + (slice(part.start, part.stop),)]


def _finished(join: Join, total: Any) -> Any:
    if join.how == "mean":
        total = np.divide(total, join.divisor, out=total)
    return total.astype(join.type.dtype, copy=False)


def bind_nested(step: Step, programs: Sequence[Program]) -> Kernel:
    """Return the kernel of a step that runs other programs."""
    assert isinstance(step.op, Fused)
    match step.op.kind:
        case "ranges":
            assert step.cut is not None
            by_size = {len(r): program for r, program in zip(_first_of_each(step.cut.ranges), programs, strict=True)}
            if step.cut.threads > 1:
                return on_one_thread(partial(_side_by_side, Parts(step.cut), by_size))
            kernel = partial(_one_by_one, Parts(step.cut), by_size)
            return on_one_thread(kernel) if step.threads else kernel
        case "chains":
            reads = [[step.reads.index(slot) for _, slot, _ in p.plan.inputs] for p in programs]
            return on_one_thread(partial(_chains, programs, reads, step.threads))
        case "stage":
            return partial(_stage, programs[0])
        case other:
            raise AssertionError(other)


def _first_of_each(ranges: Sequence[range]) -> list[range]:
    return list({len(r): r for r in reversed(ranges)}.values())[::-1]


def _single(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _run(program: Program, values: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
    hooks = running.hooks
    return watched(program, values, hooks, out, body=True) if hooks else run(program, values, out)


def _one_by_one(parts: Parts, by_size: dict[int, Program], *operands: Any, out: Any = None) -> Any:
    """Run ranges one after the other, holding one range's memory at a time."""
    joins = parts.cut.joins
    totals: list[Any] = [out] if len(joins) == 1 else list(out or [None] * len(joins))
    before: Program | None = None
    for part in parts.cut.ranges:
        program = by_size[len(part)]
        if before is not None and before is not program:
            before.release()
        before = program
        places = parts.places(totals, part)
        parts.join(totals, _run(program, parts.feed(operands, part), places), part, places)
    if before is not None:
        before.release()
    return _single(parts.whole(totals))


def _stage(program: Program, *operands: Any) -> Any:
    results = _run(program, operands)
    program.release()
    return _single(results)


def _side_by_side(parts: Parts, by_size: dict[int, Program], *operands: Any, out: Any = None) -> Any:
    """Run ranges on threads, each from its first step to its last; results stand where they belong as they are made."""
    joins, threads = parts.cut.joins, parts.cut.threads
    given = [out] if len(joins) == 1 else out or [None] * len(joins)
    results = [
        np.empty(dims(join.type), join.type.dtype) if array is None else array
        for join, array in zip(joins, given, strict=True)
    ]

    ranges = parts.cut.ranges
    partial_results: list[Sequence[Any]] = [()] * len(ranges)
    ends = [join.how == "concat" for join in joins]

    def share(numbers: Sequence[int]) -> None:
        for n in numbers:
            part = ranges[n]
            places = [r[part.start : part.stop] if end else None for r, end in zip(results, ends, strict=True)]
            values = _run(by_size[len(part)], parts.feed(operands, part), places)
            for place, value in zip(places, values, strict=True):
                if place is not None and value is not place:  # a step that does not write where it is told
                    place[...] = value
            partial_results[n] = values

    _together([partial(share, range(len(ranges))[k::threads]) for k in range(threads)], threads)
    for k, join in enumerate(joins):
        if join.how != "concat":
            results[k] = _combined(join, [values[k] for values in partial_results], results[k])
    return _single(results)


def _combined(join: Join, values: Sequence[Any], out: Any) -> Any:
    """Write into an array what ranges make together, always in their order."""
    if values[0].dtype != out.dtype:  # half floats, whose parts are wider
        total = np.array(values[0])
        for value in values[1:]:
            total = combine_into(join.how, total, value)
        out[...] = _finished(join, total)
        return out
    COMBINE[join.how](values[0], values[1], out=out)
    for value in values[2:]:
        combine_into(join.how, out, value)
    return np.divide(out, join.divisor, out=out) if join.how == "mean" else out


def _chains(programs: Sequence[Program], reads: Sequence[Sequence[int]], threads: int, *operands: Any) -> Any:
    """Run programs that do not wait for each other on threads, and return the results of all, in order."""
    results: list[Sequence[Any]] = [()] * len(programs)

    def chain(n: int) -> None:
        results[n] = _run(programs[n], [operands[i] for i in reads[n]])

    _together([partial(chain, n) for n in range(len(programs))], threads)
    return _single([value for values in results for value in values])


class RecordCollector(Hook):
    """Keeps the records of runs on another thread until they can be handed on."""

    def __init__(self) -> None:
        self.records: list[RunRecord] = []

    def on_run(self, record: RunRecord) -> None:
        """Keep a record."""
        self.records.append(record)


def _inside(active: Sequence[Any], call: Callable[[], None]) -> None:
    with entered(active):
        call()


def _together(calls: Sequence[Callable[[], None]], threads: int) -> None:
    """Run calls on threads; where somebody watches, what ran on each is told afterwards, in order, from this thread."""
    hooks, active = running.hooks, running.contexts
    if active:
        calls = [partial(_inside, active, call) for call in calls]
    if not hooks:
        return together(calls, threads)
    collected = [RecordCollector() for _ in calls]

    def noted(call: Callable[[], None], own: RecordCollector) -> None:
        around = running.hooks
        try:
            running.hooks = (own,)
            call()
        finally:
            running.hooks = around

    try:
        together([partial(noted, call, own) for call, own in zip(calls, collected, strict=True)], threads)
    finally:
        for record in (r for own in collected for r in own.records):
            for hook in hooks:
                hook.on_start(record.plan, (), body=True)
                hook.on_run(record)
    return None
