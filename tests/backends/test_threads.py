"""Costly steps in halves, products by rows: the same answers as whole, whatever the shapes."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import threads
from tensorlogic.backends.erf import erf32


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "workers", lambda: 3)  # an odd number, so that parts differ


def split_steps(graph: tl.EinsumGraph) -> list[str]:
    return [s.op.name for s in tl.Executor().plan(graph).steps if s.threads]


@pytest.mark.parametrize("fn", ["exp", "tanh", "erf", "sigmoid", "sin", "log1p"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_costly_functions_in_parts(fn: str, dtype: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (601, 503), dtype)
    graph = b.build(y=getattr(b, fn)(x) + 0.0)
    assert split_steps(graph) == [fn]
    rng = np.random.default_rng(0)
    given = np.abs(rng.normal(size=(601, 503))).astype(dtype)
    given[0, :4] = np.nan, np.inf, 0.0, 1e30
    whole = tl.Executor(wrap=[lambda call: call]).execute(graph, {"x": given})["y"]  # wrapped plans run step by step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": given})["y"], whole)
    turned = np.asfortranarray(given)
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": turned})["y"], whole)


@pytest.mark.parametrize(
    ("spec", "a", "c"),
    [
        ("ij,jk->ik", (601, 300), (300, 200)), ("bij,jk->bik", (7, 90, 300), (300, 200)),
        ("ij,kj->ik", (601, 300), (200, 300)), ("bijc,cjk->bik", (5, 80, 20, 15), (15, 20, 200)),
        ("bij,jk->bik", (2, 300, 300), (300, 200)), ("ij,jk->ki", (601, 300), (300, 200)),
    ],
)  # fmt: skip
def test_products_by_rows(spec: str, a: tuple[int, ...], c: tuple[int, ...]) -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", a, "float32"), b.input("w", c, "float32")
    big = b.input("z", (600, 600), "float32")
    graph = b.build(y=b.einsum(spec, x, w) * 2.0, e=b.exp(big) * 2.0)
    assert split_steps(graph) == ["einsum", "exp"]
    rng = np.random.default_rng(0)
    given = {"x": rng.random(a, np.float32), "w": rng.random(c, np.float32), "z": rng.random((600, 600), np.float32)}
    got = tl.Executor().execute(graph, given)
    np.testing.assert_allclose(got["y"], 2 * np.einsum(spec, given["x"], given["w"]), rtol=1e-5)
    np.testing.assert_array_equal(got["e"], np.exp(given["z"]) * 2)


def test_without_costly_steps_blas_keeps_its_threads() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (600, 600), "float32")
    assert split_steps(b.build(y=b.relu(x @ x) @ x)) == []


def test_several_callers_at_once() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (600, 600), "float32")
    graph, executor = b.build(y=b.tanh(b.exp(x) @ x) + 1.0), tl.Executor()
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = np.random.default_rng(seed).random((600, 600), np.float32) / 100
        for _ in range(5):
            if not np.allclose(
                executor.execute(graph, {"x": given})["y"], np.tanh(np.exp(given) @ given) + 1, rtol=1e-4
            ):
                wrong.append(seed)

    callers = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong


def test_an_error_in_a_part_is_raised_after_all_ended() -> None:
    ended: list[int] = []

    def kernel(x: Any, out: Any) -> None:
        ended.append(x.size)
        if x[0] == 0:
            raise ValueError("the first part")

    with pytest.raises(ValueError, match="the first part"):
        threads.in_parts(kernel, 3)(np.arange(10.0), np.empty(10))
    assert sum(ended) == 10


def test_erf_is_within_a_unit_in_the_last_place() -> None:
    from scipy.special import erf

    x = np.concatenate([np.linspace(-6, 6, 200_001), 10.0 ** np.linspace(-44, 1, 20_001), [0.0, -0.0, np.inf, -np.inf]])
    x = x.astype("float32")
    want = erf(x.astype("float64"))
    unit = np.spacing(np.abs(want.astype("float32"))).astype("float64")
    assert np.max(np.abs(erf32(x) - want) / unit) < 0.6
    assert np.signbit(erf32(np.array([-0.0], "float32")))[0]
    assert np.isnan(erf32(np.array([np.nan], "float32")))[0]
    assert erf32(np.zeros((0, 3), "float32")).shape == (0, 3)


def test_what_runs_together_runs_its_own_calls_one_after_another() -> None:
    seen: list[int] = []

    def outer(n: int) -> None:
        threads.together([partial(seen.append, 10 * n + k) for k in range(3)])

    threads.together([partial(outer, n) for n in range(4)], 2)
    assert sorted(seen) == sorted(10 * n + k for n in range(4) for k in range(3))
