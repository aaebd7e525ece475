"""A client that costs little next to a service: bytes made beforehand, sockets, and a clock."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

import uvloop


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load: answers a second, and the time of the middle one in milliseconds."""

    rate: float
    p50: float


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


def load(port: int, clients: Sequence[Sequence[bytes]], *, seconds: float) -> Load:
    """Each client sends its requests in turn, again and again, the next one when an answer is there."""
    return uvloop.run(_load(port, clients, seconds))


async def _load(port: int, clients: Sequence[Sequence[bytes]], seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    connections = [_Connection(requests) for requests in clients]
    started = time.perf_counter()
    for connection in connections:
        await loop.create_connection(lambda made=connection: made, "127.0.0.1", port)
    await asyncio.sleep(seconds)
    for connection in connections:
        connection.stop()
    took = time.perf_counter() - started
    times = [one for connection in connections for one in connection.times]
    return Load(rate=len(times) / took, p50=median(times) * 1000)


@dataclass
class _Connection(asyncio.Protocol):
    requests: Sequence[bytes]
    times: list[float] = field(default_factory=list)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._next = cycle(self.requests)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if found and len(body) >= _content_length(head):
            if not self._answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
                raise RuntimeError(self._answer.decode())
            self.times.append(time.perf_counter() - self._started)
            self._send()

    def stop(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        self._answer = b""
        self._started = time.perf_counter()
        self._transport.write(next(self._next))


def _content_length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
