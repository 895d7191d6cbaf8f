"""Random losses, configs and accidents: whatever happens, a trainer keeps good parameters, and a resumed run is the whole one."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.passes.grad import GradientWarning
from tensorlogic.testing.strategies import graphs

RELAXED = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
RATES = {
    "sgd": 0.05, "momentum": 0.01, "nesterov": 0.01, "adam": 0.02, "adamw": 0.02, "rmsprop": 0.01, "adagrad": 0.05, "lion": 0.01,
}  # fmt: skip
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "softplus", "square", "absolute", "sin")


@st.composite
def problems(draw):
    """A small network with parts drawn at random: its loss graph, parameters, states and data."""
    b, rng = tl.GraphBuilder(), np.random.default_rng(draw(st.integers(0, 99)))
    rows, width = draw(st.integers(1, 13)), draw(st.integers(1, 4))
    h, names, running = b.input("x", ("n", width), "float32"), [], {}
    for n in range(draw(st.integers(1, 3))):
        out = draw(st.integers(1, 4))
        names += [f"w{n}", f"c{n}"]
        h = b.linear(h, b.input(f"w{n}", (width, out), "float32"), b.input(f"c{n}", (out,), "float32"))
        h = getattr(b, draw(st.sampled_from(ACTIVATIONS)))(h)
        if draw(st.booleans()):
            h, more = b.running_batch_norm(h, f"norm{n}", momentum=0.5)
            running |= more
        if draw(st.booleans()):
            h = b.dropout(h, 0.3)
        width = out
    error = b.mean_squared_error(h, b.reshape(b.input("y", ("n",), "float32"), ("n", 1)))
    graph = b.build(loss=error, size=b.mean(b.absolute(h)), **running)
    starts = {
        name: np.full(graph.type_of(graph.inputs[name]).shape, float(name.endswith("var")), "float32")
        for name in running
    }
    data = {
        "x": rng.normal(size=(rows, graph.type_of(graph.inputs["x"]).shape[1])).astype("float32"),
        "y": rng.normal(size=rows).astype("float32"),
    }
    return graph, tl.initial(graph, names, "normal", seed=3), starts, data


@st.composite
def configs(draw, rows):
    name = draw(st.sampled_from(sorted(RATES)))
    rate = RATES[name]
    if draw(st.booleans()):
        rate = draw(
            st.sampled_from(
                [
                    tl.optim.cosine(rate, steps=7),
                    tl.optim.warmup(rate, steps=3),
                    tl.optim.plateau(rate, watch="loss", patience=0),
                ]
            )
        )
    return tl.TrainerConfig(
        optimizer=getattr(tl.optim, name)(rate), epochs=draw(st.integers(1, 3)), batch_size=draw(st.integers(1, rows)),
        seed=draw(st.integers(0, 3)), shuffle=draw(st.booleans()), drop_last=draw(st.booleans()),
        clip_norm=draw(st.sampled_from([None, 0.5])), clip_value=draw(st.sampled_from([None, 0.1])),
        average=draw(st.sampled_from([None, 0.5])), precision=draw(st.sampled_from([None, None, "float16"])),
        settings=draw(st.sampled_from([{}, {"w0": {"frozen": True}}, {"c*": {"rate": 0.5, "weight_decay": 0.1}}])), progress=False,
    )  # fmt: skip


def same(one, other):
    assert one.values.keys() == other.values.keys()
    for name, value in one.values.items():
        np.testing.assert_array_equal(value, other.values[name], err_msg=name)
    assert repr(one.history.epochs) == repr(other.history.epochs)
    assert (one.epoch, one.batch, one.steps) == (other.epoch, other.batch, other.steps)


class Stop(tl.Callback):
    def __init__(self, step):
        self.step = step

    def on_batch(self, trainer, figures):
        if trainer.steps == self.step:
            raise RuntimeError("stopped")


@RELAXED
@given(st.data(), problems())
def test_a_run_that_stops_anywhere_goes_on_as_if_it_had_not(tmp_path_factory, drawn, problem):
    graph, params, states, data = problem
    config = drawn.draw(configs(len(data["y"])))
    whole = tl.Trainer(None, config)
    try:
        whole.fit(graph, params, data, states=states)
    except tl.TrainingError as error:
        assert "the loss is" in str(error)
        return
    folder = tmp_path_factory.mktemp("run")
    config = tl.TrainerConfig(**{**vars(config), "folder": folder, "every": 1})
    stop = drawn.draw(st.integers(1, max(1, whole.steps)))
    with pytest.raises(RuntimeError, match="stopped"):
        tl.Trainer(None, config, callbacks=[Stop(stop)]).fit(graph, params, data, states=states)
    if not list(folder.glob("*.json")):
        return  # it stopped in the first batch, before anything was kept
    resumed = tl.Trainer.resume(folder)
    resumed.fit(data=data)
    same(resumed, whole)


@RELAXED
@given(st.data(), problems())
def test_bad_data_stops_a_run_and_the_parameters_are_those_before(drawn, problem):
    graph, params, states, data = problem
    rows = len(data["y"])
    bad = {name: value.copy() for name, value in data.items()}
    name, row = drawn.draw(st.sampled_from(["x", "y"])), drawn.draw(st.integers(0, rows - 1))
    bad[name][row] = drawn.draw(st.sampled_from([np.nan, np.inf, 3e38]))
    trainer = tl.Trainer(None, tl.TrainerConfig(optimizer=tl.optim.sgd(0.01), epochs=1, batch_size=1, shuffle=False))
    try:
        trainer.fit(graph, params, bad, states=states)
    except tl.TrainingError as error:
        assert f"at batch {row + 1} of epoch 1" in str(error) or row < trainer.steps
    for value in trainer.params.values():
        assert np.isfinite(value).all() or trainer.steps > row


@RELAXED
@given(problems(), st.sampled_from(sorted(RATES)), st.sampled_from([1e10, 1e30, 3e38]))
def test_huge_rates_end_in_an_error_that_names_a_batch_or_in_numbers(problem, name, rate):
    graph, params, states, data = problem
    trainer = tl.Trainer(None, tl.TrainerConfig(optimizer=getattr(tl.optim, name)(rate), epochs=2, batch_size=1))
    try:
        history = trainer.fit(graph, params, data, states=states)
    except tl.TrainingError as error:
        assert "the loss is" in str(error)
    else:
        assert np.isfinite(history["loss"]).all()


@RELAXED
@given(graphs(dtypes=("float32",), most=6, smooth=True, sizes=(3, 1, 2)), st.sampled_from(["exact", "fast"]))
def test_any_graph_of_floats_can_be_learned_and_resumed(tmp_path_factory, case, policy):
    b = tl.GraphBuilder()
    outputs = b.inline(case.graph)
    terms = [b.mean(b.square(b.sin(x))) for x in outputs.values() if x.dtype == "float32"]
    reached = {name: value for name, value in case.inputs.items() if value.size}
    if not terms or len(reached) < len(case.inputs):
        return
    graph = b.build(loss=sum(terms[1:], terms[0]) + 0.1 * b.mean(b.input("extra", ("rows",), "float32")))
    reached = {name: value for name, value in reached.items() if name in graph.inputs}
    if not reached:
        return
    folder, data = tmp_path_factory.mktemp("run"), {"extra": np.float32([1, 2, 3])}

    def config(epochs, folder=None):
        return tl.TrainerConfig(optimizer=tl.optim.adam(0.01), epochs=epochs, batch_size=2, folder=folder)

    whole = tl.Trainer(tl.Executor(policy=policy), config(3))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientWarning)
            whole.fit(graph, reached, data)
    except tl.TensorLogicError as error:
        # no way from a parameter to the loss, or no number
        assert error.diagnostic.code in ("E336", "E842", "E871", "E877"), error
        return
    half = tl.Trainer(tl.Executor(policy=policy), config(1))
    half.executor.programs.prefer(whole.executor.programs.choices())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        half.fit(graph, reached, data)
        half.save(folder)
        resumed = tl.Trainer.resume(folder, tl.Executor(policy=policy))
        resumed.config = config(3)
        resumed.fit(data=data)
    same(resumed, whole)
