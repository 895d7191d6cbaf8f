"""Checkpoints: whole or not there, the newest good one is found, one run at a time writes."""

import errno
import os
import resource
import signal
import tempfile
import warnings
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from forked import in_child
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from safetensors.numpy import load_file

import tensorlogic as tl
from tensorlogic import CheckpointError, CheckpointManager, CheckpointWarning
from tensorlogic.runtime.recovery import checkpoints
from tensorlogic.runtime.recovery.folder_lock import FolderLock
from tensorlogic.testing import failing_at

OPERATIONS = ("mkdir", "write", "fsync", "rename")


def values(n):
    """Return arrays whose contents follow from a number."""
    rng = np.random.default_rng(n)
    return {"weights": rng.random((3, n % 5 + 1)), "count": np.int64(n), "mask": rng.random(7) > 0.5}


def assert_is(found, number, n):
    assert found.number == number
    assert found.facts == {"n": n}
    expected = values(n)
    assert found.arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert found.arrays[name].dtype == array.dtype and found.arrays[name].shape == np.shape(array)
        np.testing.assert_array_equal(found.arrays[name], array)


def save(folder, *numbers, **options):
    with CheckpointManager(folder, **options) as manager:
        return [manager.save(values(n), {"n": n}) for n in numbers]


ARRAYS = {
    "scalar": np.float64(2.5),
    "nothing": np.zeros((0, 3), "int32"),
    "no axes": np.array(True),
    "strided": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[::-1],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big endian": np.arange(4, dtype=">i4"),
    "half": np.linspace(0, 1, 5).astype("float16"),
    "odd": np.arange(4099, dtype="uint8")[1:],
    "ünïcode \"'\n": np.array([np.nan, np.inf, -0.0]),
}


def test_arrays_come_back_bit_by_bit(tmp_path):
    with CheckpointManager(tmp_path / "deep" / "run") as manager:
        assert manager.latest() is None and manager.numbers() == []
        assert manager.save(ARRAYS, {"a": [1, 2.5, None, {"b": "ü"}]}) == 1
        found = manager.latest()
    assert found.facts == {"a": [1, 2.5, None, {"b": "ü"}]}
    for name, array in ARRAYS.items():
        again = found.arrays[name]
        assert again.shape == array.shape and again.dtype == array.dtype.newbyteorder("="), name
        assert again.tobytes() == np.asarray(array, again.dtype).tobytes(), name


def test_the_file_is_one_that_safetensors_reads(tmp_path):
    save(tmp_path, 4)
    read = load_file(tmp_path / "checkpoint-00000001" / "values.safetensors")
    for name, array in values(4).items():
        np.testing.assert_array_equal(read[name], array)


def test_bfloat16(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    with CheckpointManager(tmp_path) as manager:
        manager.save({"x": np.arange(5).astype(bfloat16)})
        found = manager.latest().arrays["x"]
    assert found.dtype == bfloat16 and found.astype(float).tolist() == [0, 1, 2, 3, 4]


def test_the_newest_are_kept_and_numbers_never_come_again(tmp_path):
    assert save(tmp_path, 1, 2, 3, 4, keep=2) == [1, 2, 3, 4]
    manager = CheckpointManager(tmp_path, keep=2)
    assert manager.numbers() == [3, 4]
    assert_is(manager.load(3), 3, 3)
    assert save(tmp_path, 5, keep=1) == [5]
    assert CheckpointManager(tmp_path).numbers() == [5]
    with pytest.raises(CheckpointError, match="there is no checkpoint 3") as caught:
        manager.load(3)
    assert caught.value.diagnostic.code == "E588" and "there: 5" in str(caught.value)


@pytest.mark.parametrize("facts", [{"a": float("nan")}, {"a": (1, 2)}, {1: 2}, {"a": object()}, [1]])
def test_facts_that_json_would_change_are_refused(tmp_path, facts):
    with CheckpointManager(tmp_path) as manager, pytest.raises(tl.InputError):
        manager.save({}, facts)
    assert CheckpointManager(tmp_path).numbers() == []


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()]), np.zeros(2, "complex64"), None])
def test_arrays_that_no_tensor_holds_are_refused(tmp_path, value):
    with CheckpointManager(tmp_path) as manager, pytest.raises(tl.InputError, match="arrays of numbers by name"):
        manager.save({"x": value})


