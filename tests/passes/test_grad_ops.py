"""The gradient of every operation in every algebra, and of the layers, beside central differences; forward beside reverse."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.ir.elementwise import FUNCTIONS
from tensorlogic.ir.types import INTEGERS
from tensorlogic.passes.derivatives import DERIVATIVES
from tensorlogic.testing import GradientChecker, cases
from tensorlogic.testing.gradients import widened

# of the long list of equations those that differ in kind; the rest are part of the full product
EQUATIONS = {
    "i->", "ij->i", "ij->ji", "ii->", "iij->j", "ijji->ij", "i,j->ji", "ij,jk->ik", "ij,kj->ik", "ij,ij->", "ij,k->ikj",
    "bij,bjk->bik", "aab,bcc->ac", ",->", "i,->i", "...i->i...", "...ij,...jk->...ik", "i...,i...->...", "ab,ab,c->c",
    "ab,bc,cd->ad", "fdf,cdd,ccd,afe->ae", "zi->i", "iz,zj->ij", "I,i->i", "iJ,Jk->ik", "IJ,jk->ik", "ij,Jk->ik",
}  # fmt: skip
POSITIVE = ("einsum", "contract_vjp", "arc", "log", "sqrt", "power")  # these want factors in 0 to 1
BLOCKED = {
    **dict.fromkeys((f"quantize/{n}/float64" for n in ("axis", "group", "kinds")), "only used through quantize"),
    "fixpoint/max/float64": "has no equation",
    "collectives/started/float64": "wait has no gradient",
}


def _sampled(name: str) -> bool:
    kind, equation, *_ = name.split("/")
    if kind == "contract_vjp":
        return equation in ("ij,jk->ik", "i,i->")
    return kind != "einsum" or equation in EQUATIONS


def _cases():
    for case in cases():
        kinds = ("/float64", "contract_vjp/", "empty/")
        if (
            not any(k in case.name for k in kinds)
            or "/special/" in case.name
            or case.name.startswith("fixpoint/closure")
        ):
            continue
        if case.name in BLOCKED:
            continue
        yield pytest.param(case, id=case.name, marks=() if _sampled(case.name) else pytest.mark.full)


def made(case):
    """Return a case's graph with inputs that are away from kinks, or None where it has no float output."""
    graph, inputs = case.make()
    if all(graph.type_of(i).dtype in {"bool", *INTEGERS} for _, i in graph.outputs):
        return None
    rng = np.random.default_rng(1)
    low, high = (0.15, 0.85) if any(w in case.name for w in POSITIVE) else (-2.0, 2.0)
    return graph, {n: rng.uniform(low, high, x.shape) if x.dtype.kind == "f" else x for n, x in inputs.items()}


def _never_smooth(case) -> bool:
    name = case.name.split("/")
    words = {"boolean", "any", "all", "argmax", "argmin", "indices"}
    return bool(words & set(name)) or (
        name[0] == "elementwise" and set(DERIVATIVES[name[1]]) == {None} and name[1] not in FLAT
    )


FLAT = ("sign", "step", "floor", "ceil", "trunc", "rint", "floor_divide")


@pytest.mark.filterwarnings("ignore::tensorlogic.GradientWarning")
@pytest.mark.parametrize("case", list(_cases()))
def test_gradient_is_the_central_difference_and_forward_agrees(case):
    found = made(case)
    if found is None or _never_smooth(case) or case.name == "quantize/float64":
        graph = case.make()[0]
        with pytest.raises(tl.DTypeError, match="no gradient"):
            tl.vjp(graph)
        return
    graph, inputs = widened(found[0]), found[1]
    report = GradientChecker().check(graph, inputs)
    assert report.passed != case.name.startswith("stop_gradient"), str(report)  # what is stopped counts as a constant
    if case.name == "empty/mean":
        return  # of no elements: not a number, and so is how it changes
    # <c, J v> is <Jᵀ c, v>
    back, ahead, ex = tl.vjp(graph), tl.jvp(graph), tl.Executor()
    rng = np.random.default_rng(2)
    shapes = {f"d_{n}": np.shape(y) for n, y in zip(graph.output_names, ex.execute(graph, inputs), strict=True)}
    c = {n: rng.normal(size=shapes[n]) for n in back.input_names if n not in graph.inputs}
    v = {f"t_{n}": rng.normal(size=x.shape) for n, x in inputs.items() if f"t_{n}" in ahead.inputs}
    gradients, tangents = ex.execute(back, {**inputs, **c}), ex.execute(ahead, {**inputs, **v})
    one = sum(np.sum(gradients["d" + n[1:]] * x) for n, x in v.items())
    other = sum(np.sum(tangents["t" + n[1:]] * x) for n, x in c.items())
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "message"), list(BLOCKED.items()))
def test_what_cannot_be_differentiated_says_why(name, message):
    (case,) = [c for c in cases() if c.name == name]
    with pytest.raises(tl.GraphError, match=message):
        tl.vjp(case.make()[0])
    if "fixpoint" in name:
        with pytest.raises(tl.GraphError, match=message):
            tl.jvp(case.make()[0])


