"""Checking gradients: against central differences in float64, element by element or along random directions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..backends.numpy import as_numpy
from ..diagnostics import value_text
from ..errors import InputError, expect, expect_known, expect_whole, nearest
from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan
from ..ir.ops import Op, constant_op
from ..ir.types import FLOATS
from ..passes.grad import check, parameters, vjp
from ..runtime.autodiff import cotangent_names
from ..runtime.executor import Executor
from ..runtime.protocols import TlExecutor
from ..tables import table

Array = NDArray[Any]
_OPTIONS = [name for name, p in inspect.signature(vjp).parameters.items() if p.kind is p.KEYWORD_ONLY]


class GradientCheck(NamedTuple):
    """How the gradient for one input compares: the worst place, the derivative there, and the difference quotient.

    ``place`` is an index, or the number of a random direction; the verdict is ``ok``, ``kink`` (the slopes to the left and
    right differ however short the step, and the gradient lies between them) or ``wrong``.
    """

    name: str
    shape: tuple[int, ...]
    checked: str
    place: str
    derivative: float
    quotient: float
    error: float
    verdict: str


class _Slopes(NamedTuple):
    """Difference quotients with one step: over both sides, to the left and to the right, and how far rounding moves them."""

    quotient: float
    left: float
    right: float
    noise: float


class GradientReport(NamedTuple):
    """What a check found; it prints as a table with the worst place of every input.

    >>> row = GradientCheck("w", (2, 3), "6 elements", "[1, 2]", 0.5, 0.7, 0.2, "wrong")
    >>> print(GradientReport((row,)))
    input  shape   checked     worst at  derivative  quotient    error  verdict
    w      [2, 3]  6 elements  [1, 2]           0.5       0.7  2.0e-01  wrong
    1 of 1 gradients is wrong
    """

    checks: tuple[GradientCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether no gradient is wrong."""
        return all(c.verdict != "wrong" for c in self.checks)

    @property
    def worst(self) -> GradientCheck:
        """The check with the greatest error, a wrong one if there is any."""
        return max(self.checks, key=lambda c: (c.verdict == "wrong", c.error))

    def __str__(self) -> str:
        head = ["input", "shape", "checked", "worst at", "derivative", "quotient", "error", "verdict"]
        rows = []
        for c in self.checks:
            numbers = f"{c.derivative:.8g}", f"{c.quotient:.8g}", f"{c.error:.1e}"
            rows.append([c.name, str(list(c.shape)), c.checked, c.place, *numbers, c.verdict])
        wrong, count = sum(c.verdict == "wrong" for c in self.checks), len(self.checks)
        summary = f"{wrong} of {count} gradients {'is' if wrong == 1 else 'are'} wrong"
        if not wrong:
            agree = f"all {count} gradients agree" if count > 1 else f"{count} gradient agrees"
            summary = f"{agree} with central differences"
        return "\n".join([table(head, rows, right={4, 5, 6}), summary])


