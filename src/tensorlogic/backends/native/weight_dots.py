"""The innermost loops of products of float rows with packed weights: dot products of whole numbers, and weights as floats.

Weights are read as words of 32 bits, one to a lane, each with consecutive weights. For dot products a row of floats becomes whole numbers
of one step, cut into limbs that the processor's instruction for small integers takes; sums are exact until they are scaled. All but the
highest weights of a byte are multiplied where they stand in it, 2 ** (bits * c) times too large; what comes of it is shifted back in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .dot_instructions import INT32, DotForm, add_pairs, add_products, call, pairs_of_products

FLOAT = ir.FloatType()
LINE = 64  # bytes of a line of the cache
# weights are prefetched this many bytes ahead: processors do not prefetch across a page by themselves
AHEAD = 8192


class WeightForm(NamedTuple):
    """Weights of so many bits, and the instruction that multiplies them; a vector of words is a block."""

    bits: int
    signed: bool
    dot: DotForm
    parts: int = 1  # groups of weights in a block
    span: int = 0  # blocks of a group, where they are few; 0: any number
    zeros: bool = False  # groups have zero points

    @property
    def plain(self) -> WeightForm:
        """The form for weights that become floats, whatever their groups and zero points."""
        return WeightForm(self.bits, self.signed, self.dot)

    @property
    def each(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    @property
    def block(self) -> int:
        """Weights in a vector of words."""
        return self.dot.lanes * self.each

    @property
    def limb_bits(self) -> int:
        """Bits of a limb: as many as keep the sums of a long row within 32 bits, where the instruction takes 16."""
        return 14 if self.dot.terms == 2 else 8

    @property
    def limbs(self) -> int:
        """Limbs of a whole number: together at least the 24 bits of a float."""
        return 2 if self.dot.terms == 2 else 3

    @property
    def places(self) -> int:
        """Weights in each small integer that the instruction takes."""
        return self.each // self.dot.terms

    @property
    def reads_signed(self) -> bool:
        """Whether the instruction takes bytes as they are, with their sign."""
        return self.bits == 8 and self.dot.terms == 4 and not self.dot.unsigned_left

    @property
    def flips(self) -> bool:
        """Whether the highest bit of each weight is turned over: two's complement is read as what is above the least."""
        return self.bits > 1 and self.signed != self.reads_signed

    @property
    def bias(self) -> int:
        """What numbers are more than they stand for, in the sums; of one bit they are doubled before it is taken off."""
        if self.bits == 1:
            return int(self.signed)
        return 0 if not self.flips else -(1 << 7) if self.reads_signed else 1 << (self.bits - 1)

    @property
    def unit(self) -> int:
        """Bits within which weights are multiplied where they stand."""
        narrow = self.bits == 1 or self.dot.adds_pairs or (self.dot.terms == 4 and not self.dot.unsigned_left)
        return 4 if narrow and self.bits < 8 else 8

    @property
    def classes(self) -> int:
        """Places in a unit; each has sums of its own."""
        return self.unit // self.bits

    @property
    def run(self) -> int:
        """Blocks that are written out one after another: a line of the cache, or as many as sums of 16 bits have room for."""
        return 4 if self.dot.adds_pairs else max(1, LINE // (4 * self.dot.lanes))

    @property
    def most_blocks(self) -> int:
        """Blocks whose sums are sure to fit 32 bits."""
        largest = 255 * self.dot.terms * (32 // self.dot.terms // self.unit) << self.limb_bits - 1
        return (1 << 31) // largest - 1


class _Writer:
    """Writes the code of one loop; ``same`` is a number in every lane."""

    def __init__(self, builder: Any, form: WeightForm) -> None:
        self.builder, self.form, self.lanes = builder, form, form.dot.lanes
        self.words, self.floats = ir.VectorType(INT32, self.lanes), ir.VectorType(FLOAT, self.lanes)

    def same(self, number: int) -> Any:
        return ir.Constant(self.words, [INT32(number)] * self.lanes)

    def in_every_lane(self, value: Any) -> Any:
        vector = ir.VectorType(value.type, self.lanes)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
        return self.builder.shuffle_vector(first, first, ir.Constant(self.words, None))

    def load(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.bitcast(address, kind.as_pointer()), align=1)

    def words_at(self, data: Any, *, flips: bool) -> Any:
        """Write the words of a block, the highest bit of each weight turned over if asked."""
        bits, word = self.form.bits, self.load(data, self.words)
        highest = sum(1 << bits * s + bits - 1 for s in range(self.form.each))
        return self.builder.xor(word, self.same(highest)) if flips else word

    def small_integers_at(self, data: Any) -> Iterator[Any]:
        """Write the weights of a block, place after place, as vectors of the small integers that the instruction takes."""
        form, b, size = self.form, self.builder, 32 // self.form.dot.terms
        small = ir.VectorType(ir.IntType(size), self.lanes * form.dot.terms)
        number = ir.IntType(size)
        word = b.bitcast(self.words_at(data, flips=form.flips), small)
        for shift in range(0, size, form.unit):
            moved = b.lshr(word, ir.Constant(small, [number(shift)] * small.count)) if shift else word
            for c in range(form.classes):
                mask = (1 << form.bits) - 1 << c * form.bits
                yield b.bitcast(b.and_(moved, ir.Constant(small, [number(mask)] * small.count)), self.words)

    def floats_at(self, data: Any) -> Iterator[tuple[Any, float]]:
        """Write the weights of a block as vectors of floats: the s-th of each word, s after s, and what each is too large by."""
        b, bits, last = self.builder, self.form.bits, self.form.each - 1
        word = self.words_at(data, flips=bits > 1 and self.form.signed)
        for s in range(last + 1):
            if bits == 1:  # 1.0, with the opposite of the bit as its sign
                sign = b.and_(b.shl(b.not_(word), self.same(31 - s)), self.same(-(1 << 31)))
                yield b.bitcast(b.or_(sign, self.same(0x3F800000)), self.floats), 1.0
            elif s == last:
                yield b.sitofp(b.lshr(word, self.same(32 - bits)), self.floats), 1.0
            else:
                mask = (1 << bits) - 1 << bits * s
                yield b.sitofp(b.and_(word, self.same(mask)), self.floats), 2.0 ** (bits * s)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        return call(self.builder, f"llvm.fmuladd.v{self.lanes}f32", self.floats, x, y, z)

    def of_groups(self, address: Any) -> Any:
        """Write one number for each lane, from as many as there are groups in a block."""
        kind = address.type.pointee
        if self.form.parts == 1:
            return self.in_every_lane(self.builder.load(address))
        own = self.load(address, ir.VectorType(kind, self.form.parts))
        places = [INT32(n * self.form.parts // self.lanes) for n in range(self.lanes)]
        return self.builder.shuffle_vector(own, own, ir.Constant(self.words, places))

    def sum_of_lanes(self, vector: Any) -> Any:
        """Write the sum of the lanes: halves added until one is left."""
        size = self.lanes
        while size > 1:
            size //= 2
            low, high = (
                ir.Constant(ir.VectorType(INT32, size), [INT32(n + at) for n in range(size)]) for at in (0, size)
            )
            parts = (self.builder.shuffle_vector(vector, vector, places) for places in (low, high))
            vector = self.builder.fadd(*parts)
        return self.builder.extract_element(vector, INT32(0))


def _pointers(context: Any, builder: Any, kinds: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return where the elements of arrays begin, and numbers as they are."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(kinds, values, strict=True)
    ]


def weight_dot_of(form: WeightForm) -> Any:
    """Return what gives the dot product of one row, laid out as limbs, with one row of weights.

    A row is ``spans`` times ``span`` blocks, fewer at the end, which are added up in whole numbers and scaled; the scale and the zero of
    the next span stand ``next_scale`` further. ``sums`` has for each span, limb by limb and lane by lane, what is added to the sums of
    products, or what is added as often as a zero point says. Of the bytes of a row of weights that are no whole block, ``rest`` has a
    copy, filled up.
    """

    @intrinsic
    def weight_dot(
        typing: Any, data: Any, at: Any, blocks: Any, rest: Any, some_left: Any, x: Any, at_x: Any, sums: Any, at_sums: Any, step: Any,
        scales: Any, zeros: Any, at_scale: Any, span: Any, spans: Any, next_scale: Any,
    ) -> Any:  # fmt: skip
        kinds = (
            data, at, blocks, rest, some_left, x, at_x, sums, at_sums, step, scales, zeros, at_scale, span, spans,
            next_scale,
        )  # fmt: skip

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            w, place, lanes = _Writer(builder, form), args[1].type, form.dot.lanes
            given = _pointers(context, builder, signature.args, args)
            (
                data,
                at,
                blocks,
                rest,
                some_left,
                x,
                at_x,
                sums,
                at_sums,
                step,
                scales,
                zeros,
                at_scale,
                span,
                spans,
                next_scale,
            ) = given
            span, times, plus = place(form.span) if form.span else span, builder.mul, builder.add
            total = cgutils.alloca_once_value(builder, ir.Constant(w.floats, None))
            own = [[cgutils.alloca_once(builder, w.words) for _ in range(form.limbs)] for _ in range(form.classes)]
            source, row, row_sums = builder.gep(data, [at]), builder.gep(x, [at_x]), builder.gep(sums, [at_sums])
            steps = [w.in_every_lane(builder.fmul(step, FLOAT(2.0 ** (form.limb_bits * n)))) for n in range(form.limbs)]
            width = form.dot.terms * lanes  # elements in a vector

            def add_blocks(words: Any, number: Any, count: int) -> None:
                """Add the products of so many blocks, the first of which has this number."""
                pairs: dict[tuple[int, int], Any] = {}  # sums of 16 bits, where the instruction gives such
                for block in range(count):
                    here = builder.gep(words, [place(block * 4 * lanes)])
                    if block * 4 * lanes % LINE == 0:
                        ahead = builder.gep(here, [place(AHEAD)])
                        call(builder, "llvm.prefetch.p0i8", ir.VoidType(), ahead, INT32(0), INT32(3), INT32(1))
                    first = builder.gep(
                        row, [times(plus(number, place(block)), place(form.places * form.limbs * width))]
                    )
                    for p, weights in enumerate(w.small_integers_at(here)):
                        c = p % form.classes
                        for n in range(form.limbs):
                            limb = w.load(builder.gep(first, [place((p * form.limbs + n) * width)]), w.words)
                            if form.dot.adds_pairs:
                                more = pairs_of_products(builder, form.dot, weights, limb)
                                pairs[c, n] = builder.add(pairs[c, n], more) if (c, n) in pairs else more
                            else:
                                was = builder.load(own[c][n])
                                builder.store(add_products(builder, form.dot, was, weights, limb), own[c][n])
                for (c, n), pair in pairs.items():
                    builder.store(add_pairs(builder, form.dot, builder.load(own[c][n]), pair), own[c][n])

            def add_blocks_at(number: Any, count: int) -> None:
                add_blocks(builder.gep(source, [times(number, place(4 * lanes))]), number, count)

            def finish(number: Any) -> None:
                """Scale the sums of a span and add them to the total."""
                which = plus(at_scale, times(number, next_scale))
                value = None
                for n in range(form.limbs):
                    whole = builder.load(own[0][n])
                    for c in range(1, form.classes):
                        whole = builder.add(whole, builder.ashr(builder.load(own[c][n]), w.same(c * form.bits)))
                    if form.bits == 1 and form.signed:
                        whole = builder.add(whole, whole)
                    offset = times(plus(times(number, place(form.limbs)), place(n)), place(lanes))
                    more = w.load(builder.gep(row_sums, [offset]), w.words)
                    if form.zeros:
                        zero = builder.add(w.of_groups(builder.gep(zeros, [which])), w.same(form.bias))
                        more = builder.mul(more, zero)
                    limb = builder.sitofp(builder.add(whole, more), w.floats)
                    value = builder.fmul(limb, steps[n]) if value is None else w.multiply_add(limb, steps[n], value)
                scale = w.of_groups(builder.gep(scales, [which]))
                builder.store(w.multiply_add(value, scale, builder.load(total)), total)

            with cgutils.for_range(builder, spans) as outer:
                for sum_ in (s for every in own for s in every):
                    builder.store(ir.Constant(w.words, None), sum_)
                begin = times(outer.index, span)
                if form.span:
                    add_blocks_at(begin, form.span)
                else:
                    end = plus(begin, span)
                    stop = builder.select(builder.icmp_signed("<", end, blocks), end, blocks)
                    runs = builder.sdiv(builder.sub(stop, begin), place(form.run))
                    with cgutils.for_range(builder, runs) as inner:
                        add_blocks_at(plus(begin, times(inner.index, place(form.run))), form.run)
                    after = plus(begin, times(runs, place(form.run)))
                    with cgutils.for_range(builder, builder.sub(stop, after)) as inner:
                        add_blocks_at(plus(after, inner.index), 1)
                    reaches_rest = builder.icmp_signed(">", end, blocks)
                    with builder.if_then(builder.and_(reaches_rest, builder.icmp_signed(">", some_left, place(0)))):
                        add_blocks(rest, blocks, 1)
                finish(outer.index)
            return w.sum_of_lanes(builder.load(total))

        return types.float32(*kinds), write

    return weight_dot


def weight_floats_of(form: WeightForm) -> Any:
    """Return what writes blocks of weights as floats, (number - zero) * scale: the first of each word, then the second, and so on.

    ``scales`` and ``zeros`` have one for each word of a block; zeros count from the least number.
    """

    @intrinsic
    def weight_floats(
        typing: Any, data: Any, at: Any, blocks: Any, scales: Any, zeros: Any, out: Any, at_out: Any
    ) -> Any:
        kinds = (data, at, blocks, scales, zeros, out, at_out)

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            w, place, lanes = _Writer(builder, form), args[1].type, form.dot.lanes
            data, at, blocks, scales, zeros, out, at_out = _pointers(context, builder, signature.args, args)
            scale, less = w.load(scales, w.floats), builder.fneg(w.load(zeros, w.floats))
            source, target = builder.gep(data, [at]), builder.gep(out, [at_out])
            with cgutils.for_range(builder, blocks) as loop:
                words = builder.gep(source, [builder.mul(loop.index, place(4 * lanes))])
                for s, (value, times) in enumerate(w.floats_at(words)):
                    factor = ir.Constant(w.floats, [FLOAT(1 / times)] * lanes)
                    value = w.multiply_add(value, factor, less)  # exact
                    offset = builder.add(builder.mul(loop.index, place(form.block)), place(s * lanes))
                    address = builder.bitcast(builder.gep(target, [offset]), w.floats.as_pointer())
                    builder.store(builder.fmul(value, scale), address, align=4)
            return context.get_dummy_value()

        return types.void(*kinds), write

    return weight_floats
