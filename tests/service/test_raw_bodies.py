"""Bodies that were valid once, with each kind of credential: no 5xx, no hang, nothing of another user in answers."""

import asyncio
import random
from typing import NamedTuple
from urllib.parse import quote

import httpx
import pytest

from app.config import Settings
from tests.service.hostile import EVENTS, Operation
from tests.service.mutations import SESSION_TOOLS, USER_TOOLS, mutated, valid
from tests.service.process import service
from tests.service.raw_http import check, send
from tests.upstream import Answer, scripted_upstream

KEY = "service-key-of-the-fuzz"
SETTINGS = {"api_keys": KEY, "upstream_model": "m"}
HAS_TOKENS = "token_secret" in Settings.model_fields
if HAS_TOKENS:
    SETTINGS["token_secret"] = "s" * 40
# What only bob has, and only bob may see.
MARK = "TOPSECRET-4711"
FOREIGN = ("bob", "bobs", "shared:team", "user:bob", "bob/../bob", "BOB")
SCOPES = ["read", "write", "search", "memory", "chat"]
FRESH_EVERY = 50


class Caller(NamedTuple):
    """Who sends the bodies. One that may see everything names nobody else's ids."""

    name: str
    token_of: dict[str, str] | None
    foreign: tuple[str, ...] = FOREIGN


CALLERS = (
    Caller("service key", None, foreign=()),
    Caller("user token", {"user_id": "alice"}),
    Caller("session token", {"session_id": "s"}),
)


@pytest.fixture(scope="module")
def script():
    with scripted_upstream() as script:
        yield script


@pytest.fixture(scope="module")
def running(shared_database_url, script):
    with service(database_url=shared_database_url, upstream_url=script.url, **SETTINGS) as started:
        yield started
    assert MARK not in started.log


