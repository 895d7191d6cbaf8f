"""Memory of a graph before it runs: the peak, and when each tensor is alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..diagnostics import bytes_text
from ..errors import InputError, expect
from ..ir import ops
from ..ir.check import require_valid
from ..ir.graph import EinsumGraph
from ..ir.types import dtype_name
from ..passes.for_numpy import order_contractions
from ..passes.pipeline import OptimizationLevel, passes_of
from ..passes.rewrite import Pass
from ..passes.specialize import DTYPE, input_types
from ..tables import counted, table
from .build import ExecutionPlan, build_plan
from .cost import nbytes
from .memory import lifetimes, peak_bytes

_BAR = 32  # columns, at most


class Lifetime(NamedTuple):
    """One tensor that a step makes: the first and last step it is alive at, and its bytes.

    The last step of an output is one past the last, when the caller has it.
    """

    name: str
    first: int
    last: int
    nbytes: int


class MemoryEstimate(NamedTuple):
    """What a run will take; it prints as a table with a bar for the steps at which each tensor is alive.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w = b.input("x", ("n", 784)), b.input("w", (784, 10))
    >>> print(tl.MemoryEstimator().estimate(b.build(y=b.relu(x @ w)), sizes={"n": 64}))
    tensor    bytes  steps  alive
    %2      2.5 KiB  0-1    ██·
    y       2.5 KiB  1-end  ·██
    peak 5.0 KiB in 2 steps, beside 226.6 KiB of inputs; outputs 2.5 KiB
    """

    peak_bytes: int  # results of steps and what they need while running, the most at once
    input_bytes: int
    constant_bytes: int
    output_bytes: int
    lifetimes: tuple[Lifetime, ...]
    steps: int

    @property
    def peak_memory_mb(self) -> float:
        """The peak in millions of bytes; inputs and constants are the caller's and not in it."""
        return self.peak_bytes / 1e6

    @property
    def total_bytes(self) -> int:
        """The peak together with the inputs and constants."""
        return self.peak_bytes + self.input_bytes + self.constant_bytes

    def table(self, limit: int | None = 60) -> str:
        """Return the tensors in the order of their steps; of many, the largest."""
        shown: Sequence[Lifetime] = self.lifetimes
        if limit is not None and len(shown) > max(0, limit):
            large = sorted(range(len(shown)), key=lambda n: -shown[n].nbytes)[: max(0, limit)]
            shown = [self.lifetimes[n] for n in sorted(large)]
        rows = [
            [t.name, bytes_text(t.nbytes), f"{t.first}-{'end' if t.last >= self.steps else t.last}", self._bar(t)]
            for t in shown
        ]
        left = len(self.lifetimes) - len(rows)
        if left:
            rows.append([f"... {left:,} smaller", "", "", ""])
        lines = [table(["tensor", "bytes", "steps", "alive"], rows, right={1})] if rows else []
        given = {"inputs": self.input_bytes, "constants": self.constant_bytes}
        beside = " and ".join(f"{bytes_text(n)} of {what}" for what, n in given.items() if n)
        peak = f"peak {bytes_text(self.peak_bytes)} in {counted(self.steps, 'step')}"
        around = f", beside {beside}" if beside else ""
        return "\n".join([*lines, f"{peak}{around}; outputs {bytes_text(self.output_bytes)}"])

    def _bar(self, t: Lifetime) -> str:
        """Draw the steps as a line, filled where the tensor is alive; one more column stands for the end."""
        count = self.steps + 1
        width = min(_BAR, count)
        first, last = t.first * width // count, min(t.last, self.steps) * width // count
        return "·" * first + "█" * (last - first + 1) + "·" * (width - last - 1)

    def __str__(self) -> str:
        return self.table()


class MemoryEstimator:
    """Says how much memory a graph needs before it runs, from its plan.

    ``passes`` are what is done to the graph before it is planned, and ``in_place`` tells whether steps write into buffers
    that are used again; the defaults are what an :class:`Executor` does on NumPy. Inputs that declare no dtype and are not
    given are taken for ``dtype``. Packed bits and kernels may take less: ``executor.plan(graph, inputs).peak_bytes`` counts them.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", ("n", "n"))
    >>> estimate = MemoryEstimator().estimate(b.build(y=x @ x + 1), sizes={"n": 200})
    >>> estimate.peak_memory_mb
    0.16
    >>> estimate.lifetimes[0]
    Lifetime(name='%1', first=0, last=1, nbytes=160000)
    """

    def __init__(self, passes: Sequence[Pass] | None = None, *, dtype: str = DTYPE, in_place: bool = True) -> None:
        hint = "write passes=()"
        expect(() if passes is None else passes, Iterable, "passes= are functions from a graph to a graph", hint)
        default = (*passes_of(OptimizationLevel.STANDARD, differentiable=False), order_contractions)
        self.passes = default if passes is None else tuple(passes)
        self.dtype = dtype_name(dtype)
        self.in_place = in_place

    def estimate(
        self,
        graph: EinsumGraph | ExecutionPlan,
        inputs: Mapping[str, Any] | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> MemoryEstimate:
        """Return what a run on given inputs will take; without them, for the declared types and ``sizes``.

        An input is an array or a :class:`TensorType`. A plan, such as ``executor.plan(graph, inputs)``, is taken as it is.
        """
        if isinstance(graph, ExecutionPlan):
            if inputs is not None or sizes is not None:
                hint = "give the plan alone: estimate(plan)"
                raise InputError("a plan has its inputs and sizes already", hint, code="E337")
            return estimate_plan(graph)
        expect(graph, EinsumGraph, "an EinsumGraph or a plan is expected", "build one: b.build(y=y)")
        require_valid(graph)
        types = input_types(graph, inputs, sizes, self.dtype)
        return estimate_plan(build_plan(graph, types, sizes, passes=self.passes, in_place=self.in_place))


def estimate_plan(plan: ExecutionPlan) -> MemoryEstimate:
    """Return what a plan will take."""
    names = plan.slot_names()
    size = {slot: nbytes(t) for step in plan.steps for slot, t in zip(step.writes, step.types, strict=True)}
    spans = sorted(lifetimes(plan).items(), key=lambda entry: (entry[1], entry[0]))
    return MemoryEstimate(
        peak_bytes(plan),
        sum(nbytes(t) for _, _, t in plan.inputs),
        sum(dict(_constants(plan)).values()),
        sum(nbytes(t) for _, _, t in plan.outputs),
        tuple(Lifetime(names[slot], first, last, size[slot]) for slot, (first, last) in spans),
        len(plan.steps),
    )


def _constants(plan: ExecutionPlan) -> Iterator[tuple[str, int]]:
    for _, op in plan.constants:
        if isinstance(op, ops.Constant):
            yield op.digest, int(plan.graph.constants[op.digest].nbytes)
    for step in plan.steps:
        for body in step.bodies:
            yield from _constants(body)
