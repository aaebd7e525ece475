"""Domain values as JSON. Messages and metadata pass through as the text that they are stored as."""

from typing import Any

from app.api.wire import raw
from app.domain.events import Appended, Event
from app.domain.filters import EventFilter
from app.domain.readings import Reading, SessionReading
from app.domain.sessions import Session


def session(value: Session) -> dict[str, Any]:
    return {
        "id": value.id,
        "user_id": value.user_id,
        "created_at": value.created_at,
        "expires_at": value.expires_at,
        "ttl_sliding": value.ttl_sliding,
        "allow_system_messages": value.allow_system_messages,
        "metadata": raw(value.metadata_json),
        "event_version": value.event_version,
        "event_count": value.event_count,
        "active_event_count": value.active_event_count,
        "active_turn_count": value.active_turn_count,
        "active_token_count": value.active_token_count,
        "last_event_at": value.last_event_at,
    }


def event(value: Event) -> dict[str, Any]:
    return {
        "id": value.id,
        "session_id": value.session_id,
        "seq": value.seq,
        "timestamp": value.timestamp,
        "type": value.type,
        "message": raw(value.message_json),
        "text": value.text,
        "synthetic": value.synthetic,
        "archived": value.archived,
        "tokens": value.tokens,
        "metadata": raw(value.metadata_json),
    }


def appended(value: Appended) -> dict[str, Any]:
    return {
        "events": [event(item) for item in value.events],
        "event_version": value.event_version,
        "appended": value.appended,
        "replayed": value.replayed,
    }


def reading(value: Reading, event_filter: EventFilter) -> dict[str, Any]:
    body: dict[str, Any] = {"events": [event(item) for item in value.events]}
    if isinstance(value, SessionReading):
        body["event_version"] = value.event_version
    if event_filter.page_size is not None:
        body |= {"page": event_filter.page, "page_size": event_filter.page_size, "has_more": value.has_more}
    return body


def results(value: Reading, event_filter: EventFilter) -> dict[str, Any]:
    return {
        "results": [
            {
                "event_id": item.id,
                "session_id": item.session_id,
                "timestamp": item.timestamp,
                "type": item.type,
                "text": item.text,
            }
            for item in value.events
        ],
        "page": event_filter.page,
        "page_size": event_filter.page_size,
        "has_more": value.has_more,
    }
