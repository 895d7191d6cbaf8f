"""Steps of several results that are written over donated operands: the bits are those of a run without donation."""

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.native.rows import row_source

NAMES = ("w", "m", "v")


def adam():
    b = tl.GraphBuilder()
    w, m, v, g = (b.input(n, ("n",), "float32") for n in (*NAMES, "g"))
    rate = b.input("rate", (), "float32")
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * b.square(g)
    return b.build(w=w - rate * m / (b.sqrt(v) + 1e-8), m=m, v=v)


def values(size):
    rng = np.random.default_rng(size)
    found = {n: rng.random(size).astype("float32") for n in (*NAMES, "g")}
    return {**found, "rate": np.array(0.1, "float32")}


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000, 400_000])
@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_results_stand_where_the_operands_stood(size, policy):
    executor, graph = tl.Executor(policy=policy), adam()
    expected = executor.execute(graph, values(size))
    given = values(size)
    outputs = executor.execute(graph, given, donate=NAMES)
    places = {given[n].__array_interface__["data"][0] for n in NAMES}
    assert {outputs[n].__array_interface__["data"][0] for n in NAMES} == places
    for n in NAMES:
        np.testing.assert_array_equal(outputs[n], expected[n])
    assert np.array_equal(given["g"], values(size)["g"])


def test_a_kernel_is_given_what_it_writes_over_once():
    """Then no two of its arrays overlap, and it needs no rows of its own to be vectorised."""
    types = {n: tl.TensorType.of(v) for n, v in values(400_000).items()}
    step = tl.Executor(policy="fast").programs.options(adam(), types, None, None, NAMES)[0].steps[-1]
    assert sorted(step.over) == [(0, 0), (2, 1), (4, 2)]  # m, v and w
    source = row_source(step)
    assert source is not None
    assert "np.empty" not in source.text
    assert "o0" not in source.text


def test_every_plan_that_competes_writes_over_what_is_donated():
    types = {n: tl.TensorType.of(v) for n, v in values(400_000).items()}
    plans = tl.Executor(policy="fast").programs.options(adam(), types, None, None, NAMES)
    assert len(plans) > 1
    assert {len(plan.donors) for plan in plans} == {len(NAMES)}


def test_arrays_that_cannot_be_written_over_stay_as_they_are():
    executor, graph = tl.Executor(policy="fast"), adam()
    given = values(2000)
    both = np.zeros(4000, "float32")
    both[::2] = given["m"]
    given["m"] = both[::2]  # not contiguous
    given["w"].flags.writeable = False
    before = {n: v.copy() for n, v in given.items()}
    expected = executor.execute(graph, before)
    outputs = executor.execute(graph, given, donate=NAMES)
    for n in NAMES:
        np.testing.assert_array_equal(outputs[n], expected[n])
    np.testing.assert_array_equal(given["w"], before["w"])
    np.testing.assert_array_equal(given["m"], before["m"])


def test_an_operand_that_is_read_as_rows_is_not_written_over():
    b = tl.GraphBuilder()
    x, c = b.input("x", (40, 50), "float32"), b.input("c", (50,), "float32")
    graph = b.build(y=b.exp(x) + c, z=b.exp(x) * c - x)
    rng = np.random.default_rng(0)
    given = {"x": rng.random((40, 50)).astype("float32"), "c": rng.random(50).astype("float32")}
    executor = tl.Executor(policy="fast")
    expected = executor.execute(graph, given)
    outputs = executor.execute(graph, {n: v.copy() for n, v in given.items()}, donate=("x", "c"))
    for name in ("y", "z"):
        np.testing.assert_array_equal(outputs[name], expected[name])
