"""Graph files: JSON with the constants in a safetensors file beside it.

Untrusted files are safe, for everything read goes through the same gates: a size limit, strict JSON, typed conversion,
the structure, then the types.
"""

from __future__ import annotations

import contextlib
import json
import math
import stat
from collections.abc import Container, Mapping
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ..diagnostics import SourceLocation, clean, value_text
from ..errors import FormatError, TensorLogicError, closest, known_names, nearest
from .check import check_graph, too_deep
from .constants import all_constants, decode, encode, verified_constant
from .graph import MAX_BODY_DEPTH, OPS, AxisNames, EinsumGraph, Node
from .ops import Op
from .text import plain_fields
from .types import Array
from .untrusted_text import HALF_OF_A_PAIR, LIMIT, convert, decode_text, strict_json, too_large
from .whole_files import as_path, write_whole, writing

FORMAT, VERSION = "tensorlogic-graph", 1
STORED = {"BOOL": "bool"} | {  # safetensors' names of dtypes
    f"{letter}{8 * size}": f"{word}{8 * size}"
    for letter, word, sizes in (("F", "float", (2, 4, 8)), ("I", "int", (1, 2, 4, 8)), ("U", "uint", (1, 2, 4, 8)))
    for size in sizes
}


@lru_cache(4)
def _node_files(kinds: tuple[type[Op], ...]) -> Any:
    """Return the type of the nodes in a file, whose operations are of some kinds."""
    fields: Any = [("op", reduce(or_, kinds)), ("args", tuple[int, ...], ()), ("at", tuple[SourceLocation, ...], ())]
    return list[msgspec.defstruct("_NodeFile", fields, forbid_unknown_fields=True)]  # type: ignore[misc]


