"""Full load with models loaded and unloaded every second: ``python tests/soak/serving_soak.py --seconds 600``; see ``make soak``.

Clients ask two models all the time while both are loaded anew, and a third one comes and goes. No request may fail, but those to the model that
is away (404) and those that a full queue refuses (429). Memory, threads and handles may not grow after the first fifth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import tensorlogic as tl

CLIENTS = 16
GROWTH = 32 << 20  # bytes that memory may move by, whatever the reason


def save(root: Path, name: str, factor: float) -> None:
    """Save a model that multiplies."""
    b = tl.GraphBuilder()
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    b.build(y=b.relu(b.input("x", (64,), "float32") * factor)).save(folder / "model.json")


def state(pid: int) -> dict[str, int]:
    """Return what a process holds: memory, threads and handles."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "handles": len(os.listdir(f"/proc/{pid}/fd")),
    }


async def client(url: str, names: list[str], end: float, counts: Counter[str]) -> None:
    """Ask the models in turn until the time is over, and check every answer."""
    x = np.arange(64, dtype="float32")
    async with tl.AsyncClient(url, retries=0) as asking:
        n = 0
        while time.monotonic() < end:
            name = names[n % len(names)]
            n += 1
            try:
                y = (await asking.infer(name, {"x": x}))["y"]
            except tl.ServerError as error:
                counts[f"{name}: {error.status}"] += 1
                continue
            assert y[0] == 0 and y[1] in (2.0, 3.0) and np.array_equal(y, x * y[1]), y
            counts["answers"] += 1


async def change(url: str, root: Path, end: float, counts: Counter[str]) -> None:
    """Every second, load two models anew with other values, and let the third come or go."""
    n = 0
    asking = tl.Client(url, retries=0)
    loop = asyncio.get_running_loop()
    while time.monotonic() < end:
        n += 1
        for name in ("first", "second"):
            save(root, name, 2.0 + n % 2)
            await loop.run_in_executor(None, asking.load, name)
        await loop.run_in_executor(None, asking.unload if n % 2 else asking.load, "third")
        counts["loads"] += 3
        await asyncio.sleep(1.0)
    asking.close()


async def watch(pid: int, seconds: float, end: float) -> list[dict[str, int]]:
    """Return what the server held, a hundred times."""
    found = []
    while time.monotonic() < end - seconds / 100:
        await asyncio.sleep(seconds / 100)
        found.append(state(pid))
    return found


async def soak(url: str, pid: int, root: Path, seconds: float) -> tuple[Counter[str], list[dict[str, int]]]:
    """Ask, change and watch at one time."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    clients = [client(url, ["first", "second", "third"], end, counts) for _ in range(CLIENTS)]
    *_, seen = await asyncio.gather(*clients, change(url, root, end, counts), watch(pid, seconds, end))
    return counts, seen


def main(arguments: list[str] | None = None) -> None:
    """Run it, and end with an error where something grew or failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)

    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "models"
        for model in ("first", "second", "third"):
            save(root, model, 2.0)
        command = [sys.executable, "-m", "tensorlogic", "serve", str(root), "--port", "0", "--json"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            counts, seen = asyncio.run(soak(url, server.pid, root, told.seconds))
        finally:
            server.terminate()
            said = server.communicate(timeout=60)[1]
    check(counts, seen, server.returncode, said)
    print(f"{dict(counts)}; {seen[len(seen) // 5]} became {seen[-1]}")


def check(counts: Counter[str], seen: list[dict[str, int]], code: int, said: str) -> None:
    """Refuse errors that were not promised, and growth."""
    promised: set[Any] = {"answers", "loads", "third: 404", "first: 429", "second: 429", "third: 429"}
    assert counts["answers"] > 0 and counts["loads"] > 0 and not counts.keys() - promised, counts
    assert code == 0 and '"failure"' not in said, said[-2000:]
    later = seen[len(seen) // 5 :]
    half = len(later) // 2
    for what, slack in (("memory", GROWTH), ("threads", 4), ("handles", 8)):
        first, last = max(s[what] for s in later[:half]), max(s[what] for s in later[half:])
        assert last <= first + slack, f"{what} grew from {first:,} to {last:,}"


if __name__ == "__main__":
    main()
