"""The operations: a closed set of small frozen records, which are also the JSON of graph files.

The three operations that hold graphs of their own (Fixpoint, Scan, Cond) stand in :mod:`tensorlogic.ir.graph`.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

import msgspec
import numpy as np

from .sizes import Dim
from .types import Array, dtype_name, frozen_copy, scalar_dtype, too_large


class Op(msgspec.Struct, frozen=True, tag_field="op", forbid_unknown_fields=True, omit_defaults=True):
    """The base of every operation; ``arity`` is the number of operands, None where it varies."""

    arity: ClassVar[int | None] = 1
    is_view: ClassVar[bool] = False  # a backend may answer with a view of its operand
    is_pointwise: ClassVar[bool] = False  # an element depends on the same place of the operands alone
    size_fields: ClassVar[tuple[str, ...]] = ()  # the fields that hold sizes, which may have names

    @property
    def name(self) -> str:
        """The word that stands for the operation in text."""
        return str(self.__struct_config__.tag)

    def sizes(self) -> list[Dim | None]:
        """Return the sizes in its fields: a size, a shape, or ranges of them."""
        fields = [getattr(self, name) for name in self.size_fields]
        shapes = [value if isinstance(value, tuple) else (value,) for value in fields]
        return [d for shape in shapes for part in shape for d in (part if isinstance(part, tuple) else (part,))]


class Input(Op, frozen=True, tag="input"):
    """A value the caller gives, by name."""

    arity: ClassVar[int | None] = 0
    size_fields: ClassVar[tuple[str, ...]] = ("shape",)
    label: str
    shape: tuple[Dim, ...] | None = None
    dtype: str | None = None


class Constant(Op, frozen=True, tag="constant"):
    """An array kept beside the graph under its digest."""

    arity: ClassVar[int | None] = 0
    digest: str
    shape: tuple[int, ...]
    dtype: str


def constant_digest(array: Array) -> str:
    """Return the name under which a constant is kept: a digest of its dtype, shape and bytes."""
    h = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    # bfloat16 is no buffer
    h.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")
    return h.hexdigest()


def constant_op(array: Array) -> Constant:
    """Return the operation that stands for an array."""
    return Constant(constant_digest(array), array.shape, dtype_name(array.dtype))


def add_constant(constants: dict[str, Array], value: object) -> Constant:
    """Keep a read-only copy of an array among the constants of a graph, and return the operation that stands for it."""
    array = frozen_copy(value)
    op = constant_op(array)
    constants[op.digest] = array
    return op


class Literal(Op, frozen=True, tag="literal"):
    """A Python scalar, which takes the dtype of what it meets; kept as text so that 1, 1.0, True, -0.0 and nan differ."""

    arity: ClassVar[int | None] = 0
    kind: str
    text: str

    @classmethod
    def of(cls, value: bool | int | float) -> Literal:
        """Make the literal of a Python scalar."""
        exact = {"bool": bool, "int64": int, "float64": float}[scalar_dtype(value)](value)  # subclasses print otherwise
        if isinstance(exact, int) and abs(exact) >> 1024:
            raise too_large(exact)
        return cls(type(exact).__name__, repr(exact))

    @property
    def value(self) -> bool | int | float:
        """The scalar itself."""
        if self.kind == "bool":
            return self.text == "True"
        return int(self.text) if self.kind == "int" else float(self.text)


class Iota(Op, frozen=True, tag="iota"):
    """The integers 0, 1, 2, ... up to a size."""

    arity: ClassVar[int | None] = 0
    size_fields: ClassVar[tuple[str, ...]] = ("size",)
    size: Dim
    dtype: str = "int64"


class Einsum(Op, frozen=True, tag="einsum"):
    """Join the operands over matching indices and project onto the result's, in one algebra."""

    arity: ClassVar[int | None] = None
    spec: str
    algebra: str = "real"


class ContractVJP(Op, frozen=True, tag="contract_vjp"):
    """The gradient of an einsum for one operand; operands are the factors, the result and its cotangent.

    A term takes part in the gradient where it equals the result (max, min); ties share evenly.
    """

    arity: ClassVar[int | None] = None
    spec: str
    algebra: str
    wrt: int


