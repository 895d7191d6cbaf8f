"""Breakpoints: stop a run at a node, an operation, a bad value, a slow step, or wherever a function says."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import msgspec

from ..diagnostics import Diagnostic, value_text
from ..errors import InputError, expect
from ..events import RunRecord, StepEvent, running
from ..plan.build import ExecutionPlan, Step
from ..plan.printing import describe
from ..runtime.frame import Frame
from ..store import Lock
from ..tables import counted
from .open_runs import DebugHook, OpenRuns
from .tensorstats import count_bad, is_bad

logger = logging.getLogger("tensorlogic")
NUMERICAL = "numerical issue"
HITS = 10_000  # hits that are kept, the last ones


class BreakpointHit(msgspec.Struct, frozen=True, eq=False):
    """A step that a breakpoint stopped at; ``values`` are its results, ``operands`` what it read, valid while the run is stopped.

    ``frame`` is the run itself: ``hit.frame.values()`` are the values it holds, ``hit.frame.advance()`` runs one more step, and
    ``hit.frame.save(path)`` keeps it for later. ``has_nan`` and ``has_inf`` say what the results hold; a step that was handed such
    values did not make them, and ``inherited`` is then true. Where no breakpoint on bad values, or function, looks at every step, that
    is told from the operands, which a run keeps if it stops and does not just log.

    >>> print(BreakpointHit(3, "relu", elapsed_us=12.0))
    node %3: relu, 12.0 µs
    """

    node_id: int
    operation: str
    elapsed_us: float = 0.0
    has_nan: bool = False
    has_inf: bool = False
    breakpoint: Breakpoint | None = None
    number: int = 0  # of the step, in its plan
    step: Step | None = None
    plan: ExecutionPlan | None = None
    values: tuple[Any, ...] = ()
    body: bool = False  # inside of a fixpoint, scan or cond
    round: int = 0  # of that body
    thread: int = 0
    inherited: bool = False
    frame: Frame | None = None

    @property
    def operands(self) -> Mapping[str, Any]:
        """What the step read, by name."""
        if self.frame is None or self.plan is None or self.step is None:
            return {}
        names = self.plan.slot_names()
        return {names.get(s, "?"): x for s, x in zip(self.step.reads, self.frame.operands, strict=False)}

    @property
    def names(self) -> frozenset[str]:
        """What the operation answers to: its name, the words it prints as, and how it is computed."""
        words = {self.operation, self.operation.partition(" ")[0]}
        return frozenset(words if self.step is None else words | {self.step.op.name, self.step.kernel})

    def __str__(self) -> str:
        what = f"{self.breakpoint}, at " if self.breakpoint is not None else ""
        lines = [f"{what}node %{self.node_id}: {self.operation}, {self.elapsed_us:,.1f} µs"]
        if self.step is not None:
            lines[0] += f", {', '.join(map(str, self.step.types))}"
        if self.body:
            lines[0] += f", round {self.round} of a body"
        if self.has_nan or self.has_inf:
            lines[0] += f", with {' and '.join(['NaN'] * self.has_nan + ['infinite'] * self.has_inf)} values"
        if self.step is not None and self.step.location is not None:
            where = Diagnostic.info("").with_location(self.step.location)
            lines += [f"  at {self.step.location}", *(f"    {line}" for line in where.source_lines())]
        return "\n".join(lines)


class Breakpoint(msgspec.Struct, eq=False):
    """Where to stop: a function of the hit. Set ``enabled`` to False to pass it by, or ``ignore`` to the number of hits to pass by.

    >>> manager = BreakpointManager()
    >>> point = manager.add_operation_breakpoint("matmul")
    >>> print(point)
    breakpoint 1 (operation matmul)
    >>> point.enabled, point.ignore, point.hits
    (True, 0, 0)
    """

    id: int
    kind: str  # node, operation, numerical issue, time threshold, predicate or step
    matches: Callable[[BreakpointHit], bool]
    text: str = ""
    enabled: bool = True
    ignore: int = 0
    hits: int = 0

    def __str__(self) -> str:
        if self.kind == "step":
            return "next step"
        return f"breakpoint {self.id} ({self.text or self.kind})" + ("" if self.enabled else ", disabled")


_NEXT = Breakpoint(0, "step", lambda hit: True)


class BreakpointManager(DebugHook):
    """Stops runs at breakpoints. It is off until enabled.

    On a hit it calls ``on_break(hit)``. Without one it opens a prompt where there is a terminal, or on the streams given;
    elsewhere it logs a warning and goes on. ``hits`` keeps what was met.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", (2, 2)) @ b.input("w", (2, 2))))
    >>> points = BreakpointManager(on_break=lambda hit: print(hit.breakpoint, hit.values[0].tolist()))
    >>> points.enable()
    >>> point = points.add_operation_breakpoint("matmul")
    >>> executor = tl.Executor(context=tl.ExecutionContext([points]))
    >>> out = executor.execute(graph, {"x": [[1.0, 2.0], [3.0, 4.0]], "w": [[1.0, 0.0], [0.0, -1.0]]})
    breakpoint 1 (operation matmul) [[1.0, -2.0], [3.0, -4.0]]

    By hand:

    >>> points.should_break(7, "matmul", 10, False).node_id
    7
    >>> points.continue_execution()
    """

    def __init__(
        self,
        on_break: Callable[[BreakpointHit], object] | None = None,
        *,
        stdin: IO[str] | None = None,
        stdout: IO[str] | None = None,
    ) -> None:
        self.hits: deque[BreakpointHit] = deque(maxlen=HITS)
        self._on_break = on_break
        self._streams = (stdin, stdout)
        self._points: dict[int, Breakpoint] = {}
        self._made = 0
        self._paused: dict[int, BreakpointHit] = {}  # by thread
        self._stepping: set[int] = set()  # threads that stop at their next step
        self._lock = Lock()
        self._terminal = Lock()  # one prompt at a time
        self._runs = OpenRuns()

    @property
    def stops(self) -> bool:  # type: ignore[override]
        """Whether a run may stop, so that it must not write over what is looked at."""
        return self.enabled and bool(self._points or self._stepping) and (self._on_break is not None or self._prompts())

    def add_node_breakpoint(self, node_id: int) -> Breakpoint:
        """Stop after a node, by its number as ``print(plan)`` shows it; one of that number in a body counts too."""
        if not isinstance(node_id, int) or isinstance(node_id, bool):
            hints = ("print(plan) shows the numbers, as %3", "add_operation_breakpoint takes a name")
            raise InputError(f"a node is given by its number, got {value_text(node_id)}", *hints, code="E301")
        return self._add("node", lambda hit: hit.node_id == node_id, f"node %{node_id}")

    def add_operation_breakpoint(self, operation: str) -> Breakpoint:
        """Stop after an operation: ``"relu"``, ``"einsum"``, ``"einsum ij,jk->ik"``, or a way to compute, ``"matmul"``."""
        expect(operation, str, "an operation is given by its name", "add_node_breakpoint takes a number")
        return self._add("operation", lambda hit: operation in hit.names, f"operation {operation}")

    def add_numerical_issue_breakpoint(self, *, nan_only: bool = False) -> Breakpoint:
        """Stop after a step that makes a NaN, or an infinity unless those are fine; not after those that it is handed on to."""

        def made_here(hit: BreakpointHit) -> bool:
            if nan_only:  # one that infinities were handed to may make the first NaN
                return hit.has_nan and not (hit.inherited and _read_nan(hit))
            return (hit.has_nan or hit.has_inf) and not hit.inherited

        return self._add(NUMERICAL, made_here, "NaN" if nan_only else "NaN or infinity")

    def add_time_threshold_breakpoint(self, microseconds: float) -> Breakpoint:
        """Stop after a step that took longer than this."""
        if not isinstance(microseconds, int | float) or not microseconds >= 0:
            raise InputError(
                f"a time is a number of microseconds, 0 or more, got {value_text(microseconds)}", code="E727"
            )
        return self._add("time threshold", lambda hit: hit.elapsed_us > microseconds, f"over {microseconds:,} µs")

    def add_breakpoint(self, predicate: Callable[[BreakpointHit], bool], text: str = "") -> Breakpoint:
        """Stop wherever a function of the hit says so; it sees the step's results as ``hit.values``, and ``hit.has_nan``."""
        hint = "write add_breakpoint(lambda hit: hit.values[0].max() > 1e3)"
        expect(predicate, Callable, "a breakpoint is a function of the hit", hint)  # type: ignore[arg-type]
        return self._add("predicate", predicate, text or getattr(predicate, "__name__", "").replace("<lambda>", ""))

    def _add(self, kind: str, matches: Callable[[BreakpointHit], bool], text: str) -> Breakpoint:
        with self._lock:
            self._made += 1
            point = self._points[self._made] = Breakpoint(self._made, kind, matches, text)
        return point

    def remove(self, breakpoint: Breakpoint | int) -> None:
        """Take a breakpoint away, given itself or its number."""
        number = breakpoint.id if isinstance(breakpoint, Breakpoint) else breakpoint
        expect(number, int, "a breakpoint is taken away by its number")
        with self._lock:
            if self._points.pop(number, None) is None:
                there = ", ".join(map(str, self._points)) or "none"
                raise InputError(f"there is no breakpoint {value_text(number)}", f"known: {there}", code="E713")

    def breakpoints(self) -> list[Breakpoint]:
        """Return the breakpoints, in the order they were made."""
        with self._lock:
            return list(self._points.values())

    def __str__(self) -> str:
        lines = [f"{p}, {counted(p.hits, 'hit')}" for p in self.breakpoints()]
        return "\n".join(lines) or "there are no breakpoints"

    def should_break(
        self, node_id: int, op_name: str, elapsed_us: float = 0.0, has_nan: bool = False, *, has_inf: bool = False
    ) -> BreakpointHit | None:
        """Tell whether an operation that ran by hand is one to stop at; the hit says where and why."""
        if not self.enabled:
            return None
        return self._match(BreakpointHit(node_id, op_name, elapsed_us, has_nan, has_inf, thread=threading.get_ident()))

    def is_paused(self) -> bool:
        """Tell whether some run is stopped at a breakpoint."""
        return bool(self._paused)

    def continue_execution(self) -> None:
        """Go on to the next breakpoint."""
        with self._lock:
            self._stepping.discard(threading.get_ident())
            self._paused.pop(threading.get_ident(), None)

    def step(self) -> None:
        """Go on, and stop at the next step of this thread, whatever it is."""
        with self._lock:
            self._stepping.add(threading.get_ident())
            self._paused.pop(threading.get_ident(), None)

    def _match(self, at: BreakpointHit) -> BreakpointHit | None:
        """Return the hit of the first breakpoint that stops here, and count it for all of them."""
        with self._lock:
            points = list(self._points.values())
            stepping = at.thread in self._stepping
            self._stepping.discard(at.thread)
        match = _NEXT if stepping else None
        for point in [p for p in points if p.enabled and p.matches(at)]:
            with self._lock:
                passed, point.ignore = point.ignore > 0, max(0, point.ignore - 1)
                point.hits += not passed
            if not passed and match in (None, _NEXT):
                match = point
        if match is None:
            return None
        nan, inf = _bad(at.values)  # of what is stopped at, whatever it is stopped for
        inherited = at.inherited
        if (nan or inf) and at.frame is not None and not self._looks_at_values():
            inherited = any(map(is_bad, at.frame.operands))
        hit = msgspec.structs.replace(
            at, breakpoint=match, has_nan=at.has_nan or nan, has_inf=at.has_inf or inf, inherited=inherited
        )
        with self._lock:
            self._paused[at.thread] = hit
            self.hits.append(msgspec.structs.replace(hit, values=(), plan=None, frame=None))  # values are the run's
        return hit

    def on_start(self, plan: ExecutionPlan, inputs: Sequence[Any], *, body: bool) -> None:
        """Begin a run, or a round of a body."""
        if self._runs.busy:
            return
        run = self._runs.enter(plan, body=body)
        if body and self._looks_at_values():
            run.bad = {slot for (_, slot, _), value in zip(plan.inputs, inputs, strict=True) if is_bad(value)}

    def on_run(self, record: RunRecord) -> None:
        """End a run; where a body made something bad, the loop around it did not."""
        if self._runs.busy:
            return
        run = self._runs.find(record.plan)
        if run is not None and run.around is not None:
            run.around.found |= run.found
        self._runs.leave(record.plan)
        if not record.body:
            self.continue_execution()

    def on_step(self, plan: ExecutionPlan, event: StepEvent, values: tuple[Any, ...]) -> None:
        """Stop after a step that a breakpoint matches."""
        thread = threading.get_ident()
        if not self.enabled or not (self._points or self._stepping) or self._runs.busy:
            return
        step, run = plan.steps[event.step], self._runs.find(plan) or self._runs.enter(plan, body=False)
        has_nan, has_inf = _bad(values if self._looks_at_values() else ())
        inherited = not run.bad.isdisjoint(step.reads) or (bool(step.bodies) and run.found)
        hit = self._match(BreakpointHit(
            step.node, describe(step.op), event.duration_ns / 1e3, has_nan, has_inf, None, event.step, step, plan, values,
            run.around is not None, run.round, thread, inherited, running.frame,
        ))  # fmt: skip
        if has_nan or has_inf:
            run.bad.update(step.writes)
            run.found = True
            if (
                running.frame is not None
            ):  # inputs and constants nobody made: the first step that reads them stands for that
                given = {slot for _, slot, _ in plan.inputs} | {slot for slot, _ in plan.constants}
                operands = zip(step.reads, running.frame.operands, strict=False)
                run.bad.update(slot for slot, x in operands if slot in given and is_bad(x))
        if hit is not None:
            self._runs.busy = True  # what the callback runs is not stopped at
            try:
                self._stop(hit)
            finally:
                self._runs.busy = False
                self._paused.pop(thread, None)

    def _looks_at_values(self) -> bool:
        """Tell whether some breakpoint asks for values to be looked at."""
        return any(p.kind in (NUMERICAL, "predicate") and p.enabled for p in self.breakpoints())

    def _prompts(self) -> bool:
        """Tell whether a hit opens a prompt."""
        terminal = any(self._streams) or (_is_terminal(sys.stdin) and _is_terminal(sys.stdout))
        return self.enabled and self._on_break is None and terminal

    def _stop(self, hit: BreakpointHit) -> None:
        if self._on_break is not None:
            self._on_break(hit)
        elif self._prompts():
            from .prompt import ask

            with self._terminal:
                ask(self, hit, *self._streams)
        else:
            logger.warning("%s", hit)


def _bad(values: Sequence[Any]) -> tuple[bool, bool]:
    """Tell whether some value holds a NaN, and whether one holds an infinity."""
    counts = [count_bad(v) for v in values]
    return any(nans for nans, _ in counts), any(infs for _, infs in counts)


def _read_nan(hit: BreakpointHit) -> bool:
    """Tell whether a step read a NaN, or a body in it made one."""
    if hit.frame is None or hit.step is None or hit.step.bodies:
        return True
    return any(is_bad(x, nan_only=True) for x in hit.frame.operands)


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed stream
        return False
