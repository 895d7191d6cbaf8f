"""What every case is held to: the plain executor's answer, owned outputs, the same bits again, no exception but ours."""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.events import Hook
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.ir.graph import bodies
from tensorlogic.ir.ops import ContractVJP, Einsum, Transfer
from tensorlogic.testing.random_graphs import GraphCase

EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
UNITS = 512  # roundings of the largest value in a run by which a road that is not exact may differ


TAKEN: Counter[str] = Counter()  # how many roads were taken
# steps that NumPy itself refuses, by what it says; any other exception inside a step is a fault of ours
REFUSED = (
    "Integers to negative integer powers are not allowed",
    "is out of range for an axis of",
    "is no class: the logits have",
)


class Wrong(AssertionError):  # noqa: N818 - it says what it is
    """A road that broke its promise."""


class Roads:
    """Which roads a case takes: all of them, or a share that is decided by its salt."""

    def __init__(self, salt: int = 0, share: float = 1.0) -> None:
        self.salt, self.share = salt, share

    def takes(self, road: str, rarer: float = 1.0) -> bool:
        """Tell whether this case goes down a road."""
        share = self.share * rarer if self.share < 1 else 1.0
        return zlib.crc32(f"{self.salt} {road}".encode()) < share * 2**32


class Expected(Roads):
    """What the plain executor says of a case: outputs, or an error; and how large its values become."""

    def __init__(self, case: GraphCase, salt: int = 0, share: float = 1.0) -> None:
        super().__init__(salt, share)
        self.case, self.error = case, None
        self.outputs: dict[str, Any] = {}
        self.ties_zeros = _ties_zeros(case.graph)
        self._unit: float | None = None
        with quiet():
            try:
                self.outputs = dict(tl.Executor().execute(case.graph, copies(case.inputs)))
            except tl.TensorLogicError as error:
                if error.diagnostic.code == "E004" and not any(reason in str(error) for reason in REFUSED):
                    raise Wrong(f"the plain executor fails: {error}") from error
                self.error = error

    @property
    def unit(self) -> float:
        """The unit in the last place of the largest value in the run, in the coarsest dtype it holds."""
        if self._unit is None:
            largest = Largest()
            with quiet():
                tl.Executor(context=tl.ExecutionContext([largest])).execute(self.case.graph, copies(self.case.inputs))
            ends = (*self.case.inputs.values(), *self.outputs.values())
            given = (EPSILON.get(np.asarray(v).dtype.name, 0.0) for v in ends)
            largest.on_step(None, None, tuple(self.outputs.values()))  # what was folded is made by no step
            self._unit = largest.value * max([largest.epsilon, *given])
        return self._unit

    def fails_unseen(self) -> bool:
        """Tell whether something fails that no output needs: a road that leaves out less than the plain executor comes upon it."""
        graph, types = self.case.graph, self.case.graph.inference.types
        if any(isinstance(node.op, Transfer) for node in graph.nodes):
            return True  # what reads from two devices may be left out as well
        every = [(f"v{i}", i) for i in range(len(graph.nodes)) if len(types[i]) == 1]
        try:
            with quiet():
                tl.Executor().execute(tl.EinsumGraph(graph.nodes, every, graph.constants), copies(self.case.inputs))
        except tl.TensorLogicError:
            return True
        return False

    def check(self, road: str, outputs: Mapping[str, Any], *, exact: bool) -> None:
        """Compare outputs with what is expected: bit by bit, or within the tolerance of a road that reorders sums."""
        for name, want in self.outputs.items():
            got = np.asarray(outputs[name])
            if got.shape != want.shape or got.dtype != want.dtype:
                raise Wrong(f"{road}: {name} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
            if exact or name in self.case.exact or not is_float(want):
                signs = exact and not self.ties_zeros
                equal = np.array_equal(wide(got), wide(want), equal_nan=is_float(want))
                if not (same_bits(got, want) if signs else equal):
                    raise Wrong(f"{road}: {name} differs from the plain executor:\n{got!r}\nnot\n{want!r}")
                continue
            with quiet():
                near = np.abs(got.astype("f8") - want.astype("f8")) <= UNITS * self.unit
            # a sum that holds infinities is one of them or NaN, by what is added up first
            near |= (wide(got) == wide(want)) | (~np.isfinite(wide(got)) & ~np.isfinite(wide(want)))
            if not np.all(near):
                raise Wrong(
                    f"{road}: {name} is far from the plain executor (one unit is {self.unit}):\n{got!r}\nnot\n{want!r}"
                )


def _ties_zeros(graph: tl.EinsumGraph) -> bool:
    """Tell whether contractions may take the maximum or minimum of 0 and -0: which it is depends on where NumPy finds them."""
    return any(
        (isinstance(node.op, Einsum | ContractVJP) and ALGEBRAS[node.op.algebra].reduce in ("max", "min"))
        or any(map(_ties_zeros, bodies(node.op)))
        for node in graph.nodes
    )


class Largest(Hook):
    def __init__(self) -> None:
        self.value, self.epsilon = 1.0, 0.0

    def on_step(self, plan: Any, event: Any, values: tuple[Any, ...]) -> None:
        for v in values:
            if isinstance(v, np.ndarray) and is_float(v) and v.size:
                self.epsilon = max(self.epsilon, EPSILON[v.dtype.name])
                finite = np.abs(wide(v)[np.isfinite(wide(v))])
                if finite.size:
                    self.value = max(self.value, float(finite.max()))


@contextmanager
def quiet() -> Iterator[None]:
    """Let NumPy say nothing of overflows."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def is_float(array: Any) -> bool:
    """Tell whether an array holds floats, bfloat16 too."""
    return array.dtype.name in EPSILON


def wide(array: Any) -> Any:
    """Return an array of bfloat16 as one of float32, which has all its values and all of NumPy's functions."""
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def same_bits(a: Any, b: Any) -> bool:
    """Tell whether two arrays hold the same bits; every NaN is as good as another."""
    a, b = wide(a), wide(b)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(
        np.array_equal(a, b, equal_nan=True)
        and np.array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))
    )


