"""Windows as runs of memory: copied, and added up where they overlap, for all kinds of windows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.plan.build import lay_out
from tensorlogic.plan.window_groups import window_groups
from tensorlogic.runtime.call import call
from tensorlogic.runtime.program import bind
from tensorlogic.testing.every_plan import native_plan

CASES = list(itertools.product([(9,), (7, 8), (4, 5, 6)], [1, 2], [1, 2], [1, 3]))


@pytest.mark.parametrize(("sizes", "stride", "dilation", "channels"), CASES)
def test_convolutions_and_their_gradients_answer_as_the_reference(sizes, stride, dilation, channels) -> None:
    b = tl.GraphBuilder()
    window = (2,) * len(sizes)
    x = b.input("x", (3, *sizes, channels), "float32")
    w = b.input("w", (*window, channels, 2), "float32")
    y = b.conv(x, w, stride=stride, dilation=dilation, padding=1)
    graph = tl.value_and_grad(b.build(loss=b.sum(b.square(y))))
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=[int(d) for d in graph.type_of(i).shape]).astype("float32")
        for name, i in graph.inputs.items()
    }
    whole = tl.Executor().plan(graph, inputs)
    plan = lay_out(whole.graph, in_place=True, groups=lambda g: window_groups(g, range(len(g.nodes))))
    kinds = {s.computed_by for s in plan.steps}
    assert "overlaps" in kinds and ("windows" in kinds or stride > dilation)  # windows side by side are no copy
    found = call(bind(plan, tl.Executor().backend), list(inputs.values()))
    steps = call(bind(lay_out(whole.graph, in_place=True), tl.Executor().backend), list(inputs.values()))
    assert [value.tobytes() for value in found] == [value.tobytes() for value in steps]
    want = tl.Executor("reference").execute(graph, inputs)
    for name, value in zip(graph.output_names, found, strict=True):
        np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_sums_of_rows_and_slices_answer_as_the_reference() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (64, 4, 2, 4, 2, 8), "float32")
    graph = b.build(rows=b.sum(x, (0, 1, 2)), kept=b.sum(x, (0, 1, 2, 3), keepdims=True), slices=b.sum(x, (2, 4)))
    values = np.random.default_rng(0).normal(size=(64, 4, 2, 4, 2, 8)).astype("float32")
    executor = tl.Executor(policy="fast")
    assert {s.computed_by for s in native_plan(executor, graph, {"x": values}).steps} == {"sums"}
    found, want = executor.execute(graph, {"x": values}), tl.Executor("reference").execute(graph, {"x": values})
    for name in graph.output_names:
        assert found[name].shape == want[name].shape
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "step", "dilation"), [(3, 1, 1), (5, 1, 1), (2, 3, 1), (3, 2, 2), (4, 1, 2)])
def test_windows_that_are_added_up_have_the_bits_of_numpy_signs_of_zeros_too(size, step, dilation) -> None:
    b = tl.GraphBuilder()
    shape = (2, (13 - (size - 1) * dilation - 1) // step + 1, 3, size)
    x = b.transpose(b.input("x", (*shape[:2], size, 3), "float32"), (0, 1, 3, 2))
    graph = b.build(y=b.overlap_add(x, 1, 13, step=step, dilation=dilation))
    values = np.random.default_rng(0).choice(np.float32([-0.0, -0.0, -0.0, 0.0, 0.1]), size=(*shape[:2], size, 3))
    whole = tl.Executor().plan(graph, {"x": values})
    plan = lay_out(whole.graph, in_place=True, groups=lambda g: window_groups(g, range(len(g.nodes))))
    assert "overlaps" in {s.computed_by for s in plan.steps}
    found, want = (call(bind(p, tl.Executor().backend), [values])[0] for p in (plan, whole))
    assert found.tobytes() == want.tobytes() and np.signbit(want[want == 0]).any()
