"""Batches of items: the answers of a loop, items that fail alone, arrays that are shared, limits and threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.events import Hook
from tensorlogic.runtime import batch as module


def layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",), "float32"), b.input("w", ("n", 2), "float32")
    return b.build(y=b.relu(x @ w), total=b.sum(x))


W = np.arange(6, dtype="f4").reshape(3, 2) - 2


def rows(count: int, size: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(size).astype("f4"), "w": W[:size]} for _ in range(count)]


def same(executor: tl.Executor, graph: tl.EinsumGraph, items: list[Any], result: tl.BatchResult) -> None:
    """Compare a batch with a loop of calls."""
    assert len(result) == len(items)
    for n, item in enumerate(items):
        try:
            want = executor.execute(graph, item)
        except Exception as error:
            assert type(result.errors[n]) is type(error)
            with pytest.raises(type(error)):
                result[n]
            continue
        assert n not in result.errors
        assert result[n].keys() == want.keys()
        for name, value in want.items():
            assert result[n][name].dtype == value.dtype
            np.testing.assert_allclose(result[n][name], value, rtol=1e-5, atol=1e-6)


def shared(count: int) -> list[dict[str, Any]]:
    items = rows(count)
    return [{**item, "w": items[0]["w"]} for item in items]


def test_a_batch_is_a_loop_with_one_more_index() -> None:
    executor, items = tl.Executor(), shared(7)
    result = executor.execute_batch(layer(), items)
    same(executor, layer(), items, result)
    assert result.how == ("7 items as one more index of 'x'",)
    assert result.stacked("y").shape == (7, 2)
    assert [list(o.keys()) for o in result] == [["y", "total"]] * 7
    assert result[-1]["total"].shape == ()
    assert [o["total"] for o in result[1:3]] == [result[1]["total"], result[2]["total"]]
    assert result.throughput > 0
    assert result.total_time_ms > 0
    assert not result.errors
    with pytest.raises(IndexError):
        result[7]
    with pytest.raises(tl.InputError):
        result.stacked("z")


def test_the_same_arithmetic_gives_the_same_bits() -> None:
    b = tl.GraphBuilder()
    x, y = b.input("x", (5, 4), "float32"), b.input("y", (4,), "float32")
    graph = b.build(a=b.tanh(x * y + 0.3), s=b.sum(b.exp(x), 1), i=b.argsort(x, 0))
    rng = np.random.default_rng(0)
    items = [{k: rng.standard_normal(s).astype("f4") for k, s in (("x", (5, 4)), ("y", (4,)))} for _ in range(9)]
    executor = tl.Executor()
    result = executor.execute_batch(graph, items)
    for item, outputs in zip(items, result, strict=True):
        for got, want in zip(outputs, executor.execute(graph, item), strict=True):
            np.testing.assert_array_equal(got, want)


def test_items_of_several_shapes_run_by_groups() -> None:
    executor = tl.Executor()
    items = [{"x": np.ones(n, "f4"), "w": W[:n]} for n in (3, 2, 3, 1, 2, 3)]
    result = executor.execute_batch(layer(), items)
    same(executor, layer(), items, result)
    assert [line.split(" as ")[0].split(" one")[0] for line in result.how] == ["3 items", "2 items", "1 item"]
    assert result.stacked("y").shape == (6, 2)  # whose shapes agree, whatever those of the inputs
    b = tl.GraphBuilder()
    ragged = executor.execute_batch(b.build(z=b.input("z", ("n",)) * 2), [{"z": np.ones(n)} for n in (2, 3)])
    with pytest.raises(tl.InputError) as caught:
        ragged.stacked("z")
    assert caught.value.diagnostic.code == "E513"


def test_one_bad_item_fails_alone() -> None:
    executor = tl.Executor()
    good = shared(9)
    bad: dict[int, Any] = {
        1: {"x": good[1]["x"]}, 2: {**good[2], "x": np.ones(5, "f4")}, 3: {**good[3], "z": 1.0}, 4: None,
        5: {**good[5], "x": np.ones(3)}, 6: {**good[6], "x": "words"}, 7: {**good[7], "x": np.full(3, np.nan, "f4")},
    }  # fmt: skip
    items = [bad.get(n, item) for n, item in enumerate(good)]
    result = executor.execute_batch(layer(), items)
    assert list(result.errors) == [1, 2, 3, 4, 5, 6]
    same(executor, layer(), items, result)
    for n, error in result.errors.items():
        assert str(error).startswith(f"item {n}: "), error
    assert "failed" in repr(result)
    assert "and 1 more errors" in str(result)


def test_an_error_while_running_is_that_of_its_item() -> None:
    b = tl.GraphBuilder()
    x, i = b.input("x", (3,), "float64"), b.input("i", (2,), "int64")
    graph = b.build(y=b.gather(x, i))
    items = [{"x": np.arange(3.0) + n, "i": np.array([n, 0])} for n in range(5)]
    executor = tl.Executor()
    result = executor.execute_batch(graph, items)
    assert list(result.errors) == [3, 4]
    np.testing.assert_array_equal(result[2]["y"], [4.0, 2.0])
    with pytest.raises(tl.ExecutionError, match="item 3"):
        result[3]
    with pytest.raises(tl.ExecutionError):
        list(result)


def test_a_fixpoint_that_does_not_settle_is_that_of_its_item() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (), "float64")
    graph = b.build(y=b.fixpoint(lambda c: b.minimum(c + 1, 9.0), x, limit=5))
    result = tl.Executor().execute_batch(graph, [{"x": np.array(v)} for v in (8.0, 0.0, 6.0)])
    assert [type(e) for e in result.errors.values()] == [tl.ConvergenceError]
    assert (result[0]["y"], result[2]["y"]) == (9.0, 9.0)


def test_nothing_and_one() -> None:
    executor = tl.Executor()
    empty = executor.execute_batch(layer(), [])
    assert (len(empty), list(empty), dict(empty.errors), empty.how) == (0, [], {}, ())
    assert len(executor.execute_batch_parallel(layer(), [])) == 0
    one = executor.execute_batch(layer(), rows(1))
    same(executor, layer(), rows(1), one)
    assert one.how == ("1 item one by one: there is one",)
    with pytest.raises(IndexError):
        empty[0]


def test_graphs_without_inputs_and_items_that_are_all_the_same() -> None:
    b = tl.GraphBuilder()
    constant = b.build(y=b.iota(3) * 2)
    result = tl.Executor().execute_batch(constant, [{}, {}])
    np.testing.assert_array_equal(result.stacked("y"), [[0, 2, 4]] * 2)
    item = rows(1)[0]
    again = tl.Executor().execute_batch(layer(), [item, item, item])
    assert again.how == ("3 items by one run: their inputs are the same",)
    again[0]["y"][:] = 7
    np.testing.assert_array_equal(again[1]["y"], tl.Executor().execute(layer(), item)["y"])


@pytest.mark.parametrize("items", [{"x": 1}, "items", 7, None])
def test_what_is_no_batch(items: Any) -> None:
    with pytest.raises(tl.InputError) as caught:
        tl.Executor().execute_batch(layer(), items)
    assert caught.value.diagnostic.code == "E512"


def test_reading_items_in_turn_gives_what_reading_each_by_its_number_gives() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    graph = b.build(sum=b.sum(x), y=x * 2, largest=b.max(x), mean=b.mean(x), pair=b.stack([x, x]))  # several scalars
    items = [{"x": row} for row in np.random.default_rng(0).normal(size=(5, 3))]
    executor = tl.Executor()
    result = executor.execute_batch(graph, items)
    for outputs, item, n in zip(result, items, range(5), strict=True):
        for name, value in executor.execute(graph, item).items():
            np.testing.assert_allclose(outputs[name], value)
            np.testing.assert_array_equal(outputs[name], result[n][name], strict=True)


def test_lists_numbers_and_iterables() -> None:
    executor = tl.Executor()
    weights = W.tolist()
    items = [{"x": [float(n), 1, 2], "w": weights} for n in range(4)]
    result = executor.execute_batch(layer(), iter(items))
    same(executor, layer(), items, result)
    assert result.how == ("4 items as one more index of 'x'",)


def test_strides_empty_arrays_and_other_layouts() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "m"))
    graph = b.build(y=x.T * 2, s=b.sum(x))
    executor = tl.Executor()
    for make in (lambda n: np.asfortranarray(np.arange(6.0).reshape(2, 3) + n), lambda n: (np.arange(12.0) + n).reshape(2, 6)[:, ::2],
                 lambda n: np.empty((0, 3)), lambda n: np.zeros((2, 0)), lambda n: np.arange(6.0).reshape(2, 3).astype(">f8") + n):  # fmt: skip
        items = [{"x": make(n)} for n in range(3)]
        same(executor, graph, items, executor.execute_batch(graph, items))


def test_what_a_batch_returns_is_the_caller_s() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (3,)), b.input("w", (3,))
    graph = b.build(x=x, w=w, same=x, sliced=x[::-1], constant=b.iota(2))
    items = [{"x": np.arange(3.0) + n, "w": np.ones(3)} for n in range(3)]
    items = [{**item, "w": items[0]["w"]} for item in items]
    executor = tl.Executor()
    first, second = (executor.execute_batch(graph, items) for _ in range(2))
    arrays = [v for result in (first, second) for outputs in result for v in outputs.values()]
    given = [v for item in items for v in item.values()]
    for n, array in enumerate(arrays):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (*given, *arrays[:n]))


def test_programs_are_made_once() -> None:
    executor, items, graph = tl.Executor(), shared(5), layer()
    executor.execute_batch(graph, items)
    before = executor.cache_stats()
    for _ in range(3):
        executor.execute_batch(graph, items)
    after = executor.cache_stats()
    assert (after.misses, after.entries) == (before.misses, before.entries)
    assert after.hits == before.hits + 3


# limits


class Peaks(Hook):
    """Keeps how much each run takes, with the stacks it is given."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.spans: list[str] = []

    def on_start(self, plan: Any, inputs: Any, *, body: bool) -> None:
        if not body:
            self.bytes.append(plan.peak_bytes + sum(v.nbytes for v in inputs))

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        self.spans.append(name)


