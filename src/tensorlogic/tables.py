"""Plain-text tables: aligned columns that read the same in a terminal, a log and a test."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Lay rows out under their heads, two spaces apart; columns in ``right`` are flush right.

    >>> print(table(["name", "n"], [["x", "12"], ["long", "3"]], right={1}))
    name   n
    x     12
    long   3
    """
    cells = [list(head), *(list(map(str, row)) for row in rows)]
    widths = [max(_width(row[c]) for row in cells) for c in range(len(head))]
    lines = []
    for row in cells:
        padded = [
            " " * (w - _width(cell)) + cell if c in right else cell + " " * (w - _width(cell))
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def counted(n: int, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "node"), counted(2000, "node")
    ('1 node', '2,000 nodes')
    """
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def html_text(value: object) -> str:
    """Return how a value prints, for a notebook: ``_repr_html_ = html_text`` in a class that prints as a table.

    >>> html_text("a < b")
    '<pre>a &lt; b</pre>'
    """
    from html import escape

    return f"<pre>{escape(str(value))}</pre>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", title: str = "") -> str:
    """Lay rows out as an HTML table, for a notebook, with a title above it and a note below.

    >>> html_table(["x"], [["a < b"]])
    '<table><thead><tr><th>x</th></tr></thead><tbody><tr><td>a &lt; b</td></tr></tbody></table>'
    """
    from html import escape

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    above = f"<caption>{escape(title)}</caption>" if title else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{above}<thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>{below}"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
