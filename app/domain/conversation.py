"""What a chat request adds to its session, and the conversation that goes upstream.

The law: the loaded history, followed by what the request adds to it. Whatever style a client has (only what is new,
the current turn again, everything again), nothing is sent or stored twice and nothing new is lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from app.domain.client_view import (
    Seen,
    in_order_of_ids,
    is_broken_off,
    is_unanswered,
    likeness,
    seen_by_client,
)
from app.domain.events import Event
from app.domain.message_filters import MessageFilter
from app.domain.messages import says_nothing, tool_calls_of, type_of
from app.domain.overlap import Compared, find_overlap
from app.domain.turns import split_into_turns

Message = Mapping[str, Any]
History = Literal["prepend", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A session's log as a chat needs it.

    `window`: what the filter selects. `newest_turn`: that of the log, whatever the filter hides. `has_older`: whether
    the log holds events older than the window. `answered_seq`: up to where the log was answered.
    """

    window: Sequence[Event] = ()
    newest_turn: Sequence[Event] = ()
    system: Event | None = None
    has_older: bool = False
    answered_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of the conversation: an event of the log, or one of the request (`new`: it continues the log)."""

    message: Message
    event: Event | None = None
    new: bool = False

    @property
    def type(self) -> str:
        return type_of(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The messages of a request by the part that they have in it.

    `new` is the trailing run of user and tool messages, `prefill` what an assistant shall begin its answer with,
    `resent` all before.
    """

    system: list[Message]
    resent: list[Message]
    new: list[Message]
    prefill: list[Message]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Request":
        rest = [message for message in messages if type_of(message) != "system"]
        prefill = _trailing(rest, {"assistant"})
        new = _trailing(rest[: len(rest) - len(prefill)], {"user", "tool"})
        return cls(
            system=[message for message in messages if type_of(message) == "system"],
            resent=rest[: len(rest) - len(prefill) - len(new)],
            new=new,
            prefill=prefill,
        )


