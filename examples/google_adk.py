"""A session service in Turnkeeper for the Runner of Google ADK.

A session of ADK is a session of Turnkeeper, named `app:user:session`. Its state is made of its events, archived ones
included: no crash parts the two. Its `events` are the active window: archived events stay out, and a summary is in,
as said by an agent "model". State of `user:` and `app:` is kept in sessions named `app:user` and `app`, which never
expire; of two writers of a key the last one wins. State of `app:` and lists over all users need a service key.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import google_adk_events as events
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google_adk_state import SharedState, key_of, own
from pydantic_core import to_jsonable_python
from session_log import Turnkeeper, TurnkeeperError


class TurnkeeperSessionService(BaseSessionService):
    def __init__(self, service: Turnkeeper) -> None:
        self._service = service
        self._shared = SharedState(service)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        name = (session_id or "").strip() or uuid4().hex
        return await asyncio.to_thread(self._create, app_name, user_id, name, to_jsonable_python(state or {}))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        session = await asyncio.to_thread(self._get, app_name, user_id, session_id.strip())
        if session and config and config.after_timestamp is not None:
            session.events = [event for event in session.events if event.timestamp >= config.after_timestamp]
        if session and config and config.num_recent_events is not None:
            session.events = session.events[max(0, len(session.events) - config.num_recent_events) :]
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Without events and state, as ADK allows."""
        found = await asyncio.to_thread(lambda: list(self._list(app_name, user_id)))
        return ListSessionsResponse(sessions=sorted(found, key=lambda session: session.last_update_time))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        key = key_of(app_name, user_id, session_id.strip())
        await asyncio.to_thread(self._service.find, "DELETE", "sessions", key)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._shared.at, app_name, user_id)

    async def append_event(self, session: Session, event: Event) -> Event:
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        await asyncio.to_thread(self._append, session, event)
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    def _create(self, app_name: str, user_id: str, name: str, state: dict[str, Any]) -> Session:
        metadata = {"state": json.dumps(own(state))}
        session = {"id": key_of(app_name, user_id, name), "user_id": user_id, "metadata": metadata}
        try:
            created = self._service.call("POST", "sessions", json=session, attempts=1).json()
        except TurnkeeperError as error:
            if error.type.endswith(":session-exists"):
                raise AlreadyExistsError(f"Session with id {name} already exists.") from error
            raise
        self._shared.keep(app_name, user_id, state)
        return _session(app_name, user_id, name, created, self._shared.seen_from(app_name, user_id) | own(state), [])

    def _get(self, app_name: str, user_id: str, name: str) -> Session | None:
        found = self._service.find("GET", "sessions", key_of(app_name, user_id, name))
        if found is None:
            return None
        state = json.loads(found.json()["metadata"].get("state", "{}"))
        active: list[Event] = []
        for logged in self._service.events(key_of(app_name, user_id, name)):
            for event in events.original(logged):
                state |= own(event.actions.state_delta)
                active += [] if logged["archived"] else [event]
        return _session(
            app_name, user_id, name, found.json(), state | self._shared.seen_from(app_name, user_id), active
        )

    def _append(self, session: Session, event: Event) -> None:
        # The state first: what a broken connection leaves half done, the next attempt does again.
        self._shared.keep(session.app_name, session.user_id, event.actions.state_delta)
        key = key_of(session.app_name, session.user_id, session.id)
        if not self._service.find("POST", "sessions", key, "events", json={"events": events.logged(event)}):
            raise SessionNotFoundError(f"Session {session.id} not found.")

    def _list(self, app_name: str, user_id: str | None) -> Iterator[Session]:
        whose = {} if user_id is None else {"user_id": user_id}
        cursor: dict[str, str] | None = {}
        while cursor is not None:
            page = self._service.call("GET", "sessions", params={"limit": 500, **whose, **cursor}).json()
            for found in page["items"]:
                *place, name = map(unquote, found["id"].split(":"))
                if place == [app_name, found["user_id"]]:
                    yield _session(app_name, found["user_id"], name, found, {}, [])
            cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else None


def _session(
    app_name: str, user_id: str, name: str, found: Mapping[str, Any], state: dict[str, Any], active: list[Event]
) -> Session:
    updated = datetime.fromisoformat(found["last_event_at"] or found["created_at"]).timestamp()
    return Session(app_name=app_name, user_id=user_id, id=name, state=state, events=active, last_update_time=updated)
