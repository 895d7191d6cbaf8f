"""The models of a folder: ``models/NAME/VERSION/`` holds a saved graph, a compiled graph or a program; each is loaded whole, then served."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import FormatError, InputError, OutOfMemoryError, TensorLogicError, nearest
from ..events import span
from ..ir.graph import EinsumGraph, Node
from ..ir.ops import constant_op
from ..ir.types import TensorType
from ..plan.limits import check_flops
from ..plan.memory import check_memory
from ..programs.program import load as load_program
from ..runtime.compile import CompiledGraph
from ..runtime.executor import Executor
from ..store import Lock
from .batch_queue import Priority
from .batcher import DynamicBatcher
from .limits import Limits
from .pace import BatcherConfig
from .protocol import DATATYPES, NAME_OF, Array, TensorSpec

FILES = ("model.json", "model.tl", "manifest.json")  # what makes a folder a version of a model
PARAMS = "params.safetensors"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
WARM_UP = 2.0  # seconds after which a model is served although not every size of a batch was tried
SIGNATURES = 4096  # of shapes that were found to be within the limits, for each model


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``model.toml`` may say, in the folder of a version or of the model; everything has a default.

    >>> ModelSettings(priority="high").instances
    1
    """

    batching: dict[str, Any] = {}  # the fields of a BatcherConfig
    instances: int = 1  # batches that may run at one time
    priority: str = "normal"
    names: bool | None = None  # whether relations go over the wire as tuples of names; those of programs do
    versions: str | list[int] = "all"  # or "latest"
    limits: dict[str, Any] = {}  # those of the server, where the model's are tighter


