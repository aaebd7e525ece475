"""Chat completions as the upstream answers them and as the client gets them (`chat.completion` of OpenAI's API)."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from app.domain import json_values
from app.domain.deltas import Reply
from app.domain.messages import text_of, tool_calls_of

Completion = Mapping[str, Any]


class NotACompletion(ValueError):
    """An answer that is no chat completion."""


def message_of(completion: Any) -> dict[str, Any]:
    """The message of the first choice, which is the one that is stored. Raises NotACompletion."""
    try:
        choice = next(choice for choice in completion["choices"] if choice.get("index", 0) == 0)
        return {"role": "assistant", **choice["message"]}
    except (TypeError, KeyError, AttributeError, StopIteration) as error:
        raise NotACompletion from error


def without_cut_calls(message: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    """The message less the calls that the token limit cut off: half a call is none, and would break prompts."""
    calls = message.get("tool_calls")
    if finish_reason != "length" or not calls:
        return message
    whole = [call for call, parsed in zip(calls, tool_calls_of(message), strict=True) if _is_json(parsed.arguments)]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "tool_calls": whole} if whole else rest


def finish_reason_of(completion: Completion) -> str | None:
    reason: str | None = completion["choices"][0].get("finish_reason")
    return reason


def with_message(completion: Completion, message: Mapping[str, Any], usage: Any) -> dict[str, Any]:
    """The completion with another message in its first choice, and the usage of all rounds."""
    first, *others = completion["choices"]
    reason = first.get("finish_reason")
    if reason == "tool_calls" and not message.get("tool_calls"):
        reason = "stop"
    changed = {**completion, "choices": [{**first, "message": message, "finish_reason": reason}, *others]}
    return changed if usage is None else {**changed, "usage": usage}


def added(one: Any, other: Any) -> Any:
    """The usage of two rounds: figures are added, whatever their names."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: added(one.get(name), other.get(name)) for name in one | other}
    if _is_number(one) and _is_number(other):
        return one + other
    return other if one is None else one


def like_a_whole(reply: Reply, usage: Any) -> dict[str, Any]:
    """What is kept of a streamed completion, as a whole one has it."""
    choices = [{"finish_reason": reply.finish_reason}]
    return {"id": reply.id, "model": reply.model, "created": reply.created, "usage": usage, "choices": choices}


class ClientStream:
    """What the client gets of the chunks of several rounds: one id, one role, one finish reason, its own calls only.

    Text passes at once. Fragments of a call wait until it is known whose call it is.
    """

    def __init__(self, service_tools: frozenset[str], *, wants_usage: bool) -> None:
        self._service_tools = service_tools
        self._wants_usage = wants_usage
        self._head: dict[str, Any] | None = None
        self._usage: Any = None
        self._waiting: dict[int, list[Mapping[str, Any]]] = {}
        self._index_of_call: dict[int, int] = {}

    def chunks(self, chunk: Mapping[str, Any], reply: Reply) -> list[dict[str, Any]]:
        """What of a chunk is passed on, now that it has come; `reply` takes it in."""
        fragments = reply.add(chunk)
        is_first = self._head is None
        if self._head is None:
            self._head = {name: value for name, value in chunk.items() if name not in {"choices", "usage"}}
        choices = chunk.get("choices")
        delta = dict(choices[0].get("delta") or {}) if isinstance(choices, list) and choices else {}
        if not is_first:
            delta.pop("role", None)
        delta.pop("tool_calls", None)
        if calls := self._client_fragments(fragments, reply):
            delta["tool_calls"] = calls
        worth_it = is_first or any(value is not None for value in delta.values())
        return [self._chunk(delta, None)] if choices and worth_it else []

    def next_round(self, reply: Reply) -> None:
        """The service's own calls were run: what comes next continues the same answer."""
        self._usage = added(self._usage, reply.usage)
        self._waiting.clear()

    def end(self, reply: Reply, *, asks_client: bool) -> list[dict[str, Any]]:
        """The finish reason, once, and the usage of all rounds where the client asked for it."""
        self._usage = added(self._usage, reply.usage)
        reason = reply.finish_reason
        if reason == "tool_calls" and not asks_client:
            reason = "stop"
        chunks = [self._chunk({}, reason)]
        if self._wants_usage and self._usage is not None:
            chunks.append({**(self._head or {}), "choices": [], "usage": self._usage})
        return chunks

    @property
    def usage(self) -> Any:
        return self._usage

    def _client_fragments(self, fragments: list[tuple[int, Mapping[str, Any]]], reply: Reply) -> list[dict[str, Any]]:
        passed: list[dict[str, Any]] = []
        for place, fragment in fragments:
            name = reply.name_of_call(place)
            self._waiting.setdefault(place, []).append(fragment)
            if name is None or name in self._service_tools:
                continue
            index = self._index_of_call.setdefault(place, len(self._index_of_call))
            passed += [{**waiting, "index": index} for waiting in self._waiting.pop(place)]
        return passed

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {**(self._head or {}), "choices": [choice]}
        return {**chunk, "usage": None} if self._wants_usage else chunk


def completion_of(message: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A whole completion out of a stored message and what was kept of the answer that it came in."""
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": facts.get("finish_reason")}
    completion = {**_head(facts, "chat.completion"), "choices": [choice]}
    return completion if facts.get("usage") is None else {**completion, "usage": facts["usage"]}


def chunks_of(message: Mapping[str, Any], facts: Mapping[str, Any], *, wants_usage: bool) -> list[dict[str, Any]]:
    """The same as a stream: the message in one piece, how it ended, and its usage where that is wanted."""
    head = _head(facts, "chat.completion.chunk")
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or [])]
    delta = {**message, "content": text_of(message)} | ({"tool_calls": calls} if calls else {})
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": facts.get("finish_reason")}]},
    ]
    if wants_usage and facts.get("usage") is not None:
        chunks.append({**head, "choices": [], "usage": facts["usage"]})
    return chunks


def _is_json(text: str) -> bool:
    try:
        json_values.decode(text)
    except json_values.InvalidJson:
        return False
    return True


def _head(facts: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"id": facts.get("id"), "object": kind, "created": facts.get("created"), "model": facts.get("model")}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
