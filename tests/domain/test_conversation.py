"""The law of a chat: the loaded history, followed by what the request adds to it, whatever style the client has."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import json_values
from app.domain.client_view import seen_by_client
from app.domain.conversation import continued
from app.domain.errors import CallAnswered, CallsUnanswered
from app.domain.message_filters import AcceptAll, Containing, Not, OfTypes, SkipEmpty
from app.domain.messages import text_of
from app.domain.said import Loaded, Request
from app.domain.service_runs import Run
from app.domain.turns import newest_whole_turns
from tests.domain.chats import (
    INTERRUPTED,
    LATE,
    Session,
    Strays,
    assistant,
    brief,
    call,
    messages,
    new_messages,
    result,
    user,
)
from tests.domain.logs import event, log

OUTCOMES = ("answer", "fail", "cut", "late", "tools", "run", "mixed", "run fails")
BROKEN = ("fail", "cut", "late", "run fails")


@dataclass
class Client:
    """Somebody who talks: what it has seen, what it waits for, and how much of it it sends again."""

    draw: Any
    habits: frozenset[str]
    session: Session = field(default_factory=Session)
    view: list[dict[str, Any]] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    to_answer: list[Any] = field(default_factory=list)
    retries: bool = False
    waiting: bool = False
    number: int = 0

    def text(self) -> str:
        self.number += 1
        # The words of a question that was not answered are not said again but by a retry: that is what they would be.
        distinct = "distinct" in self.habits or _waits(self.session)
        return f"t{self.number}" if distinct else self.draw(st.sampled_from(["ok", "no", "go on"]))

    def pick(self, *of: Any) -> Any:
        return self.draw(st.sampled_from(of))

    def has(self, habit: str) -> bool:
        return habit in self.habits and self.pick(True, False)

    def new_request(self) -> list[dict[str, Any]]:
        """What this client now says: a retry, the results of its calls, or something new."""
        if self.retries and self.pick(True, False):
            again = self.asked
            if all(one["role"] == "tool" and one["tool_call_id"].strip() for one in again):
                again = self.draw(st.permutations(again))
            return list(again)
        self.retries = False
        if self.to_answer and not self.has("abandons"):
            results = [result(one["id"], self.text()) for one in self.to_answer]
            if all(one["tool_call_id"].strip() for one in results):
                results = self.draw(st.permutations(results))
            return [*results, *([user(self.text())] if self.has("steers") else [])]
        said = [user(self.pick(str, _parts, _image)(self.text()))]
        return said + ([user(self.text())] if self.has("several") else [])

    def resent(self) -> list[dict[str, Any]]:
        """What of all that it has seen the client sends before."""
        style = self.pick("nothing", "turn", "everything", "window")
        starts = [place for place, one in enumerate(self.view) if one["role"] == "user"]
        if style == "nothing" or not starts:
            return self.examples if style == "everything" else []
        if style == "turn":
            return self.view[starts[-1] :] if self.to_answer or self.view[-1]["role"] == "tool" else []
        if style == "window":
            return self.view[self.pick(*starts) :]
        return [*self.examples, *self.view]


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def _image(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "x"}}]


def _talk(data: Any, habits: frozenset[str]) -> None:
    client = Client(draw=data.draw, habits=habits)
    session = client.session
    if "examples" in habits:
        client.examples = [user("example"), assistant("so")]
    at_least = client.pick(None, 1, 3) if "windows" in habits else None
    for _ in range(client.draw(st.integers(1, 6))):
        if client.has("compacts"):
            _compact(client)
        is_retry = client.retries
        new = client.new_request()
        is_retry = is_retry and client.retries
        before = client.view[: len(client.view) - len(client.asked)] if is_retry else client.view
        client.view, seen = before, client.view
        resent = client.resent()
        client.view = seen if is_retry else [*seen, *new]
        window = None if at_least is None else lambda said: newest_whole_turns(said, at_least)
        loaded = session.loaded(window)
        says_it_again = is_retry or (resent and resent[-1]["role"] in {"user", "tool"})
        expected = _expected(loaded.window, says_it_again)
        if not is_retry:
            expected += new
            client.waiting = _waits(session)
        if resent[: len(client.examples)] == client.examples and not _has_older(loaded):
            expected = client.examples + expected
        count = len(session.log)
        expected = _without_abandoned(expected)
        sent = session.ask([*resent, *new], window=window)
        assert _keys(sent.messages) == _keys(expected)
        stored = [one.message for one in session.log[count:]]
        assert stored == ([] if is_retry else new), "nothing is stored twice, nothing new is lost"
        client.asked, client.to_answer = new, []
        _answer(client)


def _keys(sent: Any) -> list[Any]:
    """Runs of results are sets; everything else is in order."""
    keys: list[Any] = []
    for one in sent:
        key = repr((one["role"], one.get("content") or "", one.get("tool_calls"), one.get("tool_call_id")))
        if one["role"] == "tool":
            keys = keys if keys and isinstance(keys[-1], set) else [*keys, set()]
            keys[-1].add(key)
        else:
            keys.append(key)
    return keys


def _has_older(loaded):
    return loaded.first_seq is not None and (not loaded.window or loaded.first_seq < loaded.window[0].seq)


def _expected(events: Any, is_retry: bool) -> list[Any]:
    """The stored history as a prompt holds it, said without the service's code."""
    kept = []
    for place, one in enumerate(events):
        later = events[place + 1 :]
        end = next((n for n, other in enumerate(later) if other.type == "user"), len(later))
        is_last_turn = end == len(later)
        made_good = any(
            other.type == "assistant" and not (other.is_interrupted or other.is_late) for other in later[:end]
        )
        if one.is_late or (one.is_interrupted and (made_good or (is_last_turn and is_retry))):
            continue
        kept.append(one.message)
    return kept


