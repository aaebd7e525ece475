"""The memory of the OpenAI Agents SDK in Turnkeeper: a `Session` for `Runner.run(agent, text, session=...)`.

`get_items` gives the active window: archived items stay out, a summary is in. `pop_item` takes an item out of what
`get_items` gives; the log keeps it, as nothing that was said is ever rewritten. `clear_session` deletes the session.
"""

import asyncio
import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, cast

from agents import SessionABC, SessionSettings, TResponseInputItem
from agents.memory.session_settings import resolve_session_limit
from session_log import SILENT, Entry, Event, Message, SessionLog, Turnkeeper, originals_of

Item = dict[str, Any]
_FRAMEWORK = "openai_agents"
_POPPED = "popped_items"


class TurnkeeperSession(SessionABC):
    def __init__(
        self, service: Turnkeeper, session_id: str, user_id: str, session_settings: SessionSettings | None = None
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._service = service
        self._log = SessionLog(service, session_id, user_id, _FRAMEWORK)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        newest = resolve_session_limit(limit, self.session_settings)
        found = await asyncio.to_thread(self._read, newest)
        items = cast("list[TResponseInputItem]", [item for _, items in found for item in items])
        return items if newest is None else items[max(0, len(items) - newest) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        if items:
            await asyncio.to_thread(self._log.add, list(_entries(cast("list[Item]", items))))

    async def pop_item(self) -> TResponseInputItem | None:
        return cast("TResponseInputItem | None", await asyncio.to_thread(self._pop))

    async def clear_session(self) -> None:
        await asyncio.to_thread(self._log.clear)

    def _read(self, newest: int | None = None) -> list[tuple[Event, list[Item]]]:
        """Events with the items that are left of them, at least so many of the newest."""
        popped = self._popped()
        window = {} if newest is None else {"last_n": max(1, newest + sum(popped.values()))}
        found = [(event, originals_of(event, _FRAMEWORK, _items_of)) for event in self._log.active(**window)]
        return [(event, items[: len(items) - popped.get(event["id"], 0)]) for event, items in found]

    def _popped(self) -> dict[str, int]:
        """How many items were popped of an event."""
        session = self._service.find("GET", "sessions", self.session_id)
        return session.json()["metadata"].get(_POPPED, {}) if session else {}

    def _pop(self) -> Item | None:
        left = [(event, items) for event, items in self._read(1) if items]
        if not left:
            return None
        event, items = left[-1]
        popped = {event["id"]: self._popped().get(event["id"], 0) + 1}
        self._service.call("PATCH", "sessions", self.session_id, json={"metadata": {_POPPED: popped}})
        return items[-1]


def _entries(items: list[Item]) -> Iterator[Entry]:
    """What a model says between two results, thoughts and calls included, is one message: calls stay together."""
    for replies, group in groupby(items, _is_of_reply):
        if replies:
            reply = list(group)
            yield _reply(reply), reply
        else:
            yield from ((_heard(item), [item]) for item in group)


def _is_of_reply(item: Item) -> bool:
    return not _is_result(item) and item.get("role", "assistant") == "assistant"


def _is_result(item: Item) -> bool:
    return "call_id" in item and "output" in item


def _reply(items: list[Item]) -> Message:
    text = "\n".join(_text(item["content"]) for item in items if "role" in item)
    calls = [_call(item) for item in items if "call_id" in item]
    return {**SILENT, "content": text or None, **({"tool_calls": calls} if calls else {})}


def _call(item: Item) -> dict[str, Any]:
    arguments = item.get("arguments") or item.get("input") or json.dumps(item.get("action") or {})
    function = {"name": item.get("name") or item["type"], "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _heard(item: Item) -> Message:
    if _is_result(item):
        return {"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])}
    content = item["content"]
    return {"role": item["role"], "content": content if isinstance(content, str) else [*map(_part, content)]}


def _part(part: Item) -> Item:
    if part["type"] == "input_image" and part.get("image_url"):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": _text([part])}


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else json.dumps(content)
    return "\n".join(part.get("text") or part.get("refusal") or f"[{part.get('type')}]" for part in content)


def _items_of(message: Message, text: str) -> list[Item]:
    """Of what others wrote: another client of the same session, or a compaction its summary."""
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": text}]
    said = [{"role": message["role"], "content": text}] if text else []
    calls = [call for call in message.get("tool_calls") or [] if "function" in call]
    return [*said, *({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls)]
