"""examples/openai_agents.py under the OpenAI Agents SDK's own Runner."""

import httpx
import openai
import pytest

agents = pytest.importorskip("agents", reason="the group `examples` is not installed: ./run test does that")

from openai_agents import TurnkeeperSession  # noqa: E402
from session_log import TurnkeeperError  # noqa: E402

from tests.upstream import MODELS, Answer  # noqa: E402

CALLS = [("call-1", "get_weather", '{"city": "Paris"}'), ("call-2", "get_weather", '{"city": "Rome"}')]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Look."},
                                 {"type": "input_image", "image_url": "https://example.org/a.png"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call-1", "name": "look", "arguments": '{"at":  "it"}'},
    {"type": "function_call", "id": "fc_2", "call_id": "call-2", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call-2", "output": "A\u0000B"},
    {"type": "function_call_output", "call_id": "call-1", "output": [{"type": "input_text", "text": "A cat."}]},
    {"role": "assistant", "content": "A cat."},
]  # fmt: skip
HI = {"role": "user", "content": "Hi."}


@agents.function_tool
def get_weather(city: str) -> str:
    return f"Sunny in {city}."


@pytest.fixture(autouse=True)
def _untraced():
    agents.set_tracing_disabled(True)


@pytest.fixture
def kept(turnkeeper, session):
    return TurnkeeperSession(turnkeeper, session, "ada")


@pytest.fixture
async def agent(script):
    async with openai.AsyncOpenAI(base_url=script.url, api_key="unused") as llm:
        model = agents.OpenAIChatCompletionsModel(MODELS[0], llm)
        yield agents.Agent(name="Guide", model=model, tools=[get_weather])


async def test_a_second_run_remembers_the_first_tools_included(agent, kept, script, memory, session):
    script.reset(Answer(calls=CALLS), Answer(text="Sunny in both."), Answer(text="Paris and Rome."))
    first = await agents.Runner.run(agent, "How is the weather in Paris and Rome?", session=kept)
    second = await agents.Runner.run(agent, "Which cities were that?", session=kept)
    assert (first.final_output, second.final_output) == ("Sunny in both.", "Paris and Rome.")
    asked = script.requests[-1]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [call["id"] for call in asked[1]["tool_calls"]] == ["call-1", "call-2"]
    assert [message["content"] for message in asked[2:4]] == ["Sunny in Paris.", "Sunny in Rome."]
    types = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert [event["type"] for event in memory.log(session)] == types


async def test_the_log_is_a_prompt_for_any_client_and_is_searched(agent, kept, script, memory, session):
    script.reset(Answer(calls=CALLS), Answer(text="Sunny in both."))
    await agents.Runner.run(agent, "How is the weather?", session=kept)
    prompt = memory.http.get(f"/v1/sessions/{session}/context").json()["messages"]
    assert [message["role"] for message in prompt] == ["user", "assistant", "tool", "tool", "assistant"]
    found = memory.http.post(f"/v1/sessions/{session}/search", json={"query": "sunny in rome"}).json()["results"]
    assert [result["text"] for result in found] == ["Sunny in Rome."]


async def test_items_come_back_as_they_were(kept, turnkeeper, session):
    assert await kept.get_items() == []
    await kept.add_items(ITEMS)
    assert await TurnkeeperSession(turnkeeper, session, "ada").get_items() == ITEMS
    for limit in range(len(ITEMS) + 2):
        assert await kept.get_items(limit) == ITEMS[max(0, len(ITEMS) - limit) :]
    kept.session_settings = agents.SessionSettings(limit=2)
    assert await kept.get_items() == ITEMS[-2:]


async def test_parallel_calls_are_one_message(kept, memory, session):
    await kept.add_items(ITEMS)
    reply = memory.log(session)[1]["message"]
    assert reply["content"] == "I look."
    assert [call["function"]["arguments"] for call in reply["tool_calls"]] == ['{"at":  "it"}', "{}"]


async def test_popping_takes_items_from_the_end_and_leaves_the_log(kept, memory, session):
    await kept.add_items(ITEMS[:-3])
    logged = memory.log(session)
    assert await kept.pop_item() == ITEMS[5]
    assert await kept.pop_item() == ITEMS[4]
    assert await kept.get_items() == ITEMS[:4]
    assert await kept.get_items(2) == ITEMS[2:4]
    await kept.add_items([HI])
    assert await kept.get_items() == [*ITEMS[:4], HI]
    assert [await kept.pop_item() for _ in range(6)] == [HI, *reversed(ITEMS[:4]), None]
    assert memory.log(session)[:-1] == logged


async def test_a_cleared_session_is_empty_and_goes_on(kept, memory, session):
    await kept.clear_session()
    await kept.add_items(ITEMS)
    await kept.pop_item()
    await kept.clear_session()
    assert memory.http.get(f"/v1/sessions/{session}").status_code == 404
    assert await kept.get_items() == []
    await kept.add_items([HI])
    assert await kept.get_items() == [HI]


async def test_an_append_whose_answer_was_lost_is_written_once_and_a_repetition_twice(lossy, session):
    kept = TurnkeeperSession(lossy.turnkeeper, session, "ada")
    await kept.add_items([HI, HI])
    await kept.add_items([HI, HI])
    assert await kept.get_items() == [HI] * 4


async def test_an_append_that_failed_for_good_may_be_called_again(lossy, session):
    lossy.losses = 3
    kept = TurnkeeperSession(lossy.turnkeeper, session, "ada")
    with pytest.raises(httpx.TransportError):
        await kept.add_items([HI])
    await kept.add_items([HI])
    assert await kept.get_items() == [HI]


async def test_a_compaction_puts_a_summary_before_what_is_left(kept, script, memory, session):
    for number in range(3):
        await kept.add_items(
            [{"role": "user", "content": f"Question {number}"}, {"role": "assistant", "content": "Yes."}]
        )
    script.reset(Answer(text="Two questions, two times yes."))
    strategy = {"summarize": {"max_events": 2, "overlap": 0, "shadow_prompt": "What was said?"}}
    done = memory.http.post(f"/v1/sessions/{session}/compact", json={"strategy": strategy}).json()
    assert done["compacted"]
    assert [item["content"] for item in await kept.get_items()] == [
        "What was said?", "Two questions, two times yes.", "Question 2", "Yes.",
    ]  # fmt: skip


async def test_what_another_client_wrote_is_there_too(kept, memory, session):
    call = {"id": "call-9", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-9", "content": "A cat."},
    ]
    body = {"user_id": "ada", "events": [{"message": message} for message in said]}
    assert memory.http.post(f"/v1/sessions/{session}/events", json=body).status_code == 201
    assert await kept.get_items() == [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "call-9", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call-9", "output": "A cat."},
    ]


async def test_another_users_session_is_refused(kept, turnkeeper, session):
    await kept.add_items([HI])
    with pytest.raises(TurnkeeperError, match="does not belong to user 'bob'") as caught:
        await TurnkeeperSession(turnkeeper, session, "bob").add_items([HI])
    assert caught.value.status == 403