@pytest.fixture
def http(running):
    with httpx.Client(base_url=running.url(), headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as http:
        yield http


@pytest.fixture
def operations(http):
    """Those that take a body."""
    paths = http.get("/openapi.json").json()["paths"]
    return [
        Operation(operation["operationId"], method.upper(), path, ())
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]


@pytest.fixture
def bobs(http):
    """Bob's session, file and shared file; they must be as they are at the end."""
    said = {"user_id": "bob", "events": [{"id": "b1", "message": {"role": "user", "content": f"a word {MARK}"}}]}
    assert http.post("/v1/sessions/bobs/events", json=said).status_code in {200, 201}
    for store in ("bob", "shared:team"):
        assert http.put(f"/v1/memories/{store}/file?path=notes.md", content=f"a word {MARK}").is_success
    before = all_of_bob(http)
    assert before.count(MARK) == 4, "in a message, in its text, and in two files"
    yield
    assert all_of_bob(http) == before


def all_of_bob(http):
    paths = ("sessions/bobs/events", "memories/bob/file?path=notes.md", "memories/shared:team/file?path=notes.md")
    return "".join(http.get(f"/v1/{path}").text for path in paths)


def start_afresh(http):
    """Alice's session and file as they were; the version that the file has now."""
    http.delete("/v1/sessions/s")
    assert http.put("/v1/sessions/s", json={"user_id": "alice"}).status_code == 201
    assert http.post("/v1/sessions/s/events", json={"events": EVENTS[:1]}).status_code == 201
    for entry in http.get("/v1/memories/alice/files").json()["items"]:
        http.delete("/v1/memories/alice/file", params={"path": entry["path"], "purge": True})
    made = http.put("/v1/memories/alice/file?path=notes.md", content="a word\n")
    assert made.is_success
    return made.json()["version"]


def credential_of(http, caller):
    if caller.token_of is None:
        return KEY
    if not HAS_TOKENS:
        pytest.skip("this service makes no tokens")
    made = http.post("/v1/tokens", json={**caller.token_of, "scopes": SCOPES})
    assert made.status_code == 201, made.text
    return made.json()["token"]


def test_every_operation_has_a_valid_body_here(http, script, operations, bobs):
    """Else what is done to it would be done to something that is refused anyway."""
    script.reset(Answer("Noted."))
    for operation in operations:
        for tool in tools_of(operation):
            version = start_afresh(http)
            path = path_of(operation, tool, {"s": "s", "alice": "alice"})
            body = valid(operation.id, tool, version)
            content = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = http.request(operation.method, path, **content)
            assert answer.is_success, f"{operation.id} {tool}: {answer.text}"
            assert not tool or answer.json()["is_error"] is False, f"{tool}: {answer.text}"


@pytest.mark.parametrize("requests", [120, pytest.param(4000, marks=pytest.mark.long)])
@pytest.mark.parametrize("caller", CALLERS, ids=[caller.name for caller in CALLERS])
async def test_no_body_breaks_the_service_or_shows_what_is_anothers(
    running, http, script, operations, bobs, caller, requests
):
    script.behaviour = model(random.Random(requests))
    chance, host, port = random.Random(f"{caller.name} {requests}"), *running.url().removeprefix("http://").split(":")
    statuses, credential, version = set(), "", 0
    for number in range(requests):
        if number % FRESH_EVERY == 0:
            version = start_afresh(http)
            credential = credential_of(http, caller)
        operation = chance.choice(operations)
        tool = chance.choice(tools_of(operation))
        body = mutated(chance, valid(operation.id, tool, version), caller.foreign)
        request = hostile_request(chance, operation, tool, body, credential, caller.foreign)
        try:
            answer = await asyncio.to_thread(send, (host, int(port)), request)
            check(answer)
            assert MARK.encode() not in answer.body
        except Exception as error:
            error.add_note(f"request {number}: {request[:3000]!r}")
            raise
        statuses.add(answer.status)
    assert {200, 422} <= statuses
    assert not [request for request in script.requests if MARK in str(request)]


def model(chance):
    """Now and then it calls what the service runs for it; what it does not understand, it refuses."""
    calls = [("conversation_search", '{"query": "word"}'), ("MemoryView", '{"path": "notes.md"}')]

    def behaviour(request):
        if not isinstance(request.get("stream_options") or {}, dict):
            return Answer(status=400)
        names = str(request.get("tools"))
        name, arguments = chance.choice(calls)
        answered = request["messages"][-1]["role"] == "tool" or request.get("tool_choice") == "none"
        if name in names and not answered and chance.random() < 0.5:
            return Answer(None, calls=[(f"call-{chance.random()}", name, arguments)])
        return Answer("Noted.")

    return behaviour


def tools_of(operation):
    return {"call_session_tool": SESSION_TOOLS, "call_user_tool": USER_TOOLS}.get(operation.id, [""])


def path_of(operation, tool, ids):
    path = operation.path
    named = {"session_id": ids["s"], "user_id": ids["alice"], "store": ids["alice"], "name": tool}
    for name, value in named.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return f"{path}?path=notes.md" if "/file" in path else path


def hostile_request(chance, operation, tool, body, credential, foreign):
    """The bytes of one request; with a token sometimes for somebody else's session, user or store."""
    strays = foreign and chance.random() < 0.3
    ids = {name: chance.choice(foreign) if strays and chance.random() < 0.5 else name for name in ("s", "alice")}
    kinds = {"put_memory_file": "text/plain", "put_memory_archive": "application/zip"}
    headers = [
        f"{operation.method} {path_of(operation, tool, ids)} HTTP/1.1",
        "Host: 127.0.0.1",
        "Connection: close",
        f"Authorization: Bearer {credential}",
        f"Content-Type: {kinds.get(operation.id, 'application/json')}",
        f"Content-Length: {len(body)}",
    ]
    if foreign and chance.random() < 0.1:
        headers.append(f"X-{chance.choice(('Session', 'User'))}-Id: {quote(chance.choice(foreign))}")
    return "\r\n".join([*headers, "", ""]).encode() + body
