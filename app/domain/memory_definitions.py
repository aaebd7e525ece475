"""The memory tools as a model sees them."""

from typing import Any

from app.domain.tool_definitions import ToolDefinition

_PATH = "Path below the root /memories, such as 'user/preferences.md' or '/memories/user/preferences.md'."


def _schema(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _string(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


MEMORY_TOOLS = (
    ToolDefinition(
        name="MemoryView",
        description=(
            "Read your long-term memory: a file with numbered lines, or what a directory holds, two levels deep. "
            "Begin with the file MEMORY.md, the index, when something from earlier conversations may matter; the "
            "path '' lists everything. View a file before you edit it."
        ),
        schema=_schema(
            {"path": _string("Path of a file or directory, such as 'MEMORY.md'; '' or '/memories' is the root.")},
            viewRange=_string(
                "Lines of a file (entries of a directory) as 'start,end', from 1; -1 as the end is the last: '10,-1'."
            ),
        ),
    ),
    ToolDefinition(
        name="MemoryCreate",
        description=(
            "Write a new file into your long-term memory. It fails when the path exists: change a file with "
            "MemoryStrReplace or MemoryInsert. Then add a line about it to MEMORY.md, or it will not be found again."
        ),
        schema=_schema({"path": _string(_PATH), "fileText": _string("The whole content of the file.")}),
    ),
    ToolDefinition(
        name="MemoryStrReplace",
        description=(
            "Change a part of a memory file. The old text must occur in it exactly once: copy it as it is, with "
            "enough around it. Leave the new text empty to delete the old one."
        ),
        schema=_schema(
            {
                "path": _string(_PATH),
                "oldStr": _string("The text to replace, exactly as the file has it."),
                "newStr": _string("What takes its place; empty: nothing."),
            }
        ),
    ),
    ToolDefinition(
        name="MemoryInsert",
        description="Add lines to a memory file that there is, such as an entry to the index MEMORY.md.",
        schema=_schema(
            {
                "path": _string(_PATH),
                "insertLine": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "Insert after this line; 0: before the first, the number of lines, as a view "
                    "tells it: at the end.",
                },
                "insertText": _string("The lines to add."),
            }
        ),
    ),
    ToolDefinition(
        name="MemoryDelete",
        description=(
            "Delete a file of your long-term memory, or a directory with everything in it: what is wrong, outdated, "
            "or what the user wants forgotten. Then take its line out of MEMORY.md."
        ),
        schema=_schema({"path": _string("Path of the file or directory.")}),
    ),
    ToolDefinition(
        name="MemoryRename",
        description=(
            "Rename or move a file or directory of your long-term memory. The new path must be free. Then correct "
            "its line in MEMORY.md."
        ),
        schema=_schema(
            {"oldPath": _string("What it is called now."), "newPath": _string("What it shall be called.")}
        ),
    ),
)

# Anthropic's own tool, whose definition its API knows by this type, and what its commands are here.
ANTHROPIC_MEMORY_TOOL = {"type": "memory_20250818", "name": "memory"}
ANTHROPIC_COMMANDS = {
    "view": "MemoryView",
    "create": "MemoryCreate",
    "str_replace": "MemoryStrReplace",
    "insert": "MemoryInsert",
    "delete": "MemoryDelete",
    "rename": "MemoryRename",
}
