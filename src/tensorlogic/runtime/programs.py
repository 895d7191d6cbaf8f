"""Programs of an executor: planned, chosen and bound on the first call of each signature, then kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.base import Backend, BackendCapabilities, KernelUnavailable, NativeBackend, check_dtypes
from ..diagnostics import value_text
from ..errors import BackendError, InputError, expect, expect_whole, nearest
from ..events import ExecutionPhase, Hook, active_contexts, span, tell_wrappers
from ..ir.check import require_valid
from ..ir.graph import EinsumGraph, meets_others
from ..ir.types import TensorType
from ..passes.pipeline import CompilationConfig, optimize, passes_of, sized_passes
from ..passes.rewrite import Pass
from ..passes.specialize import specialize, with_dtypes
from ..plan.build import POLICIES, QUICK, ExecutionPlan, Step, build_plan, lay_out
from ..plan.memory import available_memory, check_memory, lighter
from ..store import Lock, Store, StoreStats
from .call import Wrapper, run
from .context import ExecutionContext, context_room
from .program import Program, bind
from .values import NUMPY, Sizes

if TYPE_CHECKING:
    from ..plan.fused_steps import Fusable
    from ..plan.groups import Facts

_ARRAY = np.ndarray
Key = tuple[Any, ...]
Types = Mapping[str, TensorType]  # of inputs, by name
LEAN = "lean"  # ends the key of the program that takes the least memory
LONG_RUN = 60.0  # seconds, by an estimate, from which the calls of a run are worth compiling for: a kernel takes about half a second


class Programs:
    """Plans graphs and keeps what was bound, for one backend, one config and one policy."""

    def __init__(
        self,
        backend: Backend,
        context: ExecutionContext,
        config: CompilationConfig,
        *,
        policy: str | None = None,
        native: bool = False,
        threads: int = 1,
        wrap: Sequence[Wrapper] = (),
        passes: Sequence[Pass] = (),
        memory_limit: int | None = None,
        flops_limit: int | None = None,
        bound: int = 256,
    ) -> None:
        expect_whole("threads", threads, 1, most=1024)
        expect(wrap, Sequence, "wrap= is a list of wrappers", "write wrap=[wrapper]")
        hint = "write passes=[rewrite], where rewrite(graph) returns a graph"
        expect(passes, Sequence, "passes= is a sequence of functions of a graph", hint)
        for own in passes:
            expect(own, Callable, "a pass is a function of a graph", hint)  # type: ignore[arg-type]
        for wrapper in wrap:
            expect(wrapper, Callable, "a wrapper is a function of a call", "write wrap=[lambda call: call]")  # type: ignore[arg-type]
        for name, value in (("plans", bound), ("memory_limit", memory_limit), ("flops_limit", flops_limit)):
            if value is not None:
                expect_whole(name, value)
        self.backend, self.context, self.config = backend, context, config
        self.threads, self.wrap, self.passes = threads, tuple(wrap), tuple(passes)
        self.memory_limit, self.flops_limit = memory_limit, flops_limit
        self.capabilities = backend.capabilities()
        self.policy = checked_policy(self.capabilities, native, policy, bool(wrap))
        features = self.capabilities.features
        self.computes = "shapes_only" not in features
        self.in_place = "in_place" in features and not self.wrap
        compiles = self.in_place and "native" in features
        self.facts = backend.facts() if compiles and isinstance(backend, NativeBackend) else None
        self.store: Store[Key, Program] = Store(bound)
        # the graph of a CompiledGraph, which went through its passes already
        self.optimized: EinsumGraph | None = None
        # that graph with the dtypes of its inputs put in
        self._typed: Store[tuple[str | None, ...], EinsumGraph] = Store(bound)
        self._warned: dict[int, set[str]] = {}  # by the hash of a rule that ran, the inputs whose values were warned of
        self._chosen: dict[str, str] = {}  # by the digest of a key, the plan that was measured to be fastest
        # seconds that a call takes, where machine code would have its bits
        self._estimates: Store[Key, float] = Store(bound)
        self._making = Lock()
        # calls that were just like the last one, and needed no look-up; next() is atomic
        self.quick = itertools.count(1)
        self.quick_calls = 0

    def graph_passes(self) -> tuple[Pass, ...]:
        """Return what is done to a graph whatever its sizes are: the passes of the level, then the user's."""
        return (*self._level_passes(), *self.passes)

    def _level_passes(self) -> tuple[Pass, ...]:
        folds = not self.wrap and self.computes  # what is folded no wrapper sees
        return passes_of(self.config, self._evaluate if folds else None, differentiable=False)

    def for_call(
        self,
        graph: EinsumGraph,
        names: Sequence[str],
        values: Sequence[Any],
        sizes: Sizes,
        budget: int | None = None,
        donate: tuple[str, ...] = (),
        *,
        calls: int = 0,
    ) -> Program:
        """Return the program for a call, made on the first one of its kind.

        Where it is known that there will be many ``calls``, which take long in all, all that has a kernel with NumPy's bits is compiled
        for them.
        """
        shapes = tuple([(v.shape, v.dtype) if type(v) is _ARRAY else (v.shape, type(v)) for v in values])
        key: Key = (graph, shapes, tuple(sorted(sizes.items())) if sizes else ())
        if budget is not None or donate:
            key += (self._checked(budget), donate)
        program = self.store.get(self._key_for(key, calls) if calls else key)
        if graph.scores and (program is None or self.scores_unseen(graph)):
            self.look_at_scores(graph, zip(names, values, strict=True))

        def new_program(own: Key, calls: int) -> Program:
            types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
            with self._making:  # of several callers one chooses, so that all have the same bits
                found = self.store.peek(self._key_for(own, calls))
                if found is None:
                    found = self.make(graph, types, sizes, values, "the inputs given", budget, donate, own, calls)
                    self.store.put(self._key_for(own, calls), found)
            return found

        if program is None:
            program = new_program(key, calls)
        room = context_room((self.context, *active_contexts()))
        if room is not None and program.peak_bytes > room and budget is None:
            program = self.store.get((*key, LEAN)) or new_program((*key, LEAN), 0)
        return program

    @staticmethod
    def _checked(budget: int | None) -> int | None:
        """Return a budget that is one: what it is looked up by must have a hash."""
        if budget is not None:
            from ..plan.budget import check_budget

            check_budget(budget)
        return budget

    def _key_for(self, key: Key, calls: int) -> Key:
        """Return the key of the program for so many calls: that of one in machine code, where they are known to take long.

        It follows from the graph and the number alone, so that equal runs have equal plans.
        """
        return (*key, "long") if calls * (self._estimates.peek(key) or 0.0) >= LONG_RUN else key

    def scores_unseen(self, graph: EinsumGraph) -> bool:
        """Tell whether the truth values of no run of a graph were looked at."""
        return hash(graph) not in self._warned

    def look_at_scores(self, graph: EinsumGraph, values: Iterable[tuple[str, Any]], part: str = "") -> None:
        """Warn of truth values outside of 0 to 1, once for each input of a rule.

        Only the first run of each signature is looked at, or the first batch or chunk; ``part`` says which item or chunk the values are of.
        """
        from ..lang.context import warn, wrong_score

        warned = self._warned.setdefault(hash(graph), set())
        for name, given in values:
            if name not in graph.scores or name in warned:
                continue
            value = given.astype("float32") if type(given) is _ARRAY and given.dtype.kind == "V" else given  # bfloat16
            if message := wrong_score(name, value):
                warned.add(name)
                warn(f"{part}{message}; the logic takes such numbers as they are, or refuses them", None)

    def plan(self, graph: EinsumGraph, types: Types, sizes: Sizes, budget: int | None = None) -> ExecutionPlan:
        """Return the plan that runs for inputs of these types; where several compete, that takes compiling and measuring them."""
        key = self._type_key(graph, types, sizes, *(() if budget is None else (self._checked(budget), ())))
        plan = self._plan(graph, types, sizes, budget, key)
        room = context_room((self.context, *active_contexts()))
        if room is not None and plan.peak_bytes > room and budget is None:
            plan = self._plan(graph, types, sizes, None, (*key, LEAN))
        return plan

    def _plan(self, graph: EinsumGraph, types: Types, sizes: Sizes, budget: int | None, key: Key) -> ExecutionPlan:
        program = self.store.peek(key)
        if program is not None:
            return program.plan
        options = self.options(graph, types, sizes, budget, (), lean=key[-1] == LEAN)
        if len(options) == 1 or not self._within_limits(options[0]):
            return options[0]
        with self._making:
            program = self.store.peek(key) or self.make(graph, types, sizes, None, "", key=key)
            self.store.put(key, program)
        return program.plan

    def prepare(
        self, graph: EinsumGraph, types: Types, sizes: Sizes = None, example: Sequence[Any] | None = None
    ) -> Program:
        """Plan, choose and bind a graph for the types of its inputs, so that the first run is like the others."""
        program = self.make(graph, types, sizes, example, "the example given" if example is not None else "")
        self.store.put(self._type_key(graph, types, sizes), program)
        return program

    def adopt(self, graph: EinsumGraph, concrete: EinsumGraph, chosen: str, choice: Any) -> None:
        """Take over what a graph became in another process: no passes, no measuring, only laid out and bound."""
        require_valid(concrete)
        if list(concrete.inputs) != list(graph.inputs) or concrete.output_names != graph.output_names:
            raise InputError("the plan belongs to another graph", code="E314")
        options = self._candidates(concrete, (), reorder=False)
        plan = next((p for p in options if p.name == chosen), options[0])
        check_dtypes(plan, self.capabilities)
        self._check_limits(plan)
        again = partial(self._candidates, concrete, (), reorder=False)
        program = self._bound([plan], lambda without: again(without=without)[:1])[0]
        program.choice = choice if plan.name == chosen else None
        self.store.put(self._type_key(graph, {n: t for n, _, t in plan.inputs}, None), program)

    def make(
        self,
        graph: EinsumGraph,
        types: Types,
        sizes: Sizes,
        example: Sequence[Any] | None,
        inputs: str,
        budget: int | None = None,
        donate: tuple[str, ...] = (),
        key: Key | None = None,
        calls: int = 0,
    ) -> Program:
        """Plan a graph, bind its candidates, and return the one that is fastest on an example, or on inputs made up for it.

        A signature whose program had to go has the plan again that was chosen for it before.
        """
        lean = key is not None and key[-1] == LEAN
        options = self.options(graph, types, sizes, budget, donate, lean=lean)
        together = (len(options) > 1 or calls) and meets_others(options[0].graph) is not None
        hot = bool(calls and key is not None and not together and self._worth_compiling(options[0], key, calls))
        if hot:  # with the same bits, so that nothing depends on which plan it is: the first is not measured
            options = self._candidates(options[0].graph, donate, sparse=_relations(types), hot=True)
        most = 1 if hot or together else None  # measuring ranks do not meet
        options = options[:most]
        self._check_limits(options[0])
        self.context.notify(ExecutionPhase.COMPILATION)
        before = None if key is None or not self._chosen else self._chosen.get(_digest(key))
        options = [plan for plan in options if plan.name == before] or options
        concrete = options[0].graph
        if len(options) > 1:  # loaded before compiling: a fork that waited for a kernel must not meet an import
            from . import parts  # noqa: F401
            from .tuning import choose, made_up_inputs
        again = partial(self._candidates, concrete, donate, sparse=_relations(types), hot=hot, lean=lean)
        programs = self._bound(options, lambda without: again(without=without)[:most])
        if len(programs) == 1:
            return programs[0]
        with span("choose", self.context.hooks):
            values = made_up_inputs(types) if example is None else example
            if donate:  # a run may write over them
                values = [np.array(v) for v in values]
            chosen = choose(programs, values, inputs or "made-up inputs")
        if key is not None:
            self._chosen[_digest(key)] = chosen.plan.name
        return chosen

    def _worth_compiling(self, plan: ExecutionPlan, key: Key, calls: int) -> bool:
        """Note what a call is estimated to take, and tell whether so many are worth machine code."""
        if self.policy == "exact" and self.threads == 1 and self.facts is not None:
            from ..plan.durations import seconds

            self._estimates.put(key, seconds(plan))
        return self._key_for(key, calls) != key

    def options(
        self,
        graph: EinsumGraph,
        types: Types,
        sizes: Sizes,
        budget: int | None = None,
        donate: tuple[str, ...] = (),
        without: frozenset[object] = frozenset(),
        lean: bool = False,
    ) -> list[ExecutionPlan]:
        """Return the plans that compete for inputs of these types, without some steps; the first is taken where nothing is measured.

        The ``lean`` one is that which takes the least memory.
        """
        self.context.notify(ExecutionPhase.PLANNING)
        with span("plan", self.context.hooks):
            if not isinstance(graph, EinsumGraph) or not graph.checked:
                require_valid(graph)
            concrete = self._concrete(graph, types, sizes, budget is None)
            if budget is None:
                options = self._candidates(concrete, donate, without=without, sparse=_relations(types), lean=lean)
            else:
                options = [self._within(concrete, budget, lambda: self._concrete(graph, types, sizes, lowered=True))]
            check_dtypes(options[0], self.capabilities)
        return options

    def _within(self, concrete: EinsumGraph, budget: int, lowered: Callable[[], EinsumGraph]) -> ExecutionPlan:
        """Return the plan of a graph that takes no more than a budget of bytes, and no more than three times the seconds of the whole."""
        from ..plan.budget import Plans, fitted, plan_of

        how = partial(Plans, self.backend.passes, self.in_place)
        if self.facts is not None:
            policy = "fast" if self.policy == "fast" else "exact"
            groups = partial(_groups, facts=self.facts, policy=policy)
            how = partial(how, threads=self.facts.threads)
            whole = how(groups=groups).plan(concrete)
            if whole.peak_bytes <= budget:
                return whole.plan
            how = partial(how, groups=partial(groups, lean=True))
        return plan_of(fitted(concrete, budget, how(), lambda: self._candidates(lowered(), donate=())))

    def _concrete(self, graph: EinsumGraph, types: Types, sizes: Sizes, lowered: bool) -> EinsumGraph:
        """Bind sizes and run the passes: those of the level, the user's and, unless parts are planned apart, the backend's.

        Of the first two, a graph that went through them runs only those again that have more to do where sizes are known.
        """
        known = self.optimized is not None and graph == self.optimized
        if known and all(graph.type_of(i).shape is not None for i in graph.inputs.values()):
            graph = self._with_dtypes(graph, types)
            own = sized_passes(graph, self._level_passes())
        else:
            own = self.graph_passes()
        passes = (*own, *(self.backend.passes if lowered else ()))
        concrete = optimize(specialize(graph, types, sizes), passes, self.context.hooks).graph
        if meets_others(concrete) is None:
            return concrete
        from ..passes.overlap import overlap_reductions

        return overlap_reductions(concrete)

    def _with_dtypes(self, graph: EinsumGraph, types: Types) -> EinsumGraph:
        """Return what passes make of an optimized graph once the dtypes of all its inputs are known; they run once for these."""
        if all(graph.type_of(i).dtype is not None for i in graph.inputs.values()):
            return graph
        dtypes = tuple(types[n].dtype for n in graph.inputs)
        typed = self._typed.get(dtypes)
        if typed is None:
            typed = optimize(with_dtypes(graph, dtypes), self._level_passes(), self.context.hooks).graph
            self._typed.put(dtypes, typed)
        return typed

    def _candidates(
        self,
        concrete: EinsumGraph,
        donate: tuple[str, ...],
        *,
        reorder: bool = True,
        without: frozenset[object] = frozenset(),
        sparse: Types | None = None,
        hot: bool = False,
        lean: bool = False,
    ) -> list[ExecutionPlan]:
        policy = "adaptive" if hot else self.policy
        together = meets_others(concrete) is not None  # ranks must meet in one order
        reorder = reorder and not together
        facts = self.facts
        if self.threads == 1 and (facts is None or (policy == "exact" and not sparse and not without)):  # one way
            again = partial(lay_out, in_place=self.in_place, donate=frozenset(donate))
            if facts is not None:
                again = partial(again, groups=partial(_groups, facts=facts), threads=facts.threads, least=QUICK)
            elif "in_place" in self.capabilities.features:
                again = partial(again, threads=lambda: 1)
            plan = again(concrete)
            plans = [lighter(plan, again) if reorder and (self.backend.passes or self.passes) else plan]
        else:
            from ..plan.candidates import candidates

            room = None
            if policy != "exact" or self.threads > 1:
                room = available_memory() // 2 if self.memory_limit is None else self.memory_limit
            plans = candidates(
                concrete,
                self.facts,
                policy=policy,
                in_place=self.in_place,
                chains=self.threads if self.in_place and not together else 1,
                room=room,
                donate=donate,
                reorder=reorder,
                without=without,
                sparse=sparse,
            )
        if sparse or (not lean and plans[0].peak_bytes <= self._room()):
            return plans
        if facts is not None and policy == "exact":
            # kernels with the same bits may take less memory: truth values packed, chains without results between
            plans += self._candidates(concrete, donate, reorder=reorder, without=without, hot=True)[:1]
        return [min(plans, key=lambda p: p.peak_bytes)]

    def _bound(self, options: Sequence[ExecutionPlan], again: Any) -> list[Program]:
        """Bind plans; where no kernel can be made of a step, plans that do without it take their place.

        Each has the kernels of all: those of plans that are not chosen took time too.
        """
        kernels = _Kernels()
        without: frozenset[object] = frozenset()
        while True:
            try:
                return [self._bind(plan, kernels) for plan in options]
            except KernelUnavailable as error:
                from ..plan.candidates import ONE_FUNCTION, group_key

                step = error.step
                whole = step.op.kind == "whole"  # type: ignore[attr-defined]
                without |= {ONE_FUNCTION if whole else group_key((part.node, part.op) for part in step.parts)}
                options = again(without)

    def _bind(self, plan: ExecutionPlan, kernels: _Kernels) -> Program:
        with span("bind", (*self.context.hooks, kernels)):
            program = bind(plan, self.backend, self.wrap)
        if self.wrap:
            tell_wrappers(self.wrap, _all_steps(plan), "steps of a graph")
        program.kernels = kernels.lines
        return program

    def choices(self) -> dict[str, str]:
        """Return the names of the plans that were chosen by measuring, by a digest of graph and shapes that every process has."""
        return dict(self._chosen)

    def prefer(self, choices: Mapping[str, str]) -> None:
        """Choose the plans of another process again (see :meth:`choices`) where nothing is chosen yet, without measuring."""
        self._chosen = {**choices, **self._chosen}

    def explain(self) -> str:
        """Say of each program that is ready how it runs, why, and which kernels were made before it was chosen."""
        lines = []
        for program in self.store.values():
            plan = program.plan
            types = ", ".join(str(t) for _, _, t in plan.inputs[:3]) + ", ..." * (len(plan.inputs) > 3) or "no inputs"
            why = plan.name if program.choice is None else str(program.choice)
            lines.append(f"{plan.graph!r} of {types}, {len(plan.steps):,} steps: {why}")
            lines += [f"  {line}" for line in program.kernels]
        return "\n".join(lines) or "no plan is ready yet"

    def stats(self) -> StoreStats:
        """Return how often a program was found ready."""
        found = self.store.stats()
        return found._replace(hits=found.hits + self.quick_calls)

    def _type_key(self, graph: EinsumGraph, types: Types, sizes: Sizes, *more: Any) -> Key:
        shapes = [_shape_key(types[n]) for n in graph.inputs]
        given = () if sizes is None or sized_by_inputs(graph) else tuple(sorted(sizes.items()))
        return (graph, tuple(shapes), given, *more)

    def _within_limits(self, plan: ExecutionPlan) -> bool:
        return plan.peak_bytes <= self._room() and (self.flops_limit is None or plan.flops <= self.flops_limit)

    def _room(self) -> int:
        """Return the bytes that runs may take. Contexts may leave less to some; those have a program of their own."""
        return available_memory() if self.memory_limit is None else self.memory_limit

    def _check_limits(self, plan: ExecutionPlan) -> None:
        if self.computes:
            if self.flops_limit is not None:
                from ..plan.limits import check_flops

                check_flops(plan, self.flops_limit)
            check_memory(plan, self.memory_limit)

    def _evaluate(self, graph: EinsumGraph) -> Sequence[Any]:
        """Run a graph of constants just as it is, for the pass that folds them."""
        plan = build_plan(graph, {}, passes=self.backend.passes)
        self._check_limits(plan)
        return [np.asarray(value) for value in run(bind(plan, self.backend), ())]


