"""The forms of statements: what was written becomes a fact, a rule, an equation, a question, or a file read or written."""

from __future__ import annotations

from typing import Any, NoReturn

from . import syntax as s
from .format import shortened, text_of
from .syntax_errors import COMMENTS, ONE_LINE
from .tokens import Token
from .tree_builder import refuse

_PROJECTIONS = {"max": "max=", "min": "min=", "avg": "avg=", "mean": "avg=", "count": "count=", "sum": "+="}


def form(parts: list[Any]) -> s.Statement | s.Tensor:
    """Return the statement that the parts say; a fact is its tensor.

    The parts are literals alone, literals and ``?``, a head with ``<-`` and a body, or a head with a projection and a value.
    """
    literals: list[s.Expression] = parts[0]
    at = literals[0].at
    if len(parts) == 1:
        return _plain(literals)
    sign: Token = parts[1]
    if sign.type == "QUESTION":
        if isinstance(literals[0], s.Variable) and len(literals) == 1:  # grand?, a tensor whatever its case
            return s.Query((s.Tensor(literals[0].name, at=at),), at=at)
        return s.Query(tuple(_asked(literal) for literal in literals), at=at)
    if len(literals) > 1:
        hint = "write a rule for each head" if sign.type == "ARROW" else "write an equation for each left side"
        refuse(literals[1], "E647", f"one tensor stands before {sign.text}, not {len(literals)}", hint)
    if sign.type == "ARROW":
        return s.Rule(_rule_head(literals[0], sign), tuple(_literal(literal) for literal in parts[2]), at=at)
    return s.Equation(_equation_head(literals[0]), sign.text, parts[2], at=at)


def _plain(literals: list[s.Expression]) -> s.Statement | s.Tensor:
    first = literals[0]
    if len(literals) > 1:
        _refuse_list(literals)
    match first:
        case s.Comparison(operator="=", left=s.Text(value=path), right=right):
            if not isinstance(right, s.Tensor):
                refuse(right, "E647", "only a tensor or a relation is written to a file", 'write "out.csv" = Anc(x,y)')
            return s.Write(path, right, at=first.at)
        case s.Comparison(operator="=", left=left, right=s.Text(value=path)):
            return s.Read(_equation_head(left), path, at=first.at)
        case s.Comparison(operator="=", left=s.Tensor(boolean=True) as left, right=s.Number(value=number) as right) if (
            number not in (0, 1)
        ):
            brackets = f"{left.name}[{', '.join(map(text_of, left.places))}]" if left.places else left.name
            message = f"{left.name}(...) is true or false, and cannot be {text_of(right)}"
            refuse(right, "E830", message, f"brackets hold numbers: {brackets} = {text_of(right)}")
        case s.Comparison(operator="=", left=left, right=right):
            return s.Equation(_equation_head(left), "=", right, at=first.at)
        case s.Comparison(operator="=="):
            refuse(first, "E659", "'==' compares, and a comparison is no statement", "an equation has one =")
        case s.Comparison(operator=sign, left=left, right=right):
            hint = "comparisons stand in the body of a rule: Old(x) <- Age(x, n), n > 60"
            if sign == "<=" and isinstance(left, s.Tensor) and left.boolean:
                hint = f"a rule is written with <-: {text_of(left)} <- ..."
            if sign == "<" and isinstance(right, s.Negative) and isinstance(left, s.Tensor) and left.boolean:
                hint = f"the sign of a rule has no space in it: {text_of(left)} <- ..."
            refuse(first, "E645", "a comparison is no statement", hint)
        case s.Call(function=name):
            hint = f"give its value a name, Y = {name}(...), and ask for it: Y?"
            refuse(first, "E655", f"{name} is a function, so this is no fact", hint)
        case s.Tensor(boolean=True):
            return _fact(first)
        case s.Product():
            _refuse_product(first)
    _refuse_nothing(first)


