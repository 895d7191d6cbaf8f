"""What people get wrong with graphs, and what they are told."""

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import DTypeError, EinsumGraph, FormatError, GraphBuilder, GraphError, ShapeError
from tensorlogic.diagnostics import ShapeMismatchDiagnostic
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node

LOGITS = np.random.default_rng(0).normal(size=(10, 10))
LABELS = np.arange(10) % 7
LOGS = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
EXPECTED = -LOGS[np.arange(10), LABELS].mean()


def hint(error: pytest.ExceptionInfo[tl.TensorLogicError]) -> str:
    return "; ".join(error.value.diagnostic.suggestions)


@pytest.mark.parametrize("dtype", ["int64", "uint8", None])
def test_cross_entropy_takes_integer_labels(dtype):
    b = GraphBuilder()
    logits, labels = b.input("logits", ("n", 10)), b.input("labels", ("n",), dtype)
    graph = b.build(loss=b.cross_entropy(logits, labels))
    given = LABELS.astype(dtype or "int64")
    assert tl.Executor().execute(graph, {"logits": LOGITS, "labels": given})[0] == pytest.approx(EXPECTED)


def test_cross_entropy_along_another_axis_and_its_gradient():
    b = GraphBuilder()
    logits = b.input("logits", (10, "n"))
    graph = b.build(loss=b.cross_entropy(logits, LABELS.tolist(), axis=0))
    ex = tl.Executor()
    assert ex.execute(graph, {"logits": LOGITS.T})[0] == pytest.approx(EXPECTED)
    slope = ex.execute(tl.grad(graph, wrt=["logits"]), {"logits": LOGITS.T})["logits"]
    assert pytest.approx((np.exp(LOGS) - np.eye(10)[LABELS]) / 10) == slope.T


def test_cross_entropy_of_probabilities_is_as_before():
    b = GraphBuilder()
    ex = tl.Executor()
    for target in (np.eye(10)[LABELS], np.full((1, 10), 0.1)):
        loss = ex.execute(b.build(loss=b.cross_entropy(LOGITS, target)))[0]
        assert loss == pytest.approx(-(target * LOGS).sum(1).mean())
    assert tl.eager.cross_entropy(LOGITS, LABELS).numpy() == pytest.approx(EXPECTED)


@pytest.mark.parametrize(("shape", "dtype"), [(("n",), "float32"), ((), "int64"), (("n",), "bool")])
def test_cross_entropy_refuses_what_would_be_another_number(shape, dtype):
    b = GraphBuilder()
    with pytest.raises(ShapeError, match="does not fit logits") as caught:
        b.cross_entropy(b.input("logits", ("n", 10)), b.input("labels", shape, dtype))
    assert "integer labels" in hint(caught)


@pytest.mark.parametrize(("logits", "labels"), [(None, None), (("n", 10), None), (None, ("n",))])
def test_cross_entropy_refuses_unknown_numbers_of_axes(logits, labels):
    b = GraphBuilder()
    with pytest.raises(ShapeError, match=r"the number of axes of the (logits|target) is not known"):
        b.cross_entropy(b.input("logits", logits), b.input("labels", labels, "int64"))


@pytest.mark.parametrize("labels", [LABELS.astype("float32"), LABELS > 3])
def test_labels_that_are_no_integers_are_no_probabilities_of_every_row(labels):
    b = GraphBuilder()  # there are as many rows as classes
    with pytest.raises(ShapeError, match=r"a target (float32|bool)\[10\] does not fit logits \[10, 10\]") as caught:
        b.cross_entropy(b.input("logits", (10, 10)), labels)
    assert "b.cast(labels, 'int64'); where every row has the same probabilities write b.reshape(target, (1, 10))" in hint(caught)  # fmt: skip
    with pytest.raises(ShapeError, match="does not fit logits"):
        tl.eager.cross_entropy(LOGITS, labels)
    graph = b.build(loss=b.cross_entropy(b.input("logits", (10, 10)), b.input("labels", (10,))))
    with pytest.raises(DTypeError, match="must be integers"):
        tl.Executor().execute(graph, {"logits": LOGITS, "labels": labels})
    assert tl.Executor().execute(graph, {"logits": LOGITS, "labels": LABELS})[0] == pytest.approx(EXPECTED)


def test_a_target_has_a_place_for_each_row():
    for logits, target in (((2, 3), (5,)), ((2, 5, 3), (5,)), ((3,), (5, 3))):
        with pytest.raises(ShapeError, match="does not fit logits"):
            GraphBuilder().cross_entropy(np.zeros(logits), np.zeros(target, int))


