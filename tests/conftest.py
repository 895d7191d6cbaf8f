"""Golden files, printed output that a person has read once, compared from then on; and memory, as it is measured."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# the same examples in every run; `pytest --hypothesis-profile=explore` looks for new ones. How long they take is not looked
# at: a machine may be busy, or stop a while
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", settings.get_profile("busy"), derandomize=True)
settings.register_profile("explore", settings.get_profile("busy"))
settings.load_profile("fixed")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files in tests/golden with what is printed now"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)`` compares text with tests/golden/<name>; with --update-golden it rewrites the file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        if not path.exists():
            pytest.fail(f"there is no golden file {path}; write it with: pytest --update-golden {request.node.nodeid}")
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; if it should: pytest --update-golden"

    return check


@pytest.fixture
def measured() -> Callable[..., tuple[Any, int]]:
    """``result, peak = measured(function, *args)`` calls a function and measures how many bytes it took at most."""

    def measure(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, int]:
        tracemalloc.start()
        try:
            return function(*args, **options), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure
