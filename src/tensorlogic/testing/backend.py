"""The conformance kit: run the table of cases against a backend or an executor of your own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from ..backends.base import Backend, BackendCapabilities
from ..backends.reference import evaluate
from ..errors import DTypeError, InputError, TensorLogicError, expect
from ..ir import ops
from ..ir.graph import EinsumGraph, bodies
from ..ir.type_rules import infer_graph
from ..ir.types import TensorType, scalar_dtype
from ..observe.compare_arrays import difference as difference
from ..runtime.executor import Executor
from ..runtime.protocols import TlExecutor
from ..tables import table
from .cases import Case, cases


class CaseResult(NamedTuple):
    """How one case went: passed, failed, xfailed (failed as announced), xpassed (announced, but passed) or skipped.

    Skipped are the cases of dtypes that the backend says it does not have; the reason names them.
    """

    name: str
    outcome: str
    reason: str = ""


class ConformanceReport(NamedTuple):
    """The results of all cases; it prints as a table of those that did not pass.

    >>> ConformanceReport((CaseResult("a", "passed"),)).passed
    True
    """

    results: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed and nothing that was announced to fail passed."""
        return all(r.outcome in ("passed", "xfailed", "skipped") for r in self.results)

    def __str__(self) -> str:
        shown = [r for r in self.results if r.outcome not in ("passed", "skipped")]
        rows = [[r.name, r.outcome, r.reason.split("\n", 1)[0][:90]] for r in shown]
        counts = Counter(r.outcome for r in self.results)
        outcomes = ("passed", "failed", "xfailed", "xpassed", "skipped")
        summary = ", ".join(f"{counts[o]} {o}" for o in outcomes if counts[o])
        return (table(["case", "outcome", "reason"], rows) + "\n" if rows else "") + summary


class BackendTestAdapter:
    """Checks an executor, or a backend, against the reference on every case of the table.

    Patterns are shell-style: ``include=["einsum/*"]``; ``xfail`` gives a reason for each pattern, and a case that passes
    although it was expected to fail counts as a failure.

    >>> report = BackendTestAdapter("numpy").run(include=["view/*"])
    >>> report.passed
    True
    """

    def __init__(self, target: str | Backend | TlExecutor) -> None:
        self.executor: TlExecutor = target if isinstance(target, TlExecutor) else Executor(target)

    def run(
        self,
        *,
        include: Sequence[str] = ("*",),
        exclude: Sequence[str] = (),
        xfail: Mapping[str, str] | None = None,
        full: bool = False,
    ) -> ConformanceReport:
        """Run the cases and return how they went."""
        include, exclude = ((p,) if isinstance(p, str) else p for p in (include, exclude))
        results = []
        for case in cases(full=full):
            if not _matches(case.name, include) or _matches(case.name, exclude):
                continue
            if lacking := self._lacking_dtypes(case):
                results.append(CaseResult(case.name, "skipped", f"the backend has no {', '.join(lacking)}"))
                continue
            problem, error = self._compare(case)
            if error is not None and (lack := self._said_to_lack(case, error)):
                results.append(CaseResult(case.name, "skipped", lack))
                continue
            why = next((reason for pattern, reason in (xfail or {}).items() if fnmatchcase(case.name, pattern)), None)
            outcome = ("" if why is None else "x") + ("passed" if problem is None else "failed")
            results.append(CaseResult(case.name, outcome, why or problem or ""))
        if not results:
            message = f"no case matches include={list(include)} and exclude={list(exclude)}"
            raise InputError(message, "names look like 'einsum/ij,jk->ik/real/float64'", code="E362")
        return ConformanceReport(tuple(results))

    def _lacking_dtypes(self, case: Case) -> list[str]:
        """Return the dtypes of a case that the backend says it does not have."""
        if (dtypes := self._dtypes()) is None:
            return []
        graph, inputs = case.make()
        inferred = infer_graph(graph, {name: TensorType.of(np.asarray(x)) for name, x in inputs.items()})
        needed = {t.dtype for results in inferred.types for t in results if t.dtype and not t.weak}
        return sorted(needed - dtypes)

    def _dtypes(self) -> set[str] | None:
        """Return the dtypes that the backend says it has; None where nobody can ask it."""
        capabilities = getattr(self.executor, "capabilities", None)
        if capabilities is None:
            return None
        told, hint = capabilities(), 'return BackendCapabilities("mine", (Device.CPU(0),), ("float32",), ("einsum",))'
        expect(told, BackendCapabilities, "capabilities() of an executor returns BackendCapabilities", hint)
        return set(told.dtypes)

    def _said_to_lack(self, case: Case, error: Exception) -> str:
        """Return the dtype whose lack made a case raise, with what is said of it; nothing where that is not the reason.

        A case runs although the backend lacks what Python's numbers are when they stand alone, for beside an array most take
        its dtype; a plan may widen to a dtype that no operation of the graph has.
        """
        if (dtypes := self._dtypes()) is None:  # nobody can ask, so that it says so by this error
            return error.diagnostic.message if isinstance(error, DTypeError) else ""
        if isinstance(error, TensorLogicError) and error.diagnostic.code == "E402":
            return error.diagnostic.message
        if not isinstance(error, DTypeError):
            return ""
        lacking = sorted(_dtypes_of_numbers(case.make()[0]) - dtypes)
        return f"the backend has no {', '.join(lacking)} for Python's numbers: {error}" if lacking else ""

    def check(self, case: Case) -> str | None:
        """Run one case; return None, or what is wrong."""
        return self._compare(case)[0]

    def _compare(self, case: Case) -> tuple[str | None, Exception | None]:
        """Run one case; return None, or what is wrong, and the exception where one was raised."""
        graph, inputs = case.make()
        with np.errstate(all="ignore"):  # NumPy warns of casts
            expected = evaluate(graph, inputs)
        try:
            actual = self.executor.execute(graph, inputs)
        except Exception as error:  # whatever a third party's backend raises is a failed case, not the end of the run
            return f"{type(error).__name__}: {error}", error
        try:
            actual = list(actual)
        except TypeError:
            return f"execute returned {type(actual).__name__}, expected a sequence of outputs", None
        if len(actual) != len(expected):
            return f"{len(actual)} outputs, expected {len(expected)}", None
        pairs = zip(expected.items(), actual, strict=True)
        found = ((name, difference(np.asarray(got), want)) for (name, want), got in pairs)
        return next((f"output {name!r}: {problem}" for name, problem in found if problem is not None), None), None


def _dtypes_of_numbers(graph: EinsumGraph) -> set[str]:
    """Return the dtypes that the Python numbers of a graph have where they stand alone."""
    own = {scalar_dtype(node.op.value) for node in graph.nodes if isinstance(node.op, ops.Literal)}
    return own.union(*(_dtypes_of_numbers(body) for node in graph.nodes for body in bodies(node.op)))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)
