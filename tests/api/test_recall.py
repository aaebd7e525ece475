"""Cases P and Q: searching the log, for programs and for models."""

import json

import pytest


async def store(client, *messages, session="s", user="alice", **fields):
    events = [
        fields | ({"message": m} if isinstance(m, dict) else {"message": {"role": "user", "content": m}})
        for m in messages
    ]
    response = await client.post(f"/v1/sessions/{session}/events", json={"events": events, "user_id": user})
    assert response.status_code == 201, response.text


async def conversation_search(client, session="s", **arguments):
    response = await client.post(f"/v1/sessions/{session}/tools/conversation_search", json=arguments)
    assert response.status_code == 200, response.text
    return response.json()


async def cross_session_search(client, user="alice", **arguments):
    response = await client.post(f"/v1/users/{user}/tools/cross_session_search", json=arguments)
    assert response.status_code == 200, response.text
    return response.json()


def texts(answer):
    assert not answer["is_error"], answer
    return [result["text"] for result in json.loads(answer["content"])]


async def test_p1_nothing_found(client):
    await client.put("/v1/sessions/s", json={"user_id": "alice"})
    nothing = {"content": "No results found.", "is_error": False}
    assert await conversation_search(client, query="x") == nothing
    await store(client, "word")
    assert await conversation_search(client, query="other") == nothing
    for page in (7, "7", 10**30):
        assert await conversation_search(client, query="word", page=page) == nothing


async def test_p2_pages(client):
    await store(client, *(f"match {number}" for number in range(1, 16)))
    first = [f"match {number}" for number in range(1, 11)]
    for page in (0, -1, None, "0", -(10**30)):
        assert texts(await conversation_search(client, innerThought="…", query="MATCH", page=page)) == first
    for page in (1, "1", 1.0):
        assert texts(await conversation_search(client, query="match", page=page)) == [
            f"match {n}" for n in range(11, 16)
        ]


async def test_p3_summaries_and_earlier_recall_results_are_no_results(client):
    def call(call_id, name):
        function = {"name": name, "arguments": "{}"}
        return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}

    def result(call_id, content):
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    await store(client, "the falcon flies")
    await store(client, "summary: falcon", synthetic=True)
    await store(client, call("1", "weather"), result("1", "falcon storm"))
    await store(client, call("2", "conversation_search"), result("2", "recalled falcon, same batch"))
    await store(client, call("3", "conversation_search"), call("x", "f"), call("y", "f"))
    await store(client, result("3", "recalled falcon, later batch"))
    await store(client, call("", "cross_session_search"))
    await store(client, result("", "recalled falcon, blank id"))
    await store(client, call("2", "weather"))
    await store(client, result("2", "falcon again, an id used twice"))
    found = ["the falcon flies", "falcon storm", "falcon again, an id used twice"]
    assert texts(await conversation_search(client, query="falcon")) == found
    assert texts(await cross_session_search(client, query="falcon")) == found
    everything = (await client.get("/v1/sessions/s/events", params={"keyword": "falcon"})).json()["events"]
    assert len(everything) == 7, "the log itself hides nothing"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "query"),
        ({"query": " "}, "query"),
        ({"query": 5}, "query"),
        ({"query": "x", "page": "two"}, "page"),
        ({"query": "x", "page": True}, "page"),
        ({"query": "x", "page": 1.5}, "page"),
        ({"query": "x" * 1001}, "1,000"),
        ({"query": "a\u0000"}, "NUL"),
    ],
)
async def test_a_wrong_call_is_a_sentence_for_the_model(shared_client, arguments, says):
    await shared_client.put("/v1/sessions/s", json={"user_id": "alice"})
    for answer in (
        await conversation_search(shared_client, **arguments),
        await cross_session_search(shared_client, **arguments),
    ):
        assert answer["is_error"]
        assert answer["content"].startswith("Error: ")
        assert says in answer["content"]


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b'{"query": ', b'{"query": "\\ud800"}', b"\xff"])
async def test_arguments_that_are_no_object_are_a_sentence_too(shared_client, body):
    await shared_client.put("/v1/sessions/s", json={"user_id": "alice"})
    for url in ("/v1/sessions/s/tools/conversation_search", "/v1/users/alice/tools/cross_session_search"):
        response = await shared_client.post(url, content=body)
        assert (response.status_code, response.json()["is_error"]) == (200, True)


async def test_a_wrong_scope_is_not_the_models_fault(client):
    for body in ({"query": "x"}, {}):
        response = await client.post("/v1/sessions/none/tools/conversation_search", json=body)
        assert response.status_code == 404
    for url in ("/v1/sessions/none/tools/nope", "/v1/users/alice/tools/conversation_search"):
        assert (await client.post(url, json={})).json()["type"].endswith(":tool-not-found")


async def test_a_long_text_is_cut_for_the_model_alone(client):
    long = "x" * 5_000 + " needle " + "y" * 5_000
    await store(client, long)
    [shown] = texts(await conversation_search(client, query="NEEDLE"))
    assert "needle" in shown
    assert shown.startswith("[…]")
    assert shown.endswith("[…]")
    assert len(shown) <= 2_006
    found = (await client.post("/v1/sessions/s/search", json={"query": "needle"})).json()
    assert found["results"][0]["text"] == long


