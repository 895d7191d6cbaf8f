"""What the package says to the mistakes of somebody new to it: batches, recovery, async calls, programs and files."""

import asyncio
import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl


def layer():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",)), b.input("w", ("n", 2))
    return b.build(y=b.relu(x @ w))


LAYER = layer()
ITEM = {"x": np.ones(3), "w": np.ones((3, 2))}
EX = tl.Executor()


def test_items_of_a_batch_are_numbered():
    result = EX.execute_batch(LAYER, [ITEM, ITEM])
    with pytest.raises(IndexError, match="there is no item 7: the batch has 2"):
        result[7]
    with pytest.raises(tl.InputError, match=r"write result\[0\]\['y'\] for one item, or result.stacked\('y'\) for all"):
        result["y"]
    with pytest.raises(IndexError, match="there is no output 3: there are 1, y"):
        EX.execute(LAYER, ITEM)[3]


def test_a_data_frame_is_no_batch_and_no_mapping():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0]})
    with pytest.raises(tl.InputError, match="a batch is a list of mappings of names to arrays, got a DataFrame"):
        EX.execute_batch(LAYER, frame)
    with pytest.raises(tl.InputError, match=r'got DataFrame(.|\n)*write \{"x": frame\["x"\]\}'):
        EX.execute(LAYER, frame)


@pytest.mark.parametrize("path", ["layer.json", Path("layer.json")])
def test_the_name_of_a_file_is_no_graph(path):
    with pytest.raises(tl.InputError, match=r"read it: tl.EinsumGraph.load\("):
        EX.execute(path, ITEM)


def test_the_name_of_a_file_is_no_program():
    with pytest.raises(tl.InputError, match=r"write tl.load\('family.tl'\)"):
        tl.Program("family.tl")


def test_options_of_an_async_call_are_checked_at_once():
    with pytest.raises(tl.InputError, match=r"AsyncConfig\(timeout=5\)"):
        EX.execute_async(LAYER, ITEM, timeout=5)
    with pytest.raises(tl.InputError, match=r"has no option 'budgt'(.|\n)*did you mean 'budget'"):
        EX.execute_async(LAYER, ITEM, budgt=5)

    async def wait():
        return await EX.execute_async(LAYER, ITEM, budget=1 << 30)

    assert asyncio.run(wait())["y"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("folder", [None, 5])
def test_a_folder_is_a_path(folder):
    with pytest.raises(tl.InputError, match="a folder is given by its path"):
        tl.RecoveryConfig().with_folder(folder)


def test_a_folder_of_checkpoints_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").write_text("a file")
    for folder, message in (("run", "'run' is a file"), ("", "the name of the folder is empty")):
        with pytest.raises(tl.InputError, match=message):
            tl.CheckpointManager(folder)
    with (
        tl.CheckpointManager("other") as manager,
        pytest.raises(tl.InputError, match="a checkpoint holds arrays by name, got None"),
    ):
        manager.save(None)


def test_the_oldest_checkpoint_has_none_before_it(tmp_path):
    with tl.CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(2)})
        (tmp_path / "checkpoint-00000001" / "values.safetensors").write_bytes(b"")
        with (
            pytest.warns(tl.CheckpointWarning, match="is damaged.*there is none before it"),
            pytest.raises(tl.CheckpointError, match="none of the 1 checkpoints"),
        ):
            manager.latest()


LOSS = (
    lambda b: b.build(loss=b.mean_squared_error(b.input("x", ("n", 2)) @ b.input("w", (2,)), b.input("t", ("n",))))
)(tl.GraphBuilder())
PARAMS = {"w": np.zeros(2)}
DATA = {"x": np.ones((8, 2)), "t": np.ones(8)}


def fitted(data=DATA, *, callbacks=(), graph=LOSS, optimizer=None, **given):
    config = tl.TrainerConfig(epochs=1, batch_size=4, optimizer=optimizer or tl.optim.sgd(0.1))
    trainer = tl.Trainer(None, config, callbacks=list(callbacks))
    trainer.fit(graph, PARAMS, data, **given)
    return trainer


@pytest.mark.parametrize("data", [(DATA["x"], DATA["t"]), DATA["x"], [DATA["x"]]])
def test_arrays_without_names_are_no_data(data):
    with pytest.raises(tl.InputError, match=r"data is given as arrays by name(.|\n)*write data=\{"):
        fitted(data)


@pytest.mark.parametrize("name", ["fixed", "states"])
def test_what_a_fit_is_given_beside_the_data_has_names(name):
    with pytest.raises(tl.InputError, match=f"{name}= are arrays by name, got 3"):
        fitted(**{name: 3})


def test_an_update_returns_a_parameter_of_its_shape():
    with pytest.raises(tl.InputError, match="returns a parameter of shape"):
        fitted(optimizer=tl.optim.custom(lambda b, w, gradient, state, rate, t: (b.sum(w), {}), 0.1))


def test_what_is_watched_on_validation_data_needs_some():
    with pytest.raises(tl.InputError, match=r"validation=data\)(.|\n)*or watch 'loss'"):
        fitted(callbacks=[tl.EarlyStopping()])


