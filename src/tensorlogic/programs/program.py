"""A program: facts, rules and equations, asked by name and composed from text and from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..backends.sparse import SparseTensor
from ..diagnostics import SourceLocation
from ..errors import FormatError, InputError, TensorLogicError, expect, nearest
from ..ir.graph import EinsumGraph, plain_array
from ..ir.types import TensorType
from ..lang import syntax as s
from ..lang.data import Table, of_columns, table_of
from ..lang.data_files import NamedNumbers, read_tensor, write_array, write_table, written_kind
from ..lang.declarations import GivenTensor
from ..lang.domains import Column, Name
from ..lang.format import text_of
from ..lang.grammar import parse
from ..plan.build import ExecutionPlan
from ..runtime.executor import Executor
from ..runtime.programs import not_pickled
from ..store import Store
from ..tables import counted, html_text
from .answers import Answers, Relation, unknown_relation
from .ask import ask, place_heads
from .evaluate import SIZES, Evaluation, Kept, Versions
from .facts import Block, FactStore, block_of
from .model import Model, empty
from .results import Results
from .sources import QUERY, Sources

SHORT = 1 << 14  # characters up to which programs of the same text share what was read and planned of it
TEXTS = 64  # of which that is kept
PLANS = 64  # that are kept for each
MODELS = 8  # for how many different shapes of inputs what was worked out is kept
PRINTED = 20  # facts of a relation that are printed
_plans: Store[tuple[str, str | None], Store[Any, Any]] = Store(TEXTS)


def _statements(
    text: str, file: str | None, functions: tuple[str, ...], scalars: tuple[tuple[str, int], ...]
) -> tuple[s.Statement, ...]:
    """Return the statements of a text; a short one that was read before is not read again."""
    read = _read_text if len(text) <= SHORT else _read_text.__wrapped__
    return read(text, file, functions, scalars)


@lru_cache(TEXTS)
def _read_text(
    text: str, file: str | None, functions: tuple[str, ...], scalars: tuple[tuple[str, int], ...]
) -> tuple[s.Statement, ...]:
    return parse(text, file, functions=functions, scalars=dict(scalars)).statements


def _plans_of(key: tuple[str, str | None]) -> Store[Any, Any]:
    """Return where programs of one text keep their plans: one that is made anew for other facts need not be planned again."""
    if len(key[0]) > SHORT:
        return Store(PLANS)
    found = _plans.get(key)
    if found is None:
        found = Store(PLANS)
        _plans.put(key, found)
    return found


class Program:
    """A tensor-logic program: made of text, added to from Python, asked by name.

    Nothing is computed before it is asked for; what was computed is kept until facts, rules or tensors that it depends on change.
    A program reads the files that its statements name, and never writes one unless :meth:`write_files` is called. Safe to use from
    several threads.

    >>> p = Program('''Parent(Bob, Charlie)
    ...                Ancestor(x,y) <- Parent(x,y)
    ...                Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)''')
    >>> p.add("Parent", [("Alice", "Bob")])
    >>> p.query("Ancestor(Alice, x)?")
    [('Bob',), ('Charlie',)]
    >>> len(p.relation("Ancestor")), ("Alice", "Charlie") in p.relation("Ancestor")
    (3, True)
    """

    def __init__(
        self, text: str = "", *, file: str | os.PathLike[str] | None = None, executor: Executor | None = None
    ) -> None:
        expect(text, str, "a program is text", 'read a file with tl.load("family.tl")')
        if text.endswith(".tl") and len(text.split()) == 1 and "(" not in text:
            raise InputError(
                f"a program is text, got the name of a file: {text!r}", f"write tl.load({text!r})", code="E301"
            )
        if executor is not None:
            expect(executor, Executor, "a program runs on an executor", "write executor=tl.Executor()")
        self._lock = Sources()
        self._executor = executor
        self._file = None if file is None else str(file)
        self._key = (text, self._file)
        self._statements: list[s.Statement] = []
        self._facts = FactStore()
        self._bound: dict[str, Any] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._unread: list[s.Read] = []
        self.order: dict[tuple[str, int], list[Name]] = {}  # of names, as a saved program had them
        self._versions = Versions()
        self._models: dict[object, tuple[Model, dict[str, Kept], dict[object, Any]]] = {}
        self.add_rule(text)

    # composing

    def add(self, name: str, rows: Any, *, header: bool | None = None) -> None:
        """Add facts to a relation: tuples, an array, a data frame, an Arrow table, or the path of a CSV, TSV, Parquet or text file.

        ``header`` says whether the first row of a CSV or TSV file is a header; without it, it is one where it has words above
        whole numbers.

        >>> p = Program("Older(x,y) <- Age(x,m), Age(y,n), m > n")
        >>> p.add("Age", {"who": ["Ann", "Bob"], "years": [31, 7]})
        >>> p.query("Older(x,y)?")
        [('Ann', 'Bob')]
        """
        expect(name, str, "a relation is named by text", 'write p.add("Parent", rows)')
        with self._lock:
            if _holds_numbers(self._statements, name):
                hint = f"give numbers as an array: program.bind({name}=array)"
                raise InputError(f"{name!r} holds numbers, and facts belong to relations", hint, code="E832")
            self._add(name, self._table(name, rows, header), _file_place(rows))

    def retract(self, name: str, rows: Any) -> int:
        """Take facts back; return how many there were. What rules derive cannot be taken back.

        >>> p = Program("Parent(Alice, Bob); Parent(Bob, Carol)")
        >>> p.retract("Parent", [("Alice", "Bob"), ("Alice", "Carol")])
        1
        """
        expect(name, str, "a relation is named by text", 'write p.retract("Parent", rows)')
        with self._lock:
            if name not in self._facts.blocks:
                self._refuse_unknown(name)
                if self._model()[0].component(name) is not None:
                    hint = "take back the facts that it follows from"
                    raise InputError(f"{name!r} follows from rules, and has no facts to take back", hint, code="E788")
                return 0
            table = self._table(name, rows, None)
            model, _, _ = self._model()
            if table.arity != model.analysis.tensors[name].arity:
                raise InputError(f"{name} has {counted(model.analysis.tensors[name].arity, 'place')}", code="E778")
            shape = model.shape(name)
            before = model.facts(name)
            gone = before & _known_tuples(model, name, table, shape)
            if gone.count:
                self._drop(model, name, gone)
            return gone.count

    def add_rule(self, text: str) -> None:
        """Add statements, as text: rules, equations, facts, queries, files to read and write.

        >>> p = Program("Parent(Alice, Bob)")
        >>> p.add_rule("Child(y,x) <- Parent(x,y)")
        >>> p.query("Child(x, Alice)?")
        [('Bob',)]
        """
        expect(text, str, "rules are text", 'write p.add_rule("Child(y,x) <- Parent(x,y)")')
        scalars = {n: v for n, v in self._scalars().items() if isinstance(v, int)}
        with self._lock:
            file = self._lock.add(text, self._file)
            self.add_statements(_statements(text, file, tuple(self._functions), tuple(scalars.items())))

    rule = add_rule

    def add_statements(self, statements: Iterable[s.Statement]) -> None:
        """Add statements that are parsed already."""
        with self._lock:
            for statement in statements:
                if isinstance(statement, s.Facts):
                    self._statements.append(statement)
                    self._facts.add(statement.name, block_of(statement))
                    self._versions.change(statement.name)
                    continue
                if isinstance(statement, s.Write):
                    _checked_path(statement)
                if isinstance(statement, s.Read):
                    self._unread.append(statement)
                self._statements.append(statement)
            self._models.clear()

    def bind(self, tensors: Mapping[str, Any] | None = None, /, **named: Any) -> Program:
        """Give tensors from Python, for all that is asked from now on; return the program.

        They are copied, so that writing to an array later changes nothing here; one that nobody can write to is taken as it is.

        >>> p = Program("Y[i] = W[i,j] X[j]")
        >>> p.bind(W=np.eye(2), X=np.array([3.0, 4.0])).run()["Y"].tolist()
        [3.0, 4.0]
        """
        with self._lock:
            for name, value in _tensors(tensors, named).items():
                self._bound[name] = _unchanging(value)
                self._versions.change(name)
        return self

    def attach(self, name: str, function: Callable[..., Any]) -> Program:
        """Let equations call a Python function by name; it is given graph tensors and returns one, and is part of the graph.

        >>> p = Program("X = [1, 2]")
        >>> p.attach("double", lambda x: x + x).add_rule("Y[i] = double(X[i])")
        >>> p.run()["Y"].tolist()
        [2.0, 4.0]
        """
        expect(name, str, "a function is attached under a name", 'write p.attach("double", function)')
        if not callable(function):
            raise InputError(f"{name!r} is attached to a function, got {function!r}", code="E301")
        if not name.isidentifier():
            raise InputError(f"a function is attached under a plain name, got {name!r}", code="E789")
        with self._lock:
            self._functions[name] = function
            self._models.clear()
        return self

    # asking

    def query(self, text: str) -> Answers:
        """Answer a query: ``Ancestor(Alice, x)?``, several literals ``Parent(x, y), not Old(y)?``, or a tensor ``Y[i]?``.

        A query with constants explores what they need, and nothing else, where the whole relation is not there yet.

        >>> p = Program("Edge(1, 2); Edge(2, 3); Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z)")
        >>> p.query("Path(1, x)?"), bool(p.query("Path(3, 1)?"))
        ([(2,), (3,)], False)
        >>> p.query("Path(1, x), Edge(x, y)?")
        [(2, 3)]
        """
        with self._lock:
            body = self._parsed_query(text)
            return self._ask(body)

    def relation(self, name: str) -> Relation:
        """Return a relation as a set of name tuples, which also gives it dense, as bits and sparse."""
        with self._lock:
            evaluation = self._evaluation()
            tensor = self._tensor_info(evaluation, name)
            if not tensor.boolean:
                hint = f"use program.run()[{name!r}], or program.query('{name}?')"
                raise InputError(f"{name!r} holds numbers and is no relation", hint, code="E790")
            found = evaluation.value(name)  # in the layout that it was computed in
            found = found if hasattr(found, "layout") else SparseTensor(found)
            model = evaluation.model
            return Relation(name, found, model.place_domains(name), place_heads(model, name))

    def run(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Results:
        """Return the tensors that the program derives, by name, for some inputs; each is computed when it is asked for.

        >>> Program("Y = step(W[i] X[i])").run(W=[0.2, 1.9, -0.7, 3], X=[0, 1, 1, 0])["Y"].item()
        1.0
        """
        with self._lock:
            return Results(self._evaluation(_tensors(inputs, named)), self._lock)

    def graph(self, *names: str, inputs: Mapping[str, Any] | None = None) -> EinsumGraph:
        """Return the graph that computes some tensors, or all that are derived, from the facts and what is given."""
        with self._lock:
            evaluation = self._evaluation(_tensors(inputs))
            model = evaluation.model
            found: EinsumGraph = evaluation.prepared(self._derived(evaluation, names), whole=True, start=False)[0]
            domains = {n: model.place_domains(n) for n in {**found.inputs, **dict(found.outputs)}}
            axes = {n: tuple(None if d.numbers else tuple(d.names()) for d in each) for n, each in domains.items()}
            return found.with_axis_names({n: each for n, each in axes.items() if any(each)})

    def plan(self, *names: str, inputs: Mapping[str, Any] | None = None) -> ExecutionPlan:
        """Return the plan that computes some tensors, or all that are derived: it prints as a table."""
        with self._lock:
            evaluation = self._evaluation(_tensors(inputs))
            found: ExecutionPlan = evaluation.plan(self._derived(evaluation, names))
            return found

    def names(self, relation: str, place: int = 0) -> list[Name]:
        """Return the names of the elements along a place of a relation or tensor, in order.

        >>> Program("Parent(Alice, Bob); Parent(Bob, Carol)").names("Parent", 1)
        ['Bob', 'Carol']
        """
        with self._lock:
            evaluation = self._evaluation()
            domains = evaluation.model.place_domains(self._tensor_info(evaluation, relation).name)
            expect(place, int, "a place is a whole number, counted from 0", 'write p.names("Parent", 1)')
            if not -len(domains) <= place < len(domains):
                raise InputError(
                    f"{relation} has {counted(len(domains), 'place')}, so none is number {place}", code="E784"
                )
            return domains[place].names()

    def why(self, text: str) -> Any:
        """Return why an atom holds: the lowest :class:`Proof`; of an element of a tensor of numbers, what contributes to it.

        >>> p = Program("Parent(Alice, Bob); Child(y,x) <- Parent(x,y)")
        >>> print(p.why("Child(Bob, Alice)"))
        Child(Bob, Alice)  by Child(y, x) <- Parent(x, y)  (line 1)
        └─ Parent(Alice, Bob)  fact  (line 1)
        """
        from .why import why

        with self._lock:
            body = self._parsed_query(text)
            return why(self, body, self._evaluation())

    def why_not(self, text: str) -> Any:
        """Return why an atom does not hold: the rules that come closest to it, and what each of them misses."""
        from .why import why_not

        with self._lock:
            body = self._parsed_query(text)
            return why_not(self, body, self._evaluation())

    def check(self) -> None:
        """Raise where the program has a mistake that can be found without running it."""
        with self._lock:
            self._evaluation()

    # what the program's text asks for

    @property
    def queries(self) -> list[s.Query]:
        """The queries in the program's text."""
        return [x for x in self._statements if isinstance(x, s.Query)]

    def answers(self) -> dict[str, Answers]:
        """Answer the queries in the program's text, each under its text.

        >>> Program("Parent(Alice, Bob); Parent(Alice, x)?").answers()
        {'Parent(Alice, x)?': [('Bob',)]}
        """
        with self._lock:
            return {text_of(q): self._ask(q.body) for q in self.queries}

    def write_files(self) -> list[Path]:
        """Write the files that the program's text names (``"out.csv" = Ancestor(x, y)``); return their paths."""
        written = []
        with self._lock:
            for statement in self._statements:
                if isinstance(statement, s.Write):
                    written.append(self._write(statement))
        return written

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the program with its facts, names and bound tensors: a ``.tl`` file of text, or a folder."""
        from .files import save

        expect(path, (str, os.PathLike), "a program is saved under a path", 'write p.save("family.tl")')
        with self._lock:
            save(self, Path(path))

    @property
    def statements(self) -> tuple[s.Statement, ...]:
        """The statements, without the facts."""
        return tuple(x for x in self._statements if not isinstance(x, s.Facts))

    @property
    def facts(self) -> FactStore:
        """The facts as they were added, with where they came from."""
        return self._facts

    @property
    def bound(self) -> Mapping[str, Any]:
        """The tensors that were given with :meth:`bind`."""
        return self._bound

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The Python functions that were attached."""
        return self._functions

    @property
    def executor(self) -> Executor:
        """What runs the program's graphs."""
        if self._executor is None:
            self._executor = Executor()
            self._executor.programs.kept = _plans_of(self._key)
        return self._executor

    def name_order(self) -> dict[tuple[str, int], list[Name]]:
        """Return the names of every domain in order, by the first place that has the domain; numbered domains have none."""
        with self._lock:
            return self._model()[0].order()

    def __str__(self) -> str:
        with self._lock:
            lines = [text_of(x) for x in self.statements]
            for name, blocks in self._facts.blocks.items():
                shown = [
                    row
                    for block in blocks
                    for row in block.without(np.arange(min(PRINTED, block.table.count))).table.rows()
                ]
                columns = zip(*shown[:PRINTED], strict=True) if shown and shown[0] else ()
                facts = s.Facts(name, tuple(map(tuple, columns)), (0,) * len(shown[:PRINTED]))
                lines += text_of(facts).splitlines() if shown else []
                if (more := self._facts.count(name) - PRINTED) > 0:
                    lines.append(f"# {more:,} more facts of {name}")
            lines += [f"# {name}: {TensorType.of(value)}, bound" for name, value in self._bound.items()]
            return "\n".join(lines)

    _repr_html_ = html_text

    def __repr__(self) -> str:
        rules = sum(isinstance(x, s.Rule | s.Equation) for x in self._statements)
        return f"<Program of {rules} rules and equations, {self._facts.count():,} facts>"

    def __reduce__(self) -> NoReturn:
        raise not_pickled(
            "A program", "save it, program.save(folder), and load it in the other process: tl.load(folder)"
        )

    # inside

    def _parsed_query(self, text: str) -> tuple[s.Expression, ...]:
        expect(text, str, "a query is text", 'write p.query("Ancestor(Alice, x)?")')
        asked = text if text.rstrip().endswith("?") else f"{text.rstrip().rstrip('.')}?"
        scalars = {n: v for n, v in self._scalars().items() if isinstance(v, int)}
        self._lock.ask(asked)
        found = parse(asked, QUERY, functions=tuple(self._functions), scalars=scalars).statements
        if len(found) != 1 or not isinstance(found[0], s.Query):
            hint = 'write p.query("Ancestor(Alice, x)?"); rules are added with p.add_rule'
            raise InputError(f"one query is expected, got {text[:60]!r}", hint, code="E787")
        return found[0].body

    def _ask(self, body: Sequence[s.Expression]) -> Answers:
        evaluation = self._evaluation()
        cache = self._model()[2]
        return ask(evaluation, body, cache, self.with_statement)

    def with_statement(self, rule: s.Statement) -> Evaluation:
        """Return the evaluation of the program with one more statement."""
        model = Model([*self._statements, rule], self._facts, self._given(self._bound), self._functions)
        return Evaluation(model, self.executor, self._bound, self._versions.view(()), {})

    def _scalars(self) -> Mapping[str, int | float]:
        found: dict[str, int | float] = {}
        for x in self._statements:
            if isinstance(x, s.Equation) and not x.head.places and isinstance(x.value, s.Number) and x.operator == "=":
                found[x.head.name] = x.value.value
        return found

    def _given(self, bound: Mapping[str, Any]) -> dict[str, GivenTensor]:
        return {n: _described(v) for n, v in bound.items()}

    def _model(self, bound: Mapping[str, Any] | None = None) -> tuple[Model, dict[str, Kept], dict[object, Any]]:
        """Return what the program means for tensors of some shapes, with what was computed of it."""
        self._read_files()
        given = self._given(self._bound if bound is None else bound)
        key = tuple(sorted((n, g.shape, g.boolean, str(g.dtype), g.value) for n, g in given.items()))
        if key not in self._models:
            while len(self._models) >= MODELS:
                del self._models[next(iter(self._models))]
            self._models[key] = (Model(self._statements, self._facts, given, self._functions, self.order), {}, {})
        return self._models[key]

    def _evaluation(self, inputs: Mapping[str, Any] | None = None) -> Evaluation:
        self._read_files()
        bound = {**self._bound, **(inputs or {})}
        model, kept, _ = self._model(bound)
        for name in inputs or {}:
            if name not in model.analysis.tensors:
                self._refuse_unknown(name)
        for name, value in bound.items():
            if not _mentioned(self._statements, name) and name not in self._facts.blocks:
                raise unknown_input(name, model)
            _check_kind(name, value, model)
        return Evaluation(model, self.executor, bound, self._versions.view(inputs or ()), kept)

    def _tensor_info(self, evaluation: Evaluation, name: str) -> Any:
        expect(name, str, "a relation or tensor is named by text", 'such as "Parent"')
        tensors = evaluation.model.analysis.tensors
        if name not in tensors:
            raise unknown_relation(name, list(tensors))
        return tensors[name]

    def _refuse_unknown(self, name: str) -> None:
        known = dict.fromkeys([*self._model()[0].analysis.tensors, *self._facts.blocks])
        if name not in known:
            raise unknown_relation(name, list(known))

    def _derived(self, evaluation: Evaluation, names: Sequence[str]) -> list[str]:
        for name in names:
            self._tensor_info(evaluation, name)
        return list(names) or [n for c in evaluation.model.analysis.components for n in c.names]

    # facts

    def _table(self, name: str, rows: Any, header: bool | None) -> Table:
        arity = self._facts.arity(name)
        if arity is None:
            arity = next((len(t.places) for x in self._statements for t in _atoms(x) if t.name == name), None)
        table = table_of(rows, arity, header=header, name=name)
        if table.sizes is not None:
            table = self._named(name, table)
        return table

    def _named(self, name: str, table: Table) -> Table:
        """Give the positions of an array the names that their domains have already."""
        model = self._model()[0]
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

    def _add(self, name: str, table: Table, at: SourceLocation | None) -> None:
        if not table.count and name in self._facts.blocks:
            return
        block = Block(table, at)
        self._facts.add(name, block)
        for key, (model, _, _) in list(self._models.items()):
            sizes = model.sizes
            if model.takes(name, table):
                model.add(name, block)
                if model.sizes != sizes:
                    self._versions.change(SIZES)
            else:
                del self._models[key]
        try:
            self._model()
        except TensorLogicError:
            self._facts.blocks[name].pop()  # what does not fit is not added
            if not self._facts.blocks[name]:
                del self._facts.blocks[name]
            self._models.clear()
            raise
        self._versions.change(name)

    def _drop(self, model: Model, name: str, gone: SparseTensor) -> None:
        """Take tuples out of every block that has them, and out of the models."""
        shape = model.shape(name)
        kept_blocks = []
        for block in self._facts.blocks[name]:
            if not shape:
                continue
            kept = ~gone.holds(model.codes(name, block, grow=False))
            if kept.all():
                kept_blocks.append(block)
            elif kept.any():
                kept_blocks.append(block.without(kept))
        self._facts.blocks[name] = kept_blocks or [Block(_empty_like(self._facts.blocks[name][0].table))]
        for other, _, _ in self._models.values():
            other.set_facts(name, other.facts(name) - gone if other is model else _coded(other, name, self._facts))
        self._versions.change(name)

    def _read_files(self) -> None:
        """Read the files that statements name and that were not read yet."""
        while self._unread:
            self._read(self._unread[0])
            del self._unread[0]

    def _read(self, statement: s.Read) -> None:
        """Read the file that a statement names; a path is relative to the program's file."""
        head = statement.head
        path = Path(statement.path)
        if self._file is not None and not path.is_absolute():
            path = Path(self._file).parent / path
        try:
            if head.boolean:
                heads = [p.index.name for p in head.places if isinstance(p.index, s.Variable)]
                table = table_of(path, len(head.places) or None, heads=heads, name=head.name)
                self._facts.add(head.name, Block(table, SourceLocation(str(path))))
                self._versions.change(head.name)
                return
            found = read_tensor(path, len(head.places), head.name)
            self._versions.change(head.name)
            if not isinstance(found, NamedNumbers):
                self._bound[head.name] = found
                return
            at = self._statements.index(statement)
            self._statements[at : at + 1] = _elements(head, found, SourceLocation(str(path)))
            self._models.clear()
        except TensorLogicError as error:
            raise error.at(statement.at) from None

    def _write(self, statement: s.Write) -> Path:
        path = Path(statement.path)
        if self._file is not None and not path.is_absolute():
            path = Path(self._file).parent / path
        try:
            return self._write_to(path, statement.value)
        except TensorLogicError as error:
            raise error.at(statement.at) from None

    def _write_to(self, path: Path, value: s.Tensor) -> Path:
        kind, name = written_kind(path), value.name
        answers = self._ask((value,))
        if kind in (".npy", ".npz", ".safetensors"):
            boolean = self._evaluation().model.analysis.tensors[name].boolean
            write_array(path, name, self.relation(name).dense() if boolean else answers.array())
        else:
            write_table(path, answers.columns())
        return path


