"""A few random cases of every area with fixed seeds; ``make fuzz`` tries many."""

from __future__ import annotations

from collections import Counter
from random import Random

import interrupted
import pytest
from fuzz import AREAS, Choices, rounds

FEW = {
    "native": 3,
    "compiled": 3,
    "jit": 3,
    "gradients": 2,
    "rules": 3,
    "interrupts": 3,
    "forks": 2,
    "programs": 3,
    "training": 3,
    "files": 60,
}  # cases that take seconds, because kernels are compiled; and such as take none


@pytest.mark.parametrize("number", [0, 1], ids=["usual", "every road"])
@pytest.mark.parametrize("area", AREAS)
def test_random_cases(area: str, number: int) -> None:
    counts: Counter[str] = Counter()
    try:
        rounds(area, number, FEW.get(area, 6), counts)
    finally:
        interrupted.stop_helper()
    assert counts[area]


def test_an_axis_below_zero_is_no_fault_of_the_generator() -> None:
    below = Choices(Random("watched 77014 34"))  # it slices from 1 on where there is none, then asks for places there
    below(2**20)
    assert len(AREAS["watched"].make(below).graph.nodes)
