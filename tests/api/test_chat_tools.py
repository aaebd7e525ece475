"""Tools that the service runs itself: recall rounds, mixed replies, and what the client gets of them."""

import json

import pytest

from tests.api.chatting import WEATHER, call, chatting, chunks, result, streamed
from tests.upstream import USAGE, Answer

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
RECALL = {"recall": True}
SEARCH = ("r1", "conversation_search", '{"innerThought": "?", "query": "budget"}')


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url, chat_max_tool_rounds=2) as chats:
        yield chats


@BOTH
async def test_the_service_runs_its_tool_and_the_client_gets_the_answer_alone(chats, stream):
    await chats.store("The budget is 40.", "a: Noted.")
    chats.upstream.reset(Answer(calls=[SEARCH]), Answer("It is 40."))
    assert await chats.say("What was it?", memory=RECALL, stream=stream) in [
        {"role": "assistant", "content": "It is 40.", "refusal": None},
        {"role": "assistant", "content": "It is 40."},
    ]
    assert [tool["function"]["name"] for tool in chats.upstream.requests[0]["tools"]] == ["conversation_search"]
    assert chats.sent[-2] == "calls r1"
    assert json.loads(chats.sent[-1].removeprefix("t: "))[0]["text"] == "The budget is 40."
    types = [event["type"] for event in await chats.events()]
    assert types == ["user", "assistant", "user", "assistant", "tool", "assistant"]


@BOTH
async def test_the_client_resends_what_it_got_and_nothing_is_sent_or_stored_twice(chats, stream):
    chats.upstream.reset(Answer("Let me see. ", calls=[SEARCH]), Answer("It is 40."), Answer("Yes."))
    reply = await chats.say("What was it?", memory=RECALL, stream=stream)
    assert reply["content"] == ("Let me see. It is 40." if stream else "It is 40.")
    await chats.say("What was it?", reply, "Sure?", memory=RECALL, stream=stream)
    assert chats.sent == ["What was it?", "calls r1", "t: No results found.", "a: It is 40.", "Sure?"]
    assert len(await chats.events()) == 6


@BOTH
@pytest.mark.parametrize("everything", [False, True], ids=["results alone", "everything again"])
@pytest.mark.parametrize("first", ["service", "client"])
async def test_a_mixed_reply_is_joined_in_the_order_of_its_calls(chats, database_url, stream, everything, first):
    mixed = [SEARCH, ("c1", "weather", "{}")][:: 1 if first == "service" else -1]
    chats.upstream.reset(Answer("Both. ", calls=mixed), Answer("40 and sunny."))
    reply = await chats.say("Both?", tools=[WEATHER], memory=RECALL, stream=stream)
    assert [one["id"] for one in reply["tool_calls"]] == ["c1"]
    resent = ["Both?", {**call("c1"), "content": reply["content"]}] if everything else []
    if everything:
        resent[1]["tool_calls"][0]["function"]["arguments"] = "{}"
    async with chatting(database_url, upstream_of=chats) as replica:  # the loop goes on elsewhere
        answer = await replica.say(*resent, result("c1"), tools=[WEATHER], memory=RECALL, stream=stream)
    assert answer["content"] == "40 and sunny."
    ids = [one[0] for one in mixed]
    results = {"r1": "t: No results found.", "c1": "t: result of c1"}
    assert chats.sent == ["Both?", f"calls {' '.join(ids)}", *(results[one] for one in ids)]
    assert await chats.log() == ["Both?", f"calls {' '.join(ids)}", results["r1"], results["c1"], "a: 40 and sunny."]


@BOTH
async def test_after_so_many_rounds_the_model_has_to_answer(chats, stream):
    chats.upstream.reset(*(Answer(calls=[(f"r{n}", *SEARCH[1:])]) for n in (1, 2)), Answer("Nothing found."))
    assert (await chats.say("?", memory=RECALL, stream=stream))["content"] == "Nothing found."
    assert [request.get("tool_choice") for request in chats.upstream.requests] == [None, None, "none"]


@BOTH
async def test_a_model_that_never_stops_searching_is_stopped(chats, stream):
    chats.upstream.reset(Answer(calls=[SEARCH]))
    reply = await chats.say("?", memory=RECALL, stream=stream)
    assert not reply.get("tool_calls")
    assert len(chats.upstream.requests) == 3
    chats.upstream.reset(Answer("Fine."))
    await chats.say("next")  # the prompt is valid


