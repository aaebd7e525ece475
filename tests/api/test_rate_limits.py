"""A credential that asks too often is told when to come back, in the shape that its client reads."""

import asyncio

import httpx
import pytest
from limits import parse

from app.api.rate_limits import RateLimit
from app.config import SettingsError, load_settings
from tests.api.test_problems import is_problem
from tests.conftest import serving

RARELY = "2/hour"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def test_each_credential_has_its_own_share(shared_database_url):
    async with serving(shared_database_url, api_keys="one,two", rate_limit=RARELY) as client:
        for key in ("one", "two"):
            for _ in range(2):
                assert (await client.get("/v1/sessions", headers=bearer(key))).status_code == 200
            refused = await client.get("/v1/sessions", headers=bearer(key))
            assert is_problem(refused, 429, "rate-limited")
            assert 0 < int(refused.headers["Retry-After"]) <= 3600
            assert "2 per 1 hour" in refused.json()["detail"]


async def test_one_key_has_one_share_however_its_header_is_written(shared_database_url):
    async with serving(shared_database_url, api_keys="one", rate_limit=RARELY) as client:
        for written, status in (("Bearer", 200), ("bearer  ", 200), ("BEARER", 429), ("Bearer \t", 429)):
            headers = {"Authorization": f"{written} one"}
            assert (await client.get("/v1/sessions", headers=headers)).status_code == status


async def test_every_route_is_limited_but_what_tells_of_health(shared_database_url):
    async with serving(shared_database_url, rate_limit=RARELY) as client:
        for _ in range(2):
            assert (await client.get("/v1/sessions")).status_code == 200
        paths = client._transport.app.openapi()["paths"]
        for path, methods in paths.items():
            for method in methods:
                response = await client.request(method, path.replace("{", "x").replace("}", "x"))
                is_open = path in {"/healthz", "/readyz", "/metrics"}
                assert (response.status_code == 429) is not is_open, (method, path)
                if not is_open and method != "head" and path not in {"/v1/chat/completions", "/v1/models"}:
                    assert is_problem(response, 429, "rate-limited")


async def test_openais_clients_get_their_own_error(shared_database_url):
    async with serving(shared_database_url, rate_limit=RARELY) as client:
        for _ in range(3):
            response = await client.post("/v1/chat/completions", json={})
        assert response.status_code == 429
        assert int(response.headers["Retry-After"]) > 0
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")


async def test_mcp_clients_get_an_error_of_json_rpc(shared_database_url):
    async with serving(shared_database_url, rate_limit=RARELY) as client:
        for _ in range(3):
            response = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert response.status_code == 429
        assert int(response.headers["Retry-After"]) > 0
        error = response.json()["error"]
        assert (error["code"], error["data"]["type"]) == (-32600, "urn:turnkeeper:problem:rate-limited")


async def test_the_body_of_a_refused_request_is_not_read(shared_database_url):
    async with serving(shared_database_url, rate_limit=RARELY) as client:
        for _ in range(2):
            await client.get("/v1/sessions")
        read = False

        async def body():
            nonlocal read
            read = True
            yield b"{"

        assert (await client.post("/v1/sessions", content=body())).status_code == 429
        assert not read


async def test_wrong_credentials_use_up_nobodys_share(shared_database_url):
    async with serving(shared_database_url, api_keys="one", rate_limit=RARELY) as client:
        for _ in range(5):
            assert (await client.get("/v1/sessions", headers=bearer("wrong"))).status_code == 401
        assert (await client.get("/v1/sessions", headers=bearer("one"))).status_code == 200


async def test_it_is_over_when_the_window_is(shared_database_url):
    async with serving(shared_database_url, rate_limit="1/second") as client:
        async with asyncio.timeout(30):
            while (refused := await client.get("/v1/sessions")).status_code != 429:
                pass
            assert refused.headers["Retry-After"] == "1"
            while (await client.get("/v1/sessions")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_memory_is_bounded_and_no_flood_of_credentials_locks_another_out():
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimit(answer, limits=[parse(RARELY)], max_credentials=100)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://x") as client:
        for number in range(1000):
            assert (await client.get("/", headers=bearer(number))).status_code == 204
        assert len(limited._limiter.storage._windows) == 100
        for status in (204, 204, 429, 429):
            assert (await client.get("/", headers=bearer("mine"))).status_code == status


@pytest.mark.parametrize("rate", ["many", "100", "0/minute", "10/fortnight", "10/minute nonsense", "-1/minute"])
def test_what_is_no_rate_is_a_sentence(monkeypatch, rate):
    monkeypatch.setenv("TURNKEEPER_RATE_LIMIT", rate)
    with pytest.raises(SettingsError, match="TURNKEEPER_RATE_LIMIT: This is no rate"):
        load_settings()


@pytest.mark.parametrize(("rate", "count"), [("off", 0), ("", 0), ("100/minute", 1), ("10 per second; 9/2 hours", 2)])
def test_rates(monkeypatch, rate, count):
    monkeypatch.setenv("TURNKEEPER_RATE_LIMIT", rate)
    assert len(load_settings().rate_limit) == count
