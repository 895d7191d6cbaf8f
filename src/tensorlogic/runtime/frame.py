"""Frames: a run that can stop after any step, tell its values, be saved, and go on later.

The straight-line function of a plan does the same without stopping. Replay, breakpoints, deadlines and checkpoints are frames.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from ..diagnostics import NodeExecutionDiagnostic
from ..errors import CancelledError, ExecutionError, FormatError, InputError, OutOfMemoryError, TensorLogicError
from ..events import active_contexts, entered
from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.types import BELOW_LABELS, no_class
from ..plan.build import Step
from ..plan.printing import describe
from ..store import of_one_process
from .program import Entry, Program, Workspace

Between = Callable[["Frame"], object]  # what is done between steps, such as saving the run


class Frame:
    """A run that is carried out step by step: the values it holds now, and the next step.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", (2,), "float64")
    >>> frame = tl.Executor().frame(b.build(y=b.exp(b.square(x))), {"x": np.array([0.0, 1.0])})
    >>> frame.advance()
    (array([0., 1.]),)
    >>> frame.at, list(frame.values())
    (1, ['x', '%1'])
    >>> frame.run()["y"].round(2)
    array([1.  , 2.72])
    """

    __slots__ = ("at", "graphs", "operands", "program", "slots")

    def __init__(
        self, program: Program, inputs: Sequence[Any], workspace: Workspace | None = None, targets: Sequence[Any] = ()
    ) -> None:
        self.program, self.at = program, 0
        # the graph that was given, and the equal one whose lines the program keeps
        self.graphs: tuple[EinsumGraph, EinsumGraph] | None = None
        self.operands: tuple[Any, ...] = ()  # what the last step read, where keep_operands was called before it
        self.slots = program.template.copy()
        for (_, slot, _), value in zip(program.plan.inputs, inputs, strict=True):
            self.slots[slot] = value
        if workspace is None and program.work:  # arrays of its own: nobody else writes into them while it waits
            targets = program.targets(program.workspace(), None, inputs)
        for w, array in zip(program.work, targets, strict=True):
            self.slots[w.slot] = array

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a frame", "keep it with frame.save(path), and go on with Frame.load(path, frame.program)")

    @property
    def done(self) -> bool:
        """Whether every step ran."""
        return self.at == len(self.program.entries)

    def keep_operands(self) -> None:
        """Hold on to what the next step reads, for those who look at it after the step."""
        self.operands = tuple([self.slots[s] for s in self.program.entries[self.at].step.reads])

    def advance(self) -> tuple[Any, ...]:
        """Run the next step and return its results."""
        step = self.program.entries[self.at].step
        return self._run(self.at + 1, step)

    def finish(self, between: Between | None = None) -> tuple[Any, ...]:
        """Run the remaining steps and return the outputs as the steps made them; ``between`` is called before each."""
        if between is None:
            self._run(len(self.program.entries))
        while not self.done:
            between(self)  # type: ignore[misc]
            self.advance()
        return self.results()

    def _run(self, stop: int, shown: Step | None = None) -> tuple[Any, ...]:
        """Run the steps before ``stop``; return the results of the last where it is to be shown."""
        slots, entries, n = self.slots, self.program.entries, self.at
        value: Any = None
        active = active_contexts()
        keeps = stop_reason(active) if active else None
        try:
            for n in range(self.at, stop):
                if keeps is not None and keeps.reason is not None:
                    stop_run(active, entries, n)
                _, kernel, reads, writes, frees, work, out, take = entries[n]
                if work == -1:
                    value = kernel(*take(slots))
                elif type(work) is not int:
                    value = kernel(*take(slots), out=[slots[w] for w in work])
                elif len(reads) == 1:  # written out, because a keyword beside *operands takes a dictionary
                    value = kernel(slots[reads[0]], out=slots[work])
                elif len(reads) == 2:
                    value = kernel(slots[reads[0]], slots[reads[1]], out=slots[work])
                else:
                    value = kernel(*take(slots), out=slots[work])
                if out >= 0:
                    slots[out] = value
                else:
                    for slot, result in zip(writes, value, strict=True):
                        slots[slot] = result
                for slot in frees:
                    slots[slot] = None
            n = stop
        except TensorLogicError as error:
            raise self._at_given(placed(error, entries[n].step)) from error.__cause__
        except Exception as error:
            step = entries[n].step
            found = failed(self.program.plan.graph, step, [slots[i] for i in step.reads], error)
            raise self._at_given(found) from error
        finally:
            self.at = n
        return () if shown is None else (value,) if len(shown.writes) == 1 else tuple(value)

    def _at_given(self, error: TensorLogicError) -> TensorLogicError:
        if self.graphs is not None:
            from .locations import point_at

            point_at(self.graphs[0], error, made_for=self.graphs[1])
        return error

    def results(self) -> tuple[Any, ...]:
        """Return the outputs as the steps made them, once all have run."""
        return tuple([self.slots[slot] for slot in self.program.outputs])

    def run(self, until: Callable[[Frame], bool] | None = None) -> Any:
        """Run the remaining steps, or those before ``until(frame)`` is true; return the outputs, or None where it stopped."""
        from .call import guarded, owned
        from .values import Outputs

        def steps() -> bool:
            while not self.done:
                if until is not None and until(self):
                    return False
                self.advance()
            return True

        with entered(active_contexts()):  # a guard may be a context that does not see what was entered
            if not guarded(self.program, steps):
                return None
        return Outputs(self.program.names, owned(self.program, self.results(), None))

    def values(self) -> dict[str, Any]:
        """Return what is held now, by name: inputs, and results of steps that something still needs.

        The arrays are the run's own: copy one to keep it beyond the next step.
        """
        names, fixed = self.program.plan.slot_names(), dict(self.program.plan.constants)
        held = enumerate(self.slots[: self.program.plan.slots])
        return {names[slot]: v for slot, v in held if v is not None and slot in names and slot not in fixed}

    def save(self, path: str | Path) -> None:
        """Write the values that are held, and the place, to a safetensors file; it appears whole or not at all."""
        import numpy as np
        from safetensors.numpy import save

        from ..ir.whole_files import write_whole

        fixed = dict(self.program.plan.constants)
        held = {
            str(slot): np.array(v, order="C")  # np.ascontiguousarray would give a scalar an axis
            for slot, v in enumerate(self.slots[: self.program.plan.slots])
            if v is not None and slot not in fixed
        }
        place = {"at": str(self.at), "graph": self.program.plan.graph.digest, "plan": self.program.plan.name}
        write_whole(Path(path), lambda file: file.write_bytes(save(held, place)))

    @classmethod
    def load(cls, path: str | Path, program: Program) -> Frame:
        """Read a saved frame and return it, ready to go on; the program must have the same plan."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="numpy") as file:
                place = file.metadata() or {}
                held = {int(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError, ValueError) as error:
            raise FormatError(f"{str(path)!r} holds no saved frame: {error}", code="E260") from None
        plan = program.plan
        if place.get("graph") != plan.graph.digest or place.get("plan") != plan.name:
            hint = "plan the same graph for the same inputs"
            raise InputError("the frame was saved for another plan", hint, code="E312")
        frame = cls(program, [None] * len(plan.inputs))
        at = int(place["at"]) if place.get("at", "").isdecimal() else -1
        types = {slot: t for _, slot, t in plan.inputs}
        types.update((slot, t) for step in plan.steps for slot, t in zip(step.writes, step.types, strict=True))
        foreign = [
            k for k, v in held.items() if k not in types or (v.shape, v.dtype) != (types[k].shape, types[k].dtype)
        ]
        if not 0 <= at <= len(program.entries) or foreign:
            what = f"value {foreign[0]}" if foreign else f"step {place.get('at')}"
            raise FormatError(f"{str(path)!r} holds no saved frame: {what} is not in the plan", code="E260")
        frame.at = at
        for slot, value in held.items():
            frame.slots[slot] = value
        return frame


class FirstToStop:
    """Several contexts, or one with a deadline, asked as one is: its ``reason`` is None until one of them stops the run."""

    __slots__ = ("active", "timed")

    def __init__(self, active: Sequence[Any]) -> None:
        self.active = active
        self.timed = [(context.clock, context.deadline) for context in active if context.deadline is not None]

    @property
    def reason(self) -> str | None:
        """Why the run has to stop."""
        for context in self.active:
            if context.reason is not None:
                return str(context.reason)
        for clock, deadline in self.timed:
            if clock() >= deadline:
                return "its time is over"
        return None


NEVER = SimpleNamespace(reason=None)  # of a run that keeps to no context


def stop_reason(active: Sequence[Any]) -> Any:
    """Return what is looked at before each step: a ``reason`` that is not None stops the run, which asks ``stop_run`` then."""
    if len(active) == 1 and active[0].deadline is None:
        return active[0]  # an attribute costs less than a call
    return FirstToStop(active) if active else NEVER


def stop_run(active: Sequence[Any], entries: Sequence[Entry], at: int) -> None:
    """Raise the error that stops a run before a step, with its place; a run that has done everything is over."""
    if at == len(entries):
        return
    step = entries[at].step
    for context in active:
        try:
            context.check(f" before step {at + 1} of {len(entries)} ({describe(step.op)})")
        except CancelledError as error:
            raise error.at(step.location) from None


def placed(error: TensorLogicError, step: Step) -> TensorLogicError:
    """Return an error that points at the line of a step; where ranks meet in the step, it names the step too."""
    if isinstance(step.op, ops.Collective):
        error.diagnostic = error.diagnostic.with_context(f"In step %{step.node}: {describe(step.op)}")
    return error.at(step.location)


def failed(graph: EinsumGraph, step: Step, values: Sequence[Any], error: Exception) -> TensorLogicError:
    """Return the error that names the step that failed, and its operands."""
    operands = [f"{getattr(v, 'dtype', type(v).__name__)} {getattr(v, 'shape', '')}".strip() for v in values]
    reason = str(error) or type(error).__name__
    if isinstance(error, OverflowError):  # NumPy does not say of which number
        large = [v for v in values if isinstance(v, int) and not -(2**63) <= v < 2**63]
        reason = f"the integer {large[0]} is too large" if large else reason
    if isinstance(error, IndexError) and isinstance(step.op, ops.Gather) and _reads_labels(graph, step.node):
        reason = re.sub(
            r"index (-?\d+) is out of range for an axis of (\d+) elements",
            lambda m: no_class(int(m[1]), int(m[2])),
            reason,
        )
    found = NodeExecutionDiagnostic.create(step.node, describe(step.op), reason, operands)
    kind = OutOfMemoryError if isinstance(error, MemoryError) else ExecutionError
    return kind.of(found if step.location is None else found.with_location(step.location))


def _reads_labels(graph: EinsumGraph, gather: int) -> bool:
    """Tell whether a gather reads the labels of a cross entropy, which has those below 0 refused."""
    marked = ops.Literal.of(BELOW_LABELS)
    read = [graph.nodes[a] for places in graph.nodes[gather].args[1:] for a in graph.nodes[places].args]
    return any(graph.nodes[a].op == marked for node in read for a in node.args)
