"""What a program has been told: statements, facts, tensors and functions; and the models that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.sparse import SparseTensor
from ..errors import InputError, TensorLogicError, expect, nearest
from ..lang import syntax as s
from ..lang.data import Table, of_columns, table_of
from ..lang.domains import Column, Name
from ..runtime.executor import Executor
from ..tables import counted
from .answers import unknown_relation
from .evaluate import SIZES, Evaluation, Kept, Versions
from .facts import Block, FactStore, block_of
from .file_statements import check_path, path_beside, read_statement
from .inputs import atoms_of, check_kind, defining_equation, described, holds_numbers, is_mentioned
from .model import Model, empty

FEW = 64  # facts taken back, of which each is looked for by itself
MODELS = 8  # for how many different shapes of inputs what was worked out is kept


class Known(NamedTuple):
    """A model, with what was computed of it and what was prepared for queries."""

    model: Model
    kept: dict[str, Kept]
    queries: dict[object, Any]


class ProgramState:
    """The statements, facts, tensors and functions of a program, and a model of them for each shape of its inputs.

    It is not safe to use from several threads: a program holds its lock while it uses it.
    """

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.statements: list[s.Statement] = []
        self.facts = FactStore()
        self.bound: dict[str, Any] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.order: dict[tuple[str, int], list[Name]] = {}  # of names, as a saved program had them
        self.versions = Versions()
        self._unread: list[s.Read] = []
        self._models: dict[object, Known] = {}

    # statements

    def add_statements(self, statements: Iterable[s.Statement]) -> None:
        """Add statements; the files that they read are read when something is asked for."""
        for statement in statements:
            self.statements.append(statement)
            if isinstance(statement, s.Facts):
                self.facts.add(statement.name, block_of(statement))
                self.versions.change(statement.name)
            elif isinstance(statement, s.Write):
                check_path(statement)
            elif isinstance(statement, s.Read):
                self._unread.append(statement)
        self._models.clear()

    def attach(self, name: str, function: Callable[..., Any]) -> None:
        """Let equations call a function."""
        self.functions[name] = function
        self._models.clear()

    def whole_scalars(self) -> dict[str, int]:
        """Return the scalars that are defined as whole numbers: their names stand for them in facts and queries."""
        heads = [x for x in self.statements if isinstance(x, s.Equation) and not x.head.places and x.operator == "="]
        values = {x.head.name: x.value.value for x in heads if isinstance(x.value, s.Number)}
        return {name: value for name, value in values.items() if isinstance(value, int)}

    def _read_files(self) -> None:
        """Read the files that statements name and that were not read yet."""
        while self._unread:
            statement = self._unread[0]
            name = statement.head.name
            found = read_statement(statement, path_beside(self.file, statement.path))
            self.versions.change(name)
            if isinstance(found, Block):
                self.facts.add(name, found)
            elif isinstance(found, list):
                at = self.statements.index(statement)
                self.statements[at : at + 1] = found
                self._models.clear()
            else:
                self.bound[name] = found
            del self._unread[0]

    # models

    def known(self, bound: Mapping[str, Any] | None = None) -> Known:
        """Return what the program means for tensors of some shapes, with what was computed of it."""
        self._read_files()
        given = described(self.bound if bound is None else bound)
        key = tuple(sorted((n, g.shape, g.boolean, str(g.dtype), g.value) for n, g in given.items()))
        if key not in self._models:
            while len(self._models) >= MODELS:
                del self._models[next(iter(self._models))]
            self._models[key] = Known(Model(self.statements, self.facts, given, self.functions, self.order), {}, {})
        return self._models[key]

    def evaluation(self, executor: Executor, inputs: Mapping[str, Any] | None = None) -> Evaluation:
        """Return what computes the program's tensors, for some inputs beside those that are bound."""
        self._read_files()
        bound = {**self.bound, **(inputs or {})}
        model, kept, _ = self.known(bound)
        for name in inputs or {}:
            if name not in model.analysis.tensors:
                self.check_known(name)
        for name, value in bound.items():
            self.check_mentioned(name)
            check_kind(name, value, model)
            if (equation := defining_equation(self.statements, name)) is not None:
                message = f"{name!r} is defined by the program, and cannot be given too"
                hint = "leave its equation out, or give the array another name and add it there"
                raise InputError(message, hint, code="E833", location=equation.at)
        return Evaluation(model, executor, bound, self.versions.view(inputs or ()), kept)

    def check_mentioned(self, name: str) -> None:
        """Refuse a tensor that is given and that no statement mentions."""
        if not is_mentioned(self.statements, name) and name not in self.facts.blocks:
            tensors = [t.name for x in self.statements for t in s.walk(x) if isinstance(t, s.Tensor)]
            known = list(dict.fromkeys([*tensors, *self.facts.blocks]))
            raise InputError(f"the program takes no tensor {name!r}", *nearest(name, known), code="E785")

    def with_statement(self, executor: Executor, rule: s.Statement) -> Evaluation:
        """Return the evaluation of the program with one more statement."""
        model = Model([*self.statements, rule], self.facts, described(self.bound), self.functions)
        return Evaluation(model, executor, self.bound, self.versions.view(()), {})

    def check_known(self, name: str) -> None:
        """Refuse a name that the program does not have."""
        known = dict.fromkeys([*self.known().model.analysis.tensors, *self.facts.blocks])
        if name not in known:
            raise unknown_relation(name, list(known))

    # facts

    def add_facts(self, name: str, rows: Any, header: bool | None) -> None:
        """Add facts to a relation; what does not fit is not added."""
        if holds_numbers(self.statements, name):
            hint = f"give numbers as an array: program.bind({name}=array)"
            raise InputError(f"{name!r} holds numbers, and facts belong to relations", hint, code="E832")
        table = self._table(name, rows, header)
        before = list(self.facts.blocks.get(name, ()))
        if before and not table.count:
            return
        block = Block.of(table, rows)
        self.facts.add(name, block)
        for key, (model, _, _) in list(self._models.items()):
            sizes = model.sizes
            if model.takes(name, table):
                model.add(name, block)
                if model.sizes != sizes:
                    self.versions.change(SIZES)
            else:
                del self._models[key]
        try:
            self.known()
        except TensorLogicError:
            self.facts.replace(name, before)
            self._models.clear()
            raise
        self.versions.change(name)

    def retract_facts(self, name: str, rows: Any) -> int:
        """Take facts back; return how many there were."""
        if name not in self.facts.blocks:
            self.check_known(name)
            if self.known().model.component(name) is not None:
                hint = "take back the facts that it follows from"
                raise InputError(f"{name!r} follows from rules, and has no facts to take back", hint, code="E788")
            return 0
        table = self._table(name, rows, None)
        model = self.known().model
        if table.arity != model.analysis.tensors[name].arity:
            if not table.count:
                return 0
            raise InputError(f"{name} has {counted(model.analysis.tensors[name].arity, 'place')}", code="E778")
        gone = model.facts(name) & _known_tuples(model, name, table)
        if gone.count:
            self._drop(model, name, gone)
            self.versions.change(name)
        return gone.count

    def _drop(self, model: Model, name: str, gone: SparseTensor) -> None:
        """Take tuples out of every block that has them, and out of the models."""
        blocks = self.facts.blocks[name]
        if gone.shape and gone.count <= FEW:
            domains = model.place_domains(name)
            rows = list(zip(*(d.names(c) for d, c in zip(domains, gone.columns, strict=True)), strict=True))
            kept = [b.without_rows(rows) for b in blocks]
        else:
            kept = [b.without_tuples(gone, model.codes(name, b)) for b in blocks]
        self.facts.replace(name, [b for b in kept if b.table.count] or kept[:1])
        for other, _, _ in self._models.values():
            other.set_facts(name, other.facts(name) - gone if other is model else _coded(other, name, self.facts))

    def _table(self, name: str, rows: Any, header: bool | None) -> Table:
        arity = self.facts.arity(name)
        if arity is None:
            arity = next((len(t.places) for x in self.statements for t in atoms_of(x) if t.name == name), None)
        table = table_of(rows, arity, header=header, name=name)
        return table if table.sizes is None else self._with_names(name, table)

    def _with_names(self, name: str, table: Table) -> Table:
        """Give the positions of an array the names that their domains have already."""
        model = self.known().model
        if name not in model.analysis.tensors:
            return table
        columns: list[Column] = []
        for place, (column, domain) in enumerate(zip(table.columns, model.place_domains(name), strict=True)):
            names = domain.names() if len(domain) and not domain.numbers else None
            if names is not None and table.sizes is not None and table.sizes[place] > len(names):
                message = f"{name}: axis {place} has {table.sizes[place]} places, but its domain has {len(names)} names"
                raise InputError(message, "give an array of that size, or tuples of names", code="E778")
            columns.append(Column(column.codes, names))
        return of_columns(columns, name) if any(c.names is not None for c in columns) else table


