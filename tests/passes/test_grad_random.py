"""Random graphs: forward and reverse mode are transposes of each other, and directions agree with differences."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl

SIZES = {"n": 3, "m": 2}
UNARY = ["tanh", "sin", "square", "exp", "sigmoid", "absolute", "negative", "relu"]
VIEWS = [
    lambda b, x: x[0], lambda b, x: x[::-1], lambda b, x: b.transpose(x), lambda b, x: b.expand_dims(x, 0),
    lambda b, x: b.broadcast_to(x, (2, *x.shape)), lambda b, x: b.concat([x, x * 2], 0),
]  # fmt: skip
BINARY = ["add", "subtract", "multiply", "maximum", "logaddexp", "where"]


def known(shape):
    return tuple(SIZES.get(d, d) for d in shape)


def fits(a, c):
    """Tell whether two shapes broadcast, by names as well: only a literal 1 does."""
    pairs = zip(reversed(a), reversed(c), strict=False)
    return all(x == y or 1 in (x, y) for x, y in pairs)


@st.composite
def graphs(draw):
    """Make a graph over named sizes and sizes of 1, with or without dtypes, that sums, slices, joins and broadcasts."""
    b = tl.GraphBuilder()
    dtype = draw(st.sampled_from([None, "float64"]))
    shapes = draw(
        st.lists(st.sampled_from([("n", "m"), ("m",), (), ("n", 1), (1, "m"), ("n", "n")]), min_size=2, max_size=3)
    )
    values = [b.input(f"x{k}", s, dtype) for k, s in enumerate(shapes)]
    for _ in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(values))
        rank = len(x.shape)
        kind = draw(st.sampled_from(["unary", "binary", "reduce", "einsum", "view", "cumulate", "softmax"]))
        if kind == "unary":
            y = getattr(b, draw(st.sampled_from(UNARY)))(b.tanh(x))
        elif kind == "binary":
            z = draw(st.sampled_from([v for v in values if fits(x.shape, v.shape)]))
            fn = draw(st.sampled_from(BINARY))
            y = b.where(x > z, x, z * 2) if fn == "where" else getattr(b, fn)(b.sin(x), z)
        elif kind == "reduce" and rank:
            axis = draw(st.sampled_from([None, 0, rank - 1]))
            y = getattr(b, draw(st.sampled_from(["sum", "mean", "max", "prod"])))(x, axis, keepdims=draw(st.booleans()))
        elif kind == "einsum" and rank == 2:
            spec = draw(st.sampled_from(["ij->j", "ij->ji", "ij,ij->i", "ij,kj->ik", "ij,ij->"]))
            algebra = draw(st.sampled_from(["real", "log_sum_exp", "min_plus"]))
            y = b.einsum(spec, *[b.tanh(x)] * (spec.count(",") + 1), algebra=algebra)
        elif kind == "view" and rank:
            y = draw(st.sampled_from(VIEWS))(b, x)
        elif kind == "cumulate" and rank:
            y = b.cumprod(b.tanh(x), 0) + b.cumsum(x, rank - 1, reverse=True)
        elif kind == "softmax" and rank:
            y = b.softmax(x) + b.logsumexp(x, keepdims=True)
        else:
            continue
        if len(y.shape) <= 4:
            values.append(y)
    outputs = values[-2:] if draw(st.booleans()) else values[-1:]
    seed = draw(st.integers(0, 2**16))
    return b.build({f"y{k}": b.tanh(v) for k, v in enumerate(outputs)}), seed


@settings(max_examples=60)
@given(graphs())
def test_forward_and_reverse_are_transposes(made):
    graph, seed = made
    rng = np.random.default_rng(seed)
    ex = tl.Executor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.GradientWarning)
        back, ahead = tl.vjp(graph), tl.jvp(graph)
    inputs = {n: rng.normal(size=known(graph.type_of(i).shape)) for n, i in graph.inputs.items()}
    at = dict(zip(graph.output_names, ex.execute(graph, inputs), strict=True))
    v = {f"t_{n}": rng.normal(size=x.shape) for n, x in inputs.items()}
    c = {f"d_{n}": rng.normal(size=np.shape(y)) for n, y in at.items()}
    gradients = ex.execute(back, {**inputs, **c})
    tangents = ex.execute(ahead, {**inputs, **v})
    for n, x in inputs.items():
        assert gradients[f"d_{n}"].shape == x.shape
        assert gradients[f"d_{n}"].dtype == np.float64
    one = sum(np.sum(gradients["d" + n[1:]] * x) for n, x in v.items())
    other = sum(np.sum(tangents["t" + n[1:]] * x) for n, x in c.items())
    np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)

    def loss(step):
        moved = {n: x + step * v[f"t_{n}"] for n, x in inputs.items()}
        return sum(np.sum(y * c[f"d_{n}"]) for n, y in zip(at, ex.execute(graph, moved), strict=True))

    slopes = [(loss(h) - loss(-h)) / (2 * h) for h in (1e-6, 3e-6)]
    sides = [(loss(1e-6) - loss(0)) / 1e-6, (loss(0) - loss(-1e-6)) / 1e-6]
    if abs(sides[0] - sides[1]) < 1e-2 * (1 + abs(one)):  # elsewhere it stands on a kink
        np.testing.assert_allclose(one, slopes[0], rtol=1e-4, atol=1e-5)