def test_files_that_a_trainer_cannot_write(tmp_path):
    for callback in (tl.CSVLog(tmp_path), tl.JSONLog(tmp_path), tl.PlotFile(tmp_path)):
        with pytest.raises(tl.InputError, match="is a folder, and a file is to be written"):
            fitted(callbacks=[callback])
    with pytest.raises(tl.FormatError, match="cannot write"):
        fitted().history.save_svg(tmp_path)
    for log in (tl.CSVLog, tl.JSONLog, tl.PlotFile):
        with pytest.raises(tl.InputError, match="a file is given by its path, got None"):
            log(None)


def test_a_trainer_is_kept_in_a_folder():
    for act in (fitted().save, tl.Trainer.resume):
        with pytest.raises(tl.InputError, match="a folder is given by its path, got None"):
            act(None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": "a"}, "seed must be a whole number"),
        ({"seed": None}, "seed must be a whole number"),
        ({"scheme": np.ones}, "scheme= is a name"),
        ({"graph": "loss.json"}, r"read it: tl.EinsumGraph.load\('loss.json'\)"),
    ],
)
def test_first_values_are_drawn_by_name_and_seed(given, message):
    with pytest.raises(tl.InputError, match=message):
        tl.initial(**{"graph": LOSS, "names": ["w"], **given})


def test_examples_are_split_by_name():
    from tensorlogic.train.data import split

    for data in (np.ones(3), None, "train.npz"):
        with pytest.raises(tl.InputError, match="split takes arrays by name"):
            split(data)
    with pytest.raises(tl.InputError, match="a share is between 0 and 1, got 'a'"):
        split(DATA, "a")


@pytest.mark.parametrize(
    "loss", ["mean_squared_error", "mean_absolute_error", "huber", "binary_cross_entropy", "hinge"]
)
def test_a_loss_does_not_compare_all_with_all(loss):
    b = tl.GraphBuilder()
    x, column = b.input("x", ("n",), "float32"), b.input("t", ("n", 1), "float32")
    with pytest.raises(tl.ShapeError, match=r"every element of \[n\] would be compared with every element of \[n, 1\]"):
        getattr(b, loss)(x, column)
    getattr(b, loss)(b.input("rows", ("n", 3), "float32"), b.input("row", (3,), "float32"))
    getattr(b, loss)(x, 1.0)


def test_other_things_are_no_graph():
    program, compiled = tl.Program("P(A)"), EX.compile_graph(LAYER)
    for act in (
        lambda g: EX.execute(g, ITEM),
        lambda g: tl.batched(g, over=["x"]),
        tl.grad,
        EX.compile_graph,
    ):
        with pytest.raises(tl.InputError, match=r'program.graph\("Y"\)'):
            act(program)
        with pytest.raises(tl.InputError, match="give the graph that it was compiled from"):
            act(compiled)


def test_what_a_graph_is_built_of():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    with pytest.raises(tl.GraphError, match=r"w = b.input\('w', shape\)"):
        b.add(x, "w")
    with pytest.raises(tl.ShapeError, match=r"has a name: \('n', 3\)"):
        b.input("y", (-1, 2))
    with pytest.raises(tl.DTypeError, match="rows of equal lengths"):
        EX.execute(LAYER, {**ITEM, "x": [[1, 2], [3]]})


def test_wrappers_are_functions():
    for wrap in (len, [3]):
        with pytest.raises(tl.InputError, match="wrapper"):
            tl.Executor(wrap=wrap)
    from tensorlogic.testing import failing_at

    with pytest.raises(tl.InputError, match="error= is an exception, got 'boom'"):
        failing_at("exp", error="boom")


def test_an_async_function_needs_no_thread():
    with pytest.raises(tl.InputError, match="sleep is async"):
        tl.run_async(asyncio.sleep, 0)


def test_fallbacks_may_be_a_list():
    assert tl.RecoveryConfig(fallback_backends=["reference"]).fallback_backends == ("reference",)


def test_a_misspelt_tensor_is_refused_when_it_is_bound():
    p = tl.Program("Y[i] = X[i]")
    with pytest.raises(tl.InputError, match=r"takes no tensor 'x'(.|\n)*did you mean 'X'"):
        p.bind(x=[1.0])
    assert p.bind(X=[1.0]).run()["Y"].tolist() == [1.0]
    later = tl.Program().bind(X=[2.0])
    later.add_rule("Y[i] = X[i]")
    assert later.run()["Y"].tolist() == [2.0]


@pytest.mark.parametrize("text", ["X = [1, 2]", "X[i] = A[i]", "P(A,B)\nX[x] count= P(x,y)"])
def test_what_a_program_defines_is_not_given(text):
    p = tl.Program(text)
    with pytest.raises(tl.InputError, match="'X' is defined by the program, and cannot be given too"):
        p.run(X=[5, 6])["X"]


def test_a_bracket_that_is_not_closed():
    with pytest.raises(tl.FormatError, match=r"the '\(' of parent is not closed"):
        tl.parse_expr("sister(x,y) & parent(y,z")


