"""The one function that every run goes through. The arrays it returns belong to the caller.

Batch, stream, retry, budgets, bodies and the rest drive this call or wrap the calls of its steps; none has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..backends.base import Kernel
from ..errors import TensorLogicError
from ..events import ExecutionPhase, Hook, RunRecord, StepEvent, running
from ..ir.graph import EinsumGraph
from ..plan.build import Step
from .context import ExecutionContext
from .frame import Between, Frame, failed, placed, stop_reason, stop_run
from .program import KEPT, Function, Program, failed_at
from .values import Outputs, arrays_for, as_planned, write_outputs

Call = Callable[[Step, tuple[Any, ...]], Any]
Wrapper = Callable[[Call], Call]
T = TypeVar("T")
_EXECUTION, _COMPLETE = ExecutionPhase.EXECUTION, ExecutionPhase.COMPLETE


def call(
    program: Program,
    values: Sequence[Any],
    hooks: Sequence[Hook] = (),
    out: Sequence[Any] | None = None,
    between: Between | None = None,
    active: Sequence[ExecutionContext] | None = None,
) -> Sequence[Any]:
    """Run a program on the values of its inputs; ``out`` holds arrays of the caller's to write outputs into, or None.

    ``between`` is given the frame of the run before each step, to save it or to remember it. ``active`` are the contexts that the run keeps
    to, where the caller has looked already.
    What an output shares is settled by the program that ran: an output that shows an input, a constant or another output is copied.
    """
    if hooks:
        results = _watched_call(program, values, hooks, out, between)
    else:
        results = run(program, values, out, between, active)
    if out is None and program.single_owned_output and program.verified and type(results[0]) is np.ndarray:
        return results
    return owned(program, results, out)


class LastCall(NamedTuple):
    """A graph, what its inputs were, and the program that ran."""

    graph: EinsumGraph
    signature: tuple[tuple[str, type[Any], Any, Any], ...]
    program: Program


class LastCalls(dict[int, LastCall]):
    """By the id of a graph, the call it was last run with; one that is just like it needs no planning."""

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def remember(self, graph: EinsumGraph, names: list[str], values: list[Any], program: Program) -> None:
        """Keep what the next call of a graph compares itself with first."""
        if len(self) >= self._bound:
            self.clear()
        signature = tuple((n, type(v), v.shape, v.dtype) for n, v in zip(names, values, strict=True))
        self[id(graph)] = LastCall(graph, signature, program)

    def of(self, graph: EinsumGraph) -> LastCall | None:
        """Return the last call of a graph, where there was one."""
        return self.get(id(graph))

    def release(self, graph: EinsumGraph) -> None:
        """Give the memory that the last run of a graph keeps for the next one back to the system."""
        if (last := self.pop(id(graph), None)) is not None:
            last.program.release()


def same_again(ready: LastCall, graph: EinsumGraph, inputs: Any) -> list[Any] | None:
    """Return the values of inputs that are just like the last ones, so that nothing else needs checking; else None."""
    if ready.graph is not graph or type(inputs) is not dict or len(inputs) != len(ready.signature):
        return None
    given: dict[str, Any] = inputs
    values = []
    for name, kind, shape, dtype in ready.signature:
        value: Any = given.get(name)
        if type(value) is not kind or value.dtype is not dtype or value.shape != shape:
            return None
        values.append(value)
    return values


def run_program(
    context: ExecutionContext,
    program: Program,
    values: Sequence[Any],
    out: Mapping[str, Any] | None,
    hooks: Sequence[Hook],
    active: Sequence[ExecutionContext] | None = None,
    between: Between | None = None,
) -> Outputs:
    """Run a program as its contexts allow, telling the executor's own of the phases; ``out`` holds arrays by name."""
    active = running.contexts if active is None else active
    for each in active:
        each.admit(program)
    targets = None if out is None else arrays_for(program.types, out)
    if hooks:
        context.notify(_EXECUTION)
        outputs = call(program, values, hooks, targets, between)
        context.notify(_COMPLETE)
    else:
        context.phase = _EXECUTION
        outputs = call(program, values, (), targets, between, active)
        context.phase = _COMPLETE
    return Outputs(program.names, outputs)


