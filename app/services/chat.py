"""The chat cycle up to the upstream's call: session, turn, history, what the request adds, guards, append.

`app.domain` decides; here it is acted upon. No connection is held while another request is waited for, nor while the
upstream works.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from uuid_utils import uuid7

from app.domain import event_ids, guards
from app.domain.chat import ChatCompaction, ChatRequest, Report
from app.domain.compaction import Summarize
from app.domain.conversation import Loaded, Request, Said, continued
from app.domain.errors import CallAbandoned, CallAnswered, CallUnknown, SessionExists
from app.domain.events import Appended, Event, NewEvent
from app.domain.filters import ACTIVE
from app.domain.leases import TurnWrite
from app.domain.prompt import Budget, Draft, Prompt
from app.domain.sessions import Lifetime, NewSession, Session
from app.domain.tokens import CountTokens
from app.domain.tool_definitions import ToolDefinition
from app.llm.upstream import Upstream
from app.services import stored_reply
from app.services.append import append_in_turn, counted
from app.services.chat_compaction import ChatCompactions
from app.services.live_reply import LiveReply
from app.services.reply_store import ReplyStore
from app.services.rounds import Rounds
from app.services.service_tools import added_to, tools_for
from app.services.stored_reply import StoredReply
from app.services.turns import Turn, Turns
from app.storage import calls, histories, sessions
from app.storage.database import Database

log = structlog.get_logger()

Reply = LiveReply | StoredReply


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """`replay_fields` are those of stored messages that the upstream takes back beyond the usual ones."""

    default_user_id: str
    default_ttl_seconds: int
    allow_system_messages: bool
    max_tool_rounds: int
    replay_fields: frozenset[str]
    recall_page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """What a request comes to: the prompt, and the messages that are stored first, with the ids they will have."""

    draft: Draft
    prompt: Prompt
    stored: list[tuple[str, Said]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """`stopping` is set when no answer may take any longer: what there is of it is stored."""

    db: Database
    upstream: Upstream
    turns: Turns
    compactions: ChatCompactions
    count_tokens: CountTokens
    settings: ChatSettings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _at_work: set[asyncio.Task[Any]] = field(default_factory=set)

    async def finish(self) -> None:
        """Wait for the chats that are being answered, which may have been cancelled, and for what they left to do."""
        while self._at_work:
            await asyncio.wait(set(self._at_work))
        await self.compactions.finish()

    @asynccontextmanager
    async def answering(self, request: ChatRequest, gone: asyncio.Event) -> AsyncIterator[Reply]:
        """A request's turn, with its question stored and its answer ready to be asked for.

        Raises what is wrong with the request, the session or the turn, and then has stored nothing. `gone` is set
        when nobody waits any more.
        """
        with self._noted():
            async with self._answering(request, gone) as reply:
                yield reply

    @contextmanager
    def _noted(self) -> Iterator[None]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("A chat is answered in a task.")
        self._at_work.add(task)
        try:
            yield
        finally:
            self._at_work.discard(task)

    @asynccontextmanager
    async def _answering(self, request: ChatRequest, gone: asyncio.Event) -> AsyncIterator[Reply]:
        model = self._model(request)
        added = added_to(request.body, with_recall=request.options.recall)
        turn = await self._turn(request, gone)
        async with self.turns.kept(turn):
            reply = await self._prepared(request, turn, model, added)
            try:
                yield reply
            finally:
                await reply.close()
        if isinstance(reply, LiveReply):
            self._compact_later(reply.rounds)

    def _model(self, request: ChatRequest) -> str | None:
        """The model to ask for. Raises ModelNotAllowed, also for the one that is to summarize."""
        due = request.options.compaction
        if due is not None and isinstance(due.strategy, Summarize) and due.strategy.model is not None:
            self.upstream.model_for(due.strategy.model)
        return self.upstream.model_for(request.body.get("model"))

    async def _turn(self, request: ChatRequest, gone: asyncio.Event) -> Turn:
        """The turn of the session, which is created first where there is none."""
        while True:
            turn = await self.turns.take(
                request.session_id,
                owner=request.user_id,
                request_id=request.request_id,
                on_busy=request.options.on_busy,
                gone=gone,
            )
            if turn is not None:
                return turn
            await self._create(request)

    async def _create(self, request: ChatRequest) -> None:
        """The session; what can be judged on an empty history is judged first. Of two at once, one creates it."""
        said = _continued(request, Loaded())
        if strays := guards.results_without_call(said):
            raise CallUnknown(strays)
        await self._decided(request, Loaded(), said, of="")
        new = NewSession(
            id=request.session_id,
            user_id=request.user_id or self.settings.default_user_id,
            lifetime=Lifetime(ttl_seconds=self.settings.default_ttl_seconds),
            allow_system_messages=self.settings.allow_system_messages,
        )
        try:
            async with self.db.transaction() as connection:
                await sessions.create(connection, new)
        except SessionExists:
            log.info("chat_session_created_by_another")

    async def _prepared(
        self, request: ChatRequest, turn: Turn, model: str | None, added: Sequence[ToolDefinition]
    ) -> Reply:
        session = turn.session
        tools = tools_for(self.db, session, added, page_size=self.settings.recall_page_size)
        of = event_ids.fingerprint(session.key, request.idempotency_key)
        reply_id, answer = await stored_reply.reply_id_of(self.db, request, session, of)
        if answer is not None:
            return await stored_reply.of_answer(self.db, request, session, answer)
        loaded = await histories.load(
            self.db,
            session,
            request.event_filter.merge(ACTIVE),
            max_tokens=request.options.max_context_tokens,
        )
        said = _continued(request, loaded, of)
        if strays := guards.results_without_call(said):
            await self._refuse_results(session, strays)
        decided = await self._decided(request, loaded, said, of=of)
        appended = await self._append(request, turn, decided)
        report = Report(
            session_id=session.id,
            event_version=session.event_version if appended is None else appended.event_version,
            event_ids=_written(appended, loaded),
            reply_id=reply_id,
            history_events=decided.prompt.history_events,
            history_tokens=decided.prompt.history_tokens,
        )
        rounds = Rounds(
            request=request,
            reply_id=reply_id,
            draft=decided.draft,
            messages=decided.prompt.messages,
            model=model,
            tools=tools,
            most=self.settings.max_tool_rounds,
            store=self._store(request, turn, appended, of),
            facts=stored_reply.facts_of(request),
        )
        return LiveReply(
            report=report,
            rounds=rounds,
            upstream=self.upstream,
            before_end=lambda: self._compact_inline(rounds),
        )

    def _store(self, request: ChatRequest, turn: Turn, appended: Appended | None, of: str) -> ReplyStore:
        return ReplyStore(
            db=self.db,
            turns=self.turns,
            count_tokens=self.count_tokens,
            turn=turn,
            accepted=request.options.message_filter,
            other_ids=stored_reply.attempts(request, of, 0) if request.has_stable_ids and not turn.lease else [],
            counters=None if appended is None else appended.counters,
            may_compact=appended is None or appended.may_compact,
        )

    async def _refuse_results(self, session: Session, strays: list[str]) -> None:
        """Say what is wrong with results that are for none of the open calls."""
        async with self.db.reading() as connection:
            known = await calls.known_calls(connection, session.key, strays)
        if unknown := [call_id for call_id in strays if call_id not in known]:
            raise CallUnknown(unknown)
        if answered := [call_id for call_id in strays if known[call_id]]:
            raise CallAnswered(answered)
        raise CallAbandoned(strays)

    async def _decided(self, request: ChatRequest, loaded: Loaded, said: list[Said], *, of: str) -> _Decided:
        """Raises CallsUnanswered, ContextTooLarge."""
        storing = guards.stored_of(said, request.options.message_filter)
        sent = guards.without_broken_calls(said)
        _warn(dropped=len(said) - len(sent), overruled=storing.overruled)
        stored = [
            (event_ids.of_message(one.message, of) if request.has_stable_ids else str(uuid7()), one)
            for one in storing.messages
        ]
        budget = None
        if request.options.max_context_tokens is not None:
            budget = Budget(max_tokens=request.options.max_context_tokens, count_tokens=self.count_tokens)
        draft = Draft(
            said=sent,
            stored_system=loaded.system,
            system=Request.of(request.messages).system,
            also=self.settings.replay_fields,
            budget=budget,
            names={id(one): event_id for event_id, one in stored},
        )
        # Counting tokens leaves the event loop.
        made = draft.prompt() if budget is None else await asyncio.to_thread(draft.prompt)
        return _Decided(draft=draft, prompt=made, stored=stored)

    async def _append(self, request: ChatRequest, turn: Turn, decided: _Decided) -> Appended | None:
        if not decided.stored:
            return None
        tokens = await counted(self.count_tokens, [one.message for _, one in decided.stored])
        events = [
            NewEvent(id=event_id, message=one.message, tokens=count)
            for (event_id, one), count in zip(decided.stored, tokens, strict=True)
        ]
        write = TurnWrite(lease=turn.lease, required=turn.lease is not None)
        return await append_in_turn(self.db, turn.session, events, named=request.has_stable_ids, turn=write)

    async def _compact_inline(self, rounds: Rounds) -> None:
        if (due := _due_compaction(rounds)) and due.inline:
            await self.compactions.run(due, rounds.store.turn.session, rounds.store.counters, rounds.model)

    def _compact_later(self, rounds: Rounds) -> None:
        if (due := _due_compaction(rounds)) and not due.inline:
            self.compactions.start(due, rounds.store.turn.session, rounds.store.counters, rounds.model)


def _due_compaction(rounds: Rounds) -> ChatCompaction | None:
    """That of the request, once the turn is complete and no failed one is being waited for."""
    may_compact = rounds.is_complete and rounds.store.may_compact
    return rounds.request.options.compaction if may_compact else None


def _continued(request: ChatRequest, loaded: Loaded, of: str = "") -> list[Said]:
    options = request.options
    parts = Request.of(request.messages)
    known_ids: frozenset[str] = frozenset()
    if request.idempotency_key is not None:
        known_ids = frozenset(event_ids.of_message(message, of) for message in parts.new)
    parts = replace(parts, shown=request.event_filter, known_ids=known_ids)
    return continued(loaded, parts, options.message_filter, options.history)


def _written(appended: Appended | None, loaded: Loaded) -> tuple[str, ...]:
    """The events that were appended, without those that the log held already."""
    if appended is None or not appended.appended:
        return ()
    known: Sequence[Event] = [*loaded.window, *loaded.tail]
    last = max((event.seq for event in known), default=0)
    return tuple(event.id for event in appended.events if event.seq > last)


def _warn(*, dropped: int, overruled: int) -> None:
    if dropped:
        log.warning(
            "orphans_left_out",
            messages=dropped,
            reason="calls without all of their results: an interrupted tool loop, or a filter that hides them",
        )
    if overruled:
        log.warning("message_filter_overruled", messages=overruled, reason="a result is stored as its call is")
