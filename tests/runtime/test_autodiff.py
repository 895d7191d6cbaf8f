"""Forward and backward of an executor: every strategy gives the same gradients, and keeps what it says it keeps."""

import threading
import tracemalloc

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import GradientStrategy
from tensorlogic.ir import ops
from tensorlogic.runtime.autodiff import peak_of_both, split_gradient
from tensorlogic.runtime.recompute import match_nodes, recompute

STRATEGIES = list(GradientStrategy)


def deep(layers=12, width=64, rows=64, dtype="float64"):
    """Return a network of many layers and its inputs."""
    b = tl.GraphBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", (rows, width), dtype)
    inputs = {"x": rng.normal(size=(rows, width)).astype(dtype)}
    h = x
    for n in range(layers):
        w = b.input(f"w{n}", (width, width), dtype)
        inputs[f"w{n}"] = (rng.normal(size=(width, width)) / np.sqrt(width)).astype(dtype)
        h = b.tanh(h @ w) + b.sin(h) * 0.1
    return b.build(loss=b.mean(b.square(h))), inputs


def run(strategy, graph, inputs, grads, budget=None, **options):
    executor = tl.Executor()
    if strategy is GradientStrategy.BUDGETED:
        budget = budget or 1 << 30
    outputs = executor.forward(graph, inputs, strategy=strategy, budget=budget, **options)
    executor.backward(outputs, grads)
    return outputs, executor.get_gradients()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_agree(strategy):
    graph, inputs = deep(layers=3, width=5, rows=4)
    outputs, found = run(strategy, graph, inputs, [np.float64(2)])
    expected = tl.Executor().execute(tl.grad(graph), inputs)
    assert list(found) == list(inputs)
    for name in inputs:
        np.testing.assert_allclose(found[name], 2 * expected[f"d_{name}"], rtol=1e-10)
    np.testing.assert_allclose(outputs["loss"], tl.Executor().execute(graph, inputs)["loss"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_several_outputs_sizes_and_views(strategy):
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", "m")), b.input("w", ("m", 3))
    y = b.softmax(x @ w)
    graph = b.build(y=y, top=b.argmax(y, axis=1), z=b.transpose(b.broadcast_to(b.exp(w), (2, "m", 3)))[0])
    rng = np.random.default_rng(1)
    inputs = {"x": rng.normal(size=(4, 2)), "w": rng.normal(size=(2, 3))}
    outputs, found = run(strategy, graph, inputs, {"y": rng.normal(size=(4, 3)), "z": rng.normal(size=(2, 2))})
    assert outputs["top"].dtype == np.int64
    rng = np.random.default_rng(1)
    rng.normal(size=(4, 2)), rng.normal(size=(2, 3))
    d_y, d_z = rng.normal(size=(4, 3)), rng.normal(size=(2, 2))

    def total(w):
        e = np.exp(inputs["x"] @ w)
        return (e / e.sum(1, keepdims=True) * d_y).sum() + (np.broadcast_to(np.exp(w), (2, 2, 3)).T[0] * d_z).sum()

    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-6
        quotient = (total(inputs["w"] + step) - total(inputs["w"] - step)) / 2e-6
        np.testing.assert_allclose(found["w"][place], quotient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_changing_an_output_does_not_change_the_gradient(strategy):
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    y = b.exp(x)
    graph = b.build(y=y, again=y, turned=b.reshape(y, (1, 3)), given=x)
    array = np.array([0.0, 1.0, 2.0])
    executor = tl.Executor()
    for _ in range(2):
        outputs = executor.forward(
            graph, {"x": array}, strategy=strategy, budget=1 << 30 if strategy is GradientStrategy.BUDGETED else None
        )
        for value in outputs:
            if value.flags.writeable:
                value[...] = 0  # a copy, or nothing reads it
        executor.backward(outputs, {"y": np.ones(3)})
        np.testing.assert_allclose(executor.get_gradients()["x"], np.exp(array))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_changing_an_input_does_not_change_the_gradient(strategy):
    graph, inputs = deep(layers=3, width=5, rows=4)
    expected = tl.Executor().execute(tl.grad(graph), inputs)
    executor = tl.Executor()
    budget = 1 << 30 if strategy is GradientStrategy.BUDGETED else None
    for turn in range(2):  # the second finds its plans
        given = {name: x.copy() for name, x in inputs.items()}
        outputs = executor.forward(graph, given, strategy=strategy, budget=budget)
        for x in given.values():
            x[...] = turn
        executor.backward(outputs, [1.0])
        for name, g in executor.get_gradients().items():
            np.testing.assert_allclose(g, expected[f"d_{name}"], rtol=1e-10)


def test_the_input_itself_views_and_bodies_read_the_values_of_the_forward_run():
    for f in (
        lambda b, x: x,
        lambda b, x: b.reshape(x, (1, 3)),
        lambda b, x: b.apply(ops.Barrier(), x),
        lambda b, x: b.cond(b.sum(x) > 0, lambda: x, lambda: x * 2),
    ):
        b = tl.GraphBuilder()
        x = b.input("x", (3,), "float64")
        graph, array, executor = b.build(y=b.square(f(b, x))), np.ones(3), tl.Executor()
        outputs = executor.forward(graph, {"x": array}, wrt=["x"])
        array[:] = 5
        executor.backward(outputs, [np.ones_like(outputs[0])])
        np.testing.assert_array_equal(executor.get_gradients()["x"], 2)


def test_only_inputs_that_the_backward_run_reads_are_copied_and_the_budget_counts_them():
    b = tl.GraphBuilder()
    x, read, unread = (b.input(name, (1000,), "float64") for name in ("x", "read", "unread"))
    graph = b.build(y=b.sum(x * read + unread))
    inputs = {name: np.ones(1000) for name in ("x", "read", "unread")}
    executor = tl.Executor()
    executor.forward(graph, inputs, wrt="x")
    saved = executor.gradients.here.saved
    assert list(saved.inputs) == ["read"]
    assert not np.shares_memory(saved.inputs["read"], inputs["read"])
    executor.forward(graph, inputs, wrt="x", strategy=GradientStrategy.EAGER)
    assert not executor.gradients.here.saved.inputs
    split = split_gradient(executor, graph, ("x",), GradientStrategy.KEEP, None, inputs)
    rest = executor.plan(split.rest, {"read": inputs["read"], "d_y": np.float64(1)}).peak_bytes
    assert peak_of_both(executor, split, inputs) >= 8000 + rest


def test_a_budget_where_an_output_has_the_name_of_an_input():
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    _, found = run(GradientStrategy.BUDGETED, b.build(x=b.sum(b.square(x))), {"x": np.ones(3)}, [1.0])
    np.testing.assert_array_equal(found["x"], 2)


def placed(b, x, w):
    """Return a loss of two devices, with constants, views and a value that both read."""
    x, w = b.apply(ops.Transfer("cpu:1"), x), b.apply(ops.Transfer("cpu:2"), w)
    h = b.exp(b.reshape(x, (2, 2)) * b.exp(np.arange(2.0)))
    k = b.tanh(b.apply(ops.Transfer("cpu:2"), h) @ w)
    home = b.apply(ops.Transfer("cpu:0"), b.transpose(k))
    return b.sum(b.square(home)) + b.apply(ops.Transfer("cpu:0"), b.sum(b.sin(h)))


@pytest.mark.parametrize("level", list(tl.OptimizationLevel))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_graph_on_several_devices_goes_back_over_them(strategy, level):
    b = tl.GraphBuilder()
    graph = b.build(l=placed(b, b.input("x", (4,), "float64"), b.input("w", (2, 2), "float64")))
    inputs = {"x": np.arange(4.0) / 4, "w": np.arange(4.0).reshape(2, 2) / 3}
    expected = tl.Executor().execute(tl.grad(graph), inputs)
    executor = tl.Executor(optimization_level=level)
    budget = 1 << 30 if strategy is GradientStrategy.BUDGETED else None
    executor.backward(executor.forward(graph, inputs, strategy=strategy, budget=budget), {"l": 1.0})
    for name, g in executor.get_gradients().items():
        np.testing.assert_allclose(g, expected[f"d_{name}"], rtol=1e-10)


def test_what_is_kept_of_a_device_goes_back_there_and_constants_are_not_kept():
    b = tl.GraphBuilder()
    x = b.apply(ops.Transfer("cpu:1"), b.input("x", (4,), "float64"))
    y = b.exp(x) * b.exp(b.constant(np.arange(4.0)))
    graph = b.build(l=b.apply(ops.Transfer("cpu:0"), b.sum(y)), far=y)
    split = split_gradient(tl.Executor(), graph, ("x",), GradientStrategy.KEEP, None, {})
    assert [n.op.device for n in split.rest.nodes if isinstance(n.op, ops.Transfer)].count("cpu:1") >= 2
    given = {"x": np.ones(4)}
    outputs, found = run(GradientStrategy.KEEP, graph, given, {"l": 1.0, "far": np.full(4, 2.0)})
    np.testing.assert_allclose(found["x"], 3 * outputs["far"])


def test_an_output_that_the_gradient_reads_is_read_only():
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    outputs = tl.Executor().forward(b.build(y=b.exp(x), z=x * 2.0), {"x": np.ones(3)})
    with pytest.raises(ValueError, match="read-only"):
        outputs["y"][:] = 0
    outputs["z"][:] = 0  # this one is not read again
    changed = outputs["y"].copy()
    changed[:] = 0
    np.testing.assert_allclose(outputs["y"], np.exp(np.ones(3)))


def test_a_scan_goes_back_through_time():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("t", 3), "float64"), b.input("w", (3,), "float64")
    last, outs = b.scan(lambda c, x: (b.tanh(c * w + x), c * x), np.zeros(3), x)
    graph = b.build(loss=b.sum(last) + b.sum(outs))
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(5, 3)), "w": rng.normal(size=3)}
    expected = tl.Executor().execute(tl.grad(graph), inputs)
    for strategy in STRATEGIES:
        _, found = run(strategy, graph, inputs, [1.0])
        for name in inputs:
            np.testing.assert_allclose(found[name], expected[f"d_{name}"])


