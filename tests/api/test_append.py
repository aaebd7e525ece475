"""Cases F, and what else an append promises."""

import asyncio
import json

import pytest


def user(content, **fields):
    return {"message": {"role": "user", "content": content}, **fields}


async def append(client, *events, session="s", **extra):
    body = {"events": list(events), "user_id": "alice"} | extra
    return await client.post(f"/v1/sessions/{session}/events", json=body)


async def texts(client, session="s"):
    return [event["text"] for event in (await client.get(f"/v1/sessions/{session}/events")).json()["events"]]


async def version(client, session="s"):
    return (await client.get(f"/v1/sessions/{session}")).json()["event_version"]


async def test_f1_the_order_of_insertion_is_the_order_of_the_log(client):
    await append(client, user("1", timestamp="2026-01-02T00:00:00Z"), user("2", timestamp="2026-01-01T00:00:00Z"))
    await append(client, user("3", timestamp="2026-01-01T00:00:00Z"), user("4"))
    assert await texts(client) == ["1", "2", "3", "4"]


async def test_f2_a_replay_is_a_no_op(client):
    first = await append(client, user("hi", id="a", timestamp="2026-01-01T00:00:00Z", metadata={"x": 1}))
    again = await append(client, user("hi", id="a", timestamp="2027-01-01T00:00:00Z", metadata={"x": 2}))
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"events": first.json()["events"], "event_version": 1, "appended": 0, "replayed": 1}


async def test_f2_inside_one_batch_too(client):
    response = await append(client, user("hi", id="a"), user("yo", id="b"), user("hi", id="a"))
    body = response.json()
    assert (body["appended"], body["replayed"], body["event_version"]) == (2, 1, 2)
    assert [event["id"] for event in body["events"]] == ["a", "b", "a"]
    assert await texts(client) == ["hi", "yo"]


async def test_f2_equal_means_equal_as_a_json_value(client):
    await append(client, {"id": "a", "message": {"role": "user", "content": "hi", "n": 1, "m": None}})
    raw = '{"events": [{"id": "a", "message": {"m": null, "n": 1.0, "content": "\\u0068i", "role": "user"}}]}'
    headers = {"Content-Type": "application/json"}
    again = await client.post("/v1/sessions/s/events", content=raw, headers=headers)
    assert again.status_code == 200
    absent = await append(client, {"id": "a", "message": {"role": "user", "content": "hi", "n": 1}})
    assert absent.status_code == 409


async def test_a_batch_of_old_and_new_writes_the_new(client):
    await append(client, user("1", id="a"))
    response = await append(client, user("1", id="a"), user("2", id="b"))
    assert (response.status_code, response.json()["appended"], response.json()["replayed"]) == (201, 1, 1)
    assert await texts(client) == ["1", "2"]


async def test_f3_equal_texts_are_two_events(client):
    await append(client, user("ok"))
    await append(client, user("ok"))
    assert await texts(client) == ["ok", "ok"]


async def test_f4_the_version_counts_events(client):
    assert (await append(client, user("1"))).json()["event_version"] == 1
    assert (await append(client, user("2"))).json()["event_version"] == 2
    assert (await append(client, *(user(str(n)) for n in range(5)))).json()["event_version"] == 7
    session = (await client.get("/v1/sessions/s")).json()
    assert session["event_count"] == session["active_event_count"] == session["active_turn_count"] == 7


async def test_f5_an_id_is_unique_in_its_session_alone(client):
    await append(client, user("1", id="a"))
    assert (await append(client, user("2", id="a"), session="t")).status_code == 201


async def test_f6_a_conflict_writes_nothing(client):
    await append(client, user("1", id="a"))
    response = await append(client, user("new", id="b"), user("other", id="a"), user("more"))
    assert response.status_code == 409
    assert "'a'" in response.json()["detail"]
    assert await texts(client) == ["1"]
    assert (await append(client, user("x", id="c"), user("y", id="c"))).status_code == 409
    assert await version(client) == 1


