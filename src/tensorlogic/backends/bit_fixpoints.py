"""Fixpoints over packed bits: rules are applied to what is new, and a transitive closure is found by its components.

Rounds are the plain loop's, one by one: after each the carries have the same value, so that limits and errors are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..events import check_contexts, span
from ..ir import ops
from ..ir.graph import Fixpoint, meets_others
from ..ir.types import TensorType, dims
from ..plan.build import ExecutionPlan, Step, lay_out
from . import bitplan, packed
from .base import Kernel
from .bitplan import OnWords, on_words
from .bits import BitTensor, wrap
from .collectives import moves_anywhere
from .control import Watch, not_settled
from .native.facts import joins_bits
from .packed import Words

Values = dict[int, BitTensor]


class Line(NamedTuple):
    """One step of a body: how it runs, what it reads and writes, and which of what it reads depends on the carries."""

    how: OnWords
    reads: tuple[int, ...]
    write: int
    varying: tuple[bool, ...]
    shape: tuple[int, ...]
    step: Step


class Body(NamedTuple):
    """A body that runs on words: what is the same in every round stands apart."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    fixed: tuple[Line, ...]
    lines: tuple[Line, ...]
    grown: frozenset[int]  # results of lines that are needed whole, not only what is new of them
    monotone: bool


def bind_fixpoint(step: Step, *, unpack: bool = True, load: bool = True) -> Kernel | None:
    """Return the kernel of a fixpoint whose body is made of Boolean operations, or None where there is another in it.

    Without ``unpack`` results stay packed, and are always a tuple. Unless binding is to ``load`` numba, it is loaded when there is enough
    to do.
    """
    op = step.op
    assert isinstance(op, Fixpoint)
    body = _body(lay_out(op.body), op.carries)  # an operation a step
    if body is None:
        return None
    if load:
        packed.load()
    meeting = meets_others(op.body)
    shape = _find_closure(body, op)
    semi = body.monotone and op.combine in ("or", "max") and meeting is None

    def kernel(*args: Any) -> Any:
        values = {slot: bitplan.packed_operand(x) for slot, x in zip(body.inputs, args, strict=True)}
        values.update((slot, BitTensor(x)) for slot, x in body.constants)
        for line in body.fixed:
            values[line.write] = line.how.run(*[values[s] for s in line.reads])
        if shape is not None:
            state = [_closed(shape, values)]
        else:
            state = _by_what_is_new(body, op, values, step) if semi else _plainly(body, op, values, step, meeting)
        if not unpack:
            return tuple(state)
        results = tuple(np.asarray(x) for x in state)
        return results[0] if len(results) == 1 else results

    return kernel


def loop_on_bits(op: Fixpoint, args: Sequence[TensorType]) -> str | None:
    """Return how a fixpoint runs: as a ``closure``, or in ``rounds``; None unless it has a join of truth values that is worth packing."""
    if any(t.dtype != "bool" for t in args[: op.carries]):
        return None
    plan = lay_out(op.body)
    body = _body(plan, op.carries) if any(map(_heavy, plan.steps)) else None
    if body is None:
        return None
    return "rounds" if _find_closure(body, op) is None else "closure"


def _heavy(step: Step) -> bool:
    return (
        isinstance(step.op, ops.Einsum)
        and step.contraction is not None
        and joins_bits(step.op, step.contraction, step.arg_types, step.types[0])
    )


def _body(plan: ExecutionPlan, carries: int) -> Body | None:
    """Read a body as lines on words, or return None where an operation of it is not Boolean."""
    inputs = tuple(slot for _, slot, _ in plan.inputs)
    outputs = tuple(slot for _, slot, _ in plan.outputs)
    if any(t.dtype != "bool" for _, _, t in plan.outputs):
        return None
    varying = set(inputs[:carries])
    fixed: list[Line] = []
    lines: list[Line] = []
    for step in plan.steps:
        how = on_words(step.op, step.arg_types, step.types[0], step.contraction)
        if how is None:
            return None
        moves = tuple(s in varying for s in step.reads)
        shape = tuple(int(n) for n in step.types[0].shape or ())
        line = Line(how, step.reads, step.writes[0], moves, shape, step)
        again = any(moves) or isinstance(step.op, ops.Collective)  # what others give is not kept
        (lines if again else fixed).append(line)
        if again:
            varying.add(line.write)
    results = {line.write for line in lines}
    grown = {
        slot
        for line in lines
        if line.how.kind == "grows" or (line.how.kind == "and" and all(line.varying))
        for slot in line.reads
        if slot in results
    }
    read = {s for line in (*fixed, *lines) for s in line.reads}.union(outputs)
    constants = tuple(
        (slot, op.value if isinstance(op, ops.Literal) else plan.graph.constants[op.digest])
        for slot, op in plan.constants
        if slot in read and isinstance(op, ops.Literal | ops.Constant)
    )
    monotone = all(line.how.kind != "other" for line in lines)
    return Body(inputs, outputs, constants, tuple(fixed), tuple(lines), frozenset(grown), monotone)


