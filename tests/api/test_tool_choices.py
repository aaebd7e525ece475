"""The tools of the service beside what a request says of tools: never a name twice, no choice made wider."""

import pytest

from app.services.service_tools import names_of
from tests.api.chatting import WEATHER, chatting
from tests.upstream import Answer

LONG_TERM = {"long_term": True}
VIEW = Answer(calls=[("m1", "MemoryView", '{"path": ""}')])


def only(mode, *names):
    """The choice that leaves some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def function(name):
    return {"type": "function", "function": {"name": name}}


# What is asked for, and what of it is once a call was made.
CHOICES = {
    "auto": ("auto", "auto"),
    "null": (None, None),
    "required": ("required", "auto"),
    "the memory": (function("MemoryView"), "auto"),
    "another": (function("weather"), "auto"),
    "some": (only("auto", "weather", "MemoryView"), only("auto", "weather", "MemoryView")),
    "one of some": (only("required", "weather", "MemoryView"), only("auto", "weather", "MemoryView")),
    "of the future": ({"type": "new"}, "auto"),
}


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url) as chats:
        yield chats


@pytest.mark.parametrize(("choice", "then"), CHOICES.values(), ids=CHOICES)
async def test_a_choice_forces_one_call_and_goes_on_restricting(chats, choice, then):
    chats.upstream.reset(VIEW, Answer("Done."))
    await chats.say("q", memory=LONG_TERM, tools=[WEATHER], tool_choice=choice)
    assert [request["tool_choice"] for request in chats.upstream.requests] == [choice, then]


OWN = {
    "of this API": {"type": "function", "function": {"name": "MemoryView"}},
    "without a type": {"function": {"name": "MemoryView"}},
    "custom": {"type": "custom", "custom": {"name": "MemoryView"}},
    "of the Responses API": {"type": "function", "name": "MemoryView", "parameters": {}},
    "of Anthropic's API": {"name": "MemoryView", "input_schema": {"type": "object"}},
    "of MCP": {"name": "MemoryView", "inputSchema": {"type": "object"}},
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_a_tool_of_the_application_is_known_by_its_name_in_any_shape(own):
    """Some providers take other shapes than OpenAI's."""
    assert names_of([WEATHER, own]) == {"weather", "MemoryView"}


@pytest.mark.parametrize(
    "odd", [{}, {"type": "function"}, {"type": "function", "function": None}, {"name": 5}, {"a": {}}]
)
def test_what_is_no_tool_has_no_name(odd):
    assert names_of([odd]) == set()
    assert names_of(None) == set()
