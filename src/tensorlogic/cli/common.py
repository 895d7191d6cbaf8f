"""What the commands share: options, reading inputs, reporting errors, tables and progress."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TypeVar

import click

from ..errors import FormatError, InputError, TensorLogicError, nearest
from ..events import Hook, watching
from ..ir.whole_files import writing as writing
from ..tables import table

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")
Texts = tuple[str, ...]
NAMES = 24  # characters that the first column of a table has on the narrowest screen, with what is around it
KINDS = (".npz", ".safetensors")  # files of parameters
PATIENCE = 1.0  # seconds before progress is shown


def reported(command: F) -> F:
    """Add ``--json`` to a command; print what goes wrong for people, or as JSON, and exit with 1."""

    @wraps(command)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                command(*args, **options)
        except TensorLogicError as error:
            kind, found = type(error).__name__, error.diagnostic
            if options.get("as_json"):
                place = None if error.guessed else found.location
                print_json({"error": diagnostic_json(found, place, kind)})
            else:
                notes = [*getattr(error, "__notes__", ())]
                if found.code is not None:
                    notes.append(f"more: tensorlogic explain-error {found.code}")
                click.echo("\n  ".join([f"{kind}: {error.render(guessed=False)}", *notes]), err=True)
            sys.exit(1)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever reads has had enough: click ends quietly
                raise
            click.echo(f"OSError: {error.strerror or error}", err=True)
            sys.exit(1)

    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(guarded)  # type: ignore[return-value]


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print a warning as errors are printed: a line of our own code beside it tells nobody on a command line anything."""
    click.echo(f"{category.__name__}: {message}", err=True)


def diagnostic_json(found: Any, place: Any, kind: str) -> dict[str, Any]:
    """Return a diagnostic for JSON."""
    return {
        "kind": kind,
        "severity": found.severity.name.lower(),
        "code": found.code,
        "message": found.message,
        "location": None if place is None else str(place),
        "context": list(found.context),
        "suggestions": list(found.suggestions),
    }


def print_json(value: Any) -> None:
    """Print one value as one line of JSON, with escapes where the output cannot encode its characters."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False)
    click.echo(text)


def in_utf8(text: str) -> str:
    """Return words of the command line as UTF-8, which they are also where the locale is not; paths stay as they were given."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:  # other bytes, or read as UTF-8 before
        return text


def words(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Read an argument that is a formula, a question or names, and no path; a callback of click's."""
    return in_utf8(value) if isinstance(value, str) else tuple(map(in_utf8, value))


FILE = click.Path(path_type=Path)
graph_argument = click.argument("graph", type=FILE)
input_help = (
    "An input: a .npy or .json file, FILE.npz:KEY, FILE.safetensors (the tensor of that name) or FILE.safetensors:KEY, "
    "or JSON such as x=[1,2,3]. Repeat for each."
)
input_option = click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help=input_help)
params_option = click.option(
    "--params", "params_path", type=FILE, help="A .npz or safetensors file of inputs by name, as train -o writes."
)
size_option = click.option("-s", "--size", "sizes", multiple=True, metavar="NAME=N", help="A named size, such as n=64.")
backend_option = click.option("--backend", default="numpy", help="What runs the graph.")
level_option = click.option(
    "--level",
    type=click.Choice(["none", "basic", "standard", "aggressive"]),
    help="How much the graph is optimized first; the backend's own choice (numpy: standard) if not given.",
)


def run_options(command: F) -> F:
    """Add the options that say how a graph is run."""
    return input_option(params_option(size_option(backend_option(level_option(command)))))


def executor_of(backend: str, level: str | None) -> Any:
    """Return the executor that the options ask for."""
    from ..passes.pipeline import OptimizationLevel
    from ..runtime.executor import Executor

    return Executor(backend, optimization_level=None if level is None else OptimizationLevel[level.upper()])


def load_graph(path: Path) -> Any:
    """Read a graph file."""
    from ..ir.graph import EinsumGraph

    return EinsumGraph.load(path)


def pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    """Read NAME=VALUE options, each name once."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} must be written NAME=VALUE, got {text!r}")
        name = in_utf8(name)
        if name in pairs:
            raise click.UsageError(f"{what} {name!r} is given twice")
        pairs[name] = value
    return pairs


def whole(value: str, what: str) -> int:
    """Read a whole number."""
    if not value.isdecimal() or len(value) > 19:
        raise click.UsageError(f"{what} must be a whole number below 2^63, got {value[:40]!r}")
    return int(value)


def read_sizes(given: tuple[str, ...]) -> dict[str, int]:
    """Read the sizes given on the command line."""
    return {name: whole(value, f"size {name!r}") for name, value in pairs(given, "--size").items()}


def read_values(given: tuple[str, ...]) -> dict[str, Any]:
    """Read the inputs given on the command line."""
    return {name: read_value(name, text) for name, text in pairs(given, "--input").items()}


def param_inputs(path: Path | None) -> Texts:
    """Return the arrays of a file of parameters as they would be given with --input.

    >>> param_inputs(None)
    ()
    """
    return () if path is None else tuple(f"{name}={path}:{name}" for name in read_arrays(path))


def read_arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of a .npz or safetensors file by name."""
    from ..ir.files import no_file
    from ..runtime.streams.array_sources import HEAD_ERRORS, PACK_ERRORS

    if path.suffix not in KINDS:
        raise InputError(f"{path} is neither .npz nor .safetensors", "save the parameters with -o", code="E852")
    if not path.exists():
        raise no_file(path)
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path} cannot be read: {error}", code="E853") from None
    try:
        import numpy as np

        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (*HEAD_ERRORS, *PACK_ERRORS) as error:
        raise FormatError(f"{path} cannot be read: {error}", code="E853") from None


