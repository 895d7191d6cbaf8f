"""Contractions in other algebras as native kernels: any two factors laid out as [n, i, k] and [n, k, j].

Results that are a maximum or a minimum have the same bits as on the NumPy path (of 0 and -0 either may be the larger there as
here). Noisy-or and log-sum-exp are within a few roundings of it: of 1 for noisy-or, of the largest term for log-sum-exp.
Nothing here imports numba before a kernel is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ir import ops
from ...ir.algebra import ALGEBRAS, Algebra, check_domain
from ...ir.spec import Labels
from ...ir.types import TensorType
from ...plan.cost import Contraction
from ...plan.native_memory import AT_A_TIME, FEW, NARROW, Layout, join_layout, loop_way, same_order, spread_steps
from ...plan.sharing import THIN
from ..base import Kernel
from ..contract import MERGE, bind_contraction, caster, prepared, without
from ..threads import allowed, share, shared_matmul

Array = Any  # a NumPy array; the plan says more about it than a type could
Contract = Callable[[Array, Array, Array], None]  # [n, i, k] and [n, k, j] in, [n, i, j] written
ROWS = frozenset(name for name in ALGEBRAS if name not in ("real", "boolean"))  # those two have better kernels
WORTH = 1 << 15  # terms above which a kernel is faster than the NumPy path even counting how it is called
_NOTHING = np.empty((0, 0, 0), np.uint8)
LEAST_SUM = 1e-100  # sums of exponentials under it have lost too much to rounding on the way


def worth(form: Contraction) -> bool:
    """Tell whether a contraction is large enough, and uses its factors often enough, to be run by a native kernel."""
    large = len(form.labels) == 2 and form.kernel == "blocks" and math.prod(form.sizes.values()) >= WORTH
    return large and not _apart(form)


def _needed(row: Algebra) -> list[tuple[str, str, str]]:
    surveys = [("survey", order, "") for order in ("in_order", "any_strides") if row.reduce in ("max", "min")]
    return [("outer", row.combine, row.reduce), ("dot", row.combine, row.reduce), *surveys]


def make_ready(row: Algebra, dtype: str) -> None:
    """Compile an algebra's kernels, or load them from the disk: for a thread that nobody waits for."""
    from .semiring_kernels import entry

    for key in _needed(row):
        entry(*key, dtype)


