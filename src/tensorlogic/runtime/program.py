"""Programs: a plan bound to a backend, ready to be called.

Everything that can be known beforehand is: kernels, slots, constants, and where each result is written. The steps are also one straight-line
function over local variables, which looks nothing up. Its source holds nothing but our own names and numbers: ``s7 = k3(s2, s5, out=s9)``. Each
step has a line of its own, so that a traceback tells which step failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from functools import partial
from operator import itemgetter
from types import TracebackType
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
from .arena import ARENA, Work, arrays, can_be_written_over, recycled

if TYPE_CHECKING:
    from .call import Wrapper
    from .tuning import Choice

Function = Callable[..., tuple[Any, ...]]
FIRST = 3  # the line of the first step
# steps of one function; a longer plan runs step by step. Python compiles a step in 12 µs, a fifth of what planning it takes, and runs it 0.3 µs faster
MOST = 10_000
PIECE = (
    128  # of these, how many Python compiles at a time: it lets no other thread run meanwhile, an event loop neither
)
PARAMETERS = {
    False: ("values", "work"),
    True: ("values", "work", "note", "clock", "context", "stop"),
}  # of a timed one or not
KEPT = 4  # idle workspaces of one program
KEPT_BYTES = 1 << 28  # a larger workspace goes back to the system after each run


class Entry(NamedTuple):
    """One step, ready to run: its kernel, and the slots it reads, writes and lets go of."""

    step: Step
    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    work: Any  # the slot of the array to write into, or -1; a tuple of them where there are several results
    out: int  # the slot of a single result, or -1
    take: Callable[[list[Any]], Sequence[Any]]  # the operands among all slots


class Workspace(NamedTuple):
    """What one run at a time has for itself."""

    context: Context | None
    block: Any  # bytes of the arena that the arrays stand in, or None
    arrays: Sequence[Any]
    last: list[Any]  # the outputs of the last run, to be written again once nobody holds them
    seen: list[Any]  # references to the inputs of the last run, and the outputs that are written over one, if any


class Program:
    """A plan bound to a backend: the steps one by one, and the same as one function unless there are very many."""

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
        found = {k: donors[k] for k, w in places if k in donors and can_be_written_over(inputs, donors[k], w)}
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


def steps_source(
    entries: Sequence[Entry],
    inputs: Sequence[int],
    outputs: Sequence[int],
    work: Sequence[int],
    *,
    timed: bool = False,
    first: int = 0,
    name: str = "steps",
) -> str:
    """Return the text of the function ``steps(values, work)``; slots in ``work`` are the arrays to write into.

    A timed one takes ``note`` and ``clock`` too, and notes the time before the first step and after each. Then it looks whether
    ``context`` has a reason to stop the run, and calls ``stop`` with the number of the next step if so. A piece of a longer plan has
    another name and the number of its ``first`` step, and takes its values out of a list, so that nobody else holds them.

    >>> print(steps_source([], [0], [0], [1]))
    def steps(values, work):
        s0, = values; s1, = work
        return s0,
    """
    given = [(of, slots) for of, slots in (("values", inputs), ("work", work)) if slots]
    start = [f"{_names(slots)} = {of}" for of, slots in given] + ["values.clear()"] * (name != "steps")
    mark = "; note(clock()); context.reason is None or stop({})".format if timed else lambda _: ""
    begin = "" if first else mark(0)
    text = [f"def {name}({', '.join(PARAMETERS[timed])}):", f"    {'; '.join(start) or 'pass'}{begin}"]
    room = set(work)
    held = {slot for entry in entries if entry.work in room for slot in entry.writes}  # by their buffers, freed or not
    for n, entry in enumerate(entries, first):
        into = ""
        if isinstance(entry.work, tuple):
            into = f", out=({', '.join(f's{w}' if w in room else 'None' for w in entry.work)})"
        elif entry.work >= 0:
            into = f", out=s{entry.work}"
        results = ", ".join(f"s{s}" for s in entry.writes) + ("" if len(entry.writes) == 1 else ",")
        free = "".join(f"; s{s} = None" for s in entry.frees if s not in held)
        text.append(f"    {results} = k{n}({', '.join(f's{s}' for s in entry.reads)}{into}){free}{mark(n + 1)}")
    text.append(f"    return {', '.join(f's{s}' for s in outputs) or '()'}{',' if len(outputs) == 1 else ''}")
    return "\n".join(text)


def _names(slots: Sequence[int]) -> str:
    return "".join(f"s{slot}, " for slot in slots)[:-1]


def steps_function(
    entries: Sequence[Entry],
    inputs: Sequence[int],
    outputs: Sequence[int],
    work: Sequence[int],
    given: Mapping[int, Any],
    *,
    timed: bool = False,
) -> Function:
    """Return the function; ``given`` are the slots that hold constants."""
    names: dict[str, Any] = {f"s{slot}": value for slot, value in given.items()}
    names |= {f"k{n}": entry.kernel for n, entry in enumerate(entries)}
    text = steps_source if len(entries) <= PIECE else partial(_source_of_pieces, names)
    exec(compile(text(entries, inputs, outputs, work, timed=timed), "<plan>", "exec"), names)
    function: Function = names["steps"]
    return function


def _source_of_pieces(
    names: dict[str, Any],
    entries: Sequence[Entry],
    inputs: Sequence[int],
    outputs: Sequence[int],
    work: Sequence[int],
    *,
    timed: bool,
) -> str:
    """Put the functions of pieces among the names, and return the text of the function that calls one after the other."""
    rooms, needed = set(work), _needed(entries, outputs, names)
    more = "".join(f", {name}" for name in PARAMETERS[timed][2:])
    text = [f"def steps({', '.join(PARAMETERS[timed])}):"]
    text += [f"    {_names(slots)} = {of}" for of, slots in (("values", inputs), ("work", work)) if slots]
    for first in range(0, len(entries), PIECE):
        piece = entries[first : first + PIECE]
        reads, results = needed[first], needed[first + len(piece)]
        into = [w for entry in piece for w in (entry.work if isinstance(entry.work, tuple) else (entry.work,))]
        room = sorted(rooms.intersection(into))
        source = steps_source(piece, reads, results, room, timed=timed, first=first, name=f"p{first}")
        exec(compile("\n" * first + source, "<plan>", "exec"), names)  # so that the number of a line tells the step
        free = "".join(f"; s{slot} = None" for slot in reads if slot not in results)
        text.append(f"    values = [{_names(reads)}]{free}")
        text.append(f"    {_names(results) or '_'} = p{first}(values, ({_names(room)}){more})")
    return "\n".join([*text, f"    return {_names(outputs) or '()'}"])


def _needed(entries: Sequence[Entry], outputs: Sequence[int], names: Collection[str]) -> dict[int, list[int]]:
    """Return the slots that are read later, before the first step of each piece and after the last step of all; constants have names."""
    needed = set(outputs)
    found = {len(entries): needed}
    for n in reversed(range(len(entries))):
        needed = needed.difference(entries[n].writes).union(entries[n].reads)
        if n % PIECE == 0:
            found[n] = needed
    return {n: sorted(slot for slot in slots if f"s{slot}" not in names) for n, slots in found.items()}


def failed_at(function: Function, trace: TracebackType | None) -> tuple[int, dict[str, Any]] | None:
    """Return the number of the step at which such a function raised, and its variables; None where it was elsewhere."""
    found, names = None, getattr(function, "__globals__", None)
    while trace is not None:
        if trace.tb_frame.f_globals is names:  # its own, or a piece of it: the last of them is where it happened
            found = max(0, trace.tb_lineno - FIRST), trace.tb_frame.f_locals
        trace = trace.tb_next
    return found
