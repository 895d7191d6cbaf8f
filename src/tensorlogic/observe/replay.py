"""Recorded runs: the graph, its inputs and every step's results in a folder, to run again and compare step by step.

A run is a folder of its own: ``manifest.json``, ``graph.json`` (with its constants beside it) and ``values.safetensors``.
Nothing in it is code, so a folder from somewhere else is safe to open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..backends.base import Backend, check_dtypes, get_backend
from ..diagnostics import SourceLocation
from ..errors import BackendError, FormatError, InputError, TensorLogicError, expect, nearest
from ..ir.graph import EinsumGraph
from ..ir.types import SAFETENSORS
from ..ir.untrusted_text import convert, decode_text, strict_json
from ..plan.build import ExecutionPlan, Step, build_plan
from ..plan.memory import check_memory
from ..plan.printing import describe
from ..runtime.frame import Frame
from ..runtime.program import bind
from ..tables import counted, html_text, table
from .compare_arrays import Difference, difference
from .open_runs import constant_value
from .tensorstats import TensorStats

TOGETHER = "the files of one run belong together; record it again"
FORMAT, VERSION = "tensorlogic-recording", 1
MANIFEST, GRAPH, VALUES = "manifest.json", "graph.json", "values.safetensors"
MANIFEST_LIMIT = 64 * 2**20  # bytes


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What is said of a run beside its graph and values."""

    format: str
    version: int
    versions: dict[str, str]  # of the package and what it ran on
    graph: str  # its digest
    steps: list[int]  # nanoseconds that each recorded step took; a run that failed has fewer than the plan


def step_name(step: int, result: int) -> str:
    """Return the name of a step's result in the file of values."""
    return f"step.{step}.{result}"


def input_name(number: int) -> str:
    """Return the name of an input in the file of values; inputs count in the order of the graph."""
    return f"input.{number}"


class ReplayStep(NamedTuple):
    """One step that ran again: what it made now, what was recorded, and how they differ.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> step = tl.Executor().plan(b.build(y=b.exp(b.input("x", (2,))))).steps[0]
    >>> made, before = np.array([1.0, 2.7]), np.array([1.0, 2.5])
    >>> print(ReplayStep(0, step, (made,), (before,), difference(made, before)))
    step 0, %1 = exp: element (1,) is 2.7, expected 2.5 (tolerance 1e-10, 1 of 2 elements)
    """

    number: int
    step: Step
    value: tuple[Any, ...]
    recorded: tuple[Any, ...] | None  # None where the recorded run never got so far
    difference: Difference | None

    @property
    def operation(self) -> str:
        """What the step does."""
        return describe(self.step.op)

    def __str__(self) -> str:
        how = "not recorded" if self.recorded is None else self.difference or "same"
        return f"step {self.number}, %{self.step.node} = {self.operation}: {how}"


