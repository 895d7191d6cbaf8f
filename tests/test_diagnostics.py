"""Diagnostics: the printed form, counting, places in the user's text, and exceptions that carry them."""

from __future__ import annotations

import copy
import pickle
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tensorlogic as tl
from tensorlogic import (
    Diagnostic,
    DiagnosticCollector,
    MemoryDiagnostic,
    NodeExecutionDiagnostic,
    PerformanceDiagnostic,
    Severity,
    ShapeMismatchDiagnostic,
    SourceLocation,
    TensorLogicError,
    TensorShape,
    TypeMismatchDiagnostic,
)
from tensorlogic import errors as tl_errors
from tensorlogic.diagnostics import bytes_text


def test_the_seeds_example():
    shape = TensorShape.static_shape
    found = ShapeMismatchDiagnostic.create(shape([64, 128]), shape([64, 256]), "matmul")
    collector = DiagnosticCollector()
    collector.add(found.with_location(SourceLocation().with_file("model.rs").with_line(42)))
    assert collector.format_all() == textwrap.dedent("""\
        [ERROR] Shape mismatch in matmul operation
          at model.rs:42
          code: E001

        Context:
          Expected shape: [64, 128], but got: [64, 256]
          Dimension 1 mismatch: expected Static(128), got Static(256)

        Suggestions:
          1. Check your input tensor shapes match the expected dimensions
          2. Use tensor.reshape([64, 128]) to match the expected shape

        Summary: 1 error(s), 0 warning(s)""")


def test_severities_compare_and_print():
    made = [Diagnostic.info("a"), Diagnostic.warning("b"), Diagnostic.error("c"), Diagnostic.critical("d")]
    assert [d.severity for d in made] == sorted(Severity)
    assert [d.format() for d in made] == ["[INFO] a", "[WARNING] b", "[ERROR] c", "[CRITICAL] d"]
    assert str(made[0]) == made[0].format()
    assert Severity.INFO < Severity.WARNING < Severity.ERROR < Severity.CRITICAL


def test_collector_counts():
    collector = DiagnosticCollector()
    assert (collector.error_count(), collector.warning_count(), collector.has_errors(), len(collector)) == (
        0,
        0,
        False,
        0,
    )
    assert collector.format_all() == "Summary: 0 error(s), 0 warning(s)"
    for d in (Diagnostic.info("i"), Diagnostic.warning("w"), Diagnostic.warning("w2")):
        collector.add(d)
    assert not collector.has_errors()
    collector.add(Diagnostic.critical("c"))
    collector.add(Diagnostic.error("e"))
    assert (collector.error_count(), collector.warning_count(), collector.has_errors(), len(collector)) == (
        2,
        2,
        True,
        5,
    )
    assert [d.message for d in collector] == ["i", "w", "w2", "c", "e"]
    assert collector.format_all().endswith("[ERROR] e\n\nSummary: 2 error(s), 2 warning(s)")


def test_a_collector_does_not_share_the_list_it_is_given():
    given = [Diagnostic.error("e")]
    collector = DiagnosticCollector(given)
    collector.add(Diagnostic.error("f"))
    assert len(given) == 1


def test_building_leaves_the_original_alone():
    plain = Diagnostic.error("no")
    full = (
        plain.with_code("E9")
        .with_context("one")
        .with_context("two")
        .with_suggestion("yes")
        .with_location(SourceLocation("f.tl", 3, 5, "r"))
        .with_source("  a <- b")
    )
    assert plain == Diagnostic.error("no")
    assert full.context == ("one", "two")
    assert full.format().splitlines() == [
        "[ERROR] no", "  at f.tl:3:5 (rule r)", "    a <- b", "      ^", "  code: E9", "", "Context:", "  one", "  two", "",
        "Suggestions:", "  1. yes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (SourceLocation(), "<text>"),
        (SourceLocation("a.py"), "a.py"),
        (SourceLocation("a.py", 3), "a.py:3"),
        (SourceLocation("a.py", 3, 7), "a.py:3:7"),
        (SourceLocation(line=3), "<text>:3"),
        (SourceLocation().with_file("a").with_line(1).with_column(2), "a:1:2"),
    ],
)
def test_locations_print(location: SourceLocation, text: str):
    assert str(location) == text


def test_rank_mismatch():
    found = ShapeMismatchDiagnostic.create([2, 3], [2], "add")
    assert found.context == ("Expected shape: [2, 3], but got: [2]", "Rank mismatch: expected 2, got 1")


def test_names_take_any_size():
    found = ShapeMismatchDiagnostic.create(["n", 3], [7, 4], "add")
    assert found.context[1:] == ("Dimension 1 mismatch: expected Static(3), got Static(4)",)
    found = ShapeMismatchDiagnostic.create([3, "n"], ["m", "m"], "add")
    assert found.context[1:] == (
        "Dimension 0 mismatch: expected Static(3), got Symbolic(m)",
        "Dimension 1 mismatch: expected Symbolic(n), got Symbolic(m)",
    )


