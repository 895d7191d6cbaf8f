"""Many callers and two models: requests gather into batches, and a cascade spares the large model what the small one is sure of.

Run it: python examples/many_callers.py
"""

import asyncio

import numpy as np

import tensorlogic as tl

RNG = np.random.default_rng(0)
CENTRES = 3.0 * RNG.normal(size=(4, 8))  # of four classes


def points(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy points of four classes."""
    labels = RNG.integers(0, 4, count)
    return CENTRES[labels] + 2.0 * RNG.normal(size=(count, 8)), labels


def model(columns: int) -> tl.EinsumGraph:
    """Return a classifier that looks at the first columns: the nearest centre, as probabilities."""
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 8), "float64")
    seen = np.zeros_like(CENTRES)
    seen[:, :columns] = CENTRES[:, :columns]
    scores = x @ b.constant(seen.T / 4.0) - b.constant(np.square(seen).sum(1) / 8.0)
    return b.build(p=b.softmax(scores))


async def many_callers() -> None:
    """Answer 1,000 callers, some more urgent than others, through one batcher."""
    rows, labels = points(1000)
    config = tl.BatcherConfig(max_batch=64, max_queue=2000)
    async with tl.DynamicBatcher(tl.Executor(), model(8), config) as batcher:
        urgent = [tl.Priority.HIGH if n % 10 == 0 else tl.Priority.NORMAL for n in range(1000)]
        calls = [batcher.submit({"x": row[None]}, p, timeout=60) for row, p in zip(rows, urgent, strict=True)]
        answers = await asyncio.gather(*calls)
    stats = batcher.stats()
    right = np.mean([a["p"].argmax() == label for a, label in zip(answers, labels, strict=True)])
    print(f"{stats.completed} answers, {right:.0%} right; in fewer than 100 batches: {stats.batches < 100}")


def a_cascade() -> None:
    """Let a model that sees four columns decide what it can."""
    rows, labels = points(1000)
    coordinator = tl.MultiModelCoordinator()
    coordinator.register("small", model(4), cost=1)
    coordinator.register("large", model(8), cost=10)
    for confidence in (0.6, 0.9, 0.99):
        routed = coordinator.route({"x": rows}, tl.RoutingStrategy.CASCADE, confidence=confidence)
        right = np.mean(routed.outputs["p"].argmax(1) == labels)
        on = routed.cascade.stages[1].rows
        print(
            f"confidence {confidence}: {on} of 1000 rows go on, {right:.0%} right, {routed.cascade.cost_saving:.0%} saved"
        )
    coordinator.ensemble("both", ["small", "large"], tl.EnsembleStrategy.VOTING, soft=True, weights=[1, 3])
    print(f"both as one graph: {np.mean(coordinator.run('both', {'x': rows})['label'] == labels):.0%} right")


asyncio.run(many_callers())
a_cascade()
