"""A service with keys and tokens, and of every route a request that is right but for who makes it."""

from contextlib import asynccontextmanager

from tests.conftest import serving

KEY = "a-service-key-for-tests"
SECRET = "a secret that is long enough, 32 bytes"  # noqa: S105
SCOPES = ["read", "write", "search", "memory", "chat"]
AS_SERVICE = {"Authorization": f"Bearer {KEY}"}

_QUESTION = [{"role": "user", "content": "What did we decide?"}]
_EVENT = {"message": {"role": "user", "content": "hello"}}


def requests(session, user):
    """By operation id: method, path, what else httpx is given, and the scope that a token needs."""
    s, u, m = f"/v1/sessions/{session}", f"/v1/users/{user}", f"/v1/memories/{user}"
    chat = {"session_id": session, "user_id": user, "messages": _QUESTION}
    query, file = {"query": "postgresql"}, {"params": {"path": "a.md"}}
    return {
        "create_session": ("POST", "/v1/sessions", {"json": {"id": f"{session}-new", "user_id": user}}, "write"),
        "ensure_session": ("PUT", s, {"json": {"user_id": user}}, "write"),
        "get_session": ("GET", s, {}, "read"),
        "list_sessions": ("GET", "/v1/sessions", {"params": {"user_id": user}}, "read"),
        "update_session": ("PATCH", s, {"json": {"metadata": {"a": 1}}}, "write"),
        "append_events": ("POST", f"{s}/events", {"json": {"events": [_EVENT]}}, "write"),
        "list_events": ("GET", f"{s}/events", {}, "read"),
        "query_events": ("POST", f"{s}/events/query", {"json": {}}, "read"),
        "get_event": ("GET", f"{s}/events/e1", {}, "read"),
        "get_context": ("GET", f"{s}/context", {}, "read"),
        "list_user_events": ("GET", f"{u}/events", {}, "read"),
        "query_user_events": ("POST", f"{u}/events/query", {"json": {}}, "read"),
        "search_session": ("POST", f"{s}/search", {"json": query}, "search"),
        "search_user": ("POST", f"{u}/search", {"json": query}, "search"),
        "list_tools": ("GET", "/v1/tools", {}, None),
        "call_session_tool": ("POST", f"{s}/tools/conversation_search", {"json": query}, "search"),
        "call_session_tool memory": ("POST", f"{s}/tools/MemoryView", {"json": {"path": "/"}}, "memory"),
        "call_user_tool": ("POST", f"{u}/tools/cross_session_search", {"json": query}, "search"),
        "call_user_tool memory": ("POST", f"{u}/tools/memory", {"json": {"command": "view", "path": "/"}}, "memory"),
        "compact_session": (
            "POST",
            f"{s}/compact",
            {"json": {"strategy": {"turn_window": {"max_turns": 9}}}},
            "chat",
        ),
        "chat": ("POST", "/v1/chat", {"json": chat}, "chat"),
        "chat_completions": ("POST", "/v1/chat/completions", {"json": chat}, "chat"),
        "list_models": ("GET", "/v1/models", {}, "chat"),
        "put_memory_file": ("PUT", f"{m}/file", {**file, "content": "text"}, "memory"),
        "list_memory_files": ("GET", f"{m}/files", {}, "memory"),
        "head_memory_file": ("HEAD", f"{m}/file", file, "memory"),
        "get_memory_file": ("GET", f"{m}/file", file, "memory"),
        "list_memory_file_versions": ("GET", f"{m}/file/versions", file, "memory"),
        "restore_memory_file": ("POST", f"{m}/file/restore", {**file, "json": {"version": 1}}, "memory"),
        "get_memory_archive": ("GET", f"{m}/archive", {}, "memory"),
        "get_memory_prompt": ("GET", f"{m}/prompt", {}, "memory"),
        "delete_memory_file": ("DELETE", f"{m}/file", file, "memory"),
        "put_memory_archive": ("PUT", f"{m}/archive", {"content": EMPTY_ZIP}, "memory"),
        "export_user": ("GET", f"{u}/export", {}, "read"),
        "delete_session": ("DELETE", s, {}, "write"),
        "get_metrics": ("GET", "/metrics", {}, "service_key"),
        "erase_user": ("DELETE", u, {}, "service_key"),
        "create_token": ("POST", "/v1/tokens", {"json": {"user_id": user, "scopes": ["read"]}}, "service_key"),
    }


EMPTY_ZIP = b"PK\x05\x06" + bytes(18)

# What a session's token does not reach though its user does.
OF_ALL_SESSIONS = {
    "create_session",
    "list_sessions",
    "list_user_events",
    "query_user_events",
    "search_user",
    "call_user_tool",
    "call_user_tool memory",
    "export_user",
}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


async def token(client, **body):
    response = await client.post("/v1/tokens", json={"scopes": SCOPES, **body}, headers=AS_SERVICE)
    assert response.status_code == 201, response.text
    return response.json()["token"]


async def seed(client, session, user):
    """A session with an event, and a file in its owner's memory."""
    events = [{"id": "e1", "message": {"role": "user", "content": f"{user} decided on PostgreSQL."}}]
    path = f"/v1/sessions/{session}/events"
    await _ok(client.post(path, json={"user_id": user, "events": events}, headers=AS_SERVICE))
    await _ok(client.put(f"/v1/memories/{user}/file?path=a.md", content=f"of {user}", headers=AS_SERVICE))


async def _ok(response):
    assert (await response).status_code in {200, 201}


@asynccontextmanager
async def guarded(url, **settings):
    async with serving(url, api_keys=(KEY,), token_secret=(SECRET,), **settings) as client:
        yield client
