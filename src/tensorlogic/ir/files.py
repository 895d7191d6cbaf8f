"""Graph files: JSON of our own with constants in safetensors, and the Rust crate's JSON. Untrusted files are safe.

Everything read goes through the same gates: a size limit, strict JSON, typed conversion, the structure, then the types.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np

from ..diagnostics import Diagnostic, SourceLocation, bytes_text
from ..errors import FormatError, GraphError, ShapeError, TensorLogicError, nearest
from . import ops, spec
from .builder import MAX_BODY_DEPTH
from .elementwise import FUNCTIONS
from .graph import OPS, AnyOp, Array, Cond, EinsumGraph, Fixpoint, Node, Scan, bodies, constant_digest, frozen_copy
from .infer import MAX_RANK, Scope, node_types
from .ops import Op
from .sizes import Dim, dim
from .types import DTYPES, ITEMSIZE

FORMAT, VERSION = "tensorlogic-graph", 1
LIMIT = 256 * 2**20  # of text; constants in safetensors files are as large as the file, no larger
_T = TypeVar("_T")


class _NodeFile(msgspec.Struct, forbid_unknown_fields=True):
    op: AnyOp
    args: tuple[int, ...] = ()
    at: tuple[SourceLocation, ...] = ()


class _ConstantFile(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data: str | None = None


class _BodyFile(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[Any]
    outputs: tuple[tuple[str, int], ...]


class _GraphFile(_BodyFile, forbid_unknown_fields=True):
    format: str
    version: int
    constants: dict[str, _ConstantFile] = {}


# writing


def to_json(graph: EinsumGraph) -> str:
    """Return the graph as one JSON string, constants included; one node to a line.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", (3,))))
    >>> from_json(to_json(graph)) == graph
    True
    """
    arrays = all_constants(graph)
    table = {
        d: {"dtype": a.dtype.name, "shape": list(a.shape), "data": base64.b64encode(little_endian(a)).decode("ascii")}
        for d, a in arrays.items()
    }
    return _document(graph, table)


def _document(graph: EinsumGraph, constants: Mapping[str, Any]) -> str:
    head = f'{{"format": "{FORMAT}", "version": {VERSION},\n "nodes": [\n  '
    nodes = ",\n  ".join(json.dumps(_plain_node(n, 0, places=True), allow_nan=False) for n in graph.nodes)
    outputs = json.dumps(list(graph.outputs))
    table = ",\n  ".join(f"{json.dumps(d)}: {json.dumps(c)}" for d, c in constants.items())
    return f'{head}{nodes}\n ],\n "outputs": {outputs},\n "constants": {{\n  {table}\n }}}}\n'


def structure_bytes(graph: EinsumGraph) -> bytes:
    """Return canonical bytes of the structure: no locations, and constants by their digest alone."""
    return json.dumps(_plain_graph(graph, 0, places=False), sort_keys=True, separators=(",", ":")).encode("ascii")


def _plain_graph(graph: EinsumGraph, depth: int, *, places: bool) -> dict[str, Any]:
    if depth > MAX_BODY_DEPTH:
        raise _too_deep()
    return {"nodes": [_plain_node(n, depth, places=places) for n in graph.nodes], "outputs": list(graph.outputs)}


def _plain_node(node: Node, depth: int, *, places: bool) -> dict[str, Any]:
    def hook(x: Any) -> Any:
        if isinstance(x, EinsumGraph):
            return _plain_graph(x, depth + 1, places=places)
        if isinstance(x, np.generic):
            return x.item()
        raise FormatError(f"{node.op.name} has the value {x!r}, which a file cannot hold", code="E220")

    op = msgspec.to_builtins(node.op, enc_hook=hook)
    for name, default in _defaults(type(node.op)):
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
    if places and node.locations:
        plain["at"] = msgspec.to_builtins(node.locations)
    return plain


@lru_cache
def _defaults(kind: type[Op]) -> tuple[tuple[str, object], ...]:
    fields = msgspec.structs.fields(kind)
    return tuple((f.name, f.default) for f in fields if f.default is not msgspec.NODEFAULT)


def all_constants(graph: EinsumGraph, depth: int = 0) -> dict[str, Array]:
    """Return, by digest, the arrays of a graph and of the bodies in it."""
    if depth > MAX_BODY_DEPTH:
        raise _too_deep()
    found: dict[str, Array] = {}
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Constant):
            if node.op.digest not in graph.constants:
                raise GraphError.of(_no_array(node, i, ""))
            found[node.op.digest] = graph.constants[node.op.digest]
        for body in bodies(node.op):
            found.update(all_constants(body, depth + 1))
    return found


def little_endian(array: Array) -> bytes:
    """Return an array's bytes as they stand in files."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _too_deep() -> FormatError:
    return FormatError(f"bodies may be nested {MAX_BODY_DEPTH} deep", code="E207")


