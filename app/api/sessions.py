"""Sessions over HTTP."""

import base64
import binascii
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from uuid_utils import uuid7

from app.api import render, schemas
from app.api.access import Caller, requires
from app.api.dependencies import COMMON, SessionId, Svc, problems
from app.api.schemas import SessionCreate, SessionPatch, UserId
from app.api.wire import JsonResponse, JsonRoute
from app.config import Settings
from app.domain import json_values
from app.domain.errors import Fault, InvalidInput, NotOwner
from app.domain.instants import parse_instant
from app.domain.sessions import Lifetime, NewSession, Session, merge_patch
from app.storage import sessions

router = APIRouter(prefix="/v1", tags=["sessions"], route_class=JsonRoute, responses=COMMON)


@router.post("/sessions", status_code=201, response_model=schemas.SessionOut, responses=problems(409, 415))
@requires("write")
async def create_session(body: SessionCreate, svc: Svc, caller: Caller) -> Response:
    """Create a session.

    An id that exists already is 409 and leaves that session untouched; `ensure_session` finds it instead.
    """
    caller.check_all_of_user(body.user_id)
    new = new_session(body.id or str(uuid7()), body, svc.settings)
    async with svc.db.transaction() as connection:
        return _rendered(await sessions.create(connection, new), 201)


@router.put(
    "/sessions/{session_id}",
    response_model=schemas.SessionOut,
    responses={201: {"model": schemas.SessionOut, "description": "Created."}, **problems(403, 415)},
)
@requires("write", creates_session=True)
async def ensure_session(session_id: SessionId, body: SessionCreate, svc: Svc, caller: Caller) -> Response:
    """Create a session, or find it.

    One that exists is answered unchanged, with 200, whatever else the body says; another user's is 403.
    """
    if body.id not in {None, session_id}:
        raise InvalidInput(Fault(("body", "id"), f"The path names the session {session_id!r}; leave the id out."))
    caller.check_owner(body.user_id)
    new = new_session(session_id, body, svc.settings)
    async with svc.db.transaction() as connection:
        session, created = await sessions.ensure(connection, new)
    if session.user_id != body.user_id:
        raise NotOwner(session_id, body.user_id)
    return _rendered(session, 201 if created else 200)


@router.get("/sessions/{session_id}", response_model=schemas.SessionOut, responses=problems(404))
@requires("read")
async def get_session(session_id: SessionId, svc: Svc) -> Response:
    """Get a session.

    Its `ETag` is the event version, which an append can demand with `If-Match`.
    """
    async with svc.db.autocommit() as connection:
        return _rendered(await sessions.get(connection, session_id), 200)


@router.get("/sessions", response_model=schemas.SessionList)
@requires("read")
async def list_sessions(
    svc: Svc,
    caller: Caller,
    user_id: Annotated[UserId | None, Query(description="Only this user's; without: everybody's.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Sessions in a page.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Response:
    """List sessions, newest first.

    Pages are followed by `next_cursor`: a session created meanwhile neither shifts them nor is listed twice.
    """
    if user_id is None:
        caller.check_service_key("Without `user_id` this lists everybody's sessions, which is done")
    else:
        caller.check_all_of_user(user_id)
    before = None if cursor is None else _place(cursor)
    async with svc.db.autocommit() as connection:
        found = await sessions.newest(connection, user_id=user_id, limit=limit + 1, before=before)
    items = found[:limit]
    return JsonResponse(
        {
            "items": [render.session(session) for session in items],
            "next_cursor": _cursor(items[-1]) if len(found) > limit else None,
        }
    )


@router.patch("/sessions/{session_id}", response_model=schemas.SessionOut, responses=problems(404, 415))
@requires("write")
async def update_session(session_id: SessionId, body: SessionPatch, svc: Svc) -> Response:
    """Change metadata or lifetime.

    The metadata are merged into those that there are, a lifetime counts from now. Log and version stay as they are.
    """
    lifetime = _lifetime(body, default=None)
    async with svc.db.transaction() as connection:
        session = await sessions.lock(connection, session_id)
        metadata = json_values.decode(session.metadata_json)
        if "metadata" in body.model_fields_set:
            metadata = merge_patch(metadata, body.metadata) or {}  # Null replaces the whole by nothing.
        updated = await sessions.update(connection, session, metadata=metadata, lifetime=lifetime)
    return _rendered(updated, 200)


@router.delete("/sessions/{session_id}", status_code=204, responses=problems(404))
@requires("write")
async def delete_session(session_id: SessionId, svc: Svc) -> Response:
    """Delete a session with its log.

    It is gone at once, everywhere; its id can be created anew, as another session.
    """
    async with svc.db.autocommit() as connection:
        await sessions.delete(connection, session_id)
    svc.sweeping.wake()
    return Response(status_code=204)


def new_session(session_id: str, body: SessionCreate, settings: Settings) -> NewSession:
    lifetime = _lifetime(body, default=Lifetime(ttl_seconds=settings.default_ttl_seconds))
    allowed = body.allow_system_messages
    return NewSession(
        id=session_id,
        user_id=body.user_id,
        lifetime=lifetime or Lifetime(),
        ttl_sliding=body.ttl_sliding,
        allow_system_messages=settings.allow_system_messages if allowed is None else allowed,
        metadata=body.metadata,
    )


def _lifetime(body: SessionCreate | SessionPatch, default: Lifetime | None) -> Lifetime | None:
    if body.ttl_seconds is not None and "expires_at" in body.model_fields_set:
        raise InvalidInput(Fault(("body", "expires_at"), "Send ttl_seconds or expires_at, not both."))
    if body.ttl_seconds is not None:
        return Lifetime(ttl_seconds=body.ttl_seconds)
    if "expires_at" in body.model_fields_set:
        return Lifetime(expires_at=body.expires_at)
    return default


def _rendered(session: Session, status: int) -> Response:
    return JsonResponse(render.session(session), status, {"ETag": f'"{session.event_version}"'})


def _cursor(session: Session) -> str:
    place = f"{session.created_at.isoformat()} {session.id}"
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[datetime, str]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        instant, _, session_id = base64.b64decode(padded, b"-_", validate=True).decode().partition(" ")
        return parse_instant(instant), schemas.checked_id(session_id)
    except (ValueError, binascii.Error):
        fault = Fault(
            ("query", "cursor"), "Send next_cursor of the page before as it was, or none for the first page."
        )
        raise InvalidInput(fault) from None
