"""Quantization: what is left of the accuracy and of the signal, and what the models take; digits and MNIST need ``make data``."""

from __future__ import annotations

import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import HERE, Table, contest

import tensorlogic as tl
from tensorlogic.ir.constants import all_constants

sys.path.insert(0, str(HERE.parent / "examples" / "learning"))
from digit_networks import NETWORKS, arrays_of

DATA = HERE.parent / "data"
T, G, A, R = tl.QuantizationType, tl.QuantizationGranularity, tl.ActivationMode, tl.QuantizationRounding
AFTER: dict[str, tl.QuantizationConfig] = {
    "INT8 static": tl.QuantizationConfig(T.INT8, calibration=tl.CalibrationMethod.MSE),
    "INT8 dynamic": tl.QuantizationConfig(T.INT8, activations=A.DYNAMIC),
    "INT8 weight-only": tl.QuantizationConfig(T.INT8, activations=A.WEIGHT_ONLY),
    "FP8 E4M3": tl.QuantizationConfig(T.FP8_E4M3),
    "INT4 per group of 32": tl.QuantizationConfig(T.INT4, G.PER_GROUP(32), rounding=R.COMPENSATING_SEARCH),
    "INT2 per group of 32": tl.QuantizationConfig(T.INT2, G.PER_GROUP(32), rounding=R.COMPENSATING_SEARCH),
}
LEARNED = {"ternary, QAT": tl.QuantizationConfig(T.TERNARY), "binary, QAT": tl.QuantizationConfig(T.BINARY)}
GOALS = {"INT8": 0.3, "INT4": 1.0, "tern": 2.5, "bina": 2.5}
RATE, BATCH = 2e-3, 64


def graphs(network: str, size: int, most: float) -> tuple[tl.EinsumGraph, tl.EinsumGraph]:
    """Return the logits of a network as a graph, and the loss to learn by."""
    b = tl.GraphBuilder()
    images, labels = b.input("images", ("n", size, size), "uint8"), b.input("labels", ("n",), "int64")
    logits = NETWORKS[network](b, b.cast(images, "float32") * (1 / most), 0.0)
    c = tl.GraphBuilder()  # the network as it is asked, without dropout
    asked = c.inline(b.build(logits=logits), {"training": c.constant(False), "training.step": c.constant(np.uint64(0))})
    return c.build(asked), b.build(loss=b.cross_entropy(logits, labels))


