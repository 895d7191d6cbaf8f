"""The text form: it prints as documented, parses back exactly, and refuses anything else with a position."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorlogic import EinsumGraph, FormatError, GraphBuilder, TensorLogicError
from tensorlogic.ir import ops
from tensorlogic.ir.constants import all_constants
from tensorlogic.ir.elementwise import FUNCTIONS
from tensorlogic.ir.graph import MAX_BODY_DEPTH, OPS, Cond, Fixpoint, Node, Scan
from tensorlogic.ir.ops import constant_op
from tensorlogic.ir.parse import parse_graph
from tensorlogic.ir.text import print_graph
from tensorlogic.ir.types import frozen_copy


def every_op(*, intern: bool = True) -> EinsumGraph:
    """A graph that uses every operation there is."""
    b = GraphBuilder(intern=intern)
    x, w = b.input("x", ("n", 6), "float32"), b.input("w w", (6, 2), "float32")
    edge, any_rank = b.input("edge[ab]", ("n", "n"), "bool"), b.input("free")
    index = b.iota(3)
    outs: dict[str, Any] = {
        "einsum": b.einsum("ni,ij->nj", x, w),
        "vjp": b.contract_vjp("ij->i", "max_product", 0, w, b.max(w, 1), b.max(w, 1)),
        "map": b.where(b.relu(x) > 0.5, x, -0.0),
        "free out": b.exp(any_rank) + float("inf"),
        "sum": b.sum(x, axis=1, keepdims=True),
        "argmax": b.argmax(x, 0),
        "cumsum": b.cumsum(x, 1, reverse=True),
        "sort": b.sort(x, descending=True),
        "argsort": b.argsort(x),
        "topk": b.top_k(x, 2)[1],
        "slice": x[1:, ::2],
        "reshape": b.reshape(x, (-1, 3)),
        "transpose": x.T,
        "broadcast": b.broadcast_to(w, ("k", 6, 2)),
        "window": b.window(x, 0, 3, step=2),
        "overlap_add": b.overlap_add(b.window(x, 0, 3), 0, 9),
        "pad": b.pad(w, [(1, 0), (0, 2)], 1.5),
        "concat": b.concat([x, x], 0),
        "gather": b.gather(x, index),
        "scatter": b.scatter_add(x, index, b.constant(np.ones((3, 6), np.float32))),
        "cast": b.cast(edge, "float16"),
        "transfer": b.apply(ops.Transfer("cpu:1"), x),
        "stop": b.apply(ops.Barrier(), b.stop_gradient(x)),
        "reduced": b.apply(ops.AllReduce("data", 2, 0, "maximum"), b.apply(ops.BroadcastFrom("data", 2, 0, 1), w)),
        "waited": b.apply(ops.Wait("data", 2, 0, "1"), b.apply(ops.StartAllReduce("data", 2, 0, "add", "1"), w, w)),
        "gathered": b.apply(ops.AllGather("data", 2, 0, 0, 6), b.apply(ops.ReduceScatter("model", 2, 1), w)),
        "moved": b.apply(ops.AllToAll("data", 2, 0, 0, 1, 4), w),
        "sent": b.apply(ops.Send("stage", 2, 0, 1, "h"), b.apply(ops.Receive("stage", 2, 1, 0, "h", (2, 3), "int8"))),
        "dequantize": b.dequantize(b.quantize(x, 0.5, 3), 0.5, 3),
        "quantize axis": b.quantize(w, np.ones(2, np.float32), np.zeros(2, np.int8), "uint8", axis=1),
        "unpack": b.unpack(np.array([[129, 7]], "u1"), "int4", 3),
        "small": b.constant(np.array([[1.0, np.nan], [-0.0, -np.inf]], np.float16)),
        "large": b.constant(np.arange(40, dtype=np.int32).reshape(5, 8)),
        "path": b.fixpoint(
            lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or", limit=1000
        ),
        "settled": b.fixpoint(lambda a, c: (a * 0.5, c * 0.5 + b.constant(np.arange(20.0))), 1.0 * b.iota(1), np.ones(20), tolerance=1e-3)[1],
        "scan": b.scan(lambda c, r: (c + r, c * 2.0), b.sum(x, 0), x, reverse=True)[1],
        "count": b.scan(lambda c, _: (c + 1, None), np.int64(0), (), length="n")[0],
        "cond": b.cond(b.sum(x) > 0, lambda: (x, x + 1), lambda: (-x, x))[1],
    }  # fmt: skip
    return b.build(outs)


def test_every_op_is_in_the_graph_that_the_round_trips_use() -> None:
    used = {type(n.op) for n in every_op().nodes}
    assert used == set(OPS.values())


@pytest.mark.parametrize("intern", [True, False])
def test_every_op_round_trips(intern: bool) -> None:
    graph = every_op(intern=intern)
    text = graph.to_text()
    again = EinsumGraph.from_text(text)
    assert again == graph
    assert again.digest == graph.digest
    assert again.to_text() == text
    named = all_constants(graph)
    assert all(np.array_equal(named[d], a, equal_nan=a.dtype.kind == "f") for d, a in all_constants(again).items())
    assert EinsumGraph.from_text(str(graph), named) == graph


def test_the_words_of_operations_do_not_clash() -> None:
    assert len({*FUNCTIONS, *ops.REDUCTIONS, *OPS}) == len(FUNCTIONS) + len(ops.REDUCTIONS) + len(OPS)


def test_bodies_stand_in_braces() -> None:
    b = GraphBuilder()
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or")
    either = b.cond(b.any(edge), lambda: edge, lambda: ~edge)
    assert str(b.build(path=path, either=either)) == (
        """\