# faults


def _count(operation, folder):
    """Return how often an operation is done while two checkpoints are saved."""
    point = failing_at(operation, call=0x7FFFFFFF)
    save(folder, 1, 2, wrap=[point])
    return point.count


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whichever_operation_fails_earlier_checkpoints_stay(tmp_path, operation):
    count = _count(operation, tmp_path / "whole")
    assert count >= 2
    for call in range(1, count + 1):
        folder, code = tmp_path / str(call), (errno.ENOSPC, errno.EROFS, errno.EIO)[call % 3]
        point = failing_at(operation, call=call, error=OSError(code, os.strerror(code)))
        saved = []
        with CheckpointManager(folder, wrap=[point]) as manager:
            with pytest.raises(CheckpointError) as caught:
                for n in (1, 2):
                    saved.append(manager.save(values(n), {"n": n}))
            assert caught.value.diagnostic.code == "E580"
            assert os.strerror(code) in str(caught.value) and str(folder) in str(caught.value)
            for number in saved:
                assert_is(manager.load(number), number, number)
            assert not [p for p in folder.iterdir() if p.name.endswith((".tmp", ".old"))]
            number = manager.save(values(3), {"n": 3})  # the fault passed: the same manager goes on
            assert_is(manager.latest(), number, 3)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_process_killed_at_any_operation_leaves_a_good_checkpoint(tmp_path, operation):
    ended, call = -signal.SIGKILL, 0
    while ended != 0:
        call += 1
        folder, point = tmp_path / str(call), failing_at(operation, call=call, kill=True)
        ended = in_child(lambda folder=folder, point=point: save(folder, 1, 2, keep=1, wrap=[point]))
        assert ended in (0, -signal.SIGKILL)
        found = CheckpointManager(folder).latest()
        last = found.number if found else 0
        if found is not None:
            assert_is(found, last, last)
        assert save(folder, 9, keep=1) == [last + 1]  # its lock is gone with it
        assert [p.name for p in folder.iterdir() if p.name != ".lock"] == [f"checkpoint-{last + 1:08}"]
    assert call > 2 and last == 2


def test_a_disk_that_is_really_full(tmp_path):
    read, write = os.pipe()

    def fill_up():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        manager = CheckpointManager(tmp_path)
        manager.save({"x": np.arange(10)}, {"n": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            manager.save({"x": np.arange(100_000)}, {"n": 2})
        except CheckpointError as error:
            os.write(write, error.diagnostic.message.encode())
        assert manager.latest().facts == {"n": 1} and manager.save({"x": np.arange(10)}, {"n": 3}) == 2

    assert in_child(fill_up) == 0
    assert os.read(read, 1000).decode() == (
        f"cannot write 781.2 KiB as checkpoint 2 in {str(tmp_path)!r}: File too large; "
        "the earlier ones, up to 1, are untouched"
    )
    os.close(read)
    os.close(write)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError) as caught:
        CheckpointManager(tmp_path / "file" / "run").save({})
    assert caught.value.diagnostic.code == "E580"
    with pytest.raises(tl.InputError):
        CheckpointManager(tmp_path, keep=0)
    with pytest.raises(tl.InputError):
        CheckpointManager(3)


# damage


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def _swap_pages(path):
    content = path.read_bytes()
    path.write_bytes(content[:-8192] + content[-4096:] + content[-8192:-4096])


@pytest.mark.parametrize("file", ["values.safetensors", "manifest.json"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, _truncate, _flip, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"{}")]
)
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, file, damage):
    save(tmp_path, 1, 2, 3)
    manager = CheckpointManager(tmp_path)
    damage(manager.path(3) / file)
    with pytest.warns(CheckpointWarning, match=r"checkpoint 3 in .* is damaged: .*; the one before is used"):
        assert_is(manager.latest(), 2, 2)
    with pytest.raises(CheckpointError) as caught:
        manager.verify(3)
    assert caught.value.diagnostic.code == "E582"
    manager.verify(2)
    assert save(tmp_path, 4) == [4]
    assert_is(manager.latest(), 4, 4)


