"""How a graph is spread over devices: the strategy, which tensors lie in shares, and the mesh of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ...backends.base import Backend, Device
from ...diagnostics import value_text
from ...errors import InputError, expect, expect_whole, nearest
from .schedule import checked_schedule

if TYPE_CHECKING:
    from .cluster import Cluster

CARRIERS = ("local", "torch", "ray")
LONGEST_TIMEOUT = 20 * 86400  # seconds: what sleeps, sockets and PyTorch count in 32 bits of milliseconds


class Shard(NamedTuple):
    """A tensor in shares: the axis, and how many."""

    axis: int
    parts: int


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """Which axis of which tensors lies in shares.

    >>> ShardingSpec().shard_tensor("w1", 1, 4).shard_tensor("w2", 0, 4).tensors["w2"]
    Shard(axis=0, parts=4)
    """

    shards: tuple[tuple[str, Shard], ...] = ()

    def __post_init__(self) -> None:
        expect(self.shards, tuple, "a ShardingSpec begins empty", 'write ShardingSpec().shard_tensor("w", 0, 4)')

    @property
    def tensors(self) -> dict[str, Shard]:
        """The tensors that are cut, by name."""
        return dict(self.shards)

    def shard_tensor(self, name: str, axis: int, parts: int) -> ShardingSpec:
        """Return a spec that also cuts a tensor along an axis into so many shares."""
        expect(name, str, "the name of an input is expected", 'write shard_tensor("w", 0, 4)')
        expect(axis, int, "an axis is a whole number", 'write shard_tensor("w", 0, 4)')
        expect_whole("parts", parts, 1)
        return ShardingSpec(tuple({**self.tensors, name: Shard(axis, parts)}.items()))


class DistributedParallelismStrategy:
    """What the devices share: ``DataParallel``, ``ModelParallel``, ``PipelineParallel``, ``Hybrid``, or what ``Auto`` finds.

    >>> match DistributedParallelismStrategy.DataParallel(num_replicas=4):
    ...     case DistributedParallelismStrategy.DataParallel(count):
    ...         print(count)
    4
    """

    DataParallel: ClassVar[type[DataParallel]]
    ModelParallel: ClassVar[type[ModelParallel]]
    PipelineParallel: ClassVar[type[PipelineParallel]]
    Hybrid: ClassVar[type[Hybrid]]
    Auto: ClassVar[type[Auto]]


@dataclass(frozen=True, slots=True)
class DataParallel(DistributedParallelismStrategy):
    """Each replica has all weights and a share of the rows; ``over`` names the size that is shared, where it is not plain."""

    num_replicas: int
    over: str | None = None

    def __post_init__(self) -> None:
        expect_whole("num_replicas", self.num_replicas, 1)


@dataclass(frozen=True, slots=True)
class ModelParallel(DistributedParallelismStrategy):
    """Each device has a share of the tensors that the spec names, and of those that only their shares meet."""

    sharding_spec: ShardingSpec

    def __post_init__(self) -> None:
        expect(
            self.sharding_spec,
            ShardingSpec,
            "a ShardingSpec is expected",
            'write ShardingSpec().shard_tensor("w", 0, 4)',
        )


@dataclass(frozen=True, slots=True)
class PipelineParallel(DistributedParallelismStrategy):
    """Each device runs a stretch of the graph, on so many rows at a time; ``over`` names the size that the rows are of.

    A training step goes back through the stages by a ``schedule``: ``"1f1b"``, or ``"gpipe"``, which keeps the results of all micro-batches.
    Stages are cut where the costs that a plan estimates balance; with ``measure`` every operation is timed once, on the first run.

    >>> PipelineParallel(num_stages=4, micro_batch_size=32).schedule
    '1f1b'
    """

    num_stages: int
    micro_batch_size: int
    over: str | None = None
    schedule: str = "1f1b"
    measure: bool = False

    def __post_init__(self) -> None:
        expect_whole("num_stages", self.num_stages, 1)
        expect_whole("micro_batch_size", self.micro_batch_size, 1)
        checked_schedule(self.schedule)


@dataclass(frozen=True, slots=True)
class Hybrid(DistributedParallelismStrategy):
    """Stages of a pipeline, in each of which groups of devices share the rows and the weights."""

    data_parallel_groups: int
    model_parallel_size: int
    pipeline_stages: int
    micro_batch_size: int | None = None  # None: twice as many micro-batches as stages
    sharding_spec: ShardingSpec | None = None  # None: every weight, where it can be
    over: str | None = None
    schedule: str = "1f1b"
    measure: bool = False  # of the costs that stages are cut by

    def __post_init__(self) -> None:
        for name in ("data_parallel_groups", "model_parallel_size", "pipeline_stages"):
            expect_whole(name, getattr(self, name), 1)
        if self.micro_batch_size is not None:
            expect_whole("micro_batch_size", self.micro_batch_size, 1)
        checked_schedule(self.schedule)


@dataclass(frozen=True, slots=True)
class Auto(DistributedParallelismStrategy):
    """The mesh of the devices that is predicted to be fastest, of all that fit in memory; see :func:`simulate`.

    Without a ``cluster`` this machine is measured: its ranks, what passes between them, and every step of the graphs that they would
    run. With one, steps are estimated from its figures. The first run of a graph decides, and ``show`` is given the table of all meshes.

    >>> config = DistributedConfig([Device.CPU(n) for n in range(4)], strategy=Auto(micro_batch_size=8))
    >>> config.strategy.schedule
    '1f1b'
    """

    micro_batch_size: int | None = None  # None: twice as many micro-batches as stages
    over: str | None = None
    schedule: str = "1f1b"
    cluster: Cluster | None = None
    show: Callable[[str], object] | None = print

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None:
            expect_whole("micro_batch_size", self.micro_batch_size, 1)
        checked_schedule(self.schedule)
        if self.cluster is not None:
            from .cluster import Cluster

            expect(self.cluster, Cluster, "cluster= is a Cluster", "leave it out to measure this machine")

    def on(self, mesh: Mesh) -> Hybrid:
        """Return the strategy that runs on one of the meshes."""
        return Hybrid(*mesh, self.micro_batch_size, None, self.over, self.schedule)


for _kind in (DataParallel, ModelParallel, PipelineParallel, Hybrid, Auto):
    setattr(DistributedParallelismStrategy, _kind.__name__, _kind)


class Mesh(NamedTuple):
    """Ranks along three axes: shares of rows (data), of weights (model), and stages of a pipeline.

    >>> mesh = Mesh(data=2, model=2, stage=2)
    >>> mesh.size, mesh.coordinates(5), mesh.group(5, "data")
    (8, {'data': 0, 'model': 1, 'stage': 1}, [5, 7])
    """

    data: int = 1
    model: int = 1
    stage: int = 1

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.data * self.model * self.stage

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return where a rank stands along each axis."""
        rest, model = divmod(rank, self.model)
        stage, data = divmod(rest, self.data)
        return {"data": data, "model": model, "stage": stage}

    def rank(self, data: int, model: int, stage: int) -> int:
        """Return the rank that stands at a place."""
        return (stage * self.data + data) * self.model + model

    def group(self, rank: int, axis: str) -> list[int]:
        """Return the ranks that differ from one along an axis only, and itself."""
        own = self.coordinates(rank)
        return [self.rank(**(own | {axis: n})) for n in range(getattr(self, axis))]


