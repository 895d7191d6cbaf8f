"""Reverse mode: one sweep over the nodes of a tape from the results back to what they are differentiated for.

Each operation has a rule: from the cotangents of its results to those of its operands. Nodes that do not depend on what is
asked for, or that nothing asked for depends on, are skipped; nothing recurses over nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..diagnostics import value_text
from ..errors import GraphError, ShapeError
from ..ir import ops
from ..ir.builder import check_function
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, body_types, reachable
from ..ir.ops import Op
from ..ir.type_rules import infer_graph
from ..ir.types import FLOATS, Results, TensorType
from .derivatives import slopes
from .grad_tape import Tape, Value, added, full_cotangent, of_dtype

Flags = tuple[bool, ...]
_YES, _NO = (True,), (False,)
Custom = Callable[..., Any]  # (tape, cotangent, result, *operands) -> gradients of the operands, or by node


class Call(NamedTuple):
    """One operation to be differentiated: its operands and results, the cotangents, and which operands want theirs."""

    op: Any
    node: int
    args: tuple[Value, ...]
    outs: tuple[Value, ...]
    grads: tuple[Value | None, ...]
    wants: Flags
    options: Options

    @property
    def x(self) -> Value:
        """The first operand."""
        return self.args[0]

    @property
    def y(self) -> Value:
        """The first result."""
        return self.outs[0]

    @property
    def g(self) -> Value:
        """The cotangent of the first result."""
        g = self.grads[0]
        assert g is not None
        return g


Grads = Sequence[Value | None]  # of the operands, None where there is none
Rule = Callable[[Tape, Call], Grads]
Prepare = Callable[[Tape, Node, Flags, "Options"], tuple[Value, ...]]


class Options(NamedTuple):
    """How to differentiate: the rules of operations, and what the caller asked for."""

    rules: Mapping[type[Op], Rule]
    prepare: Mapping[type[Op], Prepare]  # what must run differently so that its gradient has what it needs
    shortcuts: Sequence[Callable[[Tape, Call], Mapping[int, Value] | None]] = ()  # gradients of several nodes at once
    custom: Mapping[str, Custom] = {}  # the caller's rules, by the name of an operation
    custom_nodes: Mapping[int, Custom] = {}  # and by node of the graph; bodies have none
    straight: bool = False
    keep: int | None = None  # a scan keeps every so many carries, and runs again what is between them
    unroll: int | None = None  # fixpoints are differentiated as so many rounds
    cache: dict[Any, Any] = {}  # of differentiated bodies, for one call of grad


def passes(op: Op, operand: int, result: TensorType, straight: bool) -> bool:
    """Tell whether a change of an operand changes the result smoothly; with ``straight`` also where steps are ignored."""
    if isinstance(op, Scan | Fixpoint | Cond):
        return operand > 0 or not isinstance(op, Cond)
    if result.dtype not in FLOATS and result.dtype is not None and not straight:
        return False
    match op:
        case ops.Elementwise():
            return slopes(op.fn, straight=straight)[operand] is not None
        case ops.Reduce():
            return not op.kind.startswith("arg") and (straight or op.kind not in ("any", "all"))
        case ops.Sort() | ops.TopK():
            return not op.indices
        case ops.Gather():
            return operand == 0
        case ops.ScatterAdd():
            return operand != 1
        case ops.Quantize():
            return straight and operand < 2
        case ops.Dequantize():
            return operand == 1 or (straight and operand == 0)
        case ops.Unpack():
            return False
        case ops.Einsum():
            return straight or op.algebra != "boolean"
        case _:
            return not isinstance(op, ops.StopGradient)


def loop_flags(op: Scan | Fixpoint | Cond, given: Sequence[TensorType], on: Flags, options: Options) -> Flags:
    """Return which results of a loop depend on operands that are ``on``; carries pass it on from round to round."""
    if isinstance(op, Cond):
        inner = [body_flags(b, given[1:], on[1:], options) for b in (op.then, op.otherwise)]
        return tuple(a or b for a, b in zip(*inner, strict=True))
    carries = list(on[: op.carries])
    while True:
        found = body_flags(op.body, given, (*carries, *on[op.carries :]), options)
        after = [a or b for a, b in zip(carries, found, strict=False)]
        if after == carries:
            return (*carries, *found[op.carries :])
        carries = after


def body_flags(body: EinsumGraph, given: Sequence[TensorType], on: Flags, options: Options) -> Flags:
    """Return which outputs of a body depend on inputs that are ``on``."""
    types = infer_graph(body, dict(zip(body.inputs, given, strict=True))).types
    roots = [i for i, flag in zip(body.inputs.values(), on, strict=True) if flag]
    found = activity(body.nodes, types, roots, options)
    return tuple(found[i][0] for _, i in body.outputs)


def activity(
    nodes: Sequence[Node], types: Sequence[Results], roots: Iterable[int], options: Options, always: Iterable[int] = ()
) -> list[Flags]:
    """Return for each node which of its results depend smoothly on the roots; nodes in ``always`` have a rule of their own."""
    start, own = set(roots), set(always)
    active: list[Flags] = []
    for i, (node, results) in enumerate(zip(nodes, types, strict=True)):
        op = node.op
        if i in start:
            active.append(_YES)
            continue
        on = tuple([active[a] == _YES for a in node.args])
        if isinstance(op, ops.Item):
            source = active[node.args[0]]
            active.append(_YES if source and source[op.index] else _NO)
        elif True not in on:
            active.append(() if len(results) > 1 else _NO)
        elif i in own or op.name in options.custom:
            active.append(_YES)
        elif isinstance(op, Scan | Fixpoint | Cond):
            given = body_types(op, [types[a][0] for a in node.args])
            if isinstance(op, Cond):
                given = [TensorType(None, None), *given]
            flags = loop_flags(op, given, on, options)
            kinds = [options.straight or t.dtype in FLOATS or t.dtype is None for t in results]
            active.append(tuple(f and k for f, k in zip(flags, kinds, strict=True)))
        else:
            smooth = any(f and passes(op, k, results[0], options.straight) for k, f in enumerate(on))
            active.append(_YES if smooth else _NO)
    return active


def forward(
    t: Tape, graph: EinsumGraph, types: Sequence[Results], roots: Iterable[int], ends: Iterable[int], options: Options
) -> None:
    """Copy a graph onto a tape; operations on the way from the roots to the ends are prepared for their gradients."""
    if not any(type(n.op) in options.prepare for n in graph.nodes):
        t.copy(graph, types)
        return
    active = activity(graph.nodes, types, roots, options)
    live = set(reachable(graph.nodes, ends))
    several: dict[int, tuple[Value, ...]] = {}
    for i, node in enumerate(graph.nodes):
        prepare = options.prepare.get(type(node.op))
        on = tuple([active[a][0] if active[a] else False for a in node.args])
        if prepare is not None and i in live and True in active[i]:
            t.draft.origin = node
            several[i] = prepare(t, node, on, options)
            t.place.append(several[i][0].node)
        elif isinstance(node.op, ops.Item) and node.args[0] in several:
            t.place.append(several[node.args[0]][node.op.index].node)
        else:
            t.take(node, types[i])


def backward(
    t: Tape,
    seeds: Mapping[int, Value],
    wanted: Iterable[int],
    options: Options,
    custom: Mapping[int, Custom] | None = None,
) -> dict[int, Value]:
    """Return the cotangents of the wanted nodes, from those of some nodes; the tape's nodes so far are what is walked."""
    ends = set(wanted)
    own = custom or {}
    draft = t.draft
    active = activity(draft.nodes, draft.types, ends, options, own)
    pending: dict[tuple[int, int], list[Value]] = {}

    def send(node: int, g: Value | None) -> None:
        if g is None or not active[node] or not active[node][0]:
            return
        item, op, g = 0, draft.nodes[node].op, of_dtype(t, g, Value(t, node))
        if isinstance(op, ops.Item) and node not in ends:
            node, item = draft.nodes[node].args[0], op.index
        pending.setdefault((node, item), []).append(g)

    for node, seed in seeds.items():
        draft.origin = draft.nodes[node]
        send(node, seed)
    found: dict[int, Value] = {}
    for i in range(len(active) - 1, -1, -1):
        parts = [pending.pop((i, n), None) for n in range(len(draft.types[i]))]
        if not any(parts):
            continue
        draft.origin = at = draft.nodes[i]
        if i in ends:
            found[i] = _total(t, parts[0] or [])
            continue
        grads = tuple([None if p is None else _total(t, p) for p in parts])
        for a, g in _gradients(t, i, at, grads, active, own.get(i) or options.custom.get(at.op.name), options):
            send(a, g)
    return found


