"""Random graphs on every road: each answers as the plain executor does, owns what it returns, and repeats itself.

``make fuzz SECONDS=600 SEED=1`` runs for that long, prints counts by area, and a minimal case with its seed where something is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings

import tensorlogic as tl
from tensorlogic.events import Hook
from tensorlogic.passes.specialize import specialize
from tensorlogic.runtime.call import call
from tensorlogic.runtime.frame import Frame
from tensorlogic.testing.programs import every_program
from tensorlogic.testing.strategies import FormulaCase, GraphCase, RuleSet, formulas, graphs, rule_sets

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "lang")]
import brute  # noqa: E402 - a module beside the tests of the language

EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
UNITS = 512  # roundings of the largest value in a run by which a road that is not exact may differ


class Wrong(AssertionError):  # noqa: N818 - it says what it is
    """A road that broke its promise."""


class Expected:
    """What the plain executor says of a case: outputs, or an error; and how large its values become."""

    def __init__(self, case: GraphCase) -> None:
        self.case, self.error = case, None
        self.outputs: dict[str, Any] = {}
        largest = _Largest()
        with quiet():
            try:
                self.outputs = dict(tl.Executor().execute(case.graph, copies(case.inputs)))
                if not all(name in case.exact for name in self.outputs):
                    tl.Executor(context=tl.ExecutionContext([largest])).execute(case.graph, copies(case.inputs))
            except tl.TensorLogicError as error:
                self.error = error
        self.unit = largest.value * max(
            [largest.epsilon, *(EPSILON.get(np.asarray(v).dtype.name, 0.0) for v in case.inputs.values())]
        )

    def check(self, road: str, outputs: Mapping[str, Any], *, exact: bool) -> None:
        """Compare outputs with what is expected: bit by bit, or within the tolerance of a road that reorders sums."""
        for name, want in self.outputs.items():
            got = np.asarray(outputs[name])
            if got.shape != want.shape or got.dtype != want.dtype:
                raise Wrong(f"{road}: {name} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
            if exact or name in self.case.exact or want.dtype.kind != "f":
                same = same_bits(got, want) if exact else np.array_equal(got, want, equal_nan=want.dtype.kind == "f")
                if not same:
                    raise Wrong(f"{road}: {name} differs from the plain executor:\n{got!r}\nnot\n{want!r}")
                continue
            with quiet():
                near = np.abs(got.astype("f8") - want.astype("f8")) <= UNITS * self.unit
            near |= (got == want) | (np.isnan(got) & np.isnan(want))
            if not np.all(near):
                raise Wrong(
                    f"{road}: {name} is far from the plain executor (one unit is {self.unit}):\n{got!r}\nnot\n{want!r}"
                )


class _Largest(Hook):
    def __init__(self) -> None:
        self.value, self.epsilon = 1.0, 0.0

    def on_step(self, plan: Any, event: Any, values: tuple[Any, ...]) -> None:
        for v in values:
            if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.size:
                self.epsilon = max(self.epsilon, EPSILON[v.dtype.name])
                finite = np.abs(v[np.isfinite(v)])
                if finite.size:
                    self.value = max(self.value, float(finite.max()))


@contextmanager
def quiet() -> Iterator[None]:
    """Let NumPy say nothing of overflows."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def everything_pays() -> Iterator[None]:
    """Let small graphs take the roads that otherwise only large ones do: kernels, threads, ranges, arrays made beforehand."""
    from tensorlogic.backends import bitplan, packed, threads
    from tensorlogic.backends.native import semiring, vjp
    from tensorlogic.backends.native.facts import NativeFacts
    from tensorlogic.plan import buffers, candidates, fusing, memory_order
    from tensorlogic.runtime import straight, tuning

    changes: list[tuple[Any, str, Any]] = [
        (bitplan, "SMALL", 0), (semiring, "WORTH", 0), (semiring, "PARALLEL", 1), (semiring, "PARALLEL_EXP", 1), (vjp, "PARALLEL", 1),
        (candidates, "LEAST", 0), (candidates, "CACHED", 256), (candidates, "CHAIN", 0), (buffers, "LARGE", 0), (buffers, "MANY", 4),
        (buffers, "SHARED", 16), (fusing, "PAYS", 0.0), (NativeFacts, "threads", lambda _: 2), (packed, "ENOUGH", 0), (packed, "SPLIT_BYTES", 64),
        (packed, "SPLIT_ROWS", 1), (threads, "WIDE", 1), (threads, "SMALL", 1), (memory_order, "LEAST", 0), (straight, "MOST", 6), (tuning, "MANY", 1),
    ]  # fmt: skip
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    try:
        for where, name, value in changes:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


