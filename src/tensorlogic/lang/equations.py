"""Tensor equations to graph nodes: one component of a program after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import add
from typing import Any

import numpy as np

from ..diagnostics import SourceLocation
from ..errors import OutOfMemoryError, TensorLogicError
from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from . import syntax as s
from .analysis import Analysis, Component, TensorInfo
from .declarations import literal_array, mentions, number_of
from .evaluate import Evaluation, free, places_of
from .heads import FILL, Contribution, Target, contribution, merge, settled
from .indexing import Value

Values = dict[str, Tensor]
Statement = s.Rule | s.Equation
Lookup = Callable[[str], Any]

MAX_CELLS = 1 << 28  # of a tensor that is given number by number


def lower_component(component: Component, analysis: Analysis, b: GraphBuilder, values: Values) -> None:
    """Add the equations of one component to a graph; each left side becomes a tensor in ``values``.

    What stands in ``values`` under a name of the component before is data given for it, which is added (or-ed, ...) to what is
    derived. Tensors that are not there yet become inputs. A tensor with a virtual index is there as the position that is kept,
    the last one; under its name and ``*`` stands its whole history, if another equation reads that.

    >>> from tensorlogic import Executor
    >>> from tensorlogic.lang.analysis import analyse
    >>> from tensorlogic.lang.grammar import parse
    >>> found = analyse(parse("W = [1, 2, 3]; Y = W[i] W[i]").statements)
    >>> b, values = GraphBuilder(), {}
    >>> for part in found.components:
    ...     lower_component(part, found, b, values)
    >>> Executor().execute(b.build(Y=values["Y"]), {})["Y"].item()
    14.0
    """
    from .recurrences import lower_recursion

    lookup = reader(analysis, b, values)
    if component.recursive:
        lower_recursion(component, analysis, b, values)
        return
    for name in component.names:
        info, parts = analysis.tensors[name], contributions(name, component.statements, analysis, b, lookup)
        parts += data_of(name, analysis, b, values)
        with located(b, next((x.at for x in reversed(component.statements) if x.head.name == name), None)):
            values[name] = settled(b, merge(b, parts, info), info, 0)


def reader(analysis: Analysis, b: GraphBuilder, values: Values) -> Lookup:
    """Return what finds a tensor by name: one that is there, or else an input."""

    def lookup(name: str) -> Any:
        info = analysis.tensors[name]
        if info.virtual is not None and f"{name}*" in values:
            return values[f"{name}*"]
        if info.virtual is not None and name in analysis.kept:
            return b.expand_dims(values[name], info.virtual)
        if name not in values:
            values[name] = b.input(name, analysis.shape(name), _dtype(name, analysis))
        return values[name]

    return lookup


@contextmanager
def located(b: GraphBuilder, at: SourceLocation | None) -> Iterator[None]:
    """Let new nodes, and errors, come from a place in the program's text."""
    before, b.location = b.location, at or b.location
    try:
        yield
    except TensorLogicError as error:
        raise error.at(at) from None
    finally:
        b.location = before


def contributions(
    name: str,
    statements: Sequence[Statement],
    analysis: Analysis,
    b: GraphBuilder,
    lookup: Lookup,
    *,
    recursive: bool = False,
) -> list[Contribution]:
    """Return what each statement about a tensor says of it; single elements that are numbers are gathered in one array."""
    parts: list[Contribution] = []
    cells: list[tuple[tuple[int, ...], float]] = []
    info = analysis.tensors[name]
    for statement in statements:
        if statement.head.name != name:
            continue
        equation = analysis.as_equation(statement)
        places = [p.index for p in equation.head.places]
        with located(b, equation.at):
            number = number_of(equation.value)
            if number is not None and places and not free(equation.head) and equation.operator in ("=", "+="):
                codes = [analysis.code(name, p, x) for p, x in enumerate(places) if isinstance(x, s.Constant)]
                cells.append((tuple(codes), number))
                continue
            if isinstance(equation.value, s.ListLiteral) and not places:
                array = literal_array(equation.value).astype(analysis.dtype)
                parts.append(Contribution(b.constant(array), True))
                continue
            evaluation = Evaluation(analysis, b, equation, lookup)
            evaluation.recursive = recursive
            found = contribution(evaluation, equation.operator, targets(analysis, equation), info.operator)
            parts.append(truth(b, found) if info.boolean else found)
    if cells:
        found = _cells(cells, analysis, info, b)
        parts.append(truth(b, found) if info.boolean else found)
    return parts


