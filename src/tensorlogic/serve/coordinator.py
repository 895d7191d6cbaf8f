"""Several models behind one door: by name and version, as ensembles, by routes, with canaries and shadows, within a bound of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import count
from random import Random
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError, TensorLogicError, expect, expect_known, expect_whole, nearest
from ..runtime.aio.call_queue import AsyncHandle, CallQueue
from ..runtime.aio.executor_pool import CALLERS_FAULT
from ..runtime.executor import Executor
from ..runtime.values import Inputs, Outputs
from ..store import Lock
from .cascade import CascadeReport, run_cascade
from .ensembles import COMPOSE, FITTED, EnsembleStrategy, Members, member_values, stacked_features
from .models import CoordinatorStats, Model, Models, Source

SHADOWS = 16  # that may wait; more are left out


class RoutingStrategy(Enum):
    """Which of several models answers.

    ``PRIORITY`` asks the most important one first, and the next where that fails. ``LATENCY`` asks the one that was fastest lately,
    ``ACCURACY`` the one registered as best, ``ROUND_ROBIN`` one after another, ``CASCADE`` the cheapest first, and the next for rows
    that it is not sure of.

    >>> RoutingStrategy("cascade").name
    'CASCADE'
    """

    PRIORITY = "priority"
    LATENCY = "latency"
    ACCURACY = "accuracy"
    ROUND_ROBIN = "round_robin"
    CASCADE = "cascade"


class Routed(NamedTuple):
    """An answer, the model that gave it (of a cascade, the last one that ran), and what the stages of a cascade did.

    >>> Routed(Outputs(("y",), (1.0,)), "small@1").model
    'small@1'
    """

    outputs: Outputs
    model: str
    cascade: CascadeReport | None = None


class ShadowReport(NamedTuple):
    """How a version that runs beside another one compares with it.

    >>> ShadowReport(calls=10, differing=2, errors=0, left_out=0, largest_difference=0.5).differing
    2
    """

    calls: int
    differing: int  # answers that were not close to those given
    errors: int
    left_out: int  # because too many waited
    largest_difference: float


class _Trial:
    """A version that gets a share of the calls: in the place of another, or beside it."""

    def __init__(self, version: str, share: float) -> None:
        self.version, self.share = version, share
        self.calls = self.differing = self.errors = self.left_out = 0
        self.largest = 0.0


class MultiModelCoordinator:
    """Runs several models, alone, as ensembles and by routes; each has a name, versions, and an account of what it took.

    A model is a graph, a compiled graph, a file or a folder of one, or a function that returns one. With a ``memory_limit`` of bytes, models
    that were not used longest leave the memory, and come back when they are used. ``rng`` decides about canaries and shadows.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", ("n", 2), "float64")
    >>> coordinator = tl.MultiModelCoordinator()
    >>> coordinator.register("small", b.build(p=b.softmax(x)), cost=1)
    >>> coordinator.register("large", b.build(p=b.softmax(x * 5.0)), cost=10)
    >>> graph = coordinator.ensemble("both", ["small", "large"], tl.EnsembleStrategy.VOTING, soft=True)
    >>> coordinator.run("both", {"x": [[0.0, 1.0]]})["label"]
    array([1])
    >>> rows = {"x": [[0.0, 9.0], [0.0, 0.1]]}
    >>> coordinator.route(rows, tl.RoutingStrategy.CASCADE, ["small", "large"]).cascade.decided_by
    array([0, 1])
    """

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        memory_limit: int | None = None,
        rng: Random | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if memory_limit is not None:
            expect_whole("memory_limit", memory_limit, 1)
        self._executor = Executor() if executor is None else executor
        expect(self._executor, Executor, "an Executor is expected", "write MultiModelCoordinator(Executor())")
        self._models = Models(self._executor, memory_limit, clock)
        self._random, self._clock = rng or Random(), clock
        self._canaries: dict[str, _Trial] = {}
        self._shadows: dict[str, _Trial] = {}
        self._turns = count()
        self._lane = CallQueue(1, SHADOWS)
        self._lock = Lock()
        self._settled = threading.Condition(self._lock)
        self._beside = 0  # shadows that run or wait

    # models

    def register(
        self,
        name: str,
        source: Source,
        *,
        version: str | int = "1",
        params: Mapping[str, Any] | None = None,
        cost: float = 1.0,
        accuracy: float = 0.0,
        priority: int = 0,
        memory: int | None = None,
    ) -> None:
        """Add a model, or a version of one, which becomes the one that is meant where no version is named.

        Inputs named in ``params`` are given here once and for all. ``cost`` is that of a row, in any unit; ``memory`` is the bytes it takes, where
        they are not to be counted.
        """
        expect(name, str, "a model has a name", 'write register("small", graph)')
        self._models.add(Model(name, str(version), source, dict(params or {}), cost, accuracy, priority, memory))

    def remove(self, name: str, version: str | int | None = None) -> None:
        """Forget a version of a model, or all of them."""
        self._models.remove(name, None if version is None else str(version))
        for trials in (self._canaries, self._shadows):
            trial = trials.get(name)
            if trial is not None and version in (None, trial.version):
                del trials[name]

    def promote(self, name: str, version: str | int) -> None:
        """Let a version be the one that is meant where none is named, and end its time as a canary."""
        self._models.promote(name, str(version))
        self._canaries.pop(name, None)

    def load(self, name: str, version: str | int | None = None) -> None:
        """Bring a model into memory before it is used."""
        self._models.load(self._model(name, version))

    def unload(self, name: str, version: str | int | None = None) -> bool:
        """Let a model leave the memory until it is used again; False where it is not there."""
        return self._models.unload(self._model(name, version))

    def models(self) -> tuple[str, ...]:
        """Return all names and versions, such as ``"small@1"``."""
        return tuple(row.model for row in self._models.stats().models)

    def stats(self) -> CoordinatorStats:
        """Return what each model took so far: bytes, calls, errors, seconds, and how often it was loaded and unloaded."""
        return self._models.stats()

    def __str__(self) -> str:
        return str(self.stats())

    def _model(self, name: str, version: str | int | None = None) -> Model:
        expect(name, str, "a model is given by its name", 'write "small" or "small@2"')
        own, _, named = name.partition("@")
        return self._models[own, named or None if version is None else str(version)]

    # answers

    def run(self, name: str, inputs: Inputs, version: str | int | None = None) -> Outputs:
        """Run a model by its name (``"small"``, ``"small@2"``); where no version is named, canaries and shadows have their share."""
        model = self._model(name, version)
        if version is not None or "@" in name:
            return self._models.run(model, inputs)
        canary, shadow = self._canaries.get(name), self._shadows.get(name)
        if canary is not None and self._random.random() < canary.share:
            canary.calls += 1
            model = self._models[name, canary.version]
        outputs = self._models.run(model, inputs)
        if shadow is not None and self._random.random() < shadow.share:
            self._run_beside(self._models[name, shadow.version], shadow, inputs, outputs)
        return outputs

    def route(
        self,
        inputs: Inputs,
        strategy: RoutingStrategy = RoutingStrategy.PRIORITY,
        models: Sequence[str] | None = None,
        *,
        confidence: float = 0.9,
        output: str | None = None,
    ) -> Routed:
        """Let one of several models answer (all that are registered, where none are named), or a cascade of them.

        A cascade takes a row as decided where its largest score reaches the ``confidence``; ``output`` names the scores.
        """
        hint = "write RoutingStrategy.LATENCY"
        expect(strategy, RoutingStrategy, "a RoutingStrategy is expected", hint)
        chosen = self._models.latest() if models is None else [self._model(name) for name in models]
        if not chosen:
            raise InputError("there is no model to route to", "register one first", code="E461")
        if strategy is RoutingStrategy.CASCADE:
            stages = sorted(chosen, key=lambda model: model.cost)
            outputs, report = run_cascade(self._models, stages, inputs, confidence, output, self._clock)
            last = [s.model for s in report.stages if s.rows][-1:] or [stages[0].label]
            return Routed(outputs, last[0], report)
        if strategy is RoutingStrategy.ROUND_ROBIN:
            order = [chosen[next(self._turns) % len(chosen)]]
        else:
            order = sorted(chosen, key=partial(ORDER[strategy], self._models))
        if strategy is RoutingStrategy.PRIORITY:
            for model in order[:-1]:
                try:
                    return Routed(self._models.run(model, inputs), model.label)
                except CALLERS_FAULT:
                    raise
                except TensorLogicError:
                    continue  # an error in the account of this model; the next one is asked
            order = order[-1:]
        return Routed(self._models.run(order[0], inputs), order[0].label)

    # ensembles

    def ensemble(
        self,
        name: str,
        members: Sequence[str],
        strategy: EnsembleStrategy,
        *,
        weights: Sequence[float] | None = None,
        output: str | None = None,
        soft: bool = False,
        data: Inputs | None = None,
        target: Any = None,
        regularization: float = 1.0,
        learning_rate: float = 1.0,
        version: str | int = "1",
    ) -> Any:
        """Compose models into one graph, register it as a model of its own, and return it.

        ``output`` names what of each member counts, by default its first output. STACKING and BOOSTING are fitted on ``data``, inputs with
        a row for each ``target``: whole numbers are classes, others are numbers to predict.
        """
        hint = "write EnsembleStrategy.AVERAGING"
        expect(strategy, EnsembleStrategy, "an EnsembleStrategy is expected", hint)
        chosen = [self._model(member) for member in members]
        if not chosen:
            hint = 'write ensemble("both", ["small", "large"], ...)'
            raise InputError("an ensemble needs members", hint, code="E468")
        whole = self._members(chosen, output, weights)
        options: dict[str, Any] = {"soft": soft} if strategy is EnsembleStrategy.VOTING else {}
        if strategy in FITTED:
            if data is None or target is None:
                hint = "give data={'x': rows} and target=labels"
                raise InputError(f"{strategy.name} is fitted on data", hint, code="E469")
            labels = np.asarray(target)
            labels = labels if labels.dtype.kind in "iu" else labels.astype("float64")
            values = member_values(self._executor, whole, data)
            for model, value in zip(chosen, values, strict=True):
                if not value.ndim or len(value) != len(labels):
                    shapes = f"{value.shape} for {len(labels):,} targets"
                    raise InputError(f"{model.label!r} gives {shapes}: a row for each is needed", code="E469")
            if strategy is EnsembleStrategy.STACKING:
                options = {"features": stacked_features(values, labels), "regularization": regularization}
            else:
                options = {"values": values, "rate": learning_rate}
            options["target"] = labels
        graph = COMPOSE[strategy](whole, **options)
        cost = sum(model.cost for model in chosen)
        self.register(name, graph, version=version, cost=cost)
        return graph

    def _members(self, chosen: Sequence[Model], output: str | None, weights: Sequence[float] | None) -> Members:
        graphs = [self._models.load(model).graph for model in chosen]
        shares = [1.0] * len(chosen) if weights is None else [float(w) for w in weights]
        if len(shares) != len(chosen) or not sum(shares) > 0 or min(shares) < 0:
            message = (
                f"{len(chosen)} members need as many weights, none below 0 and not all 0, got {value_text(weights)}"
            )
            raise InputError(message, code="E468")
        for model, graph in zip(chosen, graphs, strict=True):
            if output is not None:
                expect_known(f"{model.label!r} has no output", [output], graph.output_names, "E305")
        return Members(graphs, [output or graph.output_names[0] for graph in graphs], shares)

    # versions on trial

    def canary(self, name: str, version: str | int, share: float) -> None:
        """Let a version answer a share of the calls of a model; 0 ends it."""
        self._try(self._canaries, name, version, share)

    def shadow(self, name: str, version: str | int, share: float = 1.0) -> None:
        """Run a version beside a share of the calls, on another thread, and compare what it gives; callers never notice. 0 ends it."""
        self._try(self._shadows, name, version, share)

    def shadow_report(self, name: str) -> ShadowReport:
        """Return how the shadow of a model compares with it so far, once those that are under way are done."""
        with self._lock:
            self._settled.wait_for(lambda: not self._beside)
            trial = self._shadows.get(name)
            if trial is None:
                raise InputError(f"model {value_text(name)} has no shadow", *nearest(name, self._shadows), code="E461")
            return ShadowReport(trial.calls, trial.differing, trial.errors, trial.left_out, trial.largest)

    def _try(self, trials: dict[str, _Trial], name: str, version: str | int, share: float) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InputError(f"a share is a number from 0 to 1, got {value_text(share)}", code="E301")
        trials[name] = _Trial(self._model(name, version).version, share)
        if share == 0:
            del trials[name]

    def _run_beside(self, model: Model, trial: _Trial, inputs: Inputs, outputs: Outputs) -> None:
        with self._lock:
            if self._beside >= SHADOWS:
                trial.left_out += 1
                return
            self._beside += 1
        given = [np.array(value) for value in outputs]  # the caller may write to its own
        work = partial(self._compare, model, trial, inputs, given)
        AsyncHandle(self._lane, work, on_end=self._beside_ended).begin()

    def _beside_ended(self, handle: AsyncHandle[None]) -> None:
        with self._lock:
            self._beside -= 1
            self._settled.notify_all()

    def _compare(self, model: Model, trial: _Trial, inputs: Inputs, given: Sequence[Any]) -> None:
        trial.calls += 1
        try:
            found = [np.asarray(value) for value in self._models.run(model, inputs)]
        except Exception:
            trial.errors += 1  # the model's own account has it too
            return
        same = len(found) == len(given) and all(a.shape == b.shape for a, b in zip(found, given, strict=True))
        if not same or not all(np.allclose(a, b, equal_nan=True) for a, b in zip(found, given, strict=True)):
            trial.differing += 1
        if same:
            for a, b in zip(found, given, strict=True):
                gap = np.abs(np.subtract(a, b, dtype="float64")) if a.size else np.zeros(1)
                trial.largest = max(trial.largest, float(np.nan_to_num(gap, nan=0.0).max()))


ORDER: dict[RoutingStrategy, Callable[[Models, Model], Any]] = {
    RoutingStrategy.PRIORITY: lambda _, model: -model.priority,
    # below 0 before the first call, so that it is tried
    RoutingStrategy.LATENCY: lambda models, model: (models.usage[model.name, model.version].lately, model.cost),
    RoutingStrategy.ACCURACY: lambda _, model: (-model.accuracy, model.cost),
}
