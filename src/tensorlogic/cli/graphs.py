"""The commands for graph files: run, explain, graph, check and compile."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import FormatError
from ..ir.whole_files import expect_members
from . import common, programs
from .common import FILE, Texts
from .stream import StreamOptions, run_stream, stream_options

if TYPE_CHECKING:
    from ..ir.graph import AxisNames

NO_STREAM = StreamOptions(None, None, None, None, None, None, False)
MAX_SHOWN = 1000  # elements of an output printed in full


def finite(value: Any) -> Any:
    """Return nested lists in which infinities and NaN are strings, which JSON has no numbers for."""
    if isinstance(value, list):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file, or say clearly that it cannot be written."""
    with common.writing(path):
        write_npz(path, arrays)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file as ``numpy.savez`` does, which itself cannot take an array named ``file``."""
    import zipfile

    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def arrays_json(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays for JSON, by name."""
    return {n: {"dtype": str(v.dtype), "shape": list(v.shape), "data": finite(v.tolist())} for n, v in arrays.items()}


def print_arrays(arrays: Mapping[str, Any], axis_names: Mapping[str, AxisNames] | None = None) -> None:
    """Print arrays by name, large ones in part; where the elements along an axis have names, as a table of these."""
    import numpy as np

    from ..lang.show import show

    for name, value in arrays.items():
        click.echo(f"{name}: {value.dtype}{list(value.shape)}")
        axes = (axis_names or {}).get(name, ())
        if axes and [n if d is None else len(d) for d, n in zip(axes, value.shape, strict=False)] == list(value.shape):
            named = [n if d is None else d for d, n in zip(axes, value.shape, strict=True)]
            click.echo(show(value, *named, limit=MAX_SHOWN))
        else:
            click.echo(np.array2string(value, threshold=MAX_SHOWN))


@click.command("run")
@common.graph_argument
@common.run_options
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Write the outputs to an .npz file; those of a stream also to .npy, .parquet, .csv or .tsv.",
)
@programs.csv_option
@stream_options
@common.reported
def run_command(
    graph: Path,
    inputs: Texts,
    params_path: Path | None,
    sizes: Texts,
    backend: str,
    level: str | None,
    output: Path | None,
    as_csv: bool,
    as_json: bool,
    **stream: Any,
) -> None:
    """Run a graph file and print its outputs; run a program (.tl), print its answers by name and write its files.

    \b
    Examples:
      tensorlogic run family.tl
      tensorlogic run layer.json -i x=x.npy -i w=weights.npz:w
      tensorlogic run layer.json -i x=x.npy --params params.safetensors
      tensorlogic run rule.json -i parent='[[0,1],[0,0]]' --json
      tensorlogic run layer.json -i x=x.npy -o out.npz
      tensorlogic run layer.json -i w=w.npy --stream data.parquet --chunk 4096 -o out.parquet
      tensorlogic run layer.json -i w=w.npy --stream data.npy --checkpoint run --resume -o out.npy

    A stream prints a bar on a terminal and JSON lines in a pipe: one for each chunk, and one at the end. Ctrl-C saves the state
    where --checkpoint is given, and prints the command to go on.

    \b
    Exit codes:
      0    all is well
      1    the graph, its inputs or the source are wrong, or a file cannot be written
      2    the command was typed wrongly
      130  a stream was stopped by Ctrl-C or a request to end
    """  # noqa: D301
    given, inputs = StreamOptions(**stream), inputs + common.param_inputs(params_path)
    if given != NO_STREAM:
        if sizes or as_csv or programs.is_program(graph):
            raise click.UsageError("--stream is for graph files, without --size and --csv")
        run_stream(graph, given, inputs, backend, level, output, as_json=as_json)
        return
    if output is not None and output.suffix != ".npz":
        hint = f"write -o {output.stem}.npz"
        raise FormatError(f"outputs are written as .npz, not {output.name!r}", hint, code="E230")
    if programs.is_program(graph):
        programs.run_program(graph, inputs, backend, level, output, as_json=as_json, as_csv=as_csv)
        return
    if as_csv:
        raise click.UsageError("--csv is for programs (.tl); a graph has arrays: use -o out.npz")
    loaded = common.load_graph(graph)
    if output is not None:
        expect_members(loaded.output_names, "output")
    executor, values = common.executor_of(backend, level), common.read_values(inputs)
    arrays = dict(executor.execute(loaded, values, sizes=common.read_sizes(sizes)).items())
    if output is not None:
        save_arrays(output, arrays)
    if as_json:
        common.print_json({"outputs": arrays_json(arrays)})
        return
    print_arrays(arrays, loaded.axis_names)
    if output is not None:
        click.echo(f"written to {output}")


