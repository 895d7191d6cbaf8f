"""The rewrite driver: one sweep over a graph that tries rules at every node, merges equal nodes and infers types.

A rule is a function of the draft, an operation and its operands in the draft. It returns the node that does the same work
for less, made with :meth:`Draft.make` so that rules apply to it in turn, or None. Rules only ever make things smaller or
move them one way, so a sweep ends; it is linear in the size of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from ..errors import GraphError
from ..ir import ops
from ..ir.graph import EinsumGraph, Node, node_name, reachable, renumbered
from ..ir.ops import Op
from ..ir.type_rules import Inference, node_types
from ..ir.types import Equality, Results, Scope, TensorType

Pass = Callable[[EinsumGraph], EinsumGraph]
Rule = Callable[["Draft", Any, tuple[int, ...]], int | None]  # for one kind of operation
Rules = Mapping[type[Op], Sequence[Rule]]
DEPTH = 50  # rules that answer rules
MAX_LOCATIONS = 8  # that a merged node remembers


class Draft:
    """A graph while it is rewritten: equal nodes are one node, and every node has its types."""

    def __init__(self, source: EinsumGraph, rules: Rules) -> None:
        self.source, self.rules = source, rules
        self.nodes: list[Node] = []
        self.types: list[Results] = []
        self.constants = dict(source.constants)
        self.uses: list[int] = []  # how often the source reads what a node stands for; 0 of what rules made on the way
        self.equalities: list[Equality] = []
        self.origin = Node(ops.Iota(0))  # the node of the source that is being rewritten: new ones take its locations
        self._known: dict[tuple[Op, tuple[int, ...]], int] = {}
        self._depth = 0

    def op(self, i: int) -> Op:
        """Return the operation of a node."""
        return self.nodes[i].op

    def args(self, i: int) -> tuple[int, ...]:
        """Return the operands of a node."""
        return self.nodes[i].args

    def type(self, i: int) -> TensorType:
        """Return the type of a node that has one result."""
        return self.types[i][0]

    def known(self, op: Op, args: tuple[int, ...]) -> int | None:
        """Return the node of just this operation, if there is one."""
        return self._known.get((op, args))

    def results(self, op: Op, args: tuple[int, ...]) -> Results:
        """Return the types that an operation would have."""
        scope = Scope(len(self.nodes), partial(node_name, self.nodes), args, self.equalities)
        return node_types(op, [self.types[a] for a in args], scope)

    def make(self, op: Op, args: tuple[int, ...], known: Results | None = None) -> int:
        """Return the node that does this work, after every rule that applies; ``known`` are its types if at hand."""
        rules = self.rules.get(type(op), ())
        if rules and self._depth < DEPTH:
            self._depth += 1
            try:
                for rule in rules:
                    found = rule(self, op, args)
                    if found is not None:
                        return found
            finally:
                self._depth -= 1
        return self.add(op, args, known)

    def add(self, op: Op, args: tuple[int, ...], known: Results | None = None) -> int:
        """Return the node of just this operation, the one there is if there is one."""
        key = (op, args)
        i = self._known.get(key)
        if i is not None:
            had, more = self.nodes[i].locations, self.origin.locations
            if more and had != more and len(had) < MAX_LOCATIONS:
                self.nodes[i] = Node(op, args, tuple(dict.fromkeys((*had, *more)))[:MAX_LOCATIONS])
            return i
        types = self.results(op, args) if known is None else known
        i = self._known[key] = len(self.nodes)
        self.nodes.append(Node(op, args, self.origin.locations))
        self.types.append(types)
        self.uses.append(0)
        return i


def rewrite(graph: EinsumGraph, rules: Rules) -> EinsumGraph:
    """Rewrite a graph by rules and merge equal nodes; the graph itself where nothing changed.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,))
    >>> len(rewrite(b.build(y=b.exp(x) + b.exp(x)), {}))
    3
    """
    inference = graph.inference
    uses = [0] * len(graph.nodes)
    for node in graph.nodes:
        for a in node.args:
            uses[a] += 1
    for _, i in graph.outputs:
        uses[i] += 1
    draft = Draft(graph, rules)
    new: list[int] = []
    for i, node in enumerate(graph.nodes):
        args = tuple([new[a] for a in node.args])
        draft.origin = node
        same = all(draft.types[n] == inference.types[a] for n, a in zip(args, node.args, strict=True))
        number = draft.make(node.op, args, inference.types[i] if same else None)
        if draft.types[number] != inference.types[i]:
            changed = f"{node.op.name} at node %{i} from {inference.types[i][0]} to {draft.type(number)}"
            raise GraphError(f"a rewrite changed {changed}", code="E108").at(node.location)
        draft.uses[number] += uses[i]
        new.append(number)
    if len(draft.nodes) == len(graph.nodes) and all(
        a.args == b.args and a.op == b.op for a, b in zip(draft.nodes, graph.nodes, strict=True)
    ):
        return graph
    return finished(draft, new)


def finished(draft: Draft, new: Sequence[int]) -> EinsumGraph:
    """Return a draft as a graph without the nodes that nothing needs; inputs stay, because callers give them.

    ``new`` tells for each node of the source the node of the draft that stands for it.
    """
    outputs = [(name, new[i]) for name, i in draft.source.outputs]
    live = reachable(draft.nodes, [*inputs_of(draft.nodes), *(i for _, i in outputs)])
    older = [e._replace(node=new[e.node]) for e in draft.source.inference.equalities]
    known = Inference(tuple(draft.types), (*older, *draft.equalities))
    return renumbered(draft.nodes, live, outputs, draft.constants, known)


def only_with(
    *kinds: type[Op], operands: int = 0, reading: tuple[type[Op], ...] = (), dtype: str | None = None
) -> Callable[[Pass], Pass]:
    """Make a pass of a function that has nothing to do but for operations of some kinds, or for a dtype.

    The operations have so many operands, and are ``reading`` one of other kinds. A graph without them is returned as it is.
    """

    def concerns(graph: EinsumGraph) -> bool:
        if dtype is not None:
            return any(t.dtype == dtype for results in graph.inference.types for t in results)
        found = (node.args for node in graph.nodes if isinstance(node.op, kinds) and len(node.args) >= operands)
        return any(not reading or any(isinstance(graph.nodes[a].op, reading) for a in args) for args in found)

    def decorated(function: Pass) -> Pass:
        @wraps(function)
        def run(graph: EinsumGraph) -> EinsumGraph:
            return function(graph) if concerns(graph) else graph

        return run

    return decorated


def inputs_of(nodes: Sequence[Node]) -> list[int]:
    """Return the inputs among some nodes; they stay, read or not, because callers give them."""
    return [i for i, node in enumerate(nodes) if isinstance(node.op, ops.Input)]


def drop_dead(graph: EinsumGraph, *, differentiable: bool = True) -> EinsumGraph:
    """Drop nodes that no output needs; inputs stay. A graph that need not be differentiable loses its stops of gradients too.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,))
    >>> unused = b.exp(x)
    >>> graph = b.build(y=b.stop_gradient(b.sin(x)))
    >>> len(drop_dead(graph)), len(drop_dead(graph, differentiable=False))
    (3, 2)
    """
    if not differentiable:
        graph = _without_stops(graph)
    live = reachable(graph.nodes, [*inputs_of(graph.nodes), *(i for _, i in graph.outputs)])
    if len(live) == len(graph.nodes):
        return graph
    return renumbered(graph.nodes, live, graph.outputs, graph.constants, graph.__dict__.get("inference"))


def _without_stops(graph: EinsumGraph) -> EinsumGraph:
    """Let readers of a stop of gradients read its operand instead; a number is made a tensor by it, so there it stays."""
    stops = [isinstance(node.op, ops.StopGradient) and not graph.type_of(node.args[0]).weak for node in graph.nodes]
    if not any(stops):
        return graph
    source: list[int] = []  # for each node the one that its value comes from
    for i, node in enumerate(graph.nodes):
        source.append(source[node.args[0]] if stops[i] else i)
    nodes = [Node(node.op, tuple([source[a] for a in node.args]), node.locations) for node in graph.nodes]
    result = EinsumGraph(nodes, [(name, source[i]) for name, i in graph.outputs], graph.constants)
    result.inference = graph.inference
    return result


def merge_equal(graph: EinsumGraph) -> EinsumGraph:
    """Compute once what is written twice.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,))
    >>> len(merge_equal(b.build(y=b.exp(x) + b.exp(x))))
    3
    """
    return rewrite(graph, {})
