"""Loops over truth values that only grow become loops that combine by or, and stay what they were after every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir.graph import Fixpoint
from tensorlogic.passes.simplify import simplify

Rule = Callable[[Any, Any, Any], Any]
LEVELS = tl.OptimizationLevel


def join(b: Any, x: Any, y: Any) -> Any:
    return b.einsum("xy,yz->xz", x, y)


CLOSURES: dict[str, Rule] = {
    "carry or join": lambda b, r, e: r | join(b, r, e),
    "join or carry": lambda b, r, e: join(b, r, e) | r,
    "start or join": lambda b, r, e: e | join(b, r, e),
    "join or start": lambda b, r, e: join(b, r, e) | e,
    "carry, start or join": lambda b, r, e: r | e | join(b, r, e),
    "start, join or carry": lambda b, r, e: e | (join(b, r, e) | r),
    "logical_or": lambda b, r, e: b.logical_or(r, join(b, r, e)),
    "maximum": lambda b, r, e: b.maximum(join(b, r, e), r),
    "add": lambda b, r, e: b.add(e, join(b, r, e)),
    "boolean algebra": lambda b, r, e: r | b.einsum("xy,yz->xz", r, e, algebra="boolean"),
    "carry or join from the left": lambda b, r, e: r | join(b, e, r),
    "start or join from the left": lambda b, r, e: e | join(b, e, r),
    "carry or join with itself": lambda b, r, e: r | join(b, r, r),
    "start or join with itself": lambda b, r, e: e | join(b, r, r),
    "transposed": lambda b, r, e: r | b.einsum("xy,zy->xz", r, e),
}


def loop_graph(rule: Rule, size: Any = "n", dtype: str | None = "bool", **options: Any) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    e = b.input("e", (size, size), dtype)
    return b.build(path=b.fixpoint(lambda r: rule(b, r, e), e, **options))


def loop_of(graph: tl.EinsumGraph) -> Fixpoint:
    (op,) = (node.op for node in simplify(graph).nodes if isinstance(node.op, Fixpoint))
    return op


def outcome(executor: tl.Executor, graph: tl.EinsumGraph, given: Any) -> Any:
    """Return the arrays that a call gives, or its error in words."""
    try:
        return [np.asarray(x).tolist() for x in executor.execute(graph, given)]
    except tl.ConvergenceError as error:
        return str(error).splitlines()[0]


def agree(graph: tl.EinsumGraph, given: Any, executors: Sequence[tl.Executor] = ()) -> Any:
    expected = outcome(tl.Executor("reference", optimization_level=LEVELS.NONE), graph, given)
    for executor in executors or (tl.Executor(), tl.Executor("reference", optimization_level=LEVELS.STANDARD)):
        assert outcome(executor, graph, given) == expected
    return expected


@pytest.mark.parametrize("policy", ["exact", "fast"])
@pytest.mark.parametrize("size", [300, "n"])
@pytest.mark.parametrize("name", CLOSURES)
def test_a_closure_is_found_however_it_is_written(name: str, size: Any, policy: Any) -> None:
    n = 300
    graph, given = loop_graph(CLOSURES[name], size), {"e": np.eye(n, k=-1 if name == "transposed" else 1, dtype=bool)}
    executor = tl.Executor(policy=policy)
    assert "closure by few products" in str(executor.plan(graph, given))
    if name != "transposed":
        np.testing.assert_array_equal(executor.execute(graph, given)[0], np.triu(np.ones((n, n), bool), 1))


@pytest.mark.parametrize("name", CLOSURES)
def test_what_a_carry_holds_anyway_is_not_added_again(name: str) -> None:
    op = loop_of(loop_graph(CLOSURES[name]))
    assert op.combine == "or"
    assert [node.op.name for node in op.body.nodes if node.args] == ["einsum"]


@pytest.mark.parametrize("name", CLOSURES)
def test_every_limit_is_that_of_the_loop_as_written(name: str) -> None:
    n = 6
    outcomes = set()
    for edge in (np.eye(n, k=1, dtype=bool), np.roll(np.eye(n, dtype=bool), 1, 1), np.zeros((0, 0), bool)):
        for limit in range(1, n + 2):
            outcomes.add(type(agree(loop_graph(CLOSURES[name], limit=limit), {"e": edge})))
    assert outcomes == {str, list}


def test_dtypes_may_be_known_only_when_values_come() -> None:
    graph = loop_graph(CLOSURES["carry or join"], dtype=None)
    executor, edge = tl.Executor(), np.eye(300, k=1, dtype=bool)
    assert "closure by few products" in str(executor.plan(graph, {"e": edge}))
    with pytest.raises(tl.TensorLogicError):  # of numbers it is no fixpoint: its body returns truth values
        executor.execute(graph, {"e": edge.astype("float32")})


def test_a_loop_from_nothing_grows() -> None:
    b = tl.GraphBuilder()
    e = b.input("e", ("n", "n"), "bool")
    for nothing in (np.zeros((), bool), np.array(False)):
        start = b.broadcast_to(b.constant(nothing), ("n", "n"))
        graph = b.build(y=b.fixpoint(lambda r: e | join(b, r, e), start))
        assert loop_of(graph).combine == "or"
        agree(graph, {"e": np.eye(5, k=1, dtype=bool)})


def test_a_start_may_be_captured_in_parts() -> None:
    b = tl.GraphBuilder()
    e, same = b.input("e", ("n", "n"), "bool"), b.input("same", ("n", "n"), "bool")
    graph = b.build(y=b.fixpoint(lambda r: e | join(b, r, e) | same, same | e))
    op = loop_of(graph)
    assert op.combine == "or" and [node.op.name for node in op.body.nodes if node.args] == ["einsum"]
    agree(graph, {"e": np.eye(5, k=1, dtype=bool), "same": np.eye(5, dtype=bool)})


NO_CHANGE: dict[str, Rule] = {
    "no more than the join": join,
    "less where there is more": lambda b, r, e: e | ~join(b, r, e),
    "compared": lambda b, r, e: e | b.greater(e, r),
    "chosen by the carry": lambda b, r, e: e | b.where(r, join(b, e, e), join(b, r, e)),
    "counted": lambda b, r, e: e | (b.sum(b.cast(r, "int32"), axis=0, keepdims=True) > 3),
    "another start": lambda b, r, e: e.T | join(b, r, e),
    "for all": lambda b, r, e: e | b.einsum("xy,yz->xz", r, b.cast(e, "float32"), algebra="godel_residuum").astype("bool"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CHANGE)
def test_a_loop_that_may_lose_something_stays(name: str) -> None:
    graph = loop_graph(NO_CHANGE[name], limit=20)
    assert loop_of(graph).combine == "replace"
    for seed in range(5):
        agree(graph, {"e": np.random.default_rng(seed).random((5, 5)) < 0.3})


def test_what_is_added_to_the_carry_need_not_grow() -> None:
    graph = loop_graph(lambda b, r, e: r | (~join(b, r, e) & e.T))
    assert loop_of(graph).combine == "or"
    for seed in range(5):
        agree(graph, {"e": np.random.default_rng(seed).random((5, 5)) < 0.3})


def test_a_part_that_is_repeated_along_an_axis_keeps_its_shape() -> None:
    graph = loop_graph(lambda b, r, e: r | b.any(r, axis=0, keepdims=True))
    assert loop_of(graph).combine == "or"
    agree(graph, {"e": np.eye(5, k=1, dtype=bool)})


def test_several_carries_grow_together_or_not_at_all() -> None:
    b = tl.GraphBuilder()
    e, none = b.input("e", ("n", "n"), "bool"), b.broadcast_to(b.constant(np.array(False)), ("n", "n"))

    def both(even: Any, odd: Any) -> Any:
        return even | join(b, odd, e), e | join(b, even, e)

    def one(even: Any, odd: Any) -> Any:
        return even | join(b, odd, e), join(b, even, e)

    for rules, starts, combine in ((both, (none, e), "or"), (both, (none, none), "or"), (one, (e, e), "replace")):
        even, odd = b.fixpoint(rules, *starts, limit=20)
        graph = b.build(even=even, odd=odd)
        assert loop_of(graph).combine == combine
        for edge in (np.eye(5, k=1, dtype=bool), np.roll(np.eye(4, dtype=bool), 1, 1)):
            agree(graph, {"e": edge})


def test_numbers_stay_as_they_are() -> None:
    graph = loop_graph(lambda b, r, e: b.maximum(r, e * 0.5), dtype="float32")
    assert loop_of(graph).combine == "replace"


def test_levels_below_standard_run_what_is_written() -> None:
    graph, edge = loop_graph(CLOSURES["carry or join"], 130), {"e": np.eye(130, k=1, dtype=bool)}
    for level in (LEVELS.NONE, LEVELS.BASIC):
        assert "closure" not in str(tl.Executor(optimization_level=level).plan(graph, edge))


def test_the_error_points_at_the_loop() -> None:
    graph = loop_graph(CLOSURES["start or join"], limit=5)
    with pytest.raises(tl.ConvergenceError, match=r"within 5 rounds: carry 0 \(293 elements still change\)") as caught:
        tl.Executor().execute(graph, {"e": np.eye(299, k=1, dtype=bool)})
    assert "test_growing_loops.py" in str(caught.value)


def test_long_ors_take_no_recursion() -> None:
    def rule(b: Any, r: Any, e: Any) -> Any:
        total = join(b, r, e)
        for n in range(3000):
            total = total | e[n % 7] if n % 2 else r | total
        return total

    op = loop_of(loop_graph(rule, 7))
    assert op.combine == "or"


@pytest.mark.parametrize("over", [["e"], ["start"], ["e", "start"]])
def test_batches(over: list[str]) -> None:
    b = tl.GraphBuilder()
    e, start = b.input("e", ("n", "n"), "bool"), b.input("start", ("m", "n"), "bool")
    rng = np.random.default_rng(0)
    for body in (lambda r: r | join(b, r, e), lambda r: start | join(b, r, e)):
        graph = tl.batched(b.build(y=b.fixpoint(body, start)), over=over)
        shapes = {"e": (7, 7), "start": (2, 7)}
        agree(graph, {k: rng.random((3, *s) if k in over else s) < 0.2 for k, s in shapes.items()})


def test_streams_of_where_a_search_starts() -> None:
    b = tl.GraphBuilder()
    e, start = b.input("e", ("n", "n"), "bool"), b.input("start", ("m", "n"), "bool")
    rng = np.random.default_rng(0)
    given = {"e": rng.random((20, 20)) < 0.06, "start": rng.random((10, 20)) < 0.1}
    for body in (lambda r: r | join(b, r, e), lambda r: start | join(b, r, e)):
        graph = b.build(y=b.fixpoint(body, start))
        config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(4))
        stream = tl.Executor().execute_stream(graph, {"start": given["start"]}, config, inputs={"e": given["e"]})
        assert np.concatenate([r.outputs["y"] for r in stream]).tolist() == agree(graph, given)[0]


@pytest.mark.parametrize("rule", ["carry or join", "start or join from the left", "start or join with itself"])
def test_ranks_with_rows_each(rule: str) -> None:
    graph, edge = loop_graph(CLOSURES[rule]), {"e": np.random.default_rng(0).random((11, 11)) < 0.15}
    spec = tl.ShardingSpec().shard_tensor("e", 0, 3)
    strategy = tl.DistributedParallelismStrategy.ModelParallel(spec)
    config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(3)], strategy=strategy, timeout=60)
    assert tl.Executor().execute_distributed(graph, edge, config)["path"].tolist() == agree(graph, edge)[0]


def test_gradients_of_what_reads_a_closure() -> None:
    b = tl.GraphBuilder()
    e, w = b.input("e", ("n", "n"), "bool"), b.input("w", ("n", "n"), "float64")
    path = b.fixpoint(lambda r: r | join(b, r, e), e)
    graph = b.build(loss=b.sum(b.square(b.where(path, w, 0.0))))
    given = {"e": np.eye(5, k=1, dtype=bool), "w": np.random.default_rng(0).random((5, 5))}
    expected = 2 * np.triu(given["w"], 1)
    for each in (graph, simplify(graph)):
        np.testing.assert_allclose(tl.Executor().execute(tl.grad(each, wrt=["w"]), given)[0], expected)


def test_a_frame_stops_before_and_after_the_loop() -> None:
    b = tl.GraphBuilder()
    e = b.input("e", ("n", "n"), "bool")
    graph = b.build(y=~b.fixpoint(lambda r: e | join(b, r, e), e))
    given = {"e": np.eye(300, k=1, dtype=bool)}
    frame = tl.Executor().frame(graph, given)
    stops = 0
    while not frame.done:
        frame.advance()
        stops += 1
    assert stops == 2
    np.testing.assert_array_equal(frame.results()[0], ~np.triu(np.ones((300, 300), bool), 1))


def test_relations_run_it_as_rules() -> None:
    graph = loop_graph(CLOSURES["start or join"])
    edge = np.eye(200, k=1, dtype=bool)
    given = {"e": tl.SparseTensor(edge)}
    assert "path(x, y) <- path(x, z), e(z, y)" in str(tl.Executor().plan(graph, given))
    found = tl.Executor().execute(graph, given)["path"]
    np.testing.assert_array_equal(np.asarray(found), np.triu(np.ones((200, 200), bool), 1))


def test_random_loops_are_the_references() -> None:
    kinds = set()
    executors = tl.Executor(), tl.Executor("reference", optimization_level=LEVELS.STANDARD)
    for seed in range(150):
        rng = np.random.default_rng(seed)
        graph, given = _random_loop(rng, *(int(n) for n in rng.choice([0, 1, 3, 4], 2)))
        got = agree(graph, given, executors)
        kinds.add((loop_of(graph).combine, type(got)))
    assert len(kinds) == 4


def _random_loop(rng: Any, m: int, n: int) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    """Return a loop of one or two carries, each an or of some terms: the carry, its start, joins, and what may be less of more."""
    b, carries = tl.GraphBuilder(), int(rng.integers(1, 3))
    e, x, y = (b.input(name, shape, "bool") for name, shape in (("e", (n, n)), ("x", (m, n)), ("y", (m, n))))
    none = b.broadcast_to(b.constant(np.array(False)), (m, n))
    starts = [(x, y, none, x | y, x & y)[rng.integers(5)] for _ in range(carries)]
    grows = rng.random() < 0.6

    def term(c: Any) -> Any:
        options = [
            lambda: join(b, c, e),
            lambda: join(b, c & y, e),
            lambda: c & b.all(c, axis=0, keepdims=True),
            lambda: b.any(c, axis=1, keepdims=True) & y,
            lambda: b.minimum(c[::-1], x),
            lambda: y & ~c,
            lambda: b.logical_xor(c, join(b, c, e)),
        ]
        return options[rng.integers(5 if grows else 7)]()

    def body(*c: Any) -> Any:
        results = []
        for own, start in zip(c, starts, strict=True):
            terms = [term(c[rng.integers(carries)]) for _ in range(rng.integers(1, 3))]
            terms += [t for t in (own, start) if rng.random() < 0.5]
            total = terms.pop(int(rng.integers(len(terms))))
            while terms:
                pair = total, terms.pop(int(rng.integers(len(terms))))
                total = (b.logical_or, b.maximum, b.add)[rng.integers(3)](*pair[:: rng.choice([1, -1])])
            results.append(total)
        return tuple(results) if carries > 1 else results[0]

    made = b.fixpoint(body, *starts, limit=int(rng.choice([1, 2, 3, 30])))
    graph = b.build(**{f"r{k}": r for k, r in enumerate(made if carries > 1 else [made])})
    values = {"e": rng.random((n, n)) < 0.3, "x": rng.random((m, n)) < 0.2, "y": rng.random((m, n)) < 0.5}
    return graph, {name: values[name] for name in graph.inputs}
