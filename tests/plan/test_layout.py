"""How values lie in memory: what a plan says of a reshape is what NumPy does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import GraphBuilder
from tensorlogic.ir.types import Layout, in_order, is_in_order
from tensorlogic.plan.build import lay_out
from tensorlogic.plan.layout import copying_reshapes, reshaped
from tensorlogic.plan.memory import lifetimes


def layout(x: Any) -> Layout:
    return Layout(x.shape, tuple(s // x.itemsize for s in x.strides))


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays that were turned, cut and thinned out."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 0]), max_size=4))
    x = np.arange(math.prod(shape)).reshape(shape)
    for _ in range(draw(st.integers(0, 2))):
        if x.ndim and draw(st.booleans()):
            axis = draw(st.integers(0, x.ndim - 1))
            key = draw(st.sampled_from([slice(1, None), slice(None, None, 2), slice(None, None, -1), slice(0, 1)]))
            x = x[(slice(None),) * axis + (key,)]
        x = x.transpose(draw(st.permutations(range(x.ndim))))
    return x


@st.composite
def shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    found: list[int] = []
    while size > 1 and draw(st.booleans()):
        part = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        found.append(part)
        size //= part
    return (*found, size, *draw(st.sampled_from([(), (1,)])))


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_a_reshape_copies_where_numpy_copies(data: st.DataObject):
    x = data.draw(arrays())
    shape = data.draw(shapes(x.size))
    made = reshaped(layout(x), shape)
    real = x.reshape(shape)
    assert (made is not None) == (x.size == 0 or np.shares_memory(real, x))
    if made is not None and x.size:
        assert is_in_order(made) == real.flags.c_contiguous
        wide = [n for n, size in enumerate(shape) if size != 1]
        assert [made.strides[n] for n in wide] == [layout(real).strides[n] for n in wide]


@settings(deadline=None, max_examples=100)
@given(arrays())
def test_what_lies_in_order(x: Any):
    assert is_in_order(layout(x)) == x.flags.c_contiguous
    assert in_order(x.shape).shape == x.shape


def shown(build: Any, in_place: bool = False) -> tuple[int, int]:
    """Return how many reshapes of a graph copy, and how many there are."""
    b = GraphBuilder()
    graph = b.build(y=build(b, b.input("x", (4, 6), "float64")))
    plan = lay_out(graph, in_place=in_place)
    assert len(lifetimes(plan)) <= len(plan.steps)
    return len(copying_reshapes(plan)), sum(step.op.name == "reshape" for step in plan.steps)


def test_reshapes_of_a_plan():
    assert shown(lambda b, x: b.reshape(x, (24,))) == (0, 1)
    assert shown(lambda b, x: b.reshape(b.exp(x), (2, 12))) == (0, 1)
    assert shown(lambda b, x: b.reshape(x.T, (24,))) == (1, 1)
    assert shown(lambda b, x: b.reshape(b.reshape(x.T, (24,)), (3, 8))) == (1, 2)  # the copy lies in order
    assert shown(lambda b, x: b.reshape(b.reshape(x.T, (2, 3, 4)), (6, 4))) == (0, 2)
    assert shown(lambda b, x: b.reshape(b.broadcast_to(x, (2, 4, 6)), (48,))) == (1, 1)
    assert shown(lambda b, x: b.reshape(x[::2], (12,))) == (1, 1)
    assert shown(lambda b, x: b.reshape(b.einsum("ij->ji", x), (24,))) == (1, 1)
    assert shown(lambda b, x: b.reshape(b.sort(x, descending=True), (24,))) == (1, 1)
    assert shown(lambda b, x: b.exp(x)) == (0, 0)


def test_what_is_computed_keeps_its_operands_order_unless_it_has_a_buffer():
    def turned(b: GraphBuilder, x: Any) -> Any:
        return b.sum(b.reshape(b.exp(x.T), (24,)))

    assert shown(turned) == (1, 1)
    assert shown(turned, in_place=True)[1] == 1


def test_a_product_that_comes_out_in_another_order():
    b = GraphBuilder()
    x, w = b.input("x", (2, 3, 4), "float64"), b.input("w", (4, 5, 6), "float64")
    for output, copies in (("abde", 0), ("deab", 0), ("adbe", 1), ("dabe", 1)):
        graph = b.build(y=b.reshape(b.einsum(f"abc,cde->{output}", x, w), (-1,)))
        plan = lay_out(graph)
        rng = np.random.default_rng(0)
        values = {"x": rng.random((2, 3, 4)), "w": rng.random((4, 5, 6))}
        product = tl.Executor(wrap=[lambda call: call]).execute(
            b.build(y=b.einsum(f"abc,cde->{output}", x, w)), values
        )["y"]
        assert product.shape == plan.steps[0].types[0].shape
        assert len(copying_reshapes(plan)) == copies
