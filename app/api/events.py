"""Events over HTTP: append, read, and the prompt that a session makes."""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from uuid_utils import uuid7

from app.api import render, schemas
from app.api.access import Caller, requires
from app.api.dependencies import COMMON, EventId, OwnerId, Services, SessionId, Svc, problems
from app.api.schemas import AppendRequest, ContextQuery, EventCreate, FilterBody, FilterQuery, SessionCreate
from app.api.sessions import new_session
from app.api.wire import NDJSON, JsonResponse, JsonRoute, ndjson, wants_ndjson
from app.domain.context import build_context
from app.domain.errors import Fault, InvalidInput
from app.domain.events import Event, NewEvent
from app.domain.filters import ACTIVE, EventFilter
from app.domain.readings import SessionReading
from app.services.append import append_events as append
from app.services.append import counted
from app.storage import reads, scans

router = APIRouter(prefix="/v1", tags=["events"], route_class=JsonRoute, responses=COMMON)

_STREAM = {"content": {NDJSON: {"schema": {"type": "string", "description": "One event a line."}}}}

IfMatch = Annotated[
    str | None, Header(alias="If-Match", description='The event version that must still hold, such as `"7"`.')
]


@router.post(
    "/sessions/{session_id}/events",
    status_code=201,
    response_model=schemas.Appended,
    responses={
        200: {"model": schemas.Appended, "description": "All of the batch was in the log already."},
        **problems(403, 404, 409, 412, 415),
    },
)
@requires("write", creates_session=True)
async def append_events(
    session_id: SessionId, body: AppendRequest, svc: Svc, caller: Caller, if_match: IfMatch = None
) -> Response:
    """Append messages to a session.

    The batch is appended whole or not at all, in its order. An event whose id the log holds with an equal message
    is a replay: it is not written again. With `user_id` the session is created when there is none.
    """
    if faults := body.faults():
        raise InvalidInput(*faults)
    expected = _expected_version(if_match)
    if any(event.synthetic for event in body.events):
        caller.check_service_key("`synthetic` hides words from recall: it is set")
    if body.user_id is not None:
        caller.check_owner(body.user_id)
    create_as = None
    if body.user_id is not None and caller.session_id is None:  # The session of a session's token exists.
        create_as = new_session(session_id, SessionCreate(user_id=body.user_id), svc.settings)
    appended = await append(
        svc.db,
        session_id,
        await _new_events(body.events, svc),
        named=any(event.id is not None for event in body.events),
        create_as=create_as,
        owner=body.user_id or caller.user_id,  # A token's session may be gone by now, and its id another user's.
        expected_version=expected,
    )
    status = 201 if appended.appended else 200
    return JsonResponse(render.appended(appended), status, {"ETag": f'"{appended.event_version}"'})


@router.get(
    "/sessions/{session_id}/events",
    response_model=schemas.SessionEventPage,
    responses={200: _STREAM, **problems(404)},
)
@requires("read")
async def list_events(
    session_id: SessionId, query: Annotated[FilterQuery, Query()], request: Request, svc: Svc
) -> Response:
    """List the events of a session.

    They are those that match the filter, in the order of the log, archived ones included unless it excludes them.
    With `Accept: application/x-ndjson` any number is streamed, one event a line.
    """
    return await _read_session(svc, session_id, query.to_filter(), as_stream=wants_ndjson(request))


@router.post(
    "/sessions/{session_id}/events/query",
    response_model=schemas.SessionEventPage,
    responses={200: _STREAM, **problems(404, 415)},
)
@requires("read")
async def query_events(session_id: SessionId, body: FilterBody, request: Request, svc: Svc) -> Response:
    """List the events of a session by a filter in the body.

    The same as `list_events`, for filters that are too long for a URL.
    """
    return await _read_session(svc, session_id, body.to_filter(), as_stream=wants_ndjson(request))


@router.get("/sessions/{session_id}/events/{event_id}", response_model=schemas.EventOut, responses=problems(404))
@requires("read")
async def get_event(session_id: SessionId, event_id: EventId, svc: Svc) -> Response:
    """Get an event.

    Archived events are there like any other.
    """
    async with svc.db.reading() as connection:
        return JsonResponse(render.event(await reads.get_event(connection, session_id, event_id)))


@router.get("/users/{user_id}/events", response_model=schemas.EventPage, responses={200: _STREAM}, tags=["users"])
@requires("read")
async def list_user_events(
    user_id: OwnerId, query: Annotated[FilterQuery, Query()], request: Request, svc: Svc
) -> Response:
    """List the events of all sessions of a user.

    Their order is by timestamp, session id and `seq`. Windows are not extended to whole turns here.
    """
    return await _read_user(svc, user_id, query.to_filter(), as_stream=wants_ndjson(request))


