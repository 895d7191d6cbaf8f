"""Running requests together: which of them may share a batch, how their inputs are stacked, and how outputs are handed out.

A batch is the graph of ``tl.batched`` on stacked inputs, as in ``Executor.execute_batch``. Batches have few different sizes (see
:func:`batch_size`), so that few plans are made. One that fails is run again in halves, so that a bad request fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import CancelledError, ExecutionError, InputError, expect, nearest
from ..ir.graph import EinsumGraph
from ..ir.sizes import evaluate
from ..ir.types import TensorType
from ..passes.specialize import bind_sizes, known_inputs, specialize
from ..passes.split import split_inputs
from ..runtime.aio.short_calls import is_steady
from ..runtime.batch import Way, cuts, marked, stack, way_of
from ..runtime.batch_groups import Group
from ..runtime.call import LastCall, same_again
from ..runtime.executor import Executor
from ..runtime.values import Outputs, check_call, check_names
from ..store import Store

KINDS = 1024  # that are remembered; another one is looked at anew
# seconds for which a batch may hold up the event loop; a thread that computes in Python may hold it up for longer
QUICK = 0.002
HAND_OVER = 0.0001  # seconds that it takes about to let a thread wait and wake it again
DRIFT = 1.05  # by so much the least time of a batch may grow with each one that takes longer
STAND_IN = 3  # for sizes that nobody gave, where only the way of an index through the graph matters
Outcome = Outputs | BaseException


class Kind:
    """What requests that can run together have in common: the shapes and dtypes of their inputs, after padding."""

    __slots__ = ("calls", "fits", "key", "padded", "quick", "seconds", "steady", "way")

    def __init__(self, key: tuple[Any, ...], *, padded: bool) -> None:
        self.key, self.padded = key, padded
        self.way: Way | None = None
        self.calls: dict[int, LastCall] = {}  # of batches of each size
        self.fits = 0  # so many are known to run as one batch within the limits of memory
        self.steady: bool | None = None  # whether a batch takes as long on any values; None: nothing has run
        self.seconds: dict[int, float] = {}  # that a batch of a size takes at the least
        self.quick: set[int] = set()  # the sizes that take little time


class Shapes(NamedTuple):
    """Inputs as they come: what the next ones are compared with first, their kind, and the true sizes of what is padded."""

    call: LastCall
    kind: Kind
    sizes: tuple[int, ...] | None


class Padding(NamedTuple):
    """A size that is filled up to a multiple, and the axis that it is in each output (None: it is not there)."""

    size: str
    multiple: int
    axes: tuple[int | None, ...]


def batch_size(count: int) -> int:
    """Return the size of the batch that so many requests run as: up to 16 their number, beyond it at most an eighth more.

    >>> [batch_size(n) for n in (1, 5, 16, 17, 33, 60, 64, 100)]
    [1, 5, 16, 18, 36, 60, 64, 104]
    """
    step = 1 << max(0, (count - 1).bit_length() - 4)
    return -(-count // step) * step


class BatchedGraph:
    """A graph for one request that is run for many at once; inputs in ``shared`` are the same for all.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", (2,), "float64") @ b.input("w", (2,), "float64"))
    >>> many = BatchedGraph(Executor(), graph, {"w": np.array([1.0, 10.0])}, {})
    >>> requests = [many.read({"x": np.array([n, 1.0])}) for n in range(3)]
    >>> [float(out["y"]) for out in many.run(requests[0][0], [values for _, values, _ in requests])]
    [10.0, 11.0, 12.0]
    """

    def __init__(
        self, executor: Executor, graph: EinsumGraph, shared: Mapping[str, Any] | None, pad: Mapping[str, int]
    ) -> None:
        given = {} if shared is None else shared
        hint = "write DynamicBatcher(Executor(), graph)"
        expect(executor, Executor, "an Executor or a CompiledGraph is expected", hint)
        check_call(graph, given)
        check_names(graph, given, required=False)
        self.executor, self.graph = executor, graph
        self.names = [name for name in graph.inputs if name not in given]
        types = {name: graph.type_of(i) for name, i in graph.inputs.items()}
        self.shared = {name: executor.backend.asarray(value, types[name].dtype) for name, value in given.items()}
        self.padding = [_padding(graph, self.names, size, multiple) for size, multiple in pad.items()]
        self._known: Store[Any, Shapes] = Store(KINDS)
        self._kinds: Store[Any, Kind] = Store(KINDS)
        self._last: Shapes | None = None

    def read(self, inputs: Any) -> tuple[Kind, list[Any], tuple[int, ...] | None]:
        """Return the kind of a request, its arrays in order, and the true sizes of what is padded; raise where they do not fit the graph."""
        found = self._last
        values = None if found is None else same_again(found.call, self.graph, inputs)
        if found is None or values is None:
            found, values = self._shapes(inputs)
            self._last = found
        return found.kind, values, found.sizes

    def _shapes(self, inputs: Any) -> tuple[Shapes, list[Any]]:
        check_call(self.graph, inputs)
        for name in inputs:
            if name in self.shared:
                raise InputError(f"input {name!r} is the same for all requests: it was given as shared=", code="E451")
        _, arrays = self.executor.arrays(self.graph, {**self.shared, **inputs})
        given = dict(zip(self.graph.inputs, arrays, strict=True))
        values = [given[name] for name in self.names]
        key = tuple(map(_described, values))
        found = self._known.get(key)
        if found is None:
            types = {name: TensorType.of(value) for name, value in given.items()}
            found = self._new_shapes(key, values, bind_sizes(self.graph, types, {}))
            self._known.put(key, found)
        return found, values

    def _new_shapes(self, key: tuple[Any, ...], values: list[Any], sizes: dict[str, int]) -> Shapes:
        signature = tuple((n, type(v), v.shape, v.dtype) for n, v in zip(self.names, values, strict=True))
        true = None
        if self.padding:
            true = tuple([sizes[p.size] for p in self.padding])
            for p in self.padding:
                sizes[p.size] = max(1, -(-sizes[p.size] // p.multiple)) * p.multiple
            shapes = [_declared(self.graph, name, sizes) for name in self.names]
            key = tuple([(shape, dtype) for shape, (_, dtype) in zip(shapes, key, strict=True)])
        kind = self._kinds.get(key)
        if kind is None:
            kind = Kind(key, padded=bool(self.padding))
            self._kinds.put(key, kind)
        return Shapes(LastCall(self.graph, signature, None), kind, true)  # type: ignore[arg-type]

    def is_quick(self, kind: Kind, count: int) -> bool:
        """Tell whether a batch takes so little time that an event loop may run it: batches of its size were measured, and nobody watches."""
        return batch_size(count) in kind.quick and not self.executor.hooks()

    def note_time(self, kind: Kind, count: int, seconds: float) -> None:
        """Note how long a batch took; one that was held up by others does not count for much."""
        if kind.steady is None:
            ready = self.executor.last_calls.of(kind.way.graph if kind.way and kind.way.graph else self.graph)
            kind.steady = ready is not None and is_steady(ready.program)
        if kind.steady:
            size = batch_size(count)
            kind.seconds[size] = least = min(seconds, DRIFT * kind.seconds.get(size, seconds))
            (kind.quick.add if least <= QUICK else kind.quick.discard)(size)

    def run(self, kind: Kind, rows: Sequence[list[Any]], sizes: Sequence[tuple[int, ...] | None] = ()) -> list[Outcome]:
        """Run requests of one kind and return the outputs, or the error, of each."""
        if len(rows) > 1 or kind.padded:
            if kind.way is None:
                kind.way = self._way(kind, rows[0])
            if kind.way.graph is not None:
                if len(rows) <= kind.fits:
                    return self._together(kind, rows, sizes)
                parts = cuts(self.executor, kind.way, len(rows), 1)
                if len(parts) == 1:
                    kind.fits = len(rows)
                return [
                    outcome
                    for part in parts
                    for outcome in self._together(kind, rows[part.start : part.stop], sizes[part.start : part.stop])
                ]
        return [self._alone(row) for row in rows]

    def _way(self, kind: Kind, row: list[Any]) -> Way:
        if kind.padded:
            row = [np.zeros(shape, dtype) for shape, dtype in kind.key]
        values = self.shared | dict(zip(self.names, row, strict=True))
        columns = [[values[name]] for name in self.graph.inputs]
        group = Group(range(2), columns, tuple(self.names), tuple(_described(c[0]) for c in columns))
        return way_of(self.executor, self.graph, group)

    def _together(
        self, kind: Kind, rows: Sequence[list[Any]], sizes: Sequence[tuple[int, ...] | None]
    ) -> list[Outcome]:
        count, way = len(rows), kind.way
        if count == 1 and not kind.padded:
            return [self._alone(rows[0])]
        assert way is not None and way.graph is not None
        size = batch_size(count)
        try:
            if kind.padded:
                stacks = _padded(kind, rows, size)
            else:
                filled = rows if size == count else [*rows, *[rows[-1]] * (size - count)]
                stacks = [stack(column) for column in zip(*filled, strict=True)]
            inputs = {**self.shared, **dict(zip(self.names, stacks, strict=True))}
            with marked(self.executor, f"batch of {count}"):
                outputs = self._execute(kind.calls, way.graph, size, inputs)
        except CancelledError as error:  # the executor was told to stop: nothing would run alone either
            return [error.renamed(error.diagnostic.message) for _ in rows]
        except Exception as error:
            if count == 1:
                return [_raisable(error)]
            half = count // 2
            return [*self._together(kind, rows[:half], sizes[:half]), *self._together(kind, rows[half:], sizes[half:])]
        return self._handed_out(outputs, sizes or [None] * count)

    def _execute(self, calls: dict[int, LastCall], graph: EinsumGraph, size: int, inputs: dict[str, Any]) -> Outputs:
        """Run a batch; the executor compares it with the last one of its size, not with the last one."""
        executor = self.executor
        if executor.last_calls.of(graph) is None:
            calls.clear()  # it was told to forget them
        elif (ready := calls.get(size)) is not None:
            executor.last_calls[id(graph)] = ready
        outputs = executor.execute(graph, inputs)
        if (ready := executor.last_calls.of(graph)) is not None:
            calls[size] = ready  # perhaps of another size, by another thread: it is compared before it is used
        return outputs

    def _alone(self, row: list[Any]) -> Outcome:
        try:
            outputs = self.executor.execute(self.graph, {**self.shared, **dict(zip(self.names, row, strict=True))})
        except Exception as error:
            return _raisable(error)
        return outputs

    def _handed_out(self, outputs: Outputs, sizes: Sequence[tuple[int, ...] | None]) -> list[Outcome]:
        """Return what each request gets: arrays of its own, without what padding added."""
        names, count = tuple(outputs.keys()), len(sizes)
        columns = [
            [row.copy() for row in array[:count]] if array.ndim > 1 else [np.array(x) for x in array[:count]]
            for array in outputs
        ]
        if self.padding:
            for n, column in enumerate(columns):
                for p, padding in enumerate(self.padding):
                    if (axis := padding.axes[n]) is not None:
                        cut = (slice(None),) * axis
                        columns[n] = column = [
                            row if true is None else row[(*cut, slice(true[p]))].copy()
                            for row, true in zip(column, sizes, strict=True)
                        ]
        return [Outputs(names, row) for row in zip(*columns, strict=True)]


def _padded(kind: Kind, rows: Sequence[list[Any]], size: int) -> list[Any]:
    """Return the inputs of requests as stacks, each filled up with zeros."""
    stacks = [np.zeros((size, *shape), dtype) for shape, dtype in kind.key]
    for n, row in enumerate(rows):
        for array, value in zip(stacks, row, strict=True):
            place: Any = (n, *(slice(length) for length in value.shape))
            array[place] = value
    return stacks


def _described(value: Any) -> tuple[Any, Any]:
    return value.shape, value.dtype if type(value) is np.ndarray else type(value)


def _declared(graph: EinsumGraph, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the declared shape of an input for some sizes."""
    return tuple([int(evaluate(d, sizes)) for d in graph.type_of(graph.inputs[name]).shape or ()])


