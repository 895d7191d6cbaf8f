"""Straight-line code: it does what the loop does, says what the loop says, and leaves the caller's settings alone."""

from __future__ import annotations

import contextvars
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import GraphBuilder, OptimizationLevel
from tensorlogic.ir.types import TensorShape, TensorType
from tensorlogic.plan.build import build_plan
from tensorlogic.runtime import program as program_module
from tensorlogic.runtime.call import run, watched
from tensorlogic.runtime.program import Entry, Program, bind, steps_function, steps_source

BACKEND = tl.Executor().backend


def program(graph: tl.EinsumGraph, inputs: dict[str, Any], *, loop: bool = False, in_place: bool = True) -> Program:
    types = {n: TensorType(TensorShape(np.shape(x)), np.asarray(x).dtype.name) for n, x in inputs.items()}
    made = bind(build_plan(graph, types, in_place=in_place), BACKEND)
    if loop:
        made.function = None
    return made


def values(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> list[Any]:
    return [inputs[n] for n in graph.inputs]


def _graph(build: Callable[[GraphBuilder, Any], Any]) -> tl.EinsumGraph:
    b = GraphBuilder()
    made = build(b, b.input("x", (3,), "float64"))
    return b.build(made if isinstance(made, dict) else {"y": made})


# the text


def test_the_source_reads_like_the_plan() -> None:
    lines = [
        Entry(None, None, (0, 1), (3,), (), 2, 3, tuple),
        Entry(None, None, (), (4, 5), (3,), -1, -1, tuple),
        Entry(None, None, (4,), (6,), (4, 5), -1, 6, tuple),
    ]
    text = steps_source(lines, [0, 1], [6, 5], [2], timed=True)
    assert text == (
        "def steps(values, work, note, clock, context, stop):\n"
        "    s0, s1, = values; s2, = work; note(clock()); context.reason is None or stop(0)\n"
        "    s3 = k0(s0, s1, out=s2); note(clock()); context.reason is None or stop(1)\n"
        "    s4, s5, = k1(); note(clock()); context.reason is None or stop(2)\n"
        "    s6 = k2(s4); s4 = None; s5 = None; note(clock()); context.reason is None or stop(3)\n"
        "    return s6, s5"
    )
    compile(text, "<plan>", "exec")


def test_nothing_in_nothing_out() -> None:
    assert steps_function([], [], [], [], {})((), ()) == ()
    assert steps_function([], [0], [0], [], {})((7,), ()) == (7,)
    assert steps_function([], [], [0], [], {0: 5})((), ()) == (5,)


# plans with little in them


def test_a_plan_of_no_steps() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    out = tl.Executor().execute(b.build(a=x, b=x), {"x": np.arange(3.0)})
    assert [v.tolist() for v in out] == [[0, 1, 2]] * 2
    assert not np.shares_memory(out["a"], out["b"])


def test_a_plan_of_one_constant() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.constant(np.arange(3.0)))
    for level in OptimizationLevel:
        assert tl.Executor(optimization_level=level).execute(graph)["y"].tolist() == [0, 1, 2]
    b = GraphBuilder()
    assert tl.Executor().execute(b.build(y=b.exp(b.constant(np.zeros(2)))))["y"].tolist() == [1, 1]


def test_a_plan_whose_input_nobody_reads() -> None:
    b = GraphBuilder()
    b.input("unused", (2,))
    graph = b.build(y=b.constant(np.ones(2)))
    assert tl.Executor().execute(graph, {"unused": np.zeros(2)} if "unused" in graph.inputs else {})["y"].tolist() == [
        1,
        1,
    ]


# errors


