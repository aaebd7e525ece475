"""What the client gets of an answer that took several rounds."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import event_ids, json_values
from app.domain.client_view import likeness
from app.domain.completions import (
    ClientStream,
    NotACompletion,
    added,
    chunks_of,
    completion_of,
    message_of,
    with_message,
)
from app.domain.deltas import Reply
from app.domain.messages import text_of
from app.domain.service_runs import Run, as_delivered, without_calls
from tests.domain import test_deltas as deltas
from tests.domain.chats import assistant, call, user
from tests.domain.logs import event

SERVICE = frozenset({"search"})
TOOLS = st.sampled_from(["search", "f", "get_time"])


class Shown:
    """A stream as a client puts it together: independent of the service's own code."""

    def __init__(self, chunks: Any) -> None:
        self.ids = {one.get("id") for one in chunks}
        self.usages = [one["usage"] for one in chunks if one.get("usage") is not None]
        choices = [one["choices"][0] for one in chunks if one["choices"]]
        self.roles = [one["delta"]["role"] for one in choices if one["delta"].get("role")]
        self.reasons = [one["finish_reason"] for one in choices if one["finish_reason"]]
        self.text = "".join(one["delta"].get("content") or "" for one in choices)
        self.calls: list[dict[str, Any]] = []
        for one in choices:
            for fragment in one["delta"].get("tool_calls") or []:
                self._add(**fragment)

    def _add(self, index: int, function: Any, **head: Any) -> None:
        assert index <= len(self.calls), "a call has the next index when it begins"
        if index == len(self.calls):
            self.calls.append({"id": head["id"], "type": head["type"], "function": {**function, "arguments": ""}})
        self.calls[index]["function"]["arguments"] += function.get("arguments") or ""


@st.composite
def rounds(draw):
    """Rounds that ask the service alone, and one that ends the answer."""
    names = [[draw(TOOLS) for _ in range(draw(st.integers(0, 3)))] for _ in range(draw(st.integers(1, 3)))]
    names = [some and ["search"] * len(some) for some in names[:-1]] + names[-1:]
    names = [some or ["search"] for some in names[:-1]] + names[-1:]
    if names[-1] and set(names[-1]) == {"search"}:
        names[-1] = [*names[-1], "f"]
    said = []
    for number, some in enumerate(names):
        message = assistant(draw(deltas.texts))
        if some:
            made = [
                call(f"{number}/{place}", name=name, arguments=f'{{"{number}": {place}}}')
                for place, name in enumerate(some)
            ]
            message = assistant(message["content"] or None, tool_calls=[one["tool_calls"][0] for one in made])
        said.append(message)
    return said


def _streamed(data, said, provider, *, wants_usage):
    client = ClientStream(SERVICE, wants_usage=wants_usage)
    shown: list[dict[str, Any]] = []
    for number, message in enumerate(said):
        reply = Reply()
        usage = {"total_tokens": 10**number, "details": {"cached": 1}}
        for chunk in data.draw(deltas.chunks_of(message, provider, name=f"round {number}", usage=usage)):
            passed = client.chunks(chunk, reply)
            text = [one["delta"].get("content") for one in chunk["choices"]]
            at_once = [one["choices"][0]["delta"].get("content") for one in passed]
            assert "".join(filter(None, text)) == "".join(filter(None, at_once)), "text passes at once"
            shown += passed
        if number < len(said) - 1:
            client.next_round(reply)
    asks_client = any(one["function"]["name"] not in SERVICE for one in said[-1].get("tool_calls", []))
    return shown + client.end(reply, asks_client=asks_client), client


def _places(message):
    made = message.get("tool_calls") or []
    return [place for place, one in enumerate(made) if one["function"]["name"] in SERVICE]


