"""Memory stays flat while any number of events is streamed."""

import asyncio

import httpx
import pytest
from sqlalchemy import text

from tests.conftest import database_at
from tests.service.process import service

EVENTS = 200_000
ALLOWED = 50 * 1024 * 1024

_FILL = """
WITH base AS (SELECT * FROM events LIMIT 1), new AS (
    INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                        tokens, synthetic, recall_result, metadata)
    SELECT session_key, seq + n * 1024, 'n' || n, user_id, type, timestamp + n * interval '1 second',
           json_build_object('role', 'user', 'content', repeat('word ', 40) || n), digest, NULL, 1, false, false, '{}'
    FROM base, generate_series(1, :count) n RETURNING session_key, seq, type
) INSERT INTO active_events SELECT * FROM new
"""
_COUNT = "UPDATE sessions SET event_count = :count + 1, event_version = :count + 1, last_seq = (:count + 1) * 1024"


@pytest.fixture
async def filled(database_url):
    with service(database_url=database_url, statement_timeout_ms=60_000) as running:
        async with httpx.AsyncClient(base_url=running.url()) as http:
            event = {"id": "first", "message": {"role": "user", "content": "first"}}
            body = {"user_id": "alice", "events": [event]}
            assert (await http.post("/v1/sessions/s/events", json=body)).status_code == 201
        db = database_at(database_url)
        async with db.autocommit() as connection:
            await connection.execute(text("SET statement_timeout = 0"))
            await connection.execute(text(_FILL), {"count": EVENTS})
            await connection.execute(text(_COUNT), {"count": EVENTS})
            await connection.execute(text("ANALYZE"))  # As autovacuum would: it is off in the tests.
        await db.close()
        yield running


async def test_memory_is_flat_while_200000_events_are_streamed(filled):
    ndjson = {"Accept": "application/x-ndjson"}
    before = None
    async with httpx.AsyncClient(base_url=filled.url(), timeout=120) as http:
        for path in ("/v1/sessions/s/events", "/v1/users/alice/events", "/v1/users/alice/export"):
            # One pass of a tenth first: what a process takes once (caches, connections) is not what grows.
            lines, highest = 0, 0
            async with http.stream("GET", path, headers=ndjson) as response:
                async for chunk in response.aiter_bytes(1024 * 1024):
                    lines += chunk.count(b"\n")
                    if before is None and lines > EVENTS // 10:
                        before = filled.memory
                    highest = max(highest, filled.memory)
            assert lines == EVENTS + (2 if path.endswith("export") else 1)
            assert highest - before < ALLOWED, f"{path}: {(highest - before) / 1e6:.0f} MB"
            await asyncio.sleep(0)
