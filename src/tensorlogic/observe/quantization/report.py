"""The report of a quantization: bytes, errors of weights, errors after each layer, accuracy and time, before and after."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ...diagnostics import bytes_text
from ...errors import InputError, ShapeError
from ...ir import ops
from ...ir.constants import all_constants
from ...ir.graph import EinsumGraph, bodies
from ...ir.packed_numbers import FLOAT8, KINDS, float8_table
from ...ir.quantization_config import QuantizationConfig
from ...ir.quantized import QuantizedTensor
from ...ir.types import FLOATS, Array
from ...ir.whole_files import write_whole
from ...passes.quantize import lowered, with_pairs
from ...tables import html_text, table
from .error_figures import ErrorFigures
from .post_training import Batches, Configs, Quantization, quantize_graph

if TYPE_CHECKING:
    from ...runtime.executor import Executor

ROUNDS = 5  # of each graph, in turns, of which the fastest counts
BINS = 64  # of a histogram
ERROR_HEAD = ("SQNR dB", "largest error", "mean error")
WEIGHTS_HEAD = ("weight", "shape", "kind", "scales", "bytes before", "after", *ERROR_HEAD)


class TensorRow(NamedTuple):
    """What one weight was and became."""

    name: str
    shape: tuple[int, ...]
    kind: str
    granularity: str
    bytes_before: int
    bytes_after: int
    error: ErrorFigures

    def cells(self) -> list[str]:
        """Return the cells of the row, under :data:`WEIGHTS_HEAD`."""
        sizes = [f"{self.bytes_before:,}", f"{self.bytes_after:,}"]
        return [self.name, "×".join(map(str, self.shape)), self.kind, self.granularity, *sizes, *self.error.cells()]


class LayerRow(NamedTuple):
    """How far the result of one product is from what it was, with all the rounding before it."""

    weight: str
    node: int
    error: ErrorFigures


class LeftRow(NamedTuple):
    """A matrix of floats that stays as it is, and what reads it: neither a product with a value nor a lookup of its rows."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    readers: tuple[str, ...]


