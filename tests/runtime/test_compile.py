"""Compiled graphs: stats, plans, threads, saving and loading, caches in memory and on disk."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl

AGGRESSIVE = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE)


def mlp(sizes: tuple[int, ...] = (6, 5, 3)) -> tl.EinsumGraph:
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    h = b.input("x", ("n", sizes[0]), "float32")
    for m, n in pairwise(sizes):
        h = b.relu(
            b.linear(h, b.constant(rng.normal(size=(m, n)).astype("float32")), b.constant(np.ones(n, "float32")))
        )
    return b.build(y=h)


def rows(n: int, seed: int = 1) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=(n, 6)).astype("float32")}


@pytest.mark.parametrize("level", tl.OptimizationLevel)
def test_every_level_answers_alike(level: tl.OptimizationLevel) -> None:
    graph = mlp()
    compiled = tl.Executor().compile_graph(graph, tl.CompilationConfig(level), sizes={"n": 4})
    want = tl.Executor("reference").execute(graph, rows(4))["y"]
    np.testing.assert_allclose(compiled(rows(4))["y"], want, rtol=1e-5)
    np.testing.assert_allclose(compiled(rows(7, 2))["y"], tl.Executor().execute(graph, rows(7, 2))["y"], rtol=1e-5)
    assert len(compiled.plans()) == 2


def test_fusion_and_folding_can_be_switched_off() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (4, 4), "float32")
    w = b.constant(np.eye(4, dtype="float32")) * 2.0
    graph = b.build(y=(x @ x) @ w)
    kinds = {
        (fusion, folding): [
            n.op.name
            for n in tl.GraphCompiler()
            .compile(graph, AGGRESSIVE.with_fusion_enabled(fusion).with_constant_folding(folding))
            .optimized.nodes
        ]
        for fusion in (True, False)
        for folding in (True, False)
    }
    assert kinds[True, True].count("einsum") == 1
    assert kinds[False, True].count("einsum") == 2
    assert "multiply" in kinds[True, False]
    assert "multiply" not in kinds[True, True]


def test_stats_print_and_count() -> None:
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (3,), "float64")
    b.cos(x)
    stats = tl.GraphCompiler().compile(b.build(y=b.exp(x) + b.exp(x))).compilation_stats()
    assert (stats.nodes_before_optimization, stats.nodes_after_optimization) == (5, 3)
    assert "merge_equal" in str(stats)
    assert "40% fewer" in str(stats)
    assert tl.CompilationStats(0, 0, 0.0, ()).reduction_percentage == 0


def test_a_plan_is_ready_where_all_is_known() -> None:
    b = tl.GraphBuilder()
    known = b.build(y=b.relu(b.input("x", (2,), "float32")))
    assert len(tl.GraphCompiler().compile(known).plans()) == 1
    assert len(tl.GraphCompiler().compile(mlp()).plans()) == 0
    compiled = tl.GraphCompiler().compile(mlp(), sizes={"n": 4})
    assert len(compiled.plans()) == 1
    compiled(rows(4))
    assert compiled.executor.cache_stats().misses == 0


def test_many_threads_run_one_compiled_graph() -> None:
    compiled = tl.GraphCompiler().compile(mlp(), AGGRESSIVE)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in (3, 8, 5):
            given = rows(n, seed)
            if not np.allclose(compiled(given)["y"], tl.Executor("reference").execute(mlp(), given)["y"], rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_saved_plans_run_in_a_new_process_without_planning(tmp_path: Path) -> None:
    compiled = tl.GraphCompiler().compile(mlp(), AGGRESSIVE, sizes={"n": 4})
    want = compiled(rows(4))["y"]
    compiled.save(tmp_path / "model.tlc")
    np.save(tmp_path / "x.npy", rows(4)["x"])
    code = textwrap.dedent(f"""
        import numpy as np, tensorlogic as tl
        def never(*a, **k): raise AssertionError("planned again")
        import tensorlogic.plan.build as build, tensorlogic.runtime.executor as executor
        executor.build_plan = build.specialize = build.optimize = never
        compiled = tl.CompiledGraph.load({str(tmp_path / "model.tlc")!r})
        np.save({str(tmp_path / "y.npy")!r}, compiled({{"x": np.load({str(tmp_path / "x.npy")!r})}})["y"])
    """)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), want)
    again = tl.CompiledGraph.load(tmp_path / "model.tlc")
    assert again.config == AGGRESSIVE
    assert again.compilation_stats().nodes_before_optimization == len(mlp())
    np.testing.assert_allclose(again(rows(9))["y"], compiled(rows(9))["y"])  # other sizes are planned anew


def test_constants_of_a_plan_that_the_graph_has_are_saved_and_read_once(tmp_path: Path) -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 6), "float32"), b.constant(np.ones((6, 2), "float32"))
    for folder, y, own in (("shared", b.relu(x @ w), False), ("apart", x @ w + b.sum(b.iota("n")), True)):
        compiled = tl.GraphCompiler().compile(b.build(y=y), AGGRESSIVE, sizes={"n": 4})
        compiled.save(tmp_path / folder)
        assert (tmp_path / folder / "plan0.safetensors").exists() == own
        again = tl.CompiledGraph.load(tmp_path / folder)
        held = again.plans()[0].graph.constants
        assert all(held[digest] is array for digest, array in again.optimized.constants.items())
        np.testing.assert_array_equal(again(rows(4))["y"], compiled(rows(4))["y"])
    (tmp_path / "apart" / "plan0.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(tl.FormatError):
        tl.CompiledGraph.load(tmp_path / "apart")


def test_saving_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for n in (2, 3):
        tl.GraphCompiler().compile(mlp(), sizes={"n": n}).save(tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert tl.CompiledGraph.load(tmp_path / "m").plans()[0].inputs[0][2].shape == (3, 6)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text('{"format": "x"}'),
        lambda folder: (folder / "plan0.json").write_text("nothing"),
        lambda folder: (folder / "optimized.safetensors").write_bytes(b"\x00" * 100),
        lambda folder: (folder / "optimized.json").unlink(),
        lambda folder: _edit(folder, package="0.0.1"),
        lambda folder: _edit(folder, version=99),
        lambda folder: _edit(folder, backend="jax"),
        lambda folder: _edit(folder, plans=5),
        lambda folder: _edit(folder, plans=[]),  # fewer than graphs
    ],
)
def test_a_spoilt_cache_is_ignored_with_a_warning_and_rebuilt(tmp_path: Path, spoil: Any) -> None:
    graph = mlp()
    key = tl.CompilationKey.from_graph(graph, AGGRESSIVE)
    compile_it = lambda: tl.GraphCompiler().compile(graph, AGGRESSIVE, sizes={"n": 4})  # noqa: E731
    tl.CompilationCache(8, tmp_path).insert(key, compile_it())
    assert tl.CompilationCache(8, tmp_path).get(key) is not None
    spoil(tmp_path / key.digest)
    cache = tl.CompilationCache(8, tmp_path)
    with pytest.warns(tl.CacheWarning, match="cannot be used"):
        found = cache.get_or_compile(key, compile_it)
    np.testing.assert_allclose(found(rows(4))["y"], tl.Executor().execute(graph, rows(4))["y"], rtol=1e-5)
    assert tl.CompilationCache(8, tmp_path).get(key) is not None


def _edit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps(told | changes))


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = tl.CompilationCache(8, tmp_path / "file")
    key = tl.CompilationKey.from_graph(mlp())
    with pytest.warns(tl.CacheWarning, match="nothing is kept"):
        cache.insert(key, tl.GraphCompiler().compile(mlp()))
    assert cache.get(key) is not None


def test_processes_that_write_one_entry_at_once_leave_a_whole_one(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        import tensorlogic as tl
        from test_compile import mlp
        for n in range(5):
            tl.CompilationCache(8, {str(tmp_path)!r}).insert(
                tl.CompilationKey.from_graph(mlp()), tl.GraphCompiler().compile(mlp(), sizes={{"n": 4}}))
    """)
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", code]) for _ in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    found = tl.CompilationCache(8, tmp_path).get(tl.CompilationKey.from_graph(mlp()))
    assert found is not None
    np.testing.assert_array_equal(found(rows(4))["y"], tl.Executor().execute(mlp(), rows(4))["y"])
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_cache_is_bounded_and_keys_tell_apart() -> None:
    keys = [tl.CompilationKey.from_graph(mlp((6, k)), AGGRESSIVE) for k in (2, 3, 4)]
    assert len({k.digest for k in keys}) == 3
    assert keys[0] != tl.CompilationKey.from_graph(mlp((6, 2)))
    assert keys[0].digest != tl.CompilationKey.from_graph(mlp((6, 2)), AGGRESSIVE, "reference").digest
    cache = tl.CompilationCache(2)
    for key, width in zip(keys, (2, 3, 4), strict=True):
        cache.insert(key, tl.GraphCompiler().compile(mlp((6, width))))
    assert cache.get(keys[0]) is None
    assert cache.get(keys[2]) is not None


