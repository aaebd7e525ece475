"""What a chat request adds to its session, and the conversation that goes upstream.

The law: the loaded history, followed by what the request adds to it. Whatever style a client has (only what is new,
the current turn again, everything again), nothing is sent or stored twice and nothing new is lost.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from app.domain.events import Event
from app.domain.message_filters import MessageFilter
from app.domain.messages import says_nothing
from app.domain.resent import placed
from app.domain.retries import FAR, Retry, retry_of
from app.domain.said import Loaded, Message, Request, Said, is_result
from app.domain.service_runs import asks_only_the_service
from app.domain.turns import split_into_turns

History = Literal["prepend", "replace"]


def continued(loaded: Loaded, request: Request, accepted: MessageFilter, history: History) -> list[Said]:
    """The history continued by the request: what goes upstream but for system messages, before any guard."""
    retry = retry_of(loaded, request.new, accepted, resends=bool(request.resent))
    goes_on = not request.new or any(map(is_result, request.new))
    events = _history_of_prompt(loaded, retry, goes_on=goes_on)
    asked_anew = _asked_anew(events, request.known_ids)
    before = [event for event in events if event.seq < retry.begins and event.id not in asked_anew]
    has_older = loaded.first_seq is not None and (not events or loaded.first_seq < events[0].seq)
    compared = request.resent if history == "prepend" else []
    where = placed(before, request, compared, retry.remaining, accepted, has_older=has_older)
    return [
        *map(_requested, where.head),
        *_with_kept_out(before, where.between),
        *map(_requested, where.after),
        *map(_requested, retry.kept_out),
        *_again([event for event in events if event.seq >= retry.begins]),
        *(Said(message=message, new=True) for message in where.new),
        *map(_requested, request.prefill),
    ]


def _history_of_prompt(loaded: Loaded, retry: Retry, *, goes_on: bool) -> list[Event]:
    """The window; and what the request goes on with, from its turn on, though the filter hides it."""
    window = [event for event in loaded.window if event.type != "system"]
    turns = split_into_turns(event for event in loaded.tail if event.type != "system")
    if goes_on or retry.begins < FAR:
        begun = [turn for turn in turns if turn[0].seq <= retry.begins]
        start = (begun or turns)[-1][0].seq if turns else FAR
        window = [event for event in window if event.seq < start]
        window += [event for turn in turns for event in turn if event.seq >= start]
    return window


def _asked_anew(events: Sequence[Event], known_ids: frozenset[str]) -> set[str]:
    """Of questions that are known by their ids and stand where they are asked now, with what broke off after them."""
    anew: set[str] = set()
    for turn in split_into_turns(events):
        known = {event.id for event in turn if event.id in known_ids}
        answered = any(map(_is_whole_reply, turn))
        anew |= {event.id for event in turn} if known and not answered else set()
    return anew


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
