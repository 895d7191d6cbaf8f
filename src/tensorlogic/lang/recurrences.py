"""Tensors that depend on themselves: where an index steps, a scan in its order; otherwise rounds until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from . import syntax as s
from .affine import Affine
from .analysis import Analysis, Component
from .equations import Lookup, Values, contributions, data_of, located, reader, reads_of, targets, truth
from .evaluate import NOTHING, Evaluation, Indices, places_of, reads_last
from .fixpoints import cast, lower_fixpoint, split
from .heads import FILL, Contribution, contribution, merge, settled, zero
from .indexing import Value
from .recurrence_steps import Step, StepEquation, find_step


def lower_recursion(component: Component, analysis: Analysis, b: GraphBuilder, values: Values) -> None:
    """Add a recursive component to a graph."""
    step = find_step(component.names, component.statements, analysis.scalars)
    at = component.statements[0].at
    with located(b, None if at is None else msgspec.structs.replace(at, rule=", ".join(component.names))):
        if step is None:
            lower_fixpoint(component, analysis, b, values)
        else:
            _Rounds(component, step, analysis, b, values).lower()


class _Hoisted(NamedTuple):
    """A part of an equation that does not depend on earlier rounds: computed before them, for all of them at once."""

    value: Value  # by the other indices
    scanned: bool  # the round is the first axis


class _StepEvaluation(Evaluation):
    """Evaluates an equation in one round: what does not read the recurrence is computed before."""

    def __init__(self, rounds: _Rounds, row: StepEquation, slices: Mapping[tuple[str, int], Tensor]) -> None:
        super().__init__(rounds.analysis, rounds.b, row.equation, rounds.lookup)
        self.rounds, self.row, self.slices = rounds, row, slices
        self.lags = {
            id(tensor): read.lag for tensor, read in zip(reads_of(row.equation, rounds.names), row.reads, strict=True)
        }
        self.head = tuple(v for v in self.head if v != row.variable)
        self.outside = Evaluation(rounds.analysis, rounds.b, row.equation, rounds.lookup)

    def value(self, part: s.Expression, outer: Indices, sums: Indices = NOTHING) -> Value:
        """Evaluate an expression of a round."""
        if isinstance(part, s.Number | s.ListLiteral | s.Text) or s.reads(part, self.rounds.names):
            return super().value(part, outer, sums)
        return self.rounds.hoist(self, part, outer, sums)

    def tensor(self, part: s.Tensor) -> Value:
        """Read a tensor of the recurrence as an earlier round left it."""
        if id(part) not in self.lags:
            return super().tensor(part)
        at = self.rounds.step.places[part.name]
        places = places_of(self.analysis, part)
        return self.read(part, self.slices[part.name, self.lags[id(part)]], places[:at] + places[at + 1 :])


class _Rounds:
    """A recurrence along an index, as a scan."""

    def __init__(self, component: Component, step: Step, analysis: Analysis, b: GraphBuilder, values: Values) -> None:
        self.component, self.step, self.analysis, self.b, self.values = component, step, analysis, b, values
        self.names = set(component.names)
        self.lookup: Lookup = reader(analysis, b, values)
        self.hoisted: list[_Hoisted] = []
        self.round_values: list[Value] | None = None  # of the hoisted parts in one round, in order
        active = [self._active(row) for row in step.equations]
        self.active = active
        spans = [a for a in active if a[0] < a[1]]
        self.first = min((a for a, _ in spans), default=0)
        self.last = max((z for _, z in spans), default=0)
        self.lags = {
            name: max([r.lag for e in step.equations for r in e.reads if r.tensor == name], default=0)
            for name in self.names
        }
        self.read_whole: set[str] = set()  # tensors with a virtual index of which not only the last position is read
        for name in self.names:
            if analysis.tensors[name].virtual == step.places[name]:
                self.lags[name] = max(self.lags[name], 1)
                edge = self.first if step.backward else self.last - 1
                extent = analysis.shape(name)[step.places[name]]
                analysis.kept[name] = min(max(edge + step.offsets[name], 0), extent - 1)
                for statement in analysis.statements:
                    if statement not in component.statements and isinstance(statement, s.Rule | s.Equation):
                        reads = reads_of(statement, {name})
                        if not all(reads_last(analysis, statement, part) for part in reads):
                            self.read_whole.add(name)

    def _active(self, row: StepEquation) -> tuple[int, int]:
        """Return the rounds, from and to, in which an equation computes something."""
        if row.variable is None:
            assert row.position is not None
            at = row.position - self.step.offsets[row.equation.head.name]
            return at, at + 1
        ranges, _ = self.analysis.ranges(row.equation)
        start, stop = ranges[row.variable]
        return start - row.shift, stop - row.shift

    def hoist(self, at: _StepEvaluation, part: s.Expression, outer: Indices, sums: Indices) -> Value:
        """Compute a part before the rounds; in the body, return the part of this round."""
        if self.round_values is not None:
            return self.round_values.pop(0)
        variable = at.row.variable
        round_index = frozenset() if variable is None else frozenset({variable})
        value = at.outside.value(part, outer | round_index, sums - round_index)
        if at.outside.masks:
            message = "an index sum that leaves its axis cannot stand in a recurrence"
            raise at.fail(message, "write the part in an equation of its own", part=part, code="E694")
        if variable is None or variable not in value.axes:
            self.hoisted.append(_Hoisted(value, False))
            return value
        start, stop = self.active[self.step.equations.index(at.row)]
        axis = value.axes.index(variable)
        rest = tuple(a for a in value.axes if a != variable)
        tensor = value.tensor
        if axis:
            tensor = self.b.transpose(tensor, [axis, *(n for n in range(len(value.axes)) if n != axis)])
        widths = (start - self.first, self.last - stop)
        if widths != (0, 0):
            tensor = self.b.pad(tensor, [widths, *[(0, 0)] * len(rest)], False if value.boolean else 0)
        self.hoisted.append(_Hoisted(Value(tensor, rest), True))
        return Value(self.b.index(tensor, 0), rest) if self.last > self.first else Value(0)

    def slice_shape(self, name: str) -> list[int]:
        """Return the shape of one position of a tensor."""
        shape = list(self.analysis.shape(name))
        del shape[self.step.places[name]]
        return shape

    def base(self) -> dict[str, Contribution | None]:
        """Return what is said of each tensor without the recurrence: base cases and data, with the step as the first axis."""
        _, outside = split(self.component)
        result: dict[str, Contribution | None] = {}
        for name in self.component.names:
            info = self.analysis.tensors[name]
            parts = contributions(name, outside, self.analysis, self.b, self.lookup)
            parts += data_of(name, self.analysis, self.b, self.values)
            if not parts:
                result[name] = None
                continue
            merged = merge(self.b, parts, info)
            at = self.step.places[name]
            order = [at, *(n for n in range(info.arity) if n != at)]
            tensor = self.b.transpose(merged.tensor, order) if at else merged.tensor
            result[name] = Contribution(cast(self.b, tensor, self.dtype(name)), merged.complete)
        return result

    def dtype(self, name: str) -> str:
        """Return the dtype that a tensor has in all rounds."""
        return "bool" if self.analysis.tensors[name].boolean else self.analysis.dtype

    def constant(self, name: str, number: float, shape: Sequence[int]) -> Tensor:
        """Return a tensor of one number."""
        return self.b.broadcast_to(self.b.constant(np.asarray(number, self.dtype(name))), list(shape))

    def positions(self, name: str, base: Contribution | None, start: int, count: int, fill: float) -> Tensor:
        """Return a range of positions of what is said without the recurrence; beyond the axis there is nothing."""
        extent = self.analysis.shape(name)[self.step.places[name]]
        low, high = min(max(start, 0), extent), min(max(start + count, 0), extent)
        shape = self.slice_shape(name)
        if base is None or low >= high:
            return self.constant(name, fill, [count, *shape])
        tensor = base.tensor if (low, high) == (0, extent) else self.b.index(base.tensor, slice(low, high))
        widths = (low - start, start + count - high)
        return tensor if widths == (0, 0) else self.b.pad(tensor, [widths, *[(0, 0)] * len(shape)], fill)

    def fill(self, name: str) -> float:
        """Return what takes part in no combination of a tensor's equations."""
        info = self.analysis.tensors[name]
        return 0 if info.boolean else FILL.get(info.operator, 0)

    def none(self, name: str) -> float:
        """Return what an element is that nobody derives."""
        return zero(self.analysis.tensors[name], self.component.statements)

    def round(
        self, slices: dict[tuple[str, int], Tensor], active: Sequence[Tensor | None], bases: Mapping[str, Contribution]
    ) -> dict[str, Tensor]:
        """Compute one position of every tensor."""
        b = self.b
        for name in self.step.order:
            info = self.analysis.tensors[name]
            parts = []
            for n, row in enumerate(self.step.equations):
                if row.equation.head.name != name:
                    continue
                with located(b, row.equation.at):
                    at = _StepEvaluation(self, row, slices)
                    places = targets(self.analysis, row.equation)
                    del places[self.step.places[name]]
                    found = contribution(at, row.equation.operator, places, info.operator)
                    found = truth(b, found) if info.boolean else found
                    mask = active[n]
                    if mask is not None:
                        fill = False if info.boolean else float(self.fill(name))
                        found = Contribution(b.where(mask, found.tensor, fill), False)
                    parts.append(found)
            if name in bases:
                parts.append(bases[name])
            value = settled(b, merge(b, parts, info), info, self.none(name))
            slices[name, 0] = cast(b, value, self.dtype(name))
        return {name: slices[name, 0] for name in self.component.names}

    def lower(self) -> None:
        """Add the scan, and put the tensors together from base cases and rounds."""
        b, step = self.b, self.step
        base = self.base()
        names = self.component.names
        length = self.last - self.first
        if length <= 0:
            for name in names:
                self.finish(name, base[name], None, None)
            return
        masks: list[Any] = []
        for start, stop in self.active:
            inside = [start <= r < stop for r in range(self.first, self.last)]
            masks.append(None if all(inside) else b.constant(np.array(inside)))
        per_round = {
            name: self.positions(name, base[name], self.first + step.offsets[name], length, self.fill(name))
            for name in names
            if base[name] is not None and self.overlaps(name)
        }
        # once outside, to find what can be computed before the rounds
        slices = {(n, lag): self.constant(n, 0, self.slice_shape(n)) for n in names for lag in range(self.lags[n] + 1)}
        complete = {n: said is not None and said.complete for n, said in base.items()}
        trial = {n: Contribution(b.index(t, 0), complete[n]) for n, t in per_round.items()}
        self.round(dict(slices), [None if m is None else b.index(m, 0) for m in masks], trial)
        hoisted = self.hoisted
        scanned = [h.value.tensor for h in hoisted if h.scanned]
        xs = [*scanned, *(m for m in masks if m is not None), *per_round.values()]
        carried = [(name, lag) for name in names for lag in range(1, self.lags[name] + 1)]
        init = [self.start(name, lag, base[name]) for name, lag in carried]

        def body(carries: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            left = iter(rows)
            self.round_values = [Value(next(left), h.value.axes) if h.scanned else h.value for h in hoisted]
            active = [None if m is None else next(left) for m in masks]
            bases = {name: Contribution(next(left), complete[name]) for name in per_round}
            before = dict(zip(carried, carries, strict=True))
            now = self.round(dict(before), active, bases)
            after = [now[name] if lag == 1 else before[name, lag - 1] for name, lag in carried]
            return after, [now[name] for name in stacked]

        stacked = [n for n in names if self.analysis.tensors[n].virtual != step.places[n] or n in self.read_whole]
        last, history = b.scan(body, init, xs, length=length, reverse=step.backward)
        final = dict(zip(carried, last, strict=True))
        rows = dict(zip(stacked, history, strict=True))
        for name in names:
            self.finish(name, base[name], rows.get(name), final.get((name, 1)))

    def overlaps(self, name: str) -> bool:
        """Tell whether something besides the recurrence says something of the positions that rounds compute."""
        _, outside = split(self.component)
        first, last = self.first + self.step.offsets[name], self.last + self.step.offsets[name]
        info = self.analysis.tensors[name]
        if info.given or info.facts:
            return True
        for statement in outside:
            if statement.head.name == name:
                if not statement.head.places:
                    return True
                index = targets(self.analysis, self.analysis.as_equation(statement))[self.step.places[name]].form
                if isinstance(index, Affine) or first <= index < last:
                    return True
        return False

    def start(self, name: str, lag: int, base: Contribution | None) -> Tensor:
        """Return what the first round finds at positions before it."""
        first = self.last - 1 + lag if self.step.backward else self.first - lag
        at = first + self.step.offsets[name]
        found = self.b.index(self.positions(name, base, at, 1, self.fill(name)), 0)
        return settled(self.b, Contribution(found, False), self.analysis.tensors[name], self.none(name))

    def finish(self, name: str, base: Contribution | None, rows: Tensor | None, last: Tensor | None) -> None:
        """Put a tensor together from its base cases and the rounds."""
        b, info = self.b, self.analysis.tensors[name]
        place = self.step.places[name]
        extent = self.analysis.shape(name)[place]
        whole: Tensor
        if rows is None:
            whole = self.positions(name, base, 0, extent, self.fill(name))
            whole = settled(b, Contribution(whole, base is not None and base.complete), info, self.none(name))
        else:
            first = self.first + self.step.offsets[name]
            low, high = max(first, 0), min(first + self.last - self.first, extent)
            every = (low, high) == (first, first + self.last - self.first)
            inner = rows if every else b.index(rows, slice(low - first, high - first))
            pieces = []
            for start, stop in ((0, low), (high, extent)):
                if start < stop:
                    piece = Contribution(self.positions(name, base, start, stop - start, self.fill(name)), False)
                    pieces.append(settled(b, piece, info, self.none(name)))
                if start == 0:
                    pieces.append(inner)
            whole = pieces[0] if len(pieces) == 1 else b.concat(pieces, 0)
        if place:
            order = [*range(1, place + 1), 0, *range(place + 1, info.arity)]
            whole = b.transpose(whole, order)
        if info.virtual == place:
            key = (*[slice(None)] * place, self.analysis.kept[name])
            self.values[name] = b.index(whole, key) if last is None else last
        if info.virtual != place or name in self.read_whole:
            self.values[name if info.virtual != place else f"{name}*"] = whole
