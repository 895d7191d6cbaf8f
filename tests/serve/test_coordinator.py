"""Several models: ensembles beside scikit-learn's, routes, canaries, shadows, and a bound of memory."""

import threading
from random import Random

import numpy as np
import pytest
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier

import tensorlogic as tl
from tensorlogic import EnsembleStrategy, MultiModelCoordinator, RoutingStrategy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
CLASSES = np.argmax(X @ RNG.normal(size=(5, 3)) + 0.8 * RNG.normal(size=(300, 3)), axis=1)
NUMBERS = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * RNG.normal(size=300)
PARTS = [[0, 1, 2], [1, 2, 3], [2, 3, 4]]  # the columns that each member sees


def linear_graph(columns, weights, offsets, *, classes):
    """Return the graph of a linear model that sees some columns."""
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 5), "float64")
    seen = np.zeros((5, *np.shape(weights)[1:]))
    seen[columns] = weights
    scores = x @ b.constant(seen) + b.constant(np.asarray(offsets))
    return b.build(y=b.softmax(scores) if classes else scores)


class Columns:
    """An estimator of scikit-learn that sees some columns only."""

    def __new__(cls, kind, columns):
        from sklearn.compose import ColumnTransformer
        from sklearn.pipeline import make_pipeline

        return make_pipeline(ColumnTransformer([("own", "passthrough", columns)]), kind)


def classifiers():
    found = [Columns(LogisticRegression(), columns).fit(X, CLASSES) for columns in PARTS]
    graphs = [
        linear_graph(columns, own[-1].coef_.T, own[-1].intercept_, classes=True)
        for columns, own in zip(PARTS, found, strict=True)
    ]
    return found, graphs


def regressors():
    found = [Columns(LinearRegression(), columns).fit(X, NUMBERS) for columns in PARTS]
    graphs = [
        linear_graph(columns, own[-1].coef_, own[-1].intercept_, classes=False)
        for columns, own in zip(PARTS, found, strict=True)
    ]
    return found, graphs


def registered(graphs, **options):
    coordinator = MultiModelCoordinator(**options)
    for n, graph in enumerate(graphs):
        coordinator.register(f"m{n}", graph, cost=n + 1.0, accuracy=0.5 + 0.1 * n, priority=n)
    return coordinator, [f"m{n}" for n in range(len(graphs))]


def test_averaging_is_scikit_learns():
    found, graphs = regressors()
    coordinator, names = registered(graphs)
    weights = [1.0, 2.0, 4.0]
    coordinator.ensemble("mean", names, EnsembleStrategy.AVERAGING, weights=weights)
    peer = VotingRegressor([(n, own) for n, own in zip(names, found, strict=True)], weights=weights).fit(X, NUMBERS)
    np.testing.assert_allclose(coordinator.run("mean", {"x": X})["y"], peer.predict(X))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 1.5]])
def test_voting_is_scikit_learns(soft, weights):
    found, graphs = classifiers()
    coordinator, names = registered(graphs)
    coordinator.ensemble("votes", names, EnsembleStrategy.VOTING, soft=soft, weights=weights)
    members = [(n, own) for n, own in zip(names, found, strict=True)]
    peer = VotingClassifier(members, voting="soft" if soft else "hard", weights=weights).fit(X, CLASSES)
    outputs = coordinator.run("votes", {"x": X})
    np.testing.assert_array_equal(outputs["label"], peer.predict(X))
    if soft:
        np.testing.assert_allclose(outputs["probabilities"], peer.predict_proba(X))


