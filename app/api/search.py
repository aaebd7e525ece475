"""Searching the log over HTTP, for programs."""

from typing import Annotated

from fastapi import APIRouter, Body, Response

from app.api import render, schemas
from app.api.access import requires
from app.api.dependencies import COMMON, OwnerId, SessionId, Svc, problems
from app.api.schemas import SessionSearch, UserSearch
from app.api.wire import JsonResponse, JsonRoute
from app.domain.errors import Fault, InvalidInput
from app.domain.filters import EventFilter
from app.domain.recall import MAX_QUERY_TERMS, split_query
from app.domain.text import is_blank
from app.services import recall

router = APIRouter(prefix="/v1", tags=["search"], route_class=JsonRoute, responses=COMMON)


@router.post("/sessions/{session_id}/search", response_model=schemas.SearchPage, responses=problems(404, 415))
@requires("search")
async def search_session(session_id: SessionId, body: Annotated[SessionSearch, Body()], svc: Svc) -> Response:
    """Find a word or phrase in a session.

    Archived events are found as well, summaries are not; results come oldest first.
    """
    if is_blank(body.query):
        raise _invalid("query", "Send a word or phrase to find; this query is blank.")
    event_filter = _filter(body, (body.query,), "query")
    return JsonResponse(render.results(await recall.search_session(svc.db, session_id, event_filter), event_filter))


@router.post("/users/{user_id}/search", response_model=schemas.SearchPage, responses=problems(415))
@requires("search")
async def search_user(user_id: OwnerId, body: Annotated[UserSearch, Body()], svc: Svc) -> Response:
    """Find words or phrases in all sessions of a user.

    Send `query` or `terms`. The order is by timestamp, session id and `seq`.
    """
    place = "terms" if body.query is None else "query"
    event_filter = _filter(body, _terms(body), place)
    return JsonResponse(render.results(await recall.search_user(svc.db, user_id, event_filter), event_filter))


def _terms(body: UserSearch) -> tuple[str, ...]:
    if (body.query is None) == (body.terms is None):
        raise _invalid("query", "Send either query (terms separated by commas) or terms (a list).")
    if body.terms is not None:
        place, terms = "terms", [term for term in body.terms if not is_blank(term)]
    else:
        place, terms = "query", split_query(body.query or "")
    if not terms:
        raise _invalid(place, "There is no usable term: send a word or phrase to find.")
    if len(terms) > MAX_QUERY_TERMS:
        raise _invalid(place, f"Send at most {MAX_QUERY_TERMS} terms; these are {len(terms)}.")
    return tuple(terms)


def _filter(body: SessionSearch | UserSearch, terms: tuple[str, ...], place: str) -> EventFilter:
    try:
        return EventFilter(
            keywords=terms,
            match_mode=body.match_mode if isinstance(body, UserSearch) else None,
            from_=body.since,
            to=body.until,
            types=None if body.types is None else frozenset(body.types),
            page=body.page,
            page_size=body.page_size,
        )
    except InvalidInput as error:
        raise _invalid(place, error.faults[0].msg) from None


def _invalid(field: str, msg: str) -> InvalidInput:
    return InvalidInput(Fault(("body", field), msg))
