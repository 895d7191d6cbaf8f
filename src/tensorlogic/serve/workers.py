"""Several processes on one port: a parent that starts them, starts one again that died, and carries what concerns all of them.

Each worker has one end of a socket. It says that it listens and asks over it ("load", "snapshot"); the parent puts the question to every worker and returns the answers,
and says "reload" when it gets SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from ..errors import BackendError, InputError, TensorLogicError
from .access_log import AccessLog
from .metrics import sum_snapshots
from .repository import Repository
from .server import Server, ServerConfig, bound_socket, serve_until_told, serving_loop
from .service import error_body

LINE = 1 << 30  # bytes of one message
ANSWER = 120.0  # seconds that a worker has to answer
AGAIN = 0.5  # seconds before a worker that died is started again
ENDED = {"error": "the worker process ended", "code": "E499"}


class Messages:
    """Questions and answers over one socket, as lines of JSON, and words that need no answer; either side may begin."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]], told: Callable[[str], object]
    ) -> None:
        self._answer, self._told = answer, told
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._replies: set[asyncio.Task[None]] = set()  # so that none is collected before it ends
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self, end: socket.socket) -> None:
        """Open the socket: messages can be sent from now on, and those that come wait for ``run``."""
        self._reader, self._writer = await asyncio.open_connection(sock=end, limit=LINE)

    async def run(self) -> None:
        """Read messages until the other side is gone; what goes wrong with one of them is raised here."""
        try:
            with contextlib.suppress(ConnectionError):  # killed before it had read everything: gone, too
                while (line := await self._reader.readline()).endswith(b"\n"):  # half a line: killed as it wrote it
                    self._take(msgspec.json.decode(line))
        finally:
            self._writer.close()
            for future in self._asked.values():
                if not future.done():
                    future.set_result(ENDED)

    def _take(self, message: dict[str, Any]) -> None:
        if "told" in message:
            self._told(message["told"])
        elif "answer" in message:
            future = self._asked.pop(message["to"], None)
            if future is not None and not future.done():
                future.set_result(message["answer"])
        else:
            task = asyncio.create_task(self._reply(message))
            self._replies.add(task)
            task.add_done_callback(self._replied)

    def _replied(self, task: asyncio.Task[None]) -> None:
        self._replies.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._reader.set_exception(error)  # nobody waits for the task, but for ``run``

    def tell(self, word: str) -> None:
        """Say something that needs no answer."""
        self._send({"told": word})

    async def _reply(self, message: dict[str, Any]) -> None:
        try:
            answer = await self._answer(message["ask"])
        except Exception as error:
            answer = error_body(error)
        self._send({"to": message["number"], "answer": answer})

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the other side."""
        if self._writer.is_closing():
            return ENDED
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send({"number": number, "ask": question})
        try:
            return await asyncio.wait_for(future, ANSWER)
        except TimeoutError:
            return {"error": "a worker process did not answer in time", "code": "E499"}
        finally:
            self._asked.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():  # else there is nobody to hear it
            self._writer.write(msgspec.json.encode(message) + b"\n")


class Peers:
    """What a worker asks of all workers, itself among them, through the parent."""

    def __init__(self, server: Server) -> None:
        self.service = server.service
        self.messages = Messages(self._answer, lambda _: server.reload())  # the parent says nothing else

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["what"] == "snapshot":
            return {"snapshot": self.service.snapshot()}
        await self.service.change_here(question["what"], question["name"])
        return {}

    async def change(self, what: str, name: str) -> None:
        """Load or unload a model in every worker."""
        found = await self.messages.ask({"what": what, "name": name})
        for answer in found.get("answers", [found]):
            if "error" in answer:
                raise InputError(answer["error"], *answer.get("hints", ()), code=answer.get("code"))

    async def snapshots(self) -> dict[str, Any]:
        """Return the metrics of all workers, added up."""
        found = await self.messages.ask({"what": "snapshot"})
        return sum_snapshots(answer["snapshot"] for answer in found.get("answers", ()) if "snapshot" in answer)


class Parent:
    """Starts the workers, and puts what one asks to all."""

    def __init__(self, config: ServerConfig, count: int, log: AccessLog) -> None:
        self.config, self.count, self.log = config, count, log
        self.workers: dict[int, tuple[subprocess.Popen[bytes], Messages]] = {}
        self.listening: set[int] = set()  # the workers that take requests
        self.begun = asyncio.Event()  # all of them listen, or did once; or the end comes before
        self.ending = False

    def _listens(self, number: int, word: str) -> None:
        """Note that a worker listens; workers say nothing else."""
        self.listening.add(number)
        if len(self.listening) == self.count:
            self.begun.set()

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Put the question of one worker to everyone."""
        asked = [messages.ask(question) for _, messages in self.workers.values()]
        return {"answers": await asyncio.gather(*asked)}

    async def keep_running(self, number: int) -> None:
        """Run one worker, and another one when it dies."""
        while not self.ending:
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "tensorlogic.serve.workers", str(theirs.fileno())]
            messages = Messages(self._answer, partial(self._listens, number))
            with theirs:
                await messages.connect(ours)
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, start_new_session=True
                )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(self.config))
            process.stdin.close()
            self.workers[number] = process, messages
            if self.ending:
                process.terminate()
            await messages.run()
            code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
            del self.workers[number]
            if not self.ending:
                self.log.event("worker ended", number=number, code=code)
                if number not in self.listening and not self.begun.is_set():
                    hint = "its last words are above; tensorlogic serve without --workers may say more"
                    raise BackendError("a worker process ended before it listened", hint, code="E495")
                self.listening.discard(number)
                await asyncio.sleep(AGAIN)

    def stop(self) -> None:
        """Let every worker answer what it took in, and end."""
        self.ending = True
        self.begun.set()
        for process, _ in self.workers.values():
            process.send_signal(signal.SIGTERM)

    def reload(self) -> None:
        """Let every worker load its models anew; one that is about to begin reads this once it does, and loads them again."""
        for _, messages in self.workers.values():
            messages.tell("reload")

    async def _announce(self, started: Callable[[ServerConfig], object]) -> None:
        await self.begun.wait()
        if not self.ending:
            started(self.config)

    async def _or_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a part of the work; where it fails, the others end, too, so that the command ends with the reason."""
        try:
            await work
        except BaseException:
            self.stop()
            raise

    async def run(self, started: Callable[[ServerConfig], object]) -> None:
        """Run the workers until SIGTERM or SIGINT; ``started`` is called when all of them listen."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        with _reserved(self.config) as config:
            self.config = config
            parts = [self._announce(started), *(self.keep_running(n) for n in range(self.count))]
            ends = await asyncio.gather(*map(self._or_stop, parts), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error


@contextlib.contextmanager
def _reserved(config: ServerConfig) -> Any:
    """Hold the ports while workers come and go; a port of 0 becomes the one that the system gives."""
    ports = {"port": config.port, **({} if config.grpc_port is None else {"grpc_port": config.grpc_port})}
    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            held = stack.enter_context(bound_socket(config.host, port))  # does not listen, as the workers do
            ports[name] = held.getsockname()[1]
        yield msgspec.structs.replace(config, **ports)


def run(config: ServerConfig, count: int, started: Callable[[ServerConfig], object]) -> None:
    """Serve in several processes, until told to end."""
    Repository(config.folder, config.limits)  # a folder that is not there is told at once, not by each worker
    log = AccessLog(sys.stderr)
    with serving_loop(log) as loop:
        loop.run_until_complete(Parent(config, count, log).run(started))


async def _work(config: ServerConfig, end: socket.socket, log: AccessLog) -> None:
    server = Server(config, log)
    peers = Peers(server)
    await peers.messages.connect(end)  # before anything is said over it
    reading = asyncio.create_task(peers.messages.run())
    reading.add_done_callback(_end_alone)
    await serve_until_told(server, lambda _: peers.messages.tell("listening"), peers)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading  # raises what went wrong with a message


def _end_alone(reading: asyncio.Task[None]) -> None:
    """Without a parent there is no server."""
    if not reading.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Be one worker: the socket is an argument, the config comes in as JSON."""
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerConfig)
    log = AccessLog(sys.stderr, requests=config.log_requests)
    try:
        with serving_loop(log) as loop, socket.socket(fileno=int(sys.argv[1])) as end:
            loop.run_until_complete(_work(config, end, log))
    except TensorLogicError as error:
        sys.exit(f"a worker cannot begin: {error.diagnostic.message}")


if __name__ == "__main__":
    main()
