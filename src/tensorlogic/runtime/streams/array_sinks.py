"""Arrays as the sink of a stream: an .npy file that grows by rows, and an .npz archive of several."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.whole_files import FileCall, expect_members, remove
from .growing_files import Staging, State, Values, writing


class Rows:
    """The rows of one output as an .npy file, whose head is written again when their number is known."""

    HEAD = 128

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        staging.head = self.HEAD
        self.rows, self.row_shape, self.dtype = 0, (), ""
        # whether the streamed index is the last axis: the file is then written column after column
        self.last_axis = False

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
            "rows": self.rows,
            "row_shape": list(self.row_shape),
            "dtype": self.dtype,
            "last_axis": self.last_axis,
        }

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
        expect_members(outputs, "output")
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
        parts = [file.staging.part.exists() for file in self.files.values()]
        if complete and self.path.exists() and not all(parts):  # they go one by one, once the archive has its name
            self.target.published = True
            return
        for name, file in self.files.items():
            file.restore(state[name], complete=complete)

    def finish(self, final: Values, empty: Values) -> None:
        """Put the outputs together."""
        if not self.target.published:
            self._put_together(final, empty)
            self.target.publish()
        for file in self.files.values():
            file.staging.close()
            remove(file.staging.part)

    def _put_together(self, final: Values, empty: Values) -> None:
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

    def close(self) -> None:
        """Close the files."""
        for staging in (self.target, *(file.staging for file in self.files.values())):
            staging.drop()
