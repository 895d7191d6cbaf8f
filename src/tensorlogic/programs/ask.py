"""Queries: the tuples of an atom, the values of a tensor, or the answers of a conjunction; on demand where constants are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.bits import BitTensor
from ..backends.sparse import SparseTensor
from ..errors import InputError
from ..ir.graph import EinsumGraph
from ..lang import syntax as s
from ..lang.analysis import Analysis, DomainKey, GivenTensor, analyse
from ..lang.domains import Domain
from ..lang.format import text_of
from ..lang.magic_sets import ANSWER, Demand, as_rule, demanded, facts_name
from ..tables import counted
from .answers import Answers, unknown_relation
from .evaluate import Evaluation
from .model import Model, build, empty, share_domains

Rebuild = Callable[[s.Statement], Evaluation]
LARGE = 100_000  # facts from which a query with constants is answered on demand, recursive or not
FEW = 10_000  # facts up to which a recursive relation is computed whole, and kept


def ask(evaluation: Evaluation, body: Sequence[s.Expression], cache: dict[object, Any], rebuild: Rebuild) -> Answers:
    """Answer a query; ``rebuild`` gives the evaluation of the program with one more statement."""
    if _may_fix_a_size(evaluation.model, body):
        evaluation = rebuild(s.Query(tuple(body)))
    model = evaluation.model
    for part in body:
        for atom in s.walk(part):
            if isinstance(atom, s.Tensor):
                check_atom(model, atom, alone=part is atom and len(body) == 1)
                if atom.name in model.analysis.tensors:
                    evaluation.check_defined(model.readers.closure.get(atom.name, (atom.name,)))
    if len(body) == 1 and isinstance(body[0], s.Tensor):
        atom = body[0]
        if not model.analysis.tensors[atom.name].boolean:
            return numbers(evaluation, atom)
        if evaluation.has(atom.name) or not _simple(atom) or not _on_demand(evaluation, body):
            return matching(evaluation, atom)
        return _conjunction(evaluation, body, cache, rebuild, on_demand=True)
    return _conjunction(evaluation, body, cache, rebuild, on_demand=_on_demand(evaluation, body))


def _may_fix_a_size(model: Model, body: Sequence[s.Expression]) -> bool:
    """Tell whether a query asks for an element of a tensor and nothing else says how far that goes: F[10] of a scan."""
    tensors, atom = model.analysis.tensors, body[0]
    if len(body) > 1 or not isinstance(atom, s.Tensor) or atom.name not in tensors:
        return False
    places = enumerate(atom.places[: tensors[atom.name].arity])
    return any(isinstance(p.index, s.Constant) and model.analysis.extent(atom.name, n) is None for n, p in places)


def check_atom(model: Model, atom: s.Tensor, *, alone: bool) -> None:
    """Refuse a tensor that the program does not have, or that has another number of places."""
    tensor = model.analysis.tensors.get(atom.name)
    if tensor is None:
        if not atom.places and not alone:
            return  # the name of an element, in a comparison
        raise unknown_relation(atom.name, list(model.analysis.tensors)).at(atom.at)
    whole = alone and not atom.places and not atom.boolean
    if len(atom.places) != tensor.arity and not whole:
        message = f"{atom.name} has {counted(tensor.arity, 'place')}, but the query has {len(atom.places)}"
        names = ", ".join(f"x{n}" for n in range(1, tensor.arity + 1))
        brackets = f"({names})" if tensor.boolean else f"[{names}]" if names else ""
        hint = f"write {atom.name}{brackets}?"
        if tensor.boolean and not tensor.arity:
            hint = "a relation has as many places as its facts: add one first, if it has none yet"
        raise InputError(message, hint, code="E778", location=atom.at)


def _simple(atom: s.Tensor) -> bool:
    return all(isinstance(p.index, s.Variable | s.Constant) for p in atom.places)


def _on_demand(evaluation: Evaluation, body: Sequence[s.Expression]) -> bool:
    """Tell whether it pays to compute only what the constants of a query ask for."""
    model = evaluation.model
    atoms = [b for b in body if isinstance(b, s.Tensor) and model.component(b.name) is not None]
    if not any(isinstance(p.index, s.Constant) for a in body if isinstance(a, s.Tensor) for p in a.places):
        return False
    names = {n for a in atoms if not evaluation.has(a.name) for n in model.readers.closure[a.name]}
    parts = {part for n in names if (part := model.component(n)) is not None}
    facts = sum(model.facts(n).count for n in names if model.analysis.tensors[n].boolean)
    recursive = any(model.analysis.components[part].recursive for part in parts)
    # a few facts are derived from at once, and then the next query is ready
    return facts > (FEW if recursive else LARGE)


def place_heads(model: Model, name: str) -> list[str]:
    """Return a title for each place of a tensor: the variables of its first rule where they differ, else x1, x2, ..."""
    for component in model.analysis.components:
        for statement in component.statements:
            head = statement.head
            if head.name == name:
                found = [p.index.name if isinstance(p.index, s.Variable) else "" for p in head.places]
                if len(set(found)) == len(found) == model.analysis.tensors[name].arity and all(found):
                    return found
    return [f"x{n}" for n in range(1, model.analysis.tensors[name].arity + 1)]


def code_of(model: Model, constant: s.Constant, name: str, place: int) -> int | None:
    """Return the code of a constant in a place; the name of a scalar stands for its value."""
    value = model.analysis.constant_value(constant)
    return None if isinstance(value, float) else model.place_domains(name)[place].code(value)


class _Selection(NamedTuple):
    """Which places of a tensor are fixed, which are to be equal, and which are asked for."""

    fixed: dict[int, int]
    equal: list[tuple[int, int]]
    heads: list[str]
    places: list[int]
    hidden: bool  # some places are asked for by _ alone
    possible: bool


def _selection(model: Model, atom: s.Tensor) -> _Selection:
    fixed: dict[int, int] = {}
    equal: list[tuple[int, int]] = []
    first: dict[str, int] = {}
    possible, hidden = True, False
    if not atom.places:
        heads = place_heads(model, atom.name)
        return _Selection({}, [], heads, list(range(len(heads))), False, True)
    for n, place in enumerate(atom.places):
        match place.index:
            case s.Variable(name=name) if name.startswith("_"):
                hidden = True
            case s.Variable(name=name):
                if name in first:
                    equal.append((first[name], n))
                else:
                    first[name] = n
            case s.Constant() as constant:
                code = code_of(model, constant, atom.name, n)
                possible = possible and code is not None
                fixed[n] = -1 if code is None else code
            case _:
                hint = "ask with variables, names and numbers, and compare in the query: P(x), x > 3"
                raise InputError("a place of a query is a variable or a constant", hint, code="E787", location=place.at)
    return _Selection(fixed, equal, list(first), list(first.values()), hidden, possible)


def matching(evaluation: Evaluation, atom: s.Tensor) -> Answers:
    """Return the tuples of a relation that match an atom."""
    model = evaluation.model
    chosen = _selection(model, atom)
    domains = model.place_domains(atom.name)
    asked = [domains[p] for p in chosen.places]
    if not chosen.possible:
        return Answers(chosen.heads, [np.empty(0, np.int64)] * len(asked), asked, count=0)
    held = evaluation.value(atom.name)
    tensor = None if isinstance(held, BitTensor) and chosen.fixed else evaluation.relation(atom.name)
    columns = _columns_of_bits(held, chosen.fixed) if tensor is None else list(tensor.columns)
    if tensor is not None and 0 in chosen.fixed:  # the tuples are sorted by their first place
        code = chosen.fixed[0]
        kept = slice(
            *(int(np.searchsorted(columns[0], columns[0].dtype.type(code), side)) for side in ("left", "right"))
        )
        columns = [c[kept] for c in columns]
    mask = np.ones(len(columns[0]) if columns else tensor.count if tensor is not None else 0, bool)
    for place, code in chosen.fixed.items():
        mask &= columns[place] == code
    for a, b in chosen.equal:
        mask &= columns[a] == (
            columns[b] if domains[a] is domains[b] else _translated(columns[b], domains[b], domains[a])
        )
    found = [columns[p][mask] for p in chosen.places]
    count = int(np.count_nonzero(mask))
    if chosen.hidden:
        if not found:
            count = min(1, count)
        else:
            unique = SparseTensor.of_columns(found, [held.shape[p] for p in chosen.places])
            found, count = list(unique.columns), unique.count
    return Answers(chosen.heads, found, asked, count=count)


def _columns_of_bits(held: BitTensor, fixed: Mapping[int, int]) -> list[Any]:
    """Return the tuples with some places fixed, column by column, of a relation that may be too large to list."""
    part = held[tuple(fixed.get(n, slice(None)) for n in range(held.ndim))]
    found = SparseTensor(part)
    rest = iter(found.columns)
    return [np.full(found.count, fixed[n]) if n in fixed else next(rest) for n in range(held.ndim)]


def _translated(codes: Any, source: Domain, target: Domain) -> Any:
    """Return the codes that elements of one domain have in another, -1 where they are not in it."""
    unique, inverse = np.unique(codes, return_inverse=True)
    known = [-1 if (c := target.code(name)) is None else c for name in source.names(unique)]
    return np.array(known, np.int64)[inverse]


def numbers(evaluation: Evaluation, atom: s.Tensor) -> Answers:
    """Return the elements of a tensor of numbers, each with its value."""
    model = evaluation.model
    value = evaluation.value(atom.name)
    array = np.asarray(value)
    domains = model.place_domains(atom.name)
    if array.ndim != len(domains):  # only the last position of a virtual index is kept
        virtual = model.analysis.tensors[atom.name].virtual
        domains = [d for n, d in enumerate(domains) if n != virtual]
        heads = [f"x{n}" for n in range(1, array.ndim + 1)]
        chosen = _Selection({}, [], heads, list(range(array.ndim)), False, True)
    else:
        chosen = _selection(model, atom)
    index: list[Any] = [chosen.fixed.get(n, slice(None)) for n in range(array.ndim)]
    for n, code in chosen.fixed.items():
        if code < 0 or code >= array.shape[n]:
            place = atom.places[n]
            known = f"0 to {array.shape[n] - 1}" if domains[n].numbers else ", ".join(map(str, domains[n].names()[:12]))
            message = f"{text_of(place)} is no element of place {n + 1} of {atom.name}"
            raise InputError(message, f"known: {known}", code="E777", location=place.at)
    part = array[tuple(index)]
    kept = [n for n in range(array.ndim) if n not in chosen.fixed]
    for a, b in chosen.equal:  # the diagonal
        one, two = kept.index(a), kept.index(b)
        part = np.moveaxis(np.diagonal(part, axis1=one, axis2=two), -1, one)
        kept.remove(b)
    order = [kept.index(n) for n in chosen.places] + [k for k, n in enumerate(kept) if n not in chosen.places]
    part = part.transpose(order) if part.ndim else part
    codes = [c.ravel() for c in np.indices(part.shape)][: len(chosen.places)]
    asked = [_sized(domains[p], array.shape[p]) for p in chosen.places]
    return Answers(chosen.heads, codes, asked, count=part.size, values=part.ravel(), tensor=part)


def _sized(domain: Domain, size: int) -> Domain:
    """Return the domain of an axis, which may be longer than what is named."""
    return domain if len(domain) >= size else Domain(size=size)


# conjunctions, and queries on demand


class _Prepared(NamedTuple):
    """A query as rules of their own: the graph that answers it, and what it reads."""

    graph: EinsumGraph
    analysis: Analysis
    shared: dict[DomainKey, DomainKey]  # which domain of the model each of its domains is


def _conjunction(
    evaluation: Evaluation, body: Sequence[s.Expression], cache: dict[object, Any], rebuild: Rebuild, *, on_demand: bool
) -> Answers:
    """Answer a query by rules of its own, which are the same for all queries that differ in their constants only."""
    key = _pattern(evaluation, body, on_demand)
    known: tuple[Demand, _Prepared | None] | None = None if key is None else cache.get(key)
    if known is None:
        found = _rules_of(evaluation, body, on_demand)
        known = found, prepare(evaluation.model, found)
        if key is not None:
            if len(cache) > 64:
                cache.clear()
            cache[key] = known
    found, prepared = known
    if prepared is not None:
        return _answer(evaluation, found._replace(constants=as_rule(body)[1]), prepared)
    # the query joins two domains of the program, so that they must become one
    head = s.Tensor(f"@{ANSWER}", tuple(s.Place(s.Variable(h)) for h in as_rule(body)[2]), True)
    return matching(rebuild(s.Rule(head, tuple(body))), head)


def _pattern(evaluation: Evaluation, body: Sequence[s.Expression], on_demand: bool) -> object:
    """Return what a query's rules depend on: the query without its constants, and what is there already; None where it is more."""
    if not all(isinstance(b, s.Tensor) and _simple(b) for b in body):
        return None
    model = evaluation.model
    atoms = tuple(
        (b.name, *(p.index.name if isinstance(p.index, s.Variable) else None for p in b.places))
        for b in body
        if isinstance(b, s.Tensor)
    )
    names = model.analysis.tensors
    ready = tuple(n for n in names if evaluation.has(n)) if on_demand else ()
    return atoms, on_demand, ready, tuple(n for n in names if model.has_facts(n)), model.sizes


