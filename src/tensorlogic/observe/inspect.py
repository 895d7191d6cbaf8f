"""Looking into tensors: statistics of what a run makes, and where the first bad value came from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..diagnostics import SourceLocation
from ..errors import expect
from ..events import RunRecord, StepEvent
from ..ir.types import TensorShape, TensorType
from ..plan.build import ExecutionPlan, Step
from ..plan.printing import describe
from ..store import Lock
from ..tables import html_text, table
from .open_runs import DebugHook, OpenRun, OpenRuns, constant_value
from .tensorstats import TensorStats, bad_text, is_bad, short

NEAREST = 50  # operations of a path that are kept, those closest to the bad tensor
PROBLEMS = 100  # first problems that are kept, one a run


class PathStep(NamedTuple):
    """One operation on the way to a bad tensor."""

    node: int
    operation: str
    operands: str
    result: str
    spread: str  # the range of its values, where it was looked at
    location: SourceLocation | None
    inside: str = ""  # the body and round it ran in


class Problem(NamedTuple):
    """The first bad tensor of a run: its statistics, how it came to be, and the operations that led to it.

    >>> print(Problem(TensorStats(4, [2], "f64").with_statistics(0, 1, 0.5, 0.5, 1, 0), "recorded by hand"))
    %4 has 1 NaN of 2: recorded by hand
    """

    stats: TensorStats
    origin: str
    path: tuple[PathStep, ...] = ()
    omitted: int = 0  # earlier operations that the path leaves out

    def __str__(self) -> str:
        lines = [f"{self.stats.label} has {bad_text(self.stats)}: {self.origin}"]
        if self.path:
            left_out = f" ({self.omitted:,} earlier operations left out)" if self.omitted else ""
            lines.append(f"the path to it{left_out}:")
            rows = [
                [f"{s.inside}%{s.node}", s.operation, s.operands, s.result, s.spread, str(s.location or "")]
                for s in self.path
            ]
            shown = table(["node", "operation", "reads", "result", "values", "source"], rows)
            lines += [f"  {line}" for line in shown.splitlines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(self)


class TensorInspector(DebugHook):
    """Keeps statistics of the tensors it watches, and finds the first bad one of each run. It is off until enabled.

    Without a call of :meth:`watch` it looks at every tensor. Watching narrows what statistics are kept, not the search
    for bad values. ``nan_only=True`` takes infinities for granted, as masks and shortest paths do.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", (3,))
    >>> inspector = TensorInspector()
    >>> inspector.enable()
    >>> executor = tl.Executor(context=tl.ExecutionContext([inspector]))
    >>> out = executor.execute(b.build(y=b.log(b.relu(x)) * 0.5), {"x": [1.0, -2.0, 3.0]})
    >>> problem = inspector.first_problem()
    >>> problem.stats.operation, problem.origin
    ('log', 'made by log from finite operands')
    >>> [step.operation for step in problem.path]
    ['relu', 'log']
    """

    def __init__(self, *, nan_only: bool = False, keep: int = 10_000) -> None:
        self.nan_only = nan_only
        self._watched: frozenset[int | str] = frozenset()  # replaced, never changed in place
        self._seen: set[int | str] = set()
        self._stats: deque[TensorStats] = deque(maxlen=keep)
        self._problems: list[Problem] = []
        self._lock = Lock()
        self._runs = OpenRuns()  # what they keep of a slot is the range of its values, as text

    def watch(self, tensor_id: int | str) -> None:
        """Keep statistics of a tensor: a node number as ``print(plan)`` shows it, or the name of an input or output."""
        given, hint = None if isinstance(tensor_id, bool) else tensor_id, 'write watch(3) or watch("y")'
        expect(given, (int, str), "a tensor is watched by its node number or its name", hint)
        with self._lock:
            self._watched |= {tensor_id}

    def unwatch(self, tensor_id: int | str) -> None:
        """Stop keeping statistics of a tensor; with none left, all are looked at again."""
        with self._lock:
            self._watched -= {tensor_id}

    def record_stats(self, stats: TensorStats) -> None:
        """Keep statistics that were made by hand."""
        if not self.enabled:
            return
        with self._lock:
            self._stats.append(stats)
            if stats.has_problem(nan_only=self.nan_only) and len(self._problems) < PROBLEMS:
                self._problems.append(Problem(stats, "recorded by hand"))

    def stats(self, tensor_id: int | str | None = None) -> list[TensorStats]:
        """Return the statistics kept, in order: all, or those of one tensor by number or name."""
        with self._lock:
            return [s for s in self._stats if tensor_id is None or tensor_id in (s.tensor_id, s.name)]

    def find_problematic_tensors(self) -> list[TensorStats]:
        """Return the statistics of tensors with NaN or infinite values, in order."""
        with self._lock:
            found = [s for s in self._stats if s.has_problem(nan_only=self.nan_only)]
            ids = {id(s) for s in found}
            return found + [p.stats for p in self._problems if id(p.stats) not in ids]

    def first_problem(self) -> Problem | None:
        """Return the first bad tensor, with the path that made it; None where all is well."""
        return next(iter(self.problems()), None)

    def problems(self) -> list[Problem]:
        """Return the first bad tensor of each run that had one."""
        with self._lock:
            return list(self._problems)

    def clear(self) -> None:
        """Forget statistics and problems; what is watched stays."""
        with self._lock:
            self._stats.clear()
            self._problems.clear()
            self._seen.clear()

    def on_start(self, plan: ExecutionPlan, inputs: Sequence[Any], *, body: bool) -> None:
        """Look at the inputs of a run; in a body they are results that were looked at already."""
        if not self.enabled:
            return
        run = self._runs.enter(plan, body=body)
        if not body:
            for (name, slot, _), value in zip(plan.inputs, inputs, strict=True):
                self._look(run, slot, plan.graph.inputs[name], value, None)

    def on_step(self, plan: ExecutionPlan, event: StepEvent, values: tuple[Any, ...]) -> None:
        """Look at the results of a step."""
        run = self._runs.find(plan)
        if run is None or not self.enabled:
            return
        step = plan.steps[event.step]
        for slot, value in zip(step.writes, values, strict=True):
            self._look(run, slot, step.node, value, step)

    def on_run(self, record: RunRecord) -> None:
        """Leave a run."""
        self._runs.leave(record.plan)

    def _look(self, run: OpenRun, slot: int, node: int, value: Any, step: Step | None) -> None:
        name = run.plan.slot_names()[slot]
        keys: set[int | str] = {node, name, *(output for output, out, _ in run.plan.outputs if out == slot)}
        watched = not self._watched or not keys.isdisjoint(self._watched)
        whole = run.outermost()
        bad = not whole.found and is_bad(value, nan_only=self.nan_only)
        if not watched and not bad:
            return
        stats = TensorStats.of(node, value)
        stats.name = run.inside() + name
        stats.operation = "input" if step is None else describe(step.op)
        parts = [] if stats.min is None or stats.max is None else [f"{short(stats.min)} .. {short(stats.max)}"]
        parts += [bad_text(stats)] if stats.has_problem() else []
        if parts:
            run.values[slot] = " and ".join(parts)
        with self._lock:
            if watched:
                self._stats.append(stats)
                self._seen |= keys & self._watched
            if bad:
                whole.found = True
                if len(self._problems) < PROBLEMS:
                    self._problems.append(_problem(run, stats, step, self.nan_only))

    def __str__(self) -> str:
        latest = list({s.name or s.tensor_id: s for s in self.stats()}.values())
        rows = [
            [s.name or str(s.tensor_id), s.operation, f"{s.dtype}[{', '.join(map(str, s.shape))}]", *_cells(s)]
            for s in latest[-60:]
        ]
        head = ["tensor", "operation", "type", "min", "max", "mean", "std", "bad", "histogram"]
        lines = [f"the last 60 of {len(latest):,} tensors:"] if len(latest) > 60 else []
        lines.append(table(head, rows, right={3, 4, 5, 6}) if rows else "no tensor was looked at")
        with self._lock:
            unseen = sorted(map(str, self._watched - self._seen))
        if unseen:
            lines.append(f"watched, but never met: {', '.join(unseen)}")
        return "\n".join(lines)


def _cells(s: TensorStats) -> Iterable[str]:
    bad = bad_text(s) if s.has_problem() else ""
    if s.min is None or s.max is None or s.mean is None or s.std is None:
        return "", "", "", "", bad, ""
    return short(s.min), short(s.max), f"{s.mean:.6g}", f"{s.std:.6g}", bad, str(s.histogram or "")


def _problem(run: OpenRun, stats: TensorStats, step: Step | None, nan_only: bool) -> Problem:
    """Tell how the first bad tensor of a run came to be; everything that was made before it is sound."""
    if step is None:
        return Problem(stats, f"it came in as the input {stats.name!r}")
    constants = [slot for slot, _ in run.plan.constants if slot in step.reads]
    already = [slot for slot in constants if is_bad(constant_value(run.plan, slot), nan_only=nan_only)]
    source = f"the constant {run.plan.slot_names()[already[0]]}, which is bad already" if already else "finite operands"
    where = f", in the {run.inside().removesuffix(': ')}" if run.inside() else ""
    origin = f"made by {describe(step.op)} from {source}{where}"
    path: list[PathStep] = []
    omitted = 0
    at: OpenRun | None = run
    last: Step | None = step
    while at is not None and last is not None:
        steps, left_out = _ancestors(at.plan, last)
        path[:0] = [_path_step(at, s) for s in steps]
        omitted += left_out
        last = at.around.plan.steps[at.step] if at.around is not None and at.step is not None else None
        at = at.around
    left_out = max(0, len(path) - NEAREST)
    return Problem(stats, origin, tuple(path[left_out:]), omitted + left_out)


def _ancestors(plan: ExecutionPlan, last: Step) -> tuple[list[Step], int]:
    """Return the steps that led to one, it included, in order: the nearest, and how many are left out."""
    maker = {slot: n for n, s in enumerate(plan.steps) for slot in s.writes}
    found = [maker[last.writes[0]]]
    known = set(found)
    for n in found:  # grows while it is read: nearest first
        for slot in plan.steps[n].reads:
            source = maker.get(slot)
            if source is not None and source not in known:
                known.add(source)
                found.append(source)
    return [plan.steps[n] for n in sorted(found[:NEAREST])], max(0, len(found) - NEAREST)


def _path_step(run: OpenRun, step: Step) -> PathStep:
    names = run.plan.slot_names()
    operands = " ".join(names.get(s, "?") for s in step.reads)
    result = ", ".join(str(TensorType(TensorShape(t.shape or ()), t.dtype)) for t in step.types)
    spread = ", ".join(run.values[s] for s in step.writes if s in run.values)
    return PathStep(step.node, describe(step.op), operands, result, spread, step.location, run.inside())
