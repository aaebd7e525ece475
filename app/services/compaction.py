"""Compaction on demand: read, decide, ask for a summary where one is wanted, apply; nothing is held while waiting."""

from dataclasses import dataclass

import structlog
from uuid_utils import uuid7

from app.domain import summaries
from app.domain.compaction import ActiveWindow, Cut, Plan, Reason, Strategy, Summarize, Trigger, plan
from app.domain.events import Event
from app.domain.filters import ACTIVE
from app.domain.observer import UNOBSERVED, Observer
from app.domain.sessions import Session
from app.domain.text import is_blank
from app.domain.tokens import CountTokens
from app.llm.upstream import Upstream
from app.services.token_use import note_tokens
from app.storage import compactions, reads, scans, sessions
from app.storage.database import Database

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What came of it. `reason` says why nothing was archived."""

    reason: Reason | None
    archived: int
    kept: int
    summary: list[Event]
    tokens_saved: int
    event_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    db: Database
    upstream: Upstream
    count_tokens: CountTokens
    max_input_tokens: int
    observer: Observer = UNOBSERVED

    async def compact(
        self, session_id: str, strategy: Strategy, *, trigger: Trigger | None, if_version: int | None
    ) -> Compacted:
        """Compact one session. Raises SessionNotFound, and what the upstream raises for a summary."""
        # The generation first, then the events: a compaction in between fails the swap instead of being lost.
        async with self.db.autocommit() as connection:
            session = await sessions.get(connection, session_id)
        if if_version is not None and if_version != session.event_version:
            return self._noted(_nothing(session, "conflict"))
        if trigger is not None and not trigger.fires(session.counters):
            return self._noted(_nothing(session, "trigger"))
        return await self.run(session, strategy)

    async def run(self, session: Session, strategy: Strategy, *, model: str | None = None) -> Compacted:
        """Compact this very session; `model` summarizes where the strategy names none.

        Raises SessionGone, and what the upstream raises for a summary.
        """
        try:
            return self._noted(await self._run(session, strategy, model))
        except Exception:
            self.observer.compaction_ended("failed")
            raise

    def _noted(self, done: Compacted) -> Compacted:
        self.observer.compaction_ended(done.reason or "compacted")
        return done

    async def _run(self, session: Session, strategy: Strategy, model: str | None) -> Compacted:
        events = [event async for batch in scans.stream_log(self.db, session, ACTIVE) for event in batch]
        made = await self._plan(ActiveWindow.of(events), strategy, model)
        if not made.archive:
            return _nothing(session, made.reason)
        return await self._apply(session, events, made)

    async def _plan(self, window: ActiveWindow, strategy: Strategy, model: str | None) -> Plan:
        if not isinstance(strategy, Summarize):
            return plan(window, strategy.cut(window))
        cut = strategy.cut(window, self.max_input_tokens)
        if cut.reason is not None:
            return plan(window, cut)
        summary = await self._summarize(window, cut, strategy, model)
        if is_blank(summary):
            log.warning("compaction_summary_blank")
            return plan(window, Cut(kept=window.real, reason="blank_summary"))
        turn = summaries.turn(
            summary,
            shadow_prompt=strategy.shadow_prompt,
            ids=(str(uuid7()), str(uuid7())),
            count_tokens=self.count_tokens,
        )
        return plan(window, cut, turn)

    async def _summarize(self, window: ActiveWindow, cut: Cut, strategy: Summarize, model: str | None) -> str:
        request = summaries.request(
            previous=window.synthetic,
            archived=cut.archived,
            following=cut.kept[: strategy.overlap],
            system_prompt=strategy.system_prompt,
        )
        made = await self.upstream.complete(request, model=strategy.model or model)
        reply = {"role": "assistant", "content": made.text}
        await note_tokens(self.observer, self.count_tokens, "summary", made.usage, prompt=request, reply=reply)
        return made.text

    async def _apply(self, session: Session, events: list[Event], made: Plan) -> Compacted:
        async with self.db.transaction() as connection:
            version = await compactions.apply(connection, session.key, made, generation=session.compaction_generation)
            if version is None:
                return _nothing(session, "conflict")
            ids = [event.id for event in made.insert]
            summary = await reads.get_events(connection, session.key, ids) if ids else {}
        archived = set(made.archive)
        saved = sum(event.tokens for event in events if event.seq in archived)
        return Compacted(
            reason=made.reason,
            archived=len(archived),
            kept=made.kept,
            summary=[summary[event_id] for event_id in ids],
            tokens_saved=saved - sum(event.tokens for event in made.insert),
            event_version=version,
        )


def _nothing(session: Session, reason: Reason | None) -> Compacted:
    return Compacted(
        reason=reason,
        archived=0,
        kept=session.active_event_count,
        summary=[],
        tokens_saved=0,
        event_version=session.event_version,
    )
