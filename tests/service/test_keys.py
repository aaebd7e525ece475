"""Who is let in: with keys, whoever has one; without, this machine alone."""

import http.client
import json
import re

import httpx
import pytest

from app.api.gate import OPEN_PATHS
from tests.service.process import service

KEY = "the-first-key"
OTHER = "the-second-key"
# fmt: off
WRONG = (
    "", " ", "Bearer", "Bearer ", "Bearer  ", "Bearer\t", "bearer null", "Bearer *", "Bearer wrong",
    *(f"Bearer {KEY}{end}" for end in ("x", " x", ",", "\xa0", "%20", "é")),
    *(f"Bearer {start}{KEY}" for start in ("x", "x ", '"', "Bearer ")),
    *(f"{scheme} {KEY}" for scheme in ("Basic", "Token", "Bearer:", "Bearerx", "", "Digest")),
    KEY, KEY.upper(), f"Bearer {KEY.upper()}", f"Bearer {KEY[:-1]}", f"Bearer {KEY},{OTHER}",
    f"Bearer {KEY}\u0301", "Bearer ключ", "Bearer \xff\xfe", f"Bearer {'x' * 10_000}",
)
# fmt: on


@pytest.fixture(scope="module")
def guarded(shared_database_url):
    with service(database_url=shared_database_url, api_keys=f" {KEY} ,{OTHER},") as started:
        yield started
        assert KEY not in started.log
        assert OTHER not in started.log


@pytest.fixture(scope="module")
def caller(guarded):
    with httpx.Client(base_url=guarded.url(), timeout=30) as client:
        yield client


def routes(caller):
    for path, methods in caller.get("/openapi.json").json()["paths"].items():
        for method in methods:
            yield method.upper(), re.sub(r"\{\w+\}", "x", path), path


def is_unauthorized(caller, method, path, authorization=None):
    """httpx would tidy paths and headers."""
    connection = http.client.HTTPConnection(caller.base_url.host, caller.base_url.port, timeout=20)
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    connection.request(method, path, headers=headers)
    with connection.getresponse() as response:
        body = response.read()
    connection.close()
    if method == "HEAD":
        says_so = not body
    elif response.headers["Content-Type"] == "application/json":  # where OpenAI's SDKs call
        says_so = json.loads(body)["error"]["code"] == "unauthorized"
    else:
        assert response.headers["Content-Type"] == "application/problem+json"
        says_so = json.loads(body)["type"] == "urn:turnkeeper:problem:unauthorized"
    return response.status == 401 and response.headers["WWW-Authenticate"] == "Bearer" and says_so


def test_every_route_but_the_open_ones_refuses_every_wrong_key(caller):
    walked = 0
    for method, path, template in routes(caller):
        if template in OPEN_PATHS:
            assert caller.request(method, path).status_code == 200
            continue
        walked += 1
        for wrong in (None, *WRONG):
            assert is_unauthorized(caller, method, path, wrong), (method, path, wrong)
    assert walked >= 18


def test_what_is_no_route_is_as_closed(caller):
    """Else a stranger could tell which paths there are."""
    near = ("//healthz", "/healthz/", "/healthz/..", "/healthz%2F", "/healthz;x", "/HEALTHZ", "/v1/../healthz")
    for path in ("/", "/v1", "/v1/sessions/", "/docs/oauth2-redirect", "/redoc", "/openapi.yaml", *near):
        for method in ("GET", "POST", "OPTIONS", "TRACE"):
            assert is_unauthorized(caller, method, path), (method, path)


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_each_key_opens_every_route(caller, key):
    for scheme in ("Bearer", "bearer", "BEARER"):
        for method, path, _ in routes(caller):
            response = caller.request(method, path, headers={"Authorization": f"{scheme} {key}"})
            assert response.status_code not in {401, 403, 421}, (method, path)


def test_with_keys_any_host_and_origin_is_served(caller):
    headers = {"Authorization": f"Bearer {KEY}", "Host": "memory.example", "Origin": "https://app.example"}
    assert caller.get("/v1/sessions", headers=headers).status_code == 200


def test_only_named_hosts_are_served_where_some_are_named(database_url):
    settings = {"database_url": database_url, "api_keys": KEY, "allowed_hosts": "memory.example, other.example"}
    with service(**settings) as running, httpx.Client(base_url=running.url()) as client:
        for host, status in (("memory.example", 200), ("OTHER.example:8088", 200), ("evil.example", 421), ("", 421)):
            headers = {"Authorization": f"Bearer {KEY}", "Host": host}
            assert client.get("/v1/sessions", headers=headers).status_code == status


def test_without_keys_no_other_web_page_reaches_any_route(running):
    """One of another origin sends its Origin, one whose name was bound to this machine (DNS rebinding) its Host."""
    port = running.url().rsplit(":", 1)[1]
    hosts = ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "[::1", "")
    hosts += ("10.0.0.1", "[::2]", "127.0.0.1@evil.example", "2130706433", f"localhost.:{port}")
    origins = ("http://evil.example", "null", "http://[", "", "127.0.0.1", f"http://localhost:{port}", "file://")
    origins += (
        "http://127.0.0.1:1",
        f"http://127.0.0.1:{port}@evil.example",
        f"http://127.0.0.1:{port}.evil.example",
    )
    with httpx.Client(base_url=running.url()) as client:
        for method, path, _ in routes(client):
            for host in hosts:
                assert client.request(method, path, headers={"Host": host}).status_code == 421, (path, host)
            for origin in origins:
                assert client.request(method, path, headers={"Origin": origin}).status_code == 403, (path, origin)
        for host in (f"localhost:{port}", "LOCALHOST", "127.0.0.1", "127.1.2.3", f"[::1]:{port}"):
            assert client.get("/v1/sessions", headers={"Host": host}).status_code == 200, host
        assert client.get("/v1/sessions", headers={"Origin": running.url()}).status_code == 200
