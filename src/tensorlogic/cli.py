"""The command line: run, explain, draw and check graph files.

Exit codes: 0 all is well, 1 the graph or its inputs are wrong, 2 the command was typed wrongly.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from . import __version__
from .errors import FormatError, InputError, TensorLogicError, nearest

F = TypeVar("F", bound=Callable[..., None])
MAX_SHOWN = 1000  # elements of an output printed in full


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tensorlogic")
def main() -> None:
    """Run, explain, draw and check tensor graphs; compile formulas.

    \b
    Examples:
      tensorlogic check model.json
      tensorlogic explain model.json --size n=64
      tensorlogic run model.json -i x=x.npy -i w=w.npy
      tensorlogic graph model.json --format mermaid
      tensorlogic compile 'exists y:P. likes(x,y)' -d P=ann,bob -v x=P -o likes.json
    """  # noqa: D301 - \b keeps click from joining the lines


def _reported(command: F) -> F:
    """Print what went wrong for people, or as JSON, and exit with 1."""

    @wraps(command)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except TensorLogicError as error:
            kind, found = type(error).__name__, error.diagnostic
            if options.get("as_json"):
                place = None if error.guessed else found.location
                _print_json({"error": _diagnostic_json(found, place, kind)})
            else:
                click.echo(f"{kind}: {error.render(guessed=False)}", err=True)
            sys.exit(1)

    return guarded  # type: ignore[return-value]


def _diagnostic_json(found: Any, place: Any, kind: str) -> dict[str, Any]:
    return {
        "kind": kind, "severity": found.severity.name.lower(), "code": found.code, "message": found.message,
        "location": None if place is None else str(place), "context": list(found.context),
        "suggestions": list(found.suggestions),
    }  # fmt: skip


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


graph_argument = click.argument("graph", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
input_option = click.option(
    "-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE",
    help="An input: a .npy or .json file, FILE.npz:KEY, or JSON such as x=[1,2,3]. Repeat for each.",
)  # fmt: skip
size_option = click.option("-s", "--size", "sizes", multiple=True, metavar="NAME=N", help="A named size, such as n=64.")
backend_option = click.option("--backend", default="numpy", show_default=True, help="What runs the graph.")


def _load(path: Path) -> Any:
    from .ir.graph import EinsumGraph

    return EinsumGraph.load(path)


def _pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} must be written NAME=VALUE, got {text!r}")
        if name in pairs:
            raise click.UsageError(f"{what} {name!r} is given twice")
        pairs[name] = value
    return pairs


def _whole(value: str, what: str) -> int:
    if not value.isdecimal() or len(value) > 19:
        raise click.UsageError(f"{what} must be a whole number below 2^63, got {value[:40]!r}")
    return int(value)


def _sizes(given: tuple[str, ...]) -> dict[str, int]:
    return {name: _whole(value, f"size {name!r}") for name, value in _pairs(given, "--size").items()}


def _values(given: tuple[str, ...]) -> dict[str, Any]:
    return {name: _value(name, text) for name, text in _pairs(given, "--input").items()}


def _value(name: str, text: str) -> Any:
    """Read one input: an array file, a key of an archive, or JSON on the command line."""
    import numpy as np

    path, _, key = text.partition(".npz:")
    try:
        if key:
            with np.load(path + ".npz", allow_pickle=False) as archive:
                if key not in archive:
                    raise InputError(f"{path}.npz has no array {key!r}", code="E306", suggestions=nearest(key, archive))
                return archive[key]
        if text.endswith(".npy"):
            return np.load(text, allow_pickle=False)
        if text.endswith(".json"):
            text = Path(text).read_text(encoding="utf-8")
        return json.loads(text)
    except FileNotFoundError:
        raise InputError(f"input {name!r}: there is no file {text!r}", code="E306") from None
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(
            f"input {name!r}: cannot read {text[:60]!r}: {error}",
            code="E306",
            suggestions=["give a .npy or .json file, FILE.npz:KEY, or JSON such as [[1, 2], [3, 4]]"],
        ) from None


def _finite(value: Any) -> Any:
    """Return nested lists in which infinities and NaN are strings, which JSON has no numbers for."""
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FormatError(
            f"cannot write {str(path)!r}: {why}",
            code="E221",
            suggestions=["give a file in a folder that can be written"],
        ) from None


def _save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file as ``numpy.savez`` does, which itself cannot take an array named ``file``."""
    import zipfile

    import numpy as np

    with _writing(path), zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


@main.command("run")
@graph_argument
@input_option
@size_option
@backend_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to an .npz file.")
@json_option
@_reported
def run_command(
    graph: Path, inputs: tuple[str, ...], sizes: tuple[str, ...], backend: str, output: Path | None, as_json: bool
) -> None:
    """Run a graph file and print its outputs.

    \b
    Examples:
      tensorlogic run layer.json -i x=x.npy -i w=weights.npz:w
      tensorlogic run rule.json -i parent='[[0,1],[0,0]]' --json
      tensorlogic run layer.json -i x=x.npy -o out.npz
    """  # noqa: D301
    import numpy as np

    from .runtime.executor import Executor

    if output is not None and output.suffix != ".npz":
        raise FormatError(f"outputs are written as .npz, not {output.name!r}", code="E307",
                          suggestions=[f"write -o {output.stem}.npz"])  # fmt: skip
    out = Executor(backend).execute(_load(graph), _values(inputs), sizes=_sizes(sizes))
    if output is not None:
        _save_arrays(output, dict(out.items()))
    if as_json:
        _print_json({
            "outputs": {
                name: {"dtype": str(v.dtype), "shape": list(v.shape), "data": _finite(v.tolist())}
                for name, v in out.items()
            }
        })  # fmt: skip
        return
    for name, value in out.items():
        click.echo(f"{name}: {value.dtype}{list(value.shape)}")
        click.echo(np.array2string(value, threshold=MAX_SHOWN))
    if output is not None:
        click.echo(f"written to {output}")


