"""Running one graph on several ranks from one caller: shares go out, every rank runs its graph, and the outputs come back whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...backends.collectives import CommunicationBackend
from ...errors import ExecutionError, InputError, expect
from ...events import Hook, active_contexts, entered, span
from ...ir.graph import EinsumGraph
from ...ir.types import TensorType, dims
from ...passes.specialize import specialize
from ...passes.split import Split, split_inputs
from ...passes.stages import cut_stages, stage_of_nodes
from ...plan.fused_steps import Cut
from ...plan.node_costs import known_costs
from ...store import Store
from ..parts import Parts, range_of
from ..values import Inputs, Outputs
from .config import DistributedConfig, Mesh
from .layout import RankGraph, check_names, micro_batch_rows, own_ranges, owned_by, rank_graphs, rows_of
from .local import local_group
from .rank import RankResult, RankTimes, Task, mesh_ways, of_rank, run_rank
from .stats import DistributedStats

if TYPE_CHECKING:
    from ..executor import Executor
    from .workers import Workers

LONGEST = 400  # bytes of what ranks compare
JOBS = 32  # graphs with their configs that stay ready


class Part(NamedTuple):
    """One graph as the ranks of a mesh run it: what each place along data and model holds, and the stages of that."""

    graph: EinsumGraph
    ranks: Mapping[tuple[int, int], RankGraph]
    stages: Mapping[tuple[int, int], list[EinsumGraph]]
    makers: Mapping[str, int]  # the stage that makes each output


class Job:
    """A graph spread over a mesh, for inputs of certain types."""

    def __init__(self, graph: EinsumGraph, types: Mapping[str, TensorType], config: DistributedConfig) -> None:
        check_names(graph, config.strategy)
        self.config, self.mesh = config, config.mesh
        self.rows = rows_of(graph, config.strategy, self.mesh)
        self.graph = specialize(graph, types)
        self.cut: Split | None = split_inputs(self.graph, self.rows) if self.mesh.stage > 1 else None
        self._parts: dict[int, Part] = {}

    def micro_batches(self) -> list[range]:
        """Return the rows of each micro-batch; a graph that is no pipeline has one of all."""
        if self.cut is None:
            return [range(0)]
        rows = micro_batch_rows(self.config.strategy, self.mesh.stage, self.cut.size)
        return [range(start, min(start + rows, self.cut.size)) for start in range(0, self.cut.size, rows)]

    def part(self, rows: int) -> Part:
        """Return what the ranks run for so many rows."""
        if rows not in self._parts:
            if self.cut is None:
                graph, axes = self.graph, self.rows
            else:
                graph = self.cut.part(rows)
                axes = {feed.label: feed.axis for feed in self.cut.feeds if feed.axis is not None}
            ranks = rank_graphs(graph, self.mesh, axes, self.config.strategy)
            self._parts[rows] = self._staged(graph, ranks)
        return self._parts[rows]

    def _staged(self, graph: EinsumGraph, ranks: Mapping[tuple[int, int], RankGraph]) -> Part:
        if self.mesh.stage == 1:
            whole = {place: [own.graph] for place, own in ranks.items()}
            return Part(graph, ranks, whole, dict.fromkeys(graph.output_names, 0))
        first = ranks[0, 0].graph
        stage_of = stage_of_nodes(first, known_costs(first).cost, self.mesh.stage)
        stages = {place: cut_stages(own.graph, stage_of) for place, own in ranks.items()}
        makers = {name: n for n, stage in enumerate(stages[0, 0]) for name in stage.outputs}
        return Part(graph, ranks, {place: [s.graph for s in own] for place, own in stages.items()}, makers)

    def tasks(self, part: Part, inputs: Mapping[str, Any]) -> list[Task]:
        """Return what each rank runs for one micro-batch."""
        found: list[Task] = []
        for rank in range(self.mesh.size):
            place = self.mesh.coordinates(rank)
            own = part.ranks[place["data"], place["model"]]
            graph = part.stages[place["data"], place["model"]][place["stage"]]
            values = {}
            for name in graph.inputs:
                value, cuts = inputs[name], own.inputs.get(name, ())
                values[name] = value[own_ranges(value.shape, cuts, self.mesh, place)] if cuts else value
            found.append((graph, values))
        return found

    def handed_in(self, part: Part, rank: int) -> list[str]:
        """Return the outputs that a rank hands in: of those who have the same part of one, the first does."""
        place, cuts = self.mesh.coordinates(rank), part.ranks[0, 0].outputs
        return [n for n, stage in part.makers.items() if stage == place["stage"] and owned_by(cuts.get(n, ()), place)]

    def everywhere(self, part: Part, name: str) -> bool:
        """Tell whether every rank has all of an output anyway."""
        return self.mesh.stage == 1 and not part.ranks[0, 0].outputs.get(name)

    def whole(self, part: Part, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the outputs of a micro-batch, put together from what the ranks have of them."""
        outputs = {}
        for name, i in part.graph.outputs:
            t = part.graph.type_of(i)
            cuts = part.ranks[0, 0].outputs.get(name, ())
            array = np.empty(dims(t), t.dtype) if cuts else None
            for rank, own in enumerate(results):
                if name not in self.handed_in(part, rank):
                    continue
                if array is None:
                    array = own[name]
                else:
                    array[own_ranges(dims(t), cuts, self.mesh, self.mesh.coordinates(rank))] = own[name]
            outputs[name] = array
        return outputs