def _raisable(error: Exception) -> BaseException:
    """Return an error that a future can hold."""
    if isinstance(error, StopIteration):
        return ExecutionError(f"a step raised {error!r}", code="E455")
    return error


def _padding(graph: EinsumGraph, names: Sequence[str], size: str, multiple: int) -> Padding:
    """Check that a size may be filled up: each of its places is computed by itself, so that zeros beside it change nothing."""
    if size not in graph.size_names:
        raise InputError(
            f"the graph has no size {value_text(size)} to pad", *nearest(size, graph.size_names), code="E304"
        )
    axes = {}
    for name in graph.inputs:
        shape = graph.type_of(graph.inputs[name]).shape or ()
        places = [n for n, d in enumerate(shape) if d == size]
        if len(places) > 1 or (places and name not in names) or any(d != size and size in str(d) for d in shape):
            raise _not_padded(size, f"input {name!r} is {shape}")
        if places:
            axes[name] = places[0]
    known = known_inputs(graph, {}, None, stand_in=STAND_IN)
    for name in known.unranked:
        raise _not_padded(size, f"the shape of input {name!r} is not declared")
    cut = split_inputs(specialize(graph, known.types), axes)
    hows = {join.label: join for join in cut.joins}
    found: list[int | None] = []
    for name, stage, label in cut.outputs:
        join = hows.get(label)
        if stage == "after" or (join is not None and (join.how != "concat" or join.axis is None)):
            raise _not_padded(size, f"output {name!r} mixes its places")
        found.append(axes.get(label) if join is None else join.axis)  # an input may itself be an output
    return Padding(size, multiple, tuple(found))


def _not_padded(size: str, why: str) -> InputError:
    hint = "leave it out of pad=: requests are then grouped by shape"
    return InputError(f"size {size!r} cannot be padded: {why}", hint, code="E452")
