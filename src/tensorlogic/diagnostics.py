"""What went wrong, where, and what to write instead: one record for the validator, every exception and every report."""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from itertools import islice, permutations
from pathlib import Path
from types import CodeType, FrameType

import msgspec

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_STANDARD = str(Path(os.__file__).parent) + os.sep  # Python's own modules, such as threading and contextlib


def clean(text: str) -> str:
    r"""Return text that UTF-8 can hold: halves of surrogate pairs, as in the names of files that are not UTF-8, become question marks.

    >>> clean("model\udcff.py")
    'model?.py'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class Severity(IntEnum):
    """How bad a diagnostic is; severities compare.

    >>> Severity.WARNING < Severity.ERROR
    True
    """

    INFO = 0
    WARNING = 1
    ERROR = 2
    CRITICAL = 3


class SourceLocation(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A place in the user's text: file, line, column, and the rule that stands there.

    >>> print(SourceLocation().with_file("model.py").with_line(42))
    model.py:42
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    rule: str | None = None

    def with_file(self, file: str) -> SourceLocation:
        """Return the same place in another file."""
        return msgspec.structs.replace(self, file=file)

    def with_line(self, line: int) -> SourceLocation:
        """Return the same place on another line."""
        return msgspec.structs.replace(self, line=line)

    def with_column(self, column: int) -> SourceLocation:
        """Return the same place at another column, counted from 1."""
        return msgspec.structs.replace(self, column=column)

    def __str__(self) -> str:
        parts = [self.file or "<text>"] + [str(n) for n in (self.line, self.column) if n is not None]
        return ":".join(parts) + (f" (rule {self.rule})" if self.rule else "")


_WIDTH = 160  # characters of a source line that an error shows
_SHORT = 60  # characters of a value in a message
_sources: set[str] = set()  # files whose lines may be shown: code that ran here, never what a loaded file names
_places: dict[tuple[str, CodeType, int], SourceLocation] = {}  # equal code may stand in two files


def caller() -> SourceLocation | None:
    """Return the place in the user's code that is calling into the package."""
    frame = sys._getframe(1)
    while not _of_user(frame):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    if str(frame.f_globals.get("__name__")).startswith("click."):  # a command of ours: there is no code of the user's
        return None
    key = (frame.f_code.co_filename, frame.f_code, frame.f_lasti)
    place = _places.get(key)
    if place is None:
        line, _, column, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        file, number = frame.f_code.co_filename, line or frame.f_lineno
        _sources.add(file)
        if column:  # Python counts bytes
            column = len(linecache.getline(file, number).encode()[:column].decode(errors="replace")) or column
        place = SourceLocation(file, number, None if column is None else column + 1)
        if len(_places) < 100_000:  # a program that makes code without end should not fill memory
            _places[key] = place
    return place


