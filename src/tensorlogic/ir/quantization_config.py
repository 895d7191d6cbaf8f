"""What to quantize to, and how: the choices of a quantization as one record of words from tables."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from ..diagnostics import value_text
from ..errors import InputError, expect
from .quantized import QuantizationGranularity, QuantizationType


class ActivationMode(Enum):
    """What happens to the values that meet quantized weights.

    WEIGHT_ONLY leaves them floats; DYNAMIC quantizes them with a scale for each row, found in each run; STATIC with one scale,
    found on calibration data.

    >>> [mode.name for mode in ActivationMode]
    ['WEIGHT_ONLY', 'DYNAMIC', 'STATIC']
    """

    WEIGHT_ONLY = "weight only"
    DYNAMIC = "dynamic"
    STATIC = "static"


class CalibrationMethod(Enum):
    """How the range of activations is found on calibration data.

    MIN_MAX covers all values; MOVING_AVERAGE averages the ranges of batches; PERCENTILE leaves out the outermost; ENTROPY keeps
    the distribution most alike; MSE makes the squared error least.

    >>> CalibrationMethod.MIN_MAX.value
    'min max'
    """

    MIN_MAX = "min max"
    MOVING_AVERAGE = "moving average"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"


class Rounding(NamedTuple):
    """How weights are rounded: whether scales are searched, and whether columns make up for the errors of those before."""

    search: bool
    compensate: bool


class QuantizationRounding(Enum):
    """How weights become small numbers: to the nearest, with the best scale, or so that the errors of a row cancel.

    COMPENSATING rounds column after column and spreads the error of each over those that follow, weighed by how the inputs of
    the calibration data go together (GPTQ). It needs calibration data.

    >>> QuantizationRounding.COMPENSATING.value
    Rounding(search=False, compensate=True)
    """

    NEAREST = Rounding(search=False, compensate=False)
    SCALE_SEARCH = Rounding(search=True, compensate=False)
    COMPENSATING = Rounding(search=False, compensate=True)
    COMPENSATING_SEARCH = Rounding(search=True, compensate=True)


class QuantizationConfig(msgspec.Struct, frozen=True):
    """What weights are quantized to, and how.

    ``symmetric`` weights have no zero points. ``activations`` left out are STATIC where calibration data are given and the sums
    can be of whole numbers, else WEIGHT_ONLY. ``percentile`` is the share of values that PERCENTILE keeps, of 100;
    ``momentum`` is what MOVING_AVERAGE keeps of the range before.

    >>> config = QuantizationConfig(QuantizationType.INT4, QuantizationGranularity.PER_GROUP(32))
    >>> print(config)
    int4 per group of 32, symmetric
    """

    type: QuantizationType = QuantizationType.INT8
    granularity: QuantizationGranularity = QuantizationGranularity.PER_CHANNEL()
    symmetric: bool = True
    activations: ActivationMode | None = None
    calibration: CalibrationMethod = CalibrationMethod.MIN_MAX
    rounding: QuantizationRounding = QuantizationRounding.NEAREST
    percentile: float = 99.99
    momentum: float = 0.9

    def __post_init__(self) -> None:
        expect(self.type, QuantizationType, "a QuantizationType is expected", "write QuantizationType.INT8")
        hint = "write QuantizationGranularity.PER_CHANNEL()"
        expect(self.granularity, QuantizationGranularity, "a QuantizationGranularity is expected", hint)
        expect(self.symmetric, bool, "symmetric= is True or False")
        for name, kind in (
            ("activations", ActivationMode),
            ("calibration", CalibrationMethod),
            ("rounding", QuantizationRounding),
        ):
            if name != "activations" or self.activations is not None:
                words = ", ".join(f"{kind.__name__}.{m.name}" for m in kind)
                expect(getattr(self, name), kind, f"{name}= is one of {words}")
        for name, most in (("percentile", 100.0), ("momentum", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise InputError(
                    f"{name}= is a number above 0 and up to {most:g}, got {value_text(value)}", code="E324"
                )
        if self.activations not in (None, ActivationMode.WEIGHT_ONLY) and not self.sums_whole_numbers:
            why = (
                "floats of 8 bits"
                if self.type.is_float
                else f"scales {self.granularity}, which lie inside of the sums,"
            )
            hint = "use PER_CHANNEL() and a type of whole numbers, or ActivationMode.WEIGHT_ONLY"
            raise InputError(
                f"sums of whole numbers cannot be taken of {why} with {self.activations}", hint, code="E325"
            )

    @property
    def sums_whole_numbers(self) -> bool:
        """Whether products with quantized activations can be sums of whole numbers."""
        return not self.type.is_float and self.granularity.word != "group"

    def __str__(self) -> str:
        words = [f"{self.type.value} {self.granularity}", "symmetric" if self.symmetric else "asymmetric"]
        if self.activations is not None:
            words.append(f"activations {self.activations.value}")
        if self.rounding is not QuantizationRounding.NEAREST:
            words.append(f"rounding {self.rounding.name.lower().replace('_', ' ')}")
        return ", ".join(words)
