"""Kits for people who build on the package: conformance of backends."""

from .backend import BackendTestAdapter, CaseResult, ConformanceReport, difference
from .cases import Case, cases

__all__ = ["BackendTestAdapter", "Case", "CaseResult", "ConformanceReport", "cases", "difference"]
