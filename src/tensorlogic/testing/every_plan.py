"""Every way in which an executor could run a graph, whichever it would choose: for tests, which must not depend on a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ..backends.base import KernelUnavailable
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..plan.build import ExecutionPlan, lay_out
from ..plan.candidates import ONE_FUNCTION
from ..plan.groups import find_groups
from ..runtime.executor import Executor
from ..runtime.program import Program, bind


def every_program(executor: Executor, graph: EinsumGraph, inputs: Mapping[str, Any]) -> list[Program]:
    """Return a program for each plan that a graph can have, native steps among them even where one function would do.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.tanh(b.input("x", (2,), "float32") + 1))
    >>> [p.plan.name for p in every_program(tl.Executor(), graph, {"x": np.zeros(2, "f4")})]
    ['one step after another']
    """
    plans = _options(executor, graph, inputs)
    if executor.programs.facts is not None and executor.programs.policy != "exact":
        native = native_plan(executor, graph, inputs)
        plans += [native] if native.name not in [plan.name for plan in plans] else []
    programs = []
    for plan in plans:
        with suppress(KernelUnavailable):  # as an executor leaves out a plan whose kernel cannot be written
            programs.append(bind(plan, executor.backend))
    return programs


def native_plan(executor: Executor, graph: EinsumGraph, inputs: Mapping[str, Any]) -> ExecutionPlan:
    """Return the plan in which everything that has a kernel is a native step, whether or not it is the fastest."""
    facts = executor.programs.facts
    assert facts is not None
    concrete = _options(executor, graph, inputs)[0].graph
    return lay_out(concrete, in_place=True, groups=partial(find_groups, facts=facts), threads=facts.threads)


def _options(executor: Executor, graph: EinsumGraph, inputs: Mapping[str, Any]) -> list[ExecutionPlan]:
    names, values = executor.arrays(graph, inputs)
    types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
    found = executor.programs.options(graph, types, None)
    if [plan.name for plan in found] == [ONE_FUNCTION]:  # it is tiny: what it would compete with otherwise
        found += executor.programs.options(graph, types, None, without=frozenset({ONE_FUNCTION}))
    return found
