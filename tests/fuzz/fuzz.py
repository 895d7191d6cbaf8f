"""Random graphs on every road: each answers as the plain executor does, owns what it returns, and repeats itself.

``make fuzz SECONDS=600 SEED=1`` runs for that long, prints counts by area, and a minimal case with its seed where something is wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tensorlogic as tl
from tensorlogic.events import Hook
from tensorlogic.ir.sizes import evaluate
from tensorlogic.runtime import programs
from tensorlogic.runtime.call import call
from tensorlogic.runtime.frame import Frame
from tensorlogic.testing.every_plan import every_program
from tensorlogic.testing.random_graphs import DTYPES, GraphCase, arrays
from tensorlogic.testing.strategies import FormulaCase, RuleSet, formula_case, graph_case, rule_set

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "lang")]
import batches  # noqa: E402 - modules beside this one
import brute  # noqa: E402 - a module beside the tests of the language
import driven  # noqa: E402
import hostile  # noqa: E402
import interrupted  # noqa: E402
import program_roads  # noqa: E402
import ranks  # noqa: E402
import slopes  # noqa: E402
from checking import TAKEN, Expected, Largest, Roads, Wrong, check_owned, copies, quiet, run, same_bits  # noqa: E402


@contextmanager
def everything_pays() -> Iterator[None]:
    """Let small graphs take the roads that otherwise only large ones do: kernels, threads, ranges, arrays made beforehand."""
    from tensorlogic.backends import packed
    from tensorlogic.backends.native import facts, semiring
    from tensorlogic.backends.native.facts import NativeFacts
    from tensorlogic.plan import candidates, groups, memory, sharing
    from tensorlogic.runtime import program, tuning

    changes: list[tuple[Any, str, Any]] = [
        (facts, "SMALL", 0), (semiring, "WORTH", 0), (sharing, "TERMS", 1), (sharing, "TERMS_EXP", 1), (sharing, "TERMS_VJP", 1),
        (candidates, "LEAST", 0), (candidates, "CACHED", 256), (candidates, "CHAIN", 0), (memory, "LARGE", 0), (sharing, "MANY", 4),
        (sharing, "SHARED", 16), (groups, "PAYS", 0.0), (programs, "QUICK", 0), (NativeFacts, "threads", lambda _: 2), (packed, "ENOUGH", 0), (sharing, "PACKED_BYTES", 64),
        (sharing, "ORED_ROWS", 1), (sharing, "WIDE", 1), (sharing, "SMALL", 1), (memory, "LEAST", 0), (program, "MOST", 6), (program, "PIECE", 2), (tuning, "MANY", 1),
    ]  # fmt: skip
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    try:
        for where, name, value in changes:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


# the areas: what a case is tried on


def levels(expected: Expected) -> None:
    """The reference, and every level of optimization."""
    case = expected.case
    run("plain again", expected, lambda x: tl.Executor().execute(case.graph, x))
    reference = tl.Executor("reference")
    unseen = expected.fails_unseen
    dtypes = {t.dtype for types in case.graph.inference.types for t in types} | {
        v.dtype.name for v in case.inputs.values()
    }
    if "bfloat16" not in dtypes:  # which it does not have
        run("reference", expected, lambda x: reference.execute(case.graph, x), exact=False, may_refuse=unseen)
    for level in tl.OptimizationLevel:
        optimizing = partial(tl.Executor(optimization_level=level).execute, case.graph)
        exact = level is not tl.OptimizationLevel.AGGRESSIVE
        run(level.name, expected, optimizing, exact=exact, may_refuse=unseen)
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
    """Hooks, traces, wrappers, out= and donate=."""
    case = expected.case
    hooked = tl.Executor(context=tl.ExecutionContext([Largest()]))
    run("with a value hook", expected, lambda x: hooked.execute(case.graph, x))
    plain = tl.Executor()

    def traced(x: dict[str, Any]) -> Any:
        with tl.trace(detail="op"):
            return plain.execute(case.graph, x)

    run("traced", expected, traced)
    wrapper = tl.Executor(wrap=[lambda call: call])
    run("wrapped", expected, lambda x: wrapper.execute(case.graph, x), exact=False)

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


def texts(case: GraphCase, roads: Roads) -> None:
    """Text and JSON, in memory and in a file, read back as the same graph, which runs the same."""

    def read_back(road: str, again: tl.EinsumGraph) -> None:
        TAKEN[""] += 1
        if again != case.graph or again.digest != case.graph.digest:
            raise Wrong(f"{road}: reads back as another graph:\n{again}")
        if roads.takes(f"{road}, run", 0.2):
            run(road, Expected(case), partial(tl.Executor().execute, again))

    if roads.takes("text"):
        read_back("text", tl.EinsumGraph.from_text(case.graph.to_text(), case.graph.constants))
    if roads.takes("JSON"):
        read_back("JSON", tl.EinsumGraph.from_json(case.graph.to_json()))
    if roads.takes("file", 0.1):
        with tempfile.TemporaryDirectory() as folder:
            case.graph.save(Path(folder) / "g.json")
            read_back("file", tl.EinsumGraph.load(Path(folder) / "g.json"))


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
            if not expected.takes(f"frame {stop}"):
                continue

            def resumed(x: dict[str, Any]) -> Any:
                frame = executor.frame(case.graph, x)
                while frame.at < stop:  # noqa: B023
                    frame.advance()
                frame.save(path)
                return Frame.load(path, frame.program).run()

            run(f"frame saved before step {stop}", expected, resumed, times=1, always=True)

            def waiting(x: dict[str, Any]) -> Any:
                frame = executor.frame(case.graph, x)
                while frame.at < stop:  # noqa: B023
                    frame.advance()
                executor.execute(
                    case.graph, {k: np.zeros_like(v) for k, v in x.items()}
                ) if not expected.error else None
                return frame.run()

            run(f"frame that waited before step {stop}", expected, waiting, times=1, may_refuse=True, always=True)


def budgets(expected: Expected) -> None:
    """Parts within a budget of memory."""
    case = expected.case
    if expected.error is not None:
        return
    executor = tl.Executor()
    with quiet():
        peak = executor.plan(case.graph, copies(case.inputs)).peak_bytes
    for part, rarer in ((1.0, 1.0), (0.7, 1.0), (0.4, 0.3), (0.1, 0.2)):  # parts of parts take long to find
        budget = int(peak * part)
        if not expected.takes(f"budget of {part}", rarer):
            continue
        run(f"budget={budget} of {peak}", expected, lambda x: executor.execute(case.graph, x, budget=budget),  # noqa: B023
            exact=part == 1.0, may_refuse=part < 1.0, always=True)  # fmt: skip


def callers(expected: Expected) -> None:
    """Four callers of one executor at once; and the plan that is printed is the one that ran."""
    case = expected.case
    if expected.error is not None:
        return
    for options in ({}, {"threads": 2}):
        if not expected.takes(f"callers {options}"):
            continue
        TAKEN[""] += 1
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
    if expected.error is None and expected.takes("every plan"):
        for program in every_program(executor, case.graph, copies(case.inputs)):
            run(f"threads=2, {program.plan.name}", expected, partial(program_outputs, program), always=True)


def program_outputs(program: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program on inputs by name."""
    values = [inputs[name] for name, _, _ in program.plan.inputs]
    return dict(zip(program.names, call(program, values), strict=True))