def load(path: str | os.PathLike[str], *, executor: Executor | None = None) -> Program:
    """Read a program from a file: ``.tl`` text, Prolog facts and rules (``.pl``, ``.nl``), or a folder that a program was saved in.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Program("Parent(Alice, Bob)").save(f"{folder}/family.tl")
    ...     load(f"{folder}/family.tl").query("Parent(Alice, x)?")
    [('Bob',)]
    """
    from .files import load as load_files

    expect(path, (str, os.PathLike), "a program is loaded from a path", 'write tl.load("family.tl")')
    return load_files(Path(path), executor)


def unknown_input(name: str, model: Model) -> InputError:
    """Return the error for a tensor that is given and that no statement mentions."""
    known = [n for n in model.analysis.tensors if n != name]
    return InputError(f"the program has no tensor {name!r} to give", *nearest(name, known), code="E785")


def _atoms(statement: s.Statement) -> Iterable[s.Tensor]:
    if isinstance(statement, s.Facts):
        places = tuple(s.Place(s.Variable("x")) for _ in statement.columns)
        return [s.Tensor(statement.name, places, True)]
    return [t for t in s.walk(statement) if isinstance(t, s.Tensor) and (t.places or t.boolean)]


def _mentioned(statements: Iterable[s.Statement], name: str) -> bool:
    return any(
        getattr(x, "name", None) == name or any(isinstance(t, s.Tensor | s.Constant) and name in (getattr(t, "name", None), getattr(t, "value", None)) for t in s.walk(x))
        for x in statements
    )  # fmt: skip


