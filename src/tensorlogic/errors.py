"""The exceptions of the package, all with a :class:`~tensorlogic.diagnostics.Diagnostic`.

::

    TensorLogicError
     ├─ GraphError        a graph that is not well formed        (ValueError)
     │   ├─ SpecError     an einsum spec that cannot be read
     │   ├─ ShapeError    sizes or ranks that do not fit
     │   └─ DTypeError    element types that do not fit           (TypeError)
     ├─ InputError        inputs missing, unknown or unsuitable   (ValueError)
     ├─ FormatError       a file or text that cannot be read      (ValueError)
     ├─ ViewError         a view that would copy, or overwrite    (ValueError)
     ├─ OutOfMemoryError  a plan that does not fit                (MemoryError)
     ├─ BackendError      a backend that is absent or lacks an op (RuntimeError)
     ├─ ExecutionError    a step that failed while running        (RuntimeError)
     ├─ ConvergenceError  a fixpoint that did not settle          (RuntimeError)
     ├─ CheckpointError   a checkpoint that cannot be written or used (OSError)
     ├─ QueueFullError    a request that came while too many wait (RuntimeError)
     └─ CancelledError    a run that was told to stop             (RuntimeError)
         └─ DeadlineError a run that was over its time            (TimeoutError)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from numbers import Real
from typing import Any, Self

import msgspec

from .diagnostics import Diagnostic, Severity, SourceLocation, caller, clean, value_text


class TensorLogicError(Exception):
    """The base of every exception here; ``.diagnostic`` says what, where and how to mend it.

    What follows the message are hints: what to write instead.

    >>> error = TensorLogicError("no", "say yes", code="E9")
    >>> error.diagnostic.code, error.diagnostic.suggestions
    ('E9', ('say yes',))
    """

    diagnostic: Diagnostic
    guessed: bool

    def __init__(
        self,
        message: str,
        *hints: str,
        code: str | None = None,
        location: SourceLocation | None = None,
        source: str | None = None,
        context: Sequence[str] = (),
        suggestions: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.guessed = location is None  # then it is the line that called into the package
        where = location or caller()
        self.diagnostic = Diagnostic(
            Severity.ERROR, message, code, where, tuple(context), (*hints, *suggestions), source
        )

    @classmethod
    def of(cls, diagnostic: Diagnostic) -> Self:
        """Make the exception that carries a given diagnostic."""
        error = cls(diagnostic.message)
        error.guessed = diagnostic.location is None
        where = diagnostic.location or error.diagnostic.location
        error.diagnostic = diagnostic if where is None else diagnostic.with_location(where)
        return error

    def renamed(self, message: str) -> Self:
        """Return the same error under another message; a guessed location stays a guess.

        >>> TensorLogicError("no", code="E9").renamed("input 'x': no").diagnostic.code
        'E9'
        """
        error = self.of(msgspec.structs.replace(self.diagnostic, message=message))
        error.guessed = self.guessed
        return error

    def at(self, location: SourceLocation | None) -> Self:
        """Point the error at a place, unless it was raised with one."""
        if location is not None and self.guessed:
            self.diagnostic = self.diagnostic.with_location(location)
            self.guessed = False
        return self

    def at_caller(self) -> Self:
        """Point an error that comes from a worker thread at the line of the user that waits for the result."""
        where = caller() if self.guessed and self.diagnostic.location is None else None
        if where is not None:
            self.diagnostic = self.diagnostic.with_location(where)
        return self

    def __str__(self) -> str:
        return self.render()

    def render(self, *, guessed: bool = True) -> str:
        """Return the error as text of several lines; ``guessed=False`` leaves out a location that is only the caller's.

        >>> print(TensorLogicError("no", suggestions=["say yes"]).render(guessed=False))
        no
          hint: say yes
        """
        found = self.diagnostic
        if self.guessed and not guessed:
            found = msgspec.structs.replace(found, location=None)
        lines = [found.message]
        if found.location is not None:
            lines.append(f"  at {found.location}")
        lines += [f"    {line}" for line in found.source_lines()]
        lines += [f"  {line}" for line in found.context]
        lines += [f"  hint: {line}" for line in found.suggestions]
        return clean("\n".join(lines))  # so that it can be printed, whatever text it quotes


class GraphError(TensorLogicError, ValueError):
    """A graph that is not well formed.

    >>> issubclass(GraphError, ValueError)
    True
    """


class SpecError(GraphError):
    """An einsum spec that cannot be read, with a caret under the place.

    >>> issubclass(SpecError, GraphError)
    True
    """


class ShapeError(GraphError):
    """Sizes or ranks that do not fit.

    >>> issubclass(ShapeError, ValueError)
    True
    """


class DTypeError(GraphError, TypeError):
    """Element types that do not fit.

    >>> issubclass(DTypeError, TypeError)
    True
    """


class InputError(TensorLogicError, ValueError):
    """Inputs that are missing, unknown or unsuitable.

    >>> issubclass(InputError, ValueError)
    True
    """


class FormatError(TensorLogicError, ValueError):
    """A file or text that cannot be read.

    >>> issubclass(FormatError, ValueError)
    True
    """


class ViewError(TensorLogicError, ValueError):
    """A view that would need a copy, or an in-place change that would not be safe.

    >>> issubclass(ViewError, ValueError)
    True
    """


class OutOfMemoryError(TensorLogicError, MemoryError):
    """A plan that does not fit in memory, refused before anything is allocated.

    >>> issubclass(OutOfMemoryError, MemoryError)
    True
    """


class BackendError(TensorLogicError, RuntimeError):
    """A backend that is not installed, or that lacks an operation or a dtype.

    >>> issubclass(BackendError, RuntimeError)
    True
    """


class ExecutionError(TensorLogicError, RuntimeError):
    """A step that failed while running; the message names the node and its operands.

    >>> issubclass(ExecutionError, RuntimeError)
    True
    """


class ConvergenceError(TensorLogicError, RuntimeError):
    """A fixpoint that did not settle within its round limit.

    >>> issubclass(ConvergenceError, RuntimeError)
    True
    """


class TrainingError(TensorLogicError, RuntimeError):
    """A training run that cannot go on.

    >>> issubclass(TrainingError, TensorLogicError)
    True
    """


class CheckpointError(TensorLogicError, OSError):
    """A checkpoint that cannot be written, read, or used for what is run.

    >>> issubclass(CheckpointError, OSError)
    True
    """


class CancelledError(TensorLogicError, RuntimeError):
    """A run that was told to stop; nobody retries it or puts another answer in its place.

    >>> issubclass(CancelledError, RuntimeError)
    True
    """


class DeadlineError(CancelledError, TimeoutError):
    """A run that was over its time.

    >>> issubclass(DeadlineError, TimeoutError)
    True
    """


class QueueFullError(TensorLogicError, RuntimeError):
    """A request that was refused because too many wait already; ``retry_after`` says in how many seconds to come back.

    >>> QueueFullError("1,024 requests wait already", retry_after=0.25).retry_after
    0.25
    """

    def __init__(self, message: str, *hints: str, retry_after: float = 0.0, **more: Any) -> None:
        super().__init__(message, *hints, **more)
        self.retry_after = retry_after


def expect(value: object, kind: type | tuple[type, ...], what: str, *hints: str) -> None:
    """Refuse an argument of the wrong kind; ``what`` begins the message and names what is expected.

    >>> try:
    ...     expect(3, str, "a name is text")
    ... except InputError as error:
    ...     print(error.diagnostic.message)
    a name is text, got 3
    """
    if not isinstance(value, kind):
        raise InputError(f"{what}, got {value_text(value)}", *hints, code="E301")


def expect_text(what: str, text: str) -> None:
    r"""Refuse a name with half of a surrogate pair, which no file can hold; ``what`` begins the message.

    >>> try:
    ...     expect_text("input", "x\ud800")
    ... except GraphError as error:
    ...     print(error.diagnostic.message)
    input 'x\ud800' has half of a surrogate pair, which is no text
    """
    if clean(text) != text:
        message = f"{what} {text!r} has half of a surrogate pair, which is no text"
        raise GraphError(message, "give names that UTF-8 can hold", code="E231")


def expect_whole(name: str, value: object, least: int = 0, *hints: str, most: int | None = None) -> None:
    """Refuse what is no whole number, one below the least, or one above the most.

    >>> try:
    ...     expect_whole("threads", 0, 1)
    ... except InputError as error:
    ...     print(error.diagnostic.message)
    threads must be a whole number of at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" + ("" if most is None else f" and at most {most:,}")
        raise InputError(f"{name} must be a whole number of {bounds}, got {value_text(value)}", *hints, code="E310")


