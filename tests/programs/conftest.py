"""The folder's own modules can be imported by name; where the real data is; and memory that a hostile program may take."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--logic-data", default=None, help="the folder with cspa_tiny, cspa1k, countries and kinship")


@pytest.fixture(scope="session")
def logic_data(request: pytest.FixtureRequest) -> Path:
    """The folder of real facts: ``--logic-data``, else shared/data/logic in a folder above; absent ones are a reason to skip."""
    given = request.config.getoption("--logic-data", default=None)
    places = [Path(given)] if given else [p / "shared" / "data" / "logic" for p in HERE.parents]
    for place in places:
        if place.is_dir():
            return place
    pytest.skip(f"the real facts are not in {given or 'shared/data/logic of a folder above'}")
