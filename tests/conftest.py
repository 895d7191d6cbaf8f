"""Golden files, printed output that a person has read once, compared from then on; measured memory; and what no test may leave behind."""

from __future__ import annotations

import sys
import time
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


_threads: dict[str, int] = {}  # of each BLAS library, as it was after the first test that loaded it


@pytest.hookimpl(trylast=True)  # when its fixtures have ended
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail a test that leaves BLAS with other numbers of threads: plans of all tests after it would be others."""
    threads = sys.modules.get("tensorlogic.backends.threads")
    if threads is None:
        return
    for _ in range(1000):
        with threads._lock:
            if threads._limits:  # a thread in the background still multiplies
                return
            counts = {library.filepath: library.get_num_threads() for library in threads._libraries()}
        if all(_threads.setdefault(path, count) == count for path, count in counts.items()):
            return
        time.sleep(0.01)
    before = dict(_threads)
    _threads.update(counts)
    pytest.fail(f"BLAS is left with other numbers of threads: {before} before, {counts} after {item.nodeid}")


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
