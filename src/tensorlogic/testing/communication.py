"""The conformance kit for communication: every collective of a :class:`~tensorlogic.CommunicationBackend` against one process that has all shares.

Every rank calls :func:`check_carrier` with its own backend and gets a report of what it received. What each rank gives follows from the
name of the case and its rank, so that every rank knows what all of them give, and works out for itself what must come.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ..backends.collectives import CommunicationBackend
from ..backends.reference import evaluate
from ..errors import InputError
from ..ir.algebra import ALGEBRAS
from ..ir.builder import GraphBuilder
from ..ir.collectives import share
from ..ir.graph import EinsumGraph
from ..ir.ops import COMBINATIONS
from ..ir.types import DTYPES, FLOATS
from ..observe.compare_arrays import difference
from ..passes.shard import shard
from ..runtime.distributed.rank import meeting
from ..runtime.parts import range_of
from .backend import CaseResult, ConformanceReport
from .cases import DEGREES

Array = Any
Way = CommunicationBackend
SHAPES = ((12, 3), (7, 4), (1, 2), (0, 3))  # divides evenly, does not, leaves ranks empty, and is empty
SAMPLED = ("bool", "int64", "float16", "float32")
REDUCE: dict[str, Callable[[Array], Array]] = {  # the values of all ranks, stacked, as one
    "add": lambda x: x.any(0) if x.dtype == bool else x.sum(0, dtype=x.dtype),
    "multiply": lambda x: x.all(0) if x.dtype == bool else x.prod(0, dtype=x.dtype),
    "maximum": lambda x: x.max(0),
    "minimum": lambda x: x.min(0),
    "or": lambda x: x.any(0),
    "and": lambda x: x.all(0),
    "logaddexp": lambda x: np.log(np.exp(x).sum(0)),
    "noisy_or": lambda x: 1 - (1 - x).prod(0),
}


class CarrierCase(NamedTuple):
    """One exchange: what a rank does on its way, and what it must receive; ``sampled`` cases run in every test run.

    >>> next(carrier_cases()).name
    'all_reduce/add/bool/12x3'
    """

    name: str
    run: Callable[[Way], Array]
    expected: Callable[[int, int], Array]  # of the number of ranks, and the rank
    sampled: bool = True
    least: int = 1  # ranks that it takes


def check_carrier(way: Way, *, include: Sequence[str] = ("*",), full: bool = False) -> ConformanceReport:
    """Run the cases on one rank of a group, while the others do the same, and return how they went.

    >>> from tensorlogic.runtime.distributed.local import local_group
    >>> (alone,) = local_group(1)
    >>> check_carrier(alone, include=["all_gather/*"]).passed
    True
    """
    patterns = (include,) if isinstance(include, str) else tuple(include)
    results = []
    for case in carrier_cases(full=full):
        if way.size < case.least or not any(fnmatchcase(case.name, pattern) for pattern in patterns):
            continue
        with np.errstate(all="ignore"):
            problem = _problem(case, way)
        results.append(CaseResult(case.name, "passed" if problem is None else "failed", problem or ""))
    if not results:
        hint = "names look like 'all_reduce/add/float32/7x4'"
        raise InputError(f"no case matches include={list(patterns)}", hint, code="E362")
    return ConformanceReport(tuple(results))


def _problem(case: CarrierCase, way: Way) -> str | None:
    received = case.run(way)  # what it raises would leave the others waiting: that is no failed case, but the end
    found = difference(received, case.expected(way.size, way.rank))
    if found is not None:
        return f"rank {way.rank} of {way.size}: {found}"
    return None if received.flags.writeable else f"rank {way.rank} of {way.size}: the result is read-only"


def carrier_cases(*, full: bool = False) -> Iterator[CarrierCase]:
    """Return the cases, one by one; with ``full`` the whole product of collectives, dtypes and shapes."""
    return (case for case in chain(_reductions(), _moves(), _messages(), _algebras()) if full or case.sampled)


def _values(name: str, shape: Sequence[int], dtype: str, rank: int) -> Array:
    """Return what a rank gives: few distinct values, small enough for products."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), rank])
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in FLOATS:
        return (rng.integers(0, 9, shape) / 8).astype(dtype)
    return rng.integers(-3 if dtype[0] == "i" else 0, 4, shape).astype(dtype)


def _given(name: str, shape: Sequence[int], dtype: str, rank: int) -> Array:
    """Return what a rank gives as an array that is read-only and, of two axes, not contiguous."""
    x = np.array(_values(name, shape, dtype, rank), order="F")  # asfortranarray would give a scalar an axis
    x.flags.writeable = False
    return x


def _stacked(name: str, shape: Sequence[int], dtype: str, ranks: int) -> Array:
    return np.stack([_values(name, shape, dtype, rank) for rank in range(ranks)])


