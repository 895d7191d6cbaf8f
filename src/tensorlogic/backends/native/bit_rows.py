"""The kernel of fixpoints S(x,w) <- L(x,u), S(u,v), R(v,w): S as rows of bits, L and R as sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, NUMBER, PLACES, PLACES_OUT, WORDS_OUT, explicit
from .words import lowest

ONE, SIX, LOW = np.uint64(1), np.uint64(6), np.uint64(63)


@explicit(
    CODES, PLACES, CODES, PLACES, CODES, PLACES, WORDS_OUT, WORDS_OUT, PLACES_OUT, CODES_OUT, NUMBER, NUMBER, NUMBER
)
def advance(
    left: Any, left_rows: Any, turned: Any, turned_rows: Any, right: Any, right_rows: Any, known: Any, work: Any,
    lists: Any, counts: Any, rows: int, columns: int, budget: int,
) -> Any:  # fmt: skip
    """Derive until nothing is new or the budget of words is spent; tell whether nothing is new.

    The sparse rows of all rules lie one after another: ``left[k * (rows + 1) + x]`` is where row x of rule k begins in
    ``left_rows``; ``turned`` are the same with rows and columns exchanged. A rule whose ``right`` begins with -1 has nothing there.
    ``work`` has two matrices: what the last round added, and what this one derives; ``counts`` says which is which, how many
    rows the last round added to, and the number of rounds. ``lists`` has five lists of rows: those that the last round added to, those that
    this one derives, those that one rule derives, and for each row the round and the rule in which it was last listed.
    """
    width = known.size // max(rows, 1)
    rules = left.size // (rows + 1)
    which, hot, rounds = counts[0], counts[1], counts[2]
    seen = 3 * rows  # where the marks begin
    total = np.zeros(width, np.uint64)
    while hot > 0 and budget > 0:
        last, now = which * rows * width, (1 - which) * rows * width
        rounds += 1
        touched = 0
        for k in range(rules):
            own = 0
            for h in range(hot):
                u = lists[h]
                for p in range(turned[k * (rows + 1) + u], turned[k * (rows + 1) + u + 1]):
                    x = turned_rows[p]
                    if lists[seen + rows + x] != rounds * rules + k:
                        lists[seen + rows + x] = rounds * rules + k
                        lists[2 * rows + own] = x
                        own += 1
                        if lists[seen + x] != rounds:
                            lists[seen + x] = rounds
                            lists[rows + touched] = x
                            touched += 1
            beside = right[k * (columns + 1)] >= 0
            for h in range(own):
                x = lists[2 * rows + h]
                base = now + x * width
                total[:] = 0
                budget -= (left[k * (rows + 1) + x + 1] - left[k * (rows + 1) + x]) * width
                for p in range(left[k * (rows + 1) + x], left[k * (rows + 1) + x + 1]):
                    from_row = last + left_rows[p] * width  # zero where the last round added nothing
                    for w in range(width):
                        total[w] |= work[from_row + w]
                if not beside:
                    for w in range(width):
                        work[base + w] |= total[w]
                    continue
                for w in range(width):
                    word = total[w]
                    while word:
                        v = k * (columns + 1) + (w << 6) + lowest(word)
                        word &= word - ONE
                        for q in range(right[v], right[v + 1]):
                            t = np.uint64(right_rows[q])
                            work[base + np.int64(t >> SIX)] |= ONE << (t & LOW)
                        budget -= 1 + right[v + 1] - right[v]
            budget -= own * width
        for h in range(hot):
            base = last + lists[h] * width
            for w in range(width):
                work[base + w] = 0
        hot = 0
        for h in range(touched):
            x = lists[rows + h]
            found = np.uint64(0)
            for w in range(width):
                fresh = work[now + x * width + w] & ~known[x * width + w]
                known[x * width + w] |= fresh
                work[now + x * width + w] = fresh
                found |= fresh
            if found:
                lists[hot] = x
                hot += 1
        which = 1 - which
    counts[0], counts[1], counts[2] = which, hot, rounds
    return hot == 0
