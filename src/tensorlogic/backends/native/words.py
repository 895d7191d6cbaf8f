"""Kernels over packed bits: rows of 64-bit words, bit j of a row in word j // 64, padding bits zero.

Every kernel takes a range of rows (or of a batch), so that threads can share the work. What LLVM would not find by itself is
written as its own instructions: 64 bytes to one word and back, and the OR of many rows kept in vector registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .support import kernel

WORD = ir.IntType(64)
BYTE = ir.IntType(8)
ROOM = 1 << 15  # set bits whose row numbers are held at once: they stay in the cache
ONE = np.uint64(1)


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any, to: Any) -> Any:
    """Return the address of an array's element, counted from its first, as a pointer to vectors of a type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())


@intrinsic
def count_ones(typing: Any, word: Any) -> Any:
    """Return how many bits of a word are set."""
    return types.uint64(types.uint64), lambda context, builder, sig, args: builder.ctpop(args[0])


@intrinsic
def lowest(typing: Any, word: Any) -> Any:
    """Return the number of the lowest set bit of a word, 64 where it is zero."""
    flag = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda context, builder, sig, args: builder.cttz(args[0], flag)


@intrinsic
def _gathered(typing: Any, array: Any, offset: Any) -> Any:
    """Return 64 bytes as the bits of a word: set where a byte is not zero."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(BYTE, 64)
        loaded = builder.load(_address(context, builder, sig.args[0], args[0], args[1], vector), align=1)
        return builder.bitcast(builder.icmp_unsigned("!=", loaded, ir.Constant(vector, [0] * 64)), WORD)

    return types.uint64(array, types.int64), make


@intrinsic
def _scattered(typing: Any, array: Any, offset: Any, word: Any) -> Any:
    """Write the bits of a word as 64 bytes of 0 or 1."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(BYTE, 64)
        bits = builder.bitcast(args[2], ir.VectorType(ir.IntType(1), 64))
        address = _address(context, builder, sig.args[0], args[0], args[1], vector)
        builder.store(builder.zext(bits, vector), address, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), make


def _rows_or(width: int) -> Any:
    """Make the OR of listed rows, ``width`` words of each, into a place of the result; it stays in registers meanwhile."""

    @intrinsic
    def rows_or(
        typing: Any, out: Any, place: Any, rows: Any, column: Any, stride: Any, listed: Any, start: Any, stop: Any
    ) -> Any:
        def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = ir.VectorType(WORD, width)
            target = _address(context, builder, sig.args[0], args[0], args[1], vector)
            total = cgutils.alloca_once_value(builder, builder.load(target, align=8))
            source = context.make_array(sig.args[2])(context, builder, args[2]).data
            numbers = context.make_array(sig.args[5])(context, builder, args[5]).data
            with cgutils.for_range_slice(builder, args[6], args[7], WORD(1), WORD) as (n, _):
                row = builder.sext(builder.load(builder.gep(numbers, [n])), WORD)
                at = builder.gep(source, [builder.add(builder.mul(row, args[4]), args[3])])
                more = builder.load(builder.bitcast(at, vector.as_pointer()), align=8)
                builder.store(builder.or_(builder.load(total), more), total)
            builder.store(builder.load(total), target, align=8)
            return context.get_dummy_value()

        whole = types.int64
        return types.void(out, whole, rows, whole, whole, listed, whole, whole), make

    return rows_or


def _table_or(width: int) -> Any:
    """Make the OR of the sixteen table rows that the four-bit digits of a word choose into a place of the result."""

    @intrinsic
    def table_or(typing: Any, out: Any, place: Any, table: Any, word: Any) -> Any:
        def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = ir.VectorType(WORD, width)
            target = _address(context, builder, sig.args[0], args[0], args[1], vector)
            total = builder.load(target, align=8)
            for digit in range(16):
                chosen = builder.and_(builder.lshr(args[3], WORD(4 * digit)), WORD(15))
                at = builder.mul(builder.add(chosen, WORD(16 * digit)), WORD(width))
                more = builder.load(_address(context, builder, sig.args[2], args[2], at, vector), align=8)
                total = builder.or_(total, more)
            builder.store(total, target, align=8)
            return context.get_dummy_value()

        return types.void(out, types.int64, table, types.uint64), make

    return table_or


_rows16, _rows4, _rows1 = _rows_or(16), _rows_or(4), _rows_or(1)
_table16, _table4, _table1 = _table_or(16), _table_or(4), _table_or(1)


@kernel
def pack(flat: Any, n: int, stride: int, out: Any, lo: int, hi: int) -> None:
    """Pack rows of n bytes, each of which begins ``stride`` bytes after the one before."""
    size = flat.size
    full, rest = n >> 6, n & 63
    for i in range(lo, hi):
        base = i * stride
        for w in range(full):
            out[i, w] = _gathered(flat, base + (w << 6))
        if rest:
            if full:
                out[i, full] = _gathered(flat, base + n - 64) >> np.uint64(64 - rest)
            elif base + 64 <= size:
                out[i, 0] = _gathered(flat, base) & ((ONE << np.uint64(rest)) - ONE)
            else:
                word = np.uint64(0)
                for j in range(rest):
                    word |= np.uint64(flat[base + j] != 0) << np.uint64(j)
                out[i, 0] = word


