"""The execution traits, as protocols: what a backend or executor may offer, by name and signature.

Any object with the methods satisfies a protocol; ``isinstance`` checks that they are there. Config and result types of
capabilities that stand elsewhere are named as strings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..backends.base import BackendCapabilities
    from ..ir.graph import EinsumGraph

Tensors = Mapping[str, Any]


@runtime_checkable
class TlExecutor(Protocol):
    """Runs a graph forward.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlExecutor)
    True
    """

    def execute(self, graph: EinsumGraph, inputs: Tensors) -> Sequence[Any]:
        """Run a graph on named inputs and return its outputs."""


@runtime_checkable
class TlAutodiff(TlExecutor, Protocol):
    """Runs a graph forward and backward.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlAutodiff)
    True
    """

    def forward(self, graph: EinsumGraph, inputs: Tensors) -> Sequence[Any]:
        """Run forward and keep what the backward pass needs."""

    def backward(self, outputs: Sequence[Any], output_grads: Sequence[Any]) -> None:
        """Run backward from the gradients of the outputs."""

    def get_gradients(self) -> Mapping[str, Any]:
        """Return the gradients of the inputs by name."""


@runtime_checkable
class TlEagerAutodiff(Protocol):
    """Runs operations at once and records them for gradients.

    >>> from tensorlogic import EagerTape
    >>> isinstance(EagerTape(), TlEagerAutodiff)
    True
    """

    def variable(self, value: Any, *, requires_grad: bool | None = None) -> Any:
        """Return a value whose operations are recorded."""

    def backward(self, variable: Any, grad: Any = None) -> None:
        """Fill in the gradients of all that a variable was computed from."""


@runtime_checkable
class TlBatchExecutor(TlExecutor, Protocol):
    """Runs one graph on many inputs.

    >>> hasattr(TlBatchExecutor, "optimal_batch_size")
    True
    """

    def execute_batch(self, graph: EinsumGraph, batch_inputs: Sequence[Tensors]) -> Any:
        """Run every item and return a BatchResult."""

    def execute_batch_parallel(
        self, graph: EinsumGraph, batch_inputs: Sequence[Tensors], num_threads: int | None = None
    ) -> Any:
        """Run the items on several threads and return a BatchResult."""

    def optimal_batch_size(self, graph: EinsumGraph) -> int:
        """Return how many items are best run at once."""


@runtime_checkable
class TlStreamingExecutor(Protocol):
    """Runs one graph over a stream of chunks.

    >>> hasattr(TlStreamingExecutor, "execute_chunk")
    True
    """

    def execute_stream(self, graph: EinsumGraph, input_stream: Iterable[Any], config: Any) -> Any:
        """Run every chunk and return the StreamResults; config is a StreamingConfig."""

    def execute_chunk(self, graph: EinsumGraph, chunk_inputs: Any, metadata: Any) -> Any:
        """Run one chunk described by a ChunkMetadata and return its StreamResult."""


@runtime_checkable
class TlCompilableExecutor(TlExecutor, Protocol):
    """Compiles a graph ahead of time.

    >>> hasattr(TlCompilableExecutor, "compile_graph")
    True
    """

    def compile_graph(self, graph: EinsumGraph, config: Any = None) -> Any:
        """Return a CompiledGraph; config is a CompilationConfig."""

    def execute_compiled(self, compiled: Any, inputs: Tensors) -> Sequence[Any]:
        """Run a CompiledGraph."""


@runtime_checkable
class TlJitExecutor(TlExecutor, Protocol):
    """Compiles what turns out to be hot.

    >>> hasattr(TlJitExecutor, "get_jit_stats")
    True
    """

    def execute_jit(self, graph: EinsumGraph, inputs: Tensors, config: Any = None) -> Sequence[Any]:
        """Run a graph, compiling it once it is hot; config is a JitConfig."""

    def get_jit_stats(self) -> Any:
        """Return the JitStats so far."""

    def clear_jit_cache(self) -> None:
        """Forget what was compiled."""


@runtime_checkable
class TlDistributedExecutor(Protocol):
    """Runs one graph on several devices.

    >>> hasattr(TlDistributedExecutor, "get_distributed_stats")
    True
    """

    def execute_distributed(self, graph: EinsumGraph, inputs: Tensors, config: Any) -> Sequence[Any]:
        """Run a graph split as a DistributedConfig says."""

    def get_distributed_stats(self) -> Any:
        """Return the DistributedStats of the last run."""


@runtime_checkable
class TlRecoverableExecutor(TlExecutor, Protocol):
    """Survives failures.

    >>> hasattr(TlRecoverableExecutor, "save_checkpoint")
    True
    """

    def execute_with_recovery(self, graph: EinsumGraph, inputs: Tensors, config: Any) -> Any:
        """Run a graph as a RecoveryConfig says and return a RecoveryResult."""

    def save_checkpoint(self, path: str) -> None:
        """Write the state of the run to a file."""

    def load_checkpoint(self, path: str) -> None:
        """Take up the state of a run from a file."""


@runtime_checkable
class TlCapabilities(Protocol):
    """Says what it can do.

    >>> from tensorlogic import Executor
    >>> isinstance(Executor(), TlCapabilities)
    True
    """

    def capabilities(self) -> BackendCapabilities:
        """Return devices, dtypes and features."""


@runtime_checkable
class TlProfiledExecutor(TlExecutor, Protocol):
    """Measures what it runs.

    >>> hasattr(TlProfiledExecutor, "get_profile_data")
    True
    """

    def enable_profiling(self) -> None:
        """Start measuring."""

    def disable_profiling(self) -> None:
        """Stop measuring."""

    def get_profile_data(self) -> Any:
        """Return the ProfileData gathered so far."""


@runtime_checkable
class TlAsyncExecutor(Protocol):
    """Runs a graph without blocking the event loop.

    >>> hasattr(TlAsyncExecutor, "execute_async")
    True
    """

    def execute_async(self, graph: EinsumGraph, inputs: Tensors) -> Awaitable[Sequence[Any]]:
        """Start a run; await it for the outputs, or cancel it."""


@runtime_checkable
class TlAsyncBatchExecutor(TlAsyncExecutor, Protocol):
    """Runs one graph on many inputs without blocking.

    >>> hasattr(TlAsyncBatchExecutor, "execute_batch_async")
    True
    """

    def execute_batch_async(self, graph: EinsumGraph, batch_inputs: Sequence[Tensors]) -> Awaitable[Any]:
        """Start a batch; await it for the BatchResult."""


@runtime_checkable
class TlAsyncStreamExecutor(TlAsyncExecutor, Protocol):
    """Runs one graph over a stream without blocking.

    >>> hasattr(TlAsyncStreamExecutor, "execute_stream_async")
    True
    """

    def execute_stream_async(
        self, graph: EinsumGraph, input_stream: AsyncIterator[Any], config: Any
    ) -> AsyncIterator[Any]:
        """Yield a StreamResult per chunk, with back-pressure as an AsyncConfig says."""