def _plainly(body: Body, op: Fixpoint, values: Values, step: Step, meeting: ops.Collective | None) -> list[BitTensor]:
    """Run the whole body in every round, and keep nothing of it; with other ranks, until nothing moves on any of them."""
    combine = _COMBINE[op.combine]
    carried = body.inputs[: op.carries]
    last = {s: n for n, line in enumerate(body.lines) for s in line.reads}
    made = {line.write for line in body.lines} - set(body.outputs)
    moved: list[int] = []
    counts: list[int] = []
    watch = Watch(step.location, meeting)
    for n in range(op.limit):
        check_contexts()
        with span(f"round {n + 1} on packed bits"):
            for at, line in enumerate(body.lines):
                values[line.write] = line.how.run(*[values[s] for s in line.reads])
                for s in made.intersection(line.reads):
                    if last[s] == at:
                        del values[s]
        after = [combine(values[s], values[o]) for s, o in zip(carried, body.outputs, strict=True)]
        pairs = [(values[s].words, x.words) for s, x in zip(carried, after, strict=True)]
        moved = [k for k, (old, new) in enumerate(pairs) if not np.array_equal(old, new)]
        if n == op.limit - 1:
            counts = [packed.count(pairs[k][0] ^ pairs[k][1]) for k in moved]
        values.update(zip(carried, after, strict=True))
        if not moves_anywhere(meeting, bool(moved)) or watch.settled(n, [x.words for x in after]):
            return after
    raise not_settled(op, moved, counts).at(step.location)


_COMBINE: dict[str, Callable[[BitTensor, BitTensor], BitTensor]] = {
    "replace": lambda old, new: new,
    "or": BitTensor.__or__,
    "max": BitTensor.__or__,
    "min": BitTensor.__and__,
}


def _by_what_is_new(body: Body, op: Fixpoint, values: Values, step: Step) -> list[BitTensor]:
    """Run the body on what the last round added: of a join, what is new on either side with all of the other."""
    carried = body.inputs[: op.carries]
    state = {s: values[s].words.copy() for s in carried}
    values.update((s, BitTensor.of(words, values[s].shape)) for s, words in state.items())  # what follows writes to it
    new: dict[int, BitTensor] = {}
    whole: dict[int, Words] = {}
    moved: list[int] = []
    for n in range(op.limit):
        check_contexts()
        with span(f"round {n + 1} on packed bits"):
            if n == 0:
                for line in body.lines:
                    values[line.write] = line.how.run(*[values[s] for s in line.reads])
                for s in body.grown:
                    whole[s] = values[s].words.copy()
                    values[s] = BitTensor.of(whole[s], values[s].shape)
                # an output may share its words with a carry, which is about to change
                new = {o: BitTensor.of(values[o].words.copy(), values[o].shape) for o in body.outputs}
            else:
                for line in body.lines:
                    more = _more(line, values, new)
                    if more is not None and line.write in whole:
                        more = _added(whole[line.write], more)
                    if more is not None:
                        new[line.write] = more
        found = [new.get(o) for o in body.outputs]
        fresh = [None if x is None else _added(state[s], x) for s, x in zip(carried, found, strict=True)]
        new = {s: x for s, x in zip(carried, fresh, strict=True) if x is not None}
        moved = [k for k, x in enumerate(fresh) if x is not None]
        if not moved:
            return [values[s] for s in carried]
    counts = [packed.count(new[carried[k]].words) for k in moved]
    raise not_settled(op, moved, counts).at(step.location)


def _more(line: Line, values: Values, new: dict[int, BitTensor]) -> BitTensor | None:
    """Return bits that a line adds to its result, some of which may be there already; None where there are none."""
    changes = [new.get(s) for s in line.reads]
    if all(x is None for x in changes):
        return None
    run = line.how.run
    match line.how.kind:
        case "each":
            return run(*changes)
        case "grows":
            return run(*[values[s] for s in line.reads])
        case "or":
            parts = [packed.broadcast_words(x.words, x.shape, line.shape) for x in changes if x is not None]
            return wrap(parts[0] if len(parts) == 1 else parts[0] | parts[1], line.shape)
        case _:
            a, b = line.reads
            first = None if changes[0] is None else run(changes[0], values[b])
            second = None if changes[1] is None or (a == b and _symmetric(line)) else run(values[a], changes[1])
            return first if second is None else second if first is None else first | second


