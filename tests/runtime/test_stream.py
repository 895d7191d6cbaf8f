"""Streams: chunk by chunk is the same as at once, and nothing else happens than what is asked for."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node
from tensorlogic.runtime.streams.chunk_sizes import Fastest
from tensorlogic.testing.cases import cases
from tensorlogic.testing.strategies import graphs

EX = tl.Executor()
TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-9}
FIXED = tl.StreamingMode.FixedChunk


def config(rows: int, prefetch: int = 0) -> tl.StreamingConfig:
    return tl.StreamingConfig(FIXED(rows), prefetch=prefetch)


def whole_of(stream: tl.Stream) -> dict[str, Any]:
    """Run a stream and put what it gives together."""
    results = list(stream)
    kept = stream.processor.split.kept
    found = {name: np.concatenate([r.outputs[name] for r in results], axis) for name, axis in kept.items()}
    last = results[-1].outputs
    for name, value in stream.outputs.items():
        np.testing.assert_array_equal(last[name], value)
        found[name] = value
    assert [r.metadata.chunk_id for r in results] == list(range(len(results)))
    return found


def assert_same(found: dict[str, Any], expected: tl.Outputs) -> None:
    assert set(found) == set(expected.keys())
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        if value.dtype.kind == "f":
            near = TOLERANCE[value.dtype.name]
            np.testing.assert_allclose(found[name].astype("float64"), value.astype("float64"), rtol=near, atol=near)
        else:
            np.testing.assert_array_equal(found[name], value)


def with_open_axis(graph: tl.EinsumGraph, name: str, axis: int) -> tl.EinsumGraph:
    """Return the graph with one axis of an input of a size that only the stream tells."""
    nodes, i = list(graph.nodes), graph.inputs[name]
    op = nodes[i].op
    assert isinstance(op, ops.Input) and op.shape is not None
    shape = tuple("rows_of_it" if a == axis else d for a, d in enumerate(op.shape))
    nodes[i] = Node(ops.Input(op.label, shape, op.dtype), (), nodes[i].locations)
    return tl.EinsumGraph(nodes, graph.outputs, graph.constants)


def pieces(name: str, value: Any, axis: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """A source whose chunks are of any size, none included."""
    at = 0
    while at < value.shape[axis]:
        count = int(rng.integers(0, 4))
        yield {name: np.take(value, range(at, min(at + count, value.shape[axis])), axis)}
        at += count


def streamed_every_way(graph: tl.EinsumGraph, inputs: dict[str, Any], rows: int) -> int:
    """Stream a graph along every axis of every input, and compare each with the whole run; return how many can be."""
    try:
        expected = EX.execute(graph, inputs)
    except tl.TensorLogicError:
        return 0
    rng, count = np.random.default_rng(rows), 0
    for name, given_value in inputs.items():
        value = np.asarray(given_value)
        rest = {n: v for n, v in inputs.items() if n != name}
        for axis in range(value.ndim):
            if value.shape[axis] == 0:
                continue
            options = [graph]
            try:
                options.append(with_open_axis(graph, name, axis))
                EX.execute(options[-1], inputs)
            except tl.TensorLogicError:
                options.pop()
            for each in options:
                for source in ({name: value}, pieces(name, value, axis, rng)):
                    try:
                        stream = EX.execute_stream(each, source, config(rows, rows % 2), inputs=rest, over={name: axis})
                        found = whole_of(stream)
                    except tl.TensorLogicError as error:
                        assert error.diagnostic.code in ("E531", "E530"), error
                        continue
                    assert_same(found, expected)
                    count += 1
    return count


REDUCERS = (
    "reduce/",
    "einsum/ij->j/",
    "einsum/ij->/",
    "einsum/ij,jk->ik/",
    "einsum/i,i->/",
    "scan/",
    "fixpoint/",
    "cond/",
    "layers/",
    "iota/",
)


@pytest.mark.parametrize("case", [c for c in cases() if c.name.startswith(REDUCERS)], ids=lambda c: c.name)
def test_every_reducer_algebra_and_dtype_is_the_whole_run(case):
    graph, inputs = case.make()
    streamed_every_way(graph, inputs, 2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=graphs(), rows=st.integers(1, 3))
def test_random_graphs_are_the_whole_run(case, rows):
    streamed_every_way(case.graph, dict(case.inputs), rows)


@pytest.fixture
def layer() -> tuple[tl.EinsumGraph, dict[str, Any], Any]:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, "k"))
    y = b.relu(x @ w)
    graph = b.build(
        y=y, mean=b.mean(y, axis=0), top=b.max(y) - b.min(y), lse=b.logsumexp(x, axis=0), w2=w * 2, again=y, x=x
    )
    rng = np.random.default_rng(3)
    return graph, {"w": rng.normal(size=(3, 2))}, rng.normal(size=(100, 3))


@pytest.mark.parametrize("rows", [1, 7, 99, 100, 1000])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_outputs_of_every_kind(layer, rows, count):
    graph, weights, x = layer
    expected = EX.execute(graph, {"x": x[:count], **weights})
    assert_same(whole_of(EX.execute_stream(graph, {"x": x[:count]}, config(rows, 2), inputs=weights)), expected)


def test_positions_and_what_depends_on_the_total():
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    ones = b.broadcast_to(b.constant(1.0), ("n",))
    graph = b.build(place=x + b.iota("n"), total=b.sum(x), size=b.sum(ones), share=b.sum(x) / b.sum(ones))
    for count in (1, 2, 9):
        values = np.arange(float(count))
        assert_same(whole_of(EX.execute_stream(graph, {"x": values}, config(4))), EX.execute(graph, {"x": values}))


def test_a_whole_input_of_the_streamed_size_is_cut():
    b = tl.GraphBuilder()
    x, scale = b.input("x", ("n", 2)), b.input("scale", ("n",))
    graph = b.build(y=b.einsum("ni,n->ni", x, scale), total=b.einsum("ni,n->i", x, scale))
    values = {"x": np.arange(20.0).reshape(10, 2), "scale": np.arange(10.0)}
    assert_same(
        whole_of(EX.execute_stream(graph, {"x": values["x"]}, config(3), inputs={"scale": values["scale"]})),
        EX.execute(graph, values),
    )
    with pytest.raises(tl.InputError, match="has 10 rows, but 6 came"):
        EX.execute_stream(graph, {"x": values["x"][:6]}, config(3), inputs={"scale": values["scale"]}).result()
    with pytest.raises(tl.InputError, match="has 10 rows, but more came"):
        EX.execute_stream(graph, [{"x": np.ones((7, 2))}] * 2, config(3), inputs={"scale": values["scale"]}).result()


def test_formulas_in_every_logic():
    x, y = tl.variables("x y", domain="D")
    rng = np.random.default_rng(0)
    for strategy in tl.STRATEGIES:
        graph = tl.compile(
            tl.exists(x, tl.pred("p", x, y) & tl.pred("q", x)), tl.CompilerContext({"D": 12}), strategy=strategy
        )
        p, q = rng.random((12, 12)), rng.random(12)
        if strategy == "hard_boolean":
            p, q = p > 0.7, q > 0.7
        found = whole_of(EX.execute_stream(graph, {"p": p, "q": q}, config(5), over={"p": 0, "q": 0}))
        assert_same(found, EX.execute(graph, {"p": p, "q": q}))


def test_long_sums_are_kept_wide():
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    graph = b.build(total=b.sum(x), mean=b.mean(x))
    for dtype in ("float16", "float32"):
        values = np.full(3000, 0.1, dtype)
        out = EX.execute_stream(graph, {"x": values}, config(1)).result()
        exact = values.astype("float64")
        assert out["total"] == exact.sum().astype(dtype)
        assert out["mean"] == exact.mean().astype(dtype)


def test_nan_goes_where_it_goes_in_a_whole_run(layer):
    graph, weights, x = layer
    x[17, 1] = np.nan
    expected = EX.execute(graph, {"x": x, **weights})
    assert_same(whole_of(EX.execute_stream(graph, {"x": x}, config(10), inputs=weights)), expected)


# what cannot be


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda b, x: b.softmax(x, axis=0), "subtract"),
        (lambda b, x: b.sort(x, axis=0), "sort"),
        (lambda b, x: b.cumsum(x, axis=0), "cumulate"),
        (lambda b, x: x - b.mean(x, axis=0), "subtract"),
        (lambda b, x: b.argmax(x, axis=0), "argmax"),
        (lambda b, x: x[1:], "slice"),
        (lambda b, x: b.einsum("ni,mi->nm", x, x), "einsum"),
    ],
)
def test_what_needs_the_whole_index_is_refused_with_its_place(make, op):
    b = tl.GraphBuilder()
    graph = b.build(y=make(b, b.input("x", ("n", 3))))
    with pytest.raises(tl.GraphError, match="cannot be streamed along axis 0 of 'x'") as caught:
        EX.execute_stream(graph, {"x": np.ones((9, 3))}, config(4)).result()
    assert caught.value.diagnostic.code == "E531"
    assert caught.value.diagnostic.message.startswith(op)
    assert caught.value.diagnostic.location.file == __file__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "would be cut together"),
        ({"over": "m"}, "no size and no input 'm'"),
        ({"over": "x", "inputs": {}}, "input 'w' is not streamed"),
        ({"over": {"x": 0}, "inputs": {"x": 1, "w": 1}}, "must not be in inputs"),
        ({"inputs": {"x": 1, "w": 1}}, "no input is streamed"),
        ({"inputs": {"v": 1}}, "no input 'v'"),
        ({"over": {"x": True}}, "an axis is a whole number"),
        ({"inputs": {"w": np.ones((3, 2))}, "checkpoint": None, "resume": True}, "checkpoints need a folder"),
    ],
)
def test_unclear_calls_are_refused(layer, options, message):
    with pytest.raises(tl.InputError, match=message):
        EX.execute_stream(layer[0], {"x": layer[2]}, config(4), **options)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ([], "E537"), (iter(()), "E537"), (3, "E534"), ("nowhere.npy", "E534"), ({"z": np.ones((2, 3))}, "E534"),
        ([{"x": np.ones((2, 3)), "w": 1}], "E534"), ([{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}], "E536"),
        ([{"x": np.ones((2, 3))}, {"x": np.ones((2, 3), "float32")}], "E536"), ([{"x": np.ones(())}], "E536"), ([{}], "E534"),
        ({"x": np.ones((2, 4))}, "E001"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefetch", [0, 1])
def test_bad_sources_are_refused(layer, source, code, prefetch):
    source = iter(list(source)) if isinstance(source, list) and source else source
    with pytest.raises(tl.TensorLogicError) as caught:
        EX.execute_stream(layer[0], source, config(4, prefetch), inputs=layer[1]).result()
    assert caught.value.diagnostic.code == code


def test_no_rows_are_a_whole_run_on_no_rows(layer):
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3))
    graph = b.build(y=x * 2, total=b.sum(x))
    for source in ({"x": np.ones((0, 3))}, [{"x": np.ones((0, 3))}]):
        stream = EX.execute_stream(graph, source)
        assert list(stream) == []
        assert stream.outputs["total"] == 0
    with pytest.raises(tl.TensorLogicError):  # of nothing there is no maximum
        EX.execute_stream(b.build(y=b.max(x)), {"x": np.ones((0, 3))}).result()


# reading


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_source_that_fails_half_way(layer, prefetch):
    graph, weights, x = layer

    def failing():
        for n in range(5):
            yield {"x": x[n * 10 : n * 10 + 10]}
        raise ConnectionError("the line is dead")

    stream = EX.execute_stream(
        tl.EinsumGraph.from_text(graph.to_text()), failing(), config(10, prefetch), inputs=weights
    )
    done = []
    with pytest.raises(tl.InputError, match=r"failed at chunk \d, row 50: ConnectionError: the line is dead") as caught:
        done += stream
        done.extend(stream)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert stream.rows in (40, 50)  # the last chunk waits to see whether it is the last
    assert list(stream) == []


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_source_is_never_far_ahead(prefetch):
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",)) * 2)
    taken = []

    def source():
        for n in range(12):
            taken.append(n)
            yield {"x": np.full(4, float(n))}

    stream = EX.execute_stream(graph, source(), config(4, prefetch))
    for n, _ in enumerate(stream, 1):
        deadline = time.monotonic() + 5
        while prefetch and len(taken) < min(12, n + prefetch) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.002)
        assert len(taken) <= n + prefetch


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_stopping_early_closes_the_source(prefetch, how):
    closed = []

    def endless():
        try:
            while True:
                yield {"x": np.ones(4)}
        finally:
            closed.append(threading.current_thread().name)

    b = tl.GraphBuilder()
    stream = EX.execute_stream(b.build(y=b.input("x", ("n",)) * 2), endless(), config(4, prefetch))
    next(stream)
    if how == "with":
        with stream:
            next(stream)
    elif how == "close":
        stream.close()
    else:
        del stream
    assert len(closed) == 1
    assert not [t for t in threading.enumerate() if t.name == "tensorlogic-stream"]


def test_outputs_so_far_of_an_endless_stream():
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    processor = tl.StreamProcessor(EX, b.build(mean=b.mean(x), y=x + 1))
    with pytest.raises(tl.InputError, match="before its first chunk"):
        _ = processor.outputs
    for n in range(1, 4):
        processor.push({"x": np.full(2, float(n))})
        assert processor.outputs["mean"] == (n + 1) / 2
    assert processor.finish()["mean"] == 2.0
    with pytest.raises(tl.InputError, match="has ended"):
        processor.push({"x": [1.0]})
    with pytest.raises(tl.InputError, match="nothing for input 'x'"):
        tl.StreamProcessor(EX, processor.graph).push({})
    with pytest.raises(tl.InputError, match="'z', but the graph has no such input"):
        tl.StreamProcessor(EX, processor.graph).push({"x": [1.0], "z": 1})


# contexts and events


def test_each_chunk_is_a_span_and_contexts_stop_a_stream(layer):
    names = []

    class Spans(tl.Hook):
        def on_span(self, name, start_ns, end_ns, thread):
            names.append(name)

    graph, weights, x = layer
    executor = tl.Executor(context=tl.ExecutionContext([Spans()]))
    executor.execute_stream(graph, {"x": x}, config(40), inputs=weights).result()
    assert [n for n in names if n.startswith("chunk")] == ["chunk 0", "chunk 1", "chunk 2"]
    context = tl.ExecutionContext()
    stream = EX.execute_stream(graph, {"x": x}, config(10, 1), inputs=weights)
    with pytest.raises(tl.CancelledError), context:
        for n, _ in enumerate(stream):
            if n == 2:
                context.cancel("enough")
    assert stream.rows == 30


def test_waiting_for_a_slow_source_ends_at_the_deadline():
    wait = threading.Event()

    def slow():
        yield {"x": np.ones(4)}
        wait.wait(20)
        yield {"x": np.ones(4)}

    b = tl.GraphBuilder()
    stream = EX.execute_stream(b.build(y=b.input("x", ("n",)) * 2), slow(), config(4, 1))
    next(stream)
    threading.Timer(0.2, wait.set).start()  # closing waits for the thread that reads
    with pytest.raises(tl.DeadlineError), tl.ExecutionContext(timeout=0.05):
        next(stream)
    assert wait.is_set()


# sizes of chunks


def test_the_measured_peak_stays_under_the_target():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 16), "float32"), b.input("w", (16, 64), "float32")
    graph = b.build(y=b.sum(b.exp(x @ w), axis=1), mean=b.mean(b.tanh(x @ w), axis=0))
    weights = np.ones((16, 64), "float32") / 100
    rows = np.ones((200_000, 16), "float32")
    target = 4
    mode = tl.StreamingMode.DynamicChunk(target_memory_mb=target)
    EX.execute_stream(graph, {"x": rows[:5000]}, tl.StreamingConfig(mode), inputs={"w": weights}).result()
    sizes = []
    tracemalloc.start()
    for result in EX.execute_stream(graph, {"x": rows}, tl.StreamingConfig(mode, prefetch=2), inputs={"w": weights}):
        sizes.append(result.metadata.size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < target << 20
    assert peak > (target << 20) / 8  # and it is made use of
    assert len(set(sizes[:-1])) == 1


def test_a_target_that_one_row_is_too_much_for():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", 10_000)) * 2)
    mode = tl.StreamingMode.DynamicChunk(0.01)
    with pytest.raises(tl.OutOfMemoryError, match="one row, and reading it, takes") as caught:
        EX.execute_stream(graph, {"x": np.ones((3, 10_000))}, tl.StreamingConfig(mode)).result()
    assert caught.value.diagnostic.code == "E533"


@pytest.mark.parametrize("best", [16, 64, 512])
def test_adaptive_sizes_settle_where_the_clock_says(best):
    now = [0.0]
    pending: list[int] = []

    def clock() -> float:
        return now[0]

    def source():
        while True:
            yield {"x": np.ones(1)}

    b = tl.GraphBuilder()
    mode = tl.StreamingMode.Adaptive(initial_chunk=64)
    stream = EX.execute_stream(
        b.build(y=b.input("x", ("n",)) * 2), source(), tl.StreamingConfig(mode, prefetch=0), clock=clock
    )
    push = stream.processor.push

    def slow_push(values, rows, **options):
        result = push(values, rows, **options)
        now[0] += rows * (1 + abs(np.log2(rows / best)))
        pending.append(rows)
        return result

    stream.processor.push = slow_push
    for _, result in zip(range(60), stream, strict=False):
        last = result.metadata.size
    assert last == best
    stream.close()


def test_adaptive_state_survives_json():
    sizes = Fastest(64, 1 << 20)
    for _ in range(7):
        sizes.note(sizes.next(), 1.0)
    other = Fastest(1, 1 << 20)
    other.restore(sizes.state())
    assert other.state() == sizes.state()


@pytest.mark.parametrize("make", [lambda: FIXED(0), lambda: FIXED(2.5), lambda: tl.StreamingMode.DynamicChunk(0), lambda: tl.StreamingMode.Adaptive(-1),
                                  lambda: tl.StreamingConfig(3), lambda: config(1, -1), lambda: config(1).with_checkpointing(0)])  # fmt: skip
def test_bad_configs(make):
    with pytest.raises(tl.InputError):
        make()
