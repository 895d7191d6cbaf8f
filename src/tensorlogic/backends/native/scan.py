"""A scan as one function: its body is written out as a function, and the steps are a loop around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...events import active_contexts
from ...ir import ops
from ...ir.graph import Scan
from ...ir.types import dims
from ...plan.build import Step, lay_out
from ...plan.cost import rounds
from ..base import Kernel
from .bind import compiled
from .whole import Text, constant_type, small, write

Array = Any
FIRST = 16  # steps of a scan after which it is first looked whether it has to stop
STRETCH = 0.005  # seconds: looking takes longer and longer to come round until that


class Loop(NamedTuple):
    """The source of a scan, and the constants of its body, which it takes after its operands."""

    text: Text
    constants: tuple[Any, ...]


@lru_cache(maxsize=256)
def loop_text(op: Scan) -> Loop | None:
    """Return the source of a scan whose sizes are known, or None where its body is large or cannot be one function."""
    from ...plan.row_groups import single_rows
    from .facts import NativeFacts

    inner = lay_out(op.body, groups=lambda graph: single_rows(graph, NativeFacts().runs_in_rows))
    if not small(inner):
        return None
    held = [(slot, c) for slot, c in inner.constants if isinstance(c, ops.Constant)]
    body = write(inner, [slot for _, slot, _ in inner.inputs] + [slot for slot, _ in held])
    if body is None:
        return None
    return Loop(
        _around(op, body, len(inner.inputs), len(held), len(inner.outputs)),
        tuple(op.body.constants[c.digest] for _, c in held),
    )


def _around(op: Scan, body: Text, operands: int, constants: int, outputs: int) -> Text:
    """Return the loop over some of the steps: carries go from one place to another and back, scanned operands and results a step at a time.

    The results hold the carries before the first of these steps, and after the last.
    """
    names = [f"a{n}" for n in range(operands + constants)]
    results = [f"o{n}" for n in range(outputs)]
    scanned = names[op.carries : op.carries + op.scanned]
    made, stacked = results[: op.carries], results[op.carries :]
    given = [f"p{n}" for n in range(op.carries)]
    given += [f"{x}[i * w{n}:i * w{n} + w{n}]" for n, x in enumerate(scanned)]
    given += names[op.carries + op.scanned :]
    given += [f"q{n}" for n in range(op.carries)]
    given += [f"{x}[i * u{n}:i * u{n} + u{n}]" for n, x in enumerate(stacked)]
    every = [*names, *results]
    lines = [
        f"def kernel({', '.join([*every, 'z', 'length', 'start', 'stop'])}):",
        f"    {', '.join(every)}, = {', '.join(f'{a}.reshape(-1)' for a in every)},",
        *(f"    p{n}, q{n} = {x}.copy(), np.empty_like({x})" for n, x in enumerate(made)),
        *(f"    w{n} = {x}.size // length" for n, x in enumerate(scanned)),
        *(f"    u{n} = {x}.size // length" for n, x in enumerate(stacked)),
        "    for t in range(start, stop):",
        f"        i = {'length - 1 - t' if op.reverse else 't'}",
        f"        body({', '.join([*given, 'z'])})",
        *(f"        p{n}, q{n} = q{n}, p{n}" for n in range(op.carries)),
        *(f"    {x}[:] = p{n}" for n, x in enumerate(made)),
    ]
    head, last = body.text.rsplit("def kernel(", 1)
    return Text(f"{head}@part\ndef body({last}\n\n" + "\n".join(lines), body.numbers, body.nbytes)


def _ranges(length: int, contexts: Sequence[Any], clock: Callable[[], float] = perf_counter) -> Iterator[range]:
    """Yield the steps in stretches of some milliseconds, between which the run can be stopped; all at once where nobody could.

    >>> list(_ranges(5, ()))
    [range(0, 5)]
    """
    start, count = 0, FIRST if contexts else length
    while start < length:
        stop, begin = min(length, start + count), clock()
        yield range(start, stop)
        for context in contexts if stop < length else ():
            context.check(f" at step {stop:,} of {length:,} of a scan")
        start, count = stop, count * 2 if clock() - begin < STRETCH else count


def bind_scan(step: Step) -> Kernel:
    """Return the kernel of a scan."""
    assert isinstance(step.op, Scan)
    loop = loop_text(step.op)
    assert loop is not None
    constants = [constant_type(op) for _, op in step.bodies[0].constants if isinstance(op, ops.Constant)]
    native = compiled(loop.text.text, (*step.arg_types, *constants), step.types, 3, listed=True)
    numbers = np.array(loop.text.numbers, np.int64)
    carries = step.op.carries
    length = rounds(step.op, step.arg_types) or 0
    shapes = [(dims(t), t.dtype or "float64") for t in step.types]

    def run(*operands: Array, out: Any = None) -> Any:
        given = [np.asarray(x, order="C") for x in operands]
        results = [np.empty(*s) for s in shapes]
        for n in range(carries):
            results[n][...] = given[n]
        for part in _ranges(length, active_contexts()):
            native(*given, *loop.constants, *results, numbers, length, part.start, part.stop)
        return results[0] if len(results) == 1 else tuple(results)

    return run
