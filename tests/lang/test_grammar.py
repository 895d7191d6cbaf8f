"""Programs are read: every form, every way to end a statement, facts in bulk as one by one, bounds, Prolog files."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from program_strategies import modules, same

from tensorlogic.diagnostics import SourceLocation
from tensorlogic.errors import FormatError, InputError
from tensorlogic.lang import facts
from tensorlogic.lang import syntax as s
from tensorlogic.lang.format import text_of
from tensorlogic.lang.grammar import parse
from tensorlogic.lang.prolog import parse_prolog

DATA = [p / "shared" / "data" / "logic" for p in Path(__file__).resolve().parents]


def var(*names):
    return tuple(s.Place(s.Variable(name)) for name in names)


def statement(text, **options):
    (found,) = parse(text, **options).statements
    return found


W, X = s.Tensor("W", var("i", "j")), s.Tensor("X", var("j"))
A, B, C = s.Tensor("A"), s.Tensor("B"), s.Tensor("C")
FORMS = [
    ("Y[i] = W[i,j] X[j]", s.Equation(s.Tensor("Y", var("i")), "=", s.Product((W, X)))),
    ("Y[i] max= W[i,j]", s.Equation(s.Tensor("Y", var("i")), "max=", W)),
    ("Y = count(A)", s.Equation(s.Tensor("Y"), "=", s.Call("count", (A,)))),
    ("Parent(Bob, 'charlie')", s.Facts("Parent", (("Bob",), ("charlie",)), (1,))),
    ("Age(Bob, -3)", s.Facts("Age", (("Bob",), (-3,)), (1,))),
    ("Rain()", s.Facts("Rain", (), (1,))),
    ("P(x) <- Q(x,y)", s.Rule(s.Tensor("P", var("x"), True), (s.Tensor("Q", var("x", "y"), True),))),
    ("P(x) :- not q(x)", s.Rule(s.Tensor("P", var("x"), True), (s.Not(s.Tensor("q", var("x"), True)),))),
    ("Y?", s.Query((s.Tensor("Y"),))),
    ("P(x,y), Q(y)?", s.Query((s.Tensor("P", var("x", "y"), True), s.Tensor("Q", var("y"), True)))),
    ('M(p,w) = "text.txt"', s.Read(s.Tensor("M", var("p", "w"), True), "text.txt")),
    ('"out.csv" = Anc(x,y)', s.Write("out.csv", s.Tensor("Anc", var("x", "y"), True))),
    ("W = [[1,-2.5]]", s.Equation(s.Tensor("W"), "=", s.ListLiteral((s.ListLiteral((s.Number(1), s.Number(-2.5))),)))),
]


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_forms(text, expected):
    assert statement(text) == expected
    assert statement(text, bulk=False) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A B C", s.Product((A, B, C))),
        ("A * B C", s.Product((A, B, C))),
        ("(A B) C", s.Product((s.Product((A, B)), C))),
        ("A B / C", s.Operation("/", s.Product((A, B)), C)),
        ("A / B C", s.Product((s.Operation("/", A, B), C))),
        ("A + B C", s.Operation("+", A, s.Product((B, C)))),
        ("A - B - C", s.Operation("-", s.Operation("-", A, B), C)),
        ("-A B", s.Negative(s.Product((A, B)))),
        ("-A^2", s.Negative(s.Operation("^", A, s.Number(2)))),
        ("A^B^C", s.Operation("^", A, s.Operation("^", B, C))),
        ("A^-2", s.Operation("^", A, s.Number(-2))),
        ("A * -B", s.Product((A, s.Negative(B)))),
        ("-2", s.Number(-2)),
        ("2 A", s.Product((s.Number(2), A))),
        ("1. A", s.Product((s.Number(1.0), A))),
        (".5 + 1e-3", s.Operation("+", s.Number(0.5), s.Number(0.001))),
        ("sin(p/A)", s.Call("sin", (s.Operation("/", s.Variable("p"), A),))),
        ("Neig(n,n') A", s.Product((s.Tensor("Neig", var("n", "n'"), True), A))),
    ],
)
def test_expressions(text, value):
    assert statement(f"Y = {text}").value == value


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("t+1", s.Place(s.Arithmetic("+", s.Variable("t"), s.Constant(1)))),
        ("*t+1", s.Place(s.Arithmetic("+", s.Variable("t"), s.Constant(1)), virtual=True)),
        ("p'.", s.Place(s.Variable("p'"), normalised=True)),
        ("x/S", s.Place(s.Arithmetic("/", s.Variable("x"), s.Constant("S")))),
        ("4:8", s.Place(s.Range(s.Constant(4), s.Constant(8)))),
        (":-1", s.Place(s.Range(None, s.Constant(-1)))),
        (":", s.Place(s.Range())),
        ('"two words"', s.Place(s.Constant("two words", True))),
        ("-x", s.Place(s.Arithmetic("-", s.Constant(0), s.Variable("x")))),
    ],
)
def test_places(text, place):
    assert statement(f"Y = X[i, {text}]").value.places[1] == place


def test_comparisons_of_a_body():
    rule = statement("P(x) <- Q(x), x == 1, x = Bob, x != 'bob', x < y, x <= 2, y > x + 1, y >= -1")
    assert [c.operator for c in rule.body[1:]] == ["=", "=", "!=", "<", "<=", ">", ">="]
    assert rule.body[2].right == s.Tensor("Bob")
    assert rule.body[3].right == s.Text("bob")


def test_a_blank_is_another_variable_each_time():
    assert statement("P(x) <- Q(x, _), R(_, _1)").body == statement("P(x) <- Q(x, _2), R(_3, _1)").body


@pytest.mark.parametrize(
    "text",
    [
        "A = 1\nB = 2", "A = 1; B = 2", "A = 1. B = 2".replace(". ", ".\n"), "A = 1\r\nB = 2\r\n", "\ufeffA = 1\rB = 2",
        "A =\n 1\nB = 2", "A\n = 1\nB = 2", "A = # why\n\n 1 // x\n\n;;B = 2;", "A = 1  # B = 3\nB = 2", "A = (\n1\n)\nB = 2.",
    ],
)  # fmt: skip
def test_where_statements_end(text):
    found = parse(text).statements
    assert [(f.head.name, f.value.value) for f in found] == [("A", 1), ("B", 2)]


@pytest.mark.parametrize("text", ["P(x) <- Q(x),\n R(x)", "P(x)\n<- Q(x)\n# why\n, R(x)", "P(x) :-\n\n Q(x), R(\nx)."])
def test_a_rule_over_several_lines(text):
    assert text_of(statement(text)) == "P(x) <- Q(x), R(x)"


def test_every_part_knows_its_place():
    module = parse("\n  Y[i] = sig(\n    W[i, j+1] X[j])", "net.tl")
    parts = {(type(p).__name__, text_of(p)): p.at for p in s.walk(module) if p is not module}
    assert None not in parts.values()
    assert parts["Call", "sig(W[i, j+1] X[j])"] == SourceLocation("net.tl", 2, 10)
    assert parts["Constant", "1"] == SourceLocation("net.tl", 3, 12)
    assert parts["Place", "j+1"] == SourceLocation("net.tl", 3, 10)


def test_functions_can_be_attached():
    assert isinstance(statement("Y = blend(A)").value, s.Tensor)
    assert isinstance(statement("Y = blend(A)", functions=["blend"]).value, s.Call)


def test_a_scalar_in_a_fact_is_its_value_and_a_string_is_not():
    (facts, _) = parse('Layer(L, "L", Bob)\nL = 3').statements
    assert facts.columns == ((3,), ("L",), ("Bob",))
    assert parse("Layer(L)", scalars={"L": 7}).statements[0].columns == ((7,),)
    assert parse("Layer(L)\nL = 3\nL = 4").statements[0].columns == (("L",),)


def test_facts_that_stand_together_are_grouped():
    found = parse("P(A)\nQ(B)\nP(C) # why\n\nP(A, B)\nP(x) <- Q(x)\nP(D)").statements
    assert [(f.name, f.columns, f.lines) for f in found if isinstance(f, s.Facts)] == [
        ("P", (("A", "C"),), (1, 3)),
        ("Q", (("B",),), (2,)),
        ("P", (("A",), ("B",)), (5,)),
        ("P", (("D",),), (7,)),
    ]


# facts in bulk

PIECES = [
    "Parent(Bob, Charlie)", "P(A)", "P( 3 ,-4)", "P(\"a#b\", 'c;d')", "P('//', \"(\")", "Rain()", "sig(A)", "not(A)", "P(x)", "P(éa)", "P(Éa)", "P(A')",
    "Y = X[i]", "P(x) <- Q(x)", "\n", "\n", "\n", "\n", ";", ".", "#c (\n", "// c\n", "P(A, B)\n", "P(A, C).\n", "Q(A, C);", "Q(1) # x\n", "P(A,\nB)",
    ",", "+", "-", "?", "(", ")", "[", "<-", "=", "max=", "x", "1.", "2.5", '"s', '"t"', " ", "\t", "/", ":", "not ", "W = [1, 2", "P(\"\\q\")",
    "P(12345678901234567890)", "==", "\\", "_", "and", "\r\n", "\x0c", "P(A)Q(B)", "%d\n", "p(a,b).\n", "q(X):-p(X,Y).\n", "/*", "*/",
]  # fmt: skip


def outcome(read, text, **options):
    try:
        return read(text, **options)
    except FormatError as error:
        assert str(error)
        assert error.diagnostic.source is not None
        return error.diagnostic.code, error.diagnostic.location, error.diagnostic.message


LINES = [
    "P(A, B)\n",
    "P(C, 7)\n",
    "  P(A, B)\n",
    "P(A, B).\n",
    "P(A)\n",
    "P(A, x)\n",
    'P("P(", B)\n',
    "<- Q(A)\n",
    "\n",
    "p(a, b).\n",
    "p(c).\n",
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("read", [parse, parse_prolog])
def test_bulk_and_one_by_one_agree_on_any_text(read, seed, monkeypatch):
    monkeypatch.setattr(facts, "LONG", (1, 30)[seed % 2])  # characters from which lines are taken at once
    rng = random.Random(seed)
    for _ in range(300):
        pieces = rng.choice([PIECES, PIECES[:27], LINES])
        text = "".join(rng.choice(pieces) * rng.randrange(1, 4) for _ in range(rng.randrange(1, 14)))
        found, expected = outcome(read, text), outcome(read, text, bulk=False)
        assert found == expected, text
        if not isinstance(found, tuple):
            places = [[(x.at, getattr(x, "lines", None)) for x in module.statements] for module in (found, expected)]
            assert places[0] == places[1], text


@given(modules)
@settings(deadline=None, max_examples=50)
def test_bulk_and_one_by_one_agree_on_programs(module):
    text = text_of(module)
    assert parse(text) == parse(text, bulk=False)
    assert same(parse(text)) == same(module)


def test_many_facts_need_no_grammar():
    code = (
        "import sys; from tensorlogic.lang.grammar import parse\n"
        "text = ''.join(f'# n{i}\\nParent(P{i}, \"p {i}\")  // x\\nAge(P{i}, {i}).\\n' for i in range(20000))\n"
        "found = parse(text).statements\n"
        "assert [len(f) for f in found] == [20000, 20000], found\n"
        "assert found[1].lines[-1] == 60000 and found[1].columns[1][-1] == 19999\n"
        "assert 'lark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# bounds


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Y = " + "(" * 20_000, "E649"),
        ("W = " + "[" * 300 + "1" + "]" * 300, "E649"),
        ("Y = " + "-" * 20_000 + "A", "E649"),
        ("Y = " + "A^" * 20_000 + "A", "E649"),
        ("Y = " + "A+" * 20_000 + "A", "E649"),
        ("Y = X[" + "i+" * 20_000 + "i]", "E649"),
        ("Y = " + "sig(" * 201 + "A" + ")" * 201, "E649"),
        ("Y = " + "9" * 5000, "E650"),
        ("P(" + "9" * 5000 + ")", "E650"),
        ("Y = 1e999", "E650"),
        ("P(" + ",".join(["A"] * 65) + ")", "E651"),
        ("Y = X[" + ",".join(["i"] * 65) + "]", "E651"),
    ],
    ids=range(12),
)
def test_bounds(text, code):
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert caught.value.diagnostic.code == code
    assert len(str(caught.value)) < 1000


def test_the_length_of_a_text_is_bounded(monkeypatch):
    monkeypatch.setattr("tensorlogic.lang.grammar.MAX_TEXT", 10)
    with pytest.raises(FormatError, match="too long"):
        parse("Parent(Bob, Charlie)")


def test_what_is_within_the_bounds_is_read():
    nested = "Y = " + "sig(" * 198 + "A" + ")" * 198
    assert text_of(parse(nested)) == nested + "\n"
    assert parse(nested) == parse(nested)
    assert hash(parse(nested)) == hash(parse(nested))
    assert len(statement("P(" + ",".join(["A"] * 64) + ")").columns) == 64
    assert statement("Y = " + "9" * 1024).value.value == 10**1024 - 1


def test_only_text_is_read():
    with pytest.raises(InputError, match="a program is text"):
        parse(b"Y?")


# Prolog files


def test_prolog_clauses():
    found = parse_prolog(
        r"""% family
        parent(bob, 'Big Charlie'). parent(alice,bob). /* two
        lines */ age(bob, 42).
        grand(X,Z) :- parent(X,Y), parent(Y,Z), \+ odd(X), X \= Z, N =< 3, Z = bob,
           M is N+1, _ > 2.
        grand(alice, _)?"""
    ).statements
    assert [text_of(f) for f in found] == [
        'parent("bob", "Big Charlie")\nparent("alice", "bob")',
        'age("bob", 42)',
        'grand(x, z) <- parent(x, y), parent(y, z), not odd(x), x != z, n <= 3, z = "bob", m = n + 1, _1 > 2',
        'grand("alice", _1)?',
    ]
    assert found[1].lines == (3,)


@pytest.mark.parametrize(
    ("file", "count"), [("countries/countries_S1.nl", 1111), ("kinship/train.nl", 8544), ("kinship/dev.nl", 1068)]
)
def test_knowledge_bases(file, count):
    path = next((folder / file for folder in DATA if (folder / file).exists()), None)
    if path is None:
        pytest.skip("the data are not here")
    text = path.read_text(encoding="utf-8")
    found = parse_prolog(text, file)
    assert sum(map(len, found.statements)) == count
    assert parse_prolog(text[:20000].rsplit("\n", 1)[0], bulk=False) == parse_prolog(text[:20000].rsplit("\n", 1)[0])


def test_a_clause_needs_its_dot():
    with pytest.raises(FormatError, match=r"'\.' is expected"):
        parse_prolog("p(a, b)")
