"""The kernels of fused steps, and their source."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...events import span
from ...ir import ops
from ...ir.algebra import ALGEBRAS
from ...ir.graph import Scan
from ...ir.type_rules import reduced_axes
from ...ir.types import dims
from ...plan.build import ExecutionPlan, Step
from ...plan.cost import in_few_slices
from ...plan.fused_steps import Fused
from ...plan.printing import describe
from .. import bitplan
from ..base import Kernel, KernelUnavailable
from ..bit_fixpoints import bind_fixpoint
from ..numpy_inplace import of_slices
from ..threads import on_one_thread, share, with_threads
from . import vjp
from .build import compiled
from .rows import Source, row_source
from .scan import bind_scan, loop_text
from .semiring import bind_semiring, make_ready
from .support import NativeWarning
from .windows import bind_windows

Array = Any
# kernels of several stages, which share each among the threads
_SHARE_INSIDE = frozenset({"bits", "algebra", "fixpoint", "integers", "weights", "fuzzy"})


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
    "scan": lambda step: bind_scan(step.parts[0]),
    "bits": _on_bits,
    "algebra": _algebra,
    "fixpoint": lambda step: bind_fixpoint(step.parts[0]),
    "integers": _integers,
    "weights": _weights,
    "fuzzy": _fuzzy,
    "relations": _relations,
    "whole": _whole,
    "windows": bind_windows,
    "overlaps": bind_windows,
    "sums": _sums,
}
