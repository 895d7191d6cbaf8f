"""Fusion: which nodes of a graph one kernel could run together, so that what lies between them never reaches memory.

A row-wise group holds element-wise operations, casts and reductions that share their leading axes, the frame: a kernel goes
through the frame once, and for each place in it through a row. Products are not run by such a kernel; what is found about them is
the group that could follow one, products that could be one, and chains whose order could be chosen anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ..diagnostics import bytes_text
from ..ir import ops, spec
from ..ir.algebra import algebra
from ..ir.graph import EinsumGraph
from ..tables import table
from . import patterns
from .node_costs import GIVEN, counted
from .row_groups import MOST, Reading, Shape, aligned, footing, frame_of, read, row_groups

OPERANDS = 8  # of a chain of einsums, as many as are merged into one
MERGED_DTYPES = frozenset({"float32", "float64", "bool", None})  # partial results in these round as the whole does


class FusionType(Enum):
    """What kind of operations a fusion joins.

    >>> [kind.name for kind in FusionType]
    ['ELEMENT_WISE', 'REDUCTION', 'EINSUM']
    """

    ELEMENT_WISE = "element-wise"
    REDUCTION = "reduction"  # element-wise operations with reductions of whole rows among them
    EINSUM = "einsum"


class Fusion(NamedTuple):
    """Nodes that could run as one; ``operands`` come from outside, ``results`` are read there or are outputs.

    Members that run row by row have shapes that begin with the same ``frame`` axes; what follows is ``row``, or nothing
    but ones. ``frame`` is None where there are no such members.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> [found] = tl.FusionPlanner().find_fusion_opportunities(b.build(y=b.softmax(b.input("x", ("n", 8)))))
    >>> print(found)
    softmax: 5 nodes %1 %2 %3 %4 %5 (reduction), 13.0 KiB less to read and write
    >>> found.frame, found.row, found.operands, found.results
    (1, (8,), (0,), (5,))
    """

    fusion_type: FusionType
    nodes: tuple[int, ...]
    pattern: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    bytes_saved: int  # read and written less in a run; a size that nobody gave counts as 64
    frame: int | None = None
    row: Shape = ()
    repeated: tuple[int, ...] = ()  # members that are computed elsewhere too, because that is cheaper than keeping them

    def __str__(self) -> str:
        return (
            f"{self.pattern}: {counted(len(self.nodes), 'node')} {listed(self.nodes)} ({self.fusion_type.value}), "
            f"{bytes_text(self.bytes_saved)} less to read and write"
        )


class FusionPlanner:
    """Finds what could be fused, and says why a fusion would be wrong.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", (64, 10), "float32")
    >>> graph = b.build(y=b.exp(b.sin(b.square(x))))
    >>> planner = FusionPlanner()
    >>> [(found.fusion_type.name, found.nodes) for found in planner.find_fusion_opportunities(graph)]
    [('ELEMENT_WISE', (1, 2, 3))]
    """

    def find_fusion_opportunities(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> list[Fusion]:
        """Return every opportunity; some exclude each other (:class:`FusionOptimizer` chooses)."""
        return find_groups(graph, inputs, sizes=sizes)

    def validate(self, graph: EinsumGraph, fusion: Fusion) -> list[str]:
        """Return why a fusion would be wrong; nothing where it would be right."""
        return validate(graph, fusion)


def listed(nodes: Sequence[int], most: int = 8) -> str:
    """Return nodes as text, the first few of many.

    >>> listed([3, 4]), listed([]), listed(range(5), 2)
    ('%3 %4', 'none', '%0 %1 ...')
    """
    return (" ".join(f"%{n}" for n in nodes[:most]) or "none") + " ..." * (len(nodes) > most)


def show_fusions(fusions: Sequence[Fusion], limit: int = 60) -> str:
    """Return fusions as a table."""
    rows = [
        [f.pattern, f.fusion_type.value, listed(f.nodes),
         bytes_text(f.bytes_saved)]
        for f in fusions[:limit]
    ]  # fmt: skip
    if len(fusions) > limit:
        rows.append([f"... {len(fusions) - limit:,} more", "", "", ""])
    return table(["pattern", "type", "nodes", "saves"], rows, right={3})


def find_groups(
    graph: EinsumGraph,
    inputs: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    most: int = MOST,
    reductions: bool = True,
    einsums: bool = True,
) -> list[Fusion]:
    """Return what could be fused, in one sweep over the nodes. Bodies of loops are graphs of their own.

    Row-wise groups do not overlap, and there is an order in which all of them can run. Those of type EINSUM may overlap with them
    and with each other.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w, c = b.input("x", ("n", 8)), b.input("w", (8, 4)), b.input("c", (4,))
    >>> for found in find_groups(b.build(y=b.relu(b.linear(x, w, c))), sizes={"n": 1000}):
    ...     print(found)
    matmul + bias + relu: 3 nodes %3 %4 %5 (einsum), 62.5 KiB less to read and write
    element-wise chain: 2 nodes %4 %5 (element-wise), 31.2 KiB less to read and write
    """
    r = read(graph, inputs, sizes)
    groups = row_groups(r, most, reductions)
    found = [record(r, g) for g in groups if len(g) > 1]
    if einsums:
        found += [*_after_products(r, groups), *_chains(r), *_siblings(r)]
    return sorted(found, key=lambda f: (f.nodes[0], -len(f.nodes), f.pattern))


def record(r: Reading, members: Sequence[int], repeated: Sequence[int] = ()) -> Fusion:
    """Return the record of a row-wise group; ``repeated`` members give nothing to the outside."""
    shapes, axis = frozenset[Shape](), None
    for i in members:
        own = footing(r, i)
        assert not isinstance(own, str)
        shapes |= own[0]
        axis = own[1] if axis is None else axis
    frame, row = frame_of(shapes, axis) or (0, ())
    operands, results, saved = traffic(r, members, repeated)
    kind = FusionType.ELEMENT_WISE if axis is None else FusionType.REDUCTION
    name = patterns.title(r.nodes, members)
    return Fusion(kind, tuple(members), name, operands, results, saved, frame, row, tuple(repeated))


def traffic(
    r: Reading, members: Sequence[int], repeated: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return what members read from outside, what the outside reads of them, and the bytes that fusing them saves."""
    inside, again = set(members), set(repeated)
    operands = tuple(dict.fromkeys(a for i in members for a in r.nodes[i].args if a not in inside))
    results = tuple(
        i for i in members
        if i not in again and (i in r.outputs or any(reader not in inside for reader in r.readers.get(i, ())))
    )  # fmt: skip
    apart = sum(sum(r.size[a] for a in set(r.nodes[i].args)) + r.size[i] for i in members if i not in again)
    return operands, results, apart - sum(r.size[n] for n in (*operands, *results))


