"""Totals of a trace by operation, device or thread, and two traces compared by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..diagnostics import clean, value_text
from ..errors import InputError, expect, nearest
from ..tables import counted, html_text, table
from .columns import EventColumns, Groups, Names
from .trace import Trace
from .trace_names import operation_names, short_names
from .tracks import Track, places_of, self_times, tracks

BY = ("operation", "device", "thread")
Cells = tuple[list[str], list[list[str]], set[int]]  # head, rows and the columns that are flush right


class Total(msgspec.Struct, frozen=True):
    """The entries of one operation, device or thread together.

    ``total_ns`` is the time in which some of them ran: one inside of another of the same row does not count again, nor, of a
    thread, the time in which two overlap.
    ``self_ns`` leaves out the time spent in any entries inside of them, so that the self times of all rows add up.
    ``sum_ns`` adds all durations as they stand.

    >>> Total("relu", count=2, total_ns=10, self_ns=10, max_ns=7).mean_ns
    5.0
    """

    name: str
    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    max_ns: int = 0
    sum_ns: int | None = None  # where it is another number than the total
    kind: str = ""  # of an operation: step, span, or the category of a file

    @property
    def mean_ns(self) -> float:
        """The mean duration; 0 of none."""
        return (self.total_ns if self.sum_ns is None else self.sum_ns) / self.count if self.count else 0.0


class Change(msgspec.Struct, frozen=True):
    """One operation in two traces.

    >>> row = Change(Total("relu", 1, 10, 10, 10), Total("relu", 2, 30, 30, 20))
    >>> row.change_ns, row.ratio, row.state
    (20, 3.0, 'both')
    """

    before: Total
    after: Total

    @property
    def name(self) -> str:
        """The operation."""
        return self.after.name

    @property
    def change_ns(self) -> int:
        """How much more time it takes in the later trace."""
        return self.after.total_ns - self.before.total_ns

    @property
    def ratio(self) -> float | None:
        """How many times as much time it takes; None where it took none before."""
        return self.after.total_ns / self.before.total_ns if self.before.total_ns else None

    @property
    def state(self) -> str:
        """Whether it is in ``"both"`` traces, ``"new"`` or ``"gone"``."""
        return "new" if not self.before.count else "gone" if not self.after.count else "both"


class TraceDiff(msgspec.Struct, frozen=True):
    """Two traces compared, the largest change first; it prints as a table.

    >>> from tensorlogic import Trace, TraceEvent
    >>> a = Trace([TraceEvent("relu", "step", 0, 2_000_000, 1), TraceEvent("exp", "step", 2_000_000, 2_500_000, 1)])
    >>> b = Trace([TraceEvent("relu", "step", 0, 3_000_000, 1), TraceEvent("log", "step", 3_000_000, 3_200_000, 1)])
    >>> print(a.diff(b))
    operation  count before  after  ms before  after  mean µs before   after  change ms   ratio
    relu                  1      1      2.000  3.000          2000.0  3000.0     +1.000  1.500x
    exp                   1      0      0.500  0.000           500.0     0.0     -0.500    gone
    log                   0      1      0.000  0.200             0.0   200.0     +0.200     new
    2.500 ms before, 3.200 ms after: +0.700 ms; 1 new, 1 gone
    """

    rows: tuple[Change, ...]

    def changed(self, limit: int | None = None) -> Cells:
        """Return head, rows and the columns that are flush right, for a table."""
        pairs = (part for name in ("count", "ms", "mean µs") for part in (f"{name} before", "after"))
        head = ["operation", *pairs, "change ms", "ratio"]
        rows = []
        for name, r in zip(_shown([r.after for r in self.rows]), self.rows[:limit], strict=False):
            sides = r.before, r.after
            counts, times = [f"{t.count:,}" for t in sides], [f"{t.total_ns / 1e6:.3f}" for t in sides]
            means, change = [f"{t.mean_ns / 1e3:.1f}" for t in sides], f"{r.change_ns / 1e6:+.3f}"
            ratio = r.state if r.state != "both" else "-" if r.ratio is None else f"{r.ratio:.3f}x"
            rows.append([name, *counts, *times, *means, change, ratio])
        return head, rows, set(range(1, len(head)))

    def summary(self) -> str:
        """Return the totals in one line."""
        before, after = (sum(getattr(r, side).self_ns for r in self.rows) / 1e6 for side in ("before", "after"))
        new, gone = (sum(r.state == state for r in self.rows) for state in ("new", "gone"))
        return f"{before:.3f} ms before, {after:.3f} ms after: {after - before:+.3f} ms; {new} new, {gone} gone"

    def records(self, limit: int | None = None) -> list[dict[str, object]]:
        """Return the rows for JSON."""
        return [
            {
                "name": clean(r.name),
                "state": r.state,
                "change_ns": r.change_ns,
                "ratio": r.ratio,
                "before": total_record(r.before),
                "after": total_record(r.after),
            }
            for r in self.rows[:limit]
        ]

    def to_json(self) -> str:
        """Return the rows as JSON."""
        return msgspec.json.encode({"rows": self.records()}).decode()

    def __str__(self) -> str:
        return table(*self.changed()) + "\n" + self.summary()

    _repr_html_ = html_text


def diff(before: Trace, after: Trace, *, by: str = "operation", kind: str | None = None) -> TraceDiff:
    """Compare two traces, sorted by how much the total time changed."""
    for given in (before, after):
        expect(given, Trace, "two traces are compared", "read a file with Trace.load(path) before")
    sides = [totals(t, by=by, kind=kind) for t in (before, after)]
    several = {name for side in sides for name, n in Counter(t.name for t in side).items() if n > 1}
    old, new = ({(t.name, t.kind if t.name in several else ""): t for t in side} for side in sides)
    rows = [Change(*(side.get(key, Total(key[0], kind=key[1])) for side in (old, new))) for key in {**old, **new}]
    return TraceDiff(tuple(sorted(rows, key=lambda r: (-abs(r.change_ns), r.name))))


def totals(trace: Trace, *, by: str = "operation", kind: str | None = None) -> list[Total]:
    """Return count and time by operation, device or thread, the longest self time first; spans count only if asked for by kind.

    >>> from tensorlogic import Trace, TraceEvent
    >>> t = Trace([TraceEvent("loop", "step", 0, 9, 1), TraceEvent("add", "step", 2, 6, 1)])
    >>> [(row.name, row.total_ns, row.self_ns) for row in totals(t)]
    [('loop', 9, 5), ('add', 4, 4)]
    """
    if by not in BY:
        raise InputError(
            f"totals are by operation, device or thread, not {value_text(by)}", *nearest(by, BY), code="E725"
        )
    events = trace.columns()
    shown = np.array([(k.kind == kind) if kind is not None else (k.kind != "span") for k in events.kinds], bool)
    names, of = Names(), events.thread if by == "thread" else events.kind
    if by == "thread":
        keys = [(trace.thread_name(thread), "") for thread in events.threads]
    else:
        keys = [(k.name, k.kind) if by == "operation" else (k.device or "unknown", "") for k in events.kinds]
    row = np.array([names.number(key) for key in keys], np.intp)[of]
    each = tracks(trace, events)
    own, outermost = self_times(trace, events, each), np.zeros(len(row), bool)
    for track in each:
        outermost[track.row] = track.outermost(np.where(shown[track.kind], row[track.row], -1))
    rows = shown[events.kind]
    groups, took = Groups(row[rows], len(names)), (events.end - events.start)[rows]
    columns = (
        groups.counts(),
        groups.sums(_busy(each, shown, events)[rows] if by == "thread" else np.where(outermost[rows], took, 0)),
        groups.sums(own[rows]),
        groups.largest(took),
        groups.sums(took),
    )
    numbers = zip(*(c.tolist() for c in columns), strict=True)
    totals = [
        Total(name, count, total, own, most, None if whole == total else whole, kind)
        for (name, kind), (count, total, own, most, whole) in zip(names, numbers, strict=True)
        if count
    ]
    return sorted(totals, key=lambda t: (-t.self_ns, -t.total_ns, t.name, t.kind))


def _busy(each: Sequence[Track], shown: NDArray[np.bool_], events: EventColumns) -> NDArray[Any]:
    """Return, for each event, how long it kept its thread busy beyond those that are shown and began before it."""
    ends, busy = events.end.copy(), np.zeros_like(events.start)
    for track in each:
        ends[track.row] = track.inner_end
    for own in places_of(events.thread, len(events.threads)):
        rows = own[shown[events.kind[own]]]
        start, end = events.start[rows], np.maximum.accumulate(ends[rows])
        busy[rows[:1]] = end[:1] - start[:1]
        busy[rows[1:]] = np.maximum(end[1:] - np.maximum(start[1:], end[:-1]), 0)
    return busy


def total_record(row: Total) -> dict[str, object]:
    """Return a row for JSON."""
    return {
        "name": clean(row.name),
        "kind": row.kind,
        "count": row.count,
        "total_ns": row.total_ns,
        "self_ns": row.self_ns,
        "sum_ns": row.total_ns if row.sum_ns is None else row.sum_ns,
        "mean_ns": row.mean_ns,
        "max_ns": row.max_ns,
    }


def totals_cells(rows: Sequence[Total], by: str = "operation", limit: int | None = None) -> Cells:
    """Return head, rows and the columns that are flush right, for a table."""
    whole = sum(r.self_ns for r in rows) or 1
    cells = []
    for name, r in zip(_shown(rows), rows[:limit], strict=False):
        times = (f"{ns / 1e6:.3f}" for ns in (r.total_ns, r.self_ns))
        calls = (f"{ns / 1e3:.1f}" for ns in (r.mean_ns, r.max_ns))
        cells.append([name, f"{r.count:,}", *times, *calls, f"{100 * r.self_ns / whole:.1f}%"])
    rest = rows[len(cells) :]
    if rest:
        count, own = (sum(getattr(r, field) for r in rest) for field in ("count", "self_ns"))
        share = f"{100 * own / whole:.1f}%"
        cells.append([f"... {len(rest):,} more", f"{count:,}", "", f"{own / 1e6:.3f}", "", "", share])
    return [by, "count", "total ms", "self ms", "mean µs", "max µs", "share"], cells, {1, 2, 3, 4, 5, 6}


def _shown(rows: Sequence[Total]) -> list[str]:
    return short_names(operation_names([(r.name, r.kind) for r in rows]))


def counts(trace: Trace) -> str:
    """Return how much is in a trace, in words; and what of a file is not."""
    return ", ".join([counted(trace.step_count(), "step"), counted(len(trace.spans), "span"), *losses(trace)])


def counts_record(trace: Trace) -> dict[str, object]:
    """Return how much is in a trace, for JSON; and what of a file is not."""
    others = 0 if trace.chrome is None else len(trace.chrome.others)
    found = {"steps": trace.step_count(), "spans": len(trace.spans), "other_events": others}
    return {**found, "skipped": trace.skipped, "damage": trace.damage}


def losses(trace: Trace) -> list[str]:
    """Return what of a file is not in its trace, in words."""
    texts = []
    if skipped := sum(trace.skipped.values()):
        why = ", ".join(f"{n:,} {reason}" for reason, n in trace.skipped.items())
        texts.append(f"{counted(skipped, 'event')} of the file skipped ({why})")
    if trace.damage is not None:
        texts.append(f"the file is damaged ({trace.damage})")
    return texts


def emptiness(trace: Trace) -> str | None:
    """Return what there is instead where a trace has no entries, in words."""
    if len(trace):
        return None
    others = 0 if trace.chrome is None else len(trace.chrome.others)
    if others:
        return f"only {counted(others, 'event')} without a duration, such as counters"
    return "nothing in this trace can be read" if trace.skipped else "there is nothing in this trace"


def lengths(trace: Trace, self_ns: int) -> str:
    """Return how long a trace is, in words: the time of its entries, and from the first to the last where threads overlap."""
    if (instead := emptiness(trace)) is not None:
        return f"0.000 ms: {instead}"
    events = trace.columns()
    whole, threads = int(events.end.max()) - int(events.start[0]), np.count_nonzero(np.bincount(events.thread))
    together = f" on {threads:,} threads within {whole / 1e6:.3f} ms" if threads > 1 else ""
    return f"{self_ns / 1e6:.3f} ms{together}"
