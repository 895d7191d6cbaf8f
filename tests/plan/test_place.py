"""Placement: bounds of each strategy, what moves, graphs with transfers, and print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node
from tensorlogic.plan.build import lay_out, step_devices
from tensorlogic.plan.cost import nbytes
from tensorlogic.plan.node_costs import GIVEN, longest_path, node_costs

P = tl.PlacementStrategy


def cpus(count: int) -> list[tl.Device]:
    return [tl.Device.CPU(n) for n in range(count)]


@st.composite
def graphs(draw: Any, most: int = 25) -> tl.EinsumGraph:
    """Graphs with views, constants, loops, what reads only constants, and transfers written by hand."""
    b = tl.GraphBuilder(intern=False)
    made = [b.input("x", (4, 4), "float32"), b.input("w", (4, 4), "float32"), b.constant(np.full((4, 4), 0.5, "f4"))]
    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "matmul": lambda p, q: p @ q * 0.25,
        "add": lambda p, q: p + q,
        "tanh": lambda p, q: b.tanh(p),
        "scale": lambda p, q: p * 2.0,
        "view": lambda p, q: p.T[::-1],
        "reshape": lambda p, q: b.reshape(b.reshape(p, (2, 8)), (4, 4)),
        "cut": lambda p, q: b.concat([p[:2], q[2:]], 0),
        "fixpoint": lambda p, q: b.fixpoint(lambda c: b.minimum(c + 1, q), p, limit=100, combine="min"),
        "scan": lambda p, q: b.scan(lambda c, r: (c + r, c * r), b.sum(p, 0), q)[1],
        "iota": lambda p, q: p + b.cast(b.iota(4), "float32"),
        "moved": lambda p, q: b.apply(ops.Transfer("cpu:0"), p),
        "where": lambda p, q: b.where(p > 0, q, 1.0),
    }
    for _ in range(draw(st.integers(0, most))):
        pick = st.sampled_from(made)
        made.append(kinds[draw(st.sampled_from(sorted(kinds)))](draw(pick), draw(pick)))
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    return b.build({f"y{n}": t for n, t in enumerate(outputs)})


@given(graphs(), st.sampled_from(list(P)), st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_transfers_change_nothing_and_are_all_there(graph: tl.EinsumGraph, strategy: Any, count: int) -> None:
    plan = tl.PlacementOptimizer(cpus(count), strategy).optimize(graph)
    place = plan.node_placements
    assert set(place) == {
        i for i, node in enumerate(graph.nodes) if not isinstance(node.op, ops.Constant | ops.Literal)
    }
    w = node_costs(graph, None, None)
    assert sum(plan.load.values()) == sum(w.cost)
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Input):
            assert place[i] == tl.Device.CPU(0)
        if w.root[i] != i and node.args[0] in place and not isinstance(node.op, ops.Transfer):
            assert place[i] == place[node.args[0]]  # a view stays

    moved = plan.apply(graph)
    assert step_devices(moved)  # raises where a node would read from two devices
    by_hand = sum(isinstance(node.op, ops.Transfer) for node in graph.nodes)
    added = sum(isinstance(node.op, ops.Transfer) for node in moved.nodes) - by_hand
    assert added <= len(plan.transfers) <= added + by_hand
    if count == 1:
        assert moved == graph
        assert plan.transfers == ()
    if not by_hand:  # then what is not a transfer are the graph's own nodes
        steps = zip(moved.nodes, step_devices(moved), strict=True)
        kept = [device for node, device in steps if not isinstance(node.op, ops.Transfer)]
        assert all(device == str(place.get(i, device)) for i, device in enumerate(kept))
    steps = lay_out(moved).steps  # what is reported is what a plan runs
    to = [(s.op.device, sum(map(nbytes, s.types))) for s in steps if isinstance(s.op, ops.Transfer)]
    if not by_hand:
        assert to == [(str(m.target), m.nbytes) for m in plan.transfers]
        ran = {str(d): 0 for d in plan.devices}
        for step in steps:
            ran[step.device] += not isinstance(step.op, ops.Transfer)
        computes = [i for i, n in enumerate(graph.nodes) if not isinstance(n.op, (*GIVEN, ops.Item))]
        assert ran == {str(d): sum(place[i] == d for i in computes) for d in plan.devices}
    assert tl.EinsumGraph.from_text(moved.to_text()) == moved
    assert tl.EinsumGraph.from_json(moved.to_json()) == moved

    rng = np.random.default_rng(1)
    data = {n: rng.normal(size=(4, 4)).astype("f4") for n in graph.inputs}
    for backend in ("numpy", "reference"):
        engine = tl.Executor(backend)
        for one, other in zip(engine.execute(graph, data), engine.execute(moved, data), strict=True):
            np.testing.assert_array_equal(one, other)


def tree(draw: Any, leaves: int) -> tl.EinsumGraph:
    """A random tree of contractions and maps over an input."""
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (8, 8), "float32")
    open_ends = [x * float(n) if draw(st.booleans()) else x @ x for n in range(leaves)]
    while len(open_ends) > 1:
        p = open_ends.pop(draw(st.integers(0, len(open_ends) - 1)))
        q = open_ends.pop(draw(st.integers(0, len(open_ends) - 1)))
        open_ends.append(p @ q if draw(st.booleans()) else p + q)
    return b.build(y=open_ends[0])


@given(st.data(), st.integers(1, 20), st.integers(1, 5))
@settings(deadline=None, max_examples=100)
def test_balance_is_within_the_bounds(data: Any, leaves: int, count: int) -> None:
    graph = tree(data.draw, leaves)
    cost = node_costs(graph, None, None).cost
    total, path = sum(cost), sum(cost[n] for n in longest_path(graph, cost))
    by_load = tl.PlacementOptimizer(cpus(count), P.LOAD_BALANCE).optimize(graph)
    assert max(by_load.load.values()) <= total / count + (1 - 1 / count) * path  # Graham's bound on the end
    by_edge = tl.PlacementOptimizer(cpus(count), P.COMMUNICATION).optimize(graph)
    assert max(by_edge.load.values()) <= total / count + max(total / count / 2, *cost) + 1e-6


def towers(count: int, depth: int = 6, size: int = 32) -> tl.EinsumGraph:
    """Chains that meet only at the end, level by level in the graph's order."""
    b = tl.GraphBuilder()
    ends = [b.input(f"x{n}", (size, size), "float32") for n in range(count)]
    for _ in range(depth):
        ends = [b.tanh(t @ t) for t in ends]
    return b.build(y=b.sum(b.stack([b.sum(t) for t in ends])))


