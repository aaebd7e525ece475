"""Appending to a session's log: one statement in the common case, the lock first where that cannot decide."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.domain import json_values
from app.domain.batches import Batch, Entry, batch_of
from app.domain.errors import (
    EventConflict,
    NotOwner,
    SessionNotFound,
    SystemMessagesRefused,
    TurnLost,
    VersionMismatch,
)
from app.domain.events import Appended, Event, NewEvent
from app.domain.leases import TurnWrite
from app.domain.messages import render
from app.domain.sessions import NewSession, Session
from app.domain.tokens import LONG_TEXT, CountTokens
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
    owner: str | None = None,
    expected_version: int | None = None,
) -> Appended:
    """Append a batch: all of it that the log does not hold yet, or nothing.

    `named` tells that event ids are the caller's own, so that some may be replays. `create_as` is the session to
    create when there is none; an existing one must belong to the same user, or to `owner`.

    Raises SessionNotFound, NotOwner, EventConflict, VersionMismatch, SystemMessagesRefused.
    """
    batch = batch_of(events)
    owner = owner if create_as is None else create_as.user_id
    attempt = _Attempt(session_id=session_id, named=named, owner=owner, expected_version=expected_version)
    async with db.autocommit() as connection:
        if appended := await attempt.append(connection, batch):
            return appended
    async with db.transaction() as connection:
        session = await _locked(connection, session_id, create_as)
        if appended := await attempt.append(connection, batch):
            return appended
        # Under the lock nothing else is left that the statement could have stumbled over.
        raise VersionMismatch(expected_version or 0, session.event_version)


async def counted(count_tokens: CountTokens, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The tokens of messages; long texts leave the event loop for it."""
    if sum(len(render(message)) for message in messages) < LONG_TEXT:
        return [count_tokens(message) for message in messages]
    return await asyncio.to_thread(lambda: [count_tokens(message) for message in messages])


async def append_in_turn(
    db: Database, session: Session, events: Sequence[NewEvent], *, named: bool, turn: TurnWrite
) -> Appended:
    """Append to the very session that a chat loaded, in its turn.

    Raises SessionNotFound when that is gone, TurnLost where the turn is required and another's by now.
    """
    batch = batch_of(events)
    attempt = _Attempt(session_id=session.id, key=session.key, named=named, turn=turn)
    async with db.autocommit() as connection:
        if appended := await attempt.append(connection, batch):
            return appended
    async with db.transaction() as connection:
        await sessions.lock_key(connection, session)
        if appended := await attempt.append(connection, batch):
            return appended
    raise SessionNotFound(session.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One try. `key`: the session is this one, whatever its id may name by now."""

    session_id: str
    named: bool
    owner: str | None = None
    expected_version: int | None = None
    key: int | None = None
    turn: TurnWrite | None = None

    async def append(self, connection: Connection, batch: Batch) -> Appended | None:
        """None when the statement could not decide."""
        outcome = await append.append(
            connection,
            self.session_id if self.key is None else self.key,
            batch,
            named=self.named,
            owner=self.owner,
            expected_version=self.expected_version,
            turn=self.turn,
        )
        if outcome is None or not self._is_decided(outcome, batch):
            return None
        if outcome.replayed:
            return await self._append_rest(connection, batch, outcome)
        events = [self._event(place, entry, outcome) for place, entry in enumerate(batch.entries, start=1)]
        return Appended(
            events=[events[place] for place in batch.places],
            event_version=outcome.version_before if outcome.event_version is None else outcome.event_version,
            appended=len(events),
            replayed=batch.repeated,
            late=not outcome.held,
            counters=outcome.counters,
            may_compact=outcome.may_compact,
        )

    async def _append_rest(self, connection: Connection, batch: Batch, outcome: AppendOutcome) -> Appended | None:
        """What the log does not hold yet of a batch that it holds a part of."""
        known_ids = [batch.entries[place - 1].event.id for place in sorted(outcome.replayed)]
        known = await reads.get_events(connection, outcome.session_key, known_ids)
        rest = batch_of([entry.event for entry in batch.entries if entry.event.id not in known])
        written = Appended(events=[], event_version=outcome.version_before, appended=0, replayed=0)
        if rest.entries:
            appended = await self.append(connection, rest)
            if appended is None:
                return None
            written = appended
        events = known | {event.id: event for event in written.events}
        return Appended(
            events=[events[batch.entries[place].event.id] for place in batch.places],
            event_version=written.event_version,
            appended=written.appended,
            replayed=len(batch.places) - written.appended,
        )

    def _is_decided(self, outcome: AppendOutcome, batch: Batch) -> bool:
        """Whether the statement settled the matter; raises when it settled it against the caller.

        Not settled is what depends on the version, as the statement may have seen an old one.
        """
        if self.owner not in {None, outcome.user_id}:
            raise NotOwner(self.session_id, str(self.owner))
        if outcome.conflicting:
            raise EventConflict(outcome.conflicting)
        if self.turn is not None and self.turn.required and not outcome.held:
            raise TurnLost(self.session_id)
        if outcome.event_version is not None or outcome.replayed:
            return True
        if batch.has_system and not outcome.allow_system_messages:
            raise SystemMessagesRefused(self.session_id, batch.system_places)
        if self.expected_version is not None and outcome.version_before > self.expected_version:
            raise VersionMismatch(self.expected_version, outcome.version_before)
        return False

    def _event(self, place: int, entry: Entry, outcome: AppendOutcome) -> Event:
        event = entry.event
        return Event(
            id=event.id,
            session_id=self.session_id,
            seq=append.seq_of(outcome, place),
            timestamp=event.timestamp or outcome.now,
            type=event.type,
            message_json=json_values.encode(event.message),
            synthetic=event.synthetic,
            archived=False,
            tokens=event.tokens,
            metadata_json=json_values.encode(event.metadata),
        )


async def _locked(connection: Connection, session_id: str, create_as: NewSession | None) -> Session:
    """The session's row, locked; created first where that was asked for and there is none."""
    if create_as is None:
        return await sessions.lock(connection, session_id)
    session, _ = await sessions.ensure(connection, create_as)
    return session