def expect_share(what: str, value: Any, example: str) -> None:
    """Refuse what is no share from 0 up to 1.

    >>> try:
    ...     expect_share("label smoothing", 1.5, "0.1")
    ... except InputError as error:
    ...     print(error.diagnostic.message)
    label smoothing is a share from 0 up to 1, got 1.5
    """
    if not isinstance(value, Real) or not 0 <= value < 1:  # type: ignore[operator]
        message = f"{what} is a share from 0 up to 1, got {value_text(value)}"
        raise InputError(message, f"write {example}", code="E846")


def expect_known(
    what: str,
    names: Iterable[object],
    known: Collection[str],
    code: str = "E302",
    kind: type[TensorLogicError] | None = None,
) -> None:
    """Refuse names that are not among the known ones; ``what`` begins the message, which hints at the nearest.

    >>> try:
    ...     expect_known("the graph has no input", ["W"], {"w": 0})
    ... except InputError as error:
    ...     print(error.diagnostic.message, error.diagnostic.suggestions)
    the graph has no input 'W' ("did you mean 'w'?",)
    """
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise (kind or InputError)(f"{what} {value_text(name)}", *nearest(name, known), code=code)


def nearest(word: object, known: Iterable[str]) -> list[str]:
    """Return a suggestion that names the closest known word, or all of them when few are known.

    >>> nearest("algebr", ["algebra", "spec"])
    ["did you mean 'algebra'?"]
    """
    names = sorted(known) if isinstance(known, set | frozenset) else list(known)  # the same in each run
    if (close := closest(word, names)) is not None:
        return [f"did you mean {close!r}?"]
    if not names:
        return ["there are none"]
    return known_names(names)


def known_names(names: Sequence[str]) -> list[str]:
    """Return a suggestion that lists names, the first ones where there are many.

    >>> known_names(["x", "w"])
    ["known: 'x', 'w'"]
    """
    shown = ", ".join(repr(n) for n in names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
    return [f"known: {shown}"]


def closest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that another was probably meant to be: one of almost the same letters, or the only one that holds it.

    >>> words = ["fuzzy_godel", "hard_boolean", "insult"]
    >>> closest("hard_bolean", words), closest("godel", words), closest("result", words)
    ('hard_boolean', 'fuzzy_godel', None)
    """
    import difflib  # an error may take its time, a start-up not

    folded = {str(name).casefold(): name for name in known}
    text = (word if isinstance(word, str) else value_text(word)).casefold()
    holding = [name for name in folded if len(text) > 3 and text in name]
    close = difflib.get_close_matches(text, folded, n=1, cutoff=0.7 if len(text) > 3 else 0.65)
    close = close or (holding if len(holding) == 1 else [])
    return folded[close[0]] if close else None
