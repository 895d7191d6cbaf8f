"""Fusions: what is reported is what plans and passes do; names, savings, and why others are not fused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node
from tensorlogic.passes.for_numpy import order_contractions
from tensorlogic.passes.merge import merge_einsums
from tensorlogic.plan.build import ExecutionPlan, Step, lay_out
from tensorlogic.plan.fusion_planner import bytes_moved, follow, listed, native_groups, show_fusions
from tensorlogic.plan.row_groups import frame_of

T = tl.FusionType


find = tl.FusionPlanner().find_fusion_opportunities
validate = tl.FusionPlanner().validate
NEVER = "no step and no pass makes them one: nothing runs {} together with other nodes"


def found(graph: tl.EinsumGraph, **options: Any) -> dict[str, tl.Fusion]:
    groups = find(graph, **options)
    for f in groups:
        assert validate(graph, f) == [], f
    return {f.pattern: f for f in groups}


def native(graph: tl.EinsumGraph) -> ExecutionPlan:
    """The plan of native steps, in the order of the graph."""
    return lay_out(order_contractions(graph), in_place=True, groups=native_groups)


def b_and_x(dtype: str | None = "float32") -> tuple[tl.GraphBuilder, tl.Tensor]:
    b = tl.GraphBuilder()
    return b, b.input("x", ("n", 8), dtype)


@pytest.mark.parametrize(
    ("make", "pattern", "kind"),
    [
        (lambda b, x: b.softmax(x), "softmax", T.REDUCTION),
        (lambda b, x: b.log_softmax(x), "log softmax", T.REDUCTION),
        (lambda b, x: b.layer_norm(x, b.input("s", (8,)), b.input("c", (8,))), "layer norm", T.REDUCTION),
        (lambda b, x: b.rms_norm(x), "rms norm", T.REDUCTION),
        (lambda b, x: b.gelu(x), "gelu", T.ELEMENT_WISE),
        (lambda b, x: b.gelu(x, approximate=True), "gelu", T.ELEMENT_WISE),
        (lambda b, x: b.silu(x), "silu", T.ELEMENT_WISE),
        (lambda b, x: b.sum(b.square(x)), "map then reduce", T.REDUCTION),
        (lambda b, x: x - b.mean(x, -1, keepdims=True), "reduce then map", T.REDUCTION),
        (lambda b, x: b.exp(b.sin(b.cast(x, "float64"))), "element-wise chain", T.ELEMENT_WISE),
    ],
)
def test_row_patterns(make, pattern, kind):
    b, x = b_and_x()
    graph = b.build(y=make(b, x))
    named = found(graph)
    assert list(named) == [pattern]
    f = named[pattern]
    assert (f.fusion_type, f.kind) == (kind, "rows")
    assert f.results == (graph.outputs[0][1],)


def test_batch_norm_leaves_out_what_has_another_frame():
    b, x = b_and_x()
    m, v, s, c = (b.input(n, (8,), "float32") for n in "mvsc")
    graph = b.build(y=b.relu(b.batch_norm(x, m, v, s, c)))
    named = found(graph)
    assert set(named) == {"batch norm + relu", "element-wise chain"}
    assert len(named["batch norm + relu"].nodes) == 5
    assert named["element-wise chain"].results[0] in named["batch norm + relu"].operands


def chain(count: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", (8, 8), "float32")
    for n in range(count):
        x = x @ b.input(f"w{n}", (8, 8), "float32")
    return b.build(y=x)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 12])
def test_chains_are_those_that_the_pass_merges(count):
    graph = chain(count)
    merged = [len(n.args) for n in merge_einsums(graph).nodes if n.op.name == "einsum" and len(n.args) > 2]
    chains = [f for f in find(graph) if f.pattern == "einsum chain"]
    assert [len(f.operands) for f in chains] == merged
    assert [(f.fusion_type, f.kind) for f in chains] == [(T.EINSUM, "merged")] * len(merged)
    if count == 8:
        assert merged == [6, 4]  # a chain of eight is not one
        assert [len(f.nodes) for f in chains] == [5, 3]


def test_what_a_chain_saves_is_what_its_steps_move_less():
    b = tl.GraphBuilder()
    a, c, d = (b.input(n, (50, size), "float32") for n, size in (("a", 50), ("c", 50), ("d", 1)))
    graph = b.build(y=(a @ c) @ d)
    [f] = find(graph)
    before, after = (
        tl.Executor(optimization_level=level).plan(graph)
        for level in (tl.OptimizationLevel.STANDARD, tl.OptimizationLevel.AGGRESSIVE)
    )
    assert f.bytes_saved == sum(map(bytes_moved, before.steps)) - sum(map(bytes_moved, after.steps)) > 0
    assert find(chain(2))[0].bytes_saved == 0  # merged it is split into the same pairs again


def test_einsums_take_in_sums_and_transposes():
    b = tl.GraphBuilder()
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    graph = b.build(y=b.sum(x @ w, axis=0))
    [f] = find(graph)
    assert (f.nodes, f.fusion_type, f.results) == ((2, 3), T.EINSUM, (3,))
    product = x @ w
    assert find(b.build(p=product, y=b.relu(product))) == []  # an output must be there, so nothing flows past it


def test_products_of_one_operand_with_constants_are_stacked():
    b, x = b_and_x()
    u, v = (b.constant(np.full((8, 8), n, "f4")) for n in (1, 2))
    graph = b.build(p=x @ u, q=x @ v)
    f = found(graph)["sibling products"]
    assert f.nodes == (3, 4)
    # the operand is read once, and not twice
    assert f.bytes_saved == 64 * 8 * 4
    plan = tl.Executor(optimization_level=tl.OptimizationLevel.AGGRESSIVE).plan(graph, sizes={"n": 4})
    assert [s.op.name for s in plan.steps] == ["einsum", "slice", "slice"]
    w, z = b.input("w", (8, 8), "float32"), b.input("z", (8, 8), "float32")
    assert find(b.build(p=x @ w, q=x @ z)) == []  # they would have to be put together in every run


def test_weights_that_depend_on_a_sibling_are_no_siblings():
    b = tl.GraphBuilder()
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    assert "sibling products" not in found(b.build(y=x @ (x @ w), z=x @ w))


@pytest.mark.parametrize("masked", [False, True])
def test_attention(masked):
    b = tl.GraphBuilder()
    q, k, v = (b.input(n, (2, 16, 4), "float32") for n in "qkv")
    graph = b.build(y=b.attention(q, k, v, b.input("mask", (16, 16), "bool") if masked else None))
    assert [(f.pattern, f.fusion_type) for f in find(graph)] == [("softmax", T.REDUCTION)]


def test_packed_bits():
    b = tl.GraphBuilder()
    r = b.input("r", (300, 300), "bool")
    graph = b.build(y=b.einsum("ij,jk->ik", r, b.einsum("ij,jk->ik", r, r, algebra="boolean"), algebra="boolean") & ~r)
    fusions = {f.kind: f for f in find(graph)}
    assert fusions["bits"].nodes == (1, 2, 3, 4)
    assert fusions["merged"].nodes == (1, 2)
    assert [[p.node for p in s.parts] for s in native(graph).steps] == [[1, 2, 3, 4]]


def mixed() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w, c = (b.input(n, s, "float32") for n, s in (("x", (3000, 300)), ("w", (300, 300)), ("c", (300,))))
    h = b.gelu(b.linear(x, w, c))
    return b.build(y=b.softmax(h @ w), z=b.sum(b.square(h), -1))


def test_fused_steps_are_those_of_the_plan():
    graph = mixed()
    plan = native(graph)
    steps = [tuple(sorted(p.node for p in s.parts)) for s in plan.steps if len(s.parts) > 1]
    assert len(steps) == 2
    assert find(plan) == [f for f in find(graph) if f.kind != "merged"]
    assert sorted(f.nodes for f in find(plan)) == sorted(steps)
    assert find(tl.Executor().plan(graph)) == []  # NumPy runs one operation after another


@pytest.mark.parametrize("level", list(tl.OptimizationLevel))
def test_of_the_plan_of_an_executor_its_own_fused_steps_are_told(level):
    def nodes(step: Step) -> list[int]:
        return [n for part in step.parts for n in nodes(part)] or [step.node]

    plan = tl.Executor(native=True, optimization_level=level).plan(mixed())
    assert [f.nodes for f in find(plan)] == [tuple(sorted(nodes(s))) for s in plan.steps if len(nodes(s)) > 1]
    # and what is said of the graph that its passes make is what the native steps of that graph do
    assert find(native(plan.graph)) == [f for f in find(plan.graph) if f.kind != "merged"]


def test_what_a_step_saves_is_what_its_parts_move_more():
    plan = native(mixed())
    fused = [s for s in plan.steps if len(s.parts) > 1]
    saved = [sum(map(bytes_moved, s.parts)) - bytes_moved(s) for s in fused]
    assert sorted(f.bytes_saved for f in find(plan)) == sorted(saved)
    assert min(saved) > 0


def test_equal_einsums_are_not_taken_for_merged_ones():
    b = tl.GraphBuilder(intern=False)
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    graph = b.build(y=(x @ w) @ b.exp(x @ w), z=b.sin(x) + b.sin(x))
    assert [f for f in find(graph) if f.kind == "merged"] == []


def test_long_graphs_take_no_square_time():
    nodes = [Node(ops.Input("x", (4, 4), "float32"))]
    for n in range(0, 6_000, 2):
        nodes += [Node(ops.Einsum("ij,jk->ik"), (n, 0)), Node(ops.Elementwise("sin" if n % 4 else "exp"), (n + 1,))]
    assert len(find(tl.EinsumGraph(nodes, [("y", len(nodes) - 1)]))) == 0
    assert len(find(chain_of_functions(6_000))) == 47


def chain_of_functions(count: int) -> tl.EinsumGraph:
    nodes = [Node(ops.Input("x", (4,), "float32"))]
    nodes += [Node(ops.Elementwise("exp" if n % 2 else "sin"), (n,)) for n in range(count)]
    return tl.EinsumGraph(nodes, [("y", count)])


def test_nodes_are_followed_through_passes():
    graph = chain(3)
    _, origins = follow(graph, [merge_einsums, order_contractions])
    assert [o for o in origins if len(o) > 1] == [(6, 4, 2)] * 3  # one einsum, and then three pairs
    assert follow(graph, ())[1] == tuple((i,) for i in range(len(graph)))


def test_dead_nodes_take_no_part():
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (4, 4))
    y = b.exp(x)
    b.sin(b.cos(y))
    assert find(b.build(y=y)) == []


def test_what_leaves_and_comes_back_is_not_one_group():
    b = tl.GraphBuilder()
    x, w = b.input("x", (4, 4)), b.input("w", (4, 4))
    y = b.exp(b.sin(x))
    graph = b.build(y=b.tanh(y + y @ w))
    assert [f.nodes for f in find(graph)] == [(2, 3), (5, 6)]
    wrong = tl.Fusion(T.ELEMENT_WISE, (2, 3, 5, 6), "by hand", (0, 4), (3, 6), 0)
    assert "depends on it" in validate(graph, wrong)[0]


def test_groups_do_not_wait_for_each_other():
    # exp feeds the other side's product and the other way round: each side alone is convex, both together would wait
    b = tl.GraphBuilder()
    x, z, w = b.input("x", (4, 4)), b.input("z", (3, 3)), b.input("w", (4, 3))
    a1, b1 = b.exp(x), b.exp(z)
    a2, b2 = b.sin(a1), b.sin(b1)
    a3 = a2 + b.einsum("ij,kj,lk->il", w, w, a1) * 1.0
    b3 = b2 + b.einsum("ji,jk->ik", w, a1 @ w)
    a4 = a3 + b.einsum("ij,jk,lk->il", w, b1, w)
    assert_runs(b.build(y=a4, z=b3))


def assert_runs(graph: tl.EinsumGraph) -> None:
    """Assert that all groups together can run as wholes: the graph of groups has no cycle."""
    groups = [f for f in find(graph) if f.kind != "merged"]
    owner = {n: f.nodes[0] for f in groups for n in f.nodes}
    assert sum(len(f.nodes) for f in groups) == len(owner)  # nothing stands in two groups
    of = [owner.get(i, i) for i in range(len(graph))]
    reads: dict[int, set[int]] = {o: set() for o in of}
    for i, node in enumerate(graph.nodes):
        reads[of[i]] |= {of[a] for a in node.args} - {of[i]}
    while reads:
        ready = {o for o, args in reads.items() if not args & reads.keys()}
        assert ready, "groups wait for each other"
        reads = {o: args for o, args in reads.items() if o not in ready}


@st.composite
def graphs(draw: Any) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    made = [b.input("x", (3, 4), "float32"), b.input("y", (3, 4), "float32"), b.input("v", (4,), "float32")]
    w = b.input("w", (4, 4), "float32")
    for _ in range(draw(st.integers(1, 25))):
        p, q = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        kind = draw(st.sampled_from(["add", "exp", "matmul", "rows", "total", "keep", "columns", "cast"]))
        match kind:
            case "add" if len({b.shape_of(p), b.shape_of(q)} - {(3, 4), (4,), (), (3, 1)}) == 0:
                made.append(p + q)
            case "exp":
                made.append(b.tanh(p))
            case "matmul" if b.shape_of(p) == (3, 4):
                made.append(p @ w)
            case "rows" if b.shape_of(p) == (3, 4):
                made.append(b.sum(p, -1))
            case "keep" if b.shape_of(p) == (3, 4):
                made.append(b.max(p, -1, keepdims=True))
            case "columns" if b.shape_of(p) == (3, 4):
                made.append(b.sum(p, 0))
            case "total":
                made.append(b.sum(p))
            case "cast":
                made.append(b.cast(p, "float64"))
    return b.build({f"o{n}": t for n, t in enumerate(draw(st.lists(st.sampled_from(made), min_size=1, max_size=3)))})


@given(graphs())
@settings(deadline=None, max_examples=100)
def test_any_graph(graph):
    assert_runs(graph)
    plan = native(graph)
    assert find(plan) == [f for f in find(graph) if f.kind != "merged"]
    for f in find(graph):
        assert validate(graph, f) == []
        assert f.bytes_saved >= 0 or f.kind == "merged"


def test_frames():
    assert frame_of({("n", 8), ("n",), ("n", 1)}, 1) == (1, (8,))
    assert frame_of({(3, 4), (3, 1)}, None) == (1, (4,))
    assert frame_of({(3, 4), (1, 4)}, None) is None
    assert frame_of({(2, 3, 4), (2, 3)}, 1) is None  # reduced over a part of the row only
    assert frame_of({()}, None) == (0, ())


def test_broadcasting_along_the_frame_is_refused():
    b = tl.GraphBuilder()
    x, v = b.input("x", (4, 4), "float32"), b.input("v", (4,), "float32")
    graph = b.build(y=x * b.exp(v))  # v runs along the last axis, the frame is the first
    assert find(graph) == []
    wrong = tl.Fusion(T.ELEMENT_WISE, (2, 3), "by hand", (0, 1), (3,), 0)
    assert validate(graph, wrong) == [NEVER.format("%2 %3")]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes_without_kernels(dtype):
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.sin(b.input("x", (4,), dtype))))
    assert find(graph) == []
    wrong = validate(graph, tl.Fusion(T.ELEMENT_WISE, (1, 2), "by hand", (0,), (2,), 0))
    assert wrong == [NEVER.format("%1 %2")]


def test_wrong_records_are_told_apart():
    b, x = b_and_x()
    graph = b.build(y=b.exp(b.sin(x)))
    [right] = find(graph)
    assert validate(graph, right._replace(nodes=(2, 1))) == [
        "its nodes must be several, each once, in the order of the graph"
    ]
    assert validate(graph, right._replace(nodes=(1, 9))) == ["the graph has no node %9"]
    assert validate(graph, right._replace(nodes=())) == ["it has no nodes"]
    assert validate(graph, right._replace(operands=(), results=(1,))) == [
        "its operands are %0, not none", "its results are %2, not %1",
    ]  # fmt: skip
    two = b.build(y=b.sin(b.exp(x)), z=b.cos(b.tanh(b.input("w", (3, 3)))))
    first, second = find(two)
    wrong = first._replace(nodes=(*first.nodes, *second.nodes), operands=(0, 3), results=(2, 5))
    assert validate(two, wrong) == ["no step and no pass makes them one: they run as several steps"]


def test_algebras_that_do_not_distribute_are_not_merged():
    b = tl.GraphBuilder()
    x, y, z = (b.input(n, (4, 4), "float32") for n in "xyz")
    inner = b.einsum("ij,jk->ik", x, y, algebra="noisy_or")
    assert find(b.build(y=b.einsum("ij,jk->ik", inner, z, algebra="noisy_or"))) == []


def test_nothing_in_it_and_unknown_ranks():
    b = tl.GraphBuilder()
    empty = b.build(y=b.exp(b.sin(b.input("x", (0, 4), "float32"))))
    assert find(empty) == []
    open_rank = b.build(z=b.exp(b.sin(b.input("größe"))))
    assert find(open_rank) == []
    [f] = find(open_rank, {"größe": np.ones((2, 3), "f4")})
    assert f.bytes_saved == 48


def test_groups_are_bounded():
    b, x = b_and_x()
    for _ in range(200):
        x = b.sin(x)
    graph = b.build(y=x)
    assert [len(f.nodes) for f in find(graph)] == [128, 72]
    assert math.isclose(sum(f.bytes_saved for f in find(graph)), 198 * 2 * 64 * 8 * 4)


def test_print():
    b, x = b_and_x()
    w = b.input("w", (8, 8), "float32")
    fusions = find(b.build(y=b.softmax(x @ w)), sizes={"n": 2})
    assert show_fusions(fusions).splitlines() == [
        "pattern  type       nodes           saves",
        "softmax  reduction  %3 %4 %5 %6 %7  416 B",
    ]
    assert show_fusions(fusions * 2, 1).endswith("... 1 more")
    assert listed(range(12)) == "%0 %1 %2 %3 %4 %5 %6 %7 ..."


def test_wrong_arguments():
    with pytest.raises(tl.InputError, match="EinsumGraph is expected"):
        find("graph")  # type: ignore[arg-type]
