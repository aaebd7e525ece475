"""Chats under load: whole and streamed, with tools, sent again with their key until they are answered."""

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import httpx

from tests.service.load.events import Here
from tests.service.load.model import LOOK_UP, Attempt, Model
from tests.service.load.round_robin import RoundRobin, slug_of
from tests.service.scripted_model import Line, Message, Reply, data_of, words_of

_TRIES = 12
_PAUSE_SECONDS = 0.3
_ROUNDS = 4
# How often a client leaves calls unanswered, and asks something else the next time.
_GIVES_UP = 0.35
_numbers = count()


async def chat(here: Here, model: Model, view: list[Message]) -> None:
    """A question, its answer, and the tool loop in between; `view` is what the client keeps of it.

    Alone in its session a client sends everything again, or only what is new; in a room, only what is new, and no
    question twice: once others have spoken it is a new one.
    """
    new = [here.session.says("user", "is asked")]
    turn = _Turn(here, model, view, new[0].word, resends=here.chance.random() < 0.5 and not here.session.is_shared)
    for _ in range(_ROUNDS):
        if (reply := await turn.insist(new)) is None:
            return
        view += [*(line.message for line in new), reply]
        if not (calls := reply.get("tool_calls")):
            return
        if here.chance.random() < _GIVES_UP:
            here.session.abandoned.update(words_of(reply))
            view.clear()
            return
        new = [here.session.says("tool", "is the result", tool_call_id=call["id"]) for call in calls]
    await turn.insist(new)


class _Turn:
    """All requests of one turn. Their key is the word of the question."""

    def __init__(self, here: Here, model: Model, view: list[Message], key: str, *, resends: bool) -> None:
        self._here = here
        self._model = model
        self._view = view
        self._key = key
        self._resends = resends
        self._streams = here.chance.random() < 0.5
        self._is_proxied = here.chance.random() < 0.5

    async def insist(self, new: list[Line]) -> Message | None:
        """The reply, acknowledged with all that it answers; None when there is none after so many tries."""
        for _ in range(1 if self._here.session.is_shared else _TRIES):
            reply = await self._send(new)
            if reply is not None:
                self._here.session.acknowledge(*(line.word for line in new), *words_of(reply))
                return reply
            await asyncio.sleep(_PAUSE_SECONDS)
        return None

    async def _send(self, new: list[Line]) -> Message | None:
        name = f"attempt-{next(_numbers)}"
        self._model.attempts[name] = Attempt(name, self._here.session, new, self._key)
        body, headers = self._request(name, [line.message for line in new])
        client, began = self._here.client, time.monotonic()
        url, path = client.next_url(), "/v1/chat/completions" if self._is_proxied else "/v1/chat"
        try:
            async with client.http.stream("POST", url + path, json=body, headers=headers) as answer:
                return await self._reply(answer, began)
        except httpx.TransportError as error:
            client.note_broken(url, began, f"POST {path}", error)
            return None
        finally:
            del self._model.attempts[name]

    def _request(self, name: str, new: Sequence[Message]) -> tuple[dict[str, Any], dict[str, str]]:
        session = self._here.session
        body: dict[str, Any] = {
            "user": name,
            "model": "m",
            "session_id": session.id,
            "user_id": session.user,
            "messages": [*self._view, *new] if self._resends else list(new),
            "memory": {"recall": True, "long_term": True},
            "stream": self._streams,
        }
        if not session.is_shared:  # In a room another's question would overtake the calls.
            body["tools"] = [LOOK_UP]
        if session.compacts:
            strategy = {"turn_window": {"max_turns": 3}}
            body["memory"]["compaction"] = {"trigger": {"turns": 5}, "strategy": strategy, "mode": "inline"}
        return body, {"Idempotency-Key": self._key}

    async def _reply(self, answer: httpx.Response, began: float) -> Message | None:
        if answer.status_code != 200:
            await answer.aread()
            self._here.client.note(answer, began)
            if answer.status_code < 500 and slug_of(answer) not in {"session-busy", "upstream-refused"}:
                self._here.complain(f"The chat {self._key}", answer)
            return None
        self._here.client.seen[200, ""] += 1
        if self._streams:
            return await _read_stream(self._here.client, answer)
        await answer.aread()
        message: Message = answer.json()["choices"][0]["message"]
        return message


async def _read_stream(client: RoundRobin, answer: httpx.Response) -> Message | None:
    """The reply, when its stream came to its end."""
    reply = Reply()
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            continue
        chunk = data_of(line)
        if chunk is None:
            return reply.message()
        if "error" in chunk:
            client.seen["stream", chunk["error"].get("code") or "upstream-refused"] += 1
            return None
        reply.add(chunk)
    raise httpx.RemoteProtocolError("The stream ended with neither [DONE] nor an error.")
