"""Write docs/errors.md: every error code with its cause and its fix, from tensorlogic.faults.

``python docs/make_errors.py`` writes it; ``make docs`` calls it.
"""

from __future__ import annotations

from pathlib import Path

from tensorlogic.faults import FAULTS

PAGE = Path(__file__).with_name("errors.md")
AREAS = {
    "E0": "Graphs: shapes and axes",
    "E1": "Graphs: sizes, types and operations",
    "E2": "Files",
    "E3": "Calls and planning",
    "E4": "Backends",
    "E5": "Running",
    "E6": "Logic",
    "E7": "Traces",
    "E8": "Views and memory",
    "E9": "Eager execution and gradients",
    "W": "Warnings",
}


def text() -> str:
    """Return the page."""
    lines = ["# Error codes", "", "One code, one fault. `tensorlogic explain-error E001` prints one of them."]
    for start, area in AREAS.items():
        rows = [(code, fault) for code, fault in sorted(FAULTS.items()) if code.startswith(start)]
        if rows:
            lines += ["", f"## {area}", "", "| code | fault | cause | fix |", "| --- | --- | --- | --- |"]
        for code, fault in rows:
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (code, *fault)) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
