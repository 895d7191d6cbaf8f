"""Profiles: what each operation of a trace cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from ..diagnostics import bytes_text, value_text
from ..errors import FormatError, InputError, expect
from ..ir import ops
from ..ir.types import ITEMSIZE
from ..plan.build import ExecutionPlan, Step
from ..plan.cost import nbytes
from ..tables import counted, html_text, table
from .columns import Groups, Names
from .trace import Trace
from .trace_names import operation_names, short_names
from .tracks import self_times

SAMPLES = 1001  # times kept of an operation; of more calls, this many evenly spaced quantiles
QUANTILES = np.linspace(0, 1, SAMPLES)
ROWS = 40  # of a printed table

Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[float, msgspec.Meta(ge=0)]
Times = Annotated[tuple[Time, ...], msgspec.Meta(min_length=1)]


class OpProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one operation cost in all of its calls.

    Times are whole: those of a fixpoint, scan or cond enclose its body's. ``self_time_ms`` leaves the body's steps out, so
    that the self times of a profile add up to its total. ``moved_bytes`` are operands read and results written.

    >>> op = OpProfile(3, 6.0, 6.0, (1.0, 2.0, 3.0), memory_bytes=24, peak_bytes=8, moved_bytes=6_000_000, flops=12_000_000)
    >>> op.avg_time_ms, op.min_time_ms, op.max_time_ms, op.percentile(50), op.gflops_per_second, op.gb_per_second
    (2.0, 1.0, 3.0, 2.0, 2.0, 1.0)
    """

    count: Annotated[int, msgspec.Meta(ge=1)]
    total_time_ms: Time
    self_time_ms: Time
    times_ms: Times  # sorted
    memory_bytes: Count = 0  # the results of all calls
    peak_bytes: Count = 0  # the most that one call took for its results and while it ran
    moved_bytes: Count = 0
    flops: Count = 0
    dtype: str = "float32"  # of the calls that took the most time; float32 where their plan is not known
    kernel: str = "map"  # of the same calls; empty where their plan is not known

    @property
    def avg_time_ms(self) -> float:
        """The mean time of a call."""
        return self.total_time_ms / self.count

    @property
    def min_time_ms(self) -> float:
        """The shortest call."""
        return self.times_ms[0]

    @property
    def max_time_ms(self) -> float:
        """The longest call."""
        return self.times_ms[-1]

    def percentile(self, q: float) -> float:
        """Return the time that ``q`` percent of the calls stayed within."""
        if not 0 <= q <= 100:
            raise InputError(f"a percentile is between 0 and 100, got {value_text(q)}", code="E726")
        return float(np.quantile(self.times_ms, q / 100))

    @property
    def p50_time_ms(self) -> float:
        """The median time of a call."""
        return self.percentile(50)

    @property
    def p90_time_ms(self) -> float:
        """The time that 90 percent of the calls stayed within."""
        return self.percentile(90)

    @property
    def p99_time_ms(self) -> float:
        """The time that 99 percent of the calls stayed within."""
        return self.percentile(99)

    @property
    def gflops_per_second(self) -> float:
        """The arithmetic that was reached, in 10⁹ operations a second."""
        return self.flops / self.self_time_ms / 1e6 if self.self_time_ms else 0.0

    @property
    def gb_per_second(self) -> float:
        """The traffic of memory that was reached, in 10⁹ bytes a second."""
        return self.moved_bytes / self.self_time_ms / 1e6 if self.self_time_ms else 0.0

    def __repr__(self) -> str:
        return f"<OpProfile {self.count:,} calls, {self.total_time_ms:.3f} ms, mean {self.avg_time_ms:.3f} ms>"


