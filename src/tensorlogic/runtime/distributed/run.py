"""Running one graph on several ranks from one caller: shares go out, every rank runs its graph, and the outputs come back whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...backends.threads import start_thread
from ...errors import ExecutionError, InputError, expect
from ...events import Hook, active_contexts, entered, span
from ...ir.graph import EinsumGraph
from ...ir.types import TensorType, dims
from ...plan.fused_steps import Cut
from ...store import Lock, Store
from ..parts import Parts, range_of
from ..values import Inputs, Outputs
from .calls import one_call, same_job
from .config import Auto, DistributedConfig, Mesh, check_devices
from .job import Job, Part
from .local import local_group
from .own_shares import shared_axes, whole_types
from .rank import RankResult, RankTimes, Task, mesh_ways, of_rank, run_rank
from .stats import DistributedStats

if TYPE_CHECKING:
    from ..executor import Executor
    from .torch_ways import TorchCommunication
    from .workers import WorkerGroup

T = TypeVar("T")
JOBS = 32  # graphs with their configs that stay ready


class Distributed:
    """What an executor keeps of its distributed runs: jobs that are ready, and the statistics of the last run."""

    def __init__(self) -> None:
        self.jobs: Store[Any, Job] = Store(JOBS)
        self.choices: Store[Any, DistributedConfig] = Store(JOBS)  # of Auto, by graph and inputs
        self.stats = DistributedStats()
        self.workers: WorkerGroup | None = None
        self._lock = Lock()
        self.world: TorchCommunication | None = None  # of the processes that were started beside this one
        self.calls = 0  # of a graph on ranks, those that failed too

    def execute(
        self,
        executor: Executor,
        graph: EinsumGraph,
        inputs: Inputs,
        config: DistributedConfig,
        rows: Mapping[str, int] | None = None,
        agreed: Collection[str] = (),
    ) -> Outputs:
        """Run a graph on the devices of a config and return its outputs, whole; ``rows`` says which axis of which inputs they share.

        Ranks of one script compare the inputs that they were given, but those that are ``agreed``: outputs of an earlier run, say.
        """
        self.calls += 1  # before anything can fail on this rank only
        expect(
            config,
            DistributedConfig,
            "a DistributedConfig is expected",
            "write DistributedConfig([Device.CPU(0), Device.CPU(1)])",
        )
        with one_call(self.world_of(config), self.calls, config):
            return self._execute(executor, graph, inputs, config, rows, agreed)

    def _execute(
        self,
        executor: Executor,
        graph: EinsumGraph,
        inputs: Inputs,
        config: DistributedConfig,
        rows: Mapping[str, int] | None,
        agreed: Collection[str],
    ) -> Outputs:
        check_devices(executor.backend, config)
        check_hooks(executor)
        names, values = executor.arrays(graph, inputs)
        types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
        config = self._settled(executor, graph, types, config)
        own: Mapping[str, int] = {}
        if config.own_shares:
            own = shared_axes(graph, config)
            types = whole_types(self.world_of(config), graph, own, types)
        shares = rows and tuple(rows.items())
        key = (graph, tuple(types.items()), config.strategy, config.communication, config.deterministic, shares)
        job = self.jobs.get(key)
        if job is None:
            job = Job(graph, types, config, executor, rows)
            self.jobs.put(key, job)
        given = dict(zip(names, values, strict=True))
        alike = {name: value for name, value in given.items() if name not in own and name not in agreed}
        with span(f"distributed over {job.mesh.size} ranks", executor.context.hooks):
            outputs = (
                self._pipelined(executor, job, given, config, alike)
                if job.cut
                else self._run(executor, job, [given], config, alike, own)[0]
            )
        return Outputs(graph.output_names, [outputs[name] for name in graph.output_names])

    def _settled(
        self, executor: Executor, graph: EinsumGraph, types: Mapping[str, TensorType], config: DistributedConfig
    ) -> DistributedConfig:
        """Return a config whose strategy is known: that of ``Auto`` is looked for once; of several processes, the first looks."""
        if not isinstance(config.strategy, Auto):
            return config
        from .search import meshes, settled

        key = (graph, tuple(types.items()), config.strategy, config.communication, len(config.devices))
        found = self.choices.get(key)
        if found is None:
            world = self.world_of(config)
            if world is not None:
                options = meshes(len(config.devices))
                number = np.zeros(1, "int64")
                if world.rank == 0:
                    number[0] = options.index(settled(executor, graph, types, config).mesh)
                mesh = options[int(world.broadcast(number, 0)[0])]
                found = config.with_strategy(config.strategy.on(mesh))
            else:
                found = settled(executor, graph, types, config)
            self.choices.put(key, found)
        return found

    def _run(
        self,
        executor: Executor,
        job: Job,
        batches: Sequence[Mapping[str, Any]],
        config: DistributedConfig,
        alike: Mapping[str, Any],
        own: Collection[str] = (),
    ) -> list[dict[str, Any]]:
        """Run a job on batches, and return the outputs of each; of the inputs that are ``own`` a batch has this rank's share.

        Those that are ``alike`` must be so on all ranks.
        """
        ranges = job.micro_batches()
        chosen = [job.part(len(r)) for r in ranges]
        world = self.world_of(config)
        here = range(job.mesh.size) if world is None else (world.rank,)
        nothing: list[Mapping[str, Any]] = [{}] * len(batches)
        tasks = [job.tasks(r, chosen, batches if r in here else nothing, own) for r in range(job.mesh.size)]
        if world is not None:
            results = self._beside_others(executor, job, chosen, tasks, world, alike)
        else:
            results = self.run_tasks(executor, job.mesh, tasks, config)
        self.tell(executor, results, config)
        outputs = [job.by_batch(chosen, rank, result.outputs) for rank, result in enumerate(results)]
        return [job.whole(part, [own[n] for own in outputs]) for n, part in enumerate(chosen)]

    def run_tasks(
        self, executor: Executor, mesh: Mesh, tasks: Sequence[Sequence[Task]], config: DistributedConfig
    ) -> list[RankResult]:
        """Run the tasks of every rank: on threads, or in processes that stay for the next run."""
        if config.communication == "local":
            return run_threads(executor, mesh, tasks, config)
        return self.on_workers(executor, mesh, config, lambda workers: workers.run(mesh, tasks))

    def on_workers(self, executor: Executor, mesh: Mesh, config: DistributedConfig, act: Callable[[Any], T]) -> T:
        """Return what a function does with the processes of the ranks, which are started where they are not there; a failure ends them."""
        from .ray_workers import RayWorkers
        from .workers import Workers

        kind: Any = RayWorkers if config.communication == "ray" else Workers
        given = (config.devices, config.timeout, config.address) if kind is RayWorkers else (mesh.size, config.timeout)
        with self._lock:  # one run at a time: workers answer in order
            if not isinstance(self.workers, kind) or not self.workers.fits(executor, *given):
                self.close()
                self.workers = kind(executor, *given)
            workers = self.workers
            assert workers is not None
            try:
                return act(workers)
            except BaseException:
                if not workers.restarts:
                    self.close()
                raise

    def tell(self, executor: Executor, results: Sequence[RankResult], config: DistributedConfig) -> None:
        """Keep the statistics of a run, and tell those who watch what ran on each rank."""
        self.stats = DistributedStats.of([result.times for result in results])
        _told(executor.hooks(), results, config)

    def world_of(self, config: DistributedConfig) -> TorchCommunication | None:
        """Return the way to the processes that were started beside this one; None where this one starts them, or there are threads."""
        if not config.beside_others:
            return None
        if self.world is None:
            from .torch_ways import world_from_environment

            self.world = world_from_environment(config.timeout)
        return self.world

    def _beside_others(
        self,
        executor: Executor,
        job: Job,
        chosen: Sequence[Part],
        tasks: Sequence[Sequence[Task]],
        world: TorchCommunication,
        alike: Mapping[str, Any],
    ) -> list[RankResult]:
        """Run the tasks of this process, which is one of the ranks, and hand the outputs round, so that every rank has them whole."""
        every = [task._replace(wanted=None) for task in tasks[world.rank]]
        with same_job(world, job, alike):
            own = run_rank(executor, mesh_ways(world, job.mesh), every)
        if chosen[0].is_whole_everywhere:
            outputs: list[list[dict[str, Any]]] = [own.outputs]
            outputs += [[{}] for _ in range(1, job.mesh.size)]
        else:
            outputs = self._handed_round(job, chosen, tasks, world, own.outputs)
        return [
            own._replace(outputs=each) if rank == world.rank else RankResult(each, RankTimes(), [])
            for rank, each in enumerate(outputs)
        ]

    def _handed_round(
        self,
        job: Job,
        chosen: Sequence[Part],
        tasks: Sequence[Sequence[Task]],
        world: TorchCommunication,
        own: Sequence[Mapping[str, Any]],
    ) -> list[list[dict[str, Any]]]:
        """Return the outputs of every rank's tasks, on every rank."""
        results = []
        for rank in range(job.mesh.size):
            outputs: list[dict[str, Any]] = []
            turns = job.turns(chosen[0], job.mesh.coordinates(rank)["stage"], len(chosen))
            for k, (task, (_, n)) in enumerate(zip(tasks[rank], turns, strict=True)):
                last = k == len(turns) - 1  # which has the totals
                ready = [each.graph for each in tasks[rank]] if last else [task.graph]
                places = {
                    name: g.type_of(i) for g in ready for name, i in g.outputs if g is task.graph or name in job.totals
                }
                values = {}
                for name in chosen[n].handed_in[rank]:
                    if name not in places or (name in job.totals and not last):
                        continue
                    if job.everywhere(chosen[n], name):
                        values[name] = own[k][name]
                        continue
                    t = places[name]
                    x = own[k][name] if rank == world.rank else np.empty(dims(t), t.dtype)
                    values[name] = world.broadcast(x, rank)
                outputs.append(values)
            results.append(outputs)
        return results

    def close(self) -> None:
        """End the processes of other ranks; the next run starts them anew."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None

    def _pipelined(
        self,
        executor: Executor,
        job: Job,
        inputs: Mapping[str, Any],
        config: DistributedConfig,
        alike: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Run what comes before the micro-batches, those, and what comes after them."""
        cut = job.cut
        assert cut is not None
        if not cut.size:  # nothing to hand on, and often nothing left to cut: every process has the answer by itself
            world = self.world_of(config)
            with nullcontext() if world is None else same_job(world, job, alike):
                return dict(executor.execute(job.graph, inputs))
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
        ends = [join for join in cut.joins if join.how == "concat"]
        joined, arrays = Parts(Cut(tuple(ranges), 1, (), tuple(ends))), [None] * len(ends)
        results = self._run(executor, job, batches, config, alike)
        for outputs, rows in zip(results, ranges, strict=True):
            joined.join(arrays, [outputs[join.label] for join in ends], rows)
        whole = {**results[-1], **dict(zip([join.label for join in ends], arrays, strict=True))}
        totals = [np.asarray(whole[join.label]) for join in cut.joins]
        finished = Parts(Cut(tuple(ranges), 1, (), cut.joins)).whole(totals)
        known |= dict(zip([join.label for join in cut.joins], finished, strict=True))
        if cut.after.outputs:
            after = executor.execute(cut.after, {name: known[name] for name in cut.after.inputs})
            known |= dict(after)
        given: set[str] = set()  # labels of outputs that have their memory: another name of one has its own
        outputs = {}
        for name, stage, label in cut.outputs:
            outputs[name] = np.array(known[label]) if stage == "before" or label in given else known[label]
            given.add(label)
        return outputs


