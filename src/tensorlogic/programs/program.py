"""A program: facts, rules and equations, asked by name and composed from text and from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..backends.sparse import SparseTensor
from ..diagnostics import value_text
from ..errors import InputError, TensorLogicError, expect
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..lang import syntax as s
from ..lang.domains import Name
from ..lang.format import text_of
from ..plan.build import ExecutionPlan
from ..runtime.executor import Executor
from ..store import Lock, of_one_process
from ..tables import html_text
from .answers import Answers, Relation, names_along
from .ask import ask, place_heads
from .evaluate import Evaluation
from .facts import FactStore
from .file_statements import path_beside, write_statement
from .inputs import read_tensors, unchanging
from .results import Results
from .sources import Sources, read_query, read_statements, shared_plans
from .state import ProgramState, derived_names, tensor_info

PRINTED = 20  # facts of a relation that are printed


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
            message = f"a program is text, got the name of a file: {text!r}"
            raise InputError(message, f"write tl.load({text!r})", code="E301")
        if executor is not None:
            expect(executor, Executor, "a program runs on an executor", "write executor=tl.Executor()")
        self._lock, self._sources = Lock(), Sources()
        self._executor = executor
        self.state = ProgramState(None if file is None else str(file))
        self._text = text
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
        _expect_relation(name, 'write p.add("Parent", rows)')
        with self._lock, self._sources:
            if header is not None:
                expect(header, bool, "header= is True or False", "write header=True")
            self.state.add_facts(name, rows, header)

    def retract(self, name: str, rows: Any) -> int:
        """Take facts back; return how many there were. What rules derive cannot be taken back.

        >>> p = Program("Parent(Alice, Bob); Parent(Bob, Carol)")
        >>> p.retract("Parent", [("Alice", "Bob"), ("Alice", "Carol")])
        1
        """
        _expect_relation(name, 'write p.retract("Parent", rows)')
        with self._lock, self._sources:
            return self.state.retract_facts(name, rows)

    def add_rule(self, text: str) -> None:
        """Add statements, as text: rules, equations, facts, queries, files to read and write.

        >>> p = Program("Parent(Alice, Bob)")
        >>> p.add_rule("Child(y,x) <- Parent(x,y)")
        >>> p.query("Child(x, Alice)?")
        [('Bob',)]
        """
        expect(text, str, "rules are text", 'write p.add_rule("Child(y,x) <- Parent(x,y)")')
        with self._lock, self._sources:
            state = self.state
            file = self._sources.add(text, state.file)
            state.add_statements(read_statements(text, file, tuple(state.functions), state.whole_scalars()))

    rule = add_rule

    def add_statements(self, statements: Iterable[s.Statement]) -> None:
        """Add statements that are parsed already."""
        with self._lock, self._sources:
            self.state.add_statements(statements)

    def bind(self, tensors: Mapping[str, Any] | None = None, /, **named: Any) -> Program:
        """Give tensors from Python, for all that is asked from now on; return the program.

        They are copied, so that writing to an array later changes nothing here; one that nobody can write to is taken as it is.

        >>> p = Program("Y[i] = W[i,j] X[j]")
        >>> p.bind(W=np.eye(2), X=np.array([3.0, 4.0])).run()["Y"].tolist()
        [3.0, 4.0]
        """
        with self._lock, self._sources:
            given = read_tensors(tensors, named)
            if self.state.statements:  # of a program without any, rules may follow
                for name in given:
                    self.state.check_mentioned(name)
            for name, value in given.items():
                self.state.bound[name] = unchanging(value)
                self.state.versions.change(name)
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
            raise InputError(f"{value_text(name)} is attached to a function, got {value_text(function)}", code="E301")
        if not name.isidentifier():
            raise InputError(f"a function is attached under a plain name, got {value_text(name)}", code="E789")
        with self._lock, self._sources:
            self.state.attach(name, function)
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
        with self._lock, self._sources:
            return self.ask(self._query(text))

    def relation(self, name: str) -> Relation:
        """Return a relation as a set of name tuples, which also gives it dense, as bits and sparse."""
        with self._lock, self._sources:
            evaluation = self._evaluation()
            tensor = tensor_info(evaluation, name)
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
        with self._lock, self._sources:
            return Results(self._evaluation(read_tensors(inputs, named)), self._lock, self._sources)

    def graph(self, *names: str, inputs: Mapping[str, Any] | None = None) -> EinsumGraph:
        """Return the graph that computes some tensors, or all that are derived, from the facts and what is given."""
        with self._lock, self._sources:
            evaluation = self._evaluation(read_tensors(inputs))
            model = evaluation.model
            found: EinsumGraph = evaluation.prepared(derived_names(evaluation, names), whole=True, start=False)[0]
            domains = {n: model.place_domains(n) for n in {**found.inputs, **dict(found.outputs)}}
            axes = {n: tuple(None if d.numbers else tuple(d.names()) for d in each) for n, each in domains.items()}
            return found.with_axis_names({n: each for n, each in axes.items() if any(each)})

    def inputs(self, *names: str) -> dict[str, Any]:
        """Return what the program itself gives to the inputs of :meth:`graph`: its facts, as arrays, and tensors that are bound.

        >>> Program("Parent(Alice, Bob); Child(y,x) <- Parent(x,y)").inputs()["Parent"].tolist()
        [[True]]
        """
        with self._lock, self._sources:
            evaluation = self._evaluation()
            given = evaluation.prepared(derived_names(evaluation, names), whole=True, start=False)[1]
            return {name: np.asarray(value) for name, value in given.items()}

    def plan(self, *names: str, inputs: Mapping[str, Any] | None = None) -> ExecutionPlan:
        """Return the plan that computes some tensors, or all that are derived: it prints as a table."""
        with self._lock, self._sources:
            evaluation = self._evaluation(read_tensors(inputs))
            found: ExecutionPlan = evaluation.plan(derived_names(evaluation, names))
            return found

    def names(self, relation: str, place: int = 0) -> list[Name]:
        """Return the names of the elements along a place of a relation or tensor, in order.

        >>> Program("Parent(Alice, Bob); Parent(Bob, Carol)").names("Parent", 1)
        ['Bob', 'Carol']
        """
        with self._lock, self._sources:
            evaluation = self._evaluation()
            domains = evaluation.model.place_domains(tensor_info(evaluation, relation).name)
            expect(place, int, "a place is a whole number, counted from 0", 'write p.names("Parent", 1)')
            return names_along(relation, domains, place)

    def why(self, text: str) -> Any:
        """Return why an atom holds: the lowest :class:`Proof`; of an element of a tensor of numbers, what contributes to it.

        >>> p = Program("Parent(Alice, Bob); Child(y,x) <- Parent(x,y)")
        >>> print(p.why("Child(Bob, Alice)"))
        Child(Bob, Alice)  by Child(y, x) <- Parent(x, y)  (line 1)
        └─ Parent(Alice, Bob)  fact  (line 1)
        """
        from .why import why

        with self._lock, self._sources:
            body = self._query(text)
            return why(self, body, self._evaluation())

    def why_not(self, text: str) -> Any:
        """Return why an atom does not hold: the rules that come closest to it, and what each of them misses."""
        from .why import why_not

        with self._lock, self._sources:
            body = self._query(text)
            return why_not(self, body, self._evaluation())

    def check(self) -> None:
        """Raise where the program has a mistake that can be found without running it."""
        with self._lock, self._sources:
            self._evaluation()

    def doubts(self, query: str | None = None) -> list[TensorLogicError]:
        """Return what is probably a mistake, though it runs: relations that nothing fills, and names that no fact has.

        With a query, its names are looked at too.

        >>> Program("Parent(Alice, Bob)").doubts("Parent(Alicia, x)?")[0].diagnostic.suggestions
        ("did you mean 'Alice'?",)
        """
        from .doubts import doubts

        with self._lock, self._sources:
            asked = () if query is None else (s.Query(self._query(query)),)
            found = doubts(self._evaluation(), (*self.statements, *asked), self.facts)
            return [self._sources.show_line(doubt) for doubt in found]

    # what the program's text asks for

    @property
    def queries(self) -> list[s.Query]:
        """The queries in the program's text."""
        return [x for x in self.state.statements if isinstance(x, s.Query)]

    def answers(self) -> dict[str, Answers]:
        """Answer the queries in the program's text, each under its text.

        >>> Program("Parent(Alice, Bob); Parent(Alice, x)?").answers()
        {'Parent(Alice, x)?': [('Bob',)]}
        """
        with self._lock, self._sources:
            return {text_of(q): self.ask(q.body) for q in self.queries}

    def write_files(self) -> list[Path]:
        """Write the files that the program's text names (``"out.csv" = Ancestor(x, y)``); return their paths."""
        written = []
        with self._lock, self._sources:
            for statement in self.statements:
                if isinstance(statement, s.Write):
                    written.append(path_beside(self.state.file, statement.path))
                    write_statement(self, statement, written[-1])
        return written

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the program with its facts, names and bound tensors: a ``.tl`` file of text, or a folder."""
        from .files import save

        expect(path, (str, os.PathLike), "a program is saved under a path", 'write p.save("family.tl")')
        with self._lock, self._sources:
            save(self, Path(path))

    @property
    def statements(self) -> tuple[s.Statement, ...]:
        """The statements, without the facts."""
        return tuple(x for x in self.state.statements if not isinstance(x, s.Facts))

    @property
    def facts(self) -> FactStore:
        """The facts as they were added, with where they came from."""
        return self.state.facts

    @property
    def bound(self) -> Mapping[str, Any]:
        """The tensors that were given with :meth:`bind`."""
        return self.state.bound

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The Python functions that were attached."""
        return self.state.functions

    @property
    def executor(self) -> Executor:
        """What runs the program's graphs."""
        if self._executor is None:
            self._executor = Executor()
            self._executor.programs.store = shared_plans(self._text, self.state.file)
        return self._executor

    def name_order(self) -> dict[tuple[str, int], list[Name]]:
        """Return the names of every domain in order, by the first place that has the domain; numbered domains have none."""
        with self._lock, self._sources:
            return self.state.known().model.order()

    def __str__(self) -> str:
        with self._lock, self._sources:
            lines = [text_of(x) for x in self.statements]
            for name, blocks in self.state.facts.blocks.items():
                first = [block.rows(np.arange(min(PRINTED, block.table.count))).table for block in blocks]
                shown = [row for table in first for row in table.rows()]
                columns = zip(*shown[:PRINTED], strict=True) if shown and shown[0] else ()
                facts = s.Facts(name, tuple(map(tuple, columns)), (0,) * len(shown[:PRINTED]))
                lines += text_of(facts).splitlines() if shown else []
                if (more := self.state.facts.count(name) - PRINTED) > 0:
                    lines.append(f"# {more:,} more facts of {name}")
            lines += [f"# {name}: {TensorType.of(value)}, bound" for name, value in self.state.bound.items()]
            return "\n".join(lines)

    _repr_html_ = html_text

    def __repr__(self) -> str:
        rules = sum(isinstance(x, s.Rule | s.Equation) for x in self.state.statements)
        return f"<Program of {rules} rules and equations, {self.state.facts.count():,} facts>"

    def __reduce__(self) -> NoReturn:
        raise of_one_process(
            "a program", "save it, program.save(folder), and load it in the other process: tl.load(folder)"
        )

    def ask(self, body: Sequence[s.Expression]) -> Answers:
        """Answer a query that is parsed already."""
        if isinstance(body, str):
            raise InputError(
                "ask takes a query that is parsed already, got text", f"write p.query({body!r})", code="E301"
            )
        with self._lock, self._sources:
            state = self.state
            return ask(self._evaluation(), body, state.known().queries, self.with_statement)

    def with_statement(self, rule: s.Statement) -> Evaluation:
        """Return the evaluation of the program with one more statement."""
        return self.state.with_statement(self.executor, rule)

    def _query(self, text: str) -> tuple[s.Expression, ...]:
        expect(text, str, "a query is text", 'write p.query("Ancestor(Alice, x)?")')
        return read_query(text, self._sources, tuple(self.state.functions), self.state.whole_scalars())

    def _evaluation(self, inputs: Mapping[str, Any] | None = None) -> Evaluation:
        return self.state.evaluation(self.executor, inputs)


def _expect_relation(name: object, hint: str) -> None:
    """Refuse what is no name of a relation."""
    expect(name, str, "a relation is named by text", hint)
    if not name:
        raise InputError("the name of a relation is empty", hint, code="E301")


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
