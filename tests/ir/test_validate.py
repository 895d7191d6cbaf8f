"""The validator on graphs made by hand, its warnings, and shape inference from given shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, GraphError, GraphValidator, ShapeError, ShapeInferenceContext
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Cond, Fixpoint, Node, Scan
from tensorlogic.ir.ops import constant_op

X = Node(ops.Input("x", (2,), "float32"))
RELU = ops.Elementwise("relu")
ONE = EinsumGraph([X], [("r", 0)])
ARRAY = np.ones(3)

BROKEN: dict[str, tuple[list[Any], list[tuple[str, int]], str, str]] = {
    "an argument that does not exist": ([X, Node(RELU, (7,))], [("y", 1)], "E201", "reads %7, which does not exist"),
    "a negative argument": ([X, Node(RELU, (-1,))], [("y", 1)], "E201", "reads %-1, which does not exist"),
    "an argument that comes later": ([Node(RELU, (1,)), X], [("y", 0)], "E202", "reads %1, which comes later"),
    "a node that reads itself": ([Node(RELU, (0,))], [("y", 0)], "E202", "reads itself"),
    "a cycle": ([Node(RELU, (1,)), Node(RELU, (0,))], [("y", 1)], "E202", "reads %1, which comes later"),
    "an output that does not exist": ([X], [("y", 3)], "E203", "output 'y' is %3, which does not exist"),
    "a negative output": ([X], [("y", -1)], "E203", "output 'y' is %-1"),
    "two outputs of a name": ([X], [("y", 0), ("y", 0)], "E204", "two outputs are named 'y'"),
    "two inputs of a name": ([X, X], [("y", 0)], "E205", "has the name 'x', which %0 has too"),
    "a constant without an array": ([Node(constant_op(ARRAY))], [("y", 0)], "E206", "has no array"),
    "too few operands": ([X, Node(ops.Elementwise("add"), (0,))], [("y", 1)], "E105", "add takes 2 operand(s), got 1"),
    "too many operands": ([X, Node(RELU, (0, 0))], [("y", 1)], "E105", "relu takes 1 operand(s), got 2"),
    "an input with operands": ([X, Node(ops.Input("z"), (0,))], [("y", 1)], "E105", "takes 0 operand(s), got 1"),
    "gather of one": ([X, Node(ops.Gather(0), (0,))], [("y", 1)], "E105", "gather takes 2 operand(s), got 1"),
    "an unknown function": ([X, Node(ops.Elementwise("rellu"), (0,))], [("y", 1)], "E126", "unknown function 'rellu'"),
    "an unknown reduction": ([X, Node(ops.Reduce("summ"), (0,))], [("y", 1)], "E126", "unknown reduction 'summ'"),
    "an unknown cumulation": ([X, Node(ops.Cumulate("mean", 0), (0,))], [("y", 1)], "E126", "unknown cumulation"),
    "an unknown algebra": ([X, Node(ops.Einsum("i", "rael"), (0,))], [("y", 1)], "E104", "unknown algebra 'rael'"),
    "an unknown dtype": ([Node(ops.Input("x", (2,), "float23"))], [("y", 0)], "E103", "unsupported dtype 'float23'"),
    "an unknown cast": ([X, Node(ops.Cast("floot"), (0,))], [("y", 1)], "E103", "unsupported dtype 'floot'"),
    "a bad spec": ([X, Node(ops.Einsum("i1"), (0,))], [("y", 1)], "E101", "'1' cannot be an index"),
    "a spec for two": ([X, Node(ops.Einsum("i,i"), (0,))], [("y", 1)], "E114", "is for 2 operand(s), got 1"),
    "an einsum of nothing": ([Node(ops.Einsum("->"))], [("y", 0)], "E114", "got 0"),
    "a contraction of nothing": ([Node(ops.Einsum("", "boolean"))], [("y", 0)], "E114", "got 0"),
    "a gradient of nothing": ([Node(ops.ContractVJP("i", "real", 0))], [("y", 0)], "E105", "got 0 operands"),
    "a negative size": ([Node(ops.Input("x", (-2,)))], [("y", 0)], "E118", "got -2"),
    "a size out of form": ([Node(ops.Input("x", ("k+n-k",)))], [("y", 0)], "E209", "not in normal form"),
    "a size of odd digits": ([Node(ops.Input("x", ("n+²",)))], [("y", 0)], "E209", ""),
    "a size of many signs": ([Node(ops.Input("x", ("-" * 990 + "n",)))], [("y", 0)], "E209", ""),
    "an axis": ([X, Node(ops.Reduce("sum", (3,)), (0,))], [("y", 1)], "E005", "no axis 3"),
    "an axis twice": ([X, Node(ops.Reduce("sum", (0, -1)), (0,))], [("y", 1)], "E006", "names an axis twice"),
    "an item of one": ([X, Node(ops.Item(1), (0,))], [("y", 1)], "E127", "has 1 result(s), so no result 1"),
    "a literal": ([Node(ops.Literal("int", "0x1"))], [("y", 0)], "E134", "'0x1' is not how a literal int is written"),
    "a fixpoint of nothing": ([X, Node(Fixpoint(EinsumGraph([], [])), (0,))], [("y", 1)], "E128", "has 0 results"),
    "a scan of five": ([X, Node(Scan(ONE, 5, 0), (0,))], [("y", 1)], "E105", "a scan of 5 carries"),
    "a cond by a vector": ([X, Node(Cond(ONE, ONE), (0, 0))], [("y", 1)], "E023", "must be a scalar"),
    "a broken body": (
        [X, Node(Fixpoint(EinsumGraph([X, Node(RELU, (9,))], [("r", 1)])), (0,))],
        [("y", 1)],
        "E201",
        "reads %9, which does not exist",
    ),
    "no such node in a body's outputs": (
        [X, Node(Fixpoint(EinsumGraph([X], [("r", 4)])), (0,))],
        [("y", 1)],
        "E203",
        "output 'r' is %4",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs(name: str):
    nodes, outputs, code, message = BROKEN[name]
    graph = EinsumGraph(nodes, outputs)
    found = GraphValidator().validate(graph)
    assert not found.is_valid()
    assert code in [d.code for d in found.errors]
    assert any(message in d.message for d in found.errors)
    assert all(d.severity == tl.Severity.ERROR for d in found.errors)
    assert found.warnings == ()
    assert f"Summary: {len(found.errors)} error(s), 0 warning(s)" in str(found)
    with pytest.raises(tl.TensorLogicError):  # and it does not run either
        tl.Executor().execute(graph, dict.fromkeys(graph.inputs, np.ones(2, np.float32)))


@pytest.mark.parametrize(
    "node",
    [Node(RELU, ("a",)), Node(RELU, (0.0,)), Node(RELU, (None,)), Node(ops.Slice(((0, 1),)), (0,)), Node(None)],  # type: ignore[arg-type]
    ids=["word", "float", "none", "range of two", "no op"],
)
def test_nodes_of_the_wrong_kind(node: Node):
    found = GraphValidator().validate(EinsumGraph([X, node], [("y", 1)]))
    assert not found.is_valid()


def test_every_structural_error_is_told():
    nodes = [X, X, Node(RELU, (9,)), Node(RELU, (3,)), Node(constant_op(ARRAY))]
    found = GraphValidator().validate(EinsumGraph(nodes, [("y", 2), ("y", 8)]))
    assert [d.code for d in found.errors] == ["E205", "E201", "E202", "E206", "E204", "E203"]
    assert all(d.suggestions for d in found.errors)


def test_an_array_that_is_not_the_constants():
    op = constant_op(ARRAY)
    for array in (np.ones(4), np.ones(3, np.float32)):
        found = GraphValidator().validate(EinsumGraph([Node(op)], [("y", 0)], {op.digest: array}))
        assert [d.code for d in found.errors] == ["E227"]
    assert GraphValidator().validate(EinsumGraph([Node(op)], [("y", 0)], {op.digest: ARRAY})).is_valid()


def test_a_type_error_is_one_error_with_its_place():
    b = GraphBuilder()
    good = b.build(y=b.relu(b.input("x", (2,))) + b.input("z", (2,)))
    nodes = list(good.nodes)
    i = good.inputs["z"]
    nodes[i] = Node(ops.Input("z", (5,)), (), nodes[i].locations)
    found = GraphValidator().validate(EinsumGraph(nodes, good.outputs))
    (error,) = found.errors
    assert "does not fit" in error.message
    assert error.location is not None
    assert error.location.file == __file__


def test_warnings():
    nodes = [X, Node(ops.Input("u", ())), Node(RELU, (0,)), Node(RELU, (0,)), Node(ops.Elementwise("exp"), (3,))]
    found = GraphValidator().validate(EinsumGraph(nodes, [("y", 2)]))
    assert found.is_valid()
    assert [(d.code, d.message) for d in found.warnings] == [
        ("W201", "input 'u' is not used by any output"),
        ("W202", "node %3 (relu) is not used by any output"),
        ("W203", "node %3 (relu) computes the same as node %2"),
        ("W202", "node %4 (exp) is not used by any output"),
    ]
    assert all(d.severity == tl.Severity.WARNING for d in found.warnings)


def test_nothing_to_say_about_a_good_graph():
    b = GraphBuilder()
    x = b.input("x", ("n", 3))
    graph = b.build(y=b.fixpoint(lambda c: c * 0.5 + x, x, tolerance=1e-3), z=x)
    found = GraphValidator().validate(graph)
    assert (found.is_valid(), found.errors, found.warnings) == (True, (), ())


def test_a_graph_without_outputs_is_pointed_out():
    found = GraphValidator().validate(EinsumGraph([X], []))
    assert found.errors or found.warnings


# shape inference


def layer() -> EinsumGraph:
    b = GraphBuilder()
    x, w, c = b.input("x", ("n", "d")), b.input("w", ("d", 10)), b.input("c", ("n",))
    h = b.relu(x @ w)
    return b.build(y=h, total=b.sum(h), place=b.iota("n+1"), c2=c * 2)


def test_shapes_from_nothing():
    found = ShapeInferenceContext().infer_shapes(layer())
    assert found["y"] == ("n", 10)
    assert found["x"] == ("n", "d")
    assert found["total"] == ()


def test_shapes_from_given_ones():
    context = ShapeInferenceContext()
    context.set_input_shape("x", [64, 784])
    found = context.infer_shapes(layer())
    assert found["x"] == (64, 784)
    assert found["y"] == (64, 10)


def test_a_given_shape_fixes_the_names_everywhere():
    context = ShapeInferenceContext({"x": [64, 784]})
    found = context.infer_shapes(layer())
    assert found["w"] == (784, 10)
    assert found["c"] == found["c2"] == (64,)
    assert found["place"] == (65,)


def test_given_names():
    found = ShapeInferenceContext({"x": ["batch", "d"]}).infer_shapes(layer())
    assert found["x"] == ("batch", "d")
    assert found["y"] == ("batch", 10)


def test_shapes_for_inputs_without_any():
    b = GraphBuilder()
    graph = b.build(y=b.einsum("...i,ij->...j", b.input("x"), b.input("w")))
    assert ShapeInferenceContext().infer_shapes(graph)["y"] is None
    found = ShapeInferenceContext({"x": [2, "t", 5], "w": [5, 3]}).infer_shapes(graph)
    assert found["y"] == (2, "t", 3)
    with pytest.raises(ShapeError, match="index 'i' is 5 in operand 0"):
        ShapeInferenceContext({"x": [2, 5], "w": [4, 3]}).infer_shapes(graph)


@pytest.mark.parametrize(
    "shapes",
    [{"w": [784, 11]}, {"w": [784]}, {"x": [64]}, {"x": [64, 5], "w": [6, 10]}, {"x": [64, 5], "c": [63]}],
    ids=["a size", "a rank", "another rank", "one name two sizes", "one name two sizes apart"],
)
def test_a_shape_that_contradicts_the_declaration(shapes: dict[str, list[int]]):
    with pytest.raises((ShapeError, tl.InputError)):
        ShapeInferenceContext(shapes).infer_shapes(layer())


def test_an_input_that_does_not_exist():
    with pytest.raises(GraphError, match="no input 'z'"):
        ShapeInferenceContext({"z": [1]}).infer_shapes(layer())


@pytest.mark.parametrize("shape", [5, None, [1.5], [-1], ["n+"]])
def test_what_is_not_a_shape(shape: Any):
    with pytest.raises(GraphError):
        ShapeInferenceContext().set_input_shape("x", shape)


def test_every_output_has_a_shape_under_its_name():
    b = GraphBuilder()
    x = b.input("x", (3,))
    y = x * 2
    found = ShapeInferenceContext().infer_shapes(b.build(a=y, b=y, same=x))
    assert {"x", "a", "b", "same"} <= set(found)


def test_a_broken_graph_has_no_shapes():
    with pytest.raises(GraphError):
        ShapeInferenceContext().infer_shapes(EinsumGraph([X, Node(RELU, (7,))], [("y", 1)]))
