"""Graph files: they round-trip, constants stand beside them, and hostile ones raise only this package's exceptions."""

from __future__ import annotations

import base64
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tensorlogic import EinsumGraph, Executor, FormatError, GraphBuilder, GraphError, ShapeError, TensorLogicError
from tensorlogic.diagnostics import SourceLocation
from tensorlogic.ir import files, ops
from tensorlogic.ir.check import check_structure
from tensorlogic.ir.constants import all_constants
from tensorlogic.ir.graph import MAX_BODY_DEPTH, OPS, Fixpoint, Node
from tensorlogic.ir.ops import constant_digest

DATA = np.arange(24, dtype=np.float32).reshape(4, 6)


def everything() -> EinsumGraph:
    """A graph with every kind of operation that files treat in a way of its own."""
    b = GraphBuilder(intern=False)
    x, edge = b.input("x", ("n", 6), "float32"), b.input("knows[ab]", ("n", "n"), "bool")
    last, steps = b.scan(lambda c, r: (c + r * b.constant(DATA[0]), c), b.sum(x, 0), x)
    return b.build(
        {
            "y": b.einsum("ni,mi->nm", x, b.constant(DATA)) * float("nan"),
            "path": b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or"),
            "settle": b.fixpoint(lambda a: a * 0.5, x, tolerance=math.inf, limit=7),
            "last": last,
            "steps out": steps,
            "empty": b.constant(np.zeros((0, 3), bool)),
            "pair": b.cond(b.any(edge), lambda: (x, -x), lambda: (x * 2, x))[1],
            "free": b.relu(b.input("free")),
        }
    )  # fmt: skip


GRAPH = everything()


def locations(graph: EinsumGraph) -> list[Any]:
    """Return where nodes come from; files go by their own names, because their folders are not saved."""
    return [[p.with_file(Path(p.file or "").name) for p in n.locations] for n in graph.nodes]


def test_json_round_trips_with_locations() -> None:
    again = EinsumGraph.from_json(GRAPH.to_json())
    assert again == GRAPH and again.digest == GRAPH.digest
    assert locations(again) == locations(GRAPH) and GRAPH.nodes[0].locations
    assert again.to_json() == GRAPH.to_json()
    assert {d: a.tobytes() for d, a in all_constants(again).items()} == {
        d: a.tobytes() for d, a in all_constants(GRAPH).items()
    }
    assert EinsumGraph.from_json(GRAPH.to_json().encode()) == GRAPH


def test_the_json_is_documented() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.einsum("ij->i", b.input("x", ("n", 3))) + b.constant(np.float32([1, 2])[:1]))
    raw = json.loads(graph.to_json())
    for node in raw["nodes"]:
        del node["at"]
    digest = constant_digest(np.float32([1]))
    assert raw == {
        "format": "tensorlogic-graph",
        "version": 1,
        "nodes": [
            {"op": {"op": "input", "label": "x", "shape": ["n", 3]}},
            {"op": {"op": "einsum", "spec": "ij->i"}, "args": [0]},
            {"op": {"op": "constant", "digest": digest, "shape": [1], "dtype": "float32"}},
            {"op": {"op": "elementwise", "fn": "add"}, "args": [1, 2]},
        ],
        "outputs": [["y", 3]],
        "constants": {digest: {"dtype": "float32", "shape": [1], "data": "AACAPw=="}},
    }