def test_communication_moves_less_and_load_balance_balances() -> None:
    b = tl.GraphBuilder()
    grid = [b.input("x", (32, 32), "float32") * float(n) for n in range(8)]
    for _ in range(6):  # neighbours meet, so that any cut costs something
        grid = [b.tanh(p @ q) for p, q in zip(grid, grid[1:] + grid[:1], strict=True)]
    graph = b.build({f"y{n}": t for n, t in enumerate(grid)})
    plans = {s: tl.PlacementOptimizer(cpus(4), s).optimize(graph) for s in P}
    assert plans[P.COMMUNICATION].bytes_moved < 0.8 * plans[P.LOAD_BALANCE].bytes_moved
    loads = plans[P.LOAD_BALANCE].load.values()
    assert max(loads) <= 1.1 * sum(loads) / 4


def test_independent_chains_stay_whole() -> None:
    graph = towers(4)
    for strategy in (P.LOAD_BALANCE, P.COMMUNICATION):
        plan = tl.PlacementOptimizer(cpus(4), strategy).optimize(graph)
        assert set(plan.node_placements.values()) == set(cpus(4))
        assert plan.bytes_moved <= 3 * 32 * 32 * 4 + 3 * 4  # inputs out, sums in


# memory


def holders(count: int = 8) -> tl.EinsumGraph:
    """Results of 4,000 bytes that all live to the end."""
    b = tl.GraphBuilder()
    x = b.input("x", (10,), "float32")
    return b.build({f"y{n}": b.einsum("i,j->ij", x * float(n), b.iota(100)) for n in range(count)})


