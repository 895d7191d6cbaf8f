"""Callbacks: hooks that are called after the batches and epochs of a training run."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from ..diagnostics import value_text
from ..errors import InputError, expect, expect_whole, nearest
from ..events import Hook
from ..ir.whole_files import expect_folder, writing

if TYPE_CHECKING:
    from .trainer import Trainer

Figures = Mapping[str, float]
VALIDATION = "validation_"  # begins the names of figures on validation data


class Callback(Hook):
    """The base class of callbacks: override the methods that should be called during training.

    >>> class Show(Callback):
    ...     def on_epoch(self, trainer, figures):
    ...         print(trainer.epoch, figures["loss"])
    """

    def on_begin(self, trainer: Trainer, batches: int | None) -> None:
        """Called before the first batch of ``fit``, with the number of batches in an epoch where that is known."""

    def on_batch(self, trainer: Trainer, figures: Figures) -> None:
        """Called after each batch."""

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Called after each epoch, with what the history says of it; ``trainer.stop(reason)`` ends the run here."""

    def on_end(self, trainer: Trainer) -> None:
        """Called when ``fit`` ends, whatever the reason."""


def callback_list(given: Iterable[Callback]) -> list[Callback]:
    """Return callbacks as a list, and refuse what is no callback: a class, a plain function, or one that stands in no list."""
    expect(given, Iterable, "callbacks= is a list of callbacks", "write callbacks=[tl.EarlyStopping()]")
    found = list(given)
    for callback in found:
        hint = "write class Show(tl.Callback): with a method on_epoch(self, trainer, figures), and callbacks=[Show()]"
        if isinstance(callback, type):
            hint = f"write callbacks=[{callback.__name__}()]"
        expect(callback, Callback, "a callback is an object of a class derived from tl.Callback", hint)
    return found


def step_hooks(callbacks: Sequence[Callback]) -> list[Hook]:
    """Return the callbacks that also want to hear of the steps of each run."""
    wanted = ("on_step", "on_run", "on_start")
    return [c for c in callbacks if any(getattr(type(c), name) is not getattr(Hook, name) for name in wanted)]


def watched(figures: Figures, name: str) -> float:
    """Return the figure of a name, or refuse a name that no figure has."""
    if name not in figures:
        hints = nearest(name, figures)
        if name.startswith(VALIDATION) and name.removeprefix(VALIDATION) in figures:
            hints = [
                "give fit data to measure it on: fit(..., validation=data)",
                f"or watch {name.removeprefix(VALIDATION)!r}",
            ]
        raise InputError(f"there is no figure {value_text(name)} to watch", *hints, code="E858")
    return figures[name]


class EarlyStopping(Callback):
    """Ends a run when a figure has not got better for some epochs, and puts back the best parameters.

    >>> EarlyStopping("validation_loss", patience=5).patience
    5
    """

    def __init__(
        self,
        watch: str = "validation_loss",
        *,
        patience: int = 5,
        least: float = 0.0,
        highest: bool = False,
        restore: bool = True,
    ) -> None:
        expect_whole("patience", patience)
        self.watch, self.patience, self.least, self.highest, self.restore = watch, patience, least, highest, restore
        self.best, self.bad = math.inf, 0
        self.params: dict[str, Any] = {}

    def on_begin(self, trainer: Trainer, batches: int | None) -> None:
        """Go through the epochs before, of a run that was resumed."""
        self.best, self.bad = math.inf, 0
        for figures in trainer.history.epochs:
            self._count(figures)

    def _count(self, figures: Figures) -> bool:
        value = watched(figures, self.watch) * (-1 if self.highest else 1)
        better = value < self.best - self.least
        self.best, self.bad = (value, 0) if better else (self.best, self.bad + 1)
        return better

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Compare with the best epoch so far."""
        if self._count(figures):
            self.params = trainer.params if self.restore else {}
        elif self.bad > self.patience:
            trainer.stop(f"{self.watch} did not get better for {self.bad} epochs")
            if self.params:
                trainer.replace(self.params)


class BestCheckpoint(Callback):
    """Saves a checkpoint of the best epoch, by one figure such as the validation loss, in a folder of its own.

    >>> BestCheckpoint("best", "accuracy", highest=True).highest
    True
    """

    def __init__(self, folder: str | Path, watch: str = "validation_loss", *, highest: bool = False) -> None:
        expect(folder, (str, Path), "a folder is given by its path", 'write BestCheckpoint("best")')
        self.folder, self.watch, self.highest = Path(folder), watch, highest

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Save where this is the best epoch so far."""
        sign = -1 if self.highest else 1
        if all(sign * watched(figures, self.watch) <= sign * epoch[self.watch] for epoch in trainer.history.epochs):
            trainer.save(self.folder, keep=1)


