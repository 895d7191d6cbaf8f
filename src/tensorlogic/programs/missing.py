"""Why an atom does not hold: the rules that come closest to it, and what each of them misses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..diagnostics import SourceLocation
from ..errors import nearest
from ..lang import syntax as s
from ..lang.format import text_of
from .clauses import Bindings, Clause, Codes, Literal
from .proofs import Explanation, Step, place
from .prover import Prover, binds

if TYPE_CHECKING:
    from .why import Words

TRIED = 5_000  # partial matches of a rule that are looked at
CHOICES = 200  # tuples that are tried for one literal
NEAR = 3  # facts that are shown because they are almost what was asked for
SHOWN = 5  # rules that are printed


class Missing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A literal that does not hold, and why."""

    literal: str
    note: str


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule that could derive the atom: which of its literals hold for the best choice of its variables, and which do not."""

    rule: str
    at: SourceLocation | None
    holds: tuple[str, ...]
    missing: tuple[Missing, ...]
    open: tuple[str, ...] = ()  # literals that say nothing, because what they depend on is missing

    def lines(self) -> list[str]:
        """Return the attempt as lines of text."""
        where = f"  ({place(self.at)})" if self.at is not None else ""
        found = [f"{self.rule}{where}"]
        found += [f"  holds    {text}" for text in self.holds]
        found += [f"  missing  {m.literal}{f'  {m.note}' if m.note else ''}" for m in self.missing]
        return found + [f"  open     {text}" for text in self.open]


@dataclass(eq=False, repr=False)
class Refutation(Explanation):
    """Why an atom does not hold: ``attempts`` has the rules that could derive it, the closest first. It prints as text.

    It is true where the atom does not hold, and false where it does.

    >>> from tensorlogic import Program
    >>> p = Program('''Parent(Alice, Bob)
    ... Ancestor(x,y) <- Parent(x,y)''')
    >>> print(p.why_not("Ancestor(Bob, Alice)"))
    Ancestor(Bob, Alice) does not hold
    Ancestor(x, y) <- Parent(x, y)  (line 2)
      missing  Parent(Bob, Alice)  no such fact
    """

    atom: str
    holds: bool = False
    unknown_names: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    near: tuple[str, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return not self.holds

    def text(self, rules: int | None = None) -> str:
        """Return all of it as text, or so many rules of it."""
        if self.holds:
            return f"{self.atom} holds\n{self.note}"
        found = [f"{self.atom} does not hold", *self.unknown_names]
        found += [line for a in self.attempts[:rules] for line in a.lines()]
        if rules is not None and len(self.attempts) > rules:
            found.append(f"... {len(self.attempts) - rules:,} more rules")
        found += [self.note] if self.note else []
        found += [f"but there is {atom}" for atom in self.near]
        return "\n".join(found)

    def __str__(self) -> str:
        return self.text(SHOWN)

    def drawn_steps(self) -> Sequence[Step]:
        """Return the atom, the rules that could derive it, and what holds and what is missing of each.

        >>> from tensorlogic import Program
        >>> found = Program("Child(y,x) <- Parent(x,y); Parent(Alice, Bob)").why_not("Child(Alice, Bob)")
        >>> [(step.kind, step.atom) for step in found.drawn_steps()]
        [('absent', 'Child(Alice, Bob)'), ('tried', 'Child(y, x) <- Parent(x, y)'), ('absent', 'Parent(Bob, Alice)')]
        """
        steps: list[Step] = []
        tried = []
        for attempt in self.attempts:
            parts = [Step(text, "holds", note="holds") for text in attempt.holds]
            parts += [Step(m.literal, "absent", note=m.note) for m in attempt.missing]
            parts += [Step(text, "open", note="open") for text in attempt.open]
            tried.append(1 + len(steps))
            because = tuple(range(tried[-1] + 1, tried[-1] + 1 + len(parts)))
            steps += [Step(attempt.rule, "tried", at=attempt.at, because=because, note="tried"), *parts]
        note = "; ".join([*self.unknown_names, *([self.note] if self.note else [])])
        verdict = "holds" if self.holds else "does not hold"
        note = f"{verdict}: {note}" if note else verdict
        return [Step(self.atom, "holds" if self.holds else "absent", because=tuple(tried), note=note), *steps]

    def __repr__(self) -> str:
        return f"<Refutation of {self.atom}: {'it holds' if self.holds else f'{len(self.attempts)} rules tried'}>"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain dictionaries and lists."""
        return {
            "atom": self.atom,
            "holds": self.holds,
            "unknown_names": list(self.unknown_names),
            "attempts": [msgspec.to_builtins(a) for a in self.attempts],
            "near": list(self.near),
            "note": self.note,
        }


