"""Random conversations: clients of all styles that ask, call, retry, leave and compact through the running service.

Each conversation is drawn from its number alone. What its clients know of it is kept in `Conversation.lines`.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from threading import Event as Never
from typing import Any, Literal

import httpx

from tests.prompt_rules import rendered
from tests.service.scripted_model import (
    SEARCH,
    SUMMARIZE,
    Attempt,
    Line,
    Message,
    Model,
    Reply,
    Step,
    Words,
    accepts,
    as_call,
    calls_of,
    data_of,
    text_of,
    words_of,
)
from tests.upstream import Answer, Call, Script

# Faults of the service that are known: clients keep away from them. Without its entry here, they do not.
KNOWN_FAULTS = {
    "overtaken call": "A turn resent in a session of several clients may stand behind what others said since.",
    "rejected call": "Given-up calls that the message filter kept out of the log are refused when resent (422).",
    "repeated after others": "A question repeated by its key after others', and answered meanwhile, is sent twice.",
    "filtered and resent": "Behind a filter of types or words, what is resent is not always told from what is new.",
    "archived unanswered": "Questions that nothing answered, once archived, are new when they are resent.",
}

_Style = Literal["new", "turn", "everything", "window", "replace"]

_LOOK_UP = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
_FILTERS: list[dict[str, Any]] = [{"types": ["user", "assistant"]}, {"types": ["assistant"]}, {"keyword": "secret"}]
_MESSAGE_FILTERS: list[Any] = [
    "all",
    {"types": ["user", "assistant"]},
    {"not": {"contains": "SECRET"}},
    {"or": [{"contains": "secret"}, {"types": ["user", "tool"]}]},
]
# Nothing sets it: the model waits until its client is gone.
_NEVER = Never()
_PIECE = 4
_AT_ONCE = 8


def _is_known(fault: str) -> bool:
    return fault in KNOWN_FAULTS


@dataclass
class Outcome:
    """What came of an attempt, for its client; `message`: the reply, or what it got of it."""

    kind: Literal["answered", "failed", "left", "refused"]
    message: Message | None = None
    problem: str | None = None


@dataclass(eq=False)
class Conversation:
    """A session, its clients, and all that was said in it."""

    number: int
    http: httpx.AsyncClient
    model: Model
    lines: dict[str, Line] = field(default_factory=dict)
    # Words that clients send and that are not for the log: own system prompts, examples, prefills.
    unstored: set[str] = field(default_factory=set)
    clients: "list[Client]" = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    # The log in the end, and the prompt that the service would make of it.
    log: list[dict[str, Any]] = field(default_factory=list)
    context: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = self.chance = Random(self.number)
        self.id = f"conversation-{self.number}"
        self.words = Words(self.number)
        self._serial = count()
        self.stores_system = chance.random() < 0.4
        self.compacts = chance.random() < 0.5
        self.recalls = chance.random() < 0.5
        self.filters = chance.random() < 0.3
        self.budgets = chance.random() < 0.2
        self.interleaves = chance.random() < 0.4
        self.event_ids = chance.choice(["random", "random", "idempotent"])
        self.message_filter = chance.choice([None, None, None, *_MESSAGE_FILTERS])
        if _is_known("rejected call") and self.may_reject_calls:
            self.message_filter = None
        self.is_shared = chance.random() < 0.35
        # Whose call a result without an id of its own answers, nobody could tell in a session of several clients.
        self.ids = "own" if self.is_shared else chance.choice(["own", "own", "own", "repeated", "blank"])
        self.greets = not self.is_shared and chance.random() < 0.15
        self.clients += [Client(self, place) for place in range(chance.choice([2, 2, 3]) if self.is_shared else 1)]

    @property
    def systems(self) -> list[Line]:
        return [line for line in self.lines.values() if line.role == "system"]

    @property
    def may_reject_calls(self) -> bool:
        return isinstance(self.message_filter, dict) and "types" not in self.message_filter

    def next_name(self) -> str:
        return f"{self.id}/{next(self._serial)}"

    def says(self, message: Message, *, call: Line | None = None) -> Line:
        line = Line(message, call)
        self.lines[line.word] = line
        return line

    def unstored_message(self, role: str, text: str) -> Message:
        word = self.words.new()
        self.unstored.add(word)
        return {"role": role, "content": f"{word} {text}"}

    def stores(self, line: Line) -> bool:
        """Whether the log takes a message of a request: a result just when it has the call."""
        if line.call is not None:
            return line.call.fate == "stored"
        return accepts(self.message_filter, line.message)

    async def run(self) -> None:
        if self.stores_system:
            body = {"id": self.id, "user_id": "alice", "allow_system_messages": True}
            await self.http.post("/v1/sessions", json=body)
        await asyncio.gather(*(client.run() for client in self.clients))

    async def read(self) -> None:
        answer = await self.http.get(f"/v1/sessions/{self.id}/events")
        if answer.status_code == 200:  # 404 when nothing was ever said.
            self.log = answer.json()["events"]
            context = await self.http.get(f"/v1/sessions/{self.id}/context")
            self.context = context.json()["messages"]

    async def append(self, *lines: Line) -> None:
        body = {"user_id": "alice", "events": [{"message": line.message} for line in lines]}
        answer = await self.http.post(f"/v1/sessions/{self.id}/events", json=body)
        if answer.status_code != 201:
            self.faults.append(f"{self.id}: An append was answered {answer.status_code}: {answer.text}")
        for line in lines:
            line.is_known(accepted=True)
            line.is_settled()

    async def compact(self) -> None:
        answer = await self.http.post(f"/v1/sessions/{self.id}/compact", json={"strategy": self.strategy()})
        # The model refuses to write some summaries; before the first chat there is no session.
        if answer.status_code not in {200, 404, 500, 502}:
            self.faults.append(f"{self.id}: A compaction was answered {answer.status_code}: {answer.text}")

    def strategy(self) -> dict[str, Any]:
        chance = self.chance
        size = chance.randint(2, 6)
        instructions = f"{SUMMARIZE} {self.number}"
        summarize = {"max_events": size, "overlap": chance.randrange(2), "system_prompt": instructions}
        strategies: list[dict[str, Any]] = [
            {"sliding_window": {"max_events": size}},
            {"token_budget": {"max_tokens": chance.randint(20, 200)}},
            {"turn_window": {"max_turns": chance.randint(1, 3)}},
            {"summarize": summarize},
            {"summarize": summarize},
        ]
        return chance.choice(strategies)


class Client:
    """A chat front end or an agent, with habits of its own and its own view of the conversation."""

    def __init__(self, conversation: Conversation, place: int) -> None:
        chance = self._chance = Random(conversation.chance.random())
        self._conversation = conversation
        self._place = place
        self.style = chance.choice(_styles(conversation))
        self._streams = chance.choice([0.0, 0.5, 1.0])
        self._uses_keys = chance.random() < 0.4
        self._on_busy = chance.choice(["wait", "wait", "reject", *["interleave"] * 3 * conversation.interleaves])
        self._has_tools = chance.random() < 0.7
        archives = conversation.compacts and _is_known("archived unanswered")
        self._keeps_unanswered = chance.random() < 0.5 and self.style != "replace" and not archives
        self._keeps_fragments = chance.random() < 0.5
        # Without any reply in front, or after others' turns, who says a question again says a new one.
        can_drop = not conversation.is_shared and self.style != "window"
        self._keeps_given_up_calls = chance.random() < 0.5 or not can_drop
        self._keeps_all_fields = conversation.message_filter is None and chance.random() < 0.5
        self._sends_strings = chance.random() < 0.5
        self._system = [conversation.unstored_message("system", "Be brief.")] if chance.random() < 0.4 else []
        self._examples: list[Message] = []
        if self.style == "everything" and chance.random() < 0.3:
            pairs = [("user", "Ping?"), ("assistant", "Pong.")]
            self._examples = [conversation.unstored_message(role, text) for role, text in pairs]
        self._view: list[Message] = []
        # The calls that its last reply made, and words of what broke off of the reply that it waits for.
        self._caller: Line | None = None
        self._fragments: list[str] = []

    @property
    def _resends(self) -> bool:
        return self.style in {"everything", "window"}

    @property
    def _is_alone(self) -> bool:
        return not self._conversation.is_shared

    @property
    def _probes(self) -> bool:
        """Whether it tries what has to be refused, as far as it can tell what that is."""
        can_tell = self._conversation.ids == "own" and self._conversation.message_filter is None and self._is_alone
        return can_tell and self._chance.random() < 0.3

    # What it does

    async def run(self) -> None:
        if self._conversation.greets:
            greeting = self._conversation.says({"role": "assistant", "content": self._text()})
            await self._conversation.append(greeting)
            self._view.append(greeting.message)
        for _ in range(self._chance.randint(5, 9)):
            await self._take_turn()
            await self._do_something_else()

    async def _take_turn(self) -> None:
        """A question, its answer, and the tool loop in between."""
        self._fragments = []
        several = self._chance.random() < 0.1
        new = [self._question() for _ in range(1 + several)]
        question = words_of(new[-1].message)
        key = self._conversation.words.new() if self._uses_keys else None
        for _ in range(4):
            outcome = await self._insist(new, question, key)
            if outcome.kind != "answered" or outcome.message is None:
                self._give_up(new, outcome)
                return
            self._view += [*(line.message for line in new), outcome.message]
            calls = outcome.message.get("tool_calls")
            if new[0].call is not None and not calls and self._probes:
                await self._expect_refusal("call-answered", new)
            if not calls:
                return
            if self._chance.random() < 0.15:
                await self._abandon(calls)
                return
            new = self._results(calls)
            if len(new) > 1 and self._probes:
                await self._expect_refusal("calls-unanswered", new[:1])

    async def _insist(self, new: list[Line], question: list[str], key: str | None) -> Outcome:
        """Send, and send again what was not answered, as SDKs do; at times also what was."""
        outcome = await self._send(new, question, key)
        while outcome.kind in {"failed", "left"} and self._tries_again(key):
            outcome = await self._send(new, question, key)
        if outcome.kind == "answered" and key is not None and self._can_have_it_replayed():
            await self._send(new, question, key, replayed=outcome.message)
        return outcome

    def _tries_again(self, key: str | None) -> bool:
        alone = self._is_alone or (key is not None and not _is_known("repeated after others"))
        return alone and self._chance.random() < 0.6

    def _can_have_it_replayed(self) -> bool:
        return self._caller is not None and self._caller.fate == "stored" and self._chance.random() < 0.15

    def _give_up(self, new: list[Line], outcome: Outcome) -> None:
        if self._keeps_unanswered and outcome.kind != "refused":
            self._view += [line.message for line in new]
            if self._keeps_fragments and outcome.message:
                self._view.append(outcome.message)

    async def _abandon(self, calls: Sequence[dict[str, Any]]) -> None:
        """The user has lost patience; with a client that tries all the same to hand results in later."""
        has_replies = any(message["role"] == "assistant" for message in self._view[:-1])
        rejected = self._caller is None or not accepts(self._conversation.message_filter, self._caller.message)
        if self._resends and rejected:
            self._view.clear()  # Who resends calls that are not stored has to answer them.
        elif has_replies and not self._keeps_given_up_calls:
            self._view.pop()
        if self._probes and self.style == "new":  # The others would have to know of this question.
            late = self._results(calls)
            outcome = await self._insist([self._question()], [], None)
            if outcome.kind in {"answered", "failed", "left"}:
                await self._expect_refusal("call-abandoned", late)

    async def _expect_refusal(self, problem: str, new: list[Line]) -> None:
        await self._send(new, [], None, refusal=problem)

    async def _do_something_else(self) -> None:
        chance, conversation = self._chance, self._conversation
        if chance.random() < 0.1:
            said = [conversation.says({"role": role, "content": self._text()}) for role in ("user", "assistant")]
            await conversation.append(*said)
            self._view += [line.message for line in said]
        if conversation.stores_system and chance.random() < 0.2:
            await conversation.append(conversation.says({"role": "system", "content": self._text()}))
        if conversation.compacts and chance.random() < 0.15:
            await conversation.compact()

    # What it says

    def _text(self) -> str:
        secret = "secret " if self._chance.random() < 0.2 else ""
        return f"{self._conversation.words.new()} {secret}{'and so on ' * self._chance.randrange(6)}"

    def _question(self) -> Line:
        text = self._text()
        parts = [{"type": "text", "text": text}]
        return self._conversation.says(
            {"role": "user", "content": self._chance.choice([*[text] * 5, parts, [*parts, _IMAGE]])}
        )

    def _results(self, calls: Sequence[dict[str, Any]]) -> list[Line]:
        messages = [{"role": "tool", "tool_call_id": call["id"], "content": self._text()} for call in calls]
        lines = [self._conversation.says(message, call=self._caller) for message in messages]
        if self._conversation.ids == "own":
            self._chance.shuffle(lines)
        return lines

    # How it sends that

    async def _send(
        self,
        new: list[Line],
        question: list[str],
        key: str | None,
        *,
        refusal: str | None = None,
        replayed: Message | None = None,
    ) -> Outcome:
        hidden = list(self._fragments)
        messages = [line.message for line in new]
        body = self._body(messages, hidden)
        if refusal is not None:
            body |= {"messages": messages, "memory": {}, "filter": {}}
        attempt = Attempt(
            name=self._conversation.next_name(),
            conversation=self._conversation,
            client=self,
            body=body,
            new=new,
            question=question,
            steps=[] if refusal or replayed else self._steps(body),
            hidden=hidden,
            key=key,
            refusal=refusal,
            replayed=replayed,
        )
        body["user"] = attempt.name
        self._conversation.model.attempts[attempt.name] = attempt
        while True:
            outcome = await self._exchange(attempt)
            if outcome.problem != "session-busy":
                break
            await asyncio.sleep(0.02)
        if refusal is None and replayed is None:
            self._note(attempt, outcome)
        return outcome

    def _body(self, new: list[Message], hidden: list[str]) -> dict[str, Any]:
        chance, conversation = self._chance, self._conversation
        messages = self._messages(new, hidden)
        body: dict[str, Any] = {"messages": messages, "memory": self._memory(), "model": "m", "user_id": "alice"}
        if chance.random() < self._streams:
            body["stream"] = True
        if self._has_tools:
            body["tools"] = [_LOOK_UP]
        if conversation.filters and chance.random() < 0.5:
            windows = [{"last_n": chance.randint(1, 6)}, {"exclude_synthetic": True}]
            hides = self.style == "new" or not _is_known("filtered and resent")
            body["filter"] = chance.choice([*windows, *_FILTERS] if hides else windows)
        return body

    def _messages(self, new: list[Message], hidden: list[str]) -> list[Message]:
        chance, conversation = self._chance, self._conversation
        said = [*self._resent(new, hidden), *new]
        if chance.random() < 0.05:
            said.append(conversation.unstored_message("assistant", "Well,"))
        place = 0 if chance.random() < 0.8 else chance.randint(0, len(said))
        said[place:place] = self._system
        if conversation.systems and chance.random() < 0.2:  # The same text as the stored one.
            said.insert(0, conversation.systems[-1].message)
        return said

    def _resent(self, new: list[Message], hidden: list[str]) -> list[Message]:
        view = [self._as_resent(message) for message in self._view]
        starts = [place for place, message in enumerate(view) if message["role"] == "user"]
        match self.style:
            case "turn" if new[0]["role"] == "tool":
                return view[starts[-1] :]
            case "everything":
                return [*self._examples, *view]
            case "window":
                return view[starts[-3] :] if len(starts) > 3 else view
            case "replace":
                return self._edited(view, hidden)
        return []

    def _edited(self, view: list[Message], hidden: list[str]) -> list[Message]:
        """A history that its client has rewritten, which nobody else shall see."""
        edits = [{"role": role, "content": self._conversation.words.new()} for role in ("user", "assistant")]
        hidden += [edit["content"] for edit in edits]
        return [*edits, *view[-4:]] if self._chance.random() < 0.5 else [*view, *edits]

    def _as_resent(self, message: Message) -> Message:
        content = message.get("content")
        if self._sends_strings and isinstance(content, list) and len(content) == 1:
            message = {**message, "content": content[0]["text"]}
        if self._keeps_all_fields or message["role"] != "assistant":
            return message
        kept = {"role", "content", "tool_calls"} | ({"refusal"} if message.get("refusal") else set())
        return {name: value for name, value in message.items() if name in kept}

    def _memory(self) -> dict[str, Any]:
        chance, conversation = self._chance, self._conversation
        memory: dict[str, Any] = {
            "recall": conversation.recalls and chance.random() < 0.7,
            "on_busy": self._on_busy,
            "event_ids": conversation.event_ids,
        }
        if self.style == "replace":
            memory["history"] = "replace"
        if conversation.message_filter is not None:
            memory["message_filter"] = conversation.message_filter
        if conversation.budgets and chance.random() < 0.5:
            memory["max_context_tokens"] = chance.randint(100, 600)
        if conversation.compacts and chance.random() < 0.4:
            trigger = chance.choice([{"turns": chance.randint(1, 4)}, {"tokens": chance.randint(50, 300)}])
            mode = chance.choice(["inline", "inline", "background"])
            memory["compaction"] = {"trigger": trigger, "strategy": conversation.strategy(), "mode": mode}
        return memory

    # What the model is going to say to it

    def _steps(self, body: dict[str, Any]) -> list[Step]:
        chance = self._chance
        streamed, recall = body.get("stream", False), body["memory"]["recall"]
        steps: list[Step] = []
        if chance.random() < 0.06:
            steps.append(Step(Answer(status=500, headers={"Retry-After": "0"}), "goes on"))
        while recall and len(steps) < 3 and chance.random() < 0.35:
            steps.append(self._says("goes on", calls=[self._search()], in_calls=chance.random() < 0.5))
        kinds = ["text"] * 10 + ["refusal", "blank"] + ["fails", "breaks", "leaves"] * 2
        kinds += ["calls"] * 6 * self._has_tools + ["mixed"] * 3 * (self._has_tools and recall)
        return [*steps, self._last_step(chance.choice(kinds), streamed=streamed)]

    def _last_step(self, kind: str, *, streamed: bool) -> Step:
        chance = self._chance
        match kind:
            case "text":
                return self._says("answers", reasoning="Let me think." if chance.random() < 0.3 else None)
            case "blank":
                return Step(Answer(chance.choice(["", " "])), "answers")
            case "refusal":
                refusal = self._text()
                line = self._conversation.says({"role": "assistant", "content": None, "refusal": refusal})
                return Step(Answer("", refusal=refusal), "answers", line)
            case "calls" | "mixed":
                calls = [self._look_up(place) for place in range(chance.randint(1, 3))]
                if kind == "mixed":
                    calls.insert(chance.randint(0, len(calls)), self._search())
                return self._says("answers", calls=calls, in_calls=chance.random() < 0.5, reasoning="Hm.")
            case "fails":
                status = chance.choice([400, 429, 500, 503])
                return Step(Answer(status=status, headers={"Retry-After": "60"}), "fails")
        return self._broken_step(kind, streamed=streamed)

    def _broken_step(self, kind: str, *, streamed: bool) -> Step:
        chunks = self._chance.randint(1, 6)
        match kind:
            case "breaks" if streamed:
                return self._cut(chunks, "breaks", **{self._chance.choice(["dies_after", "error_after"]): chunks})
            case "leaves" if streamed:
                return self._cut(chunks, "leaves", hold_after=(chunks, _NEVER))
            case "breaks":
                return Step(Answer(self._text(), dies_after=0), "breaks")
        return Step(Answer(self._text(), hold=_NEVER), "leaves")

    def _says(
        self, end: Any, *, calls: Sequence[Call] = (), in_calls: bool = False, reasoning: str | None = None
    ) -> Step:
        """Its word is in its text, or else in the arguments of its first call."""
        text = None if in_calls else self._text()
        if in_calls:
            id_, name, arguments = calls[0]
            of = {"of": self._conversation.words.new()}
            calls = [(id_, name, json.dumps(json.loads(arguments) | of)), *calls[1:]]
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [as_call(*call) for call in calls]
        answer = Answer(text, calls=calls, reasoning=reasoning, pieces=_PIECE)
        return Step(answer, end, self._conversation.says(message))

    def _cut(self, chunks: int, end: Any, **how: Any) -> Step:
        """The first chunk says who speaks, the others what."""
        line = self._conversation.says({"role": "assistant", "content": f"{self._text()} on and on and on and on"})
        line.got = line.message["content"][: max(0, chunks - 1) * _PIECE]
        return Step(Answer(line.message["content"], pieces=_PIECE, **how), end, line)

    def _look_up(self, place: int) -> Call:
        return self._call_id(place), "look_up", json.dumps({"place": place})

    def _search(self) -> Call:
        query = self._chance.choice(["secret", "and so on", "nothing of the kind"])
        return self._call_id(7), SEARCH, json.dumps({"innerThought": "Hm.", "query": query})

    def _call_id(self, place: int) -> str:
        match self._conversation.ids:
            case "own":
                return f"call-{self._conversation.words.new()}"
            case "repeated":
                return f"call-{place}"
        return ""

    # The wire

    async def _exchange(self, attempt: Attempt) -> Outcome:
        """One request and its answer; with half of the clients at either door."""
        body, headers = dict(attempt.body), {}
        if attempt.key is not None:
            headers["Idempotency-Key"] = attempt.key
        if self._place % 2:
            path, headers["X-Session-Id"] = "/v1/chat/completions", self._conversation.id
        else:
            path, body["session_id"] = "/v1/chat", self._conversation.id
        exchange = self._stream if attempt.streamed else self._post
        if attempt.ends("leaves") and not attempt.streamed:
            return await self._leave(attempt, asyncio.create_task(exchange(attempt, path, body, headers)))
        return await exchange(attempt, path, body, headers)

    async def _leave(self, attempt: Attempt, asking: "asyncio.Task[Outcome]") -> Outcome:
        """Once the model has the question; at times at once, without knowing how far it has come."""
        impatient = self._chance.random() < 0.3 and self._is_alone and self._on_busy != "interleave"
        arriving = asyncio.create_task(attempt.arrived.wait())
        patience = self._chance.random() / 50 if impatient else None
        await asyncio.wait({asking, arriving}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        arriving.cancel()
        if asking.done():
            return asking.result()
        asking.cancel()
        await asyncio.wait({asking})
        for line in attempt.new:
            line.in_doubt = line.in_doubt or impatient
        return Outcome("left")

    async def _post(self, attempt: Attempt, path: str, body: Any, headers: Any) -> Outcome:
        answer = await self._conversation.http.post(path, json=body, headers=headers)
        if answer.status_code != 200:
            return self._not_answered(attempt, answer)
        return self._answered(attempt, answer.json()["choices"][0]["message"])

    async def _stream(self, attempt: Attempt, path: str, body: Any, headers: Any) -> Outcome:
        reply = Reply()
        leaves_at = self._leaves_at(attempt)
        async with self._conversation.http.stream("POST", path, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return self._not_answered(attempt, answer)
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                chunk = data_of(line)
                if chunk is None:
                    return self._answered(attempt, reply.message())
                if "error" in chunk:
                    return self._broken_off(attempt, reply, chunk["error"].get("code"))
                reply.add(chunk)
                if leaves_at is not None and len(reply.text) >= leaves_at:
                    await attempt.arrived.wait()  # Until then the service is still at an earlier round.
                    return Outcome("left", reply.message() if reply.text else None)
        self._complain(attempt, "Its stream ended with neither [DONE] nor an error.")
        return Outcome("failed")

    def _leaves_at(self, attempt: Attempt) -> int | None:
        if not attempt.ends("leaves") or attempt.end is None or attempt.end.line is None:
            return None
        return len(attempt.text_before_end()) + len(attempt.end.line.got)

    # What it makes of the answer

    def _answered(self, attempt: Attempt, message: Message) -> Outcome:
        got = text_of(message), message.get("tool_calls") or []
        if attempt.replayed is not None:
            expected: Any = text_of(attempt.replayed), attempt.replayed.get("tool_calls") or []
        elif attempt.ends("answers") and attempt.end is not None:
            before = attempt.text_before_end() if attempt.streamed else ""
            calls = [as_call(*call) for call in calls_of(attempt.end.answer, of_client=True)]
            expected = before + (attempt.end.answer.text or ""), calls
        else:
            expected = "nothing"
        if got != expected:
            self._complain(attempt, f"It was answered {got}, instead of {expected}.")
        return Outcome("answered", message)

    def _broken_off(self, attempt: Attempt, reply: Reply, code: str | None) -> Outcome:
        if not attempt.ends("breaks", "fails") and not self._is_too_large(attempt, code):
            self._complain(attempt, "Its stream ended with an error, but the model had none.")
        return Outcome("failed", reply.message() if reply.text else None)

    def _not_answered(self, attempt: Attempt, answer: httpx.Response) -> Outcome:
        if attempt.prompts and attempt.end is not None:
            scripted = 502 if attempt.ends("breaks") else attempt.end.answer.status
            as_scripted = attempt.ends("fails", "breaks") and answer.status_code == scripted
            if not as_scripted and not self._is_too_large(attempt, _problem_of(answer)):
                self._complain(attempt, f"It failed with {answer.status_code}: {answer.text}")
            return Outcome("failed")
        problem = _problem_of(answer)
        if problem != "session-busy" and not self._is_fair(attempt, problem):
            self._complain(attempt, f"It was refused with {answer.status_code}: {answer.text}")
        return Outcome("refused", problem=problem)

    def _is_fair(self, attempt: Attempt, problem: str) -> bool:
        if attempt.refusal is not None:
            return problem == attempt.refusal
        if self._is_too_large(attempt, problem):
            return True
        match problem:
            # The log does not hold the call, nor does the request; another call may have had its id.
            case "call-unknown" | "call-answered" | "call-abandoned" if self._conversation.may_reject_calls:
                return self._conversation.is_shared or self.style in {"new", "replace"}
            case "call-abandoned" | "call-answered":
                return self._conversation.is_shared
        return False

    def _is_too_large(self, attempt: Attempt, problem: str | None) -> bool:
        """Also a later round may be, with what the service's tools found."""
        return problem in {"context-too-large", "context_too_large"} and "max_context_tokens" in attempt.memory

    def _note(self, attempt: Attempt, outcome: Outcome) -> None:
        """What it knows now, beyond what the model does."""
        for line in attempt.new:
            if line.fate == "unsure" and outcome.kind == "refused" and not line.in_doubt:
                line.fate = "absent"
            if line.fate == "stored" and line.role == "user":
                line.is_settled()
        # What the model was not asked for; after a client that left at once, it may be yet.
        for step in attempt.steps[attempt.prompts :]:
            if step.line is not None and not attempt.new[0].in_doubt:
                step.line.fate = "absent"
        if attempt.prompts and attempt.end is not None:
            if outcome.kind == "answered":
                self._note_reply(attempt, attempt.end)
            elif attempt.end.line is not None:
                attempt.end.line.fate = "cut"
                # By a question that is not stored, nobody could tell what was said to it.
                self._fragments += [attempt.end.line.word] * (attempt.new[0].fate == "stored")

    def _note_reply(self, attempt: Attempt, end: Step) -> None:
        self._caller = end.line
        if end.line is None:
            return
        searched = any(calls_of(step.answer, of_client=False) for step in attempt.steps)
        end.line.is_known(accepted=searched or accepts(self._conversation.message_filter, end.line.message))
        if not calls_of(end.answer, of_client=True):
            end.line.is_settled()
        if attempt.new[0].call is not None:  # Call and results go into prompts together.
            for line in (attempt.new[0].call, *attempt.new):
                line.is_settled()

    def _complain(self, attempt: Attempt, fault: str) -> None:
        options = {name: value for name, value in attempt.body.items() if name not in {"messages", "tools", "user"}}
        told = f"{attempt.name} ({self.style}): {fault}\n{options}\n{rendered(attempt.body)}"
        self._conversation.faults.append(told)


def _styles(conversation: Conversation) -> list[_Style]:
    """Who resends all of its own view of a session that it shares resends what is not the session's history."""
    if conversation.is_shared:
        return ["new", "replace"] if _is_known("overtaken call") else ["new", "turn", "replace"]
    return ["new", "turn", "everything", "window", "replace"]


def _problem_of(answer: httpx.Response) -> str:
    """The slug of a problem in either shape."""
    body = answer.json()
    if isinstance(body.get("error"), dict):
        return (body["error"].get("code") or "").replace("_", "-")
    return body.get("type", "").rpartition(":")[2]


async def converse(numbers: Sequence[int], url: str, script: Script) -> tuple[list[Conversation], Model]:
    """The conversations of these numbers, some at once, read in the end."""
    script.behaviour = model = Model()
    slots = asyncio.Semaphore(_AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=100)) as http:
        conversations = [Conversation(number, http, model) for number in numbers]

        async def run(conversation: Conversation) -> None:
            async with slots:
                await conversation.run()

        await asyncio.gather(*map(run, conversations))
        await script.eventually(lambda script: script.in_flight == 0)
        for conversation in conversations:
            await conversation.read()
    return conversations, model
