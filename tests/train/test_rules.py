"""Rules as a loss: what formulas lack to be true, and what is learned from that."""

import numpy as np
import pytest

import tensorlogic as tl

CONTEXT = tl.CompilerContext(domains={"P": 2})
X = tl.variables("x", domain="P")
IMPLIES = tl.pred("a", X) >> tl.pred("c", X)


def loss_and_slopes(formulas, wrt, values, **options):
    b = tl.GraphBuilder()
    graph = b.build(loss=tl.rule_loss(b, formulas, CONTEXT, **options))
    return tl.Executor().execute(tl.value_and_grad(graph, wrt=wrt), values)


def test_formulas_count_by_their_weights():
    found = loss_and_slopes({tl.pred("a", X): 3.0, ~tl.pred("a", X): 1.0}, ["a"], {"a": np.array([0.75, 0.5])})
    assert float(found["loss"]) == pytest.approx((3 * 0.375 + 1 * 0.625) / 4)
    np.testing.assert_allclose(found["d_a"], (-3 * 0.5 + 1 * 0.5) / 4)


@pytest.mark.parametrize("strategy", ["soft_differentiable", "fuzzy_lukasiewicz", "probabilistic"])
def test_what_implies_something_false_is_learned_to_be_false(strategy):
    found = loss_and_slopes(IMPLIES, ["a"], {"a": np.full(2, 0.5), "c": np.zeros(2)}, strategy=strategy)
    assert (found["d_a"] > 0.1).all()


def test_under_the_product_it_learns_nothing():
    found = loss_and_slopes(IMPLIES, ["a"], {"a": np.full(2, 0.5), "c": np.zeros(2)}, strategy="fuzzy_product")
    np.testing.assert_array_equal(found["d_a"], 0)


def test_a_strategy_without_slopes_is_refused():
    with pytest.raises(tl.InputError, match="no gradient to learn from"):
        loss_and_slopes(IMPLIES, ["a"], {}, strategy="hard_boolean")


def test_no_formulas_are_refused():
    with pytest.raises(tl.InputError, match="there are no formulas"):
        loss_and_slopes([], ["a"], {})
