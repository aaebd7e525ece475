"""A client as a load balancer makes one: each request goes to the next replica, and what failed is tried again.

It retries as docs/failures.md says: after a connection that broke, a 503 and a busy session, with the same body.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

ANSWER_SECONDS = 60
_PATIENCE_SECONDS = 90
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Broken:
    """A request without an answer."""

    url: str
    began: float
    ended: float
    what: str
    error: httpx.TransportError


@dataclass
class RoundRobin:
    http: httpx.AsyncClient
    # May change at any time.
    urls: Sequence[str]
    # Answers by status and problem, and events that ended a stream by "stream" and code.
    seen: Counter[tuple[Any, str]] = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)
    # Requests that were told that there was no database, from and to.
    without_database: list[tuple[float, float]] = field(default_factory=list)
    _turn: "count[int]" = field(default_factory=count)

    def next_url(self) -> str:
        return self.urls[next(self._turn) % len(self.urls)]

    async def once(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """The answer of the next replica, None where the connection broke before there was one."""
        url, began = self.next_url(), time.monotonic()
        try:
            response = await self.http.request(method, url + path, **more)
        except httpx.TransportError as error:
            self.note_broken(url, began, f"{method} {path}", error)
            return None
        self.note(response, began)
        return response

    async def insist(self, method: str, path: str, **more: Any) -> httpx.Response:
        """An answer that is final, from whichever replica has one."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (response := await self.once(method, path, **more)) is None or is_passing(response):
            if time.monotonic() > deadline:
                raise AssertionError(f"No final answer to {method} {path}: {response and response.text}")
            await asyncio.sleep(_PAUSE_SECONDS)
        return response

    def note(self, response: httpx.Response, began: float) -> None:
        slug = slug_of(response)
        self.seen[response.status_code, slug] += 1
        if slug == "database-unavailable":
            self.without_database.append((began, time.monotonic()))

    def note_broken(self, url: str, began: float, what: str, error: httpx.TransportError) -> None:
        self.broken.append(Broken(url, began, time.monotonic(), what, error))


def is_passing(response: httpx.Response) -> bool:
    return response.status_code == 503 or slug_of(response) == "session-busy"


def slug_of(response: httpx.Response) -> str:
    """Of a problem in either shape; nothing of a good answer."""
    if response.status_code < 400:
        return ""
    body = response.json()
    if isinstance(body.get("error"), dict):
        return (body["error"].get("code") or "upstream-refused").replace("_", "-")
    return body.get("type", "").rpartition(":")[2]


@asynccontextmanager
async def round_robin(urls: Sequence[str]) -> AsyncIterator[RoundRobin]:
    # Idle connections are given up before the service does so: a request on one that it closes gets no answer.
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS, limits=limits) as http:
        yield RoundRobin(http, urls)
