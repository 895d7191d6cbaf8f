"""Execution strategies: several ways to run a graph."""

from __future__ import annotations

import os
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from ..backends.base import Backend, InPlaceBackend, Kernel, RunBody, get_backend
from ..backends.threads import on_one_thread
from ..diagnostics import bytes_text
from ..errors import expect
from ..ir import ops
from ..passes.pipeline import OptimizationLevel
from ..plan.build import Step
from ..tables import table
from .executor import Executor


class ExecutionMode(Enum):
    """How a graph is executed: planned as a whole, operation by operation, or compiled to machine code.

    >>> [mode.name for mode in ExecutionMode]
    ['GRAPH', 'EAGER', 'JIT']
    """

    GRAPH = "graph"  # planned whole, then run step by step
    EAGER = "eager"  # every operation as it is written: no passes, no buffers in common
    JIT = "jit"  # native code, compiled when a graph first runs with some shapes


class PrecisionMode(Enum):
    """The dtype of inputs that declare none. No strategy changes a dtype: that would change the answer.

    >>> PrecisionMode.FP32.dtype
    'float32'
    """

    FP16 = "float16"
    BF16 = "bfloat16"
    FP32 = "float32"
    FP64 = "float64"

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return self.value


class MemoryStrategy(Enum):
    """Where steps put their results.

    >>> [strategy.name for strategy in MemoryStrategy]
    ['OPTIMIZE', 'SEPARATE']
    """

    OPTIMIZE = "optimize"  # into buffers of the plan, which serve again in the same run and in the next one
    SEPARATE = "separate"  # each into memory of its own, which goes back to the system after its last reader


class ParallelismStrategy(Enum):
    """What to use threads for.

    >>> [strategy.name for strategy in ParallelismStrategy]
    ['AUTO', 'SINGLE', 'STEPS']
    """

    AUTO = "auto"  # products: as many as BLAS is set to
    SINGLE = "single"  # nothing: a product takes one, so that runs on several threads do not get in each other's way
    STEPS = "steps"  # steps that do not wait for each other: Executor(threads=cores), where that is faster


class GradientStrategy(Enum):
    """What a gradient does with the values of the forward run; running a graph forward does not depend on it.

    >>> [strategy.name for strategy in GradientStrategy]
    ['EAGER', 'KEEP', 'RECOMPUTE', 'BUDGETED']
    """

    EAGER = "eager"  # of a scalar, the gradient is computed along with it; otherwise as KEEP
    KEEP = "keep"  # every value that the gradient reads
    RECOMPUTE = "recompute"  # contractions, sorts and loops; the rest is computed again
    BUDGETED = "budgeted"  # as many as fit a budget of bytes, the rest again


class Trial(NamedTuple):
    """One way to run a graph, and what it took: seconds a run (None: not timed) and planned peak bytes."""

    compared: str  # what the trials it is measured against have otherwise
    level: OptimizationLevel
    memory: MemoryStrategy
    parallelism: ParallelismStrategy
    seconds: float | None
    peak_bytes: int
    runs: int
    chosen: bool = False
    mode: ExecutionMode = ExecutionMode.GRAPH


class ExecutionStrategy(msgspec.Struct, frozen=True):
    """A choice of mode, level, memory and threads; :meth:`executor` makes an executor with it, :meth:`explain` says why it was chosen.

    >>> from tensorlogic import GraphBuilder
    >>> strategy = ExecutionStrategy(memory=MemoryStrategy.SEPARATE)
    >>> b = GraphBuilder()
    >>> strategy.executor().execute(b.build(y=b.relu(b.input("x", (2,)))), {"x": [-1.0, 1.0]})["y"]
    array([0., 1.])
    >>> print(strategy.explain())
    graph mode, level standard, memory separate, parallelism auto, precision float32, gradient eager
    chosen by hand; nothing was measured
    """

    mode: ExecutionMode = ExecutionMode.GRAPH
    precision: PrecisionMode = PrecisionMode.FP32
    memory: MemoryStrategy = MemoryStrategy.OPTIMIZE
    parallelism: ParallelismStrategy = ParallelismStrategy.AUTO
    gradient: GradientStrategy = GradientStrategy.EAGER
    optimization_level: OptimizationLevel = OptimizationLevel.STANDARD
    trials: tuple[Trial, ...] = ()
    reasons: tuple[str, ...] = ("chosen by hand; nothing was measured",)

    def __post_init__(self) -> None:
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if isinstance(default, Enum):
                kind = type(default)
                hint = f"write {kind.__name__}.{default.name}; there are {', '.join(kind.__members__)}"
                expect(getattr(self, name), kind, f"{name} is of {kind.__name__}", hint)

    def executor(self, backend: str | Backend = "numpy") -> Executor:
        """Return an executor that runs graphs this way."""
        as_written = self.mode is ExecutionMode.EAGER
        executor = Executor(
            _tuned(get_backend(backend), as_written or self.memory is MemoryStrategy.SEPARATE, self.parallelism),
            optimization_level=OptimizationLevel.NONE if as_written else self.optimization_level,
            threads=(os.cpu_count() or 1) if self.parallelism is ParallelismStrategy.STEPS else 1,
            native=self.mode is ExecutionMode.JIT,
        )
        executor.gradient = self.gradient
        return executor

    def explain(self) -> str:
        """Return the strategy in words, with a table of what was measured and why this one was chosen."""
        words = (
            f"{self.mode.value} mode, level {self.optimization_level.name.lower()}, memory {self.memory.value}, "
            f"parallelism {self.parallelism.value}, precision {self.precision.value}, gradient {self.gradient.value}"
        )
        rows = [
            [
                t.compared,
                t.mode.value,
                t.level.name.lower(),
                t.memory.value,
                t.parallelism.value,
                "" if t.seconds is None else f"{t.seconds * 1e6:,.1f} µs",
                str(t.runs),
                bytes_text(t.peak_bytes),
                "chosen" if t.chosen else "",
            ]
            for t in self.trials
        ]
        head = ["compared", "mode", "level", "memory", "threads", "time", "runs", "peak", ""]
        return "\n".join([words, *([table(head, rows, right={5, 6, 7})] if rows else []), *self.reasons])

    __str__ = explain


def _tuned(backend: Backend, separate: bool, parallelism: ParallelismStrategy) -> Backend:
    """Return the same engine, told not to write results into shared buffers, or to run products on one thread."""
    changes: dict[str, Any] = {}
    if separate:
        able = backend.capabilities()
        plain = able._replace(features=tuple(f for f in able.features if f != "in_place"))
        changes["capabilities"] = lambda: plain
    if parallelism is ParallelismStrategy.SINGLE:

        def single(step: Step, kernel: Kernel) -> Kernel:
            return on_one_thread(kernel) if isinstance(step.op, ops.Einsum | ops.ContractVJP) else kernel

        def bind(step: Step, run_body: RunBody) -> Kernel:
            return single(step, backend.bind(step, run_body))

        changes["bind"] = bind
        if isinstance(backend, InPlaceBackend):
            into = backend.bind_into
            changes["bind_into"] = lambda step: single(step, into(step))
    if not changes:
        return backend
    public = {name: getattr(backend, name) for name in dir(backend) if not name.startswith("_")}
    own: Any = SimpleNamespace(**public | changes)
    tuned: Backend = own
    return tuned
