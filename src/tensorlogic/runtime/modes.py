"""Ways to run beside ``execute``: compiled, by the JIT, in batches, with gradients, profiled. Each is a method of the executor.

Each function loads the module of its mode when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from ..errors import BackendError, expect, expect_whole
from ..ir.graph import EinsumGraph
from .values import Inputs, Outputs, Sizes

if TYPE_CHECKING:
    from random import Random

    from .. import ProfileData
    from .aio.call_queue import AsyncHandle
    from .aio.calls import AsyncConfig
    from .aio.streams import AsyncStream
    from .autodiff import Gradients
    from .batch_result import BatchResult
    from .compile import CompiledGraph
    from .distributed.config import DistributedConfig
    from .distributed.plan import DistributedPlan
    from .distributed.run import Distributed
    from .distributed.stats import DistributedStats
    from .eager.variable import Variable
    from .executor import Executor
    from .jit import Jit, JitConfig, JitStats
    from .recovery.config import RecoveryConfig, RecoveryResult
    from .strategy import GradientStrategy
    from .streams.processor import ChunkMetadata, StreamResult
    from .streams.stream import Stream, StreamingConfig


def execute_compiled(
    executor: Executor,
    compiled: CompiledGraph,
    inputs: Inputs | None = None,
    *,
    sizes: Sizes = None,
    out: Inputs | None = None,
) -> Outputs:
    """Run a compiled graph; it may have been compiled by another executor of the same backend."""
    from .compile import CompiledGraph

    if type(compiled) is not CompiledGraph:
        expect(compiled, CompiledGraph, "a CompiledGraph is expected", "executor.compile_graph(graph) makes one")
    theirs, ours = compiled.executor.backend.name, executor.backend.name
    if theirs != ours:
        hint = "compile it with this executor: executor.compile_graph(graph)"
        raise BackendError(f"the graph was compiled for {theirs}, this executor runs {ours}", hint, code="E405")
    return compiled(inputs, sizes=sizes, out=out)


def execute_batch(
    executor: Executor,
    graph: EinsumGraph,
    batch_inputs: Iterable[Inputs],
    *,
    distributed: DistributedConfig | None = None,
) -> BatchResult:
    """Run a graph on many items, each a mapping of inputs: those whose shapes agree as one more index, the others by groups.

    An array that is the same object in all items is not stacked. An item that fails does so alone: its error stands in ``errors``
    of the result, and the other items are there. With ``distributed`` the items are shared by the devices of a config.
    """
    from .batch import execute_batch

    return execute_batch(executor, graph, batch_inputs, distributed=distributed)


def execute_batch_parallel(
    executor: Executor, graph: EinsumGraph, batch_inputs: Iterable[Inputs], num_threads: int | None = None
) -> BatchResult:
    """Run a graph on many items as :func:`execute_batch` does, in parts on threads: as many as BLAS may use by default."""
    from ..backends.threads import workers
    from .batch import execute_batch

    if num_threads is not None:
        expect_whole("num_threads", num_threads, 1)
    return execute_batch(executor, graph, batch_inputs, num_threads or workers())


def optimal_batch_size(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None = None,
    *,
    sizes: Sizes = None,
    shared: str | Sequence[str] = (),
    memory_limit: int | None = None,
    most: int = 4096,
    seconds: float = 1.0,
    clock: Callable[[], float] = perf_counter,
) -> int:
    """Return how many items are best run at once: measured here, within ``memory_limit`` (or half of what is free).

    ``inputs`` are those of one item; missing ones are made up, with 16 for a size that is not given. ``shared`` names inputs that
    are the same for all items. Sizes up to ``most`` are timed, for about ``seconds`` in all.
    """
    from .batch_size import optimal_batch_size

    return optimal_batch_size(executor, graph, inputs, sizes, shared, memory_limit, most, seconds, clock)


def execute_jit(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None = None,
    config: JitConfig | None = None,
    *,
    sizes: Sizes = None,
    out: Inputs | None = None,
) -> Outputs:
    """Run a graph at once; once it ran often it is compiled in the background, and the fastest plan takes over.

    The answers keep their bits, unless the config says ``exact=False``: see docs/guides/native.md.
    """
    return _jit(executor, config).execute(graph, inputs, sizes, out)


def get_jit_stats(executor: Executor) -> JitStats:
    """Return what the JIT did so far."""
    return _jit(executor).stats()


def clear_jit_cache(executor: Executor) -> None:
    """Forget what the JIT compiled and counted."""
    _jit(executor).clear()


def _jit(executor: Executor, config: JitConfig | None = None) -> Jit:
    if executor.jit is None or (config is not None and config != executor.jit.config):
        from .jit import Jit, JitConfig

        config = JitConfig() if config is None else config
        expect(config, JitConfig, "a JitConfig is expected", "write JitConfig().with_hot_path_threshold(10)")
        executor.jit = Jit(executor, config)
    return executor.jit


def execute_async(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None = None,
    config: AsyncConfig | None = None,
    **options: Any,
) -> AsyncHandle[Outputs]:
    """Run a graph on a worker thread and return a handle: await it for the outputs, or ``cancel()`` it.

    The options are those of :meth:`execute`. Inputs are not copied: they must not change before the call is done. See
    docs/guides/async.md.
    """
    from .aio.calls import execute_async

    return execute_async(executor, graph, inputs, config, options)


def execute_batch_async(
    executor: Executor,
    graph: EinsumGraph,
    batch_inputs: Iterable[Inputs],
    config: AsyncConfig | None = None,
    **options: Any,
) -> AsyncHandle[BatchResult]:
    """Run a graph on many inputs on a worker thread and return a handle: await it for what :meth:`execute_batch` returns.

    With ``num_threads=`` it is what :meth:`execute_batch_parallel` returns.
    """
    from .aio.calls import execute_batch_async

    return execute_batch_async(executor, graph, batch_inputs, config, options)


def execute_stream_async(
    executor: Executor, graph: EinsumGraph, source: Any, config: AsyncConfig | None = None, **options: Any
) -> AsyncStream:
    """Run a graph over an async iterable of chunks, or any source of :meth:`execute_stream`, and return an async iterator of results.

    Of an async iterable each chunk gives one result; the options are ``inputs`` and ``over``. Other sources take all options of
    :meth:`execute_stream`, and its config as ``streaming``. No more than ``config.backpressure_threshold`` chunks are taken in ahead.
    """
    from .aio.calls import checked_config
    from .aio.streams import execute_stream_async

    return execute_stream_async(executor, graph, source, checked_config(config), options)


def forward(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None = None,
    *,
    wrt: Sequence[str] | str | None = None,
    strategy: GradientStrategy | None = None,
    budget: int | None = None,
) -> Outputs:
    """Run a graph and keep what :meth:`backward` needs: every value, or what the strategy or a budget of bytes says.

    Inputs that the backward run reads are copied, so they may change before it. An output that the gradient reads is read-only: copy
    it to change it.
    """
    strategy = executor.gradient if strategy is None and budget is None else strategy
    return _gradients(executor).forward(executor, graph, {} if inputs is None else inputs, wrt, strategy, budget)


def backward(
    executor: Executor, outputs: Sequence[Any] | Variable, output_grads: Any = None, *, accumulate: bool = False
) -> None:
    """Go back from the outputs of :meth:`forward` (or from a ``Variable``) by the gradients of a loss for them."""
    from .eager.variable import Variable

    if isinstance(outputs, Variable):
        from .eager.backward import backward

        return backward(outputs, output_grads, executor=executor)
    return _gradients(executor).backward(executor, outputs, output_grads, accumulate)


def get_gradients(executor: Executor) -> dict[str, Any]:
    """Return what :meth:`backward` found last on this thread: by name, the gradients for the inputs."""
    return _gradients(executor).latest()


def _gradients(executor: Executor) -> Gradients:
    from .autodiff import Gradients

    if executor.gradients is None:
        executor.gradients = Gradients()
    return executor.gradients


def execute_stream(
    executor: Executor,
    graph: EinsumGraph,
    source: Any,
    config: StreamingConfig | None = None,
    *,
    inputs: Inputs | None = None,
    over: str | Mapping[str, int] | None = None,
    sink: Any = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    distributed: DistributedConfig | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Stream:
    """Run a graph over a source, chunk by chunk, and return an iterator of results: see docs/guides/streaming.md.

    ``source`` is an iterable of chunks, arrays by name, a file, or an Arrow table or dataset; ``inputs`` are those that are whole, such as
    weights; ``over`` names the size, the input or the axes that are streamed. Outputs that keep the streamed index come with each
    result and go into the ``sink``, a file; the others are ``stream.outputs``. ``checkpoint`` is a folder that the state is saved
    in, so that another process can ``resume``. With ``distributed`` the rows of each chunk are shared by the devices of a config.
    """
    from .streams.stream import execute_stream

    return execute_stream(
        executor,
        graph,
        source,
        config,
        inputs=inputs,
        over=over,
        sink=sink,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
        distributed=distributed,
        clock=clock,
    )


def execute_chunk(executor: Executor, graph: EinsumGraph, inputs: Inputs, metadata: ChunkMetadata) -> StreamResult:
    """Run a graph on the inputs of one chunk, as it is, and return the result with the chunk's metadata."""
    from .streams.stream import execute_chunk

    return execute_chunk(executor, graph, inputs, metadata)


