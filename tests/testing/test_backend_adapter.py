"""The conformance kit, as a third party meets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.testing import Case, ConformanceReport, cases, difference


class Altered(NumpyBackend):
    """A third party's backend: NumPy's, with the results of some operations changed."""

    name = "altered"

    def __init__(self, names: set[str], change: Callable[[Any], Any]) -> None:
        self._names, self._change = names, change

    def bind(self, step: Any, run_body: Any) -> Any:
        kernel = super().bind(step, run_body)
        if step.op.name not in self._names:
            return kernel
        return lambda *args: self._change(kernel(*args))


def _outcomes(report: ConformanceReport) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for result in report.results:
        found.setdefault(result.outcome, set()).add(result.name)
    return found


def test_the_three_lines() -> None:
    from tensorlogic import BackendTestAdapter

    report = BackendTestAdapter(NumpyBackend()).run(include=["view/*", "reduce/*", "cond/*"])
    assert report.passed, report
    assert len(report.results) > 50
    assert str(report) == f"{len(report.results)} passed"


@pytest.mark.parametrize("target", ["numpy", "reference"])
def test_by_name(target: str) -> None:
    assert tl.BackendTestAdapter(target).run(include=["view/slice/*", "gather/*"]).passed


def test_an_executor_of_ones_own_needs_only_execute() -> None:
    class Mine:
        def execute(self, graph: Any, inputs: Any) -> list[Any]:
            return list(tl.Executor().execute(graph, inputs))

    assert tl.BackendTestAdapter(Mine()).run(include=["view/*"]).passed


@pytest.mark.parametrize(
    ("names", "change", "include", "pattern"),
    [
        ({"exp"}, lambda x: x * 1.001, "elementwise/exp/*", r"element \(.*\) is .*, expected .*tolerance"),
        ({"sum"}, lambda x: x + 1, "reduce/sum/*", r"element .* is .*, expected"),
        ({"transpose"}, lambda x: x.T, "view/transpose/*", r"should be .*, but came as .*"),
        (
            {"add"},
            lambda x: x.astype("float16"),
            "elementwise/add/float64",
            r"should be float64.*, but came as float16",
        ),
        ({"einsum"}, lambda x: np.where(np.isfinite(x), x, 0), "einsum/*/min_plus/float64", r"expected -?inf"),
        ({"einsum"}, lambda x: ~x, "einsum/ij,jk->ik/boolean/*", r"is (True|False), expected (True|False)"),
        ({"maximum"}, np.nan_to_num, "elementwise/maximum/special/*", r"expected nan"),
        ({"fixpoint"}, lambda x: x[::-1], "fixpoint/closure", r"output 'path': element"),
    ],
)
def test_a_wrong_answer_is_caught(names: set[str], change: Any, include: str, pattern: str) -> None:
    report = tl.BackendTestAdapter(Altered(names, change)).run(include=[include])
    assert not report.passed
    failed = [r for r in report.results if r.outcome == "failed"]
    assert failed
    assert all("output '" in r.reason for r in failed)
    assert any(_found(pattern, r.reason) for r in failed), failed


def _found(pattern: str, text: str) -> bool:
    import re

    return re.search(pattern, text) is not None


def test_only_what_is_broken_fails() -> None:
    broken = Altered({"exp"}, lambda x: x + 1)
    report = tl.BackendTestAdapter(broken).run(include=["elementwise/exp/*", "elementwise/log/*", "view/*"])
    assert {name.split("/")[1] for name in _outcomes(report)["failed"]} == {"exp"}
    assert _outcomes(report)["passed"]


def test_an_exception_is_a_failed_case_not_the_end() -> None:
    def explode(x: Any) -> Any:
        raise LookupError("out of order")

    report = tl.BackendTestAdapter(Altered({"exp"}, explode)).run(include=["elementwise/exp/*", "elementwise/log/*"])
    failed = [r for r in report.results if r.outcome == "failed"]
    assert {r.name.split("/")[1] for r in failed} == {"exp"}
    assert all("out of order" in r.reason for r in failed)

    class Raises:
        def execute(self, graph: Any, inputs: Any) -> Any:
            raise NotImplementedError("soon")

    report = tl.BackendTestAdapter(Raises()).run(include=["view/slice/*"])
    assert {r.outcome for r in report.results} == {"failed"}
    assert all(r.reason == "NotImplementedError: soon" for r in report.results)


@pytest.mark.parametrize(
    "wrong", [None, 3, [], [1, 2, 3, 4, 5, 6, 7], [object()] * 6], ids=["None", "number", "none", "seven", "objects"]
)
def test_an_executor_that_returns_anything_at_all(wrong: Any) -> None:
    class Returns:
        def execute(self, graph: Any, inputs: Any) -> Any:
            return wrong

    report = tl.BackendTestAdapter(Returns()).run(include=["view/slice/float64"])
    assert [r.outcome for r in report.results] == ["failed"]
    assert report.results[0].reason


def test_include_and_exclude() -> None:
    adapter = tl.BackendTestAdapter("numpy")
    report = adapter.run(include=["reduce/sum/*", "reduce/prod/*"], exclude=["*/int*", "*/uint*", "*/prod/bool"])
    assert {r.name for r in report.results} == {
        "reduce/sum/float64", "reduce/sum/float32", "reduce/sum/float16", "reduce/sum/bool",
        "reduce/prod/float64", "reduce/prod/float32", "reduce/prod/float16",
    }  # fmt: skip


def test_announced_failures() -> None:
    adapter = tl.BackendTestAdapter(Altered({"sum"}, lambda x: x + 1))
    report = adapter.run(include=["reduce/sum/*", "reduce/prod/*"], xfail={"reduce/sum/*": "sums are off by one"})
    assert report.passed
    assert {r.outcome for r in report.results} == {"passed", "xfailed"}
    assert {r.reason for r in report.results if r.outcome == "xfailed"} == {"sums are off by one"}
    assert "xfailed" in str(report)
    assert "sums are off by one" in str(report)


def test_an_announced_failure_that_passes_is_a_failure() -> None:
    report = tl.BackendTestAdapter("numpy").run(include=["reduce/sum/float*"], xfail={"*/float32": "long mended"})
    assert not report.passed
    assert _outcomes(report)["xpassed"] == {"reduce/sum/float32"}
    assert "xpassed" in str(report)
    assert "long mended" in str(report)


def test_no_case_at_all_is_not_a_pass() -> None:
    try:
        report = tl.BackendTestAdapter("numpy").run(include=["einsun/*"])
    except tl.TensorLogicError as error:
        assert "einsun/*" in str(error)
        return
    assert not report.passed


def test_one_pattern_as_a_string_is_one_pattern() -> None:
    adapter = tl.BackendTestAdapter("numpy")
    try:
        report = adapter.run(include="cond/float64")
    except tl.TensorLogicError:
        return  # refused is fine; taking its letters for patterns is not
    assert [r.name for r in report.results] == ["cond/float64"]


def test_a_report_prints_as_a_table() -> None:
    report = tl.BackendTestAdapter(Altered({"sum"}, lambda x: x + 1)).run(include=["reduce/sum/float*"])
    lines = str(report).splitlines()
    assert lines[0].split() == ["case", "outcome", "reason"]
    assert all(line.startswith("reduce/sum/float") for line in lines[1:-1])
    assert lines[-1] == "3 failed"


def test_the_full_table_holds_the_sample() -> None:
    sample = [c.name for c in cases()]
    full = [c.name for c in cases(full=True)]
    assert len(set(full)) == len(full) > len(sample) > 1000
    assert set(sample) < set(full)


def test_cases_are_the_same_every_time() -> None:
    chosen = [c for n, c in enumerate(cases()) if n % 97 == 0]
    for case in chosen:
        (graph, inputs), (again, others) = case.make(), case.make()
        assert graph == again
        for name in inputs:
            np.testing.assert_array_equal(inputs[name], others[name])


def test_a_case_of_ones_own() -> None:
    def make() -> Any:
        b = tl.GraphBuilder()
        return b.build(y=b.input("x", (2,)) * 2), {"x": np.ones(2)}

    case = Case("mine/double", make)
    assert tl.BackendTestAdapter("numpy").check(case) is None
    problem = tl.BackendTestAdapter(Altered({"multiply"}, lambda x: x + 1)).check(case)
    assert problem == "output 'y': element (0,) is 3.0, expected 2.0 (tolerance 1e-10, 2 of 2 elements)"


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), True),
        (np.array([np.nan, 1.0]), np.array([1.0, 1.0]), False),
        (np.array([np.inf]), np.array([np.inf]), True),
        (np.array([np.inf]), np.array([-np.inf]), False),
        (np.array([np.inf]), np.array([1e308]), False),
        (np.array([1.0]), np.array([1.0 + 1e-13]), True),
        (np.array([1.0], "f4"), np.array([1.0 + 1e-6], "f4"), True),
        (np.array([1.0], "f4"), np.array([1.01], "f4"), False),
        (np.array([1]), np.array([2]), False),
        (np.array([True]), np.array([False]), False),
        (np.zeros((0, 2)), np.zeros((0, 2)), True),
        (np.zeros((0, 2)), np.zeros((0, 3)), False),
        (np.zeros(2, "i4"), np.zeros(2, "i8"), False),
        (np.array(1.0), np.array(1.0), True),
    ],
)
def test_difference(got: Any, want: Any, same: bool) -> None:
    assert (difference(got, want) is None) == same


def test_what_is_neither_a_backend_nor_an_executor() -> None:
    with pytest.raises(tl.BackendError, match="is not a backend"):
        tl.BackendTestAdapter(3)  # type: ignore[arg-type]


def test_dtypes_that_a_backend_says_it_lacks_are_skipped() -> None:
    class Narrow(NumpyBackend):
        name = "narrow"

        def capabilities(self) -> Any:
            able = super().capabilities()
            return able._replace(dtypes=tuple(d for d in able.dtypes if d != "float16"))

        def bind(self, step: Any, run_body: Any) -> Any:
            assert all(t.dtype != "float16" for t in (*step.types, *step.arg_types))
            return super().bind(step, run_body)

    report = tl.BackendTestAdapter(Narrow()).run(include=["reduce/*"])
    outcomes = _outcomes(report)
    assert report.passed, report
    assert outcomes.keys() == {"passed", "skipped"}
    assert all(name.endswith("float16") for name in outcomes["skipped"])
    assert {r.reason for r in report.results if r.outcome == "skipped"} == {"the backend has no float16"}
    assert str(report) == f"{len(outcomes['passed'])} passed, {len(outcomes['skipped'])} skipped"


class _Lacking:
    """NumPy's kernels without a dtype, which are not bound either: not even for a Python number."""

    name = "lacking"
    passes = NumpyBackend.passes

    def __init__(self, dtype: str, *, weak: bool = True) -> None:
        self._lacks, self._weak, self._inner = dtype, weak, NumpyBackend()
        self.asarray, self.guard, self.finish = self._inner.asarray, self._inner.guard, self._inner.finish

    def capabilities(self) -> Any:
        able = self._inner.capabilities()
        return able._replace(dtypes=tuple(d for d in able.dtypes if d != self._lacks))

    def bind(self, step: Any, run_body: Any) -> Any:
        if any(t.dtype == self._lacks and (self._weak or not t.weak) for t in (*step.types, *step.arg_types)):
            raise tl.DTypeError(f"no {self._lacks}", code="E402")
        return self._inner.bind(step, run_body)


