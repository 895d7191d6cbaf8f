"""Errors in a statement that cannot be parsed: what was expected, in plain words, and what was probably meant."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, NoReturn

from .tokens import Source, Token

ONE_LINE = "write each statement on a line of its own, or ';' between them"
COMMENTS = "a comment begins with # or //, and ends with its line"

# words of other languages: the code of the mistake, and what to write instead
FOREIGN = {
    "and": ("E646", "write ',' between the literals of a body"),
    "or": ("E656", "write two rules with the same head for 'or'"),
    "if": ("E658", "a rule is written head <- body"),
    "else": ("E658", "write two rules with the same head, one with 'not'"),
    "where": ("E658", "conditions stand in the body of a rule: P(x) <- Q(x), x > 3"),
    "def": ("E658", "rules are written head <- body"),
    "import": ("E658", 'a file is read by X(i,j) = "file.csv"'),
    "from": ("E658", 'a file is read by X(i,j) = "file.csv"'),
    "for": ("E658", "an index runs over all of its values by itself"),
    "while": ("E658", "recursion is written as a rule that mentions its head"),
    "lambda": ("E658", "functions are attached from Python"),
    "return": ("E658", "ask for a tensor with ?: Y?"),
    "class": ("E658", "relations need no declaration"),
    "let": ("E658", "write Y = 3"),
    "var": ("E658", "write Y = 3"),
    "const": ("E658", "write Y = 3"),
}
_OPERATORS = frozenset("PLUS MINUS STAR SLASH CARET".split())
_SIGNS = frozenset(("EQUAL", "COMPARE"))
_WORDS = frozenset("NAME RELATION TENSOR FUNCTION NUMBER STRING".split())


class _Mistake(NamedTuple):
    code: str
    hints: tuple[str, ...] = ()
    message: str = ""  # in place of what is expected
    at: Token | None = None


def unexpected(source: Source, tokens: list[Token], token: Token, accepted: Collection[str]) -> NoReturn:
    """Refuse a statement at the token that does not fit."""
    ended = token.type == "$END"
    at = len(tokens) if ended else tokens.index(token)
    found = _recognised(tokens, at, ended, accepted) or _Mistake("E640")
    place = found.at or token
    if ended and found.at is None:  # the caret stands behind the last word
        place = token._replace(column=token.column + len(token.text))
    shown = "the end of the statement" if ended else repr(token.text)
    message = found.message or f"{expected(accepted)} is expected, got {shown}"
    source.fail(place, found.code, message, *found.hints)


def expected(accepted: Collection[str]) -> str:
    """Return in words what may come next.

    >>> expected({"COMMA", "RPAR", "PLUS", "NAME"}), expected({"NAME", "NUMBER", "MINUS", "LPAR"})
    ("',' or ')'", 'a value')
    """
    closing = [word for kind, word in (("COMMA", "','"), ("RPAR", "')'"), ("RSQB", "']'")) if kind in accepted]
    if "PLUS" in accepted:  # a value has been read
        if "$END" in accepted:
            return "an operator or the end of the statement"
        words = closing or ["an operator"]
    elif "NAME" in accepted:
        words = ["a value"]
    elif "NUMBER" in accepted:
        words = ["a number"]
    else:
        words = closing or ["the end of the statement"]
    return " or ".join(words)


def _recognised(tokens: list[Token], at: int, ended: bool, accepted: Collection[str]) -> _Mistake | None:
    """Return the mistake that was probably made, from the words around the one that does not fit."""
    for n, token in enumerate(tokens[: at + 1]):
        beside = n == 0 or tokens[n - 1].type in _WORDS or (n + 1 < len(tokens) and tokens[n + 1].type in _WORDS)
        if token.text in FOREIGN and token.type == "NAME" and beside:
            code, hint = FOREIGN[token.text]
            return _Mistake(code, (hint,), f"{token.text!r} is not part of the language", token)
    before = tokens[at - 1] if at else None
    last = before.type if before else ""
    if ended:
        return _at_end(last)
    token = tokens[at]
    pair = (before.text if before and before.start + len(before.text) == token.start else " ") + token.text
    if pair in ("->", "=>"):
        return _Mistake(
            "E640", ("the head stands first: head <- body",), f"{pair!r} is not part of the language", before
        )
    if pair in ("*=", "/=", "-="):
        hint = "the projections are = += max= min= avg= count="
        return _Mistake("E640", (hint,), f"{pair!r} is not part of the language", before)
    if pair == "**":
        return _Mistake("E640", ("a power is written ^",), "'**' is not part of the language", before)
    after = token.text + (tokens[at + 1].text if at + 1 < len(tokens) else "")
    if at == 0 and after == "/*":
        return _Mistake("E640", (COMMENTS,), "'/*' is not part of the language")
    if after == ":=":
        hint = "an equation is written with =, a rule with <- or :-"
        return _Mistake("E640", (hint,), "':=' is not part of the language")
    if pair == "=<":
        return _Mistake("E659", ("write <=",), "'=<' is not part of the language", before)
    if token.type in ("RPAR", "RSQB"):
        return _closed_early(tokens, at)
    if token.type == "QUESTION" and any(t.type == "ARROW" for t in tokens[:at]):
        hint = "ask for its head, or for its body alone: P(x), Q(x)?"
        return _Mistake("E640", (hint,), "a rule does not end in ?")
    if token.type == "QUESTION":
        hint = "a question is what is asked for and one ?: Parent(x, Alice)?"
        return _Mistake("E640", (hint,)) if "NAME" in accepted else None
    if token.type == "COMMA" and "$END" in accepted and any(t.type == "PROJECT" for t in tokens[:at]):
        return _Mistake("E640", ("factors stand side by side, without a comma: P(x,y) Q(y,z)",))
    if at == 0 and token.type in ("EQUAL", "ARROW", "PROJECT"):
        hint = (
            "a rule begins with its head: P(x) <- Q(x)"
            if token.type == "ARROW"
            else "an equation begins with its left side: Y = ..."
        )
        return _Mistake("E640", (hint,))
    if token.type in _OPERATORS and last in _OPERATORS:
        return _Mistake("E640", ("write one operator between two values",))
    if token.type == "COMMA" and last in ("COMMA", "LPAR", "LSQB"):
        return _Mistake("E640", ("remove the ',', or write what is missing",))
    if token.type in _SIGNS:
        return _second_sign(tokens, at)
    if last == "LSQB" and at > 1 and tokens[at - 2].type in ("RPAR", "RSQB"):
        hint = "indices stand in one pair of brackets: X[i,j]; give a function's value a name of its own to index it"
        return _Mistake("E648", (hint,), "indices follow the name of a tensor", before)
    if "NUMBER" in accepted and "NAME" not in accepted:
        return _Mistake("E640", ("a list holds numbers; names are kept by facts",))
    if last == "NOT" or token.type == "NOT":
        return _Mistake("E640", ("'not' stands before an atom of a body: P(x) <- Q(x), not R(x)",))
    if token.type == "ARROW" and any(t.type in ("ARROW", *_SIGNS) for t in tokens[:at]):
        return _Mistake("E657", (ONE_LINE,)) if last != "ARROW" else None
    if token.type == "END":
        return _Mistake("E640", ("write ',' between places",))
    return _line_goes_on(before, token)


def _at_end(last: str) -> _Mistake:
    if last == "ARROW":
        return _Mistake("E640", ("a rule needs a body; a fact is written without <-",))
    return _Mistake("E640", ("write what is missing, or remove the operator",))


def _closed_early(tokens: list[Token], at: int) -> _Mistake | None:
    before, opener = tokens[at - 1], tokens[at - 2] if at > 1 else tokens[0]
    if before.type == "COMMA":
        return _Mistake("E640", ("remove the ',' before it",))
    if before.type not in ("LPAR", "LSQB"):
        return None
    if opener.type == "TENSOR":
        return _Mistake("E653", (f"a scalar is written without brackets: {opener.text}",), "brackets are empty", before)
    if opener.type == "FUNCTION":
        return _Mistake("E653", (f"write {opener.text}(X[i])",), f"{opener.text} needs a value", before)
    what = "a list needs at least one number" if before.type == "LSQB" else "parentheses are empty"
    return _Mistake("E653", (), what, before)


def _second_sign(tokens: list[Token], at: int) -> _Mistake | None:
    """Tell what a second = or < of a statement, or one after a negation, probably means."""
    token, before = tokens[at], tokens[at - 1] if at else None
    earlier = [t for t in tokens[:at] if t.type in _SIGNS]
    start = max((n for n, t in enumerate(tokens[:at]) if t.type in ("COMMA", "ARROW")), default=-1) + 1
    if tokens[start].type == "NOT":
        return _Mistake("E646", ("a comparison is turned round: x != y, x >= y",), "'not' stands before an atom only")
    if before is not None and before.type in _SIGNS:
        return _Mistake("E659", ("write one sign: = != < <= > >=",))
    if not earlier:
        return None
    if any(t.type in ("PLUS", "MINUS", "COMMA", "ARROW") and t.line < token.line for t in tokens[at - 2 : at]):
        return _line_goes_on(tokens[at - 2], token)
    if token.text in "==" and earlier[0].text in "==" and not any(t.type == "ARROW" for t in tokens):
        return _Mistake("E657", (ONE_LINE,))
    return _Mistake("E659", ("comparisons do not chain: write x < y, y < z",))


def _line_goes_on(before: Token | None, token: Token) -> _Mistake | None:
    if before is None or token.line == before.line:
        return None
    hint = f"line {before.line} ends in {before.text!r}, so the statement goes on here"
    return _Mistake("E640", (hint,)) if before.type not in ("RPAR", "RSQB", "NAME", "NUMBER", "STRING") else None
