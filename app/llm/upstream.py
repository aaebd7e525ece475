"""Asking the upstream LLM: one pooled client, bounded waits, few retries."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import structlog

from app.domain import json_values
from app.domain.errors import (
    ModelNotAllowed,
    UpstreamFailed,
    UpstreamNotConfigured,
    UpstreamRefused,
    UpstreamTimedOut,
)
from app.llm.sse import EventTooLarge, ServerSentEvent, split_events

log = structlog.get_logger()

_RETRIES = 2
_BACKOFF_SECONDS = 0.5
# What an upstream asks to wait beyond this is not slept: the caller is told.
_LONGEST_WAIT_SECONDS = 10.0
_WORTH_A_RETRY = frozenset({429, 500, 502, 503, 504})

# Of the upstream's headers, what a client has a use for.
_PASSED_ON = frozenset({"content-type", "retry-after", "x-request-id"})
_PASSED_ON_PREFIX = "x-ratelimit-"

# A pool that many slow answers at a time do not exhaust.
_LIMITS = httpx.Limits(max_connections=1_000, max_keepalive_connections=100)

# Before anything was answered; a failure to read then is a connection that the other side had closed.
_CONNECTION_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.RemoteProtocolError,
    httpx.ReadError,
    httpx.WriteError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Where the upstream is. `models` are those that may be used; None: any. Timeouts are in seconds."""

    url: str | None
    api_key: str | None
    model: str | None
    models: frozenset[str] | None
    connect_timeout: float
    first_byte_timeout: float
    idle_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAnswer:
    """`headers` are those that may be passed on."""

    body: bytes
    headers: Mapping[str, str]


