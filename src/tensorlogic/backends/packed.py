"""Packed bits: arrays of 64-bit words along the last axis, by native kernels or, where numba is absent, by NumPy.

Bit j of a row is bit j % 64 of word j // 64, and padding bits are zero, always. A tensor without axes is one word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ..events import check_contexts
from ..plan import sharing
from ..plan.native_memory import PIECE, SQUARE
from ..plan.nested import SMALL_PRODUCT
from ..plan.sharing import DENSE
from .native import support
from .threads import allowed, on_one_thread, share

Words = Any  # an array of uint64
ENOUGH = 1 << 20  # bits worth loading numba for, where it is not loaded yet
PAUSE = 1 << 26  # words of a closure after which it can be stopped
PANEL = 16  # words of a row that are gone through at a time where many bits are set


@cache
def _kernels() -> Any:
    from .native import words

    return words


def load() -> None:
    """Load numba and the kernels now, where they can be used, so that no run waits for that."""
    if support.usable():
        _kernels()


def _native(bits: int) -> Any:
    """Return the module of kernels, or None where NumPy serves: few bits and numba not loaded, or no numba."""
    return _kernels() if support.loaded() or (bits >= ENOUGH and support.usable()) else None


def _shared(count: int, worth: bool, call: Callable[[int, int], Any]) -> None:
    """Call for a range, in parts on the threads that the step may use where that is worth it."""
    share(call, count, min(allowed(), count) if worth else 1)


def width(n: int) -> int:
    """Return the words that n bits take.

    >>> width(0), width(64), width(65)
    (0, 1, 2)
    """
    return n + 63 >> 6


def ones(n: int) -> Words:
    """Return the words of a row of n set bits."""
    row = np.full(width(n), ~np.uint64(0))
    if n & 63:
        row[-1] = (1 << (n & 63)) - 1
    return row


def pack(x: Any) -> Words:
    """Return an array as words along its last axis; what is not zero is a set bit."""
    x = np.asarray(x)
    if x.ndim == 0:
        x = x.reshape(1)
    out = np.empty((*x.shape[:-1], width(x.shape[-1])), np.uint64)
    if out.size:
        _pack_into(x, out)
    return out


def _pack_into(x: Any, out: Words) -> None:
    """Write an array as words; of one that is not of truth values, or does not lie in order, a piece at a time is copied."""
    n = x.shape[-1]
    in_rows = x.ndim == 2 and x.strides[1] == 1 and x.strides[0] >= n  # columns of a matrix are read where they lie
    if x.dtype == np.bool_ and (in_rows or x.flags.c_contiguous):
        _pack_flags(x, out)
        return
    row = x.size // len(x)
    if x.ndim > 2 and row > PIECE:
        for part, words in zip(x, out, strict=True):
            _pack_into(part, words)
        return
    rows = x.ndim > 1  # else one, of words of its own
    most = max(2, 2 * PIECE // max(1, row))  # copies of all threads together are two pieces, or two rows
    threads = max(1, min(allowed(), len(x), most)) if rows and x.size >= sharing.PACKED_BYTES else 1
    step = max(1, min(PIECE, 2 * PIECE // threads) // max(1, row)) if rows else len(x)

    def some(lo: int, hi: int) -> None:
        for k in range(lo, hi, step):
            piece = slice(k, min(k + step, hi)) if rows else slice(None)
            # under no name, so that one copy is gone before the next is made
            _pack_flags(np.ascontiguousarray(x[piece] if x.dtype == np.bool_ else x[piece] != 0), out[piece])

    share(some, len(x) if rows else 1, threads)


def _pack_flags(flags: Any, out: Words) -> None:
    """Write truth values that lie in order, or are columns of a matrix, as words."""
    n = flags.shape[-1]
    kernels = _native(flags.size)
    if kernels is None:
        whole = np.zeros((*flags.shape[:-1], width(n) * 8), np.uint8)
        whole[..., : n + 7 >> 3] = np.packbits(flags, axis=-1, bitorder="little")
        out[...] = whole.view("<u8")
        return
    rows = out.reshape(-1, width(n))
    stride = flags.strides[0] if flags.ndim == 2 else n  # bytes from one row to the next
    flat = np.lib.stride_tricks.as_strided(flags, ((len(rows) - 1) * stride + n,), (1,)).view(np.uint8)
    _shared(len(rows), flags.size >= sharing.PACKED_BYTES, lambda lo, hi: kernels.pack(flat, n, stride, rows, lo, hi))


def unpack(words: Words, n: int, out: Any = None) -> Any:
    """Return words as an array of truth values with n of them along the last axis; into ``out`` where that is contiguous."""
    shape = (*words.shape[:-1], n)
    given, out = out, np.empty(shape, np.bool_) if out is None or not out.flags.c_contiguous else out
    if out.size:
        kernels = _native(out.size)
        if kernels is None:
            whole = np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8)
            out[...] = np.unpackbits(whole, axis=-1, count=n, bitorder="little").view(np.bool_)
        else:
            flat, rows = out.view(np.uint8).reshape(-1), np.ascontiguousarray(words).reshape(-1, width(n))
            _shared(len(rows), out.size >= sharing.PACKED_BYTES, lambda lo, hi: kernels.unpack(rows, n, flat, lo, hi))
    if given is not None and given is not out:
        given[...] = out
        return given
    return out


def count(words: Words) -> int:
    """Return how many bits are set."""
    kernels = _native(words.size * 64)
    if kernels is None:
        return int(np.bitwise_count(words).sum(dtype=np.int64))
    return int(kernels.count(np.ascontiguousarray(words).reshape(-1), 0, words.size))


def absorb(known: Words, more: Words) -> Words | None:
    """Add bits to what is known, in place; return those that were not, or None where there were none."""
    kernels = _native(known.size * 64)
    if kernels is None or not known.flags.c_contiguous:
        fresh = more & ~known
        known |= fresh
        return fresh if fresh.any() else None
    fresh = np.empty(known.shape, np.uint64)
    flat = [np.ascontiguousarray(x).reshape(-1) for x in (known, more, fresh)]
    return fresh if kernels.absorb(*flat, 0, known.size) else None


def transpose(words: Words, n: int) -> Words:
    """Exchange the last two axes; n is the size of the last one."""
    *lead, rows, across = words.shape
    kernels = _native(words.size * 64)
    if kernels is None:
        return pack(np.swapaxes(unpack(words, n), -1, -2))
    out = np.empty((*lead, n, width(rows)), np.uint64)
    if out.size:
        a, b = np.ascontiguousarray(words).reshape(-1, rows, across), out.reshape(-1, n, width(rows))
        squares = a.shape[0] * width(n)
        worth = squares * width(rows) * SQUARE > sharing.ORED_ROWS
        _shared(squares, worth, lambda lo, hi: kernels.transpose(a, b, lo, hi))
    return out


def permute(words: Words, shape: Sequence[int], order: Sequence[int]) -> Words:
    """Put the axes of a tensor in another order; only one that moves the last axis away touches single bits."""
    rank, order = len(shape), tuple(order)
    if order == tuple(range(rank)):
        return words
    last = order[-1]
    if last != rank - 1:  # beside the last axis first, then the two change places
        others = [a for a in range(rank - 1) if a != last]
        words = transpose(np.ascontiguousarray(words.transpose([*others, last, rank - 1])), shape[-1])
        now = [*others, rank - 1, last]
        order = tuple(now.index(a) for a in order)
    return np.ascontiguousarray(words.transpose(order))


def broadcast_words(words: Words, shape: Sequence[int], target: Sequence[int]) -> Words:
    """Repeat a tensor to a shape by NumPy's rules of broadcasting; the words need not lie together."""
    shape, target = tuple(shape), tuple(target)
    if shape == target or not target:
        return words
    if not shape or shape[-1] != target[-1]:  # one bit becomes a row
        words = np.where(words & np.uint64(1) != 0, ones(target[-1]), np.uint64(0))
    return np.broadcast_to(words, (*target[:-1], width(target[-1])))


