"""What people who know NumPy, PyTorch or Datalog write out of habit, and what they are told."""

import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import main


@pytest.fixture
def b():
    return tl.GraphBuilder()


@pytest.mark.parametrize("target", [((5, 2), "int64"), ((6, 4), None), ((6, 1), "int64")])
def test_a_target_of_other_rows_or_classes_names_cross_entropy(b, target):
    with pytest.raises(tl.ShapeError, match=r"cross_entropy: a target .* does not fit logits \[5, 4\]") as caught:
        b.cross_entropy(b.input("logits", (5, 4)), b.input("target", *target))
    assert "integer labels [5]" in caught.value.diagnostic.suggestions[0]


def test_what_is_joined_is_told_with_the_shapes_that_were_written(b):
    x = b.input("x", (3, 4))
    with pytest.raises(tl.ShapeError, match=r"has shape \[4, 3\], the first one \[3, 4\]"):
        b.concat([x, x.T])
    assert b.concat([x, b.input("z", ("n", "k"))]).shape == ("n+3", 4)


@pytest.mark.parametrize(
    ("shape", "hint"), [((True, 3), "a whole number"), ((("n", 3),), "side by side"), (([3], 4), "side by side")]
)
def test_a_size_is_a_number_or_a_name(b, shape, hint):
    with pytest.raises(tl.ShapeError, match="a size must be an integer or a name") as caught:
        b.input("x", shape)
    assert hint in caught.value.diagnostic.suggestions[0]


def test_a_truth_value_is_no_size(b):
    graph = b.build(y=b.input("x", ("k",)) + b.iota("k"))
    with pytest.raises(tl.InputError, match="sizes= must map names to integers"):
        tl.Executor().execute(graph, {"x": np.ones(1)}, sizes={"k": True})


def test_several_carries_of_a_scan_are_one_argument(b):
    s = b.input("s", ("t",))
    with pytest.raises(tl.GraphError, match="must take 2 argument") as caught:
        b.scan(lambda c, d, x: ((c + x, d + x), c), [np.float64(0), np.float64(0)], s)
    assert "c, d = carries" in caught.value.diagnostic.suggestions[1]
    with pytest.raises(tl.GraphError, match="must take 2 argument") as caught:
        b.scan(lambda c, d, x: (c, c), np.float64(0), s)
    assert len(caught.value.diagnostic.suggestions) == 1


def test_native_is_true_or_false():
    with pytest.raises(tl.BackendError, match="native= is True or False, got 'yes'"):
        tl.Executor(native="yes")
    with pytest.raises(tl.BackendError, match="the reference backend makes no machine code"):
        tl.Executor("reference", native=True)


def test_what_is_stacked_has_one_shape(b):
    x = b.input("x", (3, 4))
    with pytest.raises(tl.ShapeError, match=r"stack: operand 1 has shape \[4, 3\], the first one \[3, 4\]"):
        b.stack([x, x.T])
    assert b.stack([x, b.input("z", ("n", 4))]).shape == (2, 3, 4)


def test_a_mask_is_no_index(b):
    x = b.input("x", (3, 4))
    for mask in (x > 0, np.ones(3, bool), b.input("m", (3,), "bool")):
        with pytest.raises(tl.ShapeError, match="not an integer or a slice") as caught:
            x[mask]
        assert "b.where(mask, x, 0)" in caught.value.diagnostic.suggestions[-1]


def test_a_list_of_tensors_is_no_operand(b):
    x = b.input("x", (3, 4))
    for call in (lambda: b.sum([x, x]), lambda: b.einsum("ij,ij->i", [x, x])):
        with pytest.raises(tl.GraphError, match="has no values") as caught:
            call()
        assert "side by side" in caught.value.diagnostic.suggestions[1]


def test_names_are_no_numbers(b):
    graph = b.build(y=b.input("parent") * 2)
    with pytest.raises(tl.DTypeError, match="cannot be used") as caught:
        tl.Executor().execute(graph, {"parent": [("alice", "bob")]})
    assert "tl.Program" in caught.value.diagnostic.suggestions[1]


