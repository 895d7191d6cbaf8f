"""What the machine can do: measured once, and the roofline that follows from it."""

import itertools
import threading

import pytest

import tensorlogic as tl
from tensorlogic.plan.machine import CALLS, MATRIX, STREAM, host, machine, measure, roofline_seconds

M = tl.Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=1e-6)


@pytest.mark.parametrize(
    ("flops", "nbytes", "dtype", "seconds"),
    [
        (0, 0, "float32", 0), (1e9, 0, "float32", 0.01), (1e9, 0, "float64", 0.02), (1e9, 0, "int64", 0.02),
        (1e9, 0, "bool", 0.01), (0, 1e9, "float64", 0.1), (1e9, 1e9, "float32", 0.1), (1e10, 1e9, "float64", 0.2),
    ],
)  # fmt: skip
def test_roofline(flops, nbytes, dtype, seconds):
    assert roofline_seconds(flops, nbytes, M, dtype) == pytest.approx(seconds)


def test_measured_once_whoever_asks_first():
    found = []
    threads = [threading.Thread(target=lambda: found.append(machine())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(m) for m in found}) == 1
    assert all(speed > 0 for speed in found[0])
    assert found[0] is tl.machine()


def test_what_a_clock_makes_of_it():
    ticks = itertools.count()
    found = measure(clock=lambda: next(ticks) * 0.001)  # whatever is done takes a millisecond
    assert found.flops32 == pytest.approx(2 * MATRIX**3 / 0.001)
    assert found.flops64 == pytest.approx(found.flops32)
    assert found.bandwidth == pytest.approx(2 * STREAM / 0.001)
    assert found.call == pytest.approx(0.001 / CALLS)


def test_a_clock_that_stands_still_divides_nothing_by_zero():
    assert all(0 < speed < float("inf") for speed in measure(clock=lambda: 0.0))


def test_it_prints():
    assert str(M) == "float32 100.0 GFLOP/s, float64 50.0 GFLOP/s, memory 10.0 GB/s, 1.00 µs a call"
    assert "cpus" in host()
