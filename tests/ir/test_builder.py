"""The builder: interning, operators, indexing as NumPy's, bodies, and very large graphs."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import DTypeError, EinsumGraph, GraphBuilder, GraphError, InputError, ShapeError, TensorLogicError
from tensorlogic.ir import ops
from tensorlogic.ir.graph import MAX_BODY_DEPTH, Node
from tensorlogic.ir.ops import constant_digest, constant_op

EX, REF = tl.Executor(), tl.Executor("reference")


def run(graph: EinsumGraph, **inputs: Any) -> Any:
    """Run on both backends; they must agree."""
    out, again = EX.execute(graph, inputs), REF.execute(graph, inputs)
    for a, b in zip(out, again, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    return out


# interning


def test_equal_nodes_merge_and_keep_their_places():
    b = GraphBuilder()
    x = b.input("x", (3,))
    first = b.exp(x)
    second = b.exp(x)
    graph = b.build(y=first + second)
    assert len(graph) == 3
    places = graph.nodes[1].locations
    assert len(places) == 2
    assert places[1].line == (places[0].line or 0) + 1
    assert places[0].file == __file__
    assert graph.nodes[1].location == places[0]


def test_one_place_is_kept_once_and_at_most_sixteen():
    b = GraphBuilder()
    x = b.input("x", (3,))
    for _ in range(50):
        b.exp(x)
    assert len(b.build(y=b.exp(x)).nodes[1].locations) == 2
    for n in range(40):
        exec(compile("\n" * n + "b.exp(x)", "lines", "exec"), {"b": b, "x": x})
    assert len(b.build(y=b.exp(x)).nodes[1].locations) == 16


def test_what_no_output_needs_is_dropped():
    b = GraphBuilder()
    x, unused = b.input("x", (3,)), b.input("unused", (3,))
    b.exp(unused)
    graph = b.build(y=x * 2)
    assert graph.input_names == ["x"]
    assert len(graph) == 3


def test_without_interning_everything_stays():
    b = GraphBuilder(intern=False)
    x, unused = b.input("x", (3,)), b.input("unused", (3,))
    b.exp(unused)
    graph = b.build(y=b.exp(x) + b.exp(x))
    assert graph.input_names == ["x", "unused"]
    assert [n.op.name for n in graph.nodes] == ["input", "input", "exp", "exp", "exp", "add"]
    found = tl.GraphValidator().validate(graph)
    assert sorted(d.code or "" for d in found.warnings) == ["W201", "W202", "W203"]
    np.testing.assert_allclose(run(graph, x=np.zeros(3), unused=np.zeros(3))["y"], [2, 2, 2])


def test_constants_are_copied_and_kept_once():
    b = GraphBuilder()
    array = np.arange(3.0)
    a, c = b.constant(array), b.constant(array.copy())
    assert a.node == c.node
    array[:] = 9
    graph = b.build(y=a + c)
    assert len(graph.constants) == 1
    np.testing.assert_array_equal(run(graph)["y"], [0, 2, 4])
    (kept,) = graph.constants.values()
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1


def test_scalars_that_are_equal_but_not_the_same_stay_apart():
    b = GraphBuilder()
    x = b.input("x", (2,), "int8")
    assert [(x * s).dtype for s in (True, 1, 1.0)] == ["int8", "int8", "float64"]
    assert (x * True).node != (x * 1).node
    y = b.input("y", (1,), "float64")
    graph = b.build(a=y * 0.0, b=y * -0.0, c=y * float("nan"))
    out = run(graph, y=np.ones(1))
    assert [bool(np.signbit(out[n][0])) for n in "ab"] == [False, True]
    assert np.isnan(out["c"][0])


# equality, hashing, pickling


def sample(name: str = "x", *, line: int = 0) -> EinsumGraph:
    source = "\n" * line + f"x = b.input({name!r}, ('n', 3)); g = b.build(y=b.relu(x @ c) + 1)"
    space: dict[str, Any] = {"b": GraphBuilder(), "c": np.arange(6.0).reshape(3, 2)}
    exec(compile(source, f"sample{line}", "exec"), space)
    return space["g"]


def test_graphs_are_equal_by_structure():
    a, b = sample(line=1), sample(line=7)
    assert a.nodes[0].location != b.nodes[0].location
    assert (a, hash(a), a.digest) == (b, hash(b), b.digest)
    assert a != sample("z")
    assert a.digest != sample("z").digest
    assert a != "graph"
    assert len({a, b, sample("z")}) == 2


def test_constants_count_in_equality():
    def make(value: Any) -> EinsumGraph:
        b = GraphBuilder()
        return b.build(y=b.constant(value) * 2)

    assert make([1.0, 2.0]) == make([1.0, 2.0])
    assert make([1.0, 2.0]) != make([1.0, 3.0])
    assert make(np.float32([1.0])) != make(np.float64([1.0]))
    assert make(np.ones((2, 3))) != make(np.ones((3, 2)))


def test_numpy_scalars_as_literals():
    b = GraphBuilder()
    assert b.literal(np.int64(3)).node == b.literal(3).node
    assert b.literal(np.float32(0.5)).node == b.literal(0.5).node


def test_constants_given_to_a_graph_are_out_of_the_callers_reach():
    array = np.array([1.0, 2.0])
    view = array[:]
    view.setflags(write=False)
    for mine in (array, view):
        graph = EinsumGraph([Node(constant_op(mine))], [("y", 0)], {constant_digest(mine): mine})
        array[0] = 9.0
        assert run(graph)["y"].tolist() == [1.0, 2.0]
        array[0] = 1.0
    (kept,) = graph.constants.values()
    assert not kept.flags.writeable
    again = EinsumGraph(graph.nodes, graph.outputs, graph.constants)
    assert next(iter(again.constants.values())) is kept  # nothing to copy
    with pytest.raises(TypeError):
        graph.constants["x"] = array  # type: ignore[index]
    with pytest.raises(TypeError):
        graph.inputs["x"] = 3  # type: ignore[index]
    assert copy.deepcopy(graph) == pickle.loads(pickle.dumps(graph)) == graph


def test_pickle_round_trips():
    graph = sample()
    graph.inference
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert hash(again) == hash(graph)
    assert again.digest == graph.digest
    assert again.nodes[0].locations == graph.nodes[0].locations
    x = np.ones((2, 3))
    np.testing.assert_array_equal(run(again, x=x)["y"], run(graph, x=x)["y"])
    assert not any(array.flags.writeable for array in again.constants.values())


def test_graphs_do_not_change():
    graph = sample()
    with pytest.raises(tl.GraphError, match="does not change"):
        graph.nodes = ()
    with pytest.raises((AttributeError, TypeError)):
        graph.nodes[0].args = (5,)


def test_two_graphs_from_one_builder():
    b = GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    y = b.relu(x @ w)
    layer, loss = b.build(y=y), b.build(loss=b.sum(b.square(y)))
    assert layer.input_names == loss.input_names == ["x", "w"]
    X, W = np.ones((2, 3)), np.ones((3, 2))
    assert run(loss, x=X, w=W)["loss"] == np.sum(run(layer, x=X, w=W)["y"] ** 2)
    before = len(layer)
    b.exp(y)
    assert len(layer) == before


# operators

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip


@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
def test_operators(op: Callable[[Any, Any], Any]):
    b = GraphBuilder()
    X, Y = np.array([[1.5, -2.0, 3.0]]), np.array([2.0, 3.0, 3.0])
    x, y = b.input("x", (1, 3), "float64"), b.input("y", (3,), "float64")
    graph = b.build(xy=op(x, y), xs=op(x, 2.0), sx=op(2.0, y), xa=op(x, Y), ax=op(Y, y))
    out = run(graph, x=X, y=Y)
    for name, expected in {"xy": op(X, Y), "xs": op(X, 2.0), "sx": op(2.0, Y), "xa": op(X, Y), "ax": op(Y, Y)}.items():
        np.testing.assert_array_equal(out[name], expected)
        assert out[name].dtype == expected.dtype


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
def test_logical_operators(op: Callable[[Any, Any], Any]):
    b = GraphBuilder()
    X, Y = np.array([True, True, False]), np.array([True, False, False])
    x = b.input("x", (3,), "bool")
    out = run(b.build(a=op(x, Y), c=op(Y, x), s=op(x, True), n=~x), x=X)
    np.testing.assert_array_equal(out["a"], op(X, Y))
    np.testing.assert_array_equal(out["c"], op(Y, X))
    np.testing.assert_array_equal(out["s"], op(X, True))
    np.testing.assert_array_equal(out["n"], ~X)


def test_one_operand_and_methods():
    b = GraphBuilder()
    X = np.array([[1.5, -2.0, 3.0], [0.0, 1.0, -1.0]])
    x = b.input("x", (2, 3), "float64")
    graph = b.build(
        n=-x, a=abs(x), t=x.T, r=x.reshape(3, 2), r2=x.reshape((3, -1)), r3=x.reshape(-1), p=x.transpose(1, 0),
        s=x.sum(), m=x.mean(0), mx=x.max(1, keepdims=True), mn=x.min((0, 1)), c=x.astype("float32"), mm=x @ X.T, rm=X.T @ x,
    )  # fmt: skip
    out = run(graph, x=X)
    expected = {
        "n": -X, "a": abs(X), "t": X.T, "r": X.reshape(3, 2), "r2": X.reshape(3, 2), "r3": X.reshape(-1), "p": X.T,
        "s": X.sum(), "m": X.mean(0), "mx": X.max(1, keepdims=True), "mn": X.min(), "c": X.astype("float32"),
        "mm": X @ X.T, "rm": X.T @ X,
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(out[name], value)
        assert out[name].shape == value.shape


def test_transpose_takes_a_tuple_as_numpy_does():
    x = GraphBuilder().input("x", (2, 3, 4))
    assert x.transpose((2, 0, 1)).shape == x.transpose(2, 0, 1).shape == (4, 2, 3)


@pytest.mark.parametrize(
    ("a", "c"), [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((4, 2, 3), (3, 5)), ((2, 3), (4, 3, 5)), ((4, 2, 3), (3,)),
                 ((3,), (4, 3, 2)), ((5, 1, 2, 3), (4, 3, 2))]
)  # fmt: skip
def test_matmul_is_numpys(a: tuple[int, ...], c: tuple[int, ...]):
    rng = np.random.default_rng(0)
    A, C = rng.random(a), rng.random(c)
    b = GraphBuilder()
    np.testing.assert_allclose(run(b.build(y=b.input("a", a) @ C), a=A)["y"], A @ C)


@pytest.mark.parametrize(("a", "c"), [((3, 1), (4, 5)), ((3, 4), (1, 5)), ((1,), (4,)), ((), (3,)), ((2, 3), (2, 3))])
def test_matmul_refuses_what_numpy_refuses(a: tuple[int, ...], c: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"matmul"):
        np.ones(a) @ np.ones(c)
    b = GraphBuilder()
    with pytest.raises(ShapeError):
        b.matmul(b.input("a", a), b.input("c", c))


def test_a_tensor_has_no_truth_value_and_no_iterator():
    b = GraphBuilder()
    x = b.input("x", (3,))
    for use in (lambda: bool(x), lambda: bool(x > 0), lambda: 0 < x < 1, lambda: x in [x + 1]):
        with pytest.raises(GraphError, match="truth value") as caught:
            use()
        assert "b.where" in caught.value.diagnostic.suggestions[0]
    for use in (lambda: list(x), lambda: iter(x), lambda: (lambda *a: a)(*x)):
        with pytest.raises(GraphError, match="iterated"):
            use()
    assert len({x, x + 1}) == 2  # hashable, by identity


# indexing

ARRAY = np.arange(2 * 5 * 3.0).reshape(2, 5, 3)


@st.composite
def indices(draw: st.DrawFn) -> Any:
    keys: list[Any] = []
    for size in ARRAY.shape[: draw(st.integers(0, 3))]:
        if draw(st.booleans()):
            keys.append(draw(st.integers(-size, size - 1)))
        else:
            bound = st.none() | st.integers(-size - 2, size + 2)
            keys.append(slice(draw(bound), draw(bound), draw(st.none() | st.sampled_from([1, 2, 3, -1, -2, -7]))))
    for _ in range(draw(st.integers(0, 2))):
        keys.insert(draw(st.integers(0, len(keys))), None)
    if draw(st.booleans()):
        keys.append(Ellipsis)
    return keys[0] if len(keys) == 1 and draw(st.booleans()) else tuple(keys)


@settings(deadline=None, max_examples=200)
@given(indices())
def test_indexing_is_numpys(key: Any):
    b = GraphBuilder()
    y = b.input("x", ARRAY.shape)[key]
    assert y.shape == ARRAY[key].shape
    np.testing.assert_array_equal(EX.execute(b.build(y=y), {"x": ARRAY})["y"], ARRAY[key])


def _plain(key: Any) -> bool:
    """Whether no slice reaches over the end or runs backwards, so that nothing is clipped."""
    keys = [k for k in (key if isinstance(key, tuple) else (key,)) if k is not None and k is not Ellipsis]
    for k, size in zip(keys, ARRAY.shape, strict=False):
        if not isinstance(k, slice):
            continue
        step = k.step or 1
        start = (0 if step > 0 else size - 1) if k.start is None else k.start + size * (k.start < 0)
        stop = (size if step > 0 else -1) if k.stop is None else k.stop + size * (k.stop < 0)
        if not 0 <= start <= (size if step > 0 else size - 1) or (stop - start) * step < 0 or stop > size:
            return False
        if k.stop is not None and stop < 0:
            return False
    return True


@settings(deadline=None, max_examples=300)
@given(indices())
def test_indexing_symbolic_sizes_gives_the_same_or_is_refused(key: Any):
    b = GraphBuilder()
    try:
        y = b.input("x", ("n", "m", "k"))[key]
        found = EX.execute(b.build(y=y), {"x": ARRAY})["y"]
    except ShapeError:
        assert not _plain(key)
        return
    assert found.shape == ARRAY[key].shape
    np.testing.assert_array_equal(found, ARRAY[key])


def test_indexing_with_named_bounds():
    b = GraphBuilder()
    x = b.input("x", ("n",))
    graph = b.build(a=x["k":], b=x[:"n-k"], c=x["k":"k+2"], d=x[-2:], e=x[::-1], f=x[::2])
    assert [str(graph.type_of(i).shape) for _, i in graph.outputs] == [
        "[n-k]",
        "[n-k]",
        "[2]",
        "[2]",
        "[n]",
        "[(n+1)//2]",
    ]
    X = np.arange(7.0)
    out = EX.execute(graph, {"x": X}, sizes={"k": 3})
    for name, expected in {"a": X[3:], "b": X[:4], "c": X[3:5], "d": X[-2:], "e": X[::-1], "f": X[::2]}.items():
        np.testing.assert_array_equal(out[name], expected)


@pytest.mark.parametrize("shape", [(4, 3), ("n", "m")], ids=["static", "symbolic"])
@pytest.mark.parametrize(
    "key",
    [1.0, "a", True, [0, 1], (0, 0, 0), (..., ...), slice(None, None, 0), np.array([0, 1]), np.array([True, False]),
     slice(1.5, None), slice(None, 2.5), slice(None, None, 1.5), slice(None, None, "a"), slice([1], None)],
    ids=repr,
)  # fmt: skip
def test_bad_indices(shape: tuple[Any, ...], key: Any):
    with pytest.raises(ShapeError):
        GraphBuilder().input("x", shape)[key]


def test_indexing_by_a_tensor_points_to_gather():
    b = GraphBuilder()
    x, i = b.input("x", (4, 3)), b.input("i", (2,), "int64")
    for key in (i, (0, i), np.array([0, 1])):
        with pytest.raises(ShapeError) as caught:
            x[key]
        assert "b.gather" in caught.value.diagnostic.suggestions[0]


def test_an_index_out_of_range():
    b = GraphBuilder()
    with pytest.raises(ShapeError, match="index 4 is out of range for axis 0 of size 4"):
        b.input("x", (4, 3))[4]
    y = b.input("s", ("n",))[4]
    with pytest.raises(ShapeError, match="'s'"):
        EX.execute(b.build(y=y), {"s": np.ones(3)})
    assert EX.execute(b.build(y=y), {"s": np.arange(5.0)})["y"] == 4


# inputs and operands


def test_the_same_input_twice_is_one():
    b = GraphBuilder()
    assert b.input("x", ("n", 3), "float32").node == b.input("x", ["n", 3], np.float32).node


@pytest.mark.parametrize(("shape", "dtype"), [(("m", 3), "float32"), (("n", 3), None), (None, "float32")])
def test_an_input_declared_otherwise(shape: Any, dtype: Any):
    b = GraphBuilder()
    b.input("x", ("n", 3), "float32")
    with pytest.raises(GraphError, match=r"input 'x' is declared twice, as float32\[n, 3\] and as") as caught:
        b.input("x", shape, dtype)
    assert caught.value.diagnostic.code == "E107"


@pytest.mark.parametrize("name", ["", None, 3, b"x"])
def test_bad_input_names(name: Any):
    with pytest.raises(GraphError, match="needs a name"):
        GraphBuilder().input(name)


@pytest.mark.parametrize("shape", [3, "n", np.int64(3), 2.5, ("n+",), (-1,), (1.5,)], ids=repr)
def test_bad_input_shapes(shape: Any):
    with pytest.raises(GraphError):
        GraphBuilder().input("x", shape)


@pytest.mark.parametrize("name", ["größe", "日本", "a b", "x[0]", "0", "𝛼", "e\u0301", "it's", '"', "a\nb", "²x", "%1"])
def test_names_of_every_kind(name: str):
    b = GraphBuilder()
    graph = b.build({name + "!": b.input(name, (None, "n")) * 2})
    assert graph.input_names == [name]
    out = run(graph, **{name: np.ones((2, 3))})
    np.testing.assert_array_equal(out[name + "!"], np.full((2, 3), 2.0))
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert EinsumGraph.from_text(graph.to_text()) == graph


def test_open_sizes_of_two_inputs_are_unrelated():
    b = GraphBuilder()
    x, y = b.input("a b", (None,)), b.input("a_b", (None,))
    out = EX.execute(b.build(x=x * 2, y=y * 2), {"a b": np.ones(2), "a_b": np.ones(3)})
    assert (out["x"].shape, out["y"].shape) == ((2,), (3,))


def test_an_open_size_of_an_input_with_a_long_name():
    assert GraphBuilder().input("x" * 2000, (None,)).shape is not None


def test_tensors_of_another_builder():
    a, b = GraphBuilder(), GraphBuilder()
    x, y = a.input("x", (3,)), b.input("y", (3,))
    for use in (lambda: a.add(x, y), lambda: x + y, lambda: a.build(y=y), lambda: a.fixpoint(lambda c: c * y, x)):
        with pytest.raises(GraphError, match="another builder"):
            use()
    assert a.build(x=x) is not None


@pytest.mark.parametrize(
    "value", ["a", None, object(), [[1], [1, 2]], 1 + 2j, np.array(["a"]), {}, {1}, 10**5000],
    ids=["word", "none", "object", "ragged", "complex", "words", "dict", "set", "huge"],
)  # fmt: skip
def test_bad_operands(value: Any):
    b = GraphBuilder()
    x = b.input("x", (3,))
    with pytest.raises(GraphError):
        x + value


def test_constants_that_are_not_rectangular():
    with pytest.raises(DTypeError):
        GraphBuilder().constant([[1], [1, 2]])


def test_bad_outputs():
    b = GraphBuilder()
    x = b.input("x", (3,))
    for use in (
        b.build,
        lambda: b.build({}),
        lambda: b.build(y=np.ones(3)),
        lambda: b.build([x]),
        lambda: b.build({1: x}),
    ):
        with pytest.raises((GraphError, InputError)):
            use()
    with pytest.raises(InputError, match=r"output 'y' must be a tensor"):
        b.build(y=3)


BAD_CALLS: dict[str, Callable[[GraphBuilder, Any], Any]] = {
    "sum over half an axis": lambda b, x: b.sum(x, 1.5),
    "sum over a word": lambda b, x: b.sum(x, "a"),
    "sum over an axis that is not there": lambda b, x: b.sum(x, 2),
    "sum over an axis twice": lambda b, x: b.sum(x, (0, -2)),
    "argmax over two axes": lambda b, x: b.argmax(x, (0, 1)),
    "cumsum over half an axis": lambda b, x: b.cumsum(x, 0.5),
    "cumsum over an axis that is not there": lambda b, x: b.cumsum(x, 2),
    "sort": lambda b, x: b.sort(x, 5),
    "top_k of too many": lambda b, x: b.top_k(x, 4),
    "top_k of half": lambda b, x: b.top_k(x, 1.5),
    "top_k of minus one": lambda b, x: b.top_k(x, -1),
    "transpose by one number": lambda b, x: b.transpose(x, 1),
    "transpose an axis twice": lambda b, x: b.transpose(x, (0, 0)),
    "reshape to a number": lambda b, x: b.reshape(x, 6),
    "reshape to half": lambda b, x: b.reshape(x, (1.5, 4)),
    "reshape to too many": lambda b, x: b.reshape(x, (2, 2)),
    "reshape with two open sizes": lambda b, x: b.reshape(x, (-1, -1)),
    "reshape to minus two": lambda b, x: b.reshape(x, (-2, -3)),
    "pad by a number": lambda b, x: b.pad(x, 1),
    "pad by numbers": lambda b, x: b.pad(x, [1, 2]),
    "pad by halves": lambda b, x: b.pad(x, [(1.5, 0), (0, 0)]),
    "pad by less than nothing": lambda b, x: b.pad(x, [(-1, 0), (0, 0)]),
    "pad one axis of two": lambda b, x: b.pad(x, [(1, 0)]),
    "pad with a vector": lambda b, x: b.pad(x, [(1, 0), (0, 0)], np.ones(2)),
    "concat of nothing": lambda b, x: b.concat([]),
    "concat of scalars": lambda b, x: b.concat([1, 2]),
    "concat of ranks": lambda b, x: b.concat([x, x[0]]),
    "concat of sizes": lambda b, x: b.concat([x, np.ones((2, 4))]),
    "window too wide": lambda b, x: b.window(x, 0, 3),
    "window of none": lambda b, x: b.window(x, 0, 0),
    "window by half steps": lambda b, x: b.window(x, 0, 1, step=1.5),
    "window by no steps": lambda b, x: b.window(x, 0, 1, step=0),
    "broadcast to less": lambda b, x: b.broadcast_to(x, (3,)),
    "broadcast to another": lambda b, x: b.broadcast_to(x, (4, 2, 4)),
    "squeeze": lambda b, x: b.squeeze(x, 0),
    "expand_dims": lambda b, x: b.expand_dims(x, 7),
    "gather by floats": lambda b, x: b.gather(x, np.ones(2)),
    "gather along no axis": lambda b, x: b.gather(x, np.array([0]), 5),
    "gather batch": lambda b, x: b.gather(x, np.array([0]), 0, batch=1),
    "scatter": lambda b, x: b.scatter_add(x, np.array([0]), np.ones((2, 3))),
    "iota of less than none": lambda b, x: b.iota(-1),
    "iota of truth": lambda b, x: b.iota(5, "bool"),
    "cast": lambda b, x: b.cast(x, "float23"),
    "cast to nothing": lambda b, x: b.cast(x, None),
    "quantize to floats": lambda b, x: b.quantize(x, 0.5, 0, "float16"),
    "quantize by a vector": lambda b, x: b.quantize(x, np.ones(2, np.float32), 0),
    "quantize by integers": lambda b, x: b.quantize(x, 2, 0),
    "algebra": lambda b, x: b.einsum("ij->i", x, algebra="rael"),
    "algebra of no kind": lambda b, x: b.einsum("ij->i", x, algebra=["real"]),
    "vjp of boolean": lambda b, x: b.contract_vjp("ij->i", "boolean", 0, x, x[:, 0], x[:, 0]),
    "vjp of no factor": lambda b, x: b.contract_vjp("ij->i", "real", 1, x, x[:, 0], x[:, 0]),
    "apply a word": lambda b, x: b.apply("relu", x),
    "apply the base": lambda b, x: b.apply(ops.Op(), x),
    "apply an unknown function": lambda b, x: b.apply(ops.Elementwise("rellu"), x),
    "apply to too few": lambda b, x: b.apply(ops.Elementwise("add"), x),
    "fixpoint of nothing": lambda b, x: b.fixpoint(lambda: ()),
    "fixpoint of two for one": lambda b, x: b.fixpoint(lambda c: (c, c), x),
    "fixpoint of another shape": lambda b, x: b.fixpoint(lambda c: c[0], x),
    "fixpoint of another dtype": lambda b, x: b.fixpoint(lambda c: c > 0, x),
    "fixpoint that combines oddly": lambda b, x: b.fixpoint(lambda c: c, x, combine="and"),
    "fixpoint without rounds": lambda b, x: b.fixpoint(lambda c: c, x, limit=0),
    "fixpoint with a word for a limit": lambda b, x: b.fixpoint(lambda c: c, x, limit="a"),
    "fixpoint with a word for a tolerance": lambda b, x: b.fixpoint(lambda c: c, x, tolerance="a"),
    "fixpoint with nan for a tolerance": lambda b, x: b.fixpoint(lambda c: c, x, tolerance=float("nan")),
    "fixpoint of a word": lambda b, x: b.fixpoint(lambda c: "c", x),
    "scan that returns one": lambda b, x: b.scan(lambda c, r: c, x[0], x),
    "scan over a scalar": lambda b, x: b.scan(lambda c, r: (c, r), 0.0, 1.0),
    "scan over nothing": lambda b, x: b.scan(lambda c, r: (c, None), 0.0),
    "scan of other length": lambda b, x: b.scan(lambda c, r: (c, None), 0.0, x, length=5),
    "scan of two for one": lambda b, x: b.scan(lambda c, r: ((c, c), None), 0.0, x),
    "cond by a vector": lambda b, x: b.cond(x, lambda: x, lambda: x),
    "cond of shapes": lambda b, x: b.cond(True, lambda: x, lambda: x[0]),
    "cond of dtypes": lambda b, x: b.cond(True, lambda: x, lambda: x > 0),
    "cond of counts": lambda b, x: b.cond(True, lambda: x, lambda: (x, x)),
    "cumulate along a word": lambda b, x: b.cumsum(x, "a"),
    "sum of any rank along a word": lambda b, x: b.sum(b.input("any"), ""),
    "top_k of a word": lambda b, x: b.top_k(x, "a"),
    "broadcast to a number": lambda b, x: b.broadcast_to(x, 3),
    "broadcast to a word": lambda b, x: b.broadcast_to(x, "ab"),
    "reshape to an array": lambda b, x: b.reshape(x, [np.array([2, 3])]),
    "concat of a number": lambda b, x: b.concat(3),
    "stack of a tensor": lambda b, x: b.stack(x),
    "sum of a ragged list": lambda b, x: b.sum([[1], [2, 3]]),
    "gather with a word for a batch": lambda b, x: b.gather(x, np.array([0]), batch="a"),
    "scatter with a word for a batch": lambda b, x: b.scatter_add(x, np.array([0]), x, batch="a"),
    "quantize along a word": lambda b, x: b.quantize(x, 0.5, 0, axis="a"),
    "dequantize along a word": lambda b, x: b.dequantize(x, 0.5, 0, axis="a"),
    "vjp of a number": lambda b, x: b.contract_vjp(3, "real", 0, x),
    "vjp of a word": lambda b, x: b.contract_vjp("ij->i", "real", "a", x, x[:, 0], x[:, 0]),
    "slice by an array": lambda b, x: x[np.array([0, 1]) :],
    "slice by steps of a word": lambda b, x: x[::"n"],
    "literal of a word": lambda b, x: b.literal("1"),
    "inline of nothing": lambda b, x: b.inline(None),
    "inline of a list": lambda b, x: b.inline(b.build(y=x), [x]),
    "inline of another input": lambda b, x: b.inline(b.build(y=x), {"z": x}),
    "inline of a broken graph": lambda b, x: b.inline(EinsumGraph([Node(ops.Elementwise("relu"), (3,))], [("y", 0)])),
    "attention of scalars": lambda b, x: b.attention(1.0, 1.0, 1.0),
    "apply a list": lambda b, x: b.apply([], x),
    "fixpoint that combines by a number": lambda b, x: b.fixpoint(lambda c: c, x, combine=3),
    "fixpoint that combines by a list": lambda b, x: b.fixpoint(lambda c: c, x, combine=[]),
    "fixpoint of no function": lambda b, x: b.fixpoint(3, x),
    "fixpoint of a function of nothing": lambda b, x: b.fixpoint(lambda: x, x),
    "scan of no function": lambda b, x: b.scan(3, x),
    "scan of a function of one": lambda b, x: b.scan(lambda c: (c, c), x[0], x),
    "cond of no functions": lambda b, x: b.cond(True, None, None),
    "cond of a function of one": lambda b, x: b.cond(True, lambda: x, lambda c: x),
    "input within a body": lambda b, x: b.fixpoint(lambda c: c + b.input("z", (2, 3)), x),
    "build within a body": lambda b, x: b.fixpoint(lambda c: b.build(c=c), x),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name: str):
    b = GraphBuilder()
    x = b.input("x", (2, 3), "float32")
    with pytest.raises((GraphError, InputError)) as caught:
        BAD_CALLS[name](b, x)
    found = caught.value.diagnostic
    assert found.code
    assert found.location is not None
    assert found.location.file == __file__
    run(b.build(y=x + 1), x=np.ones((2, 3), np.float32))  # the builder is still good


# bodies


def test_nested_bodies_read_what_is_around_them():
    rng = np.random.default_rng(1)
    E, X, W = rng.random((4, 4)) < 0.3, rng.random((3, 4)), rng.random(4)
    b = GraphBuilder()
    edge, xs, flag = b.input("edge", ("n", "n"), "bool"), b.input("xs", ("t", "n")), b.input("flag", (), "bool")
    scale = b.exp(b.sum(xs))
    constant = b.constant(W)

    def step(c: Any, row: Any) -> tuple[Any, Any]:
        def grow(r: Any) -> Any:
            return b.einsum("xy,yz->xz", r, edge, algebra="boolean")

        path = b.fixpoint(grow, edge, combine="or")
        mixed = b.einsum("xy,y->x", b.cast(path, "float64"), row * constant)
        return c + mixed * 0.5, b.sum(mixed) + scale

    def then() -> Any:
        last, out = b.scan(step, constant * 0.0, xs)
        return last, out

    def otherwise() -> Any:
        return constant * scale, b.sum(xs, 1)

    last, out = b.cond(flag, then, otherwise)
    graph = b.build(last=last, out=out)
    assert tl.GraphValidator().validate(graph).is_valid()
    path = E.copy()
    for _ in range(5):
        path |= (path.astype(int) @ E.astype(int)) > 0
    mixed = (path @ (X * W).T).T
    found = run(graph, edge=E, xs=X, flag=np.array(True))
    np.testing.assert_allclose(found["last"], mixed.sum(0) * 0.5)
    np.testing.assert_allclose(found["out"], mixed.sum(1) + np.exp(X.sum()))
    found = run(graph, edge=E, xs=X, flag=np.array(False))
    np.testing.assert_allclose(found["last"], W * np.exp(X.sum()))
    np.testing.assert_allclose(found["out"], X.sum(1))
    assert EinsumGraph.from_json(graph.to_json()) == graph
    assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize("intern", [True, False])
def test_a_cond_whose_bodies_read_different_tensors(intern: bool):
    b = GraphBuilder(intern=intern)
    x, y, z = (b.input(n, (2,), "float64") for n in "xyz")
    flag = b.input("flag", (), "bool")
    graph = b.build(r=b.cond(flag, lambda: y - x, lambda: z * y))
    data = {"x": np.array([1.0, 2.0]), "y": np.array([5.0, 7.0]), "z": np.array([3.0, 4.0])}
    np.testing.assert_array_equal(run(graph, flag=np.array(True), **data)["r"], [4, 5])
    np.testing.assert_array_equal(run(graph, flag=np.array(False), **data)["r"], [15, 28])


def test_tensors_cannot_escape_a_body():
    b = GraphBuilder()
    x = b.input("x", (3,))
    kept: list[Any] = []

    def body(c: Any) -> Any:
        kept.append(c * 2)
        return c * 0.5

    y = b.fixpoint(body, x, tolerance=1e-3)
    for use in (lambda: y + kept[0], lambda: b.build(y=kept[0]), lambda: b.fixpoint(lambda c: c + kept[0], x)):
        with pytest.raises(GraphError, match="inside a body") as caught:
            use()
        assert caught.value.diagnostic.suggestions == ("return it from the body",)


def test_an_error_in_a_body_leaves_the_builder_outside():
    b = GraphBuilder()
    x = b.input("x", (3,))
    with pytest.raises(ZeroDivisionError):
        b.fixpoint(lambda c: c * (1 / 0), x)
    assert len(b.build(y=x * 2)) == 3


def test_bodies_nest_only_so_deep():
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")

    def nest(depth: int) -> Any:
        return x * 1 if depth == 0 else b.cond(True, lambda: nest(depth - 1), lambda: x)

    np.testing.assert_array_equal(
        EX.execute(b.build(y=nest(MAX_BODY_DEPTH)), {"x": np.ones(3, np.float32)})["y"], np.ones(3)
    )
    with pytest.raises(GraphError, match="nested"):
        nest(MAX_BODY_DEPTH + 1)


# size


@pytest.fixture(scope="module")
def chain() -> EinsumGraph:
    """A chain 50,000 deep."""
    b = GraphBuilder()
    x = b.input("x", ("n",), "float64")
    for n in range(25_000):
        x = b.negative(x + float(n % 7))
    return b.build(y=x)


@pytest.fixture(scope="module")
def wide() -> EinsumGraph:
    """A graph of 100,000 nodes."""
    b = GraphBuilder()
    x = b.input("x", (2,), "float64")
    total = x
    for n in range(33_333):
        total = total + x * float(n)
    return b.build(y=total)


def test_a_deep_chain(chain: EinsumGraph):
    assert len(chain) >= 50_000
    assert tl.GraphValidator().validate(chain).is_valid()
    again = pickle.loads(pickle.dumps(chain))
    assert again == chain
    assert hash(again) == hash(chain)
    assert again.digest == chain.digest
    value = np.array([1.0, 2.0])
    expected = value.copy()
    for n in range(25_000):
        expected = -(expected + float(n % 7))
    np.testing.assert_array_equal(EX.execute(chain, {"x": value})["y"], expected)
    other = EinsumGraph([*chain.nodes[:-1], Node(ops.Elementwise("exp"), chain.nodes[-1].args)], chain.outputs)
    assert other != chain
    assert other.digest != chain.digest


def test_a_large_graph(wide: EinsumGraph):
    assert len(wide) >= 99_999
    found = tl.GraphValidator().validate(wide)
    assert found.is_valid()
    assert not found.warnings
    again = pickle.loads(pickle.dumps(wide))
    assert again == wide
    assert hash(again) == hash(wide)
    np.testing.assert_array_equal(EX.execute(wide, {"x": np.array([0.0, 1.0])})["y"], [0, 1 + 33_333 * 33_332 / 2])


def test_unknown_inputs_are_named():
    b = GraphBuilder()
    graph = b.build(y=b.input("weights", (2,)) * 2)
    with pytest.raises(InputError) as caught:
        EX.execute(graph, {"wieghts": np.ones(2)})
    assert "'weights'" in caught.value.diagnostic.suggestions[0]
    assert isinstance(caught.value, TensorLogicError)