def test_inputs_that_hold_whole_numbers_are_left_out():
    b = tl.GraphBuilder()
    x, i = b.input("x", ("n", 2)), b.input("i", ("k",))
    graph = b.build(y=b.gather(x, i))
    inputs = {"x": np.ones((3, 2)), "i": np.array([0, 0, 2])}
    _, found = run(GradientStrategy.KEEP, graph, inputs, [np.ones((3, 2))])
    assert list(found) == ["x"]
    np.testing.assert_array_equal(found["x"], [[2, 2], [0, 0], [1, 1]])


def test_what_is_kept():
    graph, inputs = deep(layers=2, width=3, rows=2)
    wrt = tuple(inputs)
    keep, again = (
        split_gradient(tl.Executor(), graph, wrt, s, None, inputs)
        for s in (GradientStrategy.KEEP, GradientStrategy.RECOMPUTE)
    )
    assert "tanh" not in [n.op.name for n in keep.rest.nodes]  # its value is there
    assert "tanh" in [n.op.name for n in again.rest.nodes]
    assert len(again.kept) < len(keep.kept)
    eager = split_gradient(tl.Executor(), graph, wrt, GradientStrategy.EAGER, None, inputs)
    assert eager.rest is None and eager.first.output_names[1:] == [f"d_{n}" for n in inputs]


