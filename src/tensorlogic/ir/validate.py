"""Checking graphs: structure, types and what looks unintended, as diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..diagnostics import Diagnostic, DiagnosticCollector, Severity, ShapeMismatchDiagnostic
from ..errors import GraphError, ShapeError, TensorLogicError, expect_known
from . import ops
from .check import check_structure, expect_graph, require_valid
from .graph import EinsumGraph, reachable
from .sizes import evaluate, solve
from .type_rules import infer_graph
from .types import TensorShape, TensorType


class ValidationResult(NamedTuple):
    """What a validator found.

    >>> ValidationResult((), ()).is_valid()
    True
    """

    errors: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]

    def is_valid(self) -> bool:
        """Tell whether the graph can run; warnings do not count."""
        return not self.errors

    def __str__(self) -> str:
        return DiagnosticCollector([*self.errors, *self.warnings]).format_all()


class GraphValidator:
    """Checks that a graph is well formed and type-checks, and points out dead nodes and repeated work.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> GraphValidator().validate(b.build(y=b.relu(b.input("x")))).is_valid()
    True
    """

    def validate(self, graph: EinsumGraph) -> ValidationResult:
        """Return every error, and the warnings if there is none."""
        expect_graph(graph, "validate takes an EinsumGraph")
        errors = check_structure(graph)
        if not errors:
            try:
                infer_graph(graph)
            except TensorLogicError as error:
                errors = [error.diagnostic]
        if errors:
            return ValidationResult(tuple(errors), ())
        return ValidationResult((), tuple(_warnings(graph)))


def _warnings(graph: EinsumGraph) -> list[Diagnostic]:
    live = set(reachable(graph.nodes, (i for _, i in graph.outputs)))
    found: list[Diagnostic] = []
    seen: dict[object, int] = {}
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Input):
            if i not in live:
                found.append(_about(graph, i, f"input {node.op.label!r} is not used by any output", "W201"))
            continue
        if i not in live:
            found.append(_about(graph, i, f"node %{i} ({node.op.name}) is not used by any output", "W202"))
        twin = seen.setdefault(node, i)
        if twin != i:
            found.append(_about(graph, i, f"node %{i} ({node.op.name}) computes the same as node %{twin}", "W203"))
    return found


def _about(graph: EinsumGraph, i: int, message: str, code: str) -> Diagnostic:
    return Diagnostic(Severity.WARNING, message, code, graph.nodes[i].location)


class ShapeInferenceContext:
    """Infers the shapes in a graph from those of its inputs.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w = b.input("x"), b.input("w", (10, 3))
    >>> graph = b.build(y=b.einsum("ni,ij->nj", x, w))
    >>> context = ShapeInferenceContext()
    >>> context.set_input_shape("x", [64, 10])
    >>> for name, shape in context.infer_shapes(graph).items():
    ...     print(name, shape)
    x [64, 10]
    w [10, 3]
    y [64, 3]
    """

    def __init__(self, shapes: Mapping[str, Sequence[int | str]] | None = None) -> None:
        self._shapes = {name: TensorShape(shape) for name, shape in (shapes or {}).items()}

    def set_input_shape(self, name: str, shape: Sequence[int | str]) -> None:
        """Give the shape of an input; sizes are integers or names."""
        self._shapes[name] = TensorShape(shape)

    def infer_shapes(self, graph: EinsumGraph) -> dict[str, TensorShape | None]:
        """Return the shape of every tensor: inputs and outputs by name, the rest as %number; None where unknown."""
        expect_known("the graph has no input", self._shapes, graph.inputs, kind=GraphError)
        require_valid(graph)
        known = {n: TensorType(s, graph.type_of(graph.inputs[n]).dtype) for n, s in self._shapes.items()}
        env = _matched(graph, self._shapes)
        types = infer_graph(graph, known).types
        shapes = [None if len(r) != 1 or r[0].shape is None else _put(r[0].shape, env) for r in types]
        found = {f"%{i}": shape for i, shape in enumerate(shapes) if len(types[i]) == 1}
        for i in {*graph.inputs.values(), *(i for _, i in graph.outputs)}:
            found.pop(f"%{i}", None)
        named = {name: shapes[i] for name, i in (*graph.inputs.items(), *graph.outputs)}
        return {**named, **found}


def _put(shape: TensorShape, env: Mapping[str, int]) -> TensorShape:
    return TensorShape(evaluate(d, env) for d in shape)


def _matched(graph: EinsumGraph, shapes: Mapping[str, TensorShape]) -> dict[str, int]:
    """Return what the given shapes say of the declared names; raise where they contradict the declaration."""
    env: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = graph.type_of(graph.inputs[name]).shape
        if declared is None:
            continue
        fits = len(declared) == len(shape)
        for want, got in zip(declared, shape, strict=False):
            if isinstance(want, str) and isinstance(got, int):
                env |= solve(want, got, env) or {}
                fits = fits and evaluate(want, env) in (got, want)
            elif isinstance(want, int) and isinstance(got, int):
                fits = fits and want == got
        if not fits:
            message = f"input {name!r} does not fit"
            raise ShapeError.of(ShapeMismatchDiagnostic.of_input(_put(declared, env), shape, message))
    return env
