"""The trainer: runs one training step for each batch, calls callbacks, and saves checkpoints to resume from."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError, TrainingError, expect, nearest
from ..events import check_contexts, span
from ..ir.check import expect_graph
from ..ir.graph import EinsumGraph
from ..ir.random import STEP, TRAINING
from ..ir.types import TensorType, named_array
from ..runtime.distributed.config import DistributedConfig
from ..runtime.executor import Executor
from ..runtime.recovery.checkpoints import CheckpointManager
from .bound_step import BoundStep
from .callbacks import VALIDATION, Callback, Progress, callback_list, step_hooks, watched
from .config import TrainerConfig, settings_of
from .data import ArrayBatches, Batch, Data, GivenBatches, batches_of
from .distributed_step import DistributedStep
from .evaluation import Measured, blame, evaluate, loss_in_full, measured, next_place, note_batch, predict
from .history import History
from .interrupts import Interrupts
from .optim import Optimizer
from .schedules import Plateau, Schedule
from .snapshots import Snapshot, before_spoiled, check_same_data, rewind, spoiled, warn_where_done
from .starting_values import are_swapped, own_array, own_arrays, starting_values
from .step import AVERAGE, OWN, TrainingStep, training_step, wanted_data


class Trainer:
    """Trains the parameters of a loss graph on data.

    The output ``loss`` of the graph is a scalar; its inputs are the parameters and the data. Other scalar outputs are figures of the
    history; an output that has the name of an input is that input's next value (running means). With ``distributed`` the devices of a
    config share the rows of every batch.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, y, w = b.input("x", ("n", 2), "float32"), b.input("y", ("n",), "float32"), b.input("w", (2,), "float32")
    >>> graph = b.build(loss=b.mean_squared_error(x @ w, y))
    >>> X = np.random.default_rng(0).normal(size=(100, 2)).astype("float32")
    >>> trainer = tl.Trainer(tl.Executor(), tl.TrainerConfig(optimizer=tl.optim.sgd(0.1), epochs=20))
    >>> history = trainer.fit(graph, params={"w": np.zeros(2, "float32")}, data={"x": X, "y": X @ np.float32([1, -2])})
    >>> trainer.params["w"].round(3), history["loss"][-1] < 1e-6
    (array([ 1., -2.], dtype=float32), True)
    """

    def __init__(
        self,
        executor: Executor | None = None,
        config: TrainerConfig | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        distributed: DistributedConfig | None = None,
    ) -> None:
        self.distributed = distributed
        self.executor = Executor() if executor is None else executor
        self.config = TrainerConfig() if config is None else config
        expect(self.executor, Executor, "a trainer runs on an Executor", "write tl.Trainer(tl.Executor(), config)")
        expect(self.config, TrainerConfig, "a TrainerConfig is expected", "write tl.TrainerConfig(epochs=20)")
        hint = "write DistributedConfig([Device.CPU(0), Device.CPU(1)])"
        expect(distributed, (DistributedConfig, type(None)), "distributed= is a DistributedConfig", hint)
        self.callbacks = callback_list(callbacks)
        self.loss: EinsumGraph | None = None
        self.history = History()
        self.epoch = 0  # epochs that are over
        self.batch = 0  # batches of the present epoch that are over
        self.steps = 0  # batches that were learned from, in all epochs
        self.latest_rows = 0  # of the last batch
        self._values: dict[str, Any] = {}  # what one step hands to the next: parameters, states, the optimizer's own
        self.sums: dict[str, float] = {}  # figures of the present epoch so far, each times its rows
        self.rows = 0  # of the present epoch so far
        self.plateau: dict[str, float] = {}
        self.names: tuple[str, ...] = ()  # of the parameters
        self.data_digest: str | None = None  # of the data that it learns from, where that is known
        self.resumed = False  # from a checkpoint, and not gone on yet
        self._step: TrainingStep | None = None
        self._fixed: dict[str, Any] = {}
        self._stopping = ""
        self._snapshot = Snapshot()
        self._distributed_step: DistributedStep | None = None  # that may have newer values

    def __repr__(self) -> str:
        learned = ", ".join(self.names) or "nothing yet"
        return f"<Trainer of {learned}: epoch {self.epoch} of {self.config.epochs}, {self.steps:,} steps>"

    @property
    def values(self) -> dict[str, Any]:
        """What one step hands to the next: parameters, states, the optimizer's own; devices that have newer values give them back."""
        if self._distributed_step is not None:
            self._distributed_step.fetch()
        return self._values

    @values.setter
    def values(self, values: dict[str, Any]) -> None:
        self._values = values

    @property
    def params(self) -> dict[str, Any]:
        """The parameters as they are now, as copies: the next step writes over its own."""
        return {name: np.array(self.values[name]) for name in self.names}

    @property
    def averages(self) -> dict[str, Any]:
        """The moving averages of the parameters (``average=`` of the config), as copies."""
        found = [label for label in self.values if label.startswith(AVERAGE)]
        return {label.removeprefix(AVERAGE): np.array(self.values[label]) for label in found}

    @property
    def states(self) -> dict[str, Any]:
        """What the loss graph hands on from batch to batch beside the parameters, as copies."""
        names = [n for n in self.values if n not in self.names and not n.startswith(OWN)]
        return {name: np.array(self.values[name]) for name in names}

    def stop(self, reason: str) -> None:
        """End the run after this epoch; callbacks call it."""
        self._stopping = reason

    def replace(self, params: Mapping[str, Any]) -> None:
        """Put other values in place of some parameters."""
        for name, value in params.items():
            if name not in self.names:
                raise InputError(f"there is no parameter {value_text(name)}", *nearest(name, self.names), code="E863")
            new = own_array(name, value)
            if new.shape != self.values[name].shape:
                shapes = f"{list(self.values[name].shape)}, got {list(new.shape)}"
                raise InputError(f"the parameter {name!r} has the shape {shapes}", code="E863")
            self.values[name] = new.astype(self.values[name].dtype)

    # learning

    def fit(
        self,
        loss: EinsumGraph | None = None,
        params: Mapping[str, Any] | None = None,
        data: Data = None,
        validation: Data = None,
        *,
        fixed: Mapping[str, Any] | None = None,
        states: Mapping[str, Any] | None = None,
    ) -> History:
        """Learn for as many epochs as the config says, counting those before, and return the history.

        ``data`` holds arrays with a row for each example, by name; or it is a data frame or Arrow table, a path to a .npz or Parquet
        file, a list of batches, or a function that returns the batches of an epoch.
        ``fixed`` inputs are the same in every batch; ``states`` are what running values begin with. A second call goes on, and so
        does a trainer from :meth:`resume`: the graph and the parameters are then those it has. To learn for longer, give it more epochs:
        ``trainer.config = dataclasses.replace(trainer.config, epochs=40)``.
        """
        for what, given in (("fixed", fixed), ("states", states)):
            if given is not None:
                expect(given, Mapping, f"{what}= are arrays by name", f'write {what}={{"table": array}}')
        self._fixed = {name: named_array(f"fixed {value_text(name)}", value) for name, value in (fixed or {}).items()}
        for name in (*self._fixed, *(states or {})):
            if (known := loss or self.loss) is not None and name not in getattr(known, "inputs", (name,)):
                raise InputError(f"the loss graph has no input {name!r}", *nearest(name, known.inputs), code="E302")
        graph = self._graph(loss)
        try:
            if not self.values:
                self._begin(graph, params, states or {})
            batches = self.batches(data, self.config.seed if self.config.shuffle else None)
        except InputError as error:
            if are_swapped(graph, params, data):
                error.diagnostic = error.diagnostic.with_suggestion(
                    "the parameters come first: fit(graph, params, data)"
                )
            raise
        check_same_data(self, batches)
        on = None if validation is None else measured(self, validation, self._fixed)
        watching = [*self.callbacks, *Progress.wanted(self.config.progress)]
        step = self.planned(graph)
        warn_where_done(self)
        self._stopping = ""
        for callback in watching:
            callback.on_begin(self, batches.count())
        try:
            bound = self._bound(step, watching, (batches.count() or 0) * self.config.epochs)
            with span("fit"), Interrupts() as interrupts:
                while self.epoch < self.config.epochs and not self._stopping:
                    with span(f"epoch {self.epoch + 1}"):
                        self._one_epoch(bound, batches, on, watching, interrupts)
        except KeyboardInterrupt as error:
            if self.config.folder is not None:
                self.save(self.config.folder)
                error.add_note(
                    f"to go on: trainer = tl.Trainer.resume({str(self.config.folder)!r}), then fit(data=...)"
                )
            raise
        finally:
            for callback in watching:
                callback.on_end(self)
            if self._distributed_step is not None:
                self._distributed_step.close()
                self._distributed_step = None
        return self.history

    def _bound(self, step: TrainingStep, watching: Sequence[Callback], calls: int) -> BoundStep | DistributedStep:
        """Return the step with its arrays: on this device, or on those that share every batch; the run has so many steps in all."""
        if self.distributed is None:
            return BoundStep(self.executor, step, self.values, self.given(), step_hooks(watching), calls)
        for callback in step_hooks(watching):
            name = type(callback).__name__
            message = f"the callback {name} asks for the steps of each run, which stay with the ranks"
            raise InputError(message, "use on_batch and on_epoch, or learn on one device", code="E389")
        self._distributed_step = DistributedStep(self.executor, step, self.values, self.given(), self.distributed)
        return self._distributed_step

    def _graph(self, loss: EinsumGraph | None) -> EinsumGraph:
        """Return the loss graph: the one that is given or, in a run that goes on, the one it has."""
        if loss is None and self.loss is None:
            raise InputError("there is no loss graph", "write trainer.fit(graph, params=..., data=...)", code="E864")
        if loss is not None:
            expect_graph(loss, "the loss is an EinsumGraph", "loss")
            if self.loss is not None and loss != self.loss:
                message = f"this trainer learns {self.loss!r}, and was given {loss!r}"
                raise InputError(message, "make a new Trainer for another graph", code="E865")
            self.loss = loss
        assert self.loss is not None
        return self.loss

    def _begin(self, graph: EinsumGraph, params: Mapping[str, Any] | None, states: Mapping[str, Any]) -> None:
        """Take the parameters over, and make what the optimizer starts from."""
        given = own_arrays(graph, params)
        if self.config.folder is not None:
            CheckpointManager(self.config.folder).refuse_used("a training")
        self.names = tuple(given)
        step = self.planned(graph, {name: TensorType.of(array) for name, array in given.items()})
        self.values = starting_values(step, given, states)
        if isinstance(self.config.optimizer.rate, Plateau):
            self.plateau = self.config.optimizer.rate.start()

    def planned(self, graph: EinsumGraph, types: Mapping[str, TensorType] | None = None) -> TrainingStep:
        """Return the graph of a step, made once."""
        if self._step is None:
            config = self.config
            types = types or {name: TensorType.of(self.values[name]) for name in self.names}
            rows = [n for n in graph.inputs if n not in types and n not in self._fixed and n not in (TRAINING, STEP)]
            self._step = training_step(
                graph,
                types,
                config.optimizer,
                settings=settings_of(config.settings, types),
                clip_norm=config.clip_norm,
                clip_value=config.clip_value,
                average=config.average,
                precision=config.precision,
                micro_batches=config.accumulate,
                rows=[n for n in rows if n not in graph.output_names],
                straight_through=config.straight_through,
            )
        return self._step

    def given(self) -> dict[str, Any]:
        """Return the inputs that are the same in every step, but for the number of the step, which is written into."""
        assert self.loss is not None
        own = {TRAINING: np.array(True), STEP: np.array(self._random_step(), "uint64")}
        return self._fixed | {name: value for name, value in own.items() if name in self.loss.inputs}

    def batches(self, data: Data, seed: int | None) -> ArrayBatches | GivenBatches:
        """Return the batches of data to learn from."""
        assert self.loss is not None
        config, wanted = self.config, wanted_data(self.loss, {*self.values, *self._fixed})
        return batches_of(data, wanted, config.batch_size, seed, drop_last=config.drop_last, ahead=config.prefetch)

    def _one_epoch(
        self,
        bound: BoundStep | DistributedStep,
        batches: ArrayBatches | GivenBatches,
        validation: Measured | None,
        watching: Sequence[Callback],
        interrupts: Interrupts,
    ) -> None:
        start, config = perf_counter(), self.config
        hearing = [c for c in watching if type(c).on_batch is not Callback.on_batch]
        self._snapshot.take(self)
        for batch in batches.epoch(self.epoch, self.batch):
            interrupts.check()
            check_contexts()
            try:
                figures = self.learn(bound, batch)
            except BaseException as error:
                note_batch(self, error, batch.arrays)
                rewind(self, self._snapshot, bound, batches)
                raise
            if not math.isfinite(figures[0]) and not self._overflowed(batch):
                bad = {name: np.array(array) for name, array in batch.arrays.items()}
                self.batch, self.steps = self.batch - 1, self.steps - 1
                where = next_place(self)
                rewind(self, self._snapshot, bound, batches)
                self._check_params(bound, batches)
                blame(self, bad, f"the loss is {figures[0]}", where)
            for callback in hearing:
                callback.on_batch(self, dict(zip(bound.step.figures, figures, strict=True)))
            if config.every and config.folder is not None and self.steps % config.every == 0:
                self._check_params(bound, batches)
                self.save(config.folder)
        interrupts.check()
        if not self.rows:
            raise InputError("the data has no batches", "give at least one", code="E855")
        self._check_params(bound, batches)
        found = {name: total / self.rows for name, total in self.sums.items()}
        if validation is not None:
            found |= {f"{VALIDATION}{n}": v for n, v in evaluate(self, validation).items()}
        found["rate"] = self.rate()
        self.epoch, self.batch, self.sums, self.rows = self.epoch + 1, 0, {}, 0
        self.history.append(found)
        rate = config.optimizer.rate
        if isinstance(rate, Plateau):
            self.plateau = rate.after(self.plateau, watched(found, rate.watch))
        shown = {**found, "seconds": perf_counter() - start}
        for callback in watching:
            callback.on_epoch(self, shown)
        if config.folder is not None:
            self.save(config.folder)

    def _overflowed(self, batch: Batch) -> bool:
        """Tell whether the loss of a batch that was skipped is no number in half precision only."""
        return self.config.precision is not None and math.isfinite(loss_in_full(self, batch.arrays))

    def _check_params(self, bound: BoundStep | DistributedStep, batches: ArrayBatches | GivenBatches) -> None:
        """Refuse parameters that a step of this epoch left infinite or NaN; they are then those before it."""
        if (name := spoiled(self, self._snapshot)) is None:
            return
        if (bad := before_spoiled(self, self._snapshot, bound, batches)) is not None:
            blame(self, bad, f"the parameter {name!r} is no number after the step", next_place(self))
        message = f"the parameter {name!r} became infinite or NaN in epoch {self.epoch + 1}"
        hint = "use a lower rate, or clip_norm=1.0; the parameters are those before the epoch"
        raise TrainingError(message, hint, code="E871")

    def learn(self, bound: BoundStep | DistributedStep, batch: Batch) -> list[float]:
        """Take the step of a batch, count it, and return its figures, the loss first."""
        (rows, arrays), parts = batch, self.config.accumulate
        if STEP in bound.given:
            bound.given[STEP][...] = self._random_step()
        if parts > 1:
            if rows % parts:
                hint = f"use a batch_size that {parts} divides, and drop_last=True where the last batch is short"
                raise InputError(f"a batch of {rows} examples has no {parts} equal parts", hint, code="E870")
            arrays = {n: a.reshape(parts, rows // parts, *a.shape[1:]) for n, a in arrays.items()}
        figures = bound(arrays, self.rate(), self.steps + 1)
        self.batch += 1
        self.steps += 1
        self.rows += rows
        self.latest_rows = rows
        sums = self.sums
        for name, value in zip(bound.step.figures, figures, strict=True):
            sums[name] = sums.get(name, 0.0) + value * rows
        return figures

    def _random_step(self) -> int:
        """Return the number that the random numbers of this step depend on."""
        return (self.config.seed * 0x9E3779B1 + self.steps) % (1 << 31)

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        match self.config.optimizer.rate:
            case Schedule() as schedule:
                return schedule(self.steps)
            case Plateau() as plateau:
                return plateau.rate_of(self.plateau)
            case rate:
                return float(rate)

    # using what was learned

    def evaluate(self, data: Data, *, fixed: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the loss and the other figures on data, with nothing learned and nothing dropped out."""
        return evaluate(self, measured(self, data, fixed))

    def predict(self, data: Data, output: str, *, fixed: Mapping[str, Any] | None = None) -> Any:
        """Return an output of the loss graph for data; inputs that it does not need, such as labels, need not be given."""
        return predict(self, data, output, fixed)

    # checkpoints

    @property
    def writes_checkpoints(self) -> bool:
        """Whether this process is the one that writes checkpoints: of several that run the same script as ranks, the first does."""
        return self.distributed is None or not self.distributed.beside_others or os.environ["RANK"] == "0"

    def save(self, folder: str | Path, *, keep: int | None = None) -> None:
        """Keep all that is needed to go on in a folder: parameters, optimizer, position and history."""
        from .trainer_checkpoints import save_trainer

        save_trainer(self, folder, self.config.keep if keep is None else keep)

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        executor: Executor | None = None,
        *,
        optimizer: Optimizer | None = None,
        callbacks: Sequence[Callback] = (),
        distributed: DistributedConfig | None = None,
    ) -> Trainer:
        """Return the trainer of the newest good checkpoint in a folder; ``fit`` goes on bit for bit as if it had never stopped.

        An optimizer or schedule of the user's own is not in the checkpoint and must be given again; so must the devices of ``distributed``, of which
        there may be fewer or more than before.
        """
        from .trainer_checkpoints import load_trainer

        return load_trainer(cls, folder, executor, optimizer, callbacks, distributed)
