"""Random programs on every road: right beside a plain evaluator, results that are the caller's, the same answer again."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tensorlogic as tl

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "programs")]
import datalog  # noqa: E402 - modules beside the tests of programs
from checking import TAKEN, Roads, Wrong, quiet, same_bits  # noqa: E402
from engines import executor  # noqa: E402
from oracles import Relations, by_hand  # noqa: E402


class Drawn(NamedTuple):
    """Chance for the maker of programs."""

    below: Callable[[int], int]


def program_case(below: Callable[[int], int]) -> datalog.Program:
    """Draw a program of facts, rules, aggregates and queries."""
    return datalog.Maker(Drawn(below)).program()


def programs(case: datalog.Program, roads: Roads) -> None:
    """A program on three engines, saved as text and in a folder and loaded, grown and shrunk, after a fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.LogicWarning)
        known = by_hand(case)
        for road, rarer, make in ROADS:
            if roads.takes(road, rarer):
                TAKEN[""] += 1
                with ours_only(road), tempfile.TemporaryDirectory() as folder:
                    check(road, case, known, make(case, Path(folder)))


class ours_only:  # noqa: N801 - a context manager
    """Turn an exception that is not ours, and one of ours where none is due, into what is wrong."""

    def __init__(self, road: str) -> None:
        self.road = road

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, Wrong):
            raise Wrong(f"{self.road}: raised {type(error).__name__}: {error}") from error


def _plain(engine: str) -> Callable[[datalog.Program, Path], tl.Program]:
    return lambda case, _: tl.Program(datalog.text(case), executor=executor(engine))


def _threads(case: datalog.Program, _: Path) -> tl.Program:
    return tl.Program(datalog.text(case), executor=tl.Executor(threads=2))


def _as_text(case: datalog.Program, folder: Path) -> tl.Program:
    tl.Program(datalog.text(case)).save(folder / "p.tl")
    return tl.load(folder / "p.tl")


def _in_a_folder(case: datalog.Program, folder: Path) -> tl.Program:
    first = tl.Program(datalog.text(case))
    first.save(folder / "p")
    second = tl.load(folder / "p")
    for name in case.derived:
        one, other = first.relation(name).dense(), second.relation(name).dense()
        if one.shape != other.shape or not same_bits(one, other):
            raise Wrong(f"a folder: {name} has other places than before it was saved")
    return second


