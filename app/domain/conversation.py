"""What a chat request adds to its session, and the conversation that goes upstream.

The law: the loaded history, followed by what the request adds to it. Whatever style a client has (only what is new,
the current turn again, everything again), nothing is sent or stored twice and nothing new is lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from app.domain.client_view import (
    Seen,
    call_id_of,
    in_order_of_ids,
    likeness,
    seen_by_client,
    unanswered,
)
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.message_filters import MessageFilter
from app.domain.messages import says_nothing, text_of, tool_calls_of, type_of
from app.domain.overlap import Compared, Overlap, find_overlap
from app.domain.service_runs import asks_only_the_service
from app.domain.turns import split_into_turns

Message = Mapping[str, Any]
History = Literal["prepend", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A session's log as a chat needs it.

    `window`: what the filter selects. `tail`: the log from the turn of its last complete reply on, whatever the
    filter hides. `first_seq`: where the log begins. `answered_seq`: up to where it was answered.
    """

    window: Sequence[Event] = ()
    tail: Sequence[Event] = ()
    system: Event | None = None
    first_seq: int | None = None
    answered_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of the conversation: an event of the log, or one of the request (`new`: it continues the log).

    `again`: an event that the request says again, as it waits for an answer.
    """

    message: Message
    event: Event | None = None
    new: bool = False
    again: bool = False

    @property
    def type(self) -> str:
        return type_of(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The messages of a request by the part that they have in it.

    `new` is the trailing run of user and tool messages, `prefill` what an assistant shall begin its answer with,
    `resent` all before. `shown`: the filter that the history is read by. `known_ids` are those that the new messages
    have in the log, if it holds them.
    """

    system: list[Message]
    resent: list[Message]
    new: list[Message]
    prefill: list[Message]
    shown: EventFilter = field(default_factory=EventFilter)
    known_ids: frozenset[str] = frozenset()

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

    def shows(self, message: Message) -> bool:
        """Whether the filter of the history selects such a message, as far as the message itself tells."""
        types = self.shown.types
        return (types is None or type_of(message) in types) and self.shown.matches_text(text_of(message))


