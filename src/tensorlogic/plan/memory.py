"""Memory of a plan: when each slot lives, which buffer a step writes into, the most that is alive at once, and whether that much is there.

A buffer is taken again once nothing reads what is in it, so that a run allocates nothing that an earlier one already had. An element-wise step
may write over an operand that it is the last to read. Outputs never stand in a buffer: whoever holds one keeps it.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import MemoryDiagnostic
from ..errors import OutOfMemoryError
from ..ir import ops
from ..ir.graph import EinsumGraph, Fixpoint, Scan
from ..ir.types import TensorType
from .cost import elements, nbytes
from .fused_steps import Fused
from .printing import describe

if TYPE_CHECKING:
    from .build import ExecutionPlan, Step

MOST = 20_000  # nodes up to which an order is looked for; it takes about as long as laying out the plan
LEAST = 1 << 20  # bytes at once from which it is worth the time
VIEWS = (ops.Transpose, ops.Slice, ops.Broadcast, ops.Window)  # what may leave values that do not lie in order
COPIED = 1 << 12  # bytes of such a value from which it is asked who copies it


def lifetimes(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """Return, for every slot that a step writes, the first and last step it is alive at.

    A slot whose memory a view still shows lives as long as the view; an output lives to the end.
    """
    spans: dict[int, tuple[int, int]] = {}
    owner: dict[int, int] = {}
    end = len(plan.steps)
    copies: frozenset[int] = frozenset()
    if any(isinstance(step.op, ops.Reshape) for step in plan.steps):
        from .layout import copying_reshapes

        copies = copying_reshapes(plan)
    for n, step in enumerate(plan.steps):
        fresh = step.nbytes > 0 and (n in copies or not isinstance(step.op, ops.Reshape))
        for slot in step.writes:
            source = owner.get(step.reads[0]) if not fresh and step.reads else None
            if source is not None:
                owner[slot] = source
            elif fresh:
                owner[slot] = slot
                spans[slot] = (n, n)
        for slot in (*step.reads, *step.writes):
            if slot in owner:
                spans[owner[slot]] = (spans[owner[slot]][0], n)
    for _, slot, _ in plan.outputs:
        if slot in owner:
            spans[owner[slot]] = (spans[owner[slot]][0], end)
    return spans


def peak_bytes(plan: ExecutionPlan) -> int:
    """Return the most bytes that results of steps and their scratch take at once; inputs and constants are the caller's."""
    size: dict[int, int] = {}
    for step in plan.steps:
        for n, (slot, t) in enumerate(zip(step.writes, step.types, strict=True)):
            size[slot] = nbytes(t) if step.nbytes and not (step.into and step.into[n] is not None) else 0
    change = [0] * (len(plan.steps) + 2)
    for slot, (first, last) in lifetimes(plan).items():
        change[first] += size[slot]
        change[last + 1] -= size[slot]
    early = {-1 - b for s in plan.steps for b in s.into if b is not None and b < 0}  # outputs that wait to be written
    alive = peak = sum(plan.buffers) + sum(nbytes(plan.outputs[k][2]) for k in early)
    copied: Mapping[int, int] = {}
    if any((isinstance(s.op, VIEWS) or s.kernel == "view") and nbytes(s.types[0]) >= COPIED for s in plan.steps):
        from .layout import copied_operands

        copied = copied_operands(plan)
    for n, step in enumerate(plan.steps):
        alive += change[n]
        peak = max(peak, alive + _inside(step) + step.scratch + _ordering(step) + copied.get(n, 0))
    kept = alive + change[len(plan.steps)] if plan.steps else 0  # and what copies of shared outputs take
    return max(peak, kept + sum(nbytes(t) for _, slot, t in plan.outputs if slot in plan.shared))


def _ordering(step: Step) -> int:
    """Return what a step takes that sorts places: those of every element, counted from either end, before it has a result."""
    op = step.op
    descending = isinstance(op, ops.TopK) or (isinstance(op, ops.Sort) and op.indices and op.descending)
    return max(0, 16 * elements(step.arg_types[0]) - step.nbytes) if descending else 0


