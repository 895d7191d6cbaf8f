"""The plan: a graph with every size known, as a list of steps over numbered slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from ..diagnostics import SourceLocation
from ..errors import GraphError
from ..ir import ops
from ..ir.graph import EinsumGraph, Scan, bodies
from ..ir.ops import Op
from ..ir.types import TensorType
from ..passes.pipeline import optimize
from ..passes.rewrite import Pass
from ..passes.specialize import specialize
from ..tables import html_text
from .cost import Contraction, allocates, contraction_of, flops, nbytes, rounds, scratch_bytes
from .fused_steps import Cut, Fusable, Fused, fuse
from .memory import assign, donated, lighter, peak_bytes, written_over
from .printing import STEPWISE, named_by, plan_table
from .sharing import MANY, on_threads

POLICIES = ("exact", "fast", "adaptive")  # see :mod:`tensorlogic.plan.groups`
QUICK = 1_000_000  # arithmetic operations that take NumPy less time than compiling a kernel pays for, whatever they are
Groups = Callable[[EinsumGraph], Sequence[Fusable]]  # which nodes of a graph become one step


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
    contraction: Contraction | None = None  # of an einsum
    bodies: tuple[ExecutionPlan, ...] = ()
    scratch: int = 0  # bytes it takes while it runs, beside its results
    into: tuple[int | None, ...] = ()  # per result: a buffer, -1 - k for the array of output k, or None: new memory
    threads: int = 0  # that may share it, BLAS keeping to one; 0: NumPy and BLAS as they are, a kernel of ours on one
    parts: tuple[Step, ...] = ()  # the steps that a fused one stands for
    cut: Cut | None = None  # of a step that runs ranges of an index
    over: tuple[tuple[int, int], ...] = ()  # (operand, result), by place: the result is written over the operand

    @property
    def kernel(self) -> str:
        """The word for how the step is computed."""
        if isinstance(self.op, Fused):
            return "fused"
        if self.contraction:
            return self.contraction.kernel
        return "view" if self.op.is_view else "loop" if self.bodies else "map"

    @property
    def computed_by(self) -> str:
        """What computes the step: NumPy, or the kind of native kernel; with the threads that share it.

        ``numpy ×1`` keeps BLAS to one thread; ``numpy`` alone leaves BLAS the threads it has, other kernels alone run on one.
        """
        by = self.op.kind if isinstance(self.op, Fused) else "numpy"
        by = "bits" if by == "algebra" and self.types[0].dtype == "bool" else by
        return f"{by} ×{self.threads}" if self.threads > 1 or (self.threads and by == "numpy") else by


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
    name: str = STEPWISE  # how it runs, told apart from other plans of the same graph
    exact: bool = True  # whether every kernel gives NumPy's bits
    donors: tuple[tuple[int, int], ...] = ()  # (output, input): outputs in the array of an input that was donated

    @property
    def flops(self) -> int:
        """The arithmetic operations of all steps; a fixpoint counts one round, because only running tells how many."""
        return sum(s.flops + _body_flops(s) for s in self.steps)

    @property
    def peak_bytes(self) -> int:
        """The most memory that the results of steps, and what they need while running, take at one time."""
        return peak_bytes(self)

    def slot_names(self) -> dict[int, str]:
        """Return how to call each slot in print: inputs and outputs by name, the rest by node."""
        names: dict[int, str] = {slot: str(op.value) for slot, op in self.constants if isinstance(op, ops.Literal)}
        names |= {slot: f"const.{op.digest[:6]}" for slot, op in self.constants if isinstance(op, ops.Constant)}
        for step in (part for s in self.steps for part in named_by(s)):
            for n, slot in enumerate(step.writes):
                names[slot] = f"%{step.node}" + (f".{n}" if len(step.writes) > 1 else "")
        names |= {slot: name for name, slot, _ in self.outputs}
        return names | {slot: name for name, slot, _ in self.inputs}

    def table(self, limit: int | None = 60) -> str:
        """Return the steps as a table; a long one shows its beginning and end."""
        return plan_table(self, limit)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html_text(self)


def _body_flops(step: Step) -> int:
    """Return the arithmetic of all rounds of a loop; a fused step counts what is inside already."""
    if isinstance(step.op, Fused):
        return 0
    return (rounds(step.op, step.arg_types) or 1) * max((b.flops for b in step.bodies), default=0)


def build_plan(
    graph: EinsumGraph,
    inputs: Mapping[str, TensorType],
    sizes: Mapping[str, int] | None = None,
    *,
    passes: Sequence[Pass] = (),
    in_place: bool = False,
) -> ExecutionPlan:
    """Bind sizes, run the passes and lay the graph out as steps; ``in_place`` steps write into buffers of the plan."""
    concrete = optimize(specialize(graph, inputs, sizes), passes).graph
    again = partial(lay_out, in_place=in_place)
    return lighter(again(concrete), again) if passes else again(concrete)  # without passes it runs as it is written


def lay_out(
    graph: EinsumGraph,
    device: str = "cpu:0",
    *,
    in_place: bool = False,
    groups: Groups | None = None,
    threads: Callable[[], int] | None = None,
    donate: AbstractSet[str] = frozenset(),
    least: int = 0,
) -> ExecutionPlan:
    """Turn a graph whose sizes are known into a plan, its bodies too; ``groups`` tells which nodes become one step.

    It is asked where a graph has loops or at least ``least`` arithmetic operations. ``threads`` tells how many may share a large
    step; without it, it is left to the backend. Arrays of inputs to ``donate`` may be written over.
    """
    laid = _nodes(graph, partial(lay_out, in_place=in_place, groups=groups, threads=threads, least=least), device)
    asked = groups is not None and (graph.has_bodies or sum(s.flops for s in laid.steps) >= least)
    found = groups(graph) if asked and groups is not None else ()
    steps = fuse(laid.steps, found, graph, {slot for _, slot, _ in laid.outputs}) if found else laid.steps
    root = _roots(steps, len(laid.root)) if any(group.kind == "ranges" for group in found) else laid.root
    foreign = {slot for _, slot, _ in laid.inputs} | {slot for slot, _ in laid.constants}
    steps = freed(steps, foreign | {slot for _, slot, _ in laid.outputs})
    for s in steps:
        if s.bodies:  # a body may hand its operands through, or one result twice; a scan's rows are always new
            foreign.update(s.writes[: s.op.carries] if isinstance(s.op, Scan) else s.writes)
    shared, seen = set[int](), set[int]()
    for _, slot, _ in laid.outputs:
        if root[slot] in foreign or root[slot] in seen or slot in laid.repeated:
            shared.add(slot)
        seen.add(root[slot])
    buffers: tuple[int, ...] = ()
    donors: tuple[tuple[int, int], ...] = ()
    if in_place:
        times = Counter(root[slot] for _, slot, _ in laid.outputs)
        # a loop may hand an operand on
        pinned = times.keys() | {root[slot] for s in steps if s.bodies for slot in s.reads}
        own = {slot: k for k, (_, slot, _) in enumerate(laid.outputs) if root[slot] == slot and slot not in shared}
        alone = {slot: k for slot, k in own.items() if times[slot] == 1}
        if donate:
            donors = donated(steps, root, laid.inputs, laid.outputs, alone, donate)
            steps = written_over(steps, laid.inputs, laid.outputs, donors)
        chosen, buffers = assign(steps, root, pinned, alone, {k for k, _ in donors})
        steps = [s._replace(into=c) if c else s for s, c in zip(steps, chosen, strict=True)]
    if threads is not None and any(map(_asks_for_threads, steps)):
        steps = on_threads(steps, threads)
    exact = all(b.exact for s in steps for b in s.bodies) and all(group.exact for group in found)
    name = "native steps" if any(s.parts for s in steps) else STEPWISE
    return ExecutionPlan(
        graph,
        laid.inputs,
        laid.outputs,
        laid.constants,
        tuple(steps),
        len(root),
        frozenset(shared),
        buffers,
        name,
        exact,
        donors,
    )


def _asks_for_threads(step: Step) -> bool:
    """Tell whether a step may be shared by threads: a kernel, or much memory; batches of small products keep BLAS to one."""
    return bool(step.parts or step.nbytes >= MANY or (step.contraction is not None and step.contraction.batch))


class _Laid(NamedTuple):
    """A graph over slots, before it is known when each slot is free again."""

    inputs: tuple[tuple[str, int, TensorType], ...]
    outputs: tuple[tuple[str, int, TensorType], ...]
    constants: tuple[tuple[int, Op], ...]
    steps: list[Step]
    root: list[int]  # the slot whose memory a slot shares
    repeated: set[int]  # views that show an element more than once, so an output must be a copy


def node_slots(graph: EinsumGraph) -> list[tuple[int, ...]]:
    """Return the slots that each node's results stand in; one result of several stands where it was made."""
    slot_of: list[tuple[int, ...]] = []
    count = 0
    for node, types in zip(graph.nodes, graph.inference.types, strict=True):
        if isinstance(node.op, ops.Item):
            slot_of.append((slot_of[node.args[0]][node.op.index],))
        else:
            slot_of.append(tuple(range(count, count + len(types))))
            count += len(types)
    return slot_of