def test_mistakes_are_named() -> None:
    compiled = tl.GraphCompiler("reference").compile(mlp())
    with pytest.raises(tl.BackendError, match="compiled for reference"):
        tl.Executor().execute_compiled(compiled, rows(2))
    with pytest.raises(tl.InputError, match="CompiledGraph is expected"):
        tl.Executor().execute_compiled(mlp(), rows(2))  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="CompilationConfig is expected"):
        tl.Executor().compile_graph(mlp(), tl.OptimizationLevel.BASIC)  # type: ignore[arg-type]
    with pytest.raises(tl.FormatError, match="no compiled graph"):
        tl.CompiledGraph.load("/nonexistent/model")
    with pytest.raises(tl.InputError, match="EinsumGraph is expected, got 'y = relu"):
        tl.Executor().compile_graph("y = relu(x)")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="max_entries must be a whole number"):
        tl.CompilationCache("folder")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="CompilationKey is expected, got 'k'"):
        tl.CompilationCache(8).get("k")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="CompiledGraph is expected, got <EinsumGraph"):
        tl.CompilationCache(8).insert(tl.CompilationKey.from_graph(mlp()), mlp())  # type: ignore[arg-type]


def test_saving_takes_the_place_of_nothing_but_a_compiled_graph(tmp_path: Path) -> None:
    compiled = tl.GraphCompiler().compile(mlp())
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"format": "another"}')
    for taken in (tmp_path, tmp_path / "notes.txt", tmp_path / "web"):
        with pytest.raises(tl.FormatError, match="is no compiled graph"):
            compiled.save(taken)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["manifest.json", "notes.txt", "web"]
    (tmp_path / "empty").mkdir()
    compiled.save(tmp_path / "empty")
    assert tl.CompiledGraph.load(tmp_path / "empty").optimized == compiled.optimized


