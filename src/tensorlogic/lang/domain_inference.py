"""Domain inference: places joined by one index share a domain, which is a range of numbers or a list of names, constants included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from ..diagnostics import SourceLocation
from ..errors import GraphError, nearest
from ..tables import counted
from . import syntax as s
from .affine import affine
from .declarations import Declaration, GivenTensor, Mention, Scalars, mentions
from .domains import Domain
from .extents import Slice
from .strata import calculated

DomainKey = tuple[str, int]  # the first place of a tensor that has the domain
MAX_AXIS = 1 << 26  # elements of an axis that counts from 0; numbers of facts beyond that are elements like names
MAX_INTEGERS = 1 << 20  # numbers of a domain that reaches below 0 and is calculated with


def integers(first: int, last: int) -> Domain:
    """Return the domain of all whole numbers from one that may be below 0 to another."""
    if last - first >= MAX_INTEGERS:
        message = f"numbers from {first:,} to {last:,} are calculated with; from below 0 on, up to {MAX_INTEGERS:,} are possible"
        raise GraphError(message, "bound them in the rule: x >= 0", code="E756")
    return Domain(range(first, last + 1), integers=True)


class Data(NamedTuple):
    """A size that data give to a place."""

    size: int
    what: str
    at: SourceLocation | None


class _Class(msgspec.Struct, eq=False):
    """What is known of places and variables that share a domain."""

    constants: dict[str | int, SourceLocation | None] = {}
    read: int = -1  # the greatest number read in a place, which says how far a recurrence must go
    data: list[Data] = []
    variable: s.Variable | None = None  # the first that stands there
    arithmetic: s.Part | None = None
    named: bool = False  # some constant stands in a relation, or on the left side
    related: bool = False  # some constant stands in a relation
    numeric: bool = False  # a place of a tensor of numbers
    valued: bool = False  # an index that is used as a number
    positions: bool = False  # calculated with in a place of a tensor of numbers, so that elements are positions

    def merge(self, other: _Class) -> None:
        self.constants.update({c: at for c, at in other.constants.items() if c not in self.constants})
        self.read = max(self.read, other.read)
        self.data += other.data
        for name in ("variable", "arithmetic", "named", "related", "numeric", "valued", "positions"):
            setattr(self, name, getattr(self, name) or getattr(other, name))


Key = tuple[str, int] | tuple[int, str]  # a place of a tensor, or a variable of a statement (by its number)


class Places:
    """Finds the domain of every place and variable, by joining those that share an index."""

    def __init__(self, tensors: Mapping[str, Declaration], scalars: Scalars) -> None:
        self.tensors, self.scalars = tensors, scalars
        self._parent: dict[Key, Key] = {}
        self._classes: dict[Key, _Class] = {}
        self._later: list[tuple[Key, s.Constant, bool] | s.Facts] = []  # constants, added once all is joined

    def find(self, key: Key) -> Key:
        """Return the representative of a place or variable."""
        if key not in self._parent:
            self._parent[key] = key
            self._classes[key] = _Class()
            return key
        root = key
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[key] != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def known(self, key: Key) -> _Class:
        """Return what is known of the domain of a place or variable."""
        return self._classes[self.find(key)]

    def join(self, a: Key, b: Key) -> None:
        """Let two places or variables share a domain."""
        first, second = self.find(a), self.find(b)
        if first != second:
            self._parent[second] = first
            self._classes[first].merge(self._classes.pop(second))

    def roots(self) -> list[Key]:
        """Return one key for every domain, in order of first appearance."""
        return list(dict.fromkeys(self.find(k) for k in self._parent))

    # reading statements

    def add(self, number: int, statement: s.Statement) -> None:
        """Note what one statement says of domains."""
        if isinstance(statement, s.Facts):
            for p in range(len(statement.columns)):
                self.find((statement.name, p))
            self._later.append(statement)
            return
        for mention in mentions(statement):
            if mention.tensor.name in self.tensors:
                self._mention(number, mention)
        for part in s.walk(statement):
            if isinstance(part, s.Comparison):
                self._comparison(number, part)
        if isinstance(statement, s.Rule):
            for name, value in calculated(statement.body).items():
                self._arithmetic((number, name), value)  # y = x + 1 may give numbers that no fact has
        if isinstance(statement, s.Equation):
            self._values(number, statement.value)

    def _mention(self, number: int, mention: Mention) -> None:
        tensor = mention.tensor
        boolean = self.tensors[tensor.name].boolean
        for p, place in enumerate(tensor.places):
            key = (tensor.name, p)
            self.find(key)
            match place.index:
                case s.Variable(name="_"):
                    pass  # anything: every one is a variable of its own
                case s.Variable(name=name) as variable:
                    self.join(key, (number, name))
                    found = self.known(key)
                    found.variable = found.variable or variable
                case s.Constant() as constant:
                    self._later.append((key, constant, mention.role != "head"))
                    self.known(key).named |= boolean or mention.role == "head"
                    self.known(key).related |= boolean
                case s.Range() as part:
                    self._arithmetic(key, part)
                case s.Arithmetic() as part:
                    self._arithmetic(key, part)
                    form = affine(part, self.scalars)
                    for name in form.variables:
                        self._arithmetic((number, name), part)
                        self.known((number, name)).positions |= not boolean
                        if boolean and len(form.terms) == 1:
                            self.join(key, (number, name))
            if not boolean:
                self.known(key).numeric = True
                self.known(key).positions |= isinstance(place.index, s.Range | s.Arithmetic)

    def _arithmetic(self, key: Key, part: s.Part) -> None:
        found = self.known(key)
        found.arithmetic = found.arithmetic or part

    def add_constants(self) -> None:
        """Add the constants, in the order they stand in the program."""
        for entry in self._later:
            if isinstance(entry, s.Facts):
                self._facts(entry)
            else:
                self._constant(*entry)
        self._later.clear()

    def _constant(self, key: Key, constant: s.Constant, read: bool) -> None:
        """Add a constant to a domain; the name of a scalar stands for its value."""
        value: str | int = constant.value
        if isinstance(value, str) and not constant.quoted and value in self.scalars:
            number = self.scalars[value]
            if int(number) != number:
                message = f"{value} is {number}, which is no whole number, so it cannot be an index"
                raise GraphError(message, "use a whole number", code="E671", location=constant.at)
            value = int(number)
        found = self.known(key)
        found.constants.setdefault(value, constant.at)
        if read and isinstance(value, int):
            found.read = max(found.read, value)

    def _comparison(self, number: int, part: s.Comparison) -> None:
        """Let the variables that a comparison of indices compares share a domain, and add its constants."""
        keys: list[Key] = []
        constants: list[s.Constant] = []
        for piece in s.walk(part):
            match piece:
                case s.Variable(name=name):
                    keys.append((number, name))
                case s.Number(value=int() as value):
                    constants.append(s.Constant(value, at=piece.at))
                case s.Text(value=text):
                    constants.append(s.Constant(text, quoted=True, at=piece.at))
                case s.Constant():
                    constants.append(piece)
                case s.Tensor(name=name, places=()) if name not in self.tensors:
                    constants.append(s.Constant(name, at=piece.at))
                case s.Tensor(name=name, places=()) if name in self.scalars:
                    pass
                case s.Comparison() | s.Operation() | s.Product() | s.Negative():
                    pass
                case _:
                    return  # a comparison of values
        for key in keys[1:]:
            self.join(keys[0], key)
        simple = isinstance(part.left, s.Variable) or isinstance(part.right, s.Variable)
        for constant in constants if keys and simple else []:
            if not (isinstance(constant.value, int) and constant.value < 0):
                self._later.append((keys[0], constant, False))

    def _values(self, number: int, value: s.Part) -> None:
        """Note the indices that are used as numbers."""
        pending = [value]
        while pending:
            match pending.pop():
                case s.Variable(name=name):
                    self.known((number, name)).valued = True
                case s.Tensor() | s.Comparison():
                    pass
                case other:
                    pending.extend(s.children(other))

    def _facts(self, statement: s.Facts) -> None:
        """Add the constants of facts, row by row, each to the domain of its place."""
        for found, places in self._related(statement.name, range(len(statement.columns))):
            columns = [statement.columns[p] for p in places]
            rows = columns[0] if len(columns) == 1 else chain.from_iterable(zip(*columns, strict=True))
            for constant in dict.fromkeys(rows):
                found.constants.setdefault(constant, statement.at)

    def add_given(self, name: str, data: GivenTensor) -> None:
        """Add the elements that given data name; places that share a domain together, in the order of their rows."""
        if data.elements is None:
            return
        for found, places in self._related(name, range(len(data.shape))):
            new = dict.fromkeys(data.elements(places))
            known = found.constants
            known.update({c: None for c in new if c not in known} if known else new)

    def _related(self, name: str, places: Iterable[int]) -> list[tuple[_Class, list[int]]]:
        """Return the domains of some places of a relation, which now have constants, each with the places that share it."""
        together: dict[int, tuple[_Class, list[int]]] = {}
        for p in places:
            found = self.known((name, p))
            found.named = found.related = True
            together.setdefault(id(found), (found, []))[1].append(p)
        return list(together.values())

    # the result

    def domain(self, key: Key) -> Domain:
        """Decide what a domain is, and its size as far as data and constants fix it."""
        found = self.known(key)
        sizes = found.data
        for other in sizes[1:]:
            if other.size != sizes[0].size:
                label = f"index {found.variable.name!r}" if found.variable else "an index"
                message = f"{label} is {sizes[0].size} in {sizes[0].what} but {other.size} in {other.what}"
                hint = "give arrays whose sizes agree"
                raise GraphError(message, hint, code="E676", location=other.at or sizes[0].at)
        size = sizes[0].size if sizes else None
        numeric = set(map(type, found.constants)) <= {int}
        words = [] if numeric else [c for c in found.constants if isinstance(c, str)]
        if words and found.arithmetic is not None:
            message = f"an index with the element {words[0]!r} is calculated with"
            hint = "index arithmetic is for whole numbers"
            raise GraphError(message, hint, code="E677", location=found.arithmetic.at)
        if words and sizes and not found.named:
            message = f"{words[0]!r} is no index of {sizes[0].what!r}, which counts from 0 to {sizes[0].size - 1}"
            hints = ["write a number", f"an index variable begins with a lower-case letter: {words[0].lower()}"]
            hints = hints if words[0].isidentifier() else hints[:1]
            raise GraphError(message, *hints, code="E678", location=found.constants[words[0]])
        whole: list[int] = [*found.constants] if numeric else [c for c in found.constants if isinstance(c, int)]  # type: ignore[list-item]
        if words or (whole and self._by_name(found, whole)):
            if size is not None and size < len(found.constants):
                elements = counted(len(found.constants), "element")
                message = f"{sizes[0].what} has size {size} along an index of {elements}"
                hint = "give an array with a row for each of: " + ", ".join(map(str, list(found.constants)[:12]))
                raise GraphError(message, hint, code="E676", location=sizes[0].at)
            return Domain(found.constants, size, integers=not words)
        if whole and min(whole) < 0:
            if found.related and not found.positions and not sizes:  # rules derive numbers from these
                return integers(min(whole), max(whole))
            message = f"an index cannot be {min(whole)}: it counts from 0"
            hint = "use numbers from 0 on; only relations hold others"
            raise GraphError(message, hint, code="E678", location=found.constants[min(whole)])
        if size is None and whole and (found.arithmetic is None or not found.numeric or found.related):
            size = max(whole) + 1
        elif size is None and found.read >= 0:
            size = found.read + 1
        return Domain(size=size)

    def _by_name(self, found: _Class, whole: Sequence[int]) -> bool:
        """Tell whether whole numbers are elements like names, each of its own, and not positions on an axis that counts from 0."""
        if found.arithmetic is not None:
            return False
        if not found.numeric:
            return not (found.valued and found.data)
        return found.related and not found.data and (min(whole) < 0 or max(whole) >= MAX_AXIS)


def infer_places(
    statements: Sequence[s.Statement],
    tensors: Mapping[str, Declaration],
    scalars: Scalars,
    given: Mapping[str, GivenTensor],
    derived: set[str],
    literals: Mapping[str, tuple[int, ...]],
    slices: Mapping[int, Sequence[Slice]],
) -> Places:
    """Join what shares an index, and gather the constants and the sizes that data give."""
    found = Places(tensors, scalars)
    for number, statement in enumerate(statements):
        found.add(number, statement)
    found.add_constants()
    for name, data in given.items():
        for p, size in enumerate(data.shape):
            entry = found.known((name, p))
            entry.numeric = entry.numeric or not tensors[name].boolean
            if size is not None and name not in derived:
                entry.data.append(Data(size, name, tensors[name].at))
        found.add_given(name, data)
    for name, shape in literals.items():
        for p, size in enumerate(shape):
            entry = found.known((name, p))
            entry.numeric = True
            entry.data.append(Data(size, name, tensors[name].at))
    for number, several in slices.items():
        for each in several:
            found.known((number, each.variable)).data.append(Data(each.length, "a slice", each.part.at))
    return found


def unknown_constant(name: str, place: int, constant: str | int, info: Domain) -> GraphError:
    """Return the error of a constant that is not in the domain of its place."""
    if info.kind == "range":
        where = f"place {place + 1} of {name!r} has the numbers 0 to {(info.size or 0) - 1}"
        return GraphError(f"index {constant!r} is out of range: {where}", code="E678")
    hints = nearest(str(constant), [str(n) for n in info.elements])
    return GraphError(f"{constant!r} is not an element of place {place + 1} of {name!r}", *hints, code="E678")