def test_memory_is_spread_and_limits_are_kept() -> None:
    graph = holders()
    one = tl.PlacementOptimizer(cpus(1), P.MEMORY).optimize(graph)
    whole = max(one.memory.values())
    plan = tl.PlacementOptimizer(cpus(4), P.MEMORY).optimize(graph)
    assert max(plan.memory.values()) < 0.45 * whole
    limit = max(plan.memory.values())
    tight = tl.PlacementOptimizer(cpus(4), P.MEMORY, memory_limit=limit).optimize(graph)
    assert max(tight.memory.values()) <= limit
    uneven = {tl.Device.CPU(1): whole // 8}
    plan = tl.PlacementOptimizer(cpus(2), P.MEMORY, memory_limit=uneven).optimize(graph)
    assert plan.memory[tl.Device.CPU(1)] <= whole // 8 < plan.memory[tl.Device.CPU(0)]


@pytest.mark.parametrize("strategy", list(P))
def test_what_fits_nowhere_is_refused(strategy: Any) -> None:
    with pytest.raises(tl.OutOfMemoryError, match=r"would hold .* at node %\d+"):
        tl.PlacementOptimizer(cpus(2), strategy, memory_limit=5_000).optimize(holders())


def test_results_are_let_go_and_copies_and_constants_are_counted() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (100,), "float64")
    for n in range(50):
        x = x + float(n)
    chain = tl.PlacementOptimizer(cpus(1)).optimize(b.build(y=x))
    assert chain.memory[tl.Device.CPU(0)] == 3 * 800  # the input, a result and the next

    b = tl.GraphBuilder()
    y = b.input("x", (100,), "float64") + b.constant(np.ones(100))
    plan = tl.PlacementOptimizer(cpus(1)).optimize(b.build(y=b.apply(ops.Transfer("cpu:0"), y)))
    assert plan.memory[tl.Device.CPU(0)] == 3 * 800
    there = b.build(y=b.exp(b.apply(ops.Transfer("cpu:1"), y)))
    plan = tl.PlacementOptimizer(cpus(2), P.MEMORY).optimize(there)
    assert plan.bytes_moved == 800
    assert plan.memory[tl.Device.CPU(1)] >= 800


# edges


@pytest.fixture(scope="module")
def chain() -> tl.EinsumGraph:
    nodes = [Node(ops.Input("x", (4,), "float32"))]
    nodes += [Node(ops.Elementwise("exp" if n % 2 else "sin"), (n,)) for n in range(100_000)]
    return tl.EinsumGraph(nodes, [("y", 100_000)])


@pytest.mark.parametrize("strategy", list(P))
def test_small_and_empty(strategy: Any) -> None:
    many = tl.PlacementOptimizer(cpus(50), strategy)
    empty = many.optimize(tl.EinsumGraph((), ()))
    assert empty.node_placements == {}
    assert empty.apply() == tl.EinsumGraph((), ())
    assert empty.bytes_moved == 0
    b = tl.GraphBuilder()
    x = b.input("x", (0, 3), "bool")
    few = many.optimize(b.build(y=b.sum(x & x), x=x))
    assert sum(few.load.values()) == sum(node_costs(few.graph, None, None).cost)
    only = many.optimize(b.build(c=b.constant(np.ones(3)), d=b.exp(b.constant(np.ones(3)))))
    assert set(map(str, only.node_placements.values())) == {"cpu:0"}


@pytest.mark.parametrize("strategy", list(P))
def test_a_deep_chain(chain: tl.EinsumGraph, strategy: Any) -> None:
    graph = chain
    plan = tl.PlacementOptimizer(cpus(3), strategy).optimize(graph)
    assert len(plan.node_placements) == 100_001
    assert len(plan.transfers) <= 5
    assert len(plan.apply(graph)) == 100_001 + len(plan.transfers)


def test_a_transfer_of_a_scalar_makes_it_a_tensor() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float32")
    graph = b.build(y=x + b.apply(ops.Transfer("cpu:0"), 2.0))
    for backend in ("numpy", "reference"):
        out = tl.Executor(backend).execute(graph, {"x": np.ones(3, "f4")})["y"]
        assert out.dtype == np.float64  # as x + np.float64(2)


def test_an_input_that_only_moves_comes_out_as_a_copy() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.apply(ops.Transfer("cpu:1"), b.input("x", (3,))))
    given = np.ones(3)
    for backend in ("numpy", "reference"):
        out = tl.Executor(backend).execute(graph, {"x": given})["y"]
        assert not np.shares_memory(out, given)
    assert tl.DummyExecutor().execute(graph, {"x": given})["y"].shape == (3,)
    assert "transfer" in graph.to_dot()


