"""Rows of batches and streams over ranks: each rank computes a share of the rows, and a worker that dies is replaced.

A chunk or a batch is one run like any other; where a worker process ends during it, new workers are started and the run is repeated. Nothing of
the run that failed is kept, so every row counts once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ExecutionError, InputError, expect
from ...events import span
from ...ir.graph import EinsumGraph
from ..modes import distributed_of
from ..values import Outputs
from .config import DataParallel, DistributedConfig

if TYPE_CHECKING:
    from ..executor import Executor

ATTEMPTS = 5  # runs of the same rows, before the death of workers is an error


def check_rows_config(config: DistributedConfig) -> None:
    """Refuse a config under which rows cannot be shared by a driver."""
    hint = "write DistributedConfig([Device.CPU(0), Device.CPU(1)])"
    expect(config, DistributedConfig, "distributed= is a DistributedConfig", hint)
    if not isinstance(config.strategy, DataParallel):
        message = f"ranks share the rows of a batch or a stream: DataParallel, not {type(config.strategy).__name__}"
        raise InputError(message, hint, code="E398")
    if config.communication != "local" and "RANK" in os.environ:
        message = "a batch or a stream over ranks is driven by one process, and this one is a rank among others"
        raise InputError(message, "run the script by itself: it starts the workers", code="E398")


def execute_rows(
    executor: Executor,
    graph: EinsumGraph,
    values: Mapping[str, Any],
    axes: Mapping[str, int],
    config: DistributedConfig,
) -> Outputs:
    """Run a graph on the ranks of a config, which share the inputs in ``axes`` along an axis each; repeat it where a worker ends."""
    rows = min(values[name].shape[axis] for name, axis in axes.items())
    if rows < config.mesh.size:
        return executor.execute(graph, values)  # not a row for each
    ranks = distributed_of(executor)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return ranks.execute(executor, graph, values, config, axes)
        except ExecutionError as error:
            if error.diagnostic.code != "E382" or attempt == ATTEMPTS:
                raise
            with span(f"attempt {attempt} failed: {error.diagnostic.message}", executor.hooks()):
                continue
    raise AssertionError("the last attempt returns or raises")
