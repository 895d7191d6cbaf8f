"""The commands for programs: run, query, check and explain take ``.tl`` files too, and fmt lays them out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from ..diagnostics import Severity
from ..errors import FormatError, TensorLogicError
from . import common
from .common import FILE, Texts, rounds

SUFFIXES = (".tl", ".pl", ".nl")

program_argument = click.argument("program", type=FILE)
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a header, then a row for each answer.")


def is_program(path: Path) -> bool:
    """Tell whether a path names a program: by its suffix, or a folder that one was saved in."""
    return path.suffix.lower() in SUFFIXES or (path / "program.json").is_file()


def load_program(path: Path, inputs: Texts = (), backend: str = "numpy", level: str | None = None) -> Any:
    """Load a program and bind the inputs that are given on the command line."""
    from ..programs.program import load

    if path.suffix == ".json" and path.is_file():
        hint = f"a graph is run: tensorlogic run {path} -i NAME=VALUE"
        raise FormatError(f"{str(path)!r} is a graph file, and a program (.tl) is expected", hint, code="E773")
    program = load(path, executor=common.executor_of(backend, level))
    return program.bind(common.read_values(inputs)) if inputs else program


def run_program(
    path: Path, inputs: Texts, backend: str, level: str | None, output: Path | None, *, as_json: bool, as_csv: bool
) -> None:
    """Answer the queries of a program and write its files; without queries, show all that it derives."""
    import numpy as np

    from ..lang.syntax import Tensor
    from .graphs import save_arrays

    program = load_program(path, inputs, backend, level)
    with rounds():
        answers = program.answers()
    if not answers:
        derived = [n for c in program.run()._evaluation.model.analysis.components for n in c.names]
        with rounds():
            answers = {name: program.ask((Tensor(name),)) for name in derived}
    if output is not None:
        save_arrays(output, {n: np.asarray(v) for n, v in program.run().items()})
    written = [str(p) for p in program.write_files()]
    if as_json:
        found = [answer_json(text, a) for text, a in answers.items()]
        common.print_json({"answers": found, "written": written + ([str(output)] if output else [])})
        return
    for n, (text, found) in enumerate(answers.items()):
        if as_csv:
            click.echo(("\n" if n else "") + csv_text(found), nl=False)
        else:
            click.echo(("\n" if n else "") + f"{text}\n{found}")
    note_doubts(program, answers.values())
    for name in [*written, *([str(output)] if output else [])]:
        click.echo(f"written to {name}", err=True)


def note_doubts(program: Any, answers: Iterable[Any], query: str | None = None) -> None:
    """Say on stderr what is doubtful where a question has no answers: a name that is misspelt has none either."""
    for doubt in () if all(answers) else program.doubts(query):
        click.echo(f"note: {'; '.join([doubt.diagnostic.message, *doubt.diagnostic.suggestions])}", err=True)


def answer_json(text: str, answers: Any) -> dict[str, Any]:
    """Return answers for JSON; those without variables as their value."""
    from .graphs import finite

    columns = list(answers.columns())
    rows = [[finite(v) for v in row] for row in answers.rows()]
    if not answers.heads:
        return {"query": text, "value": finite(answers.value)}
    return {"query": text, "columns": columns, "rows": rows}


def csv_text(answers: Any) -> str:
    """Return answers as CSV with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if answers.heads:
        writer.writerow(list(answers.columns()))
        writer.writerows(answers.rows())
    else:
        writer.writerow(["value"])
        writer.writerow([str(answers.value).lower() if isinstance(answers.value, bool) else answers.value])
    return out.getvalue()


@click.command("query")
@program_argument
@click.argument("query", callback=common.words)
@common.input_option
@common.backend_option
@common.level_option
@csv_option
@common.reported
def query_command(
    program: Path, query: str, inputs: Texts, backend: str, level: str | None, as_csv: bool, as_json: bool
) -> None:
    """Ask a program: the answers by name.

    \b
    Examples:
      tensorlogic query family.tl "Ancestor(Alice, x)?"
      tensorlogic query family.tl "Parent(x, y), not Old(x)?" --csv
      tensorlogic query network.tl "Y[i]?" -i W=weights.npy --json
    """  # noqa: D301
    loaded = load_program(program, inputs, backend, level)
    with rounds():
        answers = loaded.query(query)
    if as_json:
        common.print_json(answer_json(query, answers))
    else:
        click.echo(csv_text(answers), nl=False) if as_csv else click.echo(str(answers))
        note_doubts(loaded, [answers], query)


def check_program(path: Path, *, as_json: bool) -> None:
    """Check a program without running it; what is doubtful, though it runs, is a warning."""
    program = load_program(path)
    program.check()
    doubts = program.doubts()
    needed = program.run().missing_inputs()
    if as_json:
        found = {"valid": True, "statements": len(program.statements), "facts": program.facts.count(), "needs": needed}
        warned = [msgspec.structs.replace(d.diagnostic, severity=Severity.WARNING) for d in doubts]
        listed = [common.diagnostic_json(d, d.location, "Diagnostic") for d in warned]
        common.print_json({**found, "diagnostics": listed})
    else:
        for doubt in doubts:
            click.echo(f"warning: {doubt.render(guessed=False)}")
        runs = f", and runs once {', '.join(needed)} {'is' if len(needed) == 1 else 'are'} given" if needed else ""
        click.echo(f"{path}: {program!r} is valid{runs}")


@click.command("fmt")
@click.argument("programs", nargs=-1, required=True, type=FILE)
@click.option("-w", "--write", "in_place", is_flag=True, help="Rewrite the files that change.")
@click.option("--check", "only_check", is_flag=True, help="Exit with 1 where a file would change.")
@common.reported
def fmt_command(programs: tuple[Path, ...], in_place: bool, only_check: bool, as_json: bool) -> None:
    """Format programs in the usual layout; comments stay.

    \b
    Examples:
      tensorlogic fmt family.tl
      tensorlogic fmt -w *.tl
      tensorlogic fmt --check *.tl
    """  # noqa: D301
    from ..lang.format import format_program
    from ..programs.files import expect_no_graph

    changed: list[str] = []
    for path in programs:
        expect_no_graph(path)
        text = read_text(path)
        try:
            laid_out = format_program(text)
        except TensorLogicError as error:
            where = error.diagnostic.location
            if where is not None:
                error.diagnostic = error.diagnostic.with_location(where.with_file(str(path)))
            raise
        if laid_out != text:
            changed.append(str(path))
        if in_place and laid_out != text:
            with common.writing(path):
                path.write_text(laid_out, encoding="utf-8")
        elif not (in_place or only_check or as_json):
            click.echo(laid_out, nl=False)
    if as_json:
        common.print_json({"changed": changed})
    elif in_place or only_check:
        for name in changed:
            click.echo(f"{name} {'changed' if in_place else 'would change'}", err=True)
    if only_check and changed:
        raise SystemExit(1)


def read_text(path: Path) -> str:
    """Read the text of a program."""
    from ..ir.files import no_file

    if not path.is_file():
        raise no_file(path)
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise FormatError(f"{path.name!r} is not readable UTF-8 text: {error}", code="E773") from None
