"""Type rules: what each operation makes of its operands, over integers and symbolic sizes alike.

Two sizes that must be equal but are not yet known to be (``n`` and ``m``, or ``n`` and 5) are taken to be, and the
equality is noted; it is checked when the inputs are bound. Only a literal 1 broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DTypeError, GraphError, ShapeError, nearest
from . import collectives, ops, spec
from .algebra import algebra
from .elementwise import FUNCTIONS
from .ops import Op
from .packed_numbers import KINDS, NumberKind
from .sizes import Dim, add, floordiv, integer, mul, prod, sub
from .types import FLOATS, INTEGERS, TensorShape, TensorType, dtype_name, promote, ufunc_dtype

Types = Sequence[TensorType]
Results = tuple[TensorType, ...]
MAX_RANK = 64  # NumPy's own limit


class Equality(NamedTuple):
    """Two sizes that a node relies on being the same, and what to say if they are not."""

    node: int
    left: Dim
    right: Dim
    message: str


class Scope:
    """What a rule may ask while it looks at one node: operand names, and to note an equality."""

    __slots__ = ("args", "equalities", "name", "node")

    def __init__(self, node: int, name: Callable[[int], str], args: Sequence[int], noted: list[Equality]) -> None:
        self.node, self.name, self.args, self.equalities = node, name, args, noted

    def operand(self, n: int) -> str:
        """Return how to call operand n in a message."""
        return f"operand {n} ({self.name(self.args[n])})" if n < len(self.args) else f"operand {n}"

    def same(self, a: Dim, b: Dim, message: str) -> Dim:
        """Take two sizes that differ in writing to be equal, or raise where they cannot be."""
        if a == b:
            return a
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(message, code="E001")
        self.equalities.append(Equality(self.node, a, b, message))
        return b if isinstance(b, int) else a


def _declared(op: ops.Input | ops.Constant, args: Types, scope: Scope) -> Results:
    return (TensorType(None if op.shape is None else TensorShape(op.shape), op.dtype and dtype_name(op.dtype)),)


def _literal(op: ops.Literal, args: Types, scope: Scope) -> Results:
    dtypes = {"bool": "bool", "int": "int64", "float": "float64"}
    if op.kind not in dtypes:
        raise GraphError(f"a literal is a bool, an int or a float, not {op.kind!r}", code="E134")
    try:
        op.value  # noqa: B018 - reading it checks the text
    except ValueError:
        raise GraphError(f"{op.text!r} is not a literal {op.kind}", code="E134") from None
    return (TensorType(TensorShape(), dtypes[op.kind], weak=True),)


def _iota(op: ops.Iota, args: Types, scope: Scope) -> Results:
    if op.dtype == "bool":
        raise DTypeError("iota counts, which bool cannot do", "use 'int64'", code="E121")
    return (TensorType(TensorShape([op.size]), dtype_name(op.dtype)),)


def label_sizes(form: spec.Spec, shapes: Sequence[Sequence[Dim]], scope: Scope) -> dict[str, Dim]:
    """Return the size of every label of an einsum; a literal 1 gives way to another operand's size."""
    sizes: dict[str, Dim] = {}
    owner: dict[str, int] = {}
    for n, (labels, shape) in enumerate(zip(form.inputs, shapes, strict=True)):
        own: dict[str, Dim] = {}
        for label, size in zip(labels, shape, strict=True):
            known = own.setdefault(label, size)
            if known != size:
                own[label] = scope.same(known, size, f"index {label!r} is {known} and {size} in {scope.operand(n)}")
        for label, size in own.items():
            known = sizes.get(label, 1)
            if known == 1:
                sizes[label], owner[label] = size, n
            elif size not in (1, known):
                first = scope.operand(owner[label])
                message = f"index {label!r} is {known} in {first} but {size} in {scope.operand(n)}"
                sizes[label] = scope.same(known, size, message)
    return sizes


def _contraction_dtype(name: str, args: Types, scope: Scope) -> str | None:
    row = algebra(name)
    if row.combine.endswith("implies") and len(args) != 2:
        raise GraphError(f"{name} joins two factors, what implies and what is implied; got {len(args)}", code="E105")
    if name == "boolean":
        return "bool"
    if any(a.dtype is None for a in args):
        return None
    dtype = promote((a.dtype or "", a.weak) for a in args)
    if row.numbers and dtype == "bool":
        hint = "cast the operands first: b.cast(x, 'float32')"
        raise DTypeError(f"the {name} algebra adds its factors, which bool cannot do", hint, code="E121")
    return ufunc_dtype(np.exp, ((dtype, False),)) if row.inexact else dtype


