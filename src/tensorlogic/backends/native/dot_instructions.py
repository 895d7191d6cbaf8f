"""How each processor multiplies small integers: which instruction, how many lanes, and the innermost loop written for it.

Every form is exact. Sums of products of bytes are added in 32 bits that wrap, never in 16 bits that saturate: the AVX2 instruction that
multiplies unsigned by signed bytes (``pmaddubsw``) saturates, and is only used for weights of few bits, whose sums stay far below.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT32, BYTE = ir.IntType(32), ir.IntType(8)


class DotForm(NamedTuple):
    """One way to add up products of small integers, four bytes of each factor in each lane at a time."""

    terms: int  # products that a lane adds up at a time: 2 of int16, or 4 of bytes
    lanes: int  # sums in a vector
    rows: int  # of a tile that stays in registers
    vectors: int  # its columns are so many vectors
    instruction: str  # of LLVM; none: vector arithmetic that every processor has
    unsigned_left: bool = False  # the instruction takes the left factor as unsigned bytes
    adds_pairs: str = (
        ""  # where it gives sums of two products in 16 bits, for left factors of at most 4 bits: what adds up those
    )

    @property
    def columns(self) -> int:
        """The columns of a tile."""
        return self.lanes * self.vectors


# the first whose feature the processor has
FORMS: tuple[tuple[str, DotForm], ...] = (
    ("avx512vnni", DotForm(4, 16, 12, 2, "llvm.x86.avx512.vpdpbusd.512", True)),
    ("avxvnni", DotForm(4, 8, 6, 2, "llvm.x86.avx512.vpdpbusd.256", True)),
    ("dotprod", DotForm(4, 4, 8, 3, "llvm.aarch64.neon.sdot.v4i32.v16i8")),
    ("avx512bw", DotForm(2, 16, 12, 2, "llvm.x86.avx512.pmaddw.d.512")),
    ("avx2", DotForm(2, 8, 6, 2, "llvm.x86.avx2.pmadd.wd")),
    ("sse2", DotForm(2, 4, 6, 2, "llvm.x86.sse2.pmadd.wd")),
)
PLAIN = DotForm(2, 4, 6, 2, "")
# by the instruction of 16 bits that the processor has: the one for left factors of at most 4 bits
FEW_BITS = {
    adds: DotForm(4, lanes, rows, 2, instruction, True, adds)
    for adds, lanes, rows, instruction in (
        ("llvm.x86.avx2.pmadd.wd", 8, 6, "llvm.x86.avx2.pmadd.ub.sw"),
        ("llvm.x86.avx512.pmaddw.d.512", 16, 12, "llvm.x86.avx512.pmaddubs.w.512"),
    )
}


def form_for(triple: str, features: str) -> DotForm:
    """Return the form for a processor, by LLVM's names of it and of what it has.

    >>> form_for("x86_64-linux-gnu", "+sse2,+avx2,-avxvnni").instruction, form_for("riscv64-linux-gnu", "") == PLAIN
    ('llvm.x86.avx2.pmadd.wd', True)
    """
    there = {name[1:] for name in features.split(",") if name.startswith("+")}
    if triple.startswith(("x86_64", "amd64")):
        there.add("sse2")  # every one of them has it
    elif not triple.startswith(("aarch64", "arm64")):
        return PLAIN
    return next((form for feature, form in FORMS if feature in there), PLAIN)


@cache
def dot_form() -> DotForm:
    """Return the form for the processor that kernels are compiled for."""
    from numba.core.registry import cpu_target

    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return form_for(triple, features)


def add_products(builder: Any, form: DotForm, total: Any, left: Any, right: Any) -> Any:
    """Write: total plus the products of the small integers in the lanes of two vectors."""
    lanes = total.type
    if form.terms == 4:
        if form.instruction.startswith("llvm.aarch64"):
            octets = ir.VectorType(BYTE, 4 * form.lanes)
            left, right = builder.bitcast(left, octets), builder.bitcast(right, octets)
        if form.instruction:
            return call(builder, form.instruction, lanes, total, left, right)
        return builder.add(total, _plainly(builder, form, left, right))
    pairs = ir.VectorType(ir.IntType(16), 2 * form.lanes)
    left, right = builder.bitcast(left, pairs), builder.bitcast(right, pairs)
    products = call(builder, form.instruction, lanes, left, right) if form.instruction else None
    return builder.add(total, _plainly(builder, form, left, right) if products is None else products)


def pairs_of_products(builder: Any, form: DotForm, left: Any, right: Any) -> Any:
    """Write the sums of two neighbouring products of bytes each, in 16 bits."""
    octets, pairs = (ir.VectorType(ir.IntType(bits), 32 // bits * form.lanes) for bits in (8, 16))
    return call(builder, form.instruction, pairs, builder.bitcast(left, octets), builder.bitcast(right, octets))


def add_pairs(builder: Any, form: DotForm, total: Any, pairs: Any) -> Any:
    """Write: total plus the sums of 16 bits, two in each lane."""
    ones = ir.Constant(pairs.type, [pairs.type.element(1)] * pairs.type.count)
    return builder.add(total, call(builder, form.adds_pairs, total.type, pairs, ones))


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Write a call of one of LLVM's functions."""
    kind = ir.FunctionType(result, [x.type for x in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def _plainly(builder: Any, form: DotForm, left: Any, right: Any) -> Any:
    """Write the sums of neighbouring products as vector arithmetic."""
    count = form.terms * form.lanes
    narrow, wide = ir.VectorType(ir.IntType(32 // form.terms), count), ir.VectorType(INT32, count)
    widen = builder.zext if form.unsigned_left else builder.sext
    products = builder.mul(
        widen(builder.bitcast(left, narrow), wide), builder.sext(builder.bitcast(right, narrow), wide)
    )
    total = None
    for t in range(form.terms):
        places = ir.Constant(ir.VectorType(INT32, form.lanes), [INT32(form.terms * n + t) for n in range(form.lanes)])
        part = builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), places)
        total = part if total is None else builder.add(total, part)
    return total


def tile_of(form: DotForm) -> Any:
    """Return the innermost loop: it adds the product of a panel of rows and a panel of columns to a tile of sums.

    A panel holds, for each four bytes of the reduced index, those of all its rows one after another; places are counted in int32.
    The sums of a tile stay in registers until the end.
    """

    @intrinsic
    def tile(
        typing: Any, left: Any, at_left: Any, right: Any, at_right: Any, sums: Any, at: Any, stride: Any, depth: Any
    ) -> Any:
        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = args[1].type
            vector = ir.VectorType(INT32, form.lanes)
            data = [
                builder.gep(context.make_array(kind)(context, builder, x).data, [first])
                for kind, x, first in zip(signature.args[0:5:2], args[0:5:2], args[1:6:2], strict=True)
            ]
            rows, columns = range(form.rows), range(form.vectors)
            totals = [[cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in columns] for _ in rows]
            with cgutils.for_range(builder, args[7]) as step:
                near = builder.gep(data[0], [builder.mul(step.index, place(form.rows))])
                far = builder.gep(data[1], [builder.mul(step.index, place(form.columns))])
                factors = [_vector(builder, far, v * form.lanes, vector) for v in columns]
                for r in rows:
                    factor = _in_every_lane(builder, builder.load(builder.gep(near, [place(r)])), vector)
                    for v in columns:
                        was = builder.load(totals[r][v])
                        builder.store(add_products(builder, form, was, factor, factors[v]), totals[r][v])
            for r in rows:
                row = builder.gep(data[2], [builder.mul(args[6], place(r))])
                for v in columns:
                    target = builder.bitcast(builder.gep(row, [place(v * form.lanes)]), vector.as_pointer())
                    more = builder.add(builder.load(target, align=4), builder.load(totals[r][v]))
                    builder.store(more, target, align=4)
            return context.get_dummy_value()

        return types.void(left, at_left, right, at_right, sums, at, stride, depth), write

    return tile


def _vector(builder: Any, data: Any, place: int, vector: Any) -> Any:
    address = builder.bitcast(builder.gep(data, [ir.IntType(64)(place)]), vector.as_pointer())
    return builder.load(address, align=4)


def _in_every_lane(builder: Any, value: Any, vector: Any) -> Any:
    """Write: a value in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    places = ir.Constant(ir.VectorType(INT32, vector.count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), places)


STRIP = 8  # four-byte steps that are laid out at once


def strip_of(terms: int, width: int, unsigned: bool, flip: bool) -> Any:
    """Return what lays out eight steps of a panel: it reads rows, each in order, and writes their steps side by side.

    ``flip`` turns over the highest bit of each byte, which adds 128 and makes signed bytes unsigned.
    """

    @intrinsic
    def strip(typing: Any, x: Any, row: Any, column: Any, panels: Any, at: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = context.make_array(signature.args[0])(context, builder, args[0])
            stride = cgutils.unpack_tuple(builder, source.strides, 2)[0]
            place, vector = args[1].type, ir.VectorType(INT32, STRIP)
            octets = ir.VectorType(BYTE, STRIP * terms)
            start = builder.bitcast(source.data, BYTE.as_pointer())
            target = context.make_array(signature.args[3])(context, builder, args[3]).data
            for first in range(0, width, STRIP):
                count = min(STRIP, width - first)
                lanes = []
                for n in range(count):
                    offset = builder.add(builder.mul(builder.add(args[1], place(first + n)), stride), args[2])
                    address = builder.bitcast(builder.gep(start, [offset]), octets.as_pointer())
                    lanes.append(_four_bytes(builder, builder.load(address, align=1), terms, unsigned, flip))
                lanes += [ir.Constant(vector, ir.Undefined)] * (STRIP - count)
                for step, value in enumerate(_transposed(builder, lanes)):
                    kept = builder.shuffle_vector(value, value, _places(range(count))) if count < STRIP else value
                    address = builder.gep(target, [builder.add(args[4], place(step * width + first))])
                    builder.store(kept, builder.bitcast(address, kept.type.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, row, column, panels, at), write

    return strip


def _four_bytes(builder: Any, octets: Any, terms: int, unsigned: bool, flip: bool) -> Any:
    """Write bytes as lanes of four bytes each: as they are, or widened to pairs of int16."""
    if terms == 2:
        wide = ir.VectorType(ir.IntType(16), octets.type.count)
        octets = (builder.zext if unsigned else builder.sext)(octets, wide)
    lanes = builder.bitcast(octets, ir.VectorType(INT32, STRIP))
    return builder.xor(lanes, ir.Constant(lanes.type, [INT32(0x80808080)] * STRIP)) if flip else lanes


def _places(numbers: Any) -> Any:
    every = [INT32(n) for n in numbers]
    return ir.Constant(ir.VectorType(INT32, len(every)), every)


def _transposed(builder: Any, lanes: list[Any]) -> list[Any]:
    """Write: lane j of vector i as lane i of vector j; both are powers of two in number."""
    size = len(lanes)
    near = 1
    while near < size:
        low = _places(j if not j & near else size + (j ^ near) for j in range(size))
        high = _places(j | near if not j & near else size + j for j in range(size))
        for i in (i for i in range(size) if not i & near):
            a, b = lanes[i], lanes[i | near]
            lanes[i], lanes[i | near] = builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)
        near *= 2
    return lanes


@intrinsic
def ones_in(typing: Any, word: Any) -> Any:
    """Return how many bits of a word are set."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), write
