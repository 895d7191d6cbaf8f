"""Which nodes the native tier runs as one step, and the kernels of such steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ir import ops
from ...ir.elementwise import FUNCTIONS as ROWS
from ...ir.graph import EinsumGraph, Scan
from ...plan import patterns
from ...plan.build import ExecutionPlan, Step, lay_out
from ...plan.cost import nbytes
from ...plan.fused import Fusable, Fused
from ...plan.rows import Reading, read, row_groups
from ..base import Kernel
from ..threads import ranges, together, workers
from .build import compiled
from .rows import Source, emit
from .scan import bind_scan, loop_text
from .support import NativeWarning
from .typed import supported
from .whole import constant_type, small, write

MOST = 128  # operations of one kernel, because compiling takes time with its length
COSTLY = 10  # work per element from which a single function is worth a kernel
Array = Any


def find(graph: EinsumGraph, *, single: bool = False) -> list[Fusable]:
    """Return the nodes of a graph with known sizes that kernels run together, ``single`` ones too."""
    reading = read(graph, None, None)
    found = []
    for members in row_groups(reading, MOST, able=_able):
        op = graph.nodes[members[0]].op
        if single or len(members) > 1 or (isinstance(op, ops.Elementwise) and ROWS[op.fn].cost >= COSTLY):
            found.append(Fusable(members, patterns.title(graph.nodes, members)))
    loops = [i for i in reading.live if isinstance(op := graph.nodes[i].op, Scan) and loop_text(op) is not None]
    return found + [Fusable((i,), "scan", "scan") for i in loops]


def _able(r: Reading, i: int) -> bool:
    node = r.nodes[i]
    given = [r.nodes[a].op for a in node.args]
    literals = [op if isinstance(op, ops.Literal) else None for op in given]
    return supported(node.op, [r.types[a][0] for a in node.args], literals)


def bind_fused(step: Step, apart: Callable[[Step], Kernel]) -> Kernel:
    """Return the kernel of a fused step; where there can be none, its parts run one by one, bound by ``apart``."""
    assert isinstance(step.op, Fused)
    if step.op.kind == "whole":
        return _whole(step, step.op)
    source = emit(step) if step.op.kind == "rows" else None
    if source is not None or step.op.kind == "scan":
        try:
            return bind_scan(step.parts[0]) if source is None else _shared(step, source)
        except Exception as error:  # numba raises anything where it cannot compile
            said = f"{step.op.pattern} runs as {step.op.count} steps, because no kernel could be made of it: "
            warnings.warn(f"{said}{type(error).__name__}: {error}", NativeWarning, stacklevel=2)
    return in_turn(step, apart)


def _shared(step: Step, source: Source) -> Kernel:
    native = compiled(source.text, step.arg_types, step.types, len(source.sizes) + 2)
    shapes = [(tuple(int(d) for d in t.shape or ()), t.dtype or "float64") for t in step.types]
    sizes, places = source.sizes, source.places
    count = min(workers(), places) if step.split else 1
    parts = [(r.start, r.stop) for r in ranges(places, count)]
    single = len(shapes) == 1

    def run(*operands: Array, out: Any = None) -> Any:
        given = [x if type(x) is np.ndarray and x.flags.c_contiguous else np.asarray(x, order="C") for x in operands]
        if single:
            made = [np.empty(*shapes[0]) if out is None else out]
        else:
            targets = out or [None] * len(shapes)
            made = [np.empty(*s) if t is None else t for s, t in zip(shapes, targets, strict=True)]
        if count == 1:
            native(*given, *made, *sizes, 0, places)
        else:
            together([partial(native, *given, *made, *sizes, lo, hi) for lo, hi in parts])
        return made[0] if single else tuple(made)

    return run


def whole(graph: EinsumGraph) -> ExecutionPlan | None:
    """Return a small graph as a plan of one step; None where it is not small or cannot be one function."""
    inner = lay_out(graph, groups=partial(find, single=True))
    if not small(inner):
        return None
    literal = {slot for slot, op in inner.constants if isinstance(op, ops.Literal)}
    reads = [slot for _, slot, _ in inner.inputs] + [slot for slot, _ in inner.constants if slot not in literal]
    writes = [slot for _, slot, _ in inner.outputs]
    text = write(inner, reads)
    if text is None:
        return None
    types = [t for _, _, t in inner.inputs] + [constant_type(op) for slot, op in inner.constants if slot not in literal]
    made = [t for _, _, t in inner.outputs]
    if len(set(writes)) < len(writes) or set(writes) & set(reads):
        return None  # an output that is another, or an input
    last = inner.steps[-1]
    step = last._replace(
        op=Fused("one function", sum(len(s.parts) or 1 for s in inner.steps), "whole", (), *text),
        reads=tuple(reads), writes=tuple(writes),
        frees=(), arg_types=tuple(types), types=tuple(made), flops=inner.flops, nbytes=sum(nbytes(t) for t in made),
        form=None, bodies=(), parts=inner.steps,
    )  # fmt: skip
    return inner._replace(steps=(step,), buffers=(), shared=frozenset())


def _whole(step: Step, op: Fused) -> Kernel:
    native = compiled(op.source, step.arg_types, step.types, 0, listed=True)
    numbers = np.array(op.numbers, np.int64)
    shapes = [(tuple(int(d) for d in t.shape or ()), np.dtype(t.dtype or "float64")) for t in step.types]
    single, empty = len(shapes) == 1, np.empty

    def run(*operands: Array, out: Any = None) -> Any:
        for x in operands:
            if type(x) is not np.ndarray or not x.flags.c_contiguous:
                operands = tuple([np.asarray(x, order="C") for x in operands])
                break
        made = [empty(shape, dtype) for shape, dtype in shapes]
        native(*operands, *made, numbers)
        return made[0] if single else made

    return run


def in_turn(step: Step, apart: Callable[[Step], Kernel]) -> Kernel:
    """Return a kernel that runs the parts of a fused step one by one."""
    assert isinstance(step.op, Fused)
    kernels = [apart(part) for part in step.parts]
    rows = step.op.kind == "rows"
    literals: dict[int, Any] = {slot: op.value for slot, op in step.op.literals}

    def run(*operands: Array, out: Any = None) -> Any:
        values: dict[int, Any] = {**literals, **dict(zip(step.reads, operands, strict=True))}
        for part, kernel in zip(step.parts, kernels, strict=True):
            value = kernel(*[values[s] for s in part.reads])
            values.update(zip(part.writes, (value,) if len(part.writes) == 1 else value, strict=True))
        made = [values[s] if rows else np.array(values[s]) for s in step.writes]  # a loop may hand its operands on
        targets: Sequence[Any] = [out] if len(made) == 1 else out or [None] * len(made)
        for n, target in enumerate(targets):
            if target is not None:
                np.copyto(target, made[n])
                made[n] = target
        return made[0] if len(made) == 1 else tuple(made)

    return run