@settings(max_examples=300)
@given(st.data(), rounds(), deltas.providers, st.booleans())
def test_the_client_gets_one_answer_with_its_own_calls(data, said, provider, wants_usage):
    chunks, client = _streamed(data, said, provider, wants_usage=wants_usage)
    shown = Shown(chunks)
    assert shown.ids == {"round 0"}
    assert shown.roles == ["assistant"]
    own = without_calls(said[-1], _places(said[-1])).get("tool_calls", [])
    assert shown.reasons == ["tool_calls" if own else "stop"]
    assert shown.text == "".join(one["content"] or "" for one in said)
    assert shown.calls == own
    usage = {"total_tokens": sum(10**n for n in range(len(said))), "details": {"cached": len(said)}}
    assert client.usage == usage
    assert shown.usages == ([usage] if wants_usage else [])
    assert wants_usage or not any("usage" in one for one in chunks)
    assert all("choices" in one for one in chunks)


@settings(max_examples=200)
@given(st.data(), rounds(), deltas.providers)
def test_the_log_tells_what_the_client_got_of_a_stream(data, said, provider):
    """The history as the client has seen it is what it put together."""
    shown = Shown(_streamed(data, said, provider, wants_usage=False)[0])
    run = Run(id="r", streamed=True)
    replies = [
        event(str(n), n, one, metadata_json=json_values.encode(run.mark_reply(_places(one))))
        for n, one in enumerate(said)
    ]
    got = assistant(shown.text, **({"tool_calls": shown.calls} if shown.calls else {}))
    assert likeness(as_delivered(replies)) == likeness(got)


def stream(*chunks, service=SERVICE, wants_usage=False):
    client, reply = ClientStream(service, wants_usage=wants_usage), Reply()
    passed = [one for chunk in chunks for one in client.chunks(chunk, reply)]
    return Shown(passed + client.end(reply, asks_client=bool(reply.message().get("tool_calls"))))


def chunk(delta=None, reason=None, **head):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", **head, "choices": choices}


def test_a_first_chunk_without_choices_is_not_the_head():
    """Azure begins each stream so, with an empty id, for the result of its content filter."""
    first = chunk(id="", model="", created=0, prompt_filter_results=[])
    shown = stream(first, chunk({"role": "assistant", "content": ""}), chunk({"content": "hi"}), chunk({}, "stop"))
    assert (shown.ids, shown.roles, shown.text) == ({"c1"}, ["assistant"], "hi")


def test_a_role_that_comes_late_is_passed_on():
    shown = stream(chunk({"content": ""}), chunk({"role": "assistant", "content": "hi"}), chunk({}, "stop"))
    assert shown.roles == ["assistant"]


def test_a_service_call_is_withheld_although_its_name_comes_in_pieces():
    begun = {"index": 0, "id": "x", "type": "function", "function": {"name": "sea", "arguments": ""}}
    goes_on = [{"index": 0, "function": one} for one in ({"name": "rch"}, {"arguments": "{}"})]
    pieces = [chunk({"role": "assistant", "tool_calls": [one]}) for one in (begun, *goes_on)]
    assert stream(*pieces, chunk({}, "tool_calls")).calls == []


def test_log_probabilities_pass():
    chosen = chunk({"role": "assistant", "content": "hi"})
    chosen["choices"][0]["logprobs"] = {"content": [{"token": "hi", "logprob": -1}]}
    client, reply = ClientStream(SERVICE, wants_usage=False), Reply()
    assert client.chunks(chosen, reply)[0]["choices"][0]["logprobs"] == chosen["choices"][0]["logprobs"]


@pytest.mark.parametrize("choices", [[None], [{"index": 0, "delta": "x"}], ["x"]])
def test_choices_of_an_unexpected_shape_add_nothing(choices):
    passed = ClientStream(SERVICE, wants_usage=False).chunks({**chunk(), "choices": choices}, Reply())
    assert Shown(passed).text == ""


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (None, None, None),
        (None, {"a": 1}, {"a": 1}),
        ({"a": 1}, None, {"a": 1}),
        ({"a": 1, "b": None}, {"a": 2, "b": 3, "c": {"d": 4}}, {"a": 3, "b": 3, "c": {"d": 4}}),
        ({"c": {"d": 1}}, {"c": {"d": 2, "e": 1}}, {"c": {"d": 3, "e": 1}}),
        ({"cost": Decimal("0.1")}, {"cost": Decimal("0.2")}, {"cost": Decimal("0.3")}),
        ({"tier": "x", "byok": True}, {"tier": "x", "byok": True}, {"tier": "x", "byok": True}),
    ],
)
def test_usage_is_summed(one, other, both):
    assert added(one, other) == both