def refutation(atom: s.Tensor, codes: Sequence[int | None], words: Words) -> Refutation:
    """Say why an atom does not hold; a variable in it stands for any element."""
    text, prover = text_of(words.unblanked(atom)), words.prover
    known = [(n, c) for n, c in enumerate(codes) if c is not None]
    places, row = tuple(n for n, _ in known), tuple(c for _, c in known)
    if -1 in row:
        if names := _unknown_names(atom, codes, words):
            return Refutation(text, unknown_names=names)
        return _out_of_place(text, atom, codes, words)
    found = [r for r in prover.rows(atom.name, places, row) if _fits(atom, r)]
    if found:
        shown = words.atom(atom.name, found[0]).replace('"', "'")
        return Refutation(text, holds=True, note=f'p.why("{shown}") says why')
    attempts = []
    for clause in prover.clauses.get(atom.name, ()):
        bindings = clause.unified(list(codes))
        if _head_fits(clause, bindings, prover):
            attempts.append(_Search(clause, words).best(bindings))
    attempts.sort(key=lambda a: (len(a.missing), -len(a.holds)))
    note = ""
    near: tuple[str, ...] = ()
    if not attempts:
        near = _near(atom.name, codes, words)
        if prover.derived(atom.name):
            note = f"no rule of {atom.name} has a head that fits, and there is no such fact"
        elif words.model.component(atom.name) is not None:
            statement = words.defining(atom.name)
            note = f"{words.rule(statement)} gives nothing there"
            score = words.score(atom.name, row) if len(row) == len(codes) else None
            note += "" if score is None else f": the score is {score:.6g}"
        else:
            note = f"{atom.name} has no rules, and there is no such fact"
    return Refutation(text, attempts=tuple(attempts), near=near, note=note)


def _fits(atom: s.Tensor, row: Codes) -> bool:
    """Tell whether a tuple agrees with the repeated variables of an atom."""
    seen: dict[str, int] = {}
    for p, code in zip(atom.places, row, strict=True):
        if isinstance(p.index, s.Variable) and p.index.name[0] != "_" and seen.setdefault(p.index.name, code) != code:
            return False
    return True


def _unknown_names(atom: s.Tensor, codes: Sequence[int | None], words: Words) -> tuple[str, ...]:
    """Say which names of an atom stand nowhere in the program, and which numbers lie beyond the end of an axis."""
    found = []
    domains = words.model.domains.values()
    for n, (p, code) in enumerate(zip(atom.places, codes, strict=True)):
        if code != -1 or not isinstance(p.index, s.Constant):
            continue
        info, value = words.model.analysis.place(atom.name, n), p.index.value
        if info.kind == "range":
            elements = f"its {info.size} elements count from 0"
            found.append(f"{value!r} is no element of place {n + 1} of {atom.name}: {elements}")
        elif all(other.code(value) is None for other in domains):
            known = list(dict.fromkeys(str(name) for name in info.elements[:10_000]))
            hints = nearest(value, known) if known else []
            close = f"; {hints[0]}" if hints and hints[0].startswith("did you mean") else ""
            found.append(f"{value!r} is no name that the program knows{close}")
    return tuple(found)


def _out_of_place(text: str, atom: s.Tensor, codes: Sequence[int | None], words: Words) -> Refutation:
    """Say what is missing where a name never stands in a place that is asked for: every atom that would need it there."""
    attempts = []
    for clause in words.prover.clauses.get(atom.name, ()):
        pairs = list(zip(clause.head, atom.places, codes, strict=True))
        unknown = {v for v, _, code in pairs if code == -1}
        if any(x.variables & unknown for x in clause.literals if not x.written):
            continue  # a constant of the head says otherwise
        values = {clause.names[v]: p.index for v, p, _ in pairs if isinstance(p.index, s.Constant)}
        shown = [(x, text_of(words.unblanked(_put_in(x.part, values)))) for x in clause.literals if x.written]
        missing = tuple(
            Missing(said, "no rule gives it" if words.prover.derived(x.name) else "no such fact")
            for x, said in shown
            if x.kind == "atom" and x.variables & unknown
        )
        rest = tuple(said for x, said in shown if x.kind != "atom" or not x.variables & unknown)
        attempts.append(Attempt(words.rule(clause.statement), clause.statement.at, (), missing, rest))
    attempts.sort(key=lambda a: len(a.missing))
    note = "" if attempts else f"{atom.name} has no rule whose head fits, and there is no such fact"
    return Refutation(text, attempts=tuple(attempts), note=note)


def _put_in(part: s.Part, values: Mapping[str, s.Part]) -> Any:
    return s.with_variables(part, lambda v: values.get(v.name, v))


def _head_fits(clause: Clause, bindings: Bindings, prover: Prover) -> bool:
    """Tell whether the constants and repeated variables of a head agree with what is asked for."""
    heads = set(clause.head)
    for literal in clause.literals:
        known = all(bindings[v] is not None for v in literal.variables)
        if literal.written or not literal.variables <= heads or not known:
            continue
        assert isinstance(literal.part, s.Comparison)
        if not prover.values.holds(clause, literal.part, bindings):
            return False
    return True