def test_words_about_a_program():
    with pytest.raises(tl.FormatError, match="write != for not equal"):
        tl.Program("Sibling(x,y) <- Parent(p,x), Parent(p,y), x =! y")
    with pytest.raises(tl.InputError, match="header= is True or False, got 'yes'"):
        tl.Program("P(A,B)").add("P", "p.csv", header="yes")
    with pytest.raises(tl.InputError, match="the question is empty"):
        tl.Program("P(A,B)").query(" ")
    p = tl.Program("P(A,B)")
    p.add("New", [])
    with pytest.raises(tl.InputError, match="as many places as its facts: add one first"):
        p.query("New(x)?")
    p.add("New", [("a",)])
    assert p.query("New(x)?") == [("a",)]


def test_a_missing_file_hints_at_files_of_its_kind(tmp_path):
    for name in ("a.json", "b.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(tl.FormatError) as found:
        tl.EinsumGraph.load(tmp_path / "somewhere else.json")
    assert found.value.diagnostic.suggestions == ("known: 'a.json', 'b.json'",)


CONFIG = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)])


def test_tools_that_look_at_values_are_refused_by_several_devices():
    from tensorlogic.debug import BreakpointManager, ExecutionRecorder, TensorInspector, watching

    b = tl.GraphBuilder()
    graph, inputs = b.build(y=b.log(b.input("x", ("n",)))), {"x": np.array([1.0, -1.0])}
    for tool in (TensorInspector(), BreakpointManager(), ExecutionRecorder()):
        with watching(tool):
            EX.execute_distributed(graph, inputs, CONFIG)  # it is off
            tool.enable()
            with pytest.raises(tl.InputError, match=f"{type(tool).__name__} looks at the values of steps"):
                EX.execute_distributed(graph, inputs, CONFIG)
            with pytest.raises(tl.InputError, match="looks at the values of steps"):
                tl.Trainer(None, tl.TrainerConfig(epochs=1, batch_size=4), distributed=CONFIG).fit(LOSS, PARAMS, DATA)

    class Steps(tl.Callback):
        def on_step(self, plan, event, values):
            raise AssertionError

    with pytest.raises(tl.InputError, match="the callback Steps asks for the steps of each run"):
        tl.Trainer(None, tl.TrainerConfig(epochs=1, batch_size=4), callbacks=[Steps()], distributed=CONFIG).fit(
            LOSS, PARAMS, DATA
        )
    with tl.trace() as t:
        EX.execute_distributed(graph, inputs, CONFIG)
    assert [event.name for event in t.events()].count("log") == 2


def test_only_hooks_watch():
    from tensorlogic.debug import ExecutionRecorder, Recording, watching

    with pytest.raises(tl.InputError, match="a hook derives from"), watching(3):
        pass
    with pytest.raises(tl.InputError, match="a folder is given by its path"), ExecutionRecorder().capture(None):
        pass
    with pytest.raises(tl.InputError, match="a folder is given by its path"):
        Recording.load(None)


def test_how_work_is_divided():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", 4)) @ b.input("w", (4, 2)))
    with pytest.raises(tl.ShapeError, match="sharding needs sizes that are known; 'x' is"):
        tl.shard(graph, {"w": 1}, ranks=2, rank=0)
    with pytest.raises(tl.InputError, match="axes= says which axis"):
        tl.shard(graph, "w", ranks=2, rank=0)
    for wrong in (
        lambda: tl.ShardingSpec({"w": 1}),
        lambda: tl.ShardingSpec().shard_tensor("w", "a", 2),
        lambda: tl.DistributedParallelismStrategy.Auto(cluster=3),
        lambda: tl.Device.CPU("a"),
        lambda: tl.Device.CPU(-1),
        lambda: tl.simulate(graph, CONFIG, tl.Cluster(1e12, 1e12, 1e9, 1e-5), sizes=3),
    ):
        with pytest.raises(tl.InputError):
            wrong()
    many = tl.DistributedParallelismStrategy.PipelineParallel(3, 2)
    with pytest.raises(tl.GraphError, match="use at most 1"):
        EX.execute_distributed(
            graph,
            {"x": np.ones((4, 4)), "w": np.ones((4, 2))},
            tl.DistributedConfig([tl.Device.CPU(n) for n in range(3)], strategy=many),
        )


def test_an_array_of_another_library_is_streamed():
    class Foreign:
        def __array__(self, dtype=None, copy=None):
            return np.arange(6.0)

        def __iter__(self):
            return iter(range(6))

    b = tl.GraphBuilder()
    total = b.build(total=b.sum(b.input("x", ("n",))))
    assert EX.execute_stream(total, Foreign()).result()["total"] == 15


def test_one_row_is_no_chunk():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3))
    processor = tl.StreamProcessor(EX, b.build(y=x * 2))
    processor.push({"x": np.ones((3, 3))})
    with pytest.raises(tl.ShapeError, match=r"for one row give x\[i:i\+1\]"):
        processor.push({"x": np.ones(3)})
    with pytest.raises(tl.InputError, match="a sink is a path, got 3"):
        EX.execute_stream(b.build(y=x * 2), {"x": np.ones((3, 3))}, sink={"y": 3})


def test_an_input_is_given_once():
    with pytest.raises(tl.InputError, match="it is in params=, states= or fixed= already"):
        fitted(fixed={"x": DATA["x"]})


