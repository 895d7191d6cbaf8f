"""Pictures of proofs: DOT, Mermaid and HTML, in the colours of the pictures of graphs."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import TensorLogicError
from ..ir.draw import DOT, MERMAID, STYLES, Flowchart, one_line, xml_text

if TYPE_CHECKING:
    from .proofs import Proof

HTML_SVG_STEPS = 60
KINDS = {  # how each kind of step is drawn: as that kind of a graph's nodes
    "rule": "contraction", "fact": "input", "absent": "missing", "compared": "elementwise", "equation": "control",
}  # fmt: skip


def _flow_lines(form: Flowchart, proof: Proof) -> Iterator[str]:
    for n, step in enumerate(proof.steps):
        yield "  " + form.node(f"s{n}", KINDS[step.kind], one_line(step.atom), one_line(step.reason()))
        for b in step.because:
            yield "  " + form.arrow(f"s{b}", f"s{n}", "")


def to_dot(proof: Proof) -> str:
    r"""Return a proof as Graphviz DOT; arrows lead from what is known to what follows.

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
    return "\n".join([*head, *_flow_lines(DOT, proof), "}", ""])


def to_mermaid(proof: Proof) -> str:
    """Return a proof as a Mermaid flowchart; arrows lead from what is known to what follows.

    >>> from tensorlogic import Program
    >>> print(Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)").to_mermaid().splitlines()[0])
    flowchart BT
    """
    used = {KINDS[step.kind] for step in proof.steps}
    styles = (f"  classDef {k} fill:{s.fill},stroke:#374151,color:#111827" for k, s in STYLES.items() if k in used)
    return "\n".join(["flowchart BT", *_flow_lines(MERMAID, proof), *styles, ""])


def to_html(proof: Proof) -> str:
    """Return the tree as text, and a picture where the proof is small and ``dot`` is installed.

    >>> from tensorlogic import Program
    >>> "<pre>" in Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)")._repr_html_()
    True
    """
    picture = ""
    if len(proof.steps) <= HTML_SVG_STEPS:
        with suppress(TensorLogicError, ValueError):  # the text says it all
            svg = proof.to_svg(timeout=10.0)
            picture = f'<div style="overflow:auto">{svg[svg.index("<svg") :]}</div>'
    return f"<div>{picture}<pre>{html.escape(xml_text(str(proof)))}</pre></div>"
