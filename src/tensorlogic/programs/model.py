"""A model: what a program's rules mean for the data it has now. Its domains grow; other rules or shapes need another model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends.sparse import SparseTensor
from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.graph import EinsumGraph
from ..ir.tensor import Tensor
from ..lang import syntax as s
from ..lang.analysis import Analysis, Component, DomainKey, GivenTensor, analyse
from ..lang.data import Table
from ..lang.datalog import lower_component as lower_rules
from ..lang.declarations import mentions
from ..lang.domain_inference import unknown_constant
from ..lang.domains import Column, Domain, Name
from .facts import Block, FactStore

Function = Callable[..., Any]


class Model:
    """An analysed program with its facts coded: a :class:`Domain` for each index, a sparse tensor for each relation."""

    def __init__(
        self,
        statements: Sequence[s.Statement],
        facts: FactStore,
        given: Mapping[str, GivenTensor],
        functions: Mapping[str, Function],
        order: Mapping[tuple[str, int], Sequence[Name]] | None = None,
    ) -> None:
        self.given = {**facts.given(statements), **given}
        self.analysis = analyse(statements, given=self.given, functions=functions)
        self._settle_empty()
        self._drop_samples(facts.samples())
        self._put_in_order(order or {})
        self.domains = self.analysis.domains
        self.readers = _Reads(self.analysis)
        self.graphs: dict[object, EinsumGraph] = {}
        self.sizes = 0  # how often domains have grown
        self._facts: dict[str, SparseTensor] = {}
        for name, blocks in facts.blocks.items():
            for block in blocks:
                self.add(name, block)
        self._check_sizes()
        self.sizes = 0

    def _settle_empty(self) -> None:
        """Give relations without any facts a domain without elements, so that they are empty and not of unknown size."""
        tensors = self.analysis.tensors
        numeric = {key for t in tensors.values() if not t.boolean for key in t.places}
        empty = [key for key, info in self.analysis.domains.items() if info.size is None and key not in numeric]
        for key in empty:
            self.analysis.domains[key] = Domain([])
        if empty:
            self.analysis.solve(self.given)

    def _put_in_order(self, order: Mapping[tuple[str, int], Sequence[Name]]) -> None:
        """Let names have the order that they had in a saved program; others come after them."""
        for (name, place), names in order.items():
            if name in self.analysis.tensors and place < self.analysis.tensors[name].arity:
                info = self.analysis.place(name, place)
                if not info.numbers:
                    info.set_elements(dict.fromkeys([*names, *info.elements]))

    def _drop_samples(self, samples: set[Name]) -> None:
        """Take the names that stood for those of large tables out again; all of them are added, in order, with the tables."""
        if not samples:
            return
        said: set[object] = set()
        for statement in self.analysis.statements:
            if isinstance(statement, s.Facts):
                said.update(*statement.columns)
            else:
                words = [p for p in s.walk(statement) if isinstance(p, s.Constant | s.Number | s.Text | s.Tensor)]
                said.update(p.name if isinstance(p, s.Tensor) else p.value for p in words)
        for info in self.analysis.domains.values():
            if not info.numbers:
                info.set_elements([n for n in info.elements if n in said or n not in samples])

    def _check_sizes(self) -> None:
        """Refuse an array that has fewer places along an index than the index has names."""
        for (name, place), info in self.analysis.domains.items():
            if not info.numbers and info.axis is not None and len(info) > info.axis:
                message = f"an index has {len(info):,} elements but is {info.axis:,} in an array that is given"
                hint = f"give an array with a row for each of program.names({name!r}, {place})"
                raise InputError(message, hint, code="E676")

    def order(self) -> dict[tuple[str, int], list[Name]]:
        """Return the names of every domain that has some, by the first place that has it."""
        return {key: list(d.elements) for key, d in self.domains.items() if d.elements}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor has now."""
        return self.analysis.shape(name)

    def place_domains(self, name: str) -> list[Domain]:
        """Return the domain of each place of a tensor."""
        return [self.domains[key] for key in self.analysis.tensors[name].places]

    def takes(self, name: str, table: Table) -> bool:
        """Tell whether facts can be added to this model; else another one must be made."""
        tensor = self.analysis.tensors.get(name)
        if tensor is None or tensor.arity != table.arity:
            return False
        for place, column in enumerate(table.columns):
            info = self.analysis.place(name, place)
            if not len(column) and table.sizes is None:
                continue
            if tensor.places[place] in self.analysis.grown:
                return False  # rules derive numbers from these, so the domain may have to grow
            if not info.numbers and not info.elements:
                return False  # its first names say what kind of a domain it is
            if info.numbers:
                if column.names is not None or table.sizes is not None:
                    return False
                if column.codes.min() < 0 or column.codes.max() >= (info.size or 0):
                    return False
            elif info.axis is not None or (info.kind == "integers" and column.names is not None):
                return False
        return True

    def add(self, name: str, block: Block) -> None:
        """Code the tuples of a block, and add them to the facts of a relation."""
        before, shape = self._facts.get(name), self.shape(name)
        if block.is_blank:
            self._facts[name] = empty(shape) if before is None else before
            return
        codes = self.codes(name, block)
        shape = self.shape(name)
        new = self.tensor(codes, shape, block.table.count)
        self._facts[name] = new if before is None else resized(before, shape) | new

    def codes(self, name: str, block: Block) -> list[np.ndarray[Any, Any]]:
        """Return the codes of a block's columns; names that are new are added to their domains."""
        found = []
        sizes = [len(d) for d in self.domains.values()]
        for place, column in enumerate(block.table.columns):
            domain = self.analysis.place(name, place)
            if domain.numbers:
                self._check_range(name, place, block, domain)
                found.append(column.codes)
            else:
                if block.table.sizes is not None and column.names is None:  # all places of an array's axis are elements
                    domain.add(Column(np.arange(block.table.sizes[place]), None))
                found.append(domain.add(column))
        if sizes != [len(d) for d in self.domains.values()]:
            self.sizes += 1
            self.graphs.clear()
            self.analysis.solve(self.given)
        return found

    def _check_range(self, name: str, place: int, block: Block, info: Domain) -> None:
        column, size = block.table.columns[place], info.size or 0
        if column.names is not None and len(column):
            raise unknown_constant(name, place, column.values()[0], info).at(block.location(0))
        wrong = np.flatnonzero((column.codes < 0) | (column.codes >= size))
        if len(wrong):
            row = int(wrong[0])
            raise unknown_constant(name, place, int(column.codes[row]), info).at(block.location(row))

    def tensor(self, codes: Sequence[Any], shape: Sequence[int], count: int) -> SparseTensor:
        """Return the sparse tensor of coded tuples."""
        return SparseTensor.of_columns(codes, shape) if shape else SparseTensor(count > 0)

    def facts(self, name: str) -> SparseTensor:
        """Return the facts of a relation, in the shape that it has now."""
        found = self._facts.get(name)
        shape = self.shape(name)
        if found is None:
            return empty(shape)
        if found.shape != shape:
            found = self._facts[name] = resized(found, shape)
        return found

    def has_facts(self, name: str) -> bool:
        """Tell whether a relation has facts."""
        return name in self._facts

    def set_facts(self, name: str, tensor: SparseTensor) -> None:
        """Replace the facts of a relation."""
        self._facts[name] = tensor

    # components and graphs

    def component(self, name: str) -> int | None:
        """Return the number of the component that computes a tensor, None where it is given."""
        return self.readers.component.get(name)

    def graph(
        self, parts: Sequence[int], outputs: Sequence[str], *, start: bool = True, given: Sequence[str] = ()
    ) -> EinsumGraph:
        """Return the graph that computes some components; what they read and do not compute is an input.

        With ``start`` recursive relations are inputs too, which say what they begin with, even where they have no facts; so
        are those of ``given``.
        """
        key = (tuple(parts), tuple(outputs), start, tuple(given))
        if key not in self.graphs:
            starts = {n for n in self.analysis.tensors if self.has_facts(n)}.union(given)
            chosen = [self.analysis.components[n] for n in parts]
            self.graphs[key] = build(self.analysis, chosen, outputs, starts, start=start)
        return self.graphs[key]


