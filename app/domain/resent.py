"""What a client sends again: where it stands around and in the history that is loaded for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.domain.client_view import Seen, call_id_of, in_order_of_ids, likeness, seen_by_client
from app.domain.events import Event
from app.domain.message_filters import MessageFilter
from app.domain.messages import says_nothing, tool_calls_of, type_of
from app.domain.overlap import Compared, Overlap, find_overlap
from app.domain.said import Message, Request, is_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where messages of the request that the history does not hold stand: before it, behind it, or in it.

    `between` are those with the seq of the event that they follow, `new` those that continue the log.
    """

    head: Sequence[Message] = ()
    between: Sequence[tuple[int, Message]] = ()
    after: Sequence[Message] = ()
    new: Sequence[Message] = ()


def placed(
    history: Sequence[Event],
    request: Request,
    compared: list[Message],
    new: Sequence[Message],
    accepted: MessageFilter,
    *,
    has_older: bool,
) -> Placed:
    """Where the resent messages and the new ones go. `compared`: those of the resent ones that are looked for."""
    seen = seen_by_client(history)
    resent = _Resent.of(request, compared, accepted)
    overlap = resent.overlap(seen)
    # Without resent messages, all that is sent is said to be new; and of a retry it is known what is.
    extended = None
    if request.resent and len(new) == len(request.new):
        extended = _extended_into_new(seen, request, compared, new, accepted)
    if extended is not None:
        resent, overlap = extended
        new = new[len(resent.messages) - len(compared) :]
    elif compared:
        overlap = _up_to_open_call(overlap, seen, request)
    if overlap is None:
        return Placed(after=compared, new=new)
    return Placed(
        head=[] if has_older else resent.before(overlap),
        between=list(_between(overlap, seen, resent)),
        after=resent.behind(overlap),
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
                range(len(messages)), lambda at: call_id_of(messages[at]), lambda at: is_result(messages[at])
            ),
            kept_out=_kept_out(messages, accepted),
            hidden=_hidden(request, messages),
        )

    def overlap(self, seen: Sequence[Seen]) -> Overlap | None:
        if not self.messages:
            return None
        optional = self.kept_out | self.hidden
        compared = [Compared(likeness=likeness(self.messages[at]), optional=at in optional) for at in self.order]
        return find_overlap([one.compared for one in seen], compared)

    def before(self, overlap: Overlap) -> list[Message]:
        return [self.messages[at] for at in sorted(self.order[: overlap.start])]

    def behind(self, overlap: Overlap) -> list[Message]:
        """Without what the filter hides: that may well be in the log."""
        return [self.messages[at] for at in sorted(self.order[overlap.end :]) if at not in self.hidden]


def _extended_into_new(
    seen: Sequence[Seen],
    request: Request,
    compared: list[Message],
    new: Sequence[Message],
    accepted: MessageFilter,
) -> tuple[_Resent, Overlap] | None:
    """The overlap, where it reaches into the new messages, of which something has to remain.

    A client that dropped a reply (a call that it gave up, a blank one) sends the question before it as if it was new:
    the log ends with "one", its reply, "two", a call; the client sends "one", the reply, "two", "three".
    """
    for length in range(len(new) - 1, 0, -1):
        resent = _Resent.of(request, [*compared, *new[:length]], accepted)
        overlap = resent.overlap(seen)
        if overlap is not None and _ends_it(overlap, seen, resent, length):
            return resent, overlap
    return None


def _ends_it(overlap: Overlap, seen: Sequence[Seen], resent: _Resent, length: int) -> bool:
    """Whether the last messages of what is resent, all of them, are the last of the log that the client need have."""
    again = [seen[history] for history, place in overlap.pairs if place >= len(resent.messages) - length]
    if len(again) < length or any(one.type == "tool" and not one.is_whole for one in again):
        return False
    return all(one.compared.optional for one in seen[overlap.pairs[-1][0] + 1 :])


def _up_to_open_call(overlap: Overlap | None, seen: Sequence[Seen], request: Request) -> Overlap | None:
    """Results that answer the newest stored calls answer just these, in whatever form their call is resent."""
    last = request.resent[-1]
    ids = {call.id for call in tool_calls_of(last) if call.id.strip()} if type_of(last) == "assistant" else set()
    if not ids or not seen or not request.new or not is_result(request.new[0]):
        return overlap
    is_open = ids == {call[0] for call in seen[-1].likeness[2]}
    asked = len(request.resent) - 1
    if not is_open or (overlap is not None and any(place == asked for _, place in overlap.pairs)):
        return overlap
    start, pairs = (0, []) if overlap is None else (overlap.start, overlap.pairs)
    return Overlap(start=start, end=len(request.resent), pairs=[*pairs, (len(seen) - 1, asked)])


def _between(overlap: Overlap, seen: Sequence[Seen], resent: _Resent) -> Iterator[tuple[int, Message]]:
    """What the message filter keeps out of the log and the client has seen between what is stored."""
    of_resent = {place: history for history, place in overlap.pairs}
    # The question of the turn in progress is sent, whatever the filter hides of the history.
    question = max((at for at, message in enumerate(resent.messages) if type_of(message) == "user"), default=-1)
    seq = min(event.seq for event in seen[overlap.pairs[0][0]].events) - 1 if overlap.pairs else -1
    for place in range(overlap.start, overlap.end):
        at = resent.order[place]
        if place in of_resent:
            seq = max(seq, seen[of_resent[place]].last_seq)
        elif at in resent.kept_out - resent.hidden or (at in resent.kept_out and at >= question):
            yield from () if says_nothing(resent.messages[at]) else [(seq, resent.messages[at])]


def _kept_out(resent: Sequence[Message], accepted: MessageFilter) -> set[int]:
    """Places of what the message filter keeps out of the log; a result goes with its call."""
    kept_out: set[int] = set()
    call_is_out = False
    for place, message in enumerate(resent):
        if type_of(message) == "assistant":
            call_is_out = not accepted.accepts(message)
        if call_is_out if is_result(message) else not accepted.accepts(message):
            kept_out.add(place)
    return kept_out


def _hidden(request: Request, messages: Sequence[Message]) -> set[int]:
    """Places of what the filter of the history would hide; a call goes with its results."""
    groups: list[list[int]] = []
    for at, message in enumerate(messages):
        if is_result(message) and groups:
            groups[-1].append(at)
        else:
            groups.append([at])
    return {at for group in groups if not all(request.shows(messages[at]) for at in group) for at in group}
