"""How processes come together as ranks: the place where they meet, what they must have in common, and who is missing later.

The place is a store of torch.distributed: a file for processes of one machine, a port for several machines. Its keys begin with the random
token of the group, so that a process that does not know the token meets nobody.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlparse

from ...backends.threads import start_thread
from ...errors import BackendError, ExecutionError, InputError

T = TypeVar("T")
PAUSE = 0.02  # seconds between two looks at the store
HEARING = 2.0  # seconds in which the ranks hear that they do not fit together
GRACE = 0.5  # seconds in which ranks that fail together are heard
LOOPBACK = ("localhost", "127.0.0.1", "::1")
BOOT = Path("/proc/sys/kernel/random/boot_id")  # of Linux: a new one each time that a machine starts
PROCESSES = Path("/proc/self/ns/pid")  # the set of process numbers: containers have their own
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
GET_ADDRESS = 0x8915  # Linux: what an interface is asked to tell its IPv4 address, which then stands in these bytes
ADDRESS = slice(20, 24)


def torch_distributed(communication: str = "torch") -> Any:
    """Return torch.distributed, or say how to install it."""
    try:
        import torch.distributed as dist
    except ImportError:
        extra = "ray" if communication == "ray" else "distributed"
        message = f'communication="{communication}" needs PyTorch, which is not installed'
        raise BackendError(message, f"install it: pip install 'tensorlogic-infer[{extra}]'", code="E380") from None
    return dist


class Missing(NamedTuple):
    """The ranks that do not come: those whose process has ended, those that say nothing, and those that stopped, with the reason."""

    ended: Sequence[int] = ()
    silent: Sequence[int] = ()
    stopped: Mapping[int, str] = {}


class Meeting:
    """The store of a group, and where the process of each rank runs; ``call`` is the call that this rank is in, of those it counts."""

    def __init__(self, store: Any, places: Sequence[tuple[str, int]]) -> None:
        self.store, self.places, self.call = (
            store,
            tuple(places),
            0,
        )  # by rank: its machine, and the number of its process

    def leave(self, rank: int, reason: str) -> None:
        """Tell the others that a rank stops in this call, and why."""
        self.store.set(f"left/{rank}/{self.call}", reason)

    def left(self, rank: int) -> str | None:
        """Return why a rank stopped in this call; None where it did not say so."""
        key = f"left/{rank}/{self.call}"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def ended(self) -> list[int]:
        """Return the ranks of this machine whose process has ended without a word."""
        here = machine()
        gone = [rank for rank, (host, process) in enumerate(self.places) if host == here and not _runs(process)]
        return [rank for rank in gone if self.left(rank) is None]

    def missing(self, ranks: Sequence[int], own: int, reason: str) -> Missing:
        """Say that a rank stops, and return which of the others are not there, as soon as that is known."""
        self.leave(own, reason)
        end = monotonic() + GRACE
        while True:
            ended = self.ended()
            stopped = {rank: why for rank in ranks if rank != own and (why := self.left(rank)) is not None}
            silent = [rank for rank in ranks if rank != own and rank not in ended and rank not in stopped]
            if ended or not silent or monotonic() > end:
                return Missing(ended, silent, stopped)
            sleep(PAUSE)


def open_store(address: str, rank: int, size: int, timeout: float, token: str = "") -> Any:
    """Return the store at an address: ``file:///tmp/meeting``, ``tcp://host:29500``, or ``env://`` as torchrun gives it.

    Rank 0 keeps the store of a port. Where the host is this machine, it listens on the loopback interface only.
    """
    dist = torch_distributed()
    limit, parts = timedelta(seconds=timeout), urlparse(address)
    if parts.scheme == "file":
        store: Any = dist.FileStore(parts.path, size)
    elif parts.scheme in ("tcp", "env"):
        host, port = host_and_port(address)
        kept = parts.scheme == "env" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
        options: dict[str, Any] = {"timeout": limit, "wait_for_workers": False}
        keeps = rank == 0 and not kept
        if not keeps:
            _await_listener(host, port, timeout)
        try:
            if keeps:
                listener = socket.create_server((host, port)) if host in LOOPBACK else None
                if listener is not None:
                    options["master_listen_fd"] = listener.detach()
                store = dist.TCPStore(host, port, is_master=True, **options)
            else:
                store = dist.TCPStore(host, port, **options)
        except (OSError, RuntimeError) as error:
            message = f"ranks cannot meet at {host}:{port}: {str(error).splitlines()[0]}"
            raise ExecutionError(
                message, "give the address of rank 0, and a port that is free there", code="E396"
            ) from error
    else:
        hint = "write file:///tmp/meeting, tcp://host:29500 or env://"
        raise InputError(f"ranks cannot meet at {address!r}", hint, code="E396")
    store.set_timeout(limit)
    return dist.PrefixStore(f"tensorlogic {token}", store)


def _await_listener(host: str, port: int, timeout: float) -> None:
    """Wait until somebody listens at a port: the store itself asks twice, and takes more than twice as long."""
    end = monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), max(end - monotonic(), PAUSE)).close()
            return
        except OSError as error:
            if monotonic() >= end:
                message = f"rank 0 did not come within {timeout:g} s: {host}:{port}: {error.strerror or error}"
                hint = "start it with the same address, or allow more time: timeout="
                raise ExecutionError(message, hint, code="E374") from None
        sleep(PAUSE)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and the port of an address, which for ``env://`` are those that torchrun gives."""
    parts = urlparse(address)
    host = parts.hostname or os.environ.get("MASTER_ADDR", "127.0.0.1")
    return host, parts.port or int(os.environ.get("MASTER_PORT", "29500"))


