"""What is probably a mistake in a program, though it runs: relations that nothing fills, and names that no fact has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..errors import InputError, TensorLogicError, nearest
from ..lang import syntax as s
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
    yield from _unknown_names(evaluation, _constants(bodies, empty), listed, facts)


def _unknown_names(
    evaluation: Evaluation, asked: Iterable[s.Constant], statements: Iterable[s.Statement], facts: FactStore
) -> Iterator[TensorLogicError]:
    """Return the names that no fact has and no other statement gives, each once."""
    scalars = evaluation.model.analysis.scalars
    wanted: dict[str | int, s.Constant] = {}
    for constant in asked:
        if isinstance(constant.value, str) and (constant.quoted or constant.value not in scalars):
            wanted.setdefault(constant.value, constant)
    columns = [c.names for blocks in facts.blocks.values() for b in blocks for c in b.table.columns if c.names]
    for names in columns if wanted else ():
        for name in wanted.keys() & set(names):
            del wanted[name]
    for name in wanted.keys() & set(_given(statements)) if wanted else ():
        del wanted[name]
    known = {str(n) for names in columns for n in names[:NEAR]} if wanted else ()
    for name, constant in wanted.items():
        text = str(name)
        hints = [h for h in nearest(text, known) if h.startswith("did you mean")]
        if not constant.quoted and not hints:
            hints = [f"a variable begins with a lower-case letter: {text[0].lower()}{text[1:]}"]
        yield InputError(f"no fact has the name {name!r}", *hints, code="E777", location=constant.at)


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
