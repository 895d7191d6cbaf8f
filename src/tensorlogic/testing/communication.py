"""The conformance kit for communication: every collective of a :class:`~tensorlogic.CommunicationBackend` against one process that has all shares.

Every rank calls :func:`check_carrier` with its own backend and gets a report of what it received. What each rank gives follows from the
name of the case and its rank, so that every rank knows what all of them give, and works out for itself what must come.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, product
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


class _Values(NamedTuple):
    """What the ranks give in one case: arrays of one shape and dtype, each of which follows from the name and the rank."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def of(self, rank: int) -> Array:
        """Return the array of a rank: few distinct values, small enough for products."""
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), rank])
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if self.dtype in FLOATS:
            return (rng.integers(0, 9, self.shape) / 8).astype(self.dtype)
        return rng.integers(-3 if self.dtype[0] == "i" else 0, 4, self.shape).astype(self.dtype)

    def given(self, rank: int) -> Array:
        """Return the array of a rank as one that is read-only and, of two axes, not contiguous."""
        x = np.array(self.of(rank), order="F")  # asfortranarray would give a scalar an axis
        x.flags.writeable = False
        return x

    def combined(self, how: str, ranks: int) -> Array:
        """Return the arrays of all ranks as one, as a reduction combines them."""
        values = np.stack([self.of(rank) for rank in range(ranks)])
        wide = values.astype("float64") if self.dtype in FLOATS else values
        return REDUCE[how](wide).astype(values.dtype)

    def share(self, whole: Array, axis: int, ranks: int, rank: int) -> Array:
        """Return a rank's share of an array along an axis."""
        return range_of(whole, axis, share(self.shape[axis], ranks, rank))

    def twice(self) -> list[_Values]:
        """Return two such values under names of their own."""
        return [self._replace(name=f"{self.name} {word}") for word in ("first", "second")]


def _case(
    exchange: str, name: str, shape: tuple[int, ...], dtype: str, *args: Any, sampled: bool = True, least: int = 1
) -> CarrierCase:
    """Return the case of an exchange: a row of EXCHANGES for some values and its own arguments."""
    run, expected = EXCHANGES[exchange]
    values = _Values(f"{exchange}/{name}", shape, dtype)
    return CarrierCase(values.name, partial(run, values, *args), partial(expected, values, *args), sampled, least)


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


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _reductions() -> Iterator[CarrierCase]:
    """Values combined over all ranks, of which each has all, or a share along either axis."""
    for how, dtype, shape in product(COMBINATIONS, _known_dtypes(), (*SHAPES, ())):
        if _fits(how, dtype):
            name, usual = f"{how}/{dtype}/{_text(shape)}", dtype in SAMPLED
            yield _case("all_reduce", name, shape, dtype, how, sampled=usual and shape in SHAPES[:2])
            for axis in range(len(shape)):
                sampled = usual and shape in SHAPES[1:3]
                yield _case("reduce_scatter", f"{name}/{axis}", shape, dtype, how, axis, sampled=sampled)
    for dtype in ("float32", "float64"):
        for length in (7, 0, 12_000):  # a long one may take another way
            yield _case("start_all_reduce", f"{dtype}/{length}", (length,), dtype)


def _moves() -> Iterator[CarrierCase]:
    """Shares put together, shares along one axis that become shares along another, and the value of one rank."""
    for dtype, shape in product(_known_dtypes(), SHAPES):
        name, sampled = f"{dtype}/{_text(shape)}", dtype in (*SAMPLED, "uint16")
        for axis in (0, 1):
            yield _case("all_gather", f"{name}/{axis}", shape, dtype, axis, sampled=sampled)
            yield _case("all_to_all", f"{name}/{axis}", shape, dtype, axis, 1 - axis, sampled=sampled)
        yield _case("broadcast", f"{name}/first", shape, dtype, 0, sampled=sampled)
        yield _case("broadcast", f"{name}/last", shape, dtype, -1, sampled=sampled)


def _messages() -> Iterator[CarrierCase]:
    """Arrays from each rank to the next, two on the way at a time; and sums within groups of some ranks."""
    for dtype, shape in product(_known_dtypes(), SHAPES[1:]):
        yield _case("send", f"{dtype}/{_text(shape)}", shape, dtype, sampled=dtype in SAMPLED, least=2)
    for step in (1, 2):
        yield _case("group", str(step), (3, 2), "float64", step, least=2)


