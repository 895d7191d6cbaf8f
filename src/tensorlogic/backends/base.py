"""What a backend is: it turns a plan's steps into callables, and says truthfully what it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from ..diagnostics import value_text
from ..errors import BackendError, expect_whole, nearest
from ..ir.types import TensorType
from ..passes.rewrite import Pass
from ..plan.build import ExecutionPlan, Step

if TYPE_CHECKING:
    from ..plan.groups import Facts

Kernel = Callable[..., Any]  # operands in, the result out; a tuple where a step has several
RunBody = Callable[[ExecutionPlan], Callable[[Sequence[Any]], tuple[Any, ...]]]


class Device(msgspec.Struct, frozen=True, order=True):
    """A place where steps run.

    >>> Device.CPU(0), str(Device.CPU(0))
    (Device.CPU(0), 'cpu:0')
    """

    kind: str
    index: int = 0

    @classmethod
    def CPU(cls, index: int = 0) -> Device:  # noqa: N802 - the seed's name
        """The processor."""
        expect_whole("the number of a device", index)
        return cls("cpu", index)

    @classmethod
    def GPU(cls, index: int = 0) -> Device:  # noqa: N802 - the seed's name
        """A graphics card, where a backend has one."""
        expect_whole("the number of a device", index)
        return cls("gpu", index)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"Device.{self.kind.upper()}({self.index})"


class BackendCapabilities(NamedTuple):
    """What a backend can do here, on this machine.

    >>> BackendCapabilities("toy", (Device.CPU(0),), ("float32",), ("einsum",)).supports("einsum")
    True
    """

    name: str
    devices: tuple[Device, ...]
    dtypes: tuple[str, ...]
    features: tuple[str, ...]  # the operations it runs, by name, and traits such as "in_place"
    version: str = ""

    def supports(self, feature: str) -> bool:
        """Tell whether the backend has a feature or a dtype."""
        return feature in self.features or feature in self.dtypes


@runtime_checkable
class Backend(Protocol):
    """A backend as the executor sees it: any object with these members.

    >>> from tensorlogic.backends.numpy import NumpyBackend
    >>> isinstance(NumpyBackend(), Backend)
    True
    """

    name: str
    passes: tuple[Pass, ...]  # what it wants done to a graph before steps are laid out

    def capabilities(self) -> BackendCapabilities:
        """Say what this backend can do."""

    def asarray(self, value: Any, dtype: str | None) -> Any:
        """Turn what a user gives into the backend's array; dtype applies to values that have none of their own."""

    def bind(self, step: Step, run_body: RunBody) -> Kernel:
        """Return a callable for a step; ``run_body(plan)`` gives one for a body."""

    def guard(self) -> AbstractContextManager[Any]:
        """Return what surrounds a run, such as settings of floating-point warnings."""

    def finish(self, value: Any, shared: bool) -> Any:
        """Return an output as an array of its own; ``shared`` memory belongs to someone else and is copied."""


@runtime_checkable
class InPlaceBackend(Backend, Protocol):
    """A backend that says "in_place": its steps can write into buffers that the plan reuses.

    >>> from tensorlogic.backends.numpy import NumpyBackend
    >>> isinstance(NumpyBackend(), InPlaceBackend)
    True
    """

    def bind_into(self, step: Step) -> Kernel:
        """Return a callable for a step that has a buffer: ``kernel(*operands, out=array)``."""

    def scalar(self, value: Any, types: tuple[TensorType, ...]) -> Any:
        """Return a Python scalar as the array it becomes beside operands of these types."""

    def context(self) -> Context:
        """Return a context whose variables make a guard of their own; entering it costs less than a guard."""


@runtime_checkable
class NativeBackend(InPlaceBackend, Protocol):
    """A backend that says "native": it can run groups of nodes, or a whole small graph, as machine code.

    >>> from tensorlogic.backends.numpy import NumpyBackend
    >>> isinstance(NumpyBackend(), NativeBackend)
    True
    """

    def facts(self) -> Facts:
        """Return what its kernels can do; plans decide which of them to use."""


class KernelUnavailable(Exception):  # noqa: N818 - nobody sees it: the planner lays the step out otherwise
    """No kernel could be made of a fused step, so that a plan with other steps is needed."""

    def __init__(self, step: Step, why: str) -> None:
        super().__init__(why)
        self.step = step


BACKENDS = {
    "numpy": ("tensorlogic.backends.numpy", "NumpyBackend"),
    "reference": ("tensorlogic.backends.reference", "ReferenceBackend"),
    "null": ("tensorlogic.backends.null", "NullBackend"),
}


def get_backend(backend: str | Backend) -> Backend:
    """Return a backend by name, or the one given.

    >>> get_backend("numpy").name
    'numpy'
    """
    if not isinstance(backend, str):
        if isinstance(backend, Backend) and not isinstance(backend, type):
            return backend
        hint = "a backend has name, passes, capabilities, asarray, bind, guard and finish"
        raise BackendError(f"{value_text(backend)} is not a backend", hint, code="E406")
    if backend not in BACKENDS:
        raise BackendError(f"there is no backend {value_text(backend)}", *nearest(backend, BACKENDS), code="E401")
    module, name = BACKENDS[backend]
    made: Backend = getattr(import_module(module), name)()
    return made


def check_dtypes(plan: ExecutionPlan, able: BackendCapabilities) -> None:
    """Refuse a plan that needs a dtype the backend lacks."""
    for _, _, t in plan.inputs:
        _check(t.dtype, able, None)
    for step in plan.steps:
        for t in step.types:
            _check(t.dtype, able, step)
        for body in step.bodies:
            check_dtypes(body, able)


def _check(dtype: str | None, able: BackendCapabilities, step: Step | None) -> None:
    if dtype is not None and dtype not in able.dtypes:
        message = f"the {able.name} backend has no {dtype}" + (f", which {step.op.name} makes" if step else "")
        hints = nearest(dtype, able.dtypes)
        if dtype == "bfloat16":
            hints = ["cast to float32", *["pip install ml_dtypes, which comes with JAX"] * (able.name == "numpy")]
        raise BackendError(message, *hints, code="E402").at(step.location if step else None)