class _ConstantFile(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data: str | None = None


class _BodyFile(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[Any]
    outputs: tuple[tuple[str, int], ...]


class _NamesFile(msgspec.Struct, forbid_unknown_fields=True):
    domains: list[tuple[str | int, ...]]
    axes: dict[str, tuple[int | None, ...]]  # of an input or output: for each axis the number of its domain


class _GraphFile(_BodyFile, forbid_unknown_fields=True):
    format: str
    version: int
    constants: dict[str, _ConstantFile] = {}
    axis_names: _NamesFile | None = None
    scores: list[str] = []


# writing


def to_json(graph: EinsumGraph, *, data: bool = True) -> str:
    """Return the graph as one JSON string, constants included unless ``data=False``; one node to a line.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", (3,))))
    >>> from_json(to_json(graph)) == graph
    True
    """
    return _document(graph, all_constants(graph), data=data)


def _document(graph: EinsumGraph, arrays: Mapping[str, Array], *, data: bool) -> str:
    rows = {d: {"dtype": a.dtype.name, "shape": list(a.shape)} for d, a in arrays.items()}
    held = {d: {"data": encode(a)} for d, a in arrays.items() if data}
    head = f'{{"format": "{FORMAT}", "version": {VERSION},\n "nodes": [\n  '
    nodes = ",\n  ".join(json.dumps(_plain_node(n, 0, places=True), allow_nan=False) for n in graph.nodes)
    outputs = json.dumps(list(graph.outputs))
    table = ",\n  ".join(f"{json.dumps(d)}: {json.dumps(c | held.get(d, {}))}" for d, c in rows.items())
    names = f',\n "axis_names": {json.dumps(_plain_names(graph.axis_names))}' if graph.axis_names else ""
    names += f',\n "scores": {json.dumps(sorted(graph.scores))}' if graph.scores else ""
    text = f'{head}{nodes}\n ],\n "outputs": {outputs},\n "constants": {{\n  {table}\n }}{names}}}\n'
    if HALF_OF_A_PAIR.search(text):
        strict_json(text, None)  # a name that no reader would take is refused before anything is written
    return text


def _plain_names(axis_names: Mapping[str, AxisNames]) -> dict[str, Any]:
    """Return the names of axes with each domain once."""
    domains = list(dict.fromkeys(d for axes in axis_names.values() for d in axes if d is not None))
    number = {d: n for n, d in enumerate(domains)}
    axes = {name: [None if d is None else number[d] for d in each] for name, each in axis_names.items()}
    return {"domains": domains, "axes": axes}


def _read_names(file: _NamesFile | None) -> dict[str, AxisNames]:
    if file is None:
        return {}
    if any(n is not None and not 0 <= n < len(file.domains) for axes in file.axes.values() for n in axes):
        raise FormatError('"axis_names" names a domain that the file does not have', code="E225")
    return {name: tuple(None if n is None else file.domains[n] for n in axes) for name, axes in file.axes.items()}


def structure_bytes(graph: EinsumGraph) -> bytes:
    """Return canonical bytes of the structure: no locations, and constants by their digest alone."""
    return json.dumps(_plain_graph(graph, 0, places=False), sort_keys=True, separators=(",", ":")).encode("ascii")


def _plain_graph(graph: EinsumGraph, depth: int, *, places: bool) -> dict[str, Any]:
    if depth > MAX_BODY_DEPTH:
        raise too_deep()
    return {"nodes": [_plain_node(n, depth, places=places) for n in graph.nodes], "outputs": list(graph.outputs)}


def _plain_node(node: Node, depth: int, *, places: bool) -> dict[str, Any]:
    def hook(x: Any) -> Any:
        if isinstance(x, EinsumGraph):
            return _plain_graph(x, depth + 1, places=places)
        if isinstance(x, np.generic):
            return x.item()
        raise FormatError(f"{node.op.name} has the value {value_text(x)}, which a file cannot hold", code="E220")

    op = msgspec.to_builtins(node.op, enc_hook=hook)
    for name, default in plain_fields(type(node.op)):
        if name not in op:
            continue
        value = getattr(node.op, name)
        if value == default:  # msgspec leaves out what is the very same object; equal graphs must write equal
            del op[name]
        elif isinstance(default, bool):
            op[name] = bool(value)
        elif isinstance(default, float):
            op[name] = float(value) if math.isfinite(value) else str(float(value))
    plain: dict[str, Any] = {"op": op}
    if node.args:
        plain["args"] = list(node.args)
    if places and node.locations:  # a file's own name only: where it stands on this machine is nobody's business
        own = [at if at.file is None else at.with_file(clean(PurePath(at.file).name)) for at in node.locations]
        plain["at"] = msgspec.to_builtins(own)
    return plain


def save(graph: EinsumGraph, path: str | Path, known: Container[str] = ()) -> None:
    """Write ``path`` (JSON) and, if there are constants, a safetensors file beside it; each appears whole or not at all.

    Whoever reads the file has the constants whose digests are ``known``, and gives them to :func:`load`.
    """
    path = as_path(path)
    arrays = all_constants(graph)
    text = _document(graph, arrays, data=False)
    arrays = {digest: array for digest, array in arrays.items() if digest not in known}
    if path.suffix == ".safetensors":
        raise FormatError(f"{path.name} would hold the constants", f"save the graph as {path.stem}.json", code="E230")
    if not path.absolute().parent.is_dir():
        hint = f"make it first: mkdir -p {path.parent}"
        raise FormatError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}", hint, code="E228")
    with writing(path):
        if arrays:  # first, so that the JSON never names arrays that are not there yet
            from safetensors.numpy import save as to_bytes

            # not its save_file, which makes files that only their owner may read
            write_whole(_beside(path), lambda temporary: temporary.write_bytes(to_bytes(arrays)))
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="ascii"))


def _beside(path: Path) -> Path:
    # g.json and g.v2 must not share a file
    return path.with_suffix(".safetensors") if path.suffix == ".json" else path.with_name(path.name + ".safetensors")


# reading


