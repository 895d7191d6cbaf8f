"""What every protocol of the server does with a request: find the model, check, admit, hand over to the batcher, hand the answer back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

from .. import __version__
from ..errors import CancelledError, DeadlineError, InputError, TensorLogicError
from .batch_queue import Priority
from .limits import Limits
from .metrics import Metrics
from .protocol import Array, InferRequest, arrays_of, malformed
from .repository import Repository, ServedModel
from .responses import check_outputs

Done = Callable[[ServedModel | None, Any], None]  # is given the outputs, or the exception
LARGE = 256 << 10  # bytes of JSON that are not read on the event loop
STATUS = {  # of HTTP, by the code of the fault
    "E472": 413, "E476": 404, "E477": 404, "E479": 422, "E480": 403, "E481": 504, "E482": 401, "E483": 404, "E484": 405, "E485": 415, "E486": 408,
    "E487": 503, "E488": 500, "E489": 500, "E490": 500, "E491": 422, "E492": 431, "E498": 403, "E499": 503,
}  # fmt: skip
GRPC = {  # the status of gRPC for one of HTTP
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 413: "RESOURCE_EXHAUSTED",
    415: "INVALID_ARGUMENT", 422: "FAILED_PRECONDITION", 429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 500: "INTERNAL",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]
PRIORITIES = (Priority.CRITICAL, Priority.HIGH, Priority.NORMAL, Priority.LOW)  # as Triton's clients count them, from 1


def status_of(error: BaseException) -> int:
    """Return the HTTP status of what went wrong.

    >>> status_of(InputError("no", code="E476")), status_of(DeadlineError("late")), status_of(KeyError("x"))
    (404, 504, 500)
    """
    if getattr(error, "retry_after", None) is not None:
        return 429
    if isinstance(error, TensorLogicError) and error.diagnostic.code in STATUS:
        return STATUS[error.diagnostic.code]
    if isinstance(error, ValueError):  # ours are the caller's fault
        return 400 if isinstance(error, TensorLogicError) else 500
    kinds = ((DeadlineError, 504), (CancelledError, 503), (MemoryError, 503), (OSError, 503))
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)


def error_body(error: BaseException) -> dict[str, Any]:
    """Return what went wrong as JSON: the message, its code, hints, and when to come back where that helps."""
    if isinstance(error, TensorLogicError):
        found = error.diagnostic
        body: dict[str, Any] = {"error": found.message, "code": found.code or "E488"}
        if found.suggestions:
            body["hints"] = list(found.suggestions)
    else:
        body = {"error": f"the server failed: {type(error).__name__}", "code": "E488"}
    retry = getattr(error, "retry_after", None)
    return body if retry is None else {**body, "retry_after": round(float(retry), 3)}


class Service:
    """The models, the limits and the metrics of one process, and the way of a request through them."""

    def __init__(
        self, repository: Repository, limits: Limits, *, name: str = "tensorlogic", control: bool = True
    ) -> None:
        self.repository, self.limits, self.name, self.control = repository, limits, name, control
        self.metrics = Metrics()
        self.draining = False
        self.started = perf_counter()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.threads = ThreadPoolExecutor(2, "tensorlogic-plan")  # for planning and for large bodies
        self.loads = ThreadPoolExecutor(1, "tensorlogic-load")
        self.peers: Any = None  # how to reach the other worker processes, where there are some

    def infer(
        self, name: str, version: str, request: InferRequest, seconds: float | None, done: Done
    ) -> Callable[[], object]:
        """Begin to answer a request; ``done`` is called on the event loop. Return how to cancel it.

        Without ``seconds`` whoever asks gives up by itself when the server's time for a request is over. What is wrong with the request itself is raised here, before any work.
        """
        model = self.repository.find(name, version)
        if request.outputs:
            check_outputs(request, model.outputs)
        inputs = arrays_of(request, model.inputs, model.limits)
        if model.values:
            inputs = model.complete(inputs)
        priority = model.priority
        limit = model.limits.seconds if seconds is None else min(seconds, model.limits.seconds)
        if request.parameters:
            priority, limit = _priority_and_timeout(request, priority, limit)
        # None: the connection looks after it
        timeout = None if seconds is None and limit == self.limits.seconds else limit
        if model.static or model.is_admitted(inputs):
            return self._submit(model, inputs, priority, timeout, done)
        cancelled, cancel_run = False, None

        def admitted(_: None) -> None:
            nonlocal cancel_run
            if cancelled:
                raise _cancelled()
            cancel_run = self._submit(model, inputs, priority, timeout, done)

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            if cancel_run is not None:
                cancel_run()

        self.on_thread(partial(model.admit, inputs), admitted, partial(done, model))
        return cancel

    def _submit(
        self, model: ServedModel, inputs: dict[str, Array], priority: Priority, timeout: float | None, done: Done
    ) -> Callable[[], object]:
        request = model.batcher.request(inputs, priority, timeout)
        request.tell = partial(done, model)
        try:
            model.batcher.enter(request, self.loop)
        except InputError as error:
            if error.diagnostic.code != "E457" or (latest := self.repository.find(model.name, model.version)) is model:
                raise
            return self._submit(latest, inputs, priority, timeout, done)  # it was loaded anew since it was found

        def cancel() -> None:
            if model.batcher.cancel(request):
                done(model, _cancelled())

        return cancel

    def on_thread(
        self, work: Callable[[], Any], then: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do some work on a thread; then go on with its result on the event loop, or with what went wrong in either."""

        def go_on(future: asyncio.Future[Any]) -> None:
            try:
                then(future.result())
            except Exception as error:
                failed(error)

        assert self.loop is not None
        self.loop.run_in_executor(self.threads, work).add_done_callback(go_on)

    async def change(self, what: str, name: str) -> None:
        """Load or unload a model, here and in the other worker processes."""
        if not self.control:
            message = "models are neither loaded nor unloaded by requests here"
            raise InputError(message, "serve with --control", code="E498")
        if self.peers is not None:
            await self.peers.change(what, name)
        else:
            await self.change_here(what, name)

    async def change_here(self, what: str, name: str) -> None:
        """Load or unload a model in this process, on a thread."""
        function = self.repository.load if what == "load" else self.repository.unload
        await asyncio.wrap_future(self.loads.submit(function, name))

    def snapshot(self) -> dict[str, Any]:
        """Return the metrics of this process as plain data."""
        return self.metrics.snapshot(self.models())

    async def all_snapshots(self) -> dict[str, Any]:
        """Return the metrics of all worker processes, added up."""
        return self.snapshot() if self.peers is None else await self.peers.snapshots()

    def models(self) -> Iterable[ServedModel]:
        """Return every version that is served."""
        return [model for versions in self.repository.ready.values() for model in versions.values()]

    def about(self) -> dict[str, Any]:
        """Return what the server says of itself."""
        return {"name": self.name, "version": __version__, "extensions": EXTENSIONS}

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return what a model says of itself."""
        model = self.repository.find(name, version)
        return model.metadata(list(self.repository.ready[model.name]))

    def statistics(self, name: str, version: str) -> dict[str, Any]:
        """Return what was counted for a model, or for all where none is named, in the fields that Triton's clients read."""
        models = [self.repository.find(name, version)] if name else self.models()
        return {"model_stats": [self._counted(model) for model in models]}

    def _counted(self, model: ServedModel) -> dict[str, Any]:
        found = self.metrics.model(model.name, model.version)
        good = sum(count for (_, code), count in found.codes.items() if code == "ok")
        bad = sum(found.codes.values()) - good
        stats = model.batcher.stats()
        sizes, whole = stats.batch_sizes, int(found.seconds.total * 1e9)
        queue = min(whole, int(stats.avg_queue_time * stats.completed * 1e9))
        return {
            "name": model.name,
            "version": model.version,
            "inference_count": good,
            "execution_count": sum(sizes.values()),
            "inference_stats": {
                "success": {"count": good, "ns": whole},
                "fail": {"count": bad, "ns": 0},
                "queue": {"count": good, "ns": queue},
                "compute_input": {"count": good, "ns": 0},
                "compute_infer": {"count": good, "ns": whole - queue},
                "compute_output": {"count": good, "ns": 0},
            },
            "batch_stats": [{"batch_size": size} for size in sorted(sizes)],
        }

    def close(self) -> None:
        """End the threads, and the models once their requests are answered."""
        self.repository.close()
        self.threads.shutdown()
        self.loads.shutdown()


def _cancelled() -> CancelledError:
    return CancelledError("the request was cancelled", code="E980")


def _priority_and_timeout(request: InferRequest, priority: Priority, timeout: float) -> tuple[Priority, float]:
    """Return the priority and the time that a request asks for itself; the time in microseconds, as Triton's clients say it."""
    wanted, limit = request.parameters.get("priority"), request.parameters.get("timeout")
    if wanted is not None and wanted != 0:
        if type(wanted) is int and wanted > 0:
            priority = PRIORITIES[min(wanted, len(PRIORITIES)) - 1]
        elif isinstance(wanted, str) and wanted.upper() in Priority.__members__:
            priority = Priority[wanted.upper()]
        else:
            raise malformed("priority is a number from 1, or one of low, normal, high and critical")
    if limit is not None and limit != 0:
        if type(limit) is not int or limit < 0:
            raise malformed("timeout is a whole number of microseconds")
        timeout = min(timeout, limit / 1e6)
    return priority, timeout
