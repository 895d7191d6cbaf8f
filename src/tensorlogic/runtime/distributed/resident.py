"""A graph that ranks run again and again, with values that stay with them: a training step, whose parameters do not travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ExecutionError, InputError
from ...ir.graph import EinsumGraph
from ...ir.types import TensorType
from ..modes import distributed_of
from .calls import one_call, same_job
from .config import Auto, DistributedConfig, Mesh, check_devices
from .job import Job
from .layout import Cuts, assembled, own_ranges, owned_by
from .rank import RankResult, Task, mesh_ways, run_rank
from .run import check_hooks, run_threads

if TYPE_CHECKING:
    from ..executor import Executor
    from .workers import Workers

Array = Any


class Resident:
    """A graph on the ranks of a config, and the values that stay with them, each rank having its share of those that lie in shares.

    Outputs that are ``carried`` are the next values of the inputs of their names: they are written over where they are. ``shares`` names inputs
    that lie along the data axis although they have no rows, each with its axis.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> total = b.input("total", (), "float64") + b.sum(b.input("x", ("n",), "float64"))
    >>> both = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)])
    >>> run = Resident(tl.Executor(), b.build(total=total), ["total"], both)
    >>> run.put({"total": np.array(1.0)})
    >>> run.run({"x": np.ones(3)}), run.run({"x": np.ones(4)}), run.fetch()
    ({}, {}, {'total': array(8.)})
    """

    def __init__(
        self,
        executor: Executor,
        graph: EinsumGraph,
        carried: Sequence[str],
        config: DistributedConfig,
        shares: Mapping[str, int] | None = None,
    ) -> None:
        self.executor, self.graph, self.carried, self.config = executor, graph, tuple(carried), config
        if config.own_shares:
            message = "own_shares= is for execute_distributed: a trainer gives every rank its share of a batch"
            raise InputError(message, "leave own_shares= out", code="E377")
        self.shares = dict(shares or {})
        self._distributed = distributed_of(executor)
        self.mesh = Mesh() if isinstance(config.strategy, Auto) else config.mesh
        # what comes after the micro-batches runs here, so that values are here too; so they are where the mesh is not known yet
        self._here = isinstance(config.strategy, Auto) or self.mesh.stage > 1
        self._given: dict[str, Array] = {}  # values that go to the ranks with the next run
        self._types: dict[str, TensorType] = {}  # of the values that stay
        # values that ranks have had together, which they do not compare any more
        self._agreed: frozenset[str] = frozenset()
        self._cuts: dict[str, Cuts] = {}
        self._jobs: dict[tuple[TensorType, ...], Job] = {}
        self._kept: list[dict[str, Array]] = [{} for _ in range(self.mesh.size)]  # of threads, or of this process
        self._workers: Workers | None = None  # who have the values
        self._number = 0  # by which they know them

    def put(self, values: Mapping[str, Array]) -> None:
        """Give the ranks values to keep, whole, from the next run on."""
        self._given |= values
        self._agreed -= values.keys()
        self._types |= {name: TensorType.of(value) for name, value in values.items()}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph once, and return the outputs that do not stay."""
        if self._here:
            every = {**inputs, **self._given}
            outputs = dict(
                self._distributed.execute(self.executor, self.graph, every, self.config, agreed=self._agreed)
            )
            self._agreed = frozenset(self.carried)
            self._given |= {name: outputs.pop(name) for name in self.carried}
            return outputs
        self._distributed.calls += 1
        with one_call(self._distributed.world_of(self.config), self._distributed.calls, self.config):
            return self._run(inputs)

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_devices(self.executor.backend, self.config)
        check_hooks(self.executor)
        job = self._job(inputs)
        part = job.part(0)
        cuts = {name: part.ranks[0, 0].inputs.get(name, ()) for name in self._types}
        if self._cuts and cuts != self._cuts:  # other shares than before
            held = self.fetch()
            self._agreed |= held.keys() - self._given.keys()
            self._given = {**held, **self._given}
        self._cuts = cuts
        tasks, put = [], []
        for rank in range(self.mesh.size):
            place = self.mesh.coordinates(rank)
            own = part.ranks[place["data"], place["model"]]
            share = {n: self._share(v, own.inputs.get(n, ()), place) for n, v in {**inputs, **self._given}.items()}
            put.append({name: share.pop(name) for name in self._given})
            wanted = [name for name in part.handed_in[rank] if name not in self.carried]
            tasks.append(Task(own.graph, share, wanted, self.config.deterministic))
        alike = {name: value for name, value in {**inputs, **self._given}.items() if name not in self._agreed}
        results = self._results(job, tasks, put, alike)
        self._given = {}
        self._distributed.tell(self.executor, results, self.config)
        return {name: value for result in results for name, value in result.outputs[0].items()}

    def fetch(self) -> dict[str, Array]:
        """Return the values that stay with the ranks, whole."""
        if self._given.keys() == self._types.keys():
            return dict(self._given)
        world = self._distributed.world_of(self.config)
        if world is not None:
            return {**self._gathered(world), **self._given}
        if self.config.communication == "local":
            parts: Sequence[Mapping[str, Array]] = self._kept
        else:
            take = [self._owned(rank) for rank in range(self.mesh.size)]
            run = self._on_workers([[]] * self.mesh.size, [{}] * self.mesh.size, take)
            parts = [result.outputs[0] if result.outputs else {} for result in run]
        whole = {}
        for name, t in self._types.items():
            own = {rank: parts[rank][name] for rank in range(self.mesh.size) if name in self._owned(rank)}
            whole[name] = assembled(t, self._cuts[name], self.mesh, own)
        return {**whole, **self._given}

    def close(self) -> None:
        """Let the ranks forget the values."""
        if self._workers is not None and self._workers is self._distributed.workers:
            self._workers.drop(self._number)
        self._workers = None

    def _job(self, inputs: Mapping[str, Array]) -> Job:
        types = {**self._types, **{name: TensorType.of(value) for name, value in inputs.items()}}
        key = tuple(types[name] for name in self.graph.inputs)
        if key not in self._jobs:
            self._jobs[key] = Job(
                self.graph, types, self.config, self.executor, carried=self.carried, shares=self.shares
            )
        return self._jobs[key]

    def _share(self, value: Array, cuts: Cuts, place: Mapping[str, int]) -> Array:
        return value[own_ranges(value.shape, cuts, self.mesh, place)] if cuts else value

    def _owned(self, rank: int) -> list[str]:
        place = self.mesh.coordinates(rank)
        return [name for name in self._types if owned_by(self._cuts[name], place)]

    def _results(
        self, job: Job, tasks: Sequence[Task], put: Sequence[Mapping[str, Array]], alike: Mapping[str, Array]
    ) -> list[RankResult]:
        world = self._distributed.world_of(self.config)
        if world is None and self.config.communication != "local":
            return self._on_workers([[task] for task in tasks], put, [[]] * self.mesh.size)
        ranks = range(self.mesh.size) if world is None else [world.rank]
        for rank in ranks:
            self._kept[rank] |= {name: np.array(value) for name, value in put[rank].items()}
        if world is None:
            return run_threads(self.executor, self.mesh, [[t] for t in tasks], self.config, self._kept, self.carried)
        own, kept = tasks[world.rank]._replace(wanted=tasks[0].wanted), self._kept[world.rank]
        with same_job(world, job, alike):
            return [run_rank(self.executor, mesh_ways(world, self.mesh), [own], kept, self.carried)]

    def _on_workers(
        self, tasks: Sequence[Sequence[Task]], put: Sequence[Mapping[str, Array]], take: Sequence[Sequence[str]]
    ) -> list[RankResult]:
        from .messages import KeptMessage
        from .workers import Workers

        all_given = self._given.keys() == self._types.keys()
        if isinstance(self._workers, Workers) and self._workers is self._distributed.workers and not all_given:
            self._workers.check()

        def act(workers: Workers) -> list[RankResult]:
            if workers is not self._workers:
                if not all_given:
                    message = "the processes that held the values of this run are gone"
                    raise ExecutionError(
                        message, "give them again: put(values), or resume from a checkpoint", code="E385"
                    )
                self._workers, self._number = workers, workers.new_kept()
            each = zip(put, take, strict=True)
            kept = [KeptMessage(self._number, own, self.carried if tasks[0] else (), asked) for own, asked in each]
            return workers.run(self.mesh, tasks, kept)

        return self._distributed.on_workers(self.executor, self.mesh, self.config, act)

    def _gathered(self, world: Any) -> dict[str, Array]:
        """Return the values whole, on every rank, of which each has its share."""
        ways, whole = mesh_ways(world, self.mesh), {}
        for name, t in self._types.items():
            value, cuts = self._kept[world.rank][name], self._cuts[name]
            for n, (over, axis) in reversed(list(enumerate(cuts))):
                places = own_ranges(t.shape, cuts[:n], self.mesh, self.mesh.coordinates(world.rank))  # type: ignore[arg-type]
                value = ways[over].all_gather(value, axis, places[axis].stop - places[axis].start)
            whole[name] = np.array(value)
        return whole
