"""Every error is a problem document, whoever found it."""

import asyncio

import httpx
import pytest
from sqlalchemy import text

from app.api.problems import PROBLEMS
from app.config import Settings
from app.domain import errors
from app.main import create_app
from tests.conftest import serving

JSON = {"Content-Type": "application/json"}


def is_problem(response, status, slug):
    body = response.json()
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:turnkeeper:problem:{slug}"
    assert body["status"] == status
    assert body["detail"]
    assert body["request_id"] == response.headers["X-Request-Id"]
    return True


async def test_what_the_framework_finds_is_a_problem_too(shared_client):
    assert is_problem(await shared_client.get("/v1/nothing"), 404, "not-found")
    assert is_problem(await shared_client.get("/"), 404, "not-found")
    refused = await shared_client.delete("/v1/tools")
    assert is_problem(refused, 405, "method-not-allowed")
    assert refused.headers["Allow"] == "GET"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    response = await shared_client.post("/v1/sessions", content=b'{"user_id": "a"}', headers=form)
    assert is_problem(response, 415, "unsupported-media-type")
    assert is_problem(await shared_client.post("/v1/sessions", content=b"{", headers=JSON), 422, "invalid-request")


async def test_all_methods_of_a_path_are_allowed(shared_client):
    refused = await shared_client.put("/v1/sessions", json={})
    assert is_problem(refused, 405, "method-not-allowed")
    assert refused.headers["Allow"] == "GET, POST"


@pytest.mark.parametrize("path", ["a%2Fb", "victim%2fevents", "x%FF", "caf%E9", "s?user_id=%ED%A0%80"])
async def test_a_url_that_would_be_read_as_another_is_422(shared_client, path):
    assert is_problem(await shared_client.get(f"/v1/sessions/{path}"), 422, "invalid-request")


async def test_a_body_over_the_limit_is_413_announced_or_not(database_url):
    async def chunks():
        for _ in range(20):
            yield b" " * 100

    async with serving(database_url, max_body_bytes=1_000) as client:
        for content in (b" " * 1_001, chunks()):
            response = await client.post("/v1/sessions", content=content, headers=JSON)
            assert is_problem(response, 413, "body-too-large")
        fits = await client.post("/v1/sessions", content=b'{"user_id": "a"}'.ljust(1_000), headers=JSON)
        assert fits.status_code == 201


async def test_a_request_id_is_taken_over_when_it_is_sane(shared_client):
    for given, kept in [("trace-1", True), ("x" * 129, False), ("a\tb", False)]:
        response = await shared_client.get("/healthz", headers={"X-Request-Id": given})
        assert (response.headers["X-Request-Id"] == given) is kept


async def test_keys_guard_every_route_but_the_open_ones(database_url):
    async with serving(database_url, api_keys="one, two") as client:
        assert is_problem(await client.get("/v1/sessions"), 401, "unauthorized")
        for authorization in ("", "Bearer", "Bearer three", "Basic one", "Bearer one two", "Bearer ključ"):
            headers = {"Authorization": authorization.encode()}
            assert is_problem(await client.get("/v1/sessions", headers=headers), 401, "unauthorized")
            bad = await client.post("/v1/sessions", content=b"{", headers=headers | JSON)
            assert bad.status_code == 401, "who may not ask is not told what is wrong with the question"
        for key in ("one", "two"):
            headers = {"Authorization": f"bearer {key}"}
            assert (await client.get("/v1/sessions", headers=headers)).status_code == 200
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert (await client.get(path)).status_code == 200


async def test_without_keys_only_this_machine_is_served(shared_client):
    for host in ("evil.example", "127.0.0.1.evil.example", "", "10.0.0.1"):
        assert (await shared_client.get("/healthz", headers={"Host": host})).status_code == 421
    for host in ("localhost:8088", "127.0.0.1", "[::1]:8088"):
        assert (await shared_client.get("/healthz", headers={"Host": host})).status_code == 200
    for origin in ("https://evil.example", "null", "http://localhost:9999"):
        assert is_problem(await shared_client.get("/healthz", headers={"Origin": origin}), 403, "forbidden")
    own = {"Origin": "http://127.0.0.1"}
    assert (await shared_client.get("/healthz", headers=own)).status_code == 200


async def test_readiness_tells_of_the_database(client, db):
    body = (await client.get("/readyz")).json()
    assert body["status"] == "ready"
    assert body["pools"]["log"]["size"] == 20


async def test_a_database_that_is_gone_is_503(postgres):
    nowhere = postgres.database_url("no_such_database")
    app = create_app(Settings(_env_file=None), database_url=nowhere)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/healthz")).status_code == 200
        for path in ("/readyz", "/v1/sessions", "/v1/sessions/s/events"):
            response = await client.get(path)
            assert is_problem(response, 503, "database-unavailable")
            assert response.headers["Retry-After"]


async def test_a_database_that_is_not_migrated_is_503(postgres):
    app = create_app(Settings(_env_file=None), database_url=postgres.database_url("postgres"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert is_problem(await client.get("/readyz"), 503, "not-migrated")
    await app.state.services.db.close()


async def test_a_pool_that_is_used_up_is_503_and_recovers(database_url, db):
    async with serving(database_url, pool_size=1, pool_timeout_seconds=0.2, statement_timeout_ms=3_000) as client:
        await client.put("/v1/sessions/s", json={"user_id": "alice"})
        append = {"events": [{"message": {"role": "user", "content": "x"}}]}
        async with db.transaction() as holder:
            await holder.execute(text("SELECT FROM sessions WHERE id = 's' FOR UPDATE"))
            waiting = asyncio.create_task(client.post("/v1/sessions/s/events", json=append))
            await asyncio.sleep(0.2)
            assert is_problem(await client.get("/v1/sessions/s"), 503, "overloaded")
        assert (await waiting).status_code == 201
        assert (await client.get("/v1/sessions/s")).status_code == 200


@pytest.mark.parametrize("error", [e for e in vars(errors).values() if isinstance(e, type)])
def test_every_domain_error_has_a_problem(error):
    if issubclass(error, errors.DomainError) and error is not errors.DomainError:
        assert error in PROBLEMS
