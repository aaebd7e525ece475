"""The scripted upstream does what it says: everything about proxied chats is tested against it."""

import asyncio
import json
import threading
from collections import defaultdict

import httpx
import pytest

from tests.upstream import USAGE, Answer, scripted_upstream

ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**ASK, "stream": True}
CALLS = [("c1", "weather", '{"city": "Ulm"}'), ("c2", "time", "{}")]


@pytest.fixture(scope="module")
def server():
    with scripted_upstream() as script:
        yield script


@pytest.fixture
def upstream(server):
    server.reset()
    return server


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=20) as client:
        yield client


def post(http, upstream, request=ASK):
    return http.post(f"{upstream.url}/chat/completions", json=request)


def events(http, upstream, **fields):
    """The events of a stream, parsed; `[DONE]` as it is."""
    with http.stream("POST", f"{upstream.url}/chat/completions", json={**STREAM, **fields}) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        return list(parsed(response.iter_lines()))


def parsed(lines):
    for line in filter(None, lines):
        data = line.removeprefix("data: ")
        yield data if data == "[DONE]" else json.loads(data)


def reassembled(chunks):
    """For each choice its role, texts, calls and finish reason, put together as a client does."""
    choices = defaultdict(lambda: {"calls": {}, "finish": None})
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        whole, delta = choices[choice["index"]], choice["delta"]
        assert whole["finish"] is None, "nothing follows the finish chunk"
        whole["finish"] = choice["finish_reason"]
        for name in ("role", "content", "refusal", "reasoning_content"):
            if delta.get(name) is not None:
                whole[name] = whole.get(name, "") + delta[name]
        for entry in delta.get("tool_calls", []):
            call = whole["calls"].setdefault(entry["index"], {"arguments": ""})
            call |= {"id": entry["id"], "name": entry["function"]["name"]} if "id" in entry else {}
            call["arguments"] += entry["function"]["arguments"]
    return dict(choices)


def test_a_whole_answer(http, upstream):
    upstream.reset(Answer("Hi.", reasoning="Hm.", model="other", id="x"))
    body = post(http, upstream).json()
    assert (body["object"], body["id"], body["model"], body["usage"]) == ("chat.completion", "x", "other", USAGE)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hi.", "refusal": None, "reasoning_content": "Hm."}
    assert choice["finish_reason"] == "stop"


def test_whole_tool_calls(http, upstream):
    upstream.reset(Answer(calls=CALLS))
    (choice,) = post(http, upstream).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == CALLS


@pytest.mark.parametrize(
    "text", ["", "Hi.", "Grüße an 👩‍👩‍👧 und alle", "a lone \ud800 surrogate", "line\n\ndata: [DONE]\n\n"]
)
def test_the_pieces_of_a_text_reassemble(http, upstream, text):
    upstream.reset(Answer(text, reasoning="Let me think."))
    *chunks, done = events(http, upstream)
    assert done == "[DONE]"
    assert {(chunk["object"], chunk["model"]) for chunk in chunks} == {("chat.completion.chunk", "m")}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    (whole,) = reassembled(chunks).values()
    assert (whole["role"], whole["content"], whole["reasoning_content"]) == ("assistant", text, "Let me think.")
    assert whole["finish"] == "stop"


