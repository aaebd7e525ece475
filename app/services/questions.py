"""What a chat request comes to before the upstream is asked: the prompt, and what of the request is stored first."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from uuid_utils import uuid7

from app.domain import event_ids, guards
from app.domain.chat import ChatRequest
from app.domain.conversation import continued
from app.domain.errors import CallAbandoned, CallAnswered, CallUnknown
from app.domain.events import Appended, Event, NewEvent
from app.domain.filters import ACTIVE
from app.domain.leases import TurnWrite
from app.domain.observer import UNOBSERVED, Observer
from app.domain.prompt import Budget, Draft, Prompt
from app.domain.said import Loaded, Request, Said
from app.domain.sessions import Session
from app.domain.tokens import CountTokens
from app.services.append import append_in_turn, counted
from app.services.turns import Turn
from app.storage import calls, histories
from app.storage.database import Database

log = structlog.get_logger()

# So many messages take milliseconds to be looked at: that leaves the event loop.
_MANY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`stored` are the messages that are, or were, stored first, with their ids; `appended` tells what that did."""

    draft: Draft
    prompt: Prompt
    stored: list[tuple[str, Said]]
    appended: Appended | None = None
    event_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """`replay_fields` are those of stored messages that the upstream takes back beyond the usual ones."""

    db: Database
    count_tokens: CountTokens
    replay_fields: frozenset[str]
    observer: Observer = UNOBSERVED

    async def judge(self, request: ChatRequest) -> None:
        """Raises what is wrong with a request whose session is not there yet."""
        said = await self._continued(request, Loaded(), fingerprint="")
        if strays := guards.results_without_call(said):
            raise CallUnknown(strays)
        await self._decided(request, Loaded(), said, fingerprint="")

    async def put(
        self, request: ChatRequest, turn: Turn, *, fingerprint: str, memory_prompt: Sequence[str] = ()
    ) -> Question:
        """Load the history, continue it by the request, and store what is new.

        Raises CallAnswered, CallAbandoned, CallUnknown, CallsUnanswered, ContextTooLarge, TurnLost, and then has
        stored nothing.
        """
        session, options = turn.session, request.options
        shown = request.event_filter.merge(ACTIVE)
        loaded = await histories.load(self.db, session, shown, max_tokens=options.max_context_tokens)
        said = await self._continued(request, loaded, fingerprint=fingerprint)
        if strays := guards.results_without_call(said):
            await self._refuse_results(session, strays)
        if own := guards.calls_of_the_request(said):
            await self._refuse_overtaken(session, own)
        question = await self._decided(request, loaded, said, fingerprint=fingerprint, memory_prompt=memory_prompt)
        if not question.stored:
            return question
        appended = await self._append(request, turn, question.stored)
        return replace(question, appended=appended, event_ids=_written(appended, loaded))

    async def _continued(self, request: ChatRequest, loaded: Loaded, *, fingerprint: str) -> list[Said]:
        parts = Request.of(request.messages)
        known_ids: frozenset[str] = frozenset()
        if request.idempotency_key is not None:
            known_ids = frozenset(event_ids.of_message(message, fingerprint) for message in parts.new)
        parts = replace(parts, shown=request.event_filter, known_ids=known_ids)
        options = request.options
        if len(request.messages) + len(loaded.window) < _MANY:
            return continued(loaded, parts, options.message_filter, options.history)
        return await asyncio.to_thread(continued, loaded, parts, options.message_filter, options.history)

    async def _refuse_results(self, session: Session, strays: list[str]) -> None:
        """Say what is wrong with results that are for none of the open calls."""
        async with self.db.reading() as connection:
            known = await calls.known_calls(connection, session.key, strays)
        if unknown := [call_id for call_id in strays if call_id not in known]:
            raise CallUnknown(unknown)
        if answered := [call_id for call_id in strays if known[call_id]]:
            raise CallAnswered(answered)
        raise CallAbandoned(strays)

    async def _refuse_overtaken(self, session: Session, own: list[str]) -> None:
        """Calls that the log holds open, but not where the conversation stands: others went on meanwhile.

        Of one that was answered, and archived perhaps, the log has the results already.
        """
        async with self.db.reading() as connection:
            known = await calls.known_calls(connection, session.key, own)
        if abandoned := [call_id for call_id, is_answered in known.items() if not is_answered]:
            raise CallAbandoned(abandoned)

    async def _decided(
        self,
        request: ChatRequest,
        loaded: Loaded,
        said: list[Said],
        *,
        fingerprint: str,
        memory_prompt: Sequence[str] = (),
    ) -> Question:
        storing = guards.stored_of(said, request.options.message_filter)
        sent = guards.without_broken_calls(said)
        _warn(dropped=len(said) - len(sent), overruled=storing.overruled)
        self.observer.orphans_left_out(len(said) - len(sent))
        stored = [
            (event_ids.of_message(one.message, fingerprint) if request.has_stable_ids else str(uuid7()), one)
            for one in storing.messages
        ]
        budget = None
        if request.options.max_context_tokens is not None:
            budget = Budget(max_tokens=request.options.max_context_tokens, count_tokens=self.count_tokens)
        draft = Draft(
            said=sent,
            stored_system=loaded.system,
            system=Request.of(request.messages).system,
            memory_prompt=memory_prompt,
            also=self.replay_fields,
            budget=budget,
            names={id(one): event_id for event_id, one in stored},
        )
        # Counting tokens leaves the event loop.
        made = draft.prompt() if budget is None else await asyncio.to_thread(draft.prompt)
        return Question(draft=draft, prompt=made, stored=stored)

    async def _append(self, request: ChatRequest, turn: Turn, stored: Sequence[tuple[str, Said]]) -> Appended:
        tokens = await counted(self.count_tokens, [one.message for _, one in stored])
        events = [
            NewEvent(id=event_id, message=one.message, tokens=count)
            for (event_id, one), count in zip(stored, tokens, strict=True)
        ]
        write = TurnWrite(lease=turn.lease, required=turn.lease is not None)
        return await append_in_turn(self.db, turn.session, events, named=request.has_stable_ids, turn=write)


def _written(appended: Appended, loaded: Loaded) -> tuple[str, ...]:
    """The events that were appended, without those that the log held already."""
    if not appended.appended:
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
