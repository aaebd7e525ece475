"""Chat in front of an LLM server that is not ours: llama.cpp's. `make live` brings it; the ordinary run has it not.

What the model says is beside the point. What it was sent shows in the server's own count of prompt tokens: the same
as for the whole conversation sent to it without the service in between.
"""

import json
from contextlib import contextmanager
from importlib.util import find_spec

import httpx
import pytest

from tests.live.llama import CONTEXT_TOKENS, MODEL, llama
from tests.service.process import service

pytestmark = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="run with make live")

CHAT = "/v1/chat/completions"
# Without the server's cache of prompts, the same prompt has the same answer.
GREEDY = {"temperature": 0, "max_tokens": 40, "stop": ["\n\n"], "cache_prompt": False}
LONG = {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}
BRIEF = {**GREEDY, "max_tokens": 4}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Differs from answer to answer.
VARYING = {"id", "created", "timings"}


def user(text):
    return {"role": "user", "content": text}


def answered(http, session, *messages, **options):
    response = http.post(CHAT, json={"messages": messages, **options}, headers={"X-Session-Id": session})
    assert response.status_code == 200, response.text
    return response


def sent(response):
    """The data of a stream's events, as they come."""
    return (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


@contextmanager
def streamed(http, session, *messages, **options):
    body = {"messages": messages, "stream": True, **options}
    with http.stream("POST", CHAT, json=body, headers={"X-Session-Id": session}) as response:
        assert response.status_code == 200, response.read()
        yield response


def chunks(http, session, *messages, **options):
    with streamed(http, session, *messages, **options) as response:
        *data, done = sent(response)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in data]


def text_of(stream):
    return "".join(choice["delta"].get("content") or "" for chunk in stream for choice in chunk["choices"])


def log(http, session):
    return http.get(f"/v1/sessions/{session}/events").json()["events"]


def conversation(http, session):
    return [event["message"] for event in log(http, session)]


def arguments_of(message):
    return [call["function"]["arguments"] for call in message.get("tool_calls", [])]


def same(answer):
    return {name: value for name, value in answer.items() if name not in VARYING}


def prompt_tokens(direct, messages, **options):
    response = direct.post(CHAT, json={"messages": messages, **BRIEF, **options})
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens"]


def tokens_predicted(direct):
    metrics = dict(line.rsplit(" ", 1) for line in direct.get("/metrics").text.splitlines() if line[0] != "#")
    return float(metrics["llamacpp:tokens_predicted_total"])


def test_a_whole_answer_is_the_servers_own(http, direct):
    ours = answered(http, "whole", user("Where is the Louvre?"), **GREEDY)
    theirs = direct.post(CHAT, json={"messages": [user("Where is the Louvre?")], **GREEDY})
    assert ours.json().keys() == theirs.json().keys()
    assert same(ours.json()) == same(theirs.json())
    question, reply = log(http, "whole")
    assert question["message"] == user("Where is the Louvre?")
    assert reply["message"] == ours.json()["choices"][0]["message"]
    assert ours.headers["X-Turnkeeper-Events"] == question["id"]
    assert ours.headers["X-Turnkeeper-Reply-Event"] == reply["id"]


