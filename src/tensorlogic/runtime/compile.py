"""Compiled graphs: optimized once, planned once per size signature, kept in memory or on disk, run many times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from ..backends.base import Backend, get_backend
from ..backends.native.support import usable
from ..errors import FormatError, expect
from ..events import span
from ..ir.check import require_valid
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..passes.pipeline import CompilationConfig, OptimizationLevel
from ..passes.specialize import checked_sizes, input_types
from ..plan.build import ExecutionPlan
from ..store import of_one_process
from .call import Wrapper
from .executor import Executor
from .programs import sized_by_inputs
from .tuning import Choice
from .values import Inputs, Outputs, Sizes

if TYPE_CHECKING:
    from ..passes.pipeline import PassReport

FORMAT, VERSION = "tensorlogic-compiled", 3


class CompilationStats(NamedTuple):
    """What compiling did. It prints as a table of passes.

    >>> CompilationStats(10, 6, 0.01, ()).reduction_percentage
    40.0
    """

    nodes_before_optimization: int
    nodes_after_optimization: int
    seconds: float
    passes: tuple[PassReport, ...]

    @property
    def reduction_percentage(self) -> float:
        """How many per cent of the nodes are gone."""
        before = self.nodes_before_optimization
        return 100 * (before - self.nodes_after_optimization) / before if before else 0.0

    def __str__(self) -> str:
        whole = f"{self.nodes_before_optimization} nodes became {self.nodes_after_optimization}"
        from ..passes.pipeline import pass_table

        lines = [pass_table(self.passes)] if self.passes else []
        return "\n".join([*lines, f"{whole} ({self.reduction_percentage:.0f}% fewer) in {self.seconds * 1e3:.1f} ms"])


class CompiledGraph:
    """A graph that went through its passes, with a plan for each combination of input shapes it has run with.

    Several threads may run it at once. ``save`` keeps it, plans included, for other processes.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder(intern=False)
    >>> x = b.input("x", ("n",), "float64")
    >>> compiled = tl.GraphCompiler().compile(b.build(y=b.exp(x) + b.exp(x)))
    >>> compiled({"x": [0.0]})["y"], compiled.compilation_stats().nodes_after_optimization
    (array([2.]), 3)
    """

    def __init__(
        self,
        optimized: EinsumGraph,
        executor: Executor,
        stats: CompilationStats,
        source_digest: str = "",
        size_names: Iterable[str] = (),
    ) -> None:
        self.optimized, self.config = optimized, executor.config
        self.source_digest = source_digest  # of the graph that was compiled
        self.size_names = frozenset(size_names)  # that it had
        self.executor = executor  # its own: same backend, context and limits as the one that compiled it
        self._stats = stats

    def compilation_stats(self) -> CompilationStats:
        """Return what the passes did."""
        return self._stats

    def __call__(self, inputs: Inputs | None = None, *, sizes: Sizes = None, out: Inputs | None = None) -> Outputs:
        """Run it."""
        known = None if sizes is None else self.own_sizes(sizes)
        return self.executor.execute(self.optimized, inputs, sizes=known, out=out)

    def own_sizes(self, sizes: Sizes) -> Sizes:
        """Leave out sizes that only dead code had: whoever gives them to the graph may give them here too."""
        known = checked_sizes(self.optimized, sizes, self.size_names) or {}
        return {name: size for name, size in known.items() if name in self.optimized.size_names} or None

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a compiled graph", "keep it with compiled.save(folder) and CompiledGraph.load(folder)")

    def plan(self, inputs: Inputs | None = None, *, sizes: Sizes = None) -> ExecutionPlan:
        """Return the plan for given inputs or sizes."""
        return self.executor.plan(self.optimized, inputs, sizes=self.own_sizes(sizes))

    def plans(self) -> list[ExecutionPlan]:
        """Return the plans that are ready."""
        return [program.plan for program in self.executor.programs.store.values()]

    def explain(self) -> str:
        """Say of each plan that is ready how it runs, how it was chosen, and which kernels were compiled for it."""
        return self.executor.explain()

    def tune(self, inputs: Inputs | None = None) -> str:
        """Measure the plans again that compete for each signature met so far, keep the fastest, and say which.

        With ``inputs``, for their signature only, on them. Equal calls before and after may differ in the last places.
        """
        programs = self.executor.programs
        if inputs is not None:
            names, values = self.executor.arrays(self.optimized, inputs)
            types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
            programs.prepare(self.optimized, types, None, values)
        else:
            for plan in self.plans():
                programs.prepare(self.optimized, {name: t for name, _, t in plan.inputs})
        self.executor.last_calls.clear()
        return self.explain()

    @property
    def source(self) -> str:
        """The source of the kernels that run parts of its plans, as numba compiled it; empty where there are none."""
        if not self.executor.native or not usable():
            return ""
        from ..backends.native.bind import sources

        return "\n\n".join(dict.fromkeys(text for plan in self.plans() for text in sources(plan)))

    def save(self, folder: str | Path) -> None:
        """Write the graph and its plans to a folder, which appears whole or not at all.

        It takes the place of an empty folder or of a compiled graph, and of nothing else.
        """
        from ..ir.whole_files import as_path

        where = as_path(folder, "a folder")
        if not _free_to_write(where):
            hint = "save to a folder that does not exist yet"
            raise FormatError(f"{str(folder)!r} is there already and is no compiled graph", hint, code="E221")
        save_compiled(self, where)

    @classmethod
    def load(cls, folder: str | Path, executor: Executor | None = None) -> CompiledGraph:
        """Read a saved graph; its plans are ready to run, without passes or a search for contraction orders."""
        from ..ir.whole_files import as_path

        return _load(as_path(folder, "a folder"), executor or Executor())

    def __repr__(self) -> str:
        ready = len(self.plans())
        return f"<CompiledGraph {self.optimized!r}, {ready} plan{'' if ready == 1 else 's'} ready>"


class GraphCompiler:
    """Compiles graphs for a backend.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", (2,), "float32")))
    >>> GraphCompiler().compile(graph)
    <CompiledGraph <EinsumGraph (x) -> (y): 2 nodes>, 1 plan ready>
    """

    def __init__(self, backend: str | Backend = "numpy") -> None:
        self._executor = Executor(backend)

    def compile(
        self, graph: EinsumGraph, config: CompilationConfig | None = None, *, sizes: Sizes = None
    ) -> CompiledGraph:
        """Optimize a graph; where all sizes are known, plan it too."""
        return compile_for(self._executor, graph, CompilationConfig() if config is None else config, sizes)


def compile_for(
    executor: Executor, graph: EinsumGraph, config: CompilationConfig, sizes: Sizes, example: Inputs | None = None
) -> CompiledGraph:
    """Compile a graph as an executor would run it: on its backend, in its context, within its limits."""
    hint = "write CompilationConfig(optimization_level=OptimizationLevel.AGGRESSIVE)"
    expect(config, CompilationConfig, "a CompilationConfig is expected", hint)
    own = _at_full_speed(executor, config)
    from ..passes.pipeline import optimize

    start = perf_counter()
    with span("compile", executor.context.hooks):
        require_valid(graph)
        done = optimize(graph, own.programs.graph_passes(), executor.context.hooks)
    stats = CompilationStats(len(graph), len(done.graph), perf_counter() - start, done.reports)
    optimized = own.programs.optimized = done.graph.with_scores(graph.scores) if graph.scores else done.graph
    compiled = CompiledGraph(optimized, own, stats, graph.digest, graph.size_names)
    known = compiled.own_sizes(sizes)
    if example is not None:
        names, values = own.arrays(optimized, example)
        types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
        own.programs.prepare(optimized, types, known, values)
    elif sizes is not None or not (
        graph.size_names or any(None in graph.type_of(i)[:2] for i in graph.inputs.values())
    ):
        types = input_types(optimized, None, known, what="plan")
        if sized_by_inputs(optimized):
            own.programs.prepare(optimized, types, known)
        else:
            own.programs.plan(optimized, types, known)  # what is wrong with it is said now
    return compiled


def _at_full_speed(executor: Executor, config: CompilationConfig) -> Executor:
    """Return an executor for a config, which compiles to machine code where rounding may differ and fusing is allowed."""
    fast = config.optimization_level is OptimizationLevel.AGGRESSIVE and config.fusion_enabled
    policy = "fast" if fast else "exact" if executor.programs.policy == "adaptive" else None
    return executor_like(executor, config, policy=policy)


def executor_like(
    executor: Executor,
    config: CompilationConfig,
    *,
    policy: str | None = None,
    plans: int | None = None,
    backend: str | Backend | None = None,
    wrap: Sequence[Wrapper] | None = None,
) -> Executor:
    """Return an executor that prepares graphs otherwise, with the same context and limits; other wrappers, if given."""
    theirs = executor.programs
    chosen = executor.backend if backend is None else get_backend(backend)
    if policy != "exact" and not chosen.capabilities().supports("native"):
        policy = "exact" if backend is not None else None
    own = Executor(
        chosen,
        context=executor.context,
        memory_limit=theirs.memory_limit,
        flops_limit=theirs.flops_limit,
        wrap=theirs.wrap if wrap is None else wrap,
        passes=theirs.passes,
        plans=theirs.store.bound if plans is None else plans,
        threads=theirs.threads,
        policy=policy or theirs.policy,
    )
    own.programs.config, own.profiles = config, executor.profiles  # one profile, whoever runs
    return own


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    package: str
    backend: str
    backend_version: str
    config: CompilationConfig
    before: int
    plans: list[tuple[str, Choice | None]]  # of each, its name among those that competed, and why it was chosen
    source: str  # digests of the graph that was compiled,
    sizes: list[str]  # (the names of its sizes)
    optimized: str  # of what the passes made of it,
    graphs: list[str]  # and of each plan: a file that was changed or exchanged is not believed


def save_compiled(compiled: CompiledGraph, folder: Path) -> None:
    """Write a compiled graph and its plans to a folder, whole or not at all."""
    from .. import __version__
    from ..ir.constants import all_constants
    from ..ir.files import save
    from ..ir.whole_files import write_folder

    able = compiled.executor.capabilities()
    programs = compiled.executor.programs.store.values() if sized_by_inputs(compiled.optimized) else []
    manifest = _Manifest(
        FORMAT,
        VERSION,
        str(__version__),
        able.name,
        able.version,
        compiled.config,
        compiled.compilation_stats().nodes_before_optimization,
        [(program.plan.name, program.choice) for program in programs],
        compiled.source_digest,
        sorted(compiled.size_names),
        compiled.optimized.digest,
        [program.plan.graph.digest for program in programs],
    )

    def fill(place: Path) -> None:
        save(compiled.optimized, place / "optimized.json")
        shared = all_constants(compiled.optimized)
        for n, program in enumerate(programs):
            save(program.plan.graph, place / f"plan{n}.json", shared)
        (place / "manifest.json").write_bytes(msgspec.json.encode(manifest))

    try:
        write_folder(folder, fill)
    except OSError as error:
        raise FormatError(f"cannot write {str(folder)!r}: {error}", code="E221") from None


def _free_to_write(folder: Path) -> bool:
    """Tell whether a folder may be replaced: there is none, it is empty, or it holds a compiled graph of any version."""
    from ..ir.whole_files import expect_regular, mode_of

    if not mode_of(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return True
    try:
        manifest = msgspec.json.decode(expect_regular(folder / "manifest.json").read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _load(folder: Path, executor: Executor) -> CompiledGraph:
    from .. import __version__
    from ..ir.constants import all_constants
    from ..ir.files import load
    from ..ir.whole_files import expect_regular

    start = perf_counter()
    try:
        manifest = msgspec.json.decode(expect_regular(folder / "manifest.json").read_bytes(), type=_Manifest)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise FormatError(f"{str(folder)!r} holds no compiled graph: {error}", code="E220") from None
    able = executor.capabilities()
    for name, theirs, ours in (
        ("format", manifest.format, FORMAT),
        ("version", manifest.version, VERSION),
        ("package", manifest.package, str(__version__)),
        ("backend", manifest.backend, able.name),
        ("backend version", manifest.backend_version, able.version),
    ):
        if theirs != ours:
            hint = "compile the graph again"
            raise FormatError(f"{str(folder)!r} was saved for {name} {theirs}, this is {ours}", hint, code="E220")
    own = _at_full_speed(executor, manifest.config)

    def graph(file: str, digest: str, known: Mapping[str, Any] | None = None) -> EinsumGraph:
        found = load(folder / file, known=known)
        if found.digest != digest:
            what = f"{file} in {str(folder)!r} is not the graph that was saved"
            raise FormatError(what, "compile it again", code="E261")
        return found

    if len(manifest.plans) != len(manifest.graphs):
        what = f"{str(folder)!r} holds no compiled graph: {len(manifest.plans)} plans of {len(manifest.graphs)} graphs"
        raise FormatError(what, "compile it again", code="E220")
    optimized = own.programs.optimized = graph("optimized.json", manifest.optimized)
    shared = all_constants(optimized)  # most constants of a plan are those of the graph
    for n, ((name, choice), digest) in enumerate(zip(manifest.plans, manifest.graphs, strict=True)):
        own.programs.adopt(optimized, graph(f"plan{n}.json", digest, shared), name, choice)
    stats = CompilationStats(manifest.before, len(optimized), perf_counter() - start, ())
    return CompiledGraph(optimized, own, stats, manifest.source, manifest.sizes)
