"""Loops over bodies for backends whose arrays behave like NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..diagnostics import SourceLocation
from ..errors import ConvergenceError
from ..events import span
from ..ir.graph import Cond, Fixpoint, Scan, meets_others
from ..ir.ops import Collective
from ..plan.build import Step
from ..plan.cost import rounds
from .base import Kernel, RunBody
from .collectives import moves_anywhere

PATIENCE = 1000  # rounds after which values are watched for coming back
LONG = 10_000  # rounds after which, and after each doubling, it is asked whether the changes of a linear loop shrink fast enough for the limit
WATCHED = 64  # rounds, the largest change of which is compared with that of as many rounds at half that time
FLIPS = 64  # units in the last place within which floats that go to and fro count as settled
Run = Callable[[Sequence[Any]], tuple[Any, ...]]
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "replace": lambda old, new: new,
    "or": np.logical_or,
    "max": np.maximum,
    "min": np.minimum,
}


def bind_control(step: Step, run_body: RunBody) -> Kernel:
    """Return the kernel of a fixpoint, scan or cond."""
    runs = [_arrays(run_body(body)) for body in step.bodies]
    match step.op:
        case Fixpoint() as loop:
            meeting = meets_others(loop.body)
            return lambda *args: _fixpoint(loop, runs[0], args, step, meeting)
        case Scan() as scan:
            length = rounds(scan, step.arg_types) or 0
            return lambda *args: _scan(scan, runs[0], args, length, step)
        case Cond():
            return lambda pick, *args: _several(runs[0](args) if pick else runs[1](args))
        case other:
            raise AssertionError(other)


def _arrays(run: Run) -> Run:
    """Give a body's results that are Python scalars the dress of arrays."""
    return lambda values: tuple(v if hasattr(v, "dtype") else np.asarray(v) for v in run(values))


