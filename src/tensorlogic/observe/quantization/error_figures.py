"""How far quantized values are from what they stand for: in decibels, at most, and on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...ir.types import Array


class ErrorFigures(NamedTuple):
    """The error of some values: signal to noise in decibels (20 more is a tenth of the error), the largest, and the mean size.

    >>> ErrorFigures.of(np.array([1.0, -1.0]), np.array([1.1, -0.9])).sqnr_db
    20.0
    """

    sqnr_db: float
    largest: float
    mean: float

    @classmethod
    def of(cls, exact: Any, rounded: Any) -> ErrorFigures:
        """Compare values with what they became."""
        before, after = np.asarray(exact, np.float64), np.asarray(rounded, np.float64)
        error = np.abs(after - before)
        noise, signal = float(np.square(error).sum()), float(np.square(before).sum())
        ratio = math.inf if noise == 0 else -math.inf if signal == 0 else 10 * math.log10(signal / noise)
        return cls(round(ratio, 6), float(error.max(initial=0.0)), float(error.mean()) if error.size else 0.0)

    def cells(self) -> list[str]:
        """Return the figures as the cells of a table."""
        return [decibels(self.sqnr_db), f"{self.largest:.3g}", f"{self.mean:.3g}"]


def relative_error(exact: Sequence[Array], rounded: Sequence[Array]) -> float:
    """Return the root mean square error of several outputs, as a share of their own root mean square.

    >>> relative_error([np.array([3.0, 4.0])], [np.array([3.0, 4.5])])
    0.1
    """
    noise = signal = 0.0
    for before, after in zip(exact, rounded, strict=True):
        if np.asarray(before).dtype.kind == "f":
            signal += float(np.square(before, dtype=np.float64).sum())
            noise += float(np.square(np.subtract(after, before, dtype=np.float64)).sum())
    return math.sqrt(noise / signal) if signal else math.inf if noise else 0.0


def decibels(value: float) -> str:
    """Write a ratio of signal to noise.

    >>> decibels(35.16), decibels(math.inf)
    ('35.2', 'exact')
    """
    return "exact" if value == math.inf else f"{value:.1f}"
