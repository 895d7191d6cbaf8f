"""Mistakes in programs: each is refused with its code, its place, what is wrong and what to write instead."""

import pytest

from tensorlogic.errors import FormatError
from tensorlogic.faults import FAULTS
from tensorlogic.lang.grammar import parse

# the text, the code, line and column, the message and the first hint
# fmt: off
MISTAKES = [
    ('A(x) < - B(x)', 'E645', (1, 1), 'a comparison is no statement', 'the sign of a rule has no space in it: A(x) <- ...'),
    ('P(A)\nP("a\ud800", "b")', 'E231', (2, 5), 'the text has half of a surrogate pair, which is no text', 'write the file again as UTF-8'),
    ('P("a\\ud800", "b")', 'E231', (1, 3), 'a string has half of a surrogate pair, which is no text: \\ud800', 'write the character itself'),
    ('P(A); Q(x) <- P(x), x != "\\ude00\\ud83d"', 'E231', (1, 26), 'a string has half of a surrogate pair, which is no text: \\ude00', 'write the character itself'),
    ('-- a comment', 'E645', (1, 1), 'this says nothing: it is neither asked for nor defined', 'a comment begins with # or //, and ends with its line'),
    ('/* a comment */ P(A)', 'E640', (1, 1), "'/*' is not part of the language", 'a comment begins with # or //, and ends with its line'),
    ('Y[i] := X[i]', 'E640', (1, 6), "':=' is not part of the language", 'an equation is written with =, a rule with <- or :-'),
    ('M(p,w) = text.txt', 'E645', (1, 15), 'this says nothing: a statement is a fact, a rule, an equation or a question', "a '.' ends a statement; the name of a file stands in quotes"),
    ('Y[i] = ReLU(X[i])', 'E648', (1, 13), "there is no function 'ReLU', and a relation holds indices, not the value X[i]", "did you mean 'relu'?"),
    ('Y = step(W[i] X[i]', 'E641', (1, 9), "'(' is not closed", "write ')' where it ends"),
    ('Y = step(W[i X[i])', 'E641', (1, 18), "')' does not close '[' of line 1, column 11", "write ']' before it"),
    ('Y = W[i])', 'E641', (1, 9), "')' closes nothing", "remove it, or write '(' before it"),
    ('Parent(Bob, "Charlie)', 'E642', (1, 13), 'a quoted string is not closed on its line', 'write " where it ends; a line break inside is written \\n'),
    ('Parent(bob, Charlie)', 'E644', (1, 8), 'a fact has no variables, but bob is an index variable here', 'a constant is written "bob" or Bob'),
    ('Parent(x, y)', 'E644', (1, 8), 'a fact has no variables, but x, y are index variables here', 'a constant is written "x" or X'),
    ('Aunt(x,z) = Sister(x,y), Parent(y,z)', 'E646', (1, 26), "an equation has one value, but a ',' follows it", 'a rule is written with <-: Aunt(x, z) <- ...'),
    ('Y == X', 'E659', (1, 1), "'==' compares, and a comparison is no statement", 'an equation has one ='),
    ('P(x) <- Q(x) and R(x)', 'E646', (1, 14), "'and' is not part of the language", "write ',' between the literals of a body"),
    ('P(x) <- Q(x) & R(x)', 'E656', (1, 14), "'&' is no connective of the language", "write ',' between the literals of a body"),
    ('P(x) <- Q(x), !R(x)', 'E656', (1, 15), "'!' is no connective of the language", "write 'not' before an atom"),
    ('P(x) <- Q(x), ~R(x)', 'E656', (1, 15), "'~' is no connective of the language", "write 'not' before an atom"),
    ('P(x) <- Q(x), \\+ R(x)', 'E656', (1, 15), "'\\\\' is no connective of the language", "write 'not' before an atom"),
    ('Q(x) -> P(x)', 'E640', (1, 6), "'->' is not part of the language", 'the head stands first: head <- body'),
    ('Anc(Alice, x)', 'E644', (1, 12), 'a fact has no variables, but x is an index variable here', 'a constant is written "x" or X'),
    ('Y[i]', 'E645', (1, 1), 'this says nothing: it is neither asked for nor defined', 'write Y[i]? to ask for it'),
    ('Y', 'E645', (1, 1), 'this says nothing: it is neither asked for nor defined', 'write Y? to ask for it'),
    ('Y = softmax(X[i])[i]', 'E648', (1, 18), 'indices follow the name of a tensor', "indices stand in one pair of brackets: X[i,j]; give a function's value a name of its own to index it"),
    ('X[i,]= 3', 'E640', (1, 5), "a value is expected, got ']'", "remove the ',' before it"),
    ('Y[] = 3', 'E653', (1, 2), 'brackets are empty', 'a scalar is written without brackets: Y'),
    ('Y = sig()', 'E653', (1, 8), 'sig needs a value', 'write sig(X[i])'),
    ('W = []', 'E653', (1, 5), 'a list needs at least one number', ''),
    ('def f(x):\n  return x', 'E658', (1, 1), "'def' is not part of the language", 'rules are written head <- body'),
    ('import numpy', 'E658', (1, 1), "'import' is not part of the language", 'a file is read by X(i,j) = "file.csv"'),
    ('for x in y', 'E658', (1, 1), "'for' is not part of the language", 'an index runs over all of its values by itself'),
    ('Parent(“Bob”, Charlie)', 'E643', (1, 8), "'“' is not part of the language", 'write straight quotes: "'),
    ('Y = $x', 'E643', (1, 5), "'$' is not part of the language", "names are letters, digits, _ and '"),
    ('Y = 3 %', 'E643', (1, 7), "'%' is not part of the language", 'comments begin with # or //; the rest of x by 2 is x - x/2*2'),
    ('Parent(Bob,Charlie)  Ancestor(Alice,Bob)', 'E657', (1, 22), 'two statements stand on one line', "write each statement on a line of its own, or ';' between them"),
    ('Ancestor(Alice,x)? Parent(Bob', 'E641', (1, 26), "'(' is not closed", "write ')' where it ends"),
    ('P(x) <- Q(x) R(x)', 'E646', (1, 14), "the literals of a body are separated by ','", 'write P(x), Q(x)'),
    ('P(x) <-', 'E640', (1, 8), 'a value is expected, got the end of the statement', 'a rule needs a body; a fact is written without <-'),
    ('P(x) <- Q(x),', 'E640', (1, 14), 'a value is expected, got the end of the statement', 'write what is missing, or remove the operator'),
    ('Y = A +\n\nZ = 3', 'E640', (3, 3), "an operator or the end of the statement is expected, got '='", "line 1 ends in '+', so the statement goes on here"),
    ('P(x) <- Q(x), 1 < x < 5', 'E659', (1, 21), "an operator or the end of the statement is expected, got '<'", 'comparisons do not chain: write x < y, y < z'),
    ('y = 3', 'E647', (1, 1), 'y is an index variable and cannot be defined', "a tensor's name begins with a capital letter: Y = ..."),
    ('3 = Y', 'E647', (1, 1), '3 cannot be defined', 'the tensor stands on the left: Y = 3'),
    ('Y[i] <- X[i]', 'E647', (1, 1), 'the head of a rule is a relation, but Y[i] is a tensor', 'write parentheses for a relation, or = for a tensor: Y[i] = ...'),
    ('not P(x) <- Q(x)', 'E647', (1, 1), 'the head of a rule cannot be negated', 'write what holds, not what does not'),
    ('P(x), Q(x) <- R(x)', 'E647', (1, 7), 'one tensor stands before <-, not 2', 'write a rule for each head'),
    ('max(x,y) <- P(x,y)', 'E655', (1, 1), 'max is the name of a function', 'give the relation or tensor another name, such as a capitalised one'),
    ('sig(Bob)', 'E655', (1, 1), 'sig is a function, so this is no fact', 'give its value a name, Y = sig(...), and ask for it: Y?'),
    ('Y = X[Y[i]]', 'E648', (1, 7), 'a place of X holds a value: Y[i]', 'a place holds an index: a variable, a constant, x+1 or 4:8'),
    ('Y = X[1.5]', 'E648', (1, 7), 'a place of X holds 1.5, which is no whole number', 'an index is a whole number; write "1.5" for a name'),
    ('Y = X[i^2]', 'E648', (1, 7), 'a place of X holds a power', 'indices are combined with + - * /'),
    ('Y = X[[1,2]]', 'E648', (1, 7), 'a place of X holds a list', 'a range of an index is written 4:8'),
    ('W = [[1,2],[3]]', 'E654', (1, 12), 'a list has a row of 2 first and a row of 1 here', 'the rows of a literal have equal lengths'),
    ('W = [1 2]', 'E640', (1, 8), "',' or ']' is expected, got '2'", ''),
    ('W = [a, b]', 'E640', (1, 6), "a number is expected, got 'a'", 'a list holds numbers; names are kept by facts'),
    ('Y = X[i][j]', 'E648', (1, 9), 'indices follow the name of a tensor', "indices stand in one pair of brackets: X[i,j]; give a function's value a name of its own to index it"),
    ('P(A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A,A)', 'E651', (1, 1), 'P has 70 places: at most 64 are possible', 'split it into several tensors that share an index'),
    ('Y = 1e999', 'E650', (1, 5), 'a number is larger than any float64', 'the largest is about 1.8e308'),
    ('P(x) <- Q(x) | R(x)', 'E656', (1, 14), "'|' is no connective of the language", "write two rules with the same head for 'or'"),
    ('P(x) <- Q(x) or R(x)', 'E656', (1, 14), "'or' is not part of the language", "write two rules with the same head for 'or'"),
    ('P(x) <- x', 'E646', (1, 9), 'x is no literal of a rule', 'a literal is R(x,y), not R(x,y) or a comparison; values are computed by equations with ='),
    ('P(x) <- sig(X[i])', 'E646', (1, 9), 'a call of sig is no literal of a rule', 'compare its value, such as sig(X[i]) > 0.5, or write an equation with ='),
    ('P(x) <- Q(x), not not R(x)', 'E640', (1, 19), "a value is expected, got 'not'", "'not' stands before an atom of a body: P(x) <- Q(x), not R(x)"),
    ('P(x) <- not x < 3', 'E646', (1, 15), "'not' stands before an atom only", 'a comparison is turned round: x != y, x >= y'),
    ('Y *= 3', 'E640', (1, 3), "'*=' is not part of the language", 'the projections are = += max= min= avg= count='),
    ('Y -= 3', 'E640', (1, 3), "'-=' is not part of the language", 'the projections are = += max= min= avg= count='),
    ('Y sum= X[i]', 'E647', (1, 3), "there is no projection sum=", 'write +='),
    ('Y = A ** 2', 'E640', (1, 7), "'**' is not part of the language", 'a power is written ^'),
    ('Y = = 3', 'E659', (1, 5), "a value is expected, got '='", 'write one sign: = != < <= > >='),
    ('P(x) <- <- Q(x)', 'E640', (1, 9), "a value is expected, got '<-'", ''),
    ('P(Bob, Charlie), P(A, B)', 'E657', (1, 18), "two facts are separated by ','", "write each statement on a line of its own, or ';' between them"),
    ('P(x,y), Q(y)', 'E645', (1, 9), 'this list of literals says nothing', 'a question ends in ?'),
    ('x < 3', 'E645', (1, 1), 'a comparison is no statement', 'comparisons stand in the body of a rule: Old(x) <- Age(x, n), n > 60'),
    ('Y = X[i..3]', 'E640', (1, 8), "'..' is not part of the language", 'a range is written 4:8'),
    ('P(1..3)', 'E640', (1, 3), "'..' is not part of the language", 'a range is written 4:8'),
    ('Y = 2x', 'E643', (1, 5), 'a name does not begin with a digit', 'write "2x" for a name, and 2 * x for a product'),
    ('P(3rd)', 'E643', (1, 3), 'a name does not begin with a digit', 'write "3rd" for a name, and 2 * x for a product'),
    ('X(p,t) = "C:\\data"', 'E642', (1, 10), 'a string has an unknown escape: \\d', 'write \\\\ for a backslash, and / in paths'),
    ('Y = Scale(A[i] + B[i])', 'E648', (1, 11), 'a place of Scale holds a value: A[i]', 'a place holds an index: a variable, a constant, x+1 or 4:8; for a product write Scale * (...)'),
    ('P(Bob,\nCharlie', 'E641', (1, 2), "'(' is not closed", "write ')' where it ends"),
    ('\tY = $', 'E643', (1, 6), "'$' is not part of the language", "names are letters, digits, _ and '"),
    ('Y = A B = C', 'E657', (1, 9), "an operator or the end of the statement is expected, got '='", "write each statement on a line of its own, or ';' between them"),
    ('A = 1 B = 2', 'E657', (1, 9), "an operator or the end of the statement is expected, got '='", "write each statement on a line of its own, or ';' between them"),
    ('P(a,b) <- Q(a,b). R(x)', 'E644', (1, 21), 'a fact has no variables, but x is an index variable here', 'a constant is written "x" or X'),
    ('Y[i] = X[i.]  + X[i+1.]', 'E648', (1, 21), 'a place of X holds 1.0, which is no whole number', 'an index is a whole number; write "1.0" for a name'),
    ('X[1:3] = 3', 'E647', (1, 3), 'a left side cannot be a range: 1:3', 'write an index variable, and the range on the right'),
    ('Y ← X', 'E643', (1, 3), "'←' is not part of the language", 'write <-'),
    ('P(x) <- Q(x), x ≤ 3', 'E643', (1, 17), "'≤' is not part of the language", 'write <='),
    ('Y = A @ B', 'E643', (1, 7), "'@' is not part of the language", 'matrices are multiplied by their indices: A[i,j] B[j,k]'),
    ('Y = {1,2}', 'E643', (1, 5), "'{' is not part of the language", 'lists are written in [ ]'),
    ('?', 'E640', (1, 1), "a value is expected, got '?'", 'a question is what is asked for and one ?: Parent(x, Alice)?'),
    ('.', 'E640', (1, 1), "a statement is expected before '.'", ''),
    (', P(x)', 'E640', (1, 1), "a value is expected, got ','", ''),
    ('P(x) <- Q(x)) ', 'E641', (1, 13), "')' closes nothing", "remove it, or write '(' before it"),
    ("Y = 'abc", 'E642', (1, 5), 'a quoted string is not closed on its line', "write ' where it ends; a line break inside is written \\n"),
    ('"out.csv" = A B', 'E647', (1, 13), 'only a tensor or a relation is written to a file', 'write "out.csv" = Anc(x,y)'),
    ('Y = X(i,', 'E641', (1, 6), "'(' is not closed", "write ')' where it ends"),
    ('Y = if x', 'E658', (1, 5), "'if' is not part of the language", 'a rule is written head <- body'),
    ('P(x) :- Q(x)\n :- R(x)', 'E657', (2, 2), "',' is expected, got ':-'", "write each statement on a line of its own, or ';' between them"),
    ('Y[i] = = W', 'E659', (1, 8), "a value is expected, got '='", 'write one sign: = != < <= > >='),
    ('P(,)', 'E640', (1, 3), "a value is expected, got ','", "remove the ',', or write what is missing"),
    ('P(x,,y)?', 'E640', (1, 5), "a value is expected, got ','", "remove the ',', or write what is missing"),
    ('Y = (A, B)', 'E640', (1, 7), "')' is expected, got ','", ''),
    ('Y = ()', 'E653', (1, 5), 'parentheses are empty', ''),
    ('M[i] = 3 if x', 'E658', (1, 10), "'if' is not part of the language", 'a rule is written head <- body'),
    ("P('it's')", 'E642', (1, 7), 'a string stands beside something else', 'write \',\' between two places, and \\\' or \\" for a quote inside a string'),
    ('P(x) <= Q(x)', 'E645', (1, 1), 'a comparison is no statement', 'a rule is written with <-: P(x) <- ...'),
    ('P(x) => Q(x)', 'E640', (1, 6), "'=>' is not part of the language", 'the head stands first: head <- body'),
    ('P(x) if Q(x)', 'E658', (1, 6), "'if' is not part of the language", 'a rule is written head <- body'),
    ('Y[i] = W[i,j] . X[j]', 'E645', (1, 17), 'this says nothing: it is neither asked for nor defined', 'write X[j]? to ask for it'),
    ('Y: 3', 'E640', (1, 2), "an operator or the end of the statement is expected, got ':'", ''),
    ('P((A,B))', 'E640', (1, 5), "')' is expected, got ','", ''),
    ('P([A,B])', 'E640', (1, 4), "a number is expected, got 'A'", 'a list holds numbers; names are kept by facts'),
    ('P(A', 'E641', (1, 2), "'(' is not closed", "write ')' where it ends"),
    ('a(x)[i] = 3', 'E648', (1, 5), 'indices follow the name of a tensor', "indices stand in one pair of brackets: X[i,j]; give a function's value a name of its own to index it"),
    ('Y[i,j = 3', 'E641', (1, 2), "'[' is not closed", "write ']' where it ends"),
    ('Parent(Bob Charlie)', 'E644', (1, 8), 'a fact cannot hold Bob*Charlie', "write ',' between two places"),
    ('Parent Bob Charlie', 'E645', (1, 1), 'this says nothing: it is neither asked for nor defined', 'a fact is written Parent(Bob, Charlie)'),
    ('Parent(Bob; Charlie)', 'E640', (1, 11), "',' or ')' is expected, got ';'", "write ',' between places"),
    ('while x: y', 'E658', (1, 1), "'while' is not part of the language", 'recursion is written as a rule that mentions its head'),
    ('X[i] += ', 'E640', (1, 8), 'a value is expected, got the end of the statement', 'write what is missing, or remove the operator'),
    ('Y = W[i] X[i] where i > 3', 'E658', (1, 15), "'where' is not part of the language", 'conditions stand in the body of a rule: P(x) <- Q(x), x > 3'),
    ('∀x P(x)', 'E643', (1, 1), "'∀' is not part of the language", ''),
    ('P(x) <- Q(x); R(x)', 'E644', (1, 17), 'a fact has no variables, but x is an index variable here', 'a constant is written "x" or X'),
    ('P(x) <- Q(x), x =< 3', 'E659', (1, 17), "'=<' is not part of the language", 'write <='),
    ('Y[i] max = X[i]', 'E647', (1, 6), "'max' is not part of a left side", 'write max= without a space'),
    ('P(_)', 'E644', (1, 3), 'a fact has no variables, but _1 is an index variable here', 'a question ends in ?: P(_1)?'),
    ("P('a' 'b')", 'E642', (1, 7), 'a string stands beside something else', 'write \',\' between two places, and \\\' or \\" for a quote inside a string'),
    ('Y = X[ ]', 'E653', (1, 6), 'brackets are empty', 'a scalar is written without brackets: X'),
    ('Y = 3 + * 4', 'E640', (1, 9), "a value is expected, got '*'", 'write one operator between two values'),
    ('P(x) <- Q(x,)', 'E640', (1, 13), "a value is expected, got ')'", "remove the ',' before it"),
    ('W = [1, 2,]', 'E640', (1, 11), "a number is expected, got ']'", "remove the ',' before it"),
    ('P(x) <- Q(x) <- R(x)', 'E657', (1, 14), "',' is expected, got '<-'", "write each statement on a line of its own, or ';' between them"),
    ('P(a, b) = 3 <- Q(a)', 'E647', (1, 1), 'both = and <- stand in one statement', 'a rule has <-, an equation has ='),
    ('Y = A; Z = $', 'E643', (1, 12), "'$' is not part of the language", "names are letters, digits, _ and '"),
    ('A = 1\n\nB = 2 +\n', 'E640', (3, 8), 'a value is expected, got the end of the statement', 'write what is missing, or remove the operator'),
    ('A = 1\n  P(A,\n  b)', 'E644', (3, 3), 'a fact has no variables, but b is an index variable here', 'a constant is written "b" or B'),
    ('Y = X[3]]', 'E641', (1, 9), "']' closes nothing", "remove it, or write '[' before it"),
    ('Y = "a\\q"', 'E642', (1, 5), 'a string has an unknown escape: \\q', 'write \\\\ for a backslash, and / in paths'),
    ('\xa0Y = ²', 'E643', (1, 6), "'²' is not part of the language", 'write ^2'),
    ('Y[3.] = 2', 'E648', (1, 3), 'a place of Y holds 3.0, which is no whole number', 'an index is a whole number; write "3.0" for a name'),
    ('Y[*3] = 2', 'E648', (1, 4), 'only an index variable can be virtual, not 3', 'write *t or *t+1'),
    ('Y = P(x) , 3', 'E646', (1, 12), "an equation has one value, but a ',' follows it", 'the factors of a product are written side by side: W[i,j] X[j]'),
]
# fmt: on


