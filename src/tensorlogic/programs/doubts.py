"""What is probably a mistake in a program, though it runs: relations that nothing fills, names that no fact has, absent terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..errors import InputError, TensorLogicError, nearest
from ..lang import syntax as s
from ..lang.evaluate import factors_of
from ..lang.format import text_of
from ..lang.heads import terms_of
from ..lang.strata import is_logical
from .evaluate import Evaluation
from .facts import FactStore

NEAR = 10_000  # names of the facts that one is compared with, to find the word that was meant


def doubts(evaluation: Evaluation, statements: Iterable[s.Statement], facts: FactStore) -> Iterator[TensorLogicError]:
    """Return what is doubtful in statements: as errors, which nobody raises."""
    listed = list(statements)
    empty: set[str] = set()
    for name in evaluation.model.analysis.tensors:
        try:
            evaluation.check_defined([name])
        except InputError as error:
            empty.add(name)
            yield error
    bodies = [part for x in listed if isinstance(x, s.Rule | s.Query) for part in x.body]
    yield from _unknown_names(evaluation, _constants(bodies, empty), set(_given(listed)), facts)
    heads = [c for x in listed if isinstance(x, s.Rule) for c in _constants([x.head]) if _like_a_variable(c, x)]
    values = [part for x in listed if isinstance(x, s.Equation) for part in (x.head, x.value)]
    yield from _unknown_names(evaluation, heads, {c.value for c in _constants([*bodies, *values])}, facts)
    yield from _absent_terms(evaluation, listed)


def _unknown_names(
    evaluation: Evaluation, asked: Iterable[s.Constant], given: Collection[str | int], facts: FactStore
) -> Iterator[TensorLogicError]:
    """Return the names that no fact has and that are not given otherwise, each once."""
    scalars = evaluation.model.analysis.scalars
    wanted: dict[str | int, s.Constant] = {}
    for constant in asked:
        if isinstance(constant.value, str) and (constant.quoted or constant.value not in scalars):
            wanted.setdefault(constant.value, constant)
    columns = [c.names for blocks in facts.blocks.values() for b in blocks for c in b.table.columns if c.names]
    for names in columns if wanted else ():
        for name in wanted.keys() & set(names):
            del wanted[name]
    for name in wanted.keys() & set(given):
        del wanted[name]
    known = {str(n) for names in columns for n in names[:NEAR]} if wanted else ()
    for name, constant in wanted.items():
        text = str(name)
        hints = [h for h in nearest(text, known) if h.startswith("did you mean")]
        if not constant.quoted and (_single_letter(text) or not hints):
            hints = [f"a variable begins with a lower-case letter: {_lower(text)}"]
        yield InputError(f"no fact has the name {name!r}", *hints, code="E777", location=constant.at)


def _like_a_variable(constant: s.Constant, rule: s.Rule) -> bool:
    """Tell whether a constant of a rule's head was probably meant as a variable: a single letter, or one of the body in capitals."""
    name = constant.value
    if not isinstance(name, str) or constant.quoted:
        return False
    return _single_letter(name) or any(_lower(name) in s.variables(part) for part in rule.body)


def _single_letter(name: str) -> bool:
    return len(name.rstrip("0123456789'")) == 1


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _absent_terms(evaluation: Evaluation, statements: Iterable[s.Statement]) -> Iterator[TensorLogicError]:
    """Return the sums under min= and max= one term of which counts as 0 where its relation does not hold."""
    tensors = evaluation.model.analysis.tensors
    for equation in statements:
        if not isinstance(equation, s.Equation) or equation.operator not in ("min=", "max="):
            continue
        terms = [term for _, term in terms_of(equation.value)]
        atoms = [f for t in terms for f in factors_of(t) if isinstance(f, s.Tensor) and is_logical(f, tensors)]
        if len(terms) > 1 and atoms:
            shown = text_of(atoms[0])
            message = f"where {shown} does not hold, its term counts as 0, and {equation.operator} takes the rest"
            hint = f"make it a factor of the whole sum: (... + ...) {shown}"
            yield InputError(message, hint, code="E777", location=atoms[0].at)


def _constants(body: Iterable[s.Expression], passed_over: Collection[str] = ()) -> list[s.Constant]:
    """Return the constants in the places of the atoms of a body, negated ones too; relations may be passed over."""
    atoms = [a for part in body for a in s.walk(part) if isinstance(a, s.Tensor) and a.name not in passed_over]
    return [p.index for a in atoms for p in a.places if isinstance(p.index, s.Constant)]


def _given(statements: Iterable[s.Statement]) -> Iterator[str | int]:
    """Return the names that rules and equations give: those of their heads, unless the body of the rule has to have them first."""
    for statement in statements:
        if isinstance(statement, s.Rule | s.Equation):
            asked = {c.value for c in _constants(statement.body)} if isinstance(statement, s.Rule) else ()
            for place in statement.head.places:
                if isinstance(place.index, s.Constant) and place.index.value not in asked:
                    yield place.index.value
