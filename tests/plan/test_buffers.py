"""Buffers: nothing alive shares memory, and what a caller holds never changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import ExecutionPlan, GraphBuilder, OptimizationLevel
from tensorlogic.ir import ops
from tensorlogic.plan.cost import allocates

PLAIN = OptimizationLevel.NONE


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    """Chains and trees of element-wise steps, sums, products and views of a few sizes."""
    b = GraphBuilder(intern=False)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    inputs = {"x": rng.random((4, 4)), "v": rng.random(4)}
    pool = [b.input("x", (4, 4), "float64"), b.input("v", (4,), "float64")]
    for _ in range(draw(st.integers(2, 25))):
        x = draw(st.sampled_from(pool[-4:]))
        y = draw(st.sampled_from(pool))
        try:
            made: list[Callable[[Any, Any], Any]] = [
                lambda x, y: x + y, lambda x, y: x * 0.5, lambda x, y: b.exp(-x), lambda x, y: x.T, lambda x, y: x[::-1],
                lambda x, y: b.sum(x, 0), lambda x, y: x @ y, lambda x, y: b.where(x > 0.5, x, y),
                lambda x, y: b.cast(b.cast(x, "float32"), "float64"), lambda x, y: b.reshape(x, (-1,)),
                lambda x, y: x + x.T, lambda x, y: b.broadcast_to(x, (4, 4)), lambda x, y: b.sigmoid(x - y),
                lambda x, y: b.mean(x, -1, keepdims=True), b.lukasiewicz,
            ]  # fmt: skip
            pool.append(made[draw(st.integers(0, 14))](x, y))
        except tl.TensorLogicError:
            continue
    chosen = {draw(st.integers(0, len(pool) - 1)), len(pool) - 1}
    return b.build({f"y{n}": pool[i] for n, i in enumerate(sorted(chosen))}), inputs


def roots(plan: ExecutionPlan) -> dict[int, int]:
    """Return for each slot the one whose memory it may show, worked out anew."""
    root: dict[int, int] = {}
    for step in plan.steps:
        views = not allocates(step.op, step.contraction) or isinstance(step.op, ops.Reshape)
        for slot in step.writes:
            root[slot] = root.get(step.reads[0], step.reads[0]) if views and step.reads else slot
    return root


def check_buffers(plan: ExecutionPlan) -> None:
    root = roots(plan)
    last = {}
    for n, step in enumerate(plan.steps):
        for slot in (*step.reads, *step.writes):
            last[root.get(slot, slot)] = n
    out = {root.get(slot, slot) for _, slot, _ in plan.outputs}
    inside: dict[int, int] = {}  # buffer: the slot in it
    for n, step in enumerate(plan.steps):
        buffer = step.into[0] if step.into else None
        if buffer is None or buffer < 0:  # below 0: the array of an output itself
            continue
        (own,) = step.writes
        assert own not in out, "an output stands in a buffer"
        assert plan.buffers[buffer] >= step.nbytes
        before = inside.get(buffer)
        if before is not None and last[before] >= n:  # still read by this very step: only over an operand of its type
            assert last[before] == n
            assert isinstance(step.op, ops.Elementwise)
            assert before in step.reads
            assert step.arg_types[step.reads.index(before)] == step.types[0]
        inside[buffer] = own
    for step in plan.steps:
        for body in step.bodies:
            check_buffers(body)


@settings(deadline=None, max_examples=150)
@given(graphs(), st.sampled_from(list(OptimizationLevel)))
def test_no_two_values_that_are_alive_share_a_buffer(made: Any, level: OptimizationLevel) -> None:
    graph, inputs = made
    check_buffers(tl.Executor(optimization_level=level).plan(graph, inputs))


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_buffers_do_not_change_the_answer(made: Any) -> None:
    graph, inputs = made
    executor = tl.Executor(optimization_level=PLAIN)
    wanted = tl.Executor(optimization_level=PLAIN, wrap=[lambda call: call]).execute(graph, inputs)  # has no buffers
    first = executor.execute(graph, inputs)
    kept = [np.array(v) for v in first]
    executor.execute(graph, {n: x + 1 for n, x in inputs.items()})
    second = executor.execute(graph, inputs)
    for a, b, c, d in zip(first, second, wanted, kept, strict=True):
        np.testing.assert_array_equal(a, d)  # a later run did not touch it
        np.testing.assert_array_equal(b, d)
        np.testing.assert_allclose(a, c, rtol=1e-12)


def test_buffers_are_taken_again() -> None:
    b = GraphBuilder()
    y = b.input("x", (100,), "float64")
    for _ in range(20):
        y = b.exp(-y) + 1
    plan = tl.Executor().plan(b.build(y=y))
    assert len(plan.buffers) == 1
    assert plan.buffers[0] == 832  # 800 bytes, in whole lines of 64


def test_a_buffer_grows_where_nothing_fits() -> None:
    b = GraphBuilder()
    x = b.input("x", (10, 100), "float64")
    small = b.tanh(b.sum(b.exp(x[0]), 0, keepdims=True) + 1)
    graph = b.build(y=b.sum(b.exp(x + small) * 2))
    plan = tl.Executor().plan(graph)
    check_buffers(plan)
    assert max(plan.buffers) >= 8000
    X = np.random.default_rng(0).random((10, 100))
    want = np.sum(np.exp(X + np.tanh(np.sum(np.exp(X[0]), keepdims=True) + 1)) * 2)
    np.testing.assert_allclose(tl.Executor().execute(graph, {"x": X})["y"], want)


def test_results_of_many_runs_and_shapes_never_change() -> None:
    b = GraphBuilder()
    x = b.input("x", ("n", "m"))
    t = b.exp(x * 0.5)
    graph = b.build(view=t.T, whole=t, sums=b.sum(t + 1, 0), part=(t * 2)[::2], wide=b.broadcast_to(b.sum(t), (3,)))
    executor = tl.Executor()
    rng = np.random.default_rng(0)
    held = []
    for n in range(60):
        X = rng.random((1 + n % 3, 1 + n % 4)).astype("float32" if n % 2 else "float64")
        out = executor.execute(graph, {"x": X})
        held.append((X, out, [np.array(v) for v in out]))
    for X, out, copies in held:
        for value, copy in zip(out, copies, strict=True):
            np.testing.assert_array_equal(value, copy)
        np.testing.assert_allclose(out["whole"], np.exp(X * 0.5), rtol=1e-6)
        np.testing.assert_allclose(out["part"], (np.exp(X * 0.5) * 2)[::2], rtol=1e-6)


def test_writing_into_a_result_does_not_reach_later_runs() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    c = b.constant(np.arange(3.0))
    graph = b.build(a=x + c, b=c * 1, c=x)
    executor = tl.Executor()
    for _ in range(3):
        out = executor.execute(graph, {"x": np.ones(3)})
        assert [v.tolist() for v in out] == [[1, 2, 3], [0, 1, 2], [1, 1, 1]]
        for v in out:
            v[...] = -7


def test_eight_threads_share_one_executor() -> None:
    b = GraphBuilder()
    x = b.input("x", (50, 50), "float64")
    y = x
    for _ in range(6):
        y = b.tanh(y @ x * 0.1 + b.sum(y, 0)) - y * 0.5
    graph = b.build(y=y, z=b.scan(lambda c, r: (c + b.exp(-r) * 2, b.sum(c * r)), x[0], x)[1])
    rng = np.random.default_rng(0)
    given_inputs = [rng.random((50, 50)) for _ in range(8)]
    wanted = [tl.Executor(wrap=[lambda call: call]).execute(graph, {"x": x}) for x in given_inputs]
    executor = tl.Executor()
    start = threading.Barrier(8)
    wrong: list[Any] = []

    def work(n: int) -> None:
        start.wait()
        held = [executor.execute(graph, {"x": given_inputs[n]}) for _ in range(25)]
        for out in held:
            for found, want in zip(out, wanted[n], strict=True):
                if not np.allclose(found, want, rtol=1e-10):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("steps", [3, 1200])  # as one function, and in the loop
def test_a_run_that_raises_leaves_the_executor_usable(steps: int) -> None:
    b = GraphBuilder()
    x, i = b.input("x", (4,), "float64"), b.input("i", (2,), "int64")
    y = x
    for _ in range(steps):
        y = b.sin(y) + 0.5
    graph = b.build(y=b.sum(b.gather(y, i)) + b.sum(y))
    executor = tl.Executor()
    good = executor.execute(graph, {"x": np.arange(4.0), "i": np.array([0, 3])})["y"]
    kept = np.array(good)
    for _ in range(6):  # more than there are idle workspaces
        with pytest.raises(tl.ExecutionError, match="index 9 is out of range"):
            executor.execute(graph, {"x": np.arange(4.0) + 1, "i": np.array([0, 9])})
        assert executor.execute(graph, {"x": np.arange(4.0), "i": np.array([0, 3])})["y"] == kept
    assert good == kept


@pytest.mark.parametrize("kind", ["scan", "fixpoint", "cond", "swap", "capture"])
def test_loops_that_hand_operands_through(kind: str) -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    t = b.exp(x)  # would stand in a buffer
    u = b.exp(x) * 2
    out: tuple[Any, ...]
    match kind:
        case "scan":
            out = b.scan(lambda c, _: (c, c), t, (), length=3)
        case "fixpoint":
            out = (b.fixpoint(lambda c: c, t),)
        case "cond":
            out = (b.cond(b.sum(x) > 0, lambda: t, lambda: u),)
        case "swap":
            out = b.scan(lambda c, _: ((c[1], c[0]), None), (t, u), (), length=3)[0]
        case _:
            out = (b.fixpoint(lambda c: u, t),)
    graph = b.build({f"y{n}": v for n, v in enumerate([*out, b.sum(b.exp(x + 1) * 3)])})
    executor = tl.Executor(optimization_level=PLAIN)
    check_buffers(executor.plan(graph))
    X = np.array([0.0, 1.0, 2.0])
    first = executor.execute(graph, {"x": X})
    kept = [np.array(v) for v in first]
    for n in range(3):
        executor.execute(graph, {"x": X + n})
    again = executor.execute(graph, {"x": X})
    wanted = tl.Executor("reference").execute(graph, {"x": X})
    for a, k, g, w in zip(first, kept, again, wanted, strict=True):
        np.testing.assert_array_equal(a, k)
        np.testing.assert_array_equal(g, k)
        np.testing.assert_allclose(k, w, rtol=1e-12)
        assert a.flags.writeable
