"""The Rust crate's JSON, read as a graph of ours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import GraphError, TensorLogicError, nearest
from . import ops, spec
from .elementwise import FUNCTIONS
from .graph import EinsumGraph, Node
from .ops import Op
from .untrusted_text import convert


class _Node(msgspec.Struct):
    op: dict[str, dict[str, Any]]
    inputs: list[int] = []
    outputs: list[int] = []


class _File(msgspec.Struct):
    tensors: list[str]
    nodes: list[_Node]
    inputs: list[int] = []
    outputs: list[int] = []


Emit = Callable[..., int]  # (op or function name, *args) -> node


def _one_minus(e: Emit, a: int) -> int:
    return e("subtract", e(ops.Literal.of(1.0)), a)


# words are compared without case and underscores; our own element-wise functions are known by their names too
_WORDS = (
    "neg=negative negate=negative abs=absolute asin=arcsin acos=arccos atan=arctan round=rint recip=reciprocal sqr=square "
    "not=oneminus sub=subtract mul=multiply and=multiply div=divide pow=power min=minimum max=maximum or=maximum "
    "ormax=maximum orprobabilistic=orprobsum eq=equal ne=not_equal neq=not_equal lt=less lessthan=less gt=greater "
    "greaterthan=greater lte=less_equal le=less_equal lessthanorequal=less_equal gte=greater_equal ge=greater_equal "
    "greaterthanorequal=greater_equal"
)
_ALIASES = dict(pair.split("=") for pair in _WORDS.split())
_ALIASES |= {fn.replace("_", ""): fn for fn, row in FUNCTIONS.items() if row.arity < 3}
_TRUTHS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}  # 0.0 and 1.0 there, bool here
_FORMULAS: dict[str, tuple[int, Callable[..., int]]] = {
    "oneminus": (1, _one_minus),
    "orprobsum": (2, lambda e, a, b: e("subtract", e("add", a, b), e("multiply", a, b))),
    "nand": (2, lambda e, a, b: _one_minus(e, e("multiply", a, b))),
    "nor": (2, lambda e, a, b: _one_minus(e, e("maximum", a, b))),
    "xor": (
        2,
        lambda e, a, b: e("subtract", e("add", a, b), e("multiply", e(ops.Literal.of(2.0)), e("multiply", a, b))),
    ),
}
_REDUCTIONS = {"product": "prod", **{kind: kind for kind in ops.REDUCTIONS}}
# the key of the word that says more, and the number of operands
_KINDS = {"Einsum": ("spec", None), "ElemUnary": ("op", 1), "ElemBinary": ("op", 2), "Reduce": ("op", 1)}


def from_rust(raw: Any) -> EinsumGraph:
    """Turn parsed JSON of the Rust crate, whose tensors have names but no shapes, into a graph; every node is kept.

    >>> node = {"op": {"ElemUnary": {"op": "relu"}}, "inputs": [0], "outputs": [1]}
    >>> from_rust({"tensors": ["x", "y"], "nodes": [node], "outputs": [1]})
    <EinsumGraph (x) -> (y): 2 nodes>
    """
    file: _File = convert(raw, _File, "$")
    count = len(file.tensors)

    def within(i: int, path: str) -> int:
        if not 0 <= i < count:
            raise _bad("E201", f"tensor {i} does not exist", path, f"there are {count} tensors, counted from 0")
        return i

    maker: dict[int, int] = {}
    for k, node in enumerate(file.nodes):
        for n, i in enumerate(node.inputs):
            within(i, f"$.nodes[{k}].inputs[{n}]")
        if len(node.outputs) != 1:
            raise _bad(
                "E212",
                f"node {k} makes {len(node.outputs)} tensors",
                f"$.nodes[{k}].outputs",
                "a node makes one tensor",
            )
        result = within(node.outputs[0], f"$.nodes[{k}].outputs[0]")
        if maker.setdefault(result, k) != k:
            raise _bad(
                "E211",
                f"tensor {file.tensors[result]!r} is made by node {maker[result]} and by node {k}",
                f"$.nodes[{k}].outputs[0]",
                "give one of them a tensor of its own",
            )
    read = dict.fromkeys(i for node in file.nodes for i in node.inputs)
    declared = [within(i, f"$.inputs[{n}]") for n, i in enumerate(file.inputs)]
    declared = declared or [i for i in sorted(read) if i not in maker]
    read.update(dict.fromkeys(within(i, f"$.outputs[{n}]") for n, i in enumerate(file.outputs)))
    known = set(declared)
    _distinct([file.tensors[i] for i in declared], "$.inputs", "E205")
    _distinct([file.tensors[i] for i in file.outputs], "$.outputs", "E204")
    for i in declared:
        if i in maker:
            raise _bad(
                "E211",
                f"input {file.tensors[i]!r} is also made by node {maker[i]}",
                "$.inputs",
                'take it out of "inputs", or give the node a tensor of its own',
            )
    for i in read:
        if i not in known and i not in maker:
            raise _bad(
                "E201",
                f"tensor {file.tensors[i]!r} (number {i}) is read, but no node makes it",
                "$.nodes",
                f'add {i} to "inputs", or a node that makes it',
            )
    if not file.outputs:
        raise _bad("E140", "the graph has no outputs", "$.outputs", 'list the tensors it is for in "outputs"')

    nodes: list[Node] = [Node(ops.Input(file.tensors[i])) for i in declared]
    place = {i: n for n, i in enumerate(declared)}

    def emit(op: Op | str, *args: int) -> int:
        nodes.append(Node(ops.Elementwise(op) if isinstance(op, str) else op, args))
        return len(nodes) - 1

    for k in _order(file, maker):
        node = file.nodes[k]
        place[node.outputs[0]] = _node(node, [place[i] for i in node.inputs], emit, f"$.nodes[{k}].op")
    return EinsumGraph(nodes, [(file.tensors[i], place[i]) for i in file.outputs])


def _distinct(names: list[str], path: str, code: str) -> None:
    seen: set[str] = set()
    for n, name in enumerate(names):
        if name in seen:
            raise _bad(code, f"the name {name!r} stands there twice", f"{path}[{n}]", "rename one of the tensors")
        seen.add(name)


def _order(file: _File, maker: Mapping[int, int]) -> list[int]:
    """Return the nodes so that each comes after those it reads, otherwise as they stand in the file."""
    try:
        return dependency_order(
            range(len(file.nodes)), lambda k: (maker[i] for i in file.nodes[k].inputs if i in maker)
        )
    except CycleError as error:
        names = [file.tensors[file.nodes[n].outputs[0]] for n in error.args[0]]
        back = [*names[:-6:-1], "...", *names[5::-1]] if len(names) > 12 else names[::-1]
        raise _bad(
            "E202",
            f"the graph has a cycle: {' -> '.join([names[0], *back])}",
            f"$.nodes[{error.args[0][0]}]",
            "a tensor cannot depend on itself; use a fixpoint",
        ) from None


def _node(node: _Node, args: list[int], emit: Emit, path: str) -> int:
    kind = next(iter(node.op), "")
    if len(node.op) != 1 or kind not in _KINDS:
        raise _bad("E126", f"unknown kind of op {', '.join(node.op)!r}", path, *nearest(kind, _KINDS))
    fields, (key, arity) = node.op[kind], _KINDS[kind]
    word = fields.get(key)
    if not isinstance(word, str):
        raise _bad("E225", f"{kind} needs {key!r}, a string", f"{path}.{kind}", f"such as {{{key!r}: 'sum'}}")
    if arity is None:
        try:
            return emit(ops.Einsum(str(spec.parse(word))), *args)
        except TensorLogicError as error:
            error.diagnostic = error.diagnostic.with_context(f"at {path}.Einsum.spec")
            raise
    if len(args) != arity:
        raise _bad("E105", f"{word} takes {arity} operand(s), got {len(args)}", path, f'list {arity} in "inputs"')
    small = word.lower().replace("_", "")
    if kind == "Reduce":
        if small not in _REDUCTIONS:
            raise _bad("E126", f"unknown reduction {word!r}", f"{path}.Reduce.op", *nearest(small, _REDUCTIONS))
        axes: tuple[int, ...] = convert(fields.get("axes", ()), tuple[int, ...], f"{path}.Reduce.axes")
        return emit(ops.Reduce(_REDUCTIONS[small], axes), *args)
    function = _function(small, arity)
    if function is None:
        known = [w for w in (*_FORMULAS, *_ALIASES) if _function(w, arity)]
        raise _bad("E126", f"unknown {kind} op {word!r}", f"{path}.{kind}.op", *nearest(small, known))
    return function(emit, *args)


def _function(word: str, arity: int) -> Callable[..., int] | None:
    """Return what emits the nodes of a word, None where no function of so many operands is called that."""
    name = _ALIASES.get(word, word)
    if name in _FORMULAS:
        return _FORMULAS[name][1] if _FORMULAS[name][0] == arity else None
    if name not in FUNCTIONS or FUNCTIONS[name].arity != arity:
        return None
    if name in _TRUTHS:
        return lambda e, *args: e(ops.Cast("float64"), e(name, *args))
    return lambda e, *args: e(name, *args)


def _bad(code: str, message: str, path: str, *hints: str) -> GraphError:
    return GraphError(message, *hints, code=code, context=[f"at {path}"])


K = TypeVar("K", bound=Hashable)


class CycleError(Exception):
    """Things that need each other in a circle; ``args[0]`` lists them."""


def dependency_order(roots: Iterable[K], needs: Callable[[K], Iterable[K]]) -> list[K]:
    """Return the roots and all they need, each after what it needs; raise :class:`CycleError` where there is a circle.

    >>> dependency_order("ac", {"a": "b", "b": "", "c": "a"}.__getitem__)
    ['b', 'a', 'c']
    """
    order: list[K] = []
    done: dict[K, bool] = {}  # False while what it needs is looked at
    for root in roots:
        trail = [] if root in done else [(root, iter(needs(root)))]
        done.setdefault(root, False)
        while trail:
            key, rest = trail[-1]
            needed = next((k for k in rest if not done.get(k)), None)
            if needed is None:
                done[key] = True
                order.append(key)
                trail.pop()
            elif needed in done:
                circle = [k for k, _ in trail]
                raise CycleError(circle[circle.index(needed) :])
            else:
                done[needed] = False
                trail.append((needed, iter(needs(needed))))
    return order
