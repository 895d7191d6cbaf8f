"""The catalogue of faults: what each error code means, why it comes about, and what to do. One code, one fault."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of mistake.

    >>> FAULTS["E301"].title
    'an argument of the wrong kind'
    """

    title: str
    cause: str
    fix: str


FAULTS: dict[str, Fault] = {
    # E0xx and E1xx: graphs and types
    # E2xx: files
    # E30x to E32x: calls
    "E301": Fault("an argument of the wrong kind", "A function was given something that is not what it takes.", "Give what the message names; the hint shows how to make one."),
    "E310": Fault("a number out of range", "A count, limit or size is not a whole number, or is below the least that makes sense.", "Give a whole number in the range that the message states."),
    # E33x to E37x: planning
    # E4xx: backends
    "E401": Fault("an unknown backend", "The name given as backend= is none that is known.", "Use one of the names in the hint, or give a backend object."),
    "E402": Fault("a dtype the backend lacks", "The graph needs an element type that this backend cannot compute with.", "Cast to a dtype that the hint names, or use another backend."),
    "E403": Fault("an operation the backend lacks", "The graph holds an operation that this backend has no kernel for.", "Use the numpy backend, which has all of them."),
    "E406": Fault("an object that is no backend", "What was given as backend= lacks methods that every backend has.", "Give a name, or an object with the methods that the hint lists."),
    "E410": Fault("a masked array", "Masks would be lost without a word, so masked arrays are not taken.", "Fill it first: array.filled(0)."),
    "E411": Fault("nested lists of different lengths", "A list was given whose rows do not all have one length, so it is no array.", "Make the rows equally long, or pad them."),
    "E412": Fault("an array without numbers", "Text, objects, dates and complex numbers cannot be computed with here.", "Give numbers or truth values, such as np.asarray(x, dtype='float32')."),
    "E413": Fault("values that do not fit the declared dtype", "Numbers were given as a list, and some change when they become the input's dtype.", "Give an array of the dtype that is meant, or declare another."),
    "E420": Fault("words that do not fit a shape of bits", "BitTensor.of takes 64 values a word along the last axis, as uint64.", "Pack an array with BitTensor(array) instead."),
    "E421": Fault("a transposed matrix of fewer than two axes", ".mT exchanges the last two axes, and there are not two.", "Write .T for fewer axes."),
    "E422": Fault("an order that does not name each axis once", "transpose was given axes that are missing, doubled or out of range.", "Name every axis once, such as transpose(1, 0)."),
    "E423": Fault("an axis of a bit tensor that is not there", "A reduction names an axis twice, or one that the tensor does not have.", "Name axes from 0 to ndim - 1, or negative ones from the end."),
    "E424": Fault("the diagonal of something that is not square", "The last two axes must be there and equally long.", "Cut the tensor to a square first."),
    "E425": Fault("a matrix product of a single value", "One side of @ has no axes.", "Write a & b."),
    "E426": Fault("an einsum of bits with too many operands", "BitTensor.einsum contracts one or two tensors at a time.", "Contract two of them first, or run a graph, which finds a good order."),
    "E427": Fault("an index of bits with two sizes", "One letter stands for axes of different lengths.", "Check the equation against the shapes."),
    "E428": Fault("bit tensors whose shapes do not fit", "Element-wise operations need equal shapes, up to axes of length 1.", "Reshape one of them, or check which axis is which."),
    "E430": Fault("a shape that no array can have", "The null backend was asked for an array with more elements than memory can address.", "Check the sizes that the graph is run with."),
    # E5xx: running
    "E501": Fault("a fixpoint that does not settle within its limit", "Values still change after the last round allowed.", "Raise limit=, or give a tolerance= for values that only approach their limit."),
    "E502": Fault("a fixpoint that goes round in circles", "The same values come back every few rounds, so it would never settle.", "Give a tolerance=, such as 1e-6, or check rules that undo each other."),
    # E6xx: logic
    # E7xx: traces
    # E8xx: views and memory
    # E9xx: eager execution and gradients
}  # fmt: skip
