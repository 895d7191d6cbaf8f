"""Parsing the text of a graph, as :mod:`.text` prints it or as a person writes it."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import msgspec
import numpy as np

from ..diagnostics import SourceLocation
from ..errors import FormatError, TensorLogicError, nearest
from . import ops
from .check import check_graph
from .constants import decode, verified_constant
from .elementwise import FUNCTIONS
from .graph import MAX_BODY_DEPTH, OPS, EinsumGraph, Node, body_fields
from .ops import Op, constant_op
from .sizes import Dim, dim
from .text import name_text, number, quoted
from .types import DTYPES, ITEMSIZE, MAX_RANK, Array, frozen_copy
from .untrusted_text import LIMIT, decode_text, spot

_WORDS: Mapping[str, type[Op]] = ChainMap(
    OPS, {**dict.fromkeys(FUNCTIONS, ops.Elementwise), **dict.fromkeys(ops.REDUCTIONS, ops.Reduce)}
)

_S = r"(?:\s++|#[^\n]*+)*+"
_STRING = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_NAME = rf"%\d++|[^\W\d][\w.]*+|{_STRING}"
_TYPE = r"[^\W\d]\w*+(?:\[[^\]\n]*+\])?+"
_TYPES = rf"{_TYPE}|\({_S}(?:{_TYPE}(?:{_S},{_S}{_TYPE})*+)?+{_S}\)"
_NUMBER = r"-?(?:inf\b|[0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?[0-9]++)?+)|nan\b"

_SPACE = re.compile(_S)
_OPEN = re.compile(rf"{_S}graph{_S}\{{")
_CLOSE = re.compile(rf"{_S}\}}")
_BRACE = re.compile(r"\{")
_STATEMENT = re.compile(rf"({_NAME}){_S}(?::{_S}({_TYPES}){_S})?+={_S}([^\W\d]\w*+){_S}\(")
_OPERAND = re.compile(rf"{_S}({_NAME})(?={_S}[,)])")
_KEY = re.compile(rf"{_S}([^\W\d]\w*+){_S}={_S}")
_END = re.compile(rf"{_S}\)")
_MORE = re.compile(rf"{_S}([,)])")
_LIST = re.compile(rf"{_S}([,\]])")
_RETURN = re.compile(r"return\b(?!\s*[:=])")
_OUTPUT = re.compile(rf"{_S}({_NAME}){_S}={_S}({_NAME}){_S}(,?+)")
_VALUE = re.compile(rf"{_S}(?:({_STRING})|(@\w++)|({_NUMBER})|(True|False|None)\b|(\[)({_S}\])?+)")
_ATOMS = {"True": True, "False": False, "None": None}

Declared = tuple[tuple[Dim, ...] | None, str | None]  # a type: the shape, and the dtype


def parse_graph(
    text: str, constants: Mapping[str, Array] | None = None, *, file: str | None = None, limit: int = LIMIT
) -> EinsumGraph:
    """Read a graph from its text and check it; its nodes remember their lines.

    ``constants`` supplies, by digest, those that the text only names; ``limit`` bounds the size of the text.

    >>> print(parse_graph("graph { x: float32[n] = input()  y = relu(x)  return y=y }"))
    graph {
      x: float32[n] = input()
      %1: float32[n] = relu(x)
      return y=%1
    }
    """
    reader = _Reader(decode_text(text, limit), constants or {}, file)
    reader.expect(_OPEN, "a graph starts with 'graph {'")
    graph = reader.block(0)
    reader.space()
    if reader.at < len(reader.text):
        reader.fail("there is more text after the graph")
    return check_graph(graph)


class _Reader:
    """A place in the text, and the constants that have been read so far."""

    def __init__(self, text: str, constants: Mapping[str, Array], file: str | None) -> None:
        self.text, self.file, self.at = text, file, 0
        self.supplied, self.constants = constants, dict[str, Array]()
        self.scores: set[str] = set()  # inputs that are truth values
        self.lines = [0, *(m.end() for m in re.finditer("\n", text))]  # where they start

    def fail(self, message: str, hints: Sequence[str] = (), at: int | None = None, code: str = "E223") -> NoReturn:
        where = spot(self.text, self.at if at is None else at, self.file)
        raise FormatError(message, *hints, code=code, **where) from None

    def expect(self, pattern: re.Pattern[str], message: str) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            self.space()
            found = self.text[self.at : self.at + 20].split("\n")[0]
            self.fail(f"{message}; found {found!r}" if found else f"{message}; the text ends here")
        self.at = match.end()
        return match

    def space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = self.at if match is None else match.end()

    def place(self) -> SourceLocation:
        line = bisect_right(self.lines, self.at)
        return SourceLocation(self.file, line, self.at - self.lines[line - 1] + 1)

    def block(self, depth: int) -> EinsumGraph:
        """Read statements, 'return' and the closing brace."""
        if depth > MAX_BODY_DEPTH:
            self.fail(f"bodies may be nested {MAX_BODY_DEPTH} deep", code="E207")
        nodes: list[Node] = []
        names: dict[str, int] = {}
        labels: set[str] = set()
        while True:
            self.space()
            match = _RETURN.match(self.text, self.at)
            if match is not None:
                self.at = match.end()
                break
            start, place = self.at, self.place()
            wanted = "expected a statement such as '%2: any[n] = relu(x)', or 'return y=%2'"
            name, kind, word = self.expect(_STATEMENT, wanted).groups()
            name = self.key(name, start)
            op, args = self.call(name, kind, word, names, depth, start)
            if name in names:
                self.fail(f"{name} is made twice", ["every statement has a name of its own"], start, "E205")
            if isinstance(op, ops.Input):
                if op.label in labels:
                    self.fail(f"input {op.label!r} is declared twice", ["give it another name"], start, "E205")
                labels.add(op.label)
            names[name] = len(nodes)
            nodes.append(Node(op, args, (place,)))
        return EinsumGraph(nodes, self.outputs(names), self.constants, scores=() if depth else self.scores)

    def outputs(self, names: Mapping[str, int]) -> list[tuple[str, int]]:
        outputs: dict[str, int] = {}
        more = _CLOSE.match(self.text, self.at) is None
        while more:
            self.space()
            start = self.at
            match = self.expect(_OUTPUT, "expected an output such as 'y=%2'")
            name = self.unquoted(match[1], start)
            if match[1].startswith("%"):
                self.fail(f"an output cannot be named {match[1]}", [f"write {quoted(match[1])}"], start)
            if name in outputs:
                self.fail(f"two outputs are named {name!r}", ["give every output its own name"], start, "E204")
            outputs[name] = self.known(match[2], names, match.start(2))
            more = match[3] == ","
        self.expect(_CLOSE, "expected '}' after 'return'")
        return list(outputs.items())

    def known(self, name: str, names: Mapping[str, int], at: int) -> int:
        node = names.get(self.key(name, at))
        if node is None:
            some = list(names)[-1000:]  # the search for a near name is slow
            hints = [*nearest(name, some), "a statement reads only what stands before it in the same block"]
            self.fail(f"nothing is named {name} here", hints, at, "E201")
        return node

    def key(self, name: str, at: int) -> str:
        """Return a name as it would be printed, so that it does not matter how it is quoted."""
        return name_text(self.unquoted(name, at)) if name.startswith('"') else name

    def unquoted(self, text: str, at: int) -> str:
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            self.fail(f"cannot read the string {text[:40]}", ["escapes are those of JSON"], at)

    def call(
        self, name: str, kind: str | None, word: str, names: Mapping[str, int], depth: int, start: int
    ) -> tuple[Op, tuple[int, ...]]:
        """Read what stands in the parentheses, and make the operation."""
        cls = _WORDS.get(word)
        if cls is None:
            at = self.text.rfind(word, start, self.at)
            self.fail(f"unknown operation {word!r}", nearest(word, _WORDS), at, "E126")
        types = self.read_types(kind, start)
        args: list[int] = []
        given: list[Any] = []
        attributes: dict[str, Any] = {}
        takes_values = cls is ops.Literal or cls is ops.Constant
        end = _END.match(self.text, self.at)
        if end is not None:
            self.at = end.end()
        more = end is None
        while more:
            operand = None if takes_values else _OPERAND.match(self.text, self.at)
            if operand is not None:
                args.append(self.known(operand[1], names, operand.start(1)))
                self.at = operand.end()
            elif (key := _KEY.match(self.text, self.at)) is not None:
                self.attribute(key, cls, word, attributes, depth)
            elif takes_values and not given:
                given.append(self.value())
            else:
                self.space()
                self.fail("expected an operand, or an attribute such as axis=0")
            more = self.expect(_MORE, "expected ',' or ')'")[1] == ","
        try:
            if cls is ops.Input:
                op = self.input(name, types, attributes, depth)
            elif cls is ops.Literal and given:
                if attributes or not isinstance(given[0], bool | int | float):
                    raise FormatError("a literal is one number, or True or False", code="E134")
                op = ops.Literal.of(given[0])
            elif cls is ops.Constant and given:
                op = self.constant(given[0], attributes)
            else:
                op = _make(cls, word, attributes)
            if isinstance(op, ops.Constant):
                self.find(op)
        except msgspec.ValidationError as error:
            self.fail(f"{word}: {str(error).replace(' - at `$.', ', in `')}", at=start, code="E225")
        except UnicodeEncodeError:
            self.fail(f"{word}: text with half a surrogate pair", at=start, code="E225")
        except FormatError as error:
            if not error.guessed:
                raise
            self.fail(error.diagnostic.message, error.diagnostic.suggestions, start, error.diagnostic.code or "E226")
        return op, tuple(args)

    def attribute(self, key: re.Match[str], cls: type[Op], word: str, attributes: dict[str, Any], depth: int) -> None:
        name = key[1]
        if name not in (known := _accepted(cls, word)):
            self.fail(f"there is no attribute {name!r} here", nearest(name, known), key.start(1), "E225")
        if name in attributes:
            self.fail(f"the attribute {name!r} stands here twice", at=key.start(1), code="E233")
        self.at = key.end()
        if name in body_fields(cls):
            self.expect(_BRACE, f"expected '{{' and the statements of {name!r}")
            attributes[name] = self.block(depth + 1)
        else:
            attributes[name] = self.value()

    def value(self) -> Any:
        """Read a string, a number, a word, @digest, or lists of them."""
        open_lists: list[list[Any]] = []
        while True:
            match = self.expect(_VALUE, "expected a value: a number, a string, True, False, None or a list")
            string, digest, number, atom, opened, empty = match.groups()
            value: Any
            if opened is not None and empty is None:
                if len(open_lists) >= MAX_RANK:
                    self.fail(f"lists may be nested {MAX_RANK} deep")
                open_lists.append([])
                continue
            if string is not None:
                value = self.unquoted(string, match.start(1))
            elif digest is not None:
                value = _Digest(digest[1:])
            elif number is not None:
                value = self.number(number, match.start(3))
            else:
                value = [] if atom is None else _ATOMS[atom]
            while open_lists:
                open_lists[-1].append(value)
                if self.expect(_LIST, "expected ',' or ']'")[1] == ",":
                    break
                value = open_lists.pop()
            else:
                return value

    def number(self, text: str, at: int) -> int | float:
        try:
            value = number(text)
        except ValueError:  # thousands of digits
            self.fail("this number has too many digits", at=at, code="E232")
        if isinstance(value, float) and math.isinf(value) and not text.endswith("inf"):
            self.fail(f"the number {text[:40]} is too large", ["write inf"], at, "E232")
        return value

    def read_types(self, text: str | None, start: int) -> tuple[Declared, ...]:
        """Read a type or several."""
        if text is None:
            return ((None, None),)
        try:
            return tuple(_read_type(t) for t in re.findall(_TYPE, text))
        except TensorLogicError as error:
            at = self.text.find(text, start)
            self.fail(error.diagnostic.message, error.diagnostic.suggestions, at, "E225")

    def input(self, name: str, types: tuple[Declared, ...], attributes: Mapping[str, Any], depth: int) -> Op:
        if len(types) != 1:
            raise FormatError("an input has one type", code="E225")
        if name.startswith("%") and "label" not in attributes:
            raise FormatError("an input needs a name", "x: float32[n, 3] = input()", code="E225")
        label = attributes.get("label", self.unquoted(name, self.at))
        score = attributes.get("score", False)
        if not isinstance(score, bool) or (score and depth):
            raise FormatError("score is True or False, of an input of the whole graph", "write score=True", code="E225")
        op = msgspec.convert({"op": "input", "label": label, "shape": types[0][0], "dtype": types[0][1]}, ops.Input)
        self.scores.update([op.label] if score else [])
        return op

    def constant(self, value: Any, attributes: dict[str, Any]) -> Op:
        data = attributes.pop("data", None)
        dtype, shape = attributes.get("dtype"), attributes.get("shape")
        if not isinstance(dtype, str) or dtype not in ITEMSIZE:
            hints = nearest(str(dtype), DTYPES) if dtype is not None else ['write dtype="float32"']
            raise FormatError("a constant needs its dtype", *hints, code="E225")
        if isinstance(value, _Digest):
            op = msgspec.convert({"op": "constant", "digest": value.text, **attributes}, ops.Constant)
            if data is not None:
                array = decode(str(data), dtype, op.shape)
                self.constants[op.digest] = verified_constant(op.digest, array, dtype, op.shape)
            return op
        if data is not None:
            raise FormatError("a constant has data only after its @digest", code="E225")
        array = _array(value, dtype, None if shape is None else msgspec.convert(shape, tuple[int, ...]))
        op = constant_op(array)
        self.constants[op.digest] = array
        return op

    def find(self, op: ops.Constant) -> None:
        """Make sure that the array of a constant is there."""
        array = self.constants.get(op.digest)
        if array is not None and array.dtype.name == op.dtype and array.shape == op.shape:
            return  # proven when it was first met
        array = self.supplied.get(op.digest) if array is None else array
        if array is None:
            hint = "print it with to_text(), which holds all data, or pass constants={digest: array}"
            raise FormatError(f"the text names constant @{op.digest} but does not hold its data", hint, code="E226")
        self.constants[op.digest] = verified_constant(op.digest, array, op.dtype, op.shape)


class _Digest(msgspec.Struct, frozen=True):
    text: str


@lru_cache
def _accepted(cls: type[Op], word: str) -> tuple[str, ...]:
    """Return the attributes that may be written for an operation under a word."""
    if cls is ops.Input:
        return ("label", "score")  # its type says the rest
    names = tuple(f.name for f in msgspec.structs.fields(cls))
    if word not in OPS:
        return names[1:]  # the word is the first of them: the function, or the kind of reduction
    return (*names, "data") if cls is ops.Constant else names


def _make(cls: type[Op], word: str, attributes: dict[str, Any]) -> Op:
    if "data" in attributes:
        raise FormatError("a constant has data only after its @digest", code="E225")
    own = {"op": str(cls.__struct_config__.tag)}
    if cls is ops.Elementwise and word in FUNCTIONS:
        own["fn"] = word
    elif cls is ops.Reduce and word in ops.REDUCTIONS:
        own["kind"] = word
    return msgspec.convert({**attributes, **own}, cls)


@lru_cache(1024)
def _read_type(text: str) -> Declared:
    word, bracket, rest = text.partition("[")
    if word != "any" and word not in ITEMSIZE:
        raise FormatError(f"unsupported dtype {word!r}", suggestions=nearest(word, ("any", *DTYPES)))
    dtype = None if word == "any" else word
    if not bracket:
        return None, dtype
    inside = rest.removesuffix("]").strip()
    sizes = tuple(dim(d.strip()) for d in inside.split(",")) if inside else ()
    return sizes, dtype


def _array(value: Any, dtype: str, shape: tuple[int, ...] | None) -> Array:
    """Make a constant of nested lists; numbers must be of the dtype's kind, and fit."""
    flat, sizes = [value], []
    while flat and isinstance(flat[0], list):
        sizes.append(len(flat[0]))
        if not all(isinstance(x, list) and len(x) == sizes[-1] for x in flat):
            raise FormatError("the lists of a constant must be equally long", code="E235")
        flat = [x for row in flat for x in row]
    if shape is not None and (math.prod(shape) != len(flat) or (flat and shape != tuple(sizes))):
        raise FormatError(f"a constant of shape {list(shape)} does not have {len(flat)} elements", code="E235")
    kinds = {"bool": (bool,)}.get(dtype, (int,) if "int" in dtype else (int, float))
    if any(not isinstance(x, kinds) or (isinstance(x, bool) and dtype != "bool") for x in flat):
        raise FormatError(f"a constant {dtype} has an element that is not one", code="E237")
    try:
        with np.errstate(all="ignore"):
            array = np.array(flat, np.dtype(dtype)).reshape(sizes if shape is None else shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"cannot make a constant {dtype}: {error}", code="E237") from None
    pairs = zip(flat, array.flat, strict=True)
    if array.dtype.kind == "f" and any(math.isinf(y) and not math.isinf(x) for x, y in pairs):
        raise FormatError(f"a constant has an element that is too large for {dtype}", code="E237")
    return frozen_copy(array)
