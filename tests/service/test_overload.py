"""More than the service can do at once: bounded answers of documented kinds, and everything as before afterwards."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest

from tests.service.process import service
from tests.service.scraping import scraped, until

SETTINGS = {"pool_size": 2, "pool_timeout_seconds": 0.3, "statement_timeout_ms": 1_000, "max_body_bytes": 10_000}
JSON = {"Content-Type": "application/json"}
APPEND = {"user_id": "alice", "events": [{"message": {"role": "user", "content": "x"}}]}
REQUESTS = (
    ("POST", "/v1/sessions/s/events", APPEND),
    ("GET", "/v1/sessions/s/context", None),
    ("POST", "/v1/users/alice/search", {"query": "quinoa"}),
    ("PUT", "/v1/memories/alice/file?path=a.md", None),
)


@pytest.fixture(scope="module")
def running(shared_database_url):
    with service(database_url=shared_database_url, **SETTINGS) as started:
        yield started


@pytest.fixture
async def http(running):
    async with httpx.AsyncClient(base_url=running.url(), timeout=60) as client:
        (await client.post("/v1/sessions/s/events", json=APPEND)).raise_for_status()
        yield client


async def ask(http, times):
    return await asyncio.gather(*(http.request(m, path, json=body) for m, path, body in REQUESTS * times))


@asynccontextmanager
async def locked_tables(url):
    """Whatever is asked takes as long as a statement may."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE sessions, events, memory_files IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


async def test_a_pool_of_two_under_many_slow_requests_refuses_and_recovers(http, shared_database_url):
    before = await scraped(http)
    async with locked_tables(shared_database_url):
        asking = asyncio.create_task(ask(http, times=30))
        await until(http, lambda figures: figures.value("pool_timeouts_total") > 10, before)
        assert (await http.get("/healthz")).status_code == 200
        answers = await asking
    for answer in answers:
        # A search that runs into the statement timeout is told to be too broad.
        assert answer.status_code == 503 or answer.json()["type"].endswith(":search-too-broad"), answer.text
        assert answer.status_code != 503 or int(answer.headers["Retry-After"]) > 0
    assert sum(answer.status_code == 503 for answer in answers) > len(answers) / 2
    for answer in await ask(http, times=1):
        assert answer.status_code < 500, answer.text
    idle = await until(http, lambda figures: not figures.value("pool_in_use") and not figures.value("pool_waiting"))
    assert idle.value("pool_size", pool="log") == 2
    answers = await ask(http, times=10)
    assert {answer.status_code for answer in answers if answer.request.method != "PUT"} <= {200, 201, 503}
    assert (await http.get("/v1/sessions/s/context")).status_code == 200


async def test_a_body_that_is_too_large_is_refused_however_it_comes(http):
    # More than the buffers of a connection hold: the client is still writing when it is refused.
    body = json.dumps(APPEND | {"metadata": {"a": "x" * 8_000_000}}).encode()

    async def in_chunks():
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    for content in (body, in_chunks()):
        answer = await http.post(
            "/v1/sessions/s/events", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413, answer.text
        assert answer.json()["type"].endswith(":body-too-large")
    unread = await http.post("/v1/sessions", content=body, headers=JSON | {"Origin": "https://elsewhere.example"})
    assert unread.status_code == 403
    chat = await http.post("/v1/chat/completions", content=body, headers=JSON)
    assert (chat.status_code, chat.json()["error"]["code"]) == (413, "body_too_large")
    file = await http.put("/v1/memories/alice/file?path=a.md", content=body)
    assert file.status_code == 413


async def test_a_client_that_never_ends_its_body_is_cut_off(running):
    host, port = running.url().removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\n\r\n{")
    async with asyncio.timeout(60):
        assert b" 413 " in await reader.read()
    writer.close()


async def test_a_body_without_a_length_is_taken(http):
    async def in_chunks():
        yield json.dumps(APPEND).encode()

    answer = await http.post(
        "/v1/sessions/s/events", content=in_chunks(), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 201


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate"])
async def test_a_compressed_body_is_never_unpacked(http, encoding):
    """A small one may be large inside."""
    body = gzip.compress(json.dumps(APPEND | {"metadata": {"a": "x" * 1_000_000}}).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    version = (await http.get("/v1/sessions/s")).json()["event_version"]
    answer = await http.post("/v1/sessions/s/events", content=body, headers=headers)
    assert answer.status_code == 422, answer.text
    assert (await http.get("/v1/sessions/s")).json()["event_version"] == version