def run_threads(
    executor: Executor,
    mesh: Mesh,
    tasks: Sequence[Sequence[Task]],
    config: DistributedConfig,
    kept: Sequence[dict[str, Any]] | None = None,
    carried: Sequence[str] = (),
) -> list[RankResult]:
    """Run the tasks of every rank, each on a thread of its own, with values that stay with it; what one raises stops the others."""
    worlds = local_group(mesh.size, config.timeout)
    results: list[RankResult | None] = [None] * mesh.size
    errors: dict[int, BaseException] = {}
    active = active_contexts()

    def work(rank: int) -> None:
        try:
            with entered(active):
                own = None if kept is None else kept[rank]
                results[rank] = run_rank(executor, mesh_ways(worlds[rank], mesh), tasks[rank], own, carried)
        except BaseException as error:
            errors[rank] = error
            worlds[rank].fail(f"rank {rank} failed: {error}")

    threads = [
        threading.Thread(target=partial(work, rank), name=f"rank {rank}", daemon=True) for rank in range(mesh.size)
    ]
    try:
        for thread in threads:
            start_thread(thread)
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


def check_hooks(executor: Executor) -> None:
    """Refuse hooks that look at values: the ranks hand back the times of their steps, and no more."""
    for hook in executor.hooks():
        if type(hook).on_step is not Hook.on_step and getattr(hook, "enabled", True):
            message = (
                f"{type(hook).__name__} looks at the values of steps, which stay with the ranks of a distributed run"
            )
            raise InputError(
                message, "look at a run on one device: executor.execute(graph, inputs)", "tl.trace() works", code="E389"
            )


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
