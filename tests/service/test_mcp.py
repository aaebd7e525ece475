"""The tools over MCP: the SDK's own client, over a socket, with every kind of credential."""

import json
from contextlib import asynccontextmanager

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from app.domain.memory_definitions import MEMORY_TOOLS
from tests.service.process import service

KEY = "a-service-key-for-tests"
SECRET = "a secret that is long enough: 32 bytes"  # noqa: S105
MEMORY = [tool.name for tool in MEMORY_TOOLS]
AS_SERVICE = {"Authorization": f"Bearer {KEY}"}
MODES = ("auto", "legacy")
BOTH = ["search", "memory"]


@pytest.fixture(scope="module")
def running(shared_database_url):
    with service(database_url=shared_database_url, api_keys=KEY, token_secret=SECRET) as started:
        yield started
        assert "postgres" not in started.log.lower()
        assert "Traceback" not in started.log


@pytest.fixture(scope="module")
def rest(running):
    with httpx.Client(base_url=running.url(), headers=AS_SERVICE, timeout=30) as client:
        for user in ("alice", "bob"):
            for session in (f"{user}-1", f"{user}-2"):
                message = {"role": "user", "content": f"{user} decided on PostgreSQL in {session}."}
                body = {"user_id": user, "events": [{"message": message}]}
                assert client.post(f"/v1/sessions/{session}/events", json=body).is_success
            assert client.put(f"/v1/memories/{user}/file?path=MEMORY.md", content=f"of {user}\n").is_success
        yield client


def token(rest, scopes=BOTH, **bound):
    made = rest.post("/v1/tokens", json={"scopes": scopes, **bound})
    assert made.status_code == 201, made.text
    return {"Authorization": f"Bearer {made.json()['token']}"}


@asynccontextmanager
async def connected(running, headers, mode="auto"):
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(f"{running.url()}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def tools_of(client):
    return [tool.name for tool in (await client.list_tools()).tools]


async def called(client, name, **arguments):
    result = await client.call_tool(name, arguments)
    [content] = result.content
    return content.text, result.is_error


@pytest.mark.parametrize("mode", MODES)
async def test_a_token_of_a_session_searches_it_and_works_on_its_owners_memory(running, rest, mode):
    async with connected(running, token(rest, session_id="alice-1"), mode) as client:
        assert await tools_of(client) == ["conversation_search", *MEMORY]
        assert "MEMORY.md" in client.instructions
        assert "conversation_search" in client.instructions
        text, is_error = await called(client, "conversation_search", innerThought="…", query="postgresql")
        assert not is_error
        assert [found["text"] for found in json.loads(text)] == ["alice decided on PostgreSQL in alice-1."]
        assert "of alice" in (await called(client, "MemoryView", path="MEMORY.md"))[0]
        text, is_error = await called(client, "MemoryCreate", path=f"{mode}.md", fileText="new")
        assert not is_error
        assert rest.get("/v1/memories/alice/file", params={"path": f"{mode}.md"}).text == "new"
        versions = rest.get("/v1/memories/alice/file/versions", params={"path": f"{mode}.md"}).json()["items"]
        assert [(one["tool"], one["session_id"]) for one in versions] == [("MemoryCreate", "alice-1")]


@pytest.mark.parametrize("mode", MODES)
async def test_a_token_of_a_user_searches_all_sessions(running, rest, mode):
    async with connected(running, token(rest, user_id="bob"), mode) as client:
        assert await tools_of(client) == ["cross_session_search", *MEMORY]
        text, _ = await called(client, "cross_session_search", innerThought="…", query="decided, chose")
        assert [found["sessionId"] for found in json.loads(text)] == ["bob-1", "bob-2"]
        assert "of bob" in (await called(client, "MemoryView", path="MEMORY.md"))[0]


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [(["search"], ["conversation_search"]), (["memory"], MEMORY), (["read", "write", "chat"], [])],
)
async def test_only_what_the_scopes_allow_is_there(running, rest, scopes, expected):
    async with connected(running, token(rest, session_id="alice-1", scopes=scopes)) as client:
        assert await tools_of(client) == expected
        for name in ["conversation_search", "cross_session_search", *MEMORY, "memory", "nonsense"]:
            if name not in expected:
                with pytest.raises(MCPError, match="no tool") as raised:
                    await client.call_tool(name, {"query": "postgresql", "path": ""})
                assert raised.value.error.code == -32602


@pytest.mark.parametrize("mode", MODES)
async def test_a_service_key_without_a_scope_gets_an_explanation(running, rest, mode):
    async with connected(running, AS_SERVICE, mode) as client:
        assert await tools_of(client) == []
        assert "POST /v1/tokens" in client.instructions
        with pytest.raises(MCPError, match="X-User-Id or X-Session-Id"):
            await client.call_tool("MemoryView", {"path": ""})


