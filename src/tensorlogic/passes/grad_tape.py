"""The tape: a graph being differentiated, onto whose nodes the gradient's are written with NumPy's vocabulary.

A cotangent may be smaller than the value it belongs to, as long as it broadcasts to it: a sum hands its own on as it is, and
only who needs every element spreads it (:func:`full`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ..diagnostics import value_text
from ..errors import GraphError, ShapeError, nearest
from ..ir import ops
from ..ir.graph import EinsumGraph, Node, reachable, renumbered
from ..ir.methods import TensorMethods
from ..ir.ops import Op, add_constant
from ..ir.sizes import Dim
from ..ir.type_rules import Inference
from ..ir.types import FLOATS, Equality, Results, TensorShape, TensorType
from .rewrite import Draft

_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}

FIRST_DEVICE = "cpu:0"  # where inputs are


class Value:
    """A node of a tape; arithmetic on it adds nodes.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> t = Tape(b.build(y=b.exp(b.input("x", ("n",), "float32"))))
    >>> t.copy(t.source)
    >>> t.outputs["y"] * 2
    <Value float32[n]>
    """

    __slots__ = ("node", "tape")

    def __init__(self, tape: Tape, node: int) -> None:
        self.tape, self.node = tape, node

    @property
    def type(self) -> TensorType:
        """The shape and dtype, as far as they are known."""
        return self.tape.draft.types[self.node][0]

    @property
    def shape(self) -> TensorShape | None:
        """The shape; None where the rank is unknown."""
        return self.type.shape

    @property
    def dtype(self) -> str | None:
        """The dtype; None where it depends on the bound array."""
        return self.type.dtype

    def __repr__(self) -> str:
        return f"<Value {self.type}>"

    # fmt: off
    def __add__(self, other: Any) -> Value: return self.tape.add(self, other)
    def __radd__(self, other: Any) -> Value: return self.tape.add(other, self)
    def __sub__(self, other: Any) -> Value: return self.tape.subtract(self, other)
    def __rsub__(self, other: Any) -> Value: return self.tape.subtract(other, self)
    def __mul__(self, other: Any) -> Value: return self.tape.multiply(self, other)
    def __rmul__(self, other: Any) -> Value: return self.tape.multiply(other, self)
    def __truediv__(self, other: Any) -> Value: return self.tape.divide(self, other)
    def __rtruediv__(self, other: Any) -> Value: return self.tape.divide(other, self)
    def __neg__(self) -> Value: return self.tape.negative(self)
    def __gt__(self, other: Any) -> Value: return self.tape.greater(self, other)
    def __lt__(self, other: Any) -> Value: return self.tape.less(self, other)
    def __getitem__(self, key: Any) -> Value: return self.tape.index(self, key)
    # fmt: on


class Tape(TensorMethods[Value]):
    """A draft of a graph that speaks NumPy: what rules write gradients with.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> t = Tape(b.build(y=b.input("x", (2, 3), "float32")))
    >>> t.copy(t.source)
    >>> t.sum(t.outputs["y"], 0)
    <Value float32[3]>
    """

    def __init__(self, source: EinsumGraph) -> None:
        self.source = source
        self.draft = Draft(source, {})
        self.place: list[int] = []  # the node here that stands for each of the source's
        self.given: list[int] = []  # inputs that stay, read or not
        self.devices: list[str | None] = []  # of the first nodes; None: on every device, as constants are
        self.saved: dict[int, dict[int, Value]] = {}  # of a scan here: by carry, its values before each step
        self.noted: Sequence[Equality] | None = None  # equalities of the source, where they are not its own

    @property
    def outputs(self) -> dict[str, Value]:
        """The source's outputs, once it is copied."""
        return {name: Value(self, self.place[i]) for name, i in self.source.outputs}

    def __getitem__(self, key: str | int) -> Value:
        """Return an input of the source by its name, or any of its nodes by number."""
        at = self.source.inputs.get(key) if isinstance(key, str) else key
        if at is None or isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < len(self.place):
            hints = nearest(key, self.source.inputs)
            raise GraphError(f"{value_text(key)} is no input and no node of the graph", *hints, code="E302")
        return Value(self, self.place[at])

    def copy(self, graph: EinsumGraph, types: Sequence[Results] | None = None) -> None:
        """Take a graph over node by node; ``types`` are those of its nodes if they differ from what it declares."""
        for node, known in zip(graph.nodes, types or graph.inference.types, strict=True):
            self.take(node, known)

    def take(self, node: Node, known: Results | None) -> int:
        """Take one node of the source over."""
        self.draft.origin = node
        node_number = self.draft.add(node.op, tuple([self.place[a] for a in node.args]), known)
        self.place.append(node_number)
        if isinstance(node.op, ops.Input):
            self.given.append(node_number)
        return node_number

    def input(self, label: str, type: TensorType) -> Value:
        """Add an input."""
        shape = None if type.shape is None else tuple(type.shape)
        node = self.draft.add(ops.Input(label, shape, type.dtype), (), (type._replace(weak=False),))
        self.given.append(node)
        return Value(self, node)

    def inline(self, graph: EinsumGraph, inputs: Mapping[str, Value]) -> list[Value]:
        """Add a whole graph for given inputs and return its outputs."""
        here: list[int] = []
        for node in graph.nodes:
            op = node.op
            if isinstance(op, ops.Input):
                here.append(inputs[op.label].node)
                continue
            if isinstance(op, ops.Constant):
                self.draft.constants[op.digest] = graph.constants[op.digest]
            here.append(self.draft.add(op, tuple([here[a] for a in node.args])))
        return [Value(self, here[i]) for _, i in graph.outputs]

    def live(self, roots: Iterable[Value]) -> set[int]:
        """Return the nodes that some values depend on."""
        return set(reachable(self.draft.nodes, (v.node for v in roots)))

    def apply(self, op: Op, *operands: Any) -> Value:
        """Add one operation that has one result."""
        if isinstance(op, ops.Elementwise) and (op.fn in _FOLD or op.fn == "negative"):
            simple = self._simpler(op.fn, operands)
            if simple is not None:
                return simple
        return Value(self, self.draft.add(op, tuple([self._operand(x) for x in operands])))

    def apply_many(self, op: Op, *operands: Any) -> tuple[Value, ...]:
        """Add one operation and return all of its results."""
        return self.results(self.draft.add(op, tuple([self._operand(x) for x in operands])))

    def results(self, node: int) -> tuple[Value, ...]:
        """Return the results of a node, one value each."""
        count = len(self.draft.types[node])
        if count == 1:
            return (Value(self, node),)
        return tuple(Value(self, self.draft.add(ops.Item(n), (node,))) for n in range(count))

    def shape_of(self, x: Any) -> TensorShape | None:
        """Return an operand's shape; None where its rank is unknown."""
        return x.shape if isinstance(x, Value) else TensorShape(np.shape(x))

    def literal_of(self, x: Any) -> bool | int | float | None:
        """Return the number that an operand is, None where it is no literal."""
        if isinstance(x, bool | int | float):
            return x
        op = self.draft.op(x.node) if isinstance(x, Value) else None
        return op.value if isinstance(op, ops.Literal) else None

    def _operand(self, x: Any) -> int:
        if isinstance(x, Value):
            return x.node
        if isinstance(x, bool | int | float):
            return self.draft.add(ops.Literal.of(x), ())
        return self.draft.add(add_constant(self.draft.constants, x), ())

    def _simpler(self, fn: str, operands: Sequence[Any]) -> Value | None:
        """Return what arithmetic on literals, a product with 1, or minus of minus comes down to."""
        if fn in _FOLD:
            a, b = [self.literal_of(x) for x in operands]
            if a is None and b is None:
                return None
            if a is not None and b is not None and (b or fn != "divide"):
                return Value(self, self._operand(_FOLD[fn](float(a), float(b))))
        match fn:
            case "multiply":
                for x, other in (operands, operands[::-1]):
                    if self.literal_of(x) == 1 and isinstance(other, Value) and may_be_float(other.type):
                        return other
            case "divide" if self.literal_of(operands[1]) == 1 and isinstance(operands[0], Value):
                return operands[0] if may_be_float(operands[0].type) else None
            case "negative":
                (x,) = operands
                number = self.literal_of(x)
                if number is not None and not isinstance(number, bool):
                    return Value(self, self._operand(-number))
                if self.draft.op(x.node) == ops.Elementwise("negative"):
                    return Value(self, self.draft.args(x.node)[0])
        return None

    def finish(self, outputs: Iterable[tuple[str, Value]]) -> EinsumGraph:
        """Return the graph of some outputs; inputs stay, because callers give them, and are truth values as they were."""
        wanted = [(name, v.node) for name, v in outputs]
        live = reachable(self.draft.nodes, [*self.given, *(i for _, i in wanted)])
        # inputs first, and in order: a body's inputs match operands by position
        order = [*self.given, *(i for i in live if not isinstance(self.draft.op(i), ops.Input))]
        noted = self.source.inference.equalities if self.noted is None else self.noted
        older = [e._replace(node=self.place[e.node]) for e in noted if e.node < len(self.place)]
        known = Inference(tuple(self.draft.types), (*older, *self.draft.equalities))
        result = renumbered(self.draft.nodes, order, wanted, self.draft.constants, known)
        return result.with_scores(self.source.scores) if self.source.scores else result


