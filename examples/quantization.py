"""A small network is quantized: how many bytes are saved, at what cost, and how learning with the rounding wins back what it lost.

Run it: python examples/quantization.py
"""

import numpy as np

import tensorlogic as tl

T, G = tl.QuantizationType, tl.QuantizationGranularity


def network(b: tl.GraphBuilder) -> tl.Tensor:
    """Return the scores of four classes for rows of 32 numbers."""
    x = b.input("x", ("n", 32), "float32")
    hidden = b.relu(b.linear(x, b.input("w1", (32, 64), "float32"), b.input("c1", (64,), "float32")))
    return b.linear(hidden, b.input("w2", (64, 4), "float32"), b.input("c2", (4,), "float32"))


def learn(
    loss: tl.EinsumGraph, params: dict[str, np.ndarray], data: dict[str, np.ndarray], **more: object
) -> dict[str, np.ndarray]:
    """Return the parameters after some epochs."""
    config = tl.TrainerConfig(optimizer=tl.optim.adam(5e-3), epochs=20, batch_size=50, **more)
    trainer = tl.Trainer(tl.Executor(), config)
    trainer.fit(loss, params, data)
    return trainer.params


rng = np.random.default_rng(0)
rows = rng.normal(size=(2000, 32)).astype("float32")
labels = np.argmax(np.tanh(rows @ rng.normal(size=(32, 16))) @ rng.normal(size=(16, 4)), -1)
train, test = {"x": rows[:1000], "labels": labels[:1000]}, {"x": rows[1000:]}

b = tl.GraphBuilder()
scores = network(b)
model, loss = b.build(y=scores), b.build(loss=b.cross_entropy(scores, b.input("labels", ("n",), "int64")))
params = learn(loss, tl.initial(loss, ["w1", "c1", "w2", "c2"], "he", seed=0), train)


def right(graph: tl.EinsumGraph, **more: np.ndarray) -> float:
    """Return the share of the test rows that is right."""
    return float(np.mean(tl.Executor().execute(graph, {**test, **more})["y"].argmax(-1) == labels[1000:]))


exact = right(model, **params)
print(f"float32: {sum(p.nbytes for p in params.values()):,} bytes")
configs = {
    "INT8, whole-number sums": tl.QuantizationConfig(T.INT8),
    "INT4, groups of 16": tl.QuantizationConfig(T.INT4, G.PER_GROUP(16), rounding=tl.QuantizationRounding.COMPENSATING),
    "binary": tl.QuantizationConfig(T.BINARY, activations=tl.ActivationMode.WEIGHT_ONLY),
}
for name, config in configs.items():
    report = tl.QuantizationReport.of(model, config, calibration=[{"x": train["x"]}], params=params)
    lost = 100 * (exact - right(report.graph))
    cost = "less than two points" if lost < 2 else "more than five points" if lost > 5 else "some points"
    print(f"{name}: {report.bytes_after:,} bytes, loses {cost}")

config = configs["binary"]
fake = tl.fake_quantize(loss, config, params=params)
after = learn(fake.graph, {**params, **fake.scales}, train, straight_through=True, settings={"*.scale": {"rate": 0.1}})
binary = tl.convert_quantized(model, config, after)
won = right(binary) - right(tl.quantize(model, config, params=params))
print(f"binary, learned with its rounding: wins back {'more' if won > 0.05 else 'less'} than five points")
chosen = tl.assign_precision(model, calibration=[{"x": train["x"]}], params=params, max_error=0.2)
print("within an error of 0.2:", ", ".join(f"{name} as {own.type.value}" for name, own in chosen.items()))
