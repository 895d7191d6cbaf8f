"""Which nodes the native tier runs as one step, and the kernels of such steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import numpy as np

from ...ir import ops
from ...ir.algebra import algebra
from ...ir.elementwise import FUNCTIONS as ROWS
from ...ir.graph import EinsumGraph, Scan
from ...passes.indices import dims
from ...plan import patterns
from ...plan.build import ExecutionPlan, Step, describe, lay_out
from ...plan.contract import contraction
from ...plan.cost import nbytes
from ...plan.fused import Fusable, Fused
from ...plan.row_groups import Reading, read, row_groups
from .. import bitplan
from ..base import Kernel
from ..threads import ranges, together, workers
from . import vjp
from .build import compiled
from .rows import Source, emit
from .scan import bind_scan, loop_text
from .semiring import ROWS as ALGEBRAS
from .semiring import bind_semiring, make_ready, worth
from .support import NativeWarning
from .typed import supported
from .whole import MOST_NODES, constant_type, small, write

MOST = 128  # operations of one kernel, because compiling takes time with its length
COSTLY = 10  # work per element from which a single function is worth a kernel
KERNELS = 48  # of rows in one graph, those that do most; each takes about half a second to compile
Array = Any


def find(graph: EinsumGraph, *, single: bool = False) -> list[Fusable]:
    """Return the nodes of a graph with known sizes that kernels run together, ``single`` ones too."""
    reading = read(graph, None, None)
    found = [] if single else _bits(graph)
    taken = {i for group in found for i in group.nodes}
    if not single:
        products = _contractions(reading, taken)
        found += products
        taken.update(i for group in products for i in group.nodes)
    groups = []
    for members in row_groups(reading, MOST, able=lambda r, i: i not in taken and _able(r, i)):
        if single or len(members) > 1 or _cost(reading, members[0]) >= COSTLY:
            groups.append(members)
    for members in groups if single else _affordable(reading, groups):
        found.append(Fusable(members, patterns.title(graph.nodes, members)))
    loops = [i for i in reading.live if isinstance(op := graph.nodes[i].op, Scan) and loop_text(op) is not None]
    return found + [Fusable((i,), "scan", "scan") for i in loops]


def _cost(r: Reading, i: int) -> int:
    op = r.nodes[i].op
    return ROWS[op.fn].cost if isinstance(op, ops.Elementwise) else 1


def _affordable(r: Reading, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Leave out groups where there are too many different ones to compile, those first that do least."""
    if len(groups) <= KERNELS:
        return list(groups)
    alike: dict[Hashable, list[tuple[int, ...]]] = {}
    for members in groups:
        alike.setdefault(_likeness(r, members), []).append(members)

    def done(same: list[tuple[int, ...]]) -> int:
        return sum(r.size[i] * _cost(r, i) for members in same for i in members)

    return sorted(members for same in sorted(alike.values(), key=done, reverse=True)[:KERNELS] for members in same)


def _likeness(r: Reading, members: Sequence[int]) -> Hashable:
    """Return what is equal for groups that have one kernel: operations, dtypes, and along which axes each operand extends."""
    place = {i: n for n, i in enumerate(members)}

    def operand(a: int) -> Hashable:
        op, t = r.nodes[a].op, r.types[a][0]
        return place.get(a, op if isinstance(op, ops.Literal) else (t.dtype, tuple(d == 1 for d in t.shape or ())))

    return tuple((r.nodes[i].op, tuple(operand(a) for a in r.nodes[i].args)) for i in members)


def _bits(graph: EinsumGraph) -> list[Fusable]:
    return [Fusable(members, "on packed bits", "bits") for members in bitplan.find_bit_groups(graph)]


def _contractions(r: Reading, taken: AbstractSet[int]) -> list[Fusable]:
    """Return the einsums of Booleans and of other algebras that have a kernel and are large enough for it."""
    found = []
    for i in r.live:
        op, result = r.nodes[i].op, r.types[i][0]
        if not isinstance(op, ops.Einsum | ops.ContractVJP) or i in taken:
            continue
        args = [r.types[a][0] for a in r.nodes[i].args]
        if isinstance(op, ops.ContractVJP):
            if vjp.worth(op, args, result):
                found.append(Fusable((i,), describe(op), "algebra"))
            continue
        form = contraction(op.spec, op.algebra, [t.shape or () for t in args])  # type: ignore[misc]
        real = op.algebra in ALGEBRAS and result.dtype in ("float32", "float64") and worth(form)
        if real or bitplan.worth(op, form, args, result):
            found.append(Fusable((i,), describe(op), "algebra"))
    return found