@click.command()
@common.graph_argument
@common.run_options
@common.reported
def explain(
    graph: Path,
    inputs: Texts,
    params_path: Path | None,
    sizes: Texts,
    backend: str,
    level: str | None,
    as_json: bool,
) -> None:
    """Print the plan of a graph file or a program: its steps, what they cost and the memory they need.

    \b
    Examples:
      tensorlogic explain family.tl
      tensorlogic explain layer.json --size n=64
      tensorlogic explain layer.json --size n=64 --level aggressive
      tensorlogic explain layer.json -i x=x.npy -i w=w.npy --json
    """  # noqa: D301
    from ..plan.printing import describe

    inputs += common.param_inputs(params_path)
    if programs.is_program(graph):
        plan = programs.load_program(graph, inputs, backend, level).plan()
    else:
        executor, loaded = common.executor_of(backend, level), common.load_graph(graph)
        plan = executor.plan(loaded, common.read_values(inputs), sizes=common.read_sizes(sizes))
    if not as_json:
        click.echo(plan.table())
        return
    names = plan.slot_names()
    common.print_json(
        {
            "flops": plan.flops,
            "peak_bytes": plan.peak_bytes,
            "steps": [
                {
                    "operation": describe(s.op),
                    "kernel": s.kernel,
                    "reads": [names[r] for r in s.reads],
                    "writes": [names[w] for w in s.writes],
                    "frees": [names[f] for f in s.frees],
                    "types": [str(t) for t in s.types],
                    "flops": s.flops,
                    "bytes": s.nbytes,
                    "device": s.device,
                    "buffers": list(s.into),
                    "location": None if s.location is None else str(s.location),
                }
                for s in plan.steps
            ],
        }
    )


FORMATS = ("text", "json", "dot", "mermaid", "graphml", "svg")


@click.command("graph")
@common.graph_argument
@common.input_option
@click.option("-f", "--format", "form", type=click.Choice(FORMATS), default="text")
@click.option("-o", "--output", type=FILE, help="Write to a file instead.")
@common.reported
def graph_command(graph: Path, inputs: Texts, form: str, output: Path | None, as_json: bool) -> None:
    """Show a graph file as text, or convert it; of a program, the graph of all that it derives, with its facts as inputs.

    \b
    Examples:
      tensorlogic graph layer.json
      tensorlogic graph family.tl --format json -o family.json
      tensorlogic graph layer.json --format svg -o layer.svg
      tensorlogic graph rust_graph.json --format json
    """  # noqa: D301
    if programs.is_program(graph):
        loaded = programs.load_program(graph, inputs).graph()
    elif inputs:
        raise click.UsageError("--input is for programs (.tl), whose tensors have the sizes of what is given")
    else:
        loaded = common.load_graph(graph)
    text = str(getattr(loaded, "to_json" if as_json else f"to_{form}")())
    if output is None:
        click.echo(text)
    else:
        with common.writing(output):
            output.write_text(text + "\n", encoding="utf-8")
        click.echo(f"written to {output}", err=True)


@click.command()
@common.graph_argument
@common.reported
def check(graph: Path, as_json: bool) -> None:
    """Check a graph file: structure, shapes and types, unused inputs and repeated work; or a program, without running it.

    \b
    Examples:
      tensorlogic check family.tl
      tensorlogic check layer.json && echo fine
      tensorlogic check layer.json --json
    """  # noqa: D301
    from ..ir.validate import GraphValidator

    if programs.is_program(graph):
        programs.check_program(graph, as_json=as_json)
        return
    loaded = common.load_graph(graph)
    result = GraphValidator().validate(loaded)
    if as_json:
        found = [common.diagnostic_json(d, d.location, "Diagnostic") for d in (*result.errors, *result.warnings)]
        common.print_json({"valid": result.is_valid(), "nodes": len(loaded), "diagnostics": found})
    else:
        click.echo(str(result) if result.errors or result.warnings else f"{graph}: {loaded!r} is valid")
    if not result.is_valid():
        sys.exit(1)


@click.command("compile")
@click.argument("formula", callback=common.words)
@click.option(
    "-d",
    "--domain",
    "domains",
    multiple=True,
    callback=common.words,
    metavar="NAME=SIZE|a,b,c",
    help="A domain: size, or names.",
)
@click.option(
    "-v",
    "--variable",
    "variables",
    multiple=True,
    callback=common.words,
    metavar="NAME=DOMAIN",
    help="A free variable's domain.",
)
@click.option(
    "--strategy",
    default="hard_boolean",
    help="The logic: hard_boolean, fuzzy_godel, fuzzy_product, fuzzy_lukasiewicz, probabilistic or soft_differentiable.",
)
@click.option("-o", "--output", type=FILE, help="Write the graph to a file; else print its text.")
@common.reported
def compile_command(
    formula: str, domains: Texts, variables: Texts, strategy: str, output: Path | None, as_json: bool
) -> None:
    """Compile a formula to a graph.

    \b
    Examples:
      tensorlogic compile 'exists y. sister(x,y) & parent(y,z)' -d Person=ann,bob,cat -v x=Person -v y=Person -v z=Person
      tensorlogic compile '∀x:N. even(x) | odd(x)' -d N=100 --strategy fuzzy_godel -o parity.json
    """  # noqa: D301
    from ..lang.context import CompilerContext
    from ..lang.lower import compile as compile_formula
    from ..lang.notation_reader import parse_expr

    given: dict[str, int | list[str]] = {
        name: common.whole(text, f"domain {name!r}") if text.isdecimal() else [m.strip() for m in text.split(",")]
        for name, text in common.pairs(domains, "--domain").items()
    }
    expr = parse_expr(formula, common.pairs(variables, "--variable"))
    graph = compile_formula(expr, CompilerContext(given), strategy=strategy)
    if output is not None:
        graph.save(output)
        click.echo(f"written to {output}", err=True)
    else:
        click.echo(graph.to_json() if as_json else graph.to_text())
