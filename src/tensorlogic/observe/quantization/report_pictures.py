"""The pictures of a quantization report, as SVG, and the report as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ...diagnostics import value_text
from ...errors import InputError, nearest
from ...tables import html_table

if TYPE_CHECKING:
    from .report import QuantizationReport

WIDTH, HEIGHT, SIDE, TOP, BOTTOM = 720, 260, 60, 30, 70
BAR, LINE = "#4477aa", "#cc6677"
GRID_LINES = 64  # values of the grid that are drawn, at most


def _frame(title: str, inside: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    )
    words = f'<text x="{SIDE}" y="18" font-size="14">{escape(title)}</text>'
    return "\n".join([head, words, *inside, "</svg>"])


def _bars(heights: Sequence[float], labels: Sequence[str], most: float) -> list[str]:
    """Return bars side by side, each with its label where there is room."""
    width = (WIDTH - 2 * SIDE) / max(len(heights), 1)
    room = HEIGHT - TOP - BOTTOM
    parts = []
    for n, (value, label) in enumerate(zip(heights, labels, strict=True)):
        height = room * max(0.0, min(value / most, 1.0)) if most > 0 else 0.0
        x, y = SIDE + n * width, TOP + room - height
        parts.append(
            f'<rect x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(width - 1, 0.5):.1f}" height="{height:.1f}" fill="{BAR}">'
            f"<title>{escape(label)}: {value:.4g}</title></rect>"
        )
        if label and width > 12:
            at = f"{x + width / 2:.1f} {TOP + room + 12}"
            parts.append(f'<text transform="translate({at}) rotate(35)">{escape(label[:16])}</text>')
    return parts


def error_svg(report: QuantizationReport) -> str:
    """Draw the signal to noise after each product and of each output, so that one sees where the error grows."""
    figures = [(f"{row.weight}", row.error.sqnr_db) for row in report.layers]
    figures += [(f"output {name}", error.sqnr_db) for name, error in report.outputs.items()]
    finite = [v for _, v in figures if math.isfinite(v)]
    most = max([*finite, 1.0])
    heights = [v if math.isfinite(v) else most if v > 0 else 0.0 for _, v in figures]
    axis = [
        f'<text x="{SIDE - 6}" y="{TOP + 10}" text-anchor="end">{most:.0f} dB</text>',
        f'<text x="{SIDE - 6}" y="{HEIGHT - BOTTOM}" text-anchor="end">0</text>',
    ]
    return _frame(
        "Signal to noise after each product (less is more error)",
        [*axis, *_bars(heights, [n for n, _ in figures], most)],
    )


def histogram_svg(report: QuantizationReport, name: str) -> str:
    """Draw the values of a weight, and a line for each value that a number of its first scale stands for."""
    if name not in report.pictures:
        raise InputError(f"the report has no weight {value_text(name)}", *nearest(name, report.pictures), code="E340")
    picture = report.pictures[name]
    low, high = picture.edges[0], picture.edges[-1]
    span = (high - low) or 1.0
    bars = _bars([float(c) for c in picture.counts], [""] * len(picture.counts), float(max([*picture.counts, 1])))
    room = WIDTH - 2 * SIDE
    lines = []
    for value in picture.grid[:: max(1, -(-len(picture.grid) // GRID_LINES))]:
        x = SIDE + room * (value - low) / span
        if SIDE <= x <= WIDTH - SIDE:
            lines.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM + 5}" stroke="{LINE}" stroke-width="0.7"/>'
            )
    ends = [
        f'<text x="{SIDE}" y="{HEIGHT - BOTTOM + 18}">{low:.3g}</text>',
        f'<text x="{WIDTH - SIDE}" y="{HEIGHT - BOTTOM + 18}" text-anchor="end">{high:.3g}</text>',
    ]
    return _frame(f"Values of {name}, and the grid of its first scale", [*bars, *lines, *ends])


def page(report: QuantizationReport) -> str:
    """Return the report as one HTML page that needs nothing beside it."""
    from .report import ERROR_HEAD, WEIGHTS_HEAD

    blocks = str(report).split("\n\n")
    style = (
        "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right}"
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Quantization report</title>',
        f"<style>{style}</style></head><body><h1>Quantization report</h1>",
        "".join(f"<p>{escape(line)}</p>" for line in blocks[-1].splitlines()),
        "<h2>Weights</h2>",
        html_table(WEIGHTS_HEAD, [t.cells() for t in report.tensors]),
    ]
    if report.layers:
        parts += [
            "<h2>After each product</h2>",
            html_table(("weight", *ERROR_HEAD), [[row.weight, *row.error.cells()] for row in report.layers]),
        ]
        parts.append(error_svg(report))
    parts.append("<h2>Values and grids</h2>")
    parts += [histogram_svg(report, name) for name in report.pictures]
    return "\n".join([*parts, "</body></html>"])
