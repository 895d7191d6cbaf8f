"""Processes of one machine give each other arrays: small ones through sockets, large ones through memory that all of them see.

Gloo moves everything through TCP and threads of its own: 4 KiB take a quarter of a millisecond, and 2 MB keep each of two processors busy for 4 ms.
A Unix socket takes some microseconds; memory that all see is written once and read once.
"""

from __future__ import annotations

import hmac
import mmap
import os
import secrets
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from ...errors import ExecutionError

Array = Any
SMALL = 1 << 15  # bytes that travel through a socket
MOST_RANKS = 8  # each reads what all have written
MOST_BYTES = 1 << 30  # of memory that all see
LEAST_ROOM = 1 << 20  # bytes of the first room for exchanges that are not started early
LOOKS = 20  # at a socket before a process goes to sleep: what others give is often there in a moment
PAUSE = 0.0002  # seconds between two looks whether others have read
TOKEN = 16  # random bytes by which ranks of a group know each other
MACHINE = Path("/proc/sys/kernel/random/boot_id")
Gather = Callable[[Array], Sequence[Array]]  # what every rank gives, by rank


class _Begun(NamedTuple):
    """An exchange that this rank has begun: its name, what it gave, and where the values of each rank are, if in memory."""

    name: str
    own: Array
    places: Sequence[Array] | None


