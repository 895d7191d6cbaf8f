"""Gradients through bodies: scans and what they keep, conds, and fixpoints by their equation or round by round."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir.graph import Cond, Fixpoint, Scan
from tensorlogic.testing import GradientChecker

RNG = np.random.default_rng(0)


def bodies(graph, kind):
    return [n.op for n in graph.nodes if isinstance(n.op, kind)]


def recurrent(reverse=False, size=3):
    b = tl.GraphBuilder()
    x, w, h = b.input("x", ("t", size)), b.input("w", (size, size)), b.input("h", (size,))
    last, rows = b.scan(lambda c, r: (b.tanh(c @ w + r), c * r), h, x, reverse=reverse)
    return b.build(loss=b.sum(b.square(rows)) + b.sum(last))


def inputs(steps=7, size=3):
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(steps, size)), "w": rng.normal(size=(size, size)) * 0.5, "h": rng.normal(size=size)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keep", [None, 1, 2, 3, 7, 20])
def test_scans_with_every_budget(reverse, keep):
    report = GradientChecker().check(recurrent(reverse), inputs(), keep=keep)
    assert report.passed, str(report)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("keep", [None, 2])
def test_short_scans(steps, keep):
    report = GradientChecker().check(recurrent(), inputs(steps), keep=keep)
    assert report.passed, str(report)


def test_a_scan_runs_backwards_over_its_carries_and_runs_forward_once():
    graph = tl.grad(recurrent(), wrt="w")
    ahead, back = bodies(graph, Scan)
    assert (ahead.reverse, back.reverse) == (False, True)
    assert ahead.body.output_names == ["r0", "r1", "before_0"]
    assert len(bodies(tl.value_and_grad(recurrent()), Scan)) == 2


def test_carries_that_no_gradient_reads_are_not_kept():
    b = tl.GraphBuilder()
    x = b.input("x", ("t", 3))
    total, _ = b.scan(lambda c, r: (c + b.sin(r), None), np.zeros(3), x)
    graph = tl.grad(b.build(loss=b.sum(b.square(total))))
    ahead, _ = bodies(graph, Scan)
    assert ahead.body.output_names == ["r0"]
    assert GradientChecker().check(b.build(y=total), {"x": RNG.normal(size=(5, 3))}).passed


def test_keeping_fewer_carries_takes_less_memory(measured):
    steps, size = 400, 500
    graph = recurrent(size=size)
    given = {n: x.astype("f4") for n, x in inputs(steps, size).items()}
    peaks = []
    for keep in (None, 20):
        made, ex = tl.grad(graph, wrt="h", keep=keep), tl.Executor()
        ex.execute(made, given)
        peaks.append(measured(ex.execute, made, given)[1])
    carries = steps * size * 4
    # the outputs' own rows are there twice over either way; the kept carries are what goes
    assert peaks[0] - peaks[1] > 0.6 * carries


def test_integer_carries_and_several_of_them():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("t", 3), "float32"), b.input("w", (3,), "float32")
    (count, h), rows = b.scan(
        lambda c, r: ((c[0] + 1, b.tanh(c[1] * w + r) * b.cast(c[0], "float32")), c[1]),
        (np.int64(0), np.zeros(3, "f4")),
        x,
    )
    graph = b.build(loss=b.sum(h) + b.sum(rows), count=count)
    report = GradientChecker().check(graph, {"x": RNG.normal(size=(5, 3)), "w": RNG.normal(size=3)})
    assert report.passed, str(report)


def test_scans_in_scans():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("t", 4, 3)), b.input("w", (3,))

    def outer(c, row):
        inside, _ = b.scan(lambda d, e: (b.sin(d * w + e), None), c, row)
        return inside, inside * 2

    last, rows = b.scan(outer, np.zeros(3), x)
    graph = b.build(y=b.square(rows), z=last)
    for keep in (None, 2):
        assert (
            GradientChecker().check(graph, {"x": RNG.normal(size=(5, 4, 3)), "w": RNG.normal(size=3)}, keep=keep).passed
        )


def test_gradients_of_gradients_of_scans():
    assert GradientChecker().check(tl.grad(recurrent(), keep=2), inputs(4), keep=3).passed


def test_scans_keep_narrow_dtypes():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("t", 3)), b.input("w", (3, 3))
    last, _ = b.scan(lambda c, r: (b.tanh(c @ w + r), None), x[0], x)
    graph = tl.grad(b.build(loss=b.sum(last)))
    out = tl.Executor().execute(graph, {"x": np.ones((4, 3), "f4"), "w": np.eye(3, dtype="f4")})
    assert [g.dtype.name for g in out] == ["float32", "float32"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_conds(sign):
    b = tl.GraphBuilder()
    x, w = b.input("x", (3,), "float64"), b.input("w", (3,), "float64")
    y, z = b.cond(b.sum(x) > 0, lambda: (x * w, b.sum(x)), lambda: (b.square(x), b.sum(w) * 2))
    graph = b.build(y=y, z=z)
    at = {"x": sign * np.array([1.0, 2.0, 3.0]), "w": RNG.normal(size=3)}
    assert GradientChecker().check(graph, at).passed
    (op,) = bodies(tl.grad(b.build(loss=b.sum(y))), Cond)
    assert len(op.then.outputs) == 2
    ahead, back = tl.jvp(graph), tl.vjp(graph)
    v = {"t_x": RNG.normal(size=3), "t_w": RNG.normal(size=3)}
    c = {"d_y": RNG.normal(size=3), "d_z": np.float64(2.0)}
    t_y, t_z = tl.Executor().execute(ahead, {**at, **v})
    d_x, d_w = tl.Executor().execute(back, {**at, **c})
    np.testing.assert_allclose(t_y @ c["d_y"] + t_z * 2, d_x @ v["t_x"] + d_w @ v["t_w"])


def settled(n=4):
    b = tl.GraphBuilder()
    a, c, start = b.input("a", ("n", "n")), b.input("c", ("n",)), b.input("start", ("n",))
    z = b.fixpoint(lambda z: b.tanh(a @ z) + c, start, tolerance=1e-13)
    rng = np.random.default_rng(3)
    at = {"a": rng.normal(size=(n, n)) * 0.3, "c": rng.normal(size=n), "start": np.zeros(n)}
    return b.build(loss=b.sum(b.square(z))), at


def test_a_fixpoint_is_differentiated_by_its_equation():
    graph, at = settled()
    assert GradientChecker().check(graph, at, ["a", "c"]).passed
    made = tl.grad(graph, ["a", "c"])
    assert len(bodies(made, Fixpoint)) == 2
    assert not bodies(made, Scan)
    narrow = tl.Executor().execute(tl.value_and_grad(graph, "a"), {n: x.astype("f4") for n, x in at.items()})
    np.testing.assert_allclose(narrow["d_a"], tl.Executor().execute(made, at)["d_a"], rtol=1e-3, atol=1e-4)


def test_where_a_fixpoint_starts_does_not_matter():
    graph, at = settled()
    with pytest.warns(tl.GradientWarning, match="'start' is zero everywhere"):
        made = tl.grad(graph)
    assert not tl.Executor().execute(made, at)["d_start"].any()


def test_the_scale_of_the_loss_does_not_matter():
    graph, at = settled()
    want = tl.Executor().execute(tl.grad(graph, "a"), at)["d_a"]
    for scale in (1e-150, 1e150, 0.0):
        got = tl.Executor().execute(tl.grad(graph, "a", loss_scale=scale), at)["d_a"]
        np.testing.assert_allclose(got, want * scale, rtol=1e-9)


def test_gradients_of_gradients_and_tangents_of_fixpoints():
    graph, at = settled(3)
    assert GradientChecker().check(tl.grad(graph, ["a", "c"]), at, ["a", "c"]).passed
    v = np.random.default_rng(9).normal(size=(3, 3))
    slope = tl.Executor().execute(tl.jvp(graph, "a"), {**at, "t_a": v})["t_loss"]
    np.testing.assert_allclose(slope, np.sum(tl.Executor().execute(tl.grad(graph, "a"), at)["d_a"] * v), rtol=1e-8)


def test_a_fixpoint_may_be_unrolled():
    graph, at = settled()
    assert GradientChecker().check(graph, at, ["a", "c"], unroll=60).passed
    assert GradientChecker().check(graph, at, ["a", "c"], unroll=60, keep=8).passed


def test_combined_rounds_have_no_equation_but_may_be_unrolled():
    b = tl.GraphBuilder()
    x = b.input("x", (2, 3))
    graph = b.build(loss=b.sum(b.square(b.fixpoint(lambda c: c[:, ::-1] * 0.5, x, combine="max"))))
    with pytest.raises(tl.GraphError, match="combines its rounds by max has no equation") as error:
        tl.grad(graph)
    assert "unroll=20" in str(error.value)
    assert "b.maximum(c, step(c))" in str(error.value)
    assert "test_grad_loops.py" in str(error.value.diagnostic.location)
    at = {"x": np.random.default_rng(4).uniform(0.1, 1, (2, 3))}
    assert GradientChecker().check(graph, at, unroll=5).passed


def test_shortest_paths_are_differentiable_when_unrolled():
    b = tl.GraphBuilder()
    road = b.input("road", (4, 4))
    far = b.fixpoint(lambda d: b.einsum("ij,jk->ik", d, road, algebra="min_plus"), road, combine="min")
    graph = tl.grad(b.build(loss=far[0, 3]), unroll=4)
    at = np.full((4, 4), 9.0)
    at[0, 1], at[1, 2], at[2, 3] = 1.0, 2.0, 3.0
    out = tl.Executor().execute(graph, {"road": at})["d_road"]
    want = np.zeros((4, 4))
    want[0, 1] = want[1, 2] = want[2, 3] = 1  # the roads that the shortest path takes
    np.testing.assert_allclose(out, want)


def test_a_fixpoint_that_is_no_contraction_says_so_when_it_runs():
    b = tl.GraphBuilder()
    x, c = b.input("x", (2,)), b.input("c", (2,))
    z = b.fixpoint(lambda z: b.maximum(z, c), x)  # settles, but every value above c is a solution
    graph = tl.grad(b.build(loss=b.sum(b.square(z))), "c")
    with pytest.raises(tl.ConvergenceError, match="did not settle"):
        tl.Executor().execute(graph, {"x": np.array([2.0, 3.0]), "c": np.array([1.0, 1.0])})


def test_truth_inside_a_body_is_flat():
    b = tl.GraphBuilder()
    x = b.input("x", ("t", 2))
    total, _ = b.scan(lambda c, r: (c + b.cast(r > 0, "float64"), None), np.zeros(2), x)
    with pytest.warns(tl.GradientWarning, match="zero everywhere"):
        graph = tl.grad(b.build(loss=b.sum(total)))
    assert not tl.Executor().execute(graph, {"x": np.ones((3, 2))})["d_x"].any()
    through = tl.grad(b.build(loss=b.sum(total)), straight_through=True)
    assert tl.Executor().execute(through, {"x": np.ones((3, 2))})["d_x"].tolist() == np.ones((3, 2)).tolist()


def test_second_derivatives_of_a_fixpoint_where_the_first_is_zero():
    b = tl.GraphBuilder()
    c = b.input("c", (), "float64")
    loss = b.build(loss=b.square(b.fixpoint(lambda z: 0.5 * z + c, np.float64(0))))
    second = tl.grad(tl.grad(loss))
    for at in (1.0, 0.0):
        assert tl.Executor().execute(second, {"c": np.float64(at)})[0] == pytest.approx(8.0)


@pytest.mark.parametrize("flat", ["floor", "stop_gradient"])
def test_a_fixpoint_of_flat_values_has_no_tangent(flat):
    b = tl.GraphBuilder()
    x = b.input("x", (), "float64")
    z = b.fixpoint(lambda z: 0.5 * z + getattr(b, flat)(x), x * 0)
    ahead = tl.jvp(b.build(y=z * x))
    assert tl.Executor().execute(ahead, {"x": 3.0, "t_x": 1.0})["t_y"] == pytest.approx(6.0)


def looped(kind):
    """Return a graph with a loop whose body has several inputs, and where to take its derivatives."""
    b = tl.GraphBuilder()
    c, w = b.input("c", (3,), "float64"), b.input("w", (3, 3), "float64")
    if kind == "scan":
        last, rows = b.scan(lambda h, r: (b.tanh(h @ w + r), h * r * c), c, w)
        y = b.sum(b.square(rows)) + b.sum(last)
    elif kind == "cond":
        y = b.sum(b.cond(b.sum(w) > 0, lambda: b.sin(c @ w) * c, lambda: b.exp(c) * b.sum(w * w)))
    else:
        y = b.sum(b.square(b.fixpoint(lambda z: b.tanh(w @ z) * 0.5 + b.sin(c), np.zeros(3), tolerance=1e-14)))
    rng = np.random.default_rng(5)
    return b.build(l=y), {"c": rng.normal(size=3), "w": rng.normal(size=(3, 3)) * 0.4}


def along(graph, at, way):
    """Return the tangents of a graph's outputs along one direction of c and w, and the graph and inputs that give them."""
    ahead = tl.jvp(graph, ["c", "w"])
    new = [n for n in ahead.inputs if n not in graph.inputs]
    given = {**at, **dict(zip(new, way.values(), strict=True))}
    return ahead, given, list(tl.Executor().execute(ahead, given))


