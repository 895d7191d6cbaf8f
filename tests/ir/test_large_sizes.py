"""Sizes about 2^63, which a file or a caller may give: each is refused with an error of ours, or works."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl

SIZES = [2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**64)]
MAKERS: dict[str, Callable[[tl.GraphBuilder, Any, Any], Any]] = {
    "reshape": lambda b, x, n: b.reshape(x, (n,)),
    "reshape, rest": lambda b, x, n: b.reshape(x, (n, -1)),
    "broadcast": lambda b, x, n: b.broadcast_to(x, (n, 3)),
    "broadcast, twice": lambda b, x, n: b.broadcast_to(x, (n, n, 3)),
    "iota": lambda b, x, n: b.iota(n),
    "sum of iota": lambda b, x, n: b.sum(b.iota(n)),
    "slice to": lambda b, x, n: x[:n],
    "slice from": lambda b, x, n: x[n:],
    "slice by": lambda b, x, n: x[::n],
    "pad": lambda b, x, n: b.pad(x, [(n, n)]),
    "window": lambda b, x, n: b.window(x, 0, n),
    "window by": lambda b, x, n: b.window(x, 0, 2, step=n),
    "window with gaps": lambda b, x, n: b.window(x, 0, 2, dilation=n),
    "einsum": lambda b, x, n: b.einsum("i,j->ij", b.iota(n), b.iota(n)),
    "einsum of all": lambda b, x, n: b.einsum("i,j->", b.iota(n), b.iota(n)),
    "input": lambda b, x, n: b.sum(b.input("y", (n, n))),
    "stack": lambda b, x, n: b.stack([b.iota(n), b.iota(n)], 0),
    "scan": lambda b, x, n: b.scan(lambda c, r: (c + r, c), b.sum(x), b.broadcast_to(b.sum(x), (n,)))[0],
    "top_k": lambda b, x, n: b.top_k(x, n)[0],
}


def ours(attempt: Callable[[], Any]) -> Any:
    """Return what an attempt makes, or None where it is refused; any other exception fails the test."""
    try:
        return attempt()
    except tl.TensorLogicError as error:
        assert str(error)
        return None


def run(graph: tl.EinsumGraph, **options: Any) -> None:
    given = {"x": np.ones(3)} if "x" in graph.inputs else {}
    for backend in ("numpy", "null"):
        ours(lambda: str(tl.Executor(backend).plan(graph, given, **options)))  # noqa: B023
    for executor in (tl.Executor(), tl.Executor(threads=2), tl.Executor("reference")):
        ours(lambda: executor.execute(graph, given, **options))  # noqa: B023


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MAKERS)
def test_in_a_builder(name: str, size: int) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    graph = ours(lambda: b.build(z=MAKERS[name](b, x, size)))
    if graph is not None:
        run(graph)
        assert tl.EinsumGraph.from_json(graph.to_json()) == graph == tl.EinsumGraph.from_text(graph.to_text())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "shape"), [("iota", "n"), ("sum of iota", "n*n"), ("iota", "n-1"), ("broadcast", "n"), ("broadcast, twice", "n"),
                        ("reshape, rest", "n"), ("slice to", "n"), ("pad", "n"), ("window", "n"), ("einsum", "n + 1")],
)  # fmt: skip
def test_in_sizes(name: str, shape: str, size: int) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    graph = ours(lambda: b.build(z=MAKERS[name](b, x, shape)))
    if graph is not None:
        for given in (size, float(size), str(size)):
            run(graph, sizes={"n": given})


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [p for key in value if key != "at" for p in _places(value[key], (*path, key))]
    if isinstance(value, list):
        return [p for n, v in enumerate(value) for p in _places(v, (*path, n))]
    return [path] if isinstance(value, int) else []


@pytest.mark.parametrize("size", SIZES)
def test_in_a_file(size: int) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    graph = b.build(
        r=b.reshape(x, (3, 1)), b=b.broadcast_to(x, (5, 3)), i=b.iota(7), s=x[1:2], p=b.pad(x, [(1, 2)], 4),
        w=b.window(x, 0, 2, step=1, dilation=1), e=b.einsum("i,j->ij", x, b.iota(7)), t=b.top_k(x, 1)[0], m=b.sum(x, 0),
        f=b.fixpoint(lambda c: b.minimum(c + 1, 4), x, limit=50),
    )  # fmt: skip
    text = graph.to_json()
    places = _places(json.loads(text))
    assert len(places) > 40
    for path in places:
        for value in (size, str(size)):
            raw = json.loads(text)
            inner = raw
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            read = ours(lambda: tl.EinsumGraph.from_json(json.dumps(raw)))  # noqa: B023
            plan = read and ours(lambda: tl.Executor().plan(read, {"x": np.ones(3)}))  # noqa: B023
            if plan and plan.peak_bytes < 1 << 22:
                ours(lambda: tl.Executor().execute(read, {"x": np.ones(3)}))  # noqa: B023
    ours(lambda: tl.EinsumGraph.from_text(f"graph {{\n  x: float64[{size}] = input()\n  return y=x\n}}"))
    ours(lambda: tl.EinsumGraph.from_text(f"graph {{\n  x: float64[n*{size}] = input()\n  return y=x\n}}"))


def test_what_graphs_of_many_axes_cost_is_told() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.sum(b.exp(b.sin(b.broadcast_to(b.input("x", ()), [10**18] * 18)) * 2.0)))
    assert str(tl.GraphOptimizer().analyze(graph))
