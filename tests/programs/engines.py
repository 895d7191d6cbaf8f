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


def compute(program: Any) -> None:
    """Compute everything that a program derives: relations as relations, tensors as arrays."""
    heads = {x.head.name: x.head.boolean for x in program.statements if hasattr(x, "head")}
    for name, boolean in heads.items():
        if boolean:
            len(program.relation(name))
        else:
            program.run()[name]