def test_labels_of_torch_are_integers():
    torch = pytest.importorskip("torch")
    logits, labels = torch.tensor(LOGITS), torch.tensor(LABELS)
    assert tl.eager.cross_entropy(logits, labels).numpy() == pytest.approx(EXPECTED)
    b = GraphBuilder()
    assert tl.Executor().execute(b.build(loss=b.cross_entropy(logits, labels)))[0] == pytest.approx(EXPECTED)


def test_a_place_far_below_0_is_no_label():
    b = GraphBuilder()
    graph = b.build(y=b.gather(b.input("x", (3,)), b.input("i", (2,), "int64"), 0))
    for place in (-1_000_000_000, -(2**40)):
        with pytest.raises(tl.ExecutionError, match=f"index {place} is out of range"):
            tl.Executor().execute(graph, {"x": np.arange(3.0), "i": np.array([0, place])})


def test_one_logit_is_not_spread_over_the_classes_of_a_target():
    b = GraphBuilder()
    with pytest.raises(tl.ShapeError, match="has 10 classes, and logits"):
        b.cross_entropy(b.input("logits", ("n", 1)), b.input("target", ("n", 10)))


@pytest.mark.parametrize("dtype", ["int64", "int8", None])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (-1, "label -1 is no class: the logits have 10 classes (0 to 9), at [3]"),
        (-7, "label -7 is no class: the logits have 10 classes (0 to 9), at [3]"),
        (12, "label 12 is no class: the logits have 10 classes (0 to 9), at [3]"),
    ],
)
def test_a_label_that_is_no_class_is_named_with_its_row(dtype, wrong, said):
    b = GraphBuilder()
    graph = b.build(loss=b.cross_entropy(b.input("logits", ("n", 10)), b.input("labels", ("n",), dtype)))
    labels = LABELS.astype(dtype or "int64")
    labels[3] = wrong
    with pytest.raises(tl.ExecutionError, match=r"is no class|out of range for an axis of 10 elements") as caught:
        tl.Executor().execute(graph, {"logits": LOGITS, "labels": labels})
    looked_up = "index 12 is out of range for an axis of 10 elements, at [3]"
    assert (looked_up if dtype is None and wrong > 0 else said) in caught.value.diagnostic.message
    with pytest.raises(tl.ExecutionError) as caught:
        tl.eager.cross_entropy(LOGITS, labels)
    assert (looked_up if wrong > 0 else said) in caught.value.diagnostic.message


def test_a_transposed_input_is_told_to_transpose():
    found = ShapeMismatchDiagnostic.create(("n", 784), (784, 64), "x")
    assert found.suggestions[1] == "The axes are in another order: use tensor.transpose([1, 0])"
    for expected, actual in ((("n", 784), (64, 785)), ((2, 3), (6,)), (("n",), (5,))):
        assert "reshape" in ShapeMismatchDiagnostic.create(expected, actual, "x").suggestions[1]
    b = GraphBuilder()
    graph = b.build(y=b.input("x", ("n", 3)) * 2)
    with pytest.raises(ShapeError) as caught:
        tl.Executor().execute(graph, {"x": np.ones((3, 5))})
    assert "transpose" in hint(caught)
    assert "reshape" not in hint(caught)


@pytest.mark.parametrize(
    ("shape", "written"),
    [
        ("n,3", "('n', 3)"),
        ("n", "('n',)"),
        (3, "(3,)"),
        ("n, k+1", "('n', 'k+1')"),
        ("n 3", "('n', 3)"),
        ("(n, 3)", "('n', 3)"),
        ("k + 1", "('k+1',)"),
    ],
)
def test_a_shape_that_is_text(shape, written):
    with pytest.raises(GraphError) as caught:
        GraphBuilder().input("x", shape)
    assert hint(caught) == f"write {written}"


def test_none_as_an_input():
    b = GraphBuilder()
    with pytest.raises(DTypeError, match="input 'x': None is given where an array is expected") as caught:
        tl.Executor().execute(b.build(y=b.input("x") * 2), {"x": None})
    assert hint(caught) == "the value is missing: give an array, a list or a number"


