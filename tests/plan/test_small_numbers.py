"""Plans for products of small numbers: which nodes are one step, what is printed, and the same answers as step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir.packed_numbers import KINDS, pack_numbers
from tensorlogic.runtime.call import call
from tensorlogic.testing.every_plan import every_program, native_plan

STEP = np.float32(1 / 255)


def answers(graph: tl.EinsumGraph, inputs: dict[str, Any], *, exact: bool = True) -> list[str]:
    """Check every plan against NumPy step by step, and that against the definitions; return the kinds of the fused steps."""
    want = list(tl.Executor().execute(graph, inputs))
    for value, right in zip(tl.Executor(backend="reference").execute(graph, inputs), want, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-4)
    executor = tl.Executor(native=True)
    _, values = executor.arrays(graph, inputs)
    for program in every_program(executor, graph, inputs):
        for value, right in zip(call(program, values), want, strict=True):
            assert value.dtype == right.dtype
            if exact:
                np.testing.assert_array_equal(value, right)
            else:
                np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-4)
    return [step.op.kind for step in native_plan(executor, graph, inputs).steps if step.parts]


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "int8") -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("ik,jk->ij", (7, 30), (9, 30)),
        ("ik,kj->ji", (7, 30), (30, 9)),
        ("bik,bjk->bij", (2, 7, 30), (2, 9, 30)),
        ("abk,nk->abn", (2, 3, 30), (5, 30)),
        ("k,nk->n", (30,), (6, 30)),
        ("akl,lkn->na", (5, 6, 4), (4, 6, 8)),
    ],
)
def test_an_einsum_of_bytes_is_one_step(spec: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    factors = [b.cast(b.input(n, shape, "int8"), "int32") for n, shape in (("x", left), ("w", right))]
    graph = b.build(y=b.einsum(spec, *factors))
    assert answers(graph, {"x": small(rng, left), "w": small(rng, right)}) == ["integers"]


def test_quantize_and_dequantize_belong_to_the_product() -> None:
    rng = np.random.default_rng(1)
    b = tl.GraphBuilder()
    q = b.quantize(b.input("x", (5, 40), "float32"), np.float32(0.05), 3, "uint8")
    w = b.unpack(b.constant(pack_numbers(rng.integers(-8, 8, (9, 40)).astype(np.int8), "int4")), "int4", 40)
    total = b.einsum("ik,jk->ij", b.cast(q, "int32"), b.cast(w, "int32"))
    scales = b.constant(rng.random(9).astype(np.float32))
    graph = b.build(y=b.relu(b.dequantize(total, scales, np.arange(9), axis=1)))
    x = rng.standard_normal((5, 40)).astype(np.float32)
    x[0, :4] = np.nan, np.inf, -np.inf, 0.125  # 0.125 / 0.05 is no tie, but 2.5 steps of it in float32
    assert answers(graph, {"x": x})[0] == "integers"
    plan = str(native_plan(tl.Executor(native=True), graph, {"x": x}))
    assert "product of bytes (6 ops)" in plan and "as exact as NumPy" in plan


def test_what_others_read_of_a_product_is_written_too() -> None:
    rng = np.random.default_rng(2)
    b = tl.GraphBuilder()
    wide = b.cast(b.input("x", (5, 40), "int8"), "int32")
    total = b.einsum("ik,jk->ij", wide, b.cast(b.constant(small(rng, (9, 40))), "int32"))
    graph = b.build(total=total, rows=b.sum(wide, axis=1), wide=wide)
    assert "integers" in answers(graph, {"x": small(rng, (5, 40))})


def test_signs_by_signs_are_counted() -> None:
    rng = np.random.default_rng(3)
    b = tl.GraphBuilder()
    signs = b.quantize(b.input("x", (2, 3, 133), "float32"), np.float32(1), 0, "binary")
    weights = np.where(rng.random((7, 133)) < 0.5, np.int8(-1), np.int8(1))
    factors = [
        b.cast(v, "int32") for v in (signs, b.unpack(b.constant(pack_numbers(weights, "binary")), "binary", 133))
    ]
    graph = b.build(y=b.dequantize(b.einsum("abk,nk->abn", *factors), np.float32(0.5), 1))
    x = rng.standard_normal((2, 3, 133)).astype(np.float32)
    x[0, 0, :3] = np.nan, 0.0, -0.0
    assert answers(graph, {"x": x}) == ["integers"]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "ternary", "binary"])
@pytest.mark.parametrize("scales", ["one", "rows", "groups"])
def test_weights_stay_packed(kind: str, scales: str) -> None:
    rng = np.random.default_rng(4)
    row = KINDS[kind]
    numbers = rng.integers(row.low, row.high + 1, (6, 72))
    numbers = np.where(numbers < 0, -1, 1) if kind == "binary" else numbers
    data = pack_numbers(numbers.astype(row.dtype), kind)
    b = tl.GraphBuilder()
    own = b.constant(data.view(row.dtype)) if row.bits == 8 else b.unpack(b.constant(data), kind, 72)
    shape = {"one": (), "rows": (6,), "groups": (6, 3)}[scales]
    options: dict[str, Any] = {"axis": 0 if scales == "rows" else None, "group": 32 if scales == "groups" else None}
    zero = b.constant(rng.integers(0, 2, shape)) if kind == "uint8" else 0
    weight = b.dequantize(own, b.constant(rng.random(shape).astype(np.float32)), zero, **options)
    graph = b.build(y=b.einsum("abk,jk->jab", b.input("x", (1, 3, 72), "float32"), weight))
    x = rng.standard_normal((1, 3, 72)).astype(np.float32)
    assert answers(graph, {"x": x}, exact=False) == ["weights"]
    plan = native_plan(tl.Executor(native=True), graph, {"x": x})
    assert not plan.exact and plan.steps[0].computed_by == "weights"
    assert plan.peak_bytes < 5 << 20


def test_weights_that_someone_else_reads_are_unpacked_for_all() -> None:
    rng = np.random.default_rng(5)
    b = tl.GraphBuilder()
    weight = b.dequantize(b.constant(small(rng, (6, 8))), np.float32(0.5), 0)
    graph = b.build(y=b.einsum("ik,jk->ij", b.input("x", (3, 8), "float32"), weight), w=weight)
    assert "weights" not in answers(graph, {"x": rng.standard_normal((3, 8)).astype(np.float32)}, exact=False)


@pytest.mark.parametrize("algebra", ["max_min", "max_product"])
def test_truth_values_in_8_bits_are_joined_in_8_bits(algebra: str) -> None:
    """Every pair of numbers meets: the rounded product is NumPy's for all of them."""
    b = tl.GraphBuilder()
    truths = [
        b.dequantize(b.input(name, shape, "uint8"), STEP, 0) for name, shape in (("a", (256, 1)), ("c", (1, 256)))
    ]
    graph = b.build(y=b.quantize(b.einsum("xy,yz->xz", *truths, algebra=algebra), STEP, 0, "uint8"))
    every = np.arange(256, dtype=np.uint8)
    a, c = every.reshape(256, 1), every.reshape(1, 256)
    executor = tl.Executor(native=True)
    want = tl.Executor().execute(graph, {"a": a, "c": c})[0]
    [fused, *_] = every_program(executor, graph, {"a": a, "c": c})
    assert [step.op.kind for step in fused.plan.steps] == ["fuzzy"]
    np.testing.assert_array_equal(call(fused, [a, c])[0], want)