def _holds_numbers(statements: Iterable[s.Statement], name: str) -> bool:
    """Tell whether a tensor is written with brackets, or defined as a scalar."""
    heads = [x.head for x in statements if isinstance(x, s.Equation)]
    return any(t.name == name and not t.boolean for t in [*heads, *(t for x in statements for t in _atoms(x))])


def _elements(head: s.Tensor, found: NamedNumbers, at: SourceLocation) -> list[s.Equation]:
    """Return the equations of a tensor's elements that a file gives by name."""
    made = []
    for row, value in zip(found.rows, found.values, strict=True):
        places = tuple(s.Place(s.Constant(name, quoted=isinstance(name, str))) for name in row)
        made.append(s.Equation(s.Tensor(head.name, places, at=at), "=", s.Number(value), at=at))
    return made


def _check_kind(name: str, value: Any, model: Model) -> None:
    """Refuse numbers for a relation."""
    tensor = model.analysis.tensors.get(name)
    if tensor is not None and tensor.boolean and value.dtype != bool:
        message = f"{name!r} stands in parentheses, so it is true or false, but it is given as {value.dtype}"
        hints = f"give truth values: {name}={name.lower()} > 0.5", f"write {name}[...] to calculate with the numbers"
        raise InputError(message, *hints, code="E831", location=tensor.at)


