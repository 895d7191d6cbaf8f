"""Facts that others wrote: points-to analyses with their expected relations, countries, kinship."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from engines import program

POINTS_TO = """
ValueFlow(y,x) <- Assign(y,x)
ValueFlow(x,y) <- Assign(x,z), MemoryAlias(z,y)
ValueFlow(x,y) <- ValueFlow(x,z), ValueFlow(z,y)
ValueFlow(x,x) <- Assign(x,y)
ValueFlow(x,x) <- Assign(y,x)
MemoryAlias(x,w) <- Dereference(y,x), ValueAlias(y,z), Dereference(z,w)
MemoryAlias(x,x) <- Assign(y,x)
MemoryAlias(x,x) <- Assign(x,y)
ValueAlias(x,y) <- ValueFlow(z,x), ValueFlow(z,y)
ValueAlias(x,y) <- ValueFlow(z,x), MemoryAlias(z,w), ValueFlow(w,y)
"""


def pairs(path: Path) -> set[tuple[int, int]]:
    """Read a tab-separated file with a header line, by hand."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return {(int(a), int(b)) for a, b in (line.split("\t") for line in lines)}


def of_files(folder: Path) -> str:
    return POINTS_TO + "".join(f'{n}(x,y) = "{folder / "facts" / n}.csv"\n' for n in ("Assign", "Dereference"))


@pytest.mark.parametrize("engine", ["numpy", "fast"])  # the reference backend goes through every term in Python
def test_points_to_of_a_tiny_program(engine: str, logic_data: Path) -> None:
    folder = logic_data / "cspa_tiny"
    p = program(of_files(folder), engine)
    for name in ("ValueFlow", "ValueAlias", "MemoryAlias"):
        assert set(p.relation(name)) == pairs(folder / "expected" / f"{name}.csv"), name


@pytest.mark.parametrize("engine", ["numpy", "fast"])
def test_points_to_of_a_thousand_assignments(engine: str, logic_data: Path) -> None:
    folder = logic_data / "cspa1k"
    p = program(of_files(folder), engine)
    counts = {"ValueFlow": 2952, "ValueAlias": 8945, "MemoryAlias": 3467}
    for name, count in counts.items():
        found = p.relation(name)
        assert len(found) == count
        assert set(found) == pairs(folder / "expected" / f"{name}.csv"), name


def test_points_to_of_facts_from_python(logic_data: Path) -> None:
    folder = logic_data / "cspa1k"
    p = program(POINTS_TO)
    for name in ("Assign", "Dereference"):
        p.add(name, np.loadtxt(folder / "facts" / f"{name}.csv", np.int64, skiprows=1))
    assert len(p.relation("ValueAlias")) == 8945


def test_one_points_to_question_on_demand(logic_data: Path) -> None:
    folder = logic_data / "cspa1k"
    expected = pairs(folder / "expected" / "ValueAlias.csv")
    start = min(a for a, _ in expected)
    found = set(program(of_files(folder)).query(f"ValueAlias({start}, x)?"))
    assert found == {(b,) for a, b in expected if a == start}


def capitalised(text: str) -> str:
    """Write Prolog's names, which begin in lower case, as the language has them: quoted."""
    return re.sub(r"^(\w+)\(([^,]+),([^)]+)\)\.", r'\1("\2", "\3")', text, flags=re.MULTILINE)


def by_name(text: str) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for name, a, b in re.findall(r"^(\w+)\(([^,]+),([^)]+)\)\.", text, flags=re.MULTILINE):
        found[name].add((a, b))
    return found


def test_countries_load_and_answer(logic_data: Path) -> None:
    given = (logic_data / "countries" / "countries_S1.nl").read_text(encoding="utf-8")
    facts = by_name(given)
    p = program(capitalised(given) + "\nIn(x, z) <- locatedIn(x, z)\nIn(x, z) <- locatedIn(x, y), In(y, z)\n"
                "Near(x, z) <- neighborOf(x, y), locatedIn(y, z)\n")  # fmt: skip
    assert set(p.relation("locatedIn")) == facts["locatedIn"]
    inside = set(facts["locatedIn"])
    while more := {(x, z) for x, y in facts["locatedIn"] for y2, z in inside if y == y2} - inside:
        inside |= more
    assert set(p.relation("In")) == inside
    assert ("oceania",) in list(p.query('In("palau", x)?'))
    near = {(x, z) for x, y in facts["neighborOf"] for y2, z in facts["locatedIn"] if y == y2}
    assert set(p.relation("Near")) == near
    regions = (logic_data / "countries" / "regions.txt").read_text(encoding="utf-8").split()
    for region in regions:
        assert set(p.query(f'Near(x, "{region}")?')) == {(x,) for x, z in near if z == region}


def test_kinship_loads_and_answers(logic_data: Path) -> None:
    given = "".join(
        (logic_data / "kinship" / f"{part}.nl").read_text(encoding="utf-8") for part in ("train", "dev", "test")
    )
    facts = by_name(given)
    assert len(facts) >= 25 and sum(map(len, facts.values())) > 10_000
    rules = "Both(x, y) <- term0(x, y), not term1(x, y)\nTwo(x, z) <- term16(x, y), term15(y, z)\n"
    p = program(capitalised(given) + "\n" + rules)
    for name, expected in facts.items():
        assert set(p.relation(name)) == expected, name
    assert set(p.relation("Both")) == facts["term0"] - facts["term1"]
    assert set(p.relation("Two")) == {(x, z) for x, y in facts["term16"] for y2, z in facts["term15"] if y == y2}
