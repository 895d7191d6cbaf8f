"""Losses beside plain NumPy and finite differences; first values; random numbers; rules; logs and progress."""

import io
import itertools

import numpy as np
import pytest
from problems import regression, regression_data, regression_params

import tensorlogic as tl
from tensorlogic.train.initial import SCHEMES

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4))
LABELS = RNG.integers(0, 4, 6)
CHANCES = np.exp(Y) / np.exp(Y).sum(1, keepdims=True)
ONES = np.array([1.0, 1, 0, 1, 0, 1]).reshape(6, 1)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def mean(values, weights=None):
    return values.mean() if weights is None else (values * weights).sum() / (np.ones_like(values) * weights).sum()


LOSSES = {
    "squared": (lambda b, x, w: b.mean_squared_error(x, Y, weights=w), lambda x, w: mean((x - Y) ** 2, w)),
    "absolute": (lambda b, x, w: b.mean_absolute_error(x, Y, weights=w), lambda x, w: mean(abs(x - Y), w)),
    "huber": (
        lambda b, x, w: b.huber(x, Y, delta=0.7, weights=w),
        lambda x, w: mean(np.where(abs(x - Y) < 0.7, (x - Y) ** 2 / 2, 0.7 * (abs(x - Y) - 0.35)), w),
    ),
    "binary": (
        lambda b, x, w: b.binary_cross_entropy(x, CHANCES, weights=w, smoothing=0.2),
        lambda x, w: mean(np.log1p(np.exp(x)) - x * (CHANCES * 0.8 + 0.1), w),
    ),
    "hinge": (
        lambda b, x, w: b.hinge(x, np.sign(Y), margin=0.9, weights=w),
        lambda x, w: mean(np.maximum(0, 0.9 - np.sign(Y) * x), w),
    ),
    "margin ranking": (
        lambda b, x, w: b.margin_ranking(x, Y, margin=0.3, weights=w),
        lambda x, w: mean(np.maximum(0, 0.3 + Y - x), w),
    ),
}
ROWS = {  # one value for each row
    "labels": (
        lambda b, x, w: b.cross_entropy(x, LABELS, weights=w),
        lambda x, w: mean(-log_softmax(x)[np.arange(6), LABELS], w),
    ),
    "smooth labels": (
        lambda b, x, w: b.cross_entropy(x, LABELS, weights=w, smoothing=0.1),
        lambda x, w: mean(-(log_softmax(x) * (0.9 * np.eye(4)[LABELS] + 0.025)).sum(1), w),
    ),
    "chances": (
        lambda b, x, w: b.cross_entropy(x, CHANCES, weights=w),
        lambda x, w: mean(-(log_softmax(x) * CHANCES).sum(1), w),
    ),
    "divergence": (
        lambda b, x, w: b.kl_divergence(CHANCES, x, weights=w),
        lambda x, w: mean((CHANCES * (np.log(CHANCES) - log_softmax(x))).sum(1), w),
    ),
    "triplet": (
        lambda b, x, w: b.triplet(x, Y, 2 * Y, margin=0.5, weights=w),
        lambda x, w: mean(np.maximum(0, 0.5 + ((x - Y) ** 2).sum(1) - ((x - 2 * Y) ** 2).sum(1)), w),
    ),
}
CASES = [(name, pair, weights) for name, pair in LOSSES.items() for weights in (None, ONES)]
CASES += [(name, pair, weights) for name, pair in ROWS.items() for weights in (None, ONES[:, 0])]


