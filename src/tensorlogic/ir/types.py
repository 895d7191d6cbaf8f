"""The type of a tensor: its shape and the kind of its elements; how values are read as arrays; and what the type rules of operations share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import value_text
from ..errors import DTypeError, ShapeError, TensorLogicError, nearest
from .sizes import Dim, dim, integer

ITEMSIZE = {
    "bool": 1,
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
DTYPES = tuple(ITEMSIZE)
SAFETENSORS = {  # what dtypes are called in safetensors files
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
INTEGERS = frozenset(d for d in DTYPES if "int" in d)
Array = NDArray[Any]


class TensorShape(tuple[Dim, ...]):
    """A shape: a tuple whose sizes are integers, names, or expressions of names.

    >>> print(TensorShape(["n", 784]), TensorShape.static_shape([64, 128]))
    [n, 784] [64, 128]
    >>> TensorShape(["n", 3]).is_static
    False
    """

    __slots__ = ()

    def __new__(cls, dims: Iterable[object] = ()) -> TensorShape:
        try:
            each = iter(dims)
        except TypeError:
            message = f"a shape must be a sequence of sizes, got {value_text(dims)}"
            hint = f"write ({value_text(dims)},)" if isinstance(dims, int) else "write a tuple, such as ('n', 3)"
            raise ShapeError(message, hint, code="E301") from None
        return super().__new__(cls, [d if type(d) is int and 0 <= d < 1 << 63 else dim(d) for d in each])

    @classmethod
    def static_shape(cls, dims: Iterable[int]) -> TensorShape:
        """Make a shape of known sizes."""
        return cls(dims)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    @property
    def is_static(self) -> bool:
        """Whether every size is a known integer."""
        return all(isinstance(d, int) for d in self)

    def __str__(self) -> str:
        return "[" + ", ".join(str(d) for d in self) + "]"

    def __repr__(self) -> str:
        return f"TensorShape({list(self)})"


class TensorType(NamedTuple):
    """A shape (None: rank unknown) and a dtype (None: taken from the bound array).

    >>> print(TensorType(TensorShape(["n", 3]), "float32"), TensorType(None, None))
    float32[n, 3] any
    """

    shape: TensorShape | None
    dtype: str | None
    weak: bool = False  # a Python scalar, which does not widen the other operand
    layout: str = "dense"  # in a plan, how the value is held: "sparse" for a relation given by its tuples
    tuples: int | None = None  # in a plan, about how many tuples a relation has

    @classmethod
    def of(cls, array: Any) -> TensorType:
        """Return the type of an array.

        >>> print(TensorType.of(np.ones((2, 3), "float32")))
        float32[2, 3]
        """
        found = cls(TensorShape(array.shape), dtype_name(array.dtype))
        layout = getattr(array, "layout", "dense")
        return found if layout != "sparse" else found._replace(layout=layout, tuples=array.count)

    def __str__(self) -> str:
        held = "" if self.layout == "dense" else f" {self.layout}"
        return f"{self.dtype or 'any'}{'' if self.shape is None else self.shape}{held}"

    def __repr__(self) -> str:
        held = "" if self.layout == "dense" else f", layout={self.layout!r}, tuples={self.tuples}"
        return f"TensorType(shape={self.shape!r}, dtype={self.dtype!r}, weak={self.weak}{held})"


def dtype_name(dtype: Any) -> str:
    """Return the canonical name of a dtype given as a name, a NumPy dtype or a Python type.

    >>> dtype_name(np.float32), dtype_name("f8"), dtype_name(bool), dtype_name("bfloat16")
    ('float32', 'float64', 'bool', 'bfloat16')
    """
    if isinstance(dtype, str) and dtype in ITEMSIZE:
        return dtype
    try:
        name = "None" if dtype is None else _numpy_name(np.dtype(dtype))
    except (TypeError, ValueError):
        name = dtype if isinstance(dtype, str) else value_text(dtype)
    if name not in ITEMSIZE:
        raise DTypeError(f"unsupported dtype {name!r}", *nearest(name, DTYPES), code="E103")
    return name


@lru_cache(256)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy puts together anew each time: it is asked for in every call, for every input."""
    return str(dtype.name)


