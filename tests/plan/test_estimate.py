"""Memory estimates: within a tenth of what tracemalloc measures, and a table that shows when each tensor is alive."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.plan import groups
from tensorlogic.plan.estimate import Lifetime

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OBJECTS = 100_000  # bytes of Python objects that planning and binding a graph of this size may take
rng = np.random.default_rng(0)

Case = tuple[tl.EinsumGraph, dict[str, Any]]


def _floats(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype("float32")


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps stay on NumPy, which takes what is estimated; native kernels take less."""
    monkeypatch.setattr(groups, "PAYS", float("inf"))
    monkeypatch.setattr(groups, "PAYS_REORDERED", float("inf"))
    monkeypatch.setattr(groups, "MANY_ROWS", 0)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The graph of an example with inputs large enough to be seen."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def build(name: str) -> Case:
        module = __import__(name.partition(".")[0])
        match name:
            case "kinship.aunt":
                people = [f"p{n}" for n in range(600)]
                monkeypatch.setattr(module, "PEOPLE", people)
                facts = rng.random((600, 600)) < 0.01
                return module.aunt_graph(), {"sister": facts, "parent": facts}
            case "kinship.ancestor":
                return module.ancestor_graph(), {"parent": rng.random((600, 600)) < 0.01}
            case "neural_layer":
                shapes = {"x": (50_000, 4), "w1": (4, 8), "b1": (8,), "w2": (8, 3)}
                return module.layer_graph(), {name: _floats(*shape) for name, shape in shapes.items()}
            case "neural_and_symbolic":
                monkeypatch.setattr(module, "DIGITS", 100)
                monkeypatch.setattr(module, "PROTOTYPES", _floats(100, 16))
                return module.sum_rule(), {"image": _floats(2, 16), "adds": _floats(100, 100, 199)}
            case _:
                return module.distance_graph(), {"road": rng.random((400, 400))}

    yield build
    for name in ("kinship", "neural_layer", "neural_and_symbolic", "shortest_paths"):
        sys.modules.pop(name, None)


def _mlp(dtype: str) -> Case:
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 256))
    for n in range(3):
        h = b.relu(b.linear(h, b.input(f"w{n}", (256, 256)), b.input(f"b{n}", (256,))))
    graph = b.build(y=b.softmax(h))
    shapes = {"x": (1024, 256)} | {f"w{n}": (256, 256) for n in range(3)} | {f"b{n}": (256,) for n in range(3)}
    return graph, {name: _floats(*shape).astype(dtype) for name, shape in shapes.items()}


def _attention(dtype: str) -> Case:
    b = tl.GraphBuilder()
    graph = b.build(y=b.attention(*(b.input(n, ("b", "h", "t", "d")) for n in "qkv")))
    return graph, {n: _floats(2, 4, 256, 64).astype(dtype) for n in "qkv"}


