"""The parts of a tensor-logic program as it is written: statements, expressions and indices, each with its place in the text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from ..diagnostics import SourceLocation

WALK, WALKS = 256, 4096  # parts inside a part, up to which they are remembered, and of how many parts that is


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every part of a program; two parts are equal where they say the same, wherever they stand."""

    at: SourceLocation | None = None

    def __ne__(self, other: object) -> bool:  # that of msgspec does not ask __eq__
        return not self == other

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        waiting: list[tuple[object, object]] = [(self, other)]  # no recursion: parts may be nested deeply
        while waiting:
            left, right = waiting.pop()
            if isinstance(left, Part):
                if type(left) is not type(right):
                    return False
                waiting += [(getattr(left, f), getattr(right, f)) for f in left.__struct_fields__ if f != "at"]
            elif isinstance(left, tuple) and isinstance(right, tuple) and left and isinstance(left[0], Part):
                if len(left) != len(right):
                    return False
                waiting += zip(left, right, strict=True)
            elif left != right:
                return False
        return True

    def __hash__(self) -> int:
        found: list[object] = []
        waiting: list[object] = [self]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Part):
                found.append(type(value))
                waiting += [getattr(value, f) for f in value.__struct_fields__ if f != "at"]
            elif isinstance(value, tuple) and value and isinstance(value[0], Part):
                found.append(len(value))
                waiting += value
            else:
                found.append(value)
        return hash(tuple(found))


# indices: what stands in a place of a tensor


class Variable(Part, frozen=True):
    """An index variable, such as ``x`` or ``p'``; as a value it is its position."""

    name: str


class Constant(Part, frozen=True):
    """A name, a whole number or a quoted string: an element of the place's domain, or the value of a scalar of that name."""

    value: str | int
    quoted: bool = False


class Arithmetic(Part, frozen=True):
    """A sum, difference, product or integer quotient of indices, such as ``t+1``, ``x+dx`` or ``x/S``."""

    operator: str  # + - * /
    left: Index
    right: Index


class Range(Part, frozen=True):
    """A range of an index, such as ``4:8``; a side that is None is the end of the axis."""

    start: Index | None = None
    stop: Index | None = None


Index = Variable | Constant | Arithmetic | Range


class Place(Part, frozen=True):
    """One place of a tensor: its index, and whether it is the one a normaliser runs over (``p'.``) or a virtual one (``*t``)."""

    index: Index
    normalised: bool = False
    virtual: bool = False


# expressions: what has a value


class Tensor(Part, frozen=True):
    """A tensor with its indices: ``W[i,j]``, a relation ``Parent(x,y)``, or a scalar ``Y``."""

    name: str
    places: tuple[Place, ...] = ()
    boolean: bool = False  # written with parentheses


class Number(Part, frozen=True):
    """A number as a value."""

    value: int | float


class Text(Part, frozen=True):
    """A quoted string as a value: an argument of a function, or one side of a comparison."""

    value: str


class ListLiteral(Part, frozen=True):
    """A literal tensor, such as ``[0.2, 1.9]``; nested lists have more indices."""

    values: tuple[ListLiteral | Number, ...]


class Product(Part, frozen=True):
    """Factors side by side, or between ``*``: a join."""

    factors: tuple[Expression, ...]


class Operation(Part, frozen=True):
    """A sum, difference, quotient or power of two values."""

    operator: str  # + - / ^
    left: Expression
    right: Expression


class Negative(Part, frozen=True):
    """A value with its sign turned."""

    value: Expression


class Call(Part, frozen=True):
    """A function of values, such as ``sig(...)``."""

    function: str
    arguments: tuple[Expression, ...]


class Not(Part, frozen=True):
    """A negated atom of a rule."""

    atom: Tensor


COMPARISONS = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


class Comparison(Part, frozen=True):
    """A comparison of two values: ``x < y``, ``x = Alice``, ``x != y``, ``y = x + 1``."""

    operator: str  # = != < <= > >=
    left: Expression
    right: Expression