def test_save_puts_constants_beside_the_json(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    GRAPH.save(path)
    assert sorted(os.listdir(tmp_path)) == ["g.json", "g.safetensors"]
    assert set(load_file(tmp_path / "g.safetensors")) == set(all_constants(GRAPH))
    assert '"data"' not in path.read_text(encoding="utf-8")
    again = EinsumGraph.load(path)
    assert again == GRAPH and locations(again) == locations(GRAPH)
    assert EinsumGraph.load(str(path)) == GRAPH
    EinsumGraph([Node(ops.Input("x"))], [("y", 0)]).save(tmp_path / "plain.json")
    assert not (tmp_path / "plain.safetensors").exists()
    GRAPH.save(tmp_path / "m.v1")
    assert (tmp_path / "m.v1.safetensors").exists() and EinsumGraph.load(tmp_path / "m.v1") == GRAPH


def test_load_reads_the_text_form(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    path.write_text("\n# a note\n" + GRAPH.to_text())
    again = EinsumGraph.load(path)
    assert again == GRAPH
    assert again.nodes[0].location is not None and again.nodes[0].location.file == str(path)
    path.write_text("graph {\n  y = relu(z)\n return y=y }")
    with pytest.raises(FormatError) as caught:
        EinsumGraph.load(path)
    assert str(caught.value.diagnostic.location) == f"{path}:2:12"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.json"
    GRAPH.save(path)
    before = path.read_bytes()

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FormatError, match="disk full"):
        EinsumGraph([Node(ops.Input("x"))], [("y", 0)]).save(path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["g.json", "g.safetensors"]


def test_save_says_what_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot write"):
        GRAPH.save(tmp_path / "no" / "g.json")
    with pytest.raises(FormatError, match="would hold the constants"):
        GRAPH.save(tmp_path / "g.safetensors")
    lost = EinsumGraph([Node(ops.Constant("ab", (1,), "int8"))], [("y", 0)])
    for write in (lost.to_json, lambda: lost.save(tmp_path / "g.json")):
        with pytest.raises(GraphError, match=r"node %0 .constant. has no array"):
            write()


def test_load_says_what_is_wrong_with_files(tmp_path: Path) -> None:
    path, beside = tmp_path / "model.json", tmp_path / "model.safetensors"
    GRAPH.save(path)
    arrays = load_file(beside)
    with pytest.raises(FormatError, match=r"(?s)there is no file .*did you mean 'model.json'"):
        EinsumGraph.load(tmp_path / "modle.json")
    with pytest.raises(FormatError, match="is not a file"):
        EinsumGraph.load(tmp_path)
    with pytest.raises(FormatError, match="can be no name of a file"):
        EinsumGraph.load("a\0b")
    with pytest.raises(FormatError, match="at most 100 B are read"):
        files.load(path, limit=100)
    digest = constant_digest(DATA)
    beside.unlink()
    with pytest.raises(FormatError, match=r"in 'model.safetensors', which is missing"):
        EinsumGraph.load(path)
    for content in (b"", b"abc" * 100, b"\xff" * 8 + b"{}", bytes(8)):
        beside.write_bytes(content)
        with pytest.raises(FormatError, match=r"is not a readable safetensors file|does not hold"):
            EinsumGraph.load(path)
    save_file({k: v for k, v in arrays.items() if k != digest}, beside)
    with pytest.raises(FormatError, match=f"does not hold constant {digest}"):
        EinsumGraph.load(path)
    save_file({**arrays, digest: DATA + 1}, beside)
    with pytest.raises(FormatError, match="was changed"):
        EinsumGraph.load(path)
    save_file({**arrays, digest: DATA[:2].copy()}, beside)
    with pytest.raises(FormatError, match="the graph says float32"):
        EinsumGraph.load(path)
    with pytest.raises(FormatError, match=r"(?s)does not hold their data.*load\(path\)"):
        EinsumGraph.from_json(path.read_text(encoding="utf-8"))
    (tmp_path / "other").write_text("hello")
    with pytest.raises(FormatError, match="is not a graph file"):
        EinsumGraph.load(tmp_path / "other")
    (tmp_path / "other").write_bytes(b"{\xff}")
    with pytest.raises(FormatError, match="not UTF-8"):
        EinsumGraph.load(tmp_path / "other")


def test_digests_do_not_depend_on_how_defaults_were_written() -> None:
    body = EinsumGraph([Node(ops.Input("x"))], [("y", 0)])
    word = "".join(["re", "al"])  # an equal string that is not the same object
    for a, b in [
        (ops.Einsum("i->i"), ops.Einsum("i->i", word)),
        (Fixpoint(body), Fixpoint(body, "replace", -0.0, int("1000000"))),
        (ops.Reduce("sum", (0,), True), ops.Reduce("sum", (0,), 1)),  # type: ignore[arg-type]
    ]:
        graphs = [EinsumGraph([Node(ops.Input("x")), Node(op, (0,))], [("y", 1)]) for op in (a, b)]
        assert graphs[0] == graphs[1] and graphs[0].digest == graphs[1].digest
        assert graphs[0].to_json() == graphs[1].to_json()
    assert GRAPH.digest != body.digest


def test_large_graphs_round_trip() -> None:
    nodes = [Node(ops.Input("x", ("n",), "float32")), *(Node(ops.Elementwise("relu"), (i,)) for i in range(50_000))]
    nodes += [Node(ops.Elementwise("add"), (0, i)) for i in range(50_000)]
    graph = EinsumGraph(nodes, [("y", 50_000), ("z", 100_000)])
    again = EinsumGraph.from_json(graph.to_json())
    assert again == graph and again.digest == graph.digest


def plain(nodes: list[Any] | None = None, outputs: Any = (("y", 0),), **more: Any) -> dict[str, Any]:
    nodes = [{"op": {"op": "input", "label": "x"}}] if nodes is None else nodes
    return {"format": "tensorlogic-graph", "version": 1, "nodes": nodes, "outputs": outputs, **more}


X = {"op": {"op": "input", "label": "x"}}
RELU = {"op": "elementwise", "fn": "relu"}
DIGEST = constant_digest(DATA)
CONSTANT = {"op": {"op": "constant", "digest": DIGEST, "shape": [4, 6], "dtype": "float32"}}


def held(**changes: Any) -> dict[str, Any]:
    data = base64.b64encode(DATA.tobytes()).decode()
    return {DIGEST: {"dtype": "float32", "shape": [4, 6], "data": data, **changes}}


def deep_json(depth: int) -> dict[str, Any]:
    body: dict[str, Any] = {"nodes": [X], "outputs": [["y", 0]]}
    for _ in range(depth):
        body = {"nodes": [X, {"op": {"op": "fixpoint", "body": body}, "args": [0]}], "outputs": [["y", 1]]}
    return body


HOSTILE: list[tuple[Any, str]] = [
    ("", "not JSON"), ("{", "not JSON"), ("[]", "a graph is a JSON object, not list"), ("null", "not NoneType"),
    ("{}", "not a graph"), ('{"format": "x"}', "\"format\" is 'x'"), ("[" * 100_000, "nested too deeply"),
    ('{"a": ' * 100_000, "nested too deeply"), ('{"a": 1, "a": 2}', "the key 'a' twice"), ('{"a": NaN}', "NaN is not"),
    ('{"a": -Infinity}', "-Infinity is not"), ('{"a": 1e999}', "too large"), (f'{{"a": {"9" * 10_000}}}', "64 bits"),
    ('{"a": 9223372036854775808}', "64 bits"), ('{"a": "\x01"}', "not JSON"), (b"\xff\xfe{", "not UTF-8"), (7, "expected text"),
    (plain() | {"version": 2}, "version 2 of the graph format is not known"), (plain() | {"version": True}, "version True"),
    (plain() | {"version": "1"}, "version '1'"), (plain(extra=1), "unknown field `extra`"),
    ({"format": "tensorlogic-graph", "version": 1}, "missing required field"),
    (plain() | {"nodes": 3}, "Expected `array`, got `int`, at $.nodes"), (plain() | {"outputs": 3}, "at $.outputs"),
    (plain([3]), "at $.nodes[0]"), (plain([{"op": 3}]), "at $.nodes[0].op"), (plain([{"op": {}}]), "at $.nodes[0].op"),
    (plain([X, {"op": {"op": "einsom"}}]), "Invalid value 'einsom', at $.nodes[1].op.op"),
    (plain([X, {"op": {"op": "einsum"}}]), "missing required field `spec`, at $.nodes[1].op"),
    (plain([X, {"op": RELU | {"code": "rm -rf"}}]), "unknown field `code`, at $.nodes[1].op"),
    (plain([X, {"op": RELU, "args": ["0"]}]), "Expected `int`, got `str`, at $.nodes[1].args[0]"),
    (plain([X, {"op": RELU, "args": [True]}]), "got `bool`, at $.nodes[1].args[0]"),
    (plain([X, {"op": RELU, "args": [0.5]}]), "at $.nodes[1].args[0]"),
    (plain([X | {"at": [{"line": "3"}]}]), "at $.nodes[0].at[0].line"),
    (plain([X, {"op": RELU, "args": [1]}]), "node %1 (relu) reads itself"),
    (plain([X, {"op": RELU, "args": [2]}, {"op": RELU, "args": [1]}]), "node %1 (relu) reads %2, which comes later"),
    (plain([X, {"op": RELU, "args": [9]}]), "node %1 (relu) reads %9, which does not exist"),
    (plain([X, {"op": RELU, "args": [-1]}]), "reads %-1, which does not exist"),
    (plain([X, {"op": RELU, "args": [0, 0]}]), "relu takes 1 operand(s), got 2"),
    (plain(outputs=[["y", 5]]), "output 'y' is %5, which does not exist"), (plain(outputs=[["y", -1]]), "is %-1"),
    (plain(outputs=[["y", 0], ["y", 0]]), "two outputs are named 'y'"), (plain([X, X]), "has the name 'x', which %0 has too"),
    (plain([{"op": {"op": "input", "label": "x", "shape": ["n!"]}}]), "a size 'n!' that is not in normal form"),
    (plain([{"op": {"op": "input", "label": "x", "shape": ["b + a"]}}]), "a size 'b + a' that is not in normal form"),
    (plain([{"op": {"op": "input", "label": "x", "shape": ["-3"]}}]), "a size '-3' that is not in normal form"),
    (plain([{"op": {"op": "input", "label": "x", "shape": [-3]}}]), "a size must be 0 to 2^63 - 1"),
    (plain([{"op": {"op": "input", "label": "x", "dtype": "object"}}]), "unsupported dtype 'object'"),
    (plain([{"op": {"op": "literal", "kind": "int", "text": "1_0"}}]), "'1_0' is not how a literal int is written"),
    (plain([{"op": {"op": "literal", "kind": "int", "text": "relu"}}]), "'relu' is not how a literal int is written"),
    (plain([{"op": {"op": "literal", "kind": "bool", "text": "maybe"}}]), "not how a literal bool is written"),
    (plain([{"op": {"op": "literal", "kind": "float", "text": "1"}}]), "not how a literal float is written"),
    (plain([{"op": {"op": "literal", "kind": "int", "text": "9" * 5000}}]), "not how a literal int is written"),
    (plain([{"op": {"op": "literal", "kind": "code", "text": "1"}}]), "not how a literal code is written"),
    (plain([X, {"op": {"op": "einsum", "spec": "i->j"}, "args": [0]}]), "which no operand has"),
    (plain([CONSTANT]), "node %0 (constant) has no array"), (plain([CONSTANT], constants={DIGEST: {}}), "at $.constants"),
    (plain([CONSTANT], constants=held(data="!")), "not base64"), (plain([CONSTANT], constants=held(data="")), "has 96 bytes, but 0"),
    (plain([CONSTANT], constants=held(shape=[6, 4])), "was changed"), (plain([CONSTANT], constants=held(dtype="int32")), "was changed"),
    (plain([CONSTANT], constants=held(dtype="O")), "unsupported dtype 'O'"), (plain([CONSTANT], constants=held(shape=[-4, -6])), "shape [-4, -6]"),
    (plain([CONSTANT], constants=held(shape=[2**62, 2**62])), "bytes, but 96 are given"),
    (plain([CONSTANT], constants=held(shape=[0, 2**62], data="")), "const"),
    (plain([CONSTANT], constants=held(shape=[1] * 100)), "cannot have shape"),
    (plain([{"op": CONSTANT["op"] | {"shape": [24]}}], constants=held()), "its array float32[4, 6]"),
    (plain([CONSTANT], constants={DIGEST: {"dtype": "bool", "shape": [1], "data": "Ag=="}}), "neither 0 nor 1"),
    (plain(deep_json(MAX_BODY_DEPTH + 1)["nodes"], [["y", 1]]), "nested 32 deep"),
    (plain(deep_json(200)["nodes"], [["y", 1]]), "nested 32 deep"),
    (plain([X, {"op": {"op": "fixpoint", "body": []}, "args": [0]}]), "at $.nodes[1].op.body"),
    (plain([X, {"op": {"op": "fixpoint", "body": {"nodes": [X, {"op": {"op": "no"}}], "outputs": []}}}]), "at $.nodes[1].op.body.nodes[1].op.op"),
    (plain([X, {"op": {"op": "fixpoint", "body": {"nodes": [{"op": RELU, "args": [4]}], "outputs": [["r", 0]]}}}]), "reads %4"),
    (plain([X, {"op": {"op": "scan", "body": {"nodes": [], "outputs": []}, "carries": 0, "scanned": 0, "length": 3}}], [["y", 1]]), "has 0 results"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
def test_hostile_json_is_refused(document: Any, message: str) -> None:
    text = json.dumps(document) if isinstance(document, dict) else document
    with pytest.raises(TensorLogicError) as caught:
        EinsumGraph.from_json(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"a": "NaN",\n "b": [1, NaN]}', 2, 11),
        ("[\n\n-Infinity]", 3, 1),
        ('{"a": 1, "b": {"a": 2,\n  "\\u0061" : 3}}', 2, 3),
        ('{"a": [{"b": 1}, {"b": 2}], "a": "}{"}', 1, 29),
        ('{"x": 99999999999999999999.5, "99999999999999999999": 99999999999999999999}', 1, 55),
        ('{"a": "\\"1e400", "b": -1e400}', 1, 23),
    ],
)
def test_refused_json_has_a_place_in_the_text(tmp_path: Path, text: str, line: int, column: int) -> None:
    with pytest.raises(FormatError) as caught:
        EinsumGraph.from_json(text)
    assert caught.value.diagnostic.location == SourceLocation(None, line, column)
    if text.startswith("{"):
        path = tmp_path / "g.json"
        path.write_text(text)
        with pytest.raises(FormatError) as caught:
            EinsumGraph.load(path)
        assert caught.value.diagnostic.location == SourceLocation(str(path), line, column)


def test_the_bound_on_depth_is_the_builders() -> None:
    deep = deep_json(MAX_BODY_DEPTH)
    graph = EinsumGraph.from_json(json.dumps(plain(deep["nodes"], deep["outputs"])))
    assert EinsumGraph.from_json(graph.to_json()) == graph


def test_types_are_checked_and_the_node_is_named() -> None:
    nodes = [{"op": {"op": "input", "label": "x", "shape": [2, 3]}}, {"op": {"op": "einsum", "spec": "ij,ij->"}, "args": [0, 0]},
             {"op": {"op": "transpose", "order": [0, 1, 2]}, "args": [0]}]  # fmt: skip
    with pytest.raises(ShapeError, match=r"(?s)transpose order.*in node %2 \(transpose\), \$\.nodes\[2\]"):
        EinsumGraph.from_json(json.dumps(plain(nodes)))


def test_errors_in_json_show_the_place() -> None:
    with pytest.raises(FormatError) as caught:
        EinsumGraph.from_json('{"format":\n  tensorlogic}')
    assert str(caught.value).splitlines()[1:] == ["  at <text>:2:3", "    tensorlogic}", "    ^"]
    with pytest.raises(FormatError) as caught:
        EinsumGraph.from_json('{"a": ' + " " * 10_000 + "x}")
    assert len(str(caught.value)) < 500
    with pytest.raises(FormatError, match="at most 3 B are read"):
        files.from_json("{    }", limit=3)


def test_check_structure_finds_every_problem_with_a_code_and_a_hint() -> None:
    relu, inner = ops.Elementwise("relu"), EinsumGraph([Node(ops.Elementwise("relu"), (3,))], [("r", 9)])
    graph = EinsumGraph(
        [Node(ops.Input("x")), Node(ops.Input("x", ("n n",))), Node(relu, (7,)), Node(relu, (3,)),
         Node(ops.Constant("ab", (1,), "int8")), Node(ops.Literal("int", "x")), Node(Fixpoint(inner), (0,))],
        [("y", 0), ("y", 99)],
    )  # fmt: skip
    found = check_structure(graph)
    assert [d.code for d in found] == ["E205", "E209", "E201", "E202", "E206", "E134", "E201", "E203", "E204", "E203"]
    assert all(d.suggestions and d.context for d in found)
    assert found[6].context == ("at $.nodes[6].op.body.nodes[0].args[0]",)
    assert check_structure(GRAPH) == []


JSON = GRAPH.to_json()
MUTATIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3), st.text(max_size=3)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(MUTATIONS, st.booleans())
def test_mutated_json_raises_only_our_exceptions(changes: list[tuple[int, int, str]], cut: bool) -> None:
    text = JSON
    for at, length, new in changes:
        at %= len(text) + 1
        text = text[:at] + new + text[at + length :]
    try:
        graph = EinsumGraph.from_json(text[: changes[0][0] % (len(text) + 1)] if cut else text)
    except TensorLogicError as error:
        str(error)
        return
    assert EinsumGraph.from_json(graph.to_json()) == graph
    assert EinsumGraph.from_text(graph.to_text()) == graph


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats() | st.text(max_size=4)
    | st.sampled_from(["n", "-n", "n//0", "sum", "real", "ij->i", "float32", "relu", "x", DIGEST, "inf", "1" * 900, "n*n"]),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["op", "args", "shape", "body", "data"]), v, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = sorted({name for kind in OPS.values() for name in kind.__struct_fields__})


