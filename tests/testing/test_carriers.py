"""Carriers against the answers of one process: threads, and processes of torch.distributed; those of Ray are in test_distributed_ray.py."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.runtime.distributed.local import LocalCommunication, local_group
from tensorlogic.testing import ConformanceReport, carrier_cases, check_carrier


def on_threads(size: int, full: bool = False) -> list[ConformanceReport]:
    def check(way: LocalCommunication) -> ConformanceReport:
        try:
            return check_carrier(way, full=full)
        except BaseException as error:
            way.fail(str(error))
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(check, local_group(size, 60)))


WAYS = (
    "sockets",
    "memory",
    "gloo",
)  # that processes take: small arrays and large ones of one machine, and between machines
SCRIPT = """
import sys
from tensorlogic.runtime.distributed import one_machine
from tensorlogic.runtime.distributed.torch_ways import world_from_environment
from tensorlogic.testing import check_carrier
if sys.argv[2] == "memory":
    one_machine.SMALL = 1  # nothing else is small enough for a socket
elif sys.argv[2] == "gloo":
    one_machine.MOST_RANKS = 0  # as between machines
report = check_carrier(world_from_environment(60), full=sys.argv[1] == "full")
print(report)
sys.exit(not report.passed)
"""


def on_processes(folder: Path, size: int, how: str, way: str) -> None:
    script = folder / "check.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", str(size), str(script), how, way]
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_threads(size: int) -> None:
    for report in on_threads(size):
        assert report.passed, str(report)


@pytest.mark.skipif(not find_spec("torch"), reason="make test TORCH=1 installs PyTorch")
@pytest.mark.parametrize("way", WAYS)
def test_processes(tmp_path: Path, way: str) -> None:
    on_processes(tmp_path, 3, "sample", way)


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_case(request: pytest.FixtureRequest, tmp_path: Path, size: int) -> None:
    if "full" not in request.config.option.markexpr:
        pytest.skip("the full product runs with -m full (make conformance)")
    for report in on_threads(size, full=True):
        assert report.passed, str(report)
    if find_spec("torch"):
        for way in WAYS:
            on_processes(tmp_path, size, "full", way)


def test_the_cases_are_what_carriers_promise() -> None:
    names = [case.name for case in carrier_cases(full=True)]
    assert len(names) == len(set(names))
    parts = {name.split("/")[0] for name in names}
    moves = {"all_gather", "all_to_all", "broadcast", "send", "group"}
    assert parts == {"all_reduce", "start_all_reduce", "reduce_scatter", "algebra", *moves}
    assert {name.split("/")[1] for name in names if name.startswith("algebra/")} == set(ALGEBRAS)
    assert {name.split("/")[1] for name in names if name.startswith("all_gather/")} >= {"bool", "float16", "uint64"}


class Sloppy(LocalCommunication):
    """A carrier with two mistakes: sums that are rounded, and shares that are put together in the wrong order."""

    def all_reduce(self, x: np.ndarray, how: str) -> np.ndarray:
        """Return the values combined, whole numbers only."""
        return np.round(super().all_reduce(x, how).astype(float)).astype(x.dtype)

    def all_gather(self, x: np.ndarray, axis: int, length: int) -> np.ndarray:
        """Return the shares from the last to the first."""
        return np.flip(super().all_gather(x, axis, length), axis)


def test_a_carrier_that_is_wrong_is_found_out() -> None:
    def check(way: LocalCommunication) -> ConformanceReport:
        way.__class__ = Sloppy
        return check_carrier(way, include=["all_*/*/float32/*", "all_gather/float32/*"])

    with ThreadPoolExecutor(2) as pool:
        for report in pool.map(check, local_group(2, 60)):
            assert not report.passed
            wrong = {result.name.split("/")[0] for result in report.results if result.outcome == "failed"}
            assert {"all_reduce", "all_gather"} <= wrong


def test_no_case_that_is_asked_for() -> None:
    (alone,) = local_group(1)
    with pytest.raises(tl.InputError, match="no case matches"):
        check_carrier(alone, include=["al_reduce/*"])
