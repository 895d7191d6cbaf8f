"""Precision by budget: how much rounding each weight changes the outputs, and how many bits each gets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...diagnostics import bytes_text, value_text
from ...errors import InputError, expect_whole
from ...ir.constants import all_constants
from ...ir.graph import EinsumGraph
from ...ir.ops import constant_digest
from ...ir.quantization_config import ActivationMode, QuantizationConfig, QuantizationRounding
from ...ir.quantized import QuantizationGranularity, QuantizationType
from ...passes.quantize import lowered, with_pairs
from ...tables import html_text, table
from .error_figures import relative_error
from .post_training import Batches, Model, choose, model_of

if TYPE_CHECKING:
    from ...runtime.executor import Executor


def _weights_as(kind: QuantizationType, granularity: QuantizationGranularity) -> QuantizationConfig:
    only, search = ActivationMode.WEIGHT_ONLY, QuantizationRounding.SCALE_SEARCH
    return QuantizationConfig(kind, granularity, activations=only, rounding=search)


# from the most bits to the least; a weight that is left as it is has None
LADDER: dict[str, QuantizationConfig | None] = {
    "float32": None,
    "int8": _weights_as(QuantizationType.INT8, QuantizationGranularity.PER_CHANNEL()),
    "int4": _weights_as(QuantizationType.INT4, QuantizationGranularity.PER_GROUP(32)),
    "int2": _weights_as(QuantizationType.INT2, QuantizationGranularity.PER_GROUP(32)),
}
LEVELS = tuple(LADDER)


class PrecisionRow(NamedTuple):
    """One weight: for each level the bytes it takes and the relative error of the outputs with it alone rounded."""

    name: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    level: int = 0


class PrecisionAssignment(Mapping[str, "QuantizationConfig | None"]):
    """The precision of each weight by name, for :func:`quantize`; it prints as a table of what was measured and chosen.

    ``error`` is the relative error of the outputs with all of them rounded, measured on the calibration data; without such data
    errors are those of the weights themselves.

    >>> row = PrecisionRow("w", (4, 4), (64, 20, 16, 12), (0.0, 0.01, 0.1, 0.4), level=1)
    >>> PrecisionAssignment((row,), 20, 0.01, None)["w"].type.name
    'INT8'
    """

    def __init__(
        self, rows: tuple[PrecisionRow, ...], total: int, error: float, batches: tuple[dict[str, Any], ...] | None
    ) -> None:
        self.rows, self.total_bytes, self.error, self.batches = rows, total, error, batches

    def __getitem__(self, name: str) -> QuantizationConfig | None:
        return LADDER[LEVELS[next(row.level for row in self.rows if row.name == name)]]

    def __iter__(self) -> Iterator[str]:
        return iter(row.name for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head = ["weight", "shape", *(f"error {name}" for name in LEVELS[1:]), "chosen", "bytes before", "after"]
        rows = []
        for row in self.rows:
            errors, sizes = [f"{e:.2e}" for e in row.errors[1:]], [f"{row.sizes[k]:,}" for k in (0, row.level)]
            rows.append([row.name, "×".join(map(str, row.shape)), *errors, LEVELS[row.level], *sizes])
        shown = table(head, rows, right={*range(2, 2 + len(LEVELS) - 1), len(head) - 2, len(head) - 1})
        return f"{shown}\n{bytes_text(self.total_bytes)} in all, relative error {self.error:.2e}"

    _repr_html_ = html_text


def assign_precision(
    graph: EinsumGraph,
    *,
    calibration: Batches | None = None,
    params: Mapping[str, Any] | None = None,
    budget_bytes: int | None = None,
    max_error: float | None = None,
    executor: Executor | None = None,
) -> PrecisionAssignment:
    """Choose a precision for each weight, so that all fit in a budget or the outputs keep within an error.

    Each weight alone is rounded to each level, and what this changes in the outputs is measured on calibration data. Then the
    weight that adds the least error for each byte it saves goes down a level, until all constants take at most
    ``budget_bytes``, or as long as the relative error of the outputs stays at most ``max_error``.

    >>> import numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> rng = np.random.default_rng(0)
    >>> w, v = (rng.normal(size=(64, 64)).astype("float32") for _ in range(2))
    >>> graph = b.build(y=b.relu(b.input("x", ("n", 64), "float32") @ b.constant(w)) @ b.constant(v))
    >>> chosen = assign_precision(graph, calibration={"x": rng.normal(size=(8, 64)).astype("float32")}, budget_bytes=8_000)
    >>> [row.level for row in chosen.rows], chosen.total_bytes
    ([1, 2], 6912)
    """
    if (budget_bytes is None) == (max_error is None):
        message = "give one of budget_bytes= and max_error=, not both and not neither"
        raise InputError(message, "write budget_bytes=100_000", code="E329")
    if budget_bytes is not None:
        expect_whole("budget_bytes", budget_bytes, 1)
    elif isinstance(max_error, bool) or not isinstance(max_error, int | float) or not 0 < max_error < math.inf:
        hint = "write max_error=0.01: a hundredth of what the outputs are"
        raise InputError(f"max_error= is a number above 0, got {value_text(max_error)}", hint, code="E324")
    model = model_of(graph, calibration, params, executor)
    measure = _Measure(model, executor)
    rows = measure.rows()
    other = sum(a.nbytes for a in all_constants(model.graph).values()) - sum(row.sizes[0] for row in rows)
    moves: list[int] = []
    while (k := _next(rows)) is not None:
        if budget_bytes is not None and _total(rows, other) <= budget_bytes:
            break
        new = [row._replace(level=row.level + (n == k)) for n, row in enumerate(rows)]
        if max_error is not None and math.hypot(*(row.errors[row.level] for row in new)) > max_error:
            break
        moves.append(k)
        rows = new
    if budget_bytes is not None and _total(rows, other) > budget_bytes:
        message = f"the constants take {_total(rows, other):,} bytes at the least, the budget is {budget_bytes:,}"
        raise InputError(message, "allow more bytes, or make the model smaller", code="E342")
    error = measure.error(rows)
    while max_error is not None and error > max_error and moves:  # errors of several weights may add up to more
        k = moves.pop()
        rows = [row._replace(level=row.level - (n == k)) for n, row in enumerate(rows)]
        error = measure.error(rows)
    return PrecisionAssignment(tuple(rows), _total(rows, other), error, model.batches or None)


def _total(rows: list[PrecisionRow], other: int) -> int:
    return other + sum(row.sizes[row.level] for row in rows)


def _next(rows: list[PrecisionRow]) -> int | None:
    """Return the weight that adds the least squared error for each byte it saves by going down a level."""
    best: tuple[float, int] | None = None
    for n, row in enumerate(rows):
        if row.level + 1 < len(LEVELS) and (saved := row.sizes[row.level] - row.sizes[row.level + 1]) > 0:
            price = (row.errors[row.level + 1] ** 2 - row.errors[row.level] ** 2) / saved
            best = min(best or (math.inf, n), (price, n))
    return None if best is None else best[1]


class _Measure:
    """Measures what rounding weights changes in the outputs of a model; each weight and level is rounded once."""

    def __init__(self, model: Model, executor: Executor | None) -> None:
        from ...runtime.executor import Executor

        self.model, self.executor = model, executor or Executor()
        self.choices = [
            {} if config is None else choose(model, {p.node: config for p in model.products}, executor)
            for config in LADDER.values()
        ]
        self.exact = self._outputs(model.graph)

    def _outputs(self, graph: EinsumGraph) -> list[Any]:
        """Return the outputs of all batches, one after another."""
        return [output for batch in self.model.batches for output in self.executor.execute(graph, batch)]

    def rows(self) -> list[PrecisionRow]:
        found = []
        for name in dict.fromkeys(p.name for p in self.model.products):
            nodes = [p for p in self.model.products if p.name == name]
            sizes = [self.model.weights[nodes[0].node].nbytes]  # a weight that several products read is kept once
            for own in self.choices[1:]:
                tensors = [own[p.node].tensor for p in nodes]
                sizes.append(sum({constant_digest(t.packed): t.nbytes for t in tensors}.values()))
            errors = tuple(self._error_of({name: level}) for level in range(len(LEVELS)))
            found.append(PrecisionRow(name, self.model.weights[nodes[0].node].shape, tuple(sizes), errors))
        return found

    def error(self, rows: list[PrecisionRow]) -> float:
        """Return the error with every weight at its level."""
        return self._error_of({row.name: row.level for row in rows})

    def _error_of(self, levels: Mapping[str, int]) -> float:
        at = {p.node: (p, levels[p.name]) for p in self.model.products if levels.get(p.name, 0)}
        if not at:
            return 0.0
        if not self.model.batches:
            weights = [self.model.weights[node] for node in at]
            rounded = [self.choices[level][node].tensor.dequantize() for node, (_, level) in at.items()]
            return relative_error(weights, rounded)
        pairs = {node: (p, self.choices[level][node]) for node, (p, level) in at.items()}
        return relative_error(self.exact, self._outputs(lowered(with_pairs(self.model.graph, pairs, self.model.given))))