def save(graph: EinsumGraph, path: str | Path) -> None:
    """Write ``path`` (JSON) and, if there are constants, a safetensors file beside it; each appears whole or not at all."""
    path = Path(path)
    arrays = all_constants(graph)
    table = {d: {"dtype": a.dtype.name, "shape": list(a.shape)} for d, a in arrays.items()}
    text = _document(graph, table)
    if path.suffix == ".safetensors":
        raise FormatError(f"{path.name} would hold the constants", code="E221",
                          suggestions=[f"save the graph as {path.stem}.json"])  # fmt: skip
    try:
        if arrays:  # first, so that the JSON never names arrays that are not there yet
            from safetensors.numpy import save as to_bytes

            # not its save_file, which makes files that only their owner may read
            _write(_beside(path), lambda temporary: temporary.write_bytes(to_bytes(arrays)))
        _write(path, lambda temporary: temporary.write_text(text, encoding="ascii"))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot write {str(path)!r}: {error}", code="E221") from None


def _beside(path: Path) -> Path:
    # g.json and g.v2 must not share a file
    return path.with_suffix(".safetensors") if path.suffix == ".json" else path.with_name(path.name + ".safetensors")


def _write(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the new name itself; not every system can
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# reading


def from_json(text: str | bytes, *, limit: int = LIMIT) -> EinsumGraph:
    """Read a graph from JSON, this package's or the Rust crate's; ``limit`` bounds its size in bytes."""
    return _from_json(text, None, limit)


def load(path: str | Path, *, limit: int = LIMIT) -> EinsumGraph:
    """Read a graph file: JSON (ours or the Rust crate's) or the text form."""
    path = Path(path)
    try:
        text = decode_text(_read(path, limit)).lstrip("\ufeff")
        start = text.lstrip()[:5]
        if start.startswith("{"):
            return _from_json(text, path, limit)
        if start.startswith(("graph", "#")):
            from .text import parse_graph

            return parse_graph(text, file=str(path), limit=limit)
    except TensorLogicError as error:
        raise error.at(SourceLocation(file=str(path))) from None
    raise FormatError(f"{str(path)!r} is not a graph file", code="E221", location=SourceLocation(file=str(path)),
                      suggestions=["a graph file is JSON, or text that starts with 'graph {'"])  # fmt: skip


def _read(path: Path, limit: int) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{str(path)!r} is not a file", code="E221")
        if status.st_size > limit:
            raise _too_large(status.st_size, limit)
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null character in it
        if isinstance(error, TensorLogicError):
            raise
        raise FormatError(f"cannot read {str(path)!r}: {error}", code="E221") from None
    if len(data) > limit:
        raise _too_large(len(data), limit)
    return data


def _no_file(path: Path) -> FormatError:
    there: list[str] = []
    with contextlib.suppress(OSError):
        there = sorted(p.name for p in path.parent.iterdir() if not p.name.startswith("."))[:1000]
    return FormatError(f"there is no file {str(path)!r}", code="E221", suggestions=nearest(path.name, there))


def _too_large(size: int, limit: int) -> FormatError:
    return FormatError(f"the graph has {bytes_text(size)} of text; at most {bytes_text(limit)} are read", code="E222",
                       suggestions=["pass limit=bytes if you trust it; save() keeps constants out of the text"])  # fmt: skip


def decode_text(text: str | bytes, limit: int | None = None) -> str:
    """Return text of bounded size from a string or UTF-8 bytes."""
    if not isinstance(text, str | bytes | bytearray):
        raise FormatError(f"expected text, got {type(text).__name__}", code="E223")
    if limit is not None and len(text) > limit:
        raise _too_large(len(text), limit)
    try:
        return text if isinstance(text, str) else bytes(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text: {error.reason} at byte {error.start}", code="E223") from None


def spot(text: str, at: int, file: str | None = None) -> dict[str, Any]:
    """Return ``location`` and ``source`` for an error at a character of some text; long lines are cut."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : len(text) if end < 0 else end]
    number, column = text.count("\n", 0, start) + 1, at - start + 1
    if len(line) <= 200:
        return {"location": SourceLocation(file, number, column), "source": line}
    return {
        "location": SourceLocation(file, number),
        "source": "..." + line[max(0, column - 60) : column + 60] + f"...  (character {column})",
    }


def _from_json(text: str | bytes, path: Path | None, limit: int) -> EinsumGraph:
    raw = _strict_json(decode_text(text, limit).lstrip("\ufeff"), None if path is None else str(path))
    if not isinstance(raw, dict):
        raise FormatError(f"a graph is a JSON object, not {type(raw).__name__}", code="E224")
    if "tensors" in raw and "format" not in raw:
        return checked(_from_rust(_convert(raw, _RustFile, "$")))
    if raw.get("format") != FORMAT:
        raise FormatError(f'this JSON is not a graph: "format" is {raw.get("format")!r}', code="E224",
                          suggestions=[f'our files have "format": "{FORMAT}", the Rust crate\'s have "tensors"'])  # fmt: skip
    if raw.get("version") != VERSION or isinstance(raw["version"], bool):
        raise FormatError(f"version {raw.get('version')!r} of the graph format is not known here", code="E224",
                          suggestions=[f"this package reads version {VERSION}; a newer one may read this file"])  # fmt: skip
    constants = _constants(_convert({**raw, "nodes": []}, _GraphFile, "$").constants, path)
    body = {"nodes": raw.get("nodes"), "outputs": raw.get("outputs")}
    return checked(_graph(body, constants, "$", 0))


def _strict_json(text: str, file: str | None) -> Any:
    """Parse JSON, refusing what the standard module lets through: repeated keys, NaN, and numbers out of range."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            keys = [key for key, _ in items]
            again = next(key for n, key in enumerate(keys) if key in keys[:n]) if len(keys) < 1000 else "one of many"
            raise FormatError(f"the JSON object has the key {again!r} twice", code="E223")
        return found

    def refuse(word: str) -> NoReturn:
        raise FormatError(f"{word} is not a JSON number", code="E223", suggestions=["a literal is written as text"])

    def integer(word: str) -> int:
        if len(word) > 18 and not -(2**63) <= int(word[:40]) < 2**63:
            raise FormatError(f"the number {word[:40]} does not fit 64 bits", code="E223")
        return int(word)

    def real(word: str) -> float:
        if math.isinf(value := float(word)):
            raise FormatError(f"the number {word[:40]} is too large", code="E223")
        return value

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=refuse, parse_int=integer, parse_float=real)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"not JSON: {error.msg}", code="E223", **spot(text, min(error.pos, len(text)), file)
        ) from None
    except RecursionError:
        raise FormatError("the JSON is nested too deeply", code="E223") from None


