"""Mistakes that are told in the words of what was written, with what to write instead."""

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.diagnostics import value_text
from tensorlogic.ir.tensor import ELSEWHERE


@pytest.fixture
def b():
    return tl.GraphBuilder()


@pytest.fixture
def x(b):
    return b.input("x", (3,), "float32")


def test_an_input_that_no_output_uses_is_said_to_be_declared(b, x):
    b.input("z", (3,), "float32")
    graph = b.build(y=b.sum(x))
    for ask in (
        lambda: tl.Executor().execute(graph, {"x": np.ones(3, "float32"), "z": np.ones(3, "float32")}),
        lambda: tl.grad(graph, wrt=["z"]),
    ):
        with pytest.raises(tl.TensorLogicError, match="'z' was declared, but no output depends on it"):
            ask()
    with pytest.raises(tl.InputError, match="the graph has no input 'q'"):
        tl.Executor().execute(graph, {"x": np.ones(3, "float32"), "q": 1})


def test_a_loop_that_begins_with_a_number_of_python_is_told_the_dtype_to_begin_with(b, x):
    with pytest.raises(tl.DTypeError, match=r"hint: start from np\.float32\(0\)"):
        b.scan(lambda t, i: (t + i, t + i), 0, x)
    last, _ = b.scan(lambda t, i: (t + i, t + i), np.float32(0), x)
    assert tl.Executor().execute(b.build(y=last), {"x": np.ones(3, "float32")})["y"] == 3


def test_a_variable_of_whole_numbers_is_told_to_begin_with_floats():
    with pytest.raises(tl.DTypeError, match=r"hint: begin with floats: tl\.Variable\(\[1\.0, 2\.0\]\)"):
        tl.Variable([1, 2]).sum().backward()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm"])
def test_an_axis_out_of_range_names_the_operation_that_was_written(b, x, name):
    with pytest.raises(tl.ShapeError, match=rf"^{name}: there is no axis 5"):
        getattr(b, name)(x, axis=5)
    with pytest.raises(tl.ShapeError, match=rf"^{name}: there is no axis 5"):
        getattr(tl.eager, name)(np.ones(3), axis=5)


def test_a_fixpoint_that_grows_slowly_shows_the_digits_that_change(b):
    far = b.fixpoint(lambda t: t + 1, b.input("start", (), "float64"), limit=1000)
    with pytest.raises(tl.ConvergenceError, match="from 10000999 to 10001000"):
        tl.Executor().execute(b.build(y=far), {"start": 1e7})


def classifier(b):
    x, labels = b.input("x", ("n", 4), "float32"), b.input("labels", ("n",), "int64")
    w, c = b.input("w", (4, 3), "float32"), b.input("c", (3,), "float32")
    return b.build(loss=b.cross_entropy(b.linear(x, w, c), labels))


def test_one_hot_labels_are_told_to_give_class_numbers(b):
    params = {"w": np.zeros((4, 3), "float32"), "c": np.zeros(3, "float32")}
    data = {"x": np.ones((40, 4), "float32"), "labels": np.eye(3, dtype="float32")[np.zeros(40, int)]}
    with pytest.raises(tl.DTypeError, match=r"one-hot, give the numbers of the classes: labels\.argmax\(-1\)"):
        tl.Trainer().fit(classifier(b), params, data)
    tl.Trainer(None, tl.TrainerConfig(epochs=1)).fit(
        classifier(b), params, data | {"labels": data["labels"].argmax(-1)}
    )


def test_a_forgotten_parameter_is_looked_for_among_the_parameters(b):
    data = {"x": np.ones((40, 4), "float32"), "labels": np.zeros(40, int)}
    with pytest.raises(tl.InputError, match=r"hint: give its first value: params=\{\.\.\., 'c': \.\.\.\}"):
        tl.Trainer().fit(classifier(b), {"w": np.zeros((4, 3), "float32")}, data)


def assign(x):
    x[0] = 1


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (len, r"has no length while it is being built(.|\n)*x\.shape\[0\]"),
        (float, r"has no values while it is being built(.|\n)*execute the graph first"),
        (int, "has no values while it is being built"),
        (assign, r"does not change(.|\n)*b\.where\(condition, value, x\)"),
        (lambda x: x.dot(x), "has no 'dot'; write x @ y"),
        (lambda x: x.softmax(), r"has no 'softmax'; write b\.softmax\(x\)"),
        (lambda x: x.foo, "has no 'foo'$"),
    ],
)
def test_what_an_array_has_and_a_tensor_of_a_graph_has_not(x, use, message):
    with pytest.raises((tl.GraphError, AttributeError), match=message):
        use(x)


def test_a_graph_is_not_saved_into_a_folder_that_is_not_there(b, x, tmp_path):
    with pytest.raises(tl.FormatError, match=r"cannot write '.*g\.json': there is no folder '.*none'(.|\n)*mkdir -p"):
        b.build(y=b.sum(x)).save(tmp_path / "none" / "g.json")


