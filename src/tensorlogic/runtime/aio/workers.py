"""The threads that awaited calls run on: as many as are busy at one time; those without work leave after a while."""

from __future__ import annotations

import atexit
import sys
import threading
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ...backends.threads import start_thread
from ...errors import TensorLogicError
from ...store import Lock, reset_in_child

if TYPE_CHECKING:
    from .call_queue import AsyncHandle, CallQueue

KEPT = 10.0  # seconds that a thread without work stays
ENDING = 5.0  # seconds that a process which ends waits for steps that still run
SWITCH = 0.0005  # seconds after which Python lets another thread run while workers are busy: an event loop among them

queues: WeakSet[CallQueue] = WeakSet()  # all there are


class Workers:
    """The threads that calls run on: as many as are busy at one time; those without work leave after a while.

    They are daemons, so that a process can end: it tells calls to stop, and waits for their steps.
    """

    def __init__(self) -> None:
        self.reset_lock()
        reset_in_child(self)
        atexit.register(self.end)

    def reset_lock(self) -> None:
        """Begin without threads, as a forked process does."""
        busy = getattr(self, "_busy", 0)
        self._lock = Lock()
        if busy:
            self._count(-busy)
        self._jobs: SimpleQueue[AsyncHandle[Any]] = SimpleQueue()
        self._idle = self._busy = self._started = self._gone = 0
        self._interval = 0.0  # how long a thread ran at a stretch before we changed it

    def threads(self) -> int:
        """Return how many threads there are."""
        return self._started - self._gone

    def begin(self, handle: AsyncHandle[Any]) -> None:
        """Hand a call to a thread that waits for one, or to a new one."""
        with self._lock:
            waiting = self._idle > 0
            self._idle -= waiting
            self._started += not waiting
            number = self._started
        if waiting:
            self._jobs.put(handle)
            return
        try:
            name = f"tensorlogic-call-{number}"
            start_thread(threading.Thread(target=self._serve, args=(handle,), name=name, daemon=True))
        except RuntimeError as error:  # the process is ending, or has too many threads
            handle.fail(TensorLogicError(f"no thread can be started for the call: {error}", code="E560"))
            following = handle.queue.after(handle)
            while following is not None:
                following.fail(TensorLogicError(f"no thread can be started for the call: {error}", code="E560"))
                following = following.queue.after(following)

    def _serve(self, handle: AsyncHandle[Any] | None) -> None:
        jobs = self._jobs
        while True:
            self._count(1)
            while handle is not None:
                handle.perform()
                handle = handle.queue.after(handle)
            self._count(-1)
            with self._lock:
                self._idle += 1
            try:
                handle = jobs.get(timeout=KEPT)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        self._gone += 1
                        return
                handle = jobs.get()  # somebody counts on this thread already

    def _count(self, change: int) -> None:
        """Count busy threads. While there are some, Python switches between threads more often."""
        with self._lock:
            self._busy += change
            if change > 0 and self._busy == 1:
                self._interval = sys.getswitchinterval()
                if self._interval > SWITCH:
                    sys.setswitchinterval(SWITCH)
            elif self._busy == 0 and self._interval > SWITCH and abs(sys.getswitchinterval() - SWITCH) < 1e-6:
                sys.setswitchinterval(self._interval)  # unless somebody else has changed it

    def end(self) -> None:
        """Cancel every call and wait for the steps that run; a thread that is stopped in the middle of one may crash the process."""
        for queue in list(queues):
            for handle in queue.outstanding():
                handle.cancel("the process is ending")
        until = perf_counter() + ENDING
        idle = threading.Event()  # nobody sets it
        while self._busy and perf_counter() < until:
            idle.wait(0.005)


workers = Workers()