def native(expected: Expected) -> None:
    """Machine code: every plan that competes, watched too."""
    case = expected.case
    executor = tl.Executor(native=True)
    run("native", expected, lambda x: executor.execute(case.graph, x), exact=False)
    if expected.error is None and expected.takes("every plan"):
        for program in every_program(executor, case.graph, copies(case.inputs)):
            run(f"native, {program.plan.name}", expected, partial(program_outputs, program), exact=False, always=True)

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
        if not expected.takes(f"compiled {level.name}", 1.0 if exact else 0.1):  # machine code takes long to make
            continue
        try:
            made = tl.Executor().compile_graph(case.graph, tl.CompilationConfig(optimization_level=level))
        except tl.TensorLogicError:
            if expected.error is None:
                raise
            continue
        run(f"compiled {level.name}", expected, made, exact=exact, always=True)
        other = Expected(_resized(case, expected.salt))
        if other.error is None:
            run(f"compiled {level.name}, other sizes", other, made, exact=exact, may_refuse=other.fails_unseen)
        with tempfile.TemporaryDirectory() as folder:
            made.save(Path(folder) / "c")
            loaded = tl.CompiledGraph.load(Path(folder) / "c")
            run(f"loaded {level.name}", expected, loaded, exact=exact, always=True)
            if expected.error is None:
                one, other = made(copies(case.inputs)), loaded(copies(case.inputs))
                for name in expected.outputs:
                    if not same_bits(one[name], other[name]):
                        raise Wrong(f"loaded {level.name}: {name} has other bits than before it was saved")


