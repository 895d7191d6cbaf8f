"""Why an atom holds, and why it does not: the questions, and the steps of a proof in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnostics import SourceLocation
from ..errors import InputError
from ..lang import syntax as s
from ..lang.data_files import row_lines
from ..lang.format import constant, text_of
from .ask import check_atom, code_of
from .clauses import Bindings, Clause, Codes, Literal
from .evaluate import Evaluation
from .proofs import Proof, Step
from .prover import Atom, Prover

if TYPE_CHECKING:
    from .contributions import Account
    from .missing import Refutation
    from .program import Program

GROUP = 8  # members of an aggregate's group that are named


def why(program: Program, body: Sequence[s.Expression], evaluation: Evaluation) -> Proof | Account:
    """Return the lowest proof of an atom, or the account of a number; what does not hold is refused."""
    atom = asked(body, evaluation, "why")
    tensor = evaluation.model.analysis.tensors[atom.name]
    if not tensor.boolean:
        from .contributions import account

        return account(program, evaluation, atom)
    codes = _codes(evaluation, atom)
    text = text_of(atom)
    if any(isinstance(p.index, s.Variable) for p in atom.places):
        message = f"why asks about one atom, but {text} has variables"
        hint = f'name the elements; p.query("{text}?") says for which it holds'
        raise InputError(message, hint, code="E793")
    words = Words(program, Prover(evaluation))
    row = tuple(-1 if c is None else c for c in codes)
    steps = () if -1 in row else words.steps((atom.name, row))
    if not steps:
        quoted = text.replace('"', "'")
        raise InputError(f"{text} does not hold", f'ask what is missing: p.why_not("{quoted}")', code="E793")
    return Proof(steps)


def why_not(program: Program, body: Sequence[s.Expression], evaluation: Evaluation) -> Refutation:
    """Return the rules that come closest to an atom that does not hold, and what is missing."""
    from .missing import refutation

    atom = asked(body, evaluation, "why_not")
    if not evaluation.model.analysis.tensors[atom.name].boolean:
        message = f"{atom.name!r} holds numbers, which are neither true nor false"
        raise InputError(message, f'ask how the number comes about: p.why("{text_of(atom)}")', code="E793")
    return refutation(atom, _codes(evaluation, atom), Words(program, Prover(evaluation)))


def asked(body: Sequence[s.Expression], evaluation: Evaluation, method: str) -> s.Tensor:
    """Return the one atom that is asked about; several literals, and relations that are not there, are refused."""
    if len(body) != 1 or not isinstance(body[0], s.Tensor):
        hint = f'write p.{method}("Ancestor(Alice, Bob)")'
        raise InputError(f"{method} asks about one atom", hint, code="E793")
    known = body[0].name in evaluation.model.analysis.tensors
    check_atom(evaluation.model, body[0], alone=not known or len(body[0].places) > 0)
    return body[0]


def _codes(evaluation: Evaluation, atom: s.Tensor) -> list[int | None]:
    """Return the code of each place; -1 where a name is no element, None where a variable stands."""
    found: list[int | None] = []
    for place, index in enumerate(p.index for p in atom.places):
        if isinstance(index, s.Constant):
            code = code_of(evaluation.model, index, atom.name, place)
            found.append(-1 if code is None else code)
        elif isinstance(index, s.Variable):
            found.append(None)
        else:
            hint = "write names, numbers and variables in its places"
            raise InputError(f"{text_of(atom)} is no plain atom", hint, code="E793", location=index.at)
    return found


class Words:
    """Says atoms, rules and comparisons in the words of the program."""

    def __init__(self, program: Program, prover: Prover) -> None:
        self.program, self.prover = program, prover
        self.model = prover.model
        self._places: dict[str, tuple[Any, Any, Any]] = {}
        self._texts: dict[int, str] = {}
        self._lines: dict[str, list[int]] = {}  # by file: the line of each of its rows

    def names(self, relation: str, row: Sequence[int | None]) -> tuple[Any, ...]:
        """Return the names of codes, "_" where there is none."""
        domains = self.model.place_domains(relation)
        return tuple("_" if c is None else d.element(c) for d, c in zip(domains, row, strict=True))

    def atom(self, relation: str, row: Sequence[int | None], others: Sequence[str] | None = None) -> str:
        """Return an atom as text; ``others`` stand where there is no code."""
        names = self.names(relation, row)
        tensor = self.model.analysis.tensors[relation]
        opening, closing = "()" if tensor.boolean else "[]"
        if not names:
            return f"{relation}()" if tensor.boolean else relation
        shown = [(others[n] if others else "_") if row[n] is None else constant(name) for n, name in enumerate(names)]
        return f"{relation}{opening}{', '.join(shown)}{closing}"

    def fact(self, relation: str, row: Codes) -> Step:
        """Return a fact with where it stands."""
        at, note = self._found_at(relation, row)
        atom, names = self.atom(relation, row), self.names(relation, row)
        return Step(atom, "fact", at=at, note=note, relation=relation, row=names)

    def _found_at(self, relation: str, row: Codes) -> tuple[SourceLocation | None, str]:
        blocks = self.program.facts.blocks.get(relation, [])
        if not row:
            found = [(b.location(0), "") for b in blocks if b.table.count]
            return found[0] if found else (None, "")
        if relation not in self._places:
            codes = [_keys(self.model.codes(relation, b), self.model.shape(relation)) for b in blocks]
            block = np.repeat(np.arange(len(blocks)), [len(c) for c in codes])
            line = np.concatenate([np.arange(len(c)) for c in codes]) if codes else np.empty(0, np.int64)
            keys, first = np.unique(np.concatenate(codes) if codes else line, return_index=True)
            self._places[relation] = (keys, block[first], line[first])
        keys, block, line = self._places[relation]
        key = _keys([np.array([c]) for c in row], self.model.shape(relation))[0]
        n = int(np.searchsorted(keys, key))
        if n == len(keys) or keys[n] != key:
            return None, ""
        source, number = blocks[int(block[n])], int(line[n])
        at = source.location(number)
        if at is None or at.file is None or at.line is not None:
            return at, ""
        if at.file not in self._lines:
            self._lines[at.file] = row_lines(at.file)
        lines = self._lines[at.file]
        header = len(lines) - source.table.count
        return (at.with_line(lines[number + header]), "") if header in (0, 1) else (at, f"row {number + 1}")

    # steps

    def steps(self, goal: Atom) -> tuple[Step, ...]:
        """Return the steps of the lowest proof of an atom; none where it does not hold."""
        prover, places = self.prover, tuple(range(len(goal[1])))
        if not prover.derived(goal[0]):
            return (self.given(goal),) if prover.rows(goal[0], places, goal[1]) else ()
        best = prover.proofs(goal)
        if best is None:
            return ()
        numbers: dict[object, int] = {goal: 0}
        found: list[Step | None] = [None]
        pending: list[Atom] = [goal]
        while pending:
            atom = pending.pop()
            instance = best[atom].instance
            if instance is None:
                found[numbers[atom]] = self.fact(*atom)
                continue
            because = []
            for literal, below in self._below(instance.clause, instance.bindings):
                key: object = below if isinstance(below, tuple) else (below.atom, below.kind)
                if key not in numbers:
                    numbers[key] = len(found)
                    found.append(None)
                    if isinstance(below, Step):
                        found[-1] = below
                    elif self.prover.derived(literal.name):
                        pending.append(below)
                    else:
                        found[-1] = self.given(below)
                because.append(numbers[key])
            statement = instance.clause.statement
            shown, names, rule = self.atom(*atom), self.names(*atom), self.rule(statement)
            step = Step(shown, "rule", rule, statement.at, tuple(because), relation=atom[0], row=names)
            found[numbers[atom]] = step
        return tuple(step for step in found if step is not None)

    def _below(self, clause: Clause, bindings: Bindings) -> Iterator[tuple[Literal, Atom | Step]]:
        """Go through what a rule follows from: atoms, and steps that need no proof."""
        for literal in clause.literals:
            if literal.kind == "atom":
                yield literal, (literal.name, clause.key(literal, bindings)[1])
            elif literal.kind == "not":
                atom = self.literal_atom(clause, literal, bindings)
                yield literal, Step(f"not {atom}", "absent", note="no such fact")
            elif literal.written:
                yield literal, self.compared(clause, literal, bindings)

    def given(self, atom: Atom) -> Step:
        """Return an atom that no rule derives: a fact, or what an equation computes."""
        name, row = atom
        shown, names = self.atom(name, row), self.names(name, row)
        if self.model.component(name) is None:
            return self.fact(name, row)
        statement = self.defining(name)
        score = self.score(name, row)
        note = "" if score is None else f"the score is {score:.6g}"
        return Step(shown, "equation", self.rule(statement), statement.at, note=note, relation=name, row=names)

    def score(self, name: str, row: Codes) -> float | None:
        """Return the number that a relation was decided by, where its equation is a step of a score."""
        from .contributions import score

        return score(self.program, self.prover.evaluation, name, row)

    def defining(self, name: str) -> s.Rule | s.Equation:
        """Return the first statement that defines a tensor."""
        part = self.model.component(name)
        assert part is not None
        own = [x for x in self.model.analysis.components[part].statements if x.head.name == name]
        return self.written(own[0])

    def written(self, statement: s.Rule | s.Equation) -> s.Rule | s.Equation:
        """Return a statement as it stands in the program."""
        for x in self.program.statements:
            if isinstance(x, type(statement)) and x.at == statement.at and x.head.name == statement.head.name:
                return x
        return statement

    def rule(self, statement: s.Rule | s.Equation) -> str:
        """Return a rule or an equation as text, blanks as ``_``."""
        if id(statement) not in self._texts:
            self._texts[id(statement)] = text_of(self.unblanked(self.written(statement)))
        return self._texts[id(statement)]

    def unblanked(self, part: Any) -> Any:
        """Return a part with plain blanks."""
        return s.with_variables(part, lambda v: s.Variable("_") if v.name[0] == "_" else v)

    # literals with values

    def literal_atom(self, clause: Clause, literal: Literal, bindings: Bindings) -> str:
        """Return an atom of a rule with the names of what is bound; what is not keeps its variable."""
        row = [v if kind == "code" else bindings[v] for kind, v in literal.terms]
        others = ["_" if k == "code" or clause.names[v][0] in "_$" else clause.names[v] for k, v in literal.terms]
        if -1 in row:
            atom = literal.part.atom if isinstance(literal.part, s.Not) else literal.part
            return text_of(self.unblanked(self._bound(clause, atom, bindings)))
        return self.atom(literal.name, row, others)

    def compared(self, clause: Clause, literal: Literal, bindings: Bindings) -> Step:
        """Return a comparison with the values of its sides."""
        part = self._bound(clause, literal.part, bindings)
        notes = []
        for tensor in s.walk(literal.part):
            if isinstance(tensor, s.Tensor) and tensor.name in self.model.analysis.tensors:
                value = self.prover.values.value(clause, tensor, bindings)
                notes.append(f"{text_of(self._bound(clause, tensor, bindings))} = {value:.6g}")
                notes += self._group(clause, tensor, bindings)
        return Step(text_of(part), "compared", note=", ".join(dict.fromkeys(notes)))

    def _bound(self, clause: Clause, part: Any, bindings: Bindings) -> Any:
        def value(variable: s.Variable) -> s.Part:
            number = clause.names.index(variable.name) if variable.name in clause.names else None
            code = None if number is None else bindings[number]
            return variable if number is None or code is None else s.Constant(clause.domains[number].element(code))

        return s.with_variables(part, value)

    def _group(self, clause: Clause, tensor: s.Tensor, bindings: Bindings) -> list[str]:
        """Return the members of the group that an aggregate was made of, where a tensor is one."""
        row = []
        for place, index in enumerate(p.index for p in tensor.places):
            if isinstance(index, s.Variable):
                row.append(bindings[clause.names.index(index.name)])
            elif isinstance(index, s.Constant):
                row.append(clause.code(index, self.model.analysis.place(tensor.name, place)))
        if None in row or len(row) != len(tensor.places):
            return []
        members = self.group(tensor.name, tuple(c for c in row if c is not None))
        more = f" and {len(members) - GROUP:,} more" if len(members) > GROUP else ""
        return [f"of {', '.join(members[:GROUP])}{more}"] if members else []

    def group(self, name: str, row: Codes) -> list[str]:
        """Return the atoms that were counted for one element of an aggregate; nothing for other tensors."""
        part = self.model.component(name)
        if part is None:
            return []
        found: dict[str, None] = {}
        for statement in self.model.analysis.components[part].statements:
            if statement.head.name != name or not isinstance(statement, s.Equation) or statement.operator != "count=":
                continue
            if not all(isinstance(p.index, s.Variable) for p in statement.head.places):
                continue
            clause = Clause(-1, statement, self.model.analysis)
            if not all(x.kind != "atom" or self.model.analysis.tensors[x.name].boolean for x in clause.literals):
                continue
            for match in self.prover.matches(clause, clause.unified(row)):
                atoms = [self.literal_atom(clause, x, match) for x in clause.literals if x.kind == "atom"]
                found[" ".join(atoms)] = None
        return list(found)


def _keys(columns: Sequence[Any], shape: Sequence[int]) -> Any:
    key = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(columns, shape, strict=True):
        key = key * size + np.asarray(column, np.int64)
    return key
