"""``Executor.forward`` and ``backward``: a run that keeps the values its gradient reads, and the gradient as the rest of one graph.

The graph of ``tl.vjp`` is cut in two: the forward run also returns the values that the other half reads as inputs.
Which values these are is the :class:`~tensorlogic.GradientStrategy`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import DTypeError, InputError, expect, expect_known, nearest
from ..ir import ops
from ..ir.graph import EinsumGraph, Node
from ..ir.types import TensorType, dims
from ..passes.grad import value_and_grad, vjp
from ..passes.grad_tape import FIRST_DEVICE, Tape, Value, device_of, may_be_float, unused
from ..plan.cost import nbytes
from ..store import Store
from .program import KEPT_BYTES
from .recompute import all_nodes, can_keep, expensive_nodes, fitting, match_nodes, rest_of_gradient
from .values import Outputs

if TYPE_CHECKING:
    from .executor import Executor
    from .strategy import GradientStrategy


class SplitGradient(NamedTuple):
    """A gradient in two runs: the graph of the first, the rest, and what passes between them."""

    first: EinsumGraph  # the outputs of the graph, then the values that are kept, or the gradients
    rest: EinsumGraph | None  # None where the first run computes the gradients too
    kept: tuple[tuple[str, int], ...]  # input of the rest, place among the outputs of the first run
    seeds: dict[str, str]  # output, input of the rest that takes its cotangent
    wrt: tuple[str, ...]
    outputs: int  # how many outputs the graph itself has


class Saved(NamedTuple):
    """What a forward run left for the backward run."""

    split: SplitGradient
    graph: EinsumGraph
    inputs: dict[str, Any]  # copies of those that the backward run reads: the caller may write to theirs
    values: tuple[Any, ...]  # all outputs of the first run: the graph's own, then what is kept
    outputs: Sequence[Any]


class Gradients:
    """The gradients of one executor: what was differentiated before, and per thread the last run and its gradients."""

    def __init__(self) -> None:
        self.known: Store[Any, SplitGradient] = Store(64)
        self.here = threading.local()

    def forward(
        self,
        executor: Executor,
        graph: EinsumGraph,
        inputs: Mapping[str, Any],
        wrt: Sequence[str] | str | None,
        strategy: GradientStrategy | None,
        budget: int | None,
    ) -> Outputs:
        """Run a graph and keep what its gradient needs; an output that the gradient reads is a read-only view."""
        from ..plan.budget import check_budget
        from .strategy import GradientStrategy

        if strategy is not None:
            expect(strategy, GradientStrategy, "strategy= is of GradientStrategy", "write GradientStrategy.KEEP")
        if budget is not None:
            check_budget(budget)
        names, values = executor.arrays(graph, inputs)
        wanted = _wanted(names, values, wrt)
        key = (graph, wanted, strategy, budget, tuple((v.shape, v.dtype) for v in values) if budget is not None else ())
        given = dict(zip(names, values, strict=True))
        split = self.known.get(key)
        if split is None:
            split = split_gradient(executor, graph, wanted, strategy, budget, given)
            self.known.put(key, split)
        results = executor.execute(split.first, given)
        if graph.scores and executor.programs.scores_unseen(graph):
            executor.programs.look_at_scores(graph, given.items())
        saved_nodes = {n for _, n in split.kept}
        shown = [_read_only(v) if n in saved_nodes else v for n, v in enumerate(results[: split.outputs])]
        outputs = Outputs(graph.output_names, shown)
        read = {n: _copied(given[n]) for n in _inputs_read(split)}
        self.here.saved = Saved(split, graph, read, tuple(results), outputs)
        return outputs

    def backward(self, executor: Executor, outputs: Sequence[Any], output_grads: Any, accumulate: bool) -> None:
        """Run the rest of the last forward run on this thread, from the cotangents of its outputs."""
        saved: Saved | None = getattr(self.here, "saved", None)
        if saved is None:
            hint = "outputs = executor.forward(graph, inputs) comes first, and serves one backward run"
            raise InputError("there is no forward run on this thread to go back from", hint, code="E923")
        if len(outputs) != len(saved.outputs) or any(a is not b for a, b in zip(outputs, saved.outputs, strict=True)):
            hint = "go back from what executor.forward returned last on this thread"
            raise InputError("these are not the outputs of the last forward run", hint, code="E924")
        cotangents = _cotangents(saved, output_grads)
        split = saved.split
        if split.rest is None:
            (scale,) = cotangents.values()
            found = [g if scale == 1 else g * scale for g in saved.values[split.outputs :]]
        else:
            given = saved.inputs | {label: saved.values[n] for label, n in split.kept}
            given |= {split.seeds[name]: g for name, g in cotangents.items()}
            found = list(executor.execute(split.rest, {k: v for k, v in given.items() if k in split.rest.inputs}))
        gradients = dict(zip(split.wrt, found, strict=True))
        if accumulate:
            for name, g in getattr(self.here, "gradients", {}).items():
                gradients[name] = g + gradients[name] if name in gradients else g
        self.here.gradients = gradients
        self.here.saved = None  # frees what was kept

    def latest(self) -> dict[str, Any]:
        """Return the gradients of the last backward run on this thread."""
        found: dict[str, Any] | None = getattr(self.here, "gradients", None)
        if found is None:
            hint = "executor.forward(graph, inputs), then executor.backward(outputs, grads)"
            raise InputError("there are no gradients yet on this thread", hint, code="E925")
        return dict(found)


def _read_only(value: Any) -> Any:
    """Return a view that cannot be written to; kernels take the array itself, which they need not tell apart."""
    if not isinstance(value, np.ndarray):
        return value
    shown = value.view()
    shown.setflags(write=False)
    return shown


def _copied(value: Any) -> Any:
    """Return an array of its own; what is no NumPy array is not written to in place."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _inputs_read(split: SplitGradient) -> list[str]:
    """Return the inputs of the graph that the backward run reads."""
    return [] if split.rest is None else [n for n in split.rest.inputs if n in split.first.inputs]


