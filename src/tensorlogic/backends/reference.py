"""The reference backend: the definition of every operation, element by element, in plain Python.

Slow on purpose. Every other backend is tested against it. :func:`evaluate` runs a graph without plan or loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from ..ir import ops
from ..ir.graph import OPS, Cond, EinsumGraph, Fixpoint, Scan, bodies, meets_others
from ..ir.ops import Op
from ..ir.types import DTYPES, FLOATS, TensorType, promote
from ..passes.rewrite import Pass
from ..passes.specialize import specialize
from ..plan.build import Step
from .base import BackendCapabilities, Device, Kernel, RunBody
from .collectives import COLLECTIVES, bind_collective, moves_anywhere
from .control import Watch, not_settled
from .numpy import as_numpy
from .reference_values import COMPUTING, Array, Definition, Index, fill, indices
from .reference_views import MOVING
from .scalars import SCALARS

Run = Callable[[Sequence[Array]], Sequence[Array]]  # of a body: the values of its inputs in, its outputs out


class ReferenceBackend:
    """Runs plans by the definitions in this module, without reordering anything.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.input("x", (2,)) * 3)
    >>> tl.Executor(backend="reference").execute(graph, {"x": [1.0, 2.0]})["y"]
    array([3., 6.])
    """

    name = "reference"
    passes: tuple[Pass, ...] = ()

    def capabilities(self) -> BackendCapabilities:
        """Say that everything is here but bfloat16, and that it is slow."""
        dtypes = tuple(d for d in DTYPES if d != "bfloat16")
        return BackendCapabilities(self.name, (Device.CPU(0),), dtypes, (*OPS, "slow"))

    def asarray(self, value: Any, dtype: str | None) -> Array:
        """Take what NumPy can read."""
        return as_numpy(value, dtype)

    def guard(self) -> AbstractContextManager[Any]:
        """Rounding to a narrower dtype may overflow to infinity without a warning."""
        return np.errstate(all="ignore")

    def finish(self, value: Any, shared: bool) -> Array:
        """Return an output as an array of its own."""
        return np.array(value)

    def bind(self, step: Step, run_body: RunBody) -> Kernel:
        """Return the definition of a step's operation; bodies run as plans, so that hooks and wrappers see their steps."""
        runs = [_arrays(run_body(body)) for body in step.bodies]

        def kernel(*args: Any) -> Any:
            results = define(step.op, [np.asarray(a) for a in args], step.arg_types, step.types, runs)
            return results[0] if len(results) == 1 else results

        return kernel


