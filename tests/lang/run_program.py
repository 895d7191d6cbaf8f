"""Run the equations of a program text on plain arrays: what the tests of lowering share."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorlogic import EinsumGraph, Executor, GraphBuilder
from tensorlogic.lang import datalog, equations
from tensorlogic.lang.analysis import Analysis, GivenTensor, analyse
from tensorlogic.lang.grammar import parse
from tensorlogic.lang.syntax import Facts


def analysed(text: str, functions: dict[str, Any] | None = None, **data: Any) -> Analysis:
    """Analyse a program text with arrays given by name."""
    given = {name: GivenTensor.of(array) for name, array in data.items()}
    names = {} if functions is None else {"functions": frozenset(functions)}
    return analyse(parse(text, **names).statements, given=given, functions=functions)


def lowered(found: Analysis, *wanted: str, b: GraphBuilder | None = None) -> EinsumGraph:
    """Return the graph of some tensors of a program."""
    builder = GraphBuilder() if b is None else b
    values: dict[str, Any] = {}
    for name, rows in _facts(found).items():
        values[name] = builder.constant(rows)
    for part in found.components:
        lower = datalog.lower_component if part.boolean else equations.lower_component
        lower(part, found, builder, values)
    return builder.build({name: values[name] for name in wanted})


def _facts(found: Analysis) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for block in (x for x in found.statements if isinstance(x, Facts)):
        array = arrays.setdefault(block.name, np.zeros(found.shape(block.name), bool))
        for row in block.rows():
            array[tuple(found.code(block.name, p, c) for p, c in enumerate(row))] = True
    return arrays


def run(text: str, *wanted: str, functions: dict[str, Any] | None = None, backend: str = "numpy", **data: Any) -> Any:
    """Run a program text and return one tensor, or a list of several."""
    found = analysed(text, functions, **data)
    graph = lowered(found, *wanted)
    inputs = {name: array for name, array in data.items() if name in graph.inputs}
    out = Executor(backend=backend).execute(graph, inputs)
    results = [np.asarray(out[name]) for name in wanted]
    return results[0] if len(results) == 1 else results
