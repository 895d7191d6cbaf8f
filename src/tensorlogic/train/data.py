"""Training data: arrays cut into batches in an order that a seed and the number of an epoch fix, or batches that come by themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import FormatError, InputError, TensorLogicError, expect, nearest
from ..events import check_contexts
from ..ir.files import no_file
from ..ir.types import TensorType, named_array
from ..lang.data_files import arrow_module
from ..runtime.streams.array_sources import HEAD_ERRORS, PACK_ERRORS
from ..runtime.streams.blocks import Wanted
from ..runtime.streams.reader import Ahead
from ..runtime.streams.table_columns import batch_rows, columns_for

Arrays = Mapping[str, Any]
Data = Any  # arrays by name, a data frame, a path, or an iterable of batches
SAMPLE = 64  # rows of each array that its digest covers


class Batch(NamedTuple):
    """Some rows of the data: how many, and the arrays by name, which are valid until the next batch."""

    rows: int
    arrays: dict[str, Any]


class Needed(NamedTuple):
    """The inputs of a graph that data is for, and others that it may have and that are left alone (None: any)."""

    names: Sequence[str]
    others: Collection[str] | None = ()
    given: Collection[str] = ()  # what is known without data
    learnable: Collection[str] = ()  # inputs that a forgotten parameter could be: floats of a fixed shape

    def of(self, arrays: Arrays) -> Arrays:
        """Return the arrays that are wanted; one that is missing, or unknown, is refused."""
        if not arrays or arrays.keys() == set(self.names):
            return arrays
        for name in arrays:
            if self.others is not None and name not in self.others and name not in self.names:
                hints = [f"it is in params=, states= or fixed= already: leave {name!r} out of one of them"]
                hints = hints if name in self.given else nearest(name, self.names)
                raise InputError(f"the loss graph has no input {name!r} for data", *hints, code="E868")
        for name in self.names:
            if name not in arrays:
                learned = f"give its first value: params={{..., {name!r}: ...}}, or give it in data= or fixed="
                data = f"give it: data={{..., {name!r}: ...}}, or in params= or fixed="
                hint = learned if name in self.learnable else data
                raise InputError(f"nothing is given for the input {name!r}", hint, code="E869")
        return {name: arrays[name] for name in self.names}


class ArrayBatches:
    """Arrays with one row for each example, in batches; shuffled in each epoch, in an order that depends only on the seed.

    >>> data = ArrayBatches({"x": np.arange(5)}, size=2, seed=None)
    >>> [batch.arrays["x"].tolist() for batch in data.epoch(0)]
    [[0, 1], [2, 3], [4]]
    """

    replayable = True

    def __init__(self, arrays: Arrays, size: int, seed: int | None, *, drop_last: bool = False) -> None:
        self.arrays = {name: _array(name, value) for name, value in arrays.items()}
        self.rows = _rows(self.arrays)
        size = size if drop_last else min(size, self.rows)
        if size > self.rows:
            hint = f"use batch_size={self.rows} or less, or keep the short batch: drop_last=False"
            raise InputError(f"a batch of {size:,} is larger than the data: {self.rows:,} examples", hint, code="E850")
        self.size, self.seed, self.drop_last = size, seed, drop_last
        self._kept: dict[int, dict[str, Any]] = {}  # arrays that shuffled rows are copied into, by how many rows

    def count(self) -> int:
        """Return the number of batches of an epoch."""
        return self.rows // self.size if self.drop_last else -(-self.rows // self.size)

    def digest(self) -> str:
        """Return what tells these arrays from others: names, shapes, dtypes, and some rows, because all would take long."""
        found = blake2b(digest_size=16)
        for name, array in sorted(self.arrays.items()):
            found.update(f"{name} {array.shape} {array.dtype}".encode())
            found.update(np.ascontiguousarray(array[:: -(-self.rows // SAMPLE)]).tobytes())
        return found.hexdigest()

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Go through the batches of an epoch, from the one with number ``first``."""
        order = None if self.seed is None else np.random.default_rng([self.seed, number]).permutation(self.rows)
        for start in range(first * self.size, self.count() * self.size, self.size):
            stop = min(start + self.size, self.rows)
            if order is None:
                yield Batch(stop - start, {name: array[start:stop] for name, array in self.arrays.items()})
            else:
                yield Batch(stop - start, self._taken(order[start:stop]))

    def _taken(self, places: Any) -> dict[str, Any]:
        rows = len(places)
        buffers = self._kept.get(rows)
        if buffers is None:
            buffers = {name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in self.arrays.items()}
            self._kept[rows] = buffers
        for name, array in self.arrays.items():
            array.take(places, 0, buffers[name], "clip")
        return buffers


