"""More rows than memory should hold: a model over a file, chunk by chunk, stopped half-way and taken up again."""

import tempfile
from pathlib import Path

import numpy as np

import tensorlogic as tl

b = tl.GraphBuilder()
x, w = b.input("x", ("n", 8), "float32"), b.input("w", (8, 3), "float32")
scores = b.softmax(x @ w)
mean = b.mean(scores, axis=0)
graph = b.build(
    scores=scores,  # a row for each row: written to a file as it comes
    mean=mean,  # over all rows: combined chunk by chunk
    spread=b.mean(scores * scores, axis=0) - mean * mean,
    sure=b.max(scores),
)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", "float32", (100_000, 8))
    for start in range(0, len(rows), 10_000):
        rows[start : start + 10_000] = np.random.default_rng(start).normal(size=(10_000, 8))
    rows.flush()
    weights = {"w": np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)}
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(16_384)).with_prefetch(2).with_checkpointing(1)

    def run(*, resume: bool) -> tl.Stream:
        return tl.Executor().execute_stream(
            graph,
            folder / "rows.npy",
            config,
            inputs=weights,
            sink=folder / "scores.npy",
            checkpoint=folder / "run",
            resume=resume,
        )

    with run(resume=False) as stream:
        for result in stream:
            print(f"chunk {result.metadata.chunk_id}: {result.metadata.size:,} rows from {result.metadata.start:,}")
            if result.metadata.chunk_id == 2:
                break
    print("stopped; going on where it was")
    stream = run(resume=True)
    for result in stream:
        print(f"chunk {result.metadata.chunk_id}: {result.metadata.size:,} rows from {result.metadata.start:,}")
    print("mean  ", np.round(stream.outputs["mean"], 4))
    print("spread", np.round(stream.outputs["spread"], 4))
    print("sure  ", np.round(stream.outputs["sure"], 4))

    whole = tl.Executor().execute(graph, {"x": np.load(folder / "rows.npy"), **weights})
    print("as in one run:", np.allclose(np.load(folder / "scores.npy"), whole["scores"], atol=1e-6))
