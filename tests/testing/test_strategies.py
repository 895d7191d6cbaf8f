"""Random graphs, formulas and rules reach everything they are said to reach."""

from __future__ import annotations

from collections import Counter
from random import Random

from tensorlogic.ir import ops
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.ir.elementwise import FUNCTIONS
from tensorlogic.ir.graph import EinsumGraph, bodies
from tensorlogic.testing.random_graphs import DTYPES
from tensorlogic.testing.strategies import formula_case, graph_case


def operations(kind: type[ops.Op] = ops.Op) -> set[type[ops.Op]]:
    """Return the kinds of operations, without those between ranks."""
    below = set().union(*(operations(k) for k in kind.__subclasses__() if k is not ops.Collective))
    return below or {kind}


def look(graph: EinsumGraph, seen: Counter[object], depth: int = 0) -> None:
    for node, types in zip(graph.nodes, graph.inference.types, strict=True):
        op = node.op
        seen[type(op)] += 1
        seen["in a body"] += depth > 0
        seen["in a body of a body"] += depth > 1
        seen.update(t.dtype for t in types)
        for field in ("algebra", "fn", "combine", "reverse", "descending"):
            seen[(type(op), field, getattr(op, field, None))] += 1
        for field in ("batch", "group", "step", "dilation"):
            seen[(type(op), field)] += (getattr(op, field, None) or 0) > (field in ("step", "dilation"))
        if isinstance(op, ops.Quantize):
            seen[("quantize", op.kind)] += 1
            seen["quantize by axis"] += op.axis is not None
        for body in bodies(op):
            look(body, seen, depth + 1)


def test_graphs_hold_every_operation_dtype_and_option() -> None:
    seen: Counter[object] = Counter()
    for n in range(4000):
        look(graph_case(Random(n).randrange, dtypes=(*DTYPES, "bfloat16")).graph, seen)
    wanted: set[object] = {kind for kind in operations() if kind.__module__.startswith("tensorlogic.ir.")}
    wanted |= {*DTYPES, "bfloat16", "in a body", "in a body of a body", "quantize by axis"}
    wanted |= {(ops.Einsum, "algebra", name) for name in ALGEBRAS}
    wanted |= {(ops.Elementwise, "fn", name) for name in FUNCTIONS}
    wanted |= {(ops.Gather, "batch"), (ops.ScatterAdd, "batch"), (ops.Quantize, "group"), (ops.Dequantize, "group")}
    wanted |= {(kind, field) for kind in (ops.Window, ops.OverlapAdd) for field in ("step", "dilation")}
    wanted |= {("quantize", kind) for kind in (None, "int4", "int2", "ternary", "binary", "e4m3", "e5m2")}
    assert not [each for each in wanted if not seen[each]]


def test_formulas_hold_every_connective_and_equations() -> None:
    kinds = {e.kind for n in range(500) for e in formula_case(Random(n).randrange).expr.walk()}
    assert kinds >= {
        "and",
        "or",
        "not",
        "imply",
        "iff",
        "xor",
        "exists",
        "forall",
        "if",
        "less",
        "greater_equal",
        "same",
        "pred",
    }
