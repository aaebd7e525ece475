"""Random conversations through the running service: every prompt is legal, and the log holds every word once.

Clients of all styles talk to it at once: they resend nothing, their turn or everything, run tools, retry, leave in
the middle, filter, compact, share sessions. The laws are below; a conversation is drawn from its number, and
`TURNKEEPER_TEST_FIRST=17 TURNKEEPER_TEST_CASES=1` holds that of number 17 alone.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.prompt_rules import faults_of_prompt, rendered
from tests.service.chatting import Conversation, converse
from tests.service.log_laws import (
    holds_every_word_once,
    holds_what_was_said,
    is_in_the_order_of_events,
    said_in,
)
from tests.service.process import service
from tests.service.scripted_model import Line, Prompt, is_quote, text_of, words_of
from tests.upstream import scripted_upstream

FIRST = int(os.environ.get("TURNKEEPER_TEST_FIRST", "0"))
CASES = int(os.environ.get("TURNKEEPER_TEST_CASES", "40"))
SHOWN = int(os.environ.get("TURNKEEPER_TEST_SHOWN", "5"))


@pytest.mark.parametrize(
    ("first", "count"), [(FIRST, CASES), pytest.param(1000, 600, marks=pytest.mark.long, id="long")]
)
async def test_every_prompt_is_legal_and_the_log_holds_every_word_once(shared_database_url, first, count):
    # At the end of the block, the service's log must hold no crash, and the script no failure.
    with (
        scripted_upstream() as script,
        service(database_url=shared_database_url, upstream_url=script.url, upstream_model="m") as running,
    ):
        conversations, model = await converse(range(first, first + count), running.url(), script)
    faults = [*model.faults]
    for conversation in conversations:
        faults += conversation.faults
        faults += [f"{conversation.id}: {fault}" for fault in faults_of_log(conversation)]
    for prompt in model.prompts:
        if found := [*faults_of(prompt)]:
            faults.append(told(prompt, found))
    for number, request in model.summaries:
        faults += [f"conversation-{number}: Its summarizer: {fault}" for fault in faults_of_summary(number, request)]
    assert not faults, "\n\n".join([f"{len(faults)} faults in {len(model.prompts):,} prompts.", *faults[:SHOWN]])
    assert len(model.prompts) > 10 * count, "so many conversations make more"


# Of every prompt


def faults_of(prompt: Prompt) -> Iterator[str]:
    yield from faults_of_prompt(prompt.request)
    yield from says_nothing_twice(prompt)
    yield from holds_all_that_is_new(prompt)
    yield from ends_with_the_question(prompt)
    yield from holds_all_that_was_said(prompt)
    yield from is_in_the_order_of_the_log(prompt)
    yield from holds_nothing_else(prompt)
    yield from begins_with_the_latest_system_prompt(prompt)
    yield from begins_with_a_turn(prompt)


def says_nothing_twice(prompt: Prompt) -> Iterator[str]:
    for word, times in Counter(prompt.words()).items():
        if times > 1:
            yield f"{word} is there {times} times."


def holds_all_that_is_new(prompt: Prompt) -> Iterator[str]:
    held = {*prompt.words()}
    for line in prompt.attempt.new:
        may_be_elided = line.call is not None and "max_context_tokens" in prompt.attempt.memory
        if line.word not in held and not may_be_elided:
            yield f"The new message {line.word} ({line.role}) is missing."


def ends_with_the_question(prompt: Prompt) -> Iterator[str]:
    """Or holds it, where another client's may have overtaken it; the log may not have taken it."""
    attempt = prompt.attempt
    newest = attempt.question or words_of(attempt.new[-1].message)
    given = {word for message in attempt.given() for word in words_of(message)}
    unknown = newest[0] not in given and attempt.conversation.lines[newest[0]].fate != "stored"
    overtaken = attempt.new[0].call is not None and attempt.conversation.is_shared
    questions = [words_of(message) for message in prompt.conversation if message["role"] == "user"]
    selects = "max_context_tokens" in attempt.memory or "filter" in attempt.body
    cut = overtaken and (attempt.conversation.compacts or selects)
    if not (unknown or cut) and newest not in (questions if overtaken else questions[-1:]):
        yield f"The newest question is {newest}, the last one here {questions[-1:]}."


