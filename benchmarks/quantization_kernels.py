"""Products of small numbers on one thread, each beside our own float32 and beside ONNX Runtime and PyTorch in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
from harness import Contender, Table, contest, native, peer, seconds
from threadpoolctl import threadpool_limits

import tensorlogic as tl
from tensorlogic.ir.packed_numbers import KINDS, pack

SQUARE, WIDE, ROWS = 1024, 4096, 128
OURS32 = "our float32"
SLOW = 0.5  # seconds of a call that would take longer than all others together


@contextmanager
def one_thread():
    """Keep BLAS, and with it our own pool, to one thread, and PyTorch too where it is there."""
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass
    with threadpool_limits(1):
        yield


def session(
    nodes: list[Any], inputs: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray], output: Any
) -> Callable[[], Any]:
    """Return a call of ONNX Runtime on one thread."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    made = [helper.make_tensor_value_info("y", output or TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, made, [numpy_helper.from_array(x, n) for n, x in held.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    own = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: own.run(None, dict(inputs))[0]


def if_able(make: Callable[[], Callable[[], Any]]) -> Contender:
    """Return a contender that can run, or the reason why it cannot."""
    try:
        call = make()
        call()
        start = perf_counter()
        call()
        if (took := perf_counter() - start) > SLOW:
            return f"left out: one call takes {seconds(took)}"
    except Exception as error:  # a peer's version may lack the operator
        return f"cannot run it: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
    return call


def bytes_by_bytes(rng: np.random.Generator) -> Table:
    """Both factors int8, added up in int32."""
    a, b = (rng.integers(-128, 128, (SQUARE, SQUARE)).astype(np.int8) for _ in range(2))
    x, y = a.astype(np.float32), b.astype(np.float32)
    g = tl.GraphBuilder()
    left, right = g.input("a", a.shape, "int8"), g.input("b", b.shape, "int8")
    whole = g.build(y=g.einsum("ik,jk->ij", g.cast(left, "int32"), g.cast(right, "int32")))
    f = tl.GraphBuilder()
    floats = f.build(y=f.einsum("ik,jk->ij", f.input("x", x.shape, "float32"), f.input("y", y.shape, "float32")))
    ours, ours32 = native(whole, {"a": a, "b": b}), native(floats, {"x": x, "y": y})

    def torch_product() -> Callable[[], Any]:
        import torch

        left, right = torch.from_numpy(a), torch.from_numpy(b).t().contiguous()
        return lambda: torch._int_mm(left, right).numpy()

    def ort(node: str, *held: np.ndarray) -> Callable[[], Any]:
        from onnx import TensorProto, helper

        whole = TensorProto.INT32 if node == "MatMulInteger" else TensorProto.FLOAT
        return session([helper.make_node(node, ["a", "b"], ["y"])], {"a": held[0]}, {"b": held[1].T.copy()}, whole)

    exact = a.astype(np.float64) @ b.T.astype(np.float64)

    def named(name: str, call: Contender) -> tuple[str, Contender]:
        """Say of a contender whose sums are not those of the whole numbers that they are not."""
        right = isinstance(call, str) or np.array_equal(call(), exact)
        return (name if right else f"{name}, sums not exact"), call

    contenders = dict(
        [
            (OURS32, lambda: ours32()[0]),
            named("our int8", lambda: ours()[0]),
            ("ONNX Runtime float32", peer("onnx onnxruntime", lambda: ort("MatMul", x, y))),
            named("ONNX Runtime int8 (MatMulInteger)", peer("onnx onnxruntime", lambda: ort("MatMulInteger", a, b))),
            named("PyTorch int8 (_int_mm)", peer("torch", lambda: if_able(torch_product))),
        ]
    )
    note = "One thread. float32 is the yardstick."
    title = f"int8 × int8 → int32, {SQUARE}³"
    return contest(title, note, contenders, rounds=9, ours=(OURS32, "our int8"))


