"""Settings and results of runs with recovery."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from ...backends.base import BACKENDS
from ...diagnostics import value_text
from ...errors import BackendError, InputError, expect, expect_whole, nearest
from ..context import seconds
from ..values import Outputs
from .retry import RetryPolicy


class RecoveryStrategy(Enum):
    """What is done when a step fails.

    >>> RecoveryStrategy.FAIL_FAST.value
    'fail fast'
    """

    RETRY_WITH_BACKOFF = "retry with backoff"
    CHECKPOINT = "checkpoint"
    FALLBACK_EXECUTION = "fallback execution"
    GRACEFUL_DEGRADATION = "graceful degradation"
    FAIL_FAST = "fail fast"


class RecoveryConfig(msgspec.Struct, frozen=True):
    """What a run does when something fails: retries, fallbacks, checkpoints, and outputs that may be left out.

    >>> config = RecoveryConfig().with_strategy(RecoveryStrategy.GRACEFUL_DEGRADATION).with_optional("plot", "notes")
    >>> config.optional, config.retry_policy
    (('plot', 'notes'), None)
    """

    strategy: RecoveryStrategy = RecoveryStrategy.RETRY_WITH_BACKOFF
    retry_policy: RetryPolicy | None = None  # None: RetryPolicy() for RETRY_WITH_BACKOFF, no retries for others
    # keep what is left of the run, whatever the strategy; CHECKPOINT and a folder always do
    checkpointing: bool = False
    # where checkpoints are written during the run, and the newest is looked for at its start
    folder: str | Path | None = None
    keep: int = 3  # checkpoints in the folder
    checkpoint_steps: int | None = None  # steps after which one is written
    checkpoint_seconds: float | None = 30.0  # or seconds
    # outputs by name, or nodes whose outputs may be left out: GRACEFUL_DEGRADATION
    optional: tuple[str | int, ...] = ()
    # in order, after the tiers of the executor's own: FALLBACK_EXECUTION
    fallback_backends: tuple[str, ...] = ("reference",)

    def __post_init__(self) -> None:
        strategies = [f"use RecoveryStrategy.{each.name}" for each in RecoveryStrategy]
        expect(self.strategy, RecoveryStrategy, "a recovery strategy is expected", *strategies)
        if self.retry_policy is not None:
            expect(
                self.retry_policy, RetryPolicy, "a retry policy is expected", "write RetryPolicy.exponential(3, 100)"
            )
        expect(self.checkpointing, bool, "checkpointing must be True or False")
        if self.folder is not None:
            expect(self.folder, (str, Path), "a folder is given by its path", 'write folder="run"')
            msgspec.structs.force_setattr(self, "folder", str(self.folder))
        expect_whole("keep", self.keep, 1)
        if self.checkpoint_steps is not None:
            expect_whole("checkpoint_steps", self.checkpoint_steps, 1)
        if self.checkpoint_seconds is not None:
            seconds(self.checkpoint_seconds, "checkpoint_seconds")
        for name in ("optional", "fallback_backends"):
            if isinstance(getattr(self, name), list):
                msgspec.structs.force_setattr(self, name, tuple(getattr(self, name)))
            expect(
                getattr(self, name),
                tuple,
                f"{name} must be a list or a tuple",
                f'write {name}=("reference",)' if name == "fallback_backends" else 'write optional=("y",)',
            )
        for each in self.optional:
            if not isinstance(each, str | int) or isinstance(each, bool):
                hint = "name an output, or give the number of a node"
                raise InputError(f"{value_text(each)} cannot be optional", hint, code="E590")
        for each in self.fallback_backends:
            if not isinstance(each, str) or each not in BACKENDS:
                raise BackendError(
                    f"there is no backend {value_text(each)} to fall back on", *nearest(each, BACKENDS), code="E401"
                )

    @property
    def checkpoints(self) -> bool:
        """Whether the run can be saved."""
        return self.checkpointing or self.folder is not None or self.strategy is RecoveryStrategy.CHECKPOINT

    def with_strategy(self, strategy: RecoveryStrategy) -> RecoveryConfig:
        """Return the config with another strategy."""
        return msgspec.structs.replace(self, strategy=strategy)

    def with_retry_policy(self, policy: RetryPolicy | None) -> RecoveryConfig:
        """Return the config with another policy of retries."""
        return msgspec.structs.replace(self, retry_policy=policy)

    def with_checkpointing(self, enabled: bool = True) -> RecoveryConfig:
        """Return the config of a run that can, or cannot, be saved; what cannot needs no folder."""
        wanted = enabled or self.strategy is RecoveryStrategy.CHECKPOINT
        return msgspec.structs.replace(self, checkpointing=enabled, folder=self.folder if wanted else None)

    def with_folder(self, folder: str | Path, keep: int = 3) -> RecoveryConfig:
        """Return the config of a run that writes checkpoints into a folder and keeps the newest ``keep``."""
        expect(folder, (str, Path), "a folder is given by its path", 'write with_folder("run")')
        return msgspec.structs.replace(self, folder=str(folder), keep=keep)

    def with_optional(self, *outputs: str | int) -> RecoveryConfig:
        """Return the config in which some outputs, or those computed from some nodes, may be left out."""
        return msgspec.structs.replace(self, optional=outputs)

    def with_fallback_backends(self, *backends: str) -> RecoveryConfig:
        """Return the config with other backends to fall back on."""
        return msgspec.structs.replace(self, fallback_backends=backends)


class RecoveryStats(NamedTuple):
    """Counts of the retries, fallbacks and checkpoints of a run.

    >>> print(RecoveryStats(retries=2, waited_ms=300.0))
    2 retries after waiting 300 ms, 0 fallbacks, 0 checkpoints
    """

    retries: int = 0
    fallbacks: tuple[str, ...] = ()  # from what to what, and why
    checkpoints: int = 0  # that were written
    resumed_from: int | None = None  # the number of the checkpoint that the run began with
    waited_ms: float = 0.0  # before retries

    def __str__(self) -> str:
        resumed = "" if self.resumed_from is None else f", resumed from checkpoint {self.resumed_from}"
        return (
            f"{self.retries} retries after waiting {self.waited_ms:.0f} ms, {len(self.fallbacks)} fallbacks, "
            f"{self.checkpoints} checkpoints{resumed}"
        )


class FailedNode(NamedTuple):
    """A node that failed: its name in the plan, what it is, the outputs that are missing for it, and why.

    >>> FailedNode("%3", "exp", ("y",), OSError("no")).outputs
    ('y',)
    """

    name: str
    operation: str
    outputs: tuple[str, ...]
    error: Exception


class RecoveryResult:
    """How a run with recovery ended: with all outputs, with some, or with an error.

    >>> match RecoveryResult.Failure(OSError("no"), RecoveryStats(retries=3)):
    ...     case RecoveryResult.Success(result, stats):
    ...         print(result)
    ...     case RecoveryResult.Failure(error, stats):
    ...         print(error, stats.retries)
    no 3
    """

    __slots__ = ()
    Success: ClassVar[type[Success]]
    PartialSuccess: ClassVar[type[PartialSuccess]]
    Failure: ClassVar[type[Failure]]
    stats: RecoveryStats


@dataclass(frozen=True, slots=True)
class Success(RecoveryResult):
    """All outputs are there."""

    result: Outputs
    stats: RecoveryStats


@dataclass(frozen=True, slots=True)
class PartialSuccess(RecoveryResult):
    """Some outputs are there; those that are not were optional, and ``failed_nodes`` says why they are missing."""

    result: Outputs
    failed_nodes: tuple[FailedNode, ...]
    stats: RecoveryStats


@dataclass(frozen=True, slots=True)
class Failure(RecoveryResult):
    """The run failed."""

    error: Exception
    stats: RecoveryStats


RecoveryResult.Success, RecoveryResult.PartialSuccess, RecoveryResult.Failure = Success, PartialSuccess, Failure
