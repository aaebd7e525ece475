"""examples/pydantic_ai_history.py under Pydantic AI's own agents."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("pydantic_ai", reason="the group `examples` is not installed: ./run test does that")

from pydantic_ai import (
    Agent,
    BinaryContent,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
)
from pydantic_ai.messages import (
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai_history import MessageHistory
from session_log import TurnkeeperError

from tests.upstream import Answer

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
PIXEL = BinaryContent(b"\xff\x00", media_type="image/png")
MESSAGES = [
    ModelRequest([SystemPromptPart("Be short."), UserPromptPart("Hi.")], instructions="In French.", timestamp=NOON),
    ModelResponse([
        ThinkingPart("Hm.", signature="s"),
        TextPart("Salut."),
        ToolCallPart("look", '{"at":  1}', "call-1"),
        ToolCallPart("look", {"at": 2}, "call-2"),
        ToolCallPart("look", None, "call-3"),
    ]),
    ModelRequest([
        ToolReturnPart("look", {"seen": ["a", None]}, "call-1"),
        ToolReturnPart("look", "A\u0000B", "call-2"),
        ToolReturnPart("look", None, "call-3"),
        UserPromptPart(["And?", ImageUrl("https://example.org/a"), TextContent("So."), PIXEL]),
    ]),
    ModelResponse([]),
    ModelRequest([RetryFeedbackPart("Say something.", retry=RetryInfo("no_output"))]),
    ModelResponse([TextPart("Bien.")]),
]  # fmt: skip


# What the library's own JSON makes of them: an image, say, is a class of its own afterwards.
KEPT = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(MESSAGES))


@pytest.fixture
def history(turnkeeper, session):
    return MessageHistory(turnkeeper, session, "ada")


async def test_a_second_run_remembers_the_first_tools_included(history, memory, session):
    agent = Agent(TestModel(custom_output_text="Sunny."), instructions="Be short.")

    @agent.tool_plain
    def get_weather(city: str) -> dict[str, str]:
        return {"city": city, "sky": "clear"}

    first = await agent.run("How is the weather?", message_history=await history.load())
    await history.add(first.new_messages())
    seen = []

    def answer(messages, _):
        seen.append(messages)
        return ModelResponse([TextPart("The weather.")])

    second = await agent.run(
        "What was my question?", model=FunctionModel(answer), message_history=await history.load()
    )
    await history.add(second.new_messages())
    assert seen[0][:-1] == first.new_messages()
    assert await history.load() == second.all_messages()
    types = ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [event["type"] for event in memory.log(session)] == types


async def test_messages_come_back_as_they_were(history, turnkeeper, session):
    assert await history.load() == []
    await history.add([])
    await history.add(MESSAGES)
    assert await MessageHistory(turnkeeper, session, "ada").load() == KEPT


async def test_the_log_is_a_prompt_for_any_client(history, memory, session):
    await history.add(MESSAGES)
    prompt = memory.http.get(f"/v1/sessions/{session}/context").json()["messages"]
    assert [message["role"] for message in prompt] == ["user", "assistant", *["tool"] * 3, "user", "assistant"]
    assert [call["function"]["arguments"] for call in prompt[1]["tool_calls"]] == ['{"at":  1}', '{"at":2}', "{}"]
    assert [message["content"] for message in prompt[2:5]] == ['{"seen":["a",null]}', "A\u0000B", ""]
    assert [part.get("text") for part in prompt[5]["content"]] == ["And?", None, "So.", "[binary]"]


async def test_what_is_added_twice_is_written_once_and_a_second_run_again(history, memory, session):
    agent = Agent(TestModel())
    for _ in range(2):
        result = await agent.run("Again.", message_history=await history.load())
        await history.add(result.new_messages())
        await history.add(result.new_messages())
    assert [event["type"] for event in memory.log(session)] == ["user", "assistant"] * 2
    assert await history.load() == result.all_messages()


async def test_an_append_whose_answer_was_lost_is_written_once(lossy, session):
    history = MessageHistory(lossy.turnkeeper, session, "ada")
    await history.add(MESSAGES)
    assert await history.load() == KEPT


async def test_a_cleared_history_is_empty_and_goes_on(history, memory, session):
    await history.clear()
    await history.add(MESSAGES)
    await history.clear()
    assert memory.http.get(f"/v1/sessions/{session}").status_code == 404
    assert await history.load() == []
    await history.add(MESSAGES)
    assert await history.load() == KEPT


async def test_what_another_client_and_a_compaction_wrote_is_there_too(history, memory, script, session):
    good = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    odd = {"id": "call-2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    said = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [good, odd]},
        {"role": "tool", "tool_call_id": "call-1", "content": "A cat.", "name": "look"},
        {"role": "tool", "tool_call_id": "call-2", "content": "a b"},
    ]
    body = {"user_id": "ada", "events": [{"message": message} for message in said]}
    assert memory.http.post(f"/v1/sessions/{session}/events", json=body).status_code == 201
    script.reset(Answer(text="They said hi."))
    strategy = {"summarize": {"max_events": 4, "overlap": 0, "shadow_prompt": "What was said?"}}
    assert memory.http.post(f"/v1/sessions/{session}/compact", json={"strategy": strategy}).json()["compacted"]
    loaded = await history.load()
    assert [[getattr(part, "content", None) or part.args for part in message.parts] for message in loaded] == [
        ["What was said?"], ["They said hi."], ["Look."], ['{"at": 1}', {"input": "ls"}], ["A cat."], ["a b"],
    ]  # fmt: skip
    result = await Agent(TestModel(custom_output_text="A cat.")).run("So?", message_history=loaded)
    assert result.output == "A cat."


async def test_another_users_session_is_refused(history, turnkeeper, session):
    await history.add(MESSAGES)
    with pytest.raises(TurnkeeperError, match="does not belong to user 'bob'"):
        await MessageHistory(turnkeeper, session, "bob").add(MESSAGES)
