"""The tables of the seed's README are whole, true, and what docs/seed-map.md says."""

import importlib
import re
from pathlib import Path

import make_map
import pytest
from blocks import BLOCKS, BUILT, COMPONENTS, LISTED, MODULES, SEED, look_up, python_name, read_blocks, read_components


@pytest.fixture
def seed():
    if not SEED.exists():
        pytest.skip(f"the seed is not here: {SEED}")
    return SEED.read_text(encoding="utf-8")


def test_blocks_cover_the_seed(seed):
    assert [(b.line, b.heading, b.language) for b in BLOCKS] == read_blocks(seed)
    assert [b.number for b in BLOCKS] == list(range(1, len(BLOCKS) + 1))


def test_names_stand_in_their_blocks(seed):
    lines = seed.splitlines()
    for block in BLOCKS:
        end = lines.index("```", block.line)
        text = "\n".join(lines[block.line : end])
        missing = [n for n in block.names if not re.search(rf"\b{n.rpartition('.')[2]}\b", text)]
        assert set(missing) <= {"TlAsyncStreamExecutor"}, block  # only its method stands there


def test_components_cover_the_listings(seed):
    names = [c.name for c in COMPONENTS]
    assert len(names) == len(set(names))
    assert set(names) == set(read_components(seed))


def functions():
    """Every test of the blocks, by its id without parameters."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("test_seed_*.py")):
        module = importlib.import_module(path.stem)
        found |= {f"{path.name}::{n}": f for n, f in vars(module).items() if n.startswith("test_")}
    return found


def test_every_block_has_its_tests():
    found = functions()
    named = {test.partition("[")[0] for b in BLOCKS for test in b.tests} | set(LISTED.values())
    assert named == {t for t in found if not t.startswith("test_seed_map.py")} | {
        "test_seed_map.py::test_components_cover_the_listings"
    }
    assert all(b.tests or b.instead for b in BLOCKS)


def test_marks_say_what_is_missing():
    found = functions()
    capability_of = {c.name: c.capability for c in (*COMPONENTS, *MODULES)}
    rows = [(test, b.capability) for b in BLOCKS for test in b.tests]
    rows += [(test, capability_of[name]) for name, test in LISTED.items()]
    for test, capability in rows:
        marks = [m for m in getattr(found[test.partition("[")[0]], "pytestmark", []) if m.name == "xfail"]
        if capability in BUILT or "test_trait[" in test:
            assert not marks, f"{test}: {capability} is built"
            continue
        said, _, name = marks[0].kwargs["reason"].removesuffix(" is not there yet").partition(": tensorlogic.")
        assert said == capability, test
        assert look_up(name) is None, f"{test} waits for {name}, which is there"


@pytest.mark.parametrize("capability", sorted(BUILT))
def test_what_is_built_is_there(capability):
    paths = {p for c in COMPONENTS if c.capability == capability for p in c.python.split(", ")}
    paths |= {python_name(n) for b in BLOCKS if b.capability == capability for n in b.names}
    assert [p for p in sorted(paths) if look_up(p) is None] == []


def test_map_is_up_to_date():
    assert make_map.main(["--check"]) == 0
