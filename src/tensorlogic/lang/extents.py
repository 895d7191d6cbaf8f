"""Sizes: the ranges of the variables of an equation, and the shape of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from . import syntax as s
from .affine import Affine, affine
from .affine import whole as whole_number
from .declarations import Scalars, literal_array, mentions

Range = tuple[int, int | None]  # start and stop; None where it is not known yet


class ReadPlace(NamedTuple):
    """One place of a tensor that an equation reads: what stands there, and how far the axis goes."""

    form: Affine
    extent: int


class Slice(NamedTuple):
    """A slice of a tensor that says where it ends: the index that stands for it, its place, start and length."""

    variable: str
    tensor: str
    place: int
    start: int
    length: int
    part: s.Range


def slice_start(part: s.Range, scalars: Scalars) -> int:
    """Return where a slice starts."""
    return 0 if part.start is None else affine(part.start, scalars).constant


def slice_variable(number: int) -> str:
    """Return the name of the index that stands for the slices of a tensor, counted from 0: no variable is written so.

    >>> slice_variable(0)
    ':0'
    """
    return f":{number}"


def forms(tensor: s.Tensor, scalars: Scalars) -> list[Affine | None]:
    """Return the index of each place in one form; None where a constant stands, which may be a name."""
    result: list[Affine | None] = []
    slices = 0
    for place in tensor.places:
        match place.index:
            case s.Constant():
                result.append(None)
            case s.Range() as part:
                result.append(Affine(((slice_variable(slices), 1),), slice_start(part, scalars)))
                slices += 1
            case index:
                result.append(affine(index, scalars))
    return result


def slices_of(tensor: s.Tensor, scalars: Scalars) -> Iterator[Slice]:
    """Go through the slices of a tensor that say where they end."""
    ranges = [(p, place.index) for p, place in enumerate(tensor.places) if isinstance(place.index, s.Range)]
    for n, (p, part) in enumerate(ranges):
        if part.stop is not None:
            start, stop = slice_start(part, scalars), affine(part.stop, scalars).constant
            yield Slice(slice_variable(n), tensor.name, p, start, stop - start, part)


def variable_ranges(
    equation: s.Equation, scalars: Scalars, size: Callable[[str], int | None], extent: Callable[[str, int], int | None]
) -> tuple[dict[str, Range], list[ReadPlace]]:
    """Find where the variables of an equation run so that everything it reads is in range.

    A sum of indices, such as ``x+dx``, limits the one that stands on the left side, so that a convolution is computed only where
    the whole filter fits. What no box of ranges can say (two indices of the left side in one sum) is returned beside: there the
    elements that read beyond an axis have to be left out one by one.
    """
    head_order = [v for form in forms(equation.head, scalars) if form is not None for v in form.variables]
    head = set(head_order)
    names = dict.fromkeys([*s.variables(equation.head), *s.variables(equation.value), *sorted(head)])
    ranges: dict[str, Range] = {name: (0, size(name)) for name in names}
    reads: list[ReadPlace] = []
    whole: dict[str, list[int | None]] = {}
    moved = {v for f in forms(equation.head, scalars) if f is not None and not f.is_plain for v in f.variables}
    if isinstance(equation.value, s.ListLiteral):
        for name, count in zip(dict.fromkeys(head_order), literal_array(equation.value).shape, strict=False):
            _limit(ranges, name, 0, count)
    for form in forms(equation.head, scalars):
        if form is not None and len(form.terms) == 1 and form.constant and form.terms[0][1] > 0:
            _limit(ranges, form.terms[0][0], -(form.constant // form.terms[0][1]), None)  # a position is not below 0
    for mention in mentions(equation):
        for part in slices_of(mention.tensor, scalars):
            _limit(ranges, part.variable, 0, part.length)
        if mention.role == "head":
            continue
        for p, form in enumerate(forms(mention.tensor, scalars)):
            if form is None:
                continue
            for name in form.variables:
                ranges.setdefault(name, (0, size(name)))
            limit = extent(mention.tensor.name, p)
            if isinstance(mention.tensor.places[p].index, s.Variable):
                whole.setdefault(form.variables[0], []).append(limit)
            if limit is not None and form.terms:
                reads.append(ReadPlace(form, limit))
    for name, limits in whole.items():
        # all that an index reads may go further than its data: X[t+1] = ... has one more
        if None not in limits and name not in moved:
            ranges[name] = (ranges[name][0], None)
    plain = {read.form.variables[0] for read in reads if len(read.form.terms) == 1}
    for read in reads:
        if len(read.form.terms) == 1:
            _fit(ranges, read, read.form.variables[0])
    left: list[ReadPlace] = []
    for read in reads:
        if len(read.form.terms) == 1:
            continue
        inside = [v for v in read.form.variables if v in head]
        open_ones = [v for v in read.form.variables if ranges[v][1] is None]
        free = [v for v in inside or read.form.variables if v not in plain]
        single = next((found[0] for found in (open_ones, inside, free) if len(found) == 1), None)
        target = read.form.variables[0] if single is None and not inside and not open_ones else single
        if target is not None:
            _fit(ranges, read, target)
        left.append(read)
    return ranges, [read for read in left if not _fits(ranges, read)]


def _limit(ranges: dict[str, Range], name: str, start: int, stop: int | None) -> None:
    first, last = ranges.get(name, (0, None))
    known = [x for x in (last, stop) if x is not None]
    ranges[name] = max(first, start), min(known) if known else None


def _fit(ranges: dict[str, Range], read: ReadPlace, target: str) -> None:
    """Limit one variable so that an index stays within its axis whatever the others are."""
    low = high = read.form.constant
    factor = 0
    for name, by in read.form.terms:
        if name == target:
            factor = by
            continue
        first, last = ranges[name]
        if last is None:
            return
        ends = by * first, by * (last - 1)
        low, high = low + min(ends), high + max(ends)
    # low and high are what the rest adds: factor * target is in -low .. top
    top = read.extent * read.form.divisor - 1 - high
    start, stop = (-(low // factor), top // factor + 1) if factor > 0 else (-(top // -factor), (-low) // factor + 1)
    _limit(ranges, target, start, max(stop, 0))


def _fits(ranges: Mapping[str, Range], read: ReadPlace) -> bool:
    bounds = _bounds(read.form, ranges)
    return not bounds or (bounds[0] >= 0 and bounds[1] < read.extent)


def _bounds(form: Affine, ranges: Mapping[str, Range]) -> tuple[int, ...] | None:
    """Return the least and the greatest value of an index, nothing where a variable has no values; None where that is not known yet."""
    variables = form.variables
    known = {v: (first, last) for v, (first, last) in ranges.items() if v in variables and last is not None}
    if len(known) < len(variables):
        return None
    return () if any(first >= last for first, last in known.values()) else form.bounds(known)


def concat_index(equation: s.Equation) -> str | None:
    """Return the index of the left side that ``concat`` makes: the one that stands nowhere on the right."""
    inside = set(s.variables(equation.value))
    new = [v for v in s.variables(equation.head) if v not in inside]
    return new[0] if len(new) == 1 else None


def concat_size(equation: s.Equation, call: s.Call, ranges: Mapping[str, Range]) -> int | None:
    """Return how many elements ``concat`` joins."""
    head = set(s.variables(equation.head))
    total = 0
    for argument in call.arguments:
        count = 1
        for name in s.variables(argument):
            if name not in head:
                first, last = ranges[name]
                if last is None:
                    return None
                count *= max(last - first, 0)
        total += count
    return total


def solve_extents(
    equations: Sequence[tuple[int, s.Equation]],
    scalars: Scalars,
    sizes: dict[object, int | None],
    class_of: Callable[[tuple[str, int] | tuple[int, str]], object],
    fixed: dict[tuple[str, int], int],
    derived: Mapping[str, int],
    coded: Callable[[object], bool],
    component: Mapping[str, int],
) -> dict[tuple[str, int], int]:
    """Work out sizes that follow from others (a convolution, a pooling, a recurrence) until nothing more follows.

    ``sizes`` holds the size of every domain and is filled in; ``derived`` are the derived tensors of numbers with their
    arity, and the result says how far each of their axes goes; ``coded`` tells the domains of names, which nothing extends.
    ``component`` numbers the components: what a tensor reads of its own does not limit how far it goes.
    """
    extents = dict(fixed)

    def extent(name: str, p: int) -> int | None:
        known = extents.get((name, p))
        return known if known is not None or name in derived else sizes.get(class_of((name, p)))

    def outside(own: int | None, name: str, p: int) -> int | None:
        return None if own is not None and component.get(name) == own else extent(name, p)

    def size(number: int, variable: str) -> int | None:
        return None if variable[0] == ":" else sizes.get(class_of((number, variable)))

    heads: dict[str, list[tuple[int, s.Equation]]] = {}
    for number, equation in equations:
        heads.setdefault(equation.head.name, []).append((number, equation))
    for _ in range(2 * len(equations) + 4):
        before = (dict(extents), dict(sizes))
        found: dict[int, dict[str, Range]] = {}
        for number, equation in equations:
            own = component.get(equation.head.name)
            ranges, _ = variable_ranges(equation, scalars, partial(size, number), partial(outside, own))
            found[number] = ranges
            for call in s.walk(equation.value):
                new = concat_index(equation) if isinstance(call, s.Call) and call.function == "concat" else None
                if new is not None and ranges[new][1] is None:
                    ranges[new] = (0, concat_size(equation, call, ranges))  # type: ignore[arg-type]
            for name, (_first, last) in ranges.items():
                if name[0] != ":" and last is not None and sizes.get(class_of((number, name))) is None:
                    sizes[class_of((number, name))] = last
        for name, arity in derived.items():
            for p in range(arity):
                whole = sizes.get(class_of((name, p)))
                if whole is not None and coded(class_of((name, p))):
                    extents[name, p] = whole
                    continue
                counts = [_positions(e, p, scalars, found[n]) for n, e in heads.get(name, ())]
                known = [c for c in counts if c is not None]
                if whole is None and (len(known) < len(counts) or not counts):
                    continue
                total = max([*known, fixed.get((name, p), 0)]) if len(known) == len(counts) else whole or 0
                extents[name, p] = total
                if whole is None:
                    sizes[class_of((name, p))] = total
        if before == (extents, sizes):
            break
    return extents


def _positions(equation: s.Equation, p: int, scalars: Scalars, ranges: Mapping[str, Range]) -> int | None:
    """Return how far an axis must go for what one equation puts there; None where that is not known."""
    if p >= len(equation.head.places):  # a literal for all of a tensor
        return literal_array(equation.value).shape[p] if isinstance(equation.value, s.ListLiteral) else 0
    form = forms(equation.head, scalars)[p]
    if form is None:
        constant = equation.head.places[p].index
        return whole_number(constant, scalars) + 1 if isinstance(constant, s.Constant) else 0
    bounds = _bounds(form, ranges)
    return None if bounds is None else bounds[1] + 1 if bounds else 0