def _total(t: Tape, parts: list[Value]) -> Value:
    """Add what several readers of a value sent; slices that make up the whole are put side by side."""
    total = added(_side_by_side(t, parts) if len(parts) > 1 else parts)
    assert total is not None
    return total


def _side_by_side(t: Tape, parts: list[Value]) -> list[Value]:
    """Replace tensors that are padded with zeros and fill up an axis together by their concatenation."""
    groups: dict[int, list[tuple[int, int, Value]]] = {}  # by axis: where a part begins, where it ends, and the part
    for g in parts:
        op = t.draft.op(g.node)
        if not isinstance(op, ops.Pad) or g.shape is None or t.literal_of(Value(t, t.draft.args(g.node)[1])) != 0:
            continue
        axes = [a for a, w in enumerate(op.widths) if w != (0, 0)]
        size = g.shape[axes[0]] if len(axes) == 1 else None
        if isinstance(size, int):
            low, high = op.widths[axes[0]]
            groups.setdefault(axes[0], []).append((low, size - high, g))
    for axis, found in groups.items():
        found.sort(key=lambda part: part[:2])
        size = (found[0][2].shape or ())[axis]
        ends = [0, *(high for _, high, _ in found)]
        if ends[-1] == size and ends[:-1] == [low for low, _, _ in found]:
            whole = t.concat([Value(t, t.draft.args(g.node)[0]) for _, _, g in found], axis)
            used = {g.node for _, _, g in found}
            return [whole, *(g for g in parts if g.node not in used)]
    return parts


