"""How much is done to a graph before it runs: the levels, and what may be turned off; the passes themselves load on first need."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from ..errors import expect
from ..ir.graph import EinsumGraph

Pass = Callable[[EinsumGraph], EinsumGraph]


class OptimizationLevel(Enum):
    """How much is done to a graph before it runs.

    Up to STANDARD every value is computed as it is written, so answers stay the same bit for bit; only a sum or product of
    numbers that now lie otherwise in memory may round otherwise. AGGRESSIVE reorders contractions: answers agree to rounding.

    >>> [level.name for level in OptimizationLevel]
    ['NONE', 'BASIC', 'STANDARD', 'AGGRESSIVE']
    """

    NONE = 0
    BASIC = 1
    STANDARD = 2
    AGGRESSIVE = 3


class CompilationConfig(msgspec.Struct, frozen=True):
    """What is done to a graph before it runs.

    >>> config = CompilationConfig().with_optimization_level(OptimizationLevel.AGGRESSIVE).with_fusion_enabled(False)
    >>> config.optimization_level.name, config.fusion_enabled
    ('AGGRESSIVE', False)
    """

    optimization_level: OptimizationLevel = OptimizationLevel.STANDARD
    fusion_enabled: bool = True
    constant_folding: bool = True

    def __post_init__(self) -> None:
        levels = [f"use OptimizationLevel.{each.name}" for each in OptimizationLevel]
        expect(self.optimization_level, OptimizationLevel, "an optimization level is expected", *levels)
        for name in ("fusion_enabled", "constant_folding"):
            expect(getattr(self, name), bool, f"{name} must be True or False")

    def with_optimization_level(self, level: OptimizationLevel) -> CompilationConfig:
        """Return the config at another level."""
        return msgspec.structs.replace(self, optimization_level=level)

    def with_fusion_enabled(self, enabled: bool) -> CompilationConfig:
        """Return the config with or without passes that make several operations one."""
        return msgspec.structs.replace(self, fusion_enabled=enabled)

    def with_constant_folding(self, enabled: bool) -> CompilationConfig:
        """Return the config with or without computing beforehand what needs no input."""
        return msgspec.structs.replace(self, constant_folding=enabled)