def _after_products(r: Reading, groups: Sequence[tuple[int, ...]]) -> list[Fusion]:
    """Return products with the groups that alone read them, and attentions."""
    found = []
    for members in groups:
        inside = set(members)
        before = [
            a for a in traffic(r, members)[0]
            if patterns.is_product(r.nodes[a].op) and a not in r.outputs and inside.issuperset(r.readers[a])
        ]  # fmt: skip
        if not before:
            continue
        whole, name = (before[0], *members), patterns.product(r.nodes, r.types, before[0], members)
        last = traffic(r, members)[1]
        if "softmax" in name and len(last) == 1 and last[0] not in r.outputs and len(r.readers[last[0]]) == 1:
            after = r.readers[last[0]][0]
            if patterns.is_product(r.nodes[after].op) and r.nodes[after].args[0] == last[0]:
                whole, name = (*whole, after), "attention"
        found.append(_einsum(r, whole, name, members))
    return found


def _einsum(r: Reading, nodes: Sequence[int], name: str, rows: Sequence[int] = ()) -> Fusion:
    ordered = tuple(sorted(nodes))
    operands, results, saved = traffic(r, ordered)
    whole = Fusion(FusionType.EINSUM, ordered, name, operands, results, saved)
    return whole._replace(frame=(part := record(r, rows)).frame, row=part.row) if rows else whole


def _chains(r: Reading) -> list[Fusion]:
    """Return einsums that flow into each other alone; merged, the best order is chosen over all of their operands."""
    end: dict[int, int] = {}  # an einsum: the last of its chain
    parts: dict[int, list[int]] = {}
    width: dict[int, int] = {}
    for i in reversed(r.live):
        if not _mergeable(r, i):
            continue
        args = len(r.nodes[i].args)
        reader = r.readers[i][0] if len(r.readers[i]) == 1 and i not in r.outputs else -1
        last = end.get(reader, -1)
        if last >= 0 and r.nodes[last].op.algebra == r.nodes[i].op.algebra and width[last] + args - 1 <= OPERANDS:  # type: ignore[attr-defined]
            end[i] = last
            parts[last].append(i)
            width[last] += args - 1
        else:
            end[i], parts[i], width[i] = i, [i], args
    return [_einsum(r, nodes, "einsum chain")._replace(bytes_saved=0) for nodes in parts.values() if len(nodes) > 1]


def _mergeable(r: Reading, i: int) -> bool:
    op = r.nodes[i].op
    if not isinstance(op, ops.Einsum) or not algebra(op.algebra).distributive:
        return False
    dtypes = {r.types[n][0].dtype for n in (i, *r.nodes[i].args)}
    return dtypes <= MERGED_DTYPES and len(dtypes) == 1


