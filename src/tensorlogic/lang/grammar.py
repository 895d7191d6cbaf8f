"""Text to the syntax tree: the grammar of the language, and the forms of its statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ..diagnostics import SourceLocation, clean
from ..errors import FormatError, expect
from ..ir.untrusted_text import spot
from .facts import TL_FACTS, Block, FactReader, FactSyntax
from .statements import form
from .syntax import Equation, Module, Number, Part, Statement, Tensor, children
from .syntax_errors import unexpected
from .tokens import (
    FUNCTIONS,
    HALF,
    MAX_NESTING,
    MAX_TEXT,
    MAX_WORDS,
    TL,
    Dialect,
    Source,
    Token,
    plain_text,
    statements,
)
from .tree_builder import Refused, Tree, refuse

if TYPE_CHECKING:
    from lark import Lark

__all__ = ["FUNCTIONS", "parse", "parse_dialect"]

GRAMMAR = """
    start: literals | literals QUESTION | literals ARROW literals | literals PROJECT sum

    literals: literal -> first | literals COMMA literal -> more
    ?literal: sum | sum EQUAL sum -> comparison | sum COMPARE sum -> comparison | NOT sum -> negation

    ?sum: term | sum PLUS term -> operation | sum MINUS term -> operation
    ?term: chain -> product | MINUS term -> negative
    chain: factor -> first | chain factor -> adjacent | chain STAR signed -> more | chain SLASH signed -> quotient
    ?signed: factor | MINUS signed -> negative
    ?factor: atom | atom CARET exponent -> operation
    ?exponent: factor | MINUS exponent -> negative
    ?atom: NUMBER -> number | STRING -> string | NAME -> name | LPAR sum RPAR -> group
        | RELATION LPAR RPAR -> proposition | RELATION LPAR items RPAR -> tensor | TENSOR LSQB items RSQB -> tensor
        | FUNCTION LPAR sums RPAR -> call | list

    items: item -> first | items COMMA item -> more
    item: sum -> place | sum DOT -> place | STAR sum -> place | STAR sum DOT -> place
        | COLON -> range | sum COLON -> range | COLON sum -> range | sum COLON sum -> range
    sums: sum -> first | sums COMMA sum -> more
    list: LSQB elements RSQB
    elements: element -> first | elements COMMA element -> more
    ?element: NUMBER -> number | MINUS NUMBER -> negative_number | list

    %declare NAME RELATION TENSOR FUNCTION NUMBER STRING NOT ARROW PROJECT EQUAL COMPARE QUESTION
    %declare PLUS MINUS STAR SLASH CARET LPAR RPAR LSQB RSQB COMMA COLON DOT
"""


def parse(
    text: str,
    file: str | None = None,
    *,
    functions: Collection[str] = (),
    scalars: Mapping[str, int] | None = None,
    bulk: bool = True,
) -> Module:
    """Read a program; what cannot be read is refused with its place and a hint.

    ``functions`` are names of functions beside those of the language; ``scalars`` are whole numbers that
    stand for their names in facts; ``bulk=False`` reads facts one by one, with the same result.

    >>> parse("Ancestor(x, z) <- Ancestor(x, y), Parent(y, z)").statements[0].head.name
    'Ancestor'
    """
    expect(text, str, "a program is text", 'read a file with tl.load("family.tl")')
    return parse_dialect(text, file, TL, TL_FACTS, FUNCTIONS.union(functions), scalars or {}, bulk)


def parse_dialect(
    text: str,
    file: str | None,
    dialect: Dialect,
    syntax: FactSyntax,
    functions: Collection[str],
    scalars: Mapping[str, int],
    bulk: bool,
) -> Module:
    """Read a program in one of the notations: its words and its facts differ, its grammar does not."""
    if len(text) > MAX_TEXT:
        message = f"a program of {len(text):,} characters is too long: up to {MAX_TEXT:,} are read"
        hint = "keep facts in a CSV or Parquet file"
        raise FormatError(message, hint, code="E652", location=SourceLocation(file))
    text = plain_text(text)
    source = Source(text, file)
    if not text.isascii() and (half := HALF.search(text)):
        message = "the text has half of a surrogate pair, which is no text"
        raise FormatError(
            message, "write the file again as UTF-8", code="E231", **spot(clean(text), half.start(), file)
        )
    facts = FactReader(source, syntax, functions)
    found: list[Statement | Block] = []
    for tokens in statements(source, dialect, functions, facts.take_run if bulk else None):
        statement = _statement(source, tokens)
        if isinstance(statement, Tensor):
            facts.take_fact(statement)
        else:
            found += [*facts.blocks(), statement]
    found += facts.blocks()
    facts.values.update({**_whole_scalars(found), **scalars})
    return Module(tuple(s.facts(facts.values) if isinstance(s, Block) else s for s in found), text, file)


def _whole_scalars(found: Collection[Statement | Block]) -> dict[str, int]:
    """Return the scalars that one equation defines as a whole number: their names in facts stand for it."""
    equations = [s for s in found if isinstance(s, Equation) and not s.head.places and not s.head.boolean]
    times = Counter(s.head.name for s in equations)
    return {
        s.head.name: s.value.value
        for s in equations
        if times[s.head.name] == 1 and isinstance(s.value, Number) and isinstance(s.value.value, int)
    }


@cache
def _parser() -> Lark:
    from lark import Lark  # when a program is read, not when the package starts
    from lark.lexer import Lexer

    class NoLexer(Lexer):
        """Stands where lark expects a lexer: the tokens are cut beforehand, statement by statement."""

        def __init__(self, conf: object) -> None:
            pass

        def lex(self, lexer_state: object, parser_state: object) -> Iterator[Any]:
            return iter(())

    return Lark(GRAMMAR, parser="lalr", lexer=NoLexer, transformer=Tree())


def _statement(source: Source, tokens: list[Token]) -> Statement | Tensor:
    """Return what a statement says; a fact is its tensor."""
    from lark import UnexpectedToken

    if len(tokens) > MAX_WORDS:
        message = f"a statement of {len(tokens):,} words is too long: up to {MAX_WORDS:,} are read"
        hint = 'give numbers from a file, X[i,j] = "x.npy", or from Python: program.bind(X=array)'
        source.fail(tokens[0], "E661", message, hint)
    parser: Any = _parser().parse_interactive()
    _name_blanks(tokens)
    token = tokens[-1]
    try:
        for token in tokens:
            parser.feed_token(token)
        token = token._replace(type="$END")
        statement = form(parser.feed_token(token))
        if len(tokens) > MAX_NESTING:
            _check_depth(statement)
        return statement
    except UnexpectedToken:
        fail = partial(unexpected, source, tokens, token, parser.accepts())
    except Refused as refused:
        fail = partial(source.fail, refused.at, refused.code, refused.message, *refused.hints)
    fail()


def _name_blanks(tokens: list[Token]) -> None:
    """Give each ``_`` of a statement a name of its own: it stands for any value, each time for another."""
    blanks = [n for n, token in enumerate(tokens) if token.text == "_" and token.type == "NAME"]
    if blanks:
        taken = {token.text for token in tokens}
        names = (name for n in count(1) if (name := f"_{n}") not in taken)
        for n in blanks:
            tokens[n] = tokens[n]._replace(text=next(names))


def _check_depth(statement: Part) -> None:
    waiting = [(statement, 0)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MAX_NESTING:
            hint = "give parts of it names of their own; right sides of one left side are added"
            refuse(statement, "E649", f"an expression is nested more than {MAX_NESTING} deep", hint)
        waiting += [(child, depth + 1) for child in children(part)]
