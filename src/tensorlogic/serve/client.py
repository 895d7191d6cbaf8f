"""A small client of the Open Inference Protocol over HTTP, for scripts and services: plain calls, or awaited ones."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np

from ..errors import FormatError, TensorLogicError, expect
from ..runtime.values import Outputs
from .protocol import DATATYPES, NAME_OF, NUMPY, strings_of

AGAIN = frozenset({429, 503})  # answers that ask to come back
LONGEST = 30.0  # seconds that the client waits before it tries again


class ServerError(TensorLogicError, RuntimeError):
    """What a server refused, with the ``status`` of HTTP and the server's own ``code``.

    >>> ServerError("no", status=404, server_code="E476").status
    404
    """

    def __init__(self, message: str, *hints: str, status: int = 0, server_code: str = "", code: str = "E493") -> None:
        super().__init__(message, *hints, code=code)
        self.status, self.server_code = status, server_code


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Question(NamedTuple):
    """A request to a server."""

    path: str
    method: str = "GET"
    body: bytes = b""
    headers: Mapping[str, str] = {}


def infer_question(
    model: str,
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | None,
    version: str,
    parameters: Mapping[str, Any],
    names: bool | None,
) -> _Question:
    """Return a request to infer; arrays go in binary form, sequences of names as JSON."""
    tensors: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    expect(inputs, Mapping, "inputs must be a mapping of names to arrays", 'write {"x": array}')
    for name, value in inputs.items():
        array = np.asarray(value)
        if array.dtype.kind in "US" or array.dtype == object:
            words = [str(w) for w in array.ravel().tolist()]
            tensors.append({"name": name, "datatype": "BYTES", "shape": list(array.shape), "data": words})
            continue
        datatype = NAME_OF.get(array.dtype.name)
        if datatype is None:
            hint = f"use one of {', '.join(DATATYPES.values())}"
            raise FormatError(f"input {name!r} is {array.dtype}, which the protocol does not have", hint, code="E474")
        data = np.ascontiguousarray(array, NUMPY[datatype]).tobytes()
        tensor = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        tensors.append({**tensor, "parameters": {"binary_data_size": len(data)}})
        buffers.append(data)
    body: dict[str, Any] = {"inputs": tensors, "parameters": {"binary_data_output": True, **parameters}}
    if outputs is not None:
        extra = {} if names is None else {"names": names}
        body["outputs"] = [{"name": name, "parameters": {"binary_data": True, **extra}} for name in outputs]
    text = json.dumps(body, allow_nan=False).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    return _Question(f"{_model_path(model, version)}/infer", "POST", b"".join((text, *buffers)), headers)


def outputs_from(answer: _Answer) -> Outputs:
    """Return the outputs that an answer holds: arrays, and tuples of names as lists."""
    length = answer.headers.get("inference-header-content-length")
    end = len(answer.body) if length is None else int(length)
    message = json.loads(answer.body[:end])
    names: list[str] = []
    values: list[Any] = []
    at = end
    for tensor in message["outputs"]:
        size = tensor.get("parameters", {}).get("binary_data_size")
        datatype, shape = tensor["datatype"], tensor["shape"]
        raw = None if size is None else memoryview(answer.body)[at : at + size]
        if datatype == "BYTES":
            words = list(strings_of(raw, tensor["name"], int(np.prod(shape)))) if raw is not None else tensor["data"]
            places = shape[-1] if len(shape) > 1 else 1
            values.append(
                [tuple(words[n : n + places]) for n in range(0, len(words), places)] if places else [()] * shape[0]
            )
        elif raw is not None:
            values.append(np.frombuffer(raw, NUMPY[datatype]).reshape(shape).copy())
        else:
            values.append(np.array(tensor["data"], NUMPY[datatype]).reshape(shape))
        names.append(tensor["name"])
        at += size or 0
    return Outputs(names, values)


def pauses(retries: int, rng: random.Random) -> Iterator[float]:
    """Yield the seconds before each next try where the server does not say: doubling, a little by chance."""
    for n in range(retries):
        yield min(LONGEST, 0.05 * 2**n) * rng.uniform(0.5, 1.5)


def _problem(answer: _Answer) -> ServerError:
    try:
        body = json.loads(answer.body)
        message, hints, code = str(body["error"]), [str(h) for h in body.get("hints", ())], str(body.get("code", ""))
    except (ValueError, KeyError, TypeError):
        message, hints, code = f"the server answered {answer.status}", [], ""
    return ServerError(
        f"{message} ({answer.status}{', ' + code if code else ''})", *hints, status=answer.status, server_code=code
    )


def _pause_or_raise(outcome: _Answer | ServerError, tries: Iterator[float]) -> float:
    """Return how long to wait before the next try: what the server says, else the client's own pause; raise where it is no use."""
    own = next(tries, None)
    if isinstance(outcome, ServerError):  # it was not reached
        if own is None:
            raise outcome
        return own
    if own is None or outcome.status not in AGAIN:
        raise _problem(outcome)
    try:
        found = json.loads(outcome.body).get("retry_after")
        return min(LONGEST, float(outcome.headers["retry-after"] if found is None else found))
    except (ValueError, KeyError, TypeError, AttributeError):
        return own