def test_columns_of_a_frame():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(tl.InputError, match="numbered from 0, without a gap: x_0, x_1"):
        fitted(pandas.DataFrame({"x_0": DATA["t"], "x_2": DATA["t"], "t": DATA["t"]}))
    with pytest.raises(tl.FormatError, match=r"pandas.factorize\(frame\['t'\]\)"):
        fitted(pandas.DataFrame({"x_0": DATA["t"], "x_1": DATA["t"], "t": ["a"] * 8}))


HUGE = 10**5000  # Python refuses to write it out
ENDLESS = range(10**18)  # nobody can go through it


def n_by_n():
    b = tl.GraphBuilder()
    return b.build(y=b.relu(b.input("x", ("n", "n"))))


@pytest.mark.parametrize(
    "call",
    [
        lambda: tl.GraphBuilder().input("x", (HUGE,)),
        lambda: tl.GraphBuilder().iota(-HUGE),
        lambda: tl.GraphBuilder().sum(np.ones(3), axis=HUGE),
        lambda: tl.GraphBuilder().top_k(np.ones(3), HUGE),
        lambda: tl.GraphBuilder().input("x", (3,))[HUGE],
        lambda: EX.plan(n_by_n(), sizes={"n": HUGE}),
        lambda: tl.with_sizes(n_by_n(), {"n": -HUGE}),
        lambda: tl.Executor(memory_limit=-HUGE),
        lambda: tl.Executor(flops_limit=-HUGE),
        lambda: tl.Executor(threads=-HUGE),
        lambda: tl.Executor(threads=HUGE),
        lambda: tl.CompilerContext({"D": HUGE}),
        lambda: tl.pred("p", HUGE),
        lambda: tl.MemoryPool(-HUGE),
        lambda: tl.MemoryPool().allocate((HUGE,), "float32"),
        lambda: tl.CompilationCache(-HUGE),
        lambda: tl.TrainerConfig(batch_size=-HUGE),
        lambda: tl.optim.adam(HUGE),
        lambda: tl.StreamingMode.FixedChunk(-HUGE),
        lambda: tl.ExecutionContext(timeout=-HUGE),
        lambda: tl.GraphBuilder().cast(np.ones(3), HUGE),
        lambda: tl.GraphBuilder().einsum([[HUGE]], np.ones(3)),
        lambda: tl.GraphBuilder().einsum([HUGE], np.ones(3)),
        lambda: tl.GraphBuilder().einsum("i->", np.ones(3), algebra=HUGE),
        lambda: tl.GraphBuilder().cond(True, HUGE, HUGE),
        lambda: tl.vjp(LAYER, custom={HUGE: None}),
        lambda: tl.variables(HUGE),
        lambda: tl.parse_expr(HUGE),
        lambda: tl.Rule(HUGE),
        lambda: tl.CompilerContext({HUGE: 2}),
        lambda: tl.Scheduler(HUGE),
        lambda: tl.Store(-HUGE),
        lambda: tl.Trace(detail=HUGE),
        lambda: tl.Trace([tl.TraceEvent("a", "step", HUGE, 0, 1)]),
        lambda: tl.AdaptiveOptimizer(["a"], trials=-HUGE),
        lambda: tl.TensorView(np.ones(3), [HUGE]),
        lambda: tl.TrainerConfig(settings={HUGE: {}}),
        lambda: tl.optim.rate_from_json({"name": HUGE}),
        lambda: tl.DistributedConfig(HUGE),
        lambda: tl.Program("Y[i] = X[i]").run({HUGE: 1}),
    ],
)
def test_numbers_too_long_to_write(call):
    with pytest.raises(tl.TensorLogicError, match=r"about -?1e5000"):
        call()


def test_limits_without_end():
    context = tl.ExecutionContext(timeout=HUGE)
    executor = tl.Executor(memory_limit=HUGE, flops_limit=HUGE, threads=1024, context=context)
    assert executor.execute(n_by_n(), {"x": -np.eye(2)}, budget=HUGE)["y"].max() == 0


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: EX.frame(LAYER, ITEM), r"frame.save\(path\)"),
        (tl.CompilationCache, r"CompilationCache\(100, folder\)"),
        (tl.MemoryPool, r"MemoryPool\(\)"),
        (tl.WorkspacePool, r"WorkspacePool\(\)"),
        (tl.TensorCache, r"TensorCache\(\)"),
        (tl.debug.BreakpointManager, "make one in each process"),
        (lambda: tl.CheckpointManager("never_written"), r"CheckpointManager\(folder\)"),
        (lambda: tl.run_async(int), "keep its result"),
    ],
)
def test_what_belongs_to_a_process_is_neither_pickled_nor_copied(make, hint):
    made = make()
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(tl.InputError, match=rf"belongs to the process that made it(.|\n)*{hint}"):
            attempt(made)


def test_the_result_of_a_batch_is_pickled():
    result = EX.execute_batch(LAYER, [ITEM, {**ITEM, "x": np.ones(4)}, ITEM])
    for made in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert made[2]["y"].tolist() == [3.0, 3.0]
        assert made.how == result.how and list(made.errors) == [1]


def test_a_graph_is_no_program(tmp_path):
    LAYER.save(tmp_path / "g.json")
    with pytest.raises(tl.FormatError, match=r"is no program: (.|\n)*tl.EinsumGraph.load\("):
        tl.load(tmp_path / "g.json")


