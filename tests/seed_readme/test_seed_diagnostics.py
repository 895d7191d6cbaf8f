"""Diagnostics with context and suggestions, as the seed's README shows them."""

import textwrap

import tensorlogic as tl


def test_diagnostic():
    diag = (
        tl.Diagnostic.error("Tensor operation failed")
        .with_code("E001")
        .with_context("Expected shape [64, 128], got [64, 256]")
        .with_suggestion("Use tensor.reshape([64, 128]) to match expected shape")
        .with_suggestion("Check input tensor dimensions")
        .with_location(tl.SourceLocation().with_file("model.rs").with_line(42))
    )
    assert diag.severity == tl.Severity.ERROR
    assert diag.location == tl.SourceLocation(file="model.rs", line=42)
    assert diag.format() == textwrap.dedent("""\
        [ERROR] Tensor operation failed
          at model.rs:42
          code: E001

        Context:
          Expected shape [64, 128], got [64, 256]

        Suggestions:
          1. Use tensor.reshape([64, 128]) to match expected shape
          2. Check input tensor dimensions""")


def test_ready_made_diagnostics():
    expected = tl.TensorShape.static_shape([64, 128])
    actual = tl.TensorShape.static_shape([64, 256])
    diag = tl.ShapeMismatchDiagnostic.create(expected, actual, "matmul")
    assert "matmul" in diag.message
    assert "Dimension 1" in diag.context[1]

    diag = tl.MemoryDiagnostic.out_of_memory(
        1024 * 1024 * 1024,  # 1 GB requested
        512 * 1024 * 1024,  # 512 MB available
    )
    assert diag.severity == tl.Severity.CRITICAL
    assert "1.0 GiB" in diag.message
    assert "512.0 MiB" in diag.message
    assert "Suggestions:" in str(diag)

    diag = tl.PerformanceDiagnostic.slow_operation(
        "einsum",
        150.0,  # actual: 150 ms
        50.0,  # expected: 50 ms
    )
    assert diag.severity == tl.Severity.WARNING
    assert "3.0 times" in diag.context[0]


def test_diagnostic_collector():
    collector = tl.DiagnosticCollector()
    assert not collector.has_errors()
    collector.add(tl.Diagnostic.error("no such input 'z'"))
    collector.add(tl.Diagnostic.warning("input 'w' is never read"))
    collector.add(tl.Diagnostic.info("planned in 3 steps"))

    assert collector.has_errors()
    assert (collector.error_count(), collector.warning_count()) == (1, 1)
    assert collector.format_all() == textwrap.dedent("""\
        [ERROR] no such input 'z'

        [WARNING] input 'w' is never read

        [INFO] planned in 3 steps

        Summary: 1 error(s), 1 warning(s)""")


def test_example_output():
    expected = tl.TensorShape.static_shape([64, 128])
    actual = tl.TensorShape.static_shape([64, 256])
    collector = tl.DiagnosticCollector()
    collector.add(
        tl.ShapeMismatchDiagnostic.create(expected, actual, "matmul").with_location(
            tl.SourceLocation().with_file("model.rs").with_line(42)
        )
    )
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
