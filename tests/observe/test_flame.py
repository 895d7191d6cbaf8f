"""Flame graphs: valid XML of bounded size, right widths, and a script that zooms and searches."""

import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

import tensorlogic as tl
from tensorlogic.observe.flame import FRAMES, SCRIPT, flame_svg

SVG = "{http://www.w3.org/2000/svg}"


def event(name, start, end, thread=1, kind="step"):
    return tl.TraceEvent(name, kind, start, end, thread)


def frames(text):
    """Return name to (x, width, depth) as shares of the whole."""
    root = ElementTree.fromstring(text.encode())
    found = [g for g in root.iter(f"{SVG}g") if g.get("class") == "f"]
    return {g.get("data-n"): (float(g.get("data-x")), float(g.get("data-w")), int(g.get("data-d"))) for g in found}


def test_widths_are_time_and_calls_stand_on_callers():
    t = tl.Trace(
        [event("load", 0, 60), event("parse", 10, 40), event("run", 60, 80), event("wait", 0, 20, 2)],
        threads={1: "main"},
    )
    found = frames(flame_svg(t))
    assert found["all"] == (0.0, 1.0, 0)
    assert found["main"] == (0.0, 0.8, 1)
    assert found["thread 2"] == pytest.approx((0.8, 0.2, 1))
    assert found["load"] == (0.0, 0.6, 2)
    assert found["parse"] == (0.0, 0.3, 3)
    assert found["run"] == pytest.approx((0.6, 0.2, 2))


def test_equal_calls_merge_and_say_how_often():
    text = flame_svg(tl.Trace([event("relu", n * 1000, n * 1000 + 500) for n in range(4)]))
    assert "relu (2.000 µs, 100.00%, 4x)" in text
    assert len(frames(text)) == 3


def test_collapsed_stacks(tmp_path):
    (tmp_path / "s.collapsed").write_text("main;load 3\nmain 1\nother 4\n")
    found = frames(flame_svg(tl.Trace.load(tmp_path / "s.collapsed")))
    assert (found["main"], found["load"], found["other"]) == ((0.0, 0.5, 2), (0.0, 0.375, 3), (0.5, 0.5, 2))


def test_it_reads_without_scripts():
    text = flame_svg(tl.Trace([event("relu", 0, 50)]), script=False)
    assert "<script" not in text
    root = ElementTree.fromstring(text.encode())
    assert "relu" in [e.text for e in root.iter(f"{SVG}text")]
    assert any(e.text.startswith("relu (") for e in root.iter(f"{SVG}title"))


def test_empty_and_without_time():
    assert "there is nothing in this trace" in flame_svg(tl.Trace())
    assert frames(flame_svg(tl.Trace())) == {}
    ElementTree.fromstring(flame_svg(tl.Trace([event("relu", 5, 5)])).encode())


@pytest.mark.parametrize(
    "name",
    ["<b>&amp;", 'quo"te', "]]>", "null\x00", "\x1b[1m", "\ud800", "\ufffe", "雪;☃", "two\nlines", ""],
    ids=ascii,
)
def test_odd_names_are_valid_xml(name):
    text = flame_svg(tl.Trace([event(name, 0, 50)], threads={1: name}), title=name)
    assert len(frames(text)) in (2, 3), "the thread and the frame may have the same name"


def test_size_is_bounded():
    wide = flame_svg(tl.Trace([event(f"op{n}", n, n + 1) for n in range(100_000)]))
    assert "100,000 small frames" in wide
    assert len(frames(wide)) == 3
    deep = flame_svg(tl.Trace([event(f"f{n % 7}", n, 100_000 - n) for n in range(25_000)]))
    assert deep.count('class="f"') <= FRAMES


def test_a_name_always_has_its_colour():
    one, two = (flame_svg(tl.Trace([event("relu", 0, n), event("exp", n, 90)])) for n in (10, 50))
    colour = {tuple(re.findall(r'data-n="relu".*?fill="(#\w{6})"', text)) for text in (one, two)}
    assert len(colour) == 1
    assert len(colour.pop()) == 1


FAKE = """
const element = (id, attributes, parts) => ({
  id, attributes, parts: parts || {}, textContent: "", heard: {},
  getAttribute(k) { return k in this.attributes ? this.attributes[k] : null; },
  setAttribute(k, v) { this.attributes[k] = String(v); },
  hasAttribute(k) { return k in this.attributes; },
  querySelector(k) { return this.parts[k]; },
  addEventListener(k, f) { this.heard[k] = f; },
});
const frame = (n, x, w, d) => {
  const f = element("", {"data-n": n, "data-x": x, "data-w": w, "data-d": d},
    {rect: element("", {fill: "#fff"}), text: element("", {}), title: element("", {})});
  f.parts.title.textContent = n + "!";
  return f;
};
const all = [frame("all", 0, 1, 0), frame("load", 0, 0.6, 1), frame("parse load", 0, 0.3, 2), frame("run", 0.6, 0.4, 1)];
const parts = {"#frames": element("frames", {"data-side": 10, "data-inner": 1000})};
for (const id of ["title", "reset", "search", "matched", "details"]) parts["#" + id] = element(id, {});
const svg = element("svg", {}, parts);
svg.querySelectorAll = () => all;
const document = {currentScript: {parentNode: svg}};
const window = {prompt: () => "LOAD"};
"""
PLAY = """
const say = (...words) => console.log(words.join(" "));
const rect = (f) => Number(f.parts.rect.attributes.x).toFixed(0) + "+" + Number(f.parts.rect.attributes.width).toFixed(0);
all[1].heard.click();
say("zoom", rect(all[0]), rect(all[1]), rect(all[2]), all[3].attributes.display, parts["#reset"].attributes.display);
parts["#reset"].heard.click();
say("reset", rect(all[1]), rect(all[3]), all[3].attributes.display, parts["#reset"].attributes.display);
parts["#search"].heard.click();
say(parts["#matched"].textContent, all[1].parts.rect.attributes.fill, all[3].parts.rect.attributes.fill);
window.prompt = () => "(";
parts["#search"].heard.click();
say(parts["#matched"].textContent);
all[2].heard.mouseover();
say(parts["#details"].textContent);
"""


def test_the_script_zooms_resets_searches_and_tells():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node runs the script of a flame graph, and is not installed")
    done = subprocess.run(
        [node, "-e", FAKE + SCRIPT.read_text(encoding="utf-8") + PLAY],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "zoom 10+1000 10+1000 10+500 none inline",
        "reset 10+600 610+400 inline none",
        "matched 60.00% #e6f #fff",
        "not a pattern: (",
        "parse load!",
    ]