@pytest.mark.parametrize("wrt", [5, True, [5], [["x"]], ["y"]])
def test_what_is_differentiated_for_is_named(wrt):
    for call in (lambda: EX.forward(LAYER, ITEM, wrt=wrt), lambda: tl.vjp(LAYER, wrt)):
        with pytest.raises(tl.TensorLogicError, match=r"wrt= names inputs|no input"):
            call()


def test_an_input_named_twice_is_differentiated_for_once():
    executor = tl.Executor()
    out = executor.forward(LAYER, ITEM, wrt=["x", "x"])
    executor.backward(out, [np.ones(2)])
    assert executor.get_gradients()["x"].tolist() == [2.0, 2.0, 2.0]


def test_inputs_too_large_to_time_plans_on(monkeypatch):
    monkeypatch.setattr("tensorlogic.backends.threads.workers", lambda: 2)  # else there may be no second plan
    b = tl.GraphBuilder()
    graph = b.build(y=b.sum(b.exp(b.input("x", ("n",)))))  # the result is small
    config = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    with pytest.raises(tl.OutOfMemoryError, match=r"would take (.|\n)*'x' is float32\[1099511627776\](.|\n)*example="):
        tl.Executor(memory_limit=1 << 30).compile_graph(graph, config, sizes={"n": 2**40})


@pytest.mark.parametrize(("word", "known"), [("result", "insult"), ("input", "output")])
def test_names_that_are_not_close_are_not_meant(word, known):
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input(known, (2,))))
    with pytest.raises(tl.InputError, match=f"known: '{known}'"):
        EX.execute(graph, {word: np.ones(2)})


def test_the_ending_of_a_file_makes_no_name_close(tmp_path):
    (tmp_path / "g.tl").write_text("")
    (tmp_path / "family.tl").write_text("")
    for name, hints in (("missing.tl", ("known: 'family.tl', 'g.tl'",)), ("famly.tl", ("did you mean 'family.tl'?",)), ("family", ("did you mean 'family.tl'?",))):  # fmt: skip
        with pytest.raises(tl.FormatError) as caught:
            tl.load(tmp_path / name)
        assert caught.value.diagnostic.suggestions == hints


RAGGED = {"x": [[1], [1, 2]]}
WEIGHTS = {"w": np.ones((3, 2))}


def summed():
    b = tl.GraphBuilder()
    return b.build(loss=b.sum(b.square(b.input("x", ("n", 3)) @ b.input("w", (3, 2)))))


class Unprintable:
    def __repr__(self):
        raise RuntimeError("not ready")


