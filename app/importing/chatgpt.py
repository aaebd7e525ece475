"""ChatGPT's `conversations.json`: a list of conversations, each a tree of which the current branch was read last.

What the tree holds is made into messages that any provider accepts:

- Content is text. Parts that are none (images, files) are named in brackets; the original content is then kept in the
  metadata of the event.
- ChatGPT's tool results name no call, as its calls have no ids. They become messages of the assistant that carry the
  tool's name, and `author_role` is "tool" in the metadata; a call (code, a query) is what the assistant said, and
  `recipient` in the metadata tells to whom.
- Left out is what was not said: hidden and empty nodes, custom instructions, the model's thoughts.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO

from app.importing.reading import Value, elements
from app.importing.records import BadRecord, Origin, Record, found_event, found_session, id_from

_NOT_SAID = {"thoughts", "reasoning_recap", "user_editable_context", "model_editable_context"}


def parse(source: BinaryIO, origin: Origin) -> Iterator[Record]:
    for index, found in enumerate(elements(source)):
        if isinstance(found, BadRecord):
            yield found
        else:
            yield from _conversation(index, found, origin)


def _conversation(index: int, found: Value, origin: Origin) -> Iterator[Record]:
    conversation = _object(found.value)
    mapping = _object(conversation.get("mapping"))
    current = conversation.get("current_node")
    if not isinstance(current, str) or current not in mapping:
        yield BadRecord(place=found.place, reason="A conversation has a mapping, and in it its current_node.")
        return
    own_id = conversation.get("conversation_id") or conversation.get("id") or f"{origin.stem}-{index}"
    yield from found_session(
        found.place,
        origin,
        session_id=id_from(origin.session_id, own_id) if origin.session_id else id_from(own_id),
        user_id=origin.user_id or id_from(origin.stem),
        metadata={name: conversation[name] for name in ("title", "create_time") if name in conversation},
    )
    for node_id in _branch(mapping, current):
        if message := _message(said := _object(_object(mapping[node_id]).get("message"))):
            yield found_event(
                f"{found.place}.mapping[{node_id!r}]",
                origin,
                event_id=id_from(node_id),
                message=message,
                timestamp=_instant(said.get("create_time")) or _instant(conversation.get("create_time")),
                metadata=_metadata(said),
            )


def _branch(mapping: dict[str, Any], current: Any) -> list[str]:
    """The nodes from the root to the current one."""
    branch: dict[str, None] = {}
    while isinstance(current, str) and current in mapping and current not in branch:
        branch[current] = None
        current = _object(mapping[current]).get("parent")
    return list(branch)[::-1]


def _message(said: dict[str, Any]) -> dict[str, Any] | None:
    """A message in OpenAI format; None where nothing was said."""
    content = _object(said.get("content"))
    is_hidden = _object(said.get("metadata")).get("is_visually_hidden_from_conversation")
    if is_hidden or content.get("content_type") in _NOT_SAID or not (text := _text(content)).strip():
        return None
    author = _object(said.get("author"))
    if author.get("role") == "tool":
        return {"role": "assistant", "name": author.get("name") or "tool", "content": text}
    return {"role": author.get("role"), "content": text}


def _text(content: dict[str, Any]) -> str:
    if isinstance(parts := content.get("parts"), list):
        return "\n".join(text for part in parts if (text := _text_of_part(part)))
    # Code and what it printed, quotes of pages, results of searches.
    texts = (content.get(name) for name in ("text", "result"))
    return next((text for text in texts if isinstance(text, str)), _named(content))


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = _object(part).get("text")
    return text if isinstance(text, str) else _named(_object(part))


def _named(content: dict[str, Any]) -> str:
    kind = content.get("content_type")
    return f"[{kind}]" if kind and kind != "text" else ""


def _metadata(said: dict[str, Any]) -> dict[str, Any]:
    author, content = _object(said.get("author")), _object(said.get("content"))
    metadata = {
        "author_role": "tool" if author.get("role") == "tool" else None,
        "recipient": None if said.get("recipient") == "all" else said.get("recipient"),
        "model": _object(said.get("metadata")).get("model_slug"),
        "content": None if _is_plain(content) else content,
    }
    return {name: value for name, value in metadata.items() if value is not None}


def _is_plain(content: dict[str, Any]) -> bool:
    parts = content.get("parts")
    return content.get("content_type") == "text" and isinstance(parts, list) and len(parts) == 1


def _instant(epoch_seconds: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(epoch_seconds), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
