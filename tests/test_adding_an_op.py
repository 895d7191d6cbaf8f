"""Adding an operation takes one row in each folder's table, at most eight, and a kit names those that are missing."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import numpy as numpy_backend
from tensorlogic.backends import reference
from tensorlogic.ir import type_rules
from tensorlogic.ir.graph import OPS
from tensorlogic.ir.ops import Op
from tensorlogic.passes import batch_rules, grad, indices
from tensorlogic.passes.split import split
from tensorlogic.testing import GradientChecker, cases, missing_rows
from tensorlogic.testing.cases import _UNARY

FILES = [
    "ir/ops.py", "ir/type_rules.py", "passes/grad_rules.py", "passes/indices.py", "passes/batch_rules.py",
    "backends/reference.py", "backends/numpy.py", "testing/cases.py",
]  # fmt: skip


class Halve(Op, frozen=True, tag="halve"):
    """Half of every element, some number of times."""

    is_pointwise: ClassVar[bool] = True
    times: int = 1


class Roll(Op, frozen=True, tag="roll"):
    """The elements along the last axis, each one place further on: neither a view nor element-wise."""


def halve(x: Any, times: int) -> Any:
    return x * 0.5**times


ROWS = {
    Halve: [
        (OPS, "halve", Halve),
        (type_rules.RULES, Halve, lambda op, args, scope: (args[0]._replace(weak=False),)),
        (grad.RULES, Halve, lambda t, call: [t.apply(call.op, call.g)]),
        (reference.DEFINITIONS, Halve, lambda op, args, types: halve(args[0], op.times)),
        (numpy_backend.MAKERS, Halve, lambda op, args, t: lambda x: halve(x, op.times)),
        (_UNARY, "layers/halve", lambda b, x: b.apply(Halve(2), x)),
    ],
    Roll: [
        (OPS, "roll", Roll),
        (type_rules.RULES, Roll, lambda op, args, scope: (args[0],)),
        (grad.RULES, Roll, lambda t, call: [t.concat([call.g[..., 1:], call.g[..., :1]], -1)]),
        (indices.INDICES, Roll,
         lambda op, args, out, t: [indices.Index((a,), (a,), n) for a, n in enumerate(out[:-1])]),
        (batch_rules.RULES, Roll, lambda b, op, args, types: b.apply(op, args[0].value)),
        (reference.DEFINITIONS, Roll, lambda op, args, types: np.roll(args[0], 1, -1)),
        (numpy_backend.MAKERS, Roll, lambda op, args, t: lambda x: np.roll(x, 1, -1)),
        (_UNARY, "layers/roll", lambda b, x: b.apply(Roll(), x)),
    ],
}  # fmt: skip


def test_the_kit_names_every_missing_row_and_its_file() -> None:
    assert [row.file for row in missing_rows(Roll)] == FILES
    assert [row.file for row in missing_rows(Halve)] == [
        f for f in FILES if f not in ("passes/indices.py", "passes/batch_rules.py")
    ]
    assert str(missing_rows(Roll)[2]) == "passes/grad_rules.py: RULES lacks its gradient"


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.__name__ not in ("Fixpoint", "Scan", "Cond")])
def test_no_operation_lacks_a_row_that_it_needs(op: type[Op]) -> None:
    allowed = {  # inputs and numbers have no operands, contractions have kernels of their own, and some cannot be cut
        "passes/grad_rules.py": ("Input", "Constant", "Literal", "Iota", "Item", "Receive"),
        "passes/indices.py": ("Input", "Constant", "Literal", "Iota", "Item", "Receive"),
        "passes/batch_rules.py": ("Input", "Constant", "Literal", "Iota", "Item", "Receive"),
        "testing/cases.py": ("Send", "Receive"),  # which need two ranks
        "backends/reference.py": ("Input", "Constant", "Literal", "Item"),
        "backends/numpy.py": ("Input", "Constant", "Literal", "Item", "Einsum", "ContractVJP", "Elementwise"),
        "ir/type_rules.py": ("Item",),
    }
    assert [row for row in missing_rows(op) if op.__name__ not in allowed.get(row.file, ())] == []


@pytest.mark.parametrize("op", ROWS)
def test_with_its_rows_an_operation_works_everywhere(op: type[Op], monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [row.file for row in missing_rows(op)]
    assert len(missing) == len(ROWS[op]) <= 8
    for n, (table, key, row) in enumerate(ROWS[op]):
        monkeypatch.setitem(table, key, row)  # type: ignore[arg-type]
        assert [row.file for row in missing_rows(op)] == missing[n + 1 :]

    b = tl.GraphBuilder()
    x = b.input("x", (4, 3), "float64")
    graph = b.build(y=b.apply(op(), x * 2))
    assert tl.EinsumGraph.from_text(graph.to_text()) == graph
    assert tl.EinsumGraph.from_json(graph.to_json()) == graph
    given = {"x": np.arange(12.0).reshape(4, 3)}
    answers = [tl.Executor(name).execute(graph, given)[0] for name in ("reference", "numpy")]
    np.testing.assert_array_equal(*answers)
    compiled = tl.Executor().compile_graph(graph, tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE))
    np.testing.assert_array_equal(compiled(given)[0], answers[0])
    cut = split(graph, "x", 0)
    assert cut is not None
    assert [join.how for join in cut.joins] == ["concat"]

    stacks = np.stack([given["x"], given["x"] + 1])
    both = tl.Executor().execute(tl.batched(graph, "x"), {"x": stacks})[0]
    np.testing.assert_array_equal(both[0], answers[0])
    np.testing.assert_array_equal(both[1], tl.Executor().execute(graph, {"x": stacks[1]})[0])

    loss = b.build(loss=b.sum(b.square(b.apply(op(), b.sin(x)))))
    assert GradientChecker().check(loss, given).passed
    tangent = tl.Executor().execute(tl.jvp(loss), given | {"t_x": np.ones((4, 3))})["t_loss"]
    np.testing.assert_allclose(tangent, tl.Executor().execute(tl.grad(loss), given)["d_x"].sum())
    assert any(case.name.startswith(f"layers/{graph.nodes[-1].op.name}") for case in cases())
