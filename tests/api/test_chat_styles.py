"""What clients resend, and what upstreams send, that is not as the book has it."""

import asyncio
import json
import threading

import pytest

from tests.api.chatting import WEATHER, call, chatting, result
from tests.upstream import Answer

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
RECALL = {"recall": True}


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url) as chats:
        yield chats


async def failing(chats, *messages, **options):
    """A chat whose upstream refuses it."""
    chats.upstream.reset(Answer(status=400))
    assert (await chats.post(*messages, **options)).status_code == 400
    chats.upstream.reset(Answer("answer"))


@pytest.mark.parametrize("key", [None, "run-1"])
async def test_a_retry_of_several_messages_stores_and_sends_them_once(chats, key):
    headers = {"Idempotency-Key": key} if key else None
    await failing(chats, "q1", "q2", headers=headers)
    await chats.say("q1", "q2", headers=headers)
    assert chats.sent == ["q1", "q2"]
    assert await chats.log() == ["q1", "q2", "a: answer"]


async def test_questions_that_failed_one_after_the_other_are_asked_once(chats):
    await failing(chats, "q1")
    await failing(chats, "q1", "q2")
    await chats.say("q1", "q2", "q3")
    assert chats.sent == ["q1", "q2", "q3"]
    assert await chats.log() == ["q1", "q2", "q3", "a: answer"]


@pytest.mark.parametrize("everything", [False, True])
async def test_a_retry_of_a_result_with_a_question_goes_through(chats, everything):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]))
    await chats.say("u", tools=[WEATHER])
    request = ["u", call("c1"), result("c1"), "and hurry"] if everything else [result("c1"), "and hurry"]
    await failing(chats, *request, tools=[WEATHER])
    await chats.say(*request, tools=[WEATHER])
    assert chats.sent == ["u", "calls c1", "t: result of c1", "and hurry"]
    assert await chats.log() == ["u", "calls c1", "t: result of c1", "and hurry", "a: answer"]


@BOTH
async def test_a_call_is_known_though_its_arguments_were_written_anew(chats, stream):
    chats.upstream.reset(Answer("Let me see.", calls=[("c1", "weather", '{"city":"Paris"}')]), Answer("Sunny."))
    await chats.say("u", tools=[WEATHER], stream=stream)
    resent = call("c1")  # Without the text that came with it.
    resent["tool_calls"][0]["function"]["arguments"] = json.dumps({"city": "Paris"})
    await chats.say("u", resent, result("c1"), tools=[WEATHER], stream=stream)
    assert chats.sent == ["u", "calls c1", "t: result of c1"]
    assert await chats.log() == ["u", "calls c1", "t: result of c1", "a: Sunny."]
    await chats.say("u", resent, result("c1"), "a: Sunny.", "next")
    assert chats.sent == ["u", "calls c1", "t: result of c1", "a: Sunny.", "next"]


async def test_a_result_is_stored_with_its_call_whatever_else_is_resent(chats):
    await chats.say("q0")
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("Sunny."))
    await chats.say("u", tools=[WEATHER])
    await chats.say("q0, edited", "a: answer, edited", "u, edited", call("c1"), result("c1"), tools=[WEATHER])
    assert chats.sent[-2:] == ["calls c1", "t: result of c1"]
    assert (await chats.log())[2:] == ["u", "calls c1", "t: result of c1", "a: Sunny."]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_question_that_the_client_gave_up_does_not_double_the_conversation(chats, interrupted):
    await chats.say("q0")
    if interrupted:
        chats.upstream.reset(Answer("a long answer", dies_after=2), Answer("answer"))
        await chats.post("q0", "a: answer", "q1", stream=True)
    else:
        await failing(chats, "q0", "a: answer", "q1")
    await chats.say("q0", "a: answer", "q2")
    await chats.say("q0", "a: answer", "q2", "a: answer", "q3")
    kept = [text for text in chats.sent if not text.startswith("a: a lo")]
    assert kept == ["q0", "a: answer", "q1", "q2", "a: answer", "q3"]


async def test_a_fragment_is_known_by_what_the_client_kept_of_it(chats):
    chats.upstream.reset(Answer("Hello Ada", dies_after=3), Answer("answer"))
    await chats.post("q", stream=True)
    await chats.say("q", "a: Hel", "q2")
    assert len(chats.sent) == 3
    await chats.say("q", "a: Hel", "q2", "a: answer", "q3")
    assert chats.sent[2:] == ["q2", "a: answer", "q3"]


async def test_an_answer_that_was_made_anew_does_not_double_the_conversation(chats):
    chats.upstream.reset(Answer("first"), Answer("second"), Answer("third"))
    await chats.say("q0")
    await chats.say("q0")  # "regenerate" of a chat front end
    await chats.say("q0", "a: second", "q1")
    assert chats.sent == ["q0", "a: first", "q0", "a: second", "q1"]