def _grown(case: datalog.Program, _: Path) -> tl.Program:
    """Half of the facts at first, asked, then the rest; and some that are taken back."""
    half = {name: rows[: (len(rows) + 1) // 2] for name, rows in case.facts.items()}
    made = tl.Program(datalog.text(datalog.replace(case, facts=half)))
    for name in case.derived:
        len(made.relation(name))
    for name, rows in case.facts.items():
        extra = [row for row in case.later.get(name, ()) if row not in rows]
        made.add(name, [*rows[(len(rows) + 1) // 2 :], *extra])
        if extra:
            len(made.relation(name))
            made.retract(name, extra)
    return made


def _after_a_fork(case: datalog.Program, _: Path) -> tl.Program:
    made = tl.Program(datalog.text(case))
    for name in case.derived[:1]:
        len(made.relation(name))
    if "jax" in sys.modules:  # whose threads do not survive a fork
        return made
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork, since Python 3.12
        child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as out:
            try:
                out.write(json.dumps({n: sorted(map(repr, made.relation(n))) for n in case.derived}))
            except BaseException as error:
                out.write(json.dumps({"error": repr(error)}))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        found = json.loads(told.read())
    os.waitpid(child, 0)
    if found != {n: sorted(map(repr, made.relation(n))) for n in case.derived}:
        raise Wrong(f"a fork: the child says {found}")
    return made


ROADS: tuple[tuple[str, float, Callable[[datalog.Program, Path], tl.Program]], ...] = (
    ("plain", 3.0, _plain("numpy")),
    ("threads", 1.0, _threads),
    ("as text", 1.0, _as_text),
    ("in a folder", 1.0, _in_a_folder),
    ("grown", 1.0, _grown),
    ("after a fork", 0.3, _after_a_fork),
    ("fast", 0.05, _plain("fast")),
)


def check(road: str, case: datalog.Program, known: Relations, program: tl.Program) -> None:
    """Ask for everything twice, writing over all that was returned in between."""
    before: dict[str, Any] = {}
    for again in ("", ", asked again after its results were written over"):
        for name in case.derived:
            if (got := {tuple(row) for row in program.relation(name)}) != known[name]:
                raise Wrong(f"{road}{again}: {name} is {got}, not {known[name]}")
            dense = program.run()[name]
            if int(dense.sum()) != len(known[name]):
                raise Wrong(f"{road}{again}: the array of {name} has {int(dense.sum())} of {len(known[name])} tuples")
        numbers = {a.name: program.run()[a.name] for a in case.aggregates}
        if again and any(not same_bits(v, before[n]) for n, v in numbers.items()):
            raise Wrong(f"{road}{again}: {numbers}, not {before}")
        before = {n: v.copy() for n, v in numbers.items()}
        spoil(program, case)


def spoil(program: tl.Program, case: datalog.Program) -> None:
    """Write over every array and list that a program returns."""
    results = program.run()
    for name in case.derived:
        relation = program.relation(name)
        for array in (results[name], relation.dense(), np.asarray(relation.bits()), relation.answers.array()):
            _overwrite(f"{name}", array)
        relation.answers.rows().clear()
        for column in relation.answers.columns().values():
            column.clear()
        for place in range(relation.arity):
            relation.names(place).clear()
    for aggregate in case.aggregates:
        _overwrite(aggregate.name, results[aggregate.name])
        places = ", ".join(datalog.VARIABLES[: len(aggregate.group)])
        answers = program.query(f"{aggregate.name}[{places}]?" if places else f"{aggregate.name}?")
        _overwrite(f"the answers of {aggregate.name}", answers.array())
        answers.rows().clear()


def _overwrite(name: str, array: Any) -> None:
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        raise Wrong(f"{name} cannot be written to: {array!r}")
    array[...] = "spoilt" if array.dtype.kind in "UO" else 1 if array.dtype.kind == "b" else 77


class Equations(NamedTuple):
    """Tensor equations with what they are given, and the same in NumPy."""

    text: str
    given: dict[str, Any]
    wanted: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.text}\n{self.given}"


# an equation that defines a tensor of its own, and the same of arrays by name
STATEMENTS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("A", "A[i,j] = W[i,j]", lambda t: t["W"]),
    ("B", "B[j,i] = W[i,j]", lambda t: t["W"].T),
    ("C", "C[i] = W[i,j] X[j]", lambda t: t["W"] @ t["X"]),
    ("D", "D[i] = X[i]", lambda t: t["X"]),
    ("E", "E = X[i] X[i]", lambda t: t["X"] @ t["X"]),
    ("F", "F[i,k] = W[i,j] W[j,k]", lambda t: t["W"] @ t["W"]),
    ("G", "G[i] = relu(X[i])", lambda t: np.maximum(t["X"], 0)),
    ("H", "H[i] = X[i] + V[i]", lambda t: t["X"] + t["V"]),
    ("I", "I[i] = X[i] V[i]", lambda t: t["X"] * t["V"]),
    ("J", "J[i] = W[i,j]", lambda t: t["W"].sum(1)),
)
DTYPES = ("float64", "float32", "int64")


def equations_case(below: Callable[[int], int]) -> Equations:
    """Draw some equations over square matrices and vectors, where one may read what another defines."""
    size, dtype = 1 + below(4), DTYPES[below(len(DTYPES))]
    given = {"W": (size, size), "X": (size,), "V": (size,)}
    values = {
        n: np.array([below(9) - 4 for _ in range(int(np.prod(shape)))], dtype).reshape(shape)
        for n, shape in given.items()
    }
    known: dict[str, Any] = dict(values)
    lines, vectors = [], ["X", "V"]
    wanted = {}
    for _ in range(1 + below(5)):
        name, text, compute = STATEMENTS[below(len(STATEMENTS))]
        if name in wanted:
            continue
        vector = vectors[below(len(vectors))]  # may be one that was defined before
        lines.append(text.replace("X[", f"{vector}["))
        wanted[name] = compute({**known, "X": known[vector]})
        known[name] = wanted[name]
        if np.ndim(wanted[name]) == 1:
            vectors.append(name)
    used = {n for n in given if any(f"{n}[" in line for line in lines)}
    return Equations("\n".join(lines), {n: v for n, v in values.items() if n in used}, wanted)


def equations(case: Equations, roads: Roads) -> None:
    """Tensors given to a run, bound, and saved: nothing that comes back is what was given, or what is kept."""
    for road, make in (("run", _given), ("bound", _bound), ("saved", _saved)):
        if not roads.takes(road):
            continue
        TAKEN[""] += 1
        given = {n: np.array(v) for n, v in case.given.items()}
        with ours_only(road), quiet(), tempfile.TemporaryDirectory() as folder:
            ask = make(case.text, given, Path(folder))
            for again in ("", ", asked again after its results were written over"):
                results = ask()
                for name, want in case.wanted.items():
                    if not np.array_equal(results[name], want):
                        raise Wrong(f"{road}{again}: {name} is\n{results[name]!r}\nnot\n{want!r}")
                for name in [*case.wanted, *given]:
                    for other, array in given.items():
                        if np.shares_memory(results[name], array):
                            raise Wrong(f"{road}{again}: {name} stands in the memory of {other}")
                for name in [*case.wanted, *given]:
                    _overwrite(name, results[name])
                if any(not same_bits(v, case.given[n]) for n, v in given.items()):
                    raise Wrong(f"{road}{again}: what was given was written over")
            if road != "run":
                for array in given.values():
                    array[...] = 55  # what was bound is a copy
                if any(not np.array_equal(ask()[n], want) for n, want in case.wanted.items()):
                    raise Wrong(f"{road}: writing to an array after it was bound changes what follows")


def _given(text: str, given: dict[str, Any], _: Path) -> Callable[[], Any]:
    program = tl.Program(text)
    return lambda: program.run(given)


def _bound(text: str, given: dict[str, Any], _: Path) -> Callable[[], Any]:
    program = tl.Program(text).bind(given)
    return program.run


def _saved(text: str, given: dict[str, Any], folder: Path) -> Callable[[], Any]:
    tl.Program(text).bind(given).save(folder / "p")
    return tl.load(folder / "p").run


def program_files(case: datalog.Program) -> Iterator[tuple[str, bytes]]:
    """Save a program in a folder, and return its files."""
    with tempfile.TemporaryDirectory() as folder:
        tl.Program(datalog.text(case)).bind().save(Path(folder) / "p")
        for path in sorted((Path(folder) / "p").iterdir()):
            yield path.name, path.read_bytes()
