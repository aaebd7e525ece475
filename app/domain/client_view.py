"""The log as the client has seen it: what a resent conversation is compared with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from app.domain import json_values
from app.domain.events import Event
from app.domain.messages import says_nothing, tool_calls_of, type_of
from app.domain.service_runs import as_delivered, asks_only_the_service, run_id
from app.domain.tool_calls import intact
from app.domain.turns import split_into_turns

Likeness = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One message that the client has sent or got, and the events that it is in the log.

    `optional`: the client may have kept it or not. `delivered`: a complete reply.
    """

    likeness: Likeness
    events: tuple[Event, ...]
    optional: bool = False
    delivered: bool = False

    @property
    def is_result(self) -> bool:
        return self.events[0].type == "tool"


def likeness(message: Mapping[str, Any]) -> Likeness:
    """What makes two messages the same one: role, content, calls. A string equals one text part, null equals ""."""
    calls = tuple((call.id.strip(), call.name, call.arguments) for call in tool_calls_of(message))
    return message["role"], _content(message.get("content")), calls, message.get("tool_call_id")


def in_order_of_ids(run_of: Sequence[Any], call_id: Any, is_result: Any) -> list[Any]:
    """Parallel results may come back in any order: each run of results sorted by the calls' ids (blank ones stay)."""
    ordered: list[Any] = []
    for results, group in groupby(run_of, is_result):
        members = list(group)
        ordered += sorted(members, key=call_id) if results else members
    return ordered


def seen_by_client(events: Sequence[Event], *, answered_seq: int = 0) -> list[Seen]:
    """The real events of a log, or of a part of it that begins with a turn, as the client has seen them.

    `answered_seq`: up to where the log was answered by replies that were delivered, stored or not.
    """
    real = [event for event in events if event.type != "system" and not event.synthetic]
    timely = [event for event in real if not event.is_late]
    whole = {event.id for event, keep in zip(timely, intact([e.message for e in timely]), strict=True) if keep}
    seen = [
        one for turn in split_into_turns(real) for one in _with_what_was_unanswered(_messages(turn), answered_seq)
    ]
    seen = [one if one.events[-1].id in whole else replace(one, optional=True) for one in seen]
    return in_order_of_ids(seen, lambda one: (one.likeness[3] or "").strip(), lambda one: one.is_result)


def is_unanswered(turn: Sequence[Seen], answered_seq: int) -> bool:
    """Whether a turn, seen by the client, still waits for a complete reply."""
    said = [one for one in turn if not is_broken_off(one)]
    return bool(said) and not said[-1].delivered and said[-1].events[-1].seq > answered_seq


def is_broken_off(one: Seen) -> bool:
    """Whether it is a reply that does not answer: interrupted, late, or of a run that ended with a service call."""
    last = one.events[-1]
    return last.is_interrupted or last.is_late or (type_of_seen(one) == "assistant" and not one.delivered)


def type_of_seen(one: Seen) -> str:
    return type_of({"role": one.likeness[0]})


def _messages(turn: Sequence[Event]) -> Iterator[Seen]:
    """The messages of a turn; the events of one run are one message, or none when the client got nothing of it."""
    for run, group in groupby(turn, run_id):
        events = tuple(group)
        if run is None:
            yield from map(_plain, events)
        elif replies := [event for event in events if event.type == "assistant"]:
            yield from _of_run(events, replies)


def _plain(event: Event) -> Seen:
    broken_off = event.is_interrupted or event.is_late
    return Seen(
        likeness=likeness(event.message),
        events=(event,),
        optional=broken_off or says_nothing(event.message),
        delivered=event.type == "assistant" and not broken_off,
    )


def _of_run(events: tuple[Event, ...], replies: Sequence[Event]) -> Iterator[Seen]:
    last = replies[-1]
    delivered = not (last.is_interrupted or last.is_late or asks_only_the_service(last))
    message = as_delivered(replies)
    if delivered or not says_nothing(message):
        yield Seen(likeness=likeness(message), events=events, optional=not delivered, delivered=delivered)


def _with_what_was_unanswered(turn: Iterator[Seen], answered_seq: int) -> Iterator[Seen]:
    """What no complete reply followed needs no counterpart: the client may have given it up."""
    messages = list(turn)
    answered = max((place for place, one in enumerate(messages) if one.delivered), default=-1)
    for place, one in enumerate(messages):
        waits = place > answered and one.events[-1].seq > answered_seq
        yield replace(one, optional=True) if waits else one


def _content(content: Any) -> Any:
    if content is None or content == []:
        return ""
    if isinstance(content, list):
        if len(content) == 1 and content[0].get("type") == "text":
            return content[0]["text"]
        return json_values.digest(content)
    return content
