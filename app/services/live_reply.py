"""The upstream's answer on its way to the client: whole or streamed, with the rounds that the service runs itself."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from app.domain import completions, json_values
from app.domain.chat import Report
from app.domain.completions import ClientStream
from app.domain.deltas import Reply
from app.domain.errors import DomainError, UpstreamFailed
from app.domain.messages import faults_of
from app.domain.service_runs import without_calls
from app.llm.sse import DONE, ServerSentEvent, encoded
from app.llm.upstream import StreamedAnswer, Upstream, WholeAnswer
from app.services.rounds import Rounds
from app.services.turns import ClientGone, uninterrupted

log = structlog.get_logger()

Emit = Callable[[bytes], Awaitable[None]]
Value = TypeVar("Value")

# Proxies take a connection for dead that is silent for long.
SILENCE_SECONDS = 15.0
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(slots=True, kw_only=True)
class LiveReply:
    """One chat's answer, asked for and stored as it is delivered. `before_end` runs before it ends."""

    report: Report
    rounds: Rounds
    upstream: Upstream
    before_end: Callable[[], Awaitable[None]]
    _reply: Reply = field(default_factory=Reply)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _opened: StreamedAnswer | None = None

    async def whole(self) -> WholeAnswer:
        """The answer in one piece, stored. Raises what the upstream and the database raise."""
        answer = await self._whole()
        await self.before_end()
        return answer

    async def open(self) -> Mapping[str, str]:
        """Ask for a stream; the headers of the answer that may be passed on, once its status is known to be good."""
        self._opened = await self._stack.enter_async_context(self.upstream.stream(self.rounds.body()))
        return self._opened.headers

    async def pump(self, emit: Emit) -> None:
        """Pass the stream on, store the reply, end. What goes wrong on the way ends it with an error event."""
        try:
            await self._stream(emit)
            await _awake(self.before_end(), emit)
        except (asyncio.CancelledError, ClientGone):
            await uninterrupted(self._interrupt())
            raise
        except DomainError as error:
            log.warning("chat_stream_broke_off", reason=type(error).__name__)
            await uninterrupted(self._interrupt())
            await emit(error.raw if isinstance(error, _ErrorEvent) else error_event(error))
        else:
            await emit(encoded(DONE))

    async def close(self) -> None:
        await self._stack.aclose()

    async def _whole(self) -> WholeAnswer:
        usage: Any = None
        while True:
            answer = await self.upstream.chat(self.rounds.body())
            completion, message = _read(answer)
            usage = completions.added(usage, completion.get("usage"))
            places = self.rounds.tools.places_of(message)
            shown = without_calls(message, places)
            if places and not shown.get("tool_calls") and not self.rounds.is_last:
                await uninterrupted(self.rounds.go_on(message, places))
                continue
            if places:
                completion = completions.with_message(completion, shown, usage)
                await uninterrupted(self.rounds.finish_mixed(message, places, completion))
            elif self.rounds.number:
                completion = completions.with_message(completion, message, usage)
                await uninterrupted(self.rounds.finish(message, completion))
            else:
                await uninterrupted(self.rounds.finish(message, completion))
                return answer  # Unchanged, as nothing was done on the way.
            return WholeAnswer(body=json_values.encode(completion).encode(), headers=answer.headers)

    async def _stream(self, emit: Emit) -> None:
        client = ClientStream(frozenset(self.rounds.tools.tools), wants_usage=self.rounds.request.wants_usage)
        while True:
            await self._stream_round(client, emit)
            message = completions.without_cut_calls(self._reply.message(), self._reply.finish_reason)
            if faults_of(message):
                raise UpstreamFailed("its answer comes to no message that a conversation could go on with")
            places = self.rounds.tools.places_of(message)
            asks_client = len(places) < len(message.get("tool_calls") or [])
            if not places or asks_client or self.rounds.is_last:
                await self._end_stream(client, message, places, emit)
                return
            client.next_round(self._reply)
            await _awake(self._go_on(message, places), emit)

    async def _go_on(self, message: Mapping[str, Any], places: Sequence[int]) -> None:
        async def go_on() -> None:
            number = self.rounds.number
            try:
                await self.rounds.go_on(message, places)
            finally:
                if self.rounds.number > number:
                    self._reply = Reply()  # What it said is stored: it is no fragment any more.

        await uninterrupted(go_on())
        await self._stack.aclose()
        await self.open()

    async def _end_stream(
        self, client: ClientStream, message: Mapping[str, Any], places: Sequence[int], emit: Emit
    ) -> None:
        reply, usage = self._reply, self._reply.usage
        asks_client = len(places) < len(message.get("tool_calls") or [])
        if self.rounds.tools:
            for chunk in client.end(reply, asks_client=asks_client):
                await emit(_event(chunk))
            usage = client.usage
        completion = completions.like_a_whole(reply, usage, asks_client=asks_client)
        if places:
            await uninterrupted(self.rounds.finish_mixed(message, places, completion))
        else:
            await uninterrupted(self.rounds.finish(message, completion))

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
        if chunk is None:
            log.warning("upstream_sent_junk")
            return
        if chunk.get("error"):
            raise _ErrorEvent(event.raw)
        if not self.rounds.tools:
            self._reply.add(chunk)
            await emit(event.raw)
            return
        for passed in client.chunks(chunk, self._reply):
            await emit(_event(passed))

    async def _interrupt(self) -> None:
        if not self._reply.is_empty:
            await self.rounds.interrupt(self._reply.fragment())


def error_event(error: DomainError) -> bytes:
    """In the shape in which OpenAI's SDKs find an error in a stream."""
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    return _event({"error": {"message": str(error), "type": "server_error", "param": None, "code": code}})


class _ErrorEvent(UpstreamFailed):
    """The upstream ended its stream with an error event, which is passed on as it came."""

    def __init__(self, raw: bytes) -> None:
        super().__init__("it ended its stream with an error")
        self.raw = raw


def _read(answer: WholeAnswer) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        completion = json_values.decode_leniently(answer.body)
        message = completions.message_of(completion)
    except (json_values.InvalidJson, completions.NotACompletion) as error:
        raise UpstreamFailed("its answer is no chat completion") from error
    return completion, completions.without_cut_calls(message, completions.finish_reason_of(completion))


def _chunk(event: ServerSentEvent) -> Mapping[str, Any] | None:
    """What an event says; None for what is no chunk, which no client could read either."""
    try:
        chunk = json_values.decode_leniently(event.data or b"")
    except json_values.InvalidJson:
        return None
    return chunk if isinstance(chunk, dict) else None


def _event(chunk: Mapping[str, Any]) -> bytes:
    try:
        return encoded(json_values.encode(chunk).encode())
    except UnicodeEncodeError:  # Half a surrogate pair: the other half may come in the next fragment.
        return encoded(json.dumps(chunk, default=float).encode())


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
