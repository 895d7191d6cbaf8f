"""How processes come together as ranks: the place where they meet, what they must have in common, and who is missing later.

The place is a store of torch.distributed: a file for processes of one machine, a port for several machines. Its keys begin with the random
token of the group, so that a process that does not know the token meets nobody.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import urlparse

from ...errors import BackendError, ExecutionError, InputError

PAUSE = 0.02  # seconds between two looks at the store
GRACE = 0.5  # seconds in which ranks that fail together are heard
LOOPBACK = ("localhost", "127.0.0.1", "::1")


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


class Meeting(NamedTuple):
    """The store of a group, and where the process of each rank runs."""

    store: Any
    places: tuple[tuple[str, int], ...]  # by rank: the name of the machine, and the number of the process

    def leave(self, rank: int, reason: str) -> None:
        """Tell the others that a rank stops, and why."""
        self.store.set(f"left/{rank}", reason)

    def left(self, rank: int) -> str | None:
        """Return why a rank stopped; None where it did not say so."""
        return self.store.get(f"left/{rank}").decode() if self.store.check([f"left/{rank}"]) else None

    def ended(self) -> list[int]:
        """Return the ranks of this machine whose process has ended without a word."""
        here = socket.gethostname()
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
        host = parts.hostname or os.environ.get("MASTER_ADDR", "127.0.0.1")
        port = parts.port or int(os.environ.get("MASTER_PORT", "29500"))
        kept = parts.scheme == "env" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
        options: dict[str, Any] = {"timeout": limit, "wait_for_workers": False}
        if rank == 0 and not kept:
            listener = socket.create_server((host, port)) if host in LOOPBACK else None
            if listener is not None:
                options["master_listen_fd"] = listener.detach()
            store = dist.TCPStore(host, port, is_master=True, **options)
        else:
            store = dist.TCPStore(host, port, **options)
    else:
        hint = "write file:///tmp/meeting, tcp://host:29500 or env://"
        raise InputError(f"ranks cannot meet at {address!r}", hint, code="E396")
    store.set_timeout(limit)
    return dist.PrefixStore(f"tensorlogic {token}", store)


def on_loopback(address: str) -> bool:
    """Tell whether ranks that meet at an address are all on this machine."""
    parts = urlparse(address)
    host = os.environ.get("MASTER_ADDR", "127.0.0.1") if parts.scheme == "env" else parts.hostname
    return parts.scheme == "file" or host in LOOPBACK


def agree(store: Any, rank: int, size: int, timeout: float, facts: Mapping[str, str] | None = None) -> Meeting:
    """Compare what the ranks must have in common, before any waits for something that does not come; raise where they differ."""
    mine = {**common_facts(size), **(facts or {})}
    store.set(f"facts/{rank}", json.dumps({"facts": mine, "place": [socket.gethostname(), os.getpid()]}))
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
            raise _unequal(problem)
    if rank == 0:
        store.set("verdict", json.dumps(places))
    _wait(store, "verdict", end, 0, timeout)
    verdict = store.get("verdict").decode()
    if not verdict.startswith("["):
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
