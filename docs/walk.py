"""Count how a call walks through the folders: the files it passes, and how often it steps to the left.

Data flows from left to right through the folders (``lang``, ``ir``, ``passes``, ``plan``, ``backends``, ``runtime``). A step to the left is a call
from a file into a file of a folder that stands further left; a kernel that a run calls is no such step. Run it: ``python docs/walk.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

FOLDERS = ["lang", "ir", "passes", "plan", "backends", "runtime", "observe", "train", "serve"]


def walk(run: Callable[[], Any]) -> tuple[list[str], int, int]:
    """Return the files that a call passes, in order, and how often it steps to the left: in all, and over different edges."""
    import tensorlogic

    root = Path(tensorlogic.__file__).parent
    files: dict[str, None] = {}
    steps: list[tuple[str, str]] = []
    place: dict[str, str] = {}

    def within(code: Any) -> str:
        name = code.co_filename
        if name not in place:
            path = Path(name)
            place[name] = str(path.relative_to(root)) if path.is_relative_to(root) else ""
        return place[name]

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (own := within(frame.f_code)) or "/" not in own:
            return
        if frame.f_code.co_name in ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<lambda>"):
            return
        files.setdefault(own)
        caller = frame.f_back
        while caller is not None and not within(caller.f_code):
            caller = caller.f_back
        before = "" if caller is None else within(caller.f_code)
        if before == "runtime/call.py" and own.startswith("backends/"):
            return  # a kernel
        if "/" in before and FOLDERS.index(own.split("/")[0]) < FOLDERS.index(before.split("/")[0]):
            steps.append((before, own))

    threading.setprofile(None)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return list(files), len(steps), len(set(steps))


def main() -> None:
    """Print the walks of a rule and of a training step."""
    import numpy as np

    import tensorlogic as tl

    people = ["alice", "bob", "carol"]
    facts = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], bool)

    def rule() -> tl.EinsumGraph:
        x, y, z = tl.variables("x y z", domain="Person")
        aunt = tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z))
        return tl.compile(aunt, tl.CompilerContext(domains={"Person": people}), strategy="hard_boolean")

    graph, executor = rule(), tl.Executor()
    inputs = {"sister": facts, "parent": facts}
    executor.execute(rule(), inputs)  # imports are not part of a walk

    b = tl.GraphBuilder()
    x, w, t = b.input("x", ("n", 4), "float32"), b.input("w", (4, 2), "float32"), b.input("t", ("n", 2), "float32")
    step = tl.value_and_grad(b.build(loss=b.mean(b.square(b.relu(x @ w) - t))), wrt=["w"])
    values = {"x": np.ones((8, 4), "f4"), "w": np.ones((4, 2), "f4"), "t": np.zeros((8, 2), "f4")}
    tl.Executor().execute(step, values)
    walks = {
        "a rule, compiled": rule,
        "a rule, first run": lambda: tl.Executor().execute(graph, inputs),
        "a rule, run again": lambda: executor.execute(graph, inputs),
        "a training step, first run": lambda: tl.Executor().execute(step, values),
        "a training step, compiled to machine code": lambda: tl.Executor().compile_graph(step, fast, sizes={"n": 8}),
    }
    fast = tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)
    executor.execute(graph, inputs)
    tl.Executor().compile_graph(step, fast, sizes={"n": 8})
    for name, run in walks.items():
        files, all_steps, edges = walk(run)
        print(f"{name}: {len(files)} files, {all_steps} steps to the left over {edges} edges")
        if "-v" in sys.argv:
            print("   " + "\n   ".join(files))


if __name__ == "__main__":
    main()
