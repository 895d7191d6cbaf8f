"""Whole models beside ONNX Runtime, JAX, numexpr and NumPy by hand: ``python benchmarks/models.py [--steps] [mlp64 ...]``."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from harness import CORES, Contender, Table, contest, in_c, least_seconds, native, peer

import tensorlogic as tl
from tensorlogic.ir import ops as ops_of
from tensorlogic.ir.graph import Node

OURS = "Executor.execute"
NATIVE, KEPT = "compiled to machine code", "the same into a kept buffer"
WIDTHS = (784, 512, 256, 10)
D, HEADS, LENGTH, BATCH = 256, 8, 128, 8
HEAD = D // HEADS
CELLS = 10_000_000
# seconds between contestants: OpenBLAS and ONNX Runtime spin for up to 0.1 s after their work, and halve the speed of whoever comes next
PAUSE = 0.15

Array = Any
Weights = Mapping[str, Array]


class Case(NamedTuple):
    """One row of the benchmark, ready to be timed or taken apart."""

    title: str
    note: str
    graph: tl.EinsumGraph
    inputs: dict[str, Array]
    peers: dict[str, Contender]
    flops: float
    nbytes: float
    calls: int
    rounds: int = 25


# the multi-layer perceptron


def mlp(batch: int) -> Case:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, WIDTHS[0])).astype("float32")
    weights = {}
    for n, (i, o) in enumerate(pairwise(WIDTHS)):
        weights[f"w{n}"] = (rng.normal(size=(i, o)) / i**0.5).astype("float32")
        weights[f"b{n}"] = rng.normal(size=o).astype("float32")
    last = len(WIDTHS) - 2

    b = tl.GraphBuilder()
    z = b.input("x", (batch, WIDTHS[0]), "float32")
    for n in range(last + 1):
        z = b.linear(z, b.constant(weights[f"w{n}"]), b.constant(weights[f"b{n}"]))
        z = b.relu(z) if n < last else z

    kept = [np.empty((batch, o), "float32") for o in WIDTHS[1:]]

    def by_hand() -> Array:
        z = x
        for n, out in enumerate(kept):
            np.matmul(z, weights[f"w{n}"], out=out)
            np.add(out, weights[f"b{n}"], out=out)
            z = np.maximum(out, 0, out=out) if n < last else out
        return z

    def onnx() -> Contender:
        nodes = []
        for n in range(last + 1):
            nodes.append(("Gemm", [f"z{n}" if n else "x", f"w{n}", f"b{n}"], f"y{n}" if n < last else "y", {}))
            nodes += [("Relu", [f"y{n}"], f"z{n + 1}", {})] if n < last else []
        return session(nodes, weights, x, (batch, WIDTHS[-1]))

    def jax() -> Contender:
        import jax.numpy as jnp

        def model(x: Array, w: Weights) -> Array:
            for n in range(last + 1):
                x = x @ w[f"w{n}"] + w[f"b{n}"]
                x = jnp.maximum(x, 0) if n < last else x
            return x

        return jitted(model, weights, x)

    products = sum(i * o for i, o in pairwise(WIDTHS))
    return Case(
        f"MLP 784-512-256-10, batch {batch}",
        "float32, biases and relu, weights as constants.",
        b.build(y=z),
        {"x": x},
        {
            "ONNX Runtime": peer("onnx onnxruntime", onnx),
            "NumPy by hand, kept buffers": by_hand,
            "JAX jit": peer("jax", jax),
        },
        2 * batch * products,
        nbytes(x, *weights.values()) + 4 * batch * WIDTHS[-1],
        {1: 200, 64: 40}.get(batch, 6),
    )


# the transformer block


def block(approximate: bool) -> Case:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, LENGTH, D)).astype("float32")
    shapes = {"qkv": (D, 3 * D), "out": (D, D), "up": (D, 4 * D), "down": (4 * D, D)}
    weights = {f"w_{k}": (rng.normal(size=s) / s[0] ** 0.5).astype("float32") for k, s in shapes.items()}
    weights |= {f"b_{k}": rng.normal(size=s[1]).astype("float32") * np.float32(0.1) for k, s in shapes.items()}
    for n in "12":
        weights[f"scale{n}"] = rng.normal(size=D).astype("float32")
        weights[f"bias{n}"] = rng.normal(size=D).astype("float32")
    flops = 2 * BATCH * LENGTH * (sum(i * o for i, o in shapes.values()) + 2 * LENGTH * D)
    how = "tanh" if approximate else "erf"
    return Case(
        f"Transformer block, gelu by {how}",
        f"float32, pre-norm, d {D}, {HEADS} heads, {LENGTH} positions, batch {BATCH}, weights as constants.",
        block_graph(x.shape, weights, approximate),
        {"x": x},
        {
            "ONNX Runtime": peer("onnx onnxruntime", partial(block_onnx, x, weights, approximate)),
            "NumPy by hand, kept buffers": block_by_hand(x, weights, approximate),
            "JAX jit": peer("jax", partial(block_jax, x, weights, approximate)),
        },
        flops,
        2 * x.nbytes + nbytes(*weights.values()),
        4,
    )


def block_graph(shape: tuple[int, ...], weights: Weights, approximate: bool) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    w = {name: b.constant(value) for name, value in weights.items()}
    x = b.input("x", shape, "float32")
    z = b.linear(b.layer_norm(x, w["scale1"], w["bias1"]), w["w_qkv"], w["b_qkv"])
    q, k, v = (b.transpose(b.reshape(part, (BATCH, LENGTH, HEADS, HEAD)), (0, 2, 1, 3)) for part in thirds(z))
    z = b.reshape(b.transpose(b.attention(q, k, v), (0, 2, 1, 3)), (BATCH, LENGTH, D))
    x = x + b.linear(z, w["w_out"], w["b_out"])
    z = b.linear(b.layer_norm(x, w["scale2"], w["bias2"]), w["w_up"], w["b_up"])
    return b.build(y=x + b.linear(b.gelu(z, approximate=approximate), w["w_down"], w["b_down"]))


def parameters(graph: tl.EinsumGraph) -> tl.EinsumGraph:
    """Return a graph whose constants are inputs p0, p1, ... instead."""
    names = {digest: f"p{n}" for n, digest in enumerate(graph.constants)}
    nodes = []
    for node in graph.nodes:
        op = node.op
        if isinstance(op, ops_of.Constant):
            op = ops_of.Input(names[op.digest], op.shape, op.dtype)
        nodes.append(Node(op, node.args, node.locations))
    return tl.EinsumGraph(nodes, graph.outputs, {})


def thirds(z: Any) -> tuple[Any, ...]:
    return z[:, :, :D], z[:, :, D : 2 * D], z[:, :, 2 * D :]


def block_by_hand(x: Array, w: Weights, approximate: bool) -> Contender:
    """Return the block as NumPy calls into kept buffers, products as matrix products."""
    from scipy.special import erf

    flat, rows = x.reshape(-1, D), BATCH * LENGTH
    norm, after, y = (np.empty((rows, D), "float32") for _ in range(3))
    qkv, scores = np.empty((rows, 3 * D), "float32"), np.empty((BATCH, HEADS, LENGTH, LENGTH), "float32")
    wide, other = (np.empty((rows, 4 * D), "float32") for _ in range(2))
    mixed, joined = np.empty((BATCH, HEADS, LENGTH, HEAD), "float32"), np.empty((BATCH, LENGTH, HEADS, HEAD), "float32")
    scale = np.float32(HEAD**-0.5)

    def layer_norm(x: Array, n: str) -> Array:
        np.subtract(x, x.mean(-1, keepdims=True), out=norm)
        var = np.einsum("ij,ij->i", norm, norm)[:, None] / np.float32(D)
        np.divide(norm, np.sqrt(var + np.float32(1e-5)), out=norm)
        np.multiply(norm, w["scale" + n], out=norm)
        return np.add(norm, w["bias" + n], out=norm)

    def linear(x: Array, name: str, out: Array) -> Array:
        return np.add(np.matmul(x, w["w_" + name], out=out), w["b_" + name], out=out)

    def gelu(z: Array) -> Array:
        if approximate:
            np.multiply(np.multiply(z, z, out=other), np.float32(0.044715), out=other)
            np.multiply(np.add(other, 1, out=other), z, out=other)
            np.tanh(np.multiply(other, np.float32((2 / np.pi) ** 0.5), out=other), out=other)
        else:
            erf(np.multiply(z, np.float32(0.5**0.5), out=other), out=other)
        np.multiply(np.add(other, 1, out=other), np.float32(0.5), out=other)
        return np.multiply(z, other, out=z)

    def run() -> Array:
        parts = linear(layer_norm(flat, "1"), "qkv", qkv).reshape(BATCH, LENGTH, 3, HEADS, HEAD)
        q, k, v = (parts[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
        np.multiply(np.matmul(q, k.swapaxes(-1, -2), out=scores), scale, out=scores)
        np.exp(np.subtract(scores, scores.max(-1, keepdims=True), out=scores), out=scores)
        np.divide(scores, scores.sum(-1, keepdims=True), out=scores)
        np.copyto(joined, np.matmul(scores, v, out=mixed).transpose(0, 2, 1, 3))
        np.add(linear(joined.reshape(rows, D), "out", after), flat, out=after)
        z = gelu(linear(layer_norm(after, "2"), "up", wide))
        return np.add(linear(z, "down", y), after, out=y).reshape(x.shape)

    return run


def block_onnx(x: Array, weights: Weights, approximate: bool) -> Contender:
    more = {
        "heads": np.array([BATCH, LENGTH, HEADS, HEAD]),
        "whole": np.array(x.shape),
        "thirds": np.array([D, D, D]),
        "scale": np.float32(HEAD**-0.5),
    }
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []

    def add(op: str, *args: str, out: str, **how: Any) -> str:
        nodes.append((op, list(args), out, how))
        return out

    def linear(z: str, name: str) -> str:
        return add("Add", add("MatMul", z, f"w_{name}", out=f"{name}_p"), f"b_{name}", out=f"{name}_y")

    z = linear(add("LayerNormalization", "x", "scale1", "bias1", out="n1", axis=-1, epsilon=1e-5), "qkv")
    add("Split", z, "thirds", out="q k v", axis=-1)
    order = {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}
    for name, perm in order.items():
        add("Transpose", add("Reshape", name, "heads", out=f"{name}_r"), out=f"{name}_t", perm=perm)
    scores = add("Mul", add("MatMul", "q_t", "k_t", out="scores"), "scale", out="scaled")
    z = add("MatMul", add("Softmax", scores, out="attention", axis=-1), "v_t", out="mixed")
    z = add("Reshape", add("Transpose", z, out="joined", perm=(0, 2, 1, 3)), "whole", out="joined_w")
    after = add("Add", linear(z, "out"), "x", out="after")
    z = linear(add("LayerNormalization", after, "scale2", "bias2", out="n2", axis=-1, epsilon=1e-5), "up")
    z = add("Gelu", z, out="gelu", approximate="tanh" if approximate else "none")
    add("Add", linear(z, "down"), after, out="y")
    return session(nodes, {**weights, **more}, x, x.shape)


def block_jax(x: Array, weights: Weights, approximate: bool) -> Contender:
    import jax
    import jax.numpy as jnp

    def layer_norm(x: Array, w: Weights, n: str) -> Array:
        away = x - x.mean(-1, keepdims=True)
        return away * jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-5) * w["scale" + n] + w["bias" + n]

    def model(x: Array, w: Weights) -> Array:
        z = layer_norm(x, w, "1") @ w["w_qkv"] + w["b_qkv"]
        q, k, v = (part.reshape(BATCH, LENGTH, HEADS, HEAD).transpose(0, 2, 1, 3) for part in thirds(z))
        attention = jax.nn.softmax(q @ k.swapaxes(-1, -2) * HEAD**-0.5, axis=-1)
        z = jnp.matmul(attention, v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + z @ w["w_out"] + w["b_out"]
        z = layer_norm(x, w, "2") @ w["w_up"] + w["b_up"]
        return x + jax.nn.gelu(z, approximate=approximate) @ w["w_down"] + w["b_down"]

    return jitted(model, weights, x)


# a fuzzy formula


def fuzzy(sigmoid: bool) -> Case:
    """max(0, min(a, 1 - b) + c - 1), or the sigmoid of min(a, 1 - b) + c - 1."""
    rng = np.random.default_rng(0)
    facts = {name: rng.random(CELLS, dtype="float32") for name in "abc"}
    b = tl.GraphBuilder()
    x, y, z = (b.input(name, (CELLS,), "float32") for name in "abc")
    inner = b.minimum(x, 1 - y) + z - 1
    kept = np.empty(CELLS, "float32")

    def by_hand(out: Array = None) -> Array:
        out = np.empty(CELLS, "float32") if out is None else out
        np.minimum(np.subtract(1, facts["b"], out=out), facts["a"], out=out)
        np.subtract(np.add(out, facts["c"], out=out), 1, out=out)
        if not sigmoid:
            return np.maximum(out, 0, out=out)
        np.exp(np.negative(out, out=out), out=out)
        return np.reciprocal(np.add(out, 1, out=out), out=out)

    def numexpr() -> Contender:
        import numexpr as ne

        low = "where(a < one - b, a, one - b) + c - one"  # it has no element-wise minimum
        text = f"one / (one + exp(-({low})))" if sigmoid else f"where({low} > zero, {low}, zero)"
        given = {**facts, "one": np.float32(1), "zero": np.float32(0)}
        out = np.empty(CELLS, "float32")
        return lambda: ne.evaluate(text, given, {}, out=out, casting="same_kind")

    def jax() -> Contender:
        import jax
        import jax.numpy as jnp

        def model(x: Array, w: Weights) -> Array:
            low = jnp.minimum(x, 1 - w["b"]) + w["c"] - 1
            return jax.nn.sigmoid(low) if sigmoid else jnp.maximum(low, 0)

        return jitted(model, {"b": facts["b"], "c": facts["c"]}, facts["a"])

    def in_openmp() -> Contender:
        low = "(a[i] < 1 - b[i] ? a[i] : 1 - b[i]) + c[i] - 1"
        last = "1 / (1 + expf(-t))" if sigmoid else "t > 0 ? t : 0"
        made = in_c(
            "#include <math.h>\nvoid f(const float *restrict a, const float *restrict b, const float *restrict c, float *restrict o, long n) {\n"
            f"#pragma omp parallel for simd\nfor (long i = 0; i < n; i++) {{ float t = {low}; o[i] = {last}; }} }}",
            "-fopenmp",
            "-ffast-math",
        )
        if isinstance(made, str):
            return made
        out = np.empty(CELLS, "float32")
        where = [ctypes.c_void_p(x.ctypes.data) for x in (*facts.values(), out)]

        def call() -> Array:
            made.f(*where, ctypes.c_long(CELLS))
            return out

        return call

    return Case(
        "Fuzzy formula over 10M elements" + (", with a sigmoid" if sigmoid else ""),
        ("σ(min(a, 1−b) + c − 1)" if sigmoid else "max(0, min(a, 1−b) + c − 1)") + ", float32.",
        b.build(y=b.sigmoid(inner) if sigmoid else b.maximum(inner, 0)),
        facts,
        {
            "C, OpenMP, kept buffer": in_openmp(),
            "NumPy by hand, kept buffer": lambda: by_hand(kept),
            "NumPy by hand, a new answer each call": by_hand,
            "numexpr, kept buffer": peer("numexpr", numexpr),
            "JAX jit": peer("jax", jax),
        },
        0,
        16 * CELLS,
        2,
        10,
    )


# peers


def session(
    nodes: list[tuple[str, list[str], str, dict[str, Any]]], weights: Weights, x: Array, shape: Any
) -> Contender:
    """Return an ONNX Runtime session of (operation, inputs, outputs, attributes), on all cores."""
    import onnx
    import onnxruntime as ort
    from onnx import helper, numpy_helper

    made = [helper.make_node(op, args, outs.split(), **how) for op, args, outs, how in nodes]
    real = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        made,
        "model",
        [helper.make_tensor_value_info("x", real, x.shape)],
        [helper.make_tensor_value_info("y", real, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = CORES, 1
    ready = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: ready.run(None, {"x": x})[0]


def jitted(model: Callable[[Array, Weights], Array], weights: Weights, x: Array) -> Contender:
    """Return a compiled JAX function with its arrays already on JAX's side."""
    import jax

    x, weights = jax.device_put(x), {name: jax.device_put(value) for name, value in weights.items()}
    call = jax.jit(model)
    return lambda: call(x, weights).block_until_ready()


