"""Gradients of random graphs: both modes beside JAX, each other and difference quotients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from checking import TAKEN, Roads, Wrong, check_owned, copies, quiet, same_bits

import tensorlogic as tl
from tensorlogic.passes.specialize import specialize
from tensorlogic.testing.random_graphs import GraphCase


class Slopes(NamedTuple):
    """A graph whose outputs are all floats, its derivatives along random cotangents of outputs and tangents of inputs, all by name."""

    graph: tl.EinsumGraph
    inputs: dict[str, Any]
    cotangents: dict[str, Any]
    tangents: dict[str, Any]
    reverse: dict[str, Any]  # of inputs
    forward: dict[str, Any]  # of outputs
    gradients: tuple[GraphCase, GraphCase]  # the graphs of both, with what they are given


def slopes(case: GraphCase, options: Mapping[str, Any]) -> Slopes | None:
    """Return both derivatives of a graph on an executor."""
    with quiet():
        try:
            outputs = tl.Executor().execute(case.graph, copies(case.inputs))
        except tl.TensorLogicError:
            return None
        if not all(v.dtype.kind == "f" for v in outputs):
            return None
        rng = np.random.default_rng(0)
        floats = [n for n, v in case.inputs.items() if v.dtype.kind == "f"]
        cotangents = {n: rng.normal(size=v.shape).astype(v.dtype) for n, v in outputs.items()}
        tangents = {n: rng.normal(size=case.inputs[n].shape) for n in floats}
        try:
            back, ahead = tl.vjp(case.graph, wrt=floats), tl.jvp(case.graph, wrt=floats)
        except tl.GraphError as error:
            if error.diagnostic.code != "E110":  # an input that only decides has no gradient
                raise Wrong(f"there is no gradient: {error}") from error
            return None
        found, cases = [], []
        for graph, given, letter in ((back, cotangents, "d"), (ahead, tangents, "t")):
            inputs = copies(case.inputs)
            for name, value in given.items():
                inputs[_unused(f"{letter}_{name}", case.inputs)] = value
            inputs = {n: inputs[n] for n in graph.inputs}
            cases.append(GraphCase(graph, inputs, frozenset()))
            executor = tl.Executor(**options)
            one, two = (dict(executor.execute(graph, inputs)) for _ in range(2))
            check_owned(f"derivatives, {options}", two, inputs, one)
            for name, value in one.items():
                if not same_bits(value, two[name]):
                    raise Wrong(f"derivatives, {options}: equal calls give different bits in {name}")
            found.append({name.removeprefix(f"{letter}_"): value for name, value in one.items()})
    return Slopes(case.graph, case.inputs, cotangents, tangents, found[0], found[1], (cases[0], cases[1]))


def _unused(name: str, names: Container[str]) -> str:
    """Return the name that an input for a cotangent or a tangent has, beside those that are there."""
    return _unused(name + "_", names) if name in names else name


ROADS_OF_SLOPES = (
    ("plain", {}, 2.0), ("AGGRESSIVE", {"optimization_level": tl.OptimizationLevel.AGGRESSIVE}, 0.2), ("threads", {"threads": 2}, 0.5),
    ("reference", {"backend": "reference"}, 0.1),
)  # fmt: skip


def _on_roads(case: GraphCase, roads: Roads) -> Iterator[tuple[str, Slopes]]:
    for road, options, rarer in ROADS_OF_SLOPES:
        if not roads.takes(road, rarer):
            continue
        if (found := slopes(case, options)) is None:
            return
        TAKEN[""] += 1
        yield road, found


def gradients(case: GraphCase, roads: Roads) -> None:
    """Reverse and forward mode beside JAX."""
    import in_jax
    import jax

    for road, found in _on_roads(case, roads):
        types = {n: tl.TensorType.of(v) for n, v in case.inputs.items()}
        concrete = specialize(case.graph, types, None)

        def jaxed(given: dict[str, Any]) -> Any:
            made = in_jax.outputs(concrete, {**case.inputs, **given})  # noqa: B023
            return dict(zip(concrete.output_names, made, strict=True))  # noqa: B023

        with quiet(), jax.enable_x64(True):
            given = {n: case.inputs[n] for n in found.tangents}
            _, pushed = jax.jvp(jaxed, (given,), (found.tangents,))
            made, pull = jax.vjp(jaxed, given)
            (pulled,) = pull({n: jax.numpy.asarray(found.cotangents[n], y.dtype) for n, y in made.items()})
        for way, want, got in (("gradient", pulled, found.reverse), ("tangent", pushed, found.forward)):
            wanted = {n: np.asarray(w) for n, w in want.items()}
            scale = max([1.0, *(float(np.abs(w[np.isfinite(w)]).max(initial=0.0)) for w in wanted.values())])
            for n, w in wanted.items():
                g = got[n]
                near = np.isclose(g, w, rtol=1e-7, atol=1e-8 * scale, equal_nan=True) | ~np.isfinite(w)
                if g.shape != w.shape or not np.all(near):
                    raise Wrong(f"{way}, {road}: {n} is\n{g!r}\nand JAX says\n{w!r}")


def derivatives(case: GraphCase, roads: Roads) -> None:
    """Reverse and forward mode beside each other, and along a line beside difference quotients."""
    for road, found in _on_roads(case, roads):
        with quiet():
            ahead = [float(np.sum(found.forward[n] * c)) for n, c in found.cotangents.items()]
            back = [float(np.sum(found.reverse[n] * t)) for n, t in found.tangents.items()]
            parts = [np.abs(found.reverse[n] * t).sum() for n, t in found.tangents.items()]
            scale = 1.0 + float(sum(parts)) + sum(map(abs, ahead))
        if not np.isfinite(scale):
            return
        if abs(sum(ahead) - sum(back)) > 1e-9 * scale and (road != "plain" or _smooth_at(found, sum(back), scale)):
            raise Wrong(f"{road}: forward says {sum(ahead)}, reverse {sum(back)}")
        if road == "plain" and (said := _beside_quotients(found, sum(back), scale)):
            raise Wrong(f"{road}: {said}")


def second_derivatives(case: GraphCase, roads: Roads) -> None:
    """A gradient is a graph again: the derivatives of both gradients, beside each other and difference quotients."""
    found = slopes(case, {})
    for gradient in found.gradients if found is not None else ():
        derivatives(gradient, roads)


def _quotients(found: Slopes, step: float) -> tuple[float, float, float, float]:
    """Return the slopes to the left and to the right along the tangents, how far rounding moves them, and how far they are apart element by element."""
    executor, size = tl.Executor(), 0.0
    at_steps: list[Any] = []
    for at in (-step, 0.0, step):
        moved = {n: v + at * found.tangents[n] if n in found.tangents else v for n, v in found.inputs.items()}
        with quiet():
            terms = [y * found.cotangents[n] for n, y in executor.execute(found.graph, moved).items()]
        at_steps.append(np.concatenate([np.ravel(t) for t in terms]))
        size = max(size, float(np.abs(at_steps[-1]).sum()))
    with quiet():
        left, right = ((at_steps[n + 1] - at_steps[n]) / step for n in range(2))
        apart = float(np.abs(left - right).sum())  # kinks of several elements may make up for each other in the sum
    return float(left.sum()), float(right.sum()), size * 2.0**-46 / step, apart


def _smooth_at(found: Slopes, slope: float, scale: float) -> bool:
    """Tell whether both sides have one slope: where a maximum has a tie, forward and reverse may take different sides."""
    _, _, noise, apart = _quotients(found, 1e-6)
    return apart <= 1e-3 * scale + 2 * noise


def _beside_quotients(found: Slopes, slope: float, scale: float) -> str:
    middles = []
    for step in (1e-4, 1e-6):
        left, right, noise, apart = _quotients(found, step)
        room = 1e-3 * scale + 2 * noise + apart  # at a kink the slope lies between, or near its sides
        if not np.isfinite(room) or min(left, right) - room <= slope <= max(left, right) + room:
            return ""
        middles.append((left + right) / 2)
    # where a gradient jumps, as that of a kink does, quotients are the slope beside the jump and its height over the step
    height = (middles[1] - middles[0]) / (1e6 - 1e4)
    if abs(middles[0] - height * 1e4 - slope) <= room:
        return ""
    return f"the slope is {slope}, and difference quotients are {left} and {right}"
