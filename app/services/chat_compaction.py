"""Compaction by chats: when its trigger fires after a turn; whatever goes wrong is no failed chat."""

import asyncio

import structlog

from app.domain.chat import ChatCompaction
from app.domain.errors import DomainError
from app.domain.sessions import Counters, Session
from app.services.compaction import Compacted, Compactor
from app.storage import compactions, sessions

log = structlog.get_logger()


# For a summarizer to come to its end when the service stops.
_PATIENCE_SECONDS = 5


class ChatCompactions:
    """Compactions in the background, one at a time for each session, waited for when the service stops."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self._running: dict[int, asyncio.Task[None]] = {}

    def start(self, due: ChatCompaction, session: Session, counters: Counters | None, model: str | None) -> None:
        """Compact after the answer, unless this session is being compacted already."""
        if session.key not in self._running:
            task = asyncio.create_task(self.run(due, session, counters, model))
            self._running[session.key] = task
            task.add_done_callback(lambda _: self._running.pop(session.key, None))

    async def run(self, due: ChatCompaction, session: Session, counters: Counters | None, model: str | None) -> None:
        """Compact when the trigger fires."""
        try:
            if counters is not None and due.trigger.fires(counters):
                await self._compact(due, session, model)
        except DomainError as error:
            log.warning("chat_compaction_failed", reason=type(error).__name__)
        except Exception:
            log.exception("chat_compaction_crashed")  # The chat is answered already, or about to be.

    async def finish(self) -> None:
        """Wait for what runs, but not for long: a compaction that is given up has changed nothing."""
        if self._running:
            _, late = await asyncio.wait(set(self._running.values()), timeout=_PATIENCE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _compact(self, due: ChatCompaction, session: Session, model: str | None) -> None:
        try:
            done = await self._compacted(due, session, model)
        except DomainError:
            await self._back_off(session)
            raise
        if done.reason == "blank_summary":
            await self._back_off(session)
        log.info("chat_compaction", outcome=done.reason or "compacted", archived=done.archived)

    async def _compacted(self, due: ChatCompaction, session: Session, model: str | None) -> Compacted:
        # As it stands now: the chat loaded it before it was compacted by others, perhaps.
        async with self._compactor.db.autocommit() as connection:
            current = await sessions.get_by_key(connection, session)
        return await self._compactor.run(current, due.strategy, model=model)

    async def _back_off(self, session: Session) -> None:
        async with self._compactor.db.autocommit() as connection:
            await compactions.note_failure(connection, session.key)
