"""The loops of contractions in other algebras, compiled by numba for one join, one fold and one float type at a time.

A join and a fold are named by tuples of so many zeros: the length of a tuple is part of its type, so that numba compiles a
loop for each pair, without a branch left in it, and finds it again on disk. NaN is looked for once in each block of the
operands; only where a block could make one does the slower loop run that keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from .support import kernel

JOINS = ("minimum", "maximum", "multiply", "add", "lukasiewicz", "godel_implies", "goguen_implies")
FOLDS = ("max", "min", "noisy_or")
WIDTH = 512  # columns of a block: with DEPTH rows of it, what the nearest caches hold
DEPTH = 32
LANES = 64  # partial results of a dot, so that it runs in vectors
_NAN, _HIGH, _LOW = 1, 2, 4  # what a block holds: NaN, infinity, minus infinity
_MAGIC = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer, which is then in the lowest bits
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10

# max and min are of the same bits as NumPy's; "contract" lets only 1 - x * y be rounded once
_exact = kernel(fast=False, fastmath={"contract"})


@_exact
def _join(join: Any, x: Any, y: Any, one: Any) -> Any:
    """Join two factors that are not NaN."""
    n = len(join)
    if n == 0:
        return x if x < y else y
    if n == 1:
        return x if x > y else y
    if n == 2:
        return x * y
    if n == 3:
        return x + y
    if n == 4:
        s = x + y
        return (s if s > one else one) - one
    if n == 5:
        return one if x <= y else y
    return one if x <= y else y / x


@_exact
def _fold(fold: Any, total: Any, term: Any, one: Any) -> Any:
    """Fold a term that is not NaN into a total; of noisy-or the total is what remains of 1."""
    n = len(fold)
    if n == 0:
        return term if term > total else total
    if n == 1:
        return term if term < total else total
    return total * (one - term)


@_exact
def _spoiled(value: Any, bad: Any, one: Any) -> Any:
    """Return the value, NaN if ``bad``: by adding -0 or NaN, for a choice before a store would become a slow masked store."""
    zero = one - one
    return value + (zero / zero if bad else -zero)


@_exact
def _fold_any(join: Any, fold: Any, total: Any, x: Any, y: Any, one: Any) -> Any:
    """Join and fold where anything may be NaN: then the total is, and stays so."""
    term = _join(join, x, y, one)
    return _spoiled(_fold(fold, total, term, one), (x != x) | (y != y) | (term != term), one)


@_exact
def _holds(x: Any, inf: Any) -> Any:
    """Return what a row holds that could make a NaN."""
    nan, high, low = False, False, False
    for j in range(len(x)):
        v = x[j]
        nan |= v != v
        high |= v == inf
        low |= v == -inf
    return nan * _NAN | high * _HIGH | low * _LOW


@_exact
def _plain(join: Any, fold: Any, a: int, b: int) -> Any:
    """Tell whether blocks that hold this make no NaN, or the loop without a look at it keeps it anyway."""
    if len(fold) == 2:
        return True
    if len(join) == 2:
        return (a | b) == 0  # infinity times zero
    return ((a | b) & _NAN) == 0 and not ((a & _HIGH) and (b & _LOW)) and not ((a & _LOW) and (b & _HIGH))


@_exact
def outer(
    join: Any,
    fold: Any,
    a: Any,
    b: Any,
    c: Any,
    lo: int,
    hi: int,
    left: int,
    right: int,
    start: Any,
    one: Any,
    inf: Any,
) -> None:
    """Contract [n, i, k] with [n, k, j]: rows ``lo`` to ``hi`` of all n * i of them, columns ``left`` to ``right``."""
    rows, inner = a.shape[1], a.shape[2]
    steps = (inner + DEPTH - 1) // DEPTH
    done = lo
    while done < hi:
        n = done // rows
        first = done - n * rows
        last = min(rows, first + hi - done)
        done += last - first
        few = last - first < 4  # then the look would cost as much as it saves
        facts = np.zeros((0 if few else last - first, steps), np.uint8)
        if not few and len(fold) < 2:
            for i in range(first, last):
                for s in range(steps):
                    facts[i - first, s] = _holds(a[n, i, s * DEPTH : min(inner, s * DEPTH + DEPTH)], inf)
        for j0 in range(left, right, WIDTH):
            j1 = min(right, j0 + WIDTH)
            for i in range(first, last):
                c[n, i, j0:j1] = start
            for s in range(steps):
                k0, k1 = s * DEPTH, min(inner, s * DEPTH + DEPTH)
                found = 0
                if not few and len(fold) < 2:
                    for k in range(k0, k1):
                        found |= _holds(b[n, k, j0:j1], inf)
                for i in range(first, last):
                    total = c[n, i, j0:j1]
                    rest = k0
                    if not few and _plain(join, fold, facts[i - first, s], found):
                        rest = k1 - (k1 - k0) % 4
                        for k in range(k0, rest, 4):
                            x0, x1, x2, x3 = a[n, i, k], a[n, i, k + 1], a[n, i, k + 2], a[n, i, k + 3]
                            y0, y1, y2, y3 = b[n, k, j0:j1], b[n, k + 1, j0:j1], b[n, k + 2, j0:j1], b[n, k + 3, j0:j1]
                            for j in range(len(total)):
                                t = _fold(fold, total[j], _join(join, x0, y0[j], one), one)
                                t = _fold(fold, t, _join(join, x1, y1[j], one), one)
                                t = _fold(fold, t, _join(join, x2, y2[j], one), one)
                                total[j] = _fold(fold, t, _join(join, x3, y3[j], one), one)
                    for k in range(rest, k1):
                        x, y = a[n, i, k], b[n, k, j0:j1]
                        for j in range(len(total)):
                            total[j] = _fold_any(join, fold, total[j], x, y[j], one)
            if len(fold) == 2:
                for i in range(first, last):
                    total = c[n, i, j0:j1]
                    for j in range(len(total)):
                        total[j] = one - total[j]


@_exact
def dot(join: Any, fold: Any, a: Any, b: Any, c: Any, lo: int, hi: int, start: Any, one: Any) -> None:
    """Contract [n, i, k] with [n, j, k], both with k last: rows ``lo`` to ``hi`` of all n * i of them."""
    rows, inner, columns = a.shape[1], a.shape[2], b.shape[1]
    lanes = np.empty(LANES, c.dtype)
    used = min(LANES, inner)
    whole = inner - inner % LANES
    for r in range(lo, hi):
        n = r // rows
        x = a[n, r - n * rows]
        for j in range(columns):
            y = b[n, j]
            lanes[:used] = start
            for k in range(0, whole, LANES):
                p, q = x[k : k + LANES], y[k : k + LANES]
                for m in range(LANES):
                    lanes[m] = _fold_any(join, fold, lanes[m], p[m], q[m], one)
            p, q = x[whole:], y[whole:]
            for m in range(len(p)):
                lanes[m] = _fold_any(join, fold, lanes[m], p[m], q[m], one)
            total = start
            for m in range(used):
                v = lanes[m]
                if len(fold) == 2:
                    total *= v
                elif len(fold) == 0:
                    total = v if (v > total or v != v) else total
                else:
                    total = v if (v < total or v != v) else total
            c[n, r - n * rows, j] = one - total if len(fold) == 2 else total


@_exact
def _exp(x: Any) -> Any:
    """Return e to the x, for x at most 0; what is smaller than the normal numbers is 0."""
    z = x * _LOG2E + _MAGIC
    n = z - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    first = (1.0 + r) + r2 * (0.5 + r * (1 / 6.0))  # the series in pieces that need not wait for one another
    second = (1 / 24.0 + r * (1 / 120.0)) + r2 * (1 / 720.0 + r * (1 / 5040.0))
    third = (1 / 40320.0 + r * (1 / 362880.0)) + r2 * (1 / 3628800.0 + r * (1 / 39916800.0))
    last = 1 / 479001600.0 + r * (1 / 6227020800.0)
    p = first + r4 * (second + r4 * (third + r4 * last))
    scaled = np.int64(np.float64(p).view(np.int64) + (np.float64(z).view(np.int64) << 52))
    return scaled.view(np.float64) if x > -708.0 else 0.0


@_exact
def _log_sum(top: Any, total: Any) -> Any:
    """Return the result of a sum that was shifted by its largest term: that term alone where it is not finite."""
    return top + math.log(total) if top - top == 0 else top


@_exact
def outer_exp(
    a: Any, b: Any, c: Any, sums: Any, limit: float, lo: int, hi: int, left: int, right: int, one: Any, inf: Any
) -> None:
    """Contract as :func:`outer` by log-sum-exp, where a sum is not above ``limit``: the largest term first, then the sum."""
    rows, inner = a.shape[1], a.shape[2]
    tops, totals = np.empty(WIDTH, c.dtype), np.empty(WIDTH, np.float64)
    for r in range(lo, hi):
        n = r // rows
        i = r - n * rows
        for j0 in range(left, right, WIDTH):
            j1 = min(right, j0 + WIDTH)
            fine = True
            for j in range(j0, j1):
                fine &= sums[n, i, j] > limit
            if fine:
                continue
            top, total = tops[: j1 - j0], totals[: j1 - j0]
            top[:] = -inf
            total[:] = 0
            for k in range(inner):
                x, y = a[n, i, k], b[n, k, j0:j1]
                for j in range(len(top)):
                    t = x + y[j]
                    top[j] = _spoiled(t if t > top[j] else top[j], t != t, one)
            finite = False
            for j in range(j0, j1):
                finite |= (not sums[n, i, j] > limit) & (top[j - j0] - top[j - j0] == 0)
            for k in range(inner if finite else 0):
                x, y = a[n, i, k], b[n, k, j0:j1]
                for j in range(len(total)):
                    total[j] += _exp(np.float64(x + y[j]) - np.float64(top[j]))
            for j in range(j0, j1):
                if not sums[n, i, j] > limit:
                    c[n, i, j] = _log_sum(np.float64(top[j - j0]), total[j - j0])


@_exact
def dot_exp(a: Any, b: Any, c: Any, lo: int, hi: int, one: Any, inf: Any) -> None:
    """Contract as :func:`dot` by log-sum-exp: the largest term first."""
    rows, inner, columns = a.shape[1], a.shape[2], b.shape[1]
    tops, totals = np.empty(LANES, c.dtype), np.empty(LANES, np.float64)
    for r in range(lo, hi):
        n = r // rows
        x = a[n, r - n * rows]
        for j in range(columns):
            y = b[n, j]
            tops[:] = -inf
            totals[:] = 0
            for k in range(0, inner, LANES):
                p, q = x[k : min(inner, k + LANES)], y[k : min(inner, k + LANES)]
                for m in range(len(p)):
                    t = p[m] + q[m]
                    tops[m] = _spoiled(t if t > tops[m] else tops[m], t != t, one)
            top = -inf
            for m in range(LANES):
                top = tops[m] if (tops[m] > top or tops[m] != tops[m]) else top
            for k in range(0, inner, LANES):
                p, q = x[k : min(inner, k + LANES)], y[k : min(inner, k + LANES)]
                for m in range(len(p)):
                    totals[m] += _exp(np.float64(p[m] + q[m]) - np.float64(top))
            c[n, r - n * rows, j] = _log_sum(np.float64(top), totals.sum())


Entry = Callable[..., None]
_entries: dict[tuple[str, str, str, str], Entry] = {}


def entry(name: str, combine: str, reduce: str, dtype: str) -> Entry:
    """Return a loop for an algebra's join and fold, compiled now if this process has not yet."""
    key = (name, combine, reduce, dtype)
    if key not in _entries:
        _entries[key] = _compiled(*key)
    return _entries[key]