class ServedModel:
    """One version of a model, ready to answer."""

    def __init__(
        self,
        name: str,
        version: str,
        graph: EinsumGraph,
        executor: Executor | CompiledGraph,
        settings: ModelSettings,
        limits: Limits,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.version, self.graph, self.settings, self.limits = name, version, graph, settings, limits
        self.priority = _priority(settings.priority)
        self.values = dict(values or {})  # of inputs that a request may leave out
        by_name = settings.names if settings.names is not None else values is not None
        self.inputs = {n: _spec(graph, n, graph.type_of(i), by_name, n in self.values) for n, i in graph.inputs.items()}
        self.outputs = {n: _spec(graph, n, graph.type_of(i), by_name) for n, i in graph.outputs}
        sole = next(iter(self.outputs.values())) if len(self.outputs) == 1 else None
        self.sole_output = None if sole is None or sole.names else sole.name
        self.head = msgspec.json.encode({"model_name": name, "model_version": version})[:-1]
        self.static = all(
            s.datatype is not None and s.shape is not None and -1 not in s.shape for s in self.inputs.values()
        )
        self.planner = Executor()
        self.admitted: set[tuple[Any, ...]] = set()
        self.batcher = DynamicBatcher(executor, graph, config=_batching(settings))
        if self.static:
            zeros = {n: np.zeros(s.shape or (), DATATYPES[s.datatype or "FP32"]) for n, s in self.inputs.items()}
            self.admit(zeros)
            with suppress(Exception):  # what zeros make fail, the inputs of a request may not
                self.batcher.warm_up(zeros, within=WARM_UP)

    def complete(self, given: dict[str, Array]) -> dict[str, Array]:
        """Return all inputs: those of a request, and what the model has for the others."""
        return {n: given[n] if n in given else self.values[n] for n in self.inputs} if self.values else given

    def is_admitted(self, inputs: Mapping[str, Array]) -> bool:
        """Tell whether a request of these shapes is known to be within the limits."""
        return self.static or _signature(inputs) in self.admitted

    def admit(self, inputs: Mapping[str, Array]) -> None:
        """Plan a request of these shapes, and refuse one that would take too much; it may take a while."""
        plan = self.planner.plan(self.graph, inputs)
        try:
            check_flops(plan, self.limits.flops)
            check_memory(plan, self.limits.memory_bytes)
        except (InputError, OutOfMemoryError) as error:
            raise InputError(error.diagnostic.message, "send less at a time", code="E479") from None
        if len(self.admitted) >= SIGNATURES:
            self.admitted.clear()
        self.admitted.add(_signature(inputs))

    def metadata(self, versions: list[str]) -> dict[str, Any]:
        """Return the model's metadata as the protocol has it."""
        inputs, outputs = ([s.metadata() for s in specs.values()] for specs in (self.inputs, self.outputs))
        facts = {"name": self.name, "versions": versions, "platform": "tensorlogic"}
        return {**facts, "inputs": inputs, "outputs": outputs}

    def config(self) -> dict[str, Any]:
        """Return what is configured, in the fields that Triton's clients read."""
        tensors = {
            kind: [
                {"name": t["name"], "data_type": f"TYPE_{t['datatype'].replace('BYTES', 'STRING')}", "dims": t["shape"]}
                for t in self.metadata([])[f"{kind}s"]
            ]
            for kind in ("input", "output")
        }
        return {"name": self.name, "platform": "tensorlogic", "backend": "tensorlogic", "max_batch_size": 0, **tensors}


def _signature(inputs: Mapping[str, Array]) -> tuple[Any, ...]:
    return tuple((name, a.shape, a.dtype.char) for name, a in inputs.items())


def _spec(graph: EinsumGraph, name: str, kind: TensorType, by_name: bool, optional: bool = False) -> TensorSpec:
    if kind.dtype is not None and kind.dtype not in NAME_OF:
        raise FormatError(f"{name!r} is {kind.dtype}, which the protocol's datatypes do not have here", code="E489")
    datatype = None if kind.dtype is None else NAME_OF[kind.dtype]
    shape = None if kind.shape is None else tuple(d if isinstance(d, int) else -1 for d in kind.shape)
    axes = graph.axis_names.get(name)
    if axes is None and by_name and datatype == "BOOL" and shape is not None:
        axes = (None,) * len(shape)  # elements that are their own numbers
    names = by_name and axes is not None and datatype in ("BOOL", None)
    return TensorSpec(name, datatype, shape, axes, names, optional)


def _priority(name: str) -> Priority:
    try:
        return Priority[name.upper()]
    except KeyError:
        raise _wrong("priority", name, [p.name.lower() for p in Priority]) from None


def _batching(settings: ModelSettings) -> BatcherConfig:
    known = list(BatcherConfig.__struct_fields__)
    for name in settings.batching:
        if name not in known or name == "workers":  # which is what instances says
            raise _wrong("a key of [batching]", name, known)
    try:
        return msgspec.convert({**settings.batching, "workers": settings.instances}, BatcherConfig)
    except msgspec.ValidationError as error:
        raise FormatError(f"model.toml, [batching]: {error}", code="E490") from None


def _wrong(setting: str, value: object, known: list[str]) -> FormatError:
    return FormatError(f"model.toml: {setting} is {value!r}", *nearest(str(value), known), code="E490")


def read_settings(*folders: Path) -> ModelSettings:
    """Read the first ``model.toml`` of some folders; without one, everything has its default."""
    for folder in folders:
        path = folder / "model.toml"
        if not path.exists():
            continue
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
            return msgspec.convert(raw, ModelSettings)
        except (OSError, ValueError, msgspec.ValidationError) as error:
            known = ", ".join(ModelSettings.__struct_fields__)
            raise FormatError(f"{path} cannot be read: {error}", f"known: {known}", code="E490") from None
    return ModelSettings()


def load_model(name: str, folder: Path, limits: Limits) -> ServedModel:
    """Load the version of a model that a folder holds; nothing of it is served before all of it is there."""
    settings = read_settings(folder, folder.parent)
    try:
        limits = msgspec.convert({**msgspec.to_builtins(limits), **settings.limits}, Limits)
    except msgspec.ValidationError as error:
        raise FormatError(f"model.toml, [limits]: {error}", code="E490") from None
    executor: Executor | CompiledGraph = Executor(memory_limit=limits.memory_bytes)
    values: dict[str, Any] | None = None
    with span(f"load {name}/{folder.name}"):
        params = _read_params(folder / PARAMS)
        if (folder / "model.tl").exists():
            program = load_program(folder / "model.tl").bind(params)
            graph = program.graph()
            values = {n: np.asarray(v) for n, v in program.inputs().items()}
        elif (folder / "manifest.json").exists():
            executor = compiled = CompiledGraph.load(folder, Executor(memory_limit=limits.memory_bytes))
            graph = compiled.optimized
        else:
            graph = with_constants(EinsumGraph.load(folder / "model.json"), params)
        return ServedModel(name, folder.name, graph, executor, settings, limits, values)


def _read_params(path: Path) -> dict[str, Array]:
    if not path.exists():
        return {}
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path} cannot be read: {error}", code="E489") from None


def with_constants(graph: EinsumGraph, values: Mapping[str, Array]) -> EinsumGraph:
    """Return the graph with some inputs as constants: the parameters of a model, which no request gives.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", (2,), "float64") * b.input("w", (2,), "float64"))
    >>> with_constants(graph, {"w": np.ones(2)}).input_names
    ['x']
    """
    nodes, constants = list(graph.nodes), dict(graph.constants)
    for name, value in values.items():
        if name not in graph.inputs:
            raise FormatError(f"{PARAMS} has {name!r}, which is no input", *nearest(name, graph.inputs), code="E489")
        number, declared = graph.inputs[name], graph.type_of(graph.inputs[name])
        array = np.asarray(value, declared.dtype)
        if declared.shape is not None and (
            len(declared.shape) != array.ndim
            or any(isinstance(d, int) and d != size for d, size in zip(declared.shape, array.shape, strict=True))
        ):
            raise FormatError(f"{PARAMS}: {name!r} is {list(array.shape)}, the graph has {declared}", code="E489")
        op = constant_op(array)
        nodes[number] = Node(op, (), graph.nodes[number].locations)
        constants[op.digest] = array
    return EinsumGraph(nodes, graph.outputs, constants, graph.axis_names) if values else graph


class ModelState(NamedTuple):
    """Whether a version is served, and if not, why."""

    state: str  # READY, UNAVAILABLE or LOADING
    reason: str = ""


