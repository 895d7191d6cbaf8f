"""Straight-line code: the steps of a plan as one Python function over local variables.

The source holds nothing but our own names and numbers: ``s7 = k3(s2, s5, out=s9)``. Line ``n`` is step ``n``, so that a traceback
tells which step failed. It does what the loop does, without looking anything up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any, NamedTuple

MOST = 1000  # steps; a longer plan runs in the loop, whose cost does not matter then
FIRST = 3  # the line of the first step

Function = Callable[..., tuple[Any, ...]]


class Line(NamedTuple):
    """One call: which kernel, the slots it reads, writes and lets go of."""

    kernel: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    work: int | tuple[int, ...] = -1  # the slot of the array to write into; several where there are several results


def source(
    lines: Sequence[Line], inputs: Sequence[int], outputs: Sequence[int], work: Sequence[int], *, timed: bool = False
) -> str:
    """Return the text of the function ``steps(values, work)``; slots in ``work`` are the arrays to write into.

    A timed one takes ``note`` and ``clock`` too, and notes the time before the first step and after each.

    >>> print(source([Line(None, (0,), (2,), (), 1)], [0], [2], [1]))
    def steps(values, work):
        s0, = values; s1, = work
        s2 = k0(s0, out=s1)
        return s2,
    """
    start = "; ".join(
        f"{', '.join(f's{s}' for s in slots)}, = {name}"
        for name, slots in (("values", inputs), ("work", work))
        if slots
    )
    mark = "; note(clock())" if timed else ""
    text = [f"def steps(values, work{', note, clock' if timed else ''}):", f"    {start or 'pass'}{mark}"]
    room = set(work)
    for n, line in enumerate(lines):
        into = ""
        if isinstance(line.work, tuple):
            into = f", out=({', '.join(f's{w}' if w in room else 'None' for w in line.work)})"
        elif line.work >= 0:
            into = f", out=s{line.work}"
        results = ", ".join(f"s{s}" for s in line.writes) + ("" if len(line.writes) == 1 else ",")
        free = "".join(f"; s{s} = None" for s in line.frees)
        text.append(f"    {results} = k{n}({', '.join(f's{s}' for s in line.reads)}{into}){free}{mark}")
    text.append(f"    return {', '.join(f's{s}' for s in outputs) or '()'}{',' if len(outputs) == 1 else ''}")
    return "\n".join(text)


def function(
    lines: Sequence[Line],
    inputs: Sequence[int],
    outputs: Sequence[int],
    work: Sequence[int],
    given: Mapping[int, Any],
    *,
    timed: bool = False,
) -> Function:
    """Return the function; ``given`` are the slots that hold constants."""
    names: dict[str, Any] = {f"s{slot}": value for slot, value in given.items()}
    names |= {f"k{n}": line.kernel for n, line in enumerate(lines)}
    exec(compile(source(lines, inputs, outputs, work, timed=timed), "<plan>", "exec"), names)
    function: Function = names["steps"]
    return function


def failed_at(code: CodeType, trace: TracebackType | None) -> tuple[int, dict[str, Any]] | None:
    """Return the number of the step at which a function raised, and its variables; None where it was elsewhere."""
    while trace is not None:
        if trace.tb_frame.f_code is code:
            return max(0, trace.tb_lineno - FIRST), trace.tb_frame.f_locals
        trace = trace.tb_next
    return None
