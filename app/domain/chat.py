"""A chat request and its options, as the cycle takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.domain.compaction import Strategy, Trigger
from app.domain.conversation import History
from app.domain.filters import EventFilter
from app.domain.message_filters import MessageFilter, SkipEmpty

OnBusy = Literal["wait", "reject", "interleave"]
EventIds = Literal["random", "idempotent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompaction:
    """When and how a chat compacts its session; `inline`: before the answer ends, else after it."""

    trigger: Trigger
    strategy: Strategy
    inline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    history: History = "prepend"
    recall: bool = False
    max_context_tokens: int | None = None
    message_filter: MessageFilter = field(default_factory=SkipEmpty)
    compaction: ChatCompaction | None = None
    event_ids: EventIds = "random"
    on_busy: OnBusy = "wait"
    long_term: bool = False
    store: str | None = None
    consolidate: bool | None = None
    preload_index: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """`body` is what goes upstream but for its messages; `user_id` is None where none was given.

    `idempotency_key` names a run of requests of which a repeated one is answered from the log. `session_key` is the
    inner key of the only session that will do: one that is created anew under the id is another.
    """

    request_id: str
    session_id: str
    user_id: str | None
    messages: list[Mapping[str, Any]]
    body: Mapping[str, Any]
    event_filter: EventFilter
    options: ChatOptions
    idempotency_key: str | None = None
    session_key: int | None = None

    @property
    def streamed(self) -> bool:
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def has_stable_ids(self) -> bool:
        return self.options.event_ids == "idempotent" or self.idempotency_key is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a chat tells about itself in headers: `event_ids` were appended, the reply will have `reply_id`."""

    session_id: str
    event_version: int
    event_ids: tuple[str, ...]
    reply_id: str
    history_events: int
    history_tokens: int