@kernel
def unpack(words: Any, n: int, flat: Any, lo: int, hi: int) -> None:
    """Unpack rows into n bytes each, one row after another."""
    full, rest = n >> 6, n & 63
    end = hi * n
    for i in range(lo, hi):
        base = i * n
        for w in range(full):
            _scattered(flat, base + (w << 6), words[i, w])
        if rest:
            last = words[i, full]
            if full:
                before = words[i, full - 1] >> np.uint64(rest)
                _scattered(flat, base + n - 64, last << np.uint64(64 - rest) | before)
            elif base + 64 <= end:  # the rows that follow put right what this one writes too much
                _scattered(flat, base, last)
            else:
                for j in range(rest):
                    flat[base + j] = last >> np.uint64(j) & ONE


@kernel
def count(flat: Any, lo: int, hi: int) -> Any:
    """Count the set bits of a range of words."""
    total = np.uint64(0)
    for i in range(lo, hi):
        total += count_ones(flat[i])
    return np.int64(total)


@kernel
def absorb(known: Any, more: Any, fresh: Any, lo: int, hi: int) -> Any:
    """Add bits to what is known, set aside those that were not, and tell whether there were any."""
    found = np.uint64(0)
    for i in range(lo, hi):
        word = more[i] & ~known[i]
        known[i] |= word
        fresh[i] = word
        found |= word
    return found != 0


@kernel
def row_or(a: Any, b: Any, out: Any, first: int, last: int, lo: int, hi: int, block: int) -> None:
    """OR into each row of the result those rows of b that the set bits of a's row name: good where few are set.

    It goes through b by ``block`` words of a's rows at a time; where that is less than all of them, what is read of b is copied so
    that it lies together.
    """
    inner, width, size = a.shape[2], b.shape[2], b.shape[1]
    step = 16 if width >= 16 else 4 if width >= 4 else 1
    apart = step == 16 and block < inner
    if not apart:
        block = max(inner, 1)
    listed = np.empty(max(ROOM, block << 6) + 4, np.int32)
    ends = np.empty(hi - lo + 1, np.int64)
    panel = np.empty((block << 6) * step if apart else 1, np.uint64)
    for batch in range(first, last):
        left, right, target = a[batch], b[batch], out[batch].reshape(-1)
        flat = right.reshape(-1)
        for origin in range(0, inner, block):
            bound = min(inner, origin + block)
            rows = min(size, bound << 6) - (origin << 6)
            begin = lo
            while begin < hi:
                used: Any = 0
                stop = begin
                ends[0] = 0
                while stop < hi and used + ((bound - origin) << 6) <= listed.size - 4:
                    for w in range(origin, bound):
                        word = left[stop, w]
                        if word:
                            base, more = (w - origin) << 6, np.int64(count_ones(word))
                            for k in range(4):  # most words have no more; what is written too much is written over
                                listed[used + k] = base + lowest(word)
                                word &= word - ONE
                            for k in range(4, more):
                                listed[used + k] = base + lowest(word)
                                word &= word - ONE
                            used += more
                    stop += 1
                    ends[stop - begin] = used
                column = 0
                while column < width:
                    at = min(column, width - step)  # the last block laps over the one before: an OR may be done twice
                    if apart:
                        for k in range(rows):
                            for j in range(step):
                                panel[k * step + j] = right[(origin << 6) + k, at + j]
                    for i in range(begin, stop):
                        start, end = ends[i - begin], ends[i - begin + 1]
                        if start == end:
                            continue
                        if apart:
                            _rows16(target, i * width + at, panel, 0, step, listed, start, end)
                        elif step == 16:
                            _rows16(target, i * width + at, flat, at, width, listed, start, end)
                        elif step == 4:
                            _rows4(target, i * width + at, flat, at, width, listed, start, end)
                        else:
                            _rows1(target, i * width + at, flat, at, width, listed, start, end)
                    column += step
                begin = stop


@kernel
def table_or(a: Any, b: Any, out: Any, first: int, last: int, lo: int, hi: int) -> None:
    """The same by the method of the four Russians: tables of every OR of four rows, so that density costs nothing."""
    inner, width, size = a.shape[2], b.shape[2], b.shape[1]
    step = 16 if width >= 16 else 4 if width >= 4 else 1
    table = np.zeros(256 * step, np.uint64)
    for batch in range(first, last):
        left, right, target = a[batch], b[batch], out[batch].reshape(-1)
        column = 0
        while column < width:
            at = min(column, width - step)
            for w in range(inner):
                for digit in range(16):
                    row = (w << 6) + 4 * digit
                    for v in range(1, 16):
                        here = (16 * digit + v) * step
                        there = (16 * digit + (v & (v - 1))) * step
                        new = row + lowest(np.uint64(v))
                        if new < size:
                            for j in range(step):
                                table[here + j] = table[there + j] | right[new, at + j]
                        else:
                            for j in range(step):
                                table[here + j] = table[there + j]
                for i in range(lo, hi):
                    word = left[i, w]
                    if word:
                        if step == 16:
                            _table16(target, i * width + at, table, word)
                        elif step == 4:
                            _table4(target, i * width + at, table, word)
                        else:
                            _table1(target, i * width + at, table, word)
            column += step