@settings(deadline=None, max_examples=400)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPS)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), st.lists(st.integers(-1, 4), max_size=3)),
        max_size=4,
    )
)  # fmt: skip
def test_made_up_nodes_raise_only_our_exceptions(made: list[tuple[str, dict[str, Any], list[int]]]) -> None:
    nodes = [X, *({"op": {"op": op, **fields}, "args": args} for op, fields, args in made)]
    try:
        graph = EinsumGraph.from_json(json.dumps(plain(nodes)))
    except TensorLogicError as error:
        str(error)
        return
    assert EinsumGraph.from_text(str(graph)) == graph


# the Rust crate's JSON


def rust(tensors: list[str], nodes: list[tuple[Any, list[int], list[int]]], outputs: list[int], **more: Any) -> str:
    listed = [{"op": op, "inputs": i, "outputs": o, "metadata": None} for op, i, o in nodes]
    return json.dumps({"tensors": tensors, "nodes": listed, "outputs": outputs, "tensor_metadata": {}, **more})


def unary(op: str) -> dict[str, Any]:
    return {"ElemUnary": {"op": op}}


def binary(op: str) -> dict[str, Any]:
    return {"ElemBinary": {"op": op}}


EINSUM = {"Einsum": {"spec": "ij,jk->ik"}}


