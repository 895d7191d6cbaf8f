"""What a formula is compiled against: domains, predicate signatures, and graphs that compute predicates."""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import SourceLocation, caller, value_text
from ..errors import GraphError, InputError, TensorLogicError, expect, nearest
from ..ir.graph import EinsumGraph
from ..ir.types import number_array, plain_array, plain_scalar

SCALE = "scale or clip the scores, such as 1 / (1 + np.exp(-x))"


class LogicWarning(UserWarning):
    """Something in a formula, or in what it is given, is probably not what was meant.

    >>> issubclass(LogicWarning, UserWarning)
    True
    """


def warn(message: str, location: SourceLocation | None) -> None:
    """Warn of something at a place in the user's text, or in the code that calls."""
    location = location or caller()
    if location is not None and location.file and location.line:
        warnings.warn_explicit(message, LogicWarning, location.file, location.line)
    else:
        warnings.warn(message, LogicWarning, stacklevel=2)


def wrong_score(name: str, value: Any) -> str:
    """Return what is wrong with the scores of a predicate: the first that is below 0, above 1 or NaN; nothing where none is.

    >>> wrong_score("likes", [0.5, 2.0])
    "score 2.0 of 'likes' at [1] is outside of 0 to 1 (1 are)"
    """
    array = number_array(value)
    if array.dtype == bool:
        return ""
    outside = ~((array >= 0) & (array <= 1))
    if not outside.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(outside)[0])
    return f"score {array[place]} of {name!r} at {list(place)} is outside of 0 to 1 ({outside.sum():,} are)"


def blamed_score(error: GraphError, graph: EinsumGraph, inputs: Mapping[str, Any]) -> TensorLogicError:
    """Return the error of a factor outside of an algebra as that of the score of a formula, where one of those given is wrong."""
    found = error.diagnostic
    wrong = (wrong_score(n, inputs[n]) for n in sorted(graph.scores.intersection(inputs)))
    message = next(filter(None, wrong), "")
    if not message:
        return error
    blamed = InputError(f"{message}: {found.message}", SCALE, code="E622", context=found.context)
    return blamed.at(None if error.guessed else found.location)