@pytest.mark.parametrize(
    ("dtype", "skipped"),
    [
        ("int64", {"literal/float32", "pad/bool", "cond/float64", "fixpoint/replace/float64"}),
        ("float64", {"literal/float32", "layers/softmax/float32"}),
        ("float32", {"einsum/ab,bc,cd->ad/real/float16"}),  # whose plan widens it
    ],
)
def test_numbers_and_plans_of_a_dtype_that_a_backend_lacks_are_skipped(dtype: str, skipped: set[str]) -> None:
    cases = ["literal/*", "pad/*", "cond/*", "fixpoint/*", "layers/softmax/*", "einsum/ab,bc,cd->ad/real/*", "sort/*"]
    report = tl.BackendTestAdapter(_Lacking(dtype)).run(include=cases)
    assert report.passed, report
    assert skipped <= _outcomes(report)["skipped"]
    assert "sort/values/int8" in _outcomes(report)["passed"]
    assert all(dtype in r.reason for r in report.results if r.outcome == "skipped")


def test_a_python_number_runs_where_its_dtype_alone_is_lacking() -> None:
    report = tl.BackendTestAdapter(_Lacking("int64", weak=False)).run(include=["literal/float*", "pad/float*"])
    assert {r.outcome for r in report.results} == {"passed"}


def test_an_executor_of_ones_own_says_what_it_lacks_by_an_error() -> None:
    class Mine:
        def execute(self, graph: Any, inputs: Any) -> list[Any]:
            if any(x.dtype == np.float16 for x in inputs.values()):
                raise tl.DTypeError("no halves here")
            return list(tl.Executor().execute(graph, inputs))

    report = tl.BackendTestAdapter(Mine()).run(include=["view/slice/*"])
    assert report.passed, report
    skipped = [r for r in report.results if r.outcome == "skipped"]
    assert [r.name for r in skipped] == ["view/slice/float16"]
    assert "no halves here" in skipped[0].reason


def test_capabilities_of_another_kind_are_named() -> None:
    class Told:
        execute = staticmethod(tl.Executor().execute)

        def capabilities(self) -> dict[str, Any]:
            return {"dtypes": ["float32"]}

    with pytest.raises(tl.InputError, match=r"capabilities.. of an executor returns BackendCapabilities, got"):
        tl.BackendTestAdapter(Told()).run(include=["view/slice/*"])
