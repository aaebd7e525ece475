"""The upstream's answer on its way to the client: whole or streamed, with the rounds that the service runs itself."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from uuid_utils import uuid4

from app.domain import completions, event_ids, json_values
from app.domain.chat import ChatRequest, Report
from app.domain.completions import ClientStream
from app.domain.deltas import Reply
from app.domain.errors import DomainError, UpstreamFailed
from app.domain.service_runs import Run, without_calls
from app.llm.sse import DONE, ServerSentEvent, encoded
from app.llm.upstream import StreamedAnswer, Upstream, WholeAnswer
from app.services.reply_store import ReplyStore, ToStore
from app.services.service_tools import ServiceTools
from app.services.turns import uninterrupted

log = structlog.get_logger()

Emit = Callable[[bytes], Awaitable[None]]
Value = TypeVar("Value")

# Proxies take a connection for dead that is silent for long.
SILENCE_SECONDS = 15.0
KEEP_ALIVE = b": keep-alive\n\n"


async def _nothing() -> None:
    pass


class _ErrorEvent(UpstreamFailed):
    """The upstream ended its stream with an error event, which is passed on as it came."""

    def __init__(self, raw: bytes) -> None:
        super().__init__("it ended its stream with an error")
        self.raw = raw


@dataclass(slots=True, kw_only=True)
class LiveReply:
    """One chat's answer. `facts` are what a replay needs to know of the request.

    `is_complete`: the turn is, as the reply asks the client for nothing. `before_end` runs before the answer ends.
    """

    request: ChatRequest
    report: Report
    messages: list[Mapping[str, Any]]
    model: str | None
    tools: ServiceTools
    max_rounds: int
    upstream: Upstream
    store: ReplyStore
    facts: Mapping[str, Any]
    before_end: Callable[[], Awaitable[None]] = field(default=_nothing)
    is_complete: bool = False
    _is_stored: bool = False
    _round: int = 0
    _run: Run | None = None
    _reply: Reply = field(default_factory=Reply)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _opened: StreamedAnswer | None = None

    async def whole(self) -> WholeAnswer:
        """The answer in one piece, stored. Raises what the upstream and the database raise."""
        answer = await self._whole()
        await self.before_end()
        return answer

    async def _whole(self) -> WholeAnswer:
        usage: Any = None
        while True:
            answer = await self.upstream.chat(self._body())
            completion, message = _read(answer)
            usage = completions.added(usage, completion.get("usage"))
            places = self.tools.places_of(message)
            if not places and self._round == 0:
                await self._finish(message, completion)
                return answer
            shown = without_calls(message, places)
            if not places:
                completion = completions.with_message(completion, message, usage)
                await self._finish(message, completion)
                return WholeAnswer(body=json_values.encode(completion).encode(), headers=answer.headers)
            if shown.get("tool_calls") or self._is_last_round:
                completion = completions.with_message(completion, shown, usage)
                await self._finish_mixed(message, places, completion)
                return WholeAnswer(body=json_values.encode(completion).encode(), headers=answer.headers)
            await self._go_on(message, places)

    async def open(self) -> Mapping[str, str]:
        """Ask for a stream; the headers of the answer that may be passed on, once its status is known to be good."""
        self._opened = await self._stack.enter_async_context(self.upstream.stream(self._body()))
        return self._opened.headers

    async def pump(self, emit: Emit) -> None:
        """Pass the stream on, store the reply, end. What goes wrong on the way ends it with an error event."""
        try:
            await self._stream(emit)
            await _awake(self.before_end(), emit)
        except asyncio.CancelledError:
            await uninterrupted(self._store_interrupted())
            raise
        except DomainError as error:
            log.warning("chat_stream_broke_off", reason=type(error).__name__)
            await uninterrupted(self._store_interrupted())
            await emit(error.raw if isinstance(error, _ErrorEvent) else _event(_error_of(error)))
        else:
            await emit(encoded(DONE))

    async def close(self) -> None:
        await self._stack.aclose()

    async def _stream(self, emit: Emit) -> None:
        client = ClientStream(frozenset(self.tools.tools), wants_usage=self.request.wants_usage)
        while True:
            await self._stream_round(client, emit)
            reply = self._reply
            message = completions.without_cut_calls(reply.message(), reply.finish_reason)
            places = self.tools.places_of(message)
            asks_client = len(places) < len(message.get("tool_calls") or [])
            if not places or asks_client or self._is_last_round:
                await self._end_stream(client, message, places, emit)
                return
            client.next_round(reply)
            await _awake(self._go_on(message, places), emit)
            await self._stack.aclose()
            await _awake(self.open(), emit)

    async def _end_stream(
        self, client: ClientStream, message: Mapping[str, Any], places: Sequence[int], emit: Emit
    ) -> None:
        asks_client = len(places) < len(message.get("tool_calls") or [])
        usage = self._reply.usage
        if self.tools:
            for chunk in client.end(self._reply, asks_client=asks_client):
                await emit(_event(chunk))
            usage = client.usage
        facts = {
            "id": self._reply.id,
            "model": self._reply.model,
            "created": self._reply.created,
            "usage": usage,
            "choices": [{"finish_reason": self._reply.finish_reason}],
        }
        if places:
            await uninterrupted(self._finish_mixed(message, places, facts))
        else:
            await uninterrupted(self._finish(message, facts))

    async def _stream_round(self, client: ClientStream, emit: Emit) -> None:
        """Pass one answer of the upstream on. Raises UpstreamFailed when it is not whole."""
        if self._opened is None:
            raise ValueError("The stream was not opened.")
        async for event in _never_silent(self._opened.events(), emit):
            if event.data is None:
                await emit(event.raw)
                continue
            if event.data.strip() == DONE:
                break
            await self._pass_on(event, client, emit)
        if self._reply.finish_reason is None:
            raise UpstreamFailed("its answer ended before it was complete")

    async def _pass_on(self, event: ServerSentEvent, client: ClientStream, emit: Emit) -> None:
        chunk = _chunk(event)
        if chunk.get("error"):
            raise _ErrorEvent(event.raw)
        if not self.tools:
            self._reply.add(chunk)
            await emit(event.raw)
            return
        for passed in client.chunks(chunk, self._reply):
            await emit(_event(passed))

    async def _go_on(self, message: Mapping[str, Any], places: Sequence[int]) -> None:
        """Run the service's calls, store the round, and take both into the next one."""
        stored = await self._with_results(message, places)
        await uninterrupted(self.store.round(stored))
        self._reply = Reply()
        self.messages += [one.message for one in stored]
        self._round += 1

    async def _finish(self, message: Mapping[str, Any], completion: Mapping[str, Any]) -> None:
        run = {} if self._run is None else self._run.mark_reply([])
        await uninterrupted(
            self.store.reply(
                ToStore(id=self.report.reply_id, message=message, metadata={**run, **self._kept_of(completion)})
            )
        )
        self._is_stored = True
        self.is_complete = not message.get("tool_calls")

    async def _finish_mixed(
        self, message: Mapping[str, Any], places: Sequence[int], completion: Mapping[str, Any]
    ) -> None:
        """The last round, in which the service ran some calls and the client is asked for the others."""
        reply, *results = await self._with_results(message, places)
        reply = ToStore(
            id=self.report.reply_id, message=message, metadata={**reply.metadata, **self._kept_of(completion)}
        )
        await uninterrupted(self.store.last_round([reply, *results]))
        self._is_stored = True
        self.is_complete = len(places) == len(message.get("tool_calls") or [])

    async def _with_results(self, message: Mapping[str, Any], places: Sequence[int]) -> list[ToStore]:
        self._run = self._run or Run(id=str(uuid4()), streamed=self.request.streamed)
        results = await self.tools.run(message, places)
        name = f"{self._run.id}/{self._round}"
        return [
            ToStore(
                id=event_ids.of_part(name, "assistant", 0), message=message, metadata=self._run.mark_reply(places)
            ),
            *(
                ToStore(
                    id=event_ids.of_part(name, "tool", place), message=result, metadata=self._run.mark_result(place)
                )
                for place, result in zip(places, results, strict=True)
            ),
        ]

    async def _store_interrupted(self) -> None:
        """What the client got of a reply that broke off; nothing where it was stored whole already."""
        if self._is_stored or self._reply.is_empty:
            return
        fragment = self._reply.fragment()
        run = {} if self._run is None else self._run.mark_reply([])
        with suppress(DomainError):
            await self.store.interrupted(ToStore(id=self.report.reply_id, message=fragment, metadata=run))

    @property
    def _is_last_round(self) -> bool:
        return self._round >= self.max_rounds

    def _body(self) -> dict[str, Any]:
        body = {**self.request.body, "messages": self.messages}
        if self.model is not None:
            body["model"] = self.model
        if not self.tools:
            return body
        body["tools"] = [*(body.get("tools") or []), *self.tools.definitions()]
        if self._is_last_round:
            body["tool_choice"] = "none"
        elif self._round and "tool_choice" in body:
            body["tool_choice"] = "auto"  # A forced call was made; forced again, it would be made for ever.
        return body

    def _kept_of(self, completion: Mapping[str, Any]) -> dict[str, Any]:
        """What a replay of this answer needs, where there can be one."""
        if not self.facts:
            return {}
        answer = {name: completion.get(name) for name in ("id", "model", "created", "usage")}
        return {**self.facts, "completion": {**answer, "finish_reason": completions.finish_reason_of(completion)}}


