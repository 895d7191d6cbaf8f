"""The execution traits, as protocols: what a backend or executor may offer, by name and signature.

Any object with the methods satisfies a protocol; ``isinstance`` checks that they are there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .. import ProfileData
    from ..backends.base import BackendCapabilities
    from ..ir.graph import EinsumGraph
    from ..passes.pipeline import CompilationConfig
    from .batch_result import BatchResult
    from .compile import CompiledGraph
    from .jit import JitConfig, JitStats
    from .recovery.config import RecoveryConfig, RecoveryResult
    from .streams.processor import ChunkMetadata, StreamResult
    from .streams.stream import StreamingConfig

Tensors = Mapping[str, Any]


@runtime_checkable
class TlExecutor(Protocol):
    """Runs a graph on named inputs and returns its outputs.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlExecutor)
    True
    """

    def execute(self, graph: EinsumGraph, inputs: Tensors) -> Sequence[Any]: ...


@runtime_checkable
class TlAutodiff(TlExecutor, Protocol):
    """Runs a graph forward, keeping what the gradient needs, and back from the gradients of its outputs.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlAutodiff)
    True
    """

    def forward(self, graph: EinsumGraph, inputs: Tensors) -> Sequence[Any]: ...
    def backward(self, outputs: Sequence[Any], output_grads: Sequence[Any]) -> None: ...
    def get_gradients(self) -> Mapping[str, Any]: ...  # of the inputs, by name


@runtime_checkable
class TlEagerAutodiff(Protocol):
    """Runs operations at once and records them, so that ``backward`` fills in the gradients of what was computed from.

    >>> from tensorlogic import EagerTape
    >>> isinstance(EagerTape(), TlEagerAutodiff)
    True
    """

    def variable(self, value: Any, *, requires_grad: bool | None = None) -> Any: ...
    def backward(self, variable: Any, grad: Any = None) -> None: ...


@runtime_checkable
class TlBatchExecutor(TlExecutor, Protocol):
    """Runs one graph on many inputs, as one more index or on threads, and says how many are best run at once.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlBatchExecutor)
    True
    """

    def execute_batch(self, graph: EinsumGraph, batch_inputs: Sequence[Tensors]) -> BatchResult: ...
    def execute_batch_parallel(
        self, graph: EinsumGraph, batch_inputs: Sequence[Tensors], num_threads: int | None = None
    ) -> BatchResult: ...
    def optimal_batch_size(self, graph: EinsumGraph) -> int: ...


@runtime_checkable
class TlStreamingExecutor(Protocol):
    """Runs one graph over a stream of chunks: a StreamingConfig and ChunkMetadata go in, StreamResults come out.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlStreamingExecutor)
    True
    """

    def execute_stream(
        self, graph: EinsumGraph, input_stream: Iterable[Any], config: StreamingConfig
    ) -> Iterable[StreamResult]: ...
    def execute_chunk(self, graph: EinsumGraph, chunk_inputs: Tensors, metadata: ChunkMetadata) -> StreamResult: ...


@runtime_checkable
class TlCompilableExecutor(TlExecutor, Protocol):
    """Compiles a graph ahead of time.

    >>> hasattr(TlCompilableExecutor, "compile_graph")
    True
    """

    def compile_graph(self, graph: EinsumGraph, config: CompilationConfig | None = None) -> CompiledGraph: ...
    def execute_compiled(self, compiled: CompiledGraph, inputs: Tensors) -> Sequence[Any]: ...


@runtime_checkable
class TlJitExecutor(TlExecutor, Protocol):
    """Runs a graph at once, and compiles it once it is hot.

    >>> hasattr(TlJitExecutor, "get_jit_stats")
    True
    """

    def execute_jit(self, graph: EinsumGraph, inputs: Tensors, config: JitConfig | None = None) -> Sequence[Any]: ...
    def get_jit_stats(self) -> JitStats: ...
    def clear_jit_cache(self) -> None: ...


@runtime_checkable
class TlDistributedExecutor(Protocol):
    """Runs one graph on several devices, split as a DistributedConfig says.

    >>> hasattr(TlDistributedExecutor, "get_distributed_stats")
    True
    """

    def execute_distributed(self, graph: EinsumGraph, inputs: Tensors, config: Any) -> Sequence[Any]: ...
    def get_distributed_stats(self) -> Any: ...  # the DistributedStats of the last run


@runtime_checkable
class TlRecoverableExecutor(TlExecutor, Protocol):
    """Survives failures as a RecoveryConfig says, and keeps what is left of a run in a folder.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlRecoverableExecutor)
    True
    """

    def execute_with_recovery(self, graph: EinsumGraph, inputs: Tensors, config: RecoveryConfig) -> RecoveryResult: ...
    def save_checkpoint(self, path: str) -> int: ...  # the number of the checkpoint
    def load_checkpoint(self, path: str) -> int: ...


@runtime_checkable
class TlCapabilities(Protocol):
    """Says what it can do: devices, dtypes and features.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlCapabilities)
    True
    """

    def capabilities(self) -> BackendCapabilities: ...


@runtime_checkable
class TlProfiledExecutor(TlExecutor, Protocol):
    """Measures what it runs while profiling is enabled.

    >>> hasattr(TlProfiledExecutor, "get_profile_data")
    True
    """

    def enable_profiling(self) -> None: ...
    def disable_profiling(self) -> None: ...
    def get_profile_data(self) -> ProfileData: ...


@runtime_checkable
class TlAsyncExecutor(Protocol):
    """Runs a graph without blocking the event loop: await it for the outputs, or cancel it.

    >>> hasattr(TlAsyncExecutor, "execute_async")
    True
    """

    def execute_async(self, graph: EinsumGraph, inputs: Tensors) -> Awaitable[Sequence[Any]]: ...


@runtime_checkable
class TlAsyncBatchExecutor(TlAsyncExecutor, Protocol):
    """Runs one graph on many inputs without blocking; await it for the BatchResult.

    >>> hasattr(TlAsyncBatchExecutor, "execute_batch_async")
    True
    """

    def execute_batch_async(self, graph: EinsumGraph, batch_inputs: Sequence[Tensors]) -> Awaitable[Any]: ...


@runtime_checkable
class TlAsyncStreamExecutor(TlAsyncExecutor, Protocol):
    """Runs one graph over a stream without blocking: a StreamResult per chunk, back-pressure as an AsyncConfig says.

    >>> hasattr(TlAsyncStreamExecutor, "execute_stream_async")
    True
    """

    def execute_stream_async(
        self, graph: EinsumGraph, input_stream: AsyncIterator[Any], config: Any
    ) -> AsyncIterator[Any]: ...
