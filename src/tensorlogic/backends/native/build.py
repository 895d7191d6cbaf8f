"""From source to machine code: kernels are compiled from generated text, and found again in memory or on disk."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Container, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from ...ir.types import TensorType
from ...store import Store
from ..base import Kernel
from .support import COMPILING, FAST, mind_forks

HEAD = """\
import numpy as np
from tensorlogic.backends.native.build import part
from tensorlogic.backends.native.small_matmul import product
from tensorlogic.backends.native.functions import FUNCTIONS, accumulate
from tensorlogic.backends.native.minmax import LEAST32, LEAST64, LOW32, LOW64, highest, lowest, unkey

"""
MOST_KERNELS = 256  # that are remembered in memory
ENGINE = 32  # kernels that share an engine, whose machine code is given back when none of them is in use any more
MOST_COMPILED = 2000  # in one process: LLVM keeps about a megabyte of each compilation for ever
_kernels: Store[str, Any] = Store(MOST_KERNELS)
_count: Counter[str] = Counter()  # kernels that were "bound" in this process, and those of them that were "compiled"


def array_type(t: TensorType, *, written: bool) -> Any:
    """Return what numba calls an array of a type; one that is only read may be read-only."""
    from numba import from_dtype, types

    rank = len(t.shape or ())
    return types.Array(from_dtype(np.dtype(t.dtype or "float64")), rank, "C", readonly=not written)


def compiled(
    text: str,
    reads: Sequence[TensorType],
    writes: Sequence[TensorType],
    numbers: int,
    *,
    listed: bool = False,
    over: Container[int] = (),
) -> Kernel:
    """Return the machine code of ``kernel`` in a source, from memory, from disk, or newly made.

    It takes arrays, then an array of numbers where some are ``listed``, then so many numbers. Operands ``over`` which results are written
    are named by place.
    """
    from numba import types

    mind_forks()
    arrays = [array_type(t, written=n in over) for n, t in enumerate(reads)]
    arrays += [array_type(t, written=True) for t in writes]
    last = [types.Array(types.int64, 1, "C", readonly=True)] * listed + [types.int64] * numbers
    signature = (*arrays, *last)
    digest = hashlib.blake2b(f"{text}{signature}".encode(), digest_size=12).hexdigest()
    with COMPILING:
        kernel = _kernels.get(digest)
        if kernel is None:
            kernel = _compile(text, digest, signature)
            _kernels.put(digest, kernel)
        return kernel


def _compile(text: str, digest: str, signature: tuple[Any, ...]) -> Any:
    from .code_cache import CodeCache

    if _count["compiled"] >= MOST_COMPILED:
        raise RuntimeError(f"this process has compiled {MOST_COMPILED} kernels, and memory would grow without end")
    module = ModuleType(f"tensorlogic_kernel_{digest}")
    sys.modules[module.__name__] = module  # machine code on disk names the module that it belongs to
    try:
        exec(compile(HEAD + text, f"<kernel {digest}>", "exec"), module.__dict__)
        kernel = part(module.kernel)
        kernel._cache = CodeCache(text)
        _compile_for(kernel, signature)
    finally:
        del sys.modules[module.__name__]
    _count.update(bound=1, compiled=sum(kernel.stats.cache_misses.values()))
    return kernel


def part(function: Any, *, fast: bool = False) -> Any:
    """Decorate a function that a kernel calls, whose arrays do not overlap.

    Unless it is ``fast``, every operation is done as it is written, so that NaN and rounding are as NumPy has them.
    """
    import numba

    dispatcher = numba.njit(nogil=True, error_model="numpy", fastmath=set(FAST) if fast else False)(function)
    target = _target(_count["bound"] // ENGINE)
    dispatcher._compiler.targetdescr, dispatcher.targetctx = target, target.target_context
    return dispatcher


def _compile_for(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    dispatcher.compile(signature)
    dispatcher.disable_compile()


@lru_cache(maxsize=1)
def _target(generation: int) -> Any:
    """Return numba's target with two changes: the arrays that a kernel is given do not overlap, and it has its own engine.

    Without the first, LLVM does not vectorise loops over more than a few arrays. With the second, machine code is given back
    together with the last kernel of a generation; numba's own engine keeps it for ever.
    """
    from numba.core.codegen import JITCPUCodegen
    from numba.core.cpu import CPUTargetOptions
    from numba.core.registry import cpu_target

    class Options(CPUTargetOptions):
        def finalize(self, flags: Any, options: Any) -> None:
            super().finalize(flags, options)
            flags.noalias = True

    class Target:
        options = Options
        typing_context = cpu_target.typing_context
        target_context = cpu_target.target_context.subtarget(_internal_codegen=JITCPUCodegen("tensorlogic"))

    return Target