def test_a_join_of_truth_values_is_within_its_bound() -> None:
    rng = np.random.default_rng(6)
    for algebra, bound in (("max_min", 1 / 510), ("max_product", 3 / 510 + 1 / 510**2)):
        exact = [rng.random(shape) for shape in ((2, 11, 30), (2, 30, 13))]
        b = tl.GraphBuilder()
        names = [b.input(name, x.shape, "uint8") for name, x in zip("ac", exact, strict=True)]
        truths = [b.dequantize(x, STEP, 0) for x in names]
        graph = b.build(y=b.quantize(b.einsum("nxy,nyz->nzx", *truths, algebra=algebra), STEP, 0, "uint8"))
        given = {name: np.rint(x * 255).astype(np.uint8) for name, x in zip("ac", exact, strict=True)}
        assert answers(graph, given) == ["fuzzy"]
        joined = np.minimum if algebra == "max_min" else np.multiply
        want = joined(exact[0][..., None], exact[1][:, None]).max(2).transpose(0, 2, 1)
        found = tl.Executor(native=True).execute(graph, given)[0] / 255
        assert np.abs(found - want).max() <= bound + 1e-7


def test_a_truth_value_may_be_joined_twice() -> None:
    b = tl.GraphBuilder()
    near = b.dequantize(b.input("near", (12, 12), "uint8"), STEP, 0)
    graph = near
    for _ in range(2):
        graph = b.dequantize(
            b.quantize(b.einsum("xy,yz->xz", graph, near, algebra="max_product"), STEP, 0, "uint8"), STEP, 0
        )
    assert answers(b.build(y=graph), {"near": small(np.random.default_rng(9), (12, 12), "uint8")}) == ["fuzzy", "fuzzy"]


def test_bytes_are_joined_by_max_min_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorlogic.backends.native import semiring

    monkeypatch.setattr(semiring, "WORTH", 0)
    rng = np.random.default_rng(7)
    b = tl.GraphBuilder()
    factors = [b.input(n, shape, "uint8") for n, shape in (("a", (9, 20)), ("c", (20, 33)))]
    graph = b.build(y=b.einsum("xy,yz->xz", *factors, algebra="max_min"))
    assert answers(graph, {"a": small(rng, (9, 20), "uint8"), "c": small(rng, (20, 33), "uint8")}) == ["algebra"]


@pytest.mark.parametrize("activations", ["WEIGHT_ONLY", "DYNAMIC", "STATIC"])
def test_a_quantized_network_runs_on_them(activations: str) -> None:
    rng = np.random.default_rng(8)
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 40), "float32")
    first, second = (b.constant(rng.standard_normal(s).astype(np.float32)) for s in ((40, 30), (30, 6)))
    graph = b.build(y=b.relu(x @ first) @ second)
    given = {"x": rng.standard_normal((5, 40)).astype(np.float32)}
    config = tl.QuantizationConfig(tl.QuantizationType.INT8, activations=getattr(tl.ActivationMode, activations))
    quantized = tl.quantize(graph, config, calibration=[given])
    kind = "weights" if activations == "WEIGHT_ONLY" else "integers"
    kinds = answers(quantized, given, exact=False)
    assert kinds.count(kind) == 2
