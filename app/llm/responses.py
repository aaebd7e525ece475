"""What is read from the upstream's responses beside their bodies: headers to pass on, refusals, when to try again."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from app.domain import json_values
from app.domain.errors import UpstreamFailed, UpstreamRefused

BACKOFF_SECONDS = 0.5
_WORTH_A_RETRY = frozenset({429, 500, 502, 503, 504})

# Of the upstream's headers, what a client has a use for.
_PASSED_ON = frozenset({"content-type", "retry-after", "x-request-id"})
_PASSED_ON_PREFIX = "x-ratelimit-"


def wait_before_retry(response: httpx.Response, attempt: int) -> float:
    """Seconds until the next attempt; more than is waited where another attempt makes no sense."""
    if response.status_code not in _WORTH_A_RETRY:
        return float("inf")
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else max(_seconds_until(asked), BACKOFF_SECONDS * 2**attempt)


def _seconds_until(date: str) -> float:
    """Of an HTTP date; 0 for what is none."""
    try:
        until = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return (until - datetime.now(UTC)).total_seconds() if until.tzinfo else 0.0


def refusal_of(response: httpx.Response, body: bytes) -> UpstreamFailed | UpstreamRefused:
    if response.status_code < 400:
        return UpstreamFailed(f"it answered {response.status_code}")
    return UpstreamRefused(response.status_code, _message(body), body, passed_on(response))


def _message(body: bytes) -> str:
    """What an error body says, whichever shape it has."""
    try:
        value = json_values.decode(body)
        error = value["error"] if isinstance(value, dict) and "error" in value else value
        text = error["message"] if isinstance(error, dict) else error
    except (json_values.InvalidJson, KeyError):
        text = None
    return f"The upstream LLM refused: {text}" if isinstance(text, str) and text else "The upstream LLM refused."


def passed_on(response: httpx.Response) -> dict[str, str]:
    return {
        name: value
        for name, value in response.headers.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)
    }
