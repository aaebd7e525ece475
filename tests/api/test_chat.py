"""Cases O of the specification: the chat cycle over HTTP, with a scripted upstream on a socket."""

import asyncio

import pytest

from tests.api.chatting import WEATHER, call, chatting, chunks, result, streamed
from tests.upstream import Answer

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url) as chats:
        yield chats


@BOTH
async def test_the_history_goes_before_what_is_new_o1(chats, stream):
    chats.upstream.reset(Answer("a1"), Answer("a2"))
    await chats.say("q1", stream=stream)
    assert (await chats.say("q2", stream=stream))["content"] == "a2"
    assert chats.sent == ["q1", "a: a1", "q2"]
    assert await chats.log() == ["q1", "a: a1", "q2", "a: a2"]


@pytest.mark.parametrize("session", [None, "", "  "])
async def test_a_chat_without_a_session_is_refused_o2(chats, session):
    for path in ("/v1/chat", "/v1/chat/completions"):
        response = await chats.post("q", session=session, path=path)
        assert response.status_code == 400
    assert not chats.upstream.requests


async def test_another_owner_is_refused_and_nothing_stored_o2(chats):
    await chats.say("q1", user_id="alice")
    assert (await chats.post("q2", user_id="bob")).status_code == 403
    await chats.say("q3")  # a service key may leave the user out
    assert await chats.log() == ["q1", "a: answer", "q3", "a: answer"]


async def test_a_session_is_created_for_the_given_or_the_default_user(chats):
    await chats.say("q", session="hers", user_id="alice")
    await chats.say("q", session="nobodys")
    owners = [(await chats.http.get(f"/v1/sessions/{name}")).json()["user_id"] for name in ("hers", "nobodys")]
    assert owners == ["alice", "default-user"]


async def test_a_session_that_a_chat_created_lives_on_with_each_turn(chats):
    await chats.say("q1")
    first = (await chats.http.get("/v1/sessions/s")).json()
    await chats.say("q2")
    assert first["ttl_sliding"] is True
    assert (await chats.http.get("/v1/sessions/s")).json()["expires_at"] > first["expires_at"]


async def test_a_filter_of_the_request_selects_the_history_o3(chats):
    for number in (1, 2):
        await chats.say(f"q{number}")
    await chats.say("q3", filter={"last_n": 2})
    assert chats.sent == ["q2", "a: answer", "q3"]


@BOTH
async def test_a_tool_loop_that_resends_the_current_turn_o4(chats, stream):
    chats.upstream.reset(Answer(calls=[("c1", "weather", '{"a": 1}')]), Answer("sunny"))
    reply = await chats.say("u", tools=[WEATHER], stream=stream)
    assert [one["id"] for one in reply["tool_calls"]] == ["c1"]
    resent = {**call("c1"), "tool_calls": [{**call("c1")["tool_calls"][0]}]}
    resent["tool_calls"][0]["function"] = {"name": "weather", "arguments": '{"a": 1}'}
    await chats.say("u", resent, result("c1"), tools=[WEATHER], stream=stream)
    assert chats.sent == ["u", "calls c1", "t: result of c1"]
    assert await chats.log() == ["u", "calls c1", "t: result of c1", "a: sunny"]


@BOTH
async def test_a_tool_loop_that_sends_the_result_alone_o5(chats, stream):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("sunny"))
    await chats.say("u", tools=[WEATHER], stream=stream)
    await chats.say(result("c1"), tools=[WEATHER], stream=stream)
    assert chats.sent == ["u", "calls c1", "t: result of c1"]
    assert await chats.log() == ["u", "calls c1", "t: result of c1", "a: sunny"]


async def test_the_latest_stored_system_prompt_is_sent_first_and_once_o6(chats):
    await chats.http.post("/v1/sessions", json={"id": "s", "user_id": "alice", "allow_system_messages": True})
    await chats.store("s: Answer in French.", "s: Answer in German.")
    await chats.say("s: Be brief.", "q", "s: Answer in German.")
    assert chats.sent == ["s: Answer in German.", "s: Be brief.", "q"]


async def test_the_stored_system_prompt_is_found_though_the_window_misses_it_o7(chats):
    await chats.http.post("/v1/sessions", json={"id": "s", "user_id": "alice", "allow_system_messages": True})
    await chats.store("s: prompt", *(text for n in (1, 2, 3) for text in (f"q{n}", f"a: a{n}")))
    await chats.say("q4", filter={"last_n": 2})
    assert chats.sent == ["s: prompt", "q3", "a: a3", "q4"]


async def test_a_broken_call_is_left_out_of_the_prompt_and_stays_in_the_log_o8(chats):
    await chats.store("q1", call("c1"), "q2", call("c2", "c3"), result("c2"), "q3", "a: a3")
    await chats.say("q4")
    assert chats.sent == ["q1", "q2", "q3", "a: a3", "q4"]
    assert len(await chats.log()) == 9