def _fact(atom: s.Tensor) -> s.Tensor:
    names = s.variables(atom)
    if names:
        name = names[0]
        first = next(p for p in atom.places if name in s.variables(p))
        hints = [f"a question ends in ?: {text_of(atom)}?"]
        if not name.startswith("_"):
            hints.insert(0, f'a constant is written "{name}" or {name[0].upper()}{name[1:]}')
        listed = ", ".join(names)
        are = "is an index variable" if len(names) == 1 else "are index variables"
        refuse(first, "E644", f"a fact has no variables, but {listed} {are} here", *hints)
    for place in atom.places:
        if not isinstance(place.index, s.Constant) or place.normalised or place.virtual:
            hint = "a place of a fact holds a name, a whole number or a quoted string"
            if isinstance(place.index, s.Arithmetic) and place.index.operator == "*":
                hint = "write ',' between two places"
            refuse(place, "E644", f"a fact cannot hold {text_of(place)}", hint)
    return atom


def _refuse_nothing(value: s.Expression) -> NoReturn:
    shown = text_of(value)
    message, hints = "this says nothing: it is neither asked for nor defined", list[str]()
    match value:
        case s.Tensor():
            hints = [f"write {shown}? to ask for it", f"write {shown} = ... to define it"]
        case s.Negative(value=s.Negative()):
            hints = [COMMENTS]
        case s.Product() | s.Operation() | s.Negative():
            hints = [f"give the value a name, Y = {shown if len(shown) < 60 else '...'}, and ask for it: Y?"]
        case s.Not():
            message = "a negated atom is no statement"
            hints = ["'not' stands in the body of a rule: P(x) <- Q(x), not R(x)"]
        case _:
            message = "this says nothing: a statement is a fact, a rule, an equation or a question"
            if isinstance(value, s.Variable):
                hints = ["a '.' ends a statement; the name of a file stands in quotes"]
    refuse(value, "E645", message, *hints)


def _refuse_list(literals: list[s.Expression]) -> NoReturn:
    first, second = literals[0], literals[1]
    if isinstance(first, s.Comparison) and first.operator == "=" and isinstance(first.left, s.Tensor):
        hint = f"a rule is written with <-: {text_of(first.left)} <- ..."
        if not first.left.boolean:
            hint = "the factors of a product are written side by side: W[i,j] X[j]"
        refuse(second, "E646", "an equation has one value, but a ',' follows it", hint)
    if all(isinstance(x, s.Tensor) and x.boolean and not s.variables(x) for x in literals):
        refuse(second, "E657", "two facts are separated by ','", ONE_LINE)
    hints = "a question ends in ?", "a rule is written head <- body"
    refuse(second, "E645", "this list of literals says nothing", *hints)


def _refuse_product(product: s.Product) -> NoReturn:
    if sum(isinstance(f, s.Tensor) and f.boolean for f in product.factors) > 1:
        refuse(product.factors[1], "E657", "two statements stand on one line", ONE_LINE)
    words = [f.name for f in product.factors if isinstance(f, s.Tensor) and not f.places]
    if len(words) == len(product.factors):
        hint = f"a fact is written {words[0]}({', '.join(words[1:])})"
        refuse(product, "E645", "this says nothing: it is neither asked for nor defined", hint)
    _refuse_nothing(product)


def _rule_head(head: s.Expression, sign: Token) -> s.Tensor:
    match head:
        case s.Tensor(places=(), boolean=False):
            return s.Tensor(head.name, (), True, at=head.at)
        case s.Tensor(boolean=False):
            hint = f"write parentheses for a relation, or = for a tensor: {text_of(head)} = ..."
            refuse(head, "E647", f"the head of a rule is a relation, but {text_of(head)} is a tensor", hint)
        case s.Tensor():
            return _plain_head(head)
        case s.Not():
            refuse(head, "E647", "the head of a rule cannot be negated", "write what holds, not what does not")
        case s.Comparison(operator="=", left=s.Tensor()):
            refuse(head, "E647", f"both = and {sign.text} stand in one statement", "a rule has <-, an equation has =")
    _refuse_head(head)
    refuse(head, "E647", "the head of a rule is a relation, such as Ancestor(x,z)")