def continued(loaded: Loaded, request: Request, accepted: MessageFilter, history: History) -> list[Said]:
    """The history continued by the request: what goes upstream but for system messages, before any guard."""
    turn = seen_by_client(loaded.newest_turn, answered_seq=loaded.answered_seq)
    retry = _retry(turn, loaded, request.new, accepted)
    events = _history_of_prompt(loaded, joins=retry.begins < _FAR or _has_results(request.new))
    before = [event for event in events if event.seq < retry.begins]
    resent = request.resent if history == "prepend" else []
    head, after = _around_overlap(before, resent, loaded, accepted)
    return [
        *map(_requested, head),
        *_stored(before, retried=False),
        *map(_requested, after),
        *map(_requested, retry.kept_out),
        *_stored([event for event in events if event.seq >= retry.begins], retried=True),
        *(Said(message=message, new=True) for message in retry.remaining),
        *map(_requested, request.prefill),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Retry:
    """What of a request's new messages the newest turn ends with already, while it is unanswered.

    `begins`: the seq from where on the log is the retried part. `kept_out`: what stands between and is not compared,
    as the log holds no such messages. `remaining`: what is new indeed.
    """

    begins: int
    kept_out: list[Message]
    remaining: list[Message]


_FAR = 2**63


def _retry(turn: Sequence[Seen], loaded: Loaded, new: Sequence[Message], accepted: MessageFilter) -> _Retry:
    none = _Retry(begins=_FAR, kept_out=[], remaining=list(new))
    if not is_unanswered(turn, loaded.answered_seq):
        return none
    said = [one for one in turn if not is_broken_off(one)]
    calls = _calls_of(loaded.newest_turn)
    # A result is compared when the log holds its call, whatever the filter says: just these are stored.
    compared = [
        place
        for place, message in enumerate(new)
        if (_call_id(message) in calls if type_of(message) == "tool" else accepted.accepts(message))
    ]
    compared = in_order_of_ids(
        compared, lambda place: _call_id(new[place]), lambda place: type_of(new[place]) == "tool"
    )
    pairs = _prefix_that_ends_it(said, compared, new) or _results_again(said, compared, new)
    if not pairs:
        return none
    again = {place for _, place in pairs}
    between = [place for place in range(max(again)) if place not in compared]
    gone = {*again, *between}
    return _Retry(
        begins=min(event.seq for one, _ in pairs for event in one.events),
        kept_out=[new[place] for place in between],
        remaining=[message for place, message in enumerate(new) if place not in gone],
    )


def _prefix_that_ends_it(
    said: Sequence[Seen], compared: Sequence[int], new: Sequence[Message]
) -> list[tuple[Seen, int]]:
    keys = [likeness(new[place]) for place in compared]
    for length in range(min(len(keys), len(said)), 0, -1):
        if [one.likeness for one in said[-length:]] == keys[:length]:
            return list(zip(said[-length:], compared[:length], strict=True))
    return []


def _results_again(said: Sequence[Seen], compared: Sequence[int], new: Sequence[Message]) -> list[tuple[Seen, int]]:
    """Results that are stored already, out of a run of which some are new: runs are compared as sets."""
    stored = {one.likeness: one for one in takewhile(lambda one: one.is_result, reversed(said))}
    given = takewhile(lambda place: type_of(new[place]) == "tool", compared)
    return [(stored[likeness(new[place])], place) for place in given if likeness(new[place]) in stored]


def _history_of_prompt(loaded: Loaded, *, joins: bool) -> list[Event]:
    """The window; with the newest turn when the request goes on with that, though the filter hides it."""
    window = [event for event in loaded.window if event.type != "system"]
    if not joins or not loaded.newest_turn:
        return window
    start = loaded.newest_turn[0].seq
    turn = [event for event in loaded.newest_turn if event.type != "system"]
    return [event for event in window if event.seq < start] + turn


def _around_overlap(
    history: Sequence[Event], resent: Sequence[Message], loaded: Loaded, accepted: MessageFilter
) -> tuple[Sequence[Message], Sequence[Message]]:
    """What of the resent messages goes before the history, and what after it."""
    if not resent:
        return [], []
    seen = seen_by_client(history, answered_seq=loaded.answered_seq)
    ordered = in_order_of_ids(resent, _call_id, lambda message: type_of(message) == "tool")
    overlap = find_overlap(
        [Compared(one.likeness, one.optional) for one in seen],
        [Compared(likeness(message), not accepted.accepts(message)) for message in ordered],
    )
    if overlap is None:
        return [], resent
    return ([] if loaded.has_older else resent[: overlap.start]), resent[overlap.end :]


def _stored(events: Sequence[Event], *, retried: bool) -> Iterator[Said]:
    """Events as a prompt holds them: without what says nothing, and without what a whole reply took the place of."""
    return (Said(message=event.message, event=event) for event in for_prompt(events, retried=retried))


def for_prompt(events: Sequence[Event], *, retried: bool = False) -> list[Event]:
    """What of a log belongs into a prompt: no late reply, no empty one, and no interrupted one that was made good.

    `retried`: the last of these turns is being answered anew.
    """
    kept: list[Event] = []
    turns = split_into_turns(event for event in events if event.type != "system")
    for number, turn in enumerate(turns, start=1):
        whole = [place for place, event in enumerate(turn) if _is_whole_reply(event)]
        made_good = len(turn) if retried and number == len(turns) else max(whole, default=-1)
        kept += [
            event
            for place, event in enumerate(turn)
            if not (event.is_late or says_nothing(event.message) or (event.is_interrupted and place < made_good))
        ]
    return kept


def _is_whole_reply(event: Event) -> bool:
    return event.type == "assistant" and not event.is_interrupted and not event.is_late


def _requested(message: Message) -> Said:
    return Said(message=message)


def _trailing(messages: Sequence[Message], types: set[str]) -> list[Message]:
    run = list(takewhile(lambda message: type_of(message) in types, reversed(messages)))
    return run[::-1]


def _has_results(new: Sequence[Message]) -> bool:
    return any(type_of(message) == "tool" for message in new)


def _calls_of(events: Sequence[Event]) -> set[str]:
    return {
        call.id.strip() and call.id
        for event in events
        if event.type == "assistant"
        for call in tool_calls_of(event.message)
    }


def _call_id(message: Message) -> str:
    call_id: str = message.get("tool_call_id", "")
    return call_id.strip() and call_id