@pytest.mark.parametrize(("name", "pair", "weights"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_losses_are_what_their_formulas_say_and_so_are_their_slopes(name, pair, weights):
    build, expected = pair
    b = tl.GraphBuilder()
    graph = b.build(loss=build(b, b.input("x", X.shape, "float64"), weights))
    found = tl.Executor().execute(tl.value_and_grad(graph), {"x": X})
    np.testing.assert_allclose(found["loss"], expected(X, weights), rtol=1e-10)
    slopes = np.zeros_like(X)
    for place in itertools.product(*map(range, X.shape)):
        step = np.zeros_like(X)
        step[place] = 1e-6
        slopes[place] = (expected(X + step, weights) - expected(X - step, weights)) / 2e-6
    np.testing.assert_allclose(found["d_x"], slopes, atol=1e-7)


def test_nothing_overflows():
    far = np.array([[1e4, -1e4], [-1e4, 1e4]])
    b = tl.GraphBuilder()
    x = b.input("x", (2, 2), "float64")
    graph = b.build(
        loss=b.cross_entropy(x, np.array([1, 1])) + b.binary_cross_entropy(x, 1.0) + b.kl_divergence(np.eye(2), x)
    )
    found = tl.Executor().execute(tl.value_and_grad(graph), {"x": far})
    assert np.isfinite(found["loss"]) and np.isfinite(found["d_x"]).all()


def test_a_mask_of_nothing_is_no_loss():
    b = tl.GraphBuilder()
    graph = b.build(loss=b.mean_squared_error(b.input("x", (6, 4), "float64"), Y, weights=np.zeros((6, 1))))
    found = tl.Executor().execute(tl.value_and_grad(graph), {"x": X})
    assert found["loss"] == 0 and not found["d_x"].any()


# first values

SPREADS = {
    "uniform": 0.05 / 3**0.5, "normal": 0.05, "glorot": (2 / 500) ** 0.5, "glorot_normal": (2 / 500) ** 0.5,
    "he": (2 / 300) ** 0.5, "he_uniform": (2 / 300) ** 0.5, "zeros": 0.0, "ones": 0.0, "orthogonal": 300**-0.5,
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_first_values_have_the_spread_of_their_scheme(scheme):
    b = tl.GraphBuilder()
    w, v = b.input("w", (300, 200), "float32"), b.input("v", (300, 200), "float32")
    graph = b.build(loss=b.sum(w + v))
    found = tl.initial(graph, ["w", "v"], scheme, seed=1)
    assert found["w"].dtype == np.float32
    assert found["w"].std() == pytest.approx(SPREADS[scheme], rel=0.02)
    assert found["w"].mean() == pytest.approx(float(scheme == "ones"), abs=1e-3)
    np.testing.assert_array_equal(found["w"], tl.initial(graph, ["w"], scheme, seed=1)["w"])
    if scheme not in ("zeros", "ones"):
        assert not np.array_equal(found["w"], found["v"])
        assert not np.array_equal(found["w"], tl.initial(graph, ["w"], scheme, seed=2)["w"])
    if scheme == "orthogonal":
        np.testing.assert_allclose(found["w"].T @ found["w"], np.eye(200), atol=1e-5)


# random numbers


def uniform(step, key, executor=None, count=20_000):
    b = tl.GraphBuilder()
    graph = b.build(u=b.uniform((count,), b.input("step", (), "uint64"), key=key))
    return (executor or tl.Executor()).execute(graph, {"step": np.uint64(step)})["u"]


def test_uniform_numbers_are_uniform_and_depend_on_key_step_and_place_alone():
    found = {(step, key): uniform(step, key) for step in (0, 1, 2**31) for key in (0, 1)}
    for numbers in found.values():
        assert numbers.min() >= 0 and numbers.max() < 1
        counts, _ = np.histogram(numbers, 20, (0, 1))
        assert (abs(counts - 1000) < 5 * 1000**0.5).all()
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03
    for one, other in itertools.combinations(found.values(), 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    np.testing.assert_array_equal(uniform(1, 1, count=100), found[1, 1][:100])


def test_every_backend_draws_the_same_bits():
    expected = uniform(5, 3, tl.Executor("reference"), 50)
    for executor in (tl.Executor(), tl.Executor(policy="fast")):
        np.testing.assert_array_equal(uniform(5, 3, executor, 50), expected)


def test_dropout_keeps_the_mean_and_a_share():
    b = tl.GraphBuilder()
    x = b.input("x", (40_000,), "float32")
    graph = b.build(y=b.dropout(x, 0.25), z=b.dropout(x, 0.25))
    inputs = {"x": np.ones(40_000, "float32"), "training.step": np.uint64(3)}
    found = tl.Executor().execute(graph, {**inputs, "training": np.array(True)})
    assert set(np.unique(found["y"])) == {np.float32(0), np.float32(1 / 0.75)}
    assert found["y"].mean() == pytest.approx(1, abs=0.02)
    assert abs(np.corrcoef(found["y"], found["z"])[0, 1]) < 0.03  # each dropout has numbers of its own
    whole = tl.Executor().execute(graph, {**inputs, "training": np.array(False)})
    np.testing.assert_array_equal(whole["y"], inputs["x"])


# rules

TRUTH = {  # of a -> b, for a = 0.8 and b = 0.5
    "soft_differentiable": 1 - 0.8 + 0.4, "fuzzy_product": 0.5 / 0.8, "fuzzy_godel": 0.5,
    "fuzzy_lukasiewicz": 0.7, "probabilistic": 1 - 0.8 + 0.4,
}  # fmt: skip


@pytest.mark.parametrize("strategy", TRUTH)
def test_rules_as_losses_under_each_soft_logic(strategy):
    b = tl.GraphBuilder()
    x = tl.variables("x", domain="D")
    context = tl.CompilerContext(domains={"D": 2})
    rule, fact = tl.pred("a", x) >> tl.pred("b", x), tl.pred("b", x)
    graph = b.build(loss=tl.rule_loss(b, {rule: 3.0, fact: 1.0}, context, strategy=strategy))
    inputs = {"a": np.array([0.8, 0.0]), "b": np.array([0.5, 1.0])}
    lacking = (1 - TRUTH[strategy]) / 2, 0.25
    expected = (3 * lacking[0] + lacking[1]) / 4
    found = tl.Executor().execute(tl.value_and_grad(graph, wrt=["b"]), inputs)
    assert found["loss"] == pytest.approx(expected)
    assert found["d_b"][0] < 0  # to be truer is to lose less


def test_rules_are_learned():
    b = tl.GraphBuilder()
    a, c = (b.sigmoid(b.input(name, (3,), "float32")) for name in ("a_score", "c_score"))
    x = tl.variables("x", domain="D")
    rules = [tl.pred("a", x), tl.pred("a", x) >> tl.pred("c", x)]
    term = tl.rule_loss(b, rules, tl.CompilerContext(domains={"D": 3}), inputs={"a": a, "c": c})
    graph = b.build(loss=term + 0.0 * b.mean(b.input("none", ("n",), "float32")))
    trainer = tl.Trainer(None, tl.TrainerConfig(optimizer=tl.optim.adam(0.1), epochs=100, batch_size=1))
    start = {name: np.zeros(3, "float32") for name in ("a_score", "c_score")}
    assert trainer.fit(graph, start, {"none": np.zeros(1, "float32")})["loss"][-1] < 0.05
    assert (trainer.params["c_score"] > 2).all()


# logs and progress


def fitted(callback, **options):
    config = tl.TrainerConfig(optimizer=tl.optim.sgd(0.1), epochs=2, batch_size=20, shuffle=False, **options)
    trainer = tl.Trainer(None, config, callbacks=[callback])
    trainer.fit(regression(), regression_params(), regression_data())
    return trainer


def test_figures_for_tensorboard_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    trainer = fitted(tl.TensorBoardLog(tmp_path))
    (path,) = tmp_path.iterdir()
    raw, at, found = path.read_bytes(), 0, {}
    while at < len(raw):  # records: a length, its checksum, the event, its checksum
        size = int.from_bytes(raw[at : at + 8], "little")
        event = Event.FromString(raw[at + 12 : at + 12 + size])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        at += 16 + size
    for n, loss in enumerate(trainer.history["loss"], 1):
        assert found["loss", n] == pytest.approx(loss, rel=1e-6)


def test_progress_shows_epoch_batch_figures_and_speed():
    from tensorlogic.train.callbacks import Progress

    file, times = io.StringIO(), itertools.count(0.0, 0.5)
    fitted(Progress(file, clock=lambda: next(times)), progress=False)
    lines = [line.rstrip() for line in file.getvalue().replace("\n", "").split("\r")[1:]]
    assert len(lines) == 6
    assert lines[0].startswith("epoch 1/2  batch 1/2  loss ") and lines[0].endswith("  40 examples/s")
    assert lines[1].startswith("epoch 1/2  batch 2/2  loss ") and lines[1].endswith("  40 examples/s")
    assert lines[2].startswith("epoch 1/2  loss ") and "rate 0.1" in lines[2]
    assert lines[5].startswith("epoch 2/2  loss ")
    assert file.getvalue().count("\n") == 2


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("classes", [100, "k"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_labels_that_are_no_class_are_refused(dtype, classes, declared):
    b = tl.GraphBuilder()
    labels = b.input("labels", ("n",), dtype if declared else None)
    graph = b.build(loss=b.cross_entropy(b.input("z", ("n", classes), "float32"), labels))
    z = np.random.default_rng(0).normal(size=(3, 100)).astype("float32")

    def loss(labels):
        return float(tl.Executor().execute(graph, {"z": z, "labels": np.array(labels, dtype)})["loss"])

    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    assert loss([0, 99, 50]) == pytest.approx(-np.mean([logs[0, 0], logs[1, 99], logs[2, 50]]), rel=1e-5)
    for wrong in (100, -1, -100) if dtype[0] != "u" else (100,):
        with pytest.raises(
            tl.ExecutionError,
            match=r"label -?[0-9]+ is no class: the logits have 100 classes|out of range for an axis of 100",
        ):
            loss([0, 1, wrong])


@pytest.mark.parametrize("dtype", ["int64", "float32", None])
def test_labels_with_an_axis_of_one_are_refused(dtype):
    b = tl.GraphBuilder()
    with pytest.raises(tl.ShapeError, match="one place for the classes") as caught:
        b.cross_entropy(b.input("z", ("n", 4), "float32"), b.input("labels", ("n", 1), dtype))
    assert "reshape(target, ('n',))" in str(caught.value)
    one = b.build(loss=b.cross_entropy(b.input("one", ("n", 1), "float32"), b.input("all", ("n", 1), "float32")))
    assert tl.Executor().execute(one, {"one": np.ones((2, 1), "f4"), "all": np.ones((2, 1), "f4")})["loss"] == 0
