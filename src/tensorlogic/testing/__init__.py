"""Kits for people who build on the package: conformance of backends and of communication between ranks, performance regressions.

Random graphs, formulas and rule sets, as strategies of hypothesis, are in ``tensorlogic.testing.strategies``.

>>> import tensorlogic as tl
>>> b = tl.GraphBuilder()
>>> loss = b.build(loss=b.sum(b.square(b.input("x", (2,), "float64"))))
>>> tl.testing.GradientChecker().check(loss, {"x": [1.0, 2.0]}).passed
True
"""

from .adding_ops import MissingRow, missing_rows
from .backend import BackendTestAdapter, CaseResult, ConformanceReport, difference
from .cases import Case, cases
from .communication import CarrierCase, carrier_cases, check_carrier
from .failpoints import Failpoint, FailpointWarning, failing_at
from .gradients import GradientCheck, GradientChecker, GradientReport
from .perf import PerfCase, PerfRegression, PerfReport

__all__ = [
    "BackendTestAdapter", "CarrierCase", "Case", "CaseResult", "ConformanceReport", "Failpoint", "FailpointWarning", "GradientCheck",
    "GradientChecker", "GradientReport", "MissingRow", "PerfCase", "PerfRegression", "PerfReport", "carrier_cases", "cases", "check_carrier",
    "difference", "failing_at", "missing_rows",
]  # fmt: skip
