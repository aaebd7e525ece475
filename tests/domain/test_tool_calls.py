"""No prompt holds a call without its results, or a result without its call."""

from hypothesis import given
from hypothesis import strategies as st

from app.domain.tool_calls import intact


def call(*ids, content=None):
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(call_id):
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


U = {"role": "user", "content": "u"}
A = {"role": "assistant", "content": "a"}


def test_a_call_with_its_result_stays():
    assert all(intact([U, call("1"), result("1"), A]))


def test_parallel_results_may_come_in_any_order():
    assert all(intact([U, call("1", "2"), result("2"), result("1"), A]))


def test_o8_an_interrupted_call_goes():
    assert intact([U, call("1"), U, A]) == [True, False, True, True]


def test_o8_a_half_answered_parallel_call_goes_with_its_answer():
    assert intact([U, call("1", "2"), result("1"), U]) == [True, False, False, True]


def test_a_result_that_does_not_follow_its_call_directly_goes():
    assert intact([U, call("1"), A, result("1")]) == [True, False, True, False]


def test_a_result_without_a_call_and_a_second_result_go():
    assert intact([result("9"), U, call("1"), result("1"), result("1")]) == [False, True, True, True, False]


def test_blank_ids_pair_by_position():
    assert all(intact([U, call("", ""), result(""), result(""), A]))
    assert intact([U, call("", " "), result(""), A]) == [True, False, False, True]


ids = st.sampled_from(["", "1", "2", "3"])
calls = st.lists(ids, min_size=1, max_size=3).filter(
    lambda chosen: len([i for i in chosen if i]) == len({i for i in chosen if i})
)
messages = st.one_of(st.just(U), st.just(A), calls.map(lambda chosen: call(*chosen)), ids.map(result))


@given(st.lists(messages, max_size=12))
def test_what_is_left_satisfies_every_provider(conversation):
    kept = [message for message, keep in zip(conversation, intact(conversation), strict=True) if keep]
    open_ids: list[str] = []
    for message in kept:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_ids
            open_ids.remove(message["tool_call_id"])
            continue
        assert not open_ids
        open_ids = [made["id"] for made in message.get("tool_calls", [])]
    assert not open_ids
    assert all(intact(kept)), "a prompt that is intact stays as it is"
    assert [m for m in conversation if m in (U, A)] == [m for m in kept if m in (U, A)]