class CompilerContext:
    """What formulas are compiled with: domains (by size or by names), predicate signatures, and graphs that compute predicates.

    ``predicates`` declares signatures, which are inferred otherwise; ``graphs`` computes predicates by graphs of one output, so
    that a classifier can stand in a rule.

    >>> context = CompilerContext(domains={"Person": ["alice", "bob"], "Year": 100})
    >>> context.size("Person"), context.index("Person", "bob"), context.size("Year")
    (2, 1, 100)
    """

    def __init__(
        self,
        domains: Mapping[str, int | Sequence[str]],
        predicates: Mapping[str, Sequence[str]] | None = None,
        graphs: Mapping[str, EinsumGraph] | None = None,
    ) -> None:
        self.domains: dict[str, int | tuple[str, ...]] = {}
        if not isinstance(domains, Mapping):
            raise GraphError(
                f"domains are a mapping of names to sizes or names, got {value_text(domains)}", code="E301"
            )
        for name, value in domains.items():
            expect(name, str, "a domain is named by text")
            given: Any = value
            if isinstance(given, set | frozenset):
                hint = f"give a list, such as sorted({name.lower()}), so that each name has its place in every process"
                raise GraphError(f"domain {name!r} is a set, whose elements have no order", hint, code="E605")
            if isinstance(given, Mapping):
                hint = f"give a list in the order of the places, such as list({name.lower()})"
                raise GraphError(f"domain {name!r} is a mapping, of which only the keys are names", hint, code="E301")
            refused = GraphError(f"domain {name!r} is a size or a list of names, got {value_text(given)}", code="E301")
            if hasattr(given, "__array__"):  # of another library, whose elements may print as tensor(0)
                given = plain_array(given)
            odd = isinstance(given, np.ndarray) and given.dtype.kind not in "iuUSOT"
            if odd or isinstance(given, str | bytes | bool):
                raise refused
            if not isinstance(given, Iterable) or getattr(given, "shape", None) == ():
                try:
                    size = operator.index(given)
                except TypeError:
                    raise refused from None
                if not 0 <= size < 2**63:
                    raise GraphError(f"domain {name!r} cannot have {value_text(size)} elements", code="E310")
                self.domains[name] = size
                continue
            if getattr(given, "ndim", 1) != 1:
                raise GraphError(f"domain {name!r} is a list of names, got an array of several axes", code="E301")
            members = [_member(m, f"element {n} of domain {name!r}") for n, m in enumerate(given)]
            if len(set(members)) < len(members):
                twice = Counter(members).most_common(1)[0][0]
                raise GraphError(f"domain {name!r} has {twice!r} twice", code="E621")
            self.domains[name] = tuple(members)
        for what, told in (("predicates", predicates), ("graphs", graphs)):
            expect({} if told is None else told, Mapping, f"{what}= is a mapping of names of predicates")
            for name in told or {}:
                expect(name, str, "a predicate is named by text")
        self._places = {n: {m: i for i, m in enumerate(d)} for n, d in self.domains.items() if not isinstance(d, int)}
        self.predicates = {n: _signature(n, s) for n, s in ({} if predicates is None else predicates).items()}
        for predicate, signature in self.predicates.items():
            for domain in signature:
                self.check(domain, f"predicate {predicate!r}")
        self.graphs = dict(graphs or {})
        for predicate, graph in self.graphs.items():
            if not isinstance(graph, EinsumGraph):
                raise GraphError(
                    f"predicate {predicate!r} is computed by a graph, got {value_text(graph)}", code="E301"
                )
            if len(graph.outputs) != 1:
                count = len(graph.outputs)
                raise GraphError(f"predicate {predicate!r} needs a graph of one output, got {count}", code="E614")

    def check(self, domain: str, where: str, location: SourceLocation | None = None) -> None:
        """Raise where there is no such domain."""
        if domain not in self.domains:
            hint = f"CompilerContext(domains={{{domain!r}: 10}}), on the command line -d {domain}=10"
            message = f"{where} has domain {domain!r}, which is not given"
            near = nearest(domain, self.domains) if self.domains else []
            raise GraphError(message, *near, hint, code="E606", location=location)

    def check_scores(self, inputs: Mapping[str, Any]) -> None:
        """Refuse scores that no fuzzy logic or probability knows: below 0, above 1, or NaN.

        Call this on what a rule is given. Without it, an executor looks at what a rule is given first, and warns once.

        >>> CompilerContext(domains={}).check_scores({"likes": [0.0, 0.7, 1.0]})
        """
        expect(inputs, Mapping, "scores are given by the names of their predicates", 'write {"likes": array}')
        for name, value in inputs.items():
            if message := wrong_score(name, value):
                raise InputError(message, SCALE, code="E622")

    def size(self, domain: str) -> int:
        """Return the number of elements of a domain."""
        found = self.domains[domain]
        return found if isinstance(found, int) else len(found)

    def _place(self, domain: str, constant: str | int) -> int | None:
        found = self.domains[domain]
        if isinstance(found, int):
            return constant if isinstance(constant, int) and 0 <= constant < found else None
        return self._places[domain].get(_name(constant) or str(constant))

    def has(self, domain: str, constant: str | int) -> bool:
        """Tell whether a constant is in a domain."""
        return self._place(domain, constant) is not None

    def names(self, domain: str) -> tuple[str, ...]:
        """Return the names of a domain's elements; numbers where it is given by its size."""
        found = self.domains[domain]
        return tuple(str(i) for i in range(found)) if isinstance(found, int) else found

    def index(self, domain: str, constant: str | int) -> int:
        """Return the place of a constant in its domain."""
        place, found = self._place(domain, constant), self.domains[domain]
        if place is None:
            numbers = [f"it has the numbers 0 to {found - 1}"] if isinstance(found, int) else []
            hints = numbers or nearest(str(constant), found)  # type: ignore[arg-type]
            raise GraphError(f"{value_text(constant)} is not in domain {domain!r}", *hints, code="E607")
        return place


def _name(value: Any) -> str | None:
    """Return the text that stands for a name: of text and whole numbers, and of an enumeration's members; None where there is none."""
    value = plain_scalar(value)
    if isinstance(value, Enum):
        value = value.value if isinstance(value, str | int) or isinstance(value.value, str) else value.name
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _member(value: Any, what: str) -> str:
    """Return the name of one element of a domain."""
    if (name := _name(value)) is not None:
        return name
    hint = "a name is text or a whole number; write str(value) for others"
    missing = value is None or (isinstance(value, float) and value != value)
    raise GraphError(f"{what} is no name: {value_text(value)}", hint, code="E774" if missing else "E775")


def _signature(name: str, given: Any) -> tuple[str, ...]:
    """Return the domains of a predicate's places, in their order."""
    if isinstance(given, set | frozenset):
        hint = f"give a tuple, such as {tuple(sorted(map(str, given)))}, in the order of the places"
        raise GraphError(
            f"the domains of predicate {name!r} are a set, whose elements have no order", hint, code="E605"
        )
    found = tuple(given) if isinstance(given, Iterable) and getattr(given, "shape", None) != () else (None,)
    if not all(isinstance(domain, str) for domain in found):
        hint = 'give the name of the domain of each place, such as ("Person", "Year")'
        raise GraphError(
            f"the domains of predicate {name!r} are a list of names, got {value_text(given)}", hint, code="E301"
        )
    return tuple(map(str, found))


