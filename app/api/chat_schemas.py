"""A chat request on the wire: OpenAI's, with what is Turnkeeper's own beside it."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from app.api.schemas import EventType, FilterBody
from app.api.strategies import Choice, Figures, Strategy, Trigger
from app.domain import memory_prompts, messages
from app.domain import message_filters as filters
from app.domain.chat import ChatCompaction, ChatOptions, EventIds, OnBusy
from app.domain.conversation import History
from app.domain.errors import Fault, InvalidInput
from app.domain.message_filters import MessageFilter

# What of a body is not for the upstream.
OWN_FIELDS = frozenset({"session_id", "user_id", "filter", "memory"})

_MOST = 2**31 - 1


class MessageFilterChoice(Choice):
    """One criterion, or a composition of several."""

    types: list[EventType] | None = Field(None, description="Messages of these types.")
    contains: str | None = Field(None, min_length=1, description="Messages whose text contains this, caselessly.")
    and_: "list[MessageFilterBody] | None" = Field(None, alias="and", min_length=1, description="All of them.")
    or_: "list[MessageFilterBody] | None" = Field(None, alias="or", min_length=1, description="Any of them.")
    not_: "MessageFilterBody | None" = Field(None, alias="not", description="What this one does not accept.")

    def to_domain(self) -> MessageFilter:
        if self.types is not None:
            return filters.OfTypes(types=frozenset(self.types))
        if self.contains is not None:
            return filters.Containing(term=self.contains)
        if self.and_ is not None:
            return filters.AllOf(filters=tuple(one.to_domain() for one in self.and_))
        if self.or_ is not None:
            return filters.AnyOf(filters=tuple(one.to_domain() for one in self.or_))
        return filters.Not(negated=self.chosen.to_domain())


class MessageFilterBody(RootModel[Literal["all", "skip_empty"] | MessageFilterChoice]):
    """Which messages are stored: `all`, `skip_empty` (replies that say something), or criteria of your own."""

    def to_domain(self) -> MessageFilter:
        if isinstance(self.root, MessageFilterChoice):
            return self.root.to_domain()
        return filters.AcceptAll() if self.root == "all" else filters.SkipEmpty()


class CompactionBody(Figures):
    """When a chat compacts its session, and how."""

    trigger: Trigger = Field(description="When.")
    strategy: Strategy = Field(description="What stays active.")
    mode: Literal["background", "inline"] = Field(
        "background", description="`inline`: before the answer ends; `background`: after it."
    )

    def to_domain(self) -> ChatCompaction:
        try:
            strategy = self.strategy.to_domain()
        except InvalidInput as error:
            place = ("compaction", "strategy", next(iter(self.strategy.model_fields_set)))
            raise InvalidInput(*(Fault((*place, *fault.loc), fault.msg) for fault in error.faults)) from None
        return ChatCompaction(trigger=self.trigger.to_domain(), strategy=strategy, inline=self.mode == "inline")


class MemoryBody(BaseModel):
    """How this chat uses its session. What is left out is as the service's settings have it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    history: History | None = Field(
        None,
        description="`prepend`: the stored history goes before what is new in the request; what of it the request "
        "resends is recognised. `replace`: it takes the place of all that the request resends, for chat front ends "
        "that keep a conversation of their own.",
    )
    recall: bool | None = Field(
        None, description="Give the model `conversation_search` over this session; the service runs it."
    )
    max_context_tokens: int | None = Field(
        None, ge=1, le=_MOST, description="The newest whole turns that fit; system messages and tools not counted."
    )
    message_filter: MessageFilterBody | None = Field(None, description="Which messages are stored.")
    compaction: CompactionBody | None = Field(None, description="Compaction after a turn; null: none.")
    event_ids: EventIds | None = Field(
        None,
        description="`idempotent`: ids are hashes of the messages, so that a repeated message is stored once; two "
        "equal texts in one session are one event then. Implied by the header Idempotency-Key.",
    )
    on_busy: OnBusy | None = Field(
        None,
        description="When another request has the session's turn: `wait` for it, `reject` (409), or `interleave`.",
    )

    long_term: bool | None = Field(
        None, description="Give the model the memory prompt and the six memory tools; the service runs them."
    )
    store: str | None = Field(None, description="The memory store; by default that of the session's owner.")
    consolidate: bool | None = Field(
        None, description="Remind the model to consolidate the memory, or do not; by default as the trigger has it."
    )
    preload_index: bool | None = Field(
        None, description="Put the beginning of the index MEMORY.md into the prompt; it changes what is cached."
    )

    def over(self, options: ChatOptions) -> ChatOptions:
        """These options where they are given, else the others. Raises InvalidInput."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        kept = {name: value for name, value in given.items() if value is not None or name == "compaction"}
        for name in ("message_filter", "compaction"):
            if kept.get(name) is not None:
                kept[name] = kept[name].to_domain()
        return ChatOptions(**{name: kept.get(name, getattr(options, name)) for name in ChatOptions.__slots__})


class ChatBody(BaseModel):
    """An OpenAI chat completions request. Fields that are not named here go upstream as they are."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: list[dict[str, Any]] = Field(
        min_length=1,
        description="What is new, or the whole conversation again: what the session holds is sent and stored once.",
        examples=[[{"role": "user", "content": "What did we decide about the database?"}]],
    )
    model: str | None = Field(None, description="The upstream's model; by default that of the settings.")
    stream: bool | None = Field(None, description="Answer with server-sent events as they come.")
    n: int | None = Field(None, ge=1, description="How many answers; only the first is stored.")
    tools: list[dict[str, Any]] | None = Field(None, description="The client's own tools.")
    session_id: str | None = Field(None, description="The conversation; or header X-Session-Id.", examples=["first"])
    user_id: str | None = Field(None, description="Whose it is; or header X-User-Id.", examples=["alice"])
    filter: FilterBody | None = Field(None, description="Which of the stored events go into the prompt.")
    memory: MemoryBody | None = Field(None, description="How this chat uses its session.")

    def faults(self) -> Iterator[Fault]:
        for index, message in enumerate(self.messages):
            for fault in messages.faults_of(message):
                yield Fault(("body", "messages", index, *fault.loc), fault.msg)

    def for_upstream(self) -> dict[str, Any]:
        """The body but for messages and what is not the upstream's."""
        named = {name: getattr(self, name) for name in self.model_fields_set if name in type(self).model_fields}
        passed = named | (self.model_extra or {})
        return {name: value for name, value in passed.items() if name not in OWN_FIELDS and name != "messages"}


