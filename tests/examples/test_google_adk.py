"""examples/google_adk.py under Google ADK's own Runner."""

import json

import pytest

pytest.importorskip("google.adk", reason="the group `examples` is not installed: ./run test does that")

from google.adk.agents import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import ToolContext
from google.genai.types import Blob, Content, FunctionCall, FunctionResponse, Part
from google_adk import TurnkeeperSessionService
from session_log import TurnkeeperError

from tests.upstream import Answer


class Model(BaseLlm):
    """Says what it is told to, and keeps what it was asked."""

    answers: list[list[Part]]
    asked: list[list[Content]] = []  # noqa: RUF012  # pydantic copies it

    async def generate_content_async(self, llm_request, stream=False):  # noqa: ARG002
        self.asked.append(list(llm_request.contents))
        yield LlmResponse(content=Content(role="model", parts=self.answers.pop(0)))


@pytest.fixture
def service(turnkeeper):
    return TurnkeeperSessionService(turnkeeper)


@pytest.fixture
def place(session):
    """An app and a user of the test's own; app names are identifiers."""
    return {"app_name": session.replace("-", "_"), "user_id": f"ada-{session}"}


@pytest.fixture
def at(place):
    return {**place, "session_id": "trip"}


@pytest.fixture
def key(at):
    """The name of the session in Turnkeeper."""
    return ":".join(at.values())


def said(text, author="user", **fields):
    content = Content(role="user" if author == "user" else "model", parts=[Part(text=text)])
    return Event(author=author, invocation_id="run-1", content=content, **fields)


def result(call_id, response):
    return Part(function_response=FunctionResponse(id=call_id, name="look", response=response))


def changed(**delta):
    """An event that changes the state alone; `user__x` stands for `user:x`."""
    state = {name.replace("__", ":"): value for name, value in delta.items()}
    return Event(author="agent", invocation_id="run-1", actions=EventActions(state_delta=state))


async def ask(runner, at, text):
    message = Content(role="user", parts=[Part(text=text)])
    where = {"user_id": at["user_id"], "session_id": at["session_id"]}
    events = [event async for event in runner.run_async(**where, new_message=message)]
    return events[-1].content.parts[0].text


async def test_a_second_run_remembers_the_first_tools_and_state_included(service, turnkeeper, at, memory, key):
    def get_weather(city: str, tool_context: ToolContext) -> dict[str, str]:
        """The weather of a city."""
        tool_context.state["city"] = tool_context.state["user:city"] = tool_context.state["temp:city"] = city
        return {"sky": "clear"}

    call = FunctionCall(name="get_weather", args={"city": "Paris"})
    answers = [[Part(function_call=call)], [Part(text="Sunny.")], [Part(text="Paris.")]]
    model = Model(model="scripted", answers=answers)
    agent = LlmAgent(name="guide", model=model, tools=[get_weather], instruction="Be short.")
    await service.create_session(**at)
    runner = Runner(app_name=at["app_name"], agent=agent, session_service=service)
    assert await ask(runner, at, "How is the weather?") == "Sunny."
    later = Runner(app_name=at["app_name"], agent=agent, session_service=TurnkeeperSessionService(turnkeeper))
    assert await ask(later, at, "Which city was that?") == "Paris."
    parts = [part for content in model.asked[-1] for part in content.parts]
    assert [part.text for part in parts if part.text] == ["How is the weather?", "Sunny.", "Which city was that?"]
    assert [part.function_response.response for part in parts if part.function_response] == [{"sky": "clear"}]
    assert (await service.get_session(**at)).state == {"city": "Paris", "user:city": "Paris"}
    types = ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [event["type"] for event in memory.log(key)] == types