def test_stacking_is_scikit_learns():
    found, graphs = classifiers()
    coordinator, names = registered(graphs)
    graph = coordinator.ensemble("stack", names, EnsembleStrategy.STACKING, data={"x": X}, target=CLASSES)
    peer = StackingClassifier(
        [(n, own) for n, own in zip(names, found, strict=True)],
        LogisticRegression(C=1.0, tol=1e-8, max_iter=1000),
        cv="prefit",
    ).fit(X, CLASSES)
    outputs = coordinator.run("stack", {"x": X})
    np.testing.assert_allclose(outputs["probabilities"], peer.predict_proba(X), atol=2e-4)
    assert np.mean(outputs["label"] == peer.predict(X)) > 0.99
    assert list(graph.inputs) == ["x"]

    found, graphs = regressors()
    coordinator, names = registered(graphs)
    coordinator.ensemble("stack", names, EnsembleStrategy.STACKING, data={"x": X}, target=NUMBERS, regularization=0.5)
    members = [(n, own) for n, own in zip(names, found, strict=True)]
    peer = StackingRegressor(members, Ridge(alpha=0.5), cv="prefit").fit(X, NUMBERS)
    np.testing.assert_allclose(coordinator.run("stack", {"x": X})["y"], peer.predict(X), rtol=1e-7)


def stump_graph(tree, *, classes):
    """Return the graph of a tree with one test."""
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 5), "float64")
    values = tree.value[:, 0, :] if classes else tree.value[:, 0, 0]
    if tree.feature[0] < 0:  # a leaf alone
        raise AssertionError("a stump has a test")
    below = b.cast(x[:, int(tree.feature[0])], "float32") <= float(tree.threshold[0])
    if classes:
        return b.build(y=b.where(below, int(np.argmax(values[1])), int(np.argmax(values[2]))))
    return b.build(y=b.where(below, float(values[1]), float(values[2])))


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_boosting_of_classes_is_scikit_learns(rate):
    peer = AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=12, learning_rate=rate, random_state=0)
    peer.fit(X.astype("float32"), CLASSES)
    coordinator, names = registered([stump_graph(tree.tree_, classes=True) for tree in peer.estimators_])
    coordinator.ensemble("boost", names, EnsembleStrategy.BOOSTING, data={"x": X}, target=CLASSES, learning_rate=rate)
    from tensorlogic.serve.ensembles import _adaboost_stages

    guesses = [tree.predict(X.astype("float32")) for tree in peer.estimators_]
    np.testing.assert_allclose(_adaboost_stages(guesses, CLASSES, 3, rate), peer.estimator_weights_, rtol=1e-9)
    outputs = coordinator.run("boost", {"x": X})
    assert np.mean(outputs["label"] == peer.predict(X.astype("float32"))) > 0.99


def test_boosting_of_numbers_is_scikit_learns():
    peer = GradientBoostingRegressor(n_estimators=15, max_depth=1, learning_rate=0.3, random_state=0)
    peer.fit(X.astype("float32"), NUMBERS)
    coordinator, names = registered([stump_graph(tree[0].tree_, classes=False) for tree in peer.estimators_])
    coordinator.ensemble("boost", names, EnsembleStrategy.BOOSTING, data={"x": X}, target=NUMBERS, learning_rate=0.3)
    np.testing.assert_allclose(
        coordinator.run("boost", {"x": X})["y"], peer.predict(X.astype("float32")), rtol=1e-6, atol=1e-6
    )


def test_what_members_share_is_computed_once():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 5), "float64")
    features = b.tanh(x @ b.constant(RNG.normal(size=(5, 64))))
    heads = [b.build(y=b.softmax(features @ b.constant(RNG.normal(size=(64, 3))))) for _ in range(4)]
    coordinator, names = registered(heads)
    graph = coordinator.ensemble("mean", names, EnsembleStrategy.AVERAGING)
    assert str(graph).count("tanh") == 1
    expected = np.mean([tl.Executor().execute(head, {"x": X})["y"] for head in heads], axis=0)
    np.testing.assert_allclose(coordinator.run("mean", {"x": X})["y"], expected)


