"""One message in OpenAI chat format: what is legal, its text, its tool calls, its rendered form.

The format is that of `messages` in OpenAI's chat completions API. Unknown fields are kept: a message
is stored as it came, and only what every provider would refuse is refused here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.errors import Fault

TYPE_OF_ROLE: Mapping[str, str] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant message makes. `id` is blank where a provider assigns none."""

    id: str
    name: str
    arguments: str


def faults_of(message: Any) -> list[Fault]:
    """What makes a message one that no provider would accept; empty when it is legal."""
    if not isinstance(message, dict):
        return [Fault((), "A message is an object in OpenAI chat format.")]
    role = message.get("role")
    if role not in TYPE_OF_ROLE if isinstance(role, str) else True:
        return [Fault(("role",), f"The role is one of {', '.join(TYPE_OF_ROLE)}; this one is {str(role)[:50]!r}.")]
    return [
        *_faults_of_name(message),
        *_faults_of_content(message),
        *_faults_of_tool_calls(message),
        *_faults_of_answer(message),
    ]


def type_of(message: Mapping[str, Any]) -> str:
    return TYPE_OF_ROLE[message["role"]]


def text_of(message: Mapping[str, Any]) -> str | None:
    """The string content, or the text parts joined by a newline; None when there is no text."""
    return text_of_content(message.get("content"))


def text_of_content(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in _parts(content) if part.get("type") == "text"]
    return "\n".join(texts) if texts else None


def tool_calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    return [_tool_call(call) for call in message.get("tool_calls") or []]


def count_of_other_parts(message: Mapping[str, Any]) -> int:
    """How many content parts are not text: images, audio, files."""
    return sum(part.get("type") not in {"text", "refusal"} for part in _parts(message.get("content")))


def says_nothing(message: Mapping[str, Any]) -> bool:
    """Whether it is a reply without text, calls or any other content, which some models end a turn with."""
    return (
        type_of(message) == "assistant"
        and not (text_of(message) or "").strip()
        and not message.get("tool_calls")
        and not message.get("refusal")
        and not any(True for part in _parts(message.get("content")) if part.get("type") != "text")
    )


def render(message: Mapping[str, Any]) -> str:
    """One line for a reader: what token counts are taken of and what a summarizer is shown."""
    text = text_of(message) or ""
    match type_of(message):
        case "assistant":
            return f"Assistant: {_rendered_reply(message, text)}"
        case "tool":
            return f"Tool [{message.get('name') or message['tool_call_id']} -> {text}]"
        case "system":
            return f"System: {text}"
        case _:
            return f"User: {text}"


def _rendered_reply(message: Mapping[str, Any], text: str) -> str:
    calls = ", ".join(f"{call.name}({call.arguments})" for call in tool_calls_of(message))
    if not calls:
        return text if text.strip() else "[no text content]"
    return f"{text} [tool calls: {calls}]" if text.strip() else f"[tool calls: {calls}]"


def _parts(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, list):
        yield from content


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    # OpenAI knows two kinds of call: a function with JSON arguments, a custom tool with free text.
    if call.get("type") == "custom":
        return ToolCall(id=call["id"], name=call["custom"]["name"], arguments=call["custom"]["input"])
    return ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])


def _faults_of_name(message: Mapping[str, Any]) -> Iterator[Fault]:
    if not isinstance(message.get("name"), str | None):
        yield Fault(("name",), "A name is a string.")


def _faults_of_content(message: Mapping[str, Any]) -> Iterator[Fault]:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            yield Fault(("content",), f"A {message['role']} message needs content: a string or parts.")
    elif isinstance(content, list):
        if not content and message["role"] != "assistant":
            yield Fault(("content",), "A list of content parts is not empty.")
        for index, part in enumerate(content):
            yield from _faults_of_part(part, ("content", index))
    elif not isinstance(content, str):
        yield Fault(("content",), "Content is a string or a list of content parts.")


def _faults_of_part(part: Any, loc: tuple[str | int, ...]) -> Iterator[Fault]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        yield Fault(loc, 'A content part is an object with a "type".')
    elif part["type"] == "text" and not isinstance(part.get("text"), str):
        yield Fault((*loc, "text"), 'A text part has its "text", a string.')
    elif part["type"] == "image_url" and not _is_image_url(part.get("image_url")):
        yield Fault((*loc, "image_url"), 'An image part has its "image_url", an object with a "url".')


def _is_image_url(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("url"), str)


def _faults_of_tool_calls(message: Mapping[str, Any]) -> Iterator[Fault]:
    calls = message.get("tool_calls")
    if calls is None or calls == []:
        return
    if message["role"] != "assistant":
        yield Fault(("tool_calls",), f"Only an assistant makes tool calls, not a {message['role']} message.")
    elif not isinstance(calls, list):
        yield Fault(("tool_calls",), "Tool calls are a list.")
    else:
        seen: set[str] = set()
        for index, call in enumerate(calls):
            yield from _faults_of_call(call, ("tool_calls", index), seen)


def _faults_of_call(call: Any, loc: tuple[str | int, ...], seen: set[str]) -> Iterator[Fault]:
    if not isinstance(call, dict):
        yield Fault(loc, "A tool call is an object.")
        return
    call_id = call.get("id")
    if not isinstance(call_id, str):
        yield Fault((*loc, "id"), "A tool call has an id, a string (blank where the provider assigns none).")
    elif call_id.strip():
        if call_id in seen:
            yield Fault((*loc, "id"), f"The id {call_id!r} occurs twice in one message.")
        seen.add(call_id)
    kind, text_field = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    body = call.get(kind)
    if not isinstance(body, dict):
        yield Fault((*loc, kind), f'A tool call names its {kind}: {{"name", "{text_field}"}}.')
        return
    if not isinstance(body.get("name"), str) or not body["name"]:
        yield Fault((*loc, kind, "name"), "The name of what is called is a string that is not empty.")
    if not isinstance(body.get(text_field), str):
        yield Fault((*loc, kind, text_field), f"The {text_field} are a string, exactly as the model wrote it.")


def _faults_of_answer(message: Mapping[str, Any]) -> Iterator[Fault]:
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield Fault(
            ("tool_call_id",), "A tool message names the call that it answers (blank where the call's id is)."
        )
