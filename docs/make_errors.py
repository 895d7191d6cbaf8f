"""Write docs/errors.md: every error code with its cause and its fix, from tensorlogic.faults.

``python docs/make_errors.py`` writes it; ``make docs`` calls it.
"""

from __future__ import annotations

from pathlib import Path

from tensorlogic.faults import FAULTS

PAGE = Path(__file__).with_name("errors.md")
INTRODUCTION = """One code, one fault. The command line ends an error with its code, `more: tensorlogic explain-error E001`, which prints the row of
that code; in Python it is `error.diagnostic.code`."""
AREAS = {  # by the first code of each
    "E001": "Graphs: shapes and axes",
    "E100": "Graphs: sizes, types and operations",
    "E200": "Files",
    "E300": "Calls, planning and quantization",
    "E363": "Several devices",
    "E400": "Backends, bits and sparse tensors",
    "E451": "Dynamic batching, many models and serving",
    "E500": "Running: batches, streams, async and recovery",
    "E600": "Formulas",
    "E640": "Programs: text, indices and domains",
    "E700": "Traces, debugging and profiling",
    "E750": "Programs: rules, facts and questions",
    "E800": "Gradients",
    "E830": "Programs: numbers and truth values",
    "E840": "Training",
    "E900": "Eager execution and gradients",
    "E930": "Hooks, memory and views",
    "E980": "Runs that were stopped",
    "W": "Warnings",
}


def text() -> str:
    """Return the page."""
    lines = ["# Error codes", "", INTRODUCTION]
    starts = [*AREAS, "~"]
    for (start, area), end in zip(AREAS.items(), starts[1:], strict=True):
        rows = [(code, fault) for code, fault in sorted(FAULTS.items()) if start <= code < end]
        if rows:
            lines += ["", f"## {area}", "", "| code | fault | cause | fix |", "| --- | --- | --- | --- |"]
        for code, fault in rows:
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (code, *fault)) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