def holds_all_that_was_said(prompt: Prompt) -> Iterator[str]:
    """Where nothing selects: every whole message that was sure to be stored before, calls only with their results."""
    attempt = prompt.attempt
    if attempt.conversation.compacts or "filter" in attempt.body or "max_context_tokens" in attempt.memory:
        return
    held = {*prompt.words()}
    for line in attempt.conversation.lines.values():
        is_call = line.call is not None or "tool_calls" in line.message
        if line.role == "system" or (is_call and attempt.conversation.is_shared):
            continue  # Another's question may stand between a call and its results.
        if line.fate == "stored" and line.settled < attempt.began and line.word not in held:
            yield f"{line.word} ({line.role}) was stored before, and is missing."


def is_in_the_order_of_the_log(prompt: Prompt) -> Iterator[str]:
    """Results may stand in the order of their calls instead; what is asked again, where it is asked now."""
    log = [event["message"] for event in prompt.attempt.conversation.log]
    places = {word: place for place, said in enumerate(log) if not is_quote(said) for word in words_of(said)}
    known = places.keys() - {line.word for line in prompt.attempt.new}
    held = [word for word in prompt.words("user", "assistant") if word in known]
    if held != sorted(held, key=places.__getitem__):
        yield f"It is not in the log's order: {held}."


def holds_nothing_else(prompt: Prompt) -> Iterator[str]:
    """No word of another session, none of an edited history that the log replaces, no fragment of what is retried."""
    conversation = prompt.attempt.conversation
    summaries = {word for event in conversation.log if event["synthetic"] for word in words_of(event["message"])}
    for word in prompt.words():
        if word in prompt.attempt.hidden or word not in conversation.lines.keys() | conversation.unstored | summaries:
            yield f"{word} is out of place."


def begins_with_the_latest_system_prompt(prompt: Prompt) -> Iterator[str]:
    """Or with one that was being appended at that time."""
    began, systems = prompt.attempt.began, prompt.attempt.conversation.systems
    stored = [line for line in systems if line.known < began]
    latest = [line for line in systems if not any(line.known < later.began for later in stored)]
    texts = [line.message["content"] for line in latest]
    if stored and prompt.request["messages"][0]["content"] not in texts:
        yield f"The stored system prompt is not first: {texts}."


def begins_with_a_turn(prompt: Prompt) -> Iterator[str]:
    """Whatever window is taken of a log that begins with a question, and is not searched."""
    attempt = prompt.attempt
    searched = {"types", "keyword"} & attempt.body.get("filter", {}).keys()
    if searched or attempt.conversation.greets or attempt.conversation.message_filter is not None:
        return
    first = next(message for message in prompt.request["messages"] if message["role"] != "system")
    if first["role"] != "user":
        yield f"The conversation begins in the middle of a turn, with a message of role {first['role']}."


def faults_of_summary(number: int, request: dict) -> Iterator[str]:
    yield from faults_of_prompt(request)
    if "tools" in request:
        yield "It was given tools."
    for word in words_of(request["messages"][-1]):
        if not word.startswith(f"w{number:04}"):
            yield f"It was shown {word}, which is another conversation's."


# Of the log in the end


def faults_of_log(conversation: Conversation) -> Iterator[str]:
    yield from holds_every_word_once(conversation)
    yield from holds_what_was_said(conversation)
    yield from marks_what_broke_off(conversation)
    yield from is_in_the_order_of_events(conversation)
    if conversation.context:
        yield from faults_of_prompt({"messages": conversation.context})


def marks_what_broke_off(conversation: Conversation) -> Iterator[str]:
    """What is marked is the beginning of such a reply, with all that its client got; nothing else of it is there."""
    cut = [line for line in conversation.lines.values() if line.fate == "cut"]
    marked = [event["text"] or "" for event, _ in said_in(conversation) if event["metadata"].get("interrupted")]
    for text in marked:
        if not any(is_fragment(text, line) for line in cut):
            yield f"The fragment {text!r} is of no reply that broke off."
    for line in cut:
        kept = conversation.message_filter is None and line.got.strip()
        if kept and not any(is_fragment(text, line) for text in marked):
            yield f"The client got {line.got!r} of a reply that broke off, and the log has nothing of it."


def is_fragment(text: str, line: Line) -> bool:
    return text_of(line.message).startswith(text) and text.startswith(line.got)


def told(prompt: Prompt, faults: list[str]) -> str:
    attempt = prompt.attempt
    options = {name: value for name, value in attempt.body.items() if name not in {"messages", "tools", "user"}}
    title = f"{attempt.name}: style {attempt.client.style}, key {attempt.key}, {options}"
    return "\n".join([title, *faults, "Sent:", rendered(attempt.body), "The model got:", rendered(prompt.request)])
