"""What the framework cannot say in the OpenAPI document, and generated clients want: names, reuse, and nothing twice.

Only the document is changed here, never what the service accepts or answers.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from app.api.message_schemas import NAMED_ELSEWHERE, SCHEMAS, Schema, ref

Document = dict[str, Any]
Operation = dict[str, Any]

# What classes of `app.api` are called in the document. Beyond these, an ending `Out` is left out.
NAMES: Mapping[str, str] = {
    "ChatBody": "ChatRequest",
    "CompactedOut": "CompactionResult",
    "CompactionBody": "ChatCompaction",
    "FileVersions": "FileVersionList",
    "FilterBody": "EventFilter",
    "MemoryBody": "ChatMemory",
    "MemoryFiles": "MemoryFileList",
    "MessageFilterBody": "MessageFilter",
    "MessageFilterChoice": "MessageCriterion",
    "OpenAIErrorBody": "OpenAIErrorDetail",
    "Strategy": "CompactionStrategy",
    "ToolDefinitions": "ToolList",
    "Trigger": "CompactionTrigger",
}

# Names for the choices of a field, which would get one for each place where they occur.
ENUMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "BusyMode": ("What a chat does while another has the session's turn.", ("wait", "reject", "interleave")),
    "CompactionMode": ("Whether a compaction is part of the answer or comes after it.", ("background", "inline")),
    "CompactionReason": (
        "Why nothing was compacted.",
        ("trigger", "fits", "no_turn_start", "conflict", "blank_summary"),
    ),
    "EventIdMode": ("How a chat names what it stores.", ("random", "idempotent")),
    "EventType": ("Who speaks.", ("user", "assistant", "system", "tool")),
    "HistoryMode": ("Where the stored history goes in a prompt.", ("prepend", "replace")),
    "MatchMode": ("Whether one of the terms is enough, or all are needed.", ("any", "all")),
    "MemoryToolSet": ("The six memory tools, or the single one of Anthropic's API.", ("six", "single")),
    "MessageFilterName": ("All messages, or those that say something.", ("all", "skip_empty")),
    "ToolFormat": ("Whose model requests the definitions go into.", ("openai", "anthropic", "mcp")),
    "TokenScope": ("What a token may do.", ("read", "write", "search", "memory", "chat")),
    "ToolScope": ("The tools of one session, or of all of a user's.", ("session", "user")),
}

# Names for objects without a class, by the field that holds one, a list of them, or null.
OBJECTS: Mapping[str, str] = {
    "message": "Message",
    "messages": "Message",
    "metadata": "Metadata",
    "tools": "ToolDefinition",
}

TAGS: Mapping[str, str] = {
    "sessions": "Conversations: made, found, changed and deleted.",
    "events": "The log of a session: appended to, read through filters and windows, and as a prompt.",
    "chat": "Chats that load, append and compact around an OpenAI-compatible LLM.",
    "compaction": "Smaller prompts, while the log loses nothing.",
    "memory": "Long-term memory: text files that a model curates, every version of them kept.",
    "users": "What is held about a user, across sessions: read, exported, erased.",
    "search": "Words and phrases found in everything that was said.",
    "credentials": "Tokens for the clients of one user or one session.",
    "tools": "Tools for models: their definitions, and endpoints that run them.",
    "health": "Whether the process lives, and whether it can serve.",
}


def correct(document: Document) -> None:
    for operation in operations(document):
        _split_description(operation)
        operation.setdefault("security", [])  # Said, not left out: open to all.
        for parameter in operation.get("parameters", ()):
            _correct_parameter(parameter)
    for schema in schemas_of(document):
        _correct_schema(schema)
    schemas = document["components"]["schemas"]
    schemas |= {name: _enum(*choices) for name, choices in ENUMS.items()} | deepcopy(SCHEMAS)
    document["components"]["schemas"] = {_public(name): schemas[name] for name in sorted(schemas, key=_public)}
    _point_to_public_names(document)
    document["servers"] = [{"url": "/", "description": "The service that serves this document."}]
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]


def operations(document: Document) -> Iterator[Operation]:
    for methods in document["paths"].values():
        yield from methods.values()


def schemas_of(document: Document) -> Iterator[Schema]:
    """Every schema of the document, those within others too."""
    for schema in document["components"]["schemas"].values():
        yield from _within(schema)
    for operation in operations(document):
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        holders = [*operation.get("parameters", ()), *(media for body in bodies for media in _media(body))]
        for holder in holders:
            yield from _within(holder["schema"])


def _media(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from body.get("content", {}).values()


def _within(schema: Schema) -> Iterator[Schema]:
    yield schema
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for group in ("anyOf", "oneOf", "allOf"):
        inner += schema.get(group, ())
    for one in inner:
        if isinstance(one, dict):
            yield from _within(one)


def _split_description(operation: Operation) -> None:
    """The first line of a docstring is the summary, what follows the description."""
    summary, _, rest = operation.pop("description", "").partition("\n\n")
    others = {name: operation.pop(name) for name in [*operation] if name not in {"tags", "operationId"}}
    operation["summary"] = " ".join(summary.split()).removesuffix(".")
    operation["description"] = " ".join(rest.split())
    operation |= {name: value for name, value in others.items() if name not in operation}


def _correct_parameter(parameter: dict[str, Any]) -> None:
    """A query or a header has no null: what may be left out is not required."""
    _without_null(parameter["schema"])
    for name in ("description", "examples"):  # The parameter has its own.
        parameter["schema"].pop(name, None)


def _correct_schema(schema: Schema) -> None:
    schema.pop("title", None)
    if schema.get("type") == "integer":  # The framework writes bounds as 1.0.
        schema |= {bound: int(schema[bound]) for bound in ("minimum", "maximum") if bound in schema}
    properties = schema.get("properties", {})
    if schema.get("maxProperties") == 1:  # One of several: null chooses none.
        for one in properties.values():
            _without_null(one)
    for field in OBJECTS.keys() & properties.keys():
        _name_objects(properties[field], OBJECTS[field])
    for name, (_, values) in ENUMS.items():
        if schema.get("enum") == list(values):
            del schema["enum"], schema["type"]
            schema |= ref(name)


def _without_null(schema: Schema) -> None:
    kept = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(kept) == 1:
        del schema["anyOf"]
        schema |= kept[0]


def _name_objects(schema: Schema, name: str) -> None:
    """The objects that a schema allows get a name: it alone, in a list, or beside null."""
    if schema.get("type") == "object":
        del schema["type"], schema["additionalProperties"]
        schema |= ref(name)
    for one in (schema.get("items"), *schema.get("anyOf", ())):
        if one is not None:
            _name_objects(one, name)


def _enum(description: str, values: tuple[str, ...]) -> Schema:
    return {"type": "string", "description": description, "enum": list(values)}


def _public(name: str) -> str:
    return NAMES.get(name, name.removesuffix("Out"))


def _point_to_public_names(node: Any) -> None:
    if isinstance(node, dict):
        if isinstance(target := node.get("$ref"), str):
            node["$ref"] = NAMED_ELSEWHERE + _public(target.removeprefix(NAMED_ELSEWHERE))
        for inner in node.values():
            _point_to_public_names(inner)
    elif isinstance(node, list):
        for inner in node:
            _point_to_public_names(inner)