_OF_TORCH = {  # what to do, by a word of PyTorch's error
    "BFloat16": "NumPy has no such numbers: give x.float()",
    "Float8": "NumPy has no such numbers: give x.float()",
    "Sparse": "give all of its elements: x.to_dense()",
    "QInt": "give the numbers that it stands for: x.dequantize()",
    "QUInt": "give the numbers that it stands for: x.dequantize()",
    "resolve_conj": "it is to be conjugated yet: give x.resolve_conj()",
    "resolve_neg": "it is to be negated yet: give x.resolve_neg()",
    "meta device": "a tensor of this device has no values: make it on another",
}


def named_array(what: str, value: object, dtype: str | None = None) -> Array:
    """Return a value as a NumPy array; where there is none, the error begins with what it was to be, such as ``data 'x'``."""
    try:
        return plain_array(value, dtype)
    except TensorLogicError as error:
        raise error.renamed(f"{what}: {error.diagnostic.message}") from None


def plain_array(value: object, dtype: str | None = None) -> Array:
    """Return a value as a NumPy array, or say plainly why there is none."""
    if value is None:
        hint = "the value is missing: give an array, a list or a number"
        raise DTypeError("None is given where an array is expected", hint, code="E123")
    if hasattr(value, "toarray"):  # of SciPy, which NumPy would take for one object
        hint = "give all of its elements: x.toarray()"
        raise DTypeError(f"a {type(value).__name__} of SciPy is no array", hint, code="E123")
    try:
        return np.asarray(value, dtype)
    except TensorLogicError:  # a list of tensors of a graph
        raise
    except ValueError as error:
        hint = "give rows of equal lengths, all of them numbers: pad short ones, or leave them out"
        raise DTypeError(f"a rectangular array is expected: {error}", hint, code="E123") from None
    except Exception as error:  # an array of another library that does not let its values go
        hint = "detach it first: x.detach().cpu().numpy()" if hasattr(value, "detach") else "give a NumPy array"
        hint = next((said for word, said in _OF_TORCH.items() if word in str(error)), hint)
        raise DTypeError(f"a {type(value).__name__} cannot be read as an array: {error}", hint, code="E123") from None


def plain_scalar(value: Any) -> Any:
    """Return what an array without axes holds, of this library or another, as a value of Python; anything else as it is.

    >>> plain_scalar(np.array(3)), plain_scalar("a")
    (3, 'a')
    """
    if hasattr(value, "as_py"):  # of Arrow
        return value.as_py()
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def number_array(value: object) -> Array:
    """Return a value as a NumPy array of numbers or truth values, or say plainly why there is none."""
    array = plain_array(value)
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"numbers or truth values are expected, got an array of {array.dtype}", code="E123")
    return array


def frozen_copy(value: object) -> Array:
    """Return a read-only copy of an array, in C order and native byte order, so that its digest stays true."""
    array = plain_array(value)
    if array.dtype == object:
        for element in array.flat:
            if isinstance(element, int) and not -(2**63) <= element < 2**64:
                raise too_large(element)
    name = dtype_name(array.dtype)
    copy = np.array(array, dtype=np.dtype(name), order="C", copy=True)
    copy.setflags(write=False)
    return copy


def too_large(value: int, dtype: str = "64 bits") -> DTypeError:
    """Return the error of an integer that no array can hold, or none of a dtype.

    >>> print(too_large(2**64).diagnostic.message)
    the integer 18446744073709551616 does not fit 64 bits
    """
    if abs(value) >> 1024:
        hint = "write inf, or a smaller number"
        return DTypeError("an integer of more than 1024 bits is beyond every dtype", hint, code="E124")
    return DTypeError(f"the integer {value} does not fit {dtype}", "write a float, such as 1e20", code="E124")


