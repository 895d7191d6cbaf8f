"""Binding sizes: the types of inputs, as given or declared, and the graph for them, whose every size is an integer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from ..diagnostics import ShapeMismatchDiagnostic, TypeMismatchDiagnostic, value_text
from ..errors import DTypeError, InputError, ShapeError, TensorLogicError, expect, expect_known, nearest
from ..ir import ops
from ..ir.check import expect_graph, require_valid
from ..ir.graph import EinsumGraph, Node, bodies, body_types, node_name, with_bodies
from ..ir.ops import Op
from ..ir.sizes import Dim, dim, evaluate, names, solve
from ..ir.type_rules import Inference, infer_graph, node_types
from ..ir.types import FLOATS, INTEGERS, Equality, Results, Scope, TensorShape, TensorType, dtype_name, plain_array


def specialize(
    graph: EinsumGraph, inputs: Mapping[str, TensorType], sizes: Mapping[str, int] | None = None
) -> EinsumGraph:
    """Return the graph for inputs of just these types; raise where they do not fit what is declared."""
    env = bind_sizes(graph, inputs, sizes or {})
    for equality in _equalities(graph, inputs) if env else ():  # where no size has a name, there is none to compare
        left, right = evaluate(equality.left, env), evaluate(equality.right, env)
        if left != right and isinstance(left, int) and isinstance(right, int):
            raise ShapeError(
                f"{equality.message}: here {left} and {right}",
                "only a literal size 1 broadcasts; a named size that happens to be 1 does not",
                code="E001",
                context=[f"sizes: {', '.join(f'{k}={v}' for k, v in sorted(env.items()))}"],
            ).at(graph.nodes[equality.node].location)
    return _concrete(graph, inputs, env)


def _equalities(graph: EinsumGraph, inputs: Mapping[str, TensorType]) -> Sequence[Equality]:
    """Return the sizes that the types of a graph take to be equal, for the ranks that inputs of unknown rank turn out to have."""
    unranked = {n: inputs[n] for n, i in graph.inputs.items() if graph.nodes[i].op.shape is None}  # type: ignore[attr-defined]
    return (infer_graph(graph, unranked) if unranked else graph.inference).equalities


def with_dtypes(graph: EinsumGraph, dtypes: Sequence[str | None]) -> EinsumGraph:
    """Return a graph that declares dtypes for its inputs, given in order; sizes keep their names."""
    nodes = list(graph.nodes)
    for i, dtype in zip(graph.inputs.values(), dtypes, strict=True):
        nodes[i] = Node(replace(nodes[i].op, dtype=dtype), (), nodes[i].locations)
    return EinsumGraph(nodes, graph.outputs, graph.constants)


def with_sizes(graph: EinsumGraph, sizes: Mapping[str, int]) -> EinsumGraph:
    """Return the graph with numbers in place of some named sizes, such as those that no input fixes.

    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> row = b.build(y=b.input("x", ("n", 2))["k":"k+1"])
    >>> result = Executor().execute_batch(with_sizes(row, {"k": 1}), [{"x": np.eye(2)}, {"x": np.ones((3, 2))}])
    >>> [item["y"].tolist() for item in result]
    [[[0.0, 1.0]], [[1.0, 1.0]]]
    """
    expect_graph(graph, "with_sizes takes an EinsumGraph")
    env = {}
    for name, value in (checked_sizes(graph, sizes) or {}).items():
        env[name] = dim(value)
        if not isinstance(env[name], int):
            raise InputError(f"size {name!r} must be an integer, got {value_text(value)}", code="E301")
    nodes = [Node(_with_sizes(node.op, env), node.args, node.locations) for node in graph.nodes]
    result = EinsumGraph(nodes, graph.outputs, graph.constants, graph.axis_names, graph.scores)
    require_valid(result)
    return result


def _with_sizes(op: Op, env: Mapping[str, Any]) -> Op:
    if inner := bodies(op):
        op = with_bodies(op, [with_sizes(b, {n: v for n, v in env.items() if n in b.size_names}) for b in inner])
    return replace(op, **{name: _sized(getattr(op, name), env) for name in op.size_fields}) if op.size_fields else op


def bind_sizes(graph: EinsumGraph, inputs: Mapping[str, TensorType], sizes: Mapping[str, int]) -> dict[str, int]:
    """Match declared input types with given ones and return the value of every named size."""
    env: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, value in sizes.items():
        found = dim(value)
        if not isinstance(found, int):
            raise InputError(f"size {name!r} must be an integer, got {value_text(value)}", code="E301")
        env[name], owner[name] = found, "sizes="
    expect_known("the graph has no input", inputs, graph.inputs)
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
            hints = found_type.suggestions
            deeper = op.shape is not None and given.shape is not None and len(given.shape) == len(op.shape) + 1
            if deeper and op.dtype in INTEGERS and given.dtype in FLOATS:
                hints = (f"if its rows are one-hot, give the numbers of the classes: {name}.argmax(-1)",)
            message = f"input {name!r} must be {op.dtype}, got {given.dtype}"
            raise DTypeError.of(replace(found_type, message=message, suggestions=hints))
        if op.shape is None:
            continue
        shape = given.shape or TensorShape()
        if len(shape) != len(op.shape):
            raise misfit(name, op.shape, shape, f"{len(op.shape)} axes are declared, got {len(shape)}")
        for axis, (declared, actual) in enumerate(zip(op.shape, shape, strict=True)):
            assert isinstance(actual, int)
            if isinstance(declared, int):
                if declared != actual:
                    raise misfit(name, op.shape, shape, f"axis {axis} must be {declared}, got {actual}")
            elif names(declared) == {declared}:
                known = env.setdefault(declared, actual)
                origin = owner.setdefault(declared, f"axis {axis} of input {name!r}")
                if known != actual:
                    why = f"size {declared!r} is {known} by {origin}, but axis {axis} of input {name!r} is {actual}"
                    if origin == "sizes=":  # another shape of the array would not help
                        hint = f"leave {declared!r} out of sizes=, or give {name!r} with {known} along axis {axis}"
                        raise ShapeError(f"input {name!r} does not fit: {why}", hint, code="E001")
                    raise misfit(name, op.shape, shape, why)
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
                raise misfit(name, graph.type_of(graph.inputs[name]).shape or (), inputs[name].shape or (), why)
            env.update(solved)
        stuck = 0
    return env


def misfit(name: str, declared: tuple[Dim, ...], given: tuple[Dim, ...], why: str) -> ShapeError:
    """Return the error of an input whose shape is not as declared."""
    return ShapeError.of(ShapeMismatchDiagnostic.of_input(declared, given, f"input {name!r} does not fit: {why}"))


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
            sizes = f"{{{', '.join(f'{m!r}: 8' for m in missing)}}}"
            hints = f"give it: sizes={sizes}", f"or put it into the graph: tl.with_sizes(graph, {sizes})"
            raise ShapeError(
                f"no input fixes the size {', '.join(map(repr, missing))} of {op.name}", *hints, code="E304"
            )


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


DTYPE = "float32"  # of inputs that declare none and are not given


class Known(NamedTuple):
    """What is known of a graph's inputs before it runs."""

    types: dict[str, TensorType]  # without those of unknown rank
    sizes: dict[str, int]
    assumed: tuple[str, ...]  # sizes that nobody gave
    unranked: tuple[str, ...]  # inputs that declare no shape and are not given


