"""The computing side of a stream: chunks go in, results come out, and totals are kept in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import InputError, expect, nearest
from ...events import span
from ...ir.graph import EinsumGraph
from ...ir.types import TensorType
from ...plan.cost import nbytes
from ...plan.fused_steps import Cut
from ...plan.nested import joined_bytes
from ...store import Lock
from ..parts import Parts
from ..values import Inputs, Outputs, check_call
from .blocks import Block, not_streamed, rows_of
from .split import Feeds, Over, StreamSplit, feeds_of, positions, refuse_misfit, streamed_axes

if TYPE_CHECKING:
    from ..distributed.config import DistributedConfig
    from ..executor import Executor

_NARROW = "ef"  # characters of the floats whose long sums are kept in float64
_SUMS = frozenset({"add", "mean", "multiply", "logaddexp", "noisy_or"})


@dataclass(frozen=True, slots=True)
class ChunkMetadata:
    """Which chunk of a stream a result belongs to: its number, its rows, and the row of the stream that it begins at.

    >>> ChunkMetadata(chunk_id=3, size=32, start=96)
    ChunkMetadata(chunk_id=3, size=32, start=96)
    """

    chunk_id: int
    size: int
    start: int = 0


class StreamResult(NamedTuple):
    """What a chunk gave: the outputs that keep the streamed index, which chunk it was, and how long computing it took.

    The last one has the outputs of the whole stream too.

    >>> StreamResult(Outputs(("y",), (1,)), ChunkMetadata(0, 1), 0.5).outputs["y"]
    1
    """

    outputs: Outputs
    metadata: ChunkMetadata
    processing_time_ms: float


class Computed(NamedTuple):
    """A chunk that was computed and whose results are not added to the totals yet."""

    metadata: ChunkMetadata
    chunk: Block
    results: dict[str, Any]  # by label of the split


class StreamProcessor:
    """Computes chunks that you push to it: for code that has its own loop, such as a reader of a message queue.

    ``inputs`` are those that are whole, such as weights; ``over`` says what is streamed, where that is not plain. With ``distributed`` the rows
    of each chunk are shared by the devices of a config.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", ("n",))
    >>> processor = StreamProcessor(tl.Executor(), b.build(double=x * 2, mean=b.mean(x)))
    >>> processor.push({"x": [1.0, 2.0]}).outputs["double"]
    array([2., 4.])
    >>> result = processor.push({"x": [6.0]})
    >>> processor.outputs["mean"]
    array(3.)
    """

    def __init__(
        self,
        executor: Executor,
        graph: EinsumGraph,
        *,
        inputs: Inputs | None = None,
        over: Over = None,
        distributed: DistributedConfig | None = None,
    ) -> None:
        check_call(graph, {} if inputs is None else inputs)
        if distributed is not None:
            from ..distributed.rows import check_rows_config

            check_rows_config(distributed)
        self.distributed = distributed
        self.executor, self.graph = executor, graph
        self.whole: dict[str, Any] = dict(inputs or {})
        self.axes = streamed_axes(graph, over, self.whole)
        self.declared = {name: graph.type_of(i) for name, i in graph.inputs.items()}
        self.rows, self.chunks = 0, 0
        self.totals: list[Any] = []
        self.torn = False  # whether totals have a chunk that nothing else has yet: then this is no state to go on from
        self._split: StreamSplit | None = None
        self._feeds: Feeds | None = None
        self._parts = Parts(Cut((), 1, (), ()))
        self._before: dict[str, Any] = {}
        self.first: Block | None = None  # where the first chunk has one row, that row: it may be all there is
        self._last: EinsumGraph | None = None  # of the chunk before
        self._lock = Lock()  # of the split and the totals: several threads may compute chunks
        self._final: Outputs | None = None
        self._empty: Outputs | None = None  # of a stream without rows

    @property
    def split(self) -> StreamSplit:
        """How the graph is cut, once the first chunk told the shapes."""
        if self._split is None:
            raise InputError(
                "nothing is known of the stream before its first chunk", "read or push a chunk first", code="E541"
            )
        return self._split

    def prepare(self, block: Block, total: int | None = None) -> None:
        """Cut the graph for chunks that look like a block, and compute what comes before the first one."""
        if self._split is not None:
            return
        names, values = self.executor.arrays(self.graph, {**self.whole, **block})
        types = {name: TensorType.of(value) for name, value in zip(names, values, strict=True)}
        self.whole = {name: value for name, value in zip(names, values, strict=True) if name not in self.axes}
        split = StreamSplit(self.graph, self.axes, types, total)
        feeding = {f.node for f in split.cut.feeds}
        if feeding and split.cut.before.outputs:
            self._before = self._run(split.cut.before)
        self._feeds = feeds_of(split.cut, self.axes, self.whole, self._before)
        numbers = tuple((n, axis) for n, (_, _, axis) in enumerate(self._feeds.whole))
        self._parts = Parts(Cut((), 1, numbers, split.totals))
        if not self.totals:
            self.totals = [None] * len(split.totals)
        self._split = split

    def _look_at_scores(self, chunk: Block, part: str) -> None:
        """Warn of truth values outside of 0 to 1: the graphs that the stream is cut into are not looked at."""
        for name, value in zip(*self.executor.arrays(self.graph, {**self.whole, **chunk}), strict=True):
            self.executor.programs.look_at_scores(self.graph, [(name, value)], part if name in self.axes else "")

    def _run(self, graph: EinsumGraph, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        given = {**self.whole, **(values or {})}
        return dict(self.executor.execute(graph, {name: given[name] for name in graph.inputs}).items())

    def push(
        self, chunk: Block, rows: int | None = None, *, last: bool = False, clock: Callable[[], float] = perf_counter
    ) -> StreamResult:
        """Compute one chunk; with ``last`` the result has the outputs of the whole stream too."""
        begin = clock()
        if self._final is not None:
            raise InputError(
                "the stream has ended: no chunk can be pushed to it", "make a new StreamProcessor", code="E541"
            )
        if rows is None:
            chunk, rows = self.checked(chunk, self.chunks)
        metadata = ChunkMetadata(self.chunks, rows, self.rows)
        with span(f"chunk {metadata.chunk_id}", self.executor.hooks()):
            computed = self.compute(chunk, metadata)
            self.add(computed)
            outputs = self.kept(computed)
            if last:
                outputs.update(self.finish().items())
        return self.result(outputs, metadata, clock() - begin)

    def result(self, outputs: Mapping[str, Any], metadata: ChunkMetadata, seconds: float) -> StreamResult:
        """Return outputs of a chunk in the order that the graph has them."""
        names = [name for name in self.split.output_names if name in outputs]
        result = Outputs(names, [outputs[name] for name in names])
        return StreamResult(result, metadata, seconds * 1e3)

    def checked(self, chunk: Block, number: int) -> tuple[Block, int]:
        """Return a chunk that is given by hand as arrays, and its rows."""
        expect(chunk, Mapping, "a chunk is a mapping from inputs to arrays", 'write push({"x": rows})')
        for name in self.axes:
            if name not in chunk:
                message = f"chunk {number} has nothing for input {name!r}"
                raise InputError(message, *nearest(name, chunk), code="E534")
        for name in chunk:
            if name not in self.axes:
                raise not_streamed(name, f"chunk {number}", self.declared)
        arrays = {
            n: v if isinstance(v, np.ndarray) else np.asarray(v, self.declared[n].dtype) for n, v in chunk.items()
        }
        for name, array in arrays.items():
            declared = self.declared[name].shape
            if declared is not None and array.ndim != len(declared):
                refuse_misfit(name, self.axes[name], tuple(declared), array.shape, None)
        return arrays, rows_of(arrays, self.axes, number)

    def compute(self, chunk: Block, metadata: ChunkMetadata) -> Computed:
        """Run the graph of a chunk; several threads may, of different chunks, and none waits for the chunks before it."""
        with self._lock:
            self.prepare(chunk)
            if self.graph.scores and metadata.size and self.executor.programs.scores_unseen(self.graph):
                self._look_at_scores(chunk, f"chunk {metadata.chunk_id}: ")
        if not metadata.size:
            return Computed(metadata, chunk, {})
        split, feeds = self.split, self._feeds
        assert feeds is not None
        rows, place = metadata.size, range(metadata.start, metadata.start + metadata.size)
        if split.total is not None and place.stop > split.total:
            raise self._misfit(place.stop)
        values = {own: chunk[name] for own, name in feeds.streamed}
        values |= {own: positions(place.start, place.stop, dtype) for own, dtype in feeds.counts}
        cut = self._parts.feed([value for _, value, _ in feeds.whole], place)
        values |= {own: value for (own, _, _), value in zip(feeds.whole, cut, strict=True)}
        graph = split.part(rows)
        if self._last is not graph:
            self.release()  # chunks of another size have arrays of their own
            self._last = graph
        if not graph.outputs:
            return Computed(metadata, chunk, {})
        if self.distributed is None:
            return Computed(metadata, chunk, dict(self.executor.execute(graph, values).items()))
        from ..distributed.rows import execute_rows

        axes = {own: self.axes[name] for own, name in feeds.streamed} | {own: 0 for own, _ in feeds.counts}
        axes |= {own: axis for own, _, axis in feeds.whole if axis is not None}
        return Computed(
            metadata, chunk, dict(execute_rows(self.executor, graph, values, axes, self.distributed).items())
        )

    def kept(self, computed: Computed) -> dict[str, Any]:
        """Return the outputs of a chunk that keep the index."""
        metadata, chunk, results = computed
        if not metadata.size:
            return {}
        split = self.split
        outputs = {
            name: results[own] for name, stage, own in split.cut.outputs if stage == "join" and name in split.kept
        }
        seen: set[int] = set()
        for name, value in outputs.items():  # one value may be two outputs
            outputs[name] = value.copy() if id(value) in seen else value
            seen.add(id(value))
        passed = {name: np.array(chunk[owner], self.declared[owner].dtype) for name, owner in split.passed.items()}
        return outputs | passed

    def add(self, computed: Computed) -> None:
        """Add what was computed of a chunk to the totals: one chunk after the other, in their order."""
        metadata, chunk, results = computed
        split, rows = self.split, metadata.size
        with self._lock:
            if rows:
                self.torn = True
                with self.executor.backend.guard():  # infinities and NaN combine without a word, as they do in a run
                    self._parts.join(self.totals, [results[join.label] for join in split.totals], range(rows))
                for n, (join, total) in enumerate(zip(split.totals, self.totals, strict=True)):
                    if total.dtype.char in _NARROW and join.how in _SUMS:
                        self.totals[n] = total.astype("float64")
            if rows == 1 and not metadata.start:
                self.first = {name: np.array(value) for name, value in chunk.items()}  # the caller may write to its own
            self.rows, self.chunks = metadata.start + rows, metadata.chunk_id + 1

    def _misfit(self, rows: int) -> InputError:
        total = self.split.total
        more = "more" if total is not None and rows > total else f"{rows:,}"
        hint = "declare the axis with a name, such as 'n', where the stream decides on its size"
        return InputError(f"{self.split.place} has {total:,} rows, but {more} came from the source", hint, code="E542")

    @property
    def outputs(self) -> Outputs:
        """The outputs of the whole stream, over the chunks so far."""
        with self._lock:
            return _copies(self._final) if self._final is not None else self._aggregates()

    def finish(self) -> Outputs:
        """End the stream and return the outputs of all of it."""
        if self._final is None:
            split = self.split
            if split.total is not None and self.rows != split.total:
                raise self._misfit(self.rows)
            self._final = self._aggregates()
        return _copies(self._final)

    def run_empty(self, block: Block) -> None:
        """Take the outputs of a stream without rows from a plain run on arrays without rows."""
        self._empty = self.executor.execute(self.graph, {**self.whole, **block})

    def empty_outputs(self) -> dict[str, Any]:
        """Return the outputs that keep the index, without rows, where the stream had none."""
        return {} if self._empty is None else {name: self._empty[name] for name in self.split.kept}

    def _aggregates(self) -> Outputs:
        split = self.split
        names = split.final
        if not names:
            return Outputs((), ())
        if self._empty is not None:
            return Outputs(names, [self._empty[name] for name in names])
        if not self.rows:
            raise InputError("the stream has no outputs before its first chunk", "read a chunk first", code="E541")
        if self.rows == 1 and not split.free_of_total:
            assert self.first is not None
            whole = self.executor.execute(self.graph, {**self.whole, **self.first})
            return Outputs(names, [whole[name] for name in names])
        cut = split.at(self.rows)
        parts = Parts(self._parts.cut._replace(joins=split.joins(self.rows)))
        with self.executor.backend.guard():
            joined = parts.whole([np.array(total) for total in self.totals])
        values = {join.label: value for join, value in zip(split.totals, joined, strict=True)}
        same = cut is split.cut and self._before
        before = self._before if same else self._run(cut.before) if cut.before.outputs else {}
        after = self._run(cut.after, {**before, **values}) if cut.after.outputs else {}
        stages = {"before": before, "join": values, "after": after}
        found = {name: (stages[stage], own) for name, stage, own in cut.outputs}
        return Outputs(
            names,
            [
                np.array(found[n][0][found[n][1]] if found[n][1] in found[n][0] else self.whole[found[n][1]])
                for n in names
            ],
        )

    def release(self) -> None:
        """Give the memory that is kept for the next chunk back to the system."""
        if self._last is not None:
            self.executor.last_calls.release(self._last)
            self._last = None

    def chunk_bytes(self, rows: int, ahead: int) -> int:
        """Return what a stream takes while it computes chunks of ``rows`` rows and reads ``ahead`` more of them."""
        split, feeds = self.split, self._feeds
        assert feeds is not None
        part = split.part(rows)
        types = {name: part.type_of(i) for name, i in part.inputs.items()}
        executor = self.executor
        peak = max(p.peak_bytes for p in executor.programs.options(part, types, None)) if part.outputs else 0
        output_types = {name: part.type_of(i) for name, i in part.outputs}
        totals = sum(2 * joined_bytes(join, output_types[join.label]) for join in split.totals)
        read = sum(nbytes(types[own]) for own, _ in feeds.streamed)
        results = sum(
            nbytes(output_types[own]) for _, stage, own in split.cut.outputs if stage == "join" and own in output_types
        )
        fixed = sum(np.asarray(value).nbytes for value in self._before.values())
        return peak + totals + fixed + results + read * (ahead + 1)


def _copies(outputs: Outputs) -> Outputs:
    """Return copies of outputs, which belong to the caller."""
    return Outputs(list(outputs.keys()), [np.array(value) for value in outputs])
