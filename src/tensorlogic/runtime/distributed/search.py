"""The strategy ``Auto``: every mesh of the devices is predicted, and the fastest that fits is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...diagnostics import bytes_text
from ...errors import InputError, TensorLogicError
from ...ir.graph import EinsumGraph
from ...ir.types import TensorType
from ...tables import html_text, table
from .cluster import Cluster
from .config import Auto, DistributedConfig, DistributedParallelismStrategy, Mesh
from .simulate import Simulation, predict

if TYPE_CHECKING:
    from ..executor import Executor


class Candidate(NamedTuple):
    """A mesh that was looked at: what is predicted for it, or why it cannot be."""

    mesh: Mesh
    strategy: DistributedParallelismStrategy
    prediction: Simulation | None
    reason: str = ""


class StrategyChoice(NamedTuple):
    """What ``Auto`` decided from; it prints as a table, the mesh that runs first."""

    candidates: tuple[Candidate, ...]  # the fastest that fit first, then those that do not
    measured: bool

    @property
    def strategy(self) -> DistributedParallelismStrategy:
        """The strategy that runs."""
        return self.candidates[0].strategy

    def __str__(self) -> str:
        rows = []
        for n, (mesh, _, found, reason) in enumerate(self.candidates):
            cells = [str(size) for size in mesh]
            if found is None:
                rows.append([*cells, "", "", "", "", "", reason])
                continue
            sent = ", ".join(f"{axis} {bytes_text(count)}" for axis, count in found.bytes_per_link.items())
            note = "runs" if n == 0 else "" if found.fits else "does not fit in memory"
            figures = [f"{1e3 * found.step_seconds:.3f}", bytes_text(found.memory_bytes), f"{found.bubble:.0%}"]
            rows.append([*cells, str(found.micro_batches), *figures, sent, note])
        head = ["data", "model", "stage", "batches", "step ms", "memory", "bubble", "sent by a rank", ""]
        how = "steps timed here" if self.measured else "steps estimated"
        return "\n".join([table(head, rows, right={0, 1, 2, 3, 4, 5, 6}), f"predicted; {how}"])

    def _repr_html_(self) -> str:
        return html_text(self)


def meshes(devices: int) -> list[Mesh]:
    """Return every mesh of so many devices.

    >>> [tuple(mesh) for mesh in meshes(4)]
    [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    """
    sizes = [n for n in range(1, devices + 1) if devices % n == 0]
    return [Mesh(d, m, devices // (d * m)) for d in sizes for m in sizes if devices % (d * m) == 0]


def choose_strategy(
    executor: Executor,
    graph: EinsumGraph,
    types: Mapping[str, TensorType],
    config: DistributedConfig,
    cluster: Cluster,
    here: Cluster | None = None,
) -> StrategyChoice:
    """Predict every mesh of the devices of a config and return them, the fastest that fits in memory first."""
    from .job import Job

    auto = config.strategy if isinstance(config.strategy, Auto) else Auto()
    found = []
    for mesh in meshes(len(config.devices)):
        strategy = auto.on(mesh)
        try:
            job = Job(graph, types, replace(config, strategy=strategy), executor, places=[(0, 0)])
            found.append(Candidate(mesh, strategy, predict(executor, job, cluster, here)))
        except TensorLogicError as error:
            found.append(Candidate(mesh, strategy, None, error.diagnostic.message))
    ranked = sorted(
        found, key=lambda c: (c.prediction is None, c.prediction and (not c.prediction.fits, c.prediction.step_seconds))
    )
    if ranked[0].prediction is None:
        reasons = [f"{mesh.data} × {mesh.model} × {mesh.stage}: {reason}" for mesh, _, _, reason in ranked[:4]]
        raise InputError(f"no mesh of {len(config.devices)} devices can run this graph", *reasons, code="E392")
    if not ranked[0].prediction.fits:
        least = min(c.prediction.memory_bytes for c in ranked if c.prediction is not None)
        message = f"no mesh of {len(config.devices)} devices fits: {bytes_text(least)} are needed on each, {bytes_text(cluster.memory or 0)} are there"
        raise InputError(message, "use more devices, or smaller micro-batches", code="E393")
    return StrategyChoice(tuple(ranked), here is not None)


def settled(
    executor: Executor,
    graph: EinsumGraph,
    types: Mapping[str, TensorType],
    config: DistributedConfig,
    cluster: Cluster | None = None,
    here: Cluster | None = None,
) -> DistributedConfig:
    """Return a config whose strategy is not ``Auto``: that which is predicted to be fastest, once its table was shown."""
    if not isinstance(config.strategy, Auto):
        return config
    auto = config.strategy
    if cluster is None:
        cluster = auto.cluster
        if cluster is None:
            cluster = here = Cluster.measure(config.communication, ranks=len(config.devices), executor=executor)
    choice = choose_strategy(executor, graph, types, config, cluster, here)
    if auto.show is not None:
        auto.show(str(choice))
    return replace(config, strategy=choice.strategy)