def copies(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs in arrays of their own."""
    return {name: np.array(value) for name, value in inputs.items()}


def check_owned(road: str, outputs: Mapping[str, Any], inputs: Mapping[str, Any], *earlier: Mapping[str, Any]) -> None:
    """See to it that outputs are arrays of their own: of no input, no other output and no earlier one."""
    held = [*inputs.items(), *((f"the last {name}", value) for outputs in earlier for name, value in outputs.items())]
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise Wrong(f"{road}: output {name} is a {type(value).__name__}")
        if not value.flags.writeable:
            raise Wrong(f"{road}: output {name} cannot be written to")
        for other, array in held:
            if value.size and isinstance(array, np.ndarray) and np.shares_memory(value, array):
                raise Wrong(f"{road}: output {name} stands in the memory of {other}")
        held.append((name, value))


def run(road: str, expected: Expected, function: Callable[[dict[str, Any]], Any], *, exact: bool = True, times: int = 2,
        may_refuse: bool | Callable[[], bool] = False, donated: Sequence[str] = (), rarer: float = 1.0, always: bool = False) -> None:  # fmt: skip
    """Take a road, or a share of the cases: right, owned, repeatable, and no exception but ours."""
    if not always and not expected.takes(road, rarer):
        return
    TAKEN[""] += 1
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(times):
        inputs = copies(expected.case.inputs)
        before = copies(inputs)
        try:
            with quiet():
                outputs = function(inputs)
        except tl.TensorLogicError as error:
            if expected.error is None and not (may_refuse() if callable(may_refuse) else may_refuse):
                raise Wrong(f"{road}: refused what the plain executor does: {error}") from error
            return
        except Exception as error:
            raise Wrong(f"{road}: raised {type(error).__name__}: {error}") from error
        if expected.error is not None:
            return  # an operation that fails may be gone, or fail later
        named = dict(outputs) if not isinstance(outputs, dict) else outputs
        expected.check(road, named, exact=exact)
        for name, value in inputs.items():
            if name not in donated and not same_bits(value, before[name]):
                raise Wrong(f"{road}: input {name} was written over")
        others = {k: v for k, v in inputs.items() if k not in donated}
        check_owned(road, named, others, *(h for h, _ in held))
        held.append((named, copies(named)))
    first = held[0][1] if held else {}
    for named, kept in held:
        for name, value in named.items():
            if not same_bits(value, kept[name]):
                raise Wrong(f"{road}: output {name} was written over by a later call")
            if not same_bits(value, first[name]):
                raise Wrong(f"{road}: equal calls give different bits in {name}")
