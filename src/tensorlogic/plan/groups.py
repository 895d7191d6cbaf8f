"""Which nodes run as one native step: decided here, from what a backend says its kernels can do.

One policy governs what may be compiled. ``exact``: results have NumPy's bits, and only what takes long on NumPy is compiled.
``adaptive``: the same bits, but everything that has a kernel (used for what proved hot, and for long training runs). ``fast``: everything that has a kernel;
sums may be added in another order, and functions such as exp differ in the last place or two.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from ..ir import ops
from ..ir.algebra import ALGEBRAS
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import EinsumGraph, Fixpoint, Scan
from ..ir.type_rules import reduced_axes
from ..ir.types import TensorType, dims
from .cost import FEW, LARGEST, Contraction, contraction_of, elements, in_few_slices
from .fused_steps import Fusable
from .printing import describe
from .row_groups import Footing, Group, Reading, grow_groups, read_graph, row_groups, title

if TYPE_CHECKING:
    from .build import ExecutionPlan

MOST_BITS = 256  # nodes of one group on packed bits
COSTLY = 10  # work per element from which a single function is worth a kernel
KERNELS = 48  # different row kernels in one graph, those that do most; each takes about half a second to compile
POINT = {"blocks": 3e-9, "matmul": 2.5e-11}  # seconds that NumPy takes for one point of an index space
TRUTH = 1.5e-10  # the same for blocks of truth values
GRADIENT = 4  # times what a contraction takes on NumPy, its gradient for one factor takes
SHORT = 256  # elements of a row up to which rows are added up by BLAS, where there are not a few elements only
ROUNDS = 16  # that a fixpoint is thought to take
MANY_ROWS = 4  # a closure by products multiplies all edges; sooner done where it has at least this part of as many rows
PAYS = 0.02  # seconds on NumPy from which an exact kernel is compiled for a plan that may run only once
PAYS_REORDERED = 1.0  # the same for a kernel that rounds differently
# functions whose machine code gives NumPy's bits: one or a few operations that round as the standard says, or none
EXACT_FUNCTIONS = frozenset(
    "negative absolute sign square sqrt relu step floor ceil trunc rint isnan isinf isfinite logical_not add subtract multiply "
    "divide minimum maximum lukasiewicz godel_implies goguen_implies equal not_equal less less_equal greater greater_equal "
    "logical_and logical_or logical_xor where".split()
)
EXACT_REDUCTIONS = frozenset({"max", "min", "any", "all"})


class Facts(Protocol):
    """What the kernels of a backend can do. Facts only: which of them a plan uses is decided by :func:`find_groups`."""

    def usable(self) -> bool:
        """Tell whether kernels can be compiled here; asked only once something is worth compiling."""

    def runs_in_rows(self, op: ops.Op, args: Sequence[TensorType], literals: Sequence[ops.Literal | None]) -> bool:
        """Tell whether an operation can be part of a row kernel; literals are the operands that are Python scalars."""

    def runs_on_bits(
        self, op: ops.Op, args: Sequence[TensorType], result: TensorType, form: Contraction | None
    ) -> bool:
        """Tell whether an operation on truth values runs on packed bits without unpacking anything large."""

    def joins_bits(self, op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> bool:
        """Tell whether a contraction is a join of truth values that is large enough to be packed."""

    def contracts(
        self, op: ops.Einsum | ops.ContractVJP, form: Contraction, args: Sequence[TensorType], result: TensorType
    ) -> bool:
        """Tell whether a contraction in an algebra other than the real one, or its gradient, has a kernel and is large enough."""

    def threads(self) -> int:
        """Return how many threads of our pool there are."""

    def function(self, plan: ExecutionPlan, reads: Sequence[int]) -> tuple[str, tuple[int, ...], int] | None:
        """Return a small plan as the source of one function, the numbers it takes and the bytes it works in, or None where it cannot be one."""

    def scans(self, op: Scan) -> bool:
        """Tell whether a scan can be one function."""

    def loop_on_bits(self, op: Fixpoint, args: Sequence[TensorType]) -> str | None:
        """Return how a fixpoint over truth values runs on packed bits: in ``rounds`` or, found in few products, as a ``closure``."""


def find_groups(
    graph: EinsumGraph,
    facts: Facts,
    policy: str = "fast",
    taken: AbstractSet[int] = frozenset(),
    *,
    lean: bool = False,
) -> list[Fusable]:
    """Return the nodes of a graph with known sizes that run as one native step each, none of those that are ``taken``.

    With ``lean``, joins have kernels also where those take less memory than NumPy but not less time.
    """
    reading = read_graph(graph)
    join_policy = "adaptive" if lean and policy == "exact" else policy
    groups = [g for g in _boolean_groups(reading, graph, facts, join_policy) if taken.isdisjoint(g.nodes)]
    taken = taken | {i for group in groups for i in group.nodes}
    least = 0.0 if policy != "exact" else PAYS, 0.0 if policy == "fast" else PAYS_REORDERED
    if _has(reading, ops.Cast, ops.Dequantize):
        from .small_numbers import small_number_groups  # loaded, as others, by graphs that ask for it

        groups += small_number_groups(reading, (i for _, i in graph.outputs), graph.constants, taken, least)
        taken = taken | {i for group in groups for i in group.nodes}
    groups += _contractions(reading, facts, join_policy, taken)
    fixpoints = [found for found in _fixpoints(reading, facts) if taken.isdisjoint(found[0].nodes)]
    groups += [group for group, slow, _ in fixpoints if slow or join_policy != "exact"]
    if policy != "exact" and reading.live and facts.usable():
        taken = taken | {i for group in groups for i in group.nodes}
        if _has(reading, ops.Window, ops.OverlapAdd):
            from .window_groups import window_groups

            groups += window_groups(graph, [i for i in reading.live if i not in taken])
        if policy == "fast":
            groups += _column_sums(reading, taken)
        taken = taken | {i for group in groups for i in group.nodes}
        rows = [g for g in _rows(reading, facts, policy, taken) if len(g) > 1 or _slow_on_numpy(reading, g[0])]
        groups += [Fusable(members, title(graph.nodes, members)) for members in _affordable(reading, rows)]
        if policy == "fast":
            loops = [i for i in reading.live if isinstance(op := graph.nodes[i].op, Scan) and facts.scans(op)]
            groups += [Fusable((i,), "scan", "scan") for i in loops if i not in taken]
    if groups and not facts.usable():
        groups = []
    taken = {i for group in groups for i in group.nodes}
    left = [group for group, _, closure in fixpoints if closure and not lean and taken.isdisjoint(group.nodes)]
    groups += [group._replace(pattern="closure by few products", kind="closure") for group in left]
    return [g._replace(exact=_exact(graph, g)) for g in groups]


def _exact(graph: EinsumGraph, group: Fusable) -> bool:
    """Tell whether the kernel of a group gives NumPy's bits."""
    if group.kind in ("bits", "fixpoint", "closure", "integers", "fuzzy", "windows", "overlaps"):
        return True
    if group.kind == "algebra":
        op = graph.nodes[group.nodes[0]].op
        return isinstance(op, ops.Einsum) and _exact_contraction(op, graph.type_of(group.nodes[0]))
    return group.kind == "rows" and all(_exact_in_rows(graph.nodes[i].op, graph.type_of(i)) for i in group.nodes)