def _rules_of(evaluation: Evaluation, body: Sequence[s.Expression], on_demand: bool) -> Demand:
    """Return the rules that answer a query: on demand those of the relations that it asks for too, as far as they are needed."""
    model = evaluation.model
    found = None
    if on_demand:
        statements = [x for c in model.analysis.components for x in c.statements if not evaluation.has(x.head.name)]
        found = demanded(statements, body, [n for n in model.analysis.tensors if model.has_facts(n)])
    if found is None:
        rule, constants, heads = as_rule(body)
        seed = f"{rule.head.name}@demand"
        atom = s.Tensor(seed, rule.head.places[: len(constants)], True)
        rule = s.Rule(rule.head, (atom, *rule.body) if constants else rule.body)
        full = {b.name for part in rule.body for b in s.walk(part) if isinstance(b, s.Tensor)}
        found = Demand((rule,), rule.head.name, seed, constants, heads, frozenset(full - {seed}), frozenset())
    return found


def _answer(evaluation: Evaluation, found: Demand, prepared: _Prepared) -> Answers:
    """Run the rules of a query."""
    model = evaluation.model
    analysis = prepared.analysis
    places = [model.domains[prepared.shared[key]] for key in analysis.tensors[found.answer].places]
    fixed, domains = places[: len(found.constants)], places[len(found.constants) :]
    values = map(model.analysis.constant_value, found.constants)
    codes = [domain.code(value) for domain, value in zip(fixed, values, strict=True)]
    if None in codes:
        return Answers(found.heads, [np.empty(0, np.int64)] * len(domains), domains, count=0)
    inputs = demand_inputs(evaluation, found, analysis, prepared.graph, codes)
    answer = SparseTensor(evaluation.executor.execute(prepared.graph, inputs)[found.answer])
    columns = list(answer.columns)[len(found.constants) :] if answer.ndim else []
    return Answers(found.heads, columns, domains, count=answer.count)