def load(path: str | Path, *, limit: int = LIMIT, known: Mapping[str, Array] | None = None) -> EinsumGraph:
    """Read a graph file: JSON (ours or the Rust crate's) or the text form. Constants that are ``known``, of a graph read before, are taken from there."""
    path = as_path(path)
    try:
        text = decode_text(_read(path, limit), limit).lstrip("\ufeff")
        start = text.lstrip()[:5]
        if start.startswith("{"):
            return from_json(text, limit=limit, path=path, known=known)
        if start.startswith(("graph", "#")):
            from .parse import parse_graph

            return parse_graph(text, file=str(path), limit=limit)
    except TensorLogicError as error:
        if error.diagnostic.code == "E231":  # no text at all, such as an array
            error = error.renamed(f"{str(path)!r} is not a graph file: {_other_file(path) or error.diagnostic.message}")
        raise error.at(SourceLocation(file=str(path))) from None
    hint = "a graph file is JSON, or text that starts with 'graph {'; the name of a program ends in .tl, or in .pl for Prolog and Datalog"
    if path.suffix.lower() in (".tl", ".pl", ".nl"):
        hint = f"it is a program; make its graph a file: tensorlogic graph {path} -f json -o {path.stem}.json"
    raise FormatError(f"{str(path)!r} is not a graph file", hint, code="E224", location=SourceLocation(file=str(path)))


def _other_file(path: Path) -> str:
    """Say what a file is that is no text, where its first bytes tell."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return "it is a NumPy array, which is given as an input"
    return "it is a zip archive, such as an .npz of NumPy arrays" if start[:4] == b"PK\x03\x04" else ""


def _read(path: Path, limit: int) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{str(path)!r} is not a file", code="E229")
        if status.st_size > limit:
            raise too_large(status.st_size, limit)
        with path.open("rb") as file:
            text = file.read(status.st_size + 1)
            return text if len(text) <= status.st_size else text + file.read(limit + 1)  # it may have grown
    except TensorLogicError:
        raise
    except FileNotFoundError:
        raise no_file(path) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null character in it
        raise FormatError(f"cannot read {str(path)!r}: {error}", code="E229") from None


def near_file(name: str, there: list[str]) -> list[str]:
    """Return a hint at the file of a folder whose name is nearest, endings aside, or at those of the same kind."""
    alike = [other for other in there if Path(other).suffix == Path(name).suffix]
    for files in (alike, there):
        if (close := closest(Path(name).stem, [Path(other).stem for other in files])) is not None:
            return nearest(name, [other for other in files if Path(other).stem == close])
    return known_names(alike) if alike else []


def no_file(path: Path) -> FormatError:
    """Make the error that there is no such file; its hint names the nearest one of the folder."""
    return FormatError(f"there is no file {str(path)!r}", *files_beside(path), code="E221")


def files_beside(path: Path) -> list[str]:
    """Return a hint at the file of its folder that a path was probably meant to be, or at those of the same kind."""
    there: list[str] = []
    with contextlib.suppress(OSError):
        there = sorted(p.name for p in path.parent.iterdir() if not p.name.startswith("."))[:1000]
    return near_file(path.name, there)


def from_json(
    text: str | bytes,
    *,
    limit: int = LIMIT,
    path: Path | None = None,
    arrays: Mapping[str, Array] | None = None,
    known: Mapping[str, Array] | None = None,
) -> EinsumGraph:
    """Read a graph from JSON, ours or the Rust crate's, of at most ``limit`` bytes.

    Constants whose data are not in the JSON are sought beside the file it stands in, ``path``, or by digest in ``arrays``; those
    that are ``known``, of a graph read before, are not looked at again.
    """
    raw = strict_json(decode_text(text, limit).lstrip("\ufeff"), None if path is None else str(path))
    if not isinstance(raw, dict):
        raise FormatError(f"a graph is a JSON object, not {type(raw).__name__}", code="E224")
    if "tensors" in raw and "format" not in raw:
        from .rust import from_rust

        return check_graph(from_rust(raw))
    if raw.get("format") != FORMAT:
        hint = f'our files have "format": "{FORMAT}", the Rust crate\'s have "tensors"'
        raise FormatError(f'this JSON is not a graph: "format" is {raw.get("format")!r}', hint, code="E224")
    if raw.get("version") != VERSION or isinstance(raw["version"], bool):
        hint = f"this package reads version {VERSION}; a newer one may read this file"
        raise FormatError(f"version {raw.get('version')!r} of the graph format is not known here", hint, code="E234")
    file: _GraphFile = convert({**raw, "nodes": []}, _GraphFile, "$")
    body = {"nodes": raw.get("nodes"), "outputs": raw.get("outputs")}
    graph = check_graph(_graph(body, _constants(file.constants, path, arrays or {}, known or {}), "$", 0))
    if file.axis_names:
        graph = graph.with_axis_names(_read_names(file.axis_names))
    return graph.with_scores(file.scores) if file.scores else graph


def _graph(raw: Any, constants: Mapping[str, Array], path: str, depth: int) -> EinsumGraph:
    if depth > MAX_BODY_DEPTH:
        raise too_deep()
    body: _BodyFile = convert(raw, _BodyFile, path)
    for i, node in enumerate(body.nodes):  # bodies first, so that every error knows its whole path
        op = node.get("op") if isinstance(node, dict) else None
        if not isinstance(op, dict):
            continue
        for key in ("body", "then", "otherwise"):
            if isinstance(op.get(key), dict):
                op[key] = _graph(op[key], constants, f"{path}.nodes[{i}].op.{key}", depth + 1)
        if op.get("op") == "fixpoint" and op.get("tolerance") == "inf":
            op["tolerance"] = math.inf
    records: list[Any] = convert(body.nodes, _node_files(tuple(OPS.values())), f"{path}.nodes")
    nodes = [Node(r.op, r.args, r.at) for r in records]
    return EinsumGraph(nodes, body.outputs, constants)


def _constants(
    table: Mapping[str, _ConstantFile], path: Path | None, given: Mapping[str, Array], known: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the arrays that stand in the JSON, are given or known, and read the others from the file beside it."""
    found = {digest: known[digest] for digest in table if digest in known}
    for digest, c in table.items():
        if digest in found:
            continue
        if c.data is not None or digest in given:
            array = given[digest] if c.data is None else decode(c.data, c.dtype, c.shape)
            found[digest] = verified_constant(digest, array, c.dtype, c.shape)
    wanted = {digest: c for digest, c in table.items() if digest not in found}
    if wanted:
        if path is None:
            hint = "read the file with load(path), which finds the safetensors file beside it"
            raise FormatError(
                f"the JSON names {len(wanted)} constant(s) but does not hold their data", hint, code="E226"
            )
        found.update(_beside_arrays(wanted, _beside(path)))
    return found


