"""Write docs/seed-map.md: name by name, where each part of the seed's README stands.

``python tests/seed_readme/make_map.py`` writes it; with ``--check`` it only tells whether it is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from blocks import BLOCKS, BUILT, COMPONENTS, LISTED, MODULES, OTHERWISE, ROOT, TRAITS, Block, look_up, python_name

MAP = ROOT / "docs" / "seed-map.md"
CAPABILITY = {c.name: c.capability for c in COMPONENTS}


def has_implementer(trait: str, method: str | None = None) -> bool:
    """Tell whether some public class, not itself a protocol, has the trait's methods (or one of them)."""
    import tensorlogic

    methods = [method] if method else list(TRAITS[trait])
    public = (getattr(tensorlogic, name, None) for name in tensorlogic.__all__)
    classes = [c for c in public if isinstance(c, type) and not getattr(c, "_is_protocol", False)]
    return bool(methods) and any(all(callable(getattr(c, m, None)) for m in methods) for c in classes)


def status(name: str, python: str, capability: str) -> str:
    """Look a name up in the package and say how far it is."""
    missing = f"not yet: {capability}"
    if any(look_up(path) is None for path in python.split(", ")):
        return missing
    trait, _, method = name.partition(".")
    if trait in TRAITS and not has_implementer(trait, method or None):
        return f"protocol only; {missing}"
    return "built"


def tests_of(name: str) -> list[str]:
    """Return the tests of a name: a trait's own, then those of the blocks that show it, built ones first."""
    found = [f"test_seed_traits.py::test_trait[{name}]"] if name in TRAITS else []
    found += [LISTED[name]] if name in LISTED else []
    for block in sorted(BLOCKS, key=lambda b: b.capability not in BUILT):
        if name in block.names:
            found += [t for t in block.tests if "test_trait[" not in t]
    return list(dict.fromkeys(found))


def code(texts: Iterable[str]) -> str:
    """Write several texts as code."""
    return ", ".join(f"`{t}`" for t in texts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a Markdown table."""
    return ["| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)]


def few(tests: Sequence[str]) -> str:
    """Write the first test, and how many others there are."""
    if not tests:
        return ""
    return f"`{tests[0]}`" + (f" and {len(tests) - 1} more" if len(tests) > 1 else "")


def block_status(block: Block) -> str:
    """Say whether everything a block shows is there."""
    if block.instead:
        return block.instead
    found = {status(n, python_name(n), CAPABILITY.get(n, block.capability)) for n in block.names}
    return "built" if found <= {"built"} else f"not yet: {block.capability}"


def render() -> str:
    """Return the whole page."""
    listed = [(c, status(c.name, c.python, c.capability)) for c in COMPONENTS]
    shown = {n: b.capability for b in reversed(BLOCKS) for n in b.names if n not in CAPABILITY}
    shown |= {n: CAPABILITY[n.split(".")[0]] for n in shown if n.split(".")[0] in CAPABILITY}
    order = dict.fromkeys(n for b in BLOCKS for n in b.names if n in shown)
    names = [(n, python_name(n), status(n, python_name(n), shown[n])) for n in order]
    done = (
        sum(s == "built" for _, s in listed),
        sum(s == "built" for *_, s in names),
        sum(block_status(b) == "built" for b in BLOCKS),
    )
    renamed = ", ".join(f"`{a}` is `{b}`" for a, b in OTHERWISE.items())
    head = ("name", "in Python", "status", "test")
    lines = [
        "# Where each part of the seed stands",
        "",
        "Written by `python tests/seed_readme/make_map.py`; do not edit. The status is what the package itself says: a name is built",
        "when it is found there, a trait when some public class also has its methods. Tests are in `tests/seed_readme/`; those of a",
        "block that is not built yet are strict expected failures.",
        "",
        f"Built: {done[0]} of {len(listed)} components, {done[1]} of {len(names)} other names, {done[2]} of {len(BLOCKS)} code blocks"
        f" ({sum(bool(b.instead) for b in BLOCKS)} are shell commands with a make target instead).",
        "",
        "## Components",
        "",
        'The names of the README\'s "Key Components" and "Architecture".',
        "",
        *table(head, ([f"`{c.name}`", code(c.python.split(", ")), s, few(tests_of(c.name))] for c, s in listed)),
        "",
        "## Other names the code blocks show",
        "",
        f"Variants of enums are in upper case unless they hold values; {renamed}.",
        "",
        *table(head, ([f"`{n}`", f"`{p}`", s, few(tests_of(n))] for n, p, s in names)),
        "",
        "## Modules named without code",
        "",
        "One name stands for each.",
        "",
        *table(head[:3], ([f"`{c.name}`", f"`{c.python}`", status(c.name, c.python, c.capability)] for c in MODULES)),
        "",
        "## Code blocks",
        "",
        *table(
            ("block", "section", "line", "status", "tests"),
            ([str(b.number), b.heading, str(b.line), block_status(b), code(b.tests)] for b in BLOCKS),
        ),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with ``--check`` compare it."""
    text = render()
    if "--check" in arguments:
        if MAP.exists() and MAP.read_text(encoding="utf-8") == text:
            return 0
        print(f"{MAP} is out of date: run python tests/seed_readme/make_map.py", file=sys.stderr)
        return 1
    MAP.parent.mkdir(exist_ok=True)
    MAP.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
