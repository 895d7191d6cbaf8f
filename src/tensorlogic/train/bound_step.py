"""A training step bound to its arrays: called with a batch, it writes over what the step before left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..events import Hook, active_contexts, entered
from ..runtime.call import call
from ..runtime.executor import Executor
from ..runtime.program import Program
from .step import COUNT, RATE, TrainingStep

Signature = tuple[tuple[str, tuple[int, ...], Any], ...]


class BoundStep:
    """Runs a training step on batch after batch; programs are kept by the shapes of a batch.

    ``values`` holds what one step hands to the next, by name. The step is given these arrays to write over, so they must be
    nobody else's. ``calls`` are the steps of the whole run, where they are known: many are worth machine code.
    """

    def __init__(
        self,
        executor: Executor,
        step: TrainingStep,
        values: dict[str, Any],
        given: Mapping[str, Any],
        hooks: Sequence[Hook] = (),
        calls: int = 0,
    ) -> None:
        self.executor, self.step, self.values, self.own_hooks = executor, step, values, tuple(hooks)
        self.calls = calls
        self.rate, self.count = np.zeros(()), np.zeros(())
        self.inputs = list(step.graph.inputs)
        every = {RATE: self.rate, COUNT: self.count, **given}
        self.given = {name: value for name, value in every.items() if name in step.graph.inputs}
        outputs = step.graph.output_names
        self.figures = [outputs.index(name) for name in step.figures]
        self.carried = [(outputs.index(name), name) for name in step.carried]
        self.programs: dict[Signature, Program] = {}
        self._last: tuple[Mapping[str, Any], Program] | None = None  # the batch before, where its arrays come again

    def __call__(self, arrays: Mapping[str, Any], rate: float, count: int) -> list[float]:
        """Take one step on a batch and return its figures, the loss first."""
        self.rate[()], self.count[()] = rate, count
        values, executor = self.values, self.executor
        inputs = {**self.given, **values, **arrays}
        program = self._program(arrays, inputs)
        ordered = [inputs[name] for name in self.inputs]
        hooks = (*executor.hooks(), *self.own_hooks)
        around = active_contexts()
        for context in (*around, executor.context):
            context.check()
            context.admit(program)
        if around:
            with entered(()):  # a step goes on to its end: half of one would leave half of the parameters updated
                results = call(program, ordered, hooks)
        else:
            results = call(program, ordered, hooks)
        for n, name in self.carried:
            values[name] = results[n]
        return [results[n].item() for n in self.figures]

    def _program(self, arrays: Mapping[str, Any], inputs: Mapping[str, Any]) -> Program:
        """Return the program for the shapes of a batch, made when they come first."""
        if self._last is not None and self._last[0] is arrays:
            return self._last[1]
        signature = tuple([(name, a.shape, a.dtype) for name, a in arrays.items()])
        program = self.programs.get(signature)
        if program is None:
            graph = self.step.graph
            known = {name: value for name, value in inputs.items() if name in self.inputs or name in arrays}
            names, given = self.executor.arrays(graph, known)
            donate = tuple(self.step.carried)
            program = self.executor.programs.for_call(graph, names, given, None, None, donate, calls=self.calls)
            self.programs[signature] = program
        self._last = arrays, program
        return program
