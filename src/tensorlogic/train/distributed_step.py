"""A training step on several devices: parameters and optimizer state stay there, and are fetched when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.distributed.config import DistributedConfig
from ..runtime.distributed.resident import Resident
from ..runtime.executor import Executor
from .step import COUNT, RATE, TrainingStep

Array = Any


class DistributedStep:
    """Runs a training step on batch after batch, each of which the devices of a config share.

    ``values`` holds what one step hands to the next, as it was when it was fetched last; an array that is put into it takes the place of
    what the devices have.
    """

    def __init__(
        self,
        executor: Executor,
        step: TrainingStep,
        values: dict[str, Array],
        given: Mapping[str, Array],
        config: DistributedConfig,
    ) -> None:
        self.step, self.values = step, values
        self.rate, self.count = np.zeros(()), np.zeros(())
        every = {RATE: self.rate, COUNT: self.count, **given}
        self.given = {name: value for name, value in every.items() if name in step.graph.inputs}
        shares = optimizer_shares(step, values, config) if config.shard_optimizer else {}
        self._resident = Resident(executor, step.graph, step.carried, config, shares)
        self._known: dict[str, Array] = {}  # the arrays of ``values`` that the devices were given, or gave back
        self._stale = False  # whether the devices have newer values

    def __call__(self, arrays: Mapping[str, Array], rate: float, count: int) -> list[float]:
        """Take one step on a batch and return its figures, the loss first."""
        self.rate[()], self.count[()] = rate, count
        new = {name: self.values[name] for name in self.step.carried if self._known.get(name) is not self.values[name]}
        if self._stale and new and len(new) < len(self.step.carried):
            self.fetch()
        constant = {name: value for name, value in self.values.items() if name not in self.step.carried}
        try:
            self._resident.put(new)
            figures = self._resident.run({**self.given, **constant, **arrays})
        except BaseException:  # what the devices had may be gone, or half of a step
            self._known, self._stale = {}, False
            raise
        self._known |= new
        self._stale = True
        return [figures[name].item() for name in self.step.figures]

    def fetch(self) -> None:
        """Bring what the devices have into ``values``."""
        if self._stale:
            new = {name: self.values[name] for name in self._known if self._known[name] is not self.values[name]}
            self.values |= {**self._resident.fetch(), **new}
            self._known = {name: self.values[name] for name in self._known if name not in new}
            self._stale = False

    def close(self) -> None:
        """Bring the values back, and let the devices forget them."""
        self.fetch()
        self._resident.close()
        self._known = {}


def optimizer_shares(step: TrainingStep, values: Mapping[str, Array], config: DistributedConfig) -> dict[str, int]:
    """Return the axis along which each device has a share of what the optimizer keeps; what is too small for that stays whole."""
    mesh = config.mesh
    if mesh.data == 1 or mesh.model > 1:
        message = f"shard_optimizer= needs devices that share rows only, and the mesh has {mesh.data} along data, {mesh.model} along model"
        raise InputError(message, "write strategy=DataParallel(num_replicas=...)", code="E386")
    found = {}
    for label in (*step.zeros, *step.averages):
        axis = next((a for a, size in enumerate(values[label].shape) if size >= mesh.data), None)
        if axis is not None:
            found[label] = axis
    return found
