"""The graph: a flat tuple of nodes in topological order, immutable, compared by structure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..diagnostics import SourceLocation
from ..errors import GraphError, expect
from . import ops
from .ops import Op
from .sizes import Dim, names
from .types import Array, TensorShape, TensorType, frozen

if TYPE_CHECKING:
    from .type_rules import Inference

AxisNames = tuple[tuple[str | int, ...] | None, ...]  # for each axis the names of its elements, None where it has none
MAX_BODY_DEPTH = 32  # of bodies within bodies


class Node(msgspec.Struct, frozen=True, eq=False):
    """An operation, the nodes it reads, and the places in the user's text it came from."""

    op: Op
    args: tuple[int, ...] = ()
    locations: tuple[SourceLocation, ...] = ()

    @property
    def location(self) -> SourceLocation | None:
        """The first place the node came from."""
        return self.locations[0] if self.locations else None

    def renumbered(self, new: Mapping[int, int]) -> Node:
        """Return the same node with its arguments under other numbers."""
        return Node(self.op, tuple([new[a] for a in self.args]), self.locations)

    def __ne__(self, other: object) -> bool:  # that of msgspec does not ask __eq__
        return not self == other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.args == other.args and self.op == other.op

    def __hash__(self) -> int:
        return hash((self.op, self.args))


def _drawn(name: str, form: str) -> Callable[[EinsumGraph], str]:
    """Return a method that draws a graph; the module that does it is loaded by the first call."""

    def method(self: EinsumGraph) -> str:
        from . import draw

        return str(getattr(draw, name)(self))

    method.__name__, method.__doc__ = name, f"Return the graph as {form}."
    return method


