"""Steps of a plan as queries over relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir import ops
from ..ir import spec as specs
from ..ir.graph import Fixpoint
from ..ir.ops import Op
from ..ir.type_rules import reduced_axes
from ..ir.types import dims
from .build import ExecutionPlan, Step, lay_out
from .queries import COMPARISONS, OPPOSITE, Atom, Fixed, Number, Query, Term, Test, Value
from .query_ops import AND, OR
from .query_variables import ZERO, Variables

MOST_ATOMS = 12  # of a query that other queries are read into

Queries = tuple[Query, ...]  # a union
Slot = Any  # of a relation: a number of the plan, or a pair (loop, number) inside a body


class Loop(NamedTuple):
    """A fixpoint as rules: what each relation inside it, carries first, is derived by."""

    step: Step
    carries: tuple[Slot, ...]  # the relations that grow, which are the results
    starts: tuple[Slot, ...]  # where they begin
    rules: dict[Slot, Queries]  # also of relations that stand between
    fixed: dict[Slot, Queries]  # relations that are the same in every round, in order
    results: tuple[Slot, ...]
    copies: tuple[Query, ...]  # for each carry, the query that is its result as it is
    captures: tuple[Slot, ...]


class Union(NamedTuple):
    """A relation that is stored, and the queries that it is the union of."""

    slot: Slot
    shape: tuple[int, ...]
    queries: Queries


class Reader:
    """Reads steps in order; ``stages`` are the relations and loops to compute, in order, and ``shapes`` what is stored."""

    def __init__(self) -> None:
        self.variables = Variables()
        self.stages: list[Union | Loop] = []
        self.shapes: dict[Slot, tuple[int, ...]] = {}
        self.constants: dict[Slot, Any] = {}
        self._read: dict[Slot, Queries | Number] = {}
        self._shapes: dict[Slot, tuple[int, ...]] = {}  # of everything that was read
        self._loops = 0

    # what slots hold

    def given(self, slot: Slot, shape: Sequence[int]) -> None:
        """Say that a slot holds a relation that is there before anything is computed."""
        self.shapes[slot] = tuple(shape)

    def store(self, slot: Slot, shape: Sequence[int]) -> None:
        """Make what a slot holds a relation that is computed once, unless it is one."""
        if slot in self.shapes:
            return
        found = self._read[slot]
        assert not isinstance(found, Number)
        self.shapes[slot] = tuple(shape)
        self.stages.append(Union(slot, tuple(shape), found))

    def _single(self, slot: Slot, shape: Sequence[int]) -> Query:
        """Return what a slot holds as one query, over variables of its own."""
        found = self._read.get(slot)
        if slot not in self.shapes and not isinstance(found, Number | None) and len(found) == 1:
            query: Query = self.variables.renamed(found[0])
            return query
        self.store(slot, shape)
        terms = self.variables.terms(self.shapes[slot])
        return Query(terms, (Atom(slot, terms),))

    def _several(self, slot: Slot, shape: Sequence[int]) -> list[Query]:
        found = self._read.get(slot)
        if slot in self.shapes or found is None or isinstance(found, Number):
            return [self._single(slot, shape)]
        return [self.variables.renamed(q) for q in found]

    def queries(self, slot: Slot) -> Queries | None:
        """Return the queries that a slot holds, where it holds some and is not stored."""
        found = self._read.get(slot)
        return found if isinstance(found, tuple) and not isinstance(found, Number) else None

    def shape_of(self, slot: Slot) -> tuple[int, ...]:
        """Return the shape of what a slot holds."""
        return self._shapes[slot]

    def number(self, slot: Slot) -> Number | None:
        """Return what a slot holds as a function of its indices, over variables of its own; None where it is a relation."""
        found = self._read.get(slot)
        return self.variables.renamed(found) if isinstance(found, Number) else None

    # steps

    def step(self, step: Step, key: Any = lambda slot: slot, *, keep: bool = False, shared: bool = False) -> None:
        """Read a step; ``key`` gives the name of a slot; what must be kept is stored, and what is shared where it reads relations."""
        slots = [key(s) for s in step.reads]
        shapes = [dims(t) for t in step.arg_types]
        target, shape = key(step.writes[0]), dims(step.types[0])
        self._shapes[target] = shape
        if isinstance(step.op, Fixpoint):
            self._fixpoint(step, slots, shapes, [key(s) for s in step.writes])
            return
        if step.types[0].dtype != "bool":
            self._read[target] = self._numeric(step.op, slots, shapes, shape)
            return
        queries = self._boolean(step, slots, shapes, shape)
        found = tuple(q for q in queries if q is not None)
        self._read[target] = found
        if keep or any(len(q.atoms) > (0 if shared else MOST_ATOMS) for q in found):
            self.store(target, shape)

    def constant(self, slot: Slot, value: Any) -> None:
        """Read a constant or a Python scalar."""
        array = np.asarray(value)
        if array.dtype == bool and array.ndim == 0:
            self._read[slot] = (Query(()),) if array else ()
        elif array.dtype == bool:
            self.given(slot, array.shape)
            self.constants[slot] = array
        elif array.ndim == 0:
            self._read[slot] = Number((), Value("number", (array.item(),)))
        else:
            terms = self.variables.terms(array.shape)
            flat = Value("index", (terms[0],))
            for t, n in zip(terms[1:], array.shape[1:], strict=True):
                flat = Value("add", (Value("multiply", (flat, Value("number", (n,)))), Value("index", (t,))))
            self._read[slot] = Number(terms, Value("table", (array.reshape(-1), flat)))

    def _boolean(
        self, step: Step, slots: Sequence[Slot], shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> Sequence[Query | None]:
        op = step.op
        match op:
            case ops.Einsum():
                spec = specs.expand(specs.parse(op.spec), tuple(map(len, shapes)))
                parts = [self._single(s, n) for s, n in zip(slots, shapes, strict=True)]
                return [self.variables.joined(parts, spec.inputs, spec.output)]
            case ops.Elementwise(fn=fn) if fn in COMPARISONS and step.arg_types[0].dtype != "bool":
                return [self._comparison(fn, slots, shapes, shape)]
            case ops.Elementwise(fn=fn) if fn in OR:
                return [q for s, n in zip(slots, shapes, strict=True) for q in self._fitted(s, n, shape)]
            case ops.Elementwise(fn="logical_not"):
                return self._complement(slots[0], shapes[0])
            case ops.Elementwise(fn=fn) if fn in ("greater", "less"):
                yes, no = (0, 1) if fn == "greater" else (1, 0)
                [without] = self._complement(slots[no], shapes[no])
                with_ = self._single(slots[yes], shapes[yes])
                return [self.variables.both(with_, shapes[yes], without, shapes[no], shape)]
            case ops.Elementwise(fn=fn) if fn in AND:
                a, b = (self._single(s, n) for s, n in zip(slots, shapes, strict=True))
                return [self.variables.both(a, shapes[0], b, shapes[1], shape)]
            case ops.Elementwise() | ops.Cast() | ops.Same():
                return self._several(slots[0], shapes[0])
            case ops.Concat(axis=axis):
                return self._concatenated(axis % len(shape), slots, shapes, shape)
            case ops.Pad(widths=widths):
                return [
                    self.variables.shifted(q, [before for before, _ in widths], shapes[0], shape)
                    for q in self._several(slots[0], shapes[0])
                ]
            case ops.Reduce():
                axes = reduced_axes(op, len(shapes[0]))
                queries = self._several(slots[0], shapes[0])
                if op.keepdims:
                    return [
                        q._replace(terms=tuple(ZERO if a in axes else t for a, t in enumerate(q.terms)))
                        for q in queries
                    ]
                return [q._replace(terms=tuple(t for a, t in enumerate(q.terms) if a not in axes)) for q in queries]
            case _:
                return [self.variables.view(op, q, shapes[0], shape) for q in self._several(slots[0], shapes[0])]

    def _fitted(self, slot: Slot, shape: Sequence[int], target: Sequence[int]) -> list[Query | None]:
        """Return what a slot holds, repeated to a shape."""
        return [self.variables.aligned([q], [shape], target) for q in self._several(slot, shape)]

    def _comparison(
        self, fn: str, slots: Sequence[Slot], shapes: Sequence[tuple[int, ...]], shape: Sequence[int]
    ) -> Query | None:
        left, right = (self.number(s) for s in slots)
        assert left is not None and right is not None
        return self.variables.aligned([left, right], shapes, shape, Test(fn, left.value, right.value))

    def _complement(self, slot: Slot, shape: Sequence[int]) -> list[Query | None]:
        found = self._read.get(slot)
        if slot not in self.shapes and found is not None and not isinstance(found, Number):
            if not found:
                return [Query(self.variables.terms(shape))]
            if len(found) == 1:
                query: Query = self.variables.renamed(found[0])
                shown = [t for t in query.terms if not isinstance(t, Fixed)]
                if (
                    len(query.atoms) + len(query.tests) == 1
                    and len(set(shown)) == len(query.terms)
                    and (query.variables() == set(shown))
                ):
                    flipped = tuple(a._replace(negated=not a.negated) for a in query.atoms)
                    tests = tuple(t._replace(fn=OPPOSITE[t.fn]) for t in query.tests)
                    return [query._replace(atoms=flipped, tests=tests)]
                if not query.atoms and not query.tests and len(set(shown)) == len(query.terms):
                    return [None]
        self.store(slot, shape)
        terms = self.variables.terms(shape)
        return [Query(terms, (Atom(slot, terms, True),))]

    def _concatenated(
        self, axis: int, slots: Sequence[Slot], shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> list[Query | None]:
        found: list[Query | None] = []
        start = 0
        for s, n in zip(slots, shapes, strict=True):
            offsets = [start if a == axis else 0 for a in range(len(shape))]
            found += [self.variables.shifted(q, offsets, n, shape) for q in self._several(s, n)]
            start += n[axis]
        return found

    def _numeric(
        self, op: Op, slots: Sequence[Slot], shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> Number:
        match op:
            case ops.Iota():
                terms = self.variables.terms(shape)
                return Number(terms, Value("index", (terms[0],)))
            case ops.Elementwise(fn=fn):
                parts = [self.number(s) for s in slots]
                numbers = [p for p in parts if p is not None]
                terms_, equal = self.variables.broadcast(numbers, shapes, shape)
                names = {b: a for a, b in equal}  # terms that stand for the same axis have one name

                def rename(t: Term) -> Term:
                    return names.get(t, t)

                return Number(tuple(terms_), Value(fn, tuple(p.value.replaced(rename) for p in numbers)))
            case ops.Slice():
                found = self.number(slots[0])
                assert found is not None
                new = self.variables.terms(shape)
                moved = {}
                for t, u, (start, _, every) in zip(found.terms, new, op.ranges, strict=True):
                    if not isinstance(t, Fixed):
                        scaled = Value("multiply", (Value("index", (u,)), Value("number", (every,))))
                        moved[t] = Value("add", (scaled, Value("number", (int(start),))))
                return Number(new, substituted(found.value, moved))
            case _:
                found = self.number(slots[0])
                assert found is not None
                return Number(self.variables.viewed(op, found.terms, shapes[0], shape), found.value)

    # loops

    def _fixpoint(
        self, step: Step, slots: Sequence[Slot], shapes: Sequence[tuple[int, ...]], writes: Sequence[Slot]
    ) -> None:
        op = step.op
        assert isinstance(op, Fixpoint)
        self._loops += 1
        number = self._loops

        def key(slot: Slot) -> Slot:
            return (number, slot)

        plan: ExecutionPlan = lay_out(op.body)
        inputs = [key(slot) for _, slot, _ in plan.inputs]
        for n, (inner, outer, shape) in enumerate(zip(inputs, slots, shapes, strict=True)):
            if n < op.carries:
                self.store(outer, shape)
                self.given(inner, shape)
            elif (found := self._read.get(outer)) is not None and (outer not in self.shapes):
                self._read[inner] = found
            else:
                terms = self.variables.terms(shape)
                self._read[inner] = (Query(terms, (Atom(outer, terms),)),)
        for slot, op_ in plan.constants:
            self.constant(key(slot), op_.value if isinstance(op_, ops.Literal) else plan.graph.constants[op_.digest])  # type: ignore[attr-defined]
        outer_stages, self.stages = self.stages, []
        for inner_step in plan.steps:
            self.step(inner_step, key)
        results = []
        for _, slot, t in plan.outputs:
            self.store(key(slot), dims(t))
            results.append(key(slot))
        stages, self.stages = self.stages, outer_stages
        varying: set[Slot] = set(inputs[: op.carries])
        rules: dict[Slot, Queries] = {}
        fixed: dict[Slot, Queries] = {}
        for stage in stages:
            assert isinstance(stage, Union)
            moves = any(a.slot in varying for q in stage.queries for a in q.atoms)
            (rules if moves else fixed)[stage.slot] = stage.queries
            if moves:
                varying.add(stage.slot)
        copies = []
        for slot in results:
            terms = self.variables.terms(self.shapes[slot])
            copies.append(Query(terms, (Atom(slot, terms),)))
        self.stages.append(
            Loop(
                step,
                tuple(inputs[: op.carries]),
                tuple(slots[: op.carries]),
                rules,
                fixed,
                tuple(results),
                tuple(copies),
                tuple(slots[op.carries :]),
            )
        )
        for w, t in zip(writes, step.types, strict=True):
            self.given(w, dims(t))


def substituted(value: Value, by: dict[int, Value]) -> Value:
    """Return a value with variables replaced by values."""
    if value.op == "index":
        return by.get(value.args[0], value)
    return Value(value.op, tuple(substituted(a, by) if isinstance(a, Value) else a for a in value.args))
