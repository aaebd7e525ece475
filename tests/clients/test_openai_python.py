"""The openai package for Python: its client, stream helper, retries and exceptions, as a program uses them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import IMPATIENT, KEY
from tests.upstream import MODELS, Answer

MODEL = MODELS[1]
QUESTION = {"role": "user", "content": "My name is Ada."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALLS = [("call-1", "get_weather", '{"city": "Paris"}'), ("call-2", "get_weather", '{"city": "Rome"}')]
RESULTS = [
    {"role": "tool", "tool_call_id": "call-1", "content": "Sunny."},
    {"role": "tool", "tool_call_id": "call-2", "content": "Rain."},
]


@pytest.fixture
def client(memory):
    with openai.OpenAI(base_url=memory.url, api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def create(client, session):
    """`chat.completions.create` in the session of the test."""

    def make(*messages, **options):
        headers = {"X-Session-Id": session, "X-User-Id": "ada"}
        return client.chat.completions.create(
            model=MODEL, messages=list(messages), **{"extra_headers": headers, **options}
        )

    return make


def roles(script):
    return [message["role"] for message in script.requests[-1]["messages"]]


def test_a_chat_remembers_what_was_said(create, script, memory, session):
    script.reset(Answer(text="Hello Ada."), Answer(text="You are Ada."))
    assert create(QUESTION).choices[0].message.content == "Hello Ada."
    second = create({"role": "user", "content": "Who am I?"}, temperature=0.5, seed=7)
    assert second.choices[0].message.content == "You are Ada."
    assert second.model == MODEL
    assert second.usage.total_tokens == 18
    request = script.requests[-1]
    assert [message["content"] for message in request["messages"]] == ["My name is Ada.", "Hello Ada.", "Who am I?"]
    assert (request["temperature"], request["seed"], request["model"]) == (0.5, 7, MODEL)
    assert [type_ for type_, _ in memory.said(session)] == ["user", "assistant", "user", "assistant"]


def test_nothing_of_turnkeepers_own_goes_upstream(create, script):
    create(QUESTION, extra_body={"user_id": "ada", "filter": {"last_n": 4}, "memory": {"history": "prepend"}})
    assert script.requests[-1].keys() == {"model", "messages"}
    headers = {name.lower(): value for name, value in script.headers[-1].items()}
    assert headers["authorization"] == "Bearer upstream-key"
    assert not any(name.startswith(("x-session", "x-user", "x-stainless")) for name in headers)


def test_the_session_may_be_named_in_the_body(client, memory, session, script):
    client.chat.completions.create(model=MODEL, messages=[QUESTION], extra_body={"session_id": session})
    assert memory.said(session) == [("user", "My name is Ada."), ("assistant", "Hello Ada.")]


def test_the_session_may_be_a_default_of_the_client(memory, session, script):
    headers = {"X-Session-Id": session}
    with openai.OpenAI(base_url=memory.url, api_key=KEY, default_headers=headers) as client:
        client.chat.completions.create(model=MODEL, messages=[QUESTION])
    assert len(memory.log(session)) == 2


def test_raw_responses_tell_what_was_stored(client, memory, session, script):
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[QUESTION], extra_headers={"X-Session-Id": session}
    )
    question, reply = memory.log(session)
    assert raw.headers["X-Session-Id"] == session
    assert raw.headers["X-Turnkeeper-Events"] == question["id"]
    assert raw.headers["X-Turnkeeper-Reply-Event"] == reply["id"]
    assert raw.headers["X-Turnkeeper-Context"] == "events=0;tokens=0"
    assert int(raw.headers["X-Event-Version"]) >= 1
    assert raw.parse().choices[0].message.content == "Hello Ada."
    assert raw.request_id


def test_a_stream_comes_piece_by_piece_and_is_stored_whole(create, script, memory, session):
    goes_on = threading.Event()
    script.reset(Answer(text="Hello Ada.", hold_after=(2, goes_on)))
    with create(QUESTION, stream=True) as stream:
        first = next(chunk for chunk in stream if chunk.choices[0].delta.content)
        goes_on.set()
        rest = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in [first, *rest])
    assert text == "Hello Ada."
    assert rest[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in rest)
    assert memory.said(session) == [("user", "My name is Ada."), ("assistant", "Hello Ada.")]


def test_usage_of_a_stream_comes_last(create, script):
    *_, last = create(QUESTION, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.total_tokens == 18


def test_the_stream_helper_puts_texts_and_calls_together(client, script, memory, session):
    # One call: the helper parses the arguments of a call as soon as a delta of another one comes.
    script.reset(Answer(text="Let me look.", calls=CALLS[:1]))
    with client.chat.completions.stream(
        model=MODEL, messages=[QUESTION], tools=[WEATHER], extra_headers={"X-Session-Id": session}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "tool_calls.function.arguments.done"} <= set(kinds)
    message = final.choices[0].message
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == CALLS[:1]
    assert final.choices[0].finish_reason == "tool_calls"
    stored = memory.log(session)[1]["message"]
    assert stored["content"] == "Let me look."
    assert [call["id"] for call in stored["tool_calls"]] == ["call-1"]


def test_structured_output_passes_through(client, script, session):
    class Person(BaseModel):
        name: str

    script.reset(Answer(text='{"name": "Ada"}'))
    parsed = client.chat.completions.parse(
        model=MODEL, messages=[QUESTION], response_format=Person, extra_headers={"X-Session-Id": session}
    )
    assert parsed.choices[0].message.parsed == Person(name="Ada")
    assert script.requests[-1]["response_format"]["json_schema"]["name"] == "Person"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("style", ["resends everything", "resends the turn", "sends results only"])
def test_a_tool_loop_in_every_style(create, script, memory, session, style, stream):
    script.reset(Answer(text="Hello Ada."), Answer(text=None, calls=CALLS), Answer(text="Sun and rain."))
    said = [QUESTION]
    said.append(create(*said).choices[0].message)
    question = {"role": "user", "content": "What is the weather?"}
    said.append(question)
    call = create(*(said if style == "resends everything" else [question]), tools=[WEATHER]).choices[0].message
    new = {
        "resends everything": [*said, call, *RESULTS],
        "resends the turn": [question, call, *RESULTS],
        "sends results only": RESULTS,
    }[style]
    answer = create(*new, tools=[WEATHER], stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert text == "Sun and rain."
    assert roles(script) == ["user", "assistant", "user", "assistant", "tool", "tool"]
    assert script.requests[-1]["tools"] == [WEATHER]
    assert [call["id"] for call in script.requests[-1]["messages"][3]["tool_calls"]] == ["call-1", "call-2"]
    assert memory.said(session) == [
        ("user", "My name is Ada."),
        ("assistant", "Hello Ada."),
        ("user", "What is the weather?"),
        ("assistant", None),
        ("tool", "Sunny."),
        ("tool", "Rain."),
        ("assistant", "Sun and rain."),
    ]


def test_a_client_that_resends_its_whole_conversation_stores_nothing_twice(create, script, memory, session):
    said = []
    for number in range(4):
        script.reset(Answer(text=f"Answer {number}."))
        said.append({"role": "user", "content": f"Question {number}."})
        said.append(create({"role": "system", "content": "Be brief."}, *said).choices[0].message)
    assert roles(script) == ["system", *["user", "assistant"] * 3, "user"]
    assert len(memory.log(session)) == 8


def test_a_chat_without_a_session_is_a_bad_request(client, script):
    with pytest.raises(openai.BadRequestError, match="session") as caught:
        client.chat.completions.create(model=MODEL, messages=[QUESTION])
    assert caught.value.body.keys() >= {"message", "type", "param", "code"}
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    assert not script.requests


def test_a_wrong_key_is_an_authentication_error(memory, script, session):
    with openai.OpenAI(base_url=memory.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=MODEL, messages=[QUESTION], extra_headers={"X-Session-Id": session})
    assert caught.value.body.keys() >= {"message", "type", "param", "code"}


def test_a_session_of_another_user_is_denied(create, script, session):
    create(QUESTION)
    with pytest.raises(openai.PermissionDeniedError):
        create(QUESTION, extra_headers={"X-Session-Id": session, "X-User-Id": "bob"})


def test_no_messages_are_unprocessable(create, script):
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        create()
    assert caught.value.body["message"]


def test_what_is_not_offered_is_not_found_and_says_what_is(client, script):
    for attempt in (
        lambda: client.embeddings.create(model=MODEL, input="Ada"),
        lambda: client.responses.create(model=MODEL, input="Ada"),
        lambda: client.completions.create(model=MODEL, prompt="Ada"),
    ):
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions") as caught:
            attempt()
        assert caught.value.body.keys() >= {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_upstream_is_raised_as_if_there_were_no_service_between(
    create, script, memory, session, status, raised, stream
):
    script.reset(Answer(status=status, text="No, Ada.", headers={**IMPATIENT, "x-ratelimit-remaining-tokens": "0"}))
    with pytest.raises(raised, match=r"No, Ada\.") as caught:
        create(QUESTION, stream=stream)
    assert caught.value.status_code == status
    assert caught.value.response.headers["x-ratelimit-remaining-tokens"] == "0"
    assert caught.value.response.headers["Retry-After"] == "61"
    assert memory.said(session) == [("user", "My name is Ada.")]


def test_an_own_retry_of_the_client_stores_the_question_once(memory, session, script):
    # The service tries three times itself, and then tells the client.
    script.reset(*[Answer(status=500)] * 3, Answer(text="Hello Ada."))
    with openai.OpenAI(base_url=memory.url, api_key=KEY, max_retries=2) as client:
        client.chat.completions.create(model=MODEL, messages=[QUESTION], extra_headers={"X-Session-Id": session})
    assert [request["messages"] for request in script.requests] == [[QUESTION]] * 4
    assert memory.said(session) == [("user", "My name is Ada."), ("assistant", "Hello Ada.")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_sent_again_with_its_key_is_answered_from_the_log(create, script, memory, session, stream):
    def ask():
        headers = {"X-Session-Id": session, "Idempotency-Key": "key-1"}
        answer = create(QUESTION, stream=stream, extra_headers=headers)
        if not stream:
            return answer.id, answer.choices[0].message.content
        chunks = list(answer)
        return chunks[0].id, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    first = ask()
    assert first[1] == "Hello Ada."
    assert ask() == first
    assert len(script.requests) == 1
    assert memory.said(session) == [("user", "My name is Ada."), ("assistant", "Hello Ada.")]


def test_a_busy_session_is_a_conflict_for_who_will_not_wait(create, script, memory, session):
    finishes = threading.Event()
    script.reset(Answer(text="Hello Ada.", hold=finishes))
    with ThreadPoolExecutor() as threads:
        threads.submit(create, QUESTION)
        script.wait_for_requests(1)
        with pytest.raises(openai.ConflictError) as caught:
            create({"role": "user", "content": "Are you there?"}, extra_body={"memory": {"on_busy": "reject"}})
        finishes.set()
    assert caught.value.body["message"]
    assert memory.said(session) == [("user", "My name is Ada."), ("assistant", "Hello Ada.")]


@pytest.mark.parametrize("failure", [{"dies_after": 3}, {"error_after": 3}])
def test_a_stream_that_breaks_off_raises(create, script, memory, session, failure):
    script.reset(Answer(text="Hello Ada, how are you?", **failure))
    stream = create(QUESTION, stream=True)
    got = [next(stream).choices[0].delta.content or "" for _ in range(3)]
    with pytest.raises(openai.APIError):
        next(stream)
    partial = memory.log(session)[1]
    assert partial["text"] == "".join(got)
    assert partial["metadata"]["interrupted"] is True


def test_a_stream_that_is_closed_keeps_what_was_read_and_the_question_can_be_asked_again(
    create, script, memory, session
):
    goes_on = threading.Event()
    script.reset(Answer(text="Hello Ada, how are you?", hold_after=(4, goes_on)), Answer(text="Hello again."))
    with create(QUESTION, stream=True) as stream:
        read = [next(stream).choices[0].delta.content for _ in range(4)]
    script.wait(lambda script: script.cancelled == 1)
    goes_on.set()
    assert create(QUESTION).choices[0].message.content == "Hello again."
    assert roles(script) == ["user"]
    assert memory.said(session) == [
        ("user", "My name is Ada."),
        ("assistant", "".join(read)),
        ("assistant", "Hello again."),
    ]
    assert memory.log(session)[1]["metadata"]["interrupted"] is True


def test_the_models_are_the_upstreams(client, script):
    assert [model.id for model in client.models.list()] == list(MODELS)


async def test_many_sessions_at_once_with_the_asynchronous_client(memory, session, script):
    def answer(request):
        return Answer(text=f"Hello {request['messages'][-1]['content']}.")

    script.behaviour = answer

    async def chat(client, name):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": name}],
            stream=True,
            extra_body={"session_id": f"{session}-{name}"},
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    names = [f"client {number}" for number in range(20)]
    async with openai.AsyncOpenAI(base_url=memory.url, api_key=KEY) as client:
        texts = await asyncio.gather(*(chat(client, name) for name in names))
    assert texts == [f"Hello {name}." for name in names]
    for name in names:
        assert memory.said(f"{session}-{name}") == [("user", name), ("assistant", f"Hello {name}.")]


def test_ids_beyond_ascii_are_percent_encoded_in_headers(create, memory, session, script):
    name = f"{session} für 猫"
    encoded = f"{session}%20f%C3%BCr%20%E7%8C%AB"
    create(QUESTION, extra_headers={"X-Session-Id": encoded})
    assert len(memory.log(encoded)) == 2
    create({"role": "user", "content": "Again."}, extra_headers={}, extra_body={"session_id": name})
    assert [type_ for type_, _ in memory.said(encoded)] == ["user", "assistant", "user", "assistant"]
