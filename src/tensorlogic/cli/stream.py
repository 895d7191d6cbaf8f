"""``tensorlogic run MODEL --stream SOURCE``: a graph over a file that is larger than memory, with progress, checkpoints and Ctrl-C."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from ..errors import CancelledError, TensorLogicError
from . import common
from .common import FILE, Texts

F = TypeVar("F", bound=Callable[..., None])
INTERRUPTED = 130  # the exit code of a command that Ctrl-C stopped


class StreamOptions(NamedTuple):
    """What the command line says of a stream."""

    source: str | None
    over: str | None
    chunk: int | None
    memory: float | None
    checkpoint: Path | None
    every: int | None
    resume: bool

    def arguments(self) -> list[str]:
        """Return the options as they are typed."""
        names = ("source", "over", "chunk", "memory", "checkpoint", "every")
        typed = [(f"--{'stream' if name == 'source' else name}", getattr(self, name)) for name in names]
        return [word for name, value in typed if value is not None for word in (name, str(value))]


OPTIONS = (
    click.option(
        "--stream",
        "source",
        metavar="FILE",
        help="Run over the rows of a file, chunk by chunk: .npy, .npz, .csv, .tsv, .parquet, "
        ".arrow, .feather, or a folder of Parquet files.",
    ),
    click.option(
        "--over",
        metavar="NAME",
        help="The size or the input that is streamed, where the inputs that are left do not tell.",
    ),
    click.option("--chunk", type=click.IntRange(1), metavar="ROWS", help="The rows of a chunk."),
    click.option(
        "--memory",
        type=click.FloatRange(0, min_open=True),
        metavar="MB",
        help="Memory for chunks, in megabytes; 64 if neither this nor --chunk is given.",
    ),
    click.option(
        "--checkpoint",
        type=FILE,
        metavar="DIR",
        help="Save the state in a folder, so that a run that was stopped can go on.",
    ),
    click.option(
        "--every",
        type=click.IntRange(1),
        metavar="N",
        help="Save it after every N chunks; about every two seconds if not given, and when the run ends or is stopped.",
    ),
    click.option("--resume", is_flag=True, help="Go on where the run that saved the checkpoints stopped."),
)


def stream_options(command: F) -> F:
    """Add the options of streams to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def run_stream(
    graph: Path,
    given: StreamOptions,
    inputs: Texts,
    backend: str,
    level: str | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run a graph over a source; print a line for each chunk where nobody looks, and a bar where somebody does."""
    from ..runtime.streams.chunk_sizes import StreamingMode
    from ..runtime.streams.stream import StreamingConfig

    if given.source is None:
        raise click.UsageError("--over, --chunk, --memory, --checkpoint, --every and --resume are for --stream FILE")
    if given.chunk is not None and given.memory is not None:
        raise click.UsageError("give --chunk or --memory, not both")
    if given.checkpoint is None and (given.resume or given.every is not None):
        raise click.UsageError(f"{'--resume' if given.resume else '--every'} needs --checkpoint DIR")
    mode: StreamingMode = StreamingMode.DynamicChunk(64 if given.memory is None else given.memory)
    if given.chunk is not None:
        mode = StreamingMode.FixedChunk(given.chunk)
    config = StreamingConfig(mode, prefetch=2, checkpointing=given.every)
    executor, loaded = common.executor_of(backend, level), common.load_graph(graph)
    lines = as_json or not sys.stdout.isatty()
    stream = executor.execute_stream(
        loaded,
        given.source,
        config,
        inputs=common.read_values(inputs),
        over=given.over,
        sink=output,
        checkpoint=given.checkpoint,
        resume=given.resume,
        progress=not as_json,
    )
    command = _command(graph, given, inputs, backend, level, output)
    try:
        with stream, _stopping(executor.context):
            for result in stream:
                _show(result, stream, lines=lines, values=output is None)
    except (CancelledError, KeyboardInterrupt):
        _stopped(stream, command if given.checkpoint is not None else None, lines=lines)
        sys.exit(INTERRUPTED)
    except TensorLogicError:
        if given.checkpoint is not None and stream.rows:
            click.echo(f"to go on, once that is mended: {command}", err=True)
        raise
    _finished(stream, output, lines=lines)


@contextlib.contextmanager
def _stopping(context: Any) -> Iterator[None]:
    """Let Ctrl-C, or a request to end, stop the run between two steps; a second Ctrl-C stops it at once."""

    def stop(number: int, _: Any) -> None:
        if context.cancelled:
            raise KeyboardInterrupt
        context.cancel(signal.Signals(number).name)

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _show(result: Any, stream: Any, *, lines: bool, values: bool) -> None:
    """Print one chunk: what is known of it, and its outputs where they go nowhere else."""
    from .graphs import arrays_json, print_arrays

    row_outputs = {name: value for name, value in result.outputs.items() if name in stream.processor.split.kept}
    if lines:
        found = {
            "chunk": result.metadata.chunk_id,
            "start": result.metadata.start,
            "rows": result.metadata.size,
            "ms": round(result.processing_time_ms, 3),
        }
        common.print_json({**found, "outputs": arrays_json(row_outputs)} if values and row_outputs else found)
    elif values and row_outputs:
        click.echo(f"chunk {result.metadata.chunk_id}, rows {result.metadata.start:,} to {stream.rows - 1:,}")
        print_arrays(row_outputs)


def _finished(stream: Any, output: Path | None, *, lines: bool) -> None:
    from .graphs import arrays_json, print_arrays

    written = None if output is None else str(output)
    final = dict(stream.outputs.items())
    if lines:
        common.print_json({"done": True, "rows": stream.rows, "outputs": arrays_json(final), "written": written})
        return
    print_arrays(final)
    click.echo(f"{stream.rows:,} rows" + (f", written to {written}" if written else ""))


def _stopped(stream: Any, command: str | None, *, lines: bool) -> None:
    """Say how far a run came, and how it goes on."""
    if lines:
        common.print_json({"stopped": True, "rows": stream.rows, "resume": command})
    rest = f"to go on: {command}" if command else "nothing is saved: with --checkpoint DIR it could go on"
    click.echo(f"stopped after {stream.rows:,} rows; {rest}", err=True)


def _command(
    graph: Path, given: StreamOptions, inputs: Texts, backend: str, level: str | None, output: Path | None
) -> str:
    words = ["tensorlogic", "run", str(graph), *given.arguments(), "--resume"]
    words += [word for text in inputs for word in ("-i", text)]
    words += ["--backend", backend] if backend != "numpy" else []
    words += ["--level", level] if level is not None else []
    words += ["-o", str(output)] if output is not None else []
    return shlex.join(words)
