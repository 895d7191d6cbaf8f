"""What kernels compiled by numba can do: facts that plans decide by. Nothing here loads numba before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import ops
from ...ir.graph import Fixpoint, Scan
from ...ir.types import TensorType
from ...plan.build import ExecutionPlan
from ...plan.cost import Contraction
from ...plan.small_numbers import plain_join

SMALL = 3_000_000  # arithmetic operations of a contraction below which BLAS is as fast as packing
OR_AND = frozenset({"boolean", "real", "max_min", "max_product"})  # over truth values these are one: or of ands


class NativeFacts:
    """The facts of the numpy backend's native tier (see :class:`tensorlogic.plan.groups.Facts`)."""

    def usable(self) -> bool:
        """Tell whether numba is there and works."""
        from .support import usable

        return usable()

    def threads(self) -> int:
        """Return how many threads of our pool there are."""
        from ..threads import workers

        return workers()

    def runs_in_rows(self, op: ops.Op, args: Sequence[TensorType], literals: Sequence[ops.Literal | None]) -> bool:
        """Tell whether an operation can be written as an expression of a row kernel."""
        from .typed import supported

        return supported(op, args, literals)

    def runs_on_bits(
        self, op: ops.Op, args: Sequence[TensorType], result: TensorType, form: Contraction | None
    ) -> bool:
        """Tell whether an operation runs on packed bits without unpacking anything large."""
        from ..bitplan import on_words

        found = on_words(op, args, result, form)
        return found is not None and found.cheap

    def joins_bits(self, op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> bool:
        """Tell whether a contraction is a large or of ands."""
        return joins_bits(op, form, args, result)

    def contracts(
        self, op: ops.Einsum | ops.ContractVJP, form: Contraction, args: Sequence[TensorType], result: TensorType
    ) -> bool:
        """Tell whether a contraction in another algebra, or its gradient, has a kernel and is large enough for it."""
        if isinstance(op, ops.ContractVJP):
            from . import vjp

            return vjp.worth(op, args, result)
        if op.algebra in ("real", "boolean") or result.dtype not in ("float32", "float64", "uint8"):
            return False
        from .semiring import ROWS, worth

        if result.dtype == "uint8" and not (op.algebra == "max_min" and plain_join(form)):
            return False
        return op.algebra in ROWS and worth(form)

    def scans(self, op: Scan) -> bool:
        """Tell whether the body of a scan is small and can be one function."""
        from .scan import loop_text

        return loop_text(op) is not None

    def closes(self, op: Fixpoint, args: Sequence[TensorType]) -> bool:
        """Tell whether the body of a fixpoint is made of Boolean operations, one of them a large join."""
        from ..bit_fixpoints import runs_on_bits

        return runs_on_bits(op, args)

    def function(self, plan: ExecutionPlan, reads: Sequence[int]) -> tuple[str, tuple[int, ...]] | None:
        """Return a small plan as the source of one function and the numbers it takes, or None where it cannot be one."""
        from .whole import small, write

        return write(plan, reads) if small(plan) else None


def joins_bits(op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> bool:
    """Tell whether a contraction is an or of ands with an index that both factors share, and large."""
    if op.algebra not in OR_AND or result.dtype != "bool" or len(form.labels) != 2:
        return False
    if op.algebra != "boolean" and any(t.dtype != "bool" for t in args):
        return False
    shared = set(form.labels[0]).intersection(form.labels[1]).difference(form.spec.output)
    points = 2
    for n in form.sizes.values():
        points *= n
    return bool(shared) and points >= SMALL