class Comparison(NamedTuple):
    """A recorded run beside another one, as a table: how many steps agree, and the first that does not.

    >>> print(Comparison("reference", compared=3, planned=3, differing=()))
    3 steps on reference: all equal within the tolerance of their dtype
    """

    backend: str
    compared: int
    planned: int
    differing: tuple[ReplayStep, ...]  # without their values, the first aside
    operands: tuple[str, ...] = ()  # of the first step that differs
    rtol: float | None = None

    @property
    def first(self) -> ReplayStep | None:
        """The first step that differs; None where all agree."""
        return self.differing[0] if self.differing else None

    @property
    def same(self) -> bool:
        """Whether every recorded step agrees."""
        return not self.differing

    def __str__(self) -> str:
        allowed = "the tolerance of their dtype" if self.rtol is None else f"a tolerance of {self.rtol:g}"
        steps = counted(self.compared, "step")
        rest = f" ({self.planned - self.compared:,} were not recorded)" if self.planned > self.compared else ""
        if self.first is None:
            return f"{steps} on {self.backend}: all equal within {allowed}{rest}"
        count, shown = len(self.differing), self.differing[:20]
        rows = [[str(s.number), f"%{s.step.node}", s.operation, *_difference_cells(s.difference)] for s in shown]
        head = ["step", "node", "operation", "worst at", "replayed", "recorded", "error", "wrong"]
        lines = [table(head, rows, right={0, 6, 7})]
        if count > len(rows):
            lines.append(f"... {count - len(rows):,} more")
        differ = "differs" if count == 1 else "differ"
        lines.append(f"{steps} on {self.backend}: {count:,} {differ} by more than {allowed}{rest}")
        lines.append(f"first: {self.first}")
        lines += [f"  {text}" for text in self.operands]
        if self.first.step.location is not None:
            lines.append(f"  at {self.first.step.location}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(self)


def _difference_cells(d: Difference | None) -> list[str]:
    if d is None:
        return [""] * 5
    numbers = [f"{d.error:.3g}", f"{d.wrong:,} of {d.size:,}"] if d.kind == "value" else ["", ""]
    return [str(d.place) if d.kind == "value" else d.kind, str(d.got), str(d.want), *numbers]


class Recording:
    """A recorded run, read from its folder; values are read when they are needed.

    >>> import tempfile
    >>> import tensorlogic as tl
    >>> from tensorlogic.debug import ExecutionRecorder
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.exp(b.input("x", (2,))))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ExecutionRecorder().capture(folder):
    ...         out = tl.Executor().execute(graph, {"x": [0.0, 1.0]})
    ...     recording = Recording.load(folder)
    ...     print(recording)
    ...     print(recording.compare(backend="reference"))
    recording of 1 step, with inputs x and outputs y
    1 step on reference: all equal within the tolerance of their dtype
    """

    def __init__(
        self, path: Path, plan: ExecutionPlan, durations_ns: Sequence[int], versions: Mapping[str, str]
    ) -> None:
        self.path, self.plan, self.durations_ns, self.versions = path, plan, tuple(durations_ns), dict(versions)

    @classmethod
    def load(cls, folder: str | Path, run: int = 0) -> Recording:
        """Read a recorded run: its own folder, or a folder of several and which one, counted from 0 or -1 from the end."""
        expect(folder, (str, Path), "a folder is given by its path", 'write Recording.load("run")')
        path = Path(folder)
        if not (path / MANIFEST).is_file():
            runs = recorded_runs(path)
            if not runs:
                there = "no such folder" if not path.is_dir() else f"it has no {MANIFEST} and no runs in it"
                hint = "record one: with ExecutionRecorder().capture(folder): ..."
                raise FormatError(f"{str(path)!r} is not a recording: {there}", hint, code="E716")
            if not -len(runs) <= run < len(runs):
                many = counted(len(runs), "recorded run")
                raise InputError(f"{str(path)!r} holds {many}, counted from 0, so none numbered {run}", code="E732")
            path = runs[run]
        manifest = _manifest(path / MANIFEST)
        graph = EinsumGraph.load(path / GRAPH)
        if graph.digest != manifest.graph:
            raise FormatError(f"{GRAPH} in {str(path)!r} is not the graph that was recorded", TOGETHER, code="E733")
        plan = _plan(graph, path)
        if len(manifest.steps) > len(plan.steps):
            counts = f"{len(manifest.steps)} steps, but the graph has only {len(plan.steps)}"
            raise FormatError(f"{MANIFEST} in {str(path)!r} tells of {counts}", TOGETHER, code="E733")
        recording = cls(path, plan, manifest.steps, manifest.versions)
        recording._check()
        return recording

    def _check(self) -> None:
        """Look at the names of all values, and at the inputs' types, so that a broken file is noticed at once."""
        with self._open() as file:
            there = set(file.keys())
            steps = enumerate(self.plan.steps[: len(self.durations_ns)])
            wanted = [input_name(n) for n in range(len(self.plan.inputs))]
            wanted += [step_name(n, i) for n, step in steps for i in range(len(step.types))]
            lacking = [name for name in wanted if name not in there]
            if lacking:
                raise FormatError(f"{VALUES} in {str(self.path)!r} lacks {lacking[0]!r}", TOGETHER, code="E733")
            for n, (name, _, t) in enumerate(self.plan.inputs):
                part = file.get_slice(input_name(n))
                dtype, shape = SAFETENSORS.get(part.get_dtype(), part.get_dtype()), list(part.get_shape())
                if shape != list(t.shape or ()) or dtype != t.dtype:
                    message = f"input {name!r} of {str(self.path)!r} is {dtype}{shape}, expected {t}"
                    raise FormatError(message, TOGETHER, code="E733")

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        path = self.path / VALUES
        if not path.is_file():
            raise FormatError(f"the recording {str(self.path)!r} lacks {VALUES}", TOGETHER, code="E733")
        try:
            with safe_open(str(path), framework="numpy") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{str(path)!r} is not a readable safetensors file: {error}", code="E735") from None

    def inputs(self) -> dict[str, Any]:
        """Return the recorded inputs by name."""
        with self._open() as file:
            return {name: file.get_tensor(input_name(n)) for n, (name, _, _) in enumerate(self.plan.inputs)}

    def recorded(self, step: int) -> tuple[Any, ...] | None:
        """Return the recorded results of a step; None where the run never got so far."""
        if not 0 <= step < len(self.plan.steps):
            raise InputError(f"the run has {len(self.plan.steps)} steps, so no step {step}", code="E732")
        with self._open() as file:
            return self._values(file, step)

    def replay(
        self, backend: str | Backend = "numpy", *, rtol: float | None = None, isolate: bool = False
    ) -> Iterator[ReplayStep]:
        """Run the recorded graph again on a backend, one step each time the iterator is asked.

        With ``isolate`` each step starts from what was recorded, so that a difference is the step's own and not one
        that it was handed.
        """
        engine = get_backend(backend)
        able = engine.capabilities()
        if able.supports("shapes_only"):
            message = f"the {able.name} backend computes no values, so there is nothing to compare"
            raise BackendError(message, 'replay on "numpy" or "reference"', code="E717")
        check_dtypes(self.plan, able)
        check_memory(self.plan, None)
        return self._steps(engine, rtol, isolate)

    def _steps(self, engine: Backend, rtol: float | None, isolate: bool) -> Iterator[ReplayStep]:
        frame = Frame(bind(self.plan, engine), [engine.asarray(value, None) for value in self.inputs().values()])
        maker = {slot: (n, i) for n, s in enumerate(self.plan.steps) for i, slot in enumerate(s.writes)}
        with self._open() as file:
            for n, step in enumerate(self.plan.steps):
                for slot, t in zip(step.reads, step.arg_types, strict=True):
                    if isolate and slot in maker and maker[slot][0] < len(self.durations_ns):
                        value = file.get_tensor(step_name(*maker[slot]))
                        frame.slots[slot] = value.item() if t.weak else engine.asarray(value, None)
                with engine.guard():
                    values = tuple(np.array(v) for v in frame.advance())
                recorded = self._values(file, n)
                pairs = () if recorded is None else zip(values, recorded, strict=True)
                found = (difference(now, before, rtol) for now, before in pairs)
                yield ReplayStep(n, step, values, recorded, next((d for d in found if d is not None), None))

    def _values(self, file: Any, step: int) -> tuple[Any, ...] | None:
        if step >= len(self.durations_ns):
            return None
        return tuple(file.get_tensor(step_name(step, i)) for i in range(len(self.plan.steps[step].types)))

    def compare(
        self, backend: str | Backend = "reference", *, rtol: float | None = None, isolate: bool = False
    ) -> Comparison:
        """Run the graph again on another backend and show where the results part; see :meth:`replay`.

        Floats may be off by ``rtol`` times the larger of 1 and the recorded value; without it, by what their dtype allows.
        """
        differing: list[ReplayStep] = []
        operands: tuple[str, ...] = ()
        compared = 0
        for s in self.replay(backend, rtol=rtol, isolate=isolate):
            compared += s.recorded is not None
            if s.difference is not None:
                if not differing:
                    operands = self._operands(s.step)
                differing.append(s._replace(value=(), recorded=()) if differing else s)
        return Comparison(get_backend(backend).name, compared, len(self.plan.steps), tuple(differing), operands, rtol)

    def _operands(self, step: Step) -> tuple[str, ...]:
        """Describe what a step reads, as it was recorded."""
        names = self.plan.slot_names()
        stored = {slot: input_name(n) for n, (_, slot, _) in enumerate(self.plan.inputs)}
        stored |= {slot: step_name(n, i) for n, s in enumerate(self.plan.steps) for i, slot in enumerate(s.writes)}
        with self._open() as file:
            values = {
                slot: file.get_tensor(stored[slot]) if slot in stored else constant_value(self.plan, slot)
                for slot in step.reads
            }
        return tuple(f"reads {TensorStats.of(names.get(slot, '?'), value)}" for slot, value in values.items())

    def __str__(self) -> str:
        count, planned, graph = len(self.durations_ns), len(self.plan.steps), self.plan.graph
        cut = f" of {planned:,}, then it failed," if count < planned else ","
        names = f"inputs {', '.join(graph.input_names) or 'none'} and outputs {', '.join(graph.output_names)}"
        return f"recording of {counted(count, 'step')}{cut} with {names}"

    def __repr__(self) -> str:
        return f"<Recording {str(self.path)!r}: {counted(len(self.durations_ns), 'step')}>"


def recorded_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder, in the order they were recorded."""
    try:
        return sorted(p for p in folder.iterdir() if p.name.startswith("run-") and (p / MANIFEST).is_file())
    except OSError:
        return []


def _manifest(path: Path) -> Manifest:
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_LIMIT + 1)
        raw = strict_json(decode_text(text, MANIFEST_LIMIT), str(path))
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            found = repr(raw.get("format")) if isinstance(raw, dict) else type(raw).__name__
            message = f'this is not a recording: "format" is {found}'
            raise FormatError(message, *nearest(found, [FORMAT]), code="E716")
        if raw.get("version") != VERSION or isinstance(raw["version"], bool):
            message = f"version {raw.get('version')!r} of the recording format is not known here"
            raise FormatError(message, f"this package reads version {VERSION}", code="E234")
        return convert(raw, Manifest, "$")
    except TensorLogicError as error:
        raise error.at(SourceLocation(file=str(path))) from None
    except OSError as error:
        raise FormatError(f"cannot read {str(path)!r}: {error}", code="E735") from None


def _plan(graph: EinsumGraph, path: Path) -> ExecutionPlan:
    """Lay the recorded graph out as it was: it has its sizes, and the passes are behind it."""
    types = [t for results in graph.inference.types for t in results]
    if graph.size_names or any(t.shape is None or t.dtype is None for t in types):
        message = f"the graph in {str(path)!r} has sizes or dtypes that are not known, so it was not recorded"
        raise FormatError(message, "record a run; a graph file alone has no values", code="E736")
    plan = build_plan(graph, {name: graph.type_of(node) for name, node in graph.inputs.items()})
    assert len(plan.graph) == len(graph)
    return plan