def _nodes(graph: EinsumGraph, lay_out_body: Callable[..., ExecutionPlan], device: str) -> _Laid:
    """Give every node its slots, and those that compute something a step."""
    types = graph.inference.types
    devices = step_devices(graph, device)
    slot_of = node_slots(graph)
    constants: list[tuple[int, Op]] = []
    root: list[int] = []
    repeated: set[int] = set()
    steps: list[Step] = []
    loops = graph.has_bodies
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Item):
            continue
        writes = slot_of[i]
        root.extend(writes)
        if isinstance(node.op, ops.Constant | ops.Literal):
            constants.append((writes[0], node.op))
        if isinstance(node.op, ops.Constant | ops.Literal | ops.Input):
            continue
        reads = tuple(slot_of[a][0] for a in node.args)
        arg_types = tuple(types[a][0] for a in node.args)
        form = contraction_of(node.op, arg_types)
        if form is not None and form.kernel == "view" and arg_types[0].dtype != types[i][0].dtype:
            form = form._replace(kernel="reduce")  # a cast is new memory
        fresh = allocates(node.op, form)
        if (not fresh or isinstance(node.op, ops.Reshape)) and reads:
            root[writes[0]] = root[reads[0]]
            if isinstance(node.op, ops.Broadcast | ops.Window) or reads[0] in repeated:
                repeated.add(writes[0])
        step = Step(
            node=i,
            op=node.op,
            reads=reads,
            writes=writes,
            frees=(),
            arg_types=arg_types,
            types=types[i],
            flops=flops(node.op, arg_types, types[i], form),
            nbytes=sum(nbytes(t) for t in types[i]) if fresh else 0,
            device=devices[i],
            location=node.locations[0] if node.locations else None,
            contraction=form,
            bodies=tuple([lay_out_body(body, devices[i]) for body in bodies(node.op)]) if loops else (),
            scratch=scratch_bytes(node.op, form, arg_types, types[i][0]),
        )
        steps.append(step)
    inputs = tuple((name, slot_of[i][0], types[i][0]) for name, i in graph.inputs.items())
    outputs = tuple((name, slot_of[i][0], types[i][0]) for name, i in graph.outputs)
    return _Laid(inputs, outputs, tuple(constants), steps, root, repeated)


