"""A few trials of every kind with fixed seeds; ``make soak`` runs a thousand kills and faults."""

from __future__ import annotations

from collections import Counter

import pytest
from soak import TRIALS, available, run_trial


@pytest.mark.parametrize("name", [name for name in TRIALS if available(name)])
def test_a_few_trials(name: str) -> None:
    counts: Counter[str] = Counter()
    for number in range(4):
        run_trial(TRIALS[name], number, counts)
    assert counts["kills"] + counts["faults"] + counts["calls"] > 0
