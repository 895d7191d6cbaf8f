"""Random graphs through what drives the call: streams in chunks, awaited calls, and training."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tensorlogic as tl
from tensorlogic.testing.random_graphs import GraphCase
from tensorlogic.testing.strategies import graph_case

sys.path[:0] = [str(Path(__file__).parents[1] / "train")]
import by_hand  # noqa: E402 - a module beside the tests of training
from checking import TAKEN, Expected, Roads, Wrong, copies, quiet, same_bits  # noqa: E402

REFUSED = ("E530", "E531")  # what needs the whole of the streamed index


def streams(expected: Expected) -> None:
    """Every axis of every input, in chunks of one to three: the whole run, the same again, and nobody else's memory."""
    case = expected.case
    if expected.error is not None:
        return
    chunk = 1 + expected.salt % 3
    executor = tl.Executor()
    for name, value in case.inputs.items():
        for axis in range(value.ndim):
            for source in ("an array", "a generator"):
                road = f"{source} of {name} along axis {axis}, chunks of {chunk}"
                if value.shape[axis] and expected.takes(road):
                    _stream(expected, executor, road, name, axis, chunk)


def _stream(expected: Expected, executor: tl.Executor, road: str, name: str, axis: int, chunk: int) -> None:
    case = expected.case
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(chunk), prefetch=chunk % 2)
    answers: list[dict[str, Any]] = []
    for _ in range(2):
        inputs = copies(case.inputs)
        rest = {n: v for n, v in inputs.items() if n != name}
        rows = {name: inputs[name]}
        source = rows if "array" in road else _pieces(name, inputs[name], axis, expected.salt)
        try:
            with quiet():
                stream = executor.execute_stream(case.graph, source, config, inputs=rest, over={name: axis})
                results = list(stream)
        except tl.TensorLogicError as error:
            if error.diagnostic.code not in REFUSED and not expected.fails_unseen():
                raise Wrong(f"{road}: refused: {error}") from error
            return
        TAKEN[""] += 1
        kept = stream.processor.split.kept
        found = {n: np.concatenate([r.outputs[n] for r in results], a) for n, a in kept.items()}
        found |= dict(stream.outputs.items())
        expected.check(road, found, exact=False)
        for n, v in inputs.items():
            if not same_bits(v, case.inputs[n]):
                raise Wrong(f"{road}: input {n} was written over")
        pieces = [(f"{n} of chunk {r.metadata.chunk_id}", r.outputs[n]) for r in results for n in kept]
        for k, (n, v) in enumerate([*pieces, *stream.outputs.items()]):
            for other, array in [*inputs.items(), *pieces[: min(k, len(pieces))]]:
                if v.size and other != n and np.shares_memory(v, array):
                    raise Wrong(f"{road}: {n} stands in the memory of {other}")
        answers.append(found)
    for n in answers[0]:
        if not same_bits(answers[0][n], answers[1][n]):
            raise Wrong(f"{road}: equal streams give different bits in {n}")


def _pieces(name: str, value: Any, axis: int, salt: int) -> Iterator[dict[str, Any]]:
    """Give a value in pieces of any size, none included, each in the same array as the last."""
    rng, at = np.random.default_rng(salt), 0
    while at < value.shape[axis]:
        count = int(rng.integers(0, 4))
        piece = np.take(value, range(at, min(at + count, value.shape[axis])), axis)
        yield {name: piece}
        piece[...] = 1
        at += count


