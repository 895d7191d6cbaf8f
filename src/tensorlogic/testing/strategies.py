"""Random graphs, formulas and rule sets as hypothesis strategies, for tests of backends and of whatever takes a graph.

They need hypothesis, which ``pip install tensorlogic-infer[dev]`` brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from ..ir.builder import GraphBuilder
from ..ir.graph import EinsumGraph
from ..ir.tensor import Tensor
from ..lang import connectives as logic
from ..lang.expr import TLExpr
from .random_graphs import DTYPES, SIZES, Below, GraphCase, Graphs


def _drawn(draw: Callable[[Any], Any]) -> Below:
    """Return what hypothesis draws as a function that gives a whole number below another."""
    return lambda count: int(draw(_whole(count)))


@lru_cache(256)
def _whole(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


def graphs(
    *,
    dtypes: Sequence[str] = DTYPES,
    most: int = 14,
    bodies: bool = True,
    smooth: bool = False,
    sizes: Sequence[int] = SIZES,
) -> st.SearchStrategy[GraphCase]:
    """Return a strategy of graphs with inputs: every operation, sizes 0, 1 and named ones, several outputs that may coincide.

    Operations between ranks are not among them. About one graph in twelve is refused when it runs, such as the maximum over no elements:
    compare with what the plain executor does, and expect a :class:`~tensorlogic.TensorLogicError` where that raises one. ``dtypes`` are
    those every backend has; write ``(*DTYPES, "bfloat16")`` for all. ``sizes`` are those of named axes and of their like; few of them suit a peer that compiles each shape anew.
    ``smooth`` graphs have derivatives almost everywhere and no odd values, so that gradients can be compared.

    >>> from hypothesis import given, settings
    >>> import tensorlogic as tl
    >>> @settings(max_examples=3, database=None, derandomize=True)
    ... @given(graphs(most=4))
    ... def every_output_is_there(case):
    ...     assert len(tl.Executor("null").execute(case.graph, case.inputs)) == len(case.graph.outputs)
    >>> every_output_is_there()
    """

    @st.composite
    def strategy(draw: Callable[[Any], Any]) -> GraphCase:
        return graph_case(_drawn(draw), dtypes=dtypes, most=most, bodies=bodies, smooth=smooth, sizes=sizes)

    return strategy()


def graph_case(
    below: Below,
    *,
    dtypes: Sequence[str] = DTYPES,
    most: int = 14,
    bodies: bool = True,
    smooth: bool = False,
    sizes: Sequence[int] = SIZES,
) -> GraphCase:
    """Make one such graph from random whole numbers, without hypothesis, which takes longer than making the graph.

    >>> import random
    >>> len(graph_case(random.Random(3).randrange, most=4).graph.outputs) > 0
    True
    """
    grown = Graphs(below, dtypes, bodies, smooth, sizes)
    for _ in range(1 + below(most)):
        grown.grow()
    return grown.finished()


class FormulaCase(NamedTuple):
    """A formula over one domain ``D``, the names of its elements, and an array for each predicate."""

    expr: TLExpr
    names: tuple[str, ...]
    arrays: dict[str, Any]


VARIABLES = tuple(logic.variables("x y z", domain="D"))
PREDICATES: Mapping[str, int] = {"n0": 0, "p1": 1, "q1": 1, "r2": 2, "s2": 2, "t3": 3}
ELEMENTS = ("ann", "bob", "cat", "dan")


CONNECTIVES: tuple[Callable[[Any, Any], TLExpr], ...] = (
    logic.and_,
    logic.or_,
    logic.imply,
    logic.iff,
    logic.xor,
    lambda a, b: a < b,
    lambda a, b: a >= b,
)


def _formula(below: Below, terms: Sequence[Any], leaves: int, depth: int) -> TLExpr:
    kind = below(8) if depth and leaves > 1 else 0
    if kind < 2 and not (kind and depth):
        if below(8) == 7:
            return logic.constant(below(2) > 0)
        if below(8) == 7:
            return logic.same(VARIABLES[below(len(VARIABLES))], terms[below(len(terms))])
        name = sorted(PREDICATES)[below(len(PREDICATES))]
        return logic.pred(name, *(terms[below(len(terms))] for _ in range(PREDICATES[name])))
    if kind == 2:
        return logic.not_(_formula(below, terms, leaves, depth - 1))
    if kind in (3, 4):
        first, several = below(len(VARIABLES)), below(3) == 2
        over = [VARIABLES[first], *([VARIABLES[(first + 1) % len(VARIABLES)]] if several else [])]
        return (logic.exists, logic.forall)[kind - 3](over, _formula(below, terms, leaves, depth - 1))
    if kind == 5 and leaves > 2:
        return logic.if_then_else(*(_formula(below, terms, leaves // 3, depth - 1) for _ in range(3)))
    left = 1 + below(leaves - 1)
    connective = CONNECTIVES[below(len(CONNECTIVES))]
    return connective(_formula(below, terms, left, depth - 1), _formula(below, terms, leaves - left, depth - 1))


@st.composite
def formulas(draw: Callable[[Any], Any], *, truth: bool = False, leaves: int = 8) -> FormulaCase:
    """Draw a formula with arrays for its predicates: constants, repeated variables, shadowing and vacuous quantifiers among them.

    The arrays hold numbers in eighths from 0 to 1, or with ``truth`` true and false.

    >>> from hypothesis import given, settings
    >>> import tensorlogic as tl
    >>> @settings(max_examples=3, database=None, derandomize=True)
    ... @given(formulas())
    ... def its_text_reads_back(case):
    ...     assert tl.parse_expr(str(case.expr)) == tl.parse_expr(str(tl.parse_expr(str(case.expr))))
    >>> its_text_reads_back()
    """
    return formula_case(_drawn(draw), truth=truth, leaves=leaves)


def formula_case(below: Below, *, truth: bool = False, leaves: int = 8) -> FormulaCase:
    """Make one such formula from random whole numbers, without hypothesis.

    >>> import random
    >>> sorted(formula_case(random.Random(0).randrange).arrays)
    ['n0', 'p1', 'q1', 'r2', 's2', 't3']
    """
    size = 1 + below(len(ELEMENTS))
    expr = _formula(below, [*VARIABLES, *ELEMENTS[:size]], leaves, 6)
    rng = np.random.default_rng(below(2**16))
    tables = {n: np.asarray(np.round(rng.random((size,) * a) * 8) / 8) for n, a in PREDICATES.items()}
    return FormulaCase(expr, ELEMENTS[:size], {n: t > 0.5 if truth else t for n, t in tables.items()})


class RuleSet(NamedTuple):
    """Rules over binary predicates: ``(head, body)``, where an atom is a predicate and two variables; facts of those that are given."""

    rules: tuple[tuple[tuple[str, str, str], tuple[tuple[str, str, str], ...]], ...]
    facts: dict[str, Any]
    size: int

    def graph(self) -> EinsumGraph:
        """Return the graph that applies all rules until nothing new follows: inputs ``e0``, ``e1``; outputs ``p0``, ``p1``."""
        b = GraphBuilder()
        given = {name: b.input(name, ("n", "n"), "bool") for name in self.facts}
        heads = sorted({head[0] for head, _ in self.rules})
        start = [b.logical_and(given["e0"], b.logical_not(given["e0"])) for _ in heads]

        def body(*carries: Tensor) -> list[Tensor]:
            known = {**given, **dict(zip(heads, carries, strict=True))}
            new = dict(zip(heads, carries, strict=True))
            for (head, x, y), atoms in self.rules:
                spec = ",".join(a + c for _, a, c in atoms) + (f"->{x}" if x == y else f"->{x}{y}")
                joined = b.einsum(spec, *(known[name] for name, _, _ in atoms), algebra="boolean")
                if x == y:  # a result has no index twice
                    joined = b.logical_and(
                        b.expand_dims(joined, 1), b.equal(b.expand_dims(b.iota("n"), 1), b.iota("n"))
                    )
                new[head] = b.logical_or(new[head], joined)
            return [new[h] for h in heads]

        closed = b.fixpoint(body, *start, combine="or")
        return b.build(dict(zip(heads, closed if isinstance(closed, tuple) else (closed,), strict=True)))

    def consequences(self) -> dict[str, set[tuple[int, int]]]:
        """Return what follows, worked out tuple by tuple."""
        known: dict[str, set[Any]] = {n: set(map(tuple, np.argwhere(a).tolist())) for n, a in self.facts.items()}
        known |= {head[0]: set() for head, _ in self.rules}
        while True:
            before = sum(map(len, known.values()))
            for (head, x, y), atoms in self.rules:
                rows: list[dict[str, int]] = [{}]
                for name, a, c in atoms:
                    rows = [
                        {**row, a: i, c: j}
                        for row in rows
                        for i, j in known[name]
                        if row.get(a, i) == i and row.get(c, j) == j and (a != c or i == j)
                    ]
                known[head] |= {(row[x], row[y]) for row in rows}
            if sum(map(len, known.values())) == before:
                return {name: pairs for name, pairs in known.items() if name not in self.facts}


@st.composite
def rule_sets(draw: Callable[[Any], Any]) -> RuleSet:
    """Draw one to four rules, recursive ones among them, and random facts.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=3, database=None, derandomize=True)
    ... @given(rule_sets())
    ... def the_rules_only_speak_of_what_is_there(case):
    ...     assert {head[0] for head, _ in case.rules} <= {"p0", "p1"}
    >>> the_rules_only_speak_of_what_is_there()
    """
    return rule_set(_drawn(draw))


def rule_set(below: Below) -> RuleSet:
    """Make one such rule set from random whole numbers, without hypothesis.

    >>> import random
    >>> sorted(rule_set(random.Random(0).randrange).facts)
    ['e0', 'e1']
    """

    def pick(values: Sequence[Any]) -> Any:
        return values[below(len(values))]

    heads = pick([("p0",), ("p0", "p1")])
    rules = []
    for n in range(len(heads) + below(5 - len(heads))):
        letters, names = "xyzw"[: 1 + below(4)], ["e0", "e1", *heads]
        atoms = [(pick(names), pick(letters), pick(letters)) for _ in range(1 + below(3))]
        used = sorted({v for _, a, c in atoms for v in (a, c)})
        head = (heads[n] if n < len(heads) else pick(heads), pick(used), pick(used))
        rules.append((head, tuple(atoms)))
    size = pick([3, 1, 2, 6])
    rng = np.random.default_rng(below(2**16))
    return RuleSet(tuple(rules), {f"e{n}": rng.random((size, size)) < 1.2 / size for n in range(2)}, size)
