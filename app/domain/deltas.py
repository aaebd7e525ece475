"""The assistant message that a stream of deltas comes to (`chat.completion.chunk` of OpenAI's API)."""

from collections.abc import Mapping
from typing import Any

from app.domain import json_values

# Of these a later fragment repeats the earlier one where a provider sends them again; all else is a continuation.
_REPEATED = frozenset({"id", "type", "role", "name"})


class Reply:
    """What has come so far of the first choice of one completion, and how it ended.

    `finish_reason` is None until the completion is whole. `usage` comes in a chunk of its own, when asked for.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.model: str | None = None
        self.created: int | None = None
        self.usage: Mapping[str, Any] | None = None
        self.finish_reason: str | None = None
        self._fields: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
        """Take in one chunk; what is null or of an unexpected shape adds nothing.

        Returns the fragments of calls in it, each with the place of its call among the reply's.
        """
        self.id = self.id or _text(chunk.get("id"))
        self.model = self.model or _text(chunk.get("model"))
        if not self.created and isinstance(chunk.get("created"), int):
            self.created = chunk["created"]
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
        choice = first_choice(chunk)
        if choice is None:
            return []
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        delta = choice.get("delta")
        fragments: list[tuple[int, Mapping[str, Any]]] = []
        for name, value in delta.items() if isinstance(delta, dict) else ():
            if name == "tool_calls":
                fragments = self._add_calls(value)
            elif name != "role":
                self._fields[name] = joined(self._fields.get(name), value, repeated=name in _REPEATED)
        return fragments

    def name_of_call(self, place: int) -> str | None:
        """What the call at an index calls, once that is known."""
        return _text(self._body_of_call(place).get("name"))

    def has_arguments(self, place: int) -> bool:
        """Whether any of a call's arguments have come."""
        body = self._body_of_call(place)
        return bool(body.get("arguments") or body.get("input"))

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come but calls, of which none is known to be complete."""
        return not any(self._fields.values())

    def message(self) -> dict[str, Any]:
        """The whole message."""
        calls = [whole_call(self._calls[place]) for place in sorted(self._calls)]
        message = self.fragment()
        if calls:
            message |= {"content": message["content"] or None, "tool_calls": _well_formed(calls)}
        return message

    def fragment(self) -> dict[str, Any]:
        """The message of a reply that broke off: without calls, as none of them is known to be complete."""
        fields = {name: value for name, value in self._fields.items() if value is not None and name != "content"}
        well_formed: dict[str, Any] = _well_formed(fields)
        return {"role": "assistant", "content": _well_formed(self._fields.get("content")) or "", **well_formed}

    def _body_of_call(self, place: int) -> Mapping[str, Any]:
        call = self._calls.get(place, {})
        body = call.get("function") or call.get("custom")
        return body if isinstance(body, dict) else {}

    def _place_of_call(self, fragment: Mapping[str, Any]) -> int:
        """The index of the call that a fragment continues or begins; some providers leave it out."""
        index = fragment.get("index")
        if isinstance(index, int) and not isinstance(index, bool):
            return index
        last = max(self._calls, default=-1)
        if call_id := fragment.get("id"):
            return next((place for place, call in self._calls.items() if call.get("id") == call_id), last + 1)
        return max(last, 0)

    def _add_calls(self, fragments: Any) -> list[tuple[int, Mapping[str, Any]]]:
        placed: list[tuple[int, Mapping[str, Any]]] = []
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, dict):
                place = self._place_of_call(fragment)
                known = self._calls.get(place, {})
                new = {name: value for name, value in fragment.items() if name != "index"}
                self._calls[place] = joined(known, new)
                placed.append((place, fragment))
        return placed


def joined(known: Any, new: Any, *, repeated: bool = False) -> Any:
    """A value and the fragment that continues it."""
    if new is None:
        return known
    if isinstance(known, str) and isinstance(new, str):
        return known if repeated and new in {"", known} else known + new
    if isinstance(known, list) and isinstance(new, list):
        return known + new
    if isinstance(known, dict) and isinstance(new, dict):
        return known | {
            name: joined(known.get(name), value, repeated=name in _REPEATED) for name, value in new.items()
        }
    return new


def first_choice(chunk: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The choice that is stored: that of index 0, which is the only one unless the request asked for several."""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and not choice.get("index"):
            return choice
    return None


def whole_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with the fields that every message needs, where a provider left them out or null."""
    given = {name: value for name, value in call.items() if value is not None}
    whole = {"id": "", "type": "function", **given}
    body = "custom" if whole["type"] == "custom" else "function"
    text = "input" if body == "custom" else "arguments"
    parts = whole[body] if isinstance(whole.get(body), dict) else {}
    whole[body] = {"name": "", text: "", **{name: value for name, value in parts.items() if value is not None}}
    return whole


def _well_formed(value: Any) -> Any:
    """A character may come in two halves, each in a fragment of its own."""
    if isinstance(value, str):
        return value if value.isascii() else json_values.well_formed(value)
    if isinstance(value, dict):
        return {name: _well_formed(item) for name, item in value.items()}
    return [_well_formed(item) for item in value] if isinstance(value, list) else value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
