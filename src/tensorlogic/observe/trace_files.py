"""Trace files: the file name chooses the form that is written; the content tells the form that is read (see trace_readers)."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path

from ..diagnostics import bytes_text
from ..errors import FormatError
from ..ir.files import no_file
from ..ir.whole_files import as_path, write_whole
from .trace import Trace
from .trace_export import to_chrome, to_collapsed, to_speedscope
from .trace_readers import read

UNPACKED = 64 << 20  # bytes that any .gz file may unpack to; a larger one may unpack to RATIO times its own size
RATIO = 200
PIECE = 1 << 13  # bytes of a damaged file that are unpacked at a time: no more are lost before the damage
ENDINGS = {  # the first that fits says the form
    "speedscope.json": "speedscope",
    ".rust.json": "rust",
    ".json": "chrome",
    ".speedscope": "speedscope",
    ".collapsed": "collapsed",
    ".folded": "collapsed",
    ".txt": "collapsed",
    ".svg": "flame",
}


def form_of(path: str | Path) -> str:
    """Return the form that a file's name asks for.

    >>> form_of("run.json"), form_of("run.speedscope.json.gz"), form_of("run.collapsed"), form_of("run.svg")
    ('chrome', 'speedscope', 'collapsed', 'flame')
    """
    name = Path(path).name
    for ending, form in ENDINGS.items():
        if name.removesuffix(".gz").endswith(ending):
            return form
    hint = "end it in .json (Chrome, Perfetto), .speedscope.json, .rust.json, .collapsed or .svg; .gz behind compresses"
    raise FormatError(f"the name {name!r} does not say what form the trace should have", hint, code="E243")


def write(trace: Trace, form: str) -> str:
    """Return a trace in a form: chrome, speedscope, collapsed, rust or flame."""
    from .flame import flame_svg

    writers: dict[str, Callable[[Trace], str]] = {
        "chrome": to_chrome,
        "speedscope": to_speedscope,
        "collapsed": to_collapsed,
        "flame": flame_svg,
        "rust": lambda t: t.to_recorded().to_json(),
    }
    return writers[form](trace)


def save(trace: Trace, path: str | Path, form: str | None = None) -> None:
    """Write a trace in a form, else in the one that the name asks for."""
    save_text(path, write(trace, form or form_of(as_path(path))))


def save_text(path: str | Path, text: str) -> None:
    """Write text, compressed where the name ends in ``.gz``."""
    data = text.encode()
    write_file(path, gzip.compress(data, 6, mtime=0) if Path(path).suffix == ".gz" else data)


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file that appears whole or not at all; a device such as ``/dev/stdout`` is written to directly."""
    try:
        place = Path(path)
        if place.exists() and not place.is_file():
            place.write_bytes(data)
        else:  # resolved, so that a link stays one
            write_whole(place.resolve(), lambda temporary: temporary.write_bytes(data))
    except (OSError, ValueError) as error:
        hint = "give a file in a folder that is there and can be written"
        raise FormatError(f"cannot write {str(path)!r}: {reason(error)}", hint, code="E228") from None


def reason(error: Exception) -> str:
    """Say why a file could not be read or written, without its name, which is said already."""
    return getattr(error, "strerror", None) or str(error)


def load(path: str | Path) -> Trace:
    """Read a trace file; its form is seen from what it holds, not from its name."""
    path = as_path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise no_file(path) from None
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {str(path)!r}: {reason(error)}", code="E229") from None
    damage = None
    try:
        if data[:2] == b"\x1f\x8b":
            data, damage = _unpacked(data)
        trace = read(data, damage)
        if damage and not (len(trace) or trace.skipped or (trace.chrome and trace.chrome.others)):
            raise FormatError("it holds nothing")
        return trace
    except FormatError as error:
        if b"<svg" in data[:1000]:
            hint = "load the trace it was drawn from; save a trace as .json to read it back"
            raise FormatError(f"{str(path)!r} is a picture (SVG), which is not read back", hint, code="E252") from None
        message = error.diagnostic.message
        if damage:
            text = f"{str(path)!r} is not whole, {damage}; what could be unpacked cannot be read: {message}"
            raise FormatError(text, "copy or record the file again", code="E244") from None
        raise error.renamed(f"{str(path)!r}: {message}") from None


def _unpacked(data: bytes) -> tuple[bytes, str | None]:
    """Decompress a gzip file as far as it goes, unless it grows far beyond what traces do; and say what is wrong with it."""
    limit, damage = max(UNPACKED, RATIO * len(data)), None
    try:
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        damage = "its gzip data end early" if isinstance(error, EOFError) else f"its gzip data are broken: {error}"
        text = _unpacked_start(data, limit)
    if len(text) > limit:
        message = f"{bytes_text(len(data))} of gzip unpack to more than {bytes_text(limit)}"
        raise FormatError(message, "if that is right, unpack it first: gunzip", code="E253")
    return text, damage


def _unpacked_start(data: bytes, limit: int) -> bytes:
    """Decompress a damaged gzip file up to the damage, or to the limit."""
    text = bytearray()
    with gzip.open(io.BytesIO(data)) as file, contextlib.suppress(OSError, EOFError, zlib.error):
        while len(text) <= limit and (piece := file.read1(PIECE)):
            text += piece
    return bytes(text)