def _checked_path(statement: s.Write) -> None:
    try:
        written_kind(statement.path)
    except FormatError as error:
        raise error.at(statement.at) from None


def _tensors(given: Mapping[str, Any] | None, named: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the tensors that a call was given, in a mapping and as keywords."""
    if given is not None:
        expect(given, Mapping, "tensors are given in a mapping, by name", 'write {"W": array}, or W=array')
    return {name: _tensor(name, value) for name, value in {**(given or {}), **(named or {})}.items()}


def _tensor(name: str, value: Any) -> Any:
    if isinstance(value, SparseTensor) or hasattr(value, "words"):
        return value
    if hasattr(value, "tocoo"):
        return SparseTensor(value) if value.dtype == bool else plain_array(value.toarray())
    if isinstance(value, set | frozenset | Mapping):
        kind = type(value).__name__
        hint = "give a list or an array, whose order says which element stands where"
        raise InputError(f"the tensor {name!r} cannot be a {kind}, which has no order", hint, code="E779")
    array = plain_array(value)
    if array.dtype.kind not in "biuf":
        kind = "text" if array.dtype.kind in "USOT" else str(array.dtype)
        hint = "facts by name are added with program.add(name, rows)"
        raise InputError(f"the tensor {name!r} needs numbers or truth values, not {kind}", hint, code="E779")
    return array


def _unchanging(value: Any) -> Any:
    """Return a tensor that nobody can write to: itself where that is so already, else a copy."""
    if not isinstance(value, np.ndarray):
        return value
    owner: Any = value
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if not isinstance(owner, np.ndarray):
        return value
    copy = value.copy()
    copy.flags.writeable = False
    return copy


def _described(value: Any) -> GivenTensor:
    return GivenTensor.of(value) if isinstance(value, np.ndarray) else GivenTensor(tuple(value.shape), True, "bool")


def _file_place(rows: Any) -> SourceLocation | None:
    return SourceLocation(str(rows)) if isinstance(rows, str | os.PathLike) else None


def _known_tuples(model: Model, name: str, table: Table, shape: tuple[int, ...]) -> SparseTensor:
    """Return the tuples of a table all of whose names are known."""
    if not shape:
        return SparseTensor(table.count > 0)
    columns, kept = [], np.ones(table.count, bool)
    for column, domain in zip(table.columns, model.place_domains(name), strict=True):
        if column.names is not None:
            found = np.array([-1 if (c := domain.code(n)) is None else c for n in column.names], np.int64)
            codes = found[column.codes] if len(found) else column.codes
        else:
            unique, inverse = np.unique(column.codes, return_inverse=True)
            codes = np.array([-1 if (c := domain.code(n)) is None else c for n in unique.tolist()], np.int64)[inverse]
        kept &= codes >= 0
        columns.append(codes)
    return SparseTensor.of_columns([c[kept] for c in columns], shape)


def _coded(model: Model, name: str, facts: FactStore) -> SparseTensor:
    shape = model.shape(name)
    found = empty(shape)
    for block in facts.blocks[name]:
        found = found | model.tensor(model.codes(name, block, grow=False), shape, block.table.count)
    return found


def _empty_like(table: Table) -> Table:
    return Table(tuple(Column(c.codes[:0], c.names) for c in table.columns), 0, table.sizes)
