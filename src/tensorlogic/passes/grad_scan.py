"""The gradient of a scan: its body's gradient, run backwards over the carries it had.

What a capture's gradient sums over the steps is often an einsum of values of one step. Then these are put out for all steps,
and one einsum does the sum: a product of two matrices in place of a matrix added up at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..ir import ops, spec
from ..ir.graph import EinsumGraph, Node, Scan, body_types
from ..ir.ops import Op
from ..ir.sizes import Dim, floordiv, mul, sub
from ..ir.type_rules import infer_graph
from ..ir.types import TensorShape, TensorType
from .grad_bodies import Reversed, float_flags, floats, fresh, placed, reverse_body
from .grad_reverse import Call, Flags, Grads, Options, Prepare, Rule, loop_flags
from .grad_tape import Tape, Value, added, full_cotangent, unused


def _steps(op: Scan, args: Sequence[Value]) -> Dim | None:
    if op.length is not None:
        return op.length
    shapes = [x.shape for x in args[op.carries : op.carries + op.scanned]]
    return next((s[0] for s in shapes if s), None)


def prepare_scan(t: Tape, node: Node, on: Flags, options: Options) -> tuple[Value, ...]:
    """Run a scan so that the carries its gradient needs are kept: all of them, or every so many."""
    assert isinstance(node.op, Scan)
    return prepared(t, node.op, [Value(t, t.place[a]) for a in node.args], on, options)


def prepared(t: Tape, op: Scan, args: Sequence[Value], on: Flags, options: Options) -> tuple[Value, ...]:
    """Run a scan on a tape as its gradient needs it."""
    steps = _steps(op, args)
    k = options.keep
    rows = args[op.carries : op.carries + op.scanned]
    if k is None or steps is None or any(x.shape is None for x in rows) or (isinstance(steps, int) and steps <= k):
        return _kept(t, op, args, on, options)
    return _chunked(t, op, args, on, options, steps, k)


def _kept(t: Tape, op: Scan, args: Sequence[Value], on: Flags, options: Options) -> tuple[Value, ...]:
    """Run a scan that also puts out the carries that its gradient reads."""
    whole = len(op.body.outputs)
    given = body_types(op, [x.type for x in args])
    flags = loop_flags(op, given, on, options)
    made = _scan_body(op, given, (*flags[: op.carries], *on[op.carries :]), _scan_seeds(op, given, flags), options)
    read = made.tape.live([*made.outputs, *made.operands])
    needed = [n for n in range(op.carries) if made.back.inputs[n].node in read]
    if needed:
        places = list(op.body.inputs.values())
        extra = [(unused(f"before_{n}", op.body.output_names), places[n]) for n in needed]
        body = EinsumGraph(op.body.nodes, [*op.body.outputs, *extra], op.body.constants)
        op = msgspec.structs.replace(op, body=body)
    results = t.apply_many(op, *args)
    at = t.draft.args(results[0].node)[0] if len(results) > 1 else results[0].node
    t.saved[at] = dict(zip(needed, results[whole:], strict=True))
    return results[:whole]


def _chunked(
    t: Tape, op: Scan, args: Sequence[Value], on: Flags, options: Options, steps: Dim, k: int
) -> tuple[Value, ...]:
    """Run a scan as a scan over chunks of k steps, and what is left: only the chunks' first carries are kept."""
    end = op.carries + op.scanned
    carries, rows, captures = args[: op.carries], args[op.carries : end], args[end:]
    count = floordiv(steps, k)
    head = mul(count, k)
    rest = sub(steps, head)
    inner = Tape(EinsumGraph([], []))
    chunk = [x.type._replace(shape=TensorShape((k, *(x.shape or ())[1:]))) for x in rows]
    types = [*(x.type for x in carries), *chunk, *(x.type for x in captures)]
    inputs = [inner.input(label, kind) for label, kind in zip(op.body.inputs, types, strict=True)]
    made = inner.apply_many(msgspec.structs.replace(op, length=k), *inputs)
    body = inner.finish([(name, v) for name, v in zip(op.body.output_names, made, strict=True)])
    flags = loop_flags(op, body_types(op, [x.type for x in args]), on, options)
    on = (*flags[: op.carries], *on[op.carries :])

    def chunks(state: Sequence[Value]) -> tuple[Value, ...]:
        cut = [_part(t, x, 0, head, (count, k)) for x in rows]
        return _kept(t, Scan(body, op.carries, op.scanned, count, op.reverse), [*state, *cut, *captures], on, options)

    def tail(state: Sequence[Value]) -> tuple[Value, ...]:
        cut = [_part(t, x, head, rest) for x in rows]
        return _kept(t, msgspec.structs.replace(op, length=rest), [*state, *cut, *captures], on, options)

    state: Sequence[Value] = carries
    results = {}
    for run in (chunks,) if rest == 0 else (tail, chunks) if op.reverse else (chunks, tail):
        results[run] = run(state)
        state = results[run][: op.carries]
    outs = []
    for n in range(op.carries, len(results[chunks])):
        rows_of = results[chunks][n]
        whole = t.reshape(rows_of, (head, *(rows_of.shape or ())[2:]))
        outs.append(t.concat([whole, results[tail][n]], 0) if tail in results else whole)
    return (*state, *outs)