def test_routes():
    _, graphs = classifiers()
    ticks = iter(np.arange(0.0, 1000.0, 0.25))
    coordinator, names = registered(graphs, clock=lambda: float(next(ticks)))
    for strategy, model in ((RoutingStrategy.PRIORITY, "m2@1"), (RoutingStrategy.ACCURACY, "m2@1")):
        routed = coordinator.route({"x": X}, strategy)
        assert routed.model == model
        np.testing.assert_array_equal(routed.outputs["y"], coordinator.run("m2", {"x": X})["y"])
    turns = [coordinator.route({"x": X}, RoutingStrategy.ROUND_ROBIN, names[:2]).model for _ in range(4)]
    assert turns == ["m0@1", "m1@1", "m0@1", "m1@1"]
    with pytest.raises(tl.InputError, match="no model 'm7'"):
        coordinator.route({"x": X}, models=["m7"])
    with pytest.raises(tl.InputError, match="no model to route"):
        MultiModelCoordinator().route({"x": X})


def test_latency_goes_to_the_fastest_after_each_was_tried():
    now = [0.0]

    def slow_by(seconds):
        def wrap(call):
            def timed(step, args):
                now[0] += seconds
                return call(step, args)

            return timed

        return wrap

    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",)) * 2)
    coordinator = MultiModelCoordinator(clock=lambda: now[0])
    for name, seconds in (("slow", 2.0), ("fast", 0.5), ("middle", 1.0)):
        coordinator.register(name, tl.Executor(wrap=[slow_by(seconds)]).compile_graph(graph))
    asked = [coordinator.route({"x": [1.0]}, RoutingStrategy.LATENCY).model for _ in range(6)]
    assert set(asked[:3]) == {"slow@1", "fast@1", "middle@1"}
    assert asked[3:] == ["fast@1"] * 3


def test_priority_falls_back_where_a_model_fails_but_not_for_wrong_inputs():
    def broken(call):
        def failing(step, args):
            raise RuntimeError("out of order")

        return failing

    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",)) * 2)
    coordinator = MultiModelCoordinator()
    coordinator.register("main", tl.Executor(wrap=[broken]).compile_graph(graph), priority=2)
    coordinator.register("spare", graph, priority=1)
    assert coordinator.route({"x": [1.0]}).model == "spare@1"
    with pytest.raises(tl.InputError):
        coordinator.route({"z": [1.0]})
    stats = coordinator.stats()
    assert (stats["main@1"].errors, stats["spare@1"].calls) == (2, 1)
    coordinator.remove("spare")
    with pytest.raises(tl.ExecutionError, match="out of order"):
        coordinator.route({"x": [1.0]})


def test_a_cascade_gives_only_undecided_rows_on():
    _, graphs = classifiers()
    coordinator, _ = registered(graphs)
    single = [tl.Executor().execute(graph, {"x": X})["y"] for graph in graphs]
    routed = coordinator.route({"x": X}, RoutingStrategy.CASCADE, confidence=0.7)
    report = routed.cascade
    first = single[0].max(1) >= 0.7
    second = ~first & (single[1].max(1) >= 0.7)
    np.testing.assert_array_equal(report.decided_by, np.where(first, 0, np.where(second, 1, 2)))
    expected = np.where(first[:, None], single[0], np.where(second[:, None], single[1], single[2]))
    np.testing.assert_allclose(routed.outputs["y"], expected, rtol=1e-12)
    assert [s.rows for s in report.stages] == [300, int((~first).sum()), int((~first & ~second).sum())]
    assert report.cost_saving == pytest.approx(1 - sum(s.rows * s.cost for s in report.stages) / 900)
    assert f"for all rows: cost {-report.cost_saving:.0%} more" in str(report)  # few are decided early
    everything = coordinator.route({"x": X}, RoutingStrategy.CASCADE, confidence=0.0)
    assert [s.rows for s in everything.cascade.stages] == [300, 0, 0]
    assert everything.model == "m0@1" and "for all rows: cost 67% saved" in str(everything.cascade)
    empty = coordinator.route({"x": X[:0]}, RoutingStrategy.CASCADE)
    assert empty.outputs["y"].shape == (0, 3)


