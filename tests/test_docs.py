"""The tutorial and the guides: every block runs as it stands."""

import doctest
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # the closing fence would count as output, so blocks end with a blank line
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried > 0
    assert failed == 0


def test_readme_example(capsys):
    code = (DOCS.parent / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(code, {})  # the README's own code
    said = "".join(line[2:] + "\n" for line in code.splitlines() if line.startswith("# "))
    assert capsys.readouterr().out == said


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS.parent / "README.md").read_text(encoding="utf-8")):
        assert (DOCS.parent / target).exists(), target


def test_pages_that_docstrings_and_pages_name_exist():
    root = DOCS.parent
    for path in [*(root / "src").rglob("*.py"), *DOCS.rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"\bdocs/[\w/-]+\.md", text):
            assert (root / name).exists(), f"{path} names {name}"
        for topic in re.findall(r"\bguide (?:on|to|about) (\w+)", text):
            assert (DOCS / "guides" / f"{topic}.md").exists(), f"{path} names a guide on {topic}"
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page} links to {target}"


def test_the_site_builds_without_warnings(tmp_path):
    out = tmp_path / "site"
    command = [sys.executable, "-W", "error", DOCS / "build.py", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    pages = {page: page.read_text(encoding="utf-8") for page in out.rglob("*.html")}
    written = {page.stem for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    assert written <= {page.stem for page in pages}
    assert out / "tensorlogic" / "runtime" / "executor.html" in pages
    for page, text in pages.items():
        assert len(text) < 200_000, page
        for target, place in re.findall(r'(?:href|src)="(?!https?:|data:|mailto:)([^"#]*)(#[^"]*)?"', text):
            leads_to = (page.parent / target).resolve() if target else page
            assert leads_to.exists(), f"{page} links to {target}"
            assert not place or f'id="{place[1:]}"' in pages[leads_to], f"{page} links to {target}{place}"