def continued(loaded: Loaded, request: Request, accepted: MessageFilter, history: History) -> list[Said]:
    """The history continued by the request: what goes upstream but for system messages, before any guard."""
    retry = _retry(loaded, request.new, accepted)
    goes_on = not request.new or any(map(_is_result, request.new))
    events = _history_of_prompt(loaded, retry, goes_on=goes_on)
    before = [event for event in events if event.seq < retry.begins and event.id not in request.known_ids]
    placed = _Placed(new=retry.remaining)
    if history == "prepend":
        has_older = loaded.first_seq is not None and (not events or loaded.first_seq < events[0].seq)
        placed = _around_overlap(before, request, retry.remaining, accepted, has_older=has_older)
    return [
        *map(_requested, placed.head),
        *_with_kept_out(before, placed.between),
        *map(_requested, placed.after),
        *map(_requested, retry.kept_out),
        *_again([event for event in events if event.seq >= retry.begins]),
        *(Said(message=message, new=True) for message in placed.new),
        *map(_requested, request.prefill),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Retry:
    """What of a request's new messages the log ends with already and is not answered yet.

    `begins`: the seq from where on the log is the retried part. `kept_out`: what stands between and is not compared,
    as the log holds no such messages. `remaining`: what is new indeed.
    """

    begins: int
    kept_out: list[Message]
    remaining: list[Message]


_FAR = 2**63


def _retry(loaded: Loaded, new: Sequence[Message], accepted: MessageFilter) -> _Retry:
    waiting = unanswered(seen_by_client(loaded.tail), loaded.answered_seq)
    calls = _calls_of(loaded.tail)
    # A result is compared when the log holds its call, whatever the filter says: just these are stored.
    compared = [
        place
        for place, message in enumerate(new)
        if (call_id_of(message) in calls if _is_result(message) else accepted.accepts(message))
    ]
    compared = in_order_of_ids(compared, lambda at: call_id_of(new[at]), lambda at: _is_result(new[at]))
    pairs = _prefix_that_ends_it(waiting, compared, new) or _results_again(waiting, compared, new)
    if not pairs:
        return _Retry(begins=_FAR, kept_out=[], remaining=list(new))
    again = {place for _, place in pairs}
    between = [place for place in range(max(again)) if place not in compared]
    gone = {*again, *between}
    return _Retry(
        begins=min(event.seq for one, _ in pairs for event in one.events),
        kept_out=[new[place] for place in between],
        remaining=[message for place, message in enumerate(new) if place not in gone],
    )


def _prefix_that_ends_it(
    waiting: Sequence[Seen], compared: Sequence[int], new: Sequence[Message]
) -> list[tuple[Seen, int]]:
    keys = [likeness(new[place]) for place in compared]
    for length in range(min(len(keys), len(waiting)), 0, -1):
        if [one.likeness for one in waiting[-length:]] == keys[:length]:
            return list(zip(waiting[-length:], compared[:length], strict=True))
    return []


def _results_again(
    waiting: Sequence[Seen], compared: Sequence[int], new: Sequence[Message]
) -> list[tuple[Seen, int]]:
    """Results that are stored already, out of a run of which some are new: runs are compared as sets."""
    stored = {one.likeness: one for one in takewhile(lambda one: one.type == "tool", reversed(waiting))}
    given = takewhile(lambda place: _is_result(new[place]), compared)
    return [(stored[likeness(new[place])], place) for place in given if likeness(new[place]) in stored]


def _history_of_prompt(loaded: Loaded, retry: _Retry, *, goes_on: bool) -> list[Event]:
    """The window; and what the request goes on with, from its turn on, though the filter hides it."""
    window = [event for event in loaded.window if event.type != "system"]
    turns = split_into_turns(event for event in loaded.tail if event.type != "system")
    if goes_on or retry.begins < _FAR:
        begun = [turn for turn in turns if turn[0].seq <= retry.begins]
        start = (begun or turns)[-1][0].seq if turns else _FAR
        window = [event for event in window if event.seq < start]
        window += [event for turn in turns for event in turn if event.seq >= start]
    return window


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """Where messages of the request that the history does not hold stand: before it, behind it, or in it.

    `between` are those with the seq of the event that they follow, `new` those that continue the log.
    """

    head: Sequence[Message] = ()
    between: Sequence[tuple[int, Message]] = ()
    after: Sequence[Message] = ()
    new: Sequence[Message] = ()


def _around_overlap(
    history: Sequence[Event],
    request: Request,
    new: Sequence[Message],
    accepted: MessageFilter,
    *,
    has_older: bool,
) -> _Placed:
    seen = seen_by_client(history)
    resent = _Resent.of(request, request.resent, accepted)
    overlap = resent.overlap(seen)
    # Whoever resends nothing says what is new.
    more = _into_the_new(seen, request, new, accepted) if request.resent and len(new) == len(request.new) else None
    if more is not None:
        resent, overlap = more
        new = new[len(resent.messages) - len(request.resent) :]
    elif request.resent:
        overlap = _up_to_open_call(overlap, seen, request)
    if overlap is None:
        return _Placed(after=request.resent, new=new)
    return _Placed(
        head=[] if has_older else resent.places(0, overlap.start),
        between=list(_between(overlap, seen, resent)),
        after=resent.places(overlap.end, len(resent.messages)),
        new=new,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resent:
    """Messages that a client sends again, in the order in which results are compared (`order`).

    `kept_out`: places of what the message filter keeps out of the log, `hidden`: of what the request's own filter
    hides of it.
    """

    messages: list[Message]
    order: list[int]
    kept_out: set[int]
    hidden: set[int]

    @classmethod
    def of(cls, request: Request, messages: list[Message], accepted: MessageFilter) -> "_Resent":
        return cls(
            messages=messages,
            order=in_order_of_ids(
                range(len(messages)), lambda at: call_id_of(messages[at]), lambda at: _is_result(messages[at])
            ),
            kept_out=_kept_out(messages, accepted),
            hidden={at for at, message in enumerate(messages) if not request.shows(message)},
        )

    def overlap(self, seen: Sequence[Seen]) -> Overlap | None:
        if not self.messages:
            return None
        optional = self.kept_out | self.hidden
        compared = [Compared(likeness=likeness(self.messages[at]), optional=at in optional) for at in self.order]
        return find_overlap([one.compared for one in seen], compared)

    def places(self, start: int, end: int) -> list[Message]:
        return [self.messages[at] for at in sorted(self.order[start:end])]


def _into_the_new(
    seen: Sequence[Seen], request: Request, new: Sequence[Message], accepted: MessageFilter
) -> tuple[_Resent, Overlap] | None:
    """Where a client dropped a reply (a call that it gave up, a blank one), what it sends behind its last question
    begins with that question: then the log ends with it as well, and something new remains.
    """
    for length in range(len(new) - 1, 0, -1):
        resent = _Resent.of(request, [*request.resent, *new[:length]], accepted)
        overlap = resent.overlap(seen)
        if overlap is not None and _ends_it(overlap, seen, resent, length):
            return resent, overlap
    return None


def _ends_it(overlap: Overlap, seen: Sequence[Seen], resent: _Resent, length: int) -> bool:
    """Whether the last messages of what is resent, all of them, are the last of the log that the client need have."""
    again = [seen[history] for history, place in overlap.pairs if place >= len(resent.messages) - length]
    if len(again) < length or any(one.type == "tool" and one.compared.optional for one in again):
        return False
    return all(one.compared.optional for one in seen[overlap.pairs[-1][0] + 1 :])


def _up_to_open_call(overlap: Overlap | None, seen: Sequence[Seen], request: Request) -> Overlap | None:
    """Results that answer the newest stored calls answer just these, in whatever form their call is resent."""
    last = request.resent[-1]
    ids = {call.id for call in tool_calls_of(last) if call.id.strip()} if type_of(last) == "assistant" else set()
    if not ids or not seen or not request.new or not _is_result(request.new[0]):
        return overlap
    is_open = ids == {call[0] for call in seen[-1].likeness[2]}
    if not is_open or (overlap is not None and overlap.end == len(request.resent)):
        return overlap
    start, pairs = (0, []) if overlap is None else (overlap.start, overlap.pairs)
    return Overlap(start=start, end=len(request.resent), pairs=pairs)


def _between(overlap: Overlap, seen: Sequence[Seen], resent: _Resent) -> Iterator[tuple[int, Message]]:
    """What the message filter keeps out of the log and the client has seen between what is stored."""
    of_resent = {place: history for history, place in overlap.pairs}
    seq = -1
    for place in range(overlap.start, overlap.end):
        at = resent.order[place]
        if place in of_resent:
            seq = max(seq, seen[of_resent[place]].last_seq)
        elif at in resent.kept_out and at not in resent.hidden and not says_nothing(resent.messages[at]):
            yield seq, resent.messages[at]


def _kept_out(resent: Sequence[Message], accepted: MessageFilter) -> set[int]:
    """Places of what the message filter keeps out of the log; a result goes with its call."""
    kept_out: set[int] = set()
    call_is_out = False
    for place, message in enumerate(resent):
        if type_of(message) == "assistant":
            call_is_out = not accepted.accepts(message)
        if call_is_out if _is_result(message) else not accepted.accepts(message):
            kept_out.add(place)
    return kept_out


def _with_kept_out(events: Sequence[Event], between: Sequence[tuple[int, Message]]) -> Iterator[Said]:
    left = list(between)
    for event in for_prompt(events):
        while left and left[0][0] < event.seq:
            yield _requested(left.pop(0)[1])
        yield Said(message=event.message, event=event)
    yield from (_requested(message) for _, message in left)


def _again(events: Sequence[Event]) -> Iterator[Said]:
    return (Said(message=event.message, event=event, again=True) for event in for_prompt(events, retried=True))


def for_prompt(events: Sequence[Event], *, retried: bool = False) -> list[Event]:
    """What of a log belongs into a prompt: no late reply, no empty one, and no interrupted one that was made good.

    `retried`: all of it is being answered anew.
    """
    kept: list[Event] = []
    for turn in split_into_turns(event for event in events if event.type != "system"):
        whole = [place for place, event in enumerate(turn) if _is_whole_reply(event)]
        made_good = len(turn) if retried else max(whole, default=-1)
        kept += [
            event
            for place, event in enumerate(turn)
            if not (event.is_late or says_nothing(event.message) or (event.is_interrupted and place < made_good))
        ]
    return kept


def _is_whole_reply(event: Event) -> bool:
    broken_off = event.is_interrupted or event.is_late
    return event.type == "assistant" and not broken_off and not asks_only_the_service(event)


def _requested(message: Message) -> Said:
    return Said(message=message)


def _is_result(message: Message) -> bool:
    return type_of(message) == "tool"


def _trailing(messages: Sequence[Message], types: set[str]) -> list[Message]:
    run = list(takewhile(lambda message: type_of(message) in types, reversed(messages)))
    return run[::-1]


def _calls_of(events: Sequence[Event]) -> set[str]:
    return {
        call.id if call.id.strip() else ""
        for event in events
        if event.type == "assistant"
        for call in tool_calls_of(event.message)
    }
