"""The null backend: shapes and dtypes only; no arithmetic is done and no memory is used."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ir.graph import OPS
from ..ir.types import DTYPES, TensorType
from ..passes.rewrite import Pass
from ..plan.build import Step
from .base import BackendCapabilities, Device, Kernel, RunBody


class NullBackend:
    """Answers every step with zeros of the right shape and dtype that take no memory."""

    name = "null"
    passes: tuple[Pass, ...] = ()

    def capabilities(self) -> BackendCapabilities:
        """Say that nothing is computed."""
        dtypes = tuple(d for d in DTYPES if d != "bfloat16")
        return BackendCapabilities(self.name, (Device.CPU(0),), dtypes, (*OPS, "shapes_only"))

    def asarray(self, value: Any, dtype: str | None) -> Any:
        """Take what NumPy can read."""
        from .numpy import as_numpy

        return as_numpy(value, dtype)

    def guard(self) -> AbstractContextManager[Any]:
        """Nothing surrounds a run."""
        return nullcontext()

    def finish(self, value: Any, shared: bool) -> Any:
        """Return the placeholder as it is."""
        return np.asarray(value)

    def bind(self, step: Step, run_body: RunBody) -> Kernel:
        """Return a kernel that hands out placeholders."""
        results = tuple(_placeholder(t) for t in step.types)
        return lambda *args: results[0] if len(results) == 1 else results


def _placeholder(t: TensorType) -> Any:
    try:
        return np.broadcast_to(np.zeros((), t.dtype), tuple(int(d) for d in t.shape or ()))
    except ValueError:
        raise ShapeError(f"no array can have the shape {t.shape}", code="E430") from None
