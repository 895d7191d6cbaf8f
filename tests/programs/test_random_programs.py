"""Random Datalog programs: every relation, question and aggregate as clingo, DuckDB and a plain evaluator have it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from datalog import POOLS, VARIABLES, Aggregate, Atom, Program, Var, atom_text, program_of_seed, programs, shrink, text
from engines import program as program_on
from hypothesis import HealthCheck, given, settings
from oracles import Relations, aggregated, answers, by_clingo, by_duckdb, by_hand, fits_duckdb

import tensorlogic as tl

ASPECTS = (
    "on demand",
    "compared",
    "later",
)  # asked before anything is computed; aggregates inside rules; facts that change


def wrong(program: Program, engine: str = "numpy", aspects: Collection[str] = ASPECTS) -> str | None:
    """Return what the package gets wrong of a program; None where everything agrees."""
    known = by_hand(program)
    try:
        return _wrong(program, known, engine, aspects)
    except (tl.TensorLogicError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}, no error of ours: {error}"


def _wrong(program: Program, known: Relations, engine: str, aspects: Collection[str]) -> str | None:
    for query in program.queries[-1:] if "on demand" in aspects else ():
        found = list(program_on(text(program), engine).query(f"{atom_text(query)}?"))
        if problem := different(atom_text(query), found, answers(query, known)):
            return f"on demand, {problem}"
    ours = program_on(text(program), engine)
    for name in program.derived:
        if problem := different(name, list(ours.relation(name)), known[name]):
            return problem
    for query in program.queries:
        if problem := different(atom_text(query), list(ours.query(f"{atom_text(query)}?")), answers(query, known)):
            return problem
    for aggregate in program.aggregates:
        places = ", ".join(VARIABLES[: len(aggregate.group)])
        found = list(ours.query(f"{aggregate.name}[{places}]?" if places else f"{aggregate.name}?"))
        if problem := different_numbers(aggregate.name, found, aggregated(aggregate, known)):
            return problem
        if "compared" in aspects and (problem := _compared(aggregate, program, known, engine)):
            return problem
    return _later(program, known, ours) if "later" in aspects else None


def _compared(aggregate: Aggregate, program: Program, known: Relations, engine: str) -> str | None:
    """Let one more rule compare an aggregate, so that it stands in the middle of a program."""
    places = VARIABLES[: len(program.sorts[aggregate.relation])]
    kept = ", ".join(places[k] for k in aggregate.group)
    atom, element = f"({', '.join(places)})", f"{aggregate.name}[{kept}]" if kept else aggregate.name
    rule = f"Top{atom} <- {aggregate.relation}{atom}, {element} >= 2\n"
    values = aggregated(aggregate, known)
    expected = {r for r in known[aggregate.relation] if values[tuple(r[k] for k in aggregate.group)] >= 2}
    return different(rule, list(program_on(text(program) + rule, engine).query(f"Top{atom}?")), expected)


def _later(program: Program, known: Relations, ours: Any) -> str | None:
    """Add facts, then take them back: everything follows."""
    if not any(program.later.values()):
        return None
    more = {name: tuple(dict.fromkeys((*rows, *program.later.get(name, ())))) for name, rows in program.facts.items()}
    new = {name: [r for r in rows if r not in program.facts[name]] for name, rows in program.later.items()}
    after = by_hand(replace(program, facts=more))
    for name, rows in new.items():
        ours.add(name, rows)
    for name in program.derived:
        if problem := different(name, list(ours.relation(name)), after[name]):
            return f"after adding {new}: {problem}"
    for name, rows in new.items():
        ours.retract(name, rows)
    for name in program.derived:
        if problem := different(name, list(ours.relation(name)), known[name]):
            return f"after adding {new} and taking it back: {problem}"
    return None


def different(what: str, found: list[Any], expected: set[Any]) -> str | None:
    kinds = {(*row, *map(type, row)) for row in found}
    if len(found) != len(kinds):
        return f"{what} has a tuple twice: {found}"
    if kinds == {(*row, *map(type, row)) for row in expected}:
        return None
    return f"{what} is {sorted(found, key=repr)}, not {sorted(expected, key=repr)}"


def different_numbers(name: str, rows: list[Any], expected: dict[Any, float]) -> str | None:
    """Compare an aggregate: groups with tuples by their names, and zero elsewhere."""
    found = {tuple(row[:-1]): float(row[-1]) for row in rows if row[-1]}
    wanted = {group: float(value) for group, value in expected.items() if value}
    return None if found == wanted else f"{name} is {found}, not {wanted}"


def check(program: Program, engine: str = "numpy", aspects: Collection[str] = ASPECTS) -> None:
    """Fail with the smallest program that is still wrong."""
    if wrong(program, engine, aspects) is None:
        return
    small = shrink(program, lambda p: wrong(p, engine, aspects) is not None)
    pytest.fail(f"this program is wrong on {engine}:\n{small!r}\n{wrong(small, engine, aspects)}")


BATCH = 20


@pytest.mark.parametrize("batch", range(12))
def test_programs(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(program_of_seed(seed))


@pytest.mark.parametrize(("engine", "count"), [("reference", 3), ("fast", 5)])  # one is slow, the other compiles
def test_programs_on_other_engines(engine: str, count: int) -> None:
    for seed in range(10_000, 10_000 + count):
        check(program_of_seed(seed), engine)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(programs())
def test_programs_that_shrink(program: Program) -> None:
    assert wrong(program) is None, wrong(program)


def cells(program: Program) -> int:
    """Return how many combinations of elements the largest rule of a program has, or more."""
    size = max(map(len, POOLS.values())) + 4  # sums of numbers are elements too
    atoms = [[b for b in r.body if isinstance(b, Atom)] for r in program.all_rules()]
    widths = [len({t for b in body for t in b.terms if isinstance(t, Var)}) for body in atoms]
    return int(size ** max(*widths, *map(len, program.sorts.values())))


# the oracles agree with each other


@pytest.mark.parametrize("batch", range(4))
def test_clingo_agrees_with_the_plain_evaluator(batch: int) -> None:
    pytest.importorskip("clingo")
    for seed in range(batch * 100, (batch + 1) * 100):
        program = program_of_seed(seed)
        by_rounds, by_grounding = by_hand(program), by_clingo(program)
        for name in program.derived:
            assert by_rounds[name] == by_grounding[name], (name, program)


def test_duckdb_agrees_with_the_plain_evaluator() -> None:
    pytest.importorskip("duckdb")
    compared = 0
    for seed in range(120):
        program = program_of_seed(seed, recursive=seed % 3 > 0)
        if not fits_duckdb(program):
            continue
        compared += 1
        _check_duckdb(program, by_hand(program))
    assert compared > 40


def _check_duckdb(program: Program, known: Relations) -> None:
    tables, aggregates = by_duckdb(program)
    for name in program.derived:
        assert known[name] == tables[name], (name, program)
    for aggregate in program.aggregates:
        assert aggregated(aggregate, known) == aggregates[aggregate.name], (aggregate, program)


def test_programs_are_of_every_kind() -> None:
    """Recursion, mutual and not linear, negation, comparisons, constants, repeated variables, arities 0 to 4."""
    words = "\n".join(repr(program_of_seed(seed)) for seed in range(300))
    for word in (
        "not ",
        " < ",
        " != ",
        "()",
        '"not a name"',
        "count=",
        "+=",
        "max=",
        "min=",
        "avg=",
        " + 1",
        " - 2",
        "-3",
        "(x, x)",
        "R1(",
        " = E",
    ):
        assert word in words, word
    arities = {len(s) for seed in range(100) for s in program_of_seed(seed).sorts.values()}
    assert arities == {0, 1, 2, 3, 4}
    nonlinear = mutual = filled = derived = 0
    for seed in range(300):
        program = program_of_seed(seed)
        known = by_hand(program)
        derived += len(program.derived)
        filled += sum(bool(known[name]) for name in program.derived)
        for stratum in program.rules:
            heads = {r.head.relation for r in stratum}
            used = [
                (r.head.relation, [b.relation for b in r.body if hasattr(b, "relation") and b.relation in heads])
                for r in stratum
            ]
            nonlinear += any(len(names) > 1 for _, names in used)
            mutual += any(n != head for head, names in used for n in names)
    assert nonlinear > 30 and mutual > 30 and filled > derived // 2


FIRST, MANY = 100_000, 4000  # seeds
MOST_CELLS = 20_000  # that the reference backend goes through one by one, for one rule
FAST, REFERENCE = (
    50,
    10,
)  # one program in so many also runs as native code, and one on the reference backend where it is small


@pytest.mark.full
@pytest.mark.parametrize("batch", range(40))
def test_thousands_of_programs(request: pytest.FixtureRequest, batch: int) -> None:
    """Each program against all three evaluators; of what costs most, every program has one part."""
    if "full" not in request.config.option.markexpr:
        pytest.skip("thousands of programs run with -m full (make conformance)")
    pytest.importorskip("clingo")
    pytest.importorskip("duckdb")
    first = FIRST + batch * MANY // 40
    for seed in range(first, first + MANY // 40):
        program = program_of_seed(seed)
        by_rounds, by_grounding = by_hand(program), by_clingo(program)
        assert all(by_rounds[name] == by_grounding[name] for name in program.derived), program
        if fits_duckdb(program):
            _check_duckdb(program, by_rounds)
        check(program, "numpy", [ASPECTS[seed % len(ASPECTS)]])
        if seed % FAST == 0:
            check(program, "fast", ())
        if seed % REFERENCE == 0 and cells(program) <= MOST_CELLS:
            check(program, "reference", ())