def _combined(how: str, values: Array) -> Array:
    wide = values.astype("float64") if values.dtype.name in FLOATS else values
    return REDUCE[how](wide).astype(values.dtype)


def _known_dtypes() -> list[str]:
    """Return the dtypes that NumPy has here; bfloat16 comes with a package of its own."""
    found = []
    for dtype in DTYPES:
        try:
            np.dtype(dtype)
        except TypeError:
            continue
        found.append(dtype)
    return found


def _fits(how: str, dtype: str) -> bool:
    if how in ("or", "and"):
        return dtype == "bool"
    return dtype in FLOATS - {"bfloat16"} if how in ("logaddexp", "noisy_or") else dtype != "bfloat16"


def _reductions() -> Iterator[CarrierCase]:
    """Values combined over all ranks, of which each has all, or a share along either axis."""
    for how in COMBINATIONS:
        for dtype in _known_dtypes():
            for shape in (*SHAPES, ()):
                if not _fits(how, dtype):
                    continue
                text = f"{how}/{dtype}/{'x'.join(map(str, shape)) or 'scalar'}"
                yield _all_reduce(f"all_reduce/{text}", how, shape, dtype)
                for axis in range(len(shape)):
                    yield _reduce_scatter(f"reduce_scatter/{text}/{axis}", how, shape, dtype, axis)

    for dtype in ("float32", "float64"):
        for length in (7, 0, 12_000):  # a long one may take another way
            yield _started(f"start_all_reduce/{dtype}/{length}", (length,), dtype)


def _started(name: str, shape: tuple[int, ...], dtype: str) -> CarrierCase:
    """Two sums, each of two operands, that are on the way together, and waited for from the last to the first; then both again."""
    labels = (f"{name} first", f"{name} second")

    def run(way: Way) -> Array:
        for _ in range(3):
            totals = [np.empty(shape, dtype) for _ in labels]
            for label, total in zip(labels, totals, strict=True):
                own = _values(label, shape, dtype, way.rank)
                way.start_all_reduce([own[:3].reshape(1, -1), own[3:]], total, "add", label)
            for label in reversed(labels):
                way.wait(label)
        return np.concatenate(totals)

    return CarrierCase(
        name,
        run,
        lambda ranks, rank: np.concatenate([_combined("add", _stacked(n, shape, dtype, ranks)) for n in labels]),
    )


def _all_reduce(name: str, how: str, shape: tuple[int, ...], dtype: str) -> CarrierCase:
    return CarrierCase(
        name,
        lambda way: way.all_reduce(_given(name, shape, dtype, way.rank), how),
        lambda ranks, rank: _combined(how, _stacked(name, shape, dtype, ranks)),
        dtype in SAMPLED and shape in SHAPES[:2],
    )


def _reduce_scatter(name: str, how: str, shape: tuple[int, ...], dtype: str, axis: int) -> CarrierCase:
    def expected(ranks: int, rank: int) -> Array:
        whole = _combined(how, _stacked(name, shape, dtype, ranks))
        return range_of(whole, axis, share(shape[axis], ranks, rank))

    return CarrierCase(
        name,
        lambda way: way.reduce_scatter(_given(name, shape, dtype, way.rank), axis, how),
        expected,
        dtype in SAMPLED and shape in SHAPES[1:3],
    )


def _moves() -> Iterator[CarrierCase]:
    """Shares put together, shares along one axis that become shares along another, and the value of one rank."""
    for dtype in _known_dtypes():
        for shape in SHAPES:
            text = f"{dtype}/{'x'.join(map(str, shape))}"
            sampled = dtype in (*SAMPLED, "uint16")
            for axis in (0, 1):
                yield _all_gather(f"all_gather/{text}/{axis}", shape, dtype, axis, sampled)
                yield _all_to_all(f"all_to_all/{text}/{axis}", shape, dtype, axis, 1 - axis, sampled)
            yield _broadcast(f"broadcast/{text}/first", shape, dtype, 0, sampled)
            yield _broadcast(f"broadcast/{text}/last", shape, dtype, -1, sampled)


def _own(name: str, shape: tuple[int, ...], dtype: str, axis: int, way: Way) -> Array:
    """Return a rank's share of a value that all of them know."""
    return range_of(_given(name, shape, dtype, 0), axis, share(shape[axis], way.size, way.rank))


def _all_gather(name: str, shape: tuple[int, ...], dtype: str, axis: int, sampled: bool) -> CarrierCase:
    return CarrierCase(
        name,
        lambda way: way.all_gather(_own(name, shape, dtype, axis, way), axis, shape[axis]),
        lambda ranks, rank: _values(name, shape, dtype, 0),
        sampled,
    )