Value = Tensor | Number | Text | ListLiteral | Product | Operation | Negative | Call | Variable | Constant
Expression = Value | Not | Comparison  # a value, or a literal of a rule that is none


# statements


class Facts(Part, frozen=True):
    """Facts of one relation that stand together: a column for each place, and the line of each fact."""

    name: str
    columns: tuple[tuple[str | int, ...], ...]
    lines: tuple[int, ...] = ()  # in the file of ``at``

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else len(self.lines)

    def rows(self) -> Iterator[tuple[str | int, ...]]:
        """Go through the facts as tuples."""
        return zip(*self.columns, strict=True) if self.columns else iter([()] * len(self))


class Rule(Part, frozen=True):
    """A head that holds where every literal of its body does; a body literal is an atom, a negated atom or a comparison."""

    head: Tensor
    body: tuple[Expression, ...]


class Equation(Part, frozen=True):
    """A tensor equation; the operator says how what is left over is projected: ``=``, ``+=``, ``max=``, ``min=``, ``avg=``, ``count=``."""

    head: Tensor
    operator: str
    value: Expression


class Query(Part, frozen=True):
    """A question: the matching tuples of a relation (a conjunction of literals may be asked for too), or a tensor."""

    body: tuple[Expression, ...]


class Read(Part, frozen=True):
    """A relation or tensor that is read from a file."""

    head: Tensor
    path: str


class Write(Part, frozen=True):
    """A relation or tensor that is written to a file."""

    path: str
    value: Tensor


Statement = Facts | Rule | Equation | Query | Read | Write


class Module(Part, frozen=True):
    """A program as it is written: its statements in order, and the text they came from."""

    statements: tuple[Statement, ...]
    text: str = ""
    file: str | None = None


def children(part: Part) -> list[Part]:
    """Return the parts that a part is made of, one level down."""
    found = []
    for field in part.__struct_fields__:
        value = getattr(part, field)
        if isinstance(value, Part):
            found.append(value)
        elif type(value) is tuple:
            found += [v for v in value if isinstance(v, Part)]
    return found


_walks: dict[int, tuple[Part, ...]] = {}  # by the id of a part, which is the first of them and so stays


def walk(part: Part) -> tuple[Part, ...]:
    """Return a part and everything inside it, in the order it is written; what was gone through lately is remembered."""
    known = _walks.get(id(part))
    if known is not None:
        return known
    found, pending = list[Part](), [part]
    while pending:
        found.append(pending.pop())
        pending += reversed(children(found[-1]))
    if len(found) <= WALK:
        if len(_walks) >= WALKS:
            _walks.clear()
        _walks[id(part)] = tuple(found)
    return tuple(found)


def changed(part: Any, change: Callable[[Part], Part | None]) -> Any:
    """Return a part with what ``change`` makes of the parts in it; where it gives None, it is asked about the parts inside.

    >>> changed(Negative(Variable("x")), lambda p: Variable("y") if isinstance(p, Variable) else None).value.name
    'y'
    """
    if isinstance(part, tuple):
        return tuple([changed(x, change) for x in part])
    if not isinstance(part, Part):
        return part
    if (found := change(part)) is not None:
        return found
    return type(part)(**{f: changed(getattr(part, f), change) for f in part.__struct_fields__})


def with_variables(part: Any, change: Callable[[Variable], Part]) -> Any:
    """Return a part with its variables changed."""
    return changed(part, lambda p: change(p) if isinstance(p, Variable) else None)


def reads(part: Part, names: Collection[str]) -> bool:
    """Tell whether one of some tensors stands in a part."""
    return any(isinstance(p, Tensor) and p.name in names for p in walk(part))


def variables(part: Part) -> tuple[str, ...]:
    """Return the names of the index variables in a part, each once, in order of first occurrence.

    >>> variables(Tensor("P", (Place(Variable("x")), Place(Variable("y")), Place(Variable("x")))))
    ('x', 'y')
    """
    return tuple(dict.fromkeys(p.name for p in walk(part) if isinstance(p, Variable)))
