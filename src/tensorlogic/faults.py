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
    "E108": Fault("a pass broke the graph", "A pass returned no graph, or one whose inputs, outputs or types are not those it was given.", "Mend the pass that the message names; it must keep what callers see."),
    "E110": Fault("no gradient through truth values or whole numbers", "What is differentiated, or what stands between it and the input, is no number of a float dtype.", 'Compile rules with strategy="soft_differentiable", cast to a float dtype, or pass straight_through=True.'),
    "E111": Fault("an operation without a gradient", "The operation has no rule for its derivative.", "Give it one: tl.grad(graph, custom={name: rule})."),
    "E112": Fault("a custom gradient that returns something else", "A rule returns one tensor of the tape for each operand, or None, or a mapping from nodes.", "Return as many gradients as the operation has operands."),
    "E113": Fault("a fixpoint without an equation", "A fixpoint that combines its rounds depends on how many it took, so its result solves no equation to differentiate.", "Pass unroll= with a number of rounds, or write it as a scan."),
    # E2xx: files
    # E30x to E32x: calls
    "E301": Fault("an argument of the wrong kind", "A function was given something that is not what it takes.", "Give what the message names; the hint shows how to make one."),
    "E302": Fault("a name that the graph does not have", "An argument names an input, an output or a node that is not in the graph.", "Use one of the names that the hint lists."),
    "E303": Fault("an input that is missing", "A graph runs when every one of its inputs is given.", "Give the input that the message names; the hint lists them all."),
    "E304": Fault("a size that nothing fixes", "A named size is in no shape of an input, or the graph is used where its sizes must be known.", "Give it: sizes={'n': 8}."),
    "E310": Fault("a number out of range", "A count, limit or size is not a whole number, or is below the least that makes sense.", "Give a whole number in the range that the message states."),
    # E33x to E37x: planning
    # E4xx: backends
    # E5xx: running
    # E6xx: logic
    # E7xx: traces
    # E8xx: views and memory
    # E81x to E89x: gradients and passes
    "E810": Fault("several outputs, and none named as the loss", "A gradient is of one output.", "Name it: tl.grad(graph, of='loss'); or use tl.vjp."),
    "E811": Fault("a loss that is no scalar", "A gradient is of one number.", "Reduce the loss by b.sum or b.mean, or use tl.vjp and give its cotangent."),
    "E812": Fault("nothing to differentiate", "The graph has no outputs or no float inputs, or wrt= names none.", "Build the graph with an output, and name at least one float input."),
    "E813": Fault("custom= names nothing in the graph", "A key of custom= is an operation's name, an output's name or a node's number.", "Use one of the names that the hint lists."),
    "E814": Fault("a graph without gradients", "Clipping and scaling change the outputs whose names begin with d_, and there are none.", "Say which outputs are gradients: names=['g']."),
    "E815": Fault("a gradient that needs shapes", "The rule of an operation must know the number of axes, and an input has no declared shape.", "Declare the shapes of the inputs; names stand for unknown sizes."),
    "E816": Fault("a node or operand that is not there", "A split names a node or an operand by a number that the graph does not have.", "Use a number that the message's range holds."),
    # E9xx: eager execution and gradients
}  # fmt: skip
