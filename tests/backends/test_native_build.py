"""Where machine code is kept, and what happens when that goes wrong: time is lost, nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.native import build, support

SCRIPT = """
import warnings, numpy as np, tensorlogic as tl
from tensorlogic.testing.programs import native_plan
warnings.simplefilter("always")
b = tl.GraphBuilder()
x = b.input("x", ("n", 8), "float32")
graph = b.build(y=b.sigmoid(x * 2.0) + 1.0)
x = np.linspace(-3, 3, 240_000).astype("float32").reshape(-1, 8)
found = tl.Executor(native=True).execute(graph, {"x": x})["y"]
np.testing.assert_allclose(found, 1 + 1 / (1 + np.exp(-2 * x)), rtol=1e-6)
print("right", sum(step.kernel == "fused" for step in native_plan(tl.Executor(native=True), graph, {"x": x}).steps))
"""


def run(home: Path, script: str = SCRIPT, **more: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CACHE_HOME": str(home)} | more
    return subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=env, timeout=120
    )


def kernels(home: Path) -> list[Path]:
    return sorted(home.glob("tensorlogic/native-*/k_*.py"))


def test_a_second_process_finds_the_machine_code(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first.stdout == "right 1\n" and first.stderr == ""
    [file] = kernels(tmp_path)
    assert "def kernel(" in file.read_text()
    made = {p: p.stat().st_mtime_ns for p in (file.parent / "__pycache__").iterdir()}
    assert any(p.suffix == ".nbc" for p in made)
    second = run(tmp_path)
    assert second.stdout == "right 1\n" and second.stderr == ""
    assert {p: p.stat().st_mtime_ns for p in (file.parent / "__pycache__").iterdir()} == made


@pytest.mark.parametrize("damage", ["index", "code", "source"])
def test_what_is_corrupt_on_disk_is_made_anew(tmp_path: Path, damage: str) -> None:
    run(tmp_path)
    [file] = kernels(tmp_path)
    if damage == "source":
        file.write_text("def kernel(:")
    for path in (file.parent / "__pycache__").iterdir():
        if path.suffix == {"index": ".nbi", "code": ".nbc"}.get(damage):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = run(tmp_path)
    assert found.stdout == "right 1\n", found.stderr
    assert run(tmp_path).stderr == ""


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "folder", lambda: None)
    monkeypatch.setattr(build, "_made", {})
    b = tl.GraphBuilder()
    x = b.input("x", (60_000, 8), "float32")
    graph = b.build(y=b.relu(x) * 3.0)
    [found] = tl.Executor(native=True).execute(graph, {"x": np.ones((60_000, 8), "float32")})
    assert (found == 3).all()


def test_without_numba_plans_run_step_by_step_with_one_warning(tmp_path: Path) -> None:
    script = "import sys; sys.modules['numba'] = None" + SCRIPT
    found = run(tmp_path, script)
    assert found.stdout == "right 0\n"
    assert found.stderr.count("numba cannot be used") == 1


def test_a_numba_that_is_switched_off_is_respected(tmp_path: Path) -> None:
    found = run(tmp_path, NUMBA_DISABLE_JIT="1")
    assert found.stdout == "right 0\n"


def test_importing_the_package_or_running_a_graph_does_not_load_numba(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, numpy as np, tensorlogic as tl
        b = tl.GraphBuilder()
        graph = b.build(y=b.softmax(b.input("x", ("n", 4))))
        tl.Executor().execute(graph, {"x": np.ones((2, 4))})
        tl.Executor().execute_jit(graph, {"x": np.ones((2, 4))})
        print("numba" in sys.modules)
    """)
    assert run(tmp_path, script).stdout == "False\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    script = textwrap.dedent("""
        import os, warnings, numpy as np, tensorlogic as tl
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking with threads
        b = tl.GraphBuilder()
        x = b.input("x", (200_000, 8), "float32")
        graph = b.build(y=b.tanh(b.exp(-b.square(x))) + 1.0)
        value = np.linspace(0, 1, 1_600_000).astype("float32").reshape(-1, 8)
        executor = tl.Executor(native=True)
        want = executor.execute(graph, {"x": value})["y"].copy()
        pid = os.fork()
        if pid == 0:
            same = np.array_equal(executor.execute(graph, {"x": value})["y"], want)
            os._exit(0 if same else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr


COMPILING = """
    import os, threading, warnings, numpy as np, tensorlogic as tl
    from tensorlogic.backends.native import build
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking with threads

    def graph(k):
        b = tl.GraphBuilder()
        x = b.input("x", (60_000, 8), "float32")
        return b.build(y=b.tanh(b.exp(-b.square(x * float(k)))) + 1.0)

    value = {"x": np.ones((60_000, 8), "float32")}

    def answer(k):
        [found] = tl.Executor(native=True).execute(graph(k), value)
        return bool(abs(float(found[0, 0]) - (np.tanh(np.exp(-(float(k) ** 2))) + 1)) < 1e-6)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_forked_while_something_is_compiled_can_compile(tmp_path: Path) -> None:
    script = textwrap.dedent(COMPILING) + textwrap.dedent("""
        inside, jitted = threading.Event(), build._jitted

        def slowly(*args, **options):
            inside.set()
            return jitted(*args, **options)

        build._jitted = slowly
        other = threading.Thread(target=answer, args=(1,))
        other.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if answer(2) and answer(1) else 1)
        other.join()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert run(tmp_path, script).stdout == "0\n"