class _Use(NamedTuple):
    """Where a domain was said, for the error that shows two uses that clash."""

    domain: str
    said: str
    location: SourceLocation | None


class DomainTable:
    """Finds the domain of every variable and predicate place: those joined by a variable share one."""

    def __init__(self, context: CompilerContext) -> None:
        self.context = context
        self._parent: dict[object, object] = {}
        self._uses: dict[object, _Use] = {}
        self._arity: dict[str, tuple[int, SourceLocation | None]] = {}
        self._constants: list[tuple[object, str | int, SourceLocation | None]] = []
        for name, signature in context.predicates.items():
            self._arity[name] = (len(signature), None)
            for i, domain in enumerate(signature):
                self.say((name, i), domain, f"place {i + 1} of {name} (declared)", None)

    def _root(self, key: object) -> object:
        root = key
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(key, key) != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def say(self, key: object, domain: str, said: str, location: SourceLocation | None) -> None:
        """Give a variable or place its domain."""
        self.context.check(domain, said, location)
        root = self._root(key)
        self._agree(self._uses.setdefault(root, _Use(domain, said, location)), _Use(domain, said, location))

    def join(self, a: object, b: object) -> None:
        """Give two variables or places one domain."""
        left, right = self._root(a), self._root(b)
        if left == right:
            return
        if left in self._uses and right in self._uses:
            self._agree(self._uses[left], self._uses[right])
        self._parent[right] = left
        if right in self._uses:
            self._uses.setdefault(left, self._uses.pop(right))

    def _agree(self, first: _Use, second: _Use) -> None:
        if first.domain != second.domain:
            message = f"{second.said} has domain {second.domain!r}, but {first.said} has domain {first.domain!r}"
            hint = "use another variable, or declare both places with one domain"
            places = [f"{use.said}: {use.domain} at {use.location}" for use in (first, second) if use.location]
            raise GraphError(message, hint, code="E608", location=second.location, context=places)

    def use(self, predicate: str, arity: int, location: SourceLocation | None) -> None:
        """Note one use of a predicate; another arity is an error that shows both."""
        known, first = self._arity.setdefault(predicate, (arity, location))
        if known != arity:
            shown = "declared" if first is None else f"used at {first}"
            message = f"predicate {predicate!r} has {arity} arguments here, but {known} where it is {shown}"
            raise GraphError(message, code="E609", location=location)

    def arity(self, predicate: str) -> int:
        """Return how many places a predicate has; 0 where it is none."""
        return self._arity.get(predicate, (0, None))[0]

    def members(self, key: object) -> tuple[str, ...] | None:
        """Return the names of the elements that a variable or place runs over; None where only their number is known."""
        use = self._uses.get(self._root(key))
        only = next(iter(self.context.domains)) if len(self.context.domains) == 1 else None
        found = self.context.domains.get(use.domain if use is not None else only or "", 0)
        return None if isinstance(found, int) else found

    def constant(self, place: object, value: str | int, location: SourceLocation | None) -> None:
        """Note a constant: where nothing else says a place's domain, the one domain that has its constants is it."""
        self._constants.append((place, value, location))

    def settle(self) -> None:
        """Give places that only constants stand at the one domain that has them."""
        for place, value, location in self._constants:
            if self._root(place) not in self._uses:
                homes = [n for n in self.context.domains if self.context.has(n, value)]
                if isinstance(value, str) and not homes:
                    known = [m for d in self.context.domains.values() if not isinstance(d, int) for m in d]
                    raise GraphError(f"{value_text(value)} is in no domain", *nearest(value, known), code="E607").at(
                        location
                    )
                if isinstance(value, str) and len(homes) == 1:
                    self.say(place, homes[0], f"the place of {value!r}", location)
        self._constants.clear()

    def find(self, key: object, what: str, location: SourceLocation | None) -> str:
        """Return the domain of a variable or place: what is said of it, or the only one there is."""
        use = self._uses.get(self._root(key))
        if use is None and len(self.context.domains) == 1:
            return next(iter(self.context.domains))
        if use is None:
            domain = next(iter(self.context.domains), "Person")
            hint = f"declare it: tl.variables('x', domain={domain!r}), on the command line -v x={domain}"
            other = "or the predicate: CompilerContext(domains, predicates={'p': ('Person',)})"
            raise GraphError(f"nothing says the domain of {what}", hint, other, code="E610", location=location)
        return use.domain