def frozen(value: Array) -> Array:
    """Return an array that nobody can write to: itself, or a copy where it or what it is a view of can be."""
    whole: Any = value
    while isinstance(whole, np.ndarray):
        if whole.flags.writeable:
            return frozen_copy(value)
        whole = whole.base
    return value if isinstance(value, np.ndarray) else frozen_copy(value)


def scalar_dtype(value: bool | int | float) -> str:
    """Return the dtype that a Python scalar has when it stands alone."""
    return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"


_PYTHON: dict[str, type] = {"bool": bool, "int64": int, "float64": float}


@lru_cache(4096)
def ufunc_dtype(ufunc: np.ufunc, types: tuple[tuple[str, bool], ...]) -> str:
    """Return the dtype that NumPy 2 gives ``ufunc`` over operands of (dtype, weak), bfloat16 included.

    >>> ufunc_dtype(np.add, (("float32", False), ("float64", True)))
    'float32'
    """
    brain = any(d == "bfloat16" for d, _ in types)
    if brain and any(d == "float16" for d, _ in types):
        types = tuple(("float32", w) if d in ("bfloat16", "float16") else (d, w) for d, w in types)
        brain = False
    stand_in = [("float16", w) if d == "bfloat16" else (d, w) for d, w in types]
    if brain:  # integers do not widen bfloat16, as they would float16
        stand_in = [("float16", False) if d in INTEGERS else (d, w) for d, w in stand_in]
    operands: list[Any] = [_PYTHON[d] if w and d != "bool" else np.dtype(d) for d, w in stand_in]
    if all(isinstance(o, type) for o in operands):
        operands = [np.dtype(d) for d, _ in stand_in]
    try:
        name = ufunc.resolve_dtypes((*operands, *[None] * ufunc.nout))[-1].name
    except TypeError:
        shown = " and ".join(d for d, _ in types)
        raise DTypeError(f"{ufunc.__name__} is not defined for {shown}", code="E121") from None
    return "bfloat16" if brain and name == "float16" else name


def promote(types: Iterable[tuple[str, bool]]) -> str:
    """Return the dtype that NumPy 2 gives a mixture of operands of (dtype, weak).

    >>> promote([("int32", False), ("float32", False)]), promote([("float32", False), ("float64", True)])
    ('float64', 'float32')
    """
    operands = tuple(dict.fromkeys(types))
    strong = [d for d, w in operands if not w]
    if "bfloat16" not in strong:
        given: list[Any] = [_PYTHON[d](0) if w and strong else np.dtype(d) for d, w in operands]
        return str(np.result_type(*given).name)  # of all at once: pairs would depend on their order
    name, weak = operands[0]
    for d, w in operands[1:]:
        name = ufunc_dtype(np.maximum, ((name, weak), (d, w)))
        weak = weak and w
    return name


def dims(t: TensorType) -> tuple[int, ...]:
    """Return the sizes of a type, which must be known."""
    return tuple([int(d) for d in t.shape or ()])


Types = Sequence[TensorType]
Results = tuple[TensorType, ...]
MAX_RANK = 64  # NumPy's own limit
BELOW_LABELS = -(2**62)  # what a cross entropy adds to labels below 0, so that a gather refuses them


def of_axes(given: Iterable[Any], what: str) -> list[Any]:
    """Return what is given for each axis, if no more than a tensor can have: a range may have more than anybody can go through.

    >>> of_axes(range(3), "a shape")
    [0, 1, 2]
    """
    found = list(islice(given, MAX_RANK + 1))
    if len(found) > MAX_RANK:
        message = f"{what} is for more than {MAX_RANK} axes; at most {MAX_RANK} are possible"
        raise ShapeError(message, code="E026")
    return found


class Equality(NamedTuple):
    """Two sizes that a node relies on being the same, and what to say if they are not."""

    node: int
    left: Dim
    right: Dim
    message: str