async def test_events_come_back_as_they_were(service, at):
    await service.create_session(**at)
    session = await service.get_session(**at)
    parts = [
        Part(text="Hm.", thought=True, thought_signature=b"\xff"),
        Part(text="I look.\u0000"),
        Part(function_call=FunctionCall(id="call-1", name="look", args={"at": None})),
        Part(function_call=FunctionCall(id="call-2", name="look", args={})),
        Part(inline_data=Blob(data=b"\xff\x00", mime_type="image/png")),
    ]
    results = [result("call-1", {"seen": "a"}), result("call-2", {"seen": None})]
    made = [
        said("Look.", custom_metadata={"a": [1, None]}),
        Event(author="agent", content=Content(role="model", parts=parts), long_running_tool_ids={"call-1"}),
        Event(author="agent", content=Content(role="user", parts=results)),
        changed(x=None, y={"a": {"b": None}}, user__z=[1], app__z=1.5),
        Event(author="agent", error_code="500", error_message="Nothing came.", branch="a.b", turn_complete=True),
        said("A cat.", "agent"),
    ]
    for event in made:
        assert await service.append_event(session, event) is event
    kept = await service.get_session(**at)
    assert kept.events == made == session.events
    assert kept.state == session.state == {"x": None, "y": {"a": {"b": None}}, "user:z": [1], "app:z": 1.5}
    assert kept.last_update_time == pytest.approx(made[-1].timestamp, abs=1e-5)


async def test_the_log_is_a_prompt_for_any_client(service, at, memory, key):
    session = await service.create_session(**at)
    calls = [Part(function_call=FunctionCall(id=name, name="look", args={"at": name})) for name in ("a", "b")]
    results = [result("a", {"é": 1}), result("b", {"é": 1})]
    for event in [
        said("Look."),
        Event(author="agent", content=Content(role="model", parts=calls)),
        changed(x=1),
        Event(author="agent", content=Content(role="user", parts=results)),
        said("Two cats.", "agent"),
    ]:
        await service.append_event(session, event)
    prompt = memory.http.get(f"/v1/sessions/{key}/context").json()["messages"]
    assert [message["role"] for message in prompt] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [json.loads(call["function"]["arguments"]) for call in prompt[1]["tool_calls"]] == [
        {"at": "a"},
        {"at": "b"},
    ]
    assert [message["content"] for message in prompt[2:4]] == ['{"é": 1}'] * 2


async def test_state_has_the_scopes_of_the_library(service, place):
    """The same calls to the library's own service give the same."""
    seen = []
    for each in (service, InMemorySessionService()):
        first = await each.create_session(
            **place, session_id="a", state={"own": 1, "user:both": {"x": 1}, "app:all": [1], "temp:gone": 1}
        )
        await each.append_event(first, changed(own=2, user__both={"y": 2}, app__new=None, temp__now=1))
        states = [first.state, (await each.create_session(**place, session_id="b")).state]
        states += [(await each.get_session(**place, session_id="a")).state, await each.get_user_state(**place)]
        other = {**place, "user_id": place["user_id"] + "2"}
        states += [(await each.create_session(**other, session_id="a")).state, await each.get_user_state(**other)]
        seen.append(states)
    assert seen[0] == seen[1]
    assert seen[0][2] == {"own": 2, "user:both": {"y": 2}, "app:all": [1], "app:new": None}


async def test_a_part_of_the_events_is_the_newest_with_the_whole_state(service, at):
    session = await service.create_session(**at)
    for number in range(4):
        await service.append_event(
            session,
            said(str(number), timestamp=1000.0 + number, actions=EventActions(state_delta={str(number): number})),
        )
    for config, expected in [
        (GetSessionConfig(num_recent_events=2), "23"),
        (GetSessionConfig(num_recent_events=0), ""),
        (GetSessionConfig(num_recent_events=9), "0123"),
        (GetSessionConfig(after_timestamp=1001.0), "123"),
        (GetSessionConfig(after_timestamp=1001.0, num_recent_events=1), "3"),
    ]:
        part = await service.get_session(**at, config=config)
        assert "".join(event.content.parts[0].text for event in part.events) == expected
        assert part.state == {str(number): number for number in range(4)}