def _inside(step: Step) -> int:
    """Return the most that the bodies of a step take, and what a fixpoint needs between two rounds."""
    if isinstance(step.op, Fused):
        return 0  # what its plans take is part of its scratch memory
    most = max((peak_bytes(body) for body in step.bodies), default=0)
    if isinstance(step.op, Fixpoint):
        state = sum(map(nbytes, step.types))
        bits = max(map(elements, step.types), default=0)  # where a carry stayed as it was, and where it is NaN
        gap = max(map(nbytes, step.types), default=0) if step.op.tolerance else 0
        joined = 0 if step.op.combine == "replace" else state
        most = max(most, sum(step.bodies[0].buffers) + state + max(joined, gap + 2 * bits))
    return most


def largest_step(plan: ExecutionPlan) -> Step | None:
    """Return the step whose results take the most memory."""
    return max(plan.steps, key=lambda s: s.nbytes, default=None)


def check_memory(plan: ExecutionPlan, limit: int | None) -> None:
    """Refuse a plan that would take more memory than there is, before anything is allocated."""
    available = available_memory() if limit is None else limit
    needed = plan.peak_bytes
    if needed <= available:
        return
    found = MemoryDiagnostic.out_of_memory(needed, available, wide=has_wide_types(plan.graph))
    step = largest_step(plan)
    if step is not None:
        shapes = ", ".join(str(t) for t in step.types)
        found = found.with_context(f"the largest result is {shapes}, of {describe(step.op)}")
        if step.location is not None:
            found = found.with_location(step.location)
    raise OutOfMemoryError.of(found)


def has_wide_types(graph: EinsumGraph) -> bool:
    """Tell whether a graph has numbers of eight bytes, which could be narrower."""
    return any(t.dtype in ("float64", "int64", "uint64") for own in graph.inference.types for t in own)


def available_memory() -> int:
    """Return the bytes of memory that are free for use now, swap not counted."""
    free = _number("/proc/meminfo", "MemAvailable:")
    if free is not None:
        return min(free * 1024, _container_memory())
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62  # nobody can say: leave it to the allocator


def _container_memory() -> int:
    """Return what a container's limit leaves, where there is one."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        files = _number("/sys/fs/cgroup/memory.stat", "inactive_file ") or 0  # which the system lets go of when asked
        return max(0, int(text) - int(used.read_text()) + files)
    return 1 << 62


def _number(path: str, word: str) -> int | None:
    """Return the number that a file of the system has in the line of a word."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith(word)), None)


def lighter(plan: ExecutionPlan, lay_out: Callable[[EinsumGraph], ExecutionPlan]) -> ExecutionPlan:
    """Return the plan, or the one that ``lay_out`` makes of the same graph in an order with a smaller peak.

    Both are laid out and compared, so that the answer is never worse; where the new order would take more steps, because
    less of it runs together, the old one stays.
    """
    before = peak_bytes(plan)
    if len(plan.graph.nodes) > MOST or before < LEAST:
        return plan
    from ..passes.pipeline import optimize
    from .schedule import frugal_order

    graph = optimize(plan.graph, (frugal_order,)).graph  # the bodies of loops too
    if graph is plan.graph:
        return plan
    other = lay_out(graph)
    return other if peak_bytes(other) < before and len(other.steps) <= len(plan.steps) else plan


REDUCED_INTO = frozenset({"sum", "prod", "max", "min", "any", "all", "mean"})
# kinds of fused steps that write where they are told
WRITING = frozenset({"rows", "algebra", "ranges", "windows", "overlaps", "sums"})
LARGE = 1 << 16  # bytes from which an output's array is made before the run: the caller's, or the last one
APART = frozenset({"where"})  # writes its result in strokes, so not over an operand
WHOLE = frozenset({"godel_implies", "goguen_implies"})  # made of several arrays