def multiply(a: Words, b: Words, out: Words | None = None) -> Words:
    """Return, or OR into ``out``, the or-and product of matrices: [batch, i, words of k] and [batch, k, words of j].

    Bits of a beyond the rows of b must be zero. Few set bits: rows are ORed; many: the method of the four Russians.
    """
    batch, rows, inner = a.shape
    _, size, across = b.shape
    if out is None:
        out = np.zeros((batch, rows, across), np.uint64)
    if not (out.size and inner and size):
        return out
    kernels = _native(batch * rows * size * across)  # the work, in words
    if kernels is None:
        return _multiply_by_blas(a, b, out)
    set_bits = count(a)
    blocks = across + 15 >> 4
    by_rows, by_tables = set_bits * blocks, batch * inner * (rows + 30) * DENSE * blocks
    work = min(by_rows, by_tables)
    if work > sharing.ORED_ROWS // 4:
        turned = _turned_work(a, b)
        if turned < work:  # the other way about: those are the rows of few set bits
            left, right = transpose(b, across << 6)[:, :, : width(size)], transpose(a, inner << 6)[:, :size]
            product = multiply(np.ascontiguousarray(left), np.ascontiguousarray(right))
            out |= transpose(product, rows)[:, :, :across]
            return out
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if by_tables < by_rows:
        run = partial(kernels.table_or, a, b, out)
    else:
        few = set_bits * PANEL < batch * rows * inner * 8  # a panel must not be fetched for next to nothing
        run = partial(_row_or, kernels.row_or, a, b, out, inner if few else PANEL)
    worth = work > sharing.ORED_ROWS
    if batch > 1:
        _shared(batch, worth, lambda lo, hi: run(lo, hi, 0, rows))
    else:
        _shared(rows, worth, lambda lo, hi: run(0, 1, lo, hi))
    return out


