"""Schedules: valid orders, groups that do not wait for each other, memory, and print."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Node
from tensorlogic.plan.build import lay_out
from tensorlogic.plan.node_costs import GIVEN, STAND_IN, node_costs, peak, working

S = tl.SchedulingStrategy
STRATEGIES = [S.SEQUENTIAL, S.PARALLEL, S.CostBased(0), S.CostBased(500), S.CostBased(5_000), S.CostBased(1e18)]


@st.composite
def graphs(draw: Any, most: int = 30) -> tl.EinsumGraph:
    """Graphs of square matrices: contractions, maps, views, constants, a loop, dead nodes, several outputs."""
    b = tl.GraphBuilder(intern=False)
    made = [b.input("x", (4, 4), "float32"), b.input("w", (4, 4), "float32"), b.constant(np.ones((4, 4), "f4"))]
    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "matmul": lambda p, q: p @ q,
        "add": lambda p, q: p + q,
        "exp": lambda p, q: b.exp(p),
        "scale": lambda p, q: p * 2.0,
        "transpose": lambda p, q: p.T,
        "einsum view": lambda p, q: b.einsum("ij->ji", p),
        "cut": lambda p, q: b.concat([p[:2], q[2:]], 0),
        "scan": lambda p, q: b.scan(lambda c, r: (c + r, c * r), b.sum(p, 0), q)[1],
        "iota": lambda p, q: p + b.cast(b.iota(4), "float32"),
    }
    for _ in range(draw(st.integers(0, most))):
        pick = st.sampled_from(made)
        made.append(kinds[draw(st.sampled_from(sorted(kinds)))](draw(pick), draw(pick)))
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    return b.build({f"y{n}": t for n, t in enumerate(outputs)})


def check(schedule: tl.Schedule) -> None:
    """Assert that an order is valid and that groups and chains cut it consistently."""
    graph = schedule.graph
    order = schedule.node_order
    assert sorted(order) == working(graph)
    assert tuple(n for group in schedule.parallel_groups for n in group) == order
    assert tuple(tuple(n for c in g for n in c) for g in schedule.chains) == schedule.parallel_groups
    assert all(chain for group in schedule.chains for chain in group)
    assert all(schedule.parallel_groups)
    group_of = {n: g for g, group in enumerate(schedule.parallel_groups) for n in group}
    chain_of = {n: (g, c) for g, group in enumerate(schedule.chains) for c, chain in enumerate(group) for n in chain}
    at = {n: i for i, n in enumerate(order)}
    for n in order:
        for a in graph.nodes[n].args:
            if a in at:
                assert at[a] < at[n]
                assert group_of[a] < group_of[n] or chain_of[a] == chain_of[n]
    path = schedule.critical_path
    assert all(a in graph.nodes[n].args for a, n in pairwise(path))
    assert schedule.critical_cost <= sum(schedule.group_costs) <= schedule.cost


@given(graphs(), st.sampled_from(STRATEGIES))
@settings(deadline=None, max_examples=150)
def test_orders_are_valid_and_groups_independent(graph: tl.EinsumGraph, strategy: tl.SchedulingStrategy) -> None:
    schedule = tl.Scheduler(strategy).schedule(graph)
    check(schedule)
    assert schedule.assumed == ()
    if strategy.kind != "cost_based" or strategy.cost_threshold == 0:
        assert all(len(chain) == 1 for group in schedule.chains for chain in group)
    if strategy.kind == "sequential":
        assert all(len(group) == 1 for group in schedule.parallel_groups)
        assert schedule.peak_bytes <= lay_out(graph).peak_bytes
    plan = lay_out(schedule.apply())  # what is reported is what a plan of the graph in that order does
    assert schedule.peak_bytes == plan.peak_bytes
    given_first = [i for i, node in enumerate(graph.nodes) if isinstance(node.op, GIVEN)]
    old = [*given_first, *schedule.node_order]
    assert [old[step.node] for step in plan.steps] == [
        n for n in schedule.node_order if not isinstance(graph.nodes[n].op, ops.Item)
    ]


@given(graphs())
@settings(deadline=None, max_examples=50)
def test_a_graph_in_the_scheduled_order_gives_the_same(graph: tl.EinsumGraph) -> None:
    again = tl.Scheduler().schedule(graph).apply()
    rng = np.random.default_rng(0)
    data = {n: rng.normal(size=(4, 4)).astype("f4") for n in graph.inputs}
    for one, other in zip(tl.Executor().execute(graph, data), tl.Executor().execute(again, data), strict=True):
        np.testing.assert_array_equal(one, other)


@given(graphs())
@settings(deadline=None, max_examples=50)
def test_levels_are_as_early_as_can_be_and_a_threshold_of_nothing_is_parallel(graph: tl.EinsumGraph) -> None:
    parallel = tl.Scheduler(S.PARALLEL).schedule(graph)
    level = {n: g for g, group in enumerate(parallel.parallel_groups) for n in group}
    for n in parallel.node_order:
        assert level[n] == max((level[a] + 1 for a in graph.nodes[n].args if a in level), default=0)
    assert tl.Scheduler(S.CostBased(0)).schedule(graph).chains == parallel.chains
    assert len(tl.Scheduler(S.CostBased(1e18)).schedule(graph).chains) <= len(parallel.chains)


def test_sequential_keeps_memory_low() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (100,), "float64")
    wide = [b.exp(x * float(n)) for n in range(50)]  # in this order all fifty are alive at once
    graph = b.build(y=b.sum(b.stack([b.sum(w) for w in wide])))
    given_order = peak(graph, node_costs(graph, None, None), working(graph))
    schedule = tl.Scheduler(S.SEQUENTIAL).schedule(graph)
    check(schedule)
    assert given_order > 40 * 800
    assert schedule.peak_bytes < 4 * 800


def test_peak_is_counted_through_views_outputs_and_dead_nodes() -> None:
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (10,), "float64")
    y = x + 1  # alive while its view is
    view = y[2:]
    z = view * 2
    graph = b.build(z=b.sum(z), y=y)
    assert tl.Scheduler().schedule(graph).peak_bytes == 80 + 64 + 8
    dead = tl.EinsumGraph([*graph.nodes, Node(ops.Elementwise("exp"), (0,))], graph.outputs)
    assert tl.Scheduler().schedule(dead).peak_bytes == 80 + 64 + 8


def two_towers(cheap: int) -> tl.EinsumGraph:
    """Two products, each with cheap maps before and after it, and their sum."""
    b = tl.GraphBuilder()
    towers = []
    for name in "xw":
        t = b.input(name, (64,), "float32")
        for n in range(cheap):
            t = t + float(n + 1)
        t = b.einsum("i,j->ij", t, t)
        t = b.einsum("ij,jk->ik", t, t)
        t = b.sum(t, 0)
        for n in range(cheap):
            t = t * float(n + 2)
        towers.append(t)
    return b.build(y=b.sum(towers[0] + towers[1]))


def test_cheap_nodes_join_a_chain_and_costly_ones_share_a_group() -> None:
    graph = two_towers(3)
    schedule = tl.Scheduler(S.CostBased(cost_threshold=10_000)).schedule(graph)
    check(schedule)
    products = [i for i, node in enumerate(graph.nodes) if getattr(node.op, "spec", "") == "ij,jk->ik"]
    assert any(set(products) <= set(group) for group in schedule.parallel_groups)
    levels = len(tl.Scheduler(S.PARALLEL).schedule(graph).chains)
    assert len(schedule.chains) == 3  # outer products with what feeds them; products with what follows; the sums
    assert levels > 8
    first = schedule.chains[0]
    assert len(first) == 2
    assert all(len(chain) == 4 for chain in first)


def test_a_cheap_fan_does_not_pile_up_on_one_chain() -> None:
    b = tl.GraphBuilder()
    x = b.exp(b.input("x", (100,), "float32"))
    graph = b.build({f"y{n}": x + float(n) for n in range(100)})  # 500 a node
    schedule = tl.Scheduler(S.CostBased(cost_threshold=5_000)).schedule(graph)
    check(schedule)
    assert max(sum(schedule.node_costs[n] for n in chain) for group in schedule.chains for chain in group) < 15_000
    assert 9 <= len(schedule.chains[1]) <= 11  # ten guests to a chain


def test_feeders_of_two_products_do_not_make_one_wait_for_the_other() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (64, 64), "float32") + 1
    graph = b.build(p=x @ b.input("u", (64, 64), "float32"), q=x @ b.input("v", (64, 64), "float32"))
    schedule = tl.Scheduler(S.CostBased(cost_threshold=100_000)).schedule(graph)
    products = {i for i, node in enumerate(graph.nodes) if isinstance(node.op, ops.Einsum)}
    assert any(products <= set(group) for group in schedule.parallel_groups)


# what is known of sizes


def layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(y=b.relu(b.input("x", ("n", 8)) @ b.input("w", (8, 4))))


def test_sizes_come_from_inputs_sizes_or_a_stand_in() -> None:
    scheduler = tl.Scheduler()
    product = 2 * 8 * 4 + 4 * 4  # flops and bytes per row
    by_array = scheduler.schedule(layer(), {"x": np.zeros((10, 8), "f4"), "w": np.zeros((8, 4), "f4")})
    by_type = scheduler.schedule(layer(), {"x": tl.TensorType(tl.TensorShape([10, 8]), "float32")})
    by_size = scheduler.schedule(layer(), sizes={"n": 10})
    assert by_array.node_costs == by_type.node_costs == by_size.node_costs
    assert by_size.node_costs[2] == 10 * product
    assert by_size.assumed == ()
    assumed = scheduler.schedule(layer())
    assert assumed.assumed == ("n",)
    assert assumed.node_costs[2] == STAND_IN * product
    assert "not given, counted as size 64: n" in str(assumed)


def test_unknown_ranks_and_stand_ins_that_do_not_fit_are_counted_alike() -> None:
    b = tl.GraphBuilder()
    x = b.input("x")
    free = b.build(y=b.exp(b.einsum("ij,jk->ik", x, x)))
    schedule = tl.Scheduler(S.PARALLEL).schedule(free)
    check(schedule)
    assert schedule.assumed == ("x",)
    assert schedule.node_costs[1] > schedule.node_costs[2] > 0

    b = tl.GraphBuilder()
    clash = b.build(y=b.input("x", ("n",)) + b.input("w", (5,)))  # n is 5, not 64
    schedule = tl.Scheduler().schedule(clash)
    check(schedule)
    assert schedule.assumed == ("n",)
    with pytest.raises(tl.ShapeError):
        tl.Scheduler().schedule(clash, sizes={"n": 6})


def test_loops_cost_their_rounds() -> None:
    def run(length: int) -> int:
        b = tl.GraphBuilder()
        x = b.input("x", (length, 5), "float32")
        return tl.Scheduler().schedule(b.build(y=b.scan(lambda c, r: (c + r, c), b.sum(x, 0), x)[0])).cost

    assert run(100) > 5 * run(10)


# edges


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_empty_graphs(strategy: tl.SchedulingStrategy) -> None:
    schedule = tl.Scheduler(strategy).schedule(tl.EinsumGraph((), ()))
    assert (schedule.node_order, schedule.parallel_groups, schedule.critical_path) == ((), (), ())
    assert str(schedule).endswith("0 nodes in 0 groups, cost 0 (flops and bytes written), longest path 0, peak 0 B")
    b = tl.GraphBuilder()
    assert tl.Scheduler(strategy).schedule(b.build(x=b.input("x", (3,)))).node_order == ()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_zero_sizes(strategy: tl.SchedulingStrategy) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (0, 3), "bool")
    schedule = tl.Scheduler(strategy).schedule(b.build(y=b.sum(b.einsum("ij,kj->ik", x, x)), z=x & x))
    check(schedule)


@pytest.fixture(scope="module")
def chain() -> tl.EinsumGraph:
    nodes = [Node(ops.Input("x", (4,), "float32"))]
    nodes += [Node(ops.Elementwise("exp" if n % 2 else "sin"), (n,)) for n in range(100_000)]
    return tl.EinsumGraph(nodes, [("y", 100_000)])


@pytest.mark.parametrize("strategy", [S.SEQUENTIAL, S.PARALLEL, S.CostBased()], ids=repr)
def test_a_deep_chain(chain: tl.EinsumGraph, strategy: tl.SchedulingStrategy) -> None:
    schedule = tl.Scheduler(strategy).schedule(chain)
    assert schedule.node_order == schedule.critical_path == tuple(range(1, 100_001))
    assert schedule.peak_bytes == 32
    assert len(schedule.chains) == (1 if strategy.kind == "cost_based" else 100_000)
    assert len(str(schedule)) < 10_000


def test_a_wide_reader_takes_no_square_time() -> None:
    count = 10_000  # each operand of the concat has another reader too, so the concat's gain changes each time
    nodes = [Node(ops.Input("x", (1,), "float32"))]
    nodes += [Node(ops.Elementwise("sin"), (0,)) for _ in range(count)]
    nodes.append(Node(ops.Concat(0), tuple(range(1, count + 1))))
    nodes += [Node(ops.Elementwise("exp"), (n,)) for n in range(1, count + 1)]
    graph = tl.EinsumGraph(nodes, [("y", count + 1), ("z", len(nodes) - 1)])
    for strategy in (S.SEQUENTIAL, S.PARALLEL, S.CostBased()):
        check(tl.Scheduler(strategy).schedule(graph))


def broken() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (3,), "float32")))
    return tl.EinsumGraph([graph.nodes[0], Node(graph.nodes[1].op, (9,))], graph.outputs)


def test_mistakes_are_named() -> None:
    with pytest.raises(tl.InputError, match="EinsumGraph is expected, got 'graph'"):
        tl.Scheduler().schedule("graph")  # type: ignore[arg-type]
    with pytest.raises(tl.GraphError, match="reads %9, which does not exist"):
        tl.Scheduler().schedule(broken())
    with pytest.raises(tl.InputError, match="'fast' is no scheduling strategy"):
        tl.Scheduler("fast")  # type: ignore[arg-type]
    for wrong in (-1, float("nan"), "many", None):
        with pytest.raises(tl.InputError, match="cost_threshold must be a number of 0 or more"):  # E331
            S.CostBased(wrong)  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="the graph has no input 'z'"):
        tl.Scheduler().schedule(layer(), {"z": np.ones(3)})
    with pytest.raises(tl.InputError, match="the graph has no size 'm'"):
        tl.Scheduler().schedule(layer(), sizes={"m": 3})
    with pytest.raises(tl.ShapeError, match="input 'x' does not fit"):
        tl.Scheduler().schedule(layer(), {"x": np.ones((2, 9))})


def test_print(golden: Callable[[str, str], None]) -> None:
    text = [
        f"{s!r}\n{tl.Scheduler(s).schedule(two_towers(3))}\n" for s in (S.SEQUENTIAL, S.PARALLEL, S.CostBased(10_000))
    ]
    b = tl.GraphBuilder()
    x = b.input("größe", ("n", 8))
    wide = b.build({f"y{n}": b.exp(x * float(n)) for n in range(12)})
    text.append(f"{S.PARALLEL!r}\n{tl.Scheduler(S.PARALLEL).schedule(wide)}\n")
    golden("schedule.txt", "\n".join(text))


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 8])
def test_a_limit_is_kept_and_counted(limit: int) -> None:
    schedule = tl.Scheduler(S.SEQUENTIAL).schedule(two_towers(3))
    lines = schedule.table(limit).splitlines()
    assert sum(line.lstrip()[:1].isdigit() and "%" in line for line in lines) <= limit
    assert schedule.table(None).count("%") == len(schedule.node_order)
