"""The six logics: each a row with its connectives and quantifiers, and the rewrites that keep its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..diagnostics import value_text
from ..errors import GraphError, nearest
from ..ir.builder import GraphBuilder
from ..ir.spec import write
from ..ir.tensor import Tensor

Unary = Callable[[GraphBuilder, Tensor], Tensor]
Binary = Callable[[GraphBuilder, Tensor, Tensor], Tensor]
Along = Callable[[GraphBuilder, Tensor, Sequence[int]], Tensor]


class QuantifierContraction(NamedTuple):
    """How a logic computes ∃ over ∨, or ∀ over ∧, by one contraction.

    Each part goes through ``prepare``, all are contracted in ``algebra``, and ``finish`` makes the answer of the result; it
    also gets the number of values that the quantifier ranges over, and the number of parts.

    >>> STRATEGIES["fuzzy_lukasiewicz"].exists_or.algebra
    'max_plus'
    """

    algebra: str
    prepare: Unary | None
    finish: Callable[[GraphBuilder, Tensor, int, int], Tensor]


class Strategy(NamedTuple):
    """One logic. A row like the six below makes a seventh; give it as ``strategy=`` or add it to ``STRATEGIES``.

    The facts at the end default to False, which is always sound: formulas are then computed just as they are written.

    >>> STRATEGIES["fuzzy_godel"].join
    'max_min'
    """

    name: str
    and_: Binary
    or_: Binary
    not_: Unary
    join: str  # the algebra in which ∃ over ∧ is one contraction
    forall: Along
    imply: Binary | None = None  # None: ¬a ∨ b
    meet: str | None = None  # the algebra in which ∀ over ∨ is one contraction, where there is one
    residuum: str | None = None  # the algebra in which ∀ over → is one contraction, where there is one
    exists_or: QuantifierContraction | None = None  # ∃ over ∨ as one contraction, where there is one
    forall_and: QuantifierContraction | None = None  # ∀ over ∧ as one contraction, where there is one
    exists: Along | None = None  # how ∃ removes axes, where no algebra says it; then join is not used
    boolean: bool = False  # truth values are bool
    scores: bool = False  # truth values lie within 0 to 1; what else a rule is given is warned of
    after: Unary | None = None  # what is done to the result of a quantifier
    de_morgan: bool = False  # ¬ is an involution and turns ∧ into ∨ and ∃ into ∀
    merges: bool = False  # ∃x. (a ∧ ∃y. b) is ∃x y. (a ∧ b), and p ∧ ∃x. q is ∃x. (p ∧ q)
    splits: bool = False  # ∃x. (a ∨ b) is ∃x. a ∨ ∃x. b where x occurs in both
    frees: bool = False  # ∃x. (p ∨ q) is p ∨ ∃x. q where x does not occur in p and its domain is not empty
    lattice: bool = False  # ∧ distributes over ∨
    # how the rounds of recursive rules are combined ("or", "max"); None: recursion is refused
    rounds: str | None = None


def _not(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.subtract(1.0, x)


def _either(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.subtract(b.add(x, y), b.multiply(x, y))


def _least(b: GraphBuilder, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the minimum, which of nothing is true."""
    every = range(len(x.shape or ()))
    return b.einsum(write([every], [n for n in every if n not in axes]), x, algebra="min_max")


STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        Strategy(
            "hard_boolean",
            and_=lambda b, x, y: b.logical_and(x, y),
            or_=lambda b, x, y: b.logical_or(x, y),
            not_=lambda b, x: b.logical_not(x),
            join="boolean",
            forall=lambda b, x, axes: b.all(x, axes),
            boolean=True, de_morgan=True, merges=True, splits=True, frees=True, lattice=True, rounds="or",
        ),
        Strategy(
            "fuzzy_godel",
            and_=lambda b, x, y: b.minimum(x, y),
            or_=lambda b, x, y: b.maximum(x, y),
            not_=_not,
            join="max_min",
            forall=_least,
            imply=lambda b, x, y: b.godel_implies(x, y),
            meet="min_max", residuum="godel_residuum",
            scores=True, de_morgan=True, merges=True, splits=True, frees=True, lattice=True, rounds="max",
        ),
        Strategy(
            "fuzzy_product",
            and_=lambda b, x, y: b.multiply(x, y),
            or_=_either,
            not_=_not,
            join="max_product",
            forall=_least,
            imply=lambda b, x, y: b.goguen_implies(x, y),
            residuum="goguen_residuum",
            exists_or=QuantifierContraction("min_product", _not, lambda b, x, n, k: _not(b, x)),
            forall_and=QuantifierContraction("min_product", None, lambda b, x, n, k: x),
            scores=True, de_morgan=True, merges=True, frees=True, rounds="max",
        ),
        Strategy(
            "fuzzy_lukasiewicz",
            and_=lambda b, x, y: b.lukasiewicz(x, y),
            or_=lambda b, x, y: b.minimum(b.add(x, y), 1.0),
            not_=_not,
            join="lukasiewicz",
            forall=_least,
            exists_or=QuantifierContraction("max_plus", None, lambda b, x, n, k: b.clip(x, 0.0, 1.0)),
            forall_and=QuantifierContraction("min_plus", None, lambda b, x, n, k: b.clip(b.subtract(x, float(k - 1)), 0.0, 1.0)),
            scores=True, de_morgan=True, merges=True, frees=True, rounds="max",
        ),
        Strategy(
            "probabilistic",
            and_=lambda b, x, y: b.multiply(x, y),
            or_=_either,
            not_=_not,
            join="noisy_or",
            forall=lambda b, x, axes: b.prod(x, axes),
            scores=True, de_morgan=True, splits=True,
        ),
        Strategy(
            "soft_differentiable",
            and_=lambda b, x, y: b.multiply(x, y),
            or_=_either,
            not_=_not,
            join="real",
            forall=lambda b, x, axes: b.subtract(1.0, b.sum(b.subtract(1.0, x), axes)),
            exists_or=QuantifierContraction("real", _not, lambda b, x, n, k: b.subtract(float(n), x)),
            forall_and=QuantifierContraction("real", None, lambda b, x, n, k: b.add(x, float(1 - n))),
            de_morgan=True, merges=True,
        ),
    )
}  # fmt: skip


def clipped(row: Strategy) -> Strategy:
    """Return a strategy whose quantifiers keep to 0..1; then counts no longer add up across nested quantifiers."""
    return row._replace(after=lambda b, x: b.clip(x, 0.0, 1.0), merges=False)


def get_strategy(strategy: str | Strategy) -> Strategy:
    """Return a strategy by name, or the one given."""
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise GraphError(f"there is no strategy {value_text(strategy)}", *nearest(strategy, STRATEGIES), code="E604")
    return STRATEGIES[strategy]
