"""What a program means before it runs: kinds, domains, sizes, order; and the mistakes that need no values."""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

import numpy as np
import pytest
from run_program import analysed

from tensorlogic.errors import GraphError, TensorLogicError
from tensorlogic.lang.analysis import GivenTensor, analyse
from tensorlogic.lang.grammar import parse
from tensorlogic.lang.syntax import Facts, Query

FAMILY = """
Parent(Bob, Charlie); Ancestor(Alice, Bob)
Ancestor(x,y) <- Parent(x,y)
Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)
"""


def test_kinds_and_places() -> None:
    found = analysed(FAMILY + "N[x] count= Ancestor(x,y)\nS = 3\nN?")
    assert {n: (t.arity, t.boolean, t.derived, t.facts) for n, t in found.tensors.items()} == {
        "Parent": (2, True, False, True),
        "Ancestor": (2, True, True, True),
        "N": (1, False, True, False),
        "S": (0, False, True, False),
    }
    assert found.scalars == {"S": 3}
    assert found.tensors["N"].operator == "count="
    assert sum(isinstance(x, Query) for x in found.statements) == 1
    assert found.inputs == ()


def test_elements_come_in_order_of_first_appearance() -> None:
    found = analysed(FAMILY)
    (domain,) = found.domains.values()  # all places are joined
    assert (domain.kind, domain.elements) == ("names", ["Bob", "Charlie", "Alice"])
    assert [found.code("Parent", 1, name) for name in domain.elements] == [0, 1, 2]
    assert domain.element(2) == "Alice"
    assert found.shape("Ancestor") == (3, 3)


def test_places_that_nothing_joins_have_domains_of_their_own() -> None:
    found = analysed("Age(Alice, 30); Age(Bob, 1000000000)\nOld(x) <- Age(x, y), y > 40")
    assert found.shape("Age") == (2, 3)  # 40 is an element, too
    years = found.place("Age", 1)
    assert (years.kind, years.values()) == ("integers", [30, 1000000000, 40])


def test_integers_are_positions_where_they_index_arrays() -> None:
    found = analysed("Edge(0, 2); Edge(1, 2)\nY[x] = Edge(x,y) W[y]", W=np.ones(4))
    assert (found.place("Edge", 1).kind, found.place("Edge", 0).kind) == ("range", "range")
    assert found.shape("Edge") == (2, 4)
    assert found.code("Edge", 1, 3) == 3


def test_names_and_numbers_in_one_domain_are_names() -> None:
    found = analysed("P(7); P(Ann)")
    assert (found.place("P", 0).kind, found.place("P", 0).elements) == ("names", [7, "Ann"])
    assert found.place("P", 0).values() is None


def test_arrays_have_a_row_for_each_name() -> None:
    text = "Likes(Ann, Bob)\nS[y] = Likes(x,y) W[x]"
    assert analysed(text, W=np.ones(1)).shape("Likes") == (1, 1)
    assert analysed(text, W=np.ones(3)).shape("Likes") == (3, 1)  # two have no name
    with pytest.raises(GraphError, match="W has size 2 along an index of 3 elements"):
        analysed("P(A); P(B); P(C)\nY = P(x) W[x]", W=np.ones(2))


def test_elements_of_given_tables() -> None:
    statements = parse("R(x) <- P(x,y)").statements
    given = {
        "P": GivenTensor(
            (None, None),
            True,
            elements=lambda places: chain.from_iterable((["b", "a", "b"], [5, 6])[p] for p in places),
        )
    }
    found = analyse(statements, given=given)
    assert (found.place("R", 0).elements, found.shape("P")) == (["b", "a"], (2, 2))


def test_names_may_be_added_to_a_domain() -> None:
    found = analysed(FAMILY)
    found.place("Parent", 0).elements.append("Zoe")
    found.solve({})
    assert (found.shape("Parent"), found.code("Ancestor", 0, "Zoe")) == ((4, 4), 3)


