"""Every way in which an executor could run a graph, whichever it would choose: for tests, which must not depend on a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..plan.build import lay_out
from ..plan.fusing import find_groups
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
    programs = executor.programs
    names, values = executor.arrays(graph, inputs)
    plans = programs.options(graph, {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}, None)
    facts = programs.facts
    if facts is not None and programs.policy != "exact":
        groups = partial(find_groups, facts=facts, policy=programs.policy)
        native = lay_out(plans[0].graph, in_place=True, groups=groups, threads=facts.threads)
        plans += [native] if native.name not in [plan.name for plan in plans] else []
    return [bind(plan, executor.backend) for plan in plans]
