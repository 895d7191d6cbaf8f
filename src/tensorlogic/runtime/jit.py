"""The JIT: graphs run at once; those that run often are compiled in the background, and the fastest plan takes over."""

from __future__ import annotations

import atexit
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import msgspec

from ..backends.native.support import mind_forks
from ..backends.threads import with_interrupts
from ..errors import expect_whole
from ..ir.graph import EinsumGraph
from ..ir.types import TensorType
from ..passes.specialize import checked_sizes
from ..store import EvictionPolicy, Lock, Store, StoreStats, reset_in_child
from .call import run_program
from .compile import executor_like
from .context import in_contexts
from .program import Program

if TYPE_CHECKING:
    from .executor import Executor
    from .values import Inputs, Outputs, Sizes


class JitConfig(msgspec.Struct, frozen=True):
    """Settings of the JIT: when to compile, how many plans to keep, and whether answers must stay bit for bit the same.

    >>> JitConfig().with_hot_path_threshold(10).with_max_cache_size(100)
    JitConfig(hot_path_threshold=10, max_cache_size=100, exact=True)
    """

    hot_path_threshold: int = 10  # calls with the same shapes and dtypes after which they count as hot
    max_cache_size: int = 100  # compiled signatures that are kept; the one that was not used longest goes first

    exact: bool = True  # False: sums may be reordered once compiled, so that answers change in the last places

    def __post_init__(self) -> None:
        expect_whole("hot_path_threshold", self.hot_path_threshold, 1)
        expect_whole("max_cache_size", self.max_cache_size, 0)

    def with_hot_path_threshold(self, calls: int) -> JitConfig:
        """Return the config with another number of calls."""
        return msgspec.structs.replace(self, hot_path_threshold=calls)

    def with_max_cache_size(self, entries: int) -> JitConfig:
        """Return the config with another bound."""
        return msgspec.structs.replace(self, max_cache_size=entries)


class JitStats(NamedTuple):
    """What the JIT did so far.

    >>> print(JitStats(calls=30, hot_paths_detected=1, compiled=1, native_kept=1, cache=StoreStats(20, 10, 0, 1, 1)))
    30 calls, 1 hot path: 1 compiled, 1 native version kept, 0 discarded, 0 failed; found ready in 67% of calls
    """

    calls: int = 0
    hot_paths_detected: int = 0
    compiled: int = 0
    native_kept: int = 0  # measured to be faster than the slot loop
    discarded: int = 0  # measured to be no faster, or without anything to compile
    failures: tuple[str, ...] = ()
    cache: StoreStats = StoreStats(0, 0, 0, 0, 0)

    @property
    def cache_hit_rate(self) -> float:
        """The share of calls that found a compiled form."""
        return self.cache.hit_rate

    def __str__(self) -> str:
        hot = "1 hot path" if self.hot_paths_detected == 1 else f"{self.hot_paths_detected} hot paths"
        versions = "1 native version" if self.native_kept == 1 else f"{self.native_kept} native versions"
        return (
            f"{self.calls} calls, {hot}: {self.compiled} compiled, {versions} kept, {self.discarded} discarded, "
            f"{len(self.failures)} failed; found ready in {100 * self.cache_hit_rate:.0f}% of calls"
        )


class HotPathDetector:
    """Counts calls, and says when a graph has run often enough to be worth compiling.

    >>> detector = HotPathDetector(threshold=2)
    >>> [detector.record("a"), detector.record("b"), detector.record("a"), detector.record("a")]
    [False, False, True, False]
    >>> detector.hot_paths()
    ['a']
    """

    def __init__(self, threshold: int = 10, *, remembered: int = 10_000) -> None:
        self.threshold = threshold
        self._counts: Store[Hashable, int] = Store(remembered)
        self._hot: Store[Hashable, None] = Store(remembered, EvictionPolicy.FIFO)
        self._lock = Lock()

    def record(self, path: Hashable, *, at_once: bool = False, again: bool = False) -> bool:
        """Count one run and tell whether it is the one that made the path hot; ``at_once`` waits for no others.

        What is hot already is not counted, unless ``again`` says that nothing is left of what was made of it.
        """
        with self._lock:
            if path in self._hot and not again:
                return False
            count = (self._counts.get(path) or 0) + 1
            hot = count >= self.threshold or at_once
            self._counts.put(path, 0 if hot else count)
            if hot:
                self._hot.put(path, None)
            return hot

    def is_hot(self, path: Hashable) -> bool:
        """Tell whether a path became hot."""
        return path in self._hot

    def hot_paths(self) -> list[Any]:
        """Return what became hot, in order."""
        return list(self._hot)

    def forget(self) -> None:
        """Forget all counts."""
        self._counts.clear()
        self._hot.clear()