def _resized(case: GraphCase, salt: int) -> GraphCase:
    """Return a case with inputs of other sizes where sizes have names."""
    rng = np.random.default_rng(salt)
    sizes = {name: int(rng.integers(0, 5)) for name in sorted(case.graph.size_names)}
    inputs = {}
    for name, i in case.graph.inputs.items():
        shape = tuple(evaluate(d, sizes) for d in case.graph.type_of(i).shape)
        inputs[name] = arrays(rng, shape, case.inputs[name].dtype.name)
    return case._replace(inputs=inputs)


def jit(expected: Expected) -> None:
    """The JIT, cold and hot."""
    for exact in (True, False):
        if not expected.takes(f"JIT exact={exact}"):
            continue
        executor = tl.Executor()
        config = tl.JitConfig(hot_path_threshold=2, exact=exact)
        execute = partial(executor.execute_jit, expected.case.graph, config=config)
        for state in ("cold", "getting hot"):
            run(f"JIT exact={exact}, {state}", expected, execute, exact=exact, times=1, always=True)
        assert executor.jit is not None
        executor.jit.compiler.wait()
        if executor.get_jit_stats().failures and expected.error is None:
            raise Wrong(f"JIT exact={exact}: {executor.get_jit_stats().failures}")
        TAKEN["hot"] += 1
        TAKEN["machine code"] += executor.get_jit_stats().native_kept > 0
        run(f"JIT exact={exact}, hot", expected, execute, exact=exact, always=True)


def logic(case: FormulaCase, roads: Roads) -> None:
    """Formulas in every logic, on two backends, beside brute force; and as text."""
    context = tl.CompilerContext(domains={"D": list(case.names)})
    free, size = case.expr.free_variables(), len(case.names)
    places = {name: n for n, name in enumerate(case.names)}
    if roads.takes("text"):
        again = tl.parse_expr(str(case.expr), dict.fromkeys(free, "D"))
        if again != case.expr:
            raise Wrong(f"the text of {case.expr} reads back as another formula: {again}")
    for strategy in tl.STRATEGIES:
        if not roads.takes(strategy):
            continue
        TAKEN[""] += 1
        tables = {n: a > 0.5 for n, a in case.arrays.items()} if strategy == "hard_boolean" else case.arrays
        want = np.zeros((size,) * len(free))
        for index in itertools.product(range(size), repeat=len(free)):
            env = dict(zip(free, index, strict=True))
            want[index] = brute.evaluate(case.expr, env, tables, places, {"D": size}, strategy)
        with quiet():
            graph = tl.compile(case.expr, context, strategy=strategy)
        for options in ({}, {"backend": "reference"}, {"optimization_level": tl.OptimizationLevel.AGGRESSIVE}):
            if options and not roads.takes(f"{strategy} {options}", 0.3):
                continue
            executor, given = tl.Executor(**options), {n: tables[n] for n in graph.inputs}
            one, two = (dict(executor.execute(graph, given)) for _ in range(2))
            check_owned(f"{strategy}, {options}", two, given, one)
            got = one["result"]
            if got.shape != want.shape or not np.allclose(got, want, rtol=1e-9, atol=1e-9):
                raise Wrong(f"{strategy}, {options}: {case.expr} is\n{got!r}\nnot\n{want!r}")
            if not same_bits(got, two["result"]):
                raise Wrong(f"{strategy}, {options}: {case.expr} is\n{two['result']!r}\nin a second run, not\n{got!r}")


def rules(case: RuleSet, roads: Roads) -> None:
    """Rules applied until nothing new follows, beside sets of tuples."""
    graph, known = case.graph(), case.consequences()
    want = {name: np.zeros((case.size, case.size), bool) for name in known}
    for name, pairs in known.items():
        for pair in pairs:
            want[name][pair] = True
    for name, options, rarer in (
        ("plain", {}, 2.0),
        ("threads", {"threads": 2}, 1.0),
        ("reference", {"backend": "reference"}, 0.5),
        ("native", {"native": True}, 0.1),
        ("native bits", {"native": True}, 0.1),
        ("bits", {}, 1.0),
    ):
        if not roads.takes(name, rarer):
            continue
        TAKEN[""] += 1
        with everything_pays() if "bits" in name else nullcontext():
            executor, given, earlier = tl.Executor(**options), {n: case.facts[n] for n in graph.inputs}, []
            for _ in range(2):
                made = dict(executor.execute(graph, given))
                check_owned(name, made, given, *earlier)
                earlier.append(made)
                for head, array in want.items():
                    if not np.array_equal(made[head], array):
                        raise Wrong(f"{name}: {head} of {case.rules} is\n{made[head] * 1}\nnot\n{array * 1}")


