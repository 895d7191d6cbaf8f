"""Boolean graphs on relations: the same answers as on arrays, whatever the graph, the layout and the size."""

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.relations import fixpoints, joins, worklist
from tensorlogic.backends.sparse import SparseTensor

SIZES = {"x": 7, "y": 5, "z": 6, "w": 4}
NAMES = "xyzw"


@pytest.fixture(params=["packed where small", "tuples only", "circles"])
def how(request, monkeypatch):
    if request.param != "packed where small":
        monkeypatch.setattr(fixpoints, "SMALL_BITS", -1)
        monkeypatch.setattr(fixpoints, "FILLED", 0)
        monkeypatch.setattr(fixpoints, "BITS_AT_ONCE", -1)
    if request.param == "circles":
        monkeypatch.setattr(joins, "CIRCULAR", 0)
        monkeypatch.setattr(worklist, "MOST_GIVEN", -1)  # rounds, not a queue
    return request.param


def agrees(graph, inputs):
    executor = tl.Executor()
    expected = executor.execute(graph, inputs)
    sparse = {n: SparseTensor(x) if x.dtype == bool else x for n, x in inputs.items()}
    found = executor.execute(graph, sparse)
    for name in expected.keys():  # noqa: SIM118
        assert found[name].dtype == expected[name].dtype and found[name].shape == expected[name].shape
        np.testing.assert_array_equal(np.asarray(found[name]), expected[name], err_msg=f"{name}\n{graph}")
    for name, x in inputs.items():
        if x.dtype == bool:
            assert SparseTensor(x).same(sparse[name])
    again = executor.execute(graph, sparse)
    assert all(np.array_equal(np.asarray(again[n]), np.asarray(found[n])) for n in expected.keys())  # noqa: SIM118
    return executor.plan(graph, sparse)


def random_graph(rng):
    """A graph of joins, unions, complements, views, comparisons and loops over random relations."""
    b = tl.GraphBuilder(intern=False)
    inputs, pool = {}, []

    def index(label):
        return b.iota(SIZES[label])

    for n in range(3):
        labels = [str(x) for x in rng.choice(list(NAMES), rng.integers(1, 4), replace=False)]
        shape = tuple(SIZES[x] for x in labels)
        inputs[f"r{n}"] = rng.random(shape) < rng.choice([0.0, 0.1, 0.3, 1.0])
        pool.append((b.input(f"r{n}", shape, "bool"), labels))
    for _ in range(rng.integers(2, 8)):
        kind = rng.choice(["join", "or", "not", "compare", "slice", "turn", "any", "constant", "loop"])
        t, labels = pool[rng.integers(len(pool))]
        if kind == "join":
            parts = [pool[i] for i in rng.integers(len(pool), size=rng.integers(2, 4))]
            every = list(dict.fromkeys(x for _, own in parts for x in own))
            out = [x for x in every if rng.random() < 0.7]
            spec = ",".join("".join(own) for _, own in parts) + "->" + "".join(out)
            pool.append((b.einsum(spec, *[p for p, _ in parts], algebra="boolean"), out))
        elif kind == "or":
            same = [p for p, own in pool if own == labels]
            pool.append((b.logical_or(t, same[rng.integers(len(same))]), labels))
        elif kind == "not":
            pool.append((b.logical_not(t), labels))
        elif kind == "compare" and len(labels) > 1:
            fn = getattr(b, str(rng.choice(["less", "equal", "greater_equal", "not_equal"])))
            left = b.reshape(index(labels[0]), (SIZES[labels[0]], 1))
            right = index(labels[1]) + int(rng.integers(-1, 2))
            own = "".join(labels)
            pool.append((b.einsum(f"{own},{own[:2]}->{own}", t, fn(left, right), algebra="boolean"), labels))
        elif kind == "slice" and labels:
            axis = int(rng.integers(len(labels)))
            at = int(rng.integers(SIZES[labels[axis]]))
            key = tuple(at if a == axis else slice(None) for a in range(len(labels)))
            pool.append((t[key], [x for a, x in enumerate(labels) if a != axis]))
        elif kind == "turn" and len(labels) > 1:
            order = [int(a) for a in rng.permutation(len(labels))]
            pool.append((b.transpose(t, order), [labels[a] for a in order]))
        elif kind == "any" and labels:
            pool.append((b.any(t, axis=0), labels[1:]))
        elif kind == "constant" and labels:
            equal = b.equal(index(labels[0]), int(rng.integers(SIZES[labels[0]])))
            own = "".join(labels)
            pool.append((b.einsum(f"{own},{own[0]}->{own}", t, equal, algebra="boolean"), labels))
        elif kind == "loop":
            edge = b.input(f"e{len(inputs)}", (6, 6), "bool")
            inputs[f"e{len(inputs)}"] = rng.random((6, 6)) < 0.25
            forms = [
                lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"),  # noqa: B023
                lambda r: b.einsum("xy,yz->xz", edge, r, algebra="boolean"),  # noqa: B023
                lambda r: b.einsum("xy,yz->xz", r, r, algebra="boolean"),
                lambda r: b.einsum("yx,yz,zw->xw", edge, r, edge, algebra="boolean"),  # noqa: B023
                lambda r: b.logical_or(b.transpose(r, (1, 0)), b.einsum("xx,xz->xz", r, edge, algebra="boolean")),  # noqa: B023
            ]
            start = edge if rng.random() < 0.5 else b.einsum("xy,yz->xz", edge, edge, algebra="boolean")
            pool.append((b.fixpoint(forms[rng.integers(len(forms))], start, combine="or"), ["z", "z'"]))
            pool[-1] = (b.any(pool[-1][0], axis=1), ["z"])
    outputs = {f"o{n}": t for n, (t, _) in enumerate(pool[3:])} or {"o": pool[0][0]}
    last, labels = pool[-1]
    outputs["count"] = b.sum(b.cast(last, "int64"), axis=0) if labels else b.cast(last, "int64")
    return b.build(outputs), inputs


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_agree_with_arrays(seed, how):
    graph, inputs = random_graph(np.random.default_rng(seed))
    agrees(graph, inputs)


