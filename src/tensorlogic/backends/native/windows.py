"""Kernels of windows: copied side by side, and added up where they overlap, run of memory by run of memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.types import TensorShape, TensorType, dims
from ...plan.build import Step
from ...plan.fused_steps import Fused
from ...plan.window_groups import Sums, links_of, runs_of, sums_of
from ..base import Kernel
from .bind import compiled

Array = Any
COPY = """\
def kernel(a0, o0, c, m, s, lo, hi):
    for i in range(lo, hi):
        for r in range(c.size):
            k = i * s + c[r]
            x, y = a0[k:k + m], o0[(i * c.size + r) * m:(i * c.size + r) * m + m]
            for j in range(m):
                y[j] = x[j]
"""
ADD = """\
        for g in range(c[p + 1]):
            m, count, zero, end = c[p], c[q], FLOAT(-0.0) if c[q + 1] else FLOAT(0.0), q + 3 + c[q + 2] * (c[q] + 1)
            q += 3
            if count == 0:
                for k in range(q, end):
                    z = TO[w + c[k]:w + c[k] + m]
                    for j in range(m):
                        z[j] = zero
            elif count == 1:
                for k in range(q, end, 2):
                    z, x0 = TO[w + c[k]:w + c[k] + m], FROM[f + c[k + 1]:f + c[k + 1] + m]
                    for j in range(m):
                        z[j] = zero + x0[j]
            elif count == 2:
                for k in range(q, end, 3):
                    z, x0 = TO[w + c[k]:w + c[k] + m], FROM[f + c[k + 1]:f + c[k + 1] + m]
                    x1 = FROM[f + c[k + 2]:f + c[k + 2] + m]
                    for j in range(m):
                        z[j] = zero + x0[j] + x1[j]
            else:
                for k in range(q, end, count + 1):
                    z, x0 = TO[w + c[k]:w + c[k] + m], FROM[f + c[k + 1]:f + c[k + 1] + m]
                    x1, x2 = FROM[f + c[k + 2]:f + c[k + 2] + m], FROM[f + c[k + 3]:f + c[k + 3] + m]
                    for j in range(m):
                        z[j] = zero + x0[j] + x1[j] + x2[j]
                    for n in range(k + 4, k + count + 1):
                        x0 = FROM[f + c[n]:f + c[n] + m]
                        for j in range(m):
                            z[j] += x0[j]
            q = end
        p = q
"""


def bind_windows(step: Step) -> Kernel | None:
    """Return the kernel of a step that copies windows or adds them up."""
    assert isinstance(step.op, Fused)
    shape, dtype = dims(step.types[0]), np.dtype(step.types[0].dtype or "float64")
    # arrays are given as lines, so that one kernel serves every rank
    line = [TensorType(TensorShape((1,)), dtype.name)]
    if step.op.kind == "overlaps":
        return _adding(step, shape, dtype, line)
    runs = runs_of(links_of(step))
    if runs is None:
        return None
    native = compiled(COPY, line, line, 4, listed=True)
    starts, length, example, count = runs

    def run(x: Array, out: Array = None) -> Array:
        out = np.empty(shape, dtype) if out is None else out
        native(x.reshape(-1), out.reshape(-1), starts, length, example, 0, count)
        return out

    return run


def _adding(step: Step, shape: tuple[int, ...], dtype: Any, line: list[TensorType]) -> Kernel | None:
    """Return the kernel that adds windows up, axis by axis: an example goes through all of them while it is in the cache."""
    sums = sums_of(links_of(step))
    if sums is None:
        return None
    table = np.concatenate([_table(axis) for axis in sums])
    between = [axis.size for axis in sums[:-1]]
    native = compiled(_adding_text(len(sums), dtype), line, line * len(sums), 4, listed=True)
    example, size = math.prod(dims(step.arg_types[0])[1:]), sums[-1].size

    def run(x: Array, out: Array = None) -> Array:
        out = np.empty(shape, dtype) if out is None else out
        rooms = [np.empty(n, dtype) for n in between]
        native(x.reshape(-1), out.reshape(-1), *rooms, table, example, size, 0, shape[0])
        return out

    return run


def _table(axis: Sums) -> Array:
    """Return what the kernel reads of an axis: groups of runs that are sums of as many others, where each begins, and its terms."""
    first, places, after = len(axis.outer), len(axis.terms), len(axis.inner)
    starts = (axis.outer[:, None] + axis.inner).reshape(-1)
    alike: dict[tuple[int, bool], list[Array]] = {}
    for place, (terms, begun) in enumerate(zip(axis.terms, axis.begun, strict=True)):
        number = (np.arange(first)[:, None] * places + place) * after + np.arange(after)
        own = np.stack([number.reshape(-1) * axis.length, *(starts + term for term in terms)], axis=1)
        alike.setdefault((len(terms), begun), []).append(own)
    found = [np.array([axis.length, len(alike)])]
    for (count, begun), runs in alike.items():
        found += [np.array([count, begun, sum(map(len, runs))]), *(own.reshape(-1) for own in runs)]
    return np.concatenate(found).astype(np.int64)


def _adding_text(axes: int, dtype: Any) -> str:
    """Return the source for a number of axes; each has an array of its own, because loops over one that is read and written are slow."""
    rooms = [f"o{n}" for n in range(1, axes)]
    names = ", ".join(["a0", "o0", *rooms])
    lines = [f"def kernel({names}, c, s, size, lo, hi):", "    for i in range(lo, hi):", "        p = 0"]
    begins = {"a0": "i * s", "o0": "i * size"}
    for source, target in zip(["a0", *rooms], [*rooms, "o0"], strict=True):
        lines.append(f"        f, w, q = {begins.get(source, '0')}, {begins.get(target, '0')}, p + 2")
        lines.append(ADD.replace("FROM", source).replace("TO", target).replace("FLOAT", f"np.{dtype}"))
    return "\n".join(lines)