def _own_array(file: BinaryIO, entry: Mapping[str, Any], start: int) -> Array:
    """Read one array of a safetensors file straight into memory of its own, so that no byte of it is there twice."""
    array = np.empty(entry["shape"], np.dtype(STORED[entry["dtype"]]).newbyteorder("<"))
    file.seek(start + entry["data_offsets"][0])
    if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:  # type: ignore[attr-defined]
        raise FormatError("the safetensors file ends within an array", code="E235")
    array.setflags(write=False)
    return array


def _beside_arrays(wanted: Mapping[str, _ConstantFile], path: Path) -> dict[str, Array]:
    from safetensors import safe_open

    if not path.is_file():
        message, hint = f"the graph's constants are in {path.name!r}, which is missing", "keep the two files together"
        raise FormatError(message, hint, code="E226", context=[f"looked for {str(path)!r}"])
    found = {}
    try:
        with safe_open(str(path), framework="numpy"):  # which checks that the header is true of the file
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            for digest, c in wanted.items():
                if digest not in header:
                    hint = "it belongs to another graph; save the graph again"
                    raise FormatError(f"{path.name!r} does not hold constant {digest}", hint, code="E226")
                array = _own_array(file, header[digest], 8 + length)
                found[digest] = verified_constant(digest, array, c.dtype, c.shape)
    except TensorLogicError:
        raise
    except Exception as error:  # the library raises several kinds, its own among them
        raise FormatError(f"{path.name!r} is not a readable safetensors file: {error}", code="E235") from None
    return found