Below = Callable[[int], int]


class Area(NamedTuple):
    """What is drawn, how it is checked, how many cases of a round it has, and what share of its roads a case takes in long runs."""

    make: Callable[[Below], Any]
    check: Callable[..., None]
    cases: int
    share: float
    on_roads: bool = True  # it is given what the plain executor says


def _interrupted(below: Below) -> tuple[GraphCase, list[float | int]]:
    """Return a case, and moments of interrupts: seconds, or the numbers of places in the code."""
    case, moments = graph_case(below, most=8), list[float | int]()
    for _ in range(1 + below(4)):
        at = 10.0 ** (below(400) / 100)
        moments.append(int(at) if below(2) else at / 1e6)
    return case, moments


SMOOTH = partial(graph_case, dtypes=("float64",), smooth=True)
WIDE = (*DTYPES, "bfloat16")
EVERY = partial(graph_case, dtypes=WIDE)
SHORT = partial(EVERY, most=8)
AREAS: dict[str, Area] = {
    "logic": Area(formula_case, logic, 80, 0.2, False),
    "rules": Area(rule_set, rules, 40, 0.25, False),
    "gradients": Area(partial(SMOOTH, sizes=(3, 2)), slopes.gradients, 1, 0.5, False),
    "derivatives": Area(SMOOTH, slopes.derivatives, 10, 0.5, False),
    "second_derivatives": Area(partial(SMOOTH, sizes=(3, 2), most=8), slopes.second_derivatives, 10, 0.5, False),
    "levels": Area(EVERY, levels, 120, 0.25),
    "watched": Area(EVERY, watched, 120, 0.25),
    "texts": Area(EVERY, texts, 500, 0.5, False),
    "frames": Area(EVERY, frames, 30, 0.25),
    "budgets": Area(EVERY, budgets, 40, 0.4),
    "threads": Area(EVERY, threads, 20, 0.5),
    "callers": Area(EVERY, callers, 5, 0.5),
    "batch": Area(graph_case, batches.batches, 20, 0.5),
    "streams": Area(graph_case, driven.streams, 30, 0.3),
    "awaited": Area(graph_case, driven.awaited, 10, 0.5),
    "ranks": Area(graph_case, ranks.ranks, 20, 0.2),
    "training": Area(driven.learning_case, driven.training, 5, 0.5, False),
    "native": Area(SHORT, native, 2, 0.5),
    "compiled": Area(SHORT, compiled, 30, 0.5),
    "jit": Area(SHORT, jit, 3, 0.5),
    "files": Area(hostile.spoilt_file, hostile.files, 1400, 1.0, False),
    "interrupts": Area(_interrupted, interrupted.interrupts, 8, 0.3),
    "forks": Area(partial(graph_case, most=8), interrupted.forks, 8, 0.3),
    "programs": Area(program_roads.program_case, program_roads.programs, 20, 0.25, False),
    "equations": Area(program_roads.equations_case, program_roads.equations, 40, 0.5, False),
}
HANGS = 300.0  # seconds after which a case is taken to hang, and the process ends with its stacks
UNDER_WAY: int | None = None  # the file that names the case under way, which outlives a process that crashes
SHRINKING = 60.0  # seconds to look for a smaller case that fails


class Choices:
    """Whole numbers below others: random ones, or those of an earlier case as far as they go and then zeros."""

    def __init__(self, rng: random.Random | None = None, given: Sequence[int] = ()) -> None:
        self.rng, self.given = rng, given
        self.made: list[int] = []

    def __call__(self, count: int) -> int:
        """Return one below so many."""
        if self.rng is not None:
            value = self.rng.randrange(count)
        else:
            n = len(self.made)
            value = min(self.given[n], count - 1) if n < len(self.given) else 0
        self.made.append(value)
        return value


def attempt(area: str, below: Choices, everything: bool, share: float) -> None:
    """Draw a case of an area and check it."""
    make, check, _, _, on_roads = AREAS[area]
    salt, case, rest = below(2**20), make(below), ()
    if area == "interrupts":
        case, *rest = case
    subject = (Expected(case, salt, share),) if on_roads else (case, Roads(salt, share))
    with everything_pays() if everything else nullcontext():
        check(*subject, *rest)