FAILING: dict[str, Callable[[GraphBuilder, Any], Any]] = {
    "first": lambda b, x: b.exp(b.gather(x, np.array([9]))),
    "middle": lambda b, x: b.exp(b.gather(b.exp(x) + 1, np.array([9]))) * 2,
    "last": lambda b, x: b.gather(b.exp(b.exp(x)), np.array([[9, 1]])),
    "three operands": lambda b, x: b.exp(b.scatter_add(b.exp(x), np.array([9]), x[:1])),
    "inside a scan": lambda b, x: b.exp(
        b.scan(lambda c, _: (b.gather(c + 1, np.array([0, 9, 1])), None), x, (), length=2)[0]
    ),
    "inside a cond": lambda b, x: b.exp(b.cond(b.sum(x) > -1, lambda: b.gather(x, np.array([0, 9, 1])), lambda: x)),
    "a fixpoint that does not settle": lambda b, x: b.exp(b.fixpoint(lambda c: c + 1, x, limit=5)),
    "a power": lambda b, x: b.exp(b.power(b.cast(x + 1, "int64"), -1)),
    "a domain": lambda b, x: b.exp(b.einsum("i,i->i", x - 5, x, algebra="max_product")),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("hooked", [False, True])
def test_an_error_says_what_the_loops_says(name: str, hooked: bool) -> None:
    graph = _graph(FAILING[name])
    inputs = {"x": np.arange(3.0)}
    told = []
    for loop in (True, False):
        made = program(graph, inputs, loop=loop)
        assert (made.function is None) == loop
        with pytest.raises(tl.TensorLogicError) as caught, np.errstate(all="ignore"):
            if hooked:
                watched(made, values(graph, inputs), [tl.Hook()])
            else:
                run(made, values(graph, inputs))
        found = caught.value.diagnostic
        told.append((type(caught.value), found.message, found.location, found.context, str(caught.value)))
        assert "test_straight.py" in str(found.location)
    assert told[0] == told[1]


def test_an_error_names_step_operands_and_place() -> None:
    graph = _graph(FAILING["middle"])
    with pytest.raises(tl.ExecutionError) as caught:
        tl.Executor(optimization_level=OptimizationLevel.NONE).execute(graph, {"x": np.arange(3.0)})
    node = next(i for i, n in enumerate(graph.nodes) if n.op.name == "gather")
    text = str(caught.value)
    assert f"Node {node} (gather) failed: gather: index 9 is out of range for an axis of 3 elements" in text
    assert "operand 0: float64 (3,)" in text
    assert "operand 1: int64 (1,)" in text
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_long_plan_runs_in_the_loop_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "MOST", 100)

    def chain(b: GraphBuilder, x: Any) -> Any:
        for _ in range(51):
            x = b.sin(x) * 0.5
        return b.gather(x, np.array([9]))

    graph = _graph(chain)
    made = program(graph, {"x": np.ones(3)})
    assert len(made.entries) > 100
    assert made.function is None
    assert made.timed is None
    with pytest.raises(tl.ExecutionError, match=r"\(gather\) failed: gather: index 9") as caught:
        tl.Executor().execute(graph, {"x": np.ones(3)})
    assert "operand 0: float64 (3,)" in str(caught.value)


