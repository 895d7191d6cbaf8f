"""The executor: the front door. Give it a graph and inputs; it plans once, binds once, and runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ..backends.base import Backend, BackendCapabilities, get_backend
from ..errors import GraphError, TensorLogicError, expect
from ..events import ExecutionPhase, Hook, entered_contexts, running, watchers
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..passes.pipeline import CompilationConfig, OptimizationLevel
from ..passes.rewrite import Pass
from ..passes.specialize import checked_sizes
from ..plan.build import ExecutionPlan
from ..store import Store, StoreStats, of_one_process
from . import modes
from .call import LastCalls, Wrapper, run_program, same_again
from .context import ExecutionContext, Profiles, context_room, contexts_to_join, hooks_around, joined
from .frame import Frame
from .programs import Programs
from .values import Inputs, Outputs, Sizes, checked_donations, input_arrays, types_of_call

if TYPE_CHECKING:
    from .aio.call_queue import CallQueue
    from .autodiff import Gradients
    from .batch import Way
    from .compile import CompiledGraph
    from .distributed.run import Distributed
    from .jit import Jit
    from .recovery.run import Recovery
    from .strategy import GradientStrategy


class Executor:
    """Runs graphs on a backend; a plan is made on the first call for each combination of input shapes and dtypes.

    ``policy`` says what is compiled to machine code: ``"exact"``, only what gives NumPy's bits and takes long on NumPy; ``"fast"``,
    everything that has a kernel, at the first call (``native=True`` says the same); ``"adaptive"``, what ran often, in the background,
    with the bits it had before. Safe to use from several threads. A result is never overwritten by a later run.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> y = b.einsum("ij,j->i", b.input("w", ("n", "m")), b.input("x", ("m",)))
    >>> Executor().execute(b.build(y=y), {"w": [[1.0, 2.0], [3.0, 4.0]], "x": [1.0, 1.0]})["y"]
    array([3., 7.])
    """

    def __init__(
        self,
        backend: str | Backend = "numpy",
        *,
        context: ExecutionContext | None = None,
        memory_limit: int | None = None,
        flops_limit: int | None = None,
        wrap: Sequence[Wrapper] = (),
        passes: Sequence[Pass] = (),
        plans: int = 256,
        optimization_level: OptimizationLevel | None = None,
        threads: int = 1,
        native: bool = False,
        policy: str | None = None,
    ) -> None:
        self.backend = get_backend(backend)
        if context is None:
            context = ExecutionContext()
            context.entered = False  # nobody else has it yet
        expect(context, ExecutionContext, "an ExecutionContext is expected", "write context=ExecutionContext([hook])")
        self.context = context
        if optimization_level is None:  # a backend that wants no passes runs graphs as they are written
            optimization_level = OptimizationLevel.STANDARD if self.backend.passes else OptimizationLevel.NONE
        self.programs = Programs(
            self.backend,
            self.context,
            CompilationConfig(optimization_level),
            policy=policy,
            native=native,
            threads=threads,
            wrap=wrap,
            passes=passes,
            memory_limit=memory_limit,
            flops_limit=flops_limit,
            bound=plans,
        )
        self.last_calls = LastCalls(plans)
        self.jit: Jit | None = None
        self.gradients: Gradients | None = None
        self.gradient: GradientStrategy | None = None  # of forward, where it is not told another
        self.profiles = Profiles()
        self.call_queues: dict[tuple[int, int], CallQueue] = {}  # of awaited calls, by their limits
        self.recovery: Recovery | None = None
        self.distributed: Distributed | None = None
        self.batches: Store[Any, Way] | None = None  # how items of each kind run in a batch
        self.last_batch: tuple[Any, Way] | None = None  # the key of the last one, and how it ran

    @property
    def config(self) -> CompilationConfig:
        """The optimization level, and what may be turned off."""
        return self.programs.config

    @property
    def native(self) -> bool:
        """Whether everything that has a kernel is compiled at the first call."""
        return self.programs.policy == "fast"

    @property
    def threads(self) -> int:
        """The number of threads that independent chains of steps may run on, where this is measured to be faster."""
        return self.programs.threads

    def capabilities(self) -> BackendCapabilities:
        """Return the devices, dtypes and features of the backend."""
        return self.programs.capabilities

    def execute(
        self,
        graph: EinsumGraph,
        inputs: Inputs | None = None,
        *,
        sizes: Sizes = None,
        out: Inputs | None = None,
        budget: int | None = None,
        donate: Iterable[str] = (),
    ) -> Outputs:
        """Run a graph on inputs given by name and return its outputs; those named in ``out`` are written there.

        With a ``budget`` of bytes, a graph that would take more is run in parts of one index until it fits. The arrays of inputs
        named in ``donate`` may be written over: after the call such an array is an output or holds nothing of use.
        """
        context, programs, around = self.context, self.programs, running.contexts
        entered = context.entered or entered_contexts.get()
        plain, program = sizes is None and budget is None and not donate, None
        contexts = contexts_to_join(context) if entered else None
        if contexts is not None and (len(contexts) > 1 or contexts[0].labels or programs.policy == "adaptive"):
            execute = partial(self.execute, graph, inputs, sizes=sizes, out=out, budget=budget, donate=donate)
            return joined(contexts, context.hooks, execute)
        if plain and programs.policy == "adaptive":
            return self.execute_jit(graph, inputs, out=out)
        try:
            if contexts is not None:
                running.contexts = contexts  # as joined() does, without a call within a call
            watched = entered or around or context.hooks or self.profiles.hooks or watchers()
            hooks = hooks_around(context, self.profiles.hooks) if watched else ()
            if self.profiles.hooks:
                self.profiles.policies.add(programs.policy)
            active = around if contexts is None else contexts
            ready = self.last_calls.get(id(graph)) if plain else None
            if active and ready is not None and (room := context_room(active)) is not None:
                ready = ready if ready.program.peak_bytes <= room else None
            if ready is not None and (again := same_again(ready, graph, inputs)) is not None:
                programs.quick_calls = next(programs.quick)
                program = ready.program
                return run_program(context, program, again, out, hooks, active)
            names, values = self.arrays(graph, {} if inputs is None else inputs)
            own = checked_donations(graph, donate) if donate else ()
            known = None if sizes is None else checked_sizes(graph, sizes)
            program = programs.for_call(graph, names, values, known, budget, own)
            if plain and program.trusted and context_room(active) is None:
                self.last_calls.remember(graph, names, values, program)
            return run_program(context, program, values, out, hooks, active)
        except BaseException as error:
            context.notify(ExecutionPhase.ERROR)
            if isinstance(error, TensorLogicError) and program is not None:
                from .locations import point_at

                key = programs.store.key_of(program)
                point_at(graph, error, made_for=graph if key is None else key[0])
            if isinstance(error, GraphError) and error.diagnostic.code == "E125" and inputs is not None:
                from ..lang.context import blamed_score

                raise blamed_score(error, graph, inputs) from error.__cause__
            raise
        finally:
            if contexts is not None:
                running.contexts = around

    def frame(self, graph: EinsumGraph, inputs: Inputs | None = None) -> Frame:
        """Return a run that stands before its first step and is taken on step by step; it can be saved and loaded."""
        names, values = self.arrays(graph, {} if inputs is None else inputs)
        program = self.programs.for_call(graph, names, values, None)
        frame = Frame(program, values)
        key = self.programs.store.key_of(program)
        if key is not None and key[0] is not graph:
            frame.graphs = graph, key[0]
        return frame

    def plan(
        self, graph: EinsumGraph, inputs: Inputs | None = None, *, sizes: Sizes = None, budget: int | None = None
    ) -> ExecutionPlan:
        """Return the plan that runs for given inputs; without them, for the declared types, ``sizes`` and float32 by default."""
        return self.programs.plan(graph, self.input_types(graph, inputs, sizes), sizes, budget)

    def compile_graph(
        self,
        graph: EinsumGraph,
        config: CompilationConfig | None = None,
        *,
        sizes: Sizes = None,
        example: Inputs | None = None,
    ) -> CompiledGraph:
        """Optimize a graph once, to run it many times; with ``sizes`` (or none to give) or an ``example`` it is planned at once.

        Where several plans compete, the fastest is measured: on the example, or on inputs that are made up.
        """
        from .compile import compile_for

        return compile_for(self, graph, self.config if config is None else config, sizes, example)

    execute_compiled = modes.execute_compiled
    execute_jit, get_jit_stats, clear_jit_cache = modes.execute_jit, modes.get_jit_stats, modes.clear_jit_cache
    execute_batch, execute_batch_parallel = modes.execute_batch, modes.execute_batch_parallel
    optimal_batch_size, variable = modes.optimal_batch_size, modes.variable
    forward, backward, get_gradients = modes.forward, modes.backward, modes.get_gradients
    execute_stream, execute_chunk = modes.execute_stream, modes.execute_chunk
    execute_async, execute_batch_async = modes.execute_async, modes.execute_batch_async
    execute_stream_async, execute_with_recovery = modes.execute_stream_async, modes.execute_with_recovery
    execute_distributed, get_distributed_stats = modes.execute_distributed, modes.get_distributed_stats
    plan_distributed = modes.plan_distributed
    save_checkpoint, load_checkpoint = modes.save_checkpoint, modes.load_checkpoint
    enable_profiling, disable_profiling = modes.enable_profiling, modes.disable_profiling
    get_profile_data = modes.get_profile_data

    def cache_stats(self) -> StoreStats:
        """Return how often a plan was found ready."""
        return self.programs.stats()

    def explain(self) -> str:
        """Say of each plan that is ready how it runs, why, and which kernels were compiled for it."""
        return self.programs.explain()

    def hooks(self) -> tuple[Hook, ...]:
        """Return those who watch the runs of this executor now."""
        return hooks_around(self.context, self.profiles.hooks)

    def arrays(self, graph: EinsumGraph, inputs: Inputs) -> tuple[list[str], list[Any]]:
        """Return the names of a graph's inputs and what is given for them as arrays of the backend."""
        return input_arrays(graph, inputs, self.backend, relations=self.programs.facts is not None)

    def input_types(self, graph: EinsumGraph, inputs: Inputs | None, sizes: Sizes) -> dict[str, TensorType]:
        """Return the types of all inputs: of those given, else as declared."""
        return types_of_call(graph, inputs, sizes, self.backend, relations=self.programs.facts is not None)

    def __reduce__(self) -> NoReturn:
        raise of_one_process("an executor", "make one in each process: Executor()")


class DummyExecutor(Executor):
    """An executor that only works out shapes: outputs have the right shape and dtype and take no memory.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> y = b.einsum("ij,jk->ik", b.input("w", ("n", "m")), b.input("x", ("m", "k")))
    >>> import numpy as np
    >>> DummyExecutor().execute(b.build(y=y), {"w": np.ones((20, 30)), "x": np.ones((30, 7))})["y"].shape
    (20, 7)
    """

    def __init__(self) -> None:
        super().__init__("null")
