"""Cutting a graph into stages that follow each other, where the work is balanced and little has to be handed on.

A graph that goes forward through its weights and back (a training step) is folded: what goes back runs on the stage that has the
weights and the results it needs. Such a stage has two units: forward, and backward once the later stages answered. What a unit makes for
another unit of its stage is kept there; what another stage needs is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..errors import GraphError
from ..ir import ops
from ..ir.graph import EinsumGraph, Node, extract, reachable
from ..ir.types import ITEMSIZE, dims

SOURCES = (ops.Input, ops.Constant, ops.Literal, ops.Iota)  # every stage has those that it needs
SLACK = 0.25  # of a stage's work that a cut may be moved by, to where less is handed on
KEEP = "stage:keep "  # begins the names of what a unit keeps for a later unit of its stage
TOTAL = "stage:total "  # begins the names of what ranks added up over micro-batches, once all are over
SEND = "stage:send "  # begins the names of what a unit sends; the value is of no use to anybody else


class Unit(NamedTuple):
    """What a stage runs in one go: its graph, and the outputs of the whole that it makes."""

    graph: EinsumGraph
    stage: int
    outputs: tuple[str, ...]


def stage_of_unit(unit: int, stages: int) -> int:
    """Return the stage that runs a unit: forward from the first to the last, then backward to the first.

    >>> [stage_of_unit(unit, 3) for unit in range(5)]
    [0, 1, 2, 1, 0]
    """
    return unit if unit < stages else 2 * (stages - 1) - unit


def unit_of_nodes(graph: EinsumGraph, costs: Sequence[int], stages: int, rows: Collection[str] = ()) -> list[int]:
    """Return for each node the unit that runs it; ``rows`` are the inputs that come in micro-batches, the others are weights.

    >>> from tensorlogic import GraphBuilder, value_and_grad
    >>> b = GraphBuilder()
    >>> x, w, v = (b.input(name, (4, 4), "float32") for name in "xwv")
    >>> step = value_and_grad(b.build(loss=b.sum(b.tanh(x @ w) @ v)), wrt=["w", "v"])
    >>> units = unit_of_nodes(step, [1] * len(step.nodes), 2, ["x"])
    >>> [units[i] for _, i in step.outputs]
    [1, 2, 1]
    """
    return _folded(graph, costs, stages, rows) or stage_of_nodes(graph, costs, stages)


def stage_of_nodes(graph: EinsumGraph, costs: Sequence[int], count: int) -> list[int]:
    """Return for each node the stage that runs it: stretches of about equal cost, cut where little is handed on.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> y = b.input("x", (4,), "float32")
    >>> for _ in range(4):
    ...     y = b.sin(y) + 1
    >>> stage_of_nodes(b.build(y=y), [1] * 10, 2)
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    work = [0 if isinstance(node.op, SOURCES) else max(1, cost) for node, cost in zip(graph.nodes, costs, strict=True)]
    cuts = _cuts(work, _handed_on(graph, range(len(graph.nodes))), count)
    return [sum(i >= cut for cut in cuts) for i in range(len(work))]


def _cuts(work: Sequence[int], handed: Sequence[int], count: int) -> list[int]:
    """Return where to cut stretches of work: near equal shares, and there where the least is handed on."""
    places = sum(1 for cost in work if cost)
    if places < count:
        raise GraphError(
            f"a graph of {places} operations cannot be cut into {count} stages", f"use at most {places}", code="E378"
        )
    before = [0]
    for cost in work:
        before.append(before[-1] + cost)
    total, cuts, at = before[-1], [], 0
    for n in range(1, count):
        aim, slack = total * n / count, SLACK * total / count
        left = [k for k in range(at + 1, len(work)) if before[k] > before[at]]
        left = [k for k in left if sum(1 for cost in work[k:] if cost) >= count - n] or left
        window = [k for k in left if abs(before[k] - aim) <= slack]
        at = min(window or left, key=lambda k: (handed[k] if window else 0, abs(before[k] - aim)))
        cuts.append(at)
    return cuts


