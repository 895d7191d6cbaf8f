"""The gradient of what was recorded: the record as a graph, its gradient as a graph, run on the values that are there.

Graphs are kept by their structure, so a loop that records the same operations each step differentiates and plans once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...errors import DTypeError, ExecutionError, GraphError, ShapeError
from ...ir import ops
from ...ir.graph import EinsumGraph, Node
from ...ir.types import dtype_name
from ...passes.grad import grad as grad_pass
from ...passes.grad import vjp
from ...passes.grad_tape import unused
from ...plan.printing import describe
from ...store import Store
from ..executor import Executor
from ..recompute import all_nodes, match_nodes, operands_first, rest_of_gradient
from .kernels import SCALARS, Array, operand_array
from .record import Leaf, Record
from .variable import Variable


class BackwardGraph(NamedTuple):
    """The gradient of one structure: a graph, where its inputs come from, and whose gradients its outputs are."""

    graph: EinsumGraph
    feeds: tuple[tuple[str, int], ...]  # input, number of the recorded value
    wants: tuple[int, ...]  # the number of the leaf of each output
    seed: str | None  # the input that takes the cotangent


class Structure(NamedTuple):
    """What a value was computed from, operands first, each once."""

    key: tuple[Any, ...]
    values: list[Any]
    sources: list[Any]  # the record of each value; None of arrays and Python scalars
    wants: list[int]  # leaves whose variables want gradients, and are still there


_graphs: Store[Any, BackwardGraph] = Store(256)


@cache
def default_executor() -> Executor:
    """Return the executor that runs gradients unless another is named; made when first needed."""
    return Executor()


def backward(
    variable: Variable,
    grad: Any = None,
    *,
    check_nan: bool = False,
    again: bool = False,
    executor: Executor | None = None,
) -> None:
    """Add the gradient of a variable to the ``grad`` of what it was computed from: see :meth:`Variable.backward`."""
    if not isinstance(variable, Variable):
        hint = "backward starts from what was computed with tl.Variable"
        raise GraphError(f"a Variable is expected, got {type(variable).__name__}", hint, code="E301")
    root = variable._record
    _check_start(variable, root, grad, again)
    seed = None if grad is None else _cotangent(root.value, grad)
    structure = structure_of(root)
    if not structure.wants:
        return  # nobody is left to take a gradient
    key = (structure.key, seed is None)
    back = _graphs.get(key)
    if back is None:
        back = backward_graph(structure, scalar=seed is None)
        _graphs.put(key, back)
    inputs = {label: structure.values[n] for label, n in back.feeds}
    if back.seed is not None:
        inputs[back.seed] = seed
    runner = executor or default_executor()
    gradients = list(runner.execute(back.graph, inputs))
    if check_nan and any(np.isnan(x).any() for x in (root.value, *gradients)):
        raise first_nan(structure, back, inputs, runner)
    for n, g in zip(back.wants, gradients, strict=True):
        owner = structure.sources[n].owner()
        if owner is not None:
            owner.grad = g if owner.grad is None else owner.grad + g
    variable._spent = True


def _check_start(variable: Variable, root: Record, grad: Any, again: bool) -> None:
    if root.value.dtype.kind != "f":
        hints = ("use soft versions: tl.eager.sigmoid(10 * x) for x > 0", "or cast it: x.astype('float32')")
        if root.value.dtype.kind in "iu":
            hints = ("begin with floats: tl.Variable([1.0, 2.0])", hints[1])
        raise DTypeError(f"a variable of {root.value.dtype} has no gradient: only floats do", *hints, code="E904")
    if not root.needs:
        why = f"; the gradient ended at {root.lost}" if root.lost else ""
        message = f"nothing was recorded for this variable: it depends on none that wants gradients{why}"
        hint = "compute it from tl.Variable(array), outside of no_grad and without detach"
        raise GraphError(message, hint, code="E905")
    if getattr(variable, "_spent", False) and not again:
        hint = "compute it anew, or say backward(again=True)"
        raise GraphError("backward ran from this variable before; gradients would add up", hint, code="E906")
    if grad is None and root.value.shape != ():
        hints = "reduce it: loss.sum() or loss.mean()", "or give its cotangent: y.backward(array)"
        message = f"a gradient is of a scalar, and this is of shape {list(root.value.shape)}"
        raise ShapeError(message, *hints, code="E907")


def _cotangent(value: Array, grad: Any) -> Array:
    array = grad.value if isinstance(grad, Variable) else operand_array(grad)
    if array.shape != value.shape:
        raise ShapeError(
            f"the cotangent is of shape {list(array.shape)}, what it belongs to of {list(value.shape)}",
            "give an array of the same shape: np.ones_like(y)",
            code="E908",
        )
    return array.astype(value.dtype, copy=False)


def structure_of(root: Record) -> Structure:
    """Return the structure under a record and the values in it; nothing recurses, so a chain may be long."""
    number: dict[Record, int] = {}
    key: list[Any] = []
    values: list[Any] = []
    sources: list[Any] = []
    wants: list[int] = []
    for record in operands_first([root], lambda r: r.operands() if r.needs else []):
        if record.op is None or not record.needs:
            wanted = record.needs and type(record) is Leaf and record.owner() is not None
            if wanted:
                wants.append(len(key))
            key.append((record.value.shape, record.value.dtype, wanted))
        else:
            at = []
            for a in record.args:
                if isinstance(a, Record):
                    at.append(number[a])
                    continue
                at.append(len(key))
                key.append(ops.Literal.of(a) if type(a) in SCALARS else (a.shape, a.dtype, False))
                values.append(a)
                sources.append(None)
            key.append((record.op, tuple(at)))
        number[record] = len(key) - 1
        values.append(record.value)
        sources.append(record)
    return Structure(tuple(key), values, sources, wants)


def as_graph(structure: Structure) -> EinsumGraph:
    """Return a structure as a graph: what was given, and arrays, are its inputs; the last value is its output ``y``."""
    nodes: list[Node] = []
    taken = {"y"}
    for n, (what, source) in enumerate(zip(structure.key, structure.sources, strict=True)):
        places = () if source is None or source.place is None else (source.place,)
        if isinstance(what, ops.Literal):
            nodes.append(Node(what))
        elif len(what) == 2:
            nodes.append(Node(what[0], what[1], places))
        else:
            name = unused((source.name if type(source) is Leaf else None) or f"x{n}", taken)
            nodes.append(Node(ops.Input(name, what[0], dtype_name(what[1])), (), places))
    return EinsumGraph(nodes, [("y", len(nodes) - 1)])


def backward_graph(structure: Structure, *, scalar: bool) -> BackwardGraph:
    """Return the gradient of a structure, with what was computed already as inputs."""
    graph = as_graph(structure)
    names = {i: name for name, i in graph.inputs.items()}
    wrt = [names[i] for i in structure.wants]
    whole = grad_pass(graph, wrt) if scalar else vjp(graph, wrt)
    match = match_nodes(whole, graph)
    rest, labels = rest_of_gradient(whole, match, all_nodes(whole, match))
    known: dict[str, Any] = {**graph.inputs, **{label: match[i] for label, i in labels.items()}}
    feeds = tuple((label, known[label]) for label in rest.inputs if label in known)
    seed = next((label for label in rest.inputs if label not in known), None)
    return BackwardGraph(rest, feeds, tuple(structure.wants), seed)


def first_nan(structure: Structure, back: BackwardGraph, inputs: dict[str, Any], runner: Executor) -> ExecutionError:
    """Return the error that names the first tensor with a NaN: of the record, else of its gradient."""
    for n, (what, value, source) in enumerate(zip(structure.key, structure.values, structure.sources, strict=True)):
        if type(value) in SCALARS or value.dtype.kind != "f" or not np.isnan(value).any():
            continue
        count = int(np.isnan(value).sum())
        origin = f"the result of {describe(what[0])}" if len(what) == 2 else "what was given"
        name = f" {source.name!r}" if type(source) is Leaf and source.name else ""
        message = f"value {n}{name} has {count} NaN of {value.size}: {origin}"
        hint, place = (
            "a gradient of it is NaN too; look at the operands there",
            None if source is None else source.place,
        )
        return ExecutionError(message, hint, code="E909", location=place)
    graph = back.graph
    every = [i for i, t in enumerate(graph.inference.types) if len(t) == 1 and not t[0].weak and graph.nodes[i].args]
    shown = EinsumGraph(graph.nodes, [(f"n{i}", i) for i in every], graph.constants)
    for i, value in zip(every, runner.execute(shown, inputs), strict=True):
        if value.dtype.kind == "f" and np.isnan(value).any():
            count = int(np.isnan(value).sum())
            problem = f"{describe(graph.nodes[i].op)} makes {count} NaN of {value.size}"
            hint = "an infinite slope times zero is NaN, such as of sqrt at 0: add a small number before it"
            message = f"the values are fine, but in their gradient {problem}"
            return ExecutionError(message, hint, code="E909", location=graph.nodes[i].location)
    return ExecutionError("a gradient has NaN", code="E909")