def _symmetric(line: Line) -> bool:
    return isinstance(line.step.op, ops.Elementwise)


def _added(known: Words, x: BitTensor) -> BitTensor | None:
    """Add bits to what is known; return those that were not, or None where all were."""
    fresh = packed.absorb(known, x.words)
    return None if fresh is None else wrap(fresh, x.shape)


# transitive closures


class Closure(NamedTuple):
    """A fixpoint that is S <- S | start | S.right | left.S, or S <- S | start | S.S; slots, and whether one is transposed.

    S may have other rows than columns: what some nodes reach.
    """

    carry: int
    start: tuple[int, ...]
    left: tuple[tuple[int, bool], ...]
    right: tuple[tuple[int, bool], ...]


def _find_closure(body: Body, op: Fixpoint) -> Closure | None:
    """Recognise a transitive closure whose limit is beyond the rounds that any graph of so many nodes takes."""
    if op.carries != 1 or op.combine not in ("or", "max") or meets_others(op.body) is not None:
        return None
    carry, line_of = body.inputs[0], {line.write: line for line in body.lines}
    start, left, right, squared = [], [], [], False
    todo, seen = [body.outputs[0]], set[int]()
    rows = columns = 0
    while todo:
        slot = todo.pop()
        if slot in seen or slot == carry:
            continue
        seen.add(slot)
        line = line_of.get(slot)
        if line is None:
            start.append(slot)
            continue
        if len(line.shape) != 2:
            return None
        rows, columns = line.shape
        if line.how.kind == "or" and all(_shape_of(line, k) == line.shape for k in (0, 1)):
            todo += line.reads
            continue
        sides = _sides(line, carry)
        if sides is None:
            return None
        squared |= sides == (None, None)
        if sides[0] is not None:
            left.append(sides[0])
        if sides[1] is not None:
            right.append(sides[1])
    if (squared and (left or right)) or not (squared or left or right):
        return None
    if op.limit <= rows * bool(left) + columns * bool(right or squared):
        return None
    return Closure(carry, tuple(start), tuple(left), tuple(right))


def _shape_of(line: Line, k: int) -> tuple[int, ...]:
    return dims(line.step.arg_types[k])


Side = tuple[int, bool]


def _sides(line: Line, carry: int) -> tuple[Side | None, Side | None] | None:
    """Return what stands left and right of the carry in a product of two matrices; nothing on either side: its square."""
    form = line.step.contraction
    if form is None or len(line.reads) != 2 or any(len(_shape_of(line, k)) != 2 for k in (0, 1)):
        return None
    if len(set(form.spec.output)) != 2 or len(form.spec.contracted) != 1:
        return None
    (x, z), (y,) = form.spec.output, form.spec.contracted
    both = list(zip(line.reads, form.spec.inputs, strict=True))
    if form.labels != form.spec.inputs:
        return None
    if set(both[0][1]) != {x, y}:
        both.reverse()
    if set(both[0][1]) != {x, y} or set(both[1][1]) != {y, z}:
        return None
    (a, of_a), (b, of_b) = both
    straight = (of_a == (x, y), of_b == (y, z))
    if a == b == carry:
        return (None, None) if all(straight) else None
    if a == carry:
        return (None, (b, not straight[1])) if straight[0] and not _moves(line, b) else None
    if b == carry:
        return ((a, not straight[0]), None) if straight[1] and not _moves(line, a) else None
    return None


def _moves(line: Line, slot: int) -> bool:
    return line.varying[line.reads.index(slot)]


def _closed(shape: Closure, values: Values) -> BitTensor:
    """Compute a closure: what the components of the graph reach, from where the carry starts."""
    start = values[shape.carry].words.copy()
    square = values[shape.carry].shape
    for s in shape.start:
        start |= values[s].words
    if not (shape.left or shape.right):
        return BitTensor.of(packed.closure(start), square)
    for side, after in ((shape.right, True), (shape.left, False)):
        if not side:
            continue
        edges = _union(side, values)
        paths = packed.closure(edges)
        if np.array_equal(edges, start) or np.array_equal(paths, start):
            start = paths
            continue
        known = start.copy()
        a, b = (known, paths) if after else (paths, known)
        packed.multiply(a[None], b[None], start[None])
    return BitTensor.of(start, square)


def _union(side: Sequence[Side], values: Values) -> Words:
    total: Words = None
    for slot, flip in side:
        words = (values[slot].T if flip else values[slot]).words
        total = words if total is None else total | words
    return total
