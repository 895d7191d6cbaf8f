"""Fusion: which nodes of a graph a plan runs as one step, and which einsums the passes make one.

Nothing here decides anything. Plans are laid out, passes are run, and what became of the nodes is read off; savings are the
difference between the steps before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple

from ..diagnostics import SourceLocation, bytes_text
from ..ir import ops
from ..ir.graph import EinsumGraph, Node, reachable
from ..passes.for_numpy import order_contractions
from ..passes.merge import merge_einsums, stack_products
from ..passes.rewrite import Pass
from ..tables import counted, table
from .build import ExecutionPlan, Groups, Step, lay_out
from .cost import nbytes
from .fused_steps import Fusable, Fused
from .groups import find_groups
from .node_costs import GIVEN, concrete, constant_nodes

EXACT: tuple[Pass, ...] = (order_contractions,)  # what every plan does
MERGING: tuple[Pass, ...] = (merge_einsums, stack_products, order_contractions)  # and what plans do that may reorder

Readers = Mapping[int, Sequence[int]]  # the nodes that read each node


def native_groups(graph: EinsumGraph) -> Sequence[Fusable]:
    """Return the nodes of a graph with known sizes that native kernels run as one step."""
    return find_groups(graph, import_module("tensorlogic.backends.native.facts").NativeFacts())


class FusionType(Enum):
    """What kind of operations a fusion joins.

    >>> [kind.name for kind in FusionType]
    ['ELEMENT_WISE', 'REDUCTION', 'EINSUM']
    """

    ELEMENT_WISE = "element-wise"
    REDUCTION = "reduction"  # element-wise operations with reductions of whole rows among them
    EINSUM = "einsum"


class Fusion(NamedTuple):
    """Nodes that become one; ``operands`` come from outside, ``results`` are read there or are outputs.

    ``kind`` says how: as one step of a native plan, by the kind of its kernel ("rows", "bits"), or as one einsum, "merged" by
    the passes of OptimizationLevel.AGGRESSIVE.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> [fusion] = tl.FusionPlanner().find_fusion_opportunities(b.build(y=b.softmax(b.input("x", ("n", 8)))))
    >>> print(fusion)
    softmax: 5 nodes %1 %2 %3 %4 %5 (reduction), 13.0 KiB less to read and write
    >>> fusion.kind, fusion.operands, fusion.results
    ('rows', (0,), (5,))
    """

    fusion_type: FusionType
    nodes: tuple[int, ...]
    pattern: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    bytes_saved: int  # read and written less in a run; a size that nobody gave counts as 64
    kind: str = "rows"

    def __str__(self) -> str:
        return (
            f"{self.pattern}: {counted(len(self.nodes), 'node')} {listed(self.nodes)} ({self.fusion_type.value}), "
            f"{bytes_text(self.bytes_saved)} less to read and write"
        )


class Replacement(NamedTuple):
    """A fusion, the steps that its nodes take one by one, and the steps that take their place."""

    fusion: Fusion
    before: tuple[Step, ...]
    after: tuple[Step, ...]


class FusionPlanner:
    """Says which nodes run together, in plans or by the passes, and why others do not.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x = b.input("x", (64, 10), "float32")
    >>> graph = b.build(y=b.exp(b.sin(b.square(x))))
    >>> planner = FusionPlanner()
    >>> [(fusion.fusion_type.name, fusion.nodes) for fusion in planner.find_fusion_opportunities(graph)]
    [('ELEMENT_WISE', (1, 2, 3))]
    >>> plan = tl.FusionOptimizer().optimize(graph).plan
    >>> [fusion.nodes for fusion in planner.find_fusion_opportunities(plan)]
    [(1, 2, 3)]
    """

    def find_fusion_opportunities(
        self,
        graph: EinsumGraph | ExecutionPlan,
        inputs: Mapping[str, Any] | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> list[Fusion]:
        """Return the fused steps of a plan; of a graph, those of its native plan and the einsums that the passes merge.

        A merged einsum may overlap with a fused step (:class:`FusionOptimizer` chooses). Bodies of loops are graphs of their own.
        """
        if isinstance(graph, ExecutionPlan):
            return [each.fusion for each in fused_steps(Planned(graph.graph, graph, follow(graph.graph, ())[1]))]
        known, _ = concrete(graph, inputs, sizes)
        return [] if known is None else [r.fusion for r in replacements(known)]

    def validate(self, graph: EinsumGraph, fusion: Fusion) -> list[str]:
        """Return why nodes cannot run as one; nothing where they can.

        >>> from tensorlogic import GraphBuilder
        >>> b = GraphBuilder()
        >>> x = b.input("x", (4, 4))
        >>> y = b.exp(x)
        >>> graph = b.build(y=y * (y @ x))
        >>> FusionPlanner().validate(graph, Fusion(FusionType.ELEMENT_WISE, (1, 3), "by hand", (0, 2), (3,), 0))
        ['it waits for itself: %2 is read by the group and depends on it']
        """
        nodes = fusion.nodes
        strange = [n for n in nodes if not 0 <= n < len(graph)]
        if strange or not nodes:
            return [f"the graph has no node %{strange[0]}" if strange else "it has no nodes"]
        if len(nodes) < 2 or tuple(sorted(set(nodes))) != nodes:
            return ["its nodes must be several, each once, in the order of the graph"]
        operands, results = boundary(graph, _readers(graph), nodes)
        after: set[int] = set()
        for i, node in enumerate(graph.nodes):
            if i not in nodes and any(a in nodes or a in after for a in node.args):
                after.add(i)
        wrong = [f"it waits for itself: %{n} is read by the group and depends on it" for n in operands if n in after]
        if wrong:
            return wrong
        together = self.find_fusion_opportunities(graph)
        if not any(set(nodes) <= set(found.nodes) for found in together):
            apart = [n for n in nodes if not any(n in found.nodes for found in together)]
            why = f"nothing runs {listed(apart)} together with other nodes" if apart else "they run as several steps"
            wrong.append(f"no step and no pass makes them one: {why}")
        for what, said, true in (("operands", fusion.operands, operands), ("results", fusion.results, results)):
            if set(said) != set(true):
                wrong.append(f"its {what} are {listed(true)}, not {listed(said)}")
        return wrong


def listed(nodes: Sequence[int], most: int = 8) -> str:
    """Return nodes as text, the first few of many.

    >>> listed([3, 4]), listed([]), listed(range(5), 2)
    ('%3 %4', 'none', '%0 %1 ...')
    """
    return (" ".join(f"%{n}" for n in nodes[:most]) or "none") + " ..." * (len(nodes) > most)


def show_fusions(fusions: Sequence[Fusion], limit: int = 60) -> str:
    """Return fusions as a table."""
    rows = [[f.pattern, f.fusion_type.value, listed(f.nodes), bytes_text(f.bytes_saved)] for f in fusions[:limit]]
    if len(fusions) > limit:
        rows.append([f"... {len(fusions) - limit:,} more", "", "", ""])
    return table(["pattern", "type", "nodes", "saves"], rows, right={3})


def follow(graph: EinsumGraph, passes: Sequence[Pass]) -> tuple[EinsumGraph, tuple[tuple[int, ...], ...]]:
    """Run passes, and return for each node of the result the node that it was and then those that it took in.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (4, 4), "float32")
    >>> follow(b.build(y=b.exp((x @ x) @ x)), [merge_einsums])[1]
    ((0,), (2, 1), (3,))
    """
    if not passes:
        return graph, tuple((i,) for i in range(len(graph)))
    marked = EinsumGraph(
        [Node(n.op, n.args, (SourceLocation(line=i),)) for i, n in enumerate(graph.nodes)],
        graph.outputs,
        graph.constants,
    )
    marked.inference = graph.inference
    for each in passes:
        marked = each(marked)
    first = [int(node.locations[0].line or 0) for node in marked.nodes]
    there = {location.line for node in marked.nodes for location in node.locations}  # equal nodes become one
    origins = []
    for own in first:
        taken, pending = dict.fromkeys([own]), [own]
        while pending:
            for a in graph.nodes[pending.pop()].args:
                if a not in there and a not in taken and not isinstance(graph.nodes[a].op, GIVEN):
                    taken[a] = None
                    pending.append(a)
        origins.append(tuple(taken))
    restored = [Node(n.op, n.args, graph.nodes[own].locations) for n, own in zip(marked.nodes, first, strict=True)]
    result = EinsumGraph(restored, marked.outputs, marked.constants)
    result.inference = marked.inference
    return result, tuple(origins)


class Planned(NamedTuple):
    """A graph, the plan that some passes and groups make of it, and the nodes that each node of the plan's graph came from."""

    graph: EinsumGraph
    plan: ExecutionPlan
    origins: tuple[tuple[int, ...], ...]  # as :func:`follow` returns them

    def steps(self) -> list[Step]:
        """Return the steps of a run; what is made of constants alone is computed beforehand."""
        fixed = constant_nodes(self.plan.graph)
        return [step for step in self.plan.steps if step.node not in fixed]

    def steps_by_node(self) -> dict[int, list[Step]]:
        """Return for each node of the graph the steps that it has become."""
        found: dict[int, list[Step]] = {}
        for step in self.steps():
            found.setdefault(self.origins[step.node][0], []).append(step)
        return found


