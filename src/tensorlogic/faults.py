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
    "E311": Fault("a store with a negative bound", "A cache was given a bound below zero.", "Give the most entries or bytes it may keep, 0 or more."),
    "E301": Fault("an argument of the wrong kind", "A function was given something that is not what it takes.", "Give what the message names; the hint shows how to make one."),
    "E310": Fault("a number out of range", "A count, limit or size is not a whole number, or is below the least that makes sense.", "Give a whole number in the range that the message states."),
    # E33x to E37x: planning
    "E360": Fault("a tolerance or step that is not a positive number", "GradientChecker was given rtol=, atol= or step= that is negative, infinite or no number.", "Give positive numbers, or leave them out."),
    "E361": Fault("an option that a check of gradients does not have", "GradientChecker.check was given a keyword that vjp does not take.", "Leave it out, or write the one that the hint names."),
    "E362": Fault("no conformance case matches", "The patterns in include= and exclude= leave no case to run.", "Use shell patterns such as 'einsum/*'; cases() lists the names."),
    # E4xx: backends
    # E5xx: running
    # E6xx: logic
    # E7xx: traces
    # E8xx: views and memory
    # E9xx: eager execution and gradients
    "E900": Fault("a recorded value changed in place", "A variable that gradients are recorded for was assigned to, updated in place, or given as out=.", "Compute a new value, or change leaves inside `with no_grad():` or with assign."),
    "E901": Fault("a NumPy call that is not recorded", "A NumPy function, or one of its arguments, has no recorded form on variables.", "Use the function that the hint names, leave the argument out, or call NumPy on x.value."),
    "E902": Fault("a list of variables as an array", "Variables inside a list would be copied out of the record, and their gradient lost.", "Join them: np.stack([a, b])."),
    "E903": Fault("a result whose shape depends on values", "A mask of truth values as an index, or np.where with a condition alone.", "Write np.where(mask, x, y), or give positions: np.flatnonzero(mask)."),
    "E904": Fault("a gradient for what is not of a float dtype", "Truth values and whole numbers do not change smoothly, so they have no gradient.", "Use floats: x.astype('float32'), or leave it out of what is differentiated."),
    "E905": Fault("nothing was recorded", "backward started from a value that depends on no variable which wants gradients.", "Compute it from tl.Variable(array), outside of no_grad and without detach."),
    "E906": Fault("backward twice from one variable", "Gradients would add up without a word.", "Compute the value anew, or say backward(again=True)."),
    "E907": Fault("a gradient of what is no scalar", "backward without a cotangent needs one number to start from.", "Reduce it, loss.sum(), or give the cotangent: y.backward(array)."),
    "E908": Fault("a cotangent of another shape", "A gradient of an output must have that output's shape.", "Give an array like the output: np.ones_like(y)."),
    "E909": Fault("NaN in a value or a gradient", "check_nan=True found the first tensor that holds NaN.", "Look at the operands of the operation that is named."),
    "E910": Fault("no outputs to make a graph of", "A tape holds nothing that is still there, or a traced function returned nothing or no variable.", "Keep and return what is computed from variables."),
    "E911": Fault("examples that do not fit a function", "graph_of was given more or fewer examples than the function has parameters.", "Give one example for each parameter."),
    "E912": Fault("assigning another shape or dtype to a variable", "A variable keeps its shape and dtype for life.", "Make a new Variable."),
    "E913": Fault("an index that does not fit", "An index is out of range, or there are more of them than axes.", "Index within the shape that the message names."),
    "E914": Fault("an index that is no whole number", "An array used as an index holds no integers.", "Give integers: indices.astype(int)."),
    "E920": Fault("a time that is no number of seconds", "StrategyOptimizer was given seconds= that is negative or no number.", "Write StrategyOptimizer(seconds=0.1)."),
    "E921": Fault("made-up inputs of bfloat16", "NumPy has no bfloat16, so inputs to measure with cannot be made up.", "Give the inputs, or use PrecisionMode.FP32."),
    "E922": Fault("a gradient budget without its strategy, or the other way round", "A budget of bytes belongs to GradientStrategy.BUDGETED, which needs one.", "Write forward(graph, inputs, budget=1 << 30)."),
    "E923": Fault("backward without forward", "There is no forward run on this thread that has not been used up.", "Call executor.forward(graph, inputs) first; each serves one backward run."),
    "E924": Fault("backward from other outputs", "The outputs given are not those of the last forward run on this thread.", "Give what executor.forward returned last."),
    "E925": Fault("no gradients yet", "get_gradients was called before backward on this thread.", "Call executor.forward, then executor.backward."),
    "E926": Fault("another number of gradients than outputs", "backward takes one gradient for each output.", "Give one for each, None where it does not count."),
    "E928": Fault("a gradient that fits no budget", "Even with everything computed again the gradient needs more memory than allowed.", "Give a larger budget, or split the batch and accumulate gradients."),
    "E930": Fault("a hook that is not attached", "remove_hook was given a hook that the context does not have.", "Remove what add_hook added, once."),
    "E931": Fault("an out= array that is read-only", "An output cannot be written into it.", "Give a writable array."),
    "E932": Fault("out= arrays that overlap", "Two outputs would be written into the same memory.", "Give each output an array of its own."),
    "E950": Fault("a shape that cannot be", "A shape holds something else than whole numbers from 0.", "Give a tuple of sizes: (3, 4)."),
    "E951": Fault("a dtype that a pool cannot hold", "Pools hold plain numbers; objects and unknown dtypes need NumPy's own arrays.", "Use a number dtype, or np.empty for objects."),
    "E952": Fault("giving back what a pool did not give", "An array or workspace was given to a pool that it does not come from.", "Give back what the same pool returned."),
    "E953": Fault("giving back twice", "The memory was given back before.", "Give an array or workspace back once."),
    "E954": Fault("memory given back while a view shows it", "Another array still looks at the memory.", "Drop the views first, or keep a copy of what they show."),
    "E955": Fault("an array larger than its workspace", "The shape and dtype take more bytes than were asked for.", "Allocate as many bytes as the hint names."),
    "E956": Fault("using a workspace after its release", "The block belongs to the pool again.", "Allocate another one."),
    "E957": Fault("a workspace pool that cannot be", "Its growth factor is below 1, or its capacity is beyond its limit.", "Give growth >= 1 and capacity <= limit."),
    "E958": Fault("a workspace pool at its limit", "No free block is large enough, and the limit allows no more memory.", "Release workspaces, or raise limit=."),
    "E959": Fault("a cache limit that is no number of megabytes", "TensorCache was given a limit that is negative, infinite or no number.", "Write TensorCache(limit_mb=1000)."),
    "E960": Fault("a view that would need a copy", "Lists of indices, Python lists and other dtypes cannot be seen in place.", "Make the array or the copy first: np.asarray(x), array.take(indices)."),
    "E961": Fault("a slice that leaves its axis", "A start, end or index is out of range, or the range runs the wrong way; views never clip.", "Use numbers within the size that the message names."),
    "E962": Fault("a view that does not fit its tensor", "There are more specs than axes, or the array has another rank or shape than the view was made for.", "Give one spec for each axis, and an array of the declared shape."),
    "E963": Fault("a view that depends on an unknown size", "Composing slices from both ends needs the size of the axis.", "Give the base's shape: TensorView(base, specs, base_shape=(...))."),
    "E964": Fault("a window that does not fit", "A window reaches over more elements than the axis has, or has a size, step or dilation below 1.", "Use a smaller window, with numbers from 1."),
    "E965": Fault("an offset that leaves the base's memory", "The shifted view would look at memory that is not the base's.", "Use an offset in the range that the hint names."),
    "E966": Fault("a view that is no index", "Windows and offsets cannot be written as an index.", "Use view.resolve(array), or b.window(x, axis, size) in a graph."),
    "E967": Fault("a tensor that is only named", "The view was made of a name, so there is no array to look at.", "Give the array: view.resolve(array)."),
    "E968": Fault("an in-place change that is not safe", "The memory is read-only, shared between elements, or read by an operand in another layout.", "Write to a copy, or pass a copy of the operand."),
    "E969": Fault("an in-place change that does not fit", "The ufunc, the operand's shape or the result's dtype does not suit the view.", "Use an element-wise ufunc, and operands that broadcast and cast to the view."),
    "E970": Fault("a slice with a step where none belongs", "Range has step 1, and no stride is 0.", "Use SliceSpec.Strided(start, end, stride), or Index for one element."),
    "E971": Fault("an axis that is not there", "The axis is beyond the rank of the tensor.", "Use an axis from 0, or count back from -1."),
    "E972": Fault("memory that the system does not give", "A block larger than the free memory, or than the address space, was asked for.", "Ask for less, or use a narrower dtype."),
}  # fmt: skip
