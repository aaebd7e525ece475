"""The shapes on the wire. Requests forbid unknown fields; responses are rendered by `app.api.render`."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, RootModel, WithJsonSchema

from app.domain import ids, json_values, messages
from app.domain.errors import Fault, InvalidInput
from app.domain.filters import MAX_KEYWORDS, MAX_PATTERN_LENGTH, MAX_TERM_LENGTH, EventFilter
from app.domain.instants import parse_instant
from app.domain.readings import MAX_EVENTS

MAX_BATCH = 1_000
MAX_INT32 = 2**31 - 1
MAX_SEQ = 2**53 - 1
MAX_TTL_SECONDS = 100 * 365 * 24 * 3600


def checked_id(value: str) -> str:
    if fault := ids.fault_of_id(value):
        raise ValueError(fault)
    return value


def _user_id(value: str) -> str:
    if fault := ids.fault_of_user_id(value):
        raise ValueError(fault)
    return value


def _without_nul(value: dict[str, Any]) -> dict[str, Any]:
    if json_values.holds_nul(value):
        raise ValueError("Metadata hold no NUL character (U+0000).")
    return value


_ID_SCHEMA = {"type": "string", "minLength": 1, "maxLength": ids.MAX_ID_LENGTH}

Id = Annotated[str, AfterValidator(checked_id), WithJsonSchema(_ID_SCHEMA)]
UserId = Annotated[str, AfterValidator(_user_id), WithJsonSchema(_ID_SCHEMA)]
Instant = Annotated[
    datetime, BeforeValidator(parse_instant), WithJsonSchema({"type": "string", "format": "date-time"})
]
Metadata = Annotated[dict[str, Any], AfterValidator(_without_nul)]
EventType = Literal["user", "assistant", "system", "tool"]

_MESSAGE_EXAMPLE = {"role": "user", "content": "We decided to use PostgreSQL."}


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SessionPatch(_Request):
    """What may change of a session."""

    metadata: Metadata | None = Field(
        None, description="JSON merge patch (RFC 7396): null removes a key. Null as a whole empties the metadata."
    )
    ttl_seconds: int | None = Field(
        None, ge=1, le=MAX_TTL_SECONDS, description="Lifetime in seconds from now. Excludes `expires_at`."
    )
    expires_at: Instant | None = Field(None, description="End of the lifetime; null: never.")


class SessionCreate(_Request):
    """A session to create."""

    id: Id | None = Field(None, description="Name of the session; a UUIDv7 when absent.", examples=["support-4711"])
    user_id: UserId = Field(description="Who the conversation belongs to.", examples=["alice"])
    ttl_seconds: int | None = Field(
        None, ge=1, le=MAX_TTL_SECONDS, description="Lifetime in seconds. Excludes `expires_at`."
    )
    expires_at: Instant | None = Field(
        None, description="End of the lifetime; null: never. Without this and `ttl_seconds`: the default, 60 days."
    )
    ttl_sliding: bool = Field(False, description="Whether each append renews the lifetime.")
    allow_system_messages: bool | None = Field(
        None, description="Whether system messages are stored; by default they belong to each request."
    )
    metadata: Metadata = Field({}, description="Anything of yours.", examples=[{"channel": "web"}])


class EventCreate(_Request):
    """One message to append."""

    id: Id | None = Field(
        None, description="Unique in its session; makes a retry a replay. A UUIDv7 when absent.", examples=["msg-1"]
    )
    timestamp: Instant | None = Field(None, description="When it was said; now, when absent. Never orders the log.")
    message: dict[str, Any] = Field(
        description="One message in OpenAI chat format, kept verbatim.", examples=[_MESSAGE_EXAMPLE]
    )
    metadata: Metadata = Field({}, description="Anything of yours.")
    synthetic: bool = Field(False, description="A summary, not said by anyone. Service keys only.")


class AppendRequest(_Request):
    """A batch, appended whole or not at all."""

    events: list[EventCreate] = Field(
        min_length=1, max_length=MAX_BATCH, description="The messages, in the order of the log to be."
    )
    user_id: UserId | None = Field(
        None, description="Creates the session for this user when there is none; 403 when it is another's."
    )

    def faults(self) -> list[Fault]:
        return [
            Fault(("body", "events", index, "message", *fault.loc), fault.msg)
            for index, event in enumerate(self.events)
            for fault in messages.faults_of(event.message)
        ]


class _FilterFields(BaseModel):
    from_: Instant | None = Field(None, alias="from", description="Not before this instant.")
    to: Instant | None = Field(None, description="Not after this instant.")
    exclude_synthetic: bool = Field(False, description="Leaves out summaries.")
    exclude_archived: bool = Field(False, description="Only the active window.")
    after_seq: int | None = Field(None, ge=-1, le=MAX_SEQ, description="Only events after this `seq`.")
    before_seq: int | None = Field(None, ge=0, le=MAX_SEQ, description="Only events before this `seq`.")
    last_n: int | None = Field(
        None, ge=1, le=MAX_INT32, description="The newest n matches, extended to whole turns. Excludes pages."
    )
    keyword: str | None = Field(None, max_length=MAX_TERM_LENGTH, description="Caseless substring of the text.")
    keywords: list[Annotated[str, Field(max_length=MAX_TERM_LENGTH)]] | None = Field(
        None, max_length=MAX_KEYWORDS, description="Several substrings, combined by `match_mode`."
    )
    match_mode: Literal["any", "all"] | None = Field(None, description="How keywords combine; `any` by default.")
    pattern: str | None = Field(
        None, max_length=MAX_PATTERN_LENGTH, description="RE2 expression found in the text; case-sensitive."
    )
    page: int | None = Field(None, ge=0, le=MAX_INT32, description="Page from 0, oldest first. Needs `page_size`.")
    page_size: int | None = Field(None, ge=1, le=MAX_EVENTS, description="Events in a page. Excludes `last_n`.")

    def _to_filter(self, where: str, types: list[EventType] | None) -> EventFilter:
        fields = {name: getattr(self, name) for name in _FilterFields.model_fields}
        fields["keywords"] = None if self.keywords is None else tuple(self.keywords)
        try:
            return EventFilter(types=None if types is None else frozenset(types), **fields)
        except InvalidInput as error:
            raise InvalidInput(*(Fault((where, *fault.loc), fault.msg) for fault in error.faults)) from None


class FilterBody(_FilterFields):
    """Which events to read: all criteria hold, and at most one of `last_n` and pages cuts."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)

    types: list[EventType] | None = Field(None, description="Only these types; none means all.")

    def to_filter(self) -> EventFilter:
        return self._to_filter("body", self.types)


