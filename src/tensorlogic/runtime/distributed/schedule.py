"""In which order a stage of a pipeline runs its micro-batches: the schedules GPipe and 1F1B.

A stage that goes forward only takes one micro-batch after another. Where the graph goes back (a training step), every stage but the last has a
forward and a backward unit for each micro-batch. ``gpipe`` runs all forward units first; ``1f1b`` runs only as many as fill the
pipeline, then one backward unit for each forward one, so that fewer micro-batches are kept at a time.
"""

from __future__ import annotations

from ...diagnostics import value_text
from ...errors import InputError, nearest

SCHEDULES = ("gpipe", "1f1b")
FORWARD, BACKWARD, LAST = 0, 1, 2

Turn = tuple[int, int]  # forward, backward, or what comes last; and the number of the micro-batch


def checked_schedule(schedule: str) -> None:
    """Raise where there is no such schedule."""
    if schedule not in SCHEDULES:
        hints = nearest(schedule, SCHEDULES) if isinstance(schedule, str) else ()
        raise InputError(
            f"a schedule is one of {', '.join(SCHEDULES)}, not {value_text(schedule)}", *hints, code="E390"
        )


def turns_of(schedule: str, stage: int, stages: int, batches: int, backward: bool) -> list[Turn]:
    """Return what a stage runs, in order; ``backward`` tells whether it has backward units.

    >>> turns_of("1f1b", 0, 2, 3, True)
    [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2)]
    >>> turns_of("gpipe", 0, 2, 3, True)
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    if not backward:
        return [(FORWARD, n) for n in range(batches)]
    ahead = live_batches(schedule, stage, stages, batches)
    turns: list[Turn] = [(FORWARD, n) for n in range(ahead)]
    for n in range(batches):
        turns.append((BACKWARD, n))
        if ahead + n < batches:
            turns.append((FORWARD, ahead + n))
    return turns


def live_batches(schedule: str, stage: int, stages: int, batches: int) -> int:
    """Return of how many micro-batches a stage that goes back keeps results at a time.

    >>> [live_batches("1f1b", stage, 4, 16) for stage in range(4)], live_batches("gpipe", 0, 4, 16)
    ([4, 3, 2, 1], 16)
    """
    return batches if schedule == "gpipe" else min(batches, stages - stage)