class OneFile(Callback):
    """Writes a file anew after each epoch."""

    def __init__(self, path: str | Path) -> None:
        expect(path, (str, Path), "a file is given by its path", f'write {type(self).__name__}("log")')
        self.path = Path(path)

    def on_begin(self, trainer: Trainer, batches: int | None) -> None:
        """Refuse a file whose folder is not there."""
        expect_folder(self.path)


class CSVLog(OneFile):
    """Writes a row of figures for each epoch to a CSV file; a resumed run continues it.

    >>> CSVLog("log.csv").path.name
    'log.csv'
    """

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Write the whole history, which is short, so that a killed run leaves no half row."""
        names = ["epoch", *trainer.history]
        with writing(self.path), self.path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.DictWriter(file, names)
            rows.writeheader()
            rows.writerows({"epoch": n, **epoch} for n, epoch in enumerate(trainer.history.epochs, 1))


class JSONLog(Callback):
    """Writes a line of JSON for each epoch, or for each batch, to a file or to any function of a string.

    >>> import tensorlogic as tl
    >>> JSONLog(print, batches=True).on_batch(tl.Trainer(), {"loss": 0.5})
    {"step": 0, "loss": 0.5}
    """

    def __init__(self, path: str | Path | Callable[[str], object], *, batches: bool = False) -> None:
        if not callable(path):
            expect(path, (str, Path), "a file is given by its path", 'write JSONLog("log.jsonl")')
        self.path, self.batches = path, batches

    def on_begin(self, trainer: Trainer, batches: int | None) -> None:
        """Refuse a file whose folder is not there."""
        if not callable(self.path):
            expect_folder(Path(self.path))

    def _write(self, line: str) -> None:
        if callable(self.path):
            self.path(line)
        else:
            with writing(Path(self.path)), Path(self.path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def on_batch(self, trainer: Trainer, figures: Figures) -> None:
        """Write a line, where batches are asked for."""
        if self.batches:
            self._write(json.dumps({"step": trainer.steps, **_plain(figures)}))

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Write a line."""
        self._write(json.dumps({"epoch": trainer.epoch, "step": trainer.steps, **_plain(figures)}))


def _plain(figures: Figures) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


class TensorBoardLog(Callback):
    """Writes figures for TensorBoard, through the package tensorboardX (extra ``report``).

    >>> TensorBoardLog("runs").folder.name
    'runs'
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def on_begin(self, trainer: Trainer, batches: int | None) -> None:
        """Open the file."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            hint = "pip install tensorboardX, or tensorlogic-infer[report]"
            raise InputError("TensorBoardLog needs the package tensorboardX", hint, code="E862") from None
        with writing(self.folder):
            self._writer = SummaryWriter(str(self.folder))

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Write the figures of an epoch."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, trainer.epoch)

    def on_end(self, trainer: Trainer) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class PlotFile(OneFile):
    """Draws the curves of the history to an SVG file after each epoch.

    >>> PlotFile("loss.svg").path.name
    'loss.svg'
    """

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Draw."""
        trainer.history.save_svg(self.path)


class Progress(Callback):
    """Shows on a terminal how far the run is: epoch, batch, loss and examples a second."""

    def __init__(self, file: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.file, self.clock = file or sys.stderr, clock
        self.batches: int | None = None
        self.shown, self.next, self.since, self.rows = 0, 0.0, 0.0, 0

    @classmethod
    def wanted(cls, asked: bool | None) -> list[Progress]:
        """Return one where it is asked for, or where there is a terminal to show it on."""
        return [cls()] if asked or (asked is None and sys.stderr.isatty()) else []

    def on_begin(self, trainer: Trainer, batches: int | None) -> None:
        """Note the number of batches."""
        self.batches, self.since, self.rows = batches, self.clock(), 0

    def on_batch(self, trainer: Trainer, figures: Figures) -> None:
        """Show a line, at most ten times a second."""
        self.rows += trainer.latest_rows
        if (now := self.clock()) < self.next:
            return
        self.next = now + 0.1
        whole = "" if self.batches is None else f"/{self.batches}"
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        rate = self.rows / max(now - self.since, 1e-9)
        self._show(
            f"epoch {trainer.epoch + 1}/{trainer.config.epochs}  batch {trainer.batch}{whole}  {shown}  {rate:,.0f} examples/s"
        )

    def on_epoch(self, trainer: Trainer, figures: Figures) -> None:
        """Leave a line for each epoch."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self._show(f"epoch {trainer.epoch}/{trainer.config.epochs}  {shown}")
        self.file.write("\n")
        self.shown = 0

    def _show(self, text: str) -> None:
        self.file.write(f"\r{text:<{self.shown}}")
        self.file.flush()
        self.shown = len(text)