def smaller(
    choices: list[int], error: Exception, fails: Callable[[list[int]], Exception | None]
) -> tuple[list[int], Exception]:
    """Leave out choices, and lower them, as long as the case still fails."""
    end = time.monotonic() + SHRINKING

    def candidates() -> Iterator[list[int]]:
        for size in (32, 16, 8, 4, 2, 1):
            for at in range(0, len(choices), size):
                yield choices[:at] + choices[at + size :]
        for at in range(1, len(choices)):
            if choices[at]:
                yield [*choices[:at], 0, *choices[at + 1 :]]
                yield [*choices[:at], choices[at] // 2, *choices[at + 1 :]]
                yield [*choices[:at], choices[at] - 1, *choices[at + 1 :]]

    found = True
    while found and time.monotonic() < end:
        found = False
        for candidate in candidates():
            if time.monotonic() > end:
                break
            wrong = fails(candidate)
            if wrong is not None and candidate != choices:
                choices, error, found = candidate, wrong, True
                break
    return choices, error


def rounds(area: str, number: int, cases: int, counts: Counter[str], *, share: float = 1.0) -> None:
    """Try an area on so many cases; even seeds under the usual thresholds, odd ones where every road is taken."""
    everything = number % 2 == 1
    for n in range(cases):
        below = Choices(random.Random(f"{area} {number} {n}"))
        counts[area] += 1
        if UNDER_WAY is not None:
            os.pwrite(UNDER_WAY, f"case {n:8} of make fuzz SECONDS=1 SEED={number} AREAS={area:20}\n".encode(), 0)
        if n % 20 == 0:  # setting it takes longer than many a case
            faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            attempt(area, below, everything, share)
        except Exception as error:

            def fails(given: list[int]) -> Exception | None:
                faulthandler.dump_traceback_later(HANGS, exit=True)
                try:
                    attempt(area, Choices(given=given), everything, share)
                except Exception as another:
                    return another
                return None

            found, wrong = smaller(below.made, error, fails)
            again = Choices(given=found)
            again(2**20)
            raise Wrong(
                f"case {n}: {type(wrong).__name__}: {wrong}\n{AREAS[area].make(again)!r}\nchoices {found}"
            ) from wrong
    faulthandler.cancel_dump_traceback_later()


def main(arguments: Sequence[str] | None = None) -> int:
    """Go through the areas until the time is over, and say how many cases each had."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=float, default=1.0, help="times as many cases of each area in a round")
    parser.add_argument(
        "--all-roads", action="store_true", help="each case on all roads of its area, not a share of them"
    )
    parser.add_argument("--until", type=int, default=0, help="go on until there were so many cases")
    parser.add_argument("--areas", nargs="*", default=list(AREAS), choices=list(AREAS))
    options = parser.parse_args(arguments)
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # a file that asks for more is refused, not served
    global UNDER_WAY
    faulthandler.enable()
    UNDER_WAY, path = tempfile.mkstemp(prefix="tensorlogic-fuzz-")
    print(f"the case under way is named in {path}, should this process crash or hang", flush=True)
    counts: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    wrong, number, start = 0, options.seed, time.monotonic()
    told = start

    def over() -> bool:
        return time.monotonic() >= start + options.seconds and sum(counts.values()) >= options.until

    def say() -> None:
        seconds = time.monotonic() - start
        print(
            f"{sum(counts.values()):,} cases on {sum(taken.values()):,} roads in {seconds:,.0f} s, seeds {options.seed} to {number}, {wrong} wrong"
        )
        for area, n in counts.items():
            print(f"  {area:12} {n:8,} cases {taken[area]:8,} roads {spent[area]:8,.0f} s")
        if TAKEN["hot"]:
            print(f"  machine code answered on {TAKEN['machine code']:,} of {TAKEN['hot']:,} roads of the JIT")
        sys.stdout.flush()

    try:
        while not over():
            gc.freeze()  # what there is stays: looking at it again and again takes time from the cases
            for area in options.areas:
                begun, before = time.process_time(), TAKEN[""]
                try:
                    cases = max(1, round(AREAS[area].cases * options.cases))
                    rounds(area, number, cases, counts, share=1.0 if options.all_roads else AREAS[area].share)
                except Exception as error:
                    wrong += 1
                    print(f"=== {area}, seed {number}: {type(error).__name__}: {error}")
                    print(f"again: make fuzz SECONDS=1 SEED={number} AREAS={area}", flush=True)
                taken[area] += TAKEN[""] - before
                spent[area] += time.process_time() - begun
                if over():
                    break
            if time.monotonic() > told + 60 and not over():
                told = time.monotonic()
                say()
            number += 1
        number -= 1
    except KeyboardInterrupt:
        print("stopped")
    say()
    os.close(UNDER_WAY)
    Path(path).unlink()
    interrupted.stop_helper()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
