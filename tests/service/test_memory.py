"""Memory stays flat while any number of events is streamed."""

from contextlib import asynccontextmanager

import httpx
import pytest
from sqlalchemy import text

from tests.conftest import database_at
from tests.service.process import service

ALLOWED = 50 * 1024 * 1024

PATHS = ("/v1/sessions/s/events", "/v1/users/alice/events", "/v1/users/alice/export")
NDJSON = {"Accept": "application/x-ndjson"}

_FILL = """
WITH base AS (SELECT * FROM events LIMIT 1), new AS (
    INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                        tokens, synthetic, recall_result, metadata)
    SELECT session_key, seq + n * 1024, 'n' || n, user_id, type, timestamp + n * interval '1 second',
           json_build_object('role', 'user', 'content', words || n), digest, words || n, 1, false, false, '{}'
    FROM base, generate_series(1, :count) n, repeat('word ', :words) words RETURNING session_key, seq, type
) INSERT INTO active_events SELECT * FROM new
"""
_COUNT = "UPDATE sessions SET event_count = :count + 1, event_version = :count + 1, last_seq = (:count + 1) * 1024"


@asynccontextmanager
async def filled(database_url, *, count, words):
    """A service with one session of so many events of so many words, filled past it."""
    with service(database_url=database_url, statement_timeout_ms=60_000) as running:
        async with httpx.AsyncClient(base_url=running.url(), timeout=120) as http:
            event = {"id": "first", "message": {"role": "user", "content": "first"}}
            body = {"user_id": "alice", "events": [event]}
            assert (await http.post("/v1/sessions/s/events", json=body)).status_code == 201
            db = database_at(database_url)
            async with db.autocommit() as connection:
                await connection.execute(text("SET statement_timeout = 0"))
                # What it takes to search so many words is the business of other tests.
                await connection.execute(text("DROP INDEX events_search"))
                await connection.execute(text(_FILL), {"count": count, "words": words})
                await connection.execute(text(_COUNT), {"count": count})
                await connection.execute(text("ANALYZE"))  # As autovacuum would: it is off in the tests.
            await db.close()
            yield running, http


async def highest_while_reading(running, http, path):
    """Lines, and the most memory that the service took meanwhile."""
    lines, highest = 0, 0
    async with http.stream("GET", path, headers=NDJSON) as response:
        async for chunk in response.aiter_bytes(1024 * 1024):
            lines += chunk.count(b"\n")
            highest = max(highest, running.memory)
    return lines, highest


# 100,000 of them, held at once, are 91 MB as the domain has them: more than is allowed.
@pytest.mark.parametrize("count", [100_000, pytest.param(200_000, marks=pytest.mark.long)])
async def test_memory_is_flat_while_events_are_streamed(database_url, count):
    async with filled(database_url, count=count, words=80) as (running, http):
        # What a process takes once (caches, connections) is not what grows.
        for path in PATHS[:2]:
            assert len((await http.get(path, params={"page_size": 5000})).json()["events"]) == 5000
        before = running.memory
        for path in PATHS:
            lines, highest = await highest_while_reading(running, http, path)
            assert lines == count + (2 if path.endswith("export") else 1)
            assert highest - before < ALLOWED, f"{path}: {(highest - before) / 1e6:.0f} MB"


async def test_memory_is_flat_while_messages_of_1_mb_are_streamed(database_url):
    """They compress to a hundredth: a batch is bounded by what they take when they are read."""
    async with filled(database_url, count=100, words=200_000) as (running, http):
        before = running.memory
        for path in PATHS:
            lines, highest = await highest_while_reading(running, http, path)
            assert lines == 100 + (2 if path.endswith("export") else 1)
            assert highest - before < ALLOWED, f"{path}: {(highest - before) / 1e6:.0f} MB"