TABLE = np.arange(1000.0).reshape(10, 100)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.GraphBuilder().input("x", TABLE), "must be a sequence, got ndarray$"),
        (lambda: tl.GraphBuilder().input("x", (3,)).sum(TABLE), "an axis must be an integer, got ndarray$"),
        (lambda: tl.GraphBuilder().input("x", (3,)).sum(Unprintable()), "an axis must be an integer, got Unprintable$"),
        (lambda: tl.GraphBuilder().input("x", Unprintable()), "must be a sequence, got Unprintable$"),
        (lambda: tl.CompilationCache(TABLE), "max_entries must be a whole number of at least 0, got ndarray$"),
        (lambda: EX.execute(LAYER, {("a" * 99,): 1}), "the graph has no input \\('a{57}…$"),
        (lambda: EX.execute(LAYER, {"a" * 99: 1}), "the graph has no input 'a{99}'$"),
        (lambda: EX.compile_graph(LAYER, ""), "a CompilationConfig is expected, got ''"),
        (lambda: tl.CompilerContext({"D": 2}, predicates="p"), "predicates= is a mapping"),
        (lambda: tl.CompilerContext({"D": 2}, graphs="p"), "graphs= is a mapping"),
        (lambda: tl.batched(LAYER, [["x"]]), r"no input \['x'\] to batch"),
        (lambda: tl.with_sizes(None, {"n": 2}), "with_sizes takes an EinsumGraph"),
        (lambda: tl.EinsumGraph.load(None), "a file is given by its path, got None"),
        (lambda: LAYER.save(5), "a file is given by its path, got 5"),
        (lambda: tl.CompilationCache(None), "max_entries must be a whole number"),
        (lambda: tl.MemoryPool(np.ones(2)), "max_bytes is a number of bytes"),
        (lambda: tl.TrainerConfig(precision=["float16"]), r"half the size, got \['float16'\]"),
        (lambda: tl.GraphBuilder().cross_entropy(np.eye(2), np.eye(2), smoothing="0.1"), "label smoothing is a share"),
        (lambda: tl.GraphBuilder().dropout(np.eye(2), None), "the rate of dropout is a share from 0 up to 1, got None"),
        (lambda: tl.GraphBuilder().conv(np.ones((1, 8, 3)), "w"), "conv: weights"),
        (lambda: EX.execute_stream(tl.batched(LAYER, ["x"]), RAGGED, inputs=WEIGHTS).result(), "input 'x': a rectangular"),
        (lambda: tl.quantize(summed(), tl.QuantizationConfig(tl.QuantizationType.INT8), calibration=[RAGGED]), "input 'x': a rectangular"),
        (lambda: tl.quantize(summed(), tl.QuantizationConfig(tl.QuantizationType.INT8), params="w"), "params= are arrays"),
        (lambda: tl.Trainer(EX).fit(summed(), {"w": np.ones((3, 2))}, RAGGED), "data 'x': a rectangular"),
        (lambda: tl.Trainer(EX).fit(summed(), {"w": np.ones((3, 2))}, {}, fixed=RAGGED), "fixed 'x': a rectangular"),
        (lambda: EX.execute_stream(LAYER, {"x": np.ones(3), 5: 1}, inputs=WEIGHTS).result(), "the source has 5, but the graph has no such input"),
        (lambda: tl.MemoryEstimator().estimate(summed(), RAGGED), "a rectangular array is expected"),
        (lambda: tl.GraphValidator().validate(None), "validate takes an EinsumGraph"),
        (lambda: tl.debug.BreakpointManager().remove([]), r"taken away by its number, got \[\]"),
        (lambda: tl.TensorCache().insert([], [1.0]), "a key has a hash"),
        (lambda: tl.TensorCache().get({}), "a key has a hash"),
        (lambda: tl.WorkspacePool(growth=None), "growth is a factor of at least 1, got None"),
        (lambda: tl.CheckpointManager("never_written").save(RAGGED), "array 'x': a rectangular"),
        (lambda: tl.CheckpointManager("never_written").load(None), "the number of a checkpoint must be"),
        (lambda: tl.optim.one_cycle(0.1, steps=None), "steps is a whole number from 1, got None"),
        (lambda: tl.BestCheckpoint(None), "a folder is given by its path"),
        (lambda: tl.RecoveryConfig(fallback_backends=[["numpy"]]), "there is no backend"),
        (lambda: tl.AdaptiveOptimizer(5), "the ways to choose from are a list"),
        (lambda: tl.ViewBuilder("x", "abc"), "a rank must be a whole number"),
        (lambda: tl.Client(None), "the address of a server is text, got None"),
        (lambda: LAYER.with_axis_names("abc"), "names of axes are by input or output"),
        (lambda: tl.Program("Y[i] = X[i]").run(X=None), "tensor 'X': None is given where an array is expected"),
        (lambda: tl.Program("Y[i] = X[i]").bind({"X": [[1], [1, 2]]}), "tensor 'X': a rectangular array"),
        (lambda: tl.Program("P(A)").add("", [("B",)]), "the name of a relation is empty"),
        (lambda: tl.Program("P(A)").retract(None, [("B",)]), "a relation is named by text, got None"),
        (lambda: LAYER.with_scores(None), "scores are names of inputs"),
        (lambda: tl.GraphBuilder().uniform(None, 0, key=0), "a shape must be a sequence of sizes"),
        (lambda: EX.plan(summed(), {"x": np.ones(3)}, budget=-(10**5000)), "a budget is a number of bytes, got about -1e"),
        (lambda: tl.trace(detail=np.ones(2)), "the detail of a trace is 'step' or 'op'"),
        (lambda: tl.Trace.load(5), "a file is given by its path, got 5"),
        (lambda: tl.Trace().save(5), "a file is given by its path, got 5"),
        (lambda: tl.CompiledGraph.load(5), "a folder is given by its path, got 5"),
        (lambda: EX.compile_graph(LAYER).save("a\0b"), "can be no name of a folder"),
        (lambda: LAYER.save("\ud800"), "can be no name of a file"),
        (lambda: tl.PerformanceBaseline.load(5), "a file is given by its path, got 5"),
        (lambda: tl.unscale(None, 2.0), "an EinsumGraph is expected"),
        (lambda: tl.clip_by_norm(None, 2.0), "an EinsumGraph is expected"),
        (lambda: tl.Executor(native=np.ones(2)), "native= is True or False, got array"),
        (lambda: tl.GraphBuilder().input("x", (3,)).sum(keepdims=2), "keepdims= must be True or False, got 2"),
        (lambda: tl.GraphBuilder().sort(np.ones(2), descending="no"), "descending= must be True or False, got 'no'"),
        (lambda: tl.GraphBuilder().fixpoint(lambda c: c, np.ones(2), limit=2**63), "a fixpoint's limit must fit 64 bits"),
        (lambda: tl.GraphBuilder().input("x", (3,))[2**63], "an index must fit 64 bits"),
        (lambda: EX.execute(LAYER, {10**5000: 1}), "about 1e5000"),
        (lambda: tl.GraphBuilder().input("x", b"n,3"), "must be a sequence, got b'n,3'"),
        (lambda: tl.GraphBuilder().input("x", "n×3"), "must be a sequence, got 'n×3'"),
        (lambda: tl.EinsumGraph.from_text('graph {\n x: any = input()\n y: any = sum(x, axes="\\ud800")\n return y=y\n}'), "half a surrogate pair"),
        (lambda: tl.BottleneckAnalyzer(least=None), "least= is a percentage between 0 and 100, got None"),
        (lambda: tl.GraphBuilder().pad(np.ones(3), {HUGE: 1}), "for every axis, got dict"),
        (lambda: tl.GraphBuilder().apply_many([HUGE]), "list holds a value that an operation cannot have"),
        (lambda: tl.GraphBuilder().cond(True, [HUGE], list), "must be a function, got list"),
        (lambda: tl.GraphBuilder().einsum("i->", np.ones(3), algebra=[HUGE]), "unknown algebra list"),
        (lambda: tl.and_({HUGE: 1}), "an expression is expected, got dict"),
        (lambda: tl.imply(HUGE, 1), "an integer of more than 1024 bits is beyond every dtype"),
        (lambda: tl.CompilerContext((HUGE,)), "domains are a mapping of names to sizes or names, got tuple"),
        (lambda: tl.PlacementOptimizer([HUGE]), "a list of at least one device, got list"),
        (lambda: tl.GraphBuilder().input("x", ENDLESS), "is for more than 64 axes"),
        (lambda: tl.GraphBuilder().reshape(np.ones(3), ENDLESS), "is for more than 64 axes"),
        (lambda: tl.GraphBuilder().broadcast_to(np.ones(3), ENDLESS), "is for more than 64 axes"),
        (lambda: tl.GraphBuilder().transpose(np.ones(3), ENDLESS), "is for more than 64 axes"),
        (lambda: tl.GraphBuilder().sum(np.ones(3), axis=ENDLESS), "is for more than 64 axes"),
        (lambda: tl.GraphBuilder().einsum(ENDLESS), "each operand has a list of integer labels, got 0"),
        (lambda: tl.GraphBuilder().einsum([ENDLESS], np.ones(3)), "at most 1000 labels"),
        (lambda: tl.GraphBuilder().gelu(np.ones(3), approximate=np.ones(2)), "approximate= must be True or False"),
        (lambda: tl.GraphBuilder().logsumexp(np.ones(3), keepdims=np.zeros((0, 3))), "keepdims= must be True or False"),
        (lambda: tl.GraphBuilder().uniform((3,), 0, key=[[1], [1, 2]]), "a key must be an integer"),
        (lambda: tl.GraphBuilder().dropped(np.ones(3), 0.5, True, 0, [1]), "a key must be an integer"),
        (lambda: EX.load_checkpoint("\ud800"), "can be no name of a folder"),
        (lambda: tl.CompilationCache(folder=["c"]), r"a folder is given by its path, got \['c'\]"),
        (lambda: tl.CheckpointManager("never_written", wrap=(3, 4)), "a wrapper is a function, got 3"),
        (lambda: tl.CheckpointManager("never_written", wrap=3), "wrap= is a list of functions"),
        (lambda: EX.optimal_batch_size(LAYER, ITEM, seconds={}), "seconds= is how long sizes are tried, got {}"),
        (lambda: EX.optimal_batch_size(LAYER, ITEM, shared=3), "shared= names inputs, got 3"),
        (lambda: EX.execute_stream(tl.batched(LAYER, ["x"]), RAGGED, inputs=WEIGHTS, progress=np.ones(2)), "progress= must be True or False"),
        (lambda: tl.MemoryEstimator(passes=0.5), "passes= are functions from a graph to a graph, got 0.5"),
        (lambda: tl.Store({}), "the bound of a store is a number, got {}"),
        (lambda: tl.initial(summed(), np.int8(-1)), "names= are the inputs to draw values for"),
        (lambda: tl.Trace(threads=3), "threads= are names by number, got 3"),
        (lambda: tl.Trace(events=True), "events are a list, got True"),
        (lambda: tl.Trace(events=[None]), "an event is a TraceEvent, got None"),
        (lambda: tl.AdaptiveOptimizer([[]]), r"a way to choose is named by text, got \[\]"),
        (lambda: tl.optim.with_decay(64, 0.5), "an optimizer is expected, got 64"),
        (lambda: tl.optim.to_json(64), "an optimizer is expected, got 64"),
        (lambda: tl.optim.from_json(64), "an optimizer is written as a mapping, got 64"),
        (lambda: tl.optim.from_json({}), "the optimizer None is not one of"),
        (lambda: tl.optim.from_json({"name": "adam"}), "the optimizer 'adam' has not the settings"),
        (lambda: tl.optim.rate_from_json({1: 2}), "the schedule None is not one of"),
        (lambda: tl.optim.rate_from_json([]), "a learning rate is a number or a schedule"),
        (lambda: tl.shard("x", {"x": 0}, 2, 0), "an EinsumGraph is expected"),
        (lambda: tl.TensorView("x", 3), "specs are a list, one for each axis, got 3"),
        (lambda: tl.TensorView("x", base_shape=3), "base_shape= is a sequence of sizes, got 3"),
        (lambda: tl.TensorView("x", base_shape=["n"]), "base_shape: a size must be an integer"),
        (lambda: tl.TensorView("x", offset="a"), "an offset must be an integer"),
        (lambda: tl.TensorView("x", window=3), "window= is a Window, got 3"),
        (lambda: tl.Relation("P", np.ones(2), [], 3), "heads= are titles, one for each place, got 3"),
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tl.TensorLogicError) as caught:
        call()
    found = caught.value.diagnostic
    assert re.search(message, found.message)  # and not in the source, which stands below it
    assert all(len(hint) < 200 and "\n" not in hint for hint in found.suggestions)


