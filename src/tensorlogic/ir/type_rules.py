"""Type rules: what each operation makes of its operands, over integers and symbolic sizes alike.

Two sizes that must be equal but are not yet known to be (``n`` and ``m``, or ``n`` and 5) are taken to be, and the
equality is noted; it is checked when the inputs are bound. Only a literal 1 broadcasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import DTypeError, GraphError, ShapeError, TensorLogicError, nearest
from . import collectives, ops, spec, view_rules
from .algebra import ALGEBRAS
from .elementwise import FUNCTIONS
from .graph import Cond, EinsumGraph, Fixpoint, Scan, node_name
from .ops import Op
from .sizes import Dim
from .types import (
    FLOATS,
    INTEGERS,
    MAX_RANK,
    Equality,
    Results,
    Rule,
    Scope,
    TensorShape,
    TensorType,
    Types,
    dtype_name,
    equal_shapes,
    normal_axis,
    promote,
    ufunc_dtype,
    ufunc_dtype_of,
)


def _declared(op: ops.Input | ops.Constant, args: Types, scope: Scope) -> Results:
    return (TensorType(None if op.shape is None else TensorShape(op.shape), op.dtype and dtype_name(op.dtype)),)


def _literal(op: ops.Literal, args: Types, scope: Scope) -> Results:
    dtypes = {"bool": "bool", "int": "int64", "float": "float64"}
    if op.kind not in dtypes:
        raise GraphError(f"a literal is a bool, an int or a float, not {value_text(op.kind)}", code="E134")
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


def _contraction_dtype(name: str, args: Types) -> str | None:
    row = ALGEBRAS[name]
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
    dtype = _contraction_dtype(op.algebra, args)
    shapes = [a.shape for a in args]
    if any(s is None for s in shapes):
        return (TensorType(None, dtype),)
    known = [s for s in shapes if s is not None]
    full = spec.expand(form, tuple(len(s) for s in known))
    sizes = label_sizes(full, known, scope)
    row = ALGEBRAS[op.algebra]
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
    if not ALGEBRAS[op.algebra].differentiable:
        raise GraphError(f"the {op.algebra} algebra has no gradient", code="E129")
    (result,) = _einsum(ops.Einsum(op.spec, op.algebra), args[:-2], scope)
    for n, t in ((len(args) - 2, args[-2]), (len(args) - 1, args[-1])):
        equal_shapes(result.shape, t.shape, f"the einsum's result and {scope.operand(n)}", scope)
    return (TensorType(args[op.wrt].shape, args[op.wrt].dtype),)


def _elementwise(op: ops.Elementwise, args: Types, scope: Scope) -> Results:
    row = FUNCTIONS.get(op.fn)
    if row is None:
        raise GraphError(f"unknown function {value_text(op.fn)}", *nearest(op.fn, FUNCTIONS), code="E126")
    if row.arity != len(args):
        raise GraphError(f"{op.fn} takes {row.arity} operand(s), got {len(args)}", code="E105")
    counted = args[1:] if op.fn == "where" else args
    dtype = ufunc_dtype_of(row.dtype_like, counted)
    if any(a.shape is None for a in args):
        return (TensorType(None, dtype),)
    return (TensorType(_broadcast_all([a.shape or TensorShape() for a in args], op.fn, scope), dtype),)


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


_WIDE = {
    "bool": "int64",
    "int8": "int64",
    "int16": "int64",
    "int32": "int64",
    "uint8": "uint64",
    "uint16": "uint64",
    "uint32": "uint64",
}


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


def _reduced_dtype(kind: str, dtype: str | None) -> str | None:
    if kind in ("sum", "prod"):
        return _WIDE.get(dtype or "", dtype)
    if kind == "mean":
        return dtype if dtype is None or dtype in FLOATS else "float64"
    return {"any": "bool", "all": "bool", "argmax": "int64", "argmin": "int64"}.get(kind, dtype)


def _reduce(op: ops.Reduce, args: Types, scope: Scope) -> Results:
    if op.kind not in ops.REDUCTIONS:
        raise GraphError(f"unknown reduction {value_text(op.kind)}", *nearest(op.kind, ops.REDUCTIONS), code="E126")
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
        raise GraphError(f"unknown cumulation {value_text(op.kind)}", *nearest(op.kind, ops.CUMULATIONS), code="E126")
    if args[0].shape is not None:
        normal_axis(op.axis, len(args[0].shape), f"cumulate {op.kind}")
    return (TensorType(args[0].shape, _reduced_dtype(op.kind, args[0].dtype)),)


def _transfer(op: ops.Transfer, args: Types, scope: Scope) -> Results:
    kind, colon, number = op.device.partition(":")
    if not (kind.isidentifier() and colon and number.isdecimal()):
        raise GraphError(f"transfer: {op.device!r} is no device", "write 'cpu:1'", code="E135")
    return same_type(op, args, scope)


def same_type(op: Op, args: Types, scope: Scope) -> Results:
    """Return the type of an operation whose result is its operand: a tensor, no longer a Python scalar."""
    return (args[0]._replace(weak=False),)


def _body(body: EinsumGraph, given: Types, what: str, scope: Scope) -> list[TensorType]:
    if len(body.inputs) != len(given):
        raise GraphError(f"{what} has {len(body.inputs)} inputs but is given {len(given)}", code="E105")
    found = infer_graph(body, dict(zip(body.inputs, given, strict=True)))
    scope.equalities += [e._replace(node=scope.node) for e in found.equalities]
    return [found.types[i][0] for _, i in body.outputs]


PLAIN = ("bool", "int64", "float64")  # dtypes of numbers of Python, as what a loop begins with


def _same_carry(n: int, first: TensorType, then: TensorType, scope: Scope, scanned: Types = ()) -> TensorType:
    """Return the type of a carry, which its first value and what the body makes of it have; a hint goes by what is scanned."""
    what = f"carry {n} and what the body makes of it"
    if first.shape == () and first.dtype in PLAIN and then.dtype is not None and then.dtype != first.dtype:
        dtypes = {t.dtype for t in scanned}
        better = dtypes.pop() if len(dtypes) == 1 else then.dtype
        return _same_type(first, then, what, scope, f"start from np.{better}(0), or another number of that dtype")
    return _same_type(first, then, what, scope)


def _same_type(a: TensorType, b: TensorType, what: str, scope: Scope, hint: str = "") -> TensorType:
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        hint = hint or f"cast one of them, such as b.cast(x, {a.dtype!r})"
        raise DTypeError(f"{what} must have equal dtypes, got {a.dtype} and {b.dtype}", hint, code="E122")
    return TensorType(equal_shapes(a.shape, b.shape, what, scope), a.dtype or b.dtype)


def _fixpoint(op: Fixpoint, args: Types, scope: Scope) -> Results:
    if op.combine not in ops.COMBINES:
        raise GraphError(f"unknown combine {value_text(op.combine)}", *nearest(op.combine, ops.COMBINES), code="E126")
    if op.limit < 1 or not op.tolerance >= 0:
        raise GraphError("a fixpoint needs a limit of at least 1 and a tolerance of 0 or more", code="E132")
    if not 1 <= op.carries <= len(args):
        raise GraphError(f"a fixpoint of {op.carries} carries has {len(args)} operands", code="E105")
    new = _body(op.body, args, "the fixpoint's body", scope)
    pairs = enumerate(zip(args[: op.carries], new, strict=True))
    return tuple(_same_carry(n, a, b, scope) for n, (a, b) in pairs)


def _scan(op: Scan, args: Types, scope: Scope) -> Results:
    if op.carries < 0 or op.scanned < 0 or op.carries + op.scanned > len(args) or op.carries > len(op.body.outputs):
        message = f"a scan of {op.carries} carries and {op.scanned} scanned operands has {len(args)}"
        raise GraphError(message, code="E105")
    carries, scanned = args[: op.carries], args[op.carries : op.carries + op.scanned]
    length = op.length
    slices = []
    for n, t in enumerate(scanned, op.carries):
        if t.shape is None:
            slices.append(t)
            continue
        if not t.shape:
            raise ShapeError(f"scan: {scope.operand(n)} is a scalar; it needs an axis to run along", code="E024")

        message = f"scan runs {length} steps, but {scope.operand(n)} has {t.shape[0]}"
        length = t.shape[0] if length is None else scope.same(length, t.shape[0], message)
        slices.append(TensorType(TensorShape(t.shape[1:]), t.dtype))
    if length is None and not any(t.shape is None for t in scanned):
        raise GraphError("a scan over no operand needs length=", code="E133")
    new = _body(op.body, [*carries, *slices, *args[op.carries + op.scanned :]], "the scan's body", scope)
    pairs = enumerate(zip(carries, new[: op.carries], strict=True))
    last = [_same_carry(n, a, b, scope, slices) for n, (a, b) in pairs]
    stacked = [
        TensorType(None if t.shape is None or length is None else TensorShape([length, *t.shape]), t.dtype)
        for t in new[op.carries :]
    ]
    return (*last, *stacked)


def _cond(op: Cond, args: Types, scope: Scope) -> Results:
    if not args:
        raise GraphError("cond needs a truth value", code="E105")
    if args[0].shape:
        hint = "use where for an element-wise choice"
        raise ShapeError(f"cond: the truth value must be a scalar, got shape {args[0].shape}", hint, code="E023")
    if len(op.then.outputs) != len(op.otherwise.outputs):
        raise GraphError("the two bodies of a cond must have equally many outputs", code="E131")
    a, b = (_body(g, args[1:], "the cond's body", scope) for g in (op.then, op.otherwise))
    return tuple(
        _same_type(x, y, f"output {n} of the two bodies", scope) for n, (x, y) in enumerate(zip(a, b, strict=True))
    )


RULES: dict[type[Op], Rule] = {
    ops.Input: _declared,
    ops.Constant: _declared,
    ops.Literal: _literal,
    ops.Iota: _iota,
    ops.Einsum: _einsum,
    ops.ContractVJP: _contract_vjp,
    ops.Elementwise: _elementwise,
    ops.Broadcast: _broadcast,
    ops.Reduce: _reduce,
    ops.Cumulate: _cumulate,
    ops.Cast: lambda op, args, scope: (TensorType(args[0].shape, dtype_name(op.dtype)),),
    ops.Transfer: _transfer,
    Fixpoint: _fixpoint,
    Scan: _scan,
    Cond: _cond,
    **view_rules.RULES,
    **collectives.RULES,
}


class Inference(NamedTuple):
    """The result types of every node, and the equalities they rely on."""

    types: tuple[Results, ...]
    equalities: tuple[Equality, ...]


def infer_graph(graph: EinsumGraph, inputs: Mapping[str, TensorType] | None = None) -> Inference:
    """Infer every node's types; ``inputs`` replaces the declared types of the inputs it names."""
    types: list[Results] = []
    noted: list[Equality] = []

    for i, node in enumerate(graph.nodes):
        if inputs is not None and isinstance(node.op, ops.Input) and node.op.label in inputs:
            types.append((inputs[node.op.label],))
            continue
        scope = Scope(i, partial(node_name, graph.nodes), node.args, noted)
        try:
            types.append(node_types(node.op, [types[a] for a in node.args], scope))
        except TensorLogicError as error:
            raise error.at(node.location) from None
    return Inference(tuple(types), tuple(noted))


