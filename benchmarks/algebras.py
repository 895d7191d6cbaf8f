"""Contractions in other algebras: native kernels beside the NumPy path and a cache-blocked loop in C."""

from __future__ import annotations

import ctypes
import tracemalloc
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
from harness import CORES, Contender, Table, contest, in_c

from tensorlogic.backends.contract import bind_contraction
from tensorlogic.backends.contract_vjp import bind_contract_vjp
from tensorlogic.backends.native.semiring import bind_semiring
from tensorlogic.backends.native.vjp import bind_native_vjp
from tensorlogic.ir import ops
from tensorlogic.ir.types import TensorShape, TensorType
from tensorlogic.plan.cost import contraction

SIZE = 1000
NATIVE, NUMPY, IN_C = "native kernel", "NumPy path", "C loop, gcc -O3 -march=native"
# the join of x and y, the fold of a total t and a term, where it begins and how it ends
LOOPS = {
    "max_min": ("x < y ? x : y", "m > t ? m : t", "-INFINITY", "t"),
    "min_plus": ("x + y", "m < t ? m : t", "INFINITY", "t"),
    "noisy_or": ("x * y", "t * (1 - m)", "1", "1 - t"),
}
SOURCE = """
#include <math.h>
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
"""
LOOP = """
void NAME(const float *restrict a, const float *restrict b, float *restrict c, long lo, long hi, long n) {
    for (long i = lo * n; i < hi * n; i++) c[i] = START;
    for (long j0 = 0; j0 < n; j0 += 512)
        for (long k0 = 0; k0 < n; k0 += 32) {
            long j1 = LEAST(n, j0 + 512), k1 = LEAST(n, k0 + 32);
            for (long i = lo; i < hi; i++)
                for (long k = k0; k < k1; k++) {
                    float x = a[i * n + k];
                    for (long j = j0; j < j1; j++) {
                        float y = b[k * n + j], m = JOIN, t = c[i * n + j];
                        c[i * n + j] = FOLD;
                    }
                }
        }
    for (long i = lo * n; i < hi * n; i++) { float t = c[i]; c[i] = END; }
}
"""


def source() -> str:
    """Return the C code: a function for each algebra in LOOPS."""
    found = SOURCE
    for name, (join, fold, start, end) in LOOPS.items():
        text = LOOP.replace("NAME", name).replace("START", start).replace("END", end)
        found += text.replace("JOIN", join).replace("FOLD", fold)
    return found


def by_c(loops: ctypes.CDLL | str, name: str, a: Any, b: Any) -> Contender:
    """Return the contender in C, with its rows shared among as many threads as there are cores; or why there is none."""
    if isinstance(loops, str) or name not in LOOPS:
        return loops if isinstance(loops, str) else "left out: it would time the C library's expf"
    function, n = loops[name], len(a)
    edges = [n * k // CORES for k in range(CORES + 1)]

    def run() -> Any:
        c = np.empty_like(a)
        where = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
        threads = [
            Thread(target=function, args=(*where, *(ctypes.c_long(v) for v in (edges[k], edges[k + 1], n))))
            for k in range(CORES)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return c

    return run


def kernels(name: str, a: Any, b: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the native kernel and the NumPy path of a join and projection, as calls."""
    equation, types = "ij,jk->ik", [TensorType(TensorShape(x.shape), x.dtype.name) for x in (a, b)]
    form = contraction(equation, name, [TensorShape(x.shape) for x in (a, b)])
    result = TensorType(TensorShape((a.shape[0], b.shape[1])), a.dtype.name)
    native = bind_semiring(ops.Einsum(equation, name), form, types, result)
    plain = bind_contraction(ops.Einsum(equation, name), form, types, result)
    if native is None:
        raise ValueError(f"{name} has no native kernel")
    return lambda: native(a, b), lambda: plain(a, b)


def gradients(name: str, a: Any, b: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the gradient of a join and projection for its first factor, given its result: native and on the NumPy path."""
    equation, types = "ij,jk->ik", [TensorType(TensorShape(x.shape), x.dtype.name) for x in (a, b)]
    form = contraction(equation, name, [TensorShape(x.shape) for x in (a, b)])
    made = kernels(name, a, b)[0]()
    like = TensorType(TensorShape(made.shape), made.dtype.name)
    op, args, given = ops.ContractVJP(equation, name, 0), [*types, like, like], (a, b, made, np.ones_like(made))
    native = bind_native_vjp(op, form, types[0], args)
    plain = bind_contract_vjp(op, form, types[0], args)
    if native is None:
        raise ValueError(f"the gradient of {name} has no native kernel")
    return lambda: native(*given), lambda: plain(*given)


def peak(call: Callable[[], Any], n: int) -> float:
    """Return the most memory that a call takes, its result included, in n² float32 elements."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / (4 * n * n)
    finally:
        tracemalloc.stop()


def tables() -> list[Table]:
    rng = np.random.default_rng(0)
    a, b = (rng.random((SIZE, SIZE)).astype("float32") for _ in range(2))
    loops, found = in_c(source()), []
    for name in ("max_min", "min_plus", "log_sum_exp", "noisy_or"):
        native, plain = kernels(name, a, b)
        note = (
            f"float32, {CORES} threads for the native kernel and in C, one on the NumPy path. Peak memory of the native kernel, its "
            f"result included: {peak(native, SIZE):.1f} n² float32 elements."
        )
        contenders: dict[str, Contender] = {IN_C: by_c(loops, name, a, b), NATIVE: native, NUMPY: plain}
        title = f"{name.replace('_', '-')} contraction, n={SIZE}"
        found.append(contest(title, note, contenders, rounds=5, calls=1, agree=1e-4, ours=(NATIVE, NUMPY)))
    for title, (native, plain) in (
        (f"max-product contraction, n={SIZE}", kernels("max_product", a, b)),
        (f"gradient of a max-product contraction for one factor, n={SIZE}", gradients("max_product", a, b)),
    ):
        note = (
            f"float32, {CORES} threads for the native kernel, one on the NumPy path. Peak memory of the native kernel, its "
            f"result included: {peak(native, SIZE):.1f} n² float32 elements."
        )
        # the NumPy path takes many seconds
        found.append(
            contest(title, note, {NATIVE: native, NUMPY: plain}, rounds=2, calls=1, agree=1e-4, ours=(NATIVE,))
        )
    return found
