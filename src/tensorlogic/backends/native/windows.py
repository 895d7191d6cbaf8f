"""Kernels of windows: copied side by side, and added up where they overlap, run of memory by run of memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...ir.types import TensorShape, TensorType, dims
from ...plan.build import Step
from ...plan.fused_steps import Fused
from ...plan.window_groups import links_of, runs_of
from ..base import Kernel
from ..threads import share
from .build import compiled

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
def kernel(a0, o0, c, m, s, lo, hi):
    for i in range(lo, hi):
        y = o0[i * s:i * s + s]
        for j in range(s):
            y[j] = 0
        for r in range(c.size):
            k = i * s + c[r]
            x, y = a0[(i * c.size + r) * m:(i * c.size + r) * m + m], o0[k:k + m]
            for j in range(m):
                y[j] += x[j]
"""


def bind_windows(step: Step) -> Kernel | None:
    """Return the kernel of a step that copies windows or adds them up."""
    assert isinstance(step.op, Fused)
    runs = runs_of(links_of(step))
    if runs is None:
        return None
    shape, dtype = dims(step.types[0]), np.dtype(step.types[0].dtype or "float64")
    # arrays are given as lines, so that one kernel serves every rank
    line = [TensorType(TensorShape((1,)), dtype.name)]
    native = compiled(COPY if step.op.kind == "windows" else ADD, line, line, 4, listed=True)
    starts, length, example, count = runs
    threads = max(step.threads, 1)

    def run(x: Array, out: Array = None) -> Array:
        out = np.empty(shape, dtype) if out is None else out
        share(partial(native, x.reshape(-1), out.reshape(-1), starts, length, example), count, threads)
        return out

    return run