def awaited(expected: Expected) -> None:
    """Calls on worker threads, one of them cancelled, and through a pool: each has one outcome, the right one."""
    case = expected.case
    inputs = [copies(case.inputs) for _ in range(6)]
    for road in ("executor", "pool"):
        if not expected.takes(road):
            continue
        TAKEN[""] += 1
        try:
            with quiet():
                outcomes = asyncio.run(_await_all(case, inputs, expected.salt % 9, road))
        except Exception as error:
            raise Wrong(f"awaited, {road}: raised {type(error).__name__}: {error}") from error
        held: list[Any] = [v for given in inputs for v in given.values()]
        for n, found in enumerate(outcomes):
            if isinstance(found, asyncio.CancelledError) and n == expected.salt % 9:
                continue
            if isinstance(found, tl.TensorLogicError) and expected.error is not None:
                continue
            if isinstance(found, BaseException):
                raise Wrong(f"awaited, {road}: call {n} raised {type(found).__name__}: {found}") from found
            if expected.error is None:
                expected.check(f"awaited, {road}, call {n}", dict(found), exact=True)
            for v in found:
                if v.size and any(np.shares_memory(v, other) for other in held):
                    raise Wrong(
                        f"awaited, {road}: an output of call {n} stands in the memory of another, or of an input"
                    )
                held.append(v)


async def _await_all(case: GraphCase, inputs: list[dict[str, Any]], cancelled: int, road: str) -> list[Any]:
    config = tl.AsyncConfig(max_concurrent=2)
    if road == "pool":
        async with tl.AsyncExecutorPool([tl.Executor(), tl.Executor()], config) as pool:
            handles = [await pool.submit(case.graph, given) for given in inputs]
            return await _outcomes(handles, cancelled)
    executor = tl.Executor()
    return await _outcomes([executor.execute_async(case.graph, given, config) for given in inputs], cancelled)


async def _outcomes(handles: list[Any], cancelled: int) -> list[Any]:
    if cancelled < len(handles):
        handles[cancelled].cancel()
    return await asyncio.gather(*handles, return_exceptions=True)


class Learning(NamedTuple):
    """A graph whose floats are learned, how, and at which step a run is stopped."""

    case: GraphCase
    optimizer: str
    epochs: int
    batch_size: int
    stop: int


def learning_case(below: Callable[[int], int]) -> Learning:
    """Draw a graph of floats, an optimizer and a schedule of batches."""
    case = graph_case(below, dtypes=("float64",), most=6, smooth=True, sizes=(3, 1, 2))
    names = [f.__name__ for f in by_hand.EVERY]
    return Learning(case, names[below(len(names))], 1 + below(3), 1 + below(3), 1 + below(6))


DATA = {"share": np.array([1.0, -0.5, 0.25])}
SMOOTH = ("sgd", "momentum", "nesterov")  # others divide by the size of a slope, which may be nothing but rounding


def training(case: Learning, roads: Roads) -> None:
    """A run of training beside the same steps by hand, the same again, and stopped anywhere and resumed."""
    graph, params = _loss(case.case)
    if graph is None:
        return
    whole = _fit(case, graph, params, tl.Executor())
    if whole is None:
        return
    if roads.takes("by hand", 2.0) and case.optimizer in SMOOTH:
        TAKEN[""] += 1
        _beside_hand(case, graph, params, whole)
    if roads.takes("again"):
        TAKEN[""] += 1
        _same("again", whole, _fit(case, graph, params, tl.Executor()))
    if roads.takes("resumed"):
        TAKEN[""] += 1
        with tempfile.TemporaryDirectory() as folder:
            _same("resumed", whole, _resumed(case, graph, params, folder))
    if roads.takes("fast", 0.1) and case.optimizer in SMOOTH:
        TAKEN[""] += 1
        _beside_hand(case, graph, params, _fit(case, graph, params, tl.Executor(policy="fast")))


def _loss(case: GraphCase) -> tuple[tl.EinsumGraph | None, dict[str, Any]]:
    """Return a loss of all outputs that depends on the rows of a batch, and the parameters."""
    b = tl.GraphBuilder()
    outputs = b.inline(case.graph)
    terms = [b.mean(b.square(b.sin(x))) for x in outputs.values() if x.dtype == "float64"]
    fails = Expected(case).error is not None
    if fails or not terms or any(not v.size or v.dtype != "float64" for v in case.inputs.values()):
        return None, {}
    loss = sum(terms[1:], terms[0]) * (1.0 + b.mean(b.input("share", ("rows",), "float64")))
    graph = b.build(loss=loss)
    return graph, {n: v for n, v in case.inputs.items() if n in graph.inputs}


