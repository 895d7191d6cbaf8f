"""What a user gets wrong at first with a stream: rows that lie otherwise, single rows, and columns that are not there."""

import numpy as np
import pytest

import tensorlogic as tl

X = np.arange(15, dtype="float32").reshape(5, 3)
WEIGHTS = np.ones((3, 2), "float32")


def graph():
    b = tl.GraphBuilder()
    return b.build(y=b.input("x", ("n", 3), "float32") @ b.input("w", (3, 2), "float32"))


def refused(source, message, *hints):
    with pytest.raises(tl.TensorLogicError, match=message) as caught:
        tl.Executor().execute_stream(graph(), source, inputs={"w": WEIGHTS}).result()
    shown = "\n".join(caught.value.diagnostic.suggestions)
    assert all(hint in shown for hint in hints), shown
    assert "reshape" not in shown


def test_transposed_rows_suggest_a_transpose():
    refused(X.T, "axis 1 must be 3, got 5", "use tensor.transpose([1, 0])")
    refused({"x": X.T}, "axis 1 must be 3, got 5", "use tensor.transpose([1, 0])")
    refused((X.T for _ in range(2)), "axis 1 must be 3, got 5", "a chunk is [n, 3]", "transpose it")
    refused(X[:, :2], "axis 1 must be 3, got 2", "a chunk is [n, 3]")


def test_single_rows_suggest_chunks():
    for source in ((row for row in X), X.tolist(), [{"x": row} for row in X]):
        refused(source, "2 axes are declared, and a chunk has 1", "x[i:i+1]", "np.asarray(rows)")
    with pytest.raises(tl.ShapeError, match="a chunk has 1"):
        tl.StreamProcessor(tl.Executor(), graph(), inputs={"w": WEIGHTS}).push({"x": X[0]})


def test_an_index_among_the_columns_is_named(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "rows.csv"
    pandas.DataFrame(X, columns=["a", "b", "c"]).to_csv(path)
    refused(path, "4 columns for it: '', 'a', 'b', 'c'", "index=False")
    pandas.DataFrame(X, columns=["a", "b", "c"]).to_csv(path, index=False)
    found = tl.Executor().execute_stream(graph(), path, inputs={"w": WEIGHTS})
    np.testing.assert_array_equal(next(found).outputs["y"], X @ WEIGHTS)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_that_are_missing_and_unused_are_named(tmp_path, kind):
    pandas = pytest.importorskip("pandas")
    frame, path = pandas.DataFrame(X, columns=["x_0", "x_1", "z"]), tmp_path / f"rows.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    refused(path, "2 columns for it: 'x_0', 'x_1'", "not used: 'z'", "x_0 to x_2")


def test_an_async_source_suggests_the_async_stream():
    async def chunks():
        yield X

    refused(chunks(), "async_generator", "execute_stream_async")
