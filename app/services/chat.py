"""The chat cycle: session, turn, question, answer, compaction.

`app.domain` decides; here it is acted upon. No connection is held while another request is waited for, nor while the
upstream works.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from app.domain import event_ids
from app.domain.chat import ChatCompaction, ChatRequest, Report
from app.domain.compaction import Summarize
from app.domain.errors import DomainError, SessionExists, SessionNotFound
from app.domain.memory_prompts import REMINDER
from app.domain.observer import UNOBSERVED, Observer
from app.domain.sessions import Lifetime, NewSession, Session
from app.domain.tool_definitions import ToolDefinition
from app.llm.upstream import Upstream
from app.services import stored_reply
from app.services.chat_compaction import ChatCompactions
from app.services.live_reply import LiveReply
from app.services.memory_prompts import MemoryPrompts
from app.services.questions import Question, Questions
from app.services.reply_store import ReplyStore
from app.services.rounds import Rounds
from app.services.service_tools import added_to, can_carry_tools, tools_for
from app.services.stored_reply import StoredReply
from app.services.turns import Turn, Turns, uninterrupted
from app.storage import sessions
from app.storage.database import Database

log = structlog.get_logger()

Reply = LiveReply | StoredReply


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    default_user_id: str
    default_ttl_seconds: int
    allow_system_messages: bool
    max_tool_rounds: int
    recall_page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """`stopping` is set when no answer may take any longer: what there is of it is stored."""

    db: Database
    upstream: Upstream
    turns: Turns
    compactions: ChatCompactions
    questions: Questions
    memory_prompts: MemoryPrompts
    settings: ChatSettings
    observer: Observer = UNOBSERVED
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
        added = added_to(request.body, recall=request.options.recall, memory=request.options.long_term)
        turn = await self._turn(request, gone)
        async with self.turns.kept(turn):
            _check_identity(request, turn.session)
            reply = await self._prepared(request, turn, model, added)
            try:
                yield reply
            finally:
                await reply.close()
                if isinstance(reply, LiveReply) and not reply.rounds.is_answered:
                    await self._owe_reminder(reply.rounds.reminded)
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
            if request.session_key is not None:
                raise SessionNotFound(request.session_id)
            await self._create(request)

    async def _create(self, request: ChatRequest) -> None:
        """The session; what can be judged on an empty history is judged first. Of two at once, one creates it."""
        await self.questions.judge(request)
        new = NewSession(
            id=request.session_id,
            user_id=request.user_id or self.settings.default_user_id,
            lifetime=Lifetime(ttl_seconds=self.settings.default_ttl_seconds),
            # Who names no lifetime goes on for as long as there is something to say.
            ttl_sliding=True,
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
        fingerprint = event_ids.fingerprint(session.key, request.idempotency_key)
        reply_id, answer = await stored_reply.reply_id_of(self.db, request, session, fingerprint)
        if answer is not None:
            return await stored_reply.of_answer(self.db, request, session, answer)
        store = request.options.store or session.user_id
        memory_prompt = await self._memory_prompt(request, session, store)
        is_reminded = request.options.consolidate is None and REMINDER in memory_prompt
        reminded = store if is_reminded else None
        try:
            question = await self.questions.put(request, turn, fingerprint=fingerprint, memory_prompt=memory_prompt)
        except BaseException:
            await self._owe_reminder(reminded)
            raise
        rounds = Rounds(
            request=request,
            reply_id=reply_id,
            draft=question.draft,
            messages=question.prompt.messages,
            model=model,
            tools=tools_for(
                self.memory_prompts.memories, session, store, added, page_size=self.settings.recall_page_size
            ),
            most=self.settings.max_tool_rounds,
            store=self._store(request, turn, question, fingerprint),
            facts=stored_reply.facts_of(request),
            reminded=reminded,
            observer=self.observer,
        )
        return LiveReply(
            report=_report(session, question, reply_id),
            rounds=rounds,
            upstream=self.upstream,
            before_end=lambda: self._compact_inline(rounds),
        )

    async def _owe_reminder(self, store: str | None) -> None:
        """A reminder counts as given once the request that had it was answered."""
        if store is not None:
            with suppress(DomainError):
                await uninterrupted(self.memory_prompts.owe(store))

    async def _memory_prompt(self, request: ChatRequest, session: Session, store: str) -> list[str]:
        options = request.options
        if not options.long_term or not can_carry_tools(request.body):
            return []
        return await self.memory_prompts.parts(
            store, consolidate=options.consolidate, preload=options.preload_index, session=session
        )

    def _store(self, request: ChatRequest, turn: Turn, question: Question, fingerprint: str) -> ReplyStore:
        appended = question.appended
        return ReplyStore(
            db=self.db,
            turns=self.turns,
            count_tokens=self.questions.count_tokens,
            turn=turn,
            accepted=request.options.message_filter,
            other_ids=stored_reply.attempts(request, fingerprint, 0)
            if request.has_stable_ids and not turn.lease
            else [],
            counters=None if appended is None else appended.counters,
            may_compact=appended is None or appended.may_compact,
        )

    async def _compact_inline(self, rounds: Rounds) -> None:
        if (due := _due_compaction(rounds)) and due.inline:
            await self.compactions.run(due, rounds.store.turn.session, rounds.store.counters, rounds.model)

    def _compact_later(self, rounds: Rounds) -> None:
        if (due := _due_compaction(rounds)) and not due.inline:
            self.compactions.start(due, rounds.store.turn.session, rounds.store.counters, rounds.model)


def _check_identity(request: ChatRequest, session: Session) -> None:
    if request.session_key not in {None, session.key}:
        raise SessionNotFound(request.session_id)


def _due_compaction(rounds: Rounds) -> ChatCompaction | None:
    """That of the request, once the turn is complete and no failed one is being waited for."""
    may_compact = rounds.is_complete and rounds.store.may_compact
    return rounds.request.options.compaction if may_compact else None


def _report(session: Session, question: Question, reply_id: str) -> Report:
    appended = question.appended
    return Report(
        session_id=session.id,
        event_version=session.event_version if appended is None else appended.event_version,
        event_ids=question.event_ids,
        reply_id=reply_id,
        history_events=question.prompt.history_events,
        history_tokens=question.prompt.history_tokens,
    )
