"""Pictures of graphs: what other programs read of them, hostile names, broken graphs, and size."""

from __future__ import annotations

import shutil
import subprocess
import time
import xml.etree.ElementTree as ET

import networkx as nx
import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import draw, ops
from tensorlogic.ir.graph import Cond, EinsumGraph, Fixpoint, Node

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of Graphviz is not installed")

HOSTILE = [
    'say "hi"', "back\\slash", "trailing\\", "\\N \\G \\l", "two\nlines\r\nthree\rfour", "tab\there", "<b>bold</b>",
    "a & b &lt; &#65; &nosuch;", "]]> <!-- --> <?xml?>", "nul\x00bell\x07esc\x1b[0m", "\ud800 lone", "\ufffe\uffff",
    "näme ∀x∃y 名前 🙂 עברית", "end", "subgraph", "graph", "style:#x;", "#quot; #35;", "`markdown` **b** __u__ $$x$$",
    "%%{init: {}}%%", "-->|x|", "{}[]()|;:@", "1. list", "'single'", "x" * 5000, " ", "\u2028\u2029\x85",
    "<script>alert(1)</script>", '"];n9[label="', "javascript:alert(1)",
]  # fmt: skip


def small() -> EinsumGraph:
    """A graph of every kind of node, small enough to read."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3), "float32"), b.input('w "0"', (3, 3), "float32")
    h = b.relu(b.einsum("ni,ij->nj", x, w) + 1)
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or")
    return b.build(top=b.max(h * h, 0), path=path, part=b.cond(b.any(path), lambda: x[1:], lambda: -x[1:]))


def hostile() -> EinsumGraph:
    count = len(HOSTILE)  # by nodes: a builder takes no half of a surrogate pair
    nodes = [*(Node(ops.Input(name)) for name in HOSTILE), *(Node(ops.Elementwise("relu"), (n,)) for n in range(count))]
    return EinsumGraph(nodes, [(name, count + n) for n, name in enumerate(HOSTILE)])


def chain(length: int) -> EinsumGraph:
    x = Node(ops.Input("x", (3,), "float32"))
    rest = (Node(ops.Elementwise("add"), (i, max(0, i - 1))) for i in range(length - 1))
    return EinsumGraph([x, *rest], [("y", length - 1)])


def broken() -> EinsumGraph:
    """Wrong shapes, an unknown function, an operand and an output that do not exist, a body that cannot be."""
    nothing = EinsumGraph([], [("r", 0)])
    return EinsumGraph(
        [
            Node(ops.Input("x", (3,), "float32")),
            Node(ops.Input("y", (4,), "float32")),
            Node(ops.Elementwise("add"), (0, 1)),
            Node(ops.Elementwise("no such\nfunction"), (2, 99)),
            Node(ops.Einsum("garbage", "no algebra"), (-1,)),
            Node(Fixpoint(nothing), (0,)),
            Node(Cond(nothing, nothing), ()),
            Node(ops.Item(7), (5,)),
            Node(ops.Elementwise("relu"), (0,)),
        ],
        [("z", 3), ("gone", 50)],
    )


def run_dot(form: str, text: str) -> str:
    return subprocess.run(
        ["dot", form], input=text, capture_output=True, check=True, encoding="utf-8", timeout=60
    ).stdout


def test_golden_dot(golden):
    golden("draw_dot.txt", small().to_dot())


def test_golden_mermaid(golden):
    golden("draw_mermaid.txt", small().to_mermaid())


# Graphviz


@needs_dot
@pytest.mark.parametrize("make", [small, hostile, broken, lambda: EinsumGraph([], [])])
def test_dot_accepts_it(make):
    graph = make()
    plain = run_dot("-Tplain", graph.to_dot())
    drawn = sum(line.startswith("node ") for line in plain.splitlines())
    assert drawn >= draw.count_nodes(graph) + len(graph.outputs)
    ET.fromstring(run_dot("-Tsvg", graph.to_dot()))
    ET.fromstring(graph.to_svg())


@needs_dot
@pytest.mark.parametrize("name", HOSTILE)
def test_dot_shows_the_name_itself(name):
    graph = EinsumGraph([Node(ops.Input(name)), Node(ops.Elementwise("relu"), (0,))], [("y", 1)])
    svg = ET.fromstring(graph.to_svg())
    texts = [("".join(t.itertext())).replace("\xa0", " ") for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == 3 + 2 + 2
    assert draw.one_line(name).strip() in [t.strip() for t in texts]


@needs_dot
def test_bodies_are_clusters():
    svg = small().to_svg()
    assert svg.count('class="cluster"') == 3
    assert "body of %" in svg and "then of %" in svg and "otherwise of %" in svg


def test_without_dot_svg_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tl.BackendError, match="Graphviz") as caught:
        small().to_svg()
    assert "apt install graphviz" in str(caught.value)
    assert "to_mermaid" in str(caught.value) and "to_dot" in str(caught.value)
    assert "<table>" in small()._repr_html_() and "<svg" not in small()._repr_html_()


def test_dot_that_hangs_or_fails_is_an_error(monkeypatch):
    def hang(*args, **kwargs):
        raise subprocess.TimeoutExpired("dot", kwargs["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(tl.BackendError, match="within 3 seconds"):
        draw.to_svg(small(), timeout=3)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, b"", b"syntax error"))
    with pytest.raises(tl.BackendError, match="status 1: syntax error"):
        small().to_svg()
    assert "<svg" not in small()._repr_html_()


# Mermaid


def test_mermaid_labels_hold_nothing_that_mermaid_reads():
    for line in hostile().to_mermaid().splitlines():
        if '"' not in line:
            continue
        before, label, after = line.split('"')  # exactly one quoted label
        assert not set("`\\&{}$*_~:") & set(label)
        assert "<" not in label.replace("<br/>", "")
        assert not any(part.startswith(("1. ", "- ")) for part in label.split("<br/>"))
        assert before.strip().isascii() and after.isascii()


def test_mermaid_subgraphs_close():
    lines = [line.strip() for line in small().to_mermaid().splitlines()]
    assert sum(line.startswith("subgraph ") for line in lines) == 3 == lines.count("end")


# GraphML


def edges(graph: EinsumGraph) -> int:
    inside = (body for node in graph.nodes for body in draw.bodies(node.op))
    return sum(len(node.args) for node in graph.nodes) + sum(edges(body) for body in inside)


@pytest.mark.parametrize("make", [small, hostile, lambda: chain(50)])
def test_networkx_reads_every_node_and_edge(make, tmp_path):
    graph = make()
    path = tmp_path / "graph.graphml"
    path.write_text(graph.to_graphml(), encoding="utf-8")
    for read in (nx.read_graphml(path), nx.parse_graphml(graph.to_graphml())):
        assert read.is_directed()
        assert read.number_of_nodes() == draw.count_nodes(graph)
        assert read.number_of_edges() == edges(graph)
        assert all({"op", "label", "type"} <= data.keys() for _, data in read.nodes(data=True))
        assert all(isinstance(data["operand"], int) for *_, data in read.edges(data=True))


def test_networkx_reads_names_and_parallel_edges():
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float32")
    read = nx.parse_graphml(b.build(y=x * x, z=x * x, w=x).to_graphml())
    assert sorted(d["operand"] for d in read.get_edge_data("n0", "n1").values()) == [0, 1]
    assert read.nodes["n1"]["outputs"] == "y\nz"
    assert read.nodes["n0"] == {"op": "input", "kind": "input", "label": "x", "type": "float32[3]", "outputs": "w"}
    labels = {d["label"] for _, d in nx.parse_graphml(hostile().to_graphml()).nodes(data=True) if d["op"] == "input"}
    assert labels == {draw.xml_text(name) for name in HOSTILE}


def test_graphml_says_which_node_holds_a_body():
    read = nx.parse_graphml(small().to_graphml())
    parents = {d["parent"] for _, d in read.nodes(data=True) if "parent" in d}
    assert {read.nodes[p]["op"] for p in parents} == {"fixpoint", "cond"}


# HTML


def test_html_is_well_formed_and_escaped():
    for graph in (small(), hostile(), broken()):
        page = draw.to_html(graph)
        page.encode()
        assert "<script" not in page and "<b>bold" not in page
        table = page[page.index("<table>") : page.index("</table>") + len("</table>")]
        rows = ET.fromstring(table).findall(".//tbody/tr")
        assert len(rows) == draw.count_nodes(graph)


def test_html_of_a_large_graph_is_short():
    page = chain(10_000)._repr_html_()
    assert page.count("<tr>") <= draw.HTML_ROWS + 2
    assert f"... {10_000 - draw.HTML_ROWS} more" in page
    assert "<svg" not in page and len(page) < 100_000


@needs_dot
def test_html_of_a_small_graph_has_a_picture():
    assert "<svg" in small()._repr_html_()
    assert "<?xml" not in small()._repr_html_()


# all of them


@pytest.mark.parametrize("name", ["to_dot", "to_mermaid", "to_graphml"])
def test_broken_graphs_are_drawn_with_any(name):
    text = getattr(broken(), name)()
    assert "any" in text and "missing" in text
    assert "float32[3]" in text  # what can be inferred is shown
    if name == "to_graphml":
        read = nx.parse_graphml(text)
        assert read.nodes["n2"]["type"] == "any" and read.nodes["n8"]["type"] == "float32[3]"
        assert read.nodes["missing99"]["op"] == "missing" and read.nodes["missing_1"]["label"] == "%-1"


def test_labels_carry_the_main_attributes():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 4), "float32")
    y = b.einsum("ni,mi->nm", x, x, algebra="max_product")
    text = b.build(y=b.sum(y, 1, keepdims=True), z=b.constant(np.float32(2.5))).to_dot()
    assert 'label="%1 einsum\\nni,mi->nm, max_product\\nfloat32[n, n]"' in text
    assert 'label="%2 sum\\naxes=[1], keepdims=True\\nfloat32[n, 1]"' in text
    assert 'label="%3 constant\\n2.5\\nfloat32[]"' in text


@pytest.mark.parametrize("name", ["to_dot", "to_mermaid", "to_graphml", "_repr_html_"])
def test_time_is_linear_in_the_nodes(name):
    def seconds(graph: EinsumGraph) -> float:
        start = time.perf_counter()
        getattr(graph, name)()
        return time.perf_counter() - start

    small_time = min(seconds(chain(5_000)) for _ in range(3))
    assert seconds(chain(100_000)) < 20 * 8 * small_time + 1.0  # 20 times the nodes; quadratic would be 400


def test_shared_bodies_are_counted_without_being_walked():
    body = EinsumGraph([Node(ops.Input("k"))], [("r", 0)])
    for _ in range(25):
        body = EinsumGraph([Node(ops.Input("k")), Node(Cond(body, body), (0, 0))], [("r", 1)])
    assert draw.count_nodes(body) == 3 * 2**25 - 2
