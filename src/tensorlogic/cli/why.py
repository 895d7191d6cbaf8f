"""The commands that ask a program for reasons: why something holds, and why it does not."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from msgspec import structs

from ..errors import InputError
from . import common
from .common import Texts
from .programs import load_program, program_argument

FORMATS = {"text": "text", "dot": "to_dot", "mermaid": "to_mermaid", "svg": "to_svg"}
atom_argument = click.argument("atom", callback=common.words)
format_option = click.option(
    "--format", "form", type=click.Choice(list(FORMATS)), default="text", show_default=True, help="How it is shown."
)


@click.command("why")
@program_argument
@atom_argument
@common.input_option
@format_option
@click.option("--all", "whole", is_flag=True, help="Print every step, however many there are.")
@common.reported
def why_command(program: Path, atom: str, inputs: Texts, form: str, whole: bool, as_json: bool) -> None:
    """Say why an atom holds: a proof from the facts; or of a number, what contributes to it.

    \b
    Examples:
      tensorlogic why family.tl "Ancestor(Alice, Charlie)"
      tensorlogic why family.tl "Ancestor(Alice, Charlie)" --format mermaid
      tensorlogic why network.tl "Y[3]" -i X=x.npy
    """  # noqa: D301
    try:
        found = load_program(program, inputs).why(atom)
    except InputError as error:
        if error.diagnostic.code == "E793":  # the hint is a call in Python
            if any("p.query(" in hint for hint in error.diagnostic.suggestions):  # it has variables
                command = ["tensorlogic", "query", str(program), f"{atom.rstrip(' ?')}?"]
                typed = f"name the elements; {shlex.join(command)} says for which it holds"
            else:
                typed = f"ask what is missing: {shlex.join(['tensorlogic', 'why-not', str(program), atom])}"
            error.diagnostic = structs.replace(error.diagnostic, suggestions=(typed,))
        raise
    if as_json:
        common.print_json(found.to_dict())
    elif form == "text":
        click.echo(found.text() if whole else str(found))
    elif not hasattr(found, FORMATS[form]):
        raise click.UsageError(f"{atom} is a number, which has no proof to draw")
    else:
        click.echo(getattr(found, FORMATS[form])())


@click.command("why-not")
@program_argument
@atom_argument
@common.input_option
@format_option
@click.option("--all", "whole", is_flag=True, help="Print every rule, however many there are.")
@common.reported
def why_not_command(program: Path, atom: str, inputs: Texts, form: str, whole: bool, as_json: bool) -> None:
    """Say why an atom does not hold: the closest rules, and what each of them misses.

    \b
    Examples:
      tensorlogic why-not family.tl "Ancestor(Charlie, Alice)"
      tensorlogic why-not family.tl "Ancestor(Charlie, Alice)" --format mermaid
    """  # noqa: D301
    found = load_program(program, inputs).why_not(atom)
    if as_json:
        common.print_json(found.to_dict())
    elif not found:
        click.echo(f"{atom} holds: {shlex.join(['tensorlogic', 'why', str(program), atom])} says why")
    elif form != "text":
        click.echo(getattr(found, FORMATS[form])())
    else:
        click.echo(found.text() if whole else str(found))
