"""Proofs of large relations: the engine derives all at once, round by round, and a proof is read off the rounds, from the goal down.

What the search of :mod:`.prover` would take too long for (rules that join what they derive with itself, millions of tuples) is a few joins
for the engine. A tuple of round n follows from tuples of earlier rounds, so that the round is the height of its lowest proof. The
proof has the least height; its facts are few, though not always the fewest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from ..backends.relations.fixpoints import recorded_rounds
from ..backends.sparse import SparseTensor
from ..lang import syntax as s
from ..lang.analysis import Component, GivenTensor, analyse
from ..lang.magic_sets import DEMAND, demanded
from .ask import demand_inputs, origins, prepare
from .clauses import Clause, Codes, Pattern, Stored
from .model import build, share_domains
from .prover import Atom, Best, Instance, Prover

MATCHES = 2_000  # ways to derive an atom, of which the one from the lowest atoms is taken
HEIGHT = "height"


class Layers:
    """A relation with the height of each of its tuples."""

    def __init__(self, rounds: Iterable[SparseTensor], shape: tuple[int, ...]) -> None:
        found = list(rounds)
        codes = np.concatenate([r.codes for r in found])
        heights = np.repeat(np.arange(len(found)), [r.count for r in found])
        order = np.argsort(codes, kind="stable")
        self.shape, self._codes, self._heights = shape, codes[order], heights[order]
        self.stored = Stored(SparseTensor.of_codes(self._codes, shape) if shape else SparseTensor(len(codes) > 0))

    def height(self, row: Codes) -> int | None:
        """Return the height of a tuple; None where it is not there."""
        key = 0
        for code, size in zip(row, self.shape, strict=True):
            key = key * size + code
        n = int(np.searchsorted(self._codes, key))
        return int(self._heights[n]) if n < len(self._codes) and self._codes[n] == key else None


def lowest_by_rounds(prover: Prover, goal: Atom) -> dict[Atom, Best] | None:
    """Return the last steps of low proofs of the goal and of the atoms below it; None where the goal does not hold."""
    layers = _layers(prover, goal)
    best: dict[Atom, Best] = {}
    pending = [goal]
    while pending:
        atom = pending.pop()
        if atom in best:
            continue
        height = layers[atom[0]].height(atom[1])
        if height is None:
            return None
        if prover.facts(atom[0]).has(atom[1]):
            best[atom] = Best(0, 1, None)
            continue
        instance = _lowest_instance(prover, layers, atom, height)
        best[atom] = Best(height, 0, instance)
        pending += instance.derived
    return best


def _lowest_instance(prover: Prover, layers: Mapping[str, Layers], atom: Atom, height: int) -> Instance:
    """Return the way to derive an atom from lower ones that has the lowest of them."""

    def below(name: str, places: Pattern, codes: Codes) -> list[Codes]:
        if not prover.derived(name):
            return prover.stored(name).rows(places, codes)
        layer = layers[name]
        return [row for row in layer.stored.rows(places, codes) if (layer.height(row) or 0) < height]

    found: list[tuple[int, int, list[int], Instance]] = []
    for clause in prover.clauses[atom[0]]:
        for bindings in islice(prover.matches(clause, clause.unified(atom[1]), below), MATCHES):
            atoms = [x for x in clause.literals if x.kind == "atom"]
            derived = tuple((x.name, clause.key(x, bindings)[1]) for x in atoms if prover.derived(x.name))
            total = sum(layers[name].height(row) or 0 for name, row in derived)
            key = [-1 if b is None else b for b in bindings]
            instance = Instance(clause, bindings, derived, len(atoms) - len(derived))
            found.append((total, clause.number, key, instance))
    return min(found, key=lambda f: f[:3])[3]


# the rounds


def _layers(prover: Prover, goal: Atom) -> dict[str, Layers]:
    """Derive all that a goal depends on, every rule in every round, and return each relation with its heights."""
    model, evaluation = prover.model, prover.evaluation
    names = _below(prover, [goal[0]])
    asked = _asked(prover, goal)
    rules = [rule for n in names if prover.derived(n) for c in prover.clauses[n] for rule in _with_heights(c, asked)]
    rules += [_kept(n, model.analysis.tensors[n].arity) for n in names if not prover.derived(n)]
    heads = [f"{n}@{HEIGHT}" for n in names]
    read = {t.name for r in rules for part in r.body for t in s.walk(part) if isinstance(t, s.Tensor)} - set(heads)
    given = {name: GivenTensor((None,) * len(tensor.shape), True, "bool") for name, tensor in asked.items()}
    for name in read - set(given):
        if (tensor := model.analysis.tensors.get(name)) is not None:
            dtype = "bool" if tensor.boolean else None
            given[name] = GivenTensor((None,) * tensor.arity, tensor.boolean, dtype, model.analysis.scalars.get(name))
    analysis = analyse(rules, given=given)
    shared = share_domains(analysis, model, origins(model, analysis))
    assert shared is not None, "the rules are those of the model"
    graph = build(analysis, [Component(tuple(heads), tuple(rules), True, True)], heads)
    inputs: dict[str, Any] = dict(asked)
    for name in names:
        inputs[f"{name}@{HEIGHT}"] = (prover.facts(name) if prover.derived(name) else prover.stored(name)).tensor
    inputs.update(evaluation.values([n for n in graph.inputs if n not in inputs]))
    with recorded_rounds() as history:
        evaluation.executor.execute(graph, {n: inputs[n] for n in graph.inputs})
    rounds = list(history.values())
    assert len(rounds) == len(heads), "one loop derives everything"
    return {n: Layers(r, model.shape(n)) for n, r in zip(names, rounds, strict=True)}


def _below(prover: Prover, names: Iterable[str]) -> list[str]:
    """Return relations and all that is read, not negated, by the rules that derive them."""
    found: dict[str, None] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = None
            clauses = prover.clauses[name] if prover.derived(name) else []
            pending += [x.name for c in clauses for x in c.literals if x.kind == "atom"]
    return list(found)


def _with_heights(clause: Clause, asked: Iterable[str]) -> list[s.Rule]:
    """Return a rule over the relations with heights, once for each way in which its head is asked for."""
    rule = clause.as_rule()
    head = msgspec.structs.replace(rule.head, name=f"{clause.name}@{HEIGHT}")
    body = tuple(
        msgspec.structs.replace(x, name=f"{x.name}@{HEIGHT}") if isinstance(x, s.Tensor) else x for x in rule.body
    )
    found = []
    for name in asked:
        original, adornment, _ = name.split("@")
        if original == clause.name:
            known = tuple(p for p, a in zip(head.places, adornment, strict=True) if a == "b")
            found.append(s.Rule(head, (s.Tensor(name, known, True), *body), at=clause.statement.at))
    return found or [s.Rule(head, body, at=clause.statement.at)]


def _kept(name: str, arity: int) -> s.Rule:
    """Return the rule that leaves facts as they are."""
    atom = s.Tensor(f"{name}@{HEIGHT}", tuple(s.Place(s.Variable(f"x{n}")) for n in range(arity)), True)
    return s.Rule(atom, (atom,))


def _asked(prover: Prover, goal: Atom) -> dict[str, SparseTensor]:
    """Return the demands of a goal, for the relations that it does not need in full: which values are asked for in which places."""
    model = prover.model
    names = [n for n in _below(prover, [goal[0]]) if prover.derived(n)]
    constants = [d.element(code) for d, code in zip(model.place_domains(goal[0]), goal[1], strict=True)]
    atom = s.Tensor(goal[0], tuple(s.Place(s.Constant(c, quoted=True)) for c in constants), True)
    rules = [c.as_rule() for n in names for c in prover.clauses[n]]
    found = demanded(rules, [atom], [n for n in names if prover.facts(n).tensor.count], as_written=True)
    prepared = None if found is None else prepare(model, found)
    if found is None or prepared is None:
        return {}
    whole = set(_below(prover, found.full))
    wanted = [
        name
        for name in dict.fromkeys(rule.head.name for rule in found.rules)
        if name.endswith(f"@{DEMAND}") and (original := name.split("@")[0]) in names and original not in whole
    ]
    if not wanted:
        return {}
    graph = build(prepared.analysis, prepared.analysis.components, wanted)
    inputs = demand_inputs(prover.evaluation, found, prepared.analysis, graph, list(goal[1]))
    tuples = prover.evaluation.executor.execute(graph, inputs)
    return {name: SparseTensor(tuples[name]) for name in wanted}