async def test_a_result_is_stored_exactly_when_its_call_is_o9(chats):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("sunny"))
    no_tools = {"message_filter": {"not": {"types": ["tool"]}}}
    await chats.say("u", tools=[WEATHER], memory=no_tools)
    await chats.say(result("c1"), tools=[WEATHER], memory=no_tools)
    assert await chats.log() == ["u", "calls c1", "t: result of c1", "a: sunny"]

    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("sunny"))
    no_calls = {"message_filter": {"types": ["user", "tool"]}}
    await chats.say("u", session="t", tools=[WEATHER], memory=no_calls)
    await chats.say("u", call("c1"), result("c1"), session="t", tools=[WEATHER], memory=no_calls)
    assert chats.sent == ["u", "calls c1", "t: result of c1"]
    assert await chats.log("t") == ["u"]


@BOTH
async def test_a_turn_is_compacted_when_it_is_complete_o10(chats, stream):
    compaction = {"trigger": {"turns": 1}, "strategy": {"turn_window": {"max_turns": 1}}, "mode": "inline"}
    await chats.say("q1", stream=stream)
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}")]), Answer("done"))
    await chats.say("q2", tools=[WEATHER], memory={"compaction": compaction}, stream=stream)
    assert len(await chats.log(exclude_archived=True)) == 4
    await chats.say(result("c1"), tools=[WEATHER], memory={"compaction": compaction}, stream=stream)
    assert await chats.log(exclude_archived=True) == ["q2", "calls c1", "t: result of c1", "a: done"]


async def test_of_two_first_requests_by_two_users_one_gets_403_o12(chats):
    responses = await asyncio.gather(*(chats.post("q", user_id=user) for user in ("alice", "bob")))
    assert sorted(response.status_code for response in responses) == [200, 403]
    assert len(await chats.log()) == 2


@BOTH
async def test_a_retry_with_the_same_key_is_one_question_and_one_answer_o13(chats, stream):
    key = {"Idempotency-Key": "run-1"}
    chats.upstream.reset(Answer(status=400), Answer("a"))
    assert (await chats.post("q", headers=key, stream=stream)).status_code == 400
    assert (await chats.say("q", headers=key, stream=stream))["content"] == "a"
    assert await chats.log() == ["q", "a: a"]


@BOTH
async def test_a_replay_is_answered_from_the_log_n1(chats, stream):
    chats.upstream.reset(Answer("a1"), Answer("a2"))
    first = await chats.post("q", headers={"Idempotency-Key": "run-1"}, stream=stream)
    again = await chats.post("q", headers={"Idempotency-Key": "run-1"}, stream=stream)
    if stream:
        assert streamed(first.text) == streamed(again.text)
    else:
        assert again.json()["choices"][0]["message"] == first.json()["choices"][0]["message"]
        assert {again.json()[name] == first.json()[name] for name in ("id", "model", "created", "usage")} == {True}
    assert len(chats.upstream.requests) == 1
    await chats.say("q", headers={"Idempotency-Key": "run-2"}, stream=stream)
    assert await chats.log() == ["q", "a: a1", "q", "a: a2"]


async def test_idempotent_ids_without_a_key_make_equal_texts_one_event_n3(chats):
    for _ in range(2):
        await chats.say("yes", memory={"event_ids": "idempotent"})
    assert await chats.log() == ["yes", "a: answer", "a: answer"]
    for _ in range(2):
        await chats.say("yes", session="t")
    assert await chats.log("t") == ["yes", "a: answer", "yes", "a: answer"]


@pytest.mark.parametrize("compacting", [False, True])
async def test_a_tool_loop_in_a_longer_conversation_sends_and_stores_once_o15(chats, compacting):
    compaction = {"trigger": {"turns": 1}, "strategy": {"turn_window": {"max_turns": 1}}, "mode": "inline"}
    memory = {"compaction": compaction} if compacting else {}
    await chats.say("q0", memory=memory)
    for turn in (1, 2, 3):
        question, call_id = f"q{turn}", f"c{turn}"
        chats.upstream.reset(Answer(calls=[(call_id, "weather", "{}")]), Answer(f"a{turn}"))
        await chats.say(question, tools=[WEATHER], memory=memory)
        await chats.say(question, call(call_id), result(call_id), tools=[WEATHER], memory=memory)
        assert chats.sent[-3:] == [question, f"calls {call_id}", f"t: result of {call_id}"]
    log = await chats.log()
    assert log == ["q0", "a: answer"] + [
        text for n in (1, 2, 3) for text in (f"q{n}", f"calls c{n}", f"t: result of c{n}", f"a: a{n}")
    ]


async def test_a_question_before_a_system_message_or_a_prefill_is_stored_o16(chats):
    await chats.say("q1", "s: Be brief.")
    await chats.say("q2", "a: It is")
    assert chats.sent == ["q1", "a: answer", "q2", "a: It is"]
    assert await chats.log() == ["q1", "a: answer", "q2", "a: answer"]


