"""The steps of a short plan as one straight-line function over local variables, which looks nothing up.

Its source holds nothing but our own names and numbers: ``s7 = k3(s2, s5, out=s9)``. Each step has a line of its own, so that a traceback tells
which step failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from ..backends.base import Kernel
from ..plan.build import Step

FIRST = 3  # the line of the first step
Function = Callable[..., tuple[Any, ...]]


class Entry(NamedTuple):
    """One step, ready to run: its kernel, and the slots it reads, writes and lets go of."""

    step: Step
    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    work: Any  # the slot of the array to write into, or -1; a tuple of them where there are several results
    out: int  # the slot of a single result, or -1
    take: Callable[[list[Any]], Sequence[Any]]  # the operands among all slots


def steps_source(
    entries: Sequence[Entry], inputs: Sequence[int], outputs: Sequence[int], work: Sequence[int], *, timed: bool = False
) -> str:
    """Return the text of the function ``steps(values, work)``; slots in ``work`` are the arrays to write into.

    A timed one takes ``note`` and ``clock`` too, and notes the time before the first step and after each. Then it looks whether
    ``context`` has a reason to stop the run, and calls ``stop`` with the number of the next step if so.

    >>> print(steps_source([], [0], [0], [1]))
    def steps(values, work):
        s0, = values; s1, = work
        return s0,
    """
    given = [(name, slots) for name, slots in (("values", inputs), ("work", work)) if slots]
    start = "; ".join(f"{', '.join(f's{s}' for s in slots)}, = {name}" for name, slots in given)
    mark = "; note(clock()); context.reason is None or stop({})".format if timed else lambda _: ""
    options = ", note, clock, context, stop" if timed else ""
    text = [f"def steps(values, work{options}):", f"    {start or 'pass'}{mark(0)}"]
    room = set(work)
    for n, entry in enumerate(entries):
        into = ""
        if isinstance(entry.work, tuple):
            into = f", out=({', '.join(f's{w}' if w in room else 'None' for w in entry.work)})"
        elif entry.work >= 0:
            into = f", out=s{entry.work}"
        results = ", ".join(f"s{s}" for s in entry.writes) + ("" if len(entry.writes) == 1 else ",")
        free = "".join(f"; s{s} = None" for s in entry.frees)
        text.append(f"    {results} = k{n}({', '.join(f's{s}' for s in entry.reads)}{into}){free}{mark(n + 1)}")
    text.append(f"    return {', '.join(f's{s}' for s in outputs) or '()'}{',' if len(outputs) == 1 else ''}")
    return "\n".join(text)


def steps_function(
    entries: Sequence[Entry],
    inputs: Sequence[int],
    outputs: Sequence[int],
    work: Sequence[int],
    given: Mapping[int, Any],
    *,
    timed: bool = False,
) -> Function:
    """Return the function; ``given`` are the slots that hold constants."""
    names: dict[str, Any] = {f"s{slot}": value for slot, value in given.items()}
    names |= {f"k{n}": entry.kernel for n, entry in enumerate(entries)}
    exec(compile(steps_source(entries, inputs, outputs, work, timed=timed), "<plan>", "exec"), names)
    function: Function = names["steps"]
    return function


def failed_at(code: CodeType, trace: TracebackType | None) -> tuple[int, dict[str, Any]] | None:
    """Return the number of the step at which such a function raised, and its variables; None where it was elsewhere."""
    while trace is not None:
        if trace.tb_frame.f_code is code:
            return max(0, trace.tb_lineno - FIRST), trace.tb_frame.f_locals
        trace = trace.tb_next
    return None