def test_rust_json_is_read_in_any_order() -> None:
    text = rust(["a", "b", "c", "d", "e"],
                [({"Reduce": {"op": "Product", "axes": [1]}}, [3], [4]), (unary("ReLU"), [2], [3]), (EINSUM, [0, 1], [2])],
                [4, 2], inputs=[0, 1])  # fmt: skip
    graph = EinsumGraph.from_json(text)
    assert str(graph) == (
        """\
graph {
  a: any = input()
  b: any = input()
  %2: any = einsum(a, b, spec="ij,jk->ik")
  %3: any = relu(%2)
  %4: any = prod(%3, axes=[1])
  return e=%4, c=%2
}"""
    )
    assert EinsumGraph.from_json(text.replace('"inputs": [0, 1]}', '"inputs": []}')) == graph
    assert EinsumGraph.from_json(graph.to_json()) == graph


def words(op: Any, arity: int) -> list[str]:
    tensors, args = ["a", "b", "c"], list(range(arity))
    graph = EinsumGraph.from_json(rust(tensors, [(op, args, [2])], [2], inputs=args))
    return [n.op.text if isinstance(n.op, ops.Literal) else n.op.name for n in graph.nodes[arity:]]


@pytest.mark.parametrize(
    ("op", "made"),
    [("relu", ["relu"]), ("Sigmoid", ["sigmoid"]), ("OneMinus", ["1.0", "subtract"]), ("one_minus", ["1.0", "subtract"]),
     ("not", ["1.0", "subtract"]), ("neg", ["negative"]), ("abs", ["absolute"]), ("EXP", ["exp"]), ("log_1p", ["log1p"]),
     ("sqrt", ["sqrt"]), ("square", ["square"]), ("tanh", ["tanh"])],
)  # fmt: skip
def test_rust_unary_ops(op: str, made: list[str]) -> None:
    assert words(unary(op), 1) == made


