"""The gradient of a fixpoint: by its equation, solved by another fixpoint; or round by round, as a scan."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import GraphError
from ..ir import ops
from ..ir.graph import EinsumGraph, Fixpoint, Node, Scan, body_types
from ..ir.ops import Op
from ..ir.type_rules import infer_graph
from ..ir.types import TensorType
from .grad_bodies import float_flags, fresh, inline_reverse, placed, reverse_body
from .grad_reverse import Call, Flags, Grads, Options, Prepare, Rule
from .grad_scan import prepared
from .grad_tape import Tape, Value, added, full_cotangent

ADJOINT_ROUNDS = 20_000  # of a fixpoint's gradient


def prepare_fixpoint(t: Tape, node: Node, on: Flags, options: Options) -> tuple[Value, ...]:
    """Run a fixpoint as a scan of a number of rounds where the caller asked for that."""
    op = node.op
    assert isinstance(op, Fixpoint)
    args = [Value(t, t.place[a]) for a in node.args]
    if options.unroll is None:
        return t.apply_many(op, *args)
    return prepared(t, unrolled(op, body_types(op, [x.type for x in args]), options.unroll), args, on, options)


def unrolled(op: Fixpoint, given: Sequence[TensorType], rounds: int) -> Scan:
    """Return a fixpoint as a scan of so many rounds."""
    t = Tape(op.body)
    found = infer_graph(op.body, dict(zip(op.body.inputs, given, strict=True)))
    t.noted = found.equalities
    t.copy(op.body, found.types)
    old = [Value(t, t.place[i]) for i in op.body.inputs.values()]
    join = {"max": t.maximum, "min": t.minimum, "or": t.logical_or}.get(op.combine)
    new = list(t.outputs.items())
    outputs = [(name, v if join is None else join(old[n], v)) for n, (name, v) in enumerate(new)]
    return Scan(t.finish(outputs), op.carries, 0, rounds)


def no_equation(op: Fixpoint) -> GraphError:
    """Return the error of a fixpoint whose rounds are combined, so that its result depends on the way to it."""
    by_scan = f"a scan whose body is b.{op.combine}imum(c, step(c))"
    step = "the soft strategy, and a scan" if op.combine == "or" else by_scan
    return GraphError(
        f"a fixpoint that combines its rounds by {op.combine} has no equation to differentiate: its result depends on the "
        "rounds it took",
        "give a number of rounds that is enough, to be differentiated one by one: tl.grad(graph, wrt, unroll=20)",
        f"or write it as {step}, of that many rounds",
        code="E113",
    )


def _fixpoint(t: Tape, call: Call) -> Grads:
    op: Fixpoint = call.op
    if op.combine != "replace":
        raise no_equation(op).at(t.draft.nodes[call.node].location)
    op = equation(op)
    call = call._replace(op=op)
    given = body_types(op, [x.type for x in call.args])
    flags = float_flags(op, given, call.outs, call.wants, call.options)
    carries = [n for n, flag in enumerate(flags) if flag]
    captures = [n for n in range(op.carries, len(call.args)) if call.wants[n]]
    if not captures:  # where it starts does not matter
        return [None] * len(call.args)
    u = _adjoint(t, call, given, flags, carries)
    on = (*(False,) * op.carries, *call.wants[op.carries :])
    values = (*call.outs, *call.args[op.carries :])
    return inline_reverse(t, op.body, values, on, placed(op.carries, carries, u), call.options)


def equation(op: Fixpoint) -> Fixpoint:
    """Return a fixpoint without choices between a carry as it is and a new one: only the new one says what it settles at."""
    outputs = []
    for (name, i), carry in zip(op.body.outputs, op.body.inputs.values(), strict=False):
        while (node := op.body.nodes[i]).op == ops.Elementwise("where") and node.args[1] == carry:
            i = node.args[2]
        outputs.append((name, i))
    return msgspec.structs.replace(op, body=EinsumGraph(op.body.nodes, outputs, op.body.constants))


def settling(t: Tape, old: Value, new: Value) -> Value:
    """Keep what moved by no more than a few units in the last place, in any dtype, so that rounding cannot go on for ever."""
    size = t.absolute(old) + 1
    return t.where(t.equal(size + (new - old) * 0.125, size), old, new)


def _adjoint(t: Tape, call: Call, given: Sequence[TensorType], flags: Flags, carries: Sequence[int]) -> Sequence[Value]:
    """Solve u = g + Jᵀu, where J is the derivative of the body for its carries at the fixpoint."""
    op: Fixpoint = call.op
    back = reverse_body(op.body, given, (*flags, *(False,) * (len(given) - len(flags))), flags, call.options)
    inner = back.tape
    start = [full_cotangent(t, call.grads[n], call.outs[n]) for n in carries]
    # one length for all of them, so that what counts as settled does not depend on the loss's scale
    total = added(t.sum(t.square(g)) for g in start)
    length = t.stop_gradient(t.sqrt(t.where(t.equal(total, 0), 1, total)))  # whatever it is, the answer is the same
    start = [g / length for g in start]
    terms = {n: inner.input(fresh(inner, f"g{n}"), call.outs[n].type) for n in carries}
    outputs = []
    for n in carries:
        u, change = back.cotangents[n], back.grads[n]
        new = terms[n] if change is None else terms[n] + change
        outputs.append((f"r{n}", settling(inner, u, new)))
    read = inner.live(v for _, v in outputs)
    around = [n for n in range(len(given)) if back.inputs[n].node in read]
    order = [*(back.cotangents[n] for n in carries), *terms.values(), *(back.inputs[n] for n in around)]
    inner.given = [v.node for v in order]
    values = (*call.outs, *call.args[op.carries :])
    adjoint = Fixpoint(inner.finish(outputs), "replace", 0.0, ADJOINT_ROUNDS)
    found = t.apply_many(adjoint, *start, *start, *(values[n] for n in around))
    return [u * length for u in found]


RULES: dict[type[Op], Rule] = {Fixpoint: _fixpoint}
PREPARE: dict[type[Op], Prepare] = {Fixpoint: prepare_fixpoint}
