"""The settings of a trainer, and of single parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..diagnostics import value_text
from ..errors import InputError, expect, expect_known, expect_whole, nearest
from ..ir.types import TensorType
from . import optim
from .optim import Optimizer
from .schedules import check_number
from .step import HIGHEST_SCALE, Setting


@dataclass(frozen=True)
class TrainerConfig:
    """The settings of a :class:`Trainer`.

    ``settings`` say what holds for some parameters, by name or pattern: ``{"embed*": {"frozen": True}, "w2": {"rate": 0.1,
    "weight_decay": 1e-4}}``, where the rate is a share of the optimizer's, and the weight decay takes the place of its own. ``accumulate=4`` computes each batch in four parts and adds up their gradients, to save memory. ``precision`` is a
    dtype that the loss is computed in (float16). ``straight_through`` lets gradients pass through rounding and steps as if they were
    not there, as learning with quantized weights needs. ``average`` keeps a moving average of the parameters by that factor, in
    ``trainer.averages``. ``prefetch`` is the number of batches of an iterable that a thread reads ahead; it must yield new arrays each time. With a
    ``folder`` checkpoints are kept there, after each epoch and after every ``every`` steps.

    >>> TrainerConfig(epochs=3).batch_size
    32
    """

    optimizer: Optimizer = field(default_factory=optim.adam)
    epochs: int = 10
    batch_size: int = 32
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    prefetch: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    average: float | None = None
    precision: str | None = None
    straight_through: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folder: str | Path | None = None
    every: int | None = None
    keep: int = 3
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 0),
            ("batch_size", 1),
            ("accumulate", 1),
            ("keep", 1),
            ("seed", 0),
            ("prefetch", 0),
        ):
            expect_whole(name, getattr(self, name), least)
        for name in ("shuffle", "drop_last", "straight_through"):
            expect(getattr(self, name), bool, f"{name}= is True or False", f"write {name}=False")
        expect(self.optimizer, Optimizer, "optimizer= is an optimizer", "write tl.optim.adam(1e-3)")
        if self.every is not None:
            expect_whole("every", self.every, 1)
        for name, below in (("clip_norm", math.inf), ("clip_value", math.inf), ("average", 1.0)):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), below=below)
        expect(self.settings, Mapping, "settings= are mappings by parameter", 'write settings={"w": {"frozen": True}}')
        for name, own in self.settings.items():
            expect(name, str, "settings= are by the name of a parameter")
            expect(own, Mapping, f"settings of {name!r} are a mapping", 'write {"frozen": True}')
            for key in own.keys() & {"rate", "weight_decay"}:
                check_number(f"{key} of {name!r}", own[key], zero=True)
        if self.folder is not None:
            expect(self.folder, (str, Path), "folder= is a path", 'write folder="run"')
        if self.precision is not None:
            expect_known("precision= is a dtype of half the size, got", [self.precision], HIGHEST_SCALE, "E859")


def settings_of(given: Mapping[str, Mapping[str, Any]], params: Mapping[str, TensorType]) -> dict[str, Setting]:
    """Return what holds for each parameter; of patterns that fit the same one, later ones count."""
    found: dict[str, Setting] = {}
    for pattern, own in given.items():
        names = [name for name in params if fnmatchcase(name, pattern)]
        if not names:
            raise InputError(
                f"settings: there is no parameter {value_text(pattern)}", *nearest(pattern, params), code="E863"
            )
        for key in own:
            if key not in Setting._fields:
                raise InputError(
                    f"settings of {pattern!r}: there is no {value_text(key)}",
                    *nearest(key, Setting._fields),
                    code="E872",
                )
        for name in names:
            found[name] = found.get(name, Setting())._replace(**own)
    return found
