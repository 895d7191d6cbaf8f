"""Where the outputs of a stream go: files that grow with every chunk and appear under their name when the stream has ended.

Until then a file has a temporary name. With checkpoints that name is the same in every process, and a run that is resumed cuts the file
back to what the checkpoint knows of, so that each row is there once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...errors import InputError, expect, expect_known
from ...ir.whole_files import FileCall, expect_folder, wrapped_files
from .array_sinks import Npy, Npz
from .growing_files import State, Values


class Sink(Protocol):
    """Takes the outputs of a stream, chunk by chunk."""

    def begin(self, kept: Mapping[str, int], ranks: Mapping[str, int]) -> None: ...
    def write(self, values: Values) -> None: ...  # the outputs of one chunk that keep the streamed index
    def state(self) -> State: ...  # what is safely written
    def restore(self, state: State, *, complete: bool) -> None: ...  # complete: every chunk is written
    def finish(self, final: Values, empty: Values) -> None: ...
    def close(self) -> None: ...


def sink_of(given: Any, outputs: Sequence[str], *, staged: bool, wrap: Sequence[Callable[[Any], Any]] = ()) -> Sink:
    """Return the sink that a caller's value stands for: a path, or paths by output."""
    call = wrapped_files(wrap)
    if isinstance(given, Mapping):
        expect_known("the graph has no output", given, outputs, "E305")
        for path in given.values():
            expect(path, (str, os.PathLike), "a sink is a path", 'write sink={"y": "y.npy"}')
        paths = {name: Path(path) for name, path in given.items()}
        files = {path.absolute(): name for name, path in paths.items()}
        for name, path in paths.items():
            if files[path.absolute()] != name:
                message = (
                    f"outputs {name!r} and {files[path.absolute()]!r} would be written into one file, {str(path)!r}"
                )
                raise InputError(message, "give each a file of its own, or write all into an .npz file", code="E543")
        return Several({name: _of_path(path, (name,), staged, call) for name, path in paths.items()})
    if isinstance(given, str | os.PathLike):
        return _of_path(Path(given), tuple(outputs), staged, call)
    if all(hasattr(given, name) for name in ("begin", "write", "finish", "state", "restore", "close")):
        return given  # type: ignore[no-any-return]
    hint = 'write sink="out.parquet", or sink={"y": "y.npy"}'
    raise InputError(
        f"a sink is a path, or a mapping from outputs to paths, got {type(given).__name__}", hint, code="E543"
    )


def refuse_source(sink: Any, source: Any) -> None:
    """Refuse a sink that would take the place of the file that is read."""
    if not isinstance(source, str | os.PathLike):
        return
    paths = sink.values() if isinstance(sink, Mapping) else [sink]
    for path in paths:
        if isinstance(path, str | os.PathLike) and Path(path).resolve() == Path(source).resolve():
            hint = "give the outputs a file of their own"
            raise InputError(f"{str(path)!r} is the source, and would be overwritten by the sink", hint, code="E543")


def sink_facts(sink: Sink) -> Any:
    """Return what tells a sink from another: its kind and the name of its file, of each output where there are several."""
    if isinstance(sink, Several):
        return {name: sink_facts(own) for name, own in sink.sinks.items()}
    path = getattr(sink, "path", None)
    return [type(sink).__name__, path.name if isinstance(path, Path) else None]


def _of_path(path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> Sink:
    kind = path.suffix.lower()
    if kind not in KINDS:
        hint = f"known are {', '.join(KINDS)}"
        raise InputError(f"cannot tell from its name what kind of file {str(path)!r} is to be", hint, code="E543")
    expect_folder(path, "E543")
    return KINDS[kind](path, outputs, staged, call)


class Several:
    """A sink for each of some outputs."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self.sinks = dict(sinks)

    def begin(self, kept: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        """Begin each."""
        for sink in self.sinks.values():
            sink.begin(kept, ranks)

    def write(self, values: Values) -> None:
        """Hand a chunk to each."""
        for sink in self.sinks.values():
            sink.write(values)

    def state(self) -> State:
        """Return what is safely written."""
        return {name: sink.state() for name, sink in self.sinks.items()}

    def restore(self, state: State, *, complete: bool) -> None:
        """Go on from there."""
        for name, sink in self.sinks.items():
            sink.restore(state[name], complete=complete)

    def finish(self, final: Values, empty: Values) -> None:
        """Complete each."""
        for sink in self.sinks.values():
            sink.finish(final, empty)

    def close(self) -> None:
        """Close each."""
        for sink in self.sinks.values():
            sink.close()


def _table(kind: str) -> Callable[..., Sink]:
    def made(path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> Sink:
        from . import table_sinks

        chosen: Callable[..., Sink] = getattr(table_sinks, kind)
        return chosen(path, outputs, staged, call)

    return made


KINDS: dict[str, Callable[..., Sink]] = {
    ".npy": Npy,
    ".npz": Npz,
    ".parquet": _table("Parquet"),
    ".csv": _table("Csv"),
    ".tsv": _table("Csv"),
}