def build(
    analysis: Analysis,
    components: Iterable[Component],
    outputs: Sequence[str],
    facts: Iterable[str] = (),
    *,
    start: bool = True,
) -> EinsumGraph:
    """Build the graph of some components in order; ``facts`` names the relations that have facts beside their rules.

    With ``start`` recursive relations are inputs in any case.
    """
    b = GraphBuilder()
    values: dict[str, Tensor] = {}
    with_facts = set(facts)
    for component in components:
        for name in component.names:
            if analysis.tensors[name].boolean and ((start and component.recursive) or name in with_facts):
                values[name] = b.input(name, analysis.shape(name), "bool")
        if component.boolean:
            lower_rules(component, analysis, b, values)
        else:
            from ..lang.equations import lower_component as lower_equations

            lower_equations(component, analysis, b, values)
    return b.build(**{name: values[name] for name in outputs})


class _Reads:
    """Which component computes a tensor, what each component reads, and all that a tensor depends on."""

    def __init__(self, analysis: Analysis) -> None:
        self.component: dict[str, int] = {}
        self.direct: dict[int, set[str]] = {}
        self.closure: dict[str, frozenset[str]] = {}  # everything that a tensor depends on, itself too
        for number, component in enumerate(analysis.components):
            own = set(component.names)
            self.component.update(dict.fromkeys(component.names, number))
            names = {
                m.tensor.name
                for x in component.statements
                for m in mentions(x)
                if m.role != "head" and m.tensor.name not in own and m.tensor.name in analysis.tensors
            }  # a bare word in a comparison may be the name of an element
            self.direct[number] = names
            below = [self.closure.get(name, frozenset({name})) for name in names]
            self.closure.update(dict.fromkeys(component.names, frozenset(own.union(*below))))


def empty(shape: Sequence[int]) -> SparseTensor:
    """Return a relation without tuples."""
    return SparseTensor.of_columns([np.empty(0, np.int64)] * len(shape), shape) if shape else SparseTensor(False)


def resized(tensor: SparseTensor, shape: Sequence[int]) -> SparseTensor:
    """Return the same tuples in a tensor with larger axes."""
    if tensor.shape == tuple(shape):
        return tensor
    return SparseTensor.of_columns(tensor.columns, shape, ordered=True)


def share_domains(
    analysis: Analysis, model: Model, origin: Mapping[tuple[str, int], DomainKey]
) -> dict[DomainKey, DomainKey] | None:
    """Let the places of another analysis have the domains of a model, and say which; None where a place would need two of them.

    ``origin`` says for places of the analysis's tensors which domain of the model is theirs.
    """
    chosen: dict[DomainKey, DomainKey] = {}
    for name, tensor in analysis.tensors.items():
        for place, key in enumerate(tensor.places):
            wanted = origin.get((name, place))
            if wanted is not None and chosen.setdefault(key, wanted) != wanted:
                return None
    if chosen.keys() != analysis.domains.keys():
        return None
    for key, wanted in chosen.items():
        analysis.domains[key] = model.analysis.domains[wanted]
    analysis.solve(analysis.given)
    return chosen