@pytest.mark.parametrize(
    ("declared", "given", "said"),
    [
        ((3, 2), (5, 2), "Give an array of shape [3, 2], or declare the input with the sizes that it has"),
        ((3, 2), (6,), "Use array.reshape([3, 2]) if the elements are in that order"),
        (("n", 3), (4,), "Give an array of shape [n, 3], or declare the input with the sizes that it has"),
        (("n", 3), (2, 2, 3), "Use array.reshape([-1, 3]) if the elements are in that order"),
        (("n", "m"), (6,), "Give an array of shape [n, m], or declare the input with the sizes that it has"),
        ((3, 2), (2, 3), "The axes are in another order: use tensor.transpose([1, 0])"),
    ],
)
def test_reshape_is_suggested_where_it_works(declared, given, said):
    b = GraphBuilder()
    graph = b.build(y=b.input("x", declared) * 2)
    with pytest.raises(ShapeError, match="input 'x' does not fit") as caught:
        tl.Executor().execute(graph, {"x": np.ones(given)})
    assert caught.value.diagnostic.suggestions[0] == said


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda torch: torch.ones(2, dtype=torch.bfloat16), "give x.float()"),
        (lambda torch: torch.ones(2).to_sparse(), "x.to_dense()"),
        (lambda torch: torch.ones(2, requires_grad=True), "x.detach()"),
        (lambda torch: torch.ones(2, device="meta"), "has no values"),
    ],
)
def test_tensors_of_torch_that_are_no_arrays(make, said):
    torch = pytest.importorskip("torch")
    b = GraphBuilder()
    with pytest.raises(DTypeError, match="input 'x': a Tensor cannot be read as an array") as caught:
        tl.Executor().execute(b.build(y=b.input("x") * 2), {"x": make(torch)})
    assert said in hint(caught)


def test_sparse_matrices_of_scipy_are_no_arrays():
    matrix = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(2))
    b = GraphBuilder()
    for call in (lambda: tl.Executor().execute(b.build(y=b.input("x") * 2), {"x": matrix}), lambda: b.constant(matrix)):
        with pytest.raises(DTypeError, match="a csr_matrix of SciPy is no array") as caught:
            call()
        assert "x.toarray()" in hint(caught)


def test_a_running_sum_is_along_an_axis():
    b = GraphBuilder()
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        with pytest.raises(ShapeError, match=f"{name} runs along an axis, and none is given") as caught:
            getattr(b, name)(b.input("x", (2, 3)))
        assert f"b.{name}(x, axis=0)" in hint(caught)
    assert tl.Executor().execute(b.build(y=b.cumsum(np.arange(4))))["y"].tolist() == [0, 1, 3, 6]


class Recorded:
    """An array that does not let its values go, as a torch tensor that requires grad."""

    def __array__(self, *args, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return self


def test_an_array_that_requires_grad():
    b = GraphBuilder()
    for use in (
        lambda: b.constant(Recorded()),
        lambda: tl.Executor().execute(b.build(y=b.input("x") * 2), {"x": Recorded()}),
    ):
        with pytest.raises(DTypeError, match="a Recorded cannot be read as an array") as caught:
            use()
        assert hint(caught) == "detach it first: x.detach().cpu().numpy()"


def test_a_torch_tensor_that_is_to_be_conjugated():
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError) as caught:
        GraphBuilder().constant(torch.tensor([1 + 2j]).conj())
    assert "x.resolve_conj()" in hint(caught)


@pytest.mark.parametrize(
    ("shape", "written"),
    [
        (3, "write (3,)"), (np.int64(3), "write (3,)"), (np.array([2, 3]), "write (2, 3)"), ("n 3", "write ('n', 3)"),
        ({"n": 3}, "write a size or a name for each axis, such as ('n', 3)"), (True, "write a size or a name for each axis, such as ('n', 3)"),
    ],
)  # fmt: skip
def test_what_is_no_shape_is_told_as_a_tuple(shape, written):
    with pytest.raises(GraphError, match="the shape of input 'q' must be a sequence") as caught:
        GraphBuilder().input("q", shape)
    assert hint(caught) == written


def test_a_misspelt_method_names_the_nearest():
    b = GraphBuilder()
    with pytest.raises(AttributeError, match="a GraphBuilder has no 'rleu'; did you mean 'relu'"):
        b.rleu
    assert not hasattr(b, "__fspath__")
    with pytest.raises(AttributeError, match=r"no 'output'; outputs are named where the graph is built: b.build\(y="):
        tl.GraphBuilder().output("y")


