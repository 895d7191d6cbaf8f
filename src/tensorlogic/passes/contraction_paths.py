"""Contraction paths: in which order the operands of an einsum are contracted two by two, so that it costs least.

A pair costs its arithmetic, by what one point of its index space takes in the algebra, and the memory of its result where
that does not stay in cache. Up to eight operands the cheapest of all orders is found; for more, opt_einsum proposes some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..ir import spec
from ..ir.algebra import ALGEBRAS
from ..ir.type_rules import label_sizes
from ..ir.types import FLOATS, ITEMSIZE, Scope, TensorType

EXHAUSTIVE = 8  # operands up to which every order is weighed: some milliseconds
DYNAMIC = 12  # operands up to which opt_einsum's dynamic programming takes some milliseconds

# What things cost, in fortieths of an arithmetic operation of BLAS, so that costs are whole numbers of any size.
BLAS = 40
BITS = 1  # a multiply-add on packed bits, in which a word holds 64 truth values
LOOSE = 20 * BLAS  # an operation of an algebra or dtype that has no BLAS
BYTE = 10 * BLAS  # a byte that is written to memory and read again
CACHE = 1 << 20  # bytes of a result that stay in cache, where they cost nothing beside the arithmetic

Cost = Callable[[int, bool, int], int]  # points, whether an index is reduced, elements of the result


def best_path(
    inputs: Sequence[spec.Labels],
    output: spec.Labels,
    sizes: Mapping[str, int],
    algebra: str = "real",
    dtype: str = "float64",
) -> list[tuple[int, ...]]:
    """Return the pairs to contract, in order: the cheapest there is for few operands, the best of some for more.

    >>> best_path([("i", "j"), ("j", "k"), ("k",)], ("i",), {"i": 9, "j": 9, "k": 9})
    [(1, 2), (0, 1)]
    """
    cost = partial(pair_cost, algebra, dtype)
    apart = algebra != "real"  # real ones count as opt_einsum counts, so that none is worse than its
    if len(inputs) <= EXHAUSTIVE:
        return _cheapest(inputs, output, sizes, cost, apart)
    from opt_einsum.paths import DynamicProgramming, auto  # a quarter of a second, only where it is needed

    given = [frozenset(labels) for labels in inputs], frozenset(output), dict(sizes)
    found = [auto(*given)]
    if len(inputs) <= DYNAMIC:  # where operands share indices three ways, either may miss what the other finds
        found += [DynamicProgramming(least, search_outer=True)(*given) for least in ("flops", "combo")]
    return [tuple(sorted(pair)) for pair in min(found, key=lambda path: _whole(path, *given, cost, apart))]


def einsum_cost(equation: str, algebra_name: str, types: Sequence[TensorType], result: TensorType) -> int:
    """Return what an einsum of known sizes costs, in the cheapest order where its algebra may be reordered.

    >>> from tensorlogic import TensorShape
    >>> n = TensorType(TensorShape([1000]), "float32")
    >>> einsum_cost("i,j->", "noisy_or", [n, n], n) // BLAS, einsum_cost("i,i->", "real", [n, n], n) // BLAS
    (40000000, 2000)
    """
    shapes = [t.shape or () for t in types]
    form = spec.expand(spec.parse(equation), tuple(len(s) for s in shapes))
    sizes = {x: int(n) for x, n in label_sizes(form, shapes, Scope(0, str, (), [])).items()}
    cost = partial(pair_cost, algebra_name, result.dtype or "float64")
    if len(shapes) < 3 or not ALGEBRAS[algebra_name].distributive:
        return cost(math.prod(sizes.values()), bool(form.contracted), math.prod(sizes[x] for x in form.output))
    path = best_path(form.inputs, form.output, sizes, algebra_name, result.dtype or "float64")
    own = [frozenset(labels) for labels in form.inputs]
    return _whole(path, own, frozenset(form.output), sizes, cost, algebra_name != "real")


def pair_cost(algebra: str, dtype: str, points: int, reduces: bool, elements: int) -> int:
    """Return what one contraction costs, in fortieths of an arithmetic operation of BLAS.

    A boolean product of matrices runs on packed bits, a join that reduces nothing on bytes. Algebras other than these
    two and integers have no BLAS.

    >>> pair_cost("real", "float32", 1000, True, 100) // BLAS, pair_cost("boolean", "bool", 1000, True, 100) // BLAS
    (2000, 50)
    >>> pair_cost("real", "float32", 1 << 20, False, 1 << 20) // BLAS  # 1 MiB of results stays in cache, 3 do not
    32505856
    """
    if algebra == "boolean":
        work = points * (2 * BITS if reduces else BLAS)
    else:
        each = BLAS if algebra == "real" and dtype in FLOATS else LOOSE
        work = points * each * (2 if reduces else 1)
    return work + max(0, elements * ITEMSIZE[dtype] - CACHE) * BYTE


def _cheapest(
    inputs: Sequence[spec.Labels], output: spec.Labels, sizes: Mapping[str, int], cost: Cost, apart: bool
) -> list[tuple[int, ...]]:
    """Return the cheapest of all orders: of every set of operands, the best two sets to make it of, small sets first.

    What a set becomes depends only on which operands are in it, so this looks at 3^n pairs of sets, not at n! orders.
    With ``apart``, an index that only one of a pair has is reduced before they meet, as kernels do.
    """
    number = {x: 1 << n for n, x in enumerate(dict.fromkeys(x for labels in inputs for x in labels))}
    size_of = {bit: sizes[x] for x, bit in number.items()}
    known: dict[int, int] = {}

    def count(labels: int) -> int:
        found = known.get(labels)
        if found is None:
            found = known[labels] = math.prod(n for bit, n in size_of.items() if labels & bit)
        return found

    own = [sum(number[x] for x in set(labels)) for labels in inputs]
    wanted = sum(number[x] for x in output)
    full = (1 << len(own)) - 1
    union = [0] * (full + 1)  # the labels of a set's operands
    for part in range(1, full + 1):
        low = part & -part
        union[part] = union[part ^ low] | own[low.bit_length() - 1]
    labels = [union[part] & (wanted | union[full ^ part]) for part in range(full + 1)]  # that are left of a set
    best, written, cut = [0] * (full + 1), [0] * (full + 1), [0] * (full + 1)
    for n, each in enumerate(own):
        labels[1 << n] = each  # what it sums alone is summed when it meets another
    for part in range(1, full + 1):
        low = part & -part
        if part == low:
            continue
        left = (part - 1) & part
        found: tuple[int, int] | None = None
        elements = count(labels[part]) if part != full else 0  # the result of the whole is the same in every order
        while left:
            if left & low:  # each pair of sets once
                right = part ^ left
                met, rest = labels[left] | labels[right], labels[part]
                work = best[left] + best[right]
                if apart and (alone := met & ~rest & (labels[left] ^ labels[right])):
                    met ^= alone
                    work += cost(sum(count(labels[h]) for h in (left, right) if labels[h] & alone), False, 0)
                work += cost(count(met), met != rest, elements)
                if found is None or work <= found[0]:
                    less = work, written[left] + written[right] + elements
                    if found is None or less < found:
                        found, cut[part] = less, left
            left = (left - 1) & part
        assert found is not None
        best[part], written[part] = found
    order: list[int] = []  # sets of two or more, each after what it is made of
    stack = [full] if len(own) > 1 else []
    while stack:
        part = stack.pop()
        order.append(part)
        stack += [half for half in (cut[part], part ^ cut[part]) if half & (half - 1)]
    pending, path = [1 << n for n in range(len(own))], []
    for part in reversed(order):
        pair = sorted(pending.index(half) for half in (cut[part], part ^ cut[part]))
        for n in reversed(pair):
            del pending[n]
        pending.append(part)
        path.append(tuple(pair))
    return path


def _whole(
    path: Sequence[Sequence[int]],
    inputs: list[frozenset[str]],
    output: frozenset[str],
    sizes: Mapping[str, int],
    cost: Cost,
    apart: bool,
) -> int:
    """Return what a path costs, by the same measure."""

    def count(labels: frozenset[str]) -> int:
        return math.prod(sizes[x] for x in labels)

    pending, total = list(inputs), 0
    for pair in path:
        chosen = [pending.pop(n) for n in sorted(pair, reverse=True)]
        met = frozenset().union(*chosen)
        left = met & output.union(*pending)
        if apart and len(chosen) == 2 and (alone := (chosen[0] ^ chosen[1]) - left):
            met -= alone
            total += cost(sum(count(each) for each in chosen if each & alone), False, 0)
        total += cost(count(met), left != met, count(left) if pending else 0)
        pending.append(left)
    return total
