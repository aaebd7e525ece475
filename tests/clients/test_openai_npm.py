"""The openai package for JavaScript: `driver.js` uses it as a program does, and tells what it got."""

import json
import os
import subprocess
import threading

import pytest

from tests.clients.conftest import IMPATIENT, KEY
from tests.clients.npm import HERE
from tests.upstream import MODELS, Answer

MODEL = MODELS[1]
QUESTION = ("user", "My name is Ada.")
CALLS = [("call-1", "get_weather", '{"city": "Paris"}'), ("call-2", "get_weather", '{"city": "Rome"}')]
LOOP = [QUESTION, ("assistant", None), ("tool", "Sunny."), ("tool", "Rain."), ("assistant", "Sun and rain.")]


@pytest.fixture
def start(packages, memory, session):
    """Starts a program of the driver in the session of the test."""

    def begin(program):
        with (HERE / "driver.js").open() as driver:
            return subprocess.Popen(
                ["node", "--input-type=module", "-", program],
                cwd=packages,
                env={**os.environ, "BASE_URL": memory.url, "API_KEY": KEY, "SESSION": session, "MODEL": MODEL},
                stdin=driver,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    return begin


@pytest.fixture
def told(start):
    """What a program tells, line by line, once it has ended."""

    def run(program):
        with start(program) as process:
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return [json.loads(line) for line in output.splitlines()]

    return run


def roles(script):
    return [message["role"] for message in script.requests[-1]["messages"]]


def test_a_chat_remembers_what_was_said(told, script, memory, session):
    script.reset(Answer(text="Hello Ada."), Answer(text="You are Ada."))
    first, headers, second = told("chat")
    assert first["text"] == "Hello Ada."
    assert first["usage"]["total_tokens"] == 18
    assert first["request_id"]
    question, reply, *_ = memory.log(session)
    assert headers["headers"]["x-session-id"] == session
    assert headers["headers"]["x-turnkeeper-events"] == question["id"]
    assert headers["headers"]["x-turnkeeper-reply-event"] == reply["id"]
    assert second["text"] == "You are Ada."
    assert script.requests[0]["temperature"] == 0.5
    assert roles(script) == ["user", "assistant", "user"]


def test_the_session_may_be_named_in_the_body(told, script, memory, session):
    assert told("session_in_the_body") == [{"text": "Hello Ada."}]
    assert memory.said(session) == [QUESTION, ("assistant", "Hello Ada.")]


def test_a_stream_is_the_upstreams_and_stored_whole(told, script, memory, session):
    chunks = told("stream")
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]) == (
        "Hello Ada."
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 18
    assert memory.said(session) == [QUESTION, ("assistant", "Hello Ada.")]


def test_the_stream_helper_puts_texts_and_calls_together(told, script, memory, session):
    script.reset(Answer(text="Let me look.", calls=CALLS))
    *deltas, final = told("stream_helper")
    assert "".join(delta["delta"] for delta in deltas) == "Let me look."
    calls = final["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == CALLS
    assert memory.log(session)[1]["message"]["tool_calls"] == [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in CALLS
    ]


@pytest.mark.parametrize("program", ["run_tools", "run_tools_streamed"])
def test_the_packages_own_tool_loop_stores_nothing_twice(told, script, memory, session, program):
    script.reset(Answer(text=None, calls=CALLS), Answer(text="Sun and rain."))
    assert told(program) == [{"result": "Sunny."}, {"result": "Rain."}, {"text": "Sun and rain."}]
    assert roles(script) == ["user", "assistant", "tool", "tool"]
    assert memory.said(session) == LOOP


def test_a_tool_loop_that_sends_results_only(told, script, memory, session):
    script.reset(Answer(text=None, calls=CALLS), Answer(text="Sun and rain."))
    (answer,) = told("results_only")
    assert answer["text"] == "Sun and rain."
    assert [call["id"] for call in answer["calls"]] == ["call-1", "call-2"]
    assert roles(script) == ["user", "assistant", "tool", "tool"]
    assert memory.said(session) == LOOP


def test_a_stream_that_is_aborted_keeps_what_was_read(told, script, memory, session):
    goes_on = threading.Event()
    script.reset(Answer(text="Hello Ada, how are you?", hold_after=(2, goes_on)), Answer(text="Hello again."))
    *deltas, last = told("aborted_stream")
    assert last == {"aborted": True}
    script.wait(lambda script: script.cancelled == 1)
    goes_on.set()
    assert told("session_in_the_body") == [{"text": "Hello again."}]
    read = "".join(delta["delta"] for delta in deltas)
    assert memory.said(session) == [QUESTION, ("assistant", read), ("assistant", "Hello again.")]


@pytest.mark.parametrize("failure", [{"dies_after": 3}, {"error_after": 3}])
def test_a_stream_that_breaks_off_throws(told, script, memory, session, failure):
    script.reset(Answer(text="Hello Ada, how are you?", **failure))
    *deltas, last = told("broken_stream")
    assert last["error"] == "APIError"
    partial = memory.log(session)[1]
    assert partial["text"] == "".join(delta["delta"] for delta in deltas)
    assert partial["metadata"]["interrupted"] is True


def test_what_the_service_refuses_is_thrown_as_the_packages_errors(told, script):
    no_session, embeddings, responses, no_messages, wrong_key = told("errors")
    assert (no_session["error"], no_session["status"]) == ("BadRequestError", 400)
    assert no_session["type"] == "invalid_request_error"
    assert "session" in no_session["message"]
    assert no_session["request_id"]
    for unknown in (embeddings, responses):
        assert (unknown["error"], unknown["status"]) == ("NotFoundError", 404)
        assert "/v1/chat/completions" in unknown["message"]
    assert (no_messages["error"], no_messages["status"]) == ("UnprocessableEntityError", 422)
    assert (wrong_key["error"], wrong_key["status"]) == ("AuthenticationError", 401)
    assert not script.requests


@pytest.mark.parametrize(
    ("status", "error"), [(400, "BadRequestError"), (429, "RateLimitError"), (500, "InternalServerError")]
)
def test_an_error_of_the_upstream_is_thrown_as_if_there_were_no_service_between(told, script, status, error):
    script.reset(Answer(status=status, text="No, Ada.", headers=IMPATIENT))
    (thrown,) = told("upstream_error")
    assert (thrown["error"], thrown["status"]) == (error, status)
    assert "No, Ada." in thrown["message"]


def test_a_busy_session_is_a_conflict_for_who_will_not_wait(told, start, script, memory, session):
    finishes = threading.Event()
    script.reset(Answer(text="Hello Ada.", hold=finishes))
    with start("session_in_the_body") as first:
        script.wait_for_requests(1)
        (conflict,) = told("busy")
        finishes.set()
        first.communicate(timeout=60)
    assert (conflict["error"], conflict["status"]) == ("ConflictError", 409)
    assert memory.said(session) == [QUESTION, ("assistant", "Hello Ada.")]


def test_an_own_retry_of_the_client_stores_the_question_once(told, script, memory, session):
    # The service tries three times itself, and then tells the client.
    script.reset(*[Answer(status=500)] * 3, Answer(text="Hello Ada."))
    assert told("retry") == [{"text": "Hello Ada."}]
    assert [request["messages"] for request in script.requests] == [[{"role": "user", "content": QUESTION[1]}]] * 4
    assert memory.said(session) == [QUESTION, ("assistant", "Hello Ada.")]


def test_the_models_are_the_upstreams(told, script):
    assert told("models") == [{"id": name} for name in MODELS]