def known_inputs(
    graph: EinsumGraph,
    inputs: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None,
    *,
    dtype: str = DTYPE,
    stand_in: int | None = None,
) -> Known:
    """Return the types of inputs, arrays or types that are given by name; a size nobody gave is ``stand_in``, or stays open.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", "m")) @ b.input("w", ("m", 4)))
    >>> known_inputs(graph, {"x": np.ones((2, 3))}, None).types["w"]
    TensorType(shape=TensorShape([3, 4]), dtype='float32', weak=False)
    >>> known_inputs(graph, {}, {"n": 2}, stand_in=64).assumed
    ('m',)
    """
    if sizes is not None:
        expect(sizes, Mapping, "sizes= must be a mapping of names to integers", 'write sizes={"n": 64}')
    given, known = {} if inputs is None else inputs, dict(sizes or {})
    if not isinstance(given, Mapping):
        message = f"inputs must be a mapping of names to arrays or types, got {type(given).__name__}"
        raise InputError(message, 'write {"x": array}', code="E301")
    expect_known("the graph has no size", known, graph.size_names, "E304")
    types: dict[str, TensorType] = {}
    bound = set(known)
    for name, value in given.items():
        expect_known("the graph has no input", [name], graph.inputs)
        declared, own = graph.type_of(graph.inputs[name])[:2]
        found = value if isinstance(value, TensorType) else _type_of(value, own)
        if found.shape is None:
            continue
        types[name] = found._replace(dtype=found.dtype or own or dtype)
        if declared is not None and len(declared) == len(found.shape):
            bound |= {n for d in declared if isinstance(d, str) for n in names(d)}
            for d, actual in zip(declared, found.shape, strict=True):
                if isinstance(d, str) and d.isidentifier() and isinstance(actual, int):
                    known.setdefault(d, int(actual))
    assumed = () if stand_in is None else tuple(sorted(graph.size_names - bound))
    known |= dict.fromkeys(assumed, stand_in or 0)
    unranked = []
    for name, node in graph.inputs.items():
        t = graph.type_of(node)
        if name in types:
            continue
        if t.shape is None:
            unranked.append(name)
        else:
            types[name] = TensorType(TensorShape(evaluate(d, known) for d in t.shape), t.dtype or dtype)
    return Known(types, known, assumed, tuple(unranked))


