"""Where machine code is kept, and what happens when that goes wrong: time is lost, nothing else."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.native import bind, code_cache, support
from tensorlogic.ir.types import TensorType
from tensorlogic.runtime.call import call
from tensorlogic.store import Store
from tensorlogic.testing.every_plan import every_program

SCRIPT = """
import warnings, numpy as np, tensorlogic as tl
from tensorlogic.testing.every_plan import native_plan
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


def machine_code(home: Path) -> list[Path]:
    return sorted(home.glob("tensorlogic/native/*.code"))


def test_a_second_process_finds_the_machine_code(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first.stdout == "right 1\n" and first.stderr == ""
    files = {p: p.stat().st_ino for p in machine_code(tmp_path)}
    assert files
    second = run(tmp_path)
    assert second.stdout == "right 1\n" and second.stderr == ""
    assert {p: p.stat().st_ino for p in machine_code(tmp_path)} == files  # none was written anew


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "text": lambda _: b"\xff\xfe no",
    "first": lambda content: bytes([content[0] ^ 0x10]) + content[1:],
    "middle": lambda content: content[:5000] + bytes([content[5000] ^ 0x10]) + content[5001:],
    "last": lambda content: content[:-1] + bytes([content[-1] ^ 0x10]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_corrupt_on_disk_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """A file that was cut off, replaced, or in which one bit has turned never reaches the loader, which could kill the process."""
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path)
    t = [TensorType((3,), "float64")]

    def answer() -> list[float]:
        monkeypatch.setattr(bind, "_kernels", Store(9))
        found = np.zeros(3)
        bind.compiled("def kernel(a, o):\n    for n in range(3): o[n] = a[n] + 1", t, t, 0)(np.ones(3), found)
        return found.tolist()

    assert answer() == [2, 2, 2]
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(DAMAGES[damage](content))
    with pytest.warns(support.NativeWarning, match="is made anew"):
        assert answer() == [2, 2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer() == [2, 2, 2]  # from the disk again
    if damage == "middle":  # what is right by its checksum and yet cannot be read
        body = b"no pickle"
        file.write_bytes(hashlib.blake2b(body, digest_size=32).digest() + body)
        with pytest.warns(support.NativeWarning, match="is made anew"):
            assert answer() == [2, 2, 2]


def test_where_the_folder_is_unusable_no_process_leaves_one_behind(tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    home.write_text("not a folder")
    for _ in range(2):
        found = run(home, TMPDIR=str(temporary))
        assert found.stdout == "right 1\n" and found.stderr == ""
    [place] = temporary.iterdir()  # one for all processes of this user
    assert list(place.glob("native/*.code")) and place.stat().st_mode & 0o077 == 0


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = code_cache.folder.__wrapped__()
    assert place is not None and place.parent.parent == tmp_path


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no owners here")
@pytest.mark.parametrize("inner", ["", "native"])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, inner: str) -> None:
    """Not even the inner one: whoever can write there could have anything run."""
    (tmp_path / "tensorlogic" / "native").mkdir(parents=True, mode=0o700)
    (tmp_path / "tensorlogic" / inner).chmod(0o777)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert run(tmp_path, TMPDIR=str(temporary)).stdout == "right 1\n"
    assert machine_code(tmp_path) == [] and list(temporary.glob("*/native/*.code"))


def test_the_folder_is_bounded_and_the_least_recently_used_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(10):
        file = tmp_path / f"{n}.code"
        file.write_bytes(b"x" * 100)
        os.utime(file, (1_000 + n, 1_000 + n))
    os.utime(tmp_path / "0.code")  # used now
    (tmp_path / ".new.tmp").write_bytes(b"")
    (tmp_path / ".old.tmp").write_bytes(b"")
    os.utime(tmp_path / ".old.tmp", (1_000, 1_000))
    monkeypatch.setattr(code_cache, "MOST_BYTES", 350)
    code_cache._make_room(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".new.tmp", "0.code", "8.code", "9.code"]


def test_files_may_go_while_others_read_and_write(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "b = tl.", "from tensorlogic.backends.native import code_cache; code_cache.MOST_BYTES = 1; b = tl."
    )
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    several = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [p.communicate(timeout=120) for p in several] == [("right 1\n", "")] * 2
    assert machine_code(tmp_path) == []


def scaled(factor: float) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", (30_000, 8), "float32")
    return b.build(y=b.where(x > factor, b.relu(x * factor) + (1 - factor), x / 3))


def test_graphs_that_differ_in_literals_share_their_machine_code() -> None:
    x = np.linspace(-1, 1, 240_000, dtype="float32").reshape(-1, 8)
    executor = tl.Executor(native=True)
    executor.execute(scaled(0.5), {"x": x})
    before = bind._count["bound"]
    for factor in np.linspace(-2, 2, 40):
        want = tl.Executor().execute(scaled(float(factor)), {"x": x})["y"]
        np.testing.assert_array_equal(executor.execute(scaled(float(factor)), {"x": x})["y"], want)
    assert bind._count["bound"] == before


def windows(begin: int, rows: int, pairs: int) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    """Return a graph with a slice, a transposed copy, a product and a batch of products, and inputs for it."""
    b = tl.GraphBuilder()
    x, w = b.input("x", (rows + 20, 3), "float32"), b.input("w", (3, 3), "float32")
    u, v = b.input("u", (pairs, 2, 5), "float32"), b.input("v", (pairs, 5, 4), "float32")
    y = b.tanh(b.transpose(x[begin : begin + rows] @ w, (1, 0)) * 0.5)
    rng = np.random.default_rng(begin)
    graph = b.build(y=y + b.sum(y), z=b.relu(b.einsum("bij,bjk->bik", u, v)) - 1.0)
    return graph, {name: rng.normal(size=graph.type_of(i).shape).astype("float32") for name, i in graph.inputs.items()}


def test_small_graphs_that_differ_in_sizes_and_places_share_their_machine_code() -> None:
    executor, sources = tl.Executor(native=True), set()  # sizes that are alike in one graph are one in the text
    for begin, rows, pairs in ((2, 7, 11), (9, 9, 12), (17, 13, 7), (1, 26, 19), (6, 99, 64)):
        graph, inputs = windows(begin, rows, pairs)
        [step] = executor.plan(graph, inputs).steps
        sources.add(getattr(step.op, "source", ""))
        want, found = tl.Executor().execute(graph, inputs), executor.execute(graph, inputs)
        for name in ("y", "z"):
            np.testing.assert_allclose(found[name], want[name], rtol=2e-5, atol=1e-5)
    assert len(sources) == 1
    assert "def kernel" in sources.pop()


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("float64", (float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1e308)), ("float32", (0.1, -0.0, float("nan"))),
        ("int8", (-128, 127)), ("uint8", (255,)), ("int64", (-(2**63), 2**63 - 1)), ("uint64", (2**64 - 1, 2**63)),
    ],
)  # fmt: skip
def test_literals_arrive_with_all_their_bits(dtype: str, numbers: tuple[float, ...]) -> None:
    for number in numbers:
        b = tl.GraphBuilder()
        x = b.input("x", (30_000,), dtype)
        graph = b.build(y=b.where(x == 1, x, number))
        value = np.arange(30_000).astype(dtype)
        want = tl.Executor().execute(graph, {"x": value})["y"]
        assert tl.Executor(native=True).execute(graph, {"x": value})["y"].tobytes() == want.tobytes()


