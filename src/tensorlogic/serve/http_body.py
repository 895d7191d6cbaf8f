"""Large bodies of HTTP requests, which are read into memory of their own as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGN = 64  # bytes


def body_memory(size: int, headers: Mapping[bytes, bytes]) -> memoryview:
    """Return room for a body of some bytes, placed so that binary tensors after the JSON begin at a round address.

    >>> len(body_memory(1000, {b"inference-header-content-length": b"100"}))
    1000
    """
    text = headers.get(b"inference-header-content-length", b"0")
    memory = np.empty(size + ALIGN, np.uint8)  # not touched before bytes arrive
    start = -(memory.ctypes.data + (int(text) if text.isdigit() else 0)) % ALIGN
    return memory[start : start + size].data


class BodyReader(asyncio.BufferedProtocol):
    """Takes the place of a connection while a large body arrives, so that it is read into its own memory."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.connection_lost, self.eof_received = connection.connection_lost, connection.eof_received  # type: ignore[method-assign]
        self.pause_writing, self.resume_writing = connection.pause_writing, connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        connection = self._connection
        room: memoryview = connection.direct[connection.received :]
        return room

    def buffer_updated(self, count: int) -> None:
        self._connection.body_grew(count)
