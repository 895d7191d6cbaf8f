"""Proofs: why an atom holds, as steps from facts by rules; printed as a tree, as JSON and as a picture."""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec

from ..diagnostics import SourceLocation
from ..errors import TensorLogicError
from ..ir.draw import DOT, MERMAID, STYLES, Flowchart, one_line, xml_text

DEPTH = 25  # levels of a proof that are printed
LINES = 200  # lines that are printed
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


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One atom of a proof and why it holds.

    ``kind`` is "rule", "fact", "absent" (a negated atom: no such fact), "compared" (a comparison with its values) or "equation" (a
    relation that an equation computes).
    """

    atom: str
    kind: str
    rule: str | None = None  # the text of the rule or equation
    at: SourceLocation | None = None  # where the rule or the fact stands
    because: tuple[int, ...] = ()  # the numbers of the steps that it follows from
    note: str = ""
    relation: str | None = None
    row: tuple[Any, ...] = ()  # the names in the places of the atom

    def reason(self) -> str:
        """Return why it holds, in a few words."""
        where = f"  ({place(self.at)})" if self.at is not None else ""
        match self.kind:
            case "rule" | "equation":
                return f"by {self.rule}{where}{f': {self.note}' if self.note else ''}"
            case "fact":
                if self.at is None:
                    return "fact, added from Python"
                return f"fact  ({place(self.at)}{f', {self.note}' if self.note else ''})"
        return self.note + where


def place(at: SourceLocation) -> str:
    """Return where something stands: ``family.tl:3``, or ``line 3`` of a text that is no file.

    >>> place(SourceLocation("family.tl", 3, 1)), place(SourceLocation(line=3))
    ('family.tl:3', 'line 3')
    """
    if at.file is None:
        return f"line {at.line}" if at.line is not None else "the program's text"
    return at.file if at.line is None else f"{at.file}:{at.line}"


class Explanation(ABC):
    """Why an atom holds, or does not: it prints as text, and can be drawn."""

    @abstractmethod
    def drawn_steps(self) -> Sequence[Step]:
        """Return what is drawn, the atom that was asked for first; each step tells by number what it follows from."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return it as plain dictionaries and lists."""

    def to_json(self, indent: int | None = 2) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def _flow_lines(self, form: Flowchart) -> Iterator[str]:
        for n, step in enumerate(self.drawn_steps()):
            yield "  " + form.node(f"s{n}", KINDS[step.kind], one_line(step.atom), one_line(step.reason()))
            for b in step.because:
                yield "  " + form.arrow(f"s{b}", f"s{n}", "")

    def to_dot(self) -> str:
        r"""Return it as Graphviz DOT; arrows lead from what is known to what follows.

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
        return "\n".join([*head, *self._flow_lines(DOT), "}", ""])

    def to_mermaid(self) -> str:
        """Return it as a Mermaid flowchart; arrows lead from what is known to what follows.

        >>> from tensorlogic import Program
        >>> print(Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)").to_mermaid().splitlines()[0])
        flowchart BT
        """
        used = {KINDS[step.kind] for step in self.drawn_steps()}
        styles = (f"  classDef {k} fill:{s.fill},stroke:#374151,color:#111827" for k, s in STYLES.items() if k in used)
        return "\n".join(["flowchart BT", *self._flow_lines(MERMAID), *styles, ""])

    def to_svg(self, *, timeout: float = 60.0) -> str:
        """Return it as an SVG picture, drawn by the ``dot`` program of Graphviz."""
        from ..ir.draw import dot_svg

        longer = "give it longer: proof.to_svg(timeout=600)"
        others = "or use proof.to_mermaid() or proof.to_dot(), which need no program"
        return dot_svg(self.to_dot(), f"{len(self.drawn_steps())} steps", (longer, others), timeout)

    def _repr_html_(self) -> str:
        """Return the text, and a picture where it is small and ``dot`` is installed."""
        picture = ""
        if len(self.drawn_steps()) <= HTML_SVG_STEPS:
            with suppress(TensorLogicError, ValueError):  # the text says it all
                svg = self.to_svg(timeout=10.0)
                picture = f'<div style="overflow:auto">{svg[svg.index("<svg") :]}</div>'
        return f"<div>{picture}<pre>{html.escape(xml_text(str(self)))}</pre></div>"


class Proof(Explanation):
    """Why an atom holds: a tree of rules that ends in facts, with the least height; of several such, one with the fewest facts.

    Every step of it is itself the lowest proof of its atom. (Where the atom depends on very much, it has the least height, and few facts
    though not always the fewest.) An atom that is needed several times is proved once, so that the steps are
    numbered: ``steps[0]`` is the atom that was asked for. It prints as a tree; a notebook shows it too.

    >>> from tensorlogic import Program
    >>> p = Program('''Parent(Alice, Bob)
    ... Parent(Bob, Charlie)
    ... Ancestor(x,y) <- Parent(x,y)
    ... Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)''')
    >>> proof = p.why("Ancestor(Alice, Charlie)")
    >>> print(proof)
    Ancestor(Alice, Charlie)  by Ancestor(x, z) <- Ancestor(x, y), Parent(y, z)  (line 4)
    ├─ Ancestor(Alice, Bob)  by Ancestor(x, y) <- Parent(x, y)  (line 3)
    │  └─ Parent(Alice, Bob)  fact  (line 1)
    └─ Parent(Bob, Charlie)  fact  (line 2)
    >>> proof.height, [step.atom for step in proof.facts]
    (2, ['Parent(Alice, Bob)', 'Parent(Bob, Charlie)'])
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def atom(self) -> str:
        """The atom that is proved."""
        return self.steps[0].atom

    @property
    def facts(self) -> tuple[Step, ...]:
        """The facts that the proof rests on, each once, in the order of the proof."""
        return tuple(self.steps[n] for n in self._order if self.steps[n].kind == "fact")

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that the proof uses, each once."""
        found = (self.steps[n] for n in self._order)
        return tuple(dict.fromkeys(step.rule for step in found if step.kind == "rule" and step.rule is not None))

    @cached_property
    def height(self) -> int:
        """How many rules stand above each other; that of a fact is 0."""
        heights = [0] * len(self.steps)
        for n in reversed(self._above):
            step = self.steps[n]
            heights[n] = 1 + max((heights[b] for b in step.because), default=0) if step.kind == "rule" else 0
        return heights[0]

    @cached_property
    def _order(self) -> list[int]:
        """The numbers of the steps, as the tree is read: each after the one it is needed for."""
        found: dict[int, None] = {}
        pending = [0]
        while pending:
            n = pending.pop()
            if n not in found:
                found[n] = None
                pending.extend(reversed(self.steps[n].because))
        return list(found)

    @cached_property
    def _above(self) -> list[int]:
        """The numbers of the steps, each after all that it is needed for."""
        needed = [0] * len(self.steps)
        for step in self.steps:
            for b in step.because:
                needed[b] += 1
        pending, found = [0], []
        while pending:
            found.append(n := pending.pop())
            for b in self.steps[n].because:
                needed[b] -= 1
                if not needed[b]:
                    pending.append(b)
        return found

    def drawn_steps(self) -> Sequence[Step]:
        """Return all steps."""
        return self.steps

    def lines(self, depth: int | None = None) -> Iterator[str]:
        """Go through the lines of the tree; what stands above already is not repeated, and what lies below ``depth`` is counted."""
        shown: set[int] = set()
        pending = [(0, "", "", 0)]  # a step, what stands before its line, before the lines below, and its level
        while pending:
            n, before, below, level = pending.pop()
            step = self.steps[n]
            line = f"{before}{step.atom}"
            if step.because and n in shown:
                yield f"{line}  as above"
                continue
            shown.add(n)
            yield f"{line}  {step.reason()}".rstrip()
            if depth is not None and level + 1 > depth and step.because:
                yield f"{below}└─ ... {self._count_below(n) - 1:,} more steps"
                continue
            last = len(step.because) - 1
            children = [
                (b, f"{below}{'└─ ' if k == last else '├─ '}", f"{below}{'   ' if k == last else '│  '}", level + 1)
                for k, b in enumerate(step.because)
            ]
            pending.extend(reversed(children))

    def _count_below(self, n: int) -> int:
        seen, pending = {n}, [n]
        while pending:
            for b in self.steps[pending.pop()].because:
                if b not in seen:
                    seen.add(b)
                    pending.append(b)
        return len(seen)

    def text(self, depth: int | None = None, lines: int | None = None) -> str:
        """Return the tree as text: all of it, or so many levels and lines."""
        found: list[str] = []
        for line in self.lines(depth):
            if lines is not None and len(found) == lines:
                found.append(f"... {len(self.steps):,} steps in all: proof.text() has every one")
                break
            found.append(line)
        return "\n".join(found)

    def __str__(self) -> str:
        return self.text(DEPTH, LINES)

    def __repr__(self) -> str:
        return f"<Proof of {self.atom}: height {self.height:,}, {len(self.facts):,} facts>"

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as plain dictionaries and lists: the steps in order, the atom that was asked for first.

        >>> from tensorlogic import Program
        >>> Program("Parent(Alice, Bob)").why("Parent(Alice, Bob)").to_dict()["steps"][0]["kind"]
        'fact'
        """
        steps = [{"number": n, **msgspec.to_builtins(step)} for n, step in enumerate(self.steps)]
        return {"atom": self.atom, "height": self.height, "facts": len(self.facts), "steps": steps}
