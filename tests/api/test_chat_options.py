"""Chat requests: both doors, ids, what goes upstream and what comes back, options and their settings."""

import asyncio
import json
import threading

import pytest

from app.config import SettingsError, load_settings
from app.main import create_app
from tests.api.chatting import WEATHER, call, chatting, chunks, result
from tests.upstream import MODELS, Answer

DOORS = pytest.mark.parametrize("path", ["/v1/chat", "/v1/chat/completions"])
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url) as chats:
        yield chats


@DOORS
async def test_ids_come_in_the_body_or_percent_encoded_in_headers(chats, path):
    headers = {"X-Session-Id": "caf%C3%A9", "X-User-Id": "al%20ice"}
    response = await chats.post("q", session=None, path=path, headers=headers)
    assert response.status_code == 200
    assert response.headers["X-Session-Id"] == "caf%C3%A9"
    assert (await chats.http.get("/v1/sessions/café")).json()["user_id"] == "al ice"
    differing = await chats.post("q", session="other", path=path, headers=headers)
    assert differing.status_code == 422
    assert (await chats.post("q", session=None, path=path, headers={"X-Session-Id": "%E9"})).status_code == 422


async def test_the_answer_reports_what_was_stored_and_loaded(chats):
    await chats.say("q1")
    response = await chats.post("q2")
    events = await chats.events()
    assert response.headers["X-Event-Version"] == "3"
    assert response.headers["X-Turnkeeper-Events"] == events[2]["id"]
    assert response.headers["X-Turnkeeper-Reply-Event"] == events[3]["id"]
    tokens = events[0]["tokens"] + events[1]["tokens"]
    assert response.headers["X-Turnkeeper-Context"] == f"events=2;tokens={tokens}"


async def test_fields_that_are_not_turnkeepers_go_upstream_as_they_are(chats):
    messages = '[{"role": "user", "content": "q"}]'
    raw = f'{{"session_id": "s", "temperature": 0.10, "x": {{"y": [1e40, null]}}, "messages": {messages}}}'
    headers = {"Content-Type": "application/json", "Authorization": "Bearer mine", "X-Custom": "mine"}
    response = await chats.http.post("/v1/chat", content=raw, headers=headers)
    assert response.status_code == 200
    sent = chats.upstream.requests[0]
    assert sent.keys() == {"temperature", "x", "messages", "model"}
    assert not {"authorization", "x-custom"} & {name.lower() for name in chats.upstream.headers[0]}


async def test_only_headers_of_use_come_back(chats):
    given = {"x-request-id": "upstream-7", "x-ratelimit-remaining-requests": "9", "set-cookie": "a=b"}
    chats.upstream.reset(Answer("a", headers=given))
    response = await chats.post("q")
    assert response.headers["x-request-id"] == "upstream-7"
    assert response.headers["x-ratelimit-remaining-requests"] == "9"
    assert "set-cookie" not in response.headers


async def test_an_upstream_error_keeps_its_status_and_its_words(chats):
    chats.upstream.reset(Answer("no such model", status=404, headers={"Retry-After": "3600"}))
    completions = await chats.post("q")
    assert (completions.status_code, completions.json()["error"]["message"]) == (404, "no such model")
    chat = await chats.post("q", path="/v1/chat")
    assert (chat.status_code, chat.headers["Retry-After"]) == (404, "3600")
    assert chat.headers["Content-Type"] == "application/problem+json"
    assert "no such model" in chat.json()["detail"]


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/embeddings", "/v1/audio/speech", "/v1/models/small", "/v1/chat/completions/x"]
)
async def test_what_is_not_offered_of_openais_api_says_what_is(chats, path):
    response = await chats.http.post(path, json={})
    assert response.status_code in {404, 405}
    assert "/v1/chat/completions" in response.json()["error"]["message"] or response.status_code == 405


async def test_models_are_the_upstreams(chats):
    models = (await chats.http.get("/v1/models")).json()
    assert {model["id"] for model in models["data"]} == set(MODELS)