def agreed(name: str, in_body: str | None, in_header: str | None) -> str | None:
    """An id that may be given twice, but not differently. Blank means absent. Raises InvalidInput."""
    given = {value for value in (in_body, in_header) if value is not None and value.strip()}
    if len(given) > 1:
        raise InvalidInput(Fault(("body", name), f"The {name} of the body and that of the header differ."))
    return next(iter(given), None)


class ConsolidationBody(Choice):
    """When a model is reminded to consolidate its memory."""

    every_requests: int | None = Field(None, ge=1, le=_MOST, description="With each so many-th request of a store.")
    every: str | None = Field(
        None, pattern=r"^[1-9]\d{0,5}[smhd]$", description="After so long, such as `24h`: s, m, h or d."
    )
    probability: float | None = Field(None, gt=0, le=1, strict=False, description="By chance, with this probability.")
    any: "list[ConsolidationBody] | None" = Field(None, min_length=1, max_length=20, description="When one fires.")

    def to_domain(self) -> memory_prompts.Consolidation:
        if self.every_requests is not None:
            return memory_prompts.EveryRequests(requests=self.every_requests)
        if self.every is not None:
            return memory_prompts.Every(seconds=int(self.every[:-1]) * _SECONDS[self.every[-1]])
        if self.probability is not None:
            return memory_prompts.Probability(probability=self.probability)
        return memory_prompts.AnyOf(triggers=tuple(one.to_domain() for one in self.any or ()))


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