def run(
    program: Program,
    values: Sequence[Any],
    out: Sequence[Any] | None = None,
    between: Between | None = None,
    active: Sequence[ExecutionContext] | None = None,
) -> tuple[Any, ...]:
    """Run a program and return its outputs as the steps made them, which may share memory with its inputs."""
    try:
        workspace = program.idle.pop()  # as workspace() does, one call fewer in every run
    except IndexError:
        workspace = program.workspace()
    arrays = program.targets(workspace, out, values) if program.fresh else workspace.arrays
    context, function = workspace.context, program.function
    if function is None or between is not None:
        frame = Frame(program, values, workspace, arrays)
        results = _in(context, program, frame.finish if between is None else partial(frame.finish, between))
    elif (active := running.contexts if active is None else active) and (timed := program.timed) is not None:
        results = _timed(program, timed, context, values, arrays, active)
    else:
        try:
            if context is not None:
                results = context.run(function, values, arrays)
            else:
                with program.backend.guard():
                    results = function(values, arrays)
        except Exception as error:
            raise _blamed(program, function, error) from _cause(error)
    if program.small and len(program.idle) < KEPT:  # as leave() does
        program.idle.append(workspace)
    else:
        program.leave(workspace)
    return results


def _timed(
    program: Program,
    timed: Function,
    context: Any,
    values: Sequence[Any],
    arrays: Sequence[Any],
    active: Sequence[Any],
    note: Callable[[Any], object] = bool,
    clock: Callable[[], int] = int,
) -> tuple[Any, ...]:
    """Run the function of a program that notes the time before the first step and after each, and stops where a context says so."""
    stop = partial(stop_run, active, program.entries)
    try:
        if context is not None:
            results: tuple[Any, ...] = context.run(timed, values, arrays, note, clock, stop_reason(active), stop)
            return results
        with program.backend.guard():
            return timed(values, arrays, note, clock, stop_reason(active), stop)
    except Exception as error:
        raise _blamed(program, timed, error) from _cause(error)


def _in(context: Any, program: Program, function: Callable[[], T]) -> T:
    if context is not None:
        result: T = context.run(function)
        return result
    with program.backend.guard():
        return function()


def guarded(program: Program, function: Callable[[], T]) -> T:
    """Return what a function does under the settings that a run of the program has, such as those of floating-point warnings."""
    return _in(None if program.context is None else program.context.copy(), program, function)


def owned(program: Program, results: Sequence[Any], out: Sequence[Any] | None) -> list[Any]:
    """Return outputs as arrays of the caller's own, in the arrays of the caller where there are such."""
    finish, trusted = program.backend.finish, program.trusted
    outputs = [
        value if own and trusted and type(value) is np.ndarray else finish(value, not own or not trusted)
        for value, own in zip(results, program.owned, strict=True)
    ]
    if not program.verified:  # a backend or wrapper that made something else is named, not believed
        outputs = [as_planned(value, name, t) for value, (name, t) in zip(outputs, program.types, strict=True)]
        program.verified = trusted  # kernels are the same in every run, wrappers need not be
    return outputs if out is None else write_outputs(outputs, out)