def _folded(graph: EinsumGraph, costs: Sequence[int], stages: int, rows: Collection[str]) -> list[int] | None:
    """Return the units of a graph that goes back through its weights; None where it does not."""
    nodes = graph.nodes
    free = _free(graph, rows)
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for a in node.args:
            if not free[i]:
                readers.setdefault(a, []).append(i)
    weights = [i for name, i in graph.inputs.items() if free[i] and i in readers and not name.startswith("%")]
    first = {readers[w][0] for w in weights}
    reached = reachable(nodes, sorted(first))
    ahead = {i for i in reached if not free[i] and not isinstance(nodes[i].op, SOURCES)}  # what runs forward
    ahead |= {i for i, node in enumerate(nodes) if isinstance(node.op, ops.Item) and node.args[0] in ahead}
    order = sorted(ahead)
    if len(order) < stages:
        return None
    place = {i: n for n, i in enumerate(order)}
    home = _homes(graph, free, readers, place)
    work = [0] * len(order)
    for i, at in home.items():
        work[at] += max(1, costs[i])
    handed = _handed_on(graph, order)
    cuts = [order[k] for k in _cuts(work, [handed[i] for i in order], stages)]
    stage = {i: sum(i >= cut for cut in cuts) for i in order}
    home = _homes(graph, free, readers, stage)
    units = [0] * len(nodes)
    for i, at in home.items():
        units[i] = at if i in ahead or at == stages - 1 else 2 * (stages - 1) - at
    return units if max(units) >= stages else None


def _free(graph: EinsumGraph, rows: Collection[str]) -> list[bool]:
    """Tell of each node whether every unit can have it by itself: it follows from weights and constants alone."""
    free: list[bool] = []
    for node in graph.nodes:
        own = isinstance(node.op, SOURCES) and getattr(node.op, "label", None) not in rows
        free.append(own or (bool(node.args) and all(free[a] for a in node.args)))
    return free


def _homes(
    graph: EinsumGraph, free: Sequence[bool], readers: dict[int, list[int]], place: dict[int, int]
) -> dict[int, int]:
    """Return the place of each node: its own going forward; coming back, the latest that has all that it reads."""
    last = max(place.values())
    # where a value is, or is handed to, going forward
    has = {i: {place[r] for r in (*readers.get(i, ()), i) if r in place} for i in range(len(graph.nodes))}
    home: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        if i in place:
            home[i] = place[i]
        elif not free[i] and not isinstance(node.op, SOURCES):
            back = [home[a] for a in node.args if a in home and a not in place]
            needs = [has[a] for a in node.args if (a in place or isinstance(graph.nodes[a].op, ops.Input)) and has[a]]
            most = min(back, default=last)
            common = set.intersection(*needs) if needs else {most}
            fit = [p for p in common if p <= most]
            home[i] = max(fit) if fit else min([most, *(min(own) for own in needs)])
    return home


def _handed_on(graph: EinsumGraph, among: Collection[int]) -> list[int]:
    """Return for each place before a node the bytes of what is made before it and read from there on, by nodes of some."""
    last = list(range(len(graph.nodes)))
    for i in among:
        for a in graph.nodes[i].args:
            last[a] = max(last[a], i)
    change = [0] * (len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.op, SOURCES) and last[i] > i:
            types = graph.inference.types[i]
            size = 1
            for d in dims(types[0]):
                size *= d
            # several are no message
            own = (1 << 62) if len(types) > 1 else size * ITEMSIZE[types[0].dtype or "float64"]
            change[i + 1] += own
            change[last[i] + 1] -= own
    found, total = [], 0
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def cut_units(graph: EinsumGraph, unit_of: Sequence[int], stages: int, rows: Collection[str] = ()) -> list[Unit]:
    """Return the units: what one makes and another reads is kept, or sent and received under the number of its node."""
    free = _free(graph, rows)
    live = set(reachable(graph.nodes, (i for _, i in graph.outputs)))
    shared = [isinstance(node.op, SOURCES) or free[i] for i, node in enumerate(graph.nodes)]
    uses: dict[tuple[int, int], set[int]] = {}  # by value and stage: the units that read it there
    for i in live:
        for a in graph.nodes[i].args:
            if not shared[a] and not shared[i]:
                uses.setdefault((a, stage_of_unit(unit_of[i], stages)), set()).add(unit_of[i])
    moves: dict[tuple[int, int], str] = {}  # by value and unit: how the unit comes by it
    gives: dict[int, list[tuple[int, str, int]]] = {}  # by unit: what it keeps or sends, and to whom
    for (a, stage), units in sorted(uses.items()):
        maker = unit_of[a]
        own = stage_of_unit(maker, stages)
        if own != stage:
            gives.setdefault(maker, []).append((a, SEND, stage))
            maker = min(units)
            moves[a, maker] = SEND
        for unit in units - {maker}:  # a stage has two units at the most
            moves[a, unit] = KEEP
            gives.setdefault(maker, []).append((a, KEEP, unit))
    found = []
    for unit in range(max(unit_of, default=0) + 1):
        found.append(_unit(graph, unit, unit_of, stages, moves, gives.get(unit, []), shared))
    return found


