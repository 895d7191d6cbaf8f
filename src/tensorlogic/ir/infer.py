"""Inference: every node's types, from the rules of its operation and the types of what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ..errors import DTypeError, GraphError, ShapeError, TensorLogicError, nearest
from . import ops
from .graph import Cond, EinsumGraph, Fixpoint, Scan, node_name
from .ops import Op
from .type_rules import MAX_RANK, RULES, Equality, Results, Scope, Types, equal_shapes, same_type
from .types import TensorShape, TensorType


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
        raise GraphError(f"{op!r} is not an operation", code="E126")
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


def _body(body: EinsumGraph, given: Types, what: str, scope: Scope) -> list[TensorType]:
    if len(body.inputs) != len(given):
        raise GraphError(f"{what} has {len(body.inputs)} inputs but is given {len(given)}", code="E105")
    found = infer_graph(body, dict(zip(body.inputs, given, strict=True)))
    scope.equalities += [e._replace(node=scope.node) for e in found.equalities]
    return [found.types[i][0] for _, i in body.outputs]


def _same_type(a: TensorType, b: TensorType, what: str, scope: Scope) -> TensorType:
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        hint = f"cast one of them, such as b.cast(x, {a.dtype!r})"
        raise DTypeError(f"{what} must have equal dtypes, got {a.dtype} and {b.dtype}", hint, code="E122")
    return TensorType(equal_shapes(a.shape, b.shape, what, scope), a.dtype or b.dtype)


def _fixpoint(op: Fixpoint, args: Types, scope: Scope) -> Results:
    if op.combine not in ops.COMBINES:
        raise GraphError(f"unknown combine {op.combine!r}", *nearest(op.combine, ops.COMBINES), code="E126")
    if op.limit < 1 or not op.tolerance >= 0:
        raise GraphError("a fixpoint needs a limit of at least 1 and a tolerance of 0 or more", code="E132")
    if not 1 <= op.carries <= len(args):
        raise GraphError(f"a fixpoint of {op.carries} carries has {len(args)} operands", code="E105")
    new = _body(op.body, args, "the fixpoint's body", scope)
    pairs = enumerate(zip(args[: op.carries], new, strict=True))
    return tuple(_same_type(a, b, f"carry {n} and what the body makes of it", scope) for n, (a, b) in pairs)


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
    last = [_same_type(a, b, f"carry {n} and what the body makes of it", scope) for n, (a, b) in pairs]
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


RULES.update({Fixpoint: _fixpoint, Scan: _scan, Cond: _cond})