def _siblings(r: Reading) -> list[Fusion]:
    """Return products of one operand with several given matrices: stacked side by side they are one product."""
    found: dict[tuple[int, str | None], list[int]] = {}
    for i in r.live:
        node = r.nodes[i]
        if projects(node.op) and isinstance(r.nodes[node.args[1]].op, GIVEN):
            found.setdefault((node.args[0], r.types[node.args[1]][0].dtype), []).append(i)
    return [_einsum(r, nodes, "sibling products") for nodes in found.values() if len(nodes) > 1]


def projects(op: ops.Op) -> bool:
    """Tell whether an operation is x @ w over the last axis of x."""
    if not isinstance(op, ops.Einsum) or op.algebra != "real":
        return False
    form = spec.parse(op.spec)
    if len(form.inputs) != 2 or len(form.inputs[1]) != 2 or spec.ELLIPSIS in form.inputs[1]:
        return False
    left, right = form.inputs
    return left[-1:] == right[:1] and form.output == (*left[:-1], right[1]) and len(set(left)) == len(left)


def validate(graph: EinsumGraph, fusion: Fusion) -> list[str]:
    """Return why a fusion of a graph would be wrong; nothing where it would be right.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (4, 4))
    >>> y = b.exp(x)
    >>> graph = b.build(y=y * (y @ x))
    >>> validate(graph, Fusion(FusionType.ELEMENT_WISE, (1, 3), "by hand", (0, 2), (3,), 0, 2))
    ['it waits for itself: %2 is read by the group and depends on it']
    """
    r = read(graph, None, None)
    nodes = fusion.nodes
    strange = [n for n in nodes if not 0 <= n < len(graph)]
    if strange or not nodes:
        return [f"the graph has no node %{strange[0]}" if strange else "it has no nodes"]
    wrong = [f"%{n} is not needed by any output" for n in nodes if n not in r.readers]
    if len(nodes) < 2 or len(set(nodes)) < len(nodes) or tuple(sorted(nodes)) != nodes:
        wrong.append("its nodes must be several, each once, in the order of the graph")
    if not set(fusion.repeated) <= set(nodes):
        wrong.append("what it repeats is not among its nodes")
    wrong += _waits(r, fusion) if not wrong else []
    if wrong:
        return wrong
    wrong += _kinds(r, fusion) if fusion.fusion_type is FusionType.EINSUM else _rows(r, fusion)
    operands, results, _ = traffic(r, nodes, fusion.repeated)
    for what, told, true in (("operands", fusion.operands, operands), ("results", fusion.results, results)):
        if set(told) != set(true):
            wrong.append(f"its {what} are {listed(true)}, not {listed(told)}")
    return wrong


def _waits(r: Reading, fusion: Fusion) -> list[str]:
    """Say what the group reads from outside that depends on the group."""
    inside = set(fusion.nodes) - set(fusion.repeated)
    outside = traffic(r, fusion.nodes)[0]
    after: set[int] = set()
    for i in r.live:
        if i not in inside and any(a in inside or a in after for a in r.nodes[i].args):
            after.add(i)
    return [f"it waits for itself: %{n} is read by the group and depends on it" for n in outside if n in after]


def _rows(r: Reading, fusion: Fusion) -> list[str]:
    wrong, shapes, axes = [], frozenset[Shape](), set[int]()
    inside = set(fusion.nodes)
    for i in fusion.nodes:
        own = footing(r, i)
        if isinstance(own, str):
            wrong.append(f"%{i} cannot be a member: {own}")
            continue
        shapes |= own[0]
        axes |= set() if own[1] is None else {own[1]}
    if wrong:
        return wrong
    found = frame_of(shapes, next(iter(axes), None)) if len(axes) < 2 else None
    if found is None:
        return [f"its members share no frame: {', '.join(sorted(str(list(s)) for s in shapes))}"]
    if found[0]:
        for i in fusion.nodes:
            if not all(aligned(r, i, a) for a in r.nodes[i].args if a in inside):
                wrong.append(f"%{i} broadcasts a member along the frame")
    if fusion.frame != found[0] or fusion.row != found[1]:
        wrong.append(f"its frame is {found[0]} and its row {list(found[1])}, not {fusion.frame} and {list(fusion.row)}")
    return wrong


def _kinds(r: Reading, fusion: Fusion) -> list[str]:
    """Say what is wrong with a fusion around products."""
    einsums = [i for i in fusion.nodes if isinstance(r.nodes[i].op, ops.Einsum)]
    rows = [i for i in fusion.nodes if i not in einsums]
    if not einsums:
        return ["it has no einsum"]
    wrong = [f"%{i} cannot follow a product: {own}" for i in rows if isinstance(own := footing(r, i), str)]
    if rows or wrong:
        return wrong or (_rows(r, fusion._replace(nodes=tuple(rows))))
    algebras = {r.nodes[i].op.algebra for i in einsums}  # type: ignore[attr-defined]
    if len(algebras) > 1 or not algebra(next(iter(algebras))).distributive:
        return [f"its algebras are {', '.join(sorted(algebras))}: only one that distributes can be merged"]
    return []
