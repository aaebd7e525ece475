"""Cases G (applying a plan), H3 and L: compaction over HTTP, with a scripted upstream."""

import asyncio

import pytest

from app.domain.compaction import Plan
from app.domain.errors import PlanRefused
from app.storage import compactions, sessions
from tests.conftest import serving
from tests.upstream import Answer, scripted_upstream

ROLES = {"U": "user", "A": "assistant", "S": "system"}


@pytest.fixture(scope="module")
def upstream():
    with scripted_upstream() as script:
        yield script


@pytest.fixture
async def client(database_url, upstream):
    upstream.answers[:] = [Answer("They talked.")]
    upstream.requests.clear()
    upstream.headers.clear()
    options = {"upstream_url": upstream.url, "upstream_model": "small", "upstream_api_key": "secret"}
    async with serving(database_url, **options) as http:
        yield http


async def store(client, line, session="s"):
    body = {"user_id": "alice", "allow_system_messages": True}
    await client.put(f"/v1/sessions/{session}", json=body)
    events = [{"id": name, "message": {"role": ROLES[name[0]], "content": f"text {name}"}} for name in line.split()]
    response = await client.post(f"/v1/sessions/{session}/events", json={"events": events})
    assert response.status_code == 201, response.text


async def compact(client, session="s", **body):
    response = await client.post(f"/v1/sessions/{session}/compact", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def log(client, session="s", **query):
    """The log as a line: synthetic events as Σ, archived ones with a star."""
    events = (await client.get(f"/v1/sessions/{session}/events", params=query)).json()["events"]
    return " ".join(("Σ" if e["synthetic"] else e["id"]) + "*" * e["archived"] for e in events)


def slide(size):
    return {"sliding_window": {"max_events": size}}


def summarize(size, overlap=0, **options):
    return {"summarize": {"max_events": size, "overlap": overlap, **options}}


async def session(client):
    return (await client.get("/v1/sessions/s")).json()


async def check_counters(client):
    active = (await client.get("/v1/sessions/s/events", params={"exclude_archived": True})).json()["events"]
    state = await session(client)
    assert state["active_event_count"] == len(active)
    assert state["active_token_count"] == sum(event["tokens"] for event in active)
    assert state["active_turn_count"] == sum(e["type"] == "user" and not e["synthetic"] for e in active)
    everything = (await client.get("/v1/sessions/s/events")).json()["events"]
    assert state["event_count"] == len(everything)
    assert [event["seq"] for event in everything] == sorted(event["seq"] for event in everything)


async def test_g1_archiving_keeps_the_order_and_counts_once(client):
    await store(client, "U1 A1 U2 A2")
    before = (await client.get("/v1/sessions/s/events")).json()["events"]
    done = await compact(client, strategy=slide(2))
    assert (done["compacted"], done["reason"], done["archived"], done["kept"]) == (True, None, 2, 2)
    assert done["event_version"] == 5
    assert done["tokens_saved"] == sum(event["tokens"] for event in before[:2])
    assert await log(client) == "U1* A1* U2 A2"
    await check_counters(client)


async def test_g2_a_summary_stands_right_before_what_it_precedes(client, upstream):
    await store(client, "U1 A1 U2 A2")
    done = await compact(client, strategy=summarize(2))
    assert await log(client) == "U1* A1* Σ Σ U2 A2"
    assert [event["message"]["content"] for event in done["summary"]][1] == "They talked."
    assert {event["metadata"]["compaction_source"] for event in done["summary"]} == {"summarize"}
    assert len({event["timestamp"] for event in done["summary"]}) == 1
    assert done["event_version"] == 5
    await check_counters(client)
    context = (await client.get("/v1/sessions/s/context", params={"last_n": 3})).json()
    assert [message["content"] for message in context["messages"]][1:] == ["They talked.", "text U2", "text A2"]


async def test_g3_a_stale_version_changes_nothing(client):
    await store(client, "U1 A1 U2 A2")
    done = await compact(client, strategy=slide(2), if_version=3)
    assert (done["compacted"], done["reason"], done["event_version"]) == (False, "conflict", 4)
    assert await log(client) == "U1 A1 U2 A2"
    assert (await compact(client, strategy=slide(2), if_version=4))["compacted"]


async def test_g4_rolling_summaries_never_reorder(client, upstream):
    upstream.answers[:] = [Answer("first"), Answer("second"), Answer("third")]
    await store(client, "U1 A1 U2 A2")
    await compact(client, strategy=summarize(2))
    await store(client, "U3 A3")
    await compact(client, strategy=summarize(2))
    await store(client, "U4 A4")
    await compact(client, strategy=summarize(2))
    assert await log(client) == "U1* A1* Σ* Σ* U2* A2* Σ* Σ* U3* A3* Σ Σ U4 A4"
    assert await log(client, exclude_archived=True) == "Σ Σ U4 A4"
    assert "second" in upstream.requests[2]["messages"][1]["content"]
    await check_counters(client)


async def test_g5_a_plan_that_does_not_fit_is_refused_whole(client, db):
    await store(client, "U1 A1 U2")
    async with db.autocommit() as connection:
        stored = await sessions.get(connection, "s")
    for plan in (Plan(archive=(1024, 999), kept=0), Plan(archive=(1024,), kept=0, insert=(object(),), before=999)):
        with pytest.raises((PlanRefused, AttributeError)):
            async with db.transaction() as connection:
                await compactions.apply(connection, stored.key, plan, generation=0)
    assert await log(client) == "U1 A1 U2"
    assert (await session(client))["event_version"] == 3


async def test_g6_of_two_compactions_one_applies_and_appends_go_on(client, upstream):
    await store(client, "U1 A1 U2 A2 U3 A3")
    first, second = await asyncio.gather(*(compact(client, strategy=summarize(2)) for _ in range(2)))
    assert sorted([first["compacted"], second["compacted"]]) == [False, True]
    assert {first["reason"], second["reason"]} <= {None, "conflict", "fits"}
    assert await log(client) == "U1* A1* U2* A2* Σ Σ U3 A3"
    appending = asyncio.create_task(store(client, "U4 A4"))
    await compact(client, strategy=summarize(2))
    await appending
    assert (await log(client, exclude_archived=True)).endswith("U4 A4")
    await check_counters(client)


async def test_g7_archived_events_are_found_and_flagged(client):
    await store(client, "U1 A1 U2 A2")
    await compact(client, strategy=slide(2))
    found = (await client.post("/v1/sessions/s/search", json={"query": "text a1"})).json()
    assert [result["event_id"] for result in found["results"]] == ["A1"]
    assert (await client.get("/v1/sessions/s/events/A1")).json()["archived"]


async def test_i5_superseded_system_messages_go_even_when_all_fits(client):
    await store(client, "S1 U1 A1 S2 U2 A2")
    assert (await compact(client, strategy=slide(20)))["archived"] == 1
    assert await log(client) == "S1* U1 A1 S2 U2 A2"


async def test_triggers_are_asked_first(client, upstream):
    await store(client, "U1 A1 U2 A2")
    for trigger in ({"turns": 2}, {"tokens": 100_000}, {"any": [{"turns": 5}, {"tokens": 9999}]}):
        done = await compact(client, strategy=summarize(2), trigger=trigger)
        assert (done["compacted"], done["reason"]) == (False, "trigger")
    assert not upstream.requests
    assert (await compact(client, strategy=slide(2), trigger={"any": [{"turns": 9}, {"turns": 1}]}))["compacted"]


async def test_h2_superseded_system_messages_do_not_count(client):
    await store(client, "S1 S2 U1 A1 U2 A2")
    events = (await client.get("/v1/sessions/s/events")).json()["events"]
    counted = sum(event["tokens"] for event in events[1:])
    assert (await compact(client, strategy=slide(2), trigger={"tokens": counted + 1}))["reason"] == "trigger"
    assert (await compact(client, strategy=slide(2), trigger={"tokens": counted}))["compacted"]


async def test_reasons_for_nothing(client, upstream):
    await store(client, "U1 A1")
    assert (await compact(client, strategy=summarize(2)))["reason"] == "fits"
    await store(client, "A1 A2 A3", session="preamble")
    assert (await compact(client, session="preamble", strategy=slide(1)))["reason"] == "no_turn_start"
    assert not upstream.requests


async def test_l3_what_the_summarizer_sees(client, upstream):
    await store(client, "S1 U1 A1 U2 A2 U3 A3")
    await compact(client, strategy=summarize(4, overlap=1))
    request = upstream.requests[0]
    assert request["model"] == "small"
    assert set(request) == {"model", "messages"}, "no tools, no session"
    assert upstream.headers[0]["Authorization"] == "Bearer secret"
    text = request["messages"][1]["content"]
    summarized, following = text.split("## What follows")
    assert "User: text U1\nAssistant: text A1" in summarized
    assert "text U2" in following
    assert "text A2" not in text
    assert "text S1" not in text
    await compact(client, strategy=summarize(2, overlap=1, system_prompt="Be terse.", model="big"))
    second = upstream.requests[1]
    assert second["model"] == "big"
    assert second["messages"][0]["content"] == "Be terse."
    assert "They talked." in second["messages"][1]["content"].split("## Messages to summarize")[0]


async def test_l5_tools_reach_the_summarizer_by_name(client, upstream):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "thanks"},
    ]
    body = {"user_id": "alice", "events": [{"message": message} for message in messages]}
    await client.post("/v1/sessions/s/events", json=body)
    await compact(client, strategy=summarize(1))
    text = upstream.requests[0]["messages"][1]["content"]
    assert 'Assistant: [tool calls: weather({"city": "Ulm"})]\nTool [weather -> sunny]' in text


