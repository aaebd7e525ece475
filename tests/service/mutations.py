"""Bodies that were valid before something was done to them, for every operation that takes one."""

import copy
import gzip
import io
import json
import random
import zipfile
from typing import Any

from tests.service.hostile import BODIES, EVENTS, FRAGMENTS, mangled

_ARGUMENTS = {
    "conversation_search": {"innerThought": "", "query": "word", "page": 0},
    "cross_session_search": {"query": "word", "matchMode": "any", "since": "2026-01-01T00:00:00Z"},
    "MemoryView": {"path": "notes.md", "viewRange": "1,-1"},
    "MemoryCreate": {"path": "made/new.md", "fileText": "a text\n"},
    "MemoryStrReplace": {"path": "notes.md", "oldStr": "word", "newStr": "word"},
    "MemoryInsert": {"path": "notes.md", "insertLine": 0, "insertText": "a line"},
    "MemoryRename": {"oldPath": "notes.md", "newPath": "moved.md"},
    "MemoryDelete": {"path": "notes.md"},
    "memory": {"command": "view", "path": "/memories/notes.md", "view_range": [1, 1]},
}
_CHAT = {
    "user_id": "alice",
    "model": "m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a word"}],
    "filter": {"types": ["user", "assistant"], "last_n": 6},
    "memory": {
        "history": "prepend",
        "recall": True,
        "long_term": True,
        "store": "alice",
        "consolidate": True,
        "max_context_tokens": 5000,
        "message_filter": {"not": {"contains": "nothing"}},
        "compaction": {"trigger": {"turns": 3}, "strategy": {"turn_window": {"max_turns": 2}}, "mode": "inline"},
        "event_ids": "random",
        "on_busy": "interleave",
    },
    "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "n": 1,
}


def _zip(**files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.md", text)
    return packed.getvalue()


VALID: dict[str, Any] = {
    **{name: body for name, body in BODIES.items() if not name.startswith("call_")},
    "create_session": {"user_id": "alice", "ttl_seconds": 3217, "metadata": {"a": 1}, "ttl_sliding": True},
    "append_events": {
        "events": [{**EVENTS[0], "id": "m2"}, *({"message": e["message"]} for e in EVENTS)],
        "user_id": "alice",
    },
    "chat": {"session_id": "s", **_CHAT},
    "chat_completions": {"session_id": "s", **_CHAT},
    "create_token": {"user_id": "alice", "scopes": ["read", "chat"], "ttl_seconds": 60},
    "put_memory_file": b"a word\n",
    "put_memory_archive": _zip(notes="a word\n"),
}
SESSION_TOOLS = [name for name in _ARGUMENTS if name != "cross_session_search"]
USER_TOOLS = [name for name in _ARGUMENTS if name != "conversation_search"]


def valid(operation_id: str, tool: str, version: int) -> Any:
    """A body that the operation takes: JSON, or bytes as they are; `version`: of the file notes.md."""
    if operation_id == "restore_memory_file":
        return {"version": version}
    return copy.deepcopy(_ARGUMENTS[tool] if operation_id.startswith("call_") else VALID[operation_id])


def mutated(chance: random.Random, body: Any, foreign: tuple[str, ...]) -> bytes:
    """Something else in the place of some of it; `foreign` are ids of somebody else."""
    if isinstance(body, bytes):
        return broken(chance, body)
    fragments: dict[str, str] = {}
    holder = {"body": body}
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        _change(chance, holder, f"put fragment {number} here", fragments, foreign)
    text = json.dumps(holder["body"])
    for place, fragment in fragments.items():
        text = text.replace(json.dumps(place), fragment)
    return broken(chance, text.encode()) if chance.random() < 0.15 else text.encode()


def _change(
    chance: random.Random, holder: Any, place: str, fragments: dict[str, str], foreign: tuple[str, ...]
) -> None:
    parent, key = _somewhere(chance, holder)
    value = parent[key]
    match chance.choice(("fragment", "fragment", "fragment", "gone", "unknown", "many", "deep", "other", "foreign")):
        case "gone" if parent is not holder:
            del parent[key]
        case "unknown" if isinstance(value, dict):
            value[chance.choice(("unknown", "session_id", "user_id", "store", "\u0000", ""))] = "alice"
        case "many" if isinstance(value, list) and value:
            value *= chance.choice((2, 50, 1001))
        case "deep":
            for _ in range(chance.choice((1, 3, 70))):
                value = [value] if chance.random() < 0.5 else {"a": value}
            parent[key] = value
        case "other":
            other, other_key = _somewhere(chance, holder)
            parent[key] = copy.deepcopy(other[other_key])
        case "foreign" if foreign:
            parent[key] = chance.choice(foreign)
        case _:
            fragments[place] = chance.choice(FRAGMENTS)
            parent[key] = place


def _somewhere(chance: random.Random, holder: Any) -> tuple[Any, Any]:
    """A place in a JSON value, the whole of it included."""
    parent, key = holder, "body"
    while isinstance(value := parent[key], dict | list) and value and chance.random() < 0.8:
        parent, key = value, chance.choice([*value] if isinstance(value, dict) else range(len(value)))
    return parent, key


def broken(chance: random.Random, content: bytes) -> bytes:
    """Bytes that are no longer what they were."""
    match chance.randrange(7):
        case 0:
            return content[: chance.randrange(len(content) + 1)]
        case 1:
            return content + chance.choice((b"\x00", b" {}", b"]", b"\xff", content))
        case 2:
            return b"\xef\xbb\xbf" + content
        case 3:
            return content.decode("latin-1").encode("utf-16")
        case 4:
            return gzip.compress(content)
        case 5:
            return b"" if chance.random() < 0.2 else chance.randbytes(chance.randint(1, 300))
    return mangled(random.Random(0), content) if content else content