def _has(r: Reading, *kinds: type[ops.Op]) -> bool:
    return any(isinstance(r.nodes[i].op, kinds) for i in r.live)


def _exact_in_rows(op: ops.Op, result: TensorType) -> bool:
    if isinstance(op, ops.Elementwise):
        return op.fn in EXACT_FUNCTIONS
    if isinstance(op, ops.Reduce):
        return op.kind in EXACT_REDUCTIONS or (op.kind == "sum" and not (result.dtype or "").startswith("float"))
    return isinstance(op, ops.Cast)


def _exact_contraction(op: ops.Einsum, result: TensorType) -> bool:
    return result.dtype == "bool" or ALGEBRAS[op.algebra].reduce in ("max", "min")


def _rows(r: Reading, facts: Facts, policy: str, taken: Iterable[int]) -> list[tuple[int, ...]]:
    used = frozenset(taken)

    def allowed(i: int) -> bool:
        return i not in used and (policy == "fast" or _exact_in_rows(r.nodes[i].op, r.types[i][0]))

    return row_groups(r, facts.runs_in_rows, allowed)


def _cost(r: Reading, i: int) -> int:
    op = r.nodes[i].op
    return FUNCTIONS[op.fn].cost if isinstance(op, ops.Elementwise) else 1


def _slow_on_numpy(r: Reading, i: int) -> bool:
    op = r.nodes[i].op
    return _cost(r, i) >= COSTLY or (isinstance(op, ops.Elementwise) and op.fn == "where")