def test_numpy_functions_add_nodes():
    b = GraphBuilder()
    x = b.input("x", (2, 2), "float64")
    array = np.array([[1.0, 2.0], [3.0, 4.0]])
    graph = b.build(
        exp=np.exp(x), sum=array + x, product=array @ x, less=array < x, scaled=np.float64(2) * x,
        both=np.array([True, False]) & (x > 2), root=np.sqrt(x), where=np.maximum(x, 2.5),
    )  # fmt: skip
    out = tl.Executor().execute(graph, {"x": array})
    assert out["exp"] == pytest.approx(np.exp(array))
    assert out["sum"].tolist() == (array + array).tolist()
    assert out["product"].tolist() == (array @ array).tolist()
    assert not out["less"].any()
    assert out["both"].tolist() == [[False, False], [True, False]]
    assert out["where"].tolist() == [[2.5, 2.5], [3.0, 4.0]]


def test_an_array_that_a_tensor_is_added_to_becomes_a_tensor():
    total = np.ones(3)
    total += GraphBuilder().input("x", (3,), "float64")
    assert str(total) == "<Tensor float64[3]>"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda x: GraphBuilder().constant([x, x]), "has no values while it is being built"),
        (np.cbrt, "np.cbrt on a tensor"),
        (np.add.reduce, "np.add.reduce on a tensor"),
        (lambda x: np.add(x, 1, dtype="float32"), "np.add with dtype="),
        (np.asarray, "has no values while it is being built"),
        (lambda x: np.concatenate([x, x]), "np.concatenate on a tensor"),
    ],
)
def test_numpy_functions_that_graphs_do_not_have(use, said):
    with pytest.raises(GraphError, match=said) as caught:
        use(GraphBuilder().input("x", (3,)))
    assert hint(caught)


def test_a_slice_that_starts_at_a_named_size():
    b = GraphBuilder()
    x = b.input("x", ("n",))
    graph = b.build(y=x["k":"k+1"])
    ex = tl.Executor()
    assert graph.size_names == {"n", "k"}
    assert ex.execute(graph, {"x": np.arange(5.0)}, sizes={"k": 2})[0].tolist() == [2.0]
    with pytest.raises(ShapeError, match="no input fixes the size 'k' of slice"):
        ex.execute(graph, {"x": np.arange(5.0)})
    with pytest.raises(ShapeError, match="slice reads elements 5 to 5"):
        ex.execute(graph, {"x": np.arange(5.0)}, sizes={"k": 5})
    fixed = tl.with_sizes(graph, {"k": np.int64(2)})
    assert fixed.size_names == {"n"}
    for config in (tl.JitConfig(hot_path_threshold=1), None):
        for _ in range(3):
            assert ex.execute_jit(fixed, {"x": np.arange(5.0)}, config)[0].tolist() == [2.0]
            assert ex.execute_jit(graph, {"x": np.arange(5.0)}, config, sizes={"k": 2})[0].tolist() == [2.0]
            assert ex.execute_jit(graph, {"x": np.arange(5.0)}, config, sizes={"k": 3})[0].tolist() == [3.0]
        tl.runtime.modes._jit(ex).compiler.wait()
    assert ex.execute_batch(fixed, [{"x": np.arange(5.0)}, {"x": np.arange(3.0)}])[1][0].tolist() == [2.0]
    with pytest.raises(tl.InputError, match="must be an integer"):
        tl.with_sizes(graph, {"k": "n"})
    with pytest.raises(tl.TensorLogicError, match="the graph has no size 'q'"):
        tl.with_sizes(graph, {"q": 2})
    with pytest.raises(tl.TensorLogicError, match="must be 0 to"):
        tl.with_sizes(graph, {"k": -1})
    both = b.build(y=x["k":], k=b.input("z", ("k",)))
    assert ex.execute(both, {"x": np.arange(5.0), "z": np.ones(2)})["y"].tolist() == [2.0, 3.0, 4.0]


