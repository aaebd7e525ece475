"""A stream of deltas, however it was cut, comes to the message that was cut."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.deltas import Reply
from app.domain.messages import faults_of
from tests.domain.chats import assistant, call


@dataclass(frozen=True)
class Provider:
    """How a provider cuts: what it repeats, leaves out, or writes as null."""

    repeats: bool = False
    nulls: bool = False
    leaves_out_index: bool = False
    empty_strings: bool = False


providers = st.builds(Provider, *[st.booleans()] * 4)
texts = st.text("ab \né", max_size=6)
calls = st.lists(st.tuples(st.sampled_from(["f", "search", "get_time"]), texts), max_size=3)


@st.composite
def whole_messages(draw, calls=calls):
    message: dict[str, Any] = assistant(draw(texts))
    for name in ("refusal", "reasoning_content"):
        if text := draw(texts):
            message[name] = text
    if made := draw(calls):
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(made)
        ]
    return message


@st.composite
def chunks_of(draw, message, provider=Provider(), *, name="c1", usage=None, reason=None):
    """The chunks of a stream that comes to this message."""
    streams = [
        [{field: piece} for piece in _pieces(draw, message[field])]
        for field in ("content", "refusal", "reasoning_content")
        if message.get(field)
    ]
    made = [_call_fragments(draw, place, one, provider) for place, one in enumerate(message.get("tool_calls") or [])]
    # Without an index the calls come one after the other: nothing else could tell them apart.
    streams += [_one_after_the_other(made) if provider.leaves_out_index else _interleaved(draw, made)]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": draw(st.sampled_from(["", None]))}]
    while streams := [one for one in streams if one]:
        piece = draw(st.sampled_from(streams)).pop(0)
        fits = deltas[-1].keys().isdisjoint(piece) or "tool_calls" in piece
        if fits and len(deltas) > 1 and draw(st.booleans()):
            more = piece.get("tool_calls", [])
            deltas[-1] = {**deltas[-1], **piece, "tool_calls": [*deltas[-1].get("tool_calls", []), *more]}
        else:
            deltas.append(piece)
    if provider.nulls:
        empty = dict.fromkeys(("content", "refusal", "tool_calls", "reasoning_content"))
        deltas = [{**empty, **one} for one in deltas]
    if provider.repeats:
        deltas = [{**one, "role": "assistant"} for one in deltas]
    if provider.empty_strings:
        deltas = [{"content": "", **one} for one in deltas]
    reason = reason or ("tool_calls" if message.get("tool_calls") else "stop")
    head = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    at_the_end = draw(st.booleans()) and len(deltas) > 1
    reasons = [None] * (len(deltas) - 1) + [reason if at_the_end else None]
    ends = [] if at_the_end else [({}, reason)]
    said = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": why}]}
        for delta, why in [*zip(deltas, reasons, strict=True), *ends]
    ]
    return [*said, {**head, "choices": [], "usage": usage}] if usage else said


def _one_after_the_other(made):
    return [one for fragments in made for one in fragments]


def _interleaved(draw, made):
    """The fragments of several calls, which begin in the order of their indices."""
    begun = [fragments.pop(0) for fragments in made]
    mixed = []
    for number, first in enumerate(begun):
        mixed.append(first)
        while (
            number < len(begun) - 1 and (open_ := [one for one in made[: number + 1] if one]) and draw(st.booleans())
        ):
            mixed.append(draw(st.sampled_from(open_)).pop(0))
    while open_ := [one for one in made if one]:
        mixed.append(draw(st.sampled_from(open_)).pop(0))
    return mixed


def _pieces(draw, text):
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3)))
    return [piece for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if (piece := text[start:end])]


def _call_fragments(draw, place, made, provider):
    body = made["function"]
    fragments = []
    for number, piece in enumerate(["", *_pieces(draw, body["arguments"])] if body["arguments"] else [""]):
        begins = number == 0 or provider.repeats
        fragment = {"id": made["id"], "type": "function"} if begins else {}
        if provider.nulls and not begins:
            fragment = {"id": None, "type": None}
        function = {"name": body["name"]} if begins else ({"name": None} if provider.nulls else {})
        if provider.empty_strings and not begins:
            fragment, function = {"id": "", **fragment}, {"name": "", **function}
        index = {} if provider.leaves_out_index else {"index": place}
        fragments.append({"tool_calls": [{**index, **fragment, "function": {**function, "arguments": piece}}]})
    return fragments


@settings(max_examples=400)
@given(st.data(), whole_messages(), providers)
def test_any_cut_of_any_message_comes_to_the_message(data, message, provider):
    reply = Reply()
    usage = {"prompt_tokens": 3, "details": {"cached": 1}}
    for chunk in data.draw(chunks_of(message, provider, usage=usage)):
        reply.add(chunk)
    assert reply.message() == message
    assert reply.finish_reason == ("tool_calls" if message.get("tool_calls") else "stop")
    assert (reply.id, reply.model, reply.created, reply.usage) == ("c1", "m", 1, usage)


@settings(max_examples=200)
@given(st.data(), whole_messages(), providers, st.integers(0, 20))
def test_what_broke_off_is_a_beginning_of_the_message_without_calls(data, message, provider, count):
    reply = Reply()
    for chunk in data.draw(chunks_of(message, provider))[:count]:
        reply.add(chunk)
    fragment = reply.fragment()
    assert faults_of(fragment) == []
    assert "tool_calls" not in fragment
    for name in ("content", "refusal", "reasoning_content"):
        assert (message.get(name) or "").startswith(fragment.get(name) or "")


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": None, "content": None}}], "usage": None},
        {"choices": [{"index": 0, "delta": {"tool_calls": [None]}, "finish_reason": ""}]},
        {"id": "", "model": None, "choices": [], "prompt_filter_results": []},
    ],
)
def test_what_says_nothing_adds_nothing(chunk):
    reply = Reply()
    reply.add(chunk)
    assert reply.message() == assistant("")
    assert (reply.id, reply.model, reply.usage, reply.finish_reason) == (None, None, None, None)
    assert reply.is_empty


def fragments(*some):
    reply = Reply()
    for one in some:
        reply.add({"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]})
    return reply.message()["tool_calls"]


def test_what_a_provider_leaves_out_of_a_call_is_added():
    made = {"function": {"name": "f", "arguments": "{}"}}
    assert fragments(made) == call("")["tool_calls"]
    assert fragments({"index": 0, "type": "custom", "custom": {"name": "n"}}) == [
        {"id": "", "type": "custom", "custom": {"name": "n", "input": ""}}
    ]


@pytest.mark.parametrize(
    "made",
    [
        {"index": 0, "id": None, "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"index": 0, "id": "", "type": None, "function": {"name": "f", "arguments": "{}"}},
    ],
)
def test_what_a_provider_writes_as_null_in_a_call_is_added(made):
    assert fragments(made) == call("")["tool_calls"]


def test_without_an_index_an_id_tells_the_call():
    cut = [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")]
    made = fragments(*({"id": one, "function": {"name": "f", "arguments": text}} for one, text in cut))
    assert [(one["id"], one["function"]["arguments"]) for one in made] == [("a", "13"), ("b", "24")]


def test_a_name_may_come_in_pieces():
    pieces = [{"index": 0, "function": {"name": one}} for one in ("conver", "sation", "_search")]
    made = fragments({"index": 0, "id": "x"}, *pieces, {"index": 0, "function": {"arguments": "{}"}})
    assert made == call("x", name="conversation_search")["tool_calls"]
