"""Learning with quantized weights: products round their weights in each run, by scales that are learned too.

The graph to learn is the one that :func:`tensorlogic.quantize` makes before pairs of Quantize and Dequantize sink into products,
with the scales as inputs. Gradients pass through the rounding, and reach the scales (LSQ, Esser and others, 2020). When the
parameters are learned, the same pairs with constants in place of inputs sink into products of packed weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InputError, expect, nearest
from ..ir.graph import EinsumGraph
from ..ir.quantization_config import ActivationMode, QuantizationConfig
from ..ir.quantize_scales import range_scales, scales_of
from ..ir.quantized import checked_floats, placed
from ..ir.types import Array, TensorType, plain_array
from ..observe.quantization.calibration import RANGES, Seen, checked_activations, run_watched
from ..observe.quantization.post_training import Batches, checked_batches
from ..passes.quantize import DYNAMIC, Choice, LearnedScale, lowered, with_pairs
from ..passes.quantize_products import Product, find_products, with_params

if TYPE_CHECKING:
    from ..runtime.executor import Executor


class FakeQuantized(NamedTuple):
    """A loss graph that rounds its weights in training, and the first values of its scales, which are parameters too.

    >>> FakeQuantized._fields
    ('graph', 'scales')
    """

    graph: EinsumGraph
    scales: dict[str, Array]


def fake_quantize(
    graph: EinsumGraph,
    config: QuantizationConfig | None = None,
    *,
    params: Mapping[str, Any],
    calibration: Batches | None = None,
    executor: Executor | None = None,
) -> FakeQuantized:
    """Return a loss graph whose products round the weights among ``params``, and the first values of the scales.

    Scales are inputs ``w.scale``, and ``w.input_scale`` where activations are STATIC, which needs ``calibration`` data. Learn
    them with the parameters, by a trainer that has ``straight_through=True``; then :func:`convert_quantized` makes the graph that
    runs. Numbers have no zero points here.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w = b.input("x", ("n", 4), "float32"), b.input("w", (4, 2), "float32")
    >>> loss = b.build(loss=b.mean(b.square(x @ w - b.input("y", ("n", 2), "float32"))))
    >>> config = tl.QuantizationConfig(tl.QuantizationType.TERNARY)
    >>> fake = fake_quantize(loss, config, params={"w": np.ones((4, 2), "float32")})
    >>> fake.graph.input_names, fake.scales["w.scale"].tolist()
    (['x', 'w', 'w.scale', 'y'], [1.0, 1.0])
    """
    config = QuantizationConfig() if config is None else config
    values = _checked(graph, config, params)
    products = _products(graph, values)
    static = config.activations is ActivationMode.STATIC
    scales: dict[str, Array] = {}
    choices: dict[int, tuple[Product, Choice]] = {}
    for p, choice in _choices(products, config):
        assert isinstance(choice.weight, LearnedScale)
        matrix = p.weight_matrix(checked_floats(values[p.name], p.name))
        own = choice.weight
        scales[own.scale] = scales_of(matrix, own.kind, own.axis, own.group, symmetric=True, search=own.kind != "int8")[
            0
        ]
        choices[p.node] = (p, choice)
    if static:
        scales |= _activation_scales(graph, choices, config, values, checked_batches(calibration), executor)
    return FakeQuantized(with_pairs(_typed(graph, values), choices), scales)


def convert_quantized(graph: EinsumGraph, config: QuantizationConfig | None, params: Mapping[str, Any]) -> EinsumGraph:
    """Return the graph that runs with what was learned: packed weights, and sums of whole numbers where both sides are.

    ``graph`` is the model without its loss, before :func:`fake_quantize`; ``params`` are its parameters and the scales. Weights
    are exactly those that the learning graph had. Sums of whole numbers are exact, so the answers are the same bit for bit as far
    as its sums of floats were exact too.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> model = b.build(y=b.input("x", ("n", 4), "float32") @ b.input("w", (4, 2), "float32"))
    >>> learned = {"w": np.eye(4, 2, dtype="float32"), "w.scale": np.float32([0.5, 0.5])}
    >>> small = convert_quantized(model, tl.QuantizationConfig(tl.QuantizationType.INT4), learned)
    >>> tl.Executor().execute(small, {"x": np.ones((1, 4), "float32")})["y"]
    array([[1., 1.]], dtype=float32)
    """
    config = QuantizationConfig() if config is None else config
    values = _checked(graph, config, params)
    products = _products(graph, values)
    choices = {p.node: (p, choice) for p, choice in _choices(products, config)}
    fake = with_pairs(_typed(graph, values), choices)
    missing = [name for name in fake.inputs if name not in graph.inputs and name not in values]
    if missing:
        hint = "give what was learned: convert_quantized(graph, config, trainer.params)"
        raise InputError(
            f"the scale {missing[0]!r} is not among params", hint, *nearest(missing[0], values), code="E344"
        )
    held = {name: array for name, array in values.items() if name in fake.inputs}
    return lowered(with_params(fake, held, {})[0])


def _checked(graph: EinsumGraph, config: QuantizationConfig, params: Mapping[str, Any]) -> dict[str, Array]:
    expect(graph, EinsumGraph, "an EinsumGraph is expected", "build one: b.build(loss=loss)")
    expect(
        config,
        QuantizationConfig,
        "a QuantizationConfig is expected",
        "write tl.QuantizationConfig(tl.QuantizationType.INT8)",
    )
    expect(params, Mapping, "params are arrays by name", 'write params={"w": W}')
    if not config.symmetric:
        hint = "leave out symmetric=False: scales are learned, zero points are not"
        raise InputError("quantization-aware learning has symmetric numbers", hint, code="E345")
    return {name: plain_array(value) for name, value in params.items()}


def _typed(graph: EinsumGraph, values: Mapping[str, Array]) -> EinsumGraph:
    """Return the graph with the dtypes of its parameters, and float32 where none is declared."""
    types = {name: TensorType.of(a) for name, a in values.items()}
    return with_params(graph, {}, types)[0]


def _products(graph: EinsumGraph, values: Mapping[str, Array]) -> list[Product]:
    typed = _typed(graph, values)
    inputs = {i: name for name, i in typed.inputs.items() if name in values}
    every = find_products(typed, inputs, bytearray(i in inputs for i in range(len(typed.nodes))))
    found = [p for p in every if not p.lookup]
    if not found:
        hint = "its weights are inputs that params= names, of known sizes"
        raise InputError("the graph has no product of a value with a parameter", hint, code="E328")
    return found


def _choices(products: list[Product], config: QuantizationConfig) -> list[tuple[Product, Choice]]:
    """Return what becomes of each product; a weight that several have has one scale, and each its own for activations."""
    count: Counter[str] = Counter()
    found = []
    for p in products:
        columns = int(np.prod(p.columns))
        axis, group = placed(config.granularity, (columns, p.terms))
        shape = (
            () if axis is None and group is None else (columns,) if group is None else (columns, -(-p.terms // group))
        )
        weight = LearnedScale(f"{p.name}.scale", shape, config.type.value, axis, group)
        number = f"{count[p.name] + 1}" if count[p.name] else ""
        count[p.name] += 1
        how = {ActivationMode.DYNAMIC: DYNAMIC, ActivationMode.STATIC: f"{p.name}.input_scale{number}"}
        found.append((p, Choice(weight, None if config.activations is None else how.get(config.activations))))
    return found


def _activation_scales(
    graph: EinsumGraph,
    choices: Mapping[int, tuple[Product, Choice]],
    config: QuantizationConfig,
    values: Mapping[str, Array],
    batches: tuple[dict[str, Any], ...],
    executor: Executor | None,
) -> dict[str, Array]:
    """Watch the activations of each product on calibration data, and return the scales of their ranges."""
    if not batches:
        hint = "give batches of the inputs that are not parameters: calibration=[{'x': X}]"
        raise InputError(
            "static activation scales are found on calibration data, and there are none", hint, code="E326"
        )
    bound, _ = with_params(graph, values, {name: TensorType.of(plain_array(v)) for name, v in batches[0].items()})
    seen = {node: Seen() for node in choices}

    def note(node: int, array: Array) -> None:
        seen[node].add(checked_activations(choices[node][0].name, array), config.momentum)

    for node, (p, _) in choices.items():  # one at a time: two products may read the same value
        run_watched(bound, {p.x: partial(note, node)}, batches, "numpy" if executor is None else executor.backend)
    found = {}
    for node, (_, choice) in choices.items():
        low, high = RANGES[config.calibration](seen[node], config)
        found[str(choice.activation)] = range_scales(np.float64(low), np.float64(high), "int8", symmetric=True)[0]
    return found
