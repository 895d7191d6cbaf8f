"""Programs: a plan bound to a backend, ready to be called.

Everything that can be known beforehand is: kernels, slots, constants, and where each result is written. A short plan is also one function
(see straight_line).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from operator import itemgetter
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from ..backends.base import Backend, InPlaceBackend, Kernel
from ..events import Hook, check_contexts, fine
from ..ir import ops
from ..ir.types import TensorType, dims
from ..plan.build import ExecutionPlan, Step, lay_out
from ..plan.cost import nbytes
from ..plan.fused_steps import NESTED, Fused
from .arena import ARENA
from .straight_line import Entry, Function, steps_function

if TYPE_CHECKING:
    from .call import Wrapper
    from .tuning import Choice

MOST = 1000  # steps of one function; a longer plan runs step by step, which does not matter then
KEPT = 4  # idle workspaces of one program
KEPT_BYTES = 1 << 28  # a larger workspace goes back to the system after each run


class Work(NamedTuple):
    """An array to write into: its slot, the buffer that holds it (-1 - k: output k), its shape and dtype."""

    slot: int
    buffer: int
    shape: tuple[int, ...]
    dtype: str


class Workspace(NamedTuple):
    """What one run at a time has for itself."""

    context: Context | None
    block: Any  # bytes of the arena that the arrays stand in, or None
    arrays: Sequence[Any]
    last: list[Any]  # the outputs of the last run, to be written again once nobody holds them
    seen: list[Any]  # references to the inputs of the last run, and the outputs that are written over one, if any


class Program:
    """A plan bound to a backend: the steps one by one, and the same as one function where the plan is short."""

    __slots__ = (
        "_fine", "_flops", "_peak_bytes", "_separate", "_timed", "backend", "brief", "choice", "context", "entries",
        "fresh", "function", "idle", "inner", "kernels", "names", "outputs", "owned", "plan", "quick_runs",
        "single_owned_output", "small", "template", "trusted", "types", "verified", "work",
    )  # fmt: skip

    def __init__(
        self,
        plan: ExecutionPlan,
        backend: Backend,
        template: list[Any],
        entries: list[Entry],
        work: list[Work],
        context: Context | None,
        inner: list[Program],
    ) -> None:
        self.plan, self.backend, self.template, self.entries, self.work = plan, backend, template, entries, work
        self.context, self.inner = context, inner
        self.outputs = [slot for _, slot, _ in plan.outputs]
        self.names = tuple(name for name, _, _ in plan.outputs)
        self.types = [(name, t) for name, _, t in plan.outputs]
        self.owned = [slot not in plan.shared for _, slot, _ in plan.outputs]  # outputs that are nobody else's memory
        self.single_owned_output = self.owned == [True]  # one output, which the caller may have as it is
        self.trusted = context is not None  # kernels of ours, none wrapped: what they make is what the plan says
        self.verified = False  # whether its outputs were seen to be what the plan says
        self.function = self._straight() if len(entries) <= MOST else None
        self._timed: Function | None = None
        self._fine: Program | None = None
        self._separate: Program | None = None
        self._peak_bytes: int | None = None
        self._flops: int | None = None
        self.brief: bool | None = None  # whether it takes microseconds, once somebody has asked
        self.quick_runs = 0  # awaited runs in a row that took less than a millisecond
        self.idle: list[Workspace] = []  # of runs that are over
        self.fresh = [w for w in work if w.buffer < 0]
        self.small = sum(plan.buffers) + sum(nbytes(plan.outputs[-1 - w.buffer][2]) for w in self.fresh) <= KEPT_BYTES
        self.choice: Choice | None = None  # why this plan was chosen
        self.kernels: list[str] = []  # what was compiled for it, in words

    def _straight(self, *, timed: bool = False) -> Function:
        given = {slot: value for slot, value in enumerate(self.template) if value is not None}
        inputs = [slot for _, slot, _ in self.plan.inputs]
        return steps_function(self.entries, inputs, self.outputs, [w.slot for w in self.work], given, timed=timed)

    @property
    def timed(self) -> Function | None:
        """The function that also notes the time of each step, made when first asked for; None of a long plan."""
        if self._timed is None and self.function is not None:
            self._timed = self._straight(timed=True)
        return self._timed

    def apart(self, hooks: Sequence[Hook]) -> Program:
        """Return the program that hooks see: one with a step for each operation, and where one may stop the run, one that reuses no memory."""
        if not fine(hooks):
            return self
        found = self.fine
        if any(h.stops for h in hooks) and any(step.into for step in found.plan.steps):
            found._separate = found._separate or bind(lay_out(self.plan.graph), self.backend)
            return found._separate
        return found

    @property
    def peak_bytes(self) -> int:
        """The most memory that the plan takes, worked out once."""
        if self._peak_bytes is None:
            self._peak_bytes = self.plan.peak_bytes
        return self._peak_bytes

    @property
    def flops(self) -> int:
        """The arithmetic of the plan, worked out once."""
        if self._flops is None:
            self._flops = self.plan.flops
        return self._flops

    @property
    def fine(self) -> Program:
        """The program with one step for each operation: itself where no step holds several, or where parts keep to a budget."""
        kinds = {step.op.kind for step in self.plan.steps if isinstance(step.op, Fused)}
        if (
            not kinds
            or "relations" in kinds
            or any(step.cut is not None and step.cut.threads == 1 for step in self.plan.steps)
        ):
            return self
        if self._fine is None:
            self._fine = bind(lay_out(self.plan.graph, in_place=self.trusted), self.backend)
        return self._fine

    def workspace(self) -> Workspace:
        """Return arrays to write into, and a context to run in, that no other run has."""
        try:
            return self.idle.pop()
        except IndexError:
            own = None if self.context is None else self.context.copy()  # one context serves one run at a time
            buffers = [w for w in self.work if w.buffer >= 0]
            block, views = arrays(self.plan.buffers, buffers) if buffers else (None, [])
            return Workspace(own, block, views, [None] * len(self.fresh), [])

    def targets(
        self, workspace: Workspace, given: Sequence[Any] | None = None, inputs: Sequence[Any] = ()
    ) -> Sequence[Any]:
        """Return the arrays to write into, with one for each output that takes one: given, donated, free again, or new.

        One that is given but shows an input is not written during the run, because the input may still be read.
        """
        if not self.fresh:
            return workspace.arrays
        donated = self._donated(workspace, inputs) if self.plan.donors else {}
        chosen = []
        for n, w in enumerate(self.fresh):
            k = -1 - w.buffer
            array = given[k] if given is not None else None
            if array is None and k in donated:
                array = inputs[donated[k]]
            elif array is None or not array.flags.c_contiguous or any(np.may_share_memory(array, x) for x in inputs):
                array = recycled(workspace.last, n, w.shape, w.dtype)
            chosen.append(array)
        return [*workspace.arrays, *chosen]

    def _donated(self, workspace: Workspace, inputs: Sequence[Any]) -> dict[int, int]:
        """Return which input the array of an output is written over; for the very arrays of the last run that is known."""
        if workspace.seen:
            before, found = workspace.seen[0]
            same = all(r() is x for r, x in zip(before, inputs, strict=True))
            if same and all(inputs[n].flags.writeable for n in found.values()):
                known: dict[int, int] = found
                return known
        donors = dict(self.plan.donors)
        places = [(-1 - w.buffer, w) for w in self.fresh]
        found = {k: donors[k] for k, w in places if k in donors and _can_be_written_over(inputs, donors[k], w)}
        workspace.seen[:] = [([ref(x) for x in inputs], found)] if all(type(x) is np.ndarray for x in inputs) else []
        return found

    def leave(self, workspace: Workspace) -> None:
        """Keep the arrays of a run that is over for the next one, unless that would hold much memory for long."""
        if len(self.idle) < KEPT and self.small:
            self.idle.append(workspace)
        elif workspace.block is not None and self.small:
            ARENA.give(workspace.block)

    def release(self) -> None:
        """Give what is kept for the next run back to the system."""
        self.idle.clear()
        for program in self.inner:
            program.release()


def _holders(arrays: list[Any], n: int) -> int:
    array = arrays[n]
    return getrefcount(array)


UNHELD = _holders([object()], 0)  # what the interpreter counts for something that only a list holds


def recycled(last: list[Any], n: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the n-th array of a list where nobody else holds it any more, else a new one, which takes its place."""
    if last[n] is None or _holders(last, n) > UNHELD:
        last[n] = np.empty(shape, dtype)
    return last[n]


