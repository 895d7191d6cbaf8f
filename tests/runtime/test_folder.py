"""The folder of a compilation cache: bounded, the longest unused goes first, other processes may do as they like."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import CompilationCache, CompilationKey, EinsumGraph, GraphBuilder
from tensorlogic.ir.whole_files import file_call, remove, write_folder
from tensorlogic.runtime import compilation_cache as shelf


def graph(width: int) -> EinsumGraph:
    b = GraphBuilder()
    return b.build(y=b.input("x", (2, 3), "float32") @ b.constant(np.ones((3, width), np.float32)))


def put(cache: CompilationCache, width: int) -> str:
    key = CompilationKey.from_graph(graph(width))
    cache.insert(key, tl.GraphCompiler().compile(graph(width)))
    return key.digest


def aged(folder: Path, name: str, seconds: float) -> None:
    then = os.stat(folder / name).st_mtime - seconds
    os.utime(folder / name, (then, then))


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    cache = CompilationCache(100, tmp_path, folder_entries=3)
    kept = [put(cache, width) for width in (1, 2, 3)]
    for n, name in enumerate(kept):
        aged(tmp_path, name, 100 - n)
    assert CompilationCache(100, tmp_path).get(CompilationKey.from_graph(graph(1))) is not None  # from disk: now in use
    kept.append(put(cache, 4))
    assert names(tmp_path) == {kept[0], kept[2], kept[3]}
    aged(tmp_path, kept[0], 500)
    assert cache.get(CompilationKey.from_graph(graph(1))) is not None  # from memory: in use as well
    kept.append(put(cache, 5))
    assert names(tmp_path) == {kept[0], kept[3], kept[4]}


def test_a_bound_in_bytes(tmp_path: Path) -> None:
    put(CompilationCache(100, tmp_path), 4)
    (one,) = shelf.entries(tmp_path)
    assert one.nbytes == sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())
    cache = CompilationCache(100, tmp_path, folder_bytes=int(2.5 * one.nbytes))
    aged(tmp_path, one.name, 100)
    second = put(cache, 5)
    assert names(tmp_path) == {one.name, second}
    third = put(cache, 6)
    assert names(tmp_path) == {second, third}
    assert sum(e.nbytes for e in shelf.entries(tmp_path)) <= cache.folder_bytes  # type: ignore[operator]


def test_what_is_too_large_by_itself_does_not_drive_out_the_rest(tmp_path: Path) -> None:
    put(CompilationCache(100, tmp_path), 4)
    (one,) = shelf.entries(tmp_path)
    cache = CompilationCache(100, tmp_path, folder_bytes=3 * one.nbytes)
    with pytest.warns(tl.CacheWarning, match="nothing is kept in .*: there is no room"):
        put(cache, 10_000)
    assert names(tmp_path) == {one.name}
    assert cache.get(CompilationKey.from_graph(graph(10_000))) is not None  # memory has it


@pytest.mark.parametrize("bounds", [{"folder_entries": 0}, {"folder_bytes": 0}])
def test_a_folder_that_may_hold_nothing(tmp_path: Path, bounds: dict[str, int]) -> None:
    cache = CompilationCache(8, tmp_path, **bounds)  # type: ignore[arg-type]
    with pytest.warns(tl.CacheWarning, match="no room"):
        put(cache, 1)
    assert names(tmp_path) == set()


def test_no_bound(tmp_path: Path) -> None:
    cache = CompilationCache(8, tmp_path, folder_bytes=None)
    for width in range(1, 6):
        put(cache, width)
    assert len(names(tmp_path)) == 5


def test_what_is_not_the_caches_own_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model").mkdir()
    (tmp_path / ("a" * 32)).write_text("a file, not a folder")
    tl.GraphCompiler().compile(graph(3)).save(tmp_path / "saved.tlc")
    cache = CompilationCache(8, tmp_path, folder_entries=1)
    put(cache, 1)
    last = put(cache, 2)
    assert names(tmp_path) == {"notes.txt", "model", "a" * 32, "saved.tlc", last}


def test_what_a_stopped_process_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    old, fresh = f".{'b' * 32}.0123456789ab.tmp", f".{'c' * 32}.0123456789ab.old"
    for name in (old, fresh, ".git", ".hidden.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("half")
    for name in (old, ".git", ".hidden.tmp"):
        aged(tmp_path, name, 2 * shelf.STALE)
    kept = put(CompilationCache(8, tmp_path), 1)
    assert names(tmp_path) == {fresh, ".git", ".hidden.tmp", kept}


def test_an_entry_that_goes_while_it_is_read_is_made_anew_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CompilationCache(8, tmp_path)
    name = put(cache, 1)
    load = tl.CompiledGraph.load

    def late(where: Any, executor: Any = None) -> Any:
        shelf.trim(tmp_path, 0, None)  # another process needs the room just now
        return load(where, executor)

    monkeypatch.setattr(tl.CompiledGraph, "load", late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CompilationCache(8, tmp_path).get(CompilationKey.from_graph(graph(1))) is None
    assert name not in names(tmp_path)


def test_an_entry_that_another_process_takes_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CompilationCache(8, tmp_path)
    first, second = put(cache, 1), put(cache, 2)
    found = shelf.entries(tmp_path)
    monkeypatch.setattr(shelf, "entries", lambda _: found)
    assert set(shelf.trim(tmp_path, 0, None)) == {first, second}
    assert set(shelf.trim(tmp_path, 0, None)) == {first, second}  # they are gone by now
    assert names(tmp_path) == set()


def test_a_new_entry_may_have_to_go_for_newer_ones_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(CompilationCache(8, tmp_path), 1)
    save = shelf.save_compiled

    def slowly(compiled: Any, place: Path) -> None:
        save(compiled, place)
        aged(tmp_path, place.name, 100)  # another process came in between

    monkeypatch.setattr(shelf, "save_compiled", slowly)
    cache = CompilationCache(8, tmp_path, folder_entries=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put(cache, 2)
    assert names(tmp_path) == {first}
    assert cache.get(CompilationKey.from_graph(graph(2))) is not None  # memory has it


def test_processes_that_fill_one_folder_keep_its_bound_and_answer(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np, tensorlogic as tl
        from test_folder import graph
        for n in range(24):
            cache = tl.CompilationCache(8, {str(tmp_path)!r}, folder_entries=3)
            width = 1 + (n + int(sys.argv[1])) % 6
            key = tl.CompilationKey.from_graph(graph(width))
            found = cache.get_or_compile(key, lambda: tl.GraphCompiler().compile(graph(width)))
            assert found({{"x": np.ones((2, 3), "f4")}})["y"].shape == (2, width)
    """)
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", code, str(n)]) for n in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    shelf.trim(tmp_path, 3, None)
    assert len(names(tmp_path)) <= 3
    assert all(shelf.ENTRY.fullmatch(name) for name in names(tmp_path))


