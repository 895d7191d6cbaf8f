"""Products of small numbers: which nodes around an einsum become one step, so that weights stay packed and sums whole.

``integers``: bytes times bytes, added up in int32, with the quantize before and the dequantize after. ``weights``: floats times weights of 8,
4, 2 or 1 bits with their scales, which never stand in memory as floats all at once. ``fuzzy``: max-min and max-product joins of truth values
in 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from ..ir import ops
from ..ir.packed_numbers import NARROW
from ..ir.types import Array
from .cost import Contraction, contraction_of
from .fused_steps import Fusable
from .row_groups import Reading

if TYPE_CHECKING:
    from .build import Step

CALLER = -1  # the reader of outputs
BYTES = frozenset({"int8", "uint8"})
FUZZY = ("max_min", "max_product")
STEPS = (1 / 255, float(np.float32(1 / 255)))  # of truth values in 8 bits
POINT = 1e-9  # seconds that NumPy takes for one product of a matrix product of integers
UNPACKED = 6e-9  # and for making a float of one small number
SLAB_BYTES = 1024  # that a row, or a column, of a product of bytes is laid out in at a time
BLOCK_BYTES = 4 << 20  # of floats that weights become at once, on each thread


def small_number_groups(
    r: Reading, outputs: Iterable[int], held: Mapping[str, Array], taken: Set[int], least: tuple[float, float]
) -> list[Fusable]:
    """Return the groups whose steps take NumPy at least so many seconds: of those with NumPy's bits, and of others.

    ``held`` are the graph's constants.
    """
    readers: dict[int, set[int]] = {i: {CALLER} for i in outputs}
    for i in r.live:
        for a in r.nodes[i].args:
            readers.setdefault(a, set()).add(i)
    found: list[Fusable] = []
    used = set(taken)
    for i in r.live:
        op, args = r.nodes[i].op, r.nodes[i].args
        if not isinstance(op, ops.Einsum) or len(args) != 2 or op.algebra not in ("real", *FUZZY):
            continue
        form = contraction_of(op, [r.types[a][0] for a in args])
        if form is None or not plain_join(form):
            continue
        group = _fuzzy(r, i, held, readers) if op.algebra in FUZZY else None
        if plain_product(form) and len(set(args)) == 2:
            group = _integers(r, i, readers) or _weights(r, i, form, readers)
        if group is None or not used.isdisjoint(group.nodes):
            continue
        seconds, wanted = math.prod(form.sizes.values()) * POINT, least[0]
        if group.kind == "weights":
            seconds, wanted = max(math.prod(form.sizes[x] for x in own) for own in form.labels) * UNPACKED, least[1]
        if seconds >= wanted:
            found.append(group)
            used.update(group.nodes)
    return found


def plain_product(form: Contraction) -> bool:
    """Tell whether a contraction is a matrix product, or a batch of them, with every index of each factor in its place."""
    return form.kernel == "matmul" and plain_join(form)


def plain_join(form: Contraction) -> bool:
    """Tell whether a contraction has two factors without diagonals, and no index that one of them alone is reduced over."""
    if len(form.labels) != 2 or form.labels != form.spec.inputs or 0 in form.sizes.values():
        return False
    a, b = (set(own) for own in form.labels)
    return not (a ^ b) - set(form.spec.output)


def _integers(r: Reading, i: int, readers: Mapping[int, Set[int]]) -> Fusable | None:
    """Return an einsum of two casts of bytes to int32, with what only it reads before and after."""
    if r.types[i][0].dtype != "int32":
        return None
    members = {i}
    for cast in r.nodes[i].args:
        source = r.nodes[cast].args[0] if isinstance(r.nodes[cast].op, ops.Cast) else None
        if source is None or r.types[source][0].dtype not in BYTES:
            return None
        members.add(cast)
        if readers[source] == {cast} and _narrow(r, source):
            members.add(source)
    after = readers.get(i, frozenset())
    if len(after) == 1 and CALLER not in after:
        [scaled] = after
        op, args = r.nodes[scaled].op, r.nodes[scaled].args
        last = len(r.types[i][0].shape or ()) - 1
        fits = isinstance(op, ops.Dequantize) and op.group is None and op.axis in (None, last) and i not in args[1:]
        floats = fits and r.types[scaled][0].dtype == r.types[args[1]][0].dtype == "float32"
        if floats and not members.intersection(args[1:]):
            members.add(scaled)
    return Fusable(tuple(sorted(members)), "product of bytes", "integers")


def _fuzzy(r: Reading, i: int, held: Mapping[str, Array], readers: Mapping[int, Set[int]]) -> Fusable | None:
    """Return a join of truth values that come from 8 bits and go back to 8 bits, with what turns them into floats and back."""
    members = {i}
    for factor in r.nodes[i].args:
        op, args = r.nodes[factor].op, r.nodes[factor].args
        if not isinstance(op, ops.Dequantize) or r.types[args[0]][0].dtype != "uint8" or not _in_255(r, args[1:], held):
            return None
        if readers[factor] == {i}:  # else it is a step of its own, and comes as floats
            members.add(factor)
    after = readers.get(i, frozenset())
    if len(after) != 1 or CALLER in after or r.types[i][0].dtype != "float32":
        return None
    [back] = after
    op = r.nodes[back].op
    if not isinstance(op, ops.Quantize) or op.dtype != "uint8" or op.kind is not None or r.nodes[back].args[0] != i:
        return None
    if not _in_255(r, r.nodes[back].args[1:], held):
        return None
    return Fusable(tuple(sorted((*members, back))), "join of 8-bit truth values", "fuzzy")


def _in_255(r: Reading, args: Sequence[int], held: Mapping[str, Array]) -> bool:
    """Tell whether a scale is 1/255 and a zero point 0."""
    values: list[float] = []
    for a in args:
        op = r.nodes[a].op
        if isinstance(op, ops.Literal):
            values.append(float(op.value))
        elif isinstance(op, ops.Constant) and math.prod(op.shape) == 1 and op.digest in held:
            values.append(float(held[op.digest].reshape(())))
        else:
            return False
    return values[0] in STEPS and values[1] == 0


def _narrow(r: Reading, i: int) -> bool:
    """Tell whether a node makes bytes in a way that a kernel for products can do itself."""
    op = r.nodes[i].op
    if isinstance(op, ops.Unpack):
        return op.kind in NARROW
    if not isinstance(op, ops.Quantize) or op.axis is not None or op.kind not in (None, "binary"):
        return False
    x, scale = r.types[r.nodes[i].args[0]][0], r.types[r.nodes[i].args[1]][0]
    by_row = op.group is not None and (x.shape or (0,))[-1] == op.group
    return x.dtype == "float32" and scale.dtype == "float32" and (op.group is None or by_row)


def _weights(r: Reading, i: int, form: Contraction, readers: Mapping[int, Set[int]]) -> Fusable | None:
    """Return an einsum of floats and of a dequantized matrix, whose last axis is the one that is summed over."""
    for n in (0, 1):
        x, w = r.nodes[i].args[1 - n], r.nodes[i].args[n]
        op = r.nodes[w].op
        if not isinstance(op, ops.Dequantize) or readers[w] != {i} or op.axis not in (None, 0):
            continue
        numbers, scale, _ = (r.types[a][0] for a in r.nodes[w].args)
        floats = {t.dtype for t in (r.types[x][0], scale, r.types[i][0])} == {"float32"}
        if not floats or numbers.dtype not in BYTES or len(form.labels[n]) != 2 or form.inner != form.labels[n][1:]:
            continue
        source = r.nodes[w].args[0]
        packed = isinstance(r.nodes[source].op, ops.Unpack) and readers[source] == {w}
        members = (source, w, i) if packed else (w, i)
        return Fusable(members, "product with packed weights", "weights")
    return None


def scratch_bytes(parts: Sequence[Step], kind: str) -> int:
    """Return the bytes that such a step takes while it runs: panels or blocks, and sums before they are scaled."""
    form = next(p.contraction for p in parts if p.contraction is not None)
    if kind == "fuzzy":
        return 4 * math.prod(form.sizes[x] for x in form.spec.output)
    a, b = (math.prod(form.sizes[x] for x in own) for own in form.labels)
    depth = math.prod(form.sizes[x] for x in form.inner)
    if kind == "weights":
        return BLOCK_BYTES + 4 * min(a, b)
    rows = (a + b) // max(1, depth)
    sums = 4 * math.prod(form.sizes[x] for x in form.spec.output)
    return rows * SLAB_BYTES + a + b + (sums if isinstance(parts[-1].op, ops.Dequantize) else 0)
