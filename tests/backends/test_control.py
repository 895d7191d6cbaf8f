"""Fixpoint, scan and cond against plain NumPy loops, SciPy and networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path

import tensorlogic as tl
from tensorlogic.backends.reference import evaluate

BACKENDS = ["numpy", "reference"]


def _edges(n: int, share: float, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((n, n)) < share


def _closure() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or")
    return b.build(path=path)


# fixpoint


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03, 0.2])
def test_transitive_closure_is_networkx(share: float) -> None:
    edge = _edges(60, share)
    graph = nx.transitive_closure(nx.from_numpy_array(edge, create_using=nx.DiGraph))
    expected = nx.to_numpy_array(graph, nodelist=range(60)) > 0
    np.testing.assert_array_equal(tl.Executor().execute(_closure(), {"edge": edge})["path"], expected)


def test_a_long_path_takes_as_many_rounds_as_it_is_long() -> None:
    edge = np.eye(120, k=1, dtype=bool)
    np.testing.assert_array_equal(
        tl.Executor().execute(_closure(), {"edge": edge})["path"], np.triu(np.ones((120, 120), bool), 1)
    )


def test_shortest_paths_are_scipys() -> None:
    rng = np.random.default_rng(1)
    weight = np.where(rng.random((40, 40)) < 0.1, rng.integers(1, 20, (40, 40)), np.inf).astype(float)
    np.fill_diagonal(weight, 0)
    b = tl.GraphBuilder()
    w = b.input("w", (40, 40))
    graph = b.build(d=b.fixpoint(lambda d: b.einsum("xy,yz->xz", d, w, algebra="min_plus"), w, combine="min"))
    expected = shortest_path(np.where(np.isinf(weight), 0, weight), method="FW")
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"w": weight})["d"], expected)


def test_values_that_come_back_are_told_long_before_the_limit() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.fixpoint(lambda z: 1.0 - z, b.input("x", (3,), "float64")))
    with pytest.raises(tl.ConvergenceError, match="every 2 rounds its values are the same again") as caught:
        tl.Executor().execute(graph, {"x": np.array([0.25, 0.5, 1.0])})
    assert "tolerance=" in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tolerance_stops_a_sequence_that_only_approaches_its_limit(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    root = b.fixpoint(lambda r: 0.5 * (r + x / r), x, tolerance=1e-9)
    got = tl.Executor(backend).execute(b.build(r=root), {"x": [2.0, 9.0, 1e4]})["r"]
    np.testing.assert_allclose(got, [2**0.5, 3, 100], rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_running_into_the_limit_names_the_carry_and_the_rounds(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (4,))
    still, _ = b.fixpoint(lambda c, d: (c, d + b.constant(np.array([0.0, 1.0, 1.0, 0.0]))), x, x, limit=7)
    graph = b.build(y=still)
    with pytest.raises(tl.ConvergenceError) as caught:
        tl.Executor(backend).execute(graph, {"x": np.ones(4)})
    message = str(caught.value)
    assert "within 7 rounds" in message
    assert "carry 1 (2 elements still change)" in message
    assert "carry 0" not in message
    assert "test_control.py" in message
    assert "tolerance=" in message


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_round_of_the_limit_may_be_the_one_that_settles(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ())
    for limit, settles in ((4, True), (3, False)):  # 0 1 2 3 3: three rounds move, the fourth shows it is done
        graph = b.build(y=b.fixpoint(lambda c: b.minimum(c + 1, 3), x, limit=limit))
        if settles:
            assert tl.Executor(backend).execute(graph, {"x": 0.0})["y"] == 3
        else:
            with pytest.raises(tl.ConvergenceError):
                tl.Executor(backend).execute(graph, {"x": 0.0})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tolerance", [0.0, 1e-6])
def test_nan_and_infinity_settle(backend: str, tolerance: float) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    graph = b.build(y=b.fixpoint(lambda c: c * 2, x, tolerance=tolerance, limit=3000))
    got = tl.Executor(backend).execute(graph, {"x": [np.nan, 1.0, -0.0]})["y"]
    np.testing.assert_array_equal(got, [np.nan, np.inf, 0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_carries_and_a_capture(backend: str) -> None:
    b = tl.GraphBuilder()
    n, step = b.input("n", (), "int64"), b.input("step", (), "int64")
    left, steps = b.fixpoint(
        lambda left, done: (b.maximum(left - step, 0), done + b.cast(left > 0, "int64")), n, np.int64(0)
    )
    out = tl.Executor(backend).execute(b.build(left=left, steps=steps), {"n": 17, "step": 5})
    assert (int(out["left"]), int(out["steps"])) == (0, 4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("combine", "expected"), [("max", [3, 3, 3]), ("min", [1, 1, 1]), ("or", [1, 1, 1])])
def test_combines(backend: str, combine: str, expected: list[float]) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    turn = b.fixpoint(lambda c: b.concat([c[1:], c[:1]]), x, combine=combine)
    np.testing.assert_array_equal(tl.Executor(backend).execute(b.build(y=turn), {"x": [1.0, 3.0, 2.0]})["y"], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_body_may_return_a_number(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ())
    graph = b.build(y=b.fixpoint(lambda c: 0.5, x))
    assert tl.Executor(backend).execute(graph, {"x": 3.0})["y"] == 0.5


def test_an_empty_carry_is_settled_at_once() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.fixpoint(lambda c: c + 1, b.input("x", ("n", 3))))
    assert tl.Executor().execute(graph, {"x": np.zeros((0, 3))})["y"].shape == (0, 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda b, c: b.cast(c, "int8"), "equal dtypes"),
        (lambda b, c: c[:1], "equal shapes"),
        (lambda b, c: (c, c), "2 tensors for 1 carries"),
    ],
)
def test_bodies_that_change_the_carrys_type_are_refused(body: Any, message: str) -> None:
    b = tl.GraphBuilder()
    with pytest.raises(tl.GraphError, match=message):
        b.fixpoint(lambda c: body(b, c), b.input("x", (3,), "float32"))


# scan


def _rnn_graph(reverse: bool) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, h0 = b.input("x", ("t", 3)), b.input("h0", (4,))
    w, u = b.input("w", (3, 4)), b.input("u", (4, 4))

    def cell(h: Any, row: Any) -> Any:
        new = b.tanh(row @ w + h @ u)
        return new, (new, b.sum(new))

    last, (states, sums) = b.scan(cell, h0, x, reverse=reverse)
    return b.build(last=last, states=states, sums=sums)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [6, 1, 0])
def test_rnn_is_a_numpy_loop(backend: str, reverse: bool, length: int) -> None:
    rng = np.random.default_rng(2)
    x, h0, w, u = rng.random((length, 3)), rng.random(4), rng.random((3, 4)), rng.random((4, 4))
    h, states = h0, np.zeros((length, 4))
    for t in reversed(range(length)) if reverse else range(length):
        h = np.tanh(x[t] @ w + h @ u)
        states[t] = h
    out = tl.Executor(backend).execute(_rnn_graph(reverse), {"x": x, "h0": h0, "w": w, "u": u})
    np.testing.assert_allclose(out["last"], h, rtol=1e-12)
    np.testing.assert_allclose(out["states"], states, rtol=1e-12)
    np.testing.assert_allclose(out["sums"], states.sum(1), rtol=1e-12)
    assert out["states"].shape == (length, 4)
    assert out["sums"].shape == (length,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_over_nothing_counts(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (), "int64")
    last, seen = b.scan(lambda c, _: (c * 2, c), x, (), length=5)
    out = tl.Executor(backend).execute(b.build(last=last, seen=seen), {"x": 3})
    assert int(out["last"]) == 96
    assert out["seen"].tolist() == [3, 6, 12, 24, 48]


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_with_a_symbolic_length_and_no_output(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    last, none = b.scan(lambda c, _: (c + 1, None), b.sum(x), (), length="n")
    assert none is None
    assert tl.Executor(backend).execute(b.build(last=last), {"x": np.ones(4)})["last"] == 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_several_of_each(backend: str) -> None:
    b = tl.GraphBuilder()
    x, y = b.input("x", ("t",)), b.input("y", ("t", 2))
    (total, last), (sums, rows) = b.scan(
        lambda c, r: ((c[0] + r[0], r[1]), (c[0], r[1] * r[0])), (np.float64(0), y[0]), (x, y)
    )
    xs, ys = np.array([1.0, 2.0, 3.0]), np.arange(6.0).reshape(3, 2)
    out = tl.Executor(backend).execute(b.build(total=total, last=last, sums=sums, rows=rows), {"x": xs, "y": ys})
    assert out["total"] == 6
    np.testing.assert_array_equal(out["last"], ys[-1])
    np.testing.assert_array_equal(out["sums"], [0, 1, 3])
    np.testing.assert_array_equal(out["rows"], ys * xs[:, None])


def test_scan_with_different_lengths_is_refused_when_bound() -> None:
    b = tl.GraphBuilder()
    x, y = b.input("x", ("t",)), b.input("y", ("s",))
    _, out = b.scan(lambda c, r: (c, r[0] + r[1]), np.float64(0), (x, y))
    with pytest.raises(tl.ShapeError, match="scan runs"):
        tl.Executor().execute(b.build(y=out), {"x": np.ones(3), "y": np.ones(4)})


def test_scan_needs_a_length_or_operands() -> None:
    b = tl.GraphBuilder()
    with pytest.raises(tl.GraphError, match="length="):
        b.scan(lambda c, _: (c, c), b.input("x", ()), ())


# cond


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("x", "expected"), [([1.0, 2.0], [2.0, 4.0]), ([-1.0, -2.0], [1.0, 2.0])])
def test_cond_runs_one_branch(backend: str, x: list[float], expected: list[float]) -> None:
    b = tl.GraphBuilder()
    t = b.input("x", (2,))
    graph = b.build(y=b.cond(b.sum(t) > 0, lambda: t * 2, lambda: -t))
    np.testing.assert_array_equal(tl.Executor(backend).execute(graph, {"x": x})["y"], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_other_branch_does_not_run(backend: str) -> None:
    b = tl.GraphBuilder()
    x, i = b.input("x", (2,)), b.input("i", (), "int64")
    graph = b.build(y=b.cond(i < 2, lambda: b.gather(x, i), lambda: b.sum(x)))
    executor = tl.Executor(backend)
    assert executor.execute(graph, {"x": [5.0, 7.0], "i": 1})["y"] == 7
    assert executor.execute(graph, {"x": [5.0, 7.0], "i": 9})["y"] == 12


@pytest.mark.parametrize("backend", BACKENDS)
def test_cond_with_numbers_for_results_feeds_other_steps(backend: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    scale = b.cond(b.sum(x) > 0, lambda: 10.0, lambda: 20.0)
    graph = b.build(y=b.pad(b.reshape(scale, (1,)), [(1, 1)]), z=b.einsum(",i->i", scale, x), s=scale[()])
    for sign, number in ((1.0, 10.0), (-1.0, 20.0)):
        out = tl.Executor(backend).execute(graph, {"x": np.full(2, sign)})
        np.testing.assert_array_equal(out["y"], [0, number, 0])
        np.testing.assert_array_equal(out["z"], [sign * number] * 2)
        assert out["s"] == number


@pytest.mark.parametrize("backend", BACKENDS)
def test_cond_several_results_and_captures_on_one_side(backend: str) -> None:
    b = tl.GraphBuilder()
    x, y, flag = b.input("x", (2,)), b.input("y", (2,)), b.input("flag", (), "bool")
    p, q = b.cond(flag, lambda: (x, x + y), lambda: (y * 0, y))
    for on in (True, False):
        out = tl.Executor(backend).execute(b.build(p=p, q=q), {"x": [1.0, 2.0], "y": [3.0, 4.0], "flag": on})
        np.testing.assert_array_equal(out["p"], [1, 2] if on else [0, 0])
        np.testing.assert_array_equal(out["q"], [4, 6] if on else [3, 4])


@pytest.mark.parametrize(
    ("condition", "otherwise", "message"),
    [
        (lambda b, x: x > 0, lambda b, x: x, "must be a scalar"),
        (lambda b, x: b.sum(x) > 0, lambda b, x: x[:1], "equal shapes"),
        (lambda b, x: b.sum(x) > 0, lambda b, x: b.cast(x, "int8"), "equal dtypes"),
        (lambda b, x: b.sum(x) > 0, lambda b, x: (x, x), "equally many outputs"),
    ],
)
def test_conds_that_do_not_fit(condition: Any, otherwise: Any, message: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float32")
    with pytest.raises(tl.GraphError, match=message):
        b.cond(condition(b, x), lambda: x, lambda: otherwise(b, x))


# nesting


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_of_fixpoint_of_cond_reads_the_outermost_tensors(backend: str) -> None:
    b = tl.GraphBuilder()
    x, cap = b.input("x", ("t",)), b.input("cap", ())

    def row(total: Any, r: Any) -> Any:
        grown = b.fixpoint(lambda c: b.cond(c < cap, lambda: b.minimum(c * 2, cap), lambda: c), r)
        return total + grown, grown

    total, grown = b.scan(row, np.float64(0), x)
    out = tl.Executor(backend).execute(b.build(total=total, grown=grown), {"x": [1.0, 3.0, 50.0], "cap": 20.0})
    np.testing.assert_array_equal(out["grown"], [20, 20, 50])
    assert out["total"] == 90


def test_bodies_have_constants_and_symbolic_sizes_of_their_own() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "n"))
    _, rows = b.scan(lambda c, r: (c, r * b.iota("n") + b.constant(np.array([10.0]))), np.float64(0), x)
    graph = b.build(y=rows)
    executor = tl.Executor()
    for n in (2, 5):
        given = np.random.default_rng(n).random((n, n))
        np.testing.assert_allclose(executor.execute(graph, {"x": given})["y"], given * np.arange(n) + 10)


def test_many_operand_einsums_inside_a_body_are_ordered_too() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (4, 6)), b.input("w", (6, 6))
    _, y = b.scan(lambda c, r: (c, b.einsum("i,ij,jk->k", r, w, w)), np.float64(0), x)
    rng = np.random.default_rng(3)
    given = {"x": rng.random((4, 6)), "w": rng.random((6, 6))}
    graph = b.build(y=y)
    np.testing.assert_allclose(
        tl.Executor().execute(graph, given)["y"], given["x"] @ given["w"] @ given["w"], rtol=1e-12
    )
    (body,) = next(s for s in tl.Executor().plan(graph, given).steps if s.bodies).bodies
    assert [s.kernel for s in body.steps if s.op.name == "einsum"] == ["matmul", "matmul"]


def test_a_tensor_of_a_body_cannot_leave_it() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    leaked: list[Any] = []

    def body(c: Any) -> Any:
        leaked.append(c + 1)
        return c

    b.fixpoint(body, x)
    with pytest.raises(tl.GraphError, match="cannot be used outside"):
        b.build(y=leaked[0] + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_see_the_steps_of_bodies(backend: str) -> None:
    seen: list[str] = []

    def noting(call: Any) -> Any:
        def noted(step: Any, args: Any) -> Any:
            seen.append(step.op.name)
            return call(step, args)

        return noted

    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    halves = b.fixpoint(lambda c: b.floor(c / 2), x)
    last, _ = b.scan(lambda c, r: (c + r, None), np.float64(0), x)
    chosen = b.cond(b.sum(x) > 0, lambda: b.exp(x), lambda: b.log(x))
    graph = b.build(halves=halves, last=last, chosen=chosen)
    out = tl.Executor(backend, wrap=[noting]).execute(graph, {"x": [1.0, 2.0, 4.0]})
    assert (out["halves"].tolist(), out["last"]) == ([0.0, 0.0, 0.0], 7.0)
    np.testing.assert_allclose(out["chosen"], np.exp([1.0, 2.0, 4.0]))
    assert [seen.count(name) for name in ("floor", "add", "exp", "log")] == [4, 3, 1, 0]
    whole = evaluate(graph, {"x": np.array([1.0, 2.0, 4.0])})  # the definition, without plan or loop
    np.testing.assert_allclose(whole["chosen"], out["chosen"])
