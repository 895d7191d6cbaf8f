"""The server: listens, answers, and goes down without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BackendError, InputError
from .access_log import AccessLog
from .http import Listener
from .limits import Limits
from .repository import Repository
from .routes import Routes
from .service import Service

BACKLOG = 4096
SWEEP = 0.5  # seconds between two looks at connections whose time is over
QUIET = 0.3  # seconds without a request after which a server that goes down closes idle connections


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``tensorlogic serve`` is told.

    >>> ServerConfig("models").host
    '127.0.0.1'
    """

    folder: str
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    name: str = "tensorlogic"
    tokens: tuple[str, ...] = ()
    certificate: str | None = None  # of TLS, with its key
    key: str | None = None
    control: bool = True  # whether requests may load and unload models
    load: tuple[str, ...] | None = None  # the models to begin with; None: all
    log_requests: bool = False
    drain_seconds: float = 30.0
    limits: Limits = Limits()


class Server:
    """One process that serves a folder of models.

    ``await server.start()`` listens, ``await server.drain()`` answers what was taken in and ends.
    """

    def __init__(self, config: ServerConfig, log: AccessLog | None = None) -> None:
        self.config, self.log = config, log
        self.service = Service(
            Repository(config.folder, config.limits), config.limits, name=config.name, control=config.control
        )
        self.routes = Routes(self.service, config.tokens, log, local=config.host in ("127.0.0.1", "::1", "localhost"))
        self.listener = Listener(self.routes, config.limits, self.service.metrics)
        self.port = config.port
        self.grpc_port: int | None = None
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._grpc: Any = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._reloads: set[asyncio.Task[None]] = set()  # so that none is collected before it ends

    async def start(self, peers: Any = None) -> None:
        """Load the models and listen; several processes may listen on one port."""
        loop = self.service.loop = asyncio.get_running_loop()
        self.service.peers = peers
        await self._load(self.service.repository.names() if self.config.load is None else self.config.load)
        listening = bound_socket(self.config.host, self.config.port)
        self.port = listening.getsockname()[1]
        self._socket = listening.dup()  # outlives the server by a moment
        for each in (listening, self._socket):
            each.setblocking(False)
        self._server = await loop.create_server(self.listener, sock=listening, ssl=self._tls(), backlog=BACKLOG)
        if self.config.grpc_port is not None:
            from .grpc import GrpcServer

            self._grpc = GrpcServer(self.service, self.config)
            self.grpc_port = await self._grpc.start()
        self._sweep()
        if self.log is not None:
            ready = sorted(self.service.repository.ready)
            self.log.event("listening", host=self.config.host, port=self.port, grpc_port=self.grpc_port, models=ready)

    async def _load(self, names: Iterable[str]) -> None:
        """Load models one after the other; the log tells of those that cannot be loaded."""
        for name in names:
            if self.service.draining:
                return
            try:
                await self.service.change_here("load", name)
            except Exception as error:
                self._load_failed(error, model=name)

    def _load_failed(self, error: Exception, **what: str) -> None:
        if self.log is not None:
            self.log.event("load failed", **what, error=(str(error) or type(error).__name__).splitlines()[0])

    def reload(self) -> None:
        """Begin to load every model of the folder anew, as SIGHUP asks for."""
        try:
            names = self.service.repository.names()
        except OSError as error:  # the folder is gone: what is loaded stays
            self._load_failed(error)
            return
        task = asyncio.get_running_loop().create_task(self._load(names))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def _tls(self) -> ssl.SSLContext | None:
        if self.config.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.config.certificate, self.config.key)
        except (OSError, ssl.SSLError) as error:
            hint = "give --tls-cert and --tls-key"
            raise InputError(f"the certificate cannot be used: {error}", hint, code="E495") from None
        return context

    def _sweep(self) -> None:
        self.listener.sweep()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    async def _accept_rest(self) -> None:
        """Accept the connections that the system has made already, and only then stop it from making more."""
        assert self._socket is not None
        found = []
        with self._socket, contextlib.suppress(OSError):
            while True:
                found.append(self._socket.accept()[0])
        for each in found:
            each.setblocking(False)
            with contextlib.suppress(OSError, ssl.SSLError):
                await asyncio.get_running_loop().connect_accepted_socket(self.listener, each, ssl=self._tls())

    async def drain(self) -> None:
        """Take in no more connections, answer every request that was taken in, then end."""
        loop, listener, service = asyncio.get_running_loop(), self.listener, self.service
        service.draining = listener.draining = True
        if self.log is not None:
            self.log.event("draining", connections=len(listener.connections), requests=listener.busy)
        end = loop.time() + self.config.drain_seconds
        if self._server is not None:
            self._server.close()
            await self._accept_rest()
        if self._grpc is not None:
            await self._grpc.drain(self.config.drain_seconds)
        quiet_since = loop.time()
        while listener.connections and loop.time() < end:
            if listener.busy or any(not c.idle for c in listener.connections):
                quiet_since = loop.time()
            elif loop.time() - quiet_since >= QUIET:
                listener.close_idle()
            await asyncio.sleep(0.02)
        for connection in list(listener.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await loop.run_in_executor(None, service.close)
        if self.log is not None:
            self.log.event("ended", left=listener.busy)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that has a port which other processes may share."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        message = f"cannot listen on {host}:{port}: {error.strerror}"
        raise BackendError(message, "choose another with --port", code="E495") from None
    return found


def event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop, or say that it is not installed."""
    try:
        import uvloop
    except ImportError:
        hint = "pip install 'tensorlogic-infer[serve]'"
        raise BackendError("the server needs uvloop and httptools", hint, code="E495") from None
    return uvloop.new_event_loop()


@contextlib.contextmanager
def serving_loop(log: AccessLog) -> Iterator[asyncio.AbstractEventLoop]:
    """Have an event loop; at the end it is closed, and so is the log."""
    loop = event_loop()
    try:
        asyncio.set_event_loop(loop)
        yield loop
    finally:
        log.close()
        loop.close()


async def serve_until_told(server: Server, started: Callable[[Server], object] = bool, peers: Any = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once."""
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()

    def stop() -> None:
        if ending.is_set():
            sys.exit(1)
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with contextlib.suppress(NotImplementedError, AttributeError):
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    await server.start(peers)
    gc.collect()
    gc.freeze()  # what is loaded stays: no request waits while the collector looks through it
    started(server)
    await ending.wait()
    await server.drain()


def run(config: ServerConfig, started: Callable[[Server], object] = bool) -> None:
    """Serve in this process, until it is told to end."""
    log = AccessLog(sys.stderr, requests=config.log_requests)
    with serving_loop(log) as loop:
        loop.run_until_complete(serve_until_told(Server(config, log), started))


def read_tokens(path: Path) -> Sequence[str]:
    """Read a file of tokens, one on each line."""
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise InputError(f"the tokens in {path} cannot be read: {error.strerror}", code="E495") from None
    tokens = [token for token in found if token and not token.startswith("#")]
    if not tokens or any(len(token) < 16 for token in tokens):
        hint = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        raise InputError(f"{path} needs tokens of at least 16 characters, one on each line", hint, code="E495")
    return tokens
