"""Sine and cosine of float32 without branches, right for all numbers however large: computed in float64.

|x| is m 2^k with an integer m of 24 bits. A table has 2^k 2/π, less multiples of 4, in two parts for each k: m times the first
is exact, so what remains of the quarter turns loses nothing.
"""

from __future__ import annotations

import math
from functools import cache

from llvmlite import ir

from .llvm_values import Value, fma, select

PLACES = 320
TWO_BY_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E0  # in 2^-320
FIRST = 27  # binary places of the first part: with two before the point and 24 of m they fill a float64
SINE = (-0.16666666641477904, 0.008333329370291529, -0.00019839330804792546, 2.7182807190100114e-06)
COSINE = (0.04166666662299601, -0.001388888377312683, 2.4799525830931956e-05, -2.721073468284567e-07)


@cache
def turns() -> tuple[list[float], list[float]]:
    """Return the table by the exponent bits of a float32: the first parts and the rest; NaN for those of infinity."""
    first, rest = [], []
    for exponent in range(255):
        k = max(exponent, 1) - 127 - 23  # subnormal numbers have the exponent of the least normal ones
        exact = (TWO_BY_PI << k if k >= 0 else TWO_BY_PI >> -k) % (4 << PLACES)
        whole = exact >> (PLACES - FIRST)
        first.append(whole / 2**FIRST)
        rest.append((exact - (whole << (PLACES - FIRST))) / 2**PLACES)
    return [*first, math.nan], [*rest, math.nan]


def _look_up(index: Value, name: str, numbers: list[float]) -> Value:
    module, kind = index.builder.module, ir.ArrayType(ir.DoubleType(), len(numbers))
    table = module.globals.get(name)
    if table is None:
        table = ir.GlobalVariable(module, kind, name)
        table.linkage, table.global_constant, table.initializer = "internal", True, ir.Constant(kind, numbers)
    place = index.builder.gep(table, [ir.Constant(ir.IntType(64), 0), index.raw], inbounds=True)
    return Value(index.builder, index.builder.load(place), "f")


def _wave(x: Value, quarter: int) -> Value:
    """Return sin(x + quarter π/2) of a float32."""
    b, double = x.builder, ir.DoubleType()
    bits = x.call("fabs").bits()
    exponent = Value(b, b.zext((bits >> 23).raw, ir.IntType(64)), "u")
    single = ((bits & 0x7FFFFF) | ((127 + 23) << 23)).floating()
    single = single - select(bits < 1 << 23, single.like(2.0**23), 0.0)  # the leading bit, which subnormal numbers lack
    m = Value(b, b.fpext(single.raw, double), "f")
    first, rest = (_look_up(exponent, f"tensorlogic.turns.{n}", part) for n, part in enumerate(turns()))
    product = m * first
    magic = 1.5 * 2.0**52  # adding it rounds to an integer, in the low bits
    rounded = product + magic
    r = fma(m, rest, product - (rounded - magic)) * (math.pi / 2)
    t = r * r
    sine = fma(r * t, _sum(t, SINE), r)
    cosine = fma(t * t, _sum(t, COSINE), fma(t, -0.5, 1.0))
    turn = rounded.bits() + quarter
    value = select((turn & 1).compare("!=", 0), cosine, sine)
    value = select((turn & 2).compare("!=", 0), -value, value)
    result = Value(b, b.fptrunc(value.raw, x.raw.type), "f")
    return (result.bits() ^ (x.bits() & 0x80000000)).floating() if quarter == 0 else result  # only the sine is odd


def _sum(t: Value, coefficients: tuple[float, ...]) -> Value:
    total = t.like(coefficients[-1])
    for c in coefficients[-2::-1]:
        total = fma(total, t, c)
    return total


def sin(x: Value) -> Value:
    """Return the sine of a float32."""
    return _wave(x, 0)


def cos(x: Value) -> Value:
    """Return the cosine of a float32."""
    return _wave(x, 1)
