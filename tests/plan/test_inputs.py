"""The types of inputs: of what is given, else as declared; one way for plans, estimates and schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, TensorShape, TensorType
from tensorlogic.passes.specialize import DTYPE, input_types, known_inputs


def graph() -> EinsumGraph:
    b = GraphBuilder()
    x, w, s = b.input("x", ("n", "n+m")), b.input("w", ("n+m", "k"), "float64"), b.input("s")
    return b.build(y=x @ w, z=s * 2)


def named(*shape: Any, dtype: str = DTYPE) -> TensorType:
    return TensorType(TensorShape(shape), dtype)


def test_what_is_given_fixes_the_sizes_of_the_rest():
    found = input_types(graph(), {"x": np.ones((2, 5), "f4"), "s": [1, 2]}, {"k": 7, "m": 3})
    assert found == {"x": named(2, 5), "w": named(5, 7, dtype="float64"), "s": named(2, dtype="int64")}
    assert list(found) == ["x", "w", "s"]


def test_lists_take_the_declared_dtype_and_types_without_one_the_default():
    b = GraphBuilder()
    small = b.build(y=b.input("x", ("n",), "float16") + 1, z=b.input("v", ("n",)) + 1)
    assert input_types(small, {"x": [1, 2]}, None)["x"] == named(2, dtype="float16")
    given = {"x": TensorType(TensorShape((2,)), None), "v": TensorType(TensorShape((2,)), None)}
    assert input_types(small, given, None) == {"x": named(2, dtype="float16"), "v": named(2)}
    assert input_types(small, None, {"n": 4}, "float64")["v"] == named(4, dtype="float64")
    unknown = {"x": TensorType(None, "float64")}  # says nothing of the shape: as declared
    assert input_types(small, unknown, {"n": 4})["x"] == named(4, dtype="float16")


def test_stand_ins_for_what_nobody_gave():
    found = known_inputs(graph(), {}, {"m": 3}, stand_in=64)
    assert found.assumed == ("k", "n")
    assert found.unranked == ("s",)
    assert found.types == {"x": named(64, 67), "w": named(67, 64, dtype="float64")}
    assert found.sizes == {"k": 64, "m": 3, "n": 64}
    bound = known_inputs(graph(), {"w": np.ones((5, 7))}, None, stand_in=64)
    assert bound.assumed == ()  # n and m are for the graph to work out of n+m
    assert bound.sizes == {"k": 7}


def test_what_is_missing_is_named():
    with pytest.raises(tl.InputError, match="the plan needs the size 'm' of input 'x'"):
        input_types(graph(), {"s": 1.0}, None, what="plan")
    with pytest.raises(tl.InputError, match="the estimate needs input 's', whose shape is not declared"):
        input_types(graph(), {"x": np.ones((2, 5)), "w": np.ones((5, 7))}, None)


@pytest.mark.parametrize("run", [input_types, known_inputs])
def test_what_is_unknown_is_named(run: Any):
    with pytest.raises(tl.InputError, match="the graph has no input 'q'"):
        run(graph(), {"q": 1.0}, None)
    with pytest.raises(tl.InputError, match="the graph has no size 'größe'"):
        run(graph(), None, {"größe": 1})
    with pytest.raises(tl.InputError, match="must be a mapping"):
        run(graph(), [1.0], None)


def test_plans_estimates_and_strategies_take_the_same_dtype():
    b = GraphBuilder()
    g = b.build(y=b.exp(b.input("x", ("n",))))
    plan = tl.Executor().plan(g, sizes={"n": 10})
    assert plan.inputs[0][2].dtype == DTYPE
    assert tl.MemoryEstimator().estimate(g, sizes={"n": 10}).output_bytes == plan.outputs[0][2].shape[0] * 4
    assert tl.ExecutionStrategy().precision.dtype == DTYPE