def _can_be_written_over(inputs: Sequence[Any], n: int, work: Work) -> bool:
    """Tell whether a donated array can be written into: it is a plain one, and shows no other input."""
    array, flags = inputs[n], inputs[n].flags
    plain = flags.c_contiguous and flags.writeable and flags.aligned and array.dtype == work.dtype
    return plain and not any(np.may_share_memory(array, x) for k, x in enumerate(inputs) if k != n)


def arrays(sizes: Sequence[int], work: Sequence[Work]) -> tuple[Any, list[Any]]:
    """Take buffers from the arena and return their block and the arrays over it, aligned for vector units."""
    block = ARENA.take(sum(sizes))
    at, start = [], 0
    for size in sizes:
        at.append(block[start : start + size])
        start += size
    return block, [
        at[w.buffer][: math.prod(w.shape) * np.dtype(w.dtype).itemsize].view(w.dtype).reshape(w.shape) for w in work
    ]


def bind(plan: ExecutionPlan, backend: Backend, wrap: Sequence[Wrapper] = ()) -> Program:
    """Bind every step to a kernel; the wrappers go around each call, the first outermost."""
    able = backend if isinstance(backend, InPlaceBackend) and not wrap else None
    template: list[Any] = [None] * plan.slots
    literals: dict[int, Any] = {}
    inner: list[Program] = []
    for slot, op in plan.constants:
        if isinstance(op, ops.Literal):
            template[slot] = literals[slot] = op.value
        elif isinstance(op, ops.Constant):
            template[slot] = backend.asarray(plan.graph.constants[op.digest], None)

    def run_body(body: ExecutionPlan) -> Any:
        from .call import body_runner

        inner.append(bind(body, backend, wrap))
        return body_runner(inner[-1])

    sparse = {slot for _, slot, t in plan.inputs if t.layout == "sparse"}
    entries = []
    work: list[Work] = []
    fresh: dict[int, Work] = {}
    for step in plan.steps:
        check_contexts(" while it was being planned")  # binding may take long: it compiles
        reads: tuple[int, ...] = step.reads
        into: int | tuple[int, ...] = -1
        if able is not None and isinstance(step.op, ops.Elementwise):
            reads = _scalars(step, literals, template, able)
        nested = isinstance(step.op, Fused) and step.op.kind in NESTED
        if able is not None and step.into:
            slots = tuple(_room(b, t, template, work, fresh) for b, t in zip(step.into, step.types, strict=True))
            into = slots[0] if len(slots) == 1 else slots
        if nested:
            from .parts import bind_nested

            programs = [bind(body, backend, wrap) for body in step.bodies]
            inner += programs
            kernel = bind_nested(step, programs)
        elif able is not None and step.into:
            kernel = able.bind_into(step)
        else:
            kernel = backend.bind(step, run_body)
            if wrap:
                from .call import wrapped

                kernel = wrapped(step, kernel, wrap)
        sparse.update(slot for slot, t in zip(step.writes, step.types, strict=True) if t.layout == "sparse")
        if (
            sparse
            and not sparse.isdisjoint(step.reads)
            and not (isinstance(step.op, Fused) and step.op.kind == "relations")
        ):
            kernel = _on_arrays(kernel)
        out = step.writes[0] if len(step.writes) == 1 else -1
        entries.append(Entry(step, kernel, reads, step.writes, step.frees, into, out, _taker(reads)))
    context = None if able is None else able.context()
    return Program(plan, backend, template, entries, [*work, *fresh.values()], context, inner)


def _on_arrays(kernel: Kernel) -> Kernel:
    """Return a kernel that is given relations as arrays."""
    return lambda *operands, **options: kernel(
        *[np.asarray(x) if hasattr(x, "layout") else x for x in operands], **options
    )


def _taker(reads: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return what takes some slots out of all of them, always as a sequence."""
    if len(reads) > 1:
        return itemgetter(*reads)
    return itemgetter(slice(reads[0], reads[0] + 1) if reads else slice(0))


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