def bind_semiring(op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> Kernel | None:
    """Return the native kernel of an einsum of two factors in another algebra; None where there is none.

    It takes ``out=``: a C-contiguous array of the result's type that shares no memory with the factors. Its loops are compiled
    when they first run; see :func:`make_ready`.
    """
    row = ALGEBRAS[op.algebra]
    if row.name not in ROWS or len(form.labels) != 2 or result.dtype not in ("float32", "float64"):
        return None
    if form.kernel == "product" or _apart(form):  # NumPy passes over the factors once: nothing to gain
        return _placing(bind_contraction(op, form, args, result))
    dtype, sizes, output = np.dtype(result.dtype), form.sizes, form.spec.output
    prepare = [prepared(own, kept) for own, kept in zip(form.spec.inputs, form.labels, strict=True)]
    cast = caster(row, dtype)
    layout = join_layout(form)
    labels_out = (*layout.batch, *layout.left, *layout.right)
    in_order = same_order(form, labels_out, output)
    shape = [sizes[x] for x in output]
    shape_out = [sizes[x] for x in labels_out]
    whole = layout.points(form)[:3]
    empty = any(sizes[x] == 0 for x in form.spec.contracted)
    run = _log_sum_exp(dtype) if row.reduce == "logsumexp" else _folded(row, dtype)
    lay = laid_out(form.labels, layout, sizes)
    spread = any(layout.alone)

    def contract(*operands: Array, out: Array = None) -> Array:
        if row.domain is not None:
            for x in operands:
                if x.size:
                    check_domain(row, np.fmin.reduce(x, axis=None), np.fmax.reduce(x, axis=None))  # NaN hides nothing
        out = np.empty(shape, dtype) if out is None else out
        if empty:
            out.fill(row.zero)
        if empty or not out.size:
            return out
        a, b = (cast(own(x)) for x, own in zip(operands, prepare, strict=True))
        target = (out if in_order else np.empty(shape_out, dtype)).reshape(whole)
        if not spread:
            run(*lay(a, b), target)
        else:
            parts = _parts(row, form, layout, a, b)
            run(*next(parts), target)
            for pair in parts:
                more = np.empty_like(target)
                run(*pair, more)
                target[...] = MERGE[row.reduce](target, more)
                del pair, more  # before the next is laid out
        if not in_order:
            out[...] = target.reshape(shape_out).transpose([labels_out.index(x) for x in output])
        return out

    return contract


def _apart(form: Contraction) -> bool:
    """Tell whether every factor is used for one result only, and the memory does not have those of a result together."""
    alone = all(form.sizes[x] == 1 or all(x in own for own in form.labels) for x in form.spec.output)
    return alone and not all(own and own[-1] not in form.spec.output for own in form.labels)


def _placing(kernel: Kernel) -> Kernel:
    """Return a kernel that takes ``out=``, of one that does not."""

    def run(*operands: Array, out: Array = None) -> Array:
        result = kernel(*operands)
        if out is None:
            return result
        out[...] = result
        return out

    return run


def laid_out(
    labels: Sequence[Labels], layout: Layout, sizes: dict[str, int]
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Return what lays two factors out as [n, i, k] and [n, k, j], their own indices after k: views where they can be."""
    ends = layout.batch, layout.left, layout.right
    n, i, j, k, p, q = (math.prod(sizes[x] for x in group) for group in (*ends, layout.inner, *layout.alone))
    orders = (
        (*layout.batch, *layout.left, *layout.inner, *layout.alone[0]),
        (*layout.batch, *layout.inner, *layout.alone[1], *layout.right),
    )
    axes = [[own.index(x) for x in order] for own, order in zip(labels, orders, strict=True)]
    return lambda a, b: (a.transpose(axes[0]).reshape(n, i, k * p), b.transpose(axes[1]).reshape(n, k * q, j))


def _parts(row: Algebra, form: Contraction, layout: Layout, a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Lay out factors with indices that only one of them has: reduced before, or spread over the other part by part."""
    labels, sizes, alone = form.labels, form.sizes, layout.alone
    lay = laid_out(labels, layout, sizes)
    if _separable(row, layout, a, b):
        gone = {*alone[0], *alone[1]}
        (a, first), (b, second) = (without(row, x, own, gone, x.dtype) for x, own in zip((a, b), labels, strict=True))
        yield laid_out((first, second), layout._replace(alone=((), ())), sizes)(a, b)
        return
    a, b = lay(a, b)
    n, i, j, k, p, q = layout.points(form)
    a, b = a.reshape(n, i, k, p, 1), b.reshape(n, k, 1, q, j)
    step = spread_steps(form, layout)
    for r in range(0, q, step[0]):
        for s in range(0, p, step[1]):
            x, y = a[:, :, :, s : s + step[1]], b[:, :, :, r : r + step[0]]
            both = x.shape[3], y.shape[3]
            yield (
                np.broadcast_to(x, (n, i, k, *both)).reshape(n, i, -1),
                np.broadcast_to(y, (n, k, *both, j)).reshape(n, -1, j),
            )


def _separable(row: Algebra, layout: Layout, a: Array, b: Array) -> bool:
    """Tell whether reducing a factor before it is joined gives the same, infinities and signs included."""
    if not row.distributive:
        return False
    if row.combine not in ("multiply", "add"):
        return True
    others = [other for other, alone in zip((b, a), layout.alone, strict=True) if alone]
    if not all(np.isfinite(x).all() for x in others):
        return False  # an infinity joined with its opposite, or with 0, is NaN
    return row.combine == "add" or all(x.min(initial=0) >= 0 for x in others)


def _folded(row: Algebra, dtype: np.dtype[Any]) -> Contract:
    """Return what contracts by a maximum, a minimum or noisy-or."""
    start = dtype.type({"max": -np.inf, "min": np.inf, "noisy_or": 1}[row.reduce])
    constants = start, dtype.type(1)
    swaps = row.combine not in ("godel_implies", "goguen_implies")

    def run(a: Array, b: Array, c: Array) -> None:
        match _way(a, b, swaps):
            case "swapped":
                _swapped(run, a, b, c)
                return
            case "dot":
                _dotted(_entry("dot", row.combine, row.reduce, dtype.name), a, b, c, *constants)
            case _:
                loop = _entry("outer", row.combine, row.reduce, dtype.name)
                y, step = _lines(b)
                look = row.reduce != "noisy_or" and a.shape[1] >= FEW and a.size * b.shape[2] >= WORTH
                tables = _surveyed(a, b, row.combine) if look else (_NOTHING, _NOTHING)
                _share(lambda *part: loop(a, y, step, c, *tables, *part, *constants), a, b)
        if row.reduce == "noisy_or":
            np.subtract(constants[1], c, c)

    return run


def _surveyed(a: Array, b: Array, combine: str) -> tuple[Array, Array]:
    """Return what the rows of the first factor, and the blocks of the second, hold that could make a NaN."""
    from .semiring_kernels import DEPTH, WIDTH

    found = []
    for x, tall, wide in ((a, 1, DEPTH), (b, DEPTH, WIDTH)):
        facts = np.empty((len(x), -(-x.shape[1] // tall), -(-x.shape[2] // wide)), np.uint8)
        order = "in_order" if x.flags.c_contiguous else "any_strides"
        _entry("survey", order, "", x.dtype.name)(x, facts, tall, wide, x.dtype.type(np.inf))
        # infinity times 0 is NaN, so that any infinity is looked at as one
        found.append(np.minimum(facts, 1, out=facts) if combine == "multiply" else facts)
    return found[0], found[1]


def _log_sum_exp(dtype: np.dtype[Any]) -> Contract:
    """Return what contracts by log-sum-exp: a matrix product of exponentials, and again with care where that underflows."""
    constants = dtype.type(1), dtype.type(np.inf)

    def with_care(a: Array, b: Array, c: Array, sums: Array, limit: float) -> None:
        loop = _entry("outer", "add", "logsumexp", dtype.name)
        y, step = _lines(b)
        _share(lambda *part: loop(a, y, step, c, sums, limit, *part, *constants), a, b)

    def run(a: Array, b: Array, c: Array) -> None:
        if min(c.shape[1:]) <= THIN:  # about as many exponentials as terms anyway
            match _way(a, b, True):
                case "swapped":
                    _swapped(run, a, b, c)
                case "dot":
                    _dotted(_entry("dot", "add", "logsumexp", dtype.name), a, b, c, *constants)
                case _:
                    with_care(a, b, c, np.empty(c.shape), math.inf)  # no sum is above it
            return
        with np.errstate(all="ignore"):  # what comes of infinities and zeros is done again
            (high, x), (wide, y) = (_exponentials(v, axis) for v, axis in ((a, 2), (b, 1)))
            sums = shared_matmul(x, y)
            del x, y
            some = max(1, AT_A_TIME // max(1, c.shape[0] * c.shape[2]))
            for part in (slice(lo, lo + some) for lo in range(0, c.shape[1], some)):
                total = np.log(sums[:, part])
                total += high[:, part] + wide
                c[:, part] = total
        if not sums.min() > LEAST_SUM:
            with_care(a, b, c, sums, LEAST_SUM)

    return run


def _exponentials(x: Array, axis: int) -> tuple[Array, Array]:
    """Return the largest of each row in float64, and the exponentials of what is left when it is taken off."""
    top = x.max(axis, keepdims=True).astype(np.float64)
    top[~np.isfinite(top)] = 0
    rest = np.subtract(x, top, order="C")
    return top, np.exp(rest, rest)


def _way(a: Array, b: Array, swaps: bool) -> str:
    """Choose the loop by which index is long and which one the memory has last."""
    nearer = b.strides[1] < b.strides[2], a.strides[1] < a.strides[2]
    return loop_way(a.shape[1], a.shape[2], b.shape[2], *nearer, swaps)


def _swapped(run: Contract, a: Array, b: Array, c: Array) -> None:
    """Contract with the factors in the other order, so that the long index is the inner one."""
    n, rows, columns = c.shape
    turned = c.reshape(n, columns, rows) if columns == 1 else np.empty((n, columns, rows), c.dtype)
    run(b.transpose(0, 2, 1), a.transpose(0, 2, 1), turned)
    if columns != 1:
        c[...] = turned.transpose(0, 2, 1)


def _dotted(loop: Callable[..., None], a: Array, b: Array, c: Array, *constants: Any) -> None:
    """Run a loop over rows that wants the reduced index last in both factors."""
    (x, step), (y, across) = _lines(a), _lines(b.transpose(0, 2, 1))
    inner = a.shape[2]
    _share(lambda lo, hi, *_: loop(x, step, y, across, inner, c, lo, hi, *constants), a, b, columns=False)


def _lines(x: Array) -> tuple[Array, tuple[int, int]]:
    """Return an array of three axes as one of one axis, and how far apart the first two lie in it; a copy only if the last does not lie together."""
    size = x.itemsize
    if (x.shape[2] != 1 and x.strides[2] != size) or any(s < 0 or s % size for s in x.strides):
        x = np.ascontiguousarray(x)
    step = x.strides[0] // size, x.strides[1] // size
    length = (x.shape[0] - 1) * step[0] + (x.shape[1] - 1) * step[1] + x.shape[2] if x.size else 0
    return np.lib.stride_tricks.as_strided(x, (length,), (size,)), step


def _share(loop: Callable[..., None], a: Array, b: Array, *, columns: bool = True) -> None:
    """Run a loop over rows and columns: parts of the rows, or of the columns where those are few, on the threads of the step."""
    rows, wide, count = a.shape[0] * a.shape[1], b.shape[2], allowed()
    if columns and a.shape[1] < FEW and rows < FEW * count and wide >= NARROW * count:
        share(partial(loop, 0, rows), wide, count)
    else:
        share(lambda lo, hi: loop(lo, hi, 0, wide), rows, min(count, rows))


def _entry(name: str, combine: str, reduce: str, dtype: str) -> Callable[..., None]:
    from .semiring_kernels import entry

    return entry(name, combine, reduce, dtype)
