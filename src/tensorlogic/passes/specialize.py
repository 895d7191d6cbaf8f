"""Binding sizes: a graph with symbolic sizes and given input types becomes one whose every size is an integer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from ..diagnostics import ShapeMismatchDiagnostic, TypeMismatchDiagnostic
from ..errors import DTypeError, InputError, ShapeError, TensorLogicError, nearest
from ..ir import ops
from ..ir.check import Inference, infer_graph, node_types
from ..ir.graph import EinsumGraph, Node, bodies, body_types, node_name, with_bodies
from ..ir.ops import Op
from ..ir.sizes import Dim, dim, evaluate, names, solve
from ..ir.type_rules import Results, Scope
from ..ir.types import TensorShape, TensorType


def specialize(
    graph: EinsumGraph, inputs: Mapping[str, TensorType], sizes: Mapping[str, int] | None = None
) -> EinsumGraph:
    """Return the graph for inputs of just these types; raise where they do not fit what is declared."""
    env = bind_sizes(graph, inputs, sizes or {})
    unranked = {n: inputs[n] for n, i in graph.inputs.items() if graph.nodes[i].op.shape is None}  # type: ignore[attr-defined]
    relied = infer_graph(graph, unranked) if unranked else graph.inference
    for equality in relied.equalities:
        left, right = evaluate(equality.left, env), evaluate(equality.right, env)
        if left != right and isinstance(left, int) and isinstance(right, int):
            raise ShapeError(
                f"{equality.message}: here {left} and {right}",
                "only a literal size 1 broadcasts; a named size that happens to be 1 does not",
                code="E001",
                context=[f"sizes: {', '.join(f'{k}={v}' for k, v in sorted(env.items()))}"],
            ).at(graph.nodes[equality.node].location)
    return _concrete(graph, inputs, env)


def with_dtypes(graph: EinsumGraph, dtypes: Sequence[str | None]) -> EinsumGraph:
    """Return a graph that declares dtypes for its inputs, given in order; sizes keep their names."""
    nodes = list(graph.nodes)
    for i, dtype in zip(graph.inputs.values(), dtypes, strict=True):
        nodes[i] = Node(replace(nodes[i].op, dtype=dtype), (), nodes[i].locations)
    return EinsumGraph(nodes, graph.outputs, graph.constants)


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
            raise InputError(f"the graph has no input {name!r}", *nearest(name, graph.inputs), code="E302")
    later: list[tuple[str, int, Dim, int]] = []
    for name, node in graph.inputs.items():
        op = graph.nodes[node].op
        assert isinstance(op, ops.Input)
        given = inputs.get(name)
        if given is None:
            raise InputError(
                f"input {name!r} is missing",
                f"inputs: {', '.join(map(repr, graph.inputs))}",
                *nearest(name, inputs)[:1],
                code="E303",
                context=[f"it is declared as {graph.type_of(node)}"],
            ).at(graph.nodes[node].location)
        if op.dtype is not None and given.dtype != op.dtype:
            found_type = TypeMismatchDiagnostic.create(op.dtype, str(given.dtype), f"input {name!r}")
            raise DTypeError.of(replace(found_type, message=f"input {name!r} must be {op.dtype}, got {given.dtype}"))
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
                expected = evaluate(declared, env)
                equals = f" = {expected}" if expected != declared else ""
                why = f"axis {axis} must be {declared}{equals}, got {actual}"
                raise _misfit(name, graph.type_of(graph.inputs[name]).shape or (), inputs[name].shape or (), why)
            env.update(solved)
        stuck = 0
    return env


def _misfit(name: str, declared: tuple[Dim, ...], given: tuple[Dim, ...], why: str) -> ShapeError:
    found = ShapeMismatchDiagnostic.create(declared, given, f"input {name!r}")
    return ShapeError.of(replace(found, message=f"input {name!r} does not fit: {why}"))


def _concrete(graph: EinsumGraph, inputs: Mapping[str, TensorType], env: Mapping[str, int]) -> EinsumGraph:
    nodes: list[Node] = []
    types: list[Results] = []
    loops = graph.has_bodies
    for i, node in enumerate(graph.nodes):
        try:
            op = _substitute(node.op, [types[a][0] for a in node.args], inputs, env, loops)
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
            hint = f"give it: sizes={{{', '.join(f'{m!r}: 8' for m in missing)}}}"
            raise ShapeError(f"no input fixes the size {', '.join(map(repr, missing))} of {op.name}", hint, code="E304")


def _sized(value: Any, env: Mapping[str, int]) -> Any:
    """Put sizes in place of their names: in one size, in a shape, or in ranges."""
    if isinstance(value, tuple):
        return tuple([_sized(part, env) for part in value])
    return evaluate(value, env) if isinstance(value, str) else value


def _substitute(
    op: Op, args: list[TensorType], inputs: Mapping[str, TensorType], env: Mapping[str, int], loops: bool
) -> Op:
    """Return an operation with the known sizes put in, and its bodies made for the operands they get."""
    if isinstance(op, ops.Input):
        given = inputs[op.label]
        return ops.Input(op.label, tuple(given.shape or ()), given.dtype)
    if loops and bodies(op):
        given_types = body_types(op, args)
        op = with_bodies(op, [specialize(b, dict(zip(b.inputs, given_types, strict=True)), env) for b in bodies(op)])
    sized = {name: _sized(getattr(op, name), env) for name in op.size_fields}
    return op if all(getattr(op, name) == value for name, value in sized.items()) else replace(op, **sized)