@pytest.mark.parametrize("by", ["executor", "context", "entered"])
def test_a_batch_is_cut_until_it_fits_the_memory(by: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (1000,), "float64")
    graph = b.build(y=b.sum(b.exp(x) * x))
    items = [{"x": np.linspace(0, 1, 1000) + n} for n in range(20)]
    limit, peaks = 100_000, Peaks()
    context = tl.ExecutionContext([peaks], memory_limit=limit if by == "context" else None)
    executor = tl.Executor(context=context, memory_limit=limit if by == "executor" else None)
    if by == "entered":
        with tl.ExecutionContext(memory_limit=limit):
            result = executor.execute_batch(graph, items)
    else:
        result = executor.execute_batch(graph, items)
    assert not result.errors
    assert max(peaks.bytes) <= limit
    assert 1 < len(peaks.bytes) < 20
    assert "parts of up to" in result.how[0]
    same(tl.Executor(), graph, items, result)


def test_items_that_do_not_fit_fail_each() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (1000,), "float64")))
    result = tl.Executor(memory_limit=1000).execute_batch(graph, [{"x": np.ones(1000) * n} for n in range(3)])
    assert [type(e) for e in result.errors.values()] == [tl.OutOfMemoryError] * 3


def test_large_items_run_one_by_one_and_the_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 16)
    executor, items = tl.Executor(), shared(4)
    result = executor.execute_batch(layer(), items)
    same(executor, layer(), items, result)
    assert "one by one: each takes" in result.how[0]


