"""The element-wise functions of native kernels: against exact values, against NumPy at the ends, and in machine code."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special

from tensorlogic.backends.native import support
from tensorlogic.ir.elementwise import FUNCTIONS as ROWS

if not support.usable():
    pytest.skip("numba cannot be used", allow_module_level=True)

from numba.core.errors import TypingError

from tensorlogic.backends.native.functions import EXPRESSIONS, FUNCTIONS, UNSUPPORTED, accumulate

FLOATS = ["float32", "float64"]
SMOOTH = ["exp", "expm1", "log", "log1p", "log2", "tanh", "sigmoid", "erf"]
CASES = [(name, dtype) for name in SMOOTH for dtype in FLOATS] + [("sin", "float32"), ("cos", "float32")]
INTEGERS = ["int8", "int64", "uint8", "uint64"]
# defined for integers as they are; for the others operands are cast to a float first
OF_INTEGERS = [
    "negative", "absolute", "sign", "square", "reciprocal", "relu", "step", "floor", "ceil", "trunc", "isnan", "isinf",
    "isfinite", "logical_not", "add", "subtract", "multiply", "floor_divide", "remainder", "minimum", "maximum",
    "lukasiewicz", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
    "logical_xor", "where",
]  # fmt: skip
OF_BOOLEANS = [f for f in OF_INTEGERS if f not in ("negative", "sign", "square", "reciprocal", "subtract", "floor_divide",
                                                   "remainder", "lukasiewicz")]  # fmt: skip


def _kernel(source: str, fast: bool = True) -> Any:
    names: dict[str, Any] = {"np": np, "accumulate": accumulate, **FUNCTIONS}
    exec(source, names)
    return support.kernel(names["run"], fast=fast)


@cache
def _loop(name: str, fast: bool) -> Any:
    return _kernel(f"def run(x, out):\n    for j in range(x.size): out[j] = {name}(x[j])", fast)


def _apply(name: str, x: Any, fast: bool = True) -> Any:
    out = np.empty_like(x)
    _loop(name, fast)(np.ascontiguousarray(x), out)
    return out


def _result(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    row = ROWS[name]
    own = {"godel_implies", "goguen_implies", "where", "relu", "step", "erf", "sigmoid", "lukasiewicz"}
    return dtype if name in own else row.dtype_like(*np.ones((row.arity, 1), dtype)).dtype


def _apply_all(names: list[str], x: Any, y: Any, expressions: bool = False) -> dict[str, Any]:
    """Run many functions in one kernel, which compiles in a fraction of the time."""
    lines = []
    for n, name in enumerate(names):
        args = ["x[j]", "y[j]", "x[j]"][: ROWS[name].arity]
        made = EXPRESSIONS[name].format(*args) if expressions else f"{name}({', '.join(args)})"
        lines.append(f"        o{n}[j] = {made}")
    outs = [np.empty(x.shape, _result(name, x.dtype)) for name in names]
    source = f"def run(x, y, {', '.join(f'o{n}' for n in range(len(names)))}):\n    for j in range(x.size):\n"
    _kernel(source + "\n".join(lines), fast=False)(x, y, *outs)
    return dict(zip(names, outs, strict=True))


def _residuum(x: Any, y: Any, otherwise: Any) -> Any:
    return np.where(np.isnan(x), x, np.where(x <= y, x.dtype.type(1), otherwise))


def _numpy(name: str, x: Any, y: Any) -> Any:
    own: dict[str, Any] = {
        "relu": lambda: np.maximum(x, x.dtype.type(0)),
        "step": lambda: (x > 0).astype(x.dtype),
        "sigmoid": lambda: _exact_sigmoid(x.astype(np.longdouble)).astype(x.dtype),
        "erf": lambda: special.erf(x.astype("float64")).astype(x.dtype),
        "lukasiewicz": lambda: np.maximum(x + y, x.dtype.type(1)) - x.dtype.type(1),
        "godel_implies": lambda: _residuum(x, y, y),
        "goguen_implies": lambda: _residuum(x, y, y / x),
        "where": lambda: np.where(x.astype(bool), y, x),
    }
    with np.errstate(all="ignore"):
        return own[name]() if name in own else getattr(np, name)(*(x, y)[: ROWS[name].arity])


def _ends(dtype: str) -> Any:
    info = np.finfo(dtype)
    some = [0.0, info.smallest_subnormal, info.smallest_normal * 0.75, info.smallest_normal, info.eps, 1e-3, 0.5, 0.7, 0.75,
            1.0 - info.epsneg, 1.0, 1.0 + info.eps, 1.5, 2.0, 2.5, 3.0, 7.25, 20.0, 87.5, 88.7, 88.73, 89.0, 103.9, 104.1,
            709.7, 709.8, 745.1, 745.2, 1e6, 1e30, info.max, math.inf, math.nan]  # fmt: skip
    return np.array([*some, *(-v for v in some)], dtype)


def _grid(values: Any) -> tuple[Any, Any]:
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


def test_every_function_is_there_and_says_where_it_is_not() -> None:
    assert FUNCTIONS.keys() == ROWS.keys() - (EXPRESSIONS.keys() - FUNCTIONS.keys())
    assert {"add", "subtract", "multiply", "divide", "less", "negative"} <= EXPRESSIONS.keys() <= ROWS.keys()
    assert {name for name, _ in UNSUPPORTED} == {"power"}


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_of_floats_are_numpys(dtype: str) -> None:
    x, y = _grid(_ends(dtype))
    got = _apply_all(sorted(FUNCTIONS), x, y)
    for name, value in got.items():
        want = _numpy(name, x, y)
        assert value.dtype == want.dtype, name
        at = f"{name} of {dtype}"
        if value.dtype == bool:
            np.testing.assert_array_equal(value, want, at)
            continue
        ulps = 4 if ROWS[name].cost >= 10 else 0  # NumPy's own are not exact either
        np.testing.assert_array_equal(np.isnan(value), np.isnan(want), at)
        np.testing.assert_array_equal(np.where(np.isinf(value), value, 0), np.where(np.isinf(want), want, 0), at)
        fine = np.isfinite(want)
        with np.errstate(all="ignore"):
            scale = np.abs(want[fine])
            if name == "logaddexp":  # which may cancel: then it is as good as its operands
                scale = np.maximum(scale, np.abs(np.maximum(x, y)[fine]))
            off = np.abs(value[fine] - want[fine]) / np.spacing(scale)
        assert off.max() <= ulps, (at, x[fine][off.argmax()], y[fine][off.argmax()])


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_keep_their_signs(dtype: str) -> None:
    zeros = np.array([0.0, -0.0], dtype)
    for name in ("expm1", "log1p", "tanh", "erf"):
        np.testing.assert_array_equal(np.signbit(_apply(name, zeros)), [False, True], name)
    odd = [
        "negative",
        "absolute",
        "sqrt",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "sin",
        "arcsin",
        "arctan",
        "sinh",
        "remainder",
    ]
    x, y = _grid(np.array([0.0, -0.0, 1.0, -1.0, -0.25, 0.25], dtype))
    for name, value in _apply_all(odd, x, y).items():
        want = _numpy(name, x, y)
        zero = want == 0
        np.testing.assert_array_equal(np.signbit(value[zero]), np.signbit(want[zero]), name)


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_integers_and_truth_values_are_numpys(dtype: str) -> None:
    if dtype == "bool":
        values, names = np.array([True, False]), OF_BOOLEANS
    else:
        info = np.iinfo(dtype)
        plain = {
            0,
            1,
            2,
            3,
            5,
            7,
            100,
            info.max,
            info.max - 1,
            info.min,
            info.min + 1,
            *(() if info.min == 0 else (-1, -2, -7)),
        }
        values, names = np.array(sorted(plain), dtype), OF_INTEGERS
    x, y = _grid(values)
    for name, value in _apply_all([f for f in names if f in FUNCTIONS], x, y).items():
        np.testing.assert_array_equal(value, _numpy(name, x, y), f"{name} of {dtype}", strict=True)
    for name, value in _apply_all([f for f in names if f in EXPRESSIONS], x, y, expressions=True).items():
        np.testing.assert_array_equal(value, _numpy(name, x, y), f"{name} of {dtype}", strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_expressions_of_floats_are_numpys(dtype: str) -> None:
    x, y = _grid(_ends(dtype))
    for name, value in _apply_all(sorted(EXPRESSIONS), x, y, expressions=True).items():
        np.testing.assert_array_equal(value, _numpy(name, x, y), name, strict=True)


def _exact_erf(x: Any) -> Any:
    """Return erf in extended precision: its series, and beyond 2 from the complement, whose rounding matters little."""
    x = x.astype(np.longdouble)
    small = np.where(np.abs(x) < 2, x, 0)
    term, total = small, small.copy()
    for n in range(1, 60):
        term = term * -(small * small) / n
        total = total + term / (2 * n + 1)
    far = 1 - np.array([math.erfc(abs(float(v))) for v in x], np.longdouble)
    pi = 4 * np.arctan(np.longdouble(1))
    return np.where(np.abs(x) < 2, total * 2 / np.sqrt(pi), np.copysign(far, x))


def _exact_sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _dense(dtype: str, seed: int) -> Any:
    """Return numbers all over the range of a dtype, most of them where the functions bend."""
    rng, n = np.random.default_rng(seed), 60_000
    size = np.dtype(dtype).itemsize
    whole = rng.integers(0, 256, (n, size), "uint8").view(dtype).ravel()
    parts = [rng.uniform(-w, w, n).astype(dtype) for w in (0.02, 1.2, 6.0, 40.0, 110.0, 750.0)]
    near = [np.exp2(rng.uniform(-0.6, 0.6, n)).astype(dtype), np.exp2(rng.uniform(-60, 10, n)).astype(dtype)]
    return np.concatenate([whole, *parts, *near])


@cache
def _multiplies_and_adds_at_once() -> bool:
    _apply("exp", np.ones(3))
    return any(re.search(r"\bv?fn?m(?:add|sub|la)", str(text)) for text in _loop("exp", True).inspect_asm().values())


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_errors_stay_below_one_and_a_quarter_units(name: str, dtype: str) -> None:
    """Of the last place; below two where the processor cannot multiply and add with one rounding."""
    most = 1.25 if _multiplies_and_adds_at_once() else 2
    wide = np.dtype(np.longdouble) if dtype == "float64" else np.dtype("float64")
    if np.finfo(wide).nmant <= np.finfo(dtype).nmant:
        pytest.skip("no wider floating-point type here")
    x = _dense(dtype, 7)
    if name == "erf":
        x = x[: 60_000 * 4] if dtype == "float32" else x[60_000 : 60_000 * 4 : 3]
    exact: dict[str, Any] = {"sigmoid": _exact_sigmoid, "erf": special.erf if dtype == "float32" else _exact_erf}
    with np.errstate(all="ignore"):
        want = exact.get(name, getattr(np, name, None))(x.astype(wide))
        rounded = want.astype(dtype)
        got = _apply(name, x)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(rounded))
        fine = np.isfinite(rounded)
        off = np.abs(got[fine].astype(wide) - want[fine]) / np.spacing(np.abs(rounded[fine]))
    assert off.max() < most, (x[fine][off.argmax()], got[fine][off.argmax()])
    assert off.mean() < 0.35


@pytest.mark.parametrize("dtype", FLOATS)
def test_logaddexp_is_right(dtype: str) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.uniform(-30, 30, 20_000).astype(dtype) for _ in range(2))
    got = _apply_all(["logaddexp"], x, y)["logaddexp"]
    wide = np.longdouble if dtype == "float64" else np.float64
    want = np.logaddexp(x.astype(wide), y.astype(wide))
    off = np.abs(got - want) / np.spacing(np.maximum(np.abs(want), np.abs(np.maximum(x, y))).astype(dtype))
    assert off.max() < 2


def test_powers_of_two_have_exact_logarithms() -> None:
    for dtype in FLOATS:
        info = np.finfo(dtype)
        n = np.arange(math.log2(info.smallest_subnormal), info.maxexp)
        np.testing.assert_array_equal(_apply("log2", np.exp2(n).astype(dtype)), n.astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_answers_depend_neither_on_the_place_in_a_loop_nor_on_flags(dtype: str) -> None:
    x = np.random.default_rng(3).permutation(np.concatenate([_ends(dtype), _dense(dtype, 1)[::5000]]))[:80]
    for name in [n for n, d in CASES if d == dtype]:
        one_by_one = np.concatenate([_apply(name, x[j : j + 1]) for j in range(x.size)])
        for length in range(1, 41):
            np.testing.assert_array_equal(_apply(name, x[:length]), one_by_one[:length], name)
        many = _dense(dtype, 4)[::7]
        bits = f"u{many.itemsize}"
        fast, plain = _apply(name, many), _apply(name, many, fast=False)
        both = np.isnan(fast) & np.isnan(plain)
        np.testing.assert_array_equal(fast.view(bits)[~both], plain.view(bits)[~both], name)


def test_flags_do_not_reorder_what_is_written_with_functions() -> None:
    a, b = np.array([1, 2, 3, 1], "float32"), np.array([math.inf, 1e10, math.nan, 5], "float32")
    run = _kernel("def run(a, b, o):\n    for j in range(a.size): o[j] = subtract(add(a[j], b[j]), b[j])")
    out = np.empty_like(a)
    run(a, b, out)
    np.testing.assert_array_equal(out, [math.nan, 0, math.nan, 1])


def _body(kernel: Any) -> str:
    """Return the machine code of the kernel itself, without what lets Python call it."""
    (text,) = kernel.inspect_asm().values()
    return str(text).split(".Lfunc_end0")[0]


def _packed(instruction: str, dtype_letter: str) -> str:
    """Return a pattern of an instruction on packed numbers, in registers of any width: SSE, AVX or AVX-512."""
    return rf"\bv?(?:{instruction})p{dtype_letter}\b.*%?[xyz]mm"


on_x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="registers are named otherwise"
)


@on_x86
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_loops_are_vectorised(name: str, dtype: str) -> None:
    _apply(name, np.ones(3, dtype))
    kernel = _loop(name, True)
    (text,) = (t for s, t in kernel.inspect_asm().items() if s[0].dtype.name == dtype)
    body = str(text).split(".Lfunc_end0")[0]
    kind = "d" if dtype == "float64" or name in ("sin", "cos") else "s"  # those two are computed in float64
    assert len(re.findall(_packed(r"mul|add|fm\w+", kind), body)) >= 8
    assert not re.search(r"\bcall", body)


@on_x86
def test_sums_are_vectorised_without_flags() -> None:
    run = _kernel(
        "def run(x):\n    r = np.float32(0)\n    for j in range(x.size): r = accumulate(r, exp(x[j]))\n    return r",
        fast=False,
    )
    x = np.linspace(-2, 2, 1003, dtype="float32")
    assert run(x) == pytest.approx(np.exp(x.astype("float64")).sum(), rel=1e-6)
    assert math.isnan(run(np.array([1, math.nan, 2], "float32")))
    assert re.search(_packed("add", "s"), _body(run))


def test_mixed_operands_are_refused() -> None:
    with pytest.raises(TypingError, match="float32"):
        _kernel("def run(x, y): return maximum(x, y)")(np.float32(1), np.float64(2))


def test_kernels_in_files_are_kept(tmp_path: Any) -> None:
    (tmp_path / "kept.py").write_text(
        "import numpy as np\n"
        "from tensorlogic.backends.native import support\n"
        "from tensorlogic.backends.native.functions import FUNCTIONS\n"
        "exp = FUNCTIONS['exp']\n"
        "@support.kernel\n"
        "def run(x, out):\n"
        "    for j in range(x.size): out[j] = exp(x[j])\n"
        "out = np.empty(3)\n"
        "run(np.zeros(3), out)\n"
        "print(out.sum(), sum(run.stats.cache_hits.values()))\n"
    )
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "kept.py"]
    said = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=env).stdout
        for _ in range(2)
    ]
    assert said == ["3.0 0\n", "3.0 1\n"]
