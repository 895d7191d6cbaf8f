"""A step of a plan that runs on relations, read as queries, and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..ir import ops
from ..ir import spec as specs
from ..ir.type_rules import reduced_axes
from ..ir.types import dims
from .build import Step
from .fused_steps import Fused
from .queries import Fixed, Query, Term, Value
from .query_reader import Loop, Reader, Slot


class Count(NamedTuple):
    """A result that counts the tuples of a relation along some axes."""

    slot: Slot
    axes: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]


class Reading(NamedTuple):
    """A step on relations, read: the reader with what is computed in order, and the results that count tuples."""

    reader: Reader
    counts: dict[Slot, Count]


def read_step(step: Step, numbers: Mapping[int, Any]) -> Reading:
    """Read the parts of a step as queries; ``numbers`` has the operands that are constant arrays of numbers, by slot."""
    assert isinstance(step.op, Fused)
    reader = Reader()
    shapes = {s: dims(t) for part in step.parts for s, t in zip(part.reads, part.arg_types, strict=True)}
    for slot in step.reads:
        if slot in numbers:
            reader.constant(slot, numbers[slot])
        else:
            reader.given(slot, shapes[slot])
    for slot, op in step.op.literals:
        reader.constant(slot, op.value)
    readers = Counter(slot for part in step.parts for slot in set(part.reads))
    counts: dict[Slot, Count] = {}
    casts: dict[int, int] = {}
    for part in step.parts:
        target = part.writes[0]
        if isinstance(part.op, ops.Cast) and part.types[0].dtype != "bool":
            reader.store(part.reads[0], dims(part.arg_types[0]))
            casts[target] = part.reads[0]
        elif part.reads and part.reads[0] in casts:
            t = part.types[0]
            counts[target] = Count(casts[part.reads[0]], counted_axes(part), t.dtype or "int64", dims(t))
        else:
            reader.step(part, keep=target in step.writes, shared=readers[target] > 1)
    return Reading(reader, counts)


def counted_axes(step: Step) -> tuple[int, ...]:
    """Return the axes along which a step adds up."""
    if isinstance(step.op, ops.Reduce):
        return tuple(reduced_axes(step.op, len(dims(step.arg_types[0]))))
    assert isinstance(step.op, ops.Einsum)
    parsed = specs.parse(step.op.spec)
    return tuple(a for a, x in enumerate(parsed.inputs[0]) if x not in parsed.output)


def written(reading: Reading, name: Callable[[Slot], str]) -> list[str]:
    """Return what a step on relations computes, as rules, one a line."""
    lines = []
    for stage in reading.reader.stages:
        if isinstance(stage, Loop):
            lines.append(f"until nothing is new ({describe_loop(stage)}):")
            own = {slot: name(w) for slot, w in zip(stage.carries, stage.step.writes, strict=True)}
            own |= {slot: own[c] for slot, c in zip(stage.results, stage.carries, strict=True)}

            def inner(slot: Slot, own: dict[Slot, str] = own) -> str:
                return own.get(slot) or (f"%{slot[1]}'" if isinstance(slot, tuple) else name(slot))

            for slot, queries in (*stage.fixed.items(), *stage.rules.items()):
                lines += [f"  {_written_query(inner(slot), q, inner)}" for q in queries]
        else:
            lines += [_written_query(name(stage.slot), q, name) for q in stage.queries]
    for slot, count in reading.counts.items():
        lines.append(f"{name(slot)} counts the tuples of {name(count.slot)}")
    return lines


def describe_loop(loop: Loop) -> str:
    """Return how many relations a loop derives."""
    return "one relation" if len(loop.carries) == 1 else f"{len(loop.carries)} relations together"


def _written_query(head: str, query: Query, name: Callable[[Slot], str]) -> str:
    letters: dict[int, str] = {}

    def term(t: Term) -> str:
        if isinstance(t, Fixed):
            return str(t.code)
        return letters.setdefault(
            t, "xyzuvwabcdefghijklmnopqrst"[len(letters)] if len(letters) < 26 else f"x{len(letters)}"
        )

    def value(v: Value) -> str:
        match v.op:
            case "index":
                return term(v.args[0])
            case "number":
                return str(v.args[0])
            case "table":
                return f"value({value(v.args[1])})"
            case _ if len(v.args) == 2:
                return f"{value(v.args[0])} {_SIGNS.get(v.op, v.op)} {value(v.args[1])}"
            case _:
                return f"{v.op}({', '.join(map(value, v.args))})"

    shown = f"{head}({', '.join(map(term, query.terms))})"
    body = [("not " if a.negated else "") + f"{name(a.slot)}({', '.join(map(term, a.terms))})" for a in query.atoms]
    body += [f"{value(t.left)} {_SIGNS[t.fn]} {value(t.right)}" for t in query.tests]
    return f"{shown} <- {', '.join(body)}" if body else shown


_NAMES = "equal not_equal less less_equal greater greater_equal add subtract multiply floor_divide remainder".split()
_SIGNS = dict(zip(_NAMES, "= != < <= > >= + - * // %".split(), strict=True))