def _wanted(names: Sequence[str], values: Sequence[Any], wrt: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the inputs to differentiate for: those named, else all that hold floats."""
    dtypes = {n: v.dtype for n, v in zip(names, values, strict=True)}
    if wrt is None:
        found = tuple(n for n in names if dtypes[n].kind == "f")
        if not found:
            hint = "give float arrays: x.astype('float32')"
            raise DTypeError("no input holds floats, so there is nothing to differentiate for", hint, code="E904")
        return found
    expect(wrt, Iterable, "wrt= names inputs", *nearest("", names))
    wanted = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    for name in wanted:
        expect_known("the graph has no input", [name], names)
        if dtypes[name].kind != "f":
            raise DTypeError(
                f"input {name!r} is of {dtypes[name]}: only numbers of a float dtype have gradients",
                "give it as float32, or leave it out of wrt=",
                code="E904",
            )
    return tuple(dict.fromkeys(wanted))


def split_gradient(
    executor: Executor,
    graph: EinsumGraph,
    wrt: tuple[str, ...],
    strategy: GradientStrategy | None,
    budget: int | None,
    inputs: Mapping[str, Any],
) -> SplitGradient:
    """Cut the gradient of a graph in two as a strategy says.

    >>> from tensorlogic import Executor, GradientStrategy, GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.exp(b.tanh(b.input("x", (2,), "float64"))))
    >>> for strategy in (GradientStrategy.KEEP, GradientStrategy.RECOMPUTE):
    ...     print(split_gradient(Executor(), graph, ("x",), strategy, None, {}).first.output_names)
    ['y', 'v1']
    ['y']
    """
    from .strategy import GradientStrategy

    way = (GradientStrategy.KEEP if budget is None else GradientStrategy.BUDGETED) if strategy is None else strategy
    if (budget is not None) != (way is GradientStrategy.BUDGETED):
        raise InputError(
            "a budget of bytes belongs to GradientStrategy.BUDGETED, which needs one",
            "write forward(graph, inputs, budget=1 << 30)",
            code="E922",
        )
    names = graph.output_names
    if way is GradientStrategy.EAGER and len(names) == 1 and graph.type_of(graph.outputs[0][1]).shape == ():
        return SplitGradient(value_and_grad(graph, wrt), None, (), {names[0]: names[0]}, wrt, 1)
    whole = vjp(graph, wrt)
    match = match_nodes(whole, graph)

    def attempt(saved_nodes: Collection[int]) -> tuple[SplitGradient, int]:
        split = _cut(graph, whole, match, saved_nodes, wrt)
        return split, peak_of_both(executor, split, inputs)

    if budget is not None:
        return fitting(whole, match, budget, attempt)
    recomputed = way is GradientStrategy.RECOMPUTE
    return _cut(graph, whole, match, (expensive_nodes if recomputed else all_nodes)(whole, match), wrt)


def _cut(
    graph: EinsumGraph,
    whole: EinsumGraph,
    match: Sequence[int | None],
    saved_nodes: Collection[int],
    wrt: tuple[str, ...],
) -> SplitGradient:
    solid = {_owner(whole, i) for i in saved_nodes}  # keeping a view would copy it
    solid |= {i for i, m in enumerate(match) if m in dict(graph.outputs).values()}  # the caller has these anyway
    devices = _devices(whole)
    rest, labels = rest_of_gradient(whole, match, {i for i in solid if can_keep(whole, i) and devices[i] is not None})
    rest = _moved(rest, {label: d for label, i in labels.items() if (d := devices[i]) not in (None, FIRST_DEVICE)})
    outputs = list(graph.outputs)
    known = {i: n for n, (_, i) in enumerate(outputs)}  # what is an output anyway is kept already
    count = len(outputs)
    taken = set(graph.output_names)
    passed = []
    for label, i in labels.items():
        m = match[i]
        assert m is not None
        if m not in known:
            known[m] = len(outputs)
            outputs.append((name := unused(label, taken), m))
            taken.add(name)
        passed.append((label, known[m]))
    first = EinsumGraph(graph.nodes, outputs, graph.constants)
    first.inference = graph.inference
    return SplitGradient(first, rest, tuple(passed), cotangent_names(graph, whole), wrt, count)


def _devices(graph: EinsumGraph) -> list[str | None]:
    """Return the device of every node; None of what depends on constants alone, and is wherever it is read."""
    if not any(isinstance(node.op, ops.Transfer) for node in graph.nodes):
        return [FIRST_DEVICE] * len(graph.nodes)
    t = Tape(graph)
    t.copy(graph)
    return [device_of(t, Value(t, i)) for i in t.place]


def _moved(graph: EinsumGraph, devices: Mapping[str, str]) -> EinsumGraph:
    """Take some inputs of a graph, all of which come in on the first device, to the devices where they are read."""
    if not devices:
        return graph
    nodes: list[Node] = []
    place: list[int] = []
    for node in graph.nodes:
        nodes.append(Node(node.op, tuple([place[a] for a in node.args]), node.locations))
        place.append(len(nodes) - 1)
        if isinstance(node.op, ops.Input) and node.op.label in devices:
            nodes.append(Node(ops.Transfer(devices[node.op.label]), (place[-1],), node.locations))
            place[-1] += 1
    return EinsumGraph(nodes, [(name, place[i]) for name, i in graph.outputs], graph.constants)


def cotangent_names(graph: EinsumGraph, back: EinsumGraph) -> dict[str, str]:
    """Return, for each output of a graph that has a gradient, the input of its ``tl.vjp`` that takes the cotangent."""
    outputs = [name for name, i in graph.outputs if may_be_float(graph.type_of(i))]
    return dict(zip(outputs, [name for name in back.input_names if name not in graph.inputs], strict=True))


def _owner(graph: EinsumGraph, node: int) -> int:
    """Return the node that a view shows, through views of views."""
    while graph.nodes[node].op.is_view and not isinstance(graph.nodes[node].op, ops.Item):
        node = graph.nodes[node].args[0]
    return node


def peak_of_both(executor: Executor, split: SplitGradient, inputs: Mapping[str, Any]) -> int:
    """Return the most bytes that both runs take at one time.

    Kept values count in both, copies of inputs and idle buffers in the second.
    """
    first = executor.plan(split.first, inputs)
    if split.rest is None:
        return first.peak_bytes
    types, copied = {name: t for name, _, t in first.outputs}, _inputs_read(split)
    by_place = [t for _, _, t in first.outputs]
    given: dict[str, TensorType] = {name: t for name, _, t in first.inputs if name in copied}
    given |= {label: by_place[n] for label, n in split.kept}
    given |= {seed: types[name] for name, seed in split.seeds.items() if seed in split.rest.inputs}
    # memory is memory: an array is stood in for by one that takes none
    stand_in = {n: np.broadcast_to(np.zeros((), t.dtype), dims(t)) for n, t in given.items()}
    held = sum(nbytes(by_place[n]) for n in {n for _, n in split.kept}) + sum(nbytes(given[n]) for n in copied)
    idle = sum(first.buffers) if sum(first.buffers) <= KEPT_BYTES else 0
    return max(first.peak_bytes, idle + held + executor.plan(split.rest, stand_in).peak_bytes)


def _cotangents(saved: Saved, output_grads: Any) -> dict[str, Any]:
    """Return the cotangent of every output that has one, checked against it."""
    names = saved.graph.output_names
    if isinstance(output_grads, Mapping):
        expect_known("the graph has no output", output_grads, names, "E305")
        given = [output_grads.get(name) for name in names]
    elif isinstance(output_grads, Sequence | np.ndarray) and not isinstance(output_grads, str | bytes):
        given = list(output_grads)
    else:
        hint = "write [np.ones_like(outputs[0])]"
        raise InputError(f"gradients come in a list or by name, got {type(output_grads).__name__}", hint, code="E301")
    if len(given) != len(names):
        raise InputError(
            f"there are {len(names)} outputs ({', '.join(names)}), but {len(given)} gradients",
            "give one for each output, None where it does not count",
            code="E926",
        )
    found: dict[str, Any] = {}
    for name, value, g in zip(names, saved.outputs, given, strict=True):
        seeded = name in saved.split.seeds
        if not seeded or value.dtype.kind != "f":
            if seeded:  # its dtype was not known before it ran
                found[name] = np.zeros(value.shape)
            if g is not None:
                hint = f"give None for {name!r}"
                raise DTypeError(f"output {name!r} is of {value.dtype}, which has no gradient", hint, code="E904")
            continue
        array = np.zeros_like(value) if g is None else np.asarray(g)
        if array.shape != value.shape:
            what = f"the gradient of output {name!r} is of shape {list(array.shape)}, the output of {list(value.shape)}"
            raise InputError(what, f"give an array like outputs[{name!r}]", code="E908")
        found[name] = array.astype(value.dtype, copy=False)
    return found
