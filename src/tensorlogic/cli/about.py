"""Commands about the command itself: what an error code means, and completion in a shell."""

from __future__ import annotations

import click

from ..errors import InputError, nearest
from ..faults import FAULTS
from .common import print_json, print_table, reported


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(tensorlogic completion bash)"
      tensorlogic completion fish > ~/.config/fish/completions/tensorlogic.fish
    """  # noqa: D301
    from click.shell_completion import get_completion_class

    from . import main

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(main, {}, "tensorlogic", "_TENSORLOGIC_COMPLETE").source())


@click.command("explain-error")
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
    wanted = f"E{wanted}" if wanted.isdecimal() else wanted
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