def learn(
    loss: tl.EinsumGraph, params: Mapping[str, Any], data: Mapping[str, Any], epochs: int, rate: float, **more: Any
) -> Any:
    """Return the parameters that are learned."""
    schedule = tl.optim.cosine(rate, steps=epochs * -(-len(data["labels"]) // BATCH))
    config = tl.TrainerConfig(optimizer=tl.optim.adam(schedule), epochs=epochs, batch_size=BATCH, **more)
    trainer = tl.Trainer(tl.Executor(), config)
    trainer.fit(loss, params, data)
    return trainer.params


def accuracy(graph: tl.EinsumGraph, test: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> float:
    """Return the share of a test set that is right, in per cent."""
    given = {"images": test["images"], **(params or {})}
    found = tl.Executor().execute(graph, {k: v for k, v in given.items() if k in graph.inputs})["logits"]
    return 100 * float(np.mean(found.argmax(-1) == test["labels"]))


def kilobytes(graph: tl.EinsumGraph) -> float:
    return sum(a.nbytes for a in all_constants(graph).values()) / 1e3


def digits_table(
    title: str, network: str, learned: dict[str, Any], test: dict[str, Any], most: float, epochs: int, again: int
) -> Table:
    """Learn a network, quantize it in several ways, and compare what is right on the test set."""
    logits, loss = graphs(network, test["images"].shape[1], most)
    first = tl.initial(loss, [n for n in loss.inputs if n.endswith(("_w", "_c"))], "he", seed=0)
    params = learn(loss, first, learned, epochs, RATE)
    right = accuracy(logits, test, params)
    calibration = [{"images": learned["images"][:512]}]
    models = {name: tl.quantize(logits, c, calibration=calibration, params=params) for name, c in AFTER.items()}
    for name, config in LEARNED.items():
        fake = tl.fake_quantize(loss, config, params=params)
        settings = {"*.scale": {"rate": 0.1}}
        after = learn(
            fake.graph, {**params, **fake.scales}, learned, again, RATE, straight_through=True, settings=settings
        )
        models[name] = tl.convert_quantized(logits, config, after)
    rows = [f"float32 {right:.2f} % ({sum(p.nbytes for p in params.values()) / 1e3:.0f} kB)"]
    for name, model in models.items():
        goal = next((g for word, g in GOALS.items() if name.startswith(word)), None)
        away = accuracy(model, test) - right
        met = "" if goal is None else f", goal {-goal}" + ("" if away >= -goal else " missed")
        rows.append(f"{name} {away:+.2f} points ({kilobytes(model):.0f} kB{met})")
    images = test["images"][:256]
    executor = tl.Executor()
    calls: dict[str, Callable[[], object]] = {"float32": lambda: executor.execute(logits, {"images": images, **params})}
    for name, model in models.items():
        calls[name] = lambda model=model: executor.execute(model, {"images": images})  # type: ignore[misc]
    note = f"Right on {len(test['labels']):,} test images: {'; '.join(rows)}. Times of 256 images."
    return contest(title, note, calls, rounds=5)


def block_table() -> Table:
    """Quantize the transformer block of the model benchmarks, and tell the signal to noise of its output."""
    import models

    case = models.block(approximate=True)
    configs = {
        "INT8 weight-only": tl.QuantizationConfig(T.INT8, activations=A.WEIGHT_ONLY),
        "INT8 dynamic": tl.QuantizationConfig(T.INT8, activations=A.DYNAMIC),
        "INT8 static": tl.QuantizationConfig(T.INT8, activations=A.STATIC, calibration=tl.CalibrationMethod.MSE),
        "FP8 E4M3": tl.QuantizationConfig(T.FP8_E4M3, activations=A.WEIGHT_ONLY),
    }
    configs |= {
        f"INT4, groups of 32, {r.name.lower().replace('_', ' ')}": tl.QuantizationConfig(
            T.INT4, G.PER_GROUP(32), rounding=r
        )
        for r in R
    }
    executor, rows = tl.Executor(), []
    calls: dict[str, Callable[[], object]] = {"float32": lambda: executor.execute(case.graph, case.inputs)}
    exact = executor.execute(case.graph, case.inputs)[0].astype("float64")
    for name, config in configs.items():
        model = tl.quantize(case.graph, config, calibration=[case.inputs])
        noise = np.square(executor.execute(model, case.inputs)[0] - exact).sum()
        rows.append(f"{name} {10 * np.log10(np.square(exact).sum() / noise):.1f} dB ({kilobytes(model):.0f} kB)")
        if "groups" not in name:
            calls[name] = lambda model=model: executor.execute(model, case.inputs)  # type: ignore[misc]
    note = f"Signal to noise of the output (goal: 35 dB for INT8 per channel; float32 {kilobytes(case.graph):.0f} kB): "
    return contest("Transformer block, quantized", note + "; ".join(rows) + ".", calls, rounds=5)


def load_table(n: int = 4096) -> Table:
    """Measure the peak memory of loading a quantized model, in sizes of its packed file."""
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", n), "float32") @ b.input("w", (n, n), "float32"))
    w = np.random.default_rng(0).normal(size=(n, n)).astype("float32")
    rows, calls = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in (T.INT8, T.INT4, T.INT2, T.BINARY):
            path = Path(folder, f"{kind.value}.json")
            tl.quantize(graph, tl.QuantizationConfig(kind), params={"w": w}).save(path)
            tracemalloc.start()
            tl.EinsumGraph.load(path)
            peak = tracemalloc.get_traced_memory()[1] / path.with_suffix(".safetensors").stat().st_size
            tracemalloc.stop()
            rows.append(f"{kind.name} {peak:.2f}")
            calls[kind.name] = lambda path=path: tl.EinsumGraph.load(path)
        note = f"One weight of {n} × {n}. Peak memory while loading, in sizes of the packed file (goal: 1.3): {', '.join(rows)}."
        return contest("Loading a quantized model", note, calls, rounds=3, calls=1)  # type: ignore[arg-type]


def tables() -> list[Table]:
    """Measure accuracy on digits and MNIST where their data are there, the transformer block, and loading."""
    return list(each_table())


def each_table() -> Iterator[Table]:
    """Yield the tables as they are measured."""
    yield load_table()
    yield block_table()
    if (DATA / "digits.npz").exists():
        data = arrays_of(DATA / "digits.npz")
        half = len(data["labels"]) // 2
        learned, test = ({k: v[part] for k, v in data.items()} for part in (slice(half), slice(half, None)))
        padded = np.pad(learned["images"], [(0, 0), (1, 1), (1, 1)])
        moves = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
        more = {"images": np.concatenate(moves), "labels": np.tile(learned["labels"], 9)}
        for network in NETWORKS:
            yield digits_table(f"Digits, {network}, quantized", network, more, test, 16, 8, 8)
    if (DATA / "mnist.npz").exists():
        data = arrays_of(DATA / "mnist.npz")
        learned, test = ({k: data[f"{part}_{k}"] for k in ("images", "labels")} for part in ("train", "test"))
        yield digits_table("MNIST, perceptron, quantized", "perceptron", learned, test, 255, 2, 2)


if __name__ == "__main__":
    for table in each_table():
        print(table.markdown(), flush=True)
