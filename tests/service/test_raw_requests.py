"""Thousands of hostile requests, byte for byte: no 5xx, no hang, every refusal a problem, nothing written by it."""

import asyncio
import random

import asyncpg
import httpx
import pytest

from tests.service.hostile import EVENTS, Operation, hostile
from tests.service.process import service
from tests.service.raw_http import check, send
from tests.upstream import Answer as UpstreamAnswer
from tests.upstream import scripted_upstream


@pytest.fixture(scope="module")
def running(shared_database_url):
    with (
        scripted_upstream() as upstream,
        service(database_url=shared_database_url, upstream_url=upstream.url) as started,
    ):
        upstream.reset(UpstreamAnswer("Noted."))
        yield started


@pytest.fixture(scope="module")
def address(running):
    host, port = running.url().removeprefix("http://").split(":")
    return host, int(port)


@pytest.fixture(scope="module")
def operations(running):
    paths = httpx.get(f"{running.url()}/openapi.json").json()["paths"]
    return [
        Operation(
            operation["operationId"],
            method.upper(),
            path,
            tuple(p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"),
        )
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


@pytest.fixture
async def state(shared_database_url):
    """What a refused request must not change; a few sessions to refuse things about."""
    connection = await asyncpg.connect(shared_database_url.replace("+asyncpg", ""))

    async def read():
        return await connection.fetch(
            "SELECT s.key, s.user_id, s.event_version, s.metadata::text, s.expires_at, count(e.seq), sum(e.seq) "
            "FROM sessions s LEFT JOIN events e ON e.session_key = s.key WHERE s.deleted_at IS NULL "
            "AND coalesce(s.expires_at > now() + interval '10 minutes', true) GROUP BY s.key ORDER BY s.key"
        )

    yield read
    await connection.close()


@pytest.mark.parametrize("requests", [2500, pytest.param(60_000, marks=pytest.mark.long)])
async def test_hostile_requests_are_refused_and_change_nothing(running, address, operations, state, requests):
    chance = random.Random(requests)
    before, statuses = await state(), set()
    for number in range(requests):
        if number % 100 == 0:
            seed(running)
            before = await state()
        request = hostile(chance, chance.choice(operations))
        try:
            answer = await asyncio.to_thread(send, address, request)
            check(answer)
        except Exception as error:
            error.add_note(f"request {number}: {request[:3000]!r}")
            raise
        statuses.add(answer.status)
        after = await state()
        assert answer.status < 400 or after == before, f"request {number} was refused, but wrote: {request[:3000]!r}"
        before = after
    assert {200, 201, 204, 403, 404, 409, 412, 415, 421, 422} <= statuses


BROKEN = (
    b"",
    b"\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/sessions\r\n\r\n",
    b"GET /v1/sessions HTTP/1.1\r\n\r\n",
    b"GET /v1/sess\xffions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://evil.example/v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET //evil.example/v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"PROPFIND /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"HEAD /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
    b"GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nBad Header: 1\r\n\r\n",
    b"GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    b"GET /v1/sessions/" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    *(
        b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + rest
        for rest in (
            b'Content-Length: 50\r\n\r\n{"user_id": "bro',
            b'Content-Length: -1\r\n\r\n{"user_id": "broken"}',
            b'Content-Length: 21, 22\r\n\r\n{"user_id": "broken"}',
            b'Content-Length: 999999999999999999999999\r\n\r\n{"user_id": "broken"}',
            b'Content-Length: 99999999999\r\n\r\n{"user_id": "broken"}',
            b'Transfer-Encoding: chunked\r\n\r\n15\r\n{"user_id": "bro',
            b'Transfer-Encoding: chunked\r\n\r\n15\r\n{"user_id": "broken"}\r\n',
            b'Transfer-Encoding: chunked\r\n\r\nzz\r\n{"user_id": "broken"}\r\n0\r\n\r\n',
            b'Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n{"user_id": "broken"}\r\n0\r\n\r\n',
            b'Transfer-Encoding: gzip\r\n\r\n{"user_id": "broken"}',
            b'Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n15\r\n{"user_id": "broken"}\r\n0\r\n\r\n',
        )
    ),
)


@pytest.mark.parametrize("number", range(len(BROKEN)))
async def test_broken_http_is_answered_or_hung_up_on(address, state, number):
    before = await state()
    answer = await asyncio.to_thread(send, address, BROKEN[number], hang_up=True)
    if answer is not None:
        check(answer)
    assert await state() == before


def seed(running):
    """Put back what requests that were accepted have taken away."""
    with httpx.Client(base_url=running.url()) as http:
        for session, user in (("s", "alice"), ("a", "bob")):
            http.delete(f"/v1/sessions/{session}")
            made = {"user_id": user, "expires_at": None, "metadata": {"a": 1}}
            assert http.put(f"/v1/sessions/{session}", json=made).status_code == 201
            assert http.post(f"/v1/sessions/{session}/events", json={"events": EVENTS[:1]}).status_code == 201
