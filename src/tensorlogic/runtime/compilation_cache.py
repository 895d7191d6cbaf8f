"""Compiled graphs by key: in memory, and in a bounded folder where other processes find them.

Each entry of the folder is a folder named by a digest, and its time of change is when it was last used; what was not used for longest goes first.
An entry is renamed before it is deleted, so that of several processes one takes it away and the others see that it is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from ..errors import CancelledError, FormatError, TensorLogicError, expect, expect_whole
from ..ir.graph import EinsumGraph
from ..ir.whole_files import as_path, remove, set_aside
from ..passes.pipeline import CompilationConfig
from ..store import EvictionPolicy, Store, StoreStats, of_one_process
from .compile import CompiledGraph, save_compiled
from .executor import Executor

if TYPE_CHECKING:
    pass

_KEY = ("a CompilationKey is expected", "write CompilationKey.from_graph(graph, config)")


class CacheWarning(UserWarning):
    """A saved graph could not be used and is compiled again.

    >>> issubclass(CacheWarning, UserWarning)
    True
    """


class CompilationKey(NamedTuple):
    """What makes two compilations the same: the graph, the config and the backend.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x")))
    >>> CompilationKey.from_graph(graph) == CompilationKey.from_graph(graph, CompilationConfig())
    True
    """

    graph: str
    config: CompilationConfig
    backend: str = "numpy"

    @classmethod
    def from_graph(
        cls, graph: EinsumGraph, config: CompilationConfig | None = None, backend: str = "numpy"
    ) -> CompilationKey:
        """Return the key of a graph under a config."""
        return cls(graph.digest, config or CompilationConfig(), backend)

    @property
    def digest(self) -> str:
        """The key as a short text, the same in every process."""
        text = f"{self.graph} {msgspec.json.encode(self.config).decode()} {self.backend}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class CompilationCache:
    """Keeps compiled graphs in memory and, with a folder, on disk for other processes.

    A file that is corrupt, foreign or of another version is ignored with a :class:`CacheWarning` and compiled again. The folder
    is kept to ``folder_bytes`` and ``folder_entries`` (None: no bound) by dropping what was not used for longest.

    >>> from tensorlogic import GraphBuilder, GraphCompiler
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x")))
    >>> cache = CompilationCache(100)
    >>> key = CompilationKey.from_graph(graph)
    >>> cache.get(key) is None
    True
    >>> cache.insert(key, GraphCompiler().compile(graph))
    >>> cache.get(key)
    <CompiledGraph <EinsumGraph (x) -> (y): 2 nodes>, 0 plans ready>
    >>> cache.stats().hit_rate
    0.5
    """

    def __init__(
        self,
        max_entries: int = 100,
        folder: str | Path | None = None,
        *,
        policy: EvictionPolicy = EvictionPolicy.LRU,
        executor: Executor | None = None,
        folder_bytes: int | None = 1 << 30,
        folder_entries: int | None = None,
    ) -> None:
        bounds = {"max_entries": max_entries, "folder_bytes": folder_bytes, "folder_entries": folder_entries}
        for name, bound in bounds.items():
            if bound is not None or name == "max_entries":
                expect_whole(name, bound, 0, 'write CompilationCache(100, "folder", folder_bytes=1 << 30)')
        self.folder_bytes, self.folder_entries = folder_bytes, folder_entries
        self.folder = None if folder is None else as_path(folder, "a folder")
        self._entries: Store[CompilationKey, CompiledGraph] = Store(max_entries, policy)
        self._executor = executor

    def __reduce__(self) -> NoReturn:
        raise of_one_process(
            "a compilation cache",
            "make one in each process: with a folder, CompilationCache(100, folder), they share what is in it",
        )

    def get(self, key: CompilationKey) -> CompiledGraph | None:
        """Return what was compiled under a key, from memory or disk, or None."""
        expect(key, CompilationKey, *_KEY)
        found = self._entries.get(key)
        if self.folder is None:
            return found
        place = self.folder / key.digest
        used(place)  # one that memory holds too is in use
        if found is not None or not place.exists():
            return found
        try:
            loaded = CompiledGraph.load(place, self._executor or Executor(key.backend))
            if loaded.source_digest != key.graph or loaded.config != key.config:
                raise FormatError(f"{str(place)!r} holds another graph, or one compiled otherwise", code="E261")
        except CancelledError:
            raise
        except (TensorLogicError, OSError) as error:
            if not place.exists():
                return None  # another process needed the room
            why, where = str(error), str(place)
            if isinstance(error, TensorLogicError):
                why, where = error.diagnostic.message, where if error.guessed else str(error.diagnostic.location)
            if str(place) not in why:
                why = f"{why}, in {where}"
            warnings.warn(f"a saved graph cannot be used and is compiled again: {why}", CacheWarning, stacklevel=2)
            return None  # what is there goes when the new one is kept
        self._entries.put(key, loaded)
        return loaded

    def insert(self, key: CompilationKey, compiled: CompiledGraph) -> None:
        """Keep a compiled graph, on disk too where there is a folder."""
        expect(compiled, CompiledGraph, "a CompiledGraph is expected", "executor.compile_graph(graph) makes one")
        expect(key, CompilationKey, *_KEY)
        self._entries.put(key, compiled)
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                save_compiled(compiled, self.folder / key.digest)
                size = trim(self.folder, self.folder_entries, self.folder_bytes).get(key.digest)
                too_large = size is not None and self.folder_bytes is not None and size > self.folder_bytes
                if too_large or self.folder_entries == 0:  # else newer ones of other processes may need its place
                    raise FormatError("there is no room for the graph within the bounds of the folder", code="E221")
            except (TensorLogicError, OSError) as error:
                why = error.diagnostic.message if isinstance(error, TensorLogicError) else error
                warnings.warn(f"nothing is kept in {str(self.folder)!r}: {why}", CacheWarning, stacklevel=2)

    def get_or_compile(self, key: CompilationKey, compile: Callable[[], CompiledGraph]) -> CompiledGraph:
        """Return what is kept under a key, or compile and keep it."""
        found = self.get(key)
        if found is None:
            found = compile()
            self.insert(key, found)
        return found

    def stats(self) -> StoreStats:
        """Return the look-ups so far; what comes from disk counts as missed in memory."""
        return self._entries.stats()


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


def trim(folder: Path, most_entries: int | None, most_bytes: int | None) -> dict[str, int]:
    """Delete entries until a folder keeps within its bounds, those too large by themselves first; return their names and bytes."""
    with contextlib.suppress(FileNotFoundError):
        for each in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if LEFTOVER.fullmatch(each.name) and each.stat().st_mtime < time() - STALE:
                    remove(each)
    every = entries(folder)
    dropped = [e for e in every if most_bytes is not None and e.nbytes > most_bytes]
    left = [e for e in every if e not in dropped]
    total = sum(e.nbytes for e in left)
    for n, entry in enumerate(left):
        fits = most_bytes is None or total <= most_bytes
        if fits and (most_entries is None or len(left) - n <= most_entries):
            break
        dropped.append(entry)
        total -= entry.nbytes
    for entry in dropped:
        old = set_aside(folder / entry.name)
        if old is not None:
            remove(old)
    return {entry.name: entry.nbytes for entry in dropped}
