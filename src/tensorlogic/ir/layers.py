"""The usual layers, built from the operations so that every pass, backend and tool applies to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from .convolutions import Convolutions
from .losses import Losses
from .methods import Axes
from .random import Random
from .sizes import flag

T = TypeVar("T")


class Layers(Losses[T], Convolutions[T], Random[T], Generic[T]):
    """Activations, normalisers, convolutions, losses and attention."""

    def gelu(self, x: Any, *, approximate: bool = False) -> T:
        """X times the normal distribution function of x; by tanh when approximate."""
        if flag(approximate, "approximate="):
            inner = self.multiply(
                math.sqrt(2 / math.pi), self.add(x, self.multiply(0.044715, self.multiply(self.square(x), x)))
            )
            return self.multiply(self.multiply(0.5, x), self.add(1.0, self.tanh(inner)))
        return self.multiply(self.multiply(0.5, x), self.add(1.0, self.erf(self.multiply(x, math.sqrt(0.5)))))

    def silu(self, x: Any) -> T:
        """X times sigmoid(x)."""
        return self.multiply(x, self.sigmoid(x))

    def softplus(self, x: Any) -> T:
        """log(1 + exp(x)), without overflow."""
        return self.logaddexp(x, 0.0)

    def leaky_relu(self, x: Any, slope: float = 0.01) -> T:
        """X where positive, slope times x elsewhere."""
        return self.where(self.greater(x, 0), x, self.multiply(x, slope))

    def elu(self, x: Any, alpha: float = 1.0) -> T:
        """X where positive, alpha (exp(x) - 1) elsewhere."""
        positive = self.greater(x, 0)  # a choice, not a minimum, which would have half of the slope at 0
        return self.where(positive, x, self.multiply(alpha, self.expm1(self.where(positive, 0, x))))

    def softmax(self, x: Any, axis: Axes = -1) -> T:
        """exp(x) scaled to sum to 1 along an axis, shifted so that nothing overflows."""
        self._expect_axes("softmax", x, axis)
        e = self.exp(self.subtract(x, self.max(x, axis, keepdims=True)))
        return self.divide(e, self.sum(e, axis, keepdims=True))

    def var(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T:
        """The mean squared distance from the mean."""
        away = self.subtract(x, self.mean(x, axis, keepdims=True))
        return self.mean(self.square(away), axis, keepdims=keepdims)

    def layer_norm(self, x: Any, scale: Any = None, bias: Any = None, *, axis: Axes = -1, eps: float = 1e-5) -> T:
        """Shift and scale to mean 0 and variance 1 along an axis, then by learned scale and bias."""
        self._expect_axes("layer_norm", x, axis)
        away = self.subtract(x, self.mean(x, axis, keepdims=True))
        var = self.mean(self.square(away), axis, keepdims=True)
        return self._affine(self.divide(away, self.sqrt(self.add(var, eps))), scale, bias)

    def rms_norm(self, x: Any, scale: Any = None, *, axis: Axes = -1, eps: float = 1e-5) -> T:
        """Scale to mean square 1 along an axis."""
        self._expect_axes("rms_norm", x, axis)
        power = self.mean(self.square(x), axis, keepdims=True)
        return self._affine(self.divide(x, self.sqrt(self.add(power, eps))), scale, None)

    def batch_norm(self, x: Any, mean: Any, var: Any, scale: Any = None, bias: Any = None, *, eps: float = 1e-5) -> T:
        """Normalise by a given mean and variance (inference form)."""
        return self._affine(self.divide(self.subtract(x, mean), self.sqrt(self.add(var, eps))), scale, bias)

    def _affine(self, x: Any, scale: Any, bias: Any) -> T:
        scaled = x if scale is None else self.multiply(x, scale)
        return scaled if bias is None else self.add(scaled, bias)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> T:
        """``x @ weight + bias`` over the last axis of x; weight is (in, out)."""
        y = self.einsum("...i,ij->...j", x, weight)
        return y if bias is None else self.add(y, bias)

    def attention(self, query: Any, key: Any, value: Any, mask: Any = None) -> T:
        """Scaled dot-product attention over (..., positions, features); mask is true where attending is allowed."""
        scores = self.einsum("...qd,...kd->...qk", query, key)
        width = self._shape(query, "attention")[-1]
        if isinstance(width, int):
            scores = self.divide(scores, math.sqrt(width))
        else:  # count in the query's own dtype, whatever that will be; a NaN there is one in its scores anyway
            ones = self.maximum(self.minimum(self.stop_gradient(query), 1), 1)
            scores = self.divide(scores, self.sqrt(self.sum(ones, -1, keepdims=True)))
        if mask is not None:
            scores = self.where(mask, scores, -math.inf)
        return self.einsum("...qk,...kd->...qd", self.softmax(scores), value)

    def one_hot(self, indices: Any, size: Any, dtype: Any = "float32") -> T:
        """1 at each index along a new last axis, 0 elsewhere."""
        shape: Sequence[Any] = [*self._shape(indices, "one_hot"), 1]
        return self.cast(self.equal(self.reshape(indices, shape), self.iota(size)), dtype)