def _gradients(
    t: Tape,
    i: int,
    node: Node,
    grads: tuple[Value | None, ...],
    active: Sequence[Flags],
    own: Custom | None,
    options: Options,
) -> Iterable[tuple[int, Value | None]]:
    """Return what one operation sends on: nodes with their cotangents."""
    op = node.op
    args = tuple([Value(t, a) for a in node.args])
    if own is not None:
        return _by_hand(t, own, op, grads, i, args).items()
    kind = t.draft.types[i][0]
    wants = tuple([active[a] == _YES and passes(op, k, kind, options.straight) for k, a in enumerate(node.args)])
    call = Call(op, i, args, t.results(i), grads, wants, options)
    for shortcut in options.shortcuts:
        straight_to = shortcut(t, call)
        if straight_to is not None:
            return straight_to.items()
    rule = options.rules.get(type(op))
    if rule is None and not isinstance(op, ops.Same):
        hint = f"give it one: custom={{{op.name!r}: rule}}"
        raise GraphError(f"{op.name} has no gradient", hint, code="E111").at(node.location)
    gradients = [call.g] if rule is None else rule(t, call)
    return [(a.node, g) for a, g, want in zip(args, gradients, wants, strict=True) if want]


def _spread(t: Tape, g: Value, out: Value) -> Value:
    """Return a cotangent with the whole shape of a result, which need not be computed for it where its shape is known."""
    if out.shape is None:
        return full_cotangent(t, g, out)
    return g if g.shape == out.shape else t.broadcast_to(g, out.shape)


def _by_hand(
    t: Tape, rule: Custom, op: Op, grads: Sequence[Value | None], i: int, args: Sequence[Value]
) -> Mapping[int, Value | None]:
    """Apply a rule that the caller gave, and check what it returns."""
    outs = t.results(i)
    # inside, cotangents of sums and means are single numbers; a caller's rule may add them up, or take a part of them
    whole = [None if g is None else _spread(t, g, out) for g, out in zip(grads, outs, strict=True)]
    given = whole[0] if len(whole) == 1 else tuple(whole)
    check_function(rule, 3 + len(args), f"the custom gradient of {op.name}", "tgyxwuvabc")
    result = rule(t, given, outs[0] if len(outs) == 1 else outs, *args)
    if isinstance(result, Mapping):
        return {t[key].node: g for key, g in result.items()}
    several = (result,) if isinstance(result, Value) or result is None else tuple(result)
    if len(several) != len(args) or not all(g is None or isinstance(g, Value) for g in several):
        raise GraphError(
            f"the custom gradient of {op.name} must return {len(args)} gradient(s), got {value_text(result)}",
            "return one tensor of the tape for each operand, None where there is none",
            code="E112",
        )
    total: dict[int, Value] = {}
    for k, (a, g) in enumerate(zip(args, several, strict=True)):
        if g is not None and g.shape is not None and a.shape is not None and len(g.shape) > len(a.shape):
            hint = "add up over the axes along which the operand was spread: t.sum(g, axis)"
            message = f"the custom gradient of {op.name} for operand {k} has shape {g.shape}, the operand {a.shape}"
            raise ShapeError(message, hint, code="E112")
        if g is not None:
            total[a.node] = total[a.node] + g if a.node in total else g
    return total