def _convert(raw: Any, kind: type[_T] | Any, path: str) -> _T:
    try:
        found: _T = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$")
        place = path + inner.rstrip("`")
        word = re.fullmatch(r"Invalid value '(.*)'", message)
        hints = nearest(word[1], OPS) if word and place.endswith(".op.op") else []
        raise FormatError(f"{message}, at {place}", code="E225", suggestions=hints) from None
    return found


def _graph(raw: Any, constants: Mapping[str, Array], path: str, depth: int) -> EinsumGraph:
    if depth > MAX_BODY_DEPTH:
        raise _too_deep()
    body: _BodyFile = _convert(raw, _BodyFile, path)
    for i, node in enumerate(body.nodes):  # bodies first, so that every error knows its whole path
        op = node.get("op") if isinstance(node, dict) else None
        if not isinstance(op, dict):
            continue
        for key in ("body", "then", "otherwise"):
            if isinstance(op.get(key), dict):
                op[key] = _graph(op[key], constants, f"{path}.nodes[{i}].op.{key}", depth + 1)
        if op.get("op") == "fixpoint" and op.get("tolerance") == "inf":
            op["tolerance"] = math.inf
    records: list[_NodeFile] = _convert(body.nodes, list[_NodeFile], f"{path}.nodes")
    nodes = [Node(r.op, r.args, r.at) for r in records]
    return EinsumGraph(nodes, body.outputs, own_constants(nodes, constants))