def test_an_array_is_no_graph_and_is_said_to_be_one(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    np.savez(tmp_path / "x.npz", x=np.ones(3))
    with pytest.raises(tl.FormatError, match="is not a graph file: it is a NumPy array"):
        tl.EinsumGraph.load(tmp_path / "x.npy")
    with pytest.raises(tl.FormatError, match="is not a graph file: it is a zip archive"):
        tl.EinsumGraph.load(tmp_path / "x.npz")


def test_a_flame_graph_is_a_picture_that_is_not_read_back(tmp_path):
    with tl.trace() as trace:
        b = tl.GraphBuilder()
        tl.Executor().execute(b.build(y=b.exp(b.input("x", (3,)))), {"x": np.ones(3)})
    trace.save(tmp_path / "a.svg")
    with pytest.raises(tl.FormatError, match=r"is a picture \(SVG\), which is not read back"):
        tl.Trace.load(tmp_path / "a.svg")


def test_an_optimizer_that_there_is_not_names_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'adam'"):
        _ = tl.optim.adma


def test_a_shape_that_does_not_fit_is_told_in_plain_words(b):
    graph = b.build(y=b.sum(b.input("w", (4, 3), "float64")))
    with pytest.raises(tl.ShapeError) as caught:
        tl.Executor().execute(graph, {"w": np.zeros((4, 2))})
    found = caught.value.diagnostic
    assert found.message == "input 'w' does not fit: axis 1 must be 3, got 2"
    assert found.context == ("Expected shape: [4, 3], but got: [4, 2]",)
    assert found.suggestions == ("Give an array of shape [4, 3], or declare the input with the sizes that it has",)


def test_of_a_long_list_only_what_is_shown_is_written():
    class Element:
        written = 0

        def __repr__(self):
            Element.written += 1
            return "element"

    assert value_text([Element()] * 10_000) == "[" + "element, " * 6 + "elem…"
    assert Element.written < 100


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_names_of_numpy_and_pytorch_are_told_as_they_are_written_here(b, name):
    """The nearest name was another thing: `b.unsqueeze` was told to squeeze, `b.cat` to cast, `b.norm` to draw numbers."""
    x, y = b.input("x", (3, 3), "float32"), b.input("y", (3, 3), "float32")
    told = f"write {ELSEWHERE[name]}"
    with pytest.raises(AttributeError) as caught:
        getattr(b, name)
    assert str(caught.value) == f"a GraphBuilder has no {name!r}; {told}"
    if not hasattr(type(x), name):
        with pytest.raises(AttributeError) as caught:
            getattr(x, name)
        assert str(caught.value) == f"a tensor in a graph has no {name!r}; {told}"
    given = {"x": np.ones((3, 3), "f4"), "y": np.ones((3, 3), "f4")}
    vector = name in ("outer", "inner")
    names = {
        "b": b, "np": np, "tl": tl, "x": x[0] if vector else x, "y": y[0] if vector else y, "axis": 1, "dtype": "float64",
        "order": (1, 0), "shape": (9,) if name == "view" else (3,), "n": 3, "table": x, "indices": [0, 2], "inputs": given,
        "w": y, "c": y[0], "low": 0, "high": 1, "value": 0.0, "mask": x > 0, "condition": b.sum(x) > 0, "xs": x,
        "then": lambda: x, "otherwise": lambda: y, "body": lambda c, row: (c, row), "init": np.float32(0),
        "graph": b.build(y=b.sum(x + y)), "executor": tl.Executor(),
    }  # fmt: skip
    if "input(" in ELSEWHERE[name]:
        names["b"] = tl.GraphBuilder()  # where no input has that name yet
    eval(ELSEWHERE[name], names)


def test_functions_of_numpy_are_not_taken_for_misspelt_ones(b, x):
    for use, wrong in ((np.linalg.inv, "min"), (np.arcsinh, "arcsin"), (np.linalg.norm, "min")):
        with pytest.raises(tl.GraphError) as caught:
            use(x if use is np.arcsinh else b.input("m", (2, 2), "float32"))
        assert not any(f"did you mean '{wrong}'" in hint for hint in caught.value.diagnostic.suggestions)
    assert "write b.sqrt(b.sum(b.square(x)))" in caught.value.diagnostic.suggestions


def test_a_mask_is_not_told_to_become_the_places_0_and_1(b, x):
    mask = np.array([True, False, True])
    with pytest.raises(tl.TensorLogicError, match=r"indices must be integers, got bool") as caught:
        b.gather(x, mask)
    [hint] = caught.value.diagnostic.suggestions
    assert "np.flatnonzero(mask)" in hint and "cast" not in hint
    out = tl.Executor().execute(b.build(y=b.gather(x, np.flatnonzero(mask))), {"x": np.arange(3, dtype="f4")})
    assert out["y"].tolist() == [0, 2]