def checked_sizes(
    graph: EinsumGraph, sizes: Mapping[str, int] | None, unused: frozenset[str] = frozenset()
) -> Mapping[str, int] | None:
    """Return sizes by name, each of which the graph has, or had before passes left its ``unused`` ones out."""
    if sizes is None:
        return None
    if type(sizes) is not dict:
        expect(sizes, Mapping, "sizes= must be a mapping of names to integers")
    for name, value in sizes.items():
        known = isinstance(value, str | int | float | np.integer) and not isinstance(value, bool)
        if not isinstance(name, str) or not known:
            raise InputError(
                f"sizes= must map names to integers, got {value_text(name)}: {value_text(value)}", code="E301"
            )
        expect_known("the graph has no size", [name], graph.size_names | unused, "E304")
    return sizes


def input_types(
    graph: EinsumGraph,
    inputs: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None,
    dtype: str = DTYPE,
    what: str = "estimate",
) -> dict[str, TensorType]:
    """Return the type of every input, or say what else must be given for it to be known."""
    found = known_inputs(graph, inputs, sizes, dtype=dtype)
    for name in graph.inputs:
        if name in found.unranked:
            message = f"the {what} needs input {name!r}, whose shape is not declared"
            raise InputError(message, f"give the inputs: {what}(graph, {{{name!r}: array}})", code="E303")
        missing = sorted({n for d in found.types[name].shape or () for n in names(d)})
        if missing:
            wanted = ", ".join(f"{n!r}: 64" for n in missing)
            hint = f"give sizes={{{wanted}}} (--size {missing[0]}=64 on the command line), or the inputs"
            raise InputError(f"the {what} needs the size {missing[0]!r} of input {name!r}", hint, code="E304")
    return {name: found.types[name] for name in graph.inputs}


def _type_of(value: Any, declared: str | None) -> TensorType:
    """Return the type of an array of any library; lists and numbers take the declared dtype, as they do in a run."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        array = plain_array(value)
        return TensorType(TensorShape(array.shape), declared or dtype_name(array.dtype))
    dtype = value.dtype if isinstance(value.dtype, np.dtype) else str(value.dtype).removeprefix("torch.")
    return TensorType(TensorShape(value.shape), dtype_name(dtype))