def own_constants(nodes: Iterable[Node], constants: Mapping[str, Array]) -> dict[str, Array]:
    """Return the constants that some nodes use, without going through all of them for every small body."""
    used = (n.op.digest for n in nodes if isinstance(n.op, ops.Constant))
    return {digest: constants[digest] for digest in used if digest in constants}


def _constants(table: Mapping[str, _ConstantFile], path: Path | None) -> dict[str, Array]:
    """Read the arrays that stand in the JSON, and the others from the file beside it."""
    found = {}
    for digest, c in table.items():
        if c.data is not None:
            found[digest] = proven(digest, array_of(base64_bytes(c.data), c.dtype, c.shape), c.dtype, c.shape)
    wanted = {digest: c for digest, c in table.items() if c.data is None}
    if wanted and path is None:
        raise FormatError(f"the JSON names {len(wanted)} constant(s) but does not hold their data", code="E226",
                          suggestions=["read the file with load(path), which finds the safetensors file beside it"])  # fmt: skip
    if wanted and path is not None:
        found.update(_beside_arrays(wanted, _beside(path)))
    return found


def _beside_arrays(wanted: Mapping[str, _ConstantFile], path: Path) -> dict[str, Array]:
    from safetensors import safe_open

    if not path.is_file():
        raise FormatError(f"the graph's constants are in {path.name!r}, which is missing", code="E226",
                          context=[f"looked for {str(path)!r}"],
                          suggestions=["keep the two files together, or save the graph again"])  # fmt: skip
    found = {}
    try:
        with safe_open(str(path), framework="numpy") as file:
            there = set(file.keys())
            for digest, c in wanted.items():
                if digest not in there:
                    raise FormatError(f"{path.name!r} does not hold constant {digest}", code="E226",
                                      suggestions=["it belongs to another graph; save the graph again"])  # fmt: skip
                found[digest] = proven(digest, file.get_tensor(digest), c.dtype, c.shape)
    except TensorLogicError:
        raise
    except Exception as error:  # the library raises several kinds, its own among them
        raise FormatError(f"{path.name!r} is not a readable safetensors file: {error}", code="E226") from None
    return found


def base64_bytes(text: str) -> bytes:
    """Decode base64, strictly."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"the data of a constant is not base64: {error}", code="E226") from None


def array_of(data: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    """Make an array of stored bytes, having checked that they are as many as its shape says."""
    if dtype not in ITEMSIZE:
        raise FormatError(f"unsupported dtype {dtype!r}", code="E103", suggestions=nearest(dtype, DTYPES))
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        raise FormatError(f"a constant cannot have shape {list(shape[:MAX_RANK])}", code="E226")
    need = math.prod(shape) * ITEMSIZE[dtype]
    if need != len(data):
        raise FormatError(
            f"a constant {dtype}{list(shape)} has {need} bytes, but {len(data)} are given", code="E226",
            suggestions=["correct its shape or dtype, or write the graph again"],
        )  # fmt: skip
    try:
        stored = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
        return frozen_copy(stored.reshape(shape))
    except (TypeError, ValueError) as error:
        raise FormatError(f"cannot hold a constant {dtype}{list(shape)}: {error}", code="E226") from None


def proven(digest: str, array: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return a constant that was read, frozen, if it is what the graph says it is."""
    array = frozen_copy(array)
    if array.dtype.name != dtype or array.shape != shape:
        raise FormatError(
            f"constant {digest} is {array.dtype.name}{list(array.shape)}, the graph says {dtype}{list(shape)}",
            code="E226",
        )
    if dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise FormatError(f"constant {digest} has booleans that are neither 0 nor 1", code="E226")
    real = constant_digest(array)
    if real != digest:
        raise FormatError(f"constant {digest} was changed: its digest is {real}", code="E226",
                          suggestions=["restore the file, or write the graph again"])  # fmt: skip
    return array


