"""Execution strategies: how a graph is run, chosen by running it in the ways there are and keeping the best."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..backends.base import Backend, InPlaceBackend, Kernel, RunBody, get_backend
from ..backends.threads import on_one_thread
from ..diagnostics import bytes_text
from ..errors import BackendError, InputError, TensorLogicError
from ..ir import ops
from ..ir.graph import EinsumGraph, bodies
from ..ir.sizes import names
from ..ir.types import TensorType
from ..ir.validate import require_valid
from ..passes.levels import OptimizationLevel
from ..plan.build import ExecutionPlan, Step
from ..plan.candidates import CHAIN as COST
from ..plan.inputs import input_types
from ..plan.node_costs import STAND_IN
from ..plan.schedule import Scheduler, SchedulingStrategy
from ..tables import table
from .executor import Executor
from .inputs import Inputs

LEAST, MOST = 5, 1000  # runs of one trial
MARGIN = 0.03  # a trial must be better by this share,
WINS = 0.75  # and in this share of the rounds: less is noise
UNDECIDED = "not decided yet"  # what an executor explains of a plan that it still times in several forms
# what is tried, and how it is called in print
_TRIED = {"parallelism": "threads", "optimization_level": "level", "memory": "memory", "mode": "mode"}


class ExecutionMode(Enum):
    """How a graph is turned into work.

    >>> [mode.name for mode in ExecutionMode]
    ['GRAPH', 'EAGER', 'JIT']
    """

    GRAPH = "graph"  # planned whole, then run step by step
    EAGER = "eager"  # every operation as it is written: no passes, no buffers in common
    JIT = "jit"  # native code, compiled when a graph first runs with some shapes


class PrecisionMode(Enum):
    """The dtype of inputs that declare none. No strategy changes a dtype: that would change the answer.

    >>> PrecisionMode.FP32.dtype
    'float32'
    """

    FP16 = "float16"
    BF16 = "bfloat16"
    FP32 = "float32"
    FP64 = "float64"

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return self.value


class MemoryStrategy(Enum):
    """Where steps put their results.

    >>> [strategy.name for strategy in MemoryStrategy]
    ['OPTIMIZE', 'SEPARATE']
    """

    OPTIMIZE = "optimize"  # into buffers of the plan, which serve again in the same run and in the next one
    SEPARATE = "separate"  # each into memory of its own, which goes back to the system after its last reader


class ParallelismStrategy(Enum):
    """What threads are for.

    >>> [strategy.name for strategy in ParallelismStrategy]
    ['AUTO', 'SINGLE', 'STEPS']
    """

    AUTO = "auto"  # products: as many as BLAS is set to
    SINGLE = "single"  # nothing: a product takes one, so that runs on several threads do not get in each other's way
    STEPS = (
        "steps"  # steps that do not wait for each other: Executor(threads=cores), where that is measured to be faster
    )


class GradientStrategy(Enum):
    """What a gradient does with the values of the forward run; running a graph forward does not depend on it.

    >>> [strategy.name for strategy in GradientStrategy]
    ['EAGER', 'KEEP', 'RECOMPUTE', 'BUDGETED']
    """

    EAGER = "eager"  # of a scalar, the gradient is computed along with it; otherwise as KEEP
    KEEP = "keep"  # every value that the gradient reads
    RECOMPUTE = "recompute"  # contractions, sorts and loops; the rest is computed again
    BUDGETED = "budgeted"  # as many as fit a budget of bytes, the rest again


_KINDS: dict[str, type[Enum]] = {
    "mode": ExecutionMode, "precision": PrecisionMode, "memory": MemoryStrategy, "parallelism": ParallelismStrategy,
    "gradient": GradientStrategy, "optimization_level": OptimizationLevel,
}  # fmt: skip


class Trial(NamedTuple):
    """One way to run a graph, and what it took: seconds a run (None: not timed) and planned peak bytes."""

    compared: str  # what the trials it is measured against have otherwise
    level: OptimizationLevel
    memory: MemoryStrategy
    parallelism: ParallelismStrategy
    seconds: float | None
    peak_bytes: int
    runs: int
    chosen: bool = False
    mode: ExecutionMode = ExecutionMode.GRAPH


class ExecutionStrategy(msgspec.Struct, frozen=True):
    """How to run graphs; :meth:`executor` gives the executor that does, :meth:`explain` says why.

    >>> from tensorlogic import GraphBuilder
    >>> strategy = ExecutionStrategy(memory=MemoryStrategy.SEPARATE)
    >>> b = GraphBuilder()
    >>> strategy.executor().execute(b.build(y=b.relu(b.input("x", (2,)))), {"x": [-1.0, 1.0]})["y"]
    array([0., 1.])
    >>> print(strategy.explain())
    graph mode, level standard, memory separate, parallelism auto, precision float32, gradient eager
    chosen by hand; nothing was measured
    """

    mode: ExecutionMode = ExecutionMode.GRAPH
    precision: PrecisionMode = PrecisionMode.FP32
    memory: MemoryStrategy = MemoryStrategy.OPTIMIZE
    parallelism: ParallelismStrategy = ParallelismStrategy.AUTO
    gradient: GradientStrategy = GradientStrategy.EAGER
    optimization_level: OptimizationLevel = OptimizationLevel.STANDARD
    trials: tuple[Trial, ...] = ()
    reasons: tuple[str, ...] = ("chosen by hand; nothing was measured",)

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} is of {kind.__name__}, got {getattr(self, name)!r}", code="E301",
                                 suggestions=[f"write {kind.__name__}.{each.name}" for each in kind])  # fmt: skip

    def executor(self, backend: str | Backend = "numpy") -> Executor:
        """Return an executor that runs graphs this way."""
        threads = (os.cpu_count() or 1) if self.parallelism is ParallelismStrategy.STEPS else 1
        chosen, level = self, self.optimization_level
        if self.mode is ExecutionMode.EAGER:
            chosen, level = msgspec.structs.replace(self, memory=MemoryStrategy.SEPARATE), OptimizationLevel.NONE
        made = Executor(
            _tuned(get_backend(backend), chosen), optimization_level=level, threads=threads,
            native=self.mode is ExecutionMode.JIT,
        )  # fmt: skip
        made.gradient = self.gradient
        return made

    def explain(self) -> str:
        """Return the strategy in words, with a table of what was measured and why this one was chosen."""
        words = (
            f"{self.mode.value} mode, level {self.optimization_level.name.lower()}, memory {self.memory.value}, "
            f"parallelism {self.parallelism.value}, precision {self.precision.value}, gradient {self.gradient.value}"
        )
        rows = [
            [t.compared, t.mode.value, t.level.name.lower(), t.memory.value, t.parallelism.value,
             "" if t.seconds is None else f"{t.seconds * 1e6:,.1f} µs", str(t.runs), bytes_text(t.peak_bytes),
             "chosen" if t.chosen else ""]
            for t in self.trials
        ]  # fmt: skip
        shown = [
            table(["compared", "mode", "level", "memory", "threads", "time", "runs", "peak", ""], rows, right={5, 6, 7})
        ]
        return "\n".join([words, *(shown if rows else []), *self.reasons])

    def __str__(self) -> str:
        return self.explain()


class StrategyOptimizer:
    """Chooses a strategy by measuring: threads first, then levels, then where results go, then native code.

    What is compared runs in turns, each for about ``seconds``, so that a busy moment strikes all alike. Another way than
    the one given is taken if it is 3% better, and better in three rounds of four. With ``exact`` what may round
    otherwise is left out: the aggressive level, and native code.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", ("n", 10)) @ b.input("w", (10, 4))))
    >>> best = StrategyOptimizer(seconds=0.001).optimize_for_throughput(graph, ExecutionStrategy(), sizes={"n": 8})
    >>> best.precision.name, best.trials[-1].compared
    ('FP32', 'mode')
    """

    def __init__(
        self,
        backend: str | Backend = "numpy",
        *,
        seconds: float = 0.1,
        exact: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise InputError(f"seconds is how long each way is run, got {seconds!r}", code="E301",
                             suggestions=["write StrategyOptimizer(seconds=0.1)"])  # fmt: skip
        self.backend, self.seconds, self.exact, self.clock = get_backend(backend), seconds, exact, clock

    def optimize_for_throughput(
        self,
        graph: EinsumGraph,
        strategy: ExecutionStrategy | None = None,
        inputs: Inputs | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> ExecutionStrategy:
        """Return the strategy with the least mean time of runs one after another."""
        return self._optimize("throughput", graph, strategy, inputs, sizes)

    def optimize_for_latency(
        self,
        graph: EinsumGraph,
        strategy: ExecutionStrategy | None = None,
        inputs: Inputs | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> ExecutionStrategy:
        """Return the strategy with the least median time of one run."""
        return self._optimize("latency", graph, strategy, inputs, sizes)

    def optimize_for_memory(
        self,
        graph: EinsumGraph,
        strategy: ExecutionStrategy | None = None,
        inputs: Inputs | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> ExecutionStrategy:
        """Return the strategy with the least peak of memory, by its plan; nothing is timed."""
        return self._optimize("memory", graph, strategy, inputs, sizes)

    def _optimize(
        self,
        goal: str,
        graph: EinsumGraph,
        strategy: ExecutionStrategy | None,
        inputs: Inputs | None,
        sizes: Mapping[str, int] | None,
    ) -> ExecutionStrategy:
        given = ExecutionStrategy() if strategy is None else strategy
        if not isinstance(given, ExecutionStrategy):
            raise InputError(f"an ExecutionStrategy is expected, got {given!r}", code="E301",
                             suggestions=["write ExecutionStrategy(precision=PrecisionMode.FP32)"])  # fmt: skip
        values, left, assumed = stand_ins(graph, {} if inputs is None else inputs, sizes, given.precision)
        current = msgspec.structs.replace(given, trials=(), reasons=())
        trials: list[Trial] = []
        try:
            for field, options in self._options(goal, graph):
                tried = [current, *(msgspec.structs.replace(current, **{field: o}) for o in options)]
                ways, same = self._different(tried, graph, values, left)
                assumed += same
                if len(ways) > 1:
                    self._measure(goal, graph, ways, values, left)
                    best = _best(goal, ways)
                    current = best.strategy
                    trials += [_trial(_TRIED[field], goal, way, way is best) for way in ways]
        except TensorLogicError as error:
            if inputs is not None and len(inputs) == len(graph.inputs):
                raise
            text = f"a run on made-up inputs failed, give inputs= to measure with: {error.diagnostic.message}"
            raise error.renamed(text) from error
        reasons = self._reasons(goal, given, current, assumed)
        return msgspec.structs.replace(current, trials=tuple(trials), reasons=tuple(reasons))

    def _options(self, goal: str, graph: EinsumGraph) -> list[tuple[str, list[Any]]]:
        """Return what is tried, one thing after another: all combinations would take too long."""
        found: list[tuple[str, list[Any]]] = []
        if goal != "memory" and (os.cpu_count() or 1) > 1:
            products = [ParallelismStrategy.AUTO, ParallelismStrategy.SINGLE] if _multiplies(graph) else []
            found.append(("parallelism", [*products, ParallelismStrategy.STEPS]))
        levels = [x for x in OptimizationLevel if not (self.exact and x is OptimizationLevel.AGGRESSIVE)]
        found.append(("optimization_level", levels))
        able = self.backend.capabilities()
        if able.supports("in_place"):
            found.append(("memory", list(MemoryStrategy)))
        if able.supports("native") and goal != "memory" and not self.exact:
            found.append(("mode", [ExecutionMode.JIT]))
        return found

    def _different(
        self, tried: Sequence[ExecutionStrategy], graph: EinsumGraph, values: Inputs, sizes: Any
    ) -> tuple[list[_Way], list[str]]:
        """Return the ways that differ, and lines about what comes to the same: levels by plan, threads without work."""
        kept: dict[Any, _Way] = {}
        same, lines = [], []
        for strategy in dict.fromkeys(tried):
            executor = strategy.executor(self.backend)
            plan = executor.plan(graph, values, sizes=sizes)
            new = strategy.parallelism is not tried[0].parallelism
            if new and strategy.parallelism is ParallelismStrategy.STEPS and not _side_by_side(executor, plan):
                lines.append("steps on threads were not run: no two chains of steps are worth a thread of their own")
                continue
            way = _Way(strategy, executor, plan.peak_bytes, [])
            if kept.setdefault((plan.graph, strategy.memory, strategy.parallelism, strategy.mode), way) is not way:
                same.append(strategy.optimization_level.name.lower())
        if same:
            lines.append(f"levels that were not run, because they give a plan that was: {', '.join(same)}")
        return list(kept.values()), lines

    def _measure(self, goal: str, graph: EinsumGraph, ways: Sequence[_Way], values: Inputs, sizes: Any) -> None:
        """Run a graph in several ways by turns; for memory the plans say all."""
        if goal == "memory":
            return
        for way in ways:
            way.executor.execute(graph, values, sizes=sizes)  # planning, and memory that is touched for the first time
            for _ in range(MOST):
                if UNDECIDED not in way.executor.explain():
                    break
                way.executor.execute(
                    graph, values, sizes=sizes
                )  # it times how it runs by itself, which is no result yet
        spent, rounds = 0.0, 0
        while rounds < LEAST or (spent < self.seconds * len(ways) and rounds < MOST):
            for way in ways:
                start = self.clock()
                way.executor.execute(graph, values, sizes=sizes)
                way.seconds.append(self.clock() - start)
                spent += way.seconds[-1]
            rounds += 1

    def _reasons(
        self, goal: str, given: ExecutionStrategy, found: ExecutionStrategy, assumed: Sequence[str]
    ) -> list[str]:
        what = {
            "throughput": "the least mean time of runs one after another",
            "latency": "the least median time of a run",
            "memory": "the least peak of memory by the plan",
        }[goal]
        beyond = "" if goal == "memory" else f", by {MARGIN:.0%} at least where it differs from what was given"
        kept = all(getattr(given, field) == getattr(found, field) for field in _TRIED)
        lines = [f"for {goal}: nothing tried is better than what was given" if kept else f"for {goal}: {what}{beyond}"]
        if found.optimization_level is OptimizationLevel.AGGRESSIVE or found.mode is ExecutionMode.JIT:
            lines.append(
                "the aggressive level and native code may round otherwise; StrategyOptimizer(exact=True) leaves them out"
            )
        return [*lines, *assumed]


class _Way(NamedTuple):
    strategy: ExecutionStrategy
    executor: Executor
    peak: int
    seconds: list[float]  # of each round


def _score(goal: str, way: _Way) -> float:
    if goal == "memory":
        return way.peak
    return median(way.seconds) if goal == "latency" else sum(way.seconds) / len(way.seconds)


def _best(goal: str, ways: Sequence[_Way]) -> _Way:
    """Return the best; the first, which is there already, where none is clearly better."""
    now = ways[0]
    best = min(ways, key=lambda way: _score(goal, way))
    if goal == "memory":
        return best
    wins = sum(a < b for a, b in zip(best.seconds, now.seconds, strict=True))
    clear = _score(goal, best) < _score(goal, now) * (1 - MARGIN) and wins >= WINS * len(now.seconds)
    return best if clear else now


def _trial(compared: str, goal: str, way: _Way, chosen: bool) -> Trial:
    s, seconds = way.strategy, None if goal == "memory" else _score(goal, way)
    return Trial(
        compared, s.optimization_level, s.memory, s.parallelism, seconds, way.peak, len(way.seconds), chosen, s.mode
    )


def stand_ins(
    graph: EinsumGraph, given: Inputs, sizes: Mapping[str, int] | None, precision: PrecisionMode
) -> tuple[dict[str, Any], dict[str, int] | None, list[str]]:
    """Return inputs to measure with, the sizes that they do not fix, and lines that say what was made up.

    What is not given is random: numbers between 0 and 1, integers 0 and 1. A size that nothing fixes is 64.
    """
    require_valid(graph)
    known = dict(sizes or {})
    declared = {name: graph.type_of(i).shape or () for name, i in graph.inputs.items()}
    bound = {n for name in given for d in declared.get(name, ()) for n in names(d)}
    free = sorted(graph.size_names - bound - known.keys())
    known |= dict.fromkeys(free, STAND_IN)
    types = input_types(graph, given, known, precision.dtype)
    rng = np.random.default_rng(0)
    values = {name: given[name] if name in given else _random(rng, t) for name, t in types.items()}
    fixed = {n for shape in declared.values() for d in shape for n in names(d)}
    left = {n: size for n, size in known.items() if n not in fixed}  # only what is needed: else every call looks it up
    made = [name for name in types if name not in given]
    lines = [f"inputs that were not given are random numbers: {', '.join(made)}"] if made else []
    lines += [f"sizes that were not given are {STAND_IN}: {', '.join(free)}"] if free else []
    return values, left or None, lines


def _random(rng: np.random.Generator, t: TensorType) -> Any:
    shape, dtype = tuple(int(d) for d in t.shape or ()), t.dtype or "float32"
    if dtype == "bfloat16":
        raise BackendError("random bfloat16 inputs cannot be made with NumPy", code="E402",
                           suggestions=["give the inputs, or use PrecisionMode.FP32"])  # fmt: skip
    if dtype.startswith("float"):
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _side_by_side(executor: Executor, plan: ExecutionPlan) -> bool:
    """Tell whether two chains of a plan's steps may run at the same time and are worth it."""
    if executor.threads < 2 or not executor.capabilities().supports("in_place"):
        return False
    found = Scheduler(SchedulingStrategy.CostBased(COST)).schedule(plan.graph)
    heavy = [[sum(found.node_costs[n] for n in chain) >= COST for chain in group] for group in found.chains]
    return any(sum(group) > 1 for group in heavy)


