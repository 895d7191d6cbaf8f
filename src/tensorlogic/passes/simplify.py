"""Identities that keep every bit, and constants computed beforehand.

What changes neither value nor type is dropped, and views become one view. Not here: x + 0.0 (it turns -0.0 into 0.0), x * 0 and x - x (NaN),
anything that rounds differently. Types must be known where a rule needs them; a graph whose dtypes are still open loses less. What depends on
constants alone is computed once, when the graph is prepared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import CancelledError, GraphError, TensorLogicError
from ..ir import ops, spec
from ..ir.algebra import ALGEBRAS
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, extract
from ..ir.ops import Op, constant_op
from ..ir.spec import Labels, Spec
from ..ir.types import DTYPES, FLOATS, ITEMSIZE, TensorShape, TensorType, frozen_copy, normal_axis
from .contraction_paths import BLAS, einsum_cost
from .growing_loops import combine_by_or
from .rewrite import Draft, Rules, drop_dead, rewrite

Evaluate = Callable[[EinsumGraph], Sequence[Any]]
LARGEST = 64 << 20  # bytes; a larger result is not worth keeping
GROWTH = 4  # a result this many times larger than what it is made of is made anew in each run
SMALL = 1 << 16  # bytes that are kept in any case
DEAREST = BLAS << 31  # what all that is computed beforehand may cost: about a second
ELEMENT = 5 * BLAS  # for one element of what is no contraction
UNITS = {  # fn: the literal that leaves x alone as its left (or only as its right) operand
    "multiply": (1, "both"),
    "divide": (1, "right"),
    "power": (1, "right"),
    "logical_and": (True, "both"),
    "logical_or": (False, "both"),
    "logical_xor": (False, "both"),
    "subtract": (0, "right"),
    "add": (0, "both"),  # of whole numbers
}
IDEMPOTENT = frozenset({"maximum", "minimum", "logical_and", "logical_or"})  # f(x, x) = x
ONCE = frozenset({"absolute", "relu", "floor", "ceil", "trunc", "rint", "sign", "step"})  # f(f(x)) = f(x)
UNDONE = frozenset({"negative", "logical_not"})  # f(f(x)) = x


def simplify(graph: EinsumGraph) -> EinsumGraph:
    """Apply the identities.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (2, 3), "float32")
    >>> print(simplify(b.build(y=b.transpose(b.transpose(x * 1)))))
    graph {
      x: float32[2, 3] = input()
      return y=x
    }
    """
    return rewrite(graph, RULES)


def _operand(draft: Draft, args: tuple[int, ...], same: bool) -> int | None:
    """Return the first operand where it is the result; a number is no tensor, so there the operation stays."""
    return args[0] if same and not draft.type(args[0]).weak else None


def _same(draft: Draft, x: int, op: Op, args: tuple[int, ...]) -> int | None:
    """Return x where it has just the type that the operation would have; unknown dtypes may differ, so they do not."""
    t = draft.type(x)
    if t.dtype is None or t.shape is None or t.weak:
        return None
    return x if draft.results(op, args)[0] == t else None


def _elementwise(draft: Draft, op: ops.Elementwise, args: tuple[int, ...]) -> int | None:
    fn, x = op.fn, args[0]
    match len(args):
        case 1:
            inner = draft.op(x)
            if isinstance(inner, ops.Elementwise) and inner.fn == fn:
                if fn in ONCE:
                    return x
                if fn in UNDONE:
                    return _same(draft, draft.args(x)[0], op, args)
        case 2:
            unit, where = UNITS.get(fn, (None, ""))
            for a, b in () if unit is None else (args, args[::-1]) if where == "both" else (args,):
                whole = fn != "add" or (draft.type(a).dtype or "float").startswith(("int", "uint"))
                if whole and _is_literal(draft, b, unit):
                    return _same(draft, a, op, args)
            if fn in IDEMPOTENT and args[0] == args[1]:
                return _same(draft, x, op, args)
        case 3 if args[1] == args[2]:
            return _same(draft, args[1], op, args)
    return None


def _commuted(draft: Draft, op: ops.Elementwise, args: tuple[int, ...]) -> int | None:
    """Let a + b be the b + a that there is; of two NaNs or zeros maximum keeps one, so there the order matters."""
    if len(args) == 2 and FUNCTIONS[op.fn].commutative and op.fn not in ("maximum", "minimum"):
        found = draft.known(op, args[::-1])
        if found is not None and draft.types[found] == draft.results(op, args):  # a size may go by another name there
            return found
    return None


def _is_literal(draft: Draft, i: int, value: object) -> bool:
    """Tell whether a node is the literal; -0.0 is no 0, but True is a 1 only among truth values."""
    op = draft.op(i)
    if not isinstance(op, ops.Literal) or (isinstance(value, bool) != isinstance(op.value, bool)):
        return False
    return op.value == value and not op.text.startswith("-")


def _cast(draft: Draft, op: ops.Cast, args: tuple[int, ...]) -> int | None:
    t = draft.type(args[0])
    if t.dtype == op.dtype and not t.weak:
        return args[0]
    inner = draft.op(args[0])
    if isinstance(inner, ops.Cast):
        first = draft.type(draft.args(args[0])[0]).dtype
        # a float that an integer dtype cannot hold becomes whatever the processor makes of it, by way of its own dtype
        rounds = inner.dtype in FLOATS and op.dtype not in FLOATS and op.dtype != "bool"
        kept = _widening()
        if first is not None and (first, inner.dtype) in kept and (not rounds or (first, op.dtype) in kept):
            return draft.make(op, draft.args(args[0]))
    return None


@cache
def _widening() -> frozenset[tuple[str, str]]:
    """The casts that keep every value."""
    real = [d for d in DTYPES if d != "bfloat16"]
    safe = {(a, b) for a in real for b in real if np.can_cast(a, b, "safe")}
    return frozenset(safe - {("int64", "float64"), ("uint64", "float64")})  # NumPy calls these safe; they round


def _transpose(draft: Draft, op: ops.Transpose, args: tuple[int, ...]) -> int | None:
    if op.order == tuple(range(len(op.order))) and not draft.type(args[0]).weak:
        return args[0]
    inner = draft.op(args[0])
    if isinstance(inner, ops.Transpose):
        return draft.make(ops.Transpose(tuple(inner.order[a] for a in op.order)), draft.args(args[0]))
    return None


def _reshape(draft: Draft, op: ops.Reshape, args: tuple[int, ...]) -> int | None:
    shape = draft.type(args[0]).shape
    if shape is not None and tuple(shape) == op.shape and not draft.type(args[0]).weak:
        return args[0]
    inner = draft.op(args[0])
    if isinstance(inner, ops.Reshape) and -1 not in op.shape:
        return draft.make(op, draft.args(args[0]))
    return None


def _slice(draft: Draft, op: ops.Slice, args: tuple[int, ...]) -> int | None:
    shape = draft.type(args[0]).shape
    if shape is not None and all(r == (0, d, 1) for r, d in zip(op.ranges, shape, strict=False)):
        return args[0] if len(op.ranges) <= len(shape) and not draft.type(args[0]).weak else None
    inner = draft.op(args[0])
    if isinstance(inner, ops.Slice) and len(inner.ranges) == len(op.ranges):
        joined = []
        for (a, _, s), (b, n, t) in zip(inner.ranges, op.ranges, strict=True):
            if not (isinstance(a, int) and isinstance(b, int)):
                return None
            joined.append((a + b * s, n, s * t))
        return draft.make(ops.Slice(tuple(joined)), draft.args(args[0]))
    return None


def _broadcast(draft: Draft, op: ops.Broadcast, args: tuple[int, ...]) -> int | None:
    shape = draft.type(args[0]).shape
    same = shape is not None and tuple(shape) == op.shape and op.axes == tuple(range(len(op.shape)))
    return _operand(draft, args, same)


def _pad(draft: Draft, op: ops.Pad, args: tuple[int, ...]) -> int | None:
    return _operand(draft, args, not any(low or high for low, high in op.widths))


def _concat(draft: Draft, op: Op, args: tuple[int, ...]) -> int | None:
    return _operand(draft, args, len(args) == 1)


def _reduce(draft: Draft, op: ops.Reduce, args: tuple[int, ...]) -> int | None:
    return _same(draft, args[0], op, args) if op.axes == () and op.kind in ("max", "min") else None


def _einsum(draft: Draft, op: ops.Einsum, args: tuple[int, ...]) -> int | None:
    """Take transposes of operands into the spec; an einsum that only reorders axes is a view.

    The axes of more than two operands decide how the pairs between them lie in memory, and so how they round.
    """
    form = spec.parse(op.spec)
    if len(args) <= 2 and spec.ELLIPSIS not in op.spec:
        inputs, operands = without_transposes(draft, form, args)
        if operands != args:
            return draft.make(ops.Einsum(str(Spec(inputs, form.output)), op.algebra), operands)
    if len(args) == 1 and op.algebra in ("real", "boolean"):
        (labels,) = form.inputs
        t = draft.type(args[0])
        whole = len(set(labels)) == len(labels) and set(labels) == set(form.output)
        if whole and t.dtype is not None and t.shape is not None and not t.weak:
            if op.algebra == "boolean" and t.dtype != "bool":
                return None
            full = spec.expand(form, (len(t.shape),))
            return draft.make(ops.Transpose(tuple(full.inputs[0].index(x) for x in full.output)), args)
    return None


def without_transposes(draft: Draft, form: Spec, args: tuple[int, ...]) -> tuple[tuple[Labels, ...], tuple[int, ...]]:
    """Return an einsum's labels and operands with transposes of operands taken into the labels."""
    inputs, operands = list(form.inputs), list(args)
    for n, a in enumerate(args):
        inner = draft.op(a)
        if isinstance(inner, ops.Transpose) and len(inner.order) == len(inputs[n]):
            inputs[n] = tuple(inputs[n][inner.order.index(axis)] for axis in range(len(inner.order)))
            operands[n] = draft.args(a)[0]
    return tuple(inputs), tuple(operands)


