"""What the tests of awaited calls share: a chain of steps, and a gate that its steps wait at."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import numpy as np

import tensorlogic as tl

X = np.linspace(0.0, 1.0, 5)
PATIENCE = 60  # seconds after which a test that waits for something has failed
CANCELLED = (asyncio.CancelledError, tl.CancelledError)  # of a handle that was cancelled, on asyncio and on trio


def chain(steps: int = 6) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    z = b.input("x", ("n",), "float64")
    for _ in range(steps):
        z = b.tanh(z)
    return b.build(y=z)


def expected(x: Any, steps: int = 6) -> Any:
    for _ in range(steps):
        x = np.tanh(x)
    return x


class Gate:
    """A wrapper whose steps tell that they began and wait until they may go on."""

    def __init__(self) -> None:
        self.steps, self.most, self.now = 0, 0, 0
        self.began, self.open, self.lock = threading.Event(), threading.Event(), threading.Lock()

    def __call__(self, call: Any) -> Any:
        def guarded(step: Any, args: Any) -> Any:
            with self.lock:
                self.steps += 1
                self.now += 1
                self.most = max(self.most, self.now)
            self.began.set()
            try:
                assert self.open.wait(PATIENCE)
                return call(step, args)
            finally:
                with self.lock:
                    self.now -= 1

        return guarded

    async def passed(self, event: threading.Event) -> None:
        assert await anyio.to_thread.run_sync(event.wait, PATIENCE)


async def awaited(handle: Any) -> Any:
    """Return what a handle gives, as a coroutine, which is what tasks are made of."""
    return await handle
