"""Who reads the results of a stream with checkpoints and no sink gets each of them, whenever the run ended; and how often the state is saved."""

from __future__ import annotations

import os
import signal
import sys

import anyio
import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.streams import checkpoints

ROWS = np.arange(40.0)


def graph() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    return b.build(y=x * 2, total=b.sum(x))


def options(folder, *, every=1):
    mode = tl.StreamingMode.FixedChunk(4)
    return tl.StreamingConfig(mode, prefetch=2, checkpointing=every), {"checkpoint": folder / "saved", "resume": True}


def stream(folder, *, every=1, **more):
    config, rest = options(folder, every=every)
    return tl.Executor().execute_stream(graph(), {"x": ROWS}, config, **rest, **more)


def read(results, count):
    """Return the numbers of a few chunks."""
    return [next(results).metadata.chunk_id for _ in range(count)]


def test_a_reader_that_is_closed_has_what_it_has(tmp_path):
    for first in (0, 3, 6):
        with stream(tmp_path) as results:
            assert read(results, 3) == [first, first + 1, first + 2]
    rest = list(stream(tmp_path))
    assert [result.metadata.chunk_id for result in rest] == [9]
    assert rest[-1].outputs["total"] == ROWS.sum()
    assert stream(tmp_path).result()["total"] == ROWS.sum()


@pytest.mark.parametrize("abandoned", ["in with", "forgotten"])
def test_a_result_whose_reader_failed_comes_again(abandoned, tmp_path):
    def failing(count):
        for result in (results := stream(tmp_path)):
            seen.append(result.metadata.chunk_id)
            if len(seen) == count:
                if abandoned == "in with":
                    with results:
                        raise ConnectionError("the reader's own")
                break
        del results

    seen: list[int] = []
    for count in (3, 6, 12):
        try:
            failing(count)
        except ConnectionError:
            assert abandoned == "in with"
    assert seen == [0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 9]  # the last one, too
    assert read(stream(tmp_path), 1) == [9]
    assert stream(tmp_path).result()["total"] == ROWS.sum()


@pytest.mark.skipif(sys.platform == "win32", reason="kills processes that were forked")
def test_a_reader_that_is_killed_loses_nothing(tmp_path):
    seen: list[int] = []
    for at in (0, 3, 1, 99):  # how many it is done with, and is killed while it has another
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            for n, result in enumerate(stream(tmp_path)):
                if n == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.write(writing, bytes([result.metadata.chunk_id]))
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as done:
            seen += done.read()
    assert seen == list(range(10))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("end", ["break", "error", "cancel"])
def test_an_async_reader_gets_every_result(backend, end, tmp_path):
    async def some(count):
        config, rest = options(tmp_path)
        seen = []
        with anyio.CancelScope() as scope:
            async with tl.Executor().execute_stream_async(graph(), {"x": ROWS}, streaming=config, **rest) as results:
                async for result in results:
                    seen.append(result.metadata.chunk_id)
                    await anyio.sleep(0.02)  # long enough to compute ahead, if that were done
                    if len(seen) == count:
                        if end == "error":
                            raise ConnectionError("the reader's own")
                        if end == "break":
                            break
                        scope.cancel()
        return seen

    found = []
    for count in (3, 3, 99):
        try:
            found.append(anyio.run(some, count, backend=backend))
        except ConnectionError:
            found.append([])
    again = end == "error"  # and nobody knows whether the reader was done
    assert found == ([[], [], [4, 5, 6, 7, 8, 9]] if again else [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]])


class Clock:
    """A clock that goes on when it is told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def saved_chunks(folder, seconds, *, every=None, slow=0.0):
    """Return after which chunks the state was saved, where each takes some seconds, and saving others."""
    clock, found, real = Clock(), [], checkpoints.Checkpoints.save

    def noted(self, stream, sizes, **more):
        clock.now += slow
        found.append(stream.processor.chunks)
        real(self, stream, sizes, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoints.Checkpoints, "save", noted)
        for _ in stream(folder, every=every, clock=clock, sink=folder / "out.npz"):
            clock.now += seconds
    return found


def test_unless_told_the_state_is_saved_by_the_clock(tmp_path):
    for n, (seconds, slow, every, expected) in enumerate(
        [
            (
                0.01,
                0.0,
                None,
                [1, 10, 10],
            ),  # the first, so that what is wrong with the folder is told at once, and the end
            (0.5, 0.0, None, [1, 5, 9, 10, 10]),
            (3.0, 0.0, None, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]),
            (3.0, 0.5, None, [1, 5, 9, 10, 10]),  # a twentieth of the time
            (0.01, 0.0, 4, [4, 8, 10, 10]),
        ]
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        assert saved_chunks(folder, seconds, slow=slow, every=every) == expected, (seconds, slow, every)
