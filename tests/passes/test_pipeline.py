"""The pipeline: every level gives the answers of the graph as written, and a pass that breaks a graph is named."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, OptimizationLevel
from tensorlogic.diagnostics import SourceLocation
from tensorlogic.events import Hook
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node, Scan, bodies
from tensorlogic.passes.merge import merge_einsums, stack_products
from tensorlogic.passes.pipeline import LEVELS, Optimized, PassReport, optimize, passes_of, sized_passes
from tensorlogic.passes.rewrite import drop_dead, merge_equal
from tensorlogic.passes.simplify import simplify
from tensorlogic.passes.specialize import specialize, with_dtypes
from tensorlogic.testing import cases
from tensorlogic.testing.strategies import graph_case

NONE, BASIC, STANDARD, AGGRESSIVE = OptimizationLevel
EXECUTORS = {level: tl.Executor(optimization_level=level) for level in OptimizationLevel}
REFERENCE = tl.Executor("reference")
FLOAT = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, np.inf, -np.inf, np.nan]
VALUES: dict[str, list[Any]] = {
    "float64": FLOAT, "float32": FLOAT, "float16": FLOAT, "bool": [False, True], "int64": [0, 1, -1, 3, -(2**63)],
    "int8": [0, 1, -1, 3, -128, 127], "uint8": [0, 1, 2, 255],
}  # fmt: skip
UNARY = [
    "negative", "absolute", "sign", "square", "relu", "step", "floor", "ceil", "trunc", "rint", "isnan", "logical_not",
    "sigmoid", "exp", "isfinite", "sqrt",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "divide", "minimum", "maximum", "equal", "less", "greater_equal", "logical_and",
    "logical_or", "logical_xor", "floor_divide", "remainder", "goguen_implies",
]  # fmt: skip
LITERALS = [0, 1, 2, -1.0, 0.0, -0.0, 1.0, 0.5, True, False, float("nan"), float("inf")]


def bits(values: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Return outputs so that they compare bit by bit; a NaN is a NaN, whatever its sign."""
    found = []
    for value in values:
        array = np.array(value)
        if array.dtype.kind == "f":
            array[np.isnan(array)] = np.nan
        found.append((array.dtype.name, array.shape, array.tobytes()))
    return found


def one_of(draw: st.DrawFn, b: GraphBuilder, pool: list[Any]) -> Any:
    """Return one more tensor made of those there are."""
    x = draw(st.sampled_from(pool))
    rank = len(x.shape)
    match draw(st.integers(0, 17)):
        case 0 | 1 | 2:
            return getattr(b, draw(st.sampled_from(UNARY)))(x)
        case 3 | 4:
            y = draw(st.sampled_from(pool))
            return getattr(b, draw(st.sampled_from(BINARY)))(*draw(st.permutations([x, y])))
        case 5 | 6 | 7:
            literal = draw(st.sampled_from(LITERALS))
            return getattr(b, draw(st.sampled_from(BINARY)))(*draw(st.permutations([x, literal])))
        case 8:
            return b.transpose(x, draw(st.permutations(range(rank))))
        case 9:
            return b.reshape(x, draw(st.sampled_from([(-1,), x.shape, (*x.shape, 1), (1, *x.shape)])))
        case 10 if rank:
            key = draw(st.sampled_from([slice(None), slice(None, None, -1), slice(1, None), slice(None, None, 2)]))
            return x[(slice(None),) * draw(st.integers(0, rank - 1)) + (key,)]
        case 11:
            kind = draw(st.sampled_from(["sum", "max", "min", "any", "all", "mean", "prod"]))
            axis = draw(st.sampled_from([None, *range(rank), ()]))
            return getattr(b, kind)(x, axis, keepdims=draw(st.booleans()))
        case 12:
            targets = list(VALUES) if x.dtype[0] in "biu" else ["float64", "float32", "float16", "bool"]
            return b.cast(x, draw(st.sampled_from(targets)))
        case 13:
            pick, y = draw(st.sampled_from(pool)), draw(st.sampled_from([*pool, x, 1, 0.5]))
            return b.where(pick, x, y)
        case 14 if rank:
            return getattr(b, draw(st.sampled_from(["sort", "cummax", "argsort"])))(x, rank - 1)
        case 15:
            y = draw(st.sampled_from(pool))
            return b.einsum(draw(st.sampled_from(["ij,kj->ik", "ij,jk->ki", "i,i->i", "ij,ij->ji", "i,j->ji"])), x, y)
        case 16:
            return b.einsum(draw(st.sampled_from(["ij->ji", "i->i", "ij->i", "ii->i", "...->..."])), x)
        case 17 if rank:
            return b.concat([x] * draw(st.integers(1, 2)), 0)
        case _:
            return b.constant(np.array(draw(st.lists(st.sampled_from(FLOAT), min_size=3, max_size=3))))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[EinsumGraph, dict[str, Any]]:
    """Graphs of a few nodes with repetitions, on inputs full of zeros, infinities and NaN."""
    b = GraphBuilder(intern=False)
    inputs: dict[str, Any] = {}
    pool = []
    for n in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(list(VALUES)))
        shape = draw(st.sampled_from([(3,), (2, 3), (), (3, 3), (0, 3), (1, 3), (20,)]))
        seed = draw(st.integers(0, 2**16))
        inputs[f"x{n}"] = np.array(random.Random(seed).choices(VALUES[dtype], k=int(np.prod(shape))), dtype).reshape(
            shape
        )
        pool.append(b.input(f"x{n}", shape, dtype))
    for _ in range(draw(st.integers(1, 14))):
        try:
            pool.append(one_of(draw, b, pool))
        except tl.TensorLogicError:  # these operands do not fit together
            continue
    chosen = draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=3))
    return b.build({f"y{n}": pool[i] for n, i in enumerate([*chosen, len(pool) - 1])}), inputs


