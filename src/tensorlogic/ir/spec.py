"""Einsum specs: reading what people write, and filling in what they leave out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import NamedTuple

from ..diagnostics import value_text
from ..errors import SpecError

ELLIPSIS = "..."
Labels = tuple[str, ...]
MAX_LABELS = 1000


class Spec(NamedTuple):
    """The labels of each operand and of the result; ``"..."`` is a label until ranks are known.

    >>> parse("ij,jk")
    Spec(inputs=(('i', 'j'), ('j', 'k')), output=('i', 'k'))
    >>> print(parse("ij,jk"))
    ij,jk->ik
    """

    inputs: tuple[Labels, ...]
    output: Labels

    def __str__(self) -> str:
        return ",".join("".join(labels) for labels in self.inputs) + "->" + "".join(self.output)

    @property
    def contracted(self) -> Labels:
        """The labels that are reduced, in order of first occurrence."""
        seen = dict.fromkeys(label for labels in self.inputs for label in labels)
        return tuple(label for label in seen if label not in self.output)

    @property
    def labels(self) -> Labels:
        """Every label once, in order of first occurrence."""
        return tuple(dict.fromkeys(label for labels in (*self.inputs, self.output) for label in labels))

    def renamed(self, name: Mapping[str, str]) -> Spec:
        """Return the spec under other labels.

        >>> print(parse("ij,jk").renamed({"i": "a", "j": "b", "k": "c"}))
        ab,bc->ac
        """
        return Spec(tuple(tuple(name[x] for x in own) for own in self.inputs), tuple(name[x] for x in self.output))


def symbol(number: int) -> str:
    """Return the letter that stands for an integer label.

    >>> symbol(0), symbol(26), symbol(52)
    ('a', 'A', 'À')
    """
    if not 0 <= number <= _LARGEST:
        raise SpecError(f"an integer label must be 0 to {_LARGEST}, got {value_text(number)}", code="E117")
    return _letters(1 << max(number.bit_length(), 8))[number]


def spare_letters(used: Iterable[str], first: int = 0) -> Iterator[str]:
    """Yield the letters that are not used, from a number on.

    >>> next(spare_letters("ab")), next(spare_letters("t", 19))
    ('c', 'u')
    """
    taken = set(used)
    return (c for c in map(symbol, range(first, _LARGEST)) if c not in taken)


def lettered(spec: Spec) -> Spec:
    """Give labels that stood for ``...`` letters of their own.

    >>> print(lettered(expand(parse("...i,i->..."), (3, 1))))
    abi,i->ab
    """
    spare = spare_letters(spec.labels)
    return spec.renamed({x: x if len(x) == 1 else next(spare) for x in spec.labels})


_LARGEST = 99_999  # there are not many more letters


@lru_cache
def _letters(enough: int) -> str:
    """Return at least so many letters: a to z, A to Z, then those of other alphabets."""
    ours = "abcdefghijklmnopqrstuvwxyz"
    return ours + ours.upper() + "".join(islice((c for c in map(chr, count(192)) if c.isalpha()), enough))


def write(inputs: Sequence[Sequence[object]], output: Sequence[object]) -> str:
    """Return the spec for operands whose axes are named by any objects: each object gets a letter.

    >>> write([["row", 7], [7, "column"]], ["row", "column"])
    'ab,bc->ac'
    """
    letters: dict[object, str] = {}
    for axis in (axis for axes in (*inputs, output) for axis in axes):
        if axis not in letters:
            letters[axis] = symbol(len(letters))
    words = ["".join([letters[axis] for axis in axes]) for axes in (*inputs, output)]
    return f"{','.join(words[:-1])}->{words[-1]}"


def from_integers(inputs: Sequence[Sequence[object]], output: Sequence[object] | None) -> Spec:
    """Make a spec from integer labels; ``...`` may stand among them.

    >>> print(from_integers([[0, 1], [1, 60]], [0, 60]))
    ab,bÈ->aÈ
    """
    numbers: dict[str, int] = {}

    def label(x: object) -> str:
        if x is Ellipsis or x == ELLIPSIS:
            return ELLIPSIS
        if isinstance(x, bool) or not hasattr(x, "__index__"):
            raise SpecError(f"an integer label is expected, got {value_text(x)}", code="E301")
        letter = symbol(x.__index__())
        numbers[letter] = x.__index__()
        return letter

    def word(labels: object) -> str:
        if isinstance(labels, str | bytes) or not isinstance(labels, Sequence):
            hint = "write einsum([[0, 1], [1, 2], [0, 2]], a, b)"
            raise SpecError(f"each operand has a list of integer labels, got {value_text(labels)}", hint, code="E301")
        return "".join(label(x) for x in islice(labels, MAX_LABELS + 1))

    text = ",".join(word(labels) for labels in inputs)
    if output is not None:
        return parse(text + "->" + word(output))
    form = parse(text)  # the result's labels in order of number, not of letter
    return form._replace(output=tuple(sorted(form.output, key=lambda letter: numbers.get(letter, -1))))


@lru_cache(16384)
def parse(text: str) -> Spec:
    """Read a spec as NumPy does: implicit output, ellipsis and repeated labels included.

    >>> parse("ij->").output, parse("b...i,...i").output
    ((), ('...', 'b'))
    """
    if text.count("->") > 1:
        raise _bad(text, text.rfind("->"), "a spec has at most one '->'")
    left, arrow, right = text.partition("->")
    inputs, at = [], 0
    for part in left.split(","):
        inputs.append(_labels(part, text, at))
        at += len(part) + 1
    every = [label for labels in inputs for label in labels]
    if len(set(every)) > MAX_LABELS:
        raise SpecError(f"a spec may have at most {MAX_LABELS} labels, got {len(set(every))}", code="E117")
    if not arrow:
        once = sorted(label for label in set(every) if label != ELLIPSIS and every.count(label) == 1)
        return Spec(tuple(inputs), (ELLIPSIS, *once) if ELLIPSIS in every else tuple(once))
    output = _labels(right, text, len(left) + 2)
    for label in output:
        if label not in every and label != ELLIPSIS:  # an empty '...' is allowed, as in NumPy
            raise _bad(text, text.rfind(label), f"the result has index {label!r}, which no operand has")
        if output.count(label) > 1:
            raise _bad(text, text.rfind(label), f"the result has index {label!r} twice")
    return Spec(tuple(inputs), output)


def _labels(part: str, text: str, at: int) -> Labels:
    labels: list[str] = []
    for match in re.finditer(r"\.\.\.|\S", part):
        label, place = match[0], at + match.start()
        if label == ELLIPSIS and label in labels:
            raise _bad(text, place, "an operand has at most one '...'")
        if label != ELLIPSIS and not label.isalpha():
            raise _bad(text, place, f"{label!r} cannot be an index")
        labels.append(label)
    return tuple(labels)


def _bad(text: str, at: int, reason: str) -> SpecError:
    hint, shown = "write one letter for each axis, such as 'ij,jk->ik'", [text, " " * at + "^"]
    return SpecError(f"einsum spec {text!r}: {reason}", hint, code="E101", context=shown)


@lru_cache(16384)
def expand(spec: Spec, ranks: tuple[int, ...]) -> Spec:
    """Replace every ``...`` by labels of its own, aligned at the right, now that ranks are known.

    >>> expand(parse("...i,i->..."), (3, 1)).inputs
    (('…1', '…0', 'i'), ('i',))
    """
    if len(ranks) != len(spec.inputs):
        hint = "write one comma-separated group of indices for each operand"
        message = f"einsum spec '{spec}' is for {len(spec.inputs)} operand(s), got {len(ranks)}"
        raise SpecError(message, hint, code="E114")
    widest = 0
    inputs = []
    for n, (labels, rank) in enumerate(zip(spec.inputs, ranks, strict=True)):
        named = len(labels) - (ELLIPSIS in labels)
        spare = rank - named
        if spare < 0 or (spare > 0 and ELLIPSIS not in labels):
            message = f"einsum spec '{spec}': operand {n} has {rank} axes but {named} indices {''.join(labels)!r}"
            raise SpecError(message, "name every axis, or write '...' for those that have no name", code="E115")
        widest = max(widest, spare)
        inputs.append(_fill(labels, spare))
    if widest and ELLIPSIS not in spec.output:
        message = f"einsum spec '{spec}': the operands' '...' stands for {widest} axes that the result does not have"
        raise SpecError(message, f"write '->...{''.join(spec.output)}'", code="E116")
    return Spec(tuple(inputs), _fill(spec.output, widest))


def _fill(labels: Labels, spare: int) -> Labels:
    filled: list[str] = []
    for label in labels:
        filled += [f"…{n}" for n in reversed(range(spare))] if label == ELLIPSIS else [label]
    return tuple(filled)