async def test_l4_a_blank_summary_archives_superseded_system_messages_alone(client, upstream):
    upstream.answers[:] = [Answer("  ")]
    await store(client, "S1 U1 A1 S2 U2 A2")
    done = await compact(client, strategy=summarize(2))
    assert (done["compacted"], done["reason"], done["archived"]) == (False, "blank_summary", 1)
    assert await log(client) == "S1* U1 A1 S2 U2 A2"


@pytest.mark.parametrize(
    "answer", [Answer(status=400), Answer(body=b"no json"), Answer(body=b'{"choices": []}'), Answer(status=401)]
)
async def test_l4_an_upstream_that_fails_is_502_and_changes_nothing(client, upstream, answer):
    upstream.answers[:] = [answer]
    await store(client, "U1 A1 U2 A2")
    response = await client.post("/v1/sessions/s/compact", json={"strategy": summarize(2)})
    assert (response.status_code, response.json()["type"].split(":")[-1]) == (502, "upstream-failed")
    assert await log(client) == "U1 A1 U2 A2"
    assert len(upstream.requests) == 1, "what would fail again is not tried again"


async def test_an_upstream_that_is_busy_is_asked_again(client, upstream):
    upstream.answers[:] = [Answer(status=429, headers={"Retry-After": "0"}), Answer("At last.")]
    await store(client, "U1 A1 U2 A2")
    assert (await compact(client, strategy=summarize(2)))["compacted"]
    upstream.answers[:] = [Answer(status=503, headers={"Retry-After": "3600"})]
    await store(client, "U3 A3")
    response = await client.post("/v1/sessions/s/compact", json={"strategy": summarize(2)})
    assert response.status_code == 502
    assert len(upstream.requests) == 3


