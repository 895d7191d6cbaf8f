"""Builds the documentation as a site: the guides as pages, and a reference page for each module that defines a public name.

Run ``make docs``; the site is then in ``docs/_build``, and begins at ``index.html``.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Iterable
from html import escape
from importlib import import_module
from pathlib import Path
from shutil import copy
from types import ModuleType
from typing import get_type_hints

import pdoc
from pdoc.render_helpers import markdown2
from pygments.formatters import HtmlFormatter

import tensorlogic as tl

DOCS = Path(__file__).parent
PAGES = (
    "tutorial.md",
    *sorted(f"guides/{page.name}" for page in (DOCS / "guides").glob("*.md")),
    "architecture.md",
    "reliability.md",
    "errors.md",
    "benchmarks.md",
    "dependencies.md",
    "seed-map.md",
)
STYLE = """body {max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif}
pre, code {background: #f5f5f5; font-size: 14px} pre {padding: .6rem; overflow-x: auto} code {padding: 0 .15rem}
table {border-collapse: collapse} td, th {border: 1px solid #ccc; padding: .2rem .6rem; text-align: left} .r {text-align: right}"""


def public_names() -> dict[str, str]:
    """Return for every public name the module that defines it."""
    text = (Path(tl.__file__).parent / "__init__.pyi").read_text(encoding="utf-8")
    found = re.findall(r"^from \.([\w.]+) import (\w+) as \w+$", text, re.MULTILINE)
    modules = {name: f"tensorlogic.{module}" for module, name in found}
    return {n: f"{m}.{n}" if isinstance(getattr(tl, n), ModuleType) else m for n, m in modules.items()}


def resolve_annotations(modules: Iterable[ModuleType]) -> None:
    """Let the constructors of named tuples say their types: they hold them as text that means nothing where pdoc reads it."""
    for found in pkgutil.walk_packages(tl.__path__, "tensorlogic."):
        if not found.name.endswith("__main__"):
            import_module(found.name)  # a type may be named by a module that nobody has loaded yet
    own = [vars(module) for name, module in sys.modules.items() if name.startswith("tensorlogic.")]
    known = {name: thing for names in own for name, thing in names.items() if isinstance(thing, type)}
    for module in modules:
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, tuple) and hasattr(thing, "_fields"):
                thing.__new__.__annotations__ = get_type_hints(
                    thing, localns=known | vars(sys.modules[thing.__module__])
                )


def page(title: str, body: str, home: str) -> str:
    """Return a page of HTML; ``home`` leads to the index."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}\n{HtmlFormatter().get_style_defs(".codehilite")}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><p><a href="{home}">tensorlogic</a></p>{body}</body></html>\n'


def rendered(source: Path, out: Path, root: str) -> str:
    """Return a page of Markdown as HTML; links to other pages lead to their HTML, and files it shows are copied."""
    text = source.read_text(encoding="utf-8").replace("```python\n>>>", "```pycon\n>>>")
    html: str = markdown2.markdown(text, extras=["fenced-code-blocks", "tables", "header-ids"])
    html = html.replace(' style="text-align:right;"', ' class="r"')  # half of what a page of tables weighs

    def link(found: re.Match[str]) -> str:
        attribute, target, place = found.groups()
        if target.endswith(".md"):
            return f'{attribute}="{target[:-3]}.html{place or ""}"'
        (out / "files").mkdir(exist_ok=True)
        copy(source.parent / target, out / "files")
        return f'{attribute}="{root}files/{Path(target).name}"'

    return re.sub(r'(href|src)="(?!https?:|#)([^"#]+)(#[^"]*)?"', link, html)


def title_of(name: str) -> str:
    """Return the first heading of a page."""
    return (DOCS / name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def index(names: dict[str, str]) -> str:
    """Return the first page: the guides, and the public names with the first sentence of what each is."""
    guides = [f'<li><a href="{p[:-3]}.html">{escape(title_of(p))}</a></li>' for p in PAGES]
    rows = []
    for name in sorted(names, key=str.casefold):
        place = "" if names[name].endswith(f".{name}") and isinstance(getattr(tl, name), ModuleType) else f"#{name}"
        target = f"{names[name].replace('.', '/')}.html{place}"
        said = (getattr(tl, name).__doc__ or "").strip().partition("\n")[0]
        rows.append(f'<tr><td><a href="{target}"><code>{name}</code></a></td><td>{escape(said)}</td></tr>')
    about = escape((tl.__doc__ or "").partition("\n")[0])
    return f"<h1>tensorlogic</h1><p>{about}</p><h2>Guides</h2><ul>{''.join(guides)}</ul><h2>Reference</h2><table>{''.join(rows)}</table>"


def build(out: Path) -> None:
    """Write the site into a folder."""
    names = public_names()
    pdoc.render.configure(show_source=False, docformat="restructuredtext", search=False)
    modules = sorted(set(names.values()))
    resolve_annotations([import_module(module) for module in modules])
    pdoc.pdoc(*modules, output_directory=out)
    for name in PAGES:
        target, root = (out / name).with_suffix(".html"), "../" * name.count("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(title_of(name), rendered(DOCS / name, out, root), f"{root}index.html"), encoding="utf-8")
    (out / "index.html").write_text(page("tensorlogic", index(names), "index.html"), encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "_build")
