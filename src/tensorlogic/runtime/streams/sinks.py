"""Where the outputs of a stream go: files that grow with every chunk and appear under their name when the stream has ended.

Until then a file has a temporary name. With checkpoints that name is the same in every process, and a run that is resumed cuts the file
back to what the checkpoint knows of, so that each row is there once.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...errors import FormatError, InputError, nearest
from ...ir.whole_files import FileCall, file_call, remove, temporary_name, to_disk, wrapped_files, write_all

Values = Mapping[str, Any]
State = dict[str, Any]
LINES = 65536  # rows of text that are made at once
TAIL = 4096  # bytes at the end of a file that tell it from a file of another run


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
        for name in given:
            if name not in outputs:
                raise InputError(f"the graph has no output {name!r}", *nearest(name, outputs), code="E305")
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
    if not path.absolute().parent.is_dir():
        raise InputError(
            f"there is no folder {str(path.parent)!r} to write {path.name!r} into", "make it first", code="E543"
        )
    return KINDS[kind](path, outputs, staged, call)


class Staging:
    """A file that grows under another name until it is complete."""

    def __init__(self, path: Path, staged: bool, call: FileCall = file_call) -> None:
        self.path, self.call = path, call
        self.part = path.with_name(path.name + ".part") if staged else temporary_name(path)
        self.staged, self.published = staged, False
        self.head = 0  # bytes at the beginning that are written again in the end
        self._handle: int | None = None

    @property
    def handle(self) -> int:
        """The open file."""
        assert not self.published, "the file has its name already"
        if self._handle is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
            with writing(self.path):
                self._handle = os.open(self.part, flags, 0o666)
        return self._handle

    def append(self, data: Any) -> None:
        """Write bytes at the end."""
        with writing(self.path):
            write_all(self.handle, data, self.call)

    def overwrite(self, start: int, data: bytes) -> None:
        """Write bytes over others."""
        with writing(self.path):
            os.lseek(self.handle, start, os.SEEK_SET)
            write_all(self.handle, data, self.call)
            os.lseek(self.handle, 0, os.SEEK_END)

    def safe_length(self) -> int:
        """Bring the file to the disk and return its length."""
        with writing(self.path):
            self.call("fsync", (self.handle,))
            return os.fstat(self.handle).st_size

    def state(self) -> State:
        """Bring the file to the disk, and return its length and a checksum of its end."""
        length = self.safe_length()
        return {"length": length, "tail": self._tail(self.handle, length)}

    def _tail(self, handle: int, length: int) -> int:
        """Return the checksum of the bytes before a length."""
        start = max(min(self.head, length), length - TAIL)
        os.lseek(handle, start, os.SEEK_SET)
        checksum = zlib.crc32(os.read(handle, length - start))
        os.lseek(handle, 0, os.SEEK_END)
        return checksum

    def restore(self, state: State, *, complete: bool) -> None:
        """Go on with the file of another process, cut back to a length that it had; a complete one may have its name already."""
        length = int(state["length"])
        if self.part.exists() and self.part.stat().st_size >= length:
            with writing(self.path):
                self._handle = os.open(self.part, os.O_RDWR | getattr(os, "O_BINARY", 0))
                if self._tail(self._handle, length) != state.get("tail"):
                    self.close()
                    message = (
                        f"{str(self.part)!r} is not what the run before wrote: another run has written to it since"
                    )
                    raise FormatError(message, "begin anew in another folder, without resuming", code="E545")
                os.ftruncate(self._handle, length)
                os.lseek(self._handle, 0, os.SEEK_END)
        elif complete and self.path.exists() and not self.part.exists():
            self.published = True
        else:
            there = self.part.stat().st_size if self.part.exists() else 0
            message = f"{str(self.part)!r} should have {length:,} bytes written by the run before, but has {there:,}"
            raise FormatError(message, "begin anew in another folder, without resuming", code="E545")

    def publish(self) -> None:
        """Give the file its name, now that it is complete."""
        if self.published:
            return
        self.safe_length()
        self.close()
        with writing(self.path):
            self.call("replace", (self.part, self.path))
            to_disk(self.path.absolute().parent, self.call)
        self.published = True

    def close(self) -> None:
        """Close the file; without checkpoints nobody can go on with it, so it goes."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def drop(self) -> None:
        """Close the file, and remove it where nobody can go on with it."""
        self.close()
        if not self.staged and not self.published:
            remove(self.part)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say clearly that a file cannot be written."""
    try:
        yield
    except OSError as error:
        hint = "make room, or give a folder that can be written; a run with checkpoints can be resumed"
        raise FormatError(f"cannot write {str(path)!r}: {error.strerror or error}", hint, code="E544") from error


class Rows:
    """The rows of one output as an .npy file, whose head is written again when their number is known."""

    HEAD = 128

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        staging.head = self.HEAD
        self.rows, self.row_shape, self.dtype = 0, (), ""
        self.last_axis = (
            False  # whether the streamed index is the last axis: then columns follow each other in the file
        )

    def write(self, value: Any, axis: int) -> None:
        """Append rows."""
        if not self.dtype:
            self.dtype, self.last_axis = value.dtype.str, axis > 0
            self.row_shape = (*value.shape[:axis], *value.shape[axis + 1 :])
            self.staging.append(self._head())
        data = value.ravel(order="F") if self.last_axis else np.ascontiguousarray(value).reshape(-1)
        self.staging.append(data.view(np.uint8))
        self.rows += value.shape[axis]

    def whole(self, value: Any) -> None:
        """Write an array that is there at once."""
        array = np.asarray(value)
        self.dtype, self.row_shape, self.rows = array.dtype.str, array.shape, -1
        self.staging.append(self._head())
        self.staging.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def _head(self) -> bytes:
        shape = (
            self.row_shape
            if self.rows < 0
            else (*self.row_shape, self.rows)
            if self.last_axis
            else (self.rows, *self.row_shape)
        )
        text = repr({"descr": self.dtype, "fortran_order": self.last_axis, "shape": tuple(map(int, shape))}).encode()
        room = self.HEAD - 10 - 1
        if len(text) > room:
            raise InputError(f"an array with the shape {shape} cannot be streamed into a file", code="E543")
        return b"\x93NUMPY\x01\x00" + (self.HEAD - 10).to_bytes(2, "little") + text.ljust(room) + b"\n"

    def state(self) -> State:
        """Return what is safely written."""
        return self.staging.state() | {
            "rows": self.rows, "row_shape": list(self.row_shape), "dtype": self.dtype, "last_axis": self.last_axis,
        }  # fmt: skip

    def restore(self, state: State, *, complete: bool) -> None:
        """Go on from there."""
        self.staging.restore(state, complete=complete)
        self.rows, self.row_shape, self.dtype = int(state["rows"]), tuple(state["row_shape"]), str(state["dtype"])
        self.last_axis = bool(state["last_axis"])

    def complete(self) -> None:
        """Write the head again, now that the number of rows is known."""
        if not self.staging.published:
            self.staging.overwrite(0, self._head())


class Npy:
    """One output as an .npy file."""

    def __init__(self, path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> None:
        self.path, self.outputs = path, outputs
        self.file = Rows(Staging(path, staged, call))
        self.name, self.axis = "", 0

    def begin(self, kept: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        """Choose the output: the one that keeps the streamed index, else the only one."""
        chosen = [name for name in self.outputs if name in kept] or list(self.outputs)
        if len(chosen) != 1:
            hint = (
                f"write {self.path.stem}.npz, or name a file for each: sink={{{chosen[0]!r}: {self.path.name!r}, ...}}"
            )
            raise InputError(
                f"{self.path.name!r} holds one array, but the graph has {len(chosen)} outputs", hint, code="E543"
            )
        self.name = chosen[0]
        self.axis = kept.get(self.name, -1)
        check_axis(self.name, self.axis, ranks[self.name])

    def write(self, values: Values) -> None:
        """Append the rows of a chunk."""
        if self.axis >= 0:
            self.file.write(values[self.name], self.axis)

    def state(self) -> State:
        """Return what is safely written."""
        return self.file.state()

    def restore(self, state: State, *, complete: bool) -> None:
        """Go on from there."""
        self.file.restore(state, complete=complete)

    def finish(self, final: Values, empty: Values) -> None:
        """Complete the file."""
        if not self.file.staging.published:
            if self.axis < 0:
                self.file.staging.drop()
                self.file.whole(final[self.name])
            elif not self.file.dtype:
                self.file.write(empty[self.name], self.axis)
            self.file.complete()
        self.file.staging.publish()

    def close(self) -> None:
        """Close the file."""
        self.file.staging.drop()


def check_axis(name: str, axis: int, rank: int) -> None:
    """Refuse an output whose streamed index is neither its first nor its last axis: a file cannot grow there."""
    if 0 < axis < rank - 1:
        hint = "transpose the output, so that the streamed index comes first"
        raise InputError(
            f"output {name!r} has the streamed index at axis {axis}, and a file grows at its end", hint, code="E543"
        )


class Npz:
    """All outputs as an .npz file: each grows in a file of its own, and they are put together in the end."""

    def __init__(self, path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> None:
        self.path, self.outputs, self.call = path, outputs, call
        self.target = Staging(path, staged, call)
        self.files: dict[str, Rows] = {}
        self.kept: dict[str, int] = {}
        self.staged = staged

    def begin(self, kept: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        """Make a file for each output that keeps the streamed index."""
        self.kept = {name: axis for name, axis in kept.items() if name in self.outputs}
        for n, (name, axis) in enumerate(self.kept.items()):
            check_axis(name, axis, ranks[name])
            own = self.path.with_name(f"{self.path.name}.{n}.npy")
            self.files[name] = Rows(Staging(own, self.staged, self.call))

    def write(self, values: Values) -> None:
        """Append the rows of a chunk."""
        for name, file in self.files.items():
            file.write(values[name], self.kept[name])

    def state(self) -> State:
        """Return what is safely written."""
        return {name: file.state() for name, file in self.files.items()}

    def restore(self, state: State, *, complete: bool) -> None:
        """Go on from there."""
        if complete and self.path.exists() and not any(f.staging.part.exists() for f in self.files.values()):
            self.target.published = True
            return
        for name, file in self.files.items():
            file.restore(state[name], complete=complete)

    def finish(self, final: Values, empty: Values) -> None:
        """Put the outputs together."""
        if self.target.published:
            return
        for name, file in self.files.items():
            if not file.dtype:
                file.write(empty[name], self.kept[name])
            file.complete()
        with (
            writing(self.path),
            os.fdopen(os.dup(self.target.handle), "r+b") as out,
            zipfile.ZipFile(out, "w") as archive,
        ):
            out.truncate(0)
            for name in self.outputs:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    if name in self.files:
                        with self.files[name].staging.part.open("rb") as rows:
                            while piece := rows.read(1 << 20):
                                member.write(piece)
                    else:
                        np.lib.format.write_array(member, np.asarray(final[name]), allow_pickle=False)
        self.target.publish()
        for file in self.files.values():
            file.staging.close()
            remove(file.staging.part)

    def close(self) -> None:
        """Close the files."""
        for staging in (self.target, *(file.staging for file in self.files.values())):
            staging.drop()


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
    ".npy": Npy, ".npz": Npz, ".parquet": _table("Parquet"), ".csv": _table("Csv"), ".tsv": _table("Csv"),
}  # fmt: skip
