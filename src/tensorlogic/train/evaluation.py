"""Evaluation and prediction: the figures of a loss graph on data, and its other outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ..diagnostics import value_text
from ..errors import ExecutionError, InputError, TrainingError, nearest
from ..ir.graph import EinsumGraph
from ..ir.random import STEP, TRAINING
from ..passes.grad import value_and_grad
from ..passes.specialize import bind_sizes
from ..runtime.executor import Executor
from .data import ArrayBatches, Data, GivenBatches, Needed, batches_of
from .step import OWN, figures_of, narrowed, wanted_data

if TYPE_CHECKING:
    from .trainer import Trainer

ROWS = 1024  # of a batch that is only measured, at least: nothing is kept of it


class Measured(NamedTuple):
    """Data to measure a loss graph on: the graph of its figures, what its other inputs are given, and the batches."""

    graph: EinsumGraph
    fixed: Mapping[str, Any]
    batches: ArrayBatches | GivenBatches


def measured(trainer: Trainer, data: Data, fixed: Mapping[str, Any] | None) -> Measured:
    """Return data to measure on; what does not fit the graph is refused here, before anything is computed."""
    loss = _loss(trainer)
    given = _inputs(trainer, fixed)
    graph = narrowed(loss, figures_of(loss))
    batches = batches_of(data, wanted_data(loss, given), max(ROWS, trainer.config.batch_size), None)
    if isinstance(batches, ArrayBatches):
        rows = {name: array[: batches.size] for name, array in batches.arrays.items()}
        inputs = {name: value for name, value in {**given, **rows}.items() if name in graph.inputs}
        bind_sizes(graph, trainer.executor.input_types(graph, inputs, None), {})
    return Measured(graph, dict(fixed or {}), batches)


def evaluate(trainer: Trainer, on: Measured) -> dict[str, float]:
    """Return the means of the loss and of the other figures over all examples."""
    given = _inputs(trainer, on.fixed)
    sums, rows = dict.fromkeys(on.graph.output_names, 0.0), 0
    for batch in on.batches.epoch(0):
        inputs = {**given, **batch.arrays}
        found = trainer.executor.execute(on.graph, {name: inputs[name] for name in on.graph.inputs})
        sums = {name: total + float(found[name]) * batch.rows for name, total in sums.items()}
        rows += batch.rows
    if not rows:
        raise InputError("there are no batches to measure on", "give at least one", code="E855")
    return {name: total / rows for name, total in sums.items()}


def predict(trainer: Trainer, data: Data, output: str, fixed: Mapping[str, Any] | None) -> Any:
    """Return an output for all examples, computed from no more inputs than it needs."""
    graph = _loss(trainer)
    if output not in graph.output_names:
        raise InputError(
            f"the loss graph has no output {value_text(output)}", *nearest(output, graph.output_names), code="E305"
        )
    needed = narrowed(graph, [output])
    given = {name: v for name, v in _inputs(trainer, fixed).items() if name in needed.inputs}
    wanted = Needed([name for name in needed.inputs if name not in given], None)
    parts = []
    for batch in batches_of(data, wanted, max(ROWS, trainer.config.batch_size), None).epoch(0):
        parts.append(trainer.executor.execute(needed, {**given, **batch.arrays})[output])
    if not parts:
        raise InputError("there are no batches to predict for", "give at least one", code="E855")
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)


def loss_in_full(trainer: Trainer, arrays: Mapping[str, Any]) -> float:
    """Return the loss of a batch in the dtypes that the graph declares, whatever precision steps have."""
    graph = narrowed(_loss(trainer), ["loss"])
    return float(np.mean([trainer.executor.execute(graph, part)["loss"] for part in _parts(trainer, graph, arrays)]))


def blame(trainer: Trainer, arrays: Mapping[str, Any], what: str, where: str) -> NoReturn:
    """Raise the error of a step that went wrong, naming its batch and the first tensor that went bad: of the loss, or of its gradient."""
    loss = narrowed(_loss(trainer), ["loss"])
    problem = _first_problem(trainer, loss, arrays)
    context = []
    if problem is None:
        learned = [name for name in trainer.planned(_loss(trainer)).carried if name in trainer.names]
        slopes = value_and_grad(loss, wrt=learned, of="loss", straight_through=trainer.config.straight_through)
        problem = _first_problem(trainer, slopes, arrays)
        bad = "; its gradient is not" if problem else " and so is its gradient: the step is too long"
        context = [f"the loss is a number before the step{bad}"]
    hints = [
        "look at the data of that batch",
        "use a lower rate, or clip_norm=1.0; the parameters are those before the batch",
    ]
    raise TrainingError(
        f"{what} at {where}", code="E871", context=[*context, *str(problem or "").splitlines()], suggestions=hints
    )


def _first_problem(trainer: Trainer, graph: EinsumGraph, arrays: Mapping[str, Any]) -> object:
    """Return where a graph first makes what is no number of a batch, and of the numbers that its step had."""
    from ..observe.inspect import TensorInspector

    executor = Executor(trainer.executor.backend, optimization_level=trainer.executor.config.optimization_level)
    for part in _parts(trainer, graph, arrays):
        inspector = TensorInspector()
        inspector.enable()
        executor.context.add_hook(inspector)
        executor.execute(graph, part)
        executor.context.remove_hook(inspector)
        if (problem := inspector.first_problem()) is not None:
            return problem
    return None


def _parts(trainer: Trainer, graph: EinsumGraph, arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Go through the inputs of the parts that a batch is learned in, with the random numbers of each."""
    count, given = trainer.config.accumulate, trainer.given()
    for n in range(count):
        rows = {name: array.reshape(count, -1, *array.shape[1:])[n] for name, array in arrays.items()}
        number = {STEP: given[STEP] * np.uint64(count) + np.uint64(n)} if STEP in given and count > 1 else {}
        inputs = {**trainer.values, **given, **number, **rows}
        yield {name: inputs[name] for name in graph.inputs}


def note_batch(trainer: Trainer, error: BaseException, arrays: Mapping[str, Any]) -> None:
    """Add to the error of a step which batch it was, and from where to where its integers go: labels may be out of range."""
    if not isinstance(error, ExecutionError):
        return
    given = {name: np.asarray(array) for name, array in arrays.items()}
    ranges = [
        f"{name!r} has {array.min()} to {array.max()}"
        for name, array in given.items()
        if array.dtype.kind in "iu" and array.size
    ]
    where = f"in {next_place(trainer)}"
    error.diagnostic = error.diagnostic.with_context(": ".join([where, ", ".join(ranges)] if ranges else [where]))


def next_place(trainer: Trainer) -> str:
    """Say which batch a trainer stands before."""
    return f"batch {trainer.batch + 1} of epoch {trainer.epoch + 1} (step {trainer.steps + 1})"


def _loss(trainer: Trainer) -> EinsumGraph:
    if trainer.loss is None:
        raise InputError("this trainer has learned nothing yet", "call fit first", code="E864")
    return trainer.loss


def _inputs(trainer: Trainer, fixed: Mapping[str, Any] | None) -> dict[str, Any]:
    own = {n: v for n, v in trainer.values.items() if not n.startswith(OWN)}
    given = trainer.given() | {name: np.asarray(value) for name, value in (fixed or {}).items()}
    if TRAINING in given:
        given[TRAINING] = np.array(False)
    return {**own, **given}