def _able(r: Reading, i: int) -> bool:
    node = r.nodes[i]
    given = [r.nodes[a].op for a in node.args]
    literals = [op if isinstance(op, ops.Literal) else None for op in given]
    return supported(node.op, [r.types[a][0] for a in node.args], literals)


def bind_fused(step: Step, apart: Callable[[Step], Kernel]) -> Kernel:
    """Return the kernel of a fused step; where there can be none, its parts run one by one, bound by ``apart``."""
    op = step.op
    assert isinstance(op, Fused)
    try:
        kernel = _KINDS[op.kind](step)
    except Exception as error:  # numba raises anything where it cannot compile
        if op.kind == "whole":
            raise  # there is another form
        said = f"{op.pattern} runs as {op.count} steps, because no kernel could be made of it: "
        warnings.warn(f"{said}{type(error).__name__}: {error}", NativeWarning, stacklevel=2)
        kernel = None
    return in_turn(step, apart) if kernel is None else kernel


def _rows(step: Step) -> Kernel | None:
    source = emit(step)
    return None if source is None else _shared(step, source)


def _on_bits(step: Step) -> Kernel:
    assert isinstance(step.op, Fused)
    slots, held = [slot for slot, _ in step.op.literals], [np.asarray(op.value) for _, op in step.op.literals]
    kernel = bitplan.bind_bit_group(step.parts, (*step.reads, *slots), step.writes)
    return (lambda *operands: kernel(*operands, *held)) if held else kernel


def _algebra(step: Step) -> Kernel | None:
    kernel, [part] = _of_algebra(step), step.parts
    if kernel is None or part.reads == step.reads:
        return kernel
    assert isinstance(step.op, Fused)
    literals = {slot: op.value for slot, op in step.op.literals}
    places = {slot: n for n, slot in enumerate(step.reads)}  # a factor that is there twice is read once

    def run(*operands: Array, **options: Any) -> Any:
        given = [operands[places[s]] if s in places else np.asarray(literals[s]) for s in part.reads]
        return kernel(*given, **options)

    return run


def _of_algebra(step: Step) -> Kernel | None:
    [part] = step.parts
    assert isinstance(part.op, ops.Einsum | ops.ContractVJP) and part.form is not None
    if isinstance(part.op, ops.ContractVJP):
        vjp.make_ready(part.op, step.types[0].dtype or "float64")
        return vjp.bind_native_vjp(part.op, part.form, part.types[0], part.arg_types)
    if step.types[0].dtype == "bool":
        return bitplan.bind_bits(part.op, part.form, part.arg_types, part.types[0])
    make_ready(algebra(part.op.algebra), step.types[0].dtype or "float64")
    return bind_semiring(part.op, part.form, part.arg_types, part.types[0])


def _shared(step: Step, source: Source) -> Kernel:
    sizes, places = source.sizes, source.places
    count = min(workers(), places)  # imports something, and must not while a fork that waited for a compilation goes on
    count = count if step.split else 1
    native = compiled(source.text, step.arg_types, step.types, len(source.sizes) + 2)
    shapes = [(dims(t), t.dtype or "float64") for t in step.types]
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
    if len(graph.nodes) > MOST_NODES:
        return None
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


def _whole(step: Step) -> Kernel:
    op = step.op
    assert isinstance(op, Fused)
    native = compiled(op.source, step.arg_types, step.types, 0, listed=True)
    numbers = np.array(op.numbers, np.int64)
    shapes = [(dims(t), np.dtype(t.dtype or "float64")) for t in step.types]
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


def sources(plan: ExecutionPlan) -> list[str]:
    """Return the source of each fused step of a plan that has one, its bodies' too, under what it does."""
    found = []
    for step in plan.steps:
        if isinstance(step.op, Fused):
            text = _source(step, step.op)
            found += [f"# {describe(step.op)}\n{text}"] if text else []
        for body in step.bodies:
            found += sources(body)
    return found


def _source(step: Step, op: Fused) -> str:
    if op.kind == "rows":
        made = emit(step)
        return made.text if made is not None else ""
    loop = loop_text(step.parts[0].op) if op.kind == "scan" and isinstance(step.parts[0].op, Scan) else None
    return op.source if loop is None else loop.text.text


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


_KINDS: dict[str, Callable[[Step], Kernel | None]] = {
    "rows": _rows,
    "scan": lambda step: bind_scan(step.parts[0]),
    "bits": _on_bits,
    "algebra": _algebra,
    "whole": _whole,
}
