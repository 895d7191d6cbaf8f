"""What eager execution records, and whether it does now."""

from __future__ import annotations

import weakref
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...diagnostics import SourceLocation
from ...ir.ops import Op

if TYPE_CHECKING:
    from .variable import Variable

Array = Any  # a NumPy array


@dataclass(slots=True, eq=False)
class Record:
    """One value, and what an operation made it of: records, arrays and Python scalars; of none, it was given."""

    value: Array
    op: Op | None = None
    args: tuple[Any, ...] = ()
    needs: bool = False  # a gradient
    place: SourceLocation | None = None
    lost: str | None = None  # what ended the gradient, where something did

    def operands(self) -> list[Record]:
        """Return the recorded values that it was computed from."""
        return [a for a in self.args if isinstance(a, Record)]


class Leaf(Record):
    """The value of a variable that was given, not computed."""

    __slots__ = ("name", "owner")

    def __init__(self, value: Array, needs: bool, owner: Variable, name: str | None) -> None:
        super().__init__(value, needs=needs)
        self.owner = weakref.ref(owner)  # who gets its gradient
        self.name = name


class Mode(NamedTuple):
    """Whether operations are recorded for gradients, and the tapes that take note of what is made in any case."""

    on: bool = True
    tapes: tuple[Any, ...] = ()


_USUAL = Mode()
mode: ContextVar[Mode] = ContextVar("mode", default=_USUAL)  # each thread, and each task, has its own
_outer: ContextVar[tuple[Mode, ...]] = ContextVar("outer", default=())  # the modes to go back to, innermost last


def enter(new: Mode) -> None:
    """Take on a mode until :func:`leave`.

    What to go back to is kept with the thread and not with whoever entered: one no_grad, or one tape, may be entered by
    several threads at once.

    >>> enter(Mode(on=False))
    >>> mode.get().on, leave(), mode.get().on
    (False, None, True)
    """
    _outer.set((*_outer.get(), mode.get()))
    mode.set(new)


def leave() -> None:
    """Go back to the mode before the last :func:`enter` of this thread."""
    *rest, last = _outer.get()
    mode.set(last)
    _outer.set(tuple(rest))


class no_grad(ContextDecorator):  # noqa: N801 - reads as a word, as in `with no_grad():`
    """Run operations without recording them: for predictions, and for changing variables.

    >>> from tensorlogic import Variable
    >>> w = Variable([1.0, 2.0])
    >>> with no_grad():
    ...     w -= 0.5
    >>> w, (w * 2).requires_grad
    (Variable([0.5, 1.5]), True)
    """

    def __enter__(self) -> no_grad:
        enter(mode.get()._replace(on=False))
        return self

    def __exit__(self, *_: object) -> None:
        leave()
