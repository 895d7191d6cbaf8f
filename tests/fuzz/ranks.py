"""Random graphs on several ranks: shares of any axis of any input, of rows, and stages; each answers as one device, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from checking import Expected, Wrong, run

import tensorlogic as tl

S = tl.DistributedParallelismStrategy
MOST_RANKS = 4
LOST = ("E373", "E374", "E375")  # ranks that fail, wait or differ: no answer to a graph that cannot be shared


def ranks(expected: Expected) -> None:
    """Every way to share, on one to four devices."""
    case = expected.case
    for name, strategy, count in ways(expected):
        config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(count)], strategy=strategy, timeout=30.0)
        executor = tl.Executor()

        def execute(x: dict[str, Any], name: str = name, executor: Any = executor, config: Any = config) -> Any:
            try:
                return executor.execute_distributed(case.graph, x, config)
            except tl.ExecutionError as error:
                if error.diagnostic.code in LOST:
                    raise Wrong(f"{name}: ranks do not come together: {error}") from error
                raise

        run(name, expected, execute, exact=False, may_refuse=True)


def ways(expected: Expected) -> Iterator[tuple[str, Any, int]]:
    """Yield strategies that a case takes, each with its name and how many devices it is for."""
    sized = {name: np.shape(value) for name, value in expected.case.inputs.items()}
    for count in range(1, MOST_RANKS + 1):
        for name, shape in sized.items():
            for axis in range(len(shape)):
                spec = tl.ShardingSpec().shard_tensor(name, axis, count)
                yield f"axis {axis} of {name} on {count} ranks", S.ModelParallel(spec), count
        yield f"rows on {count} ranks", S.DataParallel(count), count
        yield f"{count} stages", S.PipelineParallel(count, 2), count
    pairs = [(name, axis) for name, shape in sized.items() for axis in range(len(shape))]
    for (a, m), (b, n) in pairwise(pairs):
        if a != b:
            spec = tl.ShardingSpec().shard_tensor(a, m, 3).shard_tensor(b, n, 3)
            yield f"axis {m} of {a} and axis {n} of {b} on 3 ranks", S.ModelParallel(spec), 3
    yield "2 by 2", S.Hybrid(2, 2, 1), 4
    yield "rows of 2 stages", S.Hybrid(2, 1, 2), 4
