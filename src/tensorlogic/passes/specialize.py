"""Binding sizes: a graph with symbolic sizes and given input types becomes one whose every size is an integer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from ..diagnostics import ShapeMismatchDiagnostic, TypeMismatchDiagnostic
from ..errors import DTypeError, InputError, ShapeError, TensorLogicError, nearest
from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, node_name
from ..ir.infer import Inference, infer_graph, node_types
from ..ir.ops import Op
from ..ir.sizes import Dim, dim, evaluate, names, solve
from ..ir.type_rules import Results, Scope
from ..ir.types import TensorShape, TensorType


def specialize(
    graph: EinsumGraph, inputs: Mapping[str, TensorType], sizes: Mapping[str, int] | None = None
) -> EinsumGraph:
    """Return the graph for inputs of just these types; raise where they do not fit what is declared."""
    env = bind_sizes(graph, inputs, sizes or {})
    unranked = {n: inputs[n] for n, i in graph.inputs.items() if graph.type_of(i).shape is None}
    relied = infer_graph(graph, unranked) if unranked else graph.inference
    for equality in relied.equalities:
        left, right = evaluate(equality.left, env), evaluate(equality.right, env)
        if left != right and isinstance(left, int) and isinstance(right, int):
            raise ShapeError(
                f"{equality.message}: here {left} and {right}",
                code="E001",
                context=[f"sizes: {', '.join(f'{k}={v}' for k, v in sorted(env.items()))}"],
                suggestions=["only a literal size 1 broadcasts; a named size that happens to be 1 does not"],
            ).at(graph.nodes[equality.node].location)
    return _concrete(graph, inputs, env)


def bind_sizes(graph: EinsumGraph, inputs: Mapping[str, TensorType], sizes: Mapping[str, int]) -> dict[str, int]:
    """Match declared input types with given ones and return the value of every named size."""
    env: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, value in sizes.items():
        found = dim(value)
        if not isinstance(found, int):
            raise InputError(f"size {name!r} must be an integer, got {value!r}", code="E301")
        env[name], owner[name] = found, "sizes="
    for name in inputs:
        if name not in graph.inputs:
            raise InputError(f"the graph has no input {name!r}", code="E302", suggestions=nearest(name, graph.inputs))
    later: list[tuple[str, int, Dim, int]] = []
    for name, node in graph.inputs.items():
        op = graph.nodes[node].op
        assert isinstance(op, ops.Input)
        given = inputs.get(name)
        if given is None:
            raise InputError(
                f"input {name!r} is missing",
                code="E303",
                context=[f"it is declared as {graph.type_of(node)}"],
                suggestions=[f"inputs: {', '.join(map(repr, graph.inputs))}", *nearest(name, inputs)[:1]],
            ).at(graph.nodes[node].location)
        if op.dtype is not None and given.dtype != op.dtype:
            found_type = TypeMismatchDiagnostic.create(op.dtype, str(given.dtype), f"input {name!r}")
            raise DTypeError.of(msgspec.structs.replace(
                found_type, message=f"input {name!r} must be {op.dtype}, got {given.dtype}"))  # fmt: skip
        if op.shape is None:
            continue
        shape = given.shape or TensorShape()
        if len(shape) != len(op.shape):
            raise _misfit(name, op.shape, shape, f"{len(op.shape)} axes are declared, got {len(shape)}")
        for axis, (declared, actual) in enumerate(zip(op.shape, shape, strict=True)):
            assert isinstance(actual, int)
            if isinstance(declared, int):
                if declared != actual:
                    raise _misfit(name, op.shape, shape, f"axis {axis} must be {declared}, got {actual}")
            elif names(declared) == {declared}:
                known = env.setdefault(declared, actual)
                origin = owner.setdefault(declared, f"axis {axis} of input {name!r}")
                if known != actual:
                    why = f"size {declared!r} is {known} by {origin}, but axis {axis} of input {name!r} is {actual}"
                    raise _misfit(name, op.shape, shape, why)
            else:
                later.append((name, axis, declared, actual))
    stuck = 0
    while later:
        name, axis, declared, actual = later.pop(0)
        if evaluate(declared, env) != actual:
            solved = solve(declared, actual, env)
            if solved is None and stuck < len(later):  # another input may fix a name first
                later.append((name, axis, declared, actual))
                stuck += 1
                continue
            if solved is None:
                op = graph.nodes[graph.inputs[name]].op
                assert isinstance(op, ops.Input)
                expected = evaluate(declared, env)
                why = (
                    f"axis {axis} must be {declared}"
                    + (f" = {expected}" if expected != declared else "")
                    + f", got {actual}"
                )
                raise _misfit(name, op.shape or (), inputs[name].shape or (), why)
            env.update(solved)
        stuck = 0
    return env


def _misfit(name: str, declared: tuple[Dim, ...], given: tuple[Dim, ...], why: str) -> ShapeError:
    found = ShapeMismatchDiagnostic.create(declared, given, f"input {name!r}")
    return ShapeError.of(msgspec.structs.replace(found, message=f"input {name!r} does not fit: {why}"))


def _concrete(graph: EinsumGraph, inputs: Mapping[str, TensorType], env: Mapping[str, int]) -> EinsumGraph:
    nodes: list[Node] = []
    types: list[Results] = []

    for i, node in enumerate(graph.nodes):
        try:
            op = _substitute(node.op, [types[a][0] for a in node.args], inputs, env)
            found = node_types(op, [types[a] for a in node.args], Scope(i, partial(node_name, nodes), node.args, []))
            for t in found:
                _check_bound(t, op)
        except TensorLogicError as error:
            raise error.at(node.location) from None
        nodes.append(node if op is node.op else Node(op, node.args, node.locations))
        types.append(found)
    result = EinsumGraph(nodes, graph.outputs, graph.constants)
    result.inference = Inference(tuple(types), ())
    return result


def _check_bound(t: TensorType, op: Op) -> None:
    starts = [start for start, _, _ in op.ranges] if isinstance(op, ops.Slice) else []
    for size in (*starts, *(t.shape or ())):
        if isinstance(size, str):
            missing = sorted(names(size))
            raise ShapeError(
                f"no input fixes the size {', '.join(map(repr, missing))} of {op.name}",
                code="E304",
                suggestions=[f"give it: sizes={{{', '.join(f'{m!r}: 8' for m in missing)}}}"],
            )


def _dim(size: Dim, env: Mapping[str, int]) -> Dim:
    return size if isinstance(size, int) else evaluate(size, env)


def _substitute(op: Op, args: list[TensorType], inputs: Mapping[str, TensorType], env: Mapping[str, int]) -> Op:
    """Return an operation with the known sizes put in, and its bodies made for the operands they get."""
    match op:
        case ops.Input():
            given = inputs[op.label]
            return ops.Input(op.label, tuple(given.shape or ()), given.dtype)
        case ops.Iota(size=str()):
            return ops.Iota(_dim(op.size, env), op.dtype)
        case ops.Slice():
            return ops.Slice(tuple((_dim(a, env), _dim(n, env), s) for a, n, s in op.ranges))
        case ops.Reshape():
            return ops.Reshape(tuple(_dim(d, env) for d in op.shape))
        case ops.Broadcast():
            return ops.Broadcast(tuple(_dim(d, env) for d in op.shape), op.axes)
        case ops.Window(size=str()):
            return ops.Window(op.axis, _dim(op.size, env), op.step, op.dilation)
        case Fixpoint():
            return msgspec.structs.replace(op, body=_body(op.body, args, env))
        case Scan():
            kept = args[: op.carries]
            rows = [
                TensorType(TensorShape((t.shape or ())[1:]), t.dtype)
                for t in args[op.carries : op.carries + op.scanned]
            ]
            body = _body(op.body, [*kept, *rows, *args[op.carries + op.scanned :]], env)
            length = None if op.length is None else _dim(op.length, env)
            return msgspec.structs.replace(op, body=body, length=length)
        case Cond():
            return Cond(_body(op.then, args[1:], env), _body(op.otherwise, args[1:], env))
        case _:
            return op


def _body(body: EinsumGraph, given: list[TensorType], env: Mapping[str, int]) -> EinsumGraph:
    strong = [t._replace(weak=False) for t in given]
    return specialize(body, dict(zip(body.inputs, strong, strict=True)), env)