def test_exchanged_pages_are_noticed(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save({"x": np.arange(4096.0)})
        _swap_pages(manager.path(1) / "values.safetensors")
        with pytest.raises(CheckpointError, match="array 'x' does not have its checksum"):
            manager.load(1)


def test_when_all_are_damaged_nothing_begins_anew_without_a_word(tmp_path):
    save(tmp_path, 1, 2)
    manager = CheckpointManager(tmp_path)
    for number in (1, 2):
        _flip(manager.path(number) / "values.safetensors")
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="none of the 2 checkpoints") as caught:
        manager.latest()
    assert caught.value.diagnostic.code == "E583"


def test_another_version_is_refused_with_both(tmp_path, monkeypatch):
    with monkeypatch.context() as other:
        other.setattr(checkpoints, "VERSION", 7)
        save(tmp_path, 1)
    with pytest.raises(
        CheckpointError,
        match=r"format tensorlogic-checkpoint 7, by tensorlogic .*; this version reads tensorlogic-checkpoint 1",
    ) as caught:
        CheckpointManager(tmp_path).latest()
    assert caught.value.diagnostic.code == "E584"


def test_files_of_others_are_left_alone(tmp_path):
    for name in ("notes.txt", ".hidden.tmp", "checkpoint-x", "checkpoint-1"):
        (tmp_path / name).write_text("mine")
    save(tmp_path, 1, 2, keep=1)
    assert all((tmp_path / name).exists() for name in ("notes.txt", ".hidden.tmp", "checkpoint-x", "checkpoint-1"))


def test_an_old_checkpoint_that_cannot_be_removed_is_told(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "no", str(path))

    with CheckpointManager(tmp_path, keep=1) as manager:
        manager.save(values(1), {"n": 1})
        monkeypatch.setattr(checkpoints, "set_aside", refuse)
        with pytest.warns(CheckpointWarning, match="checkpoint 1 .* cannot be removed"):
            assert manager.save(values(2), {"n": 2}) == 2
        assert_is(manager.latest(), 2, 2)


# the lock


def test_a_second_run_on_one_folder_is_refused(tmp_path):
    with CheckpointManager(tmp_path) as first:
        first.save(values(1), {"n": 1})
        other = CheckpointManager(tmp_path)
        assert_is(other.latest(), 1, 1)  # reading is free
        for attempt in (other.lock, lambda: other.save(values(2))):
            with pytest.raises(CheckpointError, match=rf"in use by process {os.getpid()} \(this one\)") as caught:
                attempt()
            assert caught.value.diagnostic.code == "E581"
    assert other.save(values(2), {"n": 2}) == 2
    other.close()


def test_a_manager_that_nobody_holds_holds_nothing(tmp_path):
    CheckpointManager(tmp_path).save(values(1), {"n": 1})
    assert save(tmp_path, 2) == [2]


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_dead_process_does_not_hold_the_folder(tmp_path, how):
    (ready, say_ready), (go, say_go) = os.pipe(), os.pipe()

    def hold():
        manager = CheckpointManager(tmp_path)
        manager.save(values(1), {"n": 1})
        os.write(say_ready, str(os.getpid()).encode())
        os.read(go, 1)
        os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else os._exit(0)

    thread = Thread(target=in_child, args=(hold,))
    thread.start()
    holder = os.read(ready, 20).decode()
    with pytest.raises(CheckpointError, match=f"in use by process {holder}") as caught:
        save(tmp_path, 2)
    assert caught.value.diagnostic.code == "E581"
    os.write(say_go, b"x")
    thread.join()
    assert save(tmp_path, 2) == [2]
    for handle in (ready, say_ready, go, say_go):
        os.close(handle)


