"""Where a run stands in its data, and undoing a failed batch.

The values at the beginning of an epoch are kept, and the steps up to the failed batch are run again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..runtime.recovery.checkpoints import CheckpointWarning

if TYPE_CHECKING:
    from .bound_step import BoundStep
    from .data import ArrayBatches, GivenBatches
    from .distributed_step import DistributedStep
    from .trainer import Trainer


class TrainingWarning(UserWarning):
    """A run that does something else than its caller may expect, such as nothing because all epochs are over.

    >>> issubclass(TrainingWarning, UserWarning)
    True
    """


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


def rewind(
    trainer: Trainer, snapshot: Snapshot, bound: BoundStep | DistributedStep, batches: ArrayBatches | GivenBatches
) -> None:
    """Put the parameters back to what they were before the batch that failed, by taking the steps before it again.

    Where these fail too, or the batches cannot be had again, the run stands where the epoch began.
    """
    last = trainer.batch
    snapshot.put_back(trainer)
    if last == trainer.batch or not _can_repeat(trainer, batches):
        return
    try:
        for batch in batches.epoch(trainer.epoch, trainer.batch):
            if trainer.batch == last:
                return
            trainer.learn(bound, batch)
    except Exception:
        snapshot.put_back(trainer)


def _can_repeat(trainer: Trainer, batches: ArrayBatches | GivenBatches) -> bool:
    """Tell whether steps can be taken again: ranks that other processes are may not be there any more."""
    return batches.replayable and not (trainer.distributed is not None and trainer.distributed.beside_others)


def spoiled(trainer: Trainer, snapshot: Snapshot) -> str | None:
    """Return a parameter that is infinite or NaN, and was not when the snapshot was taken."""
    for name in trainer.names:
        if not _is_finite(trainer.values[name]) and _is_finite(snapshot.values[name]):
            return name
    return None


def _is_finite(array: Any) -> bool:
    """Tell whether all of an array is finite, with no array made for that: NaN is the least and the largest of what it is in."""
    return not array.size or bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def before_spoiled(
    trainer: Trainer, snapshot: Snapshot, bound: BoundStep | DistributedStep, batches: ArrayBatches | GivenBatches
) -> dict[str, Any] | None:
    """Find the step that made a parameter infinite or NaN, let the trainer stand before it, and return the arrays of its batch.

    Where steps cannot be taken again, the trainer stands where the epoch began.
    """
    snapshot.put_back(trainer)
    if not _can_repeat(trainer, batches):
        return None
    for batch in batches.epoch(trainer.epoch, trainer.batch):
        trainer.learn(bound, batch)
        if spoiled(trainer, snapshot) is not None:
            arrays = {name: np.array(array) for name, array in batch.arrays.items()}
            trainer.batch -= 1
            rewind(trainer, snapshot, bound, batches)
            return arrays
    snapshot.put_back(trainer)
    return None


def warn_where_done(trainer: Trainer) -> None:
    """Say that ``fit`` learns nothing, where a run goes on that has done all epochs of its config."""
    epochs = trainer.config.epochs
    if trainer.epoch and trainer.epoch >= epochs:
        message = (
            f"all {epochs} epochs of the config are done, so fit learns nothing more; to go on: "
            f"trainer.config = dataclasses.replace(trainer.config, epochs={2 * epochs})"
        )
        warnings.warn(message, TrainingWarning, stacklevel=3)


def check_same_data(trainer: Trainer, batches: ArrayBatches | GivenBatches) -> None:
    """Notice data other than what a run that goes on had: within an epoch it would mix both."""
    before, now = trainer.data_digest, batches.digest()
    if before is not None and now is not None and now != before:
        if trainer.batch:
            message = f"the run stands after batch {trainer.batch} of epoch {trainer.epoch + 1} of other data"
            hint = "go on with the same arrays, of the same lengths and dtypes; a new Trainer begins with other data"
            raise InputError(message, hint, code="E884")
        if trainer.resumed:
            message = "the data is not what the run learned from before it was saved, so it will differ from one that never stopped"
            warnings.warn(message, CheckpointWarning, stacklevel=3)
    trainer.data_digest, trainer.resumed = now, False
