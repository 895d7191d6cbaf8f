"""Undoing a failed batch: the values at the beginning of an epoch are kept, and the steps up to that batch are run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .trainer import Trainer

POSITION = ("epoch", "batch", "steps", "rows")


class Snapshot:
    """What a trainer had at some moment; its arrays are written over when the next one is taken."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sums: dict[str, float] = {}
        self.position: dict[str, int] = {}

    def take(self, trainer: Trainer) -> None:
        """Keep copies of what the trainer has now."""
        for name, value in trainer.values.items():
            array = self.values.get(name)
            if array is not None and array.shape == value.shape:
                np.copyto(array, value)
            else:
                self.values[name] = np.array(value)
        self.sums, self.position = dict(trainer.sums), position_of(trainer)

    def put_back(self, trainer: Trainer) -> None:
        """Give the trainer back what it had."""
        set_position(trainer, self.position)
        trainer.sums = dict(self.sums)
        for name, value in self.values.items():
            trainer.values[name] = value.copy()


def position_of(trainer: Trainer) -> dict[str, int]:
    """Return where in its data a trainer stands."""
    return {name: getattr(trainer, name) for name in POSITION}


def set_position(trainer: Trainer, position: Mapping[str, int]) -> None:
    """Let a trainer stand elsewhere in its data."""
    for name in POSITION:
        setattr(trainer, name, position[name])