@pytest.mark.parametrize("of", [lambda g: g, lambda g: tl.grad(g, ["c", "w"])], ids=["itself", "grad"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", ["scan", "cond", "fixpoint"])
def test_tangents_of_tangents_of_loops(kind, sign, of):
    graph, at = looped(kind)
    graph, at["w"] = of(graph), at["w"] * sign
    rng = np.random.default_rng(6)
    first, second = ({n: rng.normal(size=x.shape) for n, x in at.items()} for _ in range(2))
    ahead, given, _ = along(graph, at, first)
    _, _, got = along(ahead, given, second)
    step = 1e-5
    after, before = (along(graph, {n: x + s * second[n] for n, x in at.items()}, first)[2] for s in (step, -step))
    assert len(got) == len(after) > 0
    for g, a, z in zip(got, after, before, strict=True):
        np.testing.assert_allclose(g, (a - z) / (2 * step), rtol=1e-5, atol=1e-7)
        assert np.any(g)


def test_third_tangents_of_a_cond_by_hand():
    b = tl.GraphBuilder()
    c = b.input("c", (3,), "float64")
    graph = b.build(l=b.cond(b.sum(c) > 0, lambda: c * c * c, lambda: c))
    for _ in range(3):
        graph = tl.jvp(graph, "c")
    for sign in (1.0, -1.0):
        given = {name: np.full(3, sign if name == "c" else 2.0) for name in graph.inputs}
        want = 6 * 8.0 if sign > 0 else 0.0
        np.testing.assert_allclose(tl.Executor().execute(graph, given)[0], np.full(3, want))