class EinsumGraph:
    """A graph of tensor operations: what logic and neural layers both become.

    Nodes stand in topological order and arguments are node numbers. Build one with :class:`GraphBuilder`, or read
    one with :meth:`load`, :meth:`from_json` or :meth:`from_text`.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    >>> graph = b.build(y=b.relu(b.einsum("ni,ij->nj", x, w)))
    >>> graph
    <EinsumGraph (x, w) -> (y): 4 nodes>
    >>> print(graph)
    graph {
      x: any[n, 3] = input()
      w: any[3, 2] = input()
      %2: any[n, 2] = einsum(x, w, spec="ni,ij->nj")
      %3: any[n, 2] = relu(%2)
      return y=%3
    }
    """

    # no __slots__: the derived facts below are cached on first use
    checked = False  # whether its structure was looked at, and nothing was wrong
    left_out: frozenset[str] = frozenset()  # inputs that its builder declared and no output depends on

    def __init__(
        self,
        nodes: Iterable[Node],
        outputs: Iterable[tuple[str, int]],
        constants: Mapping[str, Array] | None = None,
        axis_names: Mapping[str, AxisNames] | None = None,
        scores: Iterable[str] = (),
    ) -> None:
        self.nodes = tuple(nodes)
        self.outputs = tuple(outputs)
        given = constants or {}
        used = [n.op.digest for n in self.nodes if isinstance(n.op, ops.Constant)]
        self.constants: Mapping[str, Array] = MappingProxyType({d: frozen(given[d]) for d in used if d in given})
        self.axis_names: Mapping[str, AxisNames] = MappingProxyType(dict(axis_names or {}))
        self.scores = frozenset(scores)  # inputs that are truth values from 0 to 1

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("nodes", "outputs", "constants") and name in self.__dict__:
            raise GraphError(f"a graph does not change; its {name} are fixed", "build another", code="E139")
        super().__setattr__(name, value)

    def with_axis_names(self, axis_names: Mapping[str, AxisNames]) -> EinsumGraph:
        """Return the graph with the names of the elements along the axes of inputs and outputs, by which answers are shown.

        They change nothing that is computed, and are saved with the graph.

        >>> from tensorlogic import GraphBuilder
        >>> b = GraphBuilder()
        >>> graph = b.build(y=b.relu(b.input("x", (2,)))).with_axis_names({"y": (("ann", "bob"),)})
        >>> EinsumGraph.from_json(graph.to_json()).axis_names["y"]
        (('ann', 'bob'),)
        """
        expect(axis_names, Mapping, "names of axes are by input or output", 'write {"y": (("ann", "bob"),)}')
        return self._labelled(axis_names, self.scores)

    def with_scores(self, names: Iterable[str]) -> EinsumGraph:
        """Return the graph with the names of inputs that are truth values from 0 to 1; an executor warns of others, once.

        They change nothing that is computed, and are saved with the graph. Rules in fuzzy logics have them.

        >>> from tensorlogic import GraphBuilder
        >>> b = GraphBuilder()
        >>> b.build(y=b.minimum(b.input("p", (2,)), b.input("q", (2,)))).with_scores(["p", "q"]).scores == {"p", "q"}
        True
        """
        expect(names, Iterable, "scores are names of inputs", 'write with_scores(["p"])')
        return self._labelled(self.axis_names, names)

    def _labelled(self, axis_names: Mapping[str, AxisNames], scores: Iterable[str]) -> EinsumGraph:
        """Return the same graph with other labels, and with what is known of it."""
        graph = EinsumGraph(self.nodes, self.outputs, self.constants, axis_names, scores)
        graph.checked, graph.left_out = self.checked, self.left_out
        if "inference" in self.__dict__:
            graph.inference = self.inference
        return graph

    @cached_property
    def has_bodies(self) -> bool:
        """Whether some operation holds graphs of its own."""
        return any(body_fields(type(node.op)) for node in self.nodes)

    @cached_property
    def inputs(self) -> Mapping[str, int]:
        """The inputs by name, each with its node number, in the order they were declared."""
        return MappingProxyType({n.op.label: i for i, n in enumerate(self.nodes) if isinstance(n.op, ops.Input)})

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order they were declared."""
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return [name for name, _ in self.outputs]

    @cached_property
    def inference(self) -> Inference:
        """Every node's types and the equalities between sizes that they rely on."""
        from .type_rules import infer_graph

        return infer_graph(self)

    @cached_property
    def size_names(self) -> frozenset[str]:
        """The names of sizes that the graph depends on."""
        dims: set[Dim] = {d for results in self.inference.types for t in results for d in t.shape or ()}
        dims.update(d for node in self.nodes if isinstance(node.op, ops.Slice) for d, _, _ in node.op.ranges)
        inside = {n for node in self.nodes for body in bodies(node.op) for n in body.size_names}
        return frozenset(inside).union(*(names(d) for d in dims))

    def type_of(self, node: int) -> TensorType:
        """Return the type of a node that has one result."""
        return self.inference.types[node][0]

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.outputs))

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the structure: equal graphs have equal digests, in every process."""
        from .files import structure_bytes

        return hashlib.blake2b(structure_bytes(self), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, EinsumGraph) and self.outputs == other.outputs and self.nodes == other.nodes

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __str__(self) -> str:
        return self.to_text(inline=False)

    def __repr__(self) -> str:
        return f"<EinsumGraph ({_few(self.input_names)}) -> ({_few(self.output_names)}): {len(self.nodes)} nodes>"

    def __getstate__(self) -> tuple[Any, ...]:
        # read-only mappings cannot be pickled
        return self.nodes, self.outputs, dict(self.constants), dict(self.axis_names), self.scores

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.nodes, self.outputs, constants, axis_names, self.scores = state
        self.axis_names = MappingProxyType(axis_names)
        for array in constants.values():
            array.setflags(write=False)
        self.constants = MappingProxyType(constants)

    def to_text(self, *, inline: bool = True) -> str:
        """Return text that :meth:`from_text` reads back; with ``inline=False`` large constants are only named."""
        from .text import print_graph

        return print_graph(self, inline=inline)

    @classmethod
    def from_text(cls, text: str, constants: Mapping[str, Array] | None = None) -> EinsumGraph:
        """Read a graph from its text; ``constants`` supplies, by digest, those that are only named there."""
        from .parse import parse_graph

        return parse_graph(text, constants)

    def to_json(self) -> str:
        """Return the graph as one JSON string, constants included."""
        from .files import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> EinsumGraph:
        """Read a graph from JSON: this package's or the Rust crate's. Untrusted text is safe."""
        from .files import from_json

        return from_json(text)

    def save(self, path: str | Path) -> None:
        """Write ``path`` (JSON) and, if there are constants, a safetensors file beside it."""
        from .files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> EinsumGraph:
        """Read a graph file: JSON (ours or the Rust crate's) or the text form."""
        from .files import load

        return load(path)

    to_dot = _drawn("to_dot", "Graphviz DOT")
    to_mermaid = _drawn("to_mermaid", "a Mermaid flowchart")
    to_graphml = _drawn("to_graphml", "GraphML")
    to_svg = _drawn("to_svg", "an SVG picture; needs the ``dot`` program of Graphviz")
    _repr_html_ = _drawn("to_html", "HTML, for notebooks")


def node_name(nodes: Sequence[Node], i: int) -> str:
    """Return how to call a node in a message: an input by its name, the rest by number."""
    op = nodes[i].op
    return repr(op.label) if isinstance(op, ops.Input) else f"%{i}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else ", ".join(names[:5]) + f", ... {len(names) - 5} more"


class Fixpoint(Op, frozen=True, tag="fixpoint"):
    """Apply a body to the carries until they no longer change.

    Operands and the body's inputs are the carries, then the captures. Each round a carry becomes its combination
    (replace, or, max, min) with the body's result; the loop ends when no element moved by more than the tolerance, and
    running into the round limit is an error. ``linear`` promises that the body only adds multiples of the carries to what stays the
    same, so that the changes of earlier rounds tell whether the loop can settle within its limit.
    """

    arity: ClassVar[int | None] = None
    body: EinsumGraph
    combine: str = "replace"
    tolerance: float = 0.0
    limit: int = 1_000_000
    linear: bool = False

    @property
    def carries(self) -> int:
        """The number of carries, and of results."""
        return len(self.body.outputs)


class Scan(Op, frozen=True, tag="scan"):
    """Run a body along the first axis of some operands.

    Operands are the initial carries, the tensors that are scanned, then the captures; the body's inputs are alike, one
    slice each of the scanned tensors. It returns the new carries, then what this step puts out. The results are the last
    carries and the stacked outputs.
    """

    arity: ClassVar[int | None] = None
    size_fields: ClassVar[tuple[str, ...]] = ("length",)
    body: EinsumGraph
    carries: int
    scanned: int
    length: Dim | None = None
    reverse: bool = False


class Cond(Op, frozen=True, tag="cond"):
    """Run one of two bodies; operands are a scalar truth value, then what both bodies read."""

    arity: ClassVar[int | None] = None
    then: EinsumGraph
    otherwise: EinsumGraph


_KINDS: list[type[Op]] = [t for t in vars(ops).values() if isinstance(t, type) and issubclass(t, Op)]
_KINDS += [Fixpoint, Scan, Cond]
# by name
OPS: dict[str, type[Op]] = {str(t.__struct_config__.tag): t for t in _KINDS if t not in (Op, ops.Same, ops.Collective)}


@lru_cache
def body_fields(kind: type[Op]) -> tuple[str, ...]:
    """Return the names of the fields of an operation that hold graphs."""
    types = [str(t) for base in kind.__mro__ for t in getattr(base, "__annotations__", {}).values()]
    if not issubclass(kind, Op) or not any("EinsumGraph" in t for t in types):  # resolving types takes a millisecond
        return ()
    return tuple(f.name for f in msgspec.structs.fields(kind) if f.type is EinsumGraph)


def bodies(op: Op) -> tuple[EinsumGraph, ...]:
    """Return the graphs that an operation holds."""
    return tuple([getattr(op, name) for name in body_fields(type(op))])


def meets_others(graph: EinsumGraph) -> ops.Collective | None:
    """Return an operation of a graph, or of a body in it, in which ranks meet; None where there is none."""
    for node in graph.nodes:
        if isinstance(node.op, ops.Collective):
            return node.op
        for body in bodies(node.op):
            found = meets_others(body)
            if found is not None:
                return found
    return None


def with_bodies(op: Op, new: Sequence[EinsumGraph]) -> Op:
    """Return an operation that holds other graphs."""
    return Cond(*new) if isinstance(op, Cond) else msgspec.structs.replace(op, body=new[0])


def body_types(op: Op, types: Sequence[TensorType]) -> list[TensorType]:
    """Return the types that the inputs of an operation's bodies get from its operands."""
    strong = [t._replace(weak=False) for t in types]
    if isinstance(op, Cond):
        return strong[1:]
    if isinstance(op, Scan):
        for n in range(op.carries, op.carries + op.scanned):
            shape = strong[n].shape
            strong[n] = strong[n]._replace(shape=None if shape is None else TensorShape(shape[1:]))
    return strong


def reachable(nodes: Sequence[Node], roots: Iterable[int]) -> list[int]:
    """Return, in order, the nodes that the roots depend on."""
    live = bytearray(len(nodes))
    for root in roots:
        live[root] = 1
    for i in range(len(nodes) - 1, -1, -1):
        if live[i]:
            for arg in nodes[i].args:
                live[arg] = 1
    return [i for i in range(len(nodes)) if live[i]]


def extract(
    nodes: Sequence[Node], outputs: Iterable[tuple[str, int]], constants: Mapping[str, Array], first: Sequence[int] = ()
) -> EinsumGraph:
    """Return the graph of just the nodes that some outputs need, renumbered; ``first`` come first, needed or not."""
    wanted = tuple(outputs)
    order = list(dict.fromkeys([*first, *reachable(nodes, (i for _, i in wanted))]))
    return renumbered(nodes, order, wanted, constants)


def renumbered(
    nodes: Sequence[Node],
    order: Sequence[int],
    outputs: Iterable[tuple[str, int]],
    constants: Mapping[str, Array],
    inference: Inference | None = None,
) -> EinsumGraph:
    """Return the graph of some of the nodes, in an order; ``inference`` is what is known of the types of all of them."""
    new = {old: i for i, old in enumerate(order)}
    chosen: list[Node] = []
    for node in map(nodes.__getitem__, order):
        args = tuple([new[a] for a in node.args])
        chosen.append(node if args == node.args else Node(node.op, args, node.locations))
    graph = EinsumGraph(chosen, [(name, new[i]) for name, i in outputs], constants)
    if inference is not None:  # working types out again would cost more than all the rest
        relied = dict.fromkeys(e._replace(node=new[e.node]) for e in inference.equalities if e.node in new)
        graph.inference = type(inference)(tuple([inference.types[i] for i in order]), tuple(relied))
    return graph