class Scope:
    """What a rule may ask while it looks at one node: operand names, and to note an equality."""

    __slots__ = ("args", "equalities", "name", "node")

    def __init__(self, node: int, name: Callable[[int], str], args: Sequence[int], noted: list[Equality]) -> None:
        self.node, self.name, self.args, self.equalities = node, name, args, noted

    def operand(self, n: int) -> str:
        """Return how to call operand n in a message."""
        return f"operand {n} ({self.name(self.args[n])})" if n < len(self.args) else f"operand {n}"

    def same(self, a: Dim, b: Dim, message: str) -> Dim:
        """Take two sizes that differ in writing to be equal, or raise where they cannot be."""
        if a == b:
            return a
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(message, code="E001")
        self.equalities.append(Equality(self.node, a, b, message))
        return b if isinstance(b, int) else a


# (operation, types of its operands, scope) -> types of its results
Rule = Callable[[Any, Types, Scope], Results]


def ufunc_dtype_of(ufunc: np.ufunc, args: Types) -> str | None:
    """Return the dtype that NumPy's function makes of operands of these types; None where one is open."""
    known = tuple([(a.dtype, a.weak) for a in args if a.dtype is not None])
    return ufunc_dtype(ufunc, known) if len(known) == len(args) else None


def equal_shapes(a: TensorShape | None, b: TensorShape | None, what: str, scope: Scope) -> TensorShape | None:
    """Take two shapes to be equal, or raise where they cannot be; an unknown one gives way."""
    if a is None or b is None:
        return a if b is None else b
    message = f"{what} must have equal shapes, got {a} and {b}"
    if len(a) != len(b):
        raise ShapeError(message, code="E001")
    return TensorShape(scope.same(x, y, message) for x, y in zip(a, b, strict=True))


def normal_axis(axis: int, rank: int, what: str) -> int:
    """Return an axis counted from the front, or raise where there is no such axis."""
    axis = integer(axis, f"{what}: an axis")
    if not -rank <= axis < rank:
        hint = f"use {-rank} to {rank - 1}" if rank else "a scalar has no axes"
        raise ShapeError(f"{what}: there is no axis {value_text(axis)} in a tensor of {rank} axes", hint, code="E005")
    return axis % rank


class Layout(NamedTuple):
    """The sizes of the axes, and how many elements apart two neighbours along each of them are."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def in_order(shape: Sequence[int]) -> Layout:
    """Return the layout of a new array.

    >>> in_order((2, 3, 4)).strides
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return Layout(tuple(shape), tuple(reversed(strides)))


def is_in_order(layout: Layout) -> bool:
    """Tell whether elements lie one after another; axes of size 1 do not matter, nor do arrays without elements."""
    wide = [(n, s) for n, s in zip(*layout, strict=True) if n != 1]
    return 0 in layout.shape or [s for _, s in wide] == list(in_order([n for n, _ in wide]).strides)


def index_error(name: str, index: int, place: Sequence[int], size: int) -> IndexError:
    """Return the error of an index that an axis of some size does not have, and of the place where it stands.

    >>> index_error("gather", 3, [1], 3), index_error("gather", BELOW_LABELS - 1, [1], 3)
    (IndexError('gather: index 3 is out of range for an axis of 3 elements, at [1]'), IndexError('gather: label -1 is no class: the logits have 3 classes (0 to 2), at [1]'))
    """
    at = f", at {[int(n) for n in place]}" if len(place) else ""
    if index < BELOW_LABELS // 2:
        return IndexError(f"{name}: {no_class(index - BELOW_LABELS, size)}{at}")
    return IndexError(f"{name}: index {index} is out of range for an axis of {size} elements{at}")


def no_class(label: int, classes: int) -> str:
    """Say that a label is no class.

    >>> no_class(7, 2)
    'label 7 is no class: the logits have 2 classes (0 to 1)'
    """
    return f"label {label} is no class: the logits have " + (
        "one class, 0" if classes == 1 else f"{classes} classes (0 to {classes - 1})"
    )
