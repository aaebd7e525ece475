"""What a model sends to a memory tool: arguments by name, or a sentence that says which to send."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain import json_values
from app.domain.errors import MemoryRefused

_EXAMPLE = 'Send the arguments as a JSON object, such as {"path": "notes.md"}.'

# What each of them is, as in "send …".
_WHAT = {
    "command": "what to do, such as view",
    "path": 'the path, such as "notes.md"; "" is the root',
    "fileText": "the whole content of the file",
    "oldStr": "the text to replace, exactly as the file has it",
    "newStr": 'what takes the place of the old text, or "" to delete that',
    "insertText": "the lines to add",
    "viewRange": 'the first and the last line, such as "1,20", or leave it out',
    "oldPath": "the path that it has",
    "newPath": "the path that it shall have",
}

# What models call them as well, in lower case and without what separates words.
_OTHER_NAMES: Mapping[str, frozenset[str]] = {
    "command": frozenset({"action", "operation", "op", "cmd"}),
    "path": frozenset({"file", "filename", "filepath", "memorypath", "directory", "dir", "folder"}),
    "fileText": frozenset({"content", "contents", "filecontent", "filecontents", "text", "body", "data"}),
    "oldStr": frozenset({"old", "oldstring", "oldtext", "search", "find", "original"}),
    "newStr": frozenset({"new", "newstring", "newtext", "replacement", "replace", "replacewith", "with"}),
    "insertLine": frozenset({"line", "lineno", "linenumber", "afterline", "insertafter", "insertat", "position"}),
    "insertText": frozenset({"text", "content", "newstr", "newtext", "insertstr", "insertcontent", "lines"}),
    "viewRange": frozenset({"range", "lines", "linerange", "viewlines"}),
    "oldPath": frozenset({"path", "from", "source", "src", "frompath", "sourcepath", "old"}),
    "newPath": frozenset({"to", "destination", "dest", "target", "topath", "targetpath", "newname", "new"}),
}


class Arguments:
    """Those of one call. `names` are the tool's own; with `snake` they are spelled as Anthropic's tool has them."""

    def __init__(self, given: Mapping[str, Any], names: Sequence[str], *, snake: bool = False) -> None:
        self._given = given
        self._snake = snake
        self._known = {self.spelled(name) for name in names}

    def spelled(self, name: str) -> str:
        return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name) if self._snake else name

    def text(self, name: str) -> str:
        """An argument that has to be there. Raises MemoryRefused."""
        value = self._value(name)
        if not isinstance(value, str):
            raise MemoryRefused(self._fault(name, value, "no string"))
        return value

    def optional(self, name: str) -> str | None:
        """An argument that may be left out; models fill such in with ""."""
        value = self._value(name)
        if value is None or value == "":
            return None
        return self.text(name)

    def number(self, name: str) -> int:
        """A whole number: also as a string, or with a fraction of nothing."""
        value = self._value(name)
        match = re.fullmatch(r"(-?[0-9]{1,20})(?:\.0{1,20})?", str(value).strip())
        if not match:
            raise MemoryRefused(self._fault(name, value, "no whole number"))
        return int(match[1])

    def range(self, name: str) -> str | None:
        """A range as "start,end", or as Anthropic's tool has it, as a list of both."""
        value = self._value(name)
        if isinstance(value, list):
            return ",".join(map(str, value[:5])) if value else None
        return self.optional(name)

    def _value(self, name: str) -> Any:
        value = self._given.get(self.spelled(name))
        if value is None and (other := self._misnamed(name)):
            raise MemoryRefused(f"There is no argument {other}: what you sent as it is called {self.spelled(name)}.")
        return value

    def _misnamed(self, name: str) -> str | None:
        """What was sent under another name, probably."""
        likely = {_key(name), *_OTHER_NAMES[name]}
        return next((other for other in self._given if other not in self._known and _key(other) in likely), None)

    def _fault(self, name: str, value: Any, kind: str) -> str:
        spelled = self.spelled(name)
        fault = "null" if value is None and spelled in self._given else "missing" if value is None else kind
        return f"{spelled} is {fault}: send {_WHAT[name]}." if name in _WHAT else f"{spelled} is {fault}."


def decoded(arguments: bytes | str) -> Mapping[str, Any]:
    """The arguments of a call, from the JSON text that a model produced. Raises MemoryRefused."""
    try:
        given = json_values.decode(arguments)
    except json_values.InvalidJson as error:
        raise MemoryRefused(f"{error} {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise MemoryRefused(_EXAMPLE)
    return given


def _key(name: str) -> str:
    return re.sub(r"[_\-\s.]", "", name[:50]).lower()