# checking


def checked(graph: EinsumGraph) -> EinsumGraph:
    """Return a graph that was read if its structure and its types are sound; raise the first problem otherwise."""
    problems = check_structure(graph)
    if problems:
        more = f"and {len(problems) - 1} more problem(s)"
        raise GraphError.of(problems[0].with_context(more) if len(problems) > 1 else problems[0])
    try:
        graph.inference  # noqa: B018 - computed here once, and kept
    except TensorLogicError as error:
        error.diagnostic = error.diagnostic.with_context(f"in {_failing(graph)}")
        raise
    except Exception as error:  # sizes of thousands of digits, and whatever else nobody thought of
        raise GraphError(
            f"the types cannot be worked out: {error}", code="E210", context=[f"in {_failing(graph)}"]
        ) from None
    return graph


def _failing(graph: EinsumGraph) -> str:
    types: list[Any] = []
    for i, node in enumerate(graph.nodes):
        try:
            types.append(node_types(node.op, [types[a] for a in node.args], Scope(i, str, node.args, [])))
        except Exception:
            return f"{_called(node, i)}, $.nodes[{i}]"
    return "the graph"


def check_structure(graph: EinsumGraph) -> list[Diagnostic]:
    """Return what is wrong with how a graph hangs together, bodies included; types are another matter.

    >>> [d.code for d in check_structure(EinsumGraph([Node(ops.Elementwise("relu"), (1,))], [("y", 0)]))]
    ['E201']
    """
    found: list[Diagnostic] = []
    _check(graph, "$", 0, found)
    return found


def _called(node: Node, i: int) -> str:
    return f"node %{i} ({node.op.name})"


def _problem(node: Node | None, code: str, message: str, path: str, hint: str) -> Diagnostic:
    found = Diagnostic.error(message).with_code(code).with_suggestion(hint)
    found = found.with_context(f"at {path}") if path else found
    return found if node is None or node.location is None else found.with_location(node.location)


def _no_array(node: Node, i: int, path: str) -> Diagnostic:
    return _problem(node, "E206", f"{_called(node, i)} has no array", path, "pass constants={digest: array}")