def may_be_float(kind: TensorType) -> bool:
    """Tell whether a value has gradients as far as its dtype is known."""
    return kind.dtype is None or kind.dtype in FLOATS


def unused(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken."""
    while name in taken:
        name += "_"
    return name


def known_shape(x: Value, what: str) -> TensorShape:
    """Return a shape that a rule cannot do without, or raise that it must be declared."""
    if x.shape is None:
        raise unknown_rank(x, what)
    return x.shape


def unknown_rank(x: Value, what: str) -> ShapeError:
    """Return the error that a shape must be declared."""
    hint = "declare the inputs' shapes: b.input('x', ('n', 3)); names stand for unknown sizes"
    error = ShapeError(f"{what} need shapes, and one of unknown rank is met", hint, code="E815")
    return error.at(x.tape.draft.nodes[x.node].location)


def added(parts: Iterable[Value]) -> Value | None:
    """Return the sum of some values, in order; None of none."""
    return reduce(operator.add, some) if (some := list(parts)) else None


def scalar(t: Tape, number: float, like: Value) -> Value:
    """Return a number with the dtype of a value: of its shape too where that is the only way."""
    if like.dtype is not None:
        return t.cast(number, like.dtype if like.dtype in FLOATS else "float64")
    return t.where(False, like, number)  # its dtype, whatever that will be


def number_like(t: Tape, number: float, like: Value) -> Value:
    """Return a number as a tensor of the shape and dtype of a value."""
    if like.dtype is None or like.shape is None:
        return t.where(False, like, number)
    return t.broadcast_to(scalar(t, number, like), like.shape)


def filled(t: Tape, number: float, shape: Sequence[Dim], dtype: str | None, like: Value) -> Value:
    """Return a number as a tensor of a shape and a dtype: that of a value where it is not known yet."""
    one = t.sum(t.where(False, like, 0)) + number if dtype is None else t.cast(number, dtype)
    return t.broadcast_to(one, shape)


def full(t: Tape, g: Value | None, like: Value) -> Value:
    """Return a cotangent with the whole shape of the value it belongs to; None stands for zeros."""
    if g is None:
        return number_like(t, 0.0, like)
    if g.type.weak:
        number = t.literal_of(g)
        assert number is not None
        return scalar(t, number, like) if like.shape == () else number_like(t, number, like)
    if g.shape == like.shape and g.shape is not None:
        return g
    if like.shape is None:
        return t.where(False, like, g)
    return t.broadcast_to(g, like.shape)


def full_cotangent(t: Tape, g: Value | None, like: Value) -> Value:
    """Return a cotangent with the whole shape, and the dtype, of the value it belongs to; None stands for zeros."""
    return of_dtype(t, full(t, g, like), like)


def of_dtype(t: Tape, g: Value, like: Value) -> Value:
    """Return a cotangent in the dtype of the value it belongs to, as far as both are known."""
    if g.type.weak or g.dtype is None or like.dtype not in FLOATS or g.dtype == like.dtype:
        return g
    return t.cast(g, like.dtype)


def on_device(t: Tape, g: Value, like: Value) -> Value:
    """Return a cotangent or tangent on the device of a value; numbers are on every device."""
    device = device_of(t, like)
    return g if device is None or g.type.weak or device_of(t, g) in (device, None) else t.apply(ops.Transfer(device), g)


def device_of(t: Tape, x: Value) -> str | None:
    """Return the device that a value is on: that of the last transfer before it, else the first; None of constants."""
    for node in t.draft.nodes[len(t.devices) : x.node + 1]:
        if isinstance(node.op, ops.Transfer | ops.Input):
            t.devices.append(node.op.device if isinstance(node.op, ops.Transfer) else FIRST_DEVICE)
        else:
            t.devices.append(next((d for a in node.args if (d := t.devices[a]) is not None), None))
    return t.devices[x.node]


def indicator(t: Tape, mask: Value, like: Value) -> Value:
    """Return 1 where a mask is true and 0 elsewhere, in the dtype of a value."""
    if like.dtype is not None:
        return t.cast(mask, like.dtype)
    return t.where(mask, t.where(False, like, 1), 0)


def count(t: Tape, sizes: Sequence[Dim], dtype: str) -> Value | float:
    """Return the product of sizes as something to divide by: a number, or where sizes have names a sum of ones."""
    known = float(np.prod([float(d) for d in sizes if isinstance(d, int)]))
    names = [d for d in sizes if isinstance(d, str)]
    if not names:
        return known
    one = t.cast(1.0, dtype if dtype in ("float32", "float64") else "float32")  # float16 ends at 65504
    return reduce(operator.mul, [t.sum(t.broadcast_to(one, (d,))) for d in names]) * known


def unbroadcast(t: Tape, g: Value, like: Value, others: Sequence[Value], shape: TensorShape | None) -> Value:
    """Sum a cotangent of a broadcast result, of ``shape``, over the axes that an operand did not have: one sum."""
    own = like.shape
    if own == shape and own is not None:
        return g
    if own is None or shape is None or g.shape is None:
        if all(x.shape == () for x in others):  # nothing but scalars met it
            return g
        if own == ():
            return t.sum(g if g.shape is None else full(t, g, others[0]))
        raise unknown_rank(like, "gradients of broadcast operands")
    lead = len(shape) - len(own)
    axes = [a for a, d in enumerate(shape) if a < lead or (own[a - lead] == 1 and d != 1)]
    if not axes:
        return g
    gone = len(shape) - len(g.shape)  # axes that the cotangent is the same along
    missing = [a for a in axes if a < gone or (g.shape[a - gone] == 1 and shape[a] != 1)]
    counts = [shape[a] for a in missing]
    if all(isinstance(d, int) for d in counts):
        g = g * float(np.prod([int(d) for d in counts], dtype=float)) if counts else g
        axes = [a for a in axes if a not in missing]
        if g.type.weak:
            return g
    else:
        number = t.literal_of(g)
        g, gone = t.broadcast_to(g if number is None else scalar(t, number, like), shape), 0
    here = [a - gone for a in axes]
    inner = any(a >= lead for a in axes)
    g = t.sum(g, here, keepdims=inner) if here else g
    left = g.shape or TensorShape()  # leading axes of size 1 that an operand does not have go
    return g if len(left) <= len(own) else t.reshape(g, left[len(left) - len(own) :])
