"""The database away, frozen or busy, and callers that hang up: answers in time, and a service that heals itself."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import asyncpg
import httpx
import psutil
import pytest

from app.storage.embedded import EmbeddedPostgres
from tests.service.process import service

POOL_TIMEOUT = 0.5
STATEMENT_TIMEOUT = 1.0
SETTINGS = {
    "pool_size": 3,
    "pool_timeout_seconds": POOL_TIMEOUT,
    "statement_timeout_ms": int(STATEMENT_TIMEOUT * 1000),
}
# A loaded machine runs late; a hang is far beyond that.
SLACK = 5

WORD = "quinoa"  # What must be found in no log.
APPEND = {"user_id": "alice", "events": [{"message": {"role": "user", "content": WORD}}]}
CALLS = (
    ("POST", "/v1/sessions/s/events", APPEND),
    ("GET", "/v1/sessions/s", None),
    ("GET", "/v1/sessions/s/events", None),
    ("PATCH", "/v1/sessions/s", {"metadata": {"a": 1}}),
    ("POST", "/v1/users/alice/search", {"query": WORD}),
    ("GET", "/v1/users/alice/export", None),
    ("GET", "/readyz", None),
)


@contextmanager
def on_own_postgres(folder):
    """A service, and the PostgreSQL that it uses, which the test may stop."""
    with EmbeddedPostgres.start(folder) as postgres:
        postgres.ensure_database("turnkeeper")
        with service(database_url=postgres.database_url("turnkeeper"), **SETTINGS) as running:
            yield running, postgres
        assert WORD not in running.log


@asynccontextmanager
async def calling(running):
    async with httpx.AsyncClient(base_url=running.url(), timeout=30) as http:
        yield http


async def all_calls(http, times=1):
    return await asyncio.gather(*(http.request(m, path, json=body) for m, path, body in CALLS * times))


def is_busy(response):
    """A 503 that says when to come back."""
    return (
        response.status_code == 503
        and response.headers["content-type"] == "application/problem+json"
        and int(response.headers["Retry-After"]) > 0
    )


async def until_well(http):
    async with asyncio.timeout(30):
        while not all(response.is_success for response in await all_calls(http)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_database_that_stops_is_503_at_once_and_is_found_again(folder):
    with on_own_postgres(folder) as (running, postgres):
        async with calling(running) as http:
            await until_well(http)
            await asyncio.to_thread(postgres.stop)
            for _ in range(3):
                started = time.monotonic()
                responses = await all_calls(http, times=3)
                assert time.monotonic() - started < POOL_TIMEOUT + SLACK
                assert all(map(is_busy, responses))
                assert (await http.get("/healthz")).status_code == 200
            with EmbeddedPostgres.start(folder):
                await until_well(http)
                assert all(response.is_success for response in await all_calls(http, times=3))


async def test_a_frozen_database_keeps_nobody_waiting(folder):
    """As a network that swallows packets does: no connection breaks, and nothing answers."""
    with on_own_postgres(folder) as (running, postgres):
        async with calling(running) as http:
            await until_well(http)
            frozen = [psutil.Process(postgres.pid), *psutil.Process(postgres.pid).children(recursive=True)]
            try:
                for process in frozen:
                    process.suspend()
                for _ in range(2):
                    started = time.monotonic()
                    responses = await all_calls(http, times=3)
                    assert time.monotonic() - started < 3 * (POOL_TIMEOUT + STATEMENT_TIMEOUT) + SLACK
                    assert all(map(is_busy, responses))
            finally:
                for process in frozen:
                    process.resume()
            await until_well(http)
            assert all(response.is_success for response in await all_calls(http, times=3))


async def test_callers_behind_a_held_lock_do_not_pile_up(database_url):
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    with service(database_url=database_url, **SETTINGS) as running:
        async with calling(running) as http:
            assert (await http.post("/v1/sessions/s/events", json=APPEND)).status_code == 201
            async with connection.transaction():
                await connection.execute("SELECT FROM sessions WHERE id = 's' FOR UPDATE")
                started = time.monotonic()
                appends = [http.post("/v1/sessions/s/events", json=APPEND) for _ in range(60)]
                responses = await asyncio.gather(*appends)
                assert time.monotonic() - started < POOL_TIMEOUT + 2 * STATEMENT_TIMEOUT + SLACK
                assert all(map(is_busy, responses))
                # Searches have connections of their own.
                assert (await http.post("/v1/users/alice/search", json={"query": WORD})).status_code == 200
            assert (await http.post("/v1/sessions/s/events", json=APPEND)).status_code == 201
            assert (await http.get("/v1/sessions/s")).json()["event_version"] == 2
            await until_unused(http)
    await connection.close()


async def test_callers_that_hang_up_leave_nothing_behind(database_url):
    with service(database_url=database_url, **SETTINGS) as running:
        async with calling(running) as http:
            long = {"user_id": "alice", "events": APPEND["events"] * 1000}
            for _ in range(5):
                (await http.post("/v1/sessions/s/events", json=long)).raise_for_status()
            host, port = running.url().removeprefix("http://").split(":")
            requests = [
                ("GET /v1/sessions/s/events", "Accept: application/x-ndjson", ""),
                ("GET /v1/users/alice/export", "Accept: */*", ""),
                ("GET /v1/users/alice/events?page_size=5000", "Accept: */*", ""),
                ("POST /v1/sessions", "Content-Length: 99", '{"user_id"'),
                ("POST /v1/users/alice/tools/cross_session_search", "Content-Length: 99", "{"),
                ("POST /v1/sessions", "Transfer-Encoding: chunked", "20\r\n{"),
            ]
            async with AsyncExitStack() as stack:
                for number, (line, header, body) in enumerate(requests * 8):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    stack.callback(writer.close)
                    writer.write(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n{body}".encode())
                    await writer.drain()
                    if number % 2 and line.startswith("GET"):
                        await reader.read(1000)
                    if number % 4 < 2:
                        writer.transport.abort()
            await until_unused(http)
            assert (await http.post("/v1/sessions/s/events", json=APPEND)).status_code == 201


async def until_unused(http):
    async with asyncio.timeout(20):
        while True:
            pools = (await http.get("/readyz")).json().get("pools", {"": {"in_use": 1}})
            if not any(pool["in_use"] for pool in pools.values()):
                return
            await asyncio.sleep(0.05)


async def test_what_nobody_expected_is_told_by_id_and_without_content(database_url):
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    with service(database_url=database_url, may_crash=True) as running:
        async with calling(running) as http:
            await connection.execute("ALTER TABLE events RENAME COLUMN digest TO moved")
            headers = {"X-Request-Id": "trace-500", "Authorization": f"Bearer {WORD}"}
            response = await http.post("/v1/sessions/s/events", json=APPEND, headers=headers)
    await connection.close()
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "trace-500" in response.json()["detail"]
    for secret in (WORD, "digest", "SELECT", "/app/"):
        assert secret not in response.text
    assert WORD not in running.log
    crash = next(json.loads(line) for line in running.lines if "request_crashed" in line)
    assert crash["request_id"] == "trace-500"
    assert any("storage/append.py" in frame for error in crash["exception"] for frame in error["frames"])


async def test_a_stream_whose_database_goes_away_breaks_off(folder):
    """The reader must not take what it has for everything."""
    with on_own_postgres(folder) as (running, postgres):
        async with calling(running) as http:
            # More than sockets hold; an image, as counting its tokens takes no time.
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{WORD * 200_000}"}}
            long = {"user_id": "alice", "events": [{"message": {"role": "user", "content": [image]}}]}
            for _ in range(16):
                (await http.post("/v1/sessions/s/events", json=long)).raise_for_status()
            async with http.stream("GET", "/v1/users/alice/export") as response:
                assert response.status_code == 200
                await asyncio.to_thread(postgres.stop)
                with pytest.raises(httpx.RemoteProtocolError):
                    await response.aread()
    assert '"answer_broken_off"' in running.log
    for line in running.lines[2:]:
        assert not line.strip() or json.loads(line)["event"]
