"""Names of operations in print: on one line, short, and different where operations are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import count

from ..diagnostics import clean

LONGEST = 60  # characters of a name in print
ENDS = 16  # of both ends, where the middle shows how names differ
ROUNDS = 8  # how often names that are cut to the same text are cut elsewhere
# control characters, which move the cursor or change colours, and signs that turn the direction of text
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    r"""Return text for a cell of a table: one line that does nothing to a terminal.

    >>> one_line("two\n lines \x1b[31m") == "two lines \ufffd[31m"
    True
    """
    return _CONTROL.sub("\ufffd", clean(" ".join(text.split())))


def operation_names(operations: Sequence[tuple[str, str]]) -> list[str]:
    """Return names for operations given as name and kind: the kind stands behind a name that several kinds have.

    >>> operation_names([("step", "cpu"), ("step", "gpu"), ("relu", "cpu")])
    ['step (cpu)', 'step (gpu)', 'relu']
    """
    kinds = Counter(name for name, _ in operations)
    return _numbered([f"{name} ({kind})" if kinds[name] > 1 else name for name, kind in operations])


def short_names(names: Sequence[str]) -> list[str]:
    """Return names that fit in a cell of one line and differ where the names do: by both ends, their middle, or a number.

    >>> short_names(["k" * 80 + "1", "k" * 80 + "2", "relu"])[1:]
    ['kkkkkkkkkkkkkkkkkkkkkkkkkkkkk…kkkkkkkkkkkkkkkkkkkkkkkkkkkkk2', 'relu']
    >>> short_names(["k" * 80 + "<4>" + "k" * 80, "k" * 80 + "<8>" + "k" * 80])[0]
    'kkkkkkkkkkkkkkkk…kk<4>kkkkkkkkkkkkkkkkkkkkk…kkkkkkkkkkkkkkkk'
    """
    lines = [one_line(name) for name in names]
    texts = [_cut(line) for line in lines]
    for _ in range(ROUNDS):
        places: dict[str, list[int]] = {}
        for n, text in enumerate(texts):
            places.setdefault(text, []).append(n)
        same = [group for group in places.values() if len(group) > 1]
        if not same:
            return texts
        for group in same:
            differ = _first_difference([lines[n] for n in group])
            for n in group:
                texts[n] = _cut(lines[n], differ)
    return _numbered(texts)


def _first_difference(lines: list[str]) -> int:
    """Return the first place where some lines are not all the same."""
    first, last = min(lines), max(lines)  # all others begin as these two do
    pairs = enumerate(zip(first, last, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(last)))


def _cut(line: str, differ: int | None = None) -> str:
    """Return both ends of a long line, and what stands where it differs from others."""
    if len(line) <= LONGEST:
        return line
    if differ is None:
        return f"{line[: LONGEST // 2 - 1]}…{line[-LONGEST // 2 :]}"
    middle = LONGEST - 2 * ENDS - 2
    start = max(ENDS, min(differ - 3, len(line) - ENDS - middle))
    return f"{line[:ENDS]}…{line[start : start + middle]}…{line[-ENDS:]}"


def _numbered(texts: list[str]) -> list[str]:
    """Number texts that are there more than once."""
    times, taken = Counter(texts), set(texts)
    numbers = {text: count(1) for text, n in times.items() if n > 1}
    for n, text in enumerate(texts):
        if text in numbers:
            texts[n] = next(new for k in numbers[text] if (new := f"{text} #{k}") not in taken)
            taken.add(texts[n])
    return texts