def body_runner(program: Program) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that runs the body of a loop; those who watch the run around it watch the body too."""

    def run_body(values: Sequence[Any]) -> tuple[Any, ...]:
        hooks = running.hooks
        return watched(program, values, hooks, body=True) if hooks else run(program, values)

    return run_body


def wrapped(step: Step, kernel: Kernel, wrap: Sequence[Wrapper]) -> Kernel:
    """Return a kernel with wrappers around each of its calls."""

    def innermost(_: Step, args: tuple[Any, ...]) -> Any:
        return kernel(*args)

    call: Call = innermost
    for wrapper in reversed(wrap):
        call = wrapper(call)
    return lambda *args: call(step, args)


def _watched_call(
    program: Program, values: Sequence[Any], hooks: Sequence[Hook], out: Sequence[Any] | None, between: Between | None
) -> tuple[Any, ...]:
    """Run a program and tell the hooks; those that want every operation see each as a step of its own.

    Where kernels round differently from the operations that they hold, what is returned is still what the kernels make.
    """
    shown = program.apart(hooks)
    if shown is program:
        return watched(program, values, hooks, out, between=between)
    exact = program.plan.exact
    results = watched(shown, values, hooks, between=between if exact else None)
    return owned_by(shown, results) if exact else run(program, values, out, between)


def owned_by(program: Program, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return results that may be handed on as another program's: those that share memory are copied."""
    return tuple(v if own else np.array(v) for v, own in zip(results, program.owned, strict=True))


def watched(
    program: Program,
    inputs: Sequence[Any],
    hooks: Sequence[Hook],
    out: Sequence[Any] | None = None,
    *,
    body: bool = False,
    between: Between | None = None,
) -> tuple[Any, ...]:
    """Run a program and tell the hooks; only those that ask for values are called during the run."""
    live = [h for h in hooks if type(h).on_step is not Hook.on_step]
    record = RunRecord(program.plan, thread=get_ident(), body=body)
    around = running.hooks
    workspace = program.workspace()
    arrays = program.targets(workspace, out, inputs) if program.fresh else workspace.arrays
    timed = None if live or between is not None else program.timed
    try:
        running.hooks = hooks  # for the bodies that run inside
        for hook in hooks:
            hook.on_start(program.plan, inputs, body=body)
        if timed is None:
            with program.backend.guard():
                results = _noted(Frame(program, inputs, workspace, arrays), record, live, between)
        else:
            context = None if program.inner else workspace.context  # hooks are told of bodies in the caller's context
            note, clock = record.times.append, perf_counter_ns
            results = _timed(program, timed, context, inputs, arrays, running.contexts, note, clock)
    finally:
        running.hooks = around
        for hook in hooks:
            hook.on_run(record)
    program.leave(workspace)
    return results


def _noted(frame: Frame, record: RunRecord, live: Sequence[Hook], between: Between | None) -> tuple[Any, ...]:
    """Run the steps of a frame, note when each began and ended, and hand its results to the hooks."""
    clock, plan, around = perf_counter_ns, frame.program.plan, running.frame
    stops = any(h.stops for h in live)
    record.times.append(clock())
    try:
        while not frame.done:
            if between is not None:
                between(frame)
            if stops:
                frame.keep_operands()
            start = clock()
            results = frame.advance()
            record.times.append(clock())
            if live or between is not None:
                record.starts.append(start)
            event = StepEvent(frame.at - 1, start, record.times[-1])
            running.frame = frame
            for hook in live:
                hook.on_step(plan, event, results)
            for _ in range(frame.at - event.step - 1):  # a hook ran these steps itself
                record.starts.append(clock())
                record.times.append(record.starts[-1])
    finally:
        running.frame = around
    return frame.results()


def _cause(error: Exception) -> BaseException | None:
    return error.__cause__ if isinstance(error, TensorLogicError) else error


def _blamed(program: Program, function: Function, error: Exception) -> Exception:
    """Return the error that names the step which a function failed at."""
    found = failed_at(function, error.__traceback__)
    step = program.entries[found[0]].step if found and found[0] < len(program.entries) else None
    if isinstance(error, TensorLogicError):
        return placed(error, step) if step else error
    if step is None or found is None:
        return error
    return failed(program.plan.graph, step, [found[1].get(f"s{s}", program.template[s]) for s in step.reads], error)
