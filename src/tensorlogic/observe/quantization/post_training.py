"""Quantizing a trained graph: find its products, measure their inputs on calibration data, round their weights, rewrite the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...diagnostics import value_text
from ...errors import DTypeError, InputError, expect, nearest
from ...events import span
from ...ir import ops
from ...ir.check import expect_graph
from ...ir.graph import EinsumGraph, bodies, extract
from ...ir.quantization_config import ActivationMode, QuantizationConfig
from ...ir.quantize_scales import range_scales
from ...ir.quantized import QuantizationGranularity, QuantizedTensor, checked_floats, placed
from ...ir.types import INTEGERS, Array, TensorType, named_array, normal_axis, plain_array
from ...passes.quantize import DYNAMIC, Choice, StaticScale, lowered, with_pairs
from ...passes.quantize_products import Product, constant_nodes, find_products, with_params
from .calibration import RANGES, Seen, checked_activations, run_watched
from .compensating_rounding import compensated
from .weights_in_bodies import InnerWeight, quantize_bodies

if TYPE_CHECKING:
    from ...runtime.executor import Executor

Batches = Iterable[Mapping[str, Any]] | Mapping[str, Any]  # one mapping is one batch
Configs = Mapping[str, QuantizationConfig | None]  # by the name of a weight; None leaves it as it is


class Model(NamedTuple):
    """A graph with its weights at hand: what is to be quantized."""

    graph: EinsumGraph
    products: tuple[Product, ...]
    weights: Mapping[int, Array]  # by product, as matrices (columns, terms)
    given: frozenset[int]  # products whose weight stays an input
    batches: tuple[dict[str, Any], ...]
    names: Mapping[int, str]  # of constants, by node


class Quantization(NamedTuple):
    """What was made of a model: the choice for each product, by node, and the graph.

    ``inner`` are the weights that bodies of loops read, and ``around`` is the model's graph, node for node, with those bodies quantized.
    """

    model: Model
    choices: Mapping[int, Choice]
    graph: EinsumGraph
    inner: tuple[InnerWeight, ...]
    around: EinsumGraph


def quantize(
    graph: EinsumGraph,
    config: QuantizationConfig | Configs | None = None,
    *,
    calibration: Batches | None = None,
    params: Mapping[str, Any] | None = None,
    budget_bytes: int | None = None,
    max_error: float | None = None,
    executor: Executor | None = None,
) -> EinsumGraph:
    """Return a graph whose products and lookups read weights of a few bits; its other inputs and outputs are those it had.

    Weights inside of loops become constants of the loop. Weights are constants, and the inputs whose arrays ``params`` gives: these become constants. ``calibration`` are batches of
    inputs, as the graph will get them, from which static activation scales and compensating rounding are found. An input that
    is a weight but not in ``params`` stays an input, and is rounded in each run by the scales that calibration finds.

    With ``budget_bytes`` or ``max_error`` each weight gets a precision of its own, as :func:`assign_precision` chooses.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", ("n", 64), "float32") @ b.input("w", (64, 8), "float32")))
    >>> W = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    >>> small = tl.quantize(graph, tl.QuantizationConfig(tl.QuantizationType.INT4), params={"w": W})
    >>> [node.op.name for node in small.nodes]
    ['input', 'literal', 'constant', 'constant', 'unpack', 'dequantize', 'einsum', 'relu']
    """
    if budget_bytes is not None or max_error is not None:
        from .precision import assign_precision

        if config is not None:
            hint = "leave out one of them: a budget chooses the configs by itself"
            raise InputError("a config and a budget are given together", hint, code="E329")
        config = assign_precision(
            graph,
            calibration=calibration,
            params=params,
            budget_bytes=budget_bytes,
            max_error=max_error,
            executor=executor,
        )
        calibration = config.batches
    return quantize_graph(graph, config, calibration=calibration, params=params, executor=executor).graph


def quantize_graph(
    graph: EinsumGraph,
    config: QuantizationConfig | Configs | None = None,
    *,
    calibration: Batches | None = None,
    params: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> Quantization:
    """Quantize a graph, and return with it what was chosen for each product."""
    with span("quantize"):
        model = model_of(graph, calibration, params, executor)
        config = QuantizationConfig() if config is None else config
        around, inner = quantize_bodies(model.graph, model.names, partial(_choose_inside, config, executor))
        if not model.products and not inner:
            _refuse(model.graph)
        configs = _configs(model, config, {weight.name for weight in inner})
        choices = choose(model, configs, executor)
        pairs = {p.node: (p, choices[p.node]) for p in model.products if p.node in choices}
        quantized = lowered(with_pairs(around, pairs, model.given))
        return Quantization(model, choices, quantized, tuple(inner), around)


def _choose_inside(
    config: QuantizationConfig | Configs, executor: Executor | None, body: EinsumGraph, products: list[Product]
) -> dict[int, tuple[Array, Choice]]:
    """Return for products in a body the matrix of each weight and what becomes of it: activations are rounded in each round, or not."""
    if isinstance(config, QuantizationConfig):
        own = {p.node: config for p in products}
    elif isinstance(config, Mapping):
        own = {p.node: c for p in products if isinstance(c := config.get(p.name), QuantizationConfig)}
    else:
        own = {}  # what it is instead is told where the others are chosen
    chosen = [p for p in products if p.node in own]
    weights = _weights(body, chosen, executor)
    found = {}
    for p in chosen:
        mode = own[p.node].activations
        rounds = mode in (ActivationMode.DYNAMIC, ActivationMode.STATIC) and not p.lookup
        weight = _rounded(weights[p.node], p, own[p.node], None)
        found[p.node] = weights[p.node], Choice(weight, DYNAMIC if rounds else None)
    return found


def model_of(
    graph: EinsumGraph, calibration: Batches | None, params: Mapping[str, Any] | None, executor: Executor | None
) -> Model:
    """Return a graph with the weights and the products that can be quantized, or raise where there is none."""
    expect_graph(graph, "quantize takes an EinsumGraph")
    batches = checked_batches(calibration)
    given_params = {} if params is None else params
    expect(given_params, Mapping, "params= are arrays of weights by name", 'write params={"w": W}')
    values = {name: named_array(f"weight {value_text(name)}", v) for name, v in given_params.items()}
    batches = tuple({k: v for k, v in batch.items() if k not in values} for batch in batches)
    first = batches[0] if batches else {}
    types = {name: TensorType.of(plain_array(v)) for name, v in first.items()}
    bound, names = with_params(graph, values, types)
    products = find_products(bound, names, constant_nodes(bound))
    weights = _weights(bound, products, executor)
    taken = {p.node for p in products}
    inputs = {i: n for n, i in bound.inputs.items() if n in first and (bound.type_of(i).shape or ("?",))}
    fixed = bytearray(len(bound.nodes))
    for i in inputs:
        shape = bound.type_of(i).shape
        fixed[i] = shape is not None and shape.is_static
    for p in find_products(bound, inputs, fixed):
        if p.node not in taken and not p.lookup:
            taken.add(p.node)
            products.append(p)
            weights[p.node] = p.weight_matrix(checked_floats(first[inputs[p.w]], p.name))
    if not products and not any(bodies(node.op) for node in bound.nodes):
        _refuse(bound)
    given = frozenset(p.node for p in products if p.w in inputs)
    return Model(bound, tuple(sorted(products)), weights, given, batches, names)


def checked_batches(calibration: Batches | None) -> tuple[dict[str, Any], ...]:
    """Return calibration data as mappings of inputs; a mapping alone is one batch."""
    if calibration is None:
        return ()
    given = [calibration] if isinstance(calibration, Mapping) else calibration
    expect(given, Iterable, "calibration= are batches of inputs", 'write calibration=[{"x": X}]')
    batches = list(given)
    for batch in batches:
        expect(batch, Mapping, "a batch of calibration data is a mapping of inputs", 'write calibration=[{"x": X}]')
    if not batches or any(
        named_array(f"input {value_text(name)}", v).size == 0 for batch in batches for name, v in batch.items()
    ):
        hint = "give some rows of data, such as the graph will run on"
        raise InputError("the calibration data are empty", hint, code="E326")
    return tuple(dict(batch) for batch in batches)


def _refuse(graph: EinsumGraph) -> None:
    fixed = constant_nodes(graph)
    for node in graph.nodes:
        if isinstance(node.op, ops.Einsum):
            for a in node.args:
                if fixed[a] and graph.type_of(a).dtype in INTEGERS:
                    message = f"the weight %{a} is of {graph.type_of(a).dtype}; only floats are quantized"
                    raise DTypeError(message, "it is small already", code="E320")
    hint = "give the arrays of its weights: tl.quantize(graph, config, params={'w': W})"
    sizes = "a size that a value shares with a weight must be a number: declare x as ('n', 64), not ('n', 'k')"
    raise InputError("the graph has no product of a value with a weight of floats", hint, sizes, code="E328")


def _weights(graph: EinsumGraph, products: Iterable[Product], executor: Executor | None) -> dict[int, Array]:
    """Return the weight of each product as a matrix."""
    from ...runtime.executor import Executor

    nodes = sorted({p.w for p in products})
    if not nodes:
        return {}
    subgraph = extract(graph.nodes, [(str(i), i) for i in nodes], graph.constants)
    arrays = dict(zip(nodes, (executor or Executor()).execute(subgraph, {}), strict=True))
    return {p.node: p.weight_matrix(checked_floats(arrays[p.w], p.name)) for p in products}


def _configs(
    model: Model, config: QuantizationConfig | Configs, inner: Collection[str]
) -> dict[int, QuantizationConfig]:
    """Return the config of each product that has one; ``inner`` are the names of weights inside of bodies."""
    names = {p.name for p in model.products} | set(inner)
    if isinstance(config, QuantizationConfig):
        return {p.node: config for p in model.products}
    expect(
        config,
        Mapping,
        "a QuantizationConfig is expected, or one for each weight",
        "write tl.QuantizationConfig(tl.QuantizationType.INT8)",
    )
    for name, own in config.items():
        if name not in names:
            raise InputError(f"there is no weight {value_text(name)} to quantize", *nearest(name, names), code="E340")
        if own is not None:
            expect(own, QuantizationConfig, f"the config of {name!r} is a QuantizationConfig")
    return {p.node: own for p in model.products if (own := config.get(p.name)) is not None}


def choose(model: Model, configs: Mapping[int, QuantizationConfig], executor: Executor | None) -> dict[int, Choice]:
    """Return the choice for each product that has a config: what its weight becomes, and the scale of its activations."""
    lookups = {p.node for p in model.products if p.lookup}  # no activations meet them
    only = ActivationMode.WEIGHT_ONLY
    modes = {n: only if n in lookups else _mode(config, bool(model.batches)) for n, config in configs.items()}
    seen = {p.node: Seen() for p in model.products if modes.get(p.node) is ActivationMode.STATIC}
    grams: dict[int, Array] = {
        p.node: np.zeros((p.terms, p.terms))
        for p in model.products
        if p.node in configs and p.node not in lookups and configs[p.node].rounding.value.compensate
    }
    if (seen or grams) and not model.batches:
        what = "static activation scales are" if seen else "compensating rounding is"
        hint = 'give batches of inputs: calibration=[{"x": X}]'
        raise InputError(f"{what} found on calibration data, and there are none", hint, code="E326")
    if seen or grams:
        _watch(model, configs, seen, grams, executor)
    choices = {}
    for p in model.products:
        if p.node in configs:
            weight = _rounded(model.weights[p.node], p, configs[p.node], grams.get(p.node))
            activation = _activation(modes[p.node], configs[p.node], seen.get(p.node), symmetric=p.node in model.given)
            choices[p.node] = Choice(weight, activation)
    return choices


def _mode(config: QuantizationConfig, calibrated: bool) -> ActivationMode:
    if config.activations is not None:
        return config.activations
    return ActivationMode.STATIC if calibrated and config.sums_whole_numbers else ActivationMode.WEIGHT_ONLY


def _watch(
    model: Model,
    configs: Mapping[int, QuantizationConfig],
    seen: Mapping[int, Seen],
    grams: Mapping[int, Array],
    executor: Executor | None,
) -> None:
    """Run the model on the calibration data, and note what each product is given."""
    readers: dict[int, list[Product]] = {}
    for p in model.products:
        if p.node in seen or p.node in grams:
            readers.setdefault(p.x, []).append(p)

    def note(products: list[Product], values: Array) -> None:
        for p in products:
            checked_activations(p.name, values)
            if p.node in seen:
                seen[p.node].add(values, configs[p.node].momentum)
            if p.node in grams:
                matrix = p.value_matrix(values).astype(np.float64)
                np.add(grams[p.node], matrix.T @ matrix, out=grams[p.node])

    backend = "numpy" if executor is None else executor.backend
    run_watched(model.graph, {i: partial(note, products) for i, products in readers.items()}, model.batches, backend)


def _rounded(matrix: Array, product: Product, config: QuantizationConfig, gram: Array | None) -> QuantizedTensor:
    granularity = config.granularity
    if granularity.word == "channel" and granularity.axis is not None:
        granularity = _own_axis(product, granularity.axis)
    axis, group = placed(granularity, matrix.shape)
    rounding, kind = config.rounding.value, config.type.value
    if gram is not None and rounding.compensate:
        return compensated(matrix, gram, kind, axis, group, symmetric=config.symmetric, search=rounding.search)
    return QuantizedTensor.of(
        matrix, config.type, granularity, symmetric=config.symmetric, search=rounding.search, name=product.name
    )


def _own_axis(product: Product, axis: int) -> QuantizationGranularity:
    """Return the granularity of a weight's matrix for one that names an axis of the weight itself."""
    place = normal_axis(axis, len(product.w_order), f"the weight {product.name!r}")
    columns = product.w_order[: len(product.columns)]
    if columns != (place,):
        hint = "write QuantizationGranularity.PER_CHANNEL(): the axes that the product keeps"
        message = f"axis {axis} of the weight {product.name!r} is not the one that its product keeps"
        raise InputError(f"{message}, which is {', '.join(map(str, columns))}", hint, code="E341")
    return QuantizationGranularity.PER_CHANNEL(0)


def _activation(
    mode: ActivationMode, config: QuantizationConfig, seen: Seen | None, *, symmetric: bool
) -> StaticScale | str | None:
    if mode is ActivationMode.WEIGHT_ONLY:
        return None
    if mode is ActivationMode.DYNAMIC or seen is None:
        return DYNAMIC
    low, high = RANGES[config.calibration](seen, config)
    scale, zero = range_scales(np.float64(low), np.float64(high), "int8", symmetric=symmetric)
    return StaticScale(float(scale), int(zero))