def _member(path: str, key: str) -> Any:
    """Return one array of a safetensors file."""
    arrays = read_arrays(Path(path))
    if key not in arrays:
        raise InputError(f"{path} has no tensor {key!r}", *nearest(key, arrays), code="E306")
    return arrays[key]


def _json(text: str) -> Any:
    """Return what JSON says, or say that it is none."""
    if not text.strip():
        raise ValueError("the file is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None


def read_value(name: str, text: str) -> Any:
    """Read one input: an array file, a key of an archive, or JSON on the command line."""
    import numpy as np

    from ..ir.files import no_file

    path, _, key = text.partition(".npz:")
    try:
        if key:
            with open(path + ".npz", "rb") as file, np.load(file, allow_pickle=False) as archive:  # noqa: PTH123
                if key not in archive:
                    raise InputError(f"{path}.npz has no array {key!r}", *nearest(key, archive), code="E306")
                return archive[key]
        tensors, ending, key = text.partition(".safetensors")
        if ending and (not key or key[0] == ":"):
            return _member(tensors + ending, key[1:] or name)
        if text.endswith(".npy"):
            with open(text, "rb") as file:  # noqa: PTH123
                if file.read(6) != np.lib.format.MAGIC_PREFIX:  # which NumPy takes for pickled objects
                    raise ValueError("it holds no array, for NumPy's begin otherwise")
                file.seek(0)
                return np.load(file, allow_pickle=False)
        if text.endswith(".json"):
            return _json(Path(text).read_text(encoding="utf-8"))
        if text.endswith(".npz") and Path(text).is_file():
            with np.load(text, allow_pickle=False) as archive:
                keys = list(archive)
            hint = f"write -i {name}={text}:{name if name in keys or not keys else keys[0]}"
            raise InputError(f"input {name!r}: {text} holds arrays by name: {', '.join(keys)}", hint, code="E306")
        if not text.strip() or not re.match(r"\s*([-\[{\"\d]|true|false|null|NaN|-?Infinity)", text):
            there = "a file of another kind" if Path(text).is_file() else "no file"
            raise ValueError(f"it is {there}, and no JSON")
        return _json(text)
    except FileNotFoundError as error:
        missing = no_file(Path(error.filename)).diagnostic
        raise InputError(f"input {name!r}: {missing.message}", *missing.suggestions, code="E306") from None
    except InputError:
        raise
    except Exception as error:
        # a broken archive or header raises what its reader comes upon: BadZipFile, TokenError, zlib.error
        hint = "give a .npy or .json file, FILE.npz:KEY, FILE.safetensors:KEY, or JSON such as [[1, 2], [3, 4]]"
        message = f"input {name!r}: cannot read {text[:60]!r}: {error or type(error).__name__}"
        raise InputError(message, hint, code="E306") from None


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = (), spare: Sequence[int] = ()
) -> None:
    """Print a table: with colours and fitted to the screen on a terminal, else as plain text that stays the same.

    On a narrow screen the spare columns are left out, one after the other, so that those that stay are whole.
    """
    if not sys.stdout.isatty():
        click.echo(table(head, rows, right))
        return
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(cell_len(word) for word in (*name.split(), *(row[n] for row in rows))) for n, name in enumerate(head)]
    columns = list(range(len(head)))
    for n in spare:
        if sum(widths[k] + 3 for k in columns[1:]) + NAMES > console.width:
            columns.remove(n)
    room = console.width - sum(widths[k] + 3 for k in columns[1:]) - 4  # numbers stay whole, names give way
    shown = Table(box=SIMPLE_HEAD, row_styles=["", "dim"])
    for n in columns:
        title, width = ("\n".join(head[n].split()), None) if n else (head[n], max(NAMES - 4, room))
        side: Literal["left", "right"] = "right" if n in right else "left"
        shown.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", max_width=width)
    for row in rows:
        shown.add_row(*(Text(row[n]) for n in columns))  # Text: brackets in names are no markup
    console.print(shown)


def progress(
    items: Iterable[T], total: int, what: str, clock: Callable[[], float] = monotonic, after: float = PATIENCE
) -> Iterator[T]:
    """Go through items; after a second a bar on a terminal's stderr tells how far."""
    start = clock()
    rest = iter(items)
    done = 0
    for item in rest:
        yield item
        done += 1
        if clock() - start >= after and sys.stderr.isatty():
            break
    else:
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done)
        for item in rest:
            yield item
            bar.advance(task)


@contextlib.contextmanager
def waiting(what: str, size: int) -> Iterator[None]:
    """Show on a terminal's stderr that a large file is being read or written."""
    if size < 20_000_000 or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


class _Rounds(Hook):
    """Shows, on one line of a terminal's stderr, how far a recursion has come."""

    def __init__(self, clock: Callable[[], float] = monotonic, after: float = PATIENCE) -> None:
        self.clock, self.next, self.shown = clock, clock() + after, 0

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Show a round that has ended, at most ten times a second."""
        if name.startswith("round ") and self.clock() >= self.next:
            self.next = self.clock() + 0.1
            self.show(name)

    def show(self, text: str) -> None:
        """Write over what was shown last."""
        sys.stderr.write(f"\r{text:<{self.shown}}")
        sys.stderr.flush()
        self.shown = len(text)


@contextlib.contextmanager
def rounds() -> Iterator[None]:
    """Show on a terminal's stderr which round a recursion is in, once it takes more than a second; Ctrl-C stops it."""
    if not sys.stderr.isatty():
        yield
        return
    hook = _Rounds()
    with watching(hook):
        try:
            yield
        finally:
            if hook.shown:
                hook.show("")
                sys.stderr.write("\r")
