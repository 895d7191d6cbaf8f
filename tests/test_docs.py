"""The tutorial and the guides: every block runs as it stands."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page_runs(page):
    # the closing fence would count as output, so blocks end with a blank line
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried > 0
    assert failed == 0


def test_readme_example(capsys):
    code = (DOCS.parent / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code, {})  # the README's own code
    said = "".join(line[2:] + "\n" for line in code.splitlines() if line.startswith("# "))
    assert capsys.readouterr().out == said


def test_readme_links_lead_somewhere():
    import re

    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS.parent / "README.md").read_text()):
        assert (DOCS.parent / target).exists(), target