def _part(t: Tape, x: Value, start: Dim, size: Dim, split: tuple[Dim, ...] | None = None) -> Value:
    rest = (x.shape or ())[1:]
    cut = t.apply(ops.Slice(((start, size, 1), *((0, d, 1) for d in rest))), x)
    return cut if split is None else t.reshape(cut, (*split, *rest))


class _ScanBody(NamedTuple):
    """One step of a scan backwards: what it puts out, by operand of the scan."""

    tape: Tape
    back: Reversed
    carries: list[int]  # that have cotangents
    sums: dict[int, Value]  # captures: the running sums of their gradients, as inputs
    rows: list[int]  # scanned operands that have gradients
    products: dict[int, list[Product]]  # captures whose gradients are summed outside
    extra: list[Value]  # what these read that is not there for all steps anyway
    outputs: list[Value]
    operands: list[Value]  # of the products


def _scan_seeds(op: Scan, given: Sequence[TensorType], flags: Flags) -> Flags:
    found = infer_graph(op.body, dict(zip(op.body.inputs, given, strict=True))).types
    return floats([found[i][0] for _, i in op.body.outputs], flags)


def _scan_body(op: Scan, given: Sequence[TensorType], on: Flags, seeded: Flags, options: Options) -> _ScanBody:
    key = (op.body, op.carries, op.scanned, tuple(given), on, seeded)
    if key not in options.cache:
        options.cache[key] = _new_scan_body(op, given, on, seeded, options)
    body: _ScanBody = options.cache[key]
    return body


class Product(NamedTuple):
    """An einsum of one step's values, to be summed over all steps: its spec, and its operands in the body."""

    equation: str
    operands: tuple[Value, ...]


def _products(t: Tape, g: Value, fixed: set[int]) -> list[Product] | None:
    """Return a gradient as a sum of einsums that differ from step to step; None where it is anything else."""
    found, left = [], [g.node]
    while left:
        node = t.draft.nodes[left.pop()]
        if node.op == ops.Elementwise("add"):
            left += node.args
            continue
        plain = isinstance(node.op, ops.Einsum) and node.op.algebra == "real" and spec.ELLIPSIS not in node.op.spec
        if not plain or all(a in fixed for a in node.args):
            return None
        assert isinstance(node.op, ops.Einsum)
        found.append(Product(node.op.spec, tuple(Value(t, a) for a in node.args)))
    return found


def _over_steps(t: Tape, product: Product, values: Sequence[tuple[Value, bool]]) -> Value:
    """Apply an einsum to values of all steps (those that have one for each), and sum over the steps."""
    form = spec.parse(product.equation)
    step = next(spec.spare_letters(form.labels, 19))  # t, where it is free
    inputs = tuple((step, *own) if many else own for (_, many), own in zip(values, form.inputs, strict=True))
    return t.einsum(str(spec.Spec(inputs, form.output)), *(v for v, _ in values))