def _config(case: Learning, **more: Any) -> tl.TrainerConfig:
    optimizer = getattr(tl.optim, case.optimizer)(by_hand.RATE)
    return tl.TrainerConfig(optimizer=optimizer, epochs=case.epochs, batch_size=case.batch_size, shuffle=False, **more)


def _fit(case: Learning, graph: tl.EinsumGraph, params: dict[str, Any], executor: tl.Executor) -> tl.Trainer | None:
    """Train; None where there is no way from a parameter to the loss, or no number comes out."""
    given = copies(params)
    trainer = tl.Trainer(executor, _config(case))
    try:
        with quiet():
            trainer.fit(graph, given, copies(DATA))
    except tl.TensorLogicError as error:
        if error.diagnostic.code not in ("E110", "E336", "E842", "E871", "E877"):
            raise Wrong(f"training: refused: {error}") from error
        return None
    for name, value in given.items():
        if not same_bits(value, params[name]):
            raise Wrong(f"training: the parameter {name} that was given was written over")
        if any(np.shares_memory(value, learned) for learned in trainer.params.values()):
            raise Wrong(f"training: {name} is learned in the memory of what was given")
    return trainer


def _beside_hand(case: Learning, graph: tl.EinsumGraph, params: dict[str, Any], trainer: tl.Trainer | None) -> None:
    gradient = tl.grad(graph, wrt=list(params))
    slopes = partial(tl.Executor().execute, gradient)
    update, kept, step, rows = getattr(by_hand, case.optimizer), {n: {} for n in params}, 0, DATA["share"]
    values = copies(params)
    with quiet():
        for _ in range(case.epochs):
            for start in range(0, len(rows), case.batch_size):
                step += 1
                found = slopes({**values, "share": rows[start : start + case.batch_size]})
                values = {n: update(w, found[f"d_{n}"], kept[n], step) for n, w in values.items()}
    for name, want in values.items():
        got = np.asarray(trainer.params[name]) if trainer else np.nan
        if not np.allclose(got, want, rtol=1e-5, atol=1e-7 * (1 + np.abs(want).max()), equal_nan=True):
            raise Wrong(f"training with {case.optimizer}: {name} is\n{got!r}\nand by hand\n{want!r}")


def _same(road: str, one: tl.Trainer, other: tl.Trainer | None) -> None:
    if other is None or one.steps != other.steps or repr(one.history.epochs) != repr(other.history.epochs):
        raise Wrong(f"{road}: {other and other.steps} steps, not {one.steps}, or another history")
    for name, value in one.values.items():
        if not same_bits(np.asarray(value), np.asarray(other.values[name])):
            raise Wrong(f"{road}: {name} is\n{other.values[name]!r}\nnot\n{value!r}")


class _Stop(tl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch(self, trainer: tl.Trainer, figures: Any) -> None:
        if trainer.steps == self.step:
            raise KeyboardInterrupt


def _resumed(case: Learning, graph: tl.EinsumGraph, params: dict[str, Any], folder: str) -> tl.Trainer | None:
    first = tl.Trainer(tl.Executor(), _config(case, folder=folder, every=1), callbacks=[_Stop(case.stop)])
    with quiet():
        try:
            first.fit(graph, copies(params), copies(DATA))
            return first  # it has fewer steps
        except KeyboardInterrupt:
            pass
        if not list(Path(folder).glob("*.json")):
            return _fit(case, graph, params, tl.Executor())  # it stopped before anything was kept
        again = tl.Trainer.resume(folder)
        again.fit(data=copies(DATA))
    return again
