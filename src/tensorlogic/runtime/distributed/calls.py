"""A call of a script that every rank runs: the ranks compare what they were given, and one that fails before that tells the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ExecutionError, InputError, TensorLogicError
from .one_machine import CATCH, ERROR_LABEL, RUN_LABEL, ranks_differ
from .rank import of_rank

if TYPE_CHECKING:
    from .config import DistributedConfig
    from .job import Job
    from .torch_ways import TorchCommunication

LONGEST = 400  # bytes of what ranks on several machines compare
OF_OTHERS = ("E373", "E374", "E375", "E383")  # faults that another rank has, or sees too


@contextmanager
def one_call(world: TorchCommunication | None, number: int, config: DistributedConfig) -> Iterator[None]:
    """Do what a rank does in one call: where it fails before the ranks met, all of them fail in this call, and go on together with the next.

    ``number`` counts the calls of this rank. It is part of what the ranks compare, so that two of them never take different calls for the same.
    """
    if world is None:
        yield
        return
    world.call, world.told = number, False
    try:
        if len(config.devices) != world.size:
            message = f"the config is for {len(config.devices)} ranks, but {world.size} processes were started"
            hint = f"start {len(config.devices)} processes, or give {world.size} devices"
            raise InputError(message, hint, code="E376")
        yield
    except Exception as error:
        reason = error.diagnostic.message if isinstance(error, TensorLogicError) else str(error)
        world.leave(reason)
        known = isinstance(error, ExecutionError) and error.diagnostic.code in OF_OTHERS
        if not world.told:
            with suppress(TensorLogicError):  # of others that fail as well: this rank has an error to raise
                if not known and not world.tell_neighbours(ERROR_LABEL + reason):
                    compare_lines(world, ERROR_LABEL + reason)
            world.abandon()
        raise of_rank(error, world.rank) from error.__cause__


@contextmanager
def same_job(world: TorchCommunication, job: Job) -> Iterator[None]:
    """Run something on ranks that must have been given the same graph, inputs and config: where they were not, all of them raise.

    The first run of a job begins when all ranks are known to have it. Later ones do not wait for that on one machine, where all ranks meet in one
    group: what each was given is compared as soon as it comes, at the latest where a rank first waits for another.
    """
    what = label(world, job.summary)
    world.told = True
    try:
        if not world.tell_neighbours(what):
            compare_lines(world, what)
            yield
        elif job.agreed and job.mesh.size in (job.mesh.data, job.mesh.model):
            yield
            world.hear_neighbours(what)
        else:
            world.hear_neighbours(what)
            job.agreed = True
            yield
    except BaseException:
        world.abandon()
        raise


def label(world: TorchCommunication, what: str) -> str:
    """Return what a rank does, in words, with the number of its call."""
    return f"{RUN_LABEL}call {world.call}: {what}"


def compare_lines(world: TorchCommunication, what: str) -> None:
    """Wait for ranks that are not all on one machine, and raise where one of them does something else."""
    line = np.frombuffer(what.encode()[:LONGEST].ljust(LONGEST), np.uint8)
    lines = world.all_gather(line.reshape(1, -1), 0, world.size)
    for rank, other in enumerate(lines):
        if not np.array_equal(other, line):
            raise ranks_differ(world.rank, what.encode(), rank, other.tobytes().rstrip(), CATCH)