def _einsum(op: ops.Einsum, args: Types, scope: Scope) -> Results:
    form = spec.parse(op.spec)
    if len(form.inputs) != len(args):
        spec.expand(form, (0,) * len(args))  # raises the error that says so
    dtype = _contraction_dtype(op.algebra, args, scope)
    shapes = [a.shape for a in args]
    if any(s is None for s in shapes):
        return (TensorType(None, dtype),)
    known = [s for s in shapes if s is not None]
    full = spec.expand(form, tuple(len(s) for s in known))
    sizes = label_sizes(full, known, scope)
    row = algebra(op.algebra)
    if row.zero in (np.inf, -np.inf) and dtype in INTEGERS and any(sizes[x] == 0 for x in full.contracted):
        hint = "cast the operands first: b.cast(x, 'float64')"
        raise ShapeError(f"{op.algebra} over no elements is {row.zero}, which {dtype} does not have", hint, code="E017")
    return (TensorType(TensorShape(sizes[label] for label in full.output), dtype),)


def _contract_vjp(op: ops.ContractVJP, args: Types, scope: Scope) -> Results:
    form = spec.parse(op.spec)
    if len(args) != len(form.inputs) + 2:
        wanted = f"{len(form.inputs)} factors, the result and its cotangent"
        raise GraphError(f"contract_vjp of '{op.spec}' takes {wanted}, got {len(args)} operands", code="E105")
    if not 0 <= op.wrt < len(form.inputs):
        raise GraphError(f"contract_vjp has no factor {op.wrt}", code="E127")
    if not algebra(op.algebra).differentiable:
        raise GraphError(f"the {op.algebra} algebra has no gradient", code="E129")
    (result,) = _einsum(ops.Einsum(op.spec, op.algebra), args[:-2], scope)
    for n, t in ((len(args) - 2, args[-2]), (len(args) - 1, args[-1])):
        equal_shapes(result.shape, t.shape, f"the einsum's result and {scope.operand(n)}", scope)
    return (TensorType(args[op.wrt].shape, args[op.wrt].dtype),)


def equal_shapes(a: TensorShape | None, b: TensorShape | None, what: str, scope: Scope) -> TensorShape | None:
    """Take two shapes to be equal, or raise where they cannot be; an unknown one gives way."""
    if a is None or b is None:
        return a if b is None else b
    message = f"{what} must have equal shapes, got {a} and {b}"
    if len(a) != len(b):
        raise ShapeError(message, code="E001")
    return TensorShape(scope.same(x, y, message) for x, y in zip(a, b, strict=True))


def _elementwise(op: ops.Elementwise, args: Types, scope: Scope) -> Results:
    row = FUNCTIONS.get(op.fn)
    if row is None:
        raise GraphError(f"unknown function {op.fn!r}", *nearest(op.fn, FUNCTIONS), code="E126")
    if row.arity != len(args):
        raise GraphError(f"{op.fn} takes {row.arity} operand(s), got {len(args)}", code="E105")
    counted = args[1:] if op.fn == "where" else args
    dtype = _ufunc_dtype(row.dtype_like, counted)
    if any(a.shape is None for a in args):
        return (TensorType(None, dtype),)
    return (TensorType(_broadcast_all([a.shape or TensorShape() for a in args], op.fn, scope), dtype),)


def _ufunc_dtype(ufunc: np.ufunc, args: Types) -> str | None:
    known = tuple([(a.dtype, a.weak) for a in args if a.dtype is not None])
    return ufunc_dtype(ufunc, known) if len(known) == len(args) else None


def _broadcast_all(shapes: Sequence[TensorShape], what: str, scope: Scope) -> TensorShape:
    result = shapes[0]
    for n, shape in enumerate(shapes[1:], 1):
        if shape == result or not shape:
            continue
        if not result:
            result = shape
            continue
        rank = max(len(result), len(shape))
        left = (1,) * (rank - len(result)) + result
        right = (1,) * (rank - len(shape)) + shape

        message = f"{what}: {scope.operand(n)} has shape {shape}, which does not fit {result}"
        result = TensorShape(
            b if a == 1 else a if b == 1 else scope.same(a, b, f"{message} ({b} against {a})")
            for a, b in zip(left, right, strict=True)
        )
    return result