def test_the_table_covers_every_function():
    assert DERIVATIVES.keys() == FUNCTIONS.keys()
    assert all(len(row) == FUNCTIONS[fn].arity for fn, row in DERIVATIVES.items())


@pytest.mark.parametrize("fn", ["exp", "log", "power", "divide", "tanh", "logaddexp", "arctan2", "sigmoid", "sqrt"])
def test_second_derivatives(fn):
    b = tl.GraphBuilder()
    xs = [b.input(n, (3,)) for n in "xy"[: FUNCTIONS[fn].arity]]
    graph = b.build(loss=b.sum(getattr(b, fn)(*xs)))
    at = {"x": np.array([0.3, 0.7, 1.2]), "y": np.array([0.9, 0.4, 1.7])}
    assert GradientChecker().check(tl.grad(graph), {n: at[n] for n in graph.inputs}).passed


@pytest.mark.parametrize("algebra", [n for n, row in ALGEBRAS.items() if row.differentiable])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij->i", "ij,jk->", "ij->"])
def test_forward_is_reverse_where_values_are_exactly_0_and_1(algebra, equation):
    if "," not in equation and ALGEBRAS[algebra].combine.endswith("implies"):
        pytest.skip("an implication takes two")
    b = tl.GraphBuilder()
    at = {"a": np.array([[0.0, 1.0, 0.5], [1.0, 1.0, 0.0]]), "c": np.array([[1.0, 0.0], [1.0, 0.5], [0.5, 0.5]])}
    at = dict(list(at.items())[: equation.count(",") + 1])
    y = b.einsum(equation, *(b.input(n, x.shape) for n, x in at.items()), algebra=algebra)
    weights = np.arange(1.0, 1 + np.prod(y.shape)).reshape(y.shape)
    graph = b.build(loss=b.sum(y * weights))
    ex, ahead = tl.Executor(), tl.jvp(graph)
    back = ex.execute(tl.grad(graph), at)
    still = {f"t_{n}": np.zeros_like(x) for n, x in at.items()}
    for n, x in at.items():
        each = np.eye(x.size).reshape(x.size, *x.shape)
        forward = [ex.execute(ahead, {**at, **still, f"t_{n}": v})["t_loss"] for v in each]
        np.testing.assert_allclose(np.reshape(forward, x.shape), back[f"d_{n}"], rtol=1e-12, atol=1e-15)


def test_the_only_certain_fact_has_a_tangent():
    x, y = tl.variables("x y", domain="Thing")
    rule = tl.exists(y, tl.pred("r", x, y) & tl.pred("q", y))
    graph = tl.compile(rule, tl.CompilerContext(domains={"Thing": 2}), strategy="probabilistic")
    at = {"r": np.array([[1.0, 0.5], [0.2, 0.3]]), "q": np.array([1.0, 0.5])}
    moved = {"t_r": np.array([[1.0, 0.0], [0.0, 0.0]]), "t_q": np.zeros(2)}
    (tangent,) = tl.Executor().execute(tl.jvp(graph), {**at, **moved})
    np.testing.assert_allclose(tangent, [0.75, 0.0])


@pytest.mark.parametrize("at", [[1, 0.5, 0.25], [1, 1, 0.25], [1, 1, 1], [0, 1, 2], [0.5, 0.25, 0]])
def test_second_derivatives_of_a_noisy_or_of_certain_facts(at):
    b = tl.GraphBuilder()
    graph = b.build(y=b.einsum("j,j->", b.input("a", (3,)), b.input("c", (3,)), algebra="noisy_or"))
    once, ex, given = tl.grad(graph, "a"), tl.Executor(), {"a": np.array(at, float), "c": np.ones(3)}
    left = 1 - given["a"]
    true = [[0 if i == j else -left[3 - i - j] for j in range(3)] for i in range(3)]  # what the third one leaves
    ahead, back = tl.jvp(once, "a"), tl.vjp(once, "a")
    (cotangent,) = set(back.input_names) - set(once.input_names)
    np.testing.assert_allclose([ex.execute(ahead, {**given, "t_a": v})[0] for v in np.eye(3)], true)
    np.testing.assert_allclose([ex.execute(back, {**given, cotangent: v})[0] for v in np.eye(3)], true)


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_forward_is_reverse_of_a_log_sum_exp_that_is_infinite(infinity):
    b = tl.GraphBuilder()
    graph = b.build(loss=b.sum(b.einsum("ij->i", b.input("a", (2, 2)), algebra="log_sum_exp")))
    at, ex = np.array([[infinity, infinity], [1.0, 2.0]]), tl.Executor()
    forward = [ex.execute(tl.jvp(graph), {"a": at, "t_a": v})[0] for v in np.eye(4).reshape(4, 2, 2)]
    np.testing.assert_allclose(np.reshape(forward, (2, 2)), ex.execute(tl.grad(graph), {"a": at})["d_a"])


