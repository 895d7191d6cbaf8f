"""How many items to run at once: timed on this machine, within the memory that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, expect, expect_known, expect_whole
from ..ir.graph import EinsumGraph
from ..passes.specialize import checked_sizes, known_inputs
from .batch import execute_batch, most_at_once, way_of
from .batch_groups import uniform
from .tuning import made_up_inputs
from .values import Inputs, check_call, check_names

if TYPE_CHECKING:
    from .executor import Executor

STAND_IN = 16  # for sizes that nobody gave
RUNS = 3  # of each size, of which the fastest counts
NEAR = 1.05  # times the best time of an item: as good


def optimal_batch_size(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None,
    sizes: Mapping[str, int] | None,
    shared: str | Sequence[str],
    memory_limit: int | None,
    most: int,
    seconds: float,
    clock: Callable[[], float],
) -> int:
    """Time batches of 1, 2, 4, ... items and return the least size with which an item takes hardly longer than with the best."""
    expect_whole("most", most, 1)
    if memory_limit is not None:
        expect_whole("memory_limit", memory_limit)
    expect(seconds, Real, "seconds= is how long sizes are tried", "write seconds=1.0")
    expect(shared, Iterable, "shared= names inputs", 'write shared=["w"]')
    example = _example(executor, graph, {} if inputs is None else inputs, sizes)
    graph = graph.with_scores(()) if graph.scores else graph  # what is made up says nothing of the values of later runs
    names = [shared] if isinstance(shared, str) else list(shared)
    expect_known("the graph has no input", names, graph.inputs)

    def items(count: int) -> list[Inputs]:
        """Return ``count`` items, each with arrays of its own, as those of a real batch."""
        return [{k: v if k in names else v.view() for k, v in example.items()} for _ in range(count)]

    groups = uniform(graph, items(2))
    if not groups or not groups[0].over:
        return 1  # nothing differs between items
    way = way_of(executor, graph, groups[0])
    if way.graph is None:
        return 1
    most = min(most, most_at_once(executor, way, memory_limit))
    took: dict[int, float] = {}
    start, size = clock(), 1
    while size <= most:
        took[size] = _time(executor, graph, items(size), clock) / size
        gains = [took[size] * NEAR < took[size // k] for k in (2, 4) if size // k in took]
        if clock() - start > seconds or (len(gains) == 2 and not any(gains)):
            break
        size *= 2
    best = min(took.values())
    return next(s for s, each in took.items() if each <= NEAR * best)


def _time(executor: Executor, graph: EinsumGraph, items: Sequence[Inputs], clock: Callable[[], float]) -> float:
    """Return the seconds that a batch takes once it is planned."""
    times = []
    for _ in range(1 + RUNS):
        start = clock()
        result = execute_batch(executor, graph, items)
        times.append(clock() - start)
        for error in result.errors.values():
            raise error
    return min(times[1:])


def _example(executor: Executor, graph: EinsumGraph, inputs: Inputs, sizes: Mapping[str, int] | None) -> dict[str, Any]:
    """Return arrays for one item: those given, and made-up ones for the other inputs."""
    check_call(graph, inputs)
    check_names(graph, inputs, required=False)
    given = {n: executor.backend.asarray(v, graph.type_of(graph.inputs[n]).dtype) for n, v in inputs.items()}
    known = known_inputs(graph, given, checked_sizes(graph, sizes), stand_in=STAND_IN)
    for name in known.unranked:
        hint = f"give it: optimal_batch_size(graph, {{{name!r}: array}})"
        raise InputError(f"a batch size needs input {name!r}, whose shape is not declared", hint, code="E303")
    types = {n: known.types[n] for n in graph.inputs}
    example = dict(zip(types, made_up_inputs(types), strict=True)) | given
    return {n: v if type(v) is np.ndarray else np.asarray(v) for n, v in example.items()}
