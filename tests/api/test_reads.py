"""Reading over HTTP: filters as query and body, windows, pages, streams, and the prompt."""

import json

import pytest
from sqlalchemy import text

NDJSON = {"Accept": "application/x-ndjson"}


def call(call_id, name="f"):
    function = {"name": name, "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id, content="r"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def says(role, content):
    return {"role": role, "content": content}


LOG = [
    says("user", "U1"),
    says("assistant", "A1"),
    says("user", "U2"),
    call("c"),
    result("c", "T2"),
    says("assistant", "A2"),
]


async def store(client, messages, session="s", user="alice", allow_system=False):
    body = {"user_id": user, "allow_system_messages": allow_system}
    await client.put(f"/v1/sessions/{session}", json=body)
    events = [{"id": str(number), "message": message} for number, message in enumerate(messages, start=1)]
    response = await client.post(f"/v1/sessions/{session}/events", json={"events": events})
    assert response.status_code == 201, response.text


async def read(client, session="s", **query):
    response = await client.get(f"/v1/sessions/{session}/events", params=query)
    assert response.status_code == 200, response.text
    return [event["id"] for event in response.json()["events"]]


async def test_d2_windows_over_http(client):
    await store(client, LOG)
    for size, expected in [(2, "3456"), (3, "3456"), (4, "3456"), (5, "123456"), (99, "123456")]:
        assert await read(client, last_n=size) == list(expected)
    body = {"last_n": 2}
    response = await client.post("/v1/sessions/s/events/query", json=body)
    assert [event["id"] for event in response.json()["events"]] == list("3456")


async def test_query_and_body_are_one_filter(client):
    await store(client, LOG)
    assert await read(client, type=["user", "tool"]) == list("135")
    assert await read(client, keywords=["u1", "a2"]) == list("16")
    assert await read(client, keywords=["u", "2"], match_mode="all") == list("3")
    body = {"types": ["user"], "keyword": "u", "from": "2020-01-01T00:00:00Z", "page_size": 1}
    response = (await client.post("/v1/sessions/s/events/query", json=body)).json()
    assert [event["id"] for event in response["events"]] == ["1"]
    assert (response["page"], response["page_size"], response["has_more"]) == (0, 1, True)


async def test_a_window_can_be_paged_backwards_by_seq(client):
    await store(client, LOG)
    newest = (await client.get("/v1/sessions/s/events", params={"last_n": 1})).json()["events"]
    assert await read(client, last_n=1, before_seq=newest[0]["seq"]) == ["1", "2"]
    assert await read(client, after_seq=newest[-1]["seq"]) == []


@pytest.mark.parametrize(
    "query",
    [
        {"last_n": 0},
        {"last_n": -1},
        {"last_n": "x"},
        {"last_n": 2**31},
        {"page_size": 0},
        {"page_size": 10_001},
        {"page": -1, "page_size": 1},
        {"page": 0},
        {"last_n": 1, "page_size": 1},
        {"type": "robot"},
        {"from": "2026-01-01T00:00:00"},
        {"to": "2026-01-01"},
        {"keyword": "\0"},
        {"keyword": "x" * 1001},
        {"keywords": ["x"] * 21},
        {"match_mode": "some"},
        {"pattern": "("},
        {"pattern": "x" * 1001},
        {"after_seq": "a"},
        {"unknown": "1"},
        {"exclude_archived": "maybe"},
    ],
)
async def test_a7_a_wrong_filter_is_422_and_named(shared_client, query):
    await store(shared_client, LOG) if (await shared_client.get("/v1/sessions/s")).status_code == 404 else None
    field = next(iter(query)) if "page_size" not in query or len(query) == 1 else None
    for url in ("/v1/sessions/s/events", "/v1/users/alice/events", "/v1/sessions/s/context"):
        response = await shared_client.get(url, params=query)
        assert response.status_code == 422
        places = [error["loc"][1] for error in response.json()["errors"]]
        assert field is None or field in places


async def test_an_empty_criterion_is_none(client):
    await store(client, LOG)
    assert await read(client, keyword=" ") == list("123456")
    assert await read(client, keywords=["", " "], match_mode="all") == list("123456")
    response = await client.post("/v1/sessions/s/events/query", json={"types": [], "keywords": []})
    assert len(response.json()["events"]) == 6


async def test_d8_a_page_far_past_the_end_is_empty(client):
    await store(client, LOG)
    assert await read(client, page=2147483647, page_size=10_000) == []
    assert await read(client, page=2147483647, page_size=10, pattern="U") == []


async def test_d9_patterns_with_pages_and_windows(client):
    await store(client, [says("user", text) for text in ["e1", "e2", "no", "e3", "e4", "e5", "e6"]])
    pages = [await read(client, pattern=r"^e\d", page=page, page_size=2) for page in range(4)]
    assert pages == [["1", "2"], ["4", "5"], ["6", "7"], []]
    assert await read(client, pattern=r"^e\d", last_n=2) == ["6", "7"]
    more = (await client.get("/v1/sessions/s/events", params={"pattern": "e", "page_size": 6})).json()
    assert more["has_more"] is False


async def test_reads_across_sessions_are_by_instant(client):
    for session, second in [("s1", 10), ("s2", 20), ("s1", 30), ("s2", 40)]:
        event = {"message": says("user", str(second)), "timestamp": f"2026-01-01T00:00:{second}Z"}
        await client.post(f"/v1/sessions/{session}/events", json={"events": [event], "user_id": "alice"})
    await store(client, [says("user", "bobs")], session="s3", user="bob")

    async def texts(**query):
        response = await client.get("/v1/users/alice/events", params=query)
        return [event["text"] for event in response.json()["events"]]

    assert await texts() == ["10", "20", "30", "40"]
    assert await texts(page=1, page_size=3) == ["40"]
    assert await texts(last_n=1) == ["40"]
    assert await texts(pattern="^[23]") == ["20", "30"]
    assert (await client.get("/v1/users/nobody/events")).json() == {"events": []}


async def test_more_than_10000_events_are_streamed_or_paged_but_never_cut(client, db):
    await store(client, [says("user", "first")])
    async with db.autocommit() as connection:
        await connection.execute(
            text("""
            WITH new AS (
                INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                                    tokens, synthetic, recall_result, metadata)
                SELECT session_key, seq + n * 1024, 'n' || n, user_id, type, timestamp, message, digest, search_text,
                       1, false, false, '{}'
                FROM events, generate_series(1, 10000) n RETURNING session_key, seq, type
            ) INSERT INTO active_events SELECT * FROM new
            """)
        )
    for url in ("/v1/sessions/s/events", "/v1/users/alice/events", "/v1/sessions/s/context"):
        for query in ({}, {"pattern": "first"}, {"last_n": 10_001}):
            refused = await client.get(url, params=query)
            assert (refused.status_code, refused.json()["type"].split(":")[-1]) == (422, "too-many-events")
    assert len(await read(client, last_n=10_000)) == 10_000
    for url in ("/v1/sessions/s/events", "/v1/users/alice/events"):
        queries = [{}, {"last_n": 10_001}, {"pattern": "first"}, {"pattern": "first", "last_n": 10_001}]
        for query, count in [(query, 10_001) for query in queries]:
            response = await client.get(url, params=query, headers=NDJSON)
            assert response.headers["content-type"] == "application/x-ndjson"
            lines = response.text.splitlines()
            assert len(lines) == count == len({json.loads(line)["id"] for line in lines})
            assert lines[0].startswith('{"id":"1"')
    prompt = await context(client, max_tokens=3)
    assert len(prompt["messages"]) == 3
    assert prompt["event_ids"][-1] == "n10000"


async def test_a_stream_is_the_same_as_a_read(client):
    await store(client, LOG)
    for query in ({}, {"last_n": 2}, {"page_size": 4}, {"pattern": "2", "last_n": 1}, {"keyword": "none"}):
        events = (await client.get("/v1/sessions/s/events", params=query)).json()["events"]
        lines = (await client.get("/v1/sessions/s/events", params=query, headers=NDJSON)).text.splitlines()
        assert [json.loads(line) for line in lines] == events
    assert (await client.get("/v1/sessions/none/events", headers=NDJSON)).status_code == 404


async def test_one_event(client):
    await store(client, LOG)
    event = (await client.get("/v1/sessions/s/events/5")).json()
    assert (event["message"], event["type"], event["archived"]) == (LOG[4], "tool", False)
    assert (await client.get("/v1/sessions/s/events/99")).json()["type"].endswith(":event-not-found")
    assert (await client.get("/v1/sessions/none/events/5")).json()["type"].endswith(":session-not-found")


async def context(client, session="s", **query):
    response = await client.get(f"/v1/sessions/{session}/context", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_context_is_a_prompt(client):
    await store(client, [*LOG, says("user", "U3"), call("open")])
    body = await context(client)
    assert body["messages"] == [*LOG, says("user", "U3")]
    assert body["event_ids"] == list("1234567")
    assert body["event_version"] == 8
    events = (await client.get("/v1/sessions/s/events")).json()["events"]
    assert body["total_tokens"] == sum(event["tokens"] for event in events)
    assert body["tokens"] == body["total_tokens"] - events[7]["tokens"]


async def test_o6_o7_the_latest_stored_prompt_comes_first_whatever_the_window(client):
    french, german = says("system", "Réponds en français."), says("system", "Antworte auf Deutsch.")
    turns = [says("user", "q2"), says("assistant", "a2"), says("user", "q3"), says("assistant", "a3")]
    await store(client, [french, says("user", "q1"), german, says("assistant", "a1"), *turns], allow_system=True)
    assert (await context(client, last_n=2))["messages"] == [german, *turns[2:]]
    assert (await context(client))["messages"][0] == german
    assert french not in (await context(client))["messages"]
    assert (await context(client, page=0, page_size=2))["messages"] == [german, says("user", "q1")]
    assert (await context(client, pattern="q3"))["messages"] == [german, turns[2]]
    assert (await context(client, type=["user"], last_n=1))["messages"] == [turns[2]]


async def test_max_tokens_keeps_whole_turns(client):
    await store(client, LOG)
    assert (await context(client, max_tokens=1))["event_ids"] == list("3456")
    assert (await context(client, max_tokens=10_000))["event_ids"] == list("123456")
    assert (await client.get("/v1/sessions/s/context", params={"max_tokens": 0})).status_code == 422
