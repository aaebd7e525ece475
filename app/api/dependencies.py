"""What handlers are given, and what their routes have in common."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Request

from app.api.chat_defaults import ChatDefaults
from app.api.schemas import Id, Problem, UserId
from app.config import Settings
from app.domain.tokens import CountTokens
from app.llm.upstream import Upstream
from app.metrics import Metrics
from app.services.access_tokens import AccessTokens
from app.services.chat import Chat
from app.services.compaction import Compactor
from app.services.memories import Memories
from app.services.memory_prompts import MemoryPrompts
from app.services.service_keys import KeyRing
from app.services.sweeping import Sweeping
from app.storage.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What one application has one of."""

    db: Database
    settings: Settings
    count_tokens: CountTokens
    sweeping: Sweeping
    compactor: Compactor
    upstream: Upstream
    chat: Chat
    memories: Memories
    memory_prompts: MemoryPrompts
    chat_defaults: ChatDefaults
    metrics: Metrics
    keys: KeyRing
    access_tokens: AccessTokens


async def _services(request: Request) -> Services:  # Not a plain function: that would run in a thread.
    services: Services = request.app.state.services
    return services


Svc = Annotated[Services, Depends(_services)]
SessionId = Annotated[Id, Path(description="A session's id.", examples=["support-4711"])]
EventId = Annotated[Id, Path(description="An event's id.", examples=["msg-1"])]
OwnerId = Annotated[UserId, Path(description="A user's id.", examples=["alice"])]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document."""
    return {status: {"model": Problem, "description": _DESCRIPTIONS[status]} for status in sorted(statuses)}


_DESCRIPTIONS = {
    400: "The request is not well-formed HTTP.",
    401: "No valid credential.",
    403: "The credential does not reach this.",
    404: "There is no such thing.",
    409: "In conflict with what exists; nothing was changed.",
    412: "The version is another one; nothing was written.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The input is wrong; `errors` says where and what to send instead.",
    429: "Too many requests; try again after `Retry-After` seconds.",
    502: "The upstream LLM failed.",
    504: "The upstream LLM did not answer in time.",
    503: "Busy, or the database is away: try again after `Retry-After` seconds.",
}

COMMON = problems(401, 403, 413, 422, 429, 503)
