"""A few random cases of every area with fixed seeds; ``make fuzz`` tries many."""

from __future__ import annotations

from collections import Counter

import pytest
from fuzz import AREAS, rounds

FEW = {
    "native": 3,
    "compiled": 3,
    "jit": 3,
    "gradients": 2,
    "rules": 3,
}  # cases that take seconds, because kernels are compiled


@pytest.mark.parametrize("number", [0, 1], ids=["usual", "every road"])
@pytest.mark.parametrize("area", AREAS)
def test_random_cases(area: str, number: int) -> None:
    counts: Counter[str] = Counter()
    rounds(area, number, FEW.get(area, 6), counts)
    assert counts[area]