def _sorted_axis(draft: Draft, op: ops.Sort, args: tuple[int, ...]) -> int | None:
    """Sorting what is sorted alike changes nothing; of floats, sorting again may let 0.0 and -0.0 change places."""
    inner = draft.op(args[0])
    if (draft.type(args[0]).dtype or "float64") in FLOATS:
        return None
    if isinstance(inner, ops.Sort) and not op.indices and not inner.indices and op.descending == inner.descending:
        rank = len(draft.type(args[0]).shape or ())
        if rank and normal_axis(op.axis, rank, "sort") == normal_axis(inner.axis, rank, "sort"):
            return args[0]
    return None


def _factors(draft: Draft, op: ops.Einsum, args: tuple[int, ...]) -> int | None:
    """Drop factors that change nothing: the algebra's one, and a factor that is there twice where that counts once."""
    if len(args) < 2:
        return None
    row, form = ALGEBRAS[op.algebra], spec.parse(op.spec)
    kept: list[int] = []
    seen: set[tuple[int, Labels]] = set()
    for n, (a, labels) in enumerate(zip(args, form.inputs, strict=True)):
        twice = (a, labels) in seen and row.combine in ("logical_and", "minimum", "maximum")
        unit = not labels and isinstance(one := draft.op(a), ops.Literal) and one.value == row.one
        if not (twice or unit):
            kept.append(n)
        seen.add((a, labels))
    if len(kept) == len(args) or not kept or not row.distributive:
        return None
    less = ops.Einsum(str(Spec(tuple(form.inputs[n] for n in kept), form.output)), op.algebra)
    rest = tuple(args[n] for n in kept)
    return draft.make(less, rest) if draft.results(less, rest) == draft.results(op, args) else None


