"""Streams for event loops: chunks come from an async iterable or any source, and are computed on a worker thread."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ...errors import CancelledError, InputError, TensorLogicError
from ..outputs import Outputs
from ..streams.processor import StreamProcessor, StreamResult
from ..streams.sources import empty_source
from ..streams.stream import Stream
from .calls import AsyncConfig
from .lanes import AsyncHandle, Lane
from .signals import Signal, spawn

if TYPE_CHECKING:
    from ..executor import Executor

END = object()  # comes after the last chunk


class _Feed:
    """What goes on behind an async stream: calls for chunks that were taken in and not handed out yet, in order."""

    def __init__(self, config: AsyncConfig) -> None:
        self.lane = Lane(1, config.backpressure_threshold)  # one chunk after another: totals are added up in order
        self.timeout, self.most = config.timeout, max(1, config.backpressure_threshold)
        self.calls: deque[AsyncHandle[Any]] = deque()
        self.changed, self.ended = Signal(), Signal()
        self.failed = self.closed = False
        self.cancel: Callable[[], object] | None = None

    def call(self, function: Callable[[], Any]) -> AsyncHandle[Any]:
        """Take a call in, and tell whoever waits for one."""
        handle = AsyncHandle(self.lane, partial(self._unless_failed, function), self.timeout).begin()
        self.calls.append(handle)
        self.tell()
        return handle

    def _unless_failed(self, function: Callable[[], Any]) -> Any:
        if self.failed:
            raise CancelledError("the stream ended with an error before this chunk", code="E980")
        try:
            return function()
        except BaseException:
            self.failed = True
            raise

    def tell(self) -> None:
        """Wake whoever waits for a change."""
        changed, self.changed = self.changed, Signal()
        changed.set()

    async def room(self) -> None:
        """Wait while as many chunks are taken in as may be."""
        while len(self.calls) >= self.most:
            await self.changed.wait()

    def shut(self) -> None:
        """Stop taking chunks in, and cancel those that are."""
        self.closed = True
        if self.cancel is not None:
            self.cancel()
        for handle in self.calls:
            handle.cancel("the stream was closed")
        self.calls.clear()
        self.tell()


class AsyncStream(AsyncIterator[StreamResult]):
    """The results of a graph over a source, chunk by chunk, for ``async for``; ``outputs`` are those of the whole stream.

    Each chunk of an async iterable gives one result, as it comes; other sources are cut as ``execute_stream`` cuts them. Chunks are computed in
    order on a worker thread, while the source is read and the last result is used. Stopping early closes the source; ``async with``
    and :meth:`aclose` wait for it.

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

    def __init__(self, config: AsyncConfig, run: Callable[[_Feed], Any], outputs: Callable[[], Outputs]) -> None:
        self._feed, self._run, self._outputs = _Feed(config), run, outputs
        self._state = "new"  # then "open", "done"
        weakref.finalize(self, self._feed.shut).atexit = False  # a consumer that stops early and forgets about it

    @property
    def outputs(self) -> Outputs:
        """The outputs of the whole stream, over the chunks so far."""
        return self._outputs()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamResult:
        feed = self._feed
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
        found: StreamResult = result
        return found

    async def result(self) -> Outputs:
        """Run to the end and return the outputs of the whole stream."""
        async for _ in self:
            pass
        return self.outputs

    async def aclose(self) -> None:
        """Stop: close the source, and return when nothing of the stream runs any more."""
        feed = self._feed
        outstanding = feed.lane.outstanding()
        if self._state != "new":
            feed.shut()
            await feed.ended.wait()
        self._state = "done"
        for handle in outstanding:
            await handle.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
    if hasattr(source, "__aiter__"):
        if wrong := options.keys() - {"inputs", "over"}:
            hint = "take inputs= and over=, or give a source that can be read from a thread"
            raise InputError(f"chunks of an async iterable come as they are: no {min(wrong)}=", hint, code="E563")
        processor = StreamProcessor(executor, graph, **options)
        return AsyncStream(config, partial(_async_chunks, source, processor), lambda: processor.outputs)
    stream = executor.execute_stream(graph, source, options.pop("streaming", None), **options)
    return AsyncStream(config, partial(_chunks, stream), lambda: stream.outputs)


async def _async_chunks(source: Any, processor: StreamProcessor, feed: _Feed) -> None:
    """Take in the chunks of an async iterable as they come."""
    chunks, taken = aiter(source), 0
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
                what = f"the source failed at chunk {taken}: {type(error).__name__}: {error}"
                raise InputError(what, "the results before it are there", code="E539") from error
            taken += 1
            feed.call(partial(processor.push, chunk))
    finally:
        if hasattr(chunks, "aclose"):
            await chunks.aclose()
    feed.call(partial(_finish, processor))


def _finish(processor: StreamProcessor) -> object:
    if not processor.chunks:
        raise empty_source()
    processor.finish()
    return END


async def _chunks(stream: Stream, feed: _Feed) -> None:
    """Take in the chunks of a source that is read on a thread."""
    try:
        while True:
            await feed.room()
            handle = feed.call(partial(next, stream, END))
            await handle.stopped()
            if handle.failed() or handle.cancelled() or await handle is END:
                break
    finally:
        AsyncHandle(feed.lane, stream.close).begin()
