"""Random graphs on the native tier: every form answers as NumPy does, writes to nothing it was given, and keeps no output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.native import bind, code_cache, facts, semiring
from tensorlogic.backends.native.facts import NativeFacts
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.observe.compare_arrays import difference
from tensorlogic.plan import candidates
from tensorlogic.runtime.call import call
from tensorlogic.store import Store
from tensorlogic.testing.every_plan import every_program

DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64"]
WEIGHTS = np.array([3, 1, 3, 3, 1, 1, 8, 5]) / 25
EXACT = "negative absolute sign square relu step floor ceil isnan isfinite logical_not reciprocal".split()
SMOOTH = "exp log1p tanh erf sigmoid sin".split()
PAIRS = "add subtract multiply divide floor_divide remainder minimum maximum logical_and logical_or equal less lukasiewicz".split()
EQUATIONS = ["ij,j->i", "ij,jk->ik", "bij,bjk->bik", "ij,kj->ki", "bij,jk->bik", "i,j->ij", "ij,ij->i", "ij,ij->ji"]


class Value(NamedTuple):
    """A tensor; what is exact is the same to the last bit however it is computed, so that comparing it is safe."""

    tensor: Any
    exact: bool = True

    @property
    def floating(self) -> bool:
        return str(self.tensor.dtype).startswith("float")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.tensor.shape)


class Grown:
    """A random graph, and random values for its inputs."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = tl.GraphBuilder(intern=bool(self.rng.random() < 0.7))
        self.sizes = [int(n) for n in self.rng.choice([1, 2, 3, 5, 8, 17], 3)]
        if self.rng.random() < 0.08:
            self.sizes[0] = 0
        self.given: dict[str, tuple[tuple[int, ...], str]] = {}
        self.values: list[Value] = []
        for n in range(int(self.rng.integers(1, 4))):
            shape, dtype = self.shape(), str(self.rng.choice(DTYPES, p=WEIGHTS))
            self.given[f"x{n}"] = shape, dtype
            self.values.append(Value(self.b.input(f"x{n}", shape, dtype)))
        self.values.append(Value(self.b.constant(self.array(self.shape(), "float32"))))
        wanted, tries = int(self.rng.integers(3, 14)), 0
        while len(self.values) < wanted + len(self.given) + 1 and tries < 100:
            tries += 1
            try:
                made = self.grown()
            except tl.TensorLogicError:
                continue  # these operands do not go together
            if made is not None and np.prod(made.shape) <= 5000 and len(made.shape) < 5:
                self.values.append(made)
        chosen = [self.values[-1], *(self.any() for _ in range(int(self.rng.integers(0, 3))))]
        self.outputs = {f"y{n}": v for n, v in enumerate(chosen)}
        self.graph = self.b.build({name: v.tensor for name, v in self.outputs.items()})

    def shape(self) -> tuple[int, ...]:
        rank = int(self.rng.choice([0, 1, 2, 3], p=[0.08, 0.27, 0.45, 0.2]))
        return tuple(1 if self.rng.random() < 0.15 else n for n in self.sizes[3 - rank :])

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Few distinct values, so that ties occur, and some that are odd."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.startswith("f"):
            made = np.asarray(np.round(self.rng.uniform(-3, 3, shape) * 8) / 8)
            odd = self.rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e30], shape)
            return np.where(self.rng.random(shape) < 0.03, odd, made).astype(dtype)
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if self.rng.random() < 0.3 else (max(info.min, -9), 9)
        return np.asarray(self.rng.integers(low, high, shape, dtype=dtype, endpoint=True))

    def inputs(self) -> dict[str, Any]:
        return {name: self.array(*self.given[name]) for name in self.graph.inputs}

    def any(self) -> Value:
        return self.values[int(self.rng.integers(max(0, len(self.values) - 8), len(self.values)))]

    def grown(self) -> Value | None:
        rng, b, x, y = self.rng, self.b, self.any(), self.any()
        both = x.exact and y.exact
        match rng.choice(["one", "two", "literal", "where", "reduce", "cast", "einsum", "view"], p=[0.2, 0.28, 0.1, 0.05, 0.17, 0.05, 0.07, 0.08]):  # fmt: skip
            case "one" if x.exact and rng.random() < 0.6:
                return Value(getattr(b, rng.choice(EXACT))(x.tensor))
            case "one":
                return Value(getattr(b, rng.choice(SMOOTH))(x.tensor), False)
            case "two":
                return Value(getattr(b, rng.choice(PAIRS if both else ["add", "maximum"]))(x.tensor, y.tensor), both)
            case "literal":
                number = float(rng.choice([0.5, -1.0, 2.0, 0.1])) if x.floating else int(rng.integers(0, 5))
                return Value(getattr(b, rng.choice(["add", "multiply", "maximum"]))(number, x.tensor), x.exact)
            case "where" if both:
                return Value(b.where(b.greater(x.tensor, 0), x.tensor, y.tensor))
            case "reduce":
                kind = str(rng.choice(["sum", "max", "min", "mean", "any", "prod"] if x.exact else ["sum", "max"]))
                axes = [None, (-1,), (-1,), (0,), tuple(range(int(rng.integers(0, len(x.shape) + 1)), len(x.shape)))][int(rng.integers(5))]  # fmt: skip
                made = getattr(b, kind)(x.tensor, axis=axes, keepdims=bool(rng.random() < 0.5))
                return Value(made, x.exact and (kind in ("max", "min", "any") or not str(made.dtype).startswith("f")))
            case "cast" if not x.floating:
                return Value(b.cast(x.tensor, str(rng.choice(DTYPES, p=WEIGHTS))))
            case "einsum" if both:
                algebra = str(rng.choice(["real", "boolean", "max_min", "min_plus"]))
                made = b.einsum(str(rng.choice(EQUATIONS)), x.tensor, y.tensor, algebra=algebra)
                return Value(made, algebra != "real" or not str(made.dtype).startswith("f"))
            case "view" if len(x.shape) > 1:
                views = [
                    lambda: b.transpose(x.tensor), lambda: x.tensor[::-1], lambda: x.tensor[:, ::2],
                    lambda: b.reshape(x.tensor, (int(np.prod(x.shape)),)),
                ]  # fmt: skip
                return Value(views[int(rng.integers(4))](), x.exact)
        return None