class BaseClient:
    """What both clients know: where the server is, who asks, and how often a request is tried."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, token: str | None = None, timeout: float = 60.0, retries: int = 4,
        tls: ssl.SSLContext | None = None, rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        expect(url, str, "the address of a server is text", "write http://127.0.0.1:8000")
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FormatError(f"{url!r} is no address of a server", "write http://127.0.0.1:8000", code="E494")
        self.host, self.port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self.timeout, self.retries = timeout, retries
        self.headers = {"Host": parts.netloc, **({"Authorization": f"Bearer {token}"} if token else {})}
        self.rng = rng or random.Random()

    def _unreachable(self, error: BaseException) -> ServerError:
        message = f"{self.host}:{self.port} does not answer: {error or type(error).__name__}"
        return ServerError(message, "look whether the server runs", code="E494")


class Client(BaseClient):
    """Asks a server, ours or any other of the Open Inference Protocol; safe for one thread at a time, and it keeps its connection.

    An answer of 429 or 503 is tried again when the server says so, and so is a connection that was refused. A request whose answer
    did not arrive is tried again too, because a model computes the same for the same inputs.

    >>> Client("http://127.0.0.1:1", retries=0).is_live()
    False
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, sleep: Callable[[float], object] = time.sleep, **options: Any
    ) -> None:
        super().__init__(url, **options)
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def infer(
        self, model: str, inputs: Mapping[str, Any], *, outputs: Sequence[str] | None = None, version: str = "",
        names: bool | None = None, **parameters: Any,
    ) -> Outputs:  # fmt: skip
        """Run a model on arrays (or tuples of names) and return its outputs; parameters are ``priority`` and ``timeout`` (µs)."""
        return outputs_from(self._call(infer_question(model, inputs, outputs, version, parameters, names)))

    def metadata(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Return what the server says of itself, or of a model."""
        found: dict[str, Any] = _json(self._call(_Question(_model_path(model, version))))
        return found

    def is_live(self) -> bool:
        """Tell whether the server answers."""
        return self._is_good("/v2/health/live")

    def is_ready(self, model: str = "", version: str = "") -> bool:
        """Tell whether the server, or a model, takes requests."""
        return self._is_good(f"{_model_path(model, version)}/ready" if model else "/v2/health/ready")

    def _is_good(self, path: str) -> bool:
        try:
            return self._call(_Question(path)).status == 200
        except ServerError:
            return False

    def models(self) -> list[dict[str, Any]]:
        """Return every model and version in the repository, and its state."""
        found: list[dict[str, Any]] = _json(self._call(_Question("/v2/repository/index", "POST")))
        return found

    def load(self, model: str) -> None:
        """Load a model, or load it anew."""
        self._call(_Question(f"/v2/repository/models/{quote(model, safe='')}/load", "POST"))

    def unload(self, model: str) -> None:
        """Stop serving a model."""
        self._call(_Question(f"/v2/repository/models/{quote(model, safe='')}/unload", "POST"))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, question: _Question) -> _Answer:
        tries = pauses(self.retries, self.rng)
        while True:
            outcome: _Answer | ServerError
            try:
                outcome = self._once(question)
                if outcome.status < 400:
                    return outcome
            except (OSError, http.client.HTTPException) as error:
                self.close()
                outcome = self._unreachable(error)
            self._sleep(_pause_or_raise(outcome, tries))

    def _once(self, question: _Question) -> _Answer:
        if self._connection is None:
            if self.tls is None:
                self._connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
            else:
                self._connection = http.client.HTTPSConnection(
                    self.host, self.port, timeout=self.timeout, context=self.tls
                )
        connection = self._connection
        connection.request(question.method, question.path, question.body, {**self.headers, **question.headers})
        reply = connection.getresponse()
        found = _Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        if reply.will_close:
            self.close()
        return found


class AsyncClient(BaseClient):
    """The same for asyncio: ``await client.infer("mlp", {"x": x})``; many tasks may share it, each request has a connection of a pool.

    >>> import asyncio
    >>> asyncio.run(AsyncClient("http://127.0.0.1:1", retries=0).is_live())
    False
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **options: Any,
    ) -> None:
        super().__init__(url, **options)
        self._sleep = sleep
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def infer(
        self, model: str, inputs: Mapping[str, Any], *, outputs: Sequence[str] | None = None, version: str = "",
        names: bool | None = None, **parameters: Any,
    ) -> Outputs:  # fmt: skip
        """Run a model on arrays (or tuples of names) and return its outputs; parameters are ``priority`` and ``timeout`` (µs)."""
        return outputs_from(await self._call(infer_question(model, inputs, outputs, version, parameters, names)))

    async def metadata(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Return what the server says of itself, or of a model."""
        found: dict[str, Any] = _json(await self._call(_Question(_model_path(model, version))))
        return found

    async def is_live(self) -> bool:
        """Tell whether the server answers."""
        try:
            return (await self._call(_Question("/v2/health/live"))).status == 200
        except ServerError:
            return False

    async def close(self) -> None:
        """Close the connections."""
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, question: _Question) -> _Answer:
        tries = pauses(self.retries, self.rng)
        while True:
            outcome: _Answer | ServerError
            try:
                async with asyncio.timeout(self.timeout):
                    outcome = await self._once(question)
                if outcome.status < 400:
                    return outcome
            except (OSError, TimeoutError, EOFError, ValueError, LookupError) as error:
                outcome = self._unreachable(error)
            await self._sleep(_pause_or_raise(outcome, tries))

    async def _once(self, question: _Question) -> _Answer:
        reader, writer = (
            self._idle.pop() if self._idle else await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        )
        try:
            headers = {**self.headers, **question.headers, "Content-Length": str(len(question.body))}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"{question.method} {question.path} HTTP/1.1\r\n{lines}\r\n".encode() + question.body)
            status = int((await reader.readline()).split()[1])
            found: dict[str, str] = {}
            while line := (await reader.readline()).decode("latin-1").strip():
                name, _, value = line.partition(":")
                found[name.lower()] = value.strip()
            body = await reader.readexactly(int(found["content-length"]))
        except BaseException:
            writer.close()
            raise
        if found.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return _Answer(status, found, body)


def _model_path(model: str, version: str) -> str:
    if not model:
        return "/v2"
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _json(answer: _Answer) -> Any:
    return json.loads(answer.body)
