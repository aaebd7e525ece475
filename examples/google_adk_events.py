"""Events of Google ADK as messages in OpenAI format, and back where others wrote them. Used by google_adk.py."""

import json
from datetime import UTC, datetime
from typing import Any

from google.adk.events import Event
from google.genai.types import Content, FunctionCall, FunctionResponse, Part
from session_log import SILENT, Message, event_of, originals_of
from session_log import Event as LogEvent

_FRAMEWORK = "google_adk"


def logged(event: Event) -> list[LogEvent]:
    """What to append for an event: its messages. The first has the event's id, and the event itself inside."""
    original = json.loads(event.model_dump_json(exclude_defaults=True))
    said_at = datetime.fromtimestamp(event.timestamp, UTC).isoformat()
    first, *further = _said(event) or [SILENT]
    made = [event_of(event.id, first, [original], _FRAMEWORK)]
    made += [event_of(f"{event.id}-{place}", said, [], _FRAMEWORK) for place, said in enumerate(further, 1)]
    return [{**each, "timestamp": said_at} for each in made]


def original(logged_event: LogEvent) -> list[Event]:
    """The event that was appended; none for the further messages of one."""
    kept = originals_of(logged_event, _FRAMEWORK, lambda message, text: [_made_of(logged_event["id"], message, text)])
    return [Event.model_validate(event) for event in kept]


def _said(event: Event) -> list[Message]:
    """Results of tools, then what the user or a model said. Thoughts are in the original alone."""
    parts = (event.content.parts if event.content else None) or []
    results = [_result(part.function_response) for part in parts if part.function_response]
    spoken = [part for part in parts if not part.function_response and not part.thought]
    if not spoken:
        return results
    text = "\n".join(map(_text, (part for part in spoken if not part.function_call)))
    if event.author == "user":
        return [*results, {"role": "user", "content": text}]
    calls = [_call(part.function_call) for part in spoken if part.function_call]
    return [*results, {**SILENT, "content": text or None, **({"tool_calls": calls} if calls else {})}]


def _text(part: Part) -> str:
    return part.text if part.text is not None else f"[{', '.join(part.model_dump(exclude_none=True))}]"


def _call(call: FunctionCall) -> dict[str, Any]:
    function = {"name": call.name or "unknown", "arguments": json.dumps(call.args or {})}
    return {"id": call.id or "", "type": "function", "function": function}


def _result(result: FunctionResponse) -> Message:
    content = json.dumps(result.response, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": result.id or "", "name": result.name or "unknown", "content": content}


def _made_of(event_id: str, message: Message, text: str) -> dict[str, Any]:
    """Of what another client of the session wrote, or a compaction as its summary."""
    author = "user" if message["role"] == "user" else "model"
    if message["role"] == "tool":
        answer = FunctionResponse(
            id=message["tool_call_id"], name=message.get("name") or "tool", response={"result": text}
        )
        parts = [Part(function_response=answer)]
    else:
        parts = [*([Part(text=text)] if text else []), *map(_called, message.get("tool_calls") or [])]
    content = Content(role="model" if message["role"] == "assistant" else "user", parts=parts)
    made: dict[str, Any] = Event(id=event_id, author=author, content=content).model_dump(mode="json")
    return made


def _called(call: dict[str, Any]) -> Part:
    function = call.get("function") or {"name": call["custom"]["name"], "arguments": call["custom"]["input"]}
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    return Part(
        function_call=FunctionCall(
            id=call["id"],
            name=function["name"],
            args=arguments if isinstance(arguments, dict) else {"input": function["arguments"]},
        )
    )
