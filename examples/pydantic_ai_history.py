"""The message history of Pydantic AI agents in Turnkeeper.

`load` gives the active window for `message_history`: archived messages stay out, a summary is in. `add` takes
`result.new_messages()`; what was added already is not written again. Give agents `instructions`: a `system_prompt` is
part of the first message and is archived with it, unless the agent has the capability `ReinjectSystemPrompt`. `clear`
deletes the session.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_ai import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse
from pydantic_ai.messages import (
    ImageUrl,
    ModelRequestPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from session_log import SILENT, Entry, Message, SessionLog, Turnkeeper, originals_of

_FRAMEWORK = "pydantic_ai"


class MessageHistory:
    def __init__(self, service: Turnkeeper, session_id: str, user_id: str) -> None:
        self._log = SessionLog(service, session_id, user_id, _FRAMEWORK)

    async def load(self) -> list[ModelMessage]:
        events = await asyncio.to_thread(self._log.active)
        kept = [dumped for event in events for dumped in originals_of(event, _FRAMEWORK, _of_others)]
        return ModelMessagesTypeAdapter.validate_python(kept)

    async def add(self, messages: Sequence[ModelMessage]) -> None:
        entries = [entry for message in messages for entry in _entries(message)]
        if entries:
            await asyncio.to_thread(self._log.add, [entry for _, entry in entries], [name for name, _ in entries])

    async def clear(self) -> None:
        await asyncio.to_thread(self._log.clear)


def _entries(message: ModelMessage) -> Iterator[tuple[str, Entry]]:
    """One for each chat message that a message makes, with its id; the first one holds the message itself."""
    (dumped,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    # Messages hold their time and run: the same words said again are another message.
    name = hashlib.sha256(json.dumps(dumped, sort_keys=True).encode()).hexdigest()
    for place, said in enumerate(_said(message)):
        yield f"{name}-{place}", (said, [] if place else [dumped])


def _said(message: ModelMessage) -> list[Message]:
    if isinstance(message, ModelResponse):
        calls = [_call(part) for part in message.tool_calls]
        return [{**SILENT, "content": message.text, **({"tool_calls": calls} if calls else {})}]
    return [said for part in message.parts if (said := _heard(part))] or [SILENT]


def _heard(part: ModelRequestPart) -> Message | None:
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if not isinstance(part, UserPromptPart):
        return None
    content = part.content if isinstance(part.content, str) else [*map(_content, part.content)]
    return {"role": "user", "content": content or ""}


def _content(content: UserContent) -> dict[str, Any]:
    match content:
        case ImageUrl():
            return {"type": "image_url", "image_url": {"url": content.url}}
        case TextContent():
            return {"type": "text", "text": content.content}
    return {"type": "text", "text": content if isinstance(content, str) else f"[{content.kind}]"}


def _call(part: ToolCallPart) -> dict[str, Any]:
    arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
    return {"id": part.tool_call_id, "type": "function", "function": {"name": part.tool_name, "arguments": arguments}}


def _of_others(message: Message, text: str) -> list[Any]:
    """What another client of the session wrote, or a compaction as its summary."""
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python([_made_of(message, text)], mode="json")
    return dumped


def _made_of(message: Message, text: str) -> ModelMessage:
    match message["role"]:
        case "assistant":
            calls = [_called(call) for call in message.get("tool_calls") or []]
            return ModelResponse([*([TextPart(text)] if text else []), *calls])
        case "tool":
            return ModelRequest([ToolReturnPart(message.get("name") or "tool", text, message["tool_call_id"])])
        case "user":
            return ModelRequest([UserPromptPart(text)])
    return ModelRequest([SystemPromptPart(text)])


def _called(call: dict[str, Any]) -> ToolCallPart:
    if "custom" in call:
        return ToolCallPart(call["custom"]["name"], {"input": call["custom"]["input"]}, call["id"])
    return ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
