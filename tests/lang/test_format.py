"""Programs as text: parts print as they are written, the layout is stable, and everything reads back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_strategies import modules, same, values

from tensorlogic.errors import FormatError
from tensorlogic.lang import syntax as s
from tensorlogic.lang.format import format_program, text_of
from tensorlogic.lang.grammar import parse

X, Y = s.Variable("x"), s.Variable("y")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Y=step(W[i]X[i])", "Y = step(W[i] X[i])"),
        ("Z = A*(B+C)", "Z = A * (B + C)"),
        ("Z = (A B) C", "Z = (A B) C"),
        ("Z = A/B C", "Z = A / B C"),
        ("Z = A/(B C)", "Z = A / (B C)"),
        ("Z = -X^2", "Z = -X^2"),
        ("Z = (-2)^2", "Z = (-2)^2"),
        ("Z = 2^3^X", "Z = 2^3^X"),
        ("Z = (2^3)^X", "Z = (2^3)^X"),
        ("Z = A-(B-C)", "Z = A - (B - C)"),
        ("Z = A 2", "Z = A * 2"),
        ("X[i,*t+1] = X[ i , * t ]", "X[i, *t+1] = X[i, *t]"),
        ("Comp[p,p' .] += X[4 : 8, :, 2:] ", "Comp[p, p'.] += X[4:8, :, 2:]"),
        ("Pooled[x/S, (y-1)*2] max= F[x,y]", "Pooled[x/S, (y-1)*2] max= F[x, y]"),
        ('P(x) :- Q(x,Bob,"bob",3),not R(x),x==y', 'P(x) <- Q(x, Bob, "bob", 3), not R(x), x = y'),
        ("Parent(Bob , 'it is')", 'Parent(Bob, "it is")'),
        ("P(x,y),Q(y)?", "P(x, y), Q(y)?"),
        ("X(p,t)='text.txt'", 'X(p, t) = "text.txt"'),
        ('"out.csv"=Anc(x,y)', '"out.csv" = Anc(x, y)'),
        ("W = [[1,-2.5],[3e10,4]]", "W = [[1, -2.5], [30000000000.0, 4]]"),
        ("Rain <- Wet", "Rain() <- Wet()"),
    ],
)
def test_parts_print_as_they_are_written(text, shown):
    assert text_of(parse(text).statements[0]) == shown


def test_a_deep_expression_prints():
    value = X
    for _ in range(5000):
        value = s.Negative(s.Call("sig", (value,)))
    assert text_of(value).count("sig") == 5000


@given(modules)
@settings(deadline=None, max_examples=60)
def test_what_is_printed_reads_back(module):
    found = parse(text_of(module))
    assert same(found) == same(module)


@given(values)
@settings(deadline=None)
def test_expressions_read_back(value):
    assert parse(f"Y = {text_of(value)}").statements[0].value == value


# the layout of whole programs

UGLY = """\


# family


P(x):-Q( x,y ),R(y)  # why
Y[ i ]=W[ i , j ]X[j] ;Z=Y[i]+1;  // two
   # own
A[i,t+ 1,*t + 2, p' .] = softmax( - X[ i-1 , 2: -1 ] * -3 / 2 ^ -4 ,
       # inside
    B)   # behind

   Anc(x,z) <- Anc(x,y),    # first

      Par(y,z)
   , not R( x , z ) , x < -3, y=x+1 .
Parent(Bob,Charlie). Parent( "a;b#" ,3).   Y?  Z ?
W=[ [1,-2.] , [3,4e5] ]
# last"""

NEAT = """\
# family

P(x) <- Q(x, y), R(y)  # why
Y[i] = W[i, j] X[j]
Z = Y[i] + 1  // two
# own
A[i, t+1, *t+2, p'.] = softmax(-X[i-1, 2:-1] * -3 / 2^-4,
    # inside
    B)  # behind

Anc(x, z) <- Anc(x, y),  # first
    Par(y, z)
    , not R(x, z), x < -3, y = x + 1
Parent(Bob, Charlie)
Parent("a;b#", 3)
Y?
Z?
W = [[1, -2.], [3, 4e5]]
# last
"""


def test_the_canonical_layout():
    assert format_program(UGLY) == NEAT
    assert format_program(NEAT) == NEAT
    assert same(parse(NEAT)) == same(parse(UGLY))


def test_windows_line_ends_and_byte_order_marks_go():
    assert format_program("\ufeff" + NEAT.replace("\n", "\r\n")) == NEAT


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n", "  # only", "// a\n\n\n// b"])
def test_programs_of_comments(text):
    neat = format_program(text)
    assert format_program(neat) == neat
    assert re.findall(r"\w+", neat) == re.findall(r"\w+", text)


def test_a_program_that_cannot_be_read_is_not_laid_out():
    with pytest.raises(FormatError, match="not closed"):
        format_program("Y = sig(X[i]")


def test_attached_functions_are_known():
    assert format_program("Y = blend( A[i]+B[i],2 )", functions=["blend"]) == "Y = blend(A[i] + B[i], 2)\n"


SPACES = ["", " ", "  ", "\t"]
GAPS = ["\n", "\n\n\n", ";", " ; ", "  # note\n", "\n  // note; P(A) \n", "\n\n# note\n\n# two\n", " ;# x\n"]
SEAMS = re.compile(r"""("(?:[^"\\]|\\.)*")|(?<=[,()\[\]])|(?=[,()\[\]])""")


@given(modules, st.randoms(use_true_random=True))
@settings(deadline=None, max_examples=50)
def test_any_layout_becomes_one_that_reads_the_same_and_stays(module, random):
    text = ""
    for line in text_of(module).split("\n"):
        text += SEAMS.sub(lambda m: m[1] or random.choice(SPACES), line) + random.choice(GAPS)
    neat = format_program(text)
    assert same(parse(neat)) == same(parse(text)) == same(module)
    assert format_program(neat) == neat
    assert text.count("note") == neat.count("note")