def _read(answer: WholeAnswer) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        completion = json_values.decode(answer.body)
        message = completions.message_of(completion)
        return completion, completions.without_cut_calls(message, completions.finish_reason_of(completion))
    except (json_values.InvalidJson, completions.NotACompletion) as error:
        raise UpstreamFailed("its answer is no chat completion") from error


def _chunk(event: ServerSentEvent) -> Mapping[str, Any]:
    try:
        chunk = json_values.decode(event.data or b"")
    except json_values.InvalidJson as error:
        raise UpstreamFailed("its stream holds something else than chunks of a completion") from error
    if not isinstance(chunk, dict):
        raise UpstreamFailed("its stream holds something else than chunks of a completion")
    return chunk


def _event(chunk: Mapping[str, Any]) -> bytes:
    return encoded(json_values.encode(chunk).encode())


def _error_of(error: DomainError) -> dict[str, Any]:
    """In the shape in which OpenAI's SDKs find an error in a stream."""
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    return {"error": {"message": str(error), "type": "server_error", "param": None, "code": code}}


async def _never_silent(events: AsyncIterator[ServerSentEvent], emit: Emit) -> AsyncIterator[ServerSentEvent]:
    """The events, with a comment to the client whenever none comes for long."""
    while (event := await _awake(anext(events, None), emit)) is not None:
        yield event


async def _awake(work: Awaitable[Value], emit: Emit) -> Value:
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=SILENCE_SECONDS))[0]:
            await emit(KEEP_ALIVE)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    return task.result()