async def test_all_open_calls_are_answered_together_or_not_at_all_o17(chats):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}"), ("c2", "weather", "{}")]), Answer("later"))
    await chats.say("u", tools=[WEATHER])
    half = await chats.post(result("c1"), path="/v1/chat")
    assert half.status_code == 422
    assert half.json()["call_ids"] == ["c2"]
    await chats.say("never mind")
    late = await chats.post(result("c1"), result("c2"), path="/v1/chat")
    assert (late.status_code, late.json()["type"]) == (409, "urn:turnkeeper:problem:call-abandoned")
    assert await chats.log() == ["u", "calls c1 c2", "never mind", "a: later"]


async def test_a_result_of_an_unknown_call_is_refused(chats):
    response = await chats.post(result("nobody's"), path="/v1/chat")
    assert (response.status_code, response.json()["call_ids"]) == (422, ["nobody's"])
    assert (await chats.http.get("/v1/sessions/s")).status_code == 404


async def test_a_retry_without_a_key_is_stored_once_o18(chats):
    chats.upstream.reset(Answer(status=400), Answer("a"))
    assert (await chats.post("q")).status_code == 400
    await chats.say("q")
    assert chats.sent == ["q"]
    assert await chats.log() == ["q", "a: a"]


async def test_a_session_deleted_meanwhile_stays_empty_under_its_new_owner_o19(chats):
    def deleting(_):
        asyncio.run_coroutine_threadsafe(replace(), loop).result()
        return Answer("late")

    async def replace():
        await chats.http.delete("/v1/sessions/s")
        await chats.http.post("/v1/sessions", json={"id": "s", "user_id": "bob"})

    loop = asyncio.get_running_loop()
    chats.upstream.behaviour = deleting
    assert (await chats.say("q"))["content"] == "late"
    assert await chats.log() == []


@BOTH
async def test_recall_does_not_find_its_own_results_o20(chats, stream):
    await chats.say("the budget is 40")
    for _ in range(3):
        chats.upstream.reset(Answer(calls=[("r", "conversation_search", '{"query": "budget"}')]), Answer("40"))
        assert (await chats.say("how much?", memory={"recall": True}, stream=stream))["content"] == "40"
        found = chats.sent[-1]
        assert found.count("the budget is 40") == 1
        assert found.count("timestamp") == 1


RESENT = {
    "everything again": (["q0", "a: a0", "q1"], ["q0", "a: a0", "q1", "a: a1", "q1"]),
    "everything and a new question": (["q0", "a: a0", "q2"], ["q0", "a: a0", "q1", "a: a1", "q2"]),
    "examples first": (
        ["x", "a: y", "q0", "a: a0", "q1", "a: a1", "q2"],
        ["x", "a: y", "q0", "a: a0", "q1", "a: a1", "q2"],
    ),
}


@pytest.mark.parametrize(("resent", "sent"), RESENT.values(), ids=RESENT)
async def test_what_is_resent_is_sent_once_o21(chats, resent, sent):
    await chats.store("q0", "a: a0", "q1", "a: a1")
    await chats.say(*resent)
    assert chats.sent == sent


async def test_resent_turns_that_were_compacted_are_not_sent_again_o21(chats):
    await chats.store("q0", "a: a0", "q1", "a: a1")
    await chats.http.post("/v1/sessions/s/compact", json={"strategy": {"turn_window": {"max_turns": 1}}})
    await chats.say("q0", "a: a0", "q1", "a: a1", "q2")
    assert chats.sent == ["q1", "a: a1", "q2"]


async def test_results_sent_again_after_the_answer_are_refused_o22(chats):
    chats.upstream.reset(Answer(calls=[("c1", "weather", "{}"), ("c2", "weather", "{}")]), Answer("done"))
    await chats.say("u", tools=[WEATHER])
    await chats.say(result("c2"), result("c1"), tools=[WEATHER])
    again = await chats.post(result("c1"), result("c2"), path="/v1/chat")
    assert (again.status_code, again.json()["type"]) == (409, "urn:turnkeeper:problem:call-answered")
    assert sorted(again.json()["call_ids"]) == ["c1", "c2"]


async def test_an_interrupted_reply_is_left_out_when_the_question_is_asked_again_o23(chats):
    chats.upstream.reset(Answer("a long answer that breaks off", dies_after=3), Answer("whole"))
    broken = await chats.post("q", stream=True)
    assert "[DONE]" not in broken.text
    assert chunks(broken.text)[-1]["error"]
    await chats.say("q")
    assert chats.sent == ["q"]
    await chats.say("q2")
    assert chats.sent == ["q", "a: whole", "q2"]
    events = await chats.events()
    assert [event["metadata"].get("interrupted") for event in events[:3]] == [None, True, None]
    assert events[1]["text"] == "a lo" + "ng a"