RULES: Rules = {
    ops.Elementwise: (_elementwise, _commuted),
    ops.Cast: (_cast,),
    ops.Transpose: (_transpose,),
    ops.Reshape: (_reshape,),
    ops.Slice: (_slice,),
    ops.Broadcast: (_broadcast,),
    ops.Pad: (_pad,),
    ops.Concat: (_concat,),
    ops.Reduce: (_reduce,),
    ops.Einsum: (_factors, _einsum),
    ops.Sort: (_sorted_axis,),
    Fixpoint: (combine_by_or,),
}


def fold_constants(graph: EinsumGraph, evaluate: Evaluate) -> EinsumGraph:
    """Replace what needs no input by its value; ``evaluate`` runs a graph without inputs.

    All of it together costs no more than ``DEAREST``; what is over that is left for the run.

    >>> import numpy as np
    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> w = b.constant(np.eye(2)) * 3.0
    >>> folded = fold_constants(b.build(y=b.input("x", (2, 2)) @ w), Executor().execute)
    >>> [node.op.name for node in folded.nodes]
    ['constant', 'input', 'einsum']
    """
    types = graph.inference.types
    fixed = bytearray(len(graph.nodes))
    for i, node in enumerate(graph.nodes):
        match node.op:
            case ops.Constant() | ops.Literal():
                fixed[i] = 1
            case (
                ops.Input()
                | ops.Collective()
                | Fixpoint()
                | Scan()
                | Cond()
                | ops.Item()
                | ops.Unpack()
                | ops.Dequantize()
            ):
                continue  # what was made small to be kept stays small
            case ops.Cast("int32") if types[node.args[0]][0].dtype in ("int8", "uint8"):
                continue
            case _:
                t = types[i][0]
                known = t.shape is not None and t.shape.is_static and t.dtype not in (None, "bfloat16") and not t.weak
                if known and (node.args or isinstance(node.op, ops.Iota)) and all(fixed[a] for a in node.args):
                    fixed[i] = _bytes(graph, i) <= LARGEST and _cost(graph, i) <= DEAREST
    wanted = _wanted(graph, fixed)
    if _leave_over(graph, fixed, wanted):
        wanted = _wanted(graph, fixed)
    if not wanted:
        return graph
    chosen = sorted(wanted)
    try:
        values = evaluate(extract(graph.nodes, [(str(i), i) for i in chosen], graph.constants))
    except CancelledError:
        raise
    except TensorLogicError:
        return graph  # what cannot be computed says so if it ever runs; a branch that is not taken does not
    arrays = {i: frozen_copy(v) for i, v in zip(chosen, values, strict=True)}
    constants = dict(graph.constants)
    nodes = []
    for i, node in enumerate(graph.nodes):
        if i in arrays:
            op = constant_op(arrays[i])
            if TensorType(TensorShape(op.shape), op.dtype) != types[i][0]:
                found = f"{op.dtype}{list(op.shape)}"
                raise GraphError(f"%{i} should be {types[i][0]}, but was computed as {found}", code="E108")
            constants[op.digest] = arrays[i]
            nodes.append(Node(op, (), node.locations))
        else:
            nodes.append(node)
    result = EinsumGraph(nodes, graph.outputs, constants)
    result.inference = graph.inference
    return drop_dead(result)


