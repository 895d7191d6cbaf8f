"""The loop: a plan bound to a backend, run step by step over numbered slots.

Everything that can be known beforehand is: kernels, slots and constants. Batch, stream, retry and the rest drive this loop
or wrap its calls; none has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

from ..backends.base import Backend, Kernel
from ..diagnostics import NodeExecutionDiagnostic
from ..errors import ExecutionError, OutOfMemoryError, TensorLogicError
from ..events import Hook, RunRecord, StepEvent
from ..ir import ops
from ..plan.build import ExecutionPlan, Step, describe

Call = Callable[[Step, tuple[Any, ...]], Any]
Wrapper = Callable[[Call], Call]
_active = threading.local()  # the hooks of the run that this thread is in


class _Bound(NamedTuple):
    """One step, ready: with one or two operands their slots stand in ``a`` and ``b``, with others all of them in ``a``."""

    step: Step
    kernel: Kernel
    arity: int
    a: Any
    b: int
    out: Any  # a slot, or a tuple of them
    frees: tuple[int, ...]


class Program(NamedTuple):
    """A plan bound to a backend."""

    plan: ExecutionPlan
    backend: Backend
    template: list[Any]  # the slots before the first step: constants in place
    bound: list[_Bound]


def bind(plan: ExecutionPlan, backend: Backend, wrap: Sequence[Wrapper] = ()) -> Program:
    """Bind every step to a kernel; the wrappers go around each call, the first outermost."""
    template: list[Any] = [None] * plan.slots
    for slot, op in plan.constants:
        if isinstance(op, ops.Literal):
            template[slot] = op.value
        elif isinstance(op, ops.Constant):
            template[slot] = backend.asarray(plan.graph.constants[op.digest], None)

    def run_body(body: ExecutionPlan) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        inner = bind(body, backend, wrap)
        outputs = [slot for _, slot, _ in body.outputs]

        def run_it(values: Sequence[Any]) -> tuple[Any, ...]:
            hooks = getattr(_active, "hooks", ())
            slots = watched(inner, values, hooks, body=True) if hooks else run(inner, values)
            return tuple(slots[o] for o in outputs)

        return run_it

    bound = []
    for step in plan.steps:
        kernel = backend.bind(step, run_body)
        if wrap:
            kernel = _wrapped(step, kernel, wrap)
        reads = step.reads
        arity = len(reads) if 1 <= len(reads) <= 2 else 3
        out = step.writes[0] if len(step.writes) == 1 else step.writes
        a: Any = reads[0] if arity < 3 else reads
        bound.append(_Bound(step, kernel, arity, a, reads[1] if arity == 2 else 0, out, step.frees))
    return Program(plan, backend, template, bound)


def _wrapped(step: Step, kernel: Kernel, wrap: Sequence[Wrapper]) -> Kernel:
    def innermost(_: Step, args: tuple[Any, ...]) -> Any:
        return kernel(*args)

    call: Call = innermost
    for wrapper in reversed(wrap):
        call = wrapper(call)
    return lambda *args: call(step, args)


def run(
    program: Program, inputs: Sequence[Any], record: RunRecord | None = None, live: Sequence[Hook] = ()
) -> list[Any]:
    """Run a program on the values of its inputs and return the slots; with a record, note when each step ran."""
    slots = program.template.copy()
    for (_, slot, _), value in zip(program.plan.inputs, inputs, strict=True):
        slots[slot] = value
    if record is not None:
        _run_watched(program, slots, record, live)
        return slots
    entry: _Bound | None = None
    try:
        for entry in program.bound:
            _, kernel, arity, a, b, out, frees = entry
            if arity == 2:
                value = kernel(slots[a], slots[b])
            elif arity == 1:
                value = kernel(slots[a])
            else:
                value = kernel(*[slots[i] for i in a])
            if type(out) is int:
                slots[out] = value
            else:
                for slot, part in zip(out, value, strict=True):
                    slots[slot] = part
            for slot in frees:
                slots[slot] = None
    except TensorLogicError as error:
        raise error.at(entry.step.location if entry else None) from error.__cause__
    except Exception as error:
        assert entry is not None
        raise _failed(entry.step, slots, error) from error
    return slots


def _run_watched(program: Program, slots: list[Any], record: RunRecord, live: Sequence[Hook]) -> None:
    """Run the steps as :func:`run` does, with a reading of the clock before the first and after each."""
    clock, note = perf_counter_ns, record.times.append
    entry: _Bound | None = None
    running = True  # an error in a hook is the hook's, not the step's
    note(clock())
    try:
        for entry in program.bound:
            if live:
                record.starts.append(clock())
            _, kernel, arity, a, b, out, frees = entry
            if arity == 2:
                value = kernel(slots[a], slots[b])
            elif arity == 1:
                value = kernel(slots[a])
            else:
                value = kernel(*[slots[i] for i in a])
            if type(out) is int:
                slots[out] = value
            else:
                for slot, part in zip(out, value, strict=True):
                    slots[slot] = part
            for slot in frees:
                slots[slot] = None
            note(clock())
            if live:
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
        raise _failed(entry.step, slots, error) from error


def watched(program: Program, inputs: Sequence[Any], hooks: Sequence[Hook], *, body: bool = False) -> list[Any]:
    """Run a program and tell the hooks; only those that ask for values are called during the run."""
    record = RunRecord(program.plan, thread=threading.get_ident(), body=body)
    around = getattr(_active, "hooks", ())
    _active.hooks = hooks  # for the bodies that run inside
    live = [h for h in hooks if type(h).on_step is not Hook.on_step]
    try:
        for hook in hooks:
            hook.on_start(program.plan, inputs, body=body)
        return run(program, inputs, record, live)
    finally:
        _active.hooks = around
        for hook in hooks:
            hook.on_run(record)


def _failed(step: Step, slots: Sequence[Any], error: Exception) -> TensorLogicError:
    operands = [
        f"{getattr(slots[s], 'dtype', type(slots[s]).__name__)} {getattr(slots[s], 'shape', '')}".strip()
        for s in step.reads
    ]
    found = NodeExecutionDiagnostic.create(step.node, describe(step.op), str(error) or type(error).__name__, operands)
    kind = OutOfMemoryError if isinstance(error, MemoryError) else ExecutionError
    return kind.of(found if step.location is None else found.with_location(step.location))