def _near(name: str, codes: Sequence[int | None], words: Words) -> tuple[str, ...]:
    """Return facts that agree with an atom in all places but one."""
    known = [(n, c) for n, c in enumerate(codes) if c is not None]
    found: dict[str, None] = {}
    for left_out in reversed(range(len(known) if len(known) > 1 else 0)):
        rest = [pair for n, pair in enumerate(known) if n != left_out]
        rows = words.prover.rows(name, tuple(n for n, _ in rest), tuple(c for _, c in rest))
        for row in rows[:NEAR]:
            found[words.atom(name, row)] = None
    return tuple(found)[:NEAR]


class _State(NamedTuple):
    """A partial match: what is bound, what is still to be looked at, and what held, was missing or stayed open so far."""

    bindings: Bindings
    rest: tuple[Literal, ...]
    holds: tuple[Literal, ...] = ()
    missing: tuple[Literal, ...] = ()
    open: tuple[Literal, ...] = ()


class _Search:
    """Looks for the choice of a rule's variables that leaves the fewest of its literals missing."""

    def __init__(self, clause: Clause, words: Words) -> None:
        self.clause, self.words, self.prover = clause, words, words.prover

    def best(self, bindings: Bindings) -> Attempt:
        """Return the best partial match that a bounded search finds."""
        found: _State | None = None
        pending = [_State(bindings, self.clause.literals)]
        tried = 0
        while pending and tried < TRIED:
            tried += 1
            state = pending.pop()
            if found is not None and _cost(state) >= _cost(found):
                continue
            if not state.rest:
                found = state if self._is_missing(state) else found
            else:
                pending.extend(reversed(self._next(state)))
        return self._attempt(found or _State(bindings, (), (), self.clause.literals))

    def _next(self, state: _State) -> list[_State]:
        """Return the ways to go on: each choice for the next literal, and leaving it out."""
        known = {v for v, code in enumerate(state.bindings) if code is not None}
        literal = min(state.rest, key=lambda x: self.prover.rank(self.clause, x, known))
        rest = tuple(x for x in state.rest if x is not literal)
        skipped = _State(state.bindings, rest, state.holds, (*state.missing, literal), state.open)
        if not self._can_be_asked(literal, state):
            return [_State(state.bindings, rest, state.holds, state.missing, (*state.open, literal))]
        found = self.prover.solutions(self.clause, literal, state.bindings)
        held = (*state.holds, literal)
        return [*(_State(b, rest, held, state.missing, state.open) for b in found[:CHOICES]), skipped]

    def _is_missing(self, state: _State) -> bool:
        """Tell whether all that was left out does not hold indeed, now that all is bound."""
        return not any(self.prover.solutions(self.clause, x, state.bindings) for x in state.missing)

    def _can_be_asked(self, literal: Literal, state: _State) -> bool:
        """Tell whether enough is bound to look a literal up; what others would have bound is missing."""
        unknown = {v for v in literal.variables if state.bindings[v] is None}
        if not state.missing or not unknown:
            return True
        if literal.kind == "compare":
            return binds(self.clause, literal, unknown)
        if literal.kind == "not":
            elsewhere = {v for x in self.clause.literals if x is not literal for v in x.variables}
            return not unknown & elsewhere
        return not self.prover.derived(literal.name) or len(unknown) < len(literal.terms)

    def _attempt(self, state: _State) -> Attempt:
        order = {id(x): n for n, x in enumerate(self.clause.literals)}

        def shown(literals: Sequence[Literal]) -> list[Literal]:
            return sorted((x for x in literals if x.written or x in state.missing), key=lambda x: order[id(x)])

        statement, text = self.clause.statement, self._text
        holds, open_ = (tuple(text(x, state.bindings) for x in shown(part)) for part in (state.holds, state.open))
        missing = [Missing(text(x, state.bindings), self._reason(x, state.bindings)) for x in shown(state.missing)]
        return Attempt(self.words.rule(statement), statement.at, holds, tuple(missing), open_)

    def _text(self, literal: Literal, bindings: Bindings) -> str:
        if literal.kind == "compare":
            return self.words.compared(self.clause, literal, bindings).atom
        atom = self.words.literal_atom(self.clause, literal, bindings)
        return f"not {atom}" if literal.kind == "not" else atom

    def _reason(self, literal: Literal, bindings: Bindings) -> str:
        if literal.kind == "compare":
            known = all(bindings[v] is not None for v in literal.variables)
            return self.words.compared(self.clause, literal, bindings).note if known else ""
        if literal.kind == "not":
            places, codes = self.clause.key(literal, bindings)
            rows = self.prover.stored(literal.name).rows(places, codes)
            return f"there is {self.words.atom(literal.name, rows[0])}" if rows else ""
        for kind, value in literal.terms:
            if kind == "code" and value == -1:
                return "a name that nothing else has"
        if self.prover.derived(literal.name):
            return "no rule gives it"
        return "no such fact" if self.words.model.component(literal.name) is None else "it was computed to be false"


def _cost(state: _State) -> tuple[int, int]:
    return len(state.missing), len(state.open)
