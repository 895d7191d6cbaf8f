"""Loops that give the gradient of a contraction for one factor: for one join, one fold and one float type at a time.

The factor is x[n, p, k], the other y[n, q, k], both with the reduced index last; the results and their cotangents are [n, p, q].
One pair of rows at a time the result is found again, and what its terms get is added to the factor's row: nothing is kept for
all results, let alone for all terms. Most stretches of a row hold no term that is the extreme; those are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from .semiring_kernels import FOLDS, JOINS, _joined
from .support import kernel

STRETCH = 128
LANES = 32  # terms that are looked at together
NEAR = 1 << 17  # bytes of the other factor's rows that are used for many rows of this one while they are in the cache

# terms have the bits of the NumPy path, so that the same ones are equal: nothing is rounded otherwise
_exact = kernel(fast=False)
_in_any_order = kernel(fast=False, fastmath={"reassoc", "nsz"})


def _factors(x: Any, y: Any, side: Any) -> tuple[Any, Any]:
    """Return the two in the order of the spec: x is the first unless ``side`` says that it is the second."""
    return (y, x) if side.count else (x, y)


@intrinsic
def _term(typing: Any, join: Any, side: Any, x: Any, y: Any, one: Any) -> Any:
    """Join two factors that are not NaN."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _joined(builder, join.count, *_factors(args[2], args[3], side), args[4])

    return x(join, side, x, y, one), write


@intrinsic
def _more(typing: Any, fold: Any, total: Any, term: Any) -> Any:
    """Return the larger or the smaller, where neither is NaN: told so, LLVM finds the extreme of a row in vectors."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, was, new = args
        flags = ("nnan", "nsz")
        better = builder.fcmp_ordered(">" if FOLDS[fold.count] == "max" else "<", new, was, flags=flags)
        return builder.select(better, new, was, flags=flags)

    return total(fold, total, term), write


@intrinsic
def _plus_one(typing: Any, count: Any, condition: Any, one: Any) -> Any:
    """Count in a float, which stays as wide as the numbers it is compared beside; in any order, for counts are exact."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        was, yes, unit = args
        return builder.fadd(was, builder.select(yes, unit, builder.fsub(unit, unit)), flags=("reassoc", "nsz"))

    return count(count, condition, one), write


