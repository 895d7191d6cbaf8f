"""Checks of a parsed program that need no data: each finds one kind of mistake and reports its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import GraphError, nearest
from . import syntax as s
from .declarations import Declaration, Statement, mentions
from .domain_inference import unknown_constant
from .extents import Slice, slices_of
from .strata import Component, body_of

if TYPE_CHECKING:
    from .analysis import Analysis

NORMALISERS = ("softmax", "lnorm", "rmsnorm")


def check_body(statement: Statement, tensors: Mapping[str, Declaration]) -> None:
    """Refuse tensors of numbers as conditions of a rule."""
    for literal in body_of(statement):
        if isinstance(literal, s.Tensor) and not tensors[literal.name].boolean:
            shown = f"{literal.name}[{', '.join(s.variables(literal))}]"
            message = f"{literal.name!r} holds numbers, so by itself it is neither true nor false"
            raise GraphError(message, f"compare it: {shown} > 0", code="E695", location=literal.at or statement.at)


def check_marks(parts: Sequence[Component]) -> None:
    """Refuse dots and stars that say nothing: a dot without a normaliser, a virtual index without a recurrence."""
    for part in parts:
        for x in part.statements:
            for place in x.head.places if not part.recursive else ():
                if place.virtual:
                    hint = "a virtual index belongs to a recurrence: X[i,*t+1] = ... X[j,*t]"
                    raise GraphError("a virtual index has no step", hint, code="E696", location=place.at or x.at)
            dotted = [place for place in s.walk(x) if isinstance(place, s.Place) and place.normalised]
            calls = [c for c in s.walk(x) if isinstance(c, s.Call) and c.function in NORMALISERS]
            if dotted and not calls:
                hint = "a dot marks the index that softmax, lnorm or rmsnorm runs over"
                raise GraphError("a dotted index has no normaliser", hint, code="E690", location=dotted[0].at or x.at)
            if len(dotted) > 1:
                message = f"{len(dotted)} indices are dotted; a normaliser runs over one"
                raise GraphError(message, "dot one of them", code="E690", location=dotted[1].at or x.at)


def check_queries(program: Sequence[s.Statement], tensors: Mapping[str, Declaration]) -> None:
    """Refuse questions about, and files for, tensors that are not there."""
    for statement in program:
        if not isinstance(statement, s.Query | s.Write):
            continue
        for mention in mentions(statement):
            if mention.tensor.name not in tensors:
                message = f"there is no tensor {mention.tensor.name!r}"
                hints = nearest(mention.tensor.name, tensors)
                raise GraphError(message, *hints, code="E685", location=mention.tensor.at or statement.at)


def check_constants(analysis: Analysis) -> None:
    """Refuse constants and slices beyond the end of an axis of known size."""
    for statement in analysis.statements:
        if isinstance(statement, s.Facts):
            _check_facts(analysis, statement)
            continue
        for mention in mentions(statement):
            tensor = mention.tensor
            if tensor.name not in analysis.tensors:
                continue
            for p, place in enumerate(tensor.places):
                if isinstance(place.index, s.Constant) and not isinstance(statement, s.Query):
                    analysis.code(tensor.name, p, place.index)
            for part in slices_of(tensor, analysis.scalars):
                check_slice(analysis, part)


def check_slice(analysis: Analysis, found: Slice) -> None:
    """Refuse a slice beyond the end of its axis."""
    extent = analysis.extent(found.tensor, found.place)
    if extent is not None and found.start + found.length > extent:
        end = found.start + found.length
        message = f"a slice ends at {end}, but place {found.place + 1} of {found.tensor!r} ends at {extent}"
        raise GraphError(message, code="E678", location=found.part.at)


def _check_facts(analysis: Analysis, facts: s.Facts) -> None:
    for p, column in enumerate(facts.columns):
        info = analysis.place(facts.name, p)
        if info.kind == "range" and info.size is not None and len(column):
            worst = max(column)
            if isinstance(worst, int) and worst >= info.size:
                line = facts.lines[column.index(worst)] if facts.lines else None
                at = facts.at if line is None or facts.at is None else facts.at.with_line(line)
                raise unknown_constant(facts.name, p, worst, info).at(at)