def planned(graph: EinsumGraph, passes: Sequence[Pass], groups: Groups | None = None) -> Planned:
    """Lay out a graph with known sizes after some passes; ``groups`` tells which nodes become one step."""
    after, origins = follow(graph, passes)
    return Planned(graph, lay_out(after, groups=groups), origins)


def replacements(graph: EinsumGraph) -> list[Replacement]:
    """Return what the native plan and the passes do to a graph with known sizes, in the order of its nodes."""
    every = [*fused_steps(planned(graph, EXACT, native_groups)), *merged_einsums(graph)]
    return sorted(every, key=lambda r: (r.fusion.nodes[0], -len(r.fusion.nodes), r.fusion.pattern))


def fused_steps(source: Planned) -> list[Replacement]:
    """Return the steps of a plan that do the work of several nodes."""
    readers = _readers(source.graph)
    found = []
    for step in source.plan.steps:
        nodes = sorted({n for part in step.parts for node in _nodes_of(part) for n in source.origins[node]})
        if len(nodes) > 1 and isinstance(step.op, Fused):
            fusion = _fusion(source.graph, readers, nodes, step.op.pattern, step.op.kind)
            found.append(_replacement(fusion, step.parts, [step]))
    return found


def _nodes_of(step: Step) -> list[int]:
    return [node for part in step.parts for node in _nodes_of(part)] or [step.node]


