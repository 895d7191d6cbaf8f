"""Climbing: a kernel that begins on NumPy and becomes native once that has paid for loading numba.

Whoever cannot know how often a kernel will run does well to wait until what was lost equals what the change costs.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..events import wants_every_step
from ..ir import ops
from ..ir.algebra import algebra
from ..ir.graph import Fixpoint, bodies
from ..plan.build import Step, lay_out
from ..plan.contract import Contraction
from .base import Kernel
from .contract import bind_contract_vjp, bind_contraction
from .native import support
from .threads import on_one_thread

LOAD = 1.0  # seconds to load numba and compile, or read from disk, a kernel
READY = 0.05  # the same where numba is loaded already
POINT = {"blocks": 3e-9, "matmul": 2.5e-11}  # seconds that NumPy takes for one point of an index space


def _made(make: Callable[[], Kernel | None]) -> Kernel | None:
    """Return the native kernel, or None with a warning where there can be none."""
    try:
        return make()
    except Exception as error:  # numba raises anything where it cannot compile
        said = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"a step stays on NumPy, because no kernel could be made of it: {said}", support.NativeWarning, stacklevel=3
        )
        return None


def climbing(slow: Kernel, make: Callable[[], Kernel | None], seconds: float, *, visible: bool = False) -> Kernel:
    """Return a kernel that runs ``slow`` until it has taken as long as loading the native one would.

    ``seconds`` is what one run is thought to take. A ``visible`` kernel has rounds that some hooks want to see; for those it stays slow.
    """
    lock = threading.Lock()
    native: Kernel | None = None
    tried, spent, expected = False, 0.0, seconds

    def run(*operands: Any) -> Any:
        nonlocal native, tried, spent, expected
        if not tried and spent + expected >= (READY if support.loaded() else LOAD):
            with lock:
                if not tried:
                    native = _made(make) if support.usable() else None
                    tried = True
        if native is not None and not (visible and wants_every_step()):
            return native(*operands)
        if tried:
            return slow(*operands)
        start = perf_counter()
        made = slow(*operands)
        expected = perf_counter() - start
        spent += expected
        return made

    return run


def contraction_kernel(op: ops.Einsum, form: Contraction, step: Step) -> Kernel:
    """Return the kernel of an einsum, which becomes native when that pays: other algebras, and Booleans as packed bits."""
    args, result = step.arg_types, step.types[0]
    slow = bind_contraction(op, form, args, result)
    slow = on_one_thread(slow) if step.split else slow
    if form.kernel not in POINT or len(form.labels) != 2:
        return slow
    seconds = POINT[form.kernel] * math.prod(form.sizes.values())
    if result.dtype == "bool":

        def on_bits() -> Kernel | None:
            from .bitplan import bind_bits

            return bind_bits(op, form, args, result)

        return climbing(slow, on_bits, seconds)

    def in_blocks() -> Kernel | None:
        from .native.semiring import bind_semiring, make_ready, worth

        if not worth(form):
            return None
        make_ready(algebra(op.algebra), result.dtype or "float64")  # what fails, fails now
        return bind_semiring(op, form, args, result)

    exact = algebra(op.algebra).reduce in ("max", "min")
    # one that rounds otherwise is native from the first call or never, so that equal calls have equal answers
    return climbing(slow, in_blocks, seconds) if form.kernel == "blocks" and (exact or seconds >= LOAD) else slow


VJP = 4  # times what the contraction takes on NumPy, its gradient for one factor does


def vjp_kernel(op: ops.ContractVJP, form: Contraction, step: Step) -> Kernel:
    """Return the kernel of a contraction's gradient: native from the first call where that pays, for it rounds otherwise."""
    args, result = step.arg_types, step.types[0]
    slow = bind_contract_vjp(op, form, result, args)
    seconds = VJP * POINT["blocks"] * math.prod(form.sizes.values())
    if form.kernel != "blocks" or seconds < LOAD:
        return slow

    def in_rows() -> Kernel | None:
        from .native.vjp import bind_native_vjp, make_ready, worth

        if not worth(op, args, result):
            return None
        make_ready(op, result.dtype or "float64")
        return bind_native_vjp(op, form, result, args)

    return climbing(slow, in_rows, seconds)


ROUNDS = 16  # that a fixpoint is thought to take


def loop_kernel(step: Step, slow: Kernel) -> Kernel:
    """Return the kernel of a loop; a Boolean fixpoint becomes one on packed bits when that pays."""
    if not isinstance(step.op, Fixpoint) or any(t.dtype != "bool" for t in step.types):
        return slow

    def on_bits() -> Kernel | None:
        from .closure import bind_fixpoint

        return bind_fixpoint(step._replace(bodies=tuple(lay_out(b) for b in bodies(step.op))))  # an operation a step

    parts = [p for s in step.bodies[0].steps for p in s.parts or (s,)]
    points = sum(math.prod(s.form.sizes.values()) for s in parts if s.form is not None)
    return climbing(slow, on_bits, ROUNDS * POINT["matmul"] * points, visible=True)
