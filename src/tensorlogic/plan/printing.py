"""How plans print: the table of steps, and operations in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import bytes_text
from ..ir import ops
from ..ir.ops import Op
from ..tables import table
from .fused_steps import Fused

if TYPE_CHECKING:
    from .build import ExecutionPlan, Step

STEPWISE = "one step after another"


def plan_table(plan: ExecutionPlan, limit: int | None) -> str:
    """Return the steps as a table; a long one shows its beginning and end."""
    names = plan.slot_names()
    outputs = [name for name, _, _ in plan.outputs]
    rows = [_row(n, step, names, outputs) for n, step in begin_and_end(plan.steps, limit)]
    head = ["step", "operation", "reads", "frees", "result", "flops", "bytes", "device", "buffer", "by"]
    if all(step.computed_by == "numpy" for step in plan.steps):
        head, rows = head[:-1], [row[:-1] for row in rows]
    how = "as exact as NumPy" if plan.exact else "sums reordered"
    lines = [] if plan.name == STEPWISE else [f"{plan.name}, {how}:"]
    lines.append(table(head, rows, right={0, 5, 6, 8}))
    for n, step in begin_and_end(plan.steps, limit):
        for body in step.bodies if step is not None else ():
            lines += [f"body of step {n}:", "  " + body.table(limit).replace("\n", "\n  ")]
        if step is not None and isinstance(step.op, Fused) and step.op.kind == "relations":
            lines += [f"rules of step {n}:", *(f"  {rule}" for rule in _rules(plan, step))]
    count = "1 step" if len(plan.steps) == 1 else f"{len(plan.steps):,} steps"
    lines.append(f"{count}, {plan.flops:,} flops, peak {bytes_text(plan.peak_bytes)}")
    return "\n".join(lines)


def _rules(plan: ExecutionPlan, step: Step) -> list[str]:
    """Return what a step on relations computes."""
    from .query_steps import read_step, written

    held = {s: plan.graph.constants[op.digest] for s, op in plan.constants if isinstance(op, ops.Constant)}
    names = plan.slot_names()
    numbers = {s: x for s, x in held.items() if s in step.reads and x.dtype != bool}
    return written(read_step(step, numbers), lambda slot: names.get(slot, str(slot)))


def named_by(step: Step) -> Sequence[Step]:
    """Return the steps whose nodes the results of a step are called after."""
    if isinstance(step.op, Fused) and step.op.kind == "chains":
        return [inner for body in step.bodies for inner in body.steps]
    return step.parts or (step,)


def begin_and_end(rows: Sequence[Any], limit: int | None) -> list[tuple[int, Any]]:
    """Return numbered rows; of more than ``limit`` the first and last, and None with the number of those between."""
    every: list[tuple[int, Any]] = list(enumerate(rows))
    if limit is None or len(every) <= limit:
        return every
    half = max(0, limit) // 2
    return [*every[:half], (len(every) - 2 * half, None), *every[len(every) - half :]]


def _row(n: int, step: Step | None, names: Mapping[int, str], outputs: Sequence[str]) -> list[str]:
    if step is None:
        return ["", f"... {n:,} more steps", *[""] * 8]
    shown = " ".join(
        f"{names.get(slot, '?')} {t.dtype} {'×'.join(map(str, t.shape or ())) or 'scalar'}{'' if t.layout == 'dense' else ' ' + t.layout}"
        for slot, t in zip(step.writes, step.types, strict=True)
    )
    into = " ".join("" if b is None else str(b) if b >= 0 else outputs[-1 - b] for b in step.into)
    return [
        str(n),
        describe(step.op),
        " ".join(names.get(s, "?") for s in step.reads),
        " ".join(names.get(s, "?") for s in step.frees),
        shown,
        f"{step.flops:,}",
        bytes_text(step.nbytes) if step.nbytes else "view",
        step.device,
        into,
        step.computed_by,
    ]


def describe(op: Op) -> str:
    """Return an operation in a few words.

    >>> describe(ops.Einsum("ij,jk->ik", "boolean"))
    'einsum ij,jk->ik (boolean)'
    """
    match op:
        case ops.Einsum() | ops.ContractVJP():
            return f"{op.name} {op.spec}" + ("" if op.algebra == "real" else f" ({op.algebra})")
        case ops.Reduce():
            return op.kind + ("" if op.axes is None else f" over {','.join(map(str, op.axes))}")
        case ops.Cast():
            return f"{op.name} {op.dtype}"
        case ops.Quantize():
            return f"quantize {op.kind or op.dtype}"
        case ops.Unpack():
            return f"unpack {op.kind}"
        case ops.Transfer():
            return f"transfer to {op.device}"
        case ops.Send() | ops.Receive():
            return f"{op.name} {op.label} {'to' if isinstance(op, ops.Send) else 'from'} {op.over} {op.to if isinstance(op, ops.Send) else op.source}"
        case ops.StartAllReduce() | ops.Wait():
            return f"{op.name} {op.label} over {op.over}, {op.rank} of {op.ranks}"
        case ops.Collective():
            return f"{op.name} {getattr(op, 'how', '')}".strip() + f" over {op.over}, {op.rank} of {op.ranks}"
        case Fused():
            return f"{op.pattern} ({op.count} ops)" if op.count > 1 else op.pattern
        case _:
            return op.name
