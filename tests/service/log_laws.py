"""What a log has to be, held against what was said: every word is there once, as it was said, in its order."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from tests.service.scripted_model import Line, is_quote, text_of, words_of


class Said(Protocol):
    """A session's log, and by their words the lines that were said for it."""

    log: list[dict[str, Any]]
    lines: dict[str, Line]


def said_in(conversation: Said) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The events of the log with their words, without summaries and quotes."""
    for event in conversation.log:
        if not event["synthetic"] and not is_quote(event["message"]):
            yield event, words_of(event["message"])


def holds_every_word_once(conversation: Said) -> Iterator[str]:
    times = Counter(word for _, words in said_in(conversation) for word in words)
    allowed = {"stored": {1}, "absent": {0}, "unsure": {0, 1}, "cut": {0, 1}}
    for word, line in conversation.lines.items():
        if times[word] not in allowed[line.fate]:
            yield f"{word} ({line.role}) is {line.fate}, and {times[word]} times in the log."
    for word in times.keys() - conversation.lines.keys():
        yield f"{word} is in the log, and was not said for it."


def holds_what_was_said(conversation: Said) -> Iterator[str]:
    for event, words in said_in(conversation):
        message = event["message"]
        for line in filter(None, map(conversation.lines.get, words)):
            is_fragment = event["metadata"].get("interrupted")
            if is_fragment and line.fate != "unsure" if is_same(message, line.message) else line.fate == "stored":
                yield f"{line.word} is in the log as {message}, instead of {line.message}."


def is_same(stored: dict[str, Any], said: dict[str, Any]) -> bool:
    """A reply came as chunks or whole, and with more fields than are compared."""
    if said["role"] != "assistant":
        return stored == said
    calls = (stored.get("tool_calls") or []) == (said.get("tool_calls") or [])
    return calls and text_of(stored) == text_of(said) and stored.get("refusal") == said.get("refusal")


def is_in_the_order_of_events(conversation: Said) -> Iterator[str]:
    """What was sure to be stored before something else was said comes before it."""
    latest = 0.0
    for _, words in said_in(conversation):
        for line in filter(None, map(conversation.lines.get, words)):
            if line.known < latest:
                yield f"{line.word} ({line.role}) stands behind what was said after it."
            latest = max(latest, line.began)