def _roots(steps: Sequence[Step], slots: int) -> list[int]:
    """Return the slot whose memory each slot shares, where ranges are joined: what they make is new memory, also of what is a view inside."""
    root = list(range(slots))
    for step in steps:
        if not step.parts and step.reads and (not step.nbytes or isinstance(step.op, ops.Reshape)):
            root[step.writes[0]] = root[step.reads[0]]
    return root


def freed(steps: Sequence[Step], keep: AbstractSet[int]) -> list[Step]:
    """Tell each step which slots nobody reads after it."""
    last: dict[int, int] = {}
    for n, step in enumerate(steps):
        for slot in (*step.reads, *step.writes):
            last[slot] = n
    dying: list[list[int]] = [[] for _ in steps]
    for slot, n in last.items():
        if slot not in keep:
            dying[n].append(slot)
    return [s._replace(frees=tuple(sorted(d))) if d else s for s, d in zip(steps, dying, strict=True)]


def step_devices(graph: EinsumGraph, first: str = "cpu:0") -> list[str]:
    """Return the device of every node: a transfer's own, otherwise where the operands are; inputs are on the ``first``.

    What depends on constants alone is wherever it is read, as they are; it counts to the first.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> moved = b.apply(ops.Transfer("cpu:1"), b.input("x", (3,)))
    >>> step_devices(b.build(y=moved + 1))
    ['cpu:0', 'cpu:1', 'cpu:0', 'cpu:1']
    """
    if not any(isinstance(node.op, ops.Transfer) for node in graph.nodes):
        return [first] * len(graph.nodes)
    devices: list[str | None] = []  # None: anywhere
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Transfer | ops.Input):
            devices.append(node.op.device if isinstance(node.op, ops.Transfer) else first)
            continue
        at = dict.fromkeys(d for d in (devices[a] for a in node.args) if d is not None)
        if len(at) > 1:
            clash = f"{node.op.name} (node %{i}) reads from {' and '.join(at)}"
            hint = "put a transfer before it, as PlacementPlan.apply does"
            raise GraphError(clash, hint, code="E336").at(node.location)
        devices.append(next(iter(at), None))
    return [first if d is None else d for d in devices]