UNTYPED: Results = (TensorType(None, None),)


def known_types(graph: EinsumGraph) -> Sequence[Results]:
    """Return the types of a graph that may be wrong, for showing it: :data:`UNTYPED` where they cannot be worked out."""
    with suppress(Exception):
        return graph.inference.types
    types: list[Results] = []
    for i, node in enumerate(graph.nodes):
        try:
            types.append(node_types(node.op, [types[a] for a in node.args], Scope(i, str, node.args, [])))
        except Exception:  # whatever is wrong with the graph, it can be looked at
            types.append(UNTYPED)
    return types


def node_types(op: Op, args: Sequence[Results], scope: Scope) -> Results:
    """Return the types of an operation's results, or raise what is wrong with its operands."""
    rule = RULES.get(type(op)) or (same_type if isinstance(op, ops.Same) else None)
    if rule is None and not isinstance(op, ops.Item):
        raise GraphError(f"{value_text(op)} is not an operation", code="E126")
    if op.arity is not None and op.arity != len(args):
        raise GraphError(f"{op.name} takes {op.arity} operand(s), got {len(args)}", code="E105")
    if isinstance(op, ops.Item):
        if not 0 <= op.index < len(args[0]):
            raise GraphError(f"{scope.operand(0)} has {len(args[0])} result(s), so no result {op.index}", code="E127")
        return (args[0][op.index],)
    for n, results in enumerate(args):
        if len(results) != 1:
            raise GraphError(f"{scope.operand(n)} has {len(results)} results; choose one with item", code="E128")
    assert rule is not None
    found = rule(op, [results[0] for results in args], scope)
    for t in found:
        if t.shape is not None and len(t.shape) > MAX_RANK:
            raise ShapeError(f"{op.name} would have {len(t.shape)} axes; at most {MAX_RANK} are possible", code="E026")
    return found