def demand_inputs(
    evaluation: Evaluation, found: Demand, analysis: Analysis, graph: EinsumGraph, codes: Sequence[Any]
) -> dict[str, Any]:
    """Return what the graph of a query's rules is given: the relations that it reads, and the codes of the query's constants."""
    model = evaluation.model
    inputs: dict[str, Any] = {}
    inputs.update(evaluation.values([n for n in graph.inputs if n in model.analysis.tensors]))
    for name in found.facts:
        if facts_name(name) in graph.inputs:
            inputs[facts_name(name)] = model.facts(name)
    if found.seed in graph.inputs:
        inputs[found.seed] = SparseTensor.of_columns([[c] for c in codes], analysis.shape(found.seed))
    for name in graph.inputs:
        if name not in inputs:  # a copy starts without facts
            inputs[name] = empty(analysis.shape(name))
    return inputs


def prepare(model: Model, found: Demand) -> _Prepared | None:
    """Analyse the rules of a query with the domains of the model, and build their graph; None where they join two of its domains."""
    names = {b.name for r in found.rules for part in (r.head, *r.body) for b in s.walk(part) if isinstance(b, s.Tensor)}
    own = {r.head.name for r in found.rules}
    given = {
        n: GivenTensor((None,) * t.arity, t.boolean, None if not t.boolean else "bool")
        for n in names - own
        if (t := model.analysis.tensors.get(n)) is not None
    }
    for name in found.facts:
        given[facts_name(name)] = GivenTensor((None,) * model.analysis.tensors[name].arity, True, "bool")
    if found.constants:
        given[found.seed] = GivenTensor((None,) * len(found.constants), True, "bool")
    for name, value in model.analysis.scalars.items():
        given.setdefault(name, GivenTensor((), False, None, value))
    analysis = analyse(found.rules, given=given)
    shared = share_domains(analysis, model, origins(model, analysis))
    if shared is None:
        return None
    return _Prepared(build(analysis, analysis.components, [found.answer]), analysis, shared)


def origins(model: Model, analysis: Analysis) -> dict[tuple[str, int], DomainKey]:
    """Return for the places of a query's rules the domains that they have in the model: a copy has those of what it copies."""
    found: dict[tuple[str, int], DomainKey] = {}
    for name in analysis.tensors:
        original, *copied = name.split("@") if not name.startswith("@") else ("", "")
        tensor = model.analysis.tensors.get(original)
        if tensor is None:
            continue
        places = range(tensor.arity)
        if len(copied) == 2:  # a relation of demands has the places that are bound
            places = [n for n, a in enumerate(copied[0]) if a == "b"]  # type: ignore[assignment]
        found.update({(name, n): tensor.places[p] for n, p in enumerate(places)})
    return found