def tensor_info(evaluation: Evaluation, name: str) -> Any:
    """Return what is known of a tensor; refuse a name that the program does not have."""
    expect(name, str, "a relation or tensor is named by text", 'such as "Parent"')
    tensors = evaluation.model.analysis.tensors
    if name not in tensors:
        raise unknown_relation(name, list(tensors))
    return tensors[name]


def _known_tuples(model: Model, name: str, table: Table) -> SparseTensor:
    """Return the tuples of a table all of whose names are known."""
    shape = model.shape(name)
    if not shape:
        return SparseTensor(table.count > 0)
    columns, kept = [], np.ones(table.count, bool)
    for column, domain in zip(table.columns, model.place_domains(name), strict=True):
        codes = domain.codes(column)
        kept &= codes >= 0
        columns.append(codes)
    return SparseTensor.of_columns([c[kept] for c in columns], shape)


def _coded(model: Model, name: str, facts: FactStore) -> SparseTensor:
    shape = model.shape(name)
    found = empty(shape)
    for block in facts.blocks[name]:
        found = found | model.tensor(model.codes(name, block), shape, block.table.count)
    return found


def derived_names(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    """Return some tensors, or all that the program derives."""
    for name in names:
        tensor_info(evaluation, name)
    return list(names) or [n for c in evaluation.model.analysis.components for n in c.names]