def test_half_a_surrogate_pair_in_a_name_is_refused():
    nodes = '[{"op": {"op": "input", "label": "%s"}}]'
    text = '{"format": "tensorlogic-graph", "version": 1, "nodes": ' + nodes + ', "outputs": [["y", 0]]}'
    for name in ("\\ud800", "\\udfff!", "\ud800"):
        with pytest.raises(FormatError) as caught:
            EinsumGraph.from_json(text % name)
        assert caught.value.diagnostic.code == "E231"
    assert EinsumGraph.from_json(text % "\\ud83d\\ude00").input_names == ["\U0001f600"]


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    for name, output in (("x", "\ud800"), ("\udcff", "y")):
        graph = EinsumGraph([Node(ops.Input(name, (2,))), Node(ops.Elementwise("negative"), (0,))], [(output, 1)])
        assert EinsumGraph.from_text(graph.to_text()) == graph  # text quotes it
        for write in (graph.to_json, lambda graph=graph: graph.save(tmp_path / "g.json")):
            with pytest.raises(FormatError) as caught:
                write()
            assert caught.value.diagnostic.code == "E231"
    assert not list(tmp_path.iterdir())


def test_a_script_whose_name_is_not_utf8_writes_what_can_be_read(tmp_path):
    """Python has half of a surrogate pair for each byte of a file's name that is not UTF-8."""
    code = compile("y = -b.input('x', (2,))", "/home/j\udcf6rg/m\udcf6del.py", "exec")
    exec(code, names := {"b": GraphBuilder()})
    graph = names["b"].build(y=names["y"])
    graph.save(tmp_path / "g.json")
    assert [at.file for at in EinsumGraph.load(tmp_path / "g.json").nodes[1].locations] == ["m?del.py"]
    with tl.trace(detail="op") as trace:
        tl.Executor().execute(graph, {"x": np.ones(2)})
    trace.save(tmp_path / "t.json")
    assert [e.name for e in tl.Trace.load(tmp_path / "t.json").events() if e.kind == "step"] == ["negative"]


def test_a_literal_that_is_no_number_is_refused():
    text = '{"format": "tensorlogic-graph", "version": 1, "nodes": [{"op": %s}], "outputs": [["y", 0]]}'
    for kind, word in (("int", "relu"), ("float", "relu"), ("int", "1.5"), ("int", "9" * 5000), ("bool", "yes")):
        with pytest.raises(GraphError) as caught:
            EinsumGraph.from_json(text % f'{{"op": "literal", "kind": "{kind}", "text": "{word}"}}')
        assert caught.value.diagnostic.code == "E134"


@pytest.mark.parametrize("shape", [(2**62, 4), (2**63 - 1, 2**63 - 1), (2**62,)])
def test_sizes_near_the_largest(shape):
    b = GraphBuilder()
    x = b.input("x", shape, "float32")
    ex = tl.Executor()
    for use in (
        lambda: b.reshape(x, (-1, 3)), lambda: b.concat([x, x, x]), lambda: b.pad(x, [(2**62, 2**62)] * len(shape)),
        lambda: ex.execute(b.build(y=b.iota(2**62))), lambda: b.top_k(x, 2**64, 0), lambda: b.window(x, 0, 2**63 - 1, step=2**70, dilation=2**70),
        lambda: ex.execute(b.build(y=b.broadcast_to(b.input("z", ()), shape)), {"z": 1.0}),
    ):  # fmt: skip
        with pytest.raises(tl.TensorLogicError):
            use()


def test_numpy_functions_on_a_tensor_add_nodes_or_say_what_to_write():
    b = tl.GraphBuilder()
    x = b.input("x", (2, 3), "float64")
    assert np.ndim(x) == 2 and tuple(np.shape(x)) == (2, 3)
    with pytest.raises(tl.ShapeError, match=r"np\.ndim needs to know the rank"):
        np.ndim(b.input("any"))
    graph = b.build(
        a=np.sum(x, 0), m=np.max(x, axis=1, keepdims=True), e=np.einsum("ij->ji", x), w=np.where(x > 1, x, 0.0)
    )
    value = np.arange(6.0).reshape(2, 3)
    out = tl.Executor().execute(graph, {"x": value})
    assert out["a"].tolist() == value.sum(0).tolist() and out["m"].tolist() == value.max(1, keepdims=True).tolist()
    assert out["e"].tolist() == value.T.tolist() and out["w"].tolist() == np.where(value > 1, value, 0.0).tolist()
    for call, words in {  # what is only NumPy's
        "out": (lambda: np.sum(x, out=np.zeros(3)), "np.sum on a tensor of a graph"),
        "dtype": (lambda: np.mean(x, dtype="f4"), "np.mean on a tensor of a graph"),
        "concatenate": (lambda: np.concatenate([x, x]), r"b\.concat"),
        "inverse": (lambda: np.linalg.inv(x), "np.inv on a tensor of a graph is not there"),
    }.values():
        with pytest.raises(tl.GraphError, match=words):
            call()
