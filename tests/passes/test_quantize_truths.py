"""Joins of fuzzy truth values in 8 bits keep within the error that is stated, and pairs between joins cancel."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl


def chain(algebra: str, joins: int, n: int = 40) -> tuple[tl.EinsumGraph, dict[str, np.ndarray]]:
    b = tl.GraphBuilder()
    value = b.input("p0", (n, n), "float32")
    for k in range(1, joins + 1):
        value = b.einsum("xy,yz->xz", value, b.input(f"p{k}", (n, n), "float32"), algebra=algebra)
    rng = np.random.default_rng(0)
    return b.build(y=value), {f"p{k}": rng.random((n, n)).astype("f4") for k in range(joins + 1)}


@pytest.mark.parametrize("joins", [1, 3])
def test_max_min_is_never_more_than_half_a_step_away(joins: int) -> None:
    graph, given = chain("max_min", joins)
    small = tl.quantize_truths(graph)
    assert sum(n.op.name == "quantize" for n in small.nodes) == joins + 1 + joins  # each value once, each result once
    answers = [tl.Executor().execute(g, given)["y"] for g in (graph, small)]
    assert np.abs(answers[0] - answers[1]).max() <= 1 / 510 + 1e-6
    few = {k: v[:4, :4] for k, v in given.items()}
    tiny = tl.quantize_truths(chain("max_min", joins, 4)[0])
    np.testing.assert_array_equal(*(tl.Executor(name).execute(tiny, few)["y"] for name in ("reference", "numpy")))


def test_max_product_keeps_within_its_bound_join_after_join() -> None:
    error = 1 / 510
    for joins in (1, 2, 3):
        error = error + 1 / 510 + error / 510 + 1 / 510
        graph, given = chain("max_product", joins)
        answers = [tl.Executor().execute(g, given)["y"] for g in (graph, tl.quantize_truths(graph))]
        assert 0 < np.abs(answers[0] - answers[1]).max() <= error + 1e-6


def test_rules_in_a_fuzzy_logic_and_graphs_without_joins() -> None:
    x, y, z = tl.variables("x y z", domain="D")
    rule = tl.exists(y, tl.pred("p", x, y) & tl.pred("q", y, z))
    given = {k: np.random.default_rng(1).random((9, 9)).astype("f4") for k in "pq"}
    graph = tl.compile(rule, tl.CompilerContext({"D": 9}), strategy="fuzzy_godel")
    answers = [tl.Executor().execute(g, given)[0] for g in (graph, tl.quantize_truths(graph))]
    assert np.abs(answers[0] - answers[1]).max() <= 1 / 510 + 1e-6
    b = tl.GraphBuilder()
    with pytest.raises(tl.InputError, match="no max-min or max-product join"):
        tl.quantize_truths(b.build(y=b.input("x", (2, 2), "float32") @ b.input("w", (2, 2), "float32")))
