"""Where a statement cannot be read on: what was expected in plain words, and what was probably meant."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from .tokens import Source, Token

_VALUES = frozenset("NAME RELATION TENSOR FUNCTION NUMBER STRING".split())
_EXPECTED = {
    "COMMA": "','", "RPAR": "')'", "RSQB": "']'", "QUESTION": "'?'", "ARROW": "'<-'", "EQUAL": "'='", "LPAR": "'('", "LSQB": "'['",
}  # fmt: skip
_OPERATORS = frozenset("PLUS MINUS STAR SLASH CARET COMPARE EQUAL COLON DOT PROJECT ARROW".split())
_PYTHON = {
    "def": "rules are written head <- body", "import": "a file is read by X(i,j) = \"file.csv\"", "from": "a file is read by X(i,j) = \"file.csv\"",
    "for": "an index runs over all of its values by itself", "if": "conditions stand in the body of a rule", "lambda": "functions are attached from Python",
    "while": "recursion is written as a rule that mentions its head", "return": "ask for a tensor with ?: Y?", "class": "relations need no declaration",
    "print": "ask for a tensor with ?: Y?", "let": "write Y = 3", "var": "write Y = 3", "const": "write Y = 3",
}  # fmt: skip


def unexpected(source: Source, tokens: list[Token], token: Token, accepted: Collection[str]) -> NoReturn:
    """Refuse a statement at the token that does not fit."""
    at = next((n for n, t in enumerate(tokens) if t.start == token.start), len(tokens))
    ended = token.type == "$END"
    before = tokens[-1] if ended else tokens[at - 1] if at else None
    shown = "the end of the statement" if ended else repr(token.text)
    wanted = expected(accepted)
    code, hint = _hint(tokens, token, before, accepted)
    if ended:  # the caret stands behind the last word
        token = token._replace(column=token.column + len(token.text))
    source.fail(token, code, f"{wanted} is expected, got {shown}" if wanted else f"{shown} is not expected", *hint)


def expected(accepted: Collection[str]) -> str:
    """Return in words what may come next.

    >>> expected({"COMMA", "RPAR", "PLUS"})
    "',' or ')'"
    """
    found = []
    if _VALUES & set(accepted) and not {"RPAR", "RSQB"} <= set(accepted):
        found.append("a number or a list" if "NAME" not in accepted else "a value")
    if not found or not _OPERATORS & set(accepted):
        pass
    if _OPERATORS & set(accepted):  # a value has just been read
        found = []
    closers = [word for kind, word in _EXPECTED.items() if kind in accepted and kind in ("COMMA", "RPAR", "RSQB")]
    found += closers
    if "LPAR" in accepted and not found and not _OPERATORS & set(accepted):
        found.append("'('")
    if not found and "$END" in accepted:
        found.append("an operator or the end of the statement")
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _hint(tokens: list[Token], token: Token, before: Token | None, accepted: Collection[str]) -> tuple[str, list[str]]:
    """Return the code of a mistake and what to write instead."""
    first = tokens[0]
    last = before.type if before is not None else ""
    if first.text in _PYTHON and first.type in ("NAME", "RELATION"):
        return "E658", [f"{first.text!r} is not part of the language: {_PYTHON[first.text]}"]
    if token.type in ("RPAR", "RSQB") and last in ("LPAR", "LSQB"):
        return "E653", ["a scalar is written without brackets: Y"]
    if token.type in ("RPAR", "RSQB") and last == "COMMA":
        return "E640", ["remove the ',' before it"]
    if token.type == "COMMA" and last == "COMMA":
        return "E640", ["remove one ','"]
    signs = ("EQUAL", "COMPARE")
    if token.type in signs and last not in signs and any(t.type in signs for t in tokens[: tokens.index(token)]):
        return "E659", _chain_hints(tokens, token)
    if last == "MINUS" and token.text in (">", ">="):
        return "E640", ["the head stands first: head <- body"]
    if last in ("LSQB",) and token.type not in ("RSQB",) and len(tokens) > 2:
        behind = tokens[tokens.index(before) - 1].type if before in tokens and tokens.index(before) else ""
        if behind in ("RPAR", "RSQB"):
            return "E648", [
                "indices follow a tensor's name, in one pair of brackets; give a function's value a name of its own"
            ]
    if token.type == "$END":
        if last == "ARROW":
            return "E640", ["a rule needs a body; a fact is written without <-"]
        return "E640", ["the statement goes on after an operator; write what is missing, or remove it"]
    if before is not None and token.line > before.line and last in _OPERATORS | {"COMMA"}:
        return "E640", [f"line {before.line} ends in {before.text!r}, so the statement goes on here"]
    if last == "NOT" or token.type == "NOT":
        return "E640", ["'not' stands before an atom of a body: P(x) <- Q(x), not R(x)"]
    if token.type in ("STAR", "SLASH") and last == token.type:
        return "E640", ["a power is written ^"] if token.type == "STAR" else []
    if token.type == "EQUAL" and last in ("STAR", "SLASH", "MINUS"):
        return "E640", ["the projections are = += max= min= avg= count="]
    if token.type in ("ARROW", "PROJECT") and any(
        t.type in ("ARROW", "PROJECT") for t in tokens[: tokens.index(token)]
    ):
        return "E657", ["write each statement on a line of its own, or ';' between them"]
    return "E640", []


def _chain_hints(tokens: list[Token], token: Token) -> list[str]:
    earlier = next(t for t in tokens if t.type in ("EQUAL", "COMPARE"))
    if any(t.type == "ARROW" for t in tokens) or "<" in token.text + earlier.text or ">" in token.text + earlier.text:
        return ["comparisons do not chain: write x < y, y < z"]
    if token.line > earlier.line:
        return ["the line before goes on here: it ends in an operator, or this one begins with one"]
    return ["write each statement on a line of its own, or ';' between them"]
