"""Random graphs on every road: each answers as the plain executor does, owns what it returns, and repeats itself.

``python -m tensorlogic.testing.fuzz --seconds 600 --seed 1`` (or ``make fuzz``) runs for that long, prints counts by area, and a minimal
case with its seed where something is wrong.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tensorlogic as tl

from ..events import Hook
from ..runtime.call import call
from ..runtime.frame import Frame
from .programs import every_program
from .strategies import GraphCase, graphs

EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
UNITS = 512  # roundings of the largest value in a run by which a road that is not exact may differ


class Wrong(AssertionError):
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
        self.unit = largest.value * max([largest.epsilon, *(EPSILON.get(np.asarray(v).dtype.name, 0.0) for v in case.inputs.values())])

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
                raise Wrong(f"{road}: {name} is far from the plain executor (one unit is {self.unit}):\n{got!r}\nnot\n{want!r}")


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


def same_bits(a: Any, b: Any) -> bool:
    """Tell whether two arrays hold the same bits; every NaN is as good as another."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)])))


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
            others = [*((k, v) for k, v in inputs.items() if k not in donated), *arrays[:n], *((f"the last {k}", v) for h, _ in held for k, v in h.items())]
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


def levels(case: GraphCase) -> None:
    """The reference, and every level of optimization."""
    expected = Expected(case)
    run("plain again", expected, lambda x: tl.Executor().execute(case.graph, x))
    reference = tl.Executor("reference")
    run("reference", expected, lambda x: reference.execute(case.graph, x), exact=False)
    for level in tl.OptimizationLevel:
        executor = tl.Executor(optimization_level=level)
        run(level.name, expected, lambda x: executor.execute(case.graph, x), exact=level is not tl.OptimizationLevel.AGGRESSIVE)  # noqa: B023
    strided = tl.Executor()
    run("inputs with strides", expected, lambda x: strided.execute(case.graph, {k: np.array(v, order="F") if v.ndim > 1 else np.repeat(v, 2)[::2] if v.ndim else v for k, v in x.items()}), exact=False)


def watched(case: GraphCase) -> None:
    """Hooks, traces, wrappers, out=, donate=, frames, and text and JSON."""
    expected = Expected(case)
    hooked = tl.Executor(context=tl.ExecutionContext([_Largest()]))
    run("with a value hook", expected, lambda x: hooked.execute(case.graph, x))
    plain = tl.Executor()

    def traced(x: dict[str, Any]) -> Any:
        with tl.trace(detail="op"):
            return plain.execute(case.graph, x)

    run("traced", expected, traced)
    wrapper = tl.Executor(wrap=[lambda call: lambda step, args: call(step, args)])
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


def frames(case: GraphCase) -> None:
    """A run that stops before every step, is saved, loaded and goes on."""
    expected = Expected(case)
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
                executor.execute(case.graph, {k: np.zeros_like(v) for k, v in x.items()}) if not expected.error else None
                return frame.run()

            run(f"frame that waited before step {stop}", expected, waiting, times=1, may_refuse=True)


def budgets(case: GraphCase) -> None:
    """Parts within a budget of memory."""
    expected = Expected(case)
    if expected.error is not None:
        return
    executor = tl.Executor()
    with quiet():
        peak = executor.plan(case.graph, copies(case.inputs)).peak_bytes
    for part in (1.0, 0.7, 0.4, 0.1):
        budget = int(peak * part)
        run(f"budget={budget} of {peak}", expected, lambda x: executor.execute(case.graph, x, budget=budget),  # noqa: B023
            exact=part == 1.0, may_refuse=part < 1.0)  # fmt: skip


def threads(case: GraphCase) -> None:
    """Chains of steps on two threads: with the bits of one, whichever plan is chosen."""
    expected = Expected(case)
    executor = tl.Executor(threads=2)
    run("threads=2", expected, lambda x: executor.execute(case.graph, x))
    if expected.error is None:
        for program in every_program(executor, case.graph, copies(case.inputs)):
            run(f"threads=2, {program.plan.name}", expected, lambda x: program_outputs(program, x))  # noqa: B023


def program_outputs(program: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program on inputs by name."""
    values = [inputs[name] for name, _, _ in program.plan.inputs]
    return dict(zip(program.names, call(program, values), strict=True))


def native(case: GraphCase) -> None:
    """Machine code: every plan that competes, watched too."""
    expected = Expected(case)
    executor = tl.Executor(native=True)
    run("native", expected, lambda x: executor.execute(case.graph, x), exact=False)
    if expected.error is None:
        for program in every_program(executor, case.graph, copies(case.inputs)):
            run(f"native, {program.plan.name}", expected, lambda x: program_outputs(program, x), exact=False)  # noqa: B023

    def traced(x: dict[str, Any]) -> Any:
        with tl.trace(detail="op"):
            return executor.execute(case.graph, x)

    run("native, traced", expected, traced, exact=False)
    run("native, donate all", expected, lambda x: executor.execute(case.graph, x, donate=list(x)), exact=False, donated=list(case.inputs))


def compiled(case: GraphCase) -> None:
    """Compiled at every level, saved and loaded."""
    expected = Expected(case)
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


def jit(case: GraphCase) -> None:
    """The JIT, cold and hot."""
    expected = Expected(case)
    for exact in (True, False):
        executor = tl.Executor()
        config = tl.JitConfig(hot_path_threshold=2, exact=exact)
        run(f"JIT exact={exact}, cold", expected, lambda x: executor.execute_jit(case.graph, x, config), exact=exact, times=1)  # noqa: B023
        run(f"JIT exact={exact}, getting hot", expected, lambda x: executor.execute_jit(case.graph, x, config), exact=exact, times=1)  # noqa: B023
        assert executor.jit is not None
        executor.jit.compiler.wait()
        if executor.get_jit_stats().failures and expected.error is None:
            raise Wrong(f"JIT exact={exact}: {executor.get_jit_stats().failures}")
        run(f"JIT exact={exact}, hot", expected, lambda x: executor.execute_jit(case.graph, x, config), exact=exact)  # noqa: B023


AREAS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "levels": (graphs(), levels),
    "watched": (graphs(), watched),
    "frames": (graphs(), frames),
    "budgets": (graphs(), budgets),
    "threads": (graphs(), threads),
    "native": (graphs(most=8), native),
    "compiled": (graphs(most=8), compiled),
    "jit": (graphs(most=8), jit),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the areas in turn until the time is over."""
    from hypothesis import HealthCheck, given, seed, settings

    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--areas", nargs="*", default=list(AREAS))
    parser.add_argument("--cases", type=int, default=20)
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    wrong = 0
    end, number = time.monotonic() + options.seconds, options.seed
    while time.monotonic() < end:
        for area in list(options.areas):
            strategy, check = AREAS[area]

            @seed(number)
            @settings(max_examples=options.cases, database=None, deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
            @given(strategy)
            def one(case: Any) -> None:
                counts[area] += 1  # noqa: B023
                check(case)  # noqa: B023

            try:
                one()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                wrong += 1
                print(f"=== {area}, seed {number}: {type(error).__name__}: {error}")
                print("\n".join(getattr(error, "__notes__", [])), flush=True)
                if type(error) is not Wrong:
                    import traceback
                    traceback.print_exc()
            if time.monotonic() >= end:
                break
        number += 1
    print(f"{sum(counts.values()):,} cases, {wrong} wrong: " + ", ".join(f"{area} {n:,}" for area, n in counts.items()), f"(seeds {options.seed} to {number})")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