@pytest.mark.parametrize(
    ("op", "made"),
    [("add", ["add"]), ("sub", ["subtract"]), ("Subtract", ["subtract"]), ("mul", ["multiply"]), ("and", ["multiply"]),
     ("div", ["divide"]), ("pow", ["power"]), ("min", ["minimum"]), ("max", ["maximum"]), ("or_max", ["maximum"]),
     ("eq", ["equal", "cast"]), ("lt", ["less", "cast"]), ("gt", ["greater", "cast"]), ("lte", ["less_equal", "cast"]),
     ("GTE", ["greater_equal", "cast"]), ("GreaterThanOrEqual", ["greater_equal", "cast"]),
     ("or_prob_sum", ["add", "multiply", "subtract"]), ("nand", ["multiply", "1.0", "subtract"]),
     ("nor", ["maximum", "1.0", "subtract"]), ("xor", ["add", "2.0", "multiply", "multiply", "subtract"])],
)  # fmt: skip
def test_rust_binary_ops(op: str, made: list[str]) -> None:
    assert sorted(words(binary(op), 2)) == sorted(made)


def test_rust_reductions() -> None:
    for op, made in {
        "sum": "sum",
        "Max": "max",
        "mean": "mean",
        "MIN": "min",
        "product": "prod",
        "prod": "prod",
    }.items():
        assert words({"Reduce": {"op": op, "axes": [0]}}, 1) == [made]


