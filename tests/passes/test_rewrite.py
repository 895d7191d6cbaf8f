"""The rewrite driver: one sweep, equal nodes merged, types known, places remembered."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder
from tensorlogic.diagnostics import SourceLocation
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node
from tensorlogic.passes.rewrite import MAX_LOCATIONS, Draft, drop_dead, merge_equal, rewrite
from tensorlogic.passes.simplify import simplify


def test_a_graph_that_does_not_change_is_itself() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", ("n",))))
    assert rewrite(graph, {}) is graph
    assert simplify(graph) is graph
    assert drop_dead(graph) is graph


@pytest.mark.parametrize("pair", [(1, 1.0), (0.0, -0.0), (True, 1), (float("nan"), float("inf"))])
def test_literals_that_differ_stay_apart(pair: tuple[float, float]) -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", (3,), "float32")
    graph = b.build(p=b.arctan2(x, pair[0]), q=b.arctan2(x, pair[1]))
    assert len(merge_equal(graph)) == len(graph)


def test_equal_nodes_become_one() -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", (3,))
    graph = b.build(p=b.exp(x + float("nan")), q=b.exp(x + float("nan")))
    merged = merge_equal(graph)
    assert len(merged) == 4
    assert merged.outputs[0][1] == merged.outputs[1][1]


def test_a_merged_node_remembers_where_it_came_from_but_not_without_end() -> None:
    nodes = [Node(ops.Input("x", (2,)))]
    nodes += [Node(ops.Elementwise("exp"), (0,), (SourceLocation(line=n),)) for n in range(20)]
    graph = EinsumGraph(nodes, [(f"y{n}", n + 1) for n in range(20)])
    merged = merge_equal(graph)
    assert len(merged) == 2
    assert [place.line for place in merged.nodes[1].locations] == list(range(MAX_LOCATIONS))


def test_a_rule_that_changes_a_type_is_caught() -> None:
    def wrong(draft: Draft, op: ops.Op, args: tuple[int, ...]) -> int | None:
        return args[0]

    b = GraphBuilder()
    graph = b.build(y=b.sum(b.input("x", (3,), "float32")))
    with pytest.raises(tl.GraphError, match=r"a rewrite changed sum at node %1 from float32\[\] to float32\[3\]"):
        rewrite(graph, {ops.Reduce: (wrong,)})


def test_rules_that_answer_each_other_end() -> None:
    def flip(draft: Draft, op: ops.Op, args: tuple[int, ...]) -> int | None:
        return draft.make(op, args[::-1])

    b = GraphBuilder()
    x, y = b.input("x", (3,), "float32"), b.input("y", (3,), "float32")
    assert len(rewrite(b.build(z=x + y), {ops.Elementwise: (flip,)})) == 3


def test_types_and_equalities_are_those_that_inference_finds() -> None:
    b = GraphBuilder(intern=False)
    x, y = b.input("x", ("n", 3), "float32"), b.input("y", ("m", 3), "float32")
    graph = b.build(z=b.exp(x.T.T + y) * b.exp(x + y))
    done = simplify(graph)
    fresh = EinsumGraph(done.nodes, done.outputs, done.constants)
    assert done.inference.types == fresh.inference.types
    assert {(e.left, e.right) for e in done.inference.equalities} == {
        (e.left, e.right) for e in fresh.inference.equalities
    }
    with pytest.raises(tl.ShapeError):
        tl.Executor().execute(done, {"x": np.ones((2, 3), "float32"), "y": np.ones((4, 3), "float32")})


def test_dead_nodes_go_and_what_is_known_of_the_rest_stays() -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", ("n",), "float32")
    dead = b.exp(x)
    graph = b.build(y=x * 2)
    assert dead.shape == ("n",)
    assert graph.inference
    done = drop_dead(graph)
    assert [n.op.name for n in done.nodes] == ["input", "literal", "multiply"]
    assert done.inference.types == EinsumGraph(done.nodes, done.outputs).inference.types


def test_a_long_graph_does_not_recurse() -> None:
    b = GraphBuilder(intern=False)
    y = b.input("x", (2,), "float32")
    for _ in range(5000):
        y = b.negative(b.negative(y))
    assert len(simplify(b.build(y=y))) == 1