async def test_q1_all_sessions_of_one_user(client):
    await store(client, "blue whale", session="s1")
    await store(client, "blue sky", session="s2")
    await store(client, "blue moon", session="s3", user="bob")
    results = json.loads((await cross_session_search(client, query="blue"))["content"])
    assert [result["sessionId"] for result in results] == ["s1", "s2"]
    assert list(results[0]) == ["sessionId", "timestamp", "type", "text"]


async def test_q2_several_terms(client):
    await store(
        client, "We decided on Postgres", "ok, let's go with blue", "actually no", "actually, do this instead"
    )
    found = await cross_session_search(client, query="we decided, let's go with")
    assert texts(found) == ["We decided on Postgres", "ok, let's go with blue"]
    found = await cross_session_search(client, query="actually, instead", matchMode="all")
    assert texts(found) == ["actually, do this instead"]


async def test_q3_since(client):
    for day in (1, 2):
        await store(client, f"day {day}", timestamp=f"2026-07-0{day}T00:00:00Z")
    bad = await cross_session_search(client, query="day", since="2026-07-01")
    assert bad["is_error"]
    assert "2026-07-01T00:00:00Z" in bad["content"]
    assert texts(await cross_session_search(client, query="day", since="2026-07-02T00:00:00Z")) == ["day 2"]
    assert texts(await cross_session_search(client, query="day", since="2026-07-02T02:00:00+02:00")) == ["day 2"]


async def test_q4_terms_are_bounded(client):
    await store(client, "t1")
    for query in (",", "  ", ", ,"):
        assert (await cross_session_search(client, query=query))["is_error"]
    twenty = ",".join(f"t{number}" for number in range(20))
    assert texts(await cross_session_search(client, query=twenty)) == ["t1"]
    too_many = await cross_session_search(client, query=twenty + ",t20")
    assert too_many["is_error"]
    assert "20" in too_many["content"]
    assert (await cross_session_search(client, query="t1", matchMode="some"))["is_error"]


async def test_q5_the_order_is_by_instant_not_by_its_rendering(client):
    for session, fraction in [("s3", "00.999"), ("s1", "01.001"), ("s2", "01.000")]:
        await store(client, f"at {fraction}", session=session, timestamp=f"2026-01-01T00:00:{fraction}Z")
    assert texts(await cross_session_search(client, query="at")) == ["at 00.999", "at 01.000", "at 01.001"]


async def test_search_for_programs(client):
    await store(client, "one, two", "two", timestamp="2026-01-01T00:00:00Z")
    url = "/v1/users/alice/search"

    async def found(**body):
        response = await client.post(url, json=body)
        assert response.status_code == 200, response.text
        return [result["text"] for result in response.json()["results"]]

    assert await found(query="one, three") == ["one, two"]
    assert await found(terms=["one, two"]) == ["one, two"]
    assert await found(query="one, two", match_mode="all") == ["one, two"]
    assert await found(query="two", page_size=1, page=1) == ["two"]
    assert await found(query="two", until="2025-01-01T00:00:00Z") == []
    assert await found(query="two", types=["assistant"]) == []
    page = (await client.post(url, json={"query": "two", "page_size": 1})).json()
    assert (page["page"], page["page_size"], page["has_more"]) == (0, 1, True)
    assert set(page["results"][0]) == {"event_id", "session_id", "timestamp", "type", "text"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": ""},
        {"query": " , "},
        {"terms": []},
        {"terms": ["", " "]},
        {"query": "x", "terms": ["x"]},
        {"query": ",".join("x" * 21)},
        {"terms": ["x"] * 21},
        {"query": "x", "page_size": 101},
        {"query": "x", "page_size": 0},
        {"query": "x", "page": -1},
        {"query": "x", "since": "2026-07-01"},
        {"query": "x", "types": ["robot"]},
        {"query": "x", "match_mode": "some"},
        {"query": "x\u0000"},
        {"query": "x" * 1001},
        {"query": "x", "pattern": "y"},
    ],
)
async def test_a_wrong_search_is_422(shared_client, body):
    await shared_client.put("/v1/sessions/s", json={"user_id": "alice"})
    response = await shared_client.post("/v1/users/alice/search", json=body)
    assert response.status_code == 422
    assert response.json()["errors"]
    if "terms" not in body and body.get("query", "").count(",") < 2:
        assert (await shared_client.post("/v1/sessions/s/search", json=body)).status_code == (
            200 if body.get("query") == " , " else 422
        )


async def test_tool_definitions_are_listed_in_three_formats(shared_client):
    for shape in ("openai", "anthropic", "mcp"):
        tools = (await shared_client.get("/v1/tools", params={"format": shape})).json()["tools"]
        assert len(tools) == 8
    session = (await shared_client.get("/v1/tools", params={"scope": "session"})).json()["tools"]
    names = [tool["function"]["name"] for tool in session]
    assert "cross_session_search" not in names
    assert len(names) == 7
    assert (await shared_client.get("/v1/tools", params={"format": "xml"})).status_code == 422
