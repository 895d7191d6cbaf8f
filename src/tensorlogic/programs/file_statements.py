"""Statements that name files: ``X(p,t) = "text.txt"`` reads one, ``"out.csv" = Ancestor(x,y)`` writes one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnostics import SourceLocation
from ..errors import FormatError, TensorLogicError
from ..lang import syntax as s
from ..lang.data import table_of
from ..lang.data_files import NamedNumbers, read_tensor
from ..lang.written_files import write_array, write_table, written_kind
from .facts import Block

if TYPE_CHECKING:
    from .program import Program


def path_beside(file: str | None, name: str) -> Path:
    """Return the path that a statement names: relative to the program's file, where it has one."""
    path = Path(name)
    return Path(file).parent / path if file is not None and not path.is_absolute() else path


def read_statement(statement: s.Read, path: Path) -> Block | list[s.Equation] | Any:
    """Read the file of a statement: facts of a relation, equations of elements that have names, or an array."""
    head = statement.head
    try:
        if head.boolean:
            heads = [p.index.name for p in head.places if isinstance(p.index, s.Variable)]
            table = table_of(path, len(head.places) or None, heads=heads, name=head.name)
            return Block(table, SourceLocation(str(path)))
        found = read_tensor(path, len(head.places), head.name)
        return _elements(head, found, SourceLocation(str(path))) if isinstance(found, NamedNumbers) else found
    except TensorLogicError as error:
        raise error.at(statement.at) from None


def _elements(head: s.Tensor, found: NamedNumbers, at: SourceLocation) -> list[s.Equation]:
    """Return the equations of a tensor's elements that a file gives by name."""
    equations = []
    for row, value in zip(found.rows, found.values, strict=True):
        places = tuple(s.Place(s.Constant(name, quoted=isinstance(name, str))) for name in row)
        equations.append(s.Equation(s.Tensor(head.name, places, at=at), "=", s.Number(value), at=at))
    return equations


def check_path(statement: s.Write) -> None:
    """Refuse a file of a kind that cannot be written."""
    try:
        written_kind(statement.path)
    except FormatError as error:
        raise error.at(statement.at) from None


def write_statement(program: Program, statement: s.Write, path: Path) -> None:
    """Write the tensor of a statement to a file: an array, or the tuples of a query as a table."""
    kind, value = written_kind(path), statement.value
    try:
        answers = program.ask((value,))
        if kind in (".npy", ".npz", ".safetensors"):
            array = program.relation(value.name).dense() if answers.values is None else answers.array()
            write_array(path, value.name, array)
        else:
            write_table(path, answers.columns())
    except TensorLogicError as error:
        raise error.at(statement.at) from None