def variable(executor: Executor, value: Any, *, requires_grad: bool | None = None) -> Variable:
    """Return a value whose operations run at once and are recorded."""
    from .eager.variable import Variable

    return Variable(value, requires_grad=requires_grad)


def execute_with_recovery(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None = None,
    config: RecoveryConfig | None = None,
    *,
    clock: Callable[[], float] = monotonic,
    sleep: Callable[[float], object] = sleep,
    rng: Random | None = None,
) -> RecoveryResult:
    """Run a graph and survive failures as a config says: retry, fall back, leave out what is optional, go on from a checkpoint.

    What fails while it is planned and run is returned as a ``RecoveryResult.Failure``. Cancellation and deadlines are
    raised, and so is what is wrong before: a config, an input that is missing, a folder that another run uses.
    """
    from .recovery.config import RecoveryConfig
    from .recovery.run import execute_with_recovery

    chosen = RecoveryConfig() if config is None else config
    return execute_with_recovery(
        executor, graph, {} if inputs is None else inputs, chosen, clock=clock, sleep=sleep, rng=rng
    )


def execute_distributed(
    executor: Executor, graph: EinsumGraph, inputs: Inputs | None, config: DistributedConfig
) -> Outputs:
    """Run a graph on several devices, as a config says, and return its outputs, whole: see docs/guides/distributed.md."""
    given = {} if inputs is None else inputs
    outputs = distributed_of(executor).execute(executor, graph, given, config)
    if graph.scores and executor.programs.scores_unseen(graph):  # after the run, in which ranks that are scripts meet
        executor.programs.look_at_scores(graph, zip(*executor.arrays(graph, given), strict=True))
    return outputs


