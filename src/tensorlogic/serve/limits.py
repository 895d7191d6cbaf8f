"""Limits: what is refused before any work is done for it."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much one request may ask for; a model's own limits may be tighter.

    >>> Limits(seconds=2.5).rank
    16
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 16 << 20  # of the body; what is larger goes in binary form
    head_bytes: int = 16 << 10  # of the request line and the headers
    rank: int = 16
    flops: int | None = 10**12  # that a run is planned to take
    memory_bytes: int | None = 4 << 30  # at the most at one time, as planned
    seconds: float = 30.0  # from the first byte to the answer
    idle_seconds: float = 75.0  # that a connection may wait for its next request
    connections: int = 20_000
    buffered_bytes: int = 1 << 30  # of all bodies that are being received
