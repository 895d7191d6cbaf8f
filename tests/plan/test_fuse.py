"""Fusions: what is found and named, that groups can run as wholes, and why others cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.plan.fuse import find_groups, listed, show_fusions, validate
from tensorlogic.plan.row_groups import frame_of

T = tl.FusionType


def found(graph: tl.EinsumGraph, **options: Any) -> dict[str, tl.Fusion]:
    groups = find_groups(graph, **options)
    for f in groups:
        assert validate(graph, f) == [], f
    return {f.pattern: f for f in groups}


def b_and_x(dtype: str | None = "float32") -> tuple[tl.GraphBuilder, tl.Tensor]:
    b = tl.GraphBuilder()
    return b, b.input("x", ("n", 8), dtype)


@pytest.mark.parametrize(
    ("make", "pattern", "kind", "frame", "row"),
    [
        (lambda b, x: b.softmax(x), "softmax", T.REDUCTION, 1, (8,)),
        (lambda b, x: b.log_softmax(x), "log softmax", T.REDUCTION, 1, (8,)),
        (lambda b, x: b.layer_norm(x, b.input("s", (8,)), b.input("c", (8,))), "layer norm", T.REDUCTION, 1, (8,)),
        (lambda b, x: b.rms_norm(x), "rms norm", T.REDUCTION, 1, (8,)),
        (lambda b, x: b.gelu(x), "gelu", T.ELEMENT_WISE, 2, ()),
        (lambda b, x: b.gelu(x, approximate=True), "gelu", T.ELEMENT_WISE, 2, ()),
        (lambda b, x: b.silu(x), "silu", T.ELEMENT_WISE, 2, ()),
        (lambda b, x: b.sum(b.square(x)), "map then reduce", T.REDUCTION, 0, ("n", 8)),
        (lambda b, x: x - b.mean(x, -1, keepdims=True), "reduce then map", T.REDUCTION, 1, (8,)),
        (lambda b, x: b.exp(b.sin(b.cast(x, "float64"))), "element-wise chain", T.ELEMENT_WISE, 2, ()),
    ],
)
def test_row_patterns(make, pattern, kind, frame, row):
    b, x = b_and_x()
    graph = b.build(y=make(b, x))
    named = found(graph)
    assert list(named) == [pattern]
    f = named[pattern]
    assert (f.fusion_type, f.frame, f.row) == (kind, frame, row)
    assert f.results == (graph.outputs[0][1],)


def test_batch_norm_leaves_out_what_has_another_frame():
    b, x = b_and_x()
    m, v, s, c = (b.input(n, (8,), "float32") for n in "mvsc")
    graph = b.build(y=b.relu(b.batch_norm(x, m, v, s, c)))
    named = found(graph)
    assert set(named) == {"batch norm + relu", "element-wise chain"}
    assert len(named["batch norm + relu"].nodes) == 5
    assert named["element-wise chain"].results[0] in named["batch norm + relu"].operands


def test_products():
    b, x = b_and_x()
    w, v, c = b.input("w", (8, 8), "float32"), b.input("v", (8, 8), "float32"), b.input("c", (8,), "float32")
    assert "matmul + bias + relu" in found(b.build(y=b.relu(b.linear(x, w, c))))
    assert "matmul + bias" in found(b.build(y=b.linear(x, w, c)))
    assert "matmul + add" in found(b.build(y=x + x @ w))  # a residual is no bias
    chain = found(b.build(y=(x @ w) @ v))["einsum chain"]
    assert (chain.fusion_type, chain.bytes_saved) == (T.EINSUM, 0)  # merged it is split into pairs again
    assert found(b.build(p=x @ w, q=x @ v))["sibling products"].bytes_saved == 64 * 8 * 4
    assert found(b.build(p=x @ w, q=x @ v), einsums=False) == {}
    # an output must be there, so nothing flows past it
    product = x @ w
    assert found(b.build(p=product, y=b.relu(product))) == {}


def test_weights_that_depend_on_a_sibling_are_no_siblings():
    b = tl.GraphBuilder()
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    assert "sibling products" not in found(b.build(y=x @ (x @ w), z=x @ w))


@pytest.mark.parametrize("masked", [False, True])
def test_attention(masked):
    b = tl.GraphBuilder()
    q, k, v = (b.input(n, ("h", "t", 4), "float32") for n in "qkv")
    graph = b.build(y=b.attention(q, k, v, b.input("mask", ("t", "t"), "bool") if masked else None))
    named = found(graph)
    assert set(named) == {"attention", "softmax"}
    assert set(named["softmax"].nodes) < set(named["attention"].nodes)
    assert sum(graph.nodes[i].op.name == "einsum" for i in named["attention"].nodes) == 2


def test_dead_nodes_take_no_part():
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (4, 4))
    y = b.exp(x)
    b.sin(b.cos(y))
    assert find_groups(b.build(y=y)) == []


def test_what_leaves_and_comes_back_is_not_one_group():
    b = tl.GraphBuilder()
    x, w = b.input("x", (4, 4)), b.input("w", (4, 4))
    y = b.exp(b.sin(x))
    graph = b.build(y=b.tanh(y + y @ w))
    rows = [f.nodes for f in find_groups(graph, einsums=False)]
    assert rows == [(2, 3), (5, 6)]
    wrong = tl.Fusion(T.ELEMENT_WISE, (2, 3, 5, 6), "by hand", (0, 4), (3, 6), 0, 2)
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
    """Assert that all row-wise groups together can run as wholes: the graph of groups has no cycle."""
    groups = find_groups(graph, einsums=False)
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
@settings(deadline=None, max_examples=150)
def test_any_graph(graph):
    assert_runs(graph)
    for f in find_groups(graph):
        assert validate(graph, f) == []
        assert f.bytes_saved >= 0
        if f.frame is None:
            continue
        lead = {tuple(graph.type_of(n).shape or ())[: f.frame] for n in f.nodes if graph.nodes[n].op.name != "einsum"}
        assert len(lead) == 1
        for n in f.nodes:
            tail = tuple(graph.type_of(n).shape or ())[f.frame :]
            assert graph.nodes[n].op.name == "einsum" or tail == f.row or all(d == 1 for d in tail)


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
    assert find_groups(graph) == []
    wrong = tl.Fusion(T.ELEMENT_WISE, (2, 3), "by hand", (0, 1), (3,), 0, 1, (4,))
    assert validate(graph, wrong) == ["%3 broadcasts a member along the frame"]


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [("float16", "there is no kernel for float16"), ("bfloat16", "there is no kernel for bfloat16")],
)
def test_dtypes_without_kernels(dtype, reason):
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.sin(b.input("x", (4,), dtype))))
    assert find_groups(graph) == []
    [wrong, *_] = validate(graph, tl.Fusion(T.ELEMENT_WISE, (1, 2), "by hand", (0,), (2,), 0, 1))
    assert wrong == f"%1 cannot be a member: {reason}"


def test_wrong_records_are_told_apart():
    b, x = b_and_x()
    graph = b.build(y=b.exp(b.sin(x)))
    [right] = find_groups(graph)
    assert validate(graph, right._replace(nodes=(2, 1))) == [
        "its nodes must be several, each once, in the order of the graph"
    ]
    assert validate(graph, right._replace(nodes=(1, 9))) == ["the graph has no node %9"]
    assert validate(graph, right._replace(nodes=())) == ["it has no nodes"]
    assert validate(graph, right._replace(frame=1)) == ["its frame is 2 and its row [], not 1 and []"]
    assert validate(graph, right._replace(operands=(), results=(1,))) == [
        "its operands are %0, not none", "its results are %2, not %1",
    ]  # fmt: skip
    assert validate(graph, right._replace(fusion_type=T.EINSUM)) == ["it has no einsum"]


def test_algebras_that_do_not_distribute_are_not_merged():
    b = tl.GraphBuilder()
    x, y, z = (b.input(n, (4, 4), "float32") for n in "xyz")
    inner = b.einsum("ij,jk->ik", x, y, algebra="noisy_or")
    assert find_groups(b.build(y=b.einsum("ij,jk->ik", inner, z, algebra="noisy_or"))) == []


def test_nothing_in_it_and_unknown_ranks():
    b = tl.GraphBuilder()
    empty = b.build(y=b.exp(b.sin(b.input("x", (0, 4), "float32"))))
    assert find_groups(empty) == []
    open_rank = b.build(z=b.exp(b.sin(b.input("größe"))))
    assert find_groups(open_rank) == []
    [f] = find_groups(open_rank, {"größe": np.ones((2, 3), "f4")})
    assert (f.frame, f.bytes_saved) == (2, 48)


def test_groups_are_bounded():
    b, x = b_and_x()
    for _ in range(20):
        x = b.sin(x)
    graph = b.build(y=x)
    assert [len(f.nodes) for f in find_groups(graph, most=8)] == [8, 8, 4]
    assert math.isclose(sum(f.bytes_saved for f in find_groups(graph)), 19 * 2 * 64 * 8 * 4)


def test_print():
    b, x = b_and_x()
    w = b.input("w", (8, 8), "float32")
    fusions = find_groups(b.build(y=b.softmax(x @ w)), sizes={"n": 2})
    assert show_fusions(fusions).splitlines() == [
        "pattern           type       nodes              saves",
        "matmul + softmax  einsum     %2 %3 %4 %5 %6 %7  544 B",
        "softmax           reduction  %3 %4 %5 %6 %7     416 B",
    ]
    assert show_fusions(fusions, 1).endswith("... 1 more")
    assert listed(range(12)) == "%0 %1 %2 %3 %4 %5 %6 %7 ..."


def test_wrong_arguments():
    with pytest.raises(tl.InputError, match="EinsumGraph is expected"):
        find_groups("graph")  # type: ignore[arg-type]
