"""Recurrences: the index along which tensors that depend on each other are computed step by step, such as ``t`` in ``X[t+1] = ... X[t]``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from . import syntax as s
from .declarations import Scalars, Statement, mentions
from .extents import forms


class StepRead(NamedTuple):
    """A read of a tensor of the recurrence: how far back in rounds what it reads was computed."""

    tensor: str
    lag: int


class StepEquation(NamedTuple):
    """One equation of a recurrence: its variable is the round plus ``shift`` (None: it has none, and computes one position)."""

    equation: s.Equation
    variable: str | None
    shift: int
    position: int | None  # of an equation whose left side has a constant there
    reads: tuple[StepRead, ...]


class Step(NamedTuple):
    """The place of each tensor that rounds run along; round r computes position ``r + offsets[name]``.

    With ``backward`` rounds count down.
    """

    places: Mapping[str, int]
    offsets: Mapping[str, int]
    backward: bool
    equations: tuple[StepEquation, ...]
    order: tuple[str, ...]  # within a round, each after what it reads of the same round


def find_step(names: Sequence[str], statements: Iterable[Statement], scalars: Scalars) -> Step | None:
    """Find the step of tensors that depend on each other; None where there is none.

    >>> from tensorlogic.lang.syntax import Arithmetic, Constant, Equation, Place, Tensor, Variable
    >>> now, then = Place(Variable("t")), Place(Arithmetic("+", Variable("t"), Constant(1)))
    >>> step = find_step(["X"], [Equation(Tensor("X", (then,)), "=", Tensor("X", (now,)))], {})
    >>> step.places, step.offsets, step.backward
    ({'X': 0}, {'X': 1}, False)
    """
    members = set(names)
    equations = []
    for statement in statements:
        if any(m.role != "head" and m.tensor.name in members for m in mentions(statement)):
            if not isinstance(statement, s.Equation):
                return None
            equations.append(statement)  # what reads none of them takes part in no round
    for places in _places(names, equations, members, scalars):
        for backward in (False, True):
            found = _timed(places, equations, members, scalars, backward)
            if found is not None:
                return found
    return None


def _places(
    names: Sequence[str], equations: Sequence[s.Equation], members: set[str], scalars: Scalars
) -> Iterator[dict[str, int]]:
    """Go through the ways to choose one place of each tensor, so that one variable stands in all of an equation's."""
    arity = {e.head.name: len(e.head.places) for e in equations}
    starts = [{names[0]: p} for p in range(arity.get(names[0], 0))]
    while starts:
        chosen = starts.pop(0)
        open_ones = _extended(chosen, equations, members, scalars)
        if open_ones is None:
            continue
        if open_ones:
            starts = open_ones + starts
        elif set(chosen) == members:
            yield chosen


def _extended(
    chosen: dict[str, int], equations: Sequence[s.Equation], members: set[str], scalars: Scalars
) -> list[dict[str, int]] | None:
    """Choose places that follow from those chosen; return the ways to choose one more, or None where nothing fits."""
    for equation in equations:
        tensors = [m.tensor for m in mentions(equation) if m.tensor.name in members]
        if not equation.head.places:
            return None
        variables = set()
        for tensor in tensors:
            if tensor.name in chosen and len(tensor.places) > chosen[tensor.name]:
                form = forms(tensor, scalars)[chosen[tensor.name]]
                if form is not None:
                    if not form.is_step:
                        return None
                    variables.add(form.terms[0][0])
        if len(variables) > 1:
            return None
        if not variables:
            continue
        (variable,) = variables
        for tensor in tensors:
            if tensor.name in chosen:
                continue
            found = enumerate(forms(tensor, scalars))
            steps = [p for p, f in found if f is not None and f.is_step and f.variables == (variable,)]
            return [{**chosen, tensor.name: p} for p in steps] or None
    return []


def _timed(
    places: Mapping[str, int], equations: Sequence[s.Equation], members: set[str], scalars: Scalars, backward: bool
) -> Step | None:
    """Find offsets so that every read is of an earlier round, or of the same one without a circle."""
    sign = -1 if backward else 1
    rows = []
    offsets: dict[str, int] = {}
    for equation in equations:
        variable, position, head, reads = _row(places, equation, members, scalars)
        rows.append((equation, variable, position, sign * head, [(n, sign * r) for n, r in reads]))
        if position is None:
            offsets[equation.head.name] = max(offsets.get(equation.head.name, sign * head), sign * head)
    if not offsets.keys() >= members:
        return None
    for _ in range(len(members) + 1):
        moved = False
        for equation, _variable, _position, head, reads in rows:
            for name, read in reads:
                least = offsets[equation.head.name] - head + read
                if offsets[name] < least:
                    offsets[name], moved = least, True
        if not moved:
            break
    else:
        return None
    found = []
    same: dict[str, set[str]] = {name: set() for name in members}
    for equation, variable, position, head, reads in rows:
        lags = []
        for name, read in reads:
            lag = offsets[name] - (offsets[equation.head.name] - head) - read
            lags.append(StepRead(name, lag))
            if lag == 0:
                same[equation.head.name].add(name)
        shift = sign * (offsets[equation.head.name] - head)
        found.append(StepEquation(equation, variable, shift, position, tuple(lags)))
    order = _order(same)
    if order is None or not any(read.lag for e in found for read in e.reads):
        return None
    return Step(dict(places), {n: sign * o for n, o in offsets.items()}, backward, tuple(found), order)


def _row(
    places: Mapping[str, int], equation: s.Equation, members: set[str], scalars: Scalars
) -> tuple[str | None, int | None, int, list[tuple[str, int]]]:
    """Return an equation's step variable, the position of a left side without one, its offset, and those of what it reads."""
    place = equation.head.places[places[equation.head.name]]
    form = forms(equation.head, scalars)[places[equation.head.name]]
    variable, position, head = None, None, 0
    if form is None:
        position = head = _number(place.index, scalars)
    else:
        variable, head = form.terms[0][0], form.constant
    reads = []
    for mention in mentions(equation):
        if mention.role != "head" and mention.tensor.name in members:
            at = places[mention.tensor.name]
            read = forms(mention.tensor, scalars)[at]
            offset = read.constant if read is not None else _number(mention.tensor.places[at].index, scalars)
            if (read is None) != (variable is None):
                offset = 1 << 60  # a fixed position, read in every round: no lag is right
            reads.append((mention.tensor.name, offset))
    return variable, position, head, reads


def _number(index: s.Index, scalars: Scalars) -> int:
    value = index.value if isinstance(index, s.Constant) else None
    if isinstance(value, str) and value in scalars:
        value = int(scalars[value])
    return value if isinstance(value, int) else 1 << 60


def _order(same: Mapping[str, set[str]]) -> tuple[str, ...] | None:
    done: list[str] = []
    while len(done) < len(same):
        ready = [n for n in same if n not in done and same[n] <= set(done)]
        if not ready:
            return None
        done += ready
    return tuple(done)