def test_symbolic_graphs_keep_their_sizes() -> None:
    b = tl.GraphBuilder()
    x, u, v = b.input("x", ("n", 16)), b.input("u", (16, 16)), b.input("v", (16, 16))
    graph = b.build(y=x @ u + x @ v)
    plan = tl.PlacementOptimizer(cpus(2)).optimize(graph)
    assert plan.assumed == ("n",)
    moved = plan.apply(graph)
    data = {"x": np.ones((5, 16)), "u": np.ones((16, 16)), "v": np.ones((16, 16))}
    np.testing.assert_array_equal(*(tl.Executor().execute(g, data)["y"] for g in (graph, moved)))
    assert tl.PlacementOptimizer(cpus(2)).optimize(graph, data).assumed == ()


def test_a_placed_graph_can_be_placed_again() -> None:
    moved = tl.PlacementOptimizer(cpus(3)).optimize(towers(3)).apply()
    again = tl.PlacementOptimizer(cpus(3)).optimize(moved)
    for i, node in enumerate(moved.nodes):
        if isinstance(node.op, ops.Transfer):
            assert str(again.node_placements[i]) == node.op.device
    step_devices(again.apply())
    with pytest.raises(tl.GraphError, match=r"transfers to cpu:\d, which is not among the devices cpu:0"):
        tl.PlacementOptimizer(cpus(1)).optimize(moved)


def test_mistakes_are_named() -> None:
    for wrong in ([], ["cpu:0"], [None]):
        with pytest.raises(tl.InputError, match="devices must be a list of at least one device"):
            tl.PlacementOptimizer(wrong)  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="given twice: cpu:0, cpu:0"):
        tl.PlacementOptimizer([tl.Device.CPU(0)] * 2)
    for limit in ("1 MB", -1, {tl.Device.CPU(0): 0.5}):
        with pytest.raises(tl.InputError, match="memory_limit must be a whole number of at least 0"):
            tl.PlacementOptimizer([tl.Device.CPU(0)], memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="devices must be a list"):
        tl.PlacementOptimizer(tl.Device.CPU(0))  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="a PlacementStrategy is expected, got 'fair'"):
        tl.PlacementOptimizer(cpus(1), "fair")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="memory_limit names gpu:0"):
        tl.PlacementOptimizer(cpus(1), memory_limit={tl.Device.GPU(0): 1})
    plan = tl.PlacementOptimizer(cpus(2)).optimize(towers(2))
    with pytest.raises(tl.GraphError, match="this placement is of another graph"):
        plan.apply(towers(3))
    for wrong_name in ("", "cpu", "cpu:", ":1", "cpu:x", "a b:1"):
        b = tl.GraphBuilder()
        with pytest.raises(tl.GraphError, match="is no device"):
            b.apply(ops.Transfer(wrong_name), b.input("x", (3,)))


def test_a_node_cannot_read_from_two_devices() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (3,)), b.input("w", (3,))
    graph = b.build(y=b.apply(ops.Transfer("cpu:1"), x) + w)
    with pytest.raises(tl.GraphError, match=r"add \(node %\d\) reads from cpu:1 and cpu:0"):
        step_devices(graph)
    assert step_devices(b.build(y=x + w), "gpu:0") == ["gpu:0"] * 3


def test_print(golden: Callable[[str, str], None]) -> None:
    text = [f"{s}\n{tl.PlacementOptimizer(cpus(3), s).optimize(towers(3, 2))}\n" for s in P]
    pair = [tl.Device.CPU(0), tl.Device.GPU(0)]
    b = tl.GraphBuilder()
    x, u, v = b.input("x", ("n", 16)), b.input("u", (16, 16)), b.input("v", (16, 16))
    graph = b.build(y=x @ u + x @ v)
    text.append(f"{tl.PlacementOptimizer(pair).optimize(graph)}\n")
    text.append(f"{tl.PlacementOptimizer(pair, present=pair).optimize(graph, sizes={'n': 4})}\n")
    text.append(f"{tl.PlacementOptimizer(pair).optimize(graph).apply()}\n")
    golden("placement.txt", "\n".join(text))


def test_many_transfers_are_counted() -> None:
    plan = tl.PlacementOptimizer(cpus(4)).optimize(towers(40, 1))
    assert len(plan.transfers) > 3
    assert f"... {len(plan.transfers) - 3} more" in plan.table(3)
    assert plan.table(None).count("%") == len(plan.transfers)
