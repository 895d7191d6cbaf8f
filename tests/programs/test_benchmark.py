"""The benchmark of relations on small sizes: contenders count the same tuples, and a table comes out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def relations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, while its folder can be imported from."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("harness", "relations"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import relations as module

    yield module
    for name in ("harness", "relations"):
        sys.modules.pop(name, None)


def test_every_engine_counts_the_same(relations: Any) -> None:
    r = relations
    edge = r.random_edges(30, 60, 1)
    up = r.tree(30, 2)
    for rules, facts, duck in (
        (r.CLOSURE, {"Edge": edge}, r.with_recursive_query),
        (r.SAME_GENERATION, {"Up": up}, r.with_recursive_query),
        (r.POINTS_TO, {"Assign": edge[:20], "Dereference": edge[20:40]}, r.with_rounds),
        (r.FAMILY, r.family(200), r.with_duckdb),
        (r.TRIANGLES, {"Edge": edge}, r.with_duckdb),
    ):
        expected = r.ours(rules, facts)()
        assert sum(expected.values()) > 0
        for name, call in r.engines(rules, facts, duck).items():
            if not isinstance(call, str):
                assert r.counts_of(call) == expected, name


def test_families_are_plausible(relations: Any) -> None:
    facts = relations.family(2000)
    parent, male = facts["Parent"], set(facts["Male"][:, 0].tolist())
    children, counts = np.unique(parent[:, 1], return_counts=True)
    assert set(counts.tolist()) == {2} and len(children) > 1000  # a child has two parents, of either gender
    assert all(len({p in male for p in parent[parent[:, 1] == c, 0].tolist()}) == 2 for c in children[:100])
    assert (parent[:, 0] < parent[:, 1]).all()


def test_gustavson_is_the_product(relations: Any) -> None:
    from scipy.sparse import csr_array

    a = csr_array(np.random.default_rng(0).random((20, 20)) < 0.2)
    indptr, indices = relations.gustavson()(a.indptr, a.indices, a.indptr, a.indices, 20)
    found = csr_array((np.ones(len(indices), bool), indices, indptr), (20, 20))
    np.testing.assert_array_equal(found.toarray(), (a @ a).toarray())


def test_answers_that_differ_are_not_timed(relations: Any) -> None:
    facts = {"Edge": relations.random_edges(10, 20, 1)}
    with pytest.raises(ValueError, match="liar counts"):
        relations.compared("t", "n", relations.CLOSURE, facts, {"liar": lambda: {"Path": -1}}, rounds=1)
