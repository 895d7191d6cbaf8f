"""Every mistake has its message, word for word; hostile programs stop at a stated bound, quickly and in little memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import program_mistakes as mistakes
import pytest
from hostile_programs import CASES

import tensorlogic as tl

HERE = Path(__file__).resolve().parent


def outcome(call: Callable[[], object]) -> str:
    """Return an error with its code, place and hints, or say that there was none."""
    try:
        call()
    except tl.TensorLogicError as error:
        code = error.diagnostic.code
        return f"{type(error).__name__} {code}: {error}"
    except Exception as error:
        return f"AN ERROR OF PYTHON'S OWN: {type(error).__name__}: {error}"
    return "NO ERROR"


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("mistakes")
    mistakes.files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {name: plain(outcome(call), folder) for name, call in mistakes.every().items()}


def plain(message: str, folder: Path) -> str:
    """Return a message without what differs from machine to machine and from edit to edit."""
    message = message.replace(str(folder), "FOLDER").replace("\0", "\\0")
    return re.sub(r"at \S*(?:program_mistakes|engines)\.py:\d+:\d+\n.*\n *\^", "at the call", message)


def test_there_are_enough(messages: dict[str, str]) -> None:
    assert len(messages) >= 80


def test_messages(messages: dict[str, str], golden: Callable[[str, str], None]) -> None:
    """pytest --update-golden writes mistakes.txt anew; read what changed."""
    parts = []
    for name, message in messages.items():
        text = mistakes.TEXTS.get(name)
        shown = "".join(f"    {line}\n" for line in repr(text)[1:-1].split("\\n")) if text is not None else ""
        parts.append(f"== {name}\n{shown}{message}\n")
    golden("../programs/mistakes.txt", "\n".join(parts))


@pytest.mark.parametrize("name", mistakes.every())
def test_every_mistake_is_an_error_of_ours(name: str, messages: dict[str, str]) -> None:
    message = messages[name]
    assert not message.startswith(("NO ERROR", "AN ERROR")), message
    assert " E" in message.split(":")[0] and "None:" not in message.split("\n")[0], message  # it has a code


@pytest.mark.parametrize("name", mistakes.TEXTS)
def test_what_a_text_gets_wrong_has_a_place(name: str, messages: dict[str, str]) -> None:
    assert re.search(r"^  at \S+:\d+", messages[name], re.MULTILINE) or "at the call" in messages[name], messages[name]


def test_what_a_text_gets_wrong_is_shown_with_its_line(messages: dict[str, str]) -> None:
    bare = [name for name in mistakes.TEXTS if "at <text>:" in messages[name] and "^" not in messages[name]]
    assert not bare, f"{len(bare)} messages name a place and do not show it: {', '.join(bare)}"


# hostile programs: all in one process of their own, with bounds on memory and time

GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def hostile() -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "hostile_programs.py")], capture_output=True, text=True, timeout=600, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    by_name: dict[str, dict[str, object]] = {f["name"]: f for f in found}
    if len(by_name) < len(CASES):
        stuck = next(name for name in CASES if name not in by_name)
        by_name[stuck] = {
            "outcome": f"the process ended with {done.returncode}: {done.stderr[-500:]}",
            "seconds": 0,
            "bytes": 0,
        }
    return by_name


@pytest.mark.parametrize("name", CASES)
def test_hostile_programs_hit_a_bound(name: str, hostile: dict[str, dict[str, object]]) -> None:
    if name not in hostile:
        pytest.fail("an earlier program ended the process")
    found, allowed = hostile[name], CASES[name].may_run
    outcome = str(found["outcome"])
    assert outcome.startswith("refused") or (allowed and outcome == "ran"), outcome
    assert float(str(found["seconds"])) < 30, found  # of the processor
    assert int(str(found["bytes"])) < 4 * GIGABYTE, found


LONG = 2**63


@pytest.mark.parametrize(
    "text",
    [
        f"P({LONG})\nQ(x) <- P(x), x > 5",
        f"P({LONG}); P(1)\nQ(x) <- P(x), x > 5",
        f"P(3)\nQ(x) <- P(x), x < {LONG}",
        f"R({LONG}, {LONG + 1})\nQ(x) <- R(x, y), x < y",
        f"R({LONG}, {LONG + 1})\nQ(x) <- R(x, y), y = x + 1",
    ],
)
def test_numbers_beyond_64_bits_have_no_order(text: str) -> None:
    with pytest.raises(tl.GraphError, match=rf"index '[xy]' may be {LONG}, which does not fit 64 bits") as caught:
        tl.Program(text).query("Q(x)?")
    assert caught.value.diagnostic.code == "E232"
    assert caught.value.diagnostic.suggestions


@pytest.mark.parametrize(
    ("number", "shown"), [(LONG, str(LONG)), (-LONG - 1, str(-LONG - 1)), (1 << 1000, "a number of 1,001 bits")]
)
def test_added_numbers_beyond_64_bits_have_no_order(number: int, shown: str) -> None:
    program = tl.Program("Q(x) <- P(x), x > 5")
    program.add("P", [(number,), (1,)])
    with pytest.raises(tl.GraphError, match=f"index 'x' may be {shown}, which does not fit 64 bits"):
        program.query("Q(x)?")


def test_numbers_beyond_64_bits_are_equal_or_not() -> None:
    program = tl.Program(f"P({LONG}); P(1)\nQ(x) <- P(x), x = {LONG}\nR(x) <- P(x), x != {LONG}")
    assert list(program.query("Q(x)?")) == [(LONG,)]
    assert list(program.query("R(x)?")) == [(1,)]
