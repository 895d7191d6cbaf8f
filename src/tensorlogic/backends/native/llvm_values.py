"""Values in LLVM code that is being written: Python operators on them write instructions.

Each instruction carries a flag that means nothing to it, because numba gives a kernel's fast-math flags to those without any.
Calls get them all the same; no pattern that they allow LLVM to change is written here, and a test compares the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

Number = int | float
# a flag that changes nothing about the instruction; "contract" would let sums take in products
IDLE = {"fadd": "arcp", "fsub": "arcp", "fmul": "arcp", "fdiv": "contract", "frem": "contract", "fcmp": "arcp"}


class Value:
    """A value in the code that is being written; operators write instructions. Kinds: f(loat), i(nt), u(nsigned), b(ool)."""

    __slots__ = ("builder", "kind", "raw")

    def __init__(self, builder: Any, raw: Any, kind: str) -> None:
        self.builder, self.raw, self.kind = builder, raw, kind

    def like(self, other: Value | Number, kind: str | None = None) -> Value:
        """Return a number as a constant of this value's type."""
        if isinstance(other, Value):
            return other
        return Value(self.builder, ir.Constant(self.raw.type, other), kind or self.kind)

    def write(self, names: str, other: Value | Number, swap: bool = False, flags: Sequence[str] = ()) -> Value:
        """Write an instruction, named for floats and for integers, of this value and another."""
        name = names.split()[self.kind != "f"]
        a, b = (self.like(other), self) if swap else (self, self.like(other))
        chosen = () if self.kind != "f" else flags or (IDLE[name],)
        return Value(self.builder, getattr(self.builder, name)(a.raw, b.raw, flags=chosen), self.kind)

    def __add__(self, other: Value | Number) -> Value:
        return self.write("fadd add", other)

    def __radd__(self, other: Number) -> Value:
        return self.write("fadd add", other, True)

    def __sub__(self, other: Value | Number) -> Value:
        return self.write("fsub sub", other)

    def __rsub__(self, other: Number) -> Value:
        return self.write("fsub sub", other, True)

    def __mul__(self, other: Value | Number) -> Value:
        return self.write("fmul mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.write("fdiv fdiv", other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.write("fdiv fdiv", other, True)

    def __and__(self, other: Value | Number) -> Value:
        return self.write("and_ and_", other)

    def __or__(self, other: Value | Number) -> Value:
        return self.write("or_ or_", other)

    def __xor__(self, other: Value | Number) -> Value:
        return self.write("xor xor", other)

    def __lshift__(self, other: int) -> Value:
        return self.write("shl shl", other)

    def __rshift__(self, other: int) -> Value:
        return self.write("lshr lshr", other)

    def __lt__(self, other: Value | Number) -> Value:
        return self.compare("<", other)

    def __le__(self, other: Value | Number) -> Value:
        return self.compare("<=", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.compare(">", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.compare(">=", other)

    def __neg__(self) -> Value:
        raw = self.builder.fneg(self.raw, flags=("arcp",)) if self.kind == "f" else self.builder.neg(self.raw)
        return Value(self.builder, raw, self.kind)

    def compare(self, how: str, other: Value | Number) -> Value:
        """Write a comparison; NaN is unequal to everything and in no order."""
        other = self.like(other)
        if self.kind == "f":
            test = self.builder.fcmp_unordered if how == "!=" else self.builder.fcmp_ordered
            raw = test(how, self.raw, other.raw, flags=("arcp",))
        else:
            test = self.builder.icmp_signed if self.kind == "i" else self.builder.icmp_unsigned
            raw = test(how, self.raw, other.raw)
        return Value(self.builder, raw, "b")

    def call(self, name: str, *others: Value | Number) -> Value:
        """Call one of LLVM's functions of values of one type, such as llvm.floor."""
        args = [self.raw, *(self.like(x).raw for x in others)]
        kind = ir.FunctionType(self.raw.type, [self.raw.type] * len(args))
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [self.raw.type], kind)
        return Value(self.builder, self.builder.call(function, args), self.kind)

    def bits(self) -> Value:
        """Return the bits of a float as an unsigned integer."""
        size = 32 if isinstance(self.raw.type, ir.FloatType) else 64
        return Value(self.builder, self.builder.bitcast(self.raw, ir.IntType(size)), "u")

    def floating(self) -> Value:
        """Return the float with these bits."""
        kind = ir.FloatType() if self.raw.type.width == 32 else ir.DoubleType()
        return Value(self.builder, self.builder.bitcast(self.raw, kind), "f")


def fma(x: Value, y: Value | Number, z: Value | Number) -> Value:
    """Return x y + z: rounded once where the processor can, and alike everywhere in a loop."""
    return x.call("fmuladd", y, z)


def select(condition: Value, x: Value | Number, y: Value | Number) -> Value:
    """Return x where the condition holds and y elsewhere, without a branch; one of them is a value."""
    x = x if isinstance(x, Value) else y.like(x)  # type: ignore[union-attr]
    return Value(condition.builder, condition.builder.select(condition.raw, x.raw, x.like(y).raw), x.kind)


def is_nan(x: Value) -> Value:
    """Tell whether a float is NaN."""
    return x.compare("!=", x)


def true(x: Value) -> Value:
    """Tell whether a number is what Python calls true."""
    return x.compare("!=", 0)
