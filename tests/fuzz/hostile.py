"""Files spoilt at random: each is read, or refused with an error of ours; and what was read runs, or is refused likewise."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from checking import TAKEN, Roads, Wrong, copies, quiet, same_bits
from program_roads import program_case, program_files

import tensorlogic as tl
from tensorlogic.cli.common import read_value
from tensorlogic.observe import trace_files
from tensorlogic.observe.recorder import ExecutionRecorder
from tensorlogic.observe.replay import Recording
from tensorlogic.runtime.frame import Frame
from tensorlogic.testing.random_graphs import GraphCase
from tensorlogic.testing.strategies import formula_case, graph_case

SMALL = 1 << 22  # bytes that a spoilt graph may take and still be run
NUMBERS = [
    -1,
    0,
    1,
    2,
    3,
    7,
    2**31,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63),
    0.5,
    -0.0,
    1e308,
    5e-324,
]
TOKENS: list[bytes] = [
    b"NaN", b"1e400", b"-1e400", b"null", b"true", b"[]", b"{}", b'""', b'"relu"', b'"n"', b'"\\ud800"', b"\x00", b"\xff", b"\xed\xa0\x80",
    b"[" * 5000, b'{"a":' * 2000, b"(" * 3000, b"9" * 5000, b" " * 5000, b"\n", b",", b":", b'"', b"\\", b"{", b"}", b"->", b"...", b"=", b"%",
    "\u2200".encode(), "\u00ac".encode(), b"exists x. ", b"n*n*n*n", b"-n", b"n//0", b"n-n", b"inf", b"-0", b"0x10", b"1_000", b"\xef\xbb\xbf", b"../",
    *(str(n).encode() for n in NUMBERS),
]  # fmt: skip
VALUES: list[Any] = [
    *NUMBERS,
    None,
    True,
    False,
    "",
    "n",
    "relu",
    "n//0",
    "n*n*n*n*n",
    "-1",
    "x" * 300,
    "\ud800",
    "../x",
    [],
    {},
    [[]],
    [None],
    {"": 0},
]


class Spoilt(NamedTuple):
    """A kind of file, which one of them, and the seeds of the mutations made to it, one after the other."""

    kind: str
    which: int
    mutations: list[int]


def spoilt_file(below: Callable[[int], int]) -> Spoilt:
    """Draw a kind of file, one of its kind and one to four mutations."""
    return Spoilt(OFTEN[below(len(OFTEN))], below(10**6), [below(2**32) for _ in range(1 + below(4))])


def spoil(data: bytes, rng: random.Random) -> bytes:
    """Change bytes, or where they are JSON a value of it."""
    if rng.random() < 0.5:
        try:
            return json.dumps(_spoilt_value(json.loads(data), rng)).encode()
        except (ValueError, RecursionError):
            pass
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice([1, 1, 2, 4, 8, 16, 64]))
    match rng.randrange(6):
        case 0:
            return data[:at] + rng.choice(TOKENS) + data[at:]
        case 1:
            return data[:at] + rng.choice(TOKENS) + data[to:]
        case 2:
            return data[:at] + data[to:]
        case 3:
            return data[:to] + data[at:]
        case 4:
            return data[:at]
        case _:
            flipped = bytearray(data[at:to])
            for n in range(len(flipped)):
                flipped[n] ^= 1 << rng.randrange(8)
            return data[:at] + bytes(flipped) + data[to:]


def _spoilt_value(value: Any, rng: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []

    def walk(x: Any) -> None:
        for key in x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
            places.append((x, key))
            walk(x[key])

    walk(value)
    if not places:
        return rng.choice(VALUES)
    x, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del x[key]
        case 1 if isinstance(x, list):
            x.insert(key, x[key])
        case 1:
            x[str(rng.choice(VALUES))] = x.pop(key)
        case 2:
            other, there = rng.choice(places)
            x[key] = other.get(there) if isinstance(other, dict) else other[there] if there < len(other) else None
            try:
                json.dumps(value)
            except ValueError:  # a value cannot hold itself
                x[key] = None
        case 3 if isinstance(x[key], int) and not isinstance(x[key], bool):
            x[key] += rng.choice([-1, 1, 2])
        case _:
            x[key] = rng.choice(VALUES)
    return value


@lru_cache(1)
def cases() -> list[GraphCase]:
    """Return the graphs whose files are spoilt: those of a fixed seed that run."""
    found: list[GraphCase] = []
    below = random.Random(7).randrange
    while len(found) < 60:
        case = graph_case(below, most=8)
        with quiet():
            try:
                tl.Executor().execute(case.graph, copies(case.inputs))
            except tl.TensorLogicError:
                continue
        found.append(case)
    return found


def _run(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> None:
    """Run a graph if it is small, and show it."""
    executor = tl.Executor()
    str(graph)
    graph.to_json()
    given = {name: inputs[name] for name in graph.inputs if name in inputs}
    if executor.plan(graph, given).peak_bytes <= SMALL:
        executor.execute(graph, given)


def _graph_json(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    return case.graph.to_json().encode(), lambda data: _run(tl.EinsumGraph.from_json(data), copies(case.inputs))


def _graph_text(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    constants = case.graph.constants

    def read(data: bytes) -> None:
        _run(tl.EinsumGraph.from_text(data.decode("utf-8", "surrogateescape"), constants), copies(case.inputs))

    return case.graph.to_text().encode(), read


def _graph_file(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    """The constants that lie beside a saved graph, or the graph itself."""
    folder = tempfile.mkdtemp()
    try:
        case.graph.save(Path(folder) / "g.json")
        files = {p.name: p.read_bytes() for p in Path(folder).iterdir()}
    finally:
        shutil.rmtree(folder)
    name = next((n for n in files if n != "g.json"), "g.json")

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            for other, content in {**files, name: data}.items():
                (Path(place) / other).write_bytes(content)
            _run(tl.EinsumGraph.load(Path(place) / "g.json"), copies(case.inputs))

    return files[name], read


def _frame(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    frame = tl.Executor().frame(case.graph, copies(case.inputs))
    for _ in range(len(frame.program.entries) // 2):
        frame.advance()
    folder = tempfile.mkdtemp()
    frame.save(Path(folder) / "f")
    content = (Path(folder) / "f").read_bytes()
    shutil.rmtree(folder)

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "f").write_bytes(data)
            Frame.load(Path(place) / "f", frame.program).run()

    return content, read


def _compiled(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    """A folder of the compilation cache: spoilt, it may be refused but never gives another answer."""
    want = dict(tl.Executor().execute(case.graph, copies(case.inputs)))
    config = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.STANDARD)
    key = tl.CompilationKey.from_graph(case.graph, config)
    folder = tempfile.mkdtemp()
    cache = tl.CompilationCache(4, folder)
    cache.insert(key, tl.Executor().compile_graph(case.graph, config))
    files = {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
    shutil.rmtree(folder)
    name = sorted(files)[len(case.graph.nodes) % len(files)]

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            for other, content in {**files, name: data}.items():
                (Path(place) / other).parent.mkdir(parents=True, exist_ok=True)
                (Path(place) / other).write_bytes(content)
            found = tl.CompilationCache(4, place).get(key)
            if found is not None:
                got = found(copies(case.inputs))
                for output, array in want.items():
                    if not same_bits(got[output], array):
                        raise Wrong(f"a spoilt {name} gives another answer for {output}")

    return files[name], read


def _recording(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    folder = tempfile.mkdtemp()
    with ExecutionRecorder().capture(folder):
        tl.Executor().execute(case.graph, copies(case.inputs))
    files = {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
    shutil.rmtree(folder)
    name = sorted(files)[len(case.graph.nodes) % len(files)]

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            for other, content in {**files, name: data}.items():
                (Path(place) / other).parent.mkdir(parents=True, exist_ok=True)
                (Path(place) / other).write_bytes(content)
            str(Recording.load(place))

    return files[name], read


def _trace(form: str, packed: bool) -> Callable[[GraphCase], tuple[bytes, Callable[[bytes], None]]]:
    def make(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
        with tl.trace(detail="op") as recorded:
            tl.Executor().execute(case.graph, copies(case.inputs))
        content = trace_files.write(recorded, form).encode()

        def read(data: bytes) -> None:
            if packed:
                with tempfile.TemporaryDirectory() as place:
                    path = Path(place) / "t"
                    path.write_bytes(data)
                    trace = tl.Trace.load(path)
            else:
                trace = trace_files.read(data)
            trace_files.write(trace, ("chrome", "speedscope", "collapsed", "rust")[len(data) % 4])
            if len(data) % 3 == 0:
                str(tl.ProfileData.from_trace(trace))
            elif len(data) % 3 == 1:
                rows = trace.to_recorded()
                tl.TraceAnalyzer.memory_hotspots(rows, 5)
                tl.TraceAnalyzer.load_balance_metrics(rows)

        return (gzip.compress(content, mtime=0) if packed else content), read

    return make


def _profile(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    with tl.trace(detail="op") as recorded:
        tl.Executor().execute(case.graph, copies(case.inputs))
    content = tl.ProfileData.from_trace(recorded).to_json()
    return content.encode(), lambda data: str(tl.ProfileData.from_json(data))


@lru_cache(1)
def _formulas() -> list[str]:
    below = random.Random(7).randrange
    return [str(formula_case(below).expr) for _ in range(60)]


def _formula(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    texts = _formulas()

    def read(data: bytes) -> None:
        context = tl.CompilerContext(domains={"D": ["ann", "bob", "cat", "dan"]})
        tl.compile(tl.parse_expr(data.decode("utf-8", "surrogateescape")), context)

    return texts[len(case.graph.to_text()) % len(texts)].encode(), read


def _equation(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
    def read(data: bytes) -> None:
        b = tl.GraphBuilder()
        text = data.decode("utf-8", "surrogateescape")
        graph = b.build(y=b.einsum(text, *(b.input(f"x{n}", (2, 2)) for n in range(text.count(",") + 1))))
        _run(graph, {name: np.ones((2, 2)) for name in graph.inputs})

    return [b"ij,jk->ik", b"...ij,...jk->...ik", b"ii->i", b"ij,jk,kl->il"][len(case.graph.nodes) % 4], read


def _input_file(ending: str) -> Callable[[GraphCase], tuple[bytes, Callable[[bytes], None]]]:
    """An array on the command line."""

    def make(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
        array = next(iter(case.inputs.values()), np.ones(3))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"x.{ending}"
            if ending == "npz":
                np.savez(path, a=array)
            elif ending == "npy":
                np.save(path, array)
            else:
                path.write_text(json.dumps(array.tolist()))
            content = path.read_bytes()

        def read(data: bytes) -> None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"x.{ending}"
                path.write_bytes(data)
                value = read_value("x", f"{path}:a" if ending == "npz" else str(path))
                b = tl.GraphBuilder()
                tl.Executor().execute(b.build(y=b.input("x") + 1), {"x": value})

        return content, read

    return make


def _program(place: str) -> Callable[[GraphCase], tuple[bytes, Callable[[bytes], None]]]:
    """A program as text, or one file of a folder that it was saved in; half of the time the digests say that nothing is spoilt."""

    def make(case: GraphCase) -> tuple[bytes, Callable[[bytes], None]]:
        which = len(case.graph.to_text())
        files = dict(program_files(program_case(random.Random(which).randrange)))
        name = sorted(files)[which % len(files)] if place == "folder" else "program.tl"

        def read(data: bytes) -> None:
            with tempfile.TemporaryDirectory() as folder:
                whole = {**files, name: data} if place == "folder" else {"program.tl": data}
                for other, content in whole.items():
                    (Path(folder) / other).write_bytes(content)
                if place == "folder" and len(data) % 2 and name != "program.json":
                    manifest = json.loads(files["program.json"])
                    del manifest["digests"]
                    (Path(folder) / "program.json").write_text(json.dumps(manifest))
                program = tl.load(folder if place == "folder" else Path(folder) / "program.tl")
                str(program)
                for head in {x.head.name: x.head.boolean for x in program.statements if hasattr(x, "head")}:
                    str(program.query(f"{head}?") if not program.facts.count(head) else program.relation(head))

        return files[name], read

    return make


KINDS: dict[str, Callable[[GraphCase], tuple[bytes, Callable[[bytes], None]]]] = {
    "graph JSON": _graph_json,
    "graph text": _graph_text,
    "graph file": _graph_file,
    "frame": _frame,
    "compiled": _compiled,
    "recording": _recording,
    "trace chrome": _trace("chrome", False),
    "trace chrome.gz": _trace("chrome", True),
    "trace speedscope": _trace("speedscope", False),
    "trace collapsed": _trace("collapsed", False),
    "trace rust": _trace("rust", False),
    "profile": _profile,
    "formula": _formula,
    "equation": _equation,
    "input npy": _input_file("npy"),
    "input npz": _input_file("npz"),
    "input json": _input_file("json"),
    "program text": _program("text"),
    "program folder": _program("folder"),
}


RARE = ("program folder", "compiled", "recording", "frame", "graph file")  # whole folders, which take a while to write
OFTEN = [kind for kind in KINDS for _ in range(1 if kind in RARE else 5)]


@lru_cache(4096)
def _made(kind: str, which: int) -> tuple[bytes, Callable[[bytes], None]]:
    with quiet():
        return KINDS[kind](cases()[which])


def files(case: Spoilt, roads: Roads) -> None:
    """Spoil a file and read it."""
    data, read = _made(case.kind, case.which % len(cases()))
    for number in case.mutations:
        data = spoil(data, random.Random(number))
    TAKEN[""] += 1
    try:
        with quiet():
            read(data)
    except (tl.TensorLogicError, Wrong) as error:
        if isinstance(error, Wrong):
            raise
        str(error)
    except Exception as error:
        shown = data if len(data) < 3000 else data[:1500] + b" ... " + data[-500:]
        raise Wrong(f"{case.kind}: raised {type(error).__name__}: {str(error)[:500]}\n{shown!r}") from error
