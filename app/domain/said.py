"""The parts of a chat: what is loaded of its session, what its request says, and what both come to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.messages import text_of, type_of

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A session's log as a chat needs it.

    `window`: what the filter selects. `tail`: the log from the turn of its last complete reply on, whatever the
    filter hides. `first_seq`: where the log begins. `answered_seq`: up to where it was answered.
    """

    window: Sequence[Event] = ()
    tail: Sequence[Event] = ()
    system: Event | None = None
    first_seq: int | None = None
    answered_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of the conversation: an event of the log, or one of the request (`new`: it continues the log).

    `again`: an event that the request says again, as it waits for an answer.
    """

    message: Message
    event: Event | None = None
    new: bool = False
    again: bool = False

    @property
    def type(self) -> str:
        return type_of(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The messages of a request by the part that they have in it.

    `new` is the trailing run of user and tool messages, `prefill` what an assistant shall begin its answer with,
    `resent` all before. `shown`: the filter that the history is read by. `known_ids` are those that the new messages
    have in the log, if it holds them.
    """

    system: list[Message]
    resent: list[Message]
    new: list[Message]
    prefill: list[Message]
    shown: EventFilter = field(default_factory=EventFilter)
    known_ids: frozenset[str] = frozenset()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Request":
        rest = [message for message in messages if type_of(message) != "system"]
        prefill = _trailing(rest, {"assistant"})
        new = _trailing(rest[: len(rest) - len(prefill)], {"user", "tool"})
        return cls(
            system=[message for message in messages if type_of(message) == "system"],
            resent=rest[: len(rest) - len(prefill) - len(new)],
            new=new,
            prefill=prefill,
        )

    def shows(self, message: Message) -> bool:
        """Whether the filter of the history selects such a message, as far as the message itself tells."""
        types = self.shown.types
        return (types is None or type_of(message) in types) and self.shown.matches_text(text_of(message))


def is_result(message: Message) -> bool:
    return type_of(message) == "tool"


def _trailing(messages: Sequence[Message], types: set[str]) -> list[Message]:
    run = list(takewhile(lambda message: type_of(message) in types, reversed(messages)))
    return run[::-1]
