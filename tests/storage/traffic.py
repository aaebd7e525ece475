"""All that the service says to its database, in one small story: what the recordings of releases are made of."""

import asyncio
import io
import json

import httpx

from app.importing.records import Origin
from app.importing.turnkeeper import parse
from app.services.importing import Tally, import_records
from app.services.service_keys import make_key
from app.storage import credentials
from tests.api.chatting import Chats, chatting, said
from tests.upstream import Answer

_FILTERS = (
    {},
    {"keyword": "budget"},
    {"keyword": "bu"},
    {"keywords": ["budget", "40"], "match_mode": "all"},
    {"pattern": "b.dget"},
    {"type": ["user", "assistant"]},
    {"type": "system"},
    {"from": "2020-01-01T00:00:00Z", "to": "2999-01-01T00:00:00Z"},
    {"after_seq": 1, "before_seq": 100000},
    {"exclude_synthetic": True},
    {"exclude_archived": True},
)
_CUTS: tuple[dict[str, int], ...] = ({}, {"last_n": 2}, {"page": 0, "page_size": 2})
_SEARCH = ("r1", "conversation_search", '{"innerThought": "?", "query": "budget"}')
_NOTE = ("m1", "MemoryCreate", json.dumps({"path": "notes.md", "fileText": "Budget: 40"}))
_SUMMARIZE = {"summarize": {"max_events": 2, "overlap": 1}}
_EXPECTED = {"X-Expected": "400"}


async def converse(url: str) -> None:
    """On a fresh database; one request after the other, none refused but one that says so."""
    settings = {"recall_page_size": 2, "memory_consolidation": {"every_requests": 2}}
    async with chatting(url, sweep_interval_seconds=1_000_000, token_secret=("s" * 32,), **settings) as chats:
        chats.http.event_hooks["response"].append(_require_success)
        await _sessions(chats)
        await _reads(chats)
        await _chats(chats)
        await _compactions(chats)
        await _memories(chats)
        await _credentials(chats)
        await _transfers(chats)
        await _endings(chats)


async def _require_success(response: httpx.Response) -> None:
    if response.is_error and str(response.status_code) != response.request.headers.get("X-Expected"):
        raise AssertionError(f"{response.request.method} {response.url}: {(await response.aread()).decode()}")


async def _sessions(chats: Chats) -> None:
    http = chats.http
    await http.put("/v1/sessions/s", json={"user_id": "alice", "allow_system_messages": True, "metadata": {"a": 1}})
    await http.put("/v1/sessions/s", json={"user_id": "alice"})
    await http.post("/v1/sessions", json={"user_id": "alice", "ttl_seconds": 3600, "ttl_sliding": True})
    await http.patch("/v1/sessions/s", json={"metadata": {"b": 2}, "ttl_seconds": 7200})
    await http.get("/v1/sessions/s")
    for query in ({"user_id": "alice"}, {}, {"user_id": "alice", "limit": 1}):
        page = (await http.get("/v1/sessions", params=query)).json()
        if cursor := page.get("next_cursor"):
            await http.get("/v1/sessions", params=query | {"cursor": cursor})


async def _reads(chats: Chats) -> None:
    http = chats.http
    await chats.store("s: Be brief.", "The budget is 40.", "a: Noted.")
    await chats.store("And the deadline?", "a: Friday.", "s: Be kind.")
    event = {"id": "e1", "message": said("Which budget?"), "metadata": {"c": 3}}
    for _ in range(2):
        await http.post("/v1/sessions/s/events", json={"events": [event]})
    await http.post("/v1/sessions/s/events", json={"events": [{**event, "id": "e2"}]}, headers={"If-Match": '"7"'})
    await http.get("/v1/sessions/s/events/e1")
    for query in ({**f, **cut} for f in _FILTERS for cut in _CUTS):
        for path in ("/v1/sessions/s/events", "/v1/users/alice/events"):
            await http.get(path, params=query)
            await http.get(path, params=query, headers={"Accept": "application/x-ndjson"})
    for query in ({"max_tokens": 20}, {"keyword": "budget"}, {"last_n": 2}, {"keyword": "40", "max_tokens": 20}):
        await http.get("/v1/sessions/s/context", params=query)
    for body in ({}, {"types": ["user"]}):
        await http.post("/v1/sessions/s/events/query", json=body)
        await http.post("/v1/users/alice/events/query", json=body)
    for body in ({"query": "budget"}, {"query": "budget 40"}, {"query": "b"}, {"query": "budget", "page_size": 1}):
        await http.post("/v1/sessions/s/search", json=body)
        await http.post("/v1/users/alice/search", json=body)
    for scope, tool in (("sessions/s", "conversation_search"), ("users/alice", "cross_session_search")):
        await http.post(f"/v1/{scope}/tools/{tool}", json={"innerThought": "?", "query": "budget"})
    await http.get("/readyz")


