"""The loop: a plan bound to a backend, run step by step over numbered slots.

Everything that can be known beforehand is: kernels, slots and constants. Batch, stream, retry and the rest drive this loop
or wrap its calls; none has its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from sys import getrefcount
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from ..backends.base import Backend, InPlaceBackend, Kernel
from ..diagnostics import NodeExecutionDiagnostic
from ..errors import ExecutionError, OutOfMemoryError, TensorLogicError
from ..events import Hook, RunRecord, StepEvent, fine, running
from ..ir import ops
from ..ir.types import TensorType
from ..passes.indices import dims
from ..plan.build import ExecutionPlan, Step, describe
from ..plan.cost import nbytes
from . import straight

Call = Callable[[Step, tuple[Any, ...]], Any]
Wrapper = Callable[[Call], Call]


class _Bound(NamedTuple):
    """One step, ready: with one or two operands their slots stand in ``a`` and ``b``, with others all of them in ``a``."""

    step: Step
    kernel: Kernel
    arity: int
    a: Any
    b: int
    work: Any  # the slot of the array to write into, or -1; a tuple of them where there are several results
    out: Any  # a slot, or a tuple of them
    frees: tuple[int, ...]


class Team(Protocol):
    """What runs a program in another form."""

    @property
    def leader(self) -> Program:
        """The program that runs now."""

    @property
    def finest(self) -> Program:
        """The program with a step for each operation."""

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Run it."""

    def explain(self) -> str:
        """Say how it runs, and why."""


class Program:
    """A plan bound to a backend: the steps one by one, and the same as one function where the plan is short."""

    __slots__ = (
        "_timed", "bound", "context", "fresh", "function", "idle", "names", "outputs", "owned", "plan", "small", "team",
        "template", "types", "work",
    )  # fmt: skip

    def __init__(
        self, plan: ExecutionPlan, template: list[Any], bound: list[_Bound], work: list[Work], context: Context | None
    ) -> None:
        self.plan, self.template, self.bound, self.work, self.context = plan, template, bound, work, context
        self.outputs = [slot for _, slot, _ in plan.outputs]
        self.names = tuple(name for name, _, _ in plan.outputs)
        self.owned = [slot not in plan.shared for _, slot, _ in plan.outputs]  # outputs that are nobody else's memory
        self.function = self._straight() if len(bound) <= straight.MOST else None
        self._timed: straight.Function | None = None
        self.idle: list[Workspace] = []  # of runs that are over
        self.fresh = [w for w in work if w.buffer < 0]
        self.small = sum(plan.buffers) + sum(nbytes(plan.outputs[-1 - w.buffer][2]) for w in self.fresh) <= KEPT_BYTES
        self.types = [(name, t) for name, _, t in plan.outputs]
        self.team: Team | None = None  # what runs it instead, in another form

    def _straight(self, *, timed: bool = False) -> straight.Function:
        lines = [straight.Line(e.kernel, _reads(e), e.step.writes, e.frees, e.work) for e in self.bound]
        given = {slot: value for slot, value in enumerate(self.template) if value is not None}
        inputs = [slot for _, slot, _ in self.plan.inputs]
        return straight.function(lines, inputs, self.outputs, [w.slot for w in self.work], given, timed=timed)

    @property
    def timed(self) -> straight.Function | None:
        """The function that also notes the time of each step, made when first asked for; None of a long plan."""
        if self._timed is None and self.function is not None:
            self._timed = self._straight(timed=True)
        return self._timed

    def workspace(self) -> Workspace:
        """Return arrays to write into, and a context to run in, that no other run has."""
        try:
            return self.idle.pop()
        except IndexError:
            own = None if self.context is None else self.context.copy()  # one context serves one run at a time
            inner = [w for w in self.work if w.buffer >= 0]
            return Workspace(own, arrays(self.plan.buffers, inner) if inner else [], [None] * len(self.fresh))

    def targets(
        self, workspace: Workspace, given: Sequence[Any] | None = None, inputs: Sequence[Any] = ()
    ) -> Sequence[Any]:
        """Return the arrays to write into, with one for each output that takes one: given, or free again, or new.

        One that is given but shows an input is not written during the run, because the input may still be read.
        """
        if not self.fresh:
            return workspace.arrays
        made = []
        for n, w in enumerate(self.fresh):
            array = given[-1 - w.buffer] if given is not None else None
            if array is None or not array.flags.c_contiguous or any(may_share(array, x) for x in inputs):
                array = recycled(workspace.last, n, w.shape, w.dtype)
            made.append(array)
        return [*workspace.arrays, *made]

    def leave(self, workspace: Workspace) -> None:
        """Keep the arrays of a run that is over for the next one, unless that would hold much memory for long."""
        if len(self.idle) < KEPT and self.small:
            self.idle.append(workspace)


