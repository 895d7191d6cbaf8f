"""Gradients as graphs: what they look like, what they share, what is refused, and what a caller may change."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.check import check_structure
from tensorlogic.ir.graph import Node
from tensorlogic.ir.type_rules import infer_graph
from tensorlogic.testing import GradientChecker


def run(graph, **inputs):
    return tl.Executor().execute(graph, inputs)


def words(graph):
    return Counter(n.op.name for n in graph.nodes)


def linear():
    b = tl.GraphBuilder()
    x, w, c = b.input("x", ("n", 3), "float32"), b.input("w", (3, 2), "float32"), b.input("c", (2,), "float32")
    return b.build(loss=b.sum(b.square(b.linear(x, w, c))))


def test_the_gradient_of_a_linear_layer_is_two_einsums_and_one_sum():
    graph = linear()
    made = words(tl.grad(graph))
    assert made - words(graph) == Counter({"einsum": 2, "multiply": 1, "literal": 1})  # the loss's own sum is gone
    assert made["sum"] == 1
    assert "broadcast" not in made
    assert "cast" not in made


def test_a_gradient_prints_and_parses_back():
    graph = tl.grad(linear(), wrt=["w", "c"])
    assert str(graph).splitlines()[-2:] == ["  return d_w=%8, d_c=%7", "}"]
    assert tl.EinsumGraph.from_text(graph.to_text()) == graph
    assert tl.EinsumGraph.from_json(graph.to_json()) == graph
    assert not check_structure(graph)
    assert infer_graph(graph).types == graph.inference.types  # what the tape worked out is what anyone would


def test_value_and_gradient_share_the_forward_nodes():
    graph = linear()
    both = tl.value_and_grad(graph)
    assert both.output_names == ["loss", "d_x", "d_w", "d_c"]
    assert words(both)["einsum"] == 3
    assert words(both)["square"] == 1


def test_names_that_clash_are_told_apart():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    both = tl.value_and_grad(b.build(d_x=b.sum(b.square(x))))
    assert both.output_names == ["d_x", "d_x_"]
    back = tl.vjp(b.build(y=x * b.input("d_y", (2,))))
    assert back.input_names == ["x", "d_y", "d_y_"]
    ahead = tl.jvp(b.build(y=x * b.input("t_x", (2,))))
    assert ahead.input_names == ["x", "t_x", "t_x_", "t_t_x"]


def test_gradient_nodes_remember_where_they_came_from():
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float32")
    y = b.sin(x)
    graph = tl.grad(b.build(loss=b.sum(y)))
    places = {n.op.name: n.location.line for n in graph.nodes if n.location}
    here = next(n.location.line for n in b.build(y=y).nodes if n.op.name == "sin")
    assert places["cos"] == here


def test_inputs_stay_even_where_the_gradient_does_not_need_them():
    b = tl.GraphBuilder()
    graph = tl.grad(b.build(loss=b.sum(b.input("x", (2,)) * b.input("w", (2,)))), wrt="w")
    assert graph.input_names == ["x", "w"]
    np.testing.assert_array_equal(run(graph, x=[1.0, 2.0], w=[5.0, 5.0])["d_w"], [1.0, 2.0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_gradient_has_the_dtype_of_its_input(dtype, declared):
    b = tl.GraphBuilder()
    x, w = (b.input(n, s, dtype if declared else None) for n, s in (("x", ("n", 4)), ("w", (4, 3))))
    h = b.layer_norm(b.relu(x @ w)) * b.softmax(x @ w) + b.max(x, 1, keepdims=True)
    loss = b.mean(b.sort(h)) + b.sum(b.gelu(b.cumprod(h, 1)[:, ::2])) * 0.5 + b.logsumexp(w[0])
    out = run(tl.grad(b.build(loss=loss)), x=np.ones((5, 4), dtype), w=np.eye(4, 3, dtype=dtype))
    assert [g.dtype.name for g in out] == [dtype, dtype]


def test_mixed_dtypes_come_back_as_they_are_declared():
    b = tl.GraphBuilder()
    x, w, k = b.input("x", (3,), "float16"), b.input("w", (3,), "float64"), b.input("k", (3,), "int64")
    graph = tl.grad(b.build(loss=b.sum(x * w * k)))
    assert graph.output_names == ["d_x", "d_w"]  # integers are left out unless they are named
    d_x, d_w = run(graph, x=np.ones(3, "f2"), w=np.ones(3), k=np.arange(3))
    assert (d_x.dtype, d_w.dtype) == (np.float16, np.float64)
    np.testing.assert_array_equal(d_x, [0, 1, 2])


def test_masks_and_counts_do_not_make_gradients_of_whole_numbers():
    b = tl.GraphBuilder()
    x, k, m = b.input("x", (3,)), b.input("k", (3,), "int64"), b.input("m", (3,), "bool")
    for y in (x * k, x * m, x / k):
        graph = b.build(loss=b.sum(y))
        given = {"x": np.ones(3), "k": np.array([1, 2, 3]), "m": np.array([True, False, True])}
        assert run(tl.grad(graph, "x"), **{n: given[n] for n in graph.inputs})["d_x"].dtype == np.float64


def test_slices_that_make_up_the_whole_are_put_side_by_side():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 6), "float32")
    q, k, v = x[:, :2], x[:, 2:4], x[:, 4:]
    made = tl.grad(b.build(loss=b.sum(b.sin(q) * k * v)))
    assert words(made)["concat"] == 1
    assert "pad" not in words(made)
    overlapping = b.build(loss=b.sum(b.sin(x[:, :4])) + b.sum(b.sin(x[:, 2:])))
    assert words(tl.grad(overlapping))["pad"] == 2
    values = np.random.default_rng(0).normal(size=(3, 6))
    assert GradientChecker().check(overlapping, {"x": values}).passed


def test_unknown_ranks():
    b = tl.GraphBuilder()
    x, w = b.input("x"), b.input("w")
    out = run(tl.grad(b.build(loss=b.mean(b.square(b.tanh(x) * 2)))), x=np.full((2, 3), 0.5, "f4"))
    assert out["d_x"].shape == (2, 3)
    assert out["d_x"].dtype == np.float32
    d_x, d_w = run(tl.grad(b.build(loss=b.sum(b.einsum("ij,jk->ik", x, w)))), x=np.ones((2, 3)), w=np.ones((3, 4)))
    np.testing.assert_array_equal(d_x, np.full((2, 3), 4.0))
    np.testing.assert_array_equal(d_w, np.full((3, 4), 2.0))
    with pytest.raises(tl.ShapeError, match="need shapes") as error:
        tl.grad(b.build(loss=b.sum(x + w)))
    assert "declare the inputs' shapes" in str(error.value)


def test_every_level_and_the_reference_give_the_same_gradient():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", "m")), b.input("w", ("m", 3))
    loss = b.sum(b.softmax(x @ w) * b.max(x @ w, 0)) + b.mean(b.attention(x, x, x))
    graph = tl.grad(b.build(loss=loss))
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(4, 5)), "w": rng.normal(size=(5, 3))}
    want = tl.Executor(backend="reference").execute(graph, inputs)
    for level in tl.OptimizationLevel:
        config = tl.CompilationConfig(optimization_level=level)
        ex = tl.Executor()
        got = ex.execute_compiled(ex.compile_graph(graph, config, sizes={"n": 4, "m": 5}), inputs)
        for a, c in zip(got, want, strict=True):
            np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-13)


def test_a_long_chain_is_linear_and_does_not_recurse():
    b = tl.GraphBuilder()
    x = y = b.input("x", ("n",), "float32")
    for _ in range(5_000):
        y = b.sin(y) + x
    graph = b.build(loss=b.sum(y))
    made = tl.grad(graph)
    assert len(made) < 3 * len(graph)
    assert len(tl.jvp(graph)) < 5 * len(graph)


def test_memory_stays_that_of_vectors(measured):
    n = 4000  # a Jacobian would be 128 MB
    b = tl.GraphBuilder()
    x = b.input("x", (n,))
    y = b.sort(b.cumprod(b.softmax(b.tanh(x)) + 1, 0)) + b.cummax(x, 0) + b.max(x)
    graph = tl.grad(b.build(loss=b.sum(b.square(y))))
    ex, value = tl.Executor(), np.linspace(-1, 1, n)
    ex.execute(graph, {"x": value})
    _, peak = measured(ex.execute, graph, {"x": value})
    assert peak < 4e6


def test_two_threads_differentiate_at_once():
    graph = linear()
    want = tl.grad(graph)
    found = []
    threads = [threading.Thread(target=lambda: found.append(tl.grad(graph))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [want] * 4


# what is refused


def test_a_loss_must_be_a_scalar():
    b = tl.GraphBuilder()
    with pytest.raises(tl.ShapeError, match=r"the loss 'y' is of shape \[n\]") as error:
        tl.grad(b.build(y=b.input("x", ("n",)) * 2))
    assert "tl.vjp" in str(error.value)


def test_which_output_is_the_loss():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    graph = b.build(loss=b.sum(b.square(x)), accuracy=b.mean(b.cast(x > 0, "float32")))
    with pytest.raises(tl.GraphError, match="2 outputs; which one is the loss") as error:
        tl.grad(graph)
    assert "of='loss'" in str(error.value)
    both = tl.value_and_grad(graph, of="loss")
    assert both.output_names == ["loss", "accuracy", "d_x"]
    with pytest.raises(tl.GraphError, match="no output 'los'") as error:
        tl.grad(graph, of="los")
    assert "did you mean 'loss'" in str(error.value)


def test_unknown_and_integer_parameters():
    b = tl.GraphBuilder()
    graph = b.build(loss=b.sum(b.gather(b.input("table", (5, 2)), b.input("word", ("n",), "int64"))))
    with pytest.raises(tl.GraphError, match="no input 'tabel'") as error:
        tl.grad(graph, wrt=["tabel"])
    assert "did you mean 'table'" in str(error.value)
    with pytest.raises(tl.DTypeError, match=r"'word' is int64\[n\]"):
        tl.grad(graph, wrt=["word"])
    with pytest.raises(tl.GraphError, match="names no input"):
        tl.grad(graph, wrt=[])
    with pytest.raises(tl.InputError, match="wrt= names inputs, got 3"):
        tl.grad(graph, wrt=3)


def test_what_is_no_graph():
    broken = tl.EinsumGraph([Node(ops.Elementwise("relu"), (1,))], [("y", 0)])
    empty = tl.EinsumGraph([Node(ops.Input("x", (2,), "float32"))], [])
    for differentiate in (tl.grad, tl.value_and_grad, tl.vjp, tl.jvp):
        with pytest.raises(tl.InputError, match="EinsumGraph is expected"):
            differentiate(lambda x: x)
        with pytest.raises(tl.GraphError, match="reads %1, which does not exist"):
            differentiate(broken)
        with pytest.raises(tl.GraphError, match="no outputs to differentiate"):
            differentiate(empty)


def test_an_integer_loss_has_no_gradient():
    b = tl.GraphBuilder()
    with pytest.raises(tl.DTypeError, match="the loss 'n' is int64"):
        tl.grad(b.build(n=b.argmax(b.input("x", (3,), "float32"))))


def test_a_parameter_that_nothing_depends_on_is_zero_with_a_warning():
    b = tl.GraphBuilder()
    graph = b.build(loss=b.sum(b.input("x", (2,))), other=b.input("w", ("n", 3), "float32"))
    with pytest.warns(tl.GradientWarning, match="no output depends on 'w'") as caught:
        made = tl.grad(graph, wrt=["x", "w"], of="loss")
    assert caught[0].filename == __file__
    out = run(made, x=[1.0, 2.0], w=np.ones((4, 3), "f4"))
    assert out["d_w"].tolist() == np.zeros((4, 3)).tolist()
    assert out["d_w"].dtype == np.float32


def test_a_flat_function_gives_zero_with_a_warning():
    b = tl.GraphBuilder()
    with pytest.warns(tl.GradientWarning, match="zero everywhere: floor is flat"):
        made = tl.grad(b.build(loss=b.sum(b.floor(b.input("x", (2,))))))
    assert run(made, x=[1.5, 2.5])["d_x"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float32", None])
def test_truth_values_are_refused_with_the_operation_and_its_place(dtype):
    b = tl.GraphBuilder()
    x = b.input("x", (2,), dtype)
    loss = b.sum(b.cast(x > 0.5, "float32"))
    with pytest.raises(tl.GraphError, match="'x' is only used through greater, whose result is bool") as error:
        tl.grad(b.build(loss=loss))
    assert "test_grad.py" in str(error.value.diagnostic.location)
    assert "soft_differentiable" in str(error.value)
    assert "straight_through=True" in str(error.value)


def test_a_hard_rule_is_refused_and_soft_ones_are_not():
    x, y, z = tl.variables("x y z", domain="Person")
    aunt = tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z))
    context = tl.CompilerContext(domains={"Person": 3})
    rng = np.random.default_rng(0)
    facts = {"sister": rng.random((3, 3)), "parent": rng.random((3, 3))}
    hard = tl.compile(aunt, context, strategy="hard_boolean")
    with pytest.raises(tl.DTypeError, match=r"'result' is bool\[3, 3\]"):
        tl.vjp(hard)
    b = tl.GraphBuilder()
    counted = b.build(loss=b.sum(b.cast(b.inline(hard)["result"], "float32")))
    with pytest.raises(tl.GraphError, match="einsum in the boolean algebra"):
        tl.grad(counted)
    for strategy in set(tl.STRATEGIES) - {"hard_boolean"}:
        assert GradientChecker().check(tl.compile(aunt, context, strategy=strategy), facts).passed


def test_conditions_do_not_stand_in_the_way():
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    out = run(tl.grad(b.build(loss=b.sum(b.where(x > 0, x * 3, x * -1)))), x=[-1.0, 2.0, 5.0])
    assert out["d_x"].tolist() == [-1.0, 3.0, 3.0]


# what a caller may change


def test_straight_through_comparisons_and_rounding():
    b = tl.GraphBuilder()
    x, u = b.input("x", (3,)), b.input("u", (3,))
    at = {"x": np.array([0.2, 0.7, 1.5]), "u": np.array([1.0, 2.0, 3.0])}
    for y in (
        b.step(x),
        b.rint(x),
        b.floor(x),
        b.cast(x, "bool"),
        x > 0.5,
        b.less(0.5, x),
        b.cast(x, "int32"),
        b.sign(x),
    ):
        graph = b.build(loss=b.sum(y * u))
        assert run(tl.grad(graph, "x", straight_through=True), **at)["d_x"].tolist() == [1.0, 2.0, 3.0]
    graph = b.build(loss=b.sum(b.cast(~(x > 0.5) & (x < 9), "float32") * u))
    assert run(tl.grad(graph, "x", straight_through=True), **at)["d_x"].tolist() == [-2.0, -2.0, -3.0]


def test_straight_through_rules_and_quantization():
    b = tl.GraphBuilder()
    a, c = b.input("a", (2, 2), "float32"), b.input("c", (2, 2), "float32")
    y = b.einsum("ij,jk->ik", a, c, algebra="boolean")
    graph = tl.grad(b.build(loss=b.sum(b.cast(y, "float32"))), straight_through=True)
    out = run(graph, a=np.eye(2, dtype="f4"), c=np.array([[1, 0], [0, 0]], "f4"))
    # an or has one witness; where it has none, its terms share what they are short of
    np.testing.assert_allclose(out["d_a"], [[1, 0], [0.5, 0]])
    x = b.input("x", (3,), "float32")
    scale = b.input("s", (), "float32")
    faked = b.dequantize(b.quantize(x, scale, 0), scale, 0)
    d_x, d_s = run(
        tl.grad(b.build(loss=b.sum(faked)), straight_through=True),
        x=np.array([0.3, -0.2, 99.0], "f4"),
        s=np.float32(0.5),
    )
    assert d_x.tolist() == [1.0, 1.0, 0.0]  # what was clamped does not move
    # what rounding adds to each step, and the clamped ones whole
    assert float(d_s) == pytest.approx((1 - 0.6) + (0 + 0.4) + 127)
    any_all = b.build(loss=b.sum(b.cast(b.any(x > 0), "float32")) + b.sum(b.cast(b.all(x > 0), "float32")))
    out = run(tl.grad(any_all, straight_through=True), x=np.array([1.0, -1.0, 1.0], "f4"))
    np.testing.assert_allclose(out["d_x"], [0.5, 1.0, 0.5])


def test_custom_gradients_of_operations():
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float32")
    graph = b.build(loss=b.sum(b.relu(x) * 2))
    leaky = tl.grad(graph, custom={"relu": lambda t, g, y, x: t.where(x > 0, g, g * 0.1)})
    np.testing.assert_allclose(run(leaky, x=np.array([-1, 1], "f4"))["d_x"], [0.2, 2.0])


def test_custom_gradients_of_nodes_and_subgraphs():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    y = b.log(b.exp(x) + 1)
    graph = b.build(loss=b.sum(y), y=y)
    assert np.isnan(run(tl.grad(graph, of="loss"), x=[0.0, 1000.0])["d_x"][1])
    by_name = tl.grad(graph, of="loss", custom={"y": lambda t, g, y, inner: {"x": g * t.sigmoid(t["x"])}})
    np.testing.assert_allclose(run(by_name, x=[0.0, 1000.0])["d_x"], [0.5, 1.0])
    assert "exp" not in words(by_name)  # what is in between is neither needed nor computed
    node = dict(graph.outputs)["y"]
    by_node = tl.grad(graph, of="loss", custom={node: lambda t, g, y, inner: {0: g * 7}})
    np.testing.assert_allclose(run(by_node, x=[0.0, 1.0])["d_x"], [7.0, 7.0])


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"rellu": lambda *a: a}, "no operation, output or node"),
        ({99: lambda *a: a}, "no operation, output or node"),
        ({"relu": 3}, "must be a function"),
        ({"relu": lambda t, g, y, x: (g, g)}, "must return 1 gradient"),
        ({"relu": lambda t, g, y, x: {"z": g}}, "'z' is no input and no node"),
    ],
)
def test_custom_gradients_are_checked(custom, message):
    b = tl.GraphBuilder()
    graph = b.build(loss=b.sum(b.relu(b.input("x", (2,)))))
    with pytest.raises((tl.GraphError, tl.InputError), match=message):
        tl.grad(graph, custom=custom)


def test_options_are_checked():
    for options in ({"keep": 0}, {"unroll": 1.5}, {"keep": True}):
        with pytest.raises(tl.InputError, match="must be a whole number of at least 1"):
            tl.grad(linear(), **options)
    with pytest.raises(tl.InputError, match="loss_scale= is a number"):
        tl.grad(linear(), loss_scale="1")


def test_vjp_and_jvp_of_several_outputs():
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    graph = b.build(y=b.sin(x), z=b.sum(x * x), n=b.argmax(x))
    at, v, c = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    back, ahead = tl.vjp(graph), tl.jvp(graph)
    assert back.input_names == ["x", "d_y", "d_z"]
    assert ahead.output_names == ["t_y", "t_z"]
    np.testing.assert_allclose(run(back, x=at, d_y=c, d_z=2.0)["d_x"], c * np.cos(at) + 4 * at)
    t_y, t_z = run(ahead, x=at, t_x=v)
    np.testing.assert_allclose(t_y, v * np.cos(at))
    np.testing.assert_allclose(t_z, 2 * at @ v)


def test_an_input_may_be_the_output():
    b = tl.GraphBuilder()
    x = b.input("x", (), "float32")
    assert run(tl.grad(b.build(loss=x)), x=np.float32(3))["d_x"].dtype == np.float32
    assert float(run(tl.vjp(b.build(y=x, z=x)), x=np.float32(3), d_y=np.float32(2), d_z=np.float32(5))["d_x"]) == 7


def test_softmax_and_logsumexp_do_not_differentiate_their_shift():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3), "float32")
    for loss in (b.sum(b.square(b.softmax(x))), b.sum(b.square(b.logsumexp(x)))):
        made = tl.grad(b.build(loss=loss))
        assert not any(isinstance(n.op, ops.Elementwise) and n.op.fn == "equal" and made.type_of(i).shape == ("n", 3)
                       for i, n in enumerate(made.nodes))  # fmt: skip
    masked = tl.grad(b.build(loss=b.sum(b.logsumexp(b.where(x > 0, x, -np.inf)))))
    out = run(masked, x=np.array([[-1, -2, -3], [1, 1, -1]], "f4"))["d_x"]
    np.testing.assert_allclose(out, [[0, 0, 0], [0.5, 0.5, 0]])


def test_a_custom_gradient_is_given_the_whole_cotangent():
    b = tl.GraphBuilder()
    x, s = b.input("x", (3,), "float64"), b.input("s", (), "float64")
    values = {"x": np.arange(3.0), "s": 2.0}
    for reduce, share in ((b.sum, 3.0), (b.mean, 1.0)):
        loss = b.build(loss=reduce(x + s))
        found = tl.Executor().execute(tl.grad(loss, custom={"add": lambda t, g, y, a, c: (g, t.sum(g))}), values)
        assert found["d_s"] == pytest.approx(share)
    both = b.build(loss=b.sum(b.concat([x, b.square(x)])) + 0 * s)
    found = tl.Executor().execute(
        tl.grad(both, wrt=["x"], custom={"concat": lambda t, g, y, a, c: (g[:3], g[3:])}), values
    )
    np.testing.assert_array_equal(found["d_x"], 1 + 2 * values["x"])
    with pytest.raises(tl.ShapeError, match=r"for operand 1 has shape \[3\], the operand \[\]"):
        tl.grad(loss, custom={"add": lambda t, g, y, a, c: (g, g)})
    with pytest.raises(tl.GraphError, match="the custom gradient of add must take 5"):
        tl.grad(loss, custom={"add": lambda t, g, y, a: (g, g)})


def test_a_custom_gradient_may_leave_one_of_two_equal_operands_out():
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float64")
    loss = b.build(loss=b.sum(x * x))
    for rule in (lambda t, g, y, a, c: (g * c, None), lambda t, g, y, a, c: (None, g * a)):
        found = tl.Executor().execute(tl.grad(loss, custom={"multiply": rule}), {"x": [3.0, 4.0]})
        assert found["d_x"].tolist() == [3.0, 4.0]


def test_attention_with_a_named_width_where_a_query_element_is_one():
    b = tl.GraphBuilder()
    q, k, v = (b.input(name, (n, "d"), "float64") for name, n in (("q", 2), ("k", 3), ("v", 3)))
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(n, 4)) for name, n in (("q", 2), ("k", 3), ("v", 3))}
    given["q"][0, 0] = given["q"][1, 2] = 1.0
    report = GradientChecker().check(b.build(loss=b.sum(b.square(b.attention(q, k, v)))), given)
    assert report.passed, str(report)


def test_elu_has_one_slope_and_one_curvature_at_zero():
    b = tl.GraphBuilder()
    first = tl.grad(b.build(loss=b.sum(b.elu(b.input("x", (3,), "float64")))))
    given = {"x": [-1.0, 0.0, 1.0]}
    np.testing.assert_allclose(tl.Executor().execute(first, given)[0], [np.exp(-1), 1, 1])
    np.testing.assert_allclose(run(tl.vjp(first), **given, d_d_x=[1.0, 1.0, 1.0])[0], [np.exp(-1), 1, 0])
