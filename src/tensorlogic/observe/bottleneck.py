"""Where the time goes, what limits the speed, and which option would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..diagnostics import value_text
from ..errors import InputError, expect
from ..ir.elementwise import FUNCTIONS
from ..ir.types import INTEGERS
from ..plan.machine import Machine, machine, roofline_seconds
from ..tables import html_text, table
from .profile import OpProfile, ProfileData
from .trace_names import one_line, short_names

SMALL_CALLS = 32  # a step makes no more small NumPy calls than this; one that takes no longer may be nothing but calls
HALF = 50.0  # percent that several operations must take together
WORTH = 10.0  # percent of the time that an operation must take to be worth advice
# algebras in which true and false alone combine as or-and does, so that the boolean algebra answers the same
LIKE_BOOLEAN = frozenset({"max_min", "max_product", "lukasiewicz", "noisy_or"})
# costly functions of which NumPy has no loop of its own, or a slow one; its loops of the others are as fast as machine code
SLOW_ON_NUMPY = frozenset({"sigmoid", "erf", "logaddexp"})
COSTLY = 10  # work per element that takes longer than to read and write the element
PACKED = 8_000_000  # points of a join of truth values from which packing them pays

COMPILE = "executor.compile_graph(graph, CompilationConfig(optimization_level=OptimizationLevel.AGGRESSIVE))"


class Bottleneck(NamedTuple):
    """An operation that takes a large share of the time, and what limits its speed.

    ``bound`` is ``compute`` or ``memory``, whichever takes longer on the machine's roofline, or ``overhead`` where calling
    costs more than working does. ``fraction`` is the roofline's time over the time it took: 1 is as fast as can be, and
    more than 1 means that the data stayed in a cache. Of a loop only its own time counts, not its body's.

    >>> print(Bottleneck("relu", 60.0, 1.2, 3, "memory", 0.5, "12.5 GB/s"))
    relu: 60.0% of the time, bound by memory, at 50% of the roofline
    """

    operation: str
    percentage: float
    total_time_ms: float
    calls: int
    bound: str
    fraction: float
    reached: str

    def __str__(self) -> str:
        at = "" if self.bound == "overhead" else f", at {self.fraction:.0%} of the roofline"
        return f"{one_line(self.operation)}: {self.percentage:.1f}% of the time, bound by {self.bound}{at}"


class BottleneckReport(NamedTuple):
    """The operations that take the time, longest first, and what would help; it prints as a table.

    >>> print(BottleneckReport((), (), Machine(1e11, 5e10, 1e10, 1e-6)))
    nothing takes any time
    """

    bottlenecks: tuple[Bottleneck, ...]
    recommendations: tuple[str, ...]
    machine: Machine

    def __str__(self) -> str:
        if not self.bottlenecks:
            return "nothing takes any time"
        rows = []
        for name, b in zip(short_names([b.operation for b in self.bottlenecks]), self.bottlenecks, strict=True):
            times = f"{b.percentage:.1f}%", f"{b.total_time_ms:,.3f}", f"{b.calls:,}"
            fraction = "-" if b.bound == "overhead" else f"{b.fraction:.0%}"
            rows.append([name, *times, b.bound, b.reached, fraction])
        head = ["operation", "share", "ms", "calls", "bound by", "reached", "of the roofline"]
        lines = [table(head, rows, right={1, 2, 3, 5, 6}), f"this machine: {self.machine}"]
        if self.recommendations:
            lines += ["", "Recommendations:", *(f"  - {text}" for text in self.recommendations)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(self)


class BottleneckAnalyzer:
    """Finds what takes the time of a profile, and tells compute, memory and overhead apart by the machine's roofline.

    The machine is measured once per process unless one is given; shares below ``least`` percent are left out.

    >>> matmul = OpProfile(10, 50.0, 50.0, (5.0,) * 10, flops=4_000_000_000, moved_bytes=6_000_000, dtype="float64", kernel="matmul")
    >>> relu = OpProfile(10, 50.0, 50.0, (5.0,) * 10, flops=10_000_000, moved_bytes=400_000_000, dtype="float64")
    >>> profile = ProfileData({"einsum ij,jk->ik": matmul, "relu": relu}, (10.0,) * 10)
    >>> report = BottleneckAnalyzer(Machine(200e9, 100e9, 10e9, 1e-6)).analyze(profile)
    >>> for b in report.bottlenecks:
    ...     print(b)
    einsum ij,jk->ik: 50.0% of the time, bound by compute, at 80% of the roofline
    relu: 50.0% of the time, bound by memory, at 80% of the roofline
    >>> print(report.recommendations[0])
    einsum ij,jk->ik computes in float64: inputs of float32, array.astype("float32"), are multiplied 2.0 times as fast here
    """

    def __init__(self, machine: Machine | None = None, *, least: float = 1.0) -> None:
        if not isinstance(least, int | float) or not 0 <= least <= 100:
            raise InputError(f"least= is a percentage between 0 and 100, got {value_text(least)}", code="E726")
        hint = "leave it out to measure this one, or write Machine(flops32=, flops64=, bandwidth=, call=)"
        expect(machine, (Machine, type(None)), "machine= is a Machine", hint)
        self.machine = machine
        self.least = least

    def analyze(self, profile: ProfileData) -> BottleneckReport:
        """Return the operations that take the time, and what would help."""
        hints = ("write analyze(executor.get_profile_data())", "of a trace, analyze(ProfileData.from_trace(trace))")
        expect(profile, ProfileData, "a ProfileData is expected", *hints)
        here = machine() if self.machine is None else self.machine
        ops = profile.op_profiles
        rows = [_bottleneck(name, op, profile.share(name), here) for name, op in ops.items() if op.self_time_ms > 0]
        rows = sorted((b for b in rows if b.percentage >= self.least), key=lambda b: -b.percentage)
        names = [b.operation for b in rows]
        shown = dict(zip(names, short_names(names), strict=True))
        worth = [b for b in rows if b.percentage >= WORTH]
        advice = [text for b in worth for text in _advice(b, ops[b.operation], here, shown[b.operation])]
        joint = [] if profile.compiled else list(_advice_to_compile(rows, ops, shown, len(profile.run_times_ms)))
        joint += _advice_on_calls(rows, ops, shown)
        return BottleneckReport(tuple(rows), tuple(dict.fromkeys([*advice, *joint])), here)


def _bottleneck(name: str, op: OpProfile, percentage: float, here: Machine) -> Bottleneck:
    took = op.self_time_ms / 1e3
    least = roofline_seconds(op.flops, op.moved_bytes, here, op.dtype)
    calls = op.count * here.call
    if least < calls or (least < took / 2 and took < SMALL_CALLS * calls):
        bound, reached = "overhead", f"{took / op.count * 1e6:,.1f} µs a call"
    elif op.flops / here.flops(op.dtype) >= op.moved_bytes / here.bandwidth:
        bound, reached = "compute", f"{op.gflops_per_second:,.2f} GFLOP/s"
    else:
        bound, reached = "memory", f"{op.gb_per_second:,.2f} GB/s"
    return Bottleneck(name, percentage, op.self_time_ms, op.count, bound, least / took, reached)


def _advice(b: Bottleneck, op: OpProfile, here: Machine, name: str) -> Iterator[str]:
    """Say what would help one operation: another dtype, or another algebra."""
    multiplies, gain = op.kernel == "matmul" and b.bound != "overhead", here.flops32 / here.flops64
    narrower = f'{name} computes in float64: inputs of float32, array.astype("float32"), '
    if op.dtype == "float64" and b.bound == "memory":
        yield narrower + "move half the bytes"
    elif op.dtype == "float64" and multiplies and gain >= 1.2:
        yield narrower + f"are multiplied {gain:.1f} times as fast here"
    elif op.dtype in INTEGERS and multiplies and b.fraction <= 0.5:
        advice = f"{name} multiplies {op.dtype} without BLAS, at {b.fraction:.0%} of what this machine can do: "
        yield advice + 'inputs of float64, array.astype("float64"), are exact up to 2**53'
    elif op.dtype == "float16" and multiplies:
        yield f'{name} converts float16 to float32 and back at every call: give array.astype("float32")'
    if op.kernel == "blocks" and b.operation.rpartition("(")[2].removesuffix(")") in LIKE_BOOLEAN:
        advice = f"{name} has no matrix form: where its inputs are only true or false, "
        yield advice + 'strategy="hard_boolean", or algebra="boolean" in an einsum, makes it a matrix product'


def _advice_to_compile(
    rows: Sequence[Bottleneck], ops: dict[str, OpProfile], shown: dict[str, str], runs: int
) -> Iterator[str]:
    """Say what machine code would do at once or otherwise: many element-wise steps, joins of truth values, a scan."""
    maps = [b for b in rows if _fuses(b, ops[b.operation])]
    share, names = _together(maps, shown)
    if share >= HALF and (len(maps) > 1 or sum(b.calls for b in maps) >= 2 * runs > 0):
        yield f"{share:.0f}% of the time goes to element-wise steps ({names}), which compiling makes one: {COMPILE}"
    share, names = _together([b for b in rows if _packs(ops[b.operation])], shown)
    if share >= HALF:
        yield f"{share:.0f}% of the time goes to joins of truth values ({names}), which run on packed bits once compiled: {COMPILE}"
    calls = _calls(rows, ops)
    share, names = _together(calls, shown)
    if share >= HALF and any(b.operation == "scan" for b in calls):
        yield f"{share:.0f}% of the time is the cost of calls in a scan ({names}), which compiling can make one function: {COMPILE}"


def _fuses(b: Bottleneck, op: OpProfile) -> bool:
    """Tell whether the time of an operation shrinks where it is fused with others: not what a function itself takes to compute."""
    row = FUNCTIONS.get(b.operation)
    if row is None or op.kernel != "map":
        return False
    return b.bound == "overhead" or row.cost < COSTLY or row.name in SLOW_ON_NUMPY


def _packs(op: OpProfile) -> bool:
    """Tell whether an operation is a join of truth values by BLAS that is large enough for packed bits."""
    return op.kernel == "matmul" and op.dtype == "bool" and op.flops >= 2 * PACKED * op.count


def _calls(rows: Sequence[Bottleneck], ops: dict[str, OpProfile]) -> list[Bottleneck]:
    """Return the operations whose time is the cost of calls."""
    return [b for b in rows if b.bound == "overhead" and ops[b.operation].kernel not in ("view", "")]


def _advice_on_calls(rows: Sequence[Bottleneck], ops: dict[str, OpProfile], shown: dict[str, str]) -> Iterator[str]:
    """Say that more rows for each call would help."""
    share, names = _together([b for b in _calls(rows, ops) if ops[b.operation].kernel != "loop"], shown)
    if share >= HALF:
        advice = (
            f"{share:.0f}% of the time is the cost of calls, not of work ({names}): give each execute() more rows, "
        )
        yield advice + "by a longer first axis of the inputs"


def _together(rows: Sequence[Bottleneck], shown: dict[str, str]) -> tuple[float, str]:
    """Return the share of some operations, and the names of the first few."""
    names = [shown[b.operation] for b in rows[:3]] + ["..."] * (len(rows) > 3)
    return sum(b.percentage for b in rows), ", ".join(names)
