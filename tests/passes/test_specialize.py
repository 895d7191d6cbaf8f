"""Binding sizes: names are matched, solved and checked; the result is a graph whose every size is an integer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import DTypeError, GraphBuilder, InputError, ShapeError, TensorShape, TensorType
from tensorlogic.ir.graph import bodies
from tensorlogic.passes.specialize import bind_sizes, specialize

EX = tl.Executor()


def types(**shapes: tuple[int, ...]) -> dict[str, TensorType]:
    return {name: TensorType(TensorShape(shape), "float32") for name, shape in shapes.items()}


def declared(**shapes: tuple[Any, ...]) -> tl.EinsumGraph:
    b = GraphBuilder()
    return b.build({f"{name} out": b.input(name, shape) * 1 for name, shape in shapes.items()})


def test_sizes_of_a_graph_and_its_bodies_become_numbers():
    b = GraphBuilder()
    x = b.input("x", ("n", "n+m"))
    start = b.broadcast_to(b.constant(np.int64(0)), ("n", "m"))
    graph = b.build(y=b.fixpoint(lambda z: b.maximum(z, b.broadcast_to(b.iota("m"), ("n", "m"))), start), z=x)
    some = tl.with_sizes(graph, {"m": 3})
    assert (some.size_names, some.type_of(some.inputs["x"]).shape) == ({"n"}, ("n", "n+3"))
    for sized in (graph, some, tl.with_sizes(graph, {"m": 3, "n": 2})):
        assert EX.execute(sized, {"x": np.ones((2, 5))})["y"].tolist() == [[0, 1, 2]] * 2
    with pytest.raises(ShapeError, match="must be 4"):
        EX.execute(tl.with_sizes(graph, {"m": 2, "n": 2}), {"x": np.ones((2, 5))})
    assert tl.with_sizes(graph, {}) == graph


def test_names_are_bound():
    graph = declared(x=("n", "m"), y=("m", 3))
    assert bind_sizes(graph, types(x=(2, 5), y=(5, 3)), {}) == {"n": 2, "m": 5}
    assert bind_sizes(graph, types(x=(2, 5), y=(5, 3)), {"q": 9})["q"] == 9


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "b", "c"])))
def test_expressions_are_solved_in_any_order(order: tuple[str, ...]):
    sizes = {"a": ("n+m",), "b": ("2*n",), "c": ("m+n+k",)}
    given = {"a": (7,), "b": (4,), "c": (16,)}
    graph = declared(**{name: sizes[name] for name in order})
    assert bind_sizes(graph, types(**given), {}) == {"n": 2, "m": 5, "k": 9}


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 4), st.permutations(["x", "y", "z"]))
def test_sizes_that_fit_are_found(n: int, m: int, factor: int, order: list[str]):
    shapes: dict[str, tuple[Any, ...]] = {"x": (f"{factor}*n+1",), "y": ("n*m",), "z": ("m", "m+3*n")}
    given = {"x": (factor * n + 1,), "y": (n * m,), "z": (m, m + 3 * n)}
    graph = declared(**{name: shapes[name] for name in order})
    assert bind_sizes(graph, types(**given), {}) == {"n": n, "m": m}


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        ({"x": (3,)}, {"x": (4,)}, "input 'x' does not fit: axis 0 must be 3, got 4"),
        ({"x": ("n", 3)}, {"x": (4,)}, "input 'x' does not fit: 2 axes are declared, got 1"),
        (
            {"x": ("n",), "y": ("n",)},
            {"x": (3,), "y": (4,)},
            "input 'y' does not fit: size 'n' is 3 by axis 0 of input 'x', but axis 0 of input 'y' is 4",
        ),
        ({"x": ("2*n",)}, {"x": (3,)}, "input 'x' does not fit: axis 0 must be 2*n, got 3"),
        ({"x": ("n", "n+1")}, {"x": (3, 5)}, "input 'x' does not fit: axis 1 must be n+1 = 4, got 5"),
        ({"x": ("n+5",)}, {"x": (3,)}, "input 'x' does not fit: axis 0 must be n+5, got 3"),
    ],
)
def test_what_does_not_fit(shapes: dict[str, Any], given: dict[str, Any], message: str):
    with pytest.raises(ShapeError) as caught:
        specialize(declared(**shapes), types(**given))
    assert caught.value.diagnostic.message == message
    assert caught.value.diagnostic.code == "E001"
    assert caught.value.diagnostic.context[0].startswith("Expected shape: [")


def test_sizes_given_apart():
    graph = declared(x=("n",))
    with pytest.raises(ShapeError, match="size 'n' is 9 by sizes=, but axis 0 of input 'x' is 2"):
        specialize(graph, types(x=(2,)), {"n": 9})
    with pytest.raises(InputError, match="size 'n' must be an integer"):
        specialize(graph, types(x=(2,)), {"n": "m"})  # type: ignore[dict-item]
    with pytest.raises(tl.TensorLogicError):
        specialize(graph, types(x=(2,)), {"n": -1})


def test_a_size_that_the_graph_does_not_have():
    b = GraphBuilder()
    graph = b.build(y=b.iota("batch") + b.input("x", ()))
    with pytest.raises(tl.TensorLogicError) as caught:
        EX.execute(graph, {"x": np.ones(())}, sizes={"bacth": 3, "batch": 2})
    assert any("'batch'" in s for s in caught.value.diagnostic.suggestions)


def test_several_sizes_that_nothing_fixes():
    b = GraphBuilder()
    with pytest.raises(ShapeError) as caught:
        EX.execute(b.build(y=b.iota("n+m")), {})
    hint, other = caught.value.diagnostic.suggestions
    sizes = eval(hint.removeprefix("give it: sizes="))
    assert other == f"or put it into the graph: tl.with_sizes(graph, {sizes})"
    assert set(sizes) == {"n", "m"}


def test_inputs_missing_or_unknown():
    graph = declared(x=("n",), weights=("n",))
    with pytest.raises(InputError, match="input 'weights' is missing"):
        specialize(graph, types(x=(2,)))
    with pytest.raises(InputError, match="no input 'wieghts'") as caught:
        specialize(graph, types(x=(2,), weights=(2,), wieghts=(2,)))
    assert caught.value.diagnostic.suggestions == ("did you mean 'weights'?",)


def test_another_dtype():
    b = GraphBuilder()
    graph = b.build(y=b.input("x", (2,), "float64") * 1)
    with pytest.raises(DTypeError, match="input 'x' must be float64, got float32") as caught:
        specialize(graph, types(x=(2,)))
    assert caught.value.diagnostic.code == "E002"


def test_the_result_has_no_names():
    b = GraphBuilder()
    x, y = b.input("x", ("n", "m")), b.input("y")
    step = b.scan(lambda c, r: (c + r, b.sum(c[::2]) + b.sum(y)), b.sum(x, 0), x)
    graph = b.build(a=b.window(x, 0, "m-1"), c=b.reshape(x, ("m*n",)), d=step[1], e=b.iota("n"), f=b.pad(y, [(1, 0)]))
    found = specialize(graph, types(x=(5, 3), y=(4,)))
    assert [node.locations for node in found.nodes] == [node.locations for node in graph.nodes]
    pending = [found]
    while pending:
        g = pending.pop()
        for results in g.inference.types:
            for t in results:
                assert t.shape is not None
                assert t.shape.is_static
                assert t.dtype is not None
        assert g.inference.equalities == ()
        pending += [body for node in g.nodes for body in bodies(node.op)]
    again = specialize(found, types(x=(5, 3), y=(4,)))
    assert again == found
    fresh = tl.EinsumGraph(found.nodes, found.outputs, found.constants)
    assert fresh.inference.types == found.inference.types


def test_zero_sizes():
    b = GraphBuilder()
    x = b.input("x", ("n", "m"))
    graph = b.build(s=b.sum(x, 0), r=x[::-1], e=b.einsum("ij,kj->ik", x, x), c=b.concat([x, x]))
    out = EX.execute(graph, {"x": np.ones((0, 3))})
    assert [a.shape for a in out] == [(3,), (0, 3), (0, 0), (0, 3)]
    with pytest.raises(ShapeError, match="max over no elements"):
        EX.execute(b.build(y=b.max(x, 0)), {"x": np.ones((0, 3))})