class Picture(NamedTuple):
    """A weight's values as a histogram, and the values that its numbers stand for."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    grid: tuple[float, ...]


class QuantizationReport(NamedTuple):
    """What quantizing a graph saves and costs. It prints as tables; ``graph`` is the result.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", 64), "float32") @ b.input("w", (64, 8), "float32"))
    >>> rng = np.random.default_rng(0)
    >>> W, X = rng.normal(size=(64, 8)).astype("float32"), rng.normal(size=(50, 64)).astype("float32")
    >>> report = QuantizationReport.of(graph, tl.QuantizationConfig(), params={"w": W}, data={"x": X})
    >>> report.bytes_before, report.bytes_after, report.layers[0].error.sqnr_db > 35
    (2048, 544, True)
    """

    tensors: tuple[TensorRow, ...]
    layers: tuple[LayerRow, ...]
    outputs: Mapping[str, ErrorFigures]
    bytes_before: int
    bytes_after: int
    accuracy: tuple[float, float] | None
    seconds: tuple[float, float] | None
    pictures: Mapping[str, Picture]
    graph: EinsumGraph
    left: tuple[LeftRow, ...] = ()

    @classmethod
    def of(
        cls,
        graph: EinsumGraph,
        config: QuantizationConfig | Configs | None = None,
        *,
        calibration: Batches | None = None,
        params: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        labels: Any = None,
        executor: Executor | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> QuantizationReport:
        """Quantize a graph and measure it on data; without ``data`` the first batch of calibration data serves.

        ``labels`` are the right classes of the rows: accuracy is the share of rows whose greatest value of the first output
        stands there.
        """
        from ...runtime.executor import Executor

        quantization = quantize_graph(graph, config, calibration=calibration, params=params, executor=executor)
        model = quantization.model
        given = model.batches[0] if data is None and model.batches else data
        tensors, pictures = _tensors(quantization)
        before, after = (sum(a.nbytes for a in all_constants(g).values()) for g in (model.graph, quantization.graph))
        report = cls(tensors, (), {}, before, after, None, None, pictures, quantization.graph, _left(quantization))
        if given is None:
            if labels is not None:
                raise InputError("labels are given without data", 'write data={"x": X}', code="E343")
            return report
        values = {k: v for k, v in given.items() if k in model.graph.inputs or k not in (params or {})}
        run = executor or Executor()
        layers, outputs = _compared(quantization, values, run)
        answers = [run.execute(g, values)[0] for g in (model.graph, quantization.graph)]
        accuracy = None if labels is None else (_accuracy(answers[0], labels), _accuracy(answers[1], labels))
        seconds = _timed(run, (model.graph, quantization.graph), values, clock)
        return report._replace(layers=layers, outputs=outputs, accuracy=accuracy, seconds=seconds)

    def __str__(self) -> str:
        parts = [table(WEIGHTS_HEAD, [t.cells() for t in self.tensors], right=set(range(4, 9)))]
        if self.layers:
            rows = [[f"{row.weight} (%{row.node})", *row.error.cells()] for row in self.layers]
            rows += [[f"output {name}", *error.cells()] for name, error in self.outputs.items()]
            parts.append(table(("after the product with", *ERROR_HEAD), rows, right={1, 2, 3}))
        share = self.bytes_after / max(self.bytes_before, 1)
        lines = [f"{bytes_text(self.bytes_before)} of constants became {bytes_text(self.bytes_after)}, {share:.0%}"]
        for row in self.left:
            size = "×".join(map(str, row.shape))
            lines.append(
                f"{row.name} ({size}, {bytes_text(row.nbytes)}) stays as it is; read by {', '.join(row.readers)}"
            )
        if self.accuracy is not None:
            points = 100 * (self.accuracy[1] - self.accuracy[0])
            lines.append(f"accuracy {self.accuracy[0]:.2%} before, {self.accuracy[1]:.2%} after: {points:+.2f} points")
        if self.seconds is not None:
            before, after = (1e3 * s for s in self.seconds)
            lines.append(
                f"time {before:.3f} ms before, {after:.3f} ms after: {before / max(after, 1e-9):.2f} times as fast"
            )
        return "\n\n".join([*parts, "\n".join(lines)])

    def _repr_html_(self) -> str:
        return html_text(self)

    def to_json(self) -> str:
        """Return the figures as JSON; the graph and the pictures are not in it."""
        plain = self._asdict()
        del plain["graph"], plain["pictures"]
        for name in ("tensors", "layers"):
            plain[name] = [{**row._asdict(), "error": row.error._asdict()} for row in plain[name]]
        plain["left"] = [row._asdict() for row in self.left]
        plain["outputs"] = {name: error._asdict() for name, error in self.outputs.items()}
        return json.dumps(
            json.loads(msgspec.json.encode(plain))
        )  # msgspec writes null for infinities, which JSON lacks

    def error_svg(self) -> str:
        """Return a picture of the error after each product."""
        from .report_pictures import error_svg

        return error_svg(self)

    def histogram_svg(self, name: str) -> str:
        """Return a picture of a weight's values, with a line for each value that a number stands for."""
        from .report_pictures import histogram_svg

        return histogram_svg(self, name)

    def to_html(self) -> str:
        """Return the report as one HTML page with its pictures."""
        from .report_pictures import page

        return page(self)

    def save(self, path: str | Path) -> None:
        """Write the report: as HTML, or as JSON where the name ends so."""
        target = Path(path)
        text = self.to_json() if target.suffix == ".json" else self.to_html()
        write_whole(target, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _tensors(quantization: Quantization) -> tuple[tuple[TensorRow, ...], dict[str, Picture]]:
    rows: list[TensorRow] = []
    pictures: dict[str, Picture] = {}
    chosen = [p for p in quantization.model.products if p.node in quantization.choices]
    every = [(p.name, quantization.model.weights[p.node], quantization.choices[p.node].tensor) for p in chosen]
    inner = [(w.name, w.matrix, w.tensor) for w in quantization.inner if w.matrix is not None and w.tensor is not None]
    for name, matrix, weight in [*every, *inner]:
        figures = ErrorFigures.of(matrix, weight.dequantize())
        rows.append(
            TensorRow(name, matrix.shape, weight.kind, str(weight.granularity), matrix.nbytes, weight.nbytes, figures)
        )
        pictures.setdefault(name, _picture(matrix, weight))
    return tuple(rows), pictures


def _left(quantization: Quantization) -> tuple[LeftRow, ...]:
    """Return the matrices of floats that the quantized graph still holds, of those that the model held."""
    source = quantization.model.graph
    names = {
        op.digest: name
        for i, name in quantization.model.names.items()
        if isinstance(op := source.nodes[i].op, ops.Constant)
    }
    before, readers = all_constants(source), _readers(quantization.graph)
    return tuple(
        LeftRow(names.get(digest, f"const.{digest[:6]}"), array.shape, array.nbytes, tuple(readers.get(digest, ())))
        for digest, array in all_constants(quantization.graph).items()
        if digest in before and array.ndim > 1 and str(array.dtype) in FLOATS
    )


def _readers(graph: EinsumGraph) -> dict[str, list[str]]:
    """Return the names of the operations that read each constant, also those inside of bodies."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        for inner in bodies(node.op):
            for digest, own in _readers(inner).items():
                found.setdefault(digest, []).extend(f"{name} in a {node.op.name}" for name in own)
        for a in node.args:
            op = graph.nodes[a].op
            if isinstance(op, ops.Constant):
                found.setdefault(op.digest, []).append(node.op.name)
    return {digest: list(dict.fromkeys(own)) for digest, own in found.items()}


def _picture(matrix: Array, weight: QuantizedTensor) -> Picture:
    """Return the histogram of a weight, with the values that all numbers stand for by its first scale."""
    counts, edges = np.histogram(matrix, BINS)
    row, kind = KINDS[weight.kind], weight.kind
    numbers = float8_table(kind) if kind in FLOAT8 else np.arange(row.low, row.high + 1, 2 if kind == "binary" else 1)
    scale, zero = np.ravel(weight.scales)[0], np.ravel(weight.zero_points)[0]
    grid = (numbers[np.isfinite(numbers)].astype(np.float64) - zero) * scale
    return Picture(tuple(map(int, counts)), tuple(map(float, edges)), tuple(map(float, grid)))


def _compared(
    quantization: Quantization, values: Mapping[str, Any], executor: Executor
) -> tuple[tuple[LayerRow, ...], dict[str, ErrorFigures]]:
    """Run the graph before and after, and compare what each product makes, and the outputs."""
    source = quantization.model.graph
    chosen = [p for p in quantization.model.products if p.node in quantization.choices]
    probe = EinsumGraph(
        source.nodes, [*source.outputs, *((f"layer.{p.node}", p.node) for p in chosen)], source.constants
    )
    pairs = {p.node: (p, quantization.choices[p.node]) for p in chosen}
    exact = executor.execute(probe, values)
    around = EinsumGraph(quantization.around.nodes, probe.outputs, quantization.around.constants)
    rounded = executor.execute(lowered(with_pairs(around, pairs, quantization.model.given)), values)
    layers = tuple(
        LayerRow(p.name, p.node, ErrorFigures.of(exact[f"layer.{p.node}"], rounded[f"layer.{p.node}"])) for p in chosen
    )
    floats = [name for name, i in source.outputs if np.asarray(exact[name]).dtype.kind == "f"]
    return layers, {name: ErrorFigures.of(exact[name], rounded[name]) for name in floats}


def _accuracy(answers: Any, labels: Any) -> float:
    classes = np.argmax(np.asarray(answers), -1)
    right = np.asarray(labels)
    if classes.shape != right.shape:
        message = f"labels have the shape {list(right.shape)}, the answers of the first output {list(classes.shape)}"
        raise ShapeError(message, "give one label for each row", code="E343")
    return float(np.mean(classes == right))


def _timed(
    executor: Executor, graphs: tuple[EinsumGraph, EinsumGraph], values: Mapping[str, Any], clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the least seconds that each graph takes, of several rounds in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for n, graph in enumerate(graphs):
            start = clock()
            executor.execute(graph, values)
            best[n] = min(best[n], clock() - start)
    return best[0], best[1]
