"""The catalogue of faults: what each error code means, why it comes about, and what to do. One code, one fault."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of mistake.

    >>> FAULTS["E301"].title
    'an argument of the wrong kind'
    """

    title: str
    cause: str
    fix: str


FAULTS: dict[str, Fault] = {
    # E0xx and E1xx: graphs and types
    # E2xx: files
    # E30x to E32x: calls
    "E301": Fault("an argument of the wrong kind", "A function was given something that is not what it takes.", "Give what the message names; the hint shows how to make one."),
    "E310": Fault("a number out of range", "A count, limit or size is not a whole number, or is below the least that makes sense.", "Give a whole number in the range that the message states."),
    # E33x to E37x: planning
    # E4xx: backends
    # E5xx: running
    # E6xx: logic
    # E7xx: traces
    # E8xx: views and memory
    # E9xx: eager execution and gradients
}  # fmt: skip
