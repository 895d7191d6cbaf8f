"""Adding an operation: which rows of which tables it still lacks.

An operation is a class in ``ir/ops.py`` and a row in some folders' tables. What the class says of itself
(it is a :class:`~tensorlogic.ir.ops.Same`, or ``is_pointwise``) stands in for rows; never more than eight places need one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..backends import numpy, reference
from ..ir import type_rules
from ..ir.graph import OPS
from ..ir.ops import Collective, Op, Same
from ..passes import batch_rules, grad, indices
from .cases import cases


class MissingRow(NamedTuple):
    """A place that does not know an operation yet.

    >>> print(MissingRow("ir/type_rules.py", "RULES", "the types of its results"))
    ir/type_rules.py: RULES lacks the types of its results
    """

    file: str
    table: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.table} lacks {self.what}"


def _has_case(op: type[Op]) -> bool:
    return any(type(node.op) is op for case in cases() for node in case.make()[0].nodes)


_PLACES: dict[MissingRow, Callable[[type[Op]], bool]] = {
    MissingRow("ir/ops.py", "the classes", "the class itself, by which text and files name it"): lambda op: (
        op in OPS.values()
    ),
    MissingRow("ir/type_rules.py", "RULES", "the types of its results"): lambda op: (
        op in type_rules.RULES or issubclass(op, Same)
    ),
    MissingRow("passes/grad_rules.py", "RULES", "its gradient"): lambda op: op in grad.RULES or issubclass(op, Same),
    MissingRow("passes/indices.py", "INDICES", "along which indices it can be cut (or set is_pointwise)"): lambda op: (
        op in indices.INDICES or op.is_pointwise
    ),
    MissingRow(
        "passes/batch_rules.py", "RULES", "what one more leading axis does to it (or set is_pointwise)"
    ): lambda op: op in batch_rules.RULES or op.is_pointwise,
    MissingRow("backends/reference.py", "DEFINITIONS", "what it computes, element by element"): lambda op: (
        op in reference.DEFINITIONS or issubclass(op, Same)
    ),
    MissingRow("backends/numpy.py", "MAKERS", "its NumPy kernel"): lambda op: (
        op in numpy.MAKERS or issubclass(op, (Same, Collective))
    ),
    MissingRow("testing/cases.py", "_UNARY", "a case that every backend must answer as the reference does"): _has_case,
}


def missing_rows(op: type[Op]) -> list[MissingRow]:
    """Return the rows that an operation lacks, each with the file it belongs in; for people who add one.

    >>> from tensorlogic.ir import ops
    >>> missing_rows(ops.StopGradient)
    []
    """
    return [row for row, knows in _PLACES.items() if not knows(op)]