def _new_scan_body(op: Scan, given: Sequence[TensorType], on: Flags, seeded: Flags, options: Options) -> _ScanBody:
    back = reverse_body(op.body, given, on, seeded, options)
    t = back.tape
    carries = [n for n in range(op.carries) if seeded[n]]
    outputs = [full_cotangent(t, back.grads[n], back.inputs[n]) for n in carries]
    rows = [n for n in range(op.carries, op.carries + op.scanned) if back.grads[n] is not None]
    sums: dict[int, Value] = {}
    products: dict[int, list[Product]] = {}
    fixed = {x.node for x in back.inputs[op.carries + op.scanned :]}
    for n in range(op.carries + op.scanned, len(on)):
        g = back.grads[n]
        if g is None:
            continue
        found = _products(t, g, fixed)
        if found is None:
            sums[n] = t.input(fresh(t, f"sum_{list(op.body.inputs)[n]}"), back.inputs[n].type)
            outputs.append(sums[n] + g)
        else:
            products[n] = found
    outputs += [g for n in rows if (g := back.grads[n]) is not None]
    # operands that the scan has for all steps anyway are not put out again
    have = {x.node for x in back.inputs} | {v.node for n, v in back.cotangents.items() if n >= op.carries}
    each = {x.node: x for found in products.values() for p in found for x in p.operands}
    extra = [x for node, x in each.items() if node not in have]
    return _ScanBody(t, back, carries, sums, rows, products, extra, [*outputs, *extra], list(each.values()))


def _scan(t: Tape, call: Call) -> Grads:
    op: Scan = call.op
    args, outs = call.args, call.outs
    given = body_types(op, [x.type for x in args])
    flags = float_flags(op, given, outs, call.wants, call.options)
    seeded = (*flags[: op.carries], *(g is not None for g in call.grads[op.carries :]))
    made = _scan_body(op, given, (*flags[: op.carries], *call.wants[op.carries :]), seeded, call.options)
    body, back = made.tape, made.back
    read = body.live(made.outputs)
    inner = [*(back.cotangents[n] for n in made.carries), *made.sums.values()]
    start = [full_cotangent(t, call.grads[n], outs[n]) for n in made.carries]
    start += [full_cotangent(t, None, args[n]) for n in made.sums]
    stack = t.saved.get(call.node, {})
    steps = {back.inputs[n].node: v for n, v in stack.items()}  # values of all steps, by node of the body
    steps |= {back.inputs[n].node: args[n] for n in range(op.carries, op.carries + op.scanned)}
    for n in range(op.carries, len(outs)):
        g = call.grads[n]
        if g is not None:
            steps[back.cotangents[n].node] = full_cotangent(t, g, outs[n])
    scanned = [node for node in steps if node in read]
    inner += [Value(body, node) for node in scanned]
    captures = [n for n in range(op.carries + op.scanned, len(args)) if back.inputs[n].node in read]
    inner += [back.inputs[n] for n in captures]
    body.given = [v.node for v in inner]
    results: tuple[Value, ...] = ()
    if made.outputs:
        graph = body.finish((f"r{n}", v) for n, v in enumerate(made.outputs))
        scan = Scan(graph, len(start), len(scanned), _steps(op, args), not op.reverse)
        results = t.apply_many(scan, *start, *(steps[node] for node in scanned), *(args[n] for n in captures))
    cut = len(results) - len(made.extra)
    steps |= dict(zip((x.node for x in made.extra), results[cut:], strict=True))
    values = {node: (v, True) for node, v in steps.items()}  # by node of the body; whether each step has its own
    values |= {back.inputs[n].node: (args[n], False) for n in range(op.carries + op.scanned, len(args))}
    found = list(placed(len(args), [*made.carries, *made.sums, *made.rows], results[:cut]))
    for n, products in made.products.items():
        found[n] = added(_over_steps(t, p, [values[x.node] for x in p.operands]) for p in products)
    return found


RULES: dict[type[Op], Rule] = {Scan: _scan}
PREPARE: dict[type[Op], Prepare] = {Scan: prepare_scan}
