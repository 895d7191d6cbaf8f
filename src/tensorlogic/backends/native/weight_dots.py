"""The innermost loop of products of float rows with packed weights: weights are unpacked in registers.

Weights are read as words of 32 bits, one to a lane. A word holds consecutive weights, so lane j of the s-th vector that comes of a block is
weight ``j * each + s`` of it; the rows are laid out in that order beforehand. All but the highest weight of a word are used where they stand
in it, 2 ** (bits * s) times too large; the rows are made as much smaller beforehand, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .dot_instructions import INT32, call

FLOAT = ir.FloatType()
AHEAD = (
    4096  # bytes before they are read, weights are asked for: across a page, where the processor does not do so itself
)


class WeightForm(NamedTuple):
    """Weights of so many bits, so many lanes at a time: so many rows, and so many rows of weights, at once."""

    bits: int
    signed: bool
    lanes: int
    rows: int
    outputs: int

    @property
    def each(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    @property
    def block(self) -> int:
        """Weights in a vector of words."""
        return self.lanes * self.each

    @property
    def bias(self) -> int:
        """What weights are more than they stand for: two's complement is read as what is above the least."""
        return 1 << (self.bits - 1) if self.signed and self.bits > 1 else 0

    @property
    def factors(self) -> list[float]:
        """What the rows are multiplied by beforehand, for each place in a word."""
        if self.bits == 1:
            return [1.0] * self.each
        return [2.0 ** -(self.bits * s) for s in range(self.each - 1)] + [1.0]


class _Writer:
    """Writes the code of one product; ``same`` is a number in every lane."""

    def __init__(self, builder: Any, form: WeightForm) -> None:
        self.builder, self.form = builder, form
        self.words, self.floats = ir.VectorType(INT32, form.lanes), ir.VectorType(FLOAT, form.lanes)

    def same(self, number: int) -> Any:
        return ir.Constant(self.words, [INT32(number)] * self.form.lanes)

    def in_every_lane(self, value: Any) -> Any:
        vector = ir.VectorType(value.type, self.form.lanes)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
        return self.builder.shuffle_vector(first, first, ir.Constant(self.words, None))

    def load(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.bitcast(address, kind.as_pointer()), align=1)

    def weights_at(self, data: Any) -> Iterator[Any]:
        """Write the weights of a block as vectors of floats: the s-th of each word, s after s."""
        b, bits, last = self.builder, self.form.bits, self.form.each - 1
        word = self.load(data, self.words)
        if bits == 1:
            word = b.xor(word, self.same(-1))
        elif self.form.signed:
            word = b.xor(word, self.same(sum(1 << bits * s + bits - 1 for s in range(last + 1))))
        for s in range(last + 1):
            if bits == 1:  # 1.0, with the opposite of the bit as its sign
                sign = b.and_(b.shl(word, self.same(31 - s)), self.same(-(1 << 31)))
                yield b.bitcast(b.or_(sign, self.same(0x3F800000)), self.floats)
            elif s == last:
                yield b.sitofp(b.lshr(word, self.same(32 - bits)), self.floats)
            else:
                yield b.sitofp(b.and_(word, self.same((1 << bits) - 1 << bits * s)), self.floats)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        return call(self.builder, f"llvm.fmuladd.v{self.form.lanes}f32", self.floats, x, y, z)

    def total(self, vectors: Sequence[Any]) -> Any:
        every = list(vectors)
        while len(every) > 1:
            every = [
                self.builder.fadd(*every[n : n + 2]) if n + 1 < len(every) else every[n]
                for n in range(0, len(every), 2)
            ]
        return every[0]

    def sum_of_lanes(self, vector: Any) -> Any:
        """Write the sum of the lanes: halves added until one is left."""
        size = self.form.lanes
        while size > 1:
            size //= 2
            low, high = (
                ir.Constant(ir.VectorType(INT32, size), [INT32(n + at) for n in range(size)]) for at in (0, size)
            )
            parts = (self.builder.shuffle_vector(vector, vector, places) for places in (low, high))
            vector = self.builder.fadd(*parts)
        return self.builder.extract_element(vector, INT32(0))


