"""Programs that mean harm: run as a script, each prints what became of it, how long it took and how much memory it had."""

from __future__ import annotations

import itertools
import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from engines import compute

import tensorlogic as tl

SECONDS, BYTES = 600, 12 << 30  # what a program may take before it is stopped: a bound of ours has to come first


class Hostile(NamedTuple):
    """A program made when it is its turn; ``may_run`` where an answer in good time is as welcome as a refusal."""

    call: Callable[[], object]
    may_run: bool = False


def run(text: str) -> Callable[[], object]:
    return lambda: compute(tl.Program(text))


def facts(name: str, count: int, places: int = 1) -> tuple[str, Any]:
    return name, np.stack([np.arange(count)] * places, axis=1)


def with_facts(rules: str, *tables: tuple[str, Any]) -> Callable[[], object]:
    def call() -> object:
        program = tl.Program(rules)
        for name, rows in tables:
            program.add(name, rows)
        return compute(program)

    return call


def _chain(count: int) -> str:
    return "R0(A)\n" + "".join(f"R{k + 1}(x) <- R{k}(x)\n" for k in range(count))


VARIABLES = [f"v{k}" for k in range(60)]
CASES: dict[str, Hostile] = {
    "nested parentheses": Hostile(lambda: compute(tl.Program("Y = " + "(" * 100_000 + "1" + ")" * 100_000))),
    "nested lists": Hostile(lambda: compute(tl.Program("Y = " + "[" * 100_000 + "1" + "]" * 100_000))),
    "nested calls": Hostile(lambda: compute(tl.Program("Y = " + "exp(" * 50_000 + "0" + ")" * 50_000))),
    "nested signs": Hostile(lambda: compute(tl.Program("Y = " + "-" * 90_000 + "1")), True),
    "nested powers": Hostile(lambda: compute(tl.Program("Y = " + "1^" * 50_000 + "1"))),
    "brackets that never close": Hostile(lambda: compute(tl.Program("Y = " + "([{" * 100_000))),
    "a sum of 20,000 terms": Hostile(lambda: compute(tl.Program("A = 1\nY = " + " + ".join(["A"] * 20_000))), True),
    "a product of 5,000 factors": Hostile(lambda: compute(tl.Program("A = 1\nY = " + " ".join(["A"] * 5_000))), True),
    "a body of 5,000 atoms": Hostile(lambda: compute(tl.Program("P(A)\nR(x) <- " + ", ".join(["P(x)"] * 5_000))), True),
    "a body of 60 variables": Hostile(
        lambda: compute(tl.Program("P(A, B); P(B, A)\nR(v0) <- " + ", ".join(f"P({a}, {b})" for a, b in itertools.pairwise(VARIABLES)))), True),
    "a thousand places": Hostile(lambda: compute(tl.Program(f"P({', '.join(['A'] * 1000)})")), True),
    "a tensor of 40 places": Hostile(lambda: compute(tl.Program("X = [1, 2]\nY[" + ",".join(VARIABLES[:40]) + "] = " + " ".join(f"X[{v}]" for v in VARIABLES[:40])))),
    "a relation of 30 places, all pairs": Hostile(
        with_facts("R(" + ",".join(VARIABLES[:30]) + ") <- " + ", ".join(f"P({v})" for v in VARIABLES[:30]), facts("P", 10))),
    "six places of a thousand": Hostile(
        with_facts("R(a,b,c,d,e,f) <- P(a), P(b), P(c), P(d), P(e), P(f)", facts("P", 1000))),
    "all pairs of 500,000": Hostile(with_facts("R(x,y) <- P(x), P(y)", facts("P", 500_000))),
    "what is not a pair of 500,000": Hostile(
        with_facts("R(x,y) <- P(x), P(y), not E(x,y)", facts("P", 500_000), facts("E", 500_000, 2))),
    "all greater pairs of 500,000": Hostile(with_facts("R(x,y) <- P(x), P(y), x < y", facts("P", 500_000))),
    "a closure of 400,000 in a ring": Hostile(
        with_facts("Path(x,y) <- Edge(x,y)\nPath(x,z) <- Path(x,y), Path(y,z)",
                   ("Edge", np.stack([np.arange(400_000), (np.arange(400_000) + 1) % 400_000], axis=1)))),
    "a tower of powers": Hostile(run("Y = 9^9^9^9^9"), True),
    "a number of 100,000 digits": Hostile(lambda: compute(tl.Program("Y = " + "9" * 100_000)), True),
    "a fact of 100,000 digits": Hostile(lambda: compute(tl.Program("P(" + "9" * 100_000 + ")")), True),
    "a number beyond 64 bits in a fact": Hostile(run(f"P({2**80})\nR(x) <- P(x)"), True),
    "an exponent beyond floats": Hostile(run("Y = 1e999999"), True),
    "an index of a thousand million": Hostile(run("Y[1000000000] = 1")),
    "an index of ten to the eighteen": Hostile(run("Y[1000000000000000000] = 1")),
    "three indices of a million": Hostile(run("Y[1000000, 1000000, 1000000] = 1")),
    "a slice of ten to the twelve": Hostile(run("X = [1, 2]\nY = X[0:1000000000000]")),
    "an index times ten to the twelve": Hostile(run("X = [1, 2]\nY[1000000000000*i] = X[i]")),
    "a fact of a thousand million": Hostile(run("P(1000000000)\nQ(999999999)\nR(x) <- P(x), not Q(x)"), True),
    "a pair of a thousand million": Hostile(run("P(1000000000, 1999999999)\nR(x, y) <- P(x, y), x < y"), True),
    "a rule that counts up": Hostile(run("N(0)\nN(y) <- N(x), y = x + 1")),
    "a head that counts up": Hostile(run("N(0)\nN(x + 1) <- N(x)")),
    "a recursion without end": Hostile(run("B = [1, 1]\nY[i] = 1.0000001 Y[i] + B[i]")),
    "3,000 rules one after another": Hostile(lambda: compute(tl.Program(_chain(3000))), True),
    "3,000 rules in a ring": Hostile(lambda: compute(tl.Program(_chain(3000) + "R0(x) <- R3000(x)\n")), True),
    "a name of a million letters": Hostile(lambda: compute(tl.Program("N" + "a" * 1_000_000 + " = 1")), True),
    "a string of a million letters": Hostile(lambda: compute(tl.Program('P("' + "a" * 1_000_000 + '")')), True),
    "ten million blanks": Hostile(lambda: compute(tl.Program(" " * 10_000_000 + "Y = 1")), True),
    "a million comments": Hostile(lambda: compute(tl.Program("#\n" * 1_000_000 + "Y = 1")), True),
    "a million semicolons": Hostile(lambda: compute(tl.Program(";" * 1_000_000 + "Y = 1")), True),
    "a literal of a million numbers": Hostile(lambda: compute(tl.Program("Y = [" + "1," * 1_000_000 + "1]")), True),
    "quotes without end": Hostile(lambda: compute(tl.Program('P("' + '\\"' * 200_000))),
    "200 megabytes of text": Hostile(lambda: tl.Program("P(A)\n" * 40_000_000)),
    "a device as a file": Hostile(run('X[i] = "/dev/zero"\nY = X[i]')),
    "a device as a table": Hostile(lambda: _device("csv")),
    "a file that writes over a folder": Hostile(run('P(A)\n"/tmp" = P(x)')),
}  # fmt: skip


def _device(suffix: str) -> object:
    path = Path("/tmp") / f"tensorlogic_endless.{suffix}"
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    try:
        return compute(tl.Program(f'P(x) = "{path}"'))
    finally:
        path.unlink()


def _stop(*_: object) -> None:
    raise TimeoutError(f"not done after {SECONDS} s")


def main(names: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.signal(signal.SIGALRM, _stop)
    for name in names or CASES:
        start = process_time()
        signal.alarm(SECONDS)
        try:
            CASES[name].call()
            outcome = "ran"
        except tl.TensorLogicError as error:
            outcome = f"refused {type(error).__name__} {error.diagnostic.code}: {str(error)[:300]}"
        except BaseException as error:  # whatever it is, it is not ours
            outcome = f"{type(error).__name__}: {str(error)[:300]}"
        signal.alarm(0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            json.dumps({"name": name, "outcome": outcome, "seconds": process_time() - start, "bytes": peak}), flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