@pytest.mark.parametrize(("text", "code", "place", "message", "hint"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(text, code, place, message, hint):
    with pytest.raises(FormatError) as caught:
        parse(text, "family.tl")
    found = caught.value.diagnostic
    assert (found.code, (found.location.line, found.location.column), found.message) == (code, place, message)
    assert (found.suggestions[0] if found.suggestions else "") == hint
    assert found.location.file == "family.tl"
    assert found.code in FAULTS
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_an_error_shows_the_line_and_a_caret():
    with pytest.raises(FormatError) as caught:
        parse("# family\n\tParent(bob, Charlie)", "family.tl")
    assert str(caught.value).splitlines() == [
        "a fact has no variables, but bob is an index variable here",
        "  at family.tl:2:9",
        "    Parent(bob, Charlie)",
        "           ^",
        '  hint: a constant is written "bob" or Bob',
        "  hint: a question ends in ?: Parent(bob, Charlie)?",
    ]


def test_a_long_line_is_cut_around_the_caret():
    text = "Y = " + "A + " * 60 + "$ + " + "B + " * 60
    with pytest.raises(FormatError) as caught:
        parse(text)
    line, caret = str(caught.value).splitlines()[2:4]
    assert len(line) < 160
    assert line[caret.index("^")] == "$"