async def test_f7_identical_requests_that_race_write_once(client):
    await append(client, user("0"))
    batch = [user("1", id="a"), user("2", id="b")]
    responses = await asyncio.gather(*(append(client, *batch) for _ in range(12)))
    assert sorted(response.status_code for response in responses) == [200] * 11 + [201]
    assert len({json.dumps(response.json()["events"]) for response in responses}) == 1
    assert await texts(client) == ["0", "1", "2"]


async def test_f7_also_when_the_session_is_created_by_them(client):
    responses = await asyncio.gather(*(append(client, user("1", id="a")) for _ in range(8)))
    assert {response.status_code for response in responses} <= {200, 201}
    assert await texts(client) == ["1"]


async def test_f8_messages_come_back_verbatim(client):
    sent = [
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"broken": "\\u00e9'}},
                {"id": "", "type": "function", "function": {"name": "g", "arguments": ""}, "index": 0},
            ],
            "vendor": {"deep": [1, 0.1, 1.5, True, None, "ünï"]},
        },
        {"role": "tool", "tool_call_id": "c1", "content": "nul \u0000 and 😀 and \u2028"},
        {"role": "tool", "tool_call_id": "", "content": [{"type": "text", "text": "part"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        {"role": "developer", "content": "be brief"},
    ]
    await client.post("/v1/sessions", json={"id": "s", "user_id": "alice", "allow_system_messages": True})
    response = await append(client, *({"message": message} for message in sent))
    assert [event["message"] for event in response.json()["events"]] == sent
    read = (await client.get("/v1/sessions/s/events")).json()["events"]
    assert [event["message"] for event in read] == sent
    assert [event["text"] for event in read] == [None, sent[1]["content"], "part", None, "be brief"]
    assert [event["type"] for event in read] == ["assistant", "tool", "tool", "user", "system"]


async def test_numbers_keep_every_digit(client):
    raw = '{"events": [{"message": {"role": "user", "content": "x", "n": [1e400, 1.10, 12345678901234567890.5]}}]}'
    await client.put("/v1/sessions/s", json={"user_id": "alice"})
    await client.post("/v1/sessions/s/events", content=raw, headers={"Content-Type": "application/json"})
    body = (await client.get("/v1/sessions/s/events")).text
    assert "[1E+400,1.10,12345678901234567890.5]" in body


async def test_if_match_lets_one_of_several_writers_through(client):
    await append(client, user("0"))
    path, body = "/v1/sessions/s/events", {"events": [user("next")]}
    responses = await asyncio.gather(*(client.post(path, json=body, headers={"If-Match": '"1"'}) for _ in range(6)))
    assert sorted(response.status_code for response in responses) == [201] + [412] * 5
    assert await texts(client) == ["0", "next"]


async def test_if_match_does_not_refuse_replays(client):
    await append(client, user("0", id="a"))
    replay = {"events": [user("0", id="a")]}
    path = "/v1/sessions/s/events"
    assert (await client.post(path, json=replay, headers={"If-Match": '"99"'})).status_code == 200
    stale = {"events": [user("0", id="a"), user("new", id="b")]}
    assert (await client.post(path, json=stale, headers={"If-Match": '"0"'})).status_code == 412
    assert (await client.post(path, json=stale, headers={"If-Match": '"5"'})).status_code == 412
    assert (await client.post(path, json=stale, headers={"If-Match": "W/nonsense"})).status_code == 422
    assert await version(client) == 1


async def test_if_match_that_fails_creates_no_session(client):
    body = {"events": [user("x")], "user_id": "alice"}
    response = await client.post("/v1/sessions/new/events", json=body, headers={"If-Match": '"3"'})
    assert response.status_code == 412
    assert (await client.get("/v1/sessions/new")).status_code == 404


async def test_ownership(client):
    await append(client, user("0"))
    assert (await append(client, user("1"), user_id="bob")).status_code == 403
    assert (await append(client, user("1"), user_id=None)).status_code == 201
    assert (await client.post("/v1/sessions/none/events", json={"events": [user("x")]})).status_code == 404
    assert (await client.get("/v1/sessions/none/events")).status_code == 404


async def test_system_messages_are_refused_unless_allowed(client):
    await client.put("/v1/sessions/no", json={"user_id": "alice"})
    message = {"message": {"role": "system", "content": "be brief"}}
    refused = await append(client, user("hi"), message, session="no")
    assert refused.status_code == 422
    assert "allow_system_messages" in refused.json()["detail"]
    assert [error["loc"] for error in refused.json()["errors"]] == [["body", "events", 1, "message", "role"]]
    assert await version(client, "no") == 0
    assert (await append(client, message, session="new")).status_code == 422
    assert (await client.get("/v1/sessions/new")).status_code == 404, "a refused append creates nothing"
    await client.put("/v1/sessions/yes", json={"user_id": "alice", "allow_system_messages": True})
    assert (await append(client, message, session="yes")).status_code == 201


@pytest.mark.parametrize(
    ("event", "place"),
    [
        ({"message": {"role": "robot", "content": "x"}}, ["body", "events", 1, "message", "role"]),
        ({"message": {"role": "tool", "content": "x"}}, ["body", "events", 1, "message", "tool_call_id"]),
        ({"message": {"role": "user", "content": 1}}, ["body", "events", 1, "message", "content"]),
        ({"message": "hi"}, ["body", "events", 1, "message"]),
        ({}, ["body", "events", 1, "message"]),
        (user("x", id="a/b"), ["body", "events", 1, "id"]),
        (user("x", id="a\u0000"), ["body", "events", 1, "id"]),
        (user("x", timestamp="2026-01-01T00:00:00"), ["body", "events", 1, "timestamp"]),
        (user("x", timestamp="0001-01-01T00:00:00+14:00"), ["body", "events", 1, "timestamp"]),
        (user("x", metadata={"k": ["\u0000"]}), ["body", "events", 1, "metadata"]),
        (user("x", seq=5), ["body", "events", 1, "seq"]),
        (user("x", synthetic="yes"), ["body", "events", 1, "synthetic"]),
    ],
)
async def test_a_wrong_event_is_named_and_nothing_is_written(shared_client, event, place):
    response = await append(shared_client, user("fine"), event, session="wrong")
    assert response.status_code == 422
    assert response.json()["errors"][0]["loc"] == place
    assert (await shared_client.get("/v1/sessions/wrong")).status_code == 404


@pytest.mark.parametrize("size", [0, 1001])
async def test_batches_have_1_to_1000_events(shared_client, size):
    assert (await append(shared_client, *([user("x")] * size), session="wrong")).status_code == 422


async def test_a_batch_of_1000(client):
    response = await append(client, *(user(str(number)) for number in range(1000)))
    assert response.json()["appended"] == 1000
    assert await texts(client) == [str(number) for number in range(1000)]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"events": [{"message": {"role": "user", "content": "\\ud800"}}]}', "surrogate"),
        (b'{"events": [{"message": {"role": "user", "content": NaN}}]}', "valid JSON"),
        (b'{"events": ', "valid JSON"),
        (b"", "required"),
        (b"[]", ""),
        (b'{"events": [{"message": {"role": "user", "content": "x", "d": ' + b"[" * 70 + b"]" * 70 + b"}}]}", "64"),
        (b"[" * 100_000, "64"),
        (b'{"events": "\xff"}', "JSON"),
    ],
)
async def test_what_is_not_strict_json_is_422(shared_client, raw, says):
    headers = {"Content-Type": "application/json"}
    response = await shared_client.post("/v1/sessions/s/events", content=raw, headers=headers)
    assert response.status_code == 422
    assert says.lower() in response.json()["detail"].lower()
    assert response.json()["errors"]


async def test_a_synthetic_event_is_marked(client):
    response = await append(client, user("What was said so far?", synthetic=True))
    assert response.json()["events"][0]["synthetic"]
    assert (await client.get("/v1/sessions/s")).json()["active_turn_count"] == 0