@settings(deadline=None, max_examples=250)
@given(graphs())
def test_up_to_standard_every_bit_stays(made: tuple[EinsumGraph, dict[str, Any]]) -> None:
    graph, inputs = made
    before = {name: x.copy() for name, x in inputs.items()}
    plain = EXECUTORS[NONE].execute(graph, inputs)
    wanted = bits(plain)
    for level in (BASIC, STANDARD):
        for _ in range(2):  # the second run writes into the buffers of the first
            assert bits(EXECUTORS[level].execute(graph, inputs)) == wanted, level
    assert bits(plain) == wanted  # what was handed out stays
    assert bits(inputs.values()) == bits(before.values())
    for found, expected in zip(EXECUTORS[AGGRESSIVE].execute(graph, inputs), plain, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2e-3 if found.dtype == np.float16 else 1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_it_agrees_with_the_reference(made: tuple[EinsumGraph, dict[str, Any]]) -> None:
    graph, inputs = made
    found = EXECUTORS[STANDARD].execute(graph, inputs)
    for got, expected in zip(found, REFERENCE.execute(graph, inputs), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=4e-3 if got.dtype == np.float16 else 1e-5, atol=1e-6)


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_passes_keep_the_signature_and_never_grow_a_graph(made: tuple[EinsumGraph, dict[str, Any]]) -> None:
    graph, _ = made
    for p in (drop_dead, merge_equal, simplify, merge_einsums):
        once = p(graph)
        assert len(once) <= len(graph)
        assert [(n, once.type_of(i)) for n, i in once.inputs.items()] == [
            (n, graph.type_of(i)) for n, i in graph.inputs.items()
        ]
        assert [(n, once.type_of(i)) for n, i in once.outputs] == [(n, graph.type_of(i)) for n, i in graph.outputs]
        assert EinsumGraph(once.nodes, once.outputs, once.constants).inference.types == once.inference.types
        twice = p(once)
        assert len(twice) <= len(once)
    for p in (drop_dead, merge_equal):
        assert p(p(graph)) == p(graph)


@pytest.mark.parametrize("part", range(8))
def test_the_conformance_table_at_every_level(part: int) -> None:
    wrong = []
    for case in list(cases())[part * 3 :: 40]:
        graph, inputs = case.make()
        wanted = EXECUTORS[NONE].execute(graph, inputs)
        for level in (BASIC, STANDARD, AGGRESSIVE):
            found = EXECUTORS[level].execute(graph, inputs)
            if level is not AGGRESSIVE and bits(found) != bits(wanted):
                wrong.append(f"{level}: {case.name}")
            for a, c in zip(found, wanted, strict=True):
                np.testing.assert_allclose(
                    a, c, rtol=1e-2 if a.dtype == np.float16 else 1e-5, atol=1e-6, err_msg=case.name
                )
    assert not wrong


# outputs of every kind


def test_outputs_that_are_inputs_constants_literals_and_views() -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", (2, 3), "float32")
    c = b.constant(np.arange(3.0))
    graph = b.build(
        {
            "same": x,
            "again": x * 1,
            "constant": c,
            "folded": c + 1,
            "literal": b.apply(ops.Literal.of(-0.0)),
            "view": x.T,
        }
    )
    X = np.arange(6, dtype="float32").reshape(2, 3)
    for level, executor in EXECUTORS.items():
        out = executor.execute(graph, {"x": X})
        assert out["literal"].tobytes() == np.float64(-0.0).tobytes(), level
        for name, wanted in {
            "same": X,
            "again": X,
            "constant": np.arange(3.0),
            "folded": np.arange(1.0, 4.0),
            "view": X.T,
        }.items():
            np.testing.assert_array_equal(out[name], wanted)
            assert out[name].flags.writeable
            assert not np.shares_memory(out[name], X)
        for name in out.keys():  # noqa: SIM118 - the names of outputs
            out[name][...] = 9
        np.testing.assert_array_equal(executor.execute(graph, {"x": X})["again"], X)
        np.testing.assert_array_equal(executor.execute(graph, {"x": X})["constant"], np.arange(3.0))


def test_inputs_that_nothing_needs_stay() -> None:
    b = GraphBuilder(intern=False)
    x, unused = b.input("x", (3,)), b.input("unused", (2,))
    dead = unused * 2
    assert dead.shape == (2,)
    done = optimize(b.build(y=x - x + 1), passes_of(AGGRESSIVE)).graph
    assert done.input_names == ["x", "unused"]


# bodies


def _body(graph: EinsumGraph) -> EinsumGraph:
    return next(body for node in graph.nodes for body in bodies(node.op))


@pytest.mark.parametrize("kind", ["scan", "fixpoint", "cond"])
def test_bodies_are_optimized_too(kind: str) -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", (3,), "float64")
    match kind:
        case "scan":
            y = b.scan(lambda c, _: (b.negative(b.negative(c * 1)) + 1, None), x, (), length=3)[0]
        case "fixpoint":
            y = b.fixpoint(lambda c: b.minimum(b.negative(b.negative(c * 1)) + 1, 3), x)
        case _:
            y = b.cond(b.sum(x) > 0, lambda: b.negative(b.negative(x * 1)) + 1, lambda: x)
    graph = b.build(y=y)
    done = optimize(graph, passes_of(STANDARD)).graph
    assert len(_body(done)) < len(_body(graph))
    X = np.array([0.0, 1.0, 2.0])
    assert bits(EXECUTORS[STANDARD].execute(graph, {"x": X})) == bits(EXECUTORS[NONE].execute(graph, {"x": X}))


def test_a_pass_that_leaves_a_body_alone_leaves_the_graph_alone() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    graph = b.build(y=b.scan(lambda c, _: (c + 1, None), x, (), length=3)[0])
    assert optimize(graph, [lambda g: g]).graph is graph


def test_a_pass_that_breaks_a_body_is_named() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    graph = b.build(y=b.scan(lambda c, _: (c + 1, None), x, (), length=3)[0])

    def only_bodies(g: EinsumGraph) -> EinsumGraph:
        if any(isinstance(n.op, Scan) for n in g.nodes):
            return g
        return EinsumGraph(g.nodes, [("renamed", i) for _, i in g.outputs], g.constants)

    with pytest.raises(tl.GraphError, match="the pass only_bodies broke the graph: its outputs were"):
        optimize(graph, [only_bodies])


# passes that break a graph


def _dropped_input(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph([Node(ops.Iota(3, "float32"))], [("y", 0)])


def _renamed_output(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph(g.nodes, [("z", i) for _, i in g.outputs], g.constants)


def _other_dtype(g: EinsumGraph) -> EinsumGraph:
    last = len(g.nodes)
    return EinsumGraph([*g.nodes, Node(ops.Cast("float64"), (last - 1,))], [("y", last)], g.constants)


def _other_shape(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph([*g.nodes, Node(ops.Reduce("sum"), (len(g.nodes) - 1,))], [("y", len(g.nodes))], g.constants)


def _other_input(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph([Node(ops.Input("x", (3,), "int8")), Node(ops.Cast("float32"), (0,))], [("y", 1)], g.constants)


def _nothing(g: EinsumGraph) -> Any:
    return None


def _forward(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph([g.nodes[0], Node(ops.Elementwise("exp"), (2,)), Node(ops.Elementwise("exp"), (1,))], g.outputs)


def _dangling(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph(g.nodes, [("y", 17)], g.constants)


def _ill_typed(g: EinsumGraph) -> EinsumGraph:
    return EinsumGraph([*g.nodes, Node(ops.Transpose((0, 1)), (0,))], [("y", len(g.nodes))], g.constants)


def _lost_constant(g: EinsumGraph) -> EinsumGraph:
    b = GraphBuilder()
    made = b.build(y=b.input("x", (3,), "float32") + b.constant(np.ones(3, "float32")))
    return EinsumGraph(made.nodes, made.outputs, {})


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (_dropped_input, r"its inputs were \['x'\] and are now \[\]"),
        (_renamed_output, r"its outputs were \['y'\] and are now \['z'\]"),
        (_other_dtype, "output 'y' was float32"),
        (_other_shape, "output 'y' was float32"),
        (_other_input, "input 'x' was float32"),
        (_nothing, "it returned NoneType"),
        (_forward, "%2"),
        (_dangling, "17"),
        (_ill_typed, "transpose"),
        (_lost_constant, "constant"),
    ],
)
def test_a_pass_that_breaks_a_graph_is_named(broken: Callable[[EinsumGraph], Any], what: str) -> None:
    b = GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (3,), "float32")))
    with pytest.raises(tl.TensorLogicError, match=rf"the pass {broken.__name__} broke the graph: .*{what}"):
        optimize(graph, [drop_dead, broken])


# reports


def test_what_each_pass_did_prints_as_a_table() -> None:
    reports = (PassReport("drop_dead", 0.0012, 12, 10), PassReport("simplify", 0.25, 10, 7))
    b = GraphBuilder()
    shown = str(Optimized(b.build(y=b.input("x", (3,))), reports))
    assert shown.splitlines()[0].split() == ["pass", "ms", "nodes", "before", "after"]
    assert shown.splitlines()[1].split() == ["drop_dead", "1.20", "12", "10"]
    assert shown.splitlines()[2].split() == ["simplify", "250.00", "10", "7"]
    assert reports[1].removed == 3


def test_the_levels() -> None:
    named = {level: [p.__name__ for p in passes] for level, passes in LEVELS.items()}
    assert named[NONE] == []
    for lower, upper in ((NONE, BASIC), (BASIC, STANDARD), (STANDARD, AGGRESSIVE)):
        assert set(named[lower]) < set(named[upper])
    assert stack_products in passes_of(AGGRESSIVE, EXECUTORS[NONE].execute)
    without = passes_of(AGGRESSIVE)
    assert stack_products not in without  # what it concatenates would be concatenated anew in each run
    assert len(without) < len(LEVELS[AGGRESSIVE])


@pytest.mark.parametrize("level", ["aggressive", 3, None, True])
def test_what_is_no_level_is_refused(level: Any) -> None:
    with pytest.raises(tl.InputError, match="an optimization level is expected") as caught:
        tl.CompilationConfig(level)
    assert "use OptimizationLevel.AGGRESSIVE" in str(caught.value)
    with pytest.raises(tl.InputError, match="an optimization level is expected"):
        tl.CompilationConfig().with_optimization_level(level)
    with pytest.raises(tl.InputError, match="fusion_enabled must be True or False, got 'no'"):
        tl.CompilationConfig().with_fusion_enabled("no")  # type: ignore[arg-type]


def test_hooks_hear_of_each_pass() -> None:
    names: list[str] = []

    class Spans(tl.Hook):
        def on_span(self, name: str, *rest: Any) -> None:
            names.append(name)

    b = GraphBuilder(intern=False)
    optimize(b.build(y=b.input("x", (3,)) * 1), passes_of(STANDARD), [Spans()])
    assert names == ["pass drop_dead", "pass merge_equal", "pass simplify"]


# locations


def test_locations_survive() -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", (3,), "float32")
    made = b.build(y=b.exp(x * 1) + b.exp(x))
    nodes = [
        Node(n.op, n.args, (SourceLocation(line=i + 1, column=1, file="net.tl"),)) for i, n in enumerate(made.nodes)
    ]
    graph = EinsumGraph(nodes, made.outputs)
    done = optimize(graph, passes_of(STANDARD)).graph
    assert [n.op.name for n in done.nodes] == ["input", "exp", "add"]
    exps = [i + 1 for i, n in enumerate(nodes) if n.op.name == "exp"]
    assert [place.line for place in done.nodes[1].locations] == exps  # of both that became one
    assert [place.line for place in done.nodes[2].locations] == [len(nodes)]


# rounding: BLAS and NumPy's sums round by how operands lie in memory, so passes must not change that without need

ROUNDING: dict[str, Callable[[GraphBuilder, Any, Any], Any]] = {
    "a constant that is transposed": lambda b, x, c: x[:1] @ b.constant(c).T,
    "a constant that is computed and transposed": lambda b, x, c: x[:1] @ b.negative(b.constant(c).T),
    "a product that is transposed": lambda b, x, c: (x @ b.constant(c).T).T,
    "operands that are transposed": lambda b, x, c: b.einsum("ij,ik->jk", x.T, b.constant(c).T),
    "three operands": lambda b, x, c: b.einsum(
        "ija,jbk,abm->ikm",
        b.transpose(b.reshape(x, (8, 8, 33)), (1, 2, 0)),
        c.reshape(33, 11, 3),
        c[:24].reshape(8, 11, 9),
    ),
    "a sum that is an output or not": lambda b, x, c: b.sum(b.transpose(b.reshape(x, (8, 8, 33)), (2, 0, 1)), 2) * 1,
}


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_and_products_round_alike(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    X, c = rng.standard_normal((64, 33)).astype(dtype), rng.standard_normal((33, 33)).astype(dtype)
    b = GraphBuilder(intern=False)
    graph = b.build(y=ROUNDING[name](b, b.input("x", X.shape, dtype), c))
    wanted = bits(EXECUTORS[NONE].execute(graph, {"x": X}))
    assert bits(EXECUTORS[STANDARD].execute(graph, {"x": X})) == wanted


BACKENDS_OWN = {
    p.__name__ for p in tl.Executor().backend.passes
}  # such as the order of contractions, found for each size


class _PassCounts(Hook):
    """How often each pass ran, of those that do not belong to the backend."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def on_span(self, name: str, start: int, end: int, thread: int) -> None:
        if name.startswith("pass ") and name.removeprefix("pass ") not in BACKENDS_OWN:
            self.counts[name.removeprefix("pass ")] += 1


def _counted(graph: EinsumGraph, level: OptimizationLevel, passes: Any = ()) -> tuple[tl.CompiledGraph, Counter[str]]:
    hook = _PassCounts()
    executor = tl.Executor(context=tl.ExecutionContext([hook]), passes=passes)
    return executor.compile_graph(graph, tl.CompilationConfig(level)), hook.counts


@pytest.mark.parametrize("level", [STANDARD, AGGRESSIVE])
@pytest.mark.parametrize("dtype", ["float64", None])
def test_a_compiled_graph_goes_through_its_passes_once_for_all_sizes(
    level: OptimizationLevel, dtype: str | None, tmp_path: Path
) -> None:
    b = GraphBuilder(intern=False)
    x, w = b.input("x", ("n", 4), dtype), b.input("w", (4, 4), dtype)
    graph = b.build(y=b.sum(b.relu(b.transpose(b.transpose(x)) @ w) @ w, axis=1), z=b.exp(x) + b.exp(x))
    compiled, counts = _counted(graph, level)
    once = {getattr(p, "func", p).__name__: 1 for p in passes_of(level, lambda _: [])}
    if level is AGGRESSIVE:
        once["fold_constants"] = 2
    assert counts == once
    weights = np.arange(16.0).reshape(4, 4) - 7

    def check(graph: tl.CompiledGraph, sizes: range) -> None:
        for n in sizes:
            rows = np.arange(4.0 * n).reshape(n, 4)
            out = graph({"x": rows, "w": weights})
            np.testing.assert_allclose(out["y"], (np.maximum(rows @ weights, 0) @ weights).sum(1))
            np.testing.assert_allclose(out["z"], 2 * np.exp(rows))

    check(compiled, range(6))
    # dtypes that were not declared are known with the first inputs: for them the passes run once more
    assert counts == once if dtype else {name: 2 * n for name, n in once.items()}
    compiled.save(tmp_path / "saved")
    hook = _PassCounts()
    loaded = tl.CompiledGraph.load(tmp_path / "saved", tl.Executor(context=tl.ExecutionContext([hook])))
    check(loaded, range(6))
    assert not hook.counts  # those sizes were saved
    check(loaded, range(6, 9))
    assert hook.counts == ({} if dtype else once)


def test_passes_of_the_user_run_once_for_a_compiled_graph() -> None:
    def doubled(graph: EinsumGraph) -> EinsumGraph:
        b = GraphBuilder()
        x = b.input("x", ("n",))
        return b.build(y=b.exp(x) * 2.0) if len(graph) == 2 else b.build(y=b.exp(x) * 2.0 * 2.0)

    b = GraphBuilder()
    compiled, counts = _counted(b.build(y=b.exp(b.input("x", ("n",)))), STANDARD, [doubled])
    for n in (1, 2, 3):
        np.testing.assert_allclose(compiled({"x": np.zeros(n)})["y"], 2.0)
    assert counts["doubled"] == 1


@pytest.mark.parametrize("level", [STANDARD, AGGRESSIVE])
def test_passes_run_again_only_where_a_size_decides_what_they_do(level: OptimizationLevel) -> None:
    """Where no pass is said to wait for sizes, running all of them on the graph with sizes changes nothing."""
    waiting = 0
    for seed in range(250):
        case = graph_case(random.Random(seed).randrange)
        typed = with_dtypes(case.graph, [str(case.inputs[n].dtype) for n in case.graph.inputs])
        passes = passes_of(level, differentiable=False)
        done = optimize(typed, passes).graph
        if sized_passes(done, passes):
            waiting += 1
            continue
        try:
            concrete = specialize(done, {n: tl.TensorType.of(v) for n, v in case.inputs.items()})
        except tl.TensorLogicError:  # the sizes do not fit each other
            continue
        again = optimize(concrete, passes).graph
        assert again == concrete, f"seed {seed}:\n{concrete}\nbecame\n{again}"
    assert 0 < waiting < 125


def test_a_sum_of_nothing_is_not_merged_away_before_sizes_are_known() -> None:
    b = GraphBuilder()
    a, c, d = b.input("a", (2, "n"), "float64"), b.input("c", ("n", 3), "float64"), b.input("d", (3, 2), "float64")
    graph = b.build(y=(a @ c) @ d)
    compiled, counts = _counted(graph, AGGRESSIVE)
    for n in (0, 2):  # the product of a sum of nothing with infinity is NaN
        inputs = {"a": np.ones((2, n)), "c": np.ones((n, 3)), "d": np.full((3, 2), np.inf)}
        np.testing.assert_array_equal(compiled(inputs)["y"], tl.Executor().execute(graph, inputs)["y"])
    assert counts["merge_einsums"] == 3  # at first, and for each size: one is merged, the other is not