def test_a_forked_child_does_not_hold_the_folder(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.lock()
    go, say_go = os.pipe()
    thread = Thread(target=in_child, args=(lambda: os.read(go, 1),))
    thread.start()
    try:
        with pytest.raises(CheckpointError, match="in use"):
            save(tmp_path, 1)  # the child let go of its copy, not of the lock
        manager.close()
        assert save(tmp_path, 1) == [1]
    finally:
        os.write(say_go, b"x")
        thread.join()
        os.close(go)
        os.close(say_go)


def test_saving_is_a_span(tmp_path):
    with tl.trace() as trace:
        save(tmp_path, 1)
    assert [s.name for s in trace.spans] == ["checkpoint 1"]


class Checkpoints(RuleBasedStateMachine):
    """Saves, faults, damage and restarts in any order, beside a list of what should be there."""

    def __init__(self):
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.good = {}  # by number, what it holds
        self.bad = set()
        self.last = 0
        self.keep = 2
        self.start()

    def start(self, wrap=()):
        self.manager = CheckpointManager(self.place.name, self.keep, wrap=wrap)

    def teardown(self):
        self.manager.close()
        self.place.cleanup()

    def prune(self):
        there = sorted({*self.good, *self.bad})
        for number in there[: -self.keep]:
            self.good.pop(number, None)
            self.bad.discard(number)

    @rule(n=st.integers(0, 99))
    def save(self, n):
        number = self.manager.save(values(n), {"n": n})
        assert number > max([*self.good, *self.bad], default=0)
        self.good[number] = n
        self.prune()

    @rule(n=st.integers(0, 99), operation=st.sampled_from(OPERATIONS), call=st.integers(1, 6))
    def save_with_a_fault(self, n, operation, call):
        self.manager.close()
        before = set(self.manager.numbers())
        point = failing_at(operation, call=call, error=OSError(errno.ENOSPC, "full"))
        self.start([point])
        try:
            number = self.manager.save(values(n), {"n": n})
        except CheckpointError:
            assert point.strikes == 1
            new = set(self.manager.numbers()) - before  # renamed, but perhaps not for ever: it is whole anyhow
            assert before <= set(self.manager.numbers())
            self.good.update(dict.fromkeys(new, n))
        else:
            assert point.strikes == 0
            self.good[number] = n
            self.prune()
        self.restart(self.keep)

    @rule(keep=st.integers(1, 4))
    def restart(self, keep):
        self.manager.close()
        self.keep = keep
        self.start()

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def damage(self, data):
        number = data.draw(st.sampled_from(sorted(self.good)))
        file = data.draw(st.sampled_from(["values.safetensors", "manifest.json"]))
        data.draw(st.sampled_from([Path.unlink, _truncate, _flip]))(self.manager.path(number) / file)
        del self.good[number]
        self.bad.add(number)

    @invariant()
    def the_newest_good_one_is_found(self):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if not self.good and self.bad:
                with pytest.raises(CheckpointError, match="none of the"):
                    self.manager.latest()
                return
            found = self.manager.latest()
        newest = max(self.good, default=None)
        if newest is None:
            assert found is None
        else:
            assert_is(found, newest, self.good[newest])
            assert len(told) == sum(number > newest for number in self.bad)


Checkpoints.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestCheckpoints = Checkpoints.TestCase


def test_a_lock_on_a_full_disk_holds_and_is_let_go(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tensorlogic.runtime.recovery.folder_lock.os.write", full)
        lock = FolderLock(tmp_path)
        lock.acquire()
        with pytest.raises(CheckpointError, match="in use by process unknown"):
            FolderLock(tmp_path).acquire()
        lock.release()
    with FolderLock(tmp_path) as again:
        assert again.held