def normal_axis(axis: int, rank: int, what: str) -> int:
    """Return an axis counted from the front, or raise where there is no such axis."""
    axis = integer(axis, f"{what}: an axis")
    if not -rank <= axis < rank:
        hint = f"use {-rank} to {rank - 1}" if rank else "a scalar has no axes"
        raise ShapeError(f"{what}: there is no axis {axis} in a tensor of {rank} axes", hint, code="E005")
    return axis % rank


_WIDE = {
    "bool": "int64",
    "int8": "int64",
    "int16": "int64",
    "int32": "int64",
    "uint8": "uint64",
    "uint16": "uint64",
    "uint32": "uint64",
}


def _reduced_dtype(kind: str, dtype: str | None) -> str | None:
    if kind in ("sum", "prod"):
        return _WIDE.get(dtype or "", dtype)
    if kind == "mean":
        return dtype if dtype is None or dtype in FLOATS else "float64"
    return {"any": "bool", "all": "bool", "argmax": "int64", "argmin": "int64"}.get(kind, dtype)


def _reduce(op: ops.Reduce, args: Types, scope: Scope) -> Results:
    if op.kind not in ops.REDUCTIONS:
        raise GraphError(f"unknown reduction {op.kind!r}", *nearest(op.kind, ops.REDUCTIONS), code="E126")
    dtype, shape = _reduced_dtype(op.kind, args[0].dtype), args[0].shape
    if op.kind.startswith("arg") and op.axes is not None and len(op.axes) != 1:
        raise GraphError(f"{op.kind} takes one axis or all of them, got {op.axes}", code="E136")
    if shape is None:
        return (TensorType(TensorShape() if op.axes is None and not op.keepdims else None, dtype),)
    axes = reduced_axes(op, len(shape))
    if op.kind in ("max", "min", "argmax", "argmin") and any(shape[a] == 0 for a in axes):
        hint = "give it at least one element, or concatenate the value it should have when empty"
        message = f"{op.kind} over no elements has no value: {scope.operand(0)} has shape {shape}"
        raise ShapeError(message, hint, code="E017")
    kept = [1 if a in axes else d for a, d in enumerate(shape) if op.keepdims or a not in axes]
    return (TensorType(TensorShape(kept), dtype),)


def reduced_axes(op: ops.Reduce, rank: int) -> tuple[int, ...]:
    """Return the axes that a reduction removes, counted from the front."""
    if op.axes is None:
        return tuple(range(rank))
    axes = tuple(normal_axis(a, rank, op.kind) for a in op.axes)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op.kind} names an axis twice: {op.axes}", code="E006")
    return axes


def _cumulate(op: ops.Cumulate, args: Types, scope: Scope) -> Results:
    if op.kind not in ops.CUMULATIONS:
        raise GraphError(f"unknown cumulation {op.kind!r}", *nearest(op.kind, ops.CUMULATIONS), code="E126")
    if args[0].shape is not None:
        normal_axis(op.axis, len(args[0].shape), f"cumulate {op.kind}")
    return (TensorType(args[0].shape, _reduced_dtype(op.kind, args[0].dtype)),)


def _sort(op: ops.Sort, args: Types, scope: Scope) -> Results:
    if args[0].shape is not None:
        normal_axis(op.axis, len(args[0].shape), "sort")
    return (TensorType(args[0].shape, "int64" if op.indices else args[0].dtype),)


def _top_k(op: ops.TopK, args: Types, scope: Scope) -> Results:
    dtype = "int64" if op.indices else args[0].dtype
    if args[0].shape is None:
        return (TensorType(None, dtype),)
    axis = normal_axis(op.axis, len(args[0].shape), "top_k")
    size = args[0].shape[axis]
    if op.k < 0 or (isinstance(size, int) and op.k > size):
        raise ShapeError(f"top_k asks for {op.k} of {size} elements along axis {axis}", code="E018")
    return (TensorType(_put(args[0].shape, axis, op.k), dtype),)


