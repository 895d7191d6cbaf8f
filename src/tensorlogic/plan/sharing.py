"""Threads: how many share each step of a plan, and where BLAS keeps to one.

A function that takes many cycles an element is not bound by memory, so that its parts run side by side. A batch of small
matrix products is faster on one thread, because each would wait for the others. The numbers below are what a second thread must
have to do before it is worth waking; kernels whose work depends on what the bits are ask them again for each of their stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.algebra import ALGEBRAS
from ..ir.elementwise import FUNCTIONS
from .cost import Contraction, elements
from .fused_steps import Fused

if TYPE_CHECKING:
    from .build import Step

MANY = 1 << 18  # elements of an array from which a costly function of NumPy is shared
COSTLY = 10  # work per element from which a function is not bound by memory
SHARED = 400_000  # elements times work from which a row kernel is shared
WIDE = 30_000_000  # arithmetic operations from which a matrix product is shared
SMALL = 4_000_000  # arithmetic operations of one matrix product below which a batch of them runs on one thread
TERMS = 1 << 21  # terms of a contraction in another algebra from which it is shared: some hundred microseconds of work
TERMS_EXP = 1 << 17  # the same where each term is an exponential
THIN = 8  # rows or columns of a result with about as many exponentials to compute as it has terms
TERMS_VJP = 1 << 20  # the same of a contraction's gradient
SMALL_NUMBERS = 4_000_000  # arithmetic operations from which a product of small numbers is shared
PACKED_BYTES = 1 << 22  # truth values from which packing them is shared
ORED_ROWS = 60_000  # ORs of 16 words from which a product of packed bits is shared
DENSE = 8  # set bits of a word from which looking its digits up in tables is faster than ORing the rows it names


def on_threads(steps: Sequence[Step], threads: Callable[[], int]) -> list[Step]:
    """Give each step the number of threads that share it.

    Where NumPy's functions or row kernels are shared, every matrix product is computed on threads of ours, or on one: those of BLAS
    spin for a while after a product, and would be in the way.
    """
    shared = [_is_shared(step) for step in steps]
    count = threads() if any(shared) else 1
    ours = any(own and _spins_against(step) for step, own in zip(steps, shared, strict=True))
    found = []
    for step, own in zip(steps, shared, strict=True):
        if isinstance(step.op, ops.Einsum) and step.kernel == "matmul":
            number = _product_threads(step, count) if ours else int(small_batch(step.contraction))
        else:
            number = min(count, _places(step)) if own else 0
            kind = step.op.kind if isinstance(step.op, Fused) else ""
            number = count if kind == "ranges" else int(ours) if kind == "sums" else number  # sums are products by BLAS
        found.append(step._replace(threads=number) if number != step.threads else step)
    return found


def small_batch(form: Contraction | None) -> bool:
    """Tell whether a contraction is a batch of small matrix products."""
    if form is None:
        return False
    count = math.prod(form.sizes[x] for x in form.batch)
    return count > 1 and form.flops // count < SMALL


def work(step: Step) -> int:
    """Return the elements that a fused step computes, each times what its function costs."""
    return sum(
        max(elements(t) for t in (*part.arg_types, *part.types))
        * (FUNCTIONS[part.op.fn].cost if isinstance(part.op, ops.Elementwise) else 1)
        for part in step.parts
    )


def _spins_against(step: Step) -> bool:
    return not isinstance(step.op, Fused) or step.op.kind in ("rows", "ranges")


def _is_shared(step: Step) -> bool:
    """Tell whether a step has enough to do for several threads."""
    if isinstance(step.op, Fused):
        match step.op.kind:
            case "rows":
                return work(step) >= SHARED
            case "ranges":
                return True
            case "algebra" if step.types[0].dtype != "bool":
                return _many_terms(step.parts[0])
            case "integers" | "weights" | "fuzzy":
                return step.flops >= SMALL_NUMBERS
            case "algebra" | "bits" | "fixpoint":
                return _many_bits(step)
            case _:
                return False
    if not isinstance(step.op, ops.Elementwise) or len(step.arg_types) != 1 or not step.into:
        return False
    same = step.arg_types[0].shape == step.types[0].shape
    return same and FUNCTIONS[step.op.fn].cost >= COSTLY and elements(step.types[0]) >= MANY


def _places(step: Step) -> int:
    """Return into how many parts a shared step can be cut at the most."""
    if isinstance(step.op, Fused) and step.op.kind == "rows":
        from .row_groups import row_layout

        layout = row_layout(step)
        return 1 if layout is None else layout.places
    return elements(step.types[0])


def _product_threads(step: Step, count: int) -> int:
    """Return how many threads share the rows of a matrix product; a dot product has none."""
    form = step.contraction
    if form is None or not step.into or form.flops < WIDE or not form.spec.output:
        return 1
    return min(count, form.sizes[form.spec.output[0]]) if form.in_order and form.spec.inputs == form.labels else 1


def _many_terms(step: Step) -> bool:
    form = step.contraction
    assert form is not None and isinstance(step.op, ops.Einsum | ops.ContractVJP)
    terms = math.prod(form.sizes.values())
    if isinstance(step.op, ops.ContractVJP):
        return terms >= TERMS_VJP
    if ALGEBRAS[step.op.algebra].reduce != "logsumexp":
        return terms >= TERMS
    rows, columns = (math.prod(form.sizes[x] for x in form.spec.output if x not in own) for own in form.labels[::-1])
    return terms >= (TERMS_EXP if min(rows, columns) <= THIN else TERMS)  # else it is a matrix product of exponentials


def _many_bits(step: Step) -> bool:
    """Tell whether a step on packed bits converts much, or has a product that takes long where many bits are set."""
    most = max(map(elements, (*step.arg_types, *step.types)))
    return most >= PACKED_BYTES or any(_ored_rows(form) > ORED_ROWS for form in _contractions(step))


def _contractions(step: Step) -> Iterator[Contraction]:
    if step.contraction is not None:
        yield step.contraction
    for inner in (*step.parts, *(s for body in step.bodies for s in body.steps)):
        yield from _contractions(inner)


def _ored_rows(form: Contraction) -> int:
    """Return the ORs of 16 words that a product of packed matrices takes, all bits being set."""
    batch, left, right, inner = (
        math.prod(form.sizes[x] for x in labels) for labels in (form.batch, form.left, form.right, form.inner)
    )
    blocks = right + 1023 >> 10
    return min(batch * left * inner * blocks, batch * (inner + 63 >> 6) * (left + 30) * DENSE * blocks)
