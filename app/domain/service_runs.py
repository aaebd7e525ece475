"""Runs: the rounds of one request in which the service ran its own tools, and what the client got of them.

The log holds every round. The client got one message: not streamed, the final reply; streamed, the texts of all
rounds joined; without the calls that the service ran. What is needed to tell stands in the events' metadata.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.events import Event
from app.domain.messages import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request that the service continued by itself; `id` is a UUID of its own."""

    id: str
    streamed: bool

    def mark_reply(self, service_calls: Sequence[int]) -> dict[str, Any]:
        """Metadata of a reply of this run, of whose calls those at these places are the service's."""
        return {"run": {"id": self.id, "streamed": self.streamed, "service_calls": list(service_calls)}}

    def mark_result(self, service_call: int) -> dict[str, Any]:
        """Metadata of the result of the call at this place."""
        return {"run": {"id": self.id, "streamed": self.streamed, "service_call": service_call}}


def run_id(event: Event) -> str | None:
    """Of which run an event is; None for what no service tool had a part in."""
    value = _mark(event).get("id")
    return value if isinstance(value, str) else None


def service_call_of(event: Event) -> int | None:
    """The place of the service's call that a tool result answers."""
    place = _mark(event).get("service_call")
    return place if isinstance(place, int) else None


def has_service_calls(event: Event) -> bool:
    return bool(_service_calls(event))


def asks_only_the_service(event: Event) -> bool:
    """Whether a reply makes calls and all of them are the service's: the run went on after it, or broke off."""
    calls = event.message.get("tool_calls") or []
    return bool(calls) and len(_service_calls(event)) == len(calls)


def as_delivered(replies: Sequence[Event]) -> dict[str, Any]:
    """The one message that the client got of a run's replies."""
    last = replies[-1]
    message = without_calls(last.message, _service_calls(last))
    if _mark(last).get("streamed") is True:
        text = "".join(text_of(reply.message) or "" for reply in replies)
        message["content"] = text or message.get("content")
    return message


def without_calls(message: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """A message less the calls at these places."""
    calls = message.get("tool_calls")
    if not calls or not places:
        return dict(message)
    left = [call for place, call in enumerate(calls) if place not in places]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "tool_calls": left} if left else rest


def _service_calls(event: Event) -> Sequence[int]:
    places = _mark(event).get("service_calls")
    return places if isinstance(places, list) else []


def _mark(event: Event) -> Mapping[str, Any]:
    mark = event.metadata.get("run")
    return mark if isinstance(mark, dict) else {}
