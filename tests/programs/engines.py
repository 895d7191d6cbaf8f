"""The engines that programs run on: plain NumPy, the reference backend, and native code."""

from __future__ import annotations

from typing import Any

import tensorlogic as tl

ENGINES = ("numpy", "reference", "fast")


def executor(engine: str) -> tl.Executor:
    if engine == "fast":
        return tl.Executor(native=True, policy="fast")
    return tl.Executor(engine)


def program(text: str, engine: str = "numpy", **options: Any) -> Any:
    """Return the program that runs on an engine."""
    return tl.Program(text, executor=executor(engine), **options)