def compiled(name: str, combine: str, reduce: str, dtype: str) -> bool:
    """Tell whether :func:`entry` returns at once."""
    return (name, combine, reduce, dtype) in _entries


def _compiled(name: str, combine: str, reduce: str, dtype: str) -> Entry:
    # one signature for every array there is: whatever its strides, whether or not it may be written to
    number, place = getattr(types, dtype), types.intp
    any_strides = types.Array(number, 3, "A", readonly=True)
    in_order = types.Array(number, 3, "C", readonly=True)
    target = types.Array(number, 3, "C")
    made: Entry
    if reduce == "logsumexp":
        if name == "outer":
            sums = types.Array(types.float64, 3, "C", readonly=True)
            found = (any_strides, in_order, target, sums, types.float64, place, place, place, place, number, number)
            made = outer_exp.compile(found)
        else:
            made = dot_exp.compile((in_order, in_order, target, place, place, number, number))
        return made
    join, fold = JOINS.index(combine), FOLDS.index(reduce)
    names = (types.UniTuple(place, join), types.UniTuple(place, fold))
    if name == "outer":
        whole = (*names, any_strides, in_order, target, place, place, place, place, number, number, number)
        run = outer.compile(whole)
    else:
        run = dot.compile((*names, in_order, in_order, target, place, place, number, number))
    first, second = (0,) * join, (0,) * fold
    return lambda *args: run(first, second, *args)
