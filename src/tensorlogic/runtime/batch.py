"""Many inputs at once: items whose shapes agree run as one more index of the graph, the others by groups.

A batch is the graph of :func:`~tensorlogic.passes.batch.batched` on stacked inputs, through the same call as one item. An array
that is the same object in all items (weights) is not stacked. An item that fails does so alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import CancelledError, InputError, OutOfMemoryError, TensorLogicError
from ..events import active_contexts, entered, running, span, watchers
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..passes.split import parts
from ..plan.cost import nbytes
from ..store import Store
from .batch_groups import Group, by_kind, of_item, uniform
from .batch_result import BatchResult, Piece
from .context import context_room
from .values import Inputs, check_call

if TYPE_CHECKING:
    from .distributed.config import DistributedConfig
    from .executor import Executor

WORKING_SET = 4 << 20  # bytes of items that run at once: more would leave the caches of a processor
LARGE = 1 << 20  # bytes of one item from which a batch saves nothing over one call an item
ROOM = 64 << 20  # bytes of a batch below which nobody asks how much memory there is


class Way(NamedTuple):
    """How items of one kind run: the graph for many of them, or why there is none; and the bytes that one item takes."""

    graph: EinsumGraph | None
    reason: str
    item_bytes: int = 0
    fixed_bytes: int = 0


def execute_batch(
    executor: Executor,
    graph: EinsumGraph,
    items: Iterable[Inputs],
    threads: int = 1,
    clock: Callable[[], float] = perf_counter,
    distributed: DistributedConfig | None = None,
) -> BatchResult:
    """Run a graph on many items, on some threads or on the devices of a config, and return what each of them gives."""
    start = clock()
    check_call(graph, {})
    ranks = 1
    if distributed is not None:
        from .distributed.rows import check_rows_config

        check_rows_config(distributed)
        ranks = distributed.mesh.size
    given = _listed(items)
    errors: dict[int, Exception] = {}
    groups = uniform(graph, given)
    if groups is None:
        groups = by_kind(executor, graph, given, errors)
    if graph.scores and executor.programs.scores_unseen(graph):
        _look_at_scores(executor, graph, groups)
    pieces: list[Piece] = []
    ways: list[Callable[[], str]] = []
    calls: list[Callable[[], None]] = []
    for group in groups:
        way = way_of(executor, graph, group, ranks)
        ranges = cuts(executor, way, len(group.items), threads, ranks)
        ways.append(partial(_described, way, len(group.items), group.over, ranges))
        for part in ranges:
            if threads > 1:
                calls.append(partial(_run, executor, graph, given, group, way, part, pieces, errors, distributed))
            else:
                _run(executor, graph, given, group, way, part, pieces, errors, distributed)
    if len(calls) > 1:
        _side_by_side(calls, threads)
    elif calls:
        calls[0]()
    failed = {n: errors[n] for n in sorted(errors)} if errors else errors
    return BatchResult(len(given), pieces, failed, ways, (clock() - start) * 1e3, graph.output_names)


def _look_at_scores(executor: Executor, graph: EinsumGraph, groups: Iterable[Group]) -> None:
    """Warn of truth values outside of 0 to 1 in any item: the graph that computes many at once is not looked at."""
    for group in groups:
        for name, column in zip(graph.inputs, group.columns, strict=True):
            if name not in group.over:
                executor.programs.look_at_scores(graph, [(name, column[0])])
            elif name in graph.scores:
                for n, value in zip(group.items, column, strict=True):
                    executor.programs.look_at_scores(graph, [(name, value)], f"item {n}: ")


def _listed(items: Any) -> Sequence[Inputs]:
    if type(items) is list:
        return items
    frame = hasattr(items, "columns")  # it would give the names of its columns as items
    if frame or isinstance(items, Mapping | str | bytes) or not isinstance(items, Iterable):
        hints = (
            'write execute_batch(graph, [{"x": first}, {"x": second}])',
            "arrays that are stacked already go to tl.batched",
        )
        kind = type(items).__name__
        raise InputError(f"a batch is a list of mappings of names to arrays, got a {kind}", *hints, code="E512")
    return list(items)


# how they run


def way_of(executor: Executor, graph: EinsumGraph, group: Group, ranks: int = 1) -> Way:
    """Return how a group runs, which is worked out once for each kind of items; several ranks share items of any size."""
    if len(group.items) == 1:
        return Way(None, "there is one")
    if not group.over:
        return Way(None, "")  # one run gives the answer of all
    if executor.batches is None:
        executor.batches = Store(executor.programs.store.bound)
    last = executor.last_batch
    if last is not None and last[0][0] is graph:  # hashing a key takes longer
        _, over, kind, shared = last[0]
        if over == group.over and kind == group.kind and shared == (ranks > 1):
            return last[1]
    key = (graph, group.over, group.kind, ranks > 1)
    found: Way | None = executor.batches.get(key)
    if found is None:
        found = _new_way(executor, graph, group, ranks)
        executor.batches.put(key, found)
    executor.last_batch = key, found
    return found


def _new_way(executor: Executor, graph: EinsumGraph, group: Group, ranks: int) -> Way:
    from ..passes.batch import batched
    from ..passes.specialize import specialize

    values = [column[0] for column in group.columns]
    if any(type(v) is not np.ndarray for v in values):
        return Way(None, "their inputs are not plain arrays")
    types = {n: TensorType.of(v) for n, v in zip(graph.inputs, values, strict=True)}
    try:
        many = batched(specialize(graph, types), group.over)
        few, more = (_bytes(executor, many, types, group.over, count) for count in (1, 9))
    except CancelledError:
        raise
    except TensorLogicError as error:
        return Way(None, f"as one more index they are refused: {error.diagnostic.message}")
    each = max(1, (more - few) // 8)
    if each >= LARGE and ranks == 1:
        return Way(None, f"each takes {each / 1e6:,.1f} MB, and one call is as fast")
    return Way(many, "", each, max(0, few - each))


def _bytes(
    executor: Executor, many: EinsumGraph, types: Mapping[str, TensorType], over: Sequence[str], count: int
) -> int:
    """Return the bytes that a run of so many items takes, with the stacks of their inputs."""
    from ..ir.types import TensorShape

    sizes = {n: t._replace(shape=TensorShape((count, *(t.shape or ())))) if n in over else t for n, t in types.items()}
    plan = executor.programs.options(many, sizes, None)[0]
    return plan.peak_bytes + sum(nbytes(sizes[n]) for n in over)


def room(executor: Executor) -> int | None:
    """Return the least of the limits of memory that hold for runs now; None without any."""
    limits = (executor.programs.memory_limit, context_room((executor.context, *active_contexts())))
    return min((limit for limit in limits if limit is not None), default=None)


def most_at_once(executor: Executor, way: Way, limit: int | None, threads: int = 1) -> int:
    """Return how many items fit into the memory that a batch may take."""
    if limit is None:
        limit = room(executor)
    if limit is None:
        from ..plan.memory import available_memory

        limit = available_memory() // 2
    return max(1, (limit // threads - way.fixed_bytes) // max(1, way.item_bytes))


def cuts(executor: Executor, way: Way, count: int, threads: int, ranks: int = 1) -> list[range]:
    """Return the ranges of a group's items that run at once, shared by some ranks."""
    if way.graph is None:
        return parts(count, threads) if way.reason else [range(count)]
    limited = room(executor) is not None
    if threads == 1 and not limited and count * way.item_bytes <= WORKING_SET * ranks:
        return [range(count)]
    most = max(ranks, WORKING_SET * ranks // way.item_bytes)
    if limited or count * way.item_bytes * threads > ROOM:
        most = min(most, most_at_once(executor, way, None, threads))
    return parts(count, max(-(-count // most), min(threads, count)))


def _described(way: Way, count: int, over: Sequence[str], ranges: Sequence[range]) -> str:
    items = f"{count:,} item{'s' * (count != 1)}"
    if way.graph is None:
        return f"{items} one by one: {way.reason}" if way.reason else f"{items} by one run: their inputs are the same"
    index = f"{items} as one more index of {', '.join(map(repr, over))}"
    return index if len(ranges) == 1 else f"{index}, in {len(ranges)} parts of up to {len(ranges[0]):,}"


def _run(
    executor: Executor,
    graph: EinsumGraph,
    items: Sequence[Inputs],
    group: Group,
    way: Way,
    part: range,
    pieces: list[Piece],
    errors: dict[int, Exception],
    distributed: DistributedConfig | None,
) -> None:
    """Run a range of a group's items and note what they give; where that fails, each of them runs alone."""
    places = group.items[part.start : part.stop]
    if len(places) == 1 or (way.graph is None and way.reason):
        return _one_by_one(executor, graph, items, places, pieces, errors)
    try:
        with marked(executor, f"batch of {len(places)}"):
            pieces.append(_together(executor, graph, group, way, part, places, distributed))
    except CancelledError:
        raise
    except OutOfMemoryError:  # fewer may fit
        for half in parts(len(part), 2):
            own = range(part.start + half.start, part.start + half.stop)
            _run(executor, graph, items, group, way, own, pieces, errors, distributed)
    except Exception:  # whichever item it was: it fails again, alone
        _one_by_one(executor, graph, items, places, pieces, errors)


_UNMARKED = nullcontext()


def marked(executor: Executor, name: str) -> AbstractContextManager[None]:
    """Return a span for those who watch the executor; without any, nothing is noted."""
    own = (*executor.context.hooks, *executor.profiles.hooks)
    return span(name, own) if own or running.listening or active_contexts() or watchers() else _UNMARKED


def _together(
    executor: Executor,
    graph: EinsumGraph,
    group: Group,
    way: Way,
    part: range,
    places: Sequence[int],
    distributed: DistributedConfig | None,
) -> Piece:
    names = graph.inputs
    if way.graph is None:  # nothing differs between items
        same = {n: column[0] for n, column in zip(names, group.columns, strict=True)}
        values = executor.execute(graph, same).values()
        return Piece(places, [np.repeat(np.asarray(v)[None], len(places), 0) for v in values])
    whole = len(part) == len(group.items)
    inputs = {}
    for n, column in zip(names, group.columns, strict=True):
        own = column if whole else column[part.start : part.stop]
        inputs[n] = stack(own) if n in group.over else column[0]
    if distributed is not None:
        from .distributed.rows import execute_rows

        axes = dict.fromkeys(group.over, 0)
        return Piece(places, execute_rows(executor, way.graph, inputs, axes, distributed).values())
    return Piece(places, executor.execute(way.graph, inputs).values())


def stack(arrays: Sequence[Any]) -> Any:
    """Return arrays of one shape and dtype as one array, in an axis in front; many times as fast as ``numpy.stack``.

    >>> stack([np.arange(3), np.ones(3, int)])
    array([[0, 1, 2],
           [1, 1, 1]])
    """
    first = arrays[0]
    try:
        joined = np.frombuffer(bytearray().join(arrays), first.dtype)
    except (ValueError, TypeError, BufferError):  # some are not laid out in C order, or all are empty
        return np.stack(arrays)
    return joined.reshape(len(arrays), *first.shape)


def _one_by_one(
    executor: Executor,
    graph: EinsumGraph,
    items: Sequence[Inputs],
    places: Iterable[int],
    pieces: list[Piece],
    errors: dict[int, Exception],
) -> None:
    for n in places:
        try:
            with marked(executor, f"item {n}"):
                values = executor.execute(graph, items[n]).values()
        except CancelledError:
            raise
        except Exception as error:
            errors[n] = of_item(error, n)
        else:
            pieces.append(Piece((n,), values, single=True))


def _side_by_side(calls: Sequence[Callable[[], None]], threads: int) -> None:
    """Run ranges of items on threads of the one pool, each within the contexts that hold here."""
    from ..backends.threads import on_one_thread, together

    active = active_contexts()

    def inside(call: Callable[[], None]) -> None:
        with entered(active):
            call()

    on_one_thread(together)([partial(inside, call) for call in calls], threads)
