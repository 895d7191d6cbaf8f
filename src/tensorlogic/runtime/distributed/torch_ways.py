"""Ranks that are processes, on one machine or several: torch.distributed carries what they give each other (``communication="torch"``).

NumPy arrays are handed over without a copy where PyTorch knows their dtype. What it cannot combine is gathered, and combined in the order of
the ranks. Between processes of one machine, collectives take a shorter way (:mod:`.one_machine`).
"""

from __future__ import annotations

import atexit
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import perf_counter_ns
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import numpy as np

from ...backends.collectives import put_end_to_end
from ...backends.combine import combine_to, combined
from ...errors import BackendError, ExecutionError
from ...ir.collectives import share
from ..parts import range_of
from .joining import Meeting, Missing, agree, choose_interface, open_store, torch_distributed, within
from .one_machine import Neighbours, find_neighbours

Array = Any
T = TypeVar("T")
OPERATIONS = {"add": "SUM", "multiply": "PRODUCT", "maximum": "MAX", "minimum": "MIN", "or": "MAX", "and": "MIN"}
TRUTHS = {"add": "or", "multiply": "and"}  # of truth values, as NumPy adds and multiplies them
SUMMED = frozenset({"float32", "float64", "int8", "uint8", "int32", "int64"})  # what gloo adds up as NumPy does
ANSWER = 3.0  # seconds that the store of a group may take to tell who is missing

WORLDS: WeakSet[TorchCommunication] = WeakSet()  # of this process: its executors have one each


def join_world(rank: int, size: int, address: str, timeout: float, token: str = "") -> TorchCommunication:
    """Meet the other processes at an address, such as ``file:///tmp/meeting`` or ``tcp://host:29500``.

    Only processes that give the same token meet. Those of one machine listen on the loopback interface only.
    """
    dist = torch_distributed()
    if dist.is_initialized():  # by the script that this process runs, or for another executor
        world = TorchCommunication(tuple(range(size)), rank, None, timeout)
        WORLDS.add(world)
        return world
    choose_interface(address)
    store = open_store(address, rank, size, timeout, token)
    try:
        meeting = agree(store, rank, size, timeout)
    except ExecutionError:
        raise
    except RuntimeError as error:  # of a store that went with its process
        message = f"the process of rank 0 ended before rank {rank} had met it: {_said(error)}"
        raise ExecutionError(message, "look at the error of that rank", code="E373") from error
    limit = timedelta(seconds=timeout)
    try:  # gloo itself waits five times as long
        within(timeout, lambda: dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit))
    except (RuntimeError, TimeoutError) as error:
        message = f"rank {rank} cannot reach the others: {_said(error)}"
        hint = "name the network interface of every machine at which the others reach it: GLOO_SOCKET_IFNAME=eth0"
        raise ExecutionError(message, hint, code="E374") from error
    atexit.register(leave_worlds)
    world = TorchCommunication(tuple(range(size)), rank, None, timeout, meeting)
    WORLDS.add(world)
    world.find_neighbours("start")
    return world