class GivenBatches:
    """Batches that come by themselves: a list of mappings, or a function of the epoch's number that returns an iterable.

    Up to ``ahead`` of them are read before they are asked for, on a thread as a stream has one.
    """

    def __init__(
        self, source: Iterable[Arrays] | Callable[[int], Iterable[Arrays]], wanted: Needed, ahead: int = 0
    ) -> None:
        if callable(source):
            _expect_epoch_function(source)
        self.source, self.wanted, self.ahead = source, wanted, ahead
        self.replayable = callable(source) or iter(source) is not source
        self._gone = False

    def count(self) -> int | None:
        """Return the number of batches, where the source tells."""
        return len(self.source) if isinstance(self.source, Sized) else None

    def digest(self) -> None:
        """Return None: what such batches hold is known only when they come."""
        return

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Go through the batches of an epoch, from the one with number ``first``."""
        if not self.replayable and self._gone:
            hint = "give a list, or a function that returns the batches of an epoch"
            raise InputError("the data is an iterator, which can be gone through once", hint, code="E851")
        self._gone = True
        batches = self._checked(number, first)
        if not self.ahead:
            yield from batches
            return
        reader: Ahead[Batch] = Ahead(lambda: next(batches, None), batches.close, self.ahead)
        try:
            while (batch := reader.take(check_contexts)) is not None:
                yield batch
        finally:
            reader.close()

    def _checked(self, number: int, first: int) -> Generator[Batch, None, None]:
        source = self.source(number) if callable(self.source) else self.source
        expect(
            source, Iterable, "the data function returns the batches of an epoch", 'return a list, or yield {"x": x}'
        )
        for n, arrays in enumerate(source):
            if n < first:
                continue
            expect(arrays, Mapping, "a batch is a mapping of names to arrays", 'yield {"x": x, "labels": y}')
            given = {name: _array(name, value) for name, value in self.wanted.of(arrays).items()}
            yield Batch(_rows(given), given)


def _expect_epoch_function(function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with the number of an epoch."""
    try:
        call = signature(function)
    except (TypeError, ValueError):  # some that are not written in Python do not tell
        return
    try:
        call.bind(0)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        message = f"data= is called with the number of the epoch, {name}(0), but it is {name}{call}: {error}"
        hint = "write def batches(epoch): ..., or lambda epoch: ..."
        raise InputError(message, hint, code="E852") from None


def batches_of(
    data: Data,
    wanted: Needed,
    size: int,
    seed: int | None,
    *,
    drop_last: bool = False,
    ahead: int = 0,
) -> ArrayBatches | GivenBatches:
    """Return batches of arrays by name, of a data frame or Arrow table, of a .npz or Parquet file, or of an iterable of batches."""
    if isinstance(data, str | Path):
        with _opened(Path(data)) as file:
            data = _taken_from(file, wanted.names, str(data))
    elif hasattr(data, "__arrow_c_stream__"):
        table = arrow_module("pyarrow", "to read a data frame").table(data)
        data = _taken_from(_Columns(table, table.column_names), wanted.names, "the data frame")
    if isinstance(data, Mapping):
        return ArrayBatches(wanted.of(data), size, seed, drop_last=drop_last)
    several = isinstance(data, list | tuple) and data and not isinstance(data[0], Mapping)
    if (isinstance(data, Iterable) or callable(data)) and not several and not hasattr(data, "__array__"):
        return GivenBatches(data, wanted, ahead)
    hint = (
        'write data={"x": x, "labels": y}, a data frame, a path to a .npz or Parquet file, or a list of such mappings'
    )
    raise InputError(f"data is given as arrays by name, got {type(data).__name__}", hint, code="E852")


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in a file."""
    with _opened(path) as file:
        return list(file.files)


def _taken_from(file: Any, names: Iterable[str], what: str) -> dict[str, Any]:
    """Return the arrays that a graph wants from a file or table."""
    for name in names:
        if name not in file.files:
            raise InputError(f"{what} has no array {name!r}", *nearest(name, file.files), code="E853")
    return {name: file[name] for name in names}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of arrays: ``files`` are their names, and an index reads one."""
    if path.suffix not in (".npz", ".parquet", ".pq"):
        raise InputError(f"{path} is neither .npz nor .parquet", "save the arrays with np.savez", code="E852")
    if not path.exists():
        raise no_file(path)
    try:
        if path.suffix == ".npz":
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:  # NumPy leaves a broken one open
                yield file
        else:
            parquet = arrow_module("pyarrow.parquet", f"to read {path.name!r}").ParquetFile(path)
            yield _Columns(parquet.read(), parquet.schema_arrow.names)
    except TensorLogicError:
        raise
    except (*HEAD_ERRORS, *PACK_ERRORS) as error:
        raise FormatError(f"{path} cannot be read: {error}", code="E853") from None


