"""Streams for event loops: chunks come from an async iterable or any source, and are computed on a worker thread."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...errors import CancelledError, InputError, TensorLogicError
from ...events import span
from ...store import Lock
from ..streams.blocks import empty_source
from ..streams.processor import ChunkMetadata, Computed, StreamProcessor, StreamResult
from ..streams.reader import Chunk
from ..streams.stream import Stream
from ..values import Outputs
from .call_queue import AsyncHandle, CallQueue
from .calls import AsyncConfig, queue_of, run_async
from .signals import Signal, patience, spawn

if TYPE_CHECKING:
    from ..executor import Executor

END = object()  # comes after the last chunk
CLOSING = 5.0  # seconds that a task which is cancelled waits for its stream to end


class _Feed:
    """What goes on behind an async stream: calls for chunks that were taken in and not handed out yet, in order."""

    def __init__(self, queue: CallQueue, config: AsyncConfig) -> None:
        self.queue = queue  # of the executor: chunks of all its streams, and its other calls, share the limit
        self.timeout, self.most = config.timeout, max(1, config.backpressure_threshold)
        self.calls: deque[AsyncHandle[Any]] = deque()
        self.stopping: list[AsyncHandle[Any]] = []  # what may still run after the stream was closed
        self.changed, self.ended = Signal(), Signal()
        self.closed = False
        self.taken, self.failed = 0, math.inf  # how many calls there were, and the first of them that failed
        self.cancel: Callable[[], object] | None = None
        self.asked = 0  # results that the reader came for
        self.hand_out: Callable[[], object] = bool  # told of each result that the reader has
        self.abandoned = False  # whether the reader may not be done with the last of them

    def call(self, function: Callable[[], Any]) -> AsyncHandle[Any]:
        """Take a call in, and tell whoever waits for one."""
        work = partial(self._unless_failed, function, self.taken)
        self.taken += 1
        handle = AsyncHandle(self.queue, work, self.timeout).begin()
        self.calls.append(handle)
        self.tell()
        return handle

    def _unless_failed(self, function: Callable[[], Any], number: int) -> Any:
        if self.failed < number:
            raise CancelledError("the stream ended with an error before this chunk", code="E980")
        try:
            return function()
        except BaseException:
            self.failed = min(self.failed, number)
            raise

    def tell(self) -> None:
        """Wake whoever waits for a change."""
        changed, self.changed = self.changed, Signal()
        changed.set()

    async def room(self) -> None:
        """Wait while as many chunks are taken in as may be."""
        while len(self.calls) >= self.most:
            await self.changed.wait()

    async def asked_for(self, number: int) -> None:
        """Wait until the reader came for a result, and so is done with the one before."""
        while self.asked <= number:
            await self.changed.wait()

    def forget(self) -> None:
        """Stop for a reader that may not be done with the result that it has."""
        if not self.closed:
            self.abandoned = True
            self.shut()

    def shut(self) -> None:
        """Stop taking chunks in, and cancel those that are."""
        self.closed = True
        if self.cancel is not None:
            self.cancel()
        for handle in self.calls:
            handle.cancel("the stream was closed")
        self.stopping += self.calls
        self.calls.clear()
        self.tell()


class AsyncStream(AsyncIterator[StreamResult]):
    """The results of a graph over a source, chunk by chunk, for ``async for``; ``outputs`` are those of the whole stream.

    Each chunk of an async iterable gives one result, as it comes, and up to ``max_concurrent`` of them are computed at one time; other
    sources are cut as ``execute_stream`` cuts them, read ahead on a thread, and computed one by one. Results come in order, and totals are added up in
    order. Stopping early closes the source; ``async with`` and :meth:`aclose` wait for it.

    >>> import asyncio, numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", ("n",))
    >>> graph = b.build(double=x * 2, mean=b.mean(x))
    >>> async def numbers():
    ...     for n in range(3):
    ...         yield {"x": np.array([n, n + 1.0])}
    >>> async def main():
    ...     async with tl.Executor().execute_stream_async(graph, numbers()) as stream:
    ...         async for result in stream:
    ...             print(result.metadata.chunk_id, result.outputs["double"])
    ...     return stream.outputs["mean"]
    >>> asyncio.run(main())
    0 [0. 2.]
    1 [2. 4.]
    2 [4. 6.]
    array(1.5)
    """

    def __init__(self, feed: _Feed, run: Callable[[_Feed], Any], outputs: Callable[[], Outputs]) -> None:
        self._feed, self._run, self._outputs = feed, run, outputs
        self._state = "new"  # then "open", "done"
        weakref.finalize(self, self._feed.forget).atexit = False  # a consumer that stops early and forgets about it

    @property
    def outputs(self) -> Outputs:
        """The outputs of the whole stream, over the chunks so far."""
        return self._outputs()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamResult:
        feed = self._feed
        feed.asked += 1
        feed.tell()
        if self._state == "new":
            self._state, feed.cancel = "open", spawn(partial(_take_in, feed, self._run))
        try:
            while not feed.calls and not feed.closed and self._state == "open":
                await feed.changed.wait()
            if feed.closed or self._state == "done":
                raise StopAsyncIteration
            result = await feed.calls[0]
        except BaseException:
            self._state = "done"
            feed.shut()
            raise
        if feed.calls:  # unless it was closed meanwhile
            feed.calls.popleft()
        feed.tell()
        if result is END:
            self._state = "done"
            raise StopAsyncIteration
        feed.hand_out()
        found: StreamResult = result
        return found

    async def result(self) -> Outputs:
        """Run to the end and return the outputs of the whole stream."""
        async for _ in self:
            pass
        return self.outputs

    async def aclose(self) -> None:
        """Stop: close the source, and return when nothing of the stream runs any more; a task that is cancelled waits seconds at most."""
        begun, self._state = self._state != "new", "done"
        if begun:
            self._feed.shut()
        try:
            await self._stopped(begun)
        except BaseException:
            if (scope := patience(CLOSING)) is not None:
                with scope:  # so that the source and the folder of checkpoints are free after it
                    await self._stopped(begun)
            raise

    async def _stopped(self, begun: bool) -> None:
        if begun:
            await self._feed.ended.wait()
        for handle in self._feed.stopping:
            await handle.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._feed.forget()
        await self.aclose()


async def _take_in(feed: _Feed, run: Callable[[_Feed], Any]) -> None:
    """Take chunks in until there are no more; what goes wrong is told in the place of the next chunk."""
    try:
        await run(feed)
    except Exception as error:
        if not feed.closed:
            feed.call(partial(_raise, error))
    finally:
        feed.ended.set()


def _raise(error: Exception) -> None:
    raise error


def execute_stream_async(
    executor: Executor, graph: Any, source: Any, config: AsyncConfig, options: dict[str, Any]
) -> AsyncStream:
    """Return the async stream of a graph over a source."""
    feed = _Feed(queue_of(executor, config), config)
    if hasattr(source, "__aiter__"):
        if wrong := options.keys() - {"inputs", "over"}:
            hint = "take inputs= and over=, or give a source that can be read from a thread"
            raise InputError(f"chunks of an async iterable come as they are: no {min(wrong)}=", hint, code="E563")
        processor = StreamProcessor(executor, graph, **options)
        return AsyncStream(feed, partial(_async_chunks, source, processor), lambda: processor.outputs)
    stream = executor.execute_stream(graph, source, options.pop("streaming", None), **options)
    feed.most = min(feed.most, max(1, stream.config.prefetch))  # results that wait are memory too
    return AsyncStream(feed, partial(_chunks, stream), lambda: stream.outputs)


class _InOrder:
    """Adds chunks that are computed side by side to the totals in their order, so that sums have the same bits every time."""

    def __init__(self, processor: StreamProcessor) -> None:
        self.processor = processor
        self._ready: dict[int, Computed] = {}
        self._following = 0
        self._lock = Lock()

    def push(self, chunk: Any, metadata: ChunkMetadata) -> StreamResult:
        """Compute a chunk, and add it together with those that wait for it: when all up to a chunk were pushed, all are added."""
        processor, begin = self.processor, perf_counter()
        with span(f"chunk {metadata.chunk_id}", processor.executor.hooks()):
            computed = processor.compute(chunk, metadata)
        result = processor.result(processor.kept(computed), metadata, perf_counter() - begin)
        with self._lock:
            self._ready[metadata.chunk_id] = computed
            while (following := self._ready.pop(self._following, None)) is not None:
                processor.add(following)
                self._following += 1
        return result


async def _async_chunks(source: Any, processor: StreamProcessor, feed: _Feed) -> None:
    """Take in the chunks of an async iterable as they come."""
    chunks, in_order, rows = aiter(source), _InOrder(processor), 0
    try:
        while True:
            await feed.room()
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                break
            except TensorLogicError:
                raise
            except Exception as error:
                what = f"the source failed at chunk {feed.taken}: {type(error).__name__}: {error}"
                raise InputError(what, "the results before it are there", code="E539") from error
            arrays, count = await _as_arrays(processor, chunk, feed.taken)
            metadata = ChunkMetadata(feed.taken, count, rows)
            rows += count
            feed.call(partial(in_order.push, arrays, metadata))
    finally:
        if hasattr(chunks, "aclose"):
            await chunks.aclose()
    for handle in list(feed.calls):
        await handle.stopped()
    feed.call(partial(_finish, processor))


async def _as_arrays(processor: StreamProcessor, chunk: Any, number: int) -> tuple[Any, int]:
    """Return a chunk as arrays, and its rows; what is no array becomes one on a thread, because that may take long."""
    if isinstance(chunk, dict) and all(isinstance(value, np.ndarray) for value in chunk.values()):
        return processor.checked(chunk, number)
    return await run_async(processor.checked, chunk, number)


def _finish(processor: StreamProcessor) -> object:
    if not processor.chunks:
        raise empty_source()
    processor.finish()
    return END


async def _chunks(stream: Stream, feed: _Feed) -> None:
    """Take in the chunks of a source that is read on a thread; while a call waits for one, it takes nobody's place."""
    reading = CallQueue(1, 0)
    closing = AsyncHandle(reading, lambda: stream.abandon() if feed.abandoned else stream.close())
    feed.hand_out = stream.hand_out
    feed.stopping.append(closing)
    last: AsyncHandle[Any] | None = None
    try:
        over = final = False
        while not over and not final:
            await (feed.asked_for(feed.taken) if stream.for_reader else feed.room())
            last = taking = AsyncHandle(reading, partial(_taken, stream), feed.timeout).begin()
            chunk = await taking
            last = feed.call(partial(_computed, stream, chunk))
            over, final = chunk is None, chunk is not None and chunk.last and not stream.for_reader
            del chunk, taking  # they would be held while the next one is read
            await last.stopped()
            if last.failed() or last.cancelled():
                return
        if final:  # nothing comes after its result
            feed.call(lambda: END)
    finally:  # once nothing reads it any more
        if last is None or not last.stopped_signal.add(closing.begin):
            closing.begin()


def _taken(stream: Stream) -> Chunk | None:
    if stream.for_reader:
        stream.came_back()
    return stream.take()


def _computed(stream: Stream, chunk: Chunk | None) -> object:
    result = stream.compute(chunk)
    return END if result is None else result