AB = ["a", "b", "c"]
BAD_RUST = [
    (rust(AB, [(unary("relu"), [0], [1]), (unary("relu"), [1], [0])], [1]), "cycle: b -> a -> b"),
    (rust(AB, [(unary("relu"), [0], [0])], [0]), "cycle: a -> a"),
    (rust(AB, [(unary("relu"), [0], [1]), (unary("exp"), [0], [1])], [1]), "'b' is made by node 0 and by node 1"),
    (rust(AB, [(unary("relu"), [7], [1])], [1]), "tensor 7 does not exist"),
    (rust(AB, [(unary("relu"), [-1], [1])], [1]), "tensor -1 does not exist"),
    (rust(AB, [(unary("relu"), [0], [9])], [1]), "tensor 9 does not exist"),
    (rust(AB, [(unary("relu"), [0], [1])], [2]), "'c' (number 2) is read, but no node makes it"),
    (rust(AB, [(unary("relu"), [0], [1])], [1], inputs=[2]), "'a' (number 0) is read, but no node makes it"),
    (rust(AB, [(unary("relu"), [0], [1])], [1], inputs=[0, 1]), "input 'b' is also made by node 0"),
    (rust(AB, [(unary("relu"), [0], [1])], [8]), "tensor 8 does not exist"),
    (rust(AB, [(unary("relu"), [0], [1])], []), "the graph has no outputs"),
    (rust(["a", "a", "c"], [(binary("add"), [0, 1], [2])], [2]), "the name 'a' stands there twice"),
    (rust(["a", "b", "b"], [(unary("relu"), [0], [1]), (unary("exp"), [0], [2])], [1, 2]), "'b' stands there twice"),
    (rust(AB, [(unary("rellu"), [0], [1])], [1]), "did you mean 'relu'?"),
    (rust(AB, [(unary("add"), [0], [1])], [1]), "unknown ElemUnary op 'add'"),
    (rust(AB, [(unary("where"), [0], [1])], [1]), "unknown ElemUnary op 'where'"),
    (rust(AB, [(binary("addd"), [0, 1], [2])], [2]), "did you mean 'add'?"),
    (rust(AB, [({"Reduce": {"op": "avg", "axes": [0]}}, [0], [1])], [1]), "unknown reduction 'avg'"),
    (rust(AB, [({"Reduce": {"op": "sum", "axes": ["x"]}}, [0], [1])], [1]), "at $.nodes[0].op.Reduce.axes[0]"),
    (rust(AB, [(binary("add"), [0], [1])], [1]), "add takes 2 operand(s), got 1"),
    (rust(AB, [(EINSUM, [0], [1])], [1]), "is for 2 operand(s), got 1"),
    (rust(AB, [({"Einsum": {"spec": "i->j"}}, [0], [1])], [1]), "at $.nodes[0].op.Einsum.spec"),
    (rust(AB, [({"Einsum": {}}, [0], [1])], [1]), "Einsum needs 'spec'"),
    (rust(AB, [({"Einsom": {}}, [0], [1])], [1]), "did you mean 'Einsum'?"),
    (rust(AB, [({}, [0], [1])], [1]), "unknown kind of op"),
    (rust(AB, [(unary("relu"), [0], [1, 2])], [1]), "node 0 makes 2 tensors"),
    ('{"tensors": 3, "nodes": []}', "at $.tensors"), ('{"tensors": []}', "missing required field `nodes`"),
    ('{"tensors": ["a"], "nodes": [{"op": "relu"}]}', "at $.nodes[0].op"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_RUST, ids=[str(n) for n in range(len(BAD_RUST))])
def test_bad_rust_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(TensorLogicError) as caught:
        EinsumGraph.from_json(text)
    assert message in str(caught.value)


def test_a_long_rust_chain_in_reverse_order() -> None:
    count = 20_000
    nodes = [(unary("relu"), [i], [i + 1]) for i in reversed(range(count))]
    graph = EinsumGraph.from_json(rust([f"t{i}" for i in range(count + 1)], nodes, [count]))
    assert len(graph) == count + 1 and graph.inputs == {"t0": 0} and graph.outputs == ((f"t{count}", count),)
    loop = [*nodes[:-1], (binary("add"), [0, count], [1])]
    with pytest.raises(GraphError, match=r"cycle: t20000 -> t1 -> t2 -> .* -> \.\.\. -> .* -> t20000"):
        EinsumGraph.from_json(rust([f"t{i}" for i in range(count + 1)], loop, [count]))


def test_folders_are_not_saved_and_named_files_are_not_opened(tmp_path: Path) -> None:
    assert "test_files.py" in GRAPH.to_json()
    assert str(Path(__file__).parent) not in GRAPH.to_json()
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret line\n")
    at = [{"file": str(secret), "line": 1}]
    nodes = [
        {"op": {"op": "input", "label": "x", "shape": ["n"]}, "at": at},
        {"op": {"op": "slice", "ranges": [[5, 1, 1]]}, "args": [0], "at": at},
    ]
    graph = EinsumGraph.from_json(
        json.dumps({"format": "tensorlogic-graph", "version": 1, "nodes": nodes, "outputs": [["y", 1]]})
    )
    with pytest.raises(TensorLogicError) as caught:
        Executor().execute(graph, {"x": [1.0]})
    assert "secret.txt" in str(caught.value)
    assert "the secret line" not in str(caught.value)


def test_constants_are_read_once(tmp_path: Path, measured: Any) -> None:
    """Reading a graph takes little more memory than its constants have."""
    data = np.random.default_rng(0).integers(0, 256, (1024, 4096), dtype=np.uint8)
    b = GraphBuilder()
    weight = b.dequantize(b.unpack(b.constant(data), "int4", 8192), np.float32(0.1), 0)
    b.build(y=b.einsum("nk,jk->nj", b.input("x", ("n", 8192), "float32"), weight)).save(tmp_path / "g.json")
    EinsumGraph.load(tmp_path / "g.json")  # modules are loaded
    graph, peak = measured(EinsumGraph.load, tmp_path / "g.json")
    assert any(np.array_equal(x, data) for x in graph.constants.values())
    assert peak < 1.3 * data.nbytes


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_saved_to_a_pipe_or_device_is_written_to_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    b = GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", (3,))))
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    graph.save(pipe)
    assert pipe.is_fifo()
    reader.join(10)
    assert EinsumGraph.from_json(read[0]) == graph