def same_bits(a: Any, b: Any) -> bool:
    """Tell whether two arrays hold the same bits; every NaN is as good as another."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(
        np.array_equal(a, b, equal_nan=True)
        and np.array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))
    )


def copies(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs in arrays of their own."""
    return {name: np.array(value) for name, value in inputs.items()}


def run(road: str, expected: Expected, function: Callable[[dict[str, Any]], Any], *, exact: bool = True, times: int = 2,
        may_refuse: bool = False, donated: Sequence[str] = ()) -> None:  # fmt: skip
    """Take a road: right, owned, repeatable, and no exception but ours."""
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(times):
        inputs = copies(expected.case.inputs)
        before = copies(inputs)
        try:
            with quiet():
                outputs = function(inputs)
        except tl.TensorLogicError as error:
            if expected.error is None and not may_refuse:
                raise Wrong(f"{road}: refused what the plain executor does: {error}") from error
            return
        except Exception as error:
            raise Wrong(f"{road}: raised {type(error).__name__}: {error}") from error
        if expected.error is not None:
            return  # an operation that fails may be gone, or fail later
        named = dict(outputs) if not isinstance(outputs, dict) else outputs
        expected.check(road, named, exact=exact)
        for name, value in inputs.items():
            if name not in donated and not same_bits(value, before[name]):
                raise Wrong(f"{road}: input {name} was written over")
        arrays = list(named.items())
        for n, (name, value) in enumerate(arrays):
            others = [
                *((k, v) for k, v in inputs.items() if k not in donated),
                *arrays[:n],
                *((f"the last {k}", v) for h, _ in held for k, v in h.items()),
            ]
            for other, array in others:
                if isinstance(value, np.ndarray) and value.size and np.shares_memory(value, array):
                    raise Wrong(f"{road}: output {name} stands in the memory of {other}")
            if not isinstance(value, np.ndarray):
                raise Wrong(f"{road}: output {name} is a {type(value).__name__}")
            if not value.flags.writeable:
                raise Wrong(f"{road}: output {name} cannot be written to")
        held.append((named, copies(named)))
    first = held[0][1] if held else {}
    for named, kept in held:
        for name, value in named.items():
            if not same_bits(value, kept[name]):
                raise Wrong(f"{road}: output {name} was written over by a later call")
            if not same_bits(value, first[name]):
                raise Wrong(f"{road}: equal calls give different bits in {name}")


# the areas: what a case is tried on


def levels(expected: Expected) -> None:
    """The reference, and every level of optimization."""
    case = expected.case
    run("plain again", expected, lambda x: tl.Executor().execute(case.graph, x))
    reference = tl.Executor("reference")
    run("reference", expected, lambda x: reference.execute(case.graph, x), exact=False)
    for level in tl.OptimizationLevel:
        optimizing = partial(tl.Executor(optimization_level=level).execute, case.graph)
        run(level.name, expected, optimizing, exact=level is not tl.OptimizationLevel.AGGRESSIVE)
    strided = tl.Executor()
    run(
        "inputs with strides",
        expected,
        lambda x: strided.execute(
            case.graph,
            {k: np.array(v, order="F") if v.ndim > 1 else np.repeat(v, 2)[::2] if v.ndim else v for k, v in x.items()},
        ),
        exact=False,
    )


