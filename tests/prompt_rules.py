"""What providers demand of a chat completions request: an oracle for prompts, written without the service's code."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING = frozenset({"reasoning", "reasoning_content", "reasoning_details"})
FIELDS = frozenset({"role", "name", "content", "refusal", "tool_calls", "tool_call_id"})

_OWNERS = {"tool_calls": "assistant", "refusal": "assistant", "tool_call_id": "tool"}


def require_valid(request: dict[str, Any], *, also: Collection[str] = ()) -> None:
    faults = faults_of_prompt(request, also=also)
    assert not faults, "\n".join(["No provider takes this prompt.", *faults, "", rendered(request)])


def faults_of_prompt(request: dict[str, Any], *, also: Collection[str] = ()) -> list[str]:
    """A sentence for each broken rule; `also` names further fields that messages may have."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["The messages are empty."]
    strangers = [index for index, message in enumerate(messages) if _role(message) not in ROLES]
    if strangers:
        return [f"Message {index} has the role {_role(messages[index])!r}, which is none." for index in strangers]
    return [
        *_faults_of_order(messages),
        *_faults_of_repeated_system_texts(messages),
        *(fault for index, message in enumerate(messages) for fault in _faults_of_message(index, message, also)),
        *_faults_of_old_reasoning(messages),
        *_faults_of_pairing(messages),
        *_faults_of_tools(request),
    ]


def rendered(request: dict[str, Any]) -> str:
    """One line per message, for whoever reads the failure."""
    return "\n".join(_line(index, message) for index, message in enumerate(request.get("messages") or []))


def _line(index: int, message: Any) -> str:
    if not isinstance(message, dict):
        return f"{index:3} {message!r}"
    calls = message.get("tool_calls")
    marks = [f"calls {[_call_id(call) for call in calls] if isinstance(calls, list) else calls}"] * (
        "tool_calls" in message
    )
    marks += [f"answers {message.get('tool_call_id')!r}"] * (message.get("role") == "tool")
    marks += sorted(message.keys() - FIELDS)
    content = repr(message.get("content"))
    return " ".join(
        [f"{index:3}", str(message.get("role")), content if len(content) < 60 else content[:57] + "...", *marks]
    )


def _faults_of_order(messages: list[dict[str, Any]]) -> Iterator[str]:
    conversation = False
    for index, message in enumerate(messages):
        if not _is_system(message):
            conversation = True
        elif conversation:
            yield f"Message {index} ({message['role']}) stands behind the start of the conversation."


def _faults_of_repeated_system_texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    first: dict[str, int] = {}
    for index, message in enumerate(messages):
        if _is_system(message) and first.setdefault(_text(message), index) != index:
            yield f"Message {index} ({message['role']}) repeats the text of message {first[_text(message)]}."


def _faults_of_message(index: int, message: dict[str, Any], also: Collection[str]) -> Iterator[str]:
    role = message["role"]
    for name in sorted(message.keys() - FIELDS - REASONING - set(also)):
        yield f"Message {index} ({role}) has the field {name!r}."
    for name, owner in _OWNERS.items():
        # The official SDK writes the refusal of each message out, as null.
        if name in message and role != owner and not (name == "refusal" and message[name] is None):
            yield f"Message {index} ({role}) has {name!r}, which belongs to the role {owner}."
    if "name" in message and not isinstance(message["name"], str):
        yield f"Message {index} ({role}) has the name {message['name']!r}, which is no string."
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"Message {index} (tool) does not say which call it answers."
    yield from _faults_of_content(index, message)
    if role == "assistant" and "tool_calls" in message:
        yield from _faults_of_calls(index, message["tool_calls"])


def _faults_of_content(index: int, message: dict[str, Any]) -> Iterator[str]:
    role, content = message["role"], message.get("content")
    if content is None or content == []:
        if role != "assistant" or not (message.get("tool_calls") or message.get("refusal")):
            yield f"Message {index} ({role}) has no content."
        elif content == []:
            yield f"Message {index} ({role}) has an empty list as its content."
    elif isinstance(content, list):
        for place, part in enumerate(content):
            if not _is_legal_part(part, role):
                yield f"Message {index} ({role}) has an illegal content part at {place}: {str(part)[:60]}."
    elif not isinstance(content, str):
        yield f"Message {index} ({role}) has content that is neither a string nor parts: {str(content)[:60]}."