def merged_einsums(graph: EinsumGraph) -> list[Replacement]:
    """Return the einsums of a graph with known sizes that passes make one, with the sums and transposes they take in."""
    before, after = planned(graph, EXACT), planned(graph, MERGING)
    groups: dict[tuple[int, ...], str] = {}
    products: dict[int, list[int]] = {}  # of one operand: they have become slices of one product
    for node, origin in zip(after.plan.graph.nodes, after.origins, strict=True):
        if isinstance(node.op, ops.Einsum) and len(origin) > 1:
            groups[tuple(sorted(origin))] = "einsum chain"
        elif isinstance(node.op, ops.Slice) and isinstance(graph.nodes[origin[0]].op, ops.Einsum):
            products.setdefault(node.args[0], []).append(origin[0])
    groups |= {tuple(nodes): "sibling products" for nodes in products.values()}
    readers, old, new = _readers(graph), before.steps_by_node(), after.steps_by_node()
    found = []
    for nodes, pattern in groups.items():
        steps = ([step for n in nodes for step in by_node.get(n, ())] for by_node in (old, new))
        found.append(_replacement(_fusion(graph, readers, nodes, pattern, "merged"), *steps))
    return found


def _replacement(fusion: Fusion, before: Sequence[Step], after: Sequence[Step]) -> Replacement:
    saved = sum(map(bytes_moved, before)) - sum(map(bytes_moved, after))
    return Replacement(fusion._replace(bytes_saved=saved), tuple(before), tuple(after))


def _fusion(graph: EinsumGraph, readers: Readers, nodes: Sequence[int], pattern: str, kind: str) -> Fusion:
    kinds = {type(graph.nodes[n].op) for n in nodes}
    without = FusionType.REDUCTION if ops.Reduce in kinds else FusionType.ELEMENT_WISE
    fusion_type = FusionType.EINSUM if ops.Einsum in kinds else without
    return Fusion(fusion_type, tuple(nodes), pattern, *boundary(graph, readers, nodes), 0, kind)


def boundary(graph: EinsumGraph, readers: Readers, nodes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what some nodes read from outside, and what the outside reads of them."""
    inside = set(nodes)
    operands = dict.fromkeys(a for i in nodes for a in graph.nodes[i].args if a not in inside)
    return tuple(operands), tuple(i for i in nodes if not inside.issuperset(readers.get(i, ())))


def _readers(graph: EinsumGraph) -> Readers:
    """Return the nodes that read each node, of those that outputs need; the caller, who reads outputs, is -1."""
    outputs = [i for _, i in graph.outputs]
    readers: dict[int, list[int]] = {i: [-1] for i in outputs}
    for i in reachable(graph.nodes, outputs):
        for a in graph.nodes[i].args:
            readers.setdefault(a, []).append(i)
    return readers


def bytes_moved(step: Step) -> int:
    """Return the bytes that a step reads and writes; a view moves none."""
    read = dict(zip(step.reads, step.arg_types, strict=True)).values()
    return step.nbytes + sum(nbytes(t) for t in read if not t.weak) if step.nbytes else 0
