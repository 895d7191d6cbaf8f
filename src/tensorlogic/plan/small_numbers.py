"""Products of small numbers: which nodes around an einsum become one step, so that weights stay packed and sums whole.

``integers``: bytes times bytes, added up in int32, with the quantize before and the dequantize after. ``weights``: floats times weights of 8,
4, 2 or 1 bits with their scales, which never stand in memory as floats all at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.packed_numbers import NARROW
from .contract import Contraction, contraction_of
from .fused import Fusable
from .row_groups import Reading

if TYPE_CHECKING:
    from .build import Step

CALLER = -1  # the reader of outputs
BYTES = frozenset({"int8", "uint8"})
POINT = 1e-9  # seconds that NumPy takes for one product of a matrix product of integers
UNPACKED = 6e-9  # and for making a float of one small number
SLAB_BYTES = 1024  # that a row, or a column, of a product of bytes is laid out in at a time
BLOCK_BYTES = 1 << 20  # of floats that weights become at once, on each thread


def small_number_groups(
    r: Reading, outputs: Iterable[int], taken: Set[int], least: tuple[float, float]
) -> list[Fusable]:
    """Return the groups whose steps take NumPy at least so many seconds: of those with exact sums, and of others."""
    readers: dict[int, set[int]] = {i: {CALLER} for i in outputs}
    for i in r.live:
        for a in r.nodes[i].args:
            readers.setdefault(a, set()).add(i)
    found: list[Fusable] = []
    used = set(taken)
    for i in r.live:
        op, args = r.nodes[i].op, r.nodes[i].args
        if i in used or not isinstance(op, ops.Einsum) or op.algebra != "real" or len(set(args)) != 2:
            continue
        form = contraction_of(op, [r.types[a][0] for a in args])
        if form is None or not plain_product(form):
            continue
        group = _integers(r, i, readers) or _weights(r, i, form, readers)
        if group is None or not used.isdisjoint(group.nodes):
            continue
        if group.kind == "integers":
            seconds, wanted = math.prod(form.sizes.values()) * POINT, least[0]
        else:
            seconds, wanted = max(math.prod(form.sizes[x] for x in own) for own in form.labels) * UNPACKED, least[1]
        if seconds >= wanted:
            found.append(group)
            used.update(group.nodes)
    return found


def plain_product(form: Contraction) -> bool:
    """Tell whether a contraction is a matrix product, or a batch of them, with every index of each factor in its place."""
    a, b = form.labels
    alone = (set(a) ^ set(b)) - set(form.spec.output)
    return form.kernel == "matmul" and form.labels == form.spec.inputs and not alone and 0 not in form.sizes.values()


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
    a, b = (math.prod(form.sizes[x] for x in own) for own in form.labels)
    depth = math.prod(form.sizes[x] for x in form.inner)
    if kind == "weights":
        return BLOCK_BYTES + 4 * min(a, b)
    rows = (a + b) // max(1, depth)
    sums = 4 * math.prod(form.sizes[x] for x in form.spec.output)
    return rows * SLAB_BYTES + a + b + (sums if isinstance(parts[-1].op, ops.Dequantize) else 0)
