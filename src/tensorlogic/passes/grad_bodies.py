"""Bodies and their gradients: what the rules of scans, conds and fixpoints share; and that of a cond.

A body is differentiated on a tape of its own. Its gradient runs it again, so nothing but its inputs need be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, body_types
from ..ir.ops import Op
from ..ir.type_rules import infer_graph
from ..ir.types import TensorType
from .grad_reverse import Call, Flags, Grads, Options, Rule, backward, forward, loop_flags
from .grad_tape import Tape, Value, full_cotangent, may_be_float, unused


class Reversed(NamedTuple):
    """A body with the gradient of its outputs for its inputs: values of a tape of its own."""

    tape: Tape
    inputs: list[Value]
    cotangents: dict[int, Value]  # new inputs, by output
    grads: list[Value | None]  # by input


def reverse_body(
    body: EinsumGraph, given: Sequence[TensorType], on: Flags, seeded: Flags, options: Options
) -> Reversed:
    """Differentiate a body for the inputs that are ``on``, given cotangents of the outputs that are ``seeded``."""
    found = infer_graph(body, dict(zip(body.inputs, given, strict=True)))
    t = Tape(body)
    t.noted = found.equalities
    ends = [i for (_, i), flag in zip(body.outputs, seeded, strict=True) if flag]
    forward(t, body, found.types, [i for i, flag in zip(body.inputs.values(), on, strict=True) if flag], ends, options)
    inputs = [Value(t, t.place[i]) for i in body.inputs.values()]
    cotangents: dict[int, Value] = {}
    seeds: dict[int, Value] = {}
    for n, ((name, i), flag) in enumerate(zip(body.outputs, seeded, strict=True)):
        if flag:
            out = Value(t, t.place[i])
            g = cotangents[n] = t.input(fresh(t, f"d_{name}"), out.type)
            seeds[out.node] = seeds[out.node] + g if out.node in seeds else g
    wanted = [x.node for x, flag in zip(inputs, on, strict=True) if flag]
    gradients = backward(t, seeds, wanted, options)
    t.draft.origin = Node(ops.Iota(0))
    grads = [gradients.get(x.node) for x in inputs]
    fitted = [None if g is None else full_cotangent(t, g, x) for x, g in zip(inputs, grads, strict=True)]
    return Reversed(t, inputs, cotangents, fitted)


def inline_reverse(
    t: Tape, graph: EinsumGraph, args: Sequence[Value], on: Flags, grads: Sequence[Value | None], options: Options
) -> Grads:
    """Differentiate a graph for some of the operands it is given, and put its gradient onto a tape."""
    given = [x.type._replace(weak=False) for x in args]
    back = reverse_body(graph, given, on, tuple(g is not None for g in grads), options)
    fed = {label_of(back.tape, v): x for v, x in zip(back.inputs, args, strict=True)}
    fed |= {label_of(back.tape, v): g for n, v in back.cotangents.items() if (g := grads[n]) is not None}
    have = [n for n, g in enumerate(back.grads) if g is not None]
    backward = back.tape.finish([(f"r{n}", g) for n in have if (g := back.grads[n]) is not None])
    return placed(len(args), have, t.inline(backward, fed))


def fresh(t: Tape, label: str) -> str:
    """Return a name that no input of a tape has, nor one of the source that is still to be taken over."""
    return unused(label, {*t.source.inputs, *(label_of(t, Value(t, i)) for i in t.given)})


def label_of(t: Tape, v: Value) -> str:
    """Return the name of an input."""
    op = t.draft.op(v.node)
    assert isinstance(op, ops.Input)
    return op.label


def floats(types: Iterable[TensorType], flags: Iterable[bool]) -> Flags:
    """Keep the flags of what may be of a float dtype."""
    return tuple(f and may_be_float(t) for t, f in zip(types, flags, strict=True))


def float_flags(
    op: Scan | Fixpoint, given: Sequence[TensorType], results: Sequence[Value], on: Flags, how: Options
) -> Flags:
    """Return which results of a loop are floats that depend on operands that are ``on``."""
    return floats([r.type for r in results], loop_flags(op, given, on, how))


def placed(count: int, places: Iterable[int], values: Iterable[Value]) -> Grads:
    """Put values at their places among so many; None elsewhere."""
    found: list[Value | None] = [None] * count
    for n, v in zip(places, values, strict=True):
        found[n] = v
    return found


def _cond(t: Tape, call: Call) -> Grads:
    op: Cond = call.op
    given = body_types(op, [x.type for x in call.args])
    on = call.wants[1:]
    seeded = tuple(g is not None for g in call.grads)
    graphs = []
    wanted = [n for n, flag in enumerate(on) if flag]
    for body in (op.then, op.otherwise):
        back = reverse_body(body, given, on, seeded, call.options)
        back.tape.given = [v.node for v in (*back.inputs, *back.cotangents.values())]
        values = [full_cotangent(back.tape, back.grads[n], back.inputs[n]) for n in wanted]
        graphs.append(back.tape.finish((f"r{n}", v) for n, v in enumerate(values)))
    cotangents = [full_cotangent(t, g, y) for g, y in zip(call.grads, call.outs, strict=True) if g is not None]
    results = t.apply_many(Cond(*graphs), *call.args, *cotangents)
    return placed(len(call.args), [n + 1 for n in wanted], results)


RULES: dict[type[Op], Rule] = {Cond: _cond}