@pytest.mark.parametrize(
    ("threads", "shown"), [(0, "0"), (1025, "1025"), (10**5000, "about 1e5000")], ids=["none", "too many", "huge"]
)
def test_threads_are_a_number_that_a_machine_may_have(threads, shown):
    message = f"threads must be a whole number of at least 1 and at most 1,024, got {shown}"
    with pytest.raises(tl.InputError, match=message):
        tl.Executor(threads=threads)
    assert tl.Executor(threads=1024).threads == 1024


LONG, LONGEST = str(2**64), "an integer of more than 1024 bits is beyond every dtype"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, x: x * 2**64, f"the integer {LONG} does not fit int64"),
        (lambda b, x: (x > 0) + 2**64, f"the integer {LONG} does not fit int64"),
        (lambda b, x: b.where(x > 0, x, -(2**64)), f"the integer -{LONG} does not fit int64"),
        (lambda b, x: b.literal(2**64) + 1, f"the integer {LONG} does not fit int64"),
        (lambda b, x: x * HUGE, LONGEST),
        (lambda b, x: b.literal(HUGE), LONGEST),
        (lambda b, x: b.constant(HUGE), LONGEST),
        (lambda b, x: b.constant([[1], [HUGE]]), LONGEST),
        (lambda b, x: b.constant(2**64), f"the integer {LONG} does not fit 64 bits"),
        (lambda b, x: b.add(x, [2**64, 1, 1]), f"the integer {LONG} does not fit 64 bits"),
    ],
)
def test_integers_that_no_array_holds_are_refused_where_they_are_written(build, message):
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (3,), "int64")
    with pytest.raises(tl.DTypeError, match=f"^{message}\n") as caught:
        build(b, x)
    assert caught.value.diagnostic.code == "E124"
    given = {"x": np.arange(3)}
    assert EX.execute(b.build(y=x + 1), given)["y"].tolist() == [1, 2, 3]  # what was refused is not in the graph