def on_loopback(address: str) -> bool:
    """Tell whether ranks that meet at an address are all on this machine."""
    return urlparse(address).scheme == "file" or host_and_port(address)[0] in LOOPBACK


def choose_interface(address: str) -> None:
    """Let gloo listen where the other ranks of an address reach this one, unless the user has said where.

    By itself it listens at the address of this machine's name, which on many machines is that of the loopback interface.
    """
    name = LOOPBACK_INTERFACE if on_loopback(address) else interface_to(*host_and_port(address))
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def interface_to(host: str, port: int) -> str | None:
    """Return the network interface of this machine that leads to a host; None where it is not known, or leads no further than this machine."""
    if sys.platform != "linux":
        return None
    import fcntl

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # which sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # of an interface without an address
                answer = fcntl.ioctl(probe, GET_ADDRESS, name.encode().ljust(256, b"\0"))
                if answer[ADDRESS] == socket.inet_aton(own):
                    return None if name == LOOPBACK_INTERFACE else name
    return None


def agree(store: Any, rank: int, size: int, timeout: float, facts: Mapping[str, str] | None = None) -> Meeting:
    """Compare what the ranks must have in common, before any waits for something that does not come; raise where they differ."""
    mine = {**common_facts(size), **(facts or {})}
    store.set(f"facts/{rank}", json.dumps({"facts": mine, "place": [machine(), os.getpid()]}))
    end = monotonic() + timeout
    places = []
    for other in range(size) if rank == 0 else (0,):
        _wait(store, f"facts/{other}", end, other, timeout)
        theirs = json.loads(store.get(f"facts/{other}"))
        places.append(theirs["place"])
        problem = _difference(rank, mine, other, theirs["facts"])
        if problem:
            if rank == 0:
                store.set("verdict", problem)  # so that nobody goes on
                with suppress(RuntimeError):  # the store goes with this process: the others hear of it first
                    store.wait([f"seen/{each}" for each in range(1, size)], timedelta(seconds=HEARING))
            else:
                store.set(f"seen/{rank}", "")
            raise _unequal(problem)
    if rank == 0:
        store.set("verdict", json.dumps(places))
    _wait(store, "verdict", end, 0, timeout)
    verdict = store.get("verdict").decode()
    if not verdict.startswith("["):
        store.set(f"seen/{rank}", "")
        raise _unequal(verdict)
    return Meeting(store, tuple((host, process) for host, process in json.loads(verdict)))


def common_facts(size: int) -> dict[str, str]:
    """Return what all ranks of a group must have in common."""
    import torch

    from ... import __version__

    return {
        "world size": str(size),
        "tensorlogic": __version__,
        "torch": torch.__version__,
        "byte order": sys.byteorder,
    }


def _wait(store: Any, key: str, end: float, rank: int, timeout: float) -> None:
    try:
        store.wait([key], timedelta(seconds=max(end - monotonic(), 0.001)))
    except RuntimeError:
        message = f"rank {rank} did not come within {timeout:g} s"
        raise ExecutionError(
            message, "start it with the same address and token, or allow more time: timeout=", code="E374"
        ) from None


def _difference(a: int, first: Mapping[str, str], b: int, second: Mapping[str, str]) -> str:
    differing = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return "; ".join(
        f"{name} is {first.get(name)} on rank {a}, but {second.get(name)} on rank {b}" for name in differing
    )


def _unequal(problem: str) -> ExecutionError:
    return ExecutionError(
        f"the ranks do not fit together: {problem}", "start every rank with the same versions and sizes", code="E395"
    )


def machine() -> str:
    """Return what tells this machine, and its process numbers, from others; many have the same name."""
    with suppress(OSError):
        return f"{BOOT.read_text().strip()} {PROCESSES.readlink()}"
    return socket.gethostname()


def within(seconds: float, act: Callable[[], T]) -> T:
    """Return what a function returns; raise a TimeoutError where it takes longer. It then goes on, on a thread that ends with the process.

    It is for calls of torch.distributed whose own limit is longer than what they were given, or that have none.

    >>> within(5, lambda: 3)
    3
    """
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    start_thread(Thread(target=work, daemon=True))
    try:
        return done.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"not within {seconds:g} s") from None


def _runs(process: int) -> bool:
    """Tell whether a process of this machine still runs: one that ended and was not waited for does not."""
    status = Path(f"/proc/{process}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
