"""Compiled graphs by key: in memory, and in a folder where other processes find them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import CancelledError, FormatError, TensorLogicError, expect, expect_whole
from ..ir.graph import EinsumGraph
from ..passes.pipeline import CompilationConfig
from ..store import EvictionPolicy, Store, StoreStats
from .cache_folder import trim, used
from .executor import Executor

if TYPE_CHECKING:
    pass

from .compile import CompiledGraph, save_compiled

_KEY = ("a CompilationKey is expected", "write CompilationKey.from_graph(graph, config)")


class CacheWarning(UserWarning):
    """A saved graph could not be used and is made anew.

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

    A file that is corrupt, foreign or of another version is ignored with a :class:`CacheWarning` and made anew. The folder
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
            if bound is not None:
                expect_whole(name, bound, 0, 'write CompilationCache(100, "folder", folder_bytes=1 << 30)')
        self.folder_bytes, self.folder_entries = folder_bytes, folder_entries
        self.folder = None if folder is None else Path(folder)
        self._entries: Store[CompilationKey, CompiledGraph] = Store(max_entries, policy)
        self._executor = executor

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
            why = error.diagnostic.message if isinstance(error, TensorLogicError) else error
            warnings.warn(f"a saved graph cannot be used and is made anew: {why}", CacheWarning, stacklevel=2)
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
                if key.digest in trim(self.folder, self.folder_entries, self.folder_bytes):
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
