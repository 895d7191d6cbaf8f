"""Printing a graph as text: one statement to a line, and it parses back.

An input's type is its declaration; every other type is there for the reader. Bodies stand in braces, indented.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from . import ops
from .check import plain_literal, too_deep
from .constants import encode
from .elementwise import FUNCTIONS
from .graph import MAX_BODY_DEPTH, EinsumGraph, bodies, body_fields
from .ops import Op
from .type_rules import known_types
from .types import Array

SMALL = 16  # elements of a constant that is written out
_RESERVED = frozenset({"graph", "return", "input", "True", "False", "None", "inf", "nan"})
_IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
_DIGEST = re.compile(r"[0-9a-f]{1,128}")


def print_graph(graph: EinsumGraph, *, inline: bool) -> str:
    """Return the text of a graph; with ``inline`` it also holds the data of large constants, and which inputs are scores."""
    printer = _Printer(inline)
    printer.block(graph, "  ", 0)
    return "\n".join(["graph {", *printer.lines, "}"])


class _Printer:
    """The lines so far, and the constants whose data already stand in them."""

    def __init__(self, inline: bool) -> None:
        self.inline = inline
        self.lines: list[str] = []
        self.given: set[str] = set()

    def block(self, graph: EinsumGraph, indent: str, depth: int) -> None:
        names = _names(graph)
        for i, (node, types) in enumerate(zip(graph.nodes, known_types(graph), strict=True)):
            op = node.op
            # a graph that is not well formed still prints
            operands = [names[a] if 0 <= a < len(names) else f"%{a}" for a in node.args]
            if isinstance(op, ops.Input):
                shape = "" if op.shape is None else f"[{', '.join(map(str, op.shape))}]"
                kind = f"{op.dtype or 'any'}{shape}"
                if names[i].startswith("%"):
                    operands.append(f"label={quoted(op.label)}")
                if self.inline and op.label in graph.scores:
                    operands.append("score=True")
                word = "input"
            else:
                kind = str(types[0]) if len(types) == 1 else f"({', '.join(map(str, types))})"
                word, items = self._call(op, graph)
                operands += items
            self.lines.append(f"{indent}{names[i]}: {kind} = {word}({', '.join(operands)}")
            between = ", " if operands else ""
            for key, body in zip(body_fields(type(op)), bodies(op), strict=True):
                self.lines[-1] += f"{between}{key}={{"
                between = ", "
                if depth < MAX_BODY_DEPTH:
                    self.block(body, indent + "  ", depth + 1)
                    self.lines.append(f"{indent}}}")
                elif self.inline:
                    raise too_deep()
                else:
                    self.lines[-1] += "...}"  # for the eye only; there is no reading it back anyway
            self.lines[-1] += ")"
        outputs = [f"{name_text(name)}={names[i] if 0 <= i < len(names) else f'%{i}'}" for name, i in graph.outputs]
        self.lines.append(f"{indent}return {', '.join(outputs)}".rstrip())

    def _call(self, op: Op, graph: EinsumGraph) -> tuple[str, list[str]]:
        """Return the word of an operation and its attributes, those that are at their defaults left out."""
        match op:
            case ops.Elementwise() if op.fn in FUNCTIONS:
                return op.fn, []
            case ops.Reduce() if op.kind in ops.REDUCTIONS:
                return op.kind, _attributes(op)[1:]
            case ops.Literal() if plain_literal(op):
                return "literal", [op.text]
            case ops.Constant() if _DIGEST.fullmatch(op.digest):
                return "constant", self._constant(op, graph.constants.get(op.digest))
            case _:
                return str(type(op).__struct_config__.tag), _attributes(op)

    def _constant(self, op: ops.Constant, array: Array | None) -> list[str]:
        if array is not None and array.size <= SMALL and array.shape == op.shape and array.dtype.name == op.dtype:
            short = _written_out(array)
            if short is not None:
                return short
        items = [f"@{op.digest}", f'dtype="{op.dtype}"', f"shape={_value(op.shape)}"]
        if self.inline and array is not None and op.digest not in self.given:
            self.given.add(op.digest)
            items.append(f'data="{encode(array)}"')
        return items


def _names(graph: EinsumGraph) -> list[str]:
    """Return a name of its own for every node: inputs under theirs, everything else by number."""
    taken: set[str] = set()
    names = []
    for i, node in enumerate(graph.nodes):
        name = f"%{i}"
        if isinstance(node.op, ops.Input) and node.op.label not in taken:
            taken.add(node.op.label)
            name = name_text(node.op.label)
        names.append(name)
    return names


def name_text(name: str) -> str:
    """Return a name as it stands in text: in quotes unless it is a word that means nothing else."""
    return name if _IDENTIFIER.fullmatch(name) and name not in _RESERVED else quoted(name)


def quoted(text: str) -> str:
    """Return a string as it stands in text."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


@lru_cache
def plain_fields(kind: type[Op]) -> tuple[tuple[str, object], ...]:
    """Return the fields of an operation that do not hold graphs, and their defaults."""
    return tuple((f.name, f.default) for f in msgspec.structs.fields(kind) if f.type is not EinsumGraph)


def attributes(op: Op) -> list[tuple[str, Any]]:
    """Return the fields of an operation that are not at their defaults, graphs left out."""
    pairs = ((name, getattr(op, name), default) for name, default in plain_fields(type(op)))
    return [(name, value) for name, value, default in pairs if value != default]


def _attributes(op: Op) -> list[str]:
    return [f"{name}={_value(value)}" for name, value in attributes(op)]


def _value(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    plain = value.item() if isinstance(value, np.generic) else value
    return repr(plain) if plain is None or isinstance(plain, bool | int | float) else quoted(str(plain))


def _written_out(array: Array) -> list[str] | None:
    """Return a small constant as nested lists, None where some bits (of a NaN) would be lost."""
    dtype = array.dtype.name
    tail = [f'dtype="{dtype}"']
    if not array.size:
        return ["[]", *tail, f"shape={_value(array.shape)}"]
    texts = [_element(x, array.dtype) for x in array.reshape(-1)]
    try:
        again = np.array([number(t) for t in texts], dtype).reshape(array.shape)
    except (TypeError, ValueError):
        return None
    if again.tobytes() != array.tobytes():
        return None
    for size in reversed(array.shape):
        texts = [f"[{', '.join(texts[n : n + size])}]" for n in range(0, len(texts), size)]
    return [texts[0], *tail]


def _element(x: Any, dtype: np.dtype[Any]) -> str:
    if dtype.kind != "f":
        return repr(x.item())
    short = str(x)  # the shortest that names this float32; reading goes through float64, which could round twice
    with np.errstate(all="ignore"):
        return short if dtype.type(float(short)) == x else repr(float(x))


def number(text: str) -> bool | int | float:
    """Return the number that a text is, or the truth value."""
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.removeprefix("-").isdigit() else float(text)
