"""An answer that the log holds already: a repeated request with its idempotency key gets it without the upstream."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.domain import completions, json_values
from app.domain.chat import ChatRequest, Report
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.service_runs import as_delivered, run_id
from app.domain.sessions import Session
from app.llm.sse import DONE, encoded
from app.llm.upstream import WholeAnswer
from app.storage import reads
from app.storage.database import Database

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


async def delivered_message(db: Database, session: Session, reply: Event) -> dict[str, Any]:
    """What the client got of a stored reply: of a run, its texts joined, without the service's calls."""
    if run_id(reply) is None:
        return reply.message
    before = EventFilter(before_seq=reply.seq, last_n=_LOOKED_AT)
    async with db.reading() as connection:
        earlier = (await reads.read_log(connection, session, before)).events
    run = [event for event in earlier if run_id(event) == run_id(reply) and event.type == "assistant"]
    return as_delivered([*run, reply])