def test_a_stream_is_the_servers_own_and_stored_as_one_reply(http, direct):
    ours = chunks(http, "streamed", user("Where is the Louvre?"), **GREEDY)
    body = {"messages": [user("Where is the Louvre?")], "stream": True, **GREEDY}
    with direct.stream("POST", CHAT, json=body) as response:
        *theirs, done = sent(response)
    assert done == "[DONE]"
    assert list(map(same, ours)) == [same(json.loads(chunk)) for chunk in theirs]
    assert ours[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert ours[-1]["choices"][0]["finish_reason"] == "stop"
    assert conversation(http, "streamed")[1] == {"role": "assistant", "content": text_of(ours)}


def test_usage_comes_as_the_last_chunk_for_those_who_ask(http):
    with_usage = chunks(http, "usage", user("Hello."), **BRIEF, stream_options={"include_usage": True})
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"]["completion_tokens"] > 0
    assert not any("usage" in chunk for chunk in chunks(http, "no-usage", user("Hello."), **BRIEF))


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_turn_takes_the_first_along(http, direct, stream):
    session = f"second-{stream}"
    if stream:
        chunks(http, session, user("My name is Ada."), **GREEDY)
    else:
        answered(http, session, user("My name is Ada."), **GREEDY)
    second = answered(http, session, user("What is my name?"), **GREEDY)
    said = conversation(http, session)
    assert [message["role"] for message in said] == ["user", "assistant", "user", "assistant"]
    assert second.json()["usage"]["prompt_tokens"] == prompt_tokens(direct, said[:3])
    assert second.json()["usage"]["prompt_tokens"] > prompt_tokens(direct, said[2:3])
    assert second.headers["X-Turnkeeper-Context"].startswith("events=2;tokens=")


@pytest.mark.parametrize("resends", [False, True])
def test_a_loop_of_streamed_calls_and_their_results(http, direct, resends):
    session = f"tools-{resends}"
    question = user("What is the weather in Paris?")
    asked = chunks(http, session, question, tools=[WEATHER], **GREEDY)
    assert asked[-1]["choices"][0]["finish_reason"] == "tool_calls"
    call = conversation(http, session)[1]
    function = call["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "Sunny, 31 degrees."}
    new = [question, call, result] if resends else [result]
    final = answered(http, session, *new, tools=[WEATHER], tool_choice="none", **GREEDY).json()
    said = conversation(http, session)
    assert said == [question, call, result, final["choices"][0]["message"]]
    assert final["usage"]["prompt_tokens"] == prompt_tokens(direct, said[:3], tools=[WEATHER], tool_choice="none")


@pytest.mark.parametrize("stream", [False, True])
def test_a_search_that_the_model_asks_for_is_run_by_the_service(http, stream):
    session = f"recall-{stream}"
    answered(http, session, user("It is always windy in Paris."), **GREEDY)
    asked = {**GREEDY, "max_tokens": 120, "memory": {"recall": True}}
    if stream:
        usage = {"stream_options": {"include_usage": True}}
        *reply, end, total = chunks(http, session, user("What is the weather in Paris?"), **asked, **usage)
        assert [choice["delta"].get("role") for chunk in reply for choice in chunk["choices"]].count("assistant") == 1
        text, reason, total = text_of(reply), end["choices"][0]["finish_reason"], total["usage"]
    else:
        answer = answered(http, session, user("What is the weather in Paris?"), **asked).json()
        choice, total = answer["choices"][0], answer["usage"]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    said = conversation(http, session)
    assert [message["role"] for message in said[2:]] == ["user", "assistant", "tool", "assistant"]
    assert [call["function"]["name"] for call in said[3]["tool_calls"]] == ["conversation_search"]
    assert (said[5]["content"], reason) == (text, "stop")
    assert total["total_tokens"] == total["prompt_tokens"] + total["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_token_limit_cut_does_no_harm_to_the_next_turn(http, direct, stream):
    session = f"cut-{stream}"
    question = user("What is the weather in Paris?")
    limited = {"tools": [WEATHER], **GREEDY, "max_tokens": 16}
    if stream:
        *_, last = chunks(http, session, question, **limited)
        assert last["choices"][0]["finish_reason"] == "length"
    else:
        choice = answered(http, session, question, **limited).json()["choices"][0]
        assert (choice["finish_reason"], arguments_of(choice["message"])) == ("length", ["{"])
    later = answered(http, session, user("Never mind."), **BRIEF)
    assert later.json()["usage"]["prompt_tokens"] == prompt_tokens(direct, [question, user("Never mind.")])


def test_the_server_refuses_every_prompt_with_a_call_that_the_token_limit_cut(direct):
    """Why such a call is not stored: a session whose client had answered it could never go on."""
    question = user("What is the weather in Paris?")
    limited = {"messages": [question], "tools": [WEATHER], **GREEDY, "max_tokens": 16}
    broken = direct.post(CHAT, json=limited).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": broken["tool_calls"][0]["id"], "content": "The call was cut."}
    assert direct.post(CHAT, json={"messages": [question, broken, result], **BRIEF}).status_code == 500


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_token_limit_cut_is_not_stored(http, stream):
    session = f"unstored-{stream}"
    question = user("What is the weather in Paris?")
    limited = {"tools": [WEATHER], **GREEDY, "max_tokens": 16}
    ask = chunks if stream else answered
    ask(http, session, question, **limited)
    assert not any(map(arguments_of, conversation(http, session)))


def test_a_client_that_leaves_a_stream_stops_the_server_and_what_it_got_is_kept(http, direct):
    before = tokens_predicted(direct)
    with streamed(http, "left", user("Tell me a long story."), **LONG) as response:
        data = map(json.loads, sent(response))
        seen = [next(data) for _ in range(5)]
    # The same question again: it waits until the first request has stored what it had, and is not stored twice.
    again = answered(http, "left", user("Tell me a long story."), **BRIEF)
    question, partial, reply = log(http, "left")
    assert question["message"] == user("Tell me a long story.")
    assert partial["metadata"]["interrupted"] is True
    assert partial["text"].startswith(text_of(seen))
    assert reply["message"] == again.json()["choices"][0]["message"]
    assert again.json()["usage"]["prompt_tokens"] == prompt_tokens(direct, [question["message"]])
    assert tokens_predicted(direct) - before < LONG["max_tokens"]


def test_a_client_that_leaves_a_whole_answer_stops_the_server(http, direct):
    before = tokens_predicted(direct)
    body = {"messages": [user("Tell me a long story.")], **LONG}
    with pytest.raises(httpx.ReadTimeout):
        http.post(CHAT, json=body, headers={"X-Session-Id": "left-whole"}, timeout=1)
    reply = answered(http, "left-whole", user("Tell me a long story."), **BRIEF).json()["choices"][0]["message"]
    assert conversation(http, "left-whole") == [user("Tell me a long story."), reply]
    assert tokens_predicted(direct) - before < LONG["max_tokens"]


def test_a_server_that_dies_midway_leaves_a_partial_reply_and_an_error(model, shared_database_url):
    with llama(model) as victim:
        settings = {"database_url": shared_database_url, "upstream_url": victim.url, "upstream_model": MODEL}
        with service(**settings) as running, httpx.Client(base_url=running.url(), timeout=60) as http:
            with streamed(http, "died", user("Tell me a long story."), **LONG) as response:
                data = map(json.loads, sent(response))
                seen = [next(data) for _ in range(5)]
                victim.kill()
                *rest, error = data
            assert "error" in error
            partial = log(http, "died")[1]
            assert partial["metadata"]["interrupted"] is True
            assert partial["text"] == text_of([*seen, *rest])
            gone = http.post(CHAT, json={"messages": [user("Are you there?")]}, headers={"X-Session-Id": "died"})
            assert gone.status_code == 502
            assert gone.json()["error"]["message"]
            assert conversation(http, "died")[-1] == user("Are you there?")


def test_an_error_of_the_server_keeps_its_status_and_words(http, direct):
    request = {"messages": [user("word " * 2 * CONTEXT_TOKENS)]}
    ours = http.post(CHAT, json=request, headers={"X-Session-Id": "error"})
    theirs = direct.post(CHAT, json=request)
    assert theirs.json()["error"]["type"] == "exceed_context_size_error"
    assert ours.status_code == theirs.status_code == 400
    assert ours.json() == theirs.json()
    assert conversation(http, "error") == request["messages"]


def test_a_session_larger_than_the_models_context_goes_on_with_its_newest_turns(http):
    turns = [
        {"id": f"{role}-{number}", "message": {"role": role, "content": "word " * 100}}
        for number in range(15)
        for role in ("user", "assistant")
    ]
    http.post("/v1/sessions/large/events", json={"user_id": "ada", "events": turns}).raise_for_status()
    question = {"messages": [user("Hello.")], **BRIEF}
    assert http.post(CHAT, json=question, headers={"X-Session-Id": "large"}).status_code == 400
    fits = answered(http, "large", user("Hello."), **BRIEF, memory={"max_context_tokens": 600})
    assert 400 < fits.json()["usage"]["prompt_tokens"] < 700
    assert conversation(http, "large").count(user("Hello.")) == 1


def test_the_models_are_the_servers_own(http, direct):
    ours, theirs = (client.get("/v1/models").json()["data"] for client in (http, direct))
    assert [model["id"] for model in ours] == [model["id"] for model in theirs] == [MODEL]
