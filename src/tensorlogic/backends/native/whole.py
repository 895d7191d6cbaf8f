"""A whole graph as one function: for small graphs, where calling NumPy takes longer than what it computes.

Row-wise groups are functions of their own that this one calls; matrix products are small ones; views cost nothing. No text depends on sizes
or places, so that graphs that differ in those alone share machine code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import ops
from ...ir.types import Layout, TensorType, dims, in_order, is_in_order
from ...plan.build import ExecutionPlan, Step
from ...plan.fused_steps import Fused
from ...plan.row_groups import KERNEL_DTYPES
from .rows import row_source

MOST_STEPS = 300
MOST_NODES = 2000
MOST_FUNCTIONS = 48  # of rows, each compiled by itself
MOST_FLOPS = 4_000_000  # beyond which calls no longer matter
MOST_BYTES = 4 << 20
LARGE = 1 << 16  # multiplications from which BLAS is faster than a plain loop


class Text(NamedTuple):
    """The text of functions, the last of which is ``kernel(*operands, *results, z)``, the numbers that z holds, and the bytes it works in."""

    text: str
    numbers: tuple[int, ...]
    nbytes: int


class _Ref(NamedTuple):
    """Where a value stands: a flat array, a first place in it, and a stride for each axis."""

    array: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def contiguous(self) -> bool:
        """Whether it is in C order without gaps."""
        return is_in_order(Layout(self.shape, self.strides))


def small(plan: ExecutionPlan) -> bool:
    """Tell whether a plan is small enough for calls to matter."""
    if not plan.steps or len(plan.steps) > MOST_STEPS or plan.flops > MOST_FLOPS:
        return False
    return sum(step.nbytes for step in plan.steps) <= MOST_BYTES


def write(plan: ExecutionPlan, reads: Sequence[int]) -> Text | None:
    """Return a plan of fused steps as one function of the slots it reads and of its outputs, or None where it cannot be one."""
    types = {slot: t for _, slot, t in plan.inputs}
    types |= {slot: constant_type(op) for slot, op in plan.constants}
    outputs = [(slot, f"o{n}", t) for n, (_, slot, t) in enumerate(plan.outputs)]
    if not outputs or any(t.weak for _, _, t in outputs):
        return None
    if any(t.dtype not in KERNEL_DTYPES for t in (*types.values(), *(t for step in plan.steps for t in step.types))):
        return None
    given = {slot: (f"a{n}", types[slot]) for n, slot in enumerate(reads)}
    writer = _Writer(given, {slot: (name, t) for slot, name, t in reversed(outputs)})
    if not all(writer.step(step) for step in plan.steps):
        return None
    if len(writer.functions) > MOST_FUNCTIONS:
        return None
    for slot, name, t in outputs:  # what is an input, a view, or another output too
        if slot not in writer.refs:
            return None
        if writer.refs[slot].array != name:
            writer.copy(writer.refs[slot], _whole(name, t))
    return writer.text(len(reads), len(outputs))


def constant_type(op: ops.Op) -> TensorType:
    """Return the type of a constant; a literal is a Python scalar."""
    if isinstance(op, ops.Constant):
        return TensorType(op.shape, op.dtype)  # type: ignore[arg-type]
    return TensorType((), "float64", True)  # type: ignore[arg-type]


class _Writer:
    """The state of writing one function."""

    def __init__(
        self, given: Mapping[int, tuple[str, TensorType]], results: Mapping[int, tuple[str, TensorType]]
    ) -> None:
        self.refs = {slot: _whole(name, t) for slot, (name, t) in given.items() if not t.weak}
        self.results = results
        self.room: dict[str, int] = {}  # elements of scratch memory, by dtype
        self.functions: dict[str, str] = {}  # text of a row-wise group: its name
        self.numbers: list[int] = []
        self.sizes: dict[int, int] = {}  # a size: its place among the numbers
        self.literals: list[int] = []  # their bits
        self.lines: list[str] = []

    def step(self, step: Step) -> bool:
        """Write one step; False where it cannot be."""
        match step.op:
            case Fused():
                return self._group(step)
            case ops.Einsum() if (
                step.contraction is not None and step.contraction.kernel == "matmul" and step.op.algebra == "real"
            ):
                return self._product(step)
            case ops.Transpose():
                ref = self.refs[step.reads[0]]
                order = step.op.order
                self.refs[step.writes[0]] = ref._replace(
                    shape=tuple(ref.shape[a] for a in order), strides=tuple(ref.strides[a] for a in order)
                )
                return True
            case ops.Slice():
                ref = self.refs[step.reads[0]]
                at = ref.offset + sum(int(a) * s for (a, _, _), s in zip(step.op.ranges, ref.strides, strict=True))
                self.refs[step.writes[0]] = ref._replace(
                    offset=at,
                    shape=dims(step.types[0]),
                    strides=tuple(k * s for (_, _, k), s in zip(step.op.ranges, ref.strides, strict=True)),
                )
                return True
            case ops.Reshape():
                flat, shape = self._flat(step.reads[0]), dims(step.types[0])
                self.refs[step.writes[0]] = flat._replace(shape=shape, strides=in_order(shape).strides)
                return True
            case _:
                return False

    def _group(self, step: Step) -> bool:
        source = row_source(step)
        if source is None:
            return False
        name = self.functions.setdefault(source.text, f"group{len(self.functions)}")
        arrays = [self._at(self._flat(slot)) for slot in step.reads]
        arrays += [self._at(self._made(slot, t)) for slot, t in zip(step.writes, step.types, strict=True)]
        if source.literals:
            first = len(self.literals)
            self.literals += source.literals
            arrays.append(f"c[{first}:{len(self.literals)}]")
        numbers = [self._number(n) for n in (*source.sizes, 0, source.places)]
        self.lines.append(f"{name}({', '.join([*arrays, *numbers])})")
        return True

    def _product(self, step: Step) -> bool:
        form, dtype = step.contraction, step.types[0].dtype
        assert form is not None
        if dtype not in ("float32", "float64") or any(t.dtype != dtype or t.weak for t in step.arg_types):
            return False
        if form.spec.inputs != form.labels or not form.in_order or len(step.reads) != 2:
            return False
        first, second, left, right = 0, 1, form.left, form.right
        if form.spec.output != (*form.batch, *left, *right):
            first, second, left, right = 1, 0, right, left
        if any(x not in form.inner and x not in form.spec.output for own in form.labels for x in own):
            return False
        a = self._ordered(step.reads[first], form.labels[first], (*form.batch, *left, *form.inner))
        b = self._ordered(step.reads[second], form.labels[second], (*form.batch, *form.inner, *right))
        o = self._made(step.writes[0], step.types[0])
        rows, inner, columns = (math.prod(form.sizes[x] for x in labels) for labels in (left, form.inner, right))
        batch = math.prod(form.sizes[x] for x in form.batch)
        parts = []
        for ref, i, j in ((a, rows, inner), (b, inner, columns), (o, rows, columns)):
            part = self._at(ref)
            if batch != 1:
                part += f"[k * {self._number(i * j)}:]"
            if rows * inner * columns >= LARGE:
                part += f"[:{self._number(i * j)}].reshape(({self._number(i)}, {self._number(j)}))"
            parts.append(part)
        if rows * inner * columns >= LARGE:  # numba hands it to BLAS
            text = f"np.dot({', '.join(parts)})"
        else:
            text = f"product({', '.join([*parts, *map(self._number, (rows, inner, columns))])})"
        self.lines += [text] if batch == 1 else [f"for k in range({self._number(batch)}):", f"    {text}"]
        return batch <= 64

    def _ordered(self, slot: int, labels: Sequence[str], want: Sequence[str]) -> _Ref:
        """Return an operand with its axes in an order, copied where it must be."""
        ref = self.refs[slot]
        order = [labels.index(x) for x in want]
        turned = ref._replace(shape=tuple(ref.shape[a] for a in order), strides=tuple(ref.strides[a] for a in order))
        return self._contiguous(turned)

    def _flat(self, slot: int) -> _Ref:
        return self._contiguous(self.refs[slot])

    def _contiguous(self, ref: _Ref) -> _Ref:
        if ref.contiguous:
            return ref
        target = self._scratch(ref.shape, ref.dtype)
        self.copy(ref, target)
        return target

    def copy(self, ref: _Ref, made: _Ref) -> None:
        """Write loops that copy a value to another place."""
        indent = ""
        for n, size in enumerate(ref.shape):
            self.lines.append(f"{indent}for i{n} in range({self._number(size)}):")
            indent += "    "
        to, at = (
            " + ".join([self._place(r.offset), *(f"i{n} * {self._number(s)}" for n, s in enumerate(r.strides))])
            for r in (made, ref)
        )
        self.lines.append(f"{indent}{made.array}[{to}] = {ref.array}[{at}]")

    def _made(self, slot: int, t: TensorType) -> _Ref:
        """Return where a result is written: its own array, or scratch memory."""
        found = _whole(*self.results[slot]) if slot in self.results else self._scratch(dims(t), t.dtype or "float64")
        self.refs[slot] = found
        return found

    def _scratch(self, shape: tuple[int, ...], dtype: str) -> _Ref:
        at = self.room.get(dtype, 0)
        self.room[dtype] = at + -(-math.prod(shape) // 16) * 16
        return _Ref(f"s_{dtype}", at, shape, in_order(shape).strides, dtype)

    def _number(self, n: int) -> str:
        """Return a size that is not known to the compiler, which would unroll loops over it into long code."""
        if n not in self.sizes:
            self.sizes[n] = len(self.numbers)
            self.numbers.append(n)
        return f"z{self.sizes[n]}"

    def _place(self, n: int) -> str:
        """Return a place in an array; it stands for itself, even where it is the same number as another."""
        self.numbers.append(n)
        return f"z{len(self.numbers) - 1}"

    def _at(self, ref: _Ref) -> str:
        """Return the array from where a value begins."""
        return f"{ref.array}[{self._place(ref.offset)}:]" if ref.offset else ref.array

    def text(self, operands: int, results: int) -> Text:
        """Return all functions; z holds the numbers in this order, and then the literals."""
        arrays = [f"a{n}" for n in range(operands)] + [f"o{n}" for n in range(results)]
        parts: list[str] = []
        heads: dict[str, None] = {}
        for text, name in self.functions.items():
            head, body = text.split("def kernel(", 1)
            heads |= dict.fromkeys(head.splitlines())
            parts.append(f"@part\ndef {name}({body}")
        rooms = [
            f"s_{dtype} = np.empty({self._place(size)}, np.{'bool_' if dtype == 'bool' else dtype})"
            for dtype, size in self.room.items()
        ]
        lines = [
            f"{', '.join(arrays)}, = {', '.join(f'{a}.reshape(-1)' for a in arrays)},",
            *(f"z{n} = z[{n}]" for n in range(len(self.numbers))),
            *[f"c = z[{len(self.numbers)}:]"] * bool(self.literals),
            *rooms,
            *self.lines,
        ]
        main = "\n".join([f"def kernel({', '.join([*arrays, 'z'])}):", *(f"    {line}" for line in lines)])
        nbytes = sum(size * np.dtype(dtype).itemsize for dtype, size in self.room.items())
        whole = "\n\n".join(["\n".join(heads), *parts, main] if heads else [*parts, main])
        return Text(whole, (*self.numbers, *self.literals), nbytes)


def _whole(name: str, t: TensorType) -> _Ref:
    shape = dims(t)
    return _Ref(name, 0, shape, in_order(shape).strides, np.dtype(t.dtype or "float64").name)
