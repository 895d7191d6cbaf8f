"""The command line: run and ask programs; run, explain, draw and check graph files; record, read and compare traces.

Exit codes: 0 all is well, 1 the graph or its inputs are wrong, 2 the command was typed wrongly, 130 a stream was stopped by Ctrl-C.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module

import click

from .. import __version__

# of each command: the module that has it, the name it has there, and what it does in a few words, as its own help begins
COMMANDS = {
    "check": ("graphs", "check", "Check a graph file: structure, shapes and types, unused inputs and repeated work"),
    "compile": ("graphs", "compile_command", "Compile a formula to a graph"),
    "completion": ("about", "completion", "Print the completion script of a shell"),
    "explain": ("graphs", "explain", "Print the plan of a graph file or a program"),
    "explain-error": (
        "about",
        "explain_error",
        "Print what an error code means, why the error comes about and what to do",
    ),
    "fmt": ("programs", "fmt_command", "Format programs in the usual layout; comments stay"),
    "graph": ("graphs", "graph_command", "Show a graph file as text, or convert it"),
    "launch": ("launch", "launch_command", "Run SCRIPT in several processes, the ranks of execute_distributed"),
    "quantize": (
        "quantize",
        "quantize_command",
        "Store the weights of a graph file in a few bits, and tell what that saves and costs",
    ),
    "query": ("programs", "query_command", "Ask a program: the answers by name"),
    "run": ("graphs", "run_command", "Run a graph file and print its outputs; run a program (.tl), print its answers"),
    "serve": ("serve", "serve_command", "Serve the models of FOLDER/NAME/VERSION/ until told to end"),
    "trace": ("traces", "trace_group", "Record runs, and read, convert, draw and compare their traces"),
    "train": ("train", "train_command", "Learn the parameters of a graph file whose output 'loss' is a scalar"),
    "why": ("why", "why_command", "Say why an atom holds: a proof from the facts"),
    "why-not": (
        "why",
        "why_not_command",
        "Say why an atom does not hold: the closest rules, and what each of them misses",
    ),
}


class Commands(click.Group):
    """A group of commands; one that is misspelt is refused with the name of the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none of the name, say which one is near."""
        known = self.list_commands(ctx)
        if args[0] not in known and args[0][:1].isalpha():
            from ..errors import nearest

            hints = [h.capitalize() for h in nearest(args[0], known) if h.startswith("did you mean")]
            ctx.fail(" ".join([f"No such command {args[0]!r}.", *hints]))
        return super().resolve_command(ctx, args)


class _Commands(Commands):
    """Commands that are loaded when they are called; a list of them loads none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __name__), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
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
    # what they cannot encode is a ? in a terminal and an escape elsewhere, not an error
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")
