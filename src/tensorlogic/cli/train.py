"""The command that trains a graph file."""

from __future__ import annotations

import shlex
import tomllib
import warnings
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from inspect import signature
from pathlib import Path
from typing import Any

import click

from ..errors import FormatError, InputError, expect, expect_known, nearest
from ..ir.files import no_file
from ..ir.whole_files import expect_folder, expect_members, write_whole, writing
from .common import FILE, KINDS, graph_argument, print_json, read_arrays, reported


@click.command("train")
@graph_argument
@click.option("--data", type=FILE, required=True, help="A .npz or Parquet file with an array for each data input.")
@click.option("--validation", type=FILE, help="The same, to measure on after each epoch.")
@click.option("--config", "config_path", type=FILE, help="A TOML file of settings: see above.")
@click.option(
    "--params",
    "params_path",
    type=FILE,
    help="A .npz or safetensors file of first values; without it they are random.",
)
@click.option("--folder", type=FILE, help="Where checkpoints are kept; or folder in the config.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in the folder.")
@click.option("-o", "--output", type=FILE, help="Write the parameters to a .npz or .safetensors file.")
@reported
def train_command(
    graph: Path,
    data: Path,
    validation: Path | None,
    config_path: Path | None,
    params_path: Path | None,
    folder: Path | None,
    resume: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Learn the parameters of a graph file whose output 'loss' is a scalar.

    The parameters are the float inputs of fixed shape that the data file does not have. The TOML file may set what TrainerConfig has
    (epochs, batch_size, seed, clip_norm, ...), a table [optimizer] with its name, rate and settings, and a table [initial] with a
    scheme by pattern of parameters.

    \b
    Examples:
      tensorlogic train model.json --data train.npz -o params.safetensors
      tensorlogic train model.json --data train.parquet --config train.toml --folder run
      tensorlogic train model.json --data train.parquet --config train.toml --resume
    """  # noqa: D301
    from ..ir.graph import EinsumGraph
    from ..train.snapshots import TrainingWarning
    from ..train.trainer import Trainer

    if resume and params_path is not None:
        raise click.UsageError("--resume takes the parameters from the checkpoint: leave --params out")
    if output is not None:
        _check_output(output)
    settings = _settings(config_path)
    if folder is None and isinstance(settings.get("folder"), str):
        folder = Path(settings["folder"])
    if resume and folder is None:
        raise click.UsageError("--resume needs --folder, or folder in the config: where the checkpoints are")
    first = settings.pop("initial", {})
    for name, table in (("initial", first), ("optimizer", settings.get("optimizer", {}))):
        expect(table, dict, f"{name} is a table of the config", f"write [{name}] and its settings below")
    loss, params = EinsumGraph.load(graph), None
    if resume:
        assert folder is not None
        trainer = Trainer.resume(folder)
        trainer.config = _resumed(trainer.config, settings)
    else:
        trainer = Trainer(None, _config(settings, folder))
        params = read_arrays(params_path) if params_path is not None else _drawn(loss, data, first, trainer.config.seed)
    if output is not None and output.suffix == ".npz":
        expect_members(trainer.names if params is None else params, "input")
    done = resume and trainer.epoch >= trainer.config.epochs
    warnings.simplefilter("ignore", TrainingWarning)  # which speaks of Python; `reported` puts the filters back
    try:
        history = trainer.fit(loss, params, data, validation)
    except KeyboardInterrupt:
        checkpoints = trainer.config.folder
        if checkpoints is None:
            click.echo("stopped; nothing is kept: with --folder DIR a run can go on", err=True)
        else:
            words = ["tensorlogic", "train", graph, "--data", data, "--folder", checkpoints, "--resume"]
            for option, value in (("--validation", validation), ("--config", config_path), ("-o", output)):
                words += [] if value is None else [option, value]
            click.echo(f"stopped; to go on: {shlex.join(map(str, words))}", err=True)
        raise SystemExit(130) from None
    if output is not None:
        _write(output, trainer.params)
    if as_json:
        print_json({"epochs": history.epochs, "steps": trainer.steps})
    else:
        click.echo(str(history))
        if done:
            more = f"to go on, write epochs = {2 * trainer.epoch} in the file of --config"
            click.echo(f"all {trainer.epoch} epochs were done before, so nothing was learned; {more}", err=True)
        if output is not None:
            click.echo(f"written to {output}")


def _settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    if not path.exists():
        raise no_file(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError(f"{path} cannot be read: {error}", "write a line such as: epochs = 20", code="E878") from None


def _config(settings: dict[str, Any], folder: Path | None) -> Any:
    from ..train import optim
    from ..train.config import TrainerConfig

    given = dict(settings)
    own = dict(given.pop("optimizer", {"name": "adam"}))
    name = own.pop("name", "adam")
    expect_known("there is no optimizer", [name], optim.OPTIMIZERS, "E878")
    rate = own.pop("rate", None)
    if isinstance(rate, dict):
        schedule = rate.pop("schedule", None)
        if schedule is None:
            hint = 'write rate = {schedule = "cosine", rate = 1e-3, steps = 1000}'
            raise InputError(f"the rate of the optimizer is a table that names no schedule: {rate}", hint, code="E878")
        expect_known("there is no schedule", [schedule], optim.SCHEDULES, "E878")
        rate = _called(optim.SCHEDULES[schedule], {"rate": 1e-3, **rate}, f"the schedule {schedule}")
    own = own if rate is None else {"rate": rate, **own}
    optimizer = _called(optim.OPTIMIZERS[name], own, f"the optimizer {name}")
    expect_known("the config has no setting", given, [f.name for f in fields(TrainerConfig)], "E878")
    given["folder"] = given.get("folder") if folder is None else folder
    return TrainerConfig(**given, optimizer=optimizer)


def _resumed(config: Any, settings: dict[str, Any]) -> Any:
    """Return the config of a run that goes on: the one it began with, for as many epochs as the file says now."""
    now = _config(settings, config.folder)
    for name in settings:
        before, after = getattr(config, name), getattr(now, name)
        if name not in ("epochs", "folder", "progress") and repr(after) != repr(before):
            message = f"{name} is {before!r} in the checkpoint, and {after!r} in the config file"
            hint = "a run goes on with the settings that it began with; only epochs may change"
            raise InputError(message, hint, code="E878")
    return replace(config, epochs=now.epochs) if "epochs" in settings else config


def _called(make: Any, options: dict[str, Any], what: str) -> Any:
    known = list(signature(make).parameters)
    for name in options:
        if name not in known:
            raise InputError(f"{what} has no setting {name!r}", *_setting(name, known), code="E878")
    try:
        return make(**options)
    except TypeError as error:
        raise InputError(f"{what}: {error}", f"its settings: {', '.join(known)}", code="E878") from None


def _setting(name: str, known: list[str]) -> list[str]:
    """Return what was meant by a setting: other libraries call the learning rate lr."""
    return ["did you mean 'rate'?"] if name in ("lr", "learning_rate") and "rate" in known else nearest(name, known)


def _drawn(loss: Any, data: Path, scheme: dict[str, str], seed: int) -> dict[str, Any]:
    """Draw first values for the float inputs of fixed shape that the data does not have."""
    from ..ir.random import STEP, TRAINING
    from ..train.data import names_in
    from ..train.initial import initial

    there = {*names_in(data), STEP, TRAINING}
    names = [
        n for n, i in loss.inputs.items() if n not in there and n not in loss.output_names and _fixed(loss.type_of(i))
    ]
    for pattern in scheme:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"[initial]: there is no parameter {pattern!r}", *nearest(pattern, names), code="E878")
    return initial(loss, names, {**scheme, "*": "glorot"} if scheme else "glorot", seed=seed)


def _fixed(kind: Any) -> bool:
    return kind.shape is not None and kind.shape.is_static and kind.dtype in (None, "float16", "float32", "float64")


def _check_output(path: Path) -> None:
    """Refuse a file that could not be written before anything is learned."""
    if path.suffix not in KINDS:
        raise InputError(f"{path} is neither .npz nor .safetensors", "write -o params.npz", code="E852")
    expect_folder(path, "E543")


def _write(path: Path, params: dict[str, Any]) -> None:
    """Write the parameters whole or not at all, as a file that others may read as usual."""
    import numpy as np

    from .graphs import write_npz

    def write(temporary: Path) -> None:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save  # its save_file makes files that only their owner may read

            temporary.write_bytes(save({name: np.asarray(value, order="C") for name, value in params.items()}))
        else:
            write_npz(temporary, params)

    with writing(path):
        write_whole(path, write)