def _put(shape: Sequence[Dim], axis: int, *sizes: Dim) -> TensorShape:
    return TensorShape([*shape[:axis], *sizes, *shape[axis + 1 :]])


def _slice(op: ops.Slice, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    if len(op.ranges) != len(shape):
        raise ShapeError(f"slice has {len(op.ranges)} ranges for {len(shape)} axes", code="E013")
    for axis, ((start, count, step), size) in enumerate(zip(op.ranges, shape, strict=True)):
        if step == 0:
            raise ShapeError("a slice cannot have step 0", code="E011")
        if isinstance(count, int) and count < 0:
            raise ShapeError(f"slice: axis {axis} of {scope.operand(0)} would have {count} elements", code="E014")
        if isinstance(start, int) and isinstance(count, int) and isinstance(size, int) and count > 0:
            last = start + (count - 1) * step
            if not (0 <= start < size and 0 <= last < size):
                place = f"axis {axis}, which has {size}, in {scope.operand(0)}"
                raise ShapeError(f"slice reads elements {start} to {last} of {place}", code="E010")
    return (TensorType(TensorShape(count for _, count, _ in op.ranges), args[0].dtype),)


def _reshape(op: ops.Reshape, args: Types, scope: Scope) -> Results:
    shape, dtype = args[0].shape, args[0].dtype
    free = [i for i, d in enumerate(op.shape) if d == -1]
    if len(free) > 1:
        raise ShapeError(f"reshape may leave one size open, got {list(op.shape)}", code="E019")
    if shape is None:
        return (TensorType(None if free else TensorShape(op.shape), dtype),)
    total, target = prod(shape), list(op.shape)
    if free:
        rest = prod(tuple(d for d in op.shape if d != -1))
        target[free[0]] = 0 if rest == 0 else floordiv(total, rest)
    new = prod(tuple(target))
    what = f"cannot reshape {scope.operand(0)} of shape {shape} ({total} elements) to {list(op.shape)} ({new} elements)"
    scope.same(total, new, what)
    return (TensorType(TensorShape(target), dtype),)


def _transpose(op: ops.Transpose, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if sorted(op.order) != list(range(len(op.order))) or (shape is not None and len(op.order) != len(shape)):
        shown = "" if shape is None else f" of shape {shape}"
        raise ShapeError(f"transpose order {list(op.order)} does not fit {scope.operand(0)}{shown}", code="E020")
    return (TensorType(None if shape is None else TensorShape(shape[a] for a in op.order), args[0].dtype),)


def _broadcast(op: ops.Broadcast, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if list(op.axes) != sorted(set(op.axes)) or any(not 0 <= a < len(op.shape) for a in op.axes):
        raise ShapeError(f"broadcast axes {list(op.axes)} do not fit shape {list(op.shape)}", code="E021")
    if shape is not None:
        message = f"cannot broadcast {scope.operand(0)} of shape {shape} to {list(op.shape)} at axes {list(op.axes)}"
        if len(shape) != len(op.axes):
            raise ShapeError(message, code="E021")
        for size, axis in zip(shape, op.axes, strict=True):
            if size != 1:
                scope.same(size, op.shape[axis], message)
    return (TensorType(TensorShape(op.shape), args[0].dtype),)


def _window(op: ops.Window, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if op.step < 1 or op.dilation < 1 or (isinstance(op.size, int) and op.size < 1):
        raise ShapeError("a window needs a size, step and dilation of at least 1", code="E022")
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    axis = normal_axis(op.axis, len(shape), "window")
    reach = add(mul(sub(op.size, 1), op.dilation), 1)
    spare = sub(shape[axis], reach)
    if isinstance(spare, int) and spare < 0:
        place = f"axis {axis} of {scope.operand(0)}, which has {shape[axis]}"
        raise ShapeError(f"a window that reaches over {reach} elements does not fit {place}", code="E022")
    count = add(floordiv(spare, op.step), 1)
    return (TensorType(TensorShape([*_put(shape, axis, count), op.size]), args[0].dtype),)


def _overlap_add(op: ops.OverlapAdd, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    if args[0].dtype == "bool" or len(shape) < 2:
        raise ShapeError(f"overlap_add: {scope.operand(0)} of type {args[0]} holds no windows of numbers", code="E880")
    axis = normal_axis(op.axis, len(shape) - 1, "overlap_add")
    room = TensorType(TensorShape(_put(shape[:-1], axis, op.length)), args[0].dtype)
    (windows,) = _window(ops.Window(axis, shape[-1], op.step, op.dilation), (room,), scope)
    count = (windows.shape or ())[axis]
    what = f"overlap_add: an axis of {op.length} has {count} windows of {shape[-1]}, but {scope.operand(0)}"
    scope.same(shape[axis], count, f"{what} has {shape[axis]}")
    return (room,)


def _pad(op: ops.Pad, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if args[1].shape:
        raise ShapeError(f"pad: the value must be a scalar, got shape {args[1].shape}", code="E023")
    if any(w < 0 for pair in op.widths for w in pair):
        raise ShapeError(f"pad widths cannot be negative: {list(op.widths)}", code="E016")
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    if len(op.widths) != len(shape):
        raise ShapeError(f"pad has {len(op.widths)} widths for {len(shape)} axes", code="E013")
    padded = [add(d, low + high) for d, (low, high) in zip(shape, op.widths, strict=True)]
    return (TensorType(TensorShape(padded), args[0].dtype),)


def _concat(op: ops.Concat, args: Types, scope: Scope) -> Results:
    if not args:
        raise GraphError("concat needs at least one operand", code="E105")
    dtype = None
    if all(a.dtype is not None for a in args):
        dtype = promote((a.dtype or "", a.weak) for a in args)
    if any(a.shape is None for a in args):
        return (TensorType(None, dtype),)
    first = args[0].shape or TensorShape()
    axis = normal_axis(op.axis, len(first), "concat")
    total: Dim = first[axis]
    for n, a in enumerate(args[1:], 1):
        shape = a.shape or TensorShape()
        if len(shape) != len(first):
            raise ShapeError(f"concat: {scope.operand(n)} has shape {shape}, the first one {first}", code="E001")
        what = f"concat along axis {axis}: the other axes of all operands"
        equal_shapes(_put(first, axis, 1), _put(shape, axis, 1), what, scope)
        total = add(total, shape[axis])
    return (TensorType(_put(first, axis, total), dtype),)


def _indexed(op: ops.Gather | ops.ScatterAdd, args: Types, scope: Scope) -> TensorShape | None:
    """Check data and indices of a gather or scatter; return the gathered shape."""
    data, indices = args[0].shape, args[1].shape
    if args[1].dtype is not None and args[1].dtype not in INTEGERS:
        hint = "cast them: b.cast(indices, 'int64')"
        raise DTypeError(f"{op.name}: indices must be integers, got {args[1].dtype}", hint, code="E121")
    if data is None or indices is None:
        return None
    axis = normal_axis(op.axis, len(data), op.name)
    if not 0 <= op.batch <= min(axis, len(indices)):
        raise ShapeError(f"{op.name}: batch {op.batch} does not fit axis {axis} and indices {indices}", code="E025")
    what = f"{op.name}: the batch axes of data and indices"
    equal_shapes(TensorShape(data[: op.batch]), TensorShape(indices[: op.batch]), what, scope)
    return _put(data, axis, *indices[op.batch :])


def _scatter_add(op: ops.ScatterAdd, args: Types, scope: Scope) -> Results:
    places = _indexed(op, args, scope)
    equal_shapes(places, args[2].shape, "scatter_add: the updates and the places they go to", scope)
    return (TensorType(args[0].shape, _ufunc_dtype(np.add, (args[0], args[2]))),)


def _channels(op: ops.Quantize | ops.Dequantize, args: Types, scope: Scope) -> None:
    if op.group is not None and (op.group < 1 or op.axis is not None):
        message = f"{op.name}: a group has at least one element of the last axis, got group={op.group}, axis={op.axis}"
        raise ShapeError(message, "write group=32 without axis=", code="E319")
    for n in (1, 2):
        shape, whole = args[n].shape, args[0].shape
        if shape is None or whole is None:
            continue
        if op.group is not None and shape:
            if not whole:
                raise ShapeError(f"{op.name}: a scalar has no last axis to make groups of", code="E319")
            groups = floordiv(add(whole[-1], op.group - 1), op.group)
            what = f"{op.name}: {scope.operand(n)} and groups of {op.group}"
            equal_shapes(shape, TensorShape([*whole[:-1], groups]), what, scope)
            continue
        if op.axis is None and shape:
            raise ShapeError(f"{op.name}: {scope.operand(n)} must be a scalar unless axis= is given", code="E023")
        if op.axis is not None and shape:
            axis = normal_axis(op.axis, len(whole), op.name)
            what = f"{op.name}: {scope.operand(n)} and axis {axis}"
            equal_shapes(shape, TensorShape([whole[axis]]), what, scope)
    for n, what, kinds in ((2, "zero point must be an integer", INTEGERS), (1, "scale must be a float", FLOATS)):
        if args[n].dtype is not None and args[n].dtype not in kinds:
            raise DTypeError(f"{op.name}: the {what}, got {args[n].dtype}", code="E121")


def _quantize(op: ops.Quantize, args: Types, scope: Scope) -> Results:
    _channels(op, args, scope)
    if op.kind is not None:
        held = _kind(op.kind, "quantize").dtype
        if op.dtype != held:
            raise DTypeError(f"quantize to {op.kind} makes {held}, not {op.dtype}", f"use {held!r}", code="E121")
    elif dtype_name(op.dtype) not in INTEGERS:
        raise DTypeError(f"quantize makes integers, not {op.dtype}", "use 'int8'", code="E121")
    return (TensorType(args[0].shape, op.dtype),)


def _kind(name: str, what: str) -> NumberKind:
    if name not in KINDS:
        raise DTypeError(f"{what}: there is no kind of number {name!r}", *nearest(name, KINDS), code="E318")
    return KINDS[name]


def _unpack(op: ops.Unpack, args: Types, scope: Scope) -> Results:
    kind = _kind(op.kind, "unpack")
    if args[0].dtype not in (None, "uint8"):
        raise DTypeError(f"unpack reads bytes, got {args[0].dtype}", "give a uint8 array", code="E121")
    shape = args[0].shape
    if shape is None:
        return (TensorType(None, kind.dtype),)
    if not shape:
        raise ShapeError("unpack: a scalar has no last axis that numbers are packed along", code="E024")
    size = floordiv(add(mul(op.count, kind.bits), 7), 8)
    scope.same(size, shape[-1], f"unpack: {op.count} of {op.kind} are {size} bytes, the operand has {shape[-1]}")
    return (TensorType(TensorShape([*shape[:-1], op.count]), kind.dtype),)


def _dequantize(op: ops.Dequantize, args: Types, scope: Scope) -> Results:
    _channels(op, args, scope)
    return (TensorType(args[0].shape, "float32" if args[1].weak else args[1].dtype),)


def _transfer(op: ops.Transfer, args: Types, scope: Scope) -> Results:
    kind, colon, number = op.device.partition(":")
    if not (kind.isidentifier() and colon and number.isdecimal()):
        raise GraphError(f"transfer: {op.device!r} is no device", "write 'cpu:1'", code="E135")
    return same_type(op, args, scope)


def same_type(op: Op, args: Types, scope: Scope) -> Results:
    """Return the type of an operation whose result is its operand: a tensor, no longer a Python scalar."""
    return (args[0]._replace(weak=False),)


RULES: dict[type[Op], Callable[[Any, Types, Scope], Results]] = {
    ops.Input: _declared, ops.Constant: _declared, ops.Literal: _literal, ops.Iota: _iota, ops.Einsum: _einsum,
    ops.ContractVJP: _contract_vjp, ops.Elementwise: _elementwise, ops.Reduce: _reduce, ops.Cumulate: _cumulate,
    ops.Sort: _sort, ops.TopK: _top_k, ops.Slice: _slice, ops.Reshape: _reshape, ops.Transpose: _transpose,
    ops.Broadcast: _broadcast, ops.Window: _window, ops.OverlapAdd: _overlap_add, ops.Pad: _pad, ops.Concat: _concat,
    ops.Gather: lambda op, args, scope: (TensorType(_indexed(op, args, scope), args[0].dtype),),
    ops.Cast: lambda op, args, scope: (TensorType(args[0].shape, dtype_name(op.dtype)),),
    ops.ScatterAdd: _scatter_add, ops.Quantize: _quantize, ops.Dequantize: _dequantize, ops.Unpack: _unpack,
    ops.Transfer: _transfer, **collectives.RULES,
}  # fmt: skip