def _all_to_all(name: str, shape: tuple[int, ...], dtype: str, cut: int, joined: int, sampled: bool) -> CarrierCase:
    return CarrierCase(
        name,
        lambda way: way.all_to_all(_own(name, shape, dtype, joined, way), cut, joined, shape[joined]),
        lambda ranks, rank: range_of(_values(name, shape, dtype, 0), cut, share(shape[cut], ranks, rank)),
        sampled,
    )


def _broadcast(name: str, shape: tuple[int, ...], dtype: str, root: int, sampled: bool) -> CarrierCase:
    return CarrierCase(
        name,
        lambda way: way.broadcast(_given(name, shape, dtype, way.rank), root % way.size),
        lambda ranks, rank: _values(name, shape, dtype, root % ranks),
        sampled,
    )


def _messages() -> Iterator[CarrierCase]:
    """Arrays from each rank to the next, two on the way at a time; and sums within groups of some ranks."""
    for dtype in _known_dtypes():
        for shape in SHAPES[1:]:
            name = f"send/{dtype}/{'x'.join(map(str, shape))}"
            yield CarrierCase(name, _ring(name, shape, dtype), _before(name, shape, dtype), dtype in SAMPLED, least=2)
    for step in (1, 2):
        name = f"group/{step}"
        yield CarrierCase(name, _in_group(name, step), _group_sum(name, step), least=2)


def _ring(name: str, shape: tuple[int, ...], dtype: str) -> Callable[[Way], Array]:
    def run(way: Way) -> Array:
        after, before = (way.rank + 1) % way.size, (way.rank - 1) % way.size
        labels = (f"{name} first", f"{name} second")

        def send() -> None:
            for label in labels:
                way.send(_given(label, shape, dtype, way.rank), after, label)

        if way.rank == 0:  # somebody must begin, where sending waits for the one who receives
            send()
        received = [way.receive(before, label, shape, dtype) for label in labels]
        if way.rank != 0:
            send()
        return np.concatenate(received)

    return run


def _before(name: str, shape: tuple[int, ...], dtype: str) -> Callable[[int, int], Array]:
    labels = (f"{name} first", f"{name} second")
    return lambda ranks, rank: np.concatenate([_values(n, shape, dtype, (rank - 1) % ranks) for n in labels])


def _members(ranks: int, rank: int, step: int) -> list[int]:
    return [other for other in range(ranks) if other % step == rank % step]


def _in_group(name: str, step: int) -> Callable[[Way], Array]:
    def run(way: Way) -> Array:
        own = way.group(_members(way.size, way.rank, step))
        return own.all_reduce(_given(name, (3, 2), "float64", way.rank), "add")

    return run


def _group_sum(name: str, step: int) -> Callable[[int, int], Array]:
    def expected(ranks: int, rank: int) -> Array:
        values = [_values(name, (3, 2), "float64", other) for other in _members(ranks, rank, step)]
        return np.sum(values, axis=0)

    return expected


def _algebras() -> Iterator[CarrierCase]:
    """A contraction in every algebra whose contracted index lies in shares: the graph of a rank, on the reference backend."""
    for algebra in ALGEBRAS:
        for dtype in ("bool", "int32", "float16", "float32", "float64"):
            if dtype == "bool" and ALGEBRAS[algebra].numbers:
                continue
            name = f"algebra/{algebra}/{dtype}"
            yield CarrierCase(name, _sharded(name, algebra, dtype), _contracted(name, algebra, dtype), dtype != "int32")


def _contraction(name: str, algebra: str, dtype: str) -> tuple[EinsumGraph, dict[str, Array]]:
    b = GraphBuilder()
    y = b.einsum("ij,jk->ik", b.input("x", (3, 13), dtype), b.input("w", (13, 2), dtype), algebra=algebra)
    inputs = {"x": _values(f"{name} x", (3, 13), dtype, 0), "w": _values(f"{name} w", (13, 2), dtype, 0)}
    degrees = {n: np.clip(x, 0, 1).astype(dtype) for n, x in inputs.items()} if algebra in DEGREES else inputs
    return b.build(y=y), degrees


def _sharded(name: str, algebra: str, dtype: str) -> Callable[[Way], Array]:
    def run(way: Way) -> Array:
        graph, inputs = _contraction(name, algebra, dtype)
        if way.size == 1:
            return np.array(evaluate(graph, inputs)["y"])
        own = shard(graph, {"x": 1, "w": 0}, way.size, way.rank)
        cut = {n: range_of(x, own.inputs[n], share(13, way.size, way.rank)) for n, x in inputs.items()}
        with meeting({"data": way}):
            return np.array(evaluate(own.graph, cut)["y"])

    return run


def _contracted(name: str, algebra: str, dtype: str) -> Callable[[int, int], Array]:
    def expected(ranks: int, rank: int) -> Array:
        graph, inputs = _contraction(name, algebra, dtype)
        return np.asarray(evaluate(graph, inputs)["y"])

    return expected
