"""Inference: symbolic sizes, equalities that are checked when inputs are bound, and what errors say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import DTypeError, EinsumGraph, GraphBuilder, GraphError, ShapeError, SpecError

EX = tl.Executor()


def shapes(graph: EinsumGraph) -> list[str]:
    return [str(graph.type_of(i)) for _, i in graph.outputs]


# symbolic sizes


def test_symbolic_shapes():
    b = GraphBuilder()
    x, w = b.input("x", ("n", "d"), "float32"), b.input("w", ("d", 10), "float32")
    k = b.input("k", ("k", "d"), "float32")
    graph = b.build(
        a=x @ w, b=b.concat([x, k]), c=b.reshape(x, (-1,)), d=b.pad(x, [(1, 2), (0, 0)], 0.0), e=b.window(x, 0, "k"),
        f=x[1:, ::2], g=b.sum(x, 0, keepdims=True), h=x.T, i=b.broadcast_to(x, ("r", "n", "d")), j=b.iota("n*d"),
        k=b.einsum("ij,kj->ik", x, k), l=b.top_k(x, 3)[1], m=b.window(x, 0, 3, step=2, dilation=2), n=b.stack([x, x], 1),
    )  # fmt: skip
    assert shapes(graph) == [
        "float32[n, 10]", "float32[k+n, d]", "float32[d*n]", "float32[n+3, d]", "float32[n-k+1, d, k]",
        "float32[n-1, (d+1)//2]", "float32[1, d]", "float32[d, n]", "float32[r, n, d]", "int64[d*n]",
        "float32[n, k]", "int64[n, 3]", "float32[(n-5)//2+1, d, 3]", "float32[n, 2, d]",
    ]  # fmt: skip
    X, W, K = np.ones((7, 4), np.float32), np.ones((4, 10), np.float32), np.ones((3, 4), np.float32)
    out = EX.execute(graph, {"x": X, "w": W, "k": K}, sizes={"r": 2})
    assert [a.shape for a in out] == [
        (7, 10), (10, 4), (28,), (10, 4), (5, 4, 3), (6, 2), (1, 4), (4, 7), (2, 7, 4), (28,), (7, 3), (7, 3), (2, 4, 3), (7, 2, 4),
    ]  # fmt: skip


def test_a_literal_one_broadcasts_and_a_name_takes_over():
    b = GraphBuilder()
    x, one = b.input("x", ("n", 3)), b.input("one", (1, 3))
    assert (x + one).shape == (one + x).shape == ("n", 3)
    assert b.einsum("ij,ij->ij", one, x).shape == ("n", 3)
    assert b.where(one > 0, one, x).shape == ("n", 3)


BROADCASTS: dict[str, Callable[[GraphBuilder, Any, Any], Any]] = {
    "add": lambda b, x, y: x + y,
    "where": lambda b, x, y: b.where(x > 0, x, y),
    "einsum": lambda b, x, y: b.einsum("i,i->i", x, y),
    "broadcast": lambda b, x, y: b.broadcast_to(x, ("m",)) + y,
    "in a body": lambda b, x, y: b.scan(lambda c, r: (c + x * y, r), b.sum(x * y) * y, b.iota(2))[0],
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_a_name_that_is_bound_to_one_does_not_broadcast(name: str):
    b = GraphBuilder()
    x, y = b.input("x", ("n",)), b.input("y", ("m",))
    graph = b.build(z=BROADCASTS[name](b, x, y))
    assert EX.execute(graph, {"x": np.ones(3), "y": np.ones(3)})["z"].shape == (3,)
    with pytest.raises(ShapeError, match=r"here 1 and 3|here 3 and 1") as caught:
        EX.execute(graph, {"x": np.ones(1), "y": np.ones(3)})
    assert "only a literal size 1 broadcasts" in caught.value.diagnostic.suggestions[0]


def test_equalities_are_noted_once_needed():
    b = GraphBuilder()
    x, y, z = b.input("x", ("n",)), b.input("y", ("m",)), b.input("z", (5,))
    same = b.build(r=x + x)
    assert same.inference.equalities == ()
    graph = b.build(r=x + y + z)
    assert {(e.left, e.right) for e in graph.inference.equalities} == {("n", "m"), ("n", 5)}
    assert graph.type_of(graph.outputs[0][1]).shape == (5,)


def test_an_equality_that_fails_points_at_its_line():
    b = GraphBuilder()
    x, y = b.input("x", ("n", "k")), b.input("y", ("m", 2))
    z = b.einsum("ij,jk->ik", x, y)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(ShapeError) as caught:
        EX.execute(b.build(z=z), {"x": np.ones((2, 3)), "y": np.ones((4, 2))})
    found = caught.value.diagnostic
    assert found.message == "index 'j' is k in operand 0 ('x') but m in operand 1 ('y'): here 3 and 4"
    assert found.location is not None
    assert (found.location.file, found.location.line) == (__file__, line)
    assert "sizes: k=3, m=4, n=2" in found.context
    assert found.code == "E001"


def test_a_scan_checks_its_lengths_when_bound():
    b = GraphBuilder()
    x, y = b.input("x", ("t",)), b.input("y", ("s",))
    graph = b.build(z=b.scan(lambda c, r: (c, r[0] + r[1]), 0.0, (x, y))[1])
    with pytest.raises(ShapeError, match=r"scan runs t steps, but operand 2 \('y'\) has s: here 2 and 3"):
        EX.execute(graph, {"x": np.ones(2), "y": np.ones(3)})


def test_a_size_that_no_input_fixes():
    b = GraphBuilder()
    graph = b.build(y=b.iota("n") + b.input("x", ()))
    with pytest.raises(ShapeError, match="no input fixes the size 'n'") as caught:
        EX.execute(graph, {"x": np.ones(())})
    assert caught.value.diagnostic.suggestions == (
        "give it: sizes={'n': 8}", "or put it into the graph: tl.with_sizes(graph, {'n': 8})",
    )  # fmt: skip
    assert EX.execute(graph, {"x": np.ones(())}, sizes={"n": 4})["y"].shape == (4,)


# unknown rank


def test_unknown_rank_is_settled_by_the_inputs():
    b = GraphBuilder()
    x, w = b.input("x"), b.input("w", ("k", 2))
    graph = b.build(y=b.relu(b.einsum("...i,ij->...j", x, w)) + 1.0, s=b.sum(x), t=b.sum(x, -1))
    assert shapes(graph) == ["any", "any[]", "any"]
    for lead in ((), (3,), (2, 3)):
        out = EX.execute(graph, {"x": np.ones((*lead, 4)), "w": np.ones((4, 2))})
        assert [a.shape for a in out] == [(*lead, 2), (), lead]
    with pytest.raises(ShapeError, match="index 'i' is 5"):
        EX.execute(graph, {"x": np.ones((3, 5)), "w": np.ones((4, 2))})
    with pytest.raises(SpecError, match="operand 0 has 0 axes but 1 indices"):
        EX.execute(graph, {"x": np.ones(()), "w": np.ones((4, 2))})


def test_an_unranked_input_of_size_one_broadcasts():
    b = GraphBuilder()
    graph = b.build(y=b.input("x") + b.input("z", ("n", 3)))
    assert EX.execute(graph, {"x": np.ones((1, 3)), "z": np.ones((5, 3))})["y"].shape == (5, 3)


# what errors say


def test_the_form_of_an_error():
    b = GraphBuilder()
    w, x = b.input("W", (3, 5)), b.input("X", (9, 2))
    with pytest.raises(ShapeError) as caught:
        b.einsum("ij,jk->ik", w, x)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    text = str(caught.value).splitlines()
    assert text[0] == "index 'j' is 5 in operand 0 ('W') but 9 in operand 1 ('X')"
    assert text[1] == f"  at {__file__}:{line}:9"
    assert text[2] == '    b.einsum("ij,jk->ik", w, x)'
    assert text[3] == "    ^"


def test_the_caret_stands_under_the_call():
    b = GraphBuilder()
    x, y = b.input("x", (3,)), b.input("y", (4,))
    with pytest.raises(ShapeError) as caught:
        _ = [b.exp(x), b.add(x, y)]
    line, caret = caught.value.diagnostic.source_lines()
    assert line[caret.index("^") :].startswith("b.add(x, y)")


def test_the_caret_counts_characters_not_bytes():
    b = GraphBuilder()
    x, y = b.input("größe", (3,)), b.input("y", (4,))
    with pytest.raises(ShapeError) as caught:
        _ = ["ääöü", "日本", b.add(x, y)]
    line, caret = caught.value.diagnostic.source_lines()
    assert line[caret.index("^") :].startswith("b.add(x, y)")


ERRORS: dict[str, tuple[Callable[[GraphBuilder], Any], type[GraphError], str]] = {
    "diagonal": (lambda b: b.einsum("ii", b.input("W", (3, 4))), ShapeError, "index 'i' is 3 and 4 in operand 0 ('W')"),
    "diagonal of one": (
        lambda b: b.einsum("ii", b.input("W", (1, 4))),
        ShapeError,
        "index 'i' is 1 and 4 in operand 0 ('W')",
    ),
    "third operand": (
        lambda b: b.einsum("i,i,i", b.input("a", (1,)), b.input("b", (2,)), b.input("c", (3,))),
        ShapeError,
        "index 'i' is 2 in operand 1 ('b') but 3 in operand 2 ('c')",
    ),
    "a node is %n": (
        lambda b: b.einsum("i,i", b.exp(b.input("a", (2,))), b.input("c", (3,))),
        ShapeError,
        "index 'i' is 2 in operand 0 (%1) but 3 in operand 1 ('c')",
    ),
    "add": (
        lambda b: b.input("x", (2, 3)) + b.input("y", (2, 4)),
        ShapeError,
        "add: operand 1 ('y') has shape [2, 4], which does not fit [2, 3] (4 against 3)",
    ),
    "where": (
        lambda b: b.where(b.input("c", (2,)), 0.0, b.input("y", (3,))),
        ShapeError,
        "where: operand 2 ('y') has shape [3], which does not fit [2] (3 against 2)",
    ),
    "concat": (
        lambda b: b.concat([b.input("x", (2, 3)), b.input("y", (3,))]),
        ShapeError,
        "concat: operand 1 ('y') has shape [3], the first one [2, 3]",
    ),
    "reshape": (
        lambda b: b.reshape(b.input("x", (2, 3)), (4, -1)),
        ShapeError,
        "cannot reshape operand 0 ('x') of shape [2, 3] (6 elements) to [4, -1] (4 elements)",
    ),
    "broadcast": (
        lambda b: b.broadcast_to(b.input("x", (2,)), (3,)),
        ShapeError,
        "cannot broadcast operand 0 ('x') of shape [2] to [3] at axes [0]",
    ),
    "max of nothing": (
        lambda b: b.max(b.input("x", (0, 3)), 0),
        ShapeError,
        "max over no elements has no value: operand 0 ('x') has shape [0, 3]",
    ),
    "window": (
        lambda b: b.window(b.input("x", (3,)), 0, 2, dilation=3),
        ShapeError,
        "a window that reaches over 4 elements does not fit axis 0 of operand 0 ('x'), which has 3",
    ),
    "top_k": (lambda b: b.top_k(b.input("x", (3,)), 4), ShapeError, "top_k asks for 4 of 3 elements along axis 0"),
    "gather": (
        lambda b: b.gather(b.input("x", (3,)), b.input("i", (2,), "float32")),
        DTypeError,
        "gather: indices must be integers, got float32",
    ),
    "bool minus bool": (
        lambda b: b.input("x", (3,), "bool") - b.input("y", (3,), "bool"),
        DTypeError,
        "subtract is not defined for bool and bool",
    ),
    "min_plus of bools": (
        lambda b: b.einsum("i,i", b.input("x", (3,), "bool"), b.input("y", (3,), "bool"), algebra="min_plus"),
        DTypeError,
        "the min_plus algebra adds its factors, which bool cannot do",
    ),
    "carry": (
        lambda b: b.fixpoint(lambda c: c[:1], b.input("x", (3,))),
        ShapeError,
        "carry 0 and what the body makes of it must have equal shapes, got [3] and [1]",
    ),
    "carry dtype": (
        lambda b: b.fixpoint(lambda c: c > 0, b.input("x", (3,), "float32")),
        DTypeError,
        "carry 0 and what the body makes of it must have equal dtypes, got float32 and bool",
    ),
    "branches": (
        lambda b: b.cond(True, lambda: b.constant(np.ones(2)), lambda: b.constant(np.ones(3))),
        ShapeError,
        "output 0 of the two bodies must have equal shapes, got [2] and [3]",
    ),
    "rank": (
        lambda b: b.reshape(b.input("x", (1,)), (1,) * 65),
        ShapeError,
        "reshape: a shape is for more than 64 axes; at most 64 are possible",
    ),
    "axis": (lambda b: b.sum(b.input("x", (3,)), 1), ShapeError, "sum: there is no axis 1 in a tensor of 1 axes"),
    "algebra": (lambda b: b.einsum("i", b.input("x", (3,)), algebra="bolean"), GraphError, "unknown algebra 'bolean'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str):
    make, kind, message = ERRORS[name]
    with pytest.raises(kind) as caught:
        make(GraphBuilder())
    assert caught.value.diagnostic.message == message
    assert caught.value.diagnostic.location is not None
    assert caught.value.diagnostic.location.file == __file__


def test_an_error_at_binding_points_at_the_node():
    b = GraphBuilder()
    x = b.input("x", ("n",))
    y = b.window(x, 0, 5)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(ShapeError, match="window") as caught:
        EX.execute(b.build(y=y), {"x": np.ones(3)})
    assert caught.value.diagnostic.location is not None
    assert caught.value.diagnostic.location.line == line


# dtypes of results


@pytest.mark.parametrize("dtype", [d for d in tl.Executor().capabilities().dtypes if d != "bfloat16"])
def test_dtypes_of_reductions_are_numpys(dtype: str):
    x = np.ones((2, 3), dtype)
    for kind in ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"):
        b = GraphBuilder()
        graph = b.build(y=getattr(b, kind)(b.input("x", (2, 3)), axis=1), z=getattr(b, kind)(b.constant(x)))
        found = EX.execute(graph, {"x": x})
        assert found["y"].dtype == getattr(np, kind)(x, axis=1).dtype, kind
        assert found["z"].dtype == graph.type_of(graph.outputs[1][1]).dtype
    for kind in ("cumsum", "cumprod"):
        b = GraphBuilder()
        assert getattr(b, kind)(b.constant(x), 0).dtype == getattr(np, kind)(x, 0).dtype.name


def test_a_reduction_of_nothing_has_a_value_in_its_dtype():
    b = GraphBuilder()
    for algebra in ("min_plus", "max_plus"):
        empty = b.constant(np.ones((2, 0), np.int64))
        with pytest.raises(tl.TensorLogicError):  # no int64 is infinite
            EX.execute(b.build(y=b.einsum("ij->i", empty, algebra=algebra)), {})


def test_a_body_keeps_the_dtype_of_what_it_is_given():
    b = GraphBuilder()
    x = b.input("x", ("n",))
    graph = b.build(y=b.fixpoint(lambda c: c * 0.5, x, tolerance=1e-3))
    for dtype in ("float16", "float32", "float64"):
        assert EX.execute(graph, {"x": np.ones(2, dtype)})["y"].dtype == dtype


def test_labels_beyond_sixty_four():
    n = 70
    labels = list(range(n))
    first, second = np.ones((2,) + (1,) * 34), np.ones((2,) + (1,) * 35)
    b = GraphBuilder()
    for algebra in ("real", "boolean", "min_plus", "noisy_or"):
        y = b.einsum([labels[:35], [0, *labels[35:]], [0]], first, second, algebra=algebra)
        expected = 2.0 if algebra == "min_plus" else 1.0
        np.testing.assert_array_equal(EX.execute(b.build(y=y), {})["y"], [expected] * 2)
