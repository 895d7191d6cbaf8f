"""Recovery: runs that try again, fall back, leave out what is optional, or go on from a checkpoint, and say so.

Everything drives the one call. A retry is a wrapper of it; what is left of a run that stopped is a graph (:mod:`.unfinished`), which is what a
checkpoint holds, what a fallback takes over, and what is run without the outputs that failed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...diagnostics import value_text
from ...errors import (
    CancelledError,
    CheckpointError,
    ConvergenceError,
    ExecutionError,
    FormatError,
    GraphError,
    InputError,
    TensorLogicError,
    expect,
    nearest,
)
from ...events import span
from ...ir.graph import EinsumGraph, reachable
from ...passes.pipeline import CompilationConfig, OptimizationLevel
from ...plan.printing import describe
from ..call import run_program
from ..compile import executor_like
from ..context import in_contexts
from ..frame import Frame
from ..values import Inputs, Outputs
from .checkpoints import Checkpoint, CheckpointManager
from .config import FailedNode, RecoveryConfig, RecoveryResult, RecoveryStats, RecoveryStrategy
from .retry import Retries, RetryPolicy, current, retrying
from .unfinished import (
    Source,
    Unfinished,
    finished,
    from_checkpoint,
    intact,
    outputs_of,
    to_checkpoint,
    unfinished,
    without,
)

if TYPE_CHECKING:
    from ..call import Call
    from ..executor import Executor

# the same on every tier and backend
HOPELESS = (GraphError, InputError, FormatError, ConvergenceError, CheckpointError)


class Recovery:
    """What an executor remembers of runs with recovery: the last one, a checkpoint to go on from, and executors to fall back on."""

    def __init__(self) -> None:
        self.last: Run | None = None
        self.loaded: Checkpoint | None = None
        self._tiers: dict[tuple[Any, ...], list[tuple[str, Executor]]] = {}

    def tiers(self, executor: Executor, config: RecoveryConfig, *, retries: bool) -> list[tuple[str, Executor]]:
        """Return the executors to try, in order, each with what to call it."""
        falls = config.strategy is RecoveryStrategy.FALLBACK_EXECUTION
        key = (falls and config.fallback_backends, retries)
        if key not in self._tiers:
            mine, wrap = executor.programs, (*executor.programs.wrap,)
            first = executor_like(executor, mine.config, wrap=(retrying, *wrap)) if retries else executor
            found = [(executor.backend.name, first)]
            if falls and first.programs.facts is not None:
                plain = executor_like(executor, mine.config, policy="exact", wrap=(*wrap, _plain))
                found.append((f"{executor.backend.name}, one step after another", plain))
            for name in config.fallback_backends if falls else ():
                if name != executor.backend.name:
                    own = executor_like(
                        executor,
                        CompilationConfig(OptimizationLevel.NONE),
                        backend=name,
                        policy="exact",
                        wrap=(retrying, *wrap) if retries else wrap,
                    )
                    found.append((name, own))
            self._tiers[key] = found
        return self._tiers[key]


def _plain(call: Call) -> Call:
    """Wrap nothing: a plan with a wrapper runs step by step, without machine code and without writing in place."""
    return call


class Run:
    """One run with recovery: what it began with, what is left of it, and what was done to keep it going."""

    def __init__(self, source: Source, config: RecoveryConfig, retries: Retries, clock: Callable[[], float]) -> None:
        self.source, self.config, self.retries, self.clock = source, config, retries, clock
        self.left = Unfinished(source.graph, source.inputs)
        self.frame: Frame | None = None  # of what is left, once it began
        self.failed: list[FailedNode] = []
        self.fallbacks: list[str] = []
        self.manager: CheckpointManager | None = None
        self.saved = 0
        self.resumed_from: int | None = None
        self._step, self._time = 0, clock()

    def stats(self) -> RecoveryStats:
        """Return what was done so far."""
        waited = 1000 * self.retries.waited
        return RecoveryStats(self.retries.count, tuple(self.fallbacks), self.saved, self.resumed_from, waited)

    def resume(self, found: Checkpoint) -> None:
        """Go on from a checkpoint."""
        with span(f"resume from checkpoint {found.number}"):
            self.left = from_checkpoint(found, self.source)
        self.failed = [
            FailedNode(name, operation, tuple(outputs), ExecutionError(message, code="E004"))
            for name, operation, outputs, message in found.facts.get("failed", ())
        ]
        self.resumed_from = found.number

    def now_left(self) -> Unfinished:
        """Return what is left now; where a failed step may have spoilt its operands, what was left before the run."""
        if self.frame is None or not intact(self.frame):
            return self.left
        return unfinished(self.frame, self.source.inputs)

    def between(self, frame: Frame) -> None:
        """Remember the run before each step, and save it where that is due."""
        if frame is not self.frame:
            self.frame, self._step = frame, frame.at
        if self.manager is None or frame.at == 0:
            return
        steps, seconds = self.config.checkpoint_steps, self.config.checkpoint_seconds
        if (steps is not None and frame.at - self._step >= steps) or (
            seconds is not None and self.clock() - self._time >= seconds
        ):
            self.save(self.manager, unfinished(frame, self.source.inputs))
            self._step, self._time = frame.at, self.clock()

    def save(self, manager: CheckpointManager, left: Unfinished) -> int:
        """Write a checkpoint of what is left."""
        arrays, facts = to_checkpoint(left, self.source)
        facts["failed"] = [[f.name, f.operation, list(f.outputs), _message(f.error)] for f in self.failed]
        number = self.retries.attempt(lambda: manager.save(arrays, facts), "the checkpoint")
        self.saved += 1
        return number

    def save_progress(self, error: BaseException) -> None:
        """Write a checkpoint of a run that ends by an error, so that it can go on; where that fails too, the error says so."""
        if self.manager is None or isinstance(error, CheckpointError):
            return
        if self.frame is None or self.frame.at == 0:
            return  # nothing ran since the last one
        try:
            self.save(self.manager, self.now_left())
        except CheckpointError as more:
            error.add_note(f"what was computed could not be saved: {more.diagnostic.message}")

    def succeed(self, outputs: Outputs) -> None:
        """Keep what a checkpoint of a run that is over holds; those of the way there are not needed any more."""
        self.frame = None
        if self.config.checkpoints:
            self.left = finished(outputs, self.source.inputs)
        if self.manager is not None:
            self.manager.clear()

    def drop(self, error: Exception, optional: set[str]) -> bool:
        """Leave out the optional outputs that a failed step was for; tell whether there were any."""
        if self.frame is None or self.frame.done:
            return False
        step = self.frame.program.plan.steps[self.frame.at]
        lost = [name for name in outputs_of(self.frame) if name in optional]
        if not lost:
            return False
        self.failed.append(FailedNode(f"%{step.node}", describe(step.op), tuple(lost), error))
        with span(f"without {', '.join(lost)}: {describe(step.op)} failed"):
            self.left, self.frame = without(self.now_left(), lost), None
        return True


def execute_with_recovery(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs,
    config: RecoveryConfig,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    rng: random.Random | None,
) -> RecoveryResult:
    """Run a graph as a config says, and return how that ended."""
    expect(config, RecoveryConfig, "a RecoveryConfig is expected", "write RecoveryConfig(strategy=...)")
    names, values = executor.arrays(graph, inputs)
    optional = _optional(graph, config)
    retries = Retries(_policy(config), sleep, random.Random() if rng is None else rng)
    run = Run(Source(graph, dict(zip(names, values, strict=True))), config, retries, clock)
    recovery = _recovery(executor)
    tiers = recovery.tiers(executor, config, retries=retries.policy.max_retries > 0)
    recovery.last = run if config.checkpoints else None  # which would hold the inputs
    with span(f"run with recovery: {config.strategy.value}", executor.hooks()), _checkpoints(run, recovery):
        for n, (name, runner) in enumerate(tiers):
            try:
                with span(f"fallback to {name}") if n else nullcontext():
                    outputs = _degrading(runner, run, optional)
            except CancelledError:
                raise
            except Exception as failure:
                error = failure
                if isinstance(error, HOPELESS) or n == len(tiers) - 1:
                    break
                run.fallbacks.append(f"{name} -> {tiers[n + 1][0]}: {_message(error)}")
                run.left, run.frame = run.now_left(), None
            else:
                run.succeed(outputs)
                if run.failed:
                    return RecoveryResult.PartialSuccess(outputs, tuple(run.failed), run.stats())
                return RecoveryResult.Success(outputs, run.stats())
        run.save_progress(error)
        return RecoveryResult.Failure(error, run.stats())


def _degrading(executor: Executor, run: Run, optional: set[str]) -> Outputs:
    """Run what is left; where a step fails that only optional outputs need, run the rest without them."""
    while True:
        try:
            return _run_left(executor, run)
        except (CancelledError, CheckpointError):
            raise
        except Exception as error:
            if not run.drop(error, optional):
                raise


def _run_left(executor: Executor, run: Run) -> Outputs:
    """Run what is left by the one call."""
    around, current.retries = current.retries, run.retries
    try:
        names, values = executor.arrays(run.left.graph, run.left.values)
        program = executor.programs.for_call(run.left.graph, names, values, None)
        context, hooks = executor.context, executor.hooks()
        return in_contexts(context, partial(run_program, context, program, values, None, hooks, between=run.between))
    finally:
        current.retries = around


@contextmanager
def _checkpoints(run: Run, recovery: Recovery) -> Iterator[None]:
    """Lock the folder of checkpoints, go on from the newest, and write one more when the run is stopped."""
    found, recovery.loaded = recovery.loaded, None
    config = run.config
    if config.folder is None or not config.checkpoints:
        if found is not None:
            run.resume(found)
        yield
        return
    with CheckpointManager(config.folder, config.keep) as run.manager:
        latest = run.manager.latest() if found is None else found
        if latest is not None:
            run.resume(latest)
        try:
            yield
        except (CancelledError, KeyboardInterrupt) as stop:
            run.save_progress(stop)
            raise
        finally:
            run.manager = None


def _policy(config: RecoveryConfig) -> RetryPolicy:
    """Return the policy of retries: the one given, or that of the strategy."""
    if config.strategy is RecoveryStrategy.FAIL_FAST:
        return RetryPolicy.none()
    if config.retry_policy is not None:
        return config.retry_policy
    return RetryPolicy() if config.strategy is RecoveryStrategy.RETRY_WITH_BACKOFF else RetryPolicy.none()


def _optional(graph: EinsumGraph, config: RecoveryConfig) -> set[str]:
    """Return the outputs that may be left out: those named, and those computed from nodes that are."""
    if config.strategy is not RecoveryStrategy.GRACEFUL_DEGRADATION:
        return set()
    found: set[str] = set()
    for each in config.optional:
        if isinstance(each, str):
            if each not in graph.output_names:
                hints = nearest(each, graph.output_names)
                raise InputError(f"there is no output {value_text(each)} to leave out", *hints, code="E590")
            found.add(each)
        elif not 0 <= each < len(graph):
            raise InputError(f"there is no node %{each} to leave out", f"nodes: 0 to {len(graph) - 1}", code="E590")
        else:
            found.update(name for name, i in graph.outputs if each in reachable(graph.nodes, [i]))
    return found


def _message(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, ExecutionError) and error.__cause__ is not None else error
    text = error.diagnostic.message if isinstance(error, TensorLogicError) else str(cause)
    return text or type(cause).__name__


def _recovery(executor: Executor) -> Recovery:
    if executor.recovery is None:
        executor.recovery = Recovery()
    return executor.recovery


def save_checkpoint(executor: Executor, path: str | Path) -> int:
    """Write what is left of the last run with recovery into a folder of checkpoints; return the number."""
    run = None if executor.recovery is None else executor.recovery.last
    if run is None or not run.config.checkpoints:
        hint = "execute_with_recovery(graph, inputs, RecoveryConfig(checkpointing=True)) comes first"
        raise InputError("there is no run to save", hint, code="E591")
    with CheckpointManager(path) as manager:
        return run.save(manager, run.now_left())


def load_checkpoint(executor: Executor, path: str | Path) -> int:
    """Let the next run with recovery go on from the newest good checkpoint in a folder; return its number."""
    found = CheckpointManager(path).latest()
    if found is None:
        raise CheckpointError(
            f"there is no checkpoint in {str(path)!r}", "save_checkpoint(path) makes one", code="E588"
        )
    _recovery(executor).loaded = found
    return found.number
