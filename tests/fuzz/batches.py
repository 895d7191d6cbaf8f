"""Random graphs on many items: each item has the answer that it has alone, in a batched graph and in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from checking import TAKEN, Expected, Wrong, check_owned, copies, quiet, same_bits

import tensorlogic as tl
from tensorlogic.testing.random_graphs import GraphCase, arrays


def batches(expected: Expected) -> None:
    """A batch of none, one and several items, with and without inputs that all of them share."""
    case = expected.case
    rng = np.random.default_rng(expected.salt)
    for count in (0, 1, 3):
        shared = [name for name in case.inputs if rng.random() < 0.3]
        items = [expected, *(Expected(_another(case, rng, shared)) for _ in range(count - 1))][:count]
        if expected.takes(f"batched, {count}"):
            TAKEN[""] += 1
            _pass(expected, items, shared)
        if expected.takes(f"execute_batch, {count}"):
            TAKEN[""] += 1
            _batch(items, shared, rng)


def _another(case: GraphCase, rng: np.random.Generator, shared: list[str]) -> GraphCase:
    """Return the case with other numbers in the inputs that are not shared; sometimes with the same."""
    if rng.random() < 0.2:
        return case
    other = {k: v if k in shared else arrays(rng, v.shape, v.dtype.name) for k, v in case.inputs.items()}
    return case._replace(inputs=other)


def _pass(first: Expected, items: list[Expected], shared: list[str]) -> None:
    case = first.case
    if not case.inputs:
        return
    over = [name for name in case.inputs if name not in shared] or list(case.inputs)[:1]
    graph = tl.batched(case.graph, over)
    if tl.EinsumGraph.from_text(graph.to_text(), graph.constants) != graph:
        raise Wrong(f"batched over {over}: reads back as another graph:\n{graph}")
    stacks = {
        k: np.array([each.case.inputs[k] for each in items], v.dtype).reshape(len(items), *v.shape) if k in over else v
        for k, v in copies(case.inputs).items()
    }
    unsure = any(each.error is not None or each.fails_unseen() for each in (first, *items))
    for backend in ("numpy", "reference"):
        executor, before = tl.Executor(backend), copies(stacks)
        try:
            with quiet():
                outputs, again = (dict(executor.execute(graph, stacks)) for _ in range(2))
        except tl.TensorLogicError as error:
            if not unsure and not (not items and isinstance(error, tl.ShapeError)):
                raise Wrong(f"batched over {over}, {len(items)} items on {backend}: refused: {error}") from error
            continue
        check_owned(f"batched over {over} on {backend}", again, stacks, outputs)
        if not all(same_bits(stacks[name], value) for name, value in before.items()):
            raise Wrong(f"batched over {over} on {backend}: an input was written over")
        for name, value in outputs.items():
            if not same_bits(value, again[name]):
                raise Wrong(f"batched over {over} on {backend}: equal calls give different bits in {name}")
            if value.shape[0] != len(items):
                raise Wrong(f"batched over {over}: {name} has {value.shape[0]} items, not {len(items)}")
        for n, each in enumerate(items):
            if each.error is None:
                own = {name: value[n, ...] for name, value in outputs.items()}
                each.check(f"batched over {over}, item {n} of {len(items)} on {backend}", own, exact=False)


def _batch(items: list[Expected], shared: list[str], rng: np.random.Generator) -> None:
    """Run items as a batch, some of them twice: on one thread and on several, the same again, each with outputs of its own."""
    if not items:
        return
    graph = items[0].case.graph
    order = [*items, *(each for each in items if rng.random() < 0.3)]
    weights = copies({name: items[0].case.inputs[name] for name in shared})
    given = [{**copies(each.case.inputs), **weights} for each in order]
    if rng.random() < 0.1:  # one that cannot run
        given[-1] = {**given[-1], "nobody": 1}
    before = [copies(item) for item in given]
    executor = tl.Executor()
    arrays: list[tuple[str, Any]] = [
        (f"input {k} of item {n}", v) for n, item in enumerate(given) for k, v in item.items()
    ]
    for road in ("batch", "batch again", "batch on threads"):
        with quiet():
            if road == "batch on threads":
                result = executor.execute_batch_parallel(graph, given, 2)
            else:
                result = executor.execute_batch(graph, given)
        if len(result) != len(given):
            raise Wrong(f"{road}: {len(result)} results of {len(given)} items")
        for n, each in enumerate(order):
            if (each.error is not None or "nobody" in given[n]) != (n in result.errors):
                raise Wrong(f"{road}: item {n} should fail alone: {each.error}, {dict(result.errors)}, {result.how}")
            if n in result.errors:
                continue
            own = dict(result[n])
            each.check(f"{road}, item {n} of {len(given)} ({', '.join(result.how)})", own, exact=False)
            for name, value in own.items():
                for other, array in arrays:
                    if isinstance(array, np.ndarray) and value.size and np.shares_memory(value, array):
                        raise Wrong(f"{road}: output {name} of item {n} stands in the memory of {other}")
                arrays.append((f"output {name} of item {n}, {road}", value))
        for n, (item, kept) in enumerate(zip(given, before, strict=True)):
            if not all(same_bits(np.asarray(item[k]), v) for k, v in kept.items()):
                raise Wrong(f"{road}: an input of item {n} was written over")
