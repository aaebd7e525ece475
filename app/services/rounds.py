"""The rounds of one answer: what is asked of the upstream in each, and what of it the log keeps."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from uuid_utils import uuid4

from app.domain import completions, event_ids
from app.domain.chat import ChatRequest
from app.domain.errors import DomainError
from app.domain.messages import faults_of
from app.domain.observer import UNOBSERVED, Observer
from app.domain.prompt import Draft
from app.domain.service_runs import Run
from app.services.reply_store import ReplyStore, ToStore
from app.services.service_tools import ServiceTools, unforced
from app.services.token_use import note_tokens


@dataclass(slots=True, kw_only=True)
class Rounds:
    """`reply_id` was promised to the client, `facts` are what the reply's event has to tell of the request.

    `number` counts the rounds after which the service went on by itself. `is_complete`: the turn is, as its reply
    asks the client for nothing. Nothing here stops halfway: who calls it sees to that (`uninterrupted`).
    """

    request: ChatRequest
    reply_id: str
    draft: Draft
    messages: list[Mapping[str, Any]]
    model: str | None
    tools: ServiceTools
    most: int
    store: ReplyStore
    facts: Mapping[str, Any]
    observer: Observer = UNOBSERVED
    # The store whose consolidation the request reminds of, where that was due.
    reminded: str | None = None
    number: int = 0
    is_complete: bool = False
    _is_stored: bool = False
    _run: Run | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the upstream answered, once at least."""
        return bool(self.number) or self._is_stored

    @property
    def is_last(self) -> bool:
        """Whether the service ran its tools as often as it may: now the model has to answer."""
        return self.number >= self.most

    def body(self) -> dict[str, Any]:
        """The request for the upstream."""
        body = {**self.request.body, "messages": self.messages}
        if self.model is not None:
            body["model"] = self.model
        if not self.tools:
            return body
        body["tools"] = [*(body.get("tools") or []), *self.tools.definitions()]
        if self.is_last:
            body["tool_choice"] = "none"
        elif self.number and "tool_choice" in body:
            body["tool_choice"] = unforced(body["tool_choice"])
        return body

    async def go_on(self, message: Mapping[str, Any], places: Sequence[int]) -> None:
        """Run the service's calls, which stand at these places, store the round, and take it into the next one."""
        stored = await self._with_results(message, places)
        await self.store.round(stored)
        self.number += 1
        self.draft = self.draft.followed_by([(one.id, one.message) for one in stored])
        self.messages = (await asyncio.to_thread(self.draft.prompt)).messages

    async def finish(self, message: Mapping[str, Any], completion: Mapping[str, Any]) -> None:
        """Store the reply that ends the answer."""
        metadata = {**self._mark(), **self._kept_of(completion)}
        reply = ToStore(id=self.reply_id, message=message, metadata=metadata)
        # Of a run every round is stored: the client got them as one message.
        await (self.store.last_round([reply]) if self.number else self.store.reply(reply))
        self._is_stored = True
        self.is_complete = not message.get("tool_calls")
        await self._note_tokens(message, completion.get("usage"))

    async def finish_mixed(
        self, message: Mapping[str, Any], places: Sequence[int], completion: Mapping[str, Any]
    ) -> None:
        """Store the last round, in which the service ran some calls and the client is asked for the others."""
        asked, *results = await self._with_results(message, places)
        metadata = {**asked.metadata, **self._kept_of(completion)}
        reply = ToStore(id=self.reply_id, message=message, metadata=metadata)
        await self.store.last_round([reply, *results])
        self._is_stored = True
        self.is_complete = len(places) == len(message.get("tool_calls") or [])
        await self._note_tokens(message, completion.get("usage"))

    async def interrupt(self, fragment: Mapping[str, Any]) -> None:
        """Store what the client got of a reply that broke off, unless the reply is there already."""
        if not self._is_stored:
            with suppress(DomainError):
                await self.store.interrupted(ToStore(id=self.reply_id, message=fragment, metadata=self._mark()))

    async def _with_results(self, message: Mapping[str, Any], places: Sequence[int]) -> list[ToStore]:
        self._run = run = self._run or Run(id=str(uuid4()), streamed=self.request.streamed)
        results = await self.tools.run(message, places)
        name = f"{run.id}/{self.number}"
        asked = ToStore(id=event_ids.of_part(name, "assistant", 0), message=message, metadata=run.mark_reply(places))
        answered = [
            ToStore(id=event_ids.of_part(name, "tool", place), message=result, metadata=run.mark_result(place))
            for place, result in zip(places, results, strict=True)
        ]
        return [asked, *answered]

    async def _note_tokens(self, message: Mapping[str, Any], usage: Any) -> None:
        """Of all rounds, once they are stored. Without `usage` those of the last one's conversation are counted."""
        said = self.draft.said
        await note_tokens(
            self.observer,
            self.store.count_tokens,
            "chat",
            usage,
            prompt=[one.message for one in said if one.event is None],
            reply={"role": "assistant"} if faults_of(message) else message,
            known=sum(one.event.tokens for one in said if one.event is not None),
        )

    def _mark(self) -> dict[str, Any]:
        return {} if self._run is None else self._run.mark_reply([])

    def _kept_of(self, completion: Mapping[str, Any]) -> dict[str, Any]:
        """With what a replay of this answer needs, where there can be one."""
        if "idempotency_key" not in self.facts:
            return dict(self.facts)
        answer = {name: completion.get(name) for name in ("id", "model", "created", "usage")}
        return {**self.facts, "completion": {**answer, "finish_reason": completions.finish_reason_of(completion)}}
