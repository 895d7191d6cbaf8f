"""Awaiting answers: planning, compiling and running happen on worker threads, so that an event loop is never held up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...errors import InputError, expect, expect_whole, nearest
from ...ir.graph import EinsumGraph
from ..context import seconds
from ..values import Inputs, check_call
from .call_queue import AsyncHandle, CallQueue
from .short_calls import note_time, short_call
from .signals import in_trio

if TYPE_CHECKING:
    from ..batch_result import BatchResult
    from ..executor import Executor
    from ..values import Outputs

T = TypeVar("T")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AsyncConfig(msgspec.Struct, frozen=True):
    """Limits of awaited calls: how many run at one time, how many may wait, and how long each may take.

    ``timeout`` counts from the moment of the call, its time in line included. ``backpressure_threshold`` bounds what waits: a pool
    and a stream take nothing more in while so many do.

    >>> config = AsyncConfig().with_max_concurrent(4).with_backpressure_threshold(100).with_timeout(2.5)
    >>> config.max_concurrent, config.backpressure_threshold, config.timeout
    (4, 100, 2.5)
    """

    max_concurrent: int = CORES
    backpressure_threshold: int = 100
    timeout: float | None = None  # seconds; a timedelta is taken too

    def __post_init__(self) -> None:
        expect_whole("max_concurrent", self.max_concurrent, 1)
        expect_whole("backpressure_threshold", self.backpressure_threshold, 0)
        if self.timeout is not None:
            msgspec.structs.force_setattr(self, "timeout", seconds(self.timeout, "timeout"))

    def with_max_concurrent(self, calls: int) -> AsyncConfig:
        """Return the config with another number of calls that run at one time."""
        return msgspec.structs.replace(self, max_concurrent=calls)

    def with_backpressure_threshold(self, calls: int) -> AsyncConfig:
        """Return the config with another number of calls that may wait."""
        return msgspec.structs.replace(self, backpressure_threshold=calls)

    def with_timeout(self, timeout: float | timedelta | None) -> AsyncConfig:
        """Return the config with another time for each call, in seconds or as a timedelta."""
        return msgspec.structs.replace(self, timeout=timeout)


DEFAULT = AsyncConfig()
_anything = CallQueue(max(CORES, 4), DEFAULT.backpressure_threshold)  # for functions that belong to no executor


def checked_config(config: object) -> AsyncConfig:
    """Return a config, the default one for None."""
    if config is None:
        return DEFAULT
    expect(config, AsyncConfig, "an AsyncConfig is expected", "write AsyncConfig(max_concurrent=4)")
    return config  # type: ignore[return-value]


def run_async(
    function: Callable[..., T], *args: Any, timeout: float | timedelta | None = None, **named: Any
) -> AsyncHandle[T]:
    """Call any function on a worker thread and return a handle to await: for functions that have no async method of their own.

    ``await run_async(executor.compile_graph, graph)``, ``await run_async(program.query, "Ancestor(Alice, x)?")``. Runs inside it stop when
    it is cancelled, and so does planning.

    >>> import asyncio, tensorlogic as tl
    >>> program = tl.Program("Parent(Bob, Charlie)")
    >>> async def main():
    ...     return await tl.run_async(program.query, "Parent(Bob, x)?")
    >>> asyncio.run(main())
    [('Charlie',)]
    """
    if not callable(function):
        expect(function, Callable, "a function is expected", "write run_async(program.query, text)")
    if iscoroutinefunction(function):
        message = f"run_async calls functions on a thread, and {getattr(function, '__name__', function)} is async"
        raise InputError(message, "await it as it is", code="E301")
    limit = None if timeout is None else seconds(timeout, "timeout")
    return AsyncHandle(_anything, partial(function, *args, **named), limit).begin()


def execute_async(
    executor: Executor, graph: EinsumGraph, inputs: Inputs | None, config: AsyncConfig | None, options: dict[str, Any]
) -> AsyncHandle[Outputs]:
    """Begin a call of ``executor.execute`` on a worker thread, or put it in line."""
    config = checked_config(config)
    check_call(graph, {} if inputs is None else inputs)
    if options:
        _check_options(executor, options)
    queue = queue_of(executor, config)
    work = partial(executor.execute, graph, inputs, **options)
    short = short_call(executor, graph, inputs) if not options else ""
    loop = _asyncio_loop() if short else None
    on_end = bool if short == "brief" else partial(note_time, executor, graph)
    handle = AsyncHandle(queue, work, config.timeout, brief=loop is not None and short == "brief", on_end=on_end)
    if loop is None:
        return handle.begin()
    if short == "brief":
        handle.begin_here(loop)
    else:
        handle.begin_late(loop)
    return handle


def _check_options(executor: Executor, options: dict[str, Any]) -> None:
    """Refuse options that ``execute`` does not have here, and not on the worker thread."""
    for name in options.keys() - signature(executor.execute).parameters.keys():
        if name in ("timeout", "max_concurrent", "backpressure_threshold"):
            hints = [f"write execute_async(graph, inputs, AsyncConfig({name}={options[name]!r}))"]
        else:
            hints = nearest(name, signature(executor.execute).parameters)
        raise InputError(f"execute_async has no option {name!r}", *hints, code="E301")


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of asyncio that runs here; None on trio, and where none does."""
    try:
        return None if in_trio() else asyncio.get_running_loop()
    except RuntimeError:
        return None


def execute_batch_async(
    executor: Executor, graph: EinsumGraph, batch_inputs: Any, config: AsyncConfig | None, options: dict[str, Any]
) -> AsyncHandle[BatchResult]:
    """Begin a call of ``executor.execute_batch`` on a worker thread, or put it in line: a batch is one call."""
    config = checked_config(config)
    check_call(graph, {})
    method = executor.execute_batch_parallel if "num_threads" in options else executor.execute_batch
    work = partial(method, graph, batch_inputs, **options)
    return AsyncHandle(queue_of(executor, config), work, config.timeout).begin()


def queue_of(executor: Executor, config: AsyncConfig) -> CallQueue:
    """Return where the calls of an executor under a config take turns; calls that differ only in their timeout share it."""
    limits = config.max_concurrent, config.backpressure_threshold
    found = executor.call_queues.get(limits)
    return executor.call_queues.setdefault(limits, CallQueue(*limits)) if found is None else found