def _refuse_head(head: s.Expression) -> None:
    """Refuse what can stand before neither <- nor =."""
    match head:
        case s.Call(function=name):
            hint = "give the relation or tensor another name, such as a capitalised one"
            refuse(head, "E655", f"{name} is the name of a function", hint)
        case s.Product(factors=(s.Tensor(boolean=True), *_)):
            refuse(head.factors[1], "E657", "two statements stand on one line", ONE_LINE)


def _equation_head(head: s.Expression) -> s.Tensor:
    _refuse_head(head)
    match head:
        case s.Tensor():
            return _plain_head(head)
        case s.Variable(name=name):
            hint = f"a tensor's name begins with a capital letter: {name.capitalize()} = ..."
            refuse(head, "E647", f"{name} is an index variable and cannot be defined", hint)
        case s.Product(factors=(*_, s.Variable(name=name))) if name in _PROJECTIONS:
            sign = _PROJECTIONS[name]
            if sign != f"{name}=":
                refuse(head.factors[-1], "E647", f"there is no projection {name}=", f"write {sign}")
            refuse(head.factors[-1], "E647", f"{name!r} is not part of a left side", f"write {sign} without a space")
        case s.Product(factors=(s.Tensor(), s.Variable(name=name))):
            hint = f"write one of {', '.join(dict.fromkeys(_PROJECTIONS.values()))}, or ="
            refuse(head.factors[1], "E647", f"there is no projection {name}=", hint)
        case s.Number() | s.Text():
            refuse(head, "E647", f"{text_of(head)} cannot be defined", "the tensor stands on the left: Y = 3")
    message = "one tensor stands on the left of an equation, such as Y[i]"
    refuse(head, "E647", message, "write the expression on the right")


def _plain_head(head: s.Tensor) -> s.Tensor:
    for place in head.places:
        if isinstance(place.index, s.Range):
            hint = "write an index variable, and the range on the right"
            refuse(place, "E647", f"a left side cannot be a range: {text_of(place)}", hint)
    return head


def _asked(literal: s.Expression) -> s.Expression:
    match literal:
        case s.Tensor() | s.Not() | s.Comparison():
            return _literal(literal, query=True)
        case s.Product(factors=factors) if all(isinstance(f, s.Tensor) and f.boolean for f in factors):
            refuse(factors[1], "E646", "the literals of a question are separated by ','", "write P(x), Q(x)?")
    hints = (
        "ask for relations and tensors: P(x, Alice)?, Y[i]?",
        "a value is defined first: Y = ..., then asked for: Y?",
    )
    refuse(literal, "E646", f"a question cannot be the value {shortened(literal)}", *hints)


def _literal(literal: s.Expression, *, query: bool = False) -> s.Expression:
    """Return a literal of a body: an atom, a negated atom or a comparison."""
    match literal:
        case s.Comparison(operator="==", left=left, right=right):
            return s.Comparison("=", left, right, at=literal.at)
        case s.Not() | s.Comparison():
            return literal
        case s.Tensor(places=(), boolean=False) if not query:
            return s.Tensor(literal.name, (), True, at=literal.at)
        case s.Tensor():
            return literal
        case s.Product(factors=factors):
            refuse(factors[1], "E646", "the literals of a body are separated by ','", "write P(x), Q(x)")
        case s.Call(function=name):
            hint = "compare its value, such as sig(X[i]) > 0.5, or write an equation with ="
            refuse(literal, "E646", f"a call of {name} is no literal of a rule", hint)
    hint = "a literal is R(x,y), not R(x,y) or a comparison; values are computed by equations with ="
    refuse(literal, "E646", f"{shortened(literal)} is no literal of a rule", hint)
