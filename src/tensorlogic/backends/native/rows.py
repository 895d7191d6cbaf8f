"""Row-wise groups as source: one loop over the places of the frame, and for each as many loops over the row as reductions need.

The text depends on dtypes and on which operands are broadcast along which axes, not on sizes nor on literals, so that one kernel
serves every size and every literal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...ir import ops
from ...ir.elementwise import FUNCTIONS as ROWS
from ...ir.types import dims
from ...plan.build import Step
from ...plan.fused_steps import Fused
from ...plan.row_groups import RowLayout, present_axes, row_layout
from .facts import Dtype, cast, expression, literal_bits, supported

LONG = 4096  # elements of a row from which a sum of float32 is added up in float64
Sizes = tuple[int, ...]


class Source(NamedTuple):
    """The text of a kernel and the numbers it is called with: ``kernel(*operands, *results, literals, *sizes, lo, hi)``.

    Where there are no literals, it does not take them; nor results that are written over an operand (``Step.over``): no two arrays overlap
    that a kernel is given, so that its loops are vectorised.
    """

    text: str
    literals: tuple[int, ...]  # their bits
    sizes: Sizes  # the length of a row, then the outer axes but for the first
    places: int  # lo and hi range over these


class _Access(NamedTuple):
    """How an array is gone through: along which outer axes it extends, and whether along the row."""

    outer: tuple[bool, ...]
    inner: bool


def row_source(step: Step) -> Source | None:
    """Return the source of a fused step, or None where it cannot be written.

    >>> import tensorlogic as tl
    >>> from tensorlogic.plan.build import lay_out
    >>> from tensorlogic.plan.fused_steps import Fusable
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", (100, 8), "float32")
    >>> graph = b.build(y=b.relu(x + b.input("c", (8,), "float32")) * 2)
    >>> print(row_source(lay_out(graph, groups=lambda _: [Fusable((2, 3, 5), "chain")]).steps[0]).text)
    relu = FUNCTIONS["relu"]
    def kernel(a0, a1, o0, c, m, lo, hi):
        a0, a1, o0 = a0.reshape(-1), a1.reshape(-1), o0.reshape(-1)
        f = c.view(np.float64)
        c0 = np.float32(f[0])
        x1 = a1[:m]
        for i in range(lo, hi):
            x0 = a0[i * m:i * m + m]
            y0 = o0[i * m:i * m + m]
            for j in range(m):
                v0 = (x0[j] + x1[j])
                v1 = relu(v0)
                v2 = (v1 * c0)
                y0[j] = v2
    """
    op = step.op
    assert isinstance(op, Fused)
    literals = dict(op.literals)
    if not all(supported(p.op, p.arg_types, [literals.get(s) for s in p.reads]) for p in step.parts):
        return None
    layout = row_layout(step)
    if layout is None:
        return None
    return _Writer(step, layout, literals).source()


class _Writer:
    """The state of writing one kernel."""

    def __init__(self, step: Step, layout: RowLayout, literals: Mapping[int, ops.Literal]) -> None:
        self.step, self.layout, self.literals = step, layout, literals
        self.row = math.prod(layout.inner)
        self.place = {slot: n for n, slot in enumerate(step.reads)}
        self.result = {slot: n for n, slot in enumerate(step.writes)}
        self.over = {step.writes[result]: step.reads[operand] for operand, result in step.over}
        self.dtype = {s: np.dtype(t.dtype or "float64") for p in step.parts for s, t in _typed(p)}
        self.of = {p.writes[0]: p for p in step.parts}
        # names do not depend on where in a plan a step stands
        self.id = {p.writes[0]: n for n, p in enumerate(step.parts)}
        self.level: dict[int, int] = {}  # the loop over the row that makes a member, or after which a cell is there
        self.is_row: dict[int, bool] = {}
        self.names: dict[tuple[int, _Access], str] = {}
        self.scalars: dict[tuple[int, int], tuple[int, Dtype]] = {}  # literals by member and place: bits, dtype
        self.fails = False
        self._rank()
        self.passes = 1 + max(self.level[p.writes[0]] - isinstance(p.op, ops.Reduce) for p in step.parts)
        self.kept = self._kept()
        self.lent = self._lent()

    def _rank(self) -> None:
        """Find the loop in which each member is computed."""
        for p in self.step.parts:
            own = p.writes[0]
            inside = [s for s in p.reads if s in self.of]
            base = max((self.level[s] for s in inside), default=0)
            if isinstance(p.op, ops.Reduce):
                over = self._operand_is_row(p.reads[0], p.arg_types[0])
                self.is_row[own] = False
                self.level[own] = base + 1 if over else base
            else:
                shape = dims(p.types[0])
                wide = (
                    not self.layout.cells
                    or shape == self.layout.shape
                    or (self.row == 1 and len(shape) == len(self.layout.shape))
                )
                self.is_row[own] = wide
                self.level[own] = base

    def _operand_is_row(self, slot: int, t: Any) -> bool:
        if slot in self.is_row:
            return self.is_row[slot]
        return not self.layout.cells or dims(t) == self.layout.shape

    def _kept(self) -> set[int]:
        """Return the members that a later loop needs again and that are not worth computing twice."""
        kept = set()
        for p in self.step.parts:
            for s in p.reads:
                if s in self.of and self.is_row[s] and self._reads_at(p) > self.level[s] and not self._cheap(s):
                    kept.add(s)
        return kept

    def _lent(self) -> dict[int, int]:
        """Return for kept members the result whose row they may use until it is written; others need a row of their own.

        A row of the kernel's own may overlap with the arrays it is given, for all that LLVM knows, and slows loops down.
        """
        last = {s: max(self._reads_at(p) for p in self.step.parts if s in p.reads) for s in self.kept}
        free = [s for s in self.result if self.is_row[s]]
        found: dict[int, int] = {}
        for s in sorted(self.kept - self.result.keys()):
            fits = [r for r in free if self.level[r] >= last[s] and self.dtype[r] == self.dtype[s]]
            if fits:
                found[s] = fits[0]
                free.remove(fits[0])
        return found

    def _reads_at(self, p: Step) -> int:
        """Return the loop in which a member reads its operands."""
        level = self.level[p.writes[0]]
        return level - 1 if isinstance(p.op, ops.Reduce) and level else level

    def _cheap(self, slot: int) -> bool:
        p = self.of[slot]
        simple = isinstance(p.op, ops.Cast) or (isinstance(p.op, ops.Elementwise) and ROWS[p.op.fn].cost == 1)
        return simple and all(s not in self.of or not self.is_row[s] for s in p.reads)

    def source(self) -> Source | None:
        """Write the kernel."""
        body: list[str] = []
        done: set[int] = set()
        for level in range(self.passes):
            body += self._cells(level, done)
            body += self._loop(level)
        body += self._cells(self.passes, done)
        if self.fails or (self.step.over and not self.layout.flat):
            return None
        temporaries = [
            f"    t{self.id[s]} = np.empty(m, np.{self.dtype[s].name})"
            for s in sorted(self.kept - self.result.keys() - self.lent.keys())
        ]
        fixed = [line for (_, a), line in self._views() if not any(a.outer)]
        moving = [line for (_, a), line in self._views() if any(a.outer)]
        arrays = [f"a{n}" for n in range(len(self.step.reads))] + [
            f"o{n}" for slot, n in self.result.items() if slot not in self.over
        ]
        sizes = [f"d{n}" for n in range(1, len(self.layout.outer))] if self._mixed() else []
        scalars = [(n, dtype) for n, (_, dtype) in enumerate(self.scalars.values())]
        head = [
            *(f'{fn} = FUNCTIONS["{fn}"]' for fn in self._called()),
            f"def kernel({', '.join([*arrays, *'c' * bool(scalars), 'm', *sizes, 'lo', 'hi'])}):",
            f"    {', '.join(arrays)} = {', '.join(f'{a}.reshape(-1)' for a in arrays)}",
            *["    f = c.view(np.float64)"] * any(dtype.kind == "f" for _, dtype in scalars),
            *(f"    c{n} = np.{dtype.name}({'f' if dtype.kind == 'f' else 'c'}[{n}])" for n, dtype in scalars),
            *temporaries,
        ]
        if self.layout.flat:  # no outer axes: threads share the row itself
            text = [*head, "    m = hi - lo", *(f"    {line}" for line in fixed), *(f"    {line}" for line in body)]
        else:
            text = [
                *head,
                *(f"    {line}" for line in (*fixed, *self._divided(sizes))),
                "    for i in range(lo, hi):",
                *(f"        {line}" for line in (*moving, *body, *self._counted(sizes))),
            ]
        outer = self.layout.outer
        return Source(
            "\n".join(text),
            tuple(bits for bits, _ in self.scalars.values()),
            (self.row, *(outer[1:] if sizes else ())),
            self.layout.places,
        )

    def _called(self) -> list[str]:
        """Return the functions that are called by name."""
        from .functions import EXPRESSIONS

        used = {p.op.fn for p in self.step.parts if isinstance(p.op, ops.Elementwise)}
        return sorted(used - EXPRESSIONS.keys())

    def _mixed(self) -> bool:
        """Tell whether some array extends along some outer axes and not along others."""
        wide = [n for n, d in enumerate(self.layout.outer) if d != 1]
        return any(len({a.outer[n] for n in wide}) > 1 for _, a in self.names)

    def _divided(self, sizes: Sequence[str]) -> list[str]:
        """Write the place along each outer axis that a kernel begins at."""
        lines, rest = [], "lo"
        for n in range(len(sizes), 0, -1):
            lines.append(f"i{n} = {rest} % d{n}")
            lines.append(f"q{n} = {rest} // d{n}")
            rest = f"q{n}"
        return [*lines, f"i0 = {rest}"] if sizes else []

    def _counted(self, sizes: Sequence[str]) -> list[str]:
        """Write the step to the next place: counting takes less time than dividing."""
        lines = ["i0 += 1"] if sizes else []
        for n in range(1, len(sizes) + 1):
            lines = [f"i{n} += 1", f"if i{n} == d{n}:", f"    i{n} = 0", *(f"    {line}" for line in lines)]
        return lines

    def _views(self) -> list[tuple[tuple[int, _Access], str]]:
        """Return the lines that give names to rows and cells of arrays."""
        found = []
        flat = "lo:hi" if self.layout.flat else ""
        for (slot, access), name in self.names.items():
            array = f"o{self.result[slot]}" if slot in self.result else f"a{self.place[slot]}"
            at = self._offset(access)
            if not access.inner:
                if slot in self.result:
                    continue  # written, not read
                line = f"{name} = {array}[{at or '0'}]"
            elif flat:
                line = f"{name} = {array}[{flat}]"
            else:
                line = f"{name} = {array}[{at}:{at} + m]" if at else f"{name} = {array}[:m]"
            found.append(((slot, access), line))
        return found

    def _offset(self, access: _Access) -> str:
        wide = [n for n, d in enumerate(self.layout.outer) if d != 1]
        if not any(access.outer[n] for n in wide):
            return ""
        if all(access.outer[n] for n in wide):
            return "i * m" if access.inner else "i"
        terms, stride = [], ["m"] if access.inner else []
        for n in range(len(self.layout.outer) - 1, -1, -1):
            if access.outer[n]:
                terms.append(" * ".join([f"i{n}", *stride]))
                stride = [*stride, f"d{n}"]
        return " + ".join(reversed(terms))

    def _cells(self, level: int, done: set[int]) -> list[str]:
        """Write the members that have one element for each place and are known before a loop."""
        lines = []
        for p in self.step.parts:
            own = p.writes[0]
            if self.is_row[own] or self.level[own] != level or own in done:
                continue
            done.add(own)
            if isinstance(p.op, ops.Reduce):
                lines.append(f"v{self.id[own]} = {self._reduced(p)}")
            else:
                operands = [self.literals.get(s) or self._cell(p, s, t) for s, t in _operands(p)]
                lines.append(f"v{self.id[own]} = {expression(p, operands, partial(self._scalar, p))}")
            if own in self.result:
                lines.append(f"o{self.result[own]}[i] = v{self.id[own]}")
        return lines

    def _cell(self, p: Step, slot: int, t: Any) -> tuple[str, Dtype]:
        dtype = np.dtype(t.dtype or "float64")
        if slot in self.of:
            return f"v{self.id[slot]}", dtype
        return self._named(slot, self._access(p, t), row=False), dtype

    def _scalar(self, p: Step, place: int, literal: ops.Literal, dtype: Dtype) -> str:
        """Return the name of the argument that a literal is; equal ones are apart, so that the text tells nothing of them."""
        key = (self.id[p.writes[0]], place)
        self.scalars.setdefault(key, (literal_bits(literal.value, dtype), dtype))
        return f"c{list(self.scalars).index(key)}"

    def _access(self, p: Step, t: Any) -> _Access:
        whole, cut = self.layout.shape, len(self.layout.outer)
        reader = dims(p.arg_types[0]) if isinstance(p.op, ops.Reduce) else dims(p.types[0])
        found = present_axes(dims(t), reader, whole)
        inner = {found[n] for n in range(cut, len(whole)) if whole[n] != 1}
        if len(inner) > 1:
            self.fails = True  # a row that an operand has only some axes of
        return _Access(found[:cut], True in inner)

    def _named(self, slot: int, access: _Access, *, row: bool) -> str:
        if (slot, access) not in self.names:
            own = f"y{self.result[slot]}" if slot in self.result else f"x{self.place[slot]}"
            again = sum(s == slot for s, _ in self.names)
            self.names[slot, access] = own + "_" * again
        name = self.names[slot, access]
        return f"{name}[j]" if access.inner and row else name

    def _value(self, p: Step, slot: int, t: Any, level: int, lines: list[str], here: set[int]) -> tuple[str, Dtype]:
        """Return an operand inside a loop over the row: loaded, computed in this loop, or computed again."""
        dtype = np.dtype(t.dtype or "float64")
        if slot not in self.of:
            return self._named(slot, self._access(p, t), row=True), dtype
        if not self.is_row[slot] or slot in here:
            return f"v{self.id[slot]}", dtype
        if slot in self.kept:
            return self._stored(slot), dtype
        self._compute(self.of[slot], level, lines, here)
        return f"v{self.id[slot]}", dtype

    def _stored(self, slot: int) -> str:
        slot = self.lent.get(slot, slot)
        if slot in self.result:
            whole = self._full()
            return self._named(self.over.get(slot, slot), whole, row=True)
        return f"t{self.id[slot]}[j]"

    def _full(self) -> _Access:
        return _Access(tuple(d != 1 for d in self.layout.outer), True)

    def _compute(self, p: Step, level: int, lines: list[str], here: set[int]) -> None:
        own = p.writes[0]
        operands = [self.literals.get(s) or self._value(p, s, t, level, lines, here) for s, t in _operands(p)]
        lines.append(f"v{self.id[own]} = {expression(p, operands, partial(self._scalar, p))}")
        here.add(own)

    def _loop(self, level: int) -> list[str]:
        """Write one loop over the row: its members, what they are summed up in, and what is stored."""
        lines: list[str] = []
        here: set[int] = set()
        before: list[str] = []
        stores: list[str] = []  # last, so that nothing reads what was written over
        for p in self.step.parts:
            own = p.writes[0]
            if isinstance(p.op, ops.Reduce):
                over = self._operand_is_row(p.reads[0], p.arg_types[0])
                if over and self.level[own] == level + 1:
                    value, dtype = self._value(p, p.reads[0], p.arg_types[0], level, lines, here)
                    start, more = self._accumulated(p, value, dtype)
                    before.append(f"r{self.id[own]} = {start}")
                    lines.append(f"r{self.id[own]} = {more}")
            elif self.is_row[own] and self.level[own] == level:
                if own not in here:
                    self._compute(p, level, lines, here)
                if own in self.result or own in self.kept:
                    stores.append(f"{self._stored(own)} = v{self.id[own]}")
        if not lines:
            return []
        return [*before, "for j in range(m):", *(f"    {line}" for line in (*lines, *stores))]

    def _accumulated(self, p: Step, value: str, have: Dtype) -> tuple[str, str]:
        """Return what a reduction starts from and what it becomes with one more element."""
        op, own = p.op, f"r{self.id[p.writes[0]]}"
        assert isinstance(op, ops.Reduce)
        total = self._total(p)
        match op.kind:
            case "sum" | "mean":
                return f"np.{total.name}(0)", f"accumulate({own}, {cast(value, have, total)})"
            case "prod":
                return f"np.{total.name}(1)", f"{own} * {cast(value, have, total)}"
            case "any":
                return "False", f"{own} | {cast(value, have, np.dtype(bool))}"
            case "all":
                return "True", f"{own} & {cast(value, have, np.dtype(bool))}"
            case "max" | "min" if have.kind == "f":
                wide = 32 if have.itemsize == 4 else 64
                start = f"LEAST{wide}" if op.kind == "max" else f"LOW{wide}"
                fold = "highest" if op.kind == "max" else "lowest"
                return start, f"{fold}({own}, {value})"
            case "max" | "min":
                if have.kind == "b":
                    return ("False", f"{own} | {value}") if op.kind == "max" else ("True", f"{own} & {value}")
                info = np.iinfo(have)
                end = info.min if op.kind == "max" else info.max
                return f"np.{have.name}({end})", f"np.{have.name}({op.kind}({own}, {value}))"
            case other:
                raise AssertionError(other)

    def _total(self, p: Step) -> Dtype:
        want = np.dtype(p.types[0].dtype or "float64")
        return np.dtype("float64") if want == np.float32 and self.row > LONG else want

    def _reduced(self, p: Step) -> str:
        """Return the result of a reduction after its loop."""
        op, want, name = p.op, np.dtype(p.types[0].dtype or "float64"), f"r{self.id[p.writes[0]]}"
        assert isinstance(op, ops.Reduce)
        if not self._operand_is_row(p.reads[0], p.arg_types[0]):  # of one element
            return cast(*self._cell(p, p.reads[0], p.arg_types[0]), want)
        if op.kind in ("max", "min") and want.kind == "f":
            return f"unkey({name})"
        total = self._total(p)
        if op.kind == "mean":
            return cast(f"({name} / np.{total.name}(m))", total, want)
        return cast(name, total, want) if op.kind in ("sum", "prod") else name


def _typed(p: Step) -> list[tuple[int, Any]]:
    return [*zip(p.reads, p.arg_types, strict=True), *zip(p.writes, p.types, strict=True)]


def _operands(p: Step) -> list[tuple[int, Any]]:
    return list(zip(p.reads, p.arg_types, strict=True))
