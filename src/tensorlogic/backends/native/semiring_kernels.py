"""The loops of contractions in other algebras, compiled by numba for one join, one fold and one float type at a time.

A join and a fold are named by tuples of so many zeros: the length of a tuple is part of its type, so that numba compiles a
loop for each pair, without a branch left in it, and finds it again on disk. NaN is looked for once in each block of the
operands; only where a block could make one does the slower loop run that keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

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


def _joined(builder: Any, join: int, x: Any, y: Any, one: Any) -> Any:
    """Write the join of two factors that are not NaN."""
    match JOINS[join]:
        case "minimum":
            return builder.select(builder.fcmp_ordered("<", x, y), x, y)
        case "maximum":
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)
        case "multiply":
            return builder.fmul(x, y)
        case "add":
            return builder.fadd(x, y)
        case "lukasiewicz":
            both = builder.fadd(x, y)
            return builder.fsub(builder.select(builder.fcmp_ordered(">", both, one), both, one), one)
        case "godel_implies":
            return builder.select(builder.fcmp_ordered("<=", x, y), one, y)
        case _:
            return builder.select(builder.fcmp_ordered("<=", x, y), one, builder.fdiv(y, x))


def _folded(builder: Any, fold: int, total: Any, term: Any, one: Any) -> Any:
    """Write the fold of a term that is not NaN into a total; of noisy-or the total is what remains of 1."""
    if FOLDS[fold] == "noisy_or":
        return builder.fmul(total, builder.fsub(one, term))
    return builder.select(builder.fcmp_ordered(">" if FOLDS[fold] == "max" else "<", term, total), term, total)


def _spoiled(builder: Any, value: Any, bad: Any, one: Any) -> Any:
    """Write the value, or NaN if ``bad``: by adding -0 or NaN, for a choice before a store would become a slow masked store."""
    zero = builder.fsub(one, one)
    return builder.fadd(value, builder.select(bad, builder.fdiv(zero, zero), builder.fneg(zero)))


# as instructions, not as functions of their own, of which each would be compiled again for each algebra


@intrinsic
def _fold(typing: Any, join: Any, fold: Any, total: Any, x: Any, y: Any, one: Any) -> Any:
    """Join two factors and fold the term into a total, where none is NaN."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        was, a, b, unit = args[2:]
        return _folded(builder, fold.count, was, _joined(builder, join.count, a, b, unit), unit)

    return total(join, fold, total, x, y, one), write


@intrinsic
def _fold_any(typing: Any, join: Any, fold: Any, total: Any, x: Any, y: Any, one: Any) -> Any:
    """Join two factors and fold the term into a total where anything may be NaN: then the total is, and stays so."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        was, a, b, unit = args[2:]
        term = _joined(builder, join.count, a, b, unit)
        bad = builder.or_(builder.fcmp_unordered("uno", a, b), builder.fcmp_unordered("uno", term, term))
        return _spoiled(builder, _folded(builder, fold.count, was, term, unit), bad, unit)

    return total(join, fold, total, x, y, one), write


@intrinsic
def _merge(typing: Any, fold: Any, total: Any, more: Any, one: Any) -> Any:
    """Fold one total into another; NaN if either is."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, was, new, unit = args
        if FOLDS[fold.count] == "noisy_or":
            return builder.fmul(was, new)
        bad = builder.fcmp_unordered("uno", new, new)
        return _spoiled(builder, _folded(builder, fold.count, was, new, unit), bad, unit)

    return total(fold, total, more, one), write


@_exact
def _row(x: Any, n: int, i: int, lo: int, hi: int) -> Any:
    return x[n, i, lo:hi]


@_exact
def _line(x: Any, step: Any, n: int, k: int, lo: int, hi: int) -> Any:
    """Return part of a line of three axes that lie in ``x``, so far apart as ``step`` says, with the last one together."""
    start = n * step[0] + k * step[1]
    return x[start + lo : start + hi]


