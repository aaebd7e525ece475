"""The prompt that a session's active window makes: system first, no broken tool call, whole turns that fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.conversation import for_prompt
from app.domain.events import Event
from app.domain.tool_calls import intact
from app.domain.turns import split_into_turns

# What providers accept back of their own messages; the rest stays in the log.
REPLAYED_FIELDS = frozenset({"role", "name", "content", "refusal", "tool_calls", "tool_call_id"})
# Reasoning belongs to the turn in progress: providers want it back within a tool loop and nowhere else.
REASONING_FIELDS = frozenset({"reasoning", "reasoning_content", "reasoning_details"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A prompt and where its messages come from: `event_ids[i]` is the event of `messages[i]`."""

    messages: list[Mapping[str, Any]]
    event_ids: list[str]
    tokens: int


def build_context(events: Sequence[Event], *, system: Event | None, max_tokens: int | None = None) -> Context:
    """A prompt that any provider accepts, out of active events in `seq` order.

    `system` is the latest stored system message: it goes first, the others are superseded. `max_tokens` bounds
    the conversation (system message not counted); the newest turn is always kept.
    """
    conversation = for_prompt(events)
    whole = intact([event.message for event in conversation])
    turns = split_into_turns(event for event, kept in zip(conversation, whole, strict=True) if kept)
    if max_tokens is not None:
        turns = _newest_that_fit(turns, max_tokens)
    chosen = [event for turn in turns for event in turn]
    current = frozenset(event.id for event in turns[-1]) if turns else frozenset()
    if system is not None:
        chosen.insert(0, system)
    return Context(
        messages=[replayed(event.message, within_current_turn=event.id in current) for event in chosen],
        event_ids=[event.id for event in chosen],
        tokens=sum(event.tokens for event in chosen),
    )


def _newest_that_fit(turns: list[list[Event]], max_tokens: int) -> list[list[Event]]:
    total = 0
    for index in range(len(turns) - 1, -1, -1):
        total += sum(event.tokens for event in turns[index])
        if total > max_tokens and index < len(turns) - 1:
            return turns[index + 1 :]
    return turns


def replayed(
    message: Mapping[str, Any], *, within_current_turn: bool, also: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """A stored message as providers take it back; `also` names further fields that this one does."""
    allowed = REPLAYED_FIELDS | also | (REASONING_FIELDS if within_current_turn else frozenset())
    kept = {name: value for name, value in message.items() if name in allowed and not _is_nothing(name, value)}
    return {**kept, "content": None} if kept.get("content") == [] else kept


def _is_nothing(name: str, value: Any) -> bool:
    """What providers refuse, although some send it: an empty list of calls, nulls where something is expected."""
    return (value is None and name not in {"content", "refusal"}) or (name == "tool_calls" and value == [])
