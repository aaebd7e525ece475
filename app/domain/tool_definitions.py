"""The recall tools as a model sees them, in the formats that model requests take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.domain.recall import CONVERSATION_SEARCH, CROSS_SESSION_SEARCH, MAX_QUERY_TERMS, SHOWN_LENGTH

Format = Literal["openai", "anthropic", "mcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool: its name, what a model reads about it, and the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


_INNER_THOUGHT = {
    "type": "string",
    "description": "Why you search and what you hope to find, in a sentence. Private: nobody is shown it.",
}
_PAGE = {
    "type": "integer",
    "minimum": 0,
    "description": "Which page of results, from 0; the oldest matches are on page 0. "
    "When a page is full, the next one may hold more.",
}

DEFINITIONS = (
    ToolDefinition(
        name=CONVERSATION_SEARCH,
        description=(
            "Search everything that was said in this conversation, word for word, including what is no longer in "
            "your context. Use it before you say that you do not know or do not remember, and whenever the user "
            "refers to something earlier that you cannot see. It finds text, not meaning: search for one short, "
            "distinctive word or phrase as it was probably written, and try another wording when nothing is found. "
            "Upper and lower case do not matter. Returns a JSON array of {timestamp, type, text}, oldest first, "
            f"or 'No results found.' A text over {SHOWN_LENGTH:,} characters is cut around the match."
        ),
        schema={
            "type": "object",
            "properties": {
                "innerThought": _INNER_THOUGHT,
                "query": {
                    "type": "string",
                    "description": "One word or phrase that the text contains, such as 'blue-green deploy'.",
                },
                "page": _PAGE,
            },
            "required": ["innerThought", "query"],
        },
    ),
    ToolDefinition(
        name=CROSS_SESSION_SEARCH,
        description=(
            "Search everything that this user said or was told, word for word, in all their conversations. Use it "
            "to find decisions, corrections, preferences and requests to remember something, across sessions. It "
            "finds text, not meaning: give short phrases as people write them, several at once separated by commas. "
            "Upper and lower case do not matter. Returns a JSON array of {sessionId, timestamp, type, text}, oldest "
            "first, or 'No results found.'"
        ),
        schema={
            "type": "object",
            "properties": {
                "innerThought": _INNER_THOUGHT,
                "query": {
                    "type": "string",
                    "description": f"Up to {MAX_QUERY_TERMS} words or phrases, separated by commas, "
                    'such as "we decided, let\'s go with".',
                },
                "matchMode": {
                    "type": "string",
                    "enum": ["any", "all"],
                    "description": "'any' (default): one phrase is enough; 'all': a text must contain every phrase.",
                },
                "since": {
                    "type": "string",
                    "description": "Only what was said at or after this time, with date, time and offset, "
                    "such as 2026-07-01T00:00:00Z. Leave out to search everything.",
                },
                "page": _PAGE,
            },
            "required": ["innerThought", "query"],
        },
    ),
)


def render(definitions: Sequence[ToolDefinition], shape: Format) -> list[dict[str, Any]]:
    """The definitions as the `tools` of a model request, or of an MCP listing."""
    return [_render(definition, shape) for definition in definitions]


def _render(tool: ToolDefinition, shape: Format) -> dict[str, Any]:
    named = {"name": tool.name, "description": tool.description}
    match shape:
        case "openai":
            return {"type": "function", "function": {**named, "parameters": tool.schema}}
        case "anthropic":
            return {**named, "input_schema": tool.schema}
        case "mcp":
            return {**named, "inputSchema": tool.schema}
