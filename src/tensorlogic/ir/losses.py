"""Losses: how far predictions are from what they should be, as a mean over all of them.

``weights`` count some of them more than others; weights of 0 and 1 are a mask.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ..errors import ShapeError, expect_share
from .methods import Axes, TensorMethods
from .sizes import flag
from .tensor import TensorOperators
from .types import BELOW_LABELS, INTEGERS, TensorShape, normal_axis, plain_array

T = TypeVar("T")


class Losses(TensorMethods[T], Generic[T]):
    """Means of squared, absolute and other errors, cross entropies, margins and divergences."""

    def _expect_axes(self, name: str, x: Any, axis: Axes) -> None:
        """Refuse axes that an operand lacks in the name of the operation that was called, not of those that it is made of."""
        shape = self.shape_of(x) if hasattr(x, "shape") else None
        if shape is not None and axis is not None:
            for each in axis if isinstance(axis, tuple | list) else (axis,):
                normal_axis(each, len(shape), name)

    def logsumexp(self, x: Any, axis: Axes = -1, *, keepdims: bool = False) -> T:
        """log(sum(exp(x))) along an axis, shifted so that nothing overflows; -inf where all are."""
        self._expect_axes("logsumexp", x, axis)
        top = self.max(x, axis, keepdims=True)
        shift = self.where(self.isfinite(top), top, 0.0)
        total = self.log(self.sum(self.exp(self.subtract(x, shift)), axis, keepdims=True))
        result = self.add(total, shift)
        return result if flag(keepdims, "keepdims=") else self.sum(result, axis)

    def log_softmax(self, x: Any, axis: Axes = -1) -> T:
        """The logarithm of softmax."""
        self._expect_axes("log_softmax", x, axis)
        return self.subtract(x, self.logsumexp(x, axis, keepdims=True))

    def weighted_mean(self, values: Any, weights: Any = None) -> T:
        """The mean of all values, each counted by its weight; 0 where all weights are."""
        if weights is None:
            return self.mean(values)
        # as many as there are values
        total = self.sum(self.add(self.multiply(weights, 1.0), self.multiply(values, 0.0)))
        return self.divide(self.sum(self.multiply(values, weights)), self.where(self.equal(total, 0.0), 1.0, total))

    def _paired(self, name: str, x: Any, y: Any) -> None:
        """Refuse shapes of which each would be spread along the other, such as (n,) and (n, 1): that compares all with all."""
        left, right = self.shape_of(x), self.shape_of(y)
        if left is None or right is None:
            return
        rank = max(len(left), len(right))
        pairs = list(zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True))
        if any(a == 1 != b for a, b in pairs) and any(b == 1 != a for a, b in pairs):
            message = f"{name}: every element of {left} would be compared with every element of {right}"
            raise ShapeError(message, "reshape one of them to the shape of the other: b.reshape(y, shape)", code="E001")

    def mean_squared_error(self, x: Any, y: Any, *, weights: Any = None) -> T:
        """The mean of squared differences."""
        self._paired("mean_squared_error", x, y)
        return self.weighted_mean(self.square(self.subtract(x, y)), weights)

    def mean_absolute_error(self, x: Any, y: Any, *, weights: Any = None) -> T:
        """The mean of absolute differences."""
        self._paired("mean_absolute_error", x, y)
        return self.weighted_mean(self.absolute(self.subtract(x, y)), weights)

    def huber(self, x: Any, y: Any, *, delta: float = 1.0, weights: Any = None) -> T:
        """Half of squared differences up to ``delta``, and linear beyond."""
        self._paired("huber", x, y)
        away = self.absolute(self.subtract(x, y))
        near = self.minimum(away, delta)  # near (away - near / 2): one formula, so one slope where they meet
        return self.weighted_mean(self.multiply(near, self.subtract(away, self.multiply(0.5, near))), weights)

    def binary_cross_entropy(self, logits: Any, target: Any, *, weights: Any = None, smoothing: float = 0.0) -> T:
        """-target log p - (1 - target) log(1 - p) for p = sigmoid(logits), without overflow; target is from 0 to 1."""
        self._paired("binary_cross_entropy", logits, target)
        target = _smoothed(self, target, smoothing, 2)
        values = self.subtract(self.logaddexp(logits, 0.0), self.multiply(logits, target))
        return self.weighted_mean(values, weights)

    def cross_entropy(
        self, logits: Any, target: Any, axis: int = -1, *, weights: Any = None, smoothing: float = 0.0
    ) -> T:
        """The mean of -sum(target * log_softmax(logits)); target holds probabilities on the same axes, or integer labels on one axis less.

        Labels are from 0: others are refused, also where their weight is 0. ``smoothing`` is the share of each label that is spread evenly over all classes.
        """
        logs = self.log_softmax(logits, axis)
        expect_share("label smoothing", smoothing, "0.1")
        even = self.mean(logs, axis) if smoothing else None
        values = self.negative(self._expected(logs, logits, target, axis))
        if even is not None:
            values = self.subtract(self.multiply(1 - smoothing, values), self.multiply(smoothing, even))
        return self.weighted_mean(values, weights)

    def _expected(self, logs: T, logits: Any, target: Any, axis: int) -> T:
        """The sum of logarithms over classes, weighted by the target."""
        shape, given = self.shape_of(logits), self.shape_of(target)
        if shape is None or given is None:  # whether they are labels or probabilities is a matter of shapes
            what = "logits" if shape is None else "target"
            hint = "declare shapes where they come from, such as b.input('logits', ('n', 10)) and b.input('labels', ('n',), 'int64')"
            raise ShapeError(f"cross_entropy: the number of axes of the {what} is not known", hint, code="E001")
        at = normal_axis(axis, len(shape), "cross_entropy")
        classes, kept = shape[at], (*shape[:at], *shape[at + 1 :])
        pairs = zip(given, shape, strict=False)
        clash = any(isinstance(n, int) and isinstance(m, int) and n != m and 1 not in (n, m) for n, m in pairs)
        if len(given) == len(shape) and not clash:
            # one place spread over all classes would be another number, not a probability of each
            if classes == 1 != given[at]:
                message = f"cross_entropy: a target {given} has {given[at]} classes, and logits {shape} have one"
                raise ShapeError(message, "give a logit for each class", code="E001")
            if given[at] == 1 != classes:
                kept = (*given[:at], *given[at + 1 :])
                hint = f"for integer labels write b.reshape(target, {kept!r}), else give a probability for each class"
                message = f"cross_entropy: a target {given} has one place for the classes of logits {shape}"
                raise ShapeError(message, hint, code="E001")
            return self.sum(self.multiply(target, logs), axis)
        target = target if isinstance(target, TensorOperators) else plain_array(target)
        dtype = None if target.dtype is None else str(target.dtype)
        both = len(given) == len(kept) and all(isinstance(n, int) for n in (*given, *kept))
        if len(given) != len(kept) or (dtype is not None and dtype not in INTEGERS) or (both and given != kept):
            hints = [f"give integer labels {TensorShape(kept)}, or probabilities of the shape of the logits"]
            if given == kept:
                hints.append("cast labels that are written as floats: b.cast(labels, 'int64')")
            if given == shape[len(shape) - len(given) :]:
                same = (*(1 for _ in shape[: len(shape) - len(given)]), *given)
                hints.append(f"where every row has the same probabilities write b.reshape(target, {same!r})")
            message = f"cross_entropy: a target {dtype or 'any'}{given} does not fit logits {shape}"
            raise ShapeError(message, *hints, code="E001")
        order = [a for a in range(len(shape)) if a != at]
        # a gather counts labels below 0 from the end: they become numbers that it refuses
        if dtype is None:
            found = self.gather(self.iota(classes), target, 0)
            target = self.where(self.equal(found, target), found, self.add(self.cast(target, "int64"), BELOW_LABELS))
        elif not dtype.startswith("u"):
            target = target if dtype == "int64" else self.cast(target, "int64")
            target = self.where(self.less(target, 0), self.add(target, BELOW_LABELS), target)
        return self.gather(self.transpose(logs, [*order, at]), target, -1, batch=len(order))

    def hinge(self, scores: Any, target: Any, *, margin: float = 1.0, weights: Any = None) -> T:
        """How far ``target * scores`` falls short of a margin; target is -1 or 1."""
        self._paired("hinge", scores, target)
        return self.weighted_mean(self.relu(self.subtract(margin, self.multiply(target, scores))), weights)

    def margin_ranking(self, better: Any, worse: Any, *, margin: float = 1.0, weights: Any = None) -> T:
        """How far the better scores fall short of lying a margin above the worse ones."""
        return self.weighted_mean(self.relu(self.add(margin, self.subtract(worse, better))), weights)

    def triplet(self, anchor: Any, near: Any, far: Any, *, margin: float = 1.0, weights: Any = None) -> T:
        """How far each far point falls short of being a margin farther from its anchor than the near one, in squared distance."""
        close = self.sum(self.square(self.subtract(anchor, near)), -1)
        away = self.sum(self.square(self.subtract(anchor, far)), -1)
        return self.weighted_mean(self.relu(self.add(margin, self.subtract(close, away))), weights)

    def kl_divergence(self, target: Any, logits: Any, axis: int = -1, *, weights: Any = None) -> T:
        """The mean of sum(target * (log(target) - log_softmax(logits))): how badly the logits tell the target's distribution."""
        positive = self.greater(target, 0)
        own = self.log(self.where(positive, target, 1.0))  # 0 log 0 is 0
        values = self.sum(self.multiply(target, self.subtract(own, self.log_softmax(logits, axis))), axis)
        return self.weighted_mean(values, weights)


def _smoothed(build: Losses[T], target: Any, smoothing: float, classes: int) -> Any:
    expect_share("label smoothing", smoothing, "0.1")
    if not smoothing:
        return target
    return build.add(build.multiply(target, 1 - smoothing), smoothing / classes)
