"""The prompt: system messages first, the conversation within its budget, fields that providers take."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import ContextTooLarge
from app.domain.prompt import Budget, build_prompt, within_budget
from app.domain.said import Said
from app.domain.turns import newest_whole_turns
from tests.domain.chats import Session, assistant, brief, call, messages, result, tokens_of, user
from tests.domain.logs import event, log
from tests.prompt_rules import faults_of_prompt


def limit(tokens):
    return Budget(max_tokens=tokens, count_tokens=tokens_of)


def system(text, role="system"):
    return {"role": role, "content": text}


def stored(*some):
    return [Said(message=one, event=event(f"e{n}", n, one, tokens=tokens_of(one))) for n, one in enumerate(some)]


def prompt_of(said, *, stored_system=None, request=()):
    own = None if stored_system is None else event("S", 0, stored_system)
    return build_prompt(said, stored_system=own, system=request, also=frozenset()).messages


sizes = st.integers(0, 6)
turns = st.lists(st.tuples(sizes, st.lists(sizes, max_size=2)), max_size=5)


@given(turns, sizes, st.integers(0, 40))
def test_the_newest_whole_turns_that_fit(earlier, question, tokens):
    history = [[user("u" * size), *(assistant("a" * one) for one in replies)] for size, replies in earlier]
    said = [*stored(*(one for turn in history for one in turn)), Said(message=user("q" * question), new=True)]
    if question > tokens:
        with pytest.raises(ContextTooLarge, match=f"{question:,} tokens.*at most {tokens:,} "):
            within_budget(said, limit(tokens), {})
        return
    costs = accumulate(sum(map(tokens_of, turn)) for turn in reversed(history))
    fitting = sum(1 for cost in costs if cost + question <= tokens)
    expected = [one for turn in history[len(history) - fitting :] for one in turn]
    assert [one.message for one in within_budget(said, limit(tokens), {})] == [*expected, said[-1].message]


results = st.lists(st.integers(0, 60), min_size=1, max_size=5)


@settings(max_examples=300)
@given(results, st.integers(0, 5), st.booleans(), st.integers(0, 200))
def test_the_oldest_tool_contents_are_elided_first(texts, before, answers_are_new, tokens):
    """And no more of them than it takes; nothing else of the turn is touched."""
    made = call(*(f"c{place}" for place in range(len(texts))), arguments="")
    answers = [result(f"c{place}", str(place % 10) * size) for place, size in enumerate(texts)]
    if answers_are_new:
        new = [Said(message=one, new=True) for one in answers]
        said = [*stored(user("old"), assistant("a" * before), user("question"), made), *new]
        names = {id(one): f"n{place}" for place, one in enumerate(new)}
    else:
        said, names = stored(user("old"), assistant("a" * before), user("question"), made, *answers), {}
    total = len("question") + sum(texts)
    expected = list(texts)
    notes = [
        f"[elided, event {'n' if answers_are_new else 'e'}{n + (0 if answers_are_new else 4)}]" for n in range(5)
    ]
    for place, size in enumerate(texts):
        if total > tokens and len(notes[place]) < size:
            total += len(notes[place]) - size
            expected[place] = notes[place]
    if total > tokens:
        with pytest.raises(ContextTooLarge, match=f"{total:,} tokens.*at most {tokens:,} "):
            within_budget(said, limit(tokens), names)
        return
    kept = [one.message for one in within_budget(said, limit(tokens), names)]
    assert user("question") in kept
    contents = [one["content"] for one in kept if one["role"] == "tool"]
    assert contents == [one if isinstance(one, str) else str(place % 10) * one for place, one in enumerate(expected)]
    assert kept[-len(answers) - 1] == made
    assert (user("old") in kept) == (len("question") + sum(texts) + len("old") + before <= tokens)
    assert [one.message for one in said[-len(answers) :]] == answers, "storing is not affected"


def test_the_budget_counts_neither_system_messages_nor_what_was_left_out():
    session = Session(log("S1 U1 A1"))
    sent = session.ask([system("s" * 99), user("q")], budget=limit(1))
    assert brief(sent.messages) == f"S1 {'s' * 99} q"


def test_what_the_request_adds_is_one_with_its_turn():
    session = Session(log("U1 A1c"))
    assert brief(session.ask(messages("T1 U2 U3"), budget=limit(100)).messages) == "U1 [call1] T1 U2 U3"
    with pytest.raises(ContextTooLarge):
        Session(log("U1 A1c")).ask(messages("T1 U2 U3"), budget=limit(5))


def test_a_preamble_goes_before_any_turn_does():
    said = stored(assistant("hello"), user("u1"), assistant("a1"), user("u2"))
    assert brief(one.message for one in within_budget(said, limit(10), {})) == "u1 a1 u2"
    assert brief(one.message for one in within_budget(said, limit(11), {})) == "hello u1 a1 u2"


def test_o6_only_the_latest_stored_system_message_first():
    session = Session(log("S1 U1 A1 S2"))
    assert brief(session.ask([system("S3"), user("U2")]).messages) == "S2 S3 U1 A1 U2"


def test_o6_the_same_text_in_the_request_once():
    session = Session(log("S1 U1 A1"))
    sent = session.ask([system("S1", "developer"), system("S3"), user("U2"), system("S3")])
    assert brief(sent.messages) == "S1 S3 U1 A1 U2"
    assert sent.messages[0]["role"] == "system", "the first stays"


def test_o7_the_stored_prompt_and_a_window():
    session = Session(log("S1 U1 A1 U2 A2 U3 A3"))
    sent = session.ask([user("U4")], window=lambda said: newest_whole_turns(said, 2))
    assert brief(sent.messages) == "S1 U3 A3 U4"
    assert sent.history_events == 2


@given(st.lists(st.sampled_from(["a", "b", "a ", "A", "a\nb"]), max_size=6), st.sampled_from([None, "a", "c"]))
def test_system_texts_keep_their_order_and_an_exact_duplicate_is_sent_once(texts, own):
    sent = prompt_of([], stored_system=own and system(own), request=[system(one) for one in texts])
    assert [one["content"] for one in sent] == list(dict.fromkeys([own, *texts] if own else texts))


def test_reasoning_is_replayed_within_the_current_turn_only():
    thought = {"reasoning_content": "hm", "annotations": [], "refusal": None}
    said = stored(user("1"), assistant("2", **thought), user("3"), call("x") | thought, result("x"))
    sent = prompt_of(said)
    assert sent[1] == assistant("2", refusal=None)
    assert sent[3] == call("x") | {"reasoning_content": "hm", "refusal": None}
    assert faults_of_prompt({"messages": sent}) == []


def test_the_messages_of_the_request_go_as_they_came():
    odd = {"role": "user", "content": "q", "cache_control": {"type": "ephemeral"}}
    assert prompt_of([Said(message=odd, new=True)]) == [odd]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(assistant("a", tool_calls=None), id="no-calls-as-null"),
        pytest.param(assistant("a", tool_calls=[]), id="no-calls-as-a-list"),
        pytest.param(assistant("a", name=None), id="name"),
        pytest.param(call("x") | {"content": []}, id="no-parts"),
    ],
)
def test_replayed_messages_are_what_providers_take(reply):
    follows = [result("x")] if reply.get("tool_calls") else []
    said = [*stored(user("q"), reply, *follows), Said(message=user("q2"), new=True)]
    assert faults_of_prompt({"messages": prompt_of(said)}) == []