class _Columns:
    """The columns of an Arrow table as arrays: one of numbers or of lists, or ``x_0``, ``x_1``, ... as the columns of a matrix ``x``."""

    def __init__(self, table: Any, names: Sequence[str]) -> None:
        self.table, self.names = table, list(names)
        stems = [match[1] for name in names if (match := re.fullmatch(r"(.+)_0", name))]
        self.files = [*self.names, *(stem for stem in stems if stem not in self.names)]

    def __getitem__(self, name: str) -> Any:
        wanted = Wanted({name: 0}, {name: TensorType(None, None)})
        return batch_rows(self.table, columns_for(self.names, wanted, "the table"), wanted)[name]


def _array(name: str, value: Any) -> Any:
    array = value if isinstance(value, np.ndarray) else named_array(f"data {value_text(name)}", value)
    if array.ndim == 0:
        hint = f"give it as fixed={{{name!r}: ...}} if it is the same for all examples"
        raise InputError(f"data {name!r} has no rows: it is a scalar", hint, code="E854")
    if array.dtype.kind in "OUST":
        shown = repr(array.ravel()[:1].tolist())[1:-1] or "nothing"
        message = f"data {name!r} is of {array.dtype}, such as {shown:.60}: no numbers to learn from"
        hint = f"give class numbers for names: classes, {name} = np.unique({name}, return_inverse=True)"
        raise InputError(message, hint, f"for numbers as text: np.asarray({name}, dtype=...)", code="E854")
    return array


def _rows(arrays: Mapping[str, Any]) -> int:
    """Return how many examples there are, and refuse arrays that differ in that, and none at all."""
    if not arrays:
        raise InputError("there is no data", 'write data={"x": x, "labels": y}', code="E855")
    counts = {name: len(array) for name, array in arrays.items()}
    (first, rows), *others = counts.items()
    for name, count in others:
        if count != rows:
            message = f"data {first!r} has {rows:,} examples, but {name!r} has {count:,}"
            context = [f"{each!r} is {list(array.shape)}" for each, array in arrays.items()]
            raise InputError(message, _length_hint(arrays), code="E856", context=context)
    if not rows:
        raise InputError("the data has no examples", "give arrays of at least one row", code="E855")
    return rows


def _length_hint(arrays: Mapping[str, Any]) -> str:
    """Return what to do about arrays of unequal lengths: transpose one where all would then have as many rows."""
    for name, array in arrays.items():
        others = {len(other) for each, other in arrays.items() if each != name}
        if array.ndim == 2 and others == {array.shape[1]}:
            return f"examples are rows: give {name!r} transposed, {list(array.T.shape)}, as {name}.T"
    return "give a row for each example in all of them; what is the same for all examples goes into fixed={name: array}"


def split(data: Arrays, share: float = 0.8, *, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide examples at random into two sets, such as for training and validation.

    >>> train, rest = split({"x": np.arange(10)}, 0.8)
    >>> len(train["x"]), len(rest["x"]), sorted({*train["x"].tolist(), *rest["x"].tolist()})
    (8, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    if not hasattr(data, "items"):  # a data frame has it too
        expect(data, Mapping, "split takes arrays by name", 'write split({"x": x, "labels": y}, 0.8)')
    arrays = {name: _array(name, value) for name, value in data.items()}
    rows = _rows(arrays)
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise InputError(f"a share is between 0 and 1, got {value_text(share)}", "write split(data, 0.8)", code="E857")
    order = np.random.default_rng(seed).permutation(rows)
    at = min(rows, max(0, round(share * rows)))
    first, rest = order[:at], order[at:]
    return {n: a[first] for n, a in arrays.items()}, {n: a[rest] for n, a in arrays.items()}
