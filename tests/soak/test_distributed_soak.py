"""A few seconds of the soak of ranks, so that it keeps running."""

from __future__ import annotations

from pathlib import Path

import distributed_soak
import pytest


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it reads /proc")
def test_ranks_under_fire() -> None:
    pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
    counts = distributed_soak.main(["--seconds", "60", "--until", "1"])
    assert counts["trials"] >= 1 and counts["answers"] >= 1