def test_a_spawned_process_answers_too(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(textwrap.dedent(COMPILING))
    script = textwrap.dedent("""
        import multiprocessing, part
        if __name__ == "__main__":
            assert part.answer(3)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(part.answer, [3, 3, 4]))
    """)
    (tmp_path / "main.py").write_text(script)
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "main.py"], check=False, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120
    )
    assert done.stdout == "[True, True, True]\n", done.stderr


@pytest.mark.parametrize("place", ["source", "code", "index"])
def test_a_process_that_dies_while_it_writes_does_no_harm(tmp_path: Path, place: str) -> None:
    """At the worst moment: what it writes is half there when it ends."""
    script = textwrap.dedent("""
        import os, sys, numba.core.caching as caching
        from pathlib import Path
        from tensorlogic.ir import files
        place = sys.argv[1] if len(sys.argv) > 1 else "PLACE"

        def killed(path, text):
            Path(path).write_bytes(text[: len(text) // 2])
            os._exit(9)

        if place == "source":
            Path.write_text = lambda self, text, *args, **options: killed(self, text.encode())
        else:
            name = {"code": "_save_data", "index": "_save_index"}[place]
            whole = getattr(caching.IndexDataCacheFile, name)
            caching.IndexDataCacheFile._open_for_write_before = caching.IndexDataCacheFile._open_for_write

            def dies(self, *args):
                import contextlib

                @contextlib.contextmanager
                def half(path):
                    with self._open_for_write_before(path) as file:
                        write = file.write
                        class Half:
                            def write(_, data):
                                write(data[: len(data) // 2]); file.flush(); os._exit(9)
                        yield Half()

                self._open_for_write = half
                return whole(self, *args)

            setattr(caching.IndexDataCacheFile, name, dies)
    """).replace("PLACE", place)
    died = run(tmp_path, script + SCRIPT)
    assert died.returncode == 9 and died.stdout == ""
    found = run(tmp_path)
    assert found.stdout == "right 1\n" and found.stderr == "", found.stderr
    assert run(tmp_path).stderr == ""


def test_many_threads_may_compile_and_run_at_once() -> None:
    graphs = []
    for k in range(3):
        b = tl.GraphBuilder()
        x = b.input("x", (30_000, 4), "float32")
        graphs.append(b.build(y=b.exp(x * float(k + 1)) + 1.0))
    value = np.linspace(-1, 1, 120_000).astype("float32").reshape(-1, 4)
    wants = [tl.Executor().execute(g, {"x": value})["y"] for g in graphs]
    executor = tl.Executor(native=True)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(12):
            k = (seed + n) % 3
            found = executor.execute(graphs[k], {"x": value})["y"]
            if not np.allclose(found, wants[k], rtol=1e-6):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_stopping_a_compilation_leaves_everything_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (60_000, 8), "float32")
    graph = b.build(y=b.log1p(b.exp(x)) * 0.75)
    value = {"x": np.zeros((60_000, 8), "float32")}
    executor = tl.Executor(native=True)
    with monkeypatch.context() as patch:

        def stopped(*args: Any, **options: Any) -> Any:
            raise KeyboardInterrupt

        patch.setattr(build, "_jitted", stopped)
        with pytest.raises(KeyboardInterrupt):
            executor.execute(graph, value)
    np.testing.assert_allclose(executor.execute(graph, value)["y"], 0.75 * np.log(2), rtol=1e-6)


def test_usable_says_so() -> None:
    assert support.usable() and support.loaded()
