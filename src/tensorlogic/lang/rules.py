"""Rules: a head that holds where its body does, and which heads of a rule set depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from ..diagnostics import SourceLocation, value_text
from ..errors import GraphError
from .expr import TLExpr
from .strategies import STRATEGIES, Strategy

K = TypeVar("K", bound=Hashable)
ROUNDS = 1_000_000  # of a fixpoint, where its elements are fewer: fuzzy values may approach their limit slowly


class Rule:
    """A head that holds where its body does; variables of the body alone are existential.

    Head and body are expressions or text; one text may hold the whole rule.

    >>> from tensorlogic import pred, variables
    >>> x, y, z = variables("x y z")
    >>> aunt = Rule(pred("aunt", x, z), pred("sister", x, y) & pred("parent", y, z))
    >>> print(aunt)
    aunt(x, z) ← sister(x, y) ∧ parent(y, z)
    >>> aunt == Rule("aunt(x, z)", "sister(x, y) & parent(y, z)") == Rule("aunt(x,z) <- sister(x,y), parent(y,z)")
    True
    """

    __slots__ = ("body", "head")
    head: TLExpr
    body: TLExpr

    def __init__(self, head: TLExpr | str, body: TLExpr | str | None = None) -> None:
        if body is None:
            head, body = _parts(head)
        object.__setattr__(self, "head", _expression(head, "head"))
        object.__setattr__(self, "body", _expression(body, "body"))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a rule cannot be changed: {name!r} is set where it is made")

    def __reduce__(self) -> tuple[Any, ...]:
        return Rule, (self.head, self.body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self.head == other.head and self.body == other.body

    def __hash__(self) -> int:
        return hash((self.head, self.body))

    def __str__(self) -> str:
        return f"{self.head} ← {self.body}"

    def __repr__(self) -> str:
        return f"<Rule {self.head.to_ascii()} <- {self.body.to_ascii()}>"


def _expression(value: Any, part: str) -> TLExpr:
    if isinstance(value, str):
        from .notation_reader import parse_expr

        return parse_expr(value)
    if not isinstance(value, TLExpr):
        hint = "write tl.Rule(tl.pred('p', x), tl.pred('q', x)) or tl.Rule('p(x) <- q(x)')"
        raise GraphError(f"the {part} of a rule is an expression, got {value_text(value)}", hint, code="E301")
    return value


def _parts(text: Any) -> tuple[TLExpr, TLExpr]:
    """Return the head and the body of one rule in text."""
    if not isinstance(text, str):
        hint = "write tl.Rule(head, body), or the whole rule as text: tl.Rule('p(x) <- q(x)')"
        raise GraphError(f"a rule needs a body, got the head {value_text(text)} alone", hint, code="E301")
    from .rule_text import read_rules

    rules = read_rules(text)
    if len(rules) != 1:
        hint = "give several to tl.compile as they are: tl.compile(text, context)"
        raise GraphError(f"one rule is expected, got {len(rules)} in {text[:60]!r}", hint, code="E752")
    return rules[0].head, rules[0].body


# which heads depend on each other


class Use(NamedTuple):
    """A predicate that a body reads: whether more of it can only give more (+1), only less (-1), or either (0)."""

    name: str
    sign: int
    location: SourceLocation | None


_GROWS = frozenset("and or exists forall add multiply minimum maximum sqrt exp log".split())  # more gives more


def uses(body: TLExpr) -> list[Use]:
    """Return the predicates that a body reads, each with every sign that it has there.

    >>> from tensorlogic import parse_expr
    >>> [(use.name, use.sign) for use in uses(parse_expr("p(x) & (q(x) -> ~p(x)) & (r(x) < 1)"))]
    [('p', 1), ('q', -1), ('p', -1), ('r', 0)]
    """
    found: dict[tuple[str, int], Use] = {}
    seen: set[tuple[int, int]] = set()
    pending = [(body, 1)]
    while pending:
        e, sign = pending.pop()
        if (id(e), sign) in seen:
            continue
        seen.add((id(e), sign))
        if e.kind == "pred":
            found.setdefault((e.name, sign), Use(e.name, sign, e.location))
            continue
        signs = _signs(e)
        pending.extend((a, s * sign) for a, s in zip(reversed(e.args), reversed(signs), strict=True))
    return list(found.values())


def _signs(e: TLExpr) -> list[int]:
    """Return, for each part of an expression, which way it moves the whole."""
    negative = any(a.kind == "constant" and a.value < 0 for a in e.args)
    if e.kind in _GROWS and not (e.kind == "multiply" and negative):
        return [1] * len(e.args)
    match e.kind:
        case "not" | "negative":
            return [-1]
        case "imply":
            return [-1, 1]
        case "subtract":
            return [1, -1]
        case "if":
            return [0, 1, 1]
    return [0] * len(e.args)


def strongly_connected(roots: Iterable[K], needs: Callable[[K], Iterable[K]]) -> list[list[K]]:
    """Return the groups of things that need each other, each group after those it needs (Tarjan's, without recursion).

    >>> strongly_connected("ad", {"a": "bd", "b": "ca", "c": "", "d": "d"}.__getitem__)
    [['c'], ['d'], ['a', 'b']]
    """
    number: dict[K, int] = {}
    low: dict[K, int] = {}
    open_: dict[K, None] = {}
    groups: list[list[K]] = []
    for root in roots:
        trail = [] if root in number else [(root, iter(needs(root)))]
        while trail:
            key, rest = trail[-1]
            if key not in number:
                number[key] = low[key] = len(number)
                open_[key] = None
            for needed in rest:
                if needed not in number:
                    trail.append((needed, iter(needs(needed))))
                    break
                if needed in open_:
                    low[key] = min(low[key], number[needed])
            else:
                trail.pop()
                if trail:
                    low[trail[-1][0]] = min(low[trail[-1][0]], low[key])
                if low[key] == number[key]:
                    group = [open_.popitem()[0]]
                    while group[-1] != key:
                        group.append(open_.popitem()[0])
                    groups.append(group[::-1])
    return groups


class Component(NamedTuple):
    """Heads that depend on each other, or one that does not depend on itself."""

    heads: tuple[str, ...]
    recursive: bool


def round_limit(shapes: Iterable[Sequence[int]]) -> int:
    """Return a number of rounds that a fixpoint over relations of these shapes never needs: each but the last adds an element."""
    return min(max(ROUNDS, sum(math.prod(shape) for shape in shapes) + 1), 2**62)


def components(by_head: Mapping[str, Sequence[Rule]], strategy: Strategy) -> list[Component]:
    """Return the heads in groups that depend on each other, each after those it reads; refuse a group that has no meaning."""
    reads = {
        name: [use for rule in rules for use in uses(rule.body) if use.name in by_head]
        for name, rules in by_head.items()
    }
    place = {name: n for n, name in enumerate(by_head)}
    found = []
    for group in strongly_connected(by_head, lambda name: dict.fromkeys(use.name for use in reads[name])):
        heads = tuple(sorted(group, key=place.__getitem__))
        recursive = len(heads) > 1 or any(use.name == heads[0] for use in reads[heads[0]])
        if recursive:
            _refuse_negation(heads, reads, by_head)
            _refuse_logic(heads, by_head, strategy)
        found.append(Component(heads, recursive))
    return found


def _refuse_negation(
    heads: Sequence[str], reads: Mapping[str, Sequence[Use]], by_head: Mapping[str, Sequence[Rule]]
) -> None:
    for name in heads:
        for use in reads[name]:
            if use.name in heads and use.sign != 1:
                way = shortest_way(use.name, name, lambda n: [u.name for u in reads[n] if u.name in heads])
                word = "¬" if use.sign == -1 else "a comparison of "
                cycle = f"{name} ← {word}{' ← '.join(way)}"
                message = f"the rules are not stratified: {name} depends on itself through negation: {cycle}"
                if use.sign == 0:
                    message = f"the rules are not stratified: {name} may hold less where it holds more: {cycle}"
                hint = f"negate or compare only what does not depend on {name}"
                shown = [f"{rule} at {rule.head.location}" for n in dict.fromkeys(way) for rule in by_head[n]]
                raise GraphError(message, hint, code="E750", location=use.location, context=shown[:8])


def shortest_way(start: str, goal: str, needs: Callable[[str], Iterable[str]]) -> list[str]:
    """Return a shortest way from one name to another through what each of them reads."""
    came: dict[str, str | None] = {start: None}
    row = [start]
    for name in row:  # it grows while it is gone through
        if name == goal:
            break
        for needed in needs(name):
            if needed not in came:
                came[needed] = name
                row.append(needed)
    way = [goal]
    while (before := came[way[-1]]) is not None:
        way.append(before)
    return way[::-1]


def _refuse_logic(heads: Sequence[str], by_head: Mapping[str, Sequence[Rule]], strategy: Strategy) -> None:
    if strategy.rounds is None:
        settle = [name for name, row in STRATEGIES.items() if row.rounds is not None]
        message = (
            f"the rules of {', '.join(heads)} are recursive, and in the logic {strategy.name!r} one derivation counts again "
            "with every round, so that iterating gives no answer"
        )
        hints = (
            f"use strategy={' or '.join(map(repr, settle))}, in which the rounds settle",
            "write tensor equations for the number of ways, such as N[x,z] = E[x,z] + N[x,y] E[y,z]",
        )
        shown = [f"{rule} at {rule.head.location}" for name in heads for rule in by_head[name]]
        raise GraphError(message, *hints, code="E751", location=by_head[heads[0]][0].head.location, context=shown[:8])
