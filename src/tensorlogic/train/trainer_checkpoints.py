"""Trainers on disk: a checkpoint holds what a step hands to the next, the position in the data, and the history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, InputError
from ..ir.graph import EinsumGraph
from ..runtime.recovery.checkpoints import CheckpointManager
from . import optim
from .history import History
from .snapshots import position_of, set_position

if TYPE_CHECKING:
    from ..runtime.distributed.config import DistributedConfig
    from ..runtime.executor import Executor
    from .callbacks import Callback
    from .optim import Optimizer
    from .trainer import Trainer

GRAPH = "loss.json"
FIGURES = ("sums", "plateau")  # numbers by name


def save_trainer(trainer: Trainer, folder: str | Path, keep: int) -> None:
    """Write a checkpoint of a trainer, and its loss graph where it is not there yet."""
    if trainer.loss is None:
        raise InputError("this trainer has learned nothing yet", "call fit first", code="E864")
    values = trainer.values
    if not trainer.writes_checkpoints:  # another rank does, which has the same
        return
    with CheckpointManager(folder, keep) as manager:
        path = Path(folder)
        digest = trainer.loss.digest
        if not (path / GRAPH).exists() or EinsumGraph.load(path / GRAPH).digest != digest:
            trainer.loss.save(path / GRAPH)
        facts = {
            "graph": digest,
            "config": _config_json(trainer),
            "names": list(trainer.names),
            "history": [_as_json(epoch) for epoch in trainer.history.epochs],
            "plans": trainer.executor.programs.choices(),
            "data": trainer.data_digest,
            **position_of(trainer),
            **{name: _as_json(getattr(trainer, name)) for name in FIGURES},
        }
        manager.save(values, facts)


def _config_json(trainer: Trainer) -> dict[str, Any]:
    config = trainer.config
    own = {f.name: getattr(config, f.name) for f in fields(config)}
    own["folder"] = None if config.folder is None else str(config.folder)
    own["settings"] = {name: dict(each) for name, each in config.settings.items()}
    return {**own, "optimizer": optim.to_json(config.optimizer)}


def load_trainer(
    kind: type[Trainer],
    folder: str | Path,
    executor: Executor | None,
    optimizer: Optimizer | None,
    callbacks: Sequence[Callback],
    distributed: DistributedConfig | None = None,
) -> Trainer:
    """Return the trainer of the newest good checkpoint."""
    from .config import TrainerConfig

    found = CheckpointManager(folder).latest()
    path = Path(folder)
    if found is None:
        hint = "trainer.save(folder) makes one, and so does TrainerConfig(folder=...)"
        raise FormatError(f"there is no checkpoint of a trainer in {path}", hint, code="E873")
    facts = found.facts
    if "config" not in facts or not (path / GRAPH).exists():
        raise FormatError(f"{path} holds checkpoints of something else than a trainer", code="E873")
    graph = EinsumGraph.load(path / GRAPH)
    if graph.digest != facts["graph"]:
        message = f"the checkpoint is of a graph {facts['graph'][:12]}, but {path / GRAPH} is {graph.digest[:12]}"
        raise FormatError(message, "put the graph back that belongs to it", code="E865")
    own = dict(facts["config"])
    own["optimizer"] = optim.from_json(own["optimizer"]) if optimizer is None else optimizer
    trainer = kind(executor, replace(TrainerConfig(), **own), callbacks=callbacks, distributed=distributed)
    trainer.executor.programs.prefer(facts.get("plans", {}))  # others might round otherwise
    trainer.loss, trainer.names, trainer.values = graph, tuple(facts["names"]), dict(found.arrays)
    trainer.history = History([_from_json(epoch) for epoch in facts["history"]])
    trainer.data_digest, trainer.resumed = facts.get("data"), True
    set_position(trainer, facts)
    for name in FIGURES:
        setattr(trainer, name, _from_json(facts[name]))
    return trainer


def _as_json(figures: Mapping[str, float]) -> dict[str, float | str]:
    """Return figures for JSON, which has no word for infinity and NaN: half precision may overflow, and nothing is the best yet."""
    return {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}


def _from_json(figures: Mapping[str, float | str]) -> dict[str, float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in figures.items()}
