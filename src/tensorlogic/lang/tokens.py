"""The words of a program: text cut into tokens, tokens gathered into statements, each with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, NoReturn

import msgspec

from ..diagnostics import SourceLocation
from ..errors import FormatError

MAX_NESTING = 200
MAX_DIGITS = 1024
MAX_PLACES = 64
MAX_TEXT = 2**26
MAX_WORDS = 100_000  # of one statement

FUNCTIONS = frozenset(
    "abs avg ceil clip concat cos count erf exp floor gelu lnorm log log1p max mean min mod relu rmsnorm round rsqrt"
    " sig sigmoid sign silu sin softmax softplus sqrt square step sum tan tanh where".split()
)


class Token(NamedTuple):
    """One word of a program: its kind, its text and where it stands."""

    type: str
    text: str
    start: int
    line: int
    column: int
    file: str | None = None

    @property
    def at(self) -> SourceLocation:
        """The place of the word in the text."""
        return SourceLocation(self.file, self.line, self.column)


class Dialect(NamedTuple):
    """How a text is cut into words."""

    word: re.Pattern[str]  # named groups are the types of tokens
    newline_ends: bool  # whether a statement ends at the end of a line
    convert: Callable[[str, str], tuple[str, str]] | None = None  # another type and text for a word


_SYMBOLS = {
    "(": "LPAR", ")": "RPAR", "[": "LSQB", "]": "RSQB", ",": "COMMA", ":": "COLON", ".": "DOT", ";": "END", "+": "PLUS",
    "-": "MINUS", "*": "STAR", "/": "SLASH", "^": "CARET", "=": "EQUAL", "?": "QUESTION",
}  # fmt: skip
_CLOSES = {")": "(", "]": "["}

TL = Dialect(
    re.compile(
        r"""(?P<SPACE>[^\S\n]+|(?:\#|//).*)
        |(?P<NEWLINE>\n)
        |(?P<PROJECT>(?:max|min|avg|count)=(?!=)|\+=)
        |(?P<NAME>[^\W\d]\w*'*)
        |(?P<NUMBER>[0-9]++\.?[0-9]*+[eE][+-]?[0-9]++|[0-9]*+\.[0-9]++|[0-9]++\.(?![^\S\n]*(?:\n|\#|//|;|\Z))|[0-9]++)
        |(?P<STRING>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
        |(?P<ARROW><-|:-)
        |(?P<COMPARE>==|!=|<=|>=|<|>)
        |(?P<SYMBOL>[][(),:.;+*/^=?-])""",
        re.VERBOSE,
    ),
    newline_ends=True,
)
GOES_ON = r"(?:\s|(?:#|//).*)*+(?:<-|:-|[-<>=!+*/^,?]|(?:max|min|avg|count)=(?!=))"  # after the end of a line
_LEADS = re.compile(GOES_ON)
_ENDS = re.compile(";*+")  # a second end of a statement says nothing
_TRAILS = frozenset("ARROW PROJECT COMPARE EQUAL COMMA COLON PLUS MINUS STAR SLASH CARET NOT".split())


class Source(msgspec.Struct, frozen=True):
    """A text that is read, and the name of its file."""

    text: str
    file: str | None = None

    def fail(self, at: Token | SourceLocation, code: str, message: str, *hints: str) -> NoReturn:
        """Refuse the text, with a caret under a place."""
        place = at.at if isinstance(at, Token) else at
        raise FormatError(message, *hints, code=code, location=place, source=self.shown(place))

    def shown(self, place: SourceLocation) -> str:
        """Return the line of a place, cut where it is long; what is cut off is blank, so that a caret fits."""
        line, column = place.line or 1, place.column or 1
        start = 0
        for _ in range(line - 1):
            start = self.text.index("\n", start) + 1
        end = self.text.find("\n", start)
        text = self.text[start : end if end >= 0 else len(self.text)].expandtabs(1)
        if len(text) <= 160:
            return text
        first, last = max(0, column - 80), column + 60
        part = text[first:last].rstrip() + ("..." if last < len(text) else "")
        return " " * max(0, first - 3) + ("..." if first > 3 else "") + part


def plain_text(text: str) -> str:
    """Return a text without a byte-order mark, and with one kind of line end."""
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def statements(
    source: Source, dialect: Dialect, functions: Collection[str], bulk: Bulk | None
) -> Iterator[list[Token]]:
    """Go through the statements of a text, each a list of tokens.

    Where a statement could begin, ``bulk(position, line)`` may read ahead: it returns the position and line after what it has taken.
    """
    text, file = source.text, source.file
    match_word, convert = dialect.word.match, dialect.convert
    found: list[Token] = []
    opened: list[Token] = []
    position, line, line_start, end = 0, 1, 0, len(text)
    starting = True  # whether a statement could begin here
    while position < end:
        if starting and bulk is not None:
            before = position
            position, line = bulk(position, line)
            line_start = max(line_start, text.rfind("\n", before, position) + 1)
            if position >= end:
                break
            starting = False
        match = match_word(text, position)
        start, column = position, position - line_start + 1
        if match is None:
            raise_stray(source, SourceLocation(file, line, column), position)
        kind, word, position = match.lastgroup or "", match[0], match.end()
        if kind == "SPACE":
            continue
        if kind == "NEWLINE":
            line += 1
            line_start = position
            if found and dialect.newline_ends and not opened and not _goes_on(found[-1], text, position):
                yield found
                found, starting = [], True
            continue
        if convert is not None:
            kind, word = convert(kind, word)
        if kind == "NAME":
            kind = _kind_of_name(word, text, position, functions)
            if not word.isascii() and not is_name(word):  # such as X²
                bad = next(n for n in range(len(word)) if not is_name(word[: n + 1]))
                raise_stray(source, SourceLocation(file, line, column + bad), start + bad)
        elif kind == "SYMBOL":
            kind = _SYMBOLS[word]
            if kind == "DOT" and not opened:
                kind = "END"
        elif kind == "NUMBER" and opened and text[position : position + 1] == "." and word.isdigit():
            word, position = word + ".", position + 1  # no statement ends in brackets
        elif word == ":-" and opened:
            kind, word, position = "COLON", ":", position - 1  # the end of a range that is negative
        token = Token(kind, word, start, line, column, file)
        if kind in _CHECKED:
            _check(source, token, position, opened)
        if kind == "END" and not opened:
            if found:
                yield found
                found = []
            elif word == "." and text[start - 1 : start] != "?":
                source.fail(token, "E640", f"a statement is expected before {word!r}")
            position = _ENDS.match(text, position).end()  # type: ignore[union-attr]  # it always matches
            starting = True
            continue
        found.append(token)
        if kind == "QUESTION" and not opened:
            yield found
            found, starting = [], True
    if opened:
        hint = f"write {')' if opened[-1].text == '(' else ']'!r} where it ends"
        source.fail(opened[-1], "E641", f"{opened[-1].text!r} is not closed", hint)
    if found:
        if not dialect.newline_ends:
            source.fail(found[-1], "E640", "'.' is expected at the end of a clause")
        yield found


Bulk = Callable[[int, int], tuple[int, int]]


def is_name(word: str) -> bool:
    """Tell whether a word can be a name: letters, digits and _ with primes behind, and no digit first.

    >>> is_name("p'"), is_name("X²")
    (True, False)
    """
    return word.rstrip("'").isidentifier()


def _goes_on(last: Token, text: str, position: int) -> bool:
    """Tell whether a statement goes on after the end of a line: the line ends in an operator, or the next begins with one."""
    return last.type in _TRAILS or _LEADS.match(text, position) is not None


def _kind_of_name(name: str, text: str, position: int, functions: Collection[str]) -> str:
    if name == "not":
        return "NOT"
    while position < len(text) and text[position] in " \t":
        position += 1
    following = text[position : position + 1]
    if following == "[":
        return "TENSOR"
    if following != "(":
        return "NAME"
    return "FUNCTION" if name in functions else "RELATION"


_CHECKED = frozenset("NUMBER DOT LPAR LSQB RPAR RSQB".split())


def _check(source: Source, token: Token, position: int, opened: list[Token]) -> None:
    """Refuse a token that cannot stand where it does, and keep the list of open brackets."""
    match token.type:
        case "LPAR" | "LSQB":
            opened.append(token)
            if len(opened) > MAX_NESTING:
                hint = "give a part of it a name of its own"
                source.fail(token, "E649", f"brackets are nested more than {MAX_NESTING} deep", hint)
        case "RPAR" | "RSQB":
            _close(source, token, opened)
        case "NUMBER":
            _check_number(source, token, source.text[position : position + 1])
        case "DOT" if source.text[position : position + 1] == ".":
            source.fail(token, "E640", "'..' is not part of the language", "a range is written 4:8")


def _check_number(source: Source, token: Token, following: str) -> None:
    if len(token.text) > MAX_DIGITS:
        hint = "write a large number as 1e300"
        digits = f"{len(token.text):,} digits"
        source.fail(token, "E650", f"a number of {digits} is too long: up to {MAX_DIGITS:,} are read", hint)
    if following == "." and token.text.endswith("."):
        source.fail(token, "E640", "'..' is not part of the language", "a range is written 4:8")
    if following == "." and "." in token.text:
        source.fail(token, "E640", "a number has one decimal point", "write a space, or *, between two numbers")
    if following.isidentifier():
        word = _WORD.match(source.text, token.start)
        hint = f'write "{word[0]}" for a name, and 2 * x for a product' if word else ""
        source.fail(token, "E643", "a name does not begin with a digit", hint)


_WORD = re.compile(r"\w+")


def _close(source: Source, token: Token, opened: list[Token]) -> None:
    wanted = _CLOSES[token.text]
    if not opened:
        source.fail(token, "E641", f"{token.text!r} closes nothing", f"remove it, or write {wanted!r} before it")
    opening = opened.pop()
    if opening.text != wanted:
        where = f"line {opening.line}, column {opening.column}"
        right = ")" if opening.text == "(" else "]"
        hint = f"write {right!r} before it"
        source.fail(token, "E641", f"{token.text!r} does not close {opening.text!r} of {where}", hint)


_STRAY = {
    sign: hint
    for signs, hint in (
        ("“”„«»", 'write straight quotes: "'),
        ("‘’", "write straight quotes: '"),
        ("&∧", "write ',' between the literals of a body"),
        ("|∨", "write two rules with the same head for 'or'"),
        ("~!¬\\", "write 'not' before an atom"),
        ("←", "write <-"),
        ("→", "write the head first: head <- body"),
        ("≤", "write <="),
        ("≥", "write >="),
        ("≠", "write !="),
        ("·×", "write * or a space"),
        ("−–", "write -"),
        ("…", "a range is written 4:8"),
        ("{}", "lists are written in [ ]"),
        ("%", "comments begin with # or //; the rest of x by 2 is x - x/2*2"),
        ("@", "matrices are multiplied by their indices: A[i,j] B[j,k]"),
        ("²", "write ^2"),
        ("³", "write ^3"),
        ("（", "write ("),
        ("）", "write )"),
        ("，", "write ,"),
        ("$", "names are letters, digits, _ and '"),
    )
    for sign in signs
}


def raise_stray(source: Source, place: SourceLocation, position: int) -> NoReturn:
    """Refuse a character that begins no word."""
    sign = source.text[position]
    if sign in "\"'":
        hint = f"write {sign} where it ends; a line break inside is written \\n"
        source.fail(place, "E642", "a quoted string is not closed on its line", hint)
    hints = [_STRAY[sign]] if sign in _STRAY else []
    if sign == "!" and source.text[:position].endswith("="):
        hints = ["write != for not equal"]
    name = repr(sign) if sign.isprintable() else f"the character U+{ord(sign):04X}"
    if sign in "&|~!¬\\∧∨":
        source.fail(place, "E656", f"{name} is no connective of the language", *hints)
    source.fail(place, "E643", f"{name} is not part of the language", *hints)


HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair, which is no text
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}


def unquoted(raw: str) -> str:
    r"""Return the text that a quoted string stands for; KeyError where an escape is unknown, or half of a surrogate pair.

    >>> unquoted('"a\\tb"')
    'a\tb'
    """
    if "\\" not in raw:
        return raw[1:-1]
    found = _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPES[m[1]], raw[1:-1])
    if HALF.search(found) is None:
        return found
    whole = found.encode("utf-16", "surrogatepass").decode(
        "utf-16", "surrogatepass"
    )  # halves of a pair are one character
    if half := HALF.search(whole):
        raise KeyError(f"u{ord(half[0]):04x}")
    return whole