@DOORS
async def test_errors_have_the_shape_of_their_door(chats, path):
    for body in ({}, {"session_id": "s", "messages": []}, {"session_id": "s", "messages": [{"role": "wizard"}]}):
        response = await chats.http.post(path, json=body)
        assert response.status_code == 422
        if path == "/v1/chat":
            assert response.json()["errors"]
        else:
            assert response.json()["error"]["param"].startswith("messages")


async def test_without_an_upstream_a_chat_says_what_to_set(client):
    response = await client.post("/v1/chat", json={"session_id": "s", "messages": [{"role": "user", "content": "q"}]})
    assert response.status_code == 503
    assert "TURNKEEPER_UPSTREAM_URL" in response.json()["detail"]
    assert (await client.get("/v1/sessions/s")).status_code == 404


async def test_only_allowed_models_are_asked(database_url):
    async with chatting(database_url, upstream_models="small,tiny") as chats:
        assert (await chats.post("q", model="large")).status_code == 422
        assert (await chats.http.get("/v1/sessions/s")).status_code == 404
        await chats.say("q", model="tiny")
        assert chats.upstream.requests[0]["model"] == "tiny"


async def test_several_choices_come_back_and_the_first_is_stored(chats):
    chats.upstream.reset(Answer("first", extra_choices=2))
    response = await chats.post("q", n=3)
    assert len(response.json()["choices"]) == 3
    await chats.post("q2", n=3, stream=True)
    assert await chats.log() == ["q", "a: first", "q2", "a: first"]


async def test_a_stream_passes_unchanged_with_its_usage(chats):
    chats.upstream.reset(
        Answer(
            "a",
            body=[
                b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}], "odd":1}\r\n\r\n',
                b": comment\n\n",
                b'data: {"choices": [{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
                b'data: {"choices": [], "usage": {"total_tokens": 7}}\n\ndata: [DONE]\n\n',
            ],
        )
    )
    response = await chats.post("q", stream=True)
    assert response.text == (
        'data: {"choices": [{"index": 0, "delta": {"content": "a"}}], "odd":1}\r\n\r\n: comment\n\n'
        'data: {"choices": [{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        'data: {"choices": [], "usage": {"total_tokens": 7}}\n\ndata: [DONE]\n\n'
    )
    assert chunks(response.text)[0]["odd"] == 1
    assert await chats.log() == ["q", "a: a"]


async def test_replace_puts_the_stored_history_in_place_of_the_resent(chats):
    await chats.store("q1", "a: a1")
    await chats.say("q1 edited", "a: a1 edited", "q2", memory={"history": "replace"})
    assert chats.sent == ["q1", "a: a1", "q2"]
    await chats.say("other", "a: other", "q3")
    assert chats.sent == ["q1", "a: a1", "q2", "a: answer", "other", "a: other", "q3"]


async def test_the_newest_turns_that_fit_are_sent(chats):
    for number in range(1, 4):
        await chats.say(f"question number {number}")
    await chats.say("q4", memory={"max_context_tokens": 16})
    assert chats.sent == ["question number 3", "a: answer", "q4"]


async def test_old_results_of_the_newest_turn_are_elided_before_it_is_refused(chats):
    chats.upstream.reset(
        Answer(calls=[("c1", "weather", "{}")]), Answer(calls=[("c2", "weather", "{}")]), Answer("done")
    )
    small = {"max_context_tokens": 60}
    await chats.say("u", tools=[WEATHER], memory=small)
    await chats.say(result("c1", "long " * 50), tools=[WEATHER], memory=small)
    first = (await chats.events())[2]
    assert chats.sent == ["u", "calls c1", f"t: [elided, event {first['id']}]"]
    assert first["text"] == "long " * 50
    refused = await chats.post("word " * 100, memory=small, path="/v1/chat")
    assert refused.status_code == 413
    assert "60" in refused.json()["detail"]
    assert len(await chats.events()) == 4


