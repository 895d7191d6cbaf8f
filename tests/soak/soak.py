"""Random kills and faults, again and again: ``python tests/soak/soak.py --seconds 600 --until 1000``; see ``make soak``.

Each trial runs something in forked processes that are killed, or whose steps and files fail, until one comes to its end. What it leaves behind is compared
with a run that nothing happened to: no result may be lost, doubled or different.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.testing import failing_at
from tensorlogic.testing.strategies import graph_case

Counts = Counter[str]
Attempt = Callable[[Any], None]  # is given a failpoint of steps, or None
FILES = {
    "mkdir": 1,
    "write": 3,
    "fsync": 5,
    "rename": 2,
    "replace": 1,
}  # operations, and how many of each a checkpoint takes
DONE, FAILED = 0, 3  # how a child ends, beside by a signal
MOST = 8  # attempts with faults; the one after has none
SINKS = ("y.npy", "y.npz", "y.csv", "y.parquet")


class WrongError(AssertionError):
    """A result that was lost, doubled or different."""


def main() -> None:
    """Run trials until the time is over or enough was killed and failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--until", type=int, default=1000, help="kills and faults after which it is enough")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    begin, counts, number = time.monotonic(), Counts(), told.seed
    while time.monotonic() - begin < told.seconds and counts["kills"] + counts["faults"] < told.until:
        for name, trial in TRIALS.items():
            if available(name):
                run_trial(trial, number, counts)
                counts[name] += 1
        number += 1
        if (number - told.seed) % 10 == 0:
            print(summary(counts), flush=True)
    print(f"{summary(counts)}; every result was there once, bit by bit, after {time.monotonic() - begin:.0f} s")
    missing = [name for name in TRIALS if not available(name)]
    if missing:
        print(f"not in this package: {', '.join(missing)}")


def summary(counts: Counts) -> str:
    """Return what happened so far, in one line."""
    trials = ", ".join(f"{counts[name]:,} {name}" for name in TRIALS if counts[name])
    return f"{counts['kills']:,} kills, {counts['faults']:,} faults and {counts['calls']:,} failed calls in {trials}"


def available(name: str) -> bool:
    """Tell whether the package has what a trial needs."""
    return hasattr(tl, NEEDS[name])


def run_trial(trial: Callable[[random.Random, Path, Counts], None], number: int, counts: Counts) -> None:
    """Run one trial in a folder of its own; an error names the seed that brings it back."""
    rng = random.Random(number)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            trial(rng, Path(folder), counts)
        except Exception as error:
            raise WrongError(f"{trial.__name__} with seed {number}: {error}") from error


# processes that die


def until_done(attempt: Attempt, rng: random.Random, steps: int, seconds: float, counts: Counts) -> None:
    """Try something that takes some steps and seconds in children with faults until one comes to its end; the last child has none."""
    for n in range(MOST + 1):
        by_clock = rng.random() < 0.3
        fault = None if n == MOST or by_clock else draw_fault(rng, steps)
        ended = in_child(attempt, fault, rng.random() * seconds if by_clock and n < MOST else None)
        if ended == DONE:
            return
        if ended not in (-signal.SIGKILL, FAILED):
            raise WrongError(f"a child ended with {ended}")
        counts["kills" if ended < 0 else "faults"] += 1
    raise WrongError("a run without a fault failed")


def draw_fault(rng: random.Random, steps: int) -> tuple[str, Any]:
    """Return what is to fail: a step or an operation on files, and how."""
    kill = rng.random() < 0.7
    error = None if kill else rng.choice([OSError(28, "No space left on device"), OSError(5, "Input/output error")])
    where = rng.choice(["step", *FILES])
    return where, failing_at(call=1 + int(rng.random() ** 3 * steps * FILES.get(where, 1)), kill=kill, error=error)