def _row_or(kernel: Any, a: Words, b: Words, out: Words, block: int, first: int, last: int, lo: int, hi: int) -> None:
    kernel(a, b, out, first, last, lo, hi, block)


def _turned_work(a: Words, b: Words) -> int:
    """Return the cost of a product by way of its transpose."""
    batch, rows, inner = a.shape
    _, size, across = b.shape
    blocks = width(rows) + 15 >> 4
    work = min(count(b) * blocks, batch * width(size) * ((across << 6) + 30) * DENSE * blocks)
    squares: int = batch * (width(rows) * inner + width(size) * across + width(rows) * across)
    return int(work) + 2 * SQUARE * squares


def _multiply_by_blas(a: Words, b: Words, out: Words) -> Words:
    size, across = b.shape[1], b.shape[2]
    right = unpack(b, across << 6).astype(np.float32)
    step = max(1, (1 << 22) // max(1, a.shape[0] * max(size, across << 6)))
    small = 2 * min(step, a.shape[1]) * size * (across << 6) < SMALL_PRODUCT
    multiply = on_one_thread(np.matmul) if small else np.matmul  # a closure has many, one waiting for the other
    for lo in range(0, a.shape[1], step):
        left = unpack(a[:, lo : lo + step], a.shape[2] << 6)[..., :size].astype(np.float32)
        out[:, lo : lo + step] |= pack(multiply(left, right))
    return out


def closure(edges: Words) -> Words:
    """Return what each node reaches in one step or more: a square matrix of edges in, one of paths out."""
    n = len(edges)
    out = np.zeros_like(edges)
    kernels = _native(n * n)
    if kernels is not None:
        edges, nodes = np.ascontiguousarray(edges), np.zeros((5, n), np.int32)
        sets, counts = np.zeros((4, edges.shape[1]), np.uint64), np.array([0, -1, 0, 0])
        sets[0] = pack(np.ones(n, bool))
        while not kernels.closure(edges, out, nodes, sets, counts, PAUSE):
            check_contexts()
        return out
    out |= edges
    for _ in range(max(1, n).bit_length()):
        before = count(out)
        multiply(out[None].copy(), out[None].copy(), out[None])
        if count(out) == before:
            break
    return out


def diagonal(words: Words, n: int) -> Words:
    """Return the diagonal of the last two axes, which both have n elements."""
    i = np.arange(n)
    return pack(words[..., i, i >> 6] >> (i & 63).astype(np.uint64) & np.uint64(1))


def reduce(words: Words, shape: Sequence[int], axes: Sequence[int], every: bool) -> Words:
    """Remove axes: set where any bit along them is, or where every bit is; the words of what is left."""
    shape = tuple(shape)
    last = len(shape) - 1
    lead = tuple(a for a in axes if a != last)
    if lead:
        words = (np.bitwise_and if every else np.bitwise_or).reduce(words, axis=lead)
        if every and math.prod(shape[a] for a in lead) == 0:
            words = np.broadcast_to(ones(shape[-1]), words.shape)  # of nothing, everything is true
    if last not in axes:
        return words
    return pack(np.all(words == ones(shape[-1]), axis=-1) if every else np.any(words != 0, axis=-1))
