"""How a number comes about: its equation, and how much each element of the program's inputs contributes to it."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..diagnostics import SourceLocation
from ..errors import CancelledError, InputError, TensorLogicError, nearest
from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from ..lang import syntax as s
from ..lang.equations import lower_component
from ..lang.format import text_of
from ..passes.grad import GradientWarning, grad
from ..tables import html_table, table
from .ask import code_of
from .clauses import Codes
from .evaluate import Evaluation
from .proofs import place

if TYPE_CHECKING:
    from .program import Program
    from .why import Words

SHOWN = 12  # contributions that are printed
LARGEST = 50_000_000  # elements of an input for which a gradient is computed
PICKS = {"max=": "the largest", "min=": "the smallest"}


class Contribution(msgspec.Struct, frozen=True):
    """One element of an input: its value, the gradient of the number by it, and the product of the two."""

    element: str
    value: float
    gradient: float
    contribution: float


@dataclass(eq=False, repr=False)
class Account:
    """How an element of a tensor of numbers comes about: ``value``, ``equations`` and ``contributions``, the largest first.

    The gradient says how much the number would change with an element; the contribution is the gradient times the element's value.
    For a number that is linear in an input the contributions of that input add up to it; of a maximum or minimum only the elements
    that it was taken from have a gradient, so that they are the path that made it.

    >>> from tensorlogic import Program
    >>> print(Program("W = [[1, 2], [3, 4]]; X = [5, -6]; Y[i] = W[i,j] X[j]").why("Y[1]"))
    Y[1] = -9  by Y[i] = W[i, j] X[j]  (line 1)
    element  value  gradient  contribution
    W[1, 1]      4        -6           -24
    X[1]        -6         4           -24
    W[1, 0]      3         5            15
    X[0]         5         3            15
    """

    atom: str
    value: float
    equations: tuple[tuple[str, SourceLocation | None], ...]
    contributions: tuple[Contribution, ...]
    notes: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    def _cells(self, limit: int | None) -> list[list[str]]:
        return [
            [c.element, f"{c.value:.6g}", f"{c.gradient:.6g}", f"{c.contribution:.6g}"]
            for c in self.contributions[:limit]
        ]

    def _lines(self) -> list[str]:
        by = [f"by {text}{f'  ({place(at)})' if at is not None else ''}" for text, at in self.equations]
        first = f"{self.atom} = {self.value:.6g}"
        head = [f"{first}  {by[0]}" if by else f"{first}  given"]
        return head + [f"{' ' * len(first)}  {text}" for text in by[1:]]

    def _after(self, limit: int | None) -> list[str]:
        more = f", ... {len(self.group):,} in all" if limit and len(self.group) > limit else ""
        found = [f"counted: {', '.join(self.group[:limit])}{more}"] if self.group else []
        if limit is not None and len(self.contributions) > limit:
            found.append(f"... {len(self.contributions) - limit:,} more elements")
        return [*found, *self.notes]

    def text(self, limit: int | None = None) -> str:
        """Return all of it as text, or so many contributions."""
        rows = self._cells(limit)
        heads = ["element", "value", "gradient", "contribution"]
        middle = [table(heads, rows, right={1, 2, 3})] if rows else []
        return "\n".join([*self._lines(), *middle, *self._after(limit)])

    def __str__(self) -> str:
        return self.text(SHOWN)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"<Account of {self.atom} = {self.value:.6g}: {len(self.contributions):,} elements contribute>"

    def _repr_html_(self) -> str:
        heads = ["element", "value", "gradient", "contribution"]
        return html_table(heads, self._cells(SHOWN), " ".join(self._after(SHOWN)), title=" ".join(self._lines()))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain dictionaries and lists."""
        return {
            "atom": self.atom,
            "value": _finite(self.value),
            "equations": [{"text": t, **({"at": msgspec.to_builtins(at)} if at else {})} for t, at in self.equations],
            "contributions": [{k: _finite(v) for k, v in msgspec.to_builtins(c).items()} for c in self.contributions],
            "group": list(self.group),
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return it as JSON; what is not finite is null."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def account(program: Program, evaluation: Evaluation, atom: s.Tensor) -> Account:
    """Return how an element of a tensor of numbers comes about."""
    from .prover import Prover
    from .why import Words

    model = evaluation.model
    codes = _element(evaluation, atom)
    array = np.asarray(evaluation.value(atom.name))
    words = Words(program, Prover(evaluation))
    shown = words.atom(atom.name, codes)
    if array.ndim != len(codes):
        kept, note = _last(atom.name, codes, evaluation, array)
        return Account(shown, array[kept].item(), _equations(atom.name, codes, words), (), (note,))
    value = array[codes].item()
    part = model.component(atom.name)
    if part is None or not model.readers.direct[part] - set(model.analysis.components[part].names):
        return Account(shown, value, _equations(atom.name, codes, words), ())
    group = tuple(words.group(atom.name, codes))
    notes: tuple[str, ...] = ()
    found: list[Contribution] = []
    if not group:
        try:
            found, notes = _contributions(evaluation, atom.name, codes, words)
        except CancelledError:
            raise
        except TensorLogicError as error:
            notes = (f"no gradients: {error.diagnostic.message}",)
        operator = model.analysis.tensors[atom.name].operator
        if operator in PICKS and found:
            notes = (*notes, f"{operator} takes {PICKS[operator]}: only what it was made of has a gradient")
    return Account(shown, value, _equations(atom.name, codes, words), tuple(found), notes, group)


def _element(evaluation: Evaluation, atom: s.Tensor) -> Codes:
    model, found = evaluation.model, []
    for n, p in enumerate(atom.places):
        if not isinstance(p.index, s.Constant):
            message = f"why asks about one element, but {text_of(atom)} has {text_of(p.index)}"
            raise InputError(message, f'name the element, such as p.why("{atom.name}[0]")', code="E793")
        code = code_of(model, p.index, atom.name, n)
        size = model.shape(atom.name)[n]
        if code is None or not 0 <= code < size:
            message = f"{p.index.value!r} is no element of place {n + 1} of {atom.name}, which has {size}"
            domain = model.place_domains(atom.name)[n]
            hint = [f"use 0 to {size - 1}"] if domain.numbers else nearest(p.index.value, map(str, domain.names()))
            raise InputError(message, *hint, code="E777", location=p.at)
        found.append(code)
    return tuple(found)


def _last(name: str, codes: Codes, evaluation: Evaluation, array: Any) -> tuple[Codes, str]:
    """Return the element of a tensor of which only the last position along its virtual index is kept."""
    virtual = evaluation.model.analysis.tensors[name].virtual
    assert virtual is not None
    if codes[virtual] != evaluation.model.shape(name)[virtual] - 1:
        message = f"only the last position of the virtual index of {name!r} is kept"
        raise InputError(message, "ask about the last position", code="E793")
    return tuple(c for n, c in enumerate(codes) if n != virtual), "a virtual index keeps one slice: no gradients"


def _equations(name: str, codes: Codes, words: Words) -> tuple[tuple[str, SourceLocation | None], ...]:
    part = words.model.component(name)
    if part is None:
        return ()
    own = [x for x in words.model.analysis.components[part].statements if x.head.name == name]
    return tuple((words.rule(x), x.at) for x in own if _fits(x.head, codes, words))


def _fits(head: s.Tensor, codes: Codes, words: Words) -> bool:
    """Tell whether the constants of a left side are those of an element."""
    return all(
        not isinstance(p.index, s.Constant) or code_of(words.model, p.index, head.name, n) == codes[n]
        for n, p in enumerate(head.places)
    )


def _contributions(
    evaluation: Evaluation, name: str, codes: Codes, words: Words
) -> tuple[list[Contribution], tuple[str, ...]]:
    """Return what each element of the inputs contributes, the largest first, and what is to be said about it."""
    model = evaluation.model
    parts = _numeric_parts(evaluation, name)
    computed = {n for part in parts for n in model.analysis.components[part].names}
    read = sorted({n for part in parts for n in model.readers.direct[part]} - computed)
    leaves = [n for n in read if math.prod(model.shape(n)) <= LARGEST and _real(evaluation, n)]
    b = GraphBuilder()
    inputs: dict[str, Any] = {n: _array(evaluation, n) for n in leaves}
    values: dict[str, Tensor] = {n: b.input(n, inputs[n].shape, str(inputs[n].dtype)) for n in leaves}
    for part in parts:
        lower_component(model.analysis.components[part], model.analysis, b, values)
    element = values[name][codes] if codes else values[name]
    graph = b.build(value=element)
    used = [n for n in leaves if n in graph.inputs]
    if not used:
        return [], ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # what is flat contributes nothing, and is not shown
        gradients = grad(graph, wrt=used)
    given = {n: inputs[n] if n in inputs else evaluation.value(n) for n in gradients.inputs}
    outputs = evaluation.executor.execute(gradients, given)
    found, zeros = [], 0
    for leaf in used:
        slope = np.asarray(outputs[leaf])
        zeros += int(np.count_nonzero(slope * (inputs[leaf] == 0)))
        for row in map(tuple, np.argwhere(slope * (inputs[leaf] != 0)).tolist()):
            g, v = float(slope[row]), float(inputs[leaf][row])
            found.append(Contribution(words.atom(leaf, row), v, g, g * v))
    found.sort(key=lambda c: (-abs(c.contribution), -abs(c.gradient)))
    notes = []
    if zeros:
        notes.append(f"{zeros:,} {'elements have' if zeros > 1 else 'element has'} a gradient but the value 0")
    if others := sorted(set(read) - set(leaves)):
        notes.append(f"not differentiated: {', '.join(others)}")
    return found, tuple(notes)


def _numeric_parts(evaluation: Evaluation, name: str) -> list[int]:
    """Return the components of numbers that a tensor is computed by, in order; relations and literals are where they begin."""
    model = evaluation.model
    start = model.component(name)
    assert start is not None
    found, pending = {start}, [start]
    while pending:
        for read in model.readers.direct[pending.pop()]:
            part = model.component(read)
            if part is None or part in found or model.analysis.tensors[read].boolean:
                continue
            if model.readers.direct[part] - set(model.analysis.components[part].names):
                found.add(part)
                pending.append(part)
    return sorted(found)


def _real(evaluation: Evaluation, name: str) -> bool:
    """Tell whether a gradient by a tensor has a meaning: it holds real numbers or truth values, not whole numbers."""
    if evaluation.model.analysis.tensors[name].boolean:
        return True
    return np.asarray(evaluation.value(name)).dtype.kind in "fiu"


def _array(evaluation: Evaluation, name: str) -> np.ndarray[Any, Any]:
    array = np.asarray(evaluation.value(name))
    return array if array.dtype.kind == "f" else array.astype(evaluation.model.analysis.dtype)


def score(program: Program, evaluation: Evaluation, name: str, row: Codes) -> float | None:
    """Return the number that an equation of a relation decides by, such as ``S[x]`` of ``Good(x) = step(S[x])``; None for others."""
    model = evaluation.model
    part = model.component(name)
    own: list[s.Equation] = []
    if part is not None and not model.analysis.components[part].recursive:
        own = [x for x in program.statements if isinstance(x, s.Equation) and x.head.name == name]
    if len(own) != 1 or not all(isinstance(p.index, s.Variable) for p in own[0].head.places):
        return None
    value = own[0].value
    if isinstance(value, s.Call) and value.function == "step" and len(value.arguments) == 1:
        value = value.arguments[0]
    equation = s.Equation(s.Tensor("@score", own[0].head.places), "=", value, at=own[0].at)
    other = program.with_statement(equation)
    places = zip(model.place_domains(name), row, other.model.place_domains("@score"), strict=True)
    codes = [theirs.code(own.element(code)) for own, code, theirs in places]
    if None in codes:
        return None
    return float(np.asarray(other.value("@score"))[tuple(codes)])
