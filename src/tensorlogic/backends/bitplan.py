"""Boolean parts of plans on packed bits: one contraction, or a group of steps that packs and unpacks once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir import ops
from ..ir.ops import Op
from ..ir.type_rules import reduced_axes
from ..ir.types import TensorType
from ..plan.build import Step
from ..plan.cost import Contraction
from . import packed
from .base import Kernel
from .bitjoin import Factor, own_labels, planned
from .bits import BitTensor, combine, contract, wrap
from .collectives import bind_collective
from .contract import prepared
from .native import support
from .native.facts import OR_AND, joins_bits
from .numpy import python_slice

Run = Callable[..., BitTensor]


class OnWords(NamedTuple):
    """How an operation runs on packed bits, and how its result grows when an operand gains set bits.

    ``kind`` is "or" or "and" of two operands (a contraction is an "and"), "each" where a union of operands gives the union of
    results, "grows" where more gives more but not by parts, "other" where more may give less.
    """

    run: Run
    kind: str
    cheap: bool = True  # without unpacking anything large


def _where(c: BitTensor, x: BitTensor, y: BitTensor) -> BitTensor:
    return (c & x) | combine(_and_not, y, c)


def _and_not(a: Any, b: Any) -> Any:
    return a & ~b


def _greater(a: BitTensor, b: BitTensor) -> BitTensor:
    return combine(_and_not, a, b)


_AND, _OR = OnWords(BitTensor.__and__, "and"), OnWords(BitTensor.__or__, "or")
_SAME = OnWords(lambda x: x, "each")
_ELEMENTWISE = {
    "logical_and": _AND,
    "minimum": _AND,
    "multiply": _AND,
    "logical_or": _OR,
    "maximum": _OR,
    "add": _OR,
    "relu": _SAME,
    "step": _SAME,
    "logical_not": OnWords(BitTensor.__invert__, "other"),
    "logical_xor": OnWords(BitTensor.__xor__, "other"),
    "not_equal": OnWords(BitTensor.__xor__, "other"),
    "equal": OnWords(lambda a, b: ~(a ^ b), "other"),
    "greater": OnWords(_greater, "other"),
    "less": OnWords(lambda a, b: _greater(b, a), "other"),
    "less_equal": OnWords(lambda a, b: ~_greater(a, b), "other"),
    "greater_equal": OnWords(lambda a, b: ~_greater(b, a), "other"),
    "where": OnWords(_where, "other"),
}


def on_words(op: Op, args: Sequence[TensorType], result: TensorType, form: Contraction | None) -> OnWords | None:
    """Return how an operation whose sizes are known runs on packed bits, or None where it does not."""
    if result.dtype != "bool" or any(t.dtype != "bool" or t.shape is None for t in args):
        return None
    shape = tuple(int(n) for n in result.shape or ())
    match op:
        case ops.Einsum() if form is not None and op.algebra in OR_AND and len(args) in (1, 2):
            return OnWords(_einsum(form), "and" if len(args) == 2 else "each")
        case ops.Elementwise():
            return _ELEMENTWISE.get(op.fn)
        case ops.Reduce(kind=kind) if kind in ("any", "all", "max", "min"):
            given = tuple(int(n) for n in args[0].shape or ())
            axes = reduced_axes(op, len(given))
            if kind in ("max", "min") and any(given[a] == 0 for a in axes):
                return None  # NumPy refuses it, and says so
            every = kind in ("all", "min")
            return OnWords(
                lambda x: (x.all(axes) if every else x.any(axes)).reshape(shape), "grows" if every else "each"
            )
        case ops.Transpose():
            return OnWords(lambda x: x.transpose(*op.order) if op.order else x, "each")
        case ops.Reshape():
            before = tuple(int(n) for n in args[0].shape or ())
            return OnWords(
                lambda x: x.reshape(shape), "each", before[-1:] == shape[-1:] or 1 in before[-1:] + shape[-1:]
            )
        case ops.Broadcast():
            own = [1] * len(shape)
            for axis, n in zip(op.axes, args[0].shape or (), strict=True):
                own[axis] = int(n)
            return OnWords(lambda x: wrap(packed.broadcast_words(x.reshape(own).words, own, shape), shape), "each")
        case ops.Slice() if not shape or len(shape) == len(args[0].shape or ()):
            key = tuple(python_slice(int(a), int(n), s) for a, n, s in op.ranges)
            whole = not shape or (op.ranges[-1][1:] == (*(args[0].shape or ())[-1:], 1))
            return OnWords((lambda x: x[key[:-1]]) if whole and shape else (lambda x: BitTensor(x[key])), "each", whole)
        case ops.Cast():
            return _SAME
        case ops.BroadcastFrom():
            meet = bind_collective(op, (), result)
            return OnWords(lambda x: wrap(meet(x.words), shape), "each")
        case ops.Pad() if op.widths[-1:] == ((0, 0),):
            return OnWords(lambda x, value: wrap(_padded(x.words, op.widths, bool(np.asarray(value))), shape), "each")
        case _:
            return None


def _padded(words: Any, widths: Sequence[tuple[int, int]], value: bool) -> Any:
    return np.pad(words, widths, constant_values=words.dtype.type(~0 if value else 0))


def _einsum(form: Contraction) -> Run:
    output, sizes = form.spec.output, form.sizes
    if form.labels == form.spec.inputs:
        run, shape = planned(form.labels, output, tuple(sizes.items())), tuple(sizes[x] for x in output)
        return lambda *operands: wrap(run(*[x.words for x in operands]), shape)
    return lambda *operands: contract(
        [own_labels(x.words, x.shape, own, sizes) for x, own in zip(operands, form.spec.inputs, strict=True)],
        output,
        sizes,
    )


def bind_bits(op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> Kernel | None:
    """Return the kernel of one Boolean contraction, NumPy arrays in and out, or None where words do not pay.

    It takes ``out=`` too. Binding loads numba.
    """
    if not joins_bits(op, form, args, result) or not support.usable():
        return None
    packed.load()
    prepare = [prepared(own, kept) for own, kept in zip(form.spec.inputs, form.labels, strict=True)]
    shape = tuple(form.sizes[x] for x in form.spec.output)
    last = shape[-1] if shape else 1

    def kernel(*operands: Any, out: Any = None) -> Any:
        factors = [
            own_labels(x.words, x.shape, own, form.sizes) if isinstance(x, BitTensor) else _dense(ready(x), kept)
            for x, own, kept, ready in zip(operands, form.spec.inputs, form.labels, prepare, strict=True)
        ]
        result = contract(factors, form.spec.output, form.sizes)
        if out is not None and shape:
            return packed.unpack(result.words, last, out)
        found = packed.unpack(result.words, last).reshape(shape)
        if out is None:
            return found
        out[...] = found
        return out

    return kernel


def _dense(x: Any, labels: Sequence[str]) -> Factor:
    """Pack an array in the order it lies in memory; its labels follow, so that nothing is copied."""
    order = sorted(range(x.ndim), key=lambda a: (x.shape[a] != 1, -abs(x.strides[a])))
    return packed.pack(x.transpose(order)), tuple(labels[a] for a in order)


def bind_bit_group(steps: Sequence[Step], reads: Sequence[int], writes: Sequence[int]) -> Kernel:
    """Return the kernel of steps that run on words: operands packed once, results unpacked once.

    Operands stand in the order of the slots ``reads`` and are arrays or BitTensors; results in the order of ``writes``, a tuple where
    there are several.
    """
    packed.load()
    program: list[tuple[Run, tuple[int, ...], int, list[int]]] = []
    last: dict[int, int] = {}
    for n, step in enumerate(steps):
        last.update(dict.fromkeys((*step.reads, *step.writes), n))
    for n, step in enumerate(steps):
        found = on_words(step.op, step.arg_types, step.types[0], step.contraction)
        if found is None:
            raise AssertionError(f"{step.op.name} does not run on packed bits")
        dead = [s for s in (*step.reads, *step.writes) if last[s] == n and s not in writes]
        program.append((found.run, step.reads, step.writes[0], dead))

    def kernel(*operands: Any) -> Any:
        values: dict[int, BitTensor] = {}
        for slot, x in zip(reads, operands, strict=True):
            values[slot] = packed_operand(x)
        for run, from_slots, slot, dead in program:
            values[slot] = run(*[values[s] for s in from_slots])
            for s in dead:
                values.pop(s, None)
        results = tuple(np.asarray(values[s]) for s in writes)
        return results[0] if len(results) == 1 else results

    return kernel


def packed_operand(x: Any) -> BitTensor:
    """Pack an array that is not packed yet; one that lies transposed in memory is transposed again as bits."""
    if isinstance(x, BitTensor):
        return x
    x = np.asarray(x)
    words, order = _dense(x, [str(a) for a in range(x.ndim)])
    if not x.ndim:
        return BitTensor.of(words, ())
    tensor = BitTensor.of(words, [x.shape[int(a)] for a in order])
    return tensor.transpose(*(order.index(str(a)) for a in range(x.ndim)))
