"""Tapes: what was computed eagerly, as a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from ...diagnostics import value_text
from ...errors import GraphError, InputError
from ...ir import ops
from ...ir.graph import EinsumGraph, Node
from ...ir.ops import add_constant
from ...ir.types import dtype_name
from ...passes.grad_tape import unused
from ...store import of_one_process
from ..compile import CompiledGraph
from ..executor import Executor
from ..recompute import operands_first
from .kernels import SCALARS
from .record import Leaf, Mode, Record, enter, leave, mode
from .variable import Variable


class EagerTape:
    """Records what is computed with variables inside ``with``, and returns it as an ``EinsumGraph``.

    Variables are recorded for gradients with or without a tape. A tape holds no values: what nobody holds any more is not
    in its graph.

    >>> w = Variable([1.0, 2.0], name="w")
    >>> with EagerTape() as tape:
    ...     loss = (w * w).sum()
    >>> print(tape.graph(loss=loss))
    graph {
      w: float64[2] = input()
      %1: float64[2] = multiply(w, w)
      %2: float64[] = sum(%1)
      return loss=%2
    }
    >>> tape.compile()({"w": [3.0, 4.0]})["y"]
    array(25.)
    """

    def __init__(self) -> None:
        self._made: WeakValueDictionary[int, Variable] = WeakValueDictionary()
        self._numbers = count()

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a tape", "keep what it recorded: tape.graph(y=y)")

    def __enter__(self) -> EagerTape:
        now = mode.get()
        enter(Mode(now.on, (*now.tapes, self)))
        return self

    def __exit__(self, *_: object) -> None:
        leave()

    def note(self, variable: Variable) -> None:
        """Take note of a variable that was computed."""
        self._made[next(self._numbers)] = variable

    def variables(self) -> list[Variable]:
        """Return what was computed and is still held by someone, oldest first."""
        return list(self._made.values())

    def variable(self, value: Any, *, requires_grad: bool | None = None) -> Variable:
        """Return a value whose operations are recorded."""
        return Variable(value, requires_grad=requires_grad)

    def backward(self, variable: Variable, grad: Any = None) -> None:
        """Fill in the gradients of all that a variable was computed from."""
        from .backward import backward

        backward(variable, grad)

    def graph(self, **outputs: Variable) -> EinsumGraph:
        """Return the graph of some variables by name; of none, of all that nothing else was computed from."""
        if not outputs:
            alive = self.variables()
            records = operands_first([v._record for v in alive], Record.operands)
            read = {a for record in records for a in record.operands()}
            ends = [v for v in alive if v._record not in read]
            if not ends:
                hint = "compute inside `with tape:`, and keep the result"
                raise GraphError("nothing that was computed on this tape is still there", hint, code="E910")
            taken = {v.name for v in ends if v.name}
            single = len(ends) == 1
            unnamed = (f"y{n}" for n in range(len(ends) + len(taken)) if f"y{n}" not in taken)
            outputs = {v.name or ("y" if single else next(unnamed)): v for v in ends}
        return record_graph(outputs)

    def compile(self, executor: Executor | None = None, **outputs: Variable) -> CompiledGraph:
        """Return the same as a compiled graph."""
        return (executor or Executor()).compile_graph(self.graph(**outputs))

    def __len__(self) -> int:
        return len(self.variables())

    def __repr__(self) -> str:
        return f"<EagerTape of {len(self)} variables>"


def record_graph(outputs: Mapping[str, Any], inputs: Sequence[Variable] = ()) -> EinsumGraph:
    """Return the graph of recorded variables; leaves are inputs, ``inputs`` first, and arrays constants.

    >>> x = Variable(2.0, name="x")
    >>> record_graph({"y": x * x})
    <EinsumGraph (x) -> (y): 2 nodes>
    """
    nodes: list[Node] = []
    number: dict[Record, int] = {}
    known: dict[Any, int] = {}
    constants: dict[str, Any] = {}
    labels = {v._record: v.name for v in inputs}
    taken = {name for name in labels.values() if name}

    def add(op: Any, args: tuple[int, ...], places: tuple[Any, ...] = ()) -> int:
        at = known.get((op, args))
        if at is None:
            at = known[op, args] = len(nodes)
            nodes.append(Node(op, args, places))
        return at

    def leaf(record: Leaf) -> int:
        name = labels.get(record)
        if name is None:
            name = unused(record.name or f"x{len(taken)}", taken)
        t = record.value
        return add(ops.Input(name, t.shape, dtype_name(t.dtype)), ())

    def operand(a: Any) -> int:
        if isinstance(a, Record):
            return number[a]
        if type(a) in SCALARS:
            return add(ops.Literal.of(a), ())
        return add(add_constant(constants, a), ())

    for v in inputs:
        assert type(v._record) is Leaf  # they were just made
        number[v._record] = leaf(v._record)
    found: list[tuple[str, int]] = []
    for name, v in outputs.items():
        if isinstance(v, np.ndarray | np.generic | float | int):
            found.append((name, operand(np.asarray(v))))
            continue
        if not isinstance(v, Variable):
            hint = "compute it from tl.Variable(array)"
            raise GraphError(f"output {name!r} must be a Variable, got {type(v).__name__}", hint, code="E910")
        for record in operands_first([v._record], lambda r: [a for a in r.operands() if a not in number]):
            if record in number:
                continue
            if record.op is None:  # what was computed before the tape has no name to be given by
                number[record] = leaf(record) if type(record) is Leaf else operand(record.value)
            else:
                args = tuple([operand(a) for a in record.args])
                number[record] = add(record.op, args, () if record.place is None else (record.place,))
        found.append((name, number[v._record]))
    return EinsumGraph(nodes, found, constants)


def graph_of(fn: Callable[..., Any], *examples: Any) -> EinsumGraph:
    """Return the graph of a function of arrays: it runs once on variables of the examples, and what it computes is noted.

    Inputs are named after the parameters; an example may be a list, a tuple or a dict of arrays, whose inputs are named
    ``params.w``. Variables that the function finds elsewhere are inputs too, arrays are constants. What it returns is the
    output ``y``, or ``y0``, ``y1``, ... of a sequence; a dict names its own. An ``if`` in it takes the way of the examples.

    >>> graph = graph_of(lambda x: {"mean": x.mean(), "top": x.max()}, np.ones(3))
    >>> graph
    <EinsumGraph (x) -> (mean, top): 3 nodes>
    """
    if not callable(fn):
        raise InputError(f"a function is expected, got {value_text(fn)}", "write graph_of(fn, x)", code="E301")
    inputs: list[Variable] = []
    arguments = [_variables(x, name, inputs) for x, name in zip(examples, _names(fn, len(examples)), strict=True)]
    with EagerTape():
        result = fn(*arguments)
    if isinstance(result, Mapping):
        outputs: dict[str, Any] = {str(k): v for k, v in result.items()}
    elif isinstance(result, tuple | list):
        outputs = {f"y{n}": v for n, v in enumerate(result)}
    else:
        outputs = {"y": result}
    if not outputs:
        raise GraphError("the function returned nothing", "return what it computes", code="E910")
    return record_graph(outputs, inputs)


def _names(fn: Callable[..., Any], count: int) -> list[str]:
    """Return names for the first parameters of a function."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions do not say
        return [f"x{n}" for n in range(count)]
    try:
        bound = signature.bind(*range(count)).arguments
    except TypeError:
        takes = ", ".join(signature.parameters) or "nothing"
        raise InputError(f"the function takes {takes}, but {count} examples are given", code="E911") from None
    several = {p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL}
    return [
        f"{name}{n}" if name in several else name
        for name, given in bound.items()
        for n in range(len(given) if name in several else 1)
    ]


def _variables(x: Any, name: str, inputs: list[Variable]) -> Any:
    """Return an example with each of its arrays as a variable."""
    if isinstance(x, Mapping):
        return {k: _variables(v, f"{name}.{k}", inputs) for k, v in x.items()}
    if isinstance(x, tuple | list) and any(isinstance(v, np.ndarray | Variable | tuple | list | Mapping) for v in x):
        return type(x)([_variables(v, f"{name}.{n}", inputs) for n, v in enumerate(x)])
    inputs.append(Variable(x, name=name))
    return inputs[-1]
