"""examples/langchain_history.py under LangChain's own runnables."""

from typing import Any

import pytest

pytest.importorskip("langchain_core", reason="the group `examples` is not installed: ./run test does that")

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_history import TurnkeeperHistory
from session_log import TurnkeeperError

from tests.upstream import Answer

pytestmark = [
    # LangChain means to drop its histories in 2.0, in favour of LangGraph's checkpoints; they work until then.
    pytest.mark.filterwarnings("ignore:.*RunnableWithMessageHistory:Warning"),
    pytest.mark.filterwarnings("ignore:.*BaseChatMessageHistory:Warning"),
]

CALL = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call-1", "type": "tool_call"}
BAD = {"name": "get_weather", "args": '{"city', "id": "call-2", "error": "cut", "type": "invalid_tool_call"}
MESSAGES = [
    SystemMessage("Be short."),
    HumanMessage("Weather?", id="human-1", name="Ada"),
    HumanMessage([{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "https://example.org/a"}}]),
    AIMessage("", tool_calls=[CALL], invalid_tool_calls=[BAD], id="run-1", response_metadata={"model_name": "m"}),
    ToolMessage("Sunny\u0000.", tool_call_id="call-1", artifact={"raw": [1.5, None]}, status="success"),
    ToolMessage([{"type": "text", "text": "Not JSON."}], tool_call_id="call-2", status="error"),
    AIMessage([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Sunny."}],
              usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    AIMessageChunk("Also warm."),
    ChatMessage("No, cold.", role="critic"),
    FunctionMessage("Cold.", name="get_weather"),
]  # fmt: skip


@pytest.fixture
def history(turnkeeper, session):
    return TurnkeeperHistory(turnkeeper, session, "ada")


class Model(GenericFakeChatModel):
    asked: list[Any] = []  # noqa: RUF012  # pydantic copies it

    def _generate(self, messages, *args, **options):
        self.asked.append(messages)
        return super()._generate(messages, *args, **options)


def remembering(turnkeeper, *answers):
    model = Model(messages=iter(answers))
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be short."), MessagesPlaceholder("history"), ("human", "{question}")]
    )
    chain = RunnableWithMessageHistory(
        prompt | model,
        lambda session_id: TurnkeeperHistory(turnkeeper, session_id, "ada"),
        input_messages_key="question",
        history_messages_key="history",
    )
    return chain, model


def test_a_second_call_remembers_the_first(turnkeeper, session, memory):
    chain, model = remembering(turnkeeper, AIMessage("Hello Ada."), AIMessage("You are Ada."))
    config = {"configurable": {"session_id": session}}
    chain.invoke({"question": "I am Ada."}, config)
    assert chain.invoke({"question": "Who am I?"}, config).content == "You are Ada."
    assert [message.content for message in model.asked[-1]] == ["Be short.", "I am Ada.", "Hello Ada.", "Who am I?"]
    assert memory.said(session) == [
        ("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?"), ("assistant", "You are Ada."),
    ]  # fmt: skip


async def test_asynchronous_calls_and_streams_remember_too(turnkeeper, session):
    chain, _ = remembering(turnkeeper, AIMessage("Hello Ada."), AIMessage("You are Ada."))
    config = {"configurable": {"session_id": session}}
    await chain.ainvoke({"question": "I am Ada."}, config)
    streamed = [chunk.content async for chunk in chain.astream({"question": "Who am I?"}, config)]
    assert "".join(streamed) == "You are Ada."
    history = TurnkeeperHistory(turnkeeper, session, "ada")
    assert [message.content for message in await history.aget_messages()] == [
        "I am Ada.", "Hello Ada.", "Who am I?", "You are Ada.",
    ]  # fmt: skip


def test_messages_of_every_type_come_back_as_they_were(history, turnkeeper, session):
    assert history.messages == []
    history.add_messages(MESSAGES)
    assert TurnkeeperHistory(turnkeeper, session, "ada").messages == MESSAGES
    assert [type(message) for message in history.messages] == [type(message) for message in MESSAGES]


def test_the_log_is_a_prompt_for_any_client(history, memory, session):
    history.add_messages(MESSAGES[:7])
    prompt = memory.http.get(f"/v1/sessions/{session}/context").json()["messages"]
    assert [message["role"] for message in prompt] == [
        "system",
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    calls = [call["function"]["arguments"] for call in prompt[3]["tool_calls"]]
    assert calls == ['{"city": "Paris"}', '{"city']
    assert prompt[-1]["content"] == "Sunny."


def test_a_cleared_history_is_empty_and_goes_on(history, memory, session):
    history.clear()
    history.add_messages(MESSAGES)
    history.clear()
    assert memory.http.get(f"/v1/sessions/{session}").status_code == 404
    assert history.messages == []
    history.add_user_message("Hi.")
    assert history.messages == [HumanMessage("Hi.")]


def test_an_append_whose_answer_was_lost_is_written_once_and_a_repetition_twice(lossy, session):
    history = TurnkeeperHistory(lossy.turnkeeper, session, "ada")
    history.add_user_message("Yes.")
    history.add_user_message("Yes.")
    assert history.messages == [HumanMessage("Yes.")] * 2


def test_what_another_client_and_a_compaction_wrote_is_there_too(history, memory, script, session):
    good = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    bad = {"id": "call-2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    image = [{"type": "image_url", "image_url": {"url": "https://example.org/a"}}]
    said = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": image},
        {"role": "assistant", "content": None, "tool_calls": [good, bad]},
        {"role": "tool", "tool_call_id": "call-1", "content": "Sunny."},
        {"role": "tool", "tool_call_id": "call-2", "content": "a b"},
    ]
    body = {"user_id": "ada", "events": [{"message": message} for message in said]}
    assert memory.http.post(f"/v1/sessions/{session}/events", json=body).status_code == 201
    script.reset(Answer(text="They said hi."))
    strategy = {"summarize": {"max_events": 4, "overlap": 0, "shadow_prompt": "What was said?"}}
    assert memory.http.post(f"/v1/sessions/{session}/compact", json={"strategy": strategy}).json()["compacted"]
    unreadable = {"name": "sh", "args": "ls", "id": "call-2", "error": None}
    assert history.messages == [
        HumanMessage("What was said?"),
        AIMessage("They said hi."),
        HumanMessage(image),
        AIMessage("", tool_calls=[CALL], invalid_tool_calls=[unreadable]),
        ToolMessage("Sunny.", tool_call_id="call-1"),
        ToolMessage("a b", tool_call_id="call-2"),
    ]


def test_another_users_session_is_refused(history, turnkeeper, session):
    history.add_messages(MESSAGES)
    with pytest.raises(TurnkeeperError, match="does not belong to user 'bob'"):
        TurnkeeperHistory(turnkeeper, session, "bob").add_messages(MESSAGES)
