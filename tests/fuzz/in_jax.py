"""Graphs on JAX, operation by operation: an answer and a gradient that owe nothing to ours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Cond, Fixpoint, Scan

NAMED = {"sigmoid": jax.nn.sigmoid, "erf": jax.scipy.special.erf, "relu": jax.nn.relu, "step": lambda x: (x > 0) * 1.0}


def outputs(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> list[Any]:
    """Return the outputs of a graph whose sizes are integers, on JAX."""
    values: list[Any] = []
    for node in graph.nodes:
        op, args = node.op, [values[a] for a in node.args]
        values.append(inputs[op.label] if isinstance(op, ops.Input) else result(graph, op, args))
    return [values[i] for _, i in graph.outputs]


def result(graph: tl.EinsumGraph, op: Any, args: list[Any]) -> Any:
    match op:
        case ops.Constant():
            return jnp.asarray(graph.constants[op.digest])
        case ops.Literal():
            return op.value
        case ops.Iota():
            return jnp.arange(op.size, dtype=op.dtype)
        case ops.Einsum(algebra="real"):
            return jnp.einsum(op.spec, *args)
        case ops.Elementwise():
            return (NAMED.get(op.fn) or getattr(jnp, op.fn))(*args)
        case ops.Reduce():
            return getattr(jnp, op.kind)(args[0], axis=op.axes, keepdims=op.keepdims)
        case ops.Cumulate(kind="sum"):
            x = jnp.flip(args[0], op.axis) if op.reverse else args[0]
            x = jnp.cumsum(x, op.axis)
            return jnp.flip(x, op.axis) if op.reverse else x
        case ops.Slice():
            x = args[0]
            for axis, (start, count, step) in enumerate(op.ranges):
                x = jnp.take(x, np.arange(count) * step + start, axis)
            return x
        case ops.Reshape():
            return jnp.reshape(args[0], op.shape)
        case ops.Transpose():
            return jnp.transpose(args[0], op.order)
        case ops.Broadcast():
            shape = [1] * len(op.shape)
            for axis, size in zip(op.axes, args[0].shape, strict=True):
                shape[axis] = size
            return jnp.broadcast_to(jnp.reshape(args[0], shape), op.shape)
        case ops.Window():
            count = (args[0].shape[op.axis] - (op.size - 1) * op.dilation - 1) // op.step + 1
            parts = [jnp.take(args[0], np.arange(count) * op.step + k * op.dilation, op.axis) for k in range(op.size)]
            return jnp.stack(parts, -1)
        case ops.OverlapAdd():
            x, axis = jnp.moveaxis(args[0], (op.axis, -1), (0, 1)), op.axis
            index = np.arange(x.shape[0])[:, None] * op.step + np.arange(x.shape[1]) * op.dilation
            return jnp.moveaxis(jnp.zeros((op.length, *x.shape[2:]), x.dtype).at[index].add(x), 0, axis)
        case ops.Pad():
            return jnp.pad(args[0], op.widths, constant_values=args[1])
        case ops.Concat():
            return jnp.concatenate(args, op.axis)
        case ops.Gather():
            return _row_by_row(lambda x, i: jnp.take(x, i, op.axis - op.batch), op.batch)(*map(jnp.asarray, args))
        case ops.ScatterAdd():
            index = (slice(None),) * (op.axis - op.batch)
            added = _row_by_row(lambda x, i, y: x.at[(*index, i)].add(y), op.batch)
            return added(*map(jnp.asarray, args))
        case ops.Cast():
            return jnp.asarray(args[0]).astype(op.dtype)
        case ops.Same():
            return args[0]
        case ops.Item():
            return args[0][op.index]
        case Cond():
            names = list(op.then.inputs)
            one, other = (outputs(g, dict(zip(names, args[1:], strict=True))) for g in (op.then, op.otherwise))
            chosen = [jnp.where(args[0], a, c) for a, c in zip(one, other, strict=True)]
            return chosen[0] if len(chosen) == 1 else chosen
        case Fixpoint(combine="replace", tolerance=0.0):
            names, rest = list(op.body.inputs), args[op.carries :]

            def again(c: Any, _: Any) -> Any:
                return outputs(op.body, dict(zip(names, [*c, *rest], strict=True))), None

            settled, _ = jax.lax.scan(
                again, args[: op.carries], length=100
            )  # random bodies at least halve what is left
            return settled[0] if len(settled) == 1 else settled
        case Scan():
            names = list(op.body.inputs)
            carries, rows, rest = (
                args[: op.carries],
                args[op.carries : op.carries + op.scanned],
                args[op.carries + op.scanned :],
            )

            def step(c: Any, x: Any) -> Any:
                out = outputs(op.body, dict(zip(names, [*c, *x, *rest], strict=True)))
                return out[: op.carries], out[op.carries :]

            last, out = jax.lax.scan(step, list(carries), list(rows), reverse=op.reverse)
            both = [*last, *out]
            return both[0] if len(both) == 1 else both
    raise NotImplementedError(str(op))


def _row_by_row(function: Any, axes: int) -> Any:
    """Return a function that goes along the first axes of all its operands."""
    return jax.vmap(_row_by_row(function, axes - 1)) if axes else function
