"""Clients that stand still, in a request or an answer, are let go; those that move are served, however slowly."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.service.process import service

# Those that move do so every half second: the machine may be busy meanwhile.
PATIENCE = 3
HEAD = b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"id": "slow", "user_id": "alice"}).encode()
FULL = "/v1/sessions/full/events"
ASK = f"GET {FULL} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAccept: application/x-ndjson\r\n\r\n".encode()
SIZE = 10_800_000  # More than the kernel keeps for a connection.


@pytest.fixture(scope="module")
def running(shared_database_url):
    with service(database_url=shared_database_url, client_timeout_seconds=PATIENCE) as started:
        event = {"message": {"role": "user", "content": "x" * (SIZE // 12)}}
        for _ in range(12):
            body = {"user_id": "alice", "events": [event]}
            httpx.post(started.url() + FULL, json=body, timeout=60).raise_for_status()
        yield started


@asynccontextmanager
async def connected(running):
    host, port = running.url().removeprefix("http://").split(":")
    # A small window: what is not read stays with the service.
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=client, limit=4096)
        yield reader, writer
        writer.close()


async def until_the_end(reader):
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b"reset"


async def test_who_stands_still_is_let_go_and_who_moves_is_served(running):
    length = f"Content-Length: {len(BODY)}\r\n\r\n".encode()
    *ended, answered, whole = await asyncio.gather(
        sends(running),
        sends(running, b"G"),
        sends(running, HEAD),
        sends(running, HEAD, *[b"X-A: b\r\n"] * 4 * PATIENCE),
        sends(running, HEAD + b"Content-Length: 1000\r\n\r\n", BODY),
        sends(running, HEAD + length, *[bytes([one]) for one in BODY[: 3 * PATIENCE]], BODY[3 * PATIENCE :]),
        reads(running, 3 * PATIENCE),
    )
    assert set(ended) <= {b"", b"reset"}
    assert answered.startswith(b"HTTP/1.1 201")
    assert whole > SIZE


async def test_who_takes_nothing_of_an_answer_is_let_go(running):
    async with connected(running) as (reader, writer), httpx.AsyncClient(base_url=running.url()) as http:
        writer.write(ASK)
        async with asyncio.timeout(60):
            for expected in (2, 1):  # One is the question itself.
                while await in_flight(http) != expected:  # noqa: ASYNC110 (it tells nobody)
                    await asyncio.sleep(0.1)
        assert len(await until_the_end(reader)) < SIZE


async def sends(running, *pieces):
    """What came, once the connection has ended."""
    try:
        async with asyncio.timeout(60), connected(running) as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.5)
            return await reader.read()
    except ConnectionError:
        return b"reset"


async def reads(running, times):
    """How much came, taken slowly at first."""
    size = 0
    async with connected(running) as (reader, writer):
        writer.write(ASK)
        for _ in range(times):
            size += len(await reader.read(4096))
            await asyncio.sleep(0.5)
        return size + len(await reader.read())


async def in_flight(http):
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("turnkeeper_requests_in_flight"))
