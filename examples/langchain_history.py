"""A LangChain chat history in Turnkeeper, for `RunnableWithMessageHistory` and for hands.

`messages` gives the active window: archived messages stay out, a summary is in. `clear` deletes the session. Messages
come back equal to what was added; what they hold beside JSON (a Python object as the artifact of a tool) is refused.
"""

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    ToolMessage,
    convert_to_messages,
    convert_to_openai_messages,
    messages_from_dict,
)
from session_log import SILENT, Message, SessionLog, Turnkeeper, originals_of

_FRAMEWORK = "langchain"
_ROLES = frozenset({"user", "assistant", "system", "developer", "tool"})


class TurnkeeperHistory(BaseChatMessageHistory):
    def __init__(self, service: Turnkeeper, session_id: str, user_id: str) -> None:
        super().__init__()
        self._log = SessionLog(service, session_id, user_id, _FRAMEWORK)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # as in all histories that are stored
        events = self._log.active()
        return messages_from_dict([kept for event in events for kept in originals_of(event, _FRAMEWORK, _of_others)])

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        if messages:
            self._log.add([(_said(message), [_dumped(message)]) for message in messages])

    def clear(self) -> None:
        self._log.clear()


def _dumped(message: BaseMessage) -> dict[str, Any]:
    return {"type": message.type, "data": message.model_dump(mode="json")}


def _said(message: BaseMessage) -> Message:
    match message:
        case AIMessage():
            return _reply(message)
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
        case FunctionMessage():  # Of before there were ids: it answers by its place.
            return {"role": "tool", "tool_call_id": "", "name": message.name, "content": message.text}
    said: Message = convert_to_openai_messages(message)
    return said if said["role"] in _ROLES else {"role": "user", "name": said["role"], "content": message.text}


def _reply(message: AIMessage) -> Message:
    calls = [
        *(_call(call["id"], call["name"], json.dumps(call["args"])) for call in message.tool_calls),
        *(_call(call["id"], call["name"], call["args"] or "") for call in message.invalid_tool_calls),
    ]
    return {
        **SILENT,
        **({"content": message.text} if message.text else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name or "unknown", "arguments": arguments}
    return {"id": call_id or "", "type": "function", "function": function}


def _of_others(message: Message, text: str) -> list[dict[str, Any]]:
    """What another client of the session wrote, or a compaction as its summary."""
    said = {"role": message["role"], "content": message["content"] or ""}
    if message["role"] == "tool":
        said["tool_call_id"] = message["tool_call_id"]
    if message["role"] != "assistant":
        return [_dumped(made) for made in convert_to_messages([said])]
    calls = [_called(call) for call in message.get("tool_calls") or []]
    good, bad = ([call for call in calls if isinstance(call["args"], kind)] for kind in (dict, str))
    return [_dumped(AIMessage(text, tool_calls=good, invalid_tool_calls=bad))]


def _called(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {"name": call["custom"]["name"], "arguments": call["custom"]["input"]}
    arguments = function["arguments"]
    try:
        parsed = json.loads(arguments)
    except ValueError:
        parsed = None
    known = {"id": call["id"], "name": function["name"]}
    return {**known, "args": parsed} if isinstance(parsed, dict) else {**known, "args": arguments, "error": None}
