"""An answer that the log holds already: a repeated request with its idempotency key gets it without the upstream."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uuid_utils import uuid7

from app.domain import completions, event_ids, json_values
from app.domain.chat import ChatRequest, Report
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.messages import text_of
from app.domain.said import Request
from app.domain.service_runs import as_delivered, run_id
from app.domain.sessions import Session
from app.llm.sse import DONE, encoded
from app.llm.upstream import WholeAnswer
from app.storage import reads
from app.storage.database import Database

# How many attempts at one answer are looked for at a time.
_ATTEMPTS = 8

# More than the events of a run: its rounds are few.
_LOOKED_AT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """The answer as the client got it then, whole or as a stream as it is asked for now."""

    request: ChatRequest
    report: Report
    message: Mapping[str, Any]
    facts: Mapping[str, Any]

    async def whole(self) -> WholeAnswer:
        completion = completions.completion_of(self.message, self.facts)
        body = json_values.encode(completion).encode()
        return WholeAnswer(body=body, headers={"content-type": "application/json"})

    async def open(self) -> Mapping[str, str]:
        return {}

    async def pump(self, emit: Callable[[bytes], Awaitable[None]]) -> None:
        for chunk in completions.chunks_of(self.message, self.facts, wants_usage=self.request.wants_usage):
            await emit(encoded(json_values.encode(chunk).encode()))
        await emit(encoded(DONE))

    async def close(self) -> None:
        pass


async def reply_id_of(
    db: Database, request: ChatRequest, session: Session, fingerprint: str
) -> tuple[str, Event | None]:
    """The id that the reply will have; with an idempotency key, the complete reply that the log holds already.

    A reply that broke off leaves its id behind: the next attempt has another.
    """
    if not request.has_stable_ids:
        return str(uuid7()), None
    first = 0
    while True:
        ids = attempts(request, fingerprint, first)
        async with db.autocommit() as connection:
            known = await reads.get_events(connection, session.key, ids)
        whole = [event for event in known.values() if not (event.is_interrupted or event.is_late)]
        if whole and request.idempotency_key is not None:
            return whole[0].id, whole[0]
        if free := [event_id for event_id in ids if event_id not in known]:
            return free[0], None
        first += _ATTEMPTS


def attempts(request: ChatRequest, fingerprint: str, first: int) -> list[str]:
    """The ids of replies to one request, attempt by attempt."""
    answered = [
        fingerprint,
        *(event_ids.of_message(message, fingerprint) for message in Request.of(request.messages).new),
    ]
    return [event_ids.of_reply(answered, attempt) for attempt in range(first, first + _ATTEMPTS)]


async def of_answer(db: Database, request: ChatRequest, session: Session, answer: Event) -> StoredReply:
    """A reply of the log as an answer."""
    facts = answer.metadata.get("completion")
    report = Report(
        session_id=session.id,
        event_version=session.event_version,
        event_ids=(),
        reply_id=answer.id,
        history_events=0,
        history_tokens=0,
    )
    return StoredReply(
        request=request,
        report=report,
        message=await _delivered_message(db, session, answer),
        facts=facts if isinstance(facts, dict) else {},
    )


def facts_of(request: ChatRequest) -> dict[str, str]:
    """What the metadata of a reply keep of its request: how it was to begin, and what a repeated one is known by."""
    parts = Request.of(request.messages)
    facts = {}
    if prefill := "".join(text_of(message) or "" for message in parts.prefill):
        facts["prefill"] = prefill
    if request.idempotency_key is not None:
        facts |= {"idempotency_key": request.idempotency_key, "request_hash": event_ids.of_request(parts.new)}
    return facts


async def _delivered_message(db: Database, session: Session, reply: Event) -> dict[str, Any]:
    """What the client got of a stored reply: of a run, its texts joined, without the service's calls."""
    if run_id(reply) is None:
        return reply.message
    before = EventFilter(before_seq=reply.seq, last_n=_LOOKED_AT)
    async with db.reading() as connection:
        earlier = (await reads.read_log(connection, session, before)).events
    run = [event for event in earlier if run_id(event) == run_id(reply) and event.type == "assistant"]
    return as_delivered([*run, reply])