def _two_chains(b: GraphBuilder, x: Any) -> dict[str, Any]:
    """Values that are read in the piece that makes them, in the next, much later, and never."""
    y, parts = x * 1.5, []
    for _ in range(20):
        y = b.sin(y) + x
        parts.append(y)
    pair = b.sort(y)
    return {
        "y": b.concat([*parts[::5], pair]),
        "early": parts[0],
        "shown": b.transpose(y, (0,)),
        "constant": b.constant(np.arange(2.0)),
    }


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_a_function_in_pieces_does_what_the_whole_does(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, inputs = _graph(_two_chains), {"x": np.linspace(-1, 1, 3)}
    whole = run(program(graph, inputs), values(graph, inputs))
    monkeypatch.setattr(program_module, "PIECE", piece)
    for in_place in (True, False):
        made = program(graph, inputs, in_place=in_place)
        for x, y in zip(whole, run(made, values(graph, inputs)), strict=True):
            assert np.array_equal(x, y)
        pieces = [name for name in made.function.__globals__ if name[0] == "p"]  # type: ignore[union-attr]
        assert len(pieces) == (-(-len(made.entries) // piece) if piece < len(made.entries) else 0)
    with tl.trace() as seen:
        out = tl.Executor(optimization_level=OptimizationLevel.NONE).execute(graph, inputs)
    assert np.array_equal(out["y"], whole[0])
    assert seen.step_count() == len(program(graph, inputs).entries)


@pytest.mark.parametrize("piece", [1, 4, 50])
@pytest.mark.parametrize("hooked", [False, True])
def test_an_error_in_a_piece_names_its_step(piece: int, hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "PIECE", piece)
    graph = _graph(lambda b, x: b.exp(b.gather(b.exp(b.sin(b.exp(b.sin(x)))) + 1, np.array([9]))) * 2)
    with pytest.raises(tl.ExecutionError, match=r"\(gather\) failed: gather: index 9") as caught:
        if hooked:
            with tl.trace():
                tl.Executor().execute(graph, {"x": np.arange(3.0)})
        else:
            tl.Executor().execute(graph, {"x": np.arange(3.0)})
    assert "operand 0: float64 (3,)" in str(caught.value)


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_pieces_let_go_of_values_when_the_plan_does(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "PIECE", piece)

    def chain(b: GraphBuilder, x: Any) -> Any:
        for _ in range(8):
            x = b.sort(x) * 2.0
        return x

    graph = _graph(chain)
    made, alive, most = program(graph, {"x": np.ones(3)}, in_place=False), weakref.WeakSet[Any](), [0]

    class Kept(np.ndarray):
        __hash__ = object.__hash__

    def watched_kernel(kernel: Any) -> Any:
        def call(*operands: Any) -> Any:
            result = np.asarray(kernel(*operands)).view(Kept)
            alive.add(result)
            most[0] = max(most[0], len(alive))
            return result

        return call

    made.entries[:] = [entry._replace(kernel=watched_kernel(entry.kernel)) for entry in made.entries]
    made.function = made._straight()
    run(made, [np.ones(3)])
    assert most[0] == 2  # what a step reads, and what it makes


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("loop", [True, False])
def test_an_interrupt_passes(kind: type[BaseException], loop: bool) -> None:
    graph = _graph(lambda b, x: b.exp(x) + 1)
    inputs = {"x": np.ones(3)}
    made = program(graph, inputs, in_place=False)
    raised = kind("enough")

    def interrupted(*args: Any, **more: Any) -> Any:
        raise raised

    made.entries[1] = made.entries[1]._replace(kernel=interrupted)
    made.function = None if loop else made._straight()
    with pytest.raises(kind) as caught:
        run(made, values(graph, inputs))
    assert caught.value is raised


def test_a_memory_error_keeps_its_kind() -> None:
    graph = _graph(lambda b, x: b.exp(x) + 1)
    made = program(graph, {"x": np.ones(3)}, in_place=False)

    def full(*args: Any) -> Any:
        raise MemoryError

    made.entries[0] = made.entries[0]._replace(kernel=full)
    made.function = made._straight()
    with pytest.raises(tl.OutOfMemoryError, match=r"\(exp\) failed: MemoryError"):
        run(made, [np.ones(3)])


# hooks


class Told(tl.Hook):
    """Notes what it is told, without the times."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_start(self, plan: Any, inputs: Any, *, body: bool = False) -> None:
        self.told.append(("start", len(plan.steps), body))

    def on_run(self, record: tl.RunRecord) -> None:
        events = list(record)
        times = [t for e in events for t in (e.start_ns, e.end_ns)]
        assert times == sorted(times)
        self.told.append(("run", [e.step for e in events], record.body))


class Live(Told):
    """Asks for values too, which takes the loop."""

    def on_step(self, plan: Any, event: tl.StepEvent, values: tuple[Any, ...]) -> None:
        return


@pytest.mark.parametrize("name", ["chain", "scan", "middle"])
def test_hooks_are_told_the_same_by_either(name: str) -> None:
    build = {
        "chain": lambda b, x: b.sum(b.exp(x + 1)),
        "scan": lambda b, x: b.exp(b.scan(lambda c, _: (b.sin(c) + 1, None), x, (), length=3)[0]),
        "middle": FAILING["middle"],
    }[name]
    graph = _graph(build)
    told = []
    for hook in (Told(), Live()):
        executor = tl.Executor(context=tl.ExecutionContext([hook]), optimization_level=OptimizationLevel.NONE)
        try:
            executor.execute(graph, {"x": np.ones(3)})
        except tl.ExecutionError as error:
            hook.told.append(str(error))
        told.append(hook.told)
    assert told[0] == told[1]
    assert told[0]


# settings


OVERFLOWS = _graph(lambda b, x: {"a": b.exp(x * 1e300), "b": b.sum(b.log(x - 1) / 0.0), "c": b.sqrt(-x - 1)})


def test_the_callers_settings_are_neither_changed_nor_obeyed() -> None:
    executor = tl.Executor()
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        before = np.geterr()
        for _ in range(3):
            executor.execute(OVERFLOWS, {"x": np.arange(3.0)})
            assert np.geterr() == before
        with pytest.raises(FloatingPointError):
            np.float64(1.0) / np.float64(0.0)
    before = np.geterr()
    with pytest.raises(tl.ExecutionError):
        executor.execute(_graph(FAILING["middle"]), {"x": np.arange(3.0)})
    assert np.geterr() == before
    with pytest.warns(RuntimeWarning):
        np.exp(np.float64(1e300))


@pytest.mark.parametrize("hooks", [(), (tl.Hook(),)])
def test_loops_are_quiet_too(hooks: tuple[tl.Hook, ...]) -> None:
    graph = _graph(lambda b, x: b.scan(lambda c, _: (b.exp(c * 1e300) - b.log(c), None), x, (), length=3)[0])
    executor = tl.Executor(context=tl.ExecutionContext(hooks))
    with np.errstate(all="raise"):
        executor.execute(graph, {"x": np.arange(3.0)})
        executor.execute(graph, {"x": np.arange(3.0)})


def test_a_callers_context_variables_are_its_own() -> None:
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=0)
    mine.set(5)
    tl.Executor().execute(OVERFLOWS, {"x": np.arange(3.0)})
    assert mine.get() == 5


def test_a_run_inside_a_run() -> None:
    """A wrapper may run the same executor's graphs from within a step."""
    inner = tl.Executor()
    graph = _graph(lambda b, x: b.exp(x) + 1)

    def nested(call: Any) -> Any:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            inner.execute(graph, {"x": np.zeros(3)})
            return call(step, args)

        return wrapped

    outer = tl.Executor(wrap=[nested])
    np.testing.assert_allclose(outer.execute(graph, {"x": np.ones(3)})["y"], np.e + 1)
