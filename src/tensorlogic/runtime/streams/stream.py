"""Streams: a graph over more rows than memory holds, chunk by chunk, with the answer of one plain run.

What keeps the streamed index comes out chunk by chunk. What reduces over it is combined in the algebra of the reduction, and
what is computed from that follows after the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ...errors import InputError, TensorLogicError, expect, expect_whole
from ...events import check_contexts, span
from ...ir.graph import EinsumGraph
from ...ir.sizes import flag
from ...plan.memory import available_memory
from ..values import Inputs, Outputs, check_call
from .blocks import Block, Wanted, empty_source
from .chunk_sizes import DEFAULT, ChunkSizes, StreamingMode, chunk_sizes
from .processor import ChunkMetadata, StreamProcessor, StreamResult
from .reader import Ahead, Chunk, Cutter
from .sources import source_of
from .split import Over

if TYPE_CHECKING:
    from ..distributed.config import DistributedConfig
    from ..executor import Executor
    from .checkpoints import Checkpoints
    from .sinks import Sink

FIRST = 1024  # rows that are asked for to learn the shapes
SHARE = 8  # of the memory that is free, the part that chunks of an adaptive stream may grow to


@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """How a stream runs: how large its chunks are, how many are read ahead, and after how many its state is saved.

    ``prefetch`` chunks are read on a thread of their own while others are computed; with 0 the source is read on the thread of the
    caller. ``checkpointing`` counts chunks; with None the state is saved about every two seconds, and less often where saving takes long.
    Nothing is saved without a folder for it (``checkpoint=``).

    >>> StreamingConfig(StreamingMode.FixedChunk(64)).with_prefetch(2).with_checkpointing(100)
    StreamingConfig(mode=FixedChunk(rows=64), prefetch=2, checkpointing=100)
    """

    mode: StreamingMode = DEFAULT
    prefetch: int = 1
    checkpointing: int | None = None

    def __post_init__(self) -> None:
        expect(self.mode, StreamingMode, "a StreamingMode is expected", "write StreamingMode.FixedChunk(4096)")
        expect_whole("prefetch", self.prefetch)
        if self.checkpointing is not None:
            expect_whole("checkpointing", self.checkpointing, 1)

    def with_prefetch(self, chunks: int) -> StreamingConfig:
        """Return the config with this many chunks read ahead."""
        return replace(self, prefetch=chunks)

    def with_checkpointing(self, chunks: int) -> StreamingConfig:
        """Return the config with the state saved after every ``chunks`` chunks."""
        return replace(self, checkpointing=chunks)


class Options(NamedTuple):
    """What else a stream is told."""

    clock: Callable[[], float] = perf_counter
    sink: Sink | None = None
    checkpoints: Checkpoints | None = None
    progress: Any = None  # called with (rows so far, rows in all or None)


class Stream(Iterator[StreamResult]):
    """The results of a graph over a source, chunk by chunk; read it with a loop, or all at once with :meth:`result`.

    ``outputs`` are those of the whole stream: over the chunks so far, and after the last chunk over all. The last result has them too.
    Stopping early closes the source; so does ``with``.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", ("n", 3))
    >>> graph = b.build(y=x * 2, total=b.sum(x, axis=0))
    >>> rows = ({"x": np.full((4, 3), k)} for k in range(3))
    >>> with tl.Executor().execute_stream(graph, rows, tl.StreamingConfig(tl.StreamingMode.FixedChunk(5))) as stream:
    ...     for result in stream:
    ...         print(result.metadata.chunk_id, result.outputs["y"].shape)
    0 (5, 3)
    1 (5, 3)
    2 (2, 3)
    >>> stream.outputs["total"]
    array([12, 12, 12])
    """

    def __init__(
        self, executor: Executor, processor: StreamProcessor, given: Any, config: StreamingConfig, options: Options
    ) -> None:
        self.executor, self.config, self.options = executor, config, options
        self.processor = processor
        self._given = given
        self.source = source_of(given, Wanted(processor.axes, processor.declared))
        self._cutter: Cutter | None = None
        self._ahead: Ahead[Chunk] | None = None
        self._sizes: ChunkSizes | None = None
        self._no_rows: Block | None = None  # no rows, in the shapes of the source
        self._state = "new"  # then "open", "done", "closed"
        self._begin = 0.0  # when the chunk at hand was asked for
        # without a sink the results belong to whoever reads them: what is saved are those that the reader came back from
        self.for_reader = options.checkpoints is not None and options.sink is None
        self._handed_out = self._used = 0  # chunks whose results the reader has, and those it came back from

    @property
    def outputs(self) -> Outputs:
        """The outputs of the whole stream, over the chunks so far."""
        return self.processor.outputs

    @property
    def rows(self) -> int:
        """The rows that were computed so far."""
        return self.processor.rows

    @property
    def total(self) -> int | None:
        """The rows of the source, where that is known."""
        return self.source.rows

    def result(self) -> Outputs:
        """Run to the end and return the outputs of the whole stream."""
        for _ in self:
            pass
        if self._state == "closed":
            message = f"the stream was closed after {self.rows:,} rows, before its end"
            raise InputError(message, "stream.outputs are those of the rows so far", code="E541")
        return self.outputs

    def __repr__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        return f"<Stream of {list(self.processor.graph.output_names)}: {self.rows:,}{of} rows, {self._state}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamResult:
        if self._state in ("done", "closed"):
            raise StopIteration
        with self._closing_on_error():  # also an interrupt between the steps, which would leave a chunk out
            self.came_back()
            result = self.compute(self.take())
            if result is not None:
                self.hand_out()
        if result is None:
            raise StopIteration
        return result

    def hand_out(self) -> None:
        """Note that the reader has what was computed."""
        self._handed_out = self.processor.chunks

    def came_back(self) -> None:
        """Note that the reader is done with what it has, and save the state where it is time."""
        self._used = self._handed_out
        if self.for_reader and self._state == "open":
            assert self.options.checkpoints is not None and self._sizes is not None
            with self._closing_on_error():
                self.options.checkpoints.save_if_due(self, self._sizes)

    def take(self) -> Chunk | None:
        """Wait for the next chunk and return it; None at the end."""
        with self._closing_on_error():
            self._begin = self.options.clock()
            if self._state == "new":
                self._open()
            self._check()
            return self._take()

    def compute(self, chunk: Chunk | None) -> StreamResult | None:
        """Return the result of the chunk that was taken; None at the end."""
        with self._closing_on_error():
            if chunk is None and not self.rows and self._no_rows is not None:
                self.processor.run_empty(self._no_rows)
            if chunk is None:
                self._finish()
                return None
            result = self._computed(chunk)
            assert self._sizes is not None
            self._sizes.note(chunk.rows, self.options.clock() - self._begin)
            if chunk.last and not self.for_reader:  # a reader has to come back first
                self._finish()
            return result

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Close after an error; what goes wrong while closing is told with it."""
        try:
            yield
        except BaseException as error:
            try:
                self.close()
            except TensorLogicError as other:
                error.add_note(f"and the state could not be saved: {other.diagnostic.message}")
            raise

    def _check(self) -> None:
        self.executor.context.check()
        check_contexts()

    def _open(self) -> None:
        """Learn the shapes, cut the graph, go to where a run before it was, and begin to read ahead."""
        processor, saved, sink = self.processor, self.options.checkpoints, self.options.sink
        if saved is not None:
            saved.open(self)
        start = processor.rows
        before = 0 if saved is None else saved.sample_rows()
        if start:
            self.source.seek(start - before)
        cutter = Cutter(self.source, processor.axes, start - before)
        if saved is not None and before:
            saved.compare(self, cutter.take(before))
        known = getattr(self.source, "empty", lambda: None)()
        self._no_rows = cutter.peek(FIRST) if known is None else known
        if self._no_rows is None:
            raise empty_source()
        processor.prepare(self._no_rows, self.source.rows)
        rewinds = hasattr(self.source, "empty") and getattr(self.source, "rewinds", True)
        if rewinds and (before or known is None):  # it was opened for blocks of another size
            self.source.seek(start)
            cutter = Cutter(self.source, processor.axes, start)
        cutter.tell_last = bool(processor.split.final)
        if sink is not None:
            sink.begin(processor.split.kept, processor.split.ranks)
        ahead = self.config.prefetch + 1 + self.source.copies
        sizes = chunk_sizes(
            self.config.mode,
            lambda n: processor.chunk_bytes(n, ahead),
            available_memory() // SHARE,
            getattr(self.source, "reader_bytes", lambda limit: 0),
        )
        if saved is not None:
            saved.restore(self, sizes)
        self._handed_out = self._used = processor.chunks
        self._cutter, self._sizes, self._state = cutter, sizes, "open"
        if self.config.prefetch:
            self._ahead = Ahead(lambda: cutter.take(sizes.next()), self.source.close, self.config.prefetch)

    def _take(self) -> Chunk | None:
        if self._ahead is not None:
            return self._named(lambda: self._ahead.take(self._check))  # type: ignore[union-attr]
        assert self._cutter is not None and self._sizes is not None
        cutter, rows = self._cutter, self._sizes.next()
        return self._named(lambda: cutter.take(rows))

    def _named(self, take: Callable[[], Chunk | None]) -> Chunk | None:
        """Take a chunk; where the source fails, say which chunk it was."""
        try:
            return take()
        except TensorLogicError:
            raise
        except Exception as error:
            number, waiting = self.processor.chunks, 0 if self._cutter is None else self._cutter.waiting
            hint = "the results before it are there" if number else "no result came before it"
            if waiting:
                hint += f"; {waiting:,} rows that came are less than a chunk, and were not computed"
            place = f"chunk {number}, row {self.rows + waiting:,}"
            raise InputError(
                f"the source failed at {place}: {type(error).__name__}: {error}", hint, code="E539"
            ) from error

    def _computed(self, chunk: Chunk) -> StreamResult:
        """Compute a chunk, write what belongs into the sink, and save the state where it is time."""
        processor, options = self.processor, self.options
        if options.checkpoints is not None and options.checkpoints.ended:
            message = f"the run to be resumed had ended after {processor.rows:,} rows, and the source has more"
            raise InputError(message, "give the source that it had, or start again in another folder", code="E547")
        result = processor.push(chunk.values, chunk.rows, last=chunk.last, clock=options.clock)
        if options.sink is not None:
            options.sink.write({name: result.outputs[name] for name in processor.split.kept})
        processor.torn = False
        if options.checkpoints is not None and self._sizes is not None:
            options.checkpoints.note(self, chunk)
            if not self.for_reader:
                options.checkpoints.save_if_due(self, self._sizes)
        if options.progress is not None:
            options.progress(processor.rows, self.source.rows)
        return result

    def _finish(self) -> None:
        """Compute what follows the last chunk, and complete the sink."""
        processor, saved, sizes = self.processor, self.options.checkpoints, self._sizes
        assert sizes is not None
        outputs = processor.finish()
        if saved is not None and not saved.ended:
            saved.save(self, sizes, ended=True)
        if self.options.sink is not None:
            self.options.sink.finish(dict(outputs.items()), processor.empty_outputs())
        if saved is not None and not saved.complete:
            saved.save(self, sizes, ended=True, complete=True)
        self._state = "done"
        self._release()

    def close(self) -> None:
        """Stop: close the source and wait for the thread that reads; what was computed so far is saved where it can be."""
        self._close(self._handed_out)

    def abandon(self) -> None:
        """Stop as :meth:`close` does, when the reader may not be done with the result that it has: that one comes again."""
        self._close(self._used)

    def _close(self, known: int) -> None:
        if self._state in ("new", "open"):
            was, self._state = self._state, "closed"
            whole = not self.processor.torn and (not self.for_reader or self.processor.chunks == known)
            try:
                if was == "open" and whole and self.options.checkpoints is not None and self._sizes is not None:
                    self.options.checkpoints.save(self, self._sizes)
            finally:
                self._release()

    def _release(self) -> None:
        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None:
                ahead.close()
            else:
                self.source.close()
        finally:
            self.processor.release()
            if self.options.sink is not None:
                self.options.sink.close()
            for each in (self.options.checkpoints, self.options.progress):
                if each is not None:
                    each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __del__(self) -> None:
        if getattr(self, "_state", "done") in ("new", "open"):
            self.abandon()


