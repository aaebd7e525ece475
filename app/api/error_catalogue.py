"""Every problem type with its meaning and what to do about it: docs/errors.md is made from it."""

from collections.abc import Mapping
from typing import NamedTuple

from app.api import openai_errors
from app.api.problems import PROBLEMS, SLUG_OF_STATUS, TYPE_PREFIX


class Meaning(NamedTuple):
    when: str
    what_to_do: str


_REPAIR = "Send what the sentence asks for; the same again fails again."
_AGAIN = "Try again after `Retry-After` seconds."

MEANINGS: Mapping[str, Meaning] = {
    "bad-request": Meaning("The body broke off before its end.", "Send it whole."),
    "session-id-missing": Meaning(
        "A chat names no session.", "Send `session_id` in the body or the header `X-Session-Id`."
    ),
    "unauthorized": Meaning("There is no credential, or none that is valid.", "Send `Authorization: Bearer …`."),
    "rate-limited": Meaning("The credential asks more often than `TURNKEEPER_RATE_LIMIT` allows.", _AGAIN),
    "forbidden": Meaning(
        "The token is bound to another user or to one session, or a web page of another origin asks.",
        "Use a token for what is asked for.",
    ),
    "scope-missing": Meaning("The token lacks the scope that this needs.", "Make one that has it."),
    "service-key-needed": Meaning("A token was sent for what only service keys may do.", "Send a service key."),
    "not-owner": Meaning("The session belongs to another user than the request names.", "Check `user_id`."),
    "tokens-not-configured": Meaning(
        "The service signs no tokens.", "Set `TURNKEEPER_TOKEN_SECRET`, or send a service key."
    ),
    "not-found": Meaning("There is nothing at this path.", "See `/docs`; look for a `/` too many."),
    "session-not-found": Meaning(
        "There is no session of this id, or no longer: it was deleted or has expired.",
        "Create it, or append with `user_id`, which does.",
    ),
    "event-not-found": Meaning("The session has no event of this id.", "Read the session's events."),
    "tool-not-found": Meaning("There is no tool of this name at this path.", "Use one that the sentence lists."),
    "file-not-found": Meaning("The memory store has no such file.", "List the files."),
    "file-version-not-found": Meaning(
        "This version of the file is not kept, or the file was deleted in it.", "List the file's versions."
    ),
    "method-not-allowed": Meaning("The path does not take this method.", "Use one of the header `Allow`."),
    "session-exists": Meaning(
        "A session of this id exists; it was not changed.", "Use `PUT`, which finds or creates."
    ),
    "event-conflict": Meaning(
        "An event of this id is stored with another message; nothing of the batch was written.",
        "Send a changed message under an id of its own.",
    ),
    "session-busy": Meaning(
        "Another chat has the session's turn, and the time or the places to wait ran out; nothing was stored.",
        "Try again when the other has been answered.",
    ),
    "call-answered": Meaning(
        "A tool result is for a call that has one; nothing was stored. `call_ids` lists the calls.",
        "Send each result once.",
    ),
    "call-abandoned": Meaning(
        "The conversation went on without the result of a call; nothing was stored. `call_ids` lists the calls.",
        "Ask again.",
    ),
    "plan-refused": Meaning(
        "What a compaction wants to archive is not in the active window; nothing was changed.", "Compact again."
    ),
    "version-mismatch": Meaning(
        "`If-Match` or `If-None-Match` does not hold; nothing was written.", "Read again and decide anew."
    ),
    "body-too-large": Meaning(
        "The body is over `TURNKEEPER_MAX_BODY_BYTES`; an archive of a memory store, over what a full one takes.",
        "Send several smaller batches.",
    ),
    "context-too-large": Meaning(
        "The newest turn alone is over `max_context_tokens`; nothing was stored.",
        "Send a shorter message, or allow more.",
    ),
    "unsupported-media-type": Meaning("The body is not JSON.", "Send `Content-Type: application/json`."),
    "wrong-host": Meaning("The service does not answer for this `Host`.", "Set `TURNKEEPER_ALLOWED_HOSTS`."),
    "invalid-request": Meaning("The input breaks a rule; `errors` names each place and what belongs there.", _REPAIR),
    "call-unknown": Meaning(
        "A tool result is for a call that the conversation does not hold. `call_ids` lists the calls.",
        "Send the assistant message with the call before it.",
    ),
    "calls-unanswered": Meaning(
        "Some calls of a message have a result and others have none. `call_ids` lists those without.",
        "Send all results of a message together.",
    ),
    "system-messages-refused": Meaning(
        "The session does not store system messages.",
        'Send instructions with each request, or create the session with `"allow_system_messages": true`.',
    ),
    "too-many-events": Meaning(
        "More events match than fit one answer.", "Read a window, pages, or a stream: `Accept: application/x-ndjson`."
    ),
    "search-too-broad": Meaning(
        "The search had to read more than `TURNKEEPER_STATEMENT_TIMEOUT_MS` allows.",
        "Search a word of three or more characters, a shorter time, or one session.",
    ),
    "memory-refused": Meaning("The memory file or archive cannot be stored or read so.", _REPAIR),
    "model-not-allowed": Meaning("The model is not among `TURNKEEPER_UPSTREAM_MODELS`.", "Use one that is."),
    "internal-error": Meaning(
        "A fault of the service.", "Look for the `request_id` in the log; report what you find there."
    ),
    "upstream-refused": Meaning(
        "The LLM answered with an error; status, words, `Retry-After` and `x-ratelimit-*` are the LLM's.",
        "As its provider says; the question is stored and is not stored again.",
    ),
    "upstream-failed": Meaning(
        "The LLM could not be reached or its answer could not be used.",
        "Ask again: the question is stored and is not stored again.",
    ),
    "not-migrated": Meaning("The database is not at the newest revision.", "Run `turnkeeper migrate`."),
    "upstream-not-configured": Meaning("There is no LLM to ask.", "Set `TURNKEEPER_UPSTREAM_URL`."),
    "service-stopping": Meaning("The service stops before the answer was whole.", "Ask again, of another replica."),
    "overloaded": Meaning("No database connection came free in time.", _AGAIN),
    "database-unavailable": Meaning(
        "The database cannot be reached, went away before it answered, or takes no writes: a standby, a full disk.",
        f"{_AGAIN} Events that have ids of yours are not stored twice.",
    ),
    "upstream-timed-out": Meaning(
        "The LLM did not begin to answer, or paused for too long.",
        "Ask again, or raise `TURNKEEPER_UPSTREAM_FIRST_BYTE_TIMEOUT_SECONDS`.",
    ),
}

