"""Reading expressions in logic notation."""

from __future__ import annotations

import json
import linecache
import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple, NoReturn

from ..diagnostics import SourceLocation, clean, value_text
from ..errors import FormatError, GraphError, nearest
from .expr import ARITHMETIC, COMPARISONS, CONNECTIVES, FUNCTIONS, QUANTIFIERS, Term, TLExpr
from .notation import ASCII, BINDS, CALLS, RIGHT, UNICODE, WORDS

_SYMBOLS = {
    **{sign: kind for style in (UNICODE, ASCII) for kind, sign in style.symbols.items() if kind != "negative"},
    "&&": "and", "/\\": "and", "||": "or", "\\/": "or", "!": "not", "=>": "imply", "<=>": "iff", "==": "equal",
    "·": "multiply", "^": "power",
}  # fmt: skip
_FUNCTIONS = {word: kind for kind, word in CALLS.items()}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<string>\"(?:[^\"\\]|\\.)*\"|'[^'\\]*')"
    r"|(?P<name>\??[^\W\d]\w*'*)"
    r"|(?P<symbol><->|<-|:-|←|<=>|->|=>|==|!=|<=|>=|&&|\|\||/\\|\\/|\*\*|[∧&∨|¬~!→↔⊕∃∀=≠<≤>≥+\-*·/^(),.:∈]))"
)


class Token(NamedTuple):
    """A word of the notation and where it stands."""

    kind: str
    text: str
    at: int


class _Pending(NamedTuple):
    """An operator, or an opening, that waits for what comes after it."""

    kind: str
    binds: int
    arity: int
    terms: tuple[Term, ...] = ()
    at: int = 0


class _Bound(NamedTuple):
    """A variable in scope: its domain, and whether a capitalised word stands for it without ``?``."""

    domain: str | None
    bare: bool = True


def parse_expr(text: str, domains: Mapping[str, str] | None = None) -> TLExpr:
    """Read an expression in logic notation: ``∀ ∃ ∧ ∨ ¬ → ↔ ⊕``, or ``forall exists & | ~ -> <-> xor``.

    In a predicate lower-case names are variables; capitalised words, quoted text and numbers are constants; ``?X`` is a variable
    whatever its case. A quantifier reaches as far right as it can. ``domains`` gives the domains of variables
    by name; a bound one may say its own: ``∀x∈Person. mortal(x)``. A predicate or a domain whose name is not one word, or is a word
    of the notation, stands in quotes: ``"has child"(x)``. What is wrong with an expression later on is shown in its text.

    >>> expr = parse_expr("∀x. person(x) → mortal(x)")
    >>> expr == parse_expr("forall x. person(x) -> mortal(x)")
    True
    >>> print(expr)
    ∀x. person(x) → mortal(x)
    """
    if not isinstance(text, str):
        raise FormatError(f"an expression is read from text, got {value_text(text)}", code="E301")
    if domains is not None and not isinstance(domains, Mapping):
        hint = "write domains={'x': 'Person'}"
        raise GraphError(f"domains are given by variable, got {value_text(domains)}", hint, code="E301")
    return _Reader(text, dict(domains or {})).read()


MAX_DIGITS = 308  # of an integer; no float is larger
MAX_TEXTS = 256  # whose lines errors can show
_files: dict[str, str] = {}  # by text, the one used longest ago first
_numbers = count(1)


def text_file(text: str) -> str:
    """Return a file name for a text under which errors find its lines."""
    name = _files.pop(text, None) or f"<expression {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, [f"{line}\n" for line in text.split("\n")], name)
    _files[text] = name
    for old in list(_files)[:-MAX_TEXTS]:
        linecache.cache.pop(_files.pop(old, ""), None)
    return name