def test_a_file_in_the_place_of_a_cache_entry_is_replaced(tmp_path: Path) -> None:
    key = tl.CompilationKey.from_graph(mlp())
    (tmp_path / key.digest).write_text("not a folder")
    with pytest.warns(tl.CacheWarning, match="cannot be used"):
        tl.CompilationCache(8, tmp_path).get_or_compile(key, lambda: tl.GraphCompiler().compile(mlp()))
    assert [p.name for p in tmp_path.iterdir()] == [key.digest]
    assert tl.CompilationCache(8, tmp_path).get(key) is not None


def test_a_cache_reads_what_it_kept_of_another_backend(tmp_path: Path) -> None:
    key = tl.CompilationKey.from_graph(mlp(), AGGRESSIVE, "reference")
    tl.CompilationCache(8, tmp_path).insert(key, tl.GraphCompiler("reference").compile(mlp(), AGGRESSIVE))
    found = tl.CompilationCache(8, tmp_path).get(key)
    assert found is not None
    assert found.executor.backend.name == "reference"


def test_a_size_that_no_input_fixes_is_never_guessed(tmp_path: Path) -> None:
    b = tl.GraphBuilder()
    compiled = tl.GraphCompiler().compile(
        b.build(y=b.broadcast_to(b.input("x", (1,), "float64"), ("n",))), sizes={"n": 5}
    )
    given = {"x": np.ones(1)}
    assert compiled(given, sizes={"n": 7})["y"].shape == (7,)
    compiled.save(tmp_path / "m")
    for each in (compiled, tl.CompiledGraph.load(tmp_path / "m")):
        with pytest.raises(tl.ShapeError, match="no input fixes the size 'n'"):
            each(given)
        assert each(given, sizes={"n": 5})["y"].shape == (5,)


