"""Buffers: which memory each step writes into, so that a run allocates nothing that an earlier one already had.

A buffer is taken again once nothing reads what is in it. An element-wise step may write over an operand that it is the last
to read. Outputs never stand in a buffer: whoever holds one keeps it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ..ir import ops

if TYPE_CHECKING:
    from .build import Step

REDUCED_INTO = frozenset({"sum", "prod", "max", "min", "any", "all", "mean"})
APART = frozenset({"where"})  # writes its result in strokes, so not over an operand
WHOLE = frozenset({"godel_implies", "goguen_implies"})  # made of several arrays


def writes_into(step: Step) -> bool:
    """Tell whether a step can put its result where it is told to."""
    match step.op:
        case ops.Elementwise():
            return step.op.fn not in WHOLE
        case ops.Cast():
            return True
        case ops.Reduce():
            return step.op.kind in REDUCED_INTO
        case ops.Einsum():
            same = all(t.dtype == step.types[0].dtype and not t.weak for t in step.arg_types)
            return (
                step.form is not None and step.form.in_order and same and step.types[0].dtype not in ("bool", "float16")
            )
        case _:
            return False


def assign(
    steps: Sequence[Step], root: Sequence[int], pinned: AbstractSet[int]
) -> tuple[list[int | None], tuple[int, ...]]:
    """Return a buffer for each step, or None, and the bytes of each buffer.

    ``root`` names for each slot the slot whose memory it shows; slots whose root is pinned get memory of their own.
    """
    last: dict[int, int] = {}
    for n, step in enumerate(steps):
        for slot in (*step.reads, *step.writes):
            last[root[slot]] = n
    chosen: list[int | None] = []
    held: dict[int, int] = {}  # root slot: its buffer
    sizes: list[int] = []
    free: list[tuple[int, int]] = []  # size and number, sorted
    for n, step in enumerate(steps):
        own = step.writes[0] if step.writes else -1
        if len(step.writes) != 1 or not step.nbytes or root[own] != own or own in pinned or not writes_into(step):
            chosen.append(None)
        else:
            found = _over_operand(step, n, root, last, held)
            if found is None:
                found = _best(free, sizes, step.nbytes)
            held[own] = found
            chosen.append(found)
        for slot in {root[s] for s in (*step.reads, *step.writes)}:
            if last[slot] == n and slot in held:
                number = held.pop(slot)
                insort(free, (sizes[number], number))
    return chosen, tuple(sizes)


def _over_operand(step: Step, n: int, root: Sequence[int], last: dict[int, int], held: dict[int, int]) -> int | None:
    """Return the buffer of an operand that dies here and has just the type of the result."""
    if not isinstance(step.op, ops.Elementwise) or step.op.fn in APART:
        return None
    for slot, t in zip(step.reads, step.arg_types, strict=True):
        if root[slot] == slot and slot in held and last[slot] == n and t == step.types[0]:
            return held.pop(slot)
    return None


def _best(free: list[tuple[int, int]], sizes: list[int], need: int) -> int:
    """Take the smallest free buffer that fits; else let the largest free one grow; else begin a new one."""
    need = -(-need // 64) * 64
    at = bisect_left(free, (need, -1))
    if at < len(free):
        return free.pop(at)[1]
    if free:
        number = free.pop()[1]
        sizes[number] = need
        return number
    sizes.append(need)
    return len(sizes) - 1