def in_child(attempt: Attempt, fault: tuple[str, Any] | None, killed_after: float | None = None) -> int:
    """Do something in a forked process under a fault, or kill it after some seconds, and return how that ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks among threads: the child waits for none
        child = os.fork()
    if child == 0:
        code = 70
        try:
            warnings.simplefilter("ignore")
            if fault is not None and fault[0] != "step":
                _arm(*fault)
            attempt(fault[1] if fault is not None and fault[0] == "step" else None)
            code = DONE
        except (tl.TensorLogicError, OSError):
            code = FAILED
        finally:
            os._exit(code)
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(child, signal.SIGKILL)  # it is a child until it is waited for, even where it has ended
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _arm(operation: str, point: Any) -> None:
    real = getattr(os, operation)
    failing = point(lambda _, args: real(*args))
    setattr(os, operation, lambda *args: failing(operation, args))


# trials


def frames(rng: random.Random, folder: Path, counts: Counts) -> None:
    """Run a random graph with checkpoints after every step."""
    case, steps = random_graph(rng)
    policy = tl.RetryPolicy.fixed(1, 0) if rng.random() < 0.5 else None
    config = tl.RecoveryConfig(
        tl.RecoveryStrategy.CHECKPOINT, policy, folder=str(folder / "run"), checkpoint_seconds=None,
        checkpoint_steps=rng.choice([1, 1, 2, 3]),
    )  # fmt: skip

    def run(told: tl.RecoveryConfig, wrap: list[Any]) -> Any:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executor = tl.Executor(wrap=wrap, optimization_level=tl.OptimizationLevel.NONE)
            return executor.execute_with_recovery(case.graph, case.inputs, told, sleep=lambda _: None)

    expected = run(tl.RecoveryConfig(tl.RecoveryStrategy.CHECKPOINT, policy), [])
    begin = time.perf_counter()
    run(config.with_folder(str(folder / "whole")), [])
    seconds = time.perf_counter() - begin
    if isinstance(expected, tl.RecoveryResult.Failure):
        return  # a graph that cannot run, such as a reduction of nothing
    result = folder / "result.bin"

    def attempt(point: Any) -> None:
        found = run(config, [] if point is None else [point])
        if isinstance(found, tl.RecoveryResult.Failure):
            raise found.error
        with result.open("ab") as file:  # twice would be twice as long
            file.write(content(found.result))

    until_done(attempt, rng, steps, seconds, counts)
    same(result.read_bytes(), content(expected.result))


def random_graph(rng: random.Random) -> tuple[Any, int]:
    """Return a random graph with inputs that takes a few steps, and how many."""
    while True:
        case = graph_case(rng.randrange, most=30)
        try:
            steps = len(tl.Executor(optimization_level=tl.OptimizationLevel.NONE).plan(case.graph, case.inputs).steps)
        except tl.TensorLogicError:
            continue
        if steps >= 4:
            return case, steps


def content(outputs: Any) -> bytes:
    """Return outputs as bytes, their names, shapes and dtypes among them."""
    return b"".join(f"{name} {v.dtype} {v.shape}".encode() + v.tobytes() for name, v in outputs.items())


def same(found: bytes, expected: bytes) -> None:
    """Compare what is there with what should be."""
    if found != expected:
        raise WrongError(f"{len(found):,} bytes came for {len(expected):,}" + (", and differ" if found else ""))


def streams(rng: random.Random, folder: Path, counts: Counts) -> None:
    """Stream rows through a graph into a file, with a total over all of them."""
    rows, chunk, sink = rng.randrange(1, 60), rng.randrange(1, 9), rng.choice(SINKS)
    data = np.random.default_rng(rng.randrange(1 << 30)).normal(size=(rows, 3))
    np.save(folder / "x.npy", data)
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3), "float64"), b.input("w", (3, 2), "float64")
    y = b.tanh(x @ w)
    graph = b.build(y=y, total=b.sum(y, axis=0), largest=b.max(x))
    told: Any = tl
    config = told.StreamingConfig(told.StreamingMode.FixedChunk(chunk)).with_checkpointing(rng.choice([1, 1, 2, 4]))
    config = config.with_prefetch(rng.choice([0, 1, 2]))

    def run(place: Path, wrap: list[Any]) -> Any:
        executor: Any = tl.Executor(wrap=wrap)
        place.mkdir(exist_ok=True)
        stream = executor.execute_stream(
            graph, folder / "x.npy", config, inputs={"w": np.arange(6.0).reshape(3, 2)}, sink=place / sink,
            checkpoint=place / "run", resume=True,
        )  # fmt: skip
        outputs = stream.result()
        return {name: np.asarray(outputs[name]) for name in ("total", "largest")}

    begin = time.perf_counter()
    expected = run(folder / "whole", [])
    seconds = time.perf_counter() - begin
    result = folder / "result.bin"

    def attempt(point: Any) -> None:
        found = run(folder / "killed", [] if point is None else [point])
        with result.open("wb") as file:
            file.write(content(found))

    until_done(attempt, rng, 3 * (1 + rows // chunk), seconds, counts)
    same(result.read_bytes(), content(expected))
    same((folder / "killed" / sink).read_bytes(), (folder / "whole" / sink).read_bytes())


def pools(rng: random.Random, folder: Path, counts: Counts) -> None:
    """Await calls of a pool whose executors fail now and then; each is tried again by whoever asked."""
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (4,), "float64")))
    points = [failing_at(chance=0.2, rng=random.Random(rng.random()), error=OSError("lost")) for _ in range(3)]
    told: Any = tl
    answers: Counts = Counts()

    async def ask(pool: Any, n: int) -> None:
        while True:
            try:
                outputs = await pool.execute(graph, {"x": np.full(4, n / 50)})
            except tl.ExecutionError:
                continue
            same(np.asarray(outputs["y"]).tobytes(), np.exp(np.full(4, n / 50)).tobytes())
            answers[str(n)] += 1
            return

    async def everyone() -> None:
        async with told.AsyncExecutorPool([tl.Executor(wrap=[p]) for p in points], rest=0.0) as pool:
            await asyncio.gather(*[ask(pool, n) for n in range(50)])

    asyncio.run(everyone())
    if len(answers) != 50 or set(answers.values()) != {1}:
        raise WrongError(f"answers: {dict(answers)}")
    counts["calls"] += sum(p.strikes for p in points)


TRIALS: dict[str, Callable[[random.Random, Path, Counts], None]] = {
    "frames": frames,
    "streams": streams,
    "pools": pools,
}
NEEDS = {"frames": "RecoveryConfig", "streams": "StreamingConfig", "pools": "AsyncExecutorPool"}  # names of the package

if __name__ == "__main__":
    sys.exit(main())
