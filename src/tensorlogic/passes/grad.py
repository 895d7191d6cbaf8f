"""Gradients as graphs: reverse mode (:func:`grad`, :func:`value_and_grad`, :func:`vjp`) as a pass.

The result holds the nodes of the graph it came from and those of its gradient, so whatever both need is computed once, and
every pass, backend and tool applies to it. Forward mode is :mod:`~tensorlogic.passes.grad_forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..diagnostics import value_text, warn_caller
from ..errors import DTypeError, GraphError, ShapeError, expect, expect_known, expect_whole, nearest
from ..ir import ops
from ..ir.check import check_structure, expect_graph
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import OPS, EinsumGraph, reachable
from ..ir.ops import REDUCTIONS
from . import (
    grad_bodies,
    grad_collectives,
    grad_contract,
    grad_einsum,
    grad_fixpoint,
    grad_rules,
    grad_scan,
    grad_views,
)
from .derivatives import TRUTHS
from .grad_reverse import Custom, Options, activity, backward, forward
from .grad_shortcuts import SHORTCUTS
from .grad_tape import Tape, Value, full_cotangent, may_be_float, on_device, unused

RULES = (
    grad_rules.RULES
    | grad_views.RULES
    | grad_einsum.RULES
    | grad_contract.RULES
    | grad_bodies.RULES
    | grad_scan.RULES
    | grad_fixpoint.RULES
    | grad_collectives.RULES
)
PREPARE = grad_scan.PREPARE | grad_fixpoint.PREPARE
NO_GRADIENT = "truth values and whole numbers have no gradient"
SOFT = 'compile rules with strategy="soft_differentiable"'
Wrt = str | Sequence[str] | None


class GradientWarning(UserWarning):
    """A gradient that is zero everywhere, which is probably not what was meant.

    >>> issubclass(GradientWarning, UserWarning)
    True
    """


def grad(
    graph: EinsumGraph,
    wrt: Wrt = None,
    *,
    of: str | None = None,
    custom: Mapping[str | int, Custom] | None = None,
    straight_through: bool = False,
    keep: int | None = None,
    unroll: int | None = None,
    loss_scale: float = 1.0,
) -> EinsumGraph:
    """Return the graph of the gradients of a scalar output for some inputs, named ``d_`` and the input's name.

    ``wrt`` names inputs; left out, it is every input of a float (or undeclared) dtype. ``of`` names the loss where there are
    several outputs. ``straight_through=True`` passes gradients through comparisons, steps and rounding as if they were not
    there. ``keep=k`` keeps every k-th carry of a scan and recomputes the others; ``unroll=n`` differentiates fixpoints as n
    rounds. ``custom`` maps names of operations, outputs or node numbers to rules ``(tape, cotangent, result, *operands) ->
    gradients``: one for each operand, or a mapping from nodes and inputs, which makes it the gradient of a subgraph; the
    tape speaks NumPy, as a builder does, and ``tape["x"]`` is an input.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w = b.input("x", ("n", 3), "float32"), b.input("w", (3, 2), "float32")
    >>> print(grad(b.build(loss=b.sum(b.square(x @ w))), wrt=["w"]))
    graph {
      x: float32[n, 3] = input()
      w: float32[3, 2] = input()
      %2: float32[n, 2] = einsum(x, w, spec="ij,jk->ik")
      %3: float64[] = literal(2.0)
      %4: float32[n, 2] = multiply(%3, %2)
      %5: float32[3, 2] = einsum(x, %4, spec="ij,ik->jk")
      return d_w=%5
    }
    """
    options = _options(graph, custom, straight_through, keep, unroll)
    t, found = _reverse(graph, wrt, _loss(graph, of, loss_scale), options)
    return t.finish(found.items())


def value_and_grad(
    graph: EinsumGraph,
    wrt: Wrt = None,
    *,
    of: str | None = None,
    custom: Mapping[str | int, Custom] | None = None,
    straight_through: bool = False,
    keep: int | None = None,
    unroll: int | None = None,
    loss_scale: float = 1.0,
) -> EinsumGraph:
    """Return the graph of all outputs and, after them, the gradients of a scalar one; options are those of :func:`grad`.

    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> both = value_and_grad(b.build(loss=b.sum(b.square(b.input("x", (2,))))))
    >>> loss, d_x = Executor().execute(both, {"x": [1.0, 3.0]})
    >>> float(loss), d_x
    (10.0, array([2., 6.]))
    """
    options = _options(graph, custom, straight_through, keep, unroll)
    t, found = _reverse(graph, wrt, _loss(graph, of, loss_scale), options)
    outputs = dict(t.outputs)
    for name, v in found.items():
        outputs[unused(name, outputs)] = v
    return t.finish(outputs.items())


def vjp(
    graph: EinsumGraph,
    wrt: Wrt = None,
    *,
    custom: Mapping[str | int, Custom] | None = None,
    straight_through: bool = False,
    keep: int | None = None,
    unroll: int | None = None,
) -> EinsumGraph:
    """Return the graph that takes cotangents of all outputs, as inputs ``d_`` and the output's name, to those of inputs.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> back = vjp(b.build(y=b.sin(b.input("x", ("n",), "float32"))))
    >>> back.input_names, back.output_names
    (['x', 'd_y'], ['d_x'])
    """
    options = _options(graph, custom, straight_through, keep, unroll)
    seeds = dict.fromkeys(n for n, i in graph.outputs if straight_through or may_be_float(graph.type_of(i)))
    if not seeds:
        name, i = graph.outputs[0]
        message = f"no output is of a float dtype: {name!r} is {graph.type_of(i)}; {NO_GRADIENT}"
        error = DTypeError(message, SOFT, "or cast the output to a float dtype", code="E110")
        raise error.at(graph.nodes[i].location)
    t, found = _reverse(graph, wrt, seeds, options)
    return t.finish(found.items())


def check(graph: EinsumGraph) -> None:
    """Refuse what is no graph, or does not hang together, or has nothing to differentiate."""
    expect_graph(graph, output="loss")
    if problems := check_structure(graph):
        raise GraphError.of(problems[0])
    if not graph.outputs:
        hint = "build one that has: b.build(loss=loss)"
        raise GraphError("the graph has no outputs to differentiate", hint, code="E812")


def parameters(graph: EinsumGraph, wrt: Wrt) -> dict[str, int]:
    """Return the inputs to differentiate for, or raise where one is unknown or has no gradient."""
    if wrt is None:
        found = {name: i for name, i in graph.inputs.items() if may_be_float(graph.type_of(i))}
        if not found:
            raise GraphError("the graph has no input of a float dtype to differentiate for", code="E812")
        return found
    expect(wrt, (str, Sequence, set, Mapping), "wrt= names inputs", *nearest("", graph.inputs))
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    if not names:
        raise GraphError("wrt= names no input", *nearest("", graph.inputs), code="E812")
    for name in names:
        if not isinstance(name, str) or name not in graph.inputs:
            if isinstance(name, str) and name in graph.left_out:
                hint = f"use it in what is built, or leave {name!r} out of wrt="
                raise GraphError(f"{name!r} was declared, but no output depends on it", hint, code="E302")
            hints = nearest(name, graph.inputs)
            raise GraphError(f"the graph has no input {value_text(name)} to differentiate for", *hints, code="E302")
        kind = graph.type_of(graph.inputs[name])
        if not may_be_float(kind):
            message = f"input {name!r} is {kind}: only numbers of a float dtype have gradients"
            error = DTypeError(message, "declare it as float32, or leave it out of wrt=", code="E110")
            raise error.at(graph.nodes[graph.inputs[name]].location)
    return {name: graph.inputs[name] for name in names}


def _loss(graph: EinsumGraph, of: str | None, scale: float) -> dict[str, float | None]:
    """Return the output to differentiate and what its cotangent is, or raise where it is no scalar."""
    expect(None if isinstance(scale, bool) else scale, (int, float), "loss_scale= is a number")
    outputs = dict(graph.outputs)
    if of is None:
        if len(outputs) > 1:
            message = f"the graph has {len(outputs)} outputs; which one is the loss?"
            hints = f"say of={next(iter(outputs))!r}", "or use tl.vjp for cotangents of all of them"
            raise GraphError(message, *hints, code="E810")
        of = next(iter(outputs), None)
    expect_known("the graph has no output", [of], outputs, kind=GraphError)
    assert of is not None
    kind = graph.type_of(outputs[of])
    where = graph.nodes[outputs[of]].location
    if kind.shape != ():
        shown = "a tensor of unknown rank" if kind.shape is None else f"of shape {kind.shape}"
        hints = "reduce it: b.sum(loss) or b.mean(loss)", "or use tl.vjp, and give its cotangent"
        raise ShapeError(f"the loss {of!r} is {shown}; a gradient is of a scalar", *hints, code="E811").at(where)
    if not may_be_float(kind):
        hints = SOFT, "or cast it: b.cast(loss, 'float32')"
        raise DTypeError(f"the loss {of!r} is {kind}: {NO_GRADIENT}", *hints, code="E110").at(where)
    return {of: float(scale)}


def default_options() -> Options:
    """Return the rules, and nothing that a caller asked for."""
    return Options(RULES, PREPARE, SHORTCUTS, cache={})


def _options(
    graph: EinsumGraph, custom: Mapping[str | int, Custom] | None, straight: bool, keep: int | None, unroll: int | None
) -> Options:
    """Check what the caller asked for."""
    check(graph)
    expect(
        {} if custom is None else custom,
        Mapping,
        "custom= maps operations, outputs or nodes to functions",
        'write {"sin": rule}',
    )
    by_name: dict[str, Custom] = {}
    by_node: dict[int, Custom] = {}
    words = {*OPS, *FUNCTIONS, *REDUCTIONS}
    outputs = dict(graph.outputs)
    for key, rule in (custom or {}).items():
        what = f"the custom gradient of {value_text(key)} must be a function"
        expect(rule, Callable, what, "write lambda t, g, y, x: g * 2")  # type: ignore[arg-type]
        if isinstance(key, int) and 0 <= key < len(graph.nodes):
            by_node[key] = rule
        elif isinstance(key, str) and key in outputs:
            by_node[outputs[key]] = rule
        elif isinstance(key, str) and key in words:
            by_name[key] = rule
        else:
            hints = nearest(key, [*outputs, *words])
            raise GraphError(
                f"custom= names {value_text(key)}, which is no operation, output or node", *hints, code="E813"
            )
    for word, number in (("keep", keep), ("unroll", unroll)):
        if number is not None:
            expect_whole(word, number, 1)
    asked = default_options()._replace(straight=straight, keep=keep, unroll=unroll)
    return asked._replace(custom=by_name, custom_nodes=by_node)


def _reverse(
    graph: EinsumGraph, wrt: Wrt, seeds: Mapping[str, float | None], options: Options
) -> tuple[Tape, dict[str, Value]]:
    """Differentiate outputs for inputs: by a number where one is given, else by an input of its own."""
    roots = parameters(graph, wrt)
    outputs = dict(graph.outputs)
    t = Tape(graph)
    forward(t, graph, graph.inference.types, roots.values(), [outputs[n] for n in seeds], options)
    taken = set(graph.inputs)
    given: dict[int, Value] = {}
    for name, number in seeds.items():
        node = t.place[outputs[name]]
        if number is None:
            kind = graph.type_of(outputs[name])
            kind = kind if may_be_float(kind) else kind._replace(dtype="float32")  # straight through what is no float
            label = unused(f"d_{name}", taken)
            taken.add(label)
            seed = on_device(t, t.input(label, kind), Value(t, node))
        else:
            seed = Value(t, t.draft.add(ops.Literal.of(float(number)), ()))
        given[node] = given[node] + seed if node in given else seed
    own = {}
    for i, rule in options.custom_nodes.items():
        at = t.place[i]
        own[t.draft.args(at)[0] if isinstance(t.draft.op(at), ops.Item) else at] = rule
    gradients = backward(t, given, [t.place[i] for i in roots.values()], options, own)
    found: dict[str, Value] = {}
    for name, i in roots.items():
        x = Value(t, t.place[i])
        t.draft.origin = graph.nodes[i]
        g = gradients.get(x.node)
        if g is None and not options.custom_nodes and not options.custom:
            _explain(graph, name, [outputs[n] for n in seeds], options)
        found[unused(f"d_{name}", found)] = full_cotangent(t, g, x)
    return t, found


def _explain(graph: EinsumGraph, name: str, ends: Sequence[int], options: Options) -> None:
    """Warn that a gradient is zero, or raise where that is because truth values or whole numbers stand in between."""
    root = graph.inputs[name]
    order = reachable(graph.nodes, ends)
    if root not in set(order):
        warn_caller(f"no output depends on {name!r}: its gradient is zero", GradientWarning)
        return
    types = graph.inference.types
    active = activity(graph.nodes, types, [root], options)
    ended = [i for i in order if not any(active[i]) and any(any(active[a]) for a in graph.nodes[i].args)]
    for i in ended:
        node, kind = graph.nodes[i], types[i][0]
        if not may_be_float(kind) or getattr(node.op, "fn", None) in TRUTHS:
            what = "einsum in the boolean algebra" if isinstance(node.op, ops.Einsum) else node.op.name
            result = kind if kind.dtype else "bool"
            raise GraphError(
                f"{name!r} is only used through {what}, whose result is {result}: {NO_GRADIENT}",
                f"{SOFT}, which keeps degrees of truth",
                "or pass straight_through=True: the gradient then goes on as if there were no such step",
                code="E110",
            ).at(node.location)
    why = f": {graph.nodes[ended[0]].op.name} is flat" if ended else ""
    warn_caller(f"the gradient for {name!r} is zero everywhere{why}", GradientWarning)