async def test_sessions_are_listed_by_their_last_update_and_only_of_the_app(service, place, turnkeeper):
    for name in ("a", "b", "c/ :%"):
        await service.create_session(**place, session_id=name, state={"user:x": 1, "app:x": 1})
    await service.append_event(await service.get_session(**place, session_id="a"), said("Hi."))
    await service.create_session(**{**place, "app_name": place["app_name"] + "2"}, session_id="d")
    await service.create_session(**{**place, "user_id": place["user_id"] + "2"}, session_id="e")
    turnkeeper.append(
        f"{place['app_name']}-chat", place["user_id"], [{"message": {"role": "user", "content": "Hi."}}]
    )
    mine = (await service.list_sessions(**place)).sessions
    assert [session.id for session in mine] == ["b", "c/ :%", "a"]
    everybody = (await service.list_sessions(app_name=place["app_name"])).sessions
    assert {(session.user_id, session.id) for session in everybody} == {
        *((place["user_id"], name) for name in ("a", "b", "c/ :%")), (place["user_id"] + "2", "e"),
    }  # fmt: skip


async def test_sessions_are_made_once_and_deleted(service, at, place):
    made = await service.create_session(**place)
    assert (await service.get_session(**place, session_id=made.id)).id == made.id
    session = await service.create_session(**at, state={"user:x": 1})
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**at, state={"user:x": 2})
    await service.append_event(session, said("Hi."))
    await service.delete_session(**at)
    await service.delete_session(**at)
    assert await service.get_session(**at) is None
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, said("Hello?"))
    assert await service.get_user_state(**place) == {"x": 1}


async def test_fragments_of_a_stream_are_not_kept(service, at):
    session = await service.create_session(**at)
    await service.append_event(session, said("Hel", "agent", partial=True))
    assert (await service.get_session(**at)).events == session.events == []


async def test_an_append_whose_answer_was_lost_is_written_once(lossy, at):
    service = TurnkeeperSessionService(lossy.turnkeeper)
    session = await service.create_session(**at)
    event = said("Yes.")
    await service.append_event(session, event)
    await service.append_event(session, said("Yes."))
    await service.append_event(await service.get_session(**at), event)
    assert len((await service.get_session(**at)).events) == 2


async def test_what_another_client_and_a_compaction_wrote_is_there_too(service, at, memory, script, key):
    session = await service.create_session(**at)
    await service.append_event(session, changed(kept=1))
    await service.append_event(session, said("Hi."))
    await service.append_event(session, said("Hi Ada.", "agent"))
    good = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    odd = {"id": "call-2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    others = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [good, odd]},
        {"role": "tool", "tool_call_id": "call-1", "content": "A cat.", "name": "look"},
        {"role": "tool", "tool_call_id": "call-2", "content": "a b", "name": "sh"},
    ]
    body = {"events": [{"message": message} for message in others]}
    assert memory.http.post(f"/v1/sessions/{key}/events", json=body).status_code == 201
    script.reset(Answer(text="They said hi."))
    strategy = {"summarize": {"max_events": 4, "overlap": 0, "shadow_prompt": "What was said?"}}
    assert memory.http.post(f"/v1/sessions/{key}/compact", json={"strategy": strategy}).json()["compacted"]
    model = Model(model="scripted", answers=[[Part(text="A cat.")]])
    runner = Runner(app_name=at["app_name"], agent=LlmAgent(name="guide", model=model), session_service=service)
    assert await ask(runner, at, "So?") == "A cat."
    kept = await service.get_session(**at)
    assert kept.state == {"kept": 1}
    assert [(event.author, event.content.parts[0].text) for event in kept.events] == [
        ("user", "What was said?"), ("model", "They said hi."), ("user", "Look."), ("model", None), ("model", None),
        ("model", None), ("user", "So?"), ("guide", "A cat."),
    ]  # fmt: skip
    calls = [part.function_call for part in kept.events[3].content.parts]
    assert [(call.id, call.name, call.args) for call in calls] == [
        ("call-1", "look", {"at": 1}), ("call-2", "sh", {"input": "ls"}),
    ]  # fmt: skip


async def test_another_users_session_is_refused(service, turnkeeper, at):
    turnkeeper.append(f"{at['app_name']}:bob:trip", "ada", [{"message": {"role": "user", "content": "Hi."}}])
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**{**at, "user_id": "bob"})
    with pytest.raises(TurnkeeperError, match="id"):
        await service.create_session(**{**at, "session_id": "x" * 300})