graph {
  edge: bool[n, n] = input()
  %1: bool[n, n] = fixpoint(edge, edge, combine="or", body={
    c0: bool[n, n] = input()
    k0: bool[n, n] = input()
    %2: bool[n, n] = einsum(c0, k0, spec="xy,yz->xz", algebra="boolean")
    return r0=%2
  })
  %2: bool[] = any(edge)
  %3: bool[n, n] = cond(%2, edge, then={
    k0: bool[n, n] = input()
    return r0=k0
  }, otherwise={
    k0: bool[n, n] = input()
    %1: bool[n, n] = logical_not(k0)
    return r0=%1
  })
  return path=%1, either=%3
}"""
    )


@pytest.mark.parametrize(
    "value", [2.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e300, 5e-324, 3, -7, 10**30, True, False]
)
def test_literals_round_trip(value: float) -> None:
    graph = EinsumGraph([Node(ops.Literal.of(value))], [("y", 0)])
    assert f"literal({value!r})" in str(graph)
    assert EinsumGraph.from_text(str(graph)) == graph


NAN_WITH_PAYLOAD = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
ARRAYS = [
    np.array(2.5, np.float32), np.array(True), np.zeros((0, 3), np.int8), np.zeros((2, 0)), np.zeros(0, bool),
    np.array([0.1, np.nan, np.inf, -np.inf, -0.0], np.float16), np.array([0.1, 1e-45, 3.4e38], np.float32),
    np.array([2**64 - 1, 0], np.uint64), np.array([-(2**63)]), np.array([[True], [False]]), NAN_WITH_PAYLOAD,
    np.array([-np.nan]), np.arange(17), np.ones((4, 5), np.float16), np.array([[[1]]], np.uint8), np.zeros((10**6, 0)),
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_constants_round_trip_bit_for_bit(array: np.ndarray[Any, Any]) -> None:
    b = GraphBuilder()
    graph = b.build(y=b.constant(array))
    (again,) = EinsumGraph.from_text(graph.to_text()).constants.values()
    assert again.dtype == array.dtype and again.shape == array.shape and again.tobytes() == array.tobytes()
    assert not again.flags.writeable


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(width=32), max_size=16),
    st.lists(st.floats(width=16), max_size=16),
    st.lists(st.floats(), max_size=16),
)
def test_floats_round_trip_bit_for_bit(singles: list[float], halves: list[float], doubles: list[float]) -> None:
    b = GraphBuilder()
    arrays = [np.array(singles, np.float32), np.array(halves, np.float16), np.array(doubles)]
    graph = b.build({f"y{n}": b.constant(a) for n, a in enumerate(arrays)})
    assert EinsumGraph.from_text(graph.to_text()) == graph


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True), st.text())
def test_any_name_round_trips(names: list[str], output: str) -> None:
    nodes = [Node(ops.Input(name, ("n",), "float32")) for name in names]
    for i in range(len(names)):
        nodes.append(Node(ops.Elementwise("add"), (i, len(nodes) - 1)))
    graph = EinsumGraph(nodes, [(output, len(nodes) - 1)])
    assert EinsumGraph.from_text(str(graph)) == graph
    assert EinsumGraph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    "name", ["%2", "%0", "return", "graph", "nan", "a b", 'q"uo\\te', "new\nline", "größe", "\u2028", "\ud800", "x.1", "", "a=b", "#"]
)  # fmt: skip
def test_odd_names_are_quoted_and_never_clash(name: str) -> None:
    nodes = [Node(ops.Input(name)), Node(ops.Input("x")), Node(ops.Elementwise("add"), (0, 1))]
    graph = EinsumGraph([*nodes, Node(ops.Elementwise("relu"), (2,))], [(name, 3)])
    assert len(str(graph).splitlines()) == 7
    assert EinsumGraph.from_text(str(graph)) == graph


def test_declared_types_of_inputs_are_kept() -> None:
    shapes: list[Any] = [None, (), (3,), ("n", 1), ("n-k+1", "2*n", "n//2"), ("größe",)]
    nodes = [Node(ops.Input(f"x{n}_{d}", s, d)) for n, s in enumerate(shapes) for d in (None, "bfloat16", "uint8")]
    graph = EinsumGraph(nodes, [("y", 0)])
    assert EinsumGraph.from_text(str(graph)) == graph


def test_hand_written_text_may_be_loose() -> None:
    text = 'graph {# a comment\n x:float32[ k + n ]=input() h = relu( x )\n return y = h, "z" = "x" }'
    graph = parse_graph(text)
    assert graph.inputs == {"x": 0} and graph.output_names == ["y", "z"]
    assert graph.nodes[0].op == ops.Input("x", ("k+n",), "float32")
    assert graph.nodes[1].location is not None and str(graph.nodes[1].location) == "<text>:2:29"


def test_a_constant_used_twice_is_written_once() -> None:
    b = GraphBuilder(intern=False)
    data = np.arange(100.0)
    graph = b.build(y=b.constant(data) + b.constant(data))
    assert graph.to_text().count("data=") == 1
    assert EinsumGraph.from_text(graph.to_text()) == graph


def test_a_constant_that_is_only_named_must_be_given() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.constant(np.arange(100.0)))
    (digest,) = graph.constants
    with pytest.raises(FormatError, match=f"names constant @{digest} but does not hold its data"):
        EinsumGraph.from_text(str(graph))
    with pytest.raises(FormatError, match="was changed"):
        EinsumGraph.from_text(str(graph), {digest: np.arange(100.0) + 1})
    with pytest.raises(FormatError, match=r"is float64\[3\], the graph says float64\[100\]"):
        EinsumGraph.from_text(str(graph), {digest: np.arange(3.0)})


def test_what_is_not_a_graph_still_prints() -> None:
    relu = ops.Elementwise("relu")
    broken = EinsumGraph(
        [
            Node(ops.Input("x", ("n",))), Node(ops.Input("x", ("m",))), Node(relu, (99,)), Node(relu, (-1,)),
            Node(ops.Einsum("ij->i"), (0,)), Node(ops.Elementwise("no such"), (0,)), Node(ops.Literal("bool", "maybe")),
            Node(ops.Constant("not a digest", (2,), "float32")), Node(ops.Constant("abc", (2,), "float32")),
            Node(relu, (4,)), Node(ops.Reduce("sum", (np.int64(0),)), (0,)),  # type: ignore[arg-type]
        ],
        [("y", 77), ("y", 0)],
    )  # fmt: skip
    assert str(broken).splitlines()[1:] == [
        "  x: any[n] = input()",
        '  %1: any[m] = input(label="x")',
        "  %2: any = relu(%99)",
        "  %3: any = relu(%-1)",
        '  %4: any = einsum(x, spec="ij->i")',
        '  %5: any = elementwise(x, fn="no such")',
        '  %6: bool[] = literal(kind="bool", text="maybe")',
        '  %7: float32[2] = constant(digest="not a digest", shape=[2], dtype="float32")',
        '  %8: float32[2] = constant(@abc, dtype="float32", shape=[2])',
        "  %9: any = relu(%4)",
        "  %10: any[] = sum(x, axes=[0])",
        "  return y=%77, y=x",
        "}",
    ]


def nested(depth: int) -> EinsumGraph:
    graph = EinsumGraph([Node(ops.Input("x", (2,), "float32"))], [("y", 0)])
    for _ in range(depth):
        nodes = [Node(ops.Input("x", (2,), "float32")), Node(Fixpoint(graph), (0,))]
        graph = EinsumGraph(nodes, [("y", 1)])
    return graph


def test_bodies_nest_as_deep_as_the_builder_allows() -> None:
    deep = nested(MAX_BODY_DEPTH)
    assert EinsumGraph.from_text(deep.to_text()) == deep
    with pytest.raises(FormatError, match="nested 32 deep"):
        nested(MAX_BODY_DEPTH + 1).to_text()
    assert "body={...}" in str(nested(MAX_BODY_DEPTH + 1))
    bomb = "graph { x: any = input() " + "y = fixpoint(x, body={ x: any = input() " * 5000
    with pytest.raises(FormatError, match="nested 32 deep"):
        parse_graph(bomb)


def test_a_wide_graph_of_100_000_nodes_round_trips() -> None:
    nodes = [Node(ops.Input("x", ("n", 3), "float32"))]
    nodes += [Node(ops.Elementwise("add"), (0, i // 2)) for i in range(100_000)]
    graph = EinsumGraph(nodes, [("y", len(nodes) - 1)])
    assert parse_graph(print_graph(graph, inline=True)) == graph


def test_a_chain_50_000_deep_round_trips() -> None:
    nodes = [Node(ops.Input("x", ("n",), "float32")), *(Node(ops.Elementwise("relu"), (i,)) for i in range(50_000))]
    graph = EinsumGraph(nodes, [("y", 50_000)])
    text = graph.to_text()
    assert EinsumGraph.from_text(text) == graph
    assert EinsumGraph.from_text(text.replace("\n", " ")) == graph  # on one line


HEAD = "graph {\n  x: float32[n, 3] = input()\n"
BAD: list[tuple[str, str, int, str]] = [  # text, message, line, hint
    ("", "a graph starts with 'graph {'; the text ends here", 1, ""),
    ("tree {}", "a graph starts with 'graph {'; found 'tree {}'", 1, ""),
    ("graph {", "the text ends here", 1, ""),
    ("graph { return } more", "more text after the graph", 1, ""),
    (HEAD + "  y: any = rellu(x)\n  return y=y\n}", "unknown operation 'rellu'", 3, "did you mean 'relu'?"),
    (HEAD + "  y: any = relu(xx)\n  return y=y\n}", "nothing is named xx here", 3, "did you mean 'x'?"),
    (HEAD + "  y: any = relu(%7)\n  return y=y\n}", "nothing is named %7 here", 3, "known: 'x'"),
    (HEAD + "  y: any = sum(x, axs=[0])\n  return y=y\n}", "no attribute 'axs' here", 3, "did you mean 'axes'?"),
    (HEAD + '  y: any = sum(x, axes="a")\n  return y=y\n}', "sum: Expected `array | null`, got `str`", 3, ""),
    (HEAD + "  y: any = sum(x, axes=[0], axes=[0])\n  return\n}", "'axes' stands here twice", 3, ""),
    (HEAD + "  y: floaty = relu(x)\n  return y=y\n}", "unsupported dtype 'floaty'", 3, "did you mean 'float"),
    (HEAD + "  y: any[n!] = relu(x)\n  return y=y\n}", "cannot read the size 'n!'", 3, "write an integer"),
    (HEAD + "  y: any[-3] = input()\n  return y=y\n}", "a size must be 0 to 2^63 - 1", 3, ""),
    (HEAD + "  x: any = relu(x)\n  return y=x\n}", "x is made twice", 3, "a name of its own"),
    (HEAD + '  "x": any = relu(x)\n  return y=x\n}', "x is made twice", 3, "a name of its own"),
    (HEAD + "  %1: any = input()\n  return y=x\n}", "an input needs a name", 3, ""),
    (HEAD + '  %1: any = input(label="x")\n  return y=x\n}', "'x' is declared twice", 3, ""),
    (HEAD + "  %1: any = input(shape=[3])\n  return y=x\n}", "no attribute 'shape' here", 3, ""),
    (HEAD + "  y: any = literal(abc)\n  return y=y\n}", "expected a value", 3, ""),
    (HEAD + '  y: any = literal("abc")\n  return y=y\n}', "a literal is one number", 3, ""),
    (HEAD + "  y: any = literal(1e999)\n  return y=y\n}", "is too large", 3, "write inf"),
    (HEAD + f"  y: any = literal({'9' * 5000})\n  return y=y\n}}", "too many digits", 3, ""),
    (HEAD + "  y: any = literal()\n  return y=y\n}", "missing required field `kind`", 3, ""),
    (HEAD + "  y: any = transpose(x)\n  return y=y\n}", "missing required field `order`", 3, ""),
    (HEAD + '  y: any = relu(x, fn="exp")\n  return y=y\n}', "no attribute 'fn' here", 3, ""),
    (HEAD + "  y: any = constant([1.0])\n  return y=y\n}", "a constant needs its dtype", 3, ""),
    (HEAD + '  y: any = constant([1.5], dtype="int8")\n  return y=y\n}', "an element that is not one", 3, ""),
    (HEAD + '  y: any = constant([True], dtype="int8")\n  return y=y\n}', "an element that is not one", 3, ""),
    (HEAD + '  y: any = constant([300], dtype="int8")\n  return y=y\n}', "cannot make a constant int8", 3, ""),
    (HEAD + '  y: any = constant([1e39], dtype="float32")\n  return y=y\n}', "too large for float32", 3, ""),
    (HEAD + '  y: any = constant([[1], [1, 2]], dtype="int8")\n  return y=y\n}', "equally long", 3, ""),
    (HEAD + '  y: any = constant([1, [1]], dtype="int8")\n  return y=y\n}', "not one", 3, ""),
    (HEAD + '  y: any = constant([], dtype="int8", shape=[4])\n  return y=y\n}', "does not have 0 elements", 3, ""),
    (HEAD + f'  y: any = constant({"[" * 100}, dtype="int8")\n  return y=y\n}}', "nested 64 deep", 3, ""),
    (HEAD + '  y: any = constant(@ab, dtype="int8", shape=[4], data="!!")\n  return y=y\n}', "not base64", 3, ""),
    (HEAD + '  y: any = constant(@ab, dtype="int8", shape=[4], data="AAA=")\n  return y=y\n}', "has 4 bytes, but 2", 3, ""),
    (HEAD + '  y: any = constant(@ab, dtype="int8", shape=[99999999999, 9999999], data="")\n  return\n}', "has 9", 3, ""),
    (HEAD + '  y: any = constant(@ab, dtype="int8", shape=[1], data="AA==")\n  return y=y\n}', "was changed", 3, ""),
    (HEAD + "  return y=x, y=x\n}", "two outputs are named 'y'", 3, ""),
    (HEAD + "  return %1=x\n}", "an output cannot be named %1", 3, 'write "%1"'),
    (HEAD + "  return y=%9\n}", "nothing is named %9", 3, ""),
    (HEAD + '  return "\\q"=x\n}', "cannot read the string", 3, "JSON"),
    (HEAD + "  return y=x", "expected '}' after 'return'", 3, ""),
    (HEAD + "  y: any = fixpoint(x, body=3)\n  return\n}", "expected '{'", 3, ""),
    (HEAD + "  y: any = relu(x x)\n  return\n}", "expected an operand", 3, ""),
    (HEAD + '  y: any = einsum(x, x, spec="ij,jk->ik")\n  z = relu(y)\n  w = einsum(y, spec="ijk")\n return\n}', "", 5, ""),
    (HEAD + "  y: any = add(x)\n  return y=y\n}", "add takes 2 operand(s), got 1", 3, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "line", "hint"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_bad_text_is_refused_with_its_place(text: str, message: str, line: int, hint: str) -> None:
    with pytest.raises(TensorLogicError) as caught:
        parse_graph(text)
    found = caught.value.diagnostic
    assert message in found.message
    assert found.location is not None and found.location.line == line and found.location.file is None
    assert hint in " ".join(found.suggestions)


def test_an_error_shows_the_line_with_a_caret() -> None:
    with pytest.raises(FormatError) as caught:
        parse_graph(HEAD + "  y: any = relu(yy)\n  return y=y\n}")
    assert str(caught.value).splitlines()[1:4] == ["  at <text>:3:17", "    y: any = relu(yy)", "                  ^"]


def test_text_of_bounded_size() -> None:
    with pytest.raises(FormatError, match="at most 10 B are read"):
        parse_graph("graph { return }", limit=10)


MUTATIONS = st.tuples(st.integers(0, 10**6), st.integers(0, 3), st.text(max_size=3))


def mutated(text: str, changes: list[tuple[int, int, str]]) -> str:
    for at, length, new in changes:
        at %= len(text) + 1
        text = text[:at] + new + text[at + length :]
    return text


TEXT = every_op().to_text()


@settings(deadline=None, max_examples=300)
@given(st.lists(MUTATIONS, min_size=1, max_size=4))
def test_mutated_text_raises_only_our_exceptions(changes: list[tuple[int, int, str]]) -> None:
    try:
        graph = parse_graph(mutated(TEXT, changes))
    except TensorLogicError:
        return
    assert EinsumGraph.from_text(graph.to_text()) == graph


def test_truncated_and_shuffled_text_raises_only_our_exceptions() -> None:
    choose = random.Random(7)
    tokens = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        "=",
        ":",
        '"',
        "\\",
        "%1",
        "x",
        "nan",
        "-",
        "1e9",
        "return",
        "\n",
        "#",
        "@ab",
    ]
    for _ in range(1500):
        at = choose.randrange(len(TEXT))
        text = (
            TEXT[:at] if choose.random() < 0.3 else TEXT[:at] + choose.choice(tokens) + TEXT[at + choose.randrange(9) :]
        )
        try:
            parse_graph(text)
        except TensorLogicError as error:
            str(error)


def test_constants_of_bodies_may_be_supplied() -> None:
    array = frozen_copy(np.arange(30.0))
    op = constant_op(array)
    constants: Mapping[str, Any] = {op.digest: array}
    body = EinsumGraph([Node(ops.Input("c")), Node(op), Node(ops.Elementwise("add"), (0, 1))], [("r", 2)], constants)
    either = Cond(body, body)
    flag, x = Node(ops.Input("flag")), Node(ops.Input("x"))
    scan = Node(Scan(body, 1, 0, "n"), (1,))
    graph = EinsumGraph([flag, x, Node(either, (0, 1)), scan], [("y", 2), ("z", 3)])
    assert EinsumGraph.from_text(str(graph), constants) == graph
    assert graph.to_text().count("data=") == 1
    assert EinsumGraph.from_text(graph.to_text()) == graph


def test_text_keeps_which_inputs_are_scores() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.minimum(b.input("p", (2,)), b.input("a b", (2,)))).with_scores(["p", "a b"])
    text = graph.to_text()
    assert text.count("score=True") == 2
    assert EinsumGraph.from_text(text).scores == {"p", "a b"}
    assert "score" not in str(graph)
    assert EinsumGraph.from_text(str(graph)).scores == set()
    for wrong in ("score=1", 'score="yes"', "scores=True"):
        with pytest.raises(FormatError, match="score"):
            EinsumGraph.from_text(f"graph {{ p: any[2] = input({wrong}) return y=p }}")