def _algebras() -> Iterator[CarrierCase]:
    """A contraction in every algebra whose contracted index lies in shares: the graph of a rank, on the reference backend."""
    for algebra, dtype in product(ALGEBRAS, ("bool", "int32", "float16", "float32", "float64")):
        if not (dtype == "bool" and ALGEBRAS[algebra].numbers):
            yield _case("algebra", f"{algebra}/{dtype}", (), dtype, algebra, sampled=dtype != "int32")


def _started(values: _Values, way: Way) -> Array:
    """Begin two sums, each of two operands, and wait for them from the last to the first; three times."""
    for _ in range(3):
        totals = [np.empty(values.shape, values.dtype) for _ in values.twice()]
        for each, total in zip(values.twice(), totals, strict=True):
            own = each.of(way.rank)
            way.start_all_reduce([own[:3].reshape(1, -1), own[3:]], total, "add", each.name)
        for each in reversed(values.twice()):
            way.wait(each.name)
    return np.concatenate(totals)


def _ring(values: _Values, way: Way) -> Array:
    """Send two arrays to the next rank, and return the two that the rank before has sent."""
    after, before = (way.rank + 1) % way.size, (way.rank - 1) % way.size

    def send() -> None:
        for each in values.twice():
            way.send(each.given(way.rank), after, each.name)

    if way.rank == 0:  # somebody must begin, where sending waits for the one who receives
        send()
    received = [way.receive(before, each.name, values.shape, values.dtype) for each in values.twice()]
    if way.rank != 0:
        send()
    return np.concatenate(received)


def _members(ranks: int, rank: int, step: int) -> list[int]:
    return [other for other in range(ranks) if other % step == rank % step]


def _contraction(values: _Values, algebra: str) -> tuple[EinsumGraph, dict[str, Array]]:
    name, _, dtype = values
    b = GraphBuilder()
    y = b.einsum("ij,jk->ik", b.input("x", (3, 13), dtype), b.input("w", (13, 2), dtype), algebra=algebra)
    inputs = {"x": _Values(f"{name} x", (3, 13), dtype).of(0), "w": _Values(f"{name} w", (13, 2), dtype).of(0)}
    degrees = {n: np.clip(x, 0, 1).astype(dtype) for n, x in inputs.items()} if algebra in DEGREES else inputs
    return b.build(y=y), degrees


def _sharded(values: _Values, algebra: str, way: Way) -> Array:
    graph, inputs = _contraction(values, algebra)
    if way.size == 1:
        return np.array(evaluate(graph, inputs)["y"])
    own = shard(graph, {"x": 1, "w": 0}, way.size, way.rank)
    cut = {n: range_of(x, own.inputs[n], share(13, way.size, way.rank)) for n, x in inputs.items()}
    with meeting({"data": way}):
        return np.array(evaluate(own.graph, cut)["y"])


# by the name of an exchange: what a rank does on its way, given values and more, and what the rank must receive
EXCHANGES: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "all_reduce": (
        lambda v, how, way: way.all_reduce(v.given(way.rank), how),
        lambda v, how, ranks, rank: v.combined(how, ranks),
    ),
    "reduce_scatter": (
        lambda v, how, axis, way: way.reduce_scatter(v.given(way.rank), axis, how),
        lambda v, how, axis, ranks, rank: v.share(v.combined(how, ranks), axis, ranks, rank),
    ),
    "start_all_reduce": (
        _started,
        lambda v, ranks, rank: np.concatenate([each.combined("add", ranks) for each in v.twice()]),
    ),
    "all_gather": (
        lambda v, axis, way: way.all_gather(v.share(v.given(0), axis, way.size, way.rank), axis, v.shape[axis]),
        lambda v, axis, ranks, rank: v.of(0),
    ),
    "all_to_all": (
        lambda v, cut, joined, way: way.all_to_all(
            v.share(v.given(0), joined, way.size, way.rank), cut, joined, v.shape[joined]
        ),
        lambda v, cut, joined, ranks, rank: v.share(v.of(0), cut, ranks, rank),
    ),
    "broadcast": (
        lambda v, root, way: way.broadcast(v.given(way.rank), root % way.size),
        lambda v, root, ranks, rank: v.of(root % ranks),
    ),
    "send": (_ring, lambda v, ranks, rank: np.concatenate([each.of((rank - 1) % ranks) for each in v.twice()])),
    "group": (
        lambda v, step, way: way.group(_members(way.size, way.rank, step)).all_reduce(v.given(way.rank), "add"),
        lambda v, step, ranks, rank: np.sum([v.of(other) for other in _members(ranks, rank, step)], axis=0),
    ),
    "algebra": (
        _sharded,
        lambda v, algebra, ranks, rank: np.asarray(evaluate(*_contraction(v, algebra))["y"]),
    ),
}