@intrinsic
def _slope(typing: Any, join: Any, side: Any, x: Any, y: Any, one: Any) -> Any:
    """Return the derivative of the join for x; ties of a minimum or a maximum are shared."""

    def write(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        own, other, unit = args[2:]
        zero = builder.fsub(unit, unit)

        def indicator(condition: Any) -> Any:
            return builder.select(condition, unit, zero)

        match JOINS[join.count]:
            case "minimum" | "maximum":  # where neither is the extreme one is NaN, and so is 0 / 0
                less = "<=" if JOINS[join.count] == "minimum" else ">="
                mine = indicator(builder.fcmp_ordered(less, own, other))
                theirs = indicator(builder.fcmp_ordered(less, other, own))
                return builder.fdiv(mine, builder.fadd(mine, theirs))
            case "multiply":
                return other
            case "lukasiewicz":
                return indicator(builder.fcmp_ordered(">", _joined(builder, join.count, own, other, unit), zero))
            case "godel_implies":
                return indicator(builder.fcmp_ordered(">", other, own)) if side.count else zero
            case "goguen_implies":
                first, second = _factors(own, other, side)
                slope = builder.fdiv(unit, first)
                if not side.count:
                    slope = builder.fdiv(builder.fneg(second), builder.fmul(first, first))
                return builder.select(builder.fcmp_ordered(">", first, second), slope, zero)
            case _:
                return unit

    return x(join, side, x, y, one), write


@_exact
def extreme(
    join: Any, fold: Any, side: Any, x: Any, y: Any, g: Any, d: Any, clean_x: Any, clean_y: Any,
    lo: int, hi: int, first: int, last: int, start: Any, one: Any,
) -> None:  # fmt: skip
    """Add to d[n, p, k] what maxima or minima give it: rows ``lo`` to ``hi`` of all n * p, results ``first`` to ``last`` of q.

    Only pairs of clean rows with finite cotangents: no term of theirs is NaN, and no derivative of a join infinite or NaN.
    """
    rows, inner, zero = x.shape[1], x.shape[2], one - one
    whole = inner // STRETCH
    few = inner - whole * STRETCH  # the last ones, looked at together with some before them to make whole vectors
    few = min(inner, -(-few // LANES) * LANES)
    tops, where = np.empty(whole + 1, d.dtype), np.empty(whole + 2, np.int64)
    near = max(1, NEAR // (inner * d.itemsize))
    done = lo
    while done < hi:
        n = done // rows
        until = min(hi, (n + 1) * rows)
        for q0 in range(first, last, near):
            for r in range(done, until):
                p = r - n * rows
                for q in range(q0, min(last, q0 + near)):
                    weight = g[n, p, q]
                    if weight == 0 or weight - weight != 0 or not (clean_x[n, p] and clean_y[n, q]):
                        continue
                    best = start
                    for s in range(whole):
                        a, b, top = x[n, p, s * STRETCH :], y[n, q, s * STRETCH :], start
                        for k in range(STRETCH):
                            top = _more(fold, top, _term(join, side, a[k], b[k], one))
                        tops[s] = top
                        best = _more(fold, best, top)
                    a, b, top = x[n, p, inner - few :], y[n, q, inner - few :], start
                    for k in range(few):
                        top = _more(fold, top, _term(join, side, a[k], b[k], one))
                    tops[whole] = top
                    best = _more(fold, best, top)
                    ties, found = zero, 0
                    for s in range(whole + 1):
                        where[found] = s * STRETCH  # without a branch, which could not be foretold
                        found += tops[s] == best
                    for m in range(found):
                        c, e = where[m], min(inner, where[m] + STRETCH)
                        a, b = x[n, p, c:e], y[n, q, c:e]
                        for k in range(len(a)):
                            ties = _plus_one(ties, _term(join, side, a[k], b[k], one) == best, one)
                    share = one / ties * weight
                    for m in range(found):
                        c, e = where[m], min(inner, where[m] + STRETCH)
                        a, b, row = x[n, p, c:e], y[n, q, c:e], d[n, p, c:e]
                        for k in range(len(a)):
                            given = share * _slope(join, side, a[k], b[k], one)
                            row[k] += given if _term(join, side, a[k], b[k], one) == best else zero
        done = until


@_exact
def _any_term(join: int, x: Any, y: Any, one: Any) -> Any:
    """Join two factors; NaN if either is."""
    if x != x or y != y:
        return x + y
    if join == 0:
        return min(x, y)
    if join == 1:
        return max(x, y)
    if join == 2:
        return x * y
    if join == 3:
        return x + y
    if join == 4:
        both = x + y
        return both if both != both else max(both, one) - one
    if x <= y:
        return one
    return y if join == 5 else y / x


@_exact
def _any_slope(join: int, side: int, x: Any, y: Any, one: Any) -> Any:
    """Return the derivative of a join for x; side 1 says that x is the second factor."""
    zero = one - one
    if join <= 1:  # neither is the extreme if one is NaN, and 0 / 0 is NaN too
        mine, theirs = (x <= y, y <= x) if join == 0 else (x >= y, y >= x)
        return (one if mine else zero) / ((one if mine else zero) + (one if theirs else zero))
    if join == 2:
        return y
    if join == 3:
        return one
    if join == 4:
        return one if _any_term(join, x, y, one) > 0 else zero
    a, b = (y, x) if side else (x, y)
    if not a > b or (join == 5 and side == 0):
        return zero
    if join == 5:
        return one
    return one / a if side else -b / (a * a)


@_exact
def careful(
    join: int, fold: int, side: int, x: Any, y: Any, g: Any, d: Any, clean_x: Any, clean_y: Any,
    lo: int, hi: int, first: int, last: int, start: Any, one: Any,
) -> None:  # fmt: skip
    """Add what :func:`extreme` leaves out, term by term: of any join, because few ever need it."""
    rows, inner, zero = x.shape[1], x.shape[2], one - one
    for r in range(lo, hi):
        n = r // rows
        p = r - n * rows
        for q in range(first, last):
            weight = g[n, p, q]
            if weight - weight == 0 and clean_x[n, p] and clean_y[n, q]:
                continue
            best, ties, broken = start, zero, False
            for k in range(inner):
                a, b = (y[n, q, k], x[n, p, k]) if side else (x[n, p, k], y[n, q, k])
                term = _any_term(join, a, b, one)
                if term != term:
                    broken = True
                elif term == best:
                    ties += one
                elif (term > best) == (fold == 0):
                    best, ties = term, one
            share = one / max(ties, one)
            for k in range(inner):
                a, b = (y[n, q, k], x[n, p, k]) if side else (x[n, p, k], y[n, q, k])
                given = share if not broken and _any_term(join, a, b, one) == best else zero
                d[n, p, k] += given * weight * _any_slope(join, side, x[n, p, k], y[n, q, k], one)


@_in_any_order
def noisy_or(
    x: Any, y: Any, g: Any, d: Any, clean_x: Any, clean_y: Any, lo: int, hi: int, first: int, last: int, one: Any
) -> None:
    """Add to d[n, p, k] what noisy-or gives it: rows ``lo`` to ``hi`` of all n * p, results ``first`` to ``last`` of q.

    A term gets the product of what the others leave of 1: the whole product divided by its own part. Of parts that are 0 one
    gets the product of the rest; where there are several, nothing gets anything. Clean rows are finite.
    """
    rows, inner = x.shape[1], x.shape[2]
    zero = one - one
    step = max(1, NEAR // (max(1, inner) * d.itemsize))
    done = lo
    while done < hi:
        n = done // rows
        top_row = min(hi, (n + 1) * rows)
        for q0 in range(first, last, step):
            for r in range(done, top_row):
                p = r - n * rows
                own, target = x[n, p], d[n, p]
                for q in range(q0, min(last, q0 + step)):
                    weight, other = g[n, p, q], y[n, q]
                    sound = clean_x[n, p] and clean_y[n, q] and weight - weight == 0
                    if sound and weight == 0:
                        continue
                    product = one
                    for k in range(inner):
                        product *= one - own[k] * other[k]
                    if sound and product != 0 and product - product == 0:
                        product *= weight
                        for k in range(inner):
                            target[k] += product * other[k] / (one - own[k] * other[k])
                        continue
                    product, zeros = one, 0
                    for k in range(inner):
                        rest = one - own[k] * other[k]
                        zeros += rest == 0
                        product *= one if rest == 0 else rest
                    if sound and (product == 0 or zeros > 1):
                        continue
                    alone = product if zeros == 1 else zero
                    for k in range(inner):
                        rest = one - own[k] * other[k]
                        others = product / rest if zeros == 0 else zero
                        target[k] += (alone if rest == 0 else others) * weight * other[k]
        done = top_row


@_exact
def exponentials(x: Any, y: Any, v: Any, g: Any, wanted: Any, d: Any, lo: int, hi: int, first: int, last: int) -> None:
    """Add to d[n, p, k] what log-sum-exp gives it, of the results that are wanted: the exponential of each term."""
    rows, inner = x.shape[1], x.shape[2]
    for r in range(lo, hi):
        n = r // rows
        p = r - n * rows
        for q in range(first, last):
            if wanted[n, p, q]:
                value, weight = v[n, p, q], g[n, p, q]
                finite = value - value == 0
                for k in range(inner):
                    term = math.exp(x[n, p, k] + y[n, q, k] - value) if finite else 0.0
                    d[n, p, k] += term * weight


Entry = Callable[..., None]
_entries: dict[tuple[str, str, str, int, str], Entry] = {}


def entry(name: str, combine: str, reduce: str, side: int, dtype: str) -> Entry:
    """Return a loop for an algebra's join and fold, "fast" or "careful", compiled now if this process has not yet."""
    key = (name, combine, reduce, side, dtype)
    if key not in _entries:
        _entries[key] = _compiled(*key)
    return _entries[key]


def _compiled(name: str, combine: str, reduce: str, side: int, dtype: str) -> Entry:
    number, place = getattr(types, dtype), types.intp
    given = types.Array(number, 3, "C", readonly=True)
    target = types.Array(number, 3, "C")
    code: Entry
    clean = types.Array(types.boolean, 2, "C", readonly=True)
    match reduce:
        case "noisy_or":
            code = noisy_or.compile((given, given, given, target, clean, clean, *[place] * 4, number))
            return code
        case "logsumexp":
            marks = types.Array(types.boolean, 3, "C", readonly=True)
            wide = types.Array(types.float64, 3, "C")
            code = exponentials.compile((given, given, given, given, marks, wide, *[place] * 4))
            return code
    join, fold = JOINS.index(combine), FOLDS.index(reduce)
    if name == "careful":
        code = careful.compile((*[place] * 3, given, given, given, target, clean, clean, *[place] * 4, number, number))
        return partial(code, join, fold, side)
    names = (types.UniTuple(place, join), types.UniTuple(place, fold), types.UniTuple(place, side))
    code = extreme.compile((*names, given, given, given, target, clean, clean, *[place] * 4, number, number))
    return partial(code, (0,) * join, (0,) * fold, (0,) * side)