class Distributed:
    """What an executor keeps of its distributed runs: jobs that are ready, and the statistics of the last run."""

    def __init__(self) -> None:
        self.jobs: Store[Any, Job] = Store(JOBS)
        self.stats = DistributedStats()
        self.workers: Workers | None = None
        self.world: CommunicationBackend | None = None  # of the processes that were started beside this one

    def execute(self, executor: Executor, graph: EinsumGraph, inputs: Inputs, config: DistributedConfig) -> Outputs:
        """Run a graph on the devices of a config and return its outputs, whole."""
        expect(
            config,
            DistributedConfig,
            "a DistributedConfig is expected",
            "write DistributedConfig([Device.CPU(0), Device.CPU(1)])",
        )
        names, values = executor.arrays(graph, inputs)
        types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
        key = (graph, tuple(types.items()), config.strategy, config.communication)
        job = self.jobs.get(key)
        if job is None:
            job = Job(graph, types, config)
            self.jobs.put(key, job)
        given = dict(zip(names, values, strict=True))
        with span(f"distributed over {job.mesh.size} ranks", executor.context.hooks):
            outputs = (
                self._pipelined(executor, job, given, config)
                if job.cut
                else self._run(executor, job, [given], config)[0]
            )
        return Outputs(graph.output_names, [outputs[name] for name in graph.output_names])

    def _run(
        self, executor: Executor, job: Job, batches: Sequence[Mapping[str, Any]], config: DistributedConfig
    ) -> list[dict[str, Any]]:
        ranges = job.micro_batches()
        chosen = [job.part(len(r)) for r in ranges]
        by_batch = [job.tasks(part, inputs) for part, inputs in zip(chosen, batches, strict=True)]
        tasks = [[each[rank] for each in by_batch] for rank in range(job.mesh.size)]
        if config.communication == "torch" and "RANK" in os.environ:
            results = self._beside_others(executor, job, chosen, tasks, config)
        else:
            results = self._ranks(executor, job.mesh, tasks, config)
        self.stats = DistributedStats.of([result.times for result in results])
        _told(executor.hooks(), results, config)
        each = enumerate(chosen)
        return [job.whole(part, [result.outputs[n] for result in results]) for n, part in each]

    def _ranks(
        self, executor: Executor, mesh: Mesh, tasks: Sequence[Sequence[Task]], config: DistributedConfig
    ) -> list[RankResult]:
        """Run the tasks of every rank: on threads, or in processes that stay for the next run."""
        if config.communication == "local":
            return run_threads(executor, mesh, tasks, config)
        from .workers import Workers

        if self.workers is None or not self.workers.fits(executor, mesh.size, config.timeout):
            self.close()
            self.workers = Workers(executor, mesh.size, config.timeout)
        try:
            return self.workers.run(mesh, tasks)
        except BaseException:
            self.close()
            raise

    def _beside_others(
        self,
        executor: Executor,
        job: Job,
        chosen: Sequence[Part],
        tasks: Sequence[Sequence[Task]],
        config: DistributedConfig,
    ) -> list[RankResult]:
        """Run the tasks of this process, which is one of the ranks, and hand the outputs round, so that every rank has them whole."""
        from .torch_ways import world_from_environment

        if self.world is None:
            self.world = world_from_environment(config.timeout)
        world = self.world
        check_same_job(world, job)
        own = run_rank(executor, mesh_ways(world, job.mesh), tasks[world.rank])
        results = []
        for rank in range(job.mesh.size):
            outputs = []
            for n, part in enumerate(chosen):
                graph, values = tasks[rank][n][0], {}
                places = dict(graph.outputs)
                for name in job.handed_in(part, rank):
                    if job.everywhere(part, name):
                        values[name] = own.outputs[n][name]
                        continue
                    t = graph.type_of(places[name])
                    x = own.outputs[n][name] if rank == world.rank else np.empty(dims(t), t.dtype)
                    values[name] = world.broadcast(x, rank)
                outputs.append(values)
            results.append(
                own._replace(outputs=outputs) if rank == world.rank else RankResult(outputs, RankTimes(), [])
            )
        return results

    def close(self) -> None:
        """End the processes of other ranks; the next run starts them anew."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None

    def _pipelined(
        self, executor: Executor, job: Job, inputs: Mapping[str, Any], config: DistributedConfig
    ) -> dict[str, Any]:
        """Run what comes before the micro-batches, those, and what comes after them."""
        cut = job.cut
        assert cut is not None
        needed = {name: inputs[name] for name in cut.before.inputs}
        known = {**inputs, **dict(executor.execute(cut.before, needed))}
        sources = {
            feed.label: cut.graph.constants[op.digest]
            for feed in cut.feeds
            if hasattr(op := cut.graph.nodes[feed.node].op, "digest")
        }
        ranges = job.micro_batches()
        batches = [
            {f.label: range_of((known | sources)[f.label.rstrip("'")], f.axis, rows) for f in cut.feeds}
            for rows in ranges
        ]
        joined = Parts(Cut(tuple(ranges), 1, (), cut.joins))
        totals: list[Any] = [None] * len(cut.joins)
        for outputs, rows in zip(self._run(executor, job, batches, config), ranges, strict=True):
            joined.join(totals, [outputs[join.label] for join in cut.joins], rows)
        known |= dict(zip([join.label for join in cut.joins], joined.whole(totals), strict=True))
        if cut.after.outputs:
            after = executor.execute(cut.after, {name: known[name] for name in cut.after.inputs})
            known |= dict(after)
        return {
            name: np.array(known[label]) if stage == "before" else known[label] for name, stage, label in cut.outputs
        }


def check_same_job(world: CommunicationBackend, job: Job) -> None:
    """Raise where ranks were given different graphs, inputs or configs, before any of them waits for something that does not come."""
    if job.mesh.size != world.size:
        message = f"the config is for {job.mesh.size} ranks, but {world.size} processes were started"
        raise InputError(message, f"start {job.mesh.size} processes, or give {world.size} devices", code="E376")
    types = ", ".join(f"{name}: {job.graph.type_of(i)}" for name, i in job.graph.inputs.items())
    mine = f"graph {job.graph.digest[:12]}, {job.config.strategy}, {types}"
    line = np.frombuffer(mine.encode()[:LONGEST].ljust(LONGEST), np.uint8)
    lines = world.all_gather(line.reshape(1, -1), 0, world.size)
    for rank, other in enumerate(lines):
        if not np.array_equal(other, line):
            theirs = other.tobytes().decode(errors="replace").strip()
            message = f"rank {rank} was given something else than rank {world.rank}"
            raise ExecutionError(message, f"here: {mine}", f"there: {theirs}", code="E383")


def run_threads(
    executor: Executor, mesh: Mesh, tasks: Sequence[Sequence[Task]], config: DistributedConfig
) -> list[RankResult]:
    """Run the tasks of every rank, each on a thread of its own; what one raises stops the others."""
    worlds = local_group(mesh.size, config.timeout)
    results: list[RankResult | None] = [None] * mesh.size
    errors: dict[int, BaseException] = {}
    active = active_contexts()

    def work(rank: int) -> None:
        try:
            with entered(active):
                results[rank] = run_rank(executor, mesh_ways(worlds[rank], mesh), tasks[rank])
        except BaseException as error:
            errors[rank] = error
            worlds[rank].fail(f"rank {rank} failed: {error}")

    threads = [
        threading.Thread(target=partial(work, rank), name=f"rank {rank}", daemon=True) for rank in range(mesh.size)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        worlds[0].fail("the run was interrupted")
        raise
    if errors:
        rank, error = min(errors.items(), key=lambda found: (_follows(found[1]), found[0]))
        raise of_rank(error, rank)
    return [result for result in results if result is not None]


def _follows(error: BaseException) -> bool:
    """Tell whether an error only says that another rank failed."""
    return isinstance(error, ExecutionError) and error.diagnostic.code == "E373"


def _told(hooks: Sequence[Hook], results: Sequence[RankResult], config: DistributedConfig) -> None:
    """Tell those who watch what ran on each rank, as steps of its device."""
    if not hooks:
        return
    for device, result in zip(config.devices, results, strict=True):
        for record in result.records:
            steps = tuple(step._replace(device=str(device)) for step in record.plan.steps)
            record.plan = record.plan._replace(steps=steps)
            for hook in hooks:
                hook.on_start(record.plan, (), body=record.body)
                hook.on_run(record)