def leave_worlds() -> None:
    """End the groups of this process, and with them the threads of gloo, before the interpreter goes.

    A thread that was the last to hold an array waits for the interpreter to give it back, and takes the process down where that has gone meanwhile.
    """
    for world in list(WORLDS):
        world.close()


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
        self._started: dict[str, tuple[Any, tuple[Array, str]]] = {}  # work, None with neighbours; the total, and how
        self._neighbours: Neighbours | Literal[False] | None = None  # None: not asked for yet
        self._sending: list[tuple[Any, Array]] = []
        self.call, self.told = 0, False  # the call that this rank is in, and whether it told the others what it runs

    def all_reduce(self, x: Array, how: str) -> Array:
        """Return the values of all ranks combined."""
        self.moved["all_reduce"] += x.nbytes
        values = self._near(f"all_reduce {how}", x, [x.shape] * self.size)
        if values is not None:
            return combined(how, values)
        if x.dtype == bool:
            how = TRUTHS.get(how, how)
        if how in OPERATIONS and (x.dtype.name in SUMMED or x.dtype == bool):
            result = np.array(x.view(np.uint8) if x.dtype == bool else x, order="C")
            operation = getattr(self._dist.ReduceOp, OPERATIONS[how])
            self._do("all_reduce", lambda: self._dist.all_reduce(_tensor(result), operation, self._group))
            return result.view(bool) if x.dtype == bool else result
        return combined(how, self._gathered("all_reduce", x, [x.shape] * self.size))

    def start_all_reduce(self, operands: Sequence[Array], total: Array, how: str, label: str) -> None:
        """Begin to combine operands, end to end, with those of all ranks; ``total`` is for the result."""
        self.moved["all_reduce"] += total.nbytes
        near = self.find_neighbours("all_reduce")
        begin = lambda: near and near.begin(f"started {label}", operands, total.nbytes)  # noqa: E731
        if self._do("all_reduce", begin, waits=False):
            self._started[label] = None, (total, how)
            return
        put_end_to_end(operands, total)
        operation = getattr(self._dist.ReduceOp, OPERATIONS[how])
        start = lambda: self._dist.all_reduce(_tensor(total), operation, self._group, async_op=True)  # noqa: E731
        self._started[label] = self._do("all_reduce", start), (total, how)

    def wait(self, label: str) -> None:
        """Wait until what was started under a label is over."""
        work, (total, how) = self._started.pop(label)
        if work is not None:
            self._do("all_reduce", work.wait)
            return
        assert self._neighbours
        near = self._neighbours
        values = self._do("all_reduce", lambda: near.end(f"started {label}"))
        combine_to(how, [_shaped(v, total.shape, total.dtype) for v in values], total)

    def all_gather(self, x: Array, axis: int, length: int) -> Array:
        """Return the shares of all ranks end to end."""
        self.moved["all_gather"] += x.nbytes
        shapes = self._shapes(x.shape, axis, length)
        values = self._near(f"all_gather {axis}", x, shapes)
        return np.concatenate(self._gathered("all_gather", x, shapes) if values is None else values, axis)

    def reduce_scatter(self, x: Array, axis: int, how: str) -> Array:
        """Return this rank's share of the values of all ranks combined."""
        self.moved["reduce_scatter"] += x.nbytes
        places = [share(x.shape[axis], self.size, rank) for rank in range(self.size)]
        values = self._near(f"reduce_scatter {how} {axis}", x, [x.shape] * self.size)
        if values is not None:
            return combined(how, [range_of(value, axis, places[self.rank]) for value in values])
        pieces = [range_of(x, axis, own) for own in places]
        return combined(how, self._exchanged("reduce_scatter", pieces, [pieces[self.rank].shape] * self.size))

    def all_to_all(self, x: Array, cut: int, joined: int, length: int) -> Array:
        """Return this rank's share along the axis ``cut`` of what lay in shares along ``joined``."""
        self.moved["all_to_all"] += x.nbytes
        places = [share(x.shape[cut], self.size, rank) for rank in range(self.size)]
        values = self._near(f"all_to_all {cut} {joined}", x, self._shapes(x.shape, joined, length))
        if values is not None:
            return np.concatenate([range_of(value, cut, places[self.rank]) for value in values], joined)
        pieces = [range_of(x, cut, own) for own in places]
        shapes = self._shapes(pieces[self.rank].shape, joined, length)
        return np.concatenate(self._exchanged("all_to_all", pieces, shapes), joined)

    def _shapes(self, own: Sequence[int], axis: int, length: int) -> list[tuple[int, ...]]:
        """Return the shapes of what each rank has, of which the shares of an axis have a length together."""
        lengths = [len(share(length, self.size, rank)) for rank in range(self.size)]
        return [(*own[:axis], n, *own[axis + 1 :]) for n in lengths]

    def find_neighbours(self, call: str) -> Neighbours | Literal[False]:
        """Return the ranks as neighbours where all of them are on this machine; the first call of a group finds that out."""
        if self._neighbours is None:
            gather = lambda x: self._gathered(call, x, [x.shape] * self.size)  # noqa: E731
            try:
                self._neighbours = find_neighbours(self.rank, self.size, gather, self._timeout) or False
            except OSError as error:
                raise self._lost(call, RuntimeError(str(error))) from error
        return self._neighbours

    def tell_neighbours(self, what: str) -> bool:
        """Tell all ranks what this one does, and go on; False where they are not all on this machine. One that does something else is an error."""
        near = self.find_neighbours("start")
        if not near:
            return False
        return self._do("start", lambda: near.begin(what, (), 0), waits=False)

    def hear_neighbours(self, what: str) -> None:
        """Wait until all ranks have told what they do."""
        assert self._neighbours
        near = self._neighbours
        self._do("start", lambda: near.end(what))

    def _near(self, call: str, x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """Return what every rank of this machine gives, to be read before the next call; None where they are on several."""
        near = self.find_neighbours(call.partition(" ")[0])
        if not near:
            return None
        most = max([math.prod(shape) for shape in shapes]) * x.itemsize
        values = self._do(call.partition(" ")[0], lambda: near.exchange(call, x, most))
        return None if values is None else [_shaped(v, own, x.dtype) for v, own in zip(values, shapes, strict=True)]

    def broadcast(self, x: Array, root: int) -> Array:
        """Return the value of one rank."""
        self.moved["broadcast"] += x.nbytes if self.rank == root else 0
        shapes = [x.shape if rank == root else (0,) for rank in range(self.size)]
        values = self._near(f"broadcast {root}", x if self.rank == root else np.empty(0, x.dtype), shapes)
        if values is not None:
            return np.array(values[root])
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
            limit = timedelta(seconds=self._timeout)
            new = lambda: self._dist.new_group(  # noqa: E731
                list(chosen), timeout=limit, backend="gloo", use_local_synchronization=True
            )
            group = self._do("start", lambda: within(self._timeout, new))
            self._groups[chosen] = TorchCommunication(chosen, self._own, group, self._timeout, self._meeting)
        return self._groups[chosen]

    def begin_call(self, number: int) -> None:
        """Begin the call of this number, in which no rank has stopped yet."""
        self.call, self.told = number, False
        if self._meeting is not None:
            self._meeting.call = number

    def leave(self, reason: str) -> None:
        """Tell the others why this rank stops."""
        if self._meeting is not None:
            with suppress(RuntimeError, TimeoutError):  # of a store that went with its process, or its machine
                meeting = self._meeting
                within(ANSWER, lambda: meeting.leave(self._own, reason))

    def abandon(self) -> None:
        """Give up what is started, after an error on this rank."""
        for group in (self, *self._groups.values()):
            group._started.clear()
            if group._neighbours:
                group._neighbours.abandon()

    def close(self) -> None:
        """Leave the group."""
        for group in (self, *self._groups.values()):
            if group._neighbours:
                group._neighbours.close()
                group._neighbours = False
            group._started.clear()
            group._sending.clear()
        self._groups.clear()  # whose threads end with the last that knows them
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

    def _do(self, call: str, act: Callable[[], T], *, waits: bool = True) -> T:
        start = perf_counter_ns()
        try:
            return act()
        except ExecutionError:  # which says already what the ranks do
            raise
        except (RuntimeError, TimeoutError) as error:
            raise self._lost(call, error) from error
        finally:
            self.waited_ns += perf_counter_ns() - start if waits else 0

    def _lost(self, call: str, error: Exception) -> ExecutionError:
        """Return the error that says which rank is not there for a call, as far as that can be found out."""
        reason = f"rank {self._own} lost others in {call}"
        missing = Missing()
        if self._meeting is not None:
            meeting = self._meeting
            try:
                missing = within(ANSWER, lambda: meeting.missing(self._ranks, self._own, reason))
            except RuntimeError:  # the store went with the process that kept it
                missing = Missing(ended=(0,))
            except TimeoutError:  # there is no way to the store any more
                missing = Missing(silent=[rank for rank in self._ranks if rank != self._own])
        told = [f"rank {rank} stopped: {why}" for rank, why in missing.stopped.items()]
        if missing.ended:
            message = f"the process of {_named(missing.ended)} ended while rank {self._own} was in {call}"
            return ExecutionError(message, "run it again", code="E373", context=told)
        late = isinstance(error, TimeoutError) or "timed out" in str(error).lower()
        if late and missing.silent:
            message = f"rank {self._own} waited in {call} for {_named(missing.silent)} for {self._timeout:g} s"
            hint = "look at what that rank does, or allow more time: timeout="
            return ExecutionError(message, hint, code="E374", context=told)
        if missing.silent:
            which = "one of " if len(missing.silent) > 1 else ""  # the others may not have noticed yet
            reason = f"rank {self._own} lost the connection to {which}{_named(missing.silent)} in {call}"
        message = f"{reason}: {_said(error)}"
        return ExecutionError(message, "look at the error of the other ranks", code="E373", context=told)


def _said(error: Exception) -> str:
    """Return what gloo says, without the places in its own files and its advice."""
    line = str(error).splitlines()[0]
    return re.sub(r"\[/\S+\] ", "", line).partition(". This is typically")[0]


def _named(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


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