class Elementwise(Op, frozen=True, tag="elementwise"):
    """Apply a function of one, two or three operands element by element, with broadcasting."""

    arity: ClassVar[int | None] = None
    is_pointwise: ClassVar[bool] = True
    fn: str

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.fn


class Reduce(Op, frozen=True, tag="reduce"):
    """Reduce some axes (None: all of them) by sum, prod, max, min, mean, any, all, argmax or argmin."""

    kind: str
    axes: tuple[int, ...] | None = None
    keepdims: bool = False

    @property
    def name(self) -> str:
        """The reduction's own name."""
        return self.kind


class Cumulate(Op, frozen=True, tag="cumulate"):
    """Running sum, prod, max or min along an axis."""

    kind: str
    axis: int
    reverse: bool = False


class Sort(Op, frozen=True, tag="sort"):
    """Sort along an axis, stably, NaN greatest; or the indices that would."""

    axis: int
    descending: bool = False
    indices: bool = False


class TopK(Op, frozen=True, tag="top_k"):
    """The k greatest along an axis, greatest first; or their indices."""

    k: int
    axis: int
    indices: bool = False


class Slice(Op, frozen=True, tag="slice"):
    """A range of each axis, as (start, count, step)."""

    is_view: ClassVar[bool] = True
    size_fields: ClassVar[tuple[str, ...]] = ("ranges",)
    ranges: tuple[tuple[Dim, Dim, int], ...]


class Reshape(Op, frozen=True, tag="reshape"):
    """The same elements under another shape; one size may be -1."""

    is_view: ClassVar[bool] = True
    size_fields: ClassVar[tuple[str, ...]] = ("shape",)
    shape: tuple[Dim, ...]


class Transpose(Op, frozen=True, tag="transpose"):
    """The axes in another order; axis i of the result is axis order[i] of the operand."""

    is_view: ClassVar[bool] = True
    order: tuple[int, ...]


class Broadcast(Op, frozen=True, tag="broadcast"):
    """Repeat to a larger shape; axis i of the operand becomes axis axes[i] of the result."""

    is_view: ClassVar[bool] = True
    size_fields: ClassVar[tuple[str, ...]] = ("shape",)
    shape: tuple[Dim, ...]
    axes: tuple[int, ...]


class Window(Op, frozen=True, tag="window"):
    """All windows of a size along an axis, as one more axis at the end."""

    is_view: ClassVar[bool] = True
    size_fields: ClassVar[tuple[str, ...]] = ("size",)
    axis: int
    size: Dim
    step: int = 1
    dilation: int = 1


class OverlapAdd(Op, frozen=True, tag="overlap_add"):
    """Windows put back where :class:`Window` takes them from, along an axis of a length; what overlaps is added up."""

    size_fields: ClassVar[tuple[str, ...]] = ("length",)
    axis: int
    length: Dim
    step: int = 1
    dilation: int = 1


class Pad(Op, frozen=True, tag="pad"):
    """Surround with a value: operands are the tensor and a scalar; widths are (before, after) per axis."""

    arity: ClassVar[int | None] = 2
    widths: tuple[tuple[int, int], ...]


class Concat(Op, frozen=True, tag="concat"):
    """Join tensors end to end along an axis."""

    arity: ClassVar[int | None] = None
    axis: int


class Gather(Op, frozen=True, tag="gather"):
    """Take the given indices along an axis; the first ``batch`` axes of both operands run together."""

    arity: ClassVar[int | None] = 2
    axis: int
    batch: int = 0


class ScatterAdd(Op, frozen=True, tag="scatter_add"):
    """Add updates into a copy of the first operand at the given indices along an axis."""

    arity: ClassVar[int | None] = 3
    axis: int
    batch: int = 0


class Cast(Op, frozen=True, tag="cast"):
    """Convert the elements to another dtype, as NumPy's astype."""

    is_pointwise: ClassVar[bool] = True
    dtype: str


class Quantize(Op, frozen=True, tag="quantize"):
    """round(x / scale) + zero point, clamped to the dtype; operands x, scale, zero point; axis for per-channel.

    A tie rounds to the even number. ``kind`` clamps to a narrower grid that the dtype holds: int4, int2, ternary and binary (-1
    below 0, else +1) in int8; e4m3 and e5m2, the floats of 8 bits, in float32. ``group`` gives so many elements of the last axis a
    scale of their own: scales are then x's shape with the number of groups at the end, and the last group may be shorter.
    """

    arity: ClassVar[int | None] = 3
    dtype: str
    axis: int | None = None
    group: int | None = None
    kind: str | None = None