def watched(expected: Expected) -> None:
    """Hooks, traces, wrappers, out=, donate=, frames, and text and JSON."""
    case = expected.case
    hooked = tl.Executor(context=tl.ExecutionContext([_Largest()]))
    run("with a value hook", expected, lambda x: hooked.execute(case.graph, x))
    plain = tl.Executor()

    def traced(x: dict[str, Any]) -> Any:
        with tl.trace(detail="op"):
            return plain.execute(case.graph, x)

    run("traced", expected, traced)
    wrapper = tl.Executor(wrap=[lambda call: call])
    run("wrapped", expected, lambda x: wrapper.execute(case.graph, x))

    def into(x: dict[str, Any]) -> Any:
        out = {name: np.empty_like(v) for name, v in expected.outputs.items()}
        made = plain.execute(case.graph, x, out=out)
        for name, array in out.items():
            if made[name] is not array:
                raise Wrong(f"out=: {name} was not written where asked")
        return made

    run("out=", expected, into)

    def into_inputs(x: dict[str, Any]) -> Any:  # outputs over inputs of the same type, which are still read
        out = {}
        free = dict(x)
        for name, want in expected.outputs.items():
            match = next((k for k, v in free.items() if v.shape == want.shape and v.dtype == want.dtype), None)
            if match is not None:
                out[name] = free.pop(match)
        return dict(plain.execute(case.graph, x, out=out))

    run("out= over inputs", expected, into_inputs, donated=list(case.inputs))
    for donate in ([n] for n in case.inputs):
        run(f"donate={donate}", expected, lambda x: plain.execute(case.graph, x, donate=donate), donated=donate)  # noqa: B023
    run("donate all", expected, lambda x: plain.execute(case.graph, x, donate=list(x)), donated=list(case.inputs))
    again = tl.EinsumGraph.from_text(case.graph.to_text())
    if again != case.graph:
        raise Wrong(f"text: reads back as another graph:\n{again}")
    again = tl.EinsumGraph.from_json(case.graph.to_json())
    if again != case.graph or again.digest != case.graph.digest:
        raise Wrong(f"JSON: reads back as another graph:\n{again}")
    run("JSON", expected, lambda x: plain.execute(again, x), times=1)


def frames(expected: Expected) -> None:
    """A run that stops before every step, is saved, loaded and goes on."""
    case = expected.case
    executor = tl.Executor()
    with quiet():
        try:
            steps = len(executor.frame(case.graph, copies(case.inputs)).program.entries)
        except tl.TensorLogicError as error:
            if expected.error is None:
                raise Wrong(f"frame: refused: {error}") from error
            return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frame.safetensors"
        for stop in range(steps + 1):

            def resumed(x: dict[str, Any]) -> Any:
                frame = executor.frame(case.graph, x)
                while frame.at < stop:  # noqa: B023
                    frame.advance()
                frame.save(path)
                return Frame.load(path, frame.program).run()

            run(f"frame saved before step {stop}", expected, resumed, times=1)

            def waiting(x: dict[str, Any]) -> Any:
                frame = executor.frame(case.graph, x)
                while frame.at < stop:  # noqa: B023
                    frame.advance()
                executor.execute(
                    case.graph, {k: np.zeros_like(v) for k, v in x.items()}
                ) if not expected.error else None
                return frame.run()

            run(f"frame that waited before step {stop}", expected, waiting, times=1, may_refuse=True)


def budgets(expected: Expected) -> None:
    """Parts within a budget of memory."""
    case = expected.case
    if expected.error is not None:
        return
    executor = tl.Executor()
    with quiet():
        peak = executor.plan(case.graph, copies(case.inputs)).peak_bytes
    for part in (1.0, 0.7, 0.4, 0.1):
        budget = int(peak * part)
        run(f"budget={budget} of {peak}", expected, lambda x: executor.execute(case.graph, x, budget=budget),  # noqa: B023
            exact=part == 1.0, may_refuse=part < 1.0)  # fmt: skip


def callers(expected: Expected) -> None:
    """Four callers of one executor at once; and the plan that is printed is the one that ran."""
    case = expected.case
    if expected.error is not None:
        return
    for options in ({}, {"threads": 2}):
        plans = _Plans()
        executor = tl.Executor(**options, context=tl.ExecutionContext([plans]) if case.exact else None)
        execute = partial(executor.execute, case.graph)
        with quiet(), ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(execute, [copies(case.inputs) for _ in range(12)]))
            shown = str(executor.plan(case.graph, copies(case.inputs)))
        for outputs in answers:
            expected.check(f"one of four callers, {options}", dict(outputs), exact=True)
        arrays = [v for outputs in answers for v in outputs if v.size]
        if len({v.__array_interface__["data"][0] for v in arrays}) < len(arrays):
            raise Wrong(f"four callers, {options}: two of them share an output")
        if plans.seen - {shown}:
            raise Wrong(f"{options}: the plan is printed as\n{shown}\nand ran as\n{plans.seen.pop()}")


class _Plans(Hook):
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def on_run(self, record: Any) -> None:
        if not record.body:
            self.seen.add(str(record.plan))


def threads(expected: Expected) -> None:
    """Chains of steps on two threads: with the bits of one, whichever plan is chosen."""
    case = expected.case
    executor = tl.Executor(threads=2)
    run("threads=2", expected, lambda x: executor.execute(case.graph, x))
    if expected.error is None:
        for program in every_program(executor, case.graph, copies(case.inputs)):
            run(f"threads=2, {program.plan.name}", expected, lambda x: program_outputs(program, x))  # noqa: B023