def test_the_fragments_of_calls_take_turns_and_reassemble(http, upstream):
    upstream.reset(Answer("Let me see.", calls=[*CALLS, ("", "noop", "")], pieces=3))
    *chunks, _ = events(http, upstream)
    (whole,) = reassembled(chunks).values()
    assert (whole["content"], whole["finish"]) == ("Let me see.", "tool_calls")
    calls = [whole["calls"][index] for index in range(3)]
    assert [(call["id"], call["name"], call["arguments"]) for call in calls] == [*CALLS, ("", "noop", "")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    order = [entry["index"] for delta in deltas for entry in delta.get("tool_calls", [])]
    assert order == [0, 1, 2, 0, 1, 0, 0, 0, 0]


def test_the_first_delta_of_a_call_has_null_content(http, upstream):
    upstream.reset(Answer(calls=CALLS))
    assert events(http, upstream)[0]["choices"][0]["delta"] == {"role": "assistant", "content": None, "refusal": None}


def test_a_refusal_is_streamed(http, upstream):
    upstream.reset(Answer(refusal="I will not.", finish_reason="content_filter"))
    (whole,) = reassembled(events(http, upstream)[:-1]).values()
    assert (whole["refusal"], whole["finish"], whole.get("content")) == ("I will not.", "content_filter", None)


def test_the_pieces_may_be_given(http, upstream):
    upstream.reset(Answer("abc", pieces=["a", "", "bc"]))
    contents = [chunk["choices"][0]["delta"].get("content") for chunk in events(http, upstream)[:-1]]
    assert contents == ["", "a", "", "bc", None]


def test_usage_comes_only_when_asked_for(http, upstream):
    upstream.reset(Answer("Hi."))
    assert not any("usage" in chunk for chunk in events(http, upstream)[:-1])
    *chunks, last, _ = events(http, upstream, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert {chunk["usage"] for chunk in chunks} == {None}


def test_several_choices(http, upstream):
    upstream.reset(Answer("Hi.", extra_choices=2, pieces=2))
    texts = ["Hi.", "Hi. #1", "Hi. #2"]
    assert [choice["message"]["content"] for choice in post(http, upstream).json()["choices"]] == texts
    choices = reassembled(events(http, upstream)[:-1])
    assert [choices[index]["content"] for index in range(3)] == texts


@pytest.mark.parametrize("count", [0, 2, 99])
def test_a_stream_that_dies_raises_in_the_client(http, upstream, count):
    upstream.reset(Answer("Hello there.", dies_after=count))
    seen = []
    with pytest.raises(httpx.RemoteProtocolError):
        with http.stream("POST", f"{upstream.url}/chat/completions", json=STREAM) as response:
            seen.extend(parsed(response.iter_lines()))
    assert len(seen) == min(count, 4)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in seen)


def test_a_whole_answer_that_dies_raises_in_the_client(http, upstream):
    upstream.reset(Answer("Hello there.", dies_after=0))
    with pytest.raises(httpx.RemoteProtocolError):
        post(http, upstream)
    upstream.reset(Answer("Back again."))
    assert post(http, upstream).status_code == 200


def test_a_stream_may_end_without_done(http, upstream):
    upstream.reset(Answer("Hi.", no_done=True))
    assert events(http, upstream)[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_error_in_the_middle(http, upstream):
    upstream.reset(Answer("Hello there.", error_after=2))
    *chunks, error, done = events(http, upstream)
    assert (len(chunks), error["error"]["type"], done) == (2, "server_error", "[DONE]")


@pytest.mark.parametrize("request_", [ASK, STREAM])
def test_errors_have_the_shape_of_openai(http, upstream, request_):
    upstream.reset(Answer("Slow down.", status=429, headers={"Retry-After": "1"}))
    response = post(http, upstream, request_)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
    error = {"message": "Slow down.", "type": "rate_limit_error", "code": None, "param": None}
    assert response.json() == {"error": error}


def test_bodies_are_sent_as_they_are(http, upstream):
    upstream.reset(Answer(status=502, body=b"<html>", headers={"Content-Type": "text/html"}))
    response = post(http, upstream)
    assert (response.status_code, response.content, response.headers["Content-Type"]) == (502, b"<html>", "text/html")
    upstream.reset(Answer(body=[b"data: {", b"}\r\n", b"\r\n: comment\n\n"]))
    assert post(http, upstream, STREAM).content == b"data: {}\r\n\r\n: comment\n\n"


def test_the_last_answer_repeats_and_requests_are_recorded(http, upstream):
    upstream.reset(Answer("one"), Answer("two"))
    texts = [post(http, upstream, {**ASK, "n": n}).json()["choices"][0]["message"]["content"] for n in range(3)]
    assert texts == ["one", "two", "two"]
    assert upstream.requests == [{**ASK, "n": n} for n in range(3)]
    assert {headers["Host"] for headers in upstream.headers} == {httpx.URL(upstream.url).netloc.decode()}


def test_a_behaviour_decides_from_the_request(http, upstream):
    upstream.reset(Answer("no"))
    upstream.behaviour = lambda request: Answer(request["messages"][-1]["content"].upper())
    assert post(http, upstream).json()["choices"][0]["message"]["content"] == "HELLO"


def test_a_behaviour_that_fails_fails_the_test(http):
    def refuse(request):
        raise AssertionError("The prompt is wrong.")

    def run():
        with scripted_upstream() as upstream:
            upstream.behaviour = refuse
            assert post(http, upstream).status_code == 500

    with pytest.raises(AssertionError, match="The prompt is wrong"):
        run()


def test_models_are_listed(http, upstream):
    listing = http.get(f"{upstream.url}/models", headers={"Authorization": "Bearer x"}).json()
    assert listing["object"] == "list"
    assert [entry["id"] for entry in listing["data"]] == ["scripted-small", "scripted-large"]
    assert upstream.listings[0]["Authorization"] == "Bearer x"
    assert http.get(f"{upstream.url}/nothing").json()["error"]["type"] == "not_found_error"


def test_a_stream_waits_in_its_middle(http, upstream):
    release = threading.Event()
    upstream.reset(Answer("Hello there.", hold_after=(2, release)))
    with http.stream("POST", f"{upstream.url}/chat/completions", json=STREAM) as response:
        received = parsed(response.iter_lines())
        first = [next(received), next(received)]
        assert [chunk["choices"][0]["delta"]["content"] for chunk in first] == ["", "Hell"]
        assert upstream.in_flight == 1
        release.set()
        assert list(received)[-1] == "[DONE]"
    upstream.wait(lambda script: script.in_flight == 0)
    assert upstream.cancelled == 0


def test_delays_delay(http, upstream):
    impatient = httpx.Timeout(5, read=0.2)
    for answer in (Answer("Hi.", delay=30), Answer("Hi.", chunk_delay=30)):
        upstream.reset(answer)
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"{upstream.url}/chat/completions", json=STREAM, timeout=impatient)
        upstream.wait(lambda script: script.cancelled == 1)


async def test_a_hundred_requests_are_held_and_answered(upstream):
    release = threading.Event()
    upstream.reset(Answer("Hi.", hold=release))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=20) as http:
        posts = [http.post(f"{upstream.url}/chat/completions", json={**STREAM, "n": n}) for n in range(100)]
        answering = asyncio.gather(*posts)
        await upstream.eventually(lambda script: script.in_flight == 100)
        release.set()
        assert all(response.text.endswith("data: [DONE]\n\n") for response in await answering)
    assert sorted(request["n"] for request in upstream.requests) == list(range(100))