def test_cascades_that_cannot_be():
    b = tl.GraphBuilder()
    coordinator = MultiModelCoordinator()
    coordinator.register("three", b.build(y=b.softmax(b.input("x", ("n", 3)))))
    coordinator.register("two", b.build(y=b.softmax(b.input("x", ("n", 3))[:, :2])), cost=2)
    with pytest.raises(tl.InputError, match="the same scores"):
        coordinator.route({"x": np.zeros((4, 3))}, RoutingStrategy.CASCADE)
    coordinator = MultiModelCoordinator()
    coordinator.register("item", b.build(y=b.softmax(b.input("v", (3,)))))
    with pytest.raises(tl.InputError, match="has no rows"):
        coordinator.route({"v": np.zeros(3)}, RoutingStrategy.CASCADE)


def versions(**options):
    b = tl.GraphBuilder()
    x = b.input("x", ("n",), "float64")
    coordinator = MultiModelCoordinator(**options)
    coordinator.register("m", b.build(y=x * 1.0), version=1)
    coordinator.register("m", b.build(y=x * 2.0), version=2)
    return coordinator


def test_versions_and_canaries():
    coordinator = versions(rng=Random(7))
    assert coordinator.models() == ("m@1", "m@2")
    assert coordinator.run("m", {"x": [1.0]})["y"] == 2.0
    assert coordinator.run("m@1", {"x": [1.0]})["y"] == 1.0
    assert coordinator.run("m", {"x": [1.0]}, version=1)["y"] == 1.0
    coordinator.promote("m", 1)
    coordinator.canary("m", 2, share=0.25)
    answers = [float(coordinator.run("m", {"x": [1.0]})["y"][0]) for _ in range(400)]
    draws = Random(7)
    assert answers == [2.0 if draws.random() < 0.25 else 1.0 for _ in range(400)]
    coordinator.promote("m", 2)
    assert {float(coordinator.run("m", {"x": [1.0]})["y"][0]) for _ in range(20)} == {2.0}
    for wrong in (-0.1, 1.5, "half", True):
        with pytest.raises(tl.InputError, match="share"):
            coordinator.canary("m", 1, wrong)
    with pytest.raises(tl.InputError, match="no version '3'"):
        coordinator.run("m@3", {"x": [1.0]})
    with pytest.raises(tl.InputError, match="registered already"):
        coordinator.register("m", lambda: None, version=2)


def test_shadows_run_beside_and_never_show():
    coordinator = versions(rng=Random(3))
    b = tl.GraphBuilder()
    coordinator.promote("m", 1)
    coordinator.shadow("m", 2, share=0.5)
    draws, expected = Random(3), 0
    for n in range(40):
        outputs = coordinator.run("m", {"x": [float(n + 1)]})
        assert outputs["y"] == n + 1
        outputs["y"][:] = 0.0  # the caller's own
        expected += draws.random() < 0.5
    report = coordinator.shadow_report("m")
    assert report.calls + report.left_out == expected
    assert report.differing == report.calls
    assert 1.0 <= report.largest_difference <= 40.0
    coordinator.register("m", b.build(y=b.input("z", ("n",))), version=3)
    coordinator.promote("m", 1)
    coordinator.shadow("m", 3)
    assert coordinator.run("m", {"x": [1.0]})["y"] == 1.0
    assert coordinator.shadow_report("m").errors == 1
    coordinator.shadow("m", 3, share=0)
    with pytest.raises(tl.InputError, match="no shadow"):
        coordinator.shadow_report("m")


