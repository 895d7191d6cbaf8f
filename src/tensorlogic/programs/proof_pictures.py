"""Pictures of why atoms hold or do not: DOT, Mermaid and HTML, in the colours of the pictures of graphs."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import TensorLogicError
from ..ir.draw import DOT, MERMAID, STYLES, Flowchart, one_line, xml_text

if TYPE_CHECKING:
    from .proofs import Explanation

HTML_SVG_STEPS = 60
KINDS = {  # how each kind of step is drawn: as that kind of a graph's nodes
    "rule": "contraction",
    "fact": "input",
    "absent": "missing",
    "compared": "elementwise",
    "equation": "control",
    "tried": "contraction",
    "holds": "input",
    "open": "elementwise",
}


def _flow_lines(form: Flowchart, explanation: Explanation) -> Iterator[str]:
    for n, step in enumerate(explanation.drawn_steps()):
        yield "  " + form.node(f"s{n}", KINDS[step.kind], one_line(step.atom), one_line(step.reason()))
        for b in step.because:
            yield "  " + form.arrow(f"s{b}", f"s{n}", "")


def to_dot(explanation: Explanation) -> str:
    r"""Return an explanation as Graphviz DOT; arrows lead from what is known to what follows.

    >>> from tensorlogic import Program
    >>> print(Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)").to_dot().splitlines()[4])
      s0 [label="Parent(Alice, Bob)\nfact  (line 1)", fillcolor="#bfdbfe", shape=ellipse];
    """
    head = [
        "digraph Proof {",
        "  graph [rankdir=BT, fontname=Helvetica, fontsize=10];",
        "  node [fontname=Helvetica, fontsize=10, style=filled];",
        "  edge [arrowsize=0.7];",
    ]
    return "\n".join([*head, *_flow_lines(DOT, explanation), "}", ""])


def to_mermaid(explanation: Explanation) -> str:
    """Return an explanation as a Mermaid flowchart; arrows lead from what is known to what follows.

    >>> from tensorlogic import Program
    >>> print(Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)").to_mermaid().splitlines()[0])
    flowchart BT
    """
    used = {KINDS[step.kind] for step in explanation.drawn_steps()}
    styles = (f"  classDef {k} fill:{s.fill},stroke:#374151,color:#111827" for k, s in STYLES.items() if k in used)
    return "\n".join(["flowchart BT", *_flow_lines(MERMAID, explanation), *styles, ""])


def to_html(explanation: Explanation) -> str:
    """Return the text, and a picture where it is small and ``dot`` is installed.

    >>> from tensorlogic import Program
    >>> "<pre>" in Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)")._repr_html_()
    True
    """
    picture = ""
    if len(explanation.drawn_steps()) <= HTML_SVG_STEPS:
        with suppress(TensorLogicError, ValueError):  # the text says it all
            svg = explanation.to_svg(timeout=10.0)
            picture = f'<div style="overflow:auto">{svg[svg.index("<svg") :]}</div>'
    return f"<div>{picture}<pre>{html.escape(xml_text(str(explanation)))}</pre></div>"
