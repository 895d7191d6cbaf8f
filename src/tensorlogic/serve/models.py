"""Models by name and version: what they cost, when they are in memory, and what became of their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from ..diagnostics import value_text
from ..errors import InputError, OutOfMemoryError, expect_known, nearest
from ..events import span
from ..ir.builder import GraphBuilder
from ..ir.graph import EinsumGraph
from ..runtime.compile import CompiledGraph, executor_like
from ..runtime.executor import Executor
from ..runtime.values import Inputs, Outputs
from ..store import Lock, Store, reset_in_child
from ..tables import table

Source = EinsumGraph | CompiledGraph | str | Path | Callable[[], Any]
LATELY = 0.2  # the weight of the last call in the time that a call of a model takes


class Model(NamedTuple):
    """What is known of a model before it runs: where it comes from, what a row costs, how good and how important it is."""

    name: str
    version: str
    source: Source
    params: Mapping[str, Any]
    cost: float
    accuracy: float
    priority: int
    memory: int | None  # bytes, where they are not counted

    @property
    def label(self) -> str:
        """The name and the version as one word."""
        return f"{self.name}@{self.version}"


class Loaded(NamedTuple):
    """A model in memory: its graph, an executor with its plans, and the bytes of its constants."""

    graph: EinsumGraph
    executor: Executor
    constants: int
    memory: int | None

    @property
    def nbytes(self) -> int:
        """The bytes of constants and of what plans work in, or what was registered."""
        if self.memory is not None:
            return self.memory
        return self.constants + sum(program.peak_bytes for program in self.executor.programs.store.values())


class Usage:
    """What became of a model's calls."""

    __slots__ = ("calls", "errors", "lately", "loads", "plans", "row_seconds", "seconds", "unloads")

    def __init__(self) -> None:
        self.calls = self.errors = self.loads = self.unloads = self.plans = 0
        self.seconds = 0.0
        self.row_seconds = inf  # of a row in a cascade, at best
        self.lately = -1.0  # seconds of a call, the latest counting most; below 0 before the first


class ModelStats(NamedTuple):
    """The resources of one model so far.

    >>> ModelStats("small@1", True, 2048, calls=3, errors=1, seconds=0.006, loads=1, unloads=0).errors
    1
    """

    model: str
    loaded: bool
    nbytes: int  # while it is loaded
    calls: int
    errors: int
    seconds: float
    loads: int
    unloads: int


class CoordinatorStats(NamedTuple):
    """The resources of all models so far; it prints as a table.

    >>> print(CoordinatorStats((ModelStats("small@1", True, 2048, 3, 1, 0.006, 1, 0),), 4096))
    model    in memory  bytes  calls  errors  mean ms  loads  unloads
    small@1        yes  2,048      3       1    2.000      1        0
    2,048 bytes of 4,096
    """

    models: tuple[ModelStats, ...]
    memory_limit: int | None

    def __getitem__(self, key: Any) -> Any:
        """Return the row of a model by its label, such as ``"small@1"``."""
        if isinstance(key, str):
            return next(row for row in self.models if row.model == key)
        return tuple.__getitem__(self, key)

    def __str__(self) -> str:
        head = ["model", "in memory", "bytes", "calls", "errors", "mean ms", "loads", "unloads"]
        rows = [
            [m.model, "yes" if m.loaded else "no", f"{m.nbytes:,}", f"{m.calls:,}", f"{m.errors:,}",
             f"{1e3 * m.seconds / m.calls:.3f}" if m.calls else "", f"{m.loads:,}", f"{m.unloads:,}"]
            for m in self.models
        ]  # fmt: skip
        used = sum(m.nbytes for m in self.models)
        bound = "" if self.memory_limit is None else f" of {self.memory_limit:,}"
        return f"{table(head, rows, right=range(1, 8))}\n{used:,} bytes{bound}"


