"""What can go wrong, as data: `app.api.problems` decides how each looks over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class DomainError(Exception):
    """A sentence for the caller, with the value that it is about."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an input: where it is and what to send instead."""

    loc: tuple[str | int, ...]
    msg: str


class InvalidInput(DomainError):
    """The input breaks a rule; `faults` name the places."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, fault.loc))}: {fault.msg}" for fault in faults))
        self.faults = faults


class SessionNotFound(DomainError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} does not exist.")


class SessionGone(DomainError):
    """The session was deleted or expired while its log was being read."""

    def __init__(self) -> None:
        super().__init__("The session was deleted or expired while its log was being read.")


class EventNotFound(DomainError):
    def __init__(self, session_id: str, event_id: str) -> None:
        super().__init__(f"Session {session_id!r} has no event {event_id!r}.")


class ToolNotFound(DomainError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"There is no tool {name!r} here; there is {', '.join(known)}.")


class SessionExists(DomainError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} exists already; it was not changed.")


class NotOwner(DomainError):
    def __init__(self, session_id: str, user_id: str) -> None:
        super().__init__(f"Session {session_id!r} does not belong to user {user_id!r}.")


class EventConflict(DomainError):
    """Event ids that the session holds with another message."""

    def __init__(self, event_ids: Sequence[str]) -> None:
        super().__init__(
            f"Stored with another message under the same id: {', '.join(map(repr, event_ids))}. "
            "Nothing was written; send a changed message under an id of its own."
        )
        self.event_ids = tuple(event_ids)


class EventIdTaken(DomainError):
    """Another event got this id meanwhile; nothing was written."""

    def __init__(self) -> None:
        super().__init__("Another event was stored under this id meanwhile; nothing was written.")


class VersionMismatch(DomainError):
    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"The session is at event version {actual}, not {expected}; nothing was written. "
            "Read it again and decide anew."
        )
        self.actual = actual


class SystemMessagesRefused(DomainError):
    """`places` are those of the system messages in the batch, from 0."""

    def __init__(self, session_id: str, places: Sequence[int]) -> None:
        self.places = tuple(places)
        super().__init__(
            f"Session {session_id!r} does not store system messages: send instructions with each request, "
            'or create the session with "allow_system_messages": true.'
        )


class TooManyEvents(DomainError):
    """An unpaged read that would return more than `limit` events."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"More than {limit:,} events match. Read a smaller window (last_n; for a prompt max_tokens), pages "
            "(page, page_size), or any number as a stream (Accept: application/x-ndjson)."
        )


class SearchTooBroad(DomainError):
    """A scan that the statement timeout ended."""

    def __init__(self) -> None:
        super().__init__(
            "The search had to read too much and was stopped. Narrow it: a word of three or more "
            "characters, from/to, after_seq/before_seq, or fewer sessions."
        )


class Overloaded(DomainError):
    """No database connection came free in time."""

    def __init__(self) -> None:
        super().__init__("The service is busy: no database connection came free in time. Try again shortly.")


class DatabaseUnavailable(DomainError):
    """The database could not be reached, went away before it answered, or refuses what it has to do."""

    def __init__(self) -> None:
        super().__init__(
            "The database cannot be reached, or cannot do its work now. Nothing is known to be written; "
            "try again shortly."
        )


class NotMigrated(DomainError):
    def __init__(self) -> None:
        super().__init__("The database is not migrated: run `turnkeeper migrate`.")


class PlanRefused(DomainError):
    """A compaction plan that does not fit the session's active window; nothing was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The compaction plan does not fit the session: {why}")


class ServiceStopping(DomainError):
    """The service stops before an answer was whole; what there was of it is stored."""

    def __init__(self) -> None:
        super().__init__("The service is stopping and could not wait for the end of this answer: ask again.")


class UpstreamNotConfigured(DomainError):
    def __init__(self, setting: str) -> None:
        super().__init__(f"There is no upstream LLM to ask: set {setting}.")


class UpstreamFailed(DomainError):
    def __init__(self, how: str) -> None:
        super().__init__(f"The upstream LLM failed: {how}.")


class ModelNotAllowed(DomainError):
    def __init__(self, model: str, allowed: Sequence[str]) -> None:
        super().__init__(f"The model {model!r} is not allowed here; allowed are {', '.join(allowed)}.")


class SessionIdMissing(DomainError):
    def __init__(self) -> None:
        super().__init__(
            'A chat needs a session: send "session_id" in the body or the header X-Session-Id. '
            "There is no session that requests without one share."
        )


class SessionBusy(DomainError):
    """Another request has the session's turn."""

    def __init__(self, session_id: str, holder: str, since: str) -> None:
        super().__init__(
            f"Session {session_id!r} is busy: request {holder!r} has held its turn since {since}. "
            "Nothing was stored; try again when that has been answered."
        )