@pytest.mark.parametrize("bound", [-1, 1.5, "1GB", True])
def test_what_is_no_bound(bound: Any) -> None:
    for name in ("folder_bytes", "folder_entries"):
        with pytest.raises(tl.InputError, match=f"{name} must be a whole number"):
            CompilationCache(8, "folder", **{name: bound})


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    place = tmp_path / "deep" / "entry"

    def fill(text):
        return lambda folder: (folder / "a.txt").write_text(text)

    assert write_folder(place, fill("one")) == place
    assert (place / "a.txt").read_text(encoding="utf-8") == "one"
    write_folder(place, fill("two"))  # what was there gives way
    assert (place / "a.txt").read_text(encoding="utf-8") == "two"
    with pytest.raises(FileExistsError):
        write_folder(place, fill("three"), replace=False)

    def broken(folder):
        (folder / "a.txt").write_text("half")
        raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        write_folder(place, broken)
    assert (place / "a.txt").read_text(encoding="utf-8") == "two"
    place.parent.joinpath("file").write_text("not a folder")
    write_folder(place.with_name("file"), fill("four"))
    assert (place.with_name("file") / "a.txt").read_text(encoding="utf-8") == "four"
    assert {p.name for p in place.parent.iterdir()} == {"entry", "file"}  # nothing is left behind


@pytest.mark.parametrize("replace", [True, False])
def test_another_process_may_come_first_and_a_third_delete_what_it_wrote(tmp_path: Path, replace: bool) -> None:
    place = tmp_path / "entry"

    def call(operation: str, args: tuple[Any, ...]) -> Any:
        if operation != "rename":
            return file_call(operation, args)
        place.mkdir()
        (place / "a.txt").write_text("of another")
        try:
            return file_call(operation, args)
        finally:
            remove(place)

    def fill(folder: Path) -> None:
        (folder / "a.txt").write_text("mine")

    with contextlib.nullcontext() if replace else pytest.raises(FileExistsError):
        write_folder(place, fill, replace=replace, call=call)
    assert list(tmp_path.iterdir()) == []