async def test_a_forced_choice_becomes_auto_after_the_first_round(chats):
    forced = {"type": "function", "function": {"name": "conversation_search"}}
    chats.upstream.reset(Answer(calls=[SEARCH]), Answer("Done."))
    await chats.say("?", memory=RECALL, tool_choice=forced)
    assert [request["tool_choice"] for request in chats.upstream.requests] == [forced, "auto"]


async def test_no_tools_are_added_where_none_may_be_called(chats):
    await chats.say("?", memory=RECALL, tools=[WEATHER], tool_choice="none")
    assert [tool["function"]["name"] for tool in chats.upstream.requests[0]["tools"]] == ["weather"]


async def test_a_client_tool_of_the_same_name_wins(chats):
    own = {"type": "function", "function": {"name": "conversation_search", "description": "Mine."}}
    chats.upstream.reset(Answer(calls=[SEARCH]))
    reply = await chats.say("?", memory=RECALL, tools=[own])
    assert chats.upstream.requests[0]["tools"] == [own]
    assert [one["id"] for one in reply["tool_calls"]] == ["r1"]


async def test_several_answers_and_service_tools_exclude_each_other(chats):
    response = await chats.post("?", memory=RECALL, n=2, path="/v1/chat")
    assert (response.status_code, response.json()["errors"][0]["loc"]) == (422, ["body", "n"])
    assert (await chats.http.get("/v1/sessions/s")).status_code == 404


async def test_wrong_arguments_are_a_sentence_for_the_model(chats):
    chats.upstream.reset(Answer(calls=[("r1", "conversation_search", "no json")]), Answer("Sorry."))
    await chats.say("?", memory=RECALL)
    assert chats.sent[-1].startswith("t: Error: ")


async def test_a_stream_of_several_rounds_is_one_answer(chats):
    chats.upstream.reset(Answer("One. ", calls=[SEARCH, ("c1", "weather", "{}")][:1]), Answer("Two."))
    response = await chats.post("?", memory=RECALL, stream=True, stream_options={"include_usage": True})
    got = chunks(response.text)
    assert streamed(response.text)["content"] == "One. Two."
    assert {chunk["id"] for chunk in got} == {got[0]["id"]}
    choices = [choice for chunk in got for choice in chunk["choices"]]
    assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    usages = [chunk["usage"] for chunk in got if chunk.get("usage")]
    assert [usage["total_tokens"] for usage in usages] == [2 * USAGE["total_tokens"]]


async def test_usage_of_all_rounds_is_summed(chats):
    chats.upstream.reset(Answer(calls=[SEARCH]), Answer("Done."))
    response = await chats.post("?", memory=RECALL)
    assert response.json()["usage"]["total_tokens"] == 2 * USAGE["total_tokens"]


@BOTH
async def test_a_run_is_replayed_as_the_client_saw_it(chats, stream):
    chats.upstream.reset(Answer("One. ", calls=[SEARCH]), Answer("Two."))
    key = {"Idempotency-Key": "k"}
    first = await chats.say("?", memory=RECALL, stream=stream, headers=key)
    again = await chats.say("?", memory=RECALL, stream=stream, headers=key)
    assert again["content"] == first["content"]
    assert "tool_calls" not in again
    assert len(chats.upstream.requests) == 2


@BOTH
async def test_a_run_that_broke_off_goes_on_where_it_was(chats, stream):
    chats.upstream.reset(Answer(calls=[SEARCH]), Answer(status=400), Answer("Done."))
    broken = await chats.post("?", memory=RECALL, stream=stream)
    assert broken.status_code == 400 if not stream else "[DONE]" not in broken.text
    assert (await chats.say("?", memory=RECALL, stream=stream))["content"] == "Done."
    assert chats.sent == ["?", "calls r1", "t: No results found."]
    assert await chats.log() == ["?", "calls r1", "t: No results found.", "a: Done."]


@pytest.mark.parametrize(
    "tool",
    [{"type": ["function"]}, {"type": {"a": 1}}, {"type": None}, {"type": "function", "function": {"name": []}}],
)
async def test_what_is_no_tool_is_for_the_upstream_to_refuse(chats, tool):
    chats.upstream.reset(Answer("Yes."))
    await chats.say("Sure?", tools=[tool], memory=RECALL)
    sent = chats.upstream.requests.pop()["tools"]  # No provider takes it.
    assert sent[0] == tool
    assert [one["function"]["name"] for one in sent[1:]] == ["conversation_search"]