def _check(graph: EinsumGraph, path: str, depth: int, found: list[Diagnostic]) -> None:
    count = len(graph.nodes)
    inputs: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        op, where = node.op, f"{path}.nodes[{i}]"
        for n, a in enumerate(node.args):
            if 0 <= a < i:
                continue
            if 0 <= a < count:
                message = f"{_called(node, i)} reads " + ("itself" if a == i else f"%{a}, which comes later")
                found.append(_problem(node, "E202", message, f"{where}.args[{n}]", "a node reads only earlier nodes"))
            else:
                message = f"{_called(node, i)} reads %{a}, which does not exist"
                hint = f"the nodes are %0 to %{count - 1}"
                found.append(_problem(node, "E201", message, f"{where}.args[{n}]", hint))
        match op:
            case ops.Elementwise() | ops.Einsum():
                continue
            case ops.Input():
                first = inputs.setdefault(op.label, i)
                if first != i:
                    message = f"{_called(node, i)} has the name {op.label!r}, which %{first} has too"
                    found.append(_problem(node, "E205", message, where, "give every input its own name"))
            case ops.Constant():
                array = graph.constants.get(op.digest)
                if array is None:
                    found.append(_no_array(node, i, where))
                elif array.shape != op.shape or array.dtype.name != op.dtype:
                    message = (
                        f"{_called(node, i)} is {op.dtype}{list(op.shape)}, its array {array.dtype}{list(array.shape)}"
                    )
                    found.append(_problem(node, "E206", message, where, "make the node with constant_op(array)"))
            case ops.Literal():
                if not _plain_literal(op):
                    message = f"{_called(node, i)}: {op.text[:40]!r} is not how a literal {op.kind} is written"
                    found.append(_problem(node, "E208", message, where, "make the node with Literal.of(value)"))
        for size in _sizes(op):
            if isinstance(size, str) and (normal := _size_hint(size)):
                message = f"{_called(node, i)} has a size {size[:40]!r} that is not in normal form"
                found.append(_problem(node, "E209", message, where, normal))
        for key, body in zip(("then", "otherwise") if isinstance(op, Cond) else ("body",), bodies(op), strict=False):
            if depth >= MAX_BODY_DEPTH:
                message = f"{_called(node, i)} is nested deeper than {MAX_BODY_DEPTH} bodies"
                found.append(_problem(node, "E207", message, where, "unnest some of them"))
                break
            _check(body, f"{where}.op.{key}", depth + 1, found)
    names: set[str] = set()
    for n, (name, i) in enumerate(graph.outputs):
        where = f"{path}.outputs[{n}]"
        if name in names:
            found.append(
                _problem(None, "E204", f"two outputs are named {name!r}", where, "give every output its own name")
            )
        names.add(name)
        if not 0 <= i < count:
            hint = f"the nodes are %0 to %{count - 1}" if count else "the graph has no nodes"
            found.append(_problem(None, "E203", f"output {name!r} is %{i}, which does not exist", where, hint))
        elif (results := _results(graph.nodes[i].op)) != 1:
            message = f"output {name!r} is {_called(graph.nodes[i], i)}, which has {results} results"
            found.append(_problem(graph.nodes[i], "E203", message, where, "choose one of them with an item node"))


def _results(op: Op) -> int:
    """Return how many results an operation has."""
    match op:
        case Fixpoint() | Scan():
            return len(op.body.outputs)
        case Cond():
            return len(op.then.outputs)
        case _:
            return 1


def _plain_literal(op: ops.Literal) -> bool:
    try:
        return op.kind in ("bool", "int", "float") and ops.Literal.of(op.value) == op
    except ValueError:
        return False


def _sizes(op: Op) -> Iterable[Dim | None]:
    match op:
        case ops.Input() | ops.Reshape() | ops.Broadcast():
            return op.shape or ()
        case ops.Iota() | ops.Window():
            return (op.size,)
        case ops.Slice():
            return [d for start, size, _ in op.ranges for d in (start, size)]
        case Scan():
            return (op.length,)
        case _:
            return ()


def _size_hint(size: str) -> str | None:
    try:
        normal = dim(size)
    except ShapeError as error:
        return error.diagnostic.suggestions[0] if error.diagnostic.suggestions else error.diagnostic.message
    return None if normal == size else f"write {normal!r}"


# the Rust crate's JSON


class _RustNode(msgspec.Struct):
    op: dict[str, dict[str, Any]]
    inputs: list[int] = []
    outputs: list[int] = []


class _RustFile(msgspec.Struct):
    tensors: list[str]
    nodes: list[_RustNode]
    inputs: list[int] = []
    outputs: list[int] = []


Emit = Callable[..., int]  # (op or function name, *args) -> node


def _one_minus(e: Emit, a: int) -> int:
    return e("subtract", e(ops.Literal.of(1.0)), a)


