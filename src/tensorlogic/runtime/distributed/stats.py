"""Where the time of a distributed run went, measured by the ranks themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...diagnostics import bytes_text
from ...tables import table
from .rank import RankTimes


@dataclass(frozen=True, slots=True)
class DistributedStats:
    """The times of the ranks of one run, added up; ``efficiency`` is the share of their time that they computed.

    Communication includes waiting for other ranks. ``bubble`` is the share of the ranks' time in which they had nothing to do: in a
    pipeline, that of stages that wait for the first micro-batch, or are done with the last.

    >>> stats = DistributedStats.of([RankTimes(10_000_000, 8_000_000, 2_000_000, 500_000, {"all_reduce": 400})])
    >>> stats.efficiency, stats.communication_time_ms, stats.bytes
    (0.8, 2.0, {'all_reduce': 400})
    """

    communication_time_ms: float = 0.0
    computation_time_ms: float = 0.0
    waiting_time_ms: float = 0.0
    efficiency: float = 1.0
    bytes: Mapping[str, int] = field(default_factory=dict)  # that the ranks gave, by collective
    ranks: tuple[RankTimes, ...] = ()

    @classmethod
    def of(cls, times: Sequence[RankTimes]) -> DistributedStats:
        """Add up the times of ranks."""
        moved: dict[str, int] = {}
        for own in times:
            for kind, count in own.moved.items():
                moved[kind] = moved.get(kind, 0) + count
        computation, communication = (
            sum(getattr(t, name) for t in times) for name in ("computation_ns", "communication_ns")
        )
        busy = computation + communication
        return cls(
            communication / 1e6,
            computation / 1e6,
            sum(t.waiting_ns for t in times) / 1e6,
            computation / busy if busy else 1.0,
            moved,
            tuple(times),
        )

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which they waited, or were done before the others."""
        own = [t for t in self.ranks if t.total_ns]  # in a script that is one rank of several, only its own is known
        longest = max((t.total_ns for t in own), default=0) * len(own)
        return 0.0 if not longest else 1.0 - sum(t.total_ns - t.waiting_ns for t in own) / longest

    @property
    def kept_bytes(self) -> int:
        """The most that a rank kept at a time between the forward and the backward units of micro-batches."""
        return max((t.kept_bytes for t in self.ranks), default=0)

    def __str__(self) -> str:
        rows = [
            [
                str(n),
                *(f"{value / 1e6:.3f}" for value in t[:4]),
                bytes_text(sum(t.moved.values())),
                bytes_text(t.kept_bytes),
            ]
            for n, t in enumerate(self.ranks)
        ]
        head = ["rank", "total ms", "computing", "communicating", "waiting", "sent", "kept"]
        moved = ", ".join(f"{kind} {bytes_text(count)}" for kind, count in self.bytes.items()) or "nothing"
        return "\n".join(
            [table(head, rows), f"sent: {moved}; efficiency {self.efficiency:.0%}, bubble {self.bubble:.0%}"]
        )
