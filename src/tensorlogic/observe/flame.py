"""Flame graphs: one SVG file that a browser zooms and searches, and that reads without scripts too."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape
from zlib import crc32

from ..diagnostics import clean
from .trace import Trace
from .tracks import tracks

ROW = 17  # pixels a row of frames takes
LETTER = 6.6  # pixels a letter takes, about
TOP, BOTTOM, SIDE = 44, 26, 10
FRAMES = 20_000  # frames in one picture, at most
NARROW = 0.3  # pixels below which frames are drawn together
SCRIPT = Path(__file__).with_name("flame.js")  # zooms and searches, in a browser
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")  # what XML cannot hold, or shows as nothing


class _Node:
    """One frame: how long, how often, and what it called."""

    __slots__ = ("calls", "count", "name", "weight")

    def __init__(self, name: str) -> None:
        self.name, self.weight, self.count = name, 0, 0
        self.calls: dict[str, _Node] = {}

    def call(self, name: str) -> _Node:
        if name not in self.calls:
            self.calls[name] = _Node(name)
        return self.calls[name]


class _Box(NamedTuple):
    """One frame in the picture; x and width are shares of the whole."""

    x: float
    width: float
    depth: int
    name: str
    tooltip: str
    merged: bool = False


def flame_svg(
    trace: Trace, *, title: str = "Flame graph", width: int = 1200, script: bool = True, most: int = FRAMES
) -> str:
    """Return a flame graph of a trace: a thread is the lowest frame, widths are time, calls stand on their callers.

    Click a frame to zoom, the title to see all again; search by name and see the share of time that matches. Of more than
    ``most`` frames the narrowest are drawn together.

    >>> from tensorlogic import Trace, TraceEvent
    >>> flame_svg(Trace([TraceEvent("relu", "step", 0, 5, 1)]))[:38]
    '<?xml version="1.0" encoding="UTF-8"?>'
    """
    root = _Node("all")
    events = trace.columns()
    for track in tracks(trace, events):
        base = root.call(track.name)
        path: list[_Node] = []
        columns = track.kind.tolist(), (track.inner_end - track.start).tolist(), track.depth.tolist()
        for k, took, depth in zip(*columns, strict=True):
            del path[depth:]
            path.append((path[-1] if path else base).call(events.kinds[k].name))
            for node in (path[-1],) if depth else (path[-1], base, root):
                node.weight += took
                node.count += 1
    return _svg(root, title, width, script, most)


def _boxes(root: _Node, narrow: float) -> list[_Box]:
    """Lay frames out, callers below; those narrower than a share of the whole are drawn together."""
    boxes: list[_Box] = []
    whole = root.weight or 1
    open: list[tuple[_Node, float, int]] = [(root, 0.0, 0)]
    while open:
        node, x, depth = open.pop()
        share = node.weight / whole
        boxes.append(_Box(x, share, depth, node.name, _tooltip(node.name, node.weight, node.count, whole)))
        small: list[_Node] = []
        for called in sorted(node.calls.values(), key=lambda n: n.name):
            if called.weight / whole < narrow:
                small.append(called)
                continue
            open.append((called, x, depth + 1))
            x += called.weight / whole
        rest, count = sum(n.weight for n in small), sum(n.count for n in small)
        if rest / whole >= narrow:
            name = f"{len(small):,} small frames"
            boxes.append(_Box(x, rest / whole, depth + 1, name, _tooltip(name, rest, count, whole), merged=True))
    return boxes


def _tooltip(name: str, weight: int, count: int, whole: int) -> str:
    took = f"{weight / 1e6:,.3f} ms" if weight >= 10**5 else f"{weight / 1e3:,.3f} µs"
    return f"{name} ({took}, {100 * weight / whole:.2f}%, {count:,}x)"


def _svg(root: _Node, title: str, width: int, script: bool, most: int) -> str:
    inner = max(1, width - 2 * SIDE)
    narrow = NARROW / inner
    while len(boxes := _boxes(root, narrow)) > most:
        narrow *= 2
    rows = max(b.depth for b in boxes) + 1
    height = TOP + rows * ROW + BOTTOM
    parts = [
        f'<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="11">',
        "<style>.f{cursor:pointer}.f:hover rect{stroke:#000}.b{cursor:pointer;fill:#06c}</style>" if script else "",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text id="title" x="{width / 2:g}" y="20" text-anchor="middle" font-size="14">{_xml(title)}</text>',
    ]
    if script:
        parts += [
            f'<text id="reset" class="b" x="{SIDE}" y="20" display="none">show all</text>',
            f'<text id="search" class="b" x="{width - SIDE}" y="20" text-anchor="end">search</text>',
            f'<text id="matched" x="{width - SIDE}" y="{height - 9}" text-anchor="end"> </text>',
        ]
    if not root.count:
        at = f'x="{width / 2:g}" y="{TOP + 8}"'
        parts.append(f'<text {at} text-anchor="middle">there is nothing in this trace</text>')
    parts += [
        f'<text id="details" x="{SIDE}" y="{height - 9}"> </text>',
        f'<g id="frames" data-side="{SIDE}" data-inner="{inner}">',
        *(_frame(b, inner, rows) for b in (boxes if root.count else ())),
        "</g>",
        f"<script><![CDATA[{SCRIPT.read_text(encoding='utf-8')}]]></script>" if script else "",
        "</svg>\n",
    ]
    return "\n".join(p for p in parts if p)


def _frame(box: _Box, inner: int, rows: int) -> str:
    x, wide, y = SIDE + box.x * inner, box.width * inner, TOP + (rows - 1 - box.depth) * ROW
    letters = int((wide - 4) / LETTER)
    name = _plain(box.name)
    label = "" if letters < 2 else name if len(name) <= letters else name[: letters - 1] + "…"
    fill = "#ddd" if box.merged or not box.depth else _colour(box.name)
    return (
        f'<g class="f" data-x="{box.x:.9g}" data-w="{box.width:.9g}" data-d="{box.depth}" data-n="{_xml(box.name, quoted=True)}">'
        f"<title>{_xml(box.tooltip)}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{max(wide, 0.1):.2f}" height="{ROW - 1}" fill="{fill}" rx="1"/>'
        f'<text x="{x + 3:.2f}" y="{y + 12}">{escape(label)}</text></g>'
    )


def _colour(name: str) -> str:
    """Return a warm colour that a name always has."""
    spot = crc32(clean(name).encode())
    rgb = hls_to_rgb(spot % 55 / 360, 0.66 + spot // 55 % 14 / 100, 0.6 + spot // 770 % 25 / 100)
    return "#" + "".join(f"{round(255 * c):02x}" for c in rgb)


def _plain(text: str) -> str:
    """Return text that XML can hold, in one line."""
    return _UNFIT.sub("\ufffd", clean(text).replace("\n", " ").replace("\t", " "))


def _xml(text: str, *, quoted: bool = False) -> str:
    return escape(_plain(text), {'"': "&quot;"} if quoted else {})
