"""What may go upstream and what is stored: no call without its results, no result without its call.

Of the log, what is broken is left out of the prompt. Of a request nothing is left out: it is refused instead, before
anything is stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from app.domain.errors import CallAnswered, CallsUnanswered
from app.domain.message_filters import MessageFilter
from app.domain.messages import ToolCall, tool_calls_of
from app.domain.said import Said
from app.domain.service_runs import has_service_calls, service_call_of
from app.domain.tool_calls import intact


@dataclass(frozen=True, slots=True, kw_only=True)
class Storing:
    """Which messages of a conversation are stored; `overruled`: how many of them against, or despite, the filter."""

    messages: list[Said]
    overruled: int


class _Results(NamedTuple):
    """A run of tool messages and the message directly before it."""

    caller: Said | None
    results: list[Said]

    @property
    def calls(self) -> list[ToolCall]:
        return [] if self.caller is None or self.caller.type != "assistant" else tool_calls_of(self.caller.message)


def results_without_call(said: Sequence[Said]) -> list[str]:
    """Ids of calls that new results are for, although the message directly before them makes no such call.

    Raises CallAnswered for a second result of one call, CallsUnanswered where some calls of a message have a result
    and others have none.
    """
    strays: list[str] = []
    for run in _runs(said):
        if any(result.event is None for result in run.results):
            strays += _judged(run)
    return strays


def calls_of_the_request(said: Sequence[Said]) -> list[str]:
    """Ids of calls that the request itself holds and answers anew: the log must not hold them elsewhere."""
    return [
        call.id
        for run in _runs(said)
        if run.caller is not None and run.caller.event is None and any(result.new for result in run.results)
        for call in run.calls
        if call.id.strip()
    ]


def without_broken_calls(said: Sequence[Said]) -> list[Said]:
    """The conversation as a prompt may hold it. Raises CallsUnanswered when it is the request that is broken."""
    keep = intact([one.message for one in said])
    broken = [one for one, whole in zip(said, keep, strict=True) if not whole and one.event is None]
    if broken:
        ids = [call.id for one in broken for call in tool_calls_of(one.message)]
        raise CallsUnanswered(ids or [one.message["tool_call_id"] for one in broken])
    kept = [one for one, whole in zip(said, keep, strict=True) if whole]
    return _in_order_of_calls(kept)


def stored_of(said: Sequence[Said], accepted: MessageFilter) -> Storing:
    """The new messages that are stored: as the filter accepts, but a result exactly when its call is stored."""
    has_stored_call = {
        id(result): run.caller is not None and run.caller.event is not None
        for run in _runs(said)
        for result in run.results
    }
    stored: list[Said] = []
    overruled = 0
    for one in said:
        if one.new:
            wanted = accepted.accepts(one.message)
            storing = has_stored_call[id(one)] if one.type == "tool" else wanted
            overruled += storing != wanted
            stored += [one] if storing else []
    return Storing(messages=stored, overruled=overruled)


def _judged(run: _Results) -> list[str]:
    free = [call.id.strip() and call.id for call in run.calls]
    known = set(free)
    strays: list[str] = []
    twice: list[str] = []
    for result in run.results:
        call_id = _answered_id(result)
        if call_id in free:
            free.remove(call_id)
        elif result.event is None:
            (twice if call_id in known else strays).append(call_id)
    if twice:
        raise CallAnswered(twice)
    if free and not strays:
        raise CallsUnanswered(free)
    return strays


def _runs(said: Sequence[Said]) -> Iterator[_Results]:
    caller: Said | None = None
    run: list[Said] = []
    for one in said:
        if one.type == "tool":
            run.append(one)
            continue
        if run:
            yield _Results(caller, run)
        caller, run = one, []
    if run:
        yield _Results(caller, run)


def _in_order_of_calls(said: Sequence[Said]) -> list[Said]:
    """Where the service ran some calls of a message and the client the others, the results as the calls stand."""
    ordered: list[Said] = []
    for are_results, group in groupby(said, lambda one: one.type == "tool"):
        run = _Results(ordered[-1] if ordered else None, list(group))
        mixed = run.caller is not None and run.caller.event is not None and has_service_calls(run.caller.event)
        ordered += _placed(run) if are_results and mixed else run.results
    return ordered


def _placed(run: _Results) -> list[Said]:
    left = list(run.results)
    ordered: list[Said] = []
    for place, call in enumerate(run.calls):
        result = _result_for(place, call, left)
        ordered.append(result)
        left = [one for one in left if one is not result]
    return ordered + left


def _result_for(place: int, call: ToolCall, results: Sequence[Said]) -> Said:
    wanted = call.id.strip() and call.id
    matching = [one for one in results if _answered_id(one) == wanted]
    own = [one for one in matching if one.event is not None and service_call_of(one.event) == place]
    others = [one for one in matching if one.event is None or service_call_of(one.event) is None]
    return (own or others or matching)[0]


def _answered_id(result: Said) -> str:
    call_id: str = result.message["tool_call_id"]
    return call_id.strip() and call_id
