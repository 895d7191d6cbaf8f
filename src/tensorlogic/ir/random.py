"""Random numbers as ordinary operations: they depend on a key, the number of a step and their place, and on nothing else.

So a run repeats exactly, a resumed one goes on with the same numbers, and every backend has the same bits. The numbers are those of
Widynski's counter-based generator "Squares", which needs only products, sums and shifts of 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ..errors import expect_share
from .methods import TensorMethods
from .sizes import Dim, integer, prod
from .types import TensorShape

T = TypeVar("T")
# inputs that a trainer gives: whether it trains, and the number of the step
TRAINING, STEP = "training", "training.step"
HALF = 1 << 32


class Random(TensorMethods[T], Generic[T]):
    """Uniform numbers, and dropout made of them."""

    def uniform(self, shape: Sequence[Dim], step: Any, *, key: int = 0) -> T:
        """Return float32 numbers from 0 up to 1, other ones for each key and each ``step`` (a whole number, or a tensor of one).

        >>> import tensorlogic as tl
        >>> b = tl.GraphBuilder()
        >>> graph = b.build(u=b.uniform((3,), b.input("step", (), "uint64"), key=7))
        >>> first, again = (tl.Executor().execute(graph, {"step": np.uint64(1)})["u"] for _ in range(2))
        >>> bool((first == again).all()), bool((first < 1).all())
        (True, True)
        """
        sizes = tuple(TensorShape(shape))
        odd = np.uint64(_mixed(integer(key, "uniform: a key", bounded=False)) | 1)
        place = self.cast(self.iota(prod(sizes)), "uint64")
        counter = self.add(place, self.multiply(self.cast(step, "uint64"), np.uint64(HALF)))
        y = self.multiply(counter, odd)
        z = self.add(y, odd)
        x = y
        for more in (y, z, y):
            x = self._turned(self.add(self.multiply(x, x), more))
        bits = self.floor_divide(self.add(self.multiply(x, x), z), np.uint64(1 << 40))  # the upper 24
        return self.reshape(self.multiply(self.cast(bits, "float32"), 2.0**-24), sizes)

    def _turned(self, x: T) -> T:
        """Exchange the halves of 64-bit integers."""
        return self.add(self.floor_divide(x, np.uint64(HALF)), self.multiply(x, np.uint64(HALF)))

    def dropped(self, x: Any, rate: float, training: Any, step: Any, key: int) -> T:
        """Set a share of the elements to 0 while ``training``, and scale the others so that the mean stays."""
        expect_share("the rate of dropout", rate, "0.5")
        kept = self.greater_equal(self.uniform(self._shape(x, "dropout"), step, key=key), rate)
        scaled = self.where(kept, self.multiply(x, 1 / (1 - rate)), 0)
        return self.where(training, scaled, x)


def _mixed(key: int) -> int:
    """Return 64 bits that look random, by SplitMix64."""
    z = (key + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ((1 << 64) - 1)
    return z ^ (z >> 31)
