"""Single operations run at once: a kernel is chosen for each operation and types of operands, and kept.

Functions that are NumPy's own need no choosing: they are called, and only a failure is looked into.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...backends.base import Kernel, get_backend
from ...backends.numpy import NumpyBackend, as_numpy, no_bodies
from ...diagnostics import NodeExecutionDiagnostic
from ...errors import ExecutionError, GraphError, OutOfMemoryError, TensorLogicError
from ...events import check_contexts, entered_contexts, running
from ...ir import ops, spec
from ...ir.algebra import algebra as lookup
from ...ir.elementwise import FUNCTIONS
from ...ir.graph import EinsumGraph, Node
from ...ir.ops import Op
from ...ir.type_rules import node_types, reduced_axes
from ...ir.types import Scope, TensorShape, TensorType, scalar_dtype
from ...plan.build import Step, build_plan
from ...plan.cost import contraction
from ...plan.printing import describe
from ..call import run as run_program
from ..program import bind

Array = Any  # a NumPy array
SCALARS = (bool, int, float)  # exactly these are weak: a np.float64 is a float too, but has a dtype of its own
_MOST = 4096  # kernels that are kept
_BACKEND = NumpyBackend()
_kernels: dict[Any, Kernel] = {}
_idle: list[Context] = []  # contexts in which NumPy does not warn; one serves one call at a time
_REDUCES = {"sum": np.add.reduce, "prod": np.multiply.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}
_UFUNCS: dict[str, Kernel] = {n: getattr(np, n) for n in FUNCTIONS if isinstance(getattr(np, n, None), np.ufunc)}


def operand_array(x: Any) -> Array:
    """Return an operand that is no Variable and no Python scalar as an array.

    >>> operand_array([1, 2]).shape
    (2,)
    """
    if isinstance(x, list | tuple) and _holds_variables(x):
        hint = "join them: np.stack([a, b])"
        raise GraphError("a list of variables is no array: as one, its gradient would be lost", hint, code="E902")
    return as_numpy(x, None)


def _holds_variables(x: Any) -> bool:
    """Tell whether a nested list holds something that records what is done to it."""
    return any(
        _holds_variables(y) if isinstance(y, list | tuple) else hasattr(y, "requires_grad") and hasattr(y, "_record")
        for y in x
    )


@lru_cache(4096)
def einsum_op(equation: str, algebra: str) -> ops.Einsum:
    """Return the operation of an einsum.

    >>> einsum_op("ij, jk", "max_min").spec
    'ij,jk->ik'
    """
    return ops.Einsum(str(spec.parse(equation)), lookup(algebra).name)


def run(op: Op, values: Sequence[Any]) -> Array:
    """Apply an operation to arrays and Python scalars.

    >>> run(ops.Elementwise("add"), [np.ones(2), 1])
    array([2., 2.])
    """
    if entered_contexts.get() or running.contexts:
        check_contexts()
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
    return value if type(value) is np.ndarray else np.asarray(value)


def type_of(value: Any) -> TensorType:
    """Return the type of an operand.

    >>> str(type_of(np.ones(2))), type_of(2.0).weak
    ('float64[2]', True)
    """
    if type(value) in SCALARS:
        return TensorType(TensorShape(), scalar_dtype(value), True)
    return TensorType.of(value)


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
    if isinstance(op, ops.Reduce) and op.kind in _REDUCES and result.dtype == types[0].dtype != "float16":
        reduce, axes = _REDUCES[op.kind], None if op.axes is None else reduced_axes(op, len(types[0].shape or ()))
        return partial(reduce, axis=axes, keepdims=op.keepdims)  # what np.sum comes down to
    reads = tuple(range(len(types)))
    step = Step(0, op, reads, (len(types),), (), types, (result,), 0, 0, "cpu:0", None, form)
    return _BACKEND.bind(step, no_bodies)


def _several(op: ops.Einsum, types: Sequence[TensorType], result: TensorType) -> Kernel:
    """Return a contraction of many factors as the plan that takes them in a good order."""
    dtypes = [result.dtype if t.weak else None for t in types]
    known = {
        f"x{n}": t._replace(dtype=d or t.dtype, weak=False) for n, (t, d) in enumerate(zip(types, dtypes, strict=True))
    }
    nodes = [Node(ops.Input(name, tuple(t.shape or ()), t.dtype)) for name, t in known.items()]
    graph = EinsumGraph([*nodes, Node(op, tuple(range(len(nodes))))], [("y", len(nodes))])
    program = bind(build_plan(graph, known, passes=_BACKEND.passes), get_backend("numpy"))
    return lambda *xs: run_program(program, [np.asarray(x, d) for x, d in zip(xs, dtypes, strict=True)])[0]


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
