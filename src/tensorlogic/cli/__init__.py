"""The command line: run, explain, draw and check graph files; record, read and compare traces.

Exit codes: 0 all is well, 1 the graph or its inputs are wrong, 2 the command was typed wrongly.
"""

from __future__ import annotations

import click

from .. import __version__
from .graphs import check, compile_command, explain, graph_command, run_command
from .traces import trace_group


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tensorlogic")
def main() -> None:
    """Run, explain, draw and check tensor graphs; compile formulas; record and read traces.

    \b
    Examples:
      tensorlogic check model.json
      tensorlogic explain model.json --size n=64
      tensorlogic run model.json -i x=x.npy -i w=w.npy
      tensorlogic graph model.json --format mermaid
      tensorlogic compile 'exists y:P. likes(x,y)' -d P=ann,bob -v x=P -o likes.json
      tensorlogic trace record model.json -i x=x.npy -o run.json
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


for command in (run_command, explain, graph_command, check, compile_command, trace_group):
    main.add_command(command)
