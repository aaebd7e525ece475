"""What a message may be, its text, and its rendered form."""

import pytest

from app.domain import tokens
from app.domain.messages import faults_of, render, text_of

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{not json"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": ""},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "unknown": {"kept": 1}},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL | {"id": ""}, CALL | {"id": ""}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "i"}}]},
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "s"},
        {"role": "tool", "content": "r", "tool_call_id": ""},
    ],
)
def test_a_message_that_a_provider_accepts_is_legal(message):
    assert faults_of(message) == []


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("hi", ()),
        ({}, ("role",)),
        ({"role": "function", "content": "x"}, ("role",)),
        ({"role": ["user"], "content": "x"}, ("role",)),
        ({"role": "user"}, ("content",)),
        ({"role": "user", "content": None}, ("content",)),
        ({"role": "user", "content": 5}, ("content",)),
        ({"role": "user", "content": {"type": "text"}}, ("content",)),
        ({"role": "user", "content": []}, ("content",)),
        ({"role": "user", "content": ["hi"]}, ("content", 0)),
        ({"role": "user", "content": [{"text": "hi"}]}, ("content", 0)),
        ({"role": "user", "content": [{"type": "image_url"}]}, ("content", 0, "image_url")),
        ({"role": "user", "content": "x", "name": 5}, ("name",)),
        ({"role": "user", "content": [{"type": "text"}]}, ("content", 0, "text")),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, ("tool_calls",)),
        ({"role": "assistant", "tool_calls": {}}, ("tool_calls",)),
        ({"role": "assistant", "tool_calls": ["x"]}, ("tool_calls", 0)),
        ({"role": "assistant", "tool_calls": [CALL, CALL]}, ("tool_calls", 1, "id")),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, ("tool_calls", 0, "id")),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, ("tool_calls", 0, "function")),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "", "arguments": ""}}]},
            ("tool_calls", 0, "function", "name"),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
            ("tool_calls", 0, "function", "arguments"),
        ),
        ({"role": "tool", "content": "r"}, ("tool_call_id",)),
        ({"role": "tool", "content": "r", "tool_call_id": None}, ("tool_call_id",)),
    ],
)
def test_a_message_that_no_provider_accepts_is_refused_at_its_place(message, place):
    assert [fault.loc for fault in faults_of(message)] == [place]


def test_the_text_is_the_string_or_the_text_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
    assert text_of({"role": "user", "content": "x"}) == "x"
    assert text_of({"role": "user", "content": parts}) == "a\nb"
    assert text_of({"role": "user", "content": parts[1:2]}) is None
    assert text_of({"role": "assistant", "content": None}) is None


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"role": "user", "content": "hi"}, "User: hi"),
        ({"role": "developer", "content": "be brief"}, "System: be brief"),
        ({"role": "assistant", "content": "ok"}, "Assistant: ok"),
        ({"role": "assistant", "content": None}, "Assistant: [no text content]"),
        ({"role": "assistant", "content": "let me see", "tool_calls": [CALL]}, None),
        ({"role": "tool", "content": "12", "tool_call_id": "c"}, "Tool [c -> 12]"),
        ({"role": "tool", "content": "12", "tool_call_id": "c", "name": "f"}, "Tool [f -> 12]"),
    ],
)
def test_h4_rendering(message, line):
    assert render(message) == (line or "Assistant: let me see [tool calls: f({not json)]")


def test_tokens_are_those_of_the_rendered_form():
    count = tokens.counter(tokens_per_part=1_000)
    assert count({"role": "user", "content": "hi"}) == tokens.count_text("User: hi") == 3
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    text = {"type": "text", "text": "hi"}
    assert count({"role": "user", "content": [text, image]}) == 1_003


def test_special_tokens_in_a_text_are_ordinary_text():
    assert tokens.count_text("<|endoftext|>") > 1


def test_a_text_of_any_length_is_counted():
    assert 100_000 < tokens.count_text("word " * 300_000) < 600_000
