"""The prompt that goes upstream: system messages first, the conversation within its budget, fields providers take."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain.context import replayed
from app.domain.errors import ContextTooLarge
from app.domain.events import Event
from app.domain.messages import count_of_other_parts, text_of
from app.domain.said import Said
from app.domain.text import is_blank
from app.domain.tokens import CountTokens

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`history_events` and `history_tokens` are of what was loaded, not of what the request holds."""

    messages: list[Message]
    history_events: int
    history_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many tokens the conversation may have, system messages and tools not counted."""

    max_tokens: int
    count_tokens: CountTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What prompts are made of, round by round.

    `also` names fields of stored messages that this upstream takes back, `names` the ids that messages of the
    request will have in the log, by their `id()`.
    """

    said: list[Said]
    stored_system: Event | None
    system: Sequence[Message]
    memory_prompt: Sequence[str] = ()
    also: frozenset[str]
    budget: Budget | None
    names: Mapping[int, str]

    def prompt(self) -> Prompt:
        """The messages of a request. Raises ContextTooLarge."""
        said = self.said if self.budget is None else within_budget(self.said, self.budget, self.names)
        return build_prompt(
            said,
            stored_system=self.stored_system,
            system=self.system,
            also=self.also,
            memory_prompt=self.memory_prompt,
        )

    def followed_by(self, messages: Sequence[tuple[str, Message]]) -> "Draft":
        """With what was said since, under the ids that it has in the log."""
        more = {
            event_id: Said(message=replayed(message, within_current_turn=True, also=self.also), again=True)
            for event_id, message in messages
        }
        names = {**self.names, **{id(one): event_id for event_id, one in more.items()}}
        return replace(self, said=[*self.said, *more.values()], names=names)


def build_prompt(
    said: Sequence[Said],
    *,
    stored_system: Event | None,
    system: Sequence[Message],
    also: frozenset[str],
    memory_prompt: Sequence[str] = (),
) -> Prompt:
    last_question = max((place for place, one in enumerate(said) if one.type == "user"), default=-1)
    history = [one.event for one in said if one.event is not None]
    return Prompt(
        messages=[
            *_system_messages(stored_system, system, also, memory_prompt),
            *(_sent(one, place >= last_question, also) for place, one in enumerate(said)),
        ],
        history_events=len(history),
        history_tokens=sum(event.tokens for event in history),
    )


def within_budget(said: Sequence[Said], budget: Budget, event_ids: Mapping[int, str]) -> list[Said]:
    """The newest whole turns that fit; what the request adds is never left out.

    Where the newest turn alone is larger, its oldest tool contents are elided. `event_ids` are those that new
    messages will have, by their `id()`. Raises ContextTooLarge.
    """
    sizes = [_tokens(one, budget) for one in said]
    begins = _newest_turn(said)
    total = sum(sizes[begins:])
    if total > budget.max_tokens:
        return _elided(said[begins:], sizes[begins:], budget, event_ids)
    start = begins
    for place in range(begins - 1, -1, -1):
        total += sizes[place]
        if total > budget.max_tokens:
            break
        if said[place].type == "user" or place == 0:
            start = place
    return list(said[start:])


def _newest_turn(said: Sequence[Said]) -> int:
    """Where the turn begins that what the request says, new or again, or the last question belongs to."""
    first_new = next((place for place, one in enumerate(said) if one.new or one.again), len(said) - 1)
    starts = [place for place, one in enumerate(said[: first_new + 1]) if one.type == "user"]
    return starts[-1] if starts else 0


def _elided(said: Sequence[Said], sizes: Sequence[int], budget: Budget, event_ids: Mapping[int, str]) -> list[Said]:
    total = sum(sizes)
    shortened = list(said)
    for place, one in enumerate(said):
        if total <= budget.max_tokens:
            break
        if one.type == "tool":
            event_id = one.event.id if one.event else event_ids.get(id(one))
            note = f"[elided, event {event_id}]" if event_id else "[elided]"
            without = replace(one, message={**one.message, "content": note})
            saved = sizes[place] - budget.count_tokens(without.message)
            if saved > 0:
                shortened[place] = without
                total -= saved
    if total > budget.max_tokens:
        raise ContextTooLarge(total, budget.max_tokens)
    return shortened


def _tokens(one: Said, budget: Budget) -> int:
    return one.event.tokens if one.event else budget.count_tokens(one.message)


def _system_messages(
    stored: Event | None, system: Sequence[Message], also: frozenset[str], memory_prompt: Sequence[str]
) -> list[Message]:
    """The stored one first; an exact duplicate only once. Texts are never merged: prompt caching depends on it.

    But the parts of the memory prompt, which are appended to the last one of the request; a stored one is never
    rewritten. A part that is there already, put in by an application, is not put in again.
    """
    own = [] if stored is None else [replayed(stored.message, within_current_turn=False, also=also)]
    messages = list(_without_duplicates([*own, *system]))
    texts = [text_of(message) or "" for message in messages]
    added = "\n\n".join(part for part in memory_prompt if not any(part in text for text in texts))
    if not added:
        return messages
    if len(messages) == len(own):
        return [*messages, {"role": "system", "content": added}]
    return [*messages[:-1], _with_text(messages[-1], added)]


def _without_duplicates(messages: Sequence[Message]) -> Iterator[Message]:
    seen: set[str] = set()
    for message in messages:
        text = text_of(message)
        if text is None or count_of_other_parts(message) or text not in seen:
            yield message
        if text is not None:
            seen.add(text)


def _with_text(message: Message, text: str) -> Message:
    content = message.get("content")
    if is_blank(text_of(message) or "") and not count_of_other_parts(message):
        return {**message, "content": text}
    if isinstance(content, str):
        return {**message, "content": f"{content}\n\n{text}"}
    return {**message, "content": [*(content or []), {"type": "text", "text": text}]}


def _sent(one: Said, within_current_turn: bool, also: frozenset[str]) -> Message:
    if one.event is None:
        return one.message
    return replayed(one.message, within_current_turn=within_current_turn, also=also)
