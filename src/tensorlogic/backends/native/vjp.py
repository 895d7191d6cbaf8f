"""Gradients of contractions in other algebras as native kernels: two factors laid out with the reduced index last.

The same terms take part as on the NumPy path, and get the same shares; their sums are rounded in another order. Beside the
gradient there are copies of the operands in the kernel's layout and nothing else: no array over the terms. Log-sum-exp is a
matrix product of exponentials, in float64. Nothing here imports numba before a kernel is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ir import ops
from ...ir.algebra import ALGEBRAS, Algebra
from ...ir.types import TensorType
from ...plan.cost import Contraction, contraction
from ...plan.native_memory import FEW, join_layout
from ..base import Kernel
from ..contract import prepared
from ..contract_vjp import placed
from ..threads import allowed, ranges, share, shared_matmul, together
from .semiring import ROWS, WORTH

Array = Any  # a NumPy array; the plan says more about it than a type could
Shares = Callable[[Array, Array, Array, Array], Array]  # x[n, p, k], y[n, q, k], results and cotangents [n, p, q]: x's
SHORT = 8  # terms of a result too few for a loop over them
LARGEST_SHIFT = 230.0  # exponentials above it could overflow before they are multiplied by small ones
LARGEST_COTANGENT = 1e100
TINY = 1e-15  # premises under it have a slope that may overflow
_SIDED = ("godel_implies", "goguen_implies")  # joins that are not symmetric


def worth(op: ops.ContractVJP, args: Sequence[TensorType], result: TensorType) -> bool:
    """Tell whether there is a native kernel for a gradient, and rows are many and long enough for it to be faster."""
    form = contraction(op.spec, op.algebra, [t.shape or () for t in args[:-2]])  # type: ignore[misc]
    if not _has(op, form, result) or math.prod(form.sizes.values()) < WORTH:
        return False
    return math.prod(form.sizes[x] for x in join_layout(form).inner) >= SHORT


def _has(op: ops.ContractVJP, form: Contraction, result: TensorType) -> bool:
    if op.algebra not in ROWS or len(form.labels) != 2 or result.dtype not in ("float32", "float64"):
        return False
    if form.kernel != "blocks" or 0 in form.sizes.values():
        return False
    layout = join_layout(form)
    return bool(layout.inner) and not any(layout.alone)


def make_ready(op: ops.ContractVJP, dtype: str) -> None:
    """Compile the loop of a gradient, or load it from the disk: for a thread that nobody waits for."""
    row = ALGEBRAS[op.algebra]
    if not _flat(row, op.wrt):
        _entry("fast", row, op.wrt, dtype)


def bind_native_vjp(
    op: ops.ContractVJP, form: Contraction, result: TensorType, args: Sequence[TensorType]
) -> Kernel | None:
    """Return the native kernel of a contraction's gradient for one factor; None where there is none.

    Its operands are the two factors, the result and its cotangent. It takes ``out=``. Its loop is compiled when it first runs;
    see :func:`make_ready`.
    """
    if not _has(op, form, result):
        return None
    row, dtype, sizes = ALGEBRAS[op.algebra], np.dtype(result.dtype), form.sizes
    layout = join_layout(form)
    free = (layout.left, layout.right) if op.wrt == 0 else (layout.right, layout.left)
    spaces = [(*layout.batch, *own, *layout.inner) for own in free]
    n, p, q, k = (math.prod(sizes[x] for x in group) for group in (layout.batch, *free, layout.inner))
    ready = [prepared(own, kept) for own, kept in zip(form.spec.inputs, form.labels, strict=True)]
    order = (op.wrt, 1 - op.wrt)  # the factor that is asked for is x
    axes = [[form.labels[f].index(label) for label in space] for f, space in zip(order, spaces, strict=True)]
    across = [form.spec.output.index(label) for label in (*layout.batch, *free[0], *free[1])]
    shares = _shares(row, op.wrt, dtype)

    def laid(x: Array, by: Sequence[int], shape: tuple[int, int, int]) -> Array:
        return np.ascontiguousarray(x.transpose(by).reshape(shape), dtype)

    def vjp(*operands: Array, out: Array = None) -> Array:
        x, y = (laid(ready[f](operands[f]), by, (n, rows, k)) for f, by, rows in zip(order, axes, (p, q), strict=True))
        value, cotangent = (laid(np.asarray(v), across, (n, p, q)) for v in operands[2:])
        total = shares(x, y, value, cotangent)
        return placed(total, spaces[0], form.labels[op.wrt], form, op.wrt, args[op.wrt], dtype, out)

    return vjp


def _flat(row: Algebra, wrt: int) -> bool:
    """Tell whether the join does not depend on the factor, but for where it jumps."""
    return row.combine == "godel_implies" and wrt == 0


def _shares(row: Algebra, wrt: int, dtype: np.dtype[Any]) -> Shares:
    if _flat(row, wrt):  # a cotangent that is no number is passed on, as everywhere
        return lambda x, y, v, g: np.add(0, (g * dtype.type(0)).sum(2, keepdims=True), out=np.zeros_like(x))
    if row.reduce == "logsumexp":
        return _log_sum_exp(row, dtype)
    start = {"max": -np.inf, "min": np.inf}.get(row.reduce)
    constants = [dtype.type(c) for c in (start, 1) if c is not None]

    def run(x: Array, y: Array, v: Array, g: Array) -> Array:
        clean = _clean(row, x, wrt), _clean(row, y, 1 - wrt)
        d = np.zeros_like(x)
        sound = row.reduce == "noisy_or" or (all(c.all() for c in clean) and np.isfinite(g.sum()))
        for name in ("fast",) if sound else ("fast", "careful"):
            loop = _entry(name, row, wrt, dtype.name)
            _share(lambda target, *part, loop=loop: loop(x, y, g, target, *clean, *part, *constants), d, y.shape[1])
        return d

    return run


def _clean(row: Algebra, x: Array, factor: int) -> Array:
    """Tell of each row whether it can make no NaN: neither a term nor the slope of a term that is not the extreme."""
    least, most = x.min(2), x.max(2)  # NaN if any is
    found: Array
    match row.combine:
        case "minimum" | "maximum" | "godel_implies":
            found = most == most
        case "add" if row.reduce == "min":  # infinity is a place that cannot be reached
            found = least > -np.inf
        case "add":
            found = most < np.inf
        case "goguen_implies" if factor == 0:  # its slope is divided by the premise, and by its square
            found = np.isfinite(least) & np.isfinite(most) & ((x == 0) | (np.abs(x) >= TINY)).all(2)
        case "goguen_implies":
            found = (least >= 0) & np.isfinite(most)
        case _:
            found = np.isfinite(least) & np.isfinite(most)
    return np.ascontiguousarray(found)


def _log_sum_exp(row: Algebra, dtype: np.dtype[Any]) -> Shares:
    """Return what gives a term its exponential: a matrix product, and term by term where that could overflow."""

    def run(x: Array, y: Array, v: Array, g: Array) -> Array:
        with np.errstate(all="ignore"):  # what comes of infinities is left out, or done term by term
            (high, sound), (wide, other) = _tops(x), _tops(y)
            weights = (high[:, :, None] + wide[:, None, :]) - v
            fine = weights <= LARGEST_SHIFT
            fine &= sound[:, :, None] & other[:, None, :]
            fine &= np.abs(g) <= LARGEST_COTANGENT
            finite = np.isfinite(v)
            fine &= finite
            np.exp(weights, out=weights)
            weights *= g
            weights[~fine] = 0
            # a result that is not finite gives its terms nothing, but for a cotangent that is no number
            careful = ~fine & (finite | ~np.isfinite(g))
            d = shared_matmul(weights, _exponentials(y, wide, other))
            del weights, fine, finite
            d *= _exponentials(x, high, sound)
        if careful.any():
            loop = _entry("fast", row, 0, dtype.name)
            _share(lambda target, *part: loop(x, y, v, g, careful, target, *part), d, y.shape[1])
        return d

    return run


def _tops(x: Array) -> tuple[Array, Array]:
    """Return the largest of each row in float64, 0 where it is infinite, and whether the row is free of NaN and infinity."""
    top = x.max(2).astype(np.float64)
    return np.where(np.isfinite(top), top, 0), top < np.inf


def _exponentials(x: Array, top: Array, sound: Array) -> Array:
    rest = np.subtract(x, top[:, :, None])
    np.exp(rest, rest)
    rest[~sound] = 0
    return rest


def _share(loop: Callable[..., None], d: Array, results: int) -> None:
    """Run a loop on the threads of the step: on parts of the rows, or of each row's results where rows are few."""
    rows, count = d.shape[0] * d.shape[1], allowed()
    if count == 1 or rows >= FEW or results < count:
        share(lambda lo, hi: loop(d, lo, hi, 0, results), rows, min(count, rows))
    else:
        parts = [d, *(np.zeros_like(d) for _ in range(count - 1))]
        cuts = ranges(results, count)
        together([partial(loop, part, 0, rows, r.start, r.stop) for part, r in zip(parts, cuts, strict=True)], count)
        for part in parts[1:]:
            d += part


def _entry(name: str, row: Algebra, wrt: int, dtype: str) -> Callable[..., None]:
    from .vjp_kernels import entry

    return entry(name, row.combine, row.reduce, wrt if row.combine in _SIDED else 0, dtype)
