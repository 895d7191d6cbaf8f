"""The catalogue of faults: every code that the package uses is in it, and every row of it is used."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorlogic.cli import main
from tensorlogic.faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tensorlogic"


def used_codes() -> dict[str, str]:
    """Return each code that stands as a string in the source, with the first file that has it."""
    places: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "faults.py":
            for code in re.findall(r"[\"']([EW]\d{3})[\"']", path.read_text(encoding="utf-8")):
                places.setdefault(code, str(path.relative_to(SOURCE)))
    return places


def test_every_code_that_is_used_is_explained():
    missing = {code: file for code, file in sorted(used_codes().items()) if code not in FAULTS}
    assert not missing, f"used, but without a row in faults.FAULTS: {missing}"


def test_every_code_in_the_guides_is_explained():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("**/*.md")]:
        named = set(re.findall(r"\bE\d{3}\b", page.read_text(encoding="utf-8")))
        assert named <= FAULTS.keys(), page


def test_every_row_is_used():
    unused = sorted(set(FAULTS) - set(used_codes()))
    assert not unused, f"in faults.FAULTS, but used nowhere: {unused}"


def test_every_row_is_whole_and_titles_differ():
    for code, fault in FAULTS.items():
        assert re.fullmatch(r"[EW]\d{3}", code)
        assert all(part and part == part.strip() for part in fault), code
        assert not fault.title.endswith("."), code
        assert fault.cause.endswith("."), code
        assert fault.fix.endswith("."), code
    titles = [fault.title for fault in FAULTS.values()]
    assert len(set(titles)) == len(titles)


def test_the_page_is_what_is_generated():
    spec = importlib.util.spec_from_file_location("make_errors", ROOT / "docs" / "make_errors.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.PAGE.read_text(encoding="utf-8") == page.text(), "run: make docs"
    assert all(f"| {code} |" in page.text() for code in FAULTS)


def run(*args: str):
    return CliRunner().invoke(main, ["explain-error", *args])


@pytest.mark.parametrize("code", ["E301", "e301"])
def test_a_code_is_explained(code):
    done = run(code)
    assert done.exit_code == 0
    assert done.output == (
        "E301: an argument of the wrong kind\n\n"
        "A function was given something that is not what it takes.\n"
        "Fix: Give what the message names; the hint shows how to make one.\n"
    )


def test_a_code_is_explained_for_machines():
    assert json.loads(run("E001", "--json").output) == {"code": "E001", **FAULTS["E001"]._asdict()}
    assert [row["code"] for row in json.loads(run("--list", "--json").output)] == list(FAULTS)


def test_all_codes_are_listed():
    done = run("--list")
    assert done.exit_code == 0
    for code, fault in FAULTS.items():
        assert re.search(rf"^{code} +{re.escape(fault.title)}$", done.output, re.MULTILINE)


def test_an_unknown_code_names_the_nearest():
    done = run("E3100")
    assert done.exit_code == 1
    assert "there is no error code 'E3100'" in done.output
    assert "did you mean 'E310'?" in done.output
    assert json.loads(run("X", "--json").output)["error"]["code"] == "E219"


@pytest.mark.parametrize("args", [[], ["E301", "--list"]])
def test_one_code_or_the_list(args):
    done = run(*args)
    assert done.exit_code == 2
    assert "give one error code, or --list" in done.output
