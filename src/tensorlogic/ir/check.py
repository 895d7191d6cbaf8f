"""Checking graphs: that nodes, sizes, constants and outputs hang together. Types are worked out in :mod:`tensorlogic.ir.type_rules`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..diagnostics import Diagnostic, Severity, value_text
from ..errors import FormatError, GraphError, InputError, ShapeError, TensorLogicError, expect, expect_known, nearest
from . import ops
from .graph import MAX_BODY_DEPTH, OPS, EinsumGraph, Node, bodies, body_fields
from .sizes import dim
from .type_rules import UNTYPED, known_types
from .types import DTYPES, ITEMSIZE


def check_graph(graph: EinsumGraph) -> EinsumGraph:
    """Return a graph that was read if its structure and its types are sound; raise the first problem otherwise."""
    problems = check_structure(graph)
    if problems:
        more = f"and {len(problems) - 1} more problem(s)"
        raise GraphError.of(problems[0].with_context(more) if len(problems) > 1 else problems[0])
    try:
        graph.inference  # noqa: B018 - computed here once, and kept
    except TensorLogicError as error:
        error.diagnostic = error.diagnostic.with_context(f"in {_failing(graph)}")
        raise
    except Exception as error:  # sizes of thousands of digits, and whatever else nobody thought of
        message = f"the types cannot be worked out: {error}"
        raise GraphError(message, code="E210", context=[f"in {_failing(graph)}"]) from None
    return graph


def _failing(graph: EinsumGraph) -> str:
    i = next((i for i, types in enumerate(known_types(graph)) if types is UNTYPED), None)
    return "the graph" if i is None else f"{_called(graph.nodes[i], i)}, $.nodes[{i}]"


def expect_inputs(graph: EinsumGraph, names: Iterable[object]) -> None:
    """Refuse names that are no inputs of a graph; one that was declared and not used is said to be so."""
    for name in names:
        if isinstance(name, str) and name in graph.left_out:
            message, hint = (
                f"{name!r} was declared, but no output depends on it",
                f"use it in what is built, or leave {name!r} out",
            )
            raise InputError(message, hint, code="E302")
    expect_known("the graph has no input", names, graph.inputs)


def expect_graph(graph: object, what: str = "an EinsumGraph is expected", output: str = "y") -> None:
    """Refuse what is no graph, and say how to get one from it.

    >>> try:
    ...     expect_graph("model.json")
    ... except TensorLogicError as error:
    ...     print(error.diagnostic.suggestions[0])
    read it: tl.EinsumGraph.load('model.json')
    """
    if type(graph) is EinsumGraph:
        return
    hint = f"build one: b.build({output}={output})"
    match type(graph).__name__:
        case "Program":
            hint = 'give the graph of its tensors: program.graph("Y")'
        case "CompiledGraph":
            hint = "give the graph that it was compiled from; executor.execute_compiled runs a CompiledGraph"
    if isinstance(graph, str | Path):
        hint = f"read it: tl.EinsumGraph.load({graph!r})"
    expect(graph, EinsumGraph, what, hint)


def require_valid(graph: EinsumGraph) -> None:
    """Refuse what is no graph, and raise the first structural error of a graph that has one."""
    expect_graph(graph)
    if graph.checked:
        return
    if errors := check_structure(graph):
        raise GraphError.of(errors[0])
    graph.checked = True


def check_structure(graph: EinsumGraph) -> list[Diagnostic]:
    """Return what is wrong with how a graph hangs together, bodies included; types are another matter.

    >>> [d.code for d in check_structure(EinsumGraph([Node(ops.Elementwise("relu"), (1,))], [("y", 0)]))]
    ['E201']
    """
    found: list[Diagnostic] = []
    _check(graph, "$", 0, found)
    return found


def _check(graph: EinsumGraph, path: str, depth: int, found: list[Diagnostic]) -> None:
    count = len(graph.nodes)
    inputs: dict[str, int] = {}
    kinds = set(OPS.values())

    def report(i: int, code: str, message: str, hint: str, inside: str = "") -> None:
        node = graph.nodes[i]
        found.append(_problem(node, code, f"{_called(node, i)}{message}", f"{path}.nodes[{i}]{inside}", hint))

    for i, node in enumerate(graph.nodes):
        op = node.op
        if type(op) not in kinds:
            message = f"node %{i} holds {value_text(op)}, which is no operation"
            found.append(_problem(None, "E208", message, f"{path}.nodes[{i}]", "use tensorlogic.ir.ops"))
            continue
        dtype = getattr(op, "dtype", None)
        if dtype is not None and (not isinstance(dtype, str) or dtype not in ITEMSIZE):
            report(i, "E103", f": unsupported dtype {value_text(dtype)}", nearest(dtype, DTYPES)[0])
            continue
        for n, a in enumerate(node.args):
            if type(a) is int and 0 <= a < i:
                continue
            if type(a) is not int:
                report(
                    i,
                    "E201",
                    f" reads {value_text(a)}, which is no node number",
                    "arguments are integers",
                    f".args[{n}]",
                )
            elif i <= a < count:
                later = "itself" if a == i else f"%{a}, which comes later"
                report(i, "E202", f" reads {later}", "a node reads only earlier nodes", f".args[{n}]")
            else:
                hint = f"the nodes are %0 to %{count - 1}"
                report(i, "E201", f" reads %{a}, which does not exist", hint, f".args[{n}]")
        match op:
            case ops.Elementwise() | ops.Einsum():
                continue
            case ops.Input():
                first = inputs.setdefault(op.label, i)
                if first != i:
                    twin = f" has the name {op.label!r}, which %{first} has too"
                    report(i, "E205", twin, "give every input its own name")
            case ops.Constant():
                array = graph.constants.get(op.digest)
                if array is None:
                    found.append(no_array(node, i, f"{path}.nodes[{i}]"))
                elif array.shape != op.shape or array.dtype.name != op.dtype:
                    types = f" is {op.dtype}{list(op.shape)}, its array {array.dtype}{list(array.shape)}"
                    report(i, "E227", types, "make the node with constant_op(array)")
            case ops.Literal() if not plain_literal(op):
                message = f": {op.text[:40]!r} is not how a literal {op.kind} is written"
                report(i, "E134", message, "make the node with Literal.of(value)")
            case ops.Slice() | ops.Pad():
                ranges, each = (op.ranges, 3) if isinstance(op, ops.Slice) else (op.widths, 2)
                if any(len(r) != each for r in ranges):
                    hint = "a range is (start, count, step), a width (before, after)"
                    report(i, "E213", " has ranges or widths of the wrong length", hint)
                    continue
        for size in op.sizes() if op.size_fields else ():
            if isinstance(size, str) and (normal := _size_hint(size)):
                report(i, "E209", f" has a size {size[:40]!r} that is not in normal form", normal)
        for key in body_fields(type(op)):
            if depth >= MAX_BODY_DEPTH:
                report(i, "E207", f" is nested deeper than {MAX_BODY_DEPTH} bodies", "unnest some of them")
                break
            _check(getattr(op, key), f"{path}.nodes[{i}].op.{key}", depth + 1, found)
    names: set[str] = set()
    for n, (name, i) in enumerate(graph.outputs):
        where = f"{path}.outputs[{n}]"
        if name in names:
            found.append(_problem(None, "E204", f"two outputs are named {name!r}", where, "give each its own name"))
        names.add(name)
        if not 0 <= i < count:
            hint = f"the nodes are %0 to %{count - 1}" if count else "the graph has no nodes"
            found.append(_problem(None, "E203", f"output {name!r} is %{i}, which does not exist", where, hint))
        elif (held := bodies(graph.nodes[i].op)) and len(held[0].outputs) != 1:
            message = f"output {name!r} is {_called(graph.nodes[i], i)}, which has {len(held[0].outputs)} results"
            found.append(_problem(graph.nodes[i], "E128", message, where, "choose one of them with an item node"))


def _called(node: Node, i: int) -> str:
    return f"node %{i} ({node.op.name})"


def _problem(node: Node | None, code: str, message: str, path: str, hint: str) -> Diagnostic:
    context = (f"at {path}",) if path else ()
    return Diagnostic(Severity.ERROR, message, code, None if node is None else node.location, context, (hint,))


def no_array(node: Node, i: int, path: str) -> Diagnostic:
    """Say that node ``i``, a constant, has no array."""
    return _problem(node, "E206", f"{_called(node, i)} has no array", path, "pass constants={digest: array}")


def too_deep() -> FormatError:
    """Make the error that bodies are nested too deeply to be written or read."""
    return FormatError(f"bodies may be nested {MAX_BODY_DEPTH} deep", code="E207")


def plain_literal(op: ops.Literal) -> bool:
    """Tell whether a literal is written the one way it prints."""
    try:
        return op.kind in ("bool", "int", "float") and ops.Literal.of(op.value) == op
    except ValueError:
        return False


def _size_hint(size: str) -> str | None:
    try:
        normal = dim(size)
    except ShapeError as error:
        return error.diagnostic.suggestions[0] if error.diagnostic.suggestions else error.diagnostic.message
    return None if normal == size else f"write {normal!r}"
