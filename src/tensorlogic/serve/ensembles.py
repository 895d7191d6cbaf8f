"""Ensembles: several models as one graph, so that inputs and subgraphs that they share are computed once; what is fitted is fitted here."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.graph import EinsumGraph
from ..ir.tensor import Tensor
from ..passes.grad import value_and_grad
from ..runtime.executor import Executor

LEAST_ERROR = 1e-10  # of a member that is never wrong: its weight stays a number


class EnsembleStrategy(Enum):
    """How the outputs of several models become one.

    ``AVERAGING`` is their weighted mean. ``VOTING`` counts the class that each gives most to (hard), or averages probabilities (soft).
    ``STACKING`` fits a linear model on what they give: logistic for classes, ridge for numbers. ``BOOSTING`` goes stage by stage, each
    weighted by how well it mends what those before it got wrong.

    >>> [strategy.value for strategy in EnsembleStrategy]
    ['averaging', 'voting', 'stacking', 'boosting']
    """

    AVERAGING = "averaging"
    VOTING = "voting"
    STACKING = "stacking"
    BOOSTING = "boosting"


class Members(NamedTuple):
    """The graphs of an ensemble, the output of each that counts, and the weight of each."""

    graphs: Sequence[EinsumGraph]
    outputs: Sequence[str]
    weights: Sequence[float]


def averaging(members: Members) -> EinsumGraph:
    """Return the weighted mean of the members' outputs, under the name of the first one's.

    >>> b = GraphBuilder()
    >>> x = b.input("x", ("n",), "float64")
    >>> both = averaging(Members([b.build(y=x * 2.0), b.build(y=x * 4.0)], ["y", "y"], [1.0, 3.0]))
    >>> Executor().execute(both, {"x": [1.0, 2.0]})["y"]
    array([3.5, 7. ])
    """
    b = GraphBuilder()
    return b.build({members.outputs[0]: _mean(_inlined(b, members), members.weights)})


def voting(members: Members, *, soft: bool) -> EinsumGraph:
    """Return the class that most members vote for (``label``), and the share of votes or the mean probability of each class."""
    b = GraphBuilder()
    values = _inlined(b, members)
    if soft:
        shares, name = _mean(values, members.weights), "probabilities"
    else:
        shares, name = _mean([_vote(b, v, _classes(values)) for v in values], members.weights), "votes"
    return b.build({name: shares, "label": b.argmax(shares, -1)})


def stacking(members: Members, features: np.ndarray, target: np.ndarray, regularization: float) -> EinsumGraph:
    """Fit a linear model on what the members give for some data, and return the graph of both."""
    b = GraphBuilder()
    columns = _features(b, _inlined(b, members), target)
    if target.dtype.kind == "f":
        weights, offset = _ridge(features, target, regularization)
        return b.build({members.outputs[0]: columns @ b.constant(weights) + float(offset)})
    weights, offsets = _logistic(features, target, regularization)
    scores = b.softmax(columns @ b.constant(weights) + b.constant(offsets))
    return b.build(probabilities=scores, label=b.argmax(scores, -1))


def boosting(members: Members, values: Sequence[np.ndarray], target: np.ndarray, rate: float) -> EinsumGraph:
    """Weight the members stage by stage on what they give for some data, and return the graph of their sum.

    Classes: AdaBoost (SAMME), in which rows that a member gets wrong count for more at the next stage. Numbers: least squares, in which each
    member is scaled to what is left of the target, times the learning rate.
    """
    b = GraphBuilder()
    inside = _inlined(b, members)
    if target.dtype.kind == "f":
        start, weights = _least_squares_stages(values, target, rate)
        total: Any = b.literal(start)
        for value, weight in zip(inside, weights, strict=True):
            total = total + value * float(weight)
        return b.build({members.outputs[0]: total})
    classes = _classes(inside, target)
    weights = _adaboost_stages([_labels(v) for v in values], target, classes, rate)
    scores = _mean([_vote(b, v, classes) for v in inside], weights)
    return b.build(votes=scores, label=b.argmax(scores, -1))


def member_values(executor: Executor, members: Members, data: Any) -> list[np.ndarray]:
    """Return what each member gives for some data, by one run of all."""
    b = GraphBuilder()
    graph = b.build({f"member{n}": value for n, value in enumerate(_inlined(b, members))})
    return [np.asarray(value) for value in executor.execute(graph, data)]


def stacked_features(values: Sequence[np.ndarray], target: np.ndarray) -> np.ndarray:
    """Return what members give as the columns of one matrix, a row for each target."""
    columns = [v.reshape(len(target), -1) if v.ndim else v for v in values]
    return np.concatenate(columns, axis=1).astype("float64")


# graphs


def _inlined(b: GraphBuilder, members: Members) -> list[Tensor]:
    return [b.inline(graph)[output] for graph, output in zip(members.graphs, members.outputs, strict=True)]


def _mean(values: Sequence[Any], weights: Sequence[float]) -> Any:
    whole = math.fsum(weights)
    return reduce(operator.add, [v * (float(w) / whole) for v, w in zip(values, weights, strict=True)])


def _is_label(value: Tensor) -> bool:
    return value.dtype is not None and value.dtype[0] in "iu"


def _vote(b: GraphBuilder, value: Tensor, classes: Any) -> Tensor:
    """Return the vote of a member as zeros and a one; outputs of whole numbers are classes already."""
    return b.one_hot(value if _is_label(value) else b.argmax(value, -1), classes, "float64")


def _classes(values: Sequence[Tensor], target: np.ndarray | None = None) -> Any:
    """Return how many classes there are: the last axis of a member that gives scores, or one more than the largest target."""
    for value in values:
        if not _is_label(value) and value.shape:
            return value.shape[-1]
    if target is None:
        hint = "let one member give a score for each class"
        raise InputError("members that give labels alone do not say how many classes there are", hint, code="E462")
    return int(target.max()) + 1


def _features(b: GraphBuilder, values: Sequence[Tensor], target: np.ndarray) -> Tensor:
    columns = [b.expand_dims(v, -1) if v.shape is not None and len(v.shape) == target.ndim else v for v in values]
    return b.concat([b.cast(column, "float64") for column in columns], axis=-1)


# fitting


def _ridge(features: np.ndarray, target: np.ndarray, regularization: float) -> tuple[np.ndarray, float]:
    """Return the weights and the offset with the least squares, plus so much times the squares of the weights."""
    mean, middle = features.mean(0), target.mean()
    rows, wanted = features - mean, target - middle
    penalty = math.sqrt(regularization) * np.eye(features.shape[1])
    weights = np.linalg.lstsq(np.vstack([rows, penalty]), np.concatenate([wanted, np.zeros(len(penalty))]))[0]
    return weights, float(middle - mean @ weights)


def _logistic(features: np.ndarray, target: np.ndarray, regularization: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and offsets with the least cross entropy, summed over rows, plus half so much times the squares of the weights."""
    from scipy.optimize import minimize

    rows, width = features.shape
    classes = int(target.max()) + 1
    b = GraphBuilder()
    x, y = b.constant(features), b.constant(target.astype("int64"))
    weights, offsets = b.input("weights", (width, classes), "float64"), b.input("offsets", (classes,), "float64")
    loss = float(rows) * b.cross_entropy(x @ weights + offsets, y) + 0.5 * regularization * b.sum(b.square(weights))
    both, executor = value_and_grad(b.build(loss=loss), ["weights", "offsets"]), Executor()

    def step(flat: np.ndarray) -> tuple[float, np.ndarray]:
        split = {"weights": flat[: width * classes].reshape(width, classes), "offsets": flat[width * classes :]}
        value, *gradients = executor.execute(both, split)
        return float(value), np.concatenate([np.ravel(g) for g in gradients])

    found = minimize(
        step, np.zeros((width + 1) * classes), jac=True, method="L-BFGS-B", options={"gtol": 1e-7, "maxiter": 2000}
    )
    return found.x[: width * classes].reshape(width, classes), found.x[width * classes :]


