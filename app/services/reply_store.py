"""Storing what a chat's upstream said: whole, interrupted or late, and giving the turn up in the same statement."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from app.domain.errors import DatabaseUnavailable, EventIdTaken, SessionNotFound
from app.domain.events import Appended, NewEvent
from app.domain.leases import TurnWrite
from app.domain.message_filters import MessageFilter
from app.domain.messages import faults_of
from app.domain.sessions import Counters
from app.domain.tokens import CountTokens
from app.services.append import append_in_turn, counted
from app.services.turns import Turn, Turns
from app.storage import leases
from app.storage.database import Database

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStore:
    """A message for the log."""

    id: str
    message: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ReplyStore:
    """The log as one chat writes to it. `counters` are the session's as this chat last saw them.

    `other_ids`: where turns interleave, two attempts at one answer may come to the same id; the second takes another.
    """

    db: Database
    turns: Turns
    count_tokens: CountTokens
    turn: Turn
    accepted: MessageFilter
    other_ids: list[str] = field(default_factory=list)
    counters: Counters | None = None
    may_compact: bool = True

    async def round(self, messages: Sequence[ToStore]) -> None:
        """A round that the service goes on after: stored whatever the filter says, as its results are needed."""
        await self._append(messages, TurnWrite(lease=self.turn.lease))

    async def last_round(self, messages: Sequence[ToStore]) -> None:
        """A round whose answer goes to the client, stored whatever the filter says; gives the turn up."""
        await self._append(messages, TurnWrite(lease=self.turn.lease, releases=True, answers=True))
        self.turns.given_up(self.turn)

    async def reply(self, reply: ToStore) -> None:
        """A complete reply, as the filter accepts; gives the turn up either way."""
        if self._is_stored(reply.message):
            await self.last_round([reply])
            return
        async with self.db.autocommit() as connection:
            await leases.answered(connection, self.turn.session.key, self.turn.lease)
        self.turns.given_up(self.turn)

    async def interrupted(self, fragment: ToStore) -> None:
        """What had been sent of a reply that broke off; gives the turn up."""
        if self._is_stored(fragment.message):
            marked = ToStore(
                id=fragment.id, message=fragment.message, metadata={**fragment.metadata, "interrupted": True}
            )
            await self._append([marked], TurnWrite(lease=self.turn.lease, releases=True))
            self.turns.given_up(self.turn)

    def _is_stored(self, message: Mapping[str, Any]) -> bool:
        if faults := faults_of(message):
            log.warning("reply_not_storable", places=[".".join(map(str, fault.loc)) for fault in faults])
            return False
        return self.accepted.accepts(message)

    async def _append(self, messages: Sequence[ToStore], write: TurnWrite) -> None:
        try:
            appended = await self._written_under_a_free_id(messages, write)
        except SessionNotFound:
            # Deleted or expired meanwhile: the answer is delivered all the same.
            log.warning("chat_reply_not_stored", reason="the session is gone")
            return
        if appended.late:
            log.warning("chat_reply_late", reason="the lease had run out and another request has the turn")
        self.counters = appended.counters or self.counters
        self.may_compact = appended.may_compact

    async def _written_under_a_free_id(self, messages: Sequence[ToStore], write: TurnWrite) -> Appended:
        reply, *results = messages
        for other in self.other_ids:
            with suppress(EventIdTaken):
                return await self._written_again([reply, *results], write)
            reply = replace(reply, id=other)
        return await self._written_again([reply, *results], write)

    async def _written_again(self, messages: Sequence[ToStore], write: TurnWrite) -> Appended:
        """At the second try where the database was away: it may be back, and all that was broken a connection.

        What the first try may have written all the same is a replay then, by its id.
        """
        try:
            return await self._written(messages, write)
        except DatabaseUnavailable:
            return await self._written(messages, write, named=True)

    async def _written(self, messages: Sequence[ToStore], write: TurnWrite, *, named: bool = False) -> Appended:
        tokens = await counted(self.count_tokens, [one.message for one in messages])
        events = [
            NewEvent(id=one.id, message=one.message, tokens=count, metadata=one.metadata)
            for one, count in zip(messages, tokens, strict=True)
        ]
        return await append_in_turn(self.db, self.turn.session, events, named=named, turn=write)