def test_memory_is_bounded_by_unloading_what_was_not_used_longest(tmp_path):
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 100), "float64")
    for n in range(3):
        b.build(y=x @ b.constant(np.full((100, 100), float(n)))).save(tmp_path / f"m{n}.json")
    coordinator = MultiModelCoordinator(memory_limit=2 * 80_000 + 10_000)
    for n in range(3):
        coordinator.register(f"m{n}", tmp_path / f"m{n}.json", memory=80_000)
    for name in ("m0", "m1", "m0", "m2", "m0", "m1"):
        out = coordinator.run(name, {"x": np.ones((1, 100))})["y"]
        assert (out == 100.0 * int(name[1])).all()
    stats = coordinator.stats()
    assert [stats[f"m{n}@1"].loads for n in range(3)] == [1, 2, 1]
    assert [stats[f"m{n}@1"].unloads for n in range(3)] == [0, 1, 1]
    assert sum(row.nbytes for row in stats.models) <= coordinator.stats().memory_limit
    assert "m1@1" in str(stats)
    assert coordinator.unload("m0")
    assert not coordinator.unload("m0")
    coordinator.register("big", tmp_path / "m0.json", memory=1_000_000)
    with pytest.raises(tl.OutOfMemoryError, match="takes 1,000,000 bytes"):
        coordinator.run("big", {"x": np.ones((1, 100))})
    counted = MultiModelCoordinator(memory_limit=300_000)
    counted.register("own", tmp_path / "m1.json")
    counted.run("own", {"x": np.ones((2, 100))})
    assert 80_000 <= counted.stats()["own@1"].nbytes < 200_000
    counted.register("params", b.build(y=x @ b.input("w", (100, 100), "float64")), params={"w": np.ones((100, 100))})
    assert counted.run("params", {"x": np.ones((1, 100))})["y"].sum() == 10_000
    with pytest.raises(tl.InputError, match="is a int"):
        counted.register("wrong", lambda: 3)
        counted.run("wrong", {})


def test_many_threads_load_and_run_within_the_bound():
    b = tl.GraphBuilder()
    x = b.input("x", ("n",), "float64")
    graphs = [b.build(y=x + float(n)) for n in range(6)]
    coordinator, failures = MultiModelCoordinator(memory_limit=250), []
    for n, graph in enumerate(graphs):
        coordinator.register(f"m{n}", graph, memory=100)

    def work(seed):
        choice = Random(seed)
        for _ in range(100):
            n = choice.randrange(6)
            if coordinator.run(f"m{n}", {"x": np.zeros(2)})["y"][0] != n:
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = coordinator.stats()
    assert not failures
    assert sum(row.calls for row in stats.models) == 400
    assert sum(row.nbytes for row in stats.models) <= 250
    assert sum(row.loads - row.unloads for row in stats.models) == sum(row.loaded for row in stats.models)


def test_ensembles_that_cannot_be():
    _, graphs = classifiers()
    coordinator, names = registered(graphs)
    with pytest.raises(tl.InputError, match="needs members"):
        coordinator.ensemble("e", [], EnsembleStrategy.AVERAGING)
    with pytest.raises(tl.InputError, match="as many weights"):
        coordinator.ensemble("e", names, EnsembleStrategy.AVERAGING, weights=[1.0])
    with pytest.raises(tl.InputError, match="fitted on data"):
        coordinator.ensemble("e", names, EnsembleStrategy.STACKING)
    with pytest.raises(tl.InputError, match="a row for each"):
        coordinator.ensemble("e", names, EnsembleStrategy.BOOSTING, data={"x": X}, target=CLASSES[:5])
    with pytest.raises(tl.InputError, match="no output 'z'"):
        coordinator.ensemble("e", names, EnsembleStrategy.AVERAGING, output="z")
    with pytest.raises(tl.InputError, match="EnsembleStrategy is expected"):
        coordinator.ensemble("e", names, "averaging")
    b = tl.GraphBuilder()
    labels = b.build(label=b.input("x", ("n",), "int64"))
    coordinator.register("labels", labels)
    with pytest.raises(tl.InputError, match="how many classes"):
        coordinator.ensemble("e", ["labels"], EnsembleStrategy.VOTING)
    with pytest.raises(tl.InputError, match="better than chance"):
        data, target = {"x": np.zeros(4, "int64")}, np.ones(4, "int64")
        coordinator.ensemble("e", ["labels"], EnsembleStrategy.BOOSTING, data=data, target=target)