def program_outputs(program: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program on inputs by name."""
    values = [inputs[name] for name, _, _ in program.plan.inputs]
    return dict(zip(program.names, call(program, values), strict=True))


def native(expected: Expected) -> None:
    """Machine code: every plan that competes, watched too."""
    case = expected.case
    executor = tl.Executor(native=True)
    run("native", expected, lambda x: executor.execute(case.graph, x), exact=False)
    if expected.error is None:
        for program in every_program(executor, case.graph, copies(case.inputs)):
            run(f"native, {program.plan.name}", expected, lambda x: program_outputs(program, x), exact=False)  # noqa: B023

    def traced(x: dict[str, Any]) -> Any:
        with tl.trace(detail="op"):
            return executor.execute(case.graph, x)

    run("native, traced", expected, traced, exact=False)
    run(
        "native, donate all",
        expected,
        lambda x: executor.execute(case.graph, x, donate=list(x)),
        exact=False,
        donated=list(case.inputs),
    )


def compiled(expected: Expected) -> None:
    """Compiled at every level, saved and loaded."""
    case = expected.case
    for level in (tl.OptimizationLevel.STANDARD, tl.OptimizationLevel.AGGRESSIVE):
        exact = level is not tl.OptimizationLevel.AGGRESSIVE
        try:
            made = tl.Executor().compile_graph(case.graph, tl.CompilationConfig(optimization_level=level))
        except tl.TensorLogicError:
            if expected.error is None:
                raise
            continue
        run(f"compiled {level.name}", expected, made, exact=exact)
        with tempfile.TemporaryDirectory() as folder:
            made.save(Path(folder) / "c")
            loaded = tl.CompiledGraph.load(Path(folder) / "c")
            run(f"loaded {level.name}", expected, loaded, exact=exact)
            if expected.error is None:
                one, other = made(copies(case.inputs)), loaded(copies(case.inputs))
                for name in expected.outputs:
                    if not same_bits(one[name], other[name]):
                        raise Wrong(f"loaded {level.name}: {name} has other bits than before it was saved")


def jit(expected: Expected) -> None:
    """The JIT, cold and hot."""
    for exact in (True, False):
        executor = tl.Executor()
        config = tl.JitConfig(hot_path_threshold=2, exact=exact)
        execute = partial(executor.execute_jit, expected.case.graph, config=config)
        for state in ("cold", "getting hot"):
            run(f"JIT exact={exact}, {state}", expected, execute, exact=exact, times=1)
        assert executor.jit is not None
        executor.jit.compiler.wait()
        if executor.get_jit_stats().failures and expected.error is None:
            raise Wrong(f"JIT exact={exact}: {executor.get_jit_stats().failures}")
        run(f"JIT exact={exact}, hot", expected, execute, exact=exact)


def logic(case: FormulaCase) -> None:
    """Formulas in every logic, on two backends, beside brute force."""
    context = tl.CompilerContext(domains={"D": list(case.names)})
    free, size = case.expr.free_variables(), len(case.names)
    places = {name: n for n, name in enumerate(case.names)}
    for strategy in tl.STRATEGIES:
        tables = {n: a > 0.5 for n, a in case.arrays.items()} if strategy == "hard_boolean" else case.arrays
        want = np.zeros((size,) * len(free))
        for index in itertools.product(range(size), repeat=len(free)):
            env = dict(zip(free, index, strict=True))
            want[index] = brute.evaluate(case.expr, env, tables, places, {"D": size}, strategy)
        with quiet():
            graph = tl.compile(case.expr, context, strategy=strategy)
        for options in ({}, {"backend": "reference"}, {"optimization_level": tl.OptimizationLevel.AGGRESSIVE}):
            got = tl.Executor(**options).execute(graph, {n: tables[n] for n in graph.inputs})["result"]
            if got.shape != want.shape or not np.allclose(got, want, rtol=1e-9, atol=1e-9):
                raise Wrong(f"{strategy}, {options}: {case.expr} is\n{got!r}\nnot\n{want!r}")


def rules(case: RuleSet) -> None:
    """Rules applied until nothing new follows, beside sets of tuples."""
    graph, known = case.graph(), case.consequences()
    want = {name: np.zeros((case.size, case.size), bool) for name in known}
    for name, pairs in known.items():
        for pair in pairs:
            want[name][pair] = True
    for name, executor in {
        "plain": tl.Executor(),
        "reference": tl.Executor("reference"),
        "native": tl.Executor(native=True),
    }.items():
        for bits in (False, True):
            if bits and name != "native":
                continue
            with everything_pays() if bits else nullcontext():
                made = (tl.Executor(native=True) if bits else executor).execute(
                    graph, {n: case.facts[n] for n in graph.inputs}
                )
            for head, array in want.items():
                if not np.array_equal(made[head], array):
                    raise Wrong(f"{name}: {head} of {case.rules} is\n{made[head] * 1}\nnot\n{array * 1}")


def gradients(case: GraphCase) -> None:
    """Reverse and forward mode beside JAX, on the plain executor and native."""
    import in_jax
    import jax

    expected = Expected(case)
    if expected.error is not None or not all(v.dtype.kind == "f" for v in expected.outputs.values()):
        return
    floats = [n for n, v in case.inputs.items() if v.dtype.kind == "f"]
    types = {n: tl.TensorType.of(v) for n, v in case.inputs.items()}
    concrete = specialize(case.graph, types, None)
    rng = np.random.default_rng(0)
    cotangents = {f"d_{n}": rng.normal(size=v.shape).astype(v.dtype) for n, v in expected.outputs.items()}
    with quiet():
        back = tl.vjp(case.graph, wrt=floats)

        def jaxed(given: dict[str, Any]) -> Any:
            made = in_jax.outputs(concrete, {**case.inputs, **given})
            return sum(
                (jax.numpy.sum(y * cotangents[f"d_{n}"]) for n, y in zip(concrete.output_names, made, strict=True)), 0.0
            )

        with jax.enable_x64(True):
            want = jax.grad(jaxed)({n: case.inputs[n] for n in floats})
    scale = max([1.0, *(float(np.abs(w[np.isfinite(w)]).max(initial=0.0)) for w in map(np.asarray, want.values()))])
    for road, executor in {
        "plain": tl.Executor(),
        "AGGRESSIVE": tl.Executor(optimization_level=tl.OptimizationLevel.AGGRESSIVE),
    }.items():
        with quiet():
            got = executor.execute(back, {**case.inputs, **{n: c for n, c in cotangents.items() if n in back.inputs}})
        for n in floats:
            w, g = np.asarray(want[n]), got[f"d_{n}"]
            near = np.isclose(g, w, rtol=1e-7, atol=1e-8 * scale, equal_nan=True) | ~np.isfinite(w)
            if g.shape != w.shape or not np.all(near):
                raise Wrong(f"gradient, {road}: for {n} it is\n{g!r}\nand JAX says\n{w!r}")


AREAS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "logic": (formulas(), logic),
    "rules": (rule_sets(), rules),
    "gradients": (graphs(dtypes=("float64",), smooth=True), gradients),
    "levels": (graphs(), levels),
    "watched": (graphs(), watched),
    "frames": (graphs(), frames),
    "budgets": (graphs(), budgets),
    "threads": (graphs(), threads),
    "callers": (graphs(), callers),
    "native": (graphs(most=8), native),
    "compiled": (graphs(most=8), compiled),
    "jit": (graphs(most=8), jit),
}


ON_ROADS = (levels, watched, frames, budgets, threads, callers, native, compiled, jit)


def rounds(area: str, number: int, cases: int, counts: Counter[str]) -> None:
    """Try an area on so many cases; even seeds under the usual thresholds, odd ones where every road is taken."""
    strategy, check = AREAS[area]

    @seed(number)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def one(case: Any) -> None:
        counts[area] += 1
        subject = Expected(case) if check in ON_ROADS else case
        with everything_pays() if number % 2 else nullcontext():
            check(subject)

    one()


def main(arguments: Sequence[str] | None = None) -> int:
    """Go through the areas until the time is over, and say how many cases each had."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10, help="of one area before the next")
    parser.add_argument("--areas", nargs="*", default=list(AREAS), choices=list(AREAS))
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    wrong, number, end = 0, options.seed, time.monotonic() + options.seconds
    while time.monotonic() < end:
        for area in options.areas:
            try:
                rounds(area, number, options.cases, counts)
            except Exception as error:
                wrong += 1
                print(f"=== {area}, seed {number}: {type(error).__name__}: {error}")
                print("\n".join(getattr(error, "__notes__", [])))
                print(f"again: make fuzz SECONDS=1 SEED={number} AREAS={area}", flush=True)
            if time.monotonic() >= end:
                break
        number += 1
    by_area = ", ".join(f"{area} {n:,}" for area, n in counts.items())
    print(f"{sum(counts.values()):,} cases, seeds {options.seed} to {number - 1}, {wrong} wrong: {by_area}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
