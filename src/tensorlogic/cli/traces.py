"""The commands for traces: record, summary, export, flame and diff."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import FormatError, nearest
from . import Commands, common
from .common import FILE

if TYPE_CHECKING:
    from ..observe.trace import Trace

BY = ("operation", "device", "thread")
FORMS = ("chrome", "speedscope", "collapsed", "rust")

file_argument = click.argument("file", type=FILE)
by_option = click.option("--by", type=click.Choice(BY), default="operation", help="What a row is.")
kind_option = click.option("--kind", metavar="KIND", help="Count this kind only: step, span, or one of the file's own.")
top_option = click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show the first N rows only.")


@click.group("trace", cls=Commands)
def trace_group() -> None:
    """Record runs, and read, convert, draw and compare their traces.

    \b
    Examples:
      tensorlogic trace record model.json -i x=x.npy --repeat 100 -o run.json
      tensorlogic trace summary run.json --top 10
      tensorlogic trace flame run.json -o run.svg
      tensorlogic trace diff before.json after.json
    """  # noqa: D301


def _read(path: Path) -> Trace:
    from ..observe.trace_files import load

    with common.waiting(f"reading {path.name}", path.stat().st_size if path.is_file() else 0):
        return load(path)


def _warn(path: Path, loaded: Trace) -> None:
    """Say on stderr what of a file is not in its trace, and whether there is anything at all."""
    from ..observe.compare_traces import emptiness, losses

    texts = [text for text in (*losses(loaded), emptiness(loaded)) if text is not None]
    if texts:
        click.echo(f"note: {path.name}: {', '.join(texts)}", err=True)


@trace_group.command("record")
@click.argument("target", type=FILE)
@click.argument("args", nargs=-1)
@common.input_option
@common.size_option
@common.backend_option
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="How many times to run the graph.")
@click.option(
    "--detail",
    type=click.Choice(["step", "op"]),
    default="step",
    help="Record steps, or every operation of a step that holds many.",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    default=Path("trace.json"),
    help="The trace: .json (Chrome, Perfetto), .speedscope.json, .rust.json, .collapsed or .svg; .gz compresses.",
)
@common.reported
def record(
    target: Path,
    args: tuple[str, ...],
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    backend: str,
    repeat: int,
    detail: str,
    output: Path,
    as_json: bool,
) -> None:
    """Record a run of a graph file, or of your own script as `python SCRIPT` runs it.

    A script's exit code is passed on, and what it did before it failed is still written.

    \b
    Examples:
      tensorlogic trace record layer.json -i x=x.npy -i w=w.npy --repeat 100 -o run.json
      tensorlogic trace record train.py -o train.json -- --epochs 3
    """  # noqa: D301
    from ..ir.files import no_file
    from ..ir.whole_files import expect_folder
    from ..observe.compare_traces import counts
    from ..observe.trace import trace
    from ..observe.trace_files import form_of

    script = target.suffix == ".py"
    if args and not script:
        raise click.UsageError(f"arguments are for scripts; {target.name!r} is a graph, so {args[0]!r} has no place")
    if script and (inputs or sizes or repeat != 1):
        raise click.UsageError("--input, --size and --repeat are for graphs; a script takes its arguments after --")
    form_of(output)  # a name that cannot be written is refused before a long run, not after it
    expect_folder(output)
    code = 0
    if script:
        if not target.is_file():
            raise no_file(target)
        with trace(detail=detail) as recorded:
            code = _run_script(target, args)
        recorded.save(output)
    else:
        from ..runtime.executor import Executor

        executor, graph = Executor(backend), common.load_graph(target)
        values, sized = common.read_values(inputs), common.read_sizes(sizes)
        with trace(detail=detail) as recorded:
            try:
                for _ in common.progress(range(repeat), repeat, f"running {target.name}"):
                    executor.execute(graph, values, sizes=sized)
            finally:
                if len(recorded):
                    recorded.save(output)
    note = {"steps": recorded.step_count(), "spans": len(recorded.spans), "written": str(output)}
    if as_json:
        common.print_json(note)
    else:
        click.echo(f"{counts(recorded)} written to {output}", err=True)
    if code:
        sys.exit(code)


def _run_script(path: Path, args: tuple[str, ...]) -> int:
    """Run a script as the main module, and return the code with which it would exit."""
    import runpy
    import traceback

    argv, search = sys.argv, sys.path[:]
    sys.argv, sys.path[0:1] = [str(path), *args], [str(path.resolve().parent)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        click.echo(str(leaving.code), err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename != str(path):
            own = own.tb_next  # the script's own frames only, as python shows them
        shown = traceback.format_exception(error.with_traceback(own or error.__traceback__))
        click.echo("".join(shown), err=True, nl=False)
        return 1
    finally:
        sys.argv, sys.path[:] = argv, search
    return 0


@trace_group.command("summary")
@file_argument
@by_option
@kind_option
@top_option
@common.reported
def summary(file: Path, by: str, kind: str | None, top: int | None, as_json: bool) -> None:
    """Print where the time of a trace went: by operation, device or thread.

    "total" counts an entry inside of another of its row once, and of a thread time that entries share; "self" leaves out the
    time of all entries inside, "share" is of self time. Where two kinds of entries have one name, as on a CPU and a GPU, each kind has a row.

    \b
    Examples:
      tensorlogic trace summary run.json --top 10
      tensorlogic trace summary pytorch.json.gz --kind kernel
      tensorlogic trace summary run.json --by thread --json
    """  # noqa: D301
    from ..observe.compare_traces import counts, counts_record, lengths, losses, total_record, totals, totals_cells

    loaded = _read(file)
    rows = totals(loaded, by=by, kind=kind)
    if kind is not None and not rows:
        _known_kind(kind, loaded)
    if as_json:
        common.print_json({"by": by, **counts_record(loaded), "rows": [total_record(r) for r in rows[:top]]})
        return
    common.print_table(*totals_cells(rows, by, top), spare=(5, 4))
    own = sum(r.self_ns for r in rows)
    if kind is None:
        click.echo(f"{counts(loaded)}, {lengths(loaded, own)}")
    else:
        found = f"{sum(r.count for r in rows):,} of the kind {kind}"
        click.echo(", ".join([found, *losses(loaded), f"{own / 1e6:.3f} ms"]))


def _known_kind(kind: str, *traces: Trace) -> None:
    kinds = sorted({e.kind for t in traces for e in t.events()})
    if kind not in kinds:
        raise FormatError(f"no entry is of the kind {kind!r}", *nearest(kind, kinds), code="E255")


@trace_group.command("export")
@file_argument
@click.option("--to", "form", type=click.Choice(FORMS), required=True, help="The form to write.")
@click.option("-o", "--output", type=FILE, help="Write to a file instead; .gz compresses.")
@common.reported
def export(file: Path, form: str, output: Path | None, as_json: bool) -> None:
    """Convert a trace file to another form.

    \b
    Examples:
      tensorlogic trace export run.json --to speedscope -o run.speedscope.json
      tensorlogic trace export run.json --to collapsed | flamegraph.pl > run.svg
      tensorlogic trace export pytorch.json.gz --to rust -o run.rust.json
    """  # noqa: D301
    from ..observe.trace_files import save, write

    loaded = _read(file)
    if output is None:
        _warn(file, loaded)
        click.echo(write(loaded, form))
        return
    save(loaded, output, form)
    _written(output, as_json, file, loaded)


def _written(output: Path, as_json: bool, file: Path, loaded: Trace) -> None:
    from ..observe.compare_traces import counts_record

    if as_json:
        common.print_json({"written": str(output), **counts_record(loaded)})
    else:
        _warn(file, loaded)
        click.echo(f"written to {output}", err=True)


@trace_group.command("flame")
@file_argument
@click.option("-o", "--output", type=FILE, help="The SVG file; else it is printed.")
@click.option("--title", help="What to write above; else the name of the file.")
@click.option("--width", type=click.IntRange(200, 20_000), default=1200, help="Pixels.")
@common.reported
def flame(file: Path, output: Path | None, title: str | None, width: int, as_json: bool) -> None:
    """Draw a trace as a flame graph: an SVG file to open in a browser, where it zooms and searches.

    \b
    Examples:
      tensorlogic trace flame run.json -o run.svg
      tensorlogic trace flame stacks.collapsed -o stacks.svg --title "before the change"
    """  # noqa: D301
    from ..observe.flame import flame_svg
    from ..observe.trace_files import form_of, save_text

    if output is not None and form_of(output) != "flame":
        hint = f"write -o {output.stem}.svg"
        raise FormatError(f"a flame graph is an SVG file, not {output.name!r}", hint, code="E230")
    loaded = _read(file)
    text = flame_svg(loaded, title=title or file.name, width=width)
    if output is None:
        _warn(file, loaded)
        click.echo(text, nl=False)
        return
    save_text(output, text)
    _written(output, as_json, file, loaded)


@trace_group.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@by_option
@kind_option
@top_option
@common.reported
def diff_command(before: Path, after: Path, by: str, kind: str | None, top: int | None, as_json: bool) -> None:
    """Compare two traces by operation, the largest change first.

    \b
    Examples:
      tensorlogic trace diff before.json after.json --top 20
      tensorlogic trace diff rank0.json.gz rank1.json.gz --kind kernel --json
    """  # noqa: D301
    from ..observe.compare_traces import counts_record, diff

    first, second = _read(before), _read(after)
    found = diff(first, second, by=by, kind=kind)
    if kind is not None and not found.rows:
        _known_kind(kind, first, second)
    if as_json:
        sides = {"before": counts_record(first), "after": counts_record(second)}
        common.print_json({**sides, "rows": found.records(top)})
        return
    _warn(before, first)
    _warn(after, second)
    common.print_table(*found.changed(top), spare=(5, 6, 1, 2))
    click.echo(found.summary())
