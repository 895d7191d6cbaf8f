"""Pictures of a graph: Graphviz DOT, Mermaid, GraphML, SVG, and the HTML that a notebook shows.

Nothing here needs the graph to be right: a type that cannot be inferred is shown as ``any``, and an operand that does not
exist is drawn as missing, because a picture helps most when something is wrong.
"""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple
from xml.sax.saxutils import escape

from ..errors import BackendError, TensorLogicError
from . import ops
from .graph import Cond, EinsumGraph, Fixpoint, Scan, bodies, body_fields
from .ops import Op
from .text import attributes
from .type_rules import known_types

CLIP = 80  # characters of a name or an attribute that a picture shows
HTML_ROWS = 300
HTML_SVG_NODES = 60


class Style(NamedTuple):
    """How one kind of node looks: a shape and a fill for DOT, and the brackets of the shape in Mermaid."""

    shape: str
    fill: str
    opens: str
    closes: str


STYLES = {
    "input": Style("ellipse", "#bfdbfe", "([", "])"),
    "constant": Style("note", "#e5e7eb", ">", "]"),
    "contraction": Style("box", "#fcd34d", "{{", "}}"),
    "elementwise": Style('box, style="filled,rounded"', "#bbf7d0", "(", ")"),
    "reduction": Style("invhouse", "#fbcfe8", "[\\", "/]"),
    "movement": Style("tab", "#ddd6fe", "[/", "/]"),
    "control": Style("box3d", "#fdba74", "[[", "]]"),
    "output": Style("ellipse, peripheries=2", "#f0fdfa", "([", "])"),
    "missing": Style('box, style="filled,dashed"', "#fecaca", "[", "]"),
}
_KINDS: dict[str, tuple[type[Op], ...]] = {
    "input": (ops.Input,),
    "constant": (ops.Constant, ops.Literal, ops.Iota),
    "contraction": (ops.Einsum, ops.ContractVJP),
    "elementwise": (ops.Elementwise, ops.Cast, ops.Quantize, ops.Dequantize, ops.Unpack),
    "reduction": (ops.Reduce, ops.Cumulate, ops.OverlapAdd, ops.Sort, ops.TopK),
    "control": (Fixpoint, Scan, Cond),
}
KINDS = {op: kind for kind, group in _KINDS.items() for op in group}


class PictureNode(NamedTuple):
    """One node as every format shows it; ``parts`` are its bodies, each with its name and the prefix of its ids."""

    id: str
    number: int
    op: Op
    kind: str
    detail: str
    type: str
    args: tuple[str, ...]
    parts: tuple[tuple[str, EinsumGraph, str], ...]

    def lines(self) -> list[str]:
        """Return the label: number and operation, main attributes, type."""
        return [f"%{self.number} {one_line(self.op.name)}", *filter(None, [one_line(self.detail)]), self.type]


def picture_nodes(graph: EinsumGraph, prefix: str = "") -> Iterator[PictureNode]:
    """Yield the nodes of one graph, bodies not entered, with types as far as they can be inferred."""
    for i, (node, types) in enumerate(zip(graph.nodes, known_types(graph), strict=True)):
        op = node.op
        shown = str(types[0]) if len(types) == 1 else f"({', '.join(map(str, types))})"
        args = tuple(_id(graph, prefix, a) for a in node.args)
        parts = tuple((n, g, f"{prefix}n{i}{n}_") for n, g in zip(body_fields(type(op)), bodies(op), strict=True))
        kind = KINDS.get(type(op), "movement")
        yield PictureNode(f"{prefix}n{i}", i, op, kind, _detail(op, graph), shown, args, parts)


def _id(graph: EinsumGraph, prefix: str, node: int) -> str:
    return f"{prefix}n{node}" if 0 <= node < len(graph.nodes) else f"{prefix}missing{node}".replace("-", "_")


def _missing(graph: EinsumGraph, prefix: str) -> dict[str, int]:
    """Return the nodes that are referred to but do not exist, by the id that stands for them."""
    count = len(graph.nodes)
    absent = {a for node in graph.nodes for a in node.args if not 0 <= a < count}
    absent |= {i for _, i in graph.outputs if not 0 <= i < count}
    return {_id(graph, prefix, i): i for i in sorted(absent)}


