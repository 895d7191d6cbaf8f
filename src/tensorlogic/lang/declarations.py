"""What every tensor of a program is: how many places it has, and whether it holds truth values or numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import SourceLocation
from ..errors import GraphError
from ..ir.types import dtype_name
from ..tables import counted
from . import syntax as s

Statement = s.Rule | s.Equation
Scalars = Mapping[str, int | float]


class GivenTensor(NamedTuple):
    """What is known of a tensor that is given from outside: its shape (None: only its arity), and its elements' names by place.

    >>> GivenTensor.of(np.ones((2, 3), "float32"))
    GivenTensor(shape=(2, 3), boolean=False, dtype='float32', value=None, elements=None)
    """

    shape: tuple[int | None, ...]
    boolean: bool = False
    dtype: str | None = None
    value: int | float | None = None  # of a scalar, so that it can stand in an index: Emb[n,L,d]
    # the constants in some places, in the order in which they appear
    elements: Callable[[Sequence[int]], Iterable[str | int]] | None = None

    @classmethod
    def of(cls, array: Any) -> GivenTensor:
        """Describe an array."""
        found = np.asarray(array)
        scalar = found.item() if found.ndim == 0 and found.dtype.kind in "iuf" else None
        return cls(tuple(found.shape), found.dtype.kind == "b", dtype_name(found.dtype), scalar)


class Mention(NamedTuple):
    """One occurrence of a tensor in a statement."""

    tensor: s.Tensor
    statement: s.Statement
    role: str  # head, read, not (negated), whole (a query or a file, where no places need be written)
    logical: bool = False  # as a literal of a rule, which makes it Boolean however it is written


class Declaration(NamedTuple):
    """A tensor: its arity, whether it is Boolean, where that was first said."""

    name: str
    arity: int
    boolean: bool
    at: SourceLocation | None


def mentions(statement: s.Statement) -> Iterator[Mention]:
    """Go through the tensors of a statement, the head first."""
    match statement:
        case s.Rule(head=head, body=body):
            yield Mention(head, statement, "head", logical=True)
            for literal in body:
                yield from _read(literal, statement, logical=True)
        case s.Equation(head=head, value=value):
            yield Mention(head, statement, "head")
            yield from _read(value, statement)
        case s.Query(body=body):
            for literal in body:
                if isinstance(literal, s.Tensor) and not literal.places and not literal.boolean:
                    yield Mention(literal, statement, "whole")
                else:
                    yield from _read(literal, statement)
        case s.Read(head=head):
            yield Mention(head, statement, "whole" if not head.places else "read")
        case s.Write(value=value):
            yield Mention(value, statement, "whole" if not value.places else "read")


def _read(part: s.Part, statement: s.Statement, *, logical: bool = False) -> Iterator[Mention]:
    if isinstance(part, s.Tensor):
        yield Mention(part, statement, "read", logical)
        return
    pending = [part]
    while pending:
        match pending.pop():
            case s.Not(atom=atom):
                yield Mention(atom, statement, "not", logical=True)
            case s.Tensor() as tensor:
                yield Mention(tensor, statement, "read")
            case s.Place() | s.Variable() | s.Constant():
                pass
            case other:
                pending.extend(reversed(list(s.children(other))))


def literal_array(part: s.ListLiteral) -> np.ndarray[Any, Any]:
    """Return the array of a literal; lists of unequal lengths are refused.

    >>> literal_array(s.ListLiteral((s.Number(1), s.Number(2.5)))).tolist()
    [1.0, 2.5]
    """
    try:
        return np.array(_nested(part), dtype=float)
    except (ValueError, OverflowError):
        hint = "write lists of equal lengths, such as [[1, 2], [3, 4]]"
        raise GraphError("the lists of a literal have different lengths", hint, code="E672", location=part.at) from None


def _nested(part: s.ListLiteral) -> list[Any]:
    return [_nested(v) if isinstance(v, s.ListLiteral) else v.value for v in part.values]


def number_of(part: s.Part) -> int | float | None:
    """Return the number that an expression is, by itself or with its sign turned; None where it is something else."""
    if isinstance(part, s.Negative):
        inner = number_of(part.value)
        return None if inner is None else -inner
    return part.value if isinstance(part, s.Number) else None


def find_scalars(statements: Sequence[s.Statement], given: Mapping[str, GivenTensor]) -> dict[str, int | float]:
    """Return the scalars whose values are known: ``L = 3``, or given as numbers."""
    counts: dict[str, int] = {}
    found: dict[str, int | float] = {n: g.value for n, g in given.items() if g.value is not None and g.shape == ()}
    for statement in statements:
        if isinstance(statement, s.Rule | s.Equation):
            counts[statement.head.name] = counts.get(statement.head.name, 0) + 1
        if isinstance(statement, s.Equation) and not statement.head.places and statement.operator == "=":
            value = number_of(statement.value)
            if value is not None:
                found[statement.head.name] = value
    return {name: value for name, value in found.items() if counts.get(name, 0) < (2 if name not in given else 1)}


def declare(
    statements: Sequence[s.Statement], given: Mapping[str, GivenTensor], functions: Iterable[str] = ()
) -> dict[str, Declaration]:
    """Find the arity and the kind of every tensor; two uses that do not fit are an error that shows both."""
    arities: dict[str, tuple[int, s.Part | None]] = {}
    kinds: dict[str, tuple[bool, s.Part | None]] = {}
    order: dict[str, SourceLocation | None] = {}
    taken = set(functions)

    def arity(name: str, count: int, part: s.Part) -> None:
        order.setdefault(name, part.at)
        if name in taken:
            hint = "give the tensor another name"
            raise GraphError(f"{name!r} is the name of a function", hint, code="E673", location=part.at)
        known = arities.setdefault(name, (count, part))
        if known[0] != count:
            places = counted(known[0], "place")
            message = f"{name!r} has {places} at {_where(known[1])} but {counted(count, 'place')} here"
            hint = "give one of the two another name"
            hint = f"write {places} here too, or {hint}" if known[0] else hint
            raise GraphError(message, hint, code="E674", location=part.at)

    def kind(name: str, boolean: bool, part: s.Part) -> None:
        known = kinds.setdefault(name, (boolean, part))
        if known[0] != boolean:
            words = ("truth values, in parentheses,", "numbers, in brackets,")[:: 1 if known[0] else -1]
            message = f"{name!r} holds {words[0]} at {_where(known[1])} but {words[1]} here"
            raise GraphError(message, "write it the same way everywhere", code="E675", location=part.at)

    for statement in statements:
        if isinstance(statement, s.Facts):
            arity(statement.name, len(statement.columns), statement)
            kind(statement.name, True, statement)
            continue
        comparisons = [part for part in s.walk(statement) if isinstance(part, s.Comparison)]
        compared = {id(side) for part in comparisons for side in (part.left, part.right)}
        for mention in mentions(statement):
            tensor = mention.tensor
            order.setdefault(tensor.name, tensor.at)
            literal = statement.value if isinstance(statement, s.Equation) else None
            if mention.role == "head" and isinstance(literal, s.ListLiteral) and not tensor.places:
                arity(tensor.name, literal_array(literal).ndim, tensor)
                kind(tensor.name, False, tensor)
            elif mention.role != "whole":
                bare = not (tensor.places or tensor.boolean or mention.logical or mention.role == "head")
                if bare and id(tensor) in compared:
                    continue  # it may be the name of an element, such as Alice in x = Alice
                arity(tensor.name, len(tensor.places), tensor)
                if tensor.places or tensor.boolean or mention.logical:
                    kind(tensor.name, tensor.boolean or (mention.logical and not tensor.places), tensor)
    for name, data in given.items():
        known = arities.get(name)
        if known is not None and len(data.shape) != known[0]:
            places, given_places = counted(known[0], "place"), counted(len(data.shape), "place")
            message = f"{name!r} has {places} in the program but is given with {given_places}"
            at = None if known[1] is None else known[1].at
            raise GraphError(message, "give it with as many axes as it has places", code="E674", location=at)
        arities.setdefault(name, (len(data.shape), None))
        kinds.setdefault(name, (data.boolean, None))
        order.setdefault(name, None)
    found = [(n, at, kinds.get(n, (False, None))[0]) for n, at in order.items() if n in arities]
    return {n: Declaration(n, arities[n][0], boolean, at) for n, at, boolean in found}


def _where(part: s.Part | None) -> str:
    return "the given data" if part is None or part.at is None else str(part.at)
