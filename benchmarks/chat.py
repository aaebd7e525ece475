"""What a chat costs beyond its upstream: turns, and how long a chunk is on its way."""

import asyncio
import json
import re
import time
from statistics import median

from benchmarks.client import post

SESSIONS = 50
QUESTION = {
    "role": "user",
    "content": "We decided to keep the log in PostgreSQL, and to measure before we praise it.",
}


def turns(prefix: str) -> list[bytes]:
    """Requests of turns in several sessions, so that no history becomes long."""
    return [
        post("/v1/chat", {"session_id": f"{prefix}-{n}", "messages": [QUESTION], "filter": {"last_n": 20}})
        for n in range(SESSIONS)
    ]


def first_chunks(port: int, *, seconds: float) -> float:
    """Milliseconds between the upstream's first chunk and its arrival at a client, the middle one."""
    return asyncio.run(_first_chunks(port, seconds))


async def _first_chunks(port: int, seconds: float) -> float:
    requests = [
        post(
            "/v1/chat",
            {"session_id": f"stream-{n}", "messages": [QUESTION], "filter": {"last_n": 20}, "stream": True},
        )
        for n in range(SESSIONS)
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        writer.write(requests[len(taken) % SESSIONS])
        arrived = await _first_chunk(reader)
        taken.append(arrived)
    writer.close()
    return median(taken)


async def _first_chunk(reader: asyncio.StreamReader) -> float:
    delay = None
    while True:
        line = await reader.readline()
        if delay is None and (found := re.search(rb"sent (\d+) ", line)):
            delay = (time.monotonic_ns() - int(found[1])) / 1e6
        if line.startswith(b"data: [DONE]"):
            while await reader.readline() != b"0\r\n":
                pass
            await reader.readline()
            if delay is None:
                raise RuntimeError(json.dumps({"error": "no chunk says when it was sent"}))
            return delay