class Models:
    """Models that are registered, those that are in memory, and what became of their calls; safe to use from several threads.

    >>> b = GraphBuilder()
    >>> models = Models(Executor(), None)
    >>> models.add(Model("double", "1", b.build(y=b.input("x") * 2), {}, 1.0, 0.0, 0, None))
    >>> models.run(models["double", "1"], {"x": [1.0, 2.0]})["y"]
    array([2., 4.])
    """

    def __init__(self, executor: Executor, memory_limit: int | None, clock: Callable[[], float] = perf_counter) -> None:
        self._executor, self.memory_limit, self._clock = executor, memory_limit, clock
        self._models: dict[tuple[str, str], Model] = {}
        self._latest: dict[str, str] = {}
        self.usage: dict[tuple[str, str], Usage] = {}
        self._loaded: Store[tuple[str, str], Loaded] = Store(
            (1 << 62) if memory_limit is None else memory_limit, measure=lambda loaded: loaded.nbytes
        )
        self.reset_lock()
        reset_in_child(self)

    def reset_lock(self) -> None:
        """Make a new lock: a thread that is not in this process may hold the old one."""
        self._lock = Lock()

    def add(self, model: Model) -> None:
        """Register a model; the version that comes last is the one that is meant where none is named."""
        with self._lock:
            key = model.name, model.version
            if key in self._models:
                raise InputError(f"model {model.label!r} is registered already", "give it another version", code="E460")
            self._models[key], self.usage[key] = model, Usage()
            self._latest[model.name] = model.version

    def remove(self, name: str, version: str | None) -> None:
        """Forget a version of a model, or all."""
        with self._lock:
            for own in [self[name, version]] if version is not None else self.versions(name):
                key = own.name, own.version
                del self._models[key], self.usage[key]
                self._loaded.discard(key)
            left = [version for n, version in self._models if n == name]
            if left:
                self._latest[name] = left[-1]
            else:
                del self._latest[name]

    def promote(self, name: str, version: str) -> None:
        """Let a version be the one that is meant where none is named."""
        with self._lock:
            self._latest[name] = self[name, version].version

    def __getitem__(self, key: tuple[str, str | None]) -> Model:
        """Return a model by name and version; None is the version that is meant where none is named."""
        name, version = key
        with self._lock:
            expect_known("there is no model", [name], self._latest, "E461")
            found = self._models.get((name, self._latest[name] if version is None else version))
            if found is None:
                known = [own.version for own in self.versions(name)]
                raise InputError(
                    f"model {value_text(name)} has no version {value_text(version)}",
                    *nearest(version, known),
                    code="E461",
                )
            return found

    def versions(self, name: str) -> list[Model]:
        """Return all versions of a model, in the order they were registered."""
        with self._lock:
            return [model for (own, _), model in self._models.items() if own == name]

    def latest(self) -> list[Model]:
        """Return the version of each model that is meant where none is named."""
        with self._lock:
            return [self._models[key] for key in self._latest.items()]

    def load(self, model: Model) -> Loaded:
        """Return a model in memory; others leave, those that were not used longest first, until it fits."""
        key = model.name, model.version
        found = self._loaded.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._loaded.peek(key)
            if found is None:
                with span(f"load {model.label}"):
                    found = _read(model, self._executor)
                self.usage[key].loads += 1
                self._keep(model, found)
        return found

    def _keep(self, model: Model, loaded: Loaded) -> None:
        """Keep a model in memory, and count those that had to leave."""
        key, before = (model.name, model.version), set(self._loaded)
        if loaded.nbytes > self._loaded.bound:
            message = f"model {model.label!r} takes {loaded.nbytes:,} bytes, and memory_limit is {self._loaded.bound:,}"
            raise OutOfMemoryError(message, "raise memory_limit=, or use a smaller model", code="E464")
        self._loaded.put(key, loaded)
        for gone in before - set(self._loaded) - {key}:
            if gone in self.usage:
                self.usage[gone].unloads += 1

    def unload(self, model: Model) -> bool:
        """Let a model leave the memory until it is used again; False where it is not there."""
        with self._lock:
            there = self._loaded.discard((model.name, model.version))
            self.usage[model.name, model.version].unloads += there
            return there

    def run(self, model: Model, inputs: Inputs) -> Outputs:
        """Run a model, and note what it took."""
        usage = self.usage[model.name, model.version]
        start = self._clock()
        try:
            loaded = self.load(model)
            start = self._clock()
            with span(f"model {model.label}"):
                outputs = loaded.executor.execute(loaded.graph, inputs)
        except BaseException:
            self._note(usage, self._clock() - start, failed=True)
            raise
        self._note(usage, self._clock() - start)
        if len(loaded.executor.programs.store) != usage.plans:  # a plan more, and so more bytes
            with self._lock:
                usage.plans = len(loaded.executor.programs.store)
                if loaded.nbytes > self._loaded.bound:
                    self.unload(model)
                elif (model.name, model.version) in self._loaded:
                    self._keep(model, loaded)
        return outputs

    def _note(self, usage: Usage, took: float, *, failed: bool = False) -> None:
        with self._lock:
            usage.calls += 1
            usage.errors += failed
            usage.seconds += took
            if not failed:
                usage.lately = took if usage.lately < 0 else usage.lately + LATELY * (took - usage.lately)

    def stats(self) -> CoordinatorStats:
        """Return what each model took so far."""
        rows = []
        with self._lock:
            for key, model in self._models.items():
                own, loaded = self.usage[key], self._loaded.peek(key)
                size = 0 if loaded is None else loaded.nbytes
                counts = own.calls, own.errors, own.seconds, own.loads, own.unloads
                rows.append(ModelStats(model.label, loaded is not None, size, *counts))
        return CoordinatorStats(tuple(rows), self.memory_limit)


def _read(model: Model, executor: Executor) -> Loaded:
    """Bring a model into memory: a graph as it is, files and functions by reading and calling them."""
    source = model.source
    if isinstance(source, str | Path):
        where = Path(source)
        source = CompiledGraph.load(where, executor) if where.is_dir() else EinsumGraph.load(where)
    elif callable(source) and not isinstance(source, CompiledGraph):
        source = source()
    if isinstance(source, CompiledGraph):
        graph, own = source.optimized, source.executor
    elif isinstance(source, EinsumGraph):
        graph, own = source, executor_like(executor, executor.config)
    else:
        hint = "a model is a graph, a compiled graph, a file, or a function that returns one"
        raise InputError(f"model {model.label!r} is a {type(source).__name__}", hint, code="E465")
    if model.params:
        b = GraphBuilder()
        graph = b.build(b.inline(graph, {name: b.constant(value) for name, value in model.params.items()}))
    constants = sum(array.nbytes for array in graph.constants.values())
    return Loaded(graph, own, constants, model.memory)