@pytest.mark.parametrize(
    ("text", "data", "shapes"),
    [
        ("Y[x,y] = F[dx,dy] I[x+dx,y+dy]; P[x/2,y/3] = Y[x,y]", {"F": (3, 2), "I": (9, 8)}, {"Y": (7, 7), "P": (4, 3)}),
        ("X[i,t+1] = W[i,j] X[j,t] U[t]", {"W": (4, 4), "U": (6,)}, {"X": (4, 7)}),
        ("X[i,t+1] = W[i,j] X[j,t] U[t]; O[t] = X[i,t]", {"W": (4, 4), "U": (6,)}, {"O": (7,)}),
        ("B[t] = B[t+1] U[t]", {"U": (6,)}, {"B": (6,)}),
        ("Y[t] = X[t+1] - X[t]", {"X": (6,)}, {"Y": (5,)}),
        ("M[p,m] = concat(A[h,p,d], B[p,e])", {"A": (2, 5, 3), "B": (5, 4)}, {"M": (5, 10)}),
        ("Y[i] = X[2:5]", {"X": (6,)}, {"Y": (3,)}),
        ("Y = X[2:]", {"X": (6,)}, {"Y": (4,)}),
        ("Y[2*i+1] = X[i]", {"X": (3,)}, {"Y": (6,)}),
        ("Y[0,d] = X[d]; Y[3,d] = X[d]", {"X": (2,)}, {"Y": (4, 2)}),
        ("F[0] = 1; F[n+1] = 2 F[n]; Y = F[7]", {}, {"F": (9,)}),
        ("Y[i] = A[i,j] X[j] + B[i,j] Z[j]", {"A": (2, 3), "X": (3,), "B": (2, 5), "Z": (5,)}, {"Y": (2,)}),
    ],
)
def test_sizes(text: str, data: dict[str, Any], shapes: dict[str, Any]) -> None:
    found = analysed(text, **{name: np.ones(shape) for name, shape in data.items()})
    assert {name: found.shape(name) for name in shapes} == shapes


def test_inputs_are_what_nothing_defines() -> None:
    found = analysed("Y[i] = W[i,j] X[j]", X=np.ones(3))
    assert found.inputs == ("W",)
    with pytest.raises(GraphError) as error:
        list(map(found.shape, found.tensors))
    assert error.value.diagnostic.message == (
        "the tensor 'W' is not given, and nothing else fixes the size of index 'i' (place 1 of 'Y')"
    )
    assert error.value.diagnostic.suggestions[0].startswith("give it: program.run(W=array)")


def test_components_come_in_order() -> None:
    text = "Y = A[i] B[i]; A[i] = B[i]; B[i] = C[i] + A[i]; Odd(x) <- Even(y), Next(y,x); Even(x) <- Odd(y), Next(y,x)"
    found = analysed(text, C=np.ones(2))
    assert [(c.names, c.recursive, c.boolean) for c in found.components] == [
        (("A", "B"), True, False),
        (("Y",), False, False),
        (("Odd", "Even"), True, True),
    ]
    assert [len(c.statements) for c in found.components] == [2, 1, 2]


def test_many_facts_are_quick() -> None:
    columns = tuple(tuple(f"n{(k * step) % 40_000}" for k in range(100_000)) for step in (7, 11))
    start = time.process_time()
    found = analyse([Facts("E", columns), *parse("P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)").statements])
    assert found.shape("E") == (40_000, 40_000)
    assert time.process_time() - start < 5


def test_a_long_chain_of_relations() -> None:
    rules = "\n".join(f"R{n}(x) <- R{n + 1}(x)" for n in range(3000))
    assert [c.names[0] for c in analysed(rules).components][:2] == ["R2999", "R2998"]