def loop_graph(n, rules, carries, relations):
    b = tl.GraphBuilder()
    given = [b.input(f"r{i}", (n, n), "bool") for i in range(relations)]
    nothing = b.constant(np.zeros((n, n), bool))
    made = b.fixpoint(lambda *c: rules(b, *c, *given), *[nothing] * carries, combine="or")
    made = made if isinstance(made, tuple | list) else [made]
    return b.build({f"t{i}": t for i, t in enumerate(made)})


def join(b, spec, *parts):
    return b.einsum(spec, *parts, algebra="boolean")


LOOPS = {
    "right": (lambda b, t, e: b.logical_or(e, join(b, "xy,yz->xz", t, e)), 1, 1),
    "left": (lambda b, t, e: b.logical_or(e, join(b, "xy,yz->xz", e, t)), 1, 1),
    "square": (lambda b, t, e: b.logical_or(e, join(b, "xy,yz->xz", t, t)), 1, 1),
    "turned": (lambda b, t, e: b.logical_or(e, join(b, "xy,zy->xz", t, e)), 1, 1),
    "other start": (lambda b, t, e, f: b.logical_or(f, join(b, "xy,yz->xz", t, e)), 1, 2),
    "other start left": (lambda b, t, e, f: b.logical_or(f, join(b, "xy,yz->xz", e, t)), 1, 2),
    "same generation": (lambda b, t, u, d, f: b.logical_or(f, join(b, "xu,uv,vy->xy", u, t, d)), 1, 3),
    "mutual": (
        lambda b, t, r, e, f: (
            b.logical_or(f, join(b, "xu,uv->xv", e, r)),
            b.logical_or(e, join(b, "xu,uv->vx", t, r)),
        ),
        2,
        2,
    ),
    "not below": (lambda b, t, e, f: b.logical_or(e, join(b, "xy,yz,xz->xz", t, e, b.logical_not(f))), 1, 2),
    "points to": (
        lambda b, flow, alias, assign, read: (
            b.logical_or(b.logical_or(assign, join(b, "xz,zy->xy", flow, flow)), join(b, "xz,zy->xy", assign, alias)),
            join(b, "yx,yz,zu,uw->xw", read, flow, flow, read),
        ),
        2,
        2,
    ),
    "ends": (
        lambda b, t, e: b.logical_or(
            join(b, "xy,xz->xz", t, b.transpose(t, (1, 0))), b.logical_or(e, join(b, "xy->yx", t))
        ),
        1,
        1,
    ),
    "triangle": (lambda b, t, e: b.logical_or(e, join(b, "xy,yz,zx->xz", t, t, t)), 1, 1),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("n", [0, 1, 9, 70])
def test_loops_agree_with_arrays(name, n, how):
    rules, carries, relations = LOOPS[name]
    graph = loop_graph(n, rules, carries, relations)
    rng = np.random.default_rng(n)
    agrees(graph, {f"r{i}": rng.random((n, n)) < 2 / max(n, 1) for i in range(relations)})


def test_the_plan_prints_the_rules_it_runs():
    b = tl.GraphBuilder()
    sister, parent = b.input("sister", (100_000, 100_000), "bool"), b.input("parent", (100_000, 100_000), "bool")
    graph = b.build(aunt=join(b, "xy,yz->xz", sister, parent))
    one = SparseTensor.of_columns([[1], [2]], (100_000, 100_000))
    text = str(tl.Executor().plan(graph, {"sister": one, "parent": one}))
    assert "aunt bool 100000×100000 sparse" in text
    assert "aunt(x, y) <- sister(x, z), parent(z, y)" in text


def test_large_domains_with_few_facts_run_by_default():
    n = 45_000
    b = tl.GraphBuilder()
    parent = b.input("parent", (n, n), "bool")
    graph = b.build(
        grand=join(b, "xy,yz->xz", parent, parent),
        ancestor=b.fixpoint(lambda a: join(b, "xy,yz->xz", a, parent), parent, combine="or"),
    )
    child = np.arange(1, n)
    facts = SparseTensor.of_columns([child, child // 2], (n, n))
    out = tl.Executor().execute(graph, {"parent": facts})
    assert out["grand"].count == sum(1 for c in range(1, n) if c // 2 >= 1)
    depth = np.zeros(n, int)
    for c in range(1, n):
        depth[c] = depth[c // 2] + 1
    assert SparseTensor(out["ancestor"]).count == depth.sum()


def test_a_join_beyond_memory_is_refused():
    n = 1 << 20
    b = tl.GraphBuilder()
    r = b.input("r", (n,), "bool")
    graph = b.build(every=join(b, "x,y->xy", r, r))
    full = SparseTensor.of_codes(np.arange(n), (n,))
    with pytest.raises(tl.OutOfMemoryError, match="a rule would join up to"):
        tl.Executor().execute(graph, {"r": full})


def test_steps_on_arrays_take_relations_as_arrays():
    b = tl.GraphBuilder()
    r = b.input("r", (3, 3), "bool")
    w = b.input("w", (3,), "float64")
    graph = b.build(y=b.einsum("xy,y->x", b.cast(r, "float64"), w), s=join(b, "xy,yz->xz", r, r))
    x = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], bool)
    out = tl.Executor().execute(graph, {"r": SparseTensor(x), "w": np.array([1.0, 2.0, 3.0])})
    np.testing.assert_array_equal(out["y"], [2.0, 3.0, 0.0])
    assert out["s"].count == 1


@pytest.mark.parametrize("options", [{"backend": "reference"}, {"policy": "fast"}, {"threads": 2}])
def test_every_executor_takes_relations(options):
    graph = loop_graph(9, *LOOPS["mutual"])
    rng = np.random.default_rng(0)
    inputs = {f"r{i}": rng.random((9, 9)) < 0.2 for i in range(2)}
    expected = tl.Executor().execute(graph, inputs)
    found = tl.Executor(**options).execute(graph, {n: SparseTensor(x) for n, x in inputs.items()})
    for name in expected.keys():  # noqa: SIM118
        np.testing.assert_array_equal(np.asarray(found[name]), expected[name])


def test_a_queue_of_tuples_grows_with_what_it_derives(monkeypatch):
    monkeypatch.setattr(fixpoints, "SMALL_BITS", -1)
    monkeypatch.setattr(fixpoints, "FILLED", 0)
    monkeypatch.setattr(fixpoints, "BITS_AT_ONCE", -1)
    n, used = 120, []
    run = worklist.run_chains
    monkeypatch.setattr(fixpoints, "run_chains", lambda *args: used.append(1) or run(*args))
    monkeypatch.setattr(worklist, "BUDGET", 1000)  # so that it pauses too
    graph = loop_graph(n, *LOOPS["same generation"])
    rng = np.random.default_rng(1)
    agrees(graph, {f"r{i}": rng.random((n, n)) < 3 / n for i in range(3)})
    assert used
