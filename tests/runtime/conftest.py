"""Async functions as tests run them: on asyncio and on trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Run an async function to its end, on each library."""
    return lambda function: anyio.run(function, backend=request.param)
