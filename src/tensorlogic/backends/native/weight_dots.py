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

from .dot_instructions import BYTE, INT32, call, vector_at

FLOAT = ir.FloatType()


class WeightForm(NamedTuple):
    """Weights of so many bits, so many lanes at a time: so many rows, and so many rows of weights, at once."""

    bits: int
    signed: bool
    lanes: int
    rows: int
    outputs: int
    zeros: bool = False
    ahead: int = 0
    natural: bool = True

    @property
    def each(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    @property
    def block(self) -> int:
        """Weights in a vector of words."""
        return self.lanes * self.each

    @property
    def unit(self) -> float:
        """What 1 is in the sums: weights of 2 and 4 bits stay at the upper end of a word."""
        return 2.0 ** (32 - self.bits) if self.bits > 1 and not (self.bits == 8 and self.natural) and self.signed and not self.zeros else 1.0


class _Writer:
    """Writes the code of one product; ``same`` is a number in every lane."""

    def __init__(self, builder: Any, form: WeightForm) -> None:
        self.builder, self.form = builder, form
        self.words, self.floats = ir.VectorType(INT32, form.lanes), ir.VectorType(FLOAT, form.lanes)

    def same(self, number: int) -> Any:
        return ir.Constant(self.words, [INT32(number)] * self.form.lanes)

    def spread(self, value: Any) -> Any:
        vector = ir.VectorType(value.type, self.form.lanes)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
        return self.builder.shuffle_vector(first, first, ir.Constant(self.words, None))

    def load(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.bitcast(address, kind.as_pointer()), align=1)

    def weights_at(self, data: Any, zero: Any) -> Iterator[Any]:
        """Write the weights of a block as vectors of floats, less the zero where there is one, and as often as :attr:`WeightForm.unit` says."""
        b, form = self.builder, self.form
        if form.bits == 8 and form.natural:
            octets = ir.VectorType(BYTE, form.lanes)
            for s in range(4):
                value = self.load(vector_at(b, data, s * form.lanes), octets)
                wide = (b.sext if form.signed else b.zext)(value, self.words)
                yield b.sitofp(wide if zero is None else b.sub(wide, zero), self.floats)
            return
        word = self.load(data, self.words)
        if form.bits == 1:
            word = b.xor(word, self.same(-1))
        for s in range(form.each):
            high = b.shl(word, self.same(32 - form.bits * (s + 1)))
            if form.bits == 1:  # 1.0, with the opposite of the bit as its sign
                sign = b.and_(high, self.same(-(1 << 31)))
                yield b.bitcast(b.or_(sign, self.same(0x3F800000)), self.floats)
            elif zero is None and form.signed:
                yield b.sitofp(b.and_(high, self.same(-1 << 32 - form.bits)), self.floats)
            else:
                low = (b.ashr if form.signed else b.lshr)(high, self.same(32 - form.bits))
                yield b.sitofp(low if zero is None else b.sub(low, zero), self.floats)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        return call(self.builder, f"llvm.fmuladd.v{self.form.lanes}f32", self.floats, x, y, z)

    def total(self, vectors: Sequence[Any]) -> Any:
        every = list(vectors)
        while len(every) > 1:
            every = [self.builder.fadd(*every[n : n + 2]) if n + 1 < len(every) else every[n] for n in range(0, len(every), 2)]
        return every[0]

    def sum_of_lanes(self, vector: Any) -> Any:
        """Write the sum of the lanes: halves added until one is left."""
        size = self.form.lanes
        while size > 1:
            size //= 2
            low, high = (ir.Constant(ir.VectorType(INT32, size), [INT32(n + at) for n in range(size)]) for at in (0, size))
            parts = (self.builder.shuffle_vector(vector, vector, places) for places in (low, high))
            vector = self.builder.fadd(*parts)
        return self.builder.extract_element(vector, INT32(0))


def weight_dots_of(form: WeightForm) -> Any:
    """Return what writes the dot products of some rows with some rows of weights.

    ``span`` blocks share a scale and a zero; where it is 0, each word has those that ``scale_of`` says. Of the bytes of a row of weights that are
    no whole block, ``rest`` has a copy, filled up.
    """
    partial = max(1, min(form.each, 8 // (form.rows * form.outputs)))  # sums that do not wait for one another

    @intrinsic
    def weight_dots(
        typing: Any, data: Any, width: Any, rest: Any, x: Any, at_x: Any, next_x: Any, scales: Any, zeros: Any, groups: Any, scale_of: Any,
        span: Any, out: Any, at_out: Any, next_out: Any, first: Any, last: Any,
    ) -> Any:  # fmt: skip
        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            w = _Writer(builder, form)
            place = args[1].type
            width, span, groups = args[1], args[10], args[8]

            def pointer(n: int, *offsets: Any) -> Any:
                start = context.make_array(signature.args[n])(context, builder, args[n]).data
                for offset in offsets:
                    start = builder.gep(start, [offset])
                return start

            rows = [pointer(3, args[4], builder.mul(args[5], place(r))) for r in range(form.rows)]
            numbers = []  # of the outputs; the last again where there are fewer
            for n in range(form.outputs):
                number, highest = builder.add(args[14], place(n)), builder.sub(args[15], place(1))
                numbers.append(builder.select(builder.icmp_signed("<", number, highest), number, highest))
            sources = [builder.bitcast(pointer(0, builder.mul(n, width)), BYTE.as_pointer()) for n in numbers]
            lefts = [builder.bitcast(pointer(2, place(4 * form.lanes * n)), BYTE.as_pointer()) for n in range(form.outputs)]
            scale_rows = [pointer(6, builder.mul(n, groups)) for n in numbers]
            zero_rows = [pointer(7, builder.mul(n, groups)) for n in numbers]
            nothing, none = ir.Constant(w.floats, None), [None] * form.outputs
            cells = [(r, o) for r in range(form.rows) for o in range(form.outputs)]
            totals = {cell: cgutils.alloca_once_value(builder, nothing) for cell in cells}
            sums = {cell: [cgutils.alloca_once(builder, w.floats) for _ in range(partial)] for cell in cells}

            def clear() -> None:
                for own in sums.values():
                    for s in own:
                        builder.store(nothing, s)

            def add_block(data: Sequence[Any], number: Any, zero: Sequence[Any]) -> None:
                start = builder.mul(number, place(form.block))
                if form.ahead:
                    for source in data:
                        hint = [INT32(0), INT32(3), INT32(1)]
                        call(builder, "llvm.prefetch.p0i8", ir.VoidType(), builder.gep(source, [place(form.ahead)]), *hint)
                every = [w.weights_at(source, own) for source, own in zip(data, zero, strict=True)]
                for s, values in enumerate(zip(*every, strict=True)):
                    offset = builder.add(start, place(s * form.lanes))
                    for r in range(form.rows):
                        factor = w.load(builder.gep(rows[r], [offset]), w.floats)
                        for o in range(form.outputs):
                            own = sums[r, o][s % partial]
                            builder.store(w.multiply_add(factor, values[o], builder.load(own)), own)

            def add_sums(scale: Sequence[Any]) -> None:
                for (r, o), own in sums.items():
                    more = w.total([builder.load(s) for s in own])
                    builder.store(w.multiply_add(more, scale[o], builder.load(totals[r, o])), totals[r, o])

            def shared(which: Any, table: Sequence[Any]) -> list[Any]:
                return [w.spread(builder.load(builder.gep(row, [which]))) for row in table]

            def by_word(number: Any, table: Sequence[Any], kind: Any) -> list[Any]:
                found = [ir.Constant(kind, ir.Undefined) for _ in table]
                for n in range(form.lanes):
                    which = builder.load(pointer(9, builder.mul(number, place(form.lanes)), place(n)))
                    for o, row in enumerate(table):
                        found[o] = builder.insert_element(found[o], builder.load(builder.gep(row, [which])), INT32(n))
                return found

            blocks = builder.sdiv(width, place(4 * form.lanes))
            whole = builder.mul(blocks, place(4 * form.lanes))
            some_left = builder.icmp_signed("<", whole, width)

            def moved(number: Any) -> list[Any]:
                return [builder.gep(source, [builder.mul(number, place(4 * form.lanes))]) for source in sources]

            with builder.if_else(builder.icmp_signed(">", span, place(0))) as (together, apart):
                with together:
                    everything = builder.add(blocks, builder.zext(some_left, place))
                    spans = builder.sdiv(builder.sub(builder.add(everything, span), place(1)), span)
                    with cgutils.for_range(builder, spans) as outer:
                        clear()
                        start = builder.mul(outer.index, span)
                        end = builder.add(start, span)
                        stop = builder.select(builder.icmp_signed("<", end, blocks), end, blocks)
                        zero = shared(outer.index, zero_rows) if form.zeros else none
                        with cgutils.for_range(builder, builder.sub(stop, start)) as inner:
                            number = builder.add(start, inner.index)
                            add_block(moved(number), number, zero)
                        with builder.if_then(builder.and_(some_left, builder.icmp_signed(">", end, blocks))):
                            add_block(lefts, blocks, zero)
                        add_sums(shared(outer.index, scale_rows))
                with apart:
                    with cgutils.for_range(builder, blocks) as outer:
                        clear()
                        add_block(moved(outer.index), outer.index, by_word(outer.index, zero_rows, w.words) if form.zeros else none)
                        add_sums(by_word(outer.index, scale_rows, w.floats))
                    with builder.if_then(some_left):
                        clear()
                        add_block(lefts, blocks, by_word(blocks, zero_rows, w.words) if form.zeros else none)
                        add_sums(by_word(blocks, scale_rows, w.floats))
            for (r, o), total in totals.items():
                target = pointer(11, args[12], builder.mul(args[13], place(r)), numbers[o])
                whole = w.sum_of_lanes(builder.load(total))
                builder.store(builder.fmul(whole, FLOAT(1 / form.unit)), target)
            return context.get_dummy_value()

        kinds = (data, width, rest, x, at_x, next_x, scales, zeros, groups, scale_of, span, out, at_out, next_out, first, last)
        return types.void(*kinds), write

    return weight_dots
