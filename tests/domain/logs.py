"""Logs for tests, written the way that the cases of the specification write them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from app.domain import json_values
from app.domain.events import Event

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ROLES = {"U": "user", "A": "assistant", "S": "system", "T": "tool"}


def log(line: str) -> list[Event]:
    """`log("U1 A1 U2 A2c T2 A2*")`: names of events; c = with a tool call, * = archived, ~ = synthetic."""
    return [_named(name, place) for place, name in enumerate(line.split())]


def said(*texts: str | None, role: str = "user") -> list[Event]:
    return [event(str(place), place, {"role": role, "content": text}) for place, text in enumerate(texts)]


def event(name: str, place: int, message: dict[str, Any], **changes: Any) -> Event:
    fields: dict[str, Any] = {
        "id": name,
        "session_id": "s",
        "seq": 1024 * (place + 1),
        "timestamp": EPOCH + timedelta(seconds=place),
        "type": {"developer": "system"}.get(message["role"], message["role"]),
        "message_json": json_values.encode(message),
        "synthetic": False,
        "archived": False,
        "tokens": 1,
        "metadata_json": "{}",
    }
    return Event(**fields | changes)


def ids(events: Any) -> str:
    return " ".join(event.id for event in events)


def _named(name: str, place: int) -> Event:
    message: dict[str, Any] = {"role": ROLES[name[0]], "content": name}
    number = "".join(filter(str.isdigit, name))
    if name.rstrip("*~").endswith("c"):
        call = {"id": f"call{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message |= {"content": None, "tool_calls": [call]}
    if name[0] == "T":
        message["tool_call_id"] = f"call{number}"
    return event(name, place, message, archived="*" in name, synthetic="~" in name)
