"""The conformance table on every backend: one test for each group of cases; a failure names the cases."""

from __future__ import annotations

from collections import defaultdict

import pytest

import tensorlogic as tl
from tensorlogic.testing import Case, cases


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
