"""The memory tools that a model calls: six of them, and the one of Anthropic's API that does the same."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from app.domain.errors import MemoryRefused, ToolNotFound
from app.domain.memory_arguments import Arguments, decoded
from app.domain.memory_definitions import ANTHROPIC_COMMANDS, MEMORY_TOOLS
from app.domain.memory_files import Editor
from app.domain.sessions import Session
from app.services.memories import Memories
from app.services.recall import ToolAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call: its arguments, and what it works on."""

    memories: Memories
    store: str
    by: Editor
    arguments: Arguments

    def text(self, name: str) -> str:
        return self.arguments.text(name)


async def run(
    memories: Memories, store: str, name: str, arguments: bytes | str, *, session: Session | None
) -> ToolAnswer:
    """Run a tool on the JSON text that a model produced.

    Raises ToolNotFound, and SessionNotFound for an edit when the session that it is made through is gone by then.
    """
    if name not in TOOLS:
        raise ToolNotFound(name, sorted(TOOLS))
    try:
        tool, read = _read(name, arguments)
        by = Editor(tool=name, session=session)
        return ToolAnswer(content=await _RUN[tool](_Call(memories=memories, store=store, by=by, arguments=read)))
    except MemoryRefused as error:
        return ToolAnswer(content=f"Error: {error}", is_error=True)


def _read(name: str, arguments: bytes | str) -> tuple[str, Arguments]:
    """Which of the six tools is meant, and its arguments: Anthropic's single one names it by an argument."""
    given = decoded(arguments)
    if name != ANTHROPIC_TOOL:
        return name, Arguments(given, _NAMES[name])
    command = Arguments(given, ["command"]).text("command")
    if command not in ANTHROPIC_COMMANDS:
        raise MemoryRefused(f"The command {command[:50]!r} is unknown: send one of {', '.join(ANTHROPIC_COMMANDS)}.")
    tool = ANTHROPIC_COMMANDS[command]
    return tool, Arguments(given, ["command", *_NAMES[tool]], snake=True)


async def _view(call: _Call) -> str:
    return await call.memories.view(call.store, call.text("path"), call.arguments.range("viewRange"))


async def _create(call: _Call) -> str:
    return await call.memories.create(call.store, call.text("path"), call.text("fileText"), call.by)


async def _str_replace(call: _Call) -> str:
    path, old, new = call.text("path"), call.text("oldStr"), call.text("newStr")
    return await call.memories.str_replace(call.store, path, old, new, call.by)


async def _insert(call: _Call) -> str:
    path, new = call.text("path"), call.text("insertText")
    try:
        after = call.arguments.number("insertLine")
    except MemoryRefused as refused:
        raise MemoryRefused(f"{refused} {await call.memories.places_for_lines(call.store, path)}") from None
    return await call.memories.insert(call.store, path, after, new, call.by)


async def _delete(call: _Call) -> str:
    return await call.memories.delete(call.store, call.text("path"), call.by)


async def _rename(call: _Call) -> str:
    return await call.memories.rename(call.store, call.text("oldPath"), call.text("newPath"), call.by)


ANTHROPIC_TOOL = "memory"

_RUN: Mapping[str, Callable[[_Call], Awaitable[str]]] = {
    "MemoryView": _view,
    "MemoryCreate": _create,
    "MemoryStrReplace": _str_replace,
    "MemoryInsert": _insert,
    "MemoryDelete": _delete,
    "MemoryRename": _rename,
}
_NAMES = {tool.name: list(tool.schema["properties"]) for tool in MEMORY_TOOLS}

TOOLS = (*_RUN, ANTHROPIC_TOOL)
