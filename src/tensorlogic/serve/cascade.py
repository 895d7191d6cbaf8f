"""Cascades: cheap models answer what they are sure of, and only the other rows go on to more expensive ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError
from ..ir.graph import EinsumGraph
from ..runtime.values import Inputs, Outputs
from ..tables import table
from .batch_runs import batch_size
from .models import Model, Models


class CascadeStage(NamedTuple):
    """One model of a cascade: the rows that came to it, those that it decided, and the seconds it took."""

    model: str
    rows: int
    decided: int
    seconds: float
    cost: float  # of a row


class CascadeReport(NamedTuple):
    """What each model of a cascade did, and which one decided each row; it prints as a table.

    >>> stages = (CascadeStage("small@1", 100, 80, 0.001, 1.0), CascadeStage("large@1", 20, 20, 0.004, 20.0))
    >>> print(CascadeReport(stages, np.zeros(100, int), 0.75))
    model    rows  decided  seconds  cost of a row
    small@1   100       80  0.00100            1.0
    large@1    20       20  0.00400           20.0
    beside 'large@1' for all rows: cost 75% saved, time 75% saved as measured
    """

    stages: tuple[CascadeStage, ...]
    decided_by: np.ndarray  # for each row the number of the stage
    # a share of the time that the last model would take for all rows; None: it was never timed
    time_saving: float | None

    @property
    def cost_saving(self) -> float:
        """The share of cost that is saved over giving all rows to the last model, by the costs that were registered."""
        whole = self.stages[0].rows * self.stages[-1].cost
        return 1.0 - sum(s.rows * s.cost for s in self.stages) / whole if whole else 0.0

    def __str__(self) -> str:
        rows = [[s.model, f"{s.rows:,}", f"{s.decided:,}", f"{s.seconds:.5f}", f"{s.cost:,.1f}"] for s in self.stages]
        head = ["model", "rows", "decided", "seconds", "cost of a row"]
        timed = "" if self.time_saving is None else f", time {_change(self.time_saving)} as measured"
        beside = f"beside {self.stages[-1].model!r} for all rows: cost {_change(self.cost_saving)}{timed}"
        return f"{table(head, rows, right=range(1, 5))}\n{beside}"


def _change(saving: float) -> str:
    return f"{saving:.0%} saved" if saving >= 0 else f"{-saving:.0%} more"


def run_cascade(
    models: Models,
    stages: Sequence[Model],
    inputs: Inputs,
    confidence: float,
    output: str | None,
    clock: Callable[[], float] = perf_counter,
) -> tuple[Outputs, CascadeReport]:
    """Run models one after another, each on the rows that none before was sure of: whose largest score is below the confidence."""
    graph = models.load(stages[0]).graph
    name = output or graph.output_names[0]
    cut = row_inputs(graph, name)
    given = {key: np.asarray(value) if key in cut else value for key, value in inputs.items()}
    count = min((len(given[key]) for key in cut if key in given), default=0)
    left = np.arange(count)
    answer: np.ndarray | None = None
    decided_by = np.zeros(count, int)
    done: list[CascadeStage] = []
    for n, model in enumerate(stages):
        if not len(left) and done:
            done.append(CascadeStage(model.label, 0, 0, 0.0, model.cost))
            continue
        start = clock()
        scores = _rows_of(models, model, given, cut, left, count, output)
        took = clock() - start
        usage = models.usage[model.name, model.version]
        usage.row_seconds = min(usage.row_seconds, took / max(1, len(left)))
        if answer is None:
            answer = np.empty((count, *scores.shape[1:]), scores.dtype)
        elif scores.shape[1:] != answer.shape[1:]:
            message = f"{model.label!r} gives {scores.shape[1:]} for a row, and {stages[0].label!r} {answer.shape[1:]}"
            raise InputError(message, "models of a cascade give the same scores for a row", code="E466")
        sure = scores.max(axis=-1) >= confidence if n < len(stages) - 1 else np.ones(len(left), bool)
        sure = sure.all(axis=tuple(range(1, sure.ndim)))
        answer[left[sure]] = scores[sure]
        decided_by[left[sure]] = n
        done.append(CascadeStage(model.label, len(left), int(sure.sum()), took, model.cost))
        left = left[~sure]
    assert answer is not None
    # the last model for all rows, each as fast as it ever was in a cascade
    whole = count * models.usage[stages[-1].name, stages[-1].version].row_seconds
    saving = 1.0 - sum(stage.seconds for stage in done) / whole if 0 < whole < inf else None
    return Outputs((name,), (answer,)), CascadeReport(tuple(done), decided_by, saving)


def row_inputs(graph: EinsumGraph, output: str) -> list[str]:
    """Return the inputs that have the rows of an output: the same named size in front."""
    node = dict(graph.outputs).get(output)
    shape = None if node is None else graph.type_of(node).shape
    rows = shape[0] if shape else None
    found = [n for n, i in graph.inputs.items() if (own := graph.type_of(i).shape) and own[0] == rows]
    if not isinstance(rows, str) or not found:
        hint = 'declare them: b.input("x", ("n", 784))'
        raise InputError(
            f"output {value_text(output)} has no rows that inputs have too: its shape is {shape}", hint, code="E467"
        )
    return found


def _rows_of(
    models: Models, model: Model, inputs: Inputs, cut: Sequence[str], left: np.ndarray, count: int, output: str | None
) -> Any:
    """Run a model on some rows; their number is rounded up, so that few plans are made, and the last row fills them up."""
    if len(left) == count:
        rows, own = slice(None), count
    else:
        own = len(left)
        rows = np.concatenate([left, np.repeat(left[-1:], batch_size(own) - own)])  # type: ignore[assignment]
    outputs = models.run(model, {key: value[rows] if key in cut else value for key, value in inputs.items()})
    return np.asarray(outputs[0 if output is None else output])[:own]