def packed(kind: str, group: int | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random weights of a kind: packed, as whole numbers, and scales for each row or each group."""
    row = KINDS[kind]
    numbers = rng.integers(row.low, row.high + 1, (WIDE, WIDE)).astype(np.int8)
    if kind == "binary":
        numbers = np.where(numbers < 0, np.int8(-1), np.int8(1))
    scales = (rng.random((WIDE, WIDE // group) if group else WIDE) * 0.01 + 0.01).astype(np.float32)
    return (numbers if row.bits == 8 else pack(numbers, row.bits)), numbers, scales


def weight_only(kind: str, group: int | None, x: np.ndarray, rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call of ours: float rows by packed weights."""
    data, _, scales = packed(kind, group, rng)
    b = tl.GraphBuilder()
    numbers = b.constant(data) if kind == "int8" else b.unpack(b.constant(data), kind, WIDE)
    weight = b.dequantize(numbers, b.constant(scales), 0, axis=None if group else 0, group=group)
    call = native(b.build(y=b.einsum("nk,jk->nj", b.input("x", x.shape, "float32"), weight)), {"x": x})
    return lambda: call()[0]


def floats(x: np.ndarray, rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call of ours in float32."""
    b = tl.GraphBuilder()
    w = b.constant(rng.standard_normal((WIDE, WIDE)).astype(np.float32))
    call = native(b.build(y=b.einsum("nk,jk->nj", b.input("x", x.shape, "float32"), w)), {"x": x})
    return lambda: call()[0]


def bits_by_bits(x: np.ndarray, rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call of ours: the signs of a row by binary weights, counted as bits."""
    data, _, scales = packed("binary", None, rng)
    b = tl.GraphBuilder()
    signs = b.quantize(b.input("x", x.shape, "float32"), np.float32(1), 0, "binary")
    factors = [b.cast(v, "int32") for v in (signs, b.unpack(b.constant(data), "binary", WIDE))]
    call = native(b.build(y=b.dequantize(b.einsum("nk,jk->nj", *factors), b.constant(scales), 0, axis=1)), {"x": x})
    return lambda: call()[0]


def few_bits(x: np.ndarray, bits: int, rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call of ONNX Runtime's MatMulNBits, in groups of 128."""
    from onnx import helper

    data = rng.integers(0, 256, (WIDE, WIDE // 128, 128 * bits // 8)).astype(np.uint8)
    scales = rng.random(WIDE * WIDE // 128).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=WIDE, N=WIDE, bits=bits, block_size=128
    )
    return session([node], {"x": x}, {"b": data, "s": scales}, None)


def dynamic_bytes(x: np.ndarray, rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call of ONNX Runtime that rounds the rows to bytes as it goes."""
    from onnx import helper

    data = rng.integers(-128, 128, (WIDE, WIDE)).astype(np.int8)
    scale, zero = np.array([0.01], np.float32), np.array([0], np.int8)
    node = helper.make_node("DynamicQuantizeMatMul", ["x", "b", "s", "z"], ["y"], domain="com.microsoft")
    return session([node], {"x": x}, {"b": data, "s": scale, "z": zero}, None)


def torch_bytes(x: np.ndarray, rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call of PyTorch's product with int8 weights."""
    import torch

    data = torch.from_numpy(rng.integers(-128, 128, (WIDE, WIDE)).astype(np.int8))
    rows, scales = torch.from_numpy(x).bfloat16(), torch.ones(WIDE, dtype=torch.bfloat16)
    return lambda: torch._weight_int8pack_mm(rows, data, scales).float().numpy()


def only_read(rng: np.random.Generator) -> Callable[[], Any]:
    """Return a call that does no more than read as many bytes as INT8 weights are: no product with them is faster."""
    import numba

    words = rng.integers(0, 256, WIDE * WIDE).astype(np.uint8).view(np.uint64)

    @numba.njit
    def together(words: np.ndarray) -> np.uint64:
        found = np.uint64(0)
        for word in words:
            found ^= word
        return found

    return lambda: together(words)


def one_row(rng: np.random.Generator) -> Table:
    """One row by a large matrix: as fast as the weights can be read and unpacked."""
    x = rng.standard_normal((1, WIDE)).astype(np.float32)
    ours: dict[str, Contender] = {OURS32: floats(x, rng)}
    ours |= {
        "our INT8": weight_only("int8", None, x, rng),
        "our INT4": weight_only("int4", None, x, rng),
        "our INT4, groups of 128": weight_only("int4", 128, x, rng),
        "our INT2 (and ternary)": weight_only("int2", None, x, rng),
        "our binary × float": weight_only("binary", None, x, rng),
        "our binary × binary (popcount)": bits_by_bits(x, rng),
        "(only reading the bytes of INT8)": only_read(rng),
    }
    peers: dict[str, Contender] = {
        "ONNX Runtime MatMulNBits, 4 bits": peer("onnx onnxruntime", lambda: if_able(lambda: few_bits(x, 4, rng))),
        "ONNX Runtime MatMulNBits, 8 bits": peer("onnx onnxruntime", lambda: if_able(lambda: few_bits(x, 8, rng))),
        "ONNX Runtime dynamic int8": peer("onnx onnxruntime", lambda: if_able(lambda: dynamic_bytes(x, rng))),
        "PyTorch int8 weights, bfloat16 rows": peer("torch", lambda: if_able(lambda: torch_bytes(x, rng))),
    }
    note = (
        "One thread. Weights stay packed; rows are float32, but for binary × binary, where their signs count. MatMulNBits multiplies "
        "4 bits exactly as ours, in groups of 128; dynamic int8 rounds the row to bytes."
    )
    title = f"One row by {WIDE}×{WIDE} packed weights"
    return contest(title, note, {**ours, **peers}, rounds=9, ours=tuple(ours), each=True)


def many_rows(rng: np.random.Generator) -> Table:
    """Enough rows for arithmetic to count."""
    x = rng.standard_normal((ROWS, WIDE)).astype(np.float32)
    ours: dict[str, Contender] = {
        OURS32: floats(x, rng),
        "our INT8": weight_only("int8", None, x, rng),
        "our INT4": weight_only("int4", None, x, rng),
    }
    nbits = peer("onnx onnxruntime", lambda: if_able(lambda: few_bits(x, 4, rng)))
    contenders = {**ours, "ONNX Runtime MatMulNBits, 4 bits": nbits}
    note = "One thread. Weights become floats block by block, for BLAS to multiply."
    return contest(
        f"{ROWS} rows by {WIDE}×{WIDE} packed weights", note, contenders, rounds=5, calls=1, ours=tuple(ours)
    )


def fuzzy(algebra: str, rng: np.random.Generator) -> Table:
    """Truth values in 8 bits beside those in float32."""
    size = 1000
    a, b = (rng.integers(0, 256, (size, size)).astype(np.uint8) for _ in range(2))
    g = tl.GraphBuilder()
    step = np.float32(1 / 255)
    truths = [g.dequantize(g.input(name, a.shape, "uint8"), step, 0) for name in "ab"]
    small = native(
        g.build(y=g.quantize(g.einsum("xy,yz->xz", *truths, algebra=algebra), step, 0, "uint8")), {"a": a, "b": b}
    )
    f = tl.GraphBuilder()
    whole = f.build(y=f.einsum("xy,yz->xz", *(f.input(n, a.shape, "float32") for n in "ab"), algebra=algebra))
    wide = native(whole, {"a": a * step, "b": b * step})
    title = f"{algebra.replace('_', '-')} join of {size}×{size} truth values"
    note = "One thread. In 8 bits a result is within 1/510 of max-min, and within 3/510 of max-product, of the same join of exact values."
    return contest(
        title, note, {OURS32: lambda: wide()[0] * 255, "our 8 bits": lambda: small()[0]}, rounds=5, calls=1, agree=0.01
    )


def tables() -> list[Table]:
    """Return the tables, measured now."""
    rng = np.random.default_rng(0)
    with one_thread():
        return [bytes_by_bytes(rng), one_row(rng), many_rows(rng), fuzzy("max_min", rng), fuzzy("max_product", rng)]
