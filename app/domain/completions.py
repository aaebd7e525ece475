"""Chat completions as the upstream answers them and as the client gets them (`chat.completion` of OpenAI's API)."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from app.domain import json_values
from app.domain.deltas import Reply, first_choice, whole_call
from app.domain.messages import faults_of, text_of, tool_calls_of

Completion = Mapping[str, Any]


class NotACompletion(ValueError):
    """An answer that is no chat completion."""


def message_of(completion: Any) -> dict[str, Any]:
    """The message of the first choice, which is the one that is stored. Raises NotACompletion."""
    try:
        choice = first_choice(completion)
        if choice is None:
            raise NotACompletion("it has no choice")
        message = {**choice["message"], "role": "assistant"}
        if message.get("tool_calls"):
            message["tool_calls"] = [whole_call(call) for call in message["tool_calls"]]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise NotACompletion from error
    if faults := faults_of(message):
        raise NotACompletion(faults[0].msg)
    return message


def without_cut_calls(message: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    """The message less the calls that the token limit cut off: half a call is none, and would break prompts."""
    calls = message.get("tool_calls")
    if finish_reason != "length" or not calls:
        return message
    whole = [call for call, parsed in zip(calls, tool_calls_of(message), strict=True) if _is_json(parsed.arguments)]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "tool_calls": whole} if whole else rest


def finish_reason_of(completion: Completion) -> str | None:
    choice = first_choice(completion)
    reason = None if choice is None else choice.get("finish_reason")
    return reason if isinstance(reason, str) else None


def with_message(completion: Completion, message: Mapping[str, Any], usage: Any) -> dict[str, Any]:
    """The completion with another message in its first choice, and the usage of all rounds."""
    first = first_choice(completion)
    reason = _delivered_reason(finish_reason_of(completion), bool(message.get("tool_calls")))
    choices = [
        {**(first or {}), "message": message, "finish_reason": reason} if choice is first else choice
        for choice in completion["choices"]
    ]
    changed = {**completion, "choices": choices}
    return changed if usage is None else {**changed, "usage": usage}


def added(one: Any, other: Any) -> Any:
    """The usage of two rounds: figures are added, whatever their names."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: added(one.get(name), other.get(name)) for name in one | other}
    if _is_number(one) and _is_number(other):
        return one + other
    return other if one is None else one


def like_a_whole(reply: Reply, usage: Any, *, asks_client: bool) -> dict[str, Any]:
    """What is kept of a streamed completion, as a whole one has it."""
    choices = [{"finish_reason": _delivered_reason(reply.finish_reason, asks_client)}]
    return {"id": reply.id, "model": reply.model, "created": reply.created, "usage": usage, "choices": choices}


class ClientStream:
    """What the client gets of the chunks of several rounds: one id, one role, one finish reason, its own calls only.

    Text passes at once. Fragments of a call wait until it is known whose call it is.
    """

    def __init__(self, service_tools: frozenset[str], *, wants_usage: bool) -> None:
        self._service_tools = service_tools
        self._wants_usage = wants_usage
        self._head: dict[str, Any] | None = None
        self._has_role = False
        self._usage: Any = None
        self._waiting: dict[int, list[Mapping[str, Any]]] = {}
        self._index_of_call: dict[int, int] = {}

    def chunks(self, chunk: Mapping[str, Any], reply: Reply) -> list[dict[str, Any]]:
        """What of a chunk is passed on, now that it has come; `reply` takes it in."""
        fragments = reply.add(chunk)
        choice = first_choice(chunk)
        if choice is None:
            return []  # Its usage is told at the end.
        if self._head is None:
            self._head = {name: value for name, value in chunk.items() if name not in {"choices", "usage"}}
        given = choice.get("delta")
        passed = given.items() if isinstance(given, dict) else ()
        delta = {name: value for name, value in passed if name not in _REWRITTEN}
        if calls := self._client_fragments(fragments, reply):
            delta["tool_calls"] = calls
        if not any(value is not None for value in delta.values()):
            return []
        if not self._has_role:
            delta = {"role": "assistant", **delta}
            self._has_role = True
        return [self._chunk(delta, None, choice)]

    def next_round(self, reply: Reply) -> None:
        """The service's own calls were run: what comes next continues the same answer."""
        self._usage = added(self._usage, reply.usage)
        self._waiting.clear()

    def end(self, reply: Reply, *, asks_client: bool) -> list[dict[str, Any]]:
        """The finish reason, once, and the usage of all rounds where the client asked for it."""
        self._usage = added(self._usage, reply.usage)
        reason = _delivered_reason(reply.finish_reason, asks_client)
        begun = [] if self._has_role else [self._chunk({"role": "assistant", "content": ""}, None)]
        chunks = [*begun, *self._held_back(reply.message()), self._chunk({}, reason)]
        if self._wants_usage and self._usage is not None:
            chunks.append({**(self._head or {}), "choices": [], "usage": self._usage})
        return chunks

    @property
    def usage(self) -> Any:
        return self._usage

    def _client_fragments(self, fragments: list[tuple[int, Mapping[str, Any]]], reply: Reply) -> list[dict[str, Any]]:
        passed: list[dict[str, Any]] = []
        for place, fragment in fragments:
            self._waiting.setdefault(place, []).append(fragment)
            if not self._may_be_the_services(place, reply):
                passed += self._released(place)
        return passed

    def _may_be_the_services(self, place: int, reply: Reply) -> bool:
        """Also while a name has only begun to come, until its arguments do."""
        name = reply.name_of_call(place) or ""
        if name in self._service_tools:
            return True
        begins = any(tool.startswith(name) for tool in self._service_tools)
        return begins and not reply.has_arguments(place)

    def _released(self, place: int) -> list[dict[str, Any]]:
        index = self._index_of_call.setdefault(place, len(self._index_of_call))
        return [{**waiting, "index": index} for waiting in self._waiting.pop(place)]

    def _held_back(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Calls of the client's whose name is the beginning of a service tool's, and which came without arguments."""
        names = [call.name for call in tool_calls_of(message)]
        waiting = [place for place in sorted(self._waiting) if place < len(names)]
        calls = [one for place in waiting if names[place] not in self._service_tools for one in self._released(place)]
        return [self._chunk({"tool_calls": calls}, None)] if calls else []

    def _chunk(
        self, delta: Mapping[str, Any], finish_reason: str | None, of: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {**(of or {}), "index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {**(self._head or {}), "choices": [choice]}
        return {**chunk, "usage": None} if self._wants_usage else chunk


# What of a delta is not passed on as it came.
_REWRITTEN = frozenset({"role", "tool_calls"})


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


def _delivered_reason(reason: str | None, asks_client: bool) -> str | None:
    """Calls that the service ran are none of the client's business."""
    return "stop" if reason == "tool_calls" and not asks_client else reason


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