def test_a_domain_stands_behind_a_colon():
    with pytest.raises(tl.FormatError, match="a colon stands before the domain of a variable") as caught:
        tl.parse_expr("forall x in Person. p(x)")
    assert caught.value.diagnostic.suggestions == ("write forall x:Person. p(...)",)
    assert str(tl.parse_expr("forall x:Person. p(x)")) == "∀x∈Person. p(x)"
    assert str(tl.parse_expr("exists in. p(in)")) == "∃in. p(in)"


def test_a_domain_that_is_missing_where_there_is_none():
    x = tl.variables("x", domain="Person")
    with pytest.raises(tl.GraphError, match="which is not given") as caught:
        tl.compile(tl.pred("p", x), tl.CompilerContext(domains={}))
    assert caught.value.diagnostic.suggestions[0].startswith("CompilerContext(")


def test_a_question_as_text_is_no_parsed_one():
    with pytest.raises(tl.InputError, match="ask takes a query that is parsed") as caught:
        tl.Program("A(B)").ask("A(x)?")
    assert caught.value.diagnostic.suggestions == ("write p.query('A(x)?')",)


def test_lists_of_one_tensor_that_differ_in_size_are_told_where_they_stand():
    with pytest.raises(tl.ShapeError) as caught:
        tl.Program("X[i] = [1,2,3]\nX[i] = [1,2]").run()["X"]
    assert str(caught.value.diagnostic.location) == "<text>:2:1"


def test_a_batcher_needs_an_executor(b):
    graph = b.build(y=b.input("x", (3,)) * 2)
    with pytest.raises(tl.InputError, match="an Executor or a CompiledGraph is expected") as caught:
        tl.DynamicBatcher(graph)
    assert caught.value.diagnostic.suggestions == ("write DynamicBatcher(Executor(), graph)",)


def test_a_kind_of_numbers_is_no_config_of_them(b):
    graph = b.build(y=b.input("x", ("n", 4)) @ b.input("w", (4, 2)))
    with pytest.raises(tl.InputError, match="a QuantizationConfig is expected") as caught:
        tl.quantize(graph, tl.QuantizationType.INT8, params={"w": np.ones((4, 2), "f4")})
    assert caught.value.diagnostic.suggestions == ("write tl.QuantizationConfig(tl.QuantizationType.INT8)",)


def test_files_and_questions_in_another_order(tmp_path):
    run = CliRunner().invoke(main, ["query", "Ancestor(Alice, x)?", str(tmp_path / "family.tl")])
    assert run.exit_code == 1 and "the file comes first" in run.output
    (tmp_path / "model.json").write_text("{}")
    run = CliRunner().invoke(main, ["fmt", str(tmp_path / "model.json")])
    assert run.exit_code == 1 and "is no program" in run.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("einsum", "write b.einsum(...), where b = tl.GraphBuilder(), or tl.eager.einsum(...) on values"),
        ("input", "write b.input(...), where b = tl.GraphBuilder()"),
        ("execute", "write tl.Executor().execute(...)"),
        ("zeros", "write b.constant(np.zeros(shape))"),
        ("rule", "did you mean 'Rule'?"),
    ],
)
def test_functions_that_the_package_has_elsewhere(name, said):
    """`tl.execute` was told to be an Executor, `tl.input` an InputError."""
    with pytest.raises(AttributeError) as caught:
        getattr(tl, name)
    assert str(caught.value) == f"tensorlogic has no {name!r}; {said}"


@pytest.mark.parametrize("passes", ["fuse", [3], 3, lambda graph: graph])
def test_passes_are_a_sequence_of_functions(passes):
    with pytest.raises(tl.InputError, match=r"functions? of a graph") as caught:
        tl.Executor(passes=passes)
    assert caught.value.diagnostic.suggestions == ("write passes=[rewrite], where rewrite(graph) returns a graph",)


def test_a_client_sends_arrays_by_name():
    with pytest.raises(tl.InputError, match="inputs must be a mapping of names to arrays"):
        tl.Client("http://127.0.0.1:9").infer("model", np.ones(3))


def test_a_kind_of_small_numbers_is_no_text():
    with pytest.raises(tl.InputError, match="a QuantizationType is expected, got 'int8'"):
        tl.QuantizedTensor.of(np.ones((2, 2)), "int8")