@router.post(
    "/users/{user_id}/events/query",
    response_model=schemas.EventPage,
    responses={200: _STREAM, **problems(415)},
    tags=["users"],
)
@requires("read")
async def query_user_events(user_id: OwnerId, body: FilterBody, request: Request, svc: Svc) -> Response:
    """List the events of all sessions of a user by a filter in the body.

    The same as `list_user_events`, for filters that are too long for a URL.
    """
    return await _read_user(svc, user_id, body.to_filter(), as_stream=wants_ndjson(request))


@router.get("/sessions/{session_id}/context", response_model=schemas.ContextOut, responses=problems(404))
@requires("read")
async def get_context(session_id: SessionId, query: Annotated[ContextQuery, Query()], svc: Svc) -> Response:
    """Read the active window as a prompt.

    Any provider accepts it: the latest stored system message comes first, and a tool call without its results is left
    out. `max_tokens` keeps the newest whole turns that fit (system message not counted), always at least the newest
    turn.
    """
    event_filter = query.to_filter().merge(ACTIVE)
    if query.max_tokens is not None and event_filter.last_n is None and event_filter.page_size is None:
        reading = await scans.read_newest_tokens(svc.db, session_id, event_filter, query.max_tokens)
    else:
        reading = await _session_reading(svc, session_id, event_filter, with_system=True)
    context = build_context(
        reading.events,
        system=reading.system if "system" in (event_filter.types or {"system"}) else None,
        max_tokens=query.max_tokens,
    )
    return JsonResponse(
        {
            "messages": context.messages,
            "event_ids": context.event_ids,
            "event_version": reading.event_version,
            "tokens": context.tokens,
            "total_tokens": reading.active_token_count,
        }
    )


async def _read_session(svc: Services, session_id: str, f: EventFilter, *, as_stream: bool) -> Response:
    if as_stream and f.page_size is None:  # A page is bounded anyway.
        return await ndjson(_rendered(scans.stream_session(svc.db, session_id, f)))
    reading = await _session_reading(svc, session_id, f)
    if as_stream:
        return await ndjson(_rendered(_once(reading.events)))
    return JsonResponse(render.reading(reading, f), headers={"ETag": f'"{reading.event_version}"'})


async def _session_reading(
    svc: Services, session_id: str, f: EventFilter, *, with_system: bool = False
) -> SessionReading:
    if f.pattern is not None:
        return await scans.search_session(svc.db, session_id, f)
    async with svc.db.reading() if f.is_bounded else svc.db.searching() as connection:
        return await reads.read_session(connection, session_id, f, with_system=with_system)


async def _read_user(svc: Services, user_id: str, f: EventFilter, *, as_stream: bool) -> Response:
    if as_stream and f.page_size is None:
        return await ndjson(_rendered(scans.stream_user(svc.db, user_id, f)))
    if f.pattern is not None:
        reading = await scans.search_user(svc.db, user_id, f)
    else:
        async with svc.db.searching() as connection:
            reading = await reads.read_user(connection, user_id, f)
    if as_stream:
        return await ndjson(_rendered(_once(reading.events)))
    return JsonResponse(render.reading(reading, f))


async def _rendered(batches: AsyncIterator[list[Event]]) -> AsyncIterator[list[Mapping[str, Any]]]:
    async for batch in batches:
        yield [render.event(event) for event in batch]


async def _once(events: list[Event]) -> AsyncIterator[list[Event]]:
    yield events


async def _new_events(created: list[EventCreate], svc: Services) -> list[NewEvent]:
    tokens = await counted(svc.count_tokens, [event.message for event in created])
    return [_new_event(event, count) for event, count in zip(created, tokens, strict=True)]


def _new_event(created: EventCreate, tokens: int) -> NewEvent:
    return NewEvent(
        id=created.id or str(uuid7()),
        message=created.message,
        tokens=tokens,
        timestamp=created.timestamp,
        metadata=created.metadata,
        synthetic=created.synthetic,
    )


def _expected_version(if_match: str | None) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    if not (match := re.fullmatch(r'\s*"(\d{1,18})"\s*', if_match, re.ASCII)):
        fault = Fault(("header", "If-Match"), 'Send one event version in quotes, such as If-Match: "7".')
        raise InvalidInput(fault)
    return int(match[1])