def checked_policy(able: BackendCapabilities, native: object, policy: str | None, wrapped: bool) -> str:
    """Return the policy that ``native=`` and ``policy=`` ask for, or refuse what the backend cannot do."""
    if policy is not None and policy not in POLICIES:
        raise InputError(f"there is no policy {value_text(policy)}", *nearest(policy, POLICIES), code="E315")
    if not isinstance(native, bool):
        raise BackendError(f"native= is True or False, got {value_text(native)}", "write native=True", code="E403")
    if (native or policy in ("fast", "adaptive")) and not able.supports("native"):
        argument = f"policy={value_text(policy)}" if native is False else f"native={value_text(native)}"
        message = f"{argument} is not possible: the {able.name} backend makes no machine code"
        raise BackendError(message, 'write native=True with backend="numpy"', code="E403")
    return "exact" if wrapped else policy or ("fast" if native else "exact")


def _groups(graph: EinsumGraph, facts: Facts, policy: str = "exact", lean: bool = False) -> Sequence[Fusable]:
    from ..plan.groups import find_groups  # loaded where a graph is large enough to ask

    return find_groups(graph, facts, policy, lean=lean)


def _relations(types: Types) -> dict[str, TensorType]:
    """Return the types of the inputs that are relations."""
    return {name: t for name, t in types.items() if t.layout == "sparse"}


