"""Contractions of packed bits: what labels and sizes tell beforehand is worked out once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from ..ir.spec import Labels
from ..plan.native_memory import word_orders
from . import packed
from .packed import Words

Sizes = dict[str, int]
Factor = tuple[Words, Labels]  # words and the labels of their axes, no label twice
Change = Callable[[Words], Words]


def own_labels(words: Words, given: Sequence[int], own: Labels, sizes: Sizes) -> Factor:
    """Drop axes of size 1 that broadcast and take the diagonals of labels that stand twice."""
    labels, shape = list(own), list(given)
    gone = [a for a, (x, n) in enumerate(zip(labels, shape, strict=True)) if n != sizes[x]]
    if gone:
        words = packed.reduce(words, shape, gone, every=False)  # of one value
        labels = [x for a, x in enumerate(labels) if a not in gone]
        shape = [n for a, n in enumerate(shape) if a not in gone]
    while len(set(labels)) < len(labels):
        twice = next(x for x in labels if labels.count(x) > 1)
        i = labels.index(twice)
        j = labels.index(twice, i + 1)
        rest = [a for a in range(len(labels)) if a not in (i, j)]
        words = packed.diagonal(packed.permute(words, shape, [*rest, i, j]), shape[j])
        labels, shape = [*(labels[a] for a in rest), twice], [*(shape[a] for a in rest), shape[j]]
    return words, tuple(labels)


@lru_cache(maxsize=1024)
def planned(labels: tuple[Labels, ...], output: Labels, known: tuple[tuple[str, int], ...]) -> Callable[..., Words]:
    """Return the function of one or two factors' words that gives the words of their contraction."""
    sizes = dict(known)
    shape = [sizes[x] for x in output]
    full = (*shape[:-1], packed.width(shape[-1] if shape else 1))
    named = {x for own in labels for x in own}.union(output)
    gone = {x for x in named if sizes[x] == 1}
    if gone:  # an axis of one value says nothing, and packed it would take a word for each bit
        drop, slim = _apart(labels, gone, sizes)
        inside = tuple(x for x in output if x not in gone)
        inner = planned(slim, inside, known)
        if not output or output[-1:] == inside[-1:]:
            return lambda *words: inner(*[d(w) for d, w in zip(drop, words, strict=True)]).reshape(full)
        n = sizes[inside[-1]] if inside else 1
        return lambda *words: packed.pack(
            packed.unpack(inner(*[d(w) for d, w in zip(drop, words, strict=True)]), n).reshape(shape)
        )
    if any(sizes[x] == 0 for x in named):
        return lambda *words: np.zeros(full, np.uint64)
    single = {x for x in named if x not in output and sum(x in own for own in labels) == 1}
    drop, kept = _apart(labels, single, sizes)
    if len(labels) == 1:
        change, spread = drop[0], _over_output(kept[0], output, sizes)
        return lambda words: spread(change(words))
    (first, second) = drop
    if set(kept[0]) <= set(output):
        left, right = (_over_output(own, output, sizes) for own in kept)
        return lambda a, b: left(first(a)) & right(second(b))
    product = _product(kept[0], kept[1], output, sizes)
    if not single:
        return product
    return lambda a, b: product(first(a), second(b))


def _same(words: Words) -> Words:
    return words


def _apart(labels: tuple[Labels, ...], gone: set[str], sizes: Sizes) -> tuple[list[Change], tuple[Labels, ...]]:
    """Return what removes labels from each factor by or, and the labels that are left."""

    def drop(own: Labels) -> Change:
        axes = [a for a, x in enumerate(own) if x in gone]
        shape = [sizes[x] for x in own]
        return (lambda words: packed.reduce(words, shape, axes, every=False)) if axes else _same

    return [drop(own) for own in labels], tuple(tuple(x for x in own if x not in gone) for own in labels)


def _ordered(own: Labels, order: Labels, sizes: Sizes) -> Change:
    """Return what puts a factor's axes in an order."""
    if own == order:
        return _same
    shape, axes = [sizes[x] for x in own], [own.index(x) for x in order]
    return lambda words: packed.permute(words, shape, axes)


def _over_output(own: Labels, output: Labels, sizes: Sizes) -> Change:
    """Return what lays a factor out over all labels of the output, repeated along those that it lacks."""
    present = tuple(x for x in output if x in own)
    order = _ordered(own, present, sizes)
    if present == output:
        return order
    shape = [sizes[x] for x in output]
    wide = [sizes[x] if x in present else 1 for x in output]
    if output[-1] in present:
        return lambda words: packed.broadcast_words(order(words).reshape((*wide[:-1], -1)), wide, shape)
    n = sizes[present[-1]] if present else 1  # the axis that was packed is not the last any more
    return lambda words: packed.broadcast_words(packed.pack(packed.unpack(order(words), n).reshape(wide)), wide, shape)


def _product(a: Labels, b: Labels, output: Labels, sizes: Sizes) -> Callable[[Words, Words], Words]:
    """Return what contracts two factors that share labels which vanish."""
    orders = word_orders(a, b, output)
    turn, batch, left, right, inner = orders
    a, b = (b, a) if turn else (a, b)
    head = tuple(sizes[x] for x in batch)
    ready_a, ready_b = (_ordered(own, order, sizes) for own, order in zip((a, b), orders.factors, strict=True))
    finish = _ordered(orders.product, output, sizes)
    if not right:
        gap, first = [1] * len(left), len(orders.product)
        axes = tuple(range(first, first + len(inner)))

        def meet(x: Words, y: Words) -> Words:
            y = ready_b(y)
            y = y.reshape((*head, *gap, *y.shape[len(head) :]))
            return finish(packed.pack(np.any(ready_a(x) & y != 0, axis=axes)))

        return (lambda x, y: meet(y, x)) if turn else meet
    count, rows, last = math.prod(head), math.prod(sizes[x] for x in left), sizes[inner[-1]]
    lines = math.prod(sizes[x] for x in inner[:-1])
    padded = packed.width(last) * 64 if len(inner) > 1 else last  # rows for padding bits between, which are never set
    columns = (*(sizes[x] for x in right[:-1]), packed.width(sizes[right[-1]]))
    across = math.prod(columns)
    shape = (*head, *(sizes[x] for x in left), *columns)

    def multiply(x: Words, y: Words) -> Words:
        y = ready_b(y).reshape((count, lines, last, across))
        if padded != last:
            y = np.pad(y, ((0, 0), (0, 0), (0, padded - last), (0, 0)))
        product = packed.multiply(ready_a(x).reshape((count, rows, -1)), y.reshape((count, lines * padded, across)))
        return finish(product.reshape(shape))

    return (lambda x, y: multiply(y, x)) if turn else multiply
