"""Rules as losses: how far formulas are from being true of what a model predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from ..lang.context import CompilerContext
from ..lang.lower import compile as compile_formula

SOFT = ("soft_differentiable", "fuzzy_product", "fuzzy_godel", "fuzzy_lukasiewicz", "probabilistic")
Formula = Any  # a logical expression, or its text


def rule_loss(
    b: GraphBuilder,
    formulas: Formula | Sequence[Formula] | Mapping[Formula, float],
    context: CompilerContext,
    *,
    strategy: str = "soft_differentiable",
    inputs: Mapping[str, Any] | None = None,
) -> Tensor:
    """Return how far formulas are from true, from 0 (all hold everywhere) up: the weighted mean of what their truth lacks to 1.

    A formula with free variables counts by its mean over all their values. Predicates are inputs of the graph, or given in
    ``inputs`` as tensors of the builder, or computed by graphs of the context. A mapping gives each formula its weight. Where what
    follows is known to be false, an implication under fuzzy_product or fuzzy_godel is 0 whatever its condition, and the condition
    learns nothing; under the other strategies it is learned to be false.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> context = tl.CompilerContext(domains={"P": 2})
    >>> x = tl.variables("x", domain="P")
    >>> loss = rule_loss(b, tl.pred("bird", x) >> tl.pred("flies", x), context)
    >>> graph = b.build(loss=loss)
    >>> float(tl.Executor().execute(graph, {"bird": [1.0, 0.0], "flies": [0.5, 0.0]})["loss"])
    0.25
    """
    if strategy not in SOFT:
        hint = f"use one of {', '.join(SOFT)}"
        raise InputError(f"a rule under {strategy!r} has no gradient to learn from", hint, code="E876")
    if isinstance(formulas, Mapping):
        weighted = list(formulas.items())
    else:
        several = formulas if isinstance(formulas, list | tuple) else [formulas]
        weighted = [(formula, 1.0) for formula in several]
    total: Tensor | None = None
    for formula, weight in weighted:
        graph = compile_formula(formula, context, strategy=strategy)
        given = {name: x for name, x in (inputs or {}).items() if name in graph.inputs}
        lacking = b.mean(b.relu(1.0 - b.inline(graph, given)["result"])) * float(weight)
        total = lacking if total is None else total + lacking
    if total is None:
        raise InputError("there are no formulas", "give at least one", code="E876")
    mean: Tensor = total * (1.0 / sum(weight for _, weight in weighted))
    return mean