def test_a_spoilt_or_foreign_entry_of_a_cache_is_made_anew(tmp_path):
    def graph(factor):
        b = tl.GraphBuilder()
        return b.build(y=b.input("x", (2,), "float32") * factor)

    keys = [tl.CompilationKey.from_graph(graph(f)) for f in (0.5, 3.0)]
    for key, factor in zip(keys, (0.5, 3.0), strict=True):
        tl.CompilationCache(10, tmp_path).insert(key, tl.GraphCompiler().compile(graph(factor)))
    spoilt = tmp_path / keys[0].digest / "optimized.json"
    spoilt.write_text(spoilt.read_text(encoding="utf-8").replace("0.5", "0.7"))
    with pytest.warns(tl.CacheWarning, match="is not the graph that was saved"):
        assert tl.CompilationCache(10, tmp_path).get(keys[0]) is None
    spoilt.write_bytes(spoilt.read_bytes()[:100])
    with pytest.warns(tl.CacheWarning, match=f"not JSON: .*, in {re.escape(str(spoilt))}:3:"):
        assert tl.CompilationCache(10, tmp_path).get(keys[0]) is None
    spoilt.write_text("{}")
    with pytest.warns(tl.CacheWarning, match=f"this JSON is not a graph.*, in {re.escape(str(spoilt))}$"):
        assert tl.CompilationCache(10, tmp_path).get(keys[0]) is None
    shutil.rmtree(tmp_path / keys[0].digest)
    shutil.copytree(tmp_path / keys[1].digest, tmp_path / keys[0].digest)
    with pytest.warns(tl.CacheWarning, match="holds another graph"):
        assert tl.CompilationCache(10, tmp_path).get(keys[0]) is None


def test_sizes_of_dead_code_may_be_given(tmp_path):
    b = tl.GraphBuilder(intern=False)
    x, _ = b.input("x", ("n",), "float32"), b.input("y", ("m",), "float32")
    graph = b.build(z=x * 2.0)
    compiled = tl.Executor().compile_graph(graph)
    inputs = {name: np.ones(2, "f4") for name in graph.inputs}
    sizes = dict.fromkeys(graph.size_names, 2)
    compiled.save(tmp_path / "kept")
    for each in (compiled, tl.CompiledGraph.load(tmp_path / "kept")):
        np.testing.assert_array_equal(each(inputs, sizes=sizes)["z"], [2, 2])
    with pytest.raises(tl.InputError, match="no size"):
        compiled(inputs, sizes={"other": 3})


def test_sizes_of_dead_code_may_be_given_when_a_graph_is_compiled():
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", ("n",))
    b.iota("k")
    graph = b.build(y=b.relu(x))
    ex, sizes, inputs = tl.Executor(), {"k": 3, "n": 5}, {"x": np.ones(5, "f4")}
    np.testing.assert_array_equal(ex.execute(graph, inputs, sizes=sizes)["y"], np.ones(5))
    for compiled in (
        ex.compile_graph(graph, sizes=sizes),
        tl.GraphCompiler().compile(graph, sizes=sizes),
        ex.compile_graph(graph, sizes={"k": 3}, example=inputs),
    ):
        assert len(compiled.plans()) == 1
        np.testing.assert_array_equal(compiled(inputs, sizes=sizes)["y"], np.ones(5))
        for refused in (
            lambda: ex.execute(graph, inputs, sizes={"m": 3}),
            lambda c=compiled: c(inputs, sizes={"m": 3}),
            lambda: ex.compile_graph(graph, sizes={"m": 3}),
        ):
            with pytest.raises(tl.InputError, match="the graph has no size 'm'") as caught:
                refused()
            assert caught.value.diagnostic.suggestions == ("known: 'k', 'n'",)
    with pytest.raises(tl.InputError, match="the plan needs the size 'n'"):
        ex.compile_graph(graph, sizes={"k": 3})


def test_what_runs_is_not_pickled():
    import pickle

    with pytest.raises(tl.InputError, match="make one in each process"):
        pickle.dumps(tl.Executor())
    b = tl.GraphBuilder()
    with pytest.raises(tl.InputError, match="save"):
        pickle.dumps(tl.GraphCompiler().compile(b.build(y=b.relu(b.input("x", (2,))))))