@_exact
def survey(x: Any, facts: Any, tall: int, wide: int, inf: Any) -> None:
    """Write down what each block of so many rows and columns holds that could make a NaN."""
    for n in range(x.shape[0]):
        for p in range(facts.shape[1]):
            for q in range(facts.shape[2]):
                nan, high, low = False, False, False
                for i in range(p * tall, min(x.shape[1], (p + 1) * tall)):
                    row = _row(x, n, i, q * wide, min(x.shape[2], (q + 1) * wide))
                    for j in range(len(row)):
                        v = row[j]
                        nan |= v != v
                        high |= v == inf
                        low |= v == -inf
                facts[n, p, q] = nan * _NAN | high * _HIGH | low * _LOW


@_exact
def _plain(a: int, b: int) -> Any:
    """Tell whether blocks that hold this make no NaN."""
    both = a | b
    return both & _NAN == 0 and (both != _HIGH | _LOW or a == 0 or b == 0)


@_exact
def outer(
    join: Any,
    fold: Any,
    a: Any,
    b: Any,
    step: Any,
    c: Any,
    by_row: Any,
    by_block: Any,
    lo: int,
    hi: int,
    left: int,
    right: int,
    start: Any,
    one: Any,
) -> None:
    """Contract [n, i, k] with [n, k, j]: rows ``lo`` to ``hi`` of all n * i of them, columns ``left`` to ``right``.

    The second lies in an array of one axis, see :func:`_line`. The tables are what :func:`survey` found in the rows of the one and in the blocks of the other; where they are empty, NaN may
    be anywhere. Of noisy-or the result is what remains of 1.
    """
    rows, inner = a.shape[1], a.shape[2]
    for j0 in range(left, right, WIDTH):
        j1 = min(right, j0 + WIDTH)
        done = lo
        while done < hi:
            n = done // rows
            first = done - n * rows
            last = min(rows, first + hi - done)
            done += last - first
            for k0 in range(0, inner, DEPTH):
                for i in range(first, last):
                    total, x = _row(c, n, i, j0, j1), _row(a, n, i, k0, min(inner, k0 + DEPTH))
                    if k0 == 0:
                        for j in range(len(total)):
                            total[j] = start
                    rest = 0
                    if len(fold) == 2 or (
                        by_row.size and _plain(by_row[n, i, k0 // DEPTH], by_block[n, k0 // DEPTH, j0 // WIDTH])
                    ):
                        rest = len(x) - len(x) % 4
                    for k in range(0, rest, 4):
                        x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
                        y0, y1 = _line(b, step, n, k0 + k, j0, j1), _line(b, step, n, k0 + k + 1, j0, j1)
                        y2, y3 = _line(b, step, n, k0 + k + 2, j0, j1), _line(b, step, n, k0 + k + 3, j0, j1)
                        for j in range(len(total)):
                            t = _fold(join, fold, total[j], x0, y0[j], one)
                            t = _fold(join, fold, t, x1, y1[j], one)
                            t = _fold(join, fold, t, x2, y2[j], one)
                            total[j] = _fold(join, fold, t, x3, y3[j], one)
                    for k in range(rest, len(x)):
                        xk, y = x[k], _line(b, step, n, k0 + k, j0, j1)
                        for j in range(len(total)):
                            total[j] = _fold_any(join, fold, total[j], xk, y[j], one)


@_exact
def dot(
    join: Any,
    fold: Any,
    a: Any,
    step: Any,
    b: Any,
    across: Any,
    inner: int,
    c: Any,
    lo: int,
    hi: int,
    start: Any,
    one: Any,
) -> None:
    """Contract [n, i, k] with [n, j, k], both as :func:`_line` has them: rows ``lo`` to ``hi`` of all n * i of them.

    Of noisy-or the result is what remains of 1.
    """
    rows = c.shape[1]
    lanes = np.empty(LANES, c.dtype)
    used = min(LANES, inner)
    for r in range(lo, hi):
        n = r // rows
        i = r - n * rows
        for j in range(c.shape[2]):
            for m in range(used):
                lanes[m] = start
            for k in range(0, inner, LANES):
                last = min(inner, k + LANES)
                x, y = _line(a, step, n, i, k, last), _line(b, across, n, j, k, last)
                for m in range(len(x)):
                    lanes[m] = _fold_any(join, fold, lanes[m], x[m], y[m], one)
            total = start
            for m in range(used):
                total = _merge(fold, total, lanes[m], one)
            c[n, i, j] = total


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
    a: Any,
    b: Any,
    step: Any,
    c: Any,
    sums: Any,
    limit: float,
    lo: int,
    hi: int,
    left: int,
    right: int,
    one: Any,
    inf: Any,
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
                x, y = a[n, i, k], _line(b, step, n, k, j0, j1)
                for j in range(len(top)):
                    top[j] = _merge((), top[j], x + y[j], one)
            finite = False
            for j in range(j0, j1):
                finite |= (not sums[n, i, j] > limit) & (top[j - j0] - top[j - j0] == 0)
            for k in range(inner if finite else 0):
                x, y = a[n, i, k], _line(b, step, n, k, j0, j1)
                for j in range(len(total)):
                    total[j] += _exp(np.float64(x + y[j]) - np.float64(top[j]))
            for j in range(j0, j1):
                if not sums[n, i, j] > limit:
                    c[n, i, j] = _log_sum(np.float64(top[j - j0]), total[j - j0])


@_exact
def dot_exp(a: Any, step: Any, b: Any, across: Any, inner: int, c: Any, lo: int, hi: int, one: Any, inf: Any) -> None:
    """Contract as :func:`dot` by log-sum-exp: the largest term first."""
    rows = c.shape[1]
    tops, totals = np.empty(LANES, c.dtype), np.empty(LANES, np.float64)
    used = min(LANES, inner)
    for r in range(lo, hi):
        n = r // rows
        i = r - n * rows
        for j in range(c.shape[2]):
            for m in range(used):
                tops[m] = -inf
                totals[m] = 0
            for k in range(0, inner, LANES):
                last = min(inner, k + LANES)
                x, y = _line(a, step, n, i, k, last), _line(b, across, n, j, k, last)
                for m in range(len(x)):
                    tops[m] = _merge((), tops[m], x[m] + y[m], one)
            top = -inf
            for m in range(used):
                top = _merge((), top, tops[m], one)
            for k in range(0, inner, LANES):
                last = min(inner, k + LANES)
                x, y = _line(a, step, n, i, k, last), _line(b, across, n, j, k, last)
                for m in range(len(x)):
                    totals[m] += _exp(np.float64(x[m] + y[m]) - np.float64(top))
            total = 0.0
            for m in range(used):
                total += totals[m]
            c[n, i, j] = _log_sum(np.float64(top), total)


Entry = Callable[..., None]
_entries: dict[tuple[str, str, str, str], Entry] = {}


def entry(name: str, combine: str, reduce: str, dtype: str) -> Entry:
    """Return a loop for an algebra's join and fold, compiled now if this process has not yet."""
    key = (name, combine, reduce, dtype)
    if key not in _entries:
        _entries[key] = _compiled(*key)
    return _entries[key]


def _compiled(name: str, combine: str, reduce: str, dtype: str) -> Entry:
    # one signature for every array there is: whatever its strides, whether or not it may be written to
    number, place = getattr(types, dtype), types.intp
    any_strides = types.Array(number, 3, "A", readonly=True)
    in_order = types.Array(number, 3, "C", readonly=True)
    lines = types.Array(number, 1, "C", readonly=True), types.UniTuple(place, 2)
    target = types.Array(number, 3, "C")
    table = types.Array(types.uint8, 3, "C")
    code: Entry
    match name, reduce:
        case "survey", _:
            code = survey.compile((in_order if combine == "in_order" else any_strides, table, place, place, number))
            return code
        case "outer", "logsumexp":
            sums = types.Array(types.float64, 3, "C", readonly=True)
            code = outer_exp.compile((any_strides, *lines, target, sums, types.float64, *[place] * 4, number, number))
            return code
        case "dot", "logsumexp":
            code = dot_exp.compile((*lines, *lines, place, target, place, place, number, number))
            return code
    join, fold = JOINS.index(combine), FOLDS.index(reduce)
    names = (types.UniTuple(place, join), types.UniTuple(place, fold))
    if name == "outer":
        code = outer.compile((*names, any_strides, *lines, target, table, table, *[place] * 4, number, number))
    else:
        code = dot.compile((*names, *lines, *lines, place, target, place, place, number, number))
    return partial(code, (0,) * join, (0,) * fold)
