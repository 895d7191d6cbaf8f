"""The plan: a graph with every size known, as a list of steps over numbered slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..diagnostics import SourceLocation, bytes_text
from ..events import Hook
from ..ir import ops
from ..ir.graph import EinsumGraph, Scan, bodies
from ..ir.ops import Op
from ..ir.types import TensorType
from ..passes.pipeline import Pass, optimize
from ..passes.specialize import specialize
from ..tables import table
from .buffers import assign, split
from .contract import Contraction, contraction, scratch_bytes
from .cost import allocates, flops, nbytes, rounds


class Step(NamedTuple):
    """One step: an operation, the slots it reads, writes and frees, and what it costs.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> plan = tl.Executor().plan(b.build(y=b.input("x", (2, 3)) @ b.input("w", (3, 4))))
    >>> plan.steps[0].kernel, plan.steps[0].flops
    ('matmul', 48)
    """

    node: int
    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    arg_types: tuple[TensorType, ...]
    types: tuple[TensorType, ...]
    flops: int
    nbytes: int
    device: str
    location: SourceLocation | None
    form: Contraction | None = None  # of an einsum
    bodies: tuple[ExecutionPlan, ...] = ()
    scratch: int = 0  # bytes it takes while it runs, beside its results
    buffer: int | None = (
        None  # the plan's buffer it writes into, or -1 - k for the array of output k; None: memory of its own
    )

    split: bool = False  # its halves run on threads of ours

    @property
    def kernel(self) -> str:
        """The word for how the step is computed."""
        return self.form.kernel if self.form else "view" if self.op.is_view else "loop" if self.bodies else "map"


class ExecutionPlan(NamedTuple):
    """A graph ready to run: steps over slots, in order. It prints as a table.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w = b.input("x", ("n", 3), "float32"), b.input("w", (3, 2), "float32")
    >>> print(tl.Executor().plan(b.build(y=b.relu(x @ w)), sizes={"n": 4}))
    step  operation         reads  frees  result          flops  bytes  device  buffer
       0  einsum ij,jk->ik  x w           %2 float32 4×2     48   32 B  cpu:0        0
       1  relu              %2     %2     y float32 4×2       8   32 B  cpu:0
    2 steps, 56 flops, peak 96 B
    """

    graph: EinsumGraph
    inputs: tuple[tuple[str, int, TensorType], ...]
    outputs: tuple[tuple[str, int, TensorType], ...]
    constants: tuple[tuple[int, Op], ...]
    steps: tuple[Step, ...]
    slots: int
    shared: frozenset[int]  # output slots whose memory belongs to an input, a constant or another output
    buffers: tuple[int, ...] = ()  # bytes of each buffer that steps write into

    @property
    def flops(self) -> int:
        """The arithmetic operations of all steps; a fixpoint counts one round, because only running tells how many."""
        return sum(
            s.flops + (rounds(s.op, s.arg_types) or 1) * max((b.flops for b in s.bodies), default=0) for s in self.steps
        )

    @property
    def peak_bytes(self) -> int:
        """The most memory that the results of steps, and what they need while running, take at one time."""
        from .memory import peak_bytes

        return peak_bytes(self)

    def slot_names(self) -> dict[int, str]:
        """Return how to call each slot in print: inputs and outputs by name, the rest by node."""
        names: dict[int, str] = {slot: str(op.value) for slot, op in self.constants if isinstance(op, ops.Literal)}
        names |= {slot: f"const.{op.digest[:6]}" for slot, op in self.constants if isinstance(op, ops.Constant)}
        for step in self.steps:
            for n, slot in enumerate(step.writes):
                names[slot] = f"%{step.node}" + (f".{n}" if len(step.writes) > 1 else "")
        names |= {slot: name for name, slot, _ in self.outputs}
        return names | {slot: name for name, slot, _ in self.inputs}

    def table(self, limit: int | None = 60) -> str:
        """Return the steps as a table; a long one shows its beginning and end."""
        names = self.slot_names()
        outputs = [name for name, _, _ in self.outputs]
        rows = [_row(n, step, names, outputs) for n, step in _chosen(self.steps, limit)]
        head = ["step", "operation", "reads", "frees", "result", "flops", "bytes", "device", "buffer"]
        lines = [table(head, rows, right={0, 5, 6, 8})]
        for n, step in _chosen(self.steps, limit):
            for body in step.bodies if step is not None else ():
                lines += [f"body of step {n}:", "  " + body.table(limit).replace("\n", "\n  ")]
        count = "1 step" if len(self.steps) == 1 else f"{len(self.steps):,} steps"
        lines.append(f"{count}, {self.flops:,} flops, peak {bytes_text(self.peak_bytes)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(self.table())}</pre>"


def _chosen(steps: Sequence[Step], limit: int | None) -> list[tuple[int, Step | None]]:
    every: list[tuple[int, Step | None]] = list(enumerate(steps))
    if limit is None or len(every) <= limit:
        return every
    half = max(0, limit) // 2
    return [*every[:half], (len(every) - 2 * half, None), *every[len(every) - half :]]


def _place(step: Step, outputs: Sequence[str]) -> str:
    """Return where a step writes: a buffer by number, the array of an output by name, or nothing of its own."""
    return "" if step.buffer is None else str(step.buffer) if step.buffer >= 0 else outputs[-1 - step.buffer]


def _row(n: int, step: Step | None, names: Mapping[int, str], outputs: Sequence[str]) -> list[str]:
    if step is None:
        return ["", f"... {n:,} more steps", "", "", "", "", "", "", ""]
    shown = " ".join(
        f"{names.get(slot, '?')} {t.dtype} {'×'.join(map(str, t.shape or ())) or 'scalar'}"
        for slot, t in zip(step.writes, step.types, strict=True)
    )
    return [
        str(n), describe(step.op), " ".join(names.get(s, "?") for s in step.reads),
        " ".join(names.get(s, "?") for s in step.frees), shown, f"{step.flops:,}",
        bytes_text(step.nbytes) if step.nbytes else "view", step.device, _place(step, outputs),
    ]  # fmt: skip


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
        case ops.Cast() | ops.Quantize():
            return f"{op.name} {op.dtype}"
        case ops.Transfer():
            return f"transfer to {op.device}"
        case _:
            return op.name


def build_plan(
    graph: EinsumGraph,
    inputs: Mapping[str, TensorType],
    sizes: Mapping[str, int] | None = None,
    *,
    passes: Sequence[Pass] = (),
    device: str = "cpu:0",
    in_place: bool = False,
    hooks: Sequence[Hook] = (),
) -> ExecutionPlan:
    """Bind sizes, run the passes and lay the graph out as steps; ``in_place`` steps write into buffers of the plan."""
    concrete = specialize(graph, inputs, sizes)
    return lay_out(optimize(concrete, passes, hooks).graph, device, in_place=in_place)


def lay_out(graph: EinsumGraph, device: str = "cpu:0", *, in_place: bool = False) -> ExecutionPlan:
    """Turn a graph whose sizes are known into a plan, its bodies too."""
    types = graph.inference.types
    slot_of: list[tuple[int, ...]] = []
    slots = 0
    constants: list[tuple[int, Op]] = []
    made: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    repeated: set[int] = set()  # views that show an element more than once, so an output must be a copy
    root: list[int] = []  # the slot whose memory a slot shares
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Item):
            slot_of.append((slot_of[node.args[0]][node.op.index],))
            continue
        own = tuple(range(slots, slots + len(types[i])))
        slots += len(own)
        root.extend(own)
        slot_of.append(own)
        if isinstance(node.op, ops.Constant | ops.Literal):
            constants.append((own[0], node.op))
        elif not isinstance(node.op, ops.Input):
            made.append((i, tuple(slot_of[a][0] for a in node.args), own))
    inputs = tuple((name, slot_of[i][0], types[i][0]) for name, i in graph.inputs.items())
    outputs = tuple((name, slot_of[i][0], types[i][0]) for name, i in graph.outputs)
    last: dict[int, int] = {}
    for n, (_, reads, writes) in enumerate(made):
        for slot in (*reads, *writes):
            last[slot] = n
    keep = {slot for _, slot, _ in (*inputs, *outputs)} | {slot for slot, _ in constants}
    dying: list[list[int]] = [[] for _ in made]
    for slot, n in last.items():
        if slot not in keep:
            dying[n].append(slot)
    devices = _devices(graph, device)
    steps = []
    for n, (i, reads, writes) in enumerate(made):
        node = graph.nodes[i]
        arg_types = tuple(types[a][0] for a in node.args)
        form = None
        if isinstance(node.op, ops.Einsum | ops.ContractVJP):
            factors = arg_types if isinstance(node.op, ops.Einsum) else arg_types[:-2]
            form = contraction(node.op.spec, node.op.algebra, [t.shape or () for t in factors])  # type: ignore[misc]
        fresh = allocates(node.op, form)
        if (not fresh or isinstance(node.op, ops.Reshape)) and reads:
            root[writes[0]] = root[reads[0]]
            if isinstance(node.op, ops.Broadcast | ops.Window) or reads[0] in repeated:
                repeated.add(writes[0])
        steps.append(Step(
            i, node.op, reads, writes, tuple(sorted(dying[n])), arg_types, types[i],
            flops(node.op, arg_types, types[i], form), sum(nbytes(t) for t in types[i]) if fresh else 0, devices[i],
            node.location, form, tuple(lay_out(b, devices[i], in_place=in_place) for b in bodies(node.op)),
            scratch_bytes(form, arg_types, types[i][0]) if form is not None else 0,
        ))  # fmt: skip
    foreign = {slot for _, slot, _ in inputs} | {slot for slot, _ in constants}
    for s in steps:
        if s.bodies:  # a body may hand its operands through, or one result twice; a scan's rows are always new
            foreign.update(s.writes[: s.op.carries] if isinstance(s.op, Scan) else s.writes)
    shared: set[int] = set()
    seen: set[int] = set()
    for _, slot, _ in outputs:
        if root[slot] in foreign or root[slot] in seen or slot in repeated:
            shared.add(slot)
        seen.add(root[slot])
    buffers: tuple[int, ...] = ()
    if in_place:
        pinned = {root[slot] for _, slot, _ in outputs}
        pinned.update(root[slot] for s in steps if s.bodies for slot in s.reads)  # a loop may hand an operand on
        times = Counter(root[slot] for _, slot, _ in outputs)
        alone = {
            slot: k
            for k, (_, slot, _) in enumerate(outputs)
            if root[slot] == slot and slot not in shared and times[slot] == 1
        }
        chosen, buffers = assign(steps, root, pinned, alone)
        steps = split([s if c is None else s._replace(buffer=c) for s, c in zip(steps, chosen, strict=True)])
    return ExecutionPlan(graph, inputs, outputs, tuple(constants), tuple(steps), slots, frozenset(shared), buffers)


def _devices(graph: EinsumGraph, first: str) -> list[str]:
    """Return where each node runs: on the first device, unless values move."""
    if not any(isinstance(node.op, ops.Transfer) for node in graph.nodes):
        return [first] * len(graph.nodes)
    from .place import step_devices

    return step_devices(graph, first)