@main.command()
@graph_argument
@input_option
@size_option
@backend_option
@json_option
@_reported
def explain(graph: Path, inputs: tuple[str, ...], sizes: tuple[str, ...], backend: str, as_json: bool) -> None:
    """Print the plan of a graph file: its steps, what they cost and the memory they need.

    \b
    Examples:
      tensorlogic explain layer.json --size n=64
      tensorlogic explain layer.json -i x=x.npy -i w=w.npy --json
    """  # noqa: D301
    from .plan.build import describe
    from .runtime.executor import Executor

    plan = Executor(backend).plan(_load(graph), _values(inputs), sizes=_sizes(sizes))
    if not as_json:
        click.echo(plan.table())
        return
    names = plan.slot_names()
    _print_json({
        "flops": plan.flops,
        "peak_bytes": plan.peak_bytes,
        "steps": [
            {
                "operation": describe(s.op), "kernel": s.kernel, "reads": [names[r] for r in s.reads],
                "writes": [names[w] for w in s.writes], "frees": [names[f] for f in s.frees],
                "types": [str(t) for t in s.types], "flops": s.flops, "bytes": s.nbytes, "device": s.device,
                "location": None if s.location is None else str(s.location),
            }
            for s in plan.steps
        ],
    })  # fmt: skip


FORMATS = ("text", "json", "dot", "mermaid", "graphml", "svg")


@main.command("graph")
@graph_argument
@click.option("-f", "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file instead.")
@json_option
@_reported
def graph_command(graph: Path, form: str, output: Path | None, as_json: bool) -> None:
    """Show a graph file as text, or convert it.

    \b
    Examples:
      tensorlogic graph layer.json
      tensorlogic graph layer.json --format svg -o layer.svg
      tensorlogic graph rust_graph.json --format json
    """  # noqa: D301
    loaded = _load(graph)
    text = str(getattr(loaded, "to_json" if as_json else f"to_{form}")())
    if output is None:
        click.echo(text)
    else:
        with _writing(output):
            output.write_text(text + "\n", encoding="utf-8")
        click.echo(f"written to {output}", err=True)


@main.command()
@graph_argument
@json_option
@_reported
def check(graph: Path, as_json: bool) -> None:
    """Check a graph file: structure, shapes and types, unused inputs and repeated work.

    \b
    Examples:
      tensorlogic check layer.json && echo fine
      tensorlogic check layer.json --json
    """  # noqa: D301
    from .ir.validate import GraphValidator

    loaded = _load(graph)
    result = GraphValidator().validate(loaded)
    if as_json:
        found = [_diagnostic_json(d, d.location, "Diagnostic") for d in (*result.errors, *result.warnings)]
        _print_json({"valid": result.is_valid(), "nodes": len(loaded), "diagnostics": found})
    else:
        if result.errors or result.warnings:
            click.echo(str(result))
        else:
            click.echo(f"{graph}: {loaded!r} is valid")
    if not result.is_valid():
        sys.exit(1)


@main.command("compile")
@click.argument("formula")
@click.option(
    "-d", "--domain", "domains", multiple=True, metavar="NAME=SIZE|a,b,c", help="A domain: its size, or its names."
)
@click.option(
    "-v", "--variable", "variables", multiple=True, metavar="NAME=DOMAIN", help="The domain of a free variable."
)
@click.option("--strategy", default="hard_boolean", show_default=True, help="The logic.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the graph to a file; else print its text.")
@json_option
@_reported
def compile_command(
    formula: str,
    domains: tuple[str, ...],
    variables: tuple[str, ...],
    strategy: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compile a formula to a graph.

    \b
    Examples:
      tensorlogic compile 'exists y. sister(x,y) & parent(y,z)' -d Person=ann,bob,cat -v x=Person -v y=Person -v z=Person
      tensorlogic compile '∀x:N. even(x) | odd(x)' -d N=100 --strategy fuzzy_godel -o parity.json
    """  # noqa: D301
    from .lang.context import CompilerContext
    from .lang.lower import compile as compile_formula
    from .lang.notation import parse_expr

    given: dict[str, int | list[str]] = {
        name: _whole(text, f"domain {name!r}") if text.isdecimal() else [m.strip() for m in text.split(",")]
        for name, text in _pairs(domains, "--domain").items()
    }
    expr = parse_expr(formula, _pairs(variables, "--variable"))
    graph = compile_formula(expr, CompilerContext(given), strategy=strategy)
    if output is not None:
        graph.save(output)
        click.echo(f"written to {output}", err=True)
    else:
        click.echo(graph.to_json() if as_json else graph.to_text())


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(tensorlogic completion bash)"
      tensorlogic completion fish > ~/.config/fish/completions/tensorlogic.fish
    """  # noqa: D301
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(main, {}, "tensorlogic", "_TENSORLOGIC_COMPLETE").source())
