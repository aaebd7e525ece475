"""What the recall tools are told, and what they show."""

from hypothesis import given
from hypothesis import strategies as st

from app.domain import tool_definitions
from app.domain.recall import CUT, SHOWN_LENGTH, answered_calls, excerpt, split_query
from app.domain.text import contains
from app.domain.tool_definitions import DEFINITIONS


def test_a_query_is_split_on_commas():
    assert split_query("we decided, let's go with ,, ") == ["we decided", "let's go with"]
    assert split_query(" , ") == []


def test_a_short_text_is_shown_whole():
    assert excerpt("x" * SHOWN_LENGTH, ["x"]) == "x" * SHOWN_LENGTH


@given(st.text(min_size=0, max_size=3_000), st.text(min_size=0, max_size=3_000))
def test_a_long_text_is_cut_around_the_match(before, after):
    text = f"{before}  ﬁnd STRASSE here  {after}"
    shown = excerpt(text, ["straße"])
    assert contains(shown, "straße")
    assert len(shown) <= SHOWN_LENGTH + 2 * len(CUT)
    assert shown.removeprefix(CUT).removesuffix(CUT) in text
    assert shown.startswith(CUT) or text.startswith(shown.removesuffix(CUT))


def call(call_id, name):
    function = {"name": name, "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def result(call_id):
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


def test_results_are_named_by_the_nearest_call_before_them():
    batch = [result("c"), call("c", "f"), result("c"), call("c", "g"), result("c"), result("d")]
    assert answered_calls(batch) == [None, None, "f", None, "g", None]


def test_blank_ids_are_named_by_position():
    batch = [call("", "f"), result(""), result("")]
    assert answered_calls(batch) == [None, "f", None]


def test_definitions_are_what_each_api_takes():
    for tool in DEFINITIONS:
        openai = tool_definitions.render([tool], "openai")[0]
        assert openai == {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
        }
        assert tool_definitions.render([tool], "anthropic")[0]["input_schema"] == tool.schema
        assert tool_definitions.render([tool], "mcp")[0]["inputSchema"] == tool.schema


def test_definitions_tell_a_model_when_and_how():
    for tool in DEFINITIONS:
        assert len(tool.description) <= 1_024, "OpenAI takes no longer description"
        assert "Use it" in tool.description, "when to call it"
        assert "No results found." in tool.description, "what nothing looks like"
        assert tool.schema["required"] == ["innerThought", "query"]
        assert not {"session_id", "sessionId", "user_id", "userId"} & set(tool.schema["properties"])
        assert all(property_["description"] for property_ in tool.schema["properties"].values())
