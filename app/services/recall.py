"""Recall: searching the log for programs, and the two tools that a model calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from app.domain import json_values
from app.domain.errors import InvalidInput, SearchTooBroad
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.instants import parse_instant, render_instant
from app.domain.readings import Reading
from app.domain.recall import MAX_QUERY_TERMS, excerpt, split_query
from app.domain.sessions import Session
from app.domain.text import is_blank
from app.storage import reads, sessions
from app.storage.database import Database

NOTHING_FOUND = "No results found."

_EXAMPLE = 'Send the arguments as a JSON object, such as {"innerThought": "…", "query": "…"}.'
_MAX_PAGE = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """A text for the model; an error is a sentence that says what to send instead."""

    content: str
    is_error: bool = False


class _BadArgument(Exception):
    """A sentence for the model."""


async def search_session(db: Database, session: str | Session, event_filter: EventFilter) -> Reading:
    """A page of recall results in one session, by its id or that very one, oldest first.

    Raises SessionNotFound, SearchTooBroad.
    """
    async with db.searching() as connection:
        if isinstance(session, str):
            session = await sessions.get(connection, session)
        return await reads.read_log(connection, session, event_filter, recall=True)


async def search_user(db: Database, user_id: str, event_filter: EventFilter) -> Reading:
    """A page of recall results across a user's sessions, by instant. Raises SearchTooBroad."""
    async with db.searching() as connection:
        return await reads.read_user(connection, user_id, event_filter, recall=True)


async def conversation_search(
    db: Database, session: str | Session, arguments: bytes | str, *, page_size: int
) -> ToolAnswer:
    """Run the tool on the JSON text that a model produced. Raises SessionNotFound."""
    try:
        given = _arguments(arguments)
        term = _query(given)
        event_filter = EventFilter(keyword=term, page=_page(given), page_size=page_size)
        reading = await search_session(db, session, event_filter)
    except (_BadArgument, InvalidInput, SearchTooBroad) as error:
        if isinstance(session, str):
            async with db.autocommit() as connection:
                await sessions.get(connection, session)  # A wrong session is not the model's fault.
        return _refused(error)
    return _found(reading, [term], with_session=False)


async def cross_session_search(db: Database, user_id: str, arguments: bytes | str, *, page_size: int) -> ToolAnswer:
    """Run the tool on the JSON text that a model produced."""
    try:
        given = _arguments(arguments)
        terms = _terms(_query(given))
        event_filter = EventFilter(
            keywords=tuple(terms),
            match_mode=_match_mode(given),
            from_=_since(given),
            page=_page(given),
            page_size=page_size,
        )
        reading = await search_user(db, user_id, event_filter)
    except (_BadArgument, InvalidInput, SearchTooBroad) as error:
        return _refused(error)
    return _found(reading, terms, with_session=True)


def _found(reading: Reading, terms: Sequence[str], *, with_session: bool) -> ToolAnswer:
    if not reading.events:
        return ToolAnswer(content=NOTHING_FOUND)
    results = [_result(event, terms, with_session=with_session) for event in reading.events]
    return ToolAnswer(content=json_values.encode(results))


def _result(event: Event, terms: Sequence[str], *, with_session: bool) -> dict[str, str]:
    result = {"sessionId": event.session_id} if with_session else {}
    return result | {
        "timestamp": render_instant(event.timestamp),
        "type": event.type,
        "text": excerpt(event.text or "", terms),
    }


def _refused(error: Exception) -> ToolAnswer:
    if isinstance(error, InvalidInput):
        return ToolAnswer(content=f"Error: {' '.join(fault.msg for fault in error.faults)}", is_error=True)
    return ToolAnswer(content=f"Error: {error}", is_error=True)


def _arguments(arguments: bytes | str) -> Mapping[str, Any]:
    try:
        given = json_values.decode(arguments)
    except json_values.InvalidJson as error:
        raise _BadArgument(f"{error} {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise _BadArgument(_EXAMPLE)
    return given


def _query(given: Mapping[str, Any]) -> str:
    query = given.get("query")
    if not isinstance(query, str) or is_blank(query):
        raise _BadArgument("query is missing, blank or no string: send a word or phrase that the text contains.")
    return query


def _terms(query: str) -> list[str]:
    terms = split_query(query)
    if not terms:
        raise _BadArgument("query holds no usable term: send words or phrases, separated by commas.")
    if len(terms) > MAX_QUERY_TERMS:
        raise _BadArgument(f"query holds {len(terms)} terms: send at most {MAX_QUERY_TERMS}.")
    return terms


def _match_mode(given: Mapping[str, Any]) -> Any:
    mode = given.get("matchMode") or None  # Models fill in what is optional with "".
    if mode not in {None, "any", "all"} if isinstance(mode, str | None) else True:
        raise _BadArgument(f"matchMode {mode!r} is unknown: send 'any' or 'all', or leave it out.")
    return mode


def _since(given: Mapping[str, Any]) -> datetime | None:
    since = given.get("since")
    if since is None or since == "":
        return None
    try:
        return parse_instant(since)
    except ValueError as error:
        raise _BadArgument(f"since: {error}") from None


def _page(given: Mapping[str, Any]) -> int:
    page = given.get("page")
    if page is None or page == "":
        return 0
    if isinstance(page, Decimal) and page == page.to_integral_value():
        page = int(page)  # 1.0 is a whole number, too.
    try:
        number = int(str(page)) if not isinstance(page, bool) else None
    except ValueError:
        number = None
    if number is None:
        raise _BadArgument(f"page {str(page)[:50]!r} is not a page: send a whole number from 0.")
    return min(max(number, 0), _MAX_PAGE)
