"""Tokens over HTTP: what a service hands to a client of one user, or of one session."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api import schemas
from app.api.access import requires
from app.api.dependencies import COMMON, Svc, problems
from app.api.schemas import Id, UserId
from app.api.wire import JsonResponse, JsonRoute
from app.domain.credentials import Scope
from app.domain.errors import Fault, InvalidInput
from app.services.access_tokens import DEFAULT_TTL_SECONDS, MAX_TTL_SECONDS

router = APIRouter(prefix="/v1", tags=["credentials"], route_class=JsonRoute, responses=COMMON)


class TokenRequest(BaseModel):
    """Whom or what a token is for, and what it may do."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user_id: UserId | None = Field(
        None, description="For this user: all of the user's sessions, search and memory store.", examples=["alice"]
    )
    session_id: Id | None = Field(None, description="For this session alone, and its owner's memory store.")
    scopes: list[Scope] = Field(
        min_length=1,
        max_length=20,
        description="What it may do; see `docs/credentials.md`.",
        examples=[["read", "chat"]],
    )
    ttl_seconds: int = Field(
        DEFAULT_TTL_SECONDS, ge=1, le=MAX_TTL_SECONDS, description="How long it is valid, at most 30 days."
    )


@router.post("/tokens", status_code=201, response_model=schemas.TokenOut, responses=problems(404, 415))
@requires("service_key")
async def create_token(body: TokenRequest, svc: Svc) -> Response:
    """Make a token for a client of one user or session.

    Name one of the two. A user's is void once the user is erased, a session's once the session is deleted or has
    expired.
    """
    if body.user_id is not None and body.session_id is None:
        made = await svc.access_tokens.for_user(body.user_id, body.scopes, body.ttl_seconds)
    elif body.session_id is not None and body.user_id is None:
        made = await svc.access_tokens.for_session(body.session_id, body.scopes, body.ttl_seconds)
    else:
        raise InvalidInput(Fault(("body", "user_id"), "Name either user_id or session_id."))
    token, expires_at = made
    return JsonResponse({"token": token, "expires_at": expires_at}, 201)