class GradientChecker:
    """Compares the gradients of a graph with central differences, in float64 whatever the graph declares.

    Inputs of up to ``elements`` elements are checked at every one; larger ones at that many random elements and along
    ``directions`` random directions. Outputs that are no scalars are weighted by random numbers.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> loss = b.build(loss=b.sum(b.tanh(b.input("x", (2,)))))
    >>> report = GradientChecker().check(loss, {"x": [0.5, -1.0]})
    >>> report.passed, report.worst.checked
    (True, '2 elements')
    """

    def __init__(
        self,
        *,
        rtol: float = 1e-5,
        atol: float = 1e-7,
        step: float | None = None,
        elements: int = 64,
        directions: int = 4,
        seed: int = 0,
        executor: TlExecutor | None = None,
    ) -> None:
        for word, number in (("rtol", rtol), ("atol", atol), ("step", 1.0 if step is None else step)):
            if not isinstance(number, int | float) or not 0 <= number < np.inf or (word == "step" and number == 0):
                raise InputError(f"{word}= is a positive number, got {value_text(number)}", code="E360")
        expect_whole("elements", elements)
        expect_whole("directions", directions)
        self.rtol, self.atol = rtol, atol
        # the cube root of the rounding error balances it against the curvature
        self.step = float(np.finfo(np.float64).eps ** (1 / 3)) if step is None else step
        self.elements, self.directions, self.seed = elements, directions, seed
        self.executor = executor

    def check(
        self,
        graph: EinsumGraph,
        inputs: Mapping[str, Any],
        wrt: str | Sequence[str] | None = None,
        *,
        of: str | None = None,
        **options: Any,
    ) -> GradientReport:
        """Compare the gradients for ``wrt`` at some inputs, of all outputs or of the one that ``of`` names.

        Other options are those of :func:`~tensorlogic.vjp`.
        """
        check(graph)
        expect(inputs, Mapping, "inputs are given by name", 'write {"x": array}')
        for word in options:
            if word not in _OPTIONS:
                raise InputError(f"check takes no {word}=", *nearest(word, _OPTIONS), code="E361")
        run = self.executor or Executor()
        wide = widened(graph)
        if of is not None:
            expect_known("the graph has no output", [of], wide.output_names, "E305")
            if isinstance(custom := options.get("custom"), Mapping):  # nodes keep their numbers, other outputs go
                ends = dict(wide.outputs)
                options["custom"] = {ends.get(key, key): rule for key, rule in custom.items()}
            wide = EinsumGraph(wide.nodes, [output for output in wide.outputs if output[0] == of], wide.constants)
        # lists take the dtype that is declared, as in a run
        kinds = {name: wide.type_of(i).dtype for name, i in wide.inputs.items()}
        given = {name: _wide(as_numpy(value, kinds.get(name))) for name, value in inputs.items()}
        if wrt is None:
            wrt = [n for n in parameters(wide, None) if n not in given or given[n].dtype.kind == "f"]
        names = list(parameters(wide, wrt))
        for name in names:
            if name not in given:
                raise InputError(f"input {name!r} is missing", f"inputs: {list(given)}", code="E303")
        rng = np.random.default_rng(self.seed)
        values = dict(zip(wide.output_names, run.execute(wide, given), strict=True))
        back = vjp(wide, names, **options)
        smooth = cotangent_names(wide, back)
        weights = {n: rng.normal(size=np.shape(values[n])) if np.ndim(values[n]) else np.float64(1) for n in smooth}
        found = run.execute(back, {**given, **{seed: weights[n] for n, seed in smooth.items()}})

        def outputs(name: str, value: Array) -> Array:
            outs = dict(zip(wide.output_names, run.execute(wide, {**given, name: value}), strict=True))
            return np.concatenate([np.ravel(np.asarray(outs[n], float)) for n in smooth])

        flat = np.concatenate([np.ravel(weights[n]) for n in smooth])

        def slope(above: Array, below: Array, width: float) -> float:
            with np.errstate(all="ignore"):  # infinities that stay do not move
                return float(np.sum(flat * np.where(above == below, 0.0, above - below)) / width)

        def around(name: str, here: Array, along: Array, h: float) -> _Slopes:
            x = given[name]
            above, below = outputs(name, x + h * along), outputs(name, x - h * along)
            size = float(np.sum(np.abs(flat * np.where(np.isfinite(here), here, 0.0))))
            noise = 4 * float(np.finfo(np.float64).eps) * size / h
            return _Slopes(slope(above, below, 2 * h), slope(here, below, h), slope(above, here, h), noise)

        each = zip(names, found, strict=True)
        checks = [self._compare(n, given[n], np.asarray(g, float), outputs, around, rng) for n, g in each]
        return GradientReport(tuple(checks))

    def _compare(
        self,
        name: str,
        x: Array,
        gradient: Array,
        outputs: Callable[[str, Array], Array],
        around: Callable[[str, Array, Array, float], _Slopes],
        rng: np.random.Generator,
    ) -> GradientCheck:
        if gradient.shape != x.shape:
            return GradientCheck(name, x.shape, "shape", f"{list(gradient.shape)}", np.nan, np.nan, np.inf, "wrong")
        if not x.size:
            return GradientCheck(name, x.shape, "nothing", "-", 0.0, 0.0, 0.0, "ok")
        here = outputs(name, x)
        what, tries = f"{x.size} element{'' if x.size == 1 else 's'}", [*range(x.size)]
        if x.size > self.elements:
            what = f"{self.elements} elements, {self.directions} directions"
            tries = [*rng.choice(x.size, self.elements, replace=False).tolist(), *range(-1, -self.directions - 1, -1)]
        rows = []
        for at in tries:  # a place, or a direction's number below 0
            if at < 0:
                along = rng.normal(size=x.shape)
                along /= np.linalg.norm(along)
            else:
                along = np.zeros(x.shape)
                along.flat[at] = 1.0
            place = f"direction {-1 - at}" if at < 0 else str([int(i) for i in np.unravel_index(at, x.shape)])
            h = self.step * max(1.0, float(np.max(np.abs(x), initial=0.0) if at < 0 else abs(x.flat[at])))
            slopes = functools.partial(around, name, here, along)
            verdict = self._verdict(float(np.sum(gradient * along)), slopes, h)
            rows.append(GradientCheck(name, x.shape, what, place, *verdict))
        return GradientReport(tuple(rows)).worst

    def _verdict(
        self, derivative: float, slopes: Callable[[float], _Slopes], h: float
    ) -> tuple[float, float, float, str]:
        """Compare a derivative with the slopes at a step, and at shorter ones where that says it is wrong."""
        estimates: list[_Slopes] = []
        for n in (1, 4, 16, 64):  # a kink or strong curve nearby may be out of reach of a shorter step
            estimates.append(slopes(h / n))
            error = abs(derivative - estimates[-1].quotient)
            if error <= self._room(derivative, estimates[-1].quotient):
                return derivative, estimates[-1].quotient, error, "ok"
        first, wide, short, _ = estimates
        # A curve has different slopes to the left and right as well, but their gap shrinks with the step: at a kink it stays.
        gap, before = abs(short.right - short.left), abs(wide.right - wide.left)
        room = self._room(derivative, short.quotient)
        kink = np.isfinite(gap) and gap > max(room, short.noise) and gap > 0.6 * before
        # what the slopes tend to as the step goes to 0, beside what they are
        limits = [b + (b - a) / 3 for a, b in ((wide.left, short.left), (wide.right, short.right))]
        sides = [short.left, short.right, *limits]
        verdict = "kink" if kink and min(sides) - room <= derivative <= max(sides) + room else "wrong"
        error = abs(derivative - first.quotient)
        return derivative, first.quotient, error if np.isfinite(error) else np.inf, verdict

    def _room(self, derivative: float, quotient: float) -> float:
        return self.atol + self.rtol * max(abs(derivative), abs(quotient))

    def __repr__(self) -> str:
        return f"<GradientChecker rtol={self.rtol:g}, atol={self.atol:g}, step={self.step:.2g}>"


def _wide(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def widened(graph: EinsumGraph) -> EinsumGraph:
    """Return a graph that computes in float64 what the given one computes in narrower floats.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> widened(b.build(y=b.input("x", (2,), "float32") * np.float32(2))).type_of(2).dtype
    'float64'
    """
    constants: dict[str, Array] = {}
    nodes = []
    for node in graph.nodes:
        op = node.op
        if isinstance(op, ops.Constant):
            array = _wide(graph.constants[op.digest])
            op = constant_op(array)
            constants[op.digest] = array
        nodes.append(Node(_wide_op(op), node.args, node.locations))
    return EinsumGraph(nodes, graph.outputs, constants)


def _wide_op(op: Op) -> Op:
    match op:
        case ops.Input() | ops.Cast() | ops.Iota() if op.dtype in FLOATS:
            return msgspec.structs.replace(op, dtype="float64")
        case Fixpoint() | Scan():
            return msgspec.structs.replace(op, body=widened(op.body))
        case Cond():
            return Cond(widened(op.then), widened(op.otherwise))
        case _:
            return op