def writes_into(step: Step) -> bool:
    """Tell whether a step can put its result where it is told to."""
    match step.op:
        case ops.Elementwise():
            return step.op.fn not in WHOLE
        case ops.Cast() | ops.Pad() | ops.OverlapAdd() | ops.StartAllReduce():
            return True
        case Fused():
            single = step.op.kind in ("integers", "weights", "fuzzy") and len(step.writes) == 1
            return step.op.kind in WRITING or single
        case ops.Reduce():
            return step.op.kind in REDUCED_INTO
        case ops.Einsum() if step.contraction is not None and step.contraction.in_order:
            dtype = step.types[0].dtype
            return dtype not in ("bool", "float16") and all(t.dtype == dtype and not t.weak for t in step.arg_types)
        case _:
            return False


def assign(
    steps: Sequence[Step],
    root: Sequence[int],
    pinned: AbstractSet[int],
    outputs: Mapping[int, int] | None = None,
    early: AbstractSet[int] = frozenset(),
) -> tuple[list[tuple[int | None, ...]], tuple[int, ...]]:
    """Return for each step a buffer or None per result, and the bytes of each buffer; -1 - k is the array of output k itself.

    ``root`` names for each slot the slot whose memory it shows; slots whose root is pinned get memory of their own.
    ``outputs`` tells of slots that an output is and nothing else shows: which output. Those in ``early`` have an array before the
    run whatever their size.
    """
    last: dict[int, int] = {}
    for n, step in enumerate(steps):
        for slot in (*step.reads, *step.writes):
            last[root[slot]] = n
    direct = _towards(steps, root, pinned, last, outputs or {}, early)
    chosen: list[tuple[int | None, ...]] = []
    held: dict[int, int] = {}  # root slot: its buffer
    sizes: list[int] = []
    free: list[tuple[int, int]] = []  # size and number, sorted
    for n, step in enumerate(steps):
        able = bool(step.nbytes) and writes_into(step)
        into: list[int | None] = []
        for slot, t in zip(step.writes, step.types, strict=True):
            if slot in direct:
                into.append(-1 - direct[slot])
            elif not able or root[slot] != slot or slot in pinned or not nbytes(t):
                into.append(None)
            else:
                found = _over_operand(step, n, root, last, held)
                if found is None:
                    found = _best(free, sizes, nbytes(t))
                held[slot] = found
                into.append(found)
        chosen.append(tuple(into) if any(b is not None for b in into) else ())
        for slot in {root[s] for s in (*step.reads, *step.writes)}:
            if last[slot] == n and slot in held:
                number = held.pop(slot)
                insort(free, (sizes[number], number))
    return chosen, tuple(sizes)


def _towards(
    steps: Sequence[Step],
    root: Sequence[int],
    pinned: AbstractSet[int],
    last: Mapping[int, int],
    outputs: Mapping[int, int],
    early: AbstractSet[int],
) -> dict[int, int]:
    """Return the slots that are written into the array of an output: itself, and what it is computed from in place."""
    maker = {slot: n for n, step in enumerate(steps) for slot in step.writes}
    found: dict[int, int] = {}
    for slot, k in outputs.items():
        n = maker.get(slot)
        if n is None or not writes_into(steps[n]) or (steps[n].nbytes < LARGE and k not in early):
            continue
        found[slot] = k
        while k not in early and n is not None and _element_by_element(steps[n]):
            step, n = steps[n], None
            for r, t in zip(step.reads, step.arg_types, strict=True):
                before = maker.get(r)
                if before is None or root[r] != r or r in pinned or r in found or t != step.types[0]:
                    continue
                if steps[last[r]] is step and writes_into(steps[before]):
                    found[r], n = k, before
                    break
    return found


def _over_operand(step: Step, n: int, root: Sequence[int], last: dict[int, int], held: dict[int, int]) -> int | None:
    """Return the buffer of an operand that dies here and has just the type of the result."""
    for slot, t in zip(step.reads, step.arg_types, strict=True) if _element_by_element(step) else ():
        if root[slot] == slot and slot in held and last[slot] == n and t == step.types[0]:
            return held.pop(slot)
    return None


def _element_by_element(step: Step) -> bool:
    return isinstance(step.op, ops.Elementwise) and step.op.fn not in APART


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


