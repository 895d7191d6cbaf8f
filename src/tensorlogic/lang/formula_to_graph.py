"""Formulas to tensors: quantified conjunctions become contractions, without axes that are not needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from ..diagnostics import count_text
from ..errors import OutOfMemoryError, ShapeError, TensorLogicError
from ..ir.builder import GraphBuilder
from ..ir.spec import write
from ..ir.tensor import Tensor
from .context import CompilerContext, DomainTable, warn
from .expr import ARITHMETIC, COMPARISONS, FUNCTIONS, Term, TLExpr
from .formula import Formula, Formulas, Steps, Variable, once, run_steps
from .strategies import Along, QuantifierContraction, Strategy

MAX_DISTRIBUTED = 64  # conjunctions that one disjunction may be multiplied out into
MAX_ELEMENTS = 2**40  # of an answer
SHOWN = 8  # of its variables, in an error


class Value(NamedTuple):
    """A tensor with one axis for each of some variables."""

    tensor: Tensor
    axes: tuple[Variable, ...]


class Emitter:
    """Adds formulas to a graph: the builder, the logic, and what has been made so far."""

    def __init__(self, context: CompilerContext, strategy: Strategy) -> None:
        self.context, self.s = context, strategy
        self.b = GraphBuilder()
        self.domains = DomainTable(context)
        self.formulas = Formulas(self.domains, warn)
        self.values: dict[int, Value] = {}
        self.sources: dict[str, Tensor] = {}  # the predicates by name: inputs, graphs and heads
        self._order: dict[Variable, int] = {}  # of the answer's axes

    def answer(self, formula: Formula, order: list[Variable], expr: TLExpr) -> Tensor:
        """Return the truth of a formula, read from an expression, with an axis for each of some variables."""
        whole = self.prepared(formula, order, expr)
        self._order = {v: n for n, v in enumerate(order)}
        value = self.value(whole)
        tensor = self._aligned(value, order)
        sizes = [self.size(v) for v in order]
        if list(tensor.shape or ()) != sizes:
            tensor = self.b.broadcast_to(tensor, sizes)
        numeric = formula.kind in (*ARITHMETIC, *FUNCTIONS, "constant", "if")
        if self.s.boolean and not numeric and tensor.dtype != "bool":
            tensor = self.b.cast(tensor, "bool")
        return tensor

    def prepared(self, formula: Formula, order: Sequence[Variable], expr: TLExpr) -> Formula:
        """Return a formula in normal form, with the domains of its variables found; refuse an answer that is too large."""
        self._fix_domains(formula, order)
        self._refuse_huge(order, expr)
        return self.formulas.normal(formula, self.s)

    def value(self, formula: Formula) -> Value:
        """Return the tensor of a formula in normal form; each formula is made once."""
        found: Value = run_steps(self._tensor_of(formula))
        return found

    def _fix_domains(self, formula: Formula, order: Sequence[Variable]) -> None:
        self.domains.settle()
        seen: set[Formula] = set()
        pending = [formula]
        places = [(v, formula.location) for v in order]
        while pending:
            f = pending.pop()
            if f not in seen:
                seen.add(f)
                places += [(v, f.location) for v in f.over if isinstance(v, Variable)]
                pending.extend(f.args)
        for v, location in places:
            v.domain = v.domain or self.domains.find(v, f"variable {v.name!r}", location)

    def size(self, v: Variable) -> int:
        """Return the number of values of a variable."""
        return self.context.size(v.domain)

    def _refuse_huge(self, order: Sequence[Variable], expr: TLExpr) -> None:
        elements = math.prod(self.size(v) for v in order)
        if elements > MAX_ELEMENTS:
            over = " × ".join(f"{v.name}={self.size(v):,}" for v in order[:SHOWN])
            over += f" and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
            many = count_text(elements)
            message = f"the answer would have {many} elements, one for every {over}; {MAX_ELEMENTS:,} are possible"
            hint = "quantify the variables that the answer does not need"
            raise OutOfMemoryError(message, hint, code="E003").at(expr.location)

    # formulas

    def _tensor_of(self, f: Formula) -> Steps:
        return once(self.values, id(f), self._build(f))

    def _tensors_of(self, formulas: Sequence[Formula]) -> Steps:
        values = []
        for f in formulas:
            values.append((yield self._tensor_of(f)))
        return values

    def _build(self, f: Formula) -> Steps:
        match f.kind:
            case "pred":
                return self._predicate(f)
            case "constant":
                return Value(self.b.literal(f.value if self.s.boolean else float(f.value)), ())
            case "equation":
                return self._equation(f)
            case "not":
                inner = yield self._tensor_of(f.args[0])
                return Value(self.s.not_(self.b, inner.tensor), inner.axes)
            case "imply":
                a, b = yield self._tensors_of(f.args)
                assert self.s.imply is not None
                return self._combined(self.s.imply, a, b)
        how = {"and": self._connective, "or": self._connective, "exists": self._exists, "forall": self._forall}
        return (yield self._choice(f) if f.kind == "if" else how.get(f.kind, self._arithmetic)(f))

    def _connective(self, f: Formula) -> Steps:
        parts = yield self._tensors_of(f.args)
        parts.sort(key=lambda v: len(v.axes))  # narrow ones first, so that wide results are made once
        return reduce(partial(self._combined, self.s.and_ if f.kind == "and" else self.s.or_), parts)

    def _combined(self, op: Any, a: Value, b: Value) -> Value:
        axes = (*a.axes, *(v for v in b.axes if v not in a.axes))
        return Value(op(self.b, self._aligned(a, axes), self._aligned(b, axes)), axes)

    def _aligned(self, value: Value, axes: Sequence[Variable]) -> Tensor:
        """Lay a tensor's axes out in a given order, size 1 for those it lacks."""
        tensor = value.tensor
        if value.axes == tuple(axes):
            return tensor
        own = [v for v in axes if v in value.axes]
        if own != list(value.axes):
            tensor = self.b.transpose(tensor, [value.axes.index(v) for v in own])
        if not own or len(own) == len(axes):
            return tensor  # a scalar fits everything
        return self.b.reshape(tensor, [self.size(v) if v in value.axes else 1 for v in axes])

    def _numbers(self, value: Value) -> Value:
        """Make truth values that may be bool into numbers; a pass drops this where they are floats already."""
        return Value(self.b.multiply(value.tensor, 1.0), value.axes)

    def _truth(self, value: Value) -> Value:
        return value if self.s.boolean else self._numbers(value)

    # leaves

    def _predicate(self, f: Formula) -> Value:
        signature = [self._place_domain(f, i, place) for i, place in enumerate(f.over)]
        shape = [self.context.size(d) for d in signature]
        try:
            tensor, axes = self._indexed(self._source(f.name, shape), f, signature)
        except TensorLogicError as error:
            raise error.at(f.location) from None
        return self._truth(Value(tensor, axes))

    def _place_domain(self, f: Formula, i: int, place: Any) -> str:
        if isinstance(place, Variable):
            return place.domain
        return self.domains.find((f.name, i), f"place {i + 1} of {f.name}, where {place!r} stands", f.location)

    def _source(self, name: str, shape: list[int]) -> Tensor:
        if name in self.sources:
            return self.sources[name]
        if name not in self.context.graphs:
            tensor = self.sources[name] = self.b.input(name, shape)
            return tensor
        (tensor,) = self.b.inline(self.context.graphs[name]).values()
        sizes = tensor.shape if tensor.shape is not None else shape
        if len(sizes) != len(shape) or any(isinstance(d, int) and d != n for d, n in zip(sizes, shape, strict=True)):
            message = f"the graph of predicate {name!r} has output {tensor.shape}, but its domains make it {shape}"
            raise ShapeError(message, code="E614")
        self.sources[name] = tensor
        return tensor

    def _indexed(self, tensor: Tensor, f: Formula, signature: list[str]) -> tuple[Tensor, tuple[Variable, ...]]:
        """Take slices for constants and diagonals for repeated variables."""
        key = tuple(
            slice(None) if isinstance(p, Variable) else self.context.index(d, p.name)
            for p, d in zip(f.over, signature, strict=True)
        )
        if any(isinstance(k, int) for k in key):
            tensor = tensor[key]
        places = [p for p in f.over if isinstance(p, Variable)]
        axes = tuple(dict.fromkeys(places))
        if len(axes) < len(places):
            tensor = self.b.einsum(write([places], axes), tensor)
        return tensor, axes

    def _equation(self, f: Formula) -> Value:
        """Return the truth of variable = constant, or of variable = variable."""
        variable, other = f.over
        axes: tuple[Variable, ...] = (variable,)
        positions = self.b.iota(self.size(variable))
        try:
            if isinstance(other, Term):
                truth = self.b.equal(positions, self.context.index(variable.domain, other.name))
            elif other is variable:
                truth = self.b.equal(positions, positions)
            else:
                column = self.b.reshape(positions, (self.size(variable), 1))
                truth, axes = self.b.equal(column, self.b.iota(self.size(other))), (variable, other)
        except TensorLogicError as error:
            raise error.at(f.location) from None
        return self._truth(Value(truth, axes))

    # values

    def _arithmetic(self, f: Formula) -> Steps:
        parts = yield self._tensors_of(f.args)
        if f.kind not in COMPARISONS:
            parts = [self._numbers(value) for value in parts]
        if f.kind in FUNCTIONS:
            return Value(getattr(self.b, f.kind)(parts[0].tensor), parts[0].axes)
        assert f.kind in ARITHMETIC + COMPARISONS, f.kind
        result = self._arithmetic_of(f.kind, parts[0], parts[1])
        return result if f.kind in ARITHMETIC else self._truth(result)

    def _arithmetic_of(self, kind: str, a: Value, b: Value) -> Value:
        return self._combined(getattr(GraphBuilder, kind), a, b)

    def _choice(self, f: Formula) -> Steps:
        condition, then, otherwise = yield self._tensors_of(f.args)
        if self.s.boolean:
            axes = tuple(dict.fromkeys((*condition.axes, *then.axes, *otherwise.axes)))
            parts = [self._aligned(v, axes) for v in (condition, then, otherwise)]
            return Value(self.b.where(*parts), axes)
        other = Value(self.s.not_(self.b, condition.tensor), condition.axes)
        one, two = (self._arithmetic_of("multiply", *pair) for pair in ((condition, then), (other, otherwise)))
        return self._arithmetic_of("add", one, two)

    # quantifiers

    def _exists(self, f: Formula) -> Steps:
        body, over = f.args[0], f.over
        if self.s.exists is not None:
            value = yield self._tensor_of(body)
            return self._reduced(self.s.exists, value, over)
        if body.kind == "or":
            moved = self._split(f, "exists", body)
            if moved is not None:
                return (yield self._tensor_of(moved))
            if self.s.exists_or is not None:
                return (yield self._contract_parts(self.s.exists_or, body, over))
        factors, bound = self._factors(body, list(over))
        spread = self._distributed(factors, bound)
        if spread is not None:
            return (yield self._tensor_of(spread))
        values = yield self._tensors_of(factors)
        return self._contracted(values, bound, self.s.join)

    def _factors(self, body: Formula, bound: list[Variable]) -> tuple[list[Formula], list[Variable]]:
        """Flatten a conjunction, and inner ∃ where that keeps the meaning, into the factors of one contraction."""
        factors: list[Formula] = []
        pending = [body]
        while pending:
            f = pending.pop()
            if f.kind == "and" and not self.formulas.shared(f):
                pending.extend(reversed(f.args))
            elif f.kind == "exists" and self.s.merges and not set(f.over) & set(bound) and not self.formulas.shared(f):
                bound += f.over
                pending.append(f.args[0])
            else:
                factors.append(f)
        return factors, bound

    def _distributed(self, factors: list[Formula], bound: list[Variable]) -> Formula | None:
        """Multiply a conjunction over a wide disjunction out, where the logic is a lattice and the pieces are narrower."""
        if not self.s.lattice:
            return None
        wide = [f for f in factors if f.kind == "or" and len(f.free) > max(len(a.free) for a in f.args)]
        if math.prod(len(f.args) for f in wide) > MAX_DISTRIBUTED:
            return None
        for n, f in enumerate(factors):
            if f in wide and f.free & set(bound):
                rest = factors[:n] + factors[n + 1 :]
                make = self.formulas.make
                pieces = []
                for a in f.args:
                    both = make("and", (*rest, a), location=f.location) if rest else a
                    own = tuple(v for v in bound if v in both.free)
                    if len(own) < len(bound) and any(self.size(v) == 0 for v in bound):
                        return None
                    pieces.append(make("exists", (both,), over=own, location=f.location) if own else both)
                return make("or", tuple(pieces), location=f.location)
        return None

    def _split(self, f: Formula, kind: str, body: Formula) -> Formula | None:
        """Move a quantifier into ∃ over ∨, or ∀ over ∧, where that keeps the meaning; None where it does not."""
        over, make = f.over, self.formulas.make
        if any(self.size(v) == 0 for v in over):
            return None
        inside = [tuple(v for v in over if v in a.free) for a in body.args]
        whole = all(len(own) == len(over) for own in inside)
        if self.s.splits and (whole or self.s.frees):
            parts = [
                make(kind, (a,), over=own, location=f.location) if own else a
                for a, own in zip(body.args, inside, strict=True)
            ]
            return make(body.kind, tuple(parts), location=f.location)
        if self.s.frees and not all(inside):
            remaining = tuple(a for a, own in zip(body.args, inside, strict=True) if own)
            outside = [a for a, own in zip(body.args, inside, strict=True) if not own]
            rest = remaining[0] if len(remaining) == 1 else make(body.kind, remaining, location=f.location)
            return make(body.kind, (*outside, make(kind, (rest,), over=over, location=f.location)), location=f.location)
        return None

    def _contracted(self, values: list[Value], bound: Sequence[Variable], algebra: str, *, after: bool = True) -> Value:
        axes = tuple(dict.fromkeys(v for value in values for v in value.axes))
        remaining = tuple(v for v in axes if v not in bound)
        if all(v in self._order for v in remaining):
            remaining = tuple(sorted(remaining, key=self._order.__getitem__))
        spec = write([value.axes for value in values], remaining)
        result = self.b.einsum(spec, *(v.tensor for v in values), algebra=algebra)
        return Value(self._after(result) if after else result, remaining)

    def _after(self, tensor: Tensor) -> Tensor:
        return tensor if self.s.after is None else self.s.after(self.b, tensor)

    def _forall(self, f: Formula) -> Steps:
        body, over = f.args[0], f.over
        if body.kind == "imply" and self.s.residuum is not None:
            return self._contracted((yield self._tensors_of(body.args)), over, self.s.residuum)
        if body.kind == "and" and self.s.de_morgan:
            moved = self._split(f, "forall", body)
            if moved is not None:
                return (yield self._tensor_of(moved))
        if body.kind == "and" and self.s.forall_and is not None:
            return (yield self._contract_parts(self.s.forall_and, body, over))
        if body.kind == "or" and self.s.meet is not None:
            return self._contracted((yield self._tensors_of(body.args)), over, self.s.meet)
        if body.kind == "or" and self.s.de_morgan:
            make = self.formulas.make
            against = self.formulas.normal(make("not", (body,), location=f.location), self.s)
            inner = yield self._tensor_of(make("exists", (against,), over=over, location=f.location))
            return Value(self.s.not_(self.b, inner.tensor), inner.axes)
        value = yield self._tensor_of(body)
        return self._reduced(self.s.forall, value, over)

    def _reduced(self, along: Along, value: Value, over: Sequence[Variable]) -> Value:
        remaining = tuple(v for v in value.axes if v not in over)
        positions = [n for n, v in enumerate(value.axes) if v in over]
        return Value(self._after(along(self.b, value.tensor, positions)), remaining)

    def _contract_parts(self, row: QuantifierContraction, body: Formula, over: Sequence[Variable]) -> Steps:
        """Contract the parts of ∃ over ∨, or ∀ over ∧, in the algebra that the logic has for it."""
        values = yield self._tensors_of(body.args)
        if row.prepare is not None:
            values = [Value(row.prepare(self.b, value.tensor), value.axes) for value in values]
        found = self._contracted(values, over, row.algebra, after=False)
        count = math.prod(self.size(v) for v in over)
        return Value(self._after(row.finish(self.b, found.tensor, count, len(values))), found.axes)
