"""What may go upstream and what is stored: no call without its results, no result without its call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import guards
from app.domain.errors import CallAnswered, CallsUnanswered
from app.domain.message_filters import Containing, OfTypes, SkipEmpty
from app.domain.said import Said
from app.domain.service_runs import Run
from tests.domain.chats import Session, Strays, assistant, brief, call, messages, result, user
from tests.domain.logs import event, log
from tests.prompt_rules import require_valid


def stored(*texts):
    return [Said(message=one, event=event(str(place), place, one)) for place, one in enumerate(texts)]


def new(*texts):
    return [Said(message=one, new=True) for one in texts]


def sent(said):
    assert guards.results_without_call(said) == []
    kept = [one.message for one in guards.without_broken_calls(said)]
    require_valid({"messages": kept})
    return brief(kept)


def test_o4_a_tool_loop_goes_on_unchanged():
    session = Session(log("U1 A1c"))
    prompt = session.ask(messages("U1 A1c T1"))
    assert brief(prompt.messages) == "U1 [call1] T1"
    assert len(session.log) == 3


def test_o5_a_result_alone_joins_its_question_and_call():
    session = Session(log("U1 A1c"))
    assert brief(session.ask(messages("T1")).messages) == "U1 [call1] T1"
    assert session.log[-1].message == result("call1", "T1")


def test_o5_also_where_a_window_hides_the_open_call():
    session = Session(log("U1 A1c"))
    assert brief(session.ask(messages("T1"), window=lambda _: []).messages) == "U1 [call1] T1"


@pytest.mark.parametrize(
    ("log_line", "prompt"),
    [
        pytest.param("U1 A1c", "U1 U2", id="o8-interrupted"),
        pytest.param("U1 A1cab T1a", "U1 U2", id="o8-half-answered"),
        pytest.param("U1 A1cab T1a T1b", "U1 [call1a,_call1b] T1a T1b U2", id="whole"),
        pytest.param("U1 T9 A1", "U1 A1 U2", id="a-result-without-a-call"),
        pytest.param("U1 A1c A2 T1", "U1 A2 U2", id="a-result-that-came-too-late"),
        pytest.param("U1 A1c T1 T1 A2", "U1 [call1] T1 A2 U2", id="a-second-result"),
    ],
)
def test_what_is_broken_in_the_log_stays_there_and_out_of_the_prompt(log_line, prompt):
    events = [event(str(place), place, one) for place, one in enumerate(messages(log_line))]
    session = Session(events)
    assert brief(session.ask([user("U2")]).messages) == prompt
    assert len(session.log) == len(events) + 1


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        pytest.param("T1a", ("call1b", "call1c"), id="o17-one-of-three"),
        pytest.param("T1b T1a", ("call1c",), id="o17-two-of-three"),
        pytest.param("T1a U2", ("call1b", "call1c"), id="o17-before-a-question"),
    ],
)
def test_o17_some_of_the_open_calls_left_unanswered(line, missing):
    session = Session(log_of("U1 A1cabc"))
    with pytest.raises(CallsUnanswered) as raised:
        session.ask(messages(line))
    assert raised.value.call_ids == missing
    assert len(session.log) == 2


def log_of(line):
    return [event(str(place), place, one) for place, one in enumerate(messages(line))]


def test_o17_a_result_after_a_message_that_overtook_its_call_is_a_stray():
    session = Session(log_of("U1 A1c U2"), answered=False)
    with pytest.raises(Strays) as raised:
        session.ask(messages("T1"))
    assert raised.value.args[0] == ["call1"]
    with pytest.raises(Strays):
        session.ask(messages("U3 T1"))
    assert len(session.log) == 3


def test_o22_results_sent_again_after_the_answer_are_strays():
    session = Session(log_of("U1 A1c T1 A2"))
    for line in ("T1", "U1 A1c T1"):
        with pytest.raises(Strays):
            session.ask(messages(line))
    assert len(session.log) == 4


def test_o22_a_second_result_of_one_call_is_refused():
    with pytest.raises(CallAnswered) as raised:
        Session(log_of("U1 A1c T1")).ask([result("call1", "another")])
    assert raised.value.call_ids == ("call1",)
    with pytest.raises(CallAnswered):
        Session(log_of("U1 A1c")).ask([*messages("T1"), result("call1", "another")])


def test_o22_parallel_results_in_another_order_are_accepted():
    session = Session(log_of("U1 A1cab"))
    assert brief(session.ask(messages("T1b T1a")).messages) == "U1 [call1a,_call1b] T1b T1a"


def test_a_call_of_the_request_without_its_result_is_refused():
    with pytest.raises(CallsUnanswered) as raised:
        Session().ask(messages("U1 A1c U2"))
    assert raised.value.call_ids == ("call1",)


ids = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=4).filter(
    lambda chosen: len([one for one in chosen if one]) == len({one for one in chosen if one})
)


@given(ids, st.data())
def test_the_results_of_all_open_calls_are_needed_once_each(made, data):
    results = data.draw(st.permutations([result(one, f"r{place}") for place, one in enumerate(made)]))
    given_ = results[: data.draw(st.integers(1, len(results)))]
    said = [*stored(user("u"), call(*made)), *new(*given_)]
    if len(given_) == len(results):
        assert guards.results_without_call(said) == []
        assert len(guards.without_broken_calls(said)) == len(said)
        return
    with pytest.raises(CallsUnanswered) as raised:
        guards.results_without_call(said)
    left = [one["tool_call_id"] for one in results[len(given_) :]]
    assert sorted(raised.value.call_ids) == sorted(left)


@given(ids, st.data())
def test_a_result_too_many_is_refused_whatever_its_place(made, data):
    results = [result(one) for one in made]
    twice = data.draw(st.sampled_from(results))
    said = [*stored(user("u"), call(*made)), *new(*data.draw(st.permutations([*results, twice])))]
    with pytest.raises(CallAnswered) as raised:
        guards.results_without_call(said)
    assert raised.value.call_ids == (twice["tool_call_id"],)
    unknown = [*stored(user("u"), call(*made)), *new(*data.draw(st.permutations([*results, result("z")])))]
    assert guards.results_without_call(unknown) == ["z"]


@given(st.permutations(range(4)), st.integers(1, 3), st.booleans(), st.data())
def test_service_and_client_results_stand_in_the_order_of_their_calls(order, services, blank, data):
    """Also with ids that are blank, where only the place of the call tells whose a result is."""
    made = call(*("" if blank else f"c{place}" for place in range(4)))
    own = sorted(order[:services])
    run = Run(id="r", streamed=False)
    session = Session(log("U1"))
    session.run_round(run, made, own)
    session.delivered()
    client = [result(made["tool_calls"][place]["id"], f"client {place}") for place in range(4) if place not in own]
    client = client if blank else data.draw(st.permutations(client))
    results = session.ask(client).messages[2:]
    places = [place for place in range(4) if place not in own]
    assert [one["tool_call_id"] for one in results] == [one["id"] for one in made["tool_calls"]]
    assert [one["content"].split()[0] for one in results] == [
        "service" if place in own else "client" for place in range(4)
    ]
    assert [one["content"] for one in results if "client" in one["content"]] == [f"client {n}" for n in places]


def test_o9_a_result_is_stored_exactly_when_its_call_is():
    session = Session(log_of("U1 A1c"))
    no_tools = OfTypes(types=frozenset({"user", "assistant"}))
    session.ask(messages("T1"), accepted=no_tools)
    assert session.log[-1].type == "tool"

    unstored = Session(log_of("U1"))
    no_calls = OfTypes(types=frozenset({"user", "tool"}))
    assert brief(unstored.ask(messages("U1 A1c T1"), accepted=no_calls).messages) == "U1 [call1] T1"
    assert brief(one.message for one in unstored.log) == "U1"


@pytest.mark.parametrize(
    ("accepted", "call_is_stored", "overruled"),
    [
        (SkipEmpty(), True, 0),
        (OfTypes(types=frozenset({"user"})), True, 2),
        (Containing(term="r0"), True, 1),
        (SkipEmpty(), False, 2),
        (OfTypes(types=frozenset({"user"})), False, 0),
    ],
)
def test_o9_how_often_the_filter_was_overruled(accepted, call_is_stored, overruled):
    caller = stored(call("a", "b")) if call_is_stored else [Said(message=call("a", "b"))]
    storing = guards.stored_of([*caller, *new(result("a", "r0"), result("b", "r1"))], accepted)
    assert len(storing.messages) == (2 if call_is_stored else 0)
    assert storing.overruled == overruled


def test_o16_what_is_not_new_is_not_stored():
    said = [*stored(user("u")), Said(message=user("resent")), *new(user("v")), Said(message=assistant("prefill"))]
    assert brief(one.message for one in guards.stored_of(said, SkipEmpty()).messages) == "v"


def test_the_prompt_of_a_whole_conversation_is_the_conversation():
    said = stored(*messages("U1 A1cab T1b T1a A2 U2"))
    assert sent(said) == "U1 [call1a,_call1b] T1b T1a A2 U2"