class Repository:
    """The models of a folder that are served now. Loading replaces all versions of a model at once, or none.

    Models are looked up on one thread while another loads: what is looked up is always a whole model.
    """

    def __init__(self, folder: str | Path, limits: Limits, clock: Callable[[], float] = monotonic) -> None:
        self.folder, self.limits, self.clock = Path(folder), limits, clock
        self.ready: dict[str, dict[str, ServedModel]] = {}
        self.templates: dict[Any, Any] = {}  # how requests are answered that repeat, by their heads
        self.states: dict[tuple[str, str], ModelState] = {}
        self._lock = Lock()  # one change at a time
        if not self.folder.is_dir():
            hint = "make models/NAME/1/model.json with graph.save(...)"
            raise FormatError(f"there is no folder {str(folder)!r}", hint, code="E489")

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a model that is ready; without a version, the latest."""
        versions = self.ready.get(name)
        if not versions:
            known = nearest(name[:100], self.ready)
            raise InputError(f"Request for unknown model: {name[:100]!r} is not found", *known, code="E476")
        if not version:
            return versions[next(reversed(versions))]
        found = versions.get(version)
        if found is None:
            message = f"Request for unknown model: {name!r} version {version[:20]!r} is not found"
            raise InputError(message, f"versions: {', '.join(versions)}", code="E477")
        return found

    def names(self) -> list[str]:
        """Return the names of the models in the folder, served or not."""
        return sorted(p.name for p in self.folder.iterdir() if p.is_dir() and NAME.fullmatch(p.name) and _versions(p))

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Return every model and version with its state."""
        found = {
            (name, v.name): ModelState("UNAVAILABLE") for name in self.names() for v in _versions(self.folder / name)
        }
        found |= self.states
        rows = [
            {"name": name, "version": version, "state": s.state, "reason": s.reason}
            for (name, version), s in sorted(found.items())
        ]
        return [row for row in rows if row["state"] == "READY"] if ready_only else rows

    def load(self, name: str) -> None:
        """Load a model, or load it anew: its versions take over together once all are ready. It may take a while."""
        if not NAME.fullmatch(name) or not (folders := _versions(self.folder / name)):
            hints = nearest(name[:100], self.names())
            raise InputError(f"failed to load {name[:100]!r}: it is not in the repository", *hints, code="E476")
        with self._lock:
            chosen = folders
            loaded: dict[str, ServedModel] = {}
            try:
                wanted = read_settings(self.folder / name).versions
                chosen = _chosen(folders, wanted)
                for folder in chosen:
                    loaded[folder.name] = load_model(name, folder, self.limits)
            except BaseException as error:
                for model in loaded.values():
                    model.batcher.close()
                if not isinstance(error, Exception):
                    raise
                reason = error.diagnostic.message if isinstance(error, TensorLogicError) else str(error)
                if name not in self.ready:
                    self.states[name, chosen[-1].name] = ModelState("UNAVAILABLE", reason)
                if isinstance(error, TensorLogicError):
                    raise error.renamed(f"failed to load {name!r}: {reason}") from None
                raise FormatError(f"failed to load {name!r}: {reason}", code="E488") from error
            self._replace(name, loaded)

    def unload(self, name: str) -> None:
        """Stop serving a model once the requests that it has are answered. It may take a while."""
        with self._lock:
            if name not in self.ready:
                hints = nearest(name[:100], self.ready)
                raise InputError(f"Request for unknown model: {name[:100]!r} is not loaded", *hints, code="E476")
            self._replace(name, {})

    def _replace(self, name: str, models: dict[str, ServedModel]) -> None:
        before = self.ready.get(name, {})
        self.ready = {**{n: m for n, m in self.ready.items() if n != name}, **({name: models} if models else {})}
        self.templates = {}  # which hold models that may be gone now
        states = {key: s for key, s in self.states.items() if key[0] != name}
        gone = {(name, v): ModelState("UNAVAILABLE", "unloaded") for v in before}
        self.states = {**states, **gone, **{(name, v): ModelState("READY") for v in models}}
        for model in before.values():
            model.batcher.close(drain=True)

    def close(self) -> None:
        """Stop serving, once everything that was taken in is answered."""
        with self._lock:
            for name in list(self.ready):
                self._replace(name, {})


def _versions(folder: Path) -> list[Path]:
    """Return the folders of a model's versions, the latest last."""
    if not folder.is_dir():
        return []
    found = [
        p for p in folder.iterdir() if p.name.isascii() and p.name.isdigit() and any((p / f).exists() for f in FILES)
    ]
    return sorted(found, key=lambda p: int(p.name))


def _chosen(folders: list[Path], wanted: str | list[int]) -> list[Path]:
    if wanted == "all":
        return folders
    if wanted == "latest":
        return folders[-1:]
    if isinstance(wanted, str):
        raise _wrong("versions", wanted, ["all", "latest"])
    chosen = [f for f in folders if int(f.name) in wanted]
    if not chosen:
        raise _wrong("versions", wanted, [f.name for f in folders])
    return chosen