def _labels(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind in "iu" else values.argmax(-1)


def _adaboost_stages(labels: Sequence[np.ndarray], target: np.ndarray, classes: Any, rate: float) -> list[float]:
    """Return the weight of each stage; a member that is no better than chance has none."""
    rows = np.full(len(target), 1.0 / len(target))
    count = int(target.max()) + 1 if not isinstance(classes, int) else classes
    weights = []
    for guess in labels:
        wrong = guess != target
        error = float(np.clip(rows[wrong].sum() / rows.sum(), LEAST_ERROR, 1.0))
        better = error < 1.0 - 1.0 / count
        weights.append(rate * (math.log((1.0 - error) / error) + math.log(count - 1.0)) if better else 0.0)
        rows = rows * np.exp(weights[-1] * wrong)
        rows /= rows.sum()
    if not any(weights):
        raise InputError("no member is better than chance on the data, so there is nothing to boost", code="E463")
    return weights


def _least_squares_stages(values: Sequence[np.ndarray], target: np.ndarray, rate: float) -> tuple[float, list[float]]:
    """Return what the sum starts from, the mean of the target, and the weight of each stage."""
    start = float(target.mean())
    left, weights = target - start, []
    for value in values:
        square = float((value * value).sum())
        weights.append(rate * float((left * value).sum()) / square if square else 0.0)
        left = left - weights[-1] * value
    return start, weights


FITTED: frozenset[EnsembleStrategy] = frozenset({EnsembleStrategy.STACKING, EnsembleStrategy.BOOSTING})
COMPOSE: dict[EnsembleStrategy, Callable[..., EinsumGraph]] = {
    EnsembleStrategy.AVERAGING: averaging,
    EnsembleStrategy.VOTING: voting,
    EnsembleStrategy.STACKING: stacking,
    EnsembleStrategy.BOOSTING: boosting,
}
