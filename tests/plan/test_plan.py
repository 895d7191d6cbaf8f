"""The plan: its print, its slots, and what it says of cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.plan.cost import contraction
from tensorlogic.plan.memory import largest_step, lifetimes


def _plan(build: Callable[[tl.GraphBuilder, Any], Any], shape: Any = (3, 3), dtype: str = "float64") -> Any:
    b = tl.GraphBuilder()
    made = build(b, b.input("x", shape, dtype))
    outputs = {f"y{n}": t for n, t in enumerate(made)} if isinstance(made, tuple | list) else {"y": made}
    return tl.Executor().plan(b.build(outputs))


# print


def test_print_of_a_layer_and_a_rule(golden: Callable[[str, str], None]) -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 784), "float32"), b.input("w", (784, 10), "float32")
    sister, parent = b.input("sister", (3, 3), "bool"), b.input("parent", (3, 3), "bool")
    edge = b.einsum("xy,yz->xz", sister, parent, algebra="boolean")
    closure = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, parent, algebra="boolean"), edge, combine="or")
    values, _ = b.top_k(b.softmax(b.relu(x @ w) + b.constant(np.ones(10, np.float32))), 3)
    last, sums = b.scan(lambda c, r: (c + r, c * 2), b.sum(x[:, 0]), x[:, 1])
    graph = b.build(y=values, chain=b.einsum("ij,jk,kl->il", x.T, x, w), ancestor=closure, last=last, sums=sums)
    golden("plan.txt", str(tl.Executor().plan(graph, sizes={"n": 64})) + "\n")


def test_a_long_plan_prints_its_beginning_and_its_end() -> None:
    b = tl.GraphBuilder()
    y = b.input("x", (2,), "float32")
    for n in range(100):
        y = b.add(y, float(n))
    plan = tl.Executor().plan(b.build(y=y))
    text = str(plan._replace(steps=plan.steps * 1000))
    assert len(text.splitlines()) < 80
    assert len(text) < 10_000
    assert "... 99,940 more steps" in text
    assert text.splitlines()[-1].startswith("100,000 steps, 200,000 flops")
    assert re.search(r"^ *0  add", text, re.M)
    assert re.search(r"^ *99999  add", text, re.M)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 8])
def test_a_limit_is_kept_and_counted(limit: int) -> None:
    def chain(b: tl.GraphBuilder, x: Any) -> Any:
        for n in range(10):
            x = x + float(n)
        return x

    lines = _plan(chain).table(limit).splitlines()
    shown = [line for line in lines if re.match(r" *\d+  add", line)]
    more = re.search(r"\.\.\. (\d+) more steps", "\n".join(lines))
    assert len(shown) <= limit
    assert more is not None
    assert len(shown) + int(more.group(1)) == 10


def test_no_limit_prints_all() -> None:
    plan = _plan(lambda b, x: b.sum(b.exp(x + 1)))
    assert plan.table(None) == plan.table() == str(plan)
    assert "<pre>" in plan._repr_html_()


# slots


def _check_slots(plan: tl.ExecutionPlan) -> None:
    """Every slot is written once, before it is read; nothing is read after it is freed; no output is ever freed."""
    kept = {s for _, s, _ in plan.outputs} | {s for _, s, _ in plan.inputs} | {s for s, _ in plan.constants}
    alive = {s for _, s, _ in plan.inputs} | {s for s, _ in plan.constants}
    written = set(alive)
    for step in plan.steps:
        assert set(step.reads) <= alive, step
        assert not set(step.writes) & written, step
        written |= set(step.writes)
        alive |= set(step.writes)
        assert not set(step.frees) & kept, step
        assert set(step.frees) <= alive, step
        assert len(set(step.frees)) == len(step.frees)
        alive -= set(step.frees)
        for body in step.bodies:
            _check_slots(body)
    assert {s for _, s, _ in plan.outputs} <= alive
    assert alive == kept & written | ({s for _, s, _ in plan.inputs} | {s for s, _ in plan.constants})
    assert max(written, default=-1) < plan.slots


GRAPHS: dict[str, Callable[[tl.GraphBuilder, Any], Any]] = {
    "chain": lambda b, x: b.sum(b.exp(x + 1)),
    "output used again": lambda b, x: ((y := x + 1), b.exp(y), b.exp(b.exp(y))),
    "input as output": lambda b, x: (x, x + 1),
    "same twice": lambda b, x: ((y := x + 1), y),
    "constant as output": lambda b, x: (b.constant(np.ones(2)), x),
    "one of two results": lambda b, x: b.scan(lambda c, r: (c + r, c), x[0], x)[0],
    "operand read twice": lambda b, x: (y := x + 1) * y,
    "views": lambda b, x: b.sum((x + 1)[1:].T @ (x + 1)[1:]),
    "nested": lambda b, x: b.fixpoint(
        lambda c: b.cond(b.sum(c) < 50, lambda: c * 2 + 1, lambda: c), b.scan(lambda c, r: (c + r, r * 2), x[0], x)[1]
    ),
    "many operands": lambda b, x: b.einsum("ij,jk,kl,lm->im", x, x, x, x),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_slots_are_written_read_and_freed_in_order(name: str) -> None:
    _check_slots(_plan(GRAPHS[name]))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30), st.integers(0, 30)), max_size=25), st.data())
def test_slots_of_random_graphs(choices: list[tuple[int, int, int]], data: st.DataObject) -> None:
    b = tl.GraphBuilder()
    tensors = [b.input("x", (3, 3), "float64"), b.input("z", (3, 3), "float64")]
    for kind, first, second in choices:
        p, q = tensors[first % len(tensors)], tensors[second % len(tensors)]
        tensors.append([p + q, p * 0.5, p @ q, p.T, p[::-1], b.reshape(b.reshape(p, (-1,)), (3, 3)), b.tanh(p)][kind])
    picked = data.draw(st.lists(st.sampled_from(range(len(tensors))), min_size=1, max_size=4))
    graph = b.build({f"o{n}": tensors[i] for n, i in enumerate(picked)})
    given_values = {"x": np.eye(3), "z": np.arange(9.0).reshape(3, 3) / 9}
    inputs = {n: given_values[n] for n in graph.inputs}
    _check_slots(tl.Executor().plan(graph, inputs))
    got, wanted = (tl.Executor(e).execute(graph, inputs) for e in ("numpy", "reference"))
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9)


def test_frees_come_at_the_last_read() -> None:
    plan = _plan(lambda b, x: b.sum(b.exp(x + 1) * x))
    assert [len(s.frees) for s in plan.steps] == [0, 1, 1, 1]
    assert [s.frees for s in plan.steps[1:]] == [s.writes for s in plan.steps[:-1]]


def test_a_result_that_nobody_reads_is_freed_at_once() -> None:
    plan = _plan(GRAPHS["one of two results"])
    scan = plan.steps[-1]
    assert scan.frees
    assert set(scan.frees) & set(scan.writes) == {scan.writes[1]}


def test_shared_outputs_are_known() -> None:
    plan = _plan(lambda b, x: (x, x.T, (y := x + 1), y, y[1:], b.exp(x)))
    slots = {name: slot for name, slot, _ in plan.outputs}
    assert {name for name, slot in slots.items() if slot in plan.shared} >= {"y0", "y1", "y4"}
    assert slots["y5"] not in plan.shared


# lifetimes and sizes


def test_lifetimes() -> None:
    plan = _plan(lambda b, x: b.sum(b.exp(x + 1) * x))
    spans = lifetimes(plan)
    assert [spans[s.writes[0]] for s in plan.steps] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_view_keeps_what_it_shows_alive() -> None:
    plan = _plan(lambda b, x: b.exp((x + 1).T) * b.exp(x) + (x + 1).T)
    first = plan.steps[0].writes[0]
    end = max(n for n, s in enumerate(plan.steps) if any(r in s.reads for r in _views_of(plan, first)))
    assert lifetimes(plan)[first] == (0, end)


def _views_of(plan: tl.ExecutionPlan, slot: int) -> set[int]:
    shown = {slot}
    for step in plan.steps:
        if step.kernel == "view" and step.reads[0] in shown:
            shown |= set(step.writes)
    return shown


def test_an_output_lives_to_the_end() -> None:
    plan = _plan(lambda b, x: ((y := x + 1), b.sum(b.exp(y))))
    assert lifetimes(plan)[plan.steps[0].writes[0]] == (0, len(plan.steps))


def test_the_largest_step() -> None:
    plan = _plan(lambda b, x: b.sum(b.broadcast_to(b.exp(x), (100, 3, 3)) + 1))
    step = largest_step(plan)
    assert step is not None
    assert (step.op.name, step.nbytes) == ("add", 100 * 9 * 8)
    b = tl.GraphBuilder()
    assert largest_step(tl.Executor().plan(b.build(y=b.input("x", (2,))))) is None


# cost


@pytest.mark.parametrize(
    ("equation", "shapes", "kernel", "flops"),
    [
        ("ij,jk->ik", [(20, 30), (30, 40)], "matmul", 2 * 20 * 30 * 40),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)], "matmul", 2 * 5 * 2 * 3 * 4),
        ("ij,j->i", [(20, 30), (30,)], "matmul", 2 * 20 * 30),
        ("i,i->", [(50,), (50,)], "matmul", 100),
        ("i,j->ij", [(20,), (30,)], "product", 600),
        ("ij,ij->ij", [(20, 30), (20, 30)], "product", 600),
        ("ij->i", [(20, 30)], "reduce", 600),
        ("ij->ji", [(20, 30)], "view", 0),
        ("ii->i", [(20, 20)], "view", 0),
        ("ij,jk->ik", [(20, 0), (0, 40)], "blocks", 0),
        ("ij,Jk->ik".lower(), [(20, 30), (1, 40)], "product", 20 * 30 * 40),
    ],
)
def test_kernels_and_flops_of_contractions(
    equation: str, shapes: list[tuple[int, ...]], kernel: str, flops: int
) -> None:
    b = tl.GraphBuilder()
    tensors = [b.input(f"x{n}", s, "float64") for n, s in enumerate(shapes)]
    (step,) = tl.Executor().plan(b.build(y=b.einsum(equation, *tensors))).steps
    assert (step.kernel, step.flops) == (kernel, flops)
    assert contraction(equation, "real", [tl.TensorShape(s) for s in shapes]).kernel == kernel


def test_the_order_of_a_chain_is_the_cheap_one() -> None:
    b = tl.GraphBuilder()
    w, v, x = b.input("w", (100, 100)), b.input("v", (100, 100)), b.input("x", (100,))
    plan = tl.Executor().plan(b.build(y=b.einsum("ij,jk,k->i", w, v, x)))
    assert plan.flops == 2 * 2 * 100 * 100
    blocks = tl.Executor("reference").plan(b.build(y=b.einsum("ij,jk,k->i", w, v, x)))
    assert len(blocks.steps) == 1


def test_an_algebra_that_does_not_distribute_is_not_reordered() -> None:
    b = tl.GraphBuilder()
    w = b.input("w", (4, 4))
    for algebra, steps in (("noisy_or", 1), ("max_min", 2), ("boolean", 2), ("log_sum_exp", 2)):
        plan = tl.Executor().plan(b.build(y=b.einsum("ij,jk,kl->il", w, w, w, algebra=algebra)))
        assert len(plan.steps) == steps, algebra


def test_flops_of_other_steps() -> None:
    assert _plan(lambda b, x: x + 1).flops == 9
    assert _plan(lambda b, x: b.sum(x)).flops == 9
    assert _plan(lambda b, x: x.T[1:]).flops == 0
    assert _plan(lambda b, x: b.exp(x)).flops > 9
    body = _plan(lambda b, x: b.scan(lambda c, r: (c + r, r), x[0], x)[0])
    assert body.flops == 9  # three rounds of the body


def test_a_plan_says_what_the_graph_was_and_where_it_runs() -> None:
    plan = _plan(GRAPHS["chain"])
    assert {s.device for s in plan.steps} == {"cpu:0"}
    assert all(s.location is not None and s.location.file.endswith("test_plan.py") for s in plan.steps)
    assert [name for name, _, _ in plan.inputs] == ["x"]
    assert plan.outputs[0][2] == tl.TensorType(tl.TensorShape(()), "float64")


def test_planning_many_inputs_and_outputs_is_linear() -> None:
    b = tl.GraphBuilder()
    inputs = [b.input(f"i{n}", (1,), "float32") for n in range(3000)]
    plan = tl.Executor().plan(b.build({f"o{n}": t + 1 for n, t in enumerate(inputs)}))
    names = plan.slot_names()
    assert sum(name.startswith("i") for name in names.values()) == 3000
    assert sum(name.startswith("o") for name in names.values()) == 3000