def _elements(graph: EinsumGraph, i: int) -> int:
    return math.prod(int(d) for d in graph.type_of(i).shape or ())


def _bytes(graph: EinsumGraph, i: int) -> int:
    return _elements(graph, i) * ITEMSIZE[graph.type_of(i).dtype or "float64"]


def _cost(graph: EinsumGraph, i: int) -> int:
    """Return what a node costs: a contraction its arithmetic, views nothing, and all else a little for each element."""
    node = graph.nodes[i]
    match node.op:
        case ops.Einsum() | ops.ContractVJP():
            factors = node.args if isinstance(node.op, ops.Einsum) else node.args[:-2]
            types = [graph.type_of(a) for a in factors]
            return einsum_cost(node.op.spec, node.op.algebra, types, graph.type_of(i))
        case ops.Constant() | ops.Literal() | ops.Slice() | ops.Transpose() | ops.Broadcast() | ops.Window():
            return 0
        case ops.Sort() | ops.TopK():
            each = ELEMENT * _elements(graph, node.args[0]).bit_length()
        case ops.Elementwise(fn):
            each = ELEMENT * FUNCTIONS[fn].cost
        case _:
            each = ELEMENT
    return each * max(_elements(graph, a) for a in (i, *node.args))


def _wanted(graph: EinsumGraph, fixed: bytearray) -> set[int]:
    """Return the nodes whose values are kept: where what is fixed meets what is not, or is an output."""
    wanted = set()
    kept = [i for _, i in graph.outputs]
    for i, node in enumerate(graph.nodes):
        if not fixed[i]:
            kept += node.args
    for i in kept:
        while graph.nodes[i].op.is_view and fixed[i]:  # costs nothing, and how it lies in memory decides how sums round
            i = graph.nodes[i].args[0]
        if fixed[i] and not isinstance(graph.nodes[i].op, ops.Constant | ops.Literal) and _worth(graph, i):
            wanted.add(i)
    return wanted


def _leave_over(graph: EinsumGraph, fixed: bytearray, wanted: set[int]) -> bool:
    """Let what the wanted nodes are made of be fixed only as far as all of it together is not too dear; tell whether some is not."""
    needed, pending = set(wanted), list(wanted)
    while pending:
        new = set(graph.nodes[pending.pop()].args) - needed
        needed |= new
        pending += new
    spent, over = 0, False
    for i in sorted(needed):
        cost = _cost(graph, i)
        if all(fixed[a] for a in graph.nodes[i].args) and spent + cost <= DEAREST:
            spent += cost
        else:
            fixed[i], over = 0, True
    return over


def _worth(graph: EinsumGraph, i: int) -> bool:
    """A large array made of little, such as a broadcast or an iota, is cheaper to make than to keep."""
    size = _bytes(graph, i)
    if size <= SMALL:
        return True
    seen, pending, made_of = set(), [i], 0
    while pending:
        for a in graph.nodes[pending.pop()].args:
            if a not in seen:
                seen.add(a)
                pending.append(a)
                if isinstance(graph.nodes[a].op, ops.Constant):
                    made_of += _bytes(graph, a)
    return size <= GROWTH * made_of