def donated(
    steps: Sequence[Step],
    root: Sequence[int],
    inputs: Sequence[tuple[str, int, TensorType]],
    outputs: Sequence[tuple[str, int, TensorType]],
    alone: Mapping[int, int],
    donate: AbstractSet[str],
) -> tuple[tuple[int, int], ...]:
    """Return which outputs are written into the array of which donated input, by number.

    An output takes an input of its own type that nothing reads after the step that writes the output; where that step reads it
    too, the step must go through both element by element. Results of a loop may show its operands.
    """
    writer = {slot: n for n, step in enumerate(steps) for slot in step.writes}
    shows: dict[int, set[int]] = {slot: {slot} for _, slot, _ in inputs}  # the inputs that a slot may show
    last: dict[int, int] = {}
    for n, step in enumerate(steps):
        read = set().union(*(shows.get(root[s], ()) for s in step.reads))
        last.update(dict.fromkeys(read, n))
        if step.bodies and read:
            shows.update((slot, read) for slot in _handed_on(step))
    shown = set().union(*(shows.get(root[slot], ()) for _, slot, _ in outputs))
    pairs, taken = [], set[int]()
    for number, (name, slot, t) in enumerate(inputs):
        if name not in donate or slot in shown:
            continue
        for k, (_, out, own) in enumerate(outputs):
            if out not in alone or k in taken or own != t or out not in writer:
                continue
            n = writer[out]
            after = last.get(slot, -1)
            if writes_into(steps[n]) and (after < n or (after == n and _over_itself(steps[n], slot, root, shows))):
                pairs.append((k, number))
                taken.add(k)
                break
    return tuple(pairs)


def _handed_on(step: Step) -> Sequence[int]:
    """Return the results of a loop that may be its operands: of a scan, carries that its body hands on, or all if it has no rounds."""
    if not isinstance(step.op, Scan):
        return step.writes
    carries, body = step.op.carries, step.bodies[0]
    rows = step.arg_types[carries].shape if step.op.scanned else (step.op.length,)
    if not rows or not isinstance(rows[0], int) or rows[0] < 1:
        return step.writes[:carries]
    return [w for w, (_, out, _) in zip(step.writes[:carries], body.outputs, strict=False) if out in body.shared]


def _over_itself(step: Step, slot: int, root: Sequence[int], shows: Mapping[int, AbstractSet[int]]) -> bool:
    """Tell whether a step may write its results over an operand: it reads element i of it only to compute elements i."""
    if any(slot in shows.get(root[s], ()) and s != slot for s in step.reads):
        return False
    if isinstance(step.op, Fused):
        return step.op.kind == "rows" and _one_by_one(step)
    return _element_by_element(step)


def _one_by_one(step: Step) -> bool:
    """Tell whether a fused step goes through all its arrays together, element by element; scalars it may have at once."""
    shape, inside = step.types[0].shape, {slot for p in step.parts for slot in p.writes}
    if any(t.shape != shape for t in step.types):
        return False
    for p in step.parts:
        operands = [t for s, t in zip(p.reads, p.arg_types, strict=True) if s not in inside]
        if not isinstance(p.op, ops.Elementwise | ops.Cast) or p.types[0].shape != shape:
            return False
        if any(t.shape != shape and elements(t) != 1 for t in operands):
            return False
    return True


def written_over(
    steps: Sequence[Step],
    inputs: Sequence[tuple[str, int, TensorType]],
    outputs: Sequence[tuple[str, int, TensorType]],
    donors: Sequence[tuple[int, int]],
) -> list[Step]:
    """Mark the operands of steps that the step's own results are written over: inputs that were donated."""
    writer = {slot: n for n, step in enumerate(steps) for slot in step.writes}
    found = list(steps)
    for k, number in donors:
        n, slot = writer[outputs[k][1]], inputs[number][1]
        step = found[n]
        if slot in step.reads:
            pair = step.reads.index(slot), step.writes.index(outputs[k][1])
            found[n] = step._replace(over=(*step.over, pair))
    return found