def truth(b: GraphBuilder, part: Contribution) -> Contribution:
    """Turn numbers into truth values: what is above 0 is true."""
    return Contribution(b.greater(part.tensor, 0), part.complete)


def targets(analysis: Analysis, equation: s.Equation) -> list[Target]:
    """Return the places of a left side."""
    shape = analysis.shape(equation.head.name)
    return [Target(form, shape[p]) for p, form in enumerate(places_of(analysis, equation.head))]


def _cells(
    cells: Sequence[tuple[tuple[int, ...], float]], analysis: Analysis, info: TensorInfo, b: GraphBuilder
) -> Contribution:
    shape = analysis.shape(info.name)
    if math.prod(shape) > MAX_CELLS:
        sizes = " × ".join(f"{n:,}" for n in shape)
        message = f"numbers at single places make a tensor of {sizes} elements; up to {MAX_CELLS:,} are possible"
        hint = "use smaller indices, or a relation, which holds only its tuples"
        raise OutOfMemoryError(message, hint, code="E697").at(info.at)
    array = np.full(shape, FILL.get(info.operator, 0), analysis.dtype)
    join: Callable[[Any, Any], Any] = {"max=": max, "min=": min}.get(info.operator, add)
    for place, number in cells:
        array[place] = join(array[place], number)
    return Contribution(b.constant(array), len({place for place, _ in cells}) == array.size)


def data_of(name: str, analysis: Analysis, b: GraphBuilder, values: Mapping[str, Tensor]) -> list[Contribution]:
    """Return the data given for a tensor that is derived too, as one more contribution."""
    info = analysis.tensors[name]
    shape = analysis.shape(name)
    if name in values:
        data: Tensor = values[name]
    elif info.given or info.facts:
        known = analysis.given[name].shape if name in analysis.given and not info.boolean else shape
        sizes = [e if d is None else d for d, e in zip(known, shape, strict=True)]
        data = b.input(name, sizes, _dtype(name, analysis))
    else:
        return []
    assert data.shape is not None
    complete = tuple(data.shape) == shape
    if not complete:
        widths = [(0, e - int(d)) for d, e in zip(data.shape, shape, strict=True)]
        data = b.pad(data, widths, FILL.get(info.operator, 0))
    return [Contribution(data, complete)]


def _dtype(name: str, analysis: Analysis) -> str | None:
    """Return the dtype in which a tensor is given; None where nothing says it."""
    given = analysis.given.get(name)
    return "bool" if analysis.tensors[name].boolean else None if given is None else given.dtype


def comparison(part: s.Comparison, statement: Statement, analysis: Analysis, b: GraphBuilder, values: Values) -> Value:
    """Return a comparison of a rule, in which tensors of numbers may stand, as truth values with an axis for each variable.

    A variable runs over its whole domain.
    """
    equation = s.Equation(s.Tensor(statement.head.name), "=", part, at=part.at)
    with located(b, part.at or statement.at):
        evaluation = Evaluation(analysis.alias(equation, statement), b, equation, reader(analysis, b, values))
        for name in evaluation.ranges:
            size = analysis.size(statement, name)
            if size is not None and evaluation.ranges[name] != (0, size):
                raise evaluation.fail(f"index {name!r} leaves its axis in a comparison", part=part, code="E678")
        return evaluation.value(part, free(part))


def reads_of(statement: Statement, names: Sequence[str] | set[str]) -> list[s.Tensor]:
    """Return the occurrences of some tensors on the right side of a statement."""
    return [m.tensor for m in mentions(statement) if m.role != "head" and m.tensor.name in names]
