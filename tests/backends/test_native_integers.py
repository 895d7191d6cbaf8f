"""Products of bytes: the sums are those of whole numbers, in every form that a processor may have."""

from __future__ import annotations

import numpy as np
import pytest

from tensorlogic.backends.native import support

if not support.usable():
    pytest.skip("numba cannot be used", allow_module_level=True)

import llvmlite.binding as llvm
from llvmlite import ir

from tensorlogic.backends.native.dot_instructions import FORMS, INT32, PLAIN, DotForm, add_products, dot_form, form_for
from tensorlogic.backends.native.integer_matmul import SLAB, binary_matmul, integer_matmul, most_terms
from tensorlogic.backends.threads import with_threads
from tensorlogic.ir.packed_numbers import pack

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
# the layouts of other processors, with the sums as plain vector arithmetic, which every processor runs
FOURS = DotForm(4, 8, 6, 2, "", True)  # vpdpbusd: unsigned by signed bytes
SIGNED_FOURS = DotForm(4, 4, 8, 3, "")  # sdot
SHAPES = [
    (1, 1, 1),
    (1, 70, 9),
    (7, 5, 3),
    (6, 2 * SLAB, 16),
    (13, 2 * SLAB + 6, 33),
    (20, 4 * SLAB + 37, 50),
    (5, 1, 40),
]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    low, high = LIMITS[dtype]
    values = rng.integers(low, high + 1, shape)
    values[rng.random(shape) < 0.2] = low  # what makes sums largest
    return values.astype(dtype)


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.int32)


@pytest.mark.parametrize("threads", [1, 3])
def test_products_are_those_of_whole_numbers(threads: int) -> None:
    rng = np.random.default_rng(0)
    for rows, depth, columns in SHAPES:
        for left, right in (("int8", "int8"), ("uint8", "int8")):
            a, b = numbers(rng, (rows, depth), left), numbers(rng, (columns, depth), right)
            out = np.full((rows, columns), 7, np.int32)
            with_threads(integer_matmul, threads)(a, b, out)
            np.testing.assert_array_equal(out, expected(a, b), f"{rows} {depth} {columns} {left} {right}")


@pytest.mark.parametrize("form", [FOURS, SIGNED_FOURS, PLAIN], ids=["unsigned by signed", "signed", "pairs"])
def test_the_forms_of_other_processors_give_the_same_sums(form: DotForm) -> None:
    rng = np.random.default_rng(1)
    for left, right in (("int8", "uint8"), ("uint8", "int8")):
        for rows, depth, columns in ((13, 2 * SLAB + 6, 33), (40, 4 * SLAB + 70, 30)):
            a, b = numbers(rng, (rows, depth), left), numbers(rng, (columns, depth), right)
            out = np.empty((rows, columns), np.int32)
            integer_matmul(a, b, out, form)
            np.testing.assert_array_equal(out, expected(a, b))


def test_factors_may_lie_in_any_order_and_be_read_only() -> None:
    rng = np.random.default_rng(2)
    whole = numbers(rng, (90, 140), "int8")
    whole.setflags(write=False)
    for a, b in ((whole[::2, ::3], whole[1::2, 1::3]), (whole[:, ::-1], whole[::-1]), (whole.T[:60], whole.T[60:])):
        out = np.empty((len(a), len(b)), np.int32)
        integer_matmul(a, b[:, : a.shape[1]], out)
        np.testing.assert_array_equal(out, expected(a, b[:, : a.shape[1]]))


@pytest.mark.parametrize("rows", [2, 8])
def test_the_largest_sums_of_as_many_terms_as_allowed(rows: int) -> None:
    """All -128: the instruction of AVX2 that multiplies bytes would have saturated at the first pair."""
    depth = most_terms("int8", "int8")
    a = np.full((rows, depth), -128, np.int8)
    out = np.empty((rows, rows), np.int32)
    integer_matmul(a, a, out)
    assert (out == depth * 128 * 128).all() and depth * 128 * 128 <= 2**31 - 1 < (depth + 1) * 128 * 128
    more = np.full((rows, depth + 1), -128, np.int8)
    integer_matmul(more, more, out)
    assert (out == -(2**31)).all()  # one term more wraps, as integers do everywhere here


def test_nothing_to_add_up_is_zero() -> None:
    out = np.full((5, 6), 3, np.int32)
    integer_matmul(np.empty((5, 0), np.int8), np.empty((6, 0), np.int8), out)
    assert not out.any()
    for rows, columns in ((0, 5), (5, 0)):
        integer_matmul(
            np.empty((rows, 9), np.int8), np.empty((columns, 9), np.int8), np.empty((rows, columns), np.int32)
        )


def test_ones_and_minus_ones_are_counted_as_bits() -> None:
    rng = np.random.default_rng(3)
    for rows, depth, columns in ((1, 1, 1), (3, 64, 9), (5, 333, 7), (2, 8, 0)):
        a, b = (np.where(rng.random((n, depth)) < 0.5, np.int8(-1), np.int8(1)) for n in (rows, columns))
        out = np.empty((rows, columns), np.int32)
        binary_matmul(pack(a, 1), pack(b, 1), depth, out)
        np.testing.assert_array_equal(out, expected(a, b))


def assembly(form: DotForm, triple: str, features: str) -> str:
    """The machine code of one addition of products, for a processor that need not be this one."""
    module = ir.Module()
    module.triple = triple
    lanes = ir.VectorType(INT32, form.lanes)
    function = ir.Function(module, ir.FunctionType(lanes, [lanes] * 3), "add")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(add_products(builder, form, *function.args))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=3)
    return str(machine.emit_assembly(llvm.parse_assembly(str(module))))


X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("triple", "features", "instruction"),
    [
        (X86, "", "pmaddwd\t%xmm"),
        (X86, "+avx2", "vpmaddwd\t%ymm"),
        (X86, "+avx2,+avx512f,+avx512bw", "vpmaddwd\t%zmm"),
        (X86, "+avx2,+avxvnni", "vpdpbusd\t%ymm"),
        (X86, "+avx2,+avx512f,+avx512bw,+avx512vl,+avx512vnni", "vpdpbusd\t%zmm"),
        (ARM, "+neon,+dotprod", "sdot\tv"),
        (ARM, "+neon", "smull"),
    ],
)
def test_each_processor_gets_its_instruction(triple: str, features: str, instruction: str) -> None:
    form = form_for(triple, features)
    try:
        code = assembly(form, triple, features)
    except RuntimeError as error:
        pytest.skip(f"this LLVM makes no code for {triple}: {error}")
    assert instruction in code
    assert "pmaddubsw" not in code and "busds" not in code  # those saturate


def test_this_processor_uses_the_best_form_that_it_has() -> None:
    there = llvm.get_host_cpu_features()
    best = next((form for feature, form in FORMS if there.get(feature)), None)
    if best is not None and dot_form() not in (PLAIN, FORMS[-1][1]):  # unless told to compile for another one
        assert dot_form() == best