def test_relations_run_one_by_one() -> None:
    b = tl.GraphBuilder()
    edge = b.input("edge", (4, 4), "bool")
    graph = b.build(y=b.einsum("xy,yz->xz", edge, edge, algebra="boolean"))
    dense = np.eye(4, k=1, dtype=bool)
    items = [{"edge": tl.SparseTensor.of_columns(np.nonzero(m), (4, 4))} for m in (dense, dense.T)]
    result = tl.Executor().execute_batch(graph, items)
    assert "not plain arrays" in result.how[0]
    np.testing.assert_array_equal(np.asarray(result[1]["y"]), dense.T @ dense.T)


# contexts, spans and threads


def test_a_batch_that_is_cancelled_stops() -> None:
    context = tl.ExecutionContext()
    context.cancel("enough")
    with context, pytest.raises(tl.CancelledError):
        tl.Executor().execute_batch(layer(), shared(4))
    with tl.ExecutionContext(deadline=0.0, clock=lambda: 1.0), pytest.raises(tl.DeadlineError):
        tl.Executor().execute_batch(layer(), [{"x": np.ones(n, "f4"), "w": W[:n]} for n in (1, 2, 3)])
    with context, pytest.raises(tl.CancelledError):
        tl.Executor().execute_batch_parallel(layer(), shared(8), 2)