def check(seed: int) -> set[str]:
    grown = Grown(seed)
    sets = [grown.inputs() for _ in range(3)]
    wants = [tl.Executor().execute(grown.graph, given) for given in sets]
    executor = tl.Executor(native=True)
    assert isinstance(executor.backend, NumpyBackend)
    programs = every_program(executor, grown.graph, sets[0])
    coarse = any(t.dtype == "float32" for own in grown.graph.inference.types for t in own)
    for program in programs:
        plan, held = program.plan, []
        for n, (given, want) in enumerate(zip(sets, wants, strict=True)):
            values = [np.array(given[name], order="F" if n == 1 else "C") for name, _, _ in plan.inputs]
            copies = [value.copy() for value in values]
            made = call(program, values)
            for value, copy in zip(values, copies, strict=True):
                np.testing.assert_array_equal(value, copy, f"seed {seed}, {plan.name}: an input was written")
            for (name, _, t), value in zip(plan.outputs, made, strict=True):
                # rounding that went through exp and squares, and in float32 where any of it was
                loose = (2e-3 if coarse else 1e-8) if t.dtype in ("float32", "float64") else 0.0
                problem = difference(value, want[name], 0.0 if grown.outputs[name].exact else loose)
                assert problem is None, f"seed {seed}, {plan.name}, run {n}, {name}: {problem}\n{grown.graph}"
                assert not value.size or not any(np.shares_memory(value, x) for x in values)
            held.append((made, [value.copy() for value in made]))
        for made, copies in held:
            for value, copy in zip(made, copies, strict=True):
                np.testing.assert_array_equal(value, copy, f"seed {seed}, {plan.name}: an output was written over")
    return {program.plan.name for program in programs}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every form takes whatever it can, and no machine code is kept, because nobody needs it again."""
    for module, name, value in (
        (facts, "SMALL", 0), (semiring, "WORTH", 0), (candidates, "LEAST", 0), (candidates, "CACHED", 256),
        (NativeFacts, "threads", lambda _: 2), (code_cache, "folder", lambda: None), (bind, "_kernels", Store(99)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    yield


def test_random_graphs() -> None:
    seen = set().union(*(check(seed) for seed in range(25)))
    assert seen >= {"native steps", "one function", "one step after another"}
    assert any(name.endswith("on 2 threads") for name in seen)


@pytest.mark.full
@pytest.mark.parametrize("block", range(20))
def test_many_random_graphs(request: pytest.FixtureRequest, block: int) -> None:
    if "full" not in request.config.option.markexpr:
        pytest.skip("many graphs run with -m full (make conformance)")
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        check(seed)