async def test_without_an_upstream_a_summary_is_503_and_says_what_to_set(database_url):
    async with serving(database_url) as client:
        await store(client, "U1 A1 U2 A2")
        response = await client.post("/v1/sessions/s/compact", json={"strategy": summarize(2)})
        assert response.status_code == 503
        assert "TURNKEEPER_UPSTREAM_URL" in response.json()["detail"]
        assert (await compact(client, strategy=slide(2)))["compacted"]


async def test_models_may_be_limited(database_url, upstream):
    async with serving(database_url, upstream_url=upstream.url, upstream_models="a, b") as client:
        await store(client, "U1 A1 U2 A2")
        response = await client.post("/v1/sessions/s/compact", json={"strategy": summarize(2, model="c")})
        assert response.status_code == 422
        assert "a, b" in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"strategy": {}},
        {"strategy": None},
        {"strategy": {"sliding_window": None}},
        {"strategy": {"sliding_window": {"max_events": 0}}},
        {"strategy": {"turn_window": {"max_turns": -1}}},
        {"strategy": {"token_budget": {"max_tokens": 0}}},
        {"strategy": {"summarize": {"max_events": 2, "overlap": 2}}},
        {"strategy": {"summarize": {"max_events": 2, "overlap": -1}}},
        {"strategy": {"sliding_window": {}, "turn_window": {}}},
        {"strategy": {"forget": {}}},
        {"strategy": slide(2), "trigger": {"turns": 0}},
        {"strategy": slide(2), "trigger": {"any": []}},
        {"strategy": slide(2), "trigger": {"turns": 1, "tokens": 1}},
        {"strategy": slide(2), "if_version": "4"},
    ],
)
async def test_h3_a_wrong_request_is_422(shared_client, body):
    await shared_client.put("/v1/sessions/s", json={"user_id": "alice"})
    response = await shared_client.post("/v1/sessions/s/compact", json=body)
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["loc"][0] == "body"


async def test_an_unknown_session_is_404(shared_client):
    assert (await shared_client.post("/v1/sessions/none/compact", json={"strategy": slide(2)})).status_code == 404