class Workspace(NamedTuple):
    """What one run at a time has for itself."""

    context: Context | None
    arrays: Sequence[Any]
    last: list[Any]  # the outputs of the last run, to be written again once nobody holds them


class Work(NamedTuple):
    """An array to write into: its slot, the buffer that holds it (-1 - k: output k), its shape and dtype."""

    slot: int
    buffer: int
    shape: tuple[int, ...]
    dtype: str


KEPT = 4  # idle workspaces of one program
KEPT_BYTES = 1 << 28  # a larger workspace goes back to the system after each run


def _holders(arrays: list[Any], n: int) -> int:
    array = arrays[n]
    return getrefcount(array)


UNHELD = _holders([object()], 0)  # what the interpreter counts for something that only a list holds


def recycled(last: list[Any], n: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the n-th array of a list where nobody else holds it any more, else a new one, which takes its place."""
    if last[n] is None or _holders(last, n) > UNHELD:
        last[n] = empty(shape, dtype)
    return last[n]


def may_share(a: Any, b: Any) -> bool:
    """Tell whether two arrays may stand in the same memory."""
    import numpy as np

    return np.may_share_memory(a, b)


def empty(shape: tuple[int, ...], dtype: str) -> Any:
    """Return a new array."""
    import numpy as np

    return np.empty(shape, dtype)


def arrays(sizes: Sequence[int], work: Sequence[Work]) -> list[Any]:
    """Allocate buffers and return the arrays over them, aligned for vector units."""
    import numpy as np

    whole = np.empty(sum(sizes) + 64, np.uint8)
    start = -whole.ctypes.data % 64
    at = []
    for size in sizes:
        at.append(whole[start : start + size])
        start += size
    return [
        at[w.buffer][: math.prod(w.shape) * np.dtype(w.dtype).itemsize].view(w.dtype).reshape(w.shape) for w in work
    ]


def _reads(entry: _Bound) -> tuple[int, ...]:
    return (entry.a, entry.b) if entry.arity == 2 else (entry.a,) if entry.arity == 1 else entry.a


def bind(plan: ExecutionPlan, backend: Backend, wrap: Sequence[Wrapper] = ()) -> Program:
    """Bind every step to a kernel; the wrappers go around each call, the first outermost."""
    able = backend if isinstance(backend, InPlaceBackend) and not wrap else None
    template: list[Any] = [None] * plan.slots
    literals: dict[int, Any] = {}
    for slot, op in plan.constants:
        if isinstance(op, ops.Literal):
            template[slot] = literals[slot] = op.value
        elif isinstance(op, ops.Constant):
            template[slot] = backend.asarray(plan.graph.constants[op.digest], None)

    def run_body(body: ExecutionPlan) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        inner = bind(body, backend, wrap)

        def run_it(values: Sequence[Any]) -> tuple[Any, ...]:
            hooks = getattr(running, "hooks", ())
            return watched(inner, values, hooks, body=True) if hooks else run(inner, values)

        return run_it

    bound = []
    work: list[Work] = []
    fresh: dict[int, Work] = {}
    for step in plan.steps:
        reads: tuple[int, ...] = step.reads
        into: int | tuple[int, ...] = -1
        if able is not None and isinstance(step.op, ops.Elementwise):
            reads = _scalars(step, literals, template, able)
        if able is not None and step.into:
            kernel = able.bind_into(step)
            slots = tuple(_room(b, t, template, work, fresh) for b, t in zip(step.into, step.types, strict=True))
            into = slots[0] if len(slots) == 1 else slots
        else:
            kernel = backend.bind(step, run_body)
            if wrap:
                kernel = _wrapped(step, kernel, wrap)
        arity = len(reads) if 1 <= len(reads) <= 2 else 3
        out = step.writes[0] if len(step.writes) == 1 else step.writes
        a: Any = reads[0] if arity < 3 else reads
        bound.append(_Bound(step, kernel, arity, a, reads[1] if arity == 2 else 0, into, out, step.frees))
    return Program(plan, template, bound, [*work, *fresh.values()], None if able is None else able.context())


def _room(buffer: int | None, t: TensorType, template: list[Any], work: list[Work], fresh: dict[int, Work]) -> int:
    """Return the slot of the array that a result is written into; a slot that stays empty lets the kernel make one."""
    if buffer is not None and buffer in fresh:
        return fresh[buffer].slot
    template.append(None)
    needed = Work(len(template) - 1, 0, dims(t), t.dtype or "float64")
    if buffer is not None and buffer < 0:
        fresh[buffer] = needed._replace(buffer=buffer)
    elif buffer is not None:
        work.append(needed._replace(buffer=buffer))
    return needed.slot


def _scalars(step: Step, literals: Mapping[int, Any], template: list[Any], backend: InPlaceBackend) -> tuple[int, ...]:
    """Give an element-wise step its Python scalars as arrays, which need no conversion in each run."""
    reads = []
    picks = isinstance(step.op, ops.Elementwise) and step.op.fn == "where"  # its first operand shares no dtype
    types = step.arg_types[1:] if picks else step.arg_types
    for n, slot in enumerate(step.reads):
        if slot in literals and not (picks and n == 0):
            template.append(backend.scalar(literals[slot], types))
            slot = len(template) - 1
        reads.append(slot)
    return tuple(reads)


def _wrapped(step: Step, kernel: Kernel, wrap: Sequence[Wrapper]) -> Kernel:
    def innermost(_: Step, args: tuple[Any, ...]) -> Any:
        return kernel(*args)

    call: Call = innermost
    for wrapper in reversed(wrap):
        call = wrapper(call)
    return lambda *args: call(step, args)


def run(program: Program, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
    """Run a program on the values of its inputs and return its outputs; ``out`` holds arrays to write them into, or None."""
    if program.team is not None:
        return program.team.run(inputs, out)
    return run_alone(program, inputs, out)


def run_alone(program: Program, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
    """Run a program on this thread."""
    workspace = program.workspace()
    arrays = program.targets(workspace, out, inputs) if program.fresh else workspace.arrays
    context, function = workspace.context, program.function
    if function is None:
        call = partial(_loop, program, record=None, live=())
        outputs = context.run(call, inputs, arrays) if context is not None else call(inputs, arrays)
    else:
        try:
            outputs = context.run(function, inputs, arrays) if context is not None else function(inputs, arrays)
        except Exception as error:
            raise _blamed(program, function, error) from _cause(error)
    program.leave(workspace)
    return outputs


def _cause(error: Exception) -> BaseException | None:
    return error.__cause__ if isinstance(error, TensorLogicError) else error


def _blamed(program: Program, function: straight.Function, error: Exception) -> Exception:
    """Return the error that names the step which a function failed at."""
    found = straight.failed_at(function.__code__, error.__traceback__)
    step = program.bound[found[0]].step if found and found[0] < len(program.bound) else None
    if isinstance(error, TensorLogicError):
        return error.at(step.location if step else None)
    if step is None or found is None:
        return error
    return _failed(step, [found[1].get(f"s{s}", program.template[s]) for s in step.reads], error)


def _loop(
    program: Program, inputs: Sequence[Any], workspace: Sequence[Any], record: RunRecord | None, live: Sequence[Hook]
) -> tuple[Any, ...]:
    """Run the steps one by one; with a record, read the clock before the first and after each."""
    slots = program.template.copy()
    for (_, slot, _), value in zip(program.plan.inputs, inputs, strict=True):
        slots[slot] = value
    for w, array in zip(program.work, workspace, strict=True):
        slots[w.slot] = array
    clock, note = perf_counter_ns, None if record is None else record.times.append
    entry: _Bound | None = None
    running = True  # an error in a hook is the hook's, not the step's
    if note:
        note(clock())
    try:
        for entry in program.bound:
            if live and record is not None:
                record.starts.append(clock())
            _, kernel, arity, a, b, work, out, frees = entry
            if work == -1:
                if arity == 2:
                    value = kernel(slots[a], slots[b])
                elif arity == 1:
                    value = kernel(slots[a])
                else:
                    value = kernel(*[slots[i] for i in a])
            elif type(work) is tuple:
                value = kernel(*[slots[i] for i in _reads(entry)], out=[slots[w] for w in work])
            elif arity == 2:
                value = kernel(slots[a], slots[b], out=slots[work])
            elif arity == 1:
                value = kernel(slots[a], out=slots[work])
            else:
                value = kernel(*[slots[i] for i in a], out=slots[work])
            if type(out) is int:
                slots[out] = value
            else:
                for slot, part in zip(out, value, strict=True):
                    slots[slot] = part
            for slot in frees:
                slots[slot] = None
            if note:
                note(clock())
            if live and record is not None:
                running = False
                event = StepEvent(len(record.starts) - 1, record.starts[-1], record.times[-1])
                values = (value,) if type(out) is int else tuple(value)
                for hook in live:
                    hook.on_step(program.plan, event, values)
                running = True
    except TensorLogicError as error:
        raise error.at(entry.step.location if entry and running else None) from error.__cause__
    except Exception as error:
        if entry is None or not running:
            raise
        raise _failed(entry.step, [slots[s] for s in entry.step.reads], error) from error
    return tuple([slots[slot] for slot in program.outputs])


def run_entries(program: Program, slots: list[Any], chain: Sequence[int]) -> None:
    """Run some steps of a program over slots that others may be filling at the same time; nothing is let go of."""
    for n in chain:
        entry = program.bound[n]
        values = [slots[i] for i in _reads(entry)]
        try:
            value = entry.kernel(*values)
        except TensorLogicError as error:
            raise error.at(entry.step.location) from error.__cause__
        except Exception as error:
            raise _failed(entry.step, values, error) from error
        if type(entry.out) is int:
            slots[entry.out] = value
        else:
            for slot, part in zip(entry.out, value, strict=True):
                slots[slot] = part


def watched(program: Program, inputs: Sequence[Any], hooks: Sequence[Hook], *, body: bool = False) -> tuple[Any, ...]:
    """Run a program and tell the hooks; only those that ask for values are called during the run."""
    live = [h for h in hooks if type(h).on_step is not Hook.on_step]
    if program.team is not None:
        program = program.team.finest if fine(hooks) else program.team.leader
    record = RunRecord(program.plan, thread=threading.get_ident(), body=body)
    around = getattr(running, "hooks", ())
    running.hooks = hooks  # for the bodies that run inside
    workspace = program.workspace()
    arrays = program.targets(workspace)
    try:
        for hook in hooks:
            hook.on_start(program.plan, inputs, body=body)
        timed = None if live else program.timed
        if timed is None:
            outputs = _loop(program, inputs, arrays, record, live)
        else:
            try:
                outputs = timed(inputs, arrays, record.times.append, perf_counter_ns)
            except Exception as error:
                raise _blamed(program, timed, error) from _cause(error)
    finally:
        running.hooks = around
        for hook in hooks:
            hook.on_run(record)
    program.leave(workspace)
    return outputs


def _failed(step: Step, values: Sequence[Any], error: Exception) -> TensorLogicError:
    operands = [f"{getattr(v, 'dtype', type(v).__name__)} {getattr(v, 'shape', '')}".strip() for v in values]
    found = NodeExecutionDiagnostic.create(step.node, describe(step.op), str(error) or type(error).__name__, operands)
    kind = OutOfMemoryError if isinstance(error, MemoryError) else ExecutionError
    return kind.of(found if step.location is None else found.with_location(step.location))