async def _chats(chats: Chats) -> None:
    tools = {"recall": True, "long_term": True}
    for stream in (False, True):
        chat = {"stream": stream, "user_id": "alice"}
        chats.upstream.reset(Answer("40."))
        for _ in range(2):
            await chats.say(f"What was it? {stream}", headers={"Idempotency-Key": f"k{stream}"}, **chat)
        chats.upstream.reset(Answer(calls=[_SEARCH]), Answer(calls=[_NOTE]), Answer("It is 40."))
        await chats.say(f"Sure? {stream}", memory=tools, **chat)
        chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("Sunny."))
        for message in ("Weather?", {"role": "tool", "tool_call_id": "c1", "content": "sun"}):
            await chats.say(message, session=f"new-{stream}", **chat)
        chats.upstream.reset(Answer("No.", status=400), Answer("Yes."))
        for _ in range(2):
            await chats.post("Fails?", headers=_EXPECTED, **chat)
    chats.upstream.reset(Answer("So."))
    for memory in (
        {"on_busy": "reject"},
        {"on_busy": "interleave"},
        {"event_ids": "idempotent"},
        {"history": "replace"},
    ):
        await chats.say(f"How? {memory}", user_id="alice", memory=memory)
    for options in (
        {"filter": {"last_n": 2}},
        {"filter": {"keyword": "budget"}},
        {"memory": {"max_context_tokens": 50}},
    ):
        await chats.say(f"Short? {options}", user_id="alice", **options)


async def _compactions(chats: Chats) -> None:
    chats.upstream.reset(Answer("A summary."))
    for strategy in ({"turn_window": {"max_turns": 3}}, _SUMMARIZE, {"token_budget": {"max_tokens": 20}}):
        await chats.http.post("/v1/sessions/s/compact", json={"strategy": strategy})
        await chats.say("Go on?", user_id="alice")
    window = {"trigger": {"turns": 1}, "strategy": {"sliding_window": {"max_events": 2}}}
    await chats.say("Still?", user_id="alice", memory={"compaction": window})
    chats.upstream.reset(Answer("Fine."), Answer("No.", status=400))
    await chats.say(
        "And now?", user_id="alice", memory={"compaction": {"trigger": {"turns": 1}, "strategy": _SUMMARIZE}}
    )
    await chats.compactions.finish()
    for cut in _CUTS:
        await chats.http.get("/v1/sessions/s/events", params=cut)


async def _memories(chats: Chats) -> None:
    http, store = chats.http, "/v1/memories/alice"
    for path in ("a.md", "b/c.md", "a.md"):
        await http.put(f"{store}/file", params={"path": path}, content=b"40")
    await http.get(f"{store}/file", params={"path": "a.md"})
    await http.get(f"{store}/files", params={"prefix": "b"})
    await http.get(f"{store}/prompt")
    zipped = await http.get(f"{store}/archive")
    await http.put(f"{store}/archive", content=zipped.content, headers={"Content-Type": "application/zip"})
    versions = (await http.get(f"{store}/file/versions", params={"path": "a.md"})).json()["items"]
    await http.post(f"{store}/file/restore", params={"path": "a.md"}, json={"version": versions[-1]["version"]})
    for name, arguments in (
        ("MemoryView", {"path": ""}),
        ("MemoryView", {"path": "a.md"}),
        ("MemoryCreate", {"path": "d.md", "fileText": "x"}),
        ("MemoryStrReplace", {"path": "d.md", "oldStr": "x", "newStr": "y"}),
        ("MemoryInsert", {"path": "d.md", "insertLine": 0, "insertText": "z"}),
        ("MemoryRename", {"oldPath": "d.md", "newPath": "e.md"}),
        ("MemoryDelete", {"path": "e.md"}),
    ):
        answer = await http.post(f"/v1/users/alice/tools/{name}", json=arguments)
        assert not answer.json()["is_error"], answer.text
    await http.delete(f"{store}/file", params={"path": "b"})
    await http.delete(f"{store}/file", params={"path": "a.md", "purge": True})


async def _credentials(chats: Chats) -> None:
    """From now on a made key is needed."""
    http, db = chats.http, _db(chats)
    made = [await make_key(db, name) for name in ("kept", "revoked")]
    async with db.transaction() as connection:
        await credentials.revoke_key(connection, made[1][0])
        await credentials.keys(connection)
    http.headers["Authorization"] = f"Bearer {made[0][1]}"
    for bound in ({"user_id": "alice"}, {"session_id": "s"}):
        token = (await http.post("/v1/tokens", json={"scopes": ["read"], **bound})).json()["token"]
        await http.get("/v1/sessions/s", headers={"Authorization": f"Bearer {token}"})


async def _transfers(chats: Chats) -> None:
    exported = await chats.http.get("/v1/users/alice/export")
    other = exported.content.replace(b'"alice"', b'"bob"').replace(b'"s"', b'"bobs"')
    # Once, to another user: what the database makes up, such as the id of a file, is not in a replay what it was.
    records = parse(io.BytesIO(other), Origin(stem="export", count_tokens=lambda _: 1))
    await import_records(_db(chats), records, Tally(), lambda _: None)


async def _endings(chats: Chats) -> None:
    for path in ("sessions/s", "users/alice"):
        before = await _sweeps(chats)
        await chats.http.delete(f"/v1/{path}")
        # The service sweeps by itself after a deletion: when the story ends, it is not in the middle of that.
        async with asyncio.timeout(30):
            while await _sweeps(chats) == before:  # noqa: ASYNC110 (it tells nobody)
                await asyncio.sleep(0.01)


async def _sweeps(chats: Chats) -> float:
    figures = (await chats.http.get("/metrics")).text
    return sum(float(line.split()[-1]) for line in figures.splitlines() if line.startswith("turnkeeper_sweeps_total"))


def _db(chats: Chats):
    return chats.http._transport.app.state.services.db