def _column_sums(r: Reading, taken: AbstractSet[int]) -> list[Fusable]:
    """Return the sums over few elements that lie apart, and over first axes of short rows: NumPy would begin anew for every run."""
    found = []
    for i in r.live:
        op, own = r.nodes[i].op, r.types[i][0]
        if i in taken or not isinstance(op, ops.Reduce) or op.kind != "sum" or own.dtype not in ("float32", "float64"):
            continue
        whole = r.types[r.nodes[i].args[0]][0]
        axes, shape = sorted(reduced_axes(op, len(whole.shape or ()))), dims(whole)
        width = math.prod(shape[len(axes) :])
        first = axes == list(range(len(axes))) and 1 < width <= SHORT
        if whole.dtype == own.dtype and math.prod(shape) >= FEW and (first or in_few_slices(shape, axes)):
            found.append(Fusable((i,), "sum of rows" if first else "sum of slices", "sums"))
    return found


def _affordable(r: Reading, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Leave out groups where there are too many different ones to compile, those first that do least."""
    if len(groups) <= KERNELS:
        return list(groups)
    alike: dict[Hashable, list[tuple[int, ...]]] = {}
    for members in groups:
        alike.setdefault(_likeness(r, members), []).append(members)

    def work(same: list[tuple[int, ...]]) -> int:
        return sum(r.size[i] * _cost(r, i) for members in same for i in members)

    return sorted(members for same in sorted(alike.values(), key=work, reverse=True)[:KERNELS] for members in same)


def _likeness(r: Reading, members: Sequence[int]) -> Hashable:
    """Return what is equal for groups that have one kernel: operations, dtypes, and along which axes each operand extends."""
    place = {i: n for n, i in enumerate(members)}

    def operand(a: int) -> Hashable:
        op, t = r.nodes[a].op, r.types[a][0]
        return place.get(a, op if isinstance(op, ops.Literal) else (t.dtype, tuple(d == 1 for d in t.shape or ())))

    return tuple((r.nodes[i].op, tuple(operand(a) for a in r.nodes[i].args)) for i in members)


def _form(r: Reading, i: int) -> Contraction:
    form = contraction_of(r.nodes[i].op, [r.types[a][0] for a in r.nodes[i].args])
    assert form is not None
    return form


def _seconds(r: Reading, i: int) -> float:
    """Return about how long NumPy takes for a contraction."""
    form = _form(r, i)
    point = TRUTH if form.kernel == "blocks" and r.types[i][0].dtype == "bool" else POINT.get(form.kernel, 0.0)
    return point * min(math.prod(form.sizes.values()), LARGEST)


def _contractions(r: Reading, facts: Facts, policy: str, taken: Iterable[int]) -> list[Fusable]:
    """Return the contractions of Booleans and of other algebras that have a kernel and are large enough for it."""
    used, found = frozenset(taken), []
    for i in r.live:
        op, result = r.nodes[i].op, r.types[i][0]
        if not isinstance(op, ops.Einsum | ops.ContractVJP) or i in used:
            continue
        args, form = [r.types[a][0] for a in r.nodes[i].args], _form(r, i)
        seconds = _seconds(r, i) * (1 if isinstance(op, ops.Einsum) else GRADIENT)
        if policy == "exact" and seconds < min(PAYS, PAYS_REORDERED):
            continue
        if isinstance(op, ops.Einsum) and facts.joins_bits(op, form, args, result):
            exact = True
        elif facts.contracts(op, form, args, result):
            exact = isinstance(op, ops.Einsum) and _exact_contraction(op, result)
        else:
            continue
        least = 0.0 if policy == "fast" or (policy == "adaptive" and exact) else PAYS if exact else PAYS_REORDERED
        if seconds >= least:
            found.append(Fusable((i,), describe(op), "algebra"))
    return found


def _fixpoints(r: Reading, facts: Facts) -> Iterator[tuple[Fusable, bool, bool]]:
    """Yield Boolean fixpoints that run on bits, with whether they take NumPy long, and whether a few products find them sooner."""
    for i in r.live:
        op, args = r.nodes[i].op, [r.types[a][0] for a in r.nodes[i].args]
        if not isinstance(op, Fixpoint) or any(t.dtype != "bool" for t in r.types[i]):
            continue
        if how := facts.loop_on_bits(op, args):
            body = read_graph(op.body)
            joins = [n for n in body.live if isinstance(body.nodes[n].op, ops.Einsum)]
            slow = ROUNDS * sum(_seconds(body, n) for n in joins) >= PAYS
            wide = MANY_ROWS * elements(r.types[i][0]) >= max(map(elements, args))
            yield Fusable((i,), "fixpoint on packed bits", "fixpoint"), slow, wide and how == "closure"


def _boolean_groups(r: Reading, graph: EinsumGraph, facts: Facts, policy: str) -> list[Fusable]:
    """Return groups of two or more Boolean nodes that pack their operands once and unpack their results once."""
    joins = [i for i in r.live if isinstance(r.nodes[i].op, ops.Einsum) and r.types[i][0].dtype == "bool"]
    if not joins or (policy == "exact" and sum(_seconds(r, i) for i in joins) < PAYS):
        return []
    truths = {}  # nodes that read and make truth values only: the types they read, and the form of a contraction
    heavy: dict[int, float] = {}  # large joins, with seconds on NumPy
    for i in r.live:
        op, args = r.nodes[i].op, [r.types[a][0] for a in r.nodes[i].args]
        if not args or any(t.dtype != "bool" for t in (*args, *r.types[i])):
            continue
        form = _form(r, i) if isinstance(op, ops.Einsum) and len(args) in (1, 2) else None
        truths[i] = args, form
        if form is not None and isinstance(op, ops.Einsum) and facts.joins_bits(op, form, args, r.types[i][0]):
            heavy[i] = _seconds(r, i)
    if not heavy:
        return []
    able = {i for i, (args, form) in truths.items() if facts.runs_on_bits(r.nodes[i].op, args, r.types[i][0], form)}

    def fits(_: int, chosen: Sequence[Group], __: Footing) -> bool:
        return sum(len(g.members) for g in chosen) < MOST_BITS

    found = []
    for members in grow_groups(r.nodes, r.live, lambda i: (frozenset(), None) if i in able else None, fits):
        pruned = _without_edge_views(graph, members)
        seconds = sum(heavy.get(i, 0.0) for i in pruned)
        if len(pruned) > 1 and not heavy.keys().isdisjoint(pruned) and (policy != "exact" or seconds >= PAYS):
            found.append(Fusable(pruned, "on packed bits", "bits"))
    return found


def _without_edge_views(graph: EinsumGraph, members: Iterable[int]) -> tuple[int, ...]:
    """Leave out views at the edges of a group: they cost nothing as NumPy's."""
    inside = set(members)
    while True:
        read = {a for i in inside for a in graph.nodes[i].args}
        views = [i for i in inside if graph.nodes[i].op.is_view]
        edge = {i for i in views if i not in read or inside.isdisjoint(graph.nodes[i].args)}
        if not edge:
            return tuple(sorted(inside))
        inside -= edge