class JitCompiler:
    """Runs compilations one after another on a thread that is there as long as there are some.

    An interrupt may come at any moment of a call; then a job may have to wait for the next call, and nothing else.

    >>> compiler = JitCompiler()
    >>> compiler.submit(lambda: None)
    >>> compiler.wait()
    >>> compiler.done, compiler.failures
    (1, ())
    """

    def __init__(self) -> None:
        self.reset_lock()
        reset_in_child(self)
        if not _ending:
            _compilers.add(self)
        self.done = 0
        self.failures: tuple[str, ...] = ()

    def reset_lock(self) -> None:
        """Forget the thread and its jobs: after a fork they are not there."""
        self._jobs: deque[Callable[[], object]] = deque()
        self._worker: object = None  # a token of the thread that does them
        self._lock = Lock()
        self._idle = threading.Condition(self._lock)

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job soon; what it raises is kept in ``failures``."""
        with self._lock:
            if not _ending:
                self._jobs.append(job)
                self._begin()

    def _begin(self) -> None:
        """Start a thread where there are jobs and nobody does them."""
        # an interrupted Thread.start may leave a lock taken, and a process waits at its end for threads of a ThreadPoolExecutor
        if self._jobs and self._worker is None:
            mind_forks()  # the thread imports what it needs
            own = object()
            try:
                start_new_thread(self._work, (own,))
            except RuntimeError:  # the process is ending, or has too many threads
                self._jobs.clear()
            else:
                self._worker = own

    def _work(self, own: object) -> None:
        try:
            while (job := self._next(own)) is not None:
                try:
                    job()
                    self.done += 1
                except BaseException as error:  # whatever it is, the thread goes on
                    self.failures = (*self.failures[-99:], f"{type(error).__name__}: {error}")
                del job
        finally:
            with self._lock:
                if self._worker is own:
                    self._worker = None
                self._idle.notify_all()

    def _next(self, own: object) -> Callable[[], object] | None:
        """Return the job that a thread does next; None where there is none, or where another thread does them."""
        with self._lock:
            if self._worker is None:  # an interrupt came as the thread was started
                self._worker = own
            if self._worker is own and self._jobs:
                return self._jobs.popleft()
            if self._worker is own:
                self._worker = None
            return None

    def wait(self) -> None:
        """Return when everything submitted so far is done; not to be called by a job."""
        with_interrupts(self._wait)

    def _wait(self) -> None:
        with self._lock:
            while self._jobs or self._worker is not None:
                self._begin()
                if self._worker is not None:
                    self._idle.wait()

    def end(self) -> None:
        """Begin no other job, and wait for the one that runs: a thread that is stopped while it compiles may crash the process."""
        with self._lock:
            self._jobs = deque(maxlen=0)  # takes no more
        self.wait()


_compilers: WeakSet[JitCompiler] = WeakSet()
_ending = False  # whether the process is, so that nothing more is compiled


@atexit.register
def _end_all() -> None:
    global _ending  # noqa: PLW0603 - the process's, so its owner is the module
    _ending = True
    for compiler in list(_compilers):
        compiler.end()


class JitCache(Store[Hashable, Any]):
    """Compiled plans by signature; when it is full, the least recently used one is dropped.

    >>> cache = JitCache(2)
    >>> cache.insert("a", 1)
    >>> cache.get("a"), cache.get("b"), cache.stats().hit_rate
    (1, None, 0.5)
    """

    def __init__(self, max_entries: int = 100) -> None:
        super().__init__(max_entries)

    insert = Store.put


class Jit:
    """The state of an executor's JIT."""

    def __init__(self, executor: Executor, config: JitConfig) -> None:
        self.config, self.executor = config, executor
        policy = "adaptive" if config.exact else "fast"
        cold = executor_like(executor, executor.config, policy="exact")
        self.cold = executor if executor.programs.policy == "exact" else cold
        self.hot = executor_like(executor, executor.config, policy=policy, plans=0).programs
        self.detector = HotPathDetector(config.hot_path_threshold)
        self.compiler = JitCompiler()
        self.cache = JitCache(config.max_cache_size)
        self._seen: set[int] = set()  # graphs, by hash, of which some signature was compiled
        self.reset_lock()
        reset_in_child(self)

    def reset_lock(self) -> None:
        """Wait for no compilation any more: after a fork there is none."""
        self._waiting: set[Hashable] = set()  # signatures that are being compiled, or cannot be
        self._lock = Lock()

    def execute(
        self, graph: EinsumGraph, inputs: Inputs | None, sizes: Sizes = None, out: Mapping[str, Any] | None = None
    ) -> Outputs:
        """Run a graph: compiled where that is ready, else as it is while it is counted."""
        names, values = self.executor.arrays(graph, {} if inputs is None else inputs)
        if sizes is not None:  # a copy, which compiling reads later
            sizes = dict(checked_sizes(graph, sizes) or {})
        given = sizes and tuple(sorted(sizes.items()))
        signature = (graph, tuple([(v.shape, v.dtype) for v in values]), given or None)
        program = self.cache.get(signature)
        if program is not None:
            context, hooks = self.executor.context, self.executor.hooks()
            return in_contexts(context, partial(run_program, context, program, values, out, hooks))
        able = self.hot.facts is not None and self.config.max_cache_size
        try:
            if able and self._became_hot(signature, hash(graph) in self._seen):
                types = {n: TensorType.of(v) for n, v in zip(names, values, strict=True)}
                own = [v.copy() for v in values]  # to time plans on: the caller's may change meanwhile
                self.compiler.submit(partial(self._compile, graph, types, sizes, own, signature))
        except BaseException:  # an interrupt: it is counted anew
            self._waiting.discard(signature)
            raise
        return self.cold.execute(graph, dict(zip(names, values, strict=True)), sizes=sizes, out=out)

    def _became_hot(self, signature: Hashable, at_once: bool) -> bool:
        """Count a call that found nothing compiled; what was compiled and had to go is counted anew."""
        with self._lock:
            if signature in self._waiting:
                return False
            again = self.detector.is_hot(signature)
            if not self.detector.record(signature, at_once=at_once and not again, again=again):
                return False
            self._waiting.add(signature)
            return True

    def _compile(
        self,
        graph: EinsumGraph,
        types: Mapping[str, TensorType],
        sizes: Sizes,
        values: list[Any],
        signature: Hashable,
    ) -> None:
        program = self.hot.make(graph, types, sizes, values, "copies of the inputs")
        self._seen.add(hash(graph))  # kernels serve every size, so the next signature of it is ready soon
        self.cache.insert(signature, program)
        self._waiting.discard(signature)

    def stats(self) -> JitStats:
        """Return what happened so far."""
        programs = [p for p in self.cache.values() if isinstance(p, Program)]
        native = sum(any(step.computed_by != "numpy" for step in p.plan.steps) for p in programs)
        looked = self.cache.stats()  # once for each call
        return JitStats(
            looked.hits + looked.misses,
            len(self.detector.hot_paths()),
            self.compiler.done,
            native,
            len(programs) - native,
            self.compiler.failures,
            looked,
        )

    def clear(self) -> None:
        """Forget what was compiled and counted."""
        self.compiler.wait()
        self.cache.clear()
        self.detector.forget()
        self._waiting.clear()
        self._seen.clear()
        self.compiler.done, self.compiler.failures = 0, ()