def weight_dots_of(form: WeightForm) -> Any:
    """Return what writes the dot products of some rows with some rows of weights.

    ``span`` blocks share a scale and a zero; where it is 0, each word has those that ``scale_of`` says. ``x_sums`` has the sums of what the rows
    are multiplied with, lane by lane, for each span, or for each block where there are none. Of the bytes of a row of weights that are no whole
    block, ``rest`` has a copy, filled up. Zeros are read at ``zero_step`` times their place: 0 where there is only one.
    """
    partial = max(1, min(form.each, 8 // (form.rows * form.outputs)))  # sums that do not wait for one another

    @intrinsic
    def weight_dots(
        typing: Any, data: Any, width: Any, rest: Any, x: Any, next_x: Any, x_sums: Any, next_sums: Any, scales: Any, zeros: Any, groups: Any,
        zero_step: Any, scale_of: Any, span: Any, out: Any, columns: Any, row: Any, first: Any, last: Any,
    ) -> Any:  # fmt: skip
        kinds = (
            data, width, rest, x, next_x, x_sums, next_sums, scales, zeros, groups, zero_step, scale_of, span, out, columns, row, first, last
        )  # fmt: skip
        names = (
            "data width rest x next_x x_sums next_sums scales zeros groups zero_step scale_of span out columns row first last"
        ).split()

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            w, given = _Writer(builder, form), dict(zip(names, args, strict=True))
            start = {
                name: context.make_array(kind)(context, builder, value).data
                for name, kind, value in zip(names, signature.args, args, strict=True)
                if isinstance(kind, types.Array)
            }
            place, lanes, times, plus = given["width"].type, form.lanes, builder.mul, builder.add
            width, span, groups, last = (given[name] for name in ("width", "span", "groups", "last"))
            numbers = []  # of the outputs; the last again where there are fewer
            for n in range(form.outputs):
                number, highest = plus(given["first"], place(n)), builder.sub(last, place(1))
                numbers.append(builder.select(builder.icmp_signed("<", number, highest), number, highest))

            def at(name: str, *offsets: Any) -> Any:
                address = start[name]
                for offset in offsets:
                    address = builder.gep(address, [offset])
                return address

            line = [plus(given["row"], place(r)) for r in range(form.rows)]
            rows = [at("x", times(given["next_x"], r)) for r in line]
            row_sums = [at("x_sums", times(given["next_sums"], r)) for r in line]
            sources = [at("data", times(n, width)) for n in numbers]
            lefts = [at("rest", place(4 * lanes * n)) for n in range(form.outputs)]
            cells = [(r, o) for r in range(form.rows) for o in range(form.outputs)]
            totals = {cell: cgutils.alloca_once_value(builder, ir.Constant(w.floats, None)) for cell in cells}
            sums = {cell: [cgutils.alloca_once(builder, w.floats) for _ in range(partial)] for cell in cells}

            def clear() -> None:
                for own in sums.values():
                    for s in own:
                        builder.store(ir.Constant(w.floats, None), s)

            def add_block(data: Sequence[Any], number: Any) -> None:
                for source in data:
                    address, hint = builder.gep(source, [place(AHEAD)]), [INT32(0), INT32(3), INT32(1)]
                    call(builder, "llvm.prefetch.p0i8", ir.VoidType(), address, *hint)
                for s, values in enumerate(zip(*map(w.weights_at, data), strict=True)):
                    offset = plus(times(number, place(form.block)), place(s * lanes))
                    for r in range(form.rows):
                        factor = w.load(builder.gep(rows[r], [offset]), w.floats)
                        for o in range(form.outputs):
                            own = sums[r, o][s % partial]
                            builder.store(w.multiply_add(factor, values[o], builder.load(own)), own)

            def add_sums(scale: Sequence[Any], zero: Sequence[Any], number: Any) -> None:
                """Add (sums - zero * sums of the rows) * scale to the totals."""
                for (r, o), own in sums.items():
                    more = w.total([builder.load(s) for s in own])
                    if form.bits > 1:
                        least = w.load(builder.gep(row_sums[r], [times(number, place(lanes))]), w.floats)
                        more = w.multiply_add(builder.fneg(zero[o]), least, more)
                    builder.store(w.multiply_add(more, scale[o], builder.load(totals[r, o])), totals[r, o])

            def scale_at(o: int, which: Any) -> Any:
                return builder.load(at("scales", plus(times(numbers[o], groups), which)))

            def zero_at(o: int, which: Any) -> Any:
                return builder.load(at("zeros", times(plus(times(numbers[o], groups), which), given["zero_step"])))

            def shared(which: Any, read: Callable[[int, Any], Any]) -> list[Any]:
                return [w.in_every_lane(read(o, which)) for o in range(form.outputs)]

            def by_word(number: Any, read: Callable[[int, Any], Any]) -> list[Any]:
                found = [ir.Constant(w.floats, ir.Undefined) for _ in numbers]
                for n in range(lanes):
                    which = builder.load(at("scale_of", times(number, place(lanes)), place(n)))
                    for o in range(form.outputs):
                        found[o] = builder.insert_element(found[o], read(o, which), INT32(n))
                return found

            blocks = builder.sdiv(width, place(4 * lanes))
            some_left = builder.icmp_signed("<", times(blocks, place(4 * lanes)), width)

            def moved(number: Any) -> list[Any]:
                return [builder.gep(source, [times(number, place(4 * lanes))]) for source in sources]

            with builder.if_else(builder.icmp_signed(">", span, place(0))) as (together, apart):
                with together:
                    everything = plus(blocks, builder.zext(some_left, place))
                    spans = builder.sdiv(builder.sub(plus(everything, span), place(1)), span)
                    with cgutils.for_range(builder, spans) as outer:
                        clear()
                        begin = times(outer.index, span)
                        end = plus(begin, span)
                        stop = builder.select(builder.icmp_signed("<", end, blocks), end, blocks)
                        with cgutils.for_range(builder, builder.sub(stop, begin)) as inner:
                            number = plus(begin, inner.index)
                            add_block(moved(number), number)
                        with builder.if_then(builder.and_(some_left, builder.icmp_signed(">", end, blocks))):
                            add_block(lefts, blocks)
                        add_sums(shared(outer.index, scale_at), shared(outer.index, zero_at), outer.index)
                with apart:
                    with cgutils.for_range(builder, blocks) as outer:
                        clear()
                        add_block(moved(outer.index), outer.index)
                        add_sums(by_word(outer.index, scale_at), by_word(outer.index, zero_at), outer.index)
                    with builder.if_then(some_left):
                        clear()
                        add_block(lefts, blocks)
                        add_sums(by_word(blocks, scale_at), by_word(blocks, zero_at), blocks)
            for (r, o), total in totals.items():
                target = at("out", times(given["columns"], line[r]), numbers[o])
                builder.store(w.sum_of_lanes(builder.load(total)), target)
            return context.get_dummy_value()

        return types.void(*kinds), write

    return weight_dots


def weight_floats_of(form: WeightForm) -> Any:
    """Return what writes one row of weights as floats, (number - zero) * scale, in the order in which rows are laid out."""

    @intrinsic
    def weight_floats(
        typing: Any, data: Any, at: Any, scales: Any, zeros: Any, at_scale: Any, zero_step: Any, scale_of: Any, at_word: Any, blocks: Any,
        out: Any, at_out: Any,
    ) -> Any:  # fmt: skip
        kinds = (data, at, scales, zeros, at_scale, zero_step, scale_of, at_word, blocks, out, at_out)

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            w = _Writer(builder, form)
            place, lanes = args[1].type, form.lanes

            def pointer(n: int, offset: Any) -> Any:
                return builder.gep(context.make_array(signature.args[n])(context, builder, args[n]).data, [offset])

            with cgutils.for_range(builder, args[8]) as loop:
                word = builder.add(args[7], builder.mul(loop.index, place(lanes)))
                scale = zero = ir.Constant(w.floats, ir.Undefined)
                for n in range(lanes):
                    which = builder.load(pointer(6, builder.add(word, place(n))))
                    spot = builder.add(args[4], which)
                    scale = builder.insert_element(scale, builder.load(pointer(2, spot)), INT32(n))
                    spot = builder.mul(spot, args[5])
                    zero = builder.insert_element(zero, builder.load(pointer(3, spot)), INT32(n))
                source = pointer(0, builder.add(args[1], builder.mul(loop.index, place(4 * lanes))))
                for s, value in enumerate(w.weights_at(source)):
                    if form.bits > 1:
                        factor = ir.Constant(w.floats, [FLOAT(form.factors[s])] * lanes)
                        value = builder.fsub(builder.fmul(value, factor), zero)  # both exact
                    offset = builder.add(builder.mul(loop.index, place(form.block)), place(s * lanes))
                    target = builder.bitcast(pointer(9, builder.add(args[10], offset)), w.floats.as_pointer())
                    builder.store(builder.fmul(value, scale), target, align=4)
            return context.get_dummy_value()

        return types.void(*kinds), write

    return weight_floats