def mesh_of(strategy: DistributedParallelismStrategy) -> Mesh:
    """Return the mesh that a strategy asks for."""
    match strategy:
        case DataParallel():
            return Mesh(data=strategy.num_replicas)
        case ModelParallel():
            return Mesh(model=_parts(strategy.sharding_spec))
        case PipelineParallel():
            return Mesh(stage=strategy.num_stages)
        case Hybrid():
            found = Mesh(strategy.data_parallel_groups, strategy.model_parallel_size, strategy.pipeline_stages)
            if strategy.sharding_spec is not None and _parts(strategy.sharding_spec) != found.model:
                message = f"the spec cuts tensors into {_parts(strategy.sharding_spec)}, but model_parallel_size is {found.model}"
                raise InputError(message, code="E376")
            return found
        case Auto():
            hint = "run it, or ask simulate(graph, config, cluster).mesh"
            raise InputError("Auto has no mesh before it has seen a graph", hint, code="E394")
        case _:
            hint = "write DistributedParallelismStrategy.DataParallel(num_replicas=4)"
            raise InputError(f"a strategy is expected, got {value_text(strategy)}", hint, code="E376")


def _parts(spec: ShardingSpec) -> int:
    parts = {shard.parts for shard in spec.tensors.values()}
    if len(parts) != 1:
        told = ", ".join(f"{name!r} into {shard.parts}" for name, shard in spec.tensors.items())
        hint = 'name an input, its axis, and one share for each device: ShardingSpec().shard_tensor("w", 0, 4)'
        if not parts:
            raise InputError("the ShardingSpec names no tensor that the devices share", hint, code="E376")
        message = f"a ShardingSpec cuts all its tensors into the same number of shares, and this one {told}"
        raise InputError(message, "give each as many shares as there are devices", code="E376")
    return parts.pop()