def _detail(op: Op, graph: EinsumGraph) -> str:
    """Return what tells a node from others of its operation."""
    match op:
        case ops.Input():
            return op.label
        case ops.Literal():
            return op.text
        case ops.Constant():
            array = graph.constants.get(op.digest)
            return str(array.item()) if array is not None and array.size == 1 else op.digest[:8]
        case ops.Einsum():
            return f"{op.spec}, {op.algebra}"
        case ops.ContractVJP():
            return f"{op.spec}, {op.algebra}, wrt={op.wrt}"
        case _:
            hidden = ("fn", "kind") if isinstance(op, ops.Elementwise | ops.Reduce) else ()  # they are its name
            return ", ".join(f"{name}={_value(value)}" for name, value in attributes(op) if name not in hidden)


def _value(value: object) -> str:
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, tuple) else str(value)


_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML, whatever the escape
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def xml_text(text: str) -> str:
    r"""Return text with the characters that XML cannot hold (controls, lone surrogates) replaced.

    >>> xml_text("a\x00b") == "a\ufffdb"
    True
    """
    return _ILLEGAL.sub("\ufffd", text)


def one_line(text: str) -> str:
    r"""Return text that is short, legal and on one line, as labels are.

    >>> one_line("two\nlines"), len(one_line("long" * 1000))
    ('two↵lines', 80)
    """
    shown = _BREAK.sub("↵", xml_text(text)).replace("\t", " ")
    return shown if len(shown) <= CLIP else shown[: CLIP - 1] + "…"


# DOT and Mermaid


class Flowchart(NamedTuple):
    """How one language writes nodes, arrows and the frames around bodies."""

    node: Callable[..., str]  # of an id, a kind and the lines of its label
    arrow: Callable[[str, str, str], str]  # from an id to another, with a number or nothing at its head
    opens: Callable[[str, str], str]  # the frame of a body: its id and its title
    closes: str
    holds: Callable[[str, str, bool], str]  # the line from a node to its body, which may be empty


def _flow_lines(form: Flowchart, graph: EinsumGraph, prefix: str, pad: str) -> Iterator[str]:
    for d in picture_nodes(graph, prefix):
        yield pad + form.node(d.id, d.kind, *d.lines())
        for n, arg in enumerate(d.args):
            yield pad + form.arrow(arg, d.id, str(n) if len(d.args) > 1 else "")
        for name, body, inner in d.parts:
            yield pad + form.opens(inner, f"{name} of %{d.number} {d.op.name}").replace("\n", f"\n{pad}")
            yield from _flow_lines(form, body, inner, pad + "  ")
            yield pad + form.closes
            if line := form.holds(d.id, inner, bool(body.nodes)):
                yield pad + line
    for ref, i in _missing(graph, prefix).items():
        yield pad + form.node(ref, "missing", f"%{i}", "missing")
    for n, (name, i) in enumerate(graph.outputs):
        yield pad + form.node(f"{prefix}out{n}", "output", "output", one_line(name))
        yield pad + form.arrow(_id(graph, prefix, i), f"{prefix}out{n}", "")


def to_dot(graph: EinsumGraph) -> str:
    r"""Return the graph as Graphviz DOT; bodies are clusters, and numbers at arrowheads are operand positions.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> print(b.build(y=b.relu(b.input("x", (3,), "float32"))).to_dot().splitlines()[4])
      n0 [label="%0 input\nx\nfloat32[3]", fillcolor="#bfdbfe", shape=ellipse];
    """
    head = [
        "digraph EinsumGraph {",
        "  graph [compound=true, fontname=Helvetica, fontsize=10];",
        "  node [fontname=Helvetica, fontsize=10, style=filled];",
        "  edge [fontname=Helvetica, fontsize=8, arrowsize=0.7, labeldistance=1.7];",
    ]
    return "\n".join([*head, *_flow_lines(DOT, graph, "", "  "), "}", ""])


def _dot_text(*lines: str) -> str:
    # an ampersand too: DOT reads HTML entities even in plain labels
    safe = (x.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for x in lines)
    return '"' + "\\n".join(safe) + '"'


