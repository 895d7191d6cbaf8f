"""Quantization as a pass: products read packed weights, and whole numbers are added up where both sides are quantized.

First every product gets pairs of Quantize and Dequantize, which say what is rounded and where; then the pairs sink into the
products (:mod:`~tensorlogic.passes.quantize_rules`). A graph that learns with rounding in it is the first half alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..ir import ops, spec
from ..ir.graph import EinsumGraph
from ..ir.ops import add_constant
from ..ir.packed_numbers import KINDS, PACKED
from ..ir.quantized import QuantizedTensor
from ..ir.sizes import Dim
from ..ir.types import Array
from .quantize_products import Product
from .quantize_rules import CANCEL, LOWER
from .rewrite import Draft, Rules, drop_dead, rewrite

DYNAMIC_LEVELS = 127  # steps on each side of 0 that a row of activations has


class StaticScale(NamedTuple):
    """One scale and zero point for all activations of a product, of int8."""

    scale: float
    zero_point: int


class Choice(NamedTuple):
    """What becomes of one product: its weight as a matrix (columns, terms), and what its activations are rounded by.

    ``weight`` is a quantized tensor, or the names of inputs for the scale and the granularity to round by while learning.
    ``activation`` is a scale, the name of an input that is one, "dynamic", or None where they stay floats.
    """

    weight: QuantizedTensor | LearnedScale
    activation: StaticScale | str | None = None

    @property
    def tensor(self) -> QuantizedTensor:
        """The weight, of a choice that was made after learning."""
        assert isinstance(self.weight, QuantizedTensor)
        return self.weight


class LearnedScale(NamedTuple):
    """A weight that stays a float, rounded in each run by a scale that is an input of the graph."""

    scale: str  # the name of the input
    shape: tuple[int, ...]
    kind: str
    axis: int | None
    group: int | None


DYNAMIC = "dynamic"


def with_pairs(
    graph: EinsumGraph, choices: Mapping[int, tuple[Product, Choice]], given: Container[int] = ()
) -> EinsumGraph:
    """Return the graph with chosen products, by node, between pairs of Quantize and Dequantize.

    The weights of products in ``given`` stay inputs, and are rounded in each run by the scales of the choice.
    """
    chosen = {id(graph.nodes[i]): (*own, i in given) for i, own in choices.items()}
    rules: Rules = {
        ops.Einsum: (partial(_insert, chosen=chosen),),
        ops.Gather: (partial(_insert_lookup, chosen=chosen),),
    }
    return rewrite(graph, rules).with_axis_names(graph.axis_names)


def lowered(graph: EinsumGraph) -> EinsumGraph:
    """Let pairs of Quantize and Dequantize sink into products, fold scales into their neighbours, and cancel pairs that meet."""
    return drop_dead(rewrite(rewrite(graph, LOWER), CANCEL)).with_axis_names(graph.axis_names)


def _insert(
    draft: Draft, op: ops.Einsum, args: tuple[int, ...], chosen: Mapping[int, tuple[Product, Choice, bool]]
) -> int | None:
    if id(draft.origin) not in chosen:
        return None
    product, choice, given = chosen[id(draft.origin)]
    source = draft.source.nodes[product.node].args
    x, w = args[source.index(product.x)], args[source.index(product.w)]
    dtype = draft.source.type_of(product.node).dtype or "float32"
    rows = list(draft.type(x).shape or ())
    kept: list[Dim] = [rows[a] for a in product.x_order[: product.rows]]
    value = _viewed(draft, x, product.x_order, [*kept, product.terms])
    value = _rounded_value(draft, value, choice.activation, product, dtype)
    weight = _weight(draft, w, product, choice.weight, dtype, given=given)
    letters = [spec.symbol(n) for n in range(product.rows + 2)]
    front, (k, n) = "".join(letters[:-2]), letters[-2:]
    result = draft.add(ops.Einsum(f"{front}{k},{n}{k}->{front}{n}"), (value, weight))
    if len(product.columns) > 1:
        result = draft.make(ops.Reshape((*kept, *product.columns)), (result,))
    return _transposed(draft, result, product.result_order)


def _insert_lookup(
    draft: Draft, op: ops.Gather, args: tuple[int, ...], chosen: Mapping[int, tuple[Product, Choice, bool]]
) -> int | None:
    """Take rows of packed numbers and their scales, and only then turn them into floats."""
    if id(draft.origin) not in chosen:
        return None
    product, choice, _ = chosen[id(draft.origin)]
    weight, rows = choice.tensor, ops.Gather(0)
    group = product.terms if weight.axis is not None else weight.group

    def taken(values: Array) -> int:
        if group is None:
            return constant(draft, values)
        return draft.add(rows, (constant(draft, values.reshape(product.columns[0], -1)), args[1]))

    numbers = draft.add(rows, (constant(draft, packed_array(weight)), args[1]))
    if weight.kind in PACKED:
        numbers = draft.make(ops.Unpack(weight.kind, product.terms), (numbers,))
    scale = taken(weight.scales.astype(draft.type(args[0]).dtype))
    zero = draft.make(ops.Literal.of(0), ())
    if weight.zero_points.any():
        zero = taken(weight.zero_points.astype(np.int16))
    return draft.make(ops.Dequantize(None, group), (numbers, scale, zero))


def _transposed(draft: Draft, i: int, order: Sequence[int]) -> int:
    return i if list(order) == sorted(order) else draft.make(ops.Transpose(tuple(order)), (i,))


def _viewed(draft: Draft, i: int, order: Sequence[int], shape: Sequence[Dim]) -> int:
    """Return a node with its axes in another order, and then under another shape."""
    moved = _transposed(draft, i, order)
    return (
        moved if list(draft.type(moved).shape or ()) == list(shape) else draft.make(ops.Reshape(tuple(shape)), (moved,))
    )


def constant(draft: Draft, array: Any) -> int:
    """Add an array to a draft."""
    return draft.make(add_constant(draft.constants, array), ())


def _named_input(draft: Draft, name: str, shape: tuple[int, ...]) -> int:
    return draft.make(ops.Input(name, shape, "float32"), ())


def _weight(
    draft: Draft, w: int, product: Product, weight: QuantizedTensor | LearnedScale, dtype: str, *, given: bool
) -> int:
    """Return the weight as a matrix of floats that come from small numbers."""
    zero = draft.make(ops.Literal.of(0), ())
    if isinstance(weight, QuantizedTensor):
        scale = constant(draft, weight.scales.astype(dtype))
        if weight.zero_points.any():
            zero = constant(draft, weight.zero_points.astype(np.int16))
    else:
        scale = _named_input(draft, weight.scale, weight.shape)
    if given or isinstance(weight, LearnedScale):
        matrix = _viewed(draft, w, product.w_order, (int(np.prod(product.columns)), product.terms))
        op = ops.Quantize(KINDS[weight.kind].dtype, weight.axis, weight.group, weight.kind)
        numbers = draft.make(op, (matrix, scale, zero))
    else:
        numbers = constant(draft, packed_array(weight))
        if weight.kind in PACKED:
            numbers = draft.make(ops.Unpack(weight.kind, weight.shape[-1]), (numbers,))
    return draft.make(ops.Dequantize(weight.axis, weight.group), (numbers, scale, zero))


def packed_array(weight: QuantizedTensor) -> Array:
    """Return the bytes of a weight as a graph holds them: numbers of 8 bits as they are, others packed."""
    return weight.packed if weight.kind in PACKED else weight.packed.view(KINDS[weight.kind].dtype)


def _rounded_value(draft: Draft, x: int, how: StaticScale | str | None, product: Product, dtype: str) -> int:
    """Return a value that was rounded to numbers of 8 bits and back."""
    if how is None:
        return x
    zero = draft.make(ops.Literal.of(0), ())
    group = None
    if isinstance(how, StaticScale):
        scale = constant(draft, np.asarray(how.scale, dtype))
        zero = constant(draft, np.int16(how.zero_point)) if how.zero_point else zero
    elif how != DYNAMIC:
        scale = _named_input(draft, how, ())
    else:
        group = product.terms
        most = draft.make(ops.Reduce("max", (product.rows,), True), (draft.make(ops.Elementwise("absolute"), (x,)),))
        levels, nothing = (draft.make(ops.Literal.of(v), ()) for v in (float(DYNAMIC_LEVELS), 0.0))
        share = draft.make(ops.Elementwise("divide"), (most, levels))
        empty = draft.make(ops.Elementwise("equal"), (share, nothing))
        one = constant(draft, np.asarray(1, dtype))
        scale = draft.make(ops.Elementwise("where"), (empty, one, share))
    numbers = draft.make(ops.Quantize("int8", None, group), (x, scale, zero))
    return draft.make(ops.Dequantize(None, group), (numbers, scale, zero))
