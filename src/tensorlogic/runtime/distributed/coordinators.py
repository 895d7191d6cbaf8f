"""The seed's names for distributed runs: each is an executor with one strategy."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.base import Device
from ...ir.graph import EinsumGraph
from ..executor import Executor
from ..values import Inputs, Outputs
from .config import (
    DataParallel,
    DistributedConfig,
    DistributedParallelismStrategy,
    ModelParallel,
    PipelineParallel,
    ShardingSpec,
)
from .stats import DistributedStats


class DistributedExecutor:
    """Runs graphs on the devices of one config.

    >>> import numpy as np
    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", 2)) * 2)
    >>> both = DistributedExecutor(DistributedConfig([Device.CPU(0), Device.CPU(1)]))
    >>> both.execute(graph, {"x": np.ones((3, 2))})["y"].sum()
    np.float64(12.0)
    """

    def __init__(self, config: DistributedConfig, executor: Executor | None = None) -> None:
        self.config = config
        self.executor = Executor() if executor is None else executor

    def execute(self, graph: EinsumGraph, inputs: Inputs | None = None) -> Outputs:
        """Run a graph and return its outputs, whole."""
        return self.executor.execute_distributed(graph, inputs, self.config)

    @property
    def stats(self) -> DistributedStats:
        """Where the time of the last run went."""
        return self.executor.get_distributed_stats()


def _on(devices: Sequence[Device], strategy: DistributedParallelismStrategy) -> DistributedConfig:
    return DistributedConfig(tuple(devices), strategy=strategy)


def DataParallelCoordinator(devices: Sequence[Device], *, over: str | None = None) -> DistributedExecutor:  # noqa: N802 - the seed's name
    """Return what runs graphs on devices that each have all weights and a share of the rows.

    >>> DataParallelCoordinator([Device.CPU(0), Device.CPU(1)]).config.mesh.data
    2
    """
    return DistributedExecutor(_on(devices, DataParallel(len(devices), over)))


def ModelParallelCoordinator(devices: Sequence[Device], spec: ShardingSpec) -> DistributedExecutor:  # noqa: N802 - the seed's name
    """Return what runs graphs on devices that each have a share of the tensors that a spec names.

    >>> spec = ShardingSpec().shard_tensor("w", 1, 2)
    >>> ModelParallelCoordinator([Device.CPU(0), Device.CPU(1)], spec).config.mesh.model
    2
    """
    return DistributedExecutor(_on(devices, ModelParallel(spec)))


def PipelineParallelCoordinator(  # noqa: N802 - the seed's name
    devices: Sequence[Device], micro_batch_size: int, *, over: str | None = None, schedule: str = "1f1b"
) -> DistributedExecutor:
    """Return what runs graphs on devices that each have a stretch of the graph; training steps go back by a schedule.

    >>> PipelineParallelCoordinator([Device.CPU(0), Device.CPU(1)], 32).config.mesh.stage
    2
    """
    return DistributedExecutor(_on(devices, PipelineParallel(len(devices), micro_batch_size, over, schedule)))