@pytest.mark.parametrize(
    "answer", [None, [], "x", {}, {"choices": []}, {"choices": None}, {"choices": [{"index": 1}]}]
)
def test_what_is_no_completion_is_said_to_be_none(answer):
    with pytest.raises(NotACompletion):
        message_of(answer)


def test_a_whole_answer_shows_the_client_its_own_calls():
    made = call("a", "b", content="both")
    made["tool_calls"][0]["function"]["name"] = "search"
    completion = {"id": "c", "choices": [{"index": 0, "message": made, "finish_reason": "tool_calls"}], "usage": 1}
    shown = with_message(completion, without_calls(made, [0]), {"total_tokens": 3})
    assert shown["choices"][0]["message"] == call("b", content="both")
    assert shown["choices"][0]["finish_reason"] == "tool_calls"
    assert shown["usage"] == {"total_tokens": 3}
    last = with_message(completion, without_calls(made, [0, 1]), None)
    assert last["choices"][0]["message"] == assistant("both")
    assert last["choices"][0]["finish_reason"] == "stop"


@settings(max_examples=100)
@given(deltas.whole_messages(), st.booleans())
def test_a_replayed_stream_comes_to_the_same_message_as_a_replayed_whole(message, wants_usage):
    facts = {"id": "c", "model": "m", "created": 1, "finish_reason": "stop", "usage": {"total_tokens": 3}}
    reply = Reply()
    chunks = chunks_of(message, facts, wants_usage=wants_usage)
    for one in chunks:
        reply.add(one)
    assert message_of(completion_of(message, facts)) == message
    assert likeness(reply.message()) == likeness(message)
    assert (reply.id, reply.model, reply.created, reply.finish_reason) == ("c", "m", 1, "stop")
    assert reply.usage == (facts["usage"] if wants_usage else None)
    assert Shown(chunks).text == (text_of(message) or "")


def test_n1_the_same_turn_has_the_same_ids_with_one_key_and_others_with_another():
    ids = {
        key: (event_ids.of_message(user("q"), event_ids.fingerprint(1, key)), key) for key in ("run-1", "run-2", None)
    }
    assert len({one for one, _ in ids.values()}) == 3
    assert event_ids.of_message(user("q"), event_ids.fingerprint(1, "run-1")) == ids["run-1"][0]
    assert event_ids.of_message(user("q"), event_ids.fingerprint(2, "run-1")) != ids["run-1"][0]


def test_n2_ids_are_a_type_and_a_hash():
    of = event_ids.fingerprint(1, None)
    longest = event_ids.of_reply([event_ids.of_message(user("q"), of)], 0)
    assert len(longest) == 74
    for message in (user("q"), assistant("a"), {"role": "developer", "content": "s"}):
        kind, _, digest = event_ids.of_message(message, of).partition("-")
        assert kind in {"user", "assistant", "system"}
        assert len(bytes.fromhex(digest)) == 32


def test_n2_blank_call_ids_with_different_arguments_have_different_ids():
    made = {event_ids.of_message(call("", arguments=one), "1") for one in ("{}", "[]", "")}
    assert len(made) == 3


def test_n3_an_equal_text_of_one_session_has_the_same_id():
    of = event_ids.fingerprint(1, None)
    assert event_ids.of_message(user("yes"), of) == event_ids.of_message({"content": "yes", "role": "user"}, of)


def test_the_id_of_a_reply_tells_what_it_answers_and_the_attempt():
    ids = [event_ids.of_reply(answered, attempt) for answered in (["a"], ["b"], ["a", "b"]) for attempt in range(3)]
    assert len(set(ids)) == 9
