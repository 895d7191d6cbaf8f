"""Which items of a batch run together: those whose inputs agree in shape and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import CancelledError, TensorLogicError
from ..ir.graph import EinsumGraph
from .values import Inputs, check_call

if TYPE_CHECKING:
    from .executor import Executor

_ARRAY = np.ndarray
_PLAIN = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))  # native, of 8 bytes at most


class Group(NamedTuple):
    """Items whose inputs agree in shape and dtype: their places in the batch, and their values, input by input."""

    items: Sequence[int]
    columns: Sequence[Sequence[Any]]
    over: tuple[str, ...]  # the inputs that differ between items
    kind: tuple[Any, ...]  # the shapes and dtypes of the inputs


def uniform(graph: EinsumGraph, items: Sequence[Inputs]) -> list[Group] | None:
    """Return all items as one group where they have plain arrays that agree; None where one must look closer."""
    names = tuple(graph.inputs)
    if not items or not names:
        return None
    try:
        first, last = items[0], items[-1]
        values = [first[name] for name in names]
        kind = []
        for value in values:
            if type(value) is not _ARRAY or (dtype := value.dtype) not in _PLAIN:
                return None
            kind.append((value.shape, dtype))
        over = tuple([name for name, value in zip(names, values, strict=True) if last[name] is not value])
        flat = tuple([value.ndim == 1 for value in values])
        columns = _reader(names, over, flat)(items, values, kind)
        if columns is None:  # an input that is the same in the first and in the last item may not be in all
            over = tuple([n for n, v in zip(names, values, strict=True) if any(item[n] is not v for item in items)])
            columns = _reader(names, over, flat)(items, values, kind)
    except (TypeError, LookupError):  # no mappings, or a name is missing
        return None
    return None if columns is None else [Group(range(len(items)), columns, over, tuple(kind))]


Reader = Callable[[Sequence[Inputs], Sequence[Any], Sequence[Any]], list[list[Any]] | None]


@lru_cache(maxsize=256)
def _reader(names: tuple[str, ...], over: tuple[str, ...], flat: tuple[bool, ...]) -> Reader:
    """Return a function of items that lists each input: its values in all items, or the one that all of them share.

    It is given the values and the kind of the first item, and returns None where another item does not have that kind, or
    other values of the inputs that are not named in ``over``. A batch of small items spends its time here, so the function is written out
    for the names: one comprehension for each input that differs, with all tests in it. Of inputs that are ``flat``, of one axis, the
    length takes less time to read than the shape.
    """
    tests = [f"len(i) == {len(names)}", *[f"i[{name!r}] is v{n}" for n, name in enumerate(names) if name not in over]]
    lines = ["def read(items, values, kind):", f"    [{', '.join(f'v{n}' for n in range(len(names)))}] = values"]
    columns = [f"[v{n}]" for n in range(len(names))]
    for name in over:
        n = names.index(name)
        lines.append(f"    {'(s,)' if flat[n] else 's'}, d = kind[{n}]")
        test = f"if {' and '.join(tests)}" if tests else ""  # of the first one
        shape = "len(a) == s and a.ndim == 1" if flat[n] else "a.shape == s"
        kind = f"type(a) is ndarray and (a.dtype is d or a.dtype == d) and {shape}"
        lines.append(f"    c{n} = [a for i in items {test} for a in (i[{name!r}],) if {kind}]")
        lines.append(f"    if len(c{n}) < len(items): return None")
        columns[n], tests = f"c{n}", []
    if not over:
        lines.append(f"    if not all([{' and '.join(tests)} for i in items]): return None")
    scope: dict[str, Any] = {"ndarray": _ARRAY}
    exec("\n".join([*lines, f"    return [{', '.join(columns)}]"]), scope)
    function: Reader = scope["read"]
    return function


def by_kind(
    executor: Executor, graph: EinsumGraph, items: Sequence[Inputs], errors: dict[int, Exception]
) -> list[Group]:
    """Return items in groups that agree; an item that is no mapping of the graph's inputs to arrays is an error of its own."""
    names = list(graph.inputs)
    kinds: dict[tuple[Any, ...], list[int]] = {}
    values: dict[int, list[Any]] = {}
    # by id: the value, held so that no other gets its id, and its array
    known: dict[tuple[str, int], tuple[Any, Any]] = {}
    for n, item in enumerate(items):
        try:
            check_call(graph, item)
            given = dict(item.items())  # read once: a mapping such as an .npz file makes its values anew each time
            fresh = {k: known[k, id(v)][1] if (k, id(v)) in known else v for k, v in given.items()}
            _, values[n] = executor.arrays(graph, fresh)
        except CancelledError:
            raise
        except Exception as error:
            errors[n] = of_item(error, n)
            continue
        known |= {(k, id(given[k])): (given[k], v) for k, v in zip(names, values[n], strict=True)}
        kind = tuple((v.shape, v.dtype if type(v) is _ARRAY else type(v)) for v in values[n])
        kinds.setdefault(kind, []).append(n)
    found = []
    for kind, places in kinds.items():
        columns = [[values[n][k] for n in places] for k in range(len(names))]
        over = [name for name, column in zip(names, columns, strict=True) if len(set(map(id, column))) > 1]
        found.append(Group(places, columns, tuple(over), kind))
    return found


def of_item(error: Exception, n: int) -> Exception:
    """Return the error of an item with its number in the message."""
    if isinstance(error, TensorLogicError):
        return error.renamed(f"item {n}: {error.diagnostic.message}").with_traceback(error.__traceback__)
    error.add_note(f"item {n} of the batch")
    return error
