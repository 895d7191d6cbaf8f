"""Reverse-mode rules of contractions: einsums again in the real algebra, ``ContractVJP`` in the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..ir import ops, spec
from ..ir.ops import Op
from ..ir.sizes import Dim
from ..ir.spec import Labels
from .grad_reverse import Call, Grads, Rule
from .grad_tape import Tape, Value, full


class Form(NamedTuple):
    """An einsum with every index named by one letter and its size known."""

    inputs: tuple[Labels, ...]
    output: Labels
    sizes: dict[str, Dim]  # a literal 1 gives way to another operand's size

    @property
    def contracted(self) -> Labels:
        """The labels that are reduced, in order of first occurrence."""
        return spec.Spec(self.inputs, self.output).contracted


def form_of(equation: str, args: Sequence[Value]) -> Form | None:
    """Read an einsum's spec for operands of known shapes; None where one is unknown."""
    shapes = [x.shape for x in args]
    if any(s is None for s in shapes):
        return None
    form = spec.lettered(spec.expand(spec.parse(equation), tuple(len(s or ()) for s in shapes)))
    sizes: dict[str, Dim] = {}
    for labels, shape in zip(form.inputs, shapes, strict=True):
        for c, d in zip(labels, shape or (), strict=True):
            if sizes.get(c, 1) == 1:
                sizes[c] = d
    return Form(*form, sizes)


def squeezed(t: Tape, x: Value, labels: Labels, gone: Sequence[bool]) -> tuple[Value, Labels]:
    """Drop axes of size 1."""
    if not any(gone):
        return x, labels
    kept = [n for n, g in enumerate(gone) if not g]
    return t.reshape(x, [(x.shape or ())[n] for n in kept]), tuple(labels[n] for n in kept)


def _einsum(t: Tape, call: Call) -> Grads:
    op, y = call.op, call.y
    if op.algebra == "boolean" or y.dtype == "bool":
        return _truths(t, call)
    form = form_of(op.spec, call.args) if op.algebra == "real" else None
    if form is not None:
        return [real_gradient(t, form, call.args, k, y, call.g) if want else None for k, want in enumerate(call.wants)]
    g = full(t, call.g, y)
    return [_masked(t, op, call.args, k, y, g) if want else None for k, want in enumerate(call.wants)]


def _masked(t: Tape, op: ops.Einsum, args: Sequence[Value], k: int, y: Value, g: Value) -> Value:
    """Return the gradient of a contraction in an algebra that needs to know which terms took part."""
    if any(x.shape != () for x in args):
        return t.apply(ops.ContractVJP(op.spec, op.algebra, k), *args, y, g)
    equation = ",".join(["a"] * len(args)) + "->a"  # scalars, as vectors of one element
    lines = [t.reshape(x, (1,)) for x in (*args, y, g)]
    return t.reshape(t.apply(ops.ContractVJP(equation, op.algebra, k), *lines), ())


def _truths(t: Tape, call: Call) -> Grads:
    """Straight through an or of ands: as the greatest of products of 0 and 1."""
    factors = [t.cast(t.not_equal(x, 0), "float32") for x in call.args]
    y = t.cast(call.y, "float32")
    g = full(t, call.g, y)
    each = [ops.ContractVJP(call.op.spec, "max_product", k) for k in range(len(factors))]
    return [t.apply(op, *factors, y, g) if want else None for op, want in zip(each, call.wants, strict=True)]


def real_gradient(t: Tape, form: Form, args: Sequence[Value], k: int, y: Value, g: Value) -> Value:
    """Return the gradient of a real einsum for operand k: an einsum of the cotangent and the other operands.

    It may lack what the operand has, such as an index that was only summed in it, as long as it broadcasts.
    """
    own, shape = form.inputs[k], args[k].shape or ()
    target = tuple(dict.fromkeys(c for c, d in zip(own, shape, strict=True) if d != 1))
    rest = [zip(form.inputs[j], x.shape or (), strict=True) for j, x in enumerate(args) if j != k]
    wide = {c for other in rest for c, d in other if d != 1}
    short = len(form.output) - len(g.shape or ())
    small = [n < short or (g.shape or ())[n - short] == 1 for n in range(len(form.output))]
    if any(
        s and form.sizes[c] != 1 and c not in wide and c not in target for s, c in zip(small, form.output, strict=True)
    ):
        g, short = full(t, g, y), 0
        small = [d == 1 for d in y.shape or ()]
    cotangent, labels = squeezed(t, g, form.output[short:], small[short:])
    parts: list[tuple[Value, Labels]] = []
    for j, x in enumerate(args):
        if j == k and labels:  # in the operand's place, so that a product of matrices stays one
            parts.append((cotangent, labels))
        elif j != k:
            sizes = zip(form.inputs[j], x.shape or (), strict=True)
            parts.append(squeezed(t, x, form.inputs[j], [d == 1 and form.sizes[c] != 1 for c, d in sizes]))
    present = {c for _, own_labels in parts for c in own_labels}
    direct = tuple(c for c in target if c in present)
    result = _contract(t, parts, direct)
    if not labels:
        result = cotangent if result is None else result * cotangent
    assert result is not None
    return laid_out(t, result, direct, own, form, args[k])


def _contract(t: Tape, parts: Sequence[tuple[Value, Labels]], output: Labels) -> Value | None:
    if not parts:
        return None
    value, labels = parts[0]
    if len(parts) == 1 and sorted(labels) == sorted(output):
        return value if labels == output else t.transpose(value, [labels.index(c) for c in output])
    equation = ",".join("".join(labels) for _, labels in parts) + "->" + "".join(output)
    return t.einsum(equation, *(value for value, _ in parts))


def laid_out(t: Tape, v: Value, labels: Labels, own: Labels, form: Form, x: Value) -> Value:
    """Give a gradient over distinct labels the axes of its operand: 1 where it lacks one, diagonals where one repeats."""
    shape, dtype = x.shape or (), x.dtype
    number = t.literal_of(v)
    if number is not None and len(set(own)) < len(own):
        v = t.cast(number, "float64" if dtype is None else dtype)
    if labels == own or not labels:
        spread_out = v
    else:
        seen: set[str] = set()
        axes: list[Dim] = []
        for c in own:
            axes.append(form.sizes[c] if c in labels and c not in seen else 1)
            seen.add(c)
        while axes and axes[0] == 1:
            axes.pop(0)
        spread_out = v if tuple(axes) == tuple(v.shape or ()) else t.reshape(v, axes)
    mask: Value | None = None
    for n, c in enumerate(own):
        first = own.index(c)
        if n != first and shape[n] != 1:
            at = [t.reshape(t.iota(shape[n]), [shape[n], *(1,) * (len(own) - 1 - place)]) for place in (first, n)]
            same = t.equal(*at)
            mask = same if mask is None else t.logical_and(mask, same)
    return spread_out if mask is None else t.where(mask, spread_out, 0)


RULES: dict[type[Op], Rule] = {ops.Einsum: _einsum}
