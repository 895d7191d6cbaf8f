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
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from .labels import CATCH, ranks_differ

Array = Any
SMALL = 1 << 15  # bytes that travel through a socket
MOST_RANKS = 8  # each reads what all have written
MOST_BYTES = 1 << 30  # of memory that all see; rooms stay, and what finds none any more takes another way
LEAST_ROOM = 1 << 20  # bytes of the first room for exchanges that are not started early
# of looking at a socket before a process goes to sleep: at first all the time, then, where every rank has a core, letting others go first. A core
# that has nothing to do on a virtual machine is given to others, and takes up to a millisecond to come back: little of so long a wait
LOOKS, LOOKING = 20, 0.02  # times, seconds
LONGEST_NAME = 800  # bytes
HEAD = struct.Struct("<QH")  # of a message: the number of its exchange, and the bytes of its name
SINCE_MEETING = 32  # bits of a number that count exchanges; those above count how often the ranks met again
TOKEN = 16  # random bytes by which ranks of a group know each other
MACHINE = Path("/proc/sys/kernel/random/boot_id")
Gather = Callable[[Array], Sequence[Array]]  # what every rank gives, by rank


class _Begun(NamedTuple):
    """An exchange that this rank has begun: its number and name, what it gave, and where the values of each rank are, if in memory."""

    number: int
    name: bytes
    own: Array
    places: Sequence[Array] | None