def test_large_integers_meet_floats_and_comparisons():
    b = tl.GraphBuilder()
    x, y, z = b.input("x", (3,), "int64"), b.input("y", (3,), "float64"), b.input("z", (3,))
    graph = b.build(less=x < 2**64, product=y * 2**64, wide=b.cast(x, "uint64") + (2**64 - 1), open=z * 2**64)
    out = EX.execute(graph, {"x": np.zeros(3, "i8"), "y": np.ones(3), "z": np.ones(3)})
    assert out["less"].all() and (out["wide"] == 2**64 - 1).all()
    assert (out["product"] == 2.0**64).all() and (out["open"] == 2.0**64).all()
    with pytest.raises(tl.ExecutionError, match=rf"\(multiply\) failed: the integer {LONG} is too large"):
        EX.execute(b.build(y=z * 2**64), {"z": np.ones(3, "i8")})


@pytest.mark.parametrize(
    "call",
    [
        lambda: tl.GraphBuilder().input("x\ud800", (3,)),
        lambda: (b := tl.GraphBuilder()).build({"\udc00": b.input("x", (3,))}),
        lambda: tl.pred("\ud800", tl.variables("x")),
        lambda: tl.pred("p", "\ud800"),
        lambda: tl.variables("x", domain="\ud800"),
        lambda: tl.parse_expr("p(x) &\n p(\ud800)"),
        lambda: tl.parse_expr('p("\ud800")'),
        lambda: tl.Program("P(\ud800)"),
    ],
)
def test_half_of_a_surrogate_pair_is_in_no_name(call):
    with pytest.raises(tl.TensorLogicError, match="has half of a surrogate pair, which is no text") as caught:
        call()
    assert caught.value.diagnostic.code == "E231"
    str(caught.value).encode()  # it can be printed
    caught.value.diagnostic.format().encode()


def test_errors_can_be_printed_whatever_they_quote():
    b = tl.GraphBuilder()
    with pytest.raises(tl.SpecError, match=r"\n  \?->\n") as caught:
        b.einsum("\ud800->", b.input("x", (3,)))
    assert str(caught.value).isascii()
    with pytest.raises(tl.FormatError) as caught:
        tl.parse_expr("p(x) &\n p(\ud800)")
    assert "<expression>:2:4\n    p(?)\n      ^" in str(caught.value)


def test_hints_about_sizes_that_disagree_can_work():
    b = tl.GraphBuilder()
    x, y = b.input("x", ("n",)), b.input("y", ("n",))
    said = "size 'n' is 6 by sizes=, but axis 0 of input 'x' is 5"
    with pytest.raises(tl.ShapeError, match=f"input 'x' does not fit: {said}") as caught:
        EX.execute(b.build(z=b.relu(x)), {"x": np.arange(5.0)}, sizes={"n": 6})
    assert caught.value.diagnostic.suggestions == ("leave 'n' out of sizes=, or give 'x' with 6 along axis 0",)
    with pytest.raises(
        tl.ShapeError, match=r"size 'n' is 5 by axis 0 of input 'x', but axis 0 of input 'y' is 6"
    ) as caught:
        EX.execute(b.build(z=x + y), {"x": np.arange(5.0), "y": np.arange(6.0)})
    assert "reshape" not in str(caught.value)
