"""What people get wrong in programs: the text, what is done with it, and a name; every message is in mistakes.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engines import compute

import tensorlogic as tl

Mistake = Callable[[], object]
TEXTS: dict[str, str] = {
    # characters, brackets, ends
    "an unterminated string": 'Parent(Alice, "Bob)',
    "a string over two lines": 'Parent(Alice, "Bob\nCarol")',
    "an index bracket never closed": "Y[i = X[i]\nZ = 1",
    "a parenthesis never closed": "Parent(Alice, Bob",
    "a bracket closed by another": "Parent(Alice, Bob]",
    "a bracket too many": "Y = (A + 1))",
    "a character of another language": "R(x) <- P(x) & Q(x)",
    "typographic quotes": "Parent(“Alice”, Bob)",
    "a null character": "Parent(Alice,\0 Bob)",
    "two equals signs": "Y == 3",
    "an arrow the wrong way": "Parent(x,y) -> Anc(x,y)",
    "no right side": "Y =",
    "no left side": "= X[i]",
    "no head": "<- Parent(x,y)",
    "no body": "Anc(x,y) <-",
    "a comma at the end of a body": "R(x) <- P(x),",
    "a comma at the end of the places": "Parent(Alice, )",
    "two operators": "Y = A[i] + * B[i]",
    "an empty index bracket": "Y[] = 3",
    "no comma between names": "Parent(Alice Bob)",
    "two facts on one line": "Parent(Alice, Bob) Parent(Bob, Carol)",
    "a number with two points": "Y = 1.2.3",
    "an unknown projection": "Y[i] prod= X[i,j]",
    "a literal of unequal rows": "W = [[1, 2], [3]]",
    "a literal of numbers and lists": "W = [1, [2, 3]]",
    "a name in a literal": "W = [1, x, 3]",
    "an empty literal": "W = []",
    "a capital letter for an index": "X = [1, 2]\nY[I] = X[I]",
    "a literal shorter than its names": "P(Ann); P(Bob); W = [1]\nY = P(x) W[x]",
    "a fraction as an index": "Y = X[1.5]",
    "not in a head": "P(A)\nnot R(x) <- P(x)",
    "not twice": "P(A)\nR(x) <- P(x), not not P(x)",
    "not of a comparison": "P(1)\nR(x) <- P(x), not x < 3",
    "not in an equation": "Y[i] = not X[i]",
    "a word as a variable of a tensor": "not = 3",
    "a question without anything": "?",
    "two question marks": "P(A)\nP(x)??",
    "a sum of strings": 'Y = "a" + "b"',
    "a string in the body": 'P(A)\nR(x) <- P(x), "A"',
    "a rule with numbers in its head": "P(A)\nR(x + 0.5) <- P(x)",
    # functions
    "an aggregate in a head": "P(A, B)\nQ(x, count(y)) <- P(x,y)",
    "a sum in a head": "P(A, 2)\nQ(x, sum(n)) <- P(x,n)",
    "a function of one's own before it is attached": "Y[i] = swish(X[i])",
    "an unknown function": "Y = sigmod(X[i])",
    "a function without an argument": "Y = sig()",
    "a function with too many arguments": "Y = sqrt(A, B)",
    "softmax without a dotted index": "X = [1, 2]\nY[i] = softmax(X[i])",
    "a dotted index without a normaliser": "X = [1, 2]\nY[i.] = X[i]",
    "two dotted indices": "X = [[1, 2], [3, 4]]\nY[i., j.] = softmax(X[i,j])",
    "a dotted index on the right": "X = [1, 2]\nY[i] = exp(X[i.])",
    "concat with nothing to join": "X = [1, 2]\nY[i] = concat(X[i])",
    # safety, strata, kinds
    "a fact with a variable": "Parent(x, Bob)",
    "a head variable that nothing binds": "P(A)\nR(x, y) <- P(x)",
    "a variable only in a negated atom": "P(A); Q(A, B)\nR(x) <- P(x), not Q(x, y), y != A",
    "a variable only in a comparison": "P(1)\nR(x) <- P(x), y > x",
    "a rule of nothing but a negation": "P(A)\nR(x) <- not P(x)",
    "a relation that is its own negation": "Move(A, B)\nWin(x) <- Move(x, y), not Win(y)",
    "two relations that negate each other": "P(A)\nQ(x) <- P(x), not R(x)\nR(x) <- P(x), not Q(x)",
    "a negation around a longer cycle": "P(A)\nQ(x) <- P(x), not T(x)\nS(x) <- Q(x)\nT(x) <- S(x)",
    "an aggregate of itself": "E(A, B)\nR(x, y) <- E(x, y)\nC[x] count= R(x, y)\nR(x, y) <- E(x, y), C[x] > 1",
    "facts of two arities": "Parent(Alice, Bob)\nParent(Alice)",
    "a rule of another arity than its facts": "Parent(Alice, Bob)\nR(x) <- Parent(x)",
    "heads of two arities": "P(A)\nR(x) <- P(x)\nR(x, x) <- P(x)",
    "a relation and a tensor of one name": "P(A)\nX = [1, 2]\nP[i] = 3 X[i]",
    "a scalar and a relation of one name": "Parent = 3\nParent(Alice, Bob)",
    "a tensor in the body of a rule": "P(A)\nR(x) <- P(x), W[x]",
    "a relation nobody defines": "Parent(Alice, Bob)\nR(x) <- Parnet(x, y)",
    "names compared by size": "P(Ann); P(Bob)\nR(x) <- P(x), x < Bob",
    "a number added to a name": "P(Ann); P(Bob)\nR(x) <- P(x), P(y), y = x + 1",
    "a number and a name in one comparison": "P(1)\nR(x) <- P(x), x < Ann",
    "two projections of one tensor": "A = [1, 2]\nY = A[i]\nY max= A[i]",
    "a number for a relation": "Likes(Ann, Bob) = 0.9",
    "an aggregate in a rule": "R(A, 1); R(A, 2)\nC(x, n) <- R(x, y), n = count(y, R(x, y))",
    "a comma in an aggregate": "F(A, B)\nN[x] count= F(x, y), F(y, z)",
    "an aggregate under another name": "F(A, B)\nN sum= F(x, y)",
    "a rule that is a question": "P(A)\nR(x) <- P(x)?",
    "a question that is a value": "W = [1, 2]\nW[i] W[i]?",
    "the rest of a division": "N(4)\nEven(x) <- N(x), x % 2 = 0",
    "numbers that grow without end": "N(0)\nN(x+1) <- N(x)",
    "numbers that fall without end": "N(5)\nN(y) <- N(x), y = x - 1",
    # sizes, indices, recurrences
    "a negative position": "A[-1] = 3",
    "facts below zero that index numbers": "Sale(Ann, -3)\nT[a+1] count= Sale(x, a)",
    "an index whose size nothing fixes": "Y[i] = 1",
    "an index on the left only": "X = [1, 2]\nY[i, j] = X[i]",
    "sizes that differ": "W = [1, 2, 3]\nX = [1, 2]\nY = W[i] X[i]",
    "too many places": "X = [1, 2]\nY = X[i, j]",
    "an index out of range": "X = [1, 2]\nY = X[9]",
    "a slice out of range": "X = [1, 2]\nY = X[1:5]",
    "a slice the wrong way round": "X = [1, 2, 3]\nY = X[2:1]",
    "a name on an axis of numbers": "X = [1, 2]\nY = X[Alice]",
    "a scalar that is no whole number": "L = 0.5\nX = [1, 2]\nY = X[L]",
    "division of an index by zero": "X = [1, 2]\nY[x/0] = X[x]",
    "division of an index by itself": "X = [1, 2]\nY[x/x] = X[x]",
    "a virtual index without a step": "X = [[1, 2], [3, 4]]\nY[i, *t] = X[i, t]",
    "a tensor nobody defines": "Y[i] = X[i] W[i]",
    "a recursion that grows": "B = [1, 2]\nY[i] = 2 Y[i] + B[i]",
    "a recursion that swings": "Y = 1 - Y",
    "a count that never ends": "E = [[0, 1], [1, 0]]\nN[i,j] = E[i,j] + N[i,k] E[k,j]",
    # files
    "a file that is not there": 'Parent(x, y) = "parents.csv"',
    "a file of unknown form": 'Parent(x, y) = "parents.docx"',
    "a row that is too short": 'Parent(x, y) = "short.csv"',
    "a row that is too long": 'Parent(x, y) = "long.csv"',
    "more columns than places": 'Parent(x) = "good.csv"',
    "words where numbers belong": 'X[i, j] = "words.csv"\nY = X[i, j]',
    "a quote that is never closed": 'Parent(x, y) = "quote.csv"',
    "bytes that are no text": 'M(p, w) = "latin.txt"',
    "an array of another rank": 'X[i, j] = "vector.npy"\nY = X[i, j]',
    "several arrays in one file": 'X[i] = "two.npz"\nY = X[i]',
    "a broken array file": 'X[i] = "broken.npy"\nY = X[i]',
    "a folder that is not there": 'P(A)\n"nowhere/out.csv" = P(x)',
    "a name in the column of numbers": 'X[i] = "names.csv"\nY = X[i]',
    "a file of unknown form to write": 'P(A)\n"out.docx" = P(x)',
    "writing what is not defined": '"out.csv" = Nothing(x)',
}


def everything(program: Any) -> None:
    """Compute every tensor, answer every question and write every file of a program."""
    program.check()
    compute(program)
    program.answers()
    program.write_files()


def family(text: str = "") -> Any:
    return tl.Program(
        "Parent(Alice, Bob); Parent(Bob, Carol)\nAnc(x,y) <- Parent(x,y)\nAnc(x,z) <- Anc(x,y), Parent(y,z)\n" + text
    )


def added(program: Any, name: str, rows: Any) -> None:
    program.add(name, rows)
    everything(program)


def layer() -> Any:
    return tl.Program("Y[i] = W[i,j] X[j]")


CALLS: dict[str, Mistake] = {
    "a program that is a number": lambda: tl.Program(3),  # type: ignore[arg-type]
    "a program that is bytes": lambda: tl.Program(b"P(A)"),  # type: ignore[arg-type]
    "a program file that is not there": lambda: tl.load("nowhere.tl"),
    "a program file that is a folder": lambda: tl.load("."),
    "a program file that is no text": lambda: tl.load("latin.txt"),
    "a question about an unknown relation": lambda: family().query("Ancestor(Alice, x)?"),
    "a question with too many places": lambda: family().query("Anc(Alice, x, y)?"),
    "a question that is a rule": lambda: family().query("Anc(x, y) <- Parent(x, y)"),
    "two questions at once": lambda: family().query("Anc(x, y)?\nParent(x, y)?"),
    "a question that is no text": lambda: family().query(("Anc", "Alice")),
    "a question about an element that is not there": lambda: tl.Program("W = [1, 2]").query("W[5]?"),
    "a question about a range": lambda: tl.Program("W = [1, 2]").query("W[0:1]?"),
    "an unknown relation": lambda: family().relation("Ancestor"),
    "a tensor asked for as a relation": lambda: tl.Program("Y = [1, 2]").relation("Y"),
    "an input that is missing": lambda: layer().run(W=np.ones((2, 3)))["Y"],
    "an input nobody reads": lambda: layer().run(W=np.ones((2, 3)), X=np.ones(3), Z=1)["Y"],
    "an input of another rank": lambda: layer().run(W=np.ones((2, 3)), X=np.ones((3, 1)))["Y"],
    "inputs whose sizes differ": lambda: layer().run(W=np.ones((2, 3)), X=np.ones(4))["Y"],
    "an input with nothing in it": lambda: layer().run(W=np.array([[1, None]], dtype=object))["Y"],
    "an input whose shape is needed": lambda: layer().run(X=np.ones(3))["Y"],
    "an input that is text": lambda: layer().run(W=np.ones((2, 3)), X="abc")["Y"],
    "an input of unequal rows": lambda: layer().run(W=[[1, 2, 3], [4]], X=np.ones(3))["Y"],
    "an input that is a set": lambda: layer().run(W=np.ones((2, 3)), X={1.0, 2.0, 3.0})["Y"],
    "numbers for a relation": lambda: family().run(Parent=np.eye(3))["Anc"],
    "an output that is not there": lambda: layer().run(W=np.ones((2, 3)), X=np.ones(3))["Z"],
    "a tuple that is too long": lambda: family().add("Parent", [("Alice", "Bob", "Carol")]),
    "rows of two lengths": lambda: family().add("Parent", [("Alice", "Bob"), ("Carol",)]),
    "a tuple that is not in a list": lambda: family().add("Parent", ("Alice", "Bob")),
    "one name for a pair": lambda: family().add("Parent", ["Alice"]),
    "text in place of tuples": lambda: family().add("Parent", "Alice"),
    "a missing name": lambda: family().add("Parent", [("Alice", None)]),
    "a name that is not a number": lambda: family().add("Parent", [("Alice", float("nan"))]),
    "a fraction as a name": lambda: family().add("Parent", [("Alice", 1.5)]),
    "a fact for a tensor of numbers": lambda: added(tl.Program("Y = [1, 2]\nZ = Y[i]"), "Y", [("Alice",)]),
    "a matrix of another rank": lambda: family().add("Parent", np.ones((2, 2, 2), bool)),
    "a matrix of numbers as facts": lambda: family().add("Parent", np.array([[0.5, 1.0], [1.0, 0.0]])),
    "a table with too many columns": lambda: family().add("Parent", {"a": [1], "b": [2], "c": [3]}),
    "columns of unequal length": lambda: family().add("Parent", {"a": [1, 2], "b": [2]}),
    "a file of facts that is not there": lambda: family().add("Parent", Path("parents.csv")),
    "a file with a short row": lambda: family().add("Parent", Path("short.csv")),
    "taking back what is derived": lambda: family().retract("Anc", [("Alice", "Carol")]),
    "why of what does not hold": lambda: family().why("Anc(Carol, Alice)"),
    "why of a variable": lambda: family().why("Anc(Alice, x)"),
    "why of a tensor without its element": lambda: tl.Program("X = [1, 2]\nY[i] = X[i]").why("Y"),
    "why of an element that is misspelt": lambda: tl.Program("P(Ann, Bob)\nN[x] count= P(x,y)").why("N[Anna]"),
    "why of an element beyond the end": lambda: tl.Program("X = [1, 2]\nY[i] = X[i]").why("Y[2]"),
    "why of an unknown relation": lambda: family().why("Ancestor(Alice, Carol)"),
    "an executor that is none": lambda: tl.Program("Y = 1", executor="numpy").run()["Y"],  # type: ignore[arg-type]
}


def files(folder: Path) -> None:
    """Write the files that the mistakes read."""
    (folder / "good.csv").write_text("Alice,Bob\nBob,Carol\n")
    (folder / "short.csv").write_text("Alice,Bob\nBob,Carol\nDan\n")
    (folder / "long.csv").write_text("Alice,Bob\nBob,Carol,Dan\n")
    (folder / "words.csv").write_text("1,2\n3,four\n")
    (folder / "names.csv").write_text("Alice,0.5\nBob,much\n")
    (folder / "quote.csv").write_text('Alice,"Bob\nCarol,Dan\n')
    (folder / "latin.txt").write_bytes("Zoë liebt Äpfel".encode("latin-1"))
    np.save(folder / "vector.npy", np.ones(3))
    np.savez(folder / "two.npz", a=np.ones(3), b=np.ones(3))
    (folder / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00 broken")


def every() -> dict[str, Mistake]:
    """Return every mistake as a call; a program is read, and then run."""
    return {**{name: (lambda text=text: everything(tl.Program(text))) for name, text in TEXTS.items()}, **CALLS}