@kernel
def transpose(a: Any, out: Any, lo: int, hi: int) -> None:
    """Transpose bit matrices by squares of 64 bits; the range is of the result's rows of squares, through the batch."""
    rows = a.shape[1]
    columns, high = out.shape[1], out.shape[2]
    square = np.empty(64, np.uint64)
    across = (columns + 63) >> 6
    for k in range(lo, hi):
        batch, c = k // across, k % across
        for r in range(high):
            there = min(64, rows - (r << 6))
            for i in range(there):
                square[i] = a[batch, (r << 6) + i, c]
            for i in range(there, 64):
                square[i] = 0
            half = 32
            mask = np.uint64(0xFFFFFFFF)
            while half:
                shift = np.uint64(half)
                for block in range(0, 64, 2 * half):
                    for i in range(block, block + half):
                        swap = (square[i] >> shift ^ square[i + half]) & mask
                        square[i] ^= swap << shift
                        square[i + half] ^= swap
                half >>= 1
                mask ^= mask << np.uint64(half)
            for i in range(min(64, columns - (c << 6))):
                out[batch, (c << 6) + i, r] = square[i]


@kernel
def closure(edges: Any, out: Any, nodes: Any, sets: Any, counts: Any, budget: int) -> Any:
    """Set each row of the result to what its node reaches in one step or more.

    Tarjan's search names strongly connected components from the sinks up, so that whatever a component leads to is known
    when its own row is made: the OR of rows that are not yet part of it. After about ``budget`` words it stops between two nodes and returns
    False; called again with the same arrays it goes on. ``nodes`` and ``sets`` are zero before, but for the set of all nodes, the first;
    ``counts`` has the root, the depth (-1), and how many nodes were met and are on the stack.
    """
    n, width = edges.shape
    order, low = nodes[0], nodes[1]  # order: when a node was met, from 1; 0: not yet
    place, path, stack = nodes[2], nodes[3], nodes[4]  # place: the word of its row that a node is at
    new, waiting = sets[0], sets[1]  # nodes not met yet, and nodes on the stack
    own, total = sets[2], sets[3]  # own: nodes of the component
    root, depth, met, top = counts[0], counts[1], counts[2], counts[3]
    while root < n:
        if depth < 0:
            if order[root]:
                root += 1
                continue
            depth = 0
            path[0] = root
        while depth >= 0:
            if budget < 0:
                counts[0], counts[1], counts[2], counts[3] = root, depth, met, top
                return False
            budget -= width
            v = path[depth]
            if not order[v]:
                met += 1
                order[v] = low[v] = met
                stack[top] = v
                top += 1
                bit = ONE << np.uint64(v & 63)
                new[v >> 6] &= ~bit
                waiting[v >> 6] |= bit
            w = place[v]
            while w < width and edges[v, w] & new[w] == 0:
                w += 1
            place[v] = w
            if w < width:
                depth += 1
                path[depth] = (w << 6) + lowest(edges[v, w] & new[w])
                continue
            for w in range(width):  # who waits and is led to; nobody waits longer than the first of the stack
                if low[v] == order[stack[0]]:
                    break
                word = edges[v, w] & waiting[w]
                while word:
                    low[v] = min(low[v], order[(w << 6) + lowest(word)])
                    word &= word - ONE
            depth -= 1
            if depth >= 0:
                low[path[depth]] = min(low[path[depth]], low[v])
            if low[v] != order[v]:
                continue
            start = top
            while True:
                start -= 1
                own[stack[start] >> 6] |= ONE << np.uint64(stack[start] & 63)
                if stack[start] == v:
                    break
            around = top - start > 1 or edges[v, v >> 6] >> np.uint64(v & 63) & ONE != 0
            for k in range(start, top):
                u = stack[k]
                for w in range(width):
                    word = edges[u, w] & ~total[w] & ~own[w]
                    while word:
                        t = (w << 6) + lowest(word)
                        budget -= width
                        for j in range(width):
                            total[j] |= out[t, j]
                        total[w] |= word & (~word + ONE)
                        word &= ~total[w]
            for j in range(width):
                if around:
                    total[j] |= own[j]
                waiting[j] &= ~own[j]
            for k in range(start, top):
                for j in range(width):
                    out[stack[k], j] = total[j]
            budget -= 2 * (top - start) * width
            top = start
            for j in range(width):
                total[j] = 0
                own[j] = 0
        root += 1
    return True
