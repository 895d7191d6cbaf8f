"""What a driver waits for: one answer of each rank, and what it says when one fails, ends or does not come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import NoReturn

from ...diagnostics import Diagnostic
from ...errors import ExecutionError
from .messages import Answer
from .rank import of_rank

FAREWELL = 3.0  # seconds in which the others say what they missed, after one is gone
Answers = dict[int, Answer | None]  # by rank; None: the process ended
# waits for answers of some ranks, at most this many seconds
Wait = Callable[[Sequence[int], float | None], Mapping[int, Answer | None]]


def collect(size: int, timeout: float, limit: float | None, wait: Wait) -> Answers:
    """Wait for one answer of each rank.

    It is over when all have come, when it is known what went wrong, after ``limit`` seconds, or when some are later than others by more
    than the timeout.
    """
    answers: Answers = {}
    end = None if limit is None else monotonic() + limit
    while len(answers) < size:
        missing = [rank for rank in range(size) if rank not in answers]
        ready = wait(missing, None if end is None else max(0.0, end - monotonic()))
        if not ready:
            break
        answers.update(ready)
        codes = {answer.failure.code for answer in answers.values() if answer is not None and answer.failure}
        if codes - {"E373"}:
            break
        lost = None in answers.values() or codes
        later = monotonic() + (FAREWELL if lost else timeout)
        end = later if end is None else min(end, later)
    return answers


def checked(answers: Answers, size: int, timeout: float, ended: Callable[[int], str]) -> list[Answer]:
    """Return answers in the order of the ranks; raise where one is missing or failed. ``ended`` says how a process ended."""
    failures = {rank: a.failure for rank, a in answers.items() if a is not None and a.failure is not None}
    gone = [rank for rank, answer in answers.items() if answer is None]
    if gone:
        raise_ended(gone[0], ended(gone[0]), failures)
    if failures:
        rank, failure = min(failures.items(), key=lambda found: (found[1].code == "E373", found[0]))
        raise of_rank(ExecutionError.of(failure), rank)
    if len(answers) < size:
        missing = ", ".join(str(rank) for rank in range(size) if rank not in answers)
        hint = "look at what that rank does, or allow more time: timeout="
        raise ExecutionError(f"rank {missing} did not answer within {timeout:g} s of the others", hint, code="E374")
    return [answer for _, answer in sorted(answers.items()) if answer is not None]


def raise_ended(rank: int, how: str, others: Mapping[int, Diagnostic]) -> NoReturn:
    """Raise for a rank whose process ended, with the step and the line at which the others missed it."""
    first = next(iter(others.values()), None)
    raise ExecutionError(
        f"the process of rank {rank} ended{how}",
        "run it again: workers are started anew",
        code="E382",
        location=None if first is None else first.location,
        context=[line for own in others.values() for line in (own.message, *own.context)],
    )