@BOTH
async def test_a_reply_that_repeats_a_call_id_is_a_failed_one(chats, stream):
    twice = [("c1", "weather", "{}"), ("c1", "conversation_search", "{}")]
    chats.upstream.reset(Answer(calls=twice))
    response = await chats.post("u", tools=[WEATHER], memory=RECALL, stream=stream, path="/v1/chat")
    assert response.status_code == 502 if not stream else "[DONE]" not in response.text
    chats.upstream.reset(Answer("fine"))
    await chats.say("u")
    assert chats.sent == ["u"]


async def test_the_role_of_a_reply_is_the_assistants(chats):
    body = {"choices": [{"message": {"role": "user", "content": "a"}, "finish_reason": "stop"}]}
    chats.upstream.reset(Answer(body=json.dumps(body).encode()))
    await chats.post("q")
    assert await chats.log() == ["q", "a: a"]


async def test_nulls_of_a_stored_reply_are_not_sent_back(chats):
    await chats.store("q", {"role": "assistant", "content": "a", "tool_calls": None, "name": None})
    await chats.say("q2")
    assert chats.upstream.requests[-1]["messages"][1] == {"role": "assistant", "content": "a"}


async def test_a_chunk_that_is_no_strict_json_does_not_end_the_stream(chats):
    pieces = [
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d"}}], "p": NaN}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ude00"}}]}\n\n',
        b"data: <junk>\n\n",
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
    ]
    chats.upstream.reset(Answer(body=pieces))
    response = await chats.post("q", stream=True)
    assert response.text.endswith("data: [DONE]\n\n")
    assert await chats.log() == ["q", "a: \U0001f600"]


async def test_a_date_to_come_back_at_is_passed_on(chats):
    date = "Fri, 31 Dec 2099 23:59:59 GMT"
    chats.upstream.reset(Answer(status=429, headers={"Retry-After": date}))
    response = await chats.post("q")
    assert (response.status_code, response.headers["Retry-After"]) == (429, date)
    assert len(chats.upstream.requests) == 1


async def test_the_budget_holds_in_every_round(chats):
    await chats.store(*(f"{'word ' * 40}{n}" if n % 2 == 0 else "a: ok" for n in range(20)))
    search = ("r1", "conversation_search", '{"query": "word"}')
    chats.upstream.reset(Answer(calls=[search]), Answer("Found."))
    await chats.say("?", memory={**RECALL, "max_context_tokens": 200})
    last = chats.upstream.requests[-1]["messages"]
    assert last[-1]["content"].startswith("[elided, event ")
    assert len(json.dumps(last)) < 2_000


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"filter": {"pattern": "("}}, ["body", "filter", "pattern"]),
        (
            {"memory": {"compaction": {"trigger": {"turns": 1}, "strategy": {"summarize": {"overlap": 10}}}}},
            ["body", "memory", "compaction", "strategy", "summarize", "overlap"],
        ),
        ({"memory": {"compaction": {"trigger": {"turns": 1}}}}, ["body", "memory", "compaction", "strategy"]),
    ],
)
async def test_a_fault_is_named_where_it_is(chats, fields, place):
    response = await chats.post("q", path="/v1/chat", **fields)
    assert response.status_code == 422
    assert response.json()["errors"][0]["loc"] == place


async def test_a_summarizer_that_is_not_allowed_is_refused(database_url):
    strategy = {"summarize": {"max_events": 4, "model": "huge"}}
    async with chatting(database_url, upstream_models="small") as chats:
        memory = {"compaction": {"trigger": {"turns": 1}, "strategy": strategy}}
        assert (await chats.post("q", memory=memory)).status_code == 422


async def test_a_session_deleted_while_a_request_waits_is_not_created_anew(chats):
    held = threading.Event()
    chats.upstream.reset(Answer("a1", hold=held))
    first = asyncio.create_task(chats.post("q1"))
    await chats.upstream.eventually(lambda script: script.requests)
    waiting = asyncio.create_task(chats.post("q2", path="/v1/chat"))
    while not chats.http._transport.app.state.services.chat.turns._lines:  # noqa: ASYNC110 (it tells nobody)
        await asyncio.sleep(0)
    await chats.http.delete("/v1/sessions/s")
    assert (await waiting).status_code == 404
    held.set()
    assert (await first).status_code == 200
    assert (await chats.http.get("/v1/sessions/s")).status_code == 404


async def test_reasoning_without_an_answer_is_kept_and_not_sent(chats):
    chats.upstream.reset(Answer("", reasoning="Hm."), Answer("answer"))
    await chats.say("q1")
    assert [event["message"].get("reasoning_content") for event in await chats.events()] == [None, "Hm."]
    await chats.say("q2")
    assert chats.sent == ["q1", "q2"]