def _is_legal_part(part: Any, role: str) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    if part["type"] == "text":
        return isinstance(part.get("text"), str)
    if role == "assistant":
        return part["type"] == "refusal" and isinstance(part.get("refusal"), str)
    return role == "user"


def _faults_of_calls(index: int, calls: Any) -> Iterator[str]:
    if not isinstance(calls, list) or not calls:
        yield f"Message {index} (assistant) has the tool calls {calls!r}: a list that is not empty, or no field."
        return
    for place, call in enumerate(calls):
        if not _is_well_formed(call):
            yield f"Message {index} (assistant) has a malformed tool call at {place}: {str(call)[:80]}."
    counts = Counter(id_ for id_ in map(_call_id, calls) if isinstance(id_, str) and id_.strip())
    for id_, count in counts.items():
        if count > 1:
            yield f"Message {index} (assistant) has {count} tool calls with the id {id_!r}."


def _is_well_formed(call: Any) -> bool:
    if not isinstance(call, dict) or not isinstance(call.get("id"), str):
        return False
    kind, text = {"function": ("function", "arguments"), "custom": ("custom", "input")}.get(
        call.get("type"), ("", "")
    )
    called = call.get(kind)
    return isinstance(called, dict) and isinstance(called.get("name"), str) and isinstance(called.get(text), str)


def _faults_of_old_reasoning(messages: list[dict[str, Any]]) -> Iterator[str]:
    last_user = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for index, message in enumerate(messages):
        for name in sorted(message.keys() & REASONING):
            if message["role"] != "assistant":
                yield f"Message {index} ({message['role']}) has {name!r}, which belongs to the role assistant."
            elif index < last_user:
                yield f"Message {index} (assistant) has {name!r} from before the last user message, {last_user}."


def _faults_of_pairing(messages: list[dict[str, Any]]) -> Iterator[str]:
    index = 0
    while index < len(messages):
        results = _results_from(messages, index + 1)
        calls = messages[index].get("tool_calls")
        if messages[index]["role"] == "tool":
            yield f"Message {index} (tool) follows no message with tool calls."
        elif messages[index]["role"] == "assistant" and isinstance(calls, list) and calls:
            yield from _faults_of_results(index, calls, results)
            index += len(results)
        index += 1


def _results_from(messages: list[dict[str, Any]], start: int) -> list[dict[str, Any]]:
    end = start
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return messages[start:end]


def _faults_of_results(index: int, calls: list[Any], results: list[dict[str, Any]]) -> Iterator[str]:
    """Each call is answered once by the run directly behind it; blank ids have only their number in common."""
    asked = Counter(_key(_call_id(call)) for call in calls)
    answered = Counter(_key(result.get("tool_call_id")) for result in results)
    for key, count in (asked - answered).items():
        yield f"Message {index} (assistant) has {count} unanswered call(s) with the id {key!r}."
    for place, result in enumerate(results, index + 1):
        id_ = result.get("tool_call_id")
        if _key(id_) not in asked:
            yield f"Message {place} (tool) answers {id_!r}, which message {index} does not call."
    for key, count in (answered - asked).items():
        if key in asked:
            yield f"Message {index} (assistant) has {count} answer(s) too many for the id {key!r}."


def _faults_of_tools(request: dict[str, Any]) -> Iterator[str]:
    tools = request.get("tools") or []
    names = Counter(_tool_name(tool) for tool in tools)
    for index, tool in enumerate(tools):
        if not isinstance(_tool_name(tool), str):
            yield f"Tool {index} has no name."
    for name, count in names.items():
        if name is not None and count > 1:
            yield f"{count} tools have the name {name!r}."
    if not tools and request.get("tool_choice") not in (None, "none"):
        yield f"The tool choice is {request['tool_choice']!r}, but there are no tools."


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _is_system(message: dict[str, Any]) -> bool:
    return message["role"] in {"system", "developer"}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text")) for part in content if isinstance(part, dict))
    return str(content)


def _call_id(call: Any) -> Any:
    return call.get("id") if isinstance(call, dict) else None


def _key(id_: Any) -> str:
    return id_ if isinstance(id_, str) and id_.strip() else ""


def _tool_name(tool: Any) -> str | None:
    described = tool.get(tool.get("type")) if isinstance(tool, dict) else None
    name = described.get("name") if isinstance(described, dict) else None
    return name if isinstance(name, str) and name else None
