"""Retries: what of a request's new messages the log ends with already and is not answered yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from app.domain.client_view import Seen, call_id_of, in_order_of_ids, likeness, seen_by_client, unanswered
from app.domain.events import Event
from app.domain.message_filters import MessageFilter
from app.domain.messages import tool_calls_of
from app.domain.said import Loaded, Message, is_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What of a request's new messages the log ends with already and is not answered yet.

    `begins`: the seq from where on the log is the retried part. `kept_out`: what stands between and is not compared,
    as the log holds no such messages. `remaining`: what is new indeed.
    """

    begins: int
    kept_out: list[Message]
    remaining: list[Message]


FAR = 2**63


def retry_of(loaded: Loaded, new: Sequence[Message], accepted: MessageFilter, *, resends: bool) -> Retry:
    """`resends`: the client sends earlier messages as well, and its last question again when it dropped the reply."""
    seen = seen_by_client(loaded.tail)
    waiting = unanswered(seen, loaded.answered_seq)
    calls = _calls_of(loaded.tail)
    # A result is compared when the log holds its call, whatever the filter says: just these are stored.
    compared = [
        place
        for place, message in enumerate(new)
        if (call_id_of(message) in calls if is_result(message) else accepted.accepts(message))
    ]
    compared = in_order_of_ids(compared, lambda at: call_id_of(new[at]), lambda at: is_result(new[at]))
    pairs = _prefix_that_ends_it(waiting, compared, new) or _results_again(waiting, compared, new)
    if not pairs and resends and waiting:
        pairs = _behind_a_dropped_reply(seen, waiting, compared, new)
    if not pairs:
        return Retry(begins=FAR, kept_out=[], remaining=list(new))
    again = {place for _, place in pairs}
    between = [place for place in range(max(again)) if place not in compared]
    gone = {*again, *between}
    return Retry(
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


def _behind_a_dropped_reply(
    seen: Sequence[Seen], waiting: Sequence[Seen], compared: Sequence[int], new: Sequence[Message]
) -> list[tuple[Seen, int]]:
    """The same where what is sent begins with the question before, whose reply the client has dropped."""
    before = [one for one in seen if one.last_seq < waiting[0].last_seq]
    while before and before[-1].type == "assistant" and before[-1].compared.optional:
        before.pop()
    for count in range(len(compared) - 1, 0, -1):
        earlier = _prefix_that_ends_it(before, compared[:count], new)
        if len(earlier) == count and (rest := _prefix_that_ends_it(waiting, compared[count:], new)):
            return [*earlier, *rest]
    return []


def _results_again(
    waiting: Sequence[Seen], compared: Sequence[int], new: Sequence[Message]
) -> list[tuple[Seen, int]]:
    """Results that are stored already, out of a run of which some are new: runs are compared as sets."""
    stored = {one.likeness: one for one in takewhile(lambda one: one.type == "tool", reversed(waiting))}
    given = takewhile(lambda place: is_result(new[place]), compared)
    return [(stored[likeness(new[place])], place) for place in given if likeness(new[place]) in stored]


def _calls_of(events: Sequence[Event]) -> set[str]:
    return {
        call.id if call.id.strip() else ""
        for event in events
        if event.type == "assistant"
        for call in tool_calls_of(event.message)
    }