DOT = Flowchart(
    lambda a, k, *lines: f'{a} [label={_dot_text(*lines)}, fillcolor="{STYLES[k].fill}", shape={STYLES[k].shape}];',
    lambda a, b, n: f"{a} -> {b}" + (f' [headlabel="{n}"];' if n else ";"),
    lambda inner, title: f'subgraph cluster_{inner} {{\n  label={_dot_text(title)}; style="rounded,dashed";',
    "}",
    # an edge to a cluster needs a node inside
    lambda a, inner, any_node: f"{a} -> {inner}n0 [lhead=cluster_{inner}, style=dashed, arrowhead=none];" * any_node,
)


def to_mermaid(graph: EinsumGraph) -> str:
    """Return the graph as a Mermaid flowchart; bodies are nested subgraphs, numbers on arrows operand positions.

    Mermaid itself draws at most 500 arrows unless its ``maxEdges`` setting is raised.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> print(b.build(y=b.relu(b.input("x", (3,), "float32"))).to_mermaid().splitlines()[1])
      n0(["%0 input<br/>x<br/>float32[3]"]):::input
    """
    styles = (f"  classDef {kind} fill:{s.fill},stroke:#374151,color:#111827" for kind, s in STYLES.items())
    return "\n".join(["flowchart TD", *_flow_lines(MERMAID, graph, "", "  "), *styles, ""])


# what Mermaid reads inside quotes: entities, HTML, Markdown, math, directives, and \n
_MERMAID = {ord(c): f"#{ord(c)};" for c in '"#&;<>\\`*_~${}:'}
_LIST_ITEM = re.compile(r"^(\d*)([-+.)])(?=\s|$)")  # "1. x" and "- x", which Markdown would make lists of


def _mermaid_text(*lines: str) -> str:
    safe = (_LIST_ITEM.sub(lambda m: f"{m[1]}#{ord(m[2])};", x.translate(_MERMAID)) for x in lines)
    return f'"{"<br/>".join(safe)}"'


MERMAID = Flowchart(
    lambda a, k, *lines: f"{a}{STYLES[k].opens}{_mermaid_text(*lines)}{STYLES[k].closes}:::{k}",
    lambda a, b, n: f"{a} -->{f'|{n}|' if n else ''} {b}",
    lambda inner, title: f"subgraph {inner}[{_mermaid_text(title)}]",
    "end",
    lambda a, inner, _: f"{a} -.- {inner}",
)


# GraphML


