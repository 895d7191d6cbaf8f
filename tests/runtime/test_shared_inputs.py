"""What a driver sends: arrays that did not change are not written again, and changes are never missed."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest

from tensorlogic.runtime.distributed.messages import Arena
from tensorlogic.runtime.distributed.shared_inputs import IDLE, SharedInputs


@pytest.fixture
def shared():
    with tempfile.TemporaryFile() as file:
        arena = Arena(os.dup(file.fileno()))
        yield SharedInputs(arena), arena
        os.close(arena.descriptor)


def test_an_array_is_written_once(shared):
    inputs, arena = shared
    x = np.arange(12.0).reshape(3, 4)
    for _ in range(3):
        inputs.begin()
        place = inputs.put(x)
        assert inputs.put(x) == place  # of another rank
    assert inputs.sent_bytes == x.nbytes
    np.testing.assert_array_equal(arena.view(place), x)


@pytest.mark.parametrize("change", [lambda x: x.__setitem__((1, 1), -1), lambda x: np.negative(x, out=x)])
def test_a_change_in_place_is_sent(shared, change):
    inputs, arena = shared
    x = np.zeros((3, 4))
    inputs.begin()
    inputs.put(x[:, 1:3])
    change(x)  # zeros become negative zeros, which count
    inputs.begin()
    place = inputs.put(x[:, 1:3])
    assert inputs.sent_bytes == 2 * x[:, 1:3].nbytes
    assert arena.view(place).tobytes() == x[:, 1:3].tobytes()


def test_parts_of_an_array_are_known_again(shared):
    inputs, _ = shared
    x = np.arange(20.0).reshape(5, 4)
    for _ in range(2):
        inputs.begin()
        for part in (x[:3], x[3:], x[:, :2]):
            inputs.put(part)
    assert inputs.sent_bytes == x.nbytes + x[:, :2].nbytes


def test_memory_of_arrays_that_are_gone_is_used_again(shared):
    inputs, arena = shared
    for n in range(50):
        inputs.begin()
        place = inputs.put(np.full(1000, n, "int64"))
        np.testing.assert_array_equal(arena.view(place), np.full(1000, n))
    assert sum(arena._used.values()) <= 3 * 8064


def test_an_array_that_no_call_uses_has_to_go(shared):
    inputs, _ = shared
    x = np.ones(4)
    inputs.begin()
    inputs.put(x)
    for _ in range(IDLE + 1):
        inputs.begin()
    assert not inputs._entries
    inputs.put(x)
    assert inputs.sent_bytes == 2 * x.nbytes


def test_what_cannot_change_is_not_compared(shared, monkeypatch):
    from tensorlogic.runtime.distributed import shared_inputs

    inputs, _ = shared
    x = np.ones((4, 4))
    x.setflags(write=False)
    inputs.begin()
    inputs.put(x[1:])
    monkeypatch.setattr(shared_inputs, "same_bits", lambda a, b: pytest.fail("compared"))
    inputs.begin()
    inputs.put(x[1:])
    assert inputs.sent_bytes == x[1:].nbytes


@pytest.mark.parametrize("dtype", ["bool", "float16", "complex128", "int8", "uint64"])
def test_every_dtype_and_shape(shared, dtype):
    inputs, arena = shared
    for shape in ((), (0, 3), (5,), (2, 3, 4)):
        x = np.random.default_rng(0).normal(size=shape).astype(dtype)
        for _ in range(2):
            inputs.begin()
            np.testing.assert_array_equal(arena.view(inputs.put(x)), x)
