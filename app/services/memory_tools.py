"""The memory tools that a model calls: six of them, and the one of Anthropic's API that does the same."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.domain import json_values
from app.domain.errors import MemoryRefused, ToolNotFound
from app.domain.memory_files import Editor
from app.domain.sessions import Session
from app.services.memories import Memories
from app.services.recall import ToolAnswer

_EXAMPLE = 'Send the arguments as a JSON object, such as {"path": "notes.md"}.'

Run = Callable[["_Call"], Awaitable[str]]


class _Call:
    """One call: its arguments by name, and what it works on."""

    def __init__(self, memories: Memories, store: str, by: Editor, given: Mapping[str, Any]) -> None:
        self.memories = memories
        self.store = store
        self.by = by
        self._given = given

    def text(self, name: str) -> str:
        """An argument that has to be there. Raises MemoryRefused."""
        value = self._given.get(name)
        if not isinstance(value, str):
            raise MemoryRefused(f"{name} is missing or no string: send it.")
        return value

    def optional(self, name: str) -> str | None:
        """An argument that may be left out; models fill such in with ""."""
        value = self._given.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise MemoryRefused(f"{name} is no string: send one, or leave it out.")
        return value

    def number(self, name: str) -> int:
        value = str(self._given.get(name)).strip()
        if not re.fullmatch(r"-?\d{1,9}", value, re.ASCII):
            raise MemoryRefused(f"{name} is no whole number: send one, such as 0.")
        return int(value)

    def range(self, name: str) -> str | None:
        """A range as "start,end", or as Anthropic's tool has it, as a list of both."""
        value = self._given.get(name)
        if isinstance(value, list):
            return ",".join(map(str, value)) if value else None
        return self.optional(name)


async def run(
    memories: Memories, store: str, name: str, arguments: bytes | str, *, session: Session | None
) -> ToolAnswer:
    """Run a tool on the JSON text that a model produced.

    Raises ToolNotFound, and SessionNotFound for an edit when the session that it is made through is gone by then.
    """
    if name not in TOOLS:
        raise ToolNotFound(name, sorted(TOOLS))
    try:
        call = _Call(memories, store, Editor(tool=name, session=session), _arguments(arguments))
        return ToolAnswer(content=await TOOLS[name](call))
    except MemoryRefused as error:
        return ToolAnswer(content=f"Error: {error}", is_error=True)


def _arguments(arguments: bytes | str) -> Mapping[str, Any]:
    try:
        given = json_values.decode(arguments)
    except json_values.InvalidJson as error:
        raise MemoryRefused(f"{error} {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise MemoryRefused(_EXAMPLE)
    return given


async def _view(call: _Call) -> str:
    return await call.memories.view(call.store, call.optional("path") or "", call.range("viewRange"))


async def _create(call: _Call) -> str:
    return await call.memories.create(call.store, call.text("path"), call.text("fileText"), call.by)


async def _str_replace(call: _Call) -> str:
    new = call.optional("newStr") or ""
    return await call.memories.str_replace(call.store, call.text("path"), call.text("oldStr"), new, call.by)


async def _insert(call: _Call) -> str:
    after, new = call.number("insertLine"), call.text("insertText")
    return await call.memories.insert(call.store, call.text("path"), after, new, call.by)


async def _delete(call: _Call) -> str:
    return await call.memories.delete(call.store, call.text("path"), call.by)


async def _rename(call: _Call) -> str:
    return await call.memories.rename(call.store, call.text("oldPath"), call.text("newPath"), call.by)


async def _anthropic(call: _Call) -> str:
    """Anthropic's single tool: the command is an argument, the others have names of their own."""
    command = call.text("command")
    if command not in _COMMANDS:
        raise MemoryRefused(f"command {command[:50]!r} is unknown: send one of {', '.join(_COMMANDS)}.")
    return await _COMMANDS[command](call)


async def _view_command(call: _Call) -> str:
    return await call.memories.view(call.store, call.text("path"), call.range("view_range"))


async def _create_command(call: _Call) -> str:
    return await call.memories.create(call.store, call.text("path"), call.text("file_text"), call.by)


async def _str_replace_command(call: _Call) -> str:
    new = call.optional("new_str") or ""
    return await call.memories.str_replace(call.store, call.text("path"), call.text("old_str"), new, call.by)


async def _insert_command(call: _Call) -> str:
    after, new = call.number("insert_line"), call.text("insert_text")
    return await call.memories.insert(call.store, call.text("path"), after, new, call.by)


async def _rename_command(call: _Call) -> str:
    return await call.memories.rename(call.store, call.text("old_path"), call.text("new_path"), call.by)


_COMMANDS: Mapping[str, Run] = {
    "view": _view_command,
    "create": _create_command,
    "str_replace": _str_replace_command,
    "insert": _insert_command,
    "delete": _delete,
    "rename": _rename_command,
}

TOOLS: Mapping[str, Run] = {
    "MemoryView": _view,
    "MemoryCreate": _create,
    "MemoryStrReplace": _str_replace,
    "MemoryInsert": _insert,
    "MemoryDelete": _delete,
    "MemoryRename": _rename,
    "memory": _anthropic,
}
