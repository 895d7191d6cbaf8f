"""Forward mode: tangents of inputs to tangents of outputs, node by node in the order of the graph.

Linear operations apply to tangents as they are, and element-wise functions share the table of reverse mode. What has a rule
only backwards (running products, other algebras) is differentiated backwards twice, which turns it around.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, body_types
from ..ir.ops import Op
from ..ir.type_rules import infer_graph
from ..ir.types import Results, TensorType
from .derivatives import slopes
from .grad import Wrt, check, default_options, parameters
from .grad_bodies import floats, fresh, inline_reverse, label_of, reverse_body
from .grad_fixpoint import ADJOINT_ROUNDS, equation, no_equation, settling
from .grad_reverse import Flags, Options, activity, loop_flags
from .grad_rules import extremes, last_axis, of_choice, others, places
from .grad_tape import Tape, Value, added, full, full_cotangent, may_be_float, number_like, of_dtype, on_device, unused

Tangents = Sequence[Value | None]


def jvp(graph: EinsumGraph, wrt: Wrt = None, *, straight_through: bool = False) -> EinsumGraph:
    """Return the graph that takes tangents of inputs, as inputs ``t_`` and their names, to tangents of all outputs.

    ``wrt`` names the inputs that move; left out, it is every input of a float (or undeclared) dtype. Outputs that are no
    floats have no tangent.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> ahead = jvp(b.build(y=b.sin(b.input("x", ("n",), "float32"))))
    >>> print(ahead)
    graph {
      x: float32[n] = input()
      t_x: float32[n] = input()
      %2: float32[n] = cos(x)
      %3: float32[n] = multiply(t_x, %2)
      return t_y=%3
    }
    """
    check(graph)
    roots = parameters(graph, wrt)
    options = default_options()._replace(straight=straight_through)
    t = Tape(graph)
    labels: dict[int, str] = {}
    for name, i in roots.items():
        labels[i] = unused(f"t_{name}", {*graph.inputs, *labels.values()})

    def moves(i: int, x: Value) -> Value:
        return t.input(labels[i], x.type)

    tangents = _walk(t, graph, graph.inference.types, dict.fromkeys(labels, moves), options)
    found: dict[str, Value] = {}
    for name, i in graph.outputs:
        y = Value(t, t.place[i])
        if may_be_float(y.type):
            found[unused(f"t_{name}", found)] = full_cotangent(t, tangents.get((i, 0)), y)
    given = {op.label: i for i in t.given if isinstance(op := t.draft.op(i), ops.Input)}
    t.given = [given[name] for name in (*graph.inputs, *labels.values())]
    return t.finish(found.items())


def _walk(
    t: Tape,
    graph: EinsumGraph,
    types: Sequence[Results],
    roots: Mapping[int, Callable[[int, Value], Value]],
    options: Options,
) -> dict[tuple[int, int], Value]:
    """Copy a graph onto a tape together with the tangents of its nodes; return these by node and result."""
    active = activity(graph.nodes, types, roots, options)
    tangents: dict[tuple[int, int], Value] = {}
    several: dict[int, tuple[Value, ...]] = {}
    for i, node in enumerate(graph.nodes):
        t.draft.origin = node
        if isinstance(node.op, Scan | Fixpoint | Cond) and True in active[i]:
            args = [Value(t, t.place[a]) for a in node.args]
            moved = [tangents.get((a, 0)) for a in node.args]
            values, changes = _LOOPS[type(node.op)](t, node.op, args, moved, options)
            several[i] = tuple(values)
            t.place.append(values[0].node)
            tangents |= {(i, n): g for n, g in enumerate(changes) if g is not None}
            continue
        if isinstance(node.op, ops.Item):
            source = tangents.get((node.args[0], node.op.index))
            if node.args[0] in several:
                t.place.append(several[node.args[0]][node.op.index].node)
            else:
                t.take(node, types[i])
            if source is not None:
                tangents[i, 0] = source
            continue
        value = t.take(node, types[i])
        if i in roots:
            tangents[i, 0] = roots[i](i, Value(t, value))
        elif active[i] and active[i][0]:
            change = _tangent(t, node, Value(t, value), [tangents.get((a, 0)) for a in node.args], options)
            if change is not None:
                tangents[i, 0] = of_dtype(t, change, Value(t, value))
    return tangents


def _tangent(t: Tape, node: Node, y: Value, moved: Tangents, options: Options) -> Value | None:
    """Return the tangent of one operation with one result."""
    op, args = node.op, [Value(t, t.place[a]) for a in node.args]
    x, d = (args[0], moved[0]) if args else (y, None)
    match op:
        case ops.Elementwise():
            return _elementwise(t, op, args, moved, y, options)
        case ops.Reduce(kind="sum" | "mean"):
            return t.apply(op, full(t, d, x))
        case ops.Reduce(kind="max" | "min"):
            chosen, ties = extremes(t, x, y, op)
            share = t.where(chosen, full(t, d, x) / ties, 0)
            return t.apply(ops.Reduce("sum", op.axes, op.keepdims), share)
        case ops.Reduce(kind="prod"):
            return t.apply(ops.Reduce("sum", op.axes, op.keepdims), full(t, d, x) * others(t, x, op))
        case ops.Sort() | ops.TopK():
            axis, rank = op.axis % len(x.shape or ()), len(x.shape or ())
            index, whole = (last_axis(t, v, axis) for v in (places(t, x, op), full(t, d, x)))
            return last_axis(t, t.gather(whole, index, rank - 1, batch=rank - 1), axis, back=True)
        case ops.Cast() | ops.Barrier():
            return d
        case ops.Transfer():
            return None if d is None else on_device(t, d, y)
        case ops.Gather():
            return t.apply(op, full(t, d, x), args[1])
        case ops.ScatterAdd():
            return t.apply(op, full(t, d, x), args[1], full(t, moved[2], args[2]))
        case ops.Dequantize() if moved[0] is None:
            return t.apply(op, x, full(t, moved[1], args[1]), args[2])
        case ops.Einsum(algebra="real") if y.dtype != "bool":
            changes = [(k, full(t, change, args[k])) for k, change in enumerate(moved) if change is not None]
            return added(t.apply(op, *args[:k], change, *args[k + 1 :]) for k, change in changes)
        case (
            ops.Slice()
            | ops.Reshape()
            | ops.Transpose()
            | ops.Broadcast()
            | ops.Window()
            | ops.OverlapAdd()
            | ops.Pad()
            | ops.Concat()
            | ops.Cumulate(kind="sum")
        ):
            return t.apply(op, *(full(t, m, a) for m, a in zip(moved, args, strict=True)))
        case _:
            return _turned_around(t, op, args, moved, options)


def _elementwise(
    t: Tape, op: ops.Elementwise, args: Sequence[Value], moved: Tangents, y: Value, options: Options
) -> Value | None:
    if op.fn == "where" and moved[0] is None and moved[1] is not None and moved[2] is not None:
        return t.where(args[0], moved[1], moved[2])
    each = zip(slopes(op.fn, straight=options.straight), moved, strict=True)
    return added(
        slope(t, args, y, of_choice(t, op.fn, d, y)) for slope, d in each if slope is not None and d is not None
    )


def _turned_around(t: Tape, op: Op, args: Sequence[Value], moved: Tangents, options: Options) -> Value | None:
    """Differentiate backwards twice: the gradient is linear in its cotangent, and its own gradient for that is J."""
    given = [x.type._replace(weak=False) for x in args]
    inner = Tape(EinsumGraph([], []))
    once = inner.finish([("y", inner.apply(op, *(inner.input(f"x{n}", k) for n, k in enumerate(given))))])
    on = tuple(d is not None for d in moved)
    back = reverse_body(once, given, on, (True,), options)
    cotangent = back.cotangents[0]
    have = [n for n, g in enumerate(back.grads) if g is not None]
    if not have:
        return None
    linear = back.tape.finish([(f"r{n}", g) for n in have if (g := back.grads[n]) is not None])
    fed = {label_of(back.tape, v): x for v, x in zip(back.inputs, args, strict=True)}
    fed[label_of(back.tape, cotangent)] = number_like(t, 0.0, t.apply(op, *args))
    flags = tuple(name == label_of(back.tape, cotangent) for name in linear.inputs)
    tangents = [full_cotangent(t, moved[n], args[n]) for n in have]
    return inline_reverse(t, linear, [fed[name] for name in linear.inputs], flags, tangents, options)[flags.index(True)]


# bodies


class Ahead(NamedTuple):
    """A body with the tangents of its outputs: values of a tape of its own."""

    tape: Tape
    inputs: list[Value]
    moves: dict[int, Value]  # new inputs, by input
    values: list[Value]
    tangents: list[Value | None]


def _ahead(body: EinsumGraph, given: Sequence[TensorType], on: Flags, options: Options) -> Ahead:
    found = infer_graph(body, dict(zip(body.inputs, given, strict=True)))
    t = Tape(body)
    t.noted = found.equalities
    moves: dict[int, Value] = {}
    number = {i: n for n, i in enumerate(body.inputs.values())}

    def move(i: int, x: Value) -> Value:
        tangent = moves[number[i]] = t.input(fresh(t, f"t_{label_of(t, x)}"), x.type)
        return tangent

    made = _walk(t, body, found.types, {i: move for i, n in number.items() if on[n]}, options)
    values = [Value(t, t.place[i]) for _, i in body.outputs]
    inputs = [Value(t, t.place[i]) for i in body.inputs.values()]
    return Ahead(t, inputs, moves, values, [made.get((i, 0)) for _, i in body.outputs])


def _scan(
    t: Tape, op: Scan, args: Sequence[Value], moved: Tangents, options: Options
) -> tuple[Sequence[Value], Tangents]:
    given = body_types(op, [x.type for x in args])
    on = tuple(d is not None for d in moved)
    count = op.carries
    carries = floats(given[:count], loop_flags(op, given, on, options)[:count])
    on = (*carries, *on[count:])
    body = _ahead(op.body, given, on, options)
    b = body.tape
    rows = count + op.scanned
    groups = [range(count), range(count, rows), range(rows, len(args))]
    moving = [[n for n in group if on[n]] for group in groups]
    order: list[Value] = []
    operands: list[Value] = []
    for group, some in zip(groups, moving, strict=True):
        order += [body.inputs[n] for n in group] + [body.moves[n] for n in some]
        operands += [args[n] for n in group] + [full_cotangent(t, moved[n], args[n]) for n in some]
    b.given = [v.node for v in order]
    after = [full_cotangent(b, body.tangents[n], body.values[n]) for n in moving[0]]
    outs = [n for n in range(count, len(body.values)) if body.tangents[n] is not None]
    changes = [full_cotangent(b, body.tangents[n], body.values[n]) for n in outs]
    results = [*body.values[:count], *after, *body.values[count:], *changes]
    graph = b.finish([(f"r{n}", v) for n, v in enumerate(results)])
    scan = Scan(graph, count + len(after), op.scanned + len(moving[1]), op.length, op.reverse)
    made = t.apply_many(scan, *operands)
    values = (*made[:count], *made[count + len(after) : len(made) - len(changes)])
    found: dict[int, Value] = dict(zip(moving[0], made[count:], strict=False))
    found |= dict(zip(outs, made[len(made) - len(changes) :], strict=True))
    return values, [found.get(n) for n in range(len(values))]


def _cond(
    t: Tape, op: Cond, args: Sequence[Value], moved: Tangents, options: Options
) -> tuple[Sequence[Value], Tangents]:
    given = body_types(op, [x.type for x in args])
    on = tuple(d is not None for d in moved[1:])
    both = [_ahead(body, given, on, options) for body in (op.then, op.otherwise)]
    count = len(both[0].values)
    outs = [n for n in range(count) if any(b.tangents[n] is not None for b in both)]
    graphs = []
    for body in both:
        body.tape.given = [v.node for v in (*body.inputs, *(body.moves[n] for n in sorted(body.moves)))]
        changes = [full_cotangent(body.tape, body.tangents[n], body.values[n]) for n in outs]
        graphs.append(body.tape.finish((f"r{n}", v) for n, v in enumerate([*body.values, *changes])))
    extra = [full_cotangent(t, d, x) for d, x in zip(moved[1:], args[1:], strict=True) if d is not None]
    results = t.apply_many(Cond(*graphs), *args, *extra)
    found = dict(zip(outs, results[count:], strict=True))
    return results[:count], [found.get(n) for n in range(count)]


def _fixpoint(
    t: Tape, op: Fixpoint, args: Sequence[Value], moved: Tangents, options: Options
) -> tuple[Sequence[Value], Tangents]:
    """Solve v = Jv + what the captures add, where J is the body's derivative for its carries at the fixpoint."""
    values = t.apply_many(op, *args)
    given = body_types(op, [x.type for x in args])
    count = op.carries
    on = tuple(d is not None for d in moved)
    if op.combine != "replace":
        raise no_equation(op).at(t.draft.origin.location)
    op = equation(op)
    if True not in on[count:]:
        return values, [None] * count
    carries = floats(given[:count], loop_flags(op, given, (*(False,) * count, *on[count:]), options))
    body = _ahead(op.body, given, (*carries, *on[count:]), options)
    b = body.tape
    some = [n for n in range(count) if carries[n]]
    if not some:  # what moves reaches the equation through flat functions only
        return values, [None] * count
    outputs = [settling(b, body.moves[n], full_cotangent(b, body.tangents[n], body.values[n])) for n in some]
    others_moving = [n for n in range(count, len(args)) if on[n]]
    order = [*(body.moves[n] for n in some), *body.inputs, *(body.moves[n] for n in others_moving)]
    b.given = [v.node for v in order]
    graph = b.finish((f"r{n}", v) for n, v in enumerate(outputs))
    at = [*values, *args[count:]]
    zero = [number_like(t, 0.0, values[n]) for n in some]
    extra = [full_cotangent(t, moved[n], args[n]) for n in others_moving]
    results = t.apply_many(Fixpoint(graph, "replace", 0.0, ADJOINT_ROUNDS), *zero, *at, *extra)
    found = dict(zip(some, results, strict=True))
    return values, [found.get(n) for n in range(count)]


_LOOPS: dict[type[Op], Callable[..., tuple[Sequence[Value], Tangents]]] = {
    Scan: _scan,
    Cond: _cond,
    Fixpoint: _fixpoint,
}
