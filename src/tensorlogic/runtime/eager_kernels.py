"""Single operations run at once: a kernel is chosen for each operation and types of operands, and kept.

Functions that are NumPy's own need no choosing: they are called, and only a failure is looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

import numpy as np

from ..backends.base import Kernel
from ..backends.numpy import NumpyBackend, as_numpy
from ..diagnostics import NodeExecutionDiagnostic
from ..errors import ExecutionError, OutOfMemoryError, TensorLogicError
from ..ir import ops
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import EinsumGraph, Node
from ..ir.infer import node_types
from ..ir.ops import Op
from ..ir.rules import Scope
from ..ir.types import TensorShape, TensorType, dtype_name, scalar_dtype
from ..plan.build import ExecutionPlan, Step, build_plan, describe
from ..plan.contract import contraction
from . import loop

Array = Any  # a NumPy array
SCALARS = (bool, int, float)  # exactly these are weak: a np.float64 is a float too, but has a dtype of its own
_MOST = 4096  # kernels that are kept
_BACKEND = NumpyBackend()
_kernels: dict[Any, Kernel] = {}
_idle: list[Context] = []  # contexts in which NumPy does not warn; one serves one call at a time
_UFUNCS: dict[str, Kernel] = {n: getattr(np, n) for n in FUNCTIONS if isinstance(getattr(np, n, None), np.ufunc)}


def given(x: Any) -> Array:
    """Return an operand that is no Variable and no Python scalar as an array.

    >>> given([1, 2]).shape
    (2,)
    """
    return as_numpy(x, None)


def run(op: Op, values: Sequence[Any]) -> Array:
    """Apply an operation to arrays and Python scalars; the result cannot be written to.

    >>> run(ops.Elementwise("add"), [np.ones(2), 1])
    array([2., 2.])
    """
    kernel = _UFUNCS.get(op.fn) if type(op) is ops.Elementwise else None
    try:
        context = _idle.pop()
    except IndexError:
        context = _BACKEND.context()
    try:
        if kernel is None:
            key = (op, *[type(v) if type(v) in SCALARS else (v.shape, v.dtype) for v in values])
            kernel = _kernels.get(key)
            if kernel is None:
                kernel = _bound(op, values)
                if len(_kernels) >= _MOST:
                    _kernels.clear()
                _kernels[key] = kernel
        value = context.run(kernel, *values)
    except Exception as error:
        raise _explained(op, values, error) from (error.__cause__ if isinstance(error, TensorLogicError) else error)
    finally:
        _idle.append(context)
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    value.setflags(write=False)
    return value


def type_of(value: Any) -> TensorType:
    """Return the type of an operand.

    >>> str(type_of(np.ones(2))), type_of(2.0).weak
    ('float64[2]', True)
    """
    if type(value) in SCALARS:
        return TensorType(TensorShape(), scalar_dtype(value), True)
    return TensorType(TensorShape(value.shape), dtype_name(value.dtype))


def _inferred(op: Op, types: Sequence[TensorType]) -> TensorType:
    scope = Scope(len(types), lambda n: str(types[n]), tuple(range(len(types))), [])
    return node_types(op, [(t,) for t in types], scope)[0]


def _bound(op: Op, values: Sequence[Any]) -> Kernel:
    """Choose the kernel of an operation, or raise what is wrong with its operands."""
    types = tuple(type_of(v) for v in values)
    result = _inferred(op, types)
    if isinstance(op, ops.Einsum) and len(types) > 2:
        return _several(op, types, result)
    form = None
    if isinstance(op, ops.Einsum | ops.ContractVJP):
        factors = types if isinstance(op, ops.Einsum) else types[:-2]
        form = contraction(op.spec, op.algebra, [t.shape or () for t in factors])  # type: ignore[misc]
    reads = tuple(range(len(types)))
    step = Step(0, op, reads, (len(types),), (), types, (result,), 0, 0, "cpu:0", None, form)
    return _BACKEND.bind(step, _no_bodies)


def _several(op: ops.Einsum, types: Sequence[TensorType], result: TensorType) -> Kernel:
    """Return a contraction of many factors as the plan that takes them in a good order."""
    dtypes = [result.dtype if t.weak else None for t in types]
    known = {f"x{n}": t._replace(dtype=d or t.dtype, weak=False) for n, (t, d) in enumerate(zip(types, dtypes, strict=True))}  # fmt: skip
    nodes = [Node(ops.Input(name, tuple(t.shape or ()), t.dtype)) for name, t in known.items()]
    graph = EinsumGraph([*nodes, Node(op, tuple(range(len(nodes))))], [("y", len(nodes))])
    program = loop.bind(build_plan(graph, known, passes=_BACKEND.passes), _BACKEND)
    return lambda *xs: loop.run(program, [np.asarray(x, d) for x, d in zip(xs, dtypes, strict=True)])[0]


def _no_bodies(plan: ExecutionPlan) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    raise AssertionError("operations that run at once have no bodies")


def _explained(op: Op, values: Sequence[Any], error: Exception) -> Exception:
    """Return what inference has to say about the operands, and where they are fine what failed."""
    if isinstance(error, TensorLogicError):
        return error
    types = [type_of(v) for v in values]
    try:
        _inferred(op, types)
    except TensorLogicError as found:
        return found
    kind = OutOfMemoryError if isinstance(error, MemoryError) else ExecutionError
    text = str(error) or type(error).__name__
    return kind.of(NodeExecutionDiagnostic.create(0, describe(op), text, [str(t) for t in types]))