def test_ready_made():
    found = TypeMismatchDiagnostic.create("float32", "int64", "add")
    assert (found.code, found.severity) == ("E002", Severity.ERROR)
    assert found.context == ("Expected type: float32, but got: int64",)
    found = MemoryDiagnostic.out_of_memory(1024**3, 512 * 1024**2)
    assert found.message == "Out of memory: 1.0 GiB requested, 512.0 MiB available"
    assert found.context == ("Short by 512.0 MiB",)
    assert (found.code, found.severity) == ("E003", Severity.CRITICAL)
    found = PerformanceDiagnostic.slow_operation("einsum", 150.0, 50.0)
    assert found.message == "Slow operation: einsum took 150.00 ms, expected 50.00 ms"
    assert found.context == ("3.0 times the expected time",)
    assert found.severity == Severity.WARNING
    assert PerformanceDiagnostic.slow_operation("einsum", 1.0, 0.0).context == ()
    found = NodeExecutionDiagnostic.create(3, "einsum", "boom", ["float32 (2,)"])
    assert (found.message, found.context) == ("Node 3 (einsum) failed: boom", ("operand 0: float32 (2,)",))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**52, "4,096.0 TiB")],
)
def test_bytes(count: int, text: str):
    assert bytes_text(count) == text


# exceptions


def kinds() -> list[type[TensorLogicError]]:
    return [k for k in vars(tl_errors).values() if isinstance(k, type) and issubclass(k, TensorLogicError)]


@pytest.mark.parametrize("kind", kinds(), ids=lambda k: k.__name__)
def test_every_exception_carries_a_diagnostic(kind: type[TensorLogicError]):
    error = kind("it broke", code="E9", context=["here"], suggestions=["mend it"])
    assert error.diagnostic.code == "E9"
    assert error.diagnostic.location is not None
    assert error.diagnostic.location.file == __file__
    assert str(error).splitlines()[0] == "it broke"
    assert str(error).splitlines()[-2:] == ["  here", "  hint: mend it"]
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert again.diagnostic == error.diagnostic
        assert str(again) == str(error)


def test_an_exception_of_a_diagnostic():
    found = Diagnostic.error("no").with_code("E1").with_location(SourceLocation("a", 1))
    error = tl.GraphError.of(found)
    assert error.diagnostic == found
    assert error.at(SourceLocation("b", 2)).diagnostic == found  # it has a place of its own
    guessed = tl.GraphError.of(Diagnostic.error("no"))
    assert guessed.diagnostic.location is not None
    assert guessed.at(SourceLocation("b", 2)).diagnostic.location == SourceLocation("b", 2)
    assert guessed.at(SourceLocation("c", 3)).diagnostic.location == SourceLocation("b", 2)
    assert guessed.at(None) is guessed


def test_nearest():
    assert tl_errors.nearest("algebr", ["algebra", "spec"]) == ["did you mean 'algebra'?"]
    assert tl_errors.nearest("zzz", ["a", "b"]) == ["known: 'a', 'b'"]
    assert tl_errors.nearest("zzz", []) == ["there are none"]
    assert tl_errors.nearest("zzz", [f"n{i}" for i in range(20)])[0].endswith("(20 in all)")


# places in the user's text


def place(source: str, file: str) -> Any:
    space: dict[str, Any] = {"b": tl.GraphBuilder()}
    exec(compile(source, file, "exec"), space)
    return space["g"].nodes[0].location


def test_the_same_text_in_two_files_has_two_places():
    source = "g = b.build(y=b.input('x'))\n"
    assert [place(source, name).file for name in ("cell 1", "cell 2")] == ["cell 1", "cell 2"]


def test_a_file_beside_the_package_is_the_users():
    package = Path(tl.__file__).parent
    beside = str(package.parent / (package.name + "_app.py"))
    assert place("g = b.build(y=b.input('x'))\n", beside).file == beside


def test_the_column_counts_characters(tmp_path: Path):
    file = tmp_path / "words.py"
    file.write_text("ä = '日本語'; g = b.build(y=b.input('x'))\n", encoding="utf-8")
    source = file.read_text(encoding="utf-8")
    assert place(source, str(file)).column == source.index("b.input") + 1


@pytest.mark.parametrize("column", [1, 2, 80, 81, 500, 920, 999, 1000])
def test_of_a_long_line_the_part_around_the_caret(column):
    line = "".join(chr(ord("a") + i % 26) for i in range(1000))
    at = Diagnostic.error("wrong").with_location(SourceLocation("<text>", 1, column)).with_source(line)
    shown, caret = at.source_lines()
    assert len(shown) == 160
    assert shown[caret.index("^")] in (line[column - 1], "…")
    assert shown.strip("…") in line
    assert shown.startswith("…") or column < 100
    assert shown.endswith("…") or column > 900


def test_a_caret_below_an_indented_line():
    found = Diagnostic.error("no").with_source("\t  x = y").with_location(SourceLocation("f", 1, 8))
    assert found.source_lines() == ["x = y", "    ^"]
    assert Diagnostic.error("no").with_source("  x").source_lines() == ["x"]
    assert Diagnostic.error("no").with_location(SourceLocation("no such file", 3, 1)).source_lines() == []