def warn_caller(message: str, kind: type[Warning]) -> None:
    """Warn at the place in the user's code that is calling into the package."""
    import warnings  # loaded by those who warn

    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and not _of_user(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def _of_user(frame: FrameType) -> bool:
    """Tell whether a frame is neither of the package (the methods of its dataclasses are in no file) nor of Python itself."""
    file = frame.f_code.co_filename
    if file.startswith(_PACKAGE):
        return False
    if file.startswith(_STANDARD):
        return "site-packages" in file
    return not (file == "<string>" and str(frame.f_globals.get("__name__")).startswith("tensorlogic."))


def _part_around(line: str, place: int) -> tuple[str, int]:
    """Return a line, cut to ``_WIDTH`` characters around a place with ``…`` where something is left out, and the place in what is left."""
    if len(line) <= _WIDTH:
        return line, place
    begin = min(max(0, place - _WIDTH // 2), len(line) - _WIDTH)
    part = line[begin : begin + _WIDTH]
    if begin > 0:
        part = "…" + part[1:]
    if begin + _WIDTH < len(line):
        part = part[:-1] + "…"
    return part, place - begin


class Diagnostic(msgspec.Struct, frozen=True):
    """One finding: severity, message, code, location, context and suggestions.

    The ``with_*`` methods return a changed copy, so calls chain.

    >>> d = Diagnostic.error("Tensor operation failed").with_code("E001")
    >>> print(d.with_context("index 'j' is 5 and 9").with_suggestion("transpose W").format())
    [ERROR] Tensor operation failed
      code: E001
    <BLANKLINE>
    Context:
      index 'j' is 5 and 9
    <BLANKLINE>
    Suggestions:
      1. transpose W
    """

    severity: Severity
    message: str
    code: str | None = None
    location: SourceLocation | None = None
    context: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    source: str | None = None

    @classmethod
    def info(cls, message: str) -> Diagnostic:
        """Make an informational finding."""
        return cls(Severity.INFO, message)

    @classmethod
    def warning(cls, message: str) -> Diagnostic:
        """Make a warning: suspicious, but it runs."""
        return cls(Severity.WARNING, message)

    @classmethod
    def error(cls, message: str) -> Diagnostic:
        """Make an error: it cannot run."""
        return cls(Severity.ERROR, message)

    @classmethod
    def critical(cls, message: str) -> Diagnostic:
        """Make a critical finding: the system itself is in trouble."""
        return cls(Severity.CRITICAL, message)

    def with_code(self, code: str) -> Diagnostic:
        """Return a copy with an error code."""
        return msgspec.structs.replace(self, code=code)

    def with_context(self, line: str) -> Diagnostic:
        """Return a copy with one more line of context."""
        return msgspec.structs.replace(self, context=(*self.context, line))

    def with_suggestion(self, suggestion: str) -> Diagnostic:
        """Return a copy with one more suggestion."""
        return msgspec.structs.replace(self, suggestions=(*self.suggestions, suggestion))

    def with_location(self, location: SourceLocation | None) -> Diagnostic:
        """Return a copy that points at a place."""
        return msgspec.structs.replace(self, location=location)

    def with_source(self, line: str) -> Diagnostic:
        """Return a copy that quotes the offending line of text."""
        return msgspec.structs.replace(self, source=line)

    def source_lines(self) -> list[str]:
        """Return the offending line and, where the column is known, a caret under it; of a long line, the part around the caret."""
        where, line = self.location, self.source
        file = "" if where is None else where.file or ""  # in angle brackets: text that is no file on disk
        if line is None and where is not None and where.line and (file in _sources or file.startswith("<")):
            line = linecache.getline(file, where.line) or None
        if line is None:
            return []
        text = line.rstrip("\n")
        shown = text.lstrip()
        if where is None or where.column is None:
            return [_part_around(shown, 0)[0]]
        shown, caret = _part_around(shown, max(0, where.column - 1 - (len(text) - len(shown))))
        return [shown, " " * caret + "^"]

    def format(self) -> str:
        """Return the whole finding as text of several lines."""
        lines = [f"[{self.severity.name}] {self.message}"]
        if self.location is not None:
            lines.append(f"  at {self.location}")
            lines += [f"    {line}" for line in self.source_lines()]
        if self.code is not None:
            lines.append(f"  code: {self.code}")
        if self.context:
            lines += ["", "Context:", *(f"  {line}" for line in self.context)]
        if self.suggestions:
            lines += ["", "Suggestions:", *(f"  {n}. {line}" for n, line in enumerate(self.suggestions, 1))]
        return clean("\n".join(lines))

    def __str__(self) -> str:
        return self.format()


def _finding(severity: Severity, code: str, message: str, context: Sequence[str], *hints: str) -> Diagnostic:
    return Diagnostic(severity, message, code, context=tuple(context), suggestions=hints)


class DiagnosticCollector(list[Diagnostic]):
    """Gathers diagnostics and counts them by severity.

    >>> found = DiagnosticCollector()
    >>> found.add(Diagnostic.error("no such input"))
    >>> found.has_errors(), found.error_count(), found.warning_count()
    (True, 1, 0)
    """

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep one more diagnostic."""
        self.append(diagnostic)

    def error_count(self) -> int:
        """Count the errors and critical findings."""
        return sum(d.severity >= Severity.ERROR for d in self)

    def warning_count(self) -> int:
        """Count the warnings."""
        return sum(d.severity == Severity.WARNING for d in self)

    def has_errors(self) -> bool:
        """Tell whether anything collected is an error or worse."""
        return self.error_count() > 0

    def format_all(self) -> str:
        """Return every diagnostic, a blank line apart, and a summary line."""
        summary = f"Summary: {self.error_count()} error(s), {self.warning_count()} warning(s)"
        return "\n\n".join([*(d.format() for d in self), summary])


class ShapeMismatchDiagnostic:
    """Diagnostics about shapes that do not fit.

    >>> print(ShapeMismatchDiagnostic.create((64, 128), (64, 256), "matmul").context[1])
    Dimension 1 mismatch: expected Static(128), got Static(256)
    """

    @staticmethod
    def create(expected: Sequence[int | str], actual: Sequence[int | str], operation: str) -> Diagnostic:
        """Compare two shapes and say which dimension differs."""
        fix = _transposing(expected, actual)
        fix = fix or f"Use tensor.reshape({_brackets(expected)}) to match the expected shape"
        return ShapeMismatchDiagnostic._of(expected, actual, f"Shape mismatch in {operation} operation", fix)

    @staticmethod
    def of_input(declared: Sequence[int | str], given: Sequence[int | str], message: str) -> Diagnostic:
        """Compare the shape of an array with what its input declares; reshape is suggested where it would work.

        The message says which axis differs, in plain words.

        >>> ShapeMismatchDiagnostic.of_input(("n", 4), (2, 6), "input 'x' does not fit").suggestions
        ('Use array.reshape([-1, 4]) if the elements are in that order',)
        """
        fix = _transposing(declared, given)
        if fix is None and (target := _reshaped(declared, given)) is not None:
            fix = f"Use array.reshape({_brackets(target)}) if the elements are in that order"
        fix = fix or f"Give an array of shape {_brackets(declared)}, or declare the input with the sizes that it has"
        return _finding(Severity.ERROR, "E001", message, [_both_shapes(declared, given)], fix)

    @staticmethod
    def _of(expected: Sequence[int | str], actual: Sequence[int | str], message: str, fix: str) -> Diagnostic:
        context = [_both_shapes(expected, actual)]
        if len(expected) != len(actual):
            context.append(f"Rank mismatch: expected {len(expected)}, got {len(actual)}")
        for axis, (want, got) in enumerate(zip(expected, actual, strict=False)):
            if want != got and not (isinstance(want, str) and isinstance(got, int)):  # a name takes any size
                context.append(f"Dimension {axis} mismatch: expected {_kind(want)}, got {_kind(got)}")
        hints = ("Check your input tensor shapes match the expected dimensions", fix)
        return _finding(Severity.ERROR, "E001", message, context, *hints)


def _both_shapes(expected: Sequence[int | str], actual: Sequence[int | str]) -> str:
    return f"Expected shape: {_brackets(expected)}, but got: {_brackets(actual)}"


class TypeMismatchDiagnostic:
    """Diagnostics about element types that do not fit.

    >>> TypeMismatchDiagnostic.create("float32", "int64", "add").suggestions[0]
    "Convert with array.astype('float32') before the call"
    """

    @staticmethod
    def create(expected: str, actual: str, operation: str) -> Diagnostic:
        """Say which type was wanted, which came, and how to convert."""
        context = [f"Expected type: {expected}, but got: {actual}"]
        return _finding(
            Severity.ERROR,
            "E002",
            f"Type mismatch in {operation} operation",
            context,
            f"Convert with array.astype('{expected}') before the call",
            "Declare the input without a dtype to take the array's own",
        )


class MemoryDiagnostic:
    """Diagnostics about memory.

    >>> print(MemoryDiagnostic.out_of_memory(2**30, 2**29).message)
    Out of memory: 1.0 GiB requested, 512.0 MiB available
    """

    @staticmethod
    def out_of_memory(requested: int, available: int, *, wide: bool = True) -> Diagnostic:
        """Say how much was wanted, how much there is, and what helps: a narrower dtype where there are ``wide`` ones."""
        message = f"Out of memory: {bytes_text(requested)} requested, {bytes_text(available)} available"
        return _finding(
            Severity.CRITICAL,
            "E003",
            message,
            [f"Short by {bytes_text(max(0, requested - available))}"],
            "Use a smaller batch or smaller inputs",
            *(["Use a narrower dtype, such as float32 in place of float64"] if wide else []),
            "Run it in parts: execute(graph, inputs, budget=bytes)",
            "Raise the limit with Executor(memory_limit=bytes) if the machine has more",
        )


class PerformanceDiagnostic:
    """Diagnostics about speed.

    >>> PerformanceDiagnostic.slow_operation("einsum", 150.0, 50.0).message
    'Slow operation: einsum took 150.00 ms, expected 50.00 ms'
    """

    @staticmethod
    def slow_operation(operation: str, actual_ms: float, expected_ms: float) -> Diagnostic:
        """Warn that an operation took longer than expected."""
        message = f"Slow operation: {operation} took {actual_ms:.2f} ms, expected {expected_ms:.2f} ms"
        context = [f"{actual_ms / expected_ms:.1f} times the expected time"] if expected_ms > 0 else []
        return _finding(
            Severity.WARNING,
            "W001",
            message,
            context,
            "Look at the plan: print(executor.plan(graph, inputs))",
            "Check that contractions name their indices in one einsum, so that they can be reordered",
        )


class NodeExecutionDiagnostic:
    """Diagnostics about a node that failed while running.

    >>> NodeExecutionDiagnostic.create(3, "einsum", "boom").message
    'Node 3 (einsum) failed: boom'
    """

    @staticmethod
    def create(node: int, operation: str, reason: str, inputs: Sequence[str] = ()) -> Diagnostic:
        """Name the node, what it was doing, and what it was given."""
        context = [f"operand {n}: {description}" for n, description in enumerate(inputs)]
        return _finding(Severity.ERROR, "E004", f"Node {node} ({operation}) failed: {reason}", context)


def value_text(value: object) -> str:
    """Write a value on one line of a message, as Python does where that is short.

    Of long texts and lists it is the beginning, of other long values the type, and of an integer that Python does not write out
    the size.

    >>> value_text("n"), value_text(int), value_text(range(3)), value_text([0] * 1000)
    ("'n'", 'the class int', 'range(0, 3)', '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0…')
    >>> value_text({n: n for n in range(1000)}), value_text(-(10**5000))
    ('dict', 'about -1e5000')
    """
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        many = isinstance(value, list | tuple) and len(value) > _SHORT
        text = repr(value[:_SHORT] if many else value)  # type: ignore[index]  # no more of them is shown
    except Exception as error:  # of a class of the user's, or something nested too deeply
        if isinstance(value, int) and isinstance(error, ValueError):  # Python writes out no integer so long
            return f"about {'-' * (value < 0)}1e{int(value.bit_length() * math.log10(2))}"
        return kind
    longest = _WIDTH if isinstance(value, str) else _SHORT  # the end of a name may be what matters
    if "\n" not in text and len(text) <= longest:
        return text
    return f"{text[: longest - 1]}…" if isinstance(value, str | list | tuple) and "\n" not in text else kind


def bytes_text(count: int | float) -> str:
    """Write a number of bytes for people.

    >>> bytes_text(512), bytes_text(3 * 2**20)
    ('512 B', '3.0 MiB')
    """
    size = float(min(count, 1e300))  # a whole number may be more than a float holds
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def count_text(count: int) -> str:
    """Write a whole number for people, however long: Python writes out none of more than 4,300 digits.

    >>> count_text(1234), count_text(10**40)
    ('1,234', 'about 1e40')
    """
    return f"{count:,}" if count < 10**30 else f"about 1e{int(count.bit_length() * math.log10(2))}"


def _brackets(shape: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


def _transposing(expected: Sequence[int | str], actual: Sequence[int | str]) -> str | None:
    """Return the hint that the axes are in another order, None where they are not."""
    order = _fitting_order(expected, actual)
    return f"The axes are in another order: use tensor.transpose({_brackets(order)})" if order else None


def _reshaped(declared: Sequence[int | str], given: Sequence[int | str]) -> list[int] | None:
    """Return the shape, with a -1 for a name, that an array can be given to be as declared; None where it has other elements, or has it."""
    sizes = [d for d in given if isinstance(d, int)]
    if len(sizes) < len(given):
        return None
    known, count = math.prod(d for d in declared if isinstance(d, int)), math.prod(sizes)
    names = [d for d in declared if isinstance(d, str)]
    fits = known and count % known == 0 and len(names) == 1 and names[0].isidentifier() if names else known == count
    if not fits or [count // known if isinstance(d, str) else d for d in declared] == sizes:
        return None
    return [-1 if isinstance(d, str) else d for d in declared]


def _fitting_order(expected: Sequence[int | str], actual: Sequence[int | str]) -> tuple[int, ...] | None:
    """Return the order of axes in which a shape would be the expected one, None where there is none."""
    if len(expected) != len(actual) or len(actual) > 6:
        return None
    orders = [
        o
        for o in permutations(range(len(actual)))
        if all(isinstance(want, str) or want == actual[a] for want, a in zip(expected, o, strict=True))
    ]
    return orders[0] if orders and orders[0] != tuple(range(len(actual))) else None


def _kind(size: int | str) -> str:
    return f"Static({size})" if isinstance(size, int) else f"Symbolic({size})"
