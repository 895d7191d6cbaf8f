"""The error function of float32 arrays in plain NumPy: within 0.54 units in the last place, block by block.

It is x p(x²) / q(x²), fitted to the least largest relative error up to 4, beyond which it is 1, and computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .base import Kernel

Array = Any
BLOCK = 1 << 14  # elements that are worked on at once, so that they stay in cache: plan/cost.py counts what they take
LEAST, MOST = np.array(-4.0), np.array(4.0)
# from the highest power down
ABOVE = [
    np.array(c)
    for c in (
        -1.3201096186523541e-08,
        4.6845374897242205e-06,
        0.0003796016710399402,
        0.0038496612940434978,
        0.05431695911803219,
        0.1852050414749893,
        1.1283791693741645,
    )
]
BELOW = [
    np.array(c)
    for c in (
        6.310833471531686e-05,
        0.0013075704366079521,
        0.015462164430680932,
        0.1139589967387971,
        0.49746710819392875,
        1.0,
    )
]


def bind_erf(dtype: np.dtype[Any], operand: str | None) -> Kernel:
    """Return the kernel of erf for results of a dtype; SciPy's where this one does not serve."""
    if dtype == np.float32 and operand == "float32":
        return erf32
    from scipy.special import erf  # scipy loads on first need

    def scipy_erf(x: Any, out: Array | None = None) -> Array:
        return np.asarray(erf(x)).astype(dtype, copy=False) if out is None else erf(x, out)

    return scipy_erf


def erf32(x: Array, out: Array | None = None) -> Array:
    """Return erf of a float32 array, written where ``out`` says; it may be x itself.

    >>> erf32(np.array([0.0, 0.5, -2.0, np.inf, np.nan], "float32"))
    array([ 0.       ,  0.5204999, -0.9953223,  1.       ,        nan],
          dtype=float32)
    """
    x = np.asarray(x)
    out = np.empty(x.shape, "float32") if out is None else out
    room = [np.empty(min(BLOCK, x.size)) for _ in range(3)]
    for part, target in in_blocks(x, out, BLOCK):
        _block(part, target, *(r[: part.size].reshape(part.shape) for r in room))
    return out


def in_blocks(x: Array, out: Array, most: int) -> Iterator[tuple[Array, Array]]:
    """Yield an operand and a result of its shape in blocks of at most so many elements; each block of a result in order is in order."""
    if x.size <= most:
        yield x, out
    elif x.flags.c_contiguous and out.flags.c_contiguous:
        source, target = x.reshape(-1), out.reshape(-1)
        for start in range(0, x.size, most):
            yield source[start : start + most], target[start : start + most]
    elif rows := most * len(x) // x.size:
        for start in range(0, len(x), rows):
            yield x[start : start + rows], out[start : start + rows]
    else:
        for part, target in zip(x, out, strict=True):
            yield from in_blocks(part, target, most)


def _block(x: Array, out: Array, a: Array, t: Array, p: Array) -> None:
    np.clip(x, LEAST, MOST, out=a)
    np.square(a, out=t)
    np.multiply(a, _polynomial(ABOVE, t, p), out=a)
    np.divide(a, _polynomial(BELOW, t, p), out=out, casting="same_kind")


def _polynomial(coefficients: list[Array], t: Array, p: Array) -> Array:
    np.multiply(t, coefficients[0], out=p)
    for c in coefficients[1:-1]:
        np.multiply(np.add(p, c, out=p), t, out=p)
    return np.add(p, coefficients[-1], out=p)