@pytest.mark.parametrize("answer", [{"hold": threading.Event()}, {"hold_after": (1, threading.Event())}])
async def test_a_client_that_goes_away_is_counted(upstream, answer):
    upstream.reset(Answer("Hi.", **answer))
    async with httpx.AsyncClient(timeout=20) as http:
        asking = asyncio.create_task(http.post(f"{upstream.url}/chat/completions", json=STREAM))
        await upstream.eventually(lambda script: len(script.requests) == 1)
        asking.cancel()
        await upstream.eventually(lambda script: script.cancelled == 1)
    assert upstream.in_flight == 0


def test_waiting_has_a_deadline(upstream):
    with pytest.raises(TimeoutError, match="0 requests"):
        upstream.wait_for_requests(1, timeout=0.05)


def test_a_script_ends_while_answers_are_held_and_connections_idle():
    def fail_to_ask():
        with pytest.raises(httpx.RemoteProtocolError):
            post(http, upstream)

    with httpx.Client() as http:
        with scripted_upstream() as upstream:
            upstream.answers[:] = [Answer("Hi.", hold=threading.Event())]
            http.get(f"{upstream.url}/models")
            asking = threading.Thread(target=fail_to_ask)
            asking.start()
            upstream.wait_for_requests(1)
        asking.join(timeout=10)
        assert not asking.is_alive()