class StreamedAnswer:
    """An answer whose status is known to be good and whose events come one by one."""

    def __init__(self, response: httpx.Response, idle_timeout: float) -> None:
        self.headers = _passed_on(response)
        self._response = response
        self._idle_timeout = idle_timeout

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Raises UpstreamFailed when it breaks off, UpstreamTimedOut when nothing comes any more."""
        try:
            async for event in split_events(self._pieces()):
                yield event
        except (httpx.HTTPError, EventTooLarge) as error:
            raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error

    async def _pieces(self) -> AsyncIterator[bytes]:
        pieces = self._response.aiter_bytes()
        while True:
            try:
                async with asyncio.timeout(self._idle_timeout):
                    piece = await anext(pieces, None)
            except TimeoutError as error:
                raise UpstreamTimedOut(self._idle_timeout) from error
            if piece is None:
                return
            yield piece


class Upstream:
    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        timeout = httpx.Timeout(None, connect=settings.connect_timeout, pool=settings.connect_timeout)
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._http = httpx.AsyncClient(timeout=timeout, headers=headers, limits=_LIMITS)

    async def close(self) -> None:
        await self._http.aclose()

    def model_for(self, named: str | None) -> str | None:
        """The model to ask for: that of a request, else of the settings, else the upstream's own default.

        Raises UpstreamNotConfigured, ModelNotAllowed.
        """
        self._url("")
        chosen = named or self._settings.model
        allowed = self._settings.models
        if allowed is not None and chosen not in allowed:
            raise ModelNotAllowed(chosen or "", sorted(allowed))
        return chosen

    async def complete(self, messages: Sequence[Mapping[str, Any]], *, model: str | None) -> str:
        """The text of one reply, whole. Raises UpstreamNotConfigured, ModelNotAllowed, UpstreamFailed."""
        chosen = self.model_for(model)
        if chosen is None:
            raise UpstreamNotConfigured("TURNKEEPER_UPSTREAM_MODEL")
        try:
            answer = await self.chat({"model": chosen, "messages": list(messages)})
        except UpstreamRefused as error:
            raise UpstreamFailed(f"it answered {error.status}") from error
        except UpstreamTimedOut as error:
            raise UpstreamFailed("it did not answer in time") from error
        return _text(answer.body)

    async def chat(self, body: Mapping[str, Any]) -> WholeAnswer:
        """A completion, whole. Raises UpstreamRefused, UpstreamFailed, UpstreamTimedOut, UpstreamNotConfigured."""
        response = await self._open("POST", "/chat/completions", body)
        return await self._whole(response)

    @asynccontextmanager
    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[StreamedAnswer]:
        """A completion as it comes; leaving the block cancels it. Raises the same before the first event."""
        response = await self._open("POST", "/chat/completions", body)
        try:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise UpstreamFailed("it answered a request for a stream with something else")
            yield StreamedAnswer(response, self._settings.idle_timeout)
        finally:
            await response.aclose()

    async def models(self) -> WholeAnswer:
        """What the upstream says that it has."""
        return await self._whole(await self._open("GET", "/models", None))

    async def _whole(self, response: httpx.Response) -> WholeAnswer:
        try:
            async with asyncio.timeout(self._settings.idle_timeout):
                body = await response.aread()
        except TimeoutError as error:
            raise UpstreamTimedOut(self._settings.idle_timeout) from error
        except httpx.HTTPError as error:
            raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error
        finally:
            await response.aclose()
        return WholeAnswer(body=body, headers=_passed_on(response))

    async def _open(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """The beginning of a good answer. Tries again only where nothing was answered yet."""
        url = self._url(path)
        content = None if body is None else json_values.encode(body).encode()
        for attempt in range(_RETRIES + 1):
            failure: UpstreamFailed | UpstreamRefused
            try:
                response = await self._send(method, url, content)
            except _CONNECTION_ERRORS as error:
                failure = UpstreamFailed(f"it cannot be reached ({type(error).__name__})")
                wait = _BACKOFF_SECONDS * 2**attempt
            except httpx.HTTPError as error:
                raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error
            else:
                if response.is_success:
                    return response
                failure = _refusal(response, (await self._whole(response)).body)
                wait = _wait(response, attempt)
            if attempt == _RETRIES or wait > _LONGEST_WAIT_SECONDS:
                raise failure
            log.warning("upstream_retry", attempt=attempt + 1, reason=type(failure).__name__)
            await asyncio.sleep(wait)
        raise AssertionError("The last attempt returns or raises.")

    async def _send(self, method: str, url: str, content: bytes | None) -> httpx.Response:
        headers = {} if content is None else {"Content-Type": "application/json"}
        request = self._http.build_request(method, url, content=content, headers=headers)
        patience = self._settings.first_byte_timeout
        try:
            async with asyncio.timeout(patience):
                return await self._http.send(request, stream=True)
        except TimeoutError as error:
            raise UpstreamTimedOut(patience) from error

    def _url(self, path: str) -> str:
        if self._settings.url is None:
            raise UpstreamNotConfigured("TURNKEEPER_UPSTREAM_URL")
        return self._settings.url.rstrip("/") + path


def _wait(response: httpx.Response, attempt: int) -> float:
    """Seconds until the next attempt; more than is waited where another attempt makes no sense."""
    if response.status_code not in _WORTH_A_RETRY:
        return float("inf")
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else max(_seconds_until(asked), _BACKOFF_SECONDS * 2**attempt)


def _seconds_until(date: str) -> float:
    """Of an HTTP date; 0 for what is none."""
    try:
        until = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return (until - datetime.now(UTC)).total_seconds() if until.tzinfo else 0.0


def _refusal(response: httpx.Response, body: bytes) -> UpstreamFailed | UpstreamRefused:
    if response.status_code < 400:
        return UpstreamFailed(f"it answered {response.status_code}")
    return UpstreamRefused(response.status_code, _message(body), body, _passed_on(response))


def _message(body: bytes) -> str:
    """What an error body says, whichever shape it has."""
    try:
        value = json_values.decode(body)
        error = value["error"] if isinstance(value, dict) and "error" in value else value
        text = error["message"] if isinstance(error, dict) else error
    except (json_values.InvalidJson, KeyError):
        text = None
    return f"The upstream LLM refused: {text}" if isinstance(text, str) and text else "The upstream LLM refused."


def _passed_on(response: httpx.Response) -> dict[str, str]:
    return {
        name: value
        for name, value in response.headers.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)
    }


def _text(body: bytes) -> str:
    try:
        content = json_values.decode(body)["choices"][0]["message"]["content"]
    except (json_values.InvalidJson, KeyError, IndexError, TypeError) as error:
        raise UpstreamFailed("its answer is no chat completion") from error
    return content if isinstance(content, str) else ""
