"""What a training run did: figures by epoch, as a table, a plot and lists."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..diagnostics import value_text
from ..errors import InputError, nearest
from ..ir.whole_files import writing
from ..tables import table

WIDTH, HEIGHT, EDGE = 640, 320, 48
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


class History(Mapping[str, list[float]]):
    """Figures by epoch: ``history["loss"]`` is a list. It prints as a table, and ``save_svg`` draws it.

    >>> history = History()
    >>> history.append({"loss": 0.5, "accuracy": 0.75})
    >>> history.append({"loss": 0.25, "accuracy": 0.875})
    >>> print(history)
    epoch  loss  accuracy
        1   0.5      0.75
        2  0.25     0.875
    >>> history["loss"][-1]
    0.25
    """

    def __init__(self, epochs: Sequence[Mapping[str, float]] = ()) -> None:
        self.epochs: list[dict[str, float]] = [dict(epoch) for epoch in epochs]

    def append(self, figures: Mapping[str, float]) -> None:
        """Add the figures of an epoch."""
        self.epochs.append(dict(figures))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self:
            raise InputError(f"the history has no {value_text(name)}", *nearest(name, list(self)), code="E858")
        return [epoch.get(name, math.nan) for epoch in self.epochs]

    def __contains__(self, name: object) -> bool:
        return any(name in epoch for epoch in self.epochs)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for epoch in self.epochs for name in epoch))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __str__(self) -> str:
        names = list(self)
        rows = [
            [str(n), *(f"{epoch[name]:.4g}" if name in epoch else "" for name in names)]
            for n, epoch in enumerate(self.epochs, 1)
        ]
        return table(["epoch", *names], rows, right=set(range(len(names) + 1))) if rows else "no epochs"

    def __repr__(self) -> str:
        return f"<History of {len(self.epochs)} epochs: {', '.join(self)}>"

    def svg(self, names: Sequence[str] | None = None) -> str:
        """Return curves of some figures over the epochs as a picture; left out, of the losses.

        >>> History([{"loss": 2.0}, {"loss": 1.0}]).svg().startswith("<svg")
        True
        """
        names = [n for n in self if n.endswith("loss")] if names is None else list(names)
        curves = {name: self[name] for name in names}
        finite = [v for values in curves.values() for v in values if math.isfinite(v)] or [0.0]
        low, high = min(finite), max(finite)
        high = high if high > low else low + 1.0
        count = max(1, len(self.epochs) - 1)

        def place(n: int, value: float) -> str:
            x = EDGE + n / count * (WIDTH - 2 * EDGE)
            y = HEIGHT - EDGE - (value - low) / (high - low) * (HEIGHT - 2 * EDGE)
            return f"{x:.1f},{y:.1f}"

        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<path d="M{EDGE},{EDGE} V{HEIGHT - EDGE} H{WIDTH - EDGE}" fill="none" stroke="#888"/>',
            f'<text x="{EDGE - 4}" y="{EDGE + 4}" text-anchor="end">{high:.3g}</text>',
            f'<text x="{EDGE - 4}" y="{HEIGHT - EDGE + 4}" text-anchor="end">{low:.3g}</text>',
            f'<text x="{WIDTH - EDGE}" y="{HEIGHT - EDGE + 16}" text-anchor="end">epoch {len(self.epochs)}</text>',
        ]
        for n, (name, values) in enumerate(curves.items()):
            colour = COLOURS[n % len(COLOURS)]
            points = " ".join(place(k, v) for k, v in enumerate(values) if math.isfinite(v))
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            lines.append(f'<text x="{EDGE + 8 + 130 * n}" y="{EDGE - 12}" fill="{colour}">{html.escape(name)}</text>')
        return "\n".join([*lines, "</svg>"])

    def save_svg(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        """Write the curves to a file."""
        with writing(Path(path)):
            Path(path).write_text(self.svg(names), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()