def test_budgets_are_kept():
    graph, inputs = deep(width=32, rows=128)  # copies of the weights count too, and stay
    executor = tl.Executor()
    wrt = tuple(inputs)
    whole = peak_of_both(executor, split_gradient(executor, graph, wrt, GradientStrategy.KEEP, None, inputs), inputs)
    _, expected = run(GradientStrategy.KEEP, graph, inputs, [1.0])
    peaks = []
    for share in (1.0, 0.85, 0.75):
        budget = int(whole * share)
        split = split_gradient(executor, graph, wrt, GradientStrategy.BUDGETED, budget, inputs)
        peaks.append(peak_of_both(executor, split, inputs))
        assert peaks[-1] <= budget
        _, found = run(GradientStrategy.BUDGETED, graph, inputs, [1.0], budget=budget)
        for name in inputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-15)
    assert peaks == sorted(peaks, reverse=True)
    with pytest.raises(tl.OutOfMemoryError, match="KiB more than the budget of 1000 B") as found:
        executor.forward(graph, inputs, budget=1000)
    assert "ways to keep fewer values" in str(found.value)


def test_memory_stays_within_the_budget():
    graph, inputs = deep(layers=12, width=256, rows=1024)  # 2 MB each
    executor = tl.Executor()
    whole = peak_of_both(executor, split_gradient(executor, graph, ("x",), GradientStrategy.KEEP, None, inputs), inputs)
    budget = int(0.65 * whole)
    tracemalloc.start()
    outputs = executor.forward(graph, inputs, wrt="x", budget=budget)
    executor.backward(outputs, [1.0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.3 * whole < peak < budget + (1 << 20)  # graphs and plans take some, too


@pytest.mark.parametrize("segments", [None, 1, 2, 3, 7, 100])
def test_recomputing_in_one_graph(segments):
    graph, inputs = deep(layers=6, width=4, rows=3)
    whole = tl.value_and_grad(graph)
    light = recompute(whole, graph, segments=segments)
    assert light.output_names == whole.output_names and set(light.inputs) == set(whole.inputs)
    for level in tl.OptimizationLevel:
        executor = tl.Executor(optimization_level=level)
        for name, a in executor.execute(whole, inputs).items():
            np.testing.assert_allclose(executor.execute(light, inputs)[name], a, rtol=1e-10)


def test_recomputing_takes_less_memory():
    graph, inputs = deep(layers=24)
    whole = tl.grad(graph, wrt=["x"])
    executor = tl.Executor()
    full = executor.plan(whole, inputs).peak_bytes
    light = [executor.plan(recompute(whole, graph, segments=n), inputs).peak_bytes for n in (None, 3, 5)]
    assert light[0] < 0.8 * full and light[2] < 0.5 * full
    budget = full // 2
    found = recompute(whole, graph, budget=budget, inputs=inputs)
    assert executor.plan(found, inputs).peak_bytes <= budget
    np.testing.assert_allclose(
        executor.execute(found, inputs)["d_x"], executor.execute(whole, inputs)["d_x"], rtol=1e-9, atol=1e-18
    )
    with pytest.raises(tl.OutOfMemoryError, match="however much of it is computed again"):
        recompute(whole, graph, budget=10, inputs=inputs)
    for wrong in ({"segments": 0}, {"segments": True}, {"budget": -1}, {"budget": 1.5}):
        with pytest.raises(tl.InputError, match="must be a whole number of at least"):
            recompute(whole, graph, **wrong)


def test_matching():
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (2,), "float64")
    graph = b.build(y=b.sum(b.exp(x) * b.exp(x)))  # twice the same
    gradient = tl.grad(graph)
    match = match_nodes(gradient, graph)
    for i, m in enumerate(match):
        if m is not None:
            assert gradient.nodes[i].op == graph.nodes[m].op
    assert 1 in match and 2 not in match


def test_micro_batches_accumulate():
    _, inputs = deep(layers=2, width=5, rows=8)
    executor = tl.Executor()
    b = tl.GraphBuilder()
    part = b.build(loss=b.sum(b.square(b.tanh(b.input("x", ("n", 5)) @ b.input("w", (5, 5))))))
    x, w = inputs["x"], inputs["w0"]
    executor.backward(executor.forward(part, {"x": x, "w": w}, wrt="w"), [1.0])
    whole = executor.get_gradients()["w"]
    for n, rows in enumerate(np.split(x, 4)):
        outputs = executor.forward(part, {"x": rows, "w": w}, wrt="w")
        executor.backward(outputs, [1.0], accumulate=n > 0)
    assert list(executor.get_gradients()) == ["w"]
    np.testing.assert_allclose(executor.get_gradients()["w"], whole)


def test_a_loop_plans_once():
    graph, inputs = deep(layers=2, width=5, rows=8)
    executor = tl.Executor()
    for _ in range(4):
        executor.backward(executor.forward(graph, dict(inputs)), [1.0])
    assert executor.cache_stats().misses == 2  # forward and the rest


def test_threads_have_their_own_runs():
    graph, inputs = deep(layers=1, width=3, rows=2)
    executor = tl.Executor()
    results = []

    def work(scale):
        outputs = executor.forward(graph, inputs)
        barrier.wait()
        executor.backward(outputs, [np.float64(scale)])
        barrier.wait()
        results.append((scale, executor.get_gradients()["w0"]))

    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    one = dict(results)[1]
    assert len(results) == 3
    for scale, g in results:
        np.testing.assert_allclose(g, scale * one)


def test_the_executors_own_strategy():
    graph, inputs = deep(layers=1, width=3, rows=2)
    executor = tl.Executor()
    executor.gradient = GradientStrategy.EAGER
    executor.backward(executor.forward(graph, inputs), [1.0])
    expected = tl.Executor().execute(tl.grad(graph), inputs)["d_w0"]
    np.testing.assert_allclose(executor.get_gradients()["w0"], expected)


def test_misuse():
    graph, inputs = deep(layers=1, width=3, rows=2)
    executor = tl.Executor()
    with pytest.raises(tl.InputError, match="no forward run"):
        executor.backward([1.0], [1.0])
    with pytest.raises(tl.InputError, match="no gradients yet"):
        executor.get_gradients()
    outputs = executor.forward(graph, inputs)
    with pytest.raises(tl.InputError, match="not the outputs"):
        executor.backward([np.ones(())], [1.0])
    with pytest.raises(tl.InputError, match="but 2 gradients"):
        executor.backward(outputs, [1.0, 1.0])
    with pytest.raises(tl.InputError, match=r"of shape \[3\]"):
        executor.backward(outputs, [np.ones(3)])
    with pytest.raises(tl.InputError, match="no output 'los'"):
        executor.backward(outputs, {"los": 1.0})
    with pytest.raises(tl.InputError, match="list or by name"):
        executor.backward(outputs, 1.0)
    executor.backward(outputs, {"loss": 1.0})
    with pytest.raises(tl.InputError, match="one backward run"):
        executor.backward(outputs, [1.0])
    with pytest.raises(tl.InputError, match="no input 'w9'"):
        executor.forward(graph, inputs, wrt=["w9"])
    with pytest.raises(tl.InputError, match=r"GradientStrategy\.KEEP"):
        executor.forward(graph, inputs, strategy="keep")
    with pytest.raises(tl.InputError, match=r"GradientStrategy\.KEEP"):
        executor.forward(graph, inputs, strategy=["keep"])
    for wrong in ([1], {}, "1MB", 2.5, True, -1):
        with pytest.raises(tl.InputError, match="a budget is a number of bytes"):
            executor.forward(graph, inputs, budget=wrong)
    with pytest.raises(tl.InputError, match=r"belongs to GradientStrategy\.BUDGETED"):
        executor.forward(graph, inputs, strategy=GradientStrategy.KEEP, budget=5)
    with pytest.raises(tl.InputError, match=r"belongs to GradientStrategy\.BUDGETED"):
        executor.forward(graph, inputs, strategy=GradientStrategy.BUDGETED)
    b = tl.GraphBuilder()
    whole = b.build(y=b.input("x", (2,)) > 0, z=b.input("x", (2,)) * 2)
    with pytest.raises(tl.DTypeError, match="no input holds"):
        executor.forward(whole, {"x": np.array([1, 2])})
    with pytest.raises(tl.DTypeError, match="'x' is of int64"):
        executor.forward(whole, {"x": np.array([1, 2])}, wrt="x")
    outputs = executor.forward(whole, {"x": np.ones(2)})
    with pytest.raises(tl.DTypeError, match="'y' is of bool"):
        executor.backward(outputs, [np.ones(2), np.ones(2)])
    executor.backward(outputs, [None, np.ones(2)])
    np.testing.assert_array_equal(executor.get_gradients()["x"], 2)
    assert isinstance(executor, tl.TlAutodiff)


def test_a_strategy_gives_its_executor_the_way():
    graph, inputs = deep(layers=1, width=3, rows=2)
    for way in (GradientStrategy.EAGER, GradientStrategy.RECOMPUTE):
        executor = tl.ExecutionStrategy(gradient=way).executor()
        assert executor.gradient is way
        executor.backward(executor.forward(graph, inputs), [1.0])
        np.testing.assert_allclose(
            executor.get_gradients()["w0"], tl.Executor().execute(tl.grad(graph), inputs)["d_w0"], rtol=1e-12
        )
    with pytest.raises(tl.InputError, match="BUDGETED, which needs one"):
        tl.ExecutionStrategy(gradient=GradientStrategy.BUDGETED).executor().forward(graph, inputs)


def test_recompute_of_what_is_no_graph_is_refused() -> None:
    b = tl.GraphBuilder()
    loss = b.build(loss=b.sum(b.exp(b.input("x", (3,)))))
    with pytest.raises(tl.InputError, match="a gradient and the graph it is of are expected"):
        tl.recompute(tl.grad(loss), 10)  # type: ignore[arg-type]
