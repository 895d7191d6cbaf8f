"""Ways to run a graph on more than one input: batches beside a loop of calls, and beside batches written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import modes_async
import modes_recovery
import modes_streaming
import numpy as np
from harness import Table, contest

import tensorlogic as tl

ITEMS = 256
STEPS = 7  # of which each is three operations


class Batch(NamedTuple):
    """A graph for one item, many items, and the same by hand: on the items, and on inputs that are stacked already."""

    graph: tl.EinsumGraph
    items: list[dict[str, Any]]
    over: list[str]
    by_hand: Callable[..., Any]  # of stacked inputs, by name

    def stacks(self) -> dict[str, Any]:
        """Return the inputs with those that differ between items stacked, as one would by hand."""
        return {
            k: np.stack([item[k] for item in self.items]) if k in self.over else v for k, v in self.items[0].items()
        }


def perceptron() -> Batch:
    """Return two layers, 32 to 64 to 10, on one row an item."""
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    shapes = {"x": (32,), "w": (32, 64), "c": (64,), "v": (64, 10), "d": (10,)}
    x, w, c, v, d = (b.input(name, shape, "float32") for name, shape in shapes.items())
    graph = b.build(y=b.relu(x @ w + c) @ v + d)
    weights = {k: rng.normal(size=s).astype("float32") / 8 for k, s in shapes.items() if k != "x"}
    items = [{"x": rng.normal(size=32).astype("float32"), **weights} for _ in range(ITEMS)]
    return Batch(graph, items, ["x"], lambda x, w, c, v, d: np.maximum(x @ w + c, 0) @ v + d)


def small_steps() -> Batch:
    """Return 22 small operations on vectors of 16."""
    rng = np.random.default_rng(1)
    b = tl.GraphBuilder()
    x, y = b.input("x", (16,), "float32"), b.input("y", (16,), "float32")
    z = x
    for _ in range(STEPS):
        z = b.tanh(z * 0.5 + y)
    items = [{k: rng.normal(size=16).astype("float32") for k in "xy"} for _ in range(ITEMS)]

    def by_hand(x: Any, y: Any) -> Any:
        half = np.float32(0.5)
        for _ in range(STEPS):
            x = np.tanh(x * half + y)
        return x.sum(1)

    return Batch(b.build(y=b.sum(z)), items, ["x", "y"], by_hand)


def batches() -> list[Table]:
    """Compare a batch of small items with a loop of calls and with NumPy."""
    tables = []
    for title, make in (("a perceptron 32-64-10 on one row", perceptron), ("22 small operations", small_steps)):
        batch = make()
        graph, items, executor = batch.graph, batch.items, tl.Executor()
        many, stacks = tl.batched(graph, batch.over), batch.stacks()
        np.testing.assert_allclose(
            executor.execute_batch(graph, items).stacked("y"), batch.by_hand(**stacks), rtol=1e-4, atol=1e-5
        )
        rounds = {
            "NumPy, np.stack and one call": lambda: batch.by_hand(**batch.stacks()),  # noqa: B023
            "execute_batch": lambda: executor.execute_batch(graph, items).stacked("y"),  # noqa: B023
            "execute_batch, every item read": lambda: [o[0] for o in executor.execute_batch(graph, items)],  # noqa: B023
            "a loop of execute": lambda: [executor.execute(graph, item) for item in items],  # noqa: B023
        }
        note = "Items as a list of dictionaries: all but the loop stack them. The aim: 20 times as fast as the loop, within 1.1 of NumPy."
        ours = ("execute_batch", "execute_batch, every item read")
        tables.append(contest(f"Batch of {ITEMS}: {title}", note, rounds, ours=ours, each=True))
        stacked = {
            "NumPy": lambda: batch.by_hand(**stacks),  # noqa: B023
            "tl.batched": lambda: executor.execute(many, stacks)[0],  # noqa: B023
        }
        note = "Inputs that are stacked already, through the pass itself."
        tables.append(contest(f"Batch of {ITEMS}, stacked: {title}", note, stacked, ours=("tl.batched",), each=True))
    return tables


MODES = (batches, modes_async.tables, modes_recovery.tables, modes_streaming.tables)


def tables() -> list[Table]:
    return [table for mode in MODES for table in mode()]