# `error.type` of OpenAI's shape by status, and what its SDK for Python raises.
_EXCEPTIONS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    413: "APIStatusError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
}

_HEAD = """\
# Errors

Every error is an `application/problem+json` document (RFC 9457): `type`, `title`, `status`, `detail`,
`request_id`. Programs decide by `type`, which is stable; `detail` is a sentence for people that says what to
send instead. `request_id` is in the log of the service, and in the header `X-Request-Id` of every answer. A
422 has `errors`, a list of `{loc, msg}`. A 503 has the header `Retry-After`.

This page is made from the code.

| type | status | when | what to do |
|---|---|---|---|
"""

_TAIL = """
## Where OpenAI's SDKs call

`/v1/chat/completions`, `/v1/models` and the other paths of OpenAI's API answer `{{"error": {{"message",
"type", "param", "code", "request_id"}}}}`. `code` is the end of the type above with `_` for `-`, such as
`session_busy`; `param` is the first of the wrong places.

| status | `error.type` | the SDK for Python raises |
|---|---|---|
{rows}

The SDKs try 408, 409, 429 and 5xx again by themselves, which is safe: a question is stored once.

## Where MCP clients call

`/mcp` answers `{{"jsonrpc": "2.0", "id": null, "error": {{"code", "message", "data"}}}}` with the
same statuses: `code` is -32600, for 5xx -32603, for what is no JSON -32700; `data` is the problem document.

## Elsewhere

- **In a stream** that has begun, an error is an event `data: {{"error": {{"message", "type", "param",
  "code"}}}}`, and there is no `[DONE]` behind it. A stream of lines (`application/x-ndjson`) breaks off: the
  connection ends without the last chunk, which clients report.
- **Tools** (`…/tools/{{name}}`) answer 200 with `{{"content", "is_error": true}}` where a model's arguments
  are wrong: the sentence is for the model.
- **What is no HTTP** gets a 400 in plain text from the server before the service sees it.
"""


def errors_page() -> str:
    """The reference of all errors, in Markdown."""
    rows = "\n".join(_row(status, slug) for status, slug in problem_types())
    return f"{_HEAD}{rows}\n{_TAIL.format(rows=_openai_rows())}"


def problem_types() -> list[tuple[int, str]]:
    """Status and slug of all that can be answered, by status."""
    return sorted({*SLUG_OF_STATUS.items(), *PROBLEMS.values()})


def _row(status: int, slug: str) -> str:
    answered = "the LLM's" if slug == "upstream-refused" else status
    return f"| `{TYPE_PREFIX}{slug}` | {answered} | {' | '.join(MEANINGS[slug])} |"


def _openai_rows() -> str:
    return "\n".join(
        f"| {status if status < 500 else '5xx'} | `{openai_errors.type_of(status)}` | `{exception}` |"
        for status, exception in _EXCEPTIONS.items()
    )
