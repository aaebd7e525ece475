"""The log as the client has seen it: what a resent conversation is compared with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from app.domain import json_values
from app.domain.events import Event
from app.domain.messages import says_nothing, tool_calls_of
from app.domain.overlap import Compared, Likeness
from app.domain.service_runs import as_delivered, asks_only_the_service, run_id
from app.domain.tool_calls import intact

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One message that the client has sent or got, and the events that it is in the log.

    `compared.optional`: the client may have kept it or not. `delivered`: a complete reply. `is_whole`: no call
    without its results, nor a result without its call.
    """

    compared: Compared
    events: tuple[Event, ...]
    delivered: bool = False
    is_whole: bool = True

    @property
    def likeness(self) -> Likeness:
        return self.compared.likeness

    @property
    def type(self) -> str:
        return self.events[0].type

    @property
    def last_seq(self) -> int:
        return max(event.seq for event in self.events)

    @property
    def is_broken_off(self) -> bool:
        """Whether it is a reply that answers nothing: interrupted, late, or of a run that a service call ended."""
        return self.type == "assistant" and not self.delivered


def likeness(message: Mapping[str, Any]) -> Likeness:
    """What makes two messages the same one: role, content, calls.

    A string equals one text part, null equals "". Arguments are compared as JSON values where they are such, as
    clients parse and write them again. Calls with ids tell a message without its text, which clients may drop.
    """
    calls = tuple(
        (call.id if call.id.strip() else "", call.name, _arguments(call.arguments)) for call in tool_calls_of(message)
    )
    content = "" if calls and all(call[0] for call in calls) else _content(message.get("content"))
    return message["role"], content, calls, call_id_of(message)


def call_id_of(message: Mapping[str, Any]) -> str:
    """The id of the call that a result answers; "" where there is none, or a blank one."""
    call_id: str = message.get("tool_call_id") or ""
    return call_id if call_id.strip() else ""


def in_order_of_ids(
    items: Sequence[Item], call_id: Callable[[Item], str], is_result: Callable[[Item], bool]
) -> list[Item]:
    """Parallel results may come back in any order: each run of results sorted by the calls' ids (blank ones stay)."""
    ordered: list[Item] = []
    for results, group in groupby(items, is_result):
        members = list(group)
        ordered += sorted(members, key=call_id) if results else members
    return ordered


def seen_by_client(events: Sequence[Event]) -> list[Seen]:
    """The real events of a log, or of a part of it that begins with a turn, as the client has seen them."""
    real = [event for event in events if event.type != "system" and not event.synthetic]
    timely = [event for event in real if not event.is_late]
    whole = {event.id for event, keep in zip(timely, intact([e.message for e in timely]), strict=True) if keep}
    seen = [_judged(one, one.events[0].id in whole) for one in _with_what_was_unanswered(_messages(real))]
    return in_order_of_ids(seen, lambda one: one.likeness[3], lambda one: one.type == "tool")


def unanswered(seen: Sequence[Seen], answered_seq: int) -> list[Seen]:
    """What still waits for a complete reply, without the replies that broke off.

    `answered_seq`: up to where the log was answered by replies that were delivered, stored or not.
    """
    answered = max((place for place, one in enumerate(seen) if one.delivered), default=-1)
    return [one for one in seen[answered + 1 :] if not one.is_broken_off and one.last_seq > answered_seq]


def _messages(real: Sequence[Event]) -> list[Seen]:
    """The messages of a log; the events of one run are one message, or none when the client got nothing of it."""
    runs: dict[str, list[Event]] = {}
    for event in real:
        if (run := run_id(event)) is not None:
            runs.setdefault(run, []).append(event)
    messages: list[Seen] = []
    for event in real:
        run = run_id(event)
        if run is None:
            messages.append(_plain(event))
        elif event is runs[run][-1]:
            messages += _of_run(tuple(runs[run]))
    return messages


def _plain(event: Event) -> Seen:
    broken_off = event.is_interrupted or event.is_late
    compared = Compared(
        likeness=likeness(event.message),
        optional=broken_off or says_nothing(event.message),
        also=_with_prefill(event),
        fragment=event.is_interrupted,
    )
    return Seen(compared=compared, events=(event,), delivered=event.type == "assistant" and not broken_off)


def _of_run(events: tuple[Event, ...]) -> Iterator[Seen]:
    replies = [event for event in events if event.type == "assistant"]
    if not replies:
        return
    last = replies[-1]
    delivered = not (last.is_interrupted or last.is_late or asks_only_the_service(last))
    message = as_delivered(replies)
    if delivered or not says_nothing(message):
        compared = Compared(likeness=likeness(message), optional=not delivered, fragment=not delivered)
        # The reply first, whatever the order of its rounds: it is what the message is.
        yield Seen(compared=compared, events=(last, *(e for e in events if e is not last)), delivered=delivered)


def _with_what_was_unanswered(messages: Sequence[Seen]) -> list[Seen]:
    """What no complete reply followed in its turn needs no counterpart: the client may have given it up."""
    answered = False
    marked: list[Seen] = []
    for one in reversed(messages):
        marked.append(_optional_unless(one, answered or one.delivered))
        answered = (answered or one.delivered) and one.type != "user"
    return marked[::-1]


def _judged(one: Seen, is_whole: bool) -> Seen:
    """What is broken may have been given up."""
    return replace(_optional_unless(one, is_whole), is_whole=is_whole)


def _optional_unless(one: Seen, needed: bool) -> Seen:
    return one if needed else replace(one, compared=replace(one.compared, optional=True))


def _with_prefill(event: Event) -> Likeness | None:
    """The reply as a client has it that put what it began the answer with before it."""
    prefill = event.metadata.get("prefill")
    content = event.message.get("content")
    if not isinstance(prefill, str) or not isinstance(content, str):
        return None
    return likeness({**event.message, "content": prefill + content})


def _arguments(text: str) -> Any:
    try:
        return json_values.digest(json_values.decode(text))
    except json_values.InvalidJson:
        return text


def _content(content: Any) -> Any:
    if content is None or content == []:
        return ""
    if isinstance(content, list):
        if len(content) == 1 and content[0].get("type") == "text":
            return content[0]["text"]
        return json_values.digest(content)
    return content
