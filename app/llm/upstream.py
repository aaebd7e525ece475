"""Asking the upstream LLM: one pooled client, bounded waits, few retries."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
from app.domain.observer import UNOBSERVED, Observer, UpstreamOperation
from app.domain.spans import UNTRACED, Tracer
from app.llm.attempts import Attempt, outcome_of_status
from app.llm.responses import BACKOFF_SECONDS, passed_on, refusal_of, wait_before_retry
from app.llm.sse import DONE, EventTooLarge, ServerSentEvent, split_events

log = structlog.get_logger()

_RETRIES = 2
# What an upstream asks to wait beyond this is not slept: the caller is told.
_LONGEST_WAIT_SECONDS = 10.0

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
class Completion:
    """The text of a reply, and what the upstream says that it took."""

    text: str
    usage: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAnswer:
    """`headers` are those that may be passed on."""

    body: bytes
    headers: Mapping[str, str]


class StreamedAnswer:
    """An answer whose status is known to be good and whose events come one by one."""

    def __init__(self, response: httpx.Response, attempt: Attempt, idle_timeout: float) -> None:
        self.headers = passed_on(response)
        self._response = response
        self._attempt = attempt
        self._idle_timeout = idle_timeout

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Raises UpstreamFailed when it breaks off, UpstreamTimedOut when nothing comes any more."""
        with self._attempt:
            try:
                async for event in split_events(self._pieces()):
                    if event.data is not None and event.data.strip() == DONE:
                        self._attempt.ended("ok")
                    yield event
            except (httpx.HTTPError, EventTooLarge) as error:
                raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error
        self._attempt.ended("ok")

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
    def __init__(
        self, settings: UpstreamSettings, observer: Observer = UNOBSERVED, tracer: Tracer = UNTRACED
    ) -> None:
        self._settings = settings
        self._tracer = tracer
        self._observer = observer
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

    async def complete(self, messages: Sequence[Mapping[str, Any]], *, model: str | None) -> Completion:
        """One reply, whole. Raises UpstreamNotConfigured, ModelNotAllowed, UpstreamFailed."""
        chosen = self.model_for(model)
        if chosen is None:
            raise UpstreamNotConfigured("TURNKEEPER_UPSTREAM_MODEL")
        try:
            answer = await self.chat({"model": chosen, "messages": list(messages)})
        except UpstreamRefused as error:
            raise UpstreamFailed(f"it answered {error.status}") from error
        except UpstreamTimedOut as error:
            raise UpstreamFailed("it did not answer in time") from error
        return _completion(answer.body)

    async def chat(self, body: Mapping[str, Any]) -> WholeAnswer:
        """A completion, whole. Raises UpstreamRefused, UpstreamFailed, UpstreamTimedOut, UpstreamNotConfigured."""
        return await self._whole(*await self._open("chat", "POST", "/chat/completions", body))

    @asynccontextmanager
    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[StreamedAnswer]:
        """A completion as it comes; leaving the block cancels it. Raises the same before the first event."""
        response, attempt = await self._open("chat", "POST", "/chat/completions", body)
        try:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                attempt.ended("failed")
                raise UpstreamFailed("it answered a request for a stream with something else")
            yield StreamedAnswer(response, attempt, self._settings.idle_timeout)
        finally:
            attempt.ended("abandoned")
            await response.aclose()

    async def models(self) -> WholeAnswer:
        """What the upstream says that it has."""
        return await self._whole(*await self._open("models", "GET", "/models", None))

    async def _whole(self, response: httpx.Response, attempt: Attempt) -> WholeAnswer:
        with attempt:
            answer = await self._read(response)
        attempt.ended(outcome_of_status(response.status_code))
        return answer

    async def _read(self, response: httpx.Response) -> WholeAnswer:
        try:
            async with asyncio.timeout(self._settings.idle_timeout):
                body = await response.aread()
        except TimeoutError as error:
            raise UpstreamTimedOut(self._settings.idle_timeout) from error
        except httpx.HTTPError as error:
            raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error
        finally:
            await response.aclose()
        return WholeAnswer(body=body, headers=passed_on(response))

    async def _open(
        self, operation: UpstreamOperation, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[httpx.Response, Attempt]:
        """The beginning of a good answer. Tries again only where nothing was answered yet."""
        url = self._url(path)
        content = None if body is None else json_values.encode(body).encode()
        for number in range(_RETRIES + 1):
            failure: UpstreamFailed | UpstreamRefused
            attempt = Attempt(self._observer, operation, self._tracer.upstream_call(method, url))
            try:
                with attempt:
                    response = await self._send(method, url, content, attempt.headers)
            except _CONNECTION_ERRORS as error:
                failure = UpstreamFailed(f"it cannot be reached ({type(error).__name__})")
                wait = BACKOFF_SECONDS * 2**number
            except httpx.HTTPError as error:
                raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error
            else:
                attempt.answered(response.status_code)
                if response.is_success:
                    return response, attempt
                failure = refusal_of(response, (await self._whole(response, attempt)).body)
                wait = wait_before_retry(response, number)
            if number == _RETRIES or wait > _LONGEST_WAIT_SECONDS:
                raise failure
            log.warning("upstream_retry", attempt=number + 1, reason=type(failure).__name__)
            await asyncio.sleep(wait)
        raise AssertionError("The last attempt returns or raises.")

    async def _send(self, method: str, url: str, content: bytes | None, headers: Mapping[str, str]) -> httpx.Response:
        headers = dict(headers) if content is None else {**headers, "Content-Type": "application/json"}
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


def _completion(body: bytes) -> Completion:
    try:
        value = json_values.decode(body)
        content = value["choices"][0]["message"]["content"]
    except (json_values.InvalidJson, KeyError, IndexError, TypeError) as error:
        raise UpstreamFailed("its answer is no chat completion") from error
    return Completion(text=content if isinstance(content, str) else "", usage=value.get("usage"))