class Dequantize(Op, frozen=True, tag="dequantize"):
    """(q - zero point) * scale; operands q, scale, zero point; axis and group as of Quantize."""

    arity: ClassVar[int | None] = 3
    axis: int | None = None
    group: int | None = None


class Unpack(Op, frozen=True, tag="unpack"):
    """The numbers that bytes hold along the last axis: ``count`` of a kind, as int8, or as float32 of floats of 8 bits."""

    size_fields: ClassVar[tuple[str, ...]] = ("count",)
    kind: str
    count: Dim


class Item(Op, frozen=True, tag="item"):
    """One result of an operation that has several."""

    is_view: ClassVar[bool] = True
    index: int


class Same(Op, frozen=True):
    """The base of operations whose result is the operand: they say something about it, and may share its memory."""

    is_view: ClassVar[bool] = True
    is_pointwise: ClassVar[bool] = True


class Transfer(Same, frozen=True, tag="transfer"):
    """The operand on another device, such as "cpu:1"; devices that share memory share the value too."""

    device: str


class StopGradient(Same, frozen=True, tag="stop_gradient"):
    """The operand as a constant: no gradient goes back through it, and its tangent is zero."""


class Barrier(Same, frozen=True, tag="barrier"):
    """The operand as another node, so that what reads it is not merged with equal nodes that read the operand."""


class Collective(Op, frozen=True):
    """The base of operations in which the ranks of a group take part together, each with its own share of a value.

    ``over`` names the group: an axis of the mesh of ranks. ``ranks`` is how many there are, and ``rank`` which of them runs this. Shares
    are ranges of nearly equal length, the longer ones first. Ranks must meet in the same order everywhere.
    """

    over: str
    ranks: int
    rank: int


class AllReduce(Collective, frozen=True, tag="all_reduce"):
    """The values of all ranks combined into one that all of them have."""

    is_pointwise: ClassVar[bool] = True
    how: str = "add"


class StartAllReduce(Collective, frozen=True, tag="start_all_reduce"):
    """A flat array for the operands of all ranks, end to end and combined: they begin with that, and it holds nothing of use until :class:`Wait`."""

    arity: ClassVar[int | None] = None
    how: str = "add"
    label: str = ""


class Wait(Collective, frozen=True, tag="wait"):
    """The operand, once what was started under a label is over."""

    is_view: ClassVar[bool] = True
    is_pointwise: ClassVar[bool] = True
    label: str = ""


class AllGather(Collective, frozen=True, tag="all_gather"):
    """The shares of all ranks end to end along an axis, where they have a size together."""

    size_fields: ClassVar[tuple[str, ...]] = ("size",)
    axis: int = 0
    size: Dim = 0


class ReduceScatter(Collective, frozen=True, tag="reduce_scatter"):
    """The values of all ranks combined, of which each keeps its share along an axis."""

    axis: int = 0
    how: str = "add"


class AllToAll(Collective, frozen=True, tag="all_to_all"):
    """Shares along the axis ``joined`` become shares along the axis ``cut``; ``size`` is that of the joined axis."""

    size_fields: ClassVar[tuple[str, ...]] = ("size",)
    cut: int = 0
    joined: int = 1
    size: Dim = 0


class BroadcastFrom(Collective, frozen=True, tag="broadcast_from"):
    """The value of one rank, which all have afterwards."""

    is_pointwise: ClassVar[bool] = True
    root: int = 0


class Send(Collective, frozen=True, tag="send"):
    """The operand, once it was sent to another rank under a label."""

    is_view: ClassVar[bool] = True
    is_pointwise: ClassVar[bool] = True
    to: int = 0
    label: str = ""


class Receive(Collective, frozen=True, tag="receive"):
    """What another rank sends under a label."""

    arity: ClassVar[int | None] = 0
    source: int = 0
    label: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"


COMBINATIONS = ("add", "multiply", "maximum", "minimum", "or", "and", "logaddexp", "noisy_or")
REDUCTIONS = ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin")
CUMULATIONS = ("sum", "prod", "max", "min")
COMBINES = ("replace", "or", "max", "min")
