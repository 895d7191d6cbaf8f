"""What one more leading axis does to scans, conds and fixpoints.

A body is batched for those of its inputs that differ between items; what all items share stays as it is. In a scan the batch
axis stands behind the one that is scanned. Items of a cond go their own ways, and items of a fixpoint end in their own rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Scan, bodies, body_types
from ..ir.ops import Op
from ..ir.type_rules import infer_graph
from ..ir.types import FLOATS, Results, TensorShape, TensorType
from .batch_rules import Batcher, Operand, item_shape, rule_of
from .grad_tape import Tape, Value, may_be_float, on_device, unused

LoopRule = Callable[[Batcher, Any, Sequence[Operand], Results], list[Operand]]
ZERO_SIGNS = frozenset({"divide", "reciprocal", "arctan2", "power", "floor_divide", "remainder"})  # tell -0.0 from 0.0


def add_graph(b: Batcher, graph: EinsumGraph, inputs: Sequence[Operand], types: Sequence[Results]) -> list[Operand]:
    """Write a graph onto the tape for given inputs and return its outputs; nodes that all items share get no batch axis."""
    rows: list[Sequence[Operand]] = []
    given = iter(inputs)
    draft = b.tape.draft
    for i, node in enumerate(graph.nodes):
        op, draft.origin = node.op, node
        args = [rows[a][0] for a in node.args]
        if isinstance(op, ops.Input):
            rows.append((next(given),))
        elif isinstance(op, ops.Item):
            rows.append((rows[node.args[0]][op.index],))
        elif not any(x.batched for x in args):
            if isinstance(op, ops.Constant):
                draft.constants[op.digest] = graph.constants[op.digest]
            results = b.tape.results(draft.add(op, tuple([x.value.node for x in args])))
            rows.append([Operand(v, False, t) for v, t in zip(results, types[i], strict=True)])
        elif type(op) in RULES:
            rows.append(RULES[type(op)](b, op, args, types[i]))
        else:
            rows.append((Operand(rule_of(op)(b, op, args, types[i]), True, types[i][0]),))
    return [rows[i][0] for _, i in graph.outputs]


def input_of(b: Batcher, label: str, t: TensorType, batched: bool) -> Operand:
    """Add an input, with the batch axis or without."""
    own = t._replace(weak=False)
    if not batched:
        return Operand(b.tape.input(label, own), False, own)
    shape = TensorShape((b.size, *item_shape(b.tape, own)))
    return Operand(b.tape.input(label, own._replace(shape=shape)), True, own)


def _opened(
    b: Batcher, body: EinsumGraph, given: Sequence[TensorType], flags: Sequence[bool]
) -> tuple[Batcher, list[Operand], list[Operand]]:
    """Batch a body on a tape of its own; return that, its inputs and its outputs."""
    inner = Batcher(Tape(EinsumGraph([], [])), b.size)
    inner.tape.draft.origin = b.tape.draft.origin
    inputs = [input_of(inner, *row) for row in zip(body.inputs, given, flags, strict=True)]
    types = infer_graph(body, dict(zip(body.inputs, given, strict=True))).types
    return inner, inputs, add_graph(inner, body, inputs, types)


def _named(body: EinsumGraph, values: Sequence[Value]) -> list[tuple[str, Value]]:
    return list(zip(body.output_names, values, strict=True))


def _moved(b: Batcher, x: Value, rank: int) -> Value:
    """Swap the first two axes: the one that is scanned, and that of the batch."""
    return b.apply(ops.Transpose((1, 0, *range(2, rank + 1))), x)


def _scan(b: Batcher, op: Scan, args: Sequence[Operand], types: Results) -> list[Operand]:
    given = body_types(op, [x.type for x in args])
    flags = [x.batched for x in args]
    inner, outputs = _settled(b, op, given, flags)
    rows = range(op.carries, op.carries + op.scanned)
    last = [inner.lead(x) if flags[n] else x.value for n, x in enumerate(outputs[: op.carries])]
    out = outputs[op.carries :]
    body = inner.tape.finish(_named(op.body, [*last, *(x.value for x in out)]))
    operands = [b.lead(x) if n < op.carries and flags[n] else x.value for n, x in enumerate(args)]
    for n in rows:
        if flags[n]:
            operands[n] = _moved(b, operands[n], len(args[n].shape))
    results = b.tape.apply_many(Scan(body, op.carries, op.scanned, op.length, op.reverse), *operands)
    found = [Operand(v, flags[n], types[n]) for n, v in enumerate(results[: op.carries])]
    for v, x, t in zip(results[op.carries :], out, types[op.carries :], strict=True):
        value = _moved(b, v, len(x.shape) + 1) if x.batched else v
        found.append(Operand(value, x.batched, t))
    return found


def _settled(
    b: Batcher, op: Scan | Fixpoint, given: Sequence[TensorType], flags: list[bool]
) -> tuple[Batcher, list[Operand]]:
    """Batch the body of a loop; a carry that becomes different between items is so from the start, which ``flags`` then say."""
    while True:
        inner, _, outputs = _opened(b, op.body, given, flags)
        late = [n for n in range(op.carries) if outputs[n].batched and not flags[n]]
        if not late:
            return inner, outputs
        for n in late:
            flags[n] = True


def _cond(b: Batcher, op: Cond, args: Sequence[Operand], types: Results) -> list[Operand]:
    given = body_types(op, [x.type for x in args])
    flags = [x.batched for x in args[1:]]
    if args[0].batched:
        values = _own_ways(b, op, args, given, flags)
        return [Operand(v, True, t) for v, t in zip(values, types, strict=True)]
    both = [_opened(b, body, given, flags) for body in (op.then, op.otherwise)]
    split = [x.batched or y.batched for x, y in zip(both[0][2], both[1][2], strict=True)]
    graphs = []
    for body, (inner, _, outputs) in zip((op.then, op.otherwise), both, strict=True):
        values = [inner.lead(x) if own else x.value for x, own in zip(outputs, split, strict=True)]
        graphs.append(inner.tape.finish(_named(body, values)))
    results = b.tape.apply_many(Cond(*graphs), *(x.value for x in args))
    return [Operand(v, own, t) for v, own, t in zip(results, split, types, strict=True)]


def _own_ways(
    b: Batcher, op: Cond, args: Sequence[Operand], given: Sequence[TensorType], flags: Sequence[bool]
) -> Sequence[Value]:
    """Run what the items ask for: one body where all agree, else both.

    Then each body is given the data of an item that asks for it in place of those that do not. So no item meets an error, a
    NaN or an endless loop of a body that it does not run, and nor do gradients.
    """
    pick = args[0].value if args[0].type.dtype == "bool" else b.tape.cast(args[0].value, "bool")
    truth = TensorType(TensorShape(), "bool")
    label = unused("pick", {*op.then.inputs, *op.otherwise.inputs})

    def alone(body: EinsumGraph) -> EinsumGraph:
        inner, _, outputs = _opened(b, body, given, flags)
        asked = input_of(inner, label, truth, True)
        inner.tape.given = [asked.value.node, *inner.tape.given[:-1]]
        return inner.tape.finish(_named(body, [inner.lead(x) for x in outputs]))

    mixed = Batcher(Tape(EinsumGraph([], [])), b.size)
    t = mixed.tape
    t.draft.origin = b.tape.draft.origin
    asked = input_of(mixed, label, truth, True)
    inputs = [input_of(mixed, *row) for row in zip(op.then.inputs, given, flags, strict=True)]
    sides = []
    for body, own in ((op.then, asked.value), (op.otherwise, t.logical_not(asked.value))):
        t.draft.origin = b.tape.draft.origin
        first = t.sum(t.equal(t.cumsum(own, 0), 0))  # the number of items before the first one that asks for it
        mask = Operand(own, True, truth)
        operands = [_own_or_first(mixed, x, mask, first) for x in inputs]
        inferred = infer_graph(body, dict(zip(body.inputs, given, strict=True))).types
        sides.append(add_graph(mixed, body, operands, inferred))
    t.draft.origin = b.tape.draft.origin
    chosen = []
    for x, y in zip(*sides, strict=True):
        rank = len(x.shape)
        own, other = (on_device(t, mixed.lead(v), asked.value) for v in (x, y))  # a body may end on another
        chosen.append(t.where(mixed.ranked(asked, rank), own, other))
    apart = t.finish(_named(op.then, chosen))

    rest = [x.value for x in args[1:]]
    some = Batcher(Tape(EinsumGraph([], [])), b.size)
    inside = [
        input_of(some, label, truth, True),
        *(input_of(some, *row) for row in zip(op.then.inputs, given, flags, strict=True)),
    ]
    values = some.tape.apply_many(
        Cond(apart, alone(op.otherwise)), some.tape.any(inside[0].value), *(x.value for x in inside)
    )
    return b.tape.apply_many(
        Cond(alone(op.then), some.tape.finish(_named(op.then, values))), b.tape.all(pick), pick, *rest
    )


def _own_or_first(b: Batcher, x: Operand, mask: Operand, first: Value) -> Operand:
    """Return an operand of a body with the first item that asks for the body in place of those that do not."""
    if not x.batched:
        return x
    other = b.tape.stop_gradient(b.tape.gather(x.value, first, 0))
    return x._replace(value=b.tape.where(b.ranked(mask, len(x.shape)), x.value, other))


def _fixpoint(b: Batcher, op: Fixpoint, args: Sequence[Operand], types: Results) -> list[Operand]:
    """Run all items until the last one is done.

    Where a further round does not change what has settled, that is all. Elsewhere (a tolerance; a body that tells -0.0 from
    0.0) a flag for each item says whether it is done, and those that are keep their values.
    """
    given = body_types(op, [x.type for x in args])
    flags = [x.batched for x in args]
    frozen = any(map(may_be_float, given[: op.carries])) and (op.tolerance > 0 or _tells_zeros_apart(op.body))
    if frozen:  # items end in different rounds, each with all of its carries
        flags[: op.carries] = [True] * op.carries
    inner, outputs = _settled(b, op, given, flags)
    new = [inner.lead(x) if flags[n] else x.value for n, x in enumerate(outputs)]
    start = [b.lead(x) if flags[n] else x.value for n, x in enumerate(args[: op.carries])]
    rest = [x.value for x in args[op.carries :]]
    if not frozen:
        body = inner.tape.finish(_named(op.body, new))
        results = b.tape.apply_many(Fixpoint(body, op.combine, op.tolerance, op.limit), *start, *rest)
        return [Operand(v, flags[n], t) for n, (v, t) in enumerate(zip(results, types, strict=True))]
    t = inner.tape
    inputs = list(t.given)
    old = [Operand(Value(t, inputs[n]), True, given[n]) for n in range(op.carries)]
    label = unused("flags", op.body.inputs)
    carry = input_of(inner, label, TensorType(TensorShape(), "bool"), True)
    # a flag only ever changes once, and the way in which carries are combined must let it
    active = op.combine == "min"
    done = carry if not active else carry._replace(value=t.logical_not(carry.value))
    same = [_unmoved(inner, op, x, v) for x, v in zip(old, new, strict=True)]
    ended = same[0]
    for more in same[1:]:
        ended = t.logical_and(ended, more)
    over = t.logical_or(done.value, ended)
    kept = [t.where(inner.ranked(done, len(x.shape)), x.value, v) for x, v in zip(old, new, strict=True)]
    t.given = [*inputs[: op.carries], carry.value.node, *inputs[op.carries :]]
    names = [*op.body.output_names, unused(label, op.body.output_names)]
    body = t.finish(zip(names, [*kept, t.logical_not(over) if active else over], strict=True))
    begin = b.lead(Operand(b.tape.cast(active, "bool"), False, TensorType(TensorShape(), "bool")))
    loop = Fixpoint(body, op.combine, 0.0, op.limit + 1)  # one more round, in which nothing happens
    results = b.tape.apply_many(loop, *start, begin, *rest)
    return [Operand(v, True, t) for v, t in zip(results[: op.carries], types, strict=True)]


def _tells_zeros_apart(body: EinsumGraph) -> bool:
    return any(getattr(n.op, "fn", "") in ZERO_SIGNS or any(map(_tells_zeros_apart, bodies(n.op))) for n in body.nodes)


def _unmoved(b: Batcher, op: Fixpoint, old: Operand, new: Value) -> Value:
    """Return, for each item, whether a round has left its carry where it was: the test with which a fixpoint ends."""
    t, x = b.tape, old.value
    join: dict[str, Callable[..., Value]] = {"or": t.logical_or, "max": t.maximum, "min": t.minimum}
    after = new if op.combine == "replace" else join[op.combine](x, new)
    same = t.equal(x, after)
    dtype = old.type.dtype
    if dtype is None or dtype in FLOATS:
        same = t.logical_or(same, t.logical_and(t.not_equal(x, x), t.not_equal(after, after)))  # NaN is NaN
        if op.tolerance:
            a, c = (x, after) if dtype else (t.cast(x, "float64"), t.cast(after, "float64"))
            if op.combine == "or" and dtype:
                c = t.cast(c, dtype)
            same = t.logical_or(same, t.less_equal(t.absolute(t.subtract(a, c)), op.tolerance))
    return t.all(same, tuple(range(1, len(old.shape) + 1)))


RULES: dict[type[Op], LoopRule] = {Scan: _scan, Cond: _cond, Fixpoint: _fixpoint}