def execute_stream(
    executor: Executor,
    graph: EinsumGraph,
    source: Any,
    config: StreamingConfig | None,
    *,
    inputs: Inputs | None,
    over: Over,
    sink: Any,
    checkpoint: Any,
    resume: bool,
    progress: bool,
    distributed: DistributedConfig | None,
    clock: Callable[[], float],
) -> Stream:
    """Return the stream of a graph over a source."""
    config = StreamingConfig() if config is None else config
    expect(
        config,
        StreamingConfig,
        "a StreamingConfig is expected",
        "write StreamingConfig(StreamingMode.FixedChunk(4096))",
    )
    processor = StreamProcessor(executor, graph, inputs=inputs, over=over, distributed=distributed)
    into = checkpoints = shown = None
    if sink is not None:
        from .sinks import refuse_source, sink_of

        refuse_source(sink, source)

        into = sink_of(sink, tuple(graph.output_names), staged=checkpoint is not None)
    if checkpoint is not None:
        from .checkpoints import Checkpoints

        checkpoints = Checkpoints(checkpoint, every=config.checkpointing, resume=resume, clock=clock)
    elif flag(resume, "resume=") or config.checkpointing is not None:
        raise InputError("checkpoints need a folder", 'write checkpoint="folder"', code="E540")
    if flag(progress, "progress="):
        from .progress import Bar

        shown = Bar(clock=clock)
    return Stream(executor, processor, source, config, Options(clock, into, checkpoints, shown))


def execute_chunk(executor: Executor, graph: EinsumGraph, inputs: Inputs, metadata: ChunkMetadata) -> StreamResult:
    """Run a graph on the inputs of one chunk, as it is."""
    expect(metadata, ChunkMetadata, "a ChunkMetadata is expected", "write ChunkMetadata(chunk_id=0, size=64)")
    check_call(graph, inputs)
    begin = perf_counter()
    with span(f"chunk {metadata.chunk_id}", executor.hooks()):
        outputs = executor.execute(graph, inputs)
    return StreamResult(outputs, metadata, (perf_counter() - begin) * 1e3)
