"""Appending to a session's log: one statement in the common case, the lock first where that cannot decide."""

from collections.abc import Sequence
from contextlib import suppress

from app.domain import json_values
from app.domain.batches import Batch, Entry, batch_of
from app.domain.errors import (
    EventConflict,
    NotOwner,
    SessionExists,
    SystemMessagesRefused,
    VersionMismatch,
)
from app.domain.events import Appended, Event, NewEvent
from app.domain.sessions import NewSession, Session
from app.storage import append, reads, sessions
from app.storage.append import AppendOutcome
from app.storage.database import Connection, Database


async def append_events(
    db: Database,
    session_id: str,
    events: Sequence[NewEvent],
    *,
    named: bool,
    create_as: NewSession | None = None,
    expected_version: int | None = None,
) -> Appended:
    """Append a batch: all of it that the log does not hold yet, or nothing.

    `named` tells that event ids are the caller's own, so that some may be replays. `create_as` is the session to
    create when there is none; an existing one must belong to the same user.

    Raises SessionNotFound, NotOwner, EventConflict, VersionMismatch, SystemMessagesRefused.
    """
    batch = batch_of(events)
    owner = None if create_as is None else create_as.user_id

    async def attempt(connection: Connection) -> Appended | None:
        outcome = await append.append(
            connection, session_id, batch, named=named, owner=owner, expected_version=expected_version
        )
        if outcome is None or not _is_decided(outcome, session_id, batch, owner, expected_version):
            return None
        return await _answer(connection, session_id, batch, outcome)

    async with db.autocommit() as connection:
        if appended := await attempt(connection):
            return appended
    async with db.transaction() as connection:
        session = await _locked(connection, session_id, create_as)
        if appended := await attempt(connection):
            return appended
        # Under the lock nothing else is left that the statement could have stumbled over.
        raise VersionMismatch(expected_version or 0, session.event_version)


def _is_decided(
    outcome: AppendOutcome, session_id: str, batch: Batch, owner: str | None, expected_version: int | None
) -> bool:
    """Whether the statement settled the matter; raises when it settled it against the caller.

    Not settled is what depends on the version, as the statement may have seen an old one.
    """
    if owner not in {None, outcome.user_id}:
        raise NotOwner(session_id, str(owner))
    if outcome.conflicting:
        raise EventConflict(outcome.conflicting)
    if outcome.event_version is not None or len(outcome.replayed) == len(batch.entries):
        return True
    if outcome.has_system and not outcome.allow_system_messages:
        raise SystemMessagesRefused(session_id)
    if expected_version is not None and outcome.version_before > expected_version:
        raise VersionMismatch(expected_version, outcome.version_before)
    return False


async def _locked(connection: Connection, session_id: str, create_as: NewSession | None) -> Session:
    """The session's row, locked; created first where that was asked for and there is none."""
    if create_as is not None:
        with suppress(SessionExists):
            return await sessions.create(connection, create_as)
    return await sessions.lock(connection, session_id)


async def _answer(connection: Connection, session_id: str, batch: Batch, outcome: AppendOutcome) -> Appended:
    known_ids = [batch.entries[place - 1].event.id for place in sorted(outcome.replayed)]
    known = await reads.get_events(connection, outcome.session_key, known_ids) if known_ids else {}
    events = [
        known.get(entry.event.id) or _written(session_id, place, entry, outcome)
        for place, entry in enumerate(batch.entries, start=1)
    ]
    return Appended(
        events=[events[place] for place in batch.places],
        event_version=outcome.version_before if outcome.event_version is None else outcome.event_version,
        appended=len(events) - len(known),
        replayed=len(known) + batch.repeated,
    )


def _written(session_id: str, place: int, entry: Entry, outcome: AppendOutcome) -> Event:
    event = entry.event
    return Event(
        id=event.id,
        session_id=session_id,
        seq=append.seq_of(outcome, place),
        timestamp=event.timestamp or outcome.now,
        type=event.type,
        message_json=json_values.encode(event.message),
        synthetic=event.synthetic,
        archived=False,
        tokens=event.tokens,
        metadata_json=json_values.encode(event.metadata),
    )
