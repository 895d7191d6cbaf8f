"""First values of parameters, by scheme and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError, ShapeError, expect, expect_known, expect_whole, nearest
from ..ir.check import expect_graph
from ..ir.graph import EinsumGraph

Shape = tuple[int, ...]
Draw = Callable[[Any, Shape], Any]  # of a generator and a shape


def fans(shape: Shape) -> tuple[int, int]:
    """Return how many inputs and outputs a weight joins: its last two axes, times the others (the window of a convolution).

    >>> fans((784, 512)), fans((3, 3, 16, 32)), fans((10,))
    ((784, 512), (144, 288), (10, 10))
    """
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return size, size
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


def _even(limit: Callable[[Shape], float]) -> Draw:
    return lambda rng, shape: rng.uniform(-limit(shape), limit(shape), shape)


def _bell(spread: Callable[[Shape], float]) -> Draw:
    return lambda rng, shape: rng.normal(0.0, spread(shape), shape)


def _orthogonal(rng: Any, shape: Shape) -> Any:
    """Return a matrix whose rows, or columns, stand at right angles and have length 1."""
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    found, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
    found = found * np.sign(np.diag(r))
    return (found if rows >= columns else found.T).reshape(shape)


SCHEMES: dict[str, Draw] = {
    "zeros": lambda rng, shape: np.zeros(shape),
    "ones": lambda rng, shape: np.ones(shape),
    "uniform": _even(lambda shape: 0.05),
    "normal": _bell(lambda shape: 0.05),
    "glorot": _even(lambda shape: math.sqrt(6 / sum(fans(shape)))),
    "glorot_normal": _bell(lambda shape: math.sqrt(2 / sum(fans(shape)))),
    "he": _bell(lambda shape: math.sqrt(2 / fans(shape)[0])),
    "he_uniform": _even(lambda shape: math.sqrt(6 / fans(shape)[0])),
    "orthogonal": _orthogonal,
}


def initial(
    graph: EinsumGraph,
    names: Sequence[str] | str,
    scheme: str | Mapping[str, str] = "glorot",
    *,
    seed: int = 0,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Return first values for some inputs of a graph, drawn by a scheme and a seed.

    ``scheme`` is a name (zeros, ones, uniform, normal, glorot, glorot_normal, he, he_uniform, orthogonal), or names by pattern of
    the parameters: ``{"b*": "zeros", "*": "he"}``, where the first that fits counts. By one name alone, vectors and scalars start at 0.
    Each parameter has numbers of its own, whatever others there are.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w, c = b.input("x", ("n", 4)), b.input("w", (4, 2)), b.input("c", (2,))
    >>> params = initial(b.build(y=b.linear(x, w, c)), ["w", "c"], seed=1)
    >>> params["w"].shape, params["c"]
    ((4, 2), array([0., 0.], dtype=float32))
    """
    expect_graph(graph, output="loss")
    expect(
        scheme, (str, Mapping), "scheme= is a name, or names by pattern", 'write "he", or {"b*": "zeros", "*": "he"}'
    )
    expect_whole("seed", seed)
    expect(names, Iterable, "names= are the inputs to draw values for", 'write ["w"]')
    found = {}
    for name in [names] if isinstance(names, str) else names:
        expect_known("the graph has no input", [name], graph.inputs)
        kind = graph.type_of(graph.inputs[name])
        if kind.shape is None or not kind.shape.is_static:
            hint = f"declare its sizes as numbers: b.input({name!r}, (784, 10))"
            raise ShapeError(f"parameter {name!r} has no fixed shape: {kind}", hint, code="E874")
        shape = tuple(int(d) for d in kind.shape)
        draw = SCHEMES[_scheme(scheme, name, len(shape))]
        rng = np.random.default_rng([seed, *name.encode()])
        found[name] = np.asarray(draw(rng, shape)).astype(kind.dtype or dtype)
    return found


def _scheme(scheme: str | Mapping[str, str], name: str, rank: int) -> str:
    if isinstance(scheme, str):
        chosen = scheme if rank > 1 or scheme in ("zeros", "ones") else "zeros"
    else:
        fitting = [own for pattern, own in scheme.items() if fnmatchcase(name, pattern)]
        if not fitting:
            hint = 'add a scheme for all others: {"*": "glorot"}'
            raise InputError(f"no pattern of scheme= fits the parameter {name!r}", hint, code="E875")
        chosen = fitting[0]
    for own in (scheme,) if isinstance(scheme, str) else (chosen,):
        if own not in SCHEMES:
            raise InputError(f"there is no scheme {value_text(own)}", *nearest(own, SCHEMES), code="E875")
    return chosen