def _several(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _fixpoint(op: Fixpoint, run: Run, args: tuple[Any, ...], step: Step, meeting: Collective | None) -> Any:
    combine = _COMBINE[op.combine]
    state = list(args[: op.carries])
    captures = args[op.carries :]
    moved: list[int] = []
    counts: list[int] = []
    how = ""
    watch = Watch(step.location, meeting)
    pace = _Pace(op, sum(x.size for x in state)) if op.linear and meeting is None else None
    for n in range(op.limit):
        with span(f"round {n + 1}"):
            new = run([*state, *captures])
        after = [combine(old, x).astype(old.dtype, copy=False) for old, x in zip(state, new, strict=True)]
        del new  # a round holds one state, what its body makes, and no more
        moved = [k for k, (a, b) in enumerate(zip(state, after, strict=True)) if not _unmoved(a, b, op.tolerance)]
        if n == op.limit - 1:
            counts = [int(np.sum(state[k] != after[k])) for k in moved]
            how = _last_move(state[moved[0]], after[moved[0]]) if moved else ""
        if pace is not None and moved and pace.too_slow(n + 1, state, after):
            how = _last_move(state[moved[0]], after[moved[0]])
            raise not_settled(op, moved, [], step.location, how, rounds=n + 1).at(step.location)
        state = after
        del after
        if not moves_anywhere(meeting, bool(moved)) or watch.settled(n, state):
            return _several(state)
    raise not_settled(op, moved, counts, step.location, how).at(step.location)


class Watch:
    """Looks, after many rounds, whether the values of a loop only flip in their last places, so that it has settled, or go round in circles.

    A float that approaches a limit often ends in rounding one way and the other by turns, for ever.
    """

    def __init__(self, location: SourceLocation | None = None, meeting: Collective | None = None) -> None:
        self.location, self.meeting = location, meeting
        self.since = 0  # the round from which on it looks; from twice that on it begins anew
        self.seen: list[_Seen] = []

    def settled(self, n: int, state: Sequence[Any]) -> bool:
        """Tell, after round n, whether the values flip in their last places; raise where they go round in circles."""
        if n < PATIENCE:
            return False
        if n >= 2 * self.since:
            if self.seen and not moves_anywhere(self.meeting, not all(seen.flips() for seen in self.seen)):
                return True
            self.since, self.seen = n, [_Seen(x) for x in state]
            return False
        for seen, x in zip(self.seen, state, strict=True):
            seen.add(x)
        if self.meeting is not None or not all(
            _unmoved(s.first, x, 0.0) for s, x in zip(self.seen, state, strict=True)
        ):
            return False
        if all(seen.flips() for seen in self.seen):
            return True
        raise goes_round(n - self.since, self.location, state).at(self.location)


class _Seen:
    """What was seen of one carry: between what it stayed, and how far each element went in all."""

    def __init__(self, first: Any) -> None:
        self.first = self.last = self.low = self.high = first
        self.way = np.zeros_like(first) if first.dtype.kind == "f" else None

    def add(self, x: Any) -> None:
        """Look at its value after one more round."""
        self.low, self.high = np.minimum(self.low, x), np.fmax(self.high, x)  # NaN: at some time, and at all times
        if self.way is not None:
            with np.errstate(all="ignore"):
                self.way = self.way + np.abs(x - self.last)
        self.last = x

    def flips(self) -> bool:
        """Tell whether floats went to and fro, not on and on, within a few units in the last place of the largest; all else as it was."""
        still = (self.low == self.high) | np.isnan(self.high)
        if self.way is not None:
            with np.errstate(all="ignore"):
                gap = self.high - self.low
                still |= (gap <= FLIPS * _finest(self.first)) & (self.way >= 2 * gap)
        return bool(np.all(still))


class _Pace:
    """How fast the changes of a linear fixpoint shrink, so that one that cannot settle within its limit is not run to the end of it.

    A linear loop over n elements may pass changes on from element to element for n rounds, as along a chain, and settle then. What is
    left after n rounds grows, stays or shrinks by the same factor for ever, so only rounds after those are compared.
    """

    def __init__(self, op: Fixpoint, elements: int) -> None:
        self.op, self.check = op, max(LONG, 2 * (elements + WATCHED))
        self.early = self.late = 0.0  # the largest change around half of the rounds, and now

    def too_slow(self, rounds: int, before: Sequence[Any], after: Sequence[Any]) -> bool:
        """Tell, after a round, whether changes that go on shrinking as they did are too large when the limit is reached."""
        half = self.check // 2
        if half - WATCHED < rounds <= half:
            self.early = max(self.early, *map(_change, before, after))
        if self.check - WATCHED < rounds <= self.check:
            self.late = max(self.late, *map(_change, before, after))
        if rounds != self.check:
            return False
        shrinks = self.late / self.early if self.early else 1.0
        with np.errstate(all="ignore"):
            at_limit = self.late * np.float64(shrinks) ** ((self.op.limit - rounds) / half)
        least = max(map(_finest, after))  # a change of this size is none
        self.check, self.early, self.late = 2 * rounds, self.late, 0.0
        return bool(at_limit > max(self.op.tolerance, least))


def _change(before: Any, after: Any) -> float:
    """Return by how much the element has changed that changed most; nothing where there are no numbers."""
    if before.dtype.kind not in "fiu" or not before.size:
        return 0.0
    with np.errstate(all="ignore"):
        gap = np.abs(np.asarray(after, float) - np.asarray(before, float))
    return float(np.max(gap, initial=0.0, where=np.isfinite(gap)))


def _finest(x: Any) -> float:
    """Return the distance between numbers of the largest size that a tensor has."""
    if x.dtype.kind != "f" or not x.size:
        return 0.5
    sizes = np.abs(np.asarray(x))
    return float(np.spacing(np.max(sizes, initial=0, where=np.isfinite(sizes))))


def _last_move(before: Any, after: Any) -> str:
    """Return how the element that moved most has changed in the last round."""
    if before.dtype == bool:
        return ""
    with np.errstate(all="ignore"):
        gap = np.abs(np.asarray(after, float) - np.asarray(before, float))
    at = np.unravel_index(int(np.argmax(np.nan_to_num(gap, nan=-1.0))), np.shape(after)) if np.ndim(after) else ()
    place = f"[{', '.join(map(str, at))}]" if at else "it"
    digits = next((d for d in (6, 9, 12) if f"{before[at]:.{d}g}" != f"{after[at]:.{d}g}"), 17)
    return f"; in the last round {place} went from {before[at]:.{digits}g} to {after[at]:.{digits}g}"


def _named(location: SourceLocation | None) -> str:
    """Return how to call a fixpoint: by the tensors it computes, where it comes from a program."""
    return "the fixpoint" if location is None or not location.rule else f"the recursion of {location.rule}"


STEPS = "give the rounds an index, such as Y[t+1] = ... Y[t], and read as many of them as you want"


def goes_round(rounds: int, location: SourceLocation | None, state: Sequence[Any]) -> ConvergenceError:
    """Return the error of a fixpoint whose values come back, so that it will never settle."""
    if location is None or not location.rule:
        hint = "give a tolerance=, such as 1e-6, where values go to and fro by less than you care for"
    else:
        hint = STEPS
        if any(x.dtype.kind == "f" and np.isinf(x).any() for x in state):
            message = f"{_named(location)} does not settle: its values grow beyond every number"
            return ConvergenceError(message, hint, code="E502")
    message = f"{_named(location)} does not settle: every {rounds} rounds its values are the same again"
    return ConvergenceError(message, hint, code="E502")


def not_settled(
    op: Fixpoint,
    moved: Sequence[int],
    counts: Sequence[int],
    location: SourceLocation | None = None,
    how: str = "",
    rounds: int | None = None,
) -> ConvergenceError:
    """Return the error of a fixpoint that ran into its limit; ``how`` says what changed in the last round.

    Where it was given up before that, ``rounds`` says after how many, and nothing is counted.
    """
    if rounds is not None:
        which = f"after {rounds} rounds its changes shrink too slowly, or not at all"
        message = f"{_named(location)} would not settle within {op.limit} rounds: {which}{how}"
        hint = "give a tolerance= for values that only approach their limit"
        return ConvergenceError(message, STEPS if location is not None and location.rule else hint, code="E501")
    which = ", ".join(f"carry {n} ({c} elements still change)" for n, c in zip(moved, counts, strict=True))
    if location is not None and location.rule:  # a program's equations, which know of no carries
        which = f"{sum(counts)} elements still change"
    return ConvergenceError(
        f"{_named(location)} did not settle within {op.limit} rounds: {which}{how}",
        STEPS
        if location is not None and location.rule
        else "raise limit=, or give a tolerance= for values that only approach their limit",
        code="E501",
    )


def _unmoved(a: Any, b: Any, tolerance: float) -> bool:
    same = np.asarray(a == b)
    if a.dtype.kind == "f":
        if tolerance:
            gap = np.asarray(a - b)
            same |= np.abs(gap, out=gap) <= tolerance
            del gap
        same |= np.isnan(a) & np.isnan(b)
    return bool(np.all(same))


def _scan(op: Scan, run: Run, args: tuple[Any, ...], length: int, step: Step) -> Any:
    state: Sequence[Any] = args[: op.carries]
    scanned = args[op.carries : op.carries + op.scanned]
    captures = args[op.carries + op.scanned :]
    stacked = [np.empty([int(d) for d in t.shape or ()], t.dtype) for t in step.types[op.carries :]]
    for i in range(length - 1, -1, -1) if op.reverse else range(length):
        out = run([*state, *(x[i] for x in scanned), *captures])
        state = out[: op.carries]
        for target, value in zip(stacked, out[op.carries :], strict=True):
            target[i] = value
    return _several([*state, *stacked])
