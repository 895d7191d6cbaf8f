"""A graph cut along the streamed index, whose total size need not be known until the stream ends.

The split is the one of :mod:`tensorlogic.passes.split`, made for a stand-in of the total. What depends on that stand-in is found by
making it for two of them and comparing: a part must not, and what comes after the last chunk is made anew once the total is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...diagnostics import value_text
from ...errors import GraphError, InputError, ShapeError, expect, expect_known, nearest
from ...ir import ops
from ...ir.graph import EinsumGraph, extract, node_name
from ...ir.sizes import Dim, evaluate
from ...ir.types import TensorShape, TensorType, normal_axis
from ...passes.follow_index import AFTER, PART
from ...passes.logsumexp import contract_logsumexp
from ...passes.specialize import misfit, specialize
from ...passes.split import Join, Split, label, split_inputs

STAND_INS = (1_000_003, 1_000_033)  # primes, so that no product of other sizes is one of them
PARTS = 64  # graphs of chunks of different sizes that are kept
Over = str | Mapping[str, int] | None


def streamed_axes(graph: EinsumGraph, over: Over, whole: Iterable[str]) -> dict[str, int]:
    """Return the inputs that come in chunks, each with the axis that the chunks cut: as ``over`` says, or where it is plain.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", 3)) @ b.input("w", (3, "k")))
    >>> streamed_axes(graph, None, ["w"]), streamed_axes(graph, "k", ["x"])
    ({'x': 0}, {'w': 1})
    """
    given = set(whole)
    expect_known("the graph has no input", given, graph.inputs)
    left = [name for name in graph.inputs if name not in given]
    match over:
        case None:
            axes = dict.fromkeys(left, 0)
        case str() if over in graph.size_names:
            axes = {name: _axis_of(graph, name, over) for name in left if over in _shape(graph, name)}
        case str() if over in graph.inputs:
            axes = {over: 0}
        case str():
            known = [*sorted(graph.size_names), *graph.inputs]
            raise InputError(
                f"the graph has no size and no input {value_text(over)} to stream", *nearest(over, known), code="E530"
            )
        case _:
            expect(over, Mapping, "over= is a size, an input, or a mapping from inputs to axes", 'write over={"x": 0}')
            axes = {name: _checked_axis(graph, name, axis) for name, axis in over.items()}
    for name in axes:
        if name in given:
            raise InputError(f"input {name!r} is streamed, and must not be in inputs= too", code="E530")
    missing = [name for name in left if name not in axes]
    if missing or not axes:
        what = f"input {missing[0]!r} is not streamed" if missing else "no input is streamed"
        hint = (
            f"give it whole: inputs={{{missing[0]!r}: array}}"
            if missing
            else "leave one out of inputs= (of -i on the command line)"
        )
        raise InputError(what, hint, code="E530")
    sizes = {name: _shape(graph, name)[axis] for name, axis in axes.items() if _shape(graph, name)}
    if len(set(sizes.values())) > 1:
        (one, a), (other, b) = next(
            ((p, q) for p in sizes.items() for q in sizes.items() if p[1] != q[1]), (("", 0), ("", 0))
        )
        message = f"inputs {one!r} and {other!r} would be cut together, but along sizes {a!r} and {b!r}"
        hint = f"give one of them whole, such as inputs={{{other!r}: array}}, or say which size: over={str(a)!r}"
        typed = f"on the command line: -i {other}={other}.npy, or --over {a}"
        raise InputError(message, hint, typed, code="E530")
    return axes


def _shape(graph: EinsumGraph, name: str) -> tuple[Any, ...]:
    op = graph.nodes[graph.inputs[name]].op
    assert isinstance(op, ops.Input)
    return op.shape or ()


def _axis_of(graph: EinsumGraph, name: str, size: str) -> int:
    shape = _shape(graph, name)
    if shape.count(size) > 1:
        hint = f"say which: over={{{name!r}: {shape.index(size)}}}"
        raise InputError(f"input {name!r} has the size {size!r} twice", hint, code="E530")
    return shape.index(size)


def _checked_axis(graph: EinsumGraph, name: str, axis: int) -> int:
    expect_known("the graph has no input", [name], graph.inputs)
    declared = graph.type_of(graph.inputs[name]).shape
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise InputError(f"over={{{name!r}: {value_text(axis)}}}: an axis is a whole number", code="E530")
    return axis if declared is None else normal_axis(axis, len(declared), "over=")


def _in_words(error: ShapeError) -> ShapeError:
    """Return an error without the number that stands for the rows of the stream."""
    found = error.diagnostic

    def worded(text: str) -> str:
        return text.replace(str(STAND_INS[0]), "rows")

    error.diagnostic = msgspec.structs.replace(
        found, message=worded(found.message), context=tuple(map(worded, found.context))
    )
    return error


def refuse_misfit(name: str, axis: int, declared: tuple[Dim, ...], given: tuple[Dim, ...], rows: int | None) -> None:
    """Refuse rows that are not as declared, in words of chunks; ``rows`` is how many there are in all, where that is known."""
    form = f"[{', '.join(map(str, declared))}]"
    if declared and len(given) == len(declared) - 1:
        error = misfit(name, declared, given, f"{len(declared)} axes are declared, and a chunk has {len(given)}")
        hint = f"a chunk holds several rows, {form}: for one row give x[i:i+1], for a list of rows np.asarray(rows)"
        error.diagnostic = msgspec.structs.replace(error.diagnostic, context=(), suggestions=(hint,))
        raise error
    for n, (want, got) in enumerate(zip(declared, given, strict=False)):
        if n != axis and len(given) == len(declared) and isinstance(want, int) and want != got:
            why, hint = f"axis {n} must be {want}, got {got}", f"a chunk is {form}, with its rows along axis {axis}"
            whole, chunk = ((*given[:axis], size, *given[axis + 1 :]) for size in (given[axis] or rows or 0, "rows"))
            error = misfit(name, declared, whole, why)
            hints: tuple[str, ...] = (hint, error.diagnostic.suggestions[-1])
            if "transpose" not in hints[-1]:
                error = misfit(name, declared, chunk, why)
                hints = (f"{hint}: transpose it if its axes are in another order",)
            error.diagnostic = msgspec.structs.replace(error.diagnostic, suggestions=hints)
            raise error


class StreamSplit:
    """A graph as a stream runs it: what comes before the first chunk, the graph of a chunk, and what comes after the last.

    ``kept`` are the outputs that have the streamed index, with its axis; all others are of the whole stream.
    """

    def __init__(
        self, graph: EinsumGraph, axes: Mapping[str, int], types: Mapping[str, TensorType], rows: int | None = None
    ) -> None:
        self.axes, self.types = dict(axes), dict(types)
        for name, axis in axes.items():
            refuse_misfit(name, axis, _shape(graph, name), tuple(types[name].shape or ()), rows)
        self.graph, self.passed = _without_passed(graph, axes)
        self.total = _known_total(graph, axes, types)
        try:
            self.cut = self._made(STAND_INS[0] if self.total is None else self.total)
        except ShapeError as error:
            if self.total is not None or not self._fixed_inside(error):
                raise _in_words(error) from None
            if rows is None:
                why = error.diagnostic.message.partition(": here ")[0].replace(str(STAND_INS[0]), "another size")
                hint = "declare the streamed axis with the size that it must have"
                place = None if error.guessed else error.diagnostic.location
                raise ShapeError(f"the streamed size is not free: {why}", hint, code="E530", location=place) from None
            self.total, self.cut = rows, self._made(rows)
        self._refuse_whole()
        self.kept: dict[str, int] = {name: axes[owner] for name, owner in self.passed.items()}
        concat = {join.label: join.axis for join in self.cut.joins if join.how == "concat"}
        for name, stage, own in self.cut.outputs:
            if stage == "join" and own in concat:
                self.kept[name] = concat[own] or 0
        self.output_names = tuple(graph.output_names)
        self.totals = tuple(join for join in self.cut.joins if join.how != "concat")
        self._parts: dict[int, EinsumGraph] = {}

    @property
    def place(self) -> str:
        """The streamed index in words."""
        return self.cut.place

    @property
    def final(self) -> tuple[str, ...]:
        """The outputs of the whole stream, in order."""
        return tuple(name for name in self.output_names if name not in self.kept)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The number of axes of each output."""
        found = {name: len(self.cut.graph.type_of(i).shape or ()) for name, i in self.cut.graph.outputs}
        return found | {name: len(self.types[owner].shape or ()) for name, owner in self.passed.items()}

    def part(self, size: int) -> EinsumGraph:
        """Return the graph of a chunk: its inputs are the feeds of the cut, its outputs are the joins."""
        found = self._parts.get(size)
        if found is None:
            if len(self._parts) >= PARTS:
                self._parts.clear()
            found = self._parts[size] = self.cut.part(size)
        return found

    def at(self, total: int) -> Split:
        """Return the split for the total that the stream had: the same, unless what comes after depends on it."""
        return self.cut if self.free_of_total else self._made(total)

    def joins(self, rows: int) -> tuple[Join, ...]:
        """Return how totals are joined, with the divisors of means over so many rows."""
        size = self.cut.size
        return tuple(
            join._replace(divisor=join.divisor // size * rows) if join.how == "mean" else join for join in self.totals
        )

    @cached_property
    def free_of_total(self) -> bool:
        """Whether what comes before and after is the same whatever the total is."""
        if self.total is not None:
            return True
        other = self._other
        return other.before == self.cut.before and other.after == self.cut.after

    @cached_property
    def _other(self) -> Split:
        return self._made(STAND_INS[1])

    def _made(self, total: int) -> Split:
        types = dict(self.types)
        for name, axis in self.axes.items():
            shape = list(types[name].shape or ())
            shape[axis] = total
            types[name] = types[name]._replace(shape=TensorShape(shape))
        known = {name: types[name] for name in self.graph.inputs}
        concrete = contract_logsumexp(specialize(self.graph, known))
        axes = {name: axis for name, axis in self.axes.items() if name in concrete.inputs}
        return split_inputs(concrete, axes) if axes else _without_stream(concrete, total)

    def _fixed_inside(self, error: ShapeError) -> bool:
        """Tell whether something inside of the graph fixes the size: then another stand-in gives another error."""
        try:
            self._made(STAND_INS[1])
        except ShapeError as other:
            return other.diagnostic.message != error.diagnostic.message
        return True

    def _refuse_whole(self) -> None:
        """Refuse a graph in which something needs all of the streamed index at once, or its size before the end."""
        cut, graph = self.cut, self.cut.graph
        streamed = {graph.inputs[name] for name in self.axes if name in graph.inputs}
        long = streamed | {join.node for join in cut.joins if join.how == "concat"}
        for i, (node, role) in enumerate(zip(graph.nodes, cut.roles, strict=True)):
            if role.stage == AFTER and not long.isdisjoint(node.args):
                raise self._refusal(i, "needs all of it at once")
            if i in cut.picks:
                needs = dict(zip(node.args, cut.picks[i].args, strict=True))
                if any(a in streamed and needs[a] != cut.roles[a].axis for a in needs):
                    raise self._refusal(i, "needs all of it at once")
        if self.total is not None:
            return
        other = self._other
        if other.roles == cut.roles and other.part(7) == cut.part(7):
            differs = [
                f.node
                for f in cut.feeds
                if not isinstance(graph.nodes[f.node].op, ops.Input | ops.Constant | ops.Iota)
                and self._needs_total(f.node)
            ]
            whole = [f.node for f in cut.feeds if f.axis is None and isinstance(graph.nodes[f.node].op, ops.Iota)]
            differs += [node for node in whole if self._needs_total(node)]
            if not differs:
                return
        else:
            pairs = enumerate(zip(graph.nodes, other.graph.nodes, strict=True))
            differs = [i for i, (a, b) in pairs if a.op != b.op and cut.roles[i].stage == PART]
        raise self._refusal(differs[0] if differs else len(graph) - 1, "needs to know how large it is in all")

    def _needs_total(self, node: int) -> bool:
        pair = [extract(s.graph.nodes, [("value", node)], s.graph.constants) for s in (self.cut, self._other)]
        return pair[0] != pair[1]

    def _refusal(self, i: int, why: str) -> GraphError:
        graph = self.cut.graph
        node = graph.nodes[i]
        hints = [_INSTEAD[node.op.name]] if node.op.name in _INSTEAD else []
        hints.append("run it whole with execute, or stream along another index: over=")
        message = f"{node.op.name} ({node_name(graph.nodes, i).strip(chr(39))}) cannot be streamed along {self.place}: it {why}"
        return GraphError(message, *hints, code="E531").at(node.location)


_INSTEAD = {
    "subtract": "what is subtracted is known only after the last chunk: a variance is mean(x * x) - mean(x) * mean(x)",
    "argmax": "stream the max, then look for it in a second stream",
    "argmin": "stream the min, then look for it in a second stream",
}


def _without_passed(graph: EinsumGraph, axes: Mapping[str, int]) -> tuple[EinsumGraph, dict[str, str]]:
    """Return the graph without the outputs that are streamed inputs as they are, and which those are."""
    owners = {graph.inputs[name]: name for name in axes}
    passed = {name: owners[i] for name, i in graph.outputs if i in owners}
    if not passed:
        return graph, {}
    rest = [(name, i) for name, i in graph.outputs if name not in passed]
    return extract(graph.nodes, rest, graph.constants, list(graph.inputs.values())), passed


def _known_total(graph: EinsumGraph, axes: Mapping[str, int], types: Mapping[str, TensorType]) -> int | None:
    """Return the size of the streamed index where the graph or another input fixes it; None where the stream does."""
    sizes: dict[str, int] = {}
    for name in graph.inputs:
        for axis, (declared, own) in enumerate(zip(_shape(graph, name), types[name].shape or (), strict=False)):
            if isinstance(declared, str) and axes.get(name) != axis:
                sizes.setdefault(declared, int(own))
    for name, axis in axes.items():
        shape = _shape(graph, name)
        declared = shape[axis] if shape else None
        if isinstance(declared, int):
            return declared
        if isinstance(declared, str) and not declared.isidentifier():
            hint = "declare that axis with a name of its own"
            raise ShapeError(
                f"axis {axis} of {name!r} is {declared!r}, and only a plain size can be streamed", hint, code="E530"
            )
        if declared is not None and declared in sizes:
            return sizes[declared]
        for equality in graph.inference.equalities:  # an operation may want it to be as large as something else
            other = {equality.left: equality.right, equality.right: equality.left}.get(str(declared))
            known = None if other is None else evaluate(other, sizes)
            if isinstance(known, int):
                return known
    return None


def _without_stream(graph: EinsumGraph, total: int) -> Split:
    """Return the split of a graph of which no output depends on what is streamed."""
    from ...passes.split import Role

    kept = dict.fromkeys((label(graph, i), i) for _, i in graph.outputs)
    before = extract(graph.nodes, kept, graph.constants)
    outputs = tuple((name, "before", label(graph, i)) for name, i in graph.outputs)
    empty = EinsumGraph((), (), graph.constants)
    return Split(graph, "nothing", total, (Role("before"),) * len(graph), before, empty, (), (), outputs, {})


class Feeds(NamedTuple):
    """What a chunk is given beside the streamed inputs: by label, a value and the axis it is cut along (None: whole)."""

    streamed: tuple[tuple[str, str], ...]  # label, input
    whole: tuple[tuple[str, Any, int | None], ...]
    counts: tuple[tuple[str, str], ...]  # label and dtype of the positions in the stream


def feeds_of(cut: Split, axes: Mapping[str, int], whole: Mapping[str, Any], before: Mapping[str, Any]) -> Feeds:
    """Return what chunks of a cut graph are given: ranges of the stream, and of what is there whole."""
    streamed, values, counts = [], [], []
    for feed in cut.feeds:
        op = cut.graph.nodes[feed.node].op
        match op:
            case ops.Input() if op.label in axes:
                streamed.append((feed.label, op.label))
            case ops.Input():
                values.append((feed.label, whole[op.label], feed.axis))
            case ops.Constant():
                values.append((feed.label, cut.graph.constants[op.digest], feed.axis))
            case ops.Iota() if feed.axis is not None:
                counts.append((feed.label, op.dtype))
            case _:
                values.append((feed.label, before[label(cut.graph, feed.node)], feed.axis))
    return Feeds(tuple(streamed), tuple(values), tuple(counts))


def positions(start: int, stop: int, dtype: str) -> Any:
    """Return the places of a chunk in the stream, which is what ``iota`` is there."""
    return np.arange(start, stop, dtype=dtype)
