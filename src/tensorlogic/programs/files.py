"""Programs on disk: text with the facts in it, or a folder with the rules as text, the facts as codes and the names beside them."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ..errors import FormatError, TensorLogicError
from ..ir.whole_files import expect_regular, mode_of
from ..lang import syntax as s
from ..lang.data import Table
from ..lang.data_files import no_file
from ..lang.domains import Column
from ..lang.format import text_of
from ..runtime.executor import Executor
from .facts import Block
from .program import Program

FORMAT, VERSION = "tensorlogic-program", 1
TEXT, ARRAYS, MANIFEST = "program.tl", "program.safetensors", "program.json"


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Facts(msgspec.Struct):
    """Facts that were added together: the names of each column, or None where its codes are numbers, and the sizes of an array."""

    name: str
    count: Count
    names: list[list[str | int] | None]
    sizes: list[Count] | None


class _Manifest(msgspec.Struct):
    format: str
    version: int
    facts: list[_Facts]
    bound: list[str]
    order: list[tuple[str, Count, list[str | int]]]  # of names, by the first place that has their domain
    digests: dict[str, str] = {}  # of the files beside it: one that was changed or exchanged is not believed


def save(program: Program, path: Path) -> None:
    """Save a program: as text where the path ends in ``.tl``, else in a folder."""
    if program.functions:
        names = ", ".join(program.functions)
        hint = "attach them again after loading"
        raise FormatError(f"attached Python functions cannot be saved: {names}", hint, code="E791")
    try:
        if path.suffix == ".tl":
            _save_text(program, path)
        else:
            _save_folder(program, path)
    except (OSError, ValueError) as error:  # no file has a name with a zero byte
        why = error.strerror if isinstance(error, OSError) else None
        raise FormatError(f"cannot write {str(path)!r}: {why or error}", code="E783") from None


def _save_text(program: Program, path: Path) -> None:
    if program.bound:
        names = ", ".join(program.bound)
        hint = f"save it in a folder: program.save({path.stem!r})"
        raise FormatError(f"the bound tensors {names} cannot stand in a text", hint, code="E791")
    lines = [text_of(x) for x in program.statements]
    read = {x.head.name for x in program.statements if isinstance(x, s.Read)}
    for name, blocks in program.facts.blocks.items():
        for block in blocks:
            if block.at is None or block.lines or name not in read:
                columns = tuple(tuple(c.values()) for c in block.table.columns)
                lines += [text_of(s.Facts(name, columns, (0,) * block.table.count))] if block.table.count else []
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _save_folder(program: Program, path: Path) -> None:
    from safetensors import numpy as safetensors

    path.mkdir(parents=True, exist_ok=True)
    (path / MANIFEST).unlink(missing_ok=True)  # written last, so that what is not whole is no program
    arrays: dict[str, Any] = {}
    facts: list[_Facts] = []
    for name, blocks in program.facts.blocks.items():
        for block in blocks:
            for n, column in enumerate(block.table.columns):
                arrays[f"facts.{len(facts)}.{n}"] = np.ascontiguousarray(column.codes)
            names = [None if c.names is None else list(c.names) for c in block.table.columns]
            sizes = None if block.table.sizes is None else list(block.table.sizes)
            facts.append(_Facts(name, block.table.count, names, sizes))
    for name, value in program.bound.items():
        arrays[f"bound.{name}"] = np.ascontiguousarray(np.asarray(value))
    text = "\n".join(text_of(x) for x in program.statements if not isinstance(x, s.Read)) + "\n"
    (path / TEXT).write_text(text, encoding="utf-8")
    (path / ARRAYS).write_bytes(safetensors.save(arrays))  # its save_file makes files that only their owner may read
    order = [(name, place, names) for (name, place), names in program.name_order().items()]
    digests = {name: _digest(path / name) for name in (TEXT, ARRAYS)}
    manifest = _Manifest(FORMAT, VERSION, facts, list(program.bound), order, digests)
    (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def load(path: Path, executor: Executor | None = None) -> Program:
    """Load a program from text, Prolog or a folder."""
    mode = mode_of(path)
    if stat.S_ISDIR(mode):
        return _load_folder(path, executor)
    if not stat.S_ISREG(mode):
        raise no_file(path)
    expect_no_graph(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise FormatError(f"{path.name!r} is not readable UTF-8 text: {error}", code="E773") from None
    if path.suffix in (".pl", ".nl"):
        from ..lang.prolog import parse_prolog

        program = Program(executor=executor, file=path)
        program.add_statements(parse_prolog(text, str(path)).statements)
        return program
    return Program(text, file=path, executor=executor)


def expect_no_graph(path: Path) -> None:
    """Refuse the file of a graph where a program is expected."""
    if path.suffix == ".json":
        hint = f"a graph is read with tl.EinsumGraph.load({str(path)!r})"
        raise FormatError(f"{str(path)!r} is no program: those are text, such as family.tl", hint, code="E776")


def _load_folder(path: Path, executor: Executor | None) -> Program:
    from safetensors import safe_open

    if not (path / MANIFEST).is_file():
        raise FormatError(f"there is no program in the folder {str(path)!r}", f"it has no {MANIFEST}", code="E770")
    try:
        manifest = msgspec.json.decode(expect_regular(path / MANIFEST).read_bytes(), type=_Manifest)
        if (manifest.format, manifest.version) != (FORMAT, VERSION):
            raise ValueError(f"it is of format {manifest.format!r}, version {manifest.version}")
        for name, digest in manifest.digests.items():
            if name not in (TEXT, ARRAYS) or _digest(path / name) != digest:
                raise ValueError(f"{name} is not the file that was saved with it")
        program = Program(expect_regular(path / TEXT).read_text(encoding="utf-8"), executor=executor)
        with safe_open(str(path / ARRAYS), framework="numpy") as arrays:
            for n, entry in enumerate(manifest.facts):
                columns = tuple(
                    Column(arrays.get_tensor(f"facts.{n}.{k}").astype(np.int64), names)
                    for k, names in enumerate(entry.names)
                )
                _check_codes(columns, entry.count)
                sizes = None if entry.sizes is None else tuple(entry.sizes)
                program.facts.add(entry.name, Block(Table(columns, entry.count, sizes)))
            program.state.order = {(name, place): names for name, place, names in manifest.order}
            program.bind({name: arrays.get_tensor(f"bound.{name}") for name in manifest.bound})
    except TensorLogicError:
        raise
    except Exception as error:  # damaged files raise errors of many kinds
        hint = "save the program again"
        raise FormatError(f"the program in {str(path)!r} cannot be read: {error}", hint, code="E792") from None
    return program


def _digest(path: Path) -> str:
    with expect_regular(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _check_codes(columns: tuple[Column, ...], count: int) -> None:
    for column in columns:
        beyond = column.names is not None and len(column) and column.codes.max() >= len(column.names)
        if len(column) != count or (column.names is not None and len(column) and column.codes.min() < 0) or beyond:
            raise ValueError("the codes of facts do not fit their names")