def _digest(key: Key) -> str:
    """Return a fingerprint of a key that is the same in every process."""
    graph, *rest = key
    return blake2b(f"{graph.digest} {rest}".encode(), digest_size=16).hexdigest()


def _shape_key(t: TensorType) -> tuple[Any, ...]:
    """Return what :meth:`Programs.for_call` tells inputs of one type apart by."""
    if t.layout == "sparse":
        from ..backends.sparse import SparseTensor

        return tuple(t.shape or ()), SparseTensor
    return tuple(t.shape or ()), NUMPY.get(t.dtype or "float64")


def sized_by_inputs(graph: EinsumGraph) -> bool:
    """Tell whether the shapes of inputs fix every size."""
    shapes = [graph.type_of(i).shape or () for i in graph.inputs.values()]
    return graph.size_names <= {d for shape in shapes for d in shape if isinstance(d, str)}


class _Kernels(Hook):
    """Notes the kernels that are compiled while plans are bound."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Note a kernel and how long it took."""
        if name.startswith("compile "):
            self.lines.append(f"{name.removeprefix('compile ')}: kernel ready after {(end_ns - start_ns) / 1e6:.1f} ms")


def _all_steps(plan: ExecutionPlan) -> list[Step]:
    """Return the steps of a plan, and those of its bodies."""
    return [
        found for step in plan.steps for found in (step, *(own for body in step.bodies for own in _all_steps(body)))
    ]
