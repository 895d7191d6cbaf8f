"""The conformance table on every backend: one test for each group of cases; a failure names the cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import tensorlogic as tl
from tensorlogic.backends.native import facts, semiring
from tensorlogic.backends.native.facts import NativeFacts
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.observe.compare_arrays import difference
from tensorlogic.plan import candidates
from tensorlogic.plan.fused_steps import Fused
from tensorlogic.runtime.call import call
from tensorlogic.testing import Case, cases
from tensorlogic.testing.every_plan import every_program


def _group(name: str) -> str:
    first, *rest = name.split("/")
    if first == "einsum":  # einsum/<equation>/<algebra>/<dtype>
        return f"einsum {rest[-2]}"
    return first


def _groups(*, full: bool = False) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = defaultdict(list)
    for case in cases(full=full):
        found[_group(case.name)].append(case)
    return dict(found)


GROUPS = _groups()


def _problems(backend: str, chosen: list[Case]) -> list[str]:
    adapter = tl.BackendTestAdapter(backend)
    found = [(case.name, adapter.check(case)) for case in chosen]
    return [f"{name}: {problem}" for name, problem in found if problem is not None]


@pytest.mark.parametrize("group", GROUPS)
def test_numpy(group: str) -> None:
    problems = _problems("numpy", GROUPS[group])
    assert not problems, f"{len(problems)} of {len(GROUPS[group])} cases:\n" + "\n".join(problems[:20])


@pytest.mark.parametrize("group", GROUPS)
def test_reference_through_plan_and_loop(group: str) -> None:
    chosen = GROUPS[group][::5]
    problems = _problems("reference", chosen)
    assert not problems, f"{len(problems)} of {len(chosen)} cases:\n" + "\n".join(problems[:20])


def test_the_table_is_what_the_issue_asks_for() -> None:
    names = [case.name for group in GROUPS.values() for case in group]
    equations = {n.split("/")[1] for n in names if n.startswith("einsum/")}
    assert len(names) == len(set(names))
    assert len(equations) >= 60
    assert any(len(set(e.split("->")[0].split(",")[0])) < len(e.split("->")[0].split(",")[0]) for e in equations)
    assert set(tl.Executor().capabilities().dtypes) >= {
        n.rsplit("/", 1)[1] for n in names if n.startswith("reduce/sum")
    }


@pytest.mark.full
@pytest.mark.parametrize("group", GROUPS)
def test_numpy_full_product(request: pytest.FixtureRequest, group: str) -> None:
    if "full" not in request.config.option.markexpr:
        pytest.skip("the full product runs with -m full (make conformance)")
    chosen = _groups(full=True)[group]
    problems = _problems("numpy", chosen)
    assert not problems, f"{len(problems)} of {len(chosen)} cases:\n" + "\n".join(problems[:20])


class EveryForm:
    """Runs a graph in every form that the native tier has; answers that differ from the first are an error."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def execute(self, graph: tl.EinsumGraph, inputs: Mapping[str, Any]) -> Sequence[Any]:
        executor = tl.Executor(native=True)
        assert isinstance(executor.backend, NumpyBackend)
        _, values = executor.arrays(graph, inputs)
        first: list[Any] | None = None
        for program in every_program(executor, graph, inputs):
            plan = program.plan
            self.names.update([plan.name], (step.op.kind for step in plan.steps if isinstance(step.op, Fused)))
            made = list(call(program, values))
            for (name, _, _), value, before in zip(plan.outputs, made, first or made, strict=True):
                if (problem := difference(value, before)) is not None:
                    raise AssertionError(f"{name} {plan.name}: {problem}")
            first = first or made
        return first or []


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[EveryForm]:
    """Every form takes whatever it can, however small it is."""
    monkeypatch.setattr(facts, "SMALL", 0)
    monkeypatch.setattr(semiring, "WORTH", 0)
    monkeypatch.setattr(candidates, "LEAST", 0)
    monkeypatch.setattr(candidates, "CACHED", 16)
    monkeypatch.setattr(NativeFacts, "threads", lambda _: 2)
    return EveryForm()


def _in_every_form(forms: EveryForm, chosen: Sequence[Case]) -> None:
    adapter = tl.BackendTestAdapter(forms)
    found = [(case.name, adapter.check(case)) for case in chosen]
    problems = [f"{name}: {problem}" for name, problem in found if problem is not None]
    assert not problems, f"{len(problems)} of {len(chosen)} cases:\n" + "\n".join(problems[:20])


def test_native_forms(eager: EveryForm) -> None:
    """A sample, because compiling takes time: some of each group, and all that is made of many operations."""
    every = {"layers", "scan", "fixpoint", "empty"}
    _in_every_form(
        eager,
        [
            case
            for name, group in GROUPS.items()
            for case in (group if name in every else group[:: len(group) // 3 + 1])
        ],
    )
    assert eager.names >= {"native steps", "one function", "one step after another", "ranges"}
    assert eager.names >= {"rows", "whole", "algebra", "scan"}


@pytest.mark.full
@pytest.mark.parametrize("group", GROUPS)
def test_native_forms_full_product(request: pytest.FixtureRequest, group: str, eager: EveryForm) -> None:
    if "full" not in request.config.option.markexpr:
        pytest.skip("the full product runs with -m full (make conformance)")
    _in_every_form(eager, _groups(full=True)[group])