class _Reader:
    """Reads by operator precedence with a stack of its own, so that depth costs nothing."""

    def __init__(self, text: str, domains: dict[str, str]) -> None:
        self.text = text
        self.file = text_file(text)
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.tokens = self._tokens()
        self.at = 0
        self.operands: list[TLExpr] = []
        self.waiting: list[_Pending] = []
        self.domains = domains
        self.scope = {name: _Bound(domain) for name, domain in domains.items()}
        self.hidden: list[dict[str, _Bound | None]] = []  # what each open quantifier shadows

    def _tokens(self) -> list[Token]:
        found: list[Token] = []
        if clean(self.text) != self.text:
            half = next(n for n, sign in enumerate(self.text) if clean(sign) != sign)
            place, source = self.line_of(half)
            message = "the text has half of a surrogate pair, which is no text"
            raise FormatError(message, "give text that UTF-8 can hold", code="E231", location=place, source=source)
        position, end = 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None:
                skipped = len(self.text) - len(self.text[position:].lstrip())
                self.fail(skipped, f"{self.text[skipped]!r} is not part of the notation")
            group = match.lastgroup or ""
            word = match.group(group)
            found.append(Token("word" if group == "name" and word in WORDS else group, word, match.start(group)))
            position = match.end()
        found.append(Token("end", "", end))
        return found

    def fail(self, at: int, reason: str, *hints: str) -> NoReturn:
        place, source = self.line_of(at)
        raise FormatError(f"cannot read the expression: {reason}", *hints, code="E603", location=place, source=source)

    def line_of(self, at: int) -> tuple[SourceLocation, str]:
        """Return a place in the text, and the line that it is on."""
        place = self.place(at).with_file("<expression>")
        return place, self.text[self.starts[(place.line or 1) - 1] :].split("\n", 1)[0]

    def place(self, at: int) -> SourceLocation:
        line = bisect_right(self.starts, at)
        return SourceLocation(self.file, line, at - self.starts[line - 1] + 1)

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def read(self) -> TLExpr:
        while True:
            if not self._operand():
                continue  # a prefix: its operand comes next
            while not self._operator():
                if self.token.kind != "end":
                    continue
                self._reduce(-1)
                if self.waiting:
                    kind, at = self.waiting[-1].kind, self.waiting[-1].at
                    self.fail(at, "this is not closed" if kind in ("(", "call") else f"{kind!r} is not finished")
                return self.operands[0]

    def _operand(self) -> bool:
        """Read a prefix (False) or a whole operand (True)."""
        token = self.take()
        meaning = _SYMBOLS.get(token.text, "") if token.kind == "symbol" else token.text if token.kind == "word" else ""
        if meaning in QUANTIFIERS:
            self._quantifier(meaning, token)
            return False
        if meaning == "subtract" and self._signed():
            return self._constant(-self._number(self.take()), token)
        if meaning in ("not", "subtract"):
            kind = "not" if meaning == "not" else "negative"
            self.waiting.append(_Pending(kind, BINDS[kind], 1, at=token.at))
            return False
        if token.text == "(" or meaning == "if":
            self.waiting.append(_Pending(token.text, -2, 0, at=token.at))
            return False
        if token.kind == "number" or token.text in ("true", "false", "inf", "nan"):
            return self._constant(self._number(token), token)
        if token.kind == "name":
            return self._named(token)
        if token.kind == "string" and self.token.text == "(":
            return self._predicate(self._unquoted(token, "a predicate"), token)
        shown = repr(token.text) if token.kind != "end" else "the end"
        self.fail(token.at, f"a predicate, a number or '(' is expected, got {shown}")

    def _constant(self, value: Any, token: Token) -> bool:
        self.operands.append(TLExpr("constant", value=value, location=self.place(token.at)))
        return True

    def _number(self, token: Token) -> Any:
        """Return the number, or the truth value, that a word stands for."""
        if not token.text.isdigit():
            return token.text == "true" if token.text in ("true", "false") else float(token.text)
        if len(token.text) > MAX_DIGITS:
            self.fail(token.at, f"a number of {len(token.text):,} digits is too long", "write it as 1e300, or inf")
        return int(token.text)

    def _signed(self) -> bool:
        """Tell whether a sign belongs to the number after it: -2 is a number, -2 ** 2 is -(2 ** 2)."""
        after = self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        return (self.token.kind == "number" or self.token.text == "inf") and _SYMBOLS.get(after.text) != "power"

    def _named(self, token: Token) -> bool:
        if token.text in _FUNCTIONS and self.token.text == "(":
            self.take()
            self.waiting.append(_Pending("call", -2, 1, (Term.const(_FUNCTIONS[token.text]),), token.at))
            return False
        if self._equates(token):
            return self._same(token)
        if token.text.startswith("?"):
            hint = "write it in a predicate: p(?X)"
            self.fail(token.at, f"{token.text} is a variable, which cannot stand alone", hint)
        return self._predicate(token.text, token)

    def _equates(self, token: Token) -> bool:
        """Tell whether a name stands in x = y or x ≠ y, where both are terms; p() = q() compares predicates."""
        if _SYMBOLS.get(self.token.text) not in ("equal", "not_equal") or self.at + 2 > len(self.tokens):
            return False
        other, after = self.tokens[self.at + 1], self.tokens[min(self.at + 2, len(self.tokens) - 1)]
        if other.kind == "number":
            return token.text.startswith("?") or token.text in self.scope
        return other.kind in ("name", "string") and after.text != "("

    def _same(self, token: Token) -> bool:
        self.at -= 1
        first = self._argument()
        sign = self.take()
        second = self._argument()
        if not first.is_variable and not second.is_variable:
            self.fail(token.at, "= compares a variable with something; these are two constants")
        place = self.place(token.at)
        equality = TLExpr("same", terms=(first, second) if first.is_variable else (second, first), location=place)
        self.operands.append(equality if _SYMBOLS[sign.text] == "equal" else TLExpr("not", (equality,), location=place))
        return True

    def _predicate(self, name: str, token: Token) -> bool:
        terms: list[Term] = []
        if self.token.text == "(":
            self.take()
            while self.token.text != ")":
                terms.append(self._argument())
                if self.token.kind == "end":
                    self.fail(self.token.at, f"the '(' of {token.text} is not closed", "write ')' where it ends")
                if self.token.text not in (")", ","):
                    shown = repr(self.token.text)
                    self.fail(self.token.at, f"',' is expected between the arguments of {token.text}, got {shown}")
                if self.token.text == ",":
                    self.take()
            self.take()
        self.operands.append(TLExpr("pred", name=name, terms=tuple(terms), location=self.place(token.at)))
        return True

    def _unquoted(self, token: Token, what: str = "") -> str:
        try:
            text = json.loads(token.text) if token.text[0] == '"' else token.text[1:-1]
        except ValueError:
            self.fail(token.at, f"{token.text} has an escape that cannot be read")
        if what and not text:
            self.fail(token.at, f"{what} needs a name")
        return str(text)

    def _argument(self) -> Term:
        token = self.take()
        if token.kind == "string":
            return Term.const(self._unquoted(token))
        if token.kind == "number" and token.text.isdigit():
            return Term.const(self._number(token))
        if token.text == "-" and self.token.kind == "number" and self.token.text.isdigit():
            return Term.const(-self._number(self.take()))
        if token.kind != "name":
            hint = "formulas cannot be nested in predicates"
            self.fail(token.at, f"an argument is a variable or a constant, got {token.text!r}", hint)
        name = token.text.removeprefix("?")
        known = self.scope.get(name)
        if token.text[0] == "?" or not name[0].isupper() or (known is not None and known.bare):
            return Term.var(name, known.domain if known else None)
        return Term.const(name)

    def _quantifier(self, kind: str, opening: Token) -> None:
        bound: dict[str, _Bound] = {}
        colon: Token | None = None
        while self.token.text != ".":
            token = self.take()
            if token.text == "," and bound:
                continue
            if token.text == "(" and colon is not None:  # forall x: p(x)
                message = f"a dot ends the variables of {kind}, not {colon.text!r}"
                written = f"{' '.join(bound)}. {self.tokens[self.at - 2].text}(...)"
                self.fail(colon.at, message, f"write {kind} {written}")
            if token.kind != "name":
                sign = "∀" if kind == "forall" else "∃"
                message = f"{kind} is followed by variables and a dot, got {token.text!r}"
                self.fail(token.at, message, f"a dot ends the variables: {sign}x. p(x)")
            name = token.text.removeprefix("?")
            if token.text == "in" and bound and self.token.kind == "name":  # would be two more variables
                hint = f"write {kind} {[*bound][-1]}:{self.token.text}. p(...)"
                self.fail(token.at, "a colon stands before the domain of a variable, not 'in'", hint)
            if name in bound:
                self.fail(token.at, f"{kind} names a variable twice: {name}")
            domain = self.domains.get(name)
            colon = self.take() if self.token.text in (":", "∈") else None
            if colon is not None:
                named = self.take()
                if named.kind not in ("name", "string") or named.text[0] == "?":
                    self.fail(named.at, "a domain is a name, as in ∀x∈Person. p(x)")
                domain = named.text if named.kind == "name" else self._unquoted(named, "a domain")
            bound[name] = _Bound(domain, token.text == name)
        if not bound:
            self.fail(self.token.at, f"{kind} needs a variable", "write ∀x. p(x)")
        self.take()
        terms = tuple(Term.var(name, b.domain) for name, b in bound.items())
        self.waiting.append(_Pending(kind, BINDS[kind], 1, terms, opening.at))
        self.hidden.append({name: self.scope.get(name) for name in bound})
        self.scope.update(bound)

    def _operator(self) -> bool:
        """Read what may follow an operand; True where another operand must come next."""
        token = self.token
        if token.kind == "end":
            return False
        self.take()
        if token.text in (")", ",") or (token.kind == "word" and token.text in ("then", "else")):
            return self._close(token)
        kind = _SYMBOLS.get(token.text) if token.kind == "symbol" else token.text if token.kind == "word" else None
        if token.text in ("<-", ":-", "←"):
            hint = "tl.Rule(text) makes it; tl.compile takes it as it is"
            self.fail(token.at, "this is a rule, not an expression", hint)
        if kind not in CONNECTIVES + ARITHMETIC + COMPARISONS:
            near = nearest(token.text, ["and", "or", "xor"])
            self.fail(token.at, f"a connective is expected before {token.text!r}", near[0])
        level = BINDS[kind]
        self._reduce(level + (kind in RIGHT))
        before = self.operands[-1].kind if self.tokens[self.at - 2].text != ")" else ""
        if kind in COMPARISONS and before in COMPARISONS:
            self.fail(token.at, "comparisons do not chain", "write a < b & b < c")
        self.waiting.append(_Pending(kind, level, 2, at=token.at))
        return True

    def _close(self, token: Token) -> bool:
        self._reduce(-1)
        opening = self.waiting.pop() if self.waiting else _Pending("", 0, 0)
        match (token.text, opening.kind):
            case (")", "("):
                return False
            case (")", "call"):
                self._call(opening)
                return False
            case (",", "call"):
                self.waiting.append(opening._replace(arity=opening.arity + 1))
                return True
            case ("then", "if"):
                self.waiting.append(opening._replace(kind="then"))
                return True
            case ("else", "then"):
                self.waiting.append(_Pending("if", BINDS["if"], 3, at=opening.at))
                return True
        self.fail(token.at, f"{token.text!r} closes nothing here")

    def _call(self, opening: _Pending) -> None:
        kind = str(opening.terms[0].name)
        wanted = 1 if kind in FUNCTIONS else 2
        if opening.arity != wanted:
            self.fail(opening.at, f"{CALLS[kind]} takes {wanted} value(s), got {opening.arity}")
        self._make(kind, wanted, at=opening.at)

    def _reduce(self, level: int) -> None:
        """Apply the operators that bind at least as tightly as what comes next."""
        while self.waiting and self.waiting[-1].binds >= max(level, 0):
            top = self.waiting.pop()
            self._make(top.kind, top.arity, top.terms, top.at)
            if top.kind in QUANTIFIERS:
                for name, outer in self.hidden.pop().items():
                    if outer is None:
                        del self.scope[name]
                    else:
                        self.scope[name] = outer

    def _make(self, kind: str, arity: int, terms: tuple[Term, ...] = (), at: int = 0) -> None:
        parts = tuple(self.operands[len(self.operands) - arity :])
        del self.operands[len(self.operands) - arity :]
        self.operands.append(TLExpr(kind, parts, terms=terms, location=self.place(at)))