def plan_distributed(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Inputs | None = None,
    config: DistributedConfig | None = None,
    *,
    sizes: Sizes = None,
) -> DistributedPlan:
    """Return what each rank computes, sends and waits for; without inputs, for the declared types and ``sizes``."""
    from .distributed.plan import plan_ranks

    return plan_ranks(executor, graph, inputs, config, sizes)


def get_distributed_stats(executor: Executor) -> DistributedStats:
    """Return where the time of the last distributed run went."""
    return distributed_of(executor).stats


def distributed_of(executor: Executor) -> Distributed:
    """Return what an executor keeps of its distributed runs."""
    from .distributed.run import Distributed

    if executor.distributed is None:
        executor.distributed = Distributed()
    return executor.distributed


def save_checkpoint(executor: Executor, path: str | Path) -> int:
    """Write what is left of the last run with recovery into a folder of checkpoints, even of one that failed; return the number."""
    from .recovery.run import save_checkpoint

    return save_checkpoint(executor, path)


def load_checkpoint(executor: Executor, path: str | Path) -> int:
    """Let the next run with recovery go on from the newest good checkpoint in a folder; return its number.

    It may have been saved by another process, at another optimization level or on another backend.
    """
    from .recovery.run import load_checkpoint

    return load_checkpoint(executor, path)


def enable_profiling(executor: Executor) -> None:
    """Start a new profile of what this executor runs; one that is being made already goes on."""
    from .. import Trace

    profiles = executor.profiles
    if not profiles.hooks:
        profiles.trace, profiles.policies = Trace(), set()
        profiles.hooks = (profiles.trace,)


def disable_profiling(executor: Executor) -> None:
    """Stop profiling; what was measured stays to be read."""
    executor.profiles.hooks = ()


def get_profile_data(executor: Executor) -> ProfileData:
    """Return the ``ProfileData`` of the runs since profiling was enabled; of none, an empty one."""
    from .. import ProfileData

    profiles = executor.profiles
    compiled = profiles.policies == {"fast"}
    return ProfileData() if profiles.trace is None else ProfileData.from_trace(profiles.trace, compiled=compiled)