def test_what_is_kept_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels go with their engines, and with them their machine code, when nothing uses them any more."""
    import gc

    from numba.core.codegen import JITCPUCodegen

    def engines() -> int:
        gc.collect()
        return sum(type(x) is JITCPUCodegen for x in gc.get_objects())

    monkeypatch.setattr(bind, "_kernels", Store(2))
    monkeypatch.setattr(bind, "ENGINE", 1)
    t = [TensorType((3,), "float64")]
    texts = [f"def kernel(a, o):\n    o[{n}] = a[0]" for n in range(3)]
    for text in texts:
        bind.compiled(text, t, t, 0)
    before = engines()
    for n in range(12):
        found = np.zeros(3)
        bind.compiled(texts[n % 3], t, t, 0)(np.ones(3), found)
        assert found[n % 3] == 1
    assert engines() <= before + 1
    assert not any(name.startswith("tensorlogic_kernel") for name in sys.modules)


def test_a_process_that_has_compiled_very_much_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "MOST_COMPILED", 0)
    b = tl.GraphBuilder()
    x = b.input("x", (60_000, 8), "float32")
    graph = b.build(y=b.relu(x) * 3.0 + b.sqrt(b.abs(x - 17.0)))
    with pytest.warns(support.NativeWarning, match="has compiled 0 kernels"):
        [found] = tl.Executor(native=True).execute(graph, {"x": np.ones((60_000, 8), "float32")})
    assert (found == 7).all()


HOSTILE = [
    "x\n    import os; os._exit(3)",
    '"""',
    "a0",
    "o0",
    "np",
    "kernel",
    "é⁀𝒳",
    "__import__('os')",
    "'); exit(3)#",
    "{0}",
    "%s",
    "c0[0]",
]


