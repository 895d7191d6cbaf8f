"""A few seconds of load with models that come and go; ``make soak`` takes ten minutes."""

from __future__ import annotations

from collections import Counter

import pytest
from serving_soak import check, main


def test_a_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seconds", "3"])
    assert "answers" in capsys.readouterr().out


def test_growth_and_errors_that_were_not_promised_are_found() -> None:
    calm = [{"memory": 100 << 20, "threads": 8, "handles": 30}] * 100
    counts = Counter(answers=5, loads=3)
    check(counts, calm, 0, "")
    for wrong in ({"memory": 200 << 20}, {"threads": 20}, {"handles": 60}):
        with pytest.raises(AssertionError, match="grew"):
            check(counts, [*calm[:80], *[{**calm[0], **wrong}] * 20], 0, "")
    with pytest.raises(AssertionError):
        check(counts + Counter({"first: 500": 1}), calm, 0, "")
