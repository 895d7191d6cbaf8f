"""A bounded folder of saved graphs: what was not used for longest goes first, whatever other processes do meanwhile.

Each entry is a folder named by a digest, and its time of change is when it was last used. An entry is renamed before it is
deleted, so that of several processes one takes it away and the others see that it is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from time import time
from typing import NamedTuple

from ..ir.whole_files import remove, set_aside

ENTRY = re.compile(r"[0-9a-f]{32}")
LEFTOVER = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]+\.(tmp|old)")  # of a process that stopped while it wrote or deleted
STALE = 3600.0  # seconds after which nobody is writing it any more


class Entry(NamedTuple):
    """One saved graph: when it was last used, and its bytes."""

    used_ns: int
    name: str
    nbytes: int


def entries(folder: Path) -> list[Entry]:
    """Return what a folder holds, the longest unused first; files of others are not looked at."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as there:
        for each in there:
            if ENTRY.fullmatch(each.name) and each.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # another process was first
                    with os.scandir(each.path) as files:
                        size = sum(f.stat(follow_symlinks=False).st_size for f in files)
                    found.append(Entry(each.stat(follow_symlinks=False).st_mtime_ns, each.name, size))
    return sorted(found)


def used(entry: Path) -> None:
    """Note that an entry is used now; one that is gone, or that may not be changed, stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(entry)


def trim(folder: Path, most_entries: int | None, most_bytes: int | None) -> list[str]:
    """Delete entries until a folder keeps within its bounds, those too large by themselves first; return their names."""
    with contextlib.suppress(FileNotFoundError):
        for each in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if LEFTOVER.fullmatch(each.name) and each.stat().st_mtime < time() - STALE:
                    remove(each)
    every = entries(folder)
    gone = [e for e in every if most_bytes is not None and e.nbytes > most_bytes]
    left = [e for e in every if e not in gone]
    total = sum(e.nbytes for e in left)
    for n, entry in enumerate(left):
        fits = most_bytes is None or total <= most_bytes
        if fits and (most_entries is None or len(left) - n <= most_entries):
            break
        gone.append(entry)
        total -= entry.nbytes
    for entry in gone:
        old = set_aside(folder / entry.name)
        if old is not None:
            remove(old)
    return [entry.name for entry in gone]
