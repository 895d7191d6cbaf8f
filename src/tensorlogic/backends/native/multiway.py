"""The kernel of joins of many tables at once: leapfrog, variable by variable, over tables that are sorted.

A *participant* is one column of one table: it has a range of rows, those that agree with the variables bound so far, and a
cursor in it. At each depth the participants of one variable look for the next value that all of them have.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, NUMBER, PLACES, explicit, prefetch
from .support import kernel

ONE = np.uint64(1)
AHEAD = 4  # values whose rows are brought near before they are needed
NEAR = 4  # rows that a cursor goes through one by one before its steps double
APART = 16  # how much longer the longer of two ranges is where the shorter one's values are looked up in it


@kernel
def _seek(data: Any, place: Any, stop: Any, value: Any) -> Any:
    """Return the first place from here to the stop whose value is not less."""
    near = min(stop, place + NEAR)
    while place < near:
        if data[place] >= value:
            return place
        place += 1
    step = 1
    while place + step < stop and data[place + step] < value:
        place += step
        step <<= 1
    hi = min(stop, place + step + 1)
    while place < hi:
        middle = (place + hi) >> 1
        if data[middle] < value:
            place = middle + 1
        else:
            hi = middle
    return place


@kernel
def _grown(codes: Any, size: Any, more: Any) -> Any:
    """Return an array with room for more codes."""
    if size + more <= codes.size:
        return codes
    out = np.empty(max(2 * codes.size, size + more), np.int64)
    for k in range(size):
        out[k] = codes[k]
    return out


@kernel
def _both(
    data: Any, i: Any, end: Any, j: Any, last: Any, codes: Any, size: Any, code: Any, stride: Any, most: Any
) -> Any:
    """Write the codes of the values that two sorted ranges have in common, up to so many; return the new size."""
    if end - i > last - j:
        i, end, j, last = j, last, i, end
    limit = size + most
    if (end - i) * APART < last - j:
        while i < end and size < limit:
            value = data[i]
            j = _seek(data, j, last, value)
            if j == last:
                break
            if data[j] == value:
                codes[size] = code + value * stride
                size += 1
            i += 1
    else:
        while i < end and j < last and size < limit:
            a, b = data[i], data[j]
            if a == b:
                codes[size] = code + a * stride
                size += 1
            i += a <= b
            j += b <= a
    return size


@kernel
def _wedges(
    data: Any, index: Any, values: Any, stop: Any, table: Any, length: Any, column: Any, bitmap: Any,
    codes: Any, size: Any, code: Any, outer: Any, inner: Any, each: Any,
) -> Any:  # fmt: skip
    """Take each value of a range, and of its rows in an indexed table those whose second column is marked in a bitmap.

    Write a code for every such pair where ``each`` is 2, for every value that has one where it is 1, for the first one where
    it is 0; return the codes and their number.
    """
    bits = np.uint64(bitmap.size << 6)
    before = size
    for at in range(values, stop):
        value = np.int64(data[at])
        if at + AHEAD < stop:
            next_value = np.int64(data[at + AHEAD])
            if next_value + 1 < length:
                prefetch(data, column + index[table + next_value])
        if value + 1 >= length:
            break
        lo, hi = column + index[table + value], column + index[table + value + 1]
        codes = _grown(codes, size, hi - lo)
        base = code + value * outer
        for k in range(lo, hi):
            j = np.uint64(data[k])
            if j < bits and bitmap[j >> np.uint64(6)] >> (j & np.uint64(63)) & ONE:
                codes[size] = base + data[k] * inner
                size += 1
                if each < 2:
                    break
        if each == 0 and size > before:
            break
    return codes, size


def _multiway(
    data: Any, index: Any, first: Any, column: Any, rows: Any, after: Any, indexed: Any, wedge: Any, strides: Any,
    outputs: int, lo: int, hi: int, total: Any,
) -> Any:  # fmt: skip
    """Return the codes of the results whose first variable is from lo up to hi.

    ``first[d]`` is the first participant of variable d. Of each participant: where its column is in ``data``, how many rows its table
    has, which participant is the next column of its table (-1: none), and where ``index`` has, for every value, how many
    of a table's first column are less (-1: nowhere; then its length). ``total[0]`` becomes the number of results.

    ``wedge`` is empty, or it tells that the last two variables can be done at once, as in a triangle: the participant that has the
    values of the one before the last, the indexed one of the same variable, and of the last variable the one whose range stays
    the same meanwhile; then how many words the bitmap of that range takes.
    """
    depths, count = first.size - 1, column.size
    start, stop, cursor, end = (
        np.zeros(count, np.int64),
        rows.copy(),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    code = np.zeros(depths + 1, np.int64)
    codes = np.empty(1024, np.int64)
    size = np.int64(0)
    depth = 0
    bound = np.int64(lo)
    bitmap = np.zeros(wedge[3] if wedge.size else 0, np.uint64)
    while depth >= 0:
        begin, many = first[depth], first[depth + 1] - first[depth]
        found = False
        if wedge.size and depth == depths - 2 and depth > 0:
            p, q, fixed = wedge[0], wedge[1], wedge[2]
            before = size
            for k in range(column[fixed] + start[fixed], column[fixed] + stop[fixed]):
                bitmap[data[k] >> 6] |= ONE << np.uint64(data[k] & 63)
            codes, size = _wedges(
                data, index, column[p] + cursor[p], column[p] + stop[p], indexed[2 * q], indexed[2 * q + 1], column[after[q]],
                bitmap, codes, size, code[depth], strides[depth] if outputs > depth else np.int64(0),
                strides[depth + 1] if outputs == depths else np.int64(0), max(0, outputs - depth),
            )  # fmt: skip
            for k in range(column[fixed] + start[fixed], column[fixed] + stop[fixed]):
                bitmap[data[k] >> 6] = 0
            depth = min(depth, outputs) - 1 if size > before else depth - 1
            if depth >= 0:
                for k in range(first[depth], first[depth + 1]):
                    cursor[k] = end[k]
            bound = np.int64(0)
            continue
        if depth == depths - 1 and depth > 0 and many <= 2:  # the innermost loops, at once
            base, p, q = code[depth], begin, begin + 1
            stride = strides[depth] if outputs == depths else np.int64(0)
            one = outputs < depths
            plain = indexed[2 * p] < 0 and (many == 1 or indexed[2 * q] < 0)
            if many == 1 or plain:
                width = stop[p] - cursor[p]
                if many == 2:
                    width = min(width, stop[q] - cursor[q])
                most = np.int64(1) if one else width
                before = size
                codes = _grown(codes, size, most)
                if many == 2:
                    size = _both(
                        data, column[p] + cursor[p], column[p] + stop[p], column[q] + cursor[q], column[q] + stop[q],
                        codes, size, base, stride, most,
                    )  # fmt: skip
                else:
                    most = min(most, width)
                    for k in range(most):
                        codes[size + k] = base + data[column[p] + cursor[p] + k] * stride
                    size += most
                if one and size > before:
                    depth = outputs - 1
                else:
                    depth -= 1
                if depth >= 0:
                    for k in range(first[depth], first[depth + 1]):
                        cursor[k] = end[k]
                bound = np.int64(0)
                continue
        agreed, p, value = 0, begin, bound
        while agreed < many:
            at, limit = cursor[p], stop[p]
            table = indexed[2 * p]
            if table >= 0:
                at = max(at, np.int64(index[table + min(value, indexed[2 * p + 1] - 1)]))
            else:
                at = _seek(data, column[p] + at, column[p] + limit, value) - column[p]
            cursor[p] = at
            if at >= limit:
                break
            here = np.int64(data[column[p] + at])
            agreed = agreed + 1 if here == value else 1
            value = here
            p = p + 1 if p + 1 < begin + many else begin
        else:
            found = True
        if found and depth == 0 and value >= hi:
            break
        bound = np.int64(0)
        if found:
            for p in range(begin, begin + many):
                at = cursor[p]
                if after[p] < 0:
                    end[p] = at + 1
                else:
                    table = indexed[2 * p]
                    if table >= 0:
                        end[p] = index[table + min(value + 1, indexed[2 * p + 1] - 1)]
                    else:
                        end[p] = _seek(data, column[p] + at, column[p] + stop[p], value + 1) - column[p]
                    start[after[p]], stop[after[p]] = at, end[p]
            code[depth + 1] = code[depth] + (value * strides[depth] if depth < outputs else 0)
            if depth + 1 < depths:
                depth += 1
                for p in range(first[depth], first[depth + 1]):
                    cursor[p] = start[p]
                continue
            codes = _grown(codes, size, 1)
            codes[size] = code[depth + 1]
            size += 1
            depth = min(depth, outputs - 1)
        else:
            depth -= 1
        if depth >= 0:
            for p in range(first[depth], first[depth + 1]):
                cursor[p] = end[p]
    total[0] = size
    return codes


_REST = (PLACES, *[CODES] * 7, *[NUMBER] * 3, CODES_OUT)
narrow = explicit(PLACES, *_REST)(_multiway)
wide = explicit(CODES, *_REST)(_multiway)