def evaluate(graph: EinsumGraph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Run a graph by the definitions alone: no plan, no slots, no order but that of the nodes."""
    arrays = {n: as_numpy(inputs[n], graph.type_of(i).dtype) for n, i in graph.inputs.items()}
    types = {n: TensorType.of(a) for n, a in arrays.items()}
    return _evaluate(specialize(graph, types), arrays)


def _evaluate(graph: EinsumGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    values: list[tuple[Array, ...]] = []
    types = graph.inference.types
    for i, node in enumerate(graph.nodes):
        op = node.op
        match op:
            case ops.Input():
                values.append((inputs[op.label],))
            case ops.Constant():
                values.append((graph.constants[op.digest],))
            case ops.Literal():
                values.append((np.asarray(op.value),))
            case ops.Item():
                values.append((values[node.args[0]][op.index],))
            case _:
                runs = [partial(_run, body) for body in bodies(op)]
                given = [types[a][0] for a in node.args]
                values.append(define(op, [values[a][0] for a in node.args], given, types[i], runs))
    return {name: values[i][0] for name, i in graph.outputs}


def define(
    op: Op, args: list[Array], given: Sequence[TensorType], types: Sequence[TensorType], runs: Sequence[Run]
) -> tuple[Array, ...]:
    """Return the results of one operation: of arrays of the ``given`` types, of ``types``, with what runs its bodies."""
    match op:
        case Fixpoint():
            return _fixpoint(op, args, types, runs[0])
        case Scan():
            return _scan(op, args, types, runs[0])
        case Cond():
            return tuple(runs[0 if args[0].item() else 1](args[1:]))
        case ops.Elementwise():
            _check_literals(op, args, given, np.dtype(types[0].dtype or "float64"))
            args = _rounded_literals(args, given, types[0].dtype)
    if isinstance(op, ops.Same):
        return (args[0],)
    return (DEFINITIONS[type(op)](op, args, types),)


def _check_literals(op: ops.Elementwise, args: list[Array], given: Sequence[TensorType], dtype: np.dtype[Any]) -> None:
    """Refuse a Python integer that does not fit the integers it is to become; a comparison makes none."""
    if dtype.kind not in "iu":
        return
    info = np.iinfo(dtype)
    for n, (x, t) in enumerate(zip(args, given, strict=True)):
        if t.weak and not (op.fn == "where" and n == 0) and not info.min <= x.item() <= info.max:
            raise OverflowError(f"Python integer {x.item()} out of bounds for {dtype}")


def _rounded_literals(args: list[Array], given: Sequence[TensorType], result: str | None) -> list[Array]:
    """Round Python's numbers to the floats they meet, as NumPy does: the 0.1 beside a float32 is the float32 nearest to it."""
    if not any(t.weak for t in given) or all(t.weak for t in given):
        return args
    dtype = result if result in FLOATS else promote((t.dtype or "float64", t.weak) for t in given)
    if dtype not in FLOATS:
        return args
    with np.errstate(over="ignore"):
        return [x.astype(dtype) if t.weak and x.dtype.kind in "iuf" else x for t, x in zip(given, args, strict=True)]


def _run(body: EinsumGraph, args: Sequence[Array]) -> list[Array]:
    return list(_evaluate(body, dict(zip(body.inputs, args, strict=True))).values())


def _arrays(run: Run) -> Run:
    return lambda values: [np.asarray(v) for v in run(values)]


def _fixpoint(op: Fixpoint, args: list[Array], types: Sequence[TensorType], run: Run) -> tuple[Array, ...]:
    join = {
        "replace": lambda old, new: new,
        "or": SCALARS["logical_or"],
        "max": SCALARS["maximum"],
        "min": SCALARS["minimum"],
    }[op.combine]
    state = args[: op.carries]
    meeting = meets_others(op.body)
    watch = Watch(meeting=meeting)
    for rounds in range(op.limit):
        new = run([*state, *args[op.carries :]])
        moved: dict[int, int] = {}
        after = []
        for n, (old, x, t) in enumerate(zip(state, new, types, strict=True)):
            joined = fill(t, _pointwise(join, old, x))
            far = sum(_far(old[i].item(), joined[i].item(), op.tolerance) for i in indices(old.shape))
            if far:
                moved[n] = far
            after.append(joined)
        state = after
        if not moves_anywhere(meeting, bool(moved)) or watch.settled(rounds, state):
            return tuple(state)
    raise not_settled(op, list(moved), list(moved.values()))


def _pointwise(join: Callable[[Any, Any], Any], old: Array, new: Array) -> Callable[[Index], Any]:
    return lambda index: join(old[index].item(), new[index].item())


def _far(a: Any, b: Any, tolerance: float) -> bool:
    if a == b or (a != a and b != b):
        return False
    return not abs(a - b) <= tolerance if isinstance(a, float) else True


def _scan(op: Scan, args: list[Array], types: Sequence[TensorType], run: Run) -> tuple[Array, ...]:
    state: Sequence[Array] = args[: op.carries]
    scanned = args[op.carries : op.carries + op.scanned]
    length = int(op.length) if op.length is not None else scanned[0].shape[0]
    rows: list[list[Array]] = [[] for _ in types[op.carries :]]
    for i in reversed(range(length)) if op.reverse else range(length):
        out = run([*state, *(x[i] for x in scanned), *args[op.carries + op.scanned :]])
        state = out[: op.carries]
        for row, value in zip(rows, out[op.carries :], strict=True):
            row.insert(0, value) if op.reverse else row.append(value)
    stacked = [
        np.array(row, t.dtype).reshape([int(d) for d in t.shape or ()])
        for row, t in zip(rows, types[op.carries :], strict=True)
    ]
    return (*state, *stacked)


def _collective(op: Any, args: list[Array], types: Sequence[TensorType]) -> Array:
    return np.asarray(bind_collective(op, (), types[0])(*args))


DEFINITIONS: dict[type[Op], Definition] = {**COMPUTING, **MOVING, **dict.fromkeys(COLLECTIVES, _collective)}
