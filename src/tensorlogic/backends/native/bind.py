"""The kernels of fused steps: machine code of generated source, found again in memory or on disk, or compiled."""

from __future__ import annotations

import hashlib
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from ...events import span
from ...ir import ops
from ...ir.algebra import ALGEBRAS
from ...ir.graph import Scan
from ...ir.type_rules import reduced_axes
from ...ir.types import TensorType, dims
from ...plan.build import ExecutionPlan, Step
from ...plan.cost import in_few_slices
from ...plan.fused_steps import Fused
from ...plan.printing import describe
from ...store import Store
from .. import bitplan
from ..base import Kernel, KernelUnavailable
from ..bit_fixpoints import bind_fixpoint
from ..numpy_inplace import of_slices
from ..threads import on_one_thread, share, with_threads
from . import vjp
from .rows import Source, row_source
from .semiring import bind_semiring, make_ready
from .support import COMPILING, FAST, NativeWarning, mind_forks

Array = Any
HEAD = """\
import numpy as np
from tensorlogic.backends.native.bind import part
from tensorlogic.backends.native.small_matmul import product
from tensorlogic.backends.native.functions import FUNCTIONS, accumulate
from tensorlogic.backends.native.minmax import LEAST32, LEAST64, LOW32, LOW64, highest, lowest, unkey

"""
MOST_KERNELS = 256  # that are remembered in memory
ENGINE = 32  # kernels that share an engine, whose machine code is given back when none of them is in use any more
MOST_COMPILED = 2000  # in one process: LLVM keeps one to four megabytes of each compilation for ever
_kernels: Store[str, Any] = Store(MOST_KERNELS)
_count: Counter[str] = Counter()  # kernels that were "bound" in this process, and those of them that were "compiled"
# kernels of several stages, which share each among the threads
_SHARE_INSIDE = frozenset({"bits", "algebra", "fixpoint", "closure", "integers", "weights", "fuzzy"})


def bind_fused(step: Step) -> Kernel:
    """Return the kernel of a fused step; where none can be made, the plan must be another one."""
    op = step.op
    assert isinstance(op, Fused)
    try:
        with span(f"compile {op.pattern}"):
            kernel = _KINDS[op.kind](step)
    except Exception as error:  # numba raises anything where it cannot compile
        message = f"{op.pattern} runs as {op.count} steps, because no kernel could be made of it: "
        warnings.warn(f"{message}{type(error).__name__}: {error}", NativeWarning, stacklevel=2)
        raise KernelUnavailable(step, str(error)) from error
    if kernel is None:
        raise KernelUnavailable(step, f"{op.pattern} has no kernel")
    return with_threads(kernel, max(step.threads, 1)) if op.kind in _SHARE_INSIDE else kernel


def _rows(step: Step) -> Kernel | None:
    source = row_source(step)
    return None if source is None else _shared(step, source)


def _on_bits(step: Step) -> Kernel:
    assert isinstance(step.op, Fused)
    slots, held = [slot for slot, _ in step.op.literals], [np.asarray(op.value) for _, op in step.op.literals]
    kernel = bitplan.bind_bit_group(step.parts, (*step.reads, *slots), step.writes)
    return (lambda *operands: kernel(*operands, *held)) if held else kernel


def _algebra(step: Step) -> Kernel | None:
    kernel, [part] = _of_algebra(step), step.parts
    if kernel is None or part.reads == step.reads:
        return kernel
    assert isinstance(step.op, Fused)
    literals = {slot: op.value for slot, op in step.op.literals}
    places = {slot: n for n, slot in enumerate(step.reads)}  # a factor that is there twice is read once

    def run(*operands: Array, **options: Any) -> Any:
        given = [operands[places[s]] if s in places else np.asarray(literals[s]) for s in part.reads]
        return kernel(*given, **options)

    return run


def _of_algebra(step: Step) -> Kernel | None:
    [part] = step.parts
    assert isinstance(part.op, ops.Einsum | ops.ContractVJP) and part.contraction is not None
    if isinstance(part.op, ops.ContractVJP):
        vjp.make_ready(part.op, step.types[0].dtype or "float64")
        return vjp.bind_native_vjp(part.op, part.contraction, part.types[0], part.arg_types)
    if step.types[0].dtype == "bool":
        return bitplan.bind_bits(part.op, part.contraction, part.arg_types, part.types[0])
    if step.types[0].dtype == "uint8":
        from .fuzzy import bind_fuzzy

        return bind_fuzzy(part.op.algebra, part.contraction, part.types[0])
    make_ready(ALGEBRAS[part.op.algebra], step.types[0].dtype or "float64")
    return bind_semiring(part.op, part.contraction, part.arg_types, part.types[0])


def _relations(step: Step) -> Kernel:
    from ..relations.bind import bind_relations

    return bind_relations(step)


def _scan(step: Step) -> Kernel:
    from .scan import bind_scan

    return bind_scan(step.parts[0])