class FilterQuery(_FilterFields):
    """An EventFilter as query parameters; `type` and `keywords` may be repeated."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)

    type: list[EventType] | None = Field(None, description="Only this type; repeatable.")

    def to_filter(self) -> EventFilter:
        return self._to_filter("query", self.type)


class ContextQuery(FilterQuery):
    """An EventFilter as query parameters, with a budget of tokens."""

    max_tokens: int | None = Field(
        None, ge=1, le=MAX_SEQ, description="Newest whole turns that fit; the newest turn is always kept."
    )


class _Search(_Request):
    since: Instant | None = Field(None, description="Not before this instant.")
    until: Instant | None = Field(None, description="Not after this instant.")
    types: list[EventType] | None = Field(None, description="Only these types; none means all.")
    page: int = Field(0, ge=0, le=MAX_INT32, description="Page from 0, oldest matches first.")
    page_size: int = Field(10, ge=1, le=100, description="Results in a page.")


class SessionSearch(_Search):
    """A word or phrase to find in one session."""

    query: str = Field(
        max_length=MAX_TERM_LENGTH, description="Caseless substring of the text.", examples=["postgresql"]
    )


class UserSearch(_Search):
    """Words or phrases to find in all sessions of a user."""

    query: str | None = Field(None, description="Terms separated by commas.", examples=["we decided, let's go with"])
    terms: list[str] | None = Field(None, description="Terms as a list, for terms that hold a comma.")
    match_mode: Literal["any", "all"] = Field("any", description="Whether one term is enough.")


class SessionOut(BaseModel):
    """A session as it stands."""

    id: str = Field(description="Name of the session.")
    user_id: str = Field(description="Who the conversation belongs to.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime | None = Field(description="End of the lifetime; null: never.")
    ttl_sliding: bool = Field(description="Whether each append renews the lifetime.")
    allow_system_messages: bool = Field(description="Whether system messages are stored.")
    metadata: dict[str, Any] = Field(description="Anything of yours.")
    event_version: int = Field(description="+1 for each event appended and each compaction applied.")
    event_count: int = Field(description="Events in the log, archived ones included.")
    active_event_count: int = Field(description="Events that are not archived.")
    active_turn_count: int = Field(description="User events among them that are not synthetic.")
    active_token_count: int = Field(description="Tokens of the events that are not archived.")
    last_event_at: datetime | None = Field(description="The timestamp of the newest event; null: there is none.")


class SessionList(BaseModel):
    """A page of sessions, newest first."""

    items: list[SessionOut] = Field(description="The sessions of this page.")
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


class EventOut(BaseModel):
    """One message in the log of a session."""

    id: str = Field(description="Unique in its session.")
    session_id: str = Field(description="The session whose log it is in.")
    seq: int = Field(description="Orders the log of the session; has gaps.")
    timestamp: datetime = Field(description="When it was said.")
    type: EventType = Field(description="Who speaks; a developer message is of type `system`.")
    message: dict[str, Any] = Field(description="The message, verbatim.")
    text: str | None = Field(description="The text of the message; null when it has none.")
    synthetic: bool = Field(description="Whether it is a summary, not said by anyone.")
    archived: bool = Field(description="Whether a compaction took it out of the active window.")
    tokens: int = Field(description="Tokens of its rendered form, counted when it was appended.")
    metadata: dict[str, Any] = Field(description="Anything of yours.")


class Appended(BaseModel):
    """What an append did."""

    events: list[EventOut] = Field(description="The events of the batch in its order, replays included.")
    event_version: int = Field(description="The version of the session now.")
    appended: int = Field(description="Events that are new in the log.")
    replayed: int = Field(description="Events that the log held already.")


class EventPage(BaseModel):
    """Events in order; the page fields are there when a page was asked for."""

    events: list[EventOut] = Field(description="The events of this window or page.")
    page: int | None = Field(None, description="The page asked for.")
    page_size: int | None = Field(None, description="Events in a page, as asked for.")
    has_more: bool | None = Field(None, description="Whether there is a page after this one.")


class SessionEventPage(EventPage):
    """Events of one session in order; the page fields are there when a page was asked for."""

    event_version: int = Field(description="The version of the session when it was read.")


class ContextOut(BaseModel):
    """The active window as a prompt."""

    messages: list[dict[str, Any]] = Field(description="System message first, no broken tool call.")
    event_ids: list[str] = Field(description="The event of each message.")
    event_version: int = Field(description="The version of the session when it was read.")
    tokens: int = Field(description="Tokens of these messages.")
    total_tokens: int = Field(description="Tokens of the whole active window.")


class SearchResult(BaseModel):
    """An event whose text matches."""

    event_id: str = Field(description="The event that matches.")
    session_id: str = Field(description="The session that it is in.")
    timestamp: datetime = Field(description="When it was said.")
    type: EventType = Field(description="Who said it.")
    text: str = Field(description="Its whole text.")


class SearchPage(BaseModel):
    """A page of what was found."""

    results: list[SearchResult] = Field(description="What was found, oldest first.")
    page: int = Field(description="The page asked for.")
    page_size: int = Field(description="Results in a page, as asked for.")
    has_more: bool = Field(description="Whether there is a page after this one.")


class CompactedOut(BaseModel):
    """What a compaction did."""

    compacted: bool = Field(description="Whether anything was archived.")
    reason: Literal["trigger", "fits", "no_turn_start", "conflict", "blank_summary"] | None = Field(
        description="Why nothing was compacted; null when something was."
    )
    archived: int = Field(description="Events that left the active window; they stay in the log.")
    kept: int = Field(description="Events that were active before and still are.")
    summary: list[EventOut] = Field(description="The summary turn, when one was written.")
    tokens_saved: int = Field(description="By how many tokens the active window shrank.")
    event_version: int = Field(description="The version of the session now.")


class Erased(BaseModel):
    """What was erased of a user."""

    sessions: int = Field(description="Sessions erased.")
    events: int = Field(description="Events erased with them.")
    memory_files: int = Field(description="Files of the memory store erased.")


class ToolAnswer(BaseModel):
    """What to hand back to the model."""

    content: str = Field(description="The text for the model.")
    is_error: bool = Field(description="Whether the text says what was wrong with the arguments.")


class ToolDefinitions(BaseModel):
    """Tools, in the shape that was asked for."""

    tools: list[dict[str, Any]] = Field(description="Ready to be put into a model request.")


class Health(BaseModel):
    """The process lives."""

    status: Literal["ok"] = Field(description="Always `ok`: what does not live does not answer.")


class PoolOut(BaseModel):
    """A connection pool."""

    size: int = Field(description="Connections that it may have.")
    in_use: int = Field(description="Connections that are in use.")


class Pools(RootModel[dict[str, PoolOut]]):
    """Connection pools by name."""


class Readiness(BaseModel):
    """The service can serve."""

    status: Literal["ready"] = Field(description="Always `ready`: otherwise the answer is 503.")
    pools: Pools = Field(description="The connection pools, by name.")


class MemoryFileOut(BaseModel):
    """A file of a memory store."""

    path: str = Field(description="Path from the root of the store.")
    size: int = Field(description="Bytes of UTF-8.")
    version: int = Field(description="Rises with each edit of the store.")
    updated_at: datetime = Field(description="When it was last edited.")


class MemoryFiles(BaseModel):
    """The files of a memory store."""

    items: list[MemoryFileOut] = Field(description="The files, by path.")


class DeletedFileOut(BaseModel):
    """A file of a memory store that is gone; its history is kept."""

    path: str = Field(description="The path that it had last.")
    size: int | None = Field(description="Bytes of its last content; null where that is not kept any more.")
    version: int | None = Field(description="The version of its last content, which brings it back.")
    deleted_at: datetime = Field(description="When it was deleted.")


class DeletedFiles(BaseModel):
    """The deleted files of a memory store."""

    items: list[DeletedFileOut] = Field(description="The deleted files, by path.")


class FileVersionOut(BaseModel):
    """What one edit made of a file."""

    path: str = Field(description="The path that the edit was made at; a history follows a file that is renamed.")
    version: int = Field(description="The version that the edit made.")
    size: int | None = Field(description="Bytes of UTF-8; null where the edit deleted the file, or moved it away.")
    deleted: bool = Field(description="Whether the edit left nothing at this path.")
    edited_at: datetime = Field(description="When the edit was made.")
    tool: str = Field(
        description="What made the edit: the name of a tool, or `put`, `delete`, `restore` or `archive` of this API."
    )
    session_id: str | None = Field(description="The conversation in which a model made it.")


class FileVersions(BaseModel):
    """The history of a memory file."""

    items: list[FileVersionOut] = Field(description="The versions, newest first.")


class MemoryPrompt(BaseModel):
    """What teaches a model its long-term memory."""

    prompt: str = Field(description="For the system message.")
    reminder: str | None = Field(description="To be appended where it is due.")


class TokenOut(BaseModel):
    """A token, which is shown once: the service keeps none."""

    token: str = Field(description="A JWT, to be sent as `Authorization: Bearer …`.")
    expires_at: datetime = Field(description="From then on it is 401.")


class FaultOut(BaseModel):
    """A place of a request that is wrong."""

    loc: list[str | int] = Field(
        description="The place: `body`, `query`, `path` or `header`, then the names and indices that lead to it."
    )
    msg: str = Field(description="What is wrong with it, or what to send instead.")


class Problem(BaseModel):
    """An error (RFC 9457). `type` is stable; `detail` says what to send instead."""

    type: str = Field(
        description="What went wrong, for programs.", examples=["urn:turnkeeper:problem:session-not-found"]
    )
    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What went wrong, for people, and what to send instead.")
    request_id: str = Field(description="What the log has about the request.")
    errors: list[FaultOut] | None = Field(None, description="With 422: the places that are wrong.")
    call_ids: list[str] | None = Field(None, description="Of chats: the tool calls that it is about.")


class OpenAIErrorBody(BaseModel):
    """What an error says."""

    message: str = Field(description="What went wrong, for people.")
    type: str | None = Field(None, description="The kind of error.", examples=["invalid_request_error"])
    param: str | None = Field(None, description="The first place that is wrong.")
    code: str | int | None = Field(None, description="What went wrong, for programs.", examples=["session_busy"])


class OpenAIError(BaseModel):
    """An error in OpenAI's shape; that of an upstream is passed on as it came."""

    error: OpenAIErrorBody = Field(description="What went wrong.")
