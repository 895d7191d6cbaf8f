"""Ranks that Ray places on a cluster, and restarts when they end (``communication="ray"``); they talk through torch.distributed.

Each rank is an actor. Arrays go through Ray's store of objects, which processes of one machine share. After a failure all actors are restarted
by Ray, wherever there is room, and meet anew when the next run begins.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...backends.base import Device
from ...errors import BackendError, ExecutionError
from ...ir.graph import EinsumGraph
from .answers import checked, collect
from .config import Mesh
from .joining import LOOPBACK, torch_distributed
from .messages import Answer, KeptMessage
from .rank import RankResult, Task
from .worker import RankProcess, diagnosed
from .workers import WorkerGroup, executor_kind

if TYPE_CHECKING:
    from ..executor import Executor

EMPTY = EinsumGraph((), ())
HEARD = 10.0  # seconds in which a cluster answers
SETTINGS = b"\4"  # the kind of the first frame that a server of HTTP/2 sends, after three bytes of its length
START = 60.0  # seconds that Ray may take to place the ranks, beside the timeout
Arrays = Sequence[Any]
# of each task: its graph, its inputs among the arrays, and the rest of it
TaskNumbers = Sequence[tuple[int, Mapping[str, int], Task]]


def ray_module() -> Any:
    """Return Ray, or say how to install it."""
    try:
        import ray
    except ImportError:
        hint = "install it: pip install 'tensorlogic-infer[ray]'"
        raise BackendError('communication="ray" needs Ray, which is not installed', hint, code="E399") from None
    return ray


def connect(address: str | None, size: int) -> bool:
    """Go to the Ray cluster at an address; without one, start Ray on this machine. Tell whether it was started or entered here."""
    ray = ray_module()
    if ray.is_initialized():
        return False
    if address is not None:
        host, colon, port = address.rpartition(":")
        check_cluster(f"{ray.util.get_node_ip_address() if host in LOOPBACK else host}{colon}{port}")  # where Ray goes
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            # "local": a cluster that happens to run on this machine is another one
            ray.init(address="local", num_cpus=size, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = f"there is no Ray cluster at {address!r}: {str(error).splitlines()[0]}"
        raise BackendError(message, "start one: ray start --head --port=6379", code="E347") from error
    return True


def check_cluster(address: str) -> None:
    """Raise where no Ray cluster answers at a host and port: Ray itself asks again for many minutes, or ends this process after one.

    Its server sends the first frame of HTTP/2 to whoever comes; where ``RAY_USE_TLS`` is set, it waits for the caller.
    """
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address:  # Ray's own words, such as "auto"
        return
    problem = ""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), HEARD) as way:
            if os.environ.get("RAY_USE_TLS") in (None, "0") and way.recv(5)[3:4] != SETTINGS:
                problem = "something else answers"
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        message = f"there is no Ray cluster at {address!r}: {problem}"
        raise BackendError(message, "start one: ray start --head --port=6379", code="E347")


class Place(NamedTuple):
    """Where an actor runs, and what it could offer the others to meet at."""

    node: str
    host: str
    port: int  # that is free


class RankActor:
    """One rank, as Ray runs it."""

    def __init__(self) -> None:
        self.rank: RankProcess | None = None  # once it has met the others

    def place(self) -> Place:
        """Return where this rank is."""
        ray = ray_module()
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port)

    def join(
        self, rank: int, size: int, address: str, token: str, timeout: float, kind: tuple[str, str, str]
    ) -> Answer:
        """Meet the other ranks."""
        try:
            self.rank = RankProcess(rank, size, address, token, timeout, kind)
        except Exception as error:
            return Answer(failure=diagnosed(error))
        return Answer()

    def run(
        self,
        token: str,
        mesh: Mesh,
        graphs: Mapping[int, str],
        tasks: TaskNumbers,
        arrays: Arrays,
        stay: KeptMessage,
        drop: Sequence[int],
    ) -> tuple[Answer, list[dict[str, Any]]]:
        """Run the tasks of this rank."""
        rank = self.rank
        assert rank is not None
        try:
            rank.begin(token, graphs, drop)
            if stay.number and not stay.put and stay.number not in rank.kept:
                raise ExecutionError("the process that held the values of this run is gone", code="E385")
            own = [
                task._replace(graph=rank.graphs[number], inputs={name: arrays[n] for name, n in inputs.items()})
                for number, inputs, task in tasks
            ]
            result = rank.run(mesh, own, stay)
        except Exception as error:
            failure = diagnosed(error)
            rank.world.leave(failure.message)
            return Answer(failure=failure), []
        return Answer([], result.times), result.outputs


class RayWorkers(WorkerGroup):
    """The ranks of a driver on a Ray cluster, one actor each; they stay for the next run."""

    restarts = True

    def __init__(self, executor: Executor, devices: Sequence[Device], timeout: float, address: str | None) -> None:
        torch_distributed("ray")
        ray = ray_module()
        super().__init__(executor, len(devices), timeout)
        self.address = address
        self._entered = connect(address, self.size)
        outside = address is not None and "://" in address  # which sees no more than Ray's own server for such
        self._cluster = "" if outside else ray.get_runtime_context().gcs_address
        self._token = ""  # of the group that is together; none after a failure
        options = {"max_restarts": -1, "max_task_retries": 0}
        self._actors = [
            ray.remote(num_cpus=1, num_gpus=int(device.kind == "gpu"), **options)(RankActor).remote()
            for device in devices
        ]

    def fits(self, executor: Executor, devices: Sequence[Device], timeout: float, address: str | None) -> bool:
        """Tell whether these workers can run what an executor would, and their cluster was not left."""
        theirs = len(devices), timeout, address, executor_kind(executor)
        return ray_module().is_initialized() and (self.size, self.timeout, self.address, self.kind) == theirs

    def run(
        self, mesh: Mesh, tasks: Sequence[Sequence[Task]], kept: Sequence[KeptMessage] | None = None
    ) -> list[RankResult]:
        """Run the tasks of each rank in its actor and return what came out; ``kept`` says what stays with each rank."""
        stay = [KeptMessage()] * self.size if kept is None else kept
        outputs: dict[int, list[dict[str, Any]]] = {}
        try:
            if not self._token:
                check_cluster(self._cluster)
                self._meet()
            calls = {rank: self._call(rank, mesh, own, stay[rank]) for rank, own in enumerate(tasks)}
            self._drop = []
            answers = self._answers(calls, None, "ran", outputs)
        except BaseException:
            self._restart()
            raise
        return [RankResult(outputs[rank], answer.times, []) for rank, answer in enumerate(answers)]

    def close(self) -> None:
        """End the actors, and leave a cluster that was entered for them."""
        ray = ray_module()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            if self._entered:
                ray.shutdown()

    def _meet(self) -> None:
        """Bring the actors together at a port of the first: on the loopback interface, where all are on one machine."""
        ray = ray_module()
        # they may be on their way
        ready = [actor.place.options(max_task_retries=-1).remote() for actor in self._actors]
        here, missing = ray.wait(ready, num_returns=self.size, timeout=START + self.timeout)
        if missing:
            have = ray.cluster_resources()
            message = f"Ray placed {len(here)} of {self.size} ranks within {START + self.timeout:g} s"
            hint = f"the cluster has {have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs; a rank takes one"
            raise ExecutionError(message, hint, code="E374")
        places = ray.get(ready)
        host = "127.0.0.1" if len({place.node for place in places}) == 1 else places[0].host
        address = f"tcp://{host}:{places[0].port}"
        token = secrets.token_hex(16)
        calls = {
            rank: actor.join.remote(rank, self.size, address, token, self.timeout, self.kind)
            for rank, actor in enumerate(self._actors)
        }
        self._answers(calls, START + self.timeout, "started", {})
        self._token, self._known = token, [set() for _ in range(self.size)]

    def _call(self, rank: int, mesh: Mesh, tasks: Sequence[Task], stay: KeptMessage) -> Any:
        """Send a rank its tasks, arrays that several of them share once."""
        numbers, graphs = self._numbered(rank, tasks)
        places: dict[int, int] = {}  # by the identity of an array, its place among all
        arrays: list[Any] = []
        own = []
        for number, task in zip(numbers, tasks, strict=True):
            for value in task.inputs.values():
                if id(value) not in places:
                    places[id(value)] = len(arrays)
                    arrays.append(value)
            inputs = {name: places[id(value)] for name, value in task.inputs.items()}
            own.append((number, inputs, task._replace(graph=EMPTY, inputs={})))
        return self._actors[rank].run.remote(self._token, mesh, graphs, own, arrays, stay, self._drop)

    def _answers(
        self, calls: Mapping[int, Any], limit: float | None, what: str, outputs: dict[int, list[dict[str, Any]]]
    ) -> list[Answer]:
        ray = ray_module()
        ranks = {call: rank for rank, call in calls.items()}

        def wait(missing: Sequence[int], seconds: float | None) -> dict[int, Answer | None]:
            found: dict[int, Answer | None] = {}
            for call in ray.wait([calls[rank] for rank in missing], timeout=seconds)[0]:
                try:
                    answer = ray.get(call)
                except ray.exceptions.RayActorError:
                    found[ranks[call]] = None
                    continue
                answer, outputs[ranks[call]] = answer if isinstance(answer, tuple) else (answer, [])
                found[ranks[call]] = answer
            return found

        answers = collect(self.size, self.timeout, limit, wait)
        return checked(answers, self.size, self.timeout, lambda rank: f" while it {what}")

    def _restart(self) -> None:
        """Let Ray start every actor anew: those that are left wait for something that does not come."""
        self._token = ""
        ray = ray_module()
        try:
            check_cluster(self._cluster)
        except BackendError:  # it is gone: Ray would end this process after a minute
            if self._entered:
                ray.shutdown()
            return
        for actor in self._actors:
            ray.kill(actor, no_restart=False)