MISTAKES: dict[str, tuple[str, dict[str, Any], str, tuple[int, int], str]] = {
    "two arities": ("P(A,B)\nR(x) <- P(x)", {}, "E674", (2, 9), "'P' has 2 places at <text>:1:1 but 1 place here"),
    "data of another rank": ("Y = X[i]", {"X": np.ones((2, 2))}, "E674", (1, 5),
        "'X' has 1 place in the program but is given with 2 places"),
    "truth values and numbers": ("P(A)\nY = P[x]", {}, "E675", (2, 5),
        "'P' holds truth values, in parentheses, at <text>:1:1 but numbers, in brackets, here"),
    "sizes that clash": ("Y = W[i] X[i]", {"W": np.ones(4), "X": np.ones(5)}, "E676", (1, 10),
        "index 'i' is 4 in W but 5 in X"),
    "arithmetic on names": ("R(Ann)\nY[x] = R(x) W[x+1]", {"W": np.ones(1)}, "E677", (2, 15),
        "an index with the element 'Ann' is calculated with"),
    "a number out of range": ("Y = X[9]", {"X": np.ones(3)}, "E678", (1, 7),
        "index 9 is out of range: place 1 of 'X' has the numbers 0 to 2"),
    "a scalar out of range": ("L = 3\nY = X[L]", {"X": np.ones(3)}, "E678", (2, 7),
        "index 3 is out of range: place 1 of 'X' has the numbers 0 to 2"),
    "a name for a number": ("Y = X[Ann]", {"X": np.ones(3)}, "E678", (1, 7),
        "'Ann' is no index of 'X', which counts from 0 to 2"),
    "a fact out of range": ("Edge(0,1)\nEdge(5,1)\nY = Edge(x,y) W[x]", {"W": np.ones(3)}, "E678", (2, 1),
        "index 5 is out of range: place 1 of 'Edge' has the numbers 0 to 2"),
    "a slice out of range": ("Y = sum(X[1:5])", {"X": np.ones(3)}, "E678", (1, 11),
        "a slice ends at 5, but place 1 of 'X' ends at 3"),
    "a negative index": ("A[-1] = 3", {}, "E678", (1, 3), "an index cannot be -1: it counts from 0"),
    "division by zero": ("Y[x/0] = X[x]", {"X": np.ones(3)}, "E670", (1, 3), "an index is divided by 0"),
    "a product of indices": ("Y[x] = W[x*y]", {"W": np.ones(3)}, "E670", (1, 10),
        "index arithmetic of this form is not there"),
    "a name in arithmetic": ("Y[x] = W[x+N]", {"W": np.ones(3)}, "E671", (1, 12),
        "'N' is no whole number, so it cannot be calculated with"),
    "an unstratified program": ("P(A)\nQ(x) <- P(x), not T(x)\nS(x) <- Q(x)\nT(x) <- S(x)", {}, "E681", (2, 19),
        "negation stands in a circle, so there is no order to evaluate it in: Q <- not T <- S <- Q"),
    "an aggregate of itself": ("C[x] count= R(x,y)\nR(x,y) <- E(x,y), C[x] > 1", {}, "E681", (1, 13),
        "an aggregate (count=) stands in a circle, so there is no order to evaluate it in: C <- count= R <- C"),
    "truth and numbers in a circle": ("C[x] = R(x,y)\nR(x,y) <- E(x,y), C[x] > 1", {}, "E682", (1, 8),
        "truth values and numbers depend on each other in a circle: C <- R <- C"),
    "an unsafe head": ("P(A)\nR(x,y) <- P(x)", {}, "E683", (2, 5),
        "variable 'y' of the head stands in no positive atom of the body"),
    "an unsafe negation": ("P(A); Q(A,B)\nR(x) <- P(x), not Q(x,y)", {}, "E683", (2, 23),
        "variable 'y' of a negated atom stands in no positive atom of the body"),
    "an unsafe comparison": ("P(1)\nR(x) <- P(x), y > x", {}, "E683", (2, 15),
        "variable 'y' of a comparison stands in no positive atom of the body"),
    "two projections": ("Y[i] max= X[i,j]; Y[i] min= X[i,j]", {"X": np.ones((2, 2))}, "E684", (1, 19),
        "'Y' is combined by max= at <text>:1:1 and by min= here"),
    "a query of nothing": ("P(A)\nQ(x)?", {}, "E679", (2, 3),
        "the relation 'Q' is not given, and nothing else fixes the size of index 'x' (place 1 of 'Q')"),
    "a dot without a normaliser": ("Y[i.] = X[i]", {"X": np.ones(2)}, "E690", (1, 3), "a dotted index has no normaliser"),
    "numbers as a condition": ("P(A)\nR(x) <- P(x), W[x]", {}, "E695", (2, 15),
        "'W' holds numbers, so by itself it is neither true nor false"),
    "a star without a step": ("Y[i,*t] = X[i,t]", {"X": np.ones((2, 2))}, "E696", (1, 5), "a virtual index has no step"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    text, data, code, (line, column), message = MISTAKES[name]
    with pytest.raises(TensorLogicError) as error:
        found = analysed(text, **data)
        list(map(found.shape, found.tensors))
    found = error.value.diagnostic
    assert (found.message, found.code) == (message, code)
    assert found.location is not None
    assert (found.location.line, found.location.column) == (line, column)


def test_the_circle_names_every_rule() -> None:
    with pytest.raises(GraphError) as error:
        analysed("P(A)\nQ(x) <- P(x), not T(x)\nS(x) <- Q(x)\nT(x) <- S(x)")
    assert list(error.value.diagnostic.context) == [
        "Q reads not T at <text>:2:19",
        "T reads S at <text>:4:9",
        "S reads Q at <text>:3:9",
    ]
