"""How cost grows, drawn: log-log lines as SVG written by hand, from the tables in benchmarks/results.

``python benchmarks/plots.py`` draws all of them into docs/plots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from harness import HERE, RESULTS, Table, read, seconds

FOLDER = HERE.parent / "docs" / "plots"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")  # told apart by all
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 230, 44, 52

Series = Mapping[str, Sequence[tuple[float, float]]]


class Plot(NamedTuple):
    """Which tables of a result make one plot: the group of the pattern is where on the x-axis a title stands."""

    name: str
    title: str
    source: str
    pattern: str
    xlabel: str
    ylabel: str = "best time of a call"


PLOTS = (
    Plot("boolean-join", "Boolean join", "contractions", r"^Boolean join, n=([\d,]+)$", "n"),
    Plot("rule-join", "Rule join", "logic", r"^Rule join, n=([\d,]+)$", "n"),
    Plot("mlp", "MLP 784-512-256-10", "models", r"^MLP .*, batch ([\d,]+)$", "batch"),
    Plot("depth", "Small layers, one after another", "small", r"^([\d,]+) layers? of 16×16$", "depth"),
    Plot("threads", "Callers at once", "small", r"^([\d,]+) callers? at once$", "threads"),
    Plot(
        "serving-latency",
        "Latency of an MLP against load",
        "serving",
        r"^MLP at ([\d,]+) requests a second$",
        "requests a second",
    ),
    Plot("nodes", "Whole graphs", "scaling", r"^Graph of ([\d,]+) nodes$", "nodes"),
    Plot(
        "predicted-scaling",
        "Predicted step of deep layers on a cluster",
        "distributed",
        r"^Predicted step on ([\d,]+) devices$",
        "devices",
        "predicted time of a step",
    ),
)


def series(tables: Iterable[Table], pattern: str) -> dict[str, list[tuple[float, float]]]:
    """Return each contender's best time by the number in the titles that match; a table without a match is left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    for table in tables:
        if match := re.search(pattern, table.title):
            x = float(match[1].replace(",", ""))
            for t in table.timings:
                found.setdefault(t.name, []).append((x, t.best))
    return {name: sorted(points) for name, points in found.items()}


def svg(title: str, series: Series, xlabel: str, ylabel: str, *, ytext: Callable[[float], str] = seconds) -> str:
    """Return a log-log line plot as SVG text; every value must be above zero."""
    points = [p for line in series.values() for p in line]
    if not points:
        raise ValueError(f"{title}: there is nothing to plot")
    if not all(math.isfinite(v) and v > 0 for p in points for v in p):
        raise ValueError(f"{title}: a logarithmic axis takes finite numbers above zero")
    xs, ys = sorted({p[0] for p in points}), [p[1] for p in points]
    across = _scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT)
    up = _scale(min(ys) / 1.3, max(ys) * 1.3, HEIGHT - BOTTOM, TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 24, title, "start", 'font-size="15"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, xlabel),
        _text(
            18, (TOP + HEIGHT - BOTTOM) / 2, ylabel, more=f'transform="rotate(-90 18 {(TOP + HEIGHT - BOTTOM) / 2:g})"'
        ),
    ]
    for y in ticks(min(ys) / 1.3, max(ys) * 1.3):
        out.append(_line(LEFT, up(y), WIDTH - RIGHT, up(y), "#dddddd"))
        out.append(_text(LEFT - 8, up(y) + 4, ytext(y), "end"))
    for x in xs if len(xs) <= 8 else ticks(xs[0], xs[-1]):
        out.append(_line(across(x), TOP, across(x), HEIGHT - BOTTOM, "#eeeeee"))
        out.append(_text(across(x), HEIGHT - BOTTOM + 18, f"{x:,g}" if x < 1e6 else f"{x:.0e}"))
    ends = _spread([up(line[-1][1]) for line in series.values() if line])
    for n, ((name, line), at) in enumerate(zip([(k, v) for k, v in series.items() if v], ends, strict=True)):
        colour = COLOURS[n % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if n >= len(COLOURS) else ""
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        out.append(_text(WIDTH - RIGHT + 12, at + 4, name, "start", f'style="fill:{colour}"'))
    return "\n".join([*out, "</svg>"]) + "\n"


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two: powers of ten, with 2 and 5 times them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5), range(1, 10)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) >= 3:
            break
    return found or [low]


def draw(folder: Path = FOLDER, results: Path = RESULTS) -> dict[str, list[tuple[str, Path]]]:
    """Write every plot whose tables are there; return titles and files by the benchmark that they belong to."""
    found: dict[str, list[tuple[str, Path]]] = {}
    for plot in PLOTS:
        source = results / f"{plot.source}.json"
        lines = series(read(source), plot.pattern) if source.exists() else {}
        if max((len(line) for line in lines.values()), default=0) > 1:  # one point does not grow
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{plot.name}.svg"
            path.write_text(svg(plot.title, lines, plot.xlabel, plot.ylabel), encoding="utf-8")
            found.setdefault(plot.source, []).append((f"{plot.title}: time by {plot.xlabel}", path))
    return found


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    width = math.log(high / low) or 1.0
    return lambda v: start + (end - start) * (math.log(v / low) / width)


def _spread(heights: Sequence[float], gap: float = 15) -> list[float]:
    """Move labels apart until none covers another, keeping their order and the frame."""
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    placed = list(heights)
    for before, n in pairwise(order):
        placed[n] = max(placed[n], placed[before] + gap)
    below = max(0.0, placed[order[-1]] - (HEIGHT - BOTTOM)) if order else 0.0
    for n in order:
        placed[n] -= below
    return placed


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'.replace(" >", ">")


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


if __name__ == "__main__":
    for made in draw().values():
        for _, path in made:
            print(path)
