"""Messages, tools and completions in OpenAI's format, as JSON Schemas of the OpenAPI document.

They allow all that the service accepts (`app.domain.messages`), which a test holds. A message is kept verbatim: every
object here may have fields that are not named.
"""

from typing import Any

Schema = dict[str, Any]

NAMED_ELSEWHERE = "#/components/schemas/"


def ref(name: str) -> Schema:
    return {"$ref": f"{NAMED_ELSEWHERE}{name}"}


def _open(description: str, required: list[str], properties: dict[str, Schema]) -> Schema:
    """An object with these fields and any others."""
    named: Schema = {"properties": properties, "required": required} if required else {"properties": properties}
    return {"type": "object", "description": description, **named, "additionalProperties": True}


def _free(description: str) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": True}


def _string(description: str, **also: Any) -> Schema:
    return {"type": "string", "description": description, **also}


def _content(description: str, **also: Any) -> Schema:
    parts = {"type": "array", "items": ref("ContentPart"), **also}
    return {"anyOf": [{"type": "string"}, parts], "description": description}


def _message(role: str, description: str, **also: Schema) -> Schema:
    speaker = {"type": ["string", "null"], "description": "Who of several speaks."}
    content = _content("What is said.", minItems=1)
    own = {"role": {"const": role, "description": f"Always `{role}`."}, "content": content, "name": speaker, **also}
    return _open(description, ["role", "content", *(name for name in also)], own)


def _reply() -> dict[str, Schema]:
    parts = {"type": "array", "items": ref("ContentPart")}
    calls = {"type": "array", "items": ref("ToolCall")}
    said = "What is said; null where only tools are called."
    return {
        "content": {"anyOf": [{"type": "string"}, parts, {"type": "null"}], "description": said},
        "tool_calls": {"anyOf": [calls, {"type": "null"}], "description": "The tools that are called."},
    }


_ROLES = {
    "user": "UserMessage",
    "assistant": "AssistantMessage",
    "system": "SystemMessage",
    "developer": "DeveloperMessage",
    "tool": "ToolMessage",
}

SCHEMAS: dict[str, Schema] = {
    "Metadata": _free("Anything of yours."),
    "Message": {
        "description": "One message in OpenAI chat format, kept verbatim with fields that are not named here.",
        "oneOf": [ref(name) for name in _ROLES.values()],
        "discriminator": {
            "propertyName": "role",
            "mapping": {role: f"{NAMED_ELSEWHERE}{name}" for role, name in _ROLES.items()},
        },
    },
    "UserMessage": _message("user", "What a user says."),
    "AssistantMessage": _open(
        "What a model says, and which tools it calls.",
        ["role"],
        {
            "role": {"const": "assistant", "description": "Always `assistant`."},
            **_reply(),
            "name": {"type": ["string", "null"], "description": "Who of several speaks."},
        },
    ),
    "SystemMessage": _message("system", "Instructions; stored only where the session allows it."),
    "DeveloperMessage": _message("developer", "Instructions, as newer models call them; its type is `system`."),
    "ToolMessage": _message(
        "tool",
        "What a tool answers.",
        tool_call_id=_string("The call that it answers; blank where the id of that is."),
    ),
    "ContentPart": {
        "description": "A part of what is said: text, an image, or anything else that a model takes.",
        "anyOf": [ref("TextPart"), ref("ImagePart"), ref("OtherPart")],
    },
    "TextPart": _open(
        "A text.",
        ["type", "text"],
        {"type": {"const": "text", "description": "Always `text`."}, "text": _string("The text.")},
    ),
    "ImagePart": _open(
        "An image.",
        ["type", "image_url"],
        {
            "type": {"const": "image_url", "description": "Always `image_url`."},
            "image_url": {**ref("ImageUrl"), "description": "Where the image is."},
        },
    ),
    "ImageUrl": _open("Where an image is.", ["url"], {"url": _string("An address, or a data URL.")}),
    "OtherPart": _open(
        "A part of any other type, such as audio or a file.",
        ["type"],
        {"type": _string("The type of the part.", **{"not": {"enum": ["text", "image_url"]}})},
    ),
    "ToolCall": {
        "description": "A call that a model makes.",
        "anyOf": [ref("FunctionCall"), ref("CustomCall")],
    },
    "FunctionCall": _open(
        "A call with JSON arguments.",
        ["id", "function"],
        {
            "id": _string("Unique in its message; blank where the provider assigns none."),
            "type": {"not": {"const": "custom"}, "description": "`function`, or left out."},
            "function": {**ref("CalledFunction"), "description": "What is called."},
        },
    ),
    "CalledFunction": _open(
        "A function that is called.",
        ["name", "arguments"],
        {
            "name": _string("Its name.", minLength=1),
            "arguments": _string("JSON, exactly as the model wrote it."),
        },
    ),
    "CustomCall": _open(
        "A call with free text.",
        ["id", "type", "custom"],
        {
            "id": _string("Unique in its message; blank where the provider assigns none."),
            "type": {"const": "custom", "description": "Always `custom`."},
            "custom": {**ref("CalledCustomTool"), "description": "What is called."},
        },
    ),
    "CalledCustomTool": _open(
        "A custom tool that is called.",
        ["name", "input"],
        {"name": _string("Its name.", minLength=1), "input": _string("The text, exactly as the model wrote it.")},
    ),
    "ToolDefinition": _free("A tool as a model request has it."),
    "ToolArguments": _free("A model's arguments object, exactly as the model produced it."),
    "ChatCompletion": _open(
        "The upstream's answer, unchanged: OpenAI's chat.completion.",
        ["choices"],
        {
            "choices": {
                "type": "array",
                "items": ref("ChatChoice"),
                "description": "The answers; the first is stored.",
            },
            "usage": {
                "anyOf": [ref("TokenUsage"), {"type": "null"}],
                "description": "Tokens used, of all rounds where the service ran tools.",
            },
        },
    ),
    "ChatChoice": _open(
        "One answer.",
        ["message"],
        {"message": {**ref("ChatReply"), "description": "What the model says."}},
    ),
    "ChatReply": _open("What the model says, and which tools it calls.", [], _reply()),
    "TokenUsage": _free("Tokens by kind, as the upstream counts them."),
    "ModelList": _free("The upstream's models, as it lists them: OpenAI's list of models."),
}