@BOTH
async def test_a_second_request_waits_for_its_turn(chats, stream):
    held = threading.Event()
    chats.upstream.reset(Answer("a1", hold=held), Answer("a2"))
    first = asyncio.create_task(chats.say("q1", stream=stream))
    await chats.upstream.eventually(lambda script: script.requests)
    rejected = await chats.post("q0", memory={"on_busy": "reject"}, path="/v1/chat", headers={"X-Request-Id": "me"})
    assert rejected.status_code == 409
    second = asyncio.create_task(chats.say("q2", stream=stream))
    held.set()
    await asyncio.gather(first, second)
    assert await chats.log() == ["q1", "a: a1", "q2", "a: a2"]


async def test_a_refusal_names_who_has_the_turn(chats):
    held = threading.Event()
    chats.upstream.reset(Answer("a1", hold=held))
    first = asyncio.create_task(chats.post("q1", headers={"X-Request-Id": "the-first"}))
    await chats.upstream.eventually(lambda script: script.requests)
    rejected = await chats.post("q2", memory={"on_busy": "reject"}, path="/v1/chat")
    assert "'the-first'" in rejected.json()["detail"]
    held.set()
    await first


async def test_turns_interleave_where_that_is_asked_for(chats):
    held = threading.Event()
    chats.upstream.reset(Answer("a1", hold=held), Answer("a2"))
    first = asyncio.create_task(chats.say("q1"))
    await chats.upstream.eventually(lambda script: script.requests)
    await chats.say("q2", memory={"on_busy": "interleave"})
    held.set()
    await first
    assert await chats.log() == ["q1", "q2", "a: a2", "a: a1"]
    await chats.say("q3")
    assert chats.sent == ["q1", "q2", "a: a2", "a: a1", "q3"]


FILTERS = {
    "m1 a reply that says nothing": (None, Answer("  "), ["  "]),
    "m1 all": ("all", Answer("  "), ["  ", "a:   "]),
    "m2 types": ({"types": ["user"]}, Answer("a"), ["  "]),
    "m2 contains": ({"contains": "YES"}, Answer("oh yes"), ["a: oh yes"]),
    "m2 or": ({"or": [{"types": ["user"]}, {"contains": "yes"}]}, Answer("oh yes"), ["  ", "a: oh yes"]),
}


@pytest.mark.parametrize(("message_filter", "answer", "stored"), FILTERS.values(), ids=FILTERS)
async def test_a_message_filter_decides_what_is_stored(chats, message_filter, answer, stored):
    chats.upstream.reset(answer)
    await chats.say("  ", memory={"message_filter": message_filter} if message_filter else None)
    assert await chats.log() == stored


async def test_an_answered_question_whose_answer_is_not_stored_may_be_asked_again(chats):
    memory = {"message_filter": {"types": ["user"]}}
    for _ in range(2):
        await chats.say("ok", memory=memory)
    assert await chats.log() == ["ok", "ok"]


async def test_settings_are_what_a_request_leaves_out(database_url):
    settings = {
        "chat_filter": '{"last_n": 2}',
        "chat_message_filter": {"types": ["user", "assistant"]},
        "chat_memory": {"on_busy": "reject"},
        "chat_compaction": {"trigger": {"turns": 2}, "strategy": {"turn_window": {"max_turns": 1}}, "mode": "inline"},
        "chat_default_user_id": "carol",
    }
    async with chatting(database_url, **settings) as chats:
        for number in (1, 2, 3):
            await chats.say(f"q{number}")
        assert chats.sent == ["q2", "a: answer", "q3"]
        assert await chats.log(exclude_archived=True) == ["q3", "a: answer"]
        assert (await chats.http.get("/v1/sessions/s")).json()["user_id"] == "carol"
        compacted = await chats.http.post("/v1/sessions/s/compact", json={})
        assert compacted.json()["reason"] == "fits"
        await chats.say("q4", memory={"compaction": None})
        assert len(await chats.log(exclude_archived=True)) == 4


