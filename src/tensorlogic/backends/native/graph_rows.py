"""Kernels over graphs that are given as sparse rows: reachability, components and closures."""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, FLAGS_OUT, NUMBER, PLACES, PLACES_OUT, WORDS_OUT, explicit, prefetch
from .sparse_rows import AHEAD, FEW, ONE, drain, gather
from .support import kernel


@explicit(CODES, PLACES, CODES, FLAGS_OUT)
def reach(indptr: Any, indices: Any, sources: Any, seen: Any) -> None:
    """Mark the nodes that sources lead to in one step or more."""
    queue = np.empty(seen.size + sources.size + 1, np.int32)
    tail = 0
    for s in sources:
        if not seen[s]:
            seen[s] = True
            queue[tail] = s
            tail += 1
    for k in range(tail):  # a source is marked where something leads to it; then it is queued once more
        seen[queue[k]] = False
    head = 0
    while head < tail:
        v = queue[head]
        if head + AHEAD < tail:
            prefetch(indices, indptr[queue[head + AHEAD]])
        head += 1
        for p in range(indptr[v], indptr[v + 1]):
            t = indices[p]
            queue[tail] = t  # without a branch, which would often be foreseen wrongly
            tail += not seen[t]
            seen[t] = True


@explicit(CODES, CODES, NUMBER, NUMBER, FLAGS_OUT)
def reach_few(codes: Any, sources: Any, size: int, limit: int, seen: Any) -> Any:
    """Mark the nodes that sources lead to in one step or more, each looked up in the sorted codes; return how many were met.

    It stops where more than ``limit`` are met.
    """
    done = np.zeros(size, np.bool_)
    queue = np.empty(limit + sources.size + 1, np.int64)
    head = tail = 0
    for s in sources:
        if not done[s]:
            done[s] = True
            queue[tail] = s
            tail += 1
    while head < tail <= limit:
        start = queue[head] * size
        head += 1
        p = np.searchsorted(codes, start)
        while p < codes.size and codes[p] < start + size:
            t = codes[p] - start
            seen[t] = True
            if not done[t]:
                done[t] = True
                if tail <= limit:
                    queue[tail] = t
                tail += 1
            p += 1
    return tail


@explicit(CODES, PLACES, PLACES, NUMBER, CODES_OUT, PLACES_OUT, WORDS_OUT, WORDS_OUT, WORDS_OUT)
def reach_each(
    indptr: Any, indices: Any, sources: Any, limit: int, ends: Any, out: Any, low: Any, middle: Any, top: Any
) -> Any:
    """List what each of some sources leads to in one step or more, one after another; return how many sources were done.

    It stops after more than ``limit`` are listed; ``out`` has room for one row more.
    """
    queue = np.empty(indptr.size, np.int32)
    place = 0
    for k in range(sources.size):
        if place > limit:
            return k
        queue[0] = sources[k]
        head, tail = 0, 1
        while head < tail:
            v = queue[head]
            head += 1
            for p in range(indptr[v], indptr[v + 1]):
                t = np.uint64(indices[p])
                if not low[t >> np.uint64(6)] >> (t & np.uint64(63)) & ONE:
                    gather(t, low, middle, top)
                    if indices[p] != sources[k]:
                        queue[tail] = indices[p]
                        tail += 1
        place = drain(low, middle, top, out, place)
        ends[k + 1] = place
    return sources.size


@explicit(CODES, PLACES, PLACES_OUT)
def components(indptr: Any, indices: Any, labels: Any) -> Any:
    """Number strongly connected components from the sinks up, by Tarjan's search; return how many there are."""
    n = labels.size
    order = np.zeros(n, np.int32)  # when a node was met, from 1; 0: not yet
    low = np.zeros(n, np.int32)
    place = np.empty(n, np.int64)  # the edge that a node is at
    path = np.empty(n, np.int32)
    stack = np.empty(n, np.int32)
    met = top = count = 0
    for root in range(n):
        if order[root]:
            continue
        depth = 0
        path[0] = root
        while depth >= 0:
            v = path[depth]
            if not order[v]:
                met += 1
                order[v] = low[v] = met
                place[v] = indptr[v]
                labels[v] = -1
                stack[top] = v
                top += 1
            p, end, least = place[v], indptr[v + 1], low[v]
            while p < end:
                t = indices[p]
                if not order[t]:
                    break
                if labels[t] < 0:
                    least = min(least, order[t])
                p += 1
            place[v] = p
            low[v] = least
            if p < end:
                depth += 1
                path[depth] = indices[p]
                continue
            depth -= 1
            if depth >= 0:
                low[path[depth]] = min(low[path[depth]], least)
            if least == order[v]:
                while True:
                    top -= 1
                    labels[stack[top]] = count
                    if stack[top] == v:
                        break
                count += 1
    return count


@explicit(PLACES, NUMBER, CODES_OUT, PLACES_OUT)
def members(labels: Any, count: int, ends: Any, listed: Any) -> None:
    """List the nodes of each component, in order; ``ends`` is zero, one longer than there are components."""
    for v in range(labels.size):
        ends[labels[v]] += 1
    for c in range(1, count + 1):
        ends[c] += ends[c - 1]
    for v in range(labels.size - 1, -1, -1):
        ends[labels[v]] -= 1
        listed[ends[labels[v]]] = v


