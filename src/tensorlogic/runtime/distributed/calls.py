"""A call of a script that every rank runs: the ranks compare what they were given, and one that fails before that tells the others."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ExecutionError, InputError, TensorLogicError
from .labels import AND, CATCH, END_LABEL, END_OF_VALUES, ERROR_LABEL, RUN_LABEL, ranks_differ
from .one_machine import LONGEST_NAME
from .rank import of_rank

if TYPE_CHECKING:
    from .config import DistributedConfig
    from .job import Job
    from .torch_ways import TorchCommunication

LONGEST_LIST = 300  # characters for a checksum of each input; where there are more, one of all
PIECES, PIECE = 64, 64  # of a large input are compared so many pieces, spread evenly, of so many bytes each
OF_OTHERS = ("E373", "E374", "E375", "E383")  # faults that another rank has, or sees too


@contextmanager
def one_call(world: TorchCommunication | None, number: int, config: DistributedConfig) -> Iterator[None]:
    """Do what a rank does in one call: where one of them fails, all fail in this call, and go on together with the next.

    ``number`` counts the calls of this rank. It is part of what the ranks compare, so that two of them never take different calls for the same.
    A call is over when all ranks have come to its end: what fails on one of them after the last value was exchanged fails on all.
    """
    if world is None:
        yield
        return
    world.begin_call(number)
    try:
        if len(config.devices) != world.size:
            message = f"the config is for {len(config.devices)} ranks, but {world.size} processes were started"
            hint = f"start {len(config.devices)} processes, or give {world.size} devices"
            raise InputError(message, hint, code="E376")
        yield
        end = f"{END_LABEL}call {number}"
        if world.tell_neighbours(end):
            world.hear_neighbours(end)
        else:
            compare_lines(world, end)
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
def same_job(world: TorchCommunication, job: Job, values: Mapping[str, Any]) -> Iterator[None]:
    """Run something on ranks that must have been given the same graph, inputs and config: where they were not, all of them raise.

    The first run of a job begins when all ranks are known to have it. Later ones do not wait for that on one machine, where all ranks meet in one
    group: what each was given is compared as soon as it comes, at the latest where a rank first waits for another. ``values`` are the inputs that
    every rank gives whole.
    """
    what = label(world, checksums(values) + job.summary)
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


def checksums(values: Mapping[str, Any]) -> str:
    """Return a short checksum of each of the values, as the beginning of what ranks compare; of many values, one of all.

    >>> checksums({"x": np.ones(3), "w": np.zeros(3)})
    'x 78ac6fa1, w a3c1ca20; '
    """
    if not values:
        return ""
    found = AND.join([f"{name} {checksum(value):08x}" for name, value in values.items()])
    if len(found) > LONGEST_LIST:
        found = f"{len(values)} inputs {zlib.crc32(found.encode()):08x}"
    return found + END_OF_VALUES


def checksum(value: Any) -> int:
    """Return a checksum of an array: of all of it up to 4 KiB, of pieces from its beginning to its end where it is larger.

    It does not depend on how the array lies in memory.
    """
    x = np.asarray(value)
    if x.nbytes <= PIECES * PIECE:
        return zlib.crc32(x.tobytes())
    run = max(1, PIECE // x.itemsize)  # elements of a piece
    step = (x.size - run) // (PIECES - 1)
    if x.flags.c_contiguous:
        whole, length = x.reshape(-1).view(np.uint8), run * x.itemsize
        pieces = np.ndarray((PIECES, length), np.uint8, whole, 0, (step * x.itemsize, 1))
        end = whole[-length:]
    else:
        pieces = x.flat[(step * np.arange(PIECES)[:, None] + np.arange(run)).ravel()]
        end = x.flat[-run:]
    return zlib.crc32(end.tobytes(), zlib.crc32(pieces.tobytes()))


def compare_lines(world: TorchCommunication, what: str) -> None:
    """Wait for ranks that are not all on one machine, and raise where one of them does something else.

    Ranks that are at the end of a call which failed on this one raise, and come again.
    """
    line = np.frombuffer(what.encode()[:LONGEST_NAME].ljust(LONGEST_NAME), np.uint8)
    end = END_LABEL.encode()
    while True:
        lines = world.all_gather(line.reshape(1, -1), 0, world.size)
        if what.startswith(END_LABEL) or not any(other.tobytes().startswith(end) for other in lines):
            break
    for rank, other in enumerate(lines):
        if not np.array_equal(other, line):
            raise ranks_differ(world.rank, what.encode(), rank, other.tobytes().rstrip(), CATCH)
