"""What runs and is probably a mistake is doubted; what is meant is not."""

import pytest

import tensorlogic as tl

DISTANCES = "Dist(A,B,5); Dist(A,C,7); Dist(B,C,1); Best[x,y] min= Dist(x,y,d) d\n"


def doubted(text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(d.diagnostic.message, d.diagnostic.suggestions) for d in tl.Program(text).doubts()]


@pytest.mark.parametrize(
    ("rule", "name", "variable"),
    [
        ("Child(X,y) <- Parent(y,x)", "X", "x"),
        ("Child(X1,y) <- Parent(y,_)", "X1", "x1"),
        ("Child(Kid,y) <- Parent(y,kid)", "Kid", "kid"),
        ("Child(x,y) <- Parent(x,y), Parent(Y,x)", "Y", "y"),  # not near to Cy
    ],
)
def test_capitals_that_look_like_variables(rule: str, name: str, variable: str) -> None:
    hints = (f"a variable begins with a lower-case letter: {variable}",)
    assert doubted(f"Parent(Alice, Cy)\n{rule}") == [(f"no fact has the name {name!r}", hints)]


@pytest.mark.parametrize(
    "text",
    [
        "Age(Ann, 20)\nKind(x, Adult) <- Age(x,n), n > 17",
        'Age(Ann, 20)\nKind(x, "A") <- Age(x,n), n > 17',
        "Age(Ann, 20)\nKind(x, A) <- Age(x,n), n > 17\nGood(x) <- Kind(x, A)",
        "Age(Ann, 20); Kind(Bob, A)\nKind(x, A) <- Age(x,n), n > 17",
        "Age(Ann, 20); T = 3\nKind(x, T) <- Age(x,n), n > 17",
    ],
)
def test_names_that_a_head_brings_in_are_not_doubted(text: str) -> None:
    assert doubted(text) == []


@pytest.mark.parametrize("operator", ["min=", "max="])
def test_a_term_that_may_be_absent(operator: str) -> None:
    text = DISTANCES.replace("min=", operator)
    ((message, hints),) = doubted(f"{text}Best[x,z] {operator} Best[x,y] + Dist(y,z,d) d")
    assert message == f"where Dist(y, z, d) does not hold, its term counts as 0, and {operator} takes the rest"
    assert hints == ("make it a factor of the whole sum: (... + ...) Dist(y, z, d)",)
    assert doubted(f"{text}Best[x,z] {operator} (Best[x,y] + d) Dist(y,z,d)") == []


def test_sums_of_tensors_and_other_projections_are_not_doubted() -> None:
    assert doubted("W = [[1, 2], [3, 4]]\nD[i,j] min= W[i,j]\nD[i,k] min= D[i,j] + W[j,k]") == []
    assert doubted("P(Ann); V = [1]\nY[x] = V[x] + P(x)") == []
