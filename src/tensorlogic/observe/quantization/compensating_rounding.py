"""Rounding that makes up for its own errors, as GPTQ does (Frantar and others, 2022).

Columns of a weight are rounded one after another. The error of each is spread over those that follow, so that the sums come out
as they should on calibration data; how much each takes is in the inverse of the sums of products of inputs.
"""

from __future__ import annotations

import numpy as np

from ...ir.ops import Dequantize, Quantize
from ...ir.packed_numbers import KINDS
from ...ir.quantize_arrays import dequantize_array, quantize_array
from ...ir.quantize_scales import scales_of
from ...ir.quantized import QuantizedTensor
from ...ir.types import Array

DAMPING = 0.01  # of the mean square of inputs, added so that the inverse is there
BLOCK = 64  # columns whose errors are spread over the rest together


def compensated(
    matrix: Array, gram: Array, kind: str, axis: int | None, group: int | None, *, symmetric: bool, search: bool
) -> QuantizedTensor:
    """Return a weight (columns, terms) rounded so that its products with inputs of a Gram matrix change least.

    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.normal(size=(200, 16)) @ rng.normal(size=(16, 16)), rng.normal(size=(4, 16)).astype("float32")
    >>> better = compensated(w, x.T @ x, "int4", 0, None, symmetric=True, search=False)
    >>> from tensorlogic import QuantizationGranularity as G, QuantizationType as T
    >>> nearest = QuantizedTensor.of(w, T.INT4, G.PER_CHANNEL(0))
    >>> errors = [np.square(x @ (q.dequantize() - w).T).mean() for q in (better, nearest)]
    >>> bool(errors[0] < 0.8 * errors[1])
    True
    """
    scales, zeros = scales_of(matrix, kind, axis, group, symmetric=symmetric, search=search)
    terms = matrix.shape[1]
    upper = _inverse_root(gram)
    left = matrix.astype(np.float64)
    held = KINDS[kind].dtype
    numbers = np.empty(matrix.shape, held)
    for start in range(0, terms, BLOCK):
        stop = min(start + BLOCK, terms)
        errors = np.zeros((len(matrix), stop - start))
        for k in range(start, stop):
            scale, zero = _of_column(scales, group, k), _of_column(zeros, group, k)
            along = 0 if scale.ndim else None
            column = quantize_array(left[:, k], scale, zero, Quantize(held, along, None, kind))
            value = dequantize_array(column, scale, zero, Dequantize(along), "float64")
            numbers[:, k] = column
            errors[:, k - start] = (left[:, k] - value) / upper[k, k]
            left[:, k + 1 : stop] -= np.outer(errors[:, k - start], upper[k, k + 1 : stop])
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return QuantizedTensor.from_numbers(numbers, kind, scales, zeros, axis, group)


def _of_column(values: Array, group: int | None, k: int) -> Array:
    """Return the scales of one column."""
    return np.asarray(values if group is None else values[:, k // group])


def _inverse_root(gram: Array) -> Array:
    """Return the upper triangular factor of the inverse of a Gram matrix, damped."""
    size = len(gram)
    mean = float(np.trace(gram)) / max(size, 1)
    damped = gram.astype(np.float64) + np.eye(size) * (DAMPING * mean or 1.0)
    inverse = np.linalg.inv(damped)
    return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)
