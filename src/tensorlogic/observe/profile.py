"""Profiles: what each operation of a trace cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..diagnostics import bytes_text
from ..errors import FormatError, InputError
from ..ir import ops
from ..ir.types import ITEMSIZE
from ..plan.build import ExecutionPlan, Step, describe
from ..plan.cost import nbytes
from ..tables import table
from .export import lanes
from .trace import Trace, TracedRun
from .trace_diff import own_times

SAMPLES = 1001  # times kept of an operation; of more calls, this many evenly spaced quantiles
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
    dtype: str = "float32"  # of the calls that took the most time, as is the kernel
    kernel: str = "map"

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
            raise InputError(f"a percentile is between 0 and 100, got {q}", code="E301")
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

    @classmethod
    def from_trace(cls, trace: Trace) -> ProfileData:
        """Sum a trace up; of a trace that was read from a file only times are known."""
        if not isinstance(trace, Trace):
            raise InputError(f"a Trace is expected, got {type(trace).__name__}", code="E301",
                             suggestions=["give what stands behind as: with tl.trace() as t: ..."])  # fmt: skip
        runs = trace.runs()
        plans = trace.plans()  # after the runs, so that it holds theirs while other threads go on
        if not runs:
            return cls(_from_events(trace))
        columns = _columns(plans, runs)
        outer = columns.depth == 0
        whole = columns.counts == np.array([len(plan.steps) for plan in plans])[columns.plan]
        return cls(
            _op_profiles(plans, columns),
            tuple((columns.run_ns()[outer & whole] / 1e6).tolist()),
            max((plans[p].peak_bytes for p in np.unique(columns.plan[outer]).tolist()), default=0),
            int((outer & ~whole).sum()),
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
            raise FormatError(f"this is not a profile: {error}", code="E702") from None

    def __str__(self) -> str:
        if not self.op_profiles:
            return "no steps were profiled"
        longest = sorted(self.op_profiles.items(), key=lambda item: -item[1].self_time_ms)
        rows = [
            [name, f"{op.count:,}", f"{op.self_time_ms:,.3f}", f"{self.share(name):.1f}%", f"{op.avg_time_ms * 1e3:,.1f}",
             f"{op.p50_time_ms * 1e3:,.1f}", f"{op.p99_time_ms * 1e3:,.1f}", bytes_text(op.peak_bytes),
             f"{op.gflops_per_second:.2f}", f"{op.gb_per_second:.2f}"]
            for name, op in longest[:ROWS]
        ]  # fmt: skip
        head = ["operation", "count", "self ms", "share", "mean µs", "p50 µs", "p99 µs", "memory", "GFLOP/s", "GB/s"]
        lines = [table(head, rows, right=set(range(1, len(head))))]
        if len(longest) > ROWS:
            lines.append(f"... {len(longest) - ROWS:,} more operations")
        runs = len(self.run_times_ms)
        failed = f", {self.failed_runs:,} failed" if self.failed_runs else ""
        peak = bytes_text(self.peak_memory_bytes)
        lines.append(f"{runs:,} run{'' if runs == 1 else 's'}{failed}, {self.total_time_ms:,.3f} ms, peak {peak}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ProfileData {len(self.op_profiles)} operations, {len(self.run_times_ms):,} runs, {self.total_time_ms:.3f} ms>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


class _Columns(NamedTuple):
    """All runs of a trace, and end to end all of their steps."""

    plan: NDArray[np.int64]  # of each run
    thread: NDArray[np.int64]
    depth: NDArray[np.int64]  # how many loops stand around it
    counts: NDArray[np.int64]  # its steps
    offset: NDArray[np.int64]  # where they begin; one number more than there are runs
    site: NDArray[np.int64]  # of each step: its number among the steps of all plans
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def run_ns(self) -> NDArray[np.int64]:
        """Return the nanoseconds that the steps of each run took."""
        passed: NDArray[np.int64] = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        return np.diff(passed[self.offset])


def _columns(plans: Sequence[ExecutionPlan], runs: Sequence[TracedRun]) -> _Columns:
    plan = np.array([p for p, _, _ in runs], np.int64)
    counts = np.array([times.shape[1] for _, _, times in runs], np.int64)
    offset = np.concatenate([[0], np.cumsum(counts)])
    first = np.cumsum([0, *(len(p.steps) for p in plans)])
    starts, ends = np.concatenate([times for _, _, times in runs], axis=1)
    return _Columns(
        plan, np.array([thread for _, thread, _ in runs], np.int64), np.array(_depths(plans), np.int64)[plan], counts,
        offset, np.arange(offset[-1]) + np.repeat(first[plan] - offset[:-1], counts), starts, ends,
    )  # fmt: skip


def _depths(plans: Sequence[ExecutionPlan]) -> list[int]:
    """Tell how many loops stand around each plan; a plan that is the body of no other stands alone."""
    around: dict[int, int] = {}

    def enter(plan: ExecutionPlan, depth: int) -> None:
        for step in plan.steps:
            for body in step.bodies:
                around[id(body)] = max(depth + 1, around.get(id(body), 0))
                enter(body, depth + 1)

    for plan in plans:
        enter(plan, 0)
    return [around.get(id(plan), 0) for plan in plans]


def _op_profiles(plans: Sequence[ExecutionPlan], columns: _Columns) -> dict[str, OpProfile]:
    site = columns.site
    if not len(site):
        return {}
    steps = [step for plan in plans for step in plan.steps]
    took_ns = columns.ends - columns.starts
    took = took_ns / 1e6
    own = np.maximum(0, took_ns - _inside_ns(steps, columns)) / 1e6
    calls = np.bincount(site, minlength=len(steps)).tolist()
    selves = np.bincount(site, weights=own, minlength=len(steps)).tolist()
    groups: dict[str, list[int]] = {}
    for n, step in enumerate(steps):
        if calls[n]:
            groups.setdefault(describe(step.op), []).append(n)
    group = np.empty(len(steps), np.int64)
    for number, sites in enumerate(groups.values()):
        group[sites] = number
    order = np.lexsort((took, group[site]))  # by operation, each from its shortest call to its longest
    bounds = np.cumsum([sum(calls[n] for n in sites) for sites in groups.values()])[:-1]
    found = {}
    for (name, sites), times in zip(groups.items(), np.split(took[order], bounds), strict=True):
        longest = steps[max(sites, key=lambda n: selves[n])]
        found[name] = OpProfile(
            len(times),
            float(times.sum()),
            sum(selves[n] for n in sites),
            _samples(times),
            sum(calls[n] * steps[n].nbytes for n in sites),
            max(steps[n].nbytes + steps[n].scratch for n in sites),
            sum(calls[n] * moved_bytes(steps[n]) for n in sites),
            sum(calls[n] * steps[n].flops for n in sites),
            work_dtype(longest),
            longest.kernel,
        )
    return found


def _from_events(trace: Trace) -> dict[str, OpProfile]:
    """Sum up steps whose plan is not known: their times, and what of these nothing inside of them took."""
    times: dict[str, list[float]] = {}
    own: dict[str, int] = {}
    for lane in lanes(trace):
        for event, own_ns in own_times(lane):
            if event.kind != "span":
                times.setdefault(event.name, []).append(event.duration_ns / 1e6)
                own[event.name] = own.get(event.name, 0) + own_ns
    return {name: OpProfile(len(t), sum(t), own[name] / 1e6, _samples(np.sort(t))) for name, t in times.items()}


def _samples(ordered: NDArray[np.float64]) -> tuple[float, ...]:
    kept = ordered if len(ordered) <= SAMPLES else np.quantile(ordered, np.linspace(0, 1, SAMPLES))
    return tuple(kept.tolist())


def _inside_ns(steps: Sequence[Step], columns: _Columns) -> NDArray[np.int64]:
    """Return, for every step of all runs, the nanoseconds in which the bodies inside of it ran."""
    spent = np.zeros(len(columns.site), np.int64)
    bodies = np.flatnonzero((columns.depth > 0) & (columns.counts > 0))
    if not len(bodies):
        return spent
    loops = np.flatnonzero(np.array([bool(step.bodies) for step in steps])[columns.site])
    loops = loops[np.argsort(columns.starts[loops], kind="stable")]
    run = np.searchsorted(columns.offset, loops, side="right") - 1  # the run that a loop is a step of
    for thread, depth in {*zip(columns.thread[bodies].tolist(), columns.depth[bodies].tolist(), strict=True)}:
        # on one thread, loops that stand at one depth follow each other, so the last that began before a body holds it
        outside = loops[(columns.thread[run] == thread) & (columns.depth[run] == depth - 1)]
        inside = bodies[(columns.thread[bodies] == thread) & (columns.depth[bodies] == depth)]
        begin, end = columns.starts[columns.offset[inside]], columns.ends[columns.offset[inside + 1] - 1]
        last = np.searchsorted(columns.starts[outside], begin, side="right") - 1
        held = last >= 0
        held[held] = columns.ends[outside[last[held]]] >= end[held]
        np.add.at(spent, outside[last[held]], (end - begin)[held])
    return spent


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
