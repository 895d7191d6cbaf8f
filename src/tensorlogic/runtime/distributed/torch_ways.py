"""Ranks that are processes, on one machine or several: torch.distributed carries what they give each other (``communication="torch"``).

NumPy arrays are handed over without a copy where PyTorch knows their dtype. What it cannot combine is gathered, and combined in the order of
the ranks.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import perf_counter_ns
from typing import Any, Literal, TypeVar

import numpy as np

from ...backends.combine import combined
from ...errors import BackendError, ExecutionError
from ...ir.collectives import share
from .joining import Meeting, Missing, agree, on_loopback, open_store, torch_distributed
from .shared_sums import LEAST, SharedSums, add_up, shared_sums

Array = Any
T = TypeVar("T")
OPERATIONS = {"add": "SUM", "multiply": "PRODUCT", "maximum": "MAX", "minimum": "MIN", "or": "MAX", "and": "MIN"}
TRUTHS = {"add": "or", "multiply": "and"}  # of truth values, as NumPy adds and multiplies them
SUMMED = frozenset({"float32", "float64", "int8", "uint8", "int32", "int64"})  # what gloo adds up as NumPy does


def join_world(rank: int, size: int, address: str, timeout: float, token: str = "") -> TorchCommunication:
    """Meet the other processes at an address, such as ``file:///tmp/meeting`` or ``tcp://host:29500``.

    Only processes that give the same token meet. Those of one machine listen on the loopback interface only.
    """
    dist = torch_distributed()
    if dist.is_initialized():  # by the script that this process runs
        return TorchCommunication(tuple(range(size)), rank, None, timeout)
    if on_loopback(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = open_store(address, rank, size, timeout, token)
    meeting = agree(store, rank, size, timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    return TorchCommunication(tuple(range(size)), rank, None, timeout, meeting)


def world_from_environment(timeout: float) -> TorchCommunication:
    """Meet the processes that torchrun or ``tensorlogic launch`` started beside this one."""
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        hint = "start it with: tensorlogic launch -n 4 script.py, or torchrun --nproc-per-node 4 script.py"
        raise BackendError("this process was not started as one of several ranks", hint, code="E381") from None
    address = os.environ.get("TENSORLOGIC_MEETING", "env://")
    return join_world(rank, size, address, timeout, os.environ.get("TENSORLOGIC_TOKEN", ""))


class TorchCommunication:
    """The way from one process to the others of its group."""

    def __init__(
        self, ranks: tuple[int, ...], own: int, group: Any, timeout: float, meeting: Meeting | None = None
    ) -> None:
        self._dist = torch_distributed()
        self._ranks, self._own, self._group, self._timeout, self._meeting = ranks, own, group, timeout, meeting
        self.rank, self.size = ranks.index(own), len(ranks)
        self.waited_ns = 0
        self.moved: Counter[str] = Counter()
        self._groups: dict[tuple[int, ...], TorchCommunication] = {}
        self._started: dict[str, tuple[Any, Array, list[Array] | None]] = {}
        self._shared: SharedSums | Literal[False] | None = None  # None: not asked for yet
        self._sending: list[tuple[Any, Array]] = []

    def all_reduce(self, x: Array, how: str) -> Array:
        """Return the values of all ranks combined."""
        self.moved["all_reduce"] += x.nbytes
        if x.dtype == bool:
            how = TRUTHS.get(how, how)
        if how in OPERATIONS and (x.dtype.name in SUMMED or x.dtype == bool):
            result = np.array(x.view(np.uint8) if x.dtype == bool else x, order="C")
            operation = getattr(self._dist.ReduceOp, OPERATIONS[how])
            self._do("all_reduce", lambda: self._dist.all_reduce(_tensor(result), operation, self._group))
            return result.view(bool) if x.dtype == bool else result
        return combined(how, self._gathered("all_reduce", x, [x.shape] * self.size))

    def start_all_reduce(self, total: Array, how: str, label: str) -> None:
        """Begin to combine the values of all ranks in place: through memory that all see, where that is possible."""
        self.moved["all_reduce"] += total.nbytes
        places = self._written(total, label) if how == "add" and total.nbytes >= LEAST else None
        message = total if places is None else np.ones(1, np.uint8)  # which only says that the values are written
        operation = getattr(self._dist.ReduceOp, OPERATIONS[how])
        start = lambda: self._dist.all_reduce(_tensor(message), operation, self._group, async_op=True)  # noqa: E731
        self._started[label] = self._do("all_reduce", start), total, places

    def wait(self, label: str) -> None:
        """Wait until what was started under a label is over."""
        work, total, places = self._started.pop(label)
        self._do("all_reduce", work.wait)
        if places is not None:
            add_up(total, places)

    def _written(self, values: Array, label: str) -> list[Array] | None:
        """Write values where all ranks see them, and return where those of each rank are; None where there is no such memory."""
        if self._shared is None:
            self._shared = shared_sums(self) or False
        return self._shared.write(values, label) if self._shared else None

    def all_gather(self, x: Array, axis: int, length: int) -> Array:
        """Return the shares of all ranks end to end."""
        self.moved["all_gather"] += x.nbytes
        shapes = [
            (*x.shape[:axis], len(share(length, self.size, rank)), *x.shape[axis + 1 :]) for rank in range(self.size)
        ]
        return np.concatenate(self._gathered("all_gather", x, shapes), axis)

    def reduce_scatter(self, x: Array, axis: int, how: str) -> Array:
        """Return this rank's share of the values of all ranks combined."""
        self.moved["reduce_scatter"] += x.nbytes
        pieces = [_cut(x, axis, share(x.shape[axis], self.size, rank)) for rank in range(self.size)]
        received = self._exchanged("reduce_scatter", pieces, [pieces[self.rank].shape] * self.size)
        return combined(how, received)

    def all_to_all(self, x: Array, cut: int, joined: int, length: int) -> Array:
        """Return this rank's share along the axis ``cut`` of what lay in shares along ``joined``."""
        self.moved["all_to_all"] += x.nbytes
        pieces = [_cut(x, cut, share(x.shape[cut], self.size, rank)) for rank in range(self.size)]
        own = list(pieces[self.rank].shape)
        shapes = []
        for rank in range(self.size):
            own[joined] = len(share(length, self.size, rank))
            shapes.append(tuple(own))
        return np.concatenate(self._exchanged("all_to_all", pieces, shapes), joined)

    def broadcast(self, x: Array, root: int) -> Array:
        """Return the value of one rank."""
        self.moved["broadcast"] += x.nbytes if self.rank == root else 0
        result = np.array(x, order="C")
        self._do("broadcast", lambda: self._dist.broadcast(_bytes(result), self._ranks[root], self._group))
        return result

    def send(self, x: Array, to: int, label: str) -> None:
        """Send an array to another rank, and go on: two stages that send to each other would wait forever otherwise."""
        self.moved["send"] += x.nbytes
        self._sending = [entry for entry in self._sending if not entry[0].is_completed()]
        copy = np.array(x, order="C")  # stays until it has arrived
        begin = lambda: self._dist.isend(_bytes(copy), self._ranks[to], self._group, _tag(label))  # noqa: E731
        self._sending.append((self._do("send", begin), copy))

    def settle(self) -> None:
        """Wait until everything that was sent has arrived."""
        while self._sending:
            self._do("send", self._sending.pop()[0].wait)

    def receive(self, source: int, label: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return what another rank sends."""
        result = np.empty(shape, dtype)
        self._do("receive", lambda: self._dist.recv(_bytes(result), self._ranks[source], self._group, _tag(label)))
        return result

    def group(self, ranks: Sequence[int]) -> TorchCommunication:
        """Return the way to some of the ranks; every rank of this group must ask for its own, in the same order."""
        chosen = tuple(self._ranks[r] for r in ranks)
        if chosen == self._ranks:
            return self
        if chosen not in self._groups:
            group = self._dist.new_group(
                list(chosen), timeout=timedelta(seconds=self._timeout), backend="gloo", use_local_synchronization=True
            )
            self._groups[chosen] = TorchCommunication(chosen, self._own, group, self._timeout, self._meeting)
        return self._groups[chosen]

    def leave(self, reason: str) -> None:
        """Tell the others why this rank stops."""
        if self._meeting is not None:
            with suppress(RuntimeError):  # of a store that went with its process
                self._meeting.leave(self._own, reason)

    def close(self) -> None:
        """Leave the group."""
        if self._shared:
            self._shared.close()
            self._shared = False
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _gathered(self, call: str, x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        longest = max(int(np.prod(shape)) for shape in shapes) * x.itemsize
        own = np.zeros(longest, np.uint8)
        own[: x.nbytes] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        everyone = np.empty((self.size, longest), np.uint8)
        lines = [_tensor(line) for line in everyone]
        self._do(call, lambda: self._dist.all_gather(lines, _tensor(own), self._group))
        return [_shaped(line, shape, x.dtype) for line, shape in zip(everyone, shapes, strict=True)]

    def _exchanged(self, call: str, pieces: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        received = [np.empty(shape, pieces[0].dtype) for shape in shapes]
        received[self.rank][...] = pieces[self.rank]

        def swap() -> None:
            work = []
            for other in range(self.size):
                if other != self.rank:
                    work.append(
                        self._dist.isend(_bytes(np.array(pieces[other], order="C")), self._ranks[other], self._group)
                    )
                    work.append(self._dist.irecv(_bytes(received[other]), self._ranks[other], self._group))
            for each in work:
                each.wait()

        self._do(call, swap)
        return received

    def _do(self, call: str, act: Callable[[], T]) -> T:
        start = perf_counter_ns()
        try:
            return act()
        except RuntimeError as error:
            raise self._lost(call, error) from error
        finally:
            self.waited_ns += perf_counter_ns() - start

    def _lost(self, call: str, error: RuntimeError) -> ExecutionError:
        """Return the error that says which rank is not there for a call, as far as that can be found out."""
        reason = f"rank {self._own} lost others in {call}"
        missing = Missing()
        if self._meeting is not None:
            try:
                missing = self._meeting.missing(self._ranks, self._own, reason)
            except RuntimeError:  # the store went with the process that kept it
                missing = Missing(ended=(0,))
        told = [f"rank {rank} stopped: {why}" for rank, why in missing.stopped.items()]
        if missing.ended:
            message = f"the process of {_named(missing.ended)} ended while rank {self._own} was in {call}"
            return ExecutionError(message, "run it again", code="E373", context=told)
        if "timed out" in str(error).lower() and missing.silent:
            message = f"rank {self._own} waited in {call} for {_named(missing.silent)} for {self._timeout:g} s"
            hint = "look at what that rank does, or allow more time: timeout="
            return ExecutionError(message, hint, code="E374", context=told)
        message = f"{reason}: {str(error).splitlines()[0]}"
        return ExecutionError(message, "look at the error of the other ranks", code="E373", context=told)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


def _cut(x: Array, axis: int, places: range) -> Array:
    return x[(slice(None),) * axis + (slice(places.start, places.stop),)]


def _tensor(x: Array) -> Any:
    import torch

    return torch.from_numpy(x)


def _bytes(x: Array) -> Any:
    return _tensor(x.reshape(-1).view(np.uint8))


def _tag(label: str) -> int:
    """Return the number under which what is sent with a label travels, so that two values never take each other's place."""
    return zlib.crc32(label.encode()) & 0x7FFFFFFF


def _shaped(line: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return line[:count].view(dtype).reshape(shape)