def test_cancelling_between_parts_stops_the_next() -> None:
    class Cancels(Hook):
        runs = 0

        def on_run(self, record: Any) -> None:
            self.runs += 1
            context.cancel("after the first part")

    hook = Cancels()
    context = tl.ExecutionContext([hook])
    items = [{"x": np.ones(n, "f4"), "w": W[:n]} for n in (1, 2, 2, 3, 3)]
    with pytest.raises(tl.CancelledError):
        tl.Executor(context=context).execute_batch(layer(), items)
    assert hook.runs == 1


def test_groups_and_items_are_spans() -> None:
    peaks = Peaks()
    executor = tl.Executor(context=tl.ExecutionContext([peaks]))
    executor.execute_batch(layer(), [*shared(3), {"x": np.ones(1, "f4"), "w": W[:1]}])
    assert [name for name in peaks.spans if name.startswith(("batch", "item"))] == ["batch of 3", "item 3"]


@pytest.mark.parametrize("make", [np.asfortranarray, lambda x: np.repeat(x, 2, 1)[:, ::2]], ids=["columns", "strides"])
def test_items_in_other_layouts_run_together(make: Any) -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (2, 3)) * 2)
    peaks = Peaks()
    executor = tl.Executor(context=tl.ExecutionContext([peaks]))
    items = [{"x": make(np.arange(6.0).reshape(2, 3) + n)} for n in range(3)]
    same(tl.Executor(), graph, items, executor.execute_batch(graph, items))
    assert [name for name in peaks.spans if name.startswith(("batch", "item"))] == ["batch of 3"]


def changed(items: list[Any], n: int, **more: Any) -> list[Any]:
    return [*items[:n], {**items[n], **more}, *items[n + 1 :]]


OTHER = W + 1
NEXT = {
    "alike": shared(5),
    "of another number": shared(7),
    "of other weights": [{**item, "w": OTHER} for item in shared(5)],
    "of another size": [{"x": item["x"][:2].copy(), "w": W[:2]} for item in shared(5)],
    "of another dtype": [{"x": item["x"].astype("f8"), "w": W} for item in shared(5)],
    "of another byte order": [{"x": item["x"].astype(">f4"), "w": W} for item in shared(5)],
    "of another byte order in the middle": changed(shared(5), 2, x=np.ones(3, ">f4")),
    "weights that differ in the middle": changed(shared(5), 2, w=OTHER),
    "weights of another size in the middle": changed(shared(5), 2, w=W[:2]),
    "weights that differ in all": [{**item, "w": W + n} for n, item in enumerate(shared(5))],
    "the other input is shared": [{"x": np.ones(3, "f4"), "w": W + n} for n in range(5)],
    "all is shared": [shared(1)[0]] * 5,
    "a row too long": changed(shared(5), 2, x=np.ones(4, "f4")),
    "a row with one more axis": changed(shared(5), 2, x=np.ones((3, 1), "f4")),
    "a number for a row": changed(shared(5), 2, x=np.ones((), "f4")),
    "a list": changed(shared(5), 4, x=[1.0, 2.0, 3.0]),
    "a name too many": changed(shared(5), 2, v=W),
    "a name is missing": [*shared(5), {"w": W}],
    "no mapping": [*shared(3), 7],
    "one": shared(1),
}


@pytest.mark.parametrize("name", NEXT)
def test_a_batch_after_another_is_read_for_what_it_is(name: str) -> None:
    executor, graph, items = tl.Executor(), layer(), NEXT[name]
    before = executor.execute_batch(graph, shared(5))
    result = executor.execute_batch(graph, items)
    same(tl.Executor(), graph, items, result)
    assert result.how == tl.Executor().execute_batch(graph, items).how
    same(tl.Executor(), graph, shared(5), before)
    same(tl.Executor(), graph, shared(5), executor.execute_batch(graph, shared(5)))


@pytest.mark.parametrize("threads", [1, 2, 5, 64])
def test_threads_share_a_batch(threads: int) -> None:
    executor, items = tl.Executor(), [*shared(11), {"x": np.ones(2, "f4"), "w": W[:2]}, {"x": 1}]
    result = executor.execute_batch_parallel(layer(), items, threads)
    same(executor, layer(), items, result)
    assert list(result.errors) == [12]
    result = executor.execute_batch_parallel(layer(), items, num_threads=None)
    same(executor, layer(), items, result)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_a_number_of_threads_is_one(threads: Any) -> None:
    with pytest.raises(tl.InputError):
        tl.Executor().execute_batch_parallel(layer(), shared(2), threads)