async def test_a_service_key_may_name_a_session_or_a_user(running, rest):
    async with connected(running, {**AS_SERVICE, "X-Session-Id": "alice-2"}) as client:
        text, _ = await called(client, "conversation_search", query="decided")
        assert "in alice-2." in text
        assert "in alice-1." not in text
    async with connected(running, {**AS_SERVICE, "X-User-Id": "caf%C3%A9"}) as client:
        assert await tools_of(client) == ["cross_session_search", *MEMORY]
        assert await called(client, "cross_session_search", query="decided") == ("No results found.", False)


async def test_a_user_narrows_a_token_to_one_of_the_own_sessions(running, rest):
    async with connected(running, {**token(rest, user_id="alice"), "X-Session-Id": "alice-2"}) as client:
        assert (await tools_of(client))[0] == "conversation_search"


async def test_wrong_arguments_are_a_sentence_for_the_model(running, rest):
    async with connected(running, token(rest, user_id="alice")) as client:
        text, is_error = await called(client, "cross_session_search", query=" ")
        assert is_error
        assert text.startswith("Error: query is missing")
        text, is_error = await called(client, "MemoryView", path="../../etc/passwd")
        assert is_error


def post(rest, message, headers, **options):
    body = options.pop("content", None) or json.dumps(message)
    given = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
    return httpx.post(f"{rest.base_url}/mcp", content=body, headers=given, timeout=30, **options)


LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def test_no_header_widens_a_token(rest):
    """Neither a user's nor a session's, with headers that name others."""
    mine = {"user": token(rest, user_id="alice"), "session": token(rest, session_id="alice-1")}
    for bound, headers in mine.items():
        for name, value, status in (
            ("X-User-Id", "bob", 403),
            ("X-Session-Id", "bob-1", 404),
            ("X-Session-Id", "nobodys", 404),
            ("X-Session-Id", "a/b", 422),
            ("X-User-Id", "%ff", 422),
        ):
            refused = post(rest, LIST, {**headers, name: value})
            assert refused.status_code == status, (bound, name, value, refused.text)
            assert refused.json()["error"]["message"]
    assert post(rest, LIST, {**mine["session"], "X-Session-Id": "alice-2"}).status_code == 404
    refused = post(rest, LIST, {**AS_SERVICE, "X-Session-Id": "alice-2", "X-User-Id": "bob"})
    assert (refused.status_code, refused.json()["error"]["data"]["type"]) == (403, "urn:turnkeeper:problem:not-owner")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic a-service-key-for-tests"])
def test_wrong_credentials_are_refused_in_the_shape_of_json_rpc(rest, header):
    refused = post(rest, LIST, {} if header is None else {"Authorization": header})
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert refused.headers["Content-Type"] == "application/json"
    body = refused.json()
    assert (body["jsonrpc"], body["id"], body["error"]["code"]) == ("2.0", None, -32600)
    assert body["error"]["data"]["type"] == "urn:turnkeeper:problem:unauthorized"


def test_a_session_made_anew_under_the_id_is_not_reached(rest):
    rest.put("/v1/sessions/again", json={"user_id": "alice"})
    before = token(rest, session_id="again")
    assert post(rest, LIST, before).status_code == 200
    rest.delete("/v1/sessions/again")
    assert post(rest, LIST, before).status_code == 401
    rest.put("/v1/sessions/again", json={"user_id": "alice"})
    assert post(rest, LIST, before).status_code == 401


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD", "OPTIONS"])
def test_there_is_nothing_but_post(rest, method):
    refused = rest.request(method, "/mcp")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"x": "\\ud800"}}', -32700),
        (b"[]", -32600),
        (b"[" + json.dumps(LIST).encode() + b"]", -32600),
        (b"1" * 5000, -32700),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}', -32600),
        *(
            (b'{"jsonrpc": "2.0", "id": %s, "method": "tools/list"}' % given, -32600)
            for given in (b"null", b"true", b"1.5", b"{}", b"[]")
        ),
        *(
            (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": %s}' % given, -32600)
            for given in (b"null", b"[]", b'"secret"', b"1")
        ),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "no/such"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": []}}', -32602),
    ],
    ids=range(20),
)
@pytest.mark.parametrize("version", [None, "2025-06-18", "2026-07-28"])
def test_what_is_no_message_is_an_error_of_json_rpc(rest, body, code, version):
    headers = {**AS_SERVICE, "X-User-Id": "alice"} | ({} if version is None else {"MCP-Protocol-Version": version})
    response = post(rest, None, headers, content=body)
    assert response.status_code in {200, 400, 404}
    assert response.headers["Content-Type"] == "application/json"
    if version != "2026-07-28":  # Which wants headers that say the same as the body.
        assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"]
    assert "secret" not in response.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_another_type_is_an_error_of_json_rpc(rest, kind):
    headers = {**AS_SERVICE, "X-User-Id": "alice", "Content-Type": kind}
    response = post(rest, None, headers, content=json.dumps(LIST).encode())
    assert (response.status_code, response.json()["error"]["code"]) == (415, -32600)


def test_a_body_beyond_the_limit_is_413(rest):
    refused = post(rest, None, AS_SERVICE, content=b'"' + b"x" * 10_485_760 + b'"')
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, -32600)