# words are compared without case and underscores; our own element-wise functions are known by their names too
_ALIASES = {
    "neg": "negative", "negate": "negative", "abs": "absolute", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
    "round": "rint", "recip": "reciprocal", "sqr": "square", "not": "oneminus", "sub": "subtract", "mul": "multiply",
    "and": "multiply", "div": "divide", "pow": "power", "min": "minimum", "max": "maximum", "or": "maximum",
    "ormax": "maximum", "orprobabilistic": "orprobsum", "eq": "equal", "ne": "notequal", "neq": "notequal",
    "lt": "less", "lessthan": "less", "gt": "greater", "greaterthan": "greater", "lte": "lessequal", "le": "lessequal",
    "lessthanorequal": "lessequal", "gte": "greaterequal", "ge": "greaterequal", "greaterthanorequal": "greaterequal",
    **{fn.replace("_", ""): fn for fn, row in FUNCTIONS.items() if row.arity < 3},
}  # fmt: skip
_TRUTHS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}  # 0.0 and 1.0 there, bool here
_FORMULAS: dict[str, tuple[int, Callable[..., int]]] = {
    "oneminus": (1, _one_minus),
    "orprobsum": (2, lambda e, a, b: e("subtract", e("add", a, b), e("multiply", a, b))),
    "nand": (2, lambda e, a, b: _one_minus(e, e("multiply", a, b))),
    "nor": (2, lambda e, a, b: _one_minus(e, e("maximum", a, b))),
    "xor": (
        2,
        lambda e, a, b: e("subtract", e("add", a, b), e("multiply", e(ops.Literal.of(2.0)), e("multiply", a, b))),
    ),
}
_REDUCTIONS = {"product": "prod", **{kind: kind for kind in ops.REDUCTIONS}}
_KINDS = ("Einsum", "ElemUnary", "ElemBinary", "Reduce")


def _function(word: str, arity: int) -> Callable[..., int] | None:
    name = _ALIASES.get(word, word)
    name = _ALIASES.get(name, name)  # an alias may lead to a word that is squeezed itself
    if name in _FORMULAS:
        return _FORMULAS[name][1] if _FORMULAS[name][0] == arity else None
    if name not in FUNCTIONS or FUNCTIONS[name].arity != arity:
        return None
    if name in _TRUTHS:
        return lambda e, *args: e(ops.Cast("float64"), e(name, *args))
    return lambda e, *args: e(name, *args)


def _bad_rust(code: str, message: str, path: str, *hints: str) -> GraphError:
    return GraphError(message, code=code, context=[f"at {path}"], suggestions=hints)


def _from_rust(file: _RustFile) -> EinsumGraph:
    """Turn the Rust crate's graph, whose tensors have names but no shapes, into ours; every node is kept."""
    count = len(file.tensors)

    def within(i: int, path: str) -> int:
        if not 0 <= i < count:
            raise _bad_rust("E201", f"tensor {i} does not exist", path, f"there are {count} tensors, counted from 0")
        return i

    maker: dict[int, int] = {}
    for k, node in enumerate(file.nodes):
        for n, i in enumerate(node.inputs):
            within(i, f"$.nodes[{k}].inputs[{n}]")
        if len(node.outputs) != 1:
            raise _bad_rust("E105", f"node {k} makes {len(node.outputs)} tensors", f"$.nodes[{k}].outputs",
                            "a node makes one tensor")  # fmt: skip
        made = within(node.outputs[0], f"$.nodes[{k}].outputs[0]")
        if maker.setdefault(made, k) != k:
            raise _bad_rust("E202", f"tensor {file.tensors[made]!r} is made by node {maker[made]} and by node {k}",
                            f"$.nodes[{k}].outputs[0]", "give one of them a tensor of its own")  # fmt: skip
    read = dict.fromkeys(i for node in file.nodes for i in node.inputs)
    declared = [within(i, f"$.inputs[{n}]") for n, i in enumerate(file.inputs)]
    declared = declared or [i for i in sorted(read) if i not in maker]
    read.update(dict.fromkeys(within(i, f"$.outputs[{n}]") for n, i in enumerate(file.outputs)))
    known = set(declared)
    _distinct([file.tensors[i] for i in declared], "$.inputs", "E205")
    _distinct([file.tensors[i] for i in file.outputs], "$.outputs", "E204")
    for i in declared:
        if i in maker:
            raise _bad_rust("E202", f"input {file.tensors[i]!r} is also made by node {maker[i]}", "$.inputs",
                            'take it out of "inputs", or give the node a tensor of its own')  # fmt: skip
    for i in read:
        if i not in known and i not in maker:
            raise _bad_rust("E201", f"tensor {file.tensors[i]!r} (number {i}) is read, but no node makes it", "$.nodes",
                            f'add {i} to "inputs", or a node that makes it')  # fmt: skip
    if not file.outputs:
        raise _bad_rust("E203", "the graph has no outputs", "$.outputs", 'list the tensors it is for in "outputs"')

    nodes: list[Node] = [Node(ops.Input(file.tensors[i])) for i in declared]
    place = {i: n for n, i in enumerate(declared)}

    def emit(op: Op | str, *args: int) -> int:
        nodes.append(Node(ops.Elementwise(op) if isinstance(op, str) else op, args))
        return len(nodes) - 1

    for k in _rust_order(file, maker):
        node = file.nodes[k]
        place[node.outputs[0]] = _rust_node(node, [place[i] for i in node.inputs], emit, f"$.nodes[{k}].op")
    return EinsumGraph(nodes, [(file.tensors[i], place[i]) for i in file.outputs])