def _unit(
    graph: EinsumGraph,
    unit: int,
    unit_of: Sequence[int],
    stages: int,
    moves: dict[tuple[int, int], str],
    gives: Sequence[tuple[int, str, int]],
    shared: Sequence[bool],
) -> Unit:
    nodes, stage = list(graph.nodes), stage_of_unit(unit, stages)
    for (a, to), how in moves.items():
        if to == unit:
            t = graph.type_of(a)
            if how == KEEP:
                op: ops.Op = ops.Input(f"{KEEP}%{a}", t.shape, t.dtype)
            else:
                source = stage_of_unit(unit_of[a], stages)
                op = ops.Receive("stage", stages, stage, source, f"%{a}", dims(t), str(t.dtype))
            nodes[a] = Node(op, (), graph.nodes[a].locations)
    outputs = []
    for a, how, to in gives:
        if how == KEEP:
            outputs.append((f"{KEEP}%{a}", a))
        else:
            nodes.append(Node(ops.Send("stage", stages, stage, to, f"%{a}"), (a,), graph.nodes[a].locations))
            outputs.append((f"{SEND}%{a} to {to}", len(nodes) - 1))
    own = [(name, i) for name, i in graph.outputs if (unit == stages - 1 if shared[i] else unit_of[i] == unit)]
    return Unit(extract(nodes, [*own, *outputs], graph.constants), stage, tuple(name for name, _ in own))


def reductions_last(graph: EinsumGraph, totals: Mapping[str, str]) -> tuple[EinsumGraph, EinsumGraph | None]:
    """Return a graph whose outputs in ``totals`` are not yet combined over ranks, and the graph that combines them; None where there are none.

    Micro-batches add such outputs up anyway, so it is enough for ranks to meet once, after the last one.
    """
    readers = Counter(a for node in graph.nodes for a in node.args)
    readers.update(i for _, i in graph.outputs)
    outputs: list[tuple[str, int]] = []
    late: list[Node] = []
    for name, i in graph.outputs:
        op, how = graph.nodes[i].op, totals.get(name)
        if (
            isinstance(op, ops.AllReduce)
            and op.over == "data"
            and readers[i] == 1
            and op.how == _COMBINED.get(how or "", how)
        ):
            (partial,) = graph.nodes[i].args
            t = graph.type_of(partial)
            late.append(Node(ops.Input(TOTAL + name, t.shape, t.dtype), (), graph.nodes[i].locations))
            late.append(Node(op, (len(late) - 1,), graph.nodes[i].locations))
            outputs.append((name, partial))
        else:
            outputs.append((name, i))
    if not late:
        return graph, None
    every = list(graph.inputs.values())
    names = [str(node.op.label).removeprefix(TOTAL) for node in late[::2] if isinstance(node.op, ops.Input)]
    combining = EinsumGraph(late, [(name, 2 * n + 1) for n, name in enumerate(names)], {})
    return extract(graph.nodes, outputs, graph.constants, every), combining


_COMBINED = {"mean": "add"}  # how ranks combine parts of it