@kernel
def _successors(c: Any, indptr: Any, indices: Any, labels: Any, ends: Any, listed: Any, stamps: Any, out: Any) -> Any:
    """List the components that a component leads to, itself among them where it has a cycle; the highest first where few."""
    found = 0
    for m in range(ends[c], ends[c + 1]):
        v = listed[m]
        for p in range(indptr[v], indptr[v + 1]):
            t = labels[indices[p]]
            if stamps[t] != c:
                stamps[t] = c
                at = found
                while at > 0 and found - at < FEW and out[at - 1] < t:
                    out[at] = out[at - 1]
                    at -= 1
                out[at] = t
                found += 1
    return found


@explicit(CODES, PLACES, PLACES, NUMBER, CODES, PLACES, NUMBER, NUMBER, NUMBER, WORDS_OUT)
def closure_bits(
    indptr: Any, indices: Any, labels: Any, count: int, ends: Any, listed: Any, done: int, budget: int, width: int,
    out: Any,
) -> Any:  # fmt: skip
    """Set the row of each component's first node, which is zero, to what it leads to in one step or more.

    It goes from a component on until about ``budget`` words are read; returns the next one. Whatever a component leads to is known
    when its own row is made.
    """
    stamps = np.full(count, -1, np.int32)
    heads = np.empty(count, np.int32)
    for c in range(done, count):
        if budget < 0:
            return c
        start = listed[ends[c]] * width
        for k in range(_successors(c, indptr, indices, labels, ends, listed, stamps, heads)):
            t = heads[k]
            first = np.int64(listed[ends[t]])
            if out[start + (first >> 6)] >> np.uint64(first & 63) & ONE:
                continue
            if t != c:
                source = first * width
                budget -= width
                for w in range(width):
                    out[start + w] |= out[source + w]
            for m in range(ends[t], ends[t + 1]):
                v = listed[m]
                out[start + (v >> 6)] |= ONE << np.uint64(v & 63)
    return count


@explicit(PLACES, CODES, PLACES, NUMBER, WORDS_OUT, NUMBER, NUMBER)
def copy_bits(labels: Any, ends: Any, listed: Any, width: int, out: Any, lo: int, hi: int) -> None:
    """Copy to a range of nodes the row of their component's first node."""
    for v in range(lo, hi):
        first = listed[ends[labels[v]]]
        if first != v:
            for w in range(width):
                out[v * width + w] = out[first * width + w]


@kernel
def _with_one(out: Any, start: Any, stop: Any, column: Any, place: Any) -> Any:
    """Write a row that stands elsewhere with one more column, which it may have already; return where it ends."""
    k = start
    while k < stop and out[k] < column:
        out[place] = out[k]
        place += 1
        k += 1
    out[place] = column
    place += 1
    if k < stop and out[k] == column:
        k += 1
    while k < stop:
        out[place] = out[k]
        place += 1
        k += 1
    return place


@explicit(
    CODES, PLACES, PLACES, NUMBER, CODES, PLACES, NUMBER, NUMBER, CODES_OUT, PLACES_OUT, WORDS_OUT, WORDS_OUT, WORDS_OUT
)
def closure_rows(
    indptr: Any, indices: Any, labels: Any, count: int, ends: Any, listed: Any, done: int, budget: int,
    tops: Any, out: Any, low: Any, middle: Any, top: Any,
) -> Any:  # fmt: skip
    """Write what the nodes of each component lead to, from a component on while there is room; return the next one.

    It stops too once about ``budget`` elements were read, after one component at the least.
    Row c of ``out`` ends at ``tops[c + 1]``. The bitmaps are zero, before and after.
    """
    n = labels.size
    stamps = np.full(count, -1, np.int32)
    heads = np.empty(count, np.int32)
    for c in range(done, count):
        if budget < 0:
            return c
        if c + AHEAD < count:
            ahead = listed[ends[c + AHEAD]]
            if indptr[ahead] < indptr[ahead + 1]:
                prefetch(out, tops[min(labels[indices[indptr[ahead]]], c)])
        v = listed[ends[c]]
        if ends[c + 1] - ends[c] == 1 and indptr[v + 1] - indptr[v] == 1:
            t = labels[indices[indptr[v]]]
            if t != c and ends[t + 1] - ends[t] == 1:  # one way on, as in a tree: that node, and what it leads to
                length = tops[t + 1] - tops[t]
                if tops[c] + length + 1 > out.size:
                    return c
                budget -= int(length) + 1
                tops[c + 1] = _with_one(out, tops[t], tops[t + 1], listed[ends[t]], tops[c])
                continue
        found = _successors(c, indptr, indices, labels, ends, listed, stamps, heads)
        bound = np.int64(0)
        for k in range(found):
            t = heads[k]
            bound += ends[t + 1] - ends[t]
            if t != c:
                bound += tops[t + 1] - tops[t]
        if tops[c] + min(bound, n) > out.size:
            return c
        budget -= int(bound) + 1
        for k in range(found):
            t = heads[k]
            first = listed[ends[t]]
            if low[first >> 6] >> np.uint64(first & 63) & ONE:
                continue
            for m in range(ends[t], ends[t + 1]):
                gather(listed[m], low, middle, top)
            if t != c:
                for q in range(tops[t], tops[t + 1]):
                    gather(out[q], low, middle, top)
        tops[c + 1] = drain(low, middle, top, out, tops[c])
    return count


@explicit(CODES, PLACES, PLACES, CODES, PLACES_OUT)
def copy_rows(tops: Any, rows: Any, labels: Any, indptr: Any, out: Any) -> None:
    """Write the row of its component for every node."""
    for v in range(labels.size):
        start = tops[labels[v]]
        for k in range(indptr[v + 1] - indptr[v]):
            out[indptr[v] + k] = rows[start + k]