def _windows(step: Step) -> Kernel | None:
    from .windows import bind_windows

    return bind_windows(step)


def _integers(step: Step) -> Kernel:
    from .small_numbers import bind_integers

    return bind_integers(step)


def _weights(step: Step) -> Kernel:
    from .small_numbers import bind_weights

    return bind_weights(step)


def _fuzzy(step: Step) -> Kernel:
    from .small_numbers import bind_fuzzy_step

    return bind_fuzzy_step(step)


def _shared(step: Step, source: Source) -> Kernel:
    sizes, places = source.sizes, source.places
    count = max(step.threads, 1)
    over = step.over
    own = [n for n in range(len(step.types)) if n not in dict(over).values()]  # results with arrays of their own
    native = compiled(
        source.text,
        step.arg_types,
        [step.types[n] for n in own],
        len(sizes) + 2,
        listed=bool(source.literals),
        over=dict(over),
    )
    first = [np.array(source.literals, np.int64)] if source.literals else []
    numbers = (*first, *sizes)
    shapes = [(dims(t), t.dtype or "float64") for t in step.types]
    single = len(shapes) == 1

    def run(*operands: Array, out: Any = None) -> Any:
        given = [x if type(x) is np.ndarray and x.flags.c_contiguous else np.asarray(x, order="C") for x in operands]
        if single:
            results = [np.empty(*shapes[0]) if out is None else out]
        else:
            targets = out or [None] * len(shapes)
            results = [np.empty(*s) if t is None else t for s, t in zip(shapes, targets, strict=True)]
        written = results
        if over:
            for operand, result in over:
                if results[result] is not given[operand]:  # it could not be written over this time
                    np.copyto(results[result], given[operand])
                    given[operand] = results[result]
            written = [results[n] for n in own]
        if count == 1:
            native(*given, *written, *numbers, 0, places)
        else:
            share(partial(native, *given, *written, *numbers), places, count)
        return results[0] if single else tuple(results)

    return run


def _whole(step: Step) -> Kernel:
    op = step.op
    assert isinstance(op, Fused)
    native = compiled(op.source, step.arg_types, step.types, 0, listed=True)
    numbers = np.array(op.numbers, np.int64)
    shapes = [(dims(t), np.dtype(t.dtype or "float64")) for t in step.types]
    empty = np.empty
    shape, dtype = shapes[0]
    single = len(shapes) == 1

    def run(*operands: Array, out: Any = None) -> Any:
        for x in operands:
            if type(x) is not np.ndarray or not x.flags.c_contiguous:
                operands = tuple([np.asarray(x, order="C") for x in operands])
                break
        if single:
            result = empty(shape, dtype)
            native(*operands, result, numbers)
            return result
        results = [empty(*each) for each in shapes]
        native(*operands, *results, numbers)
        return results

    return run


def sources(plan: ExecutionPlan) -> list[str]:
    """Return the source of each fused step of a plan that has one, its bodies' too, under what it does."""
    found = []
    for step in plan.steps:
        if isinstance(step.op, Fused):
            text = _source(step, step.op)
            found += [f"# {describe(step.op)}\n{text}"] if text else []
        for body in step.bodies:
            found += sources(body)
    return found


def _source(step: Step, op: Fused) -> str:
    if op.kind == "rows":
        source = row_source(step)
        return source.text if source is not None else ""
    from .scan import loop_text

    loop = loop_text(step.parts[0].op) if op.kind == "scan" and isinstance(step.parts[0].op, Scan) else None
    return op.source if loop is None else loop.text.text


def _sums(step: Step) -> Kernel:
    """Return what adds up slices, or rows as a product with ones."""
    [part] = step.parts
    rows, shape = dims(part.arg_types[0]), dims(part.types[0])
    assert isinstance(part.op, ops.Reduce)
    axes = reduced_axes(part.op, len(rows))
    if in_few_slices(rows, axes):
        return of_slices(np.add, rows, axes, part.op.keepdims, part.types[0].dtype)
    width = math.prod(shape)
    ones = np.ones(math.prod(rows) // width, part.types[0].dtype)

    def run(x: Array, out: Array = None) -> Array:
        out = np.empty(shape, ones.dtype) if out is None else out
        np.dot(ones, x.reshape(-1, width), out.reshape(width))
        return out

    return on_one_thread(run) if step.threads else run


_KINDS: dict[str, Callable[[Step], Kernel | None]] = {
    "rows": _rows,
    "scan": _scan,
    "bits": _on_bits,
    "algebra": _algebra,
    "fixpoint": lambda step: bind_fixpoint(step.parts[0]),
    "closure": lambda step: bind_fixpoint(step.parts[0], load=False),
    "integers": _integers,
    "weights": _weights,
    "fuzzy": _fuzzy,
    "relations": _relations,
    "whole": _whole,
    "windows": _windows,
    "overlaps": _windows,
    "sums": _sums,
}


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