class Neighbours:
    """The processes of a group that are on one machine, seen from one of them.

    Every rank begins the same exchanges in the same order, under labels, and ends each of them in any order. A rank writes its values, says so, and reads
    those of all once all have said so. There are two rooms for each label, used in turn: when a rank writes to one again, all others
    have begun the exchange after it, and so have read it.

    Exchanges are numbered, so that nothing is taken for something else. After an error, ranks may have begun different ones: they meet again
    before the next, which forgets all that was before. A rank that has seen no error raises then.
    """

    def __init__(self, rank: int, sockets: Sequence[socket.socket | None], memory: int, timeout: float) -> None:
        self.rank, self.size, self._timeout = rank, len(sockets), timeout
        self._sockets, self._memory, self._end = sockets, memory, 0
        self._number = 0  # of the exchange that was begun last
        self._oldest = 0  # numbers before it were given up
        self._looking = LOOKING if len(sockets) <= len(os.sched_getaffinity(0)) else 0.0
        self._abandoned = False
        self._begun: dict[str, _Begun] = {}
        self._names: dict[int, bytes] = {}  # of what is begun
        # what came from each rank: name and values
        self._mail: list[dict[int, tuple[bytearray, Array]]] = [{} for _ in sockets]
        self._last = [0] * len(sockets)  # the numbers that came last
        self._gone: dict[int, str] = {}
        self._rooms: dict[tuple[str, int], tuple[list[Array], list[Array]] | None] = {}
        self._turns: dict[tuple[str, int], int] = {}
        self._buffer = bytearray(HEAD.size + LONGEST_NAME + SMALL)
        self._ready = select.poll()
        self._places: dict[int, tuple[int, socket.socket]] = {}  # ranks and their sockets, by descriptor
        for other, way in enumerate(sockets):
            if way is not None:
                way.setblocking(False)
                self._ready.register(way, select.POLLIN)
                self._places[way.fileno()] = other, way

    def exchange(self, call: str, own: Array, most: int) -> list[Array] | None:
        """Return the bytes of what every rank gives, ``most`` at the most; they are to be read before the next exchange. None: there is no room."""
        return self.end(call) if self.begin(call, (own,), most, together=True) else None

    def begin(self, label: str, operands: Sequence[Array], most: int, *, together: bool = False) -> bool:
        """Give arrays, end to end, under a label; False where there is no room for them, on every rank."""
        if label in self._begun:  # and never ended
            self.abandon()
        try:
            if self._abandoned:
                self._meet_again()
            return self._begin(label, operands, most, together)
        except BaseException:
            self.abandon()
            raise

    def _begin(self, label: str, operands: Sequence[Array], most: int, together: bool) -> bool:
        size = f" of {most} bytes" if most else ""
        name, payload, places = f"{label}{size}".encode()[:LONGEST_NAME], b"", None
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
        self._number = number = self._number + 1
        self._begun[label] = _Begun(number, name, own, places)
        self._names[number] = name
        message = [HEAD.pack(number, len(name)), name, payload]
        for rank, way in enumerate(self._sockets):
            if way is not None:
                self._send(rank, way, message)
        for rank, mail in enumerate(self._mail):
            if number in mail:
                self._compare(rank, number, mail[number][0])
        return True

    def end(self, label: str) -> list[Array]:
        """Wait for the others, and return the bytes of what every rank gave under a label."""
        begun = self._begun.get(label)
        if begun is None:
            raise RuntimeError(f"{label} was given up after an error")
        try:
            for rank, way in enumerate(self._sockets):
                if way is not None and begun.number not in self._mail[rank]:
                    self._wait(rank, way, begun)
        except BaseException:
            self.abandon()
            raise
        del self._begun[label], self._names[begun.number]
        came = [begun.own if r == self.rank else mail.pop(begun.number)[1] for r, mail in enumerate(self._mail)]
        if begun.places is None:
            return came
        return [begun.own if rank == self.rank else place for rank, place in enumerate(begun.places)]

    def abandon(self) -> None:
        """Give up what is begun, after an error: the ranks meet again before the next exchange."""
        self._begun.clear()
        self._names.clear()
        self._abandoned = True

    def _meet_again(self) -> None:
        """Wait until every rank has given up what it began; only then is the memory free, on all ranks from the start."""
        meetings = max((self._number >> SINCE_MEETING) + 1, max(self._last) >> SINCE_MEETING)
        self._number = self._oldest = meetings << SINCE_MEETING
        self._mail = [{n: came for n, came in mail.items() if n > self._number} for mail in self._mail]
        self._abandoned = False
        self.exchange("to begin anew after an error", np.empty(0, np.uint8), 0)
        self._rooms.clear()
        self._turns.clear()
        self._end = 0

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
                self._listen(end, way)
            except OSError as error:
                while self._look(rank, way):  # what it said before may tell why
                    pass
                raise RuntimeError(f"rank {rank} is gone: {error}") from error

    def _wait(self, rank: int, way: socket.socket, begun: _Begun) -> None:
        """Wait until a rank has given its values to an exchange."""
        start, looks, mail = monotonic(), 0, self._mail[rank]
        while begun.number not in mail:
            if self._last[rank] > begun.number or rank in self._gone:
                self._check(rank, begun)
            if looks <= LOOKS:
                looks += not self._look(rank, way)
            elif monotonic() < start + self._looking:
                if not self._look(rank, way):
                    os.sched_yield()
            else:
                self._listen(start + self._timeout)

    def _listen(self, end: float, full: socket.socket | None = None) -> None:
        """Sleep until there is something to read, or room in a socket that is full, and read what any rank has sent: some rank may wait for that."""
        if full is not None:
            self._ready.modify(full, select.POLLIN | select.POLLOUT)
        left = end - monotonic()
        ready = self._ready.poll(left * 1000) if left > 0 else []
        if full is not None:
            self._ready.modify(full, select.POLLIN)
        if not ready:
            raise RuntimeError("timed out")
        for place, _ in ready:
            rank, way = self._places[place]
            self._look(rank, way)
            if rank in self._gone:
                self._ready.unregister(place)
            if rank in self._gone or self._last[rank] >> SINCE_MEETING > self._number >> SINCE_MEETING:
                for begun in self._begun.values():
                    self._check(rank, begun)

    def _look(self, rank: int, way: socket.socket) -> bool:
        """Take a message of a rank, if there is one."""
        if rank in self._gone:
            return False
        try:
            count = way.recv_into(self._buffer)
        except BlockingIOError:
            return False
        # said once, of a rank that ended before it read everything; what it sent is still there
        except ConnectionResetError:
            return self._look(rank, way)
        except OSError as error:
            self._gone[rank] = f"rank {rank} is gone: {error}"
            return False
        if not count:  # which matters where it has not given everything
            self._gone[rank] = f"rank {rank} is gone"
            return False
        number, length = HEAD.unpack_from(self._buffer)
        self._last[rank] = number
        if number < self._oldest:
            return True
        start = HEAD.size + length
        name = self._buffer[HEAD.size : start]
        self._mail[rank][number] = name, np.frombuffer(self._buffer[start:count], np.uint8)
        if number in self._names:
            self._compare(rank, number, name)
        return True

    def _compare(self, rank: int, number: int, came: bytes | bytearray) -> None:
        """Raise where a rank does something else than this one."""
        own = self._names[number]
        if came != own:
            hint = "give every rank the graph that was made for it"
            raise ranks_differ(self.rank, bytes(own), rank, bytes(came), hint)

    def _check(self, rank: int, begun: _Begun) -> None:
        """Raise where what a rank should give to an exchange will not come."""
        if begun.number in self._mail[rank]:
            return
        if self._last[rank] > begun.number:  # messages come in their order
            anew = b"to begin anew after an error"
            raise ranks_differ(self.rank, begun.name, rank, anew, CATCH)
        if rank in self._gone:
            raise RuntimeError(self._gone[rank])

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
    if size > MOST_RANKS:  # the same on every rank, as is all that follows: nobody waits for one that takes another way
        return None
    able = hasattr(os, "memfd_create")
    machine, name, token = _machine() if able else _no_machine(), secrets.token_hex(16), secrets.token_bytes(TOKEN)
    known = gather(np.frombuffer(machine + name.encode() + token, np.uint8))
    lines = [bytes(line) for line in known]
    if not able or any(line[: len(machine)] != machine for line in lines):
        return None
    ours = b"".join(line[-TOKEN:] for line in lines)  # which only those know who are in the group
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sockets: list[socket.socket | None] = [None] * size
    able, memory = False, -1
    with suppress(OSError):  # of a machine that looks like this one, or does not let its processes meet
        listener.bind(b"\0tensorlogic-" + name.encode())
        listener.listen(4 * size)
        able = True
    try:
        if not _all(gather, able):
            return None
        with suppress(OSError):
            able = False
            for other in range(rank):
                way = sockets[other] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                way.settimeout(timeout)
                way.connect(b"\0tensorlogic-" + lines[other][len(machine) : -TOKEN])
                way.send(bytes([rank]) + ours)
            able = True
        if not _all(gather, able):  # from here on every connection is there
            return None
        listener.settimeout(timeout)
        while None in sockets[rank + 1 :]:
            _accept(listener, rank, sockets, ours, timeout)
        if rank == 0:
            memory = os.memfd_create("tensorlogic-ranks")
            for each in sockets[1:]:
                socket.send_fds(each, [b"memory"], [memory])  # type: ignore[arg-type]
        else:
            given = socket.recv_fds(sockets[0], 6, 1, socket.MSG_CMSG_CLOEXEC)[1]  # type: ignore[arg-type]
            if not given:
                raise ConnectionError("rank 0 is gone")
            memory = given[0]
        found = Neighbours(rank, sockets, memory, timeout)
        sockets, memory = [], -1
        return found
    finally:
        for each in (listener, *sockets):
            if each is not None:
                each.close()
        if memory >= 0:
            os.close(memory)


def _accept(
    listener: socket.socket, rank: int, sockets: list[socket.socket | None], ours: bytes, timeout: float
) -> None:
    """Let a rank in; strangers of this machine are sent away."""
    way = listener.accept()[0]
    way.setblocking(False)  # a rank has said who it is before this one listens
    said = b""
    with suppress(OSError):
        said = way.recv(1 + len(ours))
    if hmac.compare_digest(said[1:], ours) and rank < said[0] < len(sockets):
        way.settimeout(timeout)
        sockets[said[0]] = way
    else:
        way.close()


def _machine() -> bytes:
    """Return what tells this machine from others, always as long."""
    try:
        return MACHINE.read_bytes().strip()[:36].ljust(36)
    except OSError:
        return _no_machine()


def _no_machine() -> bytes:
    return secrets.token_bytes(36)  # which nobody else has


def _all(gather: Gather, able: bool) -> bool:
    return all(bytes(line)[0] for line in gather(np.array([able], np.uint8)))