@dataclass(frozen=True, slots=True)
class DistributedConfig:
    """The devices that run a graph together, and how; ``timeout`` is how many seconds a rank waits for another.

    Devices of the same processor are virtual: threads, or processes with ``communication="torch"``. With ``communication="ray"`` they are
    processes that Ray places on the cluster at an ``address``, or on this machine. Of a trainer, ``shard_optimizer`` gives each device
    a share of what the optimizer keeps. With ``deterministic`` the rows are added up in blocks, in an order that does not depend on how
    many devices there are, so that any number of them gives the same bits. In a script that every rank runs, ``own_shares`` says that
    each gives its own share of the inputs with rows, or of the tensors that a spec names, and not the whole.

    >>> config = DistributedConfig([Device.CPU(0), Device.CPU(1)])
    >>> config.strategy
    DataParallel(num_replicas=2, over=None)
    """

    devices: tuple[Device, ...]
    communication: str = "local"
    strategy: DistributedParallelismStrategy = None  # type: ignore[assignment] # the devices share the rows
    timeout: float = 60.0
    shard_optimizer: bool = False
    deterministic: bool = False
    address: str | None = None  # of a Ray cluster
    own_shares: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", checked_devices(self.devices))
        for name in ("shard_optimizer", "deterministic", "own_shares"):
            expect(getattr(self, name), bool, f"{name}= is True or False", f"write {name}=True")
        if self.communication not in CARRIERS:
            hints = nearest(self.communication, CARRIERS) if isinstance(self.communication, str) else ()
            message = f"ranks communicate by {', '.join(map(repr, CARRIERS))}, not {value_text(self.communication)}"
            raise InputError(message, *hints, code="E377")
        number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not number or not 0 < self.timeout <= LONGEST_TIMEOUT:
            message = f"timeout is a number of seconds above 0, got {value_text(self.timeout)}"
            raise InputError(
                message, f"write timeout=60; {LONGEST_TIMEOUT}, which is 20 days, is the longest", code="E377"
            )
        if self.address is not None and (self.communication != "ray" or not isinstance(self.address, str)):
            hint = 'write DistributedConfig(devices, communication="ray", address="host:6379")'
            raise InputError(f"address is that of a Ray cluster, got {value_text(self.address)}", hint, code="E377")
        if self.strategy is None:
            object.__setattr__(self, "strategy", DataParallel(len(self.devices)))
        if self.deterministic and (not isinstance(self.strategy, DataParallel) or self.shard_optimizer):
            message = (
                f"deterministic= is for devices that share rows and nothing else, not {type(self.strategy).__name__}"
            )
            hint = "write strategy=DataParallel(...), and leave shard_optimizer= out"
            raise InputError(message, hint, code="E387")
        plain = self.communication == "torch" and isinstance(self.strategy, DataParallel | ModelParallel)
        if self.own_shares and (not plain or self.deterministic):
            message = "own_shares= is for processes of one script that share rows, or tensors that a spec names"
            hint = 'write communication="torch" and DataParallel or ModelParallel, without deterministic='
            raise InputError(message, hint, code="E377")
        if isinstance(self.strategy, Auto):
            return
        mesh = mesh_of(self.strategy)
        if mesh.size != len(self.devices):
            wanted = " × ".join(f"{n} along {axis}" for axis, n in mesh._asdict().items() if n > 1) or "one"
            message = f"{type(self.strategy).__name__} needs {mesh.size} devices ({wanted}), got {len(self.devices)}"
            raise InputError(message, f"write [Device.CPU(n) for n in range({mesh.size})]", code="E376")

    @property
    def mesh(self) -> Mesh:
        """The ranks along each axis."""
        return mesh_of(self.strategy)

    @property
    def beside_others(self) -> bool:
        """Whether this process is one of the ranks, started beside the others by torchrun or ``tensorlogic launch``."""
        return self.communication == "torch" and "RANK" in os.environ

    def with_strategy(self, strategy: DistributedParallelismStrategy) -> DistributedConfig:
        """Return the config with another strategy."""
        return replace(self, strategy=strategy)


def check_devices(backend: Backend, config: DistributedConfig) -> None:
    """Refuse to run on a device that the ranks would not use: processors may be virtual, others must be there. Ray looks for them itself."""
    if config.communication == "ray" or all(device.kind == "cpu" for device in config.devices):
        return
    here = backend.capabilities().devices
    for device in config.devices:
        if device.kind != "cpu" and device not in here:
            message = (
                f"the {backend.name} backend has no {value_text(device)} here: it runs on {', '.join(map(repr, here))}"
            )
            hint = f"write [Device.CPU(n) for n in range({len(config.devices)})]: virtual devices of the processor"
            raise InputError(message, hint, code="E377")


def checked_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return devices as a tuple; raise where there are none, or something else stands among them."""
    hint = "write [Device.CPU(0), Device.CPU(1)]"
    if not isinstance(devices, Sequence) or isinstance(devices, str):
        raise InputError(f"devices are a list, got {value_text(devices)}", hint, code="E377")
    for device in devices:
        expect(device, Device, "a Device is expected", hint)
    if not devices:
        raise InputError("no devices are given", hint, code="E377")
    return tuple(devices)