@pytest.mark.parametrize("shape", [(40_000, 8), (3, 8)])  # by rows, and as one function
def test_names_never_reach_generated_source(shape: tuple[int, ...]) -> None:
    """Names of inputs, outputs and sizes, and literals, are the user's; what is compiled is made of ours only."""
    from tensorlogic.backends.native.bind import sources

    def graph(names: list[str], number: float) -> tl.EinsumGraph:
        b = tl.GraphBuilder()
        inputs = [b.input(name, shape, "float32") for name in names]
        total = inputs[0] * number
        for x in inputs[1:]:
            total = b.tanh(total + x)
        return b.build({f"{names[0]} out": total, names[-1] + "'": b.sum(total, axis=1)})

    values = [np.full(shape, n / 10, "float32") for n in range(len(HOSTILE))]
    plain = [f"input{n}" for n in range(len(HOSTILE))]
    texts, answers = [], []
    for names, number in ((plain, 2.0), (HOSTILE, 2.0 + 2.0**-30)):
        programs = every_program(tl.Executor(native=True), graph(names, number), dict(zip(names, values, strict=True)))
        answers.append([call(program, values)[0] for program in programs])
        texts.append([sources(program.plan) for program in programs])
    assert texts[0] == texts[1] and any(texts[0])
    for found, want in zip(*answers, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)


def test_names_of_sizes_never_reach_generated_source() -> None:
    from tensorlogic.backends.native.bind import sources

    texts = []
    for name in ("n", "kernel", "größe", "lo"):
        b = tl.GraphBuilder()
        x = b.input("x", (name, 8), "float32")
        inputs = {"x": np.ones((40_000, 8), "float32")}
        programs = every_program(tl.Executor(native=True), b.build(y=b.exp(x) * 2.0), inputs)
        texts.append([sources(program.plan) for program in programs])
    assert any(texts[0]) and all(text == texts[0] for text in texts)


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "folder", lambda: None)
    monkeypatch.setattr(bind, "_kernels", Store(9))
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
    from tensorlogic.backends.native import bind
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
        inside, jitted = threading.Event(), bind._compile_for

        def slowly(*args, **options):
            inside.set()
            return jitted(*args, **options)

        bind._compile_for = slowly
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_forked_while_numba_is_imported_can_import_it(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys, threading, time, warnings, numpy as np, tensorlogic as tl
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking with threads
        b = tl.GraphBuilder()
        graph, value = b.build(y=b.tanh(b.exp(b.input("x", (64,), "float64")) + 1.0)), {"x": np.ones(64)}
        executor = tl.Executor()
        assert "numba" not in sys.modules
        while "numba" not in sys.modules:  # the thread of the JIT imports it
            executor.execute_jit(graph, value)
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            found = tl.Executor(native=True).execute(graph, value)["y"]
            os._exit(0 if np.allclose(found, np.tanh(np.e + 1)) else 1)
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


def test_a_process_that_dies_while_it_writes_does_no_harm(tmp_path: Path) -> None:
    """At the worst moment: what it writes is half there when it ends."""
    script = textwrap.dedent("""
        import os
        from pathlib import Path

        def killed(self, content):
            with open(self, "wb") as file:
                file.write(content[: len(content) // 2])
            os._exit(9)

        Path.write_bytes = killed
    """)
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

        patch.setattr(bind, "_compile_for", stopped)
        with pytest.raises(KeyboardInterrupt):
            executor.execute(graph, value)
    np.testing.assert_allclose(executor.execute(graph, value)["y"], 0.75 * np.log(2), rtol=1e-6)


def test_usable_says_so() -> None:
    assert support.usable() and support.loaded()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_pipes_devices_and_folders_in_place_of_machine_code_are_replaced(tmp_path: Path) -> None:
    run(tmp_path)
    for take in (os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir):
        names = machine_code(tmp_path)
        for path in names:
            path.unlink()
            take(path)
        found = run(tmp_path)
        assert (found.returncode, found.stdout, found.stderr) == (0, "right 1\n", "")
        assert machine_code(tmp_path) == names and all(path.is_file() for path in names)


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert code_cache.folder.__wrapped__() == tmp_path / "home/.cache/tensorlogic/native"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home"]


INTERRUPTED = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numba.core.compiler" and self in sys.meta_path:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

import tensorlogic
from tensorlogic.backends.native import support

sys.meta_path.insert(0, Interrupting())
try:
    support.usable()
except KeyboardInterrupt:
    print("interrupted")
assert sys.modules["numba"].core.compiler
"""


def test_an_interrupt_does_not_leave_numba_half_imported(tmp_path: Path) -> None:
    """Python forgets the module that was interrupted, and not those inside of it: the next import of numba had no numba.core."""
    found = run(tmp_path, INTERRUPTED + SCRIPT)
    assert (found.stdout, found.stderr) == ("interrupted\nright 1\n", "")
