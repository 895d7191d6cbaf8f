"""Which execution strategy is best for a graph, found by timing several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partialmethod
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from ..backends.base import Backend, get_backend
from ..diagnostics import value_text
from ..errors import BackendError, InputError, TensorLogicError, expect
from ..ir import ops
from ..ir.check import require_valid
from ..ir.graph import EinsumGraph, bodies
from ..ir.sizes import names
from ..passes.pipeline import OptimizationLevel
from ..passes.specialize import input_types, known_inputs
from ..plan.build import ExecutionPlan
from ..plan.candidates import CHAIN as COST
from ..plan.node_costs import STAND_IN
from ..plan.schedule import Scheduler, SchedulingStrategy
from .executor import Executor
from .strategy import ExecutionMode, ExecutionStrategy, MemoryStrategy, ParallelismStrategy, PrecisionMode, Trial
from .tuning import made_up_inputs
from .values import Inputs, Sizes

LEAST, MOST = 5, 1000  # runs of one trial
MARGIN = 0.03  # a trial must be better by this share,
WINS = 0.75  # and in this share of the rounds: less is noise
# what is tried one after another, because all combinations would take too long, and how it is called in print
_TRIED = {"parallelism": "threads", "optimization_level": "level", "memory": "memory", "mode": "mode"}


class _Way(NamedTuple):
    """One strategy that is tried: its executor, planned peak bytes, and the seconds of each round."""

    strategy: ExecutionStrategy
    executor: Executor
    peak: int
    seconds: list[float]

    def trial(self, compared: str, goal: _Goal, chosen: bool) -> Trial:
        s, seconds, runs = self.strategy, goal.score(self) if goal.timed else None, len(self.seconds)
        return Trial(compared, s.optimization_level, s.memory, s.parallelism, seconds, self.peak, runs, chosen, s.mode)


class _Goal(NamedTuple):
    """What the best strategy has least of."""

    name: str
    least: str
    score: Callable[[_Way], float]
    timed: bool = True


_THROUGHPUT = _Goal(
    "throughput", "the least mean time of runs one after another", lambda way: sum(way.seconds) / len(way.seconds)
)
_LATENCY = _Goal("latency", "the least median time of a run", lambda way: median(way.seconds))
_MEMORY = _Goal("memory", "the least peak of memory by the plan", lambda way: way.peak, timed=False)


class StrategyOptimizer:
    """Chooses a strategy by measuring: threads first, then levels, then where results go, then native code.

    What is compared runs in turns, each for about ``seconds``, so that a busy moment strikes all alike. Another way than
    the one given is taken if it is 3% better, and better in three rounds of four. With ``exact`` the aggressive level and
    native code are left out. Throughput is the mean time of runs, latency the median; memory is planned and not timed.

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
            hint = "write StrategyOptimizer(seconds=0.1)"
            raise InputError(f"seconds is how long each way is run, got {value_text(seconds)}", hint, code="E920")
        self.backend, self.seconds, self.exact, self.clock = get_backend(backend), seconds, exact, clock

    def _optimize(
        self,
        goal: _Goal,
        graph: EinsumGraph,
        strategy: ExecutionStrategy | None = None,
        inputs: Inputs | None = None,
        *,
        sizes: Sizes = None,
    ) -> ExecutionStrategy:
        """Return the strategy that is best for the goal, for the given inputs or made-up ones of the given sizes."""
        given = ExecutionStrategy() if strategy is None else strategy
        expect(given, ExecutionStrategy, "an ExecutionStrategy is expected", "write ExecutionStrategy()")
        inputs = {} if inputs is None else inputs
        values, left, assumed = stand_ins(graph, inputs, sizes, given.precision)
        current = msgspec.structs.replace(given, trials=(), reasons=())
        trials: list[Trial] = []
        try:
            for field, options in self._options(goal, graph):
                strategies = [current, *(msgspec.structs.replace(current, **{field: o}) for o in options)]
                ways, same = self._different(strategies, graph, values, left)
                assumed += same
                if len(ways) > 1:
                    if goal.timed:
                        self._measure(graph, ways, values, left)
                    best = _best(goal, ways)
                    current = best.strategy
                    trials += [way.trial(_TRIED[field], goal, way is best) for way in ways]
        except TensorLogicError as error:
            if len(inputs) == len(graph.inputs):
                raise
            text = f"a run on made-up inputs failed, give inputs= to measure with: {error.diagnostic.message}"
            raise error.renamed(text) from error
        reasons = (*_reasons(goal, given, current), *assumed)
        return msgspec.structs.replace(current, trials=tuple(trials), reasons=reasons)

    optimize_for_throughput = partialmethod(_optimize, _THROUGHPUT)
    optimize_for_latency = partialmethod(_optimize, _LATENCY)
    optimize_for_memory = partialmethod(_optimize, _MEMORY)

    def _options(self, goal: _Goal, graph: EinsumGraph) -> list[tuple[str, list[Any]]]:
        """Return what is tried, one thing after another."""
        found: list[tuple[str, list[Any]]] = []
        if goal.timed and (os.cpu_count() or 1) > 1:
            products = [ParallelismStrategy.AUTO, ParallelismStrategy.SINGLE] if _multiplies(graph) else []
            found.append(("parallelism", [*products, ParallelismStrategy.STEPS]))
        levels = [x for x in OptimizationLevel if not (self.exact and x is OptimizationLevel.AGGRESSIVE)]
        found.append(("optimization_level", levels))
        able = self.backend.capabilities()
        if able.supports("in_place"):
            found.append(("memory", list(MemoryStrategy)))
        if able.supports("native") and goal.timed and not self.exact:
            found.append(("mode", [ExecutionMode.JIT]))
        return found

    def _different(
        self, strategies: Sequence[ExecutionStrategy], graph: EinsumGraph, values: Inputs, sizes: Any
    ) -> tuple[list[_Way], list[str]]:
        """Return the ways that differ, and lines about what comes to the same: levels by plan, threads without work."""
        ways: dict[Any, _Way] = {}
        same, lines = [], []
        for strategy in dict.fromkeys(strategies):
            executor = strategy.executor(self.backend)
            plan = executor.plan(graph, values, sizes=sizes)
            new = strategy.parallelism is not strategies[0].parallelism
            if new and strategy.parallelism is ParallelismStrategy.STEPS and not _side_by_side(executor, plan):
                lines.append("steps on threads were not run: no two chains of steps are worth a thread of their own")
                continue
            way = _Way(strategy, executor, plan.peak_bytes, [])
            if ways.setdefault((plan.graph, strategy.memory, strategy.parallelism, strategy.mode), way) is not way:
                same.append(strategy.optimization_level.name.lower())
        if same:
            lines.append(f"levels that were not run, because they give a plan that was: {', '.join(same)}")
        return list(ways.values()), lines

    def _measure(self, graph: EinsumGraph, ways: Sequence[_Way], values: Inputs, sizes: Any) -> None:
        """Run a graph in several ways by turns."""
        for way in ways:  # planning, choosing, memory touched for the first time
            way.executor.execute(graph, values, sizes=sizes)
        spent, rounds = 0.0, 0
        while rounds < LEAST or (spent < self.seconds * len(ways) and rounds < MOST):
            for way in ways:
                start = self.clock()
                way.executor.execute(graph, values, sizes=sizes)
                way.seconds.append(self.clock() - start)
                spent += way.seconds[-1]
            rounds += 1