def _multiplies(graph: EinsumGraph) -> bool:
    return any(
        isinstance(node.op, ops.Einsum | ops.ContractVJP) or any(map(_multiplies, bodies(node.op)))
        for node in graph.nodes
    )


def _tuned(backend: Backend, strategy: ExecutionStrategy) -> Backend:
    """Return a backend that places results and takes threads as a strategy says."""
    changes: dict[str, Any] = {}
    if strategy.memory is MemoryStrategy.SEPARATE:
        able = backend.capabilities()
        plain = able._replace(features=tuple(f for f in able.features if f != "in_place"))
        changes["capabilities"] = lambda: plain
    if strategy.parallelism is ParallelismStrategy.SINGLE:

        def single(step: Step, kernel: Kernel) -> Kernel:
            return on_one_thread(kernel) if isinstance(step.op, ops.Einsum | ops.ContractVJP) else kernel

        def bind(step: Step, run_body: RunBody) -> Kernel:
            return single(step, backend.bind(step, run_body))

        changes["bind"] = bind
        if isinstance(backend, InPlaceBackend):
            into = backend.bind_into
            changes["bind_into"] = lambda step: single(step, into(step))
    if not changes:
        return backend
    public = {name: getattr(backend, name) for name in dir(backend) if not name.startswith("_")}
    own: Any = SimpleNamespace(**public | changes)  # the same engine, told a few things otherwise
    tuned: Backend = own
    return tuned
