"""Asking the upstream LLM: one pooled client, bounded waits, few retries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from app.domain import json_values
from app.domain.errors import ModelNotAllowed, UpstreamFailed, UpstreamNotConfigured

log = structlog.get_logger()

_RETRIES = 2
_BACKOFF_SECONDS = 0.5
# What an upstream asks to wait beyond this is not slept: the caller is told.
_LONGEST_WAIT_SECONDS = 10.0
_WORTH_A_RETRY = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Where the upstream is. `models` are those that may be used; None: any."""

    url: str | None
    api_key: str | None
    model: str | None
    models: frozenset[str] | None
    connect_timeout: float
    first_byte_timeout: float


class Upstream:
    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        timeout = httpx.Timeout(settings.first_byte_timeout, connect=settings.connect_timeout)
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._http = httpx.AsyncClient(timeout=timeout, headers=headers)

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(self, messages: Sequence[Mapping[str, Any]], *, model: str | None) -> str:
        """The text of one reply, whole. Raises UpstreamNotConfigured, ModelNotAllowed, UpstreamFailed."""
        settings = self._settings
        if settings.url is None:
            raise UpstreamNotConfigured("TURNKEEPER_UPSTREAM_URL")
        chosen = model or settings.model
        if chosen is None:
            raise UpstreamNotConfigured("TURNKEEPER_UPSTREAM_MODEL")
        if settings.models is not None and chosen not in settings.models:
            raise ModelNotAllowed(chosen, sorted(settings.models))
        response = await self._post(
            f"{settings.url.rstrip('/')}/chat/completions", {"model": chosen, "messages": list(messages)}
        )
        return _text(response)

    async def _post(self, url: str, body: Mapping[str, Any]) -> httpx.Response:
        content = json_values.encode(body)
        for attempt in range(_RETRIES + 1):
            try:
                response = await self._http.post(url, content=content, headers={"Content-Type": "application/json"})
            except httpx.ConnectError as error:
                failure = UpstreamFailed(f"it cannot be reached ({type(error).__name__})")
                wait = _BACKOFF_SECONDS * 2**attempt
            except httpx.HTTPError as error:
                raise UpstreamFailed(f"it broke off ({type(error).__name__})") from error
            else:
                if response.is_success:
                    return response
                failure = UpstreamFailed(f"it answered {response.status_code}")
                wait = _wait(response, attempt)
            if attempt == _RETRIES or wait > _LONGEST_WAIT_SECONDS:
                raise failure
            log.warning("upstream_retry", attempt=attempt + 1, reason=str(failure))
            await asyncio.sleep(wait)
        raise AssertionError("The last attempt returns or raises.")


def _wait(response: httpx.Response, attempt: int) -> float:
    """Seconds until the next attempt; more than is waited where another attempt makes no sense."""
    if response.status_code not in _WORTH_A_RETRY:
        return float("inf")
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else _BACKOFF_SECONDS * 2**attempt


def _text(response: httpx.Response) -> str:
    try:
        content = json_values.decode(response.content)["choices"][0]["message"]["content"]
    except (json_values.InvalidJson, KeyError, IndexError, TypeError) as error:
        raise UpstreamFailed("its answer is no chat completion") from error
    return content if isinstance(content, str) else ""