@pytest.mark.parametrize("algebra", [n for n, row in ALGEBRAS.items() if row.differentiable])
def test_second_derivatives_of_contractions(algebra):
    b = tl.GraphBuilder()
    y = b.einsum("ij,jk->ik", b.input("a", (3, 4)), b.input("c", (4, 2)), algebra=algebra)
    rng = np.random.default_rng(5)
    at = {"a": rng.uniform(0.1, 0.9, (3, 4)), "c": rng.uniform(0.1, 0.9, (4, 2))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.GradientWarning)  # of sums, the second derivative is zero
        assert GradientChecker().check(tl.grad(b.build(loss=b.sum(b.square(y)))), at).passed


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("gelu", lambda b, x, w: b.gelu(x) + b.gelu(x, approximate=True)),
        ("activations", lambda b, x, w: b.silu(x) * b.softplus(x) + b.leaky_relu(x) * b.elu(x)),
        ("softmax", lambda b, x, w: b.softmax(x, 0) * b.log_softmax(x) + b.logsumexp(x, (0, 1), keepdims=True)),
        ("layer_norm", lambda b, x, w: b.layer_norm(x, w, w)),
        ("rms_norm", lambda b, x, w: b.rms_norm(x, w)),
        ("batch_norm", lambda b, x, w: b.batch_norm(x, w, b.square(w), w, w)),
        ("var", lambda b, x, w: b.var(x, 0) * b.var(x)),
        ("linear", lambda b, x, w: b.linear(x, b.stack([w, w, w], 1), w[:3])),
        ("attention", lambda b, x, w: b.attention(x * w, x, x, b.input("mask", ("n", "n"), "bool"))),
        ("losses", lambda b, x, w: b.cross_entropy(x, b.reshape(b.softmax(w), (1, 4))) + b.mean_squared_error(x, w)),
        ("clip", lambda b, x, w: b.clip(x, -0.5, w)),
    ],
)
def test_layers_of_named_sizes(name, layer):
    b = tl.GraphBuilder()
    graph = b.build(y=layer(b, b.input("x", ("n", 4), "float32"), b.input("w", (4,), "float32")))
    rng = np.random.default_rng(7)
    at = {"x": rng.normal(size=(5, 4)), "w": rng.uniform(0.5, 1.5, 4), "mask": np.tri(5, dtype=bool)}
    report = GradientChecker().check(graph, {n: at[n] for n in graph.inputs})
    assert report.passed, str(report)


def test_ties_are_shared_evenly():
    b = tl.GraphBuilder()
    x, y = b.input("x", (4,)), b.input("y", (4,))
    at = {"x": np.array([1.0, 3.0, 3.0, 0.0]), "y": np.array([1.0, 1.0, 5.0, 0.0])}
    run = tl.Executor().execute
    for loss, want in (
        (b.max(x), [0, 0.5, 0.5, 0]),
        (b.min(x), [0, 0, 0, 1]),
        (b.sum(b.cummax(x, 0)), [1, 2, 1, 0]),
        (b.sum(b.cummax(x, 0, reverse=True)), [0, 1, 2, 1]),
        (b.sum(b.maximum(x, y)), [0.5, 1, 0, 0.5]),
        (b.max(b.stack([x, x])), [0, 0.5, 0.5, 0]),
    ):
        graph = b.build(loss=loss)
        got = run(tl.grad(graph, "x"), {n: at[n] for n in graph.inputs})["d_x"]
        np.testing.assert_allclose(got, want, atol=1e-15)


def test_running_extremes_with_ties_are_the_sum_of_their_prefixes():
    b, c = tl.GraphBuilder(), tl.GraphBuilder()
    g = np.random.default_rng(0).normal(size=7)
    at = np.array([1.0, 0.0, 1.0, 2.0, 2.0, 1.0, 2.0])
    for method, reduce, reverse in [("cummax", "max", False), ("cummin", "min", False), ("cummax", "max", True)]:
        x = b.input("x", (7,))
        fast = b.build(loss=b.sum(getattr(b, method)(x, 0, reverse=reverse) * g))
        z = c.input("x", (7,))
        each = [getattr(c, reduce)(z[n:] if reverse else z[: n + 1]) * g[n] for n in range(7)]
        slow = c.build(loss=c.sum(c.stack(each)))
        got, want = (tl.Executor().execute(tl.grad(h), {"x": at})["d_x"] for h in (fast, slow))
        np.testing.assert_allclose(got, want, atol=1e-14)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros):
    x = np.array([[2.0, -3.0, 0.5], [1.5, 4.0, -1.0]])
    x.flat[[1, 4][:zeros]] = 0.0
    b = tl.GraphBuilder()
    v = b.input("x", ("n", "m"))
    for y in (
        b.prod(v, 1),
        b.prod(v),
        b.prod(v, (0, 1), keepdims=True),
        b.cumprod(v, 0),
        b.cumprod(v, 1, reverse=True),
    ):
        assert GradientChecker().check(b.build(y=y), {"x": x}).passed