def _distinct(names: list[str], path: str, code: str) -> None:
    seen: set[str] = set()
    for n, name in enumerate(names):
        if name in seen:
            raise _bad_rust(code, f"the name {name!r} stands there twice", f"{path}[{n}]", "rename one of the tensors")
        seen.add(name)


def _rust_order(file: _RustFile, maker: Mapping[int, int]) -> list[int]:
    """Return the nodes so that each comes after those it reads, otherwise as they stand in the file."""
    order: list[int] = []
    state = bytearray(len(file.nodes))  # 1: being visited, 2: done
    for root in range(len(file.nodes)):
        trail = [] if state[root] else [(root, iter(file.nodes[root].inputs))]
        state[root] = state[root] or 1
        while trail:
            k, rest = trail[-1]
            above = next((maker[i] for i in rest if i in maker and state[maker[i]] != 2), None)
            if above is None:
                state[k] = 2
                order.append(k)
                trail.pop()
            elif state[above] == 1:
                loop = [n for n, _ in trail]
                names = [file.tensors[file.nodes[n].outputs[0]] for n in loop[loop.index(above) :]]
                shown = (
                    [names[0], *reversed(names)]
                    if len(names) <= 12
                    else [names[0], *names[:-6:-1], "...", *names[5::-1]]
                )
                raise _bad_rust("E202", f"the graph has a cycle: {' -> '.join(shown)}", f"$.nodes[{above}]",
                                "a tensor cannot depend on itself; use a fixpoint")  # fmt: skip
            else:
                state[above] = 1
                trail.append((above, iter(file.nodes[above].inputs)))
    return order


def _rust_node(node: _RustNode, args: list[int], emit: Emit, path: str) -> int:
    kind = next(iter(node.op), "")
    if len(node.op) != 1 or kind not in _KINDS:
        raise _bad_rust("E105", f"unknown kind of op {', '.join(node.op)!r}", path, *nearest(kind, _KINDS))
    fields = node.op[kind]
    key, arity = {"Einsum": ("spec", None), "ElemBinary": ("op", 2)}.get(kind, ("op", 1))
    word = fields.get(key)
    if not isinstance(word, str):
        raise _bad_rust("E105", f"{kind} needs {key!r}, a string", f"{path}.{kind}", f"such as {{{key!r}: 'sum'}}")
    if arity is not None and len(args) != arity:
        raise _bad_rust("E105", f"{word} takes {arity} operand(s), got {len(args)}", path, f'list {arity} in "inputs"')
    if arity is None:
        try:
            return emit(ops.Einsum(str(spec.parse(word))), *args)
        except TensorLogicError as error:
            error.diagnostic = error.diagnostic.with_context(f"at {path}.Einsum.spec")
            raise
    small = word.lower().replace("_", "")
    if kind == "Reduce":
        if small not in _REDUCTIONS:
            raise _bad_rust("E105", f"unknown reduction {word!r}", f"{path}.Reduce.op", *nearest(small, _REDUCTIONS))
        axes: tuple[int, ...] = _convert(fields.get("axes", ()), tuple[int, ...], f"{path}.Reduce.axes")
        return emit(ops.Reduce(_REDUCTIONS[small], axes), *args)
    function = _function(small, arity)
    if function is None:
        known = [w for w in (*_FORMULAS, *_ALIASES) if _function(w, arity)]
        raise _bad_rust("E105", f"unknown {kind} op {word!r}", f"{path}.{kind}.op", *nearest(small, known))
    return function(emit, *args)