class Neighbours:
    """The processes of a group that are on one machine, seen from one of them.

    Every rank begins the same exchanges in the same order, under labels, and ends each of them in any order. A rank writes its values, says so, and reads
    those of all once all have said so. There are two rooms for each label, used in turn: when a rank writes to one again, all others
    have begun the exchange after it, and so have read it.
    """

    def __init__(self, rank: int, sockets: Sequence[socket.socket | None], memory: int, timeout: float) -> None:
        self.rank, self.size, self._timeout = rank, len(sockets), timeout
        self._sockets, self._memory, self._end = sockets, memory, 0
        self._mail: list[dict[str, deque[Array]]] = [{} for _ in sockets]  # that came before it was asked for, by rank
        self._begun: dict[str, _Begun] = {}
        self._rooms: dict[tuple[str, int], tuple[list[Array], list[Array]] | None] = {}
        self._turns: dict[tuple[str, int], int] = {}
        self._buffer = bytearray(SMALL + 1024)
        for way in sockets:
            if way is not None:
                way.setblocking(False)

    def exchange(self, call: str, own: Array, most: int) -> list[Array] | None:
        """Return the bytes of what every rank gives, ``most`` at the most; they are to be read before the next exchange. None: there is no room."""
        return self.end(call) if self.begin(call, (own,), most, together=True) else None

    def begin(self, label: str, operands: Sequence[Array], most: int, *, together: bool = False) -> bool:
        """Give arrays, end to end, under a label; False where there is no room for them, on every rank."""
        name, payload, places = f"{label} of {most} bytes", b"", None
        if most <= SMALL:
            payload = b"".join([x.tobytes() for x in operands])
            own = np.frombuffer(payload, np.uint8)
        else:
            places = self._room("" if together else label, most)
            if places is None:
                return False
            own, at = places[self.rank], 0
            for x in operands:
                np.copyto(own[at : at + x.nbytes].view(x.dtype).reshape(x.shape), x)
                at += x.nbytes
            own = own[:at]
        message = [name.encode(), b"\n", payload]
        for rank, way in enumerate(self._sockets):
            if way is not None:
                self._send(rank, way, message)
        self._begun[label] = _Begun(name, own, places)
        return True

    def end(self, label: str) -> list[Array]:
        """Wait for the others, and return the bytes of what every rank gave under a label."""
        begun = self._begun.pop(label)
        values = []
        for rank, way in enumerate(self._sockets):
            if way is None:
                values.append(begun.own)
                continue
            mail = self._mail[rank].get(begun.name)
            came = mail.popleft() if mail else self._wait(rank, way, begun.name)
            values.append(came if begun.places is None else begun.places[rank])
        return values

    def close(self) -> None:
        """Leave the others."""
        for way in self._sockets:
            if way is not None:
                way.close()
        os.close(self._memory)

    def _send(self, rank: int, way: socket.socket, message: Sequence[bytes]) -> None:
        end = monotonic() + self._timeout
        while True:
            try:
                way.sendmsg(message)
                return
            except BlockingIOError:  # it has much to read, and may wait for this rank to read first
                if monotonic() > end:
                    raise RuntimeError("timed out") from None
                for other, each in enumerate(self._sockets):
                    while each is not None and self._look(other, each) is not None:
                        pass
                sleep(PAUSE)
            except OSError as error:
                raise RuntimeError(f"rank {rank} is gone: {error}") from error

    def _wait(self, rank: int, way: socket.socket, name: str) -> Array:
        """Return what a rank gives under a name; what comes before it is for exchanges that this rank ends later."""
        end, looks = monotonic() + self._timeout, 0
        mail = self._mail[rank]
        while True:
            came = self._look(rank, way)
            if came == name:
                return mail[name].popleft()
            if came is not None:
                self._check(rank, came, name)
                continue
            looks += 1
            if looks > LOOKS:
                self._sleep(way, end)

    def _check(self, rank: int, came: str, name: str) -> None:
        """Raise where a rank does something else: what comes before the values that are asked for was begun before them, here as there."""
        if any(came == begun.name for begun in self._begun.values()):
            return
        message = f"the ranks do not do the same: rank {self.rank}: {name}, rank {rank}: {came}"
        raise ExecutionError(message, "give every rank the graph that was made for it", code="E375")

    def _look(self, rank: int, way: socket.socket) -> str | None:
        """Take a message that is there, and return its name."""
        try:
            count = way.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise RuntimeError(f"rank {rank} is gone: {error}") from error
        if not count:
            raise RuntimeError(f"rank {rank} is gone")
        start = self._buffer.index(b"\n")
        name = self._buffer[:start].decode()
        self._mail[rank].setdefault(name, deque()).append(np.frombuffer(self._buffer[start + 1 : count], np.uint8))
        return name

    def _sleep(self, way: socket.socket, end: float) -> None:
        """Sleep until there is something to read."""
        ready = select.poll()
        ready.register(way, select.POLLIN)
        left = end - monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise RuntimeError("timed out")

    def _room(self, label: str, nbytes: int) -> Sequence[Array] | None:
        """Return places for the values of all ranks; None where there is no memory left. All ranks ask for the same in the same order."""
        if not label:  # one room for many sizes
            nbytes = max(LEAST_ROOM, 1 << (nbytes - 1).bit_length())
        key = label, nbytes
        if key not in self._rooms:
            self._rooms[key] = self._new_room(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        room = self._rooms[key]
        if room is None:
            return None
        turn = self._turns[key] = 1 - self._turns.get(key, 1)
        return room[turn]

    def _new_room(self, nbytes: int) -> tuple[list[Array], list[Array]] | None:
        start, whole = self._end, 2 * self.size * nbytes
        if start + whole > MOST_BYTES:
            return None
        self._end += whole
        able = 0
        with suppress(OSError):  # no room: those who have some must not use it either
            os.posix_fallocate(self._memory, start, whole)
            able = 1
        answers = self.exchange("room", np.array([able], np.uint8), 1)
        assert answers is not None
        if not all(answer[0] for answer in answers):
            return None
        stretch = np.frombuffer(mmap.mmap(self._memory, whole, offset=start), np.uint8)
        places = [stretch[n * nbytes : (n + 1) * nbytes] for n in range(2 * self.size)]
        return places[: self.size], places[self.size :]


def find_neighbours(rank: int, size: int, gather: Gather, timeout: float) -> Neighbours | None:
    """Return the ranks of a group as neighbours; None where they are many, or not all on this machine. All ranks must ask.

    ``gather`` hands bytes of equal length round, on the way that the group has already.
    """
    if size > MOST_RANKS or not hasattr(os, "memfd_create"):
        return None
    machine, name, token = _machine(), secrets.token_hex(16), secrets.token_bytes(TOKEN)
    known = gather(np.frombuffer(machine + name.encode() + token, np.uint8))
    lines = [bytes(line) for line in known]
    if any(line[: len(machine)] != machine for line in lines):
        return None
    ours = b"".join(line[-TOKEN:] for line in lines)  # which only those know who are in the group
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sockets: list[socket.socket | None] = [None] * size
    able = 0
    with suppress(OSError):  # of a machine that looks like this one, or does not let its processes meet
        listener.bind(b"\0tensorlogic-" + name.encode())
        listener.listen(4 * size)
        able = 1
    memory = -1
    try:
        if not _all(gather, able):
            return None
        with suppress(OSError):
            able = 0
            for other in range(rank):
                way = sockets[other] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                way.settimeout(timeout)
                way.connect(b"\0tensorlogic-" + lines[other][len(machine) : -TOKEN])
                way.send(bytes([rank]) + ours)
            able = 1
        if not _all(gather, able):  # from here on every connection is there
            return None
        listener.settimeout(timeout)
        while None in sockets[rank + 1 :]:
            way = listener.accept()[0]
            way.settimeout(timeout)
            said = way.recv(1 + len(ours))
            if hmac.compare_digest(said[1:], ours) and rank < said[0] < size:
                sockets[said[0]] = way
            else:
                way.close()  # a stranger
        if rank == 0:
            memory = os.memfd_create("tensorlogic-ranks")
            for each in sockets[1:]:
                socket.send_fds(each, [b"memory"], [memory])  # type: ignore[arg-type]
        else:
            memory = socket.recv_fds(sockets[0], 6, 1, socket.MSG_CMSG_CLOEXEC)[1][0]  # type: ignore[arg-type]
        found = Neighbours(rank, sockets, memory, timeout)
        sockets = []
        return found
    finally:
        listener.close()
        for each in sockets:
            if each is not None:
                each.close()


def _machine() -> bytes:
    """Return what tells this machine from others, always as long."""
    try:
        return MACHINE.read_bytes().strip()[:36].ljust(36)
    except OSError:
        return secrets.token_bytes(36)  # which nobody else has


def _all(gather: Gather, able: int) -> bool:
    return all(bytes(line)[0] for line in gather(np.array([able], np.uint8)))
