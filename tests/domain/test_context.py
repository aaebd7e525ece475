"""The prompt of a session: system first, whole turns, no broken call."""

from dataclasses import replace

from app.domain.context import build_context
from tests.domain.logs import event, log


def prompt(events, **options):
    return " ".join(build_context(events, **{"system": None} | options).event_ids)


def test_the_latest_system_message_comes_first_and_the_others_are_superseded():
    events = log("S1 U1 A1 S2 U2")
    assert prompt(events, system=events[3]) == "S2 U1 A1 U2"


def test_a_broken_call_is_left_out():
    assert prompt(log("U1 A1c U2 A2c T2 A3")) == "U1 U2 A2c T2 A3"


def test_max_tokens_keeps_the_newest_whole_turns():
    events = [replace(event, tokens=10) for event in log("U1 A1 U2 A2c T2 A2 U3 A3")]
    assert prompt(events, max_tokens=60) == "U2 A2c T2 A2 U3 A3"
    assert prompt(events, max_tokens=59) == "U3 A3"
    assert prompt(events, max_tokens=1) == "U3 A3", "the newest turn is always there"


def test_max_tokens_drops_a_preamble_first():
    assert prompt(log("A0 U1 A1"), max_tokens=2) == "U1 A1"


def test_a_system_message_does_not_count_against_max_tokens():
    events = log("S1 U1 A1 U2 A2")
    context = build_context(events, system=replace(events[0], tokens=100), max_tokens=4)
    assert context.event_ids == ["S1", "U1", "A1", "U2", "A2"]
    assert context.tokens == 104


def test_fields_that_providers_refuse_stay_in_the_log():
    reply = {"role": "assistant", "content": "a", "reasoning_content": "hm", "annotations": [], "refusal": None}
    events = [*log("U1"), event("A1", 1, reply), *log("U2"), event("A2", 3, reply)]
    events = [replace(item, seq=place) for place, item in enumerate(events)]
    sent = build_context(events, system=None).messages
    assert sent[1] == {"role": "assistant", "content": "a", "refusal": None}
    assert sent[3] == {"role": "assistant", "content": "a", "reasoning_content": "hm", "refusal": None}


def test_a_reply_that_says_nothing_and_an_empty_list_of_calls_are_left_out():
    says_nothing = {"role": "assistant", "content": None, "tool_calls": []}
    says_something = {"role": "assistant", "content": "a", "tool_calls": []}
    events = [*log("U1"), event("A1", 1, says_nothing), event("A2", 2, says_something)]
    assert build_context(events, system=None).messages[1:] == [{"role": "assistant", "content": "a"}]
