"""The walk through the folders: docs/architecture.md says how many files a call passes, and it stays so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_table_says_how_many_files_a_call_passes():
    pytest.importorskip("numba")
    printed = subprocess.run([sys.executable, DOCS / "walk.py"], capture_output=True, text=True, check=True).stdout
    counts = {name: found for name, *found in re.findall(r"^(.+): (\d+) files, (\d+) steps", printed, re.MULTILINE)}
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (a .+?) \| [\d,]+ \| (\d+) \| [\d,]+ \| ([\d,]+) \|$", text, re.MULTILINE)
    assert len(rows) == 3
    assert {name: [files, steps.replace(",", "")] for name, files, steps in rows}.items() <= counts.items()