def to_graphml(graph: EinsumGraph) -> str:
    """Return the graph as GraphML, for networkx, yEd or Gephi.

    Nodes have op, kind, label, type, the names of the outputs they are (one to a line) and, in a body, the node that
    holds it; an edge has its operand position, and an id, so that a node that reads the same operand twice has two.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> b.build(y=b.relu(b.input("x", (3,), "float32"))).to_graphml().count("<node ")
    2
    """
    keys = [(name, "node", "string") for name in ("op", "kind", "label", "type", "outputs", "parent")]
    keys.append(("operand", "edge", "int"))
    head = ['<?xml version="1.0" encoding="UTF-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    head += [f'<key id="{n}" for="{of}" attr.name="{n}" attr.type="{kind}"/>' for n, of, kind in keys]
    head.append('<graph id="EinsumGraph" edgedefault="directed">')
    return "\n".join([*head, *_graphml_lines(graph, "", ""), "</graph>", "</graphml>", ""])


def _graphml_lines(graph: EinsumGraph, prefix: str, parent: str) -> Iterator[str]:
    # bodies stand flat beside their node: networkx would skip a nested graph
    outputs: dict[str, list[str]] = {}
    for name, i in graph.outputs:
        outputs.setdefault(_id(graph, prefix, i), []).append(name)
    for ref, i in _missing(graph, prefix).items():
        yield f'<node id="{ref}">{_data(op="missing", label=f"%{i}", type="any", parent=parent)}</node>'
    for d in picture_nodes(graph, prefix):
        label = d.detail if d.kind == "input" else f"{d.op.name} {d.detail}".strip()
        names = "\n".join(outputs.get(d.id, ()))
        data = _data(op=d.op.name, kind=d.kind, label=label, type=d.type, outputs=names, parent=parent)
        yield f'<node id="{d.id}">{data}</node>'
        for n, arg in enumerate(d.args):
            yield f'<edge id="{d.id}_{n}" source="{arg}" target="{d.id}"><data key="operand">{n}</data></edge>'
        for _, body, inner in d.parts:
            yield from _graphml_lines(body, inner, d.id)


def _data(**values: str) -> str:
    # a bare carriage return would be read as a line feed
    texts = ((key, escape(xml_text(value), {"\r": "&#13;"})) for key, value in values.items() if value)
    return "".join(f'<data key="{key}">{text}</data>' for key, text in texts)


# SVG and HTML


def to_svg(graph: EinsumGraph, *, timeout: float = 60.0) -> str:
    """Return the graph as an SVG picture, drawn by the ``dot`` program of Graphviz within ``timeout`` seconds."""
    longer = "give it longer: tensorlogic.ir.draw.to_svg(graph, timeout=600)"
    others = "or use graph.to_mermaid() or graph.to_dot(), which need no program"
    return dot_svg(to_dot(graph), f"{count_nodes(graph)} nodes", (longer, others), timeout)


def dot_svg(text: str, what: str, hints: tuple[str, str], timeout: float) -> str:
    """Return the SVG picture that ``dot`` makes of DOT text; ``hints`` say how to give it longer, and what else there is."""
    longer, others = hints
    try:
        done = subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True, timeout=timeout, check=False)
    except OSError as error:
        message = f"an SVG needs the program 'dot' of Graphviz, which could not be started ({error.strerror})"
        hint = "install it: apt install graphviz, brew install graphviz, or conda install graphviz"
        raise BackendError(message, hint, others, code="E238") from None
    except subprocess.TimeoutExpired:
        message = f"'dot' did not lay out the {what} within {timeout:g} seconds"
        raise BackendError(message, longer, others, code="E239") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise BackendError(f"'dot' failed with status {done.returncode}: {said}", others, code="E239")
    return done.stdout.decode()


def to_html(graph: EinsumGraph) -> str:
    """Return a summary, a table of the nodes, and a picture where the graph is small and ``dot`` is installed.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> "<td>relu</td>" in b.build(y=b.relu(b.input("x", (3,), "float32")))._repr_html_()
    True
    """
    total = count_nodes(graph)
    picture = ""
    if total <= HTML_SVG_NODES:
        with suppress(TensorLogicError, ValueError):  # the table says it all
            svg = to_svg(graph, timeout=10.0)
            picture = f'<div style="overflow:auto">{svg[svg.index("<svg") :]}</div>'
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(one_line(cell))}</td>" for cell in row) + "</tr>"
        for row in islice(_html_rows(graph, "", ""), HTML_ROWS)
    ]
    if total > len(rows):
        rows.append(f'<tr><td colspan="4">... {total - len(rows)} more</td></tr>')
    heads = "".join(f"<th>{h}</th>" for h in ("node", "operation", "operands", "type"))
    return (
        f"<div><code>{html.escape(xml_text(repr(graph)))}</code>{picture}"
        f'<div style="max-height:30em;overflow:auto"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _html_rows(graph: EinsumGraph, prefix: str, where: str) -> Iterator[tuple[str, str, str, str]]:
    for d in picture_nodes(graph, prefix):
        operands = ", ".join(f"%{a}" for a in graph.nodes[d.number].args)
        yield f"{where}%{d.number}", f"{d.op.name} {d.detail}".strip(), operands, d.type
        for name, body, inner in d.parts:
            yield from _html_rows(body, inner, f"{where}%{d.number} {name} ")


def count_nodes(graph: EinsumGraph) -> int:
    """Count the nodes of a graph and of the bodies in it."""
    seen: dict[int, int] = {}  # a body that is held many times is counted once and added many times

    def count(g: EinsumGraph) -> int:
        if id(g) not in seen:
            seen[id(g)] = len(g.nodes) + sum(count(body) for node in g.nodes for body in bodies(node.op))
        return seen[id(g)]

    return count(graph)