class ProfileData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What runs cost, operation by operation; it prints as a table, the longest first.

    Where a trace has one name for entries of several kinds, as on a CPU and a GPU, the kind stands behind: ``step (kernel)``.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", ("n", 3)) @ b.input("w", (3, 2))))
    >>> ex = tl.Executor()
    >>> ex.enable_profiling()
    >>> for _ in range(5):
    ...     out = ex.execute(graph, {"x": [[1.0, 2.0, 3.0]], "w": [[1.0, 0.0]] * 3})
    >>> profile = ex.get_profile_data()
    >>> profile.op_profiles["einsum ij,jk->ik"].count, len(profile.run_times_ms), profile.peak_memory_bytes > 0
    (5, 5, True)
    """

    op_profiles: dict[str, OpProfile] = {}
    run_times_ms: tuple[Time, ...] = ()  # of the runs that came to their end, in order
    peak_memory_bytes: Count = 0  # the most that one run takes for results, by its plan
    failed_runs: Count = 0
    compiled: bool = False  # whether all that gains by machine code runs as such already

    @classmethod
    def from_trace(cls, trace: Trace, *, compiled: bool = False) -> ProfileData:
        """Sum a trace up; of a trace that was read from a file only times are known."""
        expect(trace, Trace, "a Trace is expected", "give what stands behind as: with tl.trace() as t: ...")
        runs = trace.runs()
        plans = trace.plans()  # after the runs, so that it holds theirs while other threads go on
        bodies = body_ids(plans)
        outer = [(plans[p], times) for p, _, times in runs if id(plans[p]) not in bodies]
        whole = [times for plan, times in outer if times.shape[1] == len(plan.steps)]
        return cls(
            _op_profiles(trace),
            tuple(int((times[1] - times[0]).sum()) / 1e6 for times in whole),
            max((plan.peak_bytes for plan in {id(plan): plan for plan, _ in outer}.values()), default=0),
            len(outer) - len(whole),
            compiled,
        )

    @property
    def total_time_ms(self) -> float:
        """The time of all steps, each counted once."""
        return sum(op.self_time_ms for op in self.op_profiles.values())

    def share(self, name: str) -> float:
        """Return the percentage of the total time that an operation takes itself."""
        total = self.total_time_ms
        return 100 * self.op_profiles[name].self_time_ms / total if total else 0.0

    def to_json(self) -> str:
        """Return the profile as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> ProfileData:
        """Read a profile that :meth:`to_json` wrote; what is wrong is said with its path."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise FormatError(f"this is not a profile: {error}", code="E705") from None

    def __str__(self) -> str:
        if not self.op_profiles:
            return "no steps were profiled"
        longest = sorted(self.op_profiles.items(), key=lambda item: -item[1].self_time_ms)
        rows = []
        for shown, (name, op) in zip(short_names([name for name, _ in longest]), longest[:ROWS], strict=False):
            whole = f"{op.count:,}", f"{op.self_time_ms:,.3f}", f"{self.share(name):.1f}%"
            calls = (f"{ms * 1e3:,.1f}" for ms in (op.avg_time_ms, op.p50_time_ms, op.p99_time_ms))
            rates = (f"{rate:.2f}" for rate in (op.gflops_per_second, op.gb_per_second))
            rows.append([shown, *whole, *calls, bytes_text(op.peak_bytes), *rates])
        head = ["operation", "count", "self ms", "share", "mean µs", "p50 µs", "p99 µs", "memory", "GFLOP/s", "GB/s"]
        lines = [table(head, rows, right=range(1, len(head)))]
        if len(longest) > ROWS:
            lines.append(f"... {len(longest) - ROWS:,} more operations")
        runs = counted(len(self.run_times_ms), "run") + (f", {self.failed_runs:,} failed" if self.failed_runs else "")
        cost = f"{self.total_time_ms:,.3f} ms, peak {bytes_text(self.peak_memory_bytes)}"
        return "\n".join([*lines, f"{runs}, {cost}"])

    def __repr__(self) -> str:
        return f"<ProfileData {len(self.op_profiles)} operations, {len(self.run_times_ms):,} runs, {self.total_time_ms:.3f} ms>"

    _repr_html_ = html_text


def _op_profiles(trace: Trace) -> dict[str, OpProfile]:
    """Sum steps up by what they do, each kind of entry by itself; of those whose plan is not known, only their times."""
    steps = trace.columns()
    steps = steps.where(k.kind != "span" for k in steps.kinds)
    took, own = steps.end - steps.start, self_times(trace, steps)
    by_kind = Groups(steps.kind, len(steps.kinds))
    calls, self_ns = by_kind.counts().tolist(), by_kind.sums(own).tolist()
    keys = Names()
    ran = [keys.number((k.name, k.kind)) if n else -1 for k, n in zip(steps.kinds, calls, strict=True)]
    number, names = np.array(ran, np.intp), operation_names(list(keys))
    members: list[list[int]] = [[] for _ in names]
    for kind, name in enumerate(number.tolist()):
        if name >= 0:
            members[name].append(kind)
    by_name = Groups(number[steps.kind], len(names))
    profiles = {}
    for name, kinds, times in zip(names, members, by_name.ordered((took / 1e6).astype(np.float64)), strict=True):
        planned = [(step, calls[k], self_ns[k]) for k in kinds if (step := steps.kinds[k].step) is not None]
        longest = max(planned, key=lambda row: row[2])[0] if planned else None
        profiles[name] = OpProfile(
            len(times),
            float(times.sum()),
            sum(self_ns[k] for k in kinds) / 1e6,
            tuple((times if len(times) <= SAMPLES else np.quantile(times, QUANTILES)).tolist()),
            sum(n * step.nbytes for step, n, _ in planned),
            max((step.nbytes + step.scratch for step, _, _ in planned), default=0),
            sum(n * moved_bytes(step) for step, n, _ in planned),
            sum(n * step.flops for step, n, _ in planned),
            *(("float32", "") if longest is None else (work_dtype(longest), longest.kernel)),
        )
    return profiles


def body_ids(plans: Sequence[ExecutionPlan]) -> set[int]:
    """Return the ids of plans that are bodies of loops, at any depth."""
    inside: set[int] = set()
    waiting = list(plans)
    for plan in waiting:  # grows while it is read
        new = [body for step in plan.steps for body in step.bodies if id(body) not in inside]
        inside.update(map(id, new))
        waiting += new
    return inside


def moved_bytes(step: Step) -> int:
    """Return the least bytes that one call reads and writes; a view moves none, and a loop leaves it to its body."""
    if step.bodies or not step.nbytes:
        return 0
    if isinstance(step.op, ops.Gather):  # reads only what it takes
        return 2 * step.nbytes + sum(nbytes(t) for t in step.arg_types[1:])
    return step.nbytes + sum(nbytes(t) for t in step.arg_types)


def work_dtype(step: Step) -> str:
    """Return the dtype that a step computes in: that of its result where it contracts, else the widest it touches."""
    if step.contraction is not None:
        return step.types[0].dtype or "float64"
    known = [t.dtype for t in (*step.types, *step.arg_types) if t.dtype is not None and not t.weak]
    return max(known, key=lambda d: ITEMSIZE[d], default="float64")