def test_wrappers_and_other_backends() -> None:
    items = shared(3)
    for executor in (
        tl.Executor("reference"),
        tl.Executor(wrap=[lambda call: call]),
        tl.Executor(policy="adaptive"),
        tl.Executor(threads=2),
    ):
        same(executor, layer(), items, executor.execute_batch(layer(), items))
    shapes = tl.DummyExecutor().execute_batch(layer(), items)
    assert shapes[2]["y"].shape == (2,)


# how many are best


class Clock:
    """Says that a batch takes so long as a function of its size tells; it is read before and after each."""

    def __init__(self, executor: tl.Executor, cost: Any) -> None:
        self.now, self.cost, self.sizes = 0.0, cost, list[int]()
        run = executor.execute

        def execute(graph: Any, inputs: Any = None, **options: Any) -> Any:
            size = len(inputs["x"]) if inputs["x"].ndim > 1 else 1
            self.sizes.append(size)
            self.now += cost(size)
            return run(graph, inputs, **options)

        executor.execute = execute  # type: ignore[method-assign]

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("cost", "best"),
    [(lambda n: 1.0 + 0.001 * n, 4096), (lambda n: 0.01 * n, 1), (lambda n: 1.0 + (n if n > 8 else 0) + 0.01 * n, 8)],
    ids=["overhead", "none", "caches"],
)
def test_the_best_size_is_the_one_that_is_measured_to_be(cost: Any, best: int) -> None:
    executor = tl.Executor()
    clock = Clock(executor, cost)
    found = executor.optimal_batch_size(layer(), sizes={"n": 3}, shared="w", seconds=1e9, clock=clock)
    assert found <= best
    assert cost(found) / found <= 1.06 * cost(best) / best
    few = executor.optimal_batch_size(layer(), sizes={"n": 3}, shared=["w"], most=2, seconds=1e9, clock=clock)
    assert few <= 2
    quick = len(clock.sizes)
    executor.optimal_batch_size(layer(), sizes={"n": 3}, shared=["w"], seconds=0.0, clock=clock)
    assert max(clock.sizes[quick:]) == 1


def test_the_best_size_fits_the_memory() -> None:
    executor = tl.Executor()
    clock = Clock(executor, lambda n: 1.0)
    item = 4 * (3 + 2 + 1 + 2)  # the stack, what is computed, and the outputs
    found = executor.optimal_batch_size(
        layer(), sizes={"n": 3}, shared="w", memory_limit=64 * item, seconds=1e9, clock=clock
    )
    assert 8 <= found <= 64
    assert executor.optimal_batch_size(layer(), rows(1)[0], memory_limit=0, seconds=0.0) == 1


def test_what_a_best_size_needs() -> None:
    b = tl.GraphBuilder()
    unknown = b.build(y=b.exp(b.input("x")))
    with pytest.raises(tl.InputError):
        tl.Executor().optimal_batch_size(unknown)
    assert tl.Executor().optimal_batch_size(unknown, {"x": np.ones(3)}, most=4, seconds=0.0) >= 1
    for options in ({"most": 0}, {"shared": "z"}, {"memory_limit": -1}, {"sizes": {"q": 3}}):
        with pytest.raises(tl.InputError):
            tl.Executor().optimal_batch_size(layer(), **options)  # type: ignore[arg-type]
    assert tl.Executor().optimal_batch_size(b.build(y=b.iota(3))) == 1


def test_inputs_of_bfloat16_are_made_up_where_nothing_loaded_their_numbers_yet() -> None:
    pytest.importorskip("ml_dtypes")
    code = "import sys, tensorlogic as tl\nb = tl.GraphBuilder()\nx = b.input('x', ('n', 4), 'bfloat16')\n"
    code += "assert 'ml_dtypes' not in sys.modules\n"
    code += "assert tl.Executor().optimal_batch_size(b.build(y=b.exp(x)), most=2, seconds=0.0) >= 1"
    subprocess.run([sys.executable, "-c", code], check=True)


class Made(Mapping[str, Any]):
    """An item whose arrays are made anew whenever they are read, as those of an .npz file are."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __getitem__(self, name: str) -> Any:
        return np.full(4 + self.k % 2, self.k if name == "x" else 1.0)

    def __iter__(self) -> Iterator[str]:
        return iter(("x", "w"))

    def __len__(self) -> int:
        return 2


def test_items_may_make_their_arrays_when_they_are_read():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",)) * b.input("w", ("n",)))
    result = tl.Executor().execute_batch(graph, [Made(k) for k in range(20)])
    assert [set(outputs["y"].tolist()) for outputs in result] == [{float(k)} for k in range(20)]
