"""The command that quantizes a graph file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ..errors import FormatError, InputError
from .common import FILE, graph_argument, load_graph, print_json, read_arrays, reported, writing

TYPES = ["int8", "uint8", "int4", "int2", "fp8", "e4m3", "e5m2", "ternary", "binary"]
ACTIVATIONS = ["weight-only", "dynamic", "static"]
METHODS = ["min-max", "moving-average", "percentile", "entropy", "mse"]
ROUNDINGS = ["nearest", "scale-search", "compensating", "compensating-search"]
HINTS = {  # of errors whose own hints name arguments of Python
    "E326": "give rows of data, such as the graph will run on: --calibrate data.npz",
    "E328": "give the arrays of its weights, a .npz or safetensors file: --params params.npz",
}


@click.command("quantize")
@graph_argument
@click.option("--to", "kind", type=click.Choice(TYPES), help="What weights become; int8 if no budget is given.")
@click.option(
    "--group", type=click.IntRange(1), help="How many terms of a sum share a scale; without it each channel has one."
)
@click.option("--per-tensor", is_flag=True, help="One scale for each weight.")
@click.option("--asymmetric", is_flag=True, help="Numbers with zero points.")
@click.option(
    "--activations",
    type=click.Choice(ACTIVATIONS),
    help="Whether values are rounded too, and how; without it, static where there are calibration data, else not.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="min-max",
    help="How ranges of activations are found.",
)
@click.option("--rounding", type=click.Choice(ROUNDINGS), default="nearest", help="How weights are rounded.")
@click.option(
    "--budget",
    "budget_bytes",
    type=click.IntRange(1),
    help="Choose a precision for each weight: bytes of all constants.",
)
@click.option("--max-error", type=float, help="The same, by the relative error of the outputs.")
@click.option("--calibrate", type=FILE, help="A .npz file with an array for each input.")
@click.option("--params", "params_path", type=FILE, help="A .npz or safetensors file of inputs that are weights.")
@click.option("--labels", help="The array of the calibration file with the right classes, to measure accuracy.")
@click.option("--report", "report_path", type=FILE, help="Write the report as .html or .json.")
@click.option("-o", "--output", type=FILE, help="Write the quantized graph.")
@reported
def quantize_command(
    graph: Path,
    budget_bytes: int | None,
    max_error: float | None,
    calibrate: Path | None,
    params_path: Path | None,
    labels: str | None,
    report_path: Path | None,
    output: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Store the weights of a graph file in a few bits, and tell what that saves and costs.

    \b
    Examples:
      tensorlogic quantize model.json --to int8 -o small.json
      tensorlogic quantize model.json --to int4 --group 32 --calibrate data.npz --report report.html
      tensorlogic quantize model.json --params params.npz --budget 100000 --calibrate data.npz
    """  # noqa: D301
    from ..observe.quantization.precision import assign_precision
    from ..observe.quantization.report import QuantizationReport

    if budget_bytes is not None or max_error is not None:
        if settings["kind"] is not None:
            raise click.UsageError("--to and a budget exclude each other")
        if budget_bytes is not None and max_error is not None:
            raise click.UsageError("--budget and --max-error exclude each other")
    if settings["group"] is not None and settings["per_tensor"]:
        raise click.UsageError("--group and --per-tensor exclude each other")
    if report_path is not None and report_path.suffix not in (".html", ".json"):
        hint = f"write --report {report_path.stem}.html"
        raise FormatError(f"a report is written as .html or .json, not {report_path.name!r}", hint, code="E230")
    loaded = load_graph(graph)
    params = {} if params_path is None else read_arrays(params_path)
    data = None if calibrate is None else read_arrays(calibrate)
    if labels is not None and (data is None or labels not in data):
        hint = "write --labels with one of its names"
        raise InputError(f"the calibration data have no array {labels!r}", hint, code="E306")
    right = None if data is None or labels is None else data[labels]
    given = None if data is None else {k: v for k, v in data.items() if k != labels or k in loaded.inputs}
    if given is not None and (beside := [name for name in given if name not in loaded.inputs]):
        hint = (
            f"write --labels {beside[0]} if it has the right classes" if labels is None else "leave it out of the file"
        )
        raise InputError(f"the graph has no input {beside[0]!r}, an array of {calibrate}", hint, code="E302")
    config: Any
    with _own_words():
        if budget_bytes is not None or max_error is not None:
            config = assign_precision(
                loaded, calibration=given, params=params, budget_bytes=budget_bytes, max_error=max_error
            )
            if not as_json:
                click.echo(f"{config}\n")
        else:
            config = _config(**settings)
        report = QuantizationReport.of(loaded, config, calibration=given, params=params, data=given, labels=right)
    if output is not None:
        with writing(output):
            report.graph.save(output)
    if report_path is not None:
        with writing(report_path):
            report.save(report_path)
    if as_json:
        import json

        print_json(json.loads(report.to_json()))
    else:
        click.echo(str(report))
        for path in (output, report_path):
            if path is not None:
                click.echo(f"written to {path}")


@contextmanager
def _own_words() -> Iterator[None]:
    """Let the hints of errors name the options of the command."""
    try:
        yield
    except InputError as error:
        code = error.diagnostic.code
        if code not in HINTS:
            raise
        raise InputError(error.diagnostic.message, HINTS[code], code=code) from None


def _config(
    kind: str | None,
    group: int | None,
    per_tensor: bool,
    asymmetric: bool,
    activations: str | None,
    method: str,
    rounding: str,
) -> Any:
    from ..ir.quantization_config import ActivationMode, CalibrationMethod, QuantizationConfig, QuantizationRounding
    from ..ir.quantized import QuantizationGranularity, QuantizationType

    scales = QuantizationGranularity.PER_TENSOR if per_tensor else QuantizationGranularity.PER_CHANNEL()
    return QuantizationConfig(
        QuantizationType("e4m3" if kind == "fp8" else kind or "int8"),
        scales if group is None else QuantizationGranularity.PER_GROUP(group),
        symmetric=not asymmetric,
        activations=None if activations is None else ActivationMode(activations.replace("-", " ")),
        calibration=CalibrationMethod(method.replace("-", " ")),
        rounding=QuantizationRounding[rounding.upper().replace("-", "_")],
    )