def test_slices_and_windows_of_named_sizes():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "m"))
    values = np.random.default_rng(0).normal(size=(6, 5))
    for y in (x[-1], x[0], x[1:-1], x[:, ::2], x[::-1], x[-2:, 1], b.window(x, 0, 3), b.window(x, 1, 2, step=2, dilation=2),
              b.pad(x, [(1, 2), (0, 1)]), b.concat([x[1:], x * 2], 0), b.mean(x), b.mean(x, 1), b.var(x, 0),
              b.reshape(x, ("n*m",)), b.broadcast_to(x, (2, "n", "m")), b.sum(x + x[0])):  # fmt: skip
        report = GradientChecker().check(b.build(y=b.square(y)), {"x": values})
        assert report.passed, str(report)


def test_a_padding_value_has_a_gradient():
    b = tl.GraphBuilder()
    graph = b.build(y=b.square(b.pad(b.input("x", (2, 3)), [(1, 0), (0, 2)], b.input("v", ()))))
    assert GradientChecker().check(graph, {"x": np.ones((2, 3)), "v": np.float64(0.5)}).passed


def test_gather_with_repeated_and_negative_indices():
    b = tl.GraphBuilder()
    graph = b.build(y=b.square(b.gather(b.input("x", ("n", 2)), b.input("i", ("k",), "int64"))))
    x, i = np.arange(6.0).reshape(3, 2), np.array([2, 0, -1, 2])
    assert GradientChecker().check(graph, {"x": x, "i": i}).passed


def test_infinities_in_log_space():
    b = tl.GraphBuilder()
    x, y = b.input("x", (3,)), b.input("y", (3,))
    graph = tl.grad(b.build(loss=b.sum(b.exp(b.logaddexp(x, y)))))
    at = {"x": np.array([-np.inf, -np.inf, 0.0]), "y": np.array([-np.inf, 0.0, 0.0])}
    d_x, d_y = tl.Executor().execute(graph, at)
    np.testing.assert_allclose(d_x, [0, 0, 1])
    np.testing.assert_allclose(d_y, [0, 1, 1])


def test_powers_at_their_edges():
    b = tl.GraphBuilder()
    x, y = b.input("x", (3,)), b.input("y", (3,))
    d_x, d_y = tl.Executor().execute(
        tl.grad(b.build(loss=b.sum(x**y))), {"x": np.array([0.0, 0.0, -2.0]), "y": np.array([0.0, 2.0, 3.0])}
    )
    np.testing.assert_allclose(d_x, [0, 0, 12])
    np.testing.assert_allclose(d_y[:2], [0, 0])
    for n, want in ((0, 0.0), (1, 1.0), (2, -4.0), (3, 12.0), (-1, -0.25)):
        got = tl.Executor().execute(tl.grad(b.build(loss=b.sum(x**n))), {"x": np.full(3, -2.0)})["d_x"]
        np.testing.assert_allclose(got, [want] * 3)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
def test_second_derivatives_of_powers_whose_exponent_is_zero(dtype):
    b = tl.GraphBuilder()
    x, y = b.input("x", (4,)), b.input("y", (4,), dtype)
    slope = tl.grad(b.build(loss=b.sum(x**y)), "x")
    at = {"x": np.array([2.0, 1.0, np.inf, np.nan]), "y": np.zeros(4, dtype)}
    assert tl.Executor().execute(slope, at)["d_x"].tolist() == [0.0] * 4
    if dtype == "float64":  # of y x**(y - 1) by y
        total = b.inline(slope)["d_x"]
        both = tl.grad(b.build(total=b.sum(total)), "y")
        np.testing.assert_allclose(tl.Executor().execute(both, at)["d_y"][:2], [0.5, 1.0])


def test_empty_axes():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    graph = b.build(
        loss=b.sum(b.square(b.softmax(x @ w))) + b.sum(b.cumprod(x, 0)) + b.sum(b.prod(x, 1)) + b.sum(b.sort(x, 0))
    )
    d_x, d_w = tl.Executor().execute(tl.grad(graph), {"x": np.ones((0, 3)), "w": np.ones((3, 2))})
    assert d_x.shape == (0, 3)
    assert d_w.tolist() == np.zeros((3, 2)).tolist()
