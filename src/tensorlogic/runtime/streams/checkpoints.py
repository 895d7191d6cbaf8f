"""The saved state of a stream: how far it is, its totals, and what its sink holds; so that it goes on in another process.

What a checkpoint says was brought to the disk before it was written. A run that is resumed cuts its sink back to that and goes on with the chunk
after it, so that every row is computed and written once, whenever the run before it ended. Where there is no sink, the results are for whoever
reads them: a checkpoint then covers those that the reader came back from, and the others come again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CheckpointError, expect
from ...ir.ops import constant_digest
from ..recovery.checkpoints import CheckpointManager

if TYPE_CHECKING:
    from .chunk_sizes import ChunkSizes
    from .reader import Chunk
    from .stream import Stream

FORMAT = 3
SAMPLE = 16  # rows before a checkpoint that are compared when the run is resumed
SECONDS = 2.0  # between two checkpoints, where nobody said after how many chunks they are saved
SHARE = 20  # of the time of a run, the part that such checkpoints may take


class Checkpoints:
    """Saves the state of a stream every few chunks, or every few seconds, and restores it."""

    def __init__(
        self,
        given: str | Path | CheckpointManager,
        *,
        every: int | None,
        resume: bool,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        expect(
            given,
            (str, Path, CheckpointManager),
            "checkpoint= is a folder or a CheckpointManager",
            'write checkpoint="run"',
        )
        self.manager = given if isinstance(given, CheckpointManager) else CheckpointManager(given)
        self.every, self.resume, self._clock = every, resume, clock
        self._due = 0.0  # when the next one is, where it is the time that decides
        self._marked: bool | None = None  # whether the source has a mark to be compared
        self.complete = False  # whether the run before came to its end
        self._sizes: dict[str, Any] | None = None
        self._saved = -1  # chunks of the newest checkpoint
        self._sink: dict[str, Any] | None = None
        self._sample: dict[str, Any] | None = None  # of the rows that were computed last
        self.ended = False  # whether it had computed every chunk

    def open(self, stream: Stream) -> None:
        """Lock the folder, and put a stream where the newest good checkpoint says."""
        manager = self.manager
        manager.lock()
        if not self.resume:
            manager.refuse_used("a stream")
        found = manager.latest() if self.resume else None
        if found is None:
            return
        facts = found.facts
        self._check(stream, facts)
        processor = stream.processor
        processor.rows, processor.chunks = int(facts["rows"]), int(facts["chunks"])
        processor.totals = [found.arrays[f"total {n}"] for n in range(int(facts["totals"]))]
        processor.first = {name: found.arrays[f"first {name}"] for name in facts["first"]} or None
        self._sizes, self._saved, self._sample = facts["sizes"], processor.chunks, facts.get("sample")
        self._due = self._clock() + SECONDS
        self._sink, self.ended, self.complete = facts["sink"], bool(facts["ended"]), bool(facts["complete"])

    def _check(self, stream: Stream, facts: dict[str, Any]) -> None:
        folder = str(self.manager.folder)
        for name, now, what in (
            ("format", FORMAT, "a stream of another version of tensorlogic"),
            ("graph", stream.processor.graph.digest, "another graph"),
            ("over", stream.processor.axes, "a stream along another index"),
            ("inputs", _digests(stream), "a stream with other inputs"),
            ("mode", repr(stream.config.mode), "a stream with chunks of another size"),
            ("source", stream.source.facts(), "another source, or one that has changed"),
            ("into", _into(stream), "a stream with another sink"),
        ):
            then = facts.get(name)
            if then != now:
                shown = "" if name in ("graph", "inputs") else f": {then} then, {now} now"
                hint = "run what was run before, or begin anew in another folder"
                raise CheckpointError(f"the checkpoints in {folder!r} are of {what}{shown}", hint, code="E547")

    def sample_rows(self) -> int:
        """Return how many rows before the checkpoint are to be read again and compared."""
        return 0 if self._sample is None else int(self._sample["rows"])

    def compare(self, stream: Stream, chunk: Chunk | None) -> None:
        """Refuse a source whose rows before the checkpoint are not those that were computed."""
        if self._sample is not None and (chunk is None or _sample(stream, chunk) != self._sample):
            stop = stream.processor.rows
            message = (
                f"the checkpoints in {str(self.manager.folder)!r} are of another source, or one that has changed: "
            )
            message += f"rows {stop - self.sample_rows():,} to {stop - 1:,} are not those that were read then"
            raise CheckpointError(
                message,
                "run what was run before, or begin anew in another folder",
                "an iterable is given from its first chunk again: the rows that are done are left out",
                code="E547",
            )

    def restore(self, stream: Stream, sizes: ChunkSizes) -> None:
        """Go on with the sizes and the sink of the run before, once the graph is cut."""
        if self._sizes is not None:
            sizes.restore(self._sizes)
        sink = stream.options.sink
        if sink is not None and self._sink is not None:
            sink.restore(self._sink, complete=self.ended)

    def note(self, stream: Stream, chunk: Chunk) -> None:
        """Remember what the last rows of a chunk that was computed are, to compare them when the run is resumed."""
        if self._marked is None:
            source = stream.source.facts()
            self._marked = bool(source.get("mark") or source.get("marks"))  # then that is compared
        self._sample = None if self._marked else _sample(stream, chunk)

    def save_if_due(self, stream: Stream, sizes: ChunkSizes) -> None:
        """Save the state where it is time: after the first chunk, so that a folder that cannot be written is told early, and then as asked."""
        new = stream.processor.chunks - max(self._saved, 0)
        if self.every is None:
            due = new > 0 and (self._saved < 0 or self._clock() >= self._due)
        else:
            due = new >= self.every
        if due:
            begin = self._clock()
            self.save(stream, sizes)
            end = self._clock()
            self._due = end + max(SECONDS, SHARE * (end - begin))

    def save(self, stream: Stream, sizes: ChunkSizes, *, ended: bool = False, complete: bool = False) -> None:
        """Save the state, unless nothing has changed."""
        processor = stream.processor
        if processor.chunks == self._saved and not ended:
            return
        sink = stream.options.sink
        first = processor.first or {}
        totals = processor.totals if processor.rows else []
        facts = {
            "format": FORMAT,
            "graph": processor.graph.digest,
            "over": processor.axes,
            "mode": repr(stream.config.mode),
            "inputs": _digests(stream),
            "source": stream.source.facts(),
            "rows": processor.rows,
            "chunks": processor.chunks,
            "totals": len(totals),
            "first": list(first),
            "sizes": sizes.state(),
            "sink": None if sink is None else self._sink if complete else sink.state(),
            "into": _into(stream),
            "ended": ended,
            "complete": complete,
            "sample": self._sample,
        }
        self._sink = facts["sink"]
        arrays = {f"total {n}": np.asarray(total) for n, total in enumerate(totals)}
        self.manager.save(arrays | {f"first {name}": np.asarray(value) for name, value in first.items()}, facts)
        self._saved = processor.chunks

    def close(self) -> None:
        """Let another run have the folder."""
        self.manager.close()


def _sample(stream: Stream, chunk: Chunk) -> dict[str, Any]:
    """Return a fingerprint of the last rows of a chunk."""
    rows = min(chunk.rows, SAMPLE)
    digests = {}
    for name, axis in stream.processor.axes.items():
        own = np.asarray(chunk.values[name])[(slice(None),) * axis + (slice(chunk.rows - rows, None),)]
        digests[name] = constant_digest(np.ascontiguousarray(own))
    return {"rows": rows, "digests": digests}


def _into(stream: Stream) -> Any:
    """Return what tells the sink of a stream from another."""
    from .sinks import sink_facts

    return None if stream.options.sink is None else sink_facts(stream.options.sink)


def _digests(stream: Stream) -> dict[str, str]:
    """Return a fingerprint of each input that is whole."""
    declared = stream.processor.declared
    return {
        name: constant_digest(np.ascontiguousarray(np.asarray(value, declared[name].dtype)))
        for name, value in stream.processor.whole.items()
    }
