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
    "E001": Fault("sizes that do not fit each other", "Two axes that an operation joins, or a declared shape and the array given for it, have different sizes.", "Transpose or slice one of them, or correct the spec or the declared shape."),
    "E002": Fault("an input of another element type", "An input was declared with one dtype and given an array of another.", "Convert the array with astype, or declare the input without a dtype."),
    "E003": Fault("out of memory", "What the plan needs at its peak, or the answer alone, is more than the memory that may be used.", "Use smaller inputs or a narrower dtype, run in parts with budget=, or raise the limit."),
    "E004": Fault("a node failed while running", "A step raised an exception; the message names the node and what it was given.", "Look at the operands that the message lists."),
    "E005": Fault("no such axis", "An axis is counted beyond the tensor's axes.", "Use one of the axes that the hint names; -1 is the last."),
    "E006": Fault("an axis named twice", "A reduction lists the same axis twice, perhaps once from the front and once from the back.", "Name each axis once."),
    "E007": Fault("an unknown rank", "The operation must know how many axes its operand has, and the operand comes from an input without a shape.", "Declare the input's shape; names stand for sizes that are not known yet."),
    "E009": Fault("more indices than axes", "A tensor is indexed by more indices than it has axes, or by two '...'.", "Index each axis at most once."),
    "E010": Fault("an index out of range", "An index or a slice reads beyond the end of an axis.", "Keep within the size that the message names."),
    "E011": Fault("a slice of step 0", "A slice was written with step 0.", "Use a step of at least 1, or a negative one to go backwards."),
    "E012": Fault("something that is no index", "A graph is indexed by integers, slices, '...' and None only.", "Use b.gather(x, indices, axis) for an array of indices."),
    "E013": Fault("ranges or widths for another number of axes", "A slice or a pad says something about more or fewer axes than there are.", "Give one range, or one pair of widths, for every axis."),
    "E014": Fault("a slice of less than nothing", "A slice would have a negative number of elements.", "Let it end after it starts."),
    "E015": Fault("squeeze of an axis that is not 1", "Only an axis of size 1 can be removed.", "Reduce or index the axis instead."),
    "E016": Fault("widths of a pad", "Widths are pairs (before, after) of numbers that are not negative.", "Write [(1, 1), (0, 0)]; slice to remove elements."),
    "E017": Fault("a reduction of nothing", "max, min, argmax and argmin of no elements have no value, and an integer dtype has no infinity.", "Give at least one element, or cast to a float dtype."),
    "E018": Fault("top_k of more than there are", "k is negative or larger than the axis.", "Use a k of 0 up to the size of the axis."),
    "E019": Fault("two open sizes in a reshape", "Only one size of a reshape can be worked out from the others.", "Write -1 once."),
    "E020": Fault("an order that is no order of the axes", "A transpose must name each axis exactly once.", "List all axes in the order they should have."),
    "E021": Fault("axes of a broadcast", "The axes of a broadcast do not match the operand or the target shape.", "Give one axis of the result for each axis of the operand, in order."),
    "E022": Fault("a window that does not fit", "A window needs a size, step and dilation of at least 1, and must not reach beyond its axis.", "Use a smaller window or pad the operand first."),
    "E023": Fault("a scalar is needed", "A truth value, a fill value or a scale must be a scalar here.", "Reduce or index it first; use b.where for a choice by element."),
    "E024": Fault("a scalar where an axis is needed", "matmul and scan run along an axis, which a scalar does not have.", "Use multiply, or give a tensor of at least one axis."),
    "E025": Fault("batch axes that do not fit", "The batch axes of gather and scatter must come before the axis and be axes of both operands.", "Use a smaller batch=."),
    "E026": Fault("more than 64 axes", "NumPy arrays have at most 64 axes.", "Merge or contract some of them first."),
    "E101": Fault("an einsum spec that cannot be read", "A character is no index, '->' or '...' stands twice, or the result has an index that no operand has.", "Write one letter for each axis, such as 'ij,jk->ik'."),
    "E102": Fault("a size that cannot be read", "A size is an integer, a name, or an expression of names with + - * //.", "Correct the text at the character that the message names."),
    "E103": Fault("an unsupported dtype", "The dtype is not one of bool, the integers, float16, bfloat16, float32 and float64.", "Use a supported dtype; the hint names the nearest."),
    "E104": Fault("an unknown algebra", "There is no algebra of this name.", "Use one of tensorlogic.ir.algebra.ALGEBRAS; the hint names the nearest."),
    "E105": Fault("a wrong number of operands", "An operation was given more or fewer operands than it takes.", "Give as many as the message says."),
    "E106": Fault("a value that does not exist yet", "A tensor of a graph that is being built was used as a Python value: in an if, a loop or a conversion.", "Use b.where, b.cond or b.scan, or execute the graph first."),
    "E107": Fault("an input declared twice", "The same name was declared with another shape or dtype.", "Use another name, or the same declaration."),
    "E114": Fault("a spec for another number of operands", "The spec has more or fewer comma-separated groups than there are operands.", "Write one group of indices for each operand."),
    "E115": Fault("a spec for another number of axes", "An operand has more or fewer axes than its group has indices.", "Name every axis, or write '...' for those that have no name."),
    "E116": Fault("'...' missing in the result", "The operands have axes under '...' that the result does not mention.", "Add '...' to the result, or name and contract those axes."),
    "E117": Fault("too many labels", "A spec may have 1,000 different labels; integer labels are 0 to 99,999.", "Number the labels from 0."),
    "E118": Fault("a size out of range", "Sizes are 0 to 2^63 - 1.", "Use a size in that range."),
    "E119": Fault("a size expression that is too large", "Expressions of sizes are bounded in length, in terms and in nesting.", "Give the value a name of its own."),
    "E120": Fault("division by zero in a size", "A size expression divides by zero.", "Correct the divisor."),
    "E121": Fault("an element type that the operation does not take", "An operation is not defined for this dtype: arithmetic on bool, indices that are floats, logic on numbers.", "Cast the operand first: b.cast(x, dtype)."),
    "E122": Fault("element types that must be equal", "What a loop carries, or the two branches of a cond, must keep one dtype.", "Cast one of them."),
    "E123": Fault("an array that cannot be made", "The nested lists are not equally long, or the object does not let NumPy have its values.", "Give a rectangular array; detach a torch tensor first."),
    "E124": Fault("an integer of more than 1024 bits", "No dtype can hold it.", "Write inf, or a smaller number."),
    "E125": Fault("a factor outside of the algebra", "Some algebras are for factors in a range only, such as 0 to 1.", "Clip the factors, or use another algebra."),
    "E126": Fault("an unknown operation", "There is no function, reduction, combination or operation of this name.", "Use the name that the hint suggests."),
    "E127": Fault("no such factor or result", "The number of a factor or of a result is out of range.", "Count from 0."),
    "E128": Fault("several results where one is needed", "The operation has several results (or none), and one was meant.", "Choose one with an item node."),
    "E129": Fault("an algebra without a gradient", "Truth values do not change a little at a time.", "Use a fuzzy or real algebra for what is trained."),
    "E130": Fault("a body that is no function", "The body of a fixpoint, scan or cond must be a function of as many arguments as the message says.", "Write a function or a lambda."),
    "E131": Fault("a body that returns something else", "A body returns another number of tensors than it must.", "Return as many as the message says."),
    "E132": Fault("limits of a fixpoint", "A fixpoint needs at least one round and a tolerance that is not negative.", "Write limit=1000, tolerance=1e-6."),
    "E133": Fault("a scan without a length", "A scan over no operand does not know how many steps to run.", "Write length=."),
    "E134": Fault("a literal that is no scalar", "A literal is a bool, an int or a float, and is written as Python prints it.", "Make it with Literal.of(value), or use b.constant(array)."),
    "E135": Fault("something that is no device", "A device is a word, a colon and a number.", "Write 'cpu:1'."),
    "E136": Fault("argmax over some axes", "argmax and argmin take one axis or all of them.", "Reshape the axes into one first."),
    "E138": Fault("a tensor of another graph", "A tensor belongs to the builder, and to the body, that made it.", "Build with one builder; return from a body what is needed outside of it."),
    "E139": Fault("a change to a graph", "Graphs do not change once they are built.", "Build another one."),
    "E140": Fault("a graph without outputs", "A graph computes what its outputs need; without outputs it computes nothing.", "Name at least one output: b.build(y=y)."),
    "E141": Fault("a call inside a body", "Inputs are declared, and graphs built, outside of the bodies of loops.", "Move the call out; tensors around a body can be used inside of it."),
    "E142": Fault("a NumPy function that graphs do not have", "A NumPy function was called on a tensor of a graph, and there is no operation of that name or with those options.", "Use the builder's methods: b.exp(x)."),
    # E2xx: files
    "E201": Fault("a reference to what is not there", "A node reads a node, a name or a tensor that does not exist.", "Correct the number or the name; the hint shows what there is."),
    "E202": Fault("a node that reads itself or a later one", "Nodes stand in order: each reads only earlier ones. A graph has no cycles.", "Reorder the nodes; use a fixpoint for recursion."),
    "E203": Fault("an output that does not exist", "An output names a node that is not there.", "Use the number of an existing node."),
    "E204": Fault("two outputs of one name", "Outputs are found by name.", "Give every output its own name."),
    "E205": Fault("two inputs or statements of one name", "Inputs and the statements of a block are found by name.", "Give each its own name."),
    "E206": Fault("a constant without its array", "A constant node's digest is not among the arrays.", "Pass constants={digest: array}."),
    "E207": Fault("nesting that is too deep", "Bodies within bodies, or JSON, are nested beyond what is read.", "Unnest some of them."),
    "E208": Fault("something that is no operation", "A node holds an object that is not one of the operations.", "Use the classes of tensorlogic.ir.ops."),
    "E209": Fault("a size out of normal form", "A size in a file must be written as the package prints it.", "Write it as the hint shows."),
    "E210": Fault("types that cannot be worked out", "Inference failed in a way that no rule foresaw, such as numbers of thousands of digits.", "Look at the node that the message names."),
    "E211": Fault("a tensor made twice", "Two nodes of the file make the same tensor, or a node makes an input.", "Give one of them a tensor of its own."),
    "E212": Fault("a node that makes several tensors", "A node of the Rust crate's files makes one tensor.", "Split the node."),
    "E213": Fault("ranges or widths of the wrong length", "A range is (start, count, step), a width is (before, after).", "Write all parts."),
    "E214": Fault("an output name that is no file name", "An output's name would leave the archive's folder when the archive is unpacked.", "Rename the output, or print it instead of writing it."),
    "E219": Fault("an unknown error code", "There is no error of this code.", "List the codes: tensorlogic explain-error --list."),
    "E220": Fault("a value that a file cannot hold", "A graph or folder holds, or was made by, something that this package cannot write or read back.", "Use plain numbers and text; save again with this version."),
    "E221": Fault("no such file", "There is no file of this name.", "Correct the name; the hint names the nearest file."),
    "E222": Fault("a text that is too large", "A limit bounds what is read from files that may not be trusted.", "Pass limit=bytes if you trust the file."),
    "E223": Fault("text that cannot be read", "The text of a graph, or its JSON, is not written by its rules.", "Correct it where the message points."),
    "E224": Fault("a file that is no graph", "The file is JSON or text of another kind.", "Give a graph file: JSON with \"format\", the Rust crate's JSON, or text that begins with 'graph {'."),
    "E225": Fault("a field that is wrong or missing", "A field of a file, or an attribute in text, is unknown, missing or of the wrong kind.", "Correct the field that the message names."),
    "E226": Fault("a constant whose data are missing", "The file names a constant whose data are neither in it nor beside it.", "Keep the .safetensors file beside the JSON, or save again."),
    "E227": Fault("a constant of another type", "The array has another shape or dtype than the graph says.", "Write the graph again."),
    "E228": Fault("a file that cannot be written", "The system refused to write: no such folder, no right, no room.", "Give a file in a folder that can be written."),
    "E229": Fault("a file that cannot be read", "The path is no file, or the system refused to read it.", "Check the path and its rights."),
    "E230": Fault("a file name that says something else", "The ending of the name stands for another kind of file.", "Use the ending that the hint names."),
    "E231": Fault("text that is not UTF-8", "The bytes are not UTF-8, or a string holds half of a surrogate pair.", "Write the file again as UTF-8."),
    "E232": Fault("a number out of range in a file", "A number does not fit 64 bits, has too many digits, or is no JSON number.", "Write a smaller number; infinities and NaN are written as text."),
    "E233": Fault("a key or attribute twice", "The same key stands twice in an object, or the same attribute twice in a statement.", "Remove one of them."),
    "E234": Fault("a format of another version", "The file was written by another version of the format.", "Use the version of the package that wrote it, or a newer one."),
    "E235": Fault("data of a constant that cannot be read", "The data are not base64 or safetensors, or do not fill the shape.", "Write the graph again."),
    "E236": Fault("a constant that was changed", "The digest of the data is not the one that the graph names.", "Restore the file, or write the graph again."),
    "E237": Fault("an element that the dtype cannot hold", "A constant in text has an element of another kind, or one that is too large.", "Use a wider dtype, or correct the element."),
    "E238": Fault("the program dot is missing", "SVG pictures are laid out by Graphviz.", "Install graphviz, or use to_mermaid() or to_dot()."),
    "E239": Fault("the program dot failed", "Graphviz did not lay out the graph, or not in time.", "Give it longer, or draw a smaller graph."),
    # E30x to E32x: calls
    "E301": Fault("an argument of the wrong kind", "A function was given something that is not what it takes.", "Give what the message names; the hint shows how to make one."),
    "E306": Fault("an input that cannot be read", "A value given on the command line is no array file, no archive member and no JSON.", "Give a .npy or .json file, FILE.npz:KEY, or JSON such as [1, 2, 3]."),
    "E310": Fault("a number out of range", "A count, limit or size is not a whole number, or is below the least that makes sense.", "Give a whole number in the range that the message states."),
    # E33x to E37x: planning
    # E4xx: backends
    # E5xx: running
    # E6xx: logic
    "E601": Fault("a name that is missing", "Variables, predicates and domains have names; a variable's is one word.", "Use letters, digits and _, and no digit first."),
    "E602": Fault("an expression used as a truth value", "Python's and, or, not and if ask an expression for its truth, which it has only when it runs.", "Write & | ~ and tl.if_then_else."),
    "E603": Fault("an expression that cannot be read", "The text is not written in the notation.", "Correct it where the caret points."),
    "E604": Fault("an unknown strategy", "There is no logic of this name.", "Use one of the six strategies, or a Strategy of your own."),
    "E605": Fault("a domain without an order", "The elements of a set have no order, so names and the rows of matrices could differ between processes.", "Give a list, such as sorted(names)."),
    "E606": Fault("a domain that is not given", "A variable or predicate has a domain that the context does not list.", "Add it: CompilerContext(domains={name: size})."),
    "E607": Fault("a constant that is in no domain", "A name or number is not an element of the domain of its place.", "Correct it, or add it to the domain."),
    "E608": Fault("two domains for one variable", "A variable stands in places of different domains.", "Use another variable, or declare both places with one domain."),
    "E609": Fault("a predicate of two arities", "A predicate has another number of arguments elsewhere.", "Give it the same number everywhere."),
    "E610": Fault("a domain that nothing says", "Neither a variable, nor its predicate, nor a constant says the domain.", "Declare it: tl.variables('x', domain='Person')."),
    "E611": Fault("a predicate and a variable of one name", "The same word is used for both.", "Rename one of them."),
    "E612": Fault("a head that is no predicate", "The head of a rule must be a predicate.", "Write tl.Rule(tl.pred('p', x), body)."),
    "E613": Fault("a head's variable that the body lacks", "A variable of the head does not occur in the body, so nothing says its values.", "Use it in a predicate of the body."),
    "E614": Fault("a graph that does not fit its predicate", "The graph that computes a predicate has several outputs, or an output of another shape than its domains.", "Give a graph of one output, with an axis for each argument."),
    "E615": Fault("recursive rules", "A head depends on itself.", "Use GraphBuilder.fixpoint."),
    "E616": Fault("domains that do not fit the answer", "The number of domains or headings, or the size of a domain, is not that of the answer.", "Give one domain for every axis, or one for all."),
    "E617": Fault("a comparison that Python has made", "x == y compared two Python objects before the formula could.", "Write tl.same(x, y)."),
    "E618": Fault("a connective of nothing", "and, or and the quantifiers need at least one part or variable.", "Give at least one."),
    "E619": Fault("an equation of two constants", "same compares a variable with a variable or a constant.", "Use at least one variable."),
    "E620": Fault("a variable named twice", "A quantifier lists the same variable twice.", "Name each variable once."),
    "E621": Fault("a name twice in a domain", "The elements of a domain must differ.", "Remove the repeated name."),
    "E622": Fault("a score outside of 0 to 1", "A fuzzy or probabilistic logic was given a truth value below 0 or above 1.", "Scale or clip the scores, such as 1 / (1 + exp(-x))."),
    # E7xx: traces
    # E8xx: views and memory
    # E9xx: eager execution and gradients
    # Wxxx: warnings
    "W001": Fault("a slow operation", "An operation took longer than was expected of it.", "Look at the plan, and join contractions in one einsum."),
    "W201": Fault("an unused input", "No output depends on the input.", "Remove it, or use it."),
    "W202": Fault("an unused node", "No output depends on the node.", "Remove it; optimization drops it anyway."),
    "W203": Fault("repeated work", "Two nodes compute the same.", "Build with GraphBuilder(), which merges them, or optimize."),
}  # fmt: skip