def _best(goal: _Goal, ways: Sequence[_Way]) -> _Way:
    """Return the best; the first, which is there already, where none is clearly better."""
    now = ways[0]
    best = min(ways, key=goal.score)
    if not goal.timed:
        return best
    wins = sum(a < b for a, b in zip(best.seconds, now.seconds, strict=True))
    clear = goal.score(best) < goal.score(now) * (1 - MARGIN) and wins >= WINS * len(now.seconds)
    return best if clear else now


def _reasons(goal: _Goal, given: ExecutionStrategy, chosen: ExecutionStrategy) -> Iterator[str]:
    if all(getattr(given, field) == getattr(chosen, field) for field in _TRIED):
        yield f"for {goal.name}: nothing tried is better than what was given"
    else:
        beyond = f", by {MARGIN:.0%} at least where it differs from what was given" if goal.timed else ""
        yield f"for {goal.name}: {goal.least}{beyond}"
    if chosen.optimization_level is OptimizationLevel.AGGRESSIVE or chosen.mode is ExecutionMode.JIT:
        yield "the aggressive level and native code may round otherwise; StrategyOptimizer(exact=True) leaves them out"


def stand_ins(
    graph: EinsumGraph, given: Inputs, sizes: Sizes, precision: PrecisionMode
) -> tuple[dict[str, Any], dict[str, int] | None, list[str]]:
    """Return inputs to measure with, the sizes that they do not fix, and lines that say what was made up."""
    require_valid(graph)
    known = known_inputs(graph, given, sizes, dtype=precision.dtype, stand_in=STAND_IN)
    types = input_types(graph, given, known.sizes, precision.dtype)
    missing = {name: t for name, t in types.items() if name not in given}
    if any(t.dtype == "bfloat16" for t in missing.values()):
        hint = "give the inputs, or use PrecisionMode.FP32"
        raise BackendError("random bfloat16 inputs cannot be made with NumPy", hint, code="E921")
    values = {**given, **dict(zip(missing, made_up_inputs(missing), strict=True))}
    fixed = {n for i in graph.inputs.values() for d in graph.type_of(i).shape or () for n in names(d)}
    left = {n: size for n, size in known.sizes.items() if n not in fixed}  # every call looks a size up that is given
    lines = [f"inputs that were not given are random numbers: {', '.join(missing)}"] if missing else []
    lines += [f"sizes that were not given are {STAND_IN}: {', '.join(known.assumed)}"] if known.assumed else []
    return values, left or None, lines


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
