"""The formats, and which of them a file is in."""

import re
from collections.abc import Mapping
from enum import StrEnum

from app.importing import chatgpt, locomo, openai, turnkeeper
from app.importing.reading import BOM, decode
from app.importing.records import Parse

# How much of a file `detect` is shown.
HEAD_LENGTH = 64 * 1024


class Format(StrEnum):
    TURNKEEPER = "turnkeeper"
    OPENAI = "openai"
    CHATGPT = "chatgpt"
    LOCOMO = "locomo"


PARSERS: Mapping[Format, Parse] = {
    Format.TURNKEEPER: turnkeeper.parse,
    Format.OPENAI: openai.parse,
    Format.CHATGPT: chatgpt.parse,
    Format.LOCOMO: locomo.parse,
}

_FORMAT_OF_KEY = {
    "role": Format.OPENAI,
    "messages": Format.OPENAI,
    "speaker_a": Format.LOCOMO,
    "kind": Format.TURNKEEPER,
}
# A key in JSON that does not end within what is looked at; in a string its quotes would be escaped.
_KEY = re.compile(rf'"({"|".join(_FORMAT_OF_KEY)})"\s*:'.encode())


def detect(head: bytes) -> Format | None:
    """The format that the beginning of a file looks like."""
    head = head.removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        return Format.CHATGPT
    for line in head.splitlines():
        if found := _format_of_line(line):
            return found
    key = _KEY.search(head)
    return _FORMAT_OF_KEY[key[1].decode()] if key else None


def _format_of_line(line: bytes) -> Format | None:
    try:
        value = decode(line)
    except ValueError:
        return None
    keys = value if isinstance(value, dict) else {}
    return next((found for key, found in _FORMAT_OF_KEY.items() if key in keys), None)