def nbytes(*arrays: Array) -> int:
    return sum(a.nbytes for a in arrays)


ROWS: dict[str, Callable[[], Case]] = {
    "mlp1": partial(mlp, 1),
    "mlp64": partial(mlp, 64),
    "mlp1024": partial(mlp, 1024),
    "block": partial(block, False),
    "block_tanh": partial(block, True),
    "fuzzy": partial(fuzzy, False),
    "fuzzy_sigmoid": partial(fuzzy, True),
}


def measure(case: Case) -> Table:
    executor = tl.Executor()
    compiled = native(case.graph, case.inputs)
    [(name, kept)] = [(n, np.empty_like(v)) for n, v in compiled().items()]
    contenders = {
        **case.peers,
        OURS: lambda: executor.execute(case.graph, case.inputs)[0],
        NATIVE: lambda: compiled()[0],
        KEPT: lambda: compiled(out={name: kept})[0],
    }
    return contest(
        case.title,
        case.note,
        contenders,
        rounds=case.rounds,
        ours=(OURS, NATIVE, KEPT),
        agree=1e-4,
        pause=PAUSE,
        each=True,
        calls=case.calls,
        limit=partial(least_seconds, case.flops, case.nbytes),
    )


def steps(case: Case, runs: int = 30) -> str:
    """Say which operations the executor's time goes to, and what is left for the loop and the checks around it."""
    executor = tl.Executor()
    executor.execute(case.graph, case.inputs)
    whole = []
    with tl.trace() as t:
        for _ in range(runs):
            start = perf_counter_ns()
            executor.execute(case.graph, case.inputs)
            whole.append(perf_counter_ns() - start)
    events = t.events()
    medians = np.median(np.reshape([e.duration_ns for e in events], (runs, -1)), axis=0)  # by step
    spent, count = Counter[str](), Counter[str]()
    for event, taken in zip(events, medians, strict=False):  # the first run names the steps
        spent[event.name] += taken
        count[event.name] += 1
    total = float(np.median(whole))
    spent["(around the steps, the trace's own cost included)"] = total - float(medians.sum())
    lines = [f"{case.title}: {total / 1e3:.1f} µs a call, medians of {runs} traced calls"]
    lines += [f"{n / total:6.1%} {n / 1e3:10.1f} µs {count[k] or '':4} {k}" for k, n in spent.most_common(14)]
    return "\n".join(lines)


def tables() -> list[Table]:
    return [measure(make()) for make in ROWS.values()]


def main(words: list[str]) -> None:
    names = [w for w in words if w != "--steps"]
    if unknown := [n for n in names if n not in ROWS]:
        sys.exit(f"no row {', '.join(unknown)}; there are: {', '.join(ROWS)}")
    for name in names or ROWS:
        case = ROWS[name]()
        print(steps(case) if "--steps" in words else measure(case).markdown(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