_SUMMARIES = {"trigger": {"turns": 2}, "strategy": {"summarize": {"model": "large"}}}
WRONG = [
    ("chat_filter", '{"last_n": 0}'),
    ("chat_filter", "[]"),
    ("chat_filter", "0"),
    ("chat_filter", '{"pattern": "("}'),
    ("chat_filter", '{"keyword": "\\ud800"}'),
    ("chat_message_filter", '{"kinds": []}'),
    ("chat_message_filter", "[]"),
    ("chat_compaction", '{"trigger": {"turns": 2}}'),
    ("chat_compaction", "false"),
    ("chat_compaction", json.dumps(_SUMMARIES)),
    ("chat_memory", '{"histories": "prepend"}'),
    ("chat_memory", "[1]"),
    ("chat_memory", "false"),
    ("chat_memory", '{"store": "../x"}'),
    ("chat_memory", '{"store": "shared:"}'),
    ("chat_memory", '{"store": "\\ud800"}'),
    ("chat_memory", "{"),
    ("chat_default_user_id", "a/b"),
    ("chat_default_user_id", ""),
    ("memory_consolidation", "[]"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_setting_stops_the_start_and_is_named(monkeypatch, tmp_path, name, value):
    monkeypatch.chdir(tmp_path)
    if value:
        monkeypatch.setenv(f"TURNKEEPER_{name.upper()}", value)
    given = {"upstream_models": "small"} if value else {name: value}
    with pytest.raises(SettingsError, match=f"TURNKEEPER_{name.upper()}: .") as stopped:
        create_app(load_settings(**given), database_url="postgresql://nowhere/x")
    str(stopped.value).encode()


async def test_a_compaction_that_fails_is_no_failed_chat_and_backs_off_o11(chats):
    strategy = {"summarize": {"max_events": 2, "overlap": 0}}
    memory = {"compaction": {"trigger": {"turns": 1}, "strategy": strategy, "mode": "inline"}}
    summaries = []

    def behaviour(request):
        if request["messages"][0]["role"] == "system":
            summaries.append(request)
            return Answer(status=400)
        return Answer("answer")

    chats.upstream.behaviour = behaviour
    for number in range(4):
        await chats.say(f"q{number}", memory=memory)
    assert len(summaries) == 1  # then it is not tried again for a while
    assert len(await chats.log(exclude_archived=True)) == 8


@BOTH
async def test_a_summary_takes_the_place_of_old_turns(chats, stream):
    strategy = {"summarize": {"max_events": 2, "overlap": 0, "shadow_prompt": "So far?"}}
    memory = {"compaction": {"trigger": {"turns": 2}, "strategy": strategy}}
    chats.upstream.behaviour = lambda request: Answer("summed" if request["messages"][0]["role"] == "system" else "a")
    for number in range(3):
        await chats.say(f"q{number}", memory=memory, stream=stream)
    await chats.upstream.eventually(lambda script: len(script.requests) == 4)
    chats.upstream.behaviour = None
    await chats.compactions.finish()
    await chats.say("q0", "a: a", "q1", "a: a", "q2", "a: a", "q3")
    assert chats.sent == ["So far?", "a: summed", "q2", "a: a", "q3"]


async def test_reasoning_is_sent_back_within_its_turn_alone(chats):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")], reasoning="hmm"), Answer("done", reasoning="ok"))
    await chats.say("u", tools=[WEATHER])
    await chats.say(result("c1"), tools=[WEATHER])
    assert chats.upstream.requests[-1]["messages"][1]["reasoning_content"] == "hmm"
    await chats.say("u2")
    assert not any("reasoning_content" in message for message in chats.upstream.requests[-1]["messages"])


async def test_a_resent_call_is_recognised_though_an_sdk_added_fields(chats):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("done"))
    await chats.say("u", tools=[WEATHER])
    resent = {**call("c1"), "content": "", "refusal": None, "annotations": [], "audio": None}
    await chats.say("u", resent, result("c1"), tools=[WEATHER])
    assert chats.sent == ["u", "calls c1", "t: result of c1"]