class TurnLost(DomainError):
    """The lease ran out before anything was stored, and another request has the turn."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"The turn of session {session_id!r} was lost to another request before anything was stored: try again."
        )


class TooManyWaiting(DomainError):
    def __init__(self, session_id: str, limit: int) -> None:
        super().__init__(f"Session {session_id!r} is busy: {limit} requests wait for its turn already.")


class ContextTooLarge(DomainError):
    """The newest turn alone is larger than the prompt may be, whatever is left out."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"The newest turn has {tokens:,} tokens, without its tool results, and at most {limit:,} may be sent "
            "(memory.max_context_tokens). Send a shorter message, or allow more."
        )


class CallAnswered(DomainError):
    """Tool results for calls that have a result already."""

    def __init__(self, call_ids: Sequence[str]) -> None:
        super().__init__(
            f"Answered already: the calls {_listed(call_ids)}. Nothing was stored; send each result once."
        )
        self.call_ids = tuple(call_ids)


class CallAbandoned(DomainError):
    """Tool results for calls that a later message has overtaken."""

    def __init__(self, call_ids: Sequence[str]) -> None:
        super().__init__(
            f"The conversation went on without the results of the calls {_listed(call_ids)}, so they can no longer "
            "be answered. Nothing was stored; ask again."
        )
        self.call_ids = tuple(call_ids)


class CallUnknown(InvalidInput):
    """Tool results for calls that nobody made."""

    def __init__(self, call_ids: Sequence[str]) -> None:
        super().__init__(
            Fault(
                ("body", "messages"),
                f"There are results for calls that this conversation does not hold: {_listed(call_ids)}. "
                "Send the assistant message with the calls before them, or a result for a call that is open.",
            )
        )
        self.call_ids = tuple(call_ids)


class CallsUnanswered(InvalidInput):
    """Some calls of a message are answered and others are not."""

    def __init__(self, call_ids: Sequence[str]) -> None:
        super().__init__(
            Fault(
                ("body", "messages"),
                f"The calls {_listed(call_ids)} have no result. Send the results of all calls of a message together, "
                "directly after it.",
            )
        )
        self.call_ids = tuple(call_ids)


class UpstreamTimedOut(DomainError):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"The upstream LLM did not answer within {seconds:g} seconds.")


class UpstreamRefused(DomainError):
    """The upstream answered with an error, which is passed on: `body` as it came, `headers` that may come back."""

    def __init__(self, status: int, message: str, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.headers = headers


def _listed(call_ids: Sequence[str]) -> str:
    return ", ".join(repr(call_id) for call_id in call_ids)


class MemoryRefused(DomainError):
    """An edit or a view of a memory that cannot be; the sentence says what to do instead."""


class FileNotFound(DomainError):
    def __init__(self, path: str, *, is_directory: bool = False) -> None:
        if is_directory:
            super().__init__(f"{path} is a directory: list the files below it, and name one of them.")
        else:
            super().__init__(f"The memory has no {path!r}: list its files to see what there is.")


class FileVersionNotFound(DomainError):
    def __init__(self, path: str, version: int) -> None:
        super().__init__(
            f"No version {version} of {path!r} is kept in which it had a content: list its versions to see which are."
        )


class FileVersionMismatch(DomainError):
    """`actual` is the file's version; None: there is no such file."""

    def __init__(self, actual: int | None) -> None:
        stands = "does not exist" if actual is None else f"is at version {actual}"
        super().__init__(
            f"The file {stands}, which is not what the request asks for; nothing was written. Read it again and "
            "decide anew."
        )
        self.actual = actual


class Unauthorized(DomainError):
    """No credential, or one that is not valid (any more)."""


class NotYours(DomainError):
    """The credential is bound to another user, or to one session."""


class ScopeMissing(DomainError):
    def __init__(self, scope: str, scopes: Sequence[str]) -> None:
        super().__init__(f"This token has the scopes {', '.join(scopes)}: this needs {scope!r}.")


class ServiceKeyNeeded(DomainError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} with a service key only.")


class TokensNotConfigured(DomainError):
    def __init__(self) -> None:
        super().__init__("Tokens are signed with TURNKEEPER_TOKEN_SECRET, and none is set.")
