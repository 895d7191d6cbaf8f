"""Building graphs: a builder that interns nodes, checks types as it goes, and remembers source lines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..diagnostics import SourceLocation, caller, value_text
from ..errors import GraphError, ShapeError, expect, expect_known, expect_text, nearest
from . import ops
from .check import check_structure
from .graph import MAX_BODY_DEPTH, Cond, EinsumGraph, Fixpoint, Node, Scan, extract, node_name
from .layers import Layers
from .ops import Op, add_constant
from .random import STEP, TRAINING
from .sizes import Dim, dim, integer
from .tensor import ELSEWHERE, GraphDraft, Tensor
from .type_rules import node_types
from .types import (
    INTEGERS,
    MAX_RANK,
    Array,
    Equality,
    TensorShape,
    TensorType,
    dtype_name,
    of_axes,
    plain_array,
    plain_scalar,
    too_large,
)
from .types import Scope as TypeScope


class GraphBuilder(Layers[Tensor]):
    """Builds graphs node by node; equal nodes merge, and what no output needs is dropped.

    ``GraphBuilder(intern=False)`` keeps every node as written, so that optimization passes have something to do.

    >>> b = GraphBuilder()
    >>> x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    >>> b.build(y=b.relu(x @ w))
    <EinsumGraph (x, w) -> (y): 4 nodes>
    """

    def __init__(self, *, intern: bool = True) -> None:
        self.intern = intern
        self.location: SourceLocation | None = None  # where new nodes come from, if not from the calling line of Python
        self._scope = GraphDraft(None)
        self._constants: dict[str, Array] = {}
        self._dropouts = 0

    if not TYPE_CHECKING:  # a type checker finds misspelt names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Name the nearest method where there is none of this name."""
            near = "" if name.startswith("_") else f"; {nearest(name, (n for n in dir(self) if n[0] != '_'))[0]}"
            if name in ("output", "outputs", "add_output", "set_output"):
                near = "; outputs are named where the graph is built: b.build(y=...)"
            elif name in ELSEWHERE:
                near = f"; write {ELSEWHERE[name]}"
            raise AttributeError(f"a GraphBuilder has no {name!r}{near}", name=name, obj=self)

    def shape_of(self, x: Any) -> TensorShape | None:
        """Return an operand's shape; None where its rank is unknown."""
        return x.shape if isinstance(x, Tensor) else TensorShape(plain_array(x).shape)

    def input(self, name: str, shape: Sequence[Dim | None] | None = None, dtype: Any = None) -> Tensor:
        """Declare an input. Sizes are integers or names; None is any size; no shape at all is any rank."""
        if not isinstance(name, str) or not name:
            raise GraphError(f"an input needs a name, got {value_text(name)}", code="E301")
        expect_text("the name of an input", name)
        if shape is not None and (isinstance(shape, str | bytes) or not isinstance(shape, Sequence)):
            hint = f"write {_tuple_text(shape)}"
            raise GraphError(
                f"the shape of input {name!r} must be a sequence, got {value_text(shape)}", hint, code="E301"
            )
        sizes = None
        if shape is not None:
            word = re.sub(r"\W", "_", name)
            word = word if word[0].isalpha() or word[0] == "_" else f"_{word}"
            if word != name or len(word) > 100:  # a digest keeps two names apart
                word = f"{word[:100]}.{blake2b(name.encode(errors='replace'), digest_size=3).hexdigest()}"
            given = of_axes(shape, f"the shape of input {name!r}")
            sizes = tuple(dim(f"{word}.{a}" if d is None else d) for a, d in enumerate(given))
        if self._scope.parent is not None:
            raise GraphError("inputs are declared outside of bodies", code="E141")
        op = ops.Input(name, sizes, None if dtype is None else dtype_name(dtype))
        known = self._scope.inputs.get(name)
        if known is not None:
            if self._scope.nodes[known].op != op:
                kinds = self._scope.types[known][0], TensorType(None if sizes is None else TensorShape(sizes), op.dtype)
                message = f"input {name!r} is declared twice, as {kinds[0]} and as {kinds[1]}"
                raise GraphError(message, "use another name, or the same shape and dtype", code="E107")
            return Tensor(self, self._scope, known)
        tensor = self._add(op, ())
        self._scope.inputs[name] = tensor.node
        return tensor

    def constant(self, value: Any) -> Tensor:
        """Add an array to the graph; it is copied, and kept once however often it is used."""
        if isinstance(value, Tensor):
            return value
        return self._add(add_constant(self._constants, value), ())

    def literal(self, value: bool | int | float) -> Tensor:
        """Add a Python scalar, which takes the dtype of what it meets."""
        scalar = value.item() if isinstance(value, np.generic) else value
        hint = "use b.constant(array) for an array"
        expect(scalar, (bool, int, float), "a literal is a bool, an int or a float", hint)
        return self._add(ops.Literal.of(scalar), ())

    def inline(self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """Add a whole graph and return its outputs; inputs that are not given become inputs here.

        >>> b = GraphBuilder()
        >>> double = b.build(y=b.input("x") * 2)
        >>> c = GraphBuilder()
        >>> c.inline(double, {"x": c.input("z", (3,), "float32")})["y"]
        <Tensor float32[3]>
        """
        given = {} if inputs is None else inputs
        expect(graph, EinsumGraph, "inline takes an EinsumGraph", "build one: b.build(y=y)")
        expect(given, Mapping, "inline takes a mapping of input names to tensors", 'write {"x": x}')
        expect_known("the graph has no input", given, graph.inputs, kind=GraphError)
        if problems := check_structure(graph):
            raise GraphError.of(problems[0])
        here: list[int] = []
        for node in graph.nodes:
            op = node.op
            if isinstance(op, ops.Constant):
                self._constants[op.digest] = graph.constants[op.digest]
            if not isinstance(op, ops.Input):
                here.append(self._add(op, tuple(here[a] for a in node.args)).node)
            elif op.label in given:
                here.append(self._operand(given[op.label]))
            else:
                here.append(self.input(op.label, op.shape, op.dtype).node)
        return {name: Tensor(self, self._scope, here[i]) for name, i in graph.outputs}

    def dropout(self, x: Any, rate: float, *, key: int | None = None) -> Tensor:
        """Set a share of the elements to 0 while training, and scale the others so that the mean stays.

        Whether it trains, and the number of the step, are inputs ``training`` and ``training.step``, which a trainer gives. Each
        dropout of a graph has other numbers; ``key`` names them, and left out they are numbered in order.

        >>> b = GraphBuilder()
        >>> b.build(y=b.dropout(b.input("x", ("n", 8), "float32"), 0.5)).input_names
        ['x', 'training', 'training.step']
        """
        training, step = self.input(TRAINING, (), "bool"), self.input(STEP, (), "uint64")
        self._dropouts += 1
        return self.dropped(x, rate, training, step, self._dropouts if key is None else key)

    def running_batch_norm(
        self, x: Any, name: str, scale: Any = None, bias: Any = None, *, momentum: float = 0.9, eps: float = 1e-5
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return ``x`` normalised over all axes but the last, and outputs of the graph that keep running statistics for it.

        While training, the mean and the variance are those of the batch. The inputs ``name.mean`` and ``name.var`` are running
        averages of them, which count when it does not train; a trainer feeds the outputs of the same names back to them. They begin
        as ``tl.initial`` makes them: zeros and ones.

        >>> b = GraphBuilder()
        >>> y, running = b.running_batch_norm(b.input("x", ("n", 8), "float32"), "norm")
        >>> b.build(y=y, **running)
        <EinsumGraph (x, norm.mean, norm.var, training) -> (y, norm.mean, norm.var): 26 nodes>
        """
        shape = self._shape(x, "running_batch_norm")
        if len(shape) < 2 or not isinstance(shape[-1], int) or not 0 <= momentum < 1:
            message = f"running_batch_norm of {list(shape)} with momentum {value_text(momentum)}"
            hint = "give (batch, ..., channels), the channels as a number, and a momentum from 0 up to 1"
            raise ShapeError(message, hint, code="E883")
        dtype = x.dtype if isinstance(x, Tensor) else None
        before = {part: self.input(f"{name}.{part}", shape[-1:], dtype) for part in ("mean", "var")}
        training, axes = self.input(TRAINING, (), "bool"), tuple(range(len(shape) - 1))
        now = {"mean": self.mean(x, axes), "var": self.var(x, axes)}
        used = {part: self.where(training, now[part], own) for part, own in before.items()}
        after = {
            f"{name}.{part}": self.where(training, own * momentum + now[part] * (1 - momentum), own)
            for part, own in before.items()
        }
        return self.batch_norm(x, used["mean"], used["var"], scale, bias, eps=eps), after

    def apply(self, op: Op, *operands: Any) -> Tensor:
        """Add one operation that has one result."""
        return self.apply_many(op, *operands)[0]

    def apply_many(self, op: Op, *operands: Any) -> tuple[Tensor, ...]:
        """Add one operation and return all of its results."""
        args = tuple(self._operand(x) for x in operands)
        whole = self._add(op, args)
        count = len(self._scope.types[whole.node])
        if count == 1:
            return (whole,)
        return tuple(self._add(ops.Item(n), (whole.node,)) for n in range(count))

    def _operand(self, x: Any) -> int:
        """Return the node, in the current scope, of a tensor, an array or a Python scalar."""
        if isinstance(x, Tensor):
            if x.builder is not self:
                hint = "build what belongs together with one GraphBuilder"
                raise GraphError("a tensor of another builder cannot be used here", hint, code="E138")
            return x.node if x.scope is self._scope else self._capture(x, self._scope)
        if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
            return self._add(ops.Literal.of(x), ()).node
        if isinstance(x, str) or x is None:
            hints = (
                [f"declare an input first: {x} = b.input({x!r}, shape)"]
                if isinstance(x, str) and x.isidentifier()
                else []
            )
            raise GraphError(
                f"an operand must be a tensor, an array or a number, got {value_text(x)}", *hints, code="E301"
            )
        return self.constant(x).node

    def _capture(self, x: Tensor, scope: GraphDraft) -> int:
        """Make a tensor of an enclosing scope readable in a body: constants again, anything else as an input."""
        inner = scope
        while inner.parent is not None and inner.parent is not x.scope:
            inner = inner.parent
        if inner.parent is None:
            hint = "return it from the body"
            raise GraphError("a tensor made inside a body cannot be used outside of it", hint, code="E138")
        if scope.parent is not x.scope:  # bring it in one scope at a time
            assert scope.parent is not None
            x = Tensor(self, scope.parent, self._capture(x, scope.parent))
        node = x.scope.nodes[x.node]
        if isinstance(node.op, ops.Constant | ops.Literal | ops.Iota):
            return self._add(node.op, (), scope).node
        if x.node not in scope.captures:
            op = _input_like(f"k{len(scope.captures)}", x.type)
            scope.captures[x.node] = (x, self._add(op, (), scope).node)
        return scope.captures[x.node][1]

    def _add(self, op: Op, args: tuple[int, ...], scope: GraphDraft | None = None) -> Tensor:
        scope = scope or self._scope
        place = self.location or caller()
        if self.intern:
            try:
                known = scope.interned.get((op, args))
            except TypeError:
                hint = "use numbers, text and tuples of them"
                raise GraphError(
                    f"{value_text(op)} holds a value that an operation cannot have", hint, code="E301"
                ) from None
            if known is not None:
                old = scope.nodes[known]
                if place is not None and place not in old.locations and len(old.locations) < 16:
                    scope.nodes[known] = Node(op, old.args, (*old.locations, place))
                return Tensor(self, scope, known)
        index = len(scope.nodes)
        noted: list[Equality] = []  # checked when the finished graph is bound
        asked = TypeScope(index, partial(node_name, scope.nodes), args, noted)
        types = node_types(op, [scope.types[a] for a in args], asked)
        if isinstance(op, ops.Elementwise):
            _check_integers(types[0].dtype, [scope.nodes[a].op for a in args])
        scope.nodes.append(Node(op, args, () if place is None else (place,)))
        scope.types.append(types)
        if self.intern:
            scope.interned[op, args] = index
        return Tensor(self, scope, index)

    def build(self, outputs: Mapping[str, Tensor] | None = None, /, **named: Tensor) -> EinsumGraph:
        """Return the graph of the given outputs: ``build(y=y)``, or a mapping for names that are not identifiers."""
        hint = "b.build(y=y), or b.build({'y': y})"
        if outputs is not None:
            expect(outputs, Mapping, "outputs are a mapping of names to tensors", hint)
        wanted = {**(outputs or {}), **named}
        if self._scope.parent is not None:
            raise GraphError("build cannot be called inside a body", code="E141")
        if not wanted:
            raise GraphError("a graph needs at least one output", "b.build(y=y)", code="E140")
        pairs = []
        for name, tensor in wanted.items():
            expect(name, str, "an output is named by text", hint)
            expect_text("the name of an output", name)
            expect(tensor, Tensor, f"output {name!r} must be a tensor", "wrap an array with b.constant(array)")
            pairs.append((name, self._operand(tensor)))
        if not self.intern:
            return EinsumGraph(self._scope.nodes, pairs, self._constants)
        graph = extract(self._scope.nodes, pairs, self._constants)
        declared = [node.op.label for node in self._scope.nodes if isinstance(node.op, ops.Input)]
        graph.left_out = frozenset(declared).difference(graph.inputs)
        graph.checked = not check_structure(graph)  # here, where it is made, rather than in each first run of it
        return graph

    # bodies

    def _body(self, fn: Callable[..., Any], given: Mapping[str, TensorType]) -> tuple[EinsumGraph, list[Tensor]]:
        """Trace a function into a graph of its own; return it and the outer tensors it reads."""
        scope = GraphDraft(self._scope)
        if scope.depth > MAX_BODY_DEPTH:
            raise GraphError(f"bodies may be nested {MAX_BODY_DEPTH} deep", code="E207")
        outer, self._scope = self._scope, scope
        try:
            inputs = [self._add(_input_like(name, t), (), scope) for name, t in given.items()]
            result = fn(*inputs)
            several = list(result) if isinstance(result, tuple | list) else [result]
            outputs = [(f"r{n}", self._operand(t)) for n, t in enumerate(several)]
        finally:
            self._scope = outer
        # a body keeps all of its inputs, used or not, because operands match them by position
        first = [*(t.node for t in inputs), *(i for _, i in scope.captures.values())]
        if not self.intern:
            first += range(len(scope.nodes))
        return extract(scope.nodes, outputs, self._constants, first), [x for x, _ in scope.captures.values()]

    def _typed(self, x: Any) -> Tensor:
        return x if isinstance(x, Tensor) else self.constant(x)

    def fixpoint(
        self,
        body: Callable[..., Any],
        *init: Any,
        combine: str = "replace",
        tolerance: float = 0.0,
        limit: int = 1_000_000,
        linear: bool = False,
    ) -> Any:
        """Apply ``body`` to the carries until they no longer change; tensors around it may be used inside.

        Floats that, after 1,000 rounds and more, only go to and fro in their last places no longer change either.

        With ``linear=True`` you promise that the body adds multiples of the carries to what stays the same; a loop that then cannot
        settle within its limit may be given up early.

        >>> b = GraphBuilder()
        >>> edge = b.input("edge", ("n", "n"), "bool")
        >>> step = lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean")
        >>> b.build(path=b.fixpoint(step, edge, combine="or"))
        <EinsumGraph (edge) -> (path): 2 nodes>
        """
        if combine not in ops.COMBINES:
            raise GraphError(f"unknown combine {value_text(combine)}", *nearest(combine, ops.COMBINES), code="E126")
        expect(tolerance, Real, "a fixpoint's tolerance is a number", "write tolerance=1e-6")
        rounds = integer(limit, "a fixpoint's limit")
        carries = [self._typed(x) for x in init]
        check_function(body, len(carries), "the body of a fixpoint")
        graph, captures = self._body(body, {f"c{n}": t.type for n, t in enumerate(carries)})
        op = Fixpoint(graph, combine, float(tolerance), rounds, bool(linear))
        if op.carries != len(carries):
            raise GraphError(f"the body returns {op.carries} tensors for {len(carries)} carries", code="E131")
        results = self.apply_many(op, *carries, *captures)
        return results[0] if len(results) == 1 else results

    def scan(
        self,
        body: Callable[..., Any],
        init: Sequence[Any] | Any,
        xs: Sequence[Any] | Any = (),
        *,
        length: Dim | None = None,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Run ``body(carries, slices) -> (carries, outputs)`` along the first axis of ``xs``.

        One tensor may stand for a tuple of one. Returns the last carries and the stacked outputs.

        >>> b = GraphBuilder()
        >>> x = b.input("x", ("t",), "float32")
        >>> last, sums = b.scan(lambda c, x: (c + x, c + x), np.float32(0), x)
        >>> sums
        <Tensor float32[t]>
        """
        many, more = isinstance(init, tuple | list), isinstance(xs, tuple | list)
        together = "several carries are one argument: begin the body with c, d = carries; several slices are one too"
        check_function(body, 2, "the body of a scan", more=[together] if many or more else [])
        single_out = False
        carries = [self._typed(x) for x in (init if many else [init])]
        scanned = [self._typed(x) for x in (xs if more else [xs])]
        given = {f"c{n}": t.type for n, t in enumerate(carries)}
        for n, t in enumerate(scanned):
            row = None if t.shape is None else TensorShape(t.shape[1:])
            given[f"x{n}"] = TensorType(row, t.dtype)

        def traced(*tensors: Tensor) -> list[Any]:
            nonlocal single_out
            c: Any = tensors[: len(carries)]
            x: Any = tensors[len(carries) :]
            result = body(c if many else c[0], x if more else x[0])
            if not isinstance(result, tuple) or len(result) != 2:
                raise GraphError("the body of a scan returns (carries, outputs)", code="E131")
            after, out = result
            single_out = not isinstance(out, tuple | list)
            kept = list(after) if isinstance(after, tuple | list) else [after]
            if len(kept) != len(carries):
                raise GraphError(f"the body returns {len(kept)} carries for {len(carries)}", code="E131")
            return [*kept, *([] if out is None else [out] if single_out else out)]

        graph, captures = self._body(traced, given)
        op = Scan(graph, len(carries), len(scanned), None if length is None else dim(length), reverse)
        results = self.apply_many(op, *carries, *scanned, *captures)
        last: Any = results[: len(carries)]
        out: Any = results[len(carries) :]
        return (last if many else last[0]), (out if not single_out else out[0] if out else None)

    def cond(self, condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Run one of two functions by a scalar truth value; both may use the tensors around them.

        >>> b = GraphBuilder()
        >>> x = b.input("x", (3,), "float32")
        >>> b.cond(b.sum(x) > 0, lambda: x, lambda: -x)
        <Tensor float32[3]>
        """
        check_function(then, 0, "then, of a cond,")
        check_function(otherwise, 0, "otherwise, of a cond,")
        a, reads_a = self._body(then, {})
        c, reads_c = self._body(otherwise, {})
        union = list({t.node: t for t in (*reads_a, *reads_c)}.values())
        op = Cond(_with_inputs(a, reads_a, union), _with_inputs(c, reads_c, union))
        results = self.apply_many(op, condition, *union)
        return results[0] if len(results) == 1 else results


def _check_integers(dtype: str | None, operands: Sequence[Op]) -> None:
    """Refuse to compute with integers that fit neither 64 bits nor the result; comparing with them is fine."""
    for op in operands if dtype in INTEGERS else ():
        if isinstance(op, ops.Literal) and op.kind == "int" and len(op.text) > 18:
            assert dtype is not None
            bounds = np.iinfo(dtype)
            if not (-(2**63) <= op.value < 2**63 or bounds.min <= op.value <= bounds.max):
                raise too_large(int(op.value), dtype)


def check_function(fn: object, count: int, what: str, names: str = "cxyzuvw", *, more: Sequence[str] = ()) -> None:
    """Refuse what cannot be called with so many tensors."""
    head = " ".join(["lambda", ", ".join(names[:count])]).rstrip()
    hint = f"write a function, such as {head}: ..."
    if not callable(fn):
        raise GraphError(f"{what} must be a function, got {value_text(fn)}", hint, code="E130")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions do not say
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise GraphError(f"{what} must take {count} argument(s): {error}", hint, *more, code="E130") from None


def _with_inputs(body: EinsumGraph, reads: Sequence[Tensor], union: Sequence[Tensor]) -> EinsumGraph:
    """Return a body whose inputs are those of both bodies of a cond, in one order."""
    place = {t.node: n for n, t in enumerate(union)}
    inputs = [Node(_input_like(f"k{n}", t.type)) for n, t in enumerate(union)]
    new = {old: place[t.node] for old, t in enumerate(reads)}
    for old in range(len(reads), len(body.nodes)):
        new[old] = len(union) + old - len(reads)
    rest = [n.renumbered(new) for n in body.nodes[len(reads) :]]
    return EinsumGraph([*inputs, *rest], ((name, new[i]) for name, i in body.outputs), body.constants)


def _input_like(name: str, t: TensorType) -> ops.Input:
    return ops.Input(name, None if t.shape is None else tuple(t.shape), t.dtype)


def _tuple_text(shape: Any) -> str:
    """Return what was given for a shape as the tuple that was meant: ``(n, 3)`` as ``('n', 3)``."""
    example = "a size or a name for each axis, such as ('n', 3)"
    if getattr(shape, "ndim", None) == 1 and hasattr(shape, "tolist") and len(shape) <= MAX_RANK:
        shape = str(tuple(shape.tolist()))
    if isinstance(shape, bytes):
        shape = shape.decode(errors="replace")
    if not isinstance(shape, str):
        size = plain_scalar(shape)
        return f"({value_text(size)},)" if type(size) is int else example
    text = shape.strip("()[] ").replace(";", ",")
    parts = text.split(",") if any(sign in text for sign in ",+-*") else text.split()
    try:
        words = [part if part == "None" else repr(dim(part)) for part in map(str.strip, parts) if part]
    except ShapeError:
        return example
    return f"({', '.join(words)}{',' * (len(words) == 1)})"
