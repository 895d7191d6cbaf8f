"""The command line: run and ask programs; run, explain, draw and check graph files; record, read and compare traces.

Exit codes: 0 all is well, 1 the graph or its inputs are wrong, 2 the command was typed wrongly, 130 a stream was stopped by Ctrl-C.
"""

from __future__ import annotations

import click

from .. import __version__
from ..errors import InputError, nearest
from ..faults import FAULTS
from .common import print_json, print_table, reported
from .graphs import check, compile_command, explain, graph_command, run_command
from .launch import launch_command
from .programs import fmt_command, query_command
from .quantize import quantize_command
from .serve import serve_command
from .traces import trace_group
from .train import train_command
from .why import why_command, why_not_command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tensorlogic")
def main() -> None:
    """Run and ask programs; run, explain, draw and check tensor graphs; compile formulas; record and read traces.

    \b
    Examples:
      tensorlogic run family.tl
      tensorlogic query family.tl "Ancestor(Alice, x)?"
      tensorlogic why family.tl "Ancestor(Alice, Charlie)"
      tensorlogic check model.json
      tensorlogic explain model.json --size n=64
      tensorlogic run model.json -i x=x.npy -i w=w.npy
      tensorlogic run model.json -i w=w.npy --stream data.parquet --checkpoint run -o out.parquet
      tensorlogic graph model.json --format mermaid
      tensorlogic compile 'exists y:P. likes(x,y)' -d P=ann,bob -v x=P -o likes.json
      tensorlogic train model.json --data train.npz --config train.toml --folder run
      tensorlogic quantize model.json --to int4 --calibrate data.npz --report report.html
      tensorlogic launch -n 4 script.py
      tensorlogic serve models/ --port 8000
      tensorlogic trace record model.json -i x=x.npy -o run.json
      tensorlogic explain-error E304
    """  # noqa: D301 - \b keeps click from joining the lines


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


@main.command("explain-error")
@click.argument("code", required=False)
@click.option("--list", "listed", is_flag=True, help="List all codes.")
@reported
def explain_error(code: str | None, listed: bool, as_json: bool) -> None:
    """Print what an error code means, why the error comes about and what to do.

    \b
    Examples:
      tensorlogic explain-error E304
      tensorlogic explain-error --list
    """  # noqa: D301
    if listed == (code is not None):
        raise click.UsageError("give one error code, or --list")
    wanted = (code or "").upper()
    if not listed and wanted not in FAULTS:
        near = nearest(wanted, FAULTS) if len(wanted) > 3 else []  # too short to be near to one
        raise InputError(f"there is no error code {code!r}", *near, "--list shows them all", code="E219")
    shown = FAULTS if listed else {wanted: FAULTS[wanted]}
    if as_json:
        rows = [{"code": c, **fault._asdict()} for c, fault in shown.items()]
        print_json(rows if listed else rows[0])
    elif listed:
        print_table(["code", "fault"], [[c, fault.title] for c, fault in shown.items()])
    else:
        fault = shown[wanted]
        click.echo(f"{wanted}: {fault.title}\n\n{fault.cause}\nFix: {fault.fix}")


for command in (
    run_command,
    query_command,
    explain,
    graph_command,
    check,
    fmt_command,
    why_command,
    why_not_command,
    compile_command,
    train_command,
    quantize_command,
    launch_command,
    serve_command,
    trace_group,
):
    main.add_command(command)
