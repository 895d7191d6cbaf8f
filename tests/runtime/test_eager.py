"""Eager execution: answers as NumPy's, gradients as finite differences and JAX have them, and misuse that is told apart."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tensorlogic as tl
from tensorlogic import Variable, eager
from tensorlogic.runtime.eager import backward as eager_backward
from tensorlogic.runtime.eager import kernels as eager_kernels
from tensorlogic.runtime.eager import numpy_calls as eager_numpy

RNG = np.random.default_rng(0)
X = RNG.uniform(0.2, 0.9, size=(3, 4))
Y = RNG.uniform(0.2, 0.9, size=(3, 4))
ROW = RNG.uniform(0.2, 0.9, size=(4,))
M = RNG.uniform(0.2, 0.9, size=(4, 2))


def difference_quotients(fn, arrays, n, step=1e-6):
    """Return the gradient of sum(fn * weights) for array n by central differences."""
    found = np.zeros_like(arrays[n])
    for place in np.ndindex(found.shape):
        each = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[n][place] += sign * step
            value = np.asarray(fn(*moved))
            each.append((value * weights(value.shape)).sum())
        found[place] = (each[0] - each[1]) / (2 * step)
    return found


def weights(shape):
    return 1 + np.arange(np.prod(shape, dtype=int)).reshape(shape) / 7


def check(fn, *arrays, reference=None):
    """Compare a function on variables with itself on arrays, and its gradients with difference quotients."""
    variables = [Variable(a) for a in arrays]
    result = fn(*variables)
    expected = np.asarray((reference or fn)(*arrays))
    assert isinstance(result, Variable)
    assert result.shape == expected.shape and result.dtype == expected.dtype
    np.testing.assert_allclose(result.value, expected, rtol=1e-12)
    result.backward(weights(expected.shape))
    for n, v in enumerate(variables):
        np.testing.assert_allclose(v.grad, difference_quotients(reference or fn, arrays, n), rtol=2e-5, atol=1e-7)


OPERATORS = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "power": lambda x, y: x**y,
    "square": lambda x, y: x**2 + 0 * y,
    "scalars": lambda x, y: 2 * x - 1 + (3 - y) / 2 + 1 / x + 2**y,
    "negative": lambda x, y: -x + abs(y),
    "remainder": lambda x, y: x % 0.5 + 0 * y,
    "transpose": lambda x, y: x.T @ y,
    "reshape": lambda x, y: (x.reshape(2, 6) * y.reshape((2, 6))).reshape(-1),
    "sum": lambda x, y: x.sum() + y.sum(axis=0) * y.sum(axis=1, keepdims=True),
    "mean": lambda x, y: x.mean() + y.mean(axis=-1),
    "max": lambda x, y: x.max() * y.min(axis=0),
    "prod": lambda x, y: x.prod(axis=1) + y.prod(),
    "var": lambda x, y: x.var() + y.var(axis=0),
    "cumsum": lambda x, y: x.cumsum(axis=1) * y,
    "clip": lambda x, y: x.clip(0.3, 0.6) * y,
    "rows": lambda x, y: x[1] + y[-1],
    "slices": lambda x, y: x[1:, ::2] * y[:2, ::-2],
    "new axis": lambda x, y: x[:, None, :] * y[None, ..., :],
    "dots": lambda x, y: x[..., 0] + y[0, ..., 1],
    "integers": lambda x, y: x[[2, 0, 2]] + y[np.array([0, 1, -1])],
    "second axis": lambda x, y: x[:, [3, 0]] * y[:, np.array([1, 1])],
    "pairs": lambda x, y: x[[0, 1, 2], [3, 0, 3]] * y[np.arange(3), -1],
    "matrix of integers": lambda x, y: x[np.array([[0, 1], [2, 2]])] + y[np.array([[0, 0], [1, 2]])],
}
FUNCTIONS = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "arctan", "log1p", "expm1", "square", "reciprocal", "arcsin", "cosh", "log2", "exp2", "log10", "absolute")},
    "sum": lambda x: np.sum(x, axis=1) + np.sum(x),
    "mean": lambda x: np.mean(x, axis=(0, 1), keepdims=True),
    "max": lambda x: np.max(x, axis=0) + np.min(x),
    "amax": np.amax,
    "prod": lambda x: np.prod(x, axis=0),
    "std": lambda x: np.std(x, axis=0) + np.var(x, ddof=1),
    "where": lambda x: np.where(x > 0.5, x * 2, -x),
    "where of values": lambda x: np.where(X > 0.5, x, 1.0),
    "concatenate": lambda x: np.concatenate([x, Y, x], axis=1),
    "stack": lambda x: np.stack([x, 2 * x], axis=-1),
    "vstack": lambda x: np.vstack([x, ROW]),
    "hstack": lambda x: np.hstack([x, x[:, :1]]),
    "maximum": lambda x: np.maximum(x, Y) - np.minimum(x, 0.5),
    "matmul": lambda x: np.matmul(x, M),
    "dot": lambda x: np.dot(x, ROW),
    "einsum": lambda x: np.einsum("ij,jk,j->ki", x, M, ROW),
    "outer": lambda x: np.outer(x[0], ROW),
    "inner": lambda x: np.inner(x, ROW),
    "reshape": lambda x: np.reshape(x, (4, 3)),
    "ravel": np.ravel,
    "transpose": lambda x: np.transpose(x, (1, 0)) @ x,
    "swapaxes": lambda x: np.swapaxes(x, 0, 1),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "squeeze": lambda x: np.squeeze(x[:, :1]),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "broadcast_to": lambda x: np.broadcast_to(x[:, :1], (3, 5)),
    "cumsum": np.cumsum,
    "cumprod": lambda x: np.cumprod(x, axis=1),
    "sort": lambda x: np.sort(x, axis=1),
    "take": lambda x: np.take(x, [0, 3, 3], axis=1),
    "flip": lambda x: np.flip(x, 1),
    "pad": lambda x: np.pad(x, [(1, 0), (0, 2)]),
    "norm": np.linalg.norm,
    "clip": lambda x: np.clip(x, 0.3, 0.7),
    "trace": lambda x: np.trace(x[:, :3]),
    "logaddexp": lambda x: np.logaddexp(x, Y),
    "arctan2": lambda x: np.arctan2(x, Y),
    "hypotenuse": lambda x: np.sqrt(np.square(x) + 1),
    "ones_like": lambda x: x * np.ones_like(x) + np.zeros_like(x) + np.full_like(x, 2.0),
    "add.reduce": lambda x: np.add.reduce(x, axis=1) + np.maximum.reduce(x, axis=1),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    check(OPERATORS[name], X, Y)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_functions(name):
    check(FUNCTIONS[name], X)


@pytest.mark.parametrize(
    "algebra", ["real", "max_product", "max_min", "min_plus", "log_sum_exp", "lukasiewicz", "noisy_or"]
)
def test_contractions_in_any_algebra(algebra):
    def join(x, y):
        made = eager.einsum("ij,kj->ik", x, y, algebra=algebra)
        return made if isinstance(x, Variable) else made.value

    a, b = 0.5 + X / 2, 0.5 + Y / 2
    check(join, a, b)
    b_ = tl.GraphBuilder()
    graph = b_.build(y=b_.einsum("ij,kj->ik", b_.input("a", (3, 4)), b_.input("b", (3, 4)), algebra=algebra))
    expected = tl.Executor("reference").execute(graph, {"a": a, "b": b})["y"]
    np.testing.assert_allclose(join(Variable(a), b).value, expected, rtol=1e-12)


def test_layers():
    check(eager.softmax, X, reference=lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True))
    check(
        eager.layer_norm,
        X,
        reference=lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    )
    check(eager.linear, X, M, ROW[:2], reference=lambda x, w, b: x @ w + b)


@pytest.mark.parametrize("left", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("right", [(4,), (4, 5), (2, 4, 5), (1, 4, 5)])
def test_matmul(left, right):
    check(lambda a, b: a @ b, RNG.uniform(size=left), RNG.uniform(size=right))


def test_arrays_on_the_left_come_here():
    w = Variable(M)
    assert isinstance(X @ w, Variable) and isinstance(1.0 - w, Variable) and isinstance(M + w, Variable)
    assert isinstance(np.float32(2) * w, Variable) and isinstance([1.0, 2.0] + w[0], Variable)
    np.testing.assert_array_equal((X @ w).value, X @ M)


@settings(max_examples=150)
@given(st.data())
def test_indexing_is_numpys(data):
    shape = data.draw(npst.array_shapes(max_dims=4, max_side=4))
    x = np.arange(np.prod(shape), dtype=float).reshape(shape)
    common = data.draw(st.sampled_from([(), (2,), (2, 3)]))
    keys = []
    for size in shape[: data.draw(st.integers(0, len(shape)))]:
        place = st.integers(-size, size - 1)
        keys.append(data.draw(place | st.slices(size) | npst.arrays(np.int64, common, elements=place)))
        keys += data.draw(st.sampled_from([[], [], [None]]))
    key = (*keys, ...) if data.draw(st.booleans()) else tuple(keys)
    v = Variable(x)
    found = v[key]
    assert found.shape == x[key].shape
    np.testing.assert_array_equal(found.value, x[key])
    found.backward(weights(found.shape))
    expected = np.zeros(shape)
    np.add.at(expected, key, weights(found.shape))
    np.testing.assert_allclose(v.grad, expected)


def test_scattered_indices_come_first():
    x = np.arange(24.0).reshape(2, 3, 4, 1)
    for key in (
        ([0, 1], slice(None), [1, 2]),
        ([0, 1], ..., [1, 2], 0),
        (0, slice(0, 0), [1, 2]),
        (slice(2, 0), [1, 2], 0, ..., -1),
    ):
        assert Variable(x)[key].shape == x[key].shape
        np.testing.assert_array_equal(Variable(x)[key].value, x[key])


def test_dtypes_are_numpys():
    x = Variable(np.ones(3, "float32"))
    assert (x * 2.0).dtype == np.float32 and (x + 1).dtype == np.float32
    assert (x * np.float64(2)).dtype == np.float64
    assert (x * np.ones(3)).dtype == np.float64
    assert (Variable([1, 2]) / 2).dtype == np.float64
    assert (x > 0).dtype == bool
    y = (x * np.ones(3)).sum()
    y.backward()
    assert x.grad.dtype == np.float32


def test_comparisons_and_truth():
    x = Variable([1.0, 2.0, 3.0])
    assert ((x > 1) & (x < 3)).tolist() == [False, True, False]
    assert (~(x == 2) | (x != x)).tolist() == [True, False, True]
    assert ((x >= 2) ^ (x <= 2)).tolist() == [True, False, True]
    assert bool(x.sum() == 6) and float(x[1]) == 2.0 and int(x[2]) == 3 and len(x) == 3
    assert [v.item() for v in x] == [1.0, 2.0, 3.0]
    assert x.argmax().item() == 2 and f"{x.sum():.1f}" == "6.0"
    assert 2.0 in x and {x: 1}[x] == 1
    with pytest.raises(tl.DTypeError, match="truth values"):
        x & x
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)


def test_prints():
    assert repr(Variable([1.0, 2.0])) == "Variable([1., 2.])"
    assert repr(Variable(np.float32(2), name="w")) == "Variable(2., dtype=float32, name='w')"
    assert repr(eager) == "<tensorlogic.eager>"
    with tl.EagerTape() as tape:
        y = Variable(1.0) + 1
    assert repr(tape) == "<EagerTape of 1 variables>" and y.item() == 2


def test_gradients_accumulate():
    w = Variable([1.0, 2.0])
    (w * w).sum().backward()
    (3 * w).sum().backward()
    np.testing.assert_allclose(w.grad, [5.0, 7.0])
    w.zero_grad()
    assert w.grad is None


def test_a_variable_used_often_and_a_diamond():
    x = Variable(2.0)
    y = x * x
    z = y * y + y  # x^4 + x^2
    z.backward()
    assert x.grad == 4 * 2**3 + 2 * 2


def test_a_long_chain_does_not_recurse():
    x = Variable(np.ones(2))
    y = x
    for _ in range(3000):
        y = y + 0.001
    y.sum().backward()
    np.testing.assert_allclose(x.grad, 1)


def test_jax_agrees_on_an_mlp():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    rng = np.random.default_rng(3)
    params = [rng.normal(size=s).astype("float32") for s in ((8, 16), (16,), (16, 3), (3,))]
    x, labels = rng.normal(size=(5, 8)).astype("float32"), np.array([0, 2, 1, 1, 0])

    def loss(np, w1, b1, w2, b2):
        logits = np.maximum(x @ w1 + b1, 0) @ w2 + b2
        shifted = logits - np.max(logits, axis=1, keepdims=True)
        log_p = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
        return -np.mean(log_p[np.arange(5), labels])

    variables = [Variable(p) for p in params]
    ours = loss(np, *variables)
    ours.backward()
    value, grads = jax.value_and_grad(lambda p: loss(jnp, *p))([jnp.asarray(p) for p in params])
    np.testing.assert_allclose(ours.item(), value, rtol=1e-5)
    for v, g in zip(variables, grads, strict=True):
        np.testing.assert_allclose(v.grad, g, rtol=2e-4, atol=1e-6)


# recording


def test_no_grad_and_detach():
    w = Variable([1.0, 2.0])
    with tl.no_grad():
        assert not (w * 2).requires_grad
    assert (w * 2).requires_grad

    @tl.no_grad()
    def predict(x):
        return x * 2

    assert not predict(w).requires_grad
    loss = (w * w.detach()).sum()
    loss.backward()
    np.testing.assert_array_equal(w.grad, [1.0, 2.0])
    with pytest.raises(tl.GraphError, match="nothing was recorded"):
        w.detach().sum().backward()


def test_no_grad_belongs_to_its_thread():
    seen = []
    w = Variable(1.0)
    with tl.no_grad():
        thread = threading.Thread(target=lambda: seen.append((w * 2).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def together(*functions):
    """Run functions on threads of their own and return what went wrong in them."""
    wrong = []

    def guarded(fn):
        try:
            fn()
        except Exception as error:  # told below
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(fn,)) for fn in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    return wrong


def test_one_no_grad_serves_several_threads():
    both, left = threading.Barrier(2, timeout=20), threading.Event()
    w, seen, shared = Variable([1.0, 2.0]), {}, tl.no_grad()

    @tl.no_grad()
    def predict(first):
        both.wait()  # both are inside
        if not first:
            assert left.wait(20)  # who came first may leave first
        return w * 2

    def call(first):
        seen[first] = predict(first).requires_grad, (w * 2).requires_grad
        left.set()

    def block(first):
        with shared, shared:  # and one instance, entered twice
            both.wait()
            if not first:
                assert left.wait(20)
            inside = (w * 2).requires_grad
        seen[first] = inside, (w * 2).requires_grad
        left.set()

    for way in (call, block):
        left.clear()
        seen.clear()
        assert together(lambda w=way: w(True), lambda w=way: w(False)) == []
        assert seen == {True: (False, True), False: (False, True)}


def test_one_tape_serves_several_threads():
    both, left = threading.Barrier(2, timeout=20), threading.Event()
    w, tape, made = Variable([1.0, 2.0], name="w"), tl.EagerTape(), {}

    def work(first):
        with tape:
            both.wait()
            if not first:
                assert left.wait(20)
            made[first] = w * (2.0 if first else 3.0)
        made[first, "after"] = w * 5.0
        left.set()

    assert together(lambda: work(True), lambda: work(False)) == []
    assert {id(v) for v in tape.variables()} == {id(made[True]), id(made[False])}


def test_no_grad_goes_back_after_an_error():
    w = Variable(1.0)
    with pytest.raises(KeyError), tl.no_grad(), tl.EagerTape() as tape, tl.no_grad():
        raise KeyError
    assert (w * 2).requires_grad and len(tape) == 0


def test_values_cannot_be_written_to():
    source = np.ones(2)
    w = Variable(source)
    source[0] = 5  # a copy was taken
    assert w.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        w.value[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        (w * 2).numpy()[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(w + 1)[0] = 3
    with pytest.raises(tl.GraphError, match="not written to"):
        w[0] = 1.0
    with pytest.raises(tl.GraphError, match="change in place"):
        np.add(w, 1, out=np.zeros(2))
    array = np.ones(2)
    with pytest.raises(tl.GraphError, match="change in place"):
        array += w
    with pytest.raises(tl.GraphError, match="not changed in place"):
        w += 1
    with pytest.raises(tl.GraphError, match="not assigned to"):
        (w + 1).assign([0.0, 0.0])
    total = w.sum()
    total += 1  # a new variable of the same name
    total.backward()
    np.testing.assert_array_equal(w.grad, 1)


def test_an_array_that_changes_after_it_was_recorded():
    x, w = np.array([1.0, 2.0]), Variable([3.0, 4.0])
    loss = (x * w).sum()
    x[:] = 100
    loss.backward()
    np.testing.assert_array_equal(w.grad, [1.0, 2.0])


@pytest.mark.parametrize(
    "view",
    [
        lambda a: eager.reshape(a, (4,)),
        lambda a: eager.index(a, (0,)),
        eager.transpose,
        lambda a: eager.einsum("ij->ji", a),
    ],
)
def test_a_view_of_an_array_is_not_the_array(view):
    array = np.ones((2, 2))
    seen = view(array)
    array[:] = 5
    assert (seen.value == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        seen.value[...] = 2


def test_assigning_keeps_what_was_recorded():
    w = Variable([3.0])
    loss = (w * w).sum()
    w.assign([10.0])
    loss.backward()
    np.testing.assert_array_equal(w.grad, [6.0])
    with tl.no_grad():
        same = w
        w -= 1
        w *= 2
    assert w is same and w.tolist() == [18.0] and w.requires_grad
    w.assign([7])  # whole numbers fit
    assert w.dtype == np.float64 and w.tolist() == [7.0]
    for wrong in ([1.0, 2.0], 1.0, [1j]):
        with pytest.raises(tl.GraphError):
            w.assign(wrong)
    with pytest.raises(tl.ShapeError, match="cannot take"):
        Variable([1]).assign([1.5])


def test_values_go_when_nobody_holds_them():
    w = Variable(np.ones(1000))
    h = np.tanh(w * 2)
    inner = weakref.ref(h.value)
    loss = h.sum()
    del h
    gc.collect()
    assert inner() is not None  # the gradient reads it
    loss.backward()
    del loss
    assert inner() is None
    with tl.EagerTape() as tape:
        for _ in range(5000):
            h = w + 1
        assert len(tape._made) < 5000
    value = weakref.ref(h.value)
    del h
    assert value() is None and len(tape) == 0
    leaf = weakref.ref(w)
    del w
    assert leaf() is None


def test_a_loop_differentiates_and_plans_once(monkeypatch):
    calls = []
    real = eager_backward.backward_graph
    monkeypatch.setattr(eager_backward, "backward_graph", lambda *a, **k: calls.append(1) or real(*a, **k))
    executor = eager_backward.default_executor()
    w = Variable(RNG.normal(size=(4, 7)))
    before = executor.cache_stats()
    kernels = None
    for step in range(5):
        batch = RNG.normal(size=(3, 4))
        loss = ((batch @ w) ** 2).mean()
        loss.backward()
        with tl.no_grad():
            w -= 0.1 * w.grad
        w.zero_grad()
        if step == 1:
            kernels = len(eager_kernels._kernels)
    after = executor.cache_stats()
    assert len(calls) == 1
    assert after.misses - before.misses == 1
    assert len(eager_kernels._kernels) == kernels


def test_the_forward_part_is_not_run_again():
    w = Variable(X)
    found = eager_backward.structure_of(np.exp(np.tanh(w @ M)).sum()._record)
    back = eager_backward.backward_graph(found, scalar=True)
    names = [node.op.name for node in back.graph.nodes]
    assert "exp" not in names and "tanh" not in names and names.count("einsum") == 1


def test_threads_compute_side_by_side():
    results, errors = [], []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(30):
                w = Variable(rng.normal(size=(5, 3)))
                x = rng.normal(size=(2, 5))
                loss = (np.tanh(x @ w) ** 2).sum()
                loss.backward()
                y = np.tanh(x @ w.value)
                results.append(np.allclose(w.grad, x.T @ (2 * y * (1 - y**2))))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(results) == 180 and all(results)


# misuse


def test_backward_needs_a_scalar():
    w = Variable(X)
    with pytest.raises(tl.ShapeError, match=r"of a scalar, and this is of shape \[3, 4\]"):
        (w * 2).backward()
    with pytest.raises(tl.ShapeError, match="cotangent is of shape"):
        (w * 2).backward(np.ones(2))
    (w * 2).backward(np.ones((3, 4)))
    np.testing.assert_array_equal(w.grad, 2)


def test_backward_twice():
    w = Variable(2.0)
    loss = w * w
    loss.backward()
    with pytest.raises(tl.GraphError, match="ran from this variable before"):
        loss.backward()
    loss.backward(again=True)
    assert w.grad == 8.0


def test_whole_numbers_and_truth_values_have_no_gradient():
    with pytest.raises(tl.DTypeError, match="int64 has no gradient"):
        Variable([1, 2], requires_grad=True)
    counts = Variable([1, 2])
    assert not counts.requires_grad
    with pytest.raises(tl.DTypeError, match="no gradient"):
        counts.sum().backward()
    w = Variable([0.5, -0.5])
    soft = (w > 0).astype("float64").sum()
    with pytest.raises(tl.GraphError, match="ended at greater, whose result is bool"):
        soft.backward()
    loss = (w * np.array([2, 3])).sum()
    loss.backward()
    np.testing.assert_array_equal(w.grad, [2.0, 3.0])


def test_errors_are_the_builders():
    w = Variable(X)
    with pytest.raises(tl.ShapeError, match="4"):
        w + np.ones(5)
    with pytest.raises(tl.ShapeError, match=r"index 'j'"):
        w @ np.ones((5, 2))
    with pytest.raises(tl.ShapeError, match="inner sizes are 4 and 1"):
        w @ np.ones((1, 2))
    with pytest.raises(tl.ShapeError, match="scalars"):
        w @ 2.0
    with pytest.raises(tl.GraphError, match="an einsum spec is"):
        eager.einsum(3, w)
    with pytest.raises(tl.DTypeError):
        w + "text"
    with pytest.raises(tl.DTypeError):
        Variable(["a"])
    with pytest.raises(tl.DTypeError, match="mask of truth values"):
        w[X > 0.5]
    with pytest.raises(tl.ShapeError, match="out of range"):
        w[[0, 3]]
    with pytest.raises(tl.ShapeError, match="out of range"):
        w[[0, 1], [0, 4]]
    with pytest.raises(tl.ShapeError, match="out of range"):
        w[5]
    with pytest.raises(tl.ShapeError):
        w.reshape(5, 5)
    with pytest.raises(tl.GraphError, match="unknown algebra"):
        eager.einsum("ij->i", w, algebra="nonsense")
    with pytest.raises(tl.InputError, match="name of a variable"):
        Variable(1.0, name="")
    with pytest.raises(tl.ShapeError):
        iter(Variable(1.0))
    with pytest.raises(tl.GraphError, match="a Variable is expected"):
        tl.EagerTape().backward(np.ones(2))


def test_functions_that_are_not_there_name_the_nearest():
    w = Variable(X)
    with pytest.raises(tl.GraphError, match=r"np\.arctanh is not recorded") as found:
        np.arctanh(w)
    assert any("arctan" in hint for hint in found.value.diagnostic.suggestions)
    with pytest.raises(tl.GraphError, match=r"np\.kron is not recorded"):
        np.kron(w, w)
    with pytest.raises(tl.GraphError, match="takes no where="):
        np.exp(w, where=X > 0.5)
    with pytest.raises(tl.GraphError, match=r"np\.where of a condition alone"):
        np.where(w > 0)
    with pytest.raises(tl.GraphError, match=r"np\.sum on a variable"):
        np.sum(w, where=X > 0)


NARROW = np.array([100, 100, 100], "int8")
UFUNCS = {
    **{name: [getattr(np, name)] for name in ("absolute", "arccos", "arcsin", "arctan", "ceil", "cos", "cosh", "exp", "exp2", "expm1", "fabs", "floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "negative", "positive", "reciprocal", "rint", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc")},
    **{name: [lambda x, f=getattr(np, name): f(x, x[0]), lambda x, f=getattr(np, name): f(2, x)] for name in ("add", "arctan2", "divide", "equal", "float_power", "floor_divide", "greater", "greater_equal", "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "not_equal", "power", "remainder", "subtract", "true_divide")},
    **{name: [lambda x, f=getattr(np, name): f(x > 1, x[0] > 1)] for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "invert": [lambda x: ~(x > 1)],
    "matmul": [lambda x: np.matmul(x, x.T), lambda x: np.matmul(x[0], x.T)],
}  # fmt: skip
CALLS = {
    **UFUNCS,
    **{name: [getattr(np, name), lambda x, f=getattr(np, name): f(x, 0), lambda x, f=getattr(np, name): f(x, axis=(0, -1), keepdims=True)] for name in ("all", "amax", "amin", "any", "max", "mean", "min", "prod", "std", "sum", "var")},
    **{name: [getattr(np, name), lambda x, f=getattr(np, name): f(x, -1), lambda x, f=getattr(np, name): f(x, axis=1, keepdims=True)] for name in ("argmax", "argmin")},
    **{name: [getattr(np, name), lambda x, f=getattr(np, name): f(x, 0)] for name in ("cumprod", "cumsum")},
    **{name: [lambda x, f=getattr(np, name): f(x[:3, :3])] for name in ("diagonal", "trace")},
    **{name: [lambda x, f=getattr(np, name): f(x, x), lambda x, f=getattr(np, name): f(x[0], x[0])] for name in ("inner", "outer")},
    **{name: [getattr(np, name)] for name in ("array2string", "array_repr", "array_str", "copy", "matrix_transpose", "ndim", "shape", "size")},
    **{name: [lambda x, f=getattr(np, name): f(x, x)] for name in ("array_equal", "may_share_memory", "shares_memory")},
    **{name: [lambda x, f=getattr(np, name): f(x, x + 1), lambda x, f=getattr(np, name): f(x, b=x)] for name in ("allclose", "isclose")},
    **{name: [getattr(np, name), lambda x, f=getattr(np, name): f(x, (-1, 0))] for name in ("permute_dims", "transpose")},
    **{name: [getattr(np, name), lambda x, f=getattr(np, name): f(x, np.int64), lambda x, f=getattr(np, name): f(x, dtype=bool)] for name in ("ones_like", "zeros_like")},
    "argsort": [lambda x: np.argsort(x[0] * 2 + np.arange(4)), lambda x: np.argsort(x[:1], 0)],
    "broadcast_to": [lambda x: np.broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x[0, 0], 5)],
    "clip": [lambda x: np.clip(x, None, 2), lambda x: np.clip(x, 2, 1), lambda x: np.clip(x, min=2)],
    "concatenate": [lambda x: np.concatenate([x, x]), lambda x: np.concatenate([x, x], -1), lambda x: np.concatenate([x, x[0]], axis=None)],
    "dot": [lambda x: np.dot(x, x.T), lambda x: np.dot(x, x[0]), lambda x: np.dot(2, x)],
    "einsum": [lambda x: np.einsum("ij,kj", x, x), lambda x: np.einsum("ij->j", x, optimize=True)],
    "expand_dims": [lambda x: np.expand_dims(x, -1), lambda x: np.expand_dims(x, axis=0)],
    "flip": [np.flip, lambda x: np.flip(x, -1), lambda x: np.flip(x, (0, 1))],
    "full_like": [lambda x: np.full_like(x, 3), lambda x: np.full_like(x, 2.5, np.float32)],
    "hstack": [lambda x: np.hstack([x, x]), lambda x: np.hstack([x[0], x[1]])],
    "moveaxis": [lambda x: np.moveaxis(x, 0, -1), lambda x: np.moveaxis(np.stack([x, x]), 0, 1)],
    "norm": [np.linalg.norm, lambda x: np.linalg.norm(x, None, 0), lambda x: np.linalg.norm(x, "fro"),
             lambda x: np.linalg.norm(x[0], 2), lambda x: np.linalg.norm(x, 2, -1, True),
             lambda x: np.linalg.norm(np.stack([x, x]), axis=(0, 1)), lambda x: np.linalg.norm(np.stack([x, x]))],
    "pad": [lambda x: np.pad(x, 1), lambda x: np.pad(x, (1, 2)), lambda x: np.pad(x, ((1, 2),)), lambda x: np.pad(x, [[1], [2]]),
            lambda x: np.pad(x, ((0, 1), (2, 0)), "constant", constant_values=7), lambda x: np.pad(x[0], (1, 2)), lambda x: np.pad(x, np.int64(0))],
    "ravel": [np.ravel, lambda x: np.ravel(x.T, order="C")],
    "reshape": [lambda x: np.reshape(x, (2, -1)), lambda x: np.reshape(x, -1), lambda x: np.reshape(x.T, np.int64(12), order="C")],
    "result_type": [lambda x: np.result_type(x, 1.0), lambda x: np.result_type(x, np.float32)],
    "sort": [np.sort, lambda x: np.sort(x, 0)],
    "squeeze": [np.squeeze, lambda x: np.squeeze(x[:1]), lambda x: np.squeeze(x[:, :1], 1)],
    "stack": [lambda x: np.stack([x, x]), lambda x: np.stack([x, x], -1)],
    "swapaxes": [lambda x: np.swapaxes(x, 0, 1), lambda x: np.swapaxes(np.stack([x, x]), -1, 0)],
    "take": [lambda x: np.take(x, [[5], [-1]]), lambda x: np.take(x, [-1, 0], 1), lambda x: np.take(x, 1, axis=0)],
    "vstack": [lambda x: np.vstack([x, x[0]])],
    "where": [lambda x: np.where(x > 1, x, 0), lambda x: np.where(x > 1, x[0], x)],
}  # fmt: skip
CALLS |= {
    "ddof": [lambda x: np.var(x, 1, ddof=1), lambda x: np.std(x, np.int64(0), ddof=2), lambda x: np.var(x[:, :2], 1, ddof=2)],
    "dtypes": [lambda x: np.sum(x, dtype=np.float32), lambda x: np.mean(x, 0, np.float64), lambda x: np.add.reduce(x, dtype=int),
               lambda x: np.add(x, x, dtype=np.float64), lambda x: np.equal(x, 1, dtype=bool), lambda x: np.sqrt(x, dtype=np.float32)],
    "reduce": [np.add.reduce, lambda x: np.multiply.reduce(x, 1), lambda x: np.maximum.reduce(x, axis=None), np.minimum.reduce,
               lambda x: np.logical_or.reduce(x, axis=1), lambda x: np.logical_and.reduce(x, keepdims=True)],
}  # fmt: skip


def test_every_numpy_function_is_in_the_table():
    assert set(UFUNCS) == set(eager_numpy._UFUNCS)
    assert set(CALLS) - {"ddof", "dtypes", "reduce"} == set(eager_numpy._UFUNCS) | set(eager_numpy._FUNCTIONS)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("name", CALLS)
def test_numpy_calls_answer_as_on_arrays(name, dtype):
    x = np.array([[1, 2, 3, 1], [3, 1, 2, 2], [2, 3, 1, 1]], dtype)
    for call in CALLS[name]:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's on ddof
            expected, found = call(x), call(Variable(x))
        if not isinstance(expected, np.ndarray | np.generic):
            assert found == expected and type(found) is type(expected)
            continue
        assert np.shape(found) == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6 if dtype == "float32" else 1e-12)


def test_narrow_numbers_do_not_run_over():
    x = Variable(NARROW)
    assert np.add(x, x, dtype=np.int64).tolist() == [200, 200, 200]
    assert np.linalg.norm(x).item() == np.linalg.norm(NARROW)
    for fn in (np.fabs, np.exp2, lambda a: np.float_power(a, 2)):
        with np.errstate(over="ignore"):
            assert fn(x).dtype == fn(NARROW).dtype


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: np.reshape(x, (4, 3), order="F"), r"np\.reshape on a variable takes no order='F', only order='C'"),
        (lambda x: np.ravel(x, order="K"), r"np\.ravel on a variable takes no order='K'"),
        (lambda x: np.pad(x, 1, mode="edge"), r"np\.pad on a variable takes no mode='edge', only mode='constant'"),
        (lambda x: np.pad(x, 1, "reflect"), r"takes no mode='reflect'"),
        (lambda x: np.pad(x, 1, constant_values=(1, 2)), "one number for constant_values="),
        (lambda x: np.pad(x, (1, 2, 3)), r"np\.pad of 2 axes cannot take pad_width=\(1, 2, 3\)"),
        (lambda x: np.pad(x, -1), r"cannot take pad_width=-1"),
        (lambda x: np.pad(x, 1.5), r"cannot take pad_width=1\.5"),
        (lambda x: np.pad(x, [[1, 2], [3]]), "cannot take pad_width="),
        (lambda x: np.linalg.norm(x, 1), r"np\.linalg\.norm on a variable takes no ord=1, only ord=None"),
        (lambda x: np.linalg.norm(x, 2), "takes no ord=2"),  # of a matrix, the largest singular value
        (lambda x: np.linalg.norm(x, np.inf, axis=1), "takes no ord=inf"),
        (lambda x: np.linalg.norm(x[0], "fro"), "takes no ord='fro'"),
        (lambda x: np.linalg.norm(np.stack([x, x]), axis=(0, 1, 2)), "one axis or two"),
        (lambda x: np.sum(x, 0, None, np.empty(4)), "takes no out="),
        (lambda x: np.max(x, 0, np.empty(4)), "takes no out="),
        (lambda x: np.add(x, x, dtype=int), "float64 does not go into dtype=int64"),
        (np.full_like, "fill_value"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(call, words):
    with pytest.raises((tl.GraphError, tl.ShapeError, tl.DTypeError, TypeError), match=words):
        call(Variable(X))


def test_nan_is_named():
    w = Variable([4.0, -1.0], name="w")
    loss = (np.sqrt(w) * 2).sum()
    loss.backward()  # as NumPy has it
    assert np.isnan(w.grad[1])
    with pytest.raises(tl.ExecutionError, match=r"value 1 has 1 NaN of 2: the result of sqrt"):
        (np.sqrt(w) * 2).sum().backward(check_nan=True)
    bad = Variable([np.nan], name="bad")
    with pytest.raises(tl.ExecutionError, match=r"'bad' has 1 NaN of 1: what was given"):
        (bad * bad).sum().backward(check_nan=True)
    lost = tl.Variable([1.0, -1.0])
    with np.errstate(invalid="ignore"), pytest.raises(tl.ExecutionError, match="1 NaN of 2: the result of log"):
        np.log(lost).sum().backward(check_nan=True)  # its gradient is finite, the loss is not
    z = Variable([0.0])
    with pytest.raises(tl.ExecutionError, match="the values are fine, but in their gradient") as found:
        (np.sqrt(z) * 0.0).sum().backward(check_nan=True)
    assert found.value.diagnostic.location.file == __file__


def test_empty_and_infinite():
    w = Variable(np.zeros((0, 3)))
    w.sum().backward()
    assert w.grad.shape == (0, 3)
    x = Variable([np.inf, 1.0])
    (1 / x).sum().backward()
    np.testing.assert_array_equal(x.grad, [-0.0, -1.0])
    assert (Variable(1.0) / 0).item() == np.inf  # without a warning, as on every engine


# tapes


def test_a_tape_is_a_graph():
    w = Variable(M, name="w")
    x = Variable(X, name="x", requires_grad=False)
    with tl.EagerTape() as tape:
        h = np.tanh(x @ w)
        loss = (h**2).sum()
    graph = tape.graph(loss=loss, h=h)
    assert graph.input_names == ["x", "w"] and graph.output_names == ["loss", "h"]
    assert graph.nodes[2].location.file == __file__
    out = tl.Executor().execute(graph, {"x": X, "w": M})
    assert out["loss"] == loss.item()
    gradient = tl.Executor().execute(tl.grad(graph, "w", of="loss"), {"x": X, "w": M})["d_w"]
    loss.backward()
    np.testing.assert_allclose(gradient, w.grad)
    assert tape.graph().output_names == ["y"]
    assert tape.compile(loss=loss)({"x": X, "w": M})["loss"] == loss.item()
    assert isinstance(tape, tl.TlEagerAutodiff) and isinstance(tl.Executor(), tl.TlEagerAutodiff)


def test_tapes_record_what_wants_no_gradient():
    n = Variable([1, 2, 3], name="n")
    with tl.EagerTape() as outer, tl.EagerTape() as inner:
        m = (n + 1) * 2
    assert outer.graph() == inner.graph()
    assert tl.Executor().execute(outer.graph(), {"n": [4, 5, 6]})["y"].tolist() == [10, 12, 14]
    assert m.tolist() == [4, 6, 8]
    empty = tl.EagerTape()
    with pytest.raises(tl.GraphError, match="still there"):
        empty.graph()


def test_a_function_becomes_a_graph():
    def model(x, params, labels):
        h = np.tanh(x @ params["w"] + params["b"])
        return {"loss": -eager.log_softmax(h)[np.arange(3), labels].mean(), "h": h}

    params, labels = {"w": M, "b": np.zeros(2)}, np.array([0, 1, 1])
    graph = eager.graph_of(model, X, params, labels)
    assert graph.input_names == ["x", "params.w", "params.b", "labels"]
    inputs = {"x": X, "params.w": M, "params.b": params["b"], "labels": labels}
    other = {**inputs, "labels": np.array([1, 0, 1])}
    for each in (inputs, other):
        expected = model(Variable(X), {"w": Variable(M), "b": params["b"]}, each["labels"])
        found = tl.Executor().execute(graph, each)
        np.testing.assert_allclose(found["loss"], expected["loss"].value)
        np.testing.assert_allclose(found["h"], expected["h"].value)
    compiled = eager.compile(lambda a, b: (a @ b, a), X, M)
    np.testing.assert_allclose(compiled({"a": Y, "b": M})["y0"], Y @ M)
    scale = Variable(2.0, name="scale")
    assert eager.graph_of(lambda x: x * scale, 1.0).input_names == ["x", "scale"]
    assert eager.graph_of(lambda *xs: xs[0] + xs[1], 1.0, 2.0).input_names == ["xs0", "xs1"]
    constant = eager.graph_of(lambda x: (x, 3.0), 1.0)
    assert tl.Executor().execute(constant, {"x": 2.0})["y1"] == 3.0
    for wrong, examples in ((3, ()), (lambda x: x, ()), (lambda: 1, (2,))):
        with pytest.raises(tl.InputError):
            eager.graph_of(wrong, *examples)
    with pytest.raises(tl.GraphError, match="must be a Variable"):
        eager.graph_of(lambda x: None, 1.0)


def test_detached_values_stay_in_a_graph():
    def fn(x):
        with tl.no_grad():
            mean = x.mean()
        return (x - mean) * x.detach().sum()

    graph = eager.graph_of(fn, np.array([1.0, 2.0]))
    assert graph.input_names == ["x"]
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": [3.0, 5.0]})["y"], [-8.0, 8.0])
    before = Variable([2.0], requires_grad=False) * 2  # computed elsewhere: a constant
    graph = eager.graph_of(lambda x: x * before, np.array([1.0]))
    assert graph.input_names == ["x"]
    assert tl.Executor().execute(graph, {"x": [3.0]})["y"].tolist() == [12.0]
    x = Variable([1.0, 2.0])
    fn(x).sum().backward()
    np.testing.assert_array_equal(x.grad, [3.0, 3.0])


def test_copies_and_pickles():
    import copy
    import pickle

    w = Variable([1.0, 2.0], name="w")
    for other in (
        copy.copy(w),
        copy.deepcopy({"w": w})["w"],
        pickle.loads(pickle.dumps(w)),
        pickle.loads(pickle.dumps(w * 1)),
    ):
        (other * 2).sum().backward()
        np.testing.assert_array_equal(other.grad, [2.0, 2.0])
        assert w.grad is None
    assert copy.copy(w).name == "w" and not copy.copy(w.detach()).requires_grad


def test_a_list_of_variables_is_refused():
    a, b = Variable(1.0), Variable(2.0)
    for wrong in (lambda: a * [a, b], lambda: Variable([a, b]), lambda: eager.sum([[a], [b]])):
        with pytest.raises(tl.GraphError, match=r"np\.stack") as found:
            wrong()
        assert "list of variables" in str(found.value)
    np.stack([a, b]).sum().backward()
    assert a.grad == 1.0


def test_small_whole_numbers_as_indices():
    x = Variable(np.arange(200.0 * 3).reshape(200, 3))
    rows, columns = np.array([199, 100], "uint8"), np.array([2, -1], "int8")
    assert x[rows, columns].tolist() == x.value[rows, columns].tolist()
    graph = eager.graph_of(lambda x, i, j: x[i, j], x.value, rows, columns)
    found = tl.Executor().execute(graph, {"x": x.value, "i": rows, "j": columns})["y"]
    assert found.tolist() == x.value[rows, columns].tolist()


def test_a_very_long_record_goes_quietly():
    y = Variable(1.0)
    for _ in range(100_000):
        y = y + 1.0
    assert y.item() == 100_001
    del y


def test_other_executors_run_gradients():
    w = Variable(X)
    executor = tl.Executor("reference")
    assert executor.variable([1.0]).requires_grad
    executor.backward(np.exp(w).sum())
    np.testing.assert_allclose(w.grad, np.exp(X))
    executor.backward(np.exp(w), np.ones_like(X))
    np.testing.assert_allclose(w.grad, 2 * np.exp(X))