def _first_run(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> int:
    """The peak of a run with nothing kept from earlier ones, the plan's own objects with it."""
    tl.Executor().execute(graph, inputs)  # imports
    tracemalloc.start()
    try:
        kept = tl.Executor().execute(graph, inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(kept) == len(graph.outputs)
    return peak


def _planned_run(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> int:
    """The peak of a run that is planned already and keeps no buffers, so that small graphs can be measured."""
    executor = tl.Executor(wrap=[lambda call: call])
    executor.execute(graph, inputs)
    before = np.setbufsize(16)  # NumPy's own buffer, 64 KiB else, is no tensor
    tracemalloc.start()
    try:
        kept = executor.execute(graph, inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        np.setbufsize(before)
    assert len(kept) == len(graph.outputs)
    return peak


SEEN = ["kinship.aunt", "kinship.ancestor", "neural_layer", "shortest_paths"]


@pytest.mark.parametrize("name", SEEN)
def test_examples_take_what_was_estimated(example, name):
    graph, inputs = example(name)
    estimate = tl.MemoryEstimator().estimate(graph, inputs)
    assert estimate.peak_bytes > 10 * OBJECTS
    assert abs(_first_run(graph, inputs) - estimate.peak_bytes) < 0.1 * estimate.peak_bytes


@pytest.mark.parametrize("name", [*SEEN, "neural_and_symbolic"])
def test_examples_without_buffers_take_what_was_estimated(example, name):
    graph, inputs = example(name)
    estimate = tl.MemoryEstimator(in_place=False).estimate(graph, inputs)
    assert abs(_planned_run(graph, inputs) - estimate.peak_bytes) < 0.1 * estimate.peak_bytes + 4000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [_mlp, _attention])
def test_networks_take_what_was_estimated(make, dtype):
    graph, inputs = make(dtype)
    estimate = tl.MemoryEstimator().estimate(graph, inputs)
    assert estimate.peak_bytes > 10 * OBJECTS
    assert abs(_first_run(graph, inputs) - estimate.peak_bytes) < 0.1 * estimate.peak_bytes
    plain = tl.MemoryEstimator(in_place=False).estimate(graph, inputs)
    assert abs(_planned_run(graph, inputs) - plain.peak_bytes) < 0.1 * plain.peak_bytes


def test_the_estimate_is_that_of_the_executors_plan(example):
    for graph, inputs in (_mlp("float32"), _attention("float64"), example("neural_layer")):
        plan = tl.Executor().plan(graph, inputs)
        assert tl.MemoryEstimator().estimate(graph, inputs) == tl.MemoryEstimator().estimate(plan)
        assert tl.MemoryEstimator().estimate(plan).peak_bytes == plan.peak_bytes


def _diamond() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, u, v = b.input("x", ("n", 64), "float64"), b.input("u", (64, 64), "float32"), b.input("v", (64, 64), "float64")
    return b.build(y=b.add(x @ b.cast(u, "float64"), x @ v))


def test_lifetimes():
    estimate = tl.MemoryEstimator().estimate(_diamond(), sizes={"n": 32})
    assert estimate.lifetimes == (
        Lifetime("%3", 0, 1, 64 * 64 * 8),
        Lifetime("%4", 1, 3, 32 * 64 * 8),
        Lifetime("%5", 2, 3, 32 * 64 * 8),
        Lifetime("y", 3, 4, 32 * 64 * 8),
    )
    assert estimate.steps == 4
    assert estimate.input_bytes == 32 * 64 * 8 + 64 * 64 * 4 + 64 * 64 * 8
    assert estimate.output_bytes == 32 * 64 * 8
    assert estimate.constant_bytes == 0
    assert estimate.peak_memory_mb == estimate.peak_bytes / 1e6
    assert estimate.total_bytes == estimate.peak_bytes + estimate.input_bytes


def test_the_print():
    assert str(tl.MemoryEstimator().estimate(_diamond(), sizes={"n": 32})).splitlines()[:-1] == [
        "tensor     bytes  steps  alive",
        "%3      32.0 KiB  0-1    ██···",
        "%4      16.0 KiB  1-3    ·███·",
        "%5      16.0 KiB  2-3    ··██·",
        "y       16.0 KiB  3-end  ···██",
    ]


def test_a_long_print_shows_the_largest():
    b = tl.GraphBuilder()
    x, y = b.input("x", (10,)), b.input("y", (1000,))
    for _ in range(100):
        x = b.sin(x)
    z = b.cos(y)
    for _ in range(100):
        y = b.sin(y)
    lines = str(tl.MemoryEstimator().estimate(b.build(x=x, y=y, z=z))).splitlines()
    assert len(lines) == 63
    assert lines[-2] == "... 141 smaller"
    assert all(len(line.split()[-1]) == 32 for line in lines[1:-2])
    everything = tl.MemoryEstimator().estimate(b.build(x=x, y=y, z=z)).table(limit=None)
    assert len(everything.splitlines()) == 203
    assert tl.MemoryEstimator().estimate(b.build(x=x)).table(limit=0).startswith("tensor")


def test_constants_and_empty_plans():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3), "float64")
    weights = b.constant(np.ones((3, 5)))
    estimate = tl.MemoryEstimator().estimate(b.build(y=x @ weights, x=x), sizes={"n": 2})
    assert estimate.constant_bytes == 120
    assert (
        str(estimate).splitlines()[-1]
        == "peak 128 B in 1 step, beside 48 B of inputs and 120 B of constants; outputs 128 B"
    )
    nothing = tl.MemoryEstimator().estimate(b.build(y=x), sizes={"n": 0})
    assert nothing.lifetimes == ()
    assert str(nothing) == "peak 0 B in 0 steps; outputs 0 B"
    inside = b.build(y=b.cond(b.sum(x) > 0, lambda: x @ b.constant(np.ones((3, 3))), lambda: x))
    assert tl.MemoryEstimator().estimate(inside, sizes={"n": 2}).constant_bytes == 72


def test_what_inputs_may_be():
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", ("n", 4))) @ b.input("w", (4, "m")), z=b.input("s", ("n",), "float32") * 2)
    estimator = tl.MemoryEstimator(dtype="float64")
    known = estimator.estimate(graph, sizes={"n": 10, "m": 5})
    given = estimator.estimate(graph, {"x": np.ones((10, 4)), "w": tl.TensorType(tl.TensorShape([4, 5]), "float64")})
    assert given == known
    assert estimator.estimate(graph, {"x": np.ones((10, 4)), "s": [1.0] * 10}, sizes={"m": 5}) == known
    half = tl.MemoryEstimator().estimate(graph, sizes={"n": 10, "m": 5})
    assert half.output_bytes == 10 * 5 * 4 + 10 * 4
    # one default dtype
    assert half == tl.MemoryEstimator().estimate(tl.Executor().plan(graph, sizes={"n": 10, "m": 5}))
    none = tl.MemoryEstimator(passes=(), dtype="float64").estimate(graph, sizes={"n": 10, "m": 5})
    assert none.output_bytes == known.output_bytes


def test_what_is_missing_or_unknown_is_named():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", "2*m")) + 1, z=b.input("größe") * 2)
    estimator = tl.MemoryEstimator()
    with pytest.raises(tl.InputError, match="needs the size 'm' of input 'x'") as error:
        estimator.estimate(graph, {"größe": 1.0})
    with pytest.raises(tl.InputError, match="needs the size 'n' of input 'x'"):
        estimator.estimate(graph, {"größe": 1.0}, sizes={"m": 3})
    assert "sizes={'m': 64, 'n': 64}" in str(error.value)
    with pytest.raises(tl.InputError, match="needs input 'größe', whose shape is not declared"):
        estimator.estimate(graph, sizes={"n": 3, "m": 2})
    with pytest.raises(tl.InputError, match="no input 'w'"):
        estimator.estimate(graph, {"w": 1.0})
    with pytest.raises(tl.InputError, match="no size 'q'"):
        estimator.estimate(graph, sizes={"q": 1})
    with pytest.raises(tl.InputError, match="must be a mapping"):
        estimator.estimate(graph, [1.0])
    with pytest.raises(tl.InputError, match="an EinsumGraph or a plan is expected"):
        estimator.estimate("graph")
    plan = tl.Executor().plan(graph, {"größe": 1.0}, sizes={"n": 3, "m": 2})
    with pytest.raises(tl.InputError, match="a plan has its inputs and sizes already"):
        estimator.estimate(plan, sizes={"n": 4})
    with pytest.raises(tl.DTypeError):
        tl.MemoryEstimator(dtype="text")
    assert estimator.estimate(graph, {"größe": 1.0}, sizes={"n": 3, "m": 2}).output_bytes == 3 * 4 * 4 + 8


@pytest.mark.parametrize("size", [8_000_000, 10**12])
def test_nothing_is_computed_to_say_what_a_plan_would_do(size: int) -> None:
    b = tl.GraphBuilder()
    each = b.cast(b.iota(size), "float64")
    graph = b.build(y=b.einsum("i,i->", each, each, algebra="noisy_or") + b.input("x", (3,), "float64"))
    assert tl.MemoryEstimator().estimate(graph).peak_bytes >= 8 * size
    assert tl.Scheduler().schedule(graph).peak_bytes >= 8 * size
    assert tl.PlacementOptimizer([tl.Device.CPU(0), tl.Device.CPU(1)]).optimize(graph).load
    assert tl.GraphOptimizer().analyze(graph).constant_nodes
    assert tl.FusionPlanner().find_fusion_opportunities(graph) == []


def test_the_estimate_is_the_peak_of_the_plan_of_an_executor() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 784), "float32"), b.input("w", (784, 10), "float32")
    for graph in (b.build(y=b.softmax(x @ w)), b.build(y=b.sum(b.square(x @ w)), z=b.relu(x))):
        for n in (1, 64, 5000):
            plan = tl.Executor().plan(graph, sizes={"n": n})
            assert tl.MemoryEstimator().estimate(graph, sizes={"n": n}).peak_bytes == plan.peak_bytes