def _without_abandoned(conversation: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for place, one in enumerate(conversation):
        follows = conversation[place + 1] if place + 1 < len(conversation) else {"role": "user"}
        if not (one.get("tool_calls") and follows["role"] != "tool"):
            kept.append(one)
    # A call of which the service answered its part, and the client nothing, goes with those answers.
    whole: list[Any] = []
    skip = False
    for place, one in enumerate(kept):
        if one["role"] == "tool":
            whole += [] if skip else [one]
            continue
        made = len(one.get("tool_calls") or [])
        answers = 0
        while place + 1 + answers < len(kept) and kept[place + 1 + answers]["role"] == "tool":
            answers += 1
        skip = answers < made
        whole += [] if skip else [one]
    return whole


def _waits(session: Session) -> bool:
    """Whether the log ends with something unanswered before what is said now."""
    return bool(session.log) and session.log[-1].seq > session.answered_seq


def _compact(client: Client) -> None:
    events = client.session.log
    starts = [place for place, one in enumerate(events) if one.type == "user" and not one.archived]
    if len(starts) > 1:
        client.session.archive(client.pick(*starts[1:]), summary=client.pick(True, False))


def _answer(client: Client) -> None:
    session = client.session
    outcomes = [one for one in OUTCOMES if one in client.habits]
    if client.waiting and "fails again" not in client.habits:
        outcomes = [one for one in outcomes if one not in BROKEN]
    outcome = client.pick(*outcomes)
    client.retries = outcome in BROKEN
    match outcome:
        case "answer":
            reply = assistant(client.text(), **client.pick({}, {"reasoning_content": "hm"}, {"refusal": None}))
            session.answer(reply)
            client.view = [*client.view, {**reply, "content": client.pick(str, _parts)(reply["content"])}]
        case "cut":
            fragment = client.text()
            session.break_off(fragment)
            _keep(client, assistant(fragment[:-1] if client.has("reads less") else fragment))
        case "late":
            reply = assistant(client.text())
            session.append(reply, LATE)
            _keep(client, reply)
        case "tools":
            ids = client.pick(["{}a"], ["{}b", "{}a"], ["", ""])
            client.number += 1
            made = call(*(one.format(client.number) for one in ids), arguments=f"[{client.number}]")
            session.answer(made)
            client.view = [*client.view, {**made, "content": client.pick(None, "")}]
            client.to_answer = made["tool_calls"]
        case "run" | "mixed" | "run fails":
            _run(client, outcome)
    _give_up(client)


def _give_up(client: Client) -> None:
    """Forget a question that was not answered, as front ends do that show an error in its place."""
    if client.retries and client.asked[0]["role"] == "user" and client.has("gives up"):
        client.view = client.view[: -len(client.asked)]
        client.retries = False


def _keep(client: Client, shown: dict[str, Any]) -> None:
    """What is left on the screen of an answer that broke off; a retry takes its place."""
    if not client.pick(True, False):
        return
    client.view = [*client.view, shown]
    client.retries = False


def _run(client: Client, outcome: str) -> None:
    session, run = client.session, Run(id=f"r{client.number}", streamed=client.pick(True, False))
    texts = []
    for _ in range(client.pick(1, 2) if outcome != "mixed" else client.pick(0, 1)):
        client.number += 1
        texts.append(client.pick("", client.text()))
        session.run_round(run, call(f"s{client.number}", name="search", content=texts[-1] or None), [0])
    client.number += 1
    if outcome == "run fails":
        shown = "".join(texts) if run.streamed else ""
        if shown:
            _keep(client, assistant(shown))
        return
    texts.append(client.text())
    shown_text = "".join(texts) if run.streamed else texts[-1]
    if outcome == "run":
        reply = assistant(texts[-1])
        session.append(reply, json_values.encode(run.mark_reply([])))
        client.view = [*client.view, assistant(shown_text)]
    else:
        ids = client.pick(["s", "a"], ["a", "s"], ["b", "s", "a"])
        made = call(*(f"{one}{client.number}" for one in ids), content=texts[-1])
        place = ids.index("s")
        session.run_round(run, made, [place])
        client.to_answer = [one for n, one in enumerate(made["tool_calls"]) if n != place]
        client.view = [*client.view, assistant(shown_text, tool_calls=client.to_answer)]
    session.delivered()


_ALL = {"answer", "fail", "cut", "tools", "run", "mixed", "run fails"}


@pytest.mark.parametrize(
    "habits",
    [
        pytest.param({"answer", "distinct"}, id="questions-and-answers"),
        pytest.param({"answer", "tools"}, id="tool-loops-with-equal-texts"),
        pytest.param({"answer", "fail"}, id="failures-and-retries"),
        pytest.param({"answer", "cut", "fail"}, id="interrupted-replies"),
        pytest.param({"answer", "late", "fail", "distinct"}, id="late-replies"),
        pytest.param({"answer", "tools", "abandons", "fail", "distinct"}, id="abandoned-calls"),
        pytest.param({"answer", "several", "distinct"}, id="several-questions-at-once"),
        pytest.param({"answer", "tools", "steers", "distinct"}, id="results-with-a-question"),
        pytest.param({"answer", "run", "mixed", "distinct"}, id="service-runs"),
        pytest.param(_ALL | {"distinct"}, id="everything"),
        pytest.param(_ALL | {"distinct", "compacts", "windows"}, id="compacted-and-windowed"),
        pytest.param(_ALL | {"distinct", "examples", "compacts"}, id="few-shot-examples"),
        pytest.param({"answer", "fail", "fails again", "distinct"}, id="two-failures"),
        pytest.param({"answer", "fail", "several", "distinct"}, id="several-retried"),
        pytest.param({"answer", "fail", "tools", "steers", "distinct"}, id="steering-retried"),
        pytest.param({"answer", "fail", "gives up", "distinct"}, id="given-up-questions"),
        pytest.param({"answer", "cut", "reads less", "distinct"}, id="fragments-cut-short"),
    ],
)
@settings(max_examples=120)
@given(data=st.data())
def test_the_conversation_is_the_history_followed_by_what_is_new(habits, data):
    _talk(data, frozenset(habits))


# What follows is said without a client: single cases of the specification, and the laws where a filter hides things.


def sent(log_line: str, request_line: str, **how: Any) -> str:
    session = Session(_logged(log_line), answered=how.pop("answered", True))
    return brief(session.ask(messages(request_line), **how).messages)


def _logged(line: str) -> list[Any]:
    """A log; i = interrupted, l = late, * = archived, ~ = synthetic."""
    marks = {"i": INTERRUPTED, "l": LATE}
    return [
        event(
            str(place),
            place,
            messages(name.rstrip("il*~"))[0],
            metadata_json=marks.get(name[-1], "{}"),
            archived=name.endswith("*"),
            synthetic=name.endswith("~"),
            tokens=1,
        )
        for place, name in enumerate(line.split())
    ]


@pytest.mark.parametrize(
    ("log_line", "request_line", "prompt", "stored"),
    [
        pytest.param("U1 A1", "U2", "U1 A1 U2", "U2", id="o1-only-the-new"),
        pytest.param("U1", "U1 A1c T1", "U1 [call1] T1", "", id="o4-a-call-that-was-not-stored"),
        pytest.param("U1 A1c", "U1 A1c T1", "U1 [call1] T1", "T1", id="o4-tool-loop"),
        pytest.param("U1 A1c", "T1", "U1 [call1] T1", "T1", id="o5-only-the-result"),
        pytest.param("U1 A1c", "U2", "U1 U2", "U2", id="o8-an-interrupted-call"),
        pytest.param("U1 A1 U2 A2c", "U2 A2c T2", "U1 A1 U2 [call2] T2", "T2", id="o15-the-current-turn"),
        pytest.param("U1* A1* U2~ A2~ U3 A3c", "U1 A1 U3 A3c T3", "U2 A2 U3 [call3] T3", "T3", id="o15-compacted"),
        pytest.param("", "U1 S1", "S1 U1", "U1", id="o16-a-system-message-behind"),
        pytest.param("", "U1 A1", "U1 A1", "U1", id="o16-prefill"),
        pytest.param("U1 A1", "U1 A1 U2 A2", "U1 A1 U2 A2", "U2", id="o16-prefill-after-everything"),
        pytest.param("U0 A0 U1 A1", "U0 A0 U1", "U0 A0 U1 A1 U1", "U1", id="o21-the-last-question-again"),
        pytest.param("U0 A0 U1 A1", "U0 A0 U2", "U0 A0 U1 A1 U2", "U2", id="o21-the-last-question-changed"),
        pytest.param("U0 A0 U1 A1", "U0 A0 U1 A1 U2", "U0 A0 U1 A1 U2", "U2", id="o21-everything"),
        pytest.param("U1 A1", "U8 A8 U1 A1 U2", "U8 A8 U1 A1 U2", "U2", id="o21-examples-go-first"),
        pytest.param("U0* A0* U1 A1", "U8 A8 U0 A0 U1 A1 U2", "U1 A1 U2", "U2", id="o21-not-after-a-compaction"),
        pytest.param("U0* A0* U1~ A1~", "U0 A0 U2", "U1 A1 U2", "U2", id="o21-all-of-it-compacted"),
        pytest.param("U1 A1", "U7 A7 U2", "U1 A1 U7 A7 U2", "U2", id="nothing-in-common-follows"),
        pytest.param("U1 A1 U2 A2i", "U1 A1 U2 A2 U3", "U1 A1 U2 A2 U3", "U3", id="a-fragment-kept"),
        pytest.param("U1 A1 U2 A2i", "U1 A1 U3", "U1 A1 U2 A2 U3", "U3", id="a-fragment-and-its-question-gone"),
        pytest.param("U1 A1l U1 A2", "U2", "U1 U1 A2 U2", "U2", id="late-replies-stay-out"),
    ],
)
def test_what_is_sent_and_stored(log_line, request_line, prompt, stored):
    session = Session(_logged(log_line), answered=not log_line.endswith("i"))
    count = len(session.log)
    assert brief(session.ask(messages(request_line)).messages) == prompt
    assert brief(one.message for one in session.log[count:]) == stored


def test_o3_a_window_sends_only_its_turns():
    window = {"window": lambda said: newest_whole_turns(said, 2)}
    assert sent("U1 A1 U2 A2", "U3", **window) == "U2 A2 U3"
    assert sent("U1 A1 U2 A2", "U1 A1 U2 A2 U3", **window) == "U2 A2 U3"


def test_o15_three_turns_of_tools_with_a_compaction_between():
    session = Session(log("S0"))
    for number in range(1, 4):
        question, made, answer, reply = messages(f"U{number} A{number}c T{number} A{number}")
        assert brief(session.ask([question]).messages).endswith(f"U{number}")
        session.answer(made)
        prompt = brief(session.ask([question, made, answer]).messages)
        assert prompt.endswith(f"U{number} [call{number}] T{number}")
        assert prompt.count(f"T{number}") == 1
        session.answer(reply)
        session.archive(len(session.log), summary=True)
    assert [one.id for one in session.log if one.id.startswith("e")] == [
        f"e{n}" for n in (1, 2, 3, 4, 7, 8, 9, 10, 13, 14, 15, 16)
    ]


@pytest.mark.parametrize("history", ["prepend", "replace"])
@pytest.mark.parametrize("resent", ["", "U1 A1"])
def test_o18_a_retry_is_stored_once(history, resent):
    session = Session(_logged("U1 A1"))
    for _ in range(3):
        prompt = session.ask(messages(f"{resent} U2"), history=history)
        assert brief(prompt.messages) == "U1 A1 U2"
    assert len(session.log) == 3
    session.answer(assistant("A2"))
    assert brief(session.ask(messages("U2")).messages) == "U1 A1 U2 A2 U2", "two answered ok are two"
    assert len(session.log) == 5


def test_o18_an_answer_that_the_filter_kept_out_is_an_answer():
    session = Session()
    questions = OfTypes(types=frozenset({"user"}))
    session.ask(messages("U1"), accepted=questions)
    session.answer(assistant("A1"), accepted=questions)
    assert brief(session.ask(messages("U1"), accepted=questions).messages) == "U1 U1"


def test_o18_a_retry_with_results_in_another_order():
    session = Session(_logged("U1 A1cab"))
    session.ask(messages("T1a T1b"))
    assert brief(session.ask(messages("T1b T1a")).messages) == "U1 [call1a,_call1b] T1a T1b"
    assert len(session.log) == 4


def test_o18_a_retry_is_compared_after_the_message_filter():
    accepted = Not(negated=Containing(term="draft"))
    session = Session()
    request = [user("draft 1"), user("q"), user("draft 2")]
    for _ in range(2):
        assert brief(session.ask(request, accepted=accepted).messages) == "draft_1 q draft_2"
    assert brief(one.message for one in session.log) == "q"


def test_o23_an_interrupted_reply_is_left_out_once_it_was_made_good():
    session = Session(_logged("U1 A1i"), answered=False)
    assert brief(session.ask(messages("U1")).messages) == "U1"
    session.answer(assistant("A2"))
    assert brief(session.ask(messages("U2")).messages) == "U1 A2 U2"
    assert [one.is_interrupted for one in session.log] == [False, True, False, False]


def test_o23_it_stays_where_nothing_made_it_good():
    session = Session(_logged("U1 A1i"), answered=False)
    assert brief(session.ask(messages("U2")).messages) == "U1 A1 U2"


def test_a_failed_round_of_a_run_is_gone_on_with():
    session = Session(log("U1"), answered=False)
    run = Run(id="r", streamed=False)
    session.run_round(run, call("s", name="search"), [0])
    assert brief(session.ask(messages("U1")).messages) == "U1 [s] service_2"
    assert len(session.log) == 3


@pytest.mark.parametrize(
    ("streamed", "seen"),
    [pytest.param(False, "A2 text", id="whole"), pytest.param(True, "one two A2 text", id="stream")],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_run_looks_to_the_client_as_it_got_it(streamed, seen, mixed):
    run = Run(id="r", streamed=streamed)
    session = Session(log("U1"))
    session.run_round(run, call("s1", name="search", content="one "), [0])
    session.run_round(run, call("s2", "s3", name="search", content="two "), [0, 1])
    last = call("a", "s4", "b", content="A2 text") if mixed else assistant("A2 text")
    if mixed:
        session.run_round(run, last, [1])
    else:
        session.append(last, json_values.encode(run.mark_reply([])))
    session.delivered()
    got = call("a", "b", content=seen) if mixed else assistant(seen)
    assert [one.likeness for one in seen_by_client(session.log)] == [
        one.likeness for one in seen_by_client([event("u", 0, user("U1")), event("a", 1, got)])
    ]
    new = [result("b"), result("a")] if mixed else [user("U2")]
    count = len(session.log)
    whole = session.ask([user("U1"), got, *new]).messages
    assert len(whole) == count + len(new), "it overlaps fully"
    assert brief(one.message for one in session.log[count:]) == brief(new)


def test_of_a_run_that_broke_off_before_its_answer_a_client_that_does_not_stream_saw_nothing():
    session = Session(log("U1"), answered=False)
    session.run_round(Run(id="r", streamed=False), call("s", name="search"), [0])
    assert [one.likeness[1] for one in seen_by_client(session.log)] == ["U1"]
    streamed = Session(log("U1"), answered=False)
    streamed.run_round(Run(id="r", streamed=True), call("s", name="search", content="Let me see."), [0])
    assert [(one.likeness[1], one.compared.optional) for one in seen_by_client(streamed.log)][1:] == [
        ("Let me see.", True)
    ]


FILTERS = {
    "types": OfTypes(types=frozenset({"user"})),
    "contains": Containing(term="x"),
    "not": Not(negated=Containing(term="x")),
    "all": AcceptAll(),
    "no tools": OfTypes(types=frozenset({"user", "assistant"})),
    "no calls": OfTypes(types=frozenset({"user", "tool"})),
    "no questions": OfTypes(types=frozenset({"assistant", "tool"})),
}


def _talk_filtered(data: Any, accepted: Any) -> None:
    """A client that resends everything, through a filter that keeps some of it out of the log."""
    session = Session()
    view: list[Any] = []
    for number in range(data.draw(st.integers(1, 4))):
        for step in ("question", "results")[: data.draw(st.integers(1, 2))]:
            if step == "question":
                view = [*view, user(f"q{number}{data.draw(st.sampled_from(['', 'x']))}")]
            else:
                made = call(f"c{number}", content=data.draw(st.sampled_from([None, f"m{number}", f"m{number}x"])))
                session.answer(made, accepted=accepted)
                view = [*view, made, result(f"c{number}", f"r{number}{data.draw(st.sampled_from(['', 'x']))}")]
            prompt = session.ask(view, accepted=accepted).messages
            if step == "results":
                kept = [one.message for one in session.log]
                assert (made in kept) == (view[-1] in kept), "a result is stored exactly when its call is"
            places = [view.index(one) for one in prompt]
            assert places == sorted(set(places)), "in order, nothing twice"
            current = max(place for place, one in enumerate(view) if one["role"] == "user")
            assert set(range(current, len(view))) <= set(places), "nothing new is lost"
            assert {view.index(one.message) for one in session.log} <= set(places)
        reply = assistant(f"a{number}{data.draw(st.sampled_from(['', 'x']))}")
        session.answer(reply, accepted=accepted)
        view = [*view, reply]


@pytest.mark.parametrize(
    "name",
    [
        "types",
        "all",
        "no tools",
        pytest.param("no calls"),
        pytest.param("contains"),
        pytest.param("not"),
        pytest.param("no questions"),
    ],
)
@settings(max_examples=150)
@given(data=st.data())
def test_nothing_is_lost_or_sent_twice_through_a_message_filter(name, data):
    _talk_filtered(data, FILTERS[name])


def test_o9_a_result_is_stored_with_its_call_although_the_question_was_not():
    secret, made, answer = user("my password is x"), *messages("A1c T1")
    accepted, session = Not(negated=Containing(term="password")), Session(log("U0 A0"))
    session.ask([secret], accepted=accepted)
    session.answer(made, accepted=accepted)
    prompt = session.ask([*messages("U0 A0"), secret, made, answer], accepted=accepted)
    assert brief(one.message for one in session.log) == "U0 A0 [call1] T1"
    assert brief(prompt.messages) == "U0 A0 my_password_is_x [call1] T1"


def test_o21_examples_go_first_although_the_only_question_so_far_failed():
    assert sent("U1", "U8 A8 U2", answered=False) == "U8 A8 U1 U2"


def test_an_overlap_may_end_within_a_run_of_results():
    """A filter shows one of two results only, and the client resends them in another order."""
    session = Session(_logged("U1 A1cab T1a T1b A2"))
    window = {"window": lambda said: [one for one in said if brief([one.message]) in {"[call1a,_call1b]", "T1a"}]}
    assert (
        brief(session.ask(messages("U1 A1cab T1b T1a A2 U2"), **window).messages) == "[call1a,_call1b] T1a T1b A2 U2"
    )


def test_a_run_is_one_although_something_was_appended_meanwhile():
    run, session = Run(id="r", streamed=True), Session(log("U1"))
    session.run_round(run, call("s", name="search", content="one "), [0])
    session.append(assistant("note"))
    session.append(assistant("two"), json_values.encode(run.mark_reply([])))
    session.delivered()
    assert "one two" in [one.likeness[1] for one in seen_by_client(session.log)]


def test_o21_examples_stay_first_where_the_filter_hides_the_whole_turn():
    assert sent("U1 A1c", "U8 A8 U1 A1c T1", window=lambda _: []) == "U8 A8 U1 [call1] T1"


def test_o16_a_reply_to_a_prefill_is_recognised_in_its_whole():
    session = Session()
    session.ask([user("q"), assistant("Once upon")])
    session.append(assistant(" a time"), metadata='{"prefill": "Once upon"}')
    session.delivered()
    assert brief(session.ask([user("q"), assistant("Once upon a time"), user("q2")]).messages) == "q _a_time q2"


texts = st.sampled_from(["", "ok", "x"])
call_ids = st.sampled_from(["", "1", "2"])
any_message = st.one_of(
    texts.map(user),
    texts.map(_parts),
    texts.map(assistant),
    st.lists(call_ids, min_size=1, max_size=2)
    .filter(lambda some: some != ["1", "1"] and some != ["2", "2"])
    .map(lambda some: call(*some)),
    st.builds(result, call_ids, texts),
    st.just({"role": "system", "content": "s"}),
).map(lambda one: user(one) if isinstance(one, list) else one)
marks = st.sampled_from(
    ["{}"] * 4
    + [INTERRUPTED, LATE]
    + [
        json_values.encode(Run(id="r", streamed=True).mark_reply([0])),
        json_values.encode(Run(id="r", streamed=True).mark_result(0)),
    ]
)
filters = st.sampled_from([SkipEmpty(), *FILTERS.values()])


@settings(max_examples=1500)
@given(
    st.lists(st.tuples(any_message, marks, st.booleans()), max_size=8),
    st.lists(any_message, min_size=1, max_size=6),
    filters,
    st.sampled_from(["prepend", "replace"]),
    st.integers(0, 9),
    st.sets(st.integers(0, 7)),
)
def test_any_log_and_any_request_make_a_valid_prompt_or_are_refused(
    events, request, accepted, history, answered, hidden
):
    """The log as direct appends may have left it; nothing of the request is lost but what the log holds."""
    session = Session(
        [event(f"e{n}", n, one, metadata_json=mark, archived=gone) for n, (one, mark, gone) in enumerate(events)]
    )
    session.answered_seq = 1024 * answered
    count = len(session.log)
    before = [one.message for one in session.log]
    try:
        sent = session.ask(
            request,
            accepted=accepted,
            history=history,
            window=lambda said: [one for place, one in enumerate(said) if place not in hidden],
        ).messages
    except (Strays, CallAnswered, CallsUnanswered):
        assert len(session.log) == count, "a refused request stores nothing"
        return
    new = Request.of(request).new
    assert {_plain(one) for one in new} <= {_plain(one) for one in sent}
    added = [one.message for one in session.log[count:]]
    assert all(one in new for one in added)
    assert [one.message for one in session.log[:count]] == before


def _plain(message: Any) -> tuple[Any, ...]:
    return message["role"], text_of(message) or "", message.get("tool_call_id")


@given(st.lists(any_message, max_size=6), st.lists(any_message, min_size=1, max_size=6))
def test_replace_ignores_what_is_resent(events, request):
    loaded = Session([event(f"e{n}", n, one) for n, one in enumerate(events)]).loaded()
    parts = Request.of(request)
    only_new = Request(system=[], resent=[], new=parts.new, prefill=parts.prefill)
    assert continued(loaded, parts, SkipEmpty(), "replace") == continued(loaded, only_new, SkipEmpty(), "prepend")


def test_an_empty_session_sends_the_request():
    request = messages("U1 A1 U2")
    conversation = continued(Loaded(), Request.of(request), SkipEmpty(), "prepend")
    assert [one.message for one in conversation] == request
    assert new_messages(conversation) == request[2:]
